/* scsi_mode.c - mode pages: what is told, what may be changed, and what follows from it. */
#include "bytes.h"
#include "scsi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY WORDS("driver=memory", "size=1M")

static const uint8_t page_codes[] = { 0x01, 0x02, 0x08, 0x0a, 0x1c };
#define PAGES (sizeof page_codes)

enum { CURRENT = 0x00, CHANGEABLE = 0x40, DEFAULT = 0x80, SAVED = 0xc0 };

static struct cdb
mode_sense_10(uint8_t flags, uint8_t control_and_page, uint8_t subpage, uint16_t length)
{
	return CDB(SCSI_MODE_SENSE_10, flags, control_and_page, subpage, 0, 0, 0,
		   (uint8_t)(length >> 8), (uint8_t)length, 0);
}

/* MODE SELECT(6) of one list. */
static struct answer
mode_select(struct initiator *i, const void *list, unsigned length)
{
	return scsi_out(i, CDB(SCSI_MODE_SELECT_6, 0x10, 0, 0, (uint8_t)length, 0), length, list);
}

/* Sets or clears bits of a page, as an initiator does: reads it, changes it, sends it. */
static struct answer
change(struct initiator *i, uint8_t page, unsigned byte, uint8_t bits, bool on)
{
	uint8_t list[4 + 256] = { 0 };
	unsigned length = scsi_mode_page(i, CURRENT | page, list + 4);

	if (on)
		list[4 + byte] |= bits;
	else
		list[4 + byte] &= (uint8_t)~bits;
	return mode_select(i, list, 4 + length);
}

/* ---- MODE SENSE ------------------------------------------------------------------ */

/* Every page, subpage and page control is data that fits together, or a refusal. */
TEST(every_page_control_and_subpage_is_answered)
{
	static const uint8_t subpages[] = { 0x00, 0x01, 0xff };
	uint8_t data[512];
	struct lab s;
	unsigned good = 0;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned n = 0; n < 256 * sizeof subpages; n++) {
		uint8_t page = (uint8_t)(n % 256), subpage = subpages[n / 256];
		struct answer a = scsi_in(&s.a, mode_sense_10(0x08, page, subpage, 512), 512, data);
		bool known = (page & 0x3f) == 0x3f || memchr(page_codes, page & 0x3f, PAGES);

		if (!known) {
			assert_field(a, 2, 5);
		} else if (subpage == 1) {
			assert_field(a, 3, 7);
		} else if ((page & 0xc0) == SAVED) {
			assert_sense(a, SCSI_ILLEGAL_REQUEST, 0x3900);
		} else {
			assert_good(a);
			assert_eq(get_be16(data) + 2, a.moved);
			good++;
		}
	}
	assert_eq(good, (PAGES + 1) * 3 * 2);
	lab_close(&s);
}

/* Every page with every allocation length: a beginning of the same whole, and never more. */
TEST(mode_sense_6_is_cut_where_the_initiator_says)
{
	uint8_t whole[255], part[255];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned page = 0; page < 0x40; page++) {
		struct cdb cdb = CDB(SCSI_MODE_SENSE_6, 0, (uint8_t)page, 0, 255, 0);
		struct answer all = scsi_in(&s.a, cdb, 255, whole);

		for (unsigned length = 0; length < 256; length++) {
			struct answer a;

			cdb.bytes[4] = (uint8_t)length;
			a = scsi_in(&s.a, cdb, 255, part);
			assert_eq(a.status, all.status);
			assert_eq(a.moved, length < all.moved ? length : all.moved);
			assert_mem(part, whole, a.moved);
		}
	}
	lab_close(&s);
}

TEST(all_pages_are_each_page_in_order)
{
	uint8_t all[256], one[256];
	struct lab s;
	unsigned length, at = 0;

	lab_open(&s, WORDS(), MEMORY);
	length = scsi_mode_page(&s.a, CURRENT | 0x3f, all);
	for (unsigned i = 0; i < PAGES; i++) {
		unsigned n = scsi_mode_page(&s.a, CURRENT | page_codes[i], one);

		assert_eq(one[0], page_codes[i]);
		assert_eq(one[1] + 2, n);
		assert_mem(all + at, one, n);
		at += n;
	}
	assert_eq(at, length);
	lab_close(&s);
}

