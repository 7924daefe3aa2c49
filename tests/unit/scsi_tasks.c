/* scsi_tasks.c - several commands at once: their order, and what ends them before their time. */
#include "scsi.h"

#include "bytes.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define NO_OPTIONS ((const char *const[]){ NULL })
#define BLOCK      512u
#define BLOCKS     8u

/* The first operation of this kind takes its time. */
#define SLOW(kind) \
	WORDS("driver=fault", "over=memory", "size=4M", "kind=" kind, "fault=delay", "delay=400ms")

#define TUR CDB(SCSI_TEST_UNIT_READY, 0, 0, 0, 0, 0)

static _Thread_local uint8_t room[32][BLOCKS * BLOCK];

/* ---- kinds of commands ------------------------------------------------------------- */

enum kind { READ, WRITE, ATOMIC, SYNC, ALONE };
static const char *const kind_name[] = { "read", "write", "atomic", "sync", "alone" };

/* What makes each slow. */
static const char *const *
slow_disk(enum kind kind)
{
	static const char *const words[][7] = {
		[READ] = { "driver=fault", "over=memory", "size=4M", "kind=read", "fault=delay",
			   "delay=400ms", NULL },
		[WRITE] = { "driver=fault", "over=memory", "size=4M", "kind=write", "fault=delay",
			    "delay=400ms", NULL },
		[ATOMIC] = { "driver=fault", "over=memory", "size=4M", "kind=write", "fault=delay",
			     "delay=400ms", NULL },
		[SYNC] = { "driver=fault", "over=memory", "size=4M", "kind=flush", "fault=delay",
			   "delay=400ms", NULL },
		[ALONE] = { "driver=fault", "over=memory", "size=4M", "kind=flush", "fault=delay",
			    "delay=400ms", NULL },
	};

	return words[kind];
}

/* slot: of room. Everything on the disk is zero, and stays so. */
static void
submit(struct task *task, struct initiator *i, enum kind kind, uint32_t lba, unsigned slot,
       enum scsi_attribute attribute)
{
	uint8_t *data = room[slot];

	memset(data, 0, sizeof room[slot]);
	switch (kind) {
	case READ:
		task_send(task, i, 0, cdb_blocks(SCSI_READ_10, 0, lba, BLOCKS), DATA_IN,
			  BLOCKS * BLOCK, data, attribute);
		break;
	case WRITE:
		task_send(task, i, 0, cdb_blocks(SCSI_WRITE_10, 0, lba, BLOCKS), DATA_OUT,
			  BLOCKS * BLOCK, data, attribute);
		break;
	case ATOMIC:
		task_send(task, i, 0, cdb_blocks(SCSI_COMPARE_AND_WRITE, 0, lba, 1), DATA_OUT,
			  2 * BLOCK, data, attribute);
		break;
	case SYNC:
		task_send(task, i, 0, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_10, 0, 0, 0), DATA_NONE, 0,
			  NULL, attribute);
		break;
	case ALONE: /* the write cache off: that flushes */
		data[4] = 0x08;
		data[5] = 0x12;
		task_send(task, i, 0, CDB(SCSI_MODE_SELECT_6, 0x10, 0, 0, 24, 0), DATA_OUT, 24,
			  data, attribute);
		break;
	}
}

/* ---- order ------------------------------------------------------------------------- */

enum meeting { PASSES, WAITS_WHERE_THEY_TOUCH, WAITS };

/* Reads, writes and flushes pass each other; what nobody may see half done keeps its blocks to
 * itself; what changes the unit is alone. */
static const struct {
	enum kind first, second;
	enum meeting meeting;
} meetings[] = {
	{ READ, READ, PASSES },
	{ READ, WRITE, PASSES },
	{ READ, SYNC, PASSES },
	{ READ, ATOMIC, WAITS_WHERE_THEY_TOUCH },
	{ READ, ALONE, WAITS },
	{ WRITE, READ, PASSES },
	{ WRITE, WRITE, PASSES },
	{ WRITE, SYNC, PASSES },
	{ WRITE, ALONE, WAITS },
	{ ATOMIC, READ, WAITS_WHERE_THEY_TOUCH },
	{ ATOMIC, WRITE, WAITS_WHERE_THEY_TOUCH },
	{ ATOMIC, ATOMIC, WAITS_WHERE_THEY_TOUCH },
	{ ATOMIC, SYNC, PASSES },
	{ ATOMIC, ALONE, WAITS },
	{ SYNC, READ, PASSES },
	{ SYNC, WRITE, PASSES },
	{ SYNC, ATOMIC, PASSES },
	{ SYNC, ALONE, WAITS },
	{ ALONE, READ, WAITS },
	{ ALONE, WRITE, WAITS },
	{ ALONE, ATOMIC, WAITS },
	{ ALONE, SYNC, WAITS },
	{ ALONE, ALONE, WAITS },
};

