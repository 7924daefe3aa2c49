/*
 * scsi_block.c - commands that read, write and verify blocks: where they go, what they move, and
 * what they say when they cannot.
 */
#include "bytes.h"
#include "scsi.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define SIZE   (4 * MiB)
#define MEMORY WORDS("driver=memory", "size=4M")

enum { FUA = 0x08, DPO = 0x10 };
#define BYTCHK(n) ((uint8_t)((n) << 1))

/* ---- blocks of either size --------------------------------------------------------- */

static const struct {
	const char *option;
	uint32_t bytes;
} block_sizes[] = { { "block-size=512", 512 }, { "block-size=4096", 4096 } };

#define for_each_block_size(s, size) \
	for (unsigned i_ = 0; i_ < 2 && open_with(s, i_, &(size)); i_++, lab_close(s))

static bool
open_with(struct lab *s, unsigned i, uint32_t *size)
{
	printf("%s\n", block_sizes[i].option);
	lab_open(s, WORDS(block_sizes[i].option), MEMORY);
	*size = block_sizes[i].bytes;
	return true;
}

static const uint8_t reads[] = { SCSI_READ_6, SCSI_READ_10, SCSI_READ_12, SCSI_READ_16 };
static const uint8_t writes[] = { SCSI_WRITE_6, SCSI_WRITE_10, SCSI_WRITE_12, SCSI_WRITE_16,
				  SCSI_WRITE_ATOMIC_16 };
static const uint8_t verifies[] = { SCSI_VERIFY_10, SCSI_VERIFY_12, SCSI_VERIFY_16 };
static const uint8_t write_and_verifies[] = { SCSI_WRITE_AND_VERIFY_10, SCSI_WRITE_AND_VERIFY_12,
					      SCSI_WRITE_AND_VERIFY_16 };
#define COUNT(list) (sizeof(list) / sizeof *(list))

/* ---- reading and writing ------------------------------------------------------------ */

TEST(test_unit_ready_is_good)
{
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(scsi_none(&s.a, CDB(SCSI_TEST_UNIT_READY, 0, 0, 0, 0, 0)));
	lab_close(&s);
}

TEST(every_write_puts_its_blocks_where_every_read_finds_them)
{
	uint8_t *data = test_alloc(64 * KiB), *got = test_alloc(64 * KiB);
	struct lab s;
	uint32_t size;

	for_each_block_size(&s, size)
	{
		for (unsigned w = 0; w < COUNT(writes); w++) {
			uint32_t blocks = writes[w] == SCSI_WRITE_ATOMIC_16 ? 1 : 3;
			uint64_t lba = 16 * (w + 1) + (blocks == 1 ? 0 : 5);

			pattern_fill(data, blocks * size, lba * size, w);
			assert_good(scsi_out(&s.a, cdb_blocks(writes[w], 0, lba, blocks),
					     blocks * size, data));
			check_data(&s.disk[0].f, lba * size, blocks * size, data);
			check_bytes(&s.disk[0].f, (lba - 1) * size, size, 0);
			check_bytes(&s.disk[0].f, (lba + blocks) * size, size, 0);
			for (unsigned r = 0; r < COUNT(reads); r++) {
				struct answer a;

				memset(got, 0xee, blocks * size);
				a = scsi_in(&s.b, cdb_blocks(reads[r], 0, lba, blocks),
					    blocks * size, got);
				assert_good(a);
				assert_eq(a.moved, blocks * size);
				assert_eq(a.residual, SCSI_EXACT);
				assert_mem(got, data, blocks * size);
			}
		}
	}
	free(data);
	free(got);
}

TEST(zero_blocks_of_six_bytes_are_256)
{
	uint8_t *data = test_alloc(256 * 4096), *got = test_alloc(256 * 4096);
	struct lab s;
	uint32_t size;

	for_each_block_size(&s, size)
	{
		pattern_fill(data, 256 * size, 0, 6);
		assert_good(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_6, 0, 7, 0), 256 * size, data));
		assert_eq(scsi_in(&s.a, cdb_blocks(SCSI_READ_6, 0, 7, 0), 256 * size, got).moved,
			  256 * size);
		assert_mem(got, data, 256 * size);
	}
	free(data);
	free(got);
}

TEST(dpo_and_fua_are_taken_also_where_they_are_not_advertised)
{
	const char *const options[] = { "dpofua=on", "dpofua=off" };
	uint8_t data[1024] = { 1 };

	for (unsigned i = 0; i < 2; i++) {
		struct lab s;

		lab_open(&s, WORDS(options[i]), MEMORY);
		for (unsigned r = 1; r < COUNT(reads); r++)
			assert_good(
				scsi_in(&s.a, cdb_blocks(reads[r], DPO | FUA, 0, 1), 512, data));
		for (unsigned w = 1; w < COUNT(writes); w++)
			assert_good(
				scsi_out(&s.a, cdb_blocks(writes[w], DPO | FUA, 0, 1), 512, data));
		for (unsigned v = 0; v < COUNT(verifies); v++) {
			assert_good(scsi_none(&s.a, cdb_blocks(verifies[v], DPO, 0, 1)));
			assert_good(scsi_out(&s.a, cdb_blocks(write_and_verifies[v], DPO, 0, 1),
					     512, data));
		}
		assert_good(
			scsi_out(&s.a, cdb_blocks(SCSI_ORWRITE_16, DPO | FUA, 0, 1), 512, data));
		memcpy(data + 512, data, 512);
		assert_good(scsi_out(&s.a, cdb_blocks(SCSI_COMPARE_AND_WRITE, DPO | FUA, 0, 1),
				     1024, data));
		lab_close(&s);
	}
}

