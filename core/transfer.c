/*
 * transfer.c - move the data of a request, whatever the driver's alignment.
 *
 * The good path: the request is aligned, and is one part with the caller's own memory.
 *
 * Otherwise it goes piece by piece: what is aligned as it is, the rest through a buffer.
 * A write of part of a block reads the block, changes it and writes it back, while it has
 * the block to itself (range.h). A driver may also do less than it was asked for; whatever
 * is left is then the next piece.
 *
 * What can go wrong: a driver moves nothing (a read found the device shorter than it was,
 * EIO; a write found it full, ENOSPC); a block cannot be read, so its neighbour bytes are
 * unknown and nothing of it is written; a write that was to be stable natively fails, and
 * whether it was the data or the device's flush that failed cannot be told: then the
 * export fails as it does for a flush.
 */
#include "transfer.h"

#include "blocking.h"
#include "channel.h"
#include "iov.h"
#include "loop.h"
#include "pool.h"
#include "request.h"

#include <assert.h>
#include <errno.h>
#include <limits.h>
#include <string.h>

static void transfer_step(struct pl_request *req);

static uint64_t
align_down(uint64_t n, uint64_t align)
{
	return n & ~(align - 1);
}

static uint64_t
align_up(uint64_t n, uint64_t align)
{
	return align_down(n + align - 1, align);
}

static uint64_t
min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

/* Whether the parts are FUA writes for which the driver has an alignment of its own. */
static bool
has_fua_align(const struct pl_request *req)
{
	return req->native && !req->reading && req->limits->fua_align != 0;
}

/* The alignment that the driver wants of this request's parts and of their memory. */
static uint32_t
align_of(const struct pl_request *req)
{
	return has_fua_align(req) ? req->limits->fua_align : req->limits->align;
}

static uint32_t
mem_align_of(const struct pl_request *req)
{
	return has_fua_align(req) ? req->limits->fua_mem_align : req->limits->mem_align;
}

/* ---- the caller's memory --------------------------------------------------------- */

static void
advance(struct pl_request *req, uint64_t n)
{
	req->done_to += n;
	if (req->iov != NULL)
		pl_iov_advance(&req->iov, &req->iovcnt, n);
}

/* Between the next n bytes of the request and a buffer. */
static void
copy(const struct pl_request *req, char *buffer, uint64_t n)
{
	if (req->iov == NULL)
		memset(buffer, 0, n);
	else
		pl_iov_copy(req->iov, buffer, n, !req->reading);
}

static bool
memory_aligned(const struct pl_request *req, uint32_t align)
{
	uintptr_t odd = 0;

	for (int i = 0; i < req->iovcnt; i++) {
		odd |= (uintptr_t)req->iov[i].iov_base;
		if (i < req->iovcnt - 1)
			odd |= req->iov[i].iov_len;
	}
	return (odd & (align - 1)) == 0;
}

/* Where a piece from start (aligned) that is to reach end (any) has to stop: on a block, or at
 * an odd size, but then the piece is only what lies behind the last whole block. */
static uint64_t
piece_end(const struct pl_request *req, uint64_t start, uint64_t end)
{
	uint64_t blocks_end = align_down(end, align_of(req));

	return end == req->limits->geometry.size && start == blocks_end ? end : blocks_end;
}

/* ---- pieces that go as they are -------------------------------------------------- */

/* How many of the next bytes can; 0: the next piece needs a buffer. */
static uint64_t
plain_length(const struct pl_request *req)
{
	uint64_t length = req->end - req->done_to;

	if (req->iov == NULL)
		length = min(length, PL_POOL_BUFFER);
	if (req->done_to % align_of(req) != 0)
		return 0;
	length = piece_end(req, req->done_to, req->done_to + length) - req->done_to;
	if (req->iov != NULL && !memory_aligned(req, mem_align_of(req)))
		return 0;
	/* Several pieces of memory are not taken apart, and the kernel takes so many. */
	if (req->iovcnt > 1 && (length != req->end - req->done_to || req->iovcnt > IOV_MAX))
		return 0;
	return length;
}

static unsigned
part_flags(const struct pl_request *req)
{
	if (req->reading) /* of a MODIFY, the flag is for the write */
		return req->op == PL_READ ? req->flags & PL_FUA : 0;
	return req->native ? PL_FUA : 0;
}

