/*
 * commit.h - make finished writes durable, many at a time.
 *
 * A request that is to be stable, on a driver that does not make it so by itself, joins
 * the next group; one flush that starts after it joined then pays for the whole group.
 * There is one for each export, and all its channels share it. See docs/HACKING.md,
 * "The life of a FUA write".
 */
#ifndef PL_COMMIT_H
#define PL_COMMIT_H

#include "platter.h"

#include <pthread.h>

struct pl_commit {
	pthread_mutex_t lock;
	struct pl_request *next, **next_last; /* joined since the flush began */
	struct pl_request *current;           /* who the running flush will answer */
	bool flushing;
	uint64_t committed, groups;
};

void pl_commit_init(struct pl_commit *c);
void pl_commit_destroy(struct pl_commit *c); /* asserts that it is idle */

/* Takes req over: pl_request_committed() is called, where req runs, once its group is
 * durable or has failed. */
void pl_commit_join(struct pl_commit *c, struct pl_request *req);

#endif
