/* fault.c - the driver that makes things go wrong, and what the core then does. */
#include "fixture.h"
#include "platter-driver.h"
#include "test.h"

#include <errno.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define OVER_MEMORY "driver=fault", "over=memory", "size=1M"

/* ---- which operation ------------------------------------------------------------- */

TEST(without_options_the_first_operation_fails)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, OVER_MEMORY);
		assert_eq(try_fill(&f, 0, 4 * KiB, 0xaa, 0), -EIO);
		check_bytes(&f, 0, 4 * KiB, 0);
		do_write(&f, 0, 4 * KiB, 0xbb, PL_FUA);
		check_bytes(&f, 0, 4 * KiB, 0xbb);
		fixture_close(&f);
	}
}

TEST(the_nth_operation_fails_once)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, OVER_MEMORY, "kind=write", "at=3", "errno=ENOSPC");
		for (int i = 1; i <= 6; i++) {
			check_bytes(&f, 0, 4 * KiB, i == 4 ? 2 : (unsigned char)(i - 1));
			assert_eq(try_fill(&f, 0, 4 * KiB, (unsigned char)i, 0),
				  i == 3 ? -ENOSPC : 0);
		}
		fixture_close(&f);
	}
}

TEST(the_nth_operation_and_all_after_it_fail_for_ever)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, OVER_MEMORY, "kind=write", "at=3", "repeat=forever");
		for (int i = 1; i <= 6; i++)
			assert_eq(try_fill(&f, 0, 4 * KiB, (unsigned char)i, 0), i < 3 ? 0 : -EIO);
		check_bytes(&f, 0, 4 * KiB, 2);
		fixture_close(&f);
	}
}

static int
try_kind(struct fixture *f, enum pl_op op)
{
	struct pl_extent list[4];
	struct pl_extents x = { .list = list, .max = 4 };
	char data[512];

	switch (op) {
	case PL_READ: return try_read(f, 0, sizeof data, data, 0);
	case PL_WRITE: return try_fill(f, 0, 512, 0xaa, 0);
	case PL_FLUSH: return try_flush(f);
	case PL_ZERO: return try_zero(f, 0, 512, 0);
	case PL_TRIM: return try_trim(f, 0, 512, 0);
	case PL_CACHE: return try_cache(f, 0, 512);
	case PL_EXTENTS: return try_extents(f, 0, 512, &x);
	case PL_MODIFY: break; /* no driver's */
	}
	return -EINVAL;
}

TEST(only_the_chosen_kind_of_operation_fails)
{
	static const char *const kinds[PL_DRIVER_OPS] = {
		[PL_READ] = "kind=read",       [PL_WRITE] = "kind=write", [PL_FLUSH] = "kind=flush",
		[PL_ZERO] = "kind=zero",       [PL_TRIM] = "kind=trim",   [PL_CACHE] = "kind=cache",
		[PL_EXTENTS] = "kind=extents",
	};

	for_each_loop_kind(kind)
	{
		for (unsigned chosen = 0; chosen < PL_DRIVER_OPS; chosen++) {
			struct fixture f;

			printf("%s\n", kinds[chosen]);
			fixture_open(&f, kind, OVER_MEMORY, kinds[chosen], "repeat=forever");
			for (unsigned op = 0; op < PL_DRIVER_OPS; op++)
				assert_eq(try_kind(&f, (enum pl_op)op), op == chosen ? -EIO : 0);
			fixture_close(&f);
		}
	}
}

