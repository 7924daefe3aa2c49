/*
 * profile.c - what a client sees of a unit: a versioned row of defaults, and options over it.
 *
 * The good path: the options name a profile (or mean the newest); its row gives a value to each
 * option that is not there; then names, numbers and limits are worked out from these, the image's
 * geometry and the unit's UUID, and stay as they are for the unit's life.
 *
 * What can be wrong: a value that SCSI has no room for, limits that are no multiple of the block,
 * an image without a whole block, an identity that another unit of the target has. An image that
 * ends in a part of a block is served without that part, as disks are: the log says so.
 */
#include "profile.h"

#include "bytes.h"
#include "lu.h"
#include "target.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#define KiB UINT64_C(1024)
#define MiB (1024 * KiB)

/* ---- profiles -------------------------------------------------------------------- */

enum block_word { BLOCK_512, BLOCK_4096 };

struct unit_options {
	int profile;
	const char *serial, *wwn; /* NULL: from the UUID */
	const char *vendor, *product, *revision;
	uint64_t rotation_rate; /* when it is given */
	bool removable, dpofua;
	uint64_t max_io, max_unmap; /* bytes */
	int block;                  /* enum block_word */
	uint64_t physical_block;    /* bytes; 0: by the image */
};

struct profile {
	const char *name;
	struct unit_options options; /* where none is given */
	uint64_t optimal_io;         /* bytes: what one request carries well */
	uint64_t write_same;         /* bytes */
	uint32_t physical_most;      /* bytes: what the image's may say at most */
	unsigned unmap_descriptors, compare_and_write;
	unsigned copy_segments, copy_descriptors, copy_list_length;
	uint64_t copy_segment; /* bytes */
};

/*
 * What is in a row has been promised: a row that was in a release never changes.
 *
 * platter-1: blocks of 512 with physical blocks of at most 4096, since that is what every
 * initiator boots from; UNMAP and WRITE SAME of 512 MiB, which is 1 Mi blocks of 512.
 */
static const struct profile profiles[] = {
	{
		.name = "platter-1",
		.options = {
			.vendor = "PLATTER",
			.product = "DISK",
			.revision = "1",
			.dpofua = true,
			.max_io = 16 * MiB,
			.max_unmap = 512 * MiB,
			.block = BLOCK_512,
		},
		.optimal_io = 1 * MiB,
		.write_same = 512 * MiB,
		.physical_most = 4096,
		.unmap_descriptors = 256,
		.compare_and_write = 255,
		.copy_segments = 16,
		.copy_descriptors = 16,
		.copy_list_length = 4096,
		.copy_segment = 16 * MiB,
	},
};

#define AT(member) offsetof(struct unit_options, member)

/* Without `initial`: the profile has it. */
const struct pl_option scsi_unit_options[] = {
	{ "profile", PL_OPT_ENUM, AT(profile), "platter-1", "platter-1", false,
	  "version of all that a client sees and that no option says" },
	{ "serial", PL_OPT_STRING, AT(serial), NULL, NULL, false,
	  "serial number, at most 36 letters; without: the unit's UUID" },
	{ "wwn", PL_OPT_STRING, AT(wwn), "0xHEX", NULL, false,
	  "NAA identifier of 16 or 32 hex digits; without: made from the UUID" },
	{ "vendor", PL_OPT_STRING, AT(vendor), NULL, NULL, false,
	  "vendor identification, at most 8 letters" },
	{ "product", PL_OPT_STRING, AT(product), NULL, NULL, false,
	  "product identification, at most 16 letters" },
	{ "revision", PL_OPT_STRING, AT(revision), NULL, NULL, false,
	  "product revision level, at most 4 letters" },
	{ "rotation-rate", PL_OPT_UINT, AT(rotation_rate), "0|1|RPM", NULL, false,
	  "0: not told, 1: nothing turns, or turns a minute; without: by the disk" },
	{ "removable", PL_OPT_BOOL, AT(removable), NULL, NULL, false, "the medium can be ejected" },
	{ "dpofua", PL_OPT_BOOL, AT(dpofua), NULL, NULL, false,
	  "tell that FUA is understood; it is, in any case" },
	{ "max-unmap-size", PL_OPT_SIZE, AT(max_unmap), NULL, NULL, false,
	  "most that one UNMAP takes" },
	{ "max-io-size", PL_OPT_SIZE, AT(max_io), NULL, NULL, false,
	  "most that one command reads or writes" },
	{ "block-size", PL_OPT_ENUM, AT(block), "512|4096", NULL, false, "of a logical block" },
	{ "physical-block-size", PL_OPT_SIZE, AT(physical_block), NULL, NULL, false,
	  "of a physical block; without: the image's, if that is not above 4096" },
	PL_OPTION_END,
};

