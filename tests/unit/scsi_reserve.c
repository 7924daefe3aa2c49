/* scsi_reserve.c - who has reserved a unit, what others may then do, and what outlives whom. */
#include "bytes.h"
#include "scsi.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define COUNT(list) (sizeof(list) / sizeof *(list))
#define MEMORY      WORDS("driver=memory", "size=1M")

enum { REGISTER, RESERVE, RELEASE, CLEAR, PREEMPT, PREEMPT_AND_ABORT, IGNORE, MOVE };
enum { READ_KEYS, READ_RESERVATION, REPORT_CAPABILITIES, READ_FULL_STATUS };
enum { WE = 1, EA = 3, WE_RO = 5, EA_RO = 6, WE_AR = 7, EA_AR = 8 };
enum { APTPL = 0x01, ALL_TG_PT = 0x04, SPEC_I_PT = 0x08 };
enum { CONFLICT = SCSI_RESERVATION_CONFLICT };
enum { PREEMPTED = 0x2a03, RELEASED = 0x2a04, UNREGISTERED = 0x2a05 };

static const unsigned types[] = { WE, EA, WE_RO, EA_RO, WE_AR, EA_AR };

/* ---- verbs ----------------------------------------------------------------------- */

static struct cdb
cdb_out(unsigned action, unsigned type, uint32_t length)
{
	struct cdb cdb = CDB(SCSI_PERSISTENT_RESERVE_OUT, (uint8_t)action, (uint8_t)type, 0, 0, 0,
			     0, 0, 0, 0);

	put_be32(cdb.bytes + 5, length);
	return cdb;
}

static void
put_list(uint8_t list[24], uint64_t key, uint64_t action_key, unsigned flags)
{
	memset(list, 0, 24);
	put_be64(list, key);
	put_be64(list + 8, action_key);
	list[20] = (uint8_t)flags;
}

static struct answer
pr_out(struct initiator *i, unsigned action, unsigned type, uint64_t key, uint64_t action_key,
       unsigned flags)
{
	uint8_t list[24];

	put_list(list, key, action_key, flags);
	return scsi_out(i, cdb_out(action, type, 24), 24, list);
}

static struct answer
pr_in(struct initiator *i, unsigned action, uint32_t length, void *data)
{
	struct cdb cdb = CDB(SCSI_PERSISTENT_RESERVE_IN, (uint8_t)action, 0, 0, 0, 0, 0, 0, 0, 0);

	put_be16(cdb.bytes + 7, (uint16_t)length);
	return scsi_in(i, cdb, length, data);
}

#define assert_conflict(a) assert_status((a), CONFLICT)

static void
enlist(struct initiator *i, uint64_t key)
{
	assert_good(pr_out(i, IGNORE, 0, 0, key, 0));
}

static void
reserve(struct initiator *i, uint64_t key, unsigned type)
{
	assert_good(pr_out(i, RESERVE, type, key, 0, 0));
}

static struct answer
ready(struct initiator *i)
{
	return scsi_none(i, CDB(SCSI_TEST_UNIT_READY, 0, 0, 0, 0, 0));
}

/* The one that waits, and no other. asc 0: none. */
static void
check_attention(struct initiator *i, unsigned asc)
{
	struct answer a = ready(i);

	if (asc != 0) {
		assert_sense(a, SCSI_UNIT_ATTENTION, asc);
		a = ready(i);
	}
	assert_good(a);
}

static unsigned
keys(struct initiator *i, uint64_t *list, uint32_t *generation)
{
	uint8_t data[8 + 256 * 8];
	struct answer a = pr_in(i, READ_KEYS, sizeof data, data);

	assert_good(a);
	assert_eq(a.moved, 8 + get_be32(data + 4));
	for (unsigned k = 0; list != NULL && k < get_be32(data + 4) / 8; k++)
		list[k] = get_be64(data + 8 + 8 * k);
	if (generation != NULL)
		*generation = get_be32(data);
	return get_be32(data + 4) / 8;
}

static uint32_t
generation(struct initiator *i)
{
	uint32_t n;

	keys(i, NULL, &n);
	return n;
}

/* Returns the type; 0: nothing is reserved. */
static unsigned
reserved(struct initiator *i, uint64_t *key)
{
	uint8_t data[24];
	struct answer a = pr_in(i, READ_RESERVATION, sizeof data, data);

	assert_good(a);
	if (get_be32(data + 4) == 0) {
		assert_eq(a.moved, 8);
		return 0;
	}
	assert_eq(get_be32(data + 4), 16);
	assert_eq(a.moved, 24);
	if (key != NULL)
		*key = get_be64(data + 8);
	return data[21];
}

static struct answer
read_block(struct initiator *i)
{
	uint8_t block[512];

	return scsi_in(i, cdb_blocks(SCSI_READ_10, 0, 0, 1), sizeof block, block);
}

static struct answer
write_block(struct initiator *i)
{
	uint8_t block[512] = { 0 };

	return scsi_out(i, cdb_blocks(SCSI_WRITE_10, 0, 0, 1), sizeof block, block);
}

static void
open_three(struct lab *s)
{
	lab_open(s, WORDS(), MEMORY);
	login(s, &s->c, "c", 3);
	clear_attentions(&s->c);
}

/* Without what a reservation makes of it. */
static void
clear(struct lab *s, struct initiator *i, uint64_t key)
{
	assert_good(pr_out(i, CLEAR, 0, key, 0, 0));
	clear_attentions(&s->a);
	clear_attentions(&s->b);
	if (s->c.nexus != NULL)
		clear_attentions(&s->c);
}

/* ---- what is forbidden ------------------------------------------------------------ */

/* Who may: everyone, everyone while reading is shared, those who have a part; with RESERVE. */
enum who { ALL, READERS, SHARERS };
struct may {
	const char *cdb;
	enum who who;
	bool beside_reserve; /* also when RESERVE reserved it for another */
	uint32_t out;
};

static const struct may commands[] = {
	{ "000000000000", ALL, false, 0 },     /* TEST UNIT READY */
	{ "030000001200", ALL, true, 0 },      /* REQUEST SENSE */
	{ "120000006000", ALL, true, 0 },      /* INQUIRY */
	{ "1a003f00ff00", READERS, false, 0 }, /* MODE SENSE */
	{ "5a003f00000000010000", READERS, false, 0 },
	{ "1b0000000100", ALL, true, 0 },         /* START STOP UNIT: start */
	{ "1b0000000000", SHARERS, false, 0 },    /* stop */
	{ "1e0000000000", ALL, true, 0 },         /* PREVENT ALLOW: allow */
	{ "1e0000000100", SHARERS, false, 0 },    /* prevent */
	{ "1d0400000000", SHARERS, false, 0 },    /* SEND DIAGNOSTIC */
	{ "25000000000000000000", ALL, true, 0 }, /* READ CAPACITY */
	{ "9e100000000000000000000000200000", ALL, true, 0 },
	{ "9e120000000000000000000000200000", READERS, false, 0 }, /* GET LBA STATUS */
	{ "080000000100", READERS, false, 0 },                     /* READ */
	{ "28000000000000000100", READERS, false, 0 },
	{ "a80000000000000000010000", READERS, false, 0 },
	{ "88000000000000000000000000010000", READERS, false, 0 },
	{ "2f000000000000000100", READERS, false, 0 }, /* VERIFY */
	{ "34000000000000000100", READERS, false, 0 }, /* PRE-FETCH */
	{ "0a0000000100", SHARERS, false, 512 },       /* WRITE */
	{ "2a000000000000000100", SHARERS, false, 512 },
	{ "aa0000000000000000010000", SHARERS, false, 512 },
	{ "8a000000000000000000000000010000", SHARERS, false, 512 },
	{ "2e000000000000000100", SHARERS, false, 512 },              /* WRITE AND VERIFY */
	{ "89000000000000000000000000010000", SHARERS, false, 1024 }, /* COMPARE AND WRITE */
	{ "8b000000000000000000000000010000", SHARERS, false, 512 },  /* ORWRITE */
	{ "93000000000000000000000000010000", SHARERS, false, 512 },  /* WRITE SAME */
	{ "41000000000000000100", SHARERS, false, 512 },
	{ "42000000000000001800", SHARERS, false, 24 },            /* UNMAP */
	{ "35000000000000000000", SHARERS, false, 0 },             /* SYNCHRONIZE CACHE */
	{ "150000000000", SHARERS, false, 0 },                     /* MODE SELECT */
	{ "4d004000000000001000", ALL, true, 0 },                  /* LOG SENSE */
	{ "a00000000000000001000000", ALL, true, 0 },              /* REPORT LUNS */
	{ "a30a00000000000001000000", ALL, true, 0 },              /* REPORT TARGET PORT GROUPS */
	{ "a30c00000000000040000000", READERS, false, 0 },         /* SUPPORTED OPERATION CODES */
	{ "a30d00000000000000100000", READERS, false, 0 },         /* TASK MANAGEMENT FUNCTIONS */
	{ "83000000000000000000000000000000", SHARERS, false, 0 }, /* EXTENDED COPY */
	{ "84030000000000000000000001000000", SHARERS, false, 0 }, /* its results */
};

