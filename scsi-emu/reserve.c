/*
 * reserve.c - what a reservation forbids, RESERVE and RELEASE, and PERSISTENT RESERVE IN.
 *
 * The two methods exclude each other: while anybody is registered RESERVE and RELEASE conflict
 * (but to those whom the persistent reservation serves they are answered and do nothing, "CRH"),
 * and while the unit is reserved by RESERVE the persistent commands conflict, for everyone.
 *
 * Sources: SPC-2 "Reservations"; SPC-4 "Reservations", "Exceptions to SPC-2 RESERVE and RELEASE
 * behavior", "PERSISTENT RESERVE IN command"; RFC 7143 and SPC-4 "TransportID identifiers".
 */
#include "reserve.h"

#include "command.h"
#include "nexus.h"
#include "persist.h"
#include "target.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- making and ending ----------------------------------------------------------- */

int
scsi_reserve_new(struct scsi_lu *lu, const char *saved, struct pl_error *err)
{
	struct scsi_reservations *r = calloc(1, sizeof *r);
	int error = 0;

	if (r == NULL)
		return pl_error_set(err, -ENOMEM, "unit %s", lu->name);
	r->lu = lu;
	if (saved != NULL) {
		error = scsi_registrations_parse(saved, lu->name, &r->now, err);
	} else {
		r->now = scsi_registrations_new();
		if (r->now == NULL)
			error = pl_error_set(err, -ENOMEM, "unit %s", lu->name);
	}
	if (error != 0) {
		free(r);
		return error;
	}
	lu->reserve = r;
	return 0;
}

bool
scsi_reserve_busy(const struct scsi_lu *lu)
{
	return lu->reserve->cmd != NULL || lu->reserve->posted;
}

void
scsi_reserve_free(struct scsi_lu *lu)
{
	if (lu->reserve == NULL)
		return;
	assert(!scsi_reserve_busy(lu));
	free(lu->reserve->now);
	free(lu->reserve);
	lu->reserve = NULL;
}

/* ---- what is forbidden ----------------------------------------------------------- */

/* Whether the nexus has what the persistent reservation gives. */
static bool
shares(const struct scsi_registrations *r, const struct scsi_nexus *nexus)
{
	int place = scsi_registrations_of(r, nexus);

	return place >= 0 && (scsi_type_shared(r->type) || scsi_registrations_holds(r, place));
}

bool
scsi_reserve_conflicts(const struct scsi_lu *lu, const struct scsi_nexus *nexus,
		       enum scsi_conflict what)
{
	const struct scsi_reservations *r = lu->reserve;

	if (what == CONFLICT_NEVER || what == CONFLICT_HANDLER)
		return false;
	if (r->reserved)
		return !scsi_port_is(&r->reserver, nexus);
	if (r->now->type == 0 || what == CONFLICT_RESERVE)
		return false;
	if (what == CONFLICT_READ && scsi_type_reading(r->now->type))
		return false;
	return !shares(r->now, nexus);
}

/* ---- RESERVE and RELEASE ---------------------------------------------------------- */

/* Ends the command if there are registrations. */
static bool
persistent_rules(struct scsi_command *cmd)
{
	const struct scsi_registrations *now = cmd->lu->reserve->now;

	if (now->count == 0)
		return false;
	scsi_end(cmd, shares(now, cmd->nexus) ? SCSI_GOOD : SCSI_RESERVATION_CONFLICT);
	return true;
}

void
scsi_reserve_unit(struct scsi_command *cmd)
{
	struct scsi_reservations *r = cmd->lu->reserve;

	if (persistent_rules(cmd))
		return;
	if (r->reserved && !scsi_port_is(&r->reserver, cmd->nexus)) {
		scsi_end(cmd, SCSI_RESERVATION_CONFLICT);
		return;
	}
	r->reserved = true;
	r->reserver = scsi_port_of(cmd->nexus);
	scsi_good(cmd);
}

void
scsi_release_unit(struct scsi_command *cmd)
{
	if (persistent_rules(cmd))
		return;
	/* Of another's it does nothing. */
	scsi_reserve_lost(cmd->lu, cmd->nexus);
	scsi_good(cmd);
}

void
scsi_reserve_lost(struct scsi_lu *lu, const struct scsi_nexus *nexus)
{
	struct scsi_reservations *r = lu->reserve;

	if (r->reserved && scsi_port_is(&r->reserver, nexus))
		r->reserved = false;
}

void
scsi_reserve_reset(struct scsi_lu *lu)
{
	lu->reserve->reserved = false;
}

/* ---- PERSISTENT RESERVE IN -------------------------------------------------------- */

static bool
reserved_otherwise(struct scsi_command *cmd)
{
	if (!cmd->lu->reserve->reserved)
		return false;
	scsi_end(cmd, SCSI_RESERVATION_CONFLICT);
	return true;
}

/* ADDITIONAL LENGTH is that of all there is, however little of it was asked for. */
static void
put_header(uint8_t *p, const struct scsi_registrations *now, size_t length)
{
	put_be32(p, now->generation);
	put_be32(p + 4, (uint32_t)length);
}

