/*
 * bench.h - what platter bench measures, and what has come of it.
 *
 * A load is a row of the report, a target a column; each pair is measured `repeats` times, in
 * an order of its own each time. bench.c makes a result, or bench-json.c reads that of an
 * earlier run; the other files tell it.
 */
#ifndef BENCH_H
#define BENCH_H

#include "platter.h"

#include <stdio.h>

/* ---- what is asked for ----------------------------------------------------------- */

enum bench_op { BENCH_RANDREAD, BENCH_RANDWRITE, BENCH_READ, BENCH_WRITE, BENCH_MIXED };
enum bench_sync {
	BENCH_PLAIN,
	BENCH_FUA,   /* each write carries FUA */
	BENCH_FLUSH, /* each write is followed by a FLUSH, and done when that is */
};

struct bench_load {
	enum bench_op op; /* MIXED: 70 % random reads, 30 % random writes */
	enum bench_sync sync;
	uint32_t block; /* bytes of a request */
	unsigned depth; /* requests in flight by each job */
	unsigned jobs;  /* connections, with a thread of the client each */
};

#define BENCH_REPEATS 1000 /* at most */
#define BENCH_NAME    48
/* OP[-fua|-flush]-BLOCK-JOBSxDEPTH: "randwrite-fua-4k-4x16". Returns name, BENCH_NAME bytes. */
char *bench_load_name(const struct bench_load *l, char *name);
bool bench_load_parse(const char *name, struct bench_load *l); /* the same, read */
bool bench_load_writes(const struct bench_load *l);

enum bench_kind {
	BENCH_OURS,
	BENCH_PEER,
	BENCH_RAW,     /* the file itself, by io_uring, without a server */
	BENCH_CEILING, /* our server of nothing: what the load generator can do */
	BENCH_GIVEN,   /* a server that was there already */
};

struct bench_target {
	char *name; /* "nbd", "qemu-nbd" */
	char *mode; /* of the cache, and what else tells it from its like: "none+native" */
	char *step; /* of the table osync: what this target has more than the one before it;
		     * NULL: none */
	enum bench_kind kind;
	bool direct;                 /* passes by the page cache */
	bool iscsi;                  /* is compared with its like */
	char *command;               /* as it was run, or its address */
	char *absent;                /* why it is not measured; NULL: it is */
	const struct bench_row *row; /* bench-target.c's */
};

#define BENCH_TITLE 192
/* NAME/MODE, or NAME/MODE: STEP. Returns title, BENCH_TITLE bytes. */
char *bench_target_title(const struct bench_target *t, char *title);

/* ---- what has come of it --------------------------------------------------------- */

enum { BENCH_P50, BENCH_P90, BENCH_P99, BENCH_P999, BENCH_MAX, BENCH_QUANTILES };
extern const char *const bench_quantile_names[BENCH_QUANTILES]; /* "p50", "p90", ..., "max" */

struct bench_sample {
	bool there;        /* false: not measured, and all else is 0 */
	bool steady;       /* the halves of the time had like rates */
	double rate;       /* requests a second */
	double server_cpu; /* us a request; NAN: unknown */
	double client_cpu;
	double busy;                     /* of all processors' time, by whomever: 0 to 1 */
	double latency[BENCH_QUANTILES]; /* us */
};

/* A pair that is not measured, or not in all repeats, though the target can be. */
struct bench_failure {
	unsigned load, target;
	char *why;
};

struct bench_fact {
	char *name; /* "kernel" */
	char *value;
};

struct bench_result {
	char *table;              /* "osync", "matrix", ...; "own": rows of one's own */
	char *command;            /* line of this run */
	struct bench_fact *facts; /* of the machine and the disk */
	unsigned fact_count;
	struct bench_target *targets;
	unsigned target_count;
	struct bench_load *loads;
	unsigned load_count;
	struct bench_failure *failures;
	unsigned failure_count;
	unsigned repeats;
	double seconds; /* of each measurement */
	uint64_t size;  /* of the image, bytes; 0: only URIs */
	uint64_t seed;
	bool interrupted;             /* by Ctrl-C: samples are missing */
	struct bench_sample *samples; /* [load][target][repeat] */
};

static inline struct bench_sample *
bench_sample(const struct bench_result *r, unsigned load, unsigned target, unsigned repeat)
{
	return &r->samples[(load * r->target_count + target) * r->repeats + repeat];
}

/* Remembers why; -ENOMEM: not. */
int bench_failed(struct bench_result *r, unsigned load, unsigned target, const char *why);
/* NULL: nothing is known to have gone wrong. */
const char *bench_failure(const struct bench_result *r, unsigned load, unsigned target);
/* Whether there is a sample of the pair at all. */
bool bench_measured(const struct bench_result *r, unsigned load, unsigned target);
void bench_result_free(struct bench_result *r); /* with all it points to, by free() */

/* ---- telling it ------------------------------------------------------------------ */

/* width: columns of the terminal; 0: no terminal */
void bench_table(const struct bench_result *r, FILE *to, unsigned width);
int bench_json_write(const struct bench_result *r, const char *path, struct pl_error *err);
struct bench_result *bench_json_read(const char *path, struct pl_error *err); /* NULL: failed */
int bench_html_write(const struct bench_result *r, const char *path, struct pl_error *err);

#endif
