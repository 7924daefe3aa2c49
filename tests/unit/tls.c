/* tls.c - TLS on a stream: what one end sends is what the other gets, or an error. */
#include "loop.h"
#include "peer.h"
#include "stream-tls.h"
#include "stream.h"
#include "test.h"

#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define PENDING 1 /* no result yet */
#define KEY     "00112233445566778899aabbccddeeff"
#define MiB     (1u << 20)

/* ---- files ----------------------------------------------------------------------- */

static const char *
scratch(void)
{
	static char dir[512];

	if (*dir == '\0') {
		const char *tmp = getenv("TMPDIR");

		snprintf(dir, sizeof dir, "%s/tls.XXXXXX", tmp != NULL ? tmp : "/tmp");
		assert_true(mkdtemp(dir) != NULL);
	}
	return dir;
}

static void
scratch_remove(void)
{
	char command[600];

	snprintf(command, sizeof command, "rm -r '%s'", scratch());
	assert_eq(system(command), 0);
}

static char *
scratch_path(const char *name)
{
	char *path;

	assert_true(asprintf(&path, "%s/%s", scratch(), name) != -1);
	return path;
}

static char *
write_file(const char *name, const char *text, mode_t mode)
{
	char *path = scratch_path(name);
	FILE *f = fopen(path, "w");

	assert_true(f != NULL);
	fputs(text, f);
	assert_eq(fclose(f), 0);
	assert_eq(chmod(path, mode), 0);
	return path;
}

/* Of the source tree, which this file is in. */
static void
make_certificates(void)
{
	const char *src = getenv("PLATTER_SRC"), *slash = strstr(__FILE__, "tests/unit/");
	char command[2000];

	if (src != NULL)
		snprintf(command, sizeof command, "'%s/tests/lib/pki.py' '%s'", src, scratch());
	else
		snprintf(command, sizeof command, "'%.*stests/lib/pki.py' '%s'",
			 (int)(slash - __FILE__), __FILE__, scratch());
	if (system("certtool --version >/dev/null 2>&1") != 0)
		test_skip("certtool (gnutls-bin) is not installed");
	assert_eq(system(command), 0);
}

/* ---- the log --------------------------------------------------------------------- */

static struct {
	pthread_mutex_t lock;
	char text[4000];
	unsigned lines;    /* warnings and errors */
	unsigned failures; /* of handshakes */
} said = { .lock = PTHREAD_MUTEX_INITIALIZER };

static void
say(enum pl_log_level level, const char *line)
{
	pthread_mutex_lock(&said.lock);
	/* The client's end of a session says "TLS: ...", at any time. */
	if (level <= PL_LOG_WARN && strncmp(line, "TLS: ", 5) != 0) {
		said.lines++;
		said.failures += strstr(line, ": TLS handshake: ") != NULL;
		snprintf(said.text, sizeof said.text, "%s", line);
	}
	pthread_mutex_unlock(&said.lock);
}

/* ---- the server's end ------------------------------------------------------------ */

struct end {
	struct stream s;
	struct pl_loop *loop;
	struct peer peer;
	ssize_t received, sent;
	int secured;
	bool closed;
	unsigned waits; /* receives that did not come to something at once */
};

static void
end_received(struct stream *s, ssize_t result)
{
	struct end *e = (struct end *)s;

	assert_eq(e->received, -EINPROGRESS);
	e->received = result;
}

static void
end_sent(struct stream *s, ssize_t result)
{
	struct end *e = (struct end *)s;

	assert_eq(e->sent, -EINPROGRESS);
	e->sent = result;
}

static void
end_secured(struct stream *s, int error)
{
	struct end *e = (struct end *)s;

	assert_eq(e->secured, PENDING);
	e->secured = error;
}

static void
end_closed(struct stream *s)
{
	((struct end *)s)->closed = true;
}

static void
end_open(struct end *e, int fd)
{
	*e = (struct end){ .s = { .received = end_received,
				  .sent = end_sent,
				  .secured = end_secured,
				  .closed = end_closed } };
	pl_log_to(say);
	peer_of(&e->peer, fd);
	assert_eq(pl_loop_new(&e->loop, NULL), 0);
	stream_init(&e->s, e->loop, fd, fd);
}

