/*
 * dry-loop.c - a loop without a ring.
 *
 * The good path: a turn runs what was posted and what was put off; when there is none of either,
 * one io comes to its end: the first of those that can, or the one that dry_next says. A turn that
 * finds nothing to do at all is one that would wait for ever, which is an error.
 */
#include "dry.h"

#include "blocking.h"
#include "loop.h"
#include "pool.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

struct pl_loop {
	bool blocking, stopped;
	struct pl_pool *pool;
	struct pl_work *posted, **posted_last;
	struct pl_work *later, **later_last;
	struct pl_io *under_way, **under_way_last;
};

#define UNDER_WAY 64 /* of those that are, so many may be next */

struct dry_wire dry_wire;
unsigned dry_next;

void
dry_feed(const uint8_t *data, size_t length, size_t piece)
{
	dry_wire.to_server = data;
	dry_wire.left = length;
	dry_wire.piece = piece;
	dry_wire.length = 0;
}

/* ---- work ------------------------------------------------------------------------ */

void
pl_loop_post(struct pl_loop *loop, struct pl_work *work)
{
	work->next = NULL;
	*loop->posted_last = work;
	loop->posted_last = &work->next;
}

void
pl_loop_later(struct pl_loop *loop, struct pl_work *work)
{
	work->next = NULL;
	*loop->later_last = work;
	loop->later_last = &work->next;
}

static bool
run_all(struct pl_work **first, struct pl_work ***last)
{
	struct pl_work *work = *first, *next;
	bool any = work != NULL;

	*first = NULL;
	*last = first;
	for (; work != NULL; work = next) {
		next = work->next;
		work->run(work);
	}
	return any;
}

/* ---- io -------------------------------------------------------------------------- */

static size_t
moved(const struct iovec *iov, int iovcnt, uint8_t *wire, size_t most, bool to_wire)
{
	size_t done = 0;

	for (int i = 0; i < iovcnt && done < most; i++) {
		size_t n = iov[i].iov_len < most - done ? iov[i].iov_len : most - done;

		if (n > 0 && to_wire)
			memcpy(wire + done, iov[i].iov_base, n);
		else if (n > 0)
			memcpy(iov[i].iov_base, wire + done, n);
		done += n;
	}
	return done;
}

static int64_t
receive(const struct pl_io *io)
{
	size_t most = dry_wire.piece < dry_wire.left ? dry_wire.piece : dry_wire.left;
	size_t n = moved(io->iov, io->iovcnt, (uint8_t *)dry_wire.to_server, most, false);

	dry_wire.to_server += n;
	dry_wire.left -= n;
	return (int64_t)n;
}

static int64_t
transmit(const struct pl_io *io)
{
	size_t all = 0, most;

	for (int i = 0; i < io->iovcnt; i++)
		all += io->iov[i].iov_len;
	most = dry_wire.piece < all ? dry_wire.piece : all;
	if (most > dry_wire.room - dry_wire.length) {
		dry_wire.room = 2 * dry_wire.room + most;
		dry_wire.from_server = realloc(dry_wire.from_server, dry_wire.room);
		assert(dry_wire.from_server != NULL);
	}
	moved(io->iov, io->iovcnt, dry_wire.from_server + dry_wire.length, most, true);
	dry_wire.length += most;
	return (int64_t)most;
}

static void
io_done(struct pl_work *work)
{
	struct pl_io *io = (struct pl_io *)((char *)work - offsetof(struct pl_io, work));

	io->done(io, io->result);
}

static void
post_done(struct pl_loop *loop, struct pl_io *io, int64_t result)
{
	io->result = result;
	io->work.run = io_done;
	pl_loop_post(loop, &io->work);
}

void
pl_loop_io(struct pl_loop *loop, struct pl_io *io)
{
	if (loop->blocking) {
		pl_blocking_io(io);
		return;
	}
	switch (io->kind) {
	case PL_IO_CALL:
	case PL_IO_RECV:
	case PL_IO_SEND:
	case PL_IO_DELAY:
		io->next = NULL;
		*loop->under_way_last = io;
		loop->under_way_last = &io->next;
		break;
	default: assert(!"there are no files here");
	}
}

