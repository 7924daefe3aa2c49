/*
 * sync.c - SYNCHRONIZE CACHE.
 *
 * The good path: the core flushes, all of the export whatever the range, and the command is
 * answered. With IMMED it is answered first: the unit's flusher asks for a flush in nobody's name,
 * and for one more if another such command comes before it is done.
 *
 * What can go wrong: the flush fails. Who waits is told; of those who do not, each nexus gets a
 * deferred error with its next command. An export whose flush has failed stays failed, so nothing
 * of it is lost when a second flush was to follow.
 */
#include "block.h"
#include "handlers.h"
#include "nexus.h"
#include "target.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

struct scsi_flusher {
	struct scsi_lu *lu;
	struct pl_request req;
	bool busy, again;
};

static struct scsi_flusher *
flusher_of(struct pl_request *req)
{
	return (struct scsi_flusher *)((char *)req - offsetof(struct scsi_flusher, req));
}

/* ---- in nobody's name ------------------------------------------------------------- */

int
scsi_flusher_new(struct scsi_lu *lu)
{
	lu->flusher = calloc(1, sizeof *lu->flusher);
	if (lu->flusher == NULL)
		return -ENOMEM;
	lu->flusher->lu = lu;
	return 0;
}

void
scsi_flusher_free(struct scsi_lu *lu)
{
	assert(lu->flusher == NULL || !lu->flusher->busy);
	free(lu->flusher);
}

bool
scsi_flusher_busy(const struct scsi_lu *lu)
{
	return lu->flusher->busy;
}

/* Those who asked need not think of it any more, or get the error. */
static void
tell(struct scsi_lu *lu, int error)
{
	struct scsi_sense sense = scsi_sync_failed();

	sense.deferred = true;
	for (struct scsi_nexus *n = lu->target->nexuses; n != NULL; n = n->next) {
		struct scsi_itl *itl = scsi_nexus_of_lu(n, lu);

		if (itl == NULL || !itl->flushes)
			continue;
		itl->flushes = false;
		if (error == 0 || itl->has_deferred)
			continue;
		itl->deferred = sense;
		itl->has_deferred = true;
	}
}

static void
flushed(struct pl_request *req, int error)
{
	struct scsi_flusher *f = flusher_of(req);

	if (error == 0 && f->again) {
		f->again = false;
		pl_request_submit(f->lu->channel, req);
		return;
	}
	f->busy = f->again = false;
	if (error != 0)
		log_error("unit %s: SYNCHRONIZE CACHE with IMMED: %s", f->lu->name,
			  strerror(-error));
	tell(f->lu, error);
	scsi_lu_settle(f->lu);
}

static void
flush_later(struct scsi_lu *lu)
{
	struct scsi_flusher *f = lu->flusher;

	if (f->busy) {
		f->again = true;
		return;
	}
	f->busy = true;
	f->req.op = PL_FLUSH;
	f->req.on_done = flushed;
	pl_request_submit(lu->channel, &f->req);
}

/* ---- the command ------------------------------------------------------------------ */

static void
synchronized(struct scsi_command *cmd, int error)
{
	if (error != 0)
		scsi_fail_errno(cmd, error);
	else
		scsi_good(cmd);
}

void
scsi_synchronize_cache(struct scsi_command *cmd)
{
	struct scsi_itl *itl = scsi_nexus_of_lu(cmd->nexus, cmd->lu);
	bool immediately = (cmd->cdb[1] & 0x02) != 0 && itl != NULL; /* IMMED */

	if ((cmd->lu->capabilities & PL_CAP_FLUSH) == 0) {
		scsi_good(cmd); /* read-only: nothing is in a cache */
	} else if (immediately) {
		itl->flushes = true;
		flush_later(cmd->lu);
		scsi_good(cmd);
	} else {
		scsi_request(cmd, PL_FLUSH, 0, 0, 0, NULL, synchronized);
	}
}
