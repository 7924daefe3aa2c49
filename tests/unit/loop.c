/* loop.c - a loop carries out what it is given, once each, whatever comes together. */
#include "loop.h"

#include "fixture.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <sys/un.h>
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

/* ---- sockets --------------------------------------------------------------------- */

static void
start(struct pl_loop *loop, struct counted *c, enum pl_io_kind kind, int fd, struct iovec *iov,
      int iovcnt)
{
	c->io = (struct pl_io){ .kind = kind,
				.fd = fd,
				.slot = -1,
				.iov = iov,
				.iovcnt = iovcnt,
				.done = counted_done };
	c->times = 0;
	pl_loop_io(loop, &c->io);
}

static void
finish(struct pl_loop *loop, const struct counted *c)
{
	while (c->times == 0)
		pl_loop_turn(loop);
}

TEST(a_connection_is_accepted_and_carries_bytes_both_ways)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "socket" };
	char text[] = "from there to here", got[sizeof text] = "";
	struct iovec whole = { text, sizeof text };
	struct iovec halves[] = { { got, 5 }, { got + 5, sizeof got - 5 } };
	int listening = socket(AF_UNIX, SOCK_STREAM, 0), peer = socket(AF_UNIX, SOCK_STREAM, 0);
	struct pl_loop *loop = ring_loop();
	struct counted in = { 0 }, out = { 0 };
	int fd;

	assert_eq(bind(listening, (struct sockaddr *)&address, sizeof address), 0);
	assert_eq(listen(listening, 1), 0);
	start(loop, &in, PL_IO_ACCEPT, listening, NULL, 0);
	assert_eq(connect(peer, (struct sockaddr *)&address, sizeof address), 0);
	finish(loop, &in);
	fd = (int)in.result;
	assert_true(fd >= 0 && (fcntl(fd, F_GETFD) & FD_CLOEXEC) != 0);

	start(loop, &in, PL_IO_RECV, fd, halves, 2);
	start(loop, &out, PL_IO_SEND, peer, &whole, 1);
	finish(loop, &in);
	finish(loop, &out);
	assert_eq(in.result, sizeof text);
	assert_eq(out.result, sizeof text);
	assert_mem(got, text, sizeof text);

	start(loop, &in, PL_IO_POLL, peer, NULL, 0);
	in.io.mode = POLLIN;
	close(fd);
	start(loop, &out, PL_IO_RECV, peer, &whole, 1);
	finish(loop, &out);
	assert_eq(out.result, 0);
	finish(loop, &in);
	close(peer);
	close(listening);
	pl_loop_free(loop);
}

TEST(what_is_cancelled_comes_back_once)
{
	struct pl_loop *loop = ring_loop();
	struct iovec iov = { (char[1]){ 0 }, 1 };
	struct counted in = { 0 }, delay = { 0 };
	int pair[2];

	assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	start(loop, &in, PL_IO_RECV, pair[0], &iov, 1);
	delay.io = (struct pl_io){ .kind = PL_IO_DELAY,
				   .slot = -1,
				   .length = UINT64_C(3600000000000),
				   .done = counted_done };
	pl_loop_io(loop, &delay.io);
	pl_loop_cancel(loop, &in.io);
	pl_loop_cancel(loop, &delay.io);
	finish(loop, &in);
	finish(loop, &delay);
	assert_eq(in.result, -ECANCELED);
	assert_eq(delay.result, -ECANCELED);
	assert_eq(in.times, 1);
	close(pair[0]);
	close(pair[1]);
	pl_loop_free(loop);
}

/* ---- work for later -------------------------------------------------------------- */

static struct {
	struct pl_loop *loop;
	struct pl_work once, again;
	char order[8];
	unsigned ran;
	struct counted io;
} later;

static void
later_again(struct pl_work *work)
{
	(void)work;
	later.order[later.ran++] = 'b';
	pl_loop_stop(later.loop);
}

static void
later_once(struct pl_work *work)
{
	(void)work;
	later.order[later.ran++] = 'a';
	pl_loop_later(later.loop, &later.again);
}

static void
later_io_done(struct pl_io *io, int64_t result)
{
	(void)io;
	(void)result;
	later.order[later.ran++] = 'i';
	pl_loop_later(later.loop, &later.once);
	later.order[later.ran++] = 'I';
}

TEST(work_for_later_runs_after_what_is_ready_in_order_and_before_the_loop_sleeps)
{
	for (unsigned poll = 0; poll < 2; poll++) {
		later.ran = 0;
		later.loop = ring_loop();
		later.once.run = later_once;
		later.again.run = later_again;
		pl_loop_poll(later.loop, poll);
		later.io.io = (struct pl_io){
			.kind = PL_IO_DELAY, .slot = -1, .length = 1000, .done = later_io_done
		};
		pl_loop_io(later.loop, &later.io.io);
		pl_loop_run(later.loop);
		assert_eq(later.ran, 4);
		assert_mem(later.order, "iIab", 4);
		pl_loop_free(later.loop);
	}
}

static void
post_again(struct pl_work *work)
{
	(void)work;
	pl_loop_post(later.loop, &later.again);
}

TEST(what_work_for_later_posts_runs_before_the_loop_sleeps)
{
	struct pl_work post = { .run = post_again };

	later.ran = 0;
	later.loop = ring_loop();
	later.again.run = later_again;
	pl_loop_later(later.loop, &post);
	pl_loop_run(later.loop); /* nothing else would wake it */
	assert_eq(later.ran, 1);
	pl_loop_free(later.loop);
}
