/* scsi_unit.c - what holds for every command: who is told what first, and which bits may be set. */
#include "scsi.h"

#include "bytes.h"
#include "nexus.h"
#include "opcode.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define NO_OPTIONS ((const char *const[]){ NULL })
#define MEMORY     WORDS("driver=memory", "size=4M")

#define TUR           CDB(SCSI_TEST_UNIT_READY, 0, 0, 0, 0, 0)
#define INQUIRY       CDB(SCSI_INQUIRY, 0, 0, 0, 96, 0)
#define REQUEST_SENSE CDB(SCSI_REQUEST_SENSE, 0, 0, 0, 18, 0)
#define REPORT_LUNS   CDB(SCSI_REPORT_LUNS, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0)

static uint8_t data[1 << 16];

/* The shortest that a row takes for its own: all other bits are 0. */
static struct cdb
cdb_of(const struct scsi_row *row)
{
	struct cdb cdb = { .length = row->length, .bytes = { row->opcode } };

	if (row->has_service_action)
		cdb.bytes[1] = (uint8_t)row->service_action;
	return cdb;
}

/* ---- unit attentions --------------------------------------------------------------- */

TEST(a_new_nexus_hears_of_power_on_once)
{
	struct lab s;

	lab_open(&s, NO_OPTIONS, MEMORY);
	login(&s, &s.c, "c", 3);
	assert_good(scsi_in(&s.c, INQUIRY, 96, data));
	assert_good(scsi_in(&s.c, REPORT_LUNS, 256, data));
	assert_sense(scsi_none(&s.c, TUR), SCSI_UNIT_ATTENTION, SCSI_POWER_ON_RESET);
	assert_good(scsi_none(&s.c, TUR));
	assert_good(scsi_none(&s.a, TUR)); /* what is the matter with others */
	lab_close(&s);
}

TEST(request_sense_tells_an_attention_and_takes_it)
{
	struct answer a = { .rank = 0 };
	struct lab s;

	lab_open(&s, NO_OPTIONS, MEMORY);
	login(&s, &s.c, "c", 3);
	assert_good(scsi_in(&s.c, REQUEST_SENSE, 18, data));
	answer_decode(&a, data, 18);
	assert_eq(a.key, SCSI_UNIT_ATTENTION);
	assert_eq(a.asc, SCSI_POWER_ON_RESET);
	assert_good(scsi_none(&s.c, TUR));
	assert_good(scsi_in(&s.c, REQUEST_SENSE, 18, data));
	answer_decode(&a, data, 18);
	assert_eq(a.key, SCSI_NO_SENSE);
	lab_close(&s);
}

/* SPC-4, "Unit attention condition": three commands are answered all the same. */
TEST(an_attention_comes_before_every_command_but_three)
{
	struct lab s;

	lab_open(&s, NO_OPTIONS, MEMORY);
	for (unsigned i = 0; i < scsi_row_count(); i++) {
		const struct scsi_row *row = scsi_row_at(i);
		struct answer a;

		printf("%s\n", row->name);
		login(&s, &s.c, "c", 3);
		a = scsi_none(&s.c, cdb_of(row));
		if (row->opcode == SCSI_INQUIRY || row->opcode == SCSI_REPORT_LUNS ||
		    row->opcode == SCSI_REQUEST_SENSE) {
			assert_good(a);
			assert_true(row->opcode == SCSI_REQUEST_SENSE ||
				    scsi_none(&s.c, TUR).key == SCSI_UNIT_ATTENTION);
		} else {
			assert_sense(a, SCSI_UNIT_ATTENTION, SCSI_POWER_ON_RESET);
			assert_good(scsi_none(&s.c, TUR));
		}
		logout(&s.c);
	}
	lab_close(&s);
}

/* Turns the write cache off or on, by MODE SELECT. */
static void
select_write_cache(struct initiator *i, bool on)
{
	uint8_t list[24] = { 0, 0, 0, 0, 0x08, 0x12, on ? 0x04 : 0x00 };
	uint8_t page[256];

	assert_eq(scsi_mode_page(i, 0x08, page), 20);
	memcpy(list + 4, page, 20);
	list[4] &= 0x3f;
	list[6] = (uint8_t)((list[6] & ~0x04) | (on ? 0x04 : 0));
	assert_good(scsi_out(i, CDB(SCSI_MODE_SELECT_6, 0x10, 0, 0, 24, 0), 24, list));
}

