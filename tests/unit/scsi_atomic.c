/*
 * scsi_atomic.c - COMPARE AND WRITE, ORWRITE, WRITE ATOMIC: nobody comes between, and nobody sees
 * half of it.
 */
#include "bytes.h"
#include "scsi.h"

#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))
#define MEMORY      WORDS("driver=memory", "size=4M")

static struct answer
compare_and_write(struct initiator *i, uint64_t lba, uint32_t blocks, uint32_t size,
		  const uint8_t *expected, const uint8_t *wanted)
{
	uint8_t *data = test_alloc(2 * blocks * size);
	struct answer a;

	memcpy(data, expected, blocks * size);
	memcpy(data + blocks * size, wanted, blocks * size);
	a = scsi_out(i, cdb_blocks(SCSI_COMPARE_AND_WRITE, 0, lba, blocks), 2 * blocks * size,
		     data);
	free(data);
	return a;
}

/* ---- COMPARE AND WRITE -------------------------------------------------------------------- */

TEST(what_compares_is_written)
{
	static const uint32_t lengths[] = { 1, 2, 9, 255 };
	uint8_t *old = test_alloc(255 * 512), *new = test_alloc(255 * 512);
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned i = 0; i < COUNT(lengths); i++) {
		uint32_t length = lengths[i] * 512;

		do_write_pattern(&s.disk[0].f, 0, 1 * MiB, i, 0);
		pattern_fill(old, length, 7 * 512, i);
		pattern_fill(new, length, 7 * 512, i + 100);
		assert_good(compare_and_write(&s.a, 7, lengths[i], 512, old, new));
		check_pattern(&s.disk[0].f, 0, 7 * 512, i);
		check_pattern(&s.disk[0].f, 7 * 512, length, i + 100);
		check_pattern(&s.disk[0].f, 7 * 512 + length, 512 * KiB, i);
	}
	lab_close(&s);
	free(old);
	free(new);
}

TEST(a_miscompare_tells_where_and_writes_nothing)
{
	uint8_t *expected = test_alloc(64 * KiB), *wanted = test_alloc(64 * KiB);
	struct lab s;

	memset(wanted, 0x5a, 64 * KiB);
	lab_open(&s, WORDS(), MEMORY);
	do_write_pattern(&s.disk[0].f, 0, 64 * KiB, 1, 0);
	pattern_fill(expected, 64 * KiB, 0, 1);
	for (uint32_t at = 0; at < 64 * KiB; at += at < 600 ? 1 : 509) {
		struct answer a;

		expected[at] ^= 0x80;
		a = compare_and_write(&s.a, 0, 128, 512, expected, wanted);
		assert_sense(a, SCSI_MISCOMPARE, 0x1d00);
		assert_true(a.has_information);
		assert_eq(a.information, at);
		expected[at] ^= 0x80;
	}
	check_pattern(&s.disk[0].f, 0, 64 * KiB, 1);
	assert_good(compare_and_write(&s.a, 0, 128, 512, expected, wanted));
	check_bytes(&s.disk[0].f, 0, 64 * KiB, 0x5a);
	lab_close(&s);
	free(expected);
	free(wanted);
}

TEST(other_data_out_than_twice_the_blocks_is_refused)
{
	static const uint32_t lengths[] = { 0, 512, 1023, 1025, 1536, 2048 };
	uint8_t data[2048] = { 0 };
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned i = 0; i < COUNT(lengths); i++)
		assert_sense(scsi_do(&s.a, cdb_blocks(SCSI_COMPARE_AND_WRITE, 0, 0, 1),
				     lengths[i] > 0 ? DATA_OUT : DATA_NONE, lengths[i], data),
			     SCSI_ILLEGAL_REQUEST, 0x2400);
	assert_sense(scsi_out(&s.a, cdb_blocks(SCSI_COMPARE_AND_WRITE, 0, 0, 0), 1024, data),
		     SCSI_ILLEGAL_REQUEST, 0x2400);
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_COMPARE_AND_WRITE, 0, 0, 0)));
	lab_close(&s);
}

/* Each task is READ, then COMPARE AND WRITE of one more, again and again. */
struct counter {
	struct initiator *i;
	struct task task;
	bool writing;
	uint8_t data[1024];
	unsigned increments;
};

static void
counter_send(struct counter *c)
{
	uint64_t n;

	if (c->writing) {
		memcpy(c->data + 512, c->data, 512);
		n = get_be64(c->data);
		put_be64(c->data + 512, n + 1);
		task_send(&c->task, c->i, 0, cdb_blocks(SCSI_COMPARE_AND_WRITE, 0, 3, 1), DATA_OUT,
			  1024, c->data, SCSI_SIMPLE);
	} else {
		task_send(&c->task, c->i, 0, cdb_blocks(SCSI_READ_16, 0, 3, 1), DATA_IN, 512,
			  c->data, SCSI_SIMPLE);
	}
}

