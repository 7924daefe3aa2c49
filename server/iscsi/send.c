/*
 * send.c - PDUs out.
 *
 * The good path: what is done in one turn of the loop stands in the list of answers. Before the
 * loop sleeps, headers, sense and digests are written into one buffer, data stays where it is, and
 * all of it goes out with one send; what is done meanwhile waits for the next. When the send has
 * ended, the tasks are freed.
 *
 * An answer with much data may take more than one send: it stays the first in the list until all
 * of it has been put together. Data-In is cut by what the initiator takes in one PDU and in one
 * sequence; the last PDU has the status, too, if that is good.
 */
#include "conn.h"

#include "../batch.h"
#include "../stats.h"

#include <assert.h>
#include <errno.h>
#include <string.h>

#define COPY_MAX  (2 + SCSI_SENSE_MAX) /* bytes that go into the buffer with a header */
#define HEAD_EACH (ISCSI_BHS + 2 * ISCSI_DIGEST + COPY_MAX + 3)
#define IOVS_EACH 3

_Static_assert(COPY_MAX >= ISCSI_BHS, "a Reject has a header for its data");
/* And a NOP-In and an Asynchronous Message. */
_Static_assert((ISCSI_REJECTS + 2) * IOVS_EACH <= ISCSI_IOVS &&
		       (ISCSI_REJECTS + 2) * HEAD_EACH <= ISCSI_HEADS,
	       "all rejects go out with one send");

/* ---- one PDU --------------------------------------------------------------------- */

/* What is being put together for one send. */
struct sending {
	struct iscsi_conn *c;
	struct batch batch;
};

static bool
has_room(const struct sending *b)
{
	return b->batch.iovcnt + IOVS_EACH <= ISCSI_IOVS &&
	       b->batch.used + HEAD_EACH <= ISCSI_HEADS;
}

/* The header of the next PDU, with the numbers that all have. */
static uint8_t *
pdu(struct sending *b, enum iscsi_opcode opcode, uint8_t flags, uint32_t itt)
{
	struct iscsi_conn *c = b->c;
	uint8_t *bhs = batch_head(&b->batch);

	memset(bhs, 0, ISCSI_BHS);
	bhs[0] = (uint8_t)opcode;
	bhs[1] = flags;
	put_be32(bhs + 16, itt);
	put_be32(bhs + 24, c->stat_sn);
	put_be32(bhs + 28, c->exp_cmd_sn);
	put_be32(bhs + 32, iscsi_max_cmd_sn(c));
	return bhs;
}

/* Its data follows; copy: into the buffer, for it does not stay where it is. */
static void
pdu_end(struct sending *b, uint8_t *bhs, void *data, uint32_t length, bool copy)
{
	const struct iscsi_parameters *agreed = &b->c->agreed;
	uint32_t crc = ISCSI_CRC_START, padding = iscsi_padding(length);
	uint8_t *p = bhs + ISCSI_BHS;

	put_be24(bhs + 5, length);
	if (agreed->header_digest != ISCSI_DIGEST_NONE) {
		iscsi_crc_end(iscsi_crc_more(ISCSI_CRC_START, bhs, ISCSI_BHS), p);
		p += ISCSI_DIGEST;
	}
	if (length == 0) {
		batch_add_head(&b->batch, p);
		return;
	}
	if (copy) {
		memcpy(p, data, length);
		p += length;
	} else {
		batch_add_head(&b->batch, p);
		batch_add(&b->batch, data, length);
	}
	if (agreed->data_digest != ISCSI_DIGEST_NONE)
		crc = iscsi_crc_more(crc, data, length);
	memset(p, 0, padding);
	if (agreed->data_digest != ISCSI_DIGEST_NONE) {
		iscsi_crc_end(iscsi_crc_more(crc, p, padding), p + padding);
		p += ISCSI_DIGEST;
	}
	p += padding;
	if (p != batch_head(&b->batch))
		batch_add_head(&b->batch, p);
}

/* ---- SCSI ------------------------------------------------------------------------ */

static uint8_t
residual_flags(const struct scsi_command *cmd)
{
	switch (cmd->residual) {
	case SCSI_UNDERFLOW: return ISCSI_RESIDUAL_UNDERFLOW;
	case SCSI_OVERFLOW: return ISCSI_RESIDUAL_OVERFLOW;
	default: return 0;
	}
}

