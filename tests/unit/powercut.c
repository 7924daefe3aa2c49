/* powercut.c - the volatile cache that loses power. What the core makes of it is in durability.c.
 */
#include "fixture.h"
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define OVER_MEMORY "driver=powercut", "over=memory", "size=1M"

TEST(it_declares_a_volatile_cache)
{
	struct fixture f;
	struct pl_extent list[2];
	struct pl_extents x = { .list = list, .max = 2 };

	fixture_open(&f, RING, OVER_MEMORY);
	assert_eq(pl_export_capabilities(f.ex),
		  PL_CAP_WRITE | PL_CAP_FLUSH | PL_CAP_FUA | PL_CAP_ZERO | PL_CAP_FAST_ZERO |
			  PL_CAP_TRIM | PL_CAP_MULTI_CONN | PL_CAP_UNMAP | PL_CAP_UNMAP_ZEROES);
	assert_contains(pl_export_description(f.ex), "FUA: native");
	assert_contains(pl_export_description(f.ex), "RAM is the medium");
	assert_str(pl_export_name(f.ex), "memory");
	assert_eq(try_cache(&f, 0, 512), -EINVAL);
	assert_eq(try_extents(&f, 0, 1 * MiB, &x), 0); /* nobody knows: data */
	assert_eq(list[0].flags, 0);
	fixture_close(&f);

	fixture_open(&f, RING, OVER_MEMORY, "powercut-fua=commit");
	assert_contains(pl_export_description(f.ex), "FUA: shared flush");
	fixture_close(&f);
}

/* ---- with power ------------------------------------------------------------------ */

/* Whatever is in the list, half written down or cut by a FUA write. */
TEST(a_read_sees_the_cache_over_the_medium)
{
	enum { SIZE = 100 * 1000 + 1 };
	static const char *const dirty[] = { "dirty=64M", "dirty=20k", "dirty=0" };
	uint64_t seed = test_seed();

	for_each_loop_kind(kind)
	{
		for (unsigned d = 0; d < 3; d++) {
			unsigned char *model = test_alloc(SIZE);
			struct fixture f;

			fixture_open(&f, kind, "driver=powercut", "over=memory", "size=100001",
				     dirty[d]);
			for (unsigned i = 0; i < 300; i++) {
				uint64_t offset = random_below(&seed, SIZE);
				uint64_t length = 1 + random_below(&seed, 9000);
				unsigned fua = random_below(&seed, 3) == 0 ? PL_FUA : 0;

				if (length > SIZE - offset)
					length = SIZE - offset;
				switch (random_below(&seed, 8)) {
				case 0:
					do_zero(&f, offset, length, fua);
					memset(model + offset, 0, length);
					break;
				case 1:
					do_trim(&f, offset, length, fua);
					memset(model + offset, 0, length);
					break;
				case 2: do_flush(&f); break;
				default:
					pattern_fill(model + offset, length, offset, i);
					do_write_data(&f, offset, length, model + offset, fua);
				}
				if (i % 8 == 0)
					check_data(&f, 0, SIZE, model);
			}
			check_data(&f, 0, SIZE, model);
			free(model);
			fixture_close(&f);
		}
	}
}

TEST(a_read_fills_every_buffer_it_is_given)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;
		char data[3000];
		struct iovec iov[] = { { data + 2000, 1000 }, { data, 1 }, { data + 1, 1999 } };
		struct pl_request req = {
			.op = PL_READ, .offset = 500, .length = 3000, .iov = iov, .iovcnt = 3
		};

		fixture_open(&f, kind, OVER_MEMORY);
		do_write_pattern(&f, 0, 2 * KiB, 1, PL_FUA);
		do_write_pattern(&f, 1 * KiB, 2 * KiB, 2, 0);
		do_zero(&f, 3 * KiB, 1 * KiB, 0);
		assert_eq(pl_request_call(f.ch, &req), 0);
		for (unsigned i = 0; i < 3000; i++) {
			unsigned at = 500 + i;
			char got = i < 1000 ? data[2000 + i] : data[i - 1000];

			assert_eq((unsigned char)got, at < 1 * KiB   ? pattern_at(at, 1)
						      : at < 3 * KiB ? pattern_at(at, 2)
								     : 0);
		}
		fixture_close(&f);
	}
}

