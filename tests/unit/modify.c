/* modify.c - read, change and write back, with nobody in between. */
#include "fixture.h"
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* ---- verbs ----------------------------------------------------------------------- */

static int
try_modify(struct fixture *f, uint64_t offset, uint64_t length, void *data, unsigned flags,
	   int (*modify)(struct pl_request *req), void *user)
{
	struct iovec iov = { data, length };
	struct pl_request req = {
		.op = PL_MODIFY,
		.flags = flags,
		.offset = offset,
		.length = length,
		.iov = &iov,
		.iovcnt = 1,
		.modify = modify,
		.user = user,
	};

	return pl_request_call(f->ch, &req);
}

static int
increment(struct pl_request *req)
{
	uint64_t n;

	assert_true(req->iov->iov_len == req->length && req->iovcnt == 1);
	memcpy(&n, req->iov->iov_base, sizeof n);
	n++;
	memcpy(req->iov->iov_base, &n, sizeof n);
	return 0;
}

static int
invert(struct pl_request *req)
{
	unsigned char *p = req->iov->iov_base;

	for (uint64_t i = 0; i < req->length; i++)
		p[i] ^= 0xff;
	return 0;
}

static int
refuse(struct pl_request *req)
{
	memset(req->iov->iov_base, 0x77, req->length);
	return 42;
}

static uint64_t
number_at(struct fixture *f, uint64_t offset)
{
	uint64_t n;

	do_read(f, offset, sizeof n, &n);
	return n;
}

/* ---- on every driver ------------------------------------------------------------- */

#define FILE_WITH(cache, fua) "driver=file", "path=modify.img", "cache=" cache, "fua=" fua
static const char *const *const disks[] = {
	WORDS("driver=memory", "size=100k"),
	WORDS("driver=powercut", "over=memory", "size=100k"),
	WORDS("driver=powercut", "over=memory", "size=100k", "powercut-fua=commit"),
	WORDS("driver=fault", "over=memory", "size=100k", "fault=short", "short=700",
	      "repeat=forever"),
	WORDS("driver=fault", "over=file", "path=modify.img", "cache=none", "fault=short",
	      "short=512", "repeat=forever"),
	WORDS(FILE_WITH("auto", "native")),
	WORDS(FILE_WITH("writeback", "native")),
	WORDS(FILE_WITH("writeback", "commit")),
	WORDS(FILE_WITH("none", "native")),
	WORDS(FILE_WITH("none", "commit")),
	WORDS(FILE_WITH("directsync", "auto")),
	WORDS(FILE_WITH("writethrough", "auto")),
	WORDS(FILE_WITH("unsafe", "auto")),
};
#define DISKS (sizeof disks / sizeof *disks)

/* for_each_disk (f): opens each, on each kind of loop; the body closes it. */
static void
open_disk(struct fixture *f, enum loop_kind kind, unsigned i)
{
	for (unsigned w = 0; disks[i][w] != NULL; w++)
		printf("%s%s", disks[i][w], disks[i][w + 1] != NULL ? " " : "\n");
	make_image("modify.img", 100 * KiB);
	fixture_open_words(f, kind, 0, disks[i]);
}

static unsigned
fua_of(const struct fixture *f)
{
	return (pl_export_capabilities(f->ex) & PL_CAP_FUA) != 0 ? PL_FUA : 0;
}