static void
check_command(struct initiator *i, const struct may *m, bool allowed, const char *when)
{
	struct cdb cdb = cdb_hex(m->cdb);
	uint8_t data[4096] = { 0 };
	struct answer a;

	if (m->out > 0)
		a = scsi_out(i, cdb, m->out, data);
	else
		a = scsi_in(i, cdb, sizeof data, data);
	if ((a.status == CONFLICT) == allowed || (allowed && a.status != SCSI_GOOD))
		test_fail(__FILE__, __LINE__, "%s, %s: status %02x sense %x/%04x", m->cdb, when,
			  a.status, a.key, a.asc);
	/* As it was. */
	if (allowed && cdb.bytes[0] == SCSI_START_STOP_UNIT)
		assert_good(scsi_none(i, cdb_hex("1b0000000100")));
	if (allowed && cdb.bytes[0] == SCSI_PREVENT_ALLOW_MEDIUM_REMOVAL)
		assert_good(scsi_none(i, cdb_hex("1e0000000000")));
}

TEST(each_type_forbids_to_strangers_and_registrants_what_the_tables_say)
{
	struct lab s;

	open_three(&s);
	for (unsigned t = 0; t < COUNT(types); t++) {
		bool reading = types[t] == WE || types[t] == WE_RO || types[t] == WE_AR;
		bool shared = types[t] > EA;
		char when[64];

		enlist(&s.a, 1);
		enlist(&s.b, 2);
		reserve(&s.a, 1, types[t]);
		for (unsigned k = 0; k < COUNT(commands); k++) {
			const struct may *m = &commands[k];
			bool all = m->who == ALL || (m->who == READERS && reading);

			snprintf(when, sizeof when, "type %u, who holds it", types[t]);
			check_command(&s.a, m, true, when);
			snprintf(when, sizeof when, "type %u, a registrant", types[t]);
			check_command(&s.b, m, all || shared, when);
			snprintf(when, sizeof when, "type %u, a stranger", types[t]);
			check_command(&s.c, m, all, when);
		}
		clear(&s, &s.a, 1);
	}
	lab_close(&s);
}

TEST(what_reserve_has_reserved_is_for_one)
{
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(scsi_none(&s.a, cdb_hex("160000000000")));
	assert_good(scsi_none(&s.a, cdb_hex("560000000000000000"
					    "00"))); /* once more */
	for (unsigned k = 0; k < COUNT(commands); k++) {
		check_command(&s.a, &commands[k], true, "who reserved");
		check_command(&s.b, &commands[k], commands[k].beside_reserve, "another");
	}
	assert_conflict(scsi_none(&s.b, cdb_hex("160000000000")));
	assert_good(scsi_none(&s.b, cdb_hex("170000000000"))); /* no effect */
	assert_conflict(write_block(&s.b));
	assert_good(scsi_none(&s.a, cdb_hex("57000000000000000000")));
	assert_good(write_block(&s.b));
	lab_close(&s);
}

TEST(reserve_of_third_parties_and_extents_is_refused)
{
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_field(scsi_none(&s.a, cdb_hex("161000000000")), 1, 4);
	assert_field(scsi_none(&s.a, cdb_hex("160100000000")), 1, 0);
	assert_field(scsi_none(&s.a, cdb_hex("56100000000000000000")), 1, 4);
	assert_field(scsi_none(&s.a, cdb_hex("56000000000000000800")), 8, 3);
	assert_field(scsi_none(&s.a, cdb_hex("170100000000")), 1, 0);
	assert_good(write_block(&s.b));
	lab_close(&s);
}

TEST(what_reserve_has_reserved_is_free_after_logout_and_reset)
{
	static const enum scsi_function resets[] = { SCSI_LOGICAL_UNIT_RESET,
						     SCSI_TARGET_WARM_RESET, SCSI_TARGET_COLD_RESET,
						     SCSI_I_T_NEXUS_RESET };
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned k = 0; k < COUNT(resets); k++) {
		assert_good(scsi_none(&s.a, cdb_hex("160000000000")));
		assert_conflict(write_block(&s.b));
		/* Of the last one a's own, which is as if it were lost. */
		assert_eq(manage(resets[k] == SCSI_I_T_NEXUS_RESET ? &s.a : &s.b, resets[k], 0,
				 NULL),
			  SCSI_FUNCTION_COMPLETE);
		clear_attentions(&s.a);
		clear_attentions(&s.b);
		assert_good(write_block(&s.b));
	}
	assert_good(scsi_none(&s.a, cdb_hex("160000000000")));
	logout(&s.a);
	assert_good(scsi_none(&s.b, cdb_hex("160000000000")));
	login(&s, &s.a, "a", 1);
	clear_attentions(&s.a);
	lab_close(&s);
}

TEST(what_is_on_its_way_when_another_reserves_is_not_written)
{
	struct task t = { .hold = true };
	uint8_t block[512] = { 1 };
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	task_send(&t, &s.b, 0, cdb_blocks(SCSI_WRITE_10, 0, 0, 1), DATA_OUT, 512, block,
		  SCSI_SIMPLE);
	assert_good(scsi_none(&s.a, cdb_hex("160000000000")));
	task_give(&t, 0);
	assert_conflict(task_wait(&t));
	check_bytes(&s.disk[0].f, 0, 512, 0);
	lab_close(&s);
}

/* SPC-4, "Exceptions to SPC-2 RESERVE and RELEASE behavior", and SPC-2, "Reservations" */
TEST(the_two_methods_exclude_each_other)
{
	const struct cdb reserve_6 = cdb_hex("160000000000"), release_6 = cdb_hex("170000000000");
	uint8_t data[64];
	struct lab s;

	open_three(&s);
	/* Reserved by RESERVE: no persistent command, for nobody. */
	assert_good(scsi_none(&s.a, reserve_6));
	for (unsigned action = READ_KEYS; action <= READ_FULL_STATUS; action++) {
		assert_conflict(pr_in(&s.a, action, sizeof data, data));
		assert_conflict(pr_in(&s.b, action, sizeof data, data));
	}
	assert_conflict(pr_out(&s.b, REGISTER, 0, 0, 2, 0));
	assert_conflict(pr_out(&s.a, IGNORE, 0, 0, 1, 0));
	assert_good(scsi_none(&s.a, release_6));

	/* Registered and nothing reserved: no RESERVE, for nobody. */
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	assert_conflict(scsi_none(&s.a, reserve_6));
	assert_conflict(scsi_none(&s.c, reserve_6));
	assert_conflict(scsi_none(&s.c, release_6));

	/* Those whom a persistent reservation serves are told that all is well. */
	for (unsigned t = 0; t < COUNT(types); t++) {
		bool shared = types[t] > EA;

		reserve(&s.a, 1, types[t]);
		assert_good(scsi_none(&s.a, reserve_6));
		assert_good(scsi_none(&s.a, release_6));
		assert_status(scsi_none(&s.b, reserve_6), shared ? SCSI_GOOD : CONFLICT);
		assert_status(scsi_none(&s.b, release_6), shared ? SCSI_GOOD : CONFLICT);
		assert_conflict(scsi_none(&s.c, reserve_6));
		assert_conflict(scsi_none(&s.c, release_6));
		assert_eq(reserved(&s.a, NULL), types[t]);
		assert_good(pr_out(&s.a, RELEASE, types[t], 1, 0, 0));
		clear_attentions(&s.b);
	}
	/* And it was not one of RESERVE's. */
	clear(&s, &s.a, 1);
	assert_good(scsi_none(&s.c, reserve_6));
	lab_close(&s);
}

/* ---- registering and reserving ------------------------------------------------------ */

TEST(a_list_of_a_wrong_length_is_refused)
{
	static const uint32_t lengths[] = { 0, 8, 20, 23, 25, 28 };
	uint8_t list[64] = { 0 };
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	put_be64(list + 8, 1);
	for (unsigned action = REGISTER; action <= MOVE; action++) {
		for (unsigned k = 0; k < COUNT(lengths); k++)
			assert_sense(scsi_out(&s.a, cdb_out(action, WE, lengths[k]), 64, list),
				     SCSI_ILLEGAL_REQUEST, 0x1a00);
		/* Less comes than was said. */
		assert_sense(scsi_out(&s.a, cdb_out(action, WE, 24), 20, list),
			     SCSI_ILLEGAL_REQUEST, 0x1a00);
	}
	assert_sense(scsi_none(&s.a, cdb_out(REGISTER, 0, UINT32_MAX)), SCSI_ILLEGAL_REQUEST,
		     0x1a00);
	assert_eq(keys(&s.a, NULL, NULL), 0);
	lab_close(&s);
}

