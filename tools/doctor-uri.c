/*
 * doctor-uri.c - what a server of NBD or iSCSI advertises, and what that means for durability.
 *
 * What a server says of itself becomes traits, alike for both protocols; findings are rows over
 * traits. For NBD it is what the probe's survey sees, for iSCSI what torture learns. Whether what
 * is said is true cannot be seen from here, and the findings say so.
 */
#include "doctor.h"
#include "probe.h"
#include "stats.h"
#include "torture-target.h"

#include <arpa/inet.h>
#include <errno.h>
#include <gsl/gsl_sort.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

/* Of the flush check. That as many as 48 of 64 tosses of a coin, or 12 of 16, say the same comes
 * once in 10000 times, or in 26; so few are made only where a FLUSH takes a tenth of a second. */
#define ROUNDS    64
#define ENOUGH    16
#define BUDGET_NS UINT64_C(10000000000)

enum trait {
	NBD = 1 << 0,
	ISCSI = 1 << 1,
	REMOTE = 1 << 2, /* comes over a network */
	WRITABLE = 1 << 3,
	CACHE = 1 << 4, /* a write may be answered before it is durable */
	FLUSH = 1 << 5,
	FUA = 1 << 6,
	SHARED = 1 << 7, /* a FLUSH holds for all connections */
	TRIM = 1 << 8,
	ZEROES = 1 << 9,
	TLS_OFFERED = 1 << 10,
	TLS_FORCED = 1 << 11, /* by the server, or by the URI */
	STRUCTURED_REPLIES = 1 << 12,
	EXTENDED_HEADERS = 1 << 13,
	BLOCKS = 1 << 14,    /* block sizes are told */
	BIG_BLOCK = 1 << 15, /* the smallest is above 512 */
};

