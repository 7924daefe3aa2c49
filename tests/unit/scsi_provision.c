/*
 * scsi_provision.c - UNMAP, WRITE SAME, GET LBA STATUS: what is stored, and what is not any more.
 */
#include "bytes.h"
#include "lu.h"
#include "scsi.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))
#define SIZE        (4 * MiB)

enum { UNMAP = 0x08, NDOB = 0x01, LBDATA = 0x02, PBDATA = 0x04, ANCHOR = 0x10 };

/* ---- a disk in memory, a file --------------------------------------------------------- */

static const char *const *
disk_words(unsigned i)
{
	static const char *const words[2][3] = {
		{ "driver=memory", "size=4M", NULL },
		{ "driver=file", "path=thin.img", NULL },
	};

	if (i == 1)
		make_image("thin.img", SIZE);
	printf("%s\n", words[i][0]);
	return words[i];
}

/* Both kinds of disk, and both sizes of block. */
#define for_each_disk(s, size) \
	for (unsigned i_ = 0; i_ < 4 && open_disk((s), i_, &(size)); i_++, lab_close(s))

static bool
open_disk(struct lab *s, unsigned i, uint32_t *size)
{
	static const char *const options[] = { "block-size=512", "block-size=4096" };

	lab_open(s, WORDS(options[i / 2], "max-unmap-size=64k"), disk_words(i % 2));
	*size = i / 2 == 0 ? 512 : 4096;
	return true;
}

/* ---- UNMAP ------------------------------------------------------------------------------ */

struct range {
	uint64_t lba;
	uint32_t blocks;
};

/* The list's lengths can be made wrong afterwards. */
static uint16_t
put_list(uint8_t *list, const struct range *ranges, unsigned count)
{
	uint16_t descriptors = (uint16_t)(16 * count);

	memset(list, 0, 8 + descriptors);
	put_be16(list, (uint16_t)(6 + descriptors));
	put_be16(list + 2, descriptors);
	for (unsigned i = 0; i < count; i++) {
		put_be64(list + 8 + 16 * i, ranges[i].lba);
		put_be32(list + 16 + 16 * i, ranges[i].blocks);
	}
	return (uint16_t)(8 + descriptors);
}

static struct answer
unmap_list(struct initiator *i, const uint8_t *list, uint16_t length)
{
	struct cdb cdb =
		CDB(SCSI_UNMAP, 0, 0, 0, 0, 0, 0, (uint8_t)(length >> 8), (uint8_t)length, 0);

	return length > 0 ? scsi_out(i, cdb, length, list) : scsi_none(i, cdb);
}

static struct answer
unmap(struct initiator *i, const struct range *ranges, unsigned count)
{
	static uint8_t list[8 + 16 * 1000];

	return unmap_list(i, list, put_list(list, ranges, count));
}

TEST(what_was_unmapped_reads_as_zeroes_and_nothing_else_changes)
{
	struct lab s;
	uint32_t size;

	for_each_disk(&s, size)
	{
		/* Unaligned, empty, adjacent, twice the same, the last. */
		struct range ranges[] = { { 3, 7 },          { 5, 0 },  { 20, 1 },
					  { 21, 2 },         { 20, 2 }, { SIZE / size - 1, 1 },
					  { SIZE / size, 0 } };

		do_write_pattern(&s.disk[0].f, 0, SIZE, 1, 0);
		assert_good(unmap(&s.a, ranges, COUNT(ranges)));
		check_pattern(&s.disk[0].f, 0, 3 * size, 1);
		check_bytes(&s.disk[0].f, 3 * size, 7 * size, 0);
		check_pattern(&s.disk[0].f, 10 * size, 10 * size, 1);
		check_bytes(&s.disk[0].f, 20 * size, 3 * size, 0);
		check_pattern(&s.disk[0].f, 23 * size, SIZE - 24 * size, 1);
		check_bytes(&s.disk[0].f, SIZE - size, size, 0);
	}
}

