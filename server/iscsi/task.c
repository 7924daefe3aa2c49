/*
 * task.c - what an initiator asks for: SCSI commands, task management, text.
 *
 * The good path of a command: it has the next CmdSN, gets a slot, and goes to scsi-emu, which says
 * how much memory it wants; data.c brings that, and the data. Its outcome is send.c's.
 *
 * The window of commands (MaxCmdSN) is as wide as there are slots for commands that have not been
 * answered, so one that is in it has a slot. What has no CmdSN of its own has a few, too; beyond
 * these it is rejected.
 *
 * The other paths:
 * - it comes before its turn (CmdSN): it is held back until those before it have come.
 * - it is out of the window: it is ignored.
 * - it is malformed: it is rejected. Its turn is over then all the same.
 * - it is aborted: its slot is free at once; data that still comes for it finds nobody (the
 *   target transfer tag has a serial number), and is thrown away.
 */
#include "conn.h"

#include "../stats.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define AHS_EXTENDED_CDB 1
#define AHS_READ_LENGTH  2

/* ---- lists ----------------------------------------------------------------------- */

void
iscsi_queue_add(struct iscsi_queue *q, struct iscsi_task *t)
{
	t->next = NULL;
	if (q->first == NULL)
		q->last = &q->first;
	*q->last = t;
	q->last = &t->next;
}

struct iscsi_task *
iscsi_queue_take(struct iscsi_queue *q)
{
	struct iscsi_task *t = q->first;

	if (t != NULL)
		q->first = t->next;
	return t;
}

/* ---- slots ----------------------------------------------------------------------- */

int
iscsi_tasks_start(struct iscsi_conn *c)
{
	/* As many as may be under way, and as many whose answers are being sent. */
	c->slot_count = 2 * c->depth + ISCSI_AT_ONCE;
	c->slots = malloc(c->slot_count * sizeof *c->slots);
	c->tags = malloc(c->slot_count * sizeof *c->tags);
	c->iov = malloc(ISCSI_IOVS * sizeof *c->iov);
	c->heads = malloc(ISCSI_HEADS);
	if (c->slots == NULL || c->tags == NULL || c->iov == NULL || c->heads == NULL)
		return -ENOMEM;
	return 0;
}

void
iscsi_tasks_free(struct iscsi_conn *c)
{
	assert(c->ordered == 0 && c->immediate == 0 && c->held_back == NULL &&
	       room_held(&c->share) == 0);
	free(c->slots);
	free(c->tags);
	free(c->iov);
	free(c->heads);
	iscsi_text_free(&c->text.keys);
	iscsi_text_free(&c->text.answer);
}

static unsigned
slot_of(const struct iscsi_task *t)
{
	return (unsigned)(t - t->conn->slots);
}

static struct iscsi_task *
slot_take(struct iscsi_conn *c, const uint8_t *bhs)
{
	struct iscsi_task *t = c->free;
	uint16_t serial = 0;

	if (t != NULL) {
		c->free = t->next;
		serial = t->serial;
	} else {
		assert(c->fresh < c->slot_count);
		t = &c->slots[c->fresh++];
	}
	/* All but the large part, which its owner fills. */
	memset(t, 0, offsetof(struct iscsi_task, cmd));
	t->conn = c;
	t->kind = TASK_NOTHING;
	t->serial = (uint16_t)(serial + 1);
	t->itt = get_be32(bhs + 16);
	t->cmd_sn = get_be32(bhs + 24);
	t->immediate = (bhs[0] & ISCSI_IMMEDIATE) != 0;
	t->flags = bhs[1];
	t->began = c->now;
	memcpy(t->lun, bhs + 8, sizeof t->lun);
	c->tags[slot_of(t)] = t->itt;
	c->immediate += t->immediate;
	return t;
}

void
iscsi_number_free(struct iscsi_task *t)
{
	t->conn->ordered -= t->numbered;
	t->numbered = false;
}

void
iscsi_task_free(struct iscsi_task *t)
{
	struct iscsi_conn *c = t->conn;

	if (t->receiving) {
		t->freed = true;
		return;
	}
	iscsi_memory_give(t);
	if (t->kind == TASK_TEXT)
		c->text.busy = false;
	iscsi_number_free(t);
	c->immediate -= t->immediate;
	c->tags[slot_of(t)] = ISCSI_NO_TAG;
	t->kind = TASK_NOTHING;
	t->next = c->free;
	c->free = t;
	if (c->wanting.first != NULL || c->in.part == PART_PLACE)
		iscsi_conn_pump(c);
}