static const struct doctor_row rows[] = {
	{ NBD | WRITABLE,
	  FLUSH | FUA,
	  { DOCTOR_UNSAFE, 90, "neither FLUSH nor FUA is offered: no write is ever durable",
	    "No client can ask for durability, and so fsync(2) in a guest, or of a file system on "
	    "this disk, returns at once and promises nothing.",
	    "Let the server offer FLUSH, or keep nothing here that has to outlive a loss of "
	    "power." } },
	{ NBD | WRITABLE | FUA,
	  FLUSH,
	  { DOCTOR_UNSAFE, 80, "FUA is offered, and FLUSH is not",
	    "Linux's NBD driver uses FUA only where FLUSH is offered, too, and takes the disk for "
	    "one without a write cache: then it sends neither.",
	    "Let the server offer FLUSH." } },
	{ WRITABLE | CACHE | FLUSH,
	  FUA,
	  { DOCTOR_ADVICE, 60, "FUA is not offered: each durable write costs a FLUSH",
	    "A client has to send the write, wait, and then a FLUSH, which makes everything else "
	    "durable that was written, too. It is safe, and slow where small writes are "
	    "synchronous: journals, databases.",
	    "Use a server that carries FUA." } },
	{ REMOTE | NBD,
	  TLS_OFFERED,
	  { DOCTOR_ADVICE, 50, "there is no TLS on the way to another machine",
	    "Whoever is between can read and change data, and nothing but the 16-bit checksum of "
	    "TCP guards it against errors of the network.",
	    "Serve by TLS, or over a network of its own." } },
	{ REMOTE | NBD | TLS_OFFERED,
	  TLS_FORCED,
	  { DOCTOR_ADVICE, 45, "TLS is offered, and nobody insists on it",
	    "Whoever is between can take the offer away, and client and server go on in plain "
	    "text.",
	    "Use nbds in the URI, or let the server require TLS." } },
	{ REMOTE | ISCSI,
	  0,
	  { DOCTOR_ADVICE, 50, "iSCSI goes to another machine in plain text",
	    "Whoever is between can read and change data; without digests nothing but the 16-bit "
	    "checksum of TCP guards it against errors of the network.",
	    "Ask for HeaderDigest and DataDigest, and use a network of its own." } },
	{ NBD | WRITABLE | FLUSH,
	  SHARED,
	  { DOCTOR_ADVICE, 40, "multi-conn is not offered: use one connection",
	    "A FLUSH need not hold for what other connections wrote. With several, a file system's "
	    "barrier on one may miss writes on another.",
	    "nbd-client: without -connections, or with 1. Let the server offer multi-conn, if its "
	    "connections share one cache." } },
	{ NBD | BIG_BLOCK,
	  0,
	  { DOCTOR_ADVICE, 30, "the smallest block is above 512 bytes",
	    "Clients may not ask for less. A file system or partition table that was made for "
	    "512-byte sectors cannot be used here.",
	    "Tell the client the block size (nbd-client -block-size), or serve with a smaller "
	    "one." } },
	{ NBD,
	  STRUCTURED_REPLIES,
	  { DOCTOR_ADVICE, 20, "there are no structured replies",
	    "An error that comes in the middle of a read ends the connection, and clients cannot "
	    "ask what is allocated: copies and backups read all zeroes.",
	    NULL } },
	{ NBD,
	  BLOCKS,
	  { DOCTOR_ADVICE, 15, "no block sizes are told",
	    "Clients have to guess. What is smaller than the server's own block is read, changed "
	    "and written back there, and may be torn by a loss of power.",
	    NULL } },
	{ WRITABLE,
	  TRIM,
	  { DOCTOR_ADVICE, 10, "TRIM is not offered",
	    "What clients delete keeps its space on the server.", NULL } },
	{ 0,
	  WRITABLE,
	  { DOCTOR_HEALTHY, 90, "it is read-only: there is nothing to lose by a loss of power",
	    "Nothing can be written through this server.", NULL } },
	{ WRITABLE | CACHE | FLUSH | FUA,
	  0,
	  { DOCTOR_HEALTHY, 80, "clients can make writes durable: FLUSH and FUA are offered",
	    "This is what the server says. Only a cut of the power shows whether it is true.",
	    "To try that with a disk that has nothing of value: platter torture." } },
	{ WRITABLE,
	  CACHE,
	  { DOCTOR_HEALTHY, 80, "there is no write cache: what is answered is durable",
	    "This is what the target says. Only a cut of the power shows whether it is true.",
	    "To try that with a disk that has nothing of value: platter torture." } },
};

/* ---- what is said: facts and traits ---------------------------------------------- */

struct promise {
	unsigned bit;
	unsigned trait; /* or 0 */
	const char *name, *yes, *no;
};

static unsigned
tell(struct doctor_report *r, const char *group, const struct promise *list, unsigned count,
     unsigned bits)
{
	unsigned traits = 0;

	for (unsigned i = 0; i < count; i++) {
		bool yes = bits & list[i].bit;

		doctor_fact(r, group, list[i].name, "%s%s", yes ? "yes" : "no",
			    yes ? list[i].yes : list[i].no);
		traits |= yes ? list[i].trait : 0;
	}
	return traits;
}

static const struct promise nbd_flags[] = {
	{ NBD_FLAG_READ_ONLY, 0, "read-only", "", "" },
	{ NBD_FLAG_SEND_FLUSH, FLUSH, "FLUSH", "", ": no barrier, fsync(2) promises nothing" },
	{ NBD_FLAG_SEND_FUA, FUA, "FUA", ": one write can be made durable", "" },
	{ NBD_FLAG_CAN_MULTI_CONN, SHARED, "multi-conn", ": a FLUSH holds for all connections",
	  ": a FLUSH holds for its own connection" },
	{ NBD_FLAG_SEND_TRIM, TRIM, "TRIM", "", "" },
	{ NBD_FLAG_SEND_WRITE_ZEROES, ZEROES, "WRITE_ZEROES", "", ": zeroes are sent as data" },
	{ NBD_FLAG_SEND_FAST_ZERO, 0, "FAST_ZERO", "", "" },
	{ NBD_FLAG_SEND_CACHE, 0, "CACHE", "", "" },
	{ NBD_FLAG_ROTATIONAL, 0, "rotational", "", "" },
};

