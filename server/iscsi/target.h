/*
 * target.h - a target and the set of them: what targets.c and apply.c share.
 *
 * Whose is what: names, sheets and lists are under the lock, so that logins on any thread can
 * read them; units and sessions of a target are changed on its worker alone (units under the
 * lock, for the operator's questions).
 */
#ifndef ISCSI_TARGET_H
#define ISCSI_TARGET_H

#include "sheet.h"
#include "targets.h"
#include "unit.h"

/* A session of a target. */
struct joined {
	struct scsi_nexus *nexus;
	struct client *client;
	struct joined *next;
	char initiator[];
};

struct target {
	struct targets *all;
	struct worker *worker;
	struct scsi_target *scsi; /* the worker's */
	char *name;
	struct pl_work end_work;

	/* Under the lock. */
	unsigned references; /* 1 of the list, 1 for each unit, and of logins and sessions */
	bool gone;
	struct sheet *sheet;
	unsigned sessions;
	struct target *next;       /* of those on offer */
	struct target *next_alive; /* of all */

	/* Changed on the worker alone, and under the lock. */
	struct unit *units;
	struct joined *joined; /* the worker's */
};

struct targets {
	struct catalog *catalog;
	char *directory; /* or NULL */

	pthread_mutex_t lock;
	pthread_cond_t changed; /* a unit or a target is no more */
	struct target *list;    /* on offer, in the order of the configuration */
	struct target *alive;   /* those that are gone and not yet left, too */
	unsigned leaving;       /* units that are being removed */
};

/* ---- targets.c; all but the last under the lock ------------------------------------ */

struct target *targets_find(const struct targets *all, const char *name); /* on offer, or NULL */
/* The unit that has the LUN, or NULL. */
struct unit *target_unit(const struct target *t, unsigned number);
void target_put_locked(struct target *t);
/* For target.end_work, on its worker's thread: nobody knows it any more. */
void target_end(struct pl_work *work);

#endif
