/*
 * state.c - what has to outlive the server.
 *
 * The good path: the file of a LUN is read when the LUN appears, made if there is none, and
 * written anew by NAME.lu.new, fsync, rename, and fsync of the directory, whenever reservations
 * that are to last have changed.
 *
 * What can go wrong: the server is killed or the power fails while a file is written (the old one
 * is still there, and NAME.lu.new is written over the next time); what is there cannot be read or
 * is no such file (refused, with its name: a unit that came back as another one, or without its
 * reservations, would be worse than none); the disk is full (the reservation is refused, and the
 * old file stays); two servers have one directory (the second one is refused: two disks of one
 * identity are one to initiators).
 */
#include "state.h"

#include "../json-text.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <limits.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define OF_DEVICES "/var/lib/platter"
#define ENDING     ".lu"
#define NEW_ENDING ".lu.new"
#define FILE_MAX \
	(4u << 20) /* bytes: many times what all the initiators a unit has room for take \
		    */

/* ---- names ----------------------------------------------------------------------- */

/* What a file name can have as it is, at least behind its first byte. */
static bool
is_plain(char c, bool first)
{
	return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z') || (c >= '0' && c <= '9') ||
	       (!first && (c == '.' || c == '-' || c == '_'));
}

/* name is NAME_MAX + 1 bytes. */
static int
file_name(const char *export, char *name, struct pl_error *err)
{
	static const char nameless[] = "default";
	size_t n = 0, room = NAME_MAX - strlen(NEW_ENDING);
	/* One that is called so gets another first letter. */
	bool taken = strcmp(export, nameless) == 0;

	if (*export == '\0')
		return sprintf(name, "%s", nameless) > 0 ? 0 : -EINVAL;
	for (const char *c = export; *c != '\0'; c++) {
		bool plain = is_plain(*c, c == export) && !(taken && c == export);

		if (n + (plain ? 1 : 3) > room)
			return pl_error_say(err, -EINVAL,
					    "export \"%s\": its name is too long for a LUN's: a "
					    "file is named after it",
					    export);
		n += (size_t)sprintf(name + n, plain ? "%c" : "%%%02X", (unsigned char)*c);
	}
	return 0;
}

int
state_check(const char *export, struct pl_error *err)
{
	char name[NAME_MAX + 1];

	return file_name(export, name, err);
}

/* DIRECTORY/NAME and its ending; the caller frees it. */
static int
file_path(const char *directory, const char *export, const char *ending, char **path,
	  struct pl_error *err)
{
	char name[NAME_MAX + 1];
	int error = file_name(export, name, err);

	if (error == 0 && asprintf(path, "%s/%s%s", directory, name, ending) == -1)
		error = pl_error_set(err, -ENOMEM, "%s", directory);
	return error;
}

/* ---- UUIDs ----------------------------------------------------------------------- */

#define UUID_TEXT 36 /* 8-4-4-4-12 digits */

int
state_new_uuid(uint8_t uuid[16], struct pl_error *err)
{
	if (getrandom(uuid, 16, 0) != 16)
		return pl_error_set(err, -errno, "a random UUID");
	uuid[6] = (uint8_t)((uuid[6] & 0x0f) | 0x40);
	uuid[8] = (uint8_t)((uuid[8] & 0x3f) | 0x80);
	return 0;
}

static bool
is_dash(unsigned at)
{
	return at == 8 || at == 13 || at == 18 || at == 23;
}

static void
uuid_write(const uint8_t uuid[16], char text[UUID_TEXT + 1])
{
	for (unsigned i = 0, at = 0; i < 16; i++) {
		if (is_dash(at))
			text[at++] = '-';
		at += (unsigned)sprintf(text + at, "%02x", uuid[i]);
	}
}

static bool
uuid_read(const char *text, uint8_t uuid[16])
{
	static const char digits[] = "0123456789abcdef";
	unsigned n = 0;

	if (text == NULL || strlen(text) != UUID_TEXT)
		return false;
	memset(uuid, 0, 16);
	for (unsigned at = 0; at < UUID_TEXT; at++) {
		const char *digit = strchr(digits, text[at]);

		if (is_dash(at) ? text[at] != '-' : digit == NULL)
			return false;
		if (is_dash(at))
			continue;
		uuid[n / 2] = (uint8_t)(uuid[n / 2] << 4 | (digit - digits));
		n++;
	}
	return true;
}

/* ---- reading --------------------------------------------------------------------- */

static int
refuse(const char *path, const char *why, struct pl_error *err)
{
	return pl_error_say(err, -EINVAL,
			    "%s: it does not say who a LUN is: %s. With a copy of it the LUN is "
			    "what it was; without the file it is a new disk to all initiators",
			    path, why);
}

