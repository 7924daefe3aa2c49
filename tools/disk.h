/*
 * disk.h - file systems and disks, as the kernel tells of them.
 *
 * Sources: proc(5) on /proc/self/mountinfo; Linux, Documentation/ABI/stable/sysfs-block.
 */
#ifndef DISK_H
#define DISK_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

struct mount {
	unsigned major, minor;
	char type[64], source[PATH_MAX], at[PATH_MAX], options[1024]; /* of the mount, of all */
};

/* Where the file system of path is mounted; false: that cannot be told. */
bool mount_find(const char *path, struct mount *found);
/* What lies below it. */
dev_t mount_device(const struct mount *m);

/* Its folder in /sys, PATH_MAX bytes; false: there is none. */
bool disk_folder(dev_t device, char *folder);
/* A partition's becomes that of its disk. */
void disk_whole(char *folder);
/* The first line of a file in it, without blanks at its end; false: it cannot be read. */
bool disk_word(const char *folder, const char *name, char *word, size_t size);

#endif