struct encounter {
	pthread_t thread;
	enum kind first, second;
	bool touch, waits;
};

static void *
meet(void *arg)
{
	const struct encounter *e = arg;
	struct task slow = { .hold = false }, quick = { .hold = false };
	struct lab s;

	lab_open(&s, NO_OPTIONS, slow_disk(e->first));
	submit(&slow, &s.a, e->first, 100, 0, SCSI_SIMPLE);
	lab_settle(&s);
	assert_false(slow.done);
	submit(&quick, &s.a, e->second, e->touch ? 100 : 1000, 1, SCSI_SIMPLE);
	assert_good(task_wait(&quick));
	assert_good(task_wait(&slow));
	if ((slow.answer.rank < quick.answer.rank) != e->waits)
		test_fail(__FILE__, __LINE__, "%s, then %s %s: it %s", kind_name[e->first],
			  kind_name[e->second], e->touch ? "of the same blocks" : "elsewhere",
			  e->waits ? "does not wait" : "waits");
	lab_close(&s);
	return NULL;
}

/* Each in a lab and on a thread of its own, for most of their time passes with waiting. */
TEST(commands_wait_for_those_that_they_must_not_meet)
{
	enum { COUNT = sizeof meetings / sizeof *meetings };
	static struct encounter encounters[2 * COUNT];

	log_nothing();
	for (unsigned i = 0; i < 2 * COUNT; i++) {
		enum meeting m = meetings[i / 2].meeting;
		bool touch = i % 2 != 0;
		struct encounter *e = &encounters[i];

		*e = (struct encounter){ .first = meetings[i / 2].first,
					 .second = meetings[i / 2].second,
					 .touch = touch,
					 .waits = m == WAITS ||
						  (m == WAITS_WHERE_THEY_TOUCH && touch) };
		assert_eq(pthread_create(&e->thread, NULL, meet, e), 0);
	}
	for (unsigned i = 0; i < 2 * COUNT; i++)
		pthread_join(encounters[i].thread, NULL);
}

/* Or what waits for its blocks might wait for ever. */
TEST(nobody_overtakes_one_that_waits_for_the_same_blocks)
{
	struct task first = { .hold = false }, atomic = { .hold = false }, last = { .hold = false };
	struct lab s;

	lab_open(&s, NO_OPTIONS, SLOW("read"));
	submit(&first, &s.a, READ, 100, 0, SCSI_SIMPLE);
	submit(&atomic, &s.a, ATOMIC, 100, 1, SCSI_SIMPLE);
	submit(&last, &s.b, READ, 100, 2, SCSI_SIMPLE);
	assert_good(task_wait(&last));
	assert_true(first.done && atomic.done);
	assert_true(atomic.answer.rank < last.answer.rank);
	lab_close(&s);
}

/* It names its blocks only when its list has come. */
TEST(an_unmap_waits_for_what_nobody_may_see_half_done)
{
	uint8_t list[24] = { [1] = 22, [3] = 16, [14] = 4, [19] = 1 };
	struct task atomic = { .hold = false }, unmap = { .hold = false };
	struct lab s;

	lab_open(&s, NO_OPTIONS, SLOW("write"));
	submit(&atomic, &s.a, ATOMIC, 100, 0, SCSI_SIMPLE);
	lab_settle(&s);
	assert_false(atomic.done);
	task_send(&unmap, &s.b, 0, CDB(SCSI_UNMAP, 0, 0, 0, 0, 0, 0, 0, 24, 0), DATA_OUT, 24, list,
		  SCSI_SIMPLE);
	assert_good(task_wait(&unmap));
	assert_true(atomic.done);
	lab_close(&s);
}