TEST(only_the_chosen_range_fails)
{
	struct fixture f;

	fixture_open(&f, BLOCKING, OVER_MEMORY, "offset=64k", "length=4k", "repeat=forever");
	do_write(&f, 0, 64 * KiB, 0xaa, 0);
	do_write(&f, 68 * KiB, 64 * KiB, 0xaa, 0);
	assert_eq(try_fill(&f, 64 * KiB - 1, 2, 0xbb, 0), -EIO);
	assert_eq(try_fill(&f, 68 * KiB - 1, 2, 0xbb, 0), -EIO);
	assert_eq(try_trim(&f, 65 * KiB, 1, 0), -EIO);
	assert_eq(try_fill(&f, 0, 128 * KiB, 0xbb, 0), -EIO);
	check_bytes(&f, 0, 64 * KiB, 0xaa);
	check_bytes(&f, 68 * KiB, 60 * KiB, 0xaa);
	fixture_close(&f);

	fixture_open(&f, BLOCKING, OVER_MEMORY, "kind=read", "offset=64k", "repeat=forever");
	check_bytes(&f, 0, 64 * KiB, 0);
	assert_eq(try_fill(&f, 512 * KiB, 512, 0xaa, 0), 0);
	assert_eq(try_read(&f, 1 * MiB - 1, 1, &f, 0), -EIO);
	fixture_close(&f);
}

TEST(every_errno_comes_back)
{
	static const struct {
		const char *word;
		int error;
	} rows[] = {
		{ "errno=EIO", EIO },
		{ "errno=ENOSPC", ENOSPC },
		{ "errno=ENOMEM", ENOMEM },
		{ "errno=EINVAL", EINVAL },
		{ "errno=EPERM", EPERM },
		{ "errno=EROFS", EROFS },
		{ "errno=EAGAIN", EAGAIN },
		{ "errno=ENODEV", ENODEV },
		{ "errno=ETIMEDOUT", ETIMEDOUT },
		{ "errno=EOPNOTSUPP", EOPNOTSUPP },
	};

	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct fixture f;

		printf("%s\n", rows[i].word);
		fixture_open(&f, RING, OVER_MEMORY, rows[i].word);
		assert_eq(try_fill(&f, 0, 512, 0xaa, 0), -rows[i].error);
		fixture_close(&f);
	}
}

struct counting {
	struct fixture f;
	pthread_t thread;
	unsigned failed;
};

static void *
counting_run(void *arg)
{
	struct counting *c = arg;

	for (unsigned i = 0; i < 200; i++)
		c->failed += try_zero(&c->f, i * 512, 512, 0) != 0;
	return NULL;
}

/* No operation is counted twice, none is forgotten. */
TEST(threads_are_counted_together)
{
	enum { THREADS = 4 };
	struct counting c[THREADS];
	struct fixture f;
	unsigned failed = 0;

	fixture_open(&f, BLOCKING, OVER_MEMORY, "kind=zero", "at=301", "repeat=forever");
	for (unsigned i = 0; i < THREADS; i++) {
		c[i] = (struct counting){ .f = f };
		assert_eq(pthread_create(&c[i].thread, NULL, counting_run, &c[i]), 0);
	}
	for (unsigned i = 0; i < THREADS; i++) {
		pthread_join(c[i].thread, NULL);
		failed += c[i].failed;
	}
	assert_eq(failed, THREADS * 200 - 300);
	fixture_close(&f);
}

TEST(what_makes_no_sense_is_refused)
{
	static const struct {
		const char *const words[4];
		const char *says;
	} rows[] = {
		{ { "at=0" }, "counted from 1" },
		{ { "fault=delay" }, "delay=TIME" },
		{ { "fault=short", "kind=flush" }, "no such fault" },
		{ { "fault=lie", "kind=read" }, "no such fault" },
		{ { "errno=EBADIDEA" }, "EIO|ENOSPC" },
		{ { "kind=writes" }, "any|read|write|flush|zero|trim|cache|extents" },
	};

	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		const char *words[8] = { OVER_MEMORY };
		struct pl_export *ex;
		struct pl_error err;

		for (unsigned j = 0; rows[i].words[j] != NULL; j++)
			words[3 + j] = rows[i].words[j];
		assert_eq(try_export(words, 0, &ex, &err), -EINVAL);
		assert_contains(err.text, rows[i].says);
	}
}

