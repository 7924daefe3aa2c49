/*
 * persist.c - PERSISTENT RESERVE OUT.
 *
 * The good path: the commands of a unit are done one after the other. The list is checked; the
 * service action makes the next state from a copy of the one there is; if that outlives the server
 * (APTPL), or did until now, it is kept; it becomes the unit's; who is concerned finds a unit
 * attention; PREEMPT AND ABORT aborts the commands of those who had to leave, and waits until they
 * have ended; the command is answered, and the next one's turn comes.
 *
 * What can go wrong: the list or the key is not right, and nothing has changed; there is no room,
 * or no memory, for one more, and nothing has changed; the state cannot be kept: it is thrown away,
 * the command fails, and the unit has the state that it had. A command that is aborted before its
 * turn does nothing; later it is done all the same, only not answered.
 *
 * Source: SPC-4 "Persistent reservations", "PERSISTENT RESERVE OUT command".
 */
#include "persist.h"
#include "command.h"
#include "handlers.h"
#include "nexus.h"
#include "reserve.h"
#include "target.h"
#include "tmf.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdlib.h>

enum { /* service actions */
       REGISTER,
       RESERVE,
       RELEASE,
       CLEAR,
       PREEMPT,
       PREEMPT_AND_ABORT,
       REGISTER_AND_IGNORE,
       REGISTER_AND_MOVE,
};

#define LIST_LENGTH 24
#define LIST_FLAGS  20 /* byte of the list */
#define SPEC_I_PT   0x08
#define ALL_TG_PT   0x04
#define APTPL       0x01
#define MOVE_FLAGS  17 /* the same of REGISTER AND MOVE */
#define UNREG       0x02

/* ---- a change -------------------------------------------------------------------- */

struct change {
	struct scsi_command *cmd;
	const uint8_t *list;
	size_t length;
	uint64_t key, action_key;        /* RESERVATION KEY, SERVICE ACTION RESERVATION KEY */
	struct scsi_registrations *next; /* what it makes; a copy of now at first */
	int me;                          /* in it; -1: not registered */
	bool changed;

	enum scsi_status status;
	struct scsi_sense sense;
};

/* How a service action ends. Returns false, for its callers' callers. */
static bool
refuse(struct change *c, struct scsi_sense sense)
{
	c->status = SCSI_CHECK_CONDITION;
	c->sense = sense;
	return false;
}

static bool
conflict(struct change *c)
{
	c->status = SCSI_RESERVATION_CONFLICT;
	return false;
}

static bool
knows_its_key(const struct change *c)
{
	return c->me >= 0 && c->next->list[c->me].key == c->key;
}

/* SCOPE and TYPE, of service actions that reserve or release. */
static bool
check_type(struct change *c)
{
	unsigned scope = c->cmd->cdb[2] >> 4, type = c->cmd->cdb[2] & 0x0f;

	if (scope != 0)
		return refuse(c, scsi_invalid_field(2, 7));
	if (!scsi_type_known(type))
		return refuse(c, scsi_invalid_field(2, 3));
	return true;
}

static unsigned
type_of(const struct change *c)
{
	return c->cmd->cdb[2] & 0x0f;
}

static void
tell_the_others(struct change *c, unsigned attention)
{
	for (unsigned i = 0; i < c->next->count; i++) {
		if ((int)i != c->me)
			c->next->list[i].attention = (uint16_t)attention;
	}
}

static void
set_reservation(struct change *c, unsigned type, int holder)
{
	c->next->type = type;
	c->next->holder = type == 0 || scsi_type_all(type) ? -1 : holder;
}

/* Those who had a part in it are told. */
static void
release(struct change *c)
{
	if (scsi_type_shared(c->next->type))
		tell_the_others(c, SCSI_RESERVATIONS_RELEASED);
	set_reservation(c, 0, -1);
}

static void
unregister_me(struct change *c)
{
	bool all = scsi_type_all(c->next->type);

	if (!all && scsi_registrations_holds(c->next, c->me))
		release(c);
	scsi_registrations_leave(c->next, (unsigned)c->me, 0);
	c->me = -1;
	if (all && c->next->count == 0)
		set_reservation(c, 0, -1);
}

/* ---- TransportIDs, SPC-4 "TransportID identifiers" --------------------------------- */