/* SAM-5, "Task attributes" */
TEST(ordered_waits_for_all_before_it_and_all_after_it_wait)
{
	struct task t[5] = { { .hold = false } };
	struct lab s;

	lab_open(&s, NO_OPTIONS, SLOW("write"));
	submit(&t[0], &s.a, WRITE, 0, 0, SCSI_SIMPLE);
	submit(&t[1], &s.a, READ, 100, 1, SCSI_SIMPLE); /* passes the write */
	submit(&t[2], &s.b, READ, 200, 2, SCSI_ORDERED);
	submit(&t[3], &s.a, READ, 300, 3, SCSI_SIMPLE);
	submit(&t[4], &s.a, READ, 400, 4, SCSI_HEAD_OF_QUEUE);
	for (unsigned i = 0; i < 5; i++)
		assert_good(task_wait(&t[i]));
	assert_true(t[1].answer.rank < t[0].answer.rank);
	assert_true(t[4].answer.rank < t[0].answer.rank);
	assert_true(t[0].answer.rank < t[2].answer.rank);
	assert_true(t[2].answer.rank < t[3].answer.rank);
	lab_close(&s);
}

/* Those after it, and those before it that have not started. */
TEST(all_that_have_not_started_wait_for_head_of_queue)
{
	struct task t[4] = { { .hold = false } };
	struct lab s;

	lab_open(&s, NO_OPTIONS, SLOW("write"));
	submit(&t[0], &s.a, WRITE, 0, 0, SCSI_HEAD_OF_QUEUE);
	submit(&t[1], &s.a, READ, 0, 1, SCSI_SIMPLE);
	submit(&t[2], &s.b, READ, 100, 2, SCSI_ORDERED);
	submit(&t[3], &s.b, READ, 200, 3, SCSI_HEAD_OF_QUEUE);
	for (unsigned i = 0; i < 4; i++)
		assert_good(task_wait(&t[i]));
	assert_true(t[3].answer.rank < t[0].answer.rank); /* waits for none of its kind */
	assert_true(t[0].answer.rank < t[1].answer.rank);
	assert_true(t[1].answer.rank < t[2].answer.rank);
	lab_close(&s);
}

/* There may be no more of it than those hold who come later, and wait. */
TEST(nobody_waits_for_memory_that_those_hold_who_wait_for_it)
{
	struct task first = { .hold = true }, read = { .hold = true }, last = { .hold = false };
	struct task urgent = { .hold = true };
	struct lab s;

	lab_open(&s, NO_OPTIONS, WORDS("driver=memory", "size=4M"));
	submit(&first, &s.a, WRITE, 0, 0, SCSI_ORDERED);
	submit(&read, &s.a, READ, 0, 1, SCSI_SIMPLE);
	assert_true(read.asked); /* it has to wait for the first, and has its memory then */
	submit(&last, &s.a, WRITE, 0, 2, SCSI_ORDERED);
	submit(&urgent, &s.a, WRITE, 0, 3, SCSI_HEAD_OF_QUEUE);
	task_give(&first, 0);
	assert_good(task_wait(&first));
	assert_false(read.done || last.done);
	task_give(&read, 0);
	assert_good(task_wait(&read));
	assert_good(task_wait(&last)); /* it came before the urgent one, which waits for memory */
	task_give(&urgent, 0);
	assert_good(task_wait(&urgent));
	lab_close(&s);
}

static struct {
	void (*done)(struct scsi_command *cmd); /* of the first */
	struct initiator *by;
	struct task second;
} chain;

static void
first_done(struct scsi_command *cmd)
{
	chain.done(cmd);
	submit(&chain.second, chain.by, ATOMIC, 0, 1, SCSI_SIMPLE);
}

/* Both are done at once, the second while the first's last word is on its way. */
TEST(a_command_that_is_sent_where_another_ends_is_carried_out_like_any_other)
{
	struct task first = { .hold = true };
	struct lab s;

	lab_open(&s, NO_OPTIONS, WORDS("driver=memory", "size=4M"));
	do_write(&s.disk[0].f, 0, (uint64_t)BLOCKS * BLOCK, 0, 0);
	submit(&first, &s.a, ATOMIC, 0, 0, SCSI_SIMPLE);
	chain.by = &s.b;
	chain.done = first.cmd.on_done;
	first.cmd.on_done = first_done;
	task_give(&first, 0);
	assert_good(task_wait(&first));
	assert_good(task_wait(&chain.second));
	assert_true(first.answer.rank < chain.second.answer.rank);
	lab_close(&s);
}

TEST(what_comes_after_an_ordered_command_waits_while_it_runs)
{
	struct task ordered = { .hold = false }, simple = { .hold = false };
	struct lab s;

	lab_open(&s, NO_OPTIONS, SLOW("write"));
	submit(&ordered, &s.a, WRITE, 0, 0, SCSI_ORDERED);
	submit(&simple, &s.b, READ, 1000, 1, SCSI_SIMPLE);
	lab_settle(&s);
	assert_false(ordered.done || simple.done);
	assert_good(task_wait(&simple));
	assert_true(ordered.done);
	lab_close(&s);
}

