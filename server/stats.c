/* stats.c - what was asked of an export, how it ended, and how long it took. */
#include "stats.h"

#include <assert.h>
#include <errno.h>
#include <stddef.h>

/* ---- counting -------------------------------------------------------------------- */

/* One thread writes, so that adding needs no locked instruction; readers see whole numbers. */
static inline void
grow(uint64_t *counter, uint64_t n)
{
	__atomic_store_n(counter, __atomic_load_n(counter, __ATOMIC_RELAXED) + n, __ATOMIC_RELAXED);
}

/* Bucket 0 ends at 2^10 ns; each octave from there on is four buckets. */
static unsigned
bucket_of(uint64_t nanoseconds)
{
	uint64_t n = nanoseconds >> 8;
	unsigned octave, bucket;

	if (n < 4)
		return 0;
	octave = 63 - (unsigned)__builtin_clzll(n);
	bucket = 4 * (octave - 2) + (unsigned)(n >> (octave - 2) & 3) + 1;
	return bucket < STATS_BUCKETS ? bucket : STATS_BUCKETS - 1;
}

/* As nbd/reply.c tells it to the client: what it has no word for is an I/O error. */
static enum stats_error
class_of(int error)
{
	switch (error) {
	case -ENOSPC:
	case -EDQUOT:
	case -EFBIG: return STATS_ENOSPC;
	case -EINVAL: return STATS_EINVAL;
	case -EPERM:
	case -EROFS: return STATS_EPERM;
	case -ESHUTDOWN: return STATS_ESHUTDOWN;
	case -ENOMEM:
	case -EOVERFLOW:
	case -ENOTSUP: return STATS_EOTHER;
	default: return STATS_EIO;
	}
}

void
stats_count(struct stats *s, enum stats_kind kind, uint64_t bytes, int error, uint64_t nanoseconds)
{
	struct stats_op *op = &s->op[kind];

	grow(&op->count, 1);
	grow(&op->nanoseconds, nanoseconds);
	grow(&op->latency[bucket_of(nanoseconds)], 1);
	if (error == 0)
		grow(&op->bytes, bytes);
	else
		grow(&op->errors[class_of(error)], 1);
}

void
stats_add(struct stats *sum, const struct stats *from)
{
	static_assert(sizeof *sum % sizeof(uint64_t) == 0, "nothing but counters");
	const uint64_t *counter = (const uint64_t *)from;
	uint64_t *total = (uint64_t *)sum;

	for (size_t i = 0; i < sizeof *sum / sizeof *total; i++)
		total[i] += __atomic_load_n(&counter[i], __ATOMIC_RELAXED);
}

/* ---- reading --------------------------------------------------------------------- */

const char *
stats_kind_name(enum stats_kind kind)
{
	static const char *const names[STATS_KINDS] = {
		[STATS_READ] = "read",           [STATS_WRITE] = "write",
		[STATS_WRITE_FUA] = "write_fua", [STATS_FLUSH] = "flush",
		[STATS_TRIM] = "trim",           [STATS_CACHE] = "cache",
		[STATS_ZERO] = "zero",           [STATS_EXTENTS] = "extents",
	};

	return names[kind];
}

const char *
stats_error_name(enum stats_error error)
{
	static const char *const names[STATS_ERRORS] = {
		[STATS_EIO] = "EIO",     [STATS_ENOSPC] = "ENOSPC", [STATS_EINVAL] = "EINVAL",
		[STATS_EPERM] = "EPERM", [STATS_EOTHER] = "other",  [STATS_ESHUTDOWN] = "ESHUTDOWN",
	};

	return names[error];
}

uint64_t
stats_bucket_end(unsigned bucket)
{
	return bucket < STATS_BUCKETS - 1 ? (uint64_t)(4 + bucket % 4) << (8 + bucket / 4)
					  : UINT64_MAX;
}

uint64_t
stats_percentile(const struct stats_op *op, double part)
{
	uint64_t all = 0, below = 0;

	for (unsigned i = 0; i < STATS_BUCKETS; i++)
		all += op->latency[i];
	if (all == 0)
		return 0;
	for (unsigned i = 0; i < STATS_BUCKETS - 1; i++) {
		below += op->latency[i];
		if (below > 0 && (double)below >= part * (double)all)
			return stats_bucket_end(i);
	}
	return stats_bucket_end(STATS_BUCKETS - 2);
}
