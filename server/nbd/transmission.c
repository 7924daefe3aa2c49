/*
 * transmission.c - requests in.
 *
 * The good path: a header comes out of the input, is checked against its row, gets a slot
 * and memory; a payload is copied from the input as far as it is there, and the rest is
 * received in its place; then the request is the core's, and its outcome reply.c's.
 *
 * The other paths:
 * - a request is refused: its payload is taken from the input all the same, and thrown away;
 *   then it is answered. What comes after is not touched by that.
 * - there is no slot, or no memory: nothing more is taken until there is. The peer's bytes
 *   stay in its socket.
 * - the header makes no sense (wrong magic, a payload beyond all bounds): where the next
 *   one begins is unknown, so the connection ends.
 */
#include "transmission.h"

#include "reply.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>

#define HEADER          28
#define EXTENDED_HEADER 32
#define DRAIN_MAX       (2 * (uint64_t)NBD_MAX_PAYLOAD) /* a longer payload is not taken */
#define STATUS_MEMORY   (16u << 10)                     /* extents of one BLOCK_STATUS */
#define STATUS_PAYLOAD  12 /* effect length and one id: there is one context */

static const struct nbd_command commands[] = {
	[NBD_CMD_READ] = { .name = "read",
			   .op = PL_READ,
			   .kind = STATS_READ,
			   .flags = NBD_CMD_FLAG_DF },
	[NBD_CMD_WRITE] = { .name = "write", .op = PL_WRITE, .kind = STATS_WRITE, .changes = true },
	[NBD_CMD_FLUSH] = { .name = "flush", .op = PL_FLUSH, .kind = STATS_FLUSH },
	[NBD_CMD_TRIM] = { .name = "trim", .op = PL_TRIM, .kind = STATS_TRIM, .changes = true },
	[NBD_CMD_CACHE] = { .name = "cache", .op = PL_CACHE, .kind = STATS_CACHE },
	[NBD_CMD_WRITE_ZEROES] = { .name = "write zeroes",
				   .op = PL_ZERO,
				   .kind = STATS_ZERO,
				   .flags = NBD_CMD_FLAG_NO_HOLE | NBD_CMD_FLAG_FAST_ZERO,
				   .changes = true },
	[NBD_CMD_BLOCK_STATUS] = { .name = "block status",
				   .op = PL_EXTENTS,
				   .kind = STATS_EXTENTS,
				   .flags = NBD_CMD_FLAG_REQ_ONE },
};
static const struct nbd_command unknown_command = { .name = "unknown command",
						    .op = PL_CACHE,
						    .kind = STATS_CACHE };

/* ---- slots and memory ------------------------------------------------------------ */

int
nbd_transmission_start(struct nbd_conn *c)
{
	c->depth = c->worker->settings->depth; /* a reload changes that for those to come */
	c->slots = malloc(c->depth * sizeof *c->slots);
	c->iov = malloc(NBD_IOVS * sizeof *c->iov);
	c->heads = malloc(NBD_HEADS);
	if (c->slots == NULL || c->iov == NULL || c->heads == NULL)
		return -ENOMEM;
	c->fresh = 0;
	c->answers_last = &c->answers;
	return 0;
}

void
nbd_transmission_free(struct nbd_conn *c)
{
	free(c->slots);
	free(c->iov);
	free(c->heads);
}

/* Slots are touched one by one, as deep as the peer goes. */
static struct nbd_request *
slot_take(struct nbd_conn *c)
{
	struct nbd_request *r = c->free;

	if (r != NULL)
		c->free = r->next;
	else if (c->fresh < c->depth)
		r = &c->slots[c->fresh++];
	return r;
}

static bool
slot_is_there(const struct nbd_conn *c)
{
	return c->free != NULL || c->fresh < c->depth;
}

void
nbd_request_free(struct nbd_request *r)
{
	struct nbd_conn *c = r->conn;

	if (r->wish.memory != NULL)
		room_give(c->worker->room, &r->wish);
	r->next = c->free;
	c->free = r;
}