/* Whole blocks, parts of one, many of them, memory that lies askew, the odd end. */
TEST(what_modify_makes_of_the_range_is_written_back)
{
	static const uint64_t ranges[][2] = {
		{ 0, 512 },        { 4096, 4096 },        { 100, 1 },
		{ 511, 2 },        { 1000, 5000 },        { 3, 90 * 1024 },
		{ 0, 100 * 1024 }, { 100 * 1024 - 1, 1 }, { 100 * 1024 - 700, 700 },
	};
	unsigned char *model = test_alloc(100 * KiB), *room = test_alloc(101 * KiB);

	for_each_loop_kind(kind)
	{
		for (unsigned d = 0; d < DISKS; d++) {
			struct fixture f;

			open_disk(&f, kind, d);
			pattern_fill(model, 100 * KiB, 0, d);
			do_write_data(&f, 0, 100 * KiB, model, 0);
			for (unsigned i = 0; i < sizeof ranges / sizeof *ranges * 2; i++) {
				uint64_t offset = ranges[i / 2][0], length = ranges[i / 2][1];
				unsigned char *data = room + (i % 2 == 0 ? 0 : 13);

				assert_eq(try_modify(&f, offset, length, data,
						     i % 3 == 0 ? fua_of(&f) : 0, invert, NULL),
					  0);
				for (uint64_t j = offset; j < offset + length; j++)
					model[j] ^= 0xff;
				assert_mem(data, model + offset, length);
				check_data(&f, 0, 100 * KiB, model);
			}
			fixture_close(&f);
		}
	}
	free(model);
	free(room);
}

TEST(what_modify_refuses_is_not_written_and_its_word_comes_back)
{
	for_each_loop_kind(kind)
	{
		for (unsigned d = 0; d < DISKS; d++) {
			char data[3000];
			struct pl_counters c;
			struct fixture f;

			open_disk(&f, kind, d);
			do_write_pattern(&f, 0, 100 * KiB, 1, 0);
			assert_eq(try_modify(&f, 100, 3000, data, 0, refuse, NULL), 42);
			assert_eq(try_modify(&f, 512, 512, data, fua_of(&f), refuse, NULL), 42);
			check_pattern(&f, 0, 100 * KiB, 1);
			pl_export_counters(f.ex, &c);
			assert_eq(c.errors, 0);
			assert_eq(c.writes, 3);
			assert_eq(try_modify(&f, 100, 8, data, 0, increment, NULL), 0);
			fixture_close(&f);
		}
	}
}

TEST(what_cannot_be_read_or_is_outside_is_refused)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;
		char data[512] = "";

		fixture_open(&f, kind, "driver=fault", "over=memory", "size=64k", "kind=read");
		assert_eq(try_modify(&f, 0, 512, data, 0, increment, NULL), -EIO);
		assert_eq(number_at(&f, 0), 0);
		assert_eq(try_modify(&f, 64 * KiB - 100, 512, data, 0, increment, NULL), -ENOSPC);
		assert_eq(try_modify(&f, 0, 512, data, PL_FAST, increment, NULL), -EINVAL);
		assert_eq(try_modify(&f, 0, 512, data, 0, increment, NULL), 0);
		assert_eq(number_at(&f, 0), 1);
		fixture_close(&f);

		fixture_open(&f, kind, "driver=null", "size=1G");
		assert_eq(try_modify(&f, 0, PL_MODIFY_MAX + 1, data, 0, increment, NULL), -EINVAL);
		fixture_close(&f);

		make_image("ro.img", 64 * KiB);
		fixture_open_words(&f, kind, PL_OPEN_READ_ONLY, WORDS("path=ro.img"));
		assert_eq(try_modify(&f, 0, 512, data, 0, increment, NULL), -EPERM);
		fixture_close(&f);
	}
}

TEST(a_write_that_fails_is_told)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;
		char data[512];

		log_nothing();
		fixture_open(&f, kind, "driver=fault", "over=memory", "size=64k", "kind=write",
			     "errno=ENOSPC");
		assert_eq(try_modify(&f, 0, 512, data, 0, increment, NULL), -ENOSPC);
		assert_eq(try_modify(&f, 0, 512, data, 0, increment, NULL), 0);
		fixture_close(&f);
	}
}

/* ---- nobody in between ----------------------------------------------------------- */

enum { WORKERS = 5, ROUNDS = 300 };

struct worker {
	struct fixture *first;
	enum loop_kind kind;
	unsigned number;
	uint64_t offset; /* of the number that all increment */
	unsigned rounds;
};

/* One number for all, and behind it, in the range that MODIFY reads and writes back, a byte for
 * each, which it writes and zeroes itself: a write that came between would be undone. */