/* Its initiator may take long, or be gone. */
TEST(a_command_whose_data_is_on_the_way_holds_up_nobody)
{
	struct task slow = { .hold = true }, quick = { .hold = false };
	struct lab s;

	lab_open(&s, NO_OPTIONS, WORDS("driver=memory", "size=4M"));
	submit(&slow, &s.a, ATOMIC, 100, 0, SCSI_SIMPLE);
	assert_true(slow.asked);
	submit(&quick, &s.b, WRITE, 100, 1, SCSI_SIMPLE);
	assert_good(task_wait(&quick));
	assert_false(slow.done);
	task_give(&slow, 0);
	assert_good(task_wait(&slow));
	lab_close(&s);
}

TEST(data_that_does_not_come_ends_the_command)
{
	struct task t = { .hold = true };
	struct lab s;

	lab_open(&s, NO_OPTIONS, WORDS("driver=memory", "size=4M"));
	submit(&t, &s.a, WRITE, 100, 0, SCSI_SIMPLE);
	task_give(&t, -EIO);
	assert_eq(task_wait(&t).key, SCSI_ABORTED_COMMAND);
	t = (struct task){ .hold = true };
	submit(&t, &s.a, READ, 100, 0, SCSI_SIMPLE);
	task_give(&t, -ENOMEM);
	assert_status(task_wait(&t), SCSI_BUSY);
	lab_close(&s);
}

/* ---- task management --------------------------------------------------------------- */

/* Blocks of a's, in the three states in which a command can be: its data on the way, waiting for
 * another, with the core. */
struct three {
	struct task gathering, waiting, running;
};

static void
fill(unsigned slot, uint8_t byte)
{
	memset(room[slot], byte, sizeof room[slot]);
}

static void
send_write(struct task *task, struct initiator *i, uint32_t lba, unsigned slot, uint8_t byte,
	   enum scsi_attribute attribute)
{
	fill(slot, byte);
	task_send(task, i, 0, cdb_blocks(SCSI_WRITE_10, 0, lba, BLOCKS), DATA_OUT, BLOCKS * BLOCK,
		  room[slot], attribute);
}

static void
send_three(struct three *t, struct lab *s)
{
	memset(t, 0, sizeof *t);
	t->gathering.hold = true;
	send_write(&t->gathering, &s->a, 0, 0, 0x11, SCSI_SIMPLE);
	send_write(&t->running, &s->a, 100, 1, 0x22, SCSI_SIMPLE);
	send_write(&t->waiting, &s->a, 200, 2, 0x33, SCSI_ORDERED);
	lab_settle(s);
	assert_true(t->gathering.asked && !t->gathering.done);
	assert_false(t->running.done || t->waiting.done);
}

/* After the answer nothing of theirs may come: b writes the same blocks at once, and that is what
 * stays. */
static void
check_nothing_comes(struct lab *s)
{
	fill(3, 0x99);
	for (uint32_t lba = 0; lba <= 200; lba += 100)
		assert_good(scsi_out(&s->b, cdb_blocks(SCSI_WRITE_10, 0, lba, BLOCKS),
				     BLOCKS * BLOCK, room[3]));
	/* Longer than the slow write would have taken. */
	for (unsigned i = 0; i < 5; i++) {
		struct timespec delay = { 0, 100 * 1000 * 1000 };

		nanosleep(&delay, NULL);
		lab_settle(s);
	}
	for (uint32_t lba = 0; lba <= 200; lba += 100)
		check_bytes(&s->disk[0].f, lba * BLOCK, (uint64_t)BLOCKS * BLOCK, 0x99);
}

/* They were aborted before the function was answered, and without an answer of their own. */
static void
check_aborted(const struct three *t, const struct function *f)
{
	const struct task *all[] = { &t->gathering, &t->waiting, &t->running };

	for (unsigned i = 0; i < 3; i++) {
		assert_true(all[i]->done && all[i]->answer.aborted);
		assert_true(all[i]->answer.rank < f->rank);
	}
}

TEST(no_write_comes_after_abort_task_is_answered)
{
	struct three t;
	struct lab s;

	lab_open(&s, NO_OPTIONS, SLOW("write"));
	send_three(&t, &s);
	assert_eq(manage(&s.a, SCSI_ABORT_TASK, 0, &t.gathering), SCSI_FUNCTION_COMPLETE);
	assert_true(t.gathering.done && t.gathering.answer.aborted);
	assert_eq(manage(&s.a, SCSI_ABORT_TASK, 0, &t.waiting), SCSI_FUNCTION_COMPLETE);
	assert_true(t.waiting.done && t.waiting.answer.aborted);
	assert_false(t.running.done); /* it is not about that */
	assert_eq(manage(&s.a, SCSI_ABORT_TASK, 0, &t.running), SCSI_FUNCTION_COMPLETE);
	assert_true(t.running.done && t.running.answer.aborted);
	check_nothing_comes(&s);
	lab_close(&s);
}