/* ---- what every command on blocks refuses ------------------------------------------- */

/* Data-out of so many blocks, or none. */
struct command {
	uint8_t opcode, byte_1;
	enum direction direction;
	unsigned out; /* blocks of data-out for one of the CDB's; 0xff: one for all */
	bool to_end;  /* 0 blocks are all that follow */
	bool small;   /* takes what is in one physical block, aligned */
};

#define ONE 0xff

static const struct command commands[] = {
	{ SCSI_READ_6, 0, DATA_IN, 0, false, false },
	{ SCSI_READ_10, 0, DATA_IN, 0, false, false },
	{ SCSI_READ_12, FUA, DATA_IN, 0, false, false },
	{ SCSI_READ_16, 0, DATA_IN, 0, false, false },
	{ SCSI_WRITE_6, 0, DATA_OUT, 1, false, false },
	{ SCSI_WRITE_10, FUA, DATA_OUT, 1, false, false },
	{ SCSI_WRITE_12, 0, DATA_OUT, 1, false, false },
	{ SCSI_WRITE_16, 0, DATA_OUT, 1, false, false },
	{ SCSI_WRITE_ATOMIC_16, 0, DATA_OUT, 1, false, true },
	{ SCSI_WRITE_AND_VERIFY_10, 0, DATA_OUT, 1, false, false },
	{ SCSI_WRITE_AND_VERIFY_12, BYTCHK(1), DATA_OUT, 1, false, false },
	{ SCSI_WRITE_AND_VERIFY_16, BYTCHK(1), DATA_OUT, 1, false, false },
	{ SCSI_VERIFY_10, 0, DATA_NONE, 0, false, false },
	{ SCSI_VERIFY_12, BYTCHK(1), DATA_OUT, 1, false, false },
	{ SCSI_VERIFY_16, BYTCHK(1), DATA_OUT, 1, false, false },
	{ SCSI_VERIFY_16, BYTCHK(3), DATA_OUT, ONE, false, false },
	{ SCSI_COMPARE_AND_WRITE, 0, DATA_OUT, 2, false, false },
	{ SCSI_ORWRITE_16, 0, DATA_OUT, 1, false, false },
	{ SCSI_PRE_FETCH_10, 0, DATA_NONE, 0, true, false },
	{ SCSI_PRE_FETCH_16, 0, DATA_NONE, 0, true, false },
	{ SCSI_SYNCHRONIZE_CACHE_10, 0, DATA_NONE, 0, true, false },
	{ SCSI_SYNCHRONIZE_CACHE_16, 0, DATA_NONE, 0, true, false },
	{ SCSI_WRITE_SAME_10, 0, DATA_OUT, ONE, true, false },
	{ SCSI_WRITE_SAME_16, 0, DATA_OUT, ONE, true, false },
	{ SCSI_WRITE_SAME_16, 0x08, DATA_OUT, ONE, true, false },
	{ SCSI_WRITE_SAME_16, 0x09, DATA_NONE, 0, true, false },
};

static uint8_t *memory; /* for any command's data */

static struct answer
run(struct initiator *i, const struct command *c, uint64_t lba, uint32_t blocks, uint32_t size)
{
	uint32_t length = 0;

	if (c->direction == DATA_IN || c->out == 1)
		length = blocks * size;
	else if (c->out == 2)
		length = 2 * blocks * size;
	else if (c->out == ONE && (blocks > 0 || c->to_end))
		length = size;
	return scsi_do(i, cdb_blocks(c->opcode, c->byte_1, lba, blocks),
		       length > 0 ? c->direction : DATA_NONE, length, memory);
}

static bool
is_long(const struct command *c)
{
	return c->opcode >> 5 == 4;
}

/* INFORMATION has 32 bits in fixed format, and is left out where that is not enough. */
static void
check_outside(const struct command *c, struct answer a, uint64_t first)
{
	printf("%02x %02x\n", c->opcode, c->byte_1);
	assert_sense(a, SCSI_ILLEGAL_REQUEST, 0x2100);
	assert_eq(a.moved, 0);
	assert_eq(a.has_information, first <= UINT32_MAX);
	if (a.has_information)
		assert_eq(a.information, first);
}