/* ---- options --------------------------------------------------------------------- */

static uint32_t
block_bytes(const struct unit_options *o)
{
	return o->block == BLOCK_4096 ? 4096 : 512;
}

static int
check_known(const struct pl_params *params, struct pl_error *err)
{
	for (unsigned i = 0; i < pl_params_count(params); i++) {
		const char *key = pl_params_key(params, i);
		unsigned distance = 4;
		const struct pl_option *near;

		if (pl_option_find(scsi_unit_options, key) != NULL)
			continue;
		near = pl_option_nearest(scsi_unit_options, key, &distance);
		return pl_error_say(err, -EINVAL, "%s=%s: a SCSI unit has no option %s%s%s%s", key,
				    pl_params_value(params, i), key, near != NULL ? "; is it " : "",
				    near != NULL ? near->name : "",
				    near != NULL ? " that is meant?" : "");
	}
	return 0;
}

/* SPC-4 "ASCII data field requirements"; spaces at either end would be taken for padding. */
static int
check_text(const char *name, const char *text, size_t most, struct pl_error *err)
{
	size_t length = strlen(text);

	for (size_t i = 0; i < length; i++) {
		if (text[i] < 0x20 || text[i] > 0x7e)
			return pl_error_say(err, -EINVAL, "%s=%s: only letters of ASCII", name,
					    text);
	}
	if (length > most)
		return pl_error_say(err, -EINVAL, "%s=%s: at most %zu letters", name, text, most);
	if (length == 0 || text[0] == ' ' || text[length - 1] == ' ')
		return pl_error_say(err, -EINVAL, "%s='%s': no space at either end", name, text);
	return 0;
}

/* SPC-4 "NAA designator format": types 2, 3 and 5 have 8 bytes, 6 has 16. */
static int
parse_wwn(const char *text, uint8_t naa[16], unsigned *length, struct pl_error *err)
{
	size_t digits = strlen(text) < 2 ? 0 : strlen(text) - 2;
	const char *wrong = NULL;

	if (strncmp(text, "0x", 2) != 0 || (digits != 16 && digits != 32) ||
	    strspn(text + 2, "0123456789abcdefABCDEF") != digits)
		wrong = "expected 0x and 16 or 32 hexadecimal digits";
	else if (digits == 16 && strchr("235", text[2]) == NULL)
		wrong = "of 16 digits, the first is 2, 3 or 5";
	else if (digits == 32 && text[2] != '6')
		wrong = "of 32 digits, the first is 6";
	if (wrong != NULL)
		return pl_error_say(err, -EINVAL, "wwn=%s: %s", text, wrong);
	*length = (unsigned)digits / 2;
	for (unsigned i = 0; i < *length; i++) {
		char byte[3] = { text[2 + 2 * i], text[3 + 2 * i], '\0' };

		naa[i] = (uint8_t)strtoul(byte, NULL, 16);
	}
	return 0;
}

static bool
power_of_two(uint64_t n)
{
	return n != 0 && (n & (n - 1)) == 0;
}

#define PHYSICAL_MOST (64 * KiB) /* as a geometry's */
#define MAX_IO_MOST   (32 * MiB) /* a command has its data in one piece of memory */

