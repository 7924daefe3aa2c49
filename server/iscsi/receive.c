/*
 * receive.c - PDUs in.
 *
 * The good path: a header stands in the input, whole, and its digest is right; task.c says what
 * it is for and where its data segment is to go. What of the data is in the input is copied; the
 * rest is received in its place. Padding and digest follow; then task.c goes on.
 *
 * The other paths:
 * - there is no memory for the data, and nothing else of this peer's is waited for: nothing more
 *   is taken until there is. Its bytes stay in its socket.
 * - a PDU is refused, or stands for nothing any more: its data is thrown away.
 * - a digest of data does not match: it is rejected, and as there is no error recovery but that of
 *   whole sessions (ErrorRecoveryLevel 0), the connection ends. What has come is part of no write.
 * - a digest of a header does not match, or a header is wrong in form: where the next one begins
 *   is unknown, or nothing that follows can be trusted: the connection is closed.
 */
#include "conn.h"

#include <assert.h>
#include <string.h>

static size_t
input_left(const struct iscsi_conn *c)
{
	return c->input_have - c->input_at;
}

/* ---- the header ------------------------------------------------------------------ */

static bool
digest_matches(uint32_t crc, const uint8_t *wire)
{
	uint8_t right[ISCSI_DIGEST];

	iscsi_crc_end(crc, right);
	return memcmp(right, wire, sizeof right) == 0;
}

/* Returns whether it has been taken. If not: *progress. */
static bool
take_header(struct iscsi_conn *c, enum iscsi_progress *progress)
{
	const uint8_t *bhs = c->input + c->input_at;
	struct iscsi_incoming *in = &c->in;
	bool digest = c->agreed.header_digest != ISCSI_DIGEST_NONE;
	size_t length = ISCSI_BHS;

	*progress = ISCSI_NEEDS_INPUT;
	if (input_left(c) < length)
		return false;
	length += iscsi_ahs_length(bhs);
	if (input_left(c) < length + (digest ? ISCSI_DIGEST : 0))
		return false;

	*progress = ISCSI_IS_BUSY;
	if (c->reject_count == ISCSI_REJECTS)
		return false; /* until they have been sent */

	*progress = ISCSI_ENDS;
	if (digest && !digest_matches(iscsi_crc_more(ISCSI_CRC_START, bhs, length), bhs + length)) {
		iscsi_conn_close(c, "the digest of a header does not match");
		return false;
	}
	*in = (struct iscsi_incoming){ .left = iscsi_data_length(bhs) };
	if (in->left > c->agreed.max_receive) {
		iscsi_conn_close(c, "a data segment is longer than was agreed on");
		return false;
	}
	if (in->left > 0) {
		in->padding = iscsi_padding(in->left);
		in->trailer = in->padding;
		in->crc = ISCSI_CRC_START;
		in->digest = c->agreed.data_digest != ISCSI_DIGEST_NONE;
		in->trailer += in->digest ? ISCSI_DIGEST : 0;
	}
	memcpy(in->bhs, bhs, ISCSI_BHS);
	c->input_at += length + (digest ? ISCSI_DIGEST : 0);
	in->part = PART_PLACE;
	iscsi_task_begin(c, bhs + ISCSI_BHS);
	return c->state == ISCSI_SERVING;
}

/* ---- data ------------------------------------------------------------------------ */

/* n bytes are where they are to be, or at `from`. */
static void
data_came(struct iscsi_conn *c, const uint8_t *from, uint32_t n)
{
	struct iscsi_incoming *in = &c->in;
	uint32_t placed = n < in->place ? n : in->place;

	if (in->digest)
		in->crc = iscsi_crc_more(in->crc, from, n);
	if (in->text != NULL)
		iscsi_text_append(in->text, from, n);
	if (placed > 0) {
		if (from != in->to)
			memcpy(in->to, from, placed);
		in->to += placed;
		in->place -= placed;
	}
	in->left -= n;
}

/* Returns whether all of it is there. */
static bool
take_data(struct iscsi_conn *c)
{
	struct iscsi_incoming *in = &c->in;
	uint32_t n = input_left(c) < in->left ? (uint32_t)input_left(c) : in->left;

	if (n > 0) {
		data_came(c, c->input + c->input_at, n);
		c->input_at += n;
	}
	return in->left == 0;
}

/* Returns false when nothing more is to be taken from this peer. */
static bool
take_trailer(struct iscsi_conn *c)
{
	struct iscsi_incoming *in = &c->in;
	const uint8_t *p = c->input + c->input_at;

	c->input_at += in->trailer;
	in->part = PART_HEADER;
	if (in->digest) {
		in->crc = iscsi_crc_more(in->crc, p, in->padding);
		if (!digest_matches(in->crc, p + in->padding)) {
			iscsi_reject(c, in->bhs, ISCSI_REJECT_DATA_DIGEST);
			iscsi_conn_end(c, "the digest of a data segment does not match");
			return false;
		}
	}
	iscsi_task_data_came(c);
	return c->state == ISCSI_SERVING;
}

enum iscsi_progress
iscsi_input(struct iscsi_conn *c)
{
	enum iscsi_progress progress;

	for (;;) {
		switch (c->in.part) {
		case PART_HEADER:
			if (!take_header(c, &progress))
				return progress;
			break;
		case PART_PLACE:
			if (!iscsi_task_place(c))
				return ISCSI_IS_BUSY;
			c->in.part = PART_DATA;
			break;
		case PART_DATA:
			if (!take_data(c))
				return ISCSI_NEEDS_INPUT;
			c->in.part = PART_TRAILER;
			break;
		case PART_TRAILER:
			if (input_left(c) < c->in.trailer)
				return ISCSI_NEEDS_INPUT;
			if (!take_trailer(c))
				return ISCSI_ENDS;
			break;
		}
	}
}

/* ---- bytes ----------------------------------------------------------------------- */

int
iscsi_input_want(struct iscsi_conn *c, struct iovec iov[2])
{
	int n = 0;

	/* What is left is less than a header or a trailer. */
	memmove(c->input, c->input + c->input_at, input_left(c));
	c->input_have -= c->input_at;
	c->input_at = 0;
	if (c->in.part == PART_DATA && c->in.place > 0)
		iov[n++] = (struct iovec){ c->in.to, c->in.place };
	c->direct = n > 0;
	iov[n++] = (struct iovec){ c->input + c->input_have, ISCSI_INPUT - c->input_have };
	return n;
}

void
iscsi_input_received(struct iscsi_conn *c, size_t n)
{
	if (c->direct) {
		uint32_t direct = n < c->in.place ? (uint32_t)n : c->in.place;

		data_came(c, c->in.to, direct);
		n -= direct;
	}
	c->input_have += n;
}
