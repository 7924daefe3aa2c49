/* commit.c - one flush makes many writes durable, and one that fails fails them all. */
#include "export.h"
#include "fixture.h"
#include "test.h"

#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

/* A memory disk whose FUA writes need a flush, and whose flushes take 20 ms. */
#define SLOW_FLUSH \
	"driver=fault", "over=powercut,memory", "size=1M", "powercut-fua=commit", "kind=flush", \
		"repeat=forever", "delay=20ms"

static struct pl_counters
counters(const struct fixture *f)
{
	struct pl_counters n;

	pl_export_counters(f->ex, &n);
	return n;
}

TEST(one_flush_answers_all_who_wait)
{
	test_not_under_valgrind("threads run one at a time, and come one by one");
	for_each_loop_kind(kind)
	{
		enum { WRITERS = 16 };
		static char data[WRITERS][512];
		struct fixture f;
		struct batch b;

		fixture_open(&f, kind, SLOW_FLUSH, "fault=delay");
		batch_start(&b, &f, WRITERS);
		for (unsigned i = 0; i < WRITERS; i++)
			batch_submit(&b, PL_WRITE, PL_FUA, i * 512, 512, data[i]);
		batch_end(&b);
		assert_eq(counters(&f).committed, WRITERS);
		/* The first, perhaps a few that came one by one, and all the others. */
		assert_true(counters(&f).groups <= WRITERS / 4);
		fixture_close(&f);
	}
}

TEST(a_flush_that_began_before_the_write_ended_does_not_answer_it)
{
	for_each_loop_kind(kind)
	{
		static char data[2][512];
		struct fixture f;
		struct batch b;

		fixture_open(&f, kind, SLOW_FLUSH, "fault=delay");
		batch_start(&b, &f, 2);
		batch_submit(&b, PL_WRITE, PL_FUA, 0, 512, data[0]);
		if (kind == BLOCKING)
			usleep(5000); /* its flush is under way now */
		batch_submit(&b, PL_WRITE, PL_FUA, 512, 512, data[1]);
		batch_end(&b);
		assert_eq(counters(&f).groups, 2);
		fixture_close(&f);
	}
}

