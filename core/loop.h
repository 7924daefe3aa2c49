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

bool pl_loop_is_blocking(const struct pl_loop *loop);

/* Ring loops: runs what is ready, or sleeps until something is. */
void pl_loop_turn(struct pl_loop *loop);

/* NULL on a blocking loop, where each thread has a buffer of its own. */
struct pl_pool *pl_loop_pool(struct pl_loop *loop);

#endif
