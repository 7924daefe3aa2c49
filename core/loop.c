/*
 * loop.c - one thread, one io_uring.
 *
 * The good path: a driver hands over an io; it becomes an entry of the submission queue.
 * A turn of the loop runs posted work, submits everything at once, and calls the done of
 * each completion.
 *
 * What can go wrong: the submission queue is full (what is queued is submitted; what then
 * finds no room waits in `backlog`), the kernel is short of memory or its completion queue
 * is full (EAGAIN, EBUSY: completions are taken first, then it is tried again), a call is
 * interrupted (tried again), the kernel lacks a feature of the ring (done without).
 */
#include "loop.h"

#include "blocking.h"
#include "pool.h"

#include <assert.h>
#include <errno.h>
#include <liburing.h>
#include <linux/fs.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define LOOP_ENTRIES 256 /* of the submission queue; four times as many completions */
#define LOOP_FILES   256
#define LOOP_ROUNDS  4 /* of posted work before a look at the ring */

/* Calls that may block, one after the other, on a thread that is made for the first. */
struct helper {
	pthread_t thread;
	bool started, quit;
	pthread_mutex_t lock;
	pthread_cond_t wake;
	struct pl_io *first, **last;
};

/* How long a loop with nothing to do waited lately, by what it waited for: a client, or
 * a disk as well. Nanoseconds, a moving average. */
struct poll {
	bool on;
	unsigned slow; /* waits for which a disk that was waited for long is remembered */
	uint64_t waits[2];
};

struct pl_loop {
	bool blocking;
	pthread_t thread;
	struct io_uring ring;
	struct pl_pool *pool;
	unsigned in_flight;
	unsigned data_in_flight; /* of them, what a disk or a helper does */
	struct pl_work *later, **later_last;
	struct poll poll;
	struct pl_io *backlog, **backlog_last;
	bool files, buffers; /* registered with the ring */
	bool slots[LOOP_FILES];

	pthread_mutex_t lock; /* of the next three */
	struct pl_work *posted, **posted_last;
	bool stopped;

	int wake_fd;
	uint64_t wake_count;
	struct iovec wake_iov;
	struct pl_io wake_io, cancel_io;
	struct helper helper;
};

/* ---- submission ------------------------------------------------------------------ */

/* What keeps a disk or a helper busy, and so is not over in a moment. */
static bool
io_is_data(const struct pl_io *io)
{
	return io->kind <= PL_IO_FADVISE;
}

static void
loop_message(struct pl_io *io)
{
	io->kernel.message = (struct msghdr){ .msg_iov = (struct iovec *)io->iov,
					      .msg_iovlen = (size_t)io->iovcnt };
}