/* ---- crash images ---------------------------------------------------------------- */

TEST(unflushed_data_is_kept_dropped_or_torn)
{
	struct fixture f;
	unsigned kept = 0, dropped = 0, torn = 0;

	fixture_open(&f, BLOCKING, OVER_MEMORY);
	do_write(&f, 100, 64 * KiB, 0xaa, PL_FUA);
	do_write(&f, 100, 64 * KiB, 0xbb, 0);
	for_each_crash_image(&f, im)
	{
		unsigned news = 0;

		assert_bytes(im, 0, 100, 0);
		assert_bytes(im, 100 + 64 * KiB, 1000, 0);
		for (unsigned i = 0; i < 64 * KiB; i++) {
			unsigned char got = im->data[100 + i];

			assert_true(got == 0xaa || got == 0xbb);
			news += got == 0xbb;
			/* A block is written whole or not at all. */
			if (i > 0 && (100 + i) % 512 != 0)
				assert_eq(got, im->data[100 + i - 1]);
		}
		kept += news == 64 * KiB;
		dropped += news == 0;
		torn += news > 0 && news < 64 * KiB;
	}
	printf("kept %u, dropped %u, torn %u\n", kept, dropped, torn);
	assert_true(kept > 5 && dropped > 5 && torn > 5);
	fixture_close(&f);
}

TEST(an_unflushed_zero_or_trim_is_kept_dropped_or_torn)
{
	for (enum pl_op op = PL_ZERO; op <= PL_TRIM; op++) {
		struct fixture f;
		unsigned kept = 0, dropped = 0, torn = 0;

		fixture_open(&f, BLOCKING, OVER_MEMORY);
		do_write(&f, 0, 64 * KiB, 0xaa, PL_FUA);
		assert_eq(try_request(&f, op, 0, 0, 64 * KiB, NULL), 0);
		for_each_crash_image(&f, im)
		{
			unsigned news = 0;

			for (unsigned i = 0; i < 64 * KiB; i++)
				news += im->data[i] == 0;
			kept += news == 64 * KiB;
			dropped += news == 0;
			torn += news > 0 && news < 64 * KiB;
		}
		assert_true(kept > 5 && dropped > 5 && torn > 5);
		fixture_close(&f);
	}
}

TEST(the_same_seed_gives_the_same_image)
{
	struct fixture f;
	unsigned char *image[2] = { test_alloc(1 * MiB), test_alloc(1 * MiB) };
	unsigned differ = 0;

	fixture_open(&f, BLOCKING, OVER_MEMORY);
	for (unsigned i = 0; i < 100; i++)
		do_write_pattern(&f, i * 5000, 10000, i, 0);
	for (uint64_t seed = 0; seed < 20; seed++) {
		crash_image(&f, seed, image[0]);
		crash_image(&f, seed, image[1]);
		assert_mem(image[0], image[1], 1 * MiB);
		crash_image(&f, seed + 1, image[1]);
		differ += memcmp(image[0], image[1], 1 * MiB) != 0;
	}
	assert_true(differ >= 10);
	/* They were only images: the cache still has everything. */
	for (unsigned i = 0; i < 99; i++)
		check_pattern(&f, i * 5000, 5000, i);
	free(image[0]);
	free(image[1]);
	fixture_close(&f);
}

TEST(beyond_dirty_the_oldest_is_written_down)
{
	struct fixture f;

	fixture_open(&f, BLOCKING, OVER_MEMORY, "dirty=40k");
	for (unsigned i = 0; i < 16; i++)
		do_write(&f, i * 8 * KiB, 8 * KiB, (unsigned char)(i + 1), 0);
	for_each_crash_image(&f, im) for (unsigned i = 0; i < 12; i++)
		assert_bytes(im, i * 8 * KiB, 8 * KiB, (unsigned char)(i + 1));
	for (unsigned i = 0; i < 16; i++)
		check_bytes(&f, i * 8 * KiB, 8 * KiB, (unsigned char)(i + 1));
	fixture_close(&f);
}

