/*
 * blocking.h - what a thread that blocks has of its own: a small ring, made when it is
 * first wanted, and a buffer.
 *
 * Most operations are the plain system call. A write that is to be stable natively goes
 * through the ring: the synchronous pwritev2(RWF_DSYNC) would add a flush of the whole
 * device to each FUA write (see docs/HACKING.md, "Facts about the kernel").
 */
#ifndef PL_BLOCKING_H
#define PL_BLOCKING_H

#include "platter-driver.h"

/* Carries io out and calls io->done. */
void pl_blocking_io(struct pl_io *io);

/* The thread's buffer of PL_POOL_BUFFER bytes, NULL when there is no memory. */
char *pl_blocking_buffer(void);

#endif