TEST(block_descriptors_are_short_long_or_left_out)
{
	uint8_t data[256];
	struct lab s;

	lab_open(&s, WORDS("block-size=4096"), MEMORY);
	assert_good(scsi_in(&s.a, CDB(SCSI_MODE_SENSE_6, 0, 0x08, 0, 255, 0), 255, data));
	assert_mem(data + 3, "\x08\0\0\x01\0\0\0\x10\0\x08", 10);
	assert_good(scsi_in(&s.a, CDB(SCSI_MODE_SENSE_6, 0x08, 0x08, 0, 255, 0), 255, data));
	assert_mem(data + 3, "\x00\x08\x12", 3);
	assert_good(scsi_in(&s.a, mode_sense_10(0x10, 0x08, 0, 256), 256, data));
	assert_mem(data + 4, "\x01\0\0\x10\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x10\0\x08", 21);
	assert_good(scsi_in(&s.a, mode_sense_10(0x18, 0x08, 0, 256), 256, data)); /* LLBAA, DBD */
	assert_mem(data + 4, "\x01\0\0\0\x08", 5);
	lab_close(&s);
}

TEST(write_protection_and_fua_show_in_the_header)
{
	uint8_t data[4];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(scsi_in(&s.a, CDB(SCSI_MODE_SENSE_6, 0, 0x3f, 0, 4, 0), 4, data));
	assert_eq(data[2], 0x10);
	lab_close(&s);
	lab_open_flags(&s, WORDS(), MEMORY, PL_OPEN_READ_ONLY);
	assert_good(scsi_in(&s.a, CDB(SCSI_MODE_SENSE_6, 0, 0x3f, 0, 4, 0), 4, data));
	assert_eq(data[2], 0x90);
	lab_close(&s);
	lab_open(&s, WORDS("dpofua=off"), MEMORY);
	assert_good(scsi_in(&s.a, CDB(SCSI_MODE_SENSE_6, 0, 0x3f, 0, 4, 0), 4, data));
	assert_eq(data[2], 0x00);
	lab_close(&s);
}

/* ---- MODE SELECT ----------------------------------------------------------------- */

/* Each bit of each page is tried: the mask is neither more nor less than what can be changed. */
TEST(exactly_the_changeable_bits_can_be_changed)
{
	struct lab s;
	unsigned changed = 0;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned i = 0; i < PAGES; i++) {
		uint8_t mask[256], now[256], list[4 + 256] = { 0 };
		unsigned length = scsi_mode_page(&s.a, CHANGEABLE | page_codes[i], mask);

		scsi_mode_page(&s.a, CURRENT | page_codes[i], now);
		for (unsigned bit = 16; bit < length * 8; bit++) {
			uint8_t flip = (uint8_t)(1 << bit % 8);
			struct answer a;

			memcpy(list + 4, now, length);
			list[4 + bit / 8] ^= flip;
			a = mode_select(&s.a, list, 4 + length);
			if ((mask[bit / 8] & flip) != 0) {
				uint8_t then[256];

				assert_good(a);
				scsi_mode_page(&s.a, CURRENT | page_codes[i], then);
				assert_mem(then, list + 4, length);
				memcpy(list + 4, now, length);
				assert_good(mode_select(&s.a, list, 4 + length));
				changed++;
			} else {
				assert_parameter(a, 4 + bit / 8, (int)(bit % 8));
			}
		}
	}
	assert_eq(changed, 4); /* WCE, D_SENSE, SWP, TAS */
	lab_close(&s);
}

