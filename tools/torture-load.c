#include "torture-load.h"

#include "torture-stamp.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define AREA (64u << 10)

/* What is done, and how often. */
static const struct {
	enum torture_kind kind;
	bool fua;
	unsigned weight, needs;
} mix[] = {
	{ TORTURE_WRITE, false, 36, 0 },        { TORTURE_WRITE, true, 30, CAN_FUA },
	{ TORTURE_ZERO, false, 2, CAN_ZERO },   { TORTURE_ZERO, true, 2, CAN_ZERO | CAN_FUA_ZERO },
	{ TORTURE_TRIM, false, 1, CAN_TRIM },   { TORTURE_TRIM, true, 1, CAN_TRIM | CAN_FUA_ZERO },
	{ TORTURE_FLUSH, false, 8, CAN_FLUSH },
};
#define KINDS (sizeof mix / sizeof *mix)

/* A FLUSH makes good what a FUA write before it did not do. So of this many operations, one
 * stretch in four has any, and a cut in the others tries FUA alone. */
#define STRETCH 1024

struct slot {
	struct torture_op op;
	struct worker *worker;
	unsigned number;
	bool busy;
	uint64_t random;
	uint64_t seq;
	uint64_t covers;     /* of a FLUSH: records */
	uint64_t area, fill; /* the area that is being filled, up to there */
};

struct worker {
	struct load *load;
	struct torture_conn *conn;
	pthread_t thread;
	struct slot *slots;
	unsigned busy;
	unsigned can;
	time_t moved; /* when something was done last */
};

struct load {
	struct load_plan plan;
	uint64_t area, areas, shift;
	unsigned slots;
	struct worker *workers;
	unsigned running;
	atomic_uint_fast64_t seq, intents, operations, durable, bytes;
	atomic_uint filled;
	atomic_bool stop;
	pthread_mutex_t lock; /* of how it has ended */
	int error;
	char why[300];
};

/* The first that says why is right: what others see comes of it. */
static void PL_PRINTF(3, 4) end(struct load *l, int error, const char *fmt, ...)
{
	va_list args;

	pthread_mutex_lock(&l->lock);
	if (l->error == 0) {
		va_start(args, fmt);
		vsnprintf(l->why, sizeof l->why, fmt, args);
		va_end(args);
		l->error = error;
	}
	pthread_mutex_unlock(&l->lock);
	l->stop = true;
}

/* ---- what to do next ------------------------------------------------------------- */

/* splitmix64; below `limit` */
static uint64_t
random_below(struct slot *s, uint64_t limit)
{
	uint64_t z = s->random += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return (z ^ z >> 31) % limit;
}

static uint64_t
area_start(const struct load *l, uint64_t area)
{
	if (area == 0)
		return l->plan.offset;
	return area == l->areas ? l->plan.offset + l->plan.length
				: l->plan.offset + area * l->area + l->shift;
}

/* In the order of the range. Returns false when all areas of this slot are full. */
static bool
choose_fill(struct slot *s)
{
	struct load *l = s->worker->load;
	uint64_t start;

	if (s->area >= l->areas)
		return false;
	start = area_start(l, s->area) + s->fill;
	s->op.kind = TORTURE_WRITE;
	s->op.fua = false;
	s->op.offset = start;
	s->op.length = area_start(l, s->area + 1) - start;
	if (s->op.length > AREA)
		s->op.length = AREA;
	s->fill += s->op.length;
	if (start + s->op.length == area_start(l, s->area + 1)) {
		s->area += l->slots;
		s->fill = 0;
		if (s->area >= l->areas)
			l->filled++;
	}
	return true;
}

static void
choose_kind(struct slot *s)
{
	struct load *l = s->worker->load;
	bool flushes = (s->worker->can & CAN_FUA) == 0 || l->seq / STRETCH % 4 == 0;
	unsigned can = s->worker->can & ~(flushes ? 0 : CAN_FLUSH), sum = 0, i;
	uint64_t chosen;

	for (i = 0; i < KINDS; i++)
		sum += (mix[i].needs & ~can) == 0 ? mix[i].weight : 0;
	chosen = random_below(s, sum);
	for (i = 0; i < KINDS; i++) {
		unsigned weight = (mix[i].needs & ~can) == 0 ? mix[i].weight : 0;

		if (chosen < weight)
			break;
		chosen -= weight;
	}
	s->op.kind = mix[i].kind;
	s->op.fua = mix[i].fua;
}

/* Somewhere in an area of this slot, most often short. */
static void
choose_range(struct slot *s)
{
	struct load *l = s->worker->load;
	uint64_t mine = (l->areas - s->number + l->slots - 1) / l->slots;
	uint64_t area = s->number + random_below(s, mine) * l->slots;
	bool whole = s->op.kind != TORTURE_WRITE || random_below(s, 4) > 0;
	uint64_t unit = whole ? l->plan.info.unit : l->plan.info.align;
	uint64_t first = (area_start(l, area) + unit - 1) / unit,
		 last = area_start(l, area + 1) / unit;
	uint64_t at = random_below(s, last - first), most = last - first - at;
	uint64_t length = 1 + random_below(s, 1u << random_below(s, 8));

	if (s->op.kind == TORTURE_WRITE && most > AREA / unit)
		most = AREA / unit;
	s->op.offset = (first + at) * unit;
	s->op.length = (length < most ? length : most) * unit;
}

