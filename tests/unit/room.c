/* room.c - memory for requests: bounded, whole, first come first served. */
#include "room.h"

#include "fixture.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static unsigned order_of_grants[8], grants;

struct wish {
	struct room_wish wish;
	unsigned number;
	char mark;
};

static void
granted(struct room_wish *wish)
{
	order_of_grants[grants++] = ((struct wish *)wish)->number;
}

static bool
take(struct room *room, struct wish *w, uint64_t length, bool small)
{
	w->wish = (struct room_wish){ .length = length, .small = small, .granted = granted };
	return room_take(room, &w->wish);
}

static void
give(struct room *room, struct wish *w)
{
	room_give(room, w->wish.memory, w->wish.length, w->wish.small);
}

static struct room *
make(uint64_t bytes)
{
	struct room *room;
	struct pl_error err;

	if (room_new(&room, bytes, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	return room;
}

/* Random sizes, taken and given in random order: no byte belongs to two, and in the end all of
 * it is one piece again. */
TEST(memory_is_never_given_twice_and_comes_together_again)
{
	enum { COUNT = 200 };
	static struct wish w[COUNT];
	struct room *room = make(128 * MiB);
	uint64_t seed = test_seed();
	struct wish whole;

	for (unsigned step = 0; step < 20000; step++) {
		struct wish *one = &w[random_below(&seed, COUNT)];

		if (one->mark == 0) {
			uint64_t length =
				1 + random_below(&seed, step % 2 == 0 ? 8 * KiB : 512 * KiB);

			if (!take(room, one, length, length <= ROOM_SMALL)) {
				room_forget(room, &one->wish);
				continue;
			}
			assert_eq((uintptr_t)one->wish.memory % 4096, 0);
			one->mark = (char)(1 + random_below(&seed, 100));
			memset(one->wish.memory, one->mark, length);
		} else {
			const char *p = one->wish.memory;

			for (uint64_t i = 0; i < one->wish.length; i += 509)
				assert_eq(p[i], one->mark);
			assert_eq(p[one->wish.length - 1], one->mark);
			one->mark = 0;
			give(room, one);
		}
	}
	for (unsigned i = 0; i < COUNT; i++) {
		if (w[i].mark != 0)
			give(room, &w[i]);
	}
	room_trim(room);
	room_trim(room);
	assert_true(take(room, &whole, 32 * MiB, false));
	assert_eq(*(char *)whole.wish.memory, 0);
	give(room, &whole);
	room_free(room);
}

TEST(who_waits_is_served_in_order_and_small_wishes_do_not_overtake_a_large_one)
{
	struct room *room = make(64 * MiB); /* 64 of the large part: whole blocks of 32 */
	struct wish a, b, large = { .number = 1 }, small = { .number = 2 }, gone = { .number = 3 };

	assert_true(take(room, &a, 32 * MiB, false));
	assert_true(take(room, &b, 4 * KiB, false));
	assert_true(!room_is_short(room));
	assert_true(!take(room, &large, 32 * MiB, false));
	assert_true(!take(room, &gone, 4 * KiB, false));
	assert_true(!take(room, &small, 4 * KiB, false));
	assert_true(room_is_short(room));
	room_forget(room, &gone.wish);
	give(room, &b);
	assert_eq(grants, 1);
	assert_eq(order_of_grants[0], 1);
	assert_true(room_is_short(room));
	give(room, &a);
	assert_eq(grants, 2);
	assert_eq(order_of_grants[1], 2);
	assert_true(!room_is_short(room));
	give(room, &large);
	give(room, &small);
	room_free(room);
}

TEST(who_waits_behind_one_that_gives_up_need_not_wait_for_anybody_else)
{
	struct room *room = make(64 * MiB);
	struct wish a, b, large = { .number = 1 }, small = { .number = 2 };

	assert_true(take(room, &a, 32 * MiB, false));
	assert_true(take(room, &b, 4 * KiB, false));
	assert_true(!take(room, &large, 32 * MiB, false));
	assert_true(!take(room, &small, 4 * KiB, false));
	room_forget(room, &large.wish);
	assert_eq(grants, 1);
	assert_eq(order_of_grants[0], 2);
	assert_true(!room_is_short(room));
	give(room, &a);
	give(room, &b);
	give(room, &small);
	room_free(room);
}

TEST(large_requests_cannot_exhaust_the_small_part)
{
	struct room *room = make(64 * MiB);
	struct wish large[3], small;

	for (unsigned i = 0; take(room, &large[i], 32 * MiB, false); i++)
		assert_true(i < 2);
	assert_true(take(room, &small, ROOM_SMALL, true));
	give(room, &small);
	room_forget(room, &large[2].wish);
	give(room, &large[0]);
	give(room, &large[1]);
	room_free(room);
}