static void
loop_prep(struct pl_loop *loop, struct pl_io *io, struct io_uring_sqe *sqe)
{
	int fd = io->slot >= 0 ? io->slot : io->fd;
	const struct iovec *iov = io->iov;

	switch (io->kind) {
	case PL_IO_READ:
		if (io->fixed && loop->buffers)
			io_uring_prep_read_fixed(sqe, fd, iov->iov_base, (unsigned)iov->iov_len,
						 io->offset, 0);
		else
			io_uring_prep_readv2(sqe, fd, iov, (unsigned)io->iovcnt, io->offset,
					     io->mode);
		sqe->rw_flags = io->mode;
		break;
	case PL_IO_WRITE:
		if (io->fixed && loop->buffers)
			io_uring_prep_write_fixed(sqe, fd, iov->iov_base, (unsigned)iov->iov_len,
						  io->offset, 0);
		else
			io_uring_prep_writev2(sqe, fd, iov, (unsigned)io->iovcnt, io->offset,
					      io->mode);
		sqe->rw_flags = io->mode;
		break;
	case PL_IO_SYNC: io_uring_prep_fsync(sqe, fd, IORING_FSYNC_DATASYNC); break;
	case PL_IO_FALLOCATE:
		io_uring_prep_fallocate(sqe, fd, io->mode, (off_t)io->offset, (off_t)io->length);
		break;
	case PL_IO_FADVISE:
		/* The entry has 32 bits for the length, and advice may cover less. */
		io_uring_prep_fadvise(sqe, fd, io->offset,
				      (off_t)(io->length < 1u << 30 ? io->length : 1u << 30),
				      io->mode);
		break;
	case PL_IO_DELAY:
		io->kernel.delay[0] = (int64_t)(io->length / 1000000000);
		io->kernel.delay[1] = (int64_t)(io->length % 1000000000);
		io_uring_prep_timeout(sqe, (struct __kernel_timespec *)io->kernel.delay, 0, 0);
		break;
	case PL_IO_RECV:
		if (io->iovcnt == 1) {
			io_uring_prep_recv(sqe, fd, iov->iov_base, iov->iov_len, io->mode);
		} else {
			loop_message(io);
			io_uring_prep_recvmsg(sqe, fd, &io->kernel.message, (unsigned)io->mode);
		}
		break;
	case PL_IO_SEND:
		if (io->iovcnt == 1) {
			io_uring_prep_send(sqe, fd, iov->iov_base, iov->iov_len, io->mode);
		} else {
			loop_message(io);
			io_uring_prep_sendmsg(sqe, fd, &io->kernel.message, (unsigned)io->mode);
		}
		break;
	case PL_IO_ACCEPT: io_uring_prep_accept(sqe, fd, NULL, NULL, SOCK_CLOEXEC); break;
	case PL_IO_POLL: io_uring_prep_poll_add(sqe, fd, (unsigned)io->mode); break;
	case PL_IO_CALL: assert(!"calls go to the helper");
	}
	if (io->slot >= 0)
		sqe->flags |= IOSQE_FIXED_FILE;
	io_uring_sqe_set_data(sqe, io);
	loop->in_flight++;
	loop->data_in_flight += io_is_data(io);
}

static bool
loop_queue(struct pl_loop *loop, struct pl_io *io)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&loop->ring);

	if (sqe == NULL) {
		io_uring_submit(&loop->ring);
		sqe = io_uring_get_sqe(&loop->ring);
		if (sqe == NULL)
			return false;
	}
	loop_prep(loop, io, sqe);
	return true;
}

static void
loop_queue_backlog(struct pl_loop *loop)
{
	while (loop->backlog != NULL && loop_queue(loop, loop->backlog)) {
		loop->backlog = loop->backlog->next;
		if (loop->backlog == NULL)
			loop->backlog_last = &loop->backlog;
	}
}

/* ---- calls that may block -------------------------------------------------------- */

static void
helper_call_done(struct pl_work *work)
{
	struct pl_io *io = (struct pl_io *)((char *)work - offsetof(struct pl_io, work));

	io->loop->in_flight--;
	io->done(io, io->result);
}

static void *
helper_main(void *arg)
{
	struct helper *h = arg;
	struct pl_io *io;

	pthread_mutex_lock(&h->lock);
	for (;;) {
		while (h->first == NULL && !h->quit)
			pthread_cond_wait(&h->wake, &h->lock);
		io = h->first;
		if (io == NULL)
			break;
		h->first = io->next;
		if (h->first == NULL)
			h->last = &h->first;
		pthread_mutex_unlock(&h->lock);
		io->result = io->call(io);
		io->work.run = helper_call_done;
		pl_loop_post(io->loop, &io->work);
		pthread_mutex_lock(&h->lock);
	}
	pthread_mutex_unlock(&h->lock);
	return NULL;
}

static void
helper_call(struct pl_loop *loop, struct pl_io *io)
{
	struct helper *h = &loop->helper;
	int error = 0;

	if (!h->started) {
		error = pthread_create(&h->thread, NULL, helper_main, h);
		h->started = error == 0;
	}
	if (error != 0) {
		io->done(io, -error);
		return;
	}
	loop->in_flight++;
	io->loop = loop;
	io->next = NULL;
	pthread_mutex_lock(&h->lock);
	*h->last = io;
	h->last = &io->next;
	pthread_cond_signal(&h->wake);
	pthread_mutex_unlock(&h->lock);
}

static void
helper_end(struct helper *h)
{
	if (h->started) {
		pthread_mutex_lock(&h->lock);
		h->quit = true;
		pthread_cond_signal(&h->wake);
		pthread_mutex_unlock(&h->lock);
		pthread_join(h->thread, NULL);
	}
	pthread_mutex_destroy(&h->lock);
	pthread_cond_destroy(&h->wake);
}

