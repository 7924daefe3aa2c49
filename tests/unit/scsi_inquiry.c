/*
 * scsi_inquiry.c - who a unit is: INQUIRY, VPD pages, REQUEST SENSE, target port groups, log and
 * diagnostic pages.
 *
 * What the bytes are is in golden files (scsi_profile.c); here is what holds for all of them.
 */
#include "bytes.h"
#include "scsi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MEMORY WORDS("driver=memory", "size=1M")

static struct cdb
inquiry(uint8_t flags, uint8_t page, uint16_t length)
{
	return CDB(SCSI_INQUIRY, flags, page, (uint8_t)(length >> 8), (uint8_t)length, 0);
}

static struct cdb
request_sense(bool descriptor)
{
	return CDB(SCSI_REQUEST_SENSE, descriptor, 0, 0, SCSI_SENSE_MAX, 0);
}

static struct cdb
log_sense(uint8_t page, uint8_t subpage)
{
	return CDB(SCSI_LOG_SENSE, 0, page, subpage, 0, 0, 0, 2, 0, 0);
}

static struct answer
sense_of(struct initiator *i, bool descriptor)
{
	uint8_t data[SCSI_SENSE_MAX];
	struct answer a = scsi_in(i, request_sense(descriptor), sizeof data, data), sense;

	assert_good(a);
	answer_decode(&sense, data, a.moved);
	assert_eq(sense.descriptor, descriptor);
	return sense;
}

/* ---- INQUIRY --------------------------------------------------------------------- */

TEST(page_00_lists_in_order_exactly_the_pages_that_answer)
{
	uint8_t list[256], data[1024];
	struct lab s;
	unsigned n = 0;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(scsi_in(&s.a, inquiry(1, 0, sizeof list), sizeof list, list));
	for (unsigned page = 0; page < 256; page++) {
		struct answer a = scsi_in(&s.a, inquiry(1, (uint8_t)page, 1024), 1024, data);

		if (n < get_be16(list + 2) && list[4 + n] == page) {
			n++;
			assert_good(a);
			assert_eq(data[0], 0);
			assert_eq(data[1], page);
			assert_eq(get_be16(data + 2) + 4, a.moved);
		} else {
			assert_sense(a, SCSI_ILLEGAL_REQUEST, 0x2400);
			assert_field(a, 2, 7);
		}
	}
	assert_eq(n, get_be16(list + 2));
	assert_true(n >= 10);
	lab_close(&s);
}

/* Whatever part is asked for, it is the beginning of the same whole. */
TEST(a_short_allocation_length_cuts_and_changes_nothing)
{
	static const uint8_t pages[] = { 0x00, 0x80, 0x83, 0x86, 0xb0, 0xb1, 0xb2 };
	uint8_t whole[512], part[512];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned p = 0; p <= sizeof pages; p++) {
		uint8_t flag = p < sizeof pages, page = p < sizeof pages ? pages[p] : 0;
		struct answer all = scsi_in(&s.a, inquiry(flag, page, 512), 512, whole);

		assert_good(all);
		for (uint16_t length = 0; length <= all.moved; length++) {
			struct answer a = scsi_in(&s.a, inquiry(flag, page, length), 512, part);

			assert_good(a);
			assert_eq(a.moved, length);
			assert_eq(a.residual, SCSI_UNDERFLOW);
			assert_eq(a.residual_count, 512 - length);
			assert_mem(part, whole, length);
		}
	}
	lab_close(&s);
}

TEST(a_page_without_evpd_is_refused_where_it_stands)
{
	uint8_t data[64];
	struct lab s;
	struct answer a;

	lab_open(&s, WORDS(), MEMORY);
	a = scsi_in(&s.a, inquiry(0, 0x83, 64), 64, data);
	assert_sense(a, SCSI_ILLEGAL_REQUEST, 0x2400);
	assert_field(a, 2, 7);
	a = scsi_in(&s.a, inquiry(2, 0, 64), 64, data); /* CMDDT, of old */
	assert_field(a, 1, 1);
	lab_close(&s);
}

