/*
 * doctor-disk.c - the file system, and partition, device mapper, loop and disk below it.
 *
 * Sources: proc(5) on /proc/self/mountinfo; Linux, Documentation/ABI/stable/sysfs-block.
 */
#include "doctor-path.h"

#include <dirent.h>
#include <errno.h>
#include <limits.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/vfs.h>

#define DEEPEST 8 /* disks below disks */
#define LONGEST (PATH_MAX + NAME_MAX + 32)

/* ---- what a file in /sys says ---------------------------------------------------- */

static bool
read_word(const char *folder, const char *name, char *word, size_t size)
{
	char path[LONGEST];
	FILE *file;
	bool got;

	snprintf(path, sizeof(path), "%s/%s", folder, name);
	file = fopen(path, "re");
	if (file == NULL)
		return false;
	got = fgets(word, (int)size, file) != NULL;
	fclose(file);
	if (!got)
		return false;
	for (size_t n = strcspn(word, "\n"); n > 0 && word[n - 1] == ' '; n--)
		word[n - 1] = '\0';
	word[strcspn(word, "\n")] = '\0';
	return true;
}

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

struct mount {
	unsigned major, minor;
	char type[64], source[PATH_MAX], at[PATH_MAX], options[1024];
};

/* "\040" is a space. */
static void
unescape(char *text)
{
	char *to = text;

	for (; *text != '\0'; text++) {
		unsigned code;

		if (text[0] == '\\' && sscanf(text + 1, "%3o", &code) == 1 && code < 256) {
			*to++ = (char)code;
			text += 3;
		} else {
			*to++ = *text;
		}
	}
	*to = '\0';
}

/* ID PARENT MAJOR:MINOR ROOT AT OPTIONS [FIELD...] - TYPE SOURCE SUPER-OPTIONS */
static bool
parse_mount(char *line, struct mount *m)
{
	char *rest = strstr(line, " - "), mine[512], all[512];

	if (rest == NULL ||
	    sscanf(line, "%*u %*u %u:%u %*s %4095s %511s", &m->major, &m->minor, m->at, mine) !=
		    4 ||
	    sscanf(rest + 3, "%63s %4095s %511s", m->type, m->source, all) != 3)
		return false;
	unescape(m->at);
	unescape(m->source);
	snprintf(m->options, sizeof(m->options), "%s,%s", mine, all);
	return true;
}

static bool
is_below(const char *path, const char *at)
{
	size_t length = strlen(at);

	return strncmp(path, at, length) == 0 &&
	       (path[length] == '/' || path[length] == '\0' || at[length - 1] == '/');
}

/* The last one of the longest name that path has above it. */
static bool
find_mount(const char *path, struct mount *found)
{
	FILE *file = fopen("/proc/self/mountinfo", "re");
	char *line = NULL, real[PATH_MAX];
	struct mount *m = malloc(sizeof(*m));
	size_t room = 0;

	found->at[0] = '\0';
	if (file != NULL && m != NULL && realpath(path, real) != NULL) {
		while (getline(&line, &room, file) > 0) {
			if (parse_mount(line, m) && is_below(real, m->at) &&
			    strlen(m->at) >= strlen(found->at))
				*found = *m;
		}
	}
	free(line);
	free(m);
	if (file != NULL)
		fclose(file);
	return found->at[0] != '\0';
}

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
		if (!read_word(folder, name, word, sizeof(word)))
			snprintf(word, sizeof(word), "could not be read");
		doctor_fact(r, "disk", queue[i].name, "%s", word);
	}
}

static unsigned
queue_traits(const char *folder)
{
	char word[256];
	unsigned traits = 0;

	if (read_word(folder, "queue/write_cache", word, sizeof(word)) &&
	    strcmp(word, "write back") == 0)
		traits |= VOLATILE;
	if (read_word(folder, "queue/rotational", word, sizeof(word)) && word[0] == '1')
		traits |= ROTATES;
	if (read_word(folder, "queue/scheduler", word, sizeof(word))) {
		chosen(word);
		if (strcmp(word, "none") != 0 && (traits & ROTATES) == 0)
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
		if (!read_word(folder, kinds[i].file, word, sizeof(word)))
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
	char path[LONGEST], word[PATH_MAX];
	unsigned traits = 0, unknown = 0, parts = 0;
	struct dirent *e;
	DIR *slaves;

	if (read_word(folder, "loop/backing_file", word, sizeof(word)))
		return file_chain(r, word, depth + 1);
	snprintf(path, sizeof(path), "%s/slaves", folder);
	slaves = opendir(path);
	while (slaves != NULL && (e = readdir(slaves)) != NULL) {
		unsigned major, minor, found = 0;

		if (e->d_name[0] == '.')
			continue;
		parts++;
		snprintf(path, sizeof(path), "%s/slaves/%s", folder, e->d_name);
		if (read_word(path, "dev", word, sizeof(word)) &&
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
	char link[64], disk[PATH_MAX], text[PATH_MAX + 128], word[256], *name;
	unsigned traits;

	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(device), minor(device));
	if (depth == DEEPEST || realpath(link, disk) == NULL)
		return 0;
	name = strrchr(disk, '/') + 1;
	if (read_word(disk, "partition", word, sizeof(word))) {
		doctor_fact(r, "disk", "partition", "%s, number %s", name, word);
		name[-1] = '\0';
		name = strrchr(disk, '/') + 1;
	}
	traits = disk_kind(disk, name, text, sizeof(text)) | queue_traits(disk);
	if (depth == 0) {
		doctor_fact(r, "disk", "device", "%s", text);
		tell_queue(r, disk);
	} else {
		if (!read_word(disk, "queue/write_cache", word, sizeof(word)))
			snprintf(word, sizeof(word), "a cache of which nothing is known");
		doctor_fact(r, "disk", "below it", "%s, %s", text, word);
	}
	return traits | below(r, disk, depth);
}

static unsigned
file_chain(struct doctor_report *r, const char *path, unsigned depth)
{
	struct mount *m = malloc(sizeof(*m));
	unsigned traits = 0, found = 0;
	struct stat source;

	if (m != NULL && depth < DEEPEST && find_mount(path, m)) {
		traits = file_system(r, m);
		/* btrfs has numbers of its own. */
		found = device_chain(r,
				     stat(m->source, &source) == 0 && S_ISBLK(source.st_mode)
					     ? source.st_rdev
					     : makedev(m->major, m->minor),
				     depth);
	}
	free(m);
	return traits | found;
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