TEST(register_wants_the_key_that_is_registered)
{
	uint64_t key;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_conflict(pr_out(&s.a, REGISTER, 0, 9, 1, 0)); /* none is: key 0 */
	assert_good(pr_out(&s.a, REGISTER, 0, 0, 0, 0));     /* nothing to do */
	assert_eq(keys(&s.a, NULL, NULL), 0);
	assert_eq(generation(&s.a), 0);
	assert_good(pr_out(&s.a, REGISTER, 0, 0, 1, 0));
	assert_conflict(pr_out(&s.a, REGISTER, 0, 0, 1, 0));
	assert_conflict(pr_out(&s.a, REGISTER, 0, 2, 1, 0));
	assert_good(pr_out(&s.a, REGISTER, 0, 1, 2, 0)); /* another key */
	reserve(&s.a, 2, EA);
	assert_good(pr_out(&s.a, IGNORE, 0, 77, 3, 0)); /* the holder's key is the new one */
	assert_eq(reserved(&s.b, &key), EA);
	assert_eq(key, 3);
	assert_conflict(pr_out(&s.a, REGISTER, 0, 2, 0, 0));
	assert_good(pr_out(&s.a, REGISTER, 0, 3, 0, 0));
	assert_eq(keys(&s.a, NULL, NULL), 0);
	assert_eq(reserved(&s.b, NULL), 0);
	lab_close(&s);
}

TEST(only_a_registrant_reserves_and_only_with_its_key)
{
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_conflict(pr_out(&s.a, RESERVE, WE, 0, 0, 0));
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	for (unsigned action = RESERVE; action <= PREEMPT_AND_ABORT; action++)
		assert_conflict(pr_out(&s.a, action, WE, 2, 2, 0));
	for (unsigned type = 0; type < 16; type++) {
		bool known = type < 9 && type != 0 && type != 2 && type != 4;

		if (!known) {
			assert_field(pr_out(&s.a, RESERVE, type, 1, 0, 0), 2, 3);
			assert_field(pr_out(&s.a, RELEASE, type, 1, 0, 0), 2, 3);
			continue;
		}
		assert_field(pr_out(&s.a, RESERVE, 0x10 | type, 1, 0, 0), 2, 7);
		reserve(&s.a, 1, type);
		reserve(&s.a, 1, type); /* the same once more */
		assert_conflict(pr_out(&s.a, RESERVE, type == WE ? EA : WE, 1, 0, 0));
		/* All registrants hold those of the last two types. */
		assert_status(pr_out(&s.b, RESERVE, type, 2, 0, 0),
			      type >= WE_AR ? SCSI_GOOD : CONFLICT);
		assert_good(pr_out(&s.a, RELEASE, type, 1, 0, 0));
		clear_attentions(&s.b);
	}
	lab_close(&s);
}

TEST(only_who_holds_it_releases_a_reservation)
{
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	assert_good(pr_out(&s.a, RELEASE, WE, 1, 0, 0)); /* there is none */
	for (unsigned t = 0; t < COUNT(types); t++) {
		bool shared = types[t] > EA, all = types[t] >= WE_AR;

		reserve(&s.a, 1, types[t]);
		assert_conflict(pr_out(&s.b, RELEASE, types[t], 1, 0, 0));
		assert_sense(pr_out(&s.a, RELEASE, types[t] == WE ? EA : WE, 1, 0, 0),
			     SCSI_ILLEGAL_REQUEST, 0x2604);
		assert_good(pr_out(&s.b, RELEASE, types[t], 2, 0, 0));
		assert_eq(reserved(&s.b, NULL), all ? 0 : types[t]);
		check_attention(&s.a, all ? RELEASED : 0);
		if (all)
			continue;
		assert_good(pr_out(&s.a, RELEASE, types[t], 1, 0, 0));
		check_attention(&s.a, 0);
		check_attention(&s.b, shared ? RELEASED : 0);
		assert_eq(reserved(&s.b, NULL), 0);
	}
	lab_close(&s);
}

TEST(who_unregisters_gives_up_what_it_holds)
{
	uint64_t key;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned t = 0; t < COUNT(types); t++) {
		bool registrants = types[t] == WE_RO || types[t] == EA_RO;

		enlist(&s.a, 1);
		enlist(&s.b, 2);
		reserve(&s.a, 1, types[t]);
		assert_good(pr_out(&s.a, REGISTER, 0, 1, 0, 0));
		check_attention(&s.a, 0);
		check_attention(&s.b, registrants ? RELEASED : 0);
		if (types[t] >= WE_AR) { /* b holds it as well, and is the last */
			assert_eq(reserved(&s.a, &key), types[t]);
			assert_eq(key, 0);
			assert_conflict(write_block(&s.a));
			assert_good(write_block(&s.b));
			assert_good(pr_out(&s.b, REGISTER, 0, 2, 0, 0));
		}
		assert_eq(reserved(&s.a, NULL), 0);
		assert_good(write_block(&s.a));
		assert_good(pr_out(&s.b, IGNORE, 0, 0, 0, 0));
		check_attention(&s.a, 0);
	}
	lab_close(&s);
}

TEST(clear_takes_all_and_tells_the_others)
{
	struct lab s;

	open_three(&s);
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	reserve(&s.b, 2, EA);
	assert_conflict(pr_out(&s.c, CLEAR, 0, 0, 0, 0));
	assert_good(pr_out(&s.a, CLEAR, 0, 1, 0, 0));
	check_attention(&s.a, 0);
	check_attention(&s.b, PREEMPTED);
	check_attention(&s.c, 0);
	assert_eq(keys(&s.a, NULL, NULL), 0);
	assert_eq(reserved(&s.a, NULL), 0);
	lab_close(&s);
}

TEST(the_generation_counts_what_changes_registrations)
{
	uint32_t before;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_eq(generation(&s.a), 0);
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	assert_eq(generation(&s.a), 2);
	assert_good(pr_out(&s.a, REGISTER, 0, 1, 1, 0));
	assert_eq(generation(&s.a), 3);
	reserve(&s.a, 1, WE);
	assert_good(pr_out(&s.a, RELEASE, WE, 1, 0, 0));
	assert_conflict(pr_out(&s.a, REGISTER, 0, 5, 6, 0));
	assert_conflict(pr_out(&s.a, PREEMPT, WE, 1, 99, 0));
	assert_eq(generation(&s.a), 3);
	assert_good(pr_out(&s.a, PREEMPT, WE, 1, 2, 0));
	assert_eq(generation(&s.a), 4);
	clear_attentions(&s.b);
	enlist(&s.b, 2);
	assert_good(pr_out(&s.a, PREEMPT_AND_ABORT, WE, 1, 2, 0));
	before = generation(&s.a);
	assert_eq(before, 6);
	assert_good(pr_out(&s.a, CLEAR, 0, 1, 0, 0));
	assert_eq(generation(&s.a), 7);
	lab_close(&s);
}

/* ---- preempting ------------------------------------------------------------------ */

TEST(preempt_takes_registrations_and_tells_those_who_had_them)
{
	uint64_t list[3];
	struct lab s;

	open_three(&s);
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	enlist(&s.c, 2); /* a key may be anybody's */
	assert_parameter(pr_out(&s.a, PREEMPT, WE, 1, 0, 0), 8, -1);
	assert_conflict(pr_out(&s.a, PREEMPT, WE, 1, 3, 0));
	assert_good(pr_out(&s.a, PREEMPT, 0xf2, 1, 2, 0)); /* scope and type mean nothing here */
	check_attention(&s.a, 0);
	check_attention(&s.b, UNREGISTERED);
	check_attention(&s.c, UNREGISTERED);
	assert_eq(keys(&s.a, list, NULL), 1);
	assert_eq(list[0], 1);
	assert_eq(reserved(&s.a, NULL), 0);
	lab_close(&s);
}

TEST(preempt_of_the_holder_takes_its_reservation)
{
	uint64_t key;
	struct lab s;

	open_three(&s);
	for (unsigned t = 0; t < 4; t++) { /* those that one holds */
		enlist(&s.a, 1);
		enlist(&s.b, 2);
		enlist(&s.c, 3);
		reserve(&s.a, 1, types[t]);
		assert_good(pr_out(&s.b, PREEMPT, types[t], 2, 3, 0)); /* another registrant */
		assert_eq(reserved(&s.b, &key), types[t]);
		assert_eq(key, 1);
		check_attention(&s.c, UNREGISTERED);
		enlist(&s.c, 3);
		assert_field(pr_out(&s.b, PREEMPT, 2, 2, 1, 0), 2, 3);
		assert_good(pr_out(&s.b, PREEMPT, types[t], 2, 1, 0)); /* the same type */
		check_attention(&s.a, UNREGISTERED);
		check_attention(&s.c, 0);
		assert_good(pr_out(&s.b, PREEMPT, WE_AR, 2, 2, 0)); /* itself: another type */
		check_attention(&s.a, 0);
		check_attention(&s.c, RELEASED);
		assert_eq(reserved(&s.b, NULL), WE_AR);
		assert_eq(keys(&s.b, NULL, NULL), 2);
		clear(&s, &s.b, 2);
	}
	lab_close(&s);
}

