/* scsi_copy.c - EXTENDED COPY: what is copied, what is refused, and what nobody may have copied. */
#include "bytes.h"
#include "scsi.h"

#include <stdlib.h>
#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))
#define MEMORY      WORDS("driver=memory", "size=4M")

enum { BLOCKS = 0x02, BYTES = 0x0a }; /* segment descriptors */
enum { DC = 0x02, CAT = 0x01, PAD = 0x04 };
enum { HOLD = 0 << 3, DISCARD = 2 << 3, NO_ID = 3 << 3 }; /* LIST ID USAGE */
enum { COPY_STATUS = 0, PARAMETERS = 3, FAILURE = 4 };

/* ---- verbs ----------------------------------------------------------------------- */

struct list {
	uint8_t bytes[4096 + 256];
	uint32_t cscds, segments; /* bytes */
};

static uint32_t
length_of(const struct list *l)
{
	return 16 + l->cscds + l->segments;
}

static void
start_list(struct list *l, uint8_t id, uint8_t usage)
{
	memset(l, 0, sizeof *l);
	l->bytes[0] = id;
	l->bytes[1] = usage;
}

/* VPD page 83h: the NAA designator. Returns its length. */
static unsigned
naa_of(struct initiator *i, unsigned lun, uint8_t naa[16])
{
	uint8_t page[1024];
	struct answer a = scsi_do_lun(i, lun, cdb_hex("120183040000"), DATA_IN, 1024, page);

	assert_good(a);
	for (unsigned at = 4; at < a.moved; at += 4u + page[at + 3]) {
		if ((page[at] & 0x0f) == 1 && (page[at + 1] & 0x3f) == 3) {
			memcpy(naa, page + at + 4, page[at + 3]);
			return page[at + 3];
		}
	}
	test_fail(__FILE__, __LINE__, "LUN %u has no NAA", lun);
}

static uint8_t *
add_cscd(struct list *l, struct initiator *i, unsigned lun, unsigned pad, uint32_t block)
{
	uint8_t *p = l->bytes + 16 + l->cscds;

	assert_eq(l->segments, 0);
	p[0] = 0xe4;
	p[4] = 1;
	p[5] = 3;
	p[7] = (uint8_t)naa_of(i, lun, p + 8);
	p[28] = (uint8_t)pad;
	put_be24(p + 29, block);
	l->cscds += 32;
	put_be16(l->bytes + 2, (uint16_t)l->cscds);
	return p;
}

static uint8_t *
add_segment(struct list *l, uint8_t type, unsigned flags, unsigned from, unsigned to,
	    uint32_t count, uint64_t source, uint64_t destination)
{
	uint8_t *p = l->bytes + 16 + l->cscds + l->segments;
	unsigned length = type == BYTES ? 32 : 28;

	p[0] = type;
	p[1] = (uint8_t)flags;
	put_be16(p + 2, (uint16_t)(length - 4));
	put_be16(p + 4, (uint16_t)from);
	put_be16(p + 6, (uint16_t)to);
	if (type == BYTES)
		put_be32(p + 8, count);
	else
		put_be16(p + 10, (uint16_t)count);
	put_be64(p + 12, source);
	put_be64(p + 20, destination);
	l->segments += length;
	put_be32(l->bytes + 8, l->segments);
	return p;
}

static struct cdb
cdb_copy(uint32_t length)
{
	struct cdb cdb = CDB(SCSI_EXTENDED_COPY, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0);

	put_be32(cdb.bytes + 10, length);
	return cdb;
}

static struct answer
copy(struct initiator *i, struct list *l)
{
	return scsi_out(i, cdb_copy(length_of(l)), length_of(l), l->bytes);
}

static struct answer
results(struct initiator *i, unsigned action, uint8_t id, uint32_t length, uint8_t *data)
{
	struct cdb cdb = CDB(SCSI_RECEIVE_COPY_RESULTS, (uint8_t)action, id, 0, 0, 0, 0, 0, 0, 0, 0,
			     0, 0, 0, 0, 0);

	put_be32(cdb.bytes + 10, length);
	return scsi_in(i, cdb, length, data);
}

#define assert_copy_aborted(a, asc) assert_sense((a), SCSI_COPY_ABORTED, (asc))

/* Two units, and a list that names them 0 and 1. */
static void
open_two(struct lab *s, struct list *l)
{
	lab_open(s, WORDS(), MEMORY);
	lab_add(s, WORDS(), MEMORY, 0);
	clear_attentions(&s->a);
	clear_attentions(&s->b);
	start_list(l, 1, HOLD);
	add_cscd(l, &s->a, 0, 0, 512);
	add_cscd(l, &s->a, 1, 0, 512);
}