static void
grow(struct lab *s, const char *path, uint64_t size, bool grows)
{
	bool grown;

	assert_eq(truncate(path, (off_t)size), 0);
	assert_eq(pl_export_grow(s->disk[0].f.ex, &grown, NULL), 0);
	assert_eq(grown, grows);
	scsi_lu_resized(s->disk[0].lu);
}

TEST(attentions_are_told_oldest_first_and_none_twice)
{
	struct lab s;

	make_image("unit.img", 1 * MiB);
	lab_open(&s, NO_OPTIONS, WORDS("path=unit.img"));
	select_write_cache(&s.b, false);
	grow(&s, "unit.img", 2 * MiB, true);
	grow(&s, "unit.img", 3 * MiB, true);
	assert_sense(scsi_none(&s.a, TUR), SCSI_UNIT_ATTENTION, SCSI_MODE_PARAMETERS_CHANGED);
	assert_sense(scsi_none(&s.a, TUR), SCSI_UNIT_ATTENTION, SCSI_CAPACITY_CHANGED);
	assert_good(scsi_none(&s.a, TUR));
	assert_sense(scsi_none(&s.b, TUR), SCSI_UNIT_ATTENTION, SCSI_CAPACITY_CHANGED);
	assert_good(scsi_none(&s.b, TUR));
	lab_close(&s);
}

/* It says that all may have changed. */
TEST(a_reset_takes_the_place_of_other_attentions)
{
	struct lab s;

	make_image("unit.img", 1 * MiB);
	lab_open(&s, NO_OPTIONS, WORDS("path=unit.img"));
	select_write_cache(&s.b, false);
	grow(&s, "unit.img", 2 * MiB, true);
	assert_eq(manage(&s.b, SCSI_LOGICAL_UNIT_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	for (unsigned n = 0; n < 2; n++) {
		struct initiator *i = n == 0 ? &s.a : &s.b;

		assert_sense(scsi_none(i, TUR), SCSI_UNIT_ATTENTION, SCSI_BUS_DEVICE_RESET);
		assert_good(scsi_none(i, TUR));
	}
	lab_close(&s);
}

/* ---- the size ---------------------------------------------------------------------- */

static uint64_t
last_block(struct initiator *i)
{
	assert_good(scsi_in(i,
			    CDB(SCSI_SERVICE_ACTION_IN_16, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
				32, 0, 0),
			    32, data));
	return get_be64(data);
}

TEST(a_unit_that_grew_tells_everyone_and_has_the_new_blocks)
{
	struct lab s;

	make_image("unit.img", 1 * MiB);
	lab_open(&s, NO_OPTIONS, WORDS("path=unit.img"));
	assert_eq(last_block(&s.a), 2047);
	assert_sense(scsi_in(&s.a, cdb_blocks(SCSI_READ_10, 0, 2048, 1), 512, data),
		     SCSI_ILLEGAL_REQUEST, 0x2100);
	grow(&s, "unit.img", 2 * MiB, true);
	for (unsigned n = 0; n < 2; n++) {
		struct initiator *i = n == 0 ? &s.a : &s.b;

		assert_sense(scsi_none(i, TUR), SCSI_UNIT_ATTENTION, SCSI_CAPACITY_CHANGED);
		assert_good(scsi_none(i, TUR));
		assert_eq(last_block(i), 4095);
	}
	memset(data, 0xa5, 512);
	assert_good(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_10, 8, 4095, 1), 512, data));
	memset(data, 0, 512);
	scsi_read_blocks(&s.b, 4095, 1, data);
	assert_filled(data, 0xa5, 512);

	/* Less than a block more is no change. */
	grow(&s, "unit.img", 2 * MiB + 511, true);
	assert_good(scsi_none(&s.a, TUR));
	grow(&s, "unit.img", 2 * MiB + 511, false);
	assert_good(scsi_none(&s.a, TUR));
	lab_close(&s);
}

/* ---- LUNs -------------------------------------------------------------------------- */

/* How many LUNs, and whether this is one of them. */
static unsigned
report_luns(struct initiator *i, unsigned lun, bool *there)
{
	unsigned count;

	assert_good(scsi_in(i, REPORT_LUNS, 256, data));
	count = get_be32(data) / 8;
	*there = false;
	for (unsigned n = 0; n < count; n++)
		*there |= data[8 + 8 * n + 1] == lun;
	return count;
}