TEST(what_is_outside_is_refused_and_the_first_address_of_it_told)
{
	static const uint64_t far[] = { UINT64_C(1) << 63, UINT64_MAX, UINT64_C(1) << 55,
					UINT64_C(1) << 52 };
	struct lab s;
	uint32_t size;

	memory = test_alloc(2 * MiB);
	for_each_block_size(&s, size)
	{
		uint64_t n = SIZE / size;

		for (const struct command *c = commands; c < commands + COUNT(commands); c++) {
			bool six = c->opcode >> 5 == 0;

			check_outside(c, run(&s.a, c, n, 1, size), n);
			check_outside(c, run(&s.a, c, n + 1, 1, size), n + 1);
			check_outside(c, run(&s.a, c, n - 1, 2, size), n);
			if (!six) { /* there 0 blocks are 256 */
				check_outside(c, run(&s.a, c, n, 0, size), n);
				check_outside(c, run(&s.a, c, n + 1, 0, size), n + 1);
			}
			for (unsigned i = 0; i < COUNT(far) && is_long(c); i++) {
				check_outside(c, run(&s.a, c, far[i], 1, size), far[i]);
				check_outside(c, run(&s.a, c, far[i], 0, size), far[i]);
			}
			if (!c->small) /* that is aligned */
				assert_good(run(&s.a, c, n - 1, 1, size));
		}
	}
	free(memory);
}

TEST(nothing_to_move_is_good_where_there_is_a_block)
{
	struct lab s;
	uint32_t size;

	memory = test_alloc(2 * MiB);
	for_each_block_size(&s, size)
	{
		memset(memory, 0xaa, 2 * MiB);
		do_write(&s.disk[0].f, 0, SIZE, 0x55, 0);
		for (const struct command *c = commands; c < commands + COUNT(commands); c++) {
			if (c->opcode >> 5 == 0 || c->to_end)
				continue;
			assert_good(run(&s.a, c, 0, 0, size));
			if (!c->small)
				assert_good(run(&s.a, c, SIZE / size - 1, 0, size));
		}
		check_bytes(&s.disk[0].f, 0, SIZE, 0x55);
	}
	free(memory);
}

TEST(protection_information_is_refused_where_it_is_asked_for)
{
	struct lab s;

	memory = test_alloc(64 * KiB);
	lab_open(&s, WORDS(), MEMORY);
	for (const struct command *c = commands; c < commands + COUNT(commands); c++) {
		if (c->opcode >> 5 == 0)
			continue;
		for (uint8_t protect = 1; protect < 8; protect++) {
			struct command other = *c;
			struct answer a;

			other.byte_1 |= (uint8_t)(protect << 5);
			a = run(&s.a, &other, 0, 1, 512);
			assert_sense(a, SCSI_ILLEGAL_REQUEST, 0x2400);
			assert_true(a.has_field && a.field_in_cdb && a.field == 1 && a.bit >= 5);
		}
	}
	lab_close(&s);
	free(memory);
}

TEST(more_than_the_limit_is_refused_and_the_limit_is_not)
{
	struct lab s;

	memory = test_alloc(1 * MiB);
	lab_open(&s, WORDS("max-io-size=64k"), MEMORY);
	for (const struct command *c = commands; c < commands + COUNT(commands); c++) {
		unsigned at[] = { [1] = 7, [2] = 7, [4] = 10, [5] = 6 };
		uint32_t limit = c->small ? 8 : c->opcode == SCSI_COMPARE_AND_WRITE ? 255 : 128;
		unsigned byte = at[c->opcode >> 5];
		bool prefetch = c->opcode == SCSI_PRE_FETCH_10 || c->opcode == SCSI_PRE_FETCH_16;

		if (c->opcode >> 5 == 0)
			byte = 4;
		if (c->opcode == SCSI_WRITE_ATOMIC_16)
			byte = 12;
		if (c->to_end && !prefetch)
			continue; /* moves nothing much */
		printf("%02x %02x\n", c->opcode, c->byte_1);
		/* What has to match is what is there. */
		do_zero(&s.disk[0].f, 0, SIZE, 0);
		memset(memory, 0, 1 * MiB);
		assert_good(run(&s.a, c, 0, limit, 512));
		if (c->opcode == SCSI_COMPARE_AND_WRITE)
			continue; /* its field has no more */
		assert_field(run(&s.a, c, 0, limit + 1, 512), byte, -1);
	}
	lab_close(&s);
	free(memory);
}

TEST(a_prefetch_is_good_where_there_is_no_cache)
{
	struct lab s;

	lab_open(&s, WORDS(), WORDS("driver=powercut", "over=memory", "size=4M"));
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_PRE_FETCH_10, 0, 0, 8)));
	lab_close(&s);
}