TEST(a_list_that_is_cut_is_a_length_error)
{
	uint8_t list[4 + 8 + 256] = { [3] = 8 };
	struct lab s;
	unsigned length;

	lab_open(&s, WORDS(), MEMORY);
	put_be24(list + 4 + 5, 512);
	length = 12 + scsi_mode_page(&s.a, CURRENT | 0x08, list + 12);
	assert_good(mode_select(&s.a, list, 0));
	for (unsigned n = 1; n <= length; n++) {
		struct answer a = mode_select(&s.a, list, n);

		/* The header alone, or with its descriptor, is whole. */
		if (n == 12 || n == length)
			assert_good(a);
		else
			assert_sense(a, SCSI_ILLEGAL_REQUEST, 0x1a00);
	}
	/* Less comes than the CDB says. */
	assert_sense(scsi_out(&s.a, CDB(SCSI_MODE_SELECT_6, 0x10, 0, 0, (uint8_t)length, 0), 12,
			      list),
		     SCSI_ILLEGAL_REQUEST, 0x1a00);
	lab_close(&s);
}

TEST(the_block_length_cannot_be_changed)
{
	static const uint32_t lengths[] = { 0, 1, 256, 511, 513, 4096, 65024, 0xffffff };
	uint8_t list[12] = { [3] = 8 }, ten[24] = { [4] = 1, [7] = 16 }, data[8];
	struct cdb select_10 = CDB(SCSI_MODE_SELECT_10, 0x10, 0, 0, 0, 0, 0, 0, 24, 0);
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned i = 0; i < sizeof lengths / sizeof *lengths; i++) {
		put_be24(list + 9, lengths[i]);
		assert_sense(mode_select(&s.a, list, 12), SCSI_ILLEGAL_REQUEST, 0x2600);
		put_be32(ten + 20, lengths[i]);
		assert_sense(scsi_out(&s.a, select_10, 24, ten), SCSI_ILLEGAL_REQUEST, 0x2600);
	}
	put_be24(list + 9, 512);
	assert_good(mode_select(&s.a, list, 12));
	put_be32(list + 4, 2048);
	assert_good(mode_select(&s.a, list, 12));
	put_be32(list + 4, 2047);
	assert_parameter(mode_select(&s.a, list, 12), 6, 3);
	put_be32(ten + 20, 512);
	assert_good(scsi_out(&s.a, select_10, 24, ten));
	put_be64(ten + 8, 4096);
	assert_parameter(scsi_out(&s.a, select_10, 24, ten), 14, 4);
	assert_good(scsi_in(&s.a, CDB(SCSI_READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0), 8, data));
	assert_eq(get_be32(data + 4), 512);
	list[3] = 9;
	assert_parameter(mode_select(&s.a, list, 12), 3, 7);
	lab_close(&s);
}

TEST(pages_that_are_not_there_are_refused_where_they_stand)
{
	uint8_t list[32] = { 0 };
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	list[4] = 0x2a;
	list[5] = 0x02;
	assert_parameter(mode_select(&s.a, list, 8), 4, 5);
	list[4] = 0x48; /* a subpage */
	assert_parameter(mode_select(&s.a, list, 8), 4, 6);
	list[4] = 0x88; /* PS */
	assert_parameter(mode_select(&s.a, list, 8), 4, 7);
	list[4] = 0x08;
	assert_parameter(mode_select(&s.a, list, 8), 5, 7); /* its length */
	list[1] = 1;
	assert_parameter(mode_select(&s.a, list, 4), 1, 7); /* medium type */
	assert_field(scsi_out(&s.a, CDB(SCSI_MODE_SELECT_6, 0x11, 0, 0, 4, 0), 4, list), 1,
		     0); /* SP */
	assert_field(scsi_out(&s.a, CDB(SCSI_MODE_SELECT_6, 0x00, 0, 0, 4, 0), 4, list), 1,
		     4); /* PF */
	lab_close(&s);
}

/* Nothing of a list is done unless all of it can be. */
TEST(a_list_is_taken_whole_or_not_at_all)
{
	uint8_t list[4 + 256] = { 0 }, then[256];
	struct lab s;
	unsigned length;

	lab_open(&s, WORDS(), MEMORY);
	length = scsi_mode_page(&s.a, CURRENT | 0x0a, list + 4);
	list[4 + 2] |= 0x04; /* D_SENSE */
	length += scsi_mode_page(&s.a, CURRENT | 0x08, list + 4 + length);
	list[4 + length - 1] = 1;
	assert_sense(mode_select(&s.a, list, 4 + length), SCSI_ILLEGAL_REQUEST, 0x2600);
	scsi_mode_page(&s.a, CURRENT | 0x0a, then);
	assert_eq(then[2] & 0x04, 0);
	list[4 + length - 1] = 0;
	assert_good(mode_select(&s.a, list, 4 + length));
	scsi_mode_page(&s.a, CURRENT | 0x0a, then);
	assert_eq(then[2] & 0x04, 0x04);
	lab_close(&s);
}

