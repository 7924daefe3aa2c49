/*
 * zero.c - zeroes without sending them, and blocks nobody needs any more.
 *
 * The driver zeroes the whole units of its zero_align; the edges are written. That comes
 * first, so that a driver that cannot (EOPNOTSUPP) has changed nothing yet: PL_FAST is
 * then answered with ENOTSUP, and everyone else gets zeroes that are written.
 */
#include "zero.h"

#include "channel.h"
#include "request.h"
#include "transfer.h"

#include <errno.h>

/* [zero.start, zero.stop): the whole units in the request. Returns false if there is none. */
static bool
whole_units(struct pl_request *req)
{
	const struct pl_driver_limits *l = req->limits;
	uint64_t end = req->offset + req->length;

	req->zero.start = (req->offset + l->zero_align - 1) & ~((uint64_t)l->zero_align - 1);
	req->zero.stop = end == l->geometry.size ? end : end & ~((uint64_t)l->zero_align - 1);
	return req->zero.start < req->zero.stop;
}

static void
driver_part(struct pl_request *req, enum pl_op op,
	    void (*next)(struct pl_request *req, int64_t result))
{
	req->part = (struct pl_part){
		.op = op,
		.flags = req->flags & (PL_NO_HOLE | PL_FAST),
		.offset = req->zero.start,
		.length = req->zero.stop - req->zero.start,
	};
	req->next = next;
	pl_request_part(req);
}

static void
zero_tail(struct pl_request *req, int error)
{
	req->done_to = req->zero.stop;
	req->end = req->offset + req->length;
	if (error != 0)
		pl_request_data_done(req, error);
	else
		pl_write_run(req, pl_request_data_done);
}

static void
zero_units_done(struct pl_request *req, int64_t result)
{
	if (result == -EOPNOTSUPP && (req->flags & PL_FAST) == 0) {
		pl_write_run(req, pl_request_data_done);
	} else if (result != 0) {
		pl_request_data_done(req, (int)result);
	} else {
		req->end = req->zero.start;
		pl_write_run(req, zero_tail);
	}
}

static void
zero_go(struct pl_request *req)
{
	bool can = (req->limits->capabilities & PL_CAP_ZERO) != 0;

	if (!can && (req->flags & PL_FAST) != 0)
		pl_request_data_done(req, -ENOTSUP);
	else if (can && whole_units(req))
		driver_part(req, PL_ZERO, zero_units_done);
	else
		pl_write_run(req, pl_request_data_done);
}

void
pl_zero_start(struct pl_request *req)
{
	req->iov = NULL;
	req->iovcnt = 0;
	pl_write_take_range(req, zero_go);
}

static void
trim_done(struct pl_request *req, int64_t result)
{
	/* TRIM is advice: a driver that cannot has done all that was asked. */
	pl_request_data_done(req, result == -EOPNOTSUPP ? 0 : (int)result);
}

static void
trim_go(struct pl_request *req)
{
	if (whole_units(req))
		driver_part(req, PL_TRIM, trim_done);
	else
		pl_request_data_done(req, 0);
}

void
pl_trim_start(struct pl_request *req)
{
	pl_write_take_range(req, trim_go);
}
