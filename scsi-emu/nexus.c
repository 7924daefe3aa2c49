/*
 * nexus.c - an initiator port and the target.
 *
 * The good path: made at login, with an entry for each LUN that is mapped; commands find their unit
 * through it; at logout what it has under way is aborted and waited for, and it is gone.
 */
#include "nexus.h"

#include "command.h"
#include "handlers.h"
#include "lu.h"
#include "reserve.h"
#include "target.h"
#include "tmf.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- LUNs ------------------------------------------------------------------------ */

int
scsi_lun_of(const uint8_t lun[8])
{
	unsigned first = get_be16(lun);

	/* One level only: what follows is zero. */
	if (get_be16(lun + 2) != 0 || get_be32(lun + 4) != 0)
		return -1;
	switch (first >> 14) {
	case 0:
		return first < SCSI_LUNS ? (int)first
					 : -1; /* peripheral device addressing, bus 0 */
	case 1: first &= 0x3fff; return first < SCSI_LUNS ? (int)first : -1; /* flat space */
	default: return -1;
	}
}

struct scsi_itl *
scsi_nexus_itl(const struct scsi_nexus *nexus, int lun)
{
	return lun >= 0 && lun < SCSI_LUNS ? nexus->itl[lun] : NULL;
}

struct scsi_itl *
scsi_nexus_of_lu(const struct scsi_nexus *nexus, const struct scsi_lu *lu)
{
	for (unsigned i = 0; i < nexus->lun_end; i++) {
		if (nexus->itl[i] != NULL && nexus->itl[i]->lu == lu)
			return nexus->itl[i];
	}
	return NULL;
}

bool
scsi_nexus_shares(const struct scsi_nexus *nexus, const struct scsi_nexus *other)
{
	for (unsigned i = 0; i < nexus->lun_end; i++) {
		if (nexus->itl[i] != NULL && scsi_nexus_of_lu(other, nexus->itl[i]->lu) != NULL)
			return true;
	}
	return false;
}

/* ---- unit attentions ------------------------------------------------------------- */

/* These say that everything else may have changed, too. */
static bool
says_all(unsigned asc)
{
	return asc >> 8 == SCSI_POWER_ON_RESET >> 8;
}

static void
attention_drop(struct scsi_itl *itl, unsigned asc)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < itl->attention_count; i++) {
		if (itl->attentions[i] != asc)
			itl->attentions[kept++] = itl->attentions[i];
	}
	itl->attention_count = kept;
}

void
scsi_attention_add(struct scsi_itl *itl, unsigned asc)
{
	if (says_all(asc)) {
		/* The stronger of two: nexus loss adds nothing to a reset. */
		if (itl->attention_count > 0 && says_all(itl->attentions[0]) &&
		    itl->attentions[0] <= asc)
			return;
		itl->attentions[0] = (uint16_t)asc;
		itl->attention_count = 1;
		return;
	}
	for (unsigned i = 0; i < itl->attention_count; i++) {
		if (itl->attentions[i] == asc)
			return;
	}
	/* There are fewer kinds than places. */
	assert(itl->attention_count < NEXUS_ATTENTIONS);
	itl->attentions[itl->attention_count++] = (uint16_t)asc;
}

bool
scsi_attention_take(struct scsi_itl *itl, unsigned *asc)
{
	if (itl->attention_count == 0)
		return false;
	*asc = itl->attentions[0];
	attention_drop(itl, *asc);
	return true;
}

/* ---- the map --------------------------------------------------------------------- */

void
scsi_nexus_lost(struct scsi_nexus *nexus, struct scsi_lu *lu)
{
	struct scsi_itl *itl = scsi_nexus_of_lu(nexus, lu);

	scsi_medium_lost(nexus, lu);
	scsi_reserve_lost(lu, nexus);
	if (itl != NULL)
		itl->copy.held = false;
}

static void
luns_changed(struct scsi_nexus *nexus, unsigned but)
{
	for (unsigned i = 0; nexus->used && i < nexus->lun_end; i++) {
		if (i != but && nexus->itl[i] != NULL)
			scsi_attention_add(nexus->itl[i], SCSI_REPORTED_LUNS_CHANGED);
	}
}

int
scsi_nexus_map(struct scsi_nexus *nexus, unsigned lun, struct scsi_lu *lu)
{
	struct scsi_itl *itl;

	assert(lun < SCSI_LUNS);
	itl = nexus->itl[lun];
	if (itl != NULL ? itl->lu == lu : lu == NULL)
		return 0;
	if (itl != NULL) {
		struct scsi_lu *old = itl->lu;

		/* It takes with it what it has asked of the unit. */
		scsi_nexus_lost(nexus, old);
		free(itl);
		nexus->itl[lun] = NULL;
		scsi_lu_fail_not_started(old, nexus);
	}
	if (lu != NULL) {
		itl = calloc(1, sizeof *itl);
		if (itl == NULL) {
			log_error("%s: LUN %u: no memory: it is not seen", nexus->initiator, lun);
			return -ENOMEM;
		}
		itl->lu = lu;
		nexus->itl[lun] = itl;
		scsi_attention_add(itl, SCSI_POWER_ON_RESET);
	}
	if (lun >= nexus->lun_end)
		nexus->lun_end = lun + 1;
	luns_changed(nexus, lun);
	return 0;
}

