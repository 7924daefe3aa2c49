/*
 * scsi_profile.c - what a profile pins stays as it is, byte for byte; options do what they say.
 *
 * tests/scsi/golden/PROFILE/NAME.txt has each answer that tells an initiator what a unit is. When
 * one is to change, that is a new profile with files of its own. Only a profile that no release has
 * had may be written anew: PLATTER_WRITE_GOLDEN=1 does that, and fails, so that somebody looks.
 */
#include "bytes.h"
#include "scsi.h"

#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- golden files ---------------------------------------------------------------- */

#define ANSWER_MAX 16384

/* Title, CDB and bytes; a command that is refused leaves nothing. */
static bool
write_answer(FILE *f, struct initiator *i, unsigned lun, struct cdb cdb, const char *title)
{
	static uint8_t data[ANSWER_MAX];
	struct answer a = scsi_do_lun(i, lun, cdb, DATA_IN, sizeof data, data);

	if (a.status != SCSI_GOOD)
		return false;
	fprintf(f, "\n%s\n  cdb ", title);
	for (unsigned n = 0; n < cdb.length; n++)
		fprintf(f, " %02x", cdb.bytes[n]);
	for (unsigned n = 0; n < a.moved; n++)
		fprintf(f,
			n % 16 == 0   ? "\n  %03x  %02x"
			: n % 16 == 8 ? "  %02x"
				      : " %02x",
			n % 16 == 0 ? n : data[n], data[n]);
	fputc('\n', f);
	return true;
}

static void
must_write(FILE *f, struct initiator *i, struct cdb cdb, const char *title)
{
	if (!write_answer(f, i, 0, cdb, title))
		test_fail(__FILE__, __LINE__, "%s is refused", title);
}

static void
write_inquiry(FILE *f, struct initiator *i)
{
	must_write(f, i, CDB(0x12, 0, 0, 1, 0, 0), "INQUIRY");
	for (unsigned page = 0; page < 256; page++) {
		char title[64];

		snprintf(title, sizeof title, "INQUIRY, VPD page %02Xh", page);
		write_answer(f, i, 0, CDB(0x12, 1, (uint8_t)page, 1, 0, 0), title);
	}
	assert_true(write_answer(f, i, 7, CDB(0x12, 0, 0, 1, 0, 0), "INQUIRY, LUN without a unit"));
}

static void
write_modes(FILE *f, struct initiator *i)
{
	static const char *const control[] = { "current", "changeable", "default" };

	must_write(f, i, CDB(0x1a, 0, 0x3f, 0, 255, 0), "MODE SENSE(6), all pages, current values");
	must_write(f, i, CDB(0x5a, 0x10, 0x3f, 0, 0, 0, 0, 2, 0, 0),
		   "MODE SENSE(10), all pages, current values, long descriptor");
	for (uint8_t pc = 0; pc < 3; pc++) {
		for (uint8_t page = 0; page < 0x3f; page++) {
			char title[64];

			snprintf(title, sizeof title, "MODE SENSE(10), page %02Xh, %s values", page,
				 control[pc]);
			write_answer(f, i, 0,
				     CDB(0x5a, 0x08, pc << 6 | page, 0xff, 0, 0, 0, 2, 0, 0),
				     title);
		}
	}
}

static void
write_logs(FILE *f, struct initiator *i)
{
	for (unsigned page = 0; page < 64; page++) {
		for (unsigned sub = 0; sub < 256; sub += 255) {
			char title[64];

			snprintf(title, sizeof title, "LOG SENSE, page %02Xh, subpage %02Xh", page,
				 sub);
			write_answer(f, i, 0,
				     CDB(0x4d, 0, 0x40 | (uint8_t)page, (uint8_t)sub, 0, 0, 0, 2, 0,
					 0),
				     title);
		}
	}
}

