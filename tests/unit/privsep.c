/* privsep.c - what has been given up is gone, for all threads; what is needed still works.
 * no valgrind
 */
#include "privsep.h"

#include "fixture.h"
#include "test.h"

#include <cap-ng.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <netinet/in.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
#ifndef COVERAGE
#define COVERAGE 0
#endif

static void
need_root(void)
{
	if (geteuid() != 0)
		test_skip("only root can give up what root has");
}

static void
need_landlock(long version)
{
	if (COVERAGE)
		test_skip("counts of what ran are written beside the objects");
	if (SANITIZED)
		test_skip("sanitizers write reports where they like");
	if (syscall(SYS_landlock_create_ruleset, NULL, 0, 1) < version)
		test_skip("the kernel has no Landlock of version %ld", version);
}

static void
need_filter(void)
{
	if (SANITIZED)
		test_skip("sanitizers start programs and look into processes");
}

static void
drop(const struct privsep_settings *s)
{
	struct pl_error err;

	if (privsep_drop(s, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
}

static void
seal(void)
{
	static const struct privsep_settings s = { .sandbox = true };
	struct pl_error err;

	if (privsep_seal(&s, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
}

/* A line of /proc/thread-self/status. */
static const char *
status(const char *key)
{
	static char line[256];
	FILE *f = fopen("/proc/thread-self/status", "re");
	size_t n = strlen(key);

	assert_true(f != NULL);
	while (fgets(line, sizeof line, f) != NULL) {
		if (strncmp(line, key, n) == 0 && line[n] == ':') {
			fclose(f);
			line[strcspn(line, "\n")] = '\0';
			return line + n + 2;
		}
	}
	test_fail(__FILE__, __LINE__, "no line %s", key);
}

/* ---- user and capabilities ------------------------------------------------------- */

TEST(another_user_is_another_user_for_good)
{
	static const char *const sets[] = { "CapInh", "CapPrm", "CapEff", "CapBnd", "CapAmb" };
	static const struct privsep_settings s = { .user = "nobody" };
	gid_t groups[64];
	gid_t zero = 0;

	need_root();
	assert_eq(setgroups(1, &zero), 0);
	drop(&s);
	assert_ne(getuid(), 0);
	assert_ne(getgid(), 0);
	for (int i = getgroups(64, groups); i > 0; i--)
		assert_ne(groups[i - 1], 0);
	assert_eq(setuid(0), -1);
	assert_eq(setgid(0), -1);
	assert_eq(setresuid(0, 0, 0), -1);
	assert_eq(setgroups(1, &zero), -1);
	for (unsigned i = 0; i < 5; i++)
		assert_str(status(sets[i]), "0000000000000000");
	assert_str(status("NoNewPrivs"), "1");
}

/* Of whoever gave them, for images that he alone may open, say: they are gone all the same. */
TEST(capabilities_of_a_user_are_dropped)
{
	static const char *const sets[] = { "CapInh", "CapPrm", "CapEff", "CapAmb" };
	static const struct privsep_settings s = { 0 };

	need_root();
	capng_clear(CAPNG_SELECT_BOTH);
	capng_updatev(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED | CAPNG_INHERITABLE, CAP_CHOWN,
		      CAP_SETPCAP, -1);
	assert_eq(capng_change_id(54321, 54321, CAPNG_DROP_SUPP_GRP), 0);
	assert_eq(prctl(PR_CAP_AMBIENT, PR_CAP_AMBIENT_RAISE, CAP_CHOWN, 0, 0), 0);
	assert_str(status("CapAmb"), "0000000000000001");
	drop(&s);
	for (unsigned i = 0; i < 4; i++)
		assert_str(status(sets[i]), "0000000000000000");
}

TEST(a_root_that_stays_keeps_access_to_files_alone)
{
	static const struct privsep_settings s = { 0 };

	need_root();
	drop(&s);
	assert_eq(getuid(), 0);
	assert_str(status("CapEff"), "0000000000000002"); /* CAP_DAC_OVERRIDE */
	assert_str(status("CapPrm"), "0000000000000002");
	assert_str(status("CapBnd"), "0000000000000002");
	assert_str(status("CapAmb"), "0000000000000000");
	assert_eq(syscall(SYS_setuid, 1), -1); /* of this thread; a sanitizer has others */
}

TEST(numbers_are_users_and_groups_too)
{
	static const struct privsep_settings s = { .user = "54321", .group = "54322" };

	need_root();
	drop(&s);
	assert_eq(getuid(), 54321);
	assert_eq(getgid(), 54322);
	assert_eq(getgroups(0, NULL), 0);
}

TEST(the_group_of_root_makes_no_root)
{
	static const struct privsep_settings s = { .user = "54321", .group = "0" };

	need_root();
	drop(&s);
	assert_eq(getuid(), 54321);
	assert_eq(getgid(), 0);
	assert_eq(setresuid(0, 0, 0), -1);
	assert_str(status("CapEff"), "0000000000000000");
}

TEST(a_group_alone_leaves_the_user)
{
	static const struct privsep_settings s = { .group = "54322" };

	need_root();
	drop(&s);
	assert_eq(getuid(), 0);
	assert_eq(getgid(), 54322);
}

TEST(who_is_it_already_stays_it)
{
	static const struct privsep_settings s = { .user = "54321", .group = "54322" };

	need_root();
	assert_eq(setresgid(54322, 54322, 54322), 0);
	assert_eq(setresuid(54321, 54321, 54321), 0);
	drop(&s);
}

TEST(what_is_no_user_is_named_and_nothing_has_changed)
{
	static const struct {
		struct privsep_settings s;
		const char *part;
	} wrong[] = {
		{ { .user = "no-such-user" }, "user=no-such-user" },
		{ { .user = "nobody", .group = "no-such-group" }, "group=no-such-group" },
		{ { .user = "54321" }, "user=54321" },
		{ { .user = "4294967295" }, "user=4294967295" },
		{ { .user = "" }, "user=" },
		{ { .user = "-1" }, "user=-1" },
	};
	struct pl_error err;

	need_root();
	for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		assert_eq(privsep_drop(&wrong[i].s, &err), -EINVAL);
		assert_contains(err.text, wrong[i].part);
	}
	assert_eq(getuid(), 0);
	assert_str(status("NoNewPrivs"), "0");
}

TEST(only_root_can_become_somebody_else)
{
	static const struct privsep_settings s = { .user = "nobody" };
	struct pl_error err;

	need_root();
	assert_eq(setresuid(54321, 54321, 54321), 0);
	assert_eq(privsep_drop(&s, &err), -EPERM);
	assert_contains(err.text, "only root");
}

/* ---- files ----------------------------------------------------------------------- */

static void
make_file(const char *path)
{
	int fd = open(path, O_CREAT | O_WRONLY | O_CLOEXEC, 0600);

	assert_true(fd != -1);
	assert_eq(ftruncate(fd, 1 << 20), 0);
	close(fd);
}

static int
try_file(const char *path, int flags)
{
	int fd = open(path, flags | O_CLOEXEC, 0600);
	int error = errno;

	if (fd == -1)
		return -error;
	close(fd);
	return 0;
}

static void
make_tree(void)
{
	static const char *const dirs[] = { "in", "read", "out" };

	for (unsigned i = 0; i < 3; i++) {
		char path[32];

		assert_eq(mkdir(dirs[i], 0700), 0);
		snprintf(path, sizeof path, "%s/file", dirs[i]);
		make_file(path);
	}
	make_file("one");
	make_file("two");
}

TEST(only_what_was_named_can_be_opened)
{
	static const struct privsep_path paths[] = {
		{ "in", PRIVSEP_WRITE },
		{ "read", PRIVSEP_READ },
		{ "one", PRIVSEP_WRITE },
		{ "not-there", PRIVSEP_WRITE },
	};
	static const struct privsep_settings s = { .sandbox = true,
						   .paths = paths,
						   .path_count = 4 };
	int before, again;
	char path[32];

	need_landlock(1);
	make_tree();
	before = open("two", O_RDONLY | O_CLOEXEC);
	drop(&s);
	assert_eq(try_file("in/file", O_RDWR), 0);
	assert_eq(try_file("one", O_RDWR), 0);
	assert_eq(try_file("read/file", O_RDONLY), 0);
	assert_eq(try_file("read/file", O_RDWR), -EACCES);
	assert_eq(try_file("out/file", O_RDONLY), -EACCES);
	assert_eq(try_file("two", O_RDONLY), -EACCES);
	assert_eq(try_file("in/new", O_RDWR | O_CREAT), -EACCES);
	assert_eq(try_file("/etc/hostname", O_RDONLY), -EACCES);
	assert_eq(try_file("/etc/passwd", O_RDONLY), 0);
	assert_eq(unlink("in/file"), -1);
	assert_eq(rename("one", "in/one"), -1);
	assert_eq(symlink("one", "in/link"), -1);
	/* What is open stays usable, and is not opened once more by its descriptor. */
	assert_eq(pread(before, path, 8, 0), 8);
	snprintf(path, sizeof path, "/proc/self/fd/%d", before);
	again = open(path, O_RDONLY | O_CLOEXEC);
	assert_eq(again, -1);
}

TEST(only_where_it_was_allowed_can_files_be_removed)
{
	static const struct privsep_path paths[] = { { "in", PRIVSEP_REMOVE } };
	static const struct privsep_settings s = { .sandbox = true,
						   .paths = paths,
						   .path_count = 1 };

	need_landlock(1);
	make_tree();
	drop(&s);
	assert_eq(try_file("in/file", O_RDONLY), -EACCES);
	assert_eq(unlink("in/file"), 0);
	assert_eq(unlink("out/file"), -1);
}

TEST(only_where_it_was_allowed_can_files_be_made_and_replaced)
{
	static const struct privsep_path paths[] = { { "in", PRIVSEP_REPLACE } };
	static const struct privsep_settings s = { .sandbox = true,
						   .paths = paths,
						   .path_count = 1 };

	need_landlock(1);
	make_tree();
	drop(&s);
	assert_eq(try_file("in/new", O_RDWR | O_CREAT | O_TRUNC), 0);
	assert_eq(rename("in/new", "in/file"), 0);
	assert_eq(try_file("in/file", O_RDWR | O_TRUNC), 0);
	assert_eq(try_file("out/new", O_RDWR | O_CREAT), -EACCES);
	assert_eq(rename("out/file", "out/other"), -1);
	assert_eq(rename("in/file", "out/file"), -1);
	assert_eq(mkdir("in/folder", 0700), -1);
	assert_eq(symlink("file", "in/link"), -1);
}

TEST(no_port_can_be_bound_and_nobody_be_called)
{
	static const struct privsep_settings s = { .sandbox = true };
	struct sockaddr_in a = { .sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof a;
	int listening = socket(AF_INET, SOCK_STREAM, 0);
	int fd = socket(AF_INET, SOCK_STREAM, 0);

	need_landlock(4);
	assert_eq(bind(listening, (struct sockaddr *)&a, sizeof a), 0);
	assert_eq(listen(listening, 5), 0);
	assert_eq(getsockname(listening, (struct sockaddr *)&a, &length), 0);
	drop(&s);
	assert_eq(connect(fd, (struct sockaddr *)&a, sizeof a), -1);
	assert_eq(errno, EACCES);
	a.sin_port = 0;
	assert_eq(bind(fd, (struct sockaddr *)&a, sizeof a), -1);
}

TEST(no_strange_process_can_be_signalled)
{
	static const struct privsep_settings s = { .sandbox = true };

	need_landlock(6);
	assert_eq(kill(getppid(), 0), 0);
	drop(&s);
	assert_eq(kill(getppid(), 0), -1);
	assert_eq(kill(getpid(), 0), 0);
}

TEST(without_sandbox_files_stay_within_reach)
{
	static const struct privsep_settings s = { 0 };

	make_tree();
	drop(&s);
	assert_eq(privsep_seal(&s, NULL), 0);
	assert_eq(try_file("out/file", O_RDWR), 0);
	assert_str(status("Seccomp"), "0");
}

/* ---- system calls ---------------------------------------------------------------- */

static void
assert_killed(void (*crime)(void))
{
	int ended;
	pid_t pid = fork();

	assert_true(pid != -1);
	if (pid == 0) {
		seal();
		crime();
		_exit(0);
	}
	assert_eq(waitpid(pid, &ended, 0), pid);
	assert_true(WIFSIGNALED(ended));
	assert_eq(WTERMSIG(ended), SIGSYS);
}

static void
crime_exec(void)
{
	static char *const argv[] = { NULL };

	execve("/bin/true", argv, argv);
}

static void
crime_fork(void)
{
	fork();
}

static void
crime_system(void)
{
	if (system("true") == 0)
		_exit(0);
}

static void
crime_ptrace(void)
{
	syscall(SYS_ptrace, 0, 0, 0, 0);
}

static void
crime_mount(void)
{
	syscall(SYS_mount, "none", "/", "tmpfs", 0, NULL);
}

#ifdef __x86_64__
/* The calls of another interface have other numbers. */
static void
crime_x32(void)
{
	syscall(0x40000000 + 39);
}
#endif

TEST(starting_programs_and_the_like_ends_the_process)
{
	static void (*const crimes[])(void) = {
		crime_exec, crime_fork, crime_system, crime_ptrace, crime_mount,
#ifdef __x86_64__
		crime_x32,
#endif
	};

	need_filter();
	for (unsigned i = 0; i < sizeof crimes / sizeof *crimes; i++)
		assert_killed(crimes[i]);
}

TEST(what_is_not_needed_is_refused)
{
	struct rlimit limit = { 64, 64 };
	char params[120] = { 0 };
	void *page;

	need_filter();
	seal();
	assert_str(status("Seccomp"), "2");
	assert_eq(socket(AF_INET, SOCK_STREAM, 0), -1);
	assert_eq(errno, EPERM);
	assert_eq(socket(AF_NETLINK, SOCK_RAW, 0), -1);
	assert_eq(syscall(SYS_io_uring_setup, 8, params), -1);
	assert_eq(errno, EPERM);
	assert_true(mmap(NULL, 4096, PROT_READ | PROT_EXEC, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) ==
		    MAP_FAILED);
	page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
	assert_true(page != MAP_FAILED);
	assert_eq(mprotect(page, 4096, PROT_READ | PROT_EXEC), -1);
	assert_eq(setrlimit(RLIMIT_NOFILE, &limit), -1);
	assert_eq(chmod(".", 0777), -1);
	assert_eq(kill(getppid(), 0), -1);
	assert_eq(setuid(getuid()), -1);
	assert_eq(listen(0, 1), -1);
	assert_eq(errno, EPERM);
}

static void *
report_status(void *arg)
{
	int *go = arg;

	while (__atomic_load_n(go, __ATOMIC_ACQUIRE) == 0)
		usleep(1000);
	assert_str(status("Seccomp"), "2");
	return NULL;
}

TEST(threads_from_before_are_sealed_too_and_new_ones_can_be_made)
{
	pthread_t thread;
	int go = 0;

	assert_eq(pthread_create(&thread, NULL, report_status, &go), 0);
	seal();
	__atomic_store_n(&go, 1, __ATOMIC_RELEASE);
	assert_eq(pthread_join(thread, NULL), 0);
	assert_eq(pthread_create(&thread, NULL, report_status, &go), 0);
	assert_eq(pthread_join(thread, NULL), 0);
}

/* ---- what a server does ---------------------------------------------------------- */

static void
on_done(struct pl_request *req, int error)
{
	*(int *)req->user = error;
}

static int
call(struct pl_channel *ch, enum pl_op op, unsigned flags, uint64_t length)
{
	static char data[65536];
	struct pl_extent list[16];
	struct pl_extents extents = { .list = list, .max = 16 };
	struct iovec iov = { data, sizeof data };
	int error = 1;
	struct pl_request req = { .op = op,
				  .flags = flags,
				  .length = length,
				  .iov = &iov,
				  .iovcnt = 1,
				  .extents = &extents,
				  .on_done = on_done,
				  .user = &error };

	return pl_request_call(ch, &req);
}

static struct pl_export *
open_image(const char *path, const char *cache)
{
	struct pl_params *p = pl_params_new();
	struct pl_export *ex = NULL;
	struct pl_error err;

	assert_eq(pl_params_add(p, "path", path, NULL), 0);
	assert_eq(pl_params_add(p, "cache", cache, NULL), 0);
	if (pl_export_open(p, 0, &ex, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	pl_params_free(p);
	return ex;
}

TEST(a_sealed_process_opens_and_serves_images)
{
	static const char *const modes[] = { "auto", "writeback", "none", "writethrough",
					     "unsafe" };
	/* One each: a ring lets go of files when it turns, which it does not while they are opened.
	 */
	static const char *const images[] = { "in/file", "in/2", "in/3", "in/4" };
	static const struct privsep_path paths[] = { { "in", PRIVSEP_WRITE } };
	static const struct privsep_settings s = { .sandbox = true,
						   .paths = paths,
						   .path_count = 1 };
	struct pl_loop *loop;
	struct pl_error err;

	make_tree();
	for (unsigned i = 1; i < 4; i++)
		make_file(images[i]);
	if (pl_loop_new(&loop, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	drop(&s);
	seal();
	for (unsigned i = 0; i < 4; i++) {
		struct pl_export *ex = open_image(images[i], modes[i]);
		struct pl_channel *ch;

		assert_eq(pl_channel_open(ex, loop, &ch, NULL), 0);
		assert_eq(call(ch, PL_WRITE, i == 3 ? 0 : PL_FUA, 65536), 0);
		assert_eq(call(ch, PL_READ, 0, 65536), 0);
		assert_eq(call(ch, PL_EXTENTS, 0, 1 << 20), 0);
		assert_eq(call(ch, PL_ZERO, PL_NO_HOLE, 65536), 0);
		assert_eq(call(ch, PL_TRIM, 0, 65536), 0);
		if ((pl_export_capabilities(ex) & PL_CAP_CACHE) != 0)
			assert_eq(call(ch, PL_CACHE, 0, 65536), 0);
		if (i != 3)
			assert_eq(call(ch, PL_FLUSH, 0, 0), 0);
		pl_channel_close(ch);
		pl_export_close(ex);
	}
	pl_loop_free(loop);
}