TEST(the_driver_below_shows_through)
{
	struct fixture f;

	fixture_open(&f, RING, "driver=fault", "over=memory", "size=12345", "at=7");
	assert_eq(pl_export_geometry(f.ex)->size, 12345);
	assert_true((pl_export_capabilities(f.ex) & PL_CAP_EXTENTS) != 0);
	assert_str(pl_export_name(f.ex), "memory");
	assert_contains(pl_export_description(f.ex), "operation 7");
	assert_contains(pl_export_description(f.ex), "RAM is the medium");
	fixture_close(&f);
}

/* ---- short transfers ------------------------------------------------------------- */

static void
transfer_in_three(struct fixture *f, enum pl_op op, uint64_t offset, uint64_t length, char *data)
{
	struct iovec iov[] = { { data, 100 },
			       { data + 100, 9000 },
			       { data + 9100, length - 9100 } };
	struct pl_request req = {
		.op = op, .offset = offset, .length = length, .iov = iov, .iovcnt = 3
	};

	assert_eq(pl_request_call(f->ch, &req), 0);
}

/* The pieces of a request go on where the last one ended, also inside an iov. */
TEST(short_transfers_are_continued)
{
	static const char *const bytes[] = { "short=1", "short=511", "short=512", "short=4k",
					     "short=5000" };

	for_each_loop_kind(kind)
	{
		for (unsigned i = 0; i < sizeof bytes / sizeof *bytes; i++) {
			char *data = test_alloc(20 * KiB);
			struct fixture f;

			fixture_open(&f, kind, OVER_MEMORY, "fault=short", bytes[i],
				     "repeat=forever");
			pattern_fill(data, 20000, 777, i);
			transfer_in_three(&f, PL_WRITE, 777, 20000, data);
			memset(data, 0, 20000);
			transfer_in_three(&f, PL_READ, 777, 20000, data);
			for (unsigned j = 0; j < 20000; j++)
				assert_eq((unsigned char)data[j], pattern_at(777 + j, i));
			check_bytes(&f, 0, 777, 0);
			check_bytes(&f, 20777, 1000, 0);
			free(data);
			fixture_close(&f);
		}
	}
}

/* Where only whole blocks can be transferred, and the end is none. */
TEST(short_transfers_of_whole_blocks_are_continued)
{

	for_each_loop_kind(kind)
	{
		char *data = test_alloc(20 * KiB);
		struct fixture f;

		make_image("short.img", 20777);
		fixture_open(&f, kind, "driver=fault", "over=file", "path=short.img", "cache=none",
			     "fault=short", "short=5000", "repeat=forever");
		pattern_fill(data, 20000, 777, 1);
		transfer_in_three(&f, PL_WRITE, 777, 20000, data);
		memset(data, 0, 20000);
		transfer_in_three(&f, PL_READ, 777, 20000, data);
		for (unsigned j = 0; j < 20000; j++)
			assert_eq((unsigned char)data[j], pattern_at(777 + j, 1));
		check_bytes(&f, 0, 777, 0);
		free(data);
		fixture_close(&f);
	}
}

TEST(a_transfer_that_gets_nowhere_is_an_error)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;
		char data[512];

		fixture_open(&f, kind, OVER_MEMORY, "fault=short", "short=0", "repeat=forever");
		assert_eq(try_fill(&f, 0, 512, 0xaa, PL_FUA), -ENOSPC);
		assert_eq(try_read(&f, 0, 512, data, 0), -EIO);
		do_flush(&f);
		fixture_close(&f);
	}
}

/* ---- time ------------------------------------------------------------------------ */

