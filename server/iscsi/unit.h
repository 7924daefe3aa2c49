/*
 * unit.h - a LUN that is there: an export as a logical unit, on its target's worker.
 *
 * It uses its export as a session does that no client has, from unit_start() on.
 */
#ifndef ISCSI_UNIT_H
#define ISCSI_UNIT_H

#include "rules.h"
#include "sheet.h"
#include "state.h"

struct unit {
	unsigned number; /* its LUN */
	char *export;
	struct pl_params *params;

	/* The worker's. */
	char *initiators; /* as written, or NULL */
	struct iscsi_rules *rules;
	struct session session;
	struct scsi_lu *lu;

	/* The owner's; on the worker's thread. */
	bool removing;               /* unit_remove() is about to follow, or has */
	void (*cut)(struct unit *u); /* its export is retired: unit_remove() is to follow */
	void (*gone)(struct unit *u);
	struct target *target;
	struct unit *next;

	/* unit.c's. */
	const char *directory;
	struct state_unit state;
	struct pl_io save_io;
	bool saving, ended;
	struct pl_work cut_work;
	bool cut_posted; /* atomic */
};

/* From any thread; reads who it is. directory: or NULL, see targets_new(). Errors: -ENOMEM, what
 * state_load() says. */
int unit_new(struct unit **unit, const struct lun *lun, const char *directory,
	     struct pl_error *err);
/* Of one that was never started, or is gone. */
void unit_free(struct unit *u);

/* The rest on the worker's thread. offer is open; its reference is taken over, whatever happens.
 * Errors: what session_begin() and scsi_lu_new() say; then unit_free() is to follow. */
int unit_start(struct unit *u, struct scsi_target *scsi, struct offer *offer, struct worker *worker,
	       struct pl_error *err);
/* Initiators lose it; u->gone() follows once, when nothing of it is left but itself. */
void unit_remove(struct unit *u);

/* An initiator that may see it finds it on its nexus, or -ENOMEM. */
int unit_map(const struct unit *u, struct scsi_nexus *nexus, const char *initiator);
/* Tells initiators if the image has grown since. */
void unit_resize(struct unit *u);

/* Whether it is what lun asks for; who may see it does not matter. */
bool unit_is(const struct unit *u, const struct lun *lun);

#endif