TEST(key_zero_preempts_a_reservation_that_all_hold)
{
	uint64_t key;
	struct lab s;

	open_three(&s);
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	enlist(&s.c, 3);
	reserve(&s.a, 1, EA_AR);
	assert_good(pr_out(&s.b, PREEMPT, EA, 2, 3, 0)); /* one of them; it stays all others' */
	assert_eq(reserved(&s.b, NULL), EA_AR);
	check_attention(&s.c, UNREGISTERED);
	assert_conflict(read_block(&s.c));
	assert_good(pr_out(&s.b, PREEMPT, EA, 2, 0, 0));
	check_attention(&s.a, UNREGISTERED);
	assert_eq(reserved(&s.b, &key), EA);
	assert_eq(key, 2);
	assert_eq(keys(&s.b, NULL, NULL), 1);
	assert_parameter(pr_out(&s.b, PREEMPT, EA, 2, 0, 0), 8, -1);
	/* Of its own key alone: it leaves itself, and nobody is left to hold it. */
	clear(&s, &s.b, 2);
	enlist(&s.b, 2);
	reserve(&s.b, 2, WE_AR);
	assert_good(pr_out(&s.b, PREEMPT, WE_AR, 2, 2, 0));
	assert_eq(keys(&s.b, NULL, NULL), 0);
	assert_eq(reserved(&s.b, NULL), 0);
	lab_close(&s);
}

TEST(preempt_and_abort_ends_the_commands_of_those_who_leave)
{
	uint8_t block[512] = { 1 };
	struct task gathering = { .hold = true }, of_c = { .hold = true };
	struct lab s;

	open_three(&s);
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	reserve(&s.b, 2, WE_RO);
	enlist(&s.c, 3);
	task_send(&gathering, &s.b, 0, cdb_blocks(SCSI_WRITE_10, 0, 0, 1), DATA_OUT, 512, block,
		  SCSI_SIMPLE);
	task_send(&of_c, &s.c, 0, cdb_blocks(SCSI_WRITE_10, 0, 1, 1), DATA_OUT, 512, block,
		  SCSI_SIMPLE);
	assert_conflict(pr_out(&s.a, PREEMPT_AND_ABORT, WE_RO, 1, 99, 0));
	assert_false(gathering.done);
	assert_good(pr_out(&s.a, PREEMPT_AND_ABORT, WE_RO, 1, 2, 0));
	assert_true(gathering.done && gathering.answer.aborted);
	assert_false(of_c.done);
	task_give(&of_c, 0);
	assert_good(task_wait(&of_c));
	assert_sense(ready(&s.b), SCSI_UNIT_ATTENTION, UNREGISTERED);
	assert_sense(ready(&s.b), SCSI_UNIT_ATTENTION, SCSI_COMMANDS_CLEARED);
	check_attention(&s.b, 0);
	assert_conflict(write_block(&s.b));
	check_bytes(&s.disk[0].f, 0, 512, 0);
	lab_close(&s);
}

#define SLOW \
	WORDS("driver=fault", "over=memory", "size=1M", "kind=write", "fault=delay", \
	      "delay=300ms", "repeat=forever")

/* What it has begun may still land: so the answer comes after that. */
TEST(preempt_and_abort_waits_for_what_has_begun)
{
	uint8_t block[512] = { 1 }, list[24];
	struct task begun = { .hold = false }, fence = { .hold = false };
	struct lab s;

	lab_open(&s, WORDS(), SLOW);
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	task_send(&begun, &s.b, 0, cdb_blocks(SCSI_WRITE_10, 0, 0, 1), DATA_OUT, 512, block,
		  SCSI_SIMPLE);
	put_list(list, 1, 2, 0);
	task_send(&fence, &s.a, 0, cdb_out(PREEMPT_AND_ABORT, WE, 24), DATA_OUT, 24, list,
		  SCSI_SIMPLE);
	assert_false(begun.done || fence.done);
	assert_good(task_wait(&fence));
	assert_true(begun.done && begun.answer.aborted);
	assert_true(begun.answer.rank < fence.answer.rank);
	check_bytes(&s.disk[0].f, 0, 1, 1);
	clear_attentions(&s.b);
	lab_close(&s);
}

/* Two that fence each other off: one does it, the other does nothing. */
TEST(of_two_who_preempt_and_abort_each_other_one_is_left)
{
	uint8_t block[512] = { 1 }, list_a[24], list_b[24];
	struct task begun = { .hold = false }, by_a = { .hold = false }, by_b = { .hold = false };
	struct lab s;

	lab_open(&s, WORDS(), SLOW);
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	task_send(&begun, &s.b, 0, cdb_blocks(SCSI_WRITE_10, 0, 0, 1), DATA_OUT, 512, block,
		  SCSI_SIMPLE);
	put_list(list_a, 1, 2, 0);
	put_list(list_b, 2, 1, 0);
	task_send(&by_a, &s.a, 0, cdb_out(PREEMPT_AND_ABORT, WE, 24), DATA_OUT, 24, list_a,
		  SCSI_SIMPLE);
	task_send(&by_b, &s.b, 0, cdb_out(PREEMPT_AND_ABORT, WE, 24), DATA_OUT, 24, list_b,
		  SCSI_SIMPLE);
	assert_good(task_wait(&by_a));
	assert_sense(task_wait(&by_b), SCSI_UNIT_ATTENTION, UNREGISTERED);
	assert_true(task_wait(&begun).aborted);
	assert_eq(keys(&s.a, NULL, NULL), 1);
	clear_attentions(&s.b);
	lab_close(&s);
}

/* The second stands in line while what the first makes is being kept. */
TEST(a_preempt_and_abort_in_line_is_aborted_by_the_one_before_it)
{
	struct task by_a = { .hold = false }, by_b = { .hold = false };
	uint8_t list_a[24], list_b[24];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(pr_out(&s.a, IGNORE, 0, 0, 1, APTPL));
	assert_good(pr_out(&s.b, IGNORE, 0, 0, 2, APTPL));
	s.hold_saves = true;
	put_list(list_a, 1, 2, 0);
	put_list(list_b, 2, 1, 0);
	task_send(&by_a, &s.a, 0, cdb_out(PREEMPT_AND_ABORT, WE, 24), DATA_OUT, 24, list_a,
		  SCSI_SIMPLE);
	task_send(&by_b, &s.b, 0, cdb_out(PREEMPT_AND_ABORT, WE, 24), DATA_OUT, 24, list_b,
		  SCSI_SIMPLE);
	lab_settle(&s);
	assert_false(by_a.done || by_b.done);
	lab_keep(&s);
	lab_settle(&s);
	assert_true(by_a.done && by_b.done);
	assert_good(by_a.answer);
	assert_true(by_b.answer.aborted);
	s.hold_saves = false;
	assert_eq(keys(&s.a, NULL, NULL), 1);
	clear_attentions(&s.b);
	lab_close(&s);
}

TEST(a_reset_ends_a_preempt_that_waits)
{
	uint8_t block[512] = { 1 }, list[24];
	struct task begun = { .hold = false }, fence = { .hold = false };
	struct lab s;

	lab_open(&s, WORDS(), SLOW);
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	task_send(&begun, &s.b, 0, cdb_blocks(SCSI_WRITE_10, 0, 0, 1), DATA_OUT, 512, block,
		  SCSI_SIMPLE);
	put_list(list, 1, 2, 0);
	task_send(&fence, &s.a, 0, cdb_out(PREEMPT_AND_ABORT, WE, 24), DATA_OUT, 24, list,
		  SCSI_SIMPLE);
	assert_eq(manage(&s.b, SCSI_LOGICAL_UNIT_RESET, 0, NULL), SCSI_FUNCTION_COMPLETE);
	assert_true(begun.done && fence.done && fence.answer.aborted);
	clear_attentions(&s.a);
	clear_attentions(&s.b);
	assert_eq(keys(&s.a, NULL, NULL), 1);
	lab_close(&s);
}

/* ---- ports ----------------------------------------------------------------------- */

/* J6: it is the port's, by name and ISID, not the session's. */
TEST(a_registration_is_the_initiator_ports_and_outlives_logout)
{
	uint8_t data[512];
	struct lab s;

	open_three(&s);
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	reserve(&s.a, 1, EA);
	logout(&s.a);
	assert_eq(reserved(&s.c, NULL), EA);
	login(&s, &s.a, "a", 9); /* another ISID: another port */
	clear_attentions(&s.a);
	assert_conflict(pr_out(&s.a, RELEASE, EA, 1, 0, 0));
	assert_conflict(read_block(&s.a));
	logout(&s.a);
	login(&s, &s.a, "a", 1);
	clear_attentions(&s.a);
	assert_good(write_block(&s.a));
	/* READ FULL STATUS names it. */
	assert_good(pr_in(&s.c, READ_FULL_STATUS, sizeof data, data));
	assert_eq(get_be64(data + 8), 1);
	assert_eq(data[20], 0x01); /* R_HOLDER */
	assert_eq(data[21], EA);
	assert_eq(get_be16(data + 26), 1); /* relative target port */
	assert_eq(get_be32(data + 28), 4 + get_be16(data + 34));
	assert_eq(data[32], 0x45);
	assert_eq(get_be16(data + 34) % 4, 0);
	assert_str((char *)data + 36, "iqn.2025-01.test:a,i,0x801234560001");
	assert_eq(data[8 + 24 + get_be32(data + 28) + 12], 0); /* b does not hold it */
	assert_good(pr_out(&s.a, RELEASE, EA, 1, 0, 0));
	lab_close(&s);
}

