/* memory.c - the sparse RAM disk. */
#include "fixture.h"
#include "test.h"

#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define CHUNK (64 * KiB)
#define HOLE  (PL_EXTENT_HOLE | PL_EXTENT_ZERO)

#define EVERYTHING \
	(PL_CAP_WRITE | PL_CAP_FLUSH | PL_CAP_FUA | PL_CAP_ZERO | PL_CAP_FAST_ZERO | PL_CAP_TRIM | \
	 PL_CAP_CACHE | PL_CAP_EXTENTS | PL_CAP_MULTI_CONN | PL_CAP_UNMAP | PL_CAP_UNMAP_ZEROES)

static void
check_extents(struct fixture *f, uint64_t offset, uint64_t length, unsigned count,
	      const struct pl_extent *want)
{
	struct pl_extent list[16];
	struct pl_extents x = { .list = list, .max = 16 };

	assert_eq(try_extents(f, offset, length, &x), 0);
	for (unsigned i = 0; i < x.count && i < count; i++) {
		assert_eq(list[i].length, want[i].length);
		assert_eq(list[i].flags, want[i].flags);
	}
	assert_eq(x.count, count);
}
#define CHECK_EXTENTS(f, offset, length, ...) \
	check_extents((f), (offset), (length), \
		      sizeof((struct pl_extent[]){ __VA_ARGS__ }) / sizeof(struct pl_extent), \
		      (struct pl_extent[]){ __VA_ARGS__ })

TEST(a_memory_disk_declares_everything)
{
	struct fixture f;

	fixture_open(&f, BLOCKING, "driver=memory", "size=1000001");
	assert_eq(pl_export_capabilities(f.ex), EVERYTHING);
	assert_eq(pl_export_geometry(f.ex)->size, 1000001);
	assert_contains(pl_export_description(f.ex), "RAM is the medium");
	fixture_close(&f);
}

TEST(a_memory_disk_needs_a_size)
{
	struct pl_export *ex;
	struct pl_error err;

	assert_eq(try_export(WORDS("driver=memory"), 0, &ex, &err), -EINVAL);
	assert_contains(err.text, "size");
	assert_eq(try_export(WORDS("driver=memory", "size=9223372036854775808"), 0, &ex, &err),
		  -EINVAL);
	assert_contains(err.text, "size=9223372036854775808");
}

TEST(a_new_disk_is_one_hole_of_zeroes)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, "driver=memory", "size=1000001");
		check_bytes(&f, 0, 1000001, 0);
		CHECK_EXTENTS(&f, 0, 1000001, { 1000001, HOLE });
		fixture_close(&f);
	}
}

/* Against a model: any range, over chunk borders, up to an odd end. */
TEST(what_is_written_is_read_back)
{
	enum { SIZE = 300 * 1000 + 7 };
	uint64_t seed = test_seed();

	for_each_loop_kind(kind)
	{
		struct fixture f;
		unsigned char *model = test_alloc(SIZE);

		fixture_open(&f, kind, "driver=memory", "size=300007");
		for (unsigned i = 0; i < 500; i++) {
			uint64_t offset = random_below(&seed, SIZE);
			uint64_t length = 1 + random_below(&seed, SIZE - offset);
			uint64_t what = random_below(&seed, 8);

			if (what == 0) {
				do_zero(&f, offset, length, 0);
				memset(model + offset, 0, length);
			} else if (what == 1) {
				do_zero(&f, offset, length, PL_NO_HOLE | PL_FUA);
				memset(model + offset, 0, length);
			} else if (what == 2) {
				do_trim(&f, offset, length, PL_FUA);
				memset(model + offset, 0, length);
			} else {
				length = 1 + length % (100 * KiB);
				if (length > SIZE - offset)
					length = SIZE - offset;
				pattern_fill(model + offset, length, offset, i);
				do_write_data(&f, offset, length, model + offset, 0);
			}
			if (i % 16 == 0)
				check_data(&f, 0, SIZE, model);
		}
		check_data(&f, 0, SIZE, model);
		free(model);
		fixture_close(&f);
	}
}

