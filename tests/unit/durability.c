/*
 * durability.c - what was acknowledged as durable survives any power cut.
 * no valgrind
 * no second try
 *
 * The small tests show one promise each. The large ones run random workloads on a
 * volatile cache that loses power, and hold what is then on the medium against a
 * history of what was asked and answered when.
 */
#include "fixture.h"
#include "test.h"

#include <inttypes.h>
#include <limits.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static const char *const fua_kinds[] = { "powercut-fua=native", "powercut-fua=commit" };

#define for_each_fua_kind(fua) \
	for (const char *const *fua = fua_kinds; fua < fua_kinds + 2 && puts(*fua) >= 0; fua++)

/* ---- one promise each ------------------------------------------------------------ */

TEST(fua_write_survives_every_power_cut)
{
	for_each_loop_kind(kind)
	{
		for_each_fua_kind(fua)
		{
			struct fixture f;

			fixture_open(&f, kind, "driver=powercut", "over=memory", "size=1M", *fua);
			do_write(&f, 0, 4 * KiB, 0xaa, PL_FUA);
			do_write(&f, 4 * KiB, 4 * KiB, 0xbb, 0);
			do_write(&f, 10001, 777, 0xcc, PL_FUA);
			for_each_crash_image(&f, im)
			{
				assert_bytes(im, 0, 4 * KiB, 0xaa);
				assert_bytes(im, 10001, 777, 0xcc);
			}
			fixture_close(&f);
		}
	}
}

/* A flush leaves nothing to do; what comes next still has to be done. */
TEST(fua_directly_after_flush_is_durable)
{
	static const enum pl_op ops[] = { PL_WRITE, PL_ZERO, PL_TRIM };

	for_each_loop_kind(kind)
	{
		for_each_fua_kind(fua)
		{
			for (unsigned i = 0; i < 3; i++) {
				char data[4 * KiB] = { 0 };
				struct fixture f;

				fixture_open(&f, kind, "driver=powercut", "over=memory", "size=1M",
					     *fua);
				do_write(&f, 0, 4 * KiB, 0xaa, 0);
				do_flush(&f);
				assert_eq(try_request(&f, ops[i], PL_FUA, 0, 4 * KiB,
						      ops[i] == PL_WRITE ? data : NULL),
					  0);
				for_each_crash_image(&f, im) assert_bytes(im, 0, 4 * KiB, 0);
				fixture_close(&f);
			}
		}
	}
}

TEST(a_flush_covers_every_write_answered_before_it)
{
	for_each_loop_kind(kind)
	{
		for_each_fua_kind(fua)
		{
			struct fixture f, other;
			struct batch b;
			char *data = test_alloc(64 * KiB);

			memset(data, 0xaa, 64 * KiB);
			fixture_open(&f, kind, "driver=powercut", "over=memory", "size=1M", *fua);
			fixture_join(&other, RING, &f);
			batch_start(&b, &f, 17);
			for (unsigned i = 0; i < 16; i++)
				batch_submit(&b, PL_WRITE, 0, i * 4 * KiB, 4 * KiB,
					     data + i * 4 * KiB);
			batch_wait(&b, 16);
			do_zero(&other, 64 * KiB, 4 * KiB, 0);
			do_write(&other, 68 * KiB, 4 * KiB, 0xbb, 0);
			batch_submit(&b, PL_FLUSH, 0, 0, 0, NULL);
			batch_end(&b);
			do_write(&f, 0, 100, 0xcc, 0);
			for_each_crash_image(&f, im)
			{
				assert_bytes(im, 100, 64 * KiB - 100, 0xaa);
				assert_bytes(im, 64 * KiB, 4 * KiB, 0);
				assert_bytes(im, 68 * KiB, 4 * KiB, 0xbb);
			}
			free(data);
			fixture_close(&other);
			fixture_close(&f);
		}
	}
}

