/*
 * load-nbd.c - NBD, simple replies only.
 *
 * Source: NBD proto.md, "Newstyle negotiation" and "Transmission".
 */
#include "load.h"

#include "wire.h"

#include <err.h>
#include <string.h>

static uint64_t
nbd_open(struct conn *c, const char *export_name)
{
	struct choice choice = choose_default_export();
	struct iovec to_send[] = { { &choice, sizeof(choice) },
				   { (char *)export_name, strlen(export_name) } };
	const ssize_t length = (ssize_t)(sizeof(choice) + strlen(export_name));
	struct greeting greeting;
	struct chosen chosen;
	int fd = load_fd(c);

	load_get(fd, &greeting, sizeof(greeting));
	if (!is_newstyle(&greeting))
		errx(1, "this is not an NBD server");
	choice.length = htobe32((uint32_t)strlen(export_name));
	if (writev(fd, to_send, 2) != length)
		err(1, "send");
	load_get(fd, &chosen, sizeof(chosen));
	if (by_fua && (be16toh(chosen.flags) & CAN_FUA) == 0)
		errx(1, "the server does not offer FUA");
	if (by_flush && (be16toh(chosen.flags) & CAN_FLUSH) == 0)
		errx(1, "the server does not offer FLUSH");
	return be64toh(chosen.size);
}

static void
nbd_issue(struct conn *c, struct slot *s)
{
	static const uint16_t types[] = { CMD_READ, CMD_WRITE, CMD_FLUSH };
	bool flush = s->kind == LOAD_FLUSH;
	struct request rq = {
		.magic = htobe32(REQUEST_MAGIC),
		.flags = htobe16(by_fua ? CMD_FLAG_FUA : 0),
		.type = htobe16(types[s->kind]),
		.cookie = htobe64(s->number),
		.offset = htobe64(flush ? 0 : s->offset),
		.length = htobe32(flush ? 0 : (uint32_t)bs),
	};

	memcpy(s->heads[0], &rq, sizeof(rq));
	load_add(c, s->heads[0], sizeof(rq));
	if (s->kind == LOAD_WRITE)
		load_add(c, payload, bs);
}

static size_t
nbd_take(struct conn *c, const uint8_t *data, size_t length, uint64_t time)
{
	struct reply reply;

	if (length < sizeof(reply))
		return 0;
	memcpy(&reply, data, sizeof(reply));
	if (reply.magic != htobe32(REPLY_MAGIC))
		errx(1, "the server sent what is no reply");
	if (reply.error == 0 && !writes)
		load_skip(c, bs);
	load_replied(c, load_slot(c, be64toh(reply.cookie)), reply.error != 0 ? "an error" : NULL,
		     time);
	return sizeof(reply);
}

static void
nbd_end(struct conn *c)
{
	static const struct request end = { .magic = __builtin_bswap32(REQUEST_MAGIC),
					    .type = __builtin_bswap16(CMD_DISC) };

	load_add(c, &end, sizeof(end));
}

const struct protocol protocol_nbd = {
	.name = "nbd",
	.open = nbd_open,
	.issue = nbd_issue,
	.take = nbd_take,
	.end = nbd_end,
};
