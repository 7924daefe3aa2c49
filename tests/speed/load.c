/*
 * load.c - how fast does a server answer?
 *
 *	load [OPTION...] SOCKET | HOST:PORT | iscsi://HOST:PORT/IQN/LUN [EXPORT]
 *
 * Each connection has a thread, which keeps --qd requests in flight: it receives all
 * replies there are with one system call, and sends what takes their places with another.
 * So the client costs little beside the server that is measured. After the warm-up, counts
 * and latencies are kept for --runtime-ms; then one line of JSON tells them.
 */
#include "load.h"

#include <err.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <time.h>
#include <unistd.h>

#define RECEIVE_BUFFER (512u * 1024)
#define MAX_CONNS      64

/* ---- options --------------------------------------------------------------------- */

enum { RANDREAD, RANDWRITE, READ, WRITE };
static const char *const ops[] = { "randread", "randwrite", "read", "write", NULL };
enum { SYNC_NONE, SYNC_FUA, SYNC_FLUSH };
static const char *const syncs[] = { "none", "fua", "flush", NULL };

uint64_t bs = 4096;
bool writes, by_fua, by_flush;
uint8_t *payload;
static uint64_t op, qd = 1, conns = 1, sync_by, seed = 1, server;
static uint64_t runtime_ms = 2000, warmup_ms = 500;
static bool random_offsets;

static const struct option {
	const char *name;
	uint64_t *value;
	const char *const *words; /* NULL: it is a number; else the index of one of these */
	const char *help;
} options[] = {
	{ "op", &op, ops, "randread (default), randwrite, read or write" },
	{ "bs", &bs, NULL, "bytes of a request, 4k" },
	{ "qd", &qd, NULL, "requests in flight on each connection, 1" },
	{ "conns", &conns, NULL, "connections, 1" },
	{ "sync", &sync_by, syncs,
	  "none (default); fua: each write carries FUA; flush: each write\n"
	  "               is followed by a FLUSH, and done when that is" },
	{ "runtime-ms", &runtime_ms, NULL, "to measure, 2000" },
	{ "warmup-ms", &warmup_ms, NULL, "before that, 500" },
	{ "seed", &seed, NULL, "of the random offsets, 1" },
	{ "server", &server, NULL, "process id whose CPU time is to be told" },
};
#define OPTIONS (sizeof(options) / sizeof(options[0]))

static void
usage(void)
{
	puts("usage: load [OPTION...] SOCKET | HOST:PORT | iscsi://HOST:PORT/IQN/LUN [EXPORT]\n"
	     "Loads an NBD server or an iSCSI target and prints what it did as JSON.\n");
	for (const struct option *opt = options; opt < options + OPTIONS; opt++)
		printf("  --%-10s %s\n", opt->name, opt->help);
	exit(0);
}

static bool
parse_value(const struct option *opt, const char *text)
{
	char *end = (char *)text;

	if (opt->words != NULL) {
		for (*opt->value = 0; opt->words[*opt->value] != NULL; ++*opt->value) {
			if (strcmp(text, opt->words[*opt->value]) == 0)
				return true;
		}
		return false;
	}
	*opt->value = strtoull(text, &end, 10);
	if (end > text && *end == 'k') {
		*opt->value *= 1024;
		end++;
	}
	return end > text && *end == '\0';
}

/* Returns the address, which is the first word that is no option; the second is an export. */
static const char *
parse_options(char **argv, const char **export_name)
{
	const char *address = NULL;

	while (*++argv != NULL) {
		const char *name = *argv;
		const struct option *opt = options;

		if (strcmp(name, "--help") == 0)
			usage();
		if (strncmp(name, "--", 2) != 0) {
			*(address == NULL ? &address : export_name) = name;
			continue;
		}
		while (opt < options + OPTIONS && strcmp(opt->name, name + 2) != 0)
			opt++;
		if (opt == options + OPTIONS)
			errx(2, "%s: no such option; --help shows them", name);
		if (*++argv == NULL || !parse_value(opt, *argv))
			errx(2, "%s: %s", name, opt->help);
	}
	writes = op == RANDWRITE || op == WRITE;
	by_fua = sync_by == SYNC_FUA;
	by_flush = sync_by == SYNC_FLUSH;
	random_offsets = op == RANDREAD || op == RANDWRITE;
	if (address == NULL)
		errx(2, "which server? --help shows how to say it");
	if (qd < 1 || qd > MAX_DEPTH || conns < 1 || conns > MAX_CONNS)
		errx(2, "--qd is from 1 to %d, --conns from 1 to %d", MAX_DEPTH, MAX_CONNS);
	if (bs < 1 || bs > 32u << 20)
		errx(2, "--bs is from 1 to 32768k");
	if (sync_by != SYNC_NONE && !writes)
		errx(2, "--sync is for writes");
	return address;
}