TEST(an_unmap_of_nothing_is_good)
{
	struct range at_the_end = { SIZE / 512, 0 };
	uint8_t list[8];
	struct lab s;

	lab_open(&s, WORDS(), disk_words(0));
	assert_good(unmap_list(&s.a, NULL, 0));
	assert_good(unmap_list(&s.a, list, put_list(list, NULL, 0)));
	assert_good(unmap(&s.a, &at_the_end, 1));
	lab_close(&s);
}

TEST(nothing_is_unmapped_unless_all_can_be)
{
	struct lab s;
	uint32_t size;

	for_each_disk(&s, size)
	{
		uint64_t n = SIZE / size;
		struct range wrong[] = { { n, 1 },          { n + 1, 0 },
					 { n - 1, 2 },      { UINT64_MAX, 2 },
					 { 1ULL << 63, 1 }, { 0, 64 * KiB / size } };

		do_write_pattern(&s.disk[0].f, 0, SIZE, 2, 0);
		for (unsigned i = 0; i < COUNT(wrong); i++) {
			struct range ranges[] = { { 0, 8 }, { 100, 1 }, wrong[i] };
			struct answer a = unmap(&s.a, ranges, 3);
			uint64_t first = wrong[i].lba < n ? n : wrong[i].lba;

			if (wrong[i].lba == 0) { /* nine blocks more than the limit */
				assert_parameter(a, 8 + 2 * 16 + 8, -1);
				continue;
			}
			assert_sense(a, SCSI_ILLEGAL_REQUEST, 0x2100);
			assert_eq(a.has_information, first <= UINT32_MAX);
			if (a.has_information)
				assert_eq(a.information, first);
		}
		check_pattern(&s.disk[0].f, 0, SIZE, 2);
	}
}

TEST(unmap_limits_are_what_is_accepted)
{
	static struct range ranges[257];
	struct lab s;
	uint32_t size;

	for_each_disk(&s, size)
	{
		uint32_t most = 64 * KiB / size;

		do_write_pattern(&s.disk[0].f, 0, SIZE, 3, 0);
		ranges[0] = (struct range){ 1, most + 1 };
		assert_parameter(unmap(&s.a, ranges, 1), 16, -1);
		ranges[0].blocks = UINT32_MAX;
		assert_sense(unmap(&s.a, ranges, 1), SCSI_ILLEGAL_REQUEST, 0x2100);
		ranges[0].blocks = most - 1;
		ranges[1] = (struct range){ 200, 2 };
		assert_parameter(unmap(&s.a, ranges, 2), 32, -1);
		check_pattern(&s.disk[0].f, 0, SIZE, 3);
		ranges[1].blocks = 1;
		assert_good(unmap(&s.a, ranges, 2));
		check_bytes(&s.disk[0].f, size, (most - 1) * size, 0);

		memset(ranges, 0, sizeof ranges);
		assert_good(unmap(&s.a, ranges, 256));
		assert_parameter(unmap(&s.a, ranges, 257), 2, -1);
	}
}

TEST(unmap_lists_that_are_cut_off_are_refused)
{
	struct range ranges[] = { { 0, 1 }, { 8, 1 } };
	uint8_t list[64];
	struct lab s;

	lab_open(&s, WORDS(), disk_words(0));
	do_write_pattern(&s.disk[0].f, 0, SIZE, 4, 0);
	assert_eq(put_list(list, ranges, 2), 40);
	for (uint16_t length = 1; length < 40; length++)
		assert_sense(unmap_list(&s.a, list, length), SCSI_ILLEGAL_REQUEST, 0x1a00);
	/* Less came than the CDB says. */
	assert_sense(scsi_out(&s.a, CDB(SCSI_UNMAP, 0, 0, 0, 0, 0, 0, 0, 40, 0), 39, list),
		     SCSI_ILLEGAL_REQUEST, 0x1a00);
	check_pattern(&s.disk[0].f, 0, SIZE, 4);
	/* Of a descriptor the list's own length may have a part: SBC-3, "shall be ignored". */
	put_be16(list + 2, 31);
	assert_good(unmap_list(&s.a, list, 39));
	check_bytes(&s.disk[0].f, 0, 512, 0);
	check_pattern(&s.disk[0].f, 512, SIZE - 512, 4);
	lab_close(&s);
}