/* It may be freed now, if it was to be. */
static void
received(struct iscsi_task *t)
{
	t->receiving = false;
	if (t->freed)
		iscsi_task_free(t);
}

/* It is answered, or being so. The initiator may have the answer already, and use the tag again. */
static bool
is_over(const struct iscsi_task *t)
{
	return t->freed || (t->ended && t->sequences == 0);
}

static bool
has_ended(const struct iscsi_task *t)
{
	return t->freed || t->ended;
}

/* The command with that tag that is not past what `past` says. */
static struct iscsi_task *
command_by_tag(const struct iscsi_conn *c, uint32_t itt, bool (*past)(const struct iscsi_task *t))
{
	for (unsigned i = 0; i < c->fresh; i++) {
		struct iscsi_task *t = &c->slots[i];

		if (c->tags[i] == itt && t->kind == TASK_COMMAND && !past(t))
			return t;
	}
	return NULL;
}

struct iscsi_task *
iscsi_task_by_tag(const struct iscsi_conn *c, uint32_t itt)
{
	return command_by_tag(c, itt, is_over);
}

/* ---- rejects --------------------------------------------------------------------- */

void
iscsi_reject(struct iscsi_conn *c, const uint8_t *bhs, enum iscsi_reject reason)
{
	struct iscsi_rejected *r;

	if (c->reject_count == ISCSI_REJECTS) {
		iscsi_conn_end(c, "more is wrong with what it sends than it wants to hear");
		return;
	}
	r = &c->rejects[c->reject_count++];
	memcpy(r->bhs, bhs, sizeof r->bhs);
	r->reason = (uint8_t)reason;
	iscsi_send_soon(c);
}

/* ---- commands -------------------------------------------------------------------- */

static void
command_done(struct scsi_command *cmd)
{
	struct iscsi_task *t = ISCSI_TASK_OF(cmd, cmd);
	struct iscsi_conn *c = t->conn;

	c->under_way--;
	iscsi_data_end(t);
	if (c->state == ISCSI_CLOSING || cmd->outcome == SCSI_ABORTED)
		iscsi_task_free(t);
	else if (t->sequences == 0)
		iscsi_answer(t);
	if (c->in.part == PART_PLACE)
		iscsi_conn_pump(c); /* it may have been the one that waits there */
	if (c->state == ISCSI_CLOSING)
		iscsi_conn_settle(c);
}

static bool
comes_unasked(const struct iscsi_task *t)
{
	return t->unsolicited || t->immediate_length > 0;
}

static void
command_start(struct iscsi_task *t)
{
	struct iscsi_conn *c = t->conn;

	c->under_way++;
	scsi_command_submit(c->nexus, &t->cmd);
}

/* RFC 7143, "AHS". Returns false when it is malformed. */
static bool
take_ahs(struct scsi_command *cmd, const uint8_t *ahs, size_t length, uint32_t *read_length)
{
	while (length > 0) {
		size_t n = length >= 4 ? 3u + get_be16(ahs) : 0;

		n += -n & 3;
		if (n < 4 || n > length)
			return false;
		if (ahs[2] == AHS_EXTENDED_CDB) {
			size_t more = get_be16(ahs) - 1u;

			if (more > SCSI_CDB_MAX - 16)
				return false; /* no command is so long */
			memcpy(cmd->cdb + 16, ahs + 4, more);
			cmd->cdb_length = (unsigned)(16 + more);
		} else if (ahs[2] == AHS_READ_LENGTH && get_be16(ahs) == 5) {
			*read_length = get_be32(ahs + 4);
		} else {
			return false;
		}
		ahs += n;
		length -= n;
	}
	return true;
}