/* RFC 7143, "SCSI Data-In": status goes with the data only if all is well. */
static bool
status_goes_with_data(const struct scsi_command *cmd)
{
	return cmd->transfer_in > 0 && cmd->status == SCSI_GOOD;
}

/* As much of it as there is room for. Returns whether that is all. */
static bool
put_data_in(struct sending *b, struct iscsi_task *t)
{
	struct iscsi_conn *c = b->c;
	struct scsi_command *cmd = &t->cmd;
	bool with_status = status_goes_with_data(cmd);

	while (t->sent < cmd->transfer_in) {
		uint32_t max_burst = c->agreed.max_burst;
		uint64_t length = cmd->transfer_in - t->sent,
			 burst = max_burst - t->sent % max_burst;
		bool last, final;
		uint8_t *bhs;

		if (!has_room(b))
			return false;
		if (length > c->agreed.max_send)
			length = c->agreed.max_send;
		if (length > burst)
			length = burst;
		last = t->sent + length == cmd->transfer_in;
		final = last || length == burst;
		if (last && with_status)
			iscsi_number_free(t);
		bhs = pdu(b, ISCSI_DATA_IN, final ? ISCSI_FINAL : 0, t->itt);
		if (last && with_status) {
			bhs[1] |= ISCSI_DATA_IN_STATUS | residual_flags(cmd);
			bhs[3] = cmd->status;
			put_be32(bhs + 44, cmd->residual_count);
			c->stat_sn++;
		} else {
			put_be32(bhs + 24, 0);
		}
		put_be32(bhs + 20, ISCSI_NO_TAG);
		put_be32(bhs + 36, t->data_in_sn++);
		put_be32(bhs + 40, (uint32_t)t->sent);
		pdu_end(b, bhs, (char *)cmd->memory + t->sent, (uint32_t)length, false);
		t->sent += length;
	}
	return true;
}

/* RFC 7143, "SCSI Response" */
static void
put_response(struct sending *b, const struct iscsi_task *t)
{
	const struct scsi_command *cmd = &t->cmd;
	uint8_t *bhs = pdu(b, ISCSI_SCSI_RESPONSE, ISCSI_FINAL | residual_flags(cmd), t->itt);
	uint8_t sense[COPY_MAX];
	uint32_t length = 0;

	bhs[3] = cmd->status;
	b->c->stat_sn++;
	put_be32(bhs + 36, t->data_in_sn > 0 ? t->data_in_sn + t->r2t_sn : 0);
	put_be32(bhs + 44, cmd->residual_count);
	if (cmd->sense_length > 0) {
		memcpy(put_be16(sense, (uint16_t)cmd->sense_length), cmd->sense, cmd->sense_length);
		length = 2 + cmd->sense_length;
	}
	pdu_end(b, bhs, sense, length, true);
}

static void
count(const struct iscsi_task *t, uint64_t now)
{
	static const enum stats_kind kinds[PL_OPS] = {
		[PL_READ] = STATS_READ,       [PL_WRITE] = STATS_WRITE,  [PL_FLUSH] = STATS_FLUSH,
		[PL_ZERO] = STATS_ZERO,       [PL_TRIM] = STATS_TRIM,    [PL_CACHE] = STATS_CACHE,
		[PL_EXTENTS] = STATS_EXTENTS, [PL_MODIFY] = STATS_WRITE,
	};
	const struct scsi_command *cmd = &t->cmd;
	const struct iscsi_conn *c = t->conn;
	enum stats_kind kind = kinds[cmd->counted_as];
	struct stats *stats = target_stats(c->login.target, iscsi_lun(cmd->lun));

	if (stats == NULL)
		return;
	if (kind == STATS_WRITE && cmd->counted_fua)
		kind = STATS_WRITE_FUA;
	stats_count(stats, kind, cmd->counted_bytes, cmd->counted_error, now - t->began);
	if (cmd->counted_error == -EIO || cmd->counted_error == -ENOMEM)
		peer_warn("%s: %s: LUN %u: command %02x: %s", c->client->peer.text,
			  target_name(c->login.target), iscsi_lun(cmd->lun), cmd->cdb[0],
			  strerror(-cmd->counted_error));
}

/* ---- R2T ------------------------------------------------------------------------- */

