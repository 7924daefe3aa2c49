/* doctor-disk.c - the file system, and partition, device mapper, loop and disk below it. */
#include "disk.h"
#include "doctor-path.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

#define DEEPEST 8 /* disks below disks */

/* ---- the file system ------------------------------------------------------------- */

static const struct {
	const char *type;
	unsigned traits;
} file_systems[] = {
	{ "tmpfs", IN_MEMORY },     { "ramfs", IN_MEMORY },    { "devtmpfs", IN_MEMORY },
	{ "hugetlbfs", IN_MEMORY }, { "btrfs", COPIES },       { "bcachefs", COPIES },
	{ "zfs", COPIES },          { "nfs", ELSEWHERE },      { "nfs4", ELSEWHERE },
	{ "cifs", ELSEWHERE },      { "smb3", ELSEWHERE },     { "ceph", ELSEWHERE },
	{ "9p", ELSEWHERE },        { "virtiofs", ELSEWHERE }, { "fuse", ELSEWHERE },
	{ "fuseblk", ELSEWHERE },
};

static bool
has_option(const char *options, const char *name)
{
	size_t length = strlen(name);

	for (const char *at = options; (at = strstr(at, name)) != NULL; at += length) {
		if ((at == options || at[-1] == ',') && (at[length] == ',' || at[length] == '\0'))
			return true;
	}
	return false;
}

static unsigned
file_system(struct doctor_report *r, const struct mount *m)
{
	unsigned traits = 0;

	doctor_fact(r, "file system", "kind", "%s, at %s, from %s", m->type, m->at, m->source);
	doctor_fact(r, "file system", "options", "%s", m->options);
	for (unsigned i = 0; i < sizeof(file_systems) / sizeof(file_systems[0]); i++) {
		if (strcmp(m->type, file_systems[i].type) == 0)
			traits |= file_systems[i].traits;
	}
	if (strncmp(m->type, "fuse.", 5) == 0)
		traits |= ELSEWHERE;
	if (has_option(m->options, "nobarrier") || has_option(m->options, "barrier=0"))
		traits |= NO_BARRIERS;
	if (has_option(m->options, "nodatacow"))
		traits &= ~COPIES;
	return traits;
}

/* ---- disks ----------------------------------------------------------------------- */

static const struct {
	const char *file, *name;
} queue[] = {
	{ "write_cache", "write cache" },
	{ "fua", "FUA" },
	{ "scheduler", "scheduler" },
	{ "rotational", "rotational" },
	{ "logical_block_size", "logical block" },
	{ "physical_block_size", "physical block" },
	{ "discard_max_bytes", "discard, at most" },
	{ "write_zeroes_max_bytes", "zeroes, at most" },
};

/* The one that is in force. */
static void
chosen(char *word)
{
	char *from = strchr(word, '['), *to = from != NULL ? strchr(from, ']') : NULL;

	if (to == NULL)
		return;
	*to = '\0';
	memmove(word, from + 1, (size_t)(to - from));
}

static void
tell_queue(struct doctor_report *r, const char *folder)
{
	for (unsigned i = 0; i < sizeof(queue) / sizeof(queue[0]); i++) {
		char word[256], name[64];

		snprintf(name, sizeof(name), "queue/%s", queue[i].file);
		if (!disk_word(folder, name, word, sizeof(word)))
			snprintf(word, sizeof(word), "could not be read");
		doctor_fact(r, "disk", queue[i].name, "%s", word);
	}
}

static unsigned
queue_traits(const char *folder)
{
	char word[256];
	unsigned traits = 0;

	if (disk_word(folder, "queue/write_cache", word, sizeof(word)) &&
	    strcmp(word, "write back") == 0)
		traits |= VOLATILE;
	if (disk_word(folder, "queue/rotational", word, sizeof(word)) && word[0] == '1')
		return traits;
	if (disk_word(folder, "queue/scheduler", word, sizeof(word))) {
		chosen(word);
		if (strcmp(word, "none") != 0)
			traits |= SCHEDULED;
	}
	return traits;
}