TEST(a_lun_without_a_unit_says_so)
{
	uint8_t data[128];
	struct lab s;
	struct answer a, sense;

	lab_open(&s, WORDS(), MEMORY);
	a = scsi_do_lun(&s.a, 5, inquiry(0, 0, 96), DATA_IN, 96, data);
	assert_good(a);
	assert_eq(data[0], 0x7f);
	assert_eq(data[4] + 5, a.moved);
	a = scsi_do_lun(&s.a, 5, inquiry(1, 0, 96), DATA_IN, 96, data);
	assert_good(a);
	assert_mem(data, "\x7f\x00\x00\x01\x00", 5);
	assert_sense(scsi_do_lun(&s.a, 5, inquiry(1, 0x83, 96), DATA_IN, 96, data),
		     SCSI_ILLEGAL_REQUEST, 0x2400);
	a = scsi_do_lun(&s.a, 5, request_sense(false), DATA_IN, SCSI_SENSE_MAX, data);
	assert_good(a);
	answer_decode(&sense, data, a.moved);
	assert_eq(sense.key, SCSI_ILLEGAL_REQUEST);
	assert_eq(sense.asc, 0x2500);
	lab_close(&s);
}

/* Two units, and the same unit made anew. */
TEST(names_differ_by_unit_and_stay_over_a_restart)
{
	uint8_t first[2][512], again[512];
	uint8_t pages[] = { 0x80, 0x83 };
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	lab_add(&s, WORDS(), MEMORY, 0);
	for (unsigned p = 0; p < 2; p++) {
		memset(first, 0, sizeof first);
		for (unsigned lun = 0; lun < 2; lun++)
			assert_good(scsi_do_lun(&s.a, lun, inquiry(1, pages[p], 512), DATA_IN, 512,
						first[lun]));
		assert_ne(memcmp(first[0] + 8, first[1] + 8, 32), 0);
		assert_eq(p == 1 ? first[0][8] >> 4 : 3, 3); /* NAA, locally assigned */
		lab_restart(&s);
		memset(again, 0, sizeof again);
		assert_good(scsi_do_lun(&s.a, 1, inquiry(1, pages[p], 512), DATA_IN, 512, again));
		assert_mem(again, first[1], 512);
	}
	lab_close(&s);
}

/* ---- REQUEST SENSE --------------------------------------------------------------- */

TEST(request_sense_takes_a_unit_attention_with_it)
{
	uint8_t data[96];
	struct lab s;
	struct answer a;

	lab_open(&s, WORDS(), MEMORY);
	login(&s, &s.c, "c", 3);
	assert_good(scsi_in(&s.c, inquiry(0, 0, 96), 96, data)); /* does not */
	for (unsigned n = 0; n < 2; n++) {
		a = sense_of(&s.c, n == 1);
		assert_eq(a.key, n == 0 ? SCSI_UNIT_ATTENTION : SCSI_NO_SENSE);
		assert_eq(a.asc, n == 0 ? SCSI_POWER_ON_RESET : 0);
	}
	assert_good(scsi_none(&s.c, CDB(SCSI_TEST_UNIT_READY, 0, 0, 0, 0, 0)));
	lab_close(&s);
}

TEST(request_sense_tells_that_a_unit_is_not_ready)
{
	struct lab s;
	struct answer a;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(scsi_none(&s.a, CDB(SCSI_START_STOP_UNIT, 0, 0, 0, 0, 0)));
	for (unsigned n = 0; n < 2; n++) { /* as long as it lasts */
		a = sense_of(&s.a, true);
		assert_eq(a.key, SCSI_NOT_READY);
		assert_eq(a.asc, 0x0402);
	}
	assert_good(scsi_none(&s.a, CDB(SCSI_START_STOP_UNIT, 0, 0, 0, 1, 0)));
	assert_eq(sense_of(&s.a, false).key, SCSI_NO_SENSE);
	lab_close(&s);
}

/* ---- REPORT TARGET PORT GROUPS --------------------------------------------------- */

TEST(the_one_port_is_active_in_either_format)
{
	uint8_t data[64];
	struct lab s;
	struct answer a;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned format = 0; format < 8; format++) {
		uint8_t group[] = { 0x00, 0x01, 0, 1, 0, 0, 0, 1, 0, 0, 0, 1 };

		a = scsi_in(&s.a,
			    CDB(SCSI_MAINTENANCE_IN, (uint8_t)(format << 5 | 0x0a), 0, 0, 0, 0, 0,
				0, 0, 64, 0, 0),
			    64, data);
		if (format > 1) {
			assert_field(a, 1, 7);
			continue;
		}
		assert_good(a);
		assert_eq(get_be32(data) + 4, a.moved);
		assert_mem(data + (format == 1 ? 8 : 4), group, sizeof group);
	}
	lab_close(&s);
}

