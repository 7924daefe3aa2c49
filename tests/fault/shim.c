/*
 * shim.c - makes one call of a server fail: the library that tests/lib/faults.py preloads.
 *
 * It stands before what the server calls: memory (malloc(3) and its like, mmap(2); what libc
 * allocates for its callers comes here, too), calls of the system, and the ring. A file that is
 * mapped by both sides says which of these are counted and which one of them fails; so one server
 * serves many faults. The test finds there what it was that failed, and who called it.
 *
 * An entry of the ring that is to fail never gets to do what it is for: it is made one that the
 * kernel knows nothing of, and its completion gets the errno that such an operation may have.
 *
 * Before the address sanitizer's runtime it works as well (verify_asan_link_order=0): what passes
 * here is allocated there. Only `live` is no measure then, for the runtime's own strdup(3) does not
 * come here; its search for leaks is the better one anyway. So this file is never instrumented.
 */
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <liburing.h>
#include <linux/futex.h>
#include <netdb.h>
#include <poll.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/pidfd.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <sys/syscall.h>
#include <sys/utsname.h>
#include <sys/wait.h>
#include <unistd.h>
#include <unwind.h>

#define EXPORTED __attribute__((visibility("default")))
#define FRAMES   24

enum kind { MEMORY = 1 << 0, CALL = 1 << 1, RING = 1 << 2 };

/* What is shared with tests/lib/faults.py, where `LAYOUT` says the same. */
static struct shared {
	_Atomic uint32_t kinds; /* what is counted */
	uint32_t choice;        /* which of a call's errnos */
	uint64_t at;            /* the call that fails, counted from 1 */
	_Atomic uint64_t count;
	_Atomic int64_t live; /* pieces of memory */
	_Atomic uint32_t struck;
	int32_t error;
	char name[56];
	char only[80];    /* if any: count only what this object has a part in */
	char spare[80];   /* if any: do not count what this one asks for */
	char where[3840]; /* who called, innermost first */
} nowhere, *shared = &nowhere;

/* Not to be counted: what the shim itself calls. */
static __thread bool inside __attribute__((tls_model("initial-exec")));

/* ---- which call ------------------------------------------------------------------ */

static bool
comes_from(void *const *frames, int count, const char *object)
{
	Dl_info info;

	for (int i = 0; i < count; i++)
		if (dladdr(frames[i], &info) != 0 && strstr(info.dli_fname, object) != NULL)
			return true;
	return false;
}

static void
tell(void *const *frames, int count)
{
	size_t used = 0;
	Dl_info info;

	for (int i = 0; i < count && used < sizeof shared->where; i++) {
		if (dladdr(frames[i], &info) == 0)
			continue;
		used += (size_t)snprintf(shared->where + used, sizeof shared->where - used,
					 "%s %#zx %s\n", info.dli_fname,
					 (size_t)((char *)frames[i] - (char *)info.dli_fbase) - 1,
					 info.dli_sname != NULL ? info.dli_sname : "?");
	}
}

struct frames {
	void *at[FRAMES];
	int count;
};

static _Unwind_Reason_Code
add_frame(struct _Unwind_Context *context, void *arg)
{
	struct frames *f = arg;

	if (f->count == FRAMES)
		return _URC_END_OF_STACK;
	f->at[f->count++] = (void *)_Unwind_GetIP(context);
	return _URC_NO_REASON;
}

/* Innermost are this file's own: of_interest(), strikes() and what is called instead. */
#define OWN_FRAMES 3

/* backtrace(3) would load a library for that, and so ask for memory. */
static bool __attribute__((noinline)) of_interest(struct frames *f)
{
	_Unwind_Backtrace(add_frame, f);
	return (shared->only[0] == '\0' || comes_from(f->at, f->count, shared->only)) &&
	       (shared->spare[0] == '\0' || f->count <= OWN_FRAMES ||
		!comes_from(f->at + OWN_FRAMES, 1, shared->spare));
}