TEST(no_older_data_comes_back_over_what_is_durable)
{
	for_each_loop_kind(kind)
	{
		for_each_fua_kind(fua)
		{
			struct fixture f;

			fixture_open(&f, kind, "driver=powercut", "over=memory", "size=1M", *fua);
			do_write(&f, 0, 64 * KiB, 0x11, 0);
			do_zero(&f, 10000, 20000, 0);
			do_write(&f, 1000, 8 * KiB, 0x22, 0);
			do_trim(&f, 5000, 9000, 0);
			do_write(&f, 7777, 5555, 0xaa, PL_FUA);
			for_each_crash_image(&f, im) assert_bytes(im, 7777, 5555, 0xaa);
			do_write(&f, 40 * KiB, 4 * KiB, 0x33, 0);
			do_flush(&f);
			for_each_crash_image(&f, im)
			{
				assert_bytes(im, 7777, 5555, 0xaa);
				assert_bytes(im, 40 * KiB, 4 * KiB, 0x33);
			}
			fixture_close(&f);
		}
	}
}

/* A reader with FUA may rely on what it has seen. */
TEST(what_a_fua_read_returns_is_durable)
{
	for_each_loop_kind(kind)
	{
		for_each_fua_kind(fua)
		{
			struct fixture f;
			unsigned char data[4 * KiB];

			fixture_open(&f, kind, "driver=powercut", "over=memory", "size=1M", *fua);
			do_write(&f, 0, 4 * KiB, 0xaa, 0);
			assert_eq(try_read(&f, 0, 4 * KiB, data, PL_FUA), 0);
			assert_filled(data, 0xaa, 4 * KiB);
			for_each_crash_image(&f, im) assert_bytes(im, 0, 4 * KiB, 0xaa);
			fixture_close(&f);
		}
	}
}

/* ---- a history and what it allows ------------------------------------------------ */

#define NEVER UINT_MAX

/* When is counted in events: each submission and each answer is one. */
struct event {
	enum pl_op op;
	unsigned flags;
	uint64_t offset, length;
	unsigned tag;                 /* of what a WRITE wrote */
	unsigned submitted, answered; /* answered: NEVER, too, for an error */
};

#define EVENTS_MAX 256

struct history {
	bool lazy_trims; /* a TRIM may leave what there was, where it is not whole blocks */
	atomic_uint clock, count;
	struct event events[EVENTS_MAX];
};

static struct event *
history_add(struct history *h)
{
	unsigned i = atomic_fetch_add(&h->count, 1);

	return i < EVENTS_MAX ? &h->events[i] : NULL;
}

static bool
changes(const struct event *e)
{
	return e->op == PL_WRITE || e->op == PL_ZERO || e->op == PL_TRIM;
}

static bool
covers(const struct event *e, uint64_t offset)
{
	return offset >= e->offset && offset - e->offset < e->length;
}

/* Was e's byte at offset acknowledged as durable? */
static bool
is_durable(const struct history *h, const struct event *e, uint64_t offset)
{
	if (e->answered == NEVER)
		return false;
	if ((e->flags & PL_FUA) != 0)
		return true;
	for (unsigned i = 0; i < h->count; i++) {
		const struct event *f = &h->events[i];
		bool settles = f->op == PL_FLUSH || (f->op == PL_READ && covers(f, offset));

		if (settles && f->answered != NEVER && f->submitted > e->answered)
			return true;
	}
	return false;
}

/*
 * What may be at one offset: an event's data, unless something durable was asked for
 * after it had been answered. NULL is the disk as it was made.
 */
struct allowed {
	const struct event *event[EVENTS_MAX + 1];
	unsigned count;
};

static void
find_allowed(const struct history *h, uint64_t offset, struct allowed *a)
{
	const struct event *all[EVENTS_MAX + 1] = { NULL };
	bool durable[EVENTS_MAX + 1] = { false };
	unsigned count = 1;

	for (unsigned i = 0; i < h->count; i++) {
		if (changes(&h->events[i]) && covers(&h->events[i], offset)) {
			durable[count] = is_durable(h, &h->events[i], offset) &&
					 !(h->lazy_trims && h->events[i].op == PL_TRIM);
			all[count++] = &h->events[i];
		}
	}
	a->count = 0;
	for (unsigned i = 0; i < count; i++) {
		unsigned answered = all[i] == NULL ? 0 : all[i]->answered;
		bool gone = false;

		for (unsigned j = 1; j < count && !gone; j++)
			gone = durable[j] && all[j]->submitted > answered;
		if (!gone)
			a->event[a->count++] = all[i];
	}
}

