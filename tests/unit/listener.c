/* listener.c - every form of an address, what is there before, and how accepting ends. */
#include "listener.h"

#include "fixture.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

static int
try_open(enum listener_kind kind, const char *value, struct listener **list, struct pl_error *err)
{
	struct listener_settings s = {
		.kind = kind, .value = value, .where = "here", .mode = 0600
	};

	return listener_open(&s, list, err);
}

static struct listener *
opened(enum listener_kind kind, const char *value)
{
	struct listener *list = NULL;
	struct pl_error err;

	if (try_open(kind, value, &list, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	return list;
}

static void
assert_refused(enum listener_kind kind, const char *value, int error, const char *part)
{
	struct listener *list = NULL;
	struct pl_error err = { 0 };

	assert_eq(try_open(kind, value, &list, &err), error);
	assert_true(list == NULL);
	assert_contains(err.text, part);
	assert_contains(err.text, "here");
	assert_contains(err.text, value);
}

static void
assert_uri(const struct listener *l, bool tls, const char *export_name, const char *want)
{
	char *uri = listener_uri(l, tls, export_name);

	assert_str(uri, want);
	free(uri);
}

static unsigned
count(const struct listener *l)
{
	unsigned n = 0;

	for (; l != NULL; l = listener_next(l))
		n++;
	return n;
}

static bool
has_ipv6(void)
{
	struct sockaddr_in6 a = { .sin6_family = AF_INET6, .sin6_addr = IN6ADDR_LOOPBACK_INIT };
	int fd = socket(AF_INET6, SOCK_STREAM, 0);
	bool has = fd != -1 && bind(fd, (struct sockaddr *)&a, sizeof a) == 0;

	if (fd != -1)
		close(fd);
	return has;
}

static unsigned
port_of(const struct listener *l)
{
	char *uri = listener_uri(l, false, "");
	unsigned port = (unsigned)strtoul(strrchr(uri, ':') + 1, NULL, 10);

	free(uri);
	assert_ne(port, 0);
	return port;
}

static int
connect_tcp(unsigned port)
{
	struct sockaddr_in a = { .sin_family = AF_INET,
				 .sin_port = htons((uint16_t)port),
				 .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (connect(fd, (struct sockaddr *)&a, sizeof a) == -1) {
		close(fd);
		return -1;
	}
	return fd;
}

static int
connect_unix(const char *path)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	strcpy(a.sun_path, path);
	if (connect(fd, (struct sockaddr *)&a, sizeof a) == -1) {
		close(fd);
		return -1;
	}
	return fd;
}

/* ---- addresses ------------------------------------------------------------------- */

TEST(a_port_alone_is_localhost)
{
	static const char *const forms[] = { "0", ":0", "localhost:0" };

	for (unsigned i = 0; i < 3; i++) {
		struct listener *l = opened(LISTENER_TCP, forms[i]);
		unsigned port = port_of(l);
		char want[64];

		snprintf(want, sizeof want, "nbd://localhost:%u", port);
		assert_uri(l, false, "", want);
		close(connect_tcp(port));
		listeners_free(l);
	}
}

TEST(port_0_is_the_same_port_at_all_addresses)
{
	struct listener *l = opened(LISTENER_TCP, "*:0");

	assert_eq(count(l), has_ipv6() ? 2 : 1);
	for (const struct listener *x = l; x != NULL; x = listener_next(x))
		assert_eq(port_of(x), port_of(l));
	listeners_free(l);
}

TEST(an_ipv6_address_stands_in_brackets)
{
	struct listener *l;
	char want[64];

	assert_refused(LISTENER_TCP, "::1:10809", -EINVAL, "[::1]:10809");
	assert_refused(LISTENER_TCP, "[::1:10809", -EINVAL, "brackets");
	if (!has_ipv6())
		test_skip("this machine has no IPv6");
	l = opened(LISTENER_TCP, "[::1]:0");
	snprintf(want, sizeof want, "nbds://[::1]:%u/disk%%20%%231", port_of(l));
	assert_uri(l, true, "disk #1", want);
	assert_eq(count(l), 1);
	listeners_free(l);
}

TEST(what_is_no_address_is_named)
{
	assert_refused(LISTENER_TCP, "", -EINVAL, "'' is no port");
	assert_refused(LISTENER_TCP, "localhost", -EINVAL, "'localhost' is no port");
	assert_refused(LISTENER_TCP, "localhost:", -EINVAL, "'' is no port");
	assert_refused(LISTENER_TCP, "localhost:nbd", -EINVAL, "'nbd' is no port");
	assert_refused(LISTENER_TCP, "65536", -EINVAL, "65535");
	assert_refused(LISTENER_TCP, "localhost:-1", -EINVAL, "'-1' is no port");
	assert_refused(LISTENER_TCP, "localhost:+1", -EINVAL, "'+1' is no port");
	assert_refused(LISTENER_TCP, "1:99999999999999999999", -EINVAL, "is no port");
	assert_refused(LISTENER_TCP, "no.such.host.invalid:1", -EINVAL, "no.such.host.invalid");
	assert_refused(LISTENER_TCP, "192.0.2.1:0", -EADDRNOTAVAIL, "bind");
	assert_refused(LISTENER_VSOCK, "x", -EINVAL, "'x' is no port");
	assert_refused(LISTENER_VSOCK, "x:1", -EINVAL, "'x' is no CID");
	assert_refused(LISTENER_VSOCK, "4294967296:1", -EINVAL, "is no CID");
	assert_refused(LISTENER_VSOCK, "4294967295", -EINVAL, "is no port");
}

TEST(a_port_in_use_is_refused_and_leaves_nothing_open)
{
	struct listener *l = opened(LISTENER_TCP, "127.0.0.1:0");
	unsigned port = port_of(l);
	char text[32];

	snprintf(text, sizeof text, "127.0.0.1:%u", port);
	assert_refused(LISTENER_TCP, text, -EADDRINUSE, "in use");
	/* One address of several is enough to refuse: clients would reach either. */
	snprintf(text, sizeof text, "*:%u", port);
	{
		struct listener *list = NULL;
		struct pl_error err;

		assert_eq(try_open(LISTENER_TCP, text, &list, &err), -EADDRINUSE);
		assert_true(list == NULL);
		snprintf(text, sizeof text, "0.0.0.0:%u", port);
		assert_contains(err.text, text);
	}
	listeners_free(l);
}

TEST(a_port_is_free_again_while_its_last_clients_linger)
{
	struct listener *l = opened(LISTENER_TCP, "127.0.0.1:0");
	char text[32];
	int client = connect_tcp(port_of(l));

	assert_true(client != -1);
	snprintf(text, sizeof text, "127.0.0.1:%u", port_of(l));
	listeners_free(l);
	l = opened(LISTENER_TCP, text);
	close(client);
	listeners_free(l);
}

TEST(listeners_are_appended)
{
	struct listener *list = NULL;
	struct pl_error err;

	assert_eq(try_open(LISTENER_UNIX, "a.sock", &list, &err), 0);
	assert_eq(try_open(LISTENER_TCP, "127.0.0.1:0", &list, &err), 0);
	/* A failure takes none of the others away. */
	assert_ne(try_open(LISTENER_TCP, "192.0.2.1:0", &list, &err), 0);
	assert_eq(count(list), 2);
	assert_uri(list, false, "", "nbd+unix:///?socket=a.sock");
	listeners_free(list);
}

/* ---- unix sockets ---------------------------------------------------------------- */

TEST(a_socket_file_has_its_mode_whatever_the_umask)
{
	static const mode_t modes[] = { 0600, 0666, 0660, 0777 };
	struct stat st;

	umask(077);
	for (unsigned i = 0; i < 4; i++) {
		struct listener_settings s = {
			.kind = LISTENER_UNIX, .value = "m.sock", .where = "here", .mode = modes[i]
		};
		struct listener *l = NULL;

		assert_eq(listener_open(&s, &l, NULL), 0);
		assert_eq(stat("m.sock", &st), 0);
		assert_eq(st.st_mode, S_IFSOCK | modes[i]);
		listeners_free(l);
		assert_eq(stat("m.sock", &st), -1);
	}
	assert_eq(umask(0), 077);
}

TEST(a_socket_that_a_crash_left_behind_is_replaced)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX, .sun_path = "stale.sock" };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);
	struct listener *l;

	assert_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_eq(listen(fd, 1), 0);
	close(fd);
	l = opened(LISTENER_UNIX, "stale.sock");
	close(connect_unix("stale.sock"));
	listeners_free(l);
}