TEST(a_lun_that_comes_or_goes_is_told_on_the_others)
{
	bool there;
	struct lab s;

	lab_open(&s, NO_OPTIONS, MEMORY);
	assert_eq(report_luns(&s.a, 1, &there), 1);
	assert_eq(lab_add(&s, NO_OPTIONS, MEMORY, 0), 1);
	assert_eq(report_luns(&s.b, 1, &there), 2); /* and so b knows */
	assert_true(there);
	assert_good(scsi_none(&s.b, TUR));
	assert_sense(scsi_none(&s.a, TUR), SCSI_UNIT_ATTENTION, SCSI_REPORTED_LUNS_CHANGED);
	assert_good(scsi_none(&s.a, TUR));
	assert_sense(scsi_do_lun(&s.a, 1, TUR, DATA_NONE, 0, NULL), SCSI_UNIT_ATTENTION,
		     SCSI_POWER_ON_RESET);
	assert_good(scsi_do_lun(&s.a, 1, TUR, DATA_NONE, 0, NULL));

	lab_remove(&s, 1);
	assert_sense(scsi_do_lun(&s.a, 1, TUR, DATA_NONE, 0, NULL), SCSI_ILLEGAL_REQUEST, 0x2500);
	assert_sense(scsi_none(&s.a, TUR), SCSI_UNIT_ATTENTION, SCSI_REPORTED_LUNS_CHANGED);
	assert_eq(report_luns(&s.a, 1, &there), 1);
	assert_false(there);
	lab_close(&s);
}

/* SAM-5, "Logical unit number": one level, by peripheral or flat space addressing. */
TEST(luns_are_understood_in_two_forms_and_no_other)
{
	static const struct {
		uint8_t lun[8];
		int is;
	} luns[] = {
		{ { 0, 0 }, 0 },
		{ { 0, 255 }, 255 },
		{ { 0x40, 0 }, 0 },
		{ { 0x40, 7 }, 7 },
		{ { 0x40, 0xff }, 255 },
		{ { 0x41, 0 }, -1 },
		{ { 0x7f, 0xff }, -1 },
		{ { 0x01, 0 }, -1 }, /* bus 1 */
		{ { 0x3f, 0xff }, -1 },
		{ { 0x80, 0 }, -1 },
		{ { 0xc1, 1 }, -1 }, /* well known */
		{ { 0xd2, 0, 1, 0 }, -1 },
		{ { 0, 1, 0, 1 }, -1 },
		{ { 0, 0, 0, 0, 0, 0, 0, 1 }, -1 },
	};

	for (unsigned i = 0; i < sizeof luns / sizeof *luns; i++)
		assert_eq(scsi_lun_of(luns[i].lun), luns[i].is);
}

/* ---- bits -------------------------------------------------------------------------- */

/* Whatever a row does not allow: the usage mask is the contract, of which REPORT SUPPORTED
 * OPERATION CODES tells, too. */
static void
check_bits_of(struct lab *s, const struct scsi_row *row)
{
	for (unsigned byte = 1; byte < row->length; byte++) {
		for (int bit = 0; bit < 8; bit++) {
			struct cdb cdb = cdb_of(row);
			struct answer a;

			if ((row->usage[byte] & 1u << bit) != 0)
				continue;
			if (byte == 1 && row->has_service_action && bit < 5)
				continue;
			cdb.bytes[byte] |= (uint8_t)(1u << bit);
			a = scsi_none(&s->a, cdb);
			if (a.asc != 0x2400 || !a.has_field || a.field != byte || a.bit != bit)
				printf("%s\n", row->name);
			assert_field(a, byte, bit);
		}
	}
}

TEST(every_bit_that_means_nothing_is_refused_at_its_place)
{
	struct lab s;

	lab_open(&s, NO_OPTIONS, MEMORY);
	for (unsigned i = 0; i < scsi_row_count(); i++)
		check_bits_of(&s, scsi_row_at(i));
	lab_close(&s);
}

/* ---- REPORT SUPPORTED OPERATION CODES ---------------------------------------------- */

static unsigned
group_length(unsigned opcode)
{
	static const unsigned lengths[] = { 6, 10, 10, 32, 16, 12, 16, 16 };

	return lengths[opcode >> 5];
}

struct known {
	bool opcode[256], service_action[256][32], has_service_action[256];
};

static void
read_known(struct initiator *i, struct known *k)
{
	unsigned length;

	memset(k, 0, sizeof *k);
	assert_good(scsi_in(i, CDB(SCSI_MAINTENANCE_IN, 0x0c, 0, 0, 0, 0, 0, 0, 0x20, 0, 0, 0),
			    8192, data));
	length = get_be32(data);
	assert_true(length > 0 && length % 8 == 0);
	for (const uint8_t *p = data + 4; p < data + 4 + length; p += 8) {
		unsigned service_action = get_be16(p + 2);

		assert_true(service_action < 32);
		assert_false(k->service_action[p[0]][service_action]); /* twice */
		k->opcode[p[0]] = k->service_action[p[0]][service_action] = true;
		k->has_service_action[p[0]] = (p[5] & 1) != 0;
		assert_eq(get_be16(p + 6), group_length(p[0]));
	}
}

