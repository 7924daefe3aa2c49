/* disk.c - what is read in /proc and /sys. */
#include "disk.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>

/* ---- mounts ---------------------------------------------------------------------- */

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
bool
mount_find(const char *path, struct mount *found)
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

dev_t
mount_device(const struct mount *m)
{
	struct stat source;

	/* btrfs has numbers of its own. */
	if (stat(m->source, &source) == 0 && S_ISBLK(source.st_mode))
		return source.st_rdev;
	return makedev(m->major, m->minor);
}

/* ---- disks ----------------------------------------------------------------------- */

bool
disk_folder(dev_t device, char *folder)
{
	char link[64];

	snprintf(link, sizeof(link), "/sys/dev/block/%u:%u", major(device), minor(device));
	return realpath(link, folder) != NULL;
}

bool
disk_word(const char *folder, const char *name, char *word, size_t size)
{
	char path[PATH_MAX + NAME_MAX + 32];
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

void
disk_whole(char *folder)
{
	char number[16];

	if (disk_word(folder, "partition", number, sizeof(number)))
		*strrchr(folder, '/') = '\0';
}
