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
#include "../../tools/conn.h"

#include <err.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define MAX_CONNS 64

/* ---- options --------------------------------------------------------------------- */

enum { RANDREAD, RANDWRITE, READ, WRITE };
static const char *const ops[] = { "randread", "randwrite", "read", "write", NULL };
enum { SYNC_NONE, SYNC_FUA, SYNC_FLUSH };
static const char *const syncs[] = { "none", "fua", "flush", NULL };

static uint64_t bs = 4096;
static bool writes, by_fua, by_flush;
static uint8_t *payload; /* bs bytes: what all writes write */
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
	if (qd < 1 || qd > CONN_DEPTH || conns < 1 || conns > MAX_CONNS)
		errx(2, "--qd is from 1 to %d, --conns from 1 to %d", CONN_DEPTH, MAX_CONNS);
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

struct load {
	struct conn conn;
	pthread_t thread;
	uint64_t first, blocks; /* its part of the export, in blocks */
	uint64_t next, random_state;
	uint64_t since[CONN_DEPTH]; /* when that request, or the write before it, was issued */
	struct histogram latency;
};

static uint64_t
next_block(struct load *l)
{
	if (!random_offsets)
		return l->first + l->next++ % l->blocks;
	l->random_state ^= l->random_state << 13;
	l->random_state ^= l->random_state >> 7;
	l->random_state ^= l->random_state << 17;
	return l->first + l->random_state % l->blocks;
}

static void
issue(struct load *l, unsigned number, enum conn_op kind, uint64_t time)
{
	struct conn_request *r = &l->conn.requests[number];

	r->op = kind;
	if (kind == CONN_FLUSH) {
		r->offset = r->length = 0;
	} else {
		r->offset = next_block(l) * bs;
		r->length = (uint32_t)bs;
		l->since[number] = time;
	}
	conn_issue(&l->conn, number);
}

static void
replied(struct conn *c, struct conn_request *r, const char *error)
{
	struct load *l = (struct load *)c;
	int at = __atomic_load_n(&phase, __ATOMIC_RELAXED);
	unsigned number = (unsigned)(r - c->requests);
	uint64_t time = now(CLOCK_MONOTONIC);
	enum conn_op kind = r->op;
	bool whole = !by_flush || kind == CONN_FLUSH;

	if (error != NULL)
		errx(1, "the server answered %s (%s, offset %llu)", error,
		     kind == CONN_FLUSH ? "flush" : ops[op], (unsigned long long)r->offset);
	if (by_flush)
		kind = kind == CONN_FLUSH ? CONN_WRITE : CONN_FLUSH;
	if (at == MEASURE && whole)
		histogram_add(&l->latency, time - l->since[number]);
	if (at != STOP)
		issue(l, number, kind, time);
}

static void *
run(void *arg)
{
	struct load *l = arg;

	for (unsigned i = 0; i < qd; i++) {
		l->conn.requests[i].fua = by_fua;
		l->conn.requests[i].data = writes ? payload : NULL;
		issue(l, i, writes ? CONN_WRITE : CONN_READ, now(CLOCK_MONOTONIC));
	}
	while (l->conn.in_flight > 0)
		conn_turn(&l->conn);
	conn_close(&l->conn);
	return NULL;
}

/* Random offsets fall anywhere; in sequence each connection has a part of its own. */
static void
open_load(struct load *l, unsigned number, const char *address, const char *export_name)
{
	uint64_t blocks;

	conn_open(&l->conn, address, export_name, replied);
	if (by_fua && !l->conn.can_fua)
		errx(1, "the server does not offer FUA");
	if (by_flush && !l->conn.can_flush)
		errx(1, "the server does not offer FLUSH");
	blocks = l->conn.size / bs;
	l->blocks = random_offsets ? blocks : blocks / conns;
	l->first = random_offsets ? 0 : number * l->blocks;
	if (l->blocks == 0)
		errx(1, "the export is too small");
	l->random_state = (seed + number) * 0x9e3779b97f4a7c15 | 1;
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
	static struct load all[MAX_CONNS];
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
		open_load(&all[i], i, address, export_name);
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
	}
	free(payload);
	report(&latency, &from, &to);
	return 0;
}