/* What kind of a disk it is, in words. Returns traits. */
static unsigned
disk_kind(const char *folder, const char *name, char *text, size_t size)
{
	static const struct {
		const char *file, *form;
	} kinds[] = {
		{ "loop/backing_file", "%s, a loop over %s" },
		{ "dm/name", "%s, the device mapper's %s" },
		{ "md/level", "%s, %s" },
		{ "device/model", "%s, %s" },
	};
	static const struct {
		const char *name; /* or how it begins: a number follows, or a letter */
		unsigned traits;
	} known[] = {
		{ "ram", IN_MEMORY },        { "zram", IN_MEMORY }, { "nullb", IN_MEMORY },
		{ "scsi_debug", IN_MEMORY }, { "nbd", ELSEWHERE },  { "rbd", ELSEWHERE },
		{ "drbd", ELSEWHERE },
	};
	char word[PATH_MAX] = "";
	unsigned traits = 0;

	snprintf(text, size, "%s", name);
	for (unsigned i = 0; i < sizeof(kinds) / sizeof(kinds[0]); i++) {
		if (!disk_word(folder, kinds[i].file, word, sizeof(word)))
			continue;
		snprintf(text, size, kinds[i].form, name, word);
		break;
	}
	for (unsigned i = 0; i < sizeof(known) / sizeof(known[0]); i++) {
		if (strncmp(name, known[i].name, strlen(known[i].name)) == 0 ||
		    strcmp(word, known[i].name) == 0)
			traits |= known[i].traits;
	}
	return traits;
}

static unsigned device_chain(struct doctor_report *r, dev_t device, unsigned depth);
static unsigned file_chain(struct doctor_report *r, const char *path, unsigned depth);

/* What a disk is made of; one that is made of nothing else is where the chain ends well. */
static unsigned
below(struct doctor_report *r, const char *folder, unsigned depth)
{
	char path[PATH_MAX + NAME_MAX + 32], word[PATH_MAX];
	unsigned traits = 0, unknown = 0, parts = 0;
	struct dirent *e;
	DIR *slaves;

	if (disk_word(folder, "loop/backing_file", word, sizeof(word)))
		return file_chain(r, word, depth + 1);
	snprintf(path, sizeof(path), "%s/slaves", folder);
	slaves = opendir(path);
	while (slaves != NULL && (e = readdir(slaves)) != NULL) {
		unsigned major, minor, found = 0;

		if (e->d_name[0] == '.')
			continue;
		parts++;
		snprintf(path, sizeof(path), "%s/slaves/%s", folder, e->d_name);
		if (disk_word(path, "dev", word, sizeof(word)) &&
		    sscanf(word, "%u:%u", &major, &minor) == 2)
			found = device_chain(r, makedev(major, minor), depth + 1);
		traits |= found;
		unknown |= ~found & DISK_KNOWN;
	}
	if (slaves != NULL)
		closedir(slaves);
	return parts == 0 ? DISK_KNOWN : traits & ~unknown;
}

/* The first disk tells what is in force for all that is below. */
static unsigned
device_chain(struct doctor_report *r, dev_t device, unsigned depth)
{
	char disk[PATH_MAX], text[PATH_MAX + 128], word[256];
	const char *name;
	unsigned traits;

	if (depth == DEEPEST || !disk_folder(device, disk))
		return 0;
	if (disk_word(disk, "partition", word, sizeof(word)))
		doctor_fact(r, "disk", "partition", "%s, number %s", strrchr(disk, '/') + 1, word);
	disk_whole(disk);
	name = strrchr(disk, '/') + 1;
	traits = disk_kind(disk, name, text, sizeof(text)) | queue_traits(disk);
	if (depth == 0) {
		doctor_fact(r, "disk", "device", "%s", text);
		tell_queue(r, disk);
	} else {
		if (!disk_word(disk, "queue/write_cache", word, sizeof(word)))
			snprintf(word, sizeof(word), "a cache of which nothing is known");
		doctor_fact(r, "disk", "below it", "%s, %s", text, word);
	}
	return traits | below(r, disk, depth);
}

static unsigned
file_chain(struct doctor_report *r, const char *path, unsigned depth)
{
	struct mount *m = malloc(sizeof(*m));
	unsigned traits = 0;

	if (m != NULL && depth < DEEPEST && mount_find(path, m))
		traits = file_system(r, m) | device_chain(r, mount_device(m), depth);
	free(m);
	return traits;
}

unsigned
path_disk(struct doctor_report *r, const char *path)
{
	unsigned traits = 0;
	struct stat st;

	if (stat(path, &st) == 0)
		traits = S_ISBLK(st.st_mode) ? device_chain(r, st.st_rdev, 0)
					     : file_chain(r, path, 0);
	if ((traits & (DISK_KNOWN | IN_MEMORY | ELSEWHERE)) == 0)
		doctor_fact(r, "disk", "at the end", "nothing is known of a disk");
	return traits;
}