/* False: it is not one of those under way. */
static bool
take_out(struct pl_loop *loop, struct pl_io *io)
{
	for (struct pl_io **at = &loop->under_way; *at != NULL; at = &(*at)->next) {
		if (*at != io)
			continue;
		*at = io->next;
		if (*at == NULL)
			loop->under_way_last = at;
		return true;
	}
	return false;
}

void
pl_loop_cancel(struct pl_loop *loop, struct pl_io *io)
{
	if (take_out(loop, io))
		post_done(loop, io, -ECANCELED);
}

static bool
may_end(const struct pl_io *io)
{
	if (io->kind == PL_IO_RECV)
		return dry_wire.left > 0 || !dry_wire.stays;
	return dry_wire.left == 0 || !dry_wire.lazy;
}

/* NULL: there is none. at_last: nothing else can happen. Calls are made in order. */
static struct pl_io *
next_io(const struct pl_loop *loop, bool at_last)
{
	struct pl_io *can[UNDER_WAY];
	unsigned count = 0;
	bool calls = false;

	for (struct pl_io *io = loop->under_way; io != NULL && count < UNDER_WAY; io = io->next) {
		if ((at_last || may_end(io)) && (io->kind != PL_IO_CALL || !calls))
			can[count++] = io;
		calls |= io->kind == PL_IO_CALL;
	}
	return count > 0 ? can[dry_next % count] : NULL;
}

static void
end_one(struct pl_loop *loop)
{
	struct pl_io *io = next_io(loop, false);
	int64_t result;

	if (io == NULL)
		io = next_io(loop, true);
	assert(io != NULL);
	take_out(loop, io);
	switch (io->kind) {
	case PL_IO_RECV: result = receive(io); break;
	case PL_IO_SEND: result = transmit(io); break;
	case PL_IO_CALL: result = io->call(io); break;
	default: result = 0;
	}
	io->done(io, result);
}

/* ---- turns ----------------------------------------------------------------------- */

bool
dry_is_idle(const struct pl_loop *loop)
{
	return loop->posted == NULL && loop->later == NULL && loop->under_way == NULL;
}

void
pl_loop_turn(struct pl_loop *loop)
{
	bool ran = run_all(&loop->posted, &loop->posted_last);

	while (run_all(&loop->later, &loop->later_last))
		ran = true;
	if (!ran)
		end_one(loop);
}

void
pl_loop_run(struct pl_loop *loop)
{
	while (!loop->stopped)
		pl_loop_turn(loop);
	loop->stopped = false;
}

void
pl_loop_stop(struct pl_loop *loop)
{
	loop->stopped = true;
}

void
pl_loop_poll(struct pl_loop *loop, bool on)
{
	(void)loop;
	(void)on;
}

/* ---- making and ending ----------------------------------------------------------- */

int
pl_loop_new(struct pl_loop **out, struct pl_error *err)
{
	struct pl_loop *loop = calloc(1, sizeof *loop);
	int error = loop != NULL ? pl_pool_new(&loop->pool) : -ENOMEM;

	if (error != 0) {
		free(loop);
		return pl_error_set(err, error, "loop");
	}
	loop->posted_last = &loop->posted;
	loop->later_last = &loop->later;
	loop->under_way_last = &loop->under_way;
	*out = loop;
	return 0;
}

int
pl_loop_new_blocking(struct pl_loop **out, struct pl_error *err)
{
	struct pl_loop *loop = calloc(1, sizeof *loop);

	if (loop == NULL)
		return pl_error_set(err, -ENOMEM, "loop");
	loop->blocking = true;
	*out = loop;
	return 0;
}

void
pl_loop_free(struct pl_loop *loop)
{
	if (!loop->blocking) {
		assert(dry_is_idle(loop));
		pl_pool_free(loop->pool);
	}
	free(loop);
}

bool
pl_loop_is_blocking(const struct pl_loop *loop)
{
	return loop->blocking;
}

struct pl_pool *
pl_loop_pool(struct pl_loop *loop)
{
	return loop->pool;
}

int
pl_loop_add_file(struct pl_loop *loop, int fd)
{
	(void)loop;
	(void)fd;
	return -1;
}

void
pl_loop_remove_file(struct pl_loop *loop, int slot)
{
	(void)loop;
	(void)slot;
}