static void
end_secure_begin(struct end *e, const struct tls_settings *settings)
{
	struct tls_credentials *credentials;
	struct pl_error err;

	if (tls_credentials_new(&credentials, settings, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	e->secured = PENDING;
	stream_secure(&e->s, credentials, &e->peer);
	tls_credentials_put(credentials);
}

static int
end_secure(struct end *e, const struct tls_settings *settings)
{
	end_secure_begin(e, settings);
	while (e->secured == PENDING)
		pl_loop_turn(e->loop);
	return e->secured;
}

static ssize_t
end_recv(struct end *e, struct iovec *iov, int iovcnt)
{
	ssize_t n = stream_recv(&e->s, iov, iovcnt);

	if (n != -EINPROGRESS)
		return n;
	e->received = -EINPROGRESS;
	e->waits++;
	while (e->received == -EINPROGRESS)
		pl_loop_turn(e->loop);
	return e->received;
}

static ssize_t
end_recv_byte(struct end *e)
{
	char byte;

	return end_recv(e, &(struct iovec){ &byte, 1 }, 1);
}

static ssize_t
end_send(struct end *e, struct iovec *iov, int iovcnt)
{
	ssize_t n = stream_send(&e->s, iov, iovcnt);

	if (n != -EINPROGRESS)
		return n;
	e->sent = -EINPROGRESS;
	while (e->sent == -EINPROGRESS)
		pl_loop_turn(e->loop);
	return e->sent;
}

static void
delay_done(struct pl_io *io, int64_t result)
{
	assert_eq(result, 0);
	io->next = io;
}

/* For what the loop would do without anybody waiting for it. */
static void
let_time_pass(struct end *e)
{
	struct pl_io delay = {
		.kind = PL_IO_DELAY, .slot = -1, .length = 20000000, .done = delay_done
	};

	pl_loop_io(e->loop, &delay);
	while (delay.next == NULL)
		pl_loop_turn(e->loop);
}

static void
end_close(struct end *e)
{
	stream_close(&e->s);
	assert_false(e->closed);
	while (!e->closed)
		pl_loop_turn(e->loop);
	pl_loop_free(e->loop);
	peer_clear(&e->peer);
}

/* ---- the client's end, on a thread ----------------------------------------------- */

struct other {
	pthread_t thread;
	int fd;
	struct tls_settings settings;
	const char *user;
	void (*work)(struct other *o); /* once it is connected; NULL: it waits for the end */
	struct tls_client *tls;
	int result;
	struct pl_error err;
	void *more;
};

static void *
other_main(void *arg)
{
	struct other *o = arg;
	char byte;

	o->result = tls_client_new(&o->tls, o->fd, &o->settings, "localhost", o->user, &o->err);
	if (o->result == 0 && o->work != NULL)
		o->work(o);
	if (o->result == 0 && o->work == NULL)
		o->result = (int)tls_client_recv(o->tls, &byte, 1);
	if (o->tls != NULL)
		tls_client_free(o->tls);
	close(o->fd);
	return NULL;
}

static void
other_start(struct other *o, int fd)
{
	o->fd = fd;
	assert_eq(pthread_create(&o->thread, NULL, other_main, o), 0);
}

static void
other_join(struct other *o)
{
	assert_eq(pthread_join(o->thread, NULL), 0);
}

/* Both ends with a file of keys that has this line; the client works meanwhile. */
static void
both_open_with(struct end *e, struct other *o, const char *line, const char *user,
	       void (*work)(struct other *o))
{
	char *path = write_file("keys.psk", line, 0600);
	int fds[2];

	assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	end_open(e, fds[0]);
	*o = (struct other){ .settings = { .psk = path }, .user = user, .work = work };
	other_start(o, fds[1]);
	assert_eq(end_secure(e, &(struct tls_settings){ .psk = path }), 0);
	free(path);
}

static void
both_open(struct end *e, struct other *o, void (*work)(struct other *o))
{
	both_open_with(e, o, "alice:" KEY "\n", "alice", work);
}

static uint8_t
byte_at(size_t at)
{
	return (uint8_t)(at ^ at >> 8 ^ at >> 16);
}

/* ---- data ------------------------------------------------------------------------ */

#define ODD_TOTAL (3 * MiB + 17)

static void
send_odd_then_receive(struct other *o)
{
	uint8_t *data = malloc(ODD_TOTAL);
	size_t at, part;

	for (at = 0; at < ODD_TOTAL; at++)
		data[at] = byte_at(at);
	for (at = 0, part = 1; at < ODD_TOTAL; at += part, part = part * 3 % 100003 + 1) {
		if (part > ODD_TOTAL - at)
			part = ODD_TOTAL - at;
		assert_eq(tls_client_send(o->tls, data + at, part), part);
	}
	memset(data, 0, ODD_TOTAL);
	for (at = 0; at < ODD_TOTAL; at += part) {
		ssize_t n = tls_client_recv(o->tls, data + at, ODD_TOTAL - at);

		assert_true(n > 0);
		part = (size_t)n;
	}
	for (at = 0; at < ODD_TOTAL; at++)
		assert_eq(data[at], byte_at(at));
	free(data);
}

TEST(data_arrives_whole_both_ways_in_odd_pieces)
{
	uint8_t *data = calloc(1, ODD_TOTAL);
	size_t at = 0, part = 1;
	struct other o;
	struct end e;

	both_open(&e, &o, send_odd_then_receive);
	while (at < ODD_TOTAL) {
		size_t left = ODD_TOTAL - at, first = part < left ? part : left;
		struct iovec iov[3] = { { data + at, first }, { data, 0 }, { NULL, 0 } };
		ssize_t n;

		iov[2] = (struct iovec){ data + at + first, left - first < 7 ? left - first : 7 };
		n = end_recv(&e, iov, 3);
		assert_true(n > 0 && (size_t)n <= left);
		at += (size_t)n;
		part = part * 5 % 70001 + 1;
	}
	for (at = 0; at < ODD_TOTAL; at++)
		assert_eq(data[at], byte_at(at));

	for (at = 0, part = 1; at < ODD_TOTAL; part = part * 7 % 300007 + 1) {
		size_t left = ODD_TOTAL - at, n = part < left ? part : left;
		size_t head = n < 20 ? n : 20, middle = (n - head) / 3;
		struct iovec iov[4] = { { data + at, head },
					{ data, 0 },
					{ data + at + head, middle },
					{ data + at + head + middle, n - head - middle } };

		assert_eq(end_send(&e, iov, 4), 0);
		at += n;
	}
	other_join(&o);
	assert_eq(end_recv_byte(&e), 0);
	end_close(&e);
	assert_eq(said.lines, 0);
	free(data);
	scratch_remove();
}

enum { SMALL_RECORDS = 200 }; /* a socket has room for as many */

static void
send_small_records(struct other *o)
{
	for (unsigned i = 0; i < SMALL_RECORDS; i++)
		assert_eq(tls_client_send(o->tls, "x", 1), 1);
}

TEST(what_is_there_comes_without_waiting_however_much_it_is)
{
	struct other o;
	struct end e;

	both_open(&e, &o, send_small_records);
	other_join(&o);
	for (unsigned i = 0; i < SMALL_RECORDS; i++)
		assert_eq(end_recv_byte(&e), 1);
	assert_eq(end_recv_byte(&e), 0);
	assert_true(e.waits <= 2); /* one for all of them, one for the end */
	end_close(&e);
	scratch_remove();
}

TEST(many_small_pieces_go_out_as_few_records)
{
	enum { PIECES = 1000 };
	static char bytes[PIECES];
	struct iovec iov[PIECES];
	struct other o;
	struct end e;
	uint64_t before;

	both_open(&e, &o, NULL);
	for (unsigned i = 0; i < PIECES; i++)
		iov[i] = (struct iovec){ &bytes[i], 1 };
	before = e.s.bytes_out;
	assert_eq(end_send(&e, iov, PIECES), 0);
	assert_true(e.s.bytes_out - before < PIECES + 64);
	end_close(&e);
	other_join(&o);
	scratch_remove();
}

/* ---- the end of a session -------------------------------------------------------- */

TEST(a_goodbye_is_heard_by_the_client)
{
	struct other o;
	struct end e;

	both_open(&e, &o, NULL);
	end_close(&e);
	other_join(&o);
	assert_eq(o.result, 0); /* and not -EPROTO, which a bare end would be */
	scratch_remove();
}

static void
just_leave(struct other *o)
{
	shutdown(o->fd, SHUT_RDWR);
}

TEST(an_end_without_a_goodbye_is_an_error)
{
	struct other o;
	struct end e;

	both_open(&e, &o, just_leave);
	assert_eq(end_recv_byte(&e), -EPROTO);
	assert_eq(end_recv_byte(&e), -EPROTO); /* for good */
	other_join(&o);
	end_close(&e);
	assert_eq(said.lines, 0); /* who was cut off says so, not this */
	scratch_remove();
}

static void
say_hello(struct other *o)
{
	assert_eq(tls_client_send(o->tls, "hello", 5), 5);
}

TEST(a_goodbye_of_the_client_is_an_ordered_end)
{
	char text[6] = "";
	struct other o;
	struct end e;

	both_open(&e, &o, say_hello);
	assert_eq(end_recv(&e, &(struct iovec){ text, 5 }, 1), 5);
	assert_str(text, "hello");
	assert_eq(end_recv_byte(&e), 0);
	assert_eq(end_recv_byte(&e), 0);
	other_join(&o);
	end_close(&e);
	assert_eq(said.lines, 0);
	scratch_remove();
}

static void
send_rubbish(struct other *o)
{
	static const char rubbish[] = "\x17\x03\x03\x00\x20 and this is no record of anybody";

	assert_eq(tls_client_send(o->tls, "fine", 4), 4);
	assert_eq(write(o->fd, rubbish, sizeof rubbish), sizeof rubbish);
}

TEST(rubbish_in_a_session_is_an_error_after_what_was_good)
{
	char text[100] = "";
	struct other o;
	struct end e;

	both_open(&e, &o, send_rubbish);
	other_join(&o);
	assert_eq(end_recv(&e, &(struct iovec){ text, sizeof text }, 1), 4);
	assert_str(text, "fine");
	assert_eq(end_recv_byte(&e), -EPROTO);
	assert_eq(end_recv_byte(&e), -EPROTO);
	assert_eq(end_send(&e, &(struct iovec){ text, 4 }, 1), -EPROTO);
	assert_eq(said.lines, 1);
	end_close(&e);
	scratch_remove();
}

TEST(what_is_under_way_at_close_ends_as_cancelled)
{
	static char much[8 * MiB];
	struct other o;
	struct end e;

	both_open(&e, &o, NULL);
	assert_eq(stream_recv(&e.s, &(struct iovec){ much, 1 }, 1), -EINPROGRESS);
	e.received = -EINPROGRESS;
	end_close(&e);
	assert_eq(e.received, -ECANCELED);
	other_join(&o);
	scratch_remove();
}

static void
never_read(struct other *o)
{
	struct pollfd end = { .fd = o->fd, .events = POLLRDHUP };

	assert_eq(poll(&end, 1, 30000), 1);
}

TEST(a_client_that_never_reads_cannot_keep_the_stream)
{
	static char much[8 * MiB];
	struct iovec iov = { much, sizeof much };
	struct other o;
	struct end e;

	both_open(&e, &o, never_read);
	assert_eq(stream_send(&e.s, &iov, 1), -EINPROGRESS);
	e.sent = -EINPROGRESS;
	let_time_pass(&e);
	end_close(&e);
	assert_eq(e.sent, -ECANCELED);
	other_join(&o);
	scratch_remove();
}

/* ---- the handshake --------------------------------------------------------------- */

TEST(a_key_tells_who_the_client_is)
{
	struct other o;
	struct end e;

	both_open(&e, &o, NULL);
	assert_true(e.peer.tls);
	assert_str(e.peer.psk, "alice");
	assert_true(e.peer.subject == NULL);
	assert_str(e.peer.fingerprint, "");
	end_close(&e);
	other_join(&o);
	scratch_remove();
}

/* As psktool(1) writes what has a colon in it. */
TEST(a_name_that_does_not_go_into_a_line_is_given_by_its_digits)
{
	static const char *const names[][2] = { { "#613a62:" KEY "\n", "a:b" },
						{ "#6:" KEY "\n", "#6" },
						{ "#q1:" KEY "\n", "#q1" } };

	for (unsigned i = 0; i < 3; i++) {
		struct other o;
		struct end e;

		both_open_with(&e, &o, names[i][0], names[i][1], NULL);
		assert_str(e.peer.psk, names[i][1]);
		end_close(&e);
		other_join(&o);
	}
	scratch_remove();
}

/* A client with `line` as its key comes to a server that knows alice. */
static void
fail_with_key(const char *line, const char *user, struct pl_error *err)
{
	char *good = write_file("good.psk", "alice:" KEY "\n", 0600);
	char *bad = write_file("bad.psk", line, 0600);
	struct other o = { .settings = { .psk = bad }, .user = user };
	struct end e;
	int fds[2];

	assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	end_open(&e, fds[0]);
	other_start(&o, fds[1]);
	assert_eq(end_secure(&e, &(struct tls_settings){ .psk = good }), -EPROTO);
	assert_false(e.peer.tls);
	assert_true(e.peer.psk == NULL);
	end_close(&e);
	other_join(&o);
	assert_eq(o.result, -EPROTO);
	*err = o.err;
	free(good);
	free(bad);
}

TEST(an_unknown_user_sees_what_a_wrong_key_shows_and_the_log_knows_better)
{
	struct pl_error unknown, wrong;

	fail_with_key("bob:" KEY "\n", "bob", &unknown);
	assert_eq(said.lines, 1);
	assert_contains(said.text, "unix pid ");
	assert_contains(said.text, "unknown identity \"bob\"");
	fail_with_key("alice:" KEY "00\n", "alice", &wrong);
	assert_eq(said.lines, 2);
	assert_contains(said.text, "identity \"alice\"");
	assert_str(unknown.text, wrong.text);
	scratch_remove();
}

TEST(a_user_name_cannot_forge_the_log)
{
	struct pl_error err;

	fail_with_key("bob\x1b[2J\x01:" KEY "\n", "bob\x1b[2J\x01", &err);
	assert_contains(said.text, "unknown identity \"bob?[2J?\"");
	scratch_remove();
}

/* Text, noise, a hello that promises more than comes: with every length of each. */
TEST(rubbish_instead_of_a_handshake_is_refused)
{
	static const char *const rubbish[] = {
		"IHAVEOPT and some more of it, in plain text",
		"\x16\x03\x01\x40\x00\x01\x00\x3f\xfc\x03\x03 half a hello",
		"\x16\x03\x01\x00\x04\x01\x00\x00\x00",
		"\x15\x03\x03\x00\x02\x02\x28",
		"\x80\x2e\x01\x00\x02\x00\x15\x00\x00\x00\x10\x01\x00\x80\x02\x00",
	};
	char *path = write_file("keys.psk", "alice:" KEY "\n", 0600);

	for (unsigned i = 0; i < sizeof rubbish / sizeof *rubbish; i++) {
		for (size_t length = 0; length <= strlen(rubbish[i]); length++) {
			struct end e;
			int fds[2];

			assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
			assert_eq(write(fds[1], rubbish[i], length), length);
			shutdown(fds[1], SHUT_WR);
			end_open(&e, fds[0]);
			said.lines = 0;
			assert_eq(end_secure(&e, &(struct tls_settings){ .psk = path }), -EPROTO);
			assert_eq(said.lines, 1);
			assert_false(e.peer.tls);
			end_close(&e);
			close(fds[1]);
		}
	}
	free(path);
	scratch_remove();
}

TEST(a_handshake_that_nobody_answers_can_be_closed)
{
	char *path = write_file("keys.psk", "alice:" KEY "\n", 0600);
	struct end e;
	int fds[2];

	assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	end_open(&e, fds[0]);
	end_secure_begin(&e, &(struct tls_settings){ .psk = path });
	end_close(&e);
	assert_eq(e.secured, -ECANCELED);
	assert_eq(said.lines, 0); /* whoever closes knows why */
	close(fds[1]);
	free(path);
	scratch_remove();
}

/* Hands on what comes from `from`, a byte at a time. */
struct drip {
	pthread_t thread;
	int from, to;
};

static void *
drip_main(void *arg)
{
	struct drip *d = arg;
	char byte;

	while (read(d->from, &byte, 1) == 1)
		if (send(d->to, &byte, 1, MSG_NOSIGNAL) != 1)
			break;
	shutdown(d->to, SHUT_WR);
	return NULL;
}

TEST(a_slow_drip_of_single_bytes_is_as_good_as_any)
{
	char *path = write_file("keys.psk", "alice:" KEY "\n", 0600);
	struct other o = { .settings = { .psk = path }, .work = say_hello };
	struct drip in, out;
	char text[6] = "";
	struct end e;
	int server[2], client[2];
	size_t at = 0;

	assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, server), 0);
	assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, client), 0);
	in = (struct drip){ .from = client[0], .to = server[1] };
	out = (struct drip){ .from = server[1], .to = client[0] };
	assert_eq(pthread_create(&in.thread, NULL, drip_main, &in), 0);
	assert_eq(pthread_create(&out.thread, NULL, drip_main, &out), 0);
	end_open(&e, server[0]);
	other_start(&o, client[1]);
	assert_eq(end_secure(&e, &(struct tls_settings){ .psk = path }), 0);
	while (at < 5) {
		ssize_t n = end_recv(&e, &(struct iovec){ text + at, 5 - at }, 1);

		assert_true(n > 0);
		at += (size_t)n;
	}
	assert_str(text, "hello");
	assert_eq(end_recv_byte(&e), 0);
	end_close(&e);
	other_join(&o);
	pthread_join(in.thread, NULL);
	pthread_join(out.thread, NULL);
	free(path);
	scratch_remove();
}

