/* bench-raw.c - the file itself, by an io_uring for each job: what a server can come near to. */
#include "bench-load.h"

#include <err.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct raw {
	struct io_uring ring;
	int fd;
	uint8_t *read; /* room for a block of each slot */
};

static void
raw_open(struct bench_job *job, const struct bench_where *where)
{
	const struct bench_load *l = job->load;
	struct raw *raw = calloc(1, sizeof(*raw));
	int error, flags = bench_load_writes(l) ? O_RDWR : O_RDONLY;
	off_t size;

	if (raw == NULL ||
	    posix_memalign((void **)&raw->read, 4096, (size_t)l->block * l->depth) != 0)
		errx(1, "out of memory");
	raw->fd = open(where->path, flags | O_CLOEXEC | (where->direct ? O_DIRECT : 0));
	size = raw->fd != -1 ? lseek(raw->fd, 0, SEEK_END) : -1;
	if (size == -1)
		err(1, "%s", where->path);
	error = io_uring_queue_init(l->depth, &raw->ring, 0);
	if (error != 0)
		errx(1, "io_uring: %s", strerror(-error));
	job->size = (uint64_t)size;
	job->can_fua = job->can_flush = true;
	job->engine_state = raw;
}

static void
raw_issue(struct bench_job *job, unsigned slot, enum conn_op op, uint64_t offset, uint32_t length)
{
	struct raw *raw = job->engine_state;
	struct io_uring_sqe *sqe = io_uring_get_sqe(&raw->ring);

	if (op == CONN_READ) {
		io_uring_prep_read(sqe, raw->fd, raw->read + (size_t)slot * length, length, offset);
	} else if (op == CONN_WRITE) {
		io_uring_prep_write(sqe, raw->fd, job->payload, length, offset);
		sqe->rw_flags = job->load->sync == BENCH_FUA ? RWF_DSYNC : 0;
	} else {
		io_uring_prep_fsync(sqe, raw->fd, IORING_FSYNC_DATASYNC);
	}
	sqe->user_data = (uint64_t)length << 32 | slot;
}

static void
raw_turn(struct bench_job *job)
{
	struct raw *raw = job->engine_state;
	int error = io_uring_submit_and_wait(&raw->ring, 1);
	struct io_uring_cqe *cqe;

	if (error < 0 && error != -EINTR)
		errx(1, "io_uring: %s", strerror(-error));
	while (io_uring_peek_cqe(&raw->ring, &cqe) == 0) {
		unsigned slot = (uint32_t)cqe->user_data;
		int result = cqe->res, expected = (int)(cqe->user_data >> 32);

		io_uring_cqe_seen(&raw->ring, cqe);
		bench_answered(job, slot,
			       result == expected ? NULL
			       : result < 0       ? strerror(-result)
						  : "a part of what was asked for");
	}
}

static void
raw_close(struct bench_job *job)
{
	struct raw *raw = job->engine_state;

	io_uring_queue_exit(&raw->ring);
	close(raw->fd);
	free(raw->read);
	free(raw);
}

const struct bench_engine bench_raw = {
	.open = raw_open,
	.issue = raw_issue,
	.turn = raw_turn,
	.close = raw_close,
};