TEST(a_fua_write_makes_only_itself_stable)
{
	struct fixture f;
	unsigned lost = 0;

	fixture_open(&f, BLOCKING, OVER_MEMORY);
	do_write(&f, 0, 24 * KiB, 0xaa, 0);
	do_write(&f, 8 * KiB, 8 * KiB, 0xbb, PL_FUA);
	for_each_crash_image(&f, im)
	{
		assert_bytes(im, 8 * KiB, 8 * KiB, 0xbb);
		lost += im->data[0] == 0 || im->data[16 * KiB] == 0;
	}
	assert_true(lost > 5);
	fixture_close(&f);
}

/* A block at the end of a FUA write has an older write whole or not at all. */
TEST(a_fua_write_of_a_part_of_a_block_tears_no_older_write)
{
	struct fixture f;
	unsigned kept = 0, dropped = 0;

	fixture_open(&f, BLOCKING, OVER_MEMORY);
	do_write(&f, 0, 4 * KiB, 0xaa, 0);
	do_write(&f, 1 * KiB + 100, 1 * KiB, 0xbb, PL_FUA);
	for_each_crash_image(&f, im)
	{
		assert_bytes(im, 1 * KiB + 100, 1 * KiB, 0xbb);
		assert_bytes(im, 1 * KiB, 100, 0xaa);
		assert_bytes(im, 2 * KiB + 100, 412, 0xaa);
		for (unsigned i = 1; i < 512; i++) {
			assert_eq(im->data[i], im->data[0]);
			assert_eq(im->data[3 * KiB + i], im->data[3 * KiB]);
		}
		kept += im->data[0] == 0xaa;
		dropped += im->data[0] == 0;
	}
	assert_true(kept > 5 && dropped > 5);
	check_bytes(&f, 2 * KiB + 100, 1948, 0xaa);
	fixture_close(&f);
}

/* ---- the cut --------------------------------------------------------------------- */

TEST(after_the_cut_everything_fails)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;
		char data[512];

		fixture_open(&f, kind, OVER_MEMORY, "cut=4");
		do_write(&f, 0, 512, 0xaa, 0);
		do_zero(&f, 512, 512, 0);
		check_bytes(&f, 0, 512, 0xaa); /* reads are not counted */
		do_trim(&f, 512, 512, 0);
		assert_eq(try_fill(&f, 0, 512, 0xbb, 0), -EIO);
		assert_eq(try_read(&f, 0, 512, data, 0), -EIO);
		assert_eq(try_fill(&f, 0, 512, 0xbb, 0), -EIO);
		assert_eq(try_zero(&f, 0, 512, 0), -EIO);
		assert_eq(try_trim(&f, 0, 512, 0), -EIO);
		assert_eq(try_flush(&f), -EIO);
		fixture_close(&f);
	}
}

TEST(a_flush_at_the_cut_promises_nothing_and_fails)
{
	unsigned first = 0, second = 0;

	log_nothing();
	for (unsigned seed = 0; seed < 40; seed++) {
		struct fixture f;
		char word[32];

		snprintf(word, sizeof word, "seed=%u", seed);
		fixture_open(&f, BLOCKING, OVER_MEMORY, "cut=3", word);
		do_write(&f, 0, 4 * KiB, 0xaa, 0);
		do_write(&f, 8 * KiB, 4 * KiB, 0xbb, 0);
		assert_eq(try_flush(&f), -EIO);
		assert_true(pl_export_failed(f.ex));

		unsigned char *image = test_alloc(1 * MiB);

		crash_image(&f, 0, image);
		first += image[0] == 0xaa;
		second += image[8 * KiB] == 0xbb;
		free(image);
		fixture_close(&f);
	}
	assert_true(first > 5 && first < 35);
	assert_true(second > 5 && second < 35);
}