/* ---- one operation --------------------------------------------------------------- */

static bool
log_record(struct load *l, struct record *r)
{
	int error = journal_append(l->plan.journal, r);

	if (error == 0 && r->kind == RECORD_INTENT)
		error = journal_settle(l->plan.journal, r->number);
	if (error != 0)
		end(l, -EIO, "the journal: %s", strerror(-error));
	return error == 0;
}

static struct record
record_of(const struct slot *s, enum record_kind kind)
{
	const struct load *l = s->worker->load;
	bool durable = s->op.fua || (l->plan.info.can & CAN_AT_ONCE) != 0;

	return (struct record){
		.kind = kind,
		.what = s->op.kind,
		.flags = durable ? RECORD_FUA : 0,
		.seq = s->seq,
		.offset = s->op.offset,
		.length = s->op.length,
		.ref = s->covers,
		.issued = l->seq,
	};
}

static bool
is_refusal(const struct torture_op *op, int error)
{
	return (op->kind == TORTURE_ZERO || op->kind == TORTURE_TRIM) &&
	       (error == -EOPNOTSUPP || error == -EINVAL);
}

static void
op_done(struct torture_op *op, int error)
{
	struct slot *s = (struct slot *)op;
	struct worker *w = s->worker;
	struct load *l = w->load;

	s->busy = false;
	w->busy--;
	w->moved = time(NULL);
	if (is_refusal(op, error)) {
		w->can &= ~(op->kind == TORTURE_ZERO ? CAN_ZERO : CAN_TRIM);
	} else if (error != 0 && op->kind == TORTURE_FLUSH) {
		end(l, -EPIPE, "FLUSH: %s", strerror(-error));
	} else if (error != 0) {
		end(l, -EPIPE, "%s%s at %llu: %s", torture_kind_name(op->kind),
		    op->fua ? " with FUA" : "", (unsigned long long)op->offset, strerror(-error));
	} else {
		struct record r = record_of(s, RECORD_ACK);

		log_record(l, &r);
		l->operations++;
		l->durable += op->kind == TORTURE_FLUSH || (r.flags & RECORD_FUA) != 0;
		l->bytes += op->length;
	}
}

static int
submit(struct slot *s)
{
	struct worker *w = s->worker;
	struct load *l = w->load;

	s->busy = true;
	w->busy++;
	if (w->busy == 1)
		w->moved = time(NULL);
	return l->plan.transport->submit(w->conn, &s->op);
}

static int
begin(struct slot *s)
{
	struct load *l = s->worker->load;

	if (!choose_fill(s)) {
		choose_kind(s);
		s->op.offset = s->op.length = 0;
		if (s->op.kind != TORTURE_FLUSH)
			choose_range(s);
	}
	s->covers = s->op.kind == TORTURE_FLUSH ? journal_count(l->plan.journal) : 0;
	s->seq = ++l->seq;
	if (s->op.kind == TORTURE_WRITE) {
		struct stamp stamp = {
			.run = l->plan.run,
			.seq = s->seq,
			.first = s->op.offset / CELL,
			.count = (uint32_t)(s->op.length / CELL),
			.intents = l->intents,
		};

		stamp_fill(s->op.data, &stamp);
	} else if (s->op.kind != TORTURE_FLUSH) {
		struct record r = record_of(s, RECORD_INTENT);

		if (!log_record(l, &r))
			return 0;
		l->intents++;
	}
	return submit(s);
}

/* ---- a connection ---------------------------------------------------------------- */

static void
lost(struct worker *w)
{
	end(w->load, -EPIPE, "a connection is lost");
}

static void *
work(void *arg)
{
	struct worker *w = arg;
	struct load *l = w->load;
	int error = 0;

	while (error == 0 && (!l->stop || w->busy > 0)) {
		for (unsigned i = 0; i < l->plan.depth && !l->stop && error == 0; i++) {
			if (!w->slots[i].busy)
				error = begin(&w->slots[i]);
		}
		if (error == 0)
			error = l->plan.transport->wait(w->conn, 100);
		if (error == 0 && w->busy > 0 && time(NULL) - w->moved > l->plan.timeout_s) {
			end(l, -EPIPE, "no answer for %u s", l->plan.timeout_s);
			return NULL;
		}
	}
	if (error != 0)
		lost(w);
	return NULL;
}

/* ---- all of them ----------------------------------------------------------------- */

static void
divide(struct load *l)
{
	const struct torture_info *info = &l->plan.info;
	unsigned slots = l->plan.connections * l->plan.depth;

	l->area = info->unit * 4 > AREA ? info->unit * 4 : AREA;
	while (l->plan.length / l->area < slots && l->area > 8192 && l->area > info->unit * 4)
		l->area /= 2;
	l->areas = l->plan.length / l->area;
	if (l->areas == 0)
		l->areas = 1;
	/* Whoever has no area has nothing to do. */
	if (l->areas < slots)
		l->plan.depth = (unsigned)(l->areas / l->plan.connections);
	if (l->plan.depth == 0) {
		l->plan.connections = (unsigned)l->areas;
		l->plan.depth = 1;
	}
	l->slots = l->plan.connections * l->plan.depth;
	l->shift = info->align == CELL ? 3 * CELL : 0;
}