static unsigned char
byte_of(const struct event *e, uint64_t offset)
{
	return e != NULL && e->op == PL_WRITE ? pattern_at(offset, e->tag) : 0;
}

static bool
is_allowed(const struct allowed *a, uint64_t offset, unsigned char byte)
{
	for (unsigned i = 0; i < a->count; i++) {
		if (byte_of(a->event[i], offset) == byte)
			return true;
	}
	return false;
}

static int
compare_offsets(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return (*x > *y) - (*x < *y);
}

/* Returns the first offset where the image has what it must not have, or size. */
static uint64_t
find_violation(const struct history *h, const unsigned char *image, uint64_t size)
{
	uint64_t edges[2 * EVENTS_MAX + 2];
	unsigned count = 0;

	edges[count++] = 0;
	edges[count++] = size;
	for (unsigned i = 0; i < h->count; i++) {
		edges[count++] = h->events[i].offset;
		edges[count++] = h->events[i].offset + h->events[i].length;
	}
	qsort(edges, count, sizeof *edges, compare_offsets);
	for (unsigned i = 1; i < count; i++) {
		struct allowed allowed;

		if (edges[i] == edges[i - 1])
			continue;
		find_allowed(h, edges[i - 1], &allowed);
		for (uint64_t at = edges[i - 1]; at < edges[i]; at++) {
			if (!is_allowed(&allowed, at, image[at]))
				return at;
		}
	}
	return size;
}

static void
print_history(const struct history *h, uint64_t offset)
{
	static const char *const names[PL_OPS] = { "read", "write", "flush", "zero", "trim" };
	struct allowed allowed;

	for (unsigned i = 0; i < h->count; i++) {
		const struct event *e = &h->events[i];

		if (e->op != PL_FLUSH && !covers(e, offset))
			continue;
		printf("%s%s [%" PRIu64 ", %" PRIu64 ") asked at %u, ", names[e->op],
		       e->flags & PL_FUA ? " FUA" : "", e->offset, e->offset + e->length,
		       e->submitted);
		if (e->answered == NEVER)
			printf("not answered");
		else
			printf("answered at %u", e->answered);
		if (changes(e))
			printf(", 0x%02x%s", byte_of(e, offset),
			       is_durable(h, e, offset) ? ", durable" : "");
		printf("\n");
	}
	find_allowed(h, offset, &allowed);
	printf("allowed:");
	for (unsigned i = 0; i < allowed.count; i++)
		printf(" 0x%02x", byte_of(allowed.event[i], offset));
	printf("\n");
}

/* ---- the workload ---------------------------------------------------------------- */

enum lie { NO_LIE, LIE_FUA_FLAG_LOST };

/* What all workers have in common, and the seed they work on now. */
struct workload {
	const struct fixture *f; /* the export is there, opened for this seed */
	uint64_t size, seed;
	enum lie lie;
	bool over;
	pthread_barrier_t barrier;
	struct history history;
};

#define DEPTH 4

struct slot {
	struct pl_request req;
	struct iovec iov;
	struct event *event;
	struct worker *worker;
	bool busy;
	unsigned char *data;
};

/* One that asks and waits: on a ring loop for several answers at once. */
struct worker {
	struct workload *load;
	enum loop_kind kind;
	unsigned index, depth, requests;
	uint64_t seed;
	pthread_t thread;
	struct pl_loop *loop;
	struct pl_channel *ch;
	bool failed, waiting;
	struct slot slots[DEPTH];
};

#define LENGTH_MAX (12 * KiB)

/* Many meet in few places: edges in the middle of each other and of blocks. */
static void
choose_range(struct worker *w, struct event *e)
{
	uint64_t unit = (uint64_t[]){ 1, 512, 4096 }[random_below(&w->seed, 3)];
	uint64_t room = random_below(&w->seed, 2) == 0 ? w->load->size : 16 * KiB;

	e->length = 1 + random_below(&w->seed, random_below(&w->seed, 2) == 0 ? 1024 : LENGTH_MAX);
	e->length = (e->length + unit - 1) / unit * unit;
	e->offset = random_below(&w->seed, room) / unit * unit;
	if (e->length > w->load->size - e->offset)
		e->length = w->load->size - e->offset;
}