TEST(answers_are_cut_and_say_how_long_they_would_be)
{
	uint8_t whole[1024], part[1024];
	struct lab s;

	open_three(&s);
	enlist(&s.a, 1);
	enlist(&s.b, 2);
	enlist(&s.c, 3);
	reserve(&s.a, 1, WE);
	for (unsigned action = READ_KEYS; action <= READ_FULL_STATUS; action++) {
		struct answer a = pr_in(&s.a, action, sizeof whole, whole);
		uint32_t length = a.moved;

		assert_good(a);
		assert_true(length >= 8);
		for (uint32_t n = 0; n <= length + 1; n++) {
			a = pr_in(&s.a, action, n, part);
			assert_good(a);
			assert_eq(a.moved, n < length ? n : length);
			assert_mem(part, whole, a.moved);
		}
	}
	/* The allocation length is longer than what the initiator takes. */
	assert_good(scsi_in(&s.a, CDB(0x5e, 3, 0, 0, 0, 0, 0, 0xff, 0xff, 0), 100, part));
	lab_close(&s);
}

TEST(capabilities_say_what_there_is)
{
	uint8_t data[8];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_good(pr_in(&s.a, REPORT_CAPABILITIES, 8, data));
	assert_mem(data, ((uint8_t[]){ 0, 8, 0x1d, 0xb0, 0xea, 0x01, 0, 0 }), 8);
	assert_good(pr_out(&s.a, IGNORE, 0, 0, 1, APTPL));
	assert_good(pr_in(&s.a, REPORT_CAPABILITIES, 8, data));
	assert_eq(data[3], 0xb1); /* PTPL_A */
	for (unsigned action = 4; action < 32; action++)
		assert_field(pr_in(&s.a, action, 8, data), 1, 4);
	for (unsigned action = 8; action < 32; action++)
		assert_field(pr_out(&s.a, action, 0, 1, 1, 0), 1, 4);
	lab_close(&s);
}

/* A TransportID of iSCSI; isid NULL: without one. Returns its length. */
static uint32_t
put_id(uint8_t *p, const char *name, const char *isid)
{
	uint32_t n;

	memset(p, 0, 256);
	p[0] = isid != NULL ? 0x45 : 0x05;
	n = (uint32_t)sprintf((char *)p + 4, "%s%s%s", name, isid != NULL ? ",i,0x" : "",
			      isid != NULL ? isid : "") +
	    1;
	n = n < 20 ? 20 : (n + 3) / 4 * 4;
	put_be16(p + 2, (uint16_t)n);
	return 4 + n;
}

/* REGISTER with SPEC_I_PT. ids: length bytes. */
static struct answer
register_ports(struct initiator *i, uint64_t key, uint64_t action_key, const uint8_t *ids,
	       uint32_t length)
{
	uint8_t *list = test_alloc(28 + length);
	struct answer a;

	put_list(list, key, action_key, SPEC_I_PT);
	put_be32(list + 24, length);
	memcpy(list + 28, ids, length);
	a = scsi_out(i, cdb_out(REGISTER, 0, 28 + length), 28 + length, list);
	free(list);
	return a;
}

TEST(ports_are_registered_by_their_names)
{
	uint8_t ids[1024];
	uint64_t list[8];
	uint32_t n;
	struct lab s;

	open_three(&s);
	n = put_id(ids, "iqn.2025-01.test:b", "801234560002");
	n += put_id(ids + n, "iqn.2025-01.test:elsewhere", "1"); /* nobody that we know yet */
	n += put_id(ids + n, "iqn.2025-01.test:c", NULL);        /* all of its ports */
	assert_good(register_ports(&s.a, 0, 7, ids, n));
	assert_eq(keys(&s.a, list, NULL), 4);
	for (unsigned k = 0; k < 4; k++)
		assert_eq(list[k], 7);
	assert_eq(generation(&s.a), 1);
	assert_good(pr_out(&s.b, REGISTER, 0, 7, 8, 0));
	assert_good(pr_out(&s.c, REGISTER, 0, 7, 9, 0));
	/* Only from who is not registered, and only by REGISTER. */
	assert_parameter(register_ports(&s.a, 7, 10, ids, n), 20, 3);
	assert_parameter(pr_out(&s.a, IGNORE, 0, 0, 1, SPEC_I_PT), 20, 3);
	assert_good(pr_out(&s.a, REGISTER, 0, 7, 0, 0));
	/* Those who are keep their keys. */
	assert_good(register_ports(&s.a, 0, 11, ids, n));
	assert_eq(keys(&s.a, list, NULL), 4);
	assert_good(pr_out(&s.b, REGISTER, 0, 8, 8, ALL_TG_PT));
	lab_close(&s);
}

TEST(what_is_no_transport_id_registers_nobody)
{
	static const struct {
		const char *name, *isid;
		uint8_t first; /* byte; 0: as it should be */
		int length;    /* added to the one it says */
	} bad[] = {
		{ "iqn.2025-01.test:b", "1", 0x44, 0 }, /* another protocol */
		{ "iqn.2025-01.test:b", "1", 0x85, 0 }, /* another format */
		{ "iqn.2025-01.test:b", "", 0, 0 },     /* no ISID */
		{ "iqn.2025-01.test:b", "12x4", 0, 0 }, /* no number */
		{ "iqn.2025-01.test:b", "1234567890123", 0, 0 },
		{ "", "1", 0, 0 },
		{ "iqn.2025-01.test:b b", "1", 0, 0 },
		{ "iqn.2025-01.test:b", NULL, 0x45, 0 }, /* says that there is one */
		{ "iqn.2025-01.test:b", "1", 0, 1 },
		{ "iqn.2025-01.test:b", "1", 0, 4 }, /* beyond the list */
		{ "iqn.2025-01.test:b", "1", 0, -16 },
		{ "iqn.2025-01.test:b", "1", 0, -4 }, /* no end of the name */
	};
	uint8_t ids[512];
	uint32_t n;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	for (unsigned k = 0; k < COUNT(bad); k++) {
		uint32_t good = put_id(ids, "iqn.2025-01.test:c", "3");

		n = good + put_id(ids + good, bad[k].name, bad[k].isid);
		if (bad[k].first != 0)
			ids[good] = bad[k].first;
		put_be16(ids + good + 2, (uint16_t)(get_be16(ids + good + 2) + bad[k].length));
		assert_parameter(register_ports(&s.a, 0, 1, ids, n), 28 + good, -1);
		assert_eq(keys(&s.a, NULL, NULL), 0);
	}
	/* A list that is longer or shorter than it says. */
	n = put_id(ids, "iqn.2025-01.test:b", "2");
	put_be32(ids + 256, n);
	for (int by = -4; by <= 4; by += 8) {
		uint8_t list[512] = { 0 };

		put_list(list, 0, 1, SPEC_I_PT);
		put_be32(list + 24, n + (uint32_t)by);
		memcpy(list + 28, ids, n);
		assert_sense(scsi_out(&s.a, cdb_out(REGISTER, 0, 28 + n), 28 + n, list),
			     SCSI_ILLEGAL_REQUEST, 0x1a00);
	}
	assert_eq(keys(&s.a, NULL, NULL), 0);
	assert_eq(generation(&s.a), 0);
	lab_close(&s);
}

TEST(there_is_an_end_to_registrations_and_the_one_too_many_changes_nothing)
{
	uint8_t *ids = test_alloc(300 * 256), *data = test_alloc(65535);
	char isid[16];
	uint32_t n = 0, total;
	struct answer a;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	/* With the one that registers them: all there is room for. */
	for (unsigned k = 0; k < 255; k++) {
		sprintf(isid, "%x", k + 1);
		n += put_id(ids + n,
			    "iqn.2025-01.test:somebody-with-a-name-that-is-long-enough-to-"
			    "make-the-answer-longer-than-an-allocation-length-can-say-if-"
			    "there-are-as-many-as-there-may-be-and-that-needs-some-more-"
			    "letters-than-I-would-have-thought-at-first",
			    isid);
	}
	assert_true(28 + n < 65535);
	assert_good(register_ports(&s.a, 0, 1, ids, n));
	assert_eq(keys(&s.a, NULL, NULL), 256);
	assert_sense(pr_out(&s.b, REGISTER, 0, 0, 2, 0), SCSI_ILLEGAL_REQUEST, 0x5504);
	assert_eq(generation(&s.a), 1);
	a = pr_in(&s.a, READ_FULL_STATUS, 65535, data);
	assert_good(a);
	assert_eq(a.moved, 65535);
	total = get_be32(data + 4);
	assert_true(total > 65535);
	for (uint32_t at = 8; at + 32 < 65535; at += 24 + get_be32(data + at + 20))
		assert_eq(get_be64(data + at), 1);
	/* One too many in a list: none of it. */
	assert_good(pr_out(&s.a, CLEAR, 0, 1, 0, 0));
	n += put_id(ids + n, "iqn.2025-01.test:b", "801234560002");
	assert_true(28 + n < 65535);
	assert_sense(register_ports(&s.a, 0, 1, ids, n), SCSI_ILLEGAL_REQUEST, 0x5504);
	assert_eq(keys(&s.a, NULL, NULL), 0);
	lab_close(&s);
	free(ids);
	free(data);
}

