/* scsi_medium.c - stopped, ejected, prevented: when a unit is ready, and for whom. */
#include "bytes.h"
#include "scsi.h"

#include <stdlib.h>
#include <string.h>

#define MEMORY WORDS("driver=memory", "size=1M")

#define START 0x01
#define LOEJ  0x02

static struct answer
start_stop(struct initiator *i, uint8_t bits)
{
	return scsi_none(i, CDB(SCSI_START_STOP_UNIT, 0, 0, 0, bits, 0));
}

static struct answer
ready(struct initiator *i)
{
	return scsi_none(i, CDB(SCSI_TEST_UNIT_READY, 0, 0, 0, 0, 0));
}

static struct answer
prevent(struct initiator *i, bool on)
{
	return scsi_none(i, CDB(SCSI_PREVENT_ALLOW_MEDIUM_REMOVAL, 0, 0, 0, on, 0));
}

/* ---- stopped --------------------------------------------------------------------- */

TEST(a_stopped_unit_is_not_ready_for_anyone_until_it_is_started)
{
	uint8_t data[512];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(start_stop(&s.a, 0));
	for (struct initiator *i = &s.a; i <= &s.b; i++) {
		assert_sense(ready(i), SCSI_NOT_READY, 0x0402);
		assert_sense(scsi_in(i, cdb_blocks(SCSI_READ_10, 0, 0, 1), 512, data),
			     SCSI_NOT_READY, 0x0402);
		assert_good(scsi_in(i, CDB(SCSI_INQUIRY, 0, 0, 0, 96, 0), 96, data));
		assert_good(scsi_in(i, CDB(SCSI_MODE_SENSE_6, 0, 0x3f, 0, 255, 0), 255, data));
	}
	assert_good(start_stop(&s.b, START));
	assert_good(ready(&s.a));
	assert_good(scsi_in(&s.a, cdb_blocks(SCSI_READ_10, 0, 0, 1), 512, data));
	lab_close(&s);
}

