/*
 * range.h - keep writes apart that would spoil each other.
 *
 * Every request that changes data holds its range: shared with others, or alone while it
 * reads, changes and writes back (a MODIFY; a write of part of a block, on a medium that
 * changes whole ones). Where FUA writes pass by a cache that others go through, the two
 * kinds never hold ranges that overlap.
 */
#ifndef PL_RANGE_H
#define PL_RANGE_H

#include "platter.h"

#include <pthread.h>

enum pl_range_mode {
	PL_RANGE_SHARED, /* with its like */
	PL_RANGE_PAST,   /* with its like, which pass by the cache */
	PL_RANGE_ALONE,
};

struct pl_ranges {
	/* While strict is 0, whoever is SHARED is only counted, in fast. Atomic. */
	unsigned fast;   /* SHARED ones that hold and are in no list */
	unsigned strict; /* PAST and ALONE ones that hold or want */

	pthread_mutex_t lock;
	struct pl_request *held;            /* any order */
	struct pl_request *first, *last;    /* who waits, oldest first */
	unsigned count[PL_RANGE_ALONE + 1]; /* held or wanted by those in a list, by mode */
};

void pl_ranges_init(struct pl_ranges *r);
void pl_ranges_destroy(struct pl_ranges *r); /* asserts that it is idle */

/*
 * Takes [start, end) for req. Returns true when it is held at once; else resume(req)
 * follows where req runs, when it is.
 */
bool pl_ranges_take(struct pl_ranges *r, struct pl_request *req, uint64_t start, uint64_t end,
		    enum pl_range_mode mode, void (*resume)(struct pl_request *req));

/* Does nothing where req holds nothing. */
void pl_ranges_give(struct pl_ranges *r, struct pl_request *req);

#endif
