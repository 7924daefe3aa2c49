/*
 * scsi_durability.c - what SCSI was told to be on the medium is there, and costs what it should.
 *
 * The rules are the core's (durability.c); here it is shown that the flag of each command gets
 * there, once.
 */
#include "bytes.h"
#include "scsi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))

enum { FUA = 0x08, BYTCHK_1 = 0x02, IMMED = 0x02, UNMAP = 0x08 };

static const char *const fua_kinds[] = { "powercut-fua=native", "powercut-fua=commit" };

#define for_each_fua_kind(fua) \
	for (const char *const *fua = fua_kinds; fua < fua_kinds + 2 && puts(*fua) >= 0; fua++)

#define CUT(fua) WORDS("driver=powercut", "over=memory", "size=1M", fua)

/* All that writes, with FUA; data-out of data: one block, and for COMPARE AND WRITE two. */
struct write {
	uint8_t opcode, byte_1;
	bool stable;   /* in itself: it verifies */
	uint32_t most; /* blocks, if fewer than any other takes */
};

static const struct write writes[] = {
	{ SCSI_WRITE_10, FUA, false, 255 },
	{ SCSI_WRITE_12, FUA, false, 255 },
	{ SCSI_WRITE_16, FUA, false, 255 },
	{ SCSI_WRITE_ATOMIC_16, FUA, false, 1 }, /* what powercut does not tear */
	{ SCSI_ORWRITE_16, FUA, false, 255 },
	{ SCSI_COMPARE_AND_WRITE, FUA, false, 255 },
	{ SCSI_WRITE_AND_VERIFY_10, 0, true, 255 },
	{ SCSI_WRITE_AND_VERIFY_12, BYTCHK_1, true, 255 },
	{ SCSI_WRITE_AND_VERIFY_16, 0, true, 255 },
};

/* As many as it may be of these blocks, which hold zeroes, are filled with 0xaa. */
static struct answer
run(struct initiator *i, const struct write *w, uint8_t byte_1, uint64_t lba, uint32_t blocks)
{
	uint32_t length, out;
	uint8_t *data;
	struct answer a;

	if (blocks > w->most)
		blocks = w->most;
	out = length = blocks * 512;
	data = test_alloc(2 * length);
	memset(data, 0xaa, length);
	if (w->opcode == SCSI_COMPARE_AND_WRITE) {
		memset(data, 0, length);
		memset(data + length, 0xaa, length);
		out = 2 * length;
	}
	a = scsi_out(i, cdb_blocks(w->opcode, byte_1, lba, blocks), out, data);
	free(data);
	return a;
}

static uint64_t
written(const struct write *w, uint32_t blocks)
{
	return 512 * (blocks < w->most ? blocks : w->most);
}

static struct pl_counters
counters(struct lab *s)
{
	struct pl_counters c;

	pl_export_counters(s->disk[0].f.ex, &c);
	return c;
}

/* By MODE SELECT(6) of the caching page, in which all else stays as it is. */
static void
set_write_cache(struct initiator *i, bool on)
{
	uint8_t list[4 + 256] = { 0 }, *page = list + 4;
	uint8_t length = (uint8_t)(4 + scsi_mode_page(i, 0x08, page));

	page[2] = (uint8_t)((page[2] & ~0x04) | (on ? 0x04 : 0));
	assert_good(scsi_out(i, CDB(SCSI_MODE_SELECT_6, 0x10, 0, 0, length, 0), length, list));
}

/* ---- with the write ------------------------------------------------------------------ */

TEST(what_was_written_with_fua_survives_every_power_cut)
{
	for_each_fua_kind(fua)
	{
		struct lab s;

		lab_open(&s, WORDS(), CUT(*fua));
		for (unsigned i = 0; i < COUNT(writes); i++) {
			do_write(&s.disk[0].f, 64 * KiB + i * 8 * KiB, 4 * KiB, 0xbb, 0);
			assert_good(run(&s.a, &writes[i], writes[i].byte_1, 8 + 8 * i, 3));
			do_write(&s.disk[0].f, (12 + 8 * i) * 512, 512, 0xcc, 0);
		}
		for_each_crash_image(&s.disk[0].f, im)
		{
			for (unsigned i = 0; i < COUNT(writes); i++)
				assert_bytes(im, (8 + 8 * i) * 512, written(&writes[i], 3), 0xaa);
		}
		lab_close(&s);
	}
}

/* ... and without it may not: else the test above shows nothing. */
TEST(what_was_written_without_fua_may_be_lost)
{
	struct lab s;
	bool lost = false;

	lab_open(&s, WORDS(), CUT("powercut-fua=commit"));
	assert_good(run(&s.a, &writes[2], 0, 0, 8));
	for_each_crash_image(&s.disk[0].f, im) lost |= im->data[0] != 0xaa;
	assert_true(lost);
	lab_close(&s);
}