static void
choose(struct worker *w, struct event *e)
{
	static const enum pl_op ops[16] = {
		PL_WRITE, PL_WRITE, PL_WRITE, PL_WRITE, PL_WRITE, PL_WRITE, PL_WRITE, PL_WRITE,
		PL_WRITE, PL_ZERO,  PL_ZERO,  PL_TRIM,  PL_FLUSH, PL_FLUSH, PL_FLUSH, PL_READ,
	};

	e->op = ops[random_below(&w->seed, 16)];
	if (e->op == PL_FLUSH)
		return;
	choose_range(w, e);
	e->tag = (unsigned)(e - w->load->history.events) + 1;
	if (e->op == PL_READ || random_below(&w->seed, 3) == 0)
		e->flags |= PL_FUA;
	if (e->op == PL_ZERO && random_below(&w->seed, 2) == 0)
		e->flags |= PL_NO_HOLE;
}

static void
slot_answered(struct slot *s, int error)
{
	struct worker *w = s->worker;

	s->event->answered = error == 0 ? atomic_fetch_add(&w->load->history.clock, 1) : NEVER;
	w->failed |= error != 0; /* the power is gone */
	s->busy = false;
}

static void
slot_done(struct pl_request *req, int error)
{
	struct slot *s = req->user;

	slot_answered(s, error);
	if (s->worker->waiting)
		pl_loop_stop(s->worker->loop);
}

static void
slot_start(struct slot *s, struct event *e)
{
	struct worker *w = s->worker;

	*e = (struct event){ .answered = NEVER };
	choose(w, e);
	s->event = e;
	s->busy = true;
	s->iov = (struct iovec){ s->data, e->length };
	s->req = (struct pl_request){
		.op = e->op,
		.flags = e->flags,
		.offset = e->offset,
		.length = e->length,
		.iov = &s->iov,
		.iovcnt = e->op == PL_WRITE || e->op == PL_READ,
		.on_done = slot_done,
		.user = s,
	};
	if (w->load->lie == LIE_FUA_FLAG_LOST && e->op == PL_WRITE)
		s->req.flags = 0;
	if (e->op == PL_WRITE)
		pattern_fill(s->data, e->length, e->offset, e->tag);
	e->submitted = atomic_fetch_add(&w->load->history.clock, 1);
	if (w->kind == RING)
		pl_request_submit(w->ch, &s->req);
	else
		slot_answered(s, pl_request_call(w->ch, &s->req));
}

static struct slot *
idle_slot(struct worker *w)
{
	for (unsigned i = 0; i < w->depth; i++) {
		if (!w->slots[i].busy)
			return &w->slots[i];
	}
	return NULL;
}

static unsigned
busy_slots(const struct worker *w)
{
	unsigned n = 0;

	for (unsigned i = 0; i < w->depth; i++)
		n += w->slots[i].busy;
	return n;
}

/* Until at most so many are in flight. */
static void
wait_slots(struct worker *w, unsigned in_flight)
{
	w->waiting = true;
	while (busy_slots(w) > in_flight)
		pl_loop_run(w->loop);
	w->waiting = false;
}

static void
worker_run_seed(struct worker *w)
{
	unsigned left = w->requests;

	w->seed = w->load->seed + w->index * UINT64_C(0x1234567);
	w->failed = false;
	while (left-- > 0 && !w->failed) {
		struct event *e;

		wait_slots(w, w->depth - 1);
		e = history_add(&w->load->history);
		assert_true(e != NULL);
		slot_start(idle_slot(w), e);
	}
	wait_slots(w, 0);
}

