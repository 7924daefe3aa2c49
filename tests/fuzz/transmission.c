/*
 * transmission.c - whatever a client sends after the handshake is answered as the protocol
 * wants, to the last whole reply, and the connection ends.
 *
 * A whole connection, without sockets (dry.h). Input: a byte that says which export and which
 * headers, and whether what follows is sent as it is or makes requests, and one that says in which
 * pieces it comes.
 */
#include "fuzz.h"
#include "nbd/protocol.h"
#include "served.h"

#include <assert.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

#define BEYOND 1024 /* offsets and lengths that reach outside */
#define INPUT  1024 /* bytes of what libFuzzer makes */
#define SENT   (3 << 16)

static void
set_up(void)
{
	static struct worker_settings settings = {
		.memory = 2 * (NBD_MAX_PAYLOAD + (4u << 20)),
		.handshake_timeout = UINT64_C(60) * 1000000000,
		.depth = 4,
		.may_list = true,
	};

	serve_exports(&settings);
}

/* ---- what a client sends --------------------------------------------------------- */

enum headers { COMPACT, STRUCTURED, EXTENDED };

struct client_side {
	enum headers headers;
	uint8_t sent[SENT];
	size_t length;
};

static void
put(struct client_side *c, const void *data, size_t length)
{
	assert(length <= SENT - c->length);
	if (length > 0)
		memcpy(c->sent + c->length, data, length);
	c->length += length;
}

static void
put_option(struct client_side *c, uint32_t option, const void *data, uint32_t length)
{
	uint8_t head[16];

	put_be32(put_be32(put_be64(head, NBD_OPTION_MAGIC), option), length);
	put(c, head, sizeof head);
	put(c, data, length);
}

static void
put_handshake(struct client_side *c, const char *name)
{
	uint8_t context[4 + 1 + 4 + 4 + 15] = { 0, 0, 0, 1, 0, 0, 0, 0, 1, 0, 0, 0, 15 };
	uint8_t go[4 + 1 + 2] = { 0, 0, 0, 1 };

	put(c, "\0\0\0\3", 4);
	if (c->headers != COMPACT) {
		put_option(c,
			   c->headers == EXTENDED ? NBD_OPT_EXTENDED_HEADERS
						  : NBD_OPT_STRUCTURED_REPLY,
			   NULL, 0);
		context[4] = (uint8_t)*name;
		memcpy(context + 13, NBD_BASE_ALLOCATION, 15);
		put_option(c, NBD_OPT_SET_META_CONTEXT, context, sizeof context);
	}
	go[4] = (uint8_t)*name;
	put_option(c, NBD_OPT_GO, go, sizeof go);
}

static uint64_t
some_number(struct fuzz_input *in)
{
	uint64_t n = fuzz_next(in, DISK + BEYOND);

	switch (fuzz_next(in, 16)) {
	case 0: return n << 47;
	case 1: return 0 - n;
	case 2: return n + (UINT64_C(1) << 32);
	default: return n;
	}
}

/* A request that gets past the first checks. */
static bool
put_request(struct client_side *c, struct fuzz_input *in)
{
	uint16_t type = (uint16_t)fuzz_next(in, 10), flags = (uint16_t)fuzz_next(in, 1 << 7);
	uint64_t cookie = fuzz_next(in, 4), offset = some_number(in), length = some_number(in);
	bool extended = c->headers == EXTENDED, payload;
	uint8_t head[32], *p = head;

	if (c->length > SENT - sizeof head)
		return false;
	if (type == NBD_CMD_DISC && fuzz_next(in, 4) != 0)
		type = NBD_CMD_READ;
	if (extended && type == NBD_CMD_WRITE && fuzz_next(in, 8) != 0)
		flags |= NBD_CMD_FLAG_PAYLOAD_LEN;
	payload = extended ? flags & NBD_CMD_FLAG_PAYLOAD_LEN : type == NBD_CMD_WRITE;
	if (extended && type == NBD_CMD_BLOCK_STATUS && payload)
		length = fuzz_next(in, 8) != 0 ? 12 : length;
	p = put_be32(p, extended ? NBD_EXTENDED_REQUEST_MAGIC : NBD_REQUEST_MAGIC);
	p = put_be16(put_be16(p, flags), type);
	p = put_be64(put_be64(p, cookie), offset);
	p = extended ? put_be64(p, length) : put_be32(p, (uint32_t)length);
	put(c, head, (size_t)(p - head));
	if (payload) {
		size_t n = extended ? (size_t)length : (uint32_t)length;

		/* A payload that does not fit is one that ends too early. */
		if (n > SENT - c->length)
			return false;
		memset(c->sent + c->length, (int)(cookie + 1), n);
		if (type == NBD_CMD_BLOCK_STATUS && n >= 12)
			put_be32(put_be64(c->sent + c->length, offset),
				 NBD_BASE_ALLOCATION_ID * (cookie != 0));
		c->length += n;
	}
	return true;
}