TEST(one_flush_makes_a_command_stable_and_none_where_writes_are_so)
{
	static const uint32_t lengths[] = { 1, 3, 8, 100, 255 };

	for_each_fua_kind(fua)
	{
		bool native = fua == fua_kinds;
		struct lab s;

		lab_open(&s, WORDS(), CUT(*fua));
		for (unsigned i = 0; i < COUNT(writes); i++) {
			for (unsigned n = 0; n < COUNT(lengths); n++) {
				struct pl_counters before, after;
				uint32_t blocks = lengths[n];

				do_zero(&s.disk[0].f, 0, 256 * KiB, 0);
				before = counters(&s);
				assert_good(run(&s.a, &writes[i], writes[i].byte_1, 8, blocks));
				after = counters(&s);
				printf("%02x, %u blocks\n", writes[i].opcode, blocks);
				if (native && !writes[i].stable) {
					assert_eq(after.groups, before.groups);
					assert_eq(after.fua_native, before.fua_native + 1);
				} else {
					assert_eq(after.groups, before.groups + 1);
				}
				assert_eq(after.flushes, before.flushes);
			}
		}
		lab_close(&s);
	}
}

/* The image is in blocks of 4096 that the page cache knows nothing of, or the other way round:
 * the core splits the command in several requests, and it still owes one flush. */
TEST(one_flush_covers_a_command_however_it_was_split)
{
	static const char *const caches[] = { "cache=writeback", "cache=none" };
	uint8_t *data = test_alloc(16 * MiB);

	for (unsigned i = 0; i < 2; i++) {
		struct pl_counters before, after;
		struct lab s;

		make_image("split.img", 32 * MiB);
		lab_open(&s, WORDS(),
			 WORDS("driver=file", "path=split.img", caches[i], "fua=commit"));
		before = counters(&s);
		assert_good(
			scsi_out(&s.a, cdb_blocks(SCSI_WRITE_16, FUA, 3, 32768), 16 * MiB, data));
		after = counters(&s);
		assert_eq(after.groups, before.groups + 1);
		assert_eq(after.writes, before.writes + 1);
		lab_close(&s);
	}
	free(data);
}

TEST(a_fua_write_that_fails_is_not_good)
{
	static const char *const kinds[] = { "kind=write", "kind=flush" };
	uint8_t data[512] = { 0 };

	log_nothing();
	for (unsigned i = 0; i < 2; i++) {
		struct lab s;

		lab_open(&s, WORDS(),
			 WORDS("driver=fault", "over=powercut,memory", "powercut-fua=commit",
			       "size=1M", "fault=error", kinds[i]));
		assert_sense(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_10, FUA, 0, 1), 512, data),
			     SCSI_MEDIUM_ERROR, 0x0c00);
		/* A failed flush stays: what was lost is lost. */
		if (i == 1)
			assert_sense(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_10, FUA, 0, 1), 512,
					      data),
				     SCSI_MEDIUM_ERROR, 0x0c00);
		assert_good(scsi_in(&s.a, cdb_blocks(SCSI_READ_10, 0, 0, 1), 512, data));
		lab_close(&s);
	}
}

/* ---- with the read ------------------------------------------------------------------- */

TEST(what_is_read_with_fua_or_verified_is_stable)
{
	static const struct {
		uint8_t opcode, byte_1;
		enum direction direction;
	} reads[] = {
		{ SCSI_READ_10, FUA, DATA_IN },         { SCSI_READ_12, FUA, DATA_IN },
		{ SCSI_READ_16, FUA, DATA_IN },         { SCSI_VERIFY_10, 0, DATA_NONE },
		{ SCSI_VERIFY_12, BYTCHK_1, DATA_OUT }, { SCSI_VERIFY_16, 0, DATA_NONE },
	};

	for_each_fua_kind(fua)
	{
		for (unsigned i = 0; i < COUNT(reads); i++) {
			uint8_t data[4096];
			struct pl_counters before;
			struct lab s;

			lab_open(&s, WORDS(), CUT(*fua));
			assert_good(run(&s.b, &writes[2], 0, 8, 8));
			memset(data, 0xaa, sizeof data);
			before = counters(&s);
			assert_good(scsi_do(&s.a,
					    cdb_blocks(reads[i].opcode, reads[i].byte_1, 8, 8),
					    reads[i].direction,
					    reads[i].direction == DATA_NONE ? 0 : 4096, data));
			assert_filled(data, 0xaa, sizeof data);
			assert_eq(counters(&s).groups, before.groups + 1);
			for_each_crash_image(&s.disk[0].f, im) assert_bytes(im, 4096, 4096, 0xaa);
			lab_close(&s);
		}
	}
}

