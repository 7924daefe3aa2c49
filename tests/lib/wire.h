/*
 * wire.h - what NBD puts on the wire, for clients without a library.
 *
 * All numbers are big-endian. Source: NBD proto.md, "Newstyle negotiation" and
 * "Transmission".
 */
#ifndef WIRE_H
#define WIRE_H

#include <endian.h>
#include <stdbool.h>
#include <stdint.h>

#define REQUEST_MAGIC 0x25609513u
#define REPLY_MAGIC   0x67446698u

enum {
	CMD_READ = 0,
	CMD_WRITE = 1,
	CMD_DISC = 2,
	CMD_FLUSH = 3,
	CMD_TRIM = 4,
	CMD_WRITE_ZEROES = 6
};
enum { CMD_FLAG_FUA = 1 };
enum { CAN_FLUSH = 1 << 2, CAN_FUA = 1 << 3 };

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

/* What the server says first, what this client answers, and what it gets for that: the
 * export that has no name, by the one option that has no reply of its own. */
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

enum { OPT_EXPORT_NAME = 1, CLIENT_FIXED_NO_ZEROES = 3 };

#define NEWSTYLE_MAGIC   0x4e42444d41474943u
#define NEWSTYLE_VERSION 0x49484156454f5054u

static inline bool
is_newstyle(const struct greeting *g)
{
	return be64toh(g->magic) == NEWSTYLE_MAGIC && be64toh(g->version) == NEWSTYLE_VERSION;
}

static inline struct choice
choose_default_export(void)
{
	return (struct choice){ .client_flags = htobe32(CLIENT_FIXED_NO_ZEROES),
				.version = htobe64(NEWSTYLE_VERSION),
				.option = htobe32(OPT_EXPORT_NAME) };
}

#endif