static enum pl_op
part_op(const struct pl_request *req)
{
	return req->reading ? PL_READ : PL_WRITE;
}

static void
transfer_end(struct pl_request *req, int error)
{
	struct pl_pool *pool = pl_loop_pool(req->channel->loop);

	if (req->bounce.buffer != NULL && pool != NULL)
		pl_pool_put(pool, req->bounce.buffer);
	req->bounce.buffer = NULL;
	req->moved(req, error);
}

/* An error says nothing about what is on the medium when only room was lacking. */
static bool
about_room(int error)
{
	return error == -ENOSPC || error == -EDQUOT || error == -EFBIG || error == -ENOMEM;
}

/* Whether the part moved anything; if not, ends the transfer. */
static bool
part_moved(struct pl_request *req, int64_t result)
{
	int error = (int)result;

	if (result > 0) {
		assert((uint64_t)result <= req->part.length);
		return true;
	}
	if (result == 0)
		error = req->part.op == PL_READ ? -EIO : -ENOSPC;
	if (req->part.op == PL_WRITE && (req->part.flags & PL_FUA) != 0 && !about_room(error))
		pl_export_fail(req->channel->export, "FUA write", error);
	transfer_end(req, error);
	return false;
}

static void
plain_done(struct pl_request *req, int64_t result)
{
	if (!part_moved(req, result))
		return;
	advance(req, (uint64_t)result);
	transfer_step(req);
}

static void
plain_part(struct pl_request *req, uint64_t length)
{
	req->part = (struct pl_part){
		.op = part_op(req),
		.flags = part_flags(req),
		.offset = req->done_to,
		.length = length,
		.iov = req->iov,
		.iovcnt = req->iovcnt,
	};
	if (req->iovcnt <= 1) {
		void *base = req->iov != NULL ? req->iov->iov_base : pl_zeroes;

		req->bounce.iov = (struct iovec){ base, length };
		req->part.iov = &req->bounce.iov;
		req->part.iovcnt = 1;
	}
	req->next = plain_done;
	pl_request_part(req);
}

/* ---- pieces that need a buffer --------------------------------------------------- */

enum { READ_HEAD = 1, READ_TAIL = 2 }; /* bounce.reads */

static void
buffer_part(struct pl_request *req, enum pl_op op, uint64_t start, uint64_t end,
	    void (*next)(struct pl_request *req, int64_t result))
{
	req->bounce.iov =
		(struct iovec){ req->bounce.buffer + (start - req->bounce.start), end - start };
	req->part = (struct pl_part){
		.op = op,
		.flags = op == part_op(req) ? part_flags(req) : 0,
		.offset = start,
		.length = end - start,
		.iov = &req->bounce.iov,
		.iovcnt = 1,
		.fixed = pl_loop_pool(req->channel->loop) != NULL,
	};
	req->next = next;
	pl_request_part(req);
}

/* The request's bytes in the buffer end here. */
static uint64_t
buffer_data_end(const struct pl_request *req)
{
	return min(req->end, req->bounce.end);
}

/* The buffer stood for [bounce.start, bounce.end) of the device, and so much was moved. */
static void
buffer_moved(struct pl_request *req, int64_t result)
{
	uint64_t moved_to = min(req->bounce.start + (uint64_t)result, buffer_data_end(req));

	if (moved_to <= req->done_to) { /* only neighbours' bytes */
		transfer_end(req, -EIO);
		return;
	}
	if (req->reading)
		copy(req, req->bounce.buffer + (req->done_to - req->bounce.start),
		     moved_to - req->done_to);
	advance(req, moved_to - req->done_to);
	transfer_step(req);
}

static void
buffer_done(struct pl_request *req, int64_t result)
{
	if (part_moved(req, result))
		buffer_moved(req, result);
}

static void rmw_step(struct pl_request *req);

static void
rmw_read_done(struct pl_request *req, int64_t result)
{
	if (!part_moved(req, result))
		return;
	if ((uint64_t)result != req->part.length) {
		transfer_end(req, -EIO);
		return;
	}
	req->bounce.reads &= req->bounce.reads - 1;
	rmw_step(req);
}