/* ---- what is copied --------------------------------------------------------------- */

TEST(blocks_are_copied_within_a_unit_and_to_another)
{
	struct list l;
	struct lab s;

	open_two(&s, &l);
	do_write_pattern(&s.disk[0].f, 0, 4 * MiB, 1, 0);
	do_write_pattern(&s.disk[1].f, 0, 4 * MiB, 2, 0);
	add_segment(&l, BLOCKS, 0, 0, 1, 3000, 100, 7); /* several pieces */
	add_segment(&l, BLOCKS, DC, 1, 0, 5, 7000, 8187);
	add_segment(&l, BLOCKS, 0, 0, 0, 0, 1 << 30, 1 << 30); /* nothing, of nowhere */
	assert_good(copy(&s.a, &l));
	for (uint64_t n = 0; n < 4 * MiB; n += 512) {
		uint8_t want[512];
		uint64_t block = n / 512;

		if (block >= 7 && block < 3007)
			pattern_fill(want, 512, (block - 7 + 100) * 512, 1);
		else
			pattern_fill(want, 512, n, 2);
		check_data(&s.disk[1].f, n, 512, want);
		if (block >= 8187)
			pattern_fill(want, 512, (block - 8187 + 7000) * 512, 2);
		else
			pattern_fill(want, 512, n, 1);
		check_data(&s.disk[0].f, n, 512, want);
	}
	lab_close(&s);
}

TEST(bytes_are_copied_from_any_place_to_any)
{
	uint8_t want[2000];
	uint8_t *p;
	struct list l;
	struct lab s;

	open_two(&s, &l);
	do_write_pattern(&s.disk[0].f, 0, 64 * KiB, 1, 0);
	do_write_pattern(&s.disk[1].f, 0, 64 * KiB, 2, 0);
	p = add_segment(&l, BYTES, 0, 0, 1, 1234, 3, 5);
	put_be16(p + 28, 100);
	put_be16(p + 30, 511);
	assert_good(copy(&s.a, &l));
	pattern_fill(want, 2000, 0, 2);
	pattern_fill(want, 1234, 3 * 512 + 100, 1);
	check_data(&s.disk[1].f, 5 * 512 + 511, 1234, want);
	check_pattern(&s.disk[1].f, 0, 5 * 512 + 511, 2);
	check_pattern(&s.disk[1].f, 5 * 512 + 511 + 1234, 32 * KiB, 2);
	/* An offset of a block or more is the next block's. */
	put_be16(p + 30, 512);
	assert_parameter(copy(&s.a, &l), 16 + 64 + 30, -1);
	put_be16(p + 30, 0);
	put_be16(p + 28, 512);
	assert_parameter(copy(&s.a, &l), 16 + 64 + 28, -1);
	lab_close(&s);
}

/* As memmove() has it, whichever way they overlap, and over pieces. */
TEST(what_overlaps_is_copied_whole)
{
	static const struct {
		uint64_t source, destination;
		uint32_t blocks;
	} cases[] = {
		{ 0, 1, 2000 },    { 1, 0, 2000 }, { 0, 512, 2000 }, { 700, 0, 2000 },
		{ 0, 1999, 2000 }, { 5, 5, 2000 }, { 0, 3, 7 },
	};
	uint8_t *model = test_alloc(4 * MiB);
	struct list l;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned k = 0; k < COUNT(cases); k++) {
		do_write_pattern(&s.disk[0].f, 0, 4 * MiB, k, 0);
		pattern_fill(model, 4 * MiB, 0, k);
		start_list(&l, 0, NO_ID);
		add_cscd(&l, &s.a, 0, 0, 512);
		add_segment(&l, BLOCKS, 0, 0, 0, cases[k].blocks, cases[k].source,
			    cases[k].destination);
		assert_good(copy(&s.a, &l));
		memmove(model + cases[k].destination * 512, model + cases[k].source * 512,
			cases[k].blocks * 512);
		check_data(&s.disk[0].f, 0, 4 * MiB, model);
	}
	lab_close(&s);
	free(model);
}