/* Of each operation code and service action: how its CDB may look. */
static void
write_commands(FILE *f, struct initiator *i)
{
	static uint8_t list[ANSWER_MAX];
	struct answer a;

	must_write(f, i, CDB(0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0),
		   "REPORT SUPPORTED OPERATION CODES, all");
	a = scsi_in(i, CDB(0xa3, 0x0c, 0, 0, 0, 0, 0, 0, 0x40, 0, 0, 0), sizeof list, list);
	for (unsigned at = 4; at + 8 <= a.moved; at += 8) {
		const uint8_t *p = list + at;
		char title[80];

		snprintf(title, sizeof title,
			 (p[5] & 1) != 0
				 ? "REPORT SUPPORTED OPERATION CODES, %02Xh, service action %02Xh"
				 : "REPORT SUPPORTED OPERATION CODES, %02Xh",
			 p[0], p[3]);
		must_write(f, i, CDB(0xa3, 0x0c, 3, p[0], p[2], p[3], 0, 0, 0x40, 0, 0, 0), title);
	}
}

static void
write_all(FILE *f, struct initiator *i)
{
	write_inquiry(f, i);
	must_write(f, i, CDB(0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0), "READ CAPACITY(10)");
	must_write(f, i, CDB(0x9e, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 32, 0, 0),
		   "READ CAPACITY(16)");
	write_modes(f, i);
	write_logs(f, i);
	must_write(f, i, CDB(0x1c, 0x01, 0, 1, 0, 0), "RECEIVE DIAGNOSTIC RESULTS, page 00h");
	must_write(f, i, CDB(0xa0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0), "REPORT LUNS");
	must_write(f, i, CDB(0xa3, 0x0a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0),
		   "REPORT TARGET PORT GROUPS");
	must_write(f, i, CDB(0xa3, 0x2a, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0),
		   "REPORT TARGET PORT GROUPS, extended header");
	must_write(f, i, CDB(0xa3, 0x0d, 0x80, 0, 0, 0, 0, 0, 1, 0, 0, 0),
		   "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS");
	must_write(f, i, CDB(0x5e, 0x02, 0, 0, 0, 0, 0, 1, 0, 0),
		   "PERSISTENT RESERVE IN, REPORT CAPABILITIES");
	must_write(f, i, CDB(0x84, 0x03, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0, 0, 0),
		   "RECEIVE COPY RESULTS, OPERATING PARAMETERS");
	write_commands(f, i);
}

static const char *
golden_path(const char *profile, const char *name)
{
	static char path[4096];

	snprintf(path, sizeof path, "%s/%s/%s.txt", GOLDEN, profile, name);
	return path;
}

static void
compare(const char *profile, const char *name)
{
	char command[8192];

	snprintf(command, sizeof command, "diff -u '%s' now >&2", golden_path(profile, name));
	if (system(command) != 0)
		test_fail(__FILE__, __LINE__, "%s is not what profile %s has promised for it", name,
			  profile);
}

static void
check_profile(const char *profile, const char *name, const char *about, const char *option,
	      const char *const *disk, unsigned open_flags)
{
	bool anew = getenv("PLATTER_WRITE_GOLDEN") != NULL;
	const char *path = anew ? golden_path(profile, name) : "now";
	char word[64];
	struct lab s;
	FILE *f;

	snprintf(word, sizeof word, "profile=%s", profile);
	lab_open_flags(&s, option != NULL ? WORDS(word, option) : WORDS(word), disk, open_flags);
	f = fopen(path, "w");
	if (f == NULL)
		test_fail(__FILE__, __LINE__, "%s: %s", path, strerror(errno));
	fprintf(f, "What an initiator sees of %s, by %s.\n", about, profile);
	write_all(f, &s.a);
	assert_eq(fclose(f), 0);
	lab_close(&s);
	if (anew)
		test_fail(__FILE__, __LINE__, "%s is written; look at it", path);
	compare(profile, name);
}

#define MEMORY WORDS("driver=memory", "size=1G")

TEST(platter_1_is_as_it_was_with_512_byte_blocks)
{
	check_profile("platter-1", "512", "a disk of 1 GiB", NULL, MEMORY, 0);
}