TEST(anchoring_is_refused)
{
	struct lab s;
	uint8_t block[512] = { 0 };

	lab_open(&s, WORDS(), disk_words(0));
	assert_field(scsi_none(&s.a, CDB(SCSI_UNMAP, 1, 0, 0, 0, 0, 0, 0, 0, 0)), 1, 0);
	assert_field(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_SAME_16, ANCHOR | UNMAP, 0, 1), 512,
			      block),
		     1, 4);
	lab_close(&s);
}

static uint64_t
allocated(const char *path)
{
	struct stat st;

	assert_eq(stat(path, &st), 0);
	return (uint64_t)st.st_blocks * 512;
}

TEST(unmapping_gives_a_files_room_back)
{
	struct range range = { 0, 2048 };
	struct lab s;
	uint64_t before;

	lab_open(&s, WORDS(), disk_words(1));
	do_write_pattern(&s.disk[0].f, 0, SIZE, 5, PL_FUA);
	before = allocated("thin.img");
	assert_true(before >= SIZE);
	assert_good(unmap(&s.a, &range, 1));
	assert_true(allocated("thin.img") <= before - 1 * MiB);
	before = allocated("thin.img");
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_WRITE_SAME_16, UNMAP | NDOB, 4096, 2048)));
	assert_true(allocated("thin.img") <= before - 1 * MiB);
	lab_close(&s);
}

/* ---- WRITE SAME ------------------------------------------------------------------------- */

static struct answer
write_same(struct initiator *i, uint8_t opcode, uint8_t flags, struct range r, uint32_t size,
	   uint8_t byte)
{
	uint8_t block[8192];

	memset(block, byte, sizeof block);
	block[0] = block[size - 1] = 0; /* all zero only if byte is */
	return scsi_out(i, cdb_blocks(opcode, flags, r.lba, r.blocks), size, block);
}

static void
check_same(struct lab *s, struct range r, uint32_t size, uint8_t byte)
{
	uint8_t *data = test_alloc((uint64_t)r.blocks * size);

	memset(data, byte, (uint64_t)r.blocks * size);
	for (uint32_t i = 0; i < r.blocks; i++)
		data[i * size] = data[i * size + size - 1] = 0;
	check_data(&s->disk[0].f, r.lba * size, (uint64_t)r.blocks * size, data);
	free(data);
}

TEST(write_same_writes_the_pattern_whether_it_may_unmap_or_not)
{
	static const uint8_t opcodes[] = { SCSI_WRITE_SAME_10, SCSI_WRITE_SAME_16 };
	struct lab s;
	uint32_t size;

	for_each_disk(&s, size)
	{
		/* One block, some, and more than a piece. */
		struct range ranges[] = { { 3, 1 }, { 9, 127 }, { 1, MiB / size + 3 } };

		for (unsigned i = 0; i < COUNT(ranges) * 4; i++) {
			struct range r = ranges[i / 4];
			uint64_t end = (r.lba + r.blocks) * size;
			uint8_t flags = i % 2 != 0 ? UNMAP : 0, byte = (uint8_t)(0xa0 + i);

			do_write_pattern(&s.disk[0].f, 0, SIZE, i, 0);
			assert_good(write_same(&s.a, opcodes[i / 2 % 2], flags, r, size, byte));
			check_same(&s, r, size, byte);
			assert_good(write_same(&s.a, opcodes[i / 2 % 2], flags, r, size, 0));
			check_bytes(&s.disk[0].f, r.lba * size, (uint64_t)r.blocks * size, 0);
			check_pattern(&s.disk[0].f, 0, r.lba * size, i);
			check_pattern(&s.disk[0].f, end, SIZE - end, i);
		}
	}
}