static struct answer
move(struct initiator *i, uint64_t key, uint64_t action_key, unsigned flags, unsigned port,
     const char *name, const char *isid)
{
	uint8_t list[24 + 256];
	uint32_t n = put_id(list + 24, name, isid);

	put_list(list, key, action_key, 0);
	list[17] = (uint8_t)flags;
	put_be16(list + 18, (uint16_t)port);
	put_be32(list + 20, n);
	return scsi_out(i, cdb_out(MOVE, 0, 24 + n), 24 + n, list);
}

TEST(a_reservation_moves_to_another_port)
{
	const char *b = "iqn.2025-01.test:b", *isid = "801234560002";
	uint64_t key, list[3];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	assert_conflict(move(&s.a, 0, 2, 0, 1, b, isid));
	enlist(&s.a, 1);
	assert_conflict(move(&s.a, 1, 2, 0, 1, b, isid)); /* nothing is reserved */
	reserve(&s.a, 1, WE_AR);
	assert_conflict(move(&s.a, 1, 2, 0, 1, b, isid)); /* all hold it */
	assert_good(pr_out(&s.a, RELEASE, WE_AR, 1, 0, 0));
	reserve(&s.a, 1, EA_RO);
	assert_conflict(move(&s.a, 5, 2, 0, 1, b, isid));
	assert_parameter(move(&s.a, 1, 0, 0, 1, b, isid), 8, -1);
	assert_parameter(move(&s.a, 1, 2, 0, 2, b, isid), 18, -1);
	assert_parameter(move(&s.a, 1, 2, 0, 1, b, NULL), 24, -1); /* no port */
	assert_parameter(move(&s.a, 1, 2, 0, 1, "iqn.2025-01.test:a", "801234560001"), 24, -1);
	assert_eq(generation(&s.a), 1);

	assert_good(move(&s.a, 1, 2, 0, 1, b, isid));
	assert_eq(generation(&s.a), 2);
	assert_eq(reserved(&s.a, &key), EA_RO);
	assert_eq(key, 2);
	assert_eq(keys(&s.a, NULL, NULL), 2);
	check_attention(&s.a, 0);
	check_attention(&s.b, 0);
	assert_conflict(move(&s.a, 1, 3, 0, 1, b, isid)); /* it is b's now */

	/* Back, with another key, and who gives it leaves. */
	assert_good(move(&s.b, 2, 5, 0x02, 1, "iqn.2025-01.test:a", "801234560001"));
	assert_eq(reserved(&s.a, &key), EA_RO);
	assert_eq(key, 5);
	assert_eq(keys(&s.a, list, NULL), 1);
	assert_eq(list[0], 5);
	assert_conflict(write_block(&s.b));
	lab_close(&s);
}

/* ---- what is kept ---------------------------------------------------------------- */

TEST(with_aptpl_all_is_as_it_was_after_a_restart)
{
	static const unsigned actions[] = { READ_KEYS, READ_RESERVATION, READ_FULL_STATUS };
	uint8_t before[COUNT(actions)][512], after[512];
	struct answer a[COUNT(actions)];
	struct lab s;

	for (unsigned t = 0; t < COUNT(types); t++) {
		lab_open(&s, WORDS(), MEMORY);
		assert_good(pr_out(&s.a, REGISTER, 0, 0, 0x1122334455667788, APTPL | ALL_TG_PT));
		assert_good(pr_out(&s.b, REGISTER, 0, 0, 2, APTPL));
		reserve(&s.b, 2, types[t]);
		for (unsigned k = 0; k < COUNT(actions); k++) {
			a[k] = pr_in(&s.a, actions[k], 512, before[k]);
			assert_good(a[k]);
		}
		lab_restart(&s);
		clear_attentions(&s.a);
		clear_attentions(&s.b);
		for (unsigned k = 0; k < COUNT(actions); k++) {
			assert_eq(pr_in(&s.a, actions[k], 512, after).moved, a[k].moved);
			assert_eq(get_be32(after), 0); /* PRGENERATION: SPC-4 wants it so */
			assert_mem(after + 4, before[k] + 4, a[k].moved - 4);
		}
		login(&s, &s.c, "c", 3);
		clear_attentions(&s.c);
		assert_conflict(write_block(&s.c));
		assert_good(write_block(&s.b));
		lab_close(&s);
	}
}

TEST(without_aptpl_a_restart_forgets)
{
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	enlist(&s.a, 1);
	reserve(&s.a, 1, EA);
	assert_eq(s.disk[0].saves, 0); /* and nothing has been written for it */
	lab_restart(&s);
	clear_attentions(&s.b);
	assert_eq(keys(&s.b, NULL, NULL), 0);
	assert_good(write_block(&s.b));

	/* The last word counts. */
	clear_attentions(&s.a);
	assert_good(pr_out(&s.a, IGNORE, 0, 0, 1, APTPL));
	assert_good(pr_out(&s.b, IGNORE, 0, 0, 2, 0));
	reserve(&s.a, 1, EA);
	lab_restart(&s);
	clear_attentions(&s.b);
	assert_eq(keys(&s.b, NULL, NULL), 0);
	lab_close(&s);
}

TEST(the_answer_waits_until_it_is_kept_and_others_wait_their_turn)
{
	uint8_t list[2][24];
	struct task task[2] = { { .hold = false }, { .hold = false } };
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	s.hold_saves = true;
	put_list(list[0], 0, 1, APTPL);
	put_list(list[1], 0, 2, APTPL);
	task_send(&task[0], &s.a, 0, cdb_out(REGISTER, 0, 24), DATA_OUT, 24, list[0], SCSI_SIMPLE);
	task_send(&task[1], &s.b, 0, cdb_out(REGISTER, 0, 24), DATA_OUT, 24, list[1], SCSI_SIMPLE);
	lab_settle(&s);
	assert_false(task[0].done || task[1].done);
	assert_eq(s.disk[0].saves, 1);
	assert_eq(keys(&s.a, NULL, NULL), 0); /* it is not, before it is kept */
	lab_keep(&s);
	assert_good(task_wait(&task[0]));
	lab_settle(&s);
	assert_false(task[1].done);
	assert_eq(s.disk[0].saves, 2);
	assert_eq(keys(&s.a, NULL, NULL), 1);
	lab_keep(&s);
	assert_good(task_wait(&task[1]));
	s.hold_saves = false;
	lab_restart(&s);
	clear_attentions(&s.a);
	assert_eq(keys(&s.a, NULL, NULL), 2);
	lab_close(&s);
}

TEST(what_cannot_be_kept_has_not_happened)
{
	uint64_t key;
	struct lab s;

	log_nothing();
	lab_open(&s, WORDS(), MEMORY);
	assert_good(pr_out(&s.a, REGISTER, 0, 0, 1, APTPL));
	assert_good(pr_out(&s.b, REGISTER, 0, 0, 2, APTPL));
	reserve(&s.a, 1, EA);
	s.save_error = -5;
	assert_sense(pr_out(&s.b, PREEMPT, WE, 2, 1, 0), SCSI_HARDWARE_ERROR, 0x4400);
	assert_sense(pr_out(&s.a, REGISTER, 0, 1, 0, 0), SCSI_HARDWARE_ERROR, 0x4400);
	check_attention(&s.a, 0);
	assert_eq(reserved(&s.b, &key), EA);
	assert_eq(key, 1);
	assert_eq(keys(&s.a, NULL, NULL), 2);
	assert_eq(generation(&s.a), 2);
	s.save_error = 0;
	assert_good(pr_out(&s.b, PREEMPT, WE, 2, 1, 0));
	check_attention(&s.a, UNREGISTERED);
	lab_restart(&s);
	clear_attentions(&s.a);
	assert_eq(reserved(&s.a, &key), WE);
	assert_eq(key, 2);
	lab_close(&s);
}

/* Aborted while it waits for its turn: nothing of it. While it is kept: it is done, not answered.
 */