static int
understand(const char *path, const json_t *root, struct state_unit *unit, struct pl_error *err)
{
	const json_t *saved = json_object_get(root, "reservations");

	if (!json_is_object(root))
		return refuse(path, "it is no JSON object", err);
	if (!uuid_read(json_string_value(json_object_get(root, "uuid")), unit->uuid))
		return refuse(path, "\"uuid\" is none", err);
	if (saved != NULL && !json_is_string(saved))
		return refuse(path, "\"reservations\" is no text", err);
	if (saved == NULL)
		return 0;
	unit->saved = strdup(json_string_value(saved));
	return unit->saved != NULL ? 0 : pl_error_set(err, -ENOMEM, "%s", path);
}

/* One that is no file does not keep us waiting. */
static FILE *
open_file(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK), error;
	FILE *file = fd != -1 ? fdopen(fd, "r") : NULL;

	error = errno;
	if (fd != -1 && file == NULL)
		close(fd);
	errno = error;
	return file;
}

/* jansson may take want of memory for a mistake in what it reads. */
static __thread bool lacked_memory;

static void *
noting_malloc(size_t size)
{
	void *piece = malloc(size);

	lacked_memory |= piece == NULL;
	return piece;
}

static void
note_memory(void)
{
	json_set_alloc_funcs(noting_malloc, free);
}

static int
read_file(const char *path, struct state_unit *unit, struct pl_error *err)
{
	static pthread_once_t noting = PTHREAD_ONCE_INIT;
	FILE *file = open_file(path);
	json_t *root = NULL;
	json_error_t e;
	struct stat st;
	int error = 0;

	if (file == NULL)
		return pl_error_set(err, -errno, "%s", path);
	if (fstat(fileno(file), &st) == -1)
		error = pl_error_set(err, -errno, "%s", path);
	else if (!S_ISREG(st.st_mode) || st.st_size > FILE_MAX)
		error = refuse(path, "it is no file of such a size", err);
	if (error == 0) {
		pthread_once(&noting, note_memory);
		lacked_memory = false;
		root = json_loadf(file, JSON_REJECT_DUPLICATES, &e);
		if (ferror(file))
			error = pl_error_set(err, -EIO, "%s: read", path);
		else if (lacked_memory)
			error = pl_error_set(err, -ENOMEM, "%s", path);
		else if (root == NULL)
			error = refuse(path, e.text, err);
	}
	if (error == 0)
		error = understand(path, root, unit, err);
	json_decref(root);
	fclose(file);
	return error;
}

/* ---- writing --------------------------------------------------------------------- */

/* The whole of it, and synced. */
static int
write_file(const char *path, const char *text)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0600), error = 0;
	size_t left = strlen(text);

	if (fd == -1)
		return -errno;
	while (left > 0 && error == 0) {
		ssize_t n = write(fd, text, left);

		if (n == -1) {
			error = errno == EINTR ? 0 : -errno;
			continue;
		}
		text += n;
		left -= (size_t)n;
	}
	if (error == 0 && fsync(fd) == -1)
		error = -errno;
	if (close(fd) == -1 && error == 0)
		error = -errno;
	return error;
}

/* A new name in it stays, too. */
static int
sync_directory(const char *path)
{
	int fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC), error;

	if (fd == -1)
		return -errno;
	error = fsync(fd) == -1 ? -errno : 0;
	close(fd);
	return error;
}

static int
replace_file(const char *directory, const char *path, const char *fresh, const char *text,
	     struct pl_error *err)
{
	int error = write_file(fresh, text);

	if (error != 0) {
		unlink(fresh);
		return pl_error_set(err, error, "%s: write", fresh);
	}
	if (rename(fresh, path) == -1)
		return pl_error_set(err, -errno, "%s: rename", fresh);
	error = sync_directory(directory);
	return error != 0 ? pl_error_set(err, error, "%s: sync", directory) : 0;
}

/* free() it. NULL: no memory. */
static char *
text_of(const struct state_unit *unit)
{
	char uuid[UUID_TEXT + 1], *text;
	json_t *root;

	uuid_write(unit->uuid, uuid);
	/* Not "s*": that leaves out what there is no memory for. */
	root = unit->saved != NULL
		       ? json_pack("{s:s, s:s}", "uuid", uuid, "reservations", unit->saved)
		       : json_pack("{s:s}", "uuid", uuid);
	text = root != NULL ? json_text(root, JSON_INDENT(1)) : NULL;
	json_decref(root);
	return text;
}

/* ---- the directory --------------------------------------------------------------- */

/* Of one that has no place beside it: named after it, or all devices would be one disk. free() it.
 */