TEST(write_same_of_0_blocks_is_all_that_follows)
{
	struct lab s;
	uint32_t size;

	for_each_disk(&s, size)
	{
		uint64_t n = SIZE / size;
		struct range to_end = { n - 300, 0 };

		do_write_pattern(&s.disk[0].f, 0, SIZE, 7, 0);
		assert_good(write_same(&s.a, SCSI_WRITE_SAME_10, 0, to_end, size, 0x11));
		check_same(&s, (struct range){ n - 300, 300 }, size, 0x11);
		to_end.lba = n - 10;
		assert_good(write_same(&s.a, SCSI_WRITE_SAME_16, UNMAP, to_end, size, 0));
		check_bytes(&s.disk[0].f, (n - 10) * size, 10 * size, 0);
		check_same(&s, (struct range){ n - 300, 290 }, size, 0x11);
		check_pattern(&s.disk[0].f, 0, (n - 300) * size, 7);
	}
}

/* 512 MiB, of the profile. */
TEST(write_same_takes_its_limit_and_no_more)
{
	static const uint8_t flags[] = { NDOB, NDOB | UNMAP };
	uint32_t most = 512 * MiB / 512;
	struct lab s;

	lab_open(&s, WORDS(), WORDS("driver=null", "size=1G"));
	for (unsigned i = 0; i < COUNT(flags); i++) {
		assert_good(scsi_none(&s.a, cdb_blocks(SCSI_WRITE_SAME_16, flags[i], 1, most)));
		assert_field(scsi_none(&s.a, cdb_blocks(SCSI_WRITE_SAME_16, flags[i], 1, most + 1)),
			     10, -1);
		/* To the end, as well. */
		assert_good(scsi_none(&s.a, cdb_blocks(SCSI_WRITE_SAME_16, flags[i], most, 0)));
		assert_field(scsi_none(&s.a, cdb_blocks(SCSI_WRITE_SAME_16, flags[i], most - 1, 0)),
			     10, -1);
	}
	lab_close(&s);
}

/* A disk that is done at once is asked for 2048 pieces, one after the other and not one inside the
 * other: the stack is small. */
static void *
write_many_pieces(void *arg)
{
	struct lab s;

	(void)arg;
	lab_open(&s, WORDS(), WORDS("driver=null", "size=1G"));
	assert_good(write_same(&s.a, SCSI_WRITE_SAME_16, 0, (struct range){ 0, 1024 * 1024 }, 512,
			       0x77));
	lab_close(&s);
	return NULL;
}

TEST(many_pieces_need_no_more_stack_than_one)
{
	pthread_attr_t attr;
	pthread_t thread;

	pthread_attr_init(&attr);
	assert_eq(pthread_attr_setstacksize(&attr, 256 * KiB), 0);
	assert_eq(pthread_create(&thread, &attr, write_many_pieces, NULL), 0);
	pthread_join(thread, NULL);
	pthread_attr_destroy(&attr);
}

TEST(write_same_takes_one_block_of_data_or_none)
{
	static const uint32_t lengths[] = { 0, 1, 511, 513, 1024, 4096 };
	uint8_t data[4096] = { 1 };
	struct lab s;

	lab_open(&s, WORDS(), disk_words(0));
	do_write_pattern(&s.disk[0].f, 0, SIZE, 8, 0);
	for (unsigned i = 0; i < COUNT(lengths); i++) {
		enum direction d = lengths[i] > 0 ? DATA_OUT : DATA_NONE;

		assert_sense(scsi_do(&s.a, cdb_blocks(SCSI_WRITE_SAME_16, 0, 0, 8), d, lengths[i],
				     data),
			     SCSI_ILLEGAL_REQUEST, 0x2400);
		assert_sense(scsi_do(&s.a, cdb_blocks(SCSI_WRITE_SAME_10, UNMAP, 0, 8), d,
				     lengths[i], data),
			     SCSI_ILLEGAL_REQUEST, 0x2400);
	}
	assert_sense(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_SAME_16, NDOB, 0, 8), 512, data),
		     SCSI_ILLEGAL_REQUEST, 0x2400);
	check_pattern(&s.disk[0].f, 0, SIZE, 8);
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_WRITE_SAME_16, NDOB, 0, 8)));
	check_bytes(&s.disk[0].f, 0, 8 * 512, 0);
	lab_close(&s);
}

