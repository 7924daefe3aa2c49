/* request.c - a request is checked, carried out whole, and answered once. */
#include "fixture.h"
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

TEST(a_request_outside_the_device_is_refused_and_changes_nothing)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;
		char *data = test_alloc(8 * KiB);
		static const struct {
			uint64_t offset, length;
		} outside[] = {
			{ 1 * MiB, 1 },
			{ 1 * MiB - 1, 2 },
			{ 1 * MiB + 1, 0 },
			{ UINT64_MAX, 1 },
			{ UINT64_MAX - 4 * KiB + 1, 4 * KiB },
			{ 1, UINT64_MAX },
		};

		fixture_open(&f, kind, "driver=memory", "size=1M");
		do_write(&f, 1 * MiB - 4 * KiB, 4 * KiB, 0x11, 0);
		for (unsigned i = 0; i < sizeof outside / sizeof *outside; i++) {
			uint64_t offset = outside[i].offset, length = outside[i].length;
			struct pl_extent list[1];
			struct pl_extents x = { .list = list, .max = 1 };

			assert_eq(try_zero(&f, offset, length, 0), -ENOSPC);
			assert_eq(try_trim(&f, offset, length, 0), -EINVAL);
			assert_eq(try_cache(&f, offset, length), -EINVAL);
			assert_eq(try_extents(&f, offset, length, &x), -EINVAL);
			if (length <= 8 * KiB) {
				assert_eq(try_write(&f, offset, length, data, 0), -ENOSPC);
				assert_eq(try_read(&f, offset, length, data, 0), -EINVAL);
			}
		}
		check_bytes(&f, 1 * MiB - 4 * KiB, 4 * KiB, 0x11);
		fixture_close(&f);
		free(data);
	}
}

TEST(flags_that_an_operation_does_not_have_are_refused)
{
	struct fixture f;
	char data[512] = "";

	fixture_open(&f, BLOCKING, "driver=memory", "size=1M");
	assert_eq(try_write(&f, 0, 512, data, PL_NO_HOLE), -EINVAL);
	assert_eq(try_write(&f, 0, 512, data, 1u << 20), -EINVAL);
	assert_eq(try_read(&f, 0, 512, data, PL_FAST), -EINVAL);
	assert_eq(try_trim(&f, 0, 512, PL_NO_HOLE), -EINVAL);
	assert_eq(try_request(&f, PL_FLUSH, PL_FUA, 0, 0, NULL), -EINVAL);
	assert_eq(try_zero(&f, 0, 512, PL_FUA | PL_NO_HOLE | PL_FAST), 0);
	fixture_close(&f);
}

TEST(a_read_only_export_refuses_what_changes_data_and_advertises_none_of_it)
{
	struct fixture f;
	char data[512];

	fixture_open_words(&f, BLOCKING, PL_OPEN_READ_ONLY, WORDS("driver=memory", "size=1M"));
	assert_eq(pl_export_capabilities(f.ex) & (PL_CAP_WRITE | PL_CAP_FLUSH | PL_CAP_FUA |
						  PL_CAP_ZERO | PL_CAP_FAST_ZERO | PL_CAP_TRIM),
		  0);
	assert_eq(try_write(&f, 0, 512, data, 0), -EPERM);
	assert_eq(try_write(&f, 0, 512, data, PL_FUA), -EPERM);
	assert_eq(try_zero(&f, 0, 512, 0), -EPERM);
	assert_eq(try_trim(&f, 0, 512, 0), -EPERM);
	assert_eq(try_read(&f, 0, 512, data, PL_FUA), 0);
	fixture_close(&f);
}

