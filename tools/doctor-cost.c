/*
 * doctor-cost.c - what a FUA write costs: native and with a shared flush, one at a time and many,
 * through the core, on a file beside the image that nobody else ever sees.
 */
#include "doctor-path.h"
#include "stats.h"

#include <errno.h>
#include <fcntl.h>
#include <gsl/gsl_sort.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/uio.h>
#include <unistd.h>

#define SIZE    (16u << 20) /* bytes of the file; all of it is written first */
#define BLOCK   4096u
#define DEEP    16                  /* writes at once */
#define TIME_NS UINT64_C(160000000) /* of each measurement */
#define ROUNDS  3                   /* of all four, in turn; the median is told */

#define SLOW_US 5000
#define FREE_US 15
#define FASTER  1.3 /* times */

/* ---- the file -------------------------------------------------------------------- */

static int
write_all(int fd)
{
	char *block = calloc(1, 1 << 20);
	int error = block != NULL ? 0 : -ENOMEM;

	for (unsigned at = 0; at < SIZE && error == 0; at += 1 << 20) {
		ssize_t n = pwrite(fd, block, 1 << 20, at);

		if (n != 1 << 20)
			error = n == -1 ? -errno : -ENOSPC;
	}
	free(block);
	if (error == 0 && fsync(fd) == -1)
		error = -errno;
	return error;
}

/* Some file systems have no files without a name. */
static int
open_nameless(const char *folder)
{
	int fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	char *name;

	if (fd != -1 || (errno != EOPNOTSUPP && errno != EISDIR))
		return fd != -1 ? fd : -errno;
	if (asprintf(&name, "%s/.platter-doctor-XXXXXX", folder) == -1)
		return -ENOMEM;
	fd = mkostemp(name, O_CLOEXEC);
	if (fd == -1)
		fd = -errno;
	else
		unlink(name);
	free(name);
	return fd;
}

/* Nothing is left of it whatever happens; *name is by what it is opened again. Returns its
 * descriptor. */
static int
scratch_new(const char *folder, char *name, size_t size)
{
	int fd = open_nameless(folder), error;

	if (fd < 0)
		return fd;
	error = write_all(fd);
	if (error != 0) {
		close(fd);
		return error;
	}
	snprintf(name, size, "/proc/self/fd/%d", fd);
	return fd;
}

/* ---- writes ---------------------------------------------------------------------- */

struct writer {
	struct pl_channel *channel;
	struct pl_loop *loop;
	uint64_t end, done;
	unsigned in_flight;
	int error;
	uint32_t random;
	char *data;
	struct one {
		struct pl_request req;
		struct iovec iov;
	} all[DEEP];
};

static void write_on(struct pl_request *req, int error);

static void
write_one(struct writer *w, struct one *one)
{
	w->random = w->random * 1664525 + 1013904223; /* any order will do */
	one->iov = (struct iovec){ w->data, BLOCK };
	one->req = (struct pl_request){ .op = PL_WRITE,
					.flags = PL_FUA,
					.offset = (w->random >> 8) % (SIZE / BLOCK) * BLOCK,
					.length = BLOCK,
					.iov = &one->iov,
					.iovcnt = 1,
					.on_done = write_on,
					.user = w };
	w->in_flight++;
	pl_request_submit(w->channel, &one->req);
}

static void
write_on(struct pl_request *req, int error)
{
	struct writer *w = req->user;

	w->in_flight--;
	w->done += error == 0;
	if (error != 0)
		w->error = error;
	if (w->error == 0 && stats_now() < w->end)
		write_one(w, (struct one *)req);
	else if (w->in_flight == 0)
		pl_loop_stop(w->loop);
}

