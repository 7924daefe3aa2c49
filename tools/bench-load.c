#include "bench-load.h"

#include <dirent.h>
#include <err.h>
#include <errno.h>
#include <math.h>
#include <poll.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

/* ---- latencies: 32 steps for each power of two of nanoseconds -------------------- */

#define STEPS 32

struct histogram {
	uint64_t count, max, in[64 * STEPS];
};

static void
histogram_add(struct histogram *h, uint64_t ns)
{
	unsigned power = 63 - (unsigned)__builtin_clzll(ns | STEPS);

	h->in[power * STEPS + (ns >> (power - 5)) % STEPS]++;
	h->count++;
	if (ns > h->max)
		h->max = ns;
}

/* In microseconds: the middle of the step that fraction of all lie below. */
static double
histogram_at(const struct histogram *h, double fraction)
{
	uint64_t below = (uint64_t)((double)h->count * fraction);

	for (unsigned i = 5 * STEPS; i < 64 * STEPS; i++) {
		if (h->in[i] > below) {
			double step = (double)(1ull << (i / STEPS - 5));

			return fmin((STEPS + i % STEPS + 0.5) * step, (double)h->max) / 1000;
		}
		below -= h->in[i];
	}
	return (double)h->max / 1000;
}

static void
histogram_merge(struct histogram *to, const struct histogram *from)
{
	to->count += from->count;
	if (from->max > to->max)
		to->max = from->max;
	for (unsigned i = 0; i < 64 * STEPS; i++)
		to->in[i] += from->in[i];
}

/* ---- a job ----------------------------------------------------------------------- */

enum phase { WARM_UP, FIRST_HALF, SECOND_HALF, STOP, PHASES };
static int phase;
static bool some_answered; /* in the halves */

/* A job with what engines need not see. */
struct whole_job {
	struct bench_job job;
	const struct bench_engine *engine;
	pthread_t thread;
	uint64_t first, blocks; /* its part of the target, in blocks */
	uint64_t next, random_state;
	unsigned in_flight;
	enum conn_op ops[CONN_DEPTH];
	uint64_t since[CONN_DEPTH]; /* when that request, or the write before it, was issued */
	uint64_t counts[PHASES];
	struct histogram latency;
};

static uint64_t
now(clockid_t clock)
{
	struct timespec ts;

	if (clock_gettime(clock, &ts) == -1)
		return 0;
	return (uint64_t)ts.tv_sec * 1000000000 + (uint64_t)ts.tv_nsec;
}

static uint64_t
random_number(struct whole_job *p)
{
	p->random_state ^= p->random_state << 13;
	p->random_state ^= p->random_state >> 7;
	p->random_state ^= p->random_state << 17;
	return p->random_state;
}

static bool
is_random(const struct bench_load *l)
{
	return l->op != BENCH_READ && l->op != BENCH_WRITE;
}

static enum conn_op
next_op(struct whole_job *p)
{
	const struct bench_load *l = p->job.load;

	if (l->op == BENCH_MIXED)
		return random_number(p) % 10 < 7 ? CONN_READ : CONN_WRITE;
	return bench_load_writes(l) ? CONN_WRITE : CONN_READ;
}

static void
issue_next(struct whole_job *p, unsigned slot, uint64_t time)
{
	const struct bench_load *l = p->job.load;
	uint64_t block = is_random(l) ? random_number(p) : p->next++;

	p->ops[slot] = next_op(p);
	p->since[slot] = time;
	p->in_flight++;
	p->engine->issue(&p->job, slot, p->ops[slot], (p->first + block % p->blocks) * l->block,
			 l->block);
}