TEST(write_same_refuses_what_would_change_the_pattern)
{
	uint8_t data[512] = { 1 };
	struct lab s;

	lab_open(&s, WORDS(), disk_words(0));
	assert_field(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_SAME_10, PBDATA, 0, 1), 512, data), 1, 2);
	assert_field(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_SAME_16, LBDATA, 0, 1), 512, data), 1, 1);
	assert_field(scsi_out(&s.a, cdb_blocks(SCSI_WRITE_SAME_10, NDOB, 0, 1), 512, data), 1, 0);
	lab_close(&s);
}

/* Of 16 pieces those that had not begun do not begin. */
TEST(an_aborted_write_same_stops)
{
	uint8_t block[512];
	struct task task = { .hold = false };
	struct lab s;

	memset(block, 0x66, sizeof block);
	lab_open(&s, WORDS(),
		 WORDS("driver=fault", "over=memory", "size=4M", "kind=write", "fault=delay",
		       "delay=10ms", "repeat=forever"));
	task_send(&task, &s.a, 0, cdb_blocks(SCSI_WRITE_SAME_16, 0, 0, SIZE / 512), DATA_OUT, 512,
		  block, SCSI_SIMPLE);
	assert_eq(manage(&s.a, SCSI_ABORT_TASK, 0, &task), SCSI_FUNCTION_COMPLETE);
	assert_true(task.done && task.answer.aborted);
	check_bytes(&s.disk[0].f, 0, 256 * KiB, 0x66);
	check_bytes(&s.disk[0].f, 256 * KiB, SIZE - 256 * KiB, 0);
	lab_close(&s);
}

/* ---- GET LBA STATUS ---------------------------------------------------------------------- */

enum { MAPPED, DEALLOCATED };

struct status {
	uint64_t lba;
	uint32_t blocks;
	unsigned status;
};

static struct answer
ask_status(struct initiator *i, uint64_t lba, uint32_t length, void *data)
{
	struct cdb cdb = cdb_blocks(SCSI_SERVICE_ACTION_IN_16, 0x12, lba, length);

	return scsi_do(i, cdb, length > 0 ? DATA_IN : DATA_NONE, length, data);
}

/* Descriptors follow each other from lba on. Returns how many there are. */
static unsigned
get_status(struct lab *s, uint64_t lba, uint64_t n, struct status list[64])
{
	uint8_t data[8 + 16 * 64];
	struct answer a = ask_status(&s->a, lba, sizeof data, data);
	unsigned count;

	assert_good(a);
	assert_eq(a.moved, get_be32(data) + 4);
	assert_eq(a.moved % 16, 8);
	count = (a.moved - 8) / 16;
	assert_true(count > 0);
	for (unsigned i = 0; i < count; i++) {
		const uint8_t *p = data + 8 + 16 * i;

		list[i] = (struct status){ get_be64(p), get_be32(p + 8), p[12] };
		assert_eq(list[i].lba, lba);
		assert_true(list[i].blocks > 0);
		lba += list[i].blocks;
	}
	assert_true(lba <= n);
	return count;
}