/* "0x" has been read: one to twelve digits to the end. */
static bool
parse_isid(const uint8_t *p, size_t length, uint8_t isid[6])
{
	uint64_t n = 0;

	if (length == 0 || length > 12)
		return false;
	for (size_t i = 0; i < length; i++) {
		if (!isxdigit(p[i]))
			return false;
		n = n << 4 | (unsigned)(isdigit(p[i]) ? p[i] - '0' : tolower(p[i]) - 'a' + 10);
	}
	for (unsigned i = 0; i < 6; i++)
		isid[i] = (uint8_t)(n >> (40 - 8 * i));
	return true;
}

static bool
parse_name(const uint8_t *p, size_t length, struct scsi_port *port)
{
	if (length == 0 || length > SCSI_NAME_MAX)
		return false;
	for (size_t i = 0; i < length; i++) {
		if (p[i] <= 0x20 || p[i] >= 0x7f || p[i] == ',')
			return false;
	}
	memcpy(port->initiator, p, length);
	return true;
}

/* One of iSCSI at p, where there are `room` bytes. *whole: it names a port, not just a device.
 * Returns its length; 0: it is none. */
static size_t
parse_transport_id(const uint8_t *p, size_t room, struct scsi_port *port, bool *whole)
{
	static const char between[] = ",i,0x";
	const uint8_t *name = p + 4, *end, *sep;
	size_t length;

	memset(port, 0, sizeof *port);
	if (room < 24 || (p[0] & 0x0f) != 5 || p[0] >> 6 > 1)
		return 0;
	length = get_be16(p + 2);
	if (length < 20 || length % 4 != 0 || length > room - 4)
		return 0;
	end = memchr(name, 0, length);
	if (end == NULL)
		return 0;
	*whole = p[0] >> 6 == 1;
	if (!*whole)
		return parse_name(name, (size_t)(end - name), port) ? 4 + length : 0;
	sep = memmem(name, (size_t)(end - name), between, sizeof between - 1);
	if (sep == NULL || !parse_name(name, (size_t)(sep - name), port))
		return 0;
	sep += sizeof between - 1;
	return parse_isid(sep, (size_t)(end - sep), port->isid) ? 4 + length : 0;
}

/* ---- REGISTER -------------------------------------------------------------------- */

static bool
add(struct change *c, const struct scsi_port *port)
{
	if (scsi_registrations_find(c->next, port) >= 0)
		return true;
	if (scsi_registrations_add(&c->next, port, c->action_key,
				   (c->list[LIST_FLAGS] & ALL_TG_PT) != 0))
		return true;
	return refuse(c, scsi_insufficient_registration_resources());
}

/* A device without a port means all of its that we know. */
static bool
add_device(struct change *c, const char *initiator)
{
	const struct scsi_lu *lu = c->cmd->lu;

	for (const struct scsi_nexus *n = lu->target->nexuses; n != NULL; n = n->next) {
		struct scsi_port port = scsi_port_of(n);

		if (strcmp(n->initiator, initiator) == 0 && scsi_nexus_of_lu(n, lu) != NULL &&
		    !add(c, &port))
			return false;
	}
	return true;
}

/* SPEC_I_PT: each that is named and not registered. */
static bool
add_those_named(struct change *c)
{
	size_t at = LIST_LENGTH + 4;

	while (at < c->length) {
		struct scsi_port port;
		bool whole;
		size_t n = parse_transport_id(c->list + at, c->length - at, &port, &whole);

		if (n == 0)
			return refuse(c, scsi_invalid_parameter((unsigned)at, -1));
		if (!(whole ? add(c, &port) : add_device(c, port.initiator)))
			return false;
		at += n;
	}
	return true;
}

static bool
check_kept(struct change *c, unsigned byte)
{
	if ((c->list[byte] & APTPL) != 0 && c->cmd->lu->save == NULL)
		return refuse(c, scsi_invalid_parameter(byte, 0));
	c->next->kept = (c->list[byte] & APTPL) != 0;
	return true;
}

/* "Registering" and "Unregistering" */
static bool
change_registration(struct change *c)
{
	struct scsi_port port = scsi_port_of(c->cmd->nexus);
	bool named = (c->list[LIST_FLAGS] & SPEC_I_PT) != 0;

	if (c->me >= 0 && named)
		return refuse(c, scsi_invalid_parameter(LIST_FLAGS, 3));
	if (c->me < 0 && c->action_key == 0)
		return true; /* nothing to do */
	if (!check_kept(c, LIST_FLAGS))
		return false;
	c->changed = true;
	c->next->generation++;
	if (c->action_key == 0) {
		unregister_me(c);
	} else if (c->me >= 0) {
		c->next->list[c->me].key = c->action_key;
		c->next->list[c->me].all_ports = (c->list[LIST_FLAGS] & ALL_TG_PT) != 0;
	} else {
		return add(c, &port) && (!named || add_those_named(c));
	}
	return true;
}

