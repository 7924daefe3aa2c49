/*
 * range.h - keep read-modify-write away from its neighbours' writes.
 *
 * On an export whose medium changes whole blocks only, every write holds its range:
 * shared with other writes, or exclusive while it reads, changes and writes back a block.
 * Where the medium takes any byte (align 1), nobody comes here.
 */
#ifndef PL_RANGE_H
#define PL_RANGE_H

#include "platter.h"

#include <pthread.h>

struct pl_ranges {
	pthread_mutex_t lock;
	struct pl_request *held;         /* any order */
	struct pl_request *first, *last; /* who waits, oldest first */
	unsigned exclusive;              /* held or wanted */
};

void pl_ranges_init(struct pl_ranges *r);
void pl_ranges_destroy(struct pl_ranges *r); /* asserts that it is idle */

/*
 * Takes [start, end) for req. Returns true when it is held at once; else resume(req)
 * follows where req runs, when it is.
 */
bool pl_ranges_take(struct pl_ranges *r, struct pl_request *req, uint64_t start, uint64_t end,
		    bool exclusive, void (*resume)(struct pl_request *req));

/* Does nothing where req holds nothing. */
void pl_ranges_give(struct pl_ranges *r, struct pl_request *req);

#endif