/* Blocks of 512 to blocks of 4096, and back. */
TEST(what_comes_to_no_whole_block_is_padded_left_or_refused)
{
	uint8_t want[8192] = { 0 };
	struct list l;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	lab_add(&s, WORDS("block-size=4096"), MEMORY, 0);
	clear_attentions(&s.a);
	do_write_pattern(&s.disk[0].f, 0, 64 * KiB, 1, 0);
	for (unsigned pad = 0; pad < 4; pad++) {
		bool from = (pad & 1) != 0, to = (pad & 2) != 0;
		struct answer a;

		do_write(&s.disk[1].f, 0, 64 * KiB, 0xee, 0);
		start_list(&l, 0, NO_ID);
		add_cscd(&l, &s.a, 0, from ? PAD : 0, 512);
		add_cscd(&l, &s.a, 1, to ? PAD : 0, 4096);
		add_segment(&l, BLOCKS, 0, 0, 1, 11, 0, 1);
		a = copy(&s.a, &l);
		if (pad == 0) {
			assert_copy_aborted(a, 0x260a);
			check_bytes(&s.disk[1].f, 0, 64 * KiB, 0xee);
			continue;
		}
		assert_good(a);
		check_pattern(&s.disk[0].f, 0, 64 * KiB, 1);
		pattern_fill(want, 11 * 512, 0, 1);
		if (!to)
			memset(want + 4096, 0xee, 4096); /* the rest was left */
		else
			memset(want + 11 * 512, 0, 8192 - 11 * 512);
		check_data(&s.disk[1].f, 4096, 8192, want);
		check_bytes(&s.disk[1].f, 12288, 32 * KiB, 0xee);
	}
	/* What does come to whole blocks needs no bit. */
	start_list(&l, 0, NO_ID);
	add_cscd(&l, &s.a, 0, 0, 512);
	add_cscd(&l, &s.a, 1, 0, 4096);
	add_segment(&l, BLOCKS, CAT, 0, 1, 16, 8, 4);
	add_segment(&l, BLOCKS, DC, 0, 1, 1, 3, 6); /* one of 4096 */
	add_segment(&l, BLOCKS, 0, 1, 0, 1, 6, 16); /* and back */
	assert_good(copy(&s.a, &l));
	pattern_fill(want, 8192, 8 * 512, 1);
	check_data(&s.disk[1].f, 4 * 4096, 8192, want);
	pattern_fill(want, 4096, 3 * 512, 1);
	check_data(&s.disk[1].f, 6 * 4096, 4096, want);
	check_data(&s.disk[0].f, 8192, 4096, want);
	/* Nothing is held from one segment for the next. */
	start_list(&l, 0, NO_ID);
	add_cscd(&l, &s.a, 0, PAD, 512);
	add_cscd(&l, &s.a, 1, PAD, 4096);
	add_segment(&l, BLOCKS, CAT, 0, 1, 11, 0, 1);
	assert_parameter(copy(&s.a, &l), 16 + 64 + 1, 0);
	lab_close(&s);
}

TEST(without_a_write_cache_a_copy_is_stable_when_it_is_answered)
{
	uint8_t *want = test_alloc(1 * MiB);
	uint8_t page[24] = { 0, 0, 0, 0, 0x08, 0x12 };
	struct list l;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	lab_add(&s, WORDS(), WORDS("driver=powercut", "over=memory", "size=4M"), 0);
	clear_attentions(&s.a);
	do_write_pattern(&s.disk[0].f, 0, 1 * MiB, 1, 0);
	start_list(&l, 0, NO_ID);
	add_cscd(&l, &s.a, 0, 0, 512);
	add_cscd(&l, &s.a, 1, 0, 512);
	add_segment(&l, BLOCKS, 0, 0, 1, 2048, 0, 16);
	/* WCE off; what else is in the page stays as it is by default. */
	{
		uint8_t now[256];
		unsigned n;
		struct cdb sense = cdb_hex("1a080800ff00"), select = cdb_hex("151000001800");
		struct answer a = scsi_do_lun(&s.a, 1, sense, DATA_IN, 255, now);

		assert_good(a);
		n = a.moved - 4;
		assert_eq(n, 20);
		memcpy(page + 4, now + 4, n);
		page[4] &= 0x3f; /* PS */
		page[6] &= (uint8_t)~0x04;
		assert_good(scsi_do_lun(&s.a, 1, select, DATA_OUT, 24, page));
	}
	assert_good(copy(&s.a, &l));
	pattern_fill(want, 1 * MiB, 0, 1);
	for_each_crash_image(&s.disk[1].f, im) assert_mem(im->data + 8192, want, 1 * MiB);
	free(want);
	lab_close(&s);
}

/* ---- what is refused -------------------------------------------------------------- */