/* ---- what follows ---------------------------------------------------------------- */

TEST(other_initiators_hear_of_a_change_and_of_nothing_else)
{
	struct cdb ready = CDB(SCSI_TEST_UNIT_READY, 0, 0, 0, 0, 0);
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(change(&s.a, 0x0a, 5, 0x40, false)); /* as it is */
	assert_good(scsi_none(&s.b, ready));
	assert_good(change(&s.a, 0x0a, 5, 0x40, true));
	assert_good(scsi_none(&s.a, ready));
	assert_sense(scsi_none(&s.b, ready), SCSI_UNIT_ATTENTION, SCSI_MODE_PARAMETERS_CHANGED);
	assert_good(scsi_none(&s.b, ready));
	lab_close(&s);
}

TEST(d_sense_chooses_the_format_of_sense_data)
{
	struct cdb wrong = CDB(0x02, 0, 0, 0, 0, 0);
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_false(scsi_none(&s.a, wrong).descriptor);
	assert_good(change(&s.a, 0x0a, 2, 0x04, true));
	assert_true(scsi_none(&s.a, wrong).descriptor);
	lab_close(&s);
}

TEST(swp_protects_until_it_is_taken_back)
{
	uint8_t block[512] = { 1 }, header[4];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(change(&s.a, 0x0a, 4, 0x08, true));
	assert_sense(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_10, 0, 0, 1), 512, block),
		     SCSI_DATA_PROTECT, 0x2700);
	assert_good(scsi_in(&s.a, CDB(SCSI_MODE_SENSE_6, 0, 0x3f, 0, 4, 0), 4, header));
	assert_eq(header[2] & 0x80, 0x80);
	assert_good(change(&s.a, 0x0a, 4, 0x08, false));
	scsi_write_blocks(&s.a, 0, 1, block, 0);
	lab_close(&s);
}

TEST(what_is_on_its_way_when_swp_protects_is_not_written)
{
	struct task t = { .hold = true };
	uint8_t block[512] = { 1 };
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	task_send(&t, &s.b, 0, cdb_blocks(SCSI_WRITE_10, 0, 0, 1), DATA_OUT, 512, block,
		  SCSI_SIMPLE);
	assert_good(change(&s.a, 0x0a, 4, 0x08, true));
	task_give(&t, 0);
	assert_sense(task_wait(&t), SCSI_DATA_PROTECT, 0x2700);
	check_bytes(&s.disk[0].f, 0, 512, 0);
	lab_close(&s);
}

/* Without write cache, what was written before and what is written after survives. */
TEST(wce_off_flushes_first_and_then_every_write_is_stable)
{
	uint8_t block[512];
	struct pl_counters before, after;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	memset(block, 0xaa, sizeof block);
	scsi_write_blocks(&s.a, 0, 1, block, 0);
	pl_export_counters(s.disk[0].f.ex, &before);
	assert_good(change(&s.a, 0x08, 2, 0x04, false));
	pl_export_counters(s.disk[0].f.ex, &after);
	assert_eq(after.flushes, before.flushes + 1);
	memset(block, 0xbb, sizeof block);
	scsi_write_blocks(&s.a, 1, 1, block, 0);
	pl_export_counters(s.disk[0].f.ex, &before);
	assert_eq(before.fua_native + before.committed, after.fua_native + after.committed + 1);
	assert_good(change(&s.a, 0x08, 2, 0x04, true));
	scsi_write_blocks(&s.a, 2, 1, block, 0);
	pl_export_counters(s.disk[0].f.ex, &after);
	assert_eq(after.fua_native + after.committed, before.fua_native + before.committed);
	lab_close(&s);
}