static const struct promise nbd_options[] = {
	{ TLS_OFFERED, TLS_OFFERED, "TLS", "", "" },
	{ TLS_FORCED, TLS_FORCED, "TLS only", "", ": plain text is possible" },
	{ STRUCTURED_REPLIES, STRUCTURED_REPLIES, "structured replies", "", "" },
	{ EXTENDED_HEADERS, EXTENDED_HEADERS, "extended headers", "",
	  ": a TRIM or zeroes of less than 4 GiB at once" },
	{ BLOCKS, BLOCKS, "block sizes told", "", "" },
};

static const struct promise iscsi_bits[] = {
	{ CAN_NOT_WRITE, 0, "write-protected", "", "" },
	{ CAN_AT_ONCE, 0, "no write cache", ": WCE is 0, each write is durable",
	  ": WCE is 1, or is not told" },
	{ CAN_FUA, FUA, "DPOFUA", ": one write can be made durable", "" },
	{ CAN_TRIM, TRIM, "LBPU", ": UNMAP", "" },
	{ CAN_ZERO, ZEROES, "LBPWS", ": WRITE SAME with UNMAP", "" },
};

#define COUNT(list) (sizeof(list) / sizeof *(list))

/* Of a name or an address, which may stand in brackets, and may have a port or a path behind it. */
static bool
is_local(const char *host)
{
	size_t length = *host == '[' ? strcspn(++host, "]") : strcspn(host, ":/");
	char name[256];
	struct in_addr v4;
	struct in6_addr v6;

	if (strncmp(host, "::", 2) == 0) /* an address without brackets */
		length = strlen(host);
	if (length >= sizeof(name))
		return false;
	memcpy(name, host, length);
	name[length] = '\0';
	if (inet_pton(AF_INET, name, &v4) == 1)
		return ntohl(v4.s_addr) >> 24 == 127;
	return strcasecmp(name, "localhost") == 0 ||
	       (inet_pton(AF_INET6, name, &v6) == 1 && IN6_IS_ADDR_LOOPBACK(&v6));
}

static int
look_at_nbd(struct doctor_report *r, const char *text, unsigned timeout_s, unsigned *traits,
	    struct pl_error *err)
{
	struct probe_survey f;
	struct nbd_uri uri;
	unsigned has;
	int error = nbd_uri_parse(&uri, text, err);

	if (error != 0)
		return error;
	error = probe_look(&uri, timeout_s, &f, err);
	if (error == 0) {
		unsigned flags = f.flags[COMPACT];

		has = (f.starttls ? TLS_OFFERED : 0) | (f.forced_tls || uri.tls ? TLS_FORCED : 0) |
		      (f.structured ? STRUCTURED_REPLIES : 0) |
		      (f.extended ? EXTENDED_HEADERS : 0) | (f.has_blocks ? BLOCKS : 0);
		doctor_fact(r, "export", "name", "\"%s\"", uri.export);
		doctor_fact(r, "export", "size", "%" PRIu64 " bytes", f.size);
		if (f.has_blocks)
			doctor_fact(r, "export", "blocks", "%u, best %u, at most %u bytes", f.min,
				    f.preferred, f.max);
		*traits = NBD | CACHE | tell(r, "export", nbd_flags, COUNT(nbd_flags), flags) |
			  tell(r, "connection", nbd_options, COUNT(nbd_options), has) |
			  (flags & NBD_FLAG_READ_ONLY ? 0 : WRITABLE) |
			  (f.has_blocks && f.min > 512 ? BIG_BLOCK : 0) |
			  (uri.unix_socket == NULL && !is_local(uri.host) ? REMOTE : 0);
	}
	nbd_uri_free(&uri);
	return error;
}