/* ---- certificates ---------------------------------------------------------------- */

/* A client with the certificates of one folder comes to a server with those of another. */
static int
shake_by_certificates(struct end *e, struct other *o, const char *server, bool verify,
		      const char *client)
{
	char *at_server = scratch_path(server), *at_client = scratch_path(client);
	struct tls_settings settings = { .certificates = at_server, .verify_peer = verify };
	int fds[2], error;

	*o = (struct other){ .settings = { .certificates = at_client } };
	assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, fds), 0);
	end_open(e, fds[0]);
	said.lines = said.failures = 0;
	other_start(o, fds[1]);
	error = end_secure(e, &settings);
	free(at_server);
	return error;
}

static void
end_both(struct end *e, struct other *o)
{
	end_close(e);
	other_join(o);
	free((char *)o->settings.certificates);
}

/* What certtool says of the same file. */
static void
certificate_fingerprint(const char *name, char *hex, int size)
{
	char *path = scratch_path(name), command[1000];
	FILE *f;

	snprintf(command, sizeof command, "certtool --fingerprint --hash=sha256 --infile='%s'",
		 path);
	f = popen(command, "r");
	assert_true(f != NULL && fgets(hex, size, f) != NULL);
	assert_eq(pclose(f), 0);
	free(path);
}