/* Without a number, of the rest of the unit as much as may be. */
TEST(a_prefetch_to_the_end_ends_at_the_limit)
{
	struct lab s;

	lab_open(&s, WORDS("max-io-size=64k"),
		 WORDS("driver=fault", "over=memory", "size=4M", "kind=cache", "fault=error",
		       "offset=128k", "repeat=forever"));
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_PRE_FETCH_10, 0, 0, 0)));
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_PRE_FETCH_16, 0, 128, 0)));
	assert_sense(scsi_none(&s.a, cdb_blocks(SCSI_PRE_FETCH_16, 0, 129, 0)), SCSI_MEDIUM_ERROR,
		     0x1100);
	lab_close(&s);
}

TEST(a_read_only_unit_is_read_and_not_changed)
{
	struct lab s;

	memory = test_alloc(64 * KiB);
	make_image("ro.img", SIZE);
	lab_open_flags(&s, WORDS(), WORDS("driver=file", "path=ro.img"), PL_OPEN_READ_ONLY);
	for (const struct command *c = commands; c < commands + COUNT(commands); c++) {
		bool changes =
			c->out != 0 && c->opcode != SCSI_VERIFY_12 && c->opcode != SCSI_VERIFY_16;

		if (c->opcode == SCSI_WRITE_SAME_16)
			changes = true;
		printf("%02x %02x\n", c->opcode, c->byte_1);
		if (changes)
			assert_sense(run(&s.a, c, 0, 1, 512), SCSI_DATA_PROTECT, 0x2700);
		else
			assert_good(run(&s.a, c, 0, 1, 512));
	}
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_10, 0x02, 0, 0)));
	lab_close(&s);
	free(memory);
}

/* ---- expecting other than the CDB says ---------------------------------------------- */

TEST(a_read_moves_what_was_expected_at_most)
{
	static const struct {
		uint32_t blocks, expected, moved;
		enum scsi_residual residual;
		uint32_t count;
	} cases[] = {
		{ 1, 0, 0, SCSI_OVERFLOW, 512 },     { 1, 10000, 512, SCSI_UNDERFLOW, 9488 },
		{ 1, 200, 200, SCSI_OVERFLOW, 312 }, { 2, 512, 512, SCSI_OVERFLOW, 512 },
		{ 0, 512, 0, SCSI_UNDERFLOW, 512 },  { 3, 1537, 1536, SCSI_UNDERFLOW, 1 },
		{ 3, 1535, 1535, SCSI_OVERFLOW, 1 },
	};
	uint8_t data[10000], want[2048];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	do_write_pattern(&s.disk[0].f, 0, 4096, 3, 0);
	pattern_fill(want, sizeof want, 512, 3);
	for (unsigned r = 1; r < COUNT(reads); r++) {
		for (unsigned i = 0; i < COUNT(cases); i++) {
			struct answer a;

			memset(data, 0xee, sizeof data);
			a = scsi_do(&s.a, cdb_blocks(reads[r], 0, 1, cases[i].blocks),
				    cases[i].expected > 0 ? DATA_IN : DATA_NONE, cases[i].expected,
				    data);
			assert_good(a);
			assert_eq(a.moved, cases[i].moved);
			assert_eq(a.residual, cases[i].residual);
			assert_eq(a.residual_count, cases[i].count);
			assert_mem(data, want, cases[i].moved);
			assert_filled(data + cases[i].moved, 0xee, sizeof data - cases[i].moved);
		}
	}
	lab_close(&s);
}

TEST(a_write_writes_the_whole_blocks_that_came)
{
	static const struct {
		uint32_t blocks, expected, written;
		enum scsi_residual residual;
		uint32_t count;
	} cases[] = {
		{ 1, 0, 0, SCSI_OVERFLOW, 512 },     { 1, 1024, 512, SCSI_UNDERFLOW, 512 },
		{ 2, 512, 512, SCSI_OVERFLOW, 512 }, { 1, 10000, 512, SCSI_UNDERFLOW, 9488 },
		{ 1, 200, 0, SCSI_OVERFLOW, 312 },   { 3, 1100, 1024, SCSI_OVERFLOW, 436 },
	};
	static const uint8_t opcodes[] = { SCSI_WRITE_10,
					   SCSI_WRITE_12,
					   SCSI_WRITE_16,
					   SCSI_WRITE_AND_VERIFY_10,
					   SCSI_WRITE_AND_VERIFY_16,
					   SCSI_ORWRITE_16 };
	uint8_t data[10000];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	memset(data, 0x7f, sizeof data);
	for (unsigned w = 0; w < COUNT(opcodes); w++) {
		for (unsigned i = 0; i < COUNT(cases); i++) {
			struct answer a;

			do_write(&s.disk[0].f, 0, 16 * KiB, 0x11, 0);
			a = scsi_do(&s.a, cdb_blocks(opcodes[w], 0, 1, cases[i].blocks),
				    cases[i].expected > 0 ? DATA_OUT : DATA_NONE, cases[i].expected,
				    data);
			assert_good(a);
			assert_eq(a.residual, cases[i].residual);
			assert_eq(a.residual_count, cases[i].count);
			check_bytes(&s.disk[0].f, 0, 512, 0x11);
			check_bytes(&s.disk[0].f, 512, cases[i].written, 0x7f);
			check_bytes(&s.disk[0].f, 512 + cases[i].written,
				    15 * KiB - cases[i].written, 0x11);
		}
	}
	lab_close(&s);
}

