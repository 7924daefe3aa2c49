/*
 * data.c - memory for commands, and the data that they are sent.
 *
 * The good path: memory is there, and of a write immediate data goes into it; then the unsolicited
 * sequence comes, and what is still missing is asked for by R2T, burst after burst. When all of it
 * is there the command goes.
 *
 * Memory: a connection's commands may hold so much; more wait in their order. Data that comes
 * unasked has to be put somewhere meanwhile, for data that somebody else asked for may stand
 * behind it: in early memory, of the size of that data. If there is none of that either, the
 * stream is left alone, unless data of another command is awaited: then the command is answered
 * BUSY. Commands that hold early memory never wait for the memory of all, where others could wait
 * for what they hold: they are answered BUSY, too.
 *
 * The other paths:
 * - data comes in the wrong order or amount, or before it was asked for: the command ends with
 *   ABORTED COMMAND.
 * - the command ends before its data has come: what comes is thrown away, and its status is sent
 *   after the last PDU of each sequence, as the initiator may still be sending (RFC 7143,
 *   "Reject").
 */
#include "conn.h"

#include <errno.h>
#include <string.h>

/* ---- memory ---------------------------------------------------------------------- */

bool
iscsi_memory_try(struct iscsi_conn *c, struct room_wish *wish, uint64_t length)
{
	*wish = (struct room_wish){ .share = &c->share, .length = length, .arriving = true };
	if (!room_take(c->worker->room, wish, iscsi_conn_moved(c))) {
		room_forget(c->worker->room, wish);
		return false;
	}
	return true;
}

static void
early_give(struct iscsi_task *t)
{
	if (t->early.memory == NULL)
		return;
	t->conn->held_early -= t->early.length;
	room_give(t->conn->worker->room, &t->early);
}

void
iscsi_memory_give(struct iscsi_task *t)
{
	if (t->wish.memory != NULL)
		room_give(t->conn->worker->room, &t->wish);
	early_give(t);
}

/* ---- those that want some -------------------------------------------------------- */

static void gather_on(struct iscsi_task *t);

static void
queue_remove(struct iscsi_queue *q, struct iscsi_task *t)
{
	struct iscsi_task **at = &q->first;

	while (*at != t)
		at = &(*at)->next;
	*at = t->next;
	if (q->last == &t->next)
		q->last = at;
}

/* Back to scsi-emu. t may be gone then, if the connection closes. */
static void
command_go(struct iscsi_task *t, int error)
{
	t->asks = false;
	t->conn->asking--;
	scsi_command_go(&t->cmd, error);
}

static void
wanting_remove(struct iscsi_task *t)
{
	struct iscsi_conn *c = t->conn;

	t->wanting = false;
	queue_remove(&c->wanting, t);
	if (t->wish.waiting)
		room_forget(c->worker->room, &t->wish);
	if (c->wanting.first != NULL)
		iscsi_conn_pump(c);
}

/* There is no memory for it. */
static void
refuse(struct iscsi_task *t)
{
	wanting_remove(t);
	command_go(t, -ENOMEM);
}

/* Those that hold early memory do not wait for that of all. */
static void
early_refuse(struct iscsi_conn *c)
{
	struct iscsi_task *t = c->wanting.first;

	while (t != NULL) {
		if (t->early.memory == NULL) {
			t = t->next;
			continue;
		}
		refuse(t);
		t = c->wanting.first; /* the list may be another now */
	}
}

/* It has its memory. */
static void
memory_came(struct iscsi_task *t)
{
	t->cmd.memory = t->wish.memory;
	if (t->early.memory != NULL) {
		uint64_t n = t->arrived < t->cmd.transfer_out ? t->arrived : t->cmd.transfer_out;

		memcpy(t->wish.memory, t->early.memory, n);
		early_give(t);
	}
	if (t->cmd.transfer_out > 0)
		gather_on(t);
	else
		command_go(t, 0);
}

static void
memory_granted(struct room_wish *wish)
{
	iscsi_conn_pump(ISCSI_TASK_OF(wish, wish)->conn);
}

void
iscsi_tasks_go_on(struct iscsi_conn *c)
{
	struct iscsi_task *t;

	while ((t = c->wanting.first) != NULL) {
		/* What is early does not count: it is there for want of memory. */
		uint64_t held = room_held(&c->share) - c->held_early;
		bool waits = t->wish.waiting;

		if (t->receiving && t->early.memory != NULL)
			return; /* more comes to where it is now */
		if (t->wish.memory == NULL) {
			if (held > 0 && held + t->wish.length > ISCSI_HOLD_MAX)
				return;
			if (!room_take(c->worker->room, &t->wish, iscsi_conn_moved(c))) {
				if (!waits && t->wish.waiting)
					early_refuse(c);
				return;
			}
		}
		iscsi_queue_take(&c->wanting);
		t->wanting = false;
		memory_came(t);
	}
}