/* RFC 7143, "SCSI Command". Returns false when it is to be rejected. */
static bool
command_read(struct iscsi_task *t, const uint8_t *bhs, const uint8_t *ahs)
{
	static const uint8_t attributes[] = { SCSI_SIMPLE, SCSI_SIMPLE, SCSI_ORDERED,
					      SCSI_HEAD_OF_QUEUE, SCSI_ACA };
	const struct iscsi_parameters *agreed = &t->conn->agreed;
	struct scsi_command *cmd = &t->cmd;
	bool final = (bhs[1] & ISCSI_FINAL) != 0, reads = (bhs[1] & ISCSI_COMMAND_READ) != 0;
	bool writes = (bhs[1] & ISCSI_COMMAND_WRITE) != 0;
	unsigned attribute = bhs[1] & ISCSI_COMMAND_ATTRIBUTE;
	uint32_t expected = get_be32(bhs + 20), read_length = reads && !writes ? expected : 0;
	uint32_t length = iscsi_data_length(bhs), first;

	memcpy(cmd->cdb, bhs + 32, 16);
	cmd->cdb_length = 16;
	memcpy(cmd->lun, bhs + 8, sizeof cmd->lun);
	cmd->on_buffer = iscsi_command_buffer;
	cmd->on_done = command_done;
	if (attribute >= sizeof attributes ||
	    !take_ahs(cmd, ahs, iscsi_ahs_length(bhs), &read_length))
		return false;
	cmd->attribute = attributes[attribute];
	cmd->expected_out = writes ? expected : 0;
	cmd->expected_in = reads ? read_length : 0;

	first = cmd->expected_out < agreed->first_burst ? cmd->expected_out : agreed->first_burst;
	if ((!final && (first == 0 || agreed->initial_r2t)) ||
	    (length > 0 && (!agreed->immediate_data || length > first)))
		return false;
	t->immediate_length = length;
	t->unsolicited = !final;
	t->sequence_end = first;
	if (!final)
		iscsi_sequences_set(t, 1);
	return true;
}

/* ---- before their turn ----------------------------------------------------------- */

static void
hold_back(struct iscsi_conn *c, struct iscsi_task *t)
{
	struct iscsi_task **at = &c->held_back;

	while (*at != NULL && iscsi_before((*at)->cmd_sn, t->cmd_sn))
		at = &(*at)->next;
	t->held_back = true;
	t->next = *at;
	*at = t;
}

static bool
is_held_back(const struct iscsi_conn *c, uint32_t cmd_sn)
{
	const struct iscsi_task *t = c->held_back;

	while (t != NULL && t->cmd_sn != cmd_sn)
		t = t->next;
	return t != NULL;
}

/* It only holds its place from now on. */
static void
cancel(struct iscsi_task *t)
{
	iscsi_sequences_set(t, 0);
	t->kind = TASK_NOTHING;
}

/* ---- task management ------------------------------------------------------------- */

/* RFC 7143, "Task Management Function Request", "... Response"; RFC 7144 for those from 9 on. */
enum { FUNCTION_ABORT_TASK = 1, FUNCTION_TASK_REASSIGN = 8 };
enum {
	RESPONSE_COMPLETE = 0,
	RESPONSE_NO_TASK = 1,
	RESPONSE_NO_LUN = 2,
	RESPONSE_NO_REASSIGNMENT = 4,
	RESPONSE_NOT_SUPPORTED = 5,
	RESPONSE_SUCCEEDED = 7,
};

static const struct {
	bool known;
	unsigned function; /* enum scsi_function */
	bool of_task;      /* that the referenced tag names */
} functions[] = {
	[FUNCTION_ABORT_TASK] = { true, SCSI_ABORT_TASK, true },
	[2] = { true, SCSI_ABORT_TASK_SET, false },
	[3] = { true, SCSI_CLEAR_ACA, false },
	[4] = { true, SCSI_CLEAR_TASK_SET, false },
	[5] = { true, SCSI_LOGICAL_UNIT_RESET, false },
	[6] = { true, SCSI_TARGET_WARM_RESET, false },
	[7] = { true, SCSI_TARGET_COLD_RESET, false },
	[9] = { true, SCSI_QUERY_TASK, true },
	[10] = { true, SCSI_QUERY_TASK_SET, false },
	[11] = { true, SCSI_I_T_NEXUS_RESET, false },
	[12] = { true, SCSI_QUERY_ASYNCHRONOUS_EVENT, false },
};

static void
management_answer(struct iscsi_task *t, uint8_t response)
{
	t->response = response;
	iscsi_answer(t);
}

