/* extent.c - a list of extents is short, whole and never longer than asked. */
#include "platter.h"
#include "test.h"

TEST(neighbours_alike_are_one_extent)
{
	struct pl_extent list[2];
	struct pl_extents x = { .list = list, .max = 2 };

	assert_true(pl_extents_add(&x, 10, 0));
	assert_true(pl_extents_add(&x, 5, 0));
	assert_true(pl_extents_add(&x, 0, PL_EXTENT_HOLE)); /* nothing is no extent */
	assert_true(pl_extents_add(&x, 7, PL_EXTENT_HOLE));
	assert_eq(x.count, 2);
	assert_eq(list[0].length, 15);
	assert_eq(pl_extents_length(&x), 22);
}

TEST(a_full_list_says_so_and_stays_as_it_is)
{
	struct pl_extent list[1];
	struct pl_extents x = { .list = list, .max = 1 };

	assert_true(pl_extents_add(&x, 10, 0));
	assert_false(pl_extents_add(&x, 1, PL_EXTENT_ZERO));
	assert_true(pl_extents_add(&x, 1, 0));
	assert_eq(x.count, 1);
	assert_eq(list[0].length, 11);
}

TEST(what_is_beyond_the_length_is_cut)
{
	for (uint64_t length = 0; length <= 12; length++) {
		struct pl_extent list[3];
		struct pl_extents x = { .list = list, .max = 3 };

		pl_extents_add(&x, 3, 0);
		pl_extents_add(&x, 4, PL_EXTENT_HOLE);
		pl_extents_add(&x, 3, 0);
		pl_extents_trim(&x, length);
		assert_eq(pl_extents_length(&x), length < 10 ? length : 10);
		assert_eq(x.count, length == 0 ? 0 : length <= 3 ? 1 : length <= 7 ? 2 : 3);
	}
}
