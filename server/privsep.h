/*
 * privsep.h - giving up what is not needed once everything is open.
 *
 * The good path: open sockets, keys and images; privsep_drop() while there is one thread:
 * user and groups, capabilities, no_new_privs, Landlock; start the workers, make their
 * rings; privsep_seal(): a seccomp filter for all threads, without io_uring_setup and exec.
 * What a reload needs to open later must be named to the first.
 */
#ifndef PRIVSEP_H
#define PRIVSEP_H

#include "platter.h"

#include <sys/types.h>

enum privsep_right {
	PRIVSEP_READ,
	PRIVSEP_WRITE,   /* and read */
	PRIVSEP_REMOVE,  /* files in a directory: sockets and the like that were made there */
	PRIVSEP_REPLACE, /* files in a directory are read, made, and renamed over each other */
};

/* A file is allowed as it is now: one that takes its place later is not, so name the directory
 * of what editors and tools replace. What is not there now is passed over. */
struct privsep_path {
	const char *path; /* a file, or a directory and all beneath */
	enum privsep_right right;
};

struct privsep_settings {
	const char *user, *group;         /* names or numbers; NULL: stay (group: the user's own) */
	bool sandbox;                     /* Landlock and seccomp */
	const struct privsep_path *paths; /* all that may be opened from now on */
	unsigned path_count;
};

/*
 * Errors: -EINVAL (no such user or group), -EPERM, ...: then the process must end. What the
 * kernel lacks (Landlock, seccomp) is logged and done without.
 *
 * Nothing of the capabilities is left; to a root that stays root, CAP_DAC_OVERRIDE alone, for
 * images that belong to others. After privsep_seal() no call can start a program, make a
 * process, a ring or a socket that is not a unix one: see the tables in privsep.c.
 */
int privsep_drop(const struct privsep_settings *settings, struct pl_error *err);
int privsep_seal(const struct privsep_settings *settings, struct pl_error *err);

/* Whether there are such a user and group, long before they are needed. */
int privsep_check(const struct privsep_settings *settings, struct pl_error *err);

/* Whom privsep_drop() would make of the process. Errors: -EINVAL. */
int privsep_identity(const struct privsep_settings *settings, uid_t *user, gid_t *group,
		     struct pl_error *err);

/* Adds to what err says of a file why that may be, if it is the sandbox's doing. */
void privsep_explain(struct pl_error *err);

#endif