/* Where the image need not be known. */
static int
check_sizes(const struct unit_options *o, struct pl_error *err)
{
	uint32_t block = block_bytes(o);

	if (o->physical_block != 0 &&
	    (!power_of_two(o->physical_block) || o->physical_block < block ||
	     o->physical_block > PHYSICAL_MOST))
		return pl_error_say(err, -EINVAL,
				    "physical-block-size=%" PRIu64
				    ": expected a power of two from the block size, %u, to 64k",
				    o->physical_block, block);
	if (o->max_io < PHYSICAL_MOST || o->max_io > MAX_IO_MOST || o->max_io % PHYSICAL_MOST != 0)
		return pl_error_say(err, -EINVAL,
				    "max-io-size=%" PRIu64
				    ": expected a multiple of 64k, at most 32M",
				    o->max_io);
	if (o->max_unmap < PHYSICAL_MOST || o->max_unmap / block > UINT32_MAX ||
	    o->max_unmap % PHYSICAL_MOST != 0)
		return pl_error_say(err, -EINVAL,
				    "max-unmap-size=%" PRIu64
				    ": expected a multiple of 64k, below 4 Gi blocks of %u",
				    o->max_unmap, block);
	if (o->rotation_rate > 1 && (o->rotation_rate < 0x401 || o->rotation_rate > 0xfffe))
		return pl_error_say(err, -EINVAL,
				    "rotation-rate=%" PRIu64 ": expected 0, 1, or 1025 to 65534",
				    o->rotation_rate);
	return 0;
}

static int
check_names(const struct unit_options *o, struct pl_error *err)
{
	uint8_t naa[16];
	unsigned length;
	int error = check_text("vendor", o->vendor, 8, err);

	if (error == 0)
		error = check_text("product", o->product, 16, err);
	if (error == 0)
		error = check_text("revision", o->revision, 4, err);
	if (error == 0 && o->serial != NULL)
		error = check_text("serial", o->serial, 36, err);
	if (error == 0 && o->wwn != NULL)
		error = parse_wwn(o->wwn, naa, &length, err);
	return error;
}

/* The profile's values, and over them what is given. */
static int
parse_options(const struct pl_params *params, struct unit_options *o, struct pl_error *err)
{
	struct unit_options first = { 0 };
	uint64_t used = 0;
	int error = check_known(params, err);

	if (error == 0)
		error = pl_options_parse(scsi_unit_options, params, &used, &first, err);
	if (error != 0)
		return error;
	*o = profiles[first.profile].options;
	used = 0;
	error = pl_options_parse(scsi_unit_options, params, &used, o, err);
	if (error == 0)
		error = check_names(o, err);
	if (error == 0)
		error = check_sizes(o, err);
	return error;
}

int
scsi_unit_check(const struct pl_params *params, struct pl_error *err)
{
	struct unit_options o;

	return parse_options(params, &o, err);
}

/* ---- identity -------------------------------------------------------------------- */

/* Padded as INQUIRY wants it; `to` has width + 1 bytes. */
static void
pad(char *to, const char *text, int width)
{
	snprintf(to, (size_t)width + 1, "%-*.*s", width, width, text);
}

static void
uuid_text(const uint8_t uuid[16], char text[37])
{
	char *p = text;

	for (unsigned i = 0; i < 16; i++)
		p += sprintf(p, "%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "",
			     uuid[i]);
}

/* NAA 3h, "locally assigned": 60 bits in which all of the UUID counts (FNV-1a). */
static void
naa_of_uuid(const uint8_t uuid[16], uint8_t naa[8])
{
	uint64_t hash = UINT64_C(0xcbf29ce484222325);

	for (unsigned i = 0; i < 16; i++)
		hash = (hash ^ uuid[i]) * UINT64_C(0x100000001b3);
	put_be64(naa, UINT64_C(3) << 60 | (hash ^ hash >> 60) << 4 >> 4);
}