TEST(the_crash_image_is_in_the_file_below)
{
	unsigned lost = 0, kept = 0;

	log_nothing();
	for (unsigned seed = 0; seed < 40; seed++) {
		struct fixture f;
		char word[32];

		snprintf(word, sizeof word, "seed=%u", seed);
		make_image("crash.img", 1 * MiB);
		fixture_open(&f, BLOCKING, "driver=powercut", "over=file", "path=crash.img",
			     "cut=4", word);
		do_write(&f, 0, 4 * KiB, 0xaa, PL_FUA);
		do_write(&f, 4 * KiB, 4 * KiB, 0xbb, 0);
		do_write(&f, 8 * KiB, 4 * KiB, 0xcc, PL_FUA);
		assert_eq(try_fill(&f, 8 * KiB, 4 * KiB, 0xdd, PL_FUA), -EIO);
		fixture_close(&f);

		unsigned char got[8 * KiB];

		fixture_open(&f, BLOCKING, "driver=file", "path=crash.img");
		check_bytes(&f, 0, 4 * KiB, 0xaa);
		do_read(&f, 4 * KiB, 8 * KiB, got);
		for (unsigned i = 0; i < 4 * KiB; i++) {
			assert_true(got[i] == 0 || got[i] == 0xbb);
			assert_true(got[4 * KiB + i] == 0xcc || got[4 * KiB + i] == 0xdd);
		}
		lost += got[0] == 0;
		kept += got[0] == 0xbb;
		fixture_close(&f);
	}
	assert_true(lost > 5 && kept > 5);
}

TEST(a_clean_close_loses_nothing)
{
	struct fixture f;

	make_image("close.img", 100001);
	fixture_open(&f, RING, "driver=powercut", "over=file", "path=close.img");
	do_write_pattern(&f, 0, 100001, 1, 0);
	do_zero(&f, 1000, 50000, 0);
	do_write_pattern(&f, 2000, 3000, 2, 0);
	fixture_close(&f);

	fixture_open(&f, RING, "driver=file", "path=close.img");
	check_pattern(&f, 0, 1000, 1);
	check_bytes(&f, 1000, 1000, 0);
	check_pattern(&f, 2000, 3000, 2);
	check_bytes(&f, 5000, 46000, 0);
	check_pattern(&f, 51000, 100001 - 51000, 1);
	fixture_close(&f);
}

/* ---- when below fails
 * -------------------------------------------------------------------------------- */

TEST(a_write_that_cannot_be_written_down_fails_the_flush)
{
	struct fixture f;

	fixture_open(&f, BLOCKING, "driver=powercut", "over=fault,memory", "size=1M", "kind=write",
		     "at=2", "errno=ENOSPC");
	for (unsigned i = 0; i < 4; i++)
		do_write(&f, i * 4 * KiB, 4 * KiB, 0xaa, 0);
	assert_eq(try_flush(&f), -ENOSPC);
	assert_true(pl_export_failed(f.ex));
	check_bytes(&f, 0, 16 * KiB, 0xaa);
	for_each_crash_image(&f, im) assert_bytes(im, 0, 4 * KiB, 0xaa);
	fixture_close(&f);
}

TEST(a_full_cache_over_a_full_disk_fails_the_write)
{
	struct fixture f;

	fixture_open(&f, BLOCKING, "driver=powercut", "over=fault,memory", "size=1M", "kind=write",
		     "repeat=forever", "errno=ENOSPC", "dirty=10k");
	do_write(&f, 0, 4 * KiB, 0xaa, 0);
	do_write(&f, 4 * KiB, 4 * KiB, 0xaa, 0);
	assert_eq(try_fill(&f, 8 * KiB, 4 * KiB, 0xaa, 0), -ENOSPC);
	assert_eq(try_fill(&f, 0, 4 * KiB, 0xbb, PL_FUA), -ENOSPC);
	check_bytes(&f, 0, 8 * KiB, 0xaa);
	check_bytes(&f, 8 * KiB, 4 * KiB, 0);
	fixture_close(&f);
}

TEST(what_cannot_be_zeroed_below_is_written_as_zeroes)
{
	struct fixture f;

	fixture_open(&f, BLOCKING, "driver=powercut", "over=fault,memory", "size=1M", "kind=zero",
		     "repeat=forever", "errno=EOPNOTSUPP");
	do_write(&f, 0, 1 * MiB, 0xaa, 0);
	do_flush(&f);
	do_zero(&f, 1000, 700 * KiB, 0);
	do_flush(&f);
	for_each_crash_image(&f, im)
	{
		assert_bytes(im, 0, 1000, 0xaa);
		assert_bytes(im, 1000, 700 * KiB, 0);
		assert_bytes(im, 1000 + 700 * KiB, 300 * KiB, 0xaa);
	}
	fixture_close(&f);
}
