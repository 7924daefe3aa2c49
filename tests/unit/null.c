/* null.c - the driver that has a size and no bytes. */
#include "fixture.h"
#include "test.h"

#include <errno.h>

#define EVERYTHING \
	(PL_CAP_WRITE | PL_CAP_FLUSH | PL_CAP_FUA | PL_CAP_ZERO | PL_CAP_FAST_ZERO | PL_CAP_TRIM | \
	 PL_CAP_CACHE | PL_CAP_EXTENTS | PL_CAP_MULTI_CONN | PL_CAP_UNMAP | PL_CAP_UNMAP_ZEROES)

TEST(a_null_disk_declares_everything)
{
	struct fixture f;

	fixture_open(&f, BLOCKING, "driver=null", "size=3000");
	assert_eq(pl_export_capabilities(f.ex), EVERYTHING);
	assert_eq(pl_export_geometry(f.ex)->size, 3000);
	fixture_close(&f);
}

TEST(a_null_disk_needs_a_size)
{
	struct pl_export *ex;
	struct pl_error err;

	assert_eq(try_export(WORDS("driver=null"), 0, &ex, &err), -EINVAL);
	assert_contains(err.text, "size");
}

TEST(what_is_written_reads_as_zeroes)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, "driver=null", "size=1M");
		do_write(&f, 0, 1 * MiB, 0xaa, PL_FUA);
		check_bytes(&f, 0, 1 * MiB, 0);
		do_write(&f, 12345, 6789, 0xbb, 0);
		check_bytes(&f, 12000, 9000, 0);
		fixture_close(&f);
	}
}

TEST(every_operation_succeeds)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, "driver=null", "size=9223372036854775807");
		do_write(&f, INT64_MAX - 100, 100, 0xaa, 0);
		do_zero(&f, 0, INT64_MAX, PL_FUA | PL_NO_HOLE | PL_FAST);
		do_trim(&f, 0, INT64_MAX, PL_FUA);
		do_flush(&f);
		assert_eq(try_cache(&f, 0, INT64_MAX), 0);
		assert_false(pl_export_failed(f.ex));
		fixture_close(&f);
	}
}

TEST(all_of_it_is_one_hole)
{
	struct fixture f;
	struct pl_extent list[4];
	struct pl_extents x = { .list = list, .max = 4 };

	fixture_open(&f, RING, "driver=null", "size=1T");
	do_write(&f, 0, 64 * KiB, 0xaa, 0);
	assert_eq(try_extents(&f, 512, 1 * TiB - 512, &x), 0);
	assert_eq(x.count, 1);
	assert_eq(list[0].length, 1 * TiB - 512);
	assert_eq(list[0].flags, PL_EXTENT_HOLE | PL_EXTENT_ZERO);
	fixture_close(&f);
}

TEST(the_size_is_the_end)
{
	struct fixture f;

	fixture_open(&f, BLOCKING, "driver=null", "size=1M");
	assert_eq(try_fill(&f, 1 * MiB - 1, 2, 0xaa, 0), -ENOSPC);
	assert_eq(try_zero(&f, 1 * MiB, 1, 0), -ENOSPC);
	fixture_close(&f);
}