static void
counter_answer(struct counter *c)
{
	struct answer a = task_wait(&c->task);

	if (!c->writing) {
		assert_good(a);
	} else if (a.status == SCSI_GOOD) {
		c->increments++;
	} else {
		assert_sense(a, SCSI_MISCOMPARE, 0x1d00);
		assert_true(a.information < 8);
	}
	c->writing = !c->writing;
}

/* Another channel of the same export: an NBD client, say. It has no COMPARE AND WRITE, but the
 * core's own, in the block beside: the same pages, and the same blocks of the medium. */
struct neighbour {
	struct lab *lab;
	pthread_t thread;
	unsigned increments;
	bool stop;
};

static int
increment(struct pl_request *req)
{
	uint8_t *p = req->user;

	put_be64(p, get_be64(p) + 1);
	return 0;
}

static void *
neighbour_run(void *arg)
{
	struct neighbour *n = arg;
	uint8_t block[512];
	struct fixture f;

	fixture_join(&f, BLOCKING, &n->lab->disk[0].f);
	while (!__atomic_load_n(&n->stop, __ATOMIC_RELAXED)) {
		struct iovec iov = { block, sizeof block };
		struct pl_request req = { .op = PL_MODIFY,
					  .offset = 4 * 512,
					  .length = 512,
					  .iov = &iov,
					  .iovcnt = 1,
					  .modify = increment,
					  .user = block };

		assert_eq(pl_request_call(f.ch, &req), 0);
		/* The same block as theirs, where they do not look. */
		assert_eq(try_fill(&f, 3 * 512 + 256, 100, 0, 0), 0);
		__atomic_add_fetch(&n->increments, 1, __ATOMIC_RELAXED);
	}
	fixture_close(&f);
	return NULL;
}

static uint64_t
number_at(struct lab *s, uint64_t offset)
{
	uint8_t data[8];

	do_read(&s->disk[0].f, offset, 8, data);
	return get_be64(data);
}

static void
count_up(const char *const *disk, unsigned rounds)
{
	static struct counter counters[4];
	struct neighbour n = { .stop = false };
	unsigned sum = 0;
	struct lab s;

	lab_open(&s, WORDS(), disk);
	n.lab = &s;
	do_zero(&s.disk[0].f, 0, 4096, 0);
	assert_eq(pthread_create(&n.thread, NULL, neighbour_run, &n), 0);
	while (__atomic_load_n(&n.increments, __ATOMIC_RELAXED) == 0)
		sched_yield(); /* it has begun */
	memset(counters, 0, sizeof counters);
	for (unsigned i = 0; i < COUNT(counters); i++)
		counters[i].i = i % 2 == 0 ? &s.a : &s.b;
	for (unsigned round = 0; round < rounds; round++) {
		for (unsigned i = 0; i < COUNT(counters); i++)
			counter_send(&counters[i]);
		for (unsigned i = 0; i < COUNT(counters); i++)
			counter_answer(&counters[i]);
	}
	__atomic_store_n(&n.stop, true, __ATOMIC_RELAXED);
	pthread_join(n.thread, NULL);
	for (unsigned i = 0; i < COUNT(counters); i++)
		sum += counters[i].increments;
	printf("%u increments by SCSI, %u beside\n", sum, n.increments);
	assert_true(sum > 0);
	assert_eq(number_at(&s, 3 * 512), sum);
	assert_eq(number_at(&s, 4 * 512), n.increments);
	lab_close(&s);
}

TEST(no_increment_is_lost_in_memory)
{
	count_up(MEMORY, 5000);
}

TEST(no_increment_is_lost_in_a_file)
{
	make_image("count.img", 4 * MiB);
	count_up(WORDS("driver=file", "path=count.img"), 1000);
}

/* Blocks of 4096 at the medium: two counters in one of them. */
TEST(no_increment_is_lost_beside_the_page_cache)
{
	make_image("count.img", 4 * MiB);
	count_up(WORDS("driver=file", "path=count.img", "cache=none"), 500);
}

TEST_SLOW(no_increment_is_lost_of_very_many)
{
	make_image("count.img", 4 * MiB);
	count_up(WORDS("driver=file", "path=count.img"), 200000);
}

TEST(of_two_that_expect_the_same_one_wins)
{
	uint8_t first[1024] = { 0 }, second[1024] = { 0 };
	struct task one = { .hold = false }, two = { .hold = false };
	unsigned good;
	struct lab s;

	memset(first + 512, 1, 512);
	memset(second + 512, 2, 512);
	make_image("win.img", 1 * MiB);
	lab_open(&s, WORDS(), WORDS("driver=file", "path=win.img"));
	for (unsigned i = 0; i < 200; i++) {
		do_zero(&s.disk[0].f, 0, 512, 0);
		task_send(&one, &s.a, 0, cdb_blocks(SCSI_COMPARE_AND_WRITE, 0, 0, 1), DATA_OUT,
			  1024, first, SCSI_SIMPLE);
		task_send(&two, &s.b, 0, cdb_blocks(SCSI_COMPARE_AND_WRITE, 0, 0, 1), DATA_OUT,
			  1024, second, SCSI_SIMPLE);
		good = task_wait(&one).status == SCSI_GOOD;
		good += task_wait(&two).status == SCSI_GOOD;
		assert_eq(good, 1);
		check_bytes(&s.disk[0].f, 0, 512, one.answer.status == SCSI_GOOD ? 1 : 2);
	}
	lab_close(&s);
}