/* It is not that a block could not be read. */
TEST(what_cannot_be_made_stable_before_it_is_read_is_blamed_on_no_block)
{
	uint8_t data[4096];
	struct answer a;
	struct lab s;

	log_nothing();
	lab_open(&s, WORDS(),
		 WORDS("driver=fault", "over=memory", "size=1M", "kind=flush", "fault=error"));
	a = scsi_in(&s.a, cdb_blocks(SCSI_READ_10, FUA, 8, 8), 4096, data);
	assert_eq(a.key, SCSI_MEDIUM_ERROR);
	assert_false(a.has_information);
	a = scsi_none(&s.a, cdb_blocks(SCSI_VERIFY_10, 0, 8, 8));
	assert_eq(a.key, SCSI_MEDIUM_ERROR);
	assert_false(a.has_information);
	assert_good(scsi_in(&s.a, cdb_blocks(SCSI_READ_10, 0, 8, 8), 4096, data));
	lab_close(&s);
}

TEST(a_plain_read_flushes_nothing)
{
	uint8_t data[4096];
	struct lab s;

	lab_open(&s, WORDS(), CUT("powercut-fua=commit"));
	assert_good(run(&s.a, &writes[2], 0, 8, 8));
	assert_good(scsi_in(&s.a, cdb_blocks(SCSI_READ_10, 0, 8, 8), 4096, data));
	assert_eq(counters(&s).groups, 0);
	lab_close(&s);
}

/* ---- SYNCHRONIZE CACHE --------------------------------------------------------------- */

TEST(synchronize_cache_makes_all_stable_that_was_answered)
{
	static const uint8_t opcodes[] = { SCSI_SYNCHRONIZE_CACHE_10, SCSI_SYNCHRONIZE_CACHE_16 };

	for_each_fua_kind(fua)
	{
		for (unsigned i = 0; i < COUNT(opcodes); i++) {
			struct lab s;

			lab_open(&s, WORDS(), CUT(*fua));
			assert_good(run(&s.a, &writes[2], 0, 8, 8));
			assert_good(run(&s.b, &writes[2], 0, 100, 8));
			/* Also with a range, and for all nexuses. */
			assert_good(scsi_none(&s.a, cdb_blocks(opcodes[i], 0, 100, i)));
			assert_eq(counters(&s).groups, 1);
			for_each_crash_image(&s.disk[0].f, im)
				assert_bytes(im, 100 * 512, 4096, 0xaa);
			assert_good(scsi_none(&s.a, cdb_blocks(opcodes[i], 0, 0, 0)));
			for_each_crash_image(&s.disk[0].f, im) assert_bytes(im, 4096, 4096, 0xaa);
			lab_close(&s);
		}
	}
}

#define SLOW_FLUSH \
	WORDS("driver=fault", "over=memory", "size=1M", "kind=flush", "fault=delay", "delay=50ms", \
	      "repeat=forever")

TEST(with_immed_the_answer_comes_before_the_flush_ends_and_the_next_one_after)
{
	struct lab s;

	lab_open(&s, WORDS(), SLOW_FLUSH);
	for (unsigned i = 0; i < 3; i++)
		assert_good(scsi_none(&s.a, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_10, IMMED, 0, 0)));
	assert_eq(counters(&s).flushes, 0); /* that have ended */
	assert_good(scsi_none(&s.b, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_16, 0, 0, 0)));
	/* The one that had begun; that for the two that came meanwhile may still be on its way. */
	assert_true(counters(&s).flushes >= 2);
	lab_close(&s);
}

/* The first flush may have begun before what the others are about was written. */
TEST(with_immed_one_more_flush_is_made_for_those_that_came_while_one_ran)
{
	struct lab s;

	lab_open(&s, WORDS(), SLOW_FLUSH);
	for (unsigned i = 0; i < 5; i++)
		assert_good(scsi_none(&s.a, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_10, IMMED, 0, 0)));
	lab_remove(&s, 0); /* waits */
	assert_eq(counters(&s).flushes, 2);
	lab_close(&s);
}

TEST(with_immed_what_was_written_before_becomes_stable)
{
	struct task task;
	struct lab s;

	lab_open(&s, WORDS(), CUT("powercut-fua=commit"));
	assert_good(run(&s.a, &writes[2], 0, 8, 8));
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_16, IMMED, 0, 0)));
	task = (struct task){ .hold = false };
	while (counters(&s).flushes == 0) {
		task_send(&task, &s.a, 0, CDB(SCSI_TEST_UNIT_READY, 0, 0, 0, 0, 0), DATA_NONE, 0,
			  NULL, SCSI_SIMPLE);
		assert_good(task_wait(&task));
		lab_settle(&s);
	}
	for_each_crash_image(&s.disk[0].f, im) assert_bytes(im, 4096, 4096, 0xaa);
	lab_close(&s);
}

/* Who was answered before the flush failed hears of it once, with the next command; who waits for
 * a flush of its own, by that. */