/* Of each operation code and service action, the command itself must agree. A command may do what
 * it does: stop the unit, reserve it. */
static void
check_known(const char *const *unit, const char *const *disk, unsigned flags)
{
	static struct known k;
	struct lab s;

	lab_open_flags(&s, unit, disk, flags);
	read_known(&s.a, &k);
	for (unsigned opcode = 0; opcode < 256; opcode++) {
		for (unsigned action = 0; action < 32; action++) {
			struct cdb cdb = { .length = group_length(opcode),
					   .bytes = { (uint8_t)opcode, (uint8_t)action } };
			struct answer a = scsi_none(&s.a, cdb);
			bool unknown = a.status == SCSI_CHECK_CONDITION && a.asc == 0x2000;
			bool no_action = a.asc == 0x2400 && a.field == 1 && a.bit == 4;

			if (unknown == k.opcode[opcode])
				test_fail(__FILE__, __LINE__, "%02x/%02x: %s listed, %s known",
					  opcode, action, k.opcode[opcode] ? "is" : "is not",
					  unknown ? "is not" : "is");
			if (k.has_service_action[opcode] &&
			    no_action == k.service_action[opcode][action])
				test_fail(__FILE__, __LINE__, "%02x/%02x: %s listed", opcode,
					  action, no_action ? "is" : "is not");
		}
	}
	lab_close(&s);
}

TEST(report_opcodes_lists_exactly_what_is_not_refused)
{
	make_image("unit.img", 4 * MiB);
	check_known(NO_OPTIONS, MEMORY, 0);
	check_known(WORDS("removable=on", "block-size=4096"), MEMORY, 0);
	check_known(NO_OPTIONS, WORDS("path=unit.img", "cache=directsync"), 0);
	check_known(NO_OPTIONS, MEMORY, PL_OPEN_READ_ONLY);
}

/* One command: the mask, its length, and that FUA is in it where DPOFUA is. */
static void
check_report(struct lab *s, const struct scsi_row *row, bool dpofua)
{
	unsigned option = row->has_service_action ? 2 : 1;
	uint8_t mask[16];

	memcpy(mask, row->usage, sizeof mask);
	if (!dpofua)
		mask[1] &= (uint8_t)~row->dpo_fua;
	for (; option <= 3; option += 3 - option == 0 ? 1 : 3 - option) {
		assert_good(scsi_in(&s->a,
				    CDB(SCSI_MAINTENANCE_IN, 0x0c, (uint8_t)option, row->opcode, 0,
					(uint8_t)row->service_action, 0, 0, 1, 0, 0, 0),
				    256, data));
		assert_eq(data[1] & 0x07, 3);
		assert_eq(get_be16(data + 2), row->length);
		assert_mem(data + 4, mask, row->length);
	}
}

TEST(report_opcodes_tells_the_mask_that_is_enforced)
{
	for (unsigned dpofua = 0; dpofua < 2; dpofua++) {
		struct lab s;

		lab_open(&s, WORDS(dpofua ? "dpofua=on" : "dpofua=off"), MEMORY);
		for (unsigned i = 0; i < scsi_row_count(); i++)
			check_report(&s, scsi_row_at(i), dpofua != 0);
		lab_close(&s);
	}
}

/* ---- sense ------------------------------------------------------------------------- */

static void
select_descriptor_sense(struct initiator *i, bool on)
{
	uint8_t list[16] = { 0 };
	uint8_t page[256];

	assert_eq(scsi_mode_page(i, 0x0a, page), 12);
	memcpy(list + 4, page, 12);
	list[4] &= 0x3f;
	list[6] = (uint8_t)((list[6] & ~0x04) | (on ? 0x04 : 0));
	assert_good(scsi_out(i, CDB(SCSI_MODE_SELECT_6, 0x10, 0, 0, 16, 0), 16, list));
}

