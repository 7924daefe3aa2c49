/*
 * conn-nbd.c - NBD, simple replies only.
 *
 * Source: NBD proto.md, "Newstyle negotiation" and "Transmission".
 */
#include "conn.h"

#include "nbd/protocol.h"

#include <endian.h>
#include <err.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

/* ---- on the wire, big-endian ----------------------------------------------------- */

struct request {
	uint32_t magic;
	uint16_t flags, type;
	uint64_t cookie, offset;
	uint32_t length;
} __attribute__((packed));

struct reply {
	uint32_t magic, error;
	uint64_t cookie;
} __attribute__((packed));

/* What the server says first, what this client answers, and what it gets for that, by the one
 * option that has no reply of its own. */
struct greeting {
	uint64_t magic, version;
	uint16_t flags;
} __attribute__((packed));

struct choice {
	uint32_t client_flags;
	uint64_t version;
	uint32_t option, length;
} __attribute__((packed));

struct chosen {
	uint64_t size;
	uint16_t flags;
} __attribute__((packed));

/* ---- the protocol ---------------------------------------------------------------- */

static void
nbd_open(struct conn *c, const char *export_name)
{
	struct choice choice = { .client_flags =
					 htobe32(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES),
				 .version = htobe64(NBD_OPTION_MAGIC),
				 .option = htobe32(NBD_OPT_EXPORT_NAME),
				 .length = htobe32((uint32_t)strlen(export_name)) };
	struct iovec to_send[] = { { &choice, sizeof(choice) },
				   { (char *)export_name, strlen(export_name) } };
	const ssize_t length = (ssize_t)(sizeof(choice) + strlen(export_name));
	struct greeting greeting;
	struct chosen chosen;

	conn_get(c, &greeting, sizeof(greeting));
	if (be64toh(greeting.magic) != NBD_MAGIC || be64toh(greeting.version) != NBD_OPTION_MAGIC)
		errx(2, "this is not an NBD server");
	if (writev(c->fd, to_send, 2) != length)
		err(2, "send");
	conn_get(c, &chosen, sizeof(chosen));
	c->can_fua = (be16toh(chosen.flags) & NBD_FLAG_SEND_FUA) != 0;
	c->can_flush = (be16toh(chosen.flags) & NBD_FLAG_SEND_FLUSH) != 0;
	c->size = be64toh(chosen.size);
}

static void
nbd_issue(struct conn *c, unsigned number)
{
	static const uint16_t types[] = {
		[CONN_READ] = NBD_CMD_READ,   [CONN_WRITE] = NBD_CMD_WRITE,
		[CONN_FLUSH] = NBD_CMD_FLUSH, [CONN_ZERO] = NBD_CMD_WRITE_ZEROES,
		[CONN_TRIM] = NBD_CMD_TRIM,
	};
	struct conn_request *r = &c->requests[number];
	struct request rq = {
		.magic = htobe32(NBD_REQUEST_MAGIC),
		.flags = htobe16(r->fua ? NBD_CMD_FLAG_FUA : 0),
		.type = htobe16(types[r->op]),
		.cookie = htobe64(number),
		.offset = htobe64(r->offset),
		.length = htobe32(r->length),
	};

	memcpy(r->heads[0], &rq, sizeof(rq));
	conn_add(c, r->heads[0], sizeof(rq));
	if (r->out_length > 0)
		conn_add(c, r->out, r->out_length);
}

static size_t
nbd_take(struct conn *c, const uint8_t *data, size_t length)
{
	struct conn_request *r;
	struct reply reply;
	bool good;

	if (length < sizeof(reply))
		return 0;
	memcpy(&reply, data, sizeof(reply));
	if (reply.magic != htobe32(NBD_SIMPLE_REPLY_MAGIC))
		errx(2, "the server sent what is no reply");
	r = conn_find(c, be64toh(reply.cookie));
	good = reply.error == 0;
	if (!good)
		snprintf(c->error_text, sizeof(c->error_text), "error %u", be32toh(reply.error));
	if (good && r->op == CONN_READ)
		conn_data(c, r->length, r->data);
	conn_done(c, r, good ? NULL : c->error_text);
	return sizeof(reply);
}

static void
nbd_close(struct conn *c)
{
	static const struct request end = { .magic = __builtin_bswap32(NBD_REQUEST_MAGIC),
					    .type = __builtin_bswap16(NBD_CMD_DISC) };

	conn_add(c, &end, sizeof(end));
}

const struct conn_protocol conn_nbd = {
	.open = nbd_open,
	.issue = nbd_issue,
	.take = nbd_take,
	.close = nbd_close,
};
