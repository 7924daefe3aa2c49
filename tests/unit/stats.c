/* stats.c - counters count what was done, and latencies land where they belong. */
#include "stats.h"

#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <string.h>

static unsigned
bucket_of(uint64_t nanoseconds)
{
	struct stats s = { 0 };
	unsigned found = STATS_BUCKETS, filled = 0;

	stats_count(&s, STATS_READ, 0, 0, nanoseconds);
	for (unsigned i = 0; i < STATS_BUCKETS; i++) {
		if (s.op[STATS_READ].latency[i] == 0)
			continue;
		found = i;
		filled++;
	}
	assert_eq(filled, 1);
	return found;
}

TEST(a_request_is_counted_under_its_kind_alone)
{
	struct stats s = { 0 }, expected = { 0 };

	stats_count(&s, STATS_WRITE_FUA, 4096, 0, 100);
	stats_count(&s, STATS_WRITE_FUA, 512, 0, 200);
	expected.op[STATS_WRITE_FUA].count = 2;
	expected.op[STATS_WRITE_FUA].bytes = 4608;
	expected.op[STATS_WRITE_FUA].nanoseconds = 300;
	expected.op[STATS_WRITE_FUA].latency[0] = 2;
	assert_mem(&s, &expected, sizeof s);
}

TEST(an_error_counts_in_its_class_and_its_bytes_do_not)
{
	static const struct {
		int error;
		enum stats_error class;
	} rows[] = {
		{ -EIO, STATS_EIO },          { -ETIMEDOUT, STATS_EIO },
		{ -ENOSPC, STATS_ENOSPC },    { -EDQUOT, STATS_ENOSPC },
		{ -EFBIG, STATS_ENOSPC },     { -EINVAL, STATS_EINVAL },
		{ -EPERM, STATS_EPERM },      { -EROFS, STATS_EPERM },
		{ -ENOMEM, STATS_EOTHER },    { -ENOTSUP, STATS_EOTHER },
		{ -EOVERFLOW, STATS_EOTHER }, { -ESHUTDOWN, STATS_ESHUTDOWN },
	};

	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct stats s = { 0 };
		struct stats_op *op = &s.op[STATS_TRIM];

		stats_count(&s, STATS_TRIM, 4096, rows[i].error, 5);
		assert_eq(op->count, 1);
		assert_eq(op->bytes, 0);
		for (unsigned e = 0; e < STATS_ERRORS; e++)
			assert_eq(op->errors[e], e == rows[i].class);
	}
}

TEST(every_latency_is_in_the_bucket_that_ends_above_it)
{
	for (unsigned i = 0; i < STATS_BUCKETS - 1; i++) {
		uint64_t end = stats_bucket_end(i);

		assert_eq(bucket_of(end - 1), i);
		assert_eq(bucket_of(end), i + 1);
	}
	assert_eq(bucket_of(0), 0);
	assert_eq(bucket_of(UINT64_MAX), STATS_BUCKETS - 1);
	assert_true(stats_bucket_end(STATS_BUCKETS - 1) == UINT64_MAX);
}

TEST(a_bucket_is_a_quarter_of_an_octave)
{
	assert_eq(stats_bucket_end(0), 1024);
	for (unsigned i = 0; i + 5 < STATS_BUCKETS; i++) {
		uint64_t width = stats_bucket_end(i + 1) - stats_bucket_end(i);

		assert_eq(stats_bucket_end(i + 4), 2 * stats_bucket_end(i));
		assert_true(4 * width <= stats_bucket_end(i));
		assert_true(8 * width >= stats_bucket_end(i));
	}
}

TEST(percentiles_are_the_ends_of_their_buckets)
{
	struct stats s = { 0 };
	struct stats_op *op = &s.op[STATS_READ];

	assert_eq(stats_percentile(op, 0.5), 0);
	for (unsigned i = 0; i < 98; i++)
		stats_count(&s, STATS_READ, 0, 0, 10000);
	stats_count(&s, STATS_READ, 0, 0, 1000000);
	stats_count(&s, STATS_READ, 0, 0, UINT64_C(3600000000000));
	assert_eq(stats_percentile(op, 0), 10240);
	assert_eq(stats_percentile(op, 0.5), 10240);
	assert_eq(stats_percentile(op, 0.98), 10240);
	assert_eq(stats_percentile(op, 0.99), 1 << 20);
	/* There is no end to the last one. */
	assert_eq(stats_percentile(op, 1), stats_bucket_end(STATS_BUCKETS - 2));
}

TEST(a_sum_has_all_of_its_parts)
{
	struct stats a = { 0 }, b = { 0 }, sum = { 0 }, twice = { 0 };

	stats_count(&a, STATS_READ, 1, 0, 2000);
	stats_count(&a, STATS_EXTENTS, 0, -EIO, 7);
	stats_count(&b, STATS_READ, 10, 0, 3000);
	stats_count(&b, STATS_ZERO, 100, 0, 50000);
	stats_add(&sum, &a);
	stats_add(&sum, &b);
	stats_count(&twice, STATS_READ, 1, 0, 2000);
	stats_count(&twice, STATS_EXTENTS, 0, -EIO, 7);
	stats_count(&twice, STATS_READ, 10, 0, 3000);
	stats_count(&twice, STATS_ZERO, 100, 0, 50000);
	assert_mem(&sum, &twice, sizeof sum);
}

#define COUNTED 200000

static void *
count_many(void *user)
{
	for (unsigned i = 0; i < COUNTED; i++)
		stats_count(user, STATS_WRITE, 1, 0, i);
	return NULL;
}

/* A reader on another thread sees numbers that were true, and never fewer than before. */
TEST(a_reader_beside_the_writer_sees_numbers_grow)
{
	static struct stats s;
	uint64_t seen = 0;
	pthread_t writer;

	assert_eq(pthread_create(&writer, NULL, count_many, &s), 0);
	while (seen < COUNTED) {
		struct stats now = { 0 };

		stats_add(&now, &s);
		assert_true(now.op[STATS_WRITE].count >= seen);
		assert_true(now.op[STATS_WRITE].count <= COUNTED);
		seen = now.op[STATS_WRITE].count;
	}
	pthread_join(writer, NULL);
	assert_eq(s.op[STATS_WRITE].bytes, COUNTED);
}

TEST(names_are_those_of_the_manual)
{
	static const char *const kinds[] = { "read", "write", "write_fua", "flush",
					     "trim", "cache", "zero",      "extents" };
	static const char *const errors[] = { "EIO",   "ENOSPC",    "EINVAL",
					      "EPERM", "ESHUTDOWN", "other" };

	assert_eq(sizeof kinds / sizeof *kinds, STATS_KINDS);
	assert_eq(sizeof errors / sizeof *errors, STATS_ERRORS);
	for (unsigned k = 0; k < STATS_KINDS; k++)
		assert_str(stats_kind_name(k), kinds[k]);
	for (unsigned e = 0; e < STATS_ERRORS; e++)
		assert_str(stats_error_name(e), errors[e]);
}