/* ---- ORWRITE ------------------------------------------------------------------------------ */

TEST(bits_that_are_set_stay_set_and_none_is_lost)
{
	uint8_t data[8][4096];
	struct task tasks[8];
	struct lab s;

	make_image("or.img", 1 * MiB);
	lab_open(&s, WORDS(), WORDS("driver=file", "path=or.img"));
	for (unsigned round = 0; round < 50; round++) {
		do_zero(&s.disk[0].f, 0, 4096, 0);
		memset(tasks, 0, sizeof tasks);
		for (unsigned i = 0; i < 8; i++) {
			memset(data[i], 1 << i, sizeof data[i]);
			task_send(&tasks[i], i % 2 == 0 ? &s.a : &s.b, 0,
				  cdb_blocks(SCSI_ORWRITE_16, 0, 0, 8), DATA_OUT, 4096, data[i],
				  SCSI_SIMPLE);
		}
		for (unsigned i = 0; i < 8; i++)
			assert_good(task_wait(&tasks[i]));
		check_bytes(&s.disk[0].f, 0, 4096, 0xff);
	}
	lab_close(&s);
}

/* ---- WRITE ATOMIC -------------------------------------------------------------------------- */

/* The disk takes a write sector by sector, and rests in between: time for a read to see half. */
#define SLOW_WRITES \
	WORDS("driver=fault", "over=memory", "size=1M", "kind=write", "fault=short", "short=512", \
	      "delay=200us", "repeat=forever")

static unsigned
mixtures_seen(uint8_t write)
{
	uint8_t new[4096], got[4096];
	unsigned mixtures = 0;
	struct lab s;

	lab_open(&s, WORDS(), SLOW_WRITES);
	for (unsigned round = 1; round <= 10; round++) {
		struct task task = { .hold = false };

		memset(new, (int)round, sizeof new);
		task_send(&task, &s.a, 0, cdb_blocks(write, 0, 8, 8), DATA_OUT, sizeof new, new,
			  SCSI_SIMPLE);
		while (!task.done) {
			assert_good(
				scsi_in(&s.b, cdb_blocks(SCSI_READ_16, 0, 8, 8), sizeof got, got));
			mixtures += memcmp(got, got + 1, sizeof got - 1) != 0;
			lab_settle(&s);
		}
		assert_good(task_wait(&task));
	}
	lab_close(&s);
	return mixtures;
}

TEST(nobody_sees_half_of_an_atomic_write)
{
	assert_eq(mixtures_seen(SCSI_WRITE_ATOMIC_16), 0);
	/* Of a plain one they do, here: else this shows nothing. */
	assert_true(mixtures_seen(SCSI_WRITE_16) > 0);
}

/* Else the verification finds what another has written. */
TEST(nobody_writes_between_write_and_verify)
{
	uint8_t one[4096], two[4096];
	struct task first = { .hold = false }, second = { .hold = false };
	struct lab s;

	memset(one, 1, sizeof one);
	memset(two, 2, sizeof two);
	lab_open(&s, WORDS(), SLOW_WRITES);
	task_send(&first, &s.a, 0, cdb_blocks(SCSI_WRITE_AND_VERIFY_10, 0x02, 8, 8), DATA_OUT,
		  sizeof one, one, SCSI_SIMPLE);
	task_send(&second, &s.b, 0, cdb_blocks(SCSI_WRITE_10, 0, 8, 8), DATA_OUT, sizeof two, two,
		  SCSI_SIMPLE);
	assert_good(task_wait(&first));
	assert_good(task_wait(&second));
	check_bytes(&s.disk[0].f, 4096, 4096, 2);
	lab_close(&s);
}

/* "Block Limits VPD page": what it says is what is taken. */
TEST(atomic_writes_are_as_large_and_aligned_as_the_unit_says)
{
	uint8_t page[64], data[16 * 512];
	uint32_t most, align;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(
		scsi_in(&s.a, CDB(SCSI_INQUIRY, 1, 0xb0, 0, sizeof page, 0), sizeof page, page));
	most = get_be32(page + 44);
	align = get_be32(page + 48);
	assert_eq(most, 8);
	assert_true(align <= most && (align == 0 || most % align == 0));
	assert_eq(get_be32(page + 52), 0);
	memset(data, 0x3c, sizeof data);
	assert_good(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_ATOMIC_16, 0, 8, most), most * 512, data));
	check_bytes(&s.disk[0].f, 8 * 512, most * 512, 0x3c);
	assert_field(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_ATOMIC_16, 0, 8, most + 1),
			      (most + 1) * 512, data),
		     12, -1);
	if (align > 1)
		assert_field(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_ATOMIC_16, 0, 9, 1), 512, data),
			     2, -1);
	lab_close(&s);
}
