/*
 * torture-target.h - what is tortured: an NBD server, an iSCSI target, a file or a device.
 *
 * A connection belongs to one thread. Operations are submitted, and come back by on_done from
 * within submit or wait. A connection on which something fails as a whole is over: submit or wait
 * says so, and then there is nothing to do but to close it; what was under way comes to on_done
 * with an error until it is closed, or never does.
 */
#ifndef TORTURE_TARGET_H
#define TORTURE_TARGET_H

#include "platter.h"

enum torture_kind { TORTURE_READ, TORTURE_WRITE, TORTURE_ZERO, TORTURE_TRIM, TORTURE_FLUSH };

const char *torture_kind_name(enum torture_kind kind); /* "WRITE" */

struct torture_op {
	enum torture_kind kind;
	bool fua; /* only where the target can */
	uint64_t offset, length;
	void *data; /* READ, WRITE */
	void (*on_done)(struct torture_op *op, int error);
	unsigned tries; /* the connection's */
};

enum torture_can {
	CAN_FLUSH = 1 << 0,
	CAN_FUA = 1 << 1, /* WRITE with it */
	CAN_ZERO = 1 << 2,
	CAN_TRIM = 1 << 3,
	CAN_FUA_ZERO = 1 << 4,  /* ZERO and TRIM with it */
	CAN_SHARE = 1 << 5,     /* FLUSH holds for what other connections wrote, too */
	CAN_AT_ONCE = 1 << 6,   /* every write is durable when it is answered */
	CAN_NOT_WRITE = 1 << 7, /* read-only */
};

struct torture_info {
	uint64_t size;
	uint32_t unit;  /* a power of two, from 512 on: what is written whole or not at all */
	uint32_t align; /* of what is asked for: CELL or unit */
	uint32_t max;   /* length of a READ or WRITE */
	unsigned depth; /* operations at once on a connection */
	unsigned can;
};

enum torture_open {
	OPEN_READ,
	OPEN_FIRST, /* to write; nobody else may use the target, where that can be known */
	OPEN_MORE,  /* to write, beside that one */
};

struct torture_conn;

struct torture_transport {
	const char *scheme; /* how a target's name begins */
	int (*open)(const char *target, enum torture_open how, unsigned timeout_s,
		    struct torture_conn **c, struct torture_info *info, struct pl_error *err);
	int (*submit)(struct torture_conn *c, struct torture_op *op);
	int (*wait)(struct torture_conn *c, int timeout_ms); /* for anything to happen */
	void (*close)(struct torture_conn *c);
};

extern const struct torture_transport torture_nbd, torture_iscsi, torture_file;

/* ---- torture-target.c: one operation at a time ----------------------------------- */

struct target {
	const struct torture_transport *transport;
	struct torture_conn *conn;
	struct torture_info info;
	unsigned timeout_s;
	struct torture_op op;
	int result;
	bool done;
};

/* By what its name begins with. */
int target_open(struct target *t, const char *name, unsigned timeout_s, enum torture_open how,
		struct pl_error *err);
void target_close(struct target *t); /* also one that is closed */
/* Carries out op, of which on_done is not used. Returns what it ends with, or -ENOTCONN where the
 * connection does; it is closed then, so that nothing comes to an operation that is over. */
int target_run(struct target *t, const struct torture_op *op);
int target_read(struct target *t, uint64_t offset, uint64_t length, void *data);

static inline uint64_t
at_most(uint64_t length, uint64_t limit)
{
	return length < limit ? length : limit;
}

#endif