TEST(a_certificate_tells_who_the_client_is)
{
	char fingerprint[65];
	struct other o;
	struct end e;

	make_certificates();
	assert_eq(shake_by_certificates(&e, &o, "server", true, "client"), 0);
	assert_true(e.peer.tls);
	assert_str(e.peer.subject, "CN=alice,O=Platter\\, Tests");
	certificate_fingerprint("client/client-cert.pem", fingerprint, sizeof fingerprint);
	assert_str(e.peer.fingerprint, fingerprint);
	assert_true(e.peer.psk == NULL);
	end_both(&e, &o);
	assert_eq(o.result, 0);
	scratch_remove();
}

TEST(a_client_without_a_certificate_is_nobody_where_none_is_needed)
{
	struct other o;
	struct end e;

	make_certificates();
	assert_eq(shake_by_certificates(&e, &o, "server", false, "client-none"), 0);
	assert_true(e.peer.tls);
	assert_true(e.peer.subject == NULL);
	assert_str(e.peer.fingerprint, "");
	end_both(&e, &o);
	scratch_remove();
}

TEST(a_client_is_refused_for_the_reason_that_the_log_tells)
{
	static const struct {
		const char *server, *client, *reason;
		bool always; /* even if clients need no certificate */
	} rows[] = {
		{ "server", "client-none", "ertificate", false },
		{ "server", "client-expired", "expired", true },
		{ "server", "client-server", "purpose", true },
		{ "server-crl", "client-revoked", "revoked", true },
	};
	struct other o;
	struct end e;

	make_certificates();
	for (unsigned i = 0; i < 2 * sizeof rows / sizeof *rows; i++) {
		bool verify = i % 2 == 0;
		unsigned row = i / 2;
		int error =
			shake_by_certificates(&e, &o, rows[row].server, verify, rows[row].client);

		assert_eq(error, verify || rows[row].always ? -EPROTO : 0);
		if (error != 0) {
			assert_eq(said.failures, 1);
			assert_contains(said.text, rows[row].reason);
			assert_true(e.peer.subject == NULL && *e.peer.fingerprint == '\0');
		}
		end_both(&e, &o);
	}
	/* Who is on no list may still come. */
	assert_eq(shake_by_certificates(&e, &o, "server-crl", true, "client"), 0);
	end_both(&e, &o);
	scratch_remove();
}

