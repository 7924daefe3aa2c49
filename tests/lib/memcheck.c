/*
 * memcheck.c - what valgrind does not know of Linux, for a program that runs under it.
 *
 * A library that comes before all others, with calls of liburing and the C library:
 * - valgrind lets one thread run at a time and knows which system calls may block. Of
 *   io_uring_enter(2) it does not know it: a thread that waited there would stop all others.
 *   So one waits by sleeping, a little longer each time.
 * - memory that the kernel fills behind a ring has, for valgrind, never been written. Each
 *   completion names its struct pl_io, and that the memory.
 * - it has no openat2(2). What the driver asks of it, that no link and no ".." lead out of a
 *   directory, is done here one name after the other; somebody may get in between, as he may
 *   not with the kernel's own.
 */
#include "platter-driver.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/openat2.h>
#include <stdarg.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>
#include <valgrind/memcheck.h>

#define SLEEP_MIN 20000 /* nanoseconds */
#define SLEEP_MAX 2000000

int io_uring_submit_and_get_events(struct io_uring *ring);
int io_uring_submit_and_wait(struct io_uring *ring, unsigned wanted);

/* ---- rings ----------------------------------------------------------------------- */

static void
filled(const struct pl_io *io, int result)
{
	if (io == NULL || (io->kind != PL_IO_READ && io->kind != PL_IO_RECV))
		return;
	for (int i = 0; i < io->iovcnt && result > 0; i++) {
		size_t length =
			io->iov[i].iov_len < (size_t)result ? io->iov[i].iov_len : (size_t)result;

		VALGRIND_MAKE_MEM_DEFINED(io->iov[i].iov_base, length);
		result -= (int)length;
	}
}

__attribute__((visibility("default"))) int
io_uring_submit_and_get_events(struct io_uring *ring)
{
	static int (*real)(struct io_uring * ring);
	struct io_uring_cqe *cqe;
	unsigned head;
	int result;

	if (real == NULL)
		real = (int (*)(struct io_uring *))dlsym(RTLD_NEXT,
							 "io_uring_submit_and_get_events");
	result = real(ring);
	io_uring_for_each_cqe(ring, head, cqe) filled(io_uring_cqe_get_data(cqe), cqe->res);
	return result;
}

__attribute__((visibility("default"))) int
io_uring_submit_and_wait(struct io_uring *ring, unsigned wanted)
{
	struct timespec sleep = { 0, SLEEP_MIN };
	int submitted = io_uring_submit_and_get_events(ring);

	while (submitted >= 0 && io_uring_cq_ready(ring) < wanted) {
		nanosleep(&sleep, NULL);
		if (sleep.tv_nsec < SLEEP_MAX)
			sleep.tv_nsec *= 2;
		io_uring_submit_and_get_events(ring);
	}
	return submitted;
}

/* ---- openat2 --------------------------------------------------------------------- */

static int
open_one(int dir, const char *name, int flags)
{
	struct stat st;
	int fd;

	if (strcmp(name, "..") == 0) {
		errno = EXDEV;
		return -1;
	}
	fd = openat(dir, name, flags | O_NOFOLLOW);
	if (fd != -1 && fstat(fd, &st) == 0 && S_ISLNK(st.st_mode)) {
		close(fd);
		errno = ELOOP;
		return -1;
	}
	return fd;
}

static int
open_beneath(int dir, const char *path, const struct open_how *how)
{
	char copy[PATH_MAX], *rest = copy, *name;
	int fd = dup(dir);

	if (*path == '/' || strlen(path) >= sizeof copy) {
		close(fd);
		errno = EXDEV;
		return -1;
	}
	strcpy(copy, path);
	while (fd != -1 && (name = strsep(&rest, "/")) != NULL) {
		int next = open_one(fd, name, rest != NULL ? O_PATH : (int)how->flags);

		close(fd);
		fd = next;
	}
	return fd;
}

__attribute__((visibility("default"))) long
syscall(long number, ...)
{
	static long (*real)(long number, ...);
	long a[6];
	va_list args;

	va_start(args, number);
	for (unsigned i = 0; i < 6; i++)
		a[i] = va_arg(args, long);
	va_end(args);
	if (number == SYS_openat2)
		return open_beneath((int)a[0], (const char *)a[1], (const struct open_how *)a[2]);
	if (real == NULL)
		real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}