TEST(a_socket_that_is_answered_is_left_alone)
{
	struct listener *l = opened(LISTENER_UNIX, "live.sock");
	int client;

	assert_refused(LISTENER_UNIX, "live.sock", -EADDRINUSE, "somebody listens");
	client = connect_unix("live.sock");
	assert_true(client != -1);
	close(client);
	listeners_free(l);
}

TEST(a_server_whose_backlog_is_full_is_there_all_the_same)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX, .sun_path = "full.sock" };
	int fd = socket(AF_UNIX, SOCK_STREAM, 0);

	assert_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	assert_eq(listen(fd, 0), 0);
	assert_true(connect_unix("full.sock") != -1); /* and stays */
	assert_refused(LISTENER_UNIX, "full.sock", -EADDRINUSE, "somebody listens");
	close(fd);
}

TEST(a_file_that_is_no_socket_is_left_alone)
{
	struct stat st;

	close(open("file", O_CREAT | O_WRONLY, 0600));
	assert_eq(symlink("file", "link"), 0);
	assert_refused(LISTENER_UNIX, "file", -EEXIST, "no socket");
	assert_refused(LISTENER_UNIX, "link", -EEXIST, "no socket");
	assert_eq(lstat("file", &st), 0);
	assert_eq(lstat("link", &st), 0);
}

