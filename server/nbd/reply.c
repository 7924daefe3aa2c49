/*
 * reply.c - answers out.
 *
 * The good path: what is done in one turn of the loop stands in the list `answers`. Before
 * the loop sleeps, heads are written into one buffer, data stays where it is, and all of it
 * goes out with one send; what is done meanwhile waits for the next. When the send has
 * ended, the requests are freed.
 *
 * A READ is answered in pieces of data and holes where the peer understands that: what is
 * all zeroes is not sent.
 */
#include "reply.h"

#include "../batch.h"
#include "transmission.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#define TEXT_MAX   160                               /* of an error, on the wire */
#define HEADS_EACH (NBD_CHUNKS * 48 + TEXT_MAX + 64) /* that one answer may need */
#define IOVS_EACH  (2 * NBD_CHUNKS)
#define HOLE_MIN   4096u
#define REPORTS    10

/* ---- errors ---------------------------------------------------------------------- */

/* NBD proto.md, "Error values". What is not here is an I/O error. */
static const struct {
	int error; /* errno */
	enum nbd_error nbd;
} errors[] = {
	{ EPERM, NBD_EPERM },   { EROFS, NBD_EPERM },         { ENOMEM, NBD_ENOMEM },
	{ EINVAL, NBD_EINVAL }, { ENOSPC, NBD_ENOSPC },       { EFBIG, NBD_ENOSPC },
	{ EDQUOT, NBD_ENOSPC }, { EOVERFLOW, NBD_EOVERFLOW }, { ESHUTDOWN, NBD_ESHUTDOWN },
};

static enum nbd_error
nbd_error_of(const struct nbd_request *r)
{
	if (r->error == -ENOTSUP && (r->flags & NBD_CMD_FLAG_FAST_ZERO) != 0)
		return NBD_ENOTSUP;
	for (unsigned i = 0; i < sizeof errors / sizeof *errors; i++) {
		if (errors[i].error == -r->error)
			return errors[i].nbd;
	}
	return NBD_EIO;
}

/* Whether the disk is to blame, and an operator wants to know. */
static bool
is_trouble(const struct nbd_request *r)
{
	uint64_t size = r->conn->session->size;

	switch (nbd_error_of(r)) {
	case NBD_EIO:
	case NBD_ENOMEM: return true;
	/* Not when it is the range that is outside. */
	case NBD_ENOSPC: return r->offset <= size && r->length <= size - r->offset;
	default: return false;
	}
}

static const char *
text_of(const struct nbd_request *r)
{
	if (r->text != NULL)
		return r->text;
	if (r->error == -EIO && offer_failed(r->conn->session->offer))
		return "a sync has failed: nothing can be made durable until the export is "
		       "reopened";
	return strerror(-r->error);
}

/* So many lines a second for each connection; a disk that fails has many. */
static void
report(struct nbd_request *r)
{
	struct nbd_conn *c = r->conn;

	if (c->now - c->reported_since > UINT64_C(1000000000)) {
		if (c->reported > REPORTS)
			log_error("%s: export \"%s\": %u more errors", c->client->peer.text,
				  offer_name(c->session->offer), c->reported - REPORTS);
		c->reported_since = c->now;
		c->reported = 0;
	}
	if (c->reported++ < REPORTS)
		log_error("%s: export \"%s\": %s [%" PRIu64 ", %" PRIu64 "): %s",
			  c->client->peer.text, offer_name(c->session->offer), r->command->name,
			  r->offset, r->offset + r->length, text_of(r));
}

/* ---- heads ----------------------------------------------------------------------- */

static uint8_t *
simple_head(uint8_t *p, const struct nbd_request *r, enum nbd_error error)
{
	p = put_be32(p, NBD_SIMPLE_REPLY_MAGIC);
	p = put_be32(p, error);
	return put_be64(p, r->cookie);
}

static uint8_t *
chunk_head(uint8_t *p, const struct nbd_request *r, unsigned type, bool done, uint64_t length)
{
	bool extended = r->conn->agreed.extended;

	p = put_be32(p, extended ? NBD_EXTENDED_REPLY_MAGIC : NBD_STRUCTURED_REPLY_MAGIC);
	p = put_be16(p, done ? NBD_REPLY_FLAG_DONE : 0);
	p = put_be16(p, (uint16_t)type);
	p = put_be64(p, r->cookie);
	if (!extended)
		return put_be32(p, (uint32_t)length);
	p = put_be64(p, r->offset);
	return put_be64(p, length);
}