TEST(holes_and_data_are_reported)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, "driver=memory", "size=1M");
		do_write(&f, 3 * CHUNK - 1, 2, 0xaa, 0);
		CHECK_EXTENTS(&f, 0, 1 * MiB, { 2 * CHUNK, HOLE }, { 2 * CHUNK, 0 },
			      { 12 * CHUNK, HOLE });
		CHECK_EXTENTS(&f, 2 * CHUNK + 5, 10, { 10, 0 });
		CHECK_EXTENTS(&f, 5, CHUNK, { CHUNK, HOLE });
		CHECK_EXTENTS(&f, 3 * CHUNK + 5, CHUNK, { CHUNK - 5, 0 }, { 5, HOLE });
		fixture_close(&f);
	}
}

TEST(zero_and_trim_give_whole_chunks_back)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;
		uint64_t size = 4 * CHUNK + 100;

		fixture_open(&f, kind, "driver=memory", "size=262244");
		do_write(&f, 0, size, 0xaa, 0);
		CHECK_EXTENTS(&f, 0, size, { size, 0 });

		do_zero(&f, CHUNK - 10, CHUNK + 20, 0);
		CHECK_EXTENTS(&f, 0, size, { CHUNK, 0 }, { CHUNK, HOLE }, { 2 * CHUNK + 100, 0 });
		check_bytes(&f, 0, CHUNK - 10, 0xaa);
		check_bytes(&f, CHUNK - 10, CHUNK + 20, 0);
		check_bytes(&f, 2 * CHUNK + 10, 2 * CHUNK + 90, 0xaa);

		/* The last chunk is whole where the disk ends. */
		do_trim(&f, 4 * CHUNK, 100, 0);
		CHECK_EXTENTS(&f, 2 * CHUNK, 2 * CHUNK + 100, { 2 * CHUNK, 0 }, { 100, HOLE });
		do_trim(&f, 0, size, PL_FUA);
		CHECK_EXTENTS(&f, 0, size, { size, HOLE });
		check_bytes(&f, 0, size, 0);
		fixture_close(&f);
	}
}

TEST(zero_without_hole_allocates)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, "driver=memory", "size=1M");
		do_zero(&f, CHUNK + 1, CHUNK, PL_NO_HOLE);
		CHECK_EXTENTS(&f, 0, 1 * MiB, { CHUNK, HOLE }, { 2 * CHUNK, 0 },
			      { 13 * CHUNK, HOLE });
		do_write(&f, 0, 1 * MiB, 0xaa, 0);
		do_zero(&f, 0, 1 * MiB, PL_NO_HOLE | PL_FAST);
		CHECK_EXTENTS(&f, 0, 1 * MiB, { 1 * MiB, 0 });
		check_bytes(&f, 0, 1 * MiB, 0);
		fixture_close(&f);
	}
}

TEST(the_largest_disk_is_sparse)
{
	uint64_t size = INT64_MAX, middle = UINT64_C(1) << 62;

	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, "driver=memory", "size=9223372036854775807");
		do_write_pattern(&f, 0, 100, 1, 0);
		do_write_pattern(&f, middle - 50, 100, 2, 0);
		do_write_pattern(&f, size - 100, 100, 3, 0);
		check_pattern(&f, 0, 100, 1);
		check_pattern(&f, middle - 50, 100, 2);
		check_pattern(&f, size - 100, 100, 3);
		check_bytes(&f, middle + 50, 1000, 0);
		CHECK_EXTENTS(&f, 0, size, { CHUNK, 0 }, { middle - 2 * CHUNK, HOLE },
			      { 2 * CHUNK, 0 }, { middle - 2 * CHUNK, HOLE }, { CHUNK - 1, 0 });

		do_zero(&f, 50, size - 100, 0);
		check_pattern(&f, 0, 50, 1);
		check_bytes(&f, middle - 50, 100, 0);
		check_pattern(&f, size - 50, 50, 3);
		CHECK_EXTENTS(&f, 0, size, { CHUNK, 0 }, { 2 * middle - 2 * CHUNK, HOLE },
			      { CHUNK - 1, 0 });
		do_trim(&f, 0, size, 0);
		CHECK_EXTENTS(&f, 0, size, { size, HOLE });
		fixture_close(&f);
	}
}

/* ---- many threads ---------------------------------------------------------------- */

enum { WRITERS = 8, SLOT = 4000, SLOTS = 64 * WRITERS };

struct writer {
	struct fixture f;
	unsigned index;
	uint64_t seed;
	unsigned tag[SLOTS / WRITERS]; /* 0: zeroes */
	pthread_t thread;
};