/* ---- what it gets ---------------------------------------------------------------- */

static const uint8_t *
past_replies_to_options(void)
{
	const uint8_t *p = dry_wire.from_server + 18, *end = p - 18 + dry_wire.length;

	while (end - p >= 20 && get_be64(p) == NBD_OPT_REPLY_MAGIC)
		p += 20 + get_be32(p + 16);
	assert(p <= end);
	return p;
}

static void
check_chunk(unsigned type, unsigned flags, const uint8_t *data, uint64_t length, bool extended)
{
	uint64_t fixed = extended ? 8 : 4, each = extended ? 16 : 8;

	assert((flags & ~(unsigned)NBD_REPLY_FLAG_DONE) == 0);
	switch (type) {
	case NBD_REPLY_TYPE_NONE: assert(length == 0 && flags != 0); break;
	case NBD_REPLY_TYPE_OFFSET_DATA:
		assert(length > 8 && get_be64(data) + length - 8 <= DISK);
		break;
	case NBD_REPLY_TYPE_OFFSET_HOLE:
		assert(length == 12 && get_be32(data + 8) > 0);
		assert(get_be64(data) + get_be32(data + 8) <= DISK);
		break;
	case NBD_REPLY_TYPE_ERROR:
		assert(length >= 6 && get_be32(data) != 0 && get_be16(data + 4) == length - 6);
		break;
	case NBD_REPLY_TYPE_BLOCK_STATUS:
	case NBD_REPLY_TYPE_BLOCK_STATUS_EXT:
		assert(extended == (type == NBD_REPLY_TYPE_BLOCK_STATUS_EXT));
		assert(length >= fixed + each && (length - fixed) % each == 0);
		assert(get_be32(data) == NBD_BASE_ALLOCATION_ID);
		for (const uint8_t *x = data + fixed; x < data + length; x += each)
			assert((extended ? get_be64(x) : get_be32(x)) > 0);
		break;
	default: assert(!"a chunk of a type that is none");
	}
}

/* With chunks, replies can be told apart without knowing what was asked. */
static void
check_replies(const struct client_side *c, const uint8_t *p)
{
	const uint8_t *end = dry_wire.from_server + dry_wire.length;
	bool extended = c->headers == EXTENDED;
	size_t head = extended ? 32 : 20;

	while (p < end) {
		uint64_t length;

		if (!extended && get_be32(p) == NBD_SIMPLE_REPLY_MAGIC) {
			assert(end - p >= 16);
			p += 16;
			continue;
		}
		assert((size_t)(end - p) >= head);
		assert(get_be32(p) ==
		       (extended ? NBD_EXTENDED_REPLY_MAGIC : NBD_STRUCTURED_REPLY_MAGIC));
		length = extended ? get_be64(p + 24) : get_be32(p + 16);
		assert(length <= (size_t)(end - p) - head);
		check_chunk(get_be16(p + 6), get_be16(p + 4), p + head, length, extended);
		p += head + length;
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	static struct client_side c;
	struct fuzz_input in = { input, size };
	unsigned how = (unsigned)fuzz_next(&in, 256), way = (unsigned)fuzz_next(&in, 256);

	if (size > INPUT)
		return -1;
	if (workers == NULL)
		set_up();
	c.headers = how % 3;
	c.length = 0;
	put_handshake(&c, (const char *[]){ "w", "r", "f", "s" }[how >> 2 & 3]);
	if (how & 64)
		put(&c, in.data, in.size);
	else
		while (in.size > 0 && put_request(&c, &in))
			;
	serve(PROTOCOL_NBD, c.sent, c.length, way);
	assert(dry_wire.length >= 18);
	if (c.headers != COMPACT)
		check_replies(&c, past_replies_to_options());
	return 0;
}