static void *
increment_and_write(void *arg)
{
	struct worker *w = arg;
	uint64_t own = w->offset + 8 + w->number;
	char data[8 + WORKERS];
	struct fixture f;

	fixture_join(&f, w->kind, w->first);
	for (unsigned i = 0; i < w->rounds; i++) {
		unsigned flags = i % 4 == w->number % 4 ? fua_of(&f) : 0;

		assert_eq(try_modify(&f, w->offset, sizeof data, data, flags, increment, NULL), 0);
		if (i % 5 == 4)
			do_zero(&f, own, 1, flags);
		else
			do_write(&f, own, 1, (unsigned char)i, flags);
		check_bytes(&f, own, 1, i % 5 == 4 ? 0 : (unsigned char)i);
	}
	fixture_close(&f);
	return NULL;
}

static void
run_workers(struct fixture *f, uint64_t offset, unsigned rounds)
{
	struct worker w[WORKERS];
	pthread_t threads[WORKERS];

	for (unsigned i = 0; i < WORKERS; i++) {
		w[i] = (struct worker){ f, i % 2 == 0 ? RING : BLOCKING, i, offset, rounds };
		assert_eq(pthread_create(&threads[i], NULL, increment_and_write, &w[i]), 0);
	}
	for (unsigned i = 0; i < WORKERS; i++)
		pthread_join(threads[i], NULL);
	assert_eq(number_at(f, offset), WORKERS * rounds);
}

/* From loops of both kinds, in the middle of a block and across the border of two. */
TEST(no_increment_is_lost_and_no_neighbour_is_spoilt)
{
	for (unsigned d = 0; d < DISKS; d++) {
		bool memory = strstr(disks[d][0], "memory") != NULL;
		struct fixture f;

		open_disk(&f, BLOCKING, d);
		run_workers(&f, 4096 - 4, memory ? ROUNDS : ROUNDS / 10);
		run_workers(&f, 100 * KiB - 20, ROUNDS / 10); /* the end */
		fixture_close(&f);
	}
}

TEST_SLOW(no_increment_of_many_is_lost)
{
	for (unsigned d = 0; d < DISKS; d++) {
		struct fixture f;

		open_disk(&f, BLOCKING, d);
		run_workers(&f, 4096 - 4, 4000);
		fixture_close(&f);
	}
}

/* A whole range goes from one pattern to another; whoever writes, zeroes or trims it all is wholly
 * before or wholly after. */
struct painter {
	struct fixture *first;
	enum loop_kind kind;
	unsigned number, rounds;
};

enum { RANGE = 24 * 1024 };

static int
all_alike(struct pl_request *req)
{
	unsigned char *p = req->iov->iov_base;

	for (uint64_t i = 1; i < req->length; i++)
		assert_eq(p[i], p[0]);
	memset(p, p[0] + 1, req->length);
	return p[0] % 7 == 0 ? 1 : 0;
}

static void *
paint(void *arg)
{
	struct painter *p = arg;
	unsigned char *data = test_alloc(RANGE);
	struct fixture f;

	fixture_join(&f, p->kind, p->first);
	for (unsigned i = 0; i < p->rounds; i++) {
		unsigned flags = i % 3 == 0 ? fua_of(&f) : 0;

		if (p->number % 2 == 0)
			assert_true(try_modify(&f, 4096, RANGE, data, flags, all_alike, NULL) >= 0);
		else if (i % 4 == 0)
			do_zero(&f, 4096, RANGE, flags);
		else if (i % 4 == 1)
			do_trim(&f, 4096, RANGE, flags);
		else
			do_write(&f, 4096, RANGE, (unsigned char)i, flags);
	}
	fixture_close(&f);
	free(data);
	return NULL;
}