TEST(no_export_has_fua_without_flush)
{
	static const char *const exports[][3] = {
		{ "driver=memory", "size=1M", NULL },
		{ "driver=null", "size=1M", NULL },
		{ "driver=powercut", "over=memory", "size=1M" },
	};

	for (unsigned i = 0; i < sizeof exports / sizeof *exports; i++) {
		struct fixture f;
		unsigned caps;

		fixture_open(&f, BLOCKING, exports[i][0], exports[i][1], exports[i][2]);
		caps = pl_export_capabilities(f.ex);
		assert_true((caps & PL_CAP_FUA) == 0 || (caps & PL_CAP_FLUSH) != 0);
		fixture_close(&f);
	}
}

TEST(a_request_of_no_bytes_succeeds)
{
	struct fixture f;
	char byte = 0;

	fixture_open(&f, RING, "driver=memory", "size=1M");
	assert_eq(try_read(&f, 1 * MiB, 0, &byte, 0), 0);
	assert_eq(try_write(&f, 0, 0, &byte, PL_FUA), 0);
	assert_eq(try_zero(&f, 512, 0, 0), 0);
	fixture_close(&f);
}

TEST(memory_in_many_pieces_is_read_and_written_in_order)
{
	for_each_loop_kind(kind)
	{
		static const char *const modes[] = { "cache=writeback", "cache=none" };

		for (unsigned mode = 0; mode < 2; mode++) {
			enum { PIECES = 1337, BYTES = PIECES * 99 };
			struct fixture f;
			struct iovec iov[PIECES];
			char *data = test_alloc(BYTES), *back = test_alloc(BYTES);
			struct pl_request req;

			make_image("pieces.img", 1 * MiB);
			fixture_open(&f, kind, "path=pieces.img", modes[mode]);
			pattern_fill(data, BYTES, 777, mode);
			for (int write = 1; write >= 0; write--) {
				for (int i = 0; i < PIECES; i++)
					iov[i] = (struct iovec){ (write ? data : back) + i * 99,
								 99 };
				req = (struct pl_request){ .op = write ? PL_WRITE : PL_READ,
							   .offset = 777,
							   .length = BYTES,
							   .iov = iov,
							   .iovcnt = PIECES };
				assert_eq(pl_request_call(f.ch, &req), 0);
			}
			assert_mem(back, data, BYTES);
			fixture_close(&f);
			free(data);
			free(back);
		}
	}
}

TEST(a_request_of_many_thousand_parts_needs_no_more_stack)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, "driver=fault", "over=memory", "size=16M", "fault=short",
			     "short=512", "repeat=forever");
		do_write_pattern(&f, 0, 16 * MiB, 1, PL_FUA);
		check_pattern(&f, 0, 16 * MiB, 1);
		fixture_close(&f);
	}
}

TEST(a_native_fua_write_that_is_cut_short_goes_on)
{
	for_each_loop_kind(kind)
	{
		static const char *const shorts[] = { "short=1", "short=512", "short=5000" };

		make_image("short.img", 1 * MiB);
		for (unsigned i = 0; i < 3; i++) {
			struct pl_counters n;
			struct fixture f;

			fixture_open(&f, kind, "driver=fault", "over=file", "path=short.img",
				     "fua=native", "fault=short", shorts[i], "kind=write",
				     "repeat=forever");
			do_write_pattern(&f, 4 * KiB, 12 * KiB, i, PL_FUA);
			check_pattern(&f, 4 * KiB, 12 * KiB, i);
			pl_export_counters(f.ex, &n);
			assert_eq(n.fua_native, 1);
			fixture_close(&f);
		}
	}
}

TEST(a_write_through_export_makes_every_change_stable)
{
	struct fixture f;
	struct pl_counters n;

	make_image("through.img", 1 * MiB);
	fixture_open(&f, BLOCKING, "path=through.img", "cache=writethrough");
	do_write(&f, 0, 4 * KiB, 1, 0);
	do_zero(&f, 4 * KiB, 4 * KiB, 0);
	do_trim(&f, 8 * KiB, 4 * KiB, 0);
	pl_export_counters(f.ex, &n);
	assert_eq(n.committed, 3);
	assert_eq(n.groups, 3);
	fixture_close(&f);
}