/* ---- VERIFY, WRITE AND VERIFY -------------------------------------------------------- */

TEST(verify_compares_as_bytchk_says)
{
	uint8_t *data = test_alloc(1 * MiB);
	struct lab s;
	uint32_t size;

	for_each_block_size(&s, size)
	{
		uint32_t blocks = MiB / 2 / size; /* two pieces */
		/* The first, one in the second piece, and the last. */
		uint32_t wrong[] = { 0, 7, MiB / 4 + 1, MiB / 2 - 1 };

		do_write_pattern(&s.disk[0].f, 4096, MiB / 2, 5, 0);
		pattern_fill(data, MiB / 2, 4096, 5);
		for (unsigned v = 0; v < COUNT(verifies); v++) {
			struct cdb none = cdb_blocks(verifies[v], BYTCHK(0), 4096 / size, blocks);
			struct cdb all = cdb_blocks(verifies[v], BYTCHK(1), 4096 / size, blocks);

			assert_good(scsi_none(&s.a, none));
			assert_good(scsi_out(&s.a, all, MiB / 2, data));
			for (unsigned i = 0; i < COUNT(wrong); i++) {
				struct answer a;

				data[wrong[i]] ^= 1;
				a = scsi_out(&s.a, all, MiB / 2, data);
				assert_sense(a, SCSI_MISCOMPARE, 0x1d00);
				assert_true(a.has_information);
				assert_eq(a.information, wrong[i]);
				data[wrong[i]] ^= 1;
			}
		}
	}
	free(data);
}

TEST(verify_holds_one_block_against_each)
{
	uint8_t data[4096];
	struct lab s;
	uint32_t size;

	for_each_block_size(&s, size)
	{
		uint32_t blocks = MiB / 2 / size;

		for (unsigned v = 0; v < COUNT(verifies); v++) {
			struct cdb cdb = cdb_blocks(verifies[v], BYTCHK(3), 1, blocks);
			uint64_t at = size + MiB / 4 + 5 * size + 3;
			struct answer a;

			memset(data, 0x3c, sizeof data);
			do_write(&s.disk[0].f, 0, 1 * MiB, 0x3c, 0);
			assert_good(scsi_out(&s.a, cdb, size, data));
			do_write(&s.disk[0].f, at, 1, 0x3d, 0);
			a = scsi_out(&s.a, cdb, size, data);
			assert_sense(a, SCSI_MISCOMPARE, 0x1d00);
			assert_eq(a.information, at - size);
			/* Neither a part of a block nor two. */
			assert_sense(scsi_out(&s.a, cdb, size / 2, data), SCSI_ILLEGAL_REQUEST,
				     0x2400);
			assert_sense(scsi_none(&s.a, cdb), SCSI_ILLEGAL_REQUEST, 0x2400);
		}
	}
}

TEST(verify_compares_the_whole_blocks_that_came)
{
	static const struct {
		uint32_t blocks, expected, compared;
		enum scsi_residual residual;
	} cases[] = {
		{ 2, 512, 512, SCSI_OVERFLOW },
		{ 3, 1100, 1024, SCSI_OVERFLOW },
		{ 1, 100, 0, SCSI_OVERFLOW },
		{ 2, 5000, 1024, SCSI_UNDERFLOW },
	};
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned i = 0; i < COUNT(cases); i++) {
		struct cdb cdb = cdb_blocks(SCSI_VERIFY_12, BYTCHK(1), 3, cases[i].blocks);
		uint8_t data[5000];
		struct answer a;

		/* Behind what is compared nothing matches. */
		memset(data, 0x7f, sizeof data);
		do_write(&s.disk[0].f, 0, 8192, 0x11, 0);
		do_write(&s.disk[0].f, 3 * 512, cases[i].compared, 0x7f, 0);
		a = scsi_out(&s.a, cdb, cases[i].expected, data);
		assert_good(a);
		assert_eq(a.residual, cases[i].residual);
		if (cases[i].compared == 0)
			continue;
		data[cases[i].compared - 1] = 0;
		a = scsi_out(&s.a, cdb, cases[i].expected, data);
		assert_sense(a, SCSI_MISCOMPARE, 0x1d00);
		assert_eq(a.information, cases[i].compared - 1);
	}
	lab_close(&s);
}

TEST(bytchk_that_means_nothing_is_refused)
{
	uint8_t data[512] = { 0 };
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned v = 0; v < COUNT(verifies); v++) {
		assert_field(scsi_none(&s.a, cdb_blocks(verifies[v], BYTCHK(2), 0, 1)), 1, 2);
		for (unsigned n = 2; n < 4; n++)
			assert_field(scsi_out(&s.a,
					      cdb_blocks(write_and_verifies[v], BYTCHK(n), 0, 1),
					      512, data),
				     1, 2);
	}
	lab_close(&s);
}