static bool
do_register(struct change *c)
{
	if (c->me >= 0 ? !knows_its_key(c) : c->key != 0)
		return conflict(c);
	return change_registration(c);
}

static bool
do_register_and_ignore(struct change *c)
{
	return change_registration(c);
}

/* "Registering and moving the reservation" */
static bool
do_register_and_move(struct change *c)
{
	struct scsi_port port;
	bool whole;
	int to;

	if (!knows_its_key(c) || !scsi_registrations_holds(c->next, c->me) ||
	    scsi_type_all(c->next->type))
		return conflict(c);
	if (c->action_key == 0)
		return refuse(c, scsi_invalid_parameter(8, -1));
	if (get_be16(c->list + 18) != SCSI_TARGET_PORT)
		return refuse(c, scsi_invalid_parameter(18, -1));
	if (parse_transport_id(c->list + LIST_LENGTH, c->length - LIST_LENGTH, &port, &whole) !=
		    c->length - LIST_LENGTH ||
	    !whole || scsi_port_is(&port, c->cmd->nexus))
		return refuse(c, scsi_invalid_parameter(LIST_LENGTH, -1));
	if (!check_kept(c, MOVE_FLAGS))
		return false;
	to = scsi_registrations_find(c->next, &port);
	if (to < 0) {
		if (!scsi_registrations_add(&c->next, &port, c->action_key, false))
			return refuse(c, scsi_insufficient_registration_resources());
		to = (int)c->next->count - 1;
	}
	c->next->list[to].key = c->action_key;
	c->next->holder = to;
	if ((c->list[MOVE_FLAGS] & UNREG) != 0)
		scsi_registrations_leave(c->next, (unsigned)c->me, 0);
	c->next->generation++;
	c->changed = true;
	return true;
}

/* ---- RESERVE, RELEASE, CLEAR, PREEMPT ---------------------------------------------- */

static bool
do_reserve(struct change *c)
{
	if (!check_type(c))
		return false;
	if (!knows_its_key(c))
		return conflict(c);
	if (c->next->type != 0) {
		if (scsi_registrations_holds(c->next, c->me) && c->next->type == type_of(c))
			return true;
		return conflict(c);
	}
	set_reservation(c, type_of(c), c->me);
	c->changed = true;
	return true;
}

static bool
do_release(struct change *c)
{
	if (!check_type(c))
		return false;
	if (!knows_its_key(c))
		return conflict(c);
	if (!scsi_registrations_holds(c->next, c->me))
		return true; /* not its, or none: no effect */
	if (c->next->type != type_of(c))
		return refuse(c, scsi_invalid_release());
	release(c);
	c->changed = true;
	return true;
}

static bool
do_clear(struct change *c)
{
	if (!knows_its_key(c))
		return conflict(c);
	set_reservation(c, 0, -1);
	tell_the_others(c, SCSI_RESERVATIONS_PREEMPTED);
	while (c->next->count > 0)
		scsi_registrations_leave(c->next, 0, c->next->list[0].attention);
	c->next->generation++;
	c->changed = true;
	return true;
}

/* Those with the key (all of them: every one) leave, and are told. stay: my registration does not
 * leave. Returns how many. */
static unsigned
make_leave(struct change *c, uint64_t key, bool all, bool stay)
{
	unsigned left = 0;

	for (unsigned i = 0; i < c->next->count;) {
		bool mine = (int)i == c->me;

		if ((!all && c->next->list[i].key != key) || (mine && stay)) {
			i++;
			continue;
		}
		scsi_registrations_leave(c->next, i, mine ? 0 : SCSI_REGISTRATIONS_PREEMPTED);
		left++;
		if (mine)
			c->me = -1;
		else if (c->me > (int)i)
			c->me--;
	}
	return left;
}