TEST(platter_1_is_as_it_was_with_4096_byte_blocks)
{
	check_profile("platter-1", "4096", "a disk of 1 GiB with block-size=4096",
		      "block-size=4096", MEMORY, 0);
}

TEST(platter_1_is_as_it_was_for_a_read_only_unit)
{
	check_profile("platter-1", "read-only", "a read-only disk of 1 GiB", NULL, MEMORY,
		      PL_OPEN_READ_ONLY);
}

TEST(platter_1_is_as_it_was_for_a_removable_unit)
{
	check_profile("platter-1", "removable", "a removable disk of 1 GiB", "removable=on", MEMORY,
		      0);
}

TEST(platter_1_is_as_it_was_where_writes_are_stable_at_once)
{
	make_image("disk.img", 1 * GiB);
	check_profile("platter-1", "write-through", "a disk of 1 GiB that writes through",
		      "rotation-rate=1", WORDS("path=disk.img", "cache=writethrough"), 0);
}

/* ---- options --------------------------------------------------------------------- */

static void
refused(const char *option, const char *says)
{
	struct pl_params *params = params_of(WORDS(option));
	struct pl_error err;

	if (scsi_unit_check(params, &err) != -EINVAL)
		test_fail(__FILE__, __LINE__, "%s is taken", option);
	assert_contains(err.text, says);
	pl_params_free(params);
}

TEST(what_scsi_has_no_room_for_is_refused_by_name)
{
	refused("serial=0123456789012345678901234567890123456", "at most 36 letters");
	refused("serial= x", "no space");
	refused("vendor=NINELETTE", "at most 8 letters");
	refused("product=seventeen letters", "at most 16 letters");
	refused("revision=12345", "at most 4 letters");
	refused("product=caf\xc3\xa9", "only letters of ASCII");
	refused("wwn=5000000000000001", "expected 0x");
	refused("wwn=0x500000000000000", "expected 0x");
	refused("wwn=0x50000000000000zz", "expected 0x");
	refused("wwn=0x6000000000000001", "2, 3 or 5");
	refused("wwn=0x50000000000000000000000000000001", "first is 6");
	refused("rotation-rate=2", "1025 to 65534");
	refused("rotation-rate=65535", "1025 to 65534");
	refused("block-size=1024", "512|4096");
	refused("physical-block-size=3000", "power of two");
	refused("physical-block-size=256", "power of two");
	refused("physical-block-size=128k", "power of two");
	refused("max-io-size=100k", "multiple of 64k");
	refused("max-io-size=0", "multiple of 64k");
	refused("max-io-size=64M", "at most 32M");
	refused("max-unmap-size=4T", "below 4 Gi blocks");
	refused("max-unmap-size=0", "multiple of 64k");
	refused("profile=platter-0", "platter-1");
	refused("seriall=1", "is it serial that is meant?");
}

/* INQUIRY of one VPD page into `to`, without its header. Returns the length. */
static unsigned
vpd(struct initiator *i, unsigned lun, uint8_t page, uint8_t to[512])
{
	uint8_t data[516];
	struct answer a =
		scsi_do_lun(i, lun, CDB(0x12, 1, page, 2, 4, 0), DATA_IN, sizeof data, data);

	assert_good(a);
	assert_eq(get_be16(data + 2) + 4, a.moved);
	memcpy(to, data + 4, a.moved - 4);
	return a.moved - 4;
}