static double
now(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

TEST(a_delay_delays_nothing_else)
{
	test_not_under_valgrind("everything takes longer than the delay");
	for_each_loop_kind(kind)
	{
		struct fixture f;
		struct batch b;
		struct job *slow, *fast[8];
		char *data = test_alloc(9 * 4 * KiB);
		double start = now();

		fixture_open(&f, kind, OVER_MEMORY, "kind=read", "offset=512k", "fault=delay",
			     "delay=300ms");
		batch_start(&b, &f, 9);
		slow = batch_submit(&b, PL_READ, 0, 512 * KiB, 4 * KiB, data);
		for (unsigned i = 0; i < 8; i++)
			fast[i] = batch_submit(&b, i % 2 ? PL_WRITE : PL_READ, 0, i * 4 * KiB,
					       4 * KiB, data + (i + 1) * 4 * KiB);
		batch_wait(&b, 8);
		assert_eq(slow->rank, 0);
		batch_wait(&b, 9);
		assert_true(now() - start >= 0.3);
		assert_eq(slow->rank, 9);
		assert_eq(slow->error, 0);
		for (unsigned i = 0; i < 8; i++)
			assert_eq(fast[i]->error, 0);
		batch_end(&b);
		free(data);
		fixture_close(&f);
	}
}

TEST(an_error_may_come_late)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;
		double start = now();

		fixture_open(&f, kind, OVER_MEMORY, "kind=write", "errno=ENOSPC", "delay=50ms");
		assert_eq(try_fill(&f, 0, 512, 0xaa, 0), -ENOSPC);
		assert_true(now() - start >= 0.05);
		check_bytes(&f, 0, 512, 0);
		fixture_close(&f);
	}
}

/* ---- lies
 * ------------------------------------------------------------------------------------------ */

TEST(a_lie_does_nothing_and_says_it_is_done)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, OVER_MEMORY, "offset=4k", "fault=lie", "repeat=forever");
		do_write(&f, 0, 4 * KiB, 0xaa, 0);
		do_write(&f, 4 * KiB, 4 * KiB, 0xaa, PL_FUA);
		do_flush(&f);
		check_bytes(&f, 0, 4 * KiB, 0xaa);
		check_bytes(&f, 4 * KiB, 4 * KiB, 0);
		fixture_close(&f);
	}
}

/* ---- what the core makes of errors
 * --------------------------------------------------------------- */

TEST(a_zero_that_is_not_supported_is_written)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, OVER_MEMORY, "kind=zero", "errno=EOPNOTSUPP",
			     "repeat=forever");
		do_write(&f, 0, 1 * MiB, 0xaa, 0);
		assert_eq(try_zero(&f, 1000, 600 * KiB, PL_FAST), -ENOTSUP);
		check_bytes(&f, 0, 1 * MiB, 0xaa);
		do_zero(&f, 1000, 600 * KiB, 0);
		check_bytes(&f, 0, 1000, 0xaa);
		check_bytes(&f, 1000, 600 * KiB, 0);
		check_bytes(&f, 1000 + 600 * KiB, 1000, 0xaa);
		fixture_close(&f);
	}
}

static void
check_failed(struct fixture *f)
{
	char data[512];

	assert_true(pl_export_failed(f->ex));
	assert_eq(try_flush(f), -EIO);
	assert_eq(try_fill(f, 0, 512, 0xee, PL_FUA), -EIO);
	assert_eq(try_zero(f, 0, 512, PL_FUA), -EIO);
	assert_eq(try_trim(f, 0, 512, PL_FUA), -EIO);
	assert_eq(try_read(f, 0, 512, data, 0), 0);
	do_write(f, 4 * KiB, 512, 0xcc, 0);
	check_bytes(f, 4 * KiB, 512, 0xcc);
}

TEST(a_failed_flush_is_never_retried_into_success)
{
	for_each_loop_kind(kind)
	{
		struct fixture f, other[LOOP_KINDS];

		fixture_open(&f, kind, OVER_MEMORY, "kind=flush", "at=2", "errno=ENOSPC");
		for (enum loop_kind k = RING; k < LOOP_KINDS; k++)
			fixture_join(&other[k], k, &f);
		do_write(&f, 0, 512, 0xaa, 0);
		do_flush(&f);
		assert_false(pl_export_failed(f.ex));
		assert_eq(try_flush(&f), -ENOSPC);

		check_failed(&f);
		for (enum loop_kind k = RING; k < LOOP_KINDS; k++) {
			check_failed(&other[k]);
			fixture_close(&other[k]);
		}
		check_bytes(&f, 0, 512, 0xaa); /* no refused write left a trace */
		fixture_close(&f);

		/* Opened again it is another promise. */
		fixture_open(&f, kind, OVER_MEMORY, "kind=flush", "at=2");
		assert_false(pl_export_failed(f.ex));
		do_write(&f, 0, 512, 0xaa, PL_FUA);
		do_flush(&f);
		fixture_close(&f);
	}
}