static void
memory_granted(struct room_wish *wish)
{
	struct nbd_request *r =
		(struct nbd_request *)((char *)wish - offsetof(struct nbd_request, wish));

	nbd_conn_pump(r->conn);
}

/* Returns whether r has its memory. If not, it stays c->wanting. */
static bool
memory_take(struct nbd_conn *c, struct nbd_request *r)
{
	uint64_t held = room_held(&c->share);

	if (r->wish.memory != NULL)
		return true;
	if (held > 0 && held + r->wish.length > NBD_HOLD_MAX)
		return false;
	return room_take(c->worker->room, &r->wish, nbd_conn_moved(c));
}

/* ---- on to the core -------------------------------------------------------------- */

static void
request_done(struct pl_request *req, int error)
{
	struct nbd_request *r =
		(struct nbd_request *)((char *)req - offsetof(struct nbd_request, req));
	struct nbd_conn *c = r->conn;

	c->under_way--;
	if (c->state == CONN_CLOSING) {
		nbd_request_free(r);
		nbd_conn_settle(c);
		return;
	}
	nbd_reply(r, error, NULL);
}

static unsigned
core_flags(const struct nbd_request *r)
{
	unsigned flags = 0;

	if (r->command->changes && (r->flags & NBD_CMD_FLAG_FUA) != 0)
		flags |= PL_FUA;
	if ((r->flags & NBD_CMD_FLAG_NO_HOLE) != 0)
		flags |= PL_NO_HOLE;
	if ((r->flags & NBD_CMD_FLAG_FAST_ZERO) != 0)
		flags |= PL_FAST;
	return flags;
}

static void
request_submit(struct nbd_conn *c, struct nbd_request *r)
{
	struct pl_request *req = &r->req;

	req->op = r->command->op;
	req->flags = core_flags(r);
	req->offset = r->offset;
	req->length = r->length;
	req->iovcnt = 0;
	req->on_done = request_done;
	if (req->op == PL_READ || req->op == PL_WRITE) {
		r->iov = (struct iovec){ r->wish.memory, r->length };
		req->iov = &r->iov;
		req->iovcnt = r->length > 0;
	} else if (req->op == PL_EXTENTS) {
		r->extents = (struct pl_extents){
			.list = r->wish.memory,
			.max = (r->flags & NBD_CMD_FLAG_REQ_ONE) != 0
				       ? 1
				       : STATUS_MEMORY / sizeof(struct pl_extent),
		};
		req->extents = &r->extents;
	}
	c->under_way++;
	pl_request_submit(c->session->channel, req);
}

/* "NBD_CMD_BLOCK_STATUS": with a payload, that has the length and which contexts. */
static bool
status_payload(struct nbd_request *r)
{
	const uint8_t *p = r->wish.memory;

	r->length = get_be64(p);
	return get_be32(p + 8) == NBD_BASE_ALLOCATION_ID;
}

/* The payload is there, or there is none. */
static void
request_complete(struct nbd_conn *c, struct nbd_request *r)
{
	if (r->command->op == PL_EXTENTS && r->payload > 0 && !status_payload(r))
		nbd_reply(r, -EINVAL, "a metadata context that was not selected");
	else if (c->shutting_down)
		nbd_reply(r, -ESHUTDOWN, "the server is shutting down");
	else
		request_submit(c, r);
}

/* It has its memory. */
static void
request_go(struct nbd_conn *c, struct nbd_request *r)
{
	if (r->payload == 0) {
		request_complete(c, r);
		return;
	}
	c->filling = r;
	c->filled = 0;
}

/* ---- checks ---------------------------------------------------------------------- */