/* Writers are not kept apart from each other, so there is one of them. */
TEST(no_write_zero_or_trim_comes_between)
{
	for (unsigned d = 0; d < DISKS; d++) {
		struct painter p[3];
		pthread_t threads[3];
		struct fixture f;

		open_disk(&f, BLOCKING, d);
		for (unsigned i = 0; i < 3; i++) {
			p[i] = (struct painter){ &f, i == 0 ? RING : BLOCKING, i, 40 };
			assert_eq(pthread_create(&threads[i], NULL, paint, &p[i]), 0);
		}
		for (unsigned i = 0; i < 3; i++)
			pthread_join(threads[i], NULL);
		fixture_close(&f);
	}
}

/* Hundreds on one loop, which all want the same bytes, and buffers of the pool. */
TEST(hundreds_in_flight_on_one_loop_are_all_done)
{
	for_each_loop_kind(kind)
	{
		enum { COUNT = 300 };
		uint64_t *data = test_alloc(COUNT * sizeof *data);
		char byte = 1;
		struct fixture f;
		struct batch b;

		make_image("many.img", 64 * KiB);
		fixture_open(&f, kind, "path=many.img", "cache=none");
		batch_start(&b, &f, 2 * COUNT);
		for (unsigned i = 0; i < COUNT; i++) {
			batch_modify(&b, i % 9 == 0 ? PL_FUA : 0, 1000, 8, &data[i], increment);
			batch_submit(&b, PL_WRITE, 0, 1008 + i, 1, &byte);
		}
		batch_wait(&b, 2 * COUNT);
		for (unsigned i = 0; i < 2 * COUNT; i++)
			assert_eq(b.jobs[i].error, 0);
		batch_end(&b);
		assert_eq(number_at(&f, 1000), COUNT);
		fixture_close(&f);
		free(data);
	}
}

/* ---- stable ---------------------------------------------------------------------- */

static void
modify_is_durable(enum loop_kind kind, const char *fua, bool native)
{
	char data[1000];
	struct pl_counters c;
	struct fixture f;

	fixture_open(&f, kind, "driver=powercut", "over=memory", "size=64k", fua);
	do_write(&f, 0, 64 * KiB, 0xf0, PL_FUA);
	assert_eq(try_modify(&f, 300, 1000, data, PL_FUA, invert, NULL), 0);
	assert_eq(try_modify(&f, 300, 1000, data, PL_FUA, refuse, NULL), 42);
	pl_export_counters(f.ex, &c);
	assert_eq(c.fua_native, native ? 2 : 0);
	assert_eq(c.groups, native ? 0 : 2);
	for_each_crash_image(&f, im)
	{
		assert_bytes(im, 0, 300, 0xf0);
		assert_bytes(im, 300, 1000, 0x0f);
		assert_bytes(im, 1300, 1000, 0xf0);
	}
	fixture_close(&f);
}

/* After the answer to a MODIFY with FUA, no power cut may lose it; without, it may. */
TEST(a_modify_with_fua_survives_every_power_cut)
{
	for_each_loop_kind(kind)
	{
		unsigned lost = 0;
		char data[1000];
		struct fixture f;

		modify_is_durable(kind, "powercut-fua=native", true);
		modify_is_durable(kind, "powercut-fua=commit", false);

		fixture_open(&f, kind, "driver=powercut", "over=memory", "size=64k");
		assert_eq(try_modify(&f, 300, 1000, data, 0, invert, NULL), 0);
		for_each_crash_image(&f, im) lost += im->data[300] == 0;
		assert_true(lost > 5);
		fixture_close(&f);
	}
}

TEST(a_failed_export_refuses_a_modify_that_is_to_be_stable)
{
	struct fixture f;
	char data[512];

	log_nothing();
	fixture_open(&f, BLOCKING, "driver=fault", "over=memory", "size=64k", "kind=flush");
	assert_eq(try_flush(&f), -EIO);
	assert_eq(try_modify(&f, 0, 512, data, PL_FUA, increment, NULL), -EIO);
	assert_eq(try_modify(&f, 0, 512, data, 0, increment, NULL), 0);
	assert_eq(number_at(&f, 0), 1);
	fixture_close(&f);
}