/* Whoever waits for a flush that fails, or behind it, hears of it. */
TEST(all_who_wait_for_a_failed_flush_get_the_error)
{
	for_each_loop_kind(kind)
	{
		struct fixture f;
		struct batch b;
		struct job *flush[8], *write;
		char data[512] = "";

		fixture_open(&f, kind, OVER_MEMORY, "kind=flush", "delay=100ms");
		batch_start(&b, &f, 9);
		for (unsigned i = 0; i < 8; i++)
			flush[i] = batch_submit(&b, PL_FLUSH, 0, 0, 0, NULL);
		write = batch_submit(&b, PL_WRITE, 0, 0, 512, data);
		batch_wait(&b, 9);
		for (unsigned i = 0; i < 8; i++)
			assert_eq(flush[i]->error, -EIO);
		assert_eq(write->error, 0);
		batch_end(&b);
		check_failed(&f);
		fixture_close(&f);
	}
}

/* ---- each operation in its turn ---------------------------------------------------- */

#define DISK     (64 * KiB)
#define LAST_AT  64 /* more operations than what follows makes */
#define RESTARTS 3  /* crash images */

/* What a client does. Each writes bytes that tell which step it was; zeroes and trims, 0. */
static const struct step {
	enum pl_op op;
	unsigned flags;
	uint64_t offset, length;
} steps[] = {
	{ PL_WRITE, PL_FUA, 0, DISK },
	{ PL_WRITE, 0, 0, 4 * KiB },
	{ PL_WRITE, PL_FUA, 2 * KiB, 4 * KiB },
	{ PL_WRITE, 0, 9 * KiB + 100, 1000 },
	{ PL_FLUSH, 0, 0, 0 },
	{ PL_ZERO, PL_FUA, 12 * KiB, 8 * KiB },
	{ PL_ZERO, PL_NO_HOLE, 20 * KiB + 1, 3000 },
	{ PL_TRIM, PL_FUA, 24 * KiB, 4 * KiB },
	{ PL_TRIM, 0, 28 * KiB, 4 * KiB },
	{ PL_READ, PL_FUA, 0, DISK },
	{ PL_WRITE, PL_FUA, 32 * KiB + 1, 16 * KiB },
	{ PL_ZERO, 0, 32 * KiB, 4 * KiB },
	{ PL_FLUSH, 0, 0, 0 },
	{ PL_WRITE, 0, 40 * KiB, 4 * KiB },
};
#define STEPS (sizeof steps / sizeof *steps)

/* For each byte the steps whose bytes may be there, as bits; STEPS: what was there at first. */
struct promises {
	unsigned seen[DISK], durable[DISK];
	bool sync_failed;
};

static unsigned char
byte_of(unsigned step)
{
	return step < STEPS && steps[step].op == PL_WRITE ? (unsigned char)(step + 1) : 0;
}

static bool
may_be(unsigned allowed, unsigned char byte)
{
	for (; allowed != 0; allowed &= allowed - 1) {
		if (byte_of((unsigned)__builtin_ctz(allowed)) == byte)
			return true;
	}
	return false;
}

static void
check_promised(const unsigned *allowed, const unsigned char *data, const char *where)
{
	for (unsigned i = 0; i < DISK; i++) {
		if (!may_be(allowed[i], data[i]))
			test_fail(__FILE__, __LINE__, "%s, byte %u is 0x%02x, of steps 0x%x", where,
				  i, data[i], allowed[i]);
	}
}