TEST(write_and_verify_writes_and_finds_what_it_wrote)
{
	uint8_t *data = test_alloc(1 * MiB);
	struct lab s;
	uint32_t size;

	for_each_block_size(&s, size)
	{
		for (unsigned v = 0; v < COUNT(write_and_verifies); v++) {
			for (unsigned n = 0; n < 2; n++) {
				pattern_fill(data, MiB, size, v * 2 + n);
				assert_good(scsi_out(&s.a,
						     cdb_blocks(write_and_verifies[v], BYTCHK(n), 1,
								MiB / size),
						     MiB, data));
				check_data(&s.disk[0].f, size, MiB, data);
			}
		}
	}
	free(data);
}

/* The medium says that it has written, and has not. */
TEST(write_and_verify_does_not_believe_the_medium)
{
	uint8_t data[8 * 512];
	struct answer a;
	struct lab s;

	memset(data, 0x42, sizeof data);
	lab_open(&s, WORDS(),
		 WORDS("driver=fault", "over=memory", "size=4M", "kind=write", "fault=lie",
		       "offset=2k", "length=512"));
	a = scsi_out(&s.a, cdb_blocks(SCSI_WRITE_AND_VERIFY_16, BYTCHK(1), 4, 1), 512, data);
	assert_sense(a, SCSI_MISCOMPARE, 0x1d00);
	assert_eq(a.information, 0);
	/* The second time it does. */
	assert_good(
		scsi_out(&s.a, cdb_blocks(SCSI_WRITE_AND_VERIFY_16, BYTCHK(1), 4, 1), 512, data));
	lab_close(&s);
}

/* ---- what cannot be read ------------------------------------------------------------- */

#define BAD_WORDS(offset) \
	WORDS("driver=fault", "over=memory", "size=4M", "kind=read", "fault=error", \
	      "repeat=forever", "offset=" offset, "length=512")

TEST(the_first_block_that_cannot_be_read_is_named_and_those_before_it_come)
{
	static const struct {
		uint64_t lba;
		uint32_t blocks;
	} ranges[] = { { 1000, 1 },  { 1000, 2 },    { 999, 2 },  { 900, 128 },
		       { 873, 128 }, { 0, 1001 },    { 0, 2048 }, { 997, 3000 },
		       { 999, 1 },   { 1001, 4096 }, { 985, 16 }, { 1000, 7000 } };
	uint8_t *data = test_alloc(4 * MiB), *want = test_alloc(4 * MiB);
	struct lab s;

	lab_open(&s, WORDS(), BAD_WORDS("512000")); /* block 1000 */
	do_write_pattern(&s.disk[0].f, 0, SIZE, 9, 0);
	for (unsigned i = 0; i < COUNT(ranges); i++) {
		uint64_t lba = ranges[i].lba;
		uint32_t blocks = ranges[i].blocks, length = blocks * 512;
		bool bad = lba <= 1000 && lba + blocks > 1000;
		uint32_t good = bad ? (uint32_t)(1000 - lba) * 512 : length;

		for (unsigned fua = 0; fua < 2; fua++) {
			struct answer a;

			memset(data, 0xee, length);
			pattern_fill(want, length, lba * 512, 9);
			a = scsi_in(&s.a, cdb_blocks(SCSI_READ_16, fua ? FUA : 0, lba, blocks),
				    length, data);
			if (bad) {
				assert_sense(a, SCSI_MEDIUM_ERROR, 0x1100);
				assert_true(a.has_information);
				assert_eq(a.information, 1000);
			} else {
				assert_good(a);
			}
			assert_eq(a.moved, good);
			assert_mem(data, want, good);
			assert_filled(data + good, 0xee, length - good);
		}
	}
	lab_close(&s);
	free(data);
	free(want);
}

/* The initiator is ready for a part of it only. */
TEST(a_block_of_which_a_part_is_read_is_named_too)
{
	uint8_t data[700], want[512];
	struct answer a;
	struct lab s;

	lab_open(&s, WORDS(), BAD_WORDS("512000")); /* block 1000 */
	do_write_pattern(&s.disk[0].f, 0, SIZE, 9, 0);
	pattern_fill(want, 512, 999 * 512, 9);
	a = scsi_in(&s.a, cdb_blocks(SCSI_READ_16, 0, 999, 4), 700, data);
	assert_sense(a, SCSI_MEDIUM_ERROR, 0x1100);
	assert_eq(a.information, 1000);
	assert_eq(a.moved, 512);
	assert_mem(data, want, 512);
	lab_close(&s);
}