/* Every thread has every eighth slot, so all of them meet in every chunk. */
static uint64_t
slot_offset(const struct writer *w, uint64_t slot)
{
	return (slot * WRITERS + w->index) * SLOT;
}

static void *
writer_run(void *arg)
{
	struct writer *w = arg;

	for (unsigned i = 1; i < 400; i++) {
		uint64_t slot = random_below(&w->seed, SLOTS / WRITERS);
		uint64_t offset = slot_offset(w, slot);

		if (random_below(&w->seed, 4) == 0) {
			do_zero(&w->f, offset, SLOT, 0);
			w->tag[slot] = 0;
		} else {
			do_write_pattern(&w->f, offset, SLOT, i, 0);
			w->tag[slot] = i;
		}
		slot = random_below(&w->seed, SLOTS / WRITERS);
		if (w->tag[slot] == 0)
			check_bytes(&w->f, slot_offset(w, slot), SLOT, 0);
		else
			check_pattern(&w->f, slot_offset(w, slot), SLOT, w->tag[slot]);
	}
	return NULL;
}

TEST(many_threads_use_it_at_once)
{
	uint64_t seed = test_seed();
	static struct writer writers[WRITERS];
	struct fixture f;

	fixture_open(&f, BLOCKING, "driver=memory", "size=2048000");
	for (unsigned i = 0; i < WRITERS; i++) {
		writers[i].f = f;
		writers[i].index = i;
		writers[i].seed = random_next(&seed);
		assert_eq(pthread_create(&writers[i].thread, NULL, writer_run, &writers[i]), 0);
	}
	for (unsigned i = 0; i < WRITERS; i++)
		pthread_join(writers[i].thread, NULL);
	for (unsigned i = 0; i < WRITERS; i++) {
		for (unsigned s = 0; s < SLOTS / WRITERS; s++) {
			uint64_t offset = slot_offset(&writers[i], s);

			if (writers[i].tag[s] == 0)
				check_bytes(&f, offset, SLOT, 0);
			else
				check_pattern(&f, offset, SLOT, writers[i].tag[s]);
		}
	}
	fixture_close(&f);
}

/* ---- no memory ------------------------------------------------------------------- */

#if defined __SANITIZE_ADDRESS__ || defined __SANITIZE_THREAD__
#define SANITIZED 1
#elif defined __has_feature
#if __has_feature(address_sanitizer) || __has_feature(thread_sanitizer)
#define SANITIZED 1
#endif
#endif

TEST(no_memory_is_an_error_and_nothing_is_lost)
{
#ifdef SANITIZED
	test_skip("a sanitizer needs the address space that this test takes away");
#else
	test_not_under_valgrind("there is no address space to take away");
	const struct rlimit limit = { 200 * MiB, 200 * MiB };
	struct fixture f;
	unsigned char *data = test_alloc(1 * MiB);
	uint64_t at = 0;
	int error = 0;

	fixture_open(&f, BLOCKING, "driver=memory", "size=1T");
	do_write(&f, 0, 1, 0, 0); /* what the thread itself needs */
	assert_eq(setrlimit(RLIMIT_AS, &limit), 0);
	while (error == 0 && at < 1 * GiB) {
		pattern_fill(data, 1 * MiB, at, 1);
		error = try_write(&f, at, 1 * MiB, data, 0);
		if (error == 0)
			at += 1 * MiB;
	}
	assert_eq(error, -ENOMEM);
	assert_true(at > 50 * MiB);
	assert_eq(try_zero(&f, 1 * GiB, 1 * GiB, PL_NO_HOLE), -ENOMEM);

	/* No test_alloc() for as long as there is no memory. */
	for (uint64_t i = 0; i < at; i += 1 * MiB) {
		do_read(&f, i, 1 * MiB, data);
		for (uint64_t j = 0; j < 1 * MiB; j++)
			assert_eq(data[j], pattern_at(i + j, 1));
	}
	do_trim(&f, 1 * MiB, 1 * TiB - 1 * MiB, 0);
	check_pattern(&f, 0, 1 * MiB, 1);
	check_bytes(&f, 1 * MiB, 3 * MiB, 0);
	do_write_pattern(&f, 1 * MiB, 3 * MiB, 2, 0);
	check_pattern(&f, 1 * MiB, 3 * MiB, 2);
	free(data);
	fixture_close(&f);
#endif
}