void
bench_answered(struct bench_job *job, unsigned slot, const char *error)
{
	struct whole_job *p = (struct whole_job *)job;
	int at = __atomic_load_n(&phase, __ATOMIC_RELAXED);
	uint64_t time = now(CLOCK_MONOTONIC);

	if (error != NULL)
		errx(1, "a request (%s) was answered with %s",
		     p->ops[slot] == CONN_READ    ? "read"
		     : p->ops[slot] == CONN_WRITE ? "write"
						  : "flush",
		     error);
	p->in_flight--;
	if (job->load->sync == BENCH_FLUSH && p->ops[slot] == CONN_WRITE) {
		p->ops[slot] = CONN_FLUSH;
		p->in_flight++;
		p->engine->issue(job, slot, CONN_FLUSH, 0, 0);
		return;
	}
	p->counts[at]++;
	if (at == FIRST_HALF || at == SECOND_HALF) {
		histogram_add(&p->latency, time - p->since[slot]);
		__atomic_store_n(&some_answered, true, __ATOMIC_RELAXED);
	}
	if (at != STOP)
		issue_next(p, slot, time);
}

/* Random offsets fall anywhere; in sequence each job has a part of its own. */
static void
job_open(struct whole_job *p, const struct bench_where *where, const struct bench_load *l,
	 uint8_t *payload, unsigned number, uint64_t seed)
{
	uint64_t blocks;

	p->job = (struct bench_job){ .load = l, .payload = payload };
	p->engine = where->address != NULL ? &bench_conn : &bench_raw;
	p->engine->open(&p->job, where);
	if (l->sync == BENCH_FUA && !p->job.can_fua)
		errx(1, "the server does not offer FUA");
	if (l->sync == BENCH_FLUSH && !p->job.can_flush)
		errx(1, "the server does not offer FLUSH");
	blocks = (p->job.size < where->limit ? p->job.size : where->limit) / l->block;
	p->blocks = is_random(l) ? blocks : blocks / l->jobs;
	p->first = is_random(l) ? 0 : number * p->blocks;
	if (p->blocks == 0)
		errx(1, "%llu bytes are too small for this load", (unsigned long long)p->job.size);
	p->random_state = (seed + number) * 0x9e3779b97f4a7c15 | 1;
}

static void *
job_run(void *arg)
{
	struct whole_job *p = arg;

	for (unsigned slot = 0; slot < p->job.load->depth; slot++)
		issue_next(p, slot, now(CLOCK_MONOTONIC));
	while (p->in_flight > 0)
		p->engine->turn(&p->job);
	p->engine->close(&p->job);
	return NULL;
}

/* ---- the engine for servers ------------------------------------------------------ */

struct carrier {
	struct conn conn;
	struct bench_job *job;
};

static void
carrier_replied(struct conn *c, struct conn_request *r, const char *error)
{
	bench_answered(((struct carrier *)c)->job, (unsigned)(r - c->requests), error);
}

static void
carrier_open(struct bench_job *job, const struct bench_where *where)
{
	struct carrier *c = calloc(1, sizeof(*c));

	if (c == NULL)
		errx(1, "out of memory");
	c->job = job;
	job->engine_state = c;
	conn_open(&c->conn, where->address, where->export_name, carrier_replied);
	job->size = c->conn.size;
	job->can_fua = c->conn.can_fua;
	job->can_flush = c->conn.can_flush;
}

static void
carrier_issue(struct bench_job *job, unsigned slot, enum conn_op op, uint64_t offset,
	      uint32_t length)
{
	struct conn *c = job->engine_state;
	struct conn_request *r = &c->requests[slot];

	r->op = op;
	r->fua = op == CONN_WRITE && job->load->sync == BENCH_FUA;
	r->offset = offset;
	r->length = length;
	r->data = op == CONN_WRITE ? job->payload : NULL;
	conn_issue(c, slot);
}

static void
carrier_turn(struct bench_job *job)
{
	conn_turn(job->engine_state);
}

static void
carrier_close(struct bench_job *job)
{
	conn_close(job->engine_state);
	free(job->engine_state);
}

const struct bench_engine bench_conn = {
	.open = carrier_open,
	.issue = carrier_issue,
	.turn = carrier_turn,
	.close = carrier_close,
};

/* ---- CPU time -------------------------------------------------------------------- */