static void
management_done(struct scsi_management *m)
{
	static const uint8_t responses[] = {
		[SCSI_FUNCTION_COMPLETE] = RESPONSE_COMPLETE,
		[SCSI_FUNCTION_SUCCEEDED] = RESPONSE_SUCCEEDED,
		[SCSI_FUNCTION_REJECTED] = RESPONSE_NOT_SUPPORTED,
		[SCSI_INCORRECT_LUN] = RESPONSE_NO_LUN,
	};
	struct iscsi_task *t = ISCSI_TASK_OF(m, management);
	struct iscsi_conn *c = t->conn;

	c->under_way--;
	if (c->state == ISCSI_CLOSING) {
		iscsi_task_free(t);
		iscsi_conn_settle(c);
		return;
	}
	if (m->function == SCSI_TARGET_COLD_RESET && m->response == SCSI_FUNCTION_COMPLETE)
		c->resets = true;
	management_answer(t, responses[m->response]);
}

/* The task that a function names is not with scsi-emu. */
static void
management_of_none(struct iscsi_task *t, uint32_t tag, uint32_t ref_cmd_sn)
{
	struct iscsi_conn *c = t->conn;
	struct iscsi_task *held = c->held_back;
	uint8_t bhs[ISCSI_BHS] = { 0 };
	bool to_come =
		!iscsi_before(ref_cmd_sn, c->exp_cmd_sn) && iscsi_before(ref_cmd_sn, t->cmd_sn) &&
		!iscsi_before(iscsi_max_cmd_sn(c), ref_cmd_sn) && !is_held_back(c, ref_cmd_sn);

	while (held != NULL && (held->itt != tag || held->kind != TASK_COMMAND))
		held = held->next;
	if ((t->flags & 0x7f) != FUNCTION_ABORT_TASK) {
		management_answer(t, held != NULL ? RESPONSE_SUCCEEDED : RESPONSE_COMPLETE);
	} else if (held != NULL) {
		cancel(held);
		management_answer(t, RESPONSE_COMPLETE);
	} else if (to_come) {
		/* It has not come, and is not to come any more: its turn is as good as over. */
		put_be32(bhs + 16, ISCSI_NO_TAG);
		put_be32(bhs + 24, ref_cmd_sn);
		hold_back(c, slot_take(c, bhs));
		management_answer(t, RESPONSE_COMPLETE);
	} else {
		management_answer(t, RESPONSE_NO_TASK);
	}
}

/* It has a status, and waits with it for the last of its data: there is to be none. */
static bool
waits_with_status(const struct iscsi_task *t)
{
	return t->kind == TASK_COMMAND && t->ended && !t->freed && t->sequences > 0;
}

static void
conclude(struct iscsi_task *t)
{
	t->sequences = 0;
	iscsi_task_free(t);
}

static bool
is_same_unit(const uint8_t a[8], const uint8_t b[8])
{
	return iscsi_lun(a) == iscsi_lun(b) && memcmp(a + 2, b + 2, 6) == 0;
}

/* Of the commands that scsi-emu does not have: those that have come before their turn, which is
 * before the function's, are not to start, and those that have ended are not to be answered. */
static void
management_of_others(struct iscsi_task *t, unsigned function)
{
	bool target = function == SCSI_TARGET_WARM_RESET || function == SCSI_TARGET_COLD_RESET ||
		      function == SCSI_I_T_NEXUS_RESET;
	bool unit = function == SCSI_ABORT_TASK_SET || function == SCSI_CLEAR_TASK_SET ||
		    function == SCSI_LOGICAL_UNIT_RESET;

	for (struct iscsi_task *held = t->conn->held_back; held != NULL; held = held->next) {
		if (held->kind == TASK_COMMAND && iscsi_before(held->cmd_sn, t->cmd_sn) &&
		    (target || (unit && is_same_unit(held->lun, t->lun))))
			cancel(held);
	}
	for (unsigned i = 0; i < t->conn->fresh; i++) {
		struct iscsi_task *ended = &t->conn->slots[i];

		if (waits_with_status(ended) &&
		    (target || (unit && is_same_unit(ended->lun, t->lun))))
			conclude(ended);
	}
}