/* And nothing has been copied. */
static void
check_untouched(struct lab *s)
{
	for (unsigned lun = 0; lun < s->disks; lun++)
		check_pattern(&s->disk[lun].f, 0, 64 * KiB, lun);
}

/* I11: by another's name. */
TEST(only_units_that_the_initiator_sees_are_copied)
{
	struct list l;
	struct lab s;

	open_two(&s, &l);
	for (unsigned lun = 0; lun < 2; lun++)
		do_write_pattern(&s.disk[lun].f, 0, 64 * KiB, lun, 0);
	scsi_nexus_map(s.b.nexus, 1, NULL);
	clear_attentions(&s.a);
	assert_sense(scsi_none(&s.b, cdb_hex("000000000000")), SCSI_UNIT_ATTENTION, 0x3f0e);
	add_segment(&l, BLOCKS, 0, 1, 0, 8, 0, 8); /* to read it */
	assert_copy_aborted(copy(&s.b, &l), 0x0d02);
	l.segments = 0;
	add_segment(&l, BLOCKS, 0, 0, 1, 8, 0, 8); /* to write it */
	assert_copy_aborted(copy(&s.b, &l), 0x0d02);
	check_untouched(&s);
	assert_good(copy(&s.a, &l));
	lab_close(&s);
}

TEST(the_whole_list_is_checked_before_anything_is_copied)
{
	struct list good, l;
	uint8_t *p;
	struct lab s;

	open_two(&s, &good);
	for (unsigned lun = 0; lun < 2; lun++)
		do_write_pattern(&s.disk[lun].f, 0, 64 * KiB, lun, 0);
	add_segment(&good, BLOCKS, 0, 0, 1, 8, 0, 8);
#define BAD(byte, value) \
	do { \
		l = good; \
		p = add_segment(&l, BLOCKS, 0, 0, 1, 8, 0, 8); \
		p[byte] = (value); \
	} while (0)
	BAD(0, 0x03); /* stream to stream */
	assert_sense(copy(&s.a, &l), SCSI_ILLEGAL_REQUEST, 0x2609);
	BAD(3, 0x14);
	assert_parameter(copy(&s.a, &l), 16 + 64 + 28 + 2, -1);
	BAD(5, 2); /* there are two: 0 and 1 */
	assert_copy_aborted(copy(&s.a, &l), 0x0804);
	BAD(6, 0xff);
	assert_copy_aborted(copy(&s.a, &l), 0x0804);
	assert_eq(get_be32(copy(&s.a, &l).sense + 8), 1); /* the second segment */
	BAD(17, 1);                                       /* source: beyond 8192 blocks */
	assert_copy_aborted(copy(&s.a, &l), 0x0000);
	BAD(25, 1);
	assert_copy_aborted(copy(&s.a, &l), 0x0000);
	BAD(12, 0xff);
	assert_copy_aborted(copy(&s.a, &l), 0x0000);
	l = good;
	add_segment(&l, BLOCKS, 0, 0, 1, 2, 8191, 0); /* runs over the end */
	assert_copy_aborted(copy(&s.a, &l), 0x0000);
	l = good;
	add_segment(&l, BLOCKS, 0, 0, 1, 2, 0, 8191);
	assert_copy_aborted(copy(&s.a, &l), 0x0000);
	l = good;
	l.bytes[16] = 0xe0; /* a name of fibre channel */
	assert_sense(copy(&s.a, &l), SCSI_ILLEGAL_REQUEST, 0x2607);
	l = good;
	l.bytes[16 + 1] = 0x01; /* a tape */
	assert_copy_aborted(copy(&s.a, &l), 0x0d03);
	l = good;
	l.bytes[16 + 7] = 21;
	assert_parameter(copy(&s.a, &l), 16 + 7, -1);
	l = good;
	l.bytes[16 + 9] ^= 1; /* nobody's name */
	assert_copy_aborted(copy(&s.a, &l), 0x0d02);
	l = good;
	l.bytes[16 + 30] = 0x10; /* blocks of another size */
	assert_parameter(copy(&s.a, &l), 16 + 29, -1);
	check_untouched(&s);
	assert_good(copy(&s.a, &good));
	lab_close(&s);
}