TEST(a_socket_file_that_is_somebody_elses_by_now_stays)
{
	struct listener *l = opened(LISTENER_UNIX, "taken.sock"), *other;
	int client;

	assert_eq(unlink("taken.sock"), 0);
	other = opened(LISTENER_UNIX, "taken.sock");
	listeners_free(l);
	client = connect_unix("taken.sock");
	assert_true(client != -1);
	close(client);
	listeners_free(other);
}

TEST(the_path_of_a_socket_has_107_bytes_at_most)
{
	char path[110];
	struct listener *l;

	memset(path, 'x', sizeof path);
	path[108] = '\0';
	assert_refused(LISTENER_UNIX, path, -EINVAL, "107");
	assert_refused(LISTENER_UNIX, "", -EINVAL, "107");
	path[107] = '\0';
	l = opened(LISTENER_UNIX, path);
	close(connect_unix(path));
	listeners_free(l);
}

TEST(a_uri_says_what_needs_saying)
{
	struct listener *l = opened(LISTENER_UNIX, "a b&c");

	assert_uri(l, false, "", "nbd+unix:///?socket=a%20b%26c");
	assert_uri(l, true, "x/y?\xc3\xbc", "nbds+unix:///x/y%3F%C3%BC?socket=a%20b%26c");
	listeners_free(l);
}

/* ---- vsock ----------------------------------------------------------------------- */

TEST(a_vsock_port_is_taken_from_any_cid_or_one)
{
	struct listener *l = NULL;
	struct pl_error err;
	int error = try_open(LISTENER_VSOCK, "0", &l, &err);
	char *uri;

	if (error == -EAFNOSUPPORT)
		test_skip("this kernel has no vsock");
	assert_eq(error, 0);
	uri = listener_uri(l, false, "");
	assert_true(strncmp(uri, "nbd+vsock://", 12) == 0);
	assert_true(strstr(uri, ":4294967295") == NULL && strstr(uri, "/4294967295:") == NULL);
	assert_ne(port_of(l), 0);
	free(uri);
	listeners_free(l);
	assert_refused(LISTENER_VSOCK, "77777:1234", -EADDRNOTAVAIL, "bind");
}

/* ---- accepting ------------------------------------------------------------------- */

static struct pl_loop *loop;
static struct listener *listening;
static int got[64];
static unsigned got_count;
static bool stopped, stop_at_first;

static void
on_stopped(void *user)
{
	assert_true(user == &stopped);
	stopped = true;
	pl_loop_stop(loop);
}