TEST(with_immed_a_failed_flush_is_told_as_a_deferred_error)
{
	struct cdb ready = CDB(SCSI_TEST_UNIT_READY, 0, 0, 0, 0, 0);
	struct answer a;
	struct lab s;

	log_nothing();
	lab_open(&s, WORDS(),
		 WORDS("driver=fault", "over=memory", "size=1M", "kind=flush", "fault=error",
		       "delay=20ms"));
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_10, IMMED, 0, 0)));
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_10, IMMED, 0, 0)));
	a = scsi_none(&s.b, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_10, 0, 0, 0));
	assert_sense(a, SCSI_MEDIUM_ERROR, 0x0c00);
	assert_false(a.deferred);
	assert_good(scsi_none(&s.b, ready));
	a = scsi_none(&s.a, ready);
	assert_sense(a, SCSI_MEDIUM_ERROR, 0x0c00);
	assert_true(a.deferred);
	assert_good(scsi_none(&s.a, ready));
	lab_close(&s);
}

TEST(a_nexus_and_a_unit_may_go_while_their_flush_runs)
{
	struct lab s;

	lab_open(&s, WORDS(), SLOW_FLUSH);
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_10, IMMED, 0, 0)));
	assert_good(scsi_none(&s.b, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_10, IMMED, 0, 0)));
	logout(&s.a);
	lab_remove(&s, 0);
	lab_close(&s);
}

/* ---- WCE ----------------------------------------------------------------------------- */

/* Everything that changes data. */
static void
change_all(struct lab *s)
{
	static const uint8_t list[] = { 0, 22, 0, 16, [8 + 7] = 140, [8 + 11] = 3, [23] = 0 };
	uint8_t block[512];

	memset(block, 0xaa, sizeof block);
	for (unsigned i = 0; i < COUNT(writes); i++)
		assert_good(run(&s->a, &writes[i], writes[i].byte_1 & (uint8_t)~FUA, 8 * i, 3));
	assert_good(scsi_out(&s->a, cdb_blocks(SCSI_WRITE_6, 0, 100, 1), 512, block));
	assert_good(scsi_out(&s->a, cdb_blocks(SCSI_WRITE_SAME_10, 0, 110, 3), 512, block));
	memset(block, 0, sizeof block);
	assert_good(scsi_out(&s->a, cdb_blocks(SCSI_WRITE_SAME_16, UNMAP, 120, 3), 512, block));
	assert_good(scsi_out(&s->a, cdb_blocks(SCSI_WRITE_SAME_16, 0, 130, 3), 512, block));
	assert_good(scsi_out(&s->a, CDB(SCSI_UNMAP, 0, 0, 0, 0, 0, 0, 0, sizeof list, 0),
			     sizeof list, list));
}

static void
check_all(const struct image *im)
{
	for (unsigned i = 0; i < COUNT(writes); i++)
		assert_bytes(im, 8 * i * 512, written(&writes[i], 3), 0xaa);
	assert_bytes(im, 100 * 512, 512, 0xaa);
	assert_bytes(im, 110 * 512, 3 * 512, 0xaa);
	assert_bytes(im, 120 * 512, 3 * 512, 0);
	assert_bytes(im, 130 * 512, 3 * 512, 0);
	assert_bytes(im, 140 * 512, 3 * 512, 0);
}

TEST(without_write_cache_every_change_is_stable_when_it_is_answered)
{
	for_each_fua_kind(fua)
	{
		struct lab s;

		lab_open(&s, WORDS(), CUT(*fua));
		do_write(&s.disk[0].f, 115 * 512, 40 * 512, 0xdd, PL_FUA); /* to be unmapped */
		set_write_cache(&s.a, false);
		clear_attentions(&s.b);
		change_all(&s);
		for_each_crash_image(&s.disk[0].f, im) check_all(im);
		lab_close(&s);
	}
}

TEST(write_cache_is_flushed_when_it_is_turned_off)
{
	struct lab s;

	lab_open(&s, WORDS(), CUT("powercut-fua=commit"));
	assert_good(run(&s.a, &writes[2], 0, 8, 8));
	set_write_cache(&s.a, false);
	for_each_crash_image(&s.disk[0].f, im) assert_bytes(im, 4096, 4096, 0xaa);
	lab_close(&s);
}

TEST(write_cache_can_be_turned_on_again)
{
	bool lost = false;
	struct lab s;

	lab_open(&s, WORDS(), CUT("powercut-fua=commit"));
	set_write_cache(&s.a, false);
	set_write_cache(&s.a, true);
	assert_good(run(&s.a, &writes[2], 0, 8, 8));
	for_each_crash_image(&s.disk[0].f, im) lost |= im->data[4096] != 0xaa;
	assert_true(lost);
	lab_close(&s);
}
