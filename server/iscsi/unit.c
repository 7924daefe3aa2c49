/*
 * unit.c - an export as a logical unit.
 *
 * The good path: a session of the export begins, and scsi-emu makes a unit of it; reservations
 * that are to last are saved by a helper thread. In the end the unit is taken from its initiators,
 * what is under way finishes, and the session ends.
 *
 * What can go wrong: the export is retired by force while it is a unit (the owner is told, on the
 * worker, and removes it), a save is under way when the unit goes (it is waited for), the state
 * cannot be saved (whoever reserved is told).
 */
#include "unit.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define UNIT_OF(ptr, member) ((struct unit *)((char *)(ptr)-offsetof(struct unit, member)))

/* ---- saving ---------------------------------------------------------------------- */

/* On a helper thread. scsi-emu leaves the text alone until it is told. */
static int64_t
save_call(struct pl_io *io)
{
	struct unit *u = UNIT_OF(io, save_io);
	struct pl_error err;
	int error = state_save(u->directory, u->export, &u->state, &err);

	if (error != 0)
		log_error("export \"%s\": reservations: %s", u->export, err.text);
	return error;
}

static void settle(struct unit *u);

static void
save_done(struct pl_io *io, int64_t result)
{
	struct unit *u = UNIT_OF(io, save_io);

	u->saving = false;
	u->state.saved = NULL;
	if (!u->ended)
		scsi_lu_saved(u->lu, (int)result);
	settle(u);
}

static void
unit_save(void *user, struct scsi_lu *lu, const char *text)
{
	struct unit *u = user;

	(void)lu;
	u->saving = true;
	u->state.saved = (char *)text;
	u->save_io = (struct pl_io){
		.kind = PL_IO_CALL, .fd = -1, .slot = -1, .call = save_call, .done = save_done
	};
	pl_loop_io(u->session.worker->loop, &u->save_io);
}

/* ---- the end --------------------------------------------------------------------- */

/* Nothing of it may be under way or on its way. */
static void
settle(struct unit *u)
{
	if (u->ended && !u->saving && !__atomic_load_n(&u->cut_posted, __ATOMIC_ACQUIRE))
		u->gone(u);
}

static void
unit_ended(void *user)
{
	struct unit *u = user;

	session_end(&u->session); /* it is not cut any more */
	u->ended = true;
	settle(u);
}

void
unit_remove(struct unit *u)
{
	scsi_lu_remove(u->lu, unit_ended, u);
}

static void
unit_cut(struct pl_work *work)
{
	struct unit *u = UNIT_OF(work, cut_work);

	__atomic_store_n(&u->cut_posted, false, __ATOMIC_RELEASE);
	if (!u->removing)
		u->cut(u);
	settle(u);
}

/* On the main thread, under the catalog's lock: the session is there, and so is its unit. */
static void
session_cut(struct session *s)
{
	struct unit *u = UNIT_OF(s, session);

	if (!__atomic_exchange_n(&u->cut_posted, true, __ATOMIC_ACQ_REL))
		pl_loop_post(s->worker->loop, &u->cut_work);
}

/* ---- the beginning --------------------------------------------------------------- */

int
unit_new(struct unit **out, const struct lun *lun, const char *directory, struct pl_error *err)
{
	struct unit *u = calloc(1, sizeof *u);
	int error = 0;

	if (u != NULL) {
		u->number = lun->number;
		u->export = strdup(lun->export);
		u->params = pl_params_copy(lun->params);
		u->initiators = lun->initiators != NULL ? strdup(lun->initiators) : NULL;
		u->directory = directory;
		u->cut_work.run = unit_cut;
	}
	if (u == NULL || u->export == NULL || u->params == NULL ||
	    (lun->initiators != NULL && u->initiators == NULL))
		error = pl_error_set(err, -ENOMEM, "LUN %u", lun->number);
	if (error == 0)
		error = iscsi_rules_new(&u->rules, lun->initiators, NULL, err);
	if (error == 0)
		error = directory != NULL ? state_load(directory, u->export, &u->state, err)
					  : state_new_uuid(u->state.uuid, err);
	if (error != 0) {
		unit_free(u);
		return error;
	}
	*out = u;
	return 0;
}

void
unit_free(struct unit *u)
{
	if (u == NULL)
		return;
	iscsi_rules_free(u->rules);
	pl_params_free(u->params);
	free(u->state.saved);
	free(u->initiators);
	free(u->export);
	free(u);
}

int
unit_start(struct unit *u, struct scsi_target *scsi, struct offer *offer, struct worker *worker,
	   struct pl_error *err)
{
	struct scsi_unit unit = {
		.params = u->params,
		.name = *u->export != '\0' ? u->export : "default",
		.export = offer_export(offer),
		.saved = u->state.saved,
		.save = u->directory != NULL ? unit_save : NULL,
		.user = u,
	};
	int error;

	memcpy(unit.uuid, u->state.uuid, sizeof unit.uuid);
	error = session_begin_alone(&u->session, offer, worker, session_cut, err);
	if (error != 0) {
		offer_put(offer);
		return error;
	}
	unit.channel = u->session.channel;
	unit.capabilities = u->session.capabilities;
	error = scsi_lu_new(scsi, &unit, &u->lu, err);
	free(u->state.saved);
	u->state.saved = NULL;
	if (error != 0)
		session_end(&u->session);
	return error;
}

/* ---- what initiators see --------------------------------------------------------- */

int
unit_map(const struct unit *u, struct scsi_nexus *nexus, const char *initiator)
{
	if (u->removing || !iscsi_rules_allow_name(u->rules, initiator))
		return 0;
	return scsi_nexus_map(nexus, u->number, u->lu);
}

void
unit_resize(struct unit *u)
{
	uint64_t size = offer_geometry(u->session.offer)->size;

	if (u->removing || size == u->session.size)
		return;
	u->session.size = size;
	scsi_lu_resized(u->lu);
}

bool
unit_is(const struct unit *u, const struct lun *lun)
{
	return u->number == lun->number && strcmp(u->export, lun->export) == 0 &&
	       params_same(u->params, lun->params, NULL);
}