static int
look_at_iscsi(struct doctor_report *r, const char *text, unsigned timeout_s, unsigned *traits,
	      struct pl_error *err)
{
	const char *host = strstr(text, "://") + 3, *at = strchr(host, '@');
	struct target t;
	int error = target_open(&t, text, timeout_s, OPEN_READ, err);

	if (error != 0)
		return error;
	if (at != NULL && at < host + strcspn(host, "/"))
		host = at + 1;
	doctor_fact(r, "logical unit", "size", "%" PRIu64 " bytes", t.info.size);
	doctor_fact(r, "logical unit", "block", "%u bytes", t.info.unit);
	*traits = ISCSI | FLUSH | SHARED |
		  tell(r, "logical unit", iscsi_bits, COUNT(iscsi_bits), t.info.can) |
		  (t.info.can & CAN_NOT_WRITE ? 0 : WRITABLE) |
		  (t.info.can & CAN_AT_ONCE ? 0 : CACHE) | (is_local(host) ? 0 : REMOTE);
	target_close(&t);
	return 0;
}

/* ---- whether a FLUSH takes time -------------------------------------------------- */

static const struct doctor_finding flush_costs = {
	DOCTOR_HEALTHY, 70, "a FLUSH after a write takes its time",
	"It takes longer than a READ, or than a FLUSH that has nothing to do, and so it does "
	"something. Whether what it does reaches a medium that keeps it is not shown.",
	NULL
};

static const struct doctor_finding flush_is_free = {
	DOCTOR_ADVICE, 70, "a FLUSH after a write takes hardly any time",
	"It takes hardly longer than a READ, or than a FLUSH that has nothing to do. Either each "
	"write is durable already, or the disk below has memory that outlives a loss of power, or "
	"FLUSH does nothing. Time does not tell which.",
	"Look at the server's settings (a cache mode 'unsafe', a disk in memory), or find out with "
	"a disk that has nothing of value and a cut of its power: platter torture."
};

static const struct doctor_finding it_fails = {
	DOCTOR_UNSAFE, 100, "a READ, WRITE or FLUSH fails",
	"The server accepts commands that it cannot carry out; after a FLUSH that failed nobody "
	"knows what is durable of what was written before.",
	"Look at the log of the server and at the disk below it."
};

enum step { SETTLE, READ, IDLE_FLUSH, WRITE, DIRTY_FLUSH, STEPS };

struct round {
	double seconds[STEPS];
};

/* Returns how many rounds were made, or -1 and what failed is told. */
static int
measure(struct doctor_report *r, struct target *t, void *data, uint64_t length,
	struct round *rounds)
{
	const struct torture_op ops[STEPS] = {
		[SETTLE] = { .kind = TORTURE_FLUSH },
		/* Of what is cached. And so both FLUSH that are compared come after data. */
		[READ] = { .kind = TORTURE_READ, .length = length, .data = data },
		[IDLE_FLUSH] = { .kind = TORTURE_FLUSH },
		[WRITE] = { .kind = TORTURE_WRITE, .length = length, .data = data },
		[DIRTY_FLUSH] = { .kind = TORTURE_FLUSH },
	};
	uint64_t began = stats_now();
	int count = 0;

	while (count < ROUNDS && stats_now() - began < BUDGET_NS) {
		for (unsigned i = 0; i < STEPS; i++) {
			uint64_t start = stats_now();
			int error = target_run(t, &ops[i]);

			if (error != 0) {
				doctor_fact(r, "flush", "failed", "%s: %s",
					    torture_kind_name(ops[i].kind), strerror(-error));
				doctor_find(r, &it_fails);
				return -1;
			}
			rounds[count].seconds[i] = (double)(stats_now() - start) / 1e9;
		}
		count++;
	}
	return count;
}