/* ---- answers --------------------------------------------------------------------- */

static void
answer_error(struct batch *b, const struct nbd_request *r)
{
	enum nbd_error error = nbd_error_of(r);
	const char *text = text_of(r);
	size_t length = strnlen(text, TEXT_MAX);
	uint8_t *p = batch_head(b);

	if (!r->conn->agreed.structured) {
		batch_add_head(b, simple_head(p, r, error));
		return;
	}
	p = chunk_head(p, r, NBD_REPLY_TYPE_ERROR, true, 4 + 2 + length);
	p = put_be32(p, error);
	p = put_be16(p, (uint16_t)length);
	memcpy(p, text, length);
	batch_add_head(b, p + length);
}

static bool
is_zero(const char *p, uint64_t length)
{
	uint64_t first;

	if (length < sizeof first)
		return false;
	memcpy(&first, p, sizeof first);
	return first == 0 && memcmp(p, p + sizeof first, length - sizeof first) == 0;
}

/* The end of the run of units from `from` on that are all zero, or all not. */
static uint64_t
run_end(const struct nbd_request *r, uint64_t from, uint64_t unit, bool *hole)
{
	const char *data = r->wish.memory;
	uint64_t at = from;

	do {
		uint64_t n = r->length - at < unit ? r->length - at : unit;
		bool zero = is_zero(data + at, n);

		if (at == from)
			*hole = zero;
		else if (zero != *hole)
			break;
		at += n;
	} while (at < r->length);
	return at;
}

static void
answer_read_chunks(struct batch *b, const struct nbd_request *r)
{
	bool whole = (r->flags & NBD_CMD_FLAG_DF) != 0 || r->length < HOLE_MIN;
	uint64_t unit = (r->length / NBD_CHUNKS + HOLE_MIN - 1) / HOLE_MIN * HOLE_MIN;

	if (unit < HOLE_MIN)
		unit = HOLE_MIN;
	for (uint64_t at = 0, end; at < r->length; at = end) {
		uint8_t *p = batch_head(b);
		bool hole = false;

		end = whole ? r->length : run_end(r, at, unit, &hole);
		if (hole) {
			p = chunk_head(p, r, NBD_REPLY_TYPE_OFFSET_HOLE, end == r->length, 8 + 4);
			p = put_be64(p, r->offset + at);
			batch_add_head(b, put_be32(p, (uint32_t)(end - at)));
			continue;
		}
		p = chunk_head(p, r, NBD_REPLY_TYPE_OFFSET_DATA, end == r->length, 8 + end - at);
		batch_add_head(b, put_be64(p, r->offset + at));
		batch_add(b, (char *)r->wish.memory + at, end - at);
	}
}

/* The extents become descriptors in their own memory: none is longer than an extent. */
static size_t
put_extents(const struct nbd_request *r, unsigned *count)
{
	const struct pl_extents *x = &r->extents;
	uint8_t *p = r->wish.memory;

	*count = 0;
	for (unsigned i = 0; i < x->count; i++) {
		struct pl_extent e = x->list[i];
		uint32_t flags = ((e.flags & PL_EXTENT_HOLE) != 0 ? NBD_STATE_HOLE : 0) |
				 ((e.flags & PL_EXTENT_ZERO) != 0 ? NBD_STATE_ZERO : 0);

		++*count;
		if (r->conn->agreed.extended) {
			p = put_be64(p, e.length);
			p = put_be64(p, flags);
			continue;
		}
		assert(e.length <= UINT32_MAX); /* as the request is */
		p = put_be32(p, (uint32_t)e.length);
		p = put_be32(p, flags);
	}
	return (size_t)(p - (uint8_t *)r->wish.memory);
}

static void
answer_status(struct batch *b, const struct nbd_request *r)
{
	bool extended = r->conn->agreed.extended;
	unsigned count;
	size_t length = put_extents(r, &count);
	uint8_t *p = batch_head(b);

	p = chunk_head(p, r,
		       extended ? NBD_REPLY_TYPE_BLOCK_STATUS_EXT : NBD_REPLY_TYPE_BLOCK_STATUS,
		       true, 4 + (extended ? 4 : 0) + length);
	p = put_be32(p, NBD_BASE_ALLOCATION_ID);
	if (extended)
		p = put_be32(p, count);
	batch_add_head(b, p);
	batch_add(b, r->wish.memory, length);
}