TEST(options_are_what_the_initiator_sees)
{
	uint8_t data[512];
	struct lab s;

	lab_open(&s,
		 WORDS("serial=S1", "wwn=0x600000000000000000000000000000ab", "vendor=ACME",
		       "product=Anvil", "revision=9", "rotation-rate=7200", "max-io-size=1M",
		       "max-unmap-size=1G", "physical-block-size=8192", "dpofua=off"),
		 WORDS("driver=memory", "size=64M"));
	assert_good(scsi_in(&s.a, CDB(0x12, 0, 0, 0, 96, 0), 96, data));
	assert_mem(data + 8, "ACME    Anvil           9   ", 28);
	assert_eq(vpd(&s.a, 0, 0x80, data), 2);
	assert_mem(data, "S1", 2);
	vpd(&s.a, 0, 0x83, data);
	assert_mem(data, "\x01\x03\x00\x10\x60\0\0\0\0\0\0\0\0\0\0\0\0\0\0\xab", 20);
	vpd(&s.a, 0, 0xb0, data);
	assert_eq(get_be16(data + 2), 16); /* OPTIMAL TRANSFER LENGTH GRANULARITY */
	assert_eq(get_be32(data + 4), 1 * MiB / 512);
	assert_eq(get_be32(data + 16), 1 * GiB / 512);
	vpd(&s.a, 0, 0xb1, data);
	assert_eq(get_be16(data), 7200);
	assert_good(scsi_in(&s.a, CDB(0x1a, 0, 0x3f, 0, 4, 0), 4, data));
	assert_eq(data[2] & 0x10, 0); /* DPOFUA */
	lab_close(&s);
}

/* Hints that are no multiple of the physical block make partitions that are slow. */
TEST(limits_are_multiples_of_the_physical_block)
{
	const char *blocks[] = { "block-size=512", "block-size=4096" };
	const char *physical[] = { "physical-block-size=4k", "physical-block-size=64k" };

	for (unsigned n = 0; n < 4; n++) {
		uint8_t data[512];
		struct lab s;
		unsigned size;

		lab_open(&s, WORDS(blocks[n / 2], physical[n % 2]),
			 WORDS("driver=memory", "size=64M"));
		vpd(&s.a, 0, 0xb0, data);
		size = get_be16(data + 2);
		assert_eq(get_be32(data + 4) % size, 0);
		assert_eq(get_be32(data + 8) % size, 0);
		assert_true(get_be32(data + 8) <= get_be32(data + 4));
		assert_eq(get_be32(data + 16) % size, 0);
		assert_eq(get_be32(data + 24), size);
		lab_close(&s);
	}
}

TEST(no_two_units_of_a_target_have_one_name)
{
	struct pl_error err;
	struct lab s;
	unsigned lun;

	lab_open(&s, WORDS("serial=one", "wwn=0x3000000000000001"),
		 WORDS("driver=memory", "size=1M"));
	assert_eq(lab_try_add(&s, WORDS("serial=one"), WORDS("driver=memory", "size=1M"), 0, &err),
		  -EEXIST);
	assert_contains(err.text, "serial number");
	assert_eq(lab_try_add(&s, WORDS("wwn=0x3000000000000001"),
			      WORDS("driver=memory", "size=1M"), 0, &err),
		  -EEXIST);
	assert_contains(err.text, "wwn");
	lun = lab_add(&s, WORDS(), WORDS("driver=memory", "size=1M"), 0);
	assert_eq(lun, 1);
	lab_close(&s);
}

TEST(what_is_no_whole_block_is_left_out)
{
	uint8_t data[8];
	struct pl_error err;
	struct lab s;

	log_nothing();
	lab_open(&s, WORDS("block-size=4096"), WORDS("driver=memory", "size=10000"));
	assert_good(scsi_in(&s.a, CDB(0x25, 0, 0, 0, 0, 0, 0, 0, 0, 0), 8, data));
	assert_eq(get_be32(data), 1); /* two blocks */
	assert_eq(get_be32(data + 4), 4096);
	assert_eq(lab_try_add(&s, WORDS("block-size=4096"), WORDS("driver=memory", "size=4095"), 0,
			      &err),
		  -EINVAL);
	assert_contains(err.text, "less than a block");
	lab_close(&s);
}

TEST(what_never_becomes_durable_is_no_unit)
{
	struct pl_error err;
	struct lab s;

	make_image("disk.img", 1 * MiB);
	lab_open(&s, WORDS(), WORDS("driver=memory", "size=1M"));
	assert_eq(lab_try_add(&s, WORDS(), WORDS("path=disk.img", "cache=unsafe"), 0, &err),
		  -EINVAL);
	assert_contains(err.text, "cache=unsafe");
	lab_close(&s);
}