static void
on_accepted(void *user, int fd)
{
	assert_true(user == got);
	assert_true(got_count < 64);
	got[got_count++] = fd;
	if (stop_at_first)
		listeners_stop(listening, on_stopped, &stopped);
	else
		pl_loop_stop(loop);
}

static void
start(struct listener *l)
{
	struct pl_error err;

	if (pl_loop_new(&loop, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	listening = l;
	listeners_start(l, loop, on_accepted, got);
}

static void
run_until_accepted(unsigned n)
{
	while (got_count < n)
		pl_loop_run(loop);
}

static void
end(void)
{
	if (!stopped)
		listeners_stop(listening, on_stopped, &stopped);
	while (!stopped)
		pl_loop_run(loop);
	listeners_free(listening);
	pl_loop_free(loop);
}

static int
socket_option(int fd, int level, int name)
{
	int value = -1;
	socklen_t length = sizeof value;

	assert_eq(getsockopt(fd, level, name, &value, &length), 0);
	return value;
}

TEST(an_accepted_socket_is_ready_for_short_messages_and_dead_peers)
{
	struct listener *l = opened(LISTENER_TCP, "127.0.0.1:0");

	start(l);
	assert_true(connect_tcp(port_of(l)) != -1);
	run_until_accepted(1);
	assert_eq(socket_option(got[0], IPPROTO_TCP, TCP_NODELAY), 1);
	assert_eq(socket_option(got[0], SOL_SOCKET, SO_KEEPALIVE), 1);
	assert_true(socket_option(got[0], IPPROTO_TCP, TCP_USER_TIMEOUT) > 0);
	assert_true(socket_option(got[0], IPPROTO_TCP, TCP_KEEPIDLE) < 7200);
	assert_eq(fcntl(got[0], F_GETFD), FD_CLOEXEC);
	end();
}

TEST(all_listeners_accept_until_they_are_stopped)
{
	struct listener *list = NULL;
	struct pl_error err;
	struct stat st;
	unsigned port;

	assert_eq(try_open(LISTENER_TCP, "127.0.0.1:0", &list, &err), 0);
	assert_eq(try_open(LISTENER_UNIX, "both.sock", &list, &err), 0);
	port = port_of(list);
	start(list);
	for (unsigned i = 0; i < 10; i++) {
		assert_true(connect_tcp(port) != -1);
		assert_true(connect_unix("both.sock") != -1);
	}
	run_until_accepted(20);
	listeners_stop(list, on_stopped, &stopped);
	assert_eq(lstat("both.sock", &st), -1);
	end();
	assert_eq(connect_tcp(port), -1);
	assert_eq(got_count, 20);
}

TEST(listeners_may_be_stopped_by_what_they_brought)
{
	stop_at_first = true;
	start(opened(LISTENER_UNIX, "once.sock"));
	assert_true(connect_unix("once.sock") != -1);
	while (!stopped)
		pl_loop_run(loop);
	assert_eq(got_count, 1);
	end();
}

static char logged[64][512];
static unsigned log_count;

static void
log_sink(enum pl_log_level level, const char *line)
{
	(void)level;
	if (log_count < 64)
		snprintf(logged[log_count++], sizeof *logged, "%s", line);
}

static double
cpu_seconds(void)
{
	struct timespec ts;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &ts);
	return (double)ts.tv_sec + (double)ts.tv_nsec / 1e9;
}

static bool time_is_up;

static void
run_timer_done(struct pl_io *io, int64_t result)
{
	(void)io;
	(void)result;
	time_is_up = true;
	pl_loop_stop(loop);
}

static void
run_for(unsigned ms)
{
	struct pl_io io = { .kind = PL_IO_DELAY,
			    .fd = -1,
			    .slot = -1,
			    .length = ms * UINT64_C(1000000),
			    .done = run_timer_done };

	time_is_up = false;
	pl_loop_io(loop, &io);
	while (!time_is_up) /* who is accepted stops the loop, too */
		pl_loop_run(loop);
}

TEST(lack_of_descriptors_is_waited_out_and_said_once)
{
	struct listener *l = opened(LISTENER_UNIX, "emfile.sock");
	struct rlimit old, low;
	unsigned complaints = 0;
	int fds[8];
	double before;

	test_not_under_valgrind("the highest descriptors are its own");
	pl_log_to(log_sink);
	start(l);
	for (unsigned i = 0; i < 8; i++)
		assert_true((fds[i] = connect_unix("emfile.sock")) != -1);
	assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
	low = old;
	low.rlim_cur = (rlim_t)fds[7] + 3;
	assert_eq(setrlimit(RLIMIT_NOFILE, &low), 0);
	before = cpu_seconds();
	for (unsigned i = 0; i < 5; i++)
		run_for(200);
	assert_true(cpu_seconds() - before < 0.5);
	assert_true(got_count < 8);
	for (unsigned i = 0; i < log_count; i++)
		complaints += strstr(logged[i], "Too many open files") != NULL;
	assert_eq(complaints, 1);
	assert_contains(logged[0], "unix emfile.sock");
	/* Room again: those who waited get in. */
	assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
	run_until_accepted(8);
	end();
}

TEST(a_listener_that_pauses_can_be_stopped)
{
	struct rlimit old, none;

	start(opened(LISTENER_UNIX, "pause.sock"));
	assert_eq(getrlimit(RLIMIT_NOFILE, &old), 0);
	none = old;
	none.rlim_cur = 0;
	assert_true(connect_unix("pause.sock") != -1);
	assert_eq(setrlimit(RLIMIT_NOFILE, &none), 0);
	pl_log_to(log_sink);
	run_for(20);
	assert_eq(setrlimit(RLIMIT_NOFILE, &old), 0);
	end();
}

/* ---- sockets of the service manager ---------------------------------------------- */

/* As sd_listen_fds(3) has it: from descriptor 3 on. */
static void
hand_over(unsigned n)
{
	char text[32];

	snprintf(text, sizeof text, "%ld", (long)getpid());
	setenv("LISTEN_PID", text, 1);
	snprintf(text, sizeof text, "%u", n);
	setenv("LISTEN_FDS", text, 1);
}

static int
bound_unix(const char *path, bool listens)
{
	struct sockaddr_un a = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0);

	strcpy(a.sun_path, path);
	assert_eq(bind(fd, (struct sockaddr *)&a, sizeof a), 0);
	if (listens)
		assert_eq(listen(fd, 5), 0);
	return fd;
}