TEST(aborted_while_something_is_kept)
{
	uint8_t list[2][24];
	struct task task[2] = { { .hold = false }, { .hold = false } };
	struct function reset = { .done = false };
	uint64_t left[2];
	struct lab s;

	open_three(&s);
	s.hold_saves = true;
	put_list(list[0], 0, 1, APTPL);
	task_send(&task[0], &s.a, 0, cdb_out(REGISTER, 0, 24), DATA_OUT, 24, list[0], SCSI_SIMPLE);
	put_list(list[1], 0, 2, APTPL);
	/* PREEMPT AND ABORT does not wait for others to end, and so for its turn. */
	task_send(&task[1], &s.b, 0, cdb_out(PREEMPT_AND_ABORT, WE, 24), DATA_OUT, 24, list[1],
		  SCSI_SIMPLE);
	assert_false(task[0].done || task[1].done);
	function_start(&reset, &s.c, SCSI_LOGICAL_UNIT_RESET, 0, NULL);
	lab_settle(&s);
	assert_false(reset.done); /* not before what it aborts has ended */
	lab_keep(&s);
	assert_eq(function_wait(&reset), SCSI_FUNCTION_COMPLETE);
	assert_true(task[0].done && task[0].answer.aborted);
	assert_true(task[1].done && task[1].answer.aborted);
	clear_attentions(&s.a);
	assert_eq(keys(&s.a, left, NULL), 1);
	assert_eq(left[0], 1);
	assert_eq(s.disk[0].saves, 1);
	s.hold_saves = false;
	lab_close(&s);
}

TEST(a_unit_and_a_session_go_after_what_is_being_kept)
{
	uint8_t list[24];
	struct task task = { .hold = false };
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	put_list(list, 0, 1, APTPL);
	task_send(&task, &s.a, 0, cdb_out(REGISTER, 0, 24), DATA_OUT, 24, list, SCSI_SIMPLE);
	logout(&s.a);
	assert_true(task.done && task.answer.aborted);
	put_list(list, 0, 2, APTPL);
	task_send(&task, &s.b, 0, cdb_out(REGISTER, 0, 24), DATA_OUT, 24, list, SCSI_SIMPLE);
	lab_remove(&s, 0);
	assert_good(task_wait(&task));
	assert_eq(s.disk[0].saves, 2);
	lab_close(&s);
}

TEST(what_we_did_not_write_is_refused)
{
	static const char *const bad[] = {
		"",
		"{}",
		"[]",
		"{\"type\":0}",
		"{\"type\":0,\"registrations\":{}}",
		"{\"type\":3,\"registrations\":[]}",
		"{\"type\":2,\"registrations\":[]}",
		"{\"type\":0,\"registrations\":[],\"more\":1}",
		"{\"type\":0,\"registrations\":[1]}",
		"{\"type\":-1,\"registrations\":[]}",
#define ONE(isid, key, holder) \
	"{\"initiator\":\"iqn.x\",\"isid\":\"" isid "\",\"key\":\"" key \
	"\",\"all-target-ports\":false,\"holder\":" holder "}"
		"{\"type\":0,\"registrations\":[" ONE("000000000001", "0000000000000001",
						      "true") "]}",
		"{\"type\":4294967297,\"registrations\":[" ONE("000000000001", "0000000000000001",
							       "true") "]}",
		"{\"type\":1,\"registrations\":[" ONE("000000000001", "0000000000000001",
						      "false") "]}",
		"{\"type\":7,\"registrations\":[" ONE("000000000001", "0000000000000001",
						      "true") "]}",
		"{\"type\":2,\"registrations\":[" ONE("000000000001", "0000000000000001",
						      "true") "]}",
		"{\"type\":0,\"registrations\":[" ONE("000000000001", "0000000000000000",
						      "false") "]}",
		"{\"type\":0,\"registrations\":[" ONE("00000000001", "0000000000000001",
						      "false") "]}",
		"{\"type\":0,\"registrations\":[" ONE("00000000000g", "0000000000000001",
						      "false") "]}",
		"{\"type\":0,\"registrations\":[" ONE("000000000001", "0000000000000001",
						      "false") "," ONE("000000000001",
								       "0000000000000002",
								       "false") "]}",
		"{\"type\":1,\"registrations\":[" ONE("000000000001", "0000000000000001",
						      "true") "," ONE("000000000002",
								      "0000000000000002",
								      "true") "]}",
	};
	static const char good[] =
		"{\"type\":1,\"registrations\":[" ONE("000000000001", "0000000000000001",
						      "true") "]}";
	struct scsi_unit unit = { .name = "kept", .uuid = { 1 } };
	struct pl_error err;
	struct scsi_lu *lu;
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	unit.params = s.disk[0].unit;
	unit.export = s.disk[0].f.ex;
	unit.channel = s.disk[0].f.ch;
	unit.capabilities = pl_export_capabilities(unit.export);
	for (unsigned k = 0; k < COUNT(bad); k++) {
		unit.saved = bad[k];
		if (scsi_lu_new(s.target, &unit, &lu, &err) != -22)
			test_fail(__FILE__, __LINE__, "taken: %s", bad[k]);
		assert_contains(err.text, "unit kept");
	}
	/* What it is without that one fault. */
	unit.saved = s.disk[0].saved = strdup(good);
	lab_restart(&s);
	clear_attentions(&s.a);
	assert_eq(reserved(&s.a, NULL), WE);
	lab_close(&s);
}