static void
management_start(struct iscsi_task *t)
{
	struct iscsi_conn *c = t->conn;
	struct scsi_management *m = &t->management;
	unsigned function = t->flags & 0x7f;
	struct iscsi_task *task;

	if (function == FUNCTION_TASK_REASSIGN) {
		management_answer(t, RESPONSE_NO_REASSIGNMENT);
		return;
	}
	if (function >= sizeof functions / sizeof *functions || !functions[function].known) {
		management_answer(t, RESPONSE_NOT_SUPPORTED);
		return;
	}
	m->function = functions[function].function;
	m->task = NULL;
	m->on_done = management_done;
	memcpy(m->lun, t->lun, sizeof m->lun);
	if (functions[function].of_task) {
		task = iscsi_task_by_tag(c, t->referenced);
		if (task != NULL && waits_with_status(task) && m->function == SCSI_ABORT_TASK) {
			conclude(task);
			management_answer(t, RESPONSE_COMPLETE);
			return;
		}
		if (task == NULL || task->ended || task->held_back) {
			management_of_none(t, t->referenced, t->ref_cmd_sn);
			return;
		}
		m->task = &task->cmd;
	}
	management_of_others(t, m->function);
	c->under_way++;
	scsi_manage(c->nexus, m);
}

/* ---- text ------------------------------------------------------------------------ */

/* RFC 7143, "Text Request". Returns 0, or why it is rejected. */
static enum iscsi_reject
text_read(struct iscsi_conn *c)
{
	const uint8_t *bhs = c->in.bhs;
	uint32_t ttt = get_be32(bhs + 20);
	uint8_t both = ISCSI_FINAL | ISCSI_CONTINUE;

	if (c->text.busy || (bhs[1] & both) == both)
		return ISCSI_REJECT_PROTOCOL;
	if (ttt == ISCSI_NO_TAG) {
		iscsi_text_free(&c->text.keys);
		iscsi_text_free(&c->text.answer);
		c->text.answered = 0;
	} else if (ttt != c->text.tag) {
		return ISCSI_REJECT_INVALID_FIELD;
	} else if (c->text.answered < c->text.answer.length && c->in.left > 0) {
		return ISCSI_REJECT_PROTOCOL;
	}
	c->text.busy = true;
	c->text.tag = ISCSI_NO_TAG;
	memcpy(c->text.bhs, bhs, sizeof c->text.bhs);
	c->in.text = &c->text.keys;
	return 0;
}

static int
text_answer(struct iscsi_conn *c)
{
	struct iscsi_text *keys = &c->text.keys;
	int error;

	iscsi_text_free(&c->text.answer);
	c->text.answered = 0;
	iscsi_text_append(keys, "", 1);
	if (keys->failed)
		return -ENOMEM;
	error = iscsi_text_answer(&c->login, keys->data, keys->length - 1,
				  *c->portal != '\0' ? c->portal : NULL, &c->text.answer);
	iscsi_text_free(keys);
	c->agreed = c->login.parameters;
	return error;
}

static void
text_start(struct iscsi_task *t)
{
	struct iscsi_conn *c = t->conn;

	if ((t->flags & ISCSI_CONTINUE) == 0 && c->text.answered == c->text.answer.length &&
	    text_answer(c) != 0) {
		iscsi_text_free(&c->text.keys);
		iscsi_text_free(&c->text.answer);
		iscsi_reject(c, c->text.bhs, ISCSI_REJECT_PROTOCOL);
		iscsi_task_free(t);
		return;
	}
	iscsi_answer(t);
}

/* ---- logout ---------------------------------------------------------------------- */

/* RFC 7143, "Logout Request", "Logout Response" */
enum { LOGOUT_SESSION, LOGOUT_CONNECTION, LOGOUT_FOR_RECOVERY };
enum { LOGGED_OUT = 0, LOGOUT_NO_CONNECTION = 1, LOGOUT_NO_RECOVERY = 2 };

static void
logout_start(struct iscsi_task *t)
{
	struct iscsi_conn *c = t->conn;
	unsigned reason = t->flags & 0x7f;

	if (reason == LOGOUT_FOR_RECOVERY ||
	    (reason == LOGOUT_CONNECTION && t->cid != c->login.cid)) {
		t->response =
			reason == LOGOUT_FOR_RECOVERY ? LOGOUT_NO_RECOVERY : LOGOUT_NO_CONNECTION;
		iscsi_answer(t);
		return;
	}
	t->response = LOGGED_OUT;
	c->logout = t;
	iscsi_conn_end(c, NULL);
	if (c->nexus == NULL)
		iscsi_tasks_logged_out(c);
	else
		iscsi_conn_end_nexus(c);
}