void
iscsi_command_buffer(struct scsi_command *cmd)
{
	struct iscsi_task *t = ISCSI_TASK_OF(cmd, cmd);
	struct iscsi_conn *c = t->conn;

	t->asks = true;
	c->asking++;
	if (cmd->memory_length > ISCSI_ROOM_MAX) {
		command_go(t, -ENOMEM);
		return;
	}
	if (t->failed) {
		command_go(t, -EPROTO);
		return;
	}
	t->wish = (struct room_wish){ .share = &c->share,
				      .length = cmd->memory_length,
				      .granted = memory_granted };
	t->wanting = true;
	iscsi_queue_add(&c->wanting, t);
	iscsi_tasks_go_on(c);
}

/* ---- data-out -------------------------------------------------------------------- */

void
iscsi_sequences_set(struct iscsi_task *t, unsigned sequences)
{
	struct iscsi_conn *c = t->conn;

	c->expecting -= t->sequences > 0 && !t->ended;
	t->sequences = sequences;
	c->expecting += t->sequences > 0 && !t->ended;
	if (c->in.part == PART_PLACE)
		iscsi_conn_pump(c); /* it must not stand in the way */
}

/* The sequence that comes next is by R2T. */
static void
sequence_begin(struct iscsi_task *t)
{
	t->data_sn = 0;
	t->sequence_end = t->arrived + iscsi_burst(t->conn, t->arrived, t->asked);
}

static void
r2ts_add(struct iscsi_task *t)
{
	struct iscsi_conn *c = t->conn;

	if (t->owes_r2t)
		return;
	t->owes_r2t = true;
	t->next_r2t = NULL;
	if (c->r2ts == NULL)
		c->r2ts_last = &c->r2ts;
	*c->r2ts_last = t;
	c->r2ts_last = &t->next_r2t;
	iscsi_send_soon(c);
}

static void
r2ts_remove(struct iscsi_task *t)
{
	struct iscsi_conn *c = t->conn;
	struct iscsi_task **at = &c->r2ts;

	if (!t->owes_r2t)
		return;
	t->owes_r2t = false;
	while (*at != t)
		at = &(*at)->next_r2t;
	*at = t->next_r2t;
	if (c->r2ts_last == &t->next_r2t)
		c->r2ts_last = at;
}

/* It has memory, and data is missing that does not come unasked: as many bursts are asked for as
 * may be. */
static void
ask(struct iscsi_task *t)
{
	uint32_t all = (uint32_t)t->cmd.transfer_out;
	unsigned sequences = t->sequences;
	bool first = sequences == 0;

	if (first)
		t->asked = t->put = t->arrived;
	for (; sequences < t->conn->agreed.max_outstanding_r2t && t->asked < all; sequences++)
		t->asked += iscsi_burst(t->conn, t->asked, all);
	iscsi_sequences_set(t, sequences);
	if (first)
		sequence_begin(t);
	if (t->put < t->asked)
		r2ts_add(t);
}

/* It has memory; more of its data may have come. */
static void
gather_on(struct iscsi_task *t)
{
	if (t->failed)
		command_go(t, -EPROTO);
	else if (t->arrived >= t->cmd.transfer_out)
		command_go(t, 0);
	else if (!t->unsolicited && !t->receiving)
		ask(t);
}

/* The order or amount of its data is wrong. */
static void
data_failed(struct iscsi_task *t)
{
	t->failed = true;
	if (t->wanting)
		wanting_remove(t);
	if (t->asks)
		command_go(t, -EPROTO);
}

/* The last PDU of a sequence has come. */
static void
sequence_over(struct iscsi_task *t)
{
	if (t->sequences == 0)
		return;
	t->unsolicited = false;
	iscsi_sequences_set(t, t->sequences - 1);
	if (t->sequences > 0)
		sequence_begin(t);
	if (t->ended && t->sequences == 0)
		iscsi_answer(t);
}

