/*
 * dry.h - a server without a kernel and without a second thread, for fuzzers.
 *
 * dry-loop.c stands in for core/loop.c, dry-worker.c for server/worker.c. Nothing waits: what a
 * connection receives and sends is memory, time passes and calls that may block are made when there
 * is nothing else to do. So an input takes the same way each time, and thousands of
 * connections a second can be served.
 */
#ifndef DRY_H
#define DRY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The one connection there is, as its peer sees it. */
struct dry_wire {
	const uint8_t *to_server;
	size_t left;  /* of that; then the peer has ended */
	size_t piece; /* bytes at most that one receive or send moves */
	bool stays;   /* at the end the peer waits until the server has nothing left to do */
	bool lazy;    /* it reads what it is sent when it has nothing more to say */
	uint8_t *from_server;
	size_t length, room; /* of that; it grows */
};
extern struct dry_wire dry_wire;

/* Which of those that can comes to its end next, counted round; 0: the first. */
extern unsigned dry_next;

struct pl_loop;
bool dry_is_idle(const struct pl_loop *loop); /* nothing is left to do */

void dry_feed(const uint8_t *data, size_t length, size_t piece);

#endif