/* Writes a second, or a negative errno. */
static double
rate(struct pl_export *ex, unsigned depth)
{
	struct writer *w = calloc(1, sizeof(*w));
	struct pl_error err;
	uint64_t began;
	double result = 0;
	int error = w != NULL ? pl_loop_new(&w->loop, &err) : -ENOMEM;

	if (error == 0)
		error = pl_channel_open(ex, w->loop, &w->channel, &err);
	if (error == 0 && posix_memalign((void **)&w->data, BLOCK, BLOCK) != 0)
		error = -ENOMEM;
	if (error == 0) {
		memset(w->data, 1, BLOCK);
		began = stats_now();
		w->end = began + TIME_NS;
		for (unsigned i = 0; i < depth; i++)
			write_one(w, &w->all[i]);
		pl_loop_run(w->loop);
		error = w->error;
		result = (double)w->done * 1e9 / (double)(stats_now() - began);
	}
	if (w != NULL) {
		free(w->data);
		if (w->channel != NULL)
			pl_channel_close(w->channel);
		if (w->loop != NULL)
			pl_loop_free(w->loop);
		free(w);
	}
	return error == 0 ? result : error;
}

/* ---- told ------------------------------------------------------------------------ */

enum { NATIVE, COMMIT, WAYS };
enum { ONE, MANY, DEPTHS };
static const unsigned depths[DEPTHS] = { 1, DEEP };

/* Returns the median of rates, or 0 where there is none. */
static double
tell_rates(struct doctor_report *r, const char *name, unsigned depth, double *rates)
{
	double median;

	gsl_sort(rates, 1, ROUNDS);
	median = rates[ROUNDS / 2];
	if (rates[0] < 0) {
		doctor_fact(r, "cost", name, "failed: %s", strerror((int)-rates[0]));
		return 0;
	}
	doctor_fact(r, "cost", name, "%.0f a second, %.0f us each", median, 1e6 / median * depth);
	return median;
}

/* Every export that is open, in turn, so that what else the machine does falls on all. */
static void
measure(struct pl_export *const *exports, double rates[WAYS][DEPTHS][ROUNDS])
{
	for (unsigned round = 0; round < ROUNDS; round++) {
		for (unsigned way = 0; way < WAYS; way++) {
			for (unsigned d = 0; d < DEPTHS && exports[way] != NULL; d++)
				rates[way][d][round] = rate(exports[way], depths[d]);
		}
	}
}

unsigned
path_cost(struct doctor_report *r, const char *folder)
{
	static const char *const names[WAYS][DEPTHS] = {
		[NATIVE] = { "native, one", "native, 16 at once" },
		[COMMIT] = { "flush, one", "flush, 16 at once" },
	};
	static const char *const fua[WAYS] = { "native", "commit" };
	static char zero;
	const struct iovec byte = { &zero, 1 };
	double rates[WAYS][DEPTHS][ROUNDS] = { 0 }, told[WAYS][DEPTHS] = { 0 }, best;
	struct pl_export *exports[WAYS] = { NULL };
	char name[64];
	unsigned traits = 0;
	int fd = scratch_new(folder, name, sizeof(name));

	if (fd < 0) {
		doctor_fact(r, "cost", "not measured", "no file of our own in %s: %s", folder,
			    strerror(-fd));
		return fd == -ENOSPC || fd == -EDQUOT ? NO_ROOM : NO_FILE;
	}
	doctor_fact(r, "cost", "RWF_DSYNC", "%s",
		    pwritev2(fd, &byte, 1, 0, RWF_DSYNC) == 1 ? "yes" : strerror(errno));
	for (unsigned way = 0; way < WAYS; way++) {
		struct pl_error err;

		if (path_open(name, fua[way], "off", &exports[way], &err) != 0) {
			exports[way] = NULL;
			doctor_fact(r, "cost", names[way][ONE], "not possible: %s", err.text);
		}
	}
	measure(exports, rates);
	for (unsigned way = 0; way < WAYS; way++) {
		if (exports[way] == NULL)
			continue;
		for (unsigned d = 0; d < DEPTHS; d++)
			told[way][d] = tell_rates(r, names[way][d], depths[d], rates[way][d]);
		pl_export_close(exports[way]);
	}
	close(fd);
	best = told[NATIVE][ONE] > told[COMMIT][ONE] ? told[NATIVE][ONE] : told[COMMIT][ONE];
	if (best > 0 && best < 1e6 / SLOW_US)
		traits |= FUA_SLOW;
	if (best > 1e6 / FREE_US)
		traits |= FUA_FREE;
	if (told[COMMIT][MANY] > 0 && told[NATIVE][MANY] > FASTER * told[COMMIT][MANY])
		traits |= NATIVE_FASTER;
	return traits;
}