/* What the core does not know of: it checks ranges and what the export can do. */
static int
request_check(const struct nbd_conn *c, const struct nbd_request *r, const char **text)
{
	const struct nbd_command *command = r->command;
	unsigned capabilities = c->session->capabilities;
	uint16_t flags = command->flags;

	if ((capabilities & PL_CAP_FUA) != 0)
		flags |= NBD_CMD_FLAG_FUA;
	if ((capabilities & PL_CAP_FAST_ZERO) == 0)
		flags &= (uint16_t)~NBD_CMD_FLAG_FAST_ZERO;
	if (!c->agreed.structured)
		flags &= (uint16_t)~NBD_CMD_FLAG_DF;
	if (c->agreed.extended && (command->op == PL_WRITE || command->op == PL_EXTENTS))
		flags |= NBD_CMD_FLAG_PAYLOAD_LEN;

	*text = NULL;
	if (command == &unknown_command)
		*text = "there is no such command";
	else if (command->changes && (capabilities & PL_CAP_WRITE) == 0)
		return -EPERM;
	else if ((r->flags & ~flags) != 0)
		*text = "a flag that this command does not have, or that was not advertised";
	else if ((command->op == PL_READ || command->op == PL_WRITE) && r->length > NBD_MAX_PAYLOAD)
		*text = "longer than the maximum that was advertised";
	else if (command->op == PL_WRITE && r->payload != r->length)
		*text = "a write without its payload";
	else if (command->op == PL_FLUSH && (r->offset != 0 || r->length != 0))
		*text = "a flush has no offset and no length";
	else if (command->op == PL_EXTENTS && !c->agreed.allocation)
		*text = "no metadata context was selected";
	else if (command->op == PL_EXTENTS && r->payload != 0 && r->payload != STATUS_PAYLOAD)
		*text = "the payload must be a length and one selected context";
	else
		return 0;
	return -EINVAL;
}

/* ---- headers --------------------------------------------------------------------- */

static bool
header_read(struct nbd_conn *c, const uint8_t *p, struct nbd_request *r, unsigned *type)
{
	bool extended = c->agreed.extended;

	if (get_be32(p) != (extended ? NBD_EXTENDED_REQUEST_MAGIC : NBD_REQUEST_MAGIC))
		return false;
	r->flags = get_be16(p + 4);
	*type = get_be16(p + 6);
	r->cookie = get_be64(p + 8);
	r->offset = get_be64(p + 16);
	r->length = extended ? get_be64(p + 24) : get_be32(p + 24);
	return true;
}

static uint64_t
memory_needed(const struct nbd_request *r)
{
	switch (r->command->op) {
	case PL_READ:
	case PL_WRITE: return r->length;
	case PL_EXTENTS: return STATUS_MEMORY;
	default: return 0;
	}
}

/* A header is there. Returns false when nothing more is to be taken from this peer. */
static bool
request_begin(struct nbd_conn *c, const uint8_t *header)
{
	struct nbd_request *r = slot_take(c);
	const char *text;
	unsigned type;
	int error;

	r->conn = c;
	r->wish = (struct room_wish){ .share = &c->share, .granted = memory_granted };
	r->began = c->now;
	if (!header_read(c, header, r, &type)) {
		nbd_request_free(r);
		c->why = "a request without the right magic";
		return false;
	}
	if (type == NBD_CMD_DISC) {
		nbd_request_free(r);
		return false;
	}
	r->command = type < sizeof commands / sizeof *commands && commands[type].name != NULL
			     ? &commands[type]
			     : &unknown_command;
	if (c->agreed.extended ? (r->flags & NBD_CMD_FLAG_PAYLOAD_LEN) != 0
			       : r->command->op == PL_WRITE)
		r->payload = r->length;
	else
		r->payload = 0;
	if (r->payload > (c->agreed.extended ? NBD_MAX_PAYLOAD : DRAIN_MAX)) {
		log_warn("%s: export \"%s\": %s of %" PRIu64 " bytes, more than can be taken",
			 c->client->peer.text, offer_name(c->session->offer), r->command->name,
			 r->payload);
		nbd_request_free(r);
		c->why = "a payload that is too long";
		return false;
	}
	__atomic_fetch_add(&c->client->requests, 1, __ATOMIC_RELAXED);
	error = request_check(c, r, &text);
	if (error != 0) {
		r->error = error;
		r->text = text;
		c->drained = r;
		c->to_drain = r->payload;
		return true;
	}
	r->wish.length = memory_needed(r);
	if (r->wish.length == 0 || memory_take(c, r))
		request_go(c, r);
	else
		c->wanting = r;
	return true;
}

