/* loop.c - a loop carries out what it is given, once each, whatever comes together. */
#include "loop.h"

#include "fixture.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

struct counted {
	struct pl_io io;
	int64_t result;
	unsigned times;
};

static unsigned answered;

static void
counted_done(struct pl_io *io, int64_t result)
{
	struct counted *c = (struct counted *)io;

	c->result = result;
	c->times++;
	answered++;
}

static struct pl_loop *
ring_loop(void)
{
	struct pl_loop *loop;
	struct pl_error err;

	if (pl_loop_new(&loop, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	return loop;
}

static int
scratch_file(void)
{
	char path[] = "loop.XXXXXX";
	int fd = mkstemp(path);

	assert_true(fd != -1);
	unlink(path);
	return fd;
}

TEST(more_operations_than_the_ring_has_entries_are_all_done)
{
	enum { COUNT = 3000 };
	static struct counted c[COUNT];
	static char byte[COUNT];
	static struct iovec iov[COUNT];
	struct pl_loop *loop = ring_loop();
	int fd = scratch_file();
	char back[COUNT];

	for (unsigned i = 0; i < COUNT; i++) {
		byte[i] = (char)i;
		iov[i] = (struct iovec){ &byte[i], 1 };
		c[i].io = (struct pl_io){ .kind = PL_IO_WRITE,
					  .fd = fd,
					  .slot = -1,
					  .offset = i,
					  .iov = &iov[i],
					  .iovcnt = 1,
					  .done = counted_done };
		pl_loop_io(loop, &c[i].io);
	}
	while (answered < COUNT)
		pl_loop_turn(loop);
	for (unsigned i = 0; i < COUNT; i++) {
		assert_eq(c[i].times, 1);
		assert_eq(c[i].result, 1);
	}
	assert_eq(pread(fd, back, COUNT, 0), COUNT);
	assert_mem(back, byte, COUNT);
	pl_loop_free(loop);
}

static int64_t
slow_call(struct pl_io *io)
{
	usleep(20000);
	return (int64_t)io->offset;
}

TEST(a_call_that_blocks_does_not_hold_up_the_loop)
{
	struct pl_loop *loop = ring_loop();
	struct counted slow = { .io = { .kind = PL_IO_CALL,
					.slot = -1,
					.offset = 42,
					.call = slow_call,
					.done = counted_done } };
	struct counted quick = {
		.io = { .kind = PL_IO_DELAY, .slot = -1, .length = 1000000, .done = counted_done }
	};

	pl_loop_io(loop, &slow.io);
	pl_loop_io(loop, &quick.io);
	while (quick.times == 0)
		pl_loop_turn(loop);
	assert_eq(quick.result, 0);
	assert_eq(slow.times, 0);
	while (slow.times == 0)
		pl_loop_turn(loop);
	assert_eq(slow.result, 42);
	pl_loop_free(loop);
}

TEST(an_error_comes_as_negative_errno_on_both_kinds_of_loop)
{
	for_each_loop_kind(kind)
	{
		struct counted c = {
			.io = { .kind = PL_IO_SYNC, .fd = -1, .slot = -1, .done = counted_done }
		};
		struct pl_loop *loop;

		if (kind == RING)
			loop = ring_loop();
		else
			assert_eq(pl_loop_new_blocking(&loop, NULL), 0);
		pl_loop_io(loop, &c.io);
		while (c.times == 0)
			pl_loop_turn(loop);
		assert_eq(c.result, -EBADF);
		pl_loop_free(loop);
	}
}

TEST(registered_files_are_files_like_others_and_slots_are_reused)
{
	struct pl_loop *loop = ring_loop();
	int fd = scratch_file();

	for (int round = 0; round < 1000; round++) {
		int slot = pl_loop_add_file(loop, fd);

		assert_true(slot >= 0);
		if (round % 100 == 0) {
			struct counted c = { .io = { .kind = PL_IO_FALLOCATE,
						     .fd = -1,
						     .slot = slot,
						     .length = 4096,
						     .done = counted_done } };

			pl_loop_io(loop, &c.io);
			while (c.times == 0)
				pl_loop_turn(loop);
			assert_eq(c.result, 0);
		}
		pl_loop_remove_file(loop, slot);
	}
	pl_loop_free(loop);
}

struct mail {
	struct pl_work work;
	struct pl_loop *loop;
	unsigned received;
};

static void
mail_received(struct pl_work *work)
{
	struct mail *m = (struct mail *)work;

	if (__atomic_add_fetch(&m->received, 1, __ATOMIC_ACQ_REL) == 1000)
		pl_loop_stop(m->loop);
}

static void *
post_thousand(void *arg)
{
	struct mail *m = arg;

	for (unsigned i = 1; i <= 1000; i++) {
		pl_loop_post(m->loop, &m->work);
		while (__atomic_load_n(&m->received, __ATOMIC_ACQUIRE) < i)
			sched_yield();
	}
	return NULL;
}

TEST(work_posted_by_another_thread_runs_though_the_loop_sleeps)
{
	struct mail m = { .work.run = mail_received, .loop = ring_loop() };
	pthread_t thread;

	assert_eq(pthread_create(&thread, NULL, post_thousand, &m), 0);
	pl_loop_run(m.loop);
	pthread_join(thread, NULL);
	assert_eq(m.received, 1000);
	pl_loop_free(m.loop);
}

static unsigned ran;

static void
count_run(struct pl_work *work)
{
	(void)work;
	ran++;
}

TEST(work_posted_before_the_stop_is_done_before_the_loop_ends)
{
	struct pl_work work[3] = { { .run = count_run },
				   { .run = count_run },
				   { .run = count_run } };
	struct pl_loop *loop = ring_loop();

	for (unsigned i = 0; i < 3; i++)
		pl_loop_post(loop, &work[i]);
	pl_loop_stop(loop);
	pl_loop_run(loop);
	assert_eq(ran, 3);
	pl_loop_free(loop);
}