TEST(verify_names_the_block_that_cannot_be_read)
{
	uint8_t *data = test_alloc(4 * MiB);
	struct lab s;

	lab_open(&s, WORDS(), BAD_WORDS("2M")); /* block 4096, in the ninth piece */
	for (unsigned n = 0; n < 4; n++) {
		static const uint32_t length[] = { 0, 4 * MiB - 512, 0, 512 };
		struct answer a;

		if (n == 2)
			continue;
		a = scsi_do(&s.a, cdb_blocks(SCSI_VERIFY_16, BYTCHK(n), 1, 8191),
			    n == 0 ? DATA_NONE : DATA_OUT, length[n], data);
		assert_sense(a, SCSI_MEDIUM_ERROR, 0x1100);
		assert_eq(a.information, 4096);
	}
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_VERIFY_16, 0, 0, 4096)));
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_VERIFY_16, 0, 4097, 4095)));
	/* It can be written, and not read again. */
	assert_sense(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_AND_VERIFY_16, 0, 4090, 10), 5120, data),
		     SCSI_MEDIUM_ERROR, 0x1100);
	lab_close(&s);
	free(data);
}

TEST(an_error_that_has_gone_is_told_without_an_address)
{
	uint8_t *data = test_alloc(1 * MiB);
	struct answer a;
	struct lab s;

	lab_open(&s, WORDS(),
		 WORDS("driver=fault", "over=memory", "size=4M", "kind=read", "fault=error"));
	a = scsi_in(&s.a, cdb_blocks(SCSI_READ_16, 0, 0, 100), 100 * 512, data);
	assert_sense(a, SCSI_MEDIUM_ERROR, 0x1100);
	assert_false(a.has_information);
	assert_good(scsi_in(&s.a, cdb_blocks(SCSI_READ_16, 0, 0, 100), 100 * 512, data));
	lab_close(&s);
	free(data);
}

TEST(other_errors_of_the_medium_have_their_sense)
{
	static const struct {
		const char *kind, *error;
		uint8_t opcode;
		unsigned status, key, asc;
	} cases[] = {
		{ "kind=write", "errno=EIO", SCSI_WRITE_16, SCSI_CHECK_CONDITION, SCSI_MEDIUM_ERROR,
		  0x0c00 },
		{ "kind=write", "errno=ENOSPC", SCSI_WRITE_16, SCSI_CHECK_CONDITION,
		  SCSI_DATA_PROTECT, 0x2707 },
		{ "kind=write", "errno=EROFS", SCSI_WRITE_16, SCSI_CHECK_CONDITION,
		  SCSI_DATA_PROTECT, 0x2700 },
		{ "kind=write", "errno=ENOMEM", SCSI_WRITE_AND_VERIFY_16, SCSI_BUSY, 0, 0 },
		{ "kind=write", "errno=EIO", SCSI_ORWRITE_16, SCSI_CHECK_CONDITION,
		  SCSI_MEDIUM_ERROR, 0x0c00 },
	};

	for (unsigned i = 0; i < COUNT(cases); i++) {
		uint8_t data[512] = { 1 };
		struct answer a;
		struct lab s;

		lab_open(&s, WORDS(),
			 WORDS("driver=fault", "over=memory", "size=4M", "fault=error",
			       cases[i].kind, cases[i].error));
		a = scsi_out(&s.a, cdb_blocks(cases[i].opcode, 0, 0, 1), 512, data);
		assert_status(a, cases[i].status);
		assert_eq(a.key, cases[i].key);
		assert_eq(a.asc, cases[i].asc);
		assert_good(scsi_out(&s.a, cdb_blocks(cases[i].opcode, 0, 0, 1), 512, data));
		lab_close(&s);
	}
}

/* ---- READ CAPACITY ------------------------------------------------------------------- */

#define CAPACITY_10 CDB(SCSI_READ_CAPACITY_10, 0, 0, 0, 0, 0, 0, 0, 0, 0)
#define CAPACITY_16(length) \
	CDB(SCSI_SERVICE_ACTION_IN_16, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, (length), 0, 0)

TEST(capacity_is_the_last_block_and_its_size)
{
	struct lab s;
	uint32_t size;

	for_each_block_size(&s, size)
	{
		uint8_t data[32];

		assert_eq(scsi_in(&s.a, CAPACITY_10, 8, data).moved, 8);
		assert_eq(get_be32(data), SIZE / size - 1);
		assert_eq(get_be32(data + 4), size);
		assert_eq(scsi_in(&s.a, CAPACITY_16(32), 32, data).moved, 32);
		assert_eq(get_be64(data), SIZE / size - 1);
		assert_eq(get_be32(data + 8), size);
		assert_eq(data[12], 0);                   /* no protection information */
		assert_eq(data[13], size == 512 ? 3 : 0); /* physical blocks of 4096 */
		assert_eq(data[14], 0xc0);                /* LBPME, LBPRZ; aligned at 0 */
		assert_filled(data + 15, 0, 17);
	}
}