TEST(a_list_whose_lengths_do_not_fit_is_refused)
{
	uint8_t data[64];
	unsigned cscds, segments, most;
	struct list good, l;
	struct lab s;

	open_two(&s, &good);
	for (unsigned lun = 0; lun < 2; lun++)
		do_write_pattern(&s.disk[lun].f, 0, 64 * KiB, lun, 0);
	add_segment(&good, BLOCKS, 0, 0, 1, 8, 0, 8);
	assert_good(scsi_none(&s.a, cdb_copy(0))); /* no list: nothing to do */
	for (uint32_t n = 1; n < length_of(&good); n++)
		assert_sense(scsi_out(&s.a, cdb_copy(n), length_of(&good), good.bytes),
			     SCSI_ILLEGAL_REQUEST, 0x1a00);
	/* Less comes than was said. */
	assert_sense(scsi_out(&s.a, cdb_copy(length_of(&good)), 30, good.bytes),
		     SCSI_ILLEGAL_REQUEST, 0x1a00);
	assert_sense(scsi_none(&s.a, cdb_copy(length_of(&good))), SCSI_ILLEGAL_REQUEST, 0x1a00);
	assert_sense(scsi_none(&s.a, cdb_copy(UINT32_MAX)), SCSI_ILLEGAL_REQUEST, 0x1a00);
	for (unsigned at = 8; at < 16; at += 4) {
		l = good;
		put_be32(l.bytes + at, UINT32_MAX);
		assert_sense(copy(&s.a, &l), SCSI_ILLEGAL_REQUEST, 0x1a00);
	}
	l = good;
	put_be16(l.bytes + 2, 63); /* descriptors of 32 bytes */
	put_be32(l.bytes + 8, 29);
	assert_parameter(copy(&s.a, &l), 2, -1);
	l = good;
	put_be32(l.bytes + 8, 27);
	assert_parameter(copy(&s.a, &l), 8, -1);
	l = good;
	put_be32(l.bytes + 12, 4); /* inline data */
	l.segments += 4;
	assert_sense(copy(&s.a, &l), SCSI_ILLEGAL_REQUEST, 0x260b);

	/* As many as are said to be possible, and one more. */
	assert_good(results(&s.a, PARAMETERS, 0, 64, data));
	cscds = get_be16(data + 8);
	segments = get_be16(data + 10);
	most = get_be32(data + 12);
	for (unsigned more = 0; more < 2; more++) {
		start_list(&l, 1, HOLD);
		for (unsigned k = 0; k < cscds + more; k++)
			add_cscd(&l, &s.a, 0, 0, 512);
		add_segment(&l, BLOCKS, 0, 0, 0, 1, 0, 0);
		if (more == 0)
			assert_good(copy(&s.a, &l));
		else
			assert_sense(copy(&s.a, &l), SCSI_ILLEGAL_REQUEST, 0x2606);
		start_list(&l, 1, HOLD);
		add_cscd(&l, &s.a, 0, 0, 512);
		for (unsigned k = 0; k < segments + more; k++)
			add_segment(&l, BLOCKS, 0, 0, 0, 1, 0, 0);
		if (more == 0)
			assert_good(copy(&s.a, &l));
		else
			assert_sense(copy(&s.a, &l), SCSI_ILLEGAL_REQUEST, 0x2608);
	}
	start_list(&l, 1, HOLD);
	while (16 + l.cscds + l.segments <= 16 + most)
		add_segment(&l, BLOCKS, 0, 0, 0, 1, 0, 0);
	assert_sense(copy(&s.a, &l), SCSI_ILLEGAL_REQUEST, 0x1a00);
	check_untouched(&s);
	lab_close(&s);
}

TEST(a_segment_longer_than_is_said_to_be_possible_is_refused)
{
	uint8_t data[64];
	uint32_t most;
	struct list l;
	struct lab s;

	lab_open(&s, WORDS(), WORDS("driver=null", "size=1G"));
	assert_good(results(&s.a, PARAMETERS, 0, 64, data));
	most = get_be32(data + 16);
	for (unsigned more = 0; more < 2; more++) {
		start_list(&l, 0, NO_ID);
		add_cscd(&l, &s.a, 0, 0, 512);
		add_segment(&l, BYTES, 0, 0, 0, most + more, 0, 1 << 20);
		if (more == 0)
			assert_good(copy(&s.a, &l));
		else
			assert_parameter(copy(&s.a, &l), 16 + 32 + 8, -1);
	}
	lab_close(&s);
}