/* A unit for which nothing can be kept does not promise it. */
TEST(where_nothing_can_be_kept_aptpl_is_refused)
{
	struct scsi_unit unit = { .name = "forgets", .uuid = { 1 } };
	struct pl_error err;
	uint8_t data[8];
	struct lab s;

	lab_open(&s, WORDS(), MEMORY);
	unit.params = s.disk[0].unit;
	unit.export = s.disk[0].f.ex;
	unit.channel = s.disk[0].f.ch;
	unit.capabilities = pl_export_capabilities(unit.export);
	lab_remove(&s, 0);
	s.disk[0].gone = false;
	if (scsi_lu_new(s.target, &unit, &s.disk[0].lu, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	scsi_nexus_map(s.a.nexus, 0, s.disk[0].lu);
	clear_attentions(&s.a);
	assert_good(pr_in(&s.a, REPORT_CAPABILITIES, 8, data));
	assert_eq(data[2], 0x1c);
	assert_parameter(pr_out(&s.a, REGISTER, 0, 0, 1, APTPL), 20, 0);
	assert_parameter(pr_out(&s.a, IGNORE, 0, 0, 1, APTPL), 20, 0);
	assert_eq(keys(&s.a, NULL, NULL), 0);
	enlist(&s.a, 1);
	lab_close(&s);
}

/* ---- at random, against a model ---------------------------------------------------- */

enum { PORTS = 3, KEYS = 4, NOBODY = -1 };

/* What SPC-4 says, for three ports. */
struct model {
	uint64_t key[PORTS]; /* 0: not registered */
	unsigned type;
	int holder; /* of types that one holds */
	uint32_t generation;
	bool kept;
	int reserver; /* by RESERVE */
	uint16_t told[PORTS];
};

static bool
all_hold(const struct model *m)
{
	return m->type >= WE_AR;
}

static bool
m_holds(const struct model *m, int who)
{
	return m->key[who] != 0 && m->type != 0 && (all_hold(m) || m->holder == who);
}

static bool
m_shares(const struct model *m, int who)
{
	return m_holds(m, who) || (m->key[who] != 0 && m->type >= WE_RO);
}

static void
m_tell(struct model *m, int but, uint16_t asc)
{
	for (int i = 0; i < PORTS; i++) {
		if (i != but && m->key[i] != 0)
			m->told[i] = asc;
	}
}

static void
m_unregister(struct model *m, int who)
{
	bool held = m_holds(m, who), registrants = m->type == WE_RO || m->type == EA_RO;

	m->key[who] = 0;
	if (!held)
		return;
	if (all_hold(m)) {
		for (int i = 0; i < PORTS; i++) {
			if (m->key[i] != 0)
				return;
		}
	}
	m->type = 0;
	if (registrants)
		m_tell(m, who, RELEASED);
}

struct step {
	int who;
	unsigned action, type;
	uint64_t key, action_key;
	bool kept, unreg;
	int to;
};

/* Status, or the sense's code. */
static unsigned
m_register(struct model *m, const struct step *s)
{
	bool known = m->key[s->who] != 0;

	if (s->action == REGISTER && s->key != m->key[s->who])
		return CONFLICT;
	if (!known && s->action_key == 0)
		return SCSI_GOOD;
	m->generation++;
	m->kept = s->kept;
	if (s->action_key == 0)
		m_unregister(m, s->who);
	else
		m->key[s->who] = s->action_key;
	return SCSI_GOOD;
}

static unsigned
m_preempt(struct model *m, const struct step *s)
{
	bool all = all_hold(m), takes, found = false;
	unsigned before = m->type, left = 0;

	if (s->action_key == 0 && !all)
		return 0x2600;
	takes = all ? s->action_key == 0 : m->type != 0 && m->key[m->holder] == s->action_key;
	for (int i = 0; i < PORTS; i++)
		found = found || (m->key[i] != 0 && m->key[i] == s->action_key);
	if (!takes && !found)
		return CONFLICT;
	for (int i = 0; i < PORTS; i++) {
		bool named = m->key[i] != 0 && (s->action_key == 0 || m->key[i] == s->action_key);

		if (!named || (takes && i == s->who))
			continue;
		m->key[i] = 0;
		if (i != s->who)
			m->told[i] = UNREGISTERED;
	}
	if (takes) {
		m->type = s->type;
		m->holder = s->who;
		if (before != m->type)
			m_tell(m, s->who, RELEASED);
	}
	for (int i = 0; i < PORTS; i++)
		left += m->key[i] != 0;
	if (left == 0)
		m->type = 0;
	m->generation++;
	return SCSI_GOOD;
}

static unsigned
m_move(struct model *m, const struct step *s)
{
	if (!m_holds(m, s->who) || all_hold(m))
		return CONFLICT;
	if (s->action_key == 0 || s->to == s->who)
		return 0x2600;
	m->key[s->to] = s->action_key;
	m->holder = s->to;
	if (s->unreg)
		m->key[s->who] = 0;
	m->kept = s->kept;
	m->generation++;
	return SCSI_GOOD;
}

static unsigned
m_step(struct model *m, const struct step *s)
{
	if (m->reserver != NOBODY)
		return CONFLICT;
	if (s->action == REGISTER || s->action == IGNORE)
		return m_register(m, s);
	if (m->key[s->who] == 0 || m->key[s->who] != s->key)
		return CONFLICT;
	switch (s->action) {
	case RESERVE:
		if (m->type != 0)
			return m_holds(m, s->who) && m->type == s->type ? SCSI_GOOD : CONFLICT;
		m->type = s->type;
		m->holder = s->who;
		return SCSI_GOOD;
	case RELEASE:
		if (!m_holds(m, s->who))
			return SCSI_GOOD;
		if (m->type != s->type)
			return 0x2604;
		if (m->type >= WE_RO)
			m_tell(m, s->who, RELEASED);
		m->type = 0;
		return SCSI_GOOD;
	case CLEAR:
		m_tell(m, s->who, PREEMPTED);
		memset(m->key, 0, sizeof m->key);
		m->type = 0;
		m->generation++;
		return SCSI_GOOD;
	case MOVE: return m_move(m, s);
	default: return m_preempt(m, s);
	}
}

static unsigned
m_reserve(struct model *m, int who, bool release)
{
	for (int i = 0; i < PORTS; i++) {
		if (m->key[i] != 0)
			return m_shares(m, who) ? SCSI_GOOD : CONFLICT;
	}
	if (release) {
		if (m->reserver == who)
			m->reserver = NOBODY;
		return SCSI_GOOD;
	}
	if (m->reserver != NOBODY && m->reserver != who)
		return CONFLICT;
	m->reserver = who;
	return SCSI_GOOD;
}

static unsigned
outcome(struct answer a)
{
	return a.status == SCSI_CHECK_CONDITION ? a.asc : a.status;
}

static struct initiator *
port(struct lab *s, int who)
{
	return who == 0 ? &s->a : who == 1 ? &s->b : &s->c;
}

static void
port_in(struct lab *s, int who)
{
	login(s, port(s, who), (const char *const[]){ "a", "b", "c" }[who], (uint8_t)(who + 1));
	clear_attentions(port(s, who));
}

static unsigned
do_step(struct lab *s, const struct step *step)
{
	char name[64], isid[32];

	if (step->action != MOVE)
		return outcome(pr_out(port(s, step->who), step->action, step->type, step->key,
				      step->action_key, step->kept ? APTPL : 0));
	snprintf(name, sizeof name, "iqn.2025-01.test:%c", "abc"[step->to]);
	snprintf(isid, sizeof isid, "80123456000%d", step->to + 1);
	return outcome(move(port(s, step->who), step->key, step->action_key,
			    (step->kept ? 1 : 0) | (step->unreg ? 2 : 0), 1, name, isid));
}

static int
compare_keys(const void *a, const void *b)
{
	const uint64_t *x = a, *y = b;

	return *x < *y ? -1 : *x > *y;
}

/* Whatever an initiator can see of it. */
static void
check_model(struct lab *s, struct model *m)
{
	uint64_t got[PORTS], want[PORTS], key = 0;
	uint32_t count = 0, gen;

	for (int i = 0; i < PORTS; i++) {
		bool reading =
			m->type == 0 || m->type == WE || m->type == WE_RO || m->type == WE_AR;
		bool may =
			m->reserver == NOBODY ? m->type == 0 || m_shares(m, i) : m->reserver == i;
		struct answer a = ready(port(s, i));

		if (m->told[i] != 0) {
			assert_sense(a, SCSI_UNIT_ATTENTION, m->told[i]);
			a = ready(port(s, i));
		}
		m->told[i] = 0;
		assert_status(a, m->reserver == NOBODY || m->reserver == i ? SCSI_GOOD : CONFLICT);
		assert_status(write_block(port(s, i)), may ? SCSI_GOOD : CONFLICT);
		assert_status(read_block(port(s, i)),
			      may || (m->reserver == NOBODY && reading) ? SCSI_GOOD : CONFLICT);
		if (m->key[i] != 0)
			want[count++] = m->key[i];
	}
	if (m->reserver != NOBODY)
		return;
	assert_eq(keys(&s->a, got, &gen), count);
	assert_eq(gen, m->generation);
	qsort(got, count, sizeof got[0], compare_keys);
	qsort(want, count, sizeof want[0], compare_keys);
	if (count > 0)
		assert_mem(got, want, count * sizeof got[0]);
	assert_eq(reserved(&s->b, &key), m->type);
	if (m->type != 0)
		assert_eq(key, all_hold(m) ? 0 : m->key[m->holder]);
}

static void
restart(struct lab *s, struct model *m)
{
	lab_restart(s);
	clear_attentions(&s->a);
	clear_attentions(&s->b);
	port_in(s, 2);
	if (!m->kept) {
		memset(m->key, 0, sizeof m->key);
		m->type = 0;
	}
	m->generation = 0;
	m->reserver = NOBODY;
	/* Of nothing there is nothing to keep. */
	m->kept = m->key[0] != 0 || m->key[1] != 0 || m->key[2] != 0;
}

static void
something_else(struct lab *s, struct model *m, uint64_t *seed)
{
	int who = (int)random_below(seed, PORTS);

	switch (random_below(seed, 8)) {
	case 0: restart(s, m); break;
	case 1:
		assert_eq(manage(port(s, who), SCSI_LOGICAL_UNIT_RESET, 0, NULL),
			  SCSI_FUNCTION_COMPLETE);
		for (int i = 0; i < PORTS; i++)
			clear_attentions(port(s, i));
		m->reserver = NOBODY;
		break;
	case 2:
		logout(port(s, who));
		if (m->reserver == who)
			m->reserver = NOBODY;
		port_in(s, who);
		break;
	case 3:
	case 4:
	case 5:
		assert_eq(outcome(scsi_none(port(s, who), cdb_hex("160000000000"))),
			  m_reserve(m, who, false));
		break;
	default:
		assert_eq(outcome(scsi_none(port(s, who), cdb_hex("170000000000"))),
			  m_reserve(m, who, true));
		break;
	}
}

/* Mostly what makes sense, so that it gets somewhere. */
static struct step
some_step(const struct model *m, uint64_t *seed)
{
	struct step s = { .who = (int)random_below(seed, PORTS),
			  .action = (unsigned)random_below(seed, MOVE + 1),
			  .type = types[random_below(seed, COUNT(types))],
			  .to = (int)random_below(seed, PORTS),
			  .kept = random_below(seed, 2) == 0,
			  .unreg = random_below(seed, 2) == 0,
			  .action_key = random_below(seed, KEYS) };

	if (m->type != 0 && random_below(seed, 2) == 0)
		s.type = m->type;
	if (s.action == CLEAR && random_below(seed, 3) != 0)
		s.action = IGNORE;
	s.key = random_below(seed, 8) == 0 ? random_below(seed, KEYS) : m->key[s.who];
	return s;
}

static void
at_random(unsigned steps)
{
	uint64_t seed = test_seed();
	struct model m = { .reserver = NOBODY };
	struct lab s;

	open_three(&s);
	for (unsigned n = 0; n < steps; n++) {
		if (random_below(&seed, 8) == 0) {
			something_else(&s, &m, &seed);
		} else {
			struct step step = some_step(&m, &seed);
			unsigned want = m_step(&m, &step), got = do_step(&s, &step);

			if (got != want)
				test_fail(__FILE__, __LINE__,
					  "step %u: port %d, action %u, type %u, key %" PRIu64
					  ", %" PRIu64 ", to %d: %04x instead of %04x",
					  n, step.who, step.action, step.type, step.key,
					  step.action_key, step.to, got, want);
		}
		check_model(&s, &m);
	}
	lab_close(&s);
}

TEST(whatever_three_ports_do_comes_to_what_the_standard_says)
{
	at_random(1000);
}

TEST_SLOW(whatever_three_ports_do_comes_to_what_the_standard_says_for_long)
{
	at_random(100000);
}