TEST(an_address_is_told_where_the_format_has_room_for_it)
{
	static const uint64_t addresses[] = { UINT64_C(8192), UINT32_MAX, UINT64_C(1) << 32,
					      UINT64_MAX };

	for (unsigned descriptor = 0; descriptor < 2; descriptor++) {
		struct lab s;

		lab_open(&s, NO_OPTIONS, MEMORY);
		if (descriptor != 0)
			select_descriptor_sense(&s.a, true);
		for (unsigned i = 0; i < 4; i++) {
			uint64_t lba = addresses[i];
			struct answer a =
				scsi_in(&s.a, cdb_blocks(SCSI_READ_16, 0, lba, 1), 512, data);

			assert_sense(a, SCSI_ILLEGAL_REQUEST, 0x2100);
			assert_eq(a.descriptor, descriptor);
			assert_eq(a.has_information, descriptor != 0 || lba <= UINT32_MAX);
			if (a.has_information)
				assert_eq(a.information, lba);
			/* "Field pointer" is there in either form. */
			a = scsi_in(&s.a, cdb_blocks(SCSI_READ_16, 0x20, 0, 1), 512, data);
			assert_field(a, 1, 5);
			assert_eq(a.descriptor, descriptor);
		}
		lab_close(&s);
	}
}

/* ---- anything at all --------------------------------------------------------------- */

/* A command that is likely to be understood: a row with what its mask allows, small where a number
 * is meant; or bytes. */
static struct cdb
random_cdb(uint64_t *seed)
{
	const struct scsi_row *row = scsi_row_at((unsigned)random_below(seed, scsi_row_count()));
	static const unsigned lengths[] = { 0, 1, 6, 10, 12, 16, 32 };
	unsigned kind = (unsigned)random_below(seed, 8);
	struct cdb cdb = { .length = lengths[random_below(seed, 7)] };

	for (unsigned i = 0; i < SCSI_CDB_MAX; i++)
		cdb.bytes[i] = (uint8_t)random_next(seed);
	if (kind == 0) /* bytes */
		return cdb;
	if (kind > 1)
		cdb.length = row->length;
	cdb.bytes[0] = row->opcode;
	for (unsigned i = 1; i < row->length; i++) {
		cdb.bytes[i] &= row->usage[i];
		if (kind > 2 && random_below(seed, 3) != 0)
			cdb.bytes[i] &= (uint8_t)(random_below(seed, 2) * (kind - 1));
	}
	if (row->has_service_action)
		cdb.bytes[1] = (uint8_t)((cdb.bytes[1] & 0xe0) | row->service_action);
	return cdb;
}

static void
throw_commands(unsigned count)
{
	uint64_t seed = test_seed();
	unsigned statuses[256] = { 0 };
	struct lab s;

	log_nothing();
	lab_open(&s, NO_OPTIONS, MEMORY);
	lab_add(&s, WORDS("block-size=4096", "removable=on"), MEMORY, 0);
	lab_add(&s, NO_OPTIONS, MEMORY, PL_OPEN_READ_ONLY);
	for (unsigned i = 0; i < count; i++) {
		struct initiator *from = random_below(&seed, 4) == 0 ? &s.b : &s.a;
		enum direction direction = (enum direction)random_below(&seed, 3);
		unsigned lun = (unsigned)random_below(&seed, 5);
		struct cdb cdb = random_cdb(&seed);
		uint32_t length = 0;
		struct answer a;

		if (direction != DATA_NONE)
			length = (uint32_t)random_below(&seed, random_below(&seed, 3) == 0
								       ? sizeof data
								       : 1024);
		for (uint32_t at = 0; direction == DATA_OUT && at < length && at < 256; at++)
			data[at] = random_below(&seed, 3) == 0 ? (uint8_t)random_next(&seed) : 0;
		if (length == 0)
			direction = DATA_NONE;
		a = scsi_do_lun(from, lun, cdb, direction, length, data);
		assert_false(a.aborted);
		statuses[a.status]++;
		/* A unit that is stopped or reserved for good would say no to all that follows. */
		if (i % 64 == 63) {
			assert_eq(manage(&s.a, SCSI_TARGET_WARM_RESET, 0, NULL),
				  SCSI_FUNCTION_COMPLETE);
			clear_attentions(&s.a);
			clear_attentions(&s.b);
		}
	}
	printf("GOOD %u, CHECK CONDITION %u, RESERVATION CONFLICT %u\n", statuses[SCSI_GOOD],
	       statuses[SCSI_CHECK_CONDITION], statuses[SCSI_RESERVATION_CONFLICT]);
	assert_true(statuses[SCSI_GOOD] > count / 50);
	lab_close(&s);
}

TEST(any_command_is_answered)
{
	throw_commands(20000);
}

TEST_SLOW(any_of_very_many_commands_is_answered)
{
	throw_commands(300000);
}