TEST(capacity_of_more_than_32_bits_is_left_to_the_long_form)
{
	static const struct {
		const char *size;
		uint32_t last;
	} cases[] = { { "size=2199023255040", UINT32_MAX - 1 }, /* 2 TiB less a block */
		      { "size=2T", UINT32_MAX },
		      { "size=2199023256064", UINT32_MAX },
		      { "size=64T", UINT32_MAX } };

	for (unsigned i = 0; i < COUNT(cases); i++) {
		uint8_t data[32];
		struct lab s;

		lab_open(&s, WORDS(), WORDS("driver=null", cases[i].size));
		assert_good(scsi_in(&s.a, CAPACITY_10, 8, data));
		assert_eq(get_be32(data), cases[i].last);
		assert_good(scsi_in(&s.a, CAPACITY_16(32), 32, data));
		assert_eq(get_be64(data) + 1, pl_export_geometry(s.disk[0].f.ex)->size / 512);
		lab_close(&s);
	}
}

TEST(capacity_needs_no_more_than_it_is_given)
{
	uint8_t whole[32], data[32];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(scsi_in(&s.a, CAPACITY_16(32), 32, whole));
	for (uint8_t length = 0; length <= 32; length++) {
		struct answer a;

		memset(data, 0xee, sizeof data);
		a = scsi_in(&s.a, CAPACITY_16(length), 32, data);
		assert_good(a);
		assert_eq(a.moved, length);
		assert_mem(data, whole, length);
	}
	lab_close(&s);
}

TEST(an_address_means_something_with_pmi_only)
{
	struct cdb pmi = CDB(SCSI_READ_CAPACITY_10, 0, 0, 0, 0, 5, 0, 0, 1, 0);
	struct cdb far = CDB(SCSI_READ_CAPACITY_10, 0, 0, 0x20, 0, 0, 0, 0, 1, 0);
	struct cdb without = CDB(SCSI_READ_CAPACITY_10, 0, 0, 0, 0, 5, 0, 0, 0, 0);
	uint8_t data[8];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(scsi_in(&s.a, pmi, 8, data));
	assert_eq(get_be32(data), SIZE / 512 - 1);
	assert_sense(scsi_in(&s.a, far, 8, data), SCSI_ILLEGAL_REQUEST, 0x2100);
	assert_field(scsi_in(&s.a, without, 8, data), 2, -1);
	lab_close(&s);
}

/* ---- many ---------------------------------------------------------------------------- */

/* Any sequence of commands leaves what a plain array of bytes has. */
TEST(random_commands_do_what_they_say)
{
	uint8_t *model = test_alloc(1 * MiB), *data = test_alloc(2 * MiB);
	uint64_t seed = test_seed();
	struct lab s;
	uint32_t size;

	for_each_block_size(&s, size)
	{
		uint64_t n = 1 * MiB / size;

		memset(model, 0, 1 * MiB);
		for (unsigned round = 0; round < 1500; round++) {
			uint32_t blocks = (uint32_t)random_below(&seed, 40) + 1;
			uint64_t lba = random_below(&seed, n - blocks);
			uint32_t length = blocks * size;
			uint8_t *at = model + lba * size, tag = (uint8_t)random_next(&seed);

			pattern_fill(data, length, lba, tag);
			switch (random_below(&seed, 8)) {
			case 0:
				assert_good(scsi_in(&s.a, cdb_blocks(SCSI_READ_10, 0, lba, blocks),
						    length, data));
				assert_mem(data, at, length);
				break;
			case 1:
				assert_good(scsi_out(&s.a,
						     cdb_blocks(SCSI_WRITE_12, 0, lba, blocks),
						     length, data));
				memcpy(at, data, length);
				break;
			case 2:
				assert_good(scsi_out(&s.b,
						     cdb_blocks(SCSI_ORWRITE_16, 0, lba, blocks),
						     length, data));
				for (uint32_t i = 0; i < length; i++)
					at[i] |= data[i];
				break;
			case 3:
				assert_good(scsi_out(&s.a,
						     cdb_blocks(SCSI_WRITE_AND_VERIFY_16, BYTCHK(1),
								lba, blocks),
						     length, data));
				memcpy(at, data, length);
				break;
			case 4:
				memcpy(data + length, data, length);
				memcpy(data, at, length);
				assert_good(
					scsi_out(&s.b,
						 cdb_blocks(SCSI_COMPARE_AND_WRITE, 0, lba, blocks),
						 2 * length, data));
				memcpy(at, data + length, length);
				break;
			case 5:
				memset(data, (tag & 1) != 0 ? tag : 0, size);
				assert_good(scsi_out(&s.a,
						     cdb_blocks(SCSI_WRITE_SAME_16, tag & 0x08, lba,
								blocks),
						     size, data));
				memset(at, (tag & 1) != 0 ? tag : 0, length);
				break;
			case 6:
				memcpy(data, at, length);
				assert_good(
					scsi_out(&s.a,
						 cdb_blocks(SCSI_VERIFY_10, BYTCHK(1), lba, blocks),
						 length, data));
				break;
			default:
				assert_good(scsi_none(&s.a, cdb_blocks(SCSI_WRITE_SAME_16, 0x09,
								       lba, blocks)));
				memset(at, 0, length);
				break;
			}
		}
		check_data(&s.disk[0].f, 0, 1 * MiB, model);
	}
	free(model);
	free(data);
}