static void
answer(struct batch *b, const struct nbd_request *r)
{
	enum pl_op op = r->command->op;

	if (r->error != 0) {
		answer_error(b, r);
	} else if (op == PL_EXTENTS) {
		answer_status(b, r);
	} else if (op == PL_READ && r->length > 0 && r->conn->agreed.structured) {
		answer_read_chunks(b, r);
	} else if (r->conn->agreed.extended || (op == PL_READ && r->conn->agreed.structured)) {
		batch_add_head(b, chunk_head(batch_head(b), r, NBD_REPLY_TYPE_NONE, true, 0));
	} else {
		batch_add_head(b, simple_head(batch_head(b), r, NBD_SUCCESS));
		if (op == PL_READ && r->length > 0)
			batch_add(b, r->wish.memory, r->length);
	}
}

/* ---- sending --------------------------------------------------------------------- */

static void
count(struct nbd_conn *c, const struct nbd_request *r, uint64_t now)
{
	bool fua = r->command->op == PL_WRITE && (r->flags & NBD_CMD_FLAG_FUA) != 0;
	uint64_t bytes = r->command->op == PL_EXTENTS ? 0 : r->length;
	int error = r->error != 0 && nbd_error_of(r) == NBD_EIO ? -EIO : r->error;

	stats_count(c->session->stats, fua ? STATS_WRITE_FUA : r->command->kind, bytes, error,
		    now - r->began);
}

static void
forget(struct nbd_request *list)
{
	struct nbd_request *next;

	for (struct nbd_request *r = list; r != NULL; r = next) {
		next = r->next;
		nbd_request_free(r);
	}
}

/* As many answers as one send takes. */
static int
put_together(struct nbd_conn *c)
{
	struct batch b = { .iov = c->iov, .heads = c->heads };
	struct nbd_request **last = &c->sending;
	uint64_t now = stats_now();

	while (c->answers != NULL && b.iovcnt + IOVS_EACH <= NBD_IOVS &&
	       b.used + HEADS_EACH <= NBD_HEADS) {
		struct nbd_request *r = c->answers;

		c->answers = r->next;
		answer(&b, r);
		count(c, r, now);
		*last = r;
		last = &r->next;
	}
	*last = NULL;
	if (c->answers == NULL)
		c->answers_last = &c->answers;
	return b.iovcnt;
}

static void
send_answers(struct nbd_conn *c)
{
	ssize_t result;

	if (c->answers == NULL || c->state == CONN_CLOSING)
		return;
	assert(c->sending == NULL);
	result = stream_send(&c->stream, c->iov, put_together(c));
	if (result != -EINPROGRESS)
		nbd_reply_sent(c, result);
}

static void
reply_run(struct pl_work *work)
{
	struct nbd_conn *c =
		(struct nbd_conn *)((char *)work - offsetof(struct nbd_conn, reply_work));

	c->reply_posted = false;
	send_answers(c);
	nbd_conn_settle(c);
}

static void
reply_soon(struct nbd_conn *c)
{
	if (c->reply_posted || c->sending != NULL)
		return;
	c->reply_posted = true;
	c->reply_work.run = reply_run;
	pl_loop_later(c->worker->loop, &c->reply_work);
}

void
nbd_reply(struct nbd_request *r, int error, const char *text)
{
	struct nbd_conn *c = r->conn;

	r->error = error;
	r->text = text;
	if (error != 0 && is_trouble(r))
		report(r);
	r->next = NULL;
	*c->answers_last = r;
	c->answers_last = &r->next;
	reply_soon(c);
}

bool
nbd_reply_pending(const struct nbd_conn *c)
{
	return c->answers != NULL || c->sending != NULL;
}

void
nbd_reply_sent(struct nbd_conn *c, ssize_t result)
{
	forget(c->sending);
	c->sending = NULL;
	if (result < 0) {
		nbd_conn_close(c, "the peer does not take its answers");
		return;
	}
	if (c->answers != NULL)
		reply_soon(c);
	if (!c->receiving)
		nbd_conn_pump(c); /* it may have waited for slots or memory */
}

void
nbd_reply_drop(struct nbd_conn *c)
{
	forget(c->answers);
	c->answers = NULL;
	c->answers_last = &c->answers;
}