void
pl_loop_io(struct pl_loop *loop, struct pl_io *io)
{
	if (loop->blocking) {
		pl_blocking_io(io);
	} else if (io->kind == PL_IO_CALL) {
		helper_call(loop, io);
	} else if (loop->backlog != NULL || !loop_queue(loop, io)) {
		io->next = NULL;
		*loop->backlog_last = io;
		loop->backlog_last = &io->next;
	}
}

void
pl_loop_cancel(struct pl_loop *loop, struct pl_io *io)
{
	struct io_uring_sqe *sqe;

	for (struct pl_io **at = &loop->backlog; *at != NULL; at = &(*at)->next) {
		if (*at != io)
			continue;
		/* The kernel has not heard of it. */
		*at = io->next;
		if (io->next == NULL)
			loop->backlog_last = at;
		io->result = -ECANCELED;
		io->loop = loop;
		loop->in_flight++;
		io->work.run = helper_call_done;
		pl_loop_post(loop, &io->work);
		return;
	}
	sqe = io_uring_get_sqe(&loop->ring);
	if (sqe == NULL) {
		io_uring_submit(&loop->ring);
		sqe = io_uring_get_sqe(&loop->ring);
	}
	if (sqe == NULL)
		return;
	io_uring_prep_cancel(sqe, io, 0);
	io_uring_sqe_set_data(sqe, &loop->cancel_io);
	loop->in_flight++;
}

/* ---- work from other threads ----------------------------------------------------- */

static void
loop_arm_wake(struct pl_loop *loop)
{
	pl_loop_io(loop, &loop->wake_io);
}

static void
loop_woken(struct pl_io *io, int64_t result)
{
	struct pl_loop *loop = (struct pl_loop *)((char *)io - offsetof(struct pl_loop, wake_io));

	(void)result; /* the posted list tells what there is to do */
	loop_arm_wake(loop);
}

static void
loop_wake(struct pl_loop *loop)
{
	static const uint64_t one = 1;
	ssize_t n;

	do
		n = write(loop->wake_fd, &one, sizeof one);
	while (n == -1 && errno == EINTR);
}

void
pl_loop_post(struct pl_loop *loop, struct pl_work *work)
{
	assert(!loop->blocking);
	work->next = NULL;
	pthread_mutex_lock(&loop->lock);
	/* Before the lock is given back: the work may be the last thing the loop lived for. */
	if (loop->posted == NULL && !pthread_equal(pthread_self(), loop->thread))
		loop_wake(loop);
	*loop->posted_last = work;
	loop->posted_last = &work->next;
	pthread_mutex_unlock(&loop->lock);
}

/* Returns whether there was any. */
static bool
loop_run_posted(struct pl_loop *loop)
{
	struct pl_work *work, *next;

	pthread_mutex_lock(&loop->lock);
	work = loop->posted;
	loop->posted = NULL;
	loop->posted_last = &loop->posted;
	pthread_mutex_unlock(&loop->lock);
	if (work == NULL)
		return false;
	for (; work != NULL; work = next) {
		next = work->next;
		work->run(work);
	}
	return true;
}

void
pl_loop_later(struct pl_loop *loop, struct pl_work *work)
{
	work->next = NULL;
	*loop->later_last = work;
	loop->later_last = &work->next;
}

static bool
loop_has_posted(struct pl_loop *loop)
{
	bool has;

	pthread_mutex_lock(&loop->lock);
	has = loop->posted != NULL;
	pthread_mutex_unlock(&loop->lock);
	return has;
}

/* Returns whether there was any. */
static bool
loop_run_later(struct pl_loop *loop)
{
	struct pl_work *work;
	bool any = loop->later != NULL;

	while ((work = loop->later) != NULL) {
		loop->later = work->next;
		if (loop->later == NULL)
			loop->later_last = &loop->later;
		work->run(work);
	}
	return any;
}

void
pl_loop_stop(struct pl_loop *loop)
{
	pthread_mutex_lock(&loop->lock);
	loop->stopped = true;
	loop_wake(loop); /* before the lock is given back, as above */
	pthread_mutex_unlock(&loop->lock);
}