TEST(a_client_refuses_servers_that_are_not_who_they_should_be)
{
	static const struct {
		const char *server, *client, *reason;
	} rows[] = {
		{ "other", "client", "The certificate is NOT trusted" },
		{ "server-expired", "client", "expired" },
		{ "server-future", "client", "not yet" },
	};
	struct other o;
	struct end e;

	make_certificates();
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		assert_eq(shake_by_certificates(&e, &o, rows[i].server, false, rows[i].client),
			  -EPROTO);
		assert_contains(said.text, "the peer says: ");
		end_both(&e, &o);
		assert_eq(o.result, -EPROTO);
		assert_contains(o.err.text, rows[i].reason);
	}
	scratch_remove();
}

/* ---- credentials ----------------------------------------------------------------- */

static void
refused(const struct tls_settings *settings, const char *part)
{
	struct tls_credentials *c;
	struct pl_error err;

	assert_eq(tls_credentials_new(&c, settings, &err), -EINVAL);
	assert_contains(err.text, part);
	assert_true(strstr(err.text, "0011") == NULL); /* no keys in messages */
}

TEST(what_is_no_file_of_keys_is_refused_with_its_line)
{
	static const struct {
		const char *text;
		mode_t mode;
		const char *part;
	} rows[] = {
		{ "", 0600, "keys.psk: no keys in it" },
		{ "\n\r\n", 0600, "keys.psk: no keys in it" },
		{ "alice\n", 0600, "keys.psk:1: not USER:HEXKEY" },
		{ ":" KEY "\n", 0600, "keys.psk:1: not USER:HEXKEY" },
		{ "#610062:" KEY "\n", 0600, "keys.psk:1: not USER:HEXKEY" },
		{ "alice:" KEY "\n\nbob:" KEY "0\n", 0600, "keys.psk:3: the key of bob is not" },
		{ "alice:" KEY "x0\n", 0600, "keys.psk:1: the key of alice is not in hex" },
		{ "alice:0011\n", 0600, "keys.psk:1: the key of alice has 2 bytes" },
		{ "alice:" KEY "\nalice:" KEY "\n", 0600, "keys.psk:2: a second key for alice" },
		{ "alice:" KEY "\n", 0644, "(mode 0644" },
		{ "alice:" KEY "\n", 0640, "(mode 0640" },
	};

	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		char *path = write_file("keys.psk", rows[i].text, rows[i].mode);

		refused(&(struct tls_settings){ .psk = path }, rows[i].part);
		free(path);
	}
	scratch_remove();
}

