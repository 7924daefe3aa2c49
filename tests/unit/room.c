/* room.c - memory for requests: bounded, whole, first come first served. */
#include "room.h"

#include "fixture.h"
#include "test.h"

#include <stdlib.h>
#include <string.h>

static unsigned order_of_grants[8], grants;

struct wish {
	struct room_wish wish;
	struct room_share share;
	unsigned number;
	char mark;
};

static void
granted(struct room_wish *wish)
{
	order_of_grants[grants++] = ((struct wish *)wish)->number;
}

/* Of a connection of its own, which has moved so many bytes. */
static bool
take(struct room *room, struct wish *w, uint64_t length, uint64_t moved)
{
	w->share = (struct room_share){ 0 };
	w->wish = (struct room_wish){ .share = &w->share, .length = length, .granted = granted };
	return room_take(room, &w->wish, moved);
}

static void
give(struct room *room, struct wish *w)
{
	room_give(room, &w->wish);
	assert_eq(room_held(&w->share), 0);
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

			if (!take(room, one, length, random_below(&seed, 512 * KiB))) {
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
	assert_true(room_trim(room));
	assert_true(!room_trim(room));
	for (unsigned tried = 0; tried < 2; tried++) {
		assert_true(take(room, &whole, 32 * MiB, tried * 32 * MiB));
		assert_eq(whole.wish.tried, tried);
		assert_eq(*(char *)whole.wish.memory, 0);
		give(room, &whole);
	}
	room_free(room);
}

/* 64 MiB: of large requests 32 for those who were tried, and 32 for others; and 8 each of small
 * ones. What `moved` is here decides on nothing but that. */
static const uint64_t much = 1024 * MiB;

TEST(who_waits_is_served_in_order_and_small_wishes_do_not_overtake_a_large_one)
{
	struct room *room = make(64 * MiB);
	struct wish a, b, large = { .number = 1 }, later = { .number = 2 }, gone = { .number = 3 };

	assert_true(take(room, &a, 16 * MiB, much));
	assert_true(take(room, &b, MiB, much));
	assert_true(!take(room, &large, 32 * MiB, much));
	assert_true(!take(room, &gone, MiB, much));
	assert_true(!take(room, &later, MiB, much));
	room_forget(room, &gone.wish);
	give(room, &b);
	assert_eq(grants, 0);
	give(room, &a);
	assert_eq(grants, 1);
	assert_eq(order_of_grants[0], 1);
	give(room, &large);
	assert_eq(grants, 2);
	assert_eq(order_of_grants[1], 2);
	give(room, &later);
	room_free(room);
}

TEST(who_waits_behind_one_that_gives_up_need_not_wait_for_anybody_else)
{
	struct room *room = make(64 * MiB);
	struct wish a, large = { .number = 1 }, later = { .number = 2 };

	assert_true(take(room, &a, 16 * MiB, much));
	assert_true(!take(room, &large, 32 * MiB, much));
	assert_true(!take(room, &later, MiB, much));
	room_forget(room, &large.wish);
	assert_eq(grants, 1);
	assert_eq(order_of_grants[0], 2);
	give(room, &a);
	give(room, &later);
	room_free(room);
}

TEST(large_requests_cannot_exhaust_the_small_part)
{
	struct room *room = make(64 * MiB);
	struct wish large[2], more[2], small;

	for (unsigned tried = 0; tried < 2; tried++) {
		assert_true(take(room, &large[tried], 32 * MiB, tried * much));
		assert_true(!take(room, &more[tried], ROOM_SMALL + 1, tried * much));
	}
	for (unsigned tried = 0; tried < 2; tried++) {
		assert_true(take(room, &small, ROOM_SMALL, tried * much));
		give(room, &small);
		room_forget(room, &more[tried].wish);
		give(room, &large[tried]);
	}
	room_free(room);
}

/* However many there are that hold what they can get, and do not move. */
TEST(who_gets_on_waits_for_nobody_who_does_not)
{
	enum { COUNT = 1000 };
	static struct wish stuck[COUNT][2];
	struct room *room = make(64 * MiB);
	struct wish one;

	for (unsigned i = 0; i < COUNT; i++) {
		for (unsigned large = 0; large < 2; large++)
			take(room, &stuck[i][large], large ? 4 * MiB : ROOM_SMALL, 0);
	}
	assert_true(stuck[COUNT - 1][0].wish.waiting && stuck[COUNT - 1][1].wish.waiting);
	assert_true(!take(room, &one, 4 * KiB, 4 * KiB - 1));
	room_forget(room, &one.wish);
	assert_true(take(room, &one, 4 * KiB, 4 * KiB));
	give(room, &one);
	assert_true(take(room, &one, 4 * MiB, 4 * MiB));
	give(room, &one);

	/* One that has been standing still is none of them, until it has moved as much again. */
	assert_true(take(room, &one, 4 * MiB, 4 * MiB));
	for (unsigned i = 0; i < 5; i++)
		assert_true(!room_is_kept(room, &one.share, false, 4 * MiB));
	room_give(room, &one.wish);
	assert_true(!room_take(room, &one.wish, 8 * MiB - 1));
	assert_true(one.wish.waiting && !one.wish.tried);
	/* And then it does not wait any longer where it did. */
	assert_true(room_take(room, &one.wish, 8 * MiB));
	give(room, &one);

	for (unsigned i = 0; i < COUNT; i++) {
		for (unsigned large = 0; large < 2; large++)
			room_forget(room, &stuck[i][large].wish);
	}
	for (unsigned i = 0; i < COUNT; i++) {
		for (unsigned large = 0; large < 2; large++) {
			if (stuck[i][large].wish.memory != NULL)
				give(room, &stuck[i][large]);
		}
	}
	room_free(room);
}

/* But for one large piece each, they leave half of what there is for them to those who come. */
TEST(who_has_not_moved_what_it_holds_leaves_room_for_newcomers)
{
	struct room *room = make(64 * MiB);
	struct room_share share = { 0 };
	struct wish w[3], large, others[3];

	for (unsigned i = 0; i < 3; i++)
		w[i].wish = (struct room_wish){ .share = &share,
						.length = 8 * MiB,
						.granted = granted };
	assert_true(room_take(room, &w[0].wish, 0));
	assert_true(room_take(room, &w[1].wish, 0));
	assert_true(!room_take(room, &w[2].wish, 24 * MiB - 1));
	assert_true(w[2].wish.waiting);
	assert_true(take(room, &others[0], 8 * MiB, 0));
	assert_true(take(room, &others[1], 8 * MiB, 0));
	assert_true(!take(room, &others[2], 8 * MiB, 0));

	/* It is not the first in the line, though it came before. */
	give(room, &others[0]);
	assert_true(others[2].wish.memory != NULL && w[2].wish.waiting);
	give(room, &others[1]);
	assert_true(w[2].wish.waiting);
	room_give(room, &w[0].wish);
	assert_true(w[2].wish.waiting);
	give(room, &others[2]);
	assert_true(w[2].wish.memory != NULL);
	room_give(room, &w[2].wish);

	/* Once it has moved as much there is memory elsewhere, and for what comes already. */
	assert_true(take(room, &large, 8 * MiB, 0));
	assert_true(!room_take(room, &w[2].wish, 16 * MiB - 1));
	assert_true(room_take(room, &w[2].wish, 16 * MiB));
	w[0].wish.arriving = true;
	assert_true(room_take(room, &w[0].wish, 0));
	assert_eq(room_held(&share), 24 * MiB);
	for (unsigned i = 0; i < 3; i++)
		room_give(room, &w[i].wish);
	give(room, &large);
	assert_eq(room_held(&share), 0);
	room_free(room);
}

/* Only who holds what others wait for is in their way, and only after a while. */
TEST(what_nobody_waits_for_may_be_held_for_ever)
{
	struct room *room = make(64 * MiB);
	struct wish large, small, other, tried;
	unsigned ticks = 0;

	assert_true(take(room, &large, 32 * MiB, 0));
	assert_true(take(room, &small, KiB, 0));
	assert_true(take(room, &tried, 32 * MiB, much));
	for (unsigned i = 0; i < 100; i++)
		assert_true(!room_is_kept(room, &large.share, false, 0));
	assert_true(!take(room, &other, MiB, 0));
	large.share.still = 0;
	while (!room_is_kept(room, &large.share, false, 0)) {
		assert_true(!room_is_kept(room, &small.share, false, 0));
		assert_true(!room_is_kept(room, &tried.share, false, 0));
		ticks++;
	}
	assert_true(ticks >= 3);
	assert_true(!room_is_kept(room, &large.share, true, 0));
	assert_true(!room_is_kept(room, &large.share, false, 16 * MiB));
	room_forget(room, &other.wish);
	give(room, &large);
	give(room, &small);
	give(room, &tried);
	room_free(room);
}