static bool
loop_is_stopped(struct pl_loop *loop)
{
	bool stopped;

	pthread_mutex_lock(&loop->lock);
	stopped = loop->stopped;
	loop->stopped = false;
	pthread_mutex_unlock(&loop->lock);
	return stopped;
}

/* ---- turning --------------------------------------------------------------------- */

static int64_t
loop_result(const struct pl_io *io, int res)
{
	return io->kind == PL_IO_DELAY && res == -ETIME ? 0 : res;
}

/* What is there now: what comes meanwhile waits for its turn, as posted work does. */
static void
loop_reap(struct pl_loop *loop)
{
	struct io_uring_cqe *cqe;

	for (unsigned n = io_uring_cq_ready(&loop->ring); n > 0; n--) {
		struct pl_io *io;
		int res;

		if (io_uring_peek_cqe(&loop->ring, &cqe) != 0)
			break;
		io = io_uring_cqe_get_data(cqe);
		res = cqe->res;
		io_uring_cqe_seen(&loop->ring, cqe);
		loop->in_flight--;
		loop->data_in_flight -= io_is_data(io);
		if (pl_io_again(io, res))
			pl_loop_io(loop, io);
		else
			io->done(io, loop_result(io, res));
	}
}

/* ---- polling ---------------------------------------------------------------------- */

#define POLL_MAX   50000  /* nanoseconds without sleep */
#define POLL_WORTH 40000  /* waits that are longer, sleep and all, are slept through */
#define POLL_LONG  400000 /* all longer waits count as this */
#define POLL_SLOW  8      /* waits */

static uint64_t
poll_now(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_MONOTONIC, &ts);
	return (uint64_t)ts.tv_sec * 1000000000u + (uint64_t)ts.tv_nsec;
}

static inline void
poll_pause(void)
{
#if defined(__x86_64__) || defined(__i386__)
	__builtin_ia32_pause();
#endif
}

static bool
loop_has_news(const struct pl_loop *loop)
{
	return io_uring_cq_ready(&loop->ring) > 0 ||
	       (__atomic_load_n(loop->ring.sq.kflags, __ATOMIC_ACQUIRE) & IORING_SQ_TASKRUN) != 0;
}

/*
 * Submits and waits, first awake. A client that waits for each answer asks again within a
 * few microseconds of it, and to be woken costs more than that. Waits that turn out long
 * make the average long, and then nothing is polled for until they are short again. Where
 * each answer takes a disk its time, a wake-up more is no loss, and the disk's interrupts
 * have the processor.
 */
static void
loop_poll(struct pl_loop *loop)
{
	struct poll *poll = &loop->poll;
	bool disk = loop->data_in_flight > 1; /* 1: the armed wake */
	uint64_t *wait = &poll->waits[disk];
	uint64_t began = poll_now(), now = began;

	if (*wait < POLL_WORTH && (disk || poll->slow == 0)) {
		io_uring_submit_and_get_events(&loop->ring);
		if (io_uring_cq_ready(&loop->ring) > 0)
			return;
		while (now < began + POLL_MAX && !loop_has_news(loop)) {
			for (unsigned i = 0; i < 16 && !loop_has_news(loop); i++)
				poll_pause();
			now = poll_now();
		}
	}
	io_uring_submit_and_wait(&loop->ring, 1);
	now = poll_now() - began;
	*wait = (7 * *wait + (now < POLL_LONG ? now : POLL_LONG)) / 8;
	if (disk && now >= POLL_WORTH)
		poll->slow = POLL_SLOW;
	else if (poll->slow > 0)
		poll->slow--;
}

void
pl_loop_poll(struct pl_loop *loop, bool on)
{
	loop->poll.on = on;
}

/* ---- turns ----------------------------------------------------------------------- */

/* One round. Sleeps if there is nothing to do, and no more has been posted. */
static void
loop_turn(struct pl_loop *loop, bool may_wait)
{
	if (loop_run_later(loop) && loop_has_posted(loop))
		may_wait = false; /* nobody wakes a thread for what it posts to itself */
	loop_queue_backlog(loop);
	if (!may_wait)
		io_uring_submit_and_get_events(&loop->ring);
	else if (loop->poll.on)
		loop_poll(loop);
	else
		io_uring_submit_and_wait(&loop->ring, 1);
	loop_reap(loop);
}