TEST(reservations_and_write_protection_of_both_units_count)
{
	const struct cdb reserve = cdb_hex("160000000000"), release = cdb_hex("170000000000");
	struct list l, back;
	struct lab s;

	open_two(&s, &l);
	back = l;
	add_segment(&l, BLOCKS, 0, 0, 1, 8, 0, 8);
	add_segment(&back, BLOCKS, 0, 1, 0, 8, 0, 8);
	assert_good(scsi_do_lun(&s.b, 1, reserve, DATA_NONE, 0, NULL));
	assert_status(copy(&s.a, &l), SCSI_RESERVATION_CONFLICT);
	assert_status(copy(&s.a, &back), SCSI_RESERVATION_CONFLICT);
	assert_good(copy(&s.b, &l));
	assert_good(scsi_do_lun(&s.b, 1, release, DATA_NONE, 0, NULL));
	assert_good(copy(&s.a, &l));

	lab_add(&s, WORDS(), MEMORY, PL_OPEN_READ_ONLY);
	clear_attentions(&s.a);
	start_list(&l, 0, NO_ID);
	add_cscd(&l, &s.a, 0, 0, 512);
	add_cscd(&l, &s.a, 2, 0, 512);
	back = l;
	add_segment(&l, BLOCKS, 0, 0, 1, 8, 0, 8);
	add_segment(&back, BLOCKS, 0, 1, 0, 8, 0, 8);
	assert_sense(copy(&s.a, &l), SCSI_DATA_PROTECT, 0x2700);
	assert_good(copy(&s.a, &back));
	/* One that is stopped is out of reach. */
	assert_good(scsi_do_lun(&s.a, 2, cdb_hex("1b0000000000"), DATA_NONE, 0, NULL));
	assert_copy_aborted(copy(&s.a, &back), 0x0d02);
	lab_close(&s);
}

/* ---- how it went ------------------------------------------------------------------ */

TEST(operating_parameters_say_what_is_possible)
{
	uint8_t data[64], part[64];
	struct answer a;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	a = results(&s.a, PARAMETERS, 0, 64, data);
	assert_good(a);
	assert_eq(a.moved, 47);
	assert_eq(get_be32(data), 43);
	assert_eq(data[4], 1); /* SNLID */
	assert_eq(data[43], 3);
	assert_mem(data + 44, ((uint8_t[]){ BLOCKS, BYTES, 0xe4 }), 3);
	for (uint32_t n = 0; n < 47; n++) {
		a = results(&s.a, PARAMETERS, 0, n, part);
		assert_good(a);
		assert_eq(a.moved, n);
		assert_mem(part, data, n);
	}
	lab_close(&s);
}

