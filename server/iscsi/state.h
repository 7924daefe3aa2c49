/*
 * state.h - what has to outlive the server: who a unit is, and its persistent reservations.
 *
 * A directory with a file for each export that is a LUN, NAME.lu (NAME: its name, with %XX for what
 * a file name cannot have; "default.lu" for the one without), of JSON:
 * {"uuid": "...", "reservations": ...}. It is written anew beside the old one, synced, and renamed
 * over it: whenever the server or the machine ends, one of the two is there, and whole.
 */
#ifndef ISCSI_STATE_H
#define ISCSI_STATE_H

#include "platter.h"

#include <sys/types.h>

struct state_unit {
	uint8_t uuid[16];
	char *saved; /* what scsi-emu gave to keep, or NULL; the caller frees it */
};

/*
 * Where it is: as given; "platter.state" in systemd's $STATE_DIRECTORY, or else beside the
 * configuration file; beside the image ("IMAGE.state"), or, if that is a device, in
 * /var/lib/platter/NAME.state. *directory: NULL: nowhere, for there is no file; free it. Each may
 * be NULL; image: the first export's parameters. Errors: -ENOMEM; files; -EINVAL: its name is too
 * long.
 */
int state_place(const char *given, const char *config_file, const struct pl_params *image,
		char **directory, struct pl_error *err);

/* Makes the directory, mode 0700, for user and group (-1: as they are), unless it is there; not
 * those above it, but for /var/lib/platter. Errors: files. */
int state_make(const char *directory, uid_t user, gid_t group, struct pl_error *err);

/* Makes it this server's own until *claim, a descriptor, is closed. Errors: files; -EBUSY. */
int state_claim(const char *directory, int *claim, struct pl_error *err);

/* Whether an export of that name can have a file. Errors: -EINVAL (the name is too long). */
int state_check(const char *export, struct pl_error *err);

/* Reads it, and makes it (a random UUID) where there is none. Blocks. Errors: files; -EINVAL: what
 * is there is not ours, or broken (err names the file). */
int state_load(const char *directory, const char *export, struct state_unit *unit,
	       struct pl_error *err);
/* saved: NULL: none. Blocks until it is on stable storage. */
int state_save(const char *directory, const char *export, const struct state_unit *unit,
	       struct pl_error *err);

/* A new one: RFC 9562, version 4. Errors: what getrandom(2) says. */
int state_new_uuid(uint8_t uuid[16], struct pl_error *err);

#endif