/* RFC 7143, "Ready To Transfer". Returns whether those of t are all put. */
static bool
put_r2ts(struct sending *b, struct iscsi_task *t)
{
	struct iscsi_conn *c = b->c;

	while (t->put < t->asked) {
		uint32_t length = iscsi_burst(c, t->put, t->asked);
		uint8_t *bhs;

		if (!has_room(b))
			return false;
		bhs = pdu(b, ISCSI_R2T, ISCSI_FINAL, t->itt);
		memcpy(bhs + 8, t->lun, sizeof t->lun);
		put_be32(bhs + 20, (uint32_t)t->serial << 16 | (uint32_t)(t - c->slots));
		put_be32(bhs + 36, t->r2t_sn++);
		put_be32(bhs + 40, t->put);
		put_be32(bhs + 44, length);
		pdu_end(b, bhs, NULL, 0, false);
		t->put += length;
	}
	return true;
}

static void
put_all_r2ts(struct sending *b)
{
	struct iscsi_conn *c = b->c;
	struct iscsi_task *t;

	while ((t = c->r2ts) != NULL && put_r2ts(b, t)) {
		c->r2ts = t->next_r2t;
		t->owes_r2t = false;
	}
}

/* ---- all others ------------------------------------------------------------------ */

static void
put_rejects(struct sending *b)
{
	struct iscsi_conn *c = b->c;

	for (unsigned n = 0; n < c->reject_count; n++) {
		struct iscsi_rejected *r = &c->rejects[n];
		uint8_t *bhs = pdu(b, ISCSI_REJECT, ISCSI_FINAL, ISCSI_NO_TAG);

		bhs[2] = r->reason;
		c->stat_sn++;
		pdu_end(b, bhs, r->bhs, sizeof r->bhs, true);
	}
	c->reject_count = 0;
}

/* RFC 7143, "NOP-In": asks for an answer; any will do, so the tag tells nothing. */
static void
put_ping(struct sending *b)
{
	uint8_t *bhs = pdu(b, ISCSI_NOP_IN, ISCSI_FINAL, ISCSI_NO_TAG);

	put_be32(bhs + 20, 1);
	pdu_end(b, bhs, NULL, 0, false);
	b->c->wants_ping = false;
}

/* RFC 7143, "Asynchronous Message" */
static void
put_logout_request(struct sending *b)
{
	uint8_t *bhs = pdu(b, ISCSI_ASYNC_MESSAGE, ISCSI_FINAL, ISCSI_NO_TAG);

	b->c->stat_sn++;
	bhs[36] = 1; /* the target requests logout */
	put_be16(bhs + 42, ISCSI_LOGOUT_SECONDS);
	pdu_end(b, bhs, NULL, 0, false);
	b->c->wants_logout = false;
}

/* RFC 7143, "Text Response": a piece of the answer, as long as the initiator takes. */
static void
put_text(struct sending *b, const struct iscsi_task *t)
{
	struct iscsi_conn *c = b->c;
	size_t left = c->text.answer.length - c->text.answered;
	uint32_t length = left < c->agreed.max_send ? (uint32_t)left : c->agreed.max_send;
	bool more = length < left, final = !more && (t->flags & ISCSI_FINAL) != 0;
	uint8_t *bhs = pdu(b, ISCSI_TEXT_RESPONSE,
			   (final ? ISCSI_FINAL : 0) | (more ? ISCSI_CONTINUE : 0), t->itt);
	char *piece = length > 0 ? c->text.answer.data + c->text.answered : NULL;

	memcpy(bhs + 8, t->lun, sizeof t->lun);
	c->text.tag = final ? ISCSI_NO_TAG : ++c->text.tags & INT32_MAX;
	put_be32(bhs + 20, c->text.tag);
	c->stat_sn++;
	pdu_end(b, bhs, piece, length, false);
	c->text.answered += length;
}

static void
put_nop(struct sending *b, const struct iscsi_task *t)
{
	uint8_t *bhs = pdu(b, ISCSI_NOP_IN, ISCSI_FINAL, t->itt);

	memcpy(bhs + 8, t->lun, sizeof t->lun);
	put_be32(bhs + 20, ISCSI_NO_TAG);
	b->c->stat_sn++;
	pdu_end(b, bhs, t->wish.memory, t->ping_length, false);
}

/* Task Management and Logout */
static void
put_short(struct sending *b, const struct iscsi_task *t, enum iscsi_opcode opcode)
{
	uint8_t *bhs = pdu(b, opcode, ISCSI_FINAL, t->itt);

	bhs[2] = t->response;
	b->c->stat_sn++;
	pdu_end(b, bhs, NULL, 0, false);
}

