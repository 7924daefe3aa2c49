/* range.c - who changes part of a block has it to himself, and nobody waits for ever. */
#include "range.h"

#include "fixture.h"
#include "loop.h"
#include "test.h"

#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

struct neighbour {
	const struct fixture *first;
	enum loop_kind kind;
	unsigned number, count, bytes, rounds;
};

/* Each writer owns every count-th piece of the disk, counts in it, and reads it back. */
static void *
write_own_pieces(void *arg)
{
	struct neighbour *n = arg;
	uint64_t size = pl_export_geometry(n->first->ex)->size;
	struct fixture f;

	fixture_join(&f, n->kind, n->first);
	for (unsigned round = 1; round <= n->rounds; round++) {
		for (uint64_t at = n->number * n->bytes; at + n->bytes <= size;
		     at += n->count * n->bytes) {
			unsigned char byte = (unsigned char)(round + n->number);

			if (round % 4 == 0)
				do_zero(&f, at, n->bytes, 0);
			else
				do_write(&f, at, n->bytes, byte,
					 (round + n->number) % 3 == 0 ? PL_FUA : 0);
			check_bytes(&f, at, n->bytes, round % 4 == 0 ? 0 : byte);
		}
	}
	fixture_close(&f);
	return NULL;
}

static void
run_neighbours(const char *cache, const char *fua, unsigned bytes, uint64_t size, unsigned rounds)
{
	enum { WRITERS = 6 };
	struct neighbour n[WRITERS];
	pthread_t threads[WRITERS];
	struct fixture f;

	make_image("range.img", size);
	fixture_open(&f, BLOCKING, "path=range.img", cache, fua);
	for (unsigned i = 0; i < WRITERS; i++) {
		n[i] = (struct neighbour){ &f,    i % 3 == 0 ? RING : BLOCKING, i, WRITERS, bytes,
					   rounds };
		assert_eq(pthread_create(&threads[i], NULL, write_own_pieces, &n[i]), 0);
	}
	for (unsigned i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
	for (uint64_t at = 0; at + bytes <= size; at += bytes) {
		unsigned owner = (unsigned)(at / bytes) % WRITERS;

		check_bytes(&f, at, bytes, (unsigned char)(rounds + owner));
	}
	fixture_close(&f);
}

/* Parts of one sector, sectors of one page, and sizes that match neither. */
TEST(writers_of_neighbouring_bytes_never_lose_each_others)
{
	run_neighbours("cache=none", "fua=auto", 100, 9000, 9);
}

TEST(writers_of_neighbouring_sectors_never_lose_each_others)
{
	run_neighbours("cache=none", "fua=native", 512, 64 * KiB, 9);
}

TEST(writers_around_an_odd_end_never_lose_each_others)
{
	run_neighbours("cache=none", "fua=auto", 300, 8192 + 4096 - 7, 9);
}

/* FUA writes past the page cache beside others through it, in the same sectors, pages and
 * folios: what is there is what was written last, also when it is read back at once. */
TEST(writes_past_the_cache_and_through_it_never_lose_each_others)
{
	run_neighbours("cache=auto", "fua=native", 512, 96 * KiB, 9);
	run_neighbours("cache=auto", "fua=native", 1024, 100 * KiB + 3, 9);
	run_neighbours("cache=auto", "fua=native", 4096, 2 * MiB, 5);
	run_neighbours("cache=auto", "fua=native", 300, 30000, 9);
}

TEST_SLOW(writes_past_the_cache_and_through_it_never_lose_each_others_for_long)
{
	for (unsigned i = 0; i < 20; i++) {
		run_neighbours("cache=auto", "fua=native", 512, 256 * KiB, 13);
		run_neighbours("cache=auto", "fua=native", 4096, 8 * MiB, 13);
	}
}

/* It goes through the page cache, and would bring back what a direct write to its page, which
 * came meanwhile, has changed. */
TEST(who_writes_past_the_last_block_has_the_page_to_himself)
{
	const struct {
		uint64_t offset, length;
	} end = { 8192 + 512, 100 }, beside = { 8192, 512 };
	unsigned char *data = test_alloc(512);

	for (unsigned end_first = 0; end_first < 2; end_first++) {
		struct job *first, *second;
		struct fixture f;
		struct batch b;

		make_image("odd.img", end.offset + end.length);
		fixture_open(&f, RING, "driver=fault", "over=file", "path=odd.img", "cache=none",
			     "kind=write", "fault=delay", "delay=100ms");
		batch_start(&b, &f, 2);
		first = batch_submit(&b, PL_WRITE, 0, end_first ? end.offset : beside.offset,
				     end_first ? end.length : beside.length, data);
		second = batch_submit(&b, PL_WRITE, 0, end_first ? beside.offset : end.offset,
				      end_first ? beside.length : end.length, data);
		batch_wait(&b, 2);
		assert_eq(first->rank, 1);
		assert_eq(second->rank, 2);
		batch_end(&b);
		fixture_close(&f);
	}
	free(data);
}

/* Whoever waits, waits for those in his way; thousands elsewhere cost him nothing. */
TEST(thousands_who_wait_are_served_in_time)
{
	enum { COUNT = 3000 };
	static char data[100];
	struct fixture f;
	struct batch b;

	make_image("spread.img", 8 << 20);
	fixture_open(&f, RING, "path=spread.img", "cache=none");
	batch_start(&b, &f, COUNT);
	for (unsigned i = 0; i < COUNT; i++)
		batch_submit(&b, PL_WRITE, 0, i % (COUNT / 2) * 4096 + 7, sizeof data, data);
	batch_end(&b);
	fixture_close(&f);
}

static unsigned granted;

static void
is_granted(struct pl_request *req)
{
	(void)req;
	granted++;
}

/* Otherwise those who share a range could keep it from one who wants it alone for ever. */
TEST(nobody_overtakes_one_who_waits_for_what_overlaps)
{
	struct pl_request holder, first, second, elsewhere;
	struct pl_request *all[] = { &holder, &first, &second, &elsewhere };
	struct pl_ranges r = { 0 };
	struct fixture f;

	fixture_open(&f, RING, "driver=memory", "size=1M");
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++)
		*all[i] = (struct pl_request){ .channel = f.ch };
	pl_ranges_init(&r);
	assert_true(pl_ranges_take(&r, &holder, 0, 10, PL_RANGE_PAST, is_granted));
	assert_true(!pl_ranges_take(&r, &first, 5, 20, PL_RANGE_ALONE, is_granted));
	assert_true(!pl_ranges_take(&r, &second, 15, 30, PL_RANGE_SHARED, is_granted));
	assert_true(pl_ranges_take(&r, &elsewhere, 20, 30, PL_RANGE_SHARED, is_granted));

	pl_ranges_give(&r, &holder);
	while (granted < 1)
		pl_loop_turn(f.loop);
	assert_true(first.range.held && !second.range.held);
	pl_ranges_give(&r, &first);
	while (granted < 2)
		pl_loop_turn(f.loop);
	assert_true(second.range.held);
	pl_ranges_give(&r, &second);
	pl_ranges_give(&r, &elsewhere);
	pl_ranges_destroy(&r);
	fixture_close(&f);
}

TEST(requests_that_overlap_are_all_done)
{
	for_each_loop_kind(kind)
	{
		enum { COUNT = 60 };
		static char data[COUNT][3000];
		struct fixture f;
		struct batch b;

		make_image("overlap.img", 1 << 20);
		fixture_open(&f, kind, "path=overlap.img", "cache=none");
		batch_start(&b, &f, COUNT);
		for (unsigned i = 0; i < COUNT; i++)
			batch_submit(&b, i % 5 == 4 ? PL_ZERO : PL_WRITE, i % 7 == 0 ? PL_FUA : 0,
				     i * 700, 3000 - i % 2 * 440, i % 5 == 4 ? NULL : data[i]);
		batch_wait(&b, COUNT);
		for (unsigned i = 0; i < COUNT; i++)
			assert_eq(b.jobs[i].error, 0);
		batch_end(&b);
		fixture_close(&f);
	}
}