/* ---- latencies: 32 steps for each power of two of nanoseconds -------------------- */

#define STEPS 32

struct histogram {
	uint64_t count, in[64 * STEPS];
};

static void
histogram_add(struct histogram *h, uint64_t ns)
{
	unsigned power = 63 - (unsigned)__builtin_clzll(ns | STEPS);

	h->in[power * STEPS + (ns >> (power - 5)) % STEPS]++;
	h->count++;
}

/* In microseconds: the middle of the step that fraction of all lie below. */
static double
histogram_at(const struct histogram *h, double fraction)
{
	uint64_t below = (uint64_t)((double)h->count * fraction);

	for (unsigned i = 5 * STEPS; i < 64 * STEPS; i++) {
		if (h->in[i] > below) {
			double step = (double)(1ull << (i / STEPS - 5));

			return (STEPS + i % STEPS + 0.5) * step / 1000;
		}
		below -= h->in[i];
	}
	return 0;
}

static void
histogram_merge(struct histogram *to, const struct histogram *from)
{
	to->count += from->count;
	for (unsigned i = 0; i < 64 * STEPS; i++)
		to->in[i] += from->in[i];
}

static uint64_t
now(clockid_t clock)
{
	struct timespec ts;

	if (clock_gettime(clock, &ts) == -1)
		return 0;
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

/* ---- a connection ---------------------------------------------------------------- */

enum { WARM_UP, MEASURE, STOP };
static int phase;

struct conn {
	pthread_t thread;
	int fd;
	const struct protocol *protocol;
	struct iscsi_state iscsi;
	uint64_t first, blocks; /* its part of the export, in blocks */
	uint64_t next, random_state;
	struct slot slots[MAX_DEPTH];
	unsigned in_flight;

	struct iovec to_send[2 * MAX_DEPTH * (1 + SLOT_PARTS)];
	unsigned pieces;

	uint8_t *buffer;
	size_t held, skip; /* bytes in the buffer; bytes of data still to be passed by */
	struct histogram latency;
};

/* Sends what the socket takes, and keeps the rest. */
static void
send_some(struct conn *c)
{
	struct msghdr msg = { .msg_iov = c->to_send,
			      .msg_iovlen = c->pieces < IOV_MAX ? c->pieces : IOV_MAX };
	ssize_t n = c->pieces > 0 ? sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
	unsigned sent = 0;

	if (n == -1 && errno != EINTR && errno != EAGAIN)
		err(1, "send");
	if (n <= 0)
		return;
	while (sent < c->pieces && (size_t)n >= c->to_send[sent].iov_len)
		n -= (ssize_t)c->to_send[sent++].iov_len;
	c->pieces -= sent;
	memmove(c->to_send, c->to_send + sent, c->pieces * sizeof(c->to_send[0]));
	if (n > 0) {
		c->to_send[0].iov_base = (uint8_t *)c->to_send[0].iov_base + n;
		c->to_send[0].iov_len -= (size_t)n;
	}
}

/* A server may not take more before its replies are taken. Returns whether there are some. */
static bool
wait_for_room_or_replies(struct conn *c)
{
	struct pollfd p = { .fd = c->fd, .events = POLLIN | POLLOUT };

	return poll(&p, 1, -1) == 1 && (p.revents & ~POLLOUT) != 0;
}

void
load_add(struct conn *c, const void *data, size_t length)
{
	if (c->pieces == sizeof(c->to_send) / sizeof(c->to_send[0]))
		errx(1, "the server asks for more than it was offered");
	c->to_send[c->pieces++] = (struct iovec){ (void *)data, length };
}

void
load_skip(struct conn *c, size_t bytes)
{
	c->skip = bytes;
}

int
load_fd(const struct conn *c)
{
	return c->fd;
}

struct iscsi_state *
load_iscsi(struct conn *c)
{
	return &c->iscsi;
}

struct slot *
load_slot(struct conn *c, uint64_t number)
{
	if (number >= qd)
		errx(1, "the server answered what was not asked");
	return &c->slots[number];
}

static uint64_t
next_block(struct conn *c)
{
	if (!random_offsets)
		return c->first + c->next++ % c->blocks;
	c->random_state ^= c->random_state << 13;
	c->random_state ^= c->random_state >> 7;
	c->random_state ^= c->random_state << 17;
	return c->first + c->random_state % c->blocks;
}

/* The slot's next request is to be sent with the others. */
static void
issue(struct conn *c, struct slot *s, uint64_t time)
{
	if (s->kind != LOAD_FLUSH) {
		s->offset = next_block(c) * bs;
		s->since = time;
	}
	c->protocol->issue(c, s);
	c->in_flight++;
}

void
load_replied(struct conn *c, struct slot *s, const char *error, uint64_t time)
{
	int at = __atomic_load_n(&phase, __ATOMIC_RELAXED);
	bool whole;

	if (error != NULL)
		errx(1, "the server answered %s (%s, offset %llu)", error,
		     s->kind == LOAD_FLUSH ? "flush" : ops[op], (unsigned long long)s->offset);
	c->in_flight--;
	whole = !by_flush || s->kind == LOAD_FLUSH;
	if (by_flush)
		s->kind = s->kind == LOAD_FLUSH ? LOAD_WRITE : LOAD_FLUSH;
	if (at == MEASURE && whole)
		histogram_add(&c->latency, time - s->since);
	if (at != STOP)
		issue(c, s, time);
}

static void
receive(struct conn *c)
{
	ssize_t n = recv(c->fd, c->buffer + c->held, RECEIVE_BUFFER - c->held, 0);
	uint64_t time = now(CLOCK_MONOTONIC);
	size_t at = 0;

	if (n == -1 && errno == EINTR)
		return;
	if (n <= 0)
		errx(1, "the server hung up: %s", n == 0 ? "end of file" : strerror(errno));
	c->held += (size_t)n;
	for (;;) {
		size_t pass = c->held - at < c->skip ? c->held - at : c->skip, used;

		at += pass;
		c->skip -= pass;
		if (c->skip > 0 ||
		    (used = c->protocol->take(c, c->buffer + at, c->held - at, time)) == 0)
			break;
		at += used;
	}
	c->held -= at;
	memmove(c->buffer, c->buffer + at, c->held);
}

static void *
run(void *arg)
{
	struct conn *c = arg;

	for (unsigned i = 0; i < qd; i++) {
		c->slots[i].number = i;
		c->slots[i].kind = writes ? LOAD_WRITE : LOAD_READ;
		issue(c, &c->slots[i], now(CLOCK_MONOTONIC));
	}
	while (c->in_flight > 0) {
		send_some(c);
		if (c->pieces == 0 || wait_for_room_or_replies(c))
			receive(c);
	}
	c->protocol->end(c);
	send_some(c);
	close(c->fd);
	return NULL;
}

/* ---- connecting ------------------------------------------------------------------ */

static int
connect_unix(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (strlen(path) >= sizeof(to.sun_path))
		errx(2, "%s: too long for a socket", path);
	strcpy(to.sun_path, path);
	if (fd == -1 || connect(fd, (struct sockaddr *)&to, sizeof(to)) == -1)
		err(1, "%s", path);
	return fd;
}

static int
connect_tcp(const char *address)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
	char host[256], port[8];
	int fd = -1, on = 1, error;

	if (sscanf(address, "%255[^:]:%7s", host, port) != 2)
		errx(2, "%s: neither a path with a / nor HOST:PORT", address);
	error = getaddrinfo(host, port, &hints, &found);
	if (error != 0)
		errx(1, "%s: %s", address, gai_strerror(error));
	for (const struct addrinfo *ai = found; ai != NULL && fd == -1; ai = ai->ai_next) {
		fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, ai->ai_protocol);
		if (fd != -1 && connect(fd, ai->ai_addr, ai->ai_addrlen) == -1) {
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(found);
	if (fd == -1)
		err(1, "%s", address);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fd;
}

void
load_get(int fd, void *to, size_t length)
{
	if (recv(fd, to, length, MSG_WAITALL) != (ssize_t)length)
		errx(1, "the server hung up in the handshake");
}

/* Connects, and tells what comes behind HOST:PORT. */
static const char *
connect_to(struct conn *c, const char *address, const char *export_name)
{
	static const char scheme[] = "iscsi://";
	char host[256];
	size_t length;

	c->protocol = &protocol_nbd;
	if (strncmp(address, scheme, strlen(scheme)) != 0) {
		c->fd = strchr(address, '/') != NULL ? connect_unix(address) : connect_tcp(address);
		return export_name;
	}
	c->protocol = &protocol_iscsi;
	address += strlen(scheme);
	length = strcspn(address, "/");
	if (length >= sizeof(host))
		errx(2, "%s: too long", address);
	memcpy(host, address, length);
	host[length] = '\0';
	c->fd = connect_tcp(host);
	return address + length;
}

/* Random offsets fall anywhere; in sequence each connection has a part of its own. */
static void
open_conn(struct conn *c, unsigned number, const char *address, const char *export_name)
{
	uint64_t blocks;
	const char *rest = connect_to(c, address, export_name);

	blocks = c->protocol->open(c, rest) / bs;
	c->blocks = random_offsets ? blocks : blocks / conns;
	c->first = random_offsets ? 0 : number * c->blocks;
	if (c->blocks == 0)
		errx(1, "the export is too small");
	c->random_state = (seed + number) * 0x9e3779b97f4a7c15 | 1;
	c->buffer = malloc(RECEIVE_BUFFER);
	if (c->buffer == NULL)
		err(1, "memory");
}

/* ---- measuring ------------------------------------------------------------------- */

struct reading {
	uint64_t time, client, server; /* nanoseconds */
};

static struct reading
take_reading(clockid_t server_clock)
{
	return (struct reading){
		.time = now(CLOCK_MONOTONIC),
		.client = now(CLOCK_PROCESS_CPUTIME_ID),
		.server = server != 0 ? now(server_clock) : 0,
	};
}

static void
sleep_for(uint64_t ms)
{
	struct timespec ts = { (time_t)(ms / 1000), (long)(ms % 1000 * 1000000) };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

static void
report(const struct histogram *h, const struct reading *from, const struct reading *to)
{
	double took = (double)(to->time - from->time) / 1e9, iops = (double)h->count / took;

	printf("{\"op\": \"%s\", \"bs\": %llu, \"qd\": %llu, \"conns\": %llu, \"sync\": \"%s\", "
	       "\"seconds\": %.3f, \"requests\": %llu, \"iops\": %.1f, \"mib_s\": %.2f, "
	       "\"p50_us\": %.2f, \"p99_us\": %.2f, "
	       "\"client_cpu_s\": %.4f, \"server_cpu_s\": %.4f}\n",
	       ops[op], (unsigned long long)bs, (unsigned long long)qd, (unsigned long long)conns,
	       syncs[sync_by], took, (unsigned long long)h->count, iops,
	       iops * (double)bs / (1 << 20), histogram_at(h, 0.5), histogram_at(h, 0.99),
	       (double)(to->client - from->client) / 1e9,
	       (double)(to->server - from->server) / 1e9);
}

int
main(int argc, char **argv)
{
	static struct conn all[MAX_CONNS];
	static struct histogram latency;
	struct reading from, to;
	clockid_t server_clock = CLOCK_MONOTONIC;
	const char *address, *export_name = "";

	(void)argc;
	address = parse_options(argv, &export_name);
	if (server != 0 && clock_getcpuclockid((pid_t)server, &server_clock) != 0)
		errx(1, "there is no process %llu", (unsigned long long)server);
	payload = malloc(bs);
	if (payload == NULL)
		err(1, "memory");
	for (uint64_t i = 0; i < bs; i++)
		payload[i] = (uint8_t)(random() >> 8);
	for (unsigned i = 0; i < conns; i++)
		open_conn(&all[i], i, address, export_name);
	for (unsigned i = 0; i < conns; i++) {
		if (pthread_create(&all[i].thread, NULL, run, &all[i]) != 0)
			errx(1, "cannot make a thread");
	}
	sleep_for(warmup_ms);
	from = take_reading(server_clock);
	__atomic_store_n(&phase, MEASURE, __ATOMIC_RELAXED);
	sleep_for(runtime_ms);
	__atomic_store_n(&phase, STOP, __ATOMIC_RELAXED);
	to = take_reading(server_clock);
	for (unsigned i = 0; i < conns; i++) {
		pthread_join(all[i].thread, NULL);
		histogram_merge(&latency, &all[i].latency);
		free(all[i].buffer);
	}
	free(payload);
	report(&latency, &from, &to);
	return 0;
}