static void
identify(struct scsi_lu *lu, const struct unit_options *o, const struct scsi_unit *unit)
{
	struct scsi_identity *id = &lu->identity;
	bool turns = (unit->capabilities & PL_CAP_ROTATIONAL) != 0;

	*id = (struct scsi_identity){
		.removable = o->removable,
		.dpofua = o->dpofua,
		/* How fast is not known. */
		.rotation_rate = pl_params_get(unit->params, "rotation-rate") != NULL
					 ? (unsigned)o->rotation_rate
				 : turns ? 0
					 : 1,
	};
	memcpy(id->uuid, unit->uuid, sizeof id->uuid);
	pad(id->vendor, o->vendor, 8);
	pad(id->product, o->product, 16);
	pad(id->revision, o->revision, 4);
	if (o->serial != NULL)
		snprintf(id->serial, sizeof id->serial, "%s", o->serial);
	else
		uuid_text(unit->uuid, id->serial);
	id->naa_length = 8;
	if (o->wwn != NULL)
		parse_wwn(o->wwn, id->naa, &id->naa_length, NULL); /* has been checked */
	else
		naa_of_uuid(unit->uuid, id->naa);
}

/* Initiators take two disks of one name for two ways to the same. */
static int
check_alone(const struct scsi_lu *lu, struct pl_error *err)
{
	const struct scsi_identity *id = &lu->identity;

	for (const struct scsi_lu *other = lu->target->units; other != NULL; other = other->next) {
		const struct scsi_identity *its = &other->identity;
		const char *same = NULL;

		if (other == lu || other->removed)
			continue;
		if (strcmp(id->serial, its->serial) == 0)
			same = "serial number";
		else if (id->naa_length == its->naa_length &&
			 memcmp(id->naa, its->naa, id->naa_length) == 0)
			same = "wwn";
		if (same != NULL)
			return pl_error_say(err, -EEXIST,
					    "unit %s has the %s of unit %s of target %s", lu->name,
					    same, other->name, lu->target->name);
	}
	return 0;
}

/* ---- blocks and limits ----------------------------------------------------------- */

static uint32_t
least(uint32_t a, uint32_t b)
{
	return a < b ? a : b;
}

static void
limit(struct scsi_lu *lu, const struct profile *p, const struct unit_options *o,
      const struct pl_geometry *g)
{
	uint64_t block = lu->block_size, physical = lu->physical_block / block;
	bool thin = scsi_lu_thin(lu);

	lu->limits = (struct scsi_limits){
		.transfer = o->max_io / block,
		.optimal_transfer = (o->max_io < p->optimal_io ? o->max_io : p->optimal_io) / block,
		.unmap = thin ? o->max_unmap / block : 0,
		.unmap_descriptors = thin ? p->unmap_descriptors : 0,
		.unmap_granularity = thin ? physical : 0,
		.write_same = p->write_same / block,
		.compare_and_write = p->compare_and_write,
		.atomic = g->whole / block,
		.prefetch = o->max_io / block,
		.copy_segments = p->copy_segments,
		.copy_descriptors = p->copy_descriptors,
		.copy_list_length = p->copy_list_length,
		.copy_segment_length = p->copy_segment,
	};
}

static int
count_blocks(struct scsi_lu *lu, uint64_t size, struct pl_error *err)
{
	uint64_t rest = size % lu->block_size;

	lu->block_count = size / lu->block_size;
	if (lu->block_count == 0)
		return pl_error_say(err, -EINVAL,
				    "unit %s: %" PRIu64 " bytes are less than a block of %" PRIu32,
				    lu->name, size, lu->block_size);
	if (rest != 0)
		log_warn("unit %s: the last %" PRIu64 " bytes of %" PRIu64
			 " are no whole block of %" PRIu32 " and not served",
			 lu->name, rest, size, lu->block_size);
	return 0;
}

int
scsi_profile_apply(struct scsi_lu *lu, const struct scsi_unit *unit, struct pl_error *err)
{
	const struct pl_geometry *g = pl_export_geometry(unit->export);
	const struct profile *p;
	struct unit_options o;
	int error = parse_options(unit->params, &o, err);

	if (error != 0)
		return error;
	p = &profiles[o.profile];
	lu->block_size = block_bytes(&o);
	lu->physical_block = o.physical_block != 0 ? (uint32_t)o.physical_block
						   : least(g->physical_block, p->physical_most);
	if (lu->physical_block < lu->block_size)
		lu->physical_block = lu->block_size;
	error = count_blocks(lu, g->size, err);
	if (error != 0)
		return error;
	identify(lu, &o, unit);
	limit(lu, p, &o, g);
	return check_alone(lu, err);
}
