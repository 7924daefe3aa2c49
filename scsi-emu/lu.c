/*
 * lu.c - a logical unit, from its making to its end.
 *
 * The good path: made with what the profile and the options say, mapped into nexuses, used; when it
 * is removed it is taken from them, what has started finishes, and it is gone.
 */
#include "lu.h"

#include "command.h"
#include "handlers.h"
#include "nexus.h"
#include "reserve.h"
#include "target.h"
#include "tmf.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

/* ---- making ---------------------------------------------------------------------- */

static void
lu_free(struct scsi_lu *lu)
{
	scsi_flusher_free(lu);
	scsi_reserve_free(lu);
	free(lu->name);
	free(lu);
}

int
scsi_lu_new(struct scsi_target *target, const struct scsi_unit *unit, struct scsi_lu **out,
	    struct pl_error *err)
{
	struct scsi_lu *lu = calloc(1, sizeof *lu);
	int error;

	if (lu == NULL)
		return pl_error_set(err, -ENOMEM, "unit %s", unit->name);
	lu->target = target;
	lu->export = unit->export;
	lu->channel = unit->channel;
	lu->capabilities = unit->capabilities;
	lu->save = unit->save;
	lu->user = unit->user;
	lu->tasks.loop = target->loop;
	lu->name = strdup(unit->name);
	error = lu->name != NULL ? 0 : pl_error_set(err, -ENOMEM, "unit %s", unit->name);
	if (error == 0 && scsi_lu_writable(lu) && (lu->capabilities & PL_CAP_FLUSH) == 0)
		error = pl_error_say(err, -EINVAL,
				     "%s: nothing of it is ever made durable (cache=unsafe), and "
				     "SCSI has no way to say so; choose another cache mode",
				     unit->name);
	if (error == 0)
		error = scsi_profile_apply(lu, unit, err);
	if (error == 0 && scsi_flusher_new(lu) != 0)
		error = pl_error_set(err, -ENOMEM, "unit %s", unit->name);
	if (error == 0)
		error = scsi_reserve_new(lu, unit->saved, err);
	if (error != 0) {
		lu_free(lu);
		return error;
	}
	scsi_mode_reset(lu);
	lu->next = target->units;
	target->units = lu;
	*out = lu;
	return 0;
}

/* ---- for all who see it ----------------------------------------------------------- */

void
scsi_lu_attention(struct scsi_lu *lu, const struct scsi_nexus *but, unsigned asc)
{
	for (struct scsi_nexus *n = lu->target->nexuses; n != NULL; n = n->next) {
		struct scsi_itl *itl = n != but ? scsi_nexus_of_lu(n, lu) : NULL;

		if (itl != NULL)
			scsi_attention_add(itl, asc);
	}
}

/* SPC-4, "Logical unit reset" in SAM-5: as at power on, but for persistent reservations. */
void
scsi_lu_reset(struct scsi_lu *lu, unsigned asc)
{
	for (struct scsi_nexus *n = lu->target->nexuses; n != NULL; n = n->next) {
		struct scsi_itl *itl = scsi_nexus_of_lu(n, lu);

		if (itl != NULL)
			itl->copy.held = false;
	}
	scsi_reserve_reset(lu);
	scsi_medium_reset(lu);
	scsi_mode_reset(lu);
	scsi_lu_attention(lu, NULL, asc);
}

void
scsi_lu_resized(struct scsi_lu *lu)
{
	uint64_t blocks = pl_export_geometry(lu->export)->size / lu->block_size;

	if (blocks == lu->block_count)
		return;
	lu->block_count = blocks;
	scsi_lu_attention(lu, NULL, SCSI_CAPACITY_CHANGED);
}

void
scsi_lu_saved(struct scsi_lu *lu, int error)
{
	scsi_reserve_saved(lu, error);
	scsi_lu_settle(lu);
}

/* ---- the end --------------------------------------------------------------------- */

static void
lu_gone(struct pl_work *work)
{
	struct scsi_lu *lu = (struct scsi_lu *)((char *)work - offsetof(struct scsi_lu, gone_work));
	struct scsi_lu **at = &lu->target->units;
	void (*gone)(void *user) = lu->gone;
	void *user = lu->gone_user;

	assert(lu->unended == 0 && lu->tasks.first == NULL);
	while (*at != lu)
		at = &(*at)->next;
	*at = lu->next;
	lu_free(lu);
	gone(user);
}

void
scsi_lu_settle(struct scsi_lu *lu)
{
	if (!lu->removed || lu->unended > 0 || lu->tasks.posted || scsi_reserve_busy(lu) ||
	    scsi_flusher_busy(lu) || lu->gone_work.run != NULL)
		return;
	lu->gone_work.run = lu_gone;
	pl_loop_later(lu->target->loop, &lu->gone_work);
}

/* Any callback may change the list. */
void
scsi_lu_fail_not_started(struct scsi_lu *lu, const struct scsi_nexus *nexus)
{
	struct scsi_command *cmd;

	do {
		for (cmd = lu->tasks.first; cmd != NULL; cmd = cmd->next) {
			if (cmd->nexus == nexus && !scsi_command_started(cmd))
				break;
		}
		if (cmd != NULL)
			scsi_command_fail_removed(cmd);
	} while (cmd != NULL);
}

void
scsi_lu_remove(struct scsi_lu *lu, void (*gone)(void *user), void *user)
{
	assert(!lu->removed);
	lu->removed = true;
	lu->gone = gone;
	lu->gone_user = user;
	lu->unended++; /* until all of this is done */
	for (struct scsi_nexus *n = lu->target->nexuses; n != NULL; n = n->next) {
		for (unsigned i = 0; i < n->lun_end; i++) {
			if (n->itl[i] != NULL && n->itl[i]->lu == lu)
				scsi_nexus_map(n, i, NULL);
		}
	}
	lu->unended--;
	scsi_lu_settle(lu);
}