static void *
worker_run(void *arg)
{
	struct worker *w = arg;
	struct pl_error err;
	int error = w->kind == RING ? pl_loop_new(&w->loop, &err)
				    : pl_loop_new_blocking(&w->loop, &err);

	if (error != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	for (unsigned i = 0; i < w->depth; i++) {
		w->slots[i].worker = w;
		w->slots[i].data = test_alloc(LENGTH_MAX + 4096);
	}
	for (;;) {
		pthread_barrier_wait(&w->load->barrier);
		if (w->load->over)
			break;
		assert_eq(pl_channel_open(w->load->f->ex, w->loop, &w->ch, NULL), 0);
		worker_run_seed(w);
		pl_channel_close(w->ch);
		pthread_barrier_wait(&w->load->barrier);
	}
	for (unsigned i = 0; i < w->depth; i++)
		free(w->slots[i].data);
	pl_loop_free(w->loop);
	return NULL;
}

/* ---- many seeds ------------------------------------------------------------------ */

struct setup {
	const char *const *words; /* of the export, without cut and seed */
	const char *file;         /* that is below, or NULL */
	uint64_t size;
	unsigned workers;
	struct worker worker[6]; /* kind, depth, requests */
	enum lie lie;
};

struct tally {
	unsigned seeds, cuts, violations;
};

#define WORDS_MAX 12

static void
open_for_seed(struct fixture *f, const struct setup *setup, uint64_t *seed)
{
	const char *words[WORDS_MAX + 3] = { NULL };
	char cut[32], survive[32];
	unsigned requests = 0, count = 0;

	for (unsigned i = 0; i < setup->workers; i++)
		requests += setup->worker[i].requests;
	snprintf(cut, sizeof cut, "cut=%" PRIu64, 1 + random_below(seed, requests * 5 / 4));
	snprintf(survive, sizeof survive, "seed=%" PRIu64, random_next(seed) >> 1);
	for (; setup->words[count] != NULL; count++)
		words[count] = setup->words[count];
	assert_true(count <= WORDS_MAX);
	words[count++] = cut;
	words[count] = survive;
	if (setup->file != NULL)
		assert_true(truncate(setup->file, 0) == 0 &&
			    truncate(setup->file, (off_t)setup->size) == 0);
	fixture_open_words(f, BLOCKING, 0, words);
}

/* One workload with one cut; then what is on the medium. */
static void
run_seed(struct workload *load, const struct setup *setup, uint64_t seed, unsigned char *image,
	 struct tally *tally)
{
	struct fixture f;
	char byte;
	uint64_t at;

	load->seed = seed;
	load->f = &f;
	atomic_store(&load->history.clock, 1);
	atomic_store(&load->history.count, 0);
	open_for_seed(&f, setup, &seed);
	pthread_barrier_wait(&load->barrier);
	pthread_barrier_wait(&load->barrier);

	tally->seeds++;
	tally->cuts += try_read(&f, 0, 1, &byte, 0) != 0;
	crash_image(&f, seed, image);
	at = find_violation(&load->history, image, setup->size);
	if (at < setup->size) {
		if (tally->violations++ == 0) {
			printf("seed %" PRIu64 ": offset %" PRIu64 " has 0x%02x\n", load->seed, at,
			       image[at]);
			print_history(&load->history, at);
		}
	}
	fixture_close(&f);
}

/* Returns after so many seeds, or the first violation. */
static struct tally
run_seeds(struct setup *setup, uint64_t seed, unsigned seeds)
{
	static struct workload load;
	unsigned char *image = test_alloc(setup->size);
	struct tally tally = { 0 };

	log_nothing();
	load.size = setup->size;
	load.lie = setup->lie;
	load.over = false;
	load.history.lazy_trims = setup->file != NULL;
	pthread_barrier_init(&load.barrier, NULL, setup->workers + 1);
	for (unsigned i = 0; i < setup->workers; i++) {
		setup->worker[i].load = &load;
		setup->worker[i].index = i;
		assert_eq(pthread_create(&setup->worker[i].thread, NULL, worker_run,
					 &setup->worker[i]),
			  0);
	}
	while (tally.seeds < seeds && tally.violations == 0)
		run_seed(&load, setup, random_next(&seed), image, &tally);
	load.over = true;
	pthread_barrier_wait(&load.barrier);
	for (unsigned i = 0; i < setup->workers; i++)
		pthread_join(setup->worker[i].thread, NULL);
	pthread_barrier_destroy(&load.barrier);
	free(image);
	printf("%u workloads, %u lost power on the way\n", tally.seeds, tally.cuts);
	return tally;
}

#define DISK_SIZE (40 * KiB + 333)
#define DISK      "over=memory", "size=41293"
#define ONE_RING  .workers = 1, .worker = { { .kind = RING, .depth = 4, .requests = 48 } }
#define MANY_LOOPS \
	.workers = 5, .worker = { { .kind = RING, .depth = 4, .requests = 12 }, \
				  { .kind = RING, .depth = 2, .requests = 12 }, \
				  { .kind = BLOCKING, .depth = 1, .requests = 12 }, \
				  { .kind = BLOCKING, .depth = 1, .requests = 12 }, \
				  { .kind = BLOCKING, .depth = 1, .requests = 12 } }

static void
nothing_may_be_lost(unsigned one_ring, unsigned many_loops)
{
	uint64_t seed = test_seed();

	for_each_fua_kind(fua)
	{
		struct setup ring = { .words = WORDS("driver=powercut", DISK, *fua),
				      .size = DISK_SIZE,
				      ONE_RING };
		struct setup many = { .words = WORDS("driver=powercut", DISK, *fua, "dirty=30k"),
				      .size = DISK_SIZE,
				      MANY_LOOPS };
		struct tally tally = run_seeds(&ring, seed, one_ring);

		assert_eq(tally.violations, 0);
		assert_true(tally.cuts > one_ring / 2);
		tally = run_seeds(&many, seed, many_loops);
		assert_eq(tally.violations, 0);
		assert_true(tally.cuts > many_loops / 2);
	}
}

TEST(nothing_acknowledged_is_lost_in_any_power_cut)
{
	nothing_may_be_lost(1500, 1000);
}

/* A file that takes whole blocks only: the edges are read, changed and written back, many
 * at once in one block, and the odd end goes its own way. */
TEST(nothing_acknowledged_is_lost_around_the_blocks_of_a_file)
{
	uint64_t seed = test_seed();

	make_image("blocks.img", DISK_SIZE);
	for_each_fua_kind(fua)
	{
		struct setup setup = { .words = WORDS("driver=powercut", "over=file",
						      "path=blocks.img", "cache=none", *fua),
				       .file = "blocks.img",
				       .size = DISK_SIZE,
				       MANY_LOOPS };
		struct tally tally = run_seeds(&setup, seed, 100);

		assert_eq(tally.violations, 0);
		assert_true(tally.cuts > 50);
	}
}

TEST_SLOW(nothing_acknowledged_is_lost_in_20000_power_cuts)
{
	nothing_may_be_lost(5000, 5000);
}

/* ---- that the tests above can fail
 * ------------------------------------------------------------------ */

static void
lie_must_be_caught(struct setup *setup)
{
	assert_eq(run_seeds(setup, test_seed(), 2000).violations, 1);
}

TEST(a_lying_flush_is_caught)
{
	for_each_fua_kind(fua)
	{
		struct setup setup = { .words = WORDS("driver=fault", "kind=flush", "fault=lie",
						      "repeat=forever", "over=powercut,memory",
						      "size=41293", *fua),
				       .size = DISK_SIZE,
				       ONE_RING };

		lie_must_be_caught(&setup);
	}
}

TEST(one_lying_flush_among_many_is_caught)
{
	struct setup setup = { .words = WORDS("driver=fault", "kind=flush", "at=2", "fault=lie",
					      "over=powercut,memory", "size=41293",
					      "powercut-fua=commit"),
			       .size = DISK_SIZE,
			       MANY_LOOPS };

	lie_must_be_caught(&setup);
}

TEST(a_lost_fua_flag_is_caught)
{
	struct setup setup = { .words = WORDS("driver=powercut", DISK, "powercut-fua=native"),
			       .size = DISK_SIZE,
			       .lie = LIE_FUA_FLAG_LOST,
			       ONE_RING };

	lie_must_be_caught(&setup);
}

TEST(a_lying_zero_or_trim_is_caught)
{
	static const char *const kinds[] = { "kind=zero", "kind=trim" };

	for (unsigned i = 0; i < 2; i++) {
		struct setup setup = { .words = WORDS("driver=fault", kinds[i], "fault=lie",
						      "repeat=forever", "over=powercut,memory",
						      "size=41293"),
				       .size = DISK_SIZE,
				       ONE_RING };

		lie_must_be_caught(&setup);
	}
}