static double
median(const struct round *rounds, int count, enum step step)
{
	double list[ROUNDS];

	for (int i = 0; i < count; i++)
		list[i] = rounds[i].seconds[step];
	gsl_sort(list, 1, (size_t)count);
	return list[count / 2];
}

/* Whether a FLUSH after a WRITE takes longer than another step, and not by chance. */
static bool
takes_longer(struct doctor_report *r, const struct round *rounds, int count, enum step other,
	     const char *name)
{
	int longer = 0;

	for (int i = 0; i < count; i++)
		longer += rounds[i].seconds[DIRTY_FLUSH] > rounds[i].seconds[other];
	doctor_fact(r, "flush", name, "in %d of %d rounds", longer, count);
	return 4 * longer >= 3 * count &&
	       median(rounds, count, DIRTY_FLUSH) > 1.5 * median(rounds, count, other);
}

static void
judge(struct doctor_report *r, const struct round *rounds, int count, uint64_t length)
{
	static const char *const names[STEPS] = { [READ] = "READ",
						  [IDLE_FLUSH] = "FLUSH, nothing to do",
						  [WRITE] = "WRITE",
						  [DIRTY_FLUSH] = "FLUSH after it" };
	bool costs;

	doctor_fact(r, "flush", "rounds", "%d, each writes %" PRIu64 " bytes", count, length);
	for (unsigned i = 0; i < STEPS; i++) {
		if (names[i] != NULL)
			doctor_fact(r, "flush", names[i], "%.0f us (median)",
				    median(rounds, count, i) * 1e6);
	}
	costs = takes_longer(r, rounds, count, IDLE_FLUSH, "longer than idle");
	costs |= takes_longer(r, rounds, count, READ, "longer than READ");
	if (count < ENOUGH)
		doctor_fact(r, "flush", "not judged", "the rounds are too few");
	else
		doctor_find(r, costs ? &flush_costs : &flush_is_free);
}

static void
try_flush(struct doctor_report *r, struct target *t)
{
	struct round rounds[ROUNDS];
	uint64_t length = t->info.unit > 4096 ? t->info.unit : 4096;
	void *data = NULL;
	int count;

	if (length > t->info.size || posix_memalign(&data, 4096, length) != 0) {
		doctor_fact(r, "flush", "not checked", "there is no room for a write");
		return;
	}
	count = measure(r, t, data, length, rounds);
	free(data);
	if (count > 0)
		judge(r, rounds, count, length);
}

static int
check_flush(struct doctor_report *r, const char *uri, unsigned timeout_s, unsigned traits,
	    struct pl_error *err)
{
	struct target t;
	int error;

	if ((traits & (WRITABLE | FLUSH | CACHE)) != (WRITABLE | FLUSH | CACHE)) {
		doctor_fact(r, "flush", "not checked", "%s",
			    !(traits & WRITABLE) ? "it is read-only"
			    : !(traits & FLUSH)  ? "there is no FLUSH"
						 : "there is no write cache");
		return 0;
	}
	error = target_open(&t, uri, timeout_s, OPEN_FIRST, err);
	if (error != 0)
		return error;
	try_flush(r, &t);
	target_close(&t);
	return 0;
}

int
doctor_uri(struct doctor_report *r, const char *uri, const struct doctor_uri_how *how,
	   struct pl_error *err)
{
	bool iscsi = strncmp(uri, "iscsi://", 8) == 0;
	unsigned traits = 0;
	int error = iscsi ? look_at_iscsi(r, uri, how->timeout_s, &traits, err)
			  : look_at_nbd(r, uri, how->timeout_s, &traits, err);

	if (error == 0)
		doctor_conclude(r, rows, COUNT(rows), traits);
	if (error == 0 && how->check_flush)
		error = check_flush(r, uri, how->timeout_s, traits, err);
	return error;
}