void
iscsi_tasks_logged_out(struct iscsi_conn *c)
{
	struct iscsi_task *t = c->logout;

	c->logout = NULL;
	if (t != NULL)
		iscsi_answer(t);
}

/* ---- whose turn it is ------------------------------------------------------------ */

static void
task_start(struct iscsi_task *t)
{
	switch (t->kind) {
	case TASK_COMMAND: command_start(t); break;
	case TASK_MANAGEMENT: management_start(t); break;
	case TASK_NOP: iscsi_answer(t); break;
	case TASK_TEXT: text_start(t); break;
	case TASK_LOGOUT: logout_start(t); break;
	case TASK_NOTHING: iscsi_task_free(t); break;
	}
}

static void
turn(struct iscsi_task *t)
{
	t->conn->exp_cmd_sn++;
	t->conn->ordered++;
	t->numbered = true;
}

static void
start_held_back(struct iscsi_conn *c)
{
	struct iscsi_task *t;

	while (c->state == ISCSI_SERVING && (t = c->held_back) != NULL &&
	       t->cmd_sn == c->exp_cmd_sn) {
		c->held_back = t->next;
		t->held_back = false;
		turn(t);
		task_start(t);
	}
}

/* ---- headers --------------------------------------------------------------------- */

/* A ping's data is kept, and sent back: as much as the initiator takes. */
static void
nop_read(struct iscsi_conn *c, struct iscsi_task *t)
{
	uint32_t n = c->in.left < c->agreed.max_send ? c->in.left : c->agreed.max_send;

	if (n == 0 || !iscsi_memory_try(c, &t->wish, n))
		return; /* without memory it goes without data */
	t->ping_length = n;
	c->in.to = t->wish.memory;
	c->in.place = n;
}

/* What it is, if it is something. Returns 0, or why it is rejected. */
static enum iscsi_reject
task_read(struct iscsi_conn *c, struct iscsi_task *t, const uint8_t *ahs)
{
	const uint8_t *bhs = c->in.bhs;
	unsigned opcode = iscsi_opcode(bhs);
	bool of_nexus = opcode == ISCSI_SCSI_COMMAND || opcode == ISCSI_TASK_MANAGEMENT;
	enum iscsi_reject reason;

	if (of_nexus && c->nexus == NULL)
		return ISCSI_REJECT_PROTOCOL; /* "Discovery session" */
	if (t->itt == ISCSI_NO_TAG || (opcode != ISCSI_SCSI_COMMAND && bhs[4] != 0))
		return ISCSI_REJECT_INVALID_FIELD;
	if ((opcode == ISCSI_TASK_MANAGEMENT || opcode == ISCSI_LOGOUT) && c->in.left > 0)
		return ISCSI_REJECT_INVALID_FIELD;
	switch (opcode) {
	case ISCSI_SCSI_COMMAND:
		/* "Initiator Task Tag": data and answers of the two could not be told apart. */
		if (command_by_tag(c, t->itt, has_ended) != NULL)
			return ISCSI_REJECT_PROTOCOL;
		if (!command_read(t, bhs, ahs))
			return ISCSI_REJECT_INVALID_FIELD;
		t->kind = TASK_COMMAND;
		break;
	case ISCSI_TASK_MANAGEMENT:
		t->kind = TASK_MANAGEMENT;
		t->referenced = get_be32(bhs + 20);
		t->ref_cmd_sn = get_be32(bhs + 32);
		break;
	case ISCSI_TEXT:
		reason = text_read(c);
		if (reason != 0)
			return reason;
		t->kind = TASK_TEXT;
		break;
	case ISCSI_LOGOUT:
		if ((bhs[1] & 0x7f) > LOGOUT_FOR_RECOVERY)
			return ISCSI_REJECT_INVALID_FIELD;
		t->kind = TASK_LOGOUT;
		t->cid = get_be16(bhs + 20);
		break;
	default:
		t->kind = TASK_NOP;
		nop_read(c, t);
		break;
	}
	return 0;
}