TEST(status_says_what_is_stored_from_the_block_that_was_asked_for_on)
{
	struct lab s;
	uint32_t size;

	for_each_disk(&s, size)
	{
		uint32_t step = 64 * KiB / size; /* what any file system can leave out */
		uint64_t n = SIZE / size;
		struct status list[64];

		do_write(&s.disk[0].f, 0, 64 * KiB, 0xaa, PL_FUA);
		do_write(&s.disk[0].f, 3 * 64 * KiB, 64 * KiB, 0xaa, PL_FUA);
		assert_eq(get_status(&s, 0, n, list), 4);
		for (unsigned i = 0; i < 4; i++) {
			assert_eq(list[i].lba, (i + (i > 1)) * step);
			assert_eq(list[i].status, i % 2 == 0 ? MAPPED : DEALLOCATED);
		}
		/* Wherever the question begins. */
		for (uint64_t lba = 0; lba < 5 * step; lba++) {
			bool mapped = lba < step || (lba >= 3 * step && lba < 4 * step);

			get_status(&s, lba, n, list);
			assert_eq(list[0].status, mapped ? MAPPED : DEALLOCATED);
		}
		assert_eq(get_status(&s, n - 1, n, list), 1);
		assert_eq(list[0].blocks, 1);
		assert_eq(list[0].status, DEALLOCATED);
	}
}

TEST(status_follows_unmap_and_write)
{
	struct lab s;
	uint32_t size;

	for_each_disk(&s, size)
	{
		uint32_t step = 64 * KiB / size;
		struct range range = { step, step };
		struct status list[64];

		do_write_pattern(&s.disk[0].f, 0, SIZE, 1, PL_FUA);
		assert_eq(get_status(&s, 0, SIZE / size, list), 1);
		assert_good(unmap(&s.a, &range, 1));
		assert_eq(get_status(&s, 0, SIZE / size, list), 3);
		assert_eq(list[1].lba, step);
		assert_eq(list[1].blocks, step);
		assert_eq(list[1].status, DEALLOCATED);
	}
}

/* Zeroes that were not to be unmapped have room of their own. */
TEST(write_same_without_unmap_leaves_no_hole)
{
	struct range range = { 128, 1024 };
	struct status list[64];
	struct lab s;

	lab_open(&s, WORDS(), disk_words(0));
	assert_good(write_same(&s.a, SCSI_WRITE_SAME_10, 0, range, 512, 0));
	get_status(&s, 128, SIZE / 512, list);
	assert_eq(list[0].status, MAPPED);
	assert_eq(list[0].blocks, 1024);
	lab_close(&s);

	/* A file's unwritten room is told as a hole, and is its own all the same. */
	lab_open(&s, WORDS(), disk_words(1));
	assert_good(write_same(&s.a, SCSI_WRITE_SAME_16, 0, range, 512, 0));
	assert_good(scsi_none(&s.a, cdb_blocks(SCSI_SYNCHRONIZE_CACHE_10, 0, 0, 0)));
	assert_true(allocated("thin.img") >= 512 * KiB);
	lab_close(&s);
}

TEST(status_is_cut_to_what_was_asked_for)
{
	uint8_t whole[256], data[256];
	struct lab s;
	uint32_t length;

	lab_open(&s, WORDS(), disk_words(0));
	do_write(&s.disk[0].f, 64 * KiB, 64 * KiB, 0xaa, 0);
	do_write(&s.disk[0].f, 256 * KiB, 64 * KiB, 0xaa, 0);
	length = ask_status(&s.a, 0, sizeof whole, whole).moved;
	assert_eq(length, 8 + 5 * 16);
	for (uint32_t n = 0; n < sizeof whole; n++) {
		struct answer a = ask_status(&s.a, 0, n, data);

		assert_good(a);
		assert_eq(a.moved, n < length ? n : length);
		assert_mem(data, whole, a.moved);
	}
	lab_close(&s);
}

TEST(status_outside_is_refused)
{
	static const uint64_t outside[] = { SIZE / 512, SIZE / 512 + 1, 1ULL << 63, UINT64_MAX };
	uint8_t data[24];
	struct lab s;

	lab_open(&s, WORDS(), disk_words(0));
	for (unsigned i = 0; i < COUNT(outside); i++) {
		assert_sense(ask_status(&s.a, outside[i], 24, data), SCSI_ILLEGAL_REQUEST, 0x2100);
		assert_sense(ask_status(&s.a, outside[i], 0, data), SCSI_ILLEGAL_REQUEST, 0x2100);
	}
	lab_close(&s);
}