/* How each function that ends all is told to those who did not ask for it. */
static const struct ending {
	enum scsi_function function;
	bool by_other;
	unsigned a_hears, b_hears;
} endings[] = {
	{ SCSI_ABORT_TASK_SET, false, 0, 0 },
	{ SCSI_CLEAR_TASK_SET, false, 0, 0 },
	{ SCSI_CLEAR_TASK_SET, true, SCSI_COMMANDS_CLEARED, 0 },
	{ SCSI_LOGICAL_UNIT_RESET, false, SCSI_BUS_DEVICE_RESET, SCSI_BUS_DEVICE_RESET },
	{ SCSI_LOGICAL_UNIT_RESET, true, SCSI_BUS_DEVICE_RESET, SCSI_BUS_DEVICE_RESET },
	{ SCSI_TARGET_WARM_RESET, false, SCSI_POWER_ON_RESET, SCSI_POWER_ON_RESET },
	{ SCSI_TARGET_COLD_RESET, true, SCSI_POWER_ON_RESET, SCSI_POWER_ON_RESET },
	{ SCSI_I_T_NEXUS_RESET, false, SCSI_NEXUS_LOSS, 0 },
};

static void *
end_all(void *arg)
{
	const struct ending *e = arg;
	struct function f;
	struct three t;
	struct lab s;

	lab_open(&s, NO_OPTIONS, SLOW("write"));
	send_three(&t, &s);
	function_start(&f, e->by_other ? &s.b : &s.a, e->function, 0, NULL);
	assert_eq(function_wait(&f), SCSI_FUNCTION_COMPLETE);
	check_aborted(&t, &f);
	for (unsigned n = 0; n < 2; n++) {
		unsigned hears = n == 0 ? e->a_hears : e->b_hears;
		struct initiator *i = n == 0 ? &s.a : &s.b;

		printf("function %d, initiator %u\n", e->function, n);
		if (hears != 0)
			assert_sense(scsi_none(i, TUR), SCSI_UNIT_ATTENTION, hears);
		assert_good(scsi_none(i, TUR));
	}
	check_nothing_comes(&s);
	lab_close(&s);
	return NULL;
}