/* Reads the blocks that the write covers in part, then writes all. */
static void
rmw_step(struct pl_request *req)
{
	uint32_t align = align_of(req);
	uint64_t data_end = buffer_data_end(req);
	uint64_t block;

	if (req->bounce.reads != 0) {
		block = (req->bounce.reads & READ_HEAD) != 0 ? req->bounce.start
							     : align_down(data_end, align);
		buffer_part(req, PL_READ, block, min(block + align, req->bounce.end),
			    rmw_read_done);
		return;
	}
	copy(req, req->bounce.buffer + (req->done_to - req->bounce.start), data_end - req->done_to);
	buffer_part(req, PL_WRITE, req->bounce.start, req->bounce.end, buffer_done);
}

static void
buffer_step(struct pl_request *req)
{
	struct pl_pool *pool = pl_loop_pool(req->channel->loop);
	uint32_t align = align_of(req);

	if (req->bounce.buffer == NULL && pool != NULL && !pl_pool_get(pool, req, buffer_step))
		return;
	if (req->bounce.buffer == NULL)
		req->bounce.buffer = pl_blocking_buffer();
	if (req->bounce.buffer == NULL) {
		transfer_end(req, -ENOMEM);
		return;
	}
	req->bounce.start = align_down(req->done_to, align);
	req->bounce.end = min(min(align_up(req->end, align), req->limits->geometry.size),
			      req->bounce.start + PL_POOL_BUFFER);
	req->bounce.end = piece_end(req, req->bounce.start, req->bounce.end);
	if (req->reading) {
		buffer_part(req, PL_READ, req->bounce.start, req->bounce.end, buffer_done);
		return;
	}
	req->bounce.reads = 0;
	if (req->done_to > req->bounce.start)
		req->bounce.reads |= READ_HEAD;
	if (buffer_data_end(req) < req->bounce.end &&
	    (req->bounce.reads == 0 || align_down(buffer_data_end(req), align) > req->bounce.start))
		req->bounce.reads |= READ_TAIL;
	rmw_step(req);
}

/* ---- all of it ------------------------------------------------------------------- */

static void
transfer_step(struct pl_request *req)
{
	uint64_t length;

	if (req->done_to == req->end) {
		transfer_end(req, 0);
		return;
	}
	length = plain_length(req);
	if (length > 0)
		plain_part(req, length);
	else
		buffer_step(req);
}

void
pl_read_run(struct pl_request *req, void (*then)(struct pl_request *req, int error))
{
	req->reading = true;
	req->moved = then;
	transfer_step(req);
}

void
pl_read_medium(struct pl_request *req)
{
	pl_read_run(req, pl_request_data_done);
}

void
pl_read_start(struct pl_request *req)
{
	/* FUA: what was written before is made stable first, unless nothing can be. */
	if (req->stable && (req->channel->export->capabilities & PL_CAP_FUA) != 0)
		pl_request_commit(req);
	else
		pl_read_medium(req);
}

void
pl_write_run(struct pl_request *req, void (*then)(struct pl_request *req, int error))
{
	req->reading = false;
	req->moved = then;
	transfer_step(req);
}

void
pl_write_take_range(struct pl_request *req, void (*go)(struct pl_request *req))
{
	struct pl_export *ex = req->channel->export;
	const struct pl_driver_limits *l = req->limits;
	uint32_t unit = l->fua_window != 0 ? l->fua_window : l->align;
	uint64_t start = align_down(req->offset, unit), end = align_up(req->end, unit);
	enum pl_range_mode mode = PL_RANGE_SHARED;

	if (l->fua_window != 0 && req->native)
		mode = PL_RANGE_PAST;
	if (((req->offset | req->end) & (l->align - 1)) != 0 || req->op == PL_MODIFY)
		mode = PL_RANGE_ALONE;
	if (req->end > l->tail) {
		/* To the end of the world: the export may have grown since. */
		mode = PL_RANGE_ALONE;
		start = min(start, l->tail);
		end = UINT64_MAX;
	}
	if (pl_ranges_take(&ex->ranges, req, start, end, mode, go))
		go(req);
}

static void
write_go(struct pl_request *req)
{
	pl_write_run(req, pl_request_data_done);
}

void
pl_write_start(struct pl_request *req)
{
	pl_write_take_range(req, write_go);
}