void
pl_loop_turn(struct pl_loop *loop)
{
	/* What ran may be what the caller waits for, or have posted more. Other threads'
	 * posts are seen by wake_io, which is always in flight. */
	bool ran = loop_run_posted(loop);

	ran |= loop->later != NULL; /* the same is true of that */
	loop_turn(loop, !ran);
}

void
pl_loop_run(struct pl_loop *loop)
{
	assert(!loop->blocking);
	while (!loop_is_stopped(loop)) {
		unsigned rounds = 0;

		while (loop_run_posted(loop) && ++rounds < LOOP_ROUNDS)
			;
		loop_turn(loop, rounds < LOOP_ROUNDS);
	}
	loop_run_posted(loop); /* what was posted before the stop */
}

/* The request to cancel, that is; what it was about comes by itself. */
static void
loop_cancelled(struct pl_io *io, int64_t result)
{
	(void)io;
	(void)result;
}

/* ---- making and ending ----------------------------------------------------------- */

/* liburing 2.3 declares functions for the two things below and does not export them. */
static int
ring_register(struct io_uring *ring, unsigned what, void *arg, unsigned n)
{
	return syscall(SYS_io_uring_register, ring->ring_fd, what, arg, n) == -1 ? -errno : 0;
}

/* What a ring of ours can be made to do, whoever gets hold of it: what loop_prep() makes. */
static int
ring_restrict(struct io_uring *ring)
{
	static const uint8_t ops[] = {
		IORING_OP_READV,       IORING_OP_WRITEV,   IORING_OP_READ_FIXED,
		IORING_OP_WRITE_FIXED, IORING_OP_FSYNC,    IORING_OP_FALLOCATE,
		IORING_OP_FADVISE,     IORING_OP_TIMEOUT,  IORING_OP_RECV,
		IORING_OP_RECVMSG,     IORING_OP_SEND,     IORING_OP_SENDMSG,
		IORING_OP_ACCEPT,      IORING_OP_POLL_ADD, IORING_OP_ASYNC_CANCEL,
	};
	static const unsigned n = sizeof ops / sizeof *ops;
	struct io_uring_restriction r[sizeof ops / sizeof *ops + 2] = { 0 };

	for (unsigned i = 0; i < n; i++) {
		r[i].opcode = IORING_RESTRICTION_SQE_OP;
		r[i].sqe_op = ops[i];
	}
	r[n].opcode = IORING_RESTRICTION_REGISTER_OP;
	r[n].register_op = IORING_REGISTER_FILES_UPDATE;
	r[n + 1].opcode = IORING_RESTRICTION_SQE_FLAGS_ALLOWED;
	r[n + 1].sqe_flags = IOSQE_FIXED_FILE;
	return ring_register(ring, IORING_REGISTER_RESTRICTIONS, r, n + 2);
}

static int
ring_init(struct io_uring *ring)
{
	/* From the newest kernels to the oldest that has io_uring at all. */
	static const unsigned flags[] = {
		IORING_SETUP_CQSIZE | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_SINGLE_ISSUER |
			IORING_SETUP_DEFER_TASKRUN | IORING_SETUP_TASKRUN_FLAG,
		IORING_SETUP_CQSIZE | IORING_SETUP_SUBMIT_ALL | IORING_SETUP_COOP_TASKRUN |
			IORING_SETUP_TASKRUN_FLAG,
		IORING_SETUP_CQSIZE,
	};
	int error = -EINVAL;

	for (unsigned i = 0; i < sizeof flags / sizeof *flags && error == -EINVAL; i++) {
		struct io_uring_params p = { .flags = flags[i] | IORING_SETUP_R_DISABLED,
					     .cq_entries = 4 * LOOP_ENTRIES };

		error = io_uring_queue_init_params(LOOP_ENTRIES, ring, &p);
	}
	return error;
}