TEST(a_task_may_be_aborted_twice)
{
	struct function first, second;
	struct three t;
	struct lab s;

	lab_open(&s, NO_OPTIONS, SLOW("write"));
	send_three(&t, &s);
	function_start(&first, &s.a, SCSI_ABORT_TASK, 0, &t.running);
	function_start(&second, &s.a, SCSI_ABORT_TASK, 0, &t.running);
	assert_eq(function_wait(&first), SCSI_FUNCTION_COMPLETE);
	assert_eq(function_wait(&second), SCSI_FUNCTION_COMPLETE);
	assert_true(t.running.done && t.running.answer.aborted);
	assert_eq(manage(&s.a, SCSI_ABORT_TASK_SET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_true(t.waiting.answer.aborted && t.gathering.answer.aborted);
	lab_close(&s);
}

TEST(no_write_comes_after_a_function_that_ends_all_is_answered)
{
	enum { COUNT = sizeof endings / sizeof *endings };
	pthread_t threads[COUNT];

	log_nothing();
	for (unsigned i = 0; i < COUNT; i++)
		assert_eq(pthread_create(&threads[i], NULL, end_all,
					 (void *)(uintptr_t)&endings[i]),
			  0);
	for (unsigned i = 0; i < COUNT; i++)
		pthread_join(threads[i], NULL);
}

TEST(abort_task_set_is_about_its_own_nexus)
{
	struct task mine = { .hold = true }, others = { .hold = true };
	struct lab s;

	lab_open(&s, NO_OPTIONS, WORDS("driver=memory", "size=4M"));
	send_write(&mine, &s.a, 0, 0, 0x11, SCSI_SIMPLE);
	send_write(&others, &s.b, 100, 1, 0x22, SCSI_SIMPLE);
	assert_eq(manage(&s.a, SCSI_ABORT_TASK_SET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_true(mine.done && mine.answer.aborted);
	assert_false(others.done);
	task_give(&others, 0);
	assert_good(task_wait(&others));
	assert_good(scsi_none(&s.b, TUR));
	lab_close(&s);
}

/* Control mode page, TAS: others hear it from the command itself. */
TEST(with_tas_what_others_abort_is_answered_so)
{
	uint8_t list[16] = { 0 }, page[256];
	struct three t;
	struct lab s;

	lab_open(&s, NO_OPTIONS, SLOW("write"));
	assert_eq(scsi_mode_page(&s.b, 0x0a, page), 12);
	memcpy(list + 4, page, 12);
	list[4] &= 0x3f;
	list[9] |= 0x40;
	assert_good(scsi_out(&s.b, CDB(SCSI_MODE_SELECT_6, 0x10, 0, 0, 16, 0), 16, list));
	clear_attentions(&s.a);
	send_three(&t, &s);
	assert_eq(manage(&s.b, SCSI_CLEAR_TASK_SET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_true(t.gathering.done && t.waiting.done && t.running.done);
	assert_status(t.gathering.answer, SCSI_TASK_ABORTED);
	assert_status(t.waiting.answer, SCSI_TASK_ABORTED);
	assert_status(t.running.answer, SCSI_TASK_ABORTED);
	assert_good(scsi_none(&s.a, TUR));
	check_nothing_comes(&s);
	lab_close(&s);
}

TEST(queries_say_what_is_there_and_change_nothing)
{
	struct task t = { .hold = true };
	struct lab s;

	lab_open(&s, NO_OPTIONS, WORDS("driver=memory", "size=4M"));
	assert_eq(manage(&s.a, SCSI_QUERY_TASK, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_eq(manage(&s.a, SCSI_QUERY_TASK_SET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_eq(manage(&s.a, SCSI_QUERY_ASYNCHRONOUS_EVENT, 0, NULL), SCSI_FUNCTION_COMPLETE);
	send_write(&t, &s.a, 0, 0, 0x11, SCSI_SIMPLE);
	assert_eq(manage(&s.a, SCSI_QUERY_TASK, 0, &t), SCSI_FUNCTION_SUCCEEDED);
	assert_eq(manage(&s.a, SCSI_QUERY_TASK_SET, 0, NULL), SCSI_FUNCTION_SUCCEEDED);
	assert_eq(manage(&s.b, SCSI_QUERY_TASK_SET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	task_give(&t, 0);
	assert_good(task_wait(&t));
	login(&s, &s.c, "c", 3);
	assert_eq(manage(&s.c, SCSI_QUERY_ASYNCHRONOUS_EVENT, 0, NULL), SCSI_FUNCTION_SUCCEEDED);
	assert_sense(scsi_none(&s.c, TUR), SCSI_UNIT_ATTENTION, SCSI_POWER_ON_RESET);
	lab_close(&s);
}

TEST(a_deferred_error_is_an_asynchronous_event)
{
	struct lab s;

	log_nothing();
	lab_open(&s, NO_OPTIONS,
		 WORDS("driver=fault", "over=memory", "size=4M", "kind=flush", "fault=error"));
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_10, 0x02, 0, 0)));
	lab_settle(&s);
	assert_eq(manage(&s.a, SCSI_QUERY_ASYNCHRONOUS_EVENT, 0, NULL), SCSI_FUNCTION_SUCCEEDED);
	assert_eq(manage(&s.b, SCSI_QUERY_ASYNCHRONOUS_EVENT, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_true(scsi_none(&s.a, TUR).deferred);
	assert_eq(manage(&s.a, SCSI_QUERY_ASYNCHRONOUS_EVENT, 0, NULL), SCSI_FUNCTION_COMPLETE);
	lab_close(&s);
}

TEST(what_is_not_supported_or_not_there_is_said_to_be_so)
{
	struct lab s;

	lab_open(&s, NO_OPTIONS, WORDS("driver=memory", "size=4M"));
	assert_eq(manage(&s.a, SCSI_CLEAR_ACA, 0, NULL), SCSI_FUNCTION_REJECTED);
	assert_eq(manage(&s.a, (enum scsi_function)99, 0, NULL), SCSI_FUNCTION_REJECTED);
	assert_eq(manage(&s.a, SCSI_LOGICAL_UNIT_RESET, 7, NULL), SCSI_INCORRECT_LUN);
	assert_eq(manage(&s.a, SCSI_ABORT_TASK_SET, 7, NULL), SCSI_INCORRECT_LUN);
	assert_eq(manage(&s.a, SCSI_ABORT_TASK, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_good(scsi_none(&s.a, TUR));
	lab_close(&s);
}

TEST(a_reset_is_about_its_unit_only)
{
	struct lab s;

	lab_open(&s, NO_OPTIONS, WORDS("driver=memory", "size=4M"));
	lab_add(&s, NO_OPTIONS, WORDS("driver=memory", "size=4M"), 0);
	clear_attentions(&s.a);
	clear_attentions(&s.b);
	assert_eq(manage(&s.a, SCSI_LOGICAL_UNIT_RESET, 1, NULL), SCSI_FUNCTION_COMPLETE);
	assert_good(scsi_none(&s.b, TUR));
	assert_sense(scsi_do_lun(&s.b, 1, TUR, DATA_NONE, 0, NULL), SCSI_UNIT_ATTENTION,
		     SCSI_BUS_DEVICE_RESET);
	assert_eq(manage(&s.a, SCSI_TARGET_WARM_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_sense(scsi_none(&s.b, TUR), SCSI_UNIT_ATTENTION, SCSI_POWER_ON_RESET);
	assert_sense(scsi_do_lun(&s.b, 1, TUR, DATA_NONE, 0, NULL), SCSI_UNIT_ATTENTION,
		     SCSI_POWER_ON_RESET);
	lab_close(&s);
}

/* ---- nexuses and units that go ----------------------------------------------------- */

TEST(no_write_comes_after_a_nexus_has_gone)
{
	struct three t;
	struct lab s;

	lab_open(&s, NO_OPTIONS, SLOW("write"));
	send_three(&t, &s);
	logout(&s.a);
	assert_true(t.gathering.done && t.gathering.answer.aborted);
	assert_true(t.waiting.done && t.waiting.answer.aborted);
	assert_true(t.running.done && t.running.answer.aborted);
	check_nothing_comes(&s);
	login(&s, &s.a, "a", 1); /* the same port, once the old one has ended */
	assert_sense(scsi_none(&s.a, TUR), SCSI_UNIT_ATTENTION, SCSI_POWER_ON_RESET);
	lab_close(&s);
}

TEST(what_waits_for_memory_goes_with_its_nexus)
{
	static const unsigned luns[] = { 0, 7 }; /* with and without a unit */

	for (unsigned i = 0; i < 2; i++) {
		struct task ended = { .hold = true }, reset = { .hold = true };
		struct lab s;

		lab_open(&s, NO_OPTIONS, WORDS("driver=memory", "size=4M"));
		task_send(&reset, &s.a, luns[i], CDB(SCSI_INQUIRY, 0, 0, 0, 96, 0), DATA_IN, 96,
			  room[0], SCSI_SIMPLE);
		assert_eq(manage(&s.a, SCSI_I_T_NEXUS_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
		assert_true(reset.done && reset.answer.aborted);
		task_send(&ended, &s.a, luns[i], CDB(SCSI_INQUIRY, 0, 0, 0, 96, 0), DATA_IN, 96,
			  room[0], SCSI_SIMPLE);
		assert_true(ended.asked);
		logout(&s.a);
		assert_true(ended.done && ended.answer.aborted);
		lab_close(&s);
	}
}

TEST(a_unit_that_is_removed_finishes_what_has_begun)
{
	struct three t;
	struct lab s;

	lab_open(&s, NO_OPTIONS, SLOW("write"));
	send_three(&t, &s);
	lab_remove(&s, 0);
	assert_true(t.gathering.done && t.waiting.done && t.running.done);
	assert_sense(t.gathering.answer, SCSI_ILLEGAL_REQUEST, 0x2500);
	assert_sense(t.waiting.answer, SCSI_ILLEGAL_REQUEST, 0x2500);
	assert_good(t.running.answer);
	check_bytes(&s.disk[0].f, 0, (uint64_t)BLOCKS * BLOCK, 0);
	check_bytes(&s.disk[0].f, 100 * BLOCK, (uint64_t)BLOCKS * BLOCK, 0x22);
	check_bytes(&s.disk[0].f, 200 * BLOCK, (uint64_t)BLOCKS * BLOCK, 0);
	assert_sense(scsi_none(&s.a, TUR), SCSI_ILLEGAL_REQUEST, 0x2500);
	lab_close(&s);
}

/* Its own commands, and nobody else's. */
TEST(a_lun_that_is_taken_from_an_initiator_finishes_what_has_begun)
{
	struct task reserve = { .hold = false }, other = { .hold = true };
	struct three t;
	struct lab s;

	lab_open(&s, NO_OPTIONS, SLOW("write"));
	send_three(&t, &s);
	task_send(&reserve, &s.a, 0, CDB(SCSI_RESERVE_6, 0, 0, 0, 0, 0), DATA_NONE, 0, NULL,
		  SCSI_SIMPLE);
	send_write(&other, &s.b, 0, 4, 0x44, SCSI_SIMPLE);
	scsi_nexus_map(s.a.nexus, 0, NULL);
	assert_true(t.gathering.done && t.waiting.done && reserve.done);
	assert_sense(t.gathering.answer, SCSI_ILLEGAL_REQUEST, 0x2500);
	assert_sense(t.waiting.answer, SCSI_ILLEGAL_REQUEST, 0x2500);
	assert_sense(reserve.answer, SCSI_ILLEGAL_REQUEST, 0x2500);
	assert_good(task_wait(&t.running));
	task_give(&other, 0);
	assert_good(task_wait(&other));
	logout(&s.a);
	check_nothing_comes(&s); /* nor is anything reserved */
	lab_close(&s);
}

/* ---- anything at once -------------------------------------------------------------- */

/* Commands in flight from two initiators, held and given, aborted one by one and all together:
 * whatever happens, each is answered once, and functions are answered after those they ended. */
static void
storm(unsigned rounds)
{
	enum { FLIGHT = 24 };
	static struct task tasks[FLIGHT];
	static bool used[FLIGHT], of_a[FLIGHT];
	uint64_t seed = test_seed();
	unsigned answered = 0, aborted = 0;
	struct lab s;

	log_nothing();
	lab_open(&s, NO_OPTIONS,
		 WORDS("driver=fault", "over=memory", "size=4M", "fault=delay", "delay=100us",
		       "repeat=forever"));
	for (unsigned round = 0; round < rounds; round++) {
		unsigned n = (unsigned)random_below(&seed, FLIGHT);
		struct task *t = &tasks[n];

		if (used[n] && t->done) {
			answered++;
			aborted += t->answer.aborted;
			used[n] = false;
		}
		if (!used[n]) {
			*t = (struct task){ .hold = random_below(&seed, 3) == 0 };
			used[n] = true;
			of_a[n] = random_below(&seed, 2) != 0;
			submit(t, of_a[n] ? &s.a : &s.b, (enum kind)random_below(&seed, 5),
			       (uint32_t)random_below(&seed, 64), n,
			       (enum scsi_attribute)random_below(&seed, 3));
		} else if (random_below(&seed, 2) == 0) {
			if (t->asked && !t->given)
				task_give(t, random_below(&seed, 8) == 0 ? -EIO : 0);
		} else if (random_below(&seed, 6) == 0) {
			assert_eq(manage(of_a[n] ? &s.a : &s.b, SCSI_ABORT_TASK, 0, t),
				  SCSI_FUNCTION_COMPLETE);
			assert_true(t->done);
		} else if (random_below(&seed, 40) == 0) {
			static const enum scsi_function all[] = {
				SCSI_ABORT_TASK_SET,     SCSI_CLEAR_TASK_SET,
				SCSI_LOGICAL_UNIT_RESET, SCSI_TARGET_WARM_RESET,
				SCSI_I_T_NEXUS_RESET,
			};
			unsigned which = (unsigned)random_below(&seed, 5);
			bool everyone = which == 1 || which == 2 || which == 3;

			assert_eq(manage(&s.a, all[which], 0, NULL), SCSI_FUNCTION_COMPLETE);
			for (unsigned i = 0; i < FLIGHT; i++)
				assert_true(!used[i] || tasks[i].done || (!everyone && !of_a[i]));
		} else if (random_below(&seed, 200) == 0) {
			logout(&s.b);
			for (unsigned i = 0; i < FLIGHT; i++)
				assert_true(!used[i] || of_a[i] || tasks[i].done);
			login(&s, &s.b, "b", 2);
		} else {
			lab_settle(&s);
		}
	}
	printf("%u answered, %u of them aborted\n", answered, aborted);
	assert_true(aborted > 0 && aborted < answered);
	logout(&s.a);
	logout(&s.b);
	assert_eq(s.tasks, 0);
	check_bytes(&s.disk[0].f, 0, 1 * MiB, 0);
	lab_close(&s);
}

TEST(whatever_is_sent_and_aborted_each_is_answered_once)
{
	storm(4000);
}

TEST_SLOW(whatever_is_sent_and_aborted_each_is_answered_once_for_long)
{
	for (unsigned i = 0; i < 50; i++)
		storm(4000);
}