/* ---- REPORT LUNS, SPC-4 ----------------------------------------------------------- */

enum { SELECT_UNITS = 0x00, SELECT_WELL_KNOWN = 0x01, SELECT_ALL = 0x02 };

void
scsi_report_luns(struct scsi_command *cmd)
{
	const struct scsi_nexus *nexus = cmd->nexus;
	uint8_t *answer = scsi_answer(cmd), *p = answer + 8;
	unsigned select = cmd->cdb[2];

	if (select > SELECT_ALL) {
		scsi_fail(cmd, scsi_invalid_field(2, -1));
		return;
	}
	/* There are no well known units. */
	for (unsigned i = 0; i < nexus->lun_end && select != SELECT_WELL_KNOWN; i++) {
		if (nexus->itl[i] == NULL)
			continue;
		put_be16(p, (uint16_t)i);
		p += 8;
	}
	for (unsigned i = 0; i < nexus->lun_end; i++) {
		if (nexus->itl[i] != NULL)
			attention_drop(nexus->itl[i], SCSI_REPORTED_LUNS_CHANGED);
	}
	put_be32(answer, (uint32_t)(p - answer - 8));
	scsi_answered(cmd, (size_t)(p - answer));
}

/* ---- making and ending ----------------------------------------------------------- */

int
scsi_nexus_new(struct scsi_target *target, const char *initiator, const uint8_t isid[6],
	       struct scsi_nexus **out, struct pl_error *err)
{
	struct scsi_nexus *n;

	for (n = target->nexuses; n != NULL; n = n->next) {
		if (strcmp(n->initiator, initiator) == 0 && memcmp(n->isid, isid, 6) == 0)
			return pl_error_say(err, -EEXIST, "%s is logged in already", initiator);
	}
	n = calloc(1, sizeof *n);
	if (n == NULL)
		return pl_error_set(err, -ENOMEM, "%s", initiator);
	n->target = target;
	snprintf(n->initiator, sizeof n->initiator, "%s", initiator);
	memcpy(n->isid, isid, sizeof n->isid);
	n->next = target->nexuses;
	if (n->next != NULL)
		n->next->prev = n;
	target->nexuses = n;
	*out = n;
	return 0;
}

void
scsi_nexus_add(struct scsi_command *cmd)
{
	struct scsi_nexus *n = cmd->nexus;

	cmd->listed = true;
	cmd->prev = NULL;
	cmd->next = n->nowhere;
	if (cmd->next != NULL)
		cmd->next->prev = cmd;
	n->nowhere = cmd;
}

void
scsi_nexus_remove(struct scsi_command *cmd)
{
	cmd->listed = false;
	*(cmd->prev != NULL ? &cmd->prev->next : &cmd->nexus->nowhere) = cmd->next;
	if (cmd->next != NULL)
		cmd->next->prev = cmd->prev;
}

/* They wait for memory only: what they do is done at once. */
void
scsi_nexus_abort_nowhere(struct scsi_nexus *n)
{
	while (n->nowhere != NULL)
		scsi_command_abort(n->nowhere, false);
}

static void
nexus_gone(struct pl_work *work)
{
	struct scsi_nexus *n =
		(struct scsi_nexus *)((char *)work - offsetof(struct scsi_nexus, gone_work));

	*(n->prev != NULL ? &n->prev->next : &n->target->nexuses) = n->next;
	if (n->next != NULL)
		n->next->prev = n->prev;
	for (unsigned i = 0; i < n->lun_end; i++)
		free(n->itl[i]);
	n->gone(n->gone_user);
	free(n);
}

void
scsi_nexus_settle(struct scsi_nexus *n)
{
	if (!n->ending || n->unended > 0 || n->gone_work.run != NULL)
		return;
	n->gone_work.run = nexus_gone;
	pl_loop_later(n->target->loop, &n->gone_work);
}

static bool
is_of(const struct scsi_command *cmd, const void *user)
{
	return cmd->nexus == user;
}

void
scsi_nexus_end(struct scsi_nexus *n, void (*gone)(void *user), void *user)
{
	assert(!n->ending);
	n->ending = true;
	n->gone = gone;
	n->gone_user = user;
	n->unended++; /* until all of this is done */
	scsi_nexus_abort_nowhere(n);
	for (struct scsi_lu *lu = n->target->units; lu != NULL; lu = lu->next) {
		scsi_abort_tasks(lu, n, is_of, n);
		if (scsi_nexus_of_lu(n, lu) == NULL)
			continue;
		scsi_nexus_lost(n, lu);
	}
	n->unended--;
	scsi_nexus_settle(n);
}