static int
worker_open(struct load *l, unsigned number, struct pl_error *err)
{
	struct worker *w = &l->workers[number];
	struct torture_info info;
	int error = 0;

	w->load = l;
	w->can = l->plan.info.can;
	w->slots = calloc(l->plan.depth, sizeof *w->slots);
	if (w->slots == NULL)
		return pl_error_set(err, -ENOMEM, "connection");
	for (unsigned i = 0; i < l->plan.depth; i++) {
		struct slot *s = &w->slots[i];

		s->op.on_done = op_done;
		s->worker = w;
		s->number = number * l->plan.depth + i;
		s->area = s->number;
		s->random = l->plan.run + s->number;
		if (posix_memalign(&s->op.data, 65536, AREA) != 0)
			return pl_error_set(err, -ENOMEM, "connection");
	}
	if (number > 0)
		error = l->plan.transport->open(l->plan.target, OPEN_MORE, l->plan.timeout_s,
						&w->conn, &info, err);
	if (error == 0 && number > 0 && info.size != l->plan.info.size)
		error = pl_error_say(err, -EINVAL, "connections are told different sizes");
	return error;
}

static void
load_free(struct load *l)
{
	for (unsigned i = 0; l->workers != NULL && i < l->plan.connections; i++) {
		struct worker *w = &l->workers[i];

		/* What is still under way may come back from within this. */
		if (w->conn != NULL)
			l->plan.transport->close(w->conn);
		for (unsigned k = 0; w->slots != NULL && k < l->plan.depth; k++)
			free(w->slots[k].op.data);
		free(w->slots);
	}
	pthread_mutex_destroy(&l->lock);
	free(l->workers);
	free(l);
}

static void
join(struct load *l)
{
	l->stop = true;
	for (; l->running > 0; l->running--)
		pthread_join(l->workers[l->running - 1].thread, NULL);
}

int
load_start(const struct load_plan *plan, struct load **out, struct pl_error *err)
{
	struct load *l = calloc(1, sizeof *l);
	int error = 0;

	if (l == NULL) {
		plan->transport->close(plan->first);
		return pl_error_set(err, -ENOMEM, "connections");
	}
	l->plan = *plan;
	pthread_mutex_init(&l->lock, NULL);
	divide(l);
	l->workers = calloc(l->plan.connections, sizeof *l->workers);
	if (l->workers == NULL) {
		plan->transport->close(plan->first);
		error = pl_error_set(err, -ENOMEM, "connections");
	} else {
		l->workers[0].conn = plan->first;
	}
	for (unsigned i = 0; error == 0 && i < l->plan.connections; i++)
		error = worker_open(l, i, err);
	for (; error == 0 && l->running < l->plan.connections; l->running += error == 0) {
		struct worker *w = &l->workers[l->running];

		error = -pthread_create(&w->thread, NULL, work, w);
		if (error != 0)
			pl_error_set(err, error, "thread");
	}
	if (error != 0) {
		join(l);
		load_free(l);
		return error;
	}
	*out = l;
	return 0;
}

struct load_counts
load_counts(struct load *l)
{
	return (struct load_counts){
		.operations = l->operations,
		.durable = l->durable,
		.bytes = l->bytes,
		.filled = l->filled == l->slots,
	};
}

bool
load_has_ended(struct load *l)
{
	return l->stop;
}

/* Nothing else is under way. */
static void
flush_all(struct load *l)
{
	struct worker *w = &l->workers[0];
	struct slot *s = &w->slots[0];
	int error;

	s->op.kind = TORTURE_FLUSH;
	s->op.fua = false;
	s->op.offset = s->op.length = 0;
	s->covers = journal_count(l->plan.journal);
	s->seq = ++l->seq;
	error = submit(s);
	while (error == 0 && w->busy > 0 && l->error == 0) {
		error = l->plan.transport->wait(w->conn, 100);
		if (time(NULL) - w->moved > l->plan.timeout_s)
			end(l, -EPIPE, "FLUSH: no answer for %u s", l->plan.timeout_s);
	}
	if (error != 0)
		lost(w);
}

int
load_stop(struct load *l, struct pl_error *err)
{
	struct record r = { .kind = RECORD_END };
	int error;

	join(l);
	if (l->error == 0 && (l->plan.info.can & CAN_FLUSH) != 0)
		flush_all(l);
	r.ref = l->error == 0 ? END_DONE : END_GONE;
	r.issued = l->seq;
	if (log_record(l, &r) && journal_settle(l->plan.journal, r.number) != 0)
		end(l, -EIO, "the journal cannot be made stable");
	error = l->error != 0 ? pl_error_say(err, l->error, "%s", l->why) : 0;
	load_free(l);
	return error;
}
