/* grow.c - an image that becomes larger while it is served. */
#include "fixture.h"
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
resize(const char *path, uint64_t size)
{
	assert_eq(truncate(path, (off_t)size), 0);
}

static bool
grow(struct fixture *f)
{
	struct pl_error err;
	bool grown;

	if (pl_export_grow(f->ex, &grown, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	return grown;
}

static uint64_t
size_of(const struct fixture *f)
{
	return pl_export_geometry(f->ex)->size;
}

/* Whole blocks and pages, and sizes that are neither, in every order. */
static const uint64_t sizes[] = {
	0,
	1,
	512,
	700,
	4096,
	4608,
	4700,
	8192,
	65536 + 4096 - 7,
	3 * 1024 * 1024,
	3 * 1024 * 1024 + 9,
};
static const char *const caches[] = { "cache=none", "cache=auto", "cache=writeback",
				      "cache=directsync" };

TEST(what_grew_is_there_and_what_was_is_kept)
{
	for_each_loop_kind(kind)
	{
		for (unsigned c = 0; c < 3; c++) {
			struct fixture f;
			uint64_t was = 0;

			printf("%s\n", caches[c]);
			make_image("grow.img", 0);
			fixture_open(&f, kind, "path=grow.img", caches[c]);
			assert_false(grow(&f));
			for (unsigned i = 1; i < sizeof sizes / sizeof *sizes; i++) {
				uint64_t now = sizes[i], half = (now - was) / 2;
				const struct pl_geometry *before = pl_export_geometry(f.ex);

				resize("grow.img", now);
				assert_eq(try_fill(&f, was, 1, 0, 0), -ENOSPC); /* not yet */
				assert_true(grow(&f));
				assert_false(grow(&f));
				assert_eq(size_of(&f), now);
				assert_eq(before->size, was); /* for who still looks at it */
				check_pattern(&f, 0, was, 1);
				check_bytes(&f, was, now - was, 0);
				do_write_pattern(&f, was + half, now - was - half, 1, PL_FUA);
				do_write_pattern(&f, was, half, 1, 0);
				check_pattern(&f, 0, now, 1);
				assert_eq(try_fill(&f, now, 1, 0, 0), -ENOSPC);
				was = now;
			}
			do_zero(&f, was - 5000, 5000, 0);
			check_bytes(&f, was - 5000, 5000, 0);
			check_pattern(&f, 0, was - 5000, 1);
			do_flush(&f);
			fixture_close(&f);
		}
	}
}

TEST(an_image_that_shrank_is_refused_and_served_as_it_was)
{
	for_each_loop_kind(kind)
	{
		struct pl_error err;
		struct fixture f;
		bool grown = true;
		char data[512];

		log_nothing();
		make_image("shrink.img", 64 * KiB);
		fixture_open(&f, kind, "path=shrink.img");
		do_write(&f, 0, 64 * KiB, 0xaa, 0);
		resize("shrink.img", 32 * KiB);
		assert_eq(pl_export_grow(f.ex, &grown, &err), -EINVAL);
		assert_false(grown);
		assert_contains(err.text, "shrink.img: it has shrunk from 65536 to 32768 bytes");
		assert_eq(size_of(&f), 64 * KiB);
		check_bytes(&f, 0, 32 * KiB, 0xaa);
		assert_eq(try_read(&f, 48 * KiB, sizeof data, data, 0), -EIO);
		resize("shrink.img", 128 * KiB);
		assert_true(grow(&f));
		assert_eq(size_of(&f), 128 * KiB);
		do_flush(&f);
		resize("shrink.img", 64 * KiB); /* less than it was last */
		assert_eq(try_flush(&f), -EIO);
		fixture_close(&f);
	}
}

TEST(disks_that_cannot_grow_say_so)
{
	const char *const *const disks[] = {
		WORDS("driver=memory", "size=64k"),
		WORDS("driver=null", "size=64k"),
		WORDS("driver=fault", "over=memory", "size=64k"),
		WORDS("driver=powercut", "over=file", "path=still.img"),
	};

	make_image("still.img", 64 * KiB);
	for (unsigned i = 0; i < sizeof disks / sizeof *disks; i++) {
		struct pl_error err;
		struct fixture f;
		bool grown = true;

		fixture_open_words(&f, BLOCKING, 0, disks[i]);
		assert_eq(pl_export_grow(f.ex, &grown, &err), -EOPNOTSUPP);
		assert_false(grown);
		assert_contains(err.text, "its disks do not grow");
		assert_eq(size_of(&f), 64 * KiB);
		fixture_close(&f);
	}
}

TEST(a_driver_over_another_one_grows_with_it)
{
	struct fixture f;

	make_image("under.img", 10000);
	fixture_open(&f, RING, "driver=fault", "over=file", "path=under.img", "cache=none",
		     "at=1000000");
	do_write_pattern(&f, 0, 10000, 3, 0);
	resize("under.img", 20001);
	assert_true(grow(&f));
	assert_eq(size_of(&f), 20001);
	do_write_pattern(&f, 10000, 10001, 3, PL_FUA);
	check_pattern(&f, 0, 20001, 3);
	fixture_close(&f);
}

TEST(a_read_only_image_grows_too)
{
	struct fixture f;

	make_image("ro.img", 5000);
	fixture_open_words(&f, BLOCKING, PL_OPEN_READ_ONLY, WORDS("path=ro.img", "cache=none"));
	resize("ro.img", 9001);
	assert_true(grow(&f));
	check_bytes(&f, 0, 9001, 0);
	assert_eq(try_fill(&f, 0, 1, 0, 0), -EPERM);
	fixture_close(&f);
}

/* ---- under way ------------------------------------------------------------------- */

struct writer {
	struct fixture *first;
	enum loop_kind kind;
	unsigned number, count;
	bool *over; /* atomic */
};

/* Pieces of its own up to whatever is the end now, the last of them odd. */
static void *
write_to_the_end(void *arg)
{
	struct writer *w = arg;
	struct fixture f;

	fixture_join(&f, w->kind, w->first);
	for (unsigned round = 1; !__atomic_load_n(w->over, __ATOMIC_RELAXED); round++) {
		uint64_t size = size_of(&f), from = size > 20000 ? size - 20000 : 0;

		for (uint64_t at = (from / 300 / w->count * w->count + w->number) * 300; at < size;
		     at += w->count * UINT64_C(300)) {
			uint64_t length = size - at < 300 ? size - at : 300;
			unsigned flags = (round + w->number) % 3 == 0 ? PL_FUA : 0;

			if (round % 4 == 0)
				do_zero(&f, at, length, flags);
			else
				do_write_pattern(&f, at, length, round, flags);
			if (round % 4 == 0)
				check_bytes(&f, at, length, 0);
			else
				check_pattern(&f, at, length, round);
		}
	}
	fixture_close(&f);
	return NULL;
}

/*
 * Not from odd sizes where writes are direct: whoever makes such a file larger has the kernel zero
 * the rest of its last page through the page cache, and that meets a direct write to the same page
 * unprepared.
 */
static void
grow_under_writers(const char *cache, const char *fua, bool odd, unsigned steps)
{
	enum { WRITERS = 5 };
	static const uint64_t more[] = { 7, 505, 512, 3, 4096, 1, 2000, 4096 - 3 };
	struct writer w[WRITERS];
	pthread_t threads[WRITERS];
	bool over = false;
	struct fixture f;

	make_image("under-way.img", odd ? 4000 : 4096);
	fixture_open(&f, BLOCKING, "path=under-way.img", cache, fua);
	for (unsigned i = 0; i < WRITERS; i++) {
		w[i] = (struct writer){ &f, i % 2 == 0 ? RING : BLOCKING, i, WRITERS, &over };
		assert_eq(pthread_create(&threads[i], NULL, write_to_the_end, &w[i]), 0);
	}
	for (unsigned i = 0; i < steps; i++) {
		resize("under-way.img", size_of(&f) + (odd ? more[i % 8] : 4096 * (1 + i % 3)));
		assert_true(grow(&f));
		usleep(5000);
	}
	__atomic_store_n(&over, true, __ATOMIC_RELAXED);
	for (unsigned i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
	fixture_close(&f);
}

TEST(it_grows_under_writers_and_none_loses_a_byte)
{
	grow_under_writers("cache=none", "fua=native", false, 40);
	grow_under_writers("cache=none", "fua=commit", false, 40);
	grow_under_writers("cache=auto", "fua=native", false, 40);
	grow_under_writers("cache=writeback", "fua=commit", true, 40);
}

TEST_SLOW(it_grows_under_writers_for_long)
{
	grow_under_writers("cache=none", "fua=native", false, 3000);
	grow_under_writers("cache=none", "fua=commit", false, 3000);
	grow_under_writers("cache=auto", "fua=native", false, 3000);
	grow_under_writers("cache=writeback", "fua=commit", true, 3000);
}