TEST(lines_of_keys_may_end_as_on_other_systems)
{
	char *path = write_file("keys.psk", "bob:" KEY "\r\nalice:" KEY, 0600);
	struct tls_credentials *c;

	assert_eq(tls_credentials_new(&c, &(struct tls_settings){ .psk = path }, NULL), 0);
	assert_true(tls_credentials_get(c) == c);
	tls_credentials_put(c);
	tls_credentials_put(c);
	tls_credentials_put(NULL);
	free(path);
	scratch_remove();
}

/* Puts what another folder has in the place of a file of "server", then of the next. */
static void
refused_with(const char *file, const char *other, const char *part)
{
	char command[2000], *path = scratch_path("changed");

	snprintf(command, sizeof command,
		 "cd '%s' && rm -rf changed && cp -rp server-crl changed "
		 "&& rm -f changed/%s && { test -z '%s' || cp -p '%s' changed/%s; }",
		 scratch(), file, other, other, file);
	assert_eq(system(command), 0);
	refused(&(struct tls_settings){ .certificates = path, .verify_peer = true }, part);
	free(path);
}

TEST(certificates_that_do_not_belong_together_are_refused_by_name)
{
	char *path;

	make_certificates();
	free(write_file("noise", "-----BEGIN CERTIFICATE-----\nno\n", 0600));
	refused_with("server-key.pem", "other/server-key.pem", "server-key.pem: ");
	refused_with("server-key.pem", "noise", "server-key.pem: ");
	refused_with("server-cert.pem", "noise", "server-cert.pem: ");
	refused_with("ca-cert.pem", "noise", "ca-cert.pem: ");
	refused_with("ca-crl.pem", "noise", "ca-crl.pem: ");
	refused_with("ca-cert.pem", "other/ca-cert.pem", "ca-crl.pem: not signed by ca-cert.pem");

	path = scratch_path("server/server-key.pem");
	assert_eq(chmod(path, 0644), 0);
	free(path);
	path = scratch_path("server");
	refused(&(struct tls_settings){ .certificates = path }, "server-key.pem: others than its");
	free(path);
	scratch_remove();
}