void
scsi_read_keys(struct scsi_command *cmd)
{
	const struct scsi_registrations *now = cmd->lu->reserve->now;
	uint8_t *answer, *p;

	if (reserved_otherwise(cmd))
		return;
	answer = scsi_answer(cmd);
	p = answer + 8;
	for (unsigned i = 0; i < now->count; i++)
		p = put_be64(p, now->list[i].key);
	put_header(answer, now, (size_t)(p - answer - 8));
	scsi_answered(cmd, (size_t)(p - answer));
}

void
scsi_read_reservation(struct scsi_command *cmd)
{
	const struct scsi_registrations *now = cmd->lu->reserve->now;
	uint8_t *answer;

	if (reserved_otherwise(cmd))
		return;
	answer = scsi_answer(cmd);
	if (now->type == 0) {
		put_header(answer, now, 0);
		scsi_answered(cmd, 8);
		return;
	}
	put_header(answer, now, 16);
	if (now->holder >= 0) /* all hold it: no key is its key */
		put_be64(answer + 8, now->list[now->holder].key);
	answer[21] = (uint8_t)now->type; /* scope: the unit */
	scsi_answered(cmd, 24);
}

void
scsi_report_capabilities(struct scsi_command *cmd)
{
	const struct scsi_lu *lu = cmd->lu;
	uint8_t *answer;

	if (reserved_otherwise(cmd))
		return;
	answer = scsi_answer(cmd);
	put_be16(answer, 8);
	answer[2] = 0x10 | 0x08 | 0x04;               /* CRH SIP_C ATP_C */
	answer[2] |= lu->save != NULL ? 0x01 : 0;     /* PTPL_C */
	answer[3] = 0x80 | 0x30;                      /* TMV; ALLOW COMMANDS 011b */
	answer[3] |= lu->reserve->now->kept ? 1 : 0;  /* PTPL_A */
	answer[4] = 0x80 | 0x40 | 0x20 | 0x08 | 0x02; /* types 7 6 5 3 1 */
	answer[5] = 0x01;                             /* 8 */
	scsi_answered(cmd, 8);
}

#define FULL_STATUS_DESCRIPTOR 24
/* "initiator,i,0xISID", SPC-4 "TransportID identifiers" */
#define PORT_NAME_MAX          (SCSI_NAME_MAX + sizeof ",i,0x000000000000")
/* A TransportID of iSCSI with its header of four bytes; the longest name fills words with its NUL
 * and three bytes more at most. */
#define TRANSPORT_ID_MAX       (4 + PORT_NAME_MAX + 3)

/* Returns its length. */
static size_t
put_transport_id(uint8_t *p, const struct scsi_port *port)
{
	const uint8_t *id = port->isid;
	size_t length;
	int n;

	n = snprintf((char *)p + 4, PORT_NAME_MAX, "%s,i,0x%02x%02x%02x%02x%02x%02x",
		     port->initiator, id[0], id[1], id[2], id[3], id[4], id[5]);
	assert(n > 0 && (size_t)n < PORT_NAME_MAX);
	length = ((size_t)n / 4 + 1) * 4;
	if (length < 20)
		length = 20;
	p[0] = 0x45; /* FORMAT CODE 01b, iSCSI */
	put_be16(p + 2, (uint16_t)length);
	return 4 + length;
}

static size_t
put_full_status(uint8_t *p, const struct scsi_registrations *now, unsigned place)
{
	const struct scsi_registration *one = &now->list[place];
	size_t id;

	memset(p, 0, FULL_STATUS_DESCRIPTOR + TRANSPORT_ID_MAX);
	put_be64(p, one->key);
	p[12] = one->all_ports ? 0x02 : 0;
	if (scsi_registrations_holds(now, (int)place)) {
		p[12] |= 0x01; /* R_HOLDER */
		p[13] = (uint8_t)now->type;
	}
	put_be16(p + 18, SCSI_TARGET_PORT);
	id = put_transport_id(p + FULL_STATUS_DESCRIPTOR, &one->port);
	put_be32(p + 20, (uint32_t)id);
	return FULL_STATUS_DESCRIPTOR + id;
}

bool
scsi_plan_full_status(struct scsi_command *cmd)
{
	cmd->wanted_in = get_be16(cmd->cdb + 7);
	return true;
}

/* As much of it as there is memory for. */
static void
append(struct scsi_command *cmd, uint64_t at, const uint8_t *from, size_t length)
{
	if (at < cmd->memory_length) {
		uint64_t room = cmd->memory_length - at;

		memcpy((uint8_t *)cmd->memory + at, from, length < room ? length : room);
	}
}

/* Longer than other answers can be: piece by piece. */
void
scsi_read_full_status(struct scsi_command *cmd)
{
	const struct scsi_registrations *now = cmd->lu->reserve->now;
	uint8_t piece[FULL_STATUS_DESCRIPTOR + TRANSPORT_ID_MAX];
	uint64_t total = 8;

	if (reserved_otherwise(cmd))
		return;
	for (unsigned i = 0; i < now->count; i++) {
		size_t length = put_full_status(piece, now, i);

		append(cmd, total, piece, length);
		total += length;
	}
	put_header(piece, now, total - 8);
	append(cmd, 0, piece, 8);
	cmd->data_in = total < cmd->wanted_in ? total : cmd->wanted_in;
	scsi_good(cmd);
}