/* Whether this call is the one; then errno is set. */
static bool __attribute__((noinline)) strikes(enum kind kind, const char *name, const int errors[2])
{
	struct frames frames = { .count = 0 };
	bool hit;

	if ((shared->kinds & kind) == 0 || inside)
		return false;
	inside = true;
	hit = of_interest(&frames) && atomic_fetch_add(&shared->count, 1) + 1 == shared->at;
	if (hit) {
		tell(frames.at + OWN_FRAMES, frames.count - OWN_FRAMES);
		shared->error = errors[shared->choice];
		strncpy(shared->name, name, sizeof shared->name - 1);
		shared->struck = 1;
	}
	inside = false;
	if (hit)
		errno = shared->error;
	return hit;
}

/* ---- what is called instead ------------------------------------------------------ */

static void *
next(const char *name)
{
	bool was = inside;
	void *found;

	inside = true;
	found = dlsym(RTLD_NEXT, name);
	inside = was;
	if (found == NULL)
		abort();
	return found;
}

#define NEXT(name) \
	({ \
		static __typeof__(&(name)) real; \
		if (real == NULL) \
			real = (__typeof__(&(name)))next(#name); \
		real; \
	})

/* A function that returns FAIL and sets errno to the first or the second of two. */
#define WRAP(kind, type, name, fail, params, args, e1, e2) \
	EXPORTED type name params \
	{ \
		__typeof__(&(name)) real = NEXT(name); \
\
		if (strikes(kind, #name, (const int[]){ e1, e2 })) \
			return fail; \
		return real args; \
	}
#define FAILS(name, params, args, e1, e2) WRAP(CALL, int, name, -1, params, args, e1, e2)
#define SIZES(name, params, args, e1, e2) WRAP(CALL, ssize_t, name, -1, params, args, e1, e2)

/* One that returns what went wrong. */
#define TELLS(kind, name, params, args, e1, e2) WRAP(kind, int, name, errno, params, args, e1, e2)
#define RINGS(name, params, args, e1, e2)       WRAP(RING, int, name, -errno, params, args, e1, e2)

/* ---- memory ---------------------------------------------------------------------- */

static const int no_memory[] = { ENOMEM, ENOMEM };

/* What dlsym(3) itself asks for while malloc(3) is looked for. */
static char early[4096] __attribute__((aligned(16)));
static size_t early_used;

static void *
early_take(size_t size)
{
	void *piece = early + early_used;

	early_used += (size + 15) / 16 * 16;
	if (early_used > sizeof early)
		abort();
	return piece;
}

static bool
is_early(const void *p)
{
	return (const char *)p >= early && (const char *)p < early + sizeof early;
}

static void *
taken(void *piece)
{
	if (piece != NULL)
		atomic_fetch_add(&shared->live, 1);
	return piece;
}

static __typeof__(&malloc) real_malloc;
static __typeof__(&calloc) real_calloc;
static __typeof__(&realloc) real_realloc;
static __typeof__(&free) real_free;

/* Returns false while it is being looked for. */
static bool
memory_found(void)
{
	static bool looking;

	if (real_free != NULL)
		return true;
	if (looking)
		return false;
	looking = true;
	real_malloc = (__typeof__(&malloc))next("malloc");
	real_calloc = (__typeof__(&calloc))next("calloc");
	real_realloc = (__typeof__(&realloc))next("realloc");
	real_free = (__typeof__(&free))next("free");
	return true;
}

EXPORTED void *
malloc(size_t size)
{
	if (!memory_found())
		return early_take(size);
	return strikes(MEMORY, "malloc", no_memory) ? NULL : taken(real_malloc(size));
}

EXPORTED void *
calloc(size_t count, size_t size)
{
	if (!memory_found())
		return early_take(count * size);
	return strikes(MEMORY, "calloc", no_memory) ? NULL : taken(real_calloc(count, size));
}

EXPORTED void *
realloc(void *old, size_t size)
{
	if (!memory_found())
		abort();
	if (strikes(MEMORY, "realloc", no_memory))
		return NULL;
	return old == NULL ? taken(real_realloc(NULL, size)) : real_realloc(old, size);
}

EXPORTED void
free(void *piece)
{
	if (piece == NULL || is_early(piece) || !memory_found())
		return;
	atomic_fetch_sub(&shared->live, 1);
	real_free(piece);
}

EXPORTED int
posix_memalign(void **piece, size_t align, size_t size)
{
	__typeof__(&posix_memalign) real = NEXT(posix_memalign);
	int error;

	if (strikes(MEMORY, "posix_memalign", no_memory))
		return ENOMEM;
	error = real(piece, align, size);
	if (error == 0)
		taken(*piece);
	return error;
}

EXPORTED void *
aligned_alloc(size_t align, size_t size)
{
	__typeof__(&aligned_alloc) real = NEXT(aligned_alloc);

	return strikes(MEMORY, "aligned_alloc", no_memory) ? NULL : taken(real(align, size));
}

WRAP(MEMORY, void *, mmap, MAP_FAILED,
     (void *at, size_t length, int protection, int flags, int fd, off_t offset),
     (at, length, protection, flags, fd, offset), ENOMEM, ENOMEM)

/* ---- files ----------------------------------------------------------------------- */

/* The mode, where there is one to take. */
static mode_t
mode_of(int flags, va_list ap)
{
	return (flags & (O_CREAT | __O_TMPFILE)) != 0 ? va_arg(ap, mode_t) : 0;
}

#define OPENS(name) \
	EXPORTED int name(const char *path, int flags, ...) \
	{ \
		__typeof__(&(name)) real = NEXT(name); \
		va_list ap; \
		mode_t mode; \
\
		va_start(ap, flags); \
		mode = mode_of(flags, ap); \
		va_end(ap); \
		if (strikes(CALL, #name, (const int[]){ EMFILE, EACCES })) \
			return -1; \
		return real(path, flags, mode); \
	}
OPENS(open)
OPENS(open64)

EXPORTED int
fcntl(int fd, int what, ...)
{
	__typeof__(&fcntl) real = NEXT(fcntl);
	va_list ap;
	void *arg;

	va_start(ap, what);
	arg = va_arg(ap, void *);
	va_end(ap);
	return strikes(CALL, "fcntl", (const int[]){ ENOLCK, EMFILE }) ? -1 : real(fd, what, arg);
}

EXPORTED int
ioctl(int fd, unsigned long what, ...)
{
	__typeof__(&ioctl) real = NEXT(ioctl);
	va_list ap;
	void *arg;

	va_start(ap, what);
	arg = va_arg(ap, void *);
	va_end(ap);
	return strikes(CALL, "ioctl", (const int[]){ ENOTTY, EIO }) ? -1 : real(fd, what, arg);
}

#define FILES(name) \
	WRAP(CALL, FILE *, name, NULL, (const char *path, const char *mode), (path, mode), EMFILE, \
	     EACCES)
FILES(fopen)
FILES(fopen64)
WRAP(CALL, FILE *, fdopen, NULL, (int fd, const char *mode), (fd, mode), ENOMEM, EINVAL)
WRAP(CALL, DIR *, opendir, NULL, (const char *path), (path), EMFILE, EACCES)
WRAP(CALL, char *, realpath, NULL, (const char *path, char *room), (path, room), EIO, EACCES)
WRAP(CALL, char *, mkdtemp, NULL, (char *path), (path), ENOSPC, EACCES)
FAILS(flock, (int fd, int what), (fd, what), EWOULDBLOCK, ENOLCK)
FAILS(fstat, (int fd, struct stat *st), (fd, st), EIO, ENOMEM)
FAILS(stat, (const char *path, struct stat *st), (path, st), EIO, ENOENT)
FAILS(lstat, (const char *path, struct stat *st), (path, st), EIO, ENOENT)
FAILS(fstatfs, (int fd, struct statfs *st), (fd, st), EIO, ENOSYS)
FAILS(access, (const char *path, int how), (path, how), EIO, EACCES)
FAILS(ftruncate, (int fd, off_t length), (fd, length), EIO, ENOSPC)
FAILS(rename, (const char *from, const char *to), (from, to), EIO, ENOSPC)
FAILS(unlink, (const char *path), (path), EIO, EACCES)
FAILS(rmdir, (const char *path), (path), EIO, EACCES)
FAILS(mkdir, (const char *path, mode_t mode), (path, mode), ENOSPC, EACCES)
FAILS(chown, (const char *path, uid_t user, gid_t group), (path, user, group), EIO, EPERM)
FAILS(dup2, (int from, int to), (from, to), EBUSY, EINTR)
FAILS(fdatasync, (int fd), (fd), EIO, ENOSPC)
FAILS(fsync, (int fd), (fd), EIO, ENOSPC)
FAILS(fallocate, (int fd, int mode, off_t offset, off_t length), (fd, mode, offset, length), EIO,
      EOPNOTSUPP)
FAILS(madvise, (void *at, size_t length, int advice), (at, length, advice), ENOMEM, EINVAL)
TELLS(CALL, posix_fadvise, (int fd, off_t offset, off_t length, int advice),
      (fd, offset, length, advice), EIO, EINVAL)
WRAP(CALL, off_t, lseek, -1, (int fd, off_t offset, int whence), (fd, offset, whence), EIO, EINVAL)
/* An eventfd and the like never tell of a disk. */
#define MOVES(name, type, errors_of_file, errors_of_socket) \
	EXPORTED ssize_t name(int fd, type memory, size_t length) \
	{ \
		static const int of_file[] = errors_of_file, of_socket[] = errors_of_socket, \
				 of_other[] = { EINTR, EINTR }; \
		__typeof__(&(name)) real = NEXT(name); \
		struct stat st = { .st_mode = 0 }; \
\
		if (shared->kinds != 0) \
			NEXT(fstat)(fd, &st); \
		if (strikes(CALL, #name, \
			    S_ISREG(st.st_mode)    ? of_file \
			    : S_ISSOCK(st.st_mode) ? of_socket \
						   : of_other)) \
			return -1; \
		return real(fd, memory, length); \
	}
#define PAIR(e1, e2) \
	{ \
		e1, e2 \
	}
MOVES(read, void *, PAIR(EIO, EINTR), PAIR(ECONNRESET, EINTR))
MOVES(write, const void *, PAIR(EIO, ENOSPC), PAIR(EPIPE, EINTR))
SIZES(pread, (int fd, void *to, size_t length, off_t offset), (fd, to, length, offset), EIO, EINTR)
SIZES(pwrite, (int fd, const void *from, size_t length, off_t offset), (fd, from, length, offset),
      EIO, ENOSPC)
SIZES(preadv, (int fd, const struct iovec *iov, int count, off_t offset), (fd, iov, count, offset),
      EIO, EINTR)
SIZES(preadv2, (int fd, const struct iovec *iov, int count, off_t offset, int flags),
      (fd, iov, count, offset, flags), EIO, EOPNOTSUPP)
SIZES(pwritev2, (int fd, const struct iovec *iov, int count, off_t offset, int flags),
      (fd, iov, count, offset, flags), EIO, EOPNOTSUPP)

/* ---- sockets and other descriptors ----------------------------------------------- */

FAILS(socket, (int domain, int type, int protocol), (domain, type, protocol), EMFILE, EACCES)
FAILS(socketpair, (int domain, int type, int protocol, int fds[2]), (domain, type, protocol, fds),
      EMFILE, ENFILE)
FAILS(bind, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length),
      EADDRINUSE, EACCES)
FAILS(listen, (int fd, int backlog), (fd, backlog), EADDRINUSE, EOPNOTSUPP)
FAILS(connect, (int fd, const struct sockaddr *address, socklen_t length), (fd, address, length),
      ECONNREFUSED, EAGAIN)
FAILS(getsockname, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length),
      ENOBUFS, ENOTCONN)
FAILS(getpeername, (int fd, struct sockaddr *address, socklen_t *length), (fd, address, length),
      ENOTCONN, ENOBUFS)
FAILS(getsockopt, (int fd, int level, int name, void *value, socklen_t *length),
      (fd, level, name, value, length), ENOPROTOOPT, ENOMEM)
FAILS(setsockopt, (int fd, int level, int name, const void *value, socklen_t length),
      (fd, level, name, value, length), ENOPROTOOPT, ENOMEM)
FAILS(shutdown, (int fd, int how), (fd, how), ENOTCONN, ENOTCONN)
SIZES(recv, (int fd, void *to, size_t length, int flags), (fd, to, length, flags), ECONNRESET,
      ENOMEM)
SIZES(send, (int fd, const void *from, size_t length, int flags), (fd, from, length, flags), EPIPE,
      ENOBUFS)
SIZES(sendmsg, (int fd, const struct msghdr *message, int flags), (fd, message, flags), EPIPE,
      ENOBUFS)
FAILS(pipe2, (int fds[2], int flags), (fds, flags), EMFILE, ENFILE)
FAILS(eventfd, (unsigned count, int flags), (count, flags), EMFILE, ENOMEM)
FAILS(signalfd, (int fd, const sigset_t *set, int flags), (fd, set, flags), EMFILE, ENOMEM)
FAILS(poll, (struct pollfd * fds, nfds_t count, int timeout), (fds, count, timeout), EINTR, ENOMEM)
TELLS(CALL, getaddrinfo,
      (const char *restrict host, const char *restrict port, const struct addrinfo *restrict want,
       struct addrinfo **restrict found),
      (host, port, want, found), EAI_MEMORY, EAI_AGAIN)
TELLS(CALL, getnameinfo,
      (const struct sockaddr *restrict address, socklen_t length, char *restrict host,
       socklen_t host_size, char *restrict port, socklen_t port_size, int flags),
      (address, length, host, host_size, port, port_size, flags), EAI_MEMORY, EAI_AGAIN)

/* ---- processes, threads and what they may ---------------------------------------- */

WRAP(CALL, pid_t, fork, -1, (void), (), EAGAIN, ENOMEM)
WRAP(CALL, pid_t, waitpid, -1, (pid_t pid, int *status, int how), (pid, status, how), EINTR, ECHILD)
WRAP(CALL, pid_t, setsid, -1, (void), (), EPERM, EPERM)
TELLS(CALL, pthread_create,
      (pthread_t *restrict thread, const pthread_attr_t *restrict attributes, void *(*run)(void *),
       void *restrict arg),
      (thread, attributes, run, arg), EAGAIN, EPERM)
TELLS(CALL, pthread_key_create, (pthread_key_t * key, void (*end)(void *)), (key, end), EAGAIN,
      ENOMEM)
SIZES(getrandom, (void *to, size_t length, unsigned flags), (to, length, flags), EINTR, ENOSYS)
FAILS(initgroups, (const char *name, gid_t group), (name, group), EPERM, ENOMEM)
FAILS(setgroups, (size_t count, const gid_t *groups), (count, groups), EPERM, ENOMEM)
FAILS(pidfd_open, (pid_t pid, unsigned flags), (pid, flags), EMFILE, ENOSYS)
FAILS(setrlimit, (__rlimit_resource_t what, const struct rlimit *limit), (what, limit), EPERM,
      EINVAL)
FAILS(uname, (struct utsname * name), (name), EFAULT, EFAULT)
FAILS(setresuid, (uid_t real_id, uid_t effective, uid_t saved), (real_id, effective, saved), EAGAIN,
      EPERM)
FAILS(setresgid, (gid_t real_id, gid_t effective, gid_t saved), (real_id, effective, saved), EAGAIN,
      EPERM)

EXPORTED long
syscall(long number, ...)
{
	__typeof__(&syscall) real = NEXT(syscall);
	long a[6];
	va_list ap;

	va_start(ap, number);
	for (int i = 0; i < 6; i++)
		a[i] = va_arg(ap, long);
	va_end(ap);
	if (number != SYS_futex) {
		if (strikes(CALL, "syscall", (const int[]){ ENOSYS, ENOMEM }))
			return -1;
	} else if ((a[1] & FUTEX_CMD_MASK) == FUTEX_WAIT) { /* to wake somebody never fails */
		if (strikes(CALL, "futex", (const int[]){ EINTR, EAGAIN }))
			return -1;
	}
	return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

/* ---- the ring -------------------------------------------------------------------- */

RINGS(io_uring_queue_init, (unsigned entries, struct io_uring *ring, unsigned flags),
      (entries, ring, flags), EMFILE, ENOSYS)
RINGS(io_uring_queue_init_params,
      (unsigned entries, struct io_uring *ring, struct io_uring_params *params),
      (entries, ring, params), ENOMEM, EPERM)
RINGS(io_uring_register_buffers, (struct io_uring * ring, const struct iovec *iov, unsigned count),
      (ring, iov, count), ENOMEM, EOPNOTSUPP)
RINGS(io_uring_register_files_sparse, (struct io_uring * ring, unsigned count), (ring, count),
      ENOMEM, EMFILE)
RINGS(io_uring_register_files_update,
      (struct io_uring * ring, unsigned at, const int *fds, unsigned count), (ring, at, fds, count),
      ENOMEM, EBADF)

static const struct operation {
	const char *name;
	int errors[2];
} operations[IORING_OP_LAST] = {
	[IORING_OP_READV] = { "READV", { EIO, ENOMEM } },
	[IORING_OP_WRITEV] = { "WRITEV", { EIO, ENOSPC } },
	[IORING_OP_READ_FIXED] = { "READ_FIXED", { EIO, ENOMEM } },
	[IORING_OP_WRITE_FIXED] = { "WRITE_FIXED", { EIO, ENOSPC } },
	[IORING_OP_FSYNC] = { "FSYNC", { EIO, ENOMEM } },
	[IORING_OP_FALLOCATE] = { "FALLOCATE", { EIO, EOPNOTSUPP } },
	[IORING_OP_FADVISE] = { "FADVISE", { ENOMEM, EINVAL } },
	[IORING_OP_TIMEOUT] = { "TIMEOUT", { ENOMEM, EINTR } },
	[IORING_OP_RECV] = { "RECV", { ECONNRESET, ENOMEM } },
	[IORING_OP_RECVMSG] = { "RECVMSG", { ECONNRESET, ENOMEM } },
	[IORING_OP_SEND] = { "SEND", { EPIPE, ENOMEM } },
	[IORING_OP_SENDMSG] = { "SENDMSG", { EPIPE, ENOMEM } },
	[IORING_OP_ACCEPT] = { "ACCEPT", { EMFILE, ECONNABORTED } },
	[IORING_OP_POLL_ADD] = { "POLL_ADD", { ENOMEM, EINTR } },
};

#define NO_OPERATION 255 /* the kernel completes it with EINVAL */

/* The completion that is to get another errno, once it is there. */
static __thread uint64_t spoilt_data __attribute__((tls_model("initial-exec")));
static __thread int spoilt_error __attribute__((tls_model("initial-exec")));

static void
spoil(struct io_uring *ring)
{
	const struct io_uring_sq *sq = &ring->sq;

	for (unsigned at = sq->sqe_head; at != sq->sqe_tail; at++) {
		struct io_uring_sqe *sqe = &sq->sqes[at & *sq->kring_mask];
		const struct operation *op = &operations[sqe->opcode % IORING_OP_LAST];

		if (sqe->opcode >= IORING_OP_LAST || op->name == NULL ||
		    !strikes(RING, op->name, op->errors))
			continue;
		spoilt_data = sqe->user_data;
		spoilt_error = shared->error;
		sqe->opcode = NO_OPERATION;
	}
}

static void
mend(struct io_uring *ring)
{
	struct io_uring_cqe *cqe;
	unsigned head;

	if (spoilt_error == 0)
		return;
	io_uring_for_each_cqe(ring, head, cqe)
	{
		if (cqe->user_data == spoilt_data && cqe->res == -EINVAL) {
			cqe->res = -spoilt_error;
			spoilt_error = 0;
		}
	}
}

#define SUBMITS(name, params, args) \
	EXPORTED int name params \
	{ \
		__typeof__(&(name)) real = NEXT(name); \
		int result; \
\
		if (strikes(RING, #name, (const int[]){ EAGAIN, EINTR })) \
			return -errno; \
		spoil(ring); \
		result = real args; \
		mend(ring); \
		return result; \
	}
SUBMITS(io_uring_submit, (struct io_uring * ring), (ring))
SUBMITS(io_uring_submit_and_get_events, (struct io_uring * ring), (ring))
SUBMITS(io_uring_submit_and_wait, (struct io_uring * ring, unsigned count), (ring, count))

/* ---- the start ------------------------------------------------------------------- */

__attribute__((constructor)) static void
begin(void)
{
	const char *path = getenv("PLATTER_FAULTS");
	void *map = MAP_FAILED;
	int fd = path != NULL ? open(path, O_RDWR | O_CLOEXEC) : -1;

	if (fd != -1) {
		map = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		close(fd);
	}
	if (map == MAP_FAILED) {
		fprintf(stderr, "shim: PLATTER_FAULTS: %s\n", strerror(errno));
		_exit(EXIT_FAILURE);
	}
	unsetenv("LD_PRELOAD"); /* this process, and none that it starts */
	shared = map;
}