/* A server may be many processes: nbd-server has one for each connection. */
struct group {
	pid_t pids[256];
	unsigned count;
};

static void
group_find(struct group *g, pid_t group)
{
	DIR *proc = group != 0 ? opendir("/proc") : NULL;
	struct dirent *entry;

	while (proc != NULL && (entry = readdir(proc)) != NULL) {
		pid_t pid = (pid_t)atoi(entry->d_name);

		if (pid > 0 && getpgid(pid) == group && g->count < 256)
			g->pids[g->count++] = pid;
	}
	if (proc != NULL)
		closedir(proc);
}

static uint64_t
group_used(const struct group *g)
{
	uint64_t sum = 0;
	clockid_t clock;

	for (unsigned i = 0; i < g->count; i++) {
		if (clock_getcpuclockid(g->pids[i], &clock) == 0)
			sum += now(clock);
	}
	return sum;
}

struct reading {
	uint64_t time, client, server; /* nanoseconds */
	double busy, total;            /* of all processors, in ticks */
};

void
bench_ticks(double *busy, double *total)
{
	FILE *f = fopen("/proc/stat", "re");
	double user, nice, system, idle, wait, irq, soft, steal;

	*busy = *total = 0;
	if (f != NULL && fscanf(f, "cpu %lf %lf %lf %lf %lf %lf %lf %lf", &user, &nice, &system,
				&idle, &wait, &irq, &soft, &steal) == 8) {
		*busy = user + nice + system + irq + soft + steal;
		*total = *busy + idle + wait;
	}
	if (f != NULL)
		fclose(f);
}

static struct reading
take_reading(const struct group *g)
{
	struct reading r = { .time = now(CLOCK_MONOTONIC),
			     .client = now(CLOCK_PROCESS_CPUTIME_ID),
			     .server = group_used(g) };

	bench_ticks(&r.busy, &r.total);
	return r;
}

/* ---- measuring, in the child ----------------------------------------------------- */

static void
sleep_for(double seconds)
{
	struct timespec ts = { (time_t)seconds, (long)((seconds - (double)(time_t)seconds) * 1e9) };

	while (clock_nanosleep(CLOCK_MONOTONIC, 0, &ts, &ts) == EINTR)
		;
}

static void
enter(enum phase p)
{
	__atomic_store_n(&phase, p, __ATOMIC_RELAXED);
}

/* Alike, beside what two counts of the same differ by anyhow. */
static bool
are_alike(double a, double b)
{
	return fabs(a - b) <= 0.1 * (a + b) / 2 + 4 * sqrt(a + b);
}

static void
fill(struct bench_sample *s, const struct whole_job *jobs, const struct bench_load *l,
     const struct reading *from, const struct reading *to, bool server_known)
{
	static const double fractions[] = { [BENCH_P50] = 0.5,
					    [BENCH_P90] = 0.9,
					    [BENCH_P99] = 0.99,
					    [BENCH_P999] = 0.999,
					    [BENCH_MAX] = 1 };
	static struct histogram latency;
	double first = 0, second = 0, all;

	for (unsigned i = 0; i < l->jobs; i++) {
		histogram_merge(&latency, &jobs[i].latency);
		first += (double)jobs[i].counts[FIRST_HALF];
		second += (double)jobs[i].counts[SECOND_HALF];
	}
	all = first + second;
	if (all == 0)
		errx(1, "no request was answered in %g s", (double)(to->time - from->time) / 1e9);
	*s = (struct bench_sample){
		.there = true,
		.steady = are_alike(first, second),
		.rate = all * 1e9 / (double)(to->time - from->time),
		.server_cpu = server_known ? (double)(to->server - from->server) / 1e3 / all : NAN,
		.client_cpu = (double)(to->client - from->client) / 1e3 / all,
		.busy = to->total > from->total
				? (to->busy - from->busy) / (to->total - from->total)
				: 0,
	};
	for (unsigned q = 0; q < BENCH_QUANTILES; q++)
		s->latency[q] = histogram_at(&latency, fractions[q]);
}