TEST(the_status_of_a_copy_is_held_until_it_is_asked)
{
	uint8_t data[64];
	struct list l;
	struct lab s;

	open_two(&s, &l);
	add_segment(&l, BLOCKS, 0, 0, 1, 8, 0, 8);
	add_segment(&l, BLOCKS, 0, 0, 1, 1, 0, 8);
	assert_field(results(&s.a, COPY_STATUS, 1, 64, data), 2, -1);
	assert_good(copy(&s.a, &l));
	assert_field(results(&s.a, COPY_STATUS, 2, 64, data), 2, -1);
	assert_field(results(&s.b, COPY_STATUS, 1, 64, data), 2, -1); /* another's */
	assert_field(results(&s.a, FAILURE, 1, 64, data), 2, -1);     /* none */
	assert_eq(results(&s.a, COPY_STATUS, 1, 64, data).moved, 12);
	assert_eq(get_be32(data), 8);
	assert_eq(data[4], 1); /* completed */
	assert_eq(get_be16(data + 5), 2);
	assert_eq(get_be32(data + 8), 9 * 512);
	assert_field(results(&s.a, COPY_STATUS, 1, 64, data), 2, -1);

	/* Nor after a reset. */
	assert_good(copy(&s.a, &l));
	assert_eq(manage(&s.b, SCSI_LOGICAL_UNIT_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	clear_attentions(&s.a);
	assert_field(results(&s.a, COPY_STATUS, 1, 64, data), 2, -1);
	assert_good(copy(&s.a, &l));
	assert_eq(manage(&s.a, SCSI_I_T_NEXUS_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	clear_attentions(&s.a);
	assert_field(results(&s.a, COPY_STATUS, 1, 64, data), 2, -1);

	/* Not held where the list says so. */
	l.bytes[1] = DISCARD;
	assert_good(copy(&s.a, &l));
	assert_field(results(&s.a, COPY_STATUS, 1, 64, data), 2, -1);
	l.bytes[1] = NO_ID;
	assert_parameter(copy(&s.a, &l), 0, -1);
	l.bytes[1] = 1 << 3;
	assert_parameter(copy(&s.a, &l), 1, 4);
	lab_close(&s);
}

TEST(a_copy_that_fails_tells_the_segment)
{
	uint8_t data[128];
	struct answer a;
	struct list l;
	struct lab s;

	log_nothing();
	lab_open(&s, WORDS(), MEMORY);
	lab_add(&s, WORDS(),
		WORDS("driver=fault", "over=memory", "size=4M", "kind=read", "offset=64k",
		      "length=512", "fault=error", "repeat=forever"),
		0);
	clear_attentions(&s.a);
	do_write_pattern(&s.disk[0].f, 0, 64 * KiB, 1, 0);
	do_write_pattern(&s.disk[1].f, 0, 64 * KiB, 2, 0);
	start_list(&l, 3, HOLD);
	add_cscd(&l, &s.a, 0, 0, 512);
	add_cscd(&l, &s.a, 1, 0, 512);
	add_segment(&l, BLOCKS, 0, 1, 0, 8, 0, 0);
	add_segment(&l, BLOCKS, 0, 1, 0, 8, 128, 16);
	add_segment(&l, BLOCKS, 0, 1, 0, 8, 0, 32);
	a = copy(&s.a, &l);
	assert_copy_aborted(a, 0x0d01);
	assert_eq(get_be32(a.sense + 8), 1); /* command specific information */
	check_pattern(&s.disk[0].f, 8 * 512, 48 * KiB, 1);
	assert_good(results(&s.a, COPY_STATUS, 3, 64, data));
	assert_eq(data[4], 2); /* with errors */
	assert_eq(get_be16(data + 5), 1);
	assert_eq(get_be32(data + 8), 8 * 512);
	a = results(&s.a, FAILURE, 3, 128, data);
	assert_good(a);
	assert_eq(get_be32(data) + 4, a.moved);
	assert_eq(data[56], SCSI_CHECK_CONDITION);
	assert_eq(get_be16(data + 58), 18);
	assert_eq(data[60 + 2], SCSI_COPY_ABORTED);
	assert_eq(get_be16(data + 60 + 12), 0x0d01);
	assert_field(results(&s.a, FAILURE, 3, 128, data), 2, -1);
	lab_close(&s);
}

/* ---- long ones ------------------------------------------------------------------- */

/* Four MiB in pieces, each of which takes a while. */
static void
open_slow(struct lab *s, struct list *l)
{
	lab_open(s, WORDS(), MEMORY);
	lab_add(s, WORDS(),
		WORDS("driver=fault", "over=memory", "size=4M", "kind=write", "fault=delay",
		      "delay=50ms", "repeat=forever"),
		0);
	clear_attentions(&s->a);
	clear_attentions(&s->b);
	start_list(l, 7, HOLD);
	add_cscd(l, &s->a, 0, 0, 512);
	add_cscd(l, &s->a, 1, 0, 512);
	add_segment(l, BLOCKS, 0, 0, 1, 8192, 0, 0);
}

static void
start_copy(struct task *task, struct initiator *i, struct list *l)
{
	task_send(task, i, 0, cdb_copy(length_of(l)), DATA_OUT, length_of(l), l->bytes,
		  SCSI_SIMPLE);
	assert_false(task->done);
}

TEST(a_long_copy_says_that_it_is_under_way_and_can_be_aborted)
{
	uint8_t data[64], *end = test_alloc(256 * KiB);
	struct task long_one = { .hold = false };
	struct list l;
	struct lab s;

	open_slow(&s, &l);
	do_write(&s.disk[0].f, 0, 4 * MiB, 0x55, 0);
	start_copy(&long_one, &s.a, &l);
	assert_good(results(&s.a, COPY_STATUS, 7, 64, data));
	assert_eq(data[4], 0); /* in progress */
	assert_field(results(&s.b, COPY_STATUS, 7, 64, data), 2, -1);
	assert_sense(copy(&s.a, &l), SCSI_ILLEGAL_REQUEST, 0x0016); /* its name is taken */
	assert_good(scsi_none(&s.b, cdb_hex("000000000000")));
	assert_eq(manage(&s.a, SCSI_ABORT_TASK, 0, &long_one), SCSI_FUNCTION_COMPLETE);
	assert_true(long_one.done && long_one.answer.aborted);
	assert_field(results(&s.a, COPY_STATUS, 7, 64, data), 2, -1); /* not "completed" */
	do_read(&s.disk[1].f, 4 * MiB - 256 * KiB, 256 * KiB, end);
	assert_filled(end, 0, 256 * KiB);
	free(end);
	lab_close(&s);
}

TEST(a_destination_that_is_removed_ends_the_copy)
{
	struct task long_one = { .hold = false };
	struct list l;
	struct lab s;

	open_slow(&s, &l);
	start_copy(&long_one, &s.a, &l);
	lab_remove(&s, 1);
	assert_copy_aborted(task_wait(&long_one), 0x0d02);
	clear_attentions(&s.a);
	lab_close(&s);
}

/* Who is fenced off from the destination copies no further. */
TEST(a_destination_that_is_reserved_meanwhile_ends_the_copy)
{
	struct task long_one = { .hold = false };
	struct list l;
	struct lab s;

	open_slow(&s, &l);
	start_copy(&long_one, &s.a, &l);
	assert_good(scsi_do_lun(&s.b, 1, cdb_hex("160000000000"), DATA_NONE, 0, NULL));
	assert_status(task_wait(&long_one), SCSI_RESERVATION_CONFLICT);
	lab_close(&s);
}

static void
reserve_out(struct initiator *i, uint8_t action, uint8_t type, uint64_t key, uint64_t action_key)
{
	uint8_t list[24] = { 0 };

	put_be64(list, key);
	put_be64(list + 8, action_key);
	assert_good(scsi_do_lun(i, 1, CDB(0x5f, action, type, 0, 0, 0, 0, 0, 24, 0), DATA_OUT, 24,
				list));
}

/* By a command to another unit, too. */
TEST(no_piece_of_a_copy_comes_after_preempt_and_abort_of_its_destination)
{
	uint8_t *then = test_alloc(4 * MiB), *later = test_alloc(4 * MiB);
	struct task long_one = { .hold = false };
	struct list l;
	struct lab s;

	open_slow(&s, &l);
	do_write(&s.disk[0].f, 0, 4 * MiB, 0x55, 0);
	reserve_out(&s.a, 0, 0, 0, 1); /* REGISTER */
	reserve_out(&s.b, 0, 0, 0, 2);
	reserve_out(&s.a, 1, 1, 1, 0); /* RESERVE: Write Exclusive */
	start_copy(&long_one, &s.a, &l);
	lab_settle(&s);
	reserve_out(&s.b, 5, 1, 2, 1); /* PREEMPT AND ABORT */
	do_read(&s.disk[1].f, 0, 4 * MiB, then);
	assert_status(task_wait(&long_one), SCSI_RESERVATION_CONFLICT);
	do_read(&s.disk[1].f, 0, 4 * MiB, later);
	assert_mem(later, then, 4 * MiB);
	assert_filled(later + 4 * MiB - 4096, 0, 4096); /* it had not come so far */
	free(then);
	free(later);
	lab_close(&s);
}

TEST(a_session_that_ends_takes_its_copy_with_it)
{
	struct task long_one = { .hold = false };
	struct list l;
	struct lab s;

	open_slow(&s, &l);
	start_copy(&long_one, &s.a, &l);
	logout(&s.a);
	assert_true(long_one.done && long_one.answer.aborted);
	lab_close(&s);
}

/* ---- at random ------------------------------------------------------------------- */

static void
one_at_random(struct lab *s, const struct list *good, uint64_t *seed)
{
	struct list l = *good;
	uint32_t length = length_of(&l);
	unsigned changes = 1 + (unsigned)random_below(seed, 4);

	for (unsigned k = 0; k < changes; k++) {
		uint8_t *p = l.bytes + random_below(seed, length);

		*p = random_below(seed, 2) == 0 ? (uint8_t)random_next(seed)
						: (uint8_t)(*p + random_below(seed, 3) - 1);
	}
	if (random_below(seed, 8) == 0)
		length = (uint32_t)random_below(seed, length + 1);
	scsi_out(&s->a, cdb_copy(length), (uint32_t)random_below(seed, 2) * 40 + length, l.bytes);
}

/* Whatever the list says: an answer, and nothing outside of memory and disks (the harness and the
 * sanitizers look). */
TEST(any_list_is_answered)
{
	uint64_t seed = test_seed();
	struct list good;
	struct lab s;

	open_two(&s, &good);
	add_segment(&good, BLOCKS, 0, 0, 1, 3, 1, 2);
	add_segment(&good, BYTES, 0, 1, 0, 100, 1, 2);
	add_segment(&good, BLOCKS, DC, 0, 0, 9, 0, 4);
	for (unsigned n = 0; n < 20000; n++)
		one_at_random(&s, &good, &seed);
	assert_good(copy(&s.a, &good));
	lab_close(&s);
}
