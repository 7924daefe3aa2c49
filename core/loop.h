/*
 * loop.h - the core's side of a loop; the rest is in platter.h and platter-driver.h.
 *
 * A ring loop is one thread and one io_uring: nothing in it is locked but the list of
 * posted work. A blocking loop has neither: its callers' threads do the work themselves
 * (blocking.c).
 */
#ifndef PL_LOOP_H
#define PL_LOOP_H

#include "platter-driver.h"

#include <errno.h>

/* Whether io came to nothing and is to be started again. Not a sync: what an interrupted
 * one has already reported is not reported again. */
static inline bool
pl_io_again(const struct pl_io *io, int64_t result)
{
	return (result == -EINTR || result == -EAGAIN) && io->kind != PL_IO_SYNC;
}

bool pl_loop_is_blocking(const struct pl_loop *loop);

/* Ring loops: runs what is ready, or sleeps until something is. */
void pl_loop_turn(struct pl_loop *loop);

/* NULL on a blocking loop, where each thread has a buffer of its own. */
struct pl_pool *pl_loop_pool(struct pl_loop *loop);

#endif
