/*
 * bench-load.h - one measurement: a load on a target, for a while.
 *
 * It runs in a process of its own, which is what the client's CPU time is told of, and which a
 * server that breaks the connection ends. Each job is a thread. An engine carries its requests
 * to the target and back; the job chooses them, and counts and times the answers.
 */
#ifndef BENCH_LOAD_H
#define BENCH_LOAD_H

#include "bench.h"
#include "conn.h"

#include <signal.h>
#include <sys/types.h>

struct bench_where {
	const char *address;     /* as conn_open() takes it; or NULL: the file at path */
	const char *export_name; /* of NBD */
	const char *path;
	bool direct;    /* that file: past the page cache */
	uint64_t limit; /* bytes: nothing behind them is asked for */
	pid_t server;   /* the process group whose CPU time is told; 0: unknown */
};

/*
 * Measures for so long, after a quarter of that for warm-up. Fills *sample. Errors: -EINTR, where
 * *stop was set meanwhile; -EIO, and the sentence is what the client says.
 */
int bench_load_run(const struct bench_where *where, const struct bench_load *l, double seconds,
		   uint64_t seed, const volatile sig_atomic_t *stop, struct bench_sample *sample,
		   struct pl_error *err);

/* Of all processors, since the machine was started: busy, and in all. */
void bench_ticks(double *busy, double *total);

/* ---- for engines: what fails ends the process, with a sentence on standard error ------ */

struct bench_job;

struct bench_engine {
	/* Sets job->size, can_fua and can_flush, and job->engine_state to what close() frees. */
	void (*open)(struct bench_job *job, const struct bench_where *where);
	/* length is 0 for a FLUSH. It may wait for the next turn. */
	void (*issue)(struct bench_job *job, unsigned slot, enum conn_op op, uint64_t offset,
		      uint32_t length);
	/* Waits for answers and tells them all by bench_answered(), which issues anew. */
	void (*turn)(struct bench_job *job);
	void (*close)(struct bench_job *job);
};
extern const struct bench_engine bench_conn /* bench-load.c */, bench_raw /* bench-raw.c */;

struct bench_job {
	const struct bench_load *load;
	void *engine_state;
	uint64_t size; /* bytes */
	bool can_fua, can_flush;
	uint8_t *payload; /* a block, aligned to a page: what all writes write */
};

void bench_answered(struct bench_job *job, unsigned slot, const char *error);

#endif