static char *
of_device(const char *path, struct pl_error *err)
{
	const char *slash = strrchr(path, '/');
	char *above = slash != NULL ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
	char *real = above != NULL ? realpath(above, NULL) : NULL, *whole = NULL, *place = NULL;
	char name[NAME_MAX + 1];

	if (real == NULL || asprintf(&whole, "%s/%s", real, slash != NULL ? slash + 1 : path) == -1)
		whole = NULL;
	if (whole == NULL)
		pl_error_set(err, -errno, "%s", path);
	else if (file_name(strncmp(whole, "/dev/", 5) == 0 ? whole + 5 : whole, name, err) == 0 &&
		 asprintf(&place, OF_DEVICES "/%s.state", name) == -1)
		place = NULL;
	free(whole);
	free(real);
	free(above);
	return place;
}

/* free() it. */
static char *
beside_image(const struct pl_params *image, struct pl_error *err)
{
	const char *path = pl_params_get(image, "path"), *dir = pl_params_get(image, "dir");
	char *file, *place;
	struct stat st;

	if (asprintf(&file, "%s%s%s", dir != NULL ? dir : "", dir != NULL ? "/" : "", path) == -1)
		return NULL;
	if (stat(file, &st) == 0 && !S_ISREG(st.st_mode))
		place = of_device(file, err);
	else if (asprintf(&place, "%s.state", file) == -1)
		place = NULL;
	free(file);
	return place;
}

/* Of a directory whose name is the first bytes of `path`; none: where the server was started. */
static char *
within(const char *path, size_t length)
{
	char *place;

	return asprintf(&place, "%.*s%splatter.state", (int)length, path, length > 0 ? "/" : "") ==
			       -1
		       ? NULL
		       : place;
}

static char *
beside_config(const char *file)
{
	const char *slash = strrchr(file, '/');

	if (slash == file)
		return strdup("/platter.state");
	return within(file, slash != NULL ? (size_t)(slash - file) : 0);
}

int
state_place(const char *given, const char *config_file, const struct pl_params *image,
	    char **directory, struct pl_error *err)
{
	const char *systemd = getenv("STATE_DIRECTORY");

	*directory = NULL;
	pl_error_set(err, -ENOMEM, "state");
	if (given != NULL)
		*directory = strdup(given);
	else if (systemd != NULL && *systemd != '\0')
		*directory = within(systemd, strcspn(systemd, ":"));
	else if (config_file != NULL)
		*directory = beside_config(config_file);
	else if (image != NULL && pl_params_get(image, "path") != NULL)
		*directory = beside_image(image, err);
	else
		return 0;
	return *directory != NULL ? 0 : err->code;
}

/* ---- for others ------------------------------------------------------------------ */

int
state_make(const char *directory, uid_t user, gid_t group, struct pl_error *err)
{
	/* Nobody else would make that. */
	if (strncmp(directory, OF_DEVICES "/", strlen(OF_DEVICES "/")) == 0 &&
	    mkdir(OF_DEVICES, 0755) == -1 && errno != EEXIST)
		return pl_error_say(err, -errno, "%s: make: %s; state=DIR names another place",
				    OF_DEVICES, strerror(errno));
	if (mkdir(directory, 0700) == -1)
		return errno == EEXIST ? 0 : pl_error_set(err, -errno, "state=%s: make", directory);
	if (geteuid() == 0 && chown(directory, user, group) == -1)
		return pl_error_set(err, -errno, "state=%s: owner", directory);
	return 0;
}

int
state_claim(const char *directory, int *claim, struct pl_error *err)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd == -1)
		return pl_error_set(err, -errno, "state=%s", directory);
	/* Some file systems have no such locks; that is no reason not to serve. */
	if (flock(fd, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK) {
		close(fd);
		return pl_error_say(err, -EBUSY,
				    "state=%s: another server uses it; what both have of one name "
				    "would be one disk to initiators: give this one a directory of "
				    "its own by state=DIR",
				    directory);
	}
	*claim = fd;
	return 0;
}

int
state_save(const char *directory, const char *export, const struct state_unit *unit,
	   struct pl_error *err)
{
	char *path = NULL, *fresh = NULL, *text = text_of(unit);
	int error = text != NULL ? 0 : pl_error_set(err, -ENOMEM, "%s", directory);

	if (error == 0)
		error = file_path(directory, export, ENDING, &path, err);
	if (error == 0)
		error = file_path(directory, export, NEW_ENDING, &fresh, err);
	if (error == 0)
		error = replace_file(directory, path, fresh, text, err);
	free(fresh);
	free(path);
	free(text);
	return error;
}

int
state_load(const char *directory, const char *export, struct state_unit *unit, struct pl_error *err)
{
	char *path;
	int error = file_path(directory, export, ENDING, &path, err);

	if (error != 0)
		return error;
	*unit = (struct state_unit){ .saved = NULL };
	error = read_file(path, unit, err);
	free(path);
	if (error != -ENOENT)
		return error;
	error = state_new_uuid(unit->uuid, err);
	return error != 0 ? error : state_save(directory, export, unit, err);
}