static void
promise(struct promises *p, unsigned number, int error)
{
	const struct step *s = &steps[number];
	bool certain = error == 0 && s->op != PL_TRIM;

	if (s->op == PL_FLUSH && error == 0)
		memcpy(p->durable, p->seen, sizeof p->durable);
	if (s->op != PL_WRITE && s->op != PL_ZERO && s->op != PL_TRIM)
		return;
	for (uint64_t i = s->offset; i < s->offset + s->length; i++) {
		p->seen[i] = (certain ? 0 : p->seen[i]) | 1u << number;
		p->durable[i] |= 1u << number;
		if (error == 0 && (s->flags & PL_FUA) != 0)
			p->durable[i] = p->seen[i];
	}
}

/* Returns whether something went wrong. */
static bool
take_steps(struct fixture *f, struct promises *p)
{
	unsigned char *data = test_alloc(DISK);
	bool wrong = false;

	for (unsigned i = 0; i < DISK; i++)
		p->seen[i] = p->durable[i] = 1u << STEPS;
	p->sync_failed = false;
	for (unsigned i = 0; i < STEPS; i++) {
		const struct step *s = &steps[i];
		int error;

		memset(data, byte_of(i), s->length);
		error = try_request(f, s->op, s->flags, s->offset, s->length,
				    s->op == PL_WRITE || s->op == PL_READ ? data : NULL);
		promise(p, i, error);
		if (s->op == PL_READ && error == 0) {
			check_promised(p->seen, data, "a read with FUA");
			memcpy(p->durable, p->seen, sizeof p->durable);
		}
		p->sync_failed |= s->op == PL_FLUSH && error != 0;
		wrong |= error != 0;
	}
	free(data);
	return wrong;
}

static bool
fail_at(enum loop_kind kind, const char *const *below, const char *error, unsigned at)
{
	struct promises *p = test_alloc(sizeof *p);
	unsigned char *data = test_alloc(DISK);
	char where[32], errno_word[32];
	struct fixture f;
	bool wrong;

	snprintf(where, sizeof where, "at=%u", at);
	snprintf(errno_word, sizeof errno_word, "errno=%s", error);
	fixture_open(&f, kind, below[0], below[1], "size=64k", where, errno_word);
	wrong = take_steps(&f, p);
	for (unsigned i = 0; i < LAST_AT; i++) /* the fault comes once, and now it has come */
		try_read(&f, 0, 512, data, 0);
	do_read(&f, 0, DISK, data);
	check_promised(p->seen, data, where);
	for (uint64_t seed = 0; seed < RESTARTS; seed++) {
		crash_image(&f, seed, data);
		check_promised(p->durable, data, where);
	}
	if (p->sync_failed) {
		assert_true(pl_export_failed(f.ex));
		assert_eq(try_flush(&f), -EIO);
	}
	fixture_close(&f);
	free(data);
	free(p);
	return wrong;
}

TEST(an_error_of_any_operation_makes_no_promise_false)
{
	static const char *const stacks[][2] = {
		{ "driver=fault", "over=powercut,memory" },
		{ "driver=powercut", "over=fault,memory" },
	};
	static const char *const errors[] = {
		"EIO",   "ENOSPC", "ENOMEM", "EINVAL",    "EPERM",
		"EROFS", "EAGAIN", "ENODEV", "ETIMEDOUT", "EOPNOTSUPP"
	};

	log_nothing();
	for_each_loop_kind(kind)
	{
		for (unsigned i = 0; i < 2 * sizeof errors / sizeof *errors; i++) {
			unsigned wrong = 0;

			printf("%s %s\n", stacks[i % 2][0], errors[i / 2]);
			for (unsigned at = 1; at <= LAST_AT; at++)
				wrong += fail_at(kind, stacks[i % 2], errors[i / 2], at);
			printf("%u faults were told\n", wrong);
			/* A thread that blocks tries again by itself when told EAGAIN. */
			assert_true(wrong >= 8 || strcmp(errors[i / 2], "EAGAIN") == 0);
			assert_false(fail_at(kind, stacks[i % 2], errors[i / 2], LAST_AT));
		}
	}
}