/* The segment of c->in is the next part of t's data. */
static void
place_data(struct iscsi_conn *c, struct iscsi_task *t)
{
	struct iscsi_incoming *in = &c->in;
	bool whole = t->wish.memory != NULL;
	uint64_t end = whole ? t->cmd.transfer_out : t->early.length;
	uint8_t *memory = whole ? t->wish.memory : t->early.memory;

	if (t->ended || memory == NULL || t->arrived >= end)
		return; /* nobody wants it */
	in->to = memory + t->arrived;
	in->place = in->left < end - t->arrived ? in->left : (uint32_t)(end - t->arrived);
}

/* RFC 7143, "SCSI Data-Out" */
void
iscsi_data_out(struct iscsi_conn *c)
{
	const uint8_t *bhs = c->in.bhs;
	uint32_t ttt = get_be32(bhs + 20), offset = get_be32(bhs + 40), length = c->in.left;
	unsigned slot = ttt & 0xffff;
	bool final = (bhs[1] & ISCSI_FINAL) != 0;
	struct iscsi_task *t;

	if (ttt == ISCSI_NO_TAG) {
		t = iscsi_task_by_tag(c, get_be32(bhs + 16));
	} else if (slot >= c->fresh) {
		iscsi_reject(c, bhs, ISCSI_REJECT_INVALID_FIELD);
		return;
	} else {
		t = &c->slots[slot];
		if (t->serial != ttt >> 16 || t->kind != TASK_COMMAND || t->freed)
			t = NULL;
	}
	if (t == NULL)
		return; /* it is for one that has ended */

	c->in.task = t;
	t->receiving = true;
	if (t->ended || t->failed)
		return;
	if (t->sequences == 0 || t->unsolicited != (ttt == ISCSI_NO_TAG) ||
	    (!t->unsolicited && t->arrived >= t->put) || /* its R2T has not been sent */
	    get_be32(bhs + 36) != t->data_sn || offset != t->arrived ||
	    length > t->sequence_end - t->arrived ||
	    (final && !t->unsolicited && length != t->sequence_end - t->arrived)) {
		data_failed(t);
		return;
	}
	t->data_sn++;
	place_data(c, t);
}

void
iscsi_data_arrived(struct iscsi_task *t, uint32_t length, bool final)
{
	if (!t->ended && !t->failed)
		t->arrived += length;
	if (final)
		sequence_over(t);
	if (t->asks && t->wish.memory != NULL)
		gather_on(t);
}

/* ---- its place ------------------------------------------------------------------- */

/* Early memory for all that can come unasked. */
static bool
early_try(struct iscsi_task *t)
{
	if (t->early.memory != NULL)
		return true;
	if (!iscsi_memory_try(t->conn, &t->early, t->sequence_end))
		return false;
	t->conn->held_early += t->early.length;
	return true;
}

/* Whether other commands wait for data that comes behind t's. */
static bool
others_expect(const struct iscsi_task *t)
{
	return t->conn->expecting > (t->sequences > 0 ? 1 : 0);
}

bool
iscsi_task_place(struct iscsi_conn *c)
{
	struct iscsi_task *t = c->in.task;

	if (iscsi_opcode(c->in.bhs) != ISCSI_SCSI_COMMAND || t == NULL || t->kind != TASK_COMMAND ||
	    t->ended || t->failed)
		return true;
	if (!t->held_back && (!t->asks || t->cmd.transfer_out == 0))
		return true; /* no such command takes data */
	if (t->wish.memory == NULL) {
		/* Whoever waits for the worker's memory does so without holding any. */
		bool early = t->held_back || !c->wanting.first->wish.waiting;

		if (!early || !early_try(t)) {
			if (t->held_back)
				t->failed = true; /* it is early; there may be none for it */
			else if (others_expect(t))
				refuse(t);
			else
				return false;
			return true;
		}
	}
	place_data(c, t);
	return true;
}

/* ---- the end --------------------------------------------------------------------- */

/* Bursts that have been decided on, but not asked for, are not awaited. */
static void
forget_r2ts(struct iscsi_task *t)
{
	unsigned sequences = t->sequences;

	for (; t->put < t->asked; t->put += iscsi_burst(t->conn, t->put, t->asked))
		sequences--;
	r2ts_remove(t);
	iscsi_sequences_set(t, sequences);
}

void
iscsi_data_end(struct iscsi_task *t)
{
	struct iscsi_conn *c = t->conn;

	if (t->asks) {
		t->asks = false;
		c->asking--;
	}
	if (t->wanting)
		wanting_remove(t);
	forget_r2ts(t);
	c->expecting -= t->sequences > 0;
	t->ended = true;
}