/* ---- input ----------------------------------------------------------------------- */

static size_t
input_left(const struct nbd_conn *c)
{
	return c->input_have - c->input_at;
}

/* Both return whether they came to their end. */
static bool
fill(struct nbd_conn *c)
{
	struct nbd_request *r = c->filling;
	size_t n = r->payload - c->filled;

	if (n > input_left(c))
		n = input_left(c);
	memcpy((char *)r->wish.memory + c->filled, c->input + c->input_at, n);
	c->input_at += n;
	c->filled += n;
	if (c->filled < r->payload)
		return false;
	c->filling = NULL;
	request_complete(c, r);
	return true;
}

static bool
drain(struct nbd_conn *c)
{
	struct nbd_request *r = c->drained;
	size_t n = input_left(c) < c->to_drain ? input_left(c) : c->to_drain;

	c->input_at += n;
	c->to_drain -= n;
	if (c->to_drain > 0)
		return false;
	c->drained = NULL;
	nbd_reply(r, r->error, r->text);
	return true;
}

enum nbd_progress
nbd_transmission_input(struct nbd_conn *c)
{
	size_t header = c->agreed.extended ? EXTENDED_HEADER : HEADER;

	for (;;) {
		if (c->filling != NULL) {
			if (!fill(c))
				return NBD_NEEDS_INPUT;
		} else if (c->drained != NULL) {
			if (!drain(c))
				return NBD_NEEDS_INPUT;
		} else if (c->wanting != NULL) {
			struct nbd_request *r = c->wanting;

			if (!memory_take(c, r))
				return NBD_IS_BUSY;
			c->wanting = NULL;
			request_go(c, r);
		} else if (input_left(c) < header) {
			return NBD_NEEDS_INPUT;
		} else if (!slot_is_there(c)) {
			return NBD_IS_BUSY;
		} else {
			c->input_at += header;
			if (!request_begin(c, c->input + c->input_at - header))
				return NBD_ENDS;
		}
	}
}

int
nbd_transmission_want(struct nbd_conn *c, struct iovec iov[2])
{
	int n = 0;

	/* What is left is less than a header. */
	memmove(c->input, c->input + c->input_at, input_left(c));
	c->input_have -= c->input_at;
	c->input_at = 0;
	if (c->filling != NULL)
		iov[n++] = (struct iovec){ (char *)c->filling->wish.memory + c->filled,
					   c->filling->payload - c->filled };
	iov[n++] = (struct iovec){ c->input + c->input_have, NBD_INPUT - c->input_have };
	return n;
}

void
nbd_transmission_received(struct nbd_conn *c, size_t n)
{
	c->now = stats_now();
	if (c->filling != NULL) {
		size_t direct = c->filling->payload - c->filled;

		if (direct > n)
			direct = n;
		c->filled += direct;
		n -= direct;
	}
	c->input_have += n;
}

void
nbd_transmission_drop(struct nbd_conn *c)
{
	struct nbd_request *unfinished[] = { c->filling, c->drained, c->wanting };

	/* What is being received still goes into its memory, which nobody else may have yet. */
	if (c->receiving)
		unfinished[0] = NULL;
	else
		c->filling = NULL;
	if (c->wanting != NULL)
		room_forget(c->worker->room, &c->wanting->wish);
	c->drained = c->wanting = NULL;
	for (unsigned i = 0; i < sizeof unfinished / sizeof *unfinished; i++) {
		if (unfinished[i] != NULL)
			nbd_request_free(unfinished[i]);
	}
}