/* Returns whether all of the answer is there. */
static bool
put_answer(struct sending *b, struct iscsi_task *t, uint64_t now)
{
	if (t->kind != TASK_COMMAND)
		iscsi_number_free(t);
	switch (t->kind) {
	case TASK_COMMAND:
		if (!put_data_in(b, t))
			return false;
		if (!status_goes_with_data(&t->cmd)) {
			if (!has_room(b))
				return false;
			iscsi_number_free(t);
			put_response(b, t);
		}
		if (t->cmd.counted)
			count(t, now);
		break;
	case TASK_MANAGEMENT: put_short(b, t, ISCSI_TASK_MANAGEMENT_RESPONSE); break;
	case TASK_LOGOUT: put_short(b, t, ISCSI_LOGOUT_RESPONSE); break;
	case TASK_TEXT: put_text(b, t); break;
	default: put_nop(b, t); break;
	}
	return true;
}

/* ---- sending --------------------------------------------------------------------- */

/* As much as one send takes. */
static int
put_together(struct iscsi_conn *c)
{
	struct sending b = { c, { .iov = c->iov, .heads = c->heads } };
	struct iscsi_task **last = &c->sending, *t;
	uint64_t now = stats_now();

	put_rejects(&b);
	if (c->wants_logout)
		put_logout_request(&b);
	if (c->wants_ping)
		put_ping(&b);
	put_all_r2ts(&b);
	while ((t = c->answers.first) != NULL && has_room(&b) && put_answer(&b, t, now)) {
		iscsi_queue_take(&c->answers);
		*last = t;
		last = &t->next;
	}
	*last = NULL;
	return b.batch.iovcnt;
}

static bool
something_to_send(const struct iscsi_conn *c)
{
	return c->answers.first != NULL || c->reject_count > 0 || c->r2ts != NULL ||
	       c->wants_ping || c->wants_logout;
}

static void
send_answers(struct iscsi_conn *c)
{
	ssize_t result;

	if (!something_to_send(c) || c->state == ISCSI_CLOSING)
		return;
	assert(!c->sends);
	c->sends = true;
	result = stream_send(&c->stream, c->iov, put_together(c));
	assert(result == -EINPROGRESS); /* only of TLS a send may be over at once */
}

static void
send_run(struct pl_work *work)
{
	struct iscsi_conn *c =
		(struct iscsi_conn *)((char *)work - offsetof(struct iscsi_conn, send_work));

	c->send_posted = false;
	send_answers(c);
	iscsi_conn_settle(c);
}

void
iscsi_send_soon(struct iscsi_conn *c)
{
	if (c->send_posted || c->sends)
		return;
	c->send_posted = true;
	c->send_work.run = send_run;
	pl_loop_later(c->worker->loop, &c->send_work);
}

void
iscsi_answer(struct iscsi_task *t)
{
	iscsi_queue_add(&t->conn->answers, t);
	iscsi_send_soon(t->conn);
}

bool
iscsi_send_pending(const struct iscsi_conn *c)
{
	return something_to_send(c) || c->sends;
}

static void
forget(struct iscsi_task *list)
{
	struct iscsi_task *next;

	for (struct iscsi_task *t = list; t != NULL; t = next) {
		next = t->next;
		iscsi_task_free(t);
	}
}

void
iscsi_sent(struct iscsi_conn *c, ssize_t result)
{
	struct iscsi_task *list = c->sending;

	c->sends = false;
	c->sending = NULL;
	forget(list);
	if (result < 0) {
		iscsi_conn_close(c, "the peer does not take its answers");
		return;
	}
	if (something_to_send(c))
		iscsi_send_soon(c);
	else if (c->resets)
		iscsi_conn_close_reset(c, "the target was reset");
	if (!c->receiving)
		iscsi_conn_pump(c); /* it may have waited for this */
}

void
iscsi_send_drop(struct iscsi_conn *c)
{
	struct iscsi_task *t = c->answers.first;

	/* What is being sent stays, and so does one that has been put together in part. */
	if (t != NULL && c->sends && t->sent > 0) {
		iscsi_queue_take(&c->answers);
		t->next = c->sending;
		c->sending = t;
	}
	forget(c->answers.first);
	c->answers.first = NULL;
	c->r2ts = NULL;
	c->reject_count = 0;
	c->wants_ping = c->wants_logout = false;
}