/* "Preempting": the reservation with its holder's registration, or registrations only. */
static bool
do_preempt(struct change *c)
{
	unsigned type = c->next->type;
	bool all = scsi_type_all(type), takes;

	if (!knows_its_key(c))
		return conflict(c);
	if (c->action_key == 0 && !all)
		return refuse(c, scsi_invalid_parameter(8, -1));
	takes = all ? c->action_key == 0
		    : type != 0 && c->next->list[c->next->holder].key == c->action_key;
	if (takes && !check_type(c))
		return false;
	if (make_leave(c, c->action_key, all && takes, takes) == 0 && !takes)
		return conflict(c);
	if (takes) {
		set_reservation(c, type_of(c), c->me);
		if (type != type_of(c))
			tell_the_others(c, SCSI_RESERVATIONS_RELEASED);
	} else if (all && c->next->count == 0) {
		set_reservation(c, 0, -1);
	}
	c->next->generation++;
	c->changed = true;
	return true;
}

static bool (*const actions[])(struct change *c) = {
	[REGISTER] = do_register,
	[RESERVE] = do_reserve,
	[RELEASE] = do_release,
	[CLEAR] = do_clear,
	[PREEMPT] = do_preempt,
	[PREEMPT_AND_ABORT] = do_preempt,
	[REGISTER_AND_IGNORE] = do_register_and_ignore,
	[REGISTER_AND_MOVE] = do_register_and_move,
};

/* ---- the list -------------------------------------------------------------------- */

/* "Parameter list length": 24 but where TransportIDs follow. */
static bool
check_list(struct change *c)
{
	unsigned action = c->cmd->row->service_action;
	uint64_t wanted = LIST_LENGTH;

	if (c->length < LIST_LENGTH)
		return refuse(c, scsi_parameter_list_length_error());
	if (action == REGISTER_AND_MOVE) {
		wanted += get_be32(c->list + 20);
	} else if ((c->list[LIST_FLAGS] & SPEC_I_PT) != 0) {
		if (action != REGISTER)
			return refuse(c, scsi_invalid_parameter(LIST_FLAGS, 3));
		wanted += 4;
		if (c->length >= wanted)
			wanted += get_be32(c->list + LIST_LENGTH);
	}
	if (c->length != wanted)
		return refuse(c, scsi_parameter_list_length_error());
	c->key = get_be64(c->list);
	c->action_key = get_be64(c->list + 8);
	return true;
}

/* ---- one after the other ---------------------------------------------------------- */

/* Those who wait for their turn are in the task set: they run, and none of them is r->cmd. */
static struct scsi_command *
next_in_line(const struct scsi_reservations *r, bool aborted)
{
	for (struct scsi_command *c = r->lu->tasks.first; c != NULL; c = c->next) {
		if (c != r->cmd && c->state == SCSI_RUNNING &&
		    c->row->run == scsi_persistent_reserve_out && (!aborted || c->aborted))
			return c;
	}
	return NULL;
}

static void
tell(struct scsi_reservations *r, struct scsi_registration *one)
{
	for (const struct scsi_nexus *n = r->lu->target->nexuses; n != NULL; n = n->next) {
		struct scsi_itl *itl =
			scsi_port_is(&one->port, n) ? scsi_nexus_of_lu(n, r->lu) : NULL;

		if (itl != NULL)
			scsi_attention_add(itl, one->attention);
	}
	one->attention = 0;
}

/* A command of one of those who had to leave. */
static bool
is_of_preempted(const struct scsi_command *cmd, const void *user)
{
	const struct scsi_reservations *r = user;

	for (unsigned i = r->now->count; i < r->now->total; i++) {
		if (cmd != r->cmd && scsi_port_is(&r->now->list[i].port, cmd->nexus))
			return true;
	}
	return false;
}

/* A copy is a command of the unit that was asked for it, and goes on from there: what it has begun
 * to write here has to end, and the next piece meets the reservation. */
static bool
copies_of_preempted(const struct scsi_reservations *r)
{
	for (const struct scsi_lu *lu = r->lu->target->units; lu != NULL; lu = lu->next) {
		for (const struct scsi_command *c = lu->tasks.first; c != NULL; c = c->next) {
			if (scsi_copy_writes(c, r->lu) && is_of_preempted(c, r))
				return true;
		}
	}
	return false;
}

static bool
must_wait(const struct scsi_reservations *r)
{
	for (const struct scsi_command *c = r->lu->tasks.first; c != NULL; c = c->next) {
		if (c->aborted && c->arrival <= r->abort_arrival && is_of_preempted(c, r))
			return true;
	}
	return copies_of_preempted(r);
}

static void
abort_preempted(struct scsi_reservations *r)
{
	struct scsi_command *waits;

	r->abort_arrival = r->lu->target->arrivals;
	scsi_abort_tasks(r->lu, r->cmd->nexus, is_of_preempted, r);
	/* Those in line behind this one would wait for it as it for them. */
	while ((waits = next_in_line(r, true)) != NULL)
		scsi_good(waits);
	r->aborting = must_wait(r);
}