TEST(a_power_condition_or_a_reset_ends_the_stop)
{
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(start_stop(&s.a, 0));
	assert_good(start_stop(&s.a, 1 << 4)); /* ACTIVE */
	assert_good(ready(&s.a));
	assert_good(start_stop(&s.a, 0));
	assert_eq(manage(&s.b, SCSI_LOGICAL_UNIT_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	clear_attentions(&s.a);
	assert_good(ready(&s.a));
	lab_close(&s);
}

TEST(power_conditions_that_do_not_exist_are_refused)
{
	const unsigned known = 1 << 0 | 1 << 1 | 1 << 2 | 1 << 3 | 1 << 7 | 1 << 10 | 1 << 11;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	for (uint8_t condition = 1; condition < 16; condition++) {
		struct answer a = start_stop(&s.a, (uint8_t)(condition << 4));

		if ((known & 1u << condition) != 0)
			assert_good(a);
		else
			assert_field(a, 4, 7);
		assert_good(ready(&s.a));
	}
	lab_close(&s);
}

TEST(what_was_written_is_stable_before_the_unit_stops)
{
	static const uint8_t bits[] = { 0, 3 << 4 /* STANDBY */, 0x04 /* NO_FLUSH */ };
	uint8_t block[512] = { 1 };

	for (unsigned n = 0; n < sizeof bits; n++) {
		struct pl_counters before, after;
		struct lab s;

		lab_open(&s, WORDS(), MEMORY);
		scsi_write_blocks(&s.a, 0, 1, block, 0);
		pl_export_counters(s.disk[0].f.ex, &before);
		assert_good(start_stop(&s.a, bits[n]));
		pl_export_counters(s.disk[0].f.ex, &after);
		assert_eq(after.flushes, before.flushes + 1);
		lab_close(&s);
	}
}

TEST(what_is_on_its_way_when_the_unit_stops_is_not_written)
{
	struct task t = { .hold = true };
	uint8_t block[512] = { 1 };
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	task_send(&t, &s.b, 0, cdb_blocks(SCSI_WRITE_10, 0, 0, 1), DATA_OUT, 512, block,
		  SCSI_SIMPLE);
	assert_good(start_stop(&s.a, 0));
	task_give(&t, 0);
	assert_sense(task_wait(&t), SCSI_NOT_READY, 0x0402);
	check_bytes(&s.disk[0].f, 0, 512, 0);
	lab_close(&s);
}

TEST(a_stop_that_a_reset_ends_does_not_come_after_it)
{
	struct task t = { .hold = false };
	struct lab s;

	lab_open(&s, WORDS(),
		 WORDS("driver=fault", "over=memory", "size=1M", "kind=flush", "fault=delay",
		       "delay=200ms"));
	task_send(&t, &s.a, 0, CDB(SCSI_START_STOP_UNIT, 0, 0, 0, 0, 0), DATA_NONE, 0, NULL,
		  SCSI_SIMPLE);
	lab_settle(&s);
	assert_false(t.done);
	assert_eq(manage(&s.b, SCSI_LOGICAL_UNIT_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_true(t.done && t.answer.aborted);
	clear_attentions(&s.b);
	assert_good(ready(&s.b));
	lab_close(&s);
}

TEST(a_unit_that_cannot_flush_does_not_stop)
{
	uint8_t block[512] = { 1 };
	struct lab s;

	log_nothing();
	lab_open(&s, WORDS(), WORDS("driver=fault", "over=memory", "size=1M", "kind=flush"));
	scsi_write_blocks(&s.a, 0, 1, block, 0);
	assert_sense(start_stop(&s.a, 0), SCSI_MEDIUM_ERROR, 0x0c00);
	assert_good(ready(&s.a));
	lab_close(&s);
}

TEST(a_read_only_unit_stops_too)
{
	struct lab s;

	lab_open_flags(&s, WORDS(), MEMORY, PL_OPEN_READ_ONLY);
	assert_good(start_stop(&s.a, 0));
	assert_sense(ready(&s.a), SCSI_NOT_READY, 0x0402);
	assert_good(start_stop(&s.a, START));
	assert_good(ready(&s.a));
	lab_close(&s);
}

/* ---- ejected --------------------------------------------------------------------- */

TEST(a_fixed_medium_cannot_be_ejected)
{
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_field(start_stop(&s.a, LOEJ), 4, 1);
	assert_field(start_stop(&s.a, LOEJ | START), 4, 1);
	assert_good(prevent(&s.a, true)); /* for initiators that do it unasked */
	assert_good(prevent(&s.a, false));
	assert_good(ready(&s.a));
	lab_close(&s);
}

TEST(an_ejected_medium_is_gone_until_it_is_loaded)
{
	uint8_t data[512];
	struct lab s;

	lab_open(&s, WORDS("removable=on"), MEMORY);
	assert_good(start_stop(&s.a, LOEJ));
	assert_sense(ready(&s.b), SCSI_NOT_READY, 0x3a00);
	assert_sense(scsi_in(&s.a, CDB(SCSI_READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0), 8, data),
		     SCSI_NOT_READY, 0x3a00);
	assert_sense(start_stop(&s.a, START), SCSI_NOT_READY, 0x3a00);
	assert_good(start_stop(&s.a, LOEJ)); /* once more */
	assert_eq(manage(&s.b, SCSI_LOGICAL_UNIT_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_sense(ready(&s.a), SCSI_UNIT_ATTENTION, SCSI_BUS_DEVICE_RESET);
	assert_sense(ready(&s.a), SCSI_NOT_READY, 0x3a00);
	clear_attentions(&s.b);
	assert_good(start_stop(&s.a, LOEJ | START));
	assert_good(ready(&s.a));
	assert_sense(ready(&s.b), SCSI_UNIT_ATTENTION, SCSI_MEDIUM_MAY_HAVE_CHANGED);
	assert_good(ready(&s.b));
	assert_good(scsi_in(&s.a, cdb_blocks(SCSI_READ_10, 0, 0, 1), 512, data));
	lab_close(&s);
}

/* As drives with removable media do; what was written is stable all the same. */
TEST(a_removable_unit_is_stopped_only_by_ejecting)
{
	struct lab s;

	lab_open(&s, WORDS("removable=on"), MEMORY);
	assert_good(start_stop(&s.a, 0));
	assert_good(ready(&s.a));
	for (unsigned condition = 1; condition < 16; condition++) {
		assert_good(start_stop(&s.a, (uint8_t)(condition << 4 | LOEJ)));
		assert_good(ready(&s.a));
	}
	lab_close(&s);
}

/* ---- prevented ------------------------------------------------------------------- */

TEST(removal_waits_for_everyone_who_prevents_it)
{
	struct lab s;

	lab_open(&s, WORDS("removable=on"), MEMORY);
	assert_good(prevent(&s.a, true));
	assert_good(prevent(&s.a, true)); /* counts once */
	assert_good(prevent(&s.b, true));
	assert_sense(start_stop(&s.a, LOEJ), SCSI_ILLEGAL_REQUEST, 0x5302);
	assert_good(prevent(&s.a, false));
	assert_sense(start_stop(&s.a, LOEJ), SCSI_ILLEGAL_REQUEST, 0x5302);
	assert_good(ready(&s.a));
	assert_good(prevent(&s.b, false));
	assert_good(start_stop(&s.a, LOEJ));
	assert_good(prevent(&s.b, true)); /* without medium, too: none can be put in */
	assert_sense(start_stop(&s.a, LOEJ | START), SCSI_ILLEGAL_REQUEST, 0x5302);
	assert_good(prevent(&s.b, false));
	assert_good(start_stop(&s.a, LOEJ | START));
	lab_close(&s);
}

TEST(who_logs_out_prevents_nothing_any_more)
{
	struct lab s;

	lab_open(&s, WORDS("removable=on"), MEMORY);
	assert_good(prevent(&s.b, true));
	assert_sense(start_stop(&s.a, LOEJ), SCSI_ILLEGAL_REQUEST, 0x5302);
	logout(&s.b);
	assert_good(start_stop(&s.a, LOEJ));
	lab_close(&s);
}

TEST(a_reset_allows_removal)
{
	struct lab s;

	lab_open(&s, WORDS("removable=on"), MEMORY);
	assert_good(prevent(&s.b, true));
	assert_eq(manage(&s.b, SCSI_I_T_NEXUS_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_good(start_stop(&s.a, LOEJ));
	assert_good(start_stop(&s.a, LOEJ | START));
	clear_attentions(&s.b);
	assert_good(prevent(&s.b, true));
	assert_eq(manage(&s.a, SCSI_LOGICAL_UNIT_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	clear_attentions(&s.a);
	assert_good(start_stop(&s.a, LOEJ));
	clear_attentions(&s.b);
	assert_good(prevent(&s.b, false)); /* counts nothing twice */
	assert_good(start_stop(&s.a, LOEJ | START));
	assert_good(start_stop(&s.a, LOEJ));
	lab_close(&s);
}

/* ---- reservations ---------------------------------------------------------------- */

TEST(a_reservation_allows_starting_and_allowing_only)
{
	struct lab s;

	lab_open(&s, WORDS("removable=on"), MEMORY);
	assert_good(scsi_none(&s.a, CDB(SCSI_RESERVE_6, 0, 0, 0, 0, 0)));
	assert_good(start_stop(&s.b, START));
	assert_good(prevent(&s.b, false));
	assert_status(start_stop(&s.b, 0), SCSI_RESERVATION_CONFLICT);
	assert_status(start_stop(&s.b, LOEJ), SCSI_RESERVATION_CONFLICT);
	assert_status(start_stop(&s.b, LOEJ | START), SCSI_RESERVATION_CONFLICT);
	assert_status(start_stop(&s.b, 1 << 4), SCSI_RESERVATION_CONFLICT);
	assert_status(prevent(&s.b, true), SCSI_RESERVATION_CONFLICT);
	assert_good(start_stop(&s.a, LOEJ)); /* who has it may */
	assert_good(scsi_none(&s.a, CDB(SCSI_RELEASE_6, 0, 0, 0, 0, 0)));
	lab_close(&s);
}
