/*
 * metrics.h - counters as Prometheus text, and the HTTP server for it.
 *
 * The server is libmicrohttpd on the main thread's loop. See platterd(8), "METRICS".
 */
#ifndef METRICS_H
#define METRICS_H

#include "platter.h"

struct catalog;
struct clients;
struct metrics;
struct targets;

/* What the page is made of. */
struct metrics_sources {
	struct catalog *catalog;
	struct targets *targets; /* or NULL */
	struct clients *clients;
	uint64_t started; /* stats_now() then */
};

/* The page; free() it. NULL: no memory. */
char *metrics_page(const struct metrics_sources *sources);

/* Errors: -ENOMEM. */
int metrics_new(struct metrics **metrics, struct pl_loop *loop,
		const struct metrics_sources *sources, struct pl_error *err);
void metrics_start(struct metrics *metrics);        /* serves what metrics_take() brings */
void metrics_take(struct metrics *metrics, int fd); /* a connected socket, over */
/* Closes all; `stopped` follows on the loop, then metrics_free() is allowed. */
void metrics_stop(struct metrics *metrics, void (*stopped)(void *user), void *user);
void metrics_free(struct metrics *metrics); /* after that, or if it was never started */

#endif