/* ---- log and diagnostic pages ---------------------------------------------------- */

TEST(log_page_00_lists_exactly_the_pages_that_answer)
{
	uint8_t list[64], data[512];
	struct lab s;
	unsigned n = 0;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(scsi_in(&s.a, log_sense(0x40, 0), sizeof list, list));
	for (uint8_t page = 0; page < 0x40; page++) {
		struct answer a = scsi_in(&s.a, log_sense(0x40 | page, 0), sizeof data, data);

		if (n < get_be16(list + 2) && list[4 + n] == page) {
			n++;
			assert_good(a);
			assert_eq(data[0] & 0x3f, page);
			assert_eq(get_be16(data + 2) + 4, a.moved);
		} else {
			assert_field(a, 2, 5);
		}
		a = scsi_in(&s.a, log_sense(0x40 | page, 1), sizeof data, data);
		assert_sense(a, SCSI_ILLEGAL_REQUEST, 0x2400);
	}
	assert_eq(n, get_be16(list + 2));
	assert_good(scsi_in(&s.a, log_sense(0x40, 0xff), sizeof data, data));
	assert_mem(data, "\x40\xff\x00\x06\x00\x00\x00\xff\x2f\x00", 10);
	assert_field(scsi_in(&s.a, CDB(SCSI_LOG_SENSE, 1, 0x40, 0, 0, 0, 0, 2, 0, 0), 512, data), 1,
		     0); /* SP */
	assert_field(scsi_in(&s.a, CDB(SCSI_LOG_SENSE, 0, 0x6f, 0, 0, 0, 1, 2, 0, 0), 512, data), 5,
		     7); /* a parameter that is not there */
	lab_close(&s);
}

/* The kernel tells of a lost page once; the unit tells of it from then on. */
TEST(a_failed_flush_shows_in_the_exceptions_page_and_the_self_test)
{
	struct cdb self_test = CDB(SCSI_SEND_DIAGNOSTIC, 0x04, 0, 0, 0, 0);
	uint8_t data[64], block[512] = { 0 };
	struct lab s;

	log_nothing();
	lab_open(&s, WORDS(),
		 WORDS("driver=fault", "over=memory", "size=1M", "kind=flush", "at=2"));
	assert_good(scsi_in(&s.a, log_sense(0x6f, 0), sizeof data, data));
	assert_eq(data[8], 0);
	assert_good(scsi_none(&s.a, self_test));
	scsi_write_blocks(&s.a, 0, 1, block, 0);
	assert_sense(scsi_none(&s.a, self_test), SCSI_HARDWARE_ERROR, 0x3e03);
	assert_good(scsi_in(&s.a, log_sense(0x6f, 0), sizeof data, data));
	assert_eq(data[8], 0x5d);
	lab_close(&s);
}

TEST(only_the_self_test_that_tells_its_result_is_there)
{
	uint8_t data[64];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(scsi_none(&s.a, CDB(SCSI_SEND_DIAGNOSTIC, 0, 0, 0, 0, 0)));
	for (unsigned code = 1; code < 8; code++)
		assert_field(scsi_none(&s.a,
				       CDB(SCSI_SEND_DIAGNOSTIC, (uint8_t)(code << 5), 0, 0, 0, 0)),
			     1, 7);
	assert_good(scsi_out(&s.a, CDB(SCSI_SEND_DIAGNOSTIC, 0x10, 0, 0, 4, 0), 4, "\0\0\0\0"));
	assert_parameter(scsi_out(&s.a, CDB(SCSI_SEND_DIAGNOSTIC, 0x10, 0, 0, 4, 0), 4,
				  "\x40\0\0\0"),
			 0, 7);
	assert_sense(scsi_out(&s.a, CDB(SCSI_SEND_DIAGNOSTIC, 0x10, 0, 0, 2, 0), 2, "\0\0"),
		     SCSI_ILLEGAL_REQUEST, 0x1a00);
	assert_good(scsi_in(&s.a, CDB(SCSI_RECEIVE_DIAGNOSTIC_RESULTS, 1, 0, 0, 64, 0), 64, data));
	assert_mem(data, "\0\0\0\1\0", 5);
	assert_field(scsi_in(&s.a, CDB(SCSI_RECEIVE_DIAGNOSTIC_RESULTS, 1, 0x40, 0, 64, 0), 64,
			     data),
		     2, 7);
	lab_close(&s);
}
