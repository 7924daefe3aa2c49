/*
 * blocking.h - what a thread that blocks has of its own: a small ring, made when it is
 * first wanted, and a buffer.
 *
 * Operations are plain system calls, but for those that want the ring (pl_io.by_ring):
 * direct writes that are to be stable. On a raw device the synchronous pwritev2(RWF_DSYNC)
 * would add a flush to each; on a file it costs a third more of the thread's time (see
 * docs/HACKING.md, "Facts about the kernel").
 */
#ifndef PL_BLOCKING_H
#define PL_BLOCKING_H

#include "platter-driver.h"

/* Carries io out and calls io->done. */
void pl_blocking_io(struct pl_io *io);

/* The thread's buffer of PL_POOL_BUFFER bytes, NULL when there is no memory. */
char *pl_blocking_buffer(void);

#endif