TEST(a_flush_that_fails_leaves_the_write_cache_on)
{
	uint8_t page[256], block[512] = { 1 };
	struct lab s;

	log_nothing();
	lab_open(&s, WORDS(), WORDS("driver=fault", "over=memory", "size=1M", "kind=flush"));
	scsi_write_blocks(&s.a, 0, 1, block, 0);
	assert_sense(change(&s.a, 0x08, 2, 0x04, false), SCSI_MEDIUM_ERROR, 0x0c00);
	scsi_mode_page(&s.a, CURRENT | 0x08, page);
	assert_eq(page[2] & 0x04, 0x04);
	assert_good(scsi_none(&s.b, CDB(SCSI_TEST_UNIT_READY, 0, 0, 0, 0, 0)));
	lab_close(&s);
}

/* What was written before is stable before nothing more can be written. */
TEST(a_flush_that_fails_leaves_the_unit_writable)
{
	uint8_t page[256], block[512] = { 1 };
	struct lab s;

	log_nothing();
	lab_open(&s, WORDS(), WORDS("driver=fault", "over=memory", "size=1M", "kind=flush"));
	scsi_write_blocks(&s.a, 0, 1, block, 0);
	assert_sense(change(&s.a, 0x0a, 4, 0x08, true), SCSI_MEDIUM_ERROR, 0x0c00);
	scsi_mode_page(&s.a, CURRENT | 0x0a, page);
	assert_eq(page[4] & 0x08, 0);
	lab_close(&s);
}

/* What is written is stable at once whatever is asked for: there is nothing to switch. */
TEST(wce_is_off_and_stays_off_where_the_export_writes_through)
{
	const char *modes[] = { "cache=writethrough", "cache=directsync" };
	uint8_t page[256];

	for (unsigned n = 0; n < 2; n++) {
		struct lab s;

		make_image("disk.img", 1 * MiB);
		lab_open(&s, WORDS(), WORDS("path=disk.img", modes[n]));
		for (unsigned control = CURRENT; control <= DEFAULT; control += 0x40) {
			scsi_mode_page(&s.a, (uint8_t)(control | 0x08), page);
			assert_eq(page[2] & 0x04, 0);
		}
		assert_parameter(change(&s.a, 0x08, 2, 0x04, true), 6, 2);
		lab_close(&s);
	}
}

TEST(a_reset_brings_the_defaults_back)
{
	uint8_t page[256];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(change(&s.a, 0x08, 2, 0x04, false));
	assert_good(change(&s.a, 0x0a, 4, 0x08, true));
	assert_eq(manage(&s.a, SCSI_LOGICAL_UNIT_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	clear_attentions(&s.a);
	scsi_mode_page(&s.a, CURRENT | 0x08, page);
	assert_eq(page[2] & 0x04, 0x04);
	scsi_mode_page(&s.a, CURRENT | 0x0a, page);
	assert_eq(page[4] & 0x08, 0);
	lab_close(&s);
}

TEST(a_change_that_a_reset_ends_does_not_come_after_it)
{
	uint8_t list[4 + 20] = { [4] = 0x08, [5] = 0x12 }, page[256]; /* WCE off */
	struct task t = { .hold = false };
	struct lab s;

	lab_open(&s, WORDS(),
		 WORDS("driver=fault", "over=memory", "size=1M", "kind=flush", "fault=delay",
		       "delay=200ms"));
	task_send(&t, &s.a, 0, CDB(SCSI_MODE_SELECT_6, 0x10, 0, 0, 24, 0), DATA_OUT, 24, list,
		  SCSI_SIMPLE);
	lab_settle(&s);
	assert_false(t.done);
	assert_eq(manage(&s.b, SCSI_LOGICAL_UNIT_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_true(t.done && t.answer.aborted);
	assert_sense(scsi_none(&s.b, cdb_hex("000000000000")), SCSI_UNIT_ATTENTION,
		     SCSI_BUS_DEVICE_RESET);
	scsi_mode_page(&s.b, CURRENT | 0x08, page);
	assert_eq(page[2] & 0x04, 0x04);
	lab_close(&s);
}