/* A hole of more blocks than a descriptor can hold. */
TEST(status_of_a_large_disk_needs_several_descriptors)
{
	uint64_t n = 8 * TiB / 512;
	struct status list[64];
	struct lab s;

	lab_open(&s, WORDS(), WORDS("driver=null", "size=8T"));
	assert_eq(get_status(&s, 5, n, list), 4);
	assert_eq(list[0].blocks, UINT32_MAX);
	assert_eq(list[3].lba + list[3].blocks, n);
	for (unsigned i = 0; i < 4; i++)
		assert_eq(list[i].status, DEALLOCATED);
	lab_close(&s);
}

/* A device that discards, and would have to be written full to read as zeroes. */
TEST(what_would_have_to_be_written_is_discarded_and_promises_no_zeroes)
{
	struct range range = { 0, 8 };
	struct pl_counters before, after;
	uint8_t data[32];
	struct lab s;

	lab_open(&s, WORDS(), disk_words(0));
	s.disk[0].lu->capabilities &= ~(unsigned)PL_CAP_UNMAP_ZEROES;
	do_write(&s.disk[0].f, 0, 4096, 0x33, 0);
	pl_export_counters(s.disk[0].f.ex, &before);
	assert_good(unmap(&s.a, &range, 1));
	pl_export_counters(s.disk[0].f.ex, &after);
	assert_eq(after.trims - before.trims, 1);
	assert_eq(after.zeroes + after.writes, before.zeroes + before.writes);
	assert_good(scsi_in(&s.a, cdb_blocks(SCSI_SERVICE_ACTION_IN_16, 0x10, 0, 32), 32, data));
	assert_eq(data[14], 0x80); /* LBPME alone */
	assert_good(scsi_in(&s.a, CDB(SCSI_INQUIRY, 1, 0xb2, 0, 8, 0), 8, data));
	assert_eq(data[5] & 0x04, 0); /* LBPRZ */
	/* Zeroes that are asked for are zeroes. */
	do_write(&s.disk[0].f, 0, 4096, 0x33, 0);
	assert_good(write_same(&s.a, SCSI_WRITE_SAME_10, UNMAP, range, 512, 0));
	check_bytes(&s.disk[0].f, 0, 4096, 0);
	lab_close(&s);
}

TEST(a_unit_that_is_not_thin_unmaps_nothing_and_says_so)
{
	struct range range = { 0, 8 };
	struct status list[64];
	uint8_t data[32];
	struct lab s;

	lab_open(&s, WORDS(), disk_words(0));
	s.disk[0].lu->capabilities &= ~(unsigned)PL_CAP_UNMAP;
	do_write(&s.disk[0].f, 0, 4096, 0x33, 0);
	assert_sense(unmap(&s.a, &range, 1), SCSI_ILLEGAL_REQUEST, 0x2000);
	assert_field(write_same(&s.a, SCSI_WRITE_SAME_10, UNMAP, range, 512, 0), 1, 3);
	assert_field(scsi_none(&s.a, cdb_blocks(SCSI_WRITE_SAME_16, UNMAP | NDOB, 0, 8)), 1, 3);
	check_bytes(&s.disk[0].f, 0, 4096, 0x33);
	assert_good(write_same(&s.a, SCSI_WRITE_SAME_10, 0, range, 512, 0));
	check_bytes(&s.disk[0].f, 0, 4096, 0);
	assert_good(scsi_in(&s.a, cdb_blocks(SCSI_SERVICE_ACTION_IN_16, 0x10, 0, 32), 32, data));
	assert_eq(data[14], 0); /* neither LBPME nor LBPRZ */
	assert_eq(get_status(&s, 7, SIZE / 512, list), 1);
	assert_eq(list[0].blocks, SIZE / 512 - 7);
	assert_eq(list[0].status, MAPPED);
	lab_close(&s);
}
