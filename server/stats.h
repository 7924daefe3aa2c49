/*
 * stats.h - what was asked of an export, how it ended, and how long it took.
 *
 * One struct for each export and worker: written by that worker's thread alone, read by
 * any. Nothing here is locked.
 */
#ifndef STATS_H
#define STATS_H

#include <stdint.h>
#include <time.h>

enum stats_kind {
	STATS_READ,
	STATS_WRITE,
	STATS_WRITE_FUA,
	STATS_FLUSH,
	STATS_TRIM,
	STATS_CACHE,
	STATS_ZERO,
	STATS_EXTENTS,
	STATS_KINDS,
};

/* Errors by class, as a client is told. */
enum stats_error {
	STATS_EIO,
	STATS_ENOSPC,
	STATS_EINVAL,
	STATS_EPERM,
	STATS_ESHUTDOWN,
	STATS_EOTHER,
	STATS_ERRORS,
};

/* Latencies in buckets of a quarter of an octave, from 1.024 us on: the first has all below,
 * the last all above (25.8 s). */
#define STATS_BUCKETS 100

struct stats {
	struct stats_op {
		uint64_t count, bytes, nanoseconds;
		uint64_t errors[STATS_ERRORS];
		uint64_t latency[STATS_BUCKETS];
	} op[STATS_KINDS];
};

/* A request has been answered. error: 0 or a negative errno; bytes count when it is 0. */
void stats_count(struct stats *s, enum stats_kind kind, uint64_t bytes, int error,
		 uint64_t nanoseconds);

/* Adds `from` to `sum`; from any thread. */
void stats_add(struct stats *sum, const struct stats *from);

const char *stats_kind_name(enum stats_kind kind);    /* "read", "write_fua", ... */
const char *stats_error_name(enum stats_error error); /* "EIO", ... */
/* Nanoseconds: latencies in it are below that. Of the last: UINT64_MAX. */
uint64_t stats_bucket_end(unsigned bucket);
/* The latency in nanoseconds that `part` (0 to 1) of the operations stayed below, to the end
 * of its bucket; of the last bucket, its start. 0: there were none. */
uint64_t stats_percentile(const struct stats_op *op, double part);

/* CLOCK_MONOTONIC in nanoseconds. */
static inline uint64_t
stats_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

#endif