TEST(credentials_are_of_one_kind_and_their_files_are_there)
{
	char *keys = write_file("keys.psk", "alice:" KEY "\n", 0600);
	struct tls_credentials *c;
	struct pl_error err;

	refused(&(struct tls_settings){ 0 }, "neither");
	refused(&(struct tls_settings){ .psk = keys, .certificates = scratch() }, "choose one");
	refused(&(struct tls_settings){ .psk = keys, .verify_peer = true }, "to verify");
	refused(&(struct tls_settings){ .psk = scratch() }, "not a file");
	assert_eq(tls_credentials_new(&c, &(struct tls_settings){ .psk = "/nowhere" }, &err),
		  -ENOENT);
	assert_contains(err.text, "/nowhere: open");
	assert_eq(tls_credentials_new(&c, &(struct tls_settings){ .certificates = scratch() },
				      &err),
		  -ENOENT);
	assert_contains(err.text, "server-cert.pem: open");
	free(keys);
	scratch_remove();
}

TEST(a_certificate_out_of_its_time_is_a_warning_with_file_and_date)
{
	static const struct {
		const char *folder, *part;
	} rows[] = {
		{ "server-expired", "server-cert.pem: the certificate has expired on 2021-02-03" },
		{ "server-future",
		  "server-cert.pem: the certificate is not valid before 2080-04-05" },
	};

	make_certificates();
	pl_log_to(say);
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		char *path = scratch_path(rows[i].folder);
		struct tls_credentials *c;

		said.lines = 0;
		assert_eq(tls_credentials_new(&c, &(struct tls_settings){ .certificates = path },
					      NULL),
			  0);
		assert_eq(said.lines, 1);
		assert_contains(said.text, rows[i].part);
		tls_credentials_put(c);
		free(path);
	}
	scratch_remove();
}