/* One that has a CmdSN. */
static void
task_begin(struct iscsi_conn *c, const uint8_t *ahs)
{
	const uint8_t *bhs = c->in.bhs;
	bool immediate = (bhs[0] & ISCSI_IMMEDIATE) != 0;
	uint32_t cmd_sn = get_be32(bhs + 24), ahead = cmd_sn - c->exp_cmd_sn;
	enum iscsi_reject reason;
	struct iscsi_task *t;

	if (immediate) {
		if (c->immediate == ISCSI_AT_ONCE) {
			iscsi_reject(c, bhs, ISCSI_REJECT_IMMEDIATE);
			return;
		}
	} else if (ahead >= c->depth - c->ordered || is_held_back(c, cmd_sn)) {
		return; /* RFC 7143, "Command Numbering and Acknowledging": silently */
	}
	t = slot_take(c, bhs);
	if (!immediate && ahead > 0)
		hold_back(c, t);
	else if (!immediate)
		turn(t);
	reason = task_read(c, t, ahs);
	if (reason != 0)
		iscsi_reject(c, bhs, reason);
	if (t->kind == TASK_COMMAND)
		__atomic_fetch_add(&c->client->requests, 1, __ATOMIC_RELAXED);
	if (t->kind != TASK_COMMAND || comes_unasked(t)) {
		c->in.task = t;
		t->receiving = true;
	}
	if (t->kind == TASK_COMMAND && !t->held_back)
		command_start(t);
}

/* RFC 7143, "NOP-Out": the answer to a NOP-In of ours, or one that wants none. */
static void
nop_of_none(struct iscsi_conn *c)
{
	const uint8_t *bhs = c->in.bhs;

	if ((bhs[0] & ISCSI_IMMEDIATE) == 0 && get_be32(bhs + 24) == c->exp_cmd_sn)
		c->exp_cmd_sn++;
}

void
iscsi_task_begin(struct iscsi_conn *c, const uint8_t *ahs)
{
	const uint8_t *bhs = c->in.bhs;

	switch (iscsi_opcode(bhs)) {
	case ISCSI_DATA_OUT: iscsi_data_out(c); break;
	case ISCSI_NOP_OUT:
		if (get_be32(bhs + 16) == ISCSI_NO_TAG) {
			nop_of_none(c);
			break;
		}
		task_begin(c, ahs);
		break;
	case ISCSI_SCSI_COMMAND:
	case ISCSI_TASK_MANAGEMENT:
	case ISCSI_TEXT:
	case ISCSI_LOGOUT: task_begin(c, ahs); break;
	case ISCSI_SNACK: iscsi_reject(c, bhs, ISCSI_REJECT_SNACK); break;
	case ISCSI_LOGIN: iscsi_reject(c, bhs, ISCSI_REJECT_PROTOCOL); break;
	default: iscsi_reject(c, bhs, ISCSI_REJECT_NOT_SUPPORTED); break;
	}
}

void
iscsi_task_data_came(struct iscsi_conn *c)
{
	struct iscsi_task *t = c->in.task;
	bool freed = t == NULL || t->freed;
	bool data = iscsi_opcode(c->in.bhs) == ISCSI_DATA_OUT;

	c->in.task = NULL;
	if (t != NULL)
		received(t);
	if (!freed && t->kind == TASK_COMMAND)
		iscsi_data_arrived(t, iscsi_data_length(c->in.bhs),
				   data && (c->in.bhs[1] & ISCSI_FINAL) != 0);
	else if (!freed && !t->held_back)
		task_start(t);
	if (c->held_back != NULL)
		start_held_back(c);
	if (c->wanting.first != NULL)
		iscsi_tasks_go_on(c);
}

/* ---- the end --------------------------------------------------------------------- */

void
iscsi_tasks_drop(struct iscsi_conn *c)
{
	struct iscsi_task *t;

	while ((t = c->held_back) != NULL) {
		c->held_back = t->next;
		iscsi_task_free(t);
	}
	if (c->logout != NULL)
		iscsi_task_free(c->logout);
	c->logout = NULL;
	/* What is being received still goes into its memory, which nobody else may have yet. */
	t = c->receiving ? NULL : c->in.task;
	if (t != NULL) {
		c->in.task = NULL;
		t->freed |= t->kind != TASK_COMMAND; /* it was not started */
		received(t);
	}
	/* Those that have a status, but had to wait with it. */
	for (unsigned i = 0; i < c->fresh; i++) {
		if (waits_with_status(&c->slots[i]))
			conclude(&c->slots[i]);
	}
}