static void
change_end(struct scsi_reservations *r)
{
	struct scsi_command *cmd = r->cmd;

	r->now->total = r->now->count;
	r->cmd = NULL;
	scsi_good(cmd);
}

static void
change_made(struct scsi_reservations *r, struct scsi_registrations *next)
{
	free(r->now);
	r->now = next;
	for (unsigned i = 0; i < next->total; i++) {
		if (next->list[i].attention != 0)
			tell(r, &next->list[i]);
	}
	if (r->cmd->row->service_action == PREEMPT_AND_ABORT)
		abort_preempted(r);
	if (!r->aborting)
		change_end(r);
}

static void
change_failed(struct scsi_reservations *r, struct scsi_registrations *next, struct scsi_sense sense)
{
	struct scsi_command *cmd = r->cmd;

	free(next);
	r->cmd = NULL;
	scsi_fail(cmd, sense);
}

static void
keep(struct scsi_reservations *r, struct scsi_registrations *next)
{
	struct scsi_lu *lu = r->lu;

	r->text = scsi_registrations_text(next);
	if (r->text == NULL) {
		change_failed(r, next, scsi_insufficient_registration_resources());
		return;
	}
	r->next = next;
	lu->save(lu->user, lu, r->text);
}

static void
change_begin(struct scsi_reservations *r, struct scsi_command *cmd)
{
	struct change c = { .cmd = cmd, .list = cmd->memory, .length = cmd->transfer_out };
	bool done;

	if (cmd->aborted) {
		scsi_good(cmd); /* nobody hears it */
		return;
	}
	if (r->reserved) {
		scsi_end(cmd, SCSI_RESERVATION_CONFLICT);
		return;
	}
	done = check_list(&c);
	if (done) {
		c.next = scsi_registrations_copy(r->now);
		if (c.next == NULL) {
			done = refuse(&c, scsi_insufficient_registration_resources());
		} else {
			c.me = scsi_registrations_of(c.next, cmd->nexus);
			assert(cmd->row->service_action < sizeof actions / sizeof *actions);
			done = actions[cmd->row->service_action](&c);
		}
	}
	if (done && c.changed) {
		r->cmd = cmd;
		if (r->lu->save != NULL && (r->now->kept || c.next->kept))
			keep(r, c.next);
		else
			change_made(r, c.next);
		return;
	}
	free(c.next);
	if (c.status == SCSI_CHECK_CONDITION)
		scsi_fail(cmd, c.sense);
	else
		scsi_end(cmd, c.status);
}

/* Each end may come from within, and bring new commands. */
static void
pump(struct scsi_reservations *r)
{
	struct scsi_command *cmd;

	if (r->pumping)
		return;
	r->pumping = true;
	while (r->cmd == NULL && (cmd = next_in_line(r, false)) != NULL)
		change_begin(r, cmd);
	r->pumping = false;
}

void
scsi_persistent_reserve_out(struct scsi_command *cmd)
{
	pump(cmd->lu->reserve);
}

void
scsi_reserve_saved(struct scsi_lu *lu, int error)
{
	struct scsi_reservations *r = lu->reserve;
	struct scsi_registrations *next = r->next;

	assert(r->cmd != NULL && next != NULL);
	r->next = NULL;
	free(r->text);
	r->text = NULL;
	if (error != 0) {
		log_error("unit %s: persistent reservations cannot be kept: %s", lu->name,
			  strerror(-error));
		change_failed(r, next, scsi_internal_failure());
	} else {
		change_made(r, next);
	}
	pump(r);
}

static void
settle(struct pl_work *work)
{
	struct scsi_reservations *r =
		(struct scsi_reservations *)((char *)work -
					     offsetof(struct scsi_reservations, work));

	r->posted = false;
	if (r->aborting && !must_wait(r)) {
		r->aborting = false;
		change_end(r);
		pump(r);
	}
	scsi_lu_settle(r->lu);
}

/* Not from within the other's end: its answer comes first. */
void
scsi_reserve_settle(struct scsi_lu *lu)
{
	struct scsi_reservations *r = lu->reserve;

	if (!r->aborting || r->posted)
		return;
	r->posted = true;
	r->work.run = settle;
	pl_loop_later(lu->target->loop, &r->work);
}