TEST(without_a_service_manager_there_is_nothing_to_adopt)
{
	struct listener *list = NULL;
	unsigned n = 7;

	unsetenv("LISTEN_FDS");
	assert_eq(listener_adopt(&list, &n, NULL), 0);
	assert_eq(n, 0);
	assert_true(list == NULL);
}

TEST(sockets_of_the_service_manager_are_served_and_stay_its_own)
{
	struct listener *list = NULL;
	struct pl_error err = { 0 };
	struct stat st;
	unsigned n;
	int one = bound_unix("one.sock", true), two = bound_unix("two.sock", true);

	dup2(two, 30);
	dup2(one, 31);
	dup2(30, 3);
	dup2(31, 4);
	hand_over(2);
	if (listener_adopt(&list, &n, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	assert_eq(n, 2);
	assert_true(getenv("LISTEN_FDS") == NULL);
	assert_uri(list, false, "", "nbd+unix:///?socket=two.sock");
	start(list);
	assert_true(connect_unix("one.sock") != -1);
	assert_true(connect_unix("two.sock") != -1);
	run_until_accepted(2);
	end();
	/* The manager holds it open, and it may be handed to the next server. */
	assert_eq(lstat("one.sock", &st), 0);
	assert_true(connect_unix("one.sock") != -1);
}

TEST(what_is_no_listening_socket_is_not_adopted)
{
	struct listener *list = NULL;
	struct pl_error err = { 0 };
	unsigned n;
	int fd = bound_unix("mute.sock", false);

	dup2(fd, 30);
	dup2(30, 3);
	hand_over(1);
	assert_eq(listener_adopt(&list, &n, &err), -EINVAL);
	assert_contains(err.text, "descriptor 3");
}