/* Whoever sleeps on a futex may be woken for no reason. */
TEST(a_wake_up_that_was_for_nobody_answers_nobody)
{
	static char data[2][512];
	struct job *job[2];
	struct fixture f;
	struct batch b;

	fixture_open(&f, BLOCKING, SLOW_FLUSH, "fault=delay");
	batch_start(&b, &f, 2);
	for (unsigned i = 0; i < 2; i++) {
		job[i] = batch_submit(&b, PL_WRITE, PL_FUA, i * 512, 512, data[i]);
		usleep(5000); /* the first flushes now, the second waits for the next flush */
	}
	for (unsigned i = 0; i < 100; i++) {
		syscall(SYS_futex, &job[1]->req.word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
		usleep(100);
	}
	batch_wait(&b, 2);
	for (unsigned i = 0; i < 2; i++)
		assert_eq(job[i]->error, 0);
	assert_eq(counters(&f).groups, 2);
	assert_eq(job[0]->rank, 1);
	batch_end(&b);
	fixture_close(&f);
}

TEST(flush_joins_the_same_groups_as_fua_writes)
{
	enum { COUNT = 12 };
	static char data[COUNT][512];
	struct fixture f;
	struct batch b;

	fixture_open(&f, RING, SLOW_FLUSH, "fault=delay");
	batch_start(&b, &f, COUNT);
	for (unsigned i = 0; i < COUNT; i++) {
		if (i % 3 == 0)
			batch_submit(&b, PL_FLUSH, 0, 0, 0, NULL);
		else if (i % 3 == 1)
			batch_submit(&b, PL_WRITE, PL_FUA, i * 512, 512, data[i]);
		else
			batch_submit(&b, PL_ZERO, PL_FUA, i * 512, 512, NULL);
	}
	batch_end(&b);
	assert_eq(counters(&f).committed, COUNT);
	assert_true(counters(&f).groups <= 4);
	fixture_close(&f);
}

/* The first flush fails while others wait behind it; no second one may make it good. */
TEST(flush_error_fails_waiters)
{
	for_each_loop_kind(kind)
	{
		enum { WRITERS = 6 };
		static char data[WRITERS][512];
		struct fixture f;
		struct batch b;

		fixture_open(&f, kind, "driver=fault", "over=powercut,memory", "size=1M",
			     "powercut-fua=commit", "kind=flush", "delay=30ms");
		batch_start(&b, &f, WRITERS);
		for (unsigned i = 0; i < WRITERS; i++)
			batch_submit(&b, PL_WRITE, PL_FUA, i * 512, 512, data[i]);
		batch_wait(&b, WRITERS);
		for (unsigned i = 0; i < WRITERS; i++)
			assert_eq(b.jobs[i].error, -EIO);
		batch_end(&b);
		assert_true(pl_export_failed(f.ex));
		assert_eq(counters(&f).groups, 1);

		assert_eq(try_flush(&f), -EIO);
		assert_eq(try_fill(&f, 0, 512, 1, PL_FUA), -EIO);
		assert_eq(try_zero(&f, 0, 512, PL_FUA), -EIO);
		assert_eq(try_trim(&f, 0, 512, PL_FUA), -EIO);
		assert_eq(try_fill(&f, 0, 512, 7, 0), 0);
		check_bytes(&f, 0, 512, 7);
		fixture_close(&f);
	}
}

TEST(a_native_fua_write_that_fails_fails_the_export_unless_room_was_lacking)
{
	static const struct {
		const char *error;
		int expected;
		bool fails;
	} cases[] = { { "errno=EIO", -EIO, true }, { "errno=ENOSPC", -ENOSPC, false } };

	for (unsigned i = 0; i < 2; i++) {
		struct fixture f;

		fixture_open(&f, BLOCKING, "driver=fault", "over=memory", "size=1M", "kind=write",
			     cases[i].error);
		assert_eq(try_fill(&f, 0, 512, 1, PL_FUA), cases[i].expected);
		assert_eq(pl_export_failed(f.ex), cases[i].fails);
		assert_eq(try_fill(&f, 0, 512, 1, PL_FUA), cases[i].fails ? -EIO : 0);
		fixture_close(&f);
	}
}

/* FUA writes of two kinds on one export: an unaligned one waits for a flush, which is slow,
 * while a native one fails. No later flush may say that all is well. */
TEST(a_native_fua_write_that_fails_fails_who_waits_for_a_flush)
{
	test_not_under_valgrind("the flush ends before the write has begun");
	for_each_loop_kind(kind)
	{
		static char data[4][4096];
		struct fixture f;
		struct batch b;

		make_image("native.img", 1 * MiB);
		fixture_open(&f, kind, "driver=fault", "over=fault,file", "path=native.img",
			     "fua=native", "kind=flush", "fault=delay", "delay=50ms",
			     "repeat=forever");
		batch_start(&b, &f, 3);
		batch_submit(&b, PL_FLUSH, 0, 0, 0, NULL);
		usleep(10000);
		batch_submit(&b, PL_WRITE, PL_FUA, 100, 100, data[0]);
		if (kind == BLOCKING)
			usleep(10000);
		pl_export_fail(f.ex, "as a native write does", -EIO);
		batch_wait(&b, 2);
		batch_submit(&b, PL_FLUSH, 0, 0, 0, NULL);
		batch_wait(&b, 3);
		for (unsigned i = 0; i < 3; i++)
			assert_eq(b.jobs[i].error, -EIO);
		batch_end(&b);
		assert_true(counters(&f).groups <= 1);
		fixture_close(&f);
	}
}

TEST(a_plain_write_that_fails_fails_itself_only)
{
	struct fixture f;

	fixture_open(&f, RING, "driver=fault", "over=memory", "size=1M", "kind=write");
	assert_eq(try_fill(&f, 0, 512, 1, 0), -EIO);
	assert_false(pl_export_failed(f.ex));
	do_write(&f, 0, 512, 1, PL_FUA);
	do_flush(&f);
	fixture_close(&f);
}

struct writer {
	const struct fixture *first;
	enum loop_kind kind;
	unsigned number;
};

static void *
write_forty(void *arg)
{
	struct writer *w = arg;
	struct fixture f;

	fixture_join(&f, w->kind, w->first);
	for (unsigned i = 0; i < 40; i++)
		do_write(&f, w->number * 4 * KiB, 4 * KiB, (unsigned char)i, PL_FUA);
	fixture_close(&f);
	return NULL;
}

TEST(writers_on_several_loops_share_flushes)
{
	enum { WRITERS = 6 };
	struct writer w[WRITERS];
	pthread_t threads[WRITERS];
	struct fixture f;

	fixture_open(&f, BLOCKING, "driver=fault", "over=powercut,memory", "size=1M",
		     "powercut-fua=commit", "kind=flush", "repeat=forever", "delay=2ms",
		     "fault=delay");
	for (unsigned i = 0; i < WRITERS; i++) {
		w[i] = (struct writer){ &f, i % 2 == 0 ? RING : BLOCKING, i };
		assert_eq(pthread_create(&threads[i], NULL, write_forty, &w[i]), 0);
	}
	for (unsigned i = 0; i < WRITERS; i++)
		pthread_join(threads[i], NULL);
	assert_eq(counters(&f).committed, WRITERS * 40);
	assert_true(counters(&f).groups <= WRITERS * 40 / 2);
	for (unsigned i = 0; i < WRITERS; i++)
		check_bytes(&f, i * 4 * KiB, 4 * KiB, 39);
	fixture_close(&f);
}

/* FUA on a READ: make stable what was written before, then read the medium. */
TEST(read_with_fua_flushes_first)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;
		char data[512];

		fixture_open(&f, kind, "driver=powercut", "over=memory", "size=1M");
		do_write(&f, 0, 512, 0x5a, 0);
		assert_eq(try_read(&f, 0, 512, data, PL_FUA), 0);
		assert_filled(data, 0x5a, 512);
		assert_eq(counters(&f).groups, 1);
		for_each_crash_image(&f, im) assert_bytes(im, 0, 512, 0x5a);
		fixture_close(&f);
	}
}