static int
loop_init_ring(struct pl_loop *loop, struct pl_error *err)
{
	struct iovec memory;
	int error;

	loop->thread = pthread_self();
	loop->backlog_last = &loop->backlog;
	loop->posted_last = &loop->posted;
	loop->later_last = &loop->later;
	loop->cancel_io.kind = PL_IO_DELAY; /* no data */
	loop->cancel_io.done = loop_cancelled;
	loop->helper.last = &loop->helper.first;
	error = pl_pool_new(&loop->pool);
	if (error != 0)
		return pl_error_set(err, error, "loop: buffers");
	loop->wake_fd = eventfd(0, EFD_CLOEXEC);
	if (loop->wake_fd == -1) {
		error = pl_error_set(err, -errno, "loop: eventfd");
		goto no_eventfd;
	}
	error = ring_init(&loop->ring);
	if (error != 0) {
		pl_error_set(err, error,
			     "loop: io_uring (is it allowed here? see sysctl "
			     "kernel.io_uring_disabled)");
		goto no_ring;
	}
	memory = pl_pool_memory(loop->pool);
	loop->files = io_uring_register_files_sparse(&loop->ring, LOOP_FILES) == 0;
	loop->buffers = io_uring_register_buffers(&loop->ring, &memory, 1) == 0;
	error = ring_restrict(&loop->ring);
	if (error == 0)
		error = ring_register(&loop->ring, IORING_REGISTER_ENABLE_RINGS, NULL, 0);
	if (error != 0) {
		pl_error_set(err, error, "loop: restrictions of the ring");
		goto no_restrictions;
	}
	pthread_mutex_init(&loop->lock, NULL);
	pthread_mutex_init(&loop->helper.lock, NULL);
	pthread_cond_init(&loop->helper.wake, NULL);
	loop->wake_iov = (struct iovec){ &loop->wake_count, sizeof loop->wake_count };
	loop->wake_io = (struct pl_io){
		.kind = PL_IO_READ,
		.fd = loop->wake_fd,
		.slot = -1,
		.iov = &loop->wake_iov,
		.iovcnt = 1,
		.done = loop_woken,
	};
	loop_arm_wake(loop);
	return 0;
no_restrictions:
	io_uring_queue_exit(&loop->ring);
no_ring:
	close(loop->wake_fd);
no_eventfd:
	pl_pool_free(loop->pool);
	return error;
}

int
pl_loop_new(struct pl_loop **out, struct pl_error *err)
{
	struct pl_loop *loop = calloc(1, sizeof *loop);
	int error;

	if (loop == NULL)
		return pl_error_set(err, -ENOMEM, "loop");
	error = loop_init_ring(loop, err);
	if (error != 0) {
		free(loop);
		return error;
	}
	*out = loop;
	return 0;
}

int
pl_loop_new_blocking(struct pl_loop **out, struct pl_error *err)
{
	struct pl_loop *loop = calloc(1, sizeof *loop);

	if (loop == NULL)
		return pl_error_set(err, -ENOMEM, "loop");
	loop->blocking = true;
	*out = loop;
	return 0;
}

void
pl_loop_free(struct pl_loop *loop)
{
	if (!loop->blocking) {
		helper_end(&loop->helper);
		/* The armed wake, which is a read. */
		assert(loop->in_flight == 1 && loop->data_in_flight == 1 && loop->posted == NULL);
		io_uring_queue_exit(&loop->ring);
		close(loop->wake_fd);
		pl_pool_free(loop->pool);
		pthread_mutex_destroy(&loop->lock);
	}
	free(loop);
}

bool
pl_loop_is_blocking(const struct pl_loop *loop)
{
	return loop->blocking;
}

struct pl_pool *
pl_loop_pool(struct pl_loop *loop)
{
	return loop->pool;
}

int
pl_loop_add_file(struct pl_loop *loop, int fd)
{
	for (int i = 0; loop->files && i < LOOP_FILES; i++) {
		if (loop->slots[i])
			continue;
		if (io_uring_register_files_update(&loop->ring, (unsigned)i, &fd, 1) != 1)
			return -1;
		loop->slots[i] = true;
		return i;
	}
	return -1;
}

void
pl_loop_remove_file(struct pl_loop *loop, int slot)
{
	static const int none = -1;

	if (slot < 0)
		return;
	io_uring_register_files_update(&loop->ring, (unsigned)slot, (int *)&none, 1);
	loop->slots[slot] = false;
}
