/*
 * torture-file.c - a file or a block device as a target.
 *
 * Each connection opens it anew: the kernel tells of a lost write-back once for each open file
 * description. A device is read and written past the page cache; a file through it when it is
 * written, and past it when it is read.
 */
#include "torture-stamp.h"
#include "torture-target.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <unistd.h>

struct torture_conn {
	int fd;
};

/* Nobody else may be at it: a loop device, a virtual machine, a server. Of a device O_EXCL has
 * seen to that. */
static int
claim(int fd, bool device, const char *path, struct pl_error *err)
{
	struct flock all = { .l_type = F_WRLCK, .l_whence = SEEK_SET };

	if (device)
		return 0;
	if (fcntl(fd, F_OFD_SETLK, &all) == -1 && errno != EINVAL)
		return pl_error_say(err, -EBUSY, "%s is in use: somebody has a lock on it", path);
	return 0;
}

static int
measure(int fd, bool device, struct torture_info *info)
{
	struct stat st;
	int block = 512;

	if (device &&
	    (ioctl(fd, BLKGETSIZE64, &info->size) == -1 || ioctl(fd, BLKSSZGET, &block) == -1))
		return -errno;
	if (!device && fstat(fd, &st) == -1)
		return -errno;
	if (!device)
		info->size = (uint64_t)st.st_size;
	info->unit = (uint32_t)block;
	info->align = device ? info->unit : CELL;
	info->max = 1 << 20;
	info->depth = 1; /* each waits in a system call */
	info->can = CAN_FLUSH | CAN_FUA | CAN_ZERO | CAN_TRIM | CAN_FUA_ZERO | CAN_SHARE;
	return 0;
}

static int
file_open(const char *target, enum torture_open how, unsigned timeout_s, struct torture_conn **conn,
	  struct torture_info *info, struct pl_error *err)
{
	struct torture_conn *c = calloc(1, sizeof *c);
	struct stat st;
	bool device;
	unsigned can = 0;
	int error, flags;

	(void)timeout_s;
	if (c == NULL)
		return pl_error_set(err, -ENOMEM, "%s", target);
	if (stat(target, &st) == -1) {
		error = pl_error_set(err, -errno, "%s", target);
		goto fail;
	}
	device = S_ISBLK(st.st_mode);
	if (!device && !S_ISREG(st.st_mode)) {
		error = pl_error_say(err, -EINVAL, "%s is neither a file nor a block device",
				     target);
		goto fail;
	}
	flags = O_CLOEXEC | (device ? O_DIRECT : 0) | (device && how == OPEN_FIRST ? O_EXCL : 0);
	c->fd = how == OPEN_READ ? -1 : open(target, flags | O_RDWR);
	if (how == OPEN_READ ||
	    (c->fd == -1 && (errno == EACCES || errno == EROFS || errno == EPERM))) {
		can = CAN_NOT_WRITE;
		c->fd = open(target, flags | O_RDONLY);
	}
	if (c->fd == -1) {
		error = errno == EBUSY ? pl_error_say(err, -EBUSY, "%s is in use", target)
				       : pl_error_set(err, -errno, "%s", target);
		goto fail;
	}
	error = measure(c->fd, device, info);
	info->can |= can;
	if (error != 0)
		pl_error_set(err, error, "%s: size", target);
	else if (how == OPEN_FIRST)
		error = claim(c->fd, device, target, err);
	if (error != 0) {
		close(c->fd);
		goto fail;
	}
	*conn = c;
	return 0;
fail:
	free(c);
	return error;
}

static void
file_close(struct torture_conn *c)
{
	close(c->fd);
	free(c);
}

static int
transfer(struct torture_conn *c, struct torture_op *op)
{
	for (uint64_t at = 0; at < op->length;) {
		struct iovec iov = { (char *)op->data + at, op->length - at };
		ssize_t n = op->kind == TORTURE_READ
				    ? preadv(c->fd, &iov, 1, (off_t)(op->offset + at))
				    : pwritev2(c->fd, &iov, 1, (off_t)(op->offset + at),
					       op->fua ? RWF_DSYNC : 0);

		if (n == -1 && errno == EINTR)
			continue;
		if (n <= 0)
			return n == 0 ? -EIO : -errno;
		at += (uint64_t)n;
	}
	return 0;
}

/* What was read by others before is not on the medium for that. */
static void
forget(struct torture_conn *c, const struct torture_op *op)
{
	sync_file_range(c->fd, (off_t)op->offset, (off_t)op->length,
			SYNC_FILE_RANGE_WAIT_BEFORE | SYNC_FILE_RANGE_WRITE |
				SYNC_FILE_RANGE_WAIT_AFTER);
	posix_fadvise(c->fd, (off_t)op->offset, (off_t)op->length, POSIX_FADV_DONTNEED);
}

/* A file system or a device may have one of the two ways only, or none. */
static int
zero(struct torture_conn *c, const struct torture_op *op)
{
	const int ways[] = { op->kind == TORTURE_ZERO ? FALLOC_FL_ZERO_RANGE : FALLOC_FL_PUNCH_HOLE,
			     FALLOC_FL_PUNCH_HOLE };

	for (int i = 0; i < 2; i++) {
		if (fallocate(c->fd, FALLOC_FL_KEEP_SIZE | ways[i], (off_t)op->offset,
			      (off_t)op->length) == 0)
			return 0;
		if (errno != EOPNOTSUPP)
			return -errno;
	}
	return -EOPNOTSUPP;
}

static int
carry_out(struct torture_conn *c, struct torture_op *op)
{
	int error = 0;

	switch (op->kind) {
	case TORTURE_READ: forget(c, op); return transfer(c, op);
	case TORTURE_WRITE: return transfer(c, op);
	case TORTURE_ZERO:
	case TORTURE_TRIM: error = zero(c, op); break;
	case TORTURE_FLUSH: break;
	}
	if (error == 0 && (op->fua || op->kind == TORTURE_FLUSH) && fdatasync(c->fd) == -1)
		error = -errno;
	return error;
}

static int
file_submit(struct torture_conn *c, struct torture_op *op)
{
	op->on_done(op, carry_out(c, op));
	return 0;
}

static int
file_wait(struct torture_conn *c, int timeout_ms)
{
	(void)c;
	(void)timeout_ms;
	return 0;
}

const struct torture_transport torture_file = {
	.scheme = "",
	.open = file_open,
	.submit = file_submit,
	.wait = file_wait,
	.close = file_close,
};