#define LATE 10 /* seconds */

static void
measure(const struct bench_where *where, const struct bench_load *l, double seconds, uint64_t seed,
	struct bench_sample *sample)
{
	struct whole_job *jobs = calloc(l->jobs, sizeof(*jobs));
	struct group group = { .count = 0 };
	struct reading from, to;
	uint8_t *payload;

	if (jobs == NULL || posix_memalign((void **)&payload, 4096, l->block) != 0)
		errx(1, "out of memory");
	for (uint32_t i = 0; i < l->block; i++)
		payload[i] = (uint8_t)(random() >> 8);
	for (unsigned i = 0; i < l->jobs; i++)
		job_open(&jobs[i], where, l, payload, i, seed);
	for (unsigned i = 0; i < l->jobs; i++) {
		if (pthread_create(&jobs[i].thread, NULL, job_run, &jobs[i]) != 0)
			errx(1, "cannot make a thread");
	}
	sleep_for(seconds / 4);
	group_find(&group, where->server);
	from = take_reading(&group);
	enter(FIRST_HALF);
	sleep_for(seconds / 2);
	enter(SECOND_HALF);
	sleep_for(seconds / 2);
	/* One that has not answered once is given more time: it is slow, and says so then. */
	for (double late = 0; late < LATE && !__atomic_load_n(&some_answered, __ATOMIC_RELAXED);
	     late += seconds / 2)
		sleep_for(seconds / 2);
	enter(STOP);
	to = take_reading(&group);
	for (unsigned i = 0; i < l->jobs; i++)
		pthread_join(jobs[i].thread, NULL);
	fill(sample, jobs, l, &from, &to, group.count > 0);
	free(payload);
	free(jobs);
}

/* ---- the child, from without ----------------------------------------------------- */

/* What it said, without the name of the program. */
static int
told(int log, struct pl_error *err)
{
	char text[512];
	ssize_t n = pread(log, text, sizeof(text) - 1, 0);
	const char *from;

	text[n > 0 ? n : 0] = '\0';
	text[strcspn(text, "\n")] = '\0';
	pl_text_clean(text);
	from = strstr(text, ": ");
	return pl_error_say(err, -EIO, "%s", from != NULL ? from + 2 : "the client has crashed");
}

/* Until the sample is there, the child has ended or *stop. */
static int
wait_for(int fd, const volatile sig_atomic_t *stop, struct bench_sample *sample)
{
	struct pollfd p = { .fd = fd, .events = POLLIN };

	while (!*stop) {
		if (poll(&p, 1, 100) == 1)
			return read(fd, sample, sizeof(*sample)) == sizeof(*sample) ? 0 : -EIO;
	}
	return -EINTR;
}

int
bench_load_run(const struct bench_where *where, const struct bench_load *l, double seconds,
	       uint64_t seed, const volatile sig_atomic_t *stop, struct bench_sample *sample,
	       struct pl_error *err)
{
	int ends[2], log = memfd_create("bench", MFD_CLOEXEC), error;
	pid_t child;

	if (log == -1 || pipe(ends) == -1)
		return pl_error_set(err, -errno, "pipe");
	fflush(NULL);
	child = fork();
	if (child == 0) {
		signal(SIGINT, SIG_IGN); /* what is measured then, the parent decides */
		prctl(PR_SET_PDEATHSIG, SIGKILL);
		dup2(log, STDERR_FILENO);
		measure(where, l, seconds, seed, sample);
		exit(write(ends[1], sample, sizeof(*sample)) == sizeof(*sample) ? 0 : 1);
	}
	close(ends[1]);
	error = child == -1 ? pl_error_set(err, -errno, "fork") : wait_for(ends[0], stop, sample);
	if (child != -1) {
		if (error == -EINTR)
			kill(child, SIGKILL);
		waitpid(child, NULL, 0);
		if (error == -EIO)
			told(log, err);
	}
	close(ends[0]);
	close(log);
	return error;
}
