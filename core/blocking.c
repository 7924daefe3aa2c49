/* blocking.c - what a thread that blocks has of its own. */
#include "blocking.h"

#include "loop.h"

#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>
#ifdef __SANITIZE_THREAD__
#include <sanitizer/tsan_interface.h>
#endif

#define RING_ENTRIES 4

struct thread {
	struct io_uring ring;
	bool has_ring, no_ring; /* no_ring: tried in vain */
	char *buffer;
};

static pthread_key_t thread_key;
static pthread_once_t thread_once = PTHREAD_ONCE_INIT;
static bool thread_key_made;

/*
 * liburing maps and unmaps a ring by system calls that the thread sanitizer does not see: a
 * ring that lies where one of an ended thread lay would look like a race of the two. So it
 * is told that the one came after the other. The two maps of a ring this small have a page
 * each, and either can come to lie where any of the other's was.
 */
static void
ring_begins(const struct io_uring *ring)
{
	(void)ring;
#ifdef __SANITIZE_THREAD__
	__tsan_acquire(ring->sq.ring_ptr);
	__tsan_acquire(ring->sq.sqes);
#endif
}

static void
ring_ends(const struct io_uring *ring)
{
	(void)ring;
#ifdef __SANITIZE_THREAD__
	__tsan_release(ring->sq.ring_ptr);
	__tsan_release(ring->sq.sqes);
#endif
}

static void
thread_end(void *arg)
{
	struct thread *t = arg;

	if (t->has_ring) {
		ring_ends(&t->ring);
		io_uring_queue_exit(&t->ring);
	}
	free(t->buffer);
	free(t);
}

static void
thread_make_key(void)
{
	thread_key_made = pthread_key_create(&thread_key, thread_end) == 0;
}

static struct thread *
thread_get(void)
{
	struct thread *t;

	pthread_once(&thread_once, thread_make_key);
	if (!thread_key_made)
		return NULL;
	t = pthread_getspecific(thread_key);
	if (t == NULL) {
		t = calloc(1, sizeof *t);
		if (t != NULL && pthread_setspecific(thread_key, t) != 0) {
			free(t);
			t = NULL;
		}
	}
	return t;
}

char *
pl_blocking_buffer(void)
{
	struct thread *t = thread_get();

	if (t == NULL)
		return NULL;
	if (t->buffer == NULL && posix_memalign((void **)&t->buffer, 65536, PL_POOL_BUFFER) != 0)
		t->buffer = NULL;
	return t->buffer;
}

static struct io_uring *
thread_ring(void)
{
	static bool said;
	struct thread *t = thread_get();
	int error;

	if (t == NULL || t->no_ring)
		return NULL;
	if (!t->has_ring) {
		error = io_uring_queue_init(RING_ENTRIES, &t->ring,
					    IORING_SETUP_SINGLE_ISSUER |
						    IORING_SETUP_DEFER_TASKRUN);
		if (error == -EINVAL) /* before Linux 6.1 */
			error = io_uring_queue_init(RING_ENTRIES, &t->ring, 0);
		t->has_ring = error == 0;
		if (t->has_ring)
			ring_begins(&t->ring);
		t->no_ring = error != 0;
		if (error != 0 && !__atomic_exchange_n(&said, true, __ATOMIC_RELAXED))
			log_warn("io_uring: %s: FUA writes cost more from now on",
				 strerror(-error));
	}
	return t->has_ring ? &t->ring : NULL;
}

/* One write on the thread's ring, and its result. */
static int64_t
ring_write(struct io_uring *ring, const struct pl_io *io)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(ring);
	struct io_uring_cqe *cqe;
	int64_t result;
	int error;

	io_uring_prep_writev2(sqe, io->fd, io->iov, (unsigned)io->iovcnt, io->offset, io->mode);
	do
		error = io_uring_submit_and_wait(ring, 1);
	while (error == -EINTR || error == -EAGAIN || error == -EBUSY);
	do
		error = io_uring_wait_cqe(ring, &cqe);
	while (error == -EINTR || error == -EAGAIN);
	if (error != 0)
		return error;
	result = cqe->res;
	io_uring_cqe_seen(ring, cqe);
	return result;
}

/* What a system call returned, as bytes, 0 or a negative errno. */
static int64_t
outcome(int64_t returned)
{
	return returned == -1 ? -errno : returned;
}

static int64_t
write_call(const struct pl_io *io)
{
	struct io_uring *ring = io->by_ring ? thread_ring() : NULL;

	if (ring != NULL)
		return ring_write(ring, io);
	if (io->mode == 0 && io->iovcnt == 1)
		return outcome(
			pwrite(io->fd, io->iov->iov_base, io->iov->iov_len, (off_t)io->offset));
	return outcome(pwritev2(io->fd, io->iov, io->iovcnt, (off_t)io->offset, io->mode));
}

static int64_t
read_call(const struct pl_io *io)
{
	if (io->mode == 0 && io->iovcnt == 1)
		return outcome(
			pread(io->fd, io->iov->iov_base, io->iov->iov_len, (off_t)io->offset));
	return outcome(preadv2(io->fd, io->iov, io->iovcnt, (off_t)io->offset, io->mode));
}

static int64_t
delay_call(const struct pl_io *io)
{
	struct timespec delay = { (time_t)(io->length / 1000000000),
				  (long)(io->length % 1000000000) };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &delay, &delay) == EINTR)
		;
	return 0;
}

static int64_t
io_call(struct pl_io *io)
{
	switch (io->kind) {
	case PL_IO_READ: return read_call(io);
	case PL_IO_WRITE: return write_call(io);
	case PL_IO_SYNC: return outcome(fdatasync(io->fd));
	case PL_IO_FALLOCATE:
		return outcome(fallocate(io->fd, io->mode, (off_t)io->offset, (off_t)io->length));
	case PL_IO_FADVISE:
		return -posix_fadvise(io->fd, (off_t)io->offset, (off_t)io->length, io->mode);
	case PL_IO_CALL: return io->call(io);
	case PL_IO_DELAY: return delay_call(io);
	case PL_IO_RECV:
	case PL_IO_SEND:
	case PL_IO_ACCEPT:
	case PL_IO_POLL: break; /* of ring loops only */
	}
	return -EINVAL;
}

void
pl_blocking_io(struct pl_io *io)
{
	int64_t result;

	do
		result = io_call(io);
	while (pl_io_again(io, result));
	io->done(io, result);
}
