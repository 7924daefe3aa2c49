/* torture.c - what `platter torture` takes for lost, torn or out of order, by tables. */
#include "../../tools/torture-judge.h"

#include "../../tools/torture-target.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define RUN   0x1234567890abcdef
#define UNIT  512
#define CELLS 64 /* of the target, which is judged as a whole */

/* ---- stamps ---------------------------------------------------------------------- */

TEST(a_stamp_tells_what_it_was_made_of)
{
	struct stamp in = { RUN, 5, 77, 3, 9, 1000 }, out;
	char cell[CELL];

	stamp_write(cell, &in);
	assert_eq(stamp_read(cell, &out), CELL_STAMP);
	assert_eq(out.run, in.run);
	assert_eq(out.place, in.place);
	assert_eq(out.seq, in.seq);
	assert_eq(out.first, in.first);
	assert_eq(out.count, in.count);
	assert_eq(out.intents, in.intents);
}

TEST(a_stamp_with_any_bit_changed_is_none)
{
	struct stamp in = { RUN, 5, 77, 3, 9, 0 }, out;
	char cell[CELL];

	for (unsigned bit = 0; bit < CELL * 8; bit++) {
		stamp_write(cell, &in);
		cell[bit / 8] ^= (char)(1 << bit % 8);
		assert_eq(stamp_read(cell, &out), CELL_OTHER);
	}
	memset(cell, 0, sizeof cell);
	assert_eq(stamp_read(cell, &out), CELL_ZERO);
}

TEST(half_of_one_stamp_and_half_of_another_is_none)
{
	struct stamp a = { RUN, 5, 77, 3, 9, 0 }, b = { RUN, 5, 78, 3, 9, 0 }, out;
	char cell[2][CELL];

	for (unsigned cut = 1; cut < CELL; cut++) {
		stamp_write(cell[0], &a);
		stamp_write(cell[1], &b);
		memcpy(cell[0], cell[1], cut);
		if (memcmp(cell[0], cell[1], CELL) != 0)
			assert_eq(stamp_read(cell[0], &out), CELL_OTHER);
	}
}

/* ---- what happened, and what is there -------------------------------------------- */

/*
 * A story, word by word. Operations are numbered in their order, from 1 on:
 *
 *	wA-B	WRITE of cells A to B - 1 is sent	zA-B	ZERO	tA-B	TRIM
 *	aN	operation N is answered			fN	the same; it had FUA
 *	F	a FLUSH is sent				D	... and answered
 *
 * and what the target has then:
 *
 *	=N:A-B	cells have what operation N left	0:A-B	zeroes
 *	?:A-B	no stamp				x:A-B	another run's
 *	m:A-B	what belongs to the neighbour on the right
 *	-:A-B	cannot be read
 */
struct story {
	const char *told, *there;
	const char *found; /* verdict, first cell, last cell; in the order of cells */
};

struct teller {
	struct ledger ledger;
	char data[CELLS * CELL];
	bool unreadable[CELLS];
	struct {
		char kind;
		uint64_t first, end;
	} ops[100];
	unsigned count; /* operations */
	uint64_t records, intents, flush_sent;
};

static void
tell(struct teller *t, struct record r)
{
	r.run = RUN;
	r.number = t->records++;
	r.issued = t->count;
	assert_eq(ledger_feed(&t->ledger, &r), 0);
}

static void
put_stamps(struct teller *t, uint64_t run, unsigned op, uint64_t first, uint64_t end,
	   unsigned shift)
{
	for (uint64_t c = first; c < end; c++) {
		struct stamp s = { run,
				   c + shift,
				   op,
				   t->ops[op].first,
				   (uint32_t)(t->ops[op].end - t->ops[op].first),
				   t->intents };

		stamp_write(t->data + c * CELL, &s);
	}
}

static void
happen(struct teller *t, const char *word)
{
	static const char letters[] = "wzt";
	static const uint8_t kinds[] = { TORTURE_WRITE, TORTURE_ZERO, TORTURE_TRIM };
	unsigned a = 0, b = 0, n;
	struct record r = { 0 };

	if (strchr(letters, *word) != NULL && sscanf(word + 1, "%u-%u", &a, &b) == 2) {
		t->count++;
		t->ops[t->count].kind = *word;
		t->ops[t->count].first = a;
		t->ops[t->count].end = b;
		r.kind = RECORD_INTENT;
		n = t->count;
	} else if (*word == 'F') {
		t->count++;
		t->flush_sent = t->records;
		return;
	} else if (*word == 'D') {
		tell(t, (struct record){ .kind = RECORD_ACK,
					 .what = TORTURE_FLUSH,
					 .seq = t->count,
					 .ref = t->flush_sent });
		return;
	} else {
		assert_eq(sscanf(word + 1, "%u", &n), 1);
		r.kind = RECORD_ACK;
		r.flags = *word == 'f' ? RECORD_FUA : 0;
	}
	r.what = kinds[strchr(letters, t->ops[n].kind) - letters];
	r.seq = n;
	r.offset = t->ops[n].first * CELL;
	r.length = (t->ops[n].end - t->ops[n].first) * CELL;
	if (r.kind == RECORD_ACK || r.what != TORTURE_WRITE)
		tell(t, r);
	t->intents += r.kind == RECORD_INTENT && r.what != TORTURE_WRITE;
}

static void
lie(struct teller *t, const char *word)
{
	unsigned op = 0, a, b;

	assert_eq(sscanf(strchr(word, ':') + 1, "%u-%u", &a, &b), 2);
	switch (*word) {
	case '=':
		assert_eq(sscanf(word + 1, "%u", &op), 1);
		put_stamps(t, RUN, op, a, b, 0);
		break;
	case 'x': put_stamps(t, RUN + 1, 1, a, b, 0); break;
	case 'm': put_stamps(t, RUN, 1, a, b, 1); break;
	case '0': memset(t->data + a * CELL, 0, (b - a) * CELL); break;
	case '?': memset(t->data + a * CELL, '?', (b - a) * CELL); break;
	case '-': memset(t->unreadable + a, true, b - a); break;
	}
}

static void
each_word(struct teller *t, const char *text, void (*each)(struct teller *t, const char *word))
{
	char *copy = strdup(text), *rest = copy, *word;

	while ((word = strsep(&rest, " ")) != NULL) {
		if (*word != '\0')
			each(t, word);
	}
	free(copy);
}

static void
told(const struct story *story, bool damaged)
{
	static const char *const names[VERDICTS] = { "kept",    "lost",      "reordered",
						     "torn",    "misplaced", "foreign",
						     "garbled", "unreadable" };
	struct record begin = { .kind = RECORD_BEGIN,
				.run = RUN,
				.length = CELLS * CELL,
				.ref = CELLS * CELL,
				.issued = (uint64_t)UNIT << 32 };
	struct teller t = { .records = 1 };
	struct findings f = { 0 };
	char found[500] = "";

	assert_eq(ledger_open(&t.ledger, &begin), 0);
	each_word(&t, story->told, happen);
	each_word(&t, story->there, lie);
	for (unsigned c = 0; c < CELLS; c += UNIT / CELL)
		assert_eq(judge_units(&t.ledger, c, t.unreadable[c] ? NULL : t.data + c * CELL,
				      UNIT / CELL, &f),
			  0);
	judge_all(&t.ledger, &f, damaged);
	for (size_t i = 0; i < f.count; i++)
		snprintf(found + strlen(found), sizeof found - strlen(found), "%s%s %u-%u",
			 i > 0 ? ", " : "", names[f.list[i].verdict], (unsigned)f.list[i].place,
			 (unsigned)(f.list[i].place + f.list[i].count));
	printf("%s | %s\n", story->told, story->there);
	assert_str(found, story->found);
	free(f.list);
	ledger_close(&t.ledger);
}

#define TELL(stories) \
	for (unsigned i_ = 0; i_ < sizeof(stories) / sizeof *(stories); i_++) \
	told(&(stories)[i_], false)

TEST(what_was_acknowledged_as_durable_must_be_there)
{
	static const struct story stories[] = {
		/* FUA */
		{ "w0-8 f1", "=1:0-8", "" },
		{ "w0-8 f1", "0:0-8", "lost 0-8" },
		{ "w0-8 f1 w0-8", "=1:0-8", "" },
		{ "w0-8 f1 w0-8", "=2:0-8", "" },
		{ "w0-8 f1 w0-8 f2", "=1:0-8", "lost 0-8" },
		{ "w0-16 f1 w8-16 f2", "=1:0-16", "lost 8-16" },
		{ "w0-16 f1 w8-16 a2", "=1:0-16", "" },
		/* FLUSH: what was answered before it was sent */
		{ "w0-8 a1 F D", "=1:0-8", "" },
		{ "w0-8 a1 F D", "0:0-8", "lost 0-8" },
		{ "w0-8 F a1 D", "0:0-8", "" },
		{ "w0-8 a1 F", "0:0-8", "" },
		{ "w0-8 F a1 D F D", "0:0-8", "lost 0-8" },
		{ "w0-8 a1 w8-16 F a2 D", "0:0-16", "lost 0-8" },
		/* not answered, not flushed */
		{ "w0-8", "0:0-8", "" },
		{ "w0-8 a1", "0:0-8", "" },
		/* a FLUSH does not make the older of two newer than the other */
		{ "w0-8 a1 w0-8 f2 F D", "=2:0-8", "" },
		{ "w0-8 a1 w0-8 f2 F D", "=1:0-8", "lost 0-8" },
	};

	TELL(stories);
}

TEST(zeroes_are_what_a_zero_leaves_and_nothing_else)
{
	static const struct story stories[] = {
		{ "w0-16 f1 z0-16 f2", "0:0-16", "" },
		{ "w0-16 f1 z0-16 f2", "=1:0-16", "lost 0-16" },
		{ "w0-16 f1 z0-16", "0:0-16", "" },
		{ "w0-16 f1 z0-16", "=1:0-16", "" },
		{ "w0-16 f1 z0-8", "0:0-16", "lost 8-16" },
		{ "w0-8 f1 z0-8 f2 w0-8 f3", "0:0-8", "lost 0-8" },
		{ "w0-8 f1 z0-8 a2 F D", "=1:0-8", "lost 0-8" },
		{ "w0-8 f1 z0-8 f2 w0-8", "=3:0-8", "" },
	};

	TELL(stories);
}

TEST(after_a_trim_there_may_be_anything)
{
	static const struct story stories[] = {
		{ "w0-8 f1 t0-8 f2", "=1:0-8", "" },
		{ "w0-8 f1 t0-8 f2", "0:0-8", "" },
		{ "w0-8 f1 t0-8", "?:0-8", "" },
		{ "w0-8 f1 t0-8", "m:0-8", "" },
		{ "w0-16 f1 t0-8 f2", "0:0-16", "lost 8-16" },
		{ "w0-8 f1 t0-8 f2 w0-8 f3", "0:0-8", "lost 0-8" },
		{ "w0-8 f1 t0-8 f2 w0-8 a3", "0:0-8", "" },
		/* an older one does not excuse */
		{ "w0-8 f1 t0-8 f2 w0-8 f3 w0-8", "=1:0-8", "lost 0-8" },
	};

	TELL(stories);
}

TEST(what_was_sent_later_must_not_outlive_what_was_durable_before)
{
	static const struct story stories[] = {
		{ "w0-8 f1 w0-8 f2 w8-16", "=1:0-8 =3:8-16", "reordered 0-8" },
		{ "w0-8 f1 w0-8 w8-16 f2", "=1:0-8 =3:8-16", "lost 0-8" },
		{ "w0-8 f1 w0-8 f2 w8-16", "=1:0-8 0:8-16", "lost 0-8" },
		{ "w0-8 a1 F D w8-16", "0:0-8 =3:8-16", "reordered 0-8" },
		{ "w0-8 a1 F w8-16 D", "0:0-8 =3:8-16", "lost 0-8" },
	};

	TELL(stories);
}

TEST(a_unit_has_all_or_nothing_of_a_write)
{
	static const struct story stories[] = {
		{ "w0-16 f1 w0-16", "=1:0-8 =2:8-16", "" },
		{ "w0-16 f1 w0-16", "=1:0-4 =2:4-16", "torn 0-4" },
		{ "w0-16 f1 w0-16", "=2:0-12 =1:12-16", "torn 12-16" },
		{ "w0-8 f1 w0-8", "=2:0-1 =1:1-8", "torn 1-8" },
		/* acknowledged: worse than torn */
		{ "w0-8 f1 w0-8 f2", "=2:0-4 =1:4-8", "lost 4-8" },
		/* a write of a part of a unit leaves the rest */
		{ "w0-8 f1 w2-5", "=1:0-2 =2:2-5 =1:5-8", "" },
		{ "w0-8 f1 w2-5", "=1:0-2 =2:2-4 =1:4-8", "torn 4-5" },
		/* and may be covered itself */
		{ "w0-8 f1 w0-8 w2-5", "=2:0-2 =3:2-5 =2:5-8", "" },
		{ "w0-8 f1 w0-8 w2-5", "=1:0-2 =3:2-5 =1:5-8", "" },
		{ "w0-8 f1 w0-8 z0-8", "=2:0-4 0:4-8", "" },
	};

	TELL(stories);
}

TEST(what_does_not_belong_there_is_told_apart)
{
	static const struct story stories[] = {
		{ "w0-16 f1", "=1:0-8 ?:8-16", "garbled 8-16" },
		{ "w0-16 f1", "=1:0-8 x:8-16", "foreign 8-16" },
		{ "w0-16 f1", "m:0-8 =1:8-16", "misplaced 0-8" },
		{ "w0-16 f1", "=1:0-8 -:8-16", "unreadable 8-16" },
		/* where nothing was promised there may be what was there before */
		{ "w0-8", "?:0-8", "" },
		{ "w0-8", "x:0-8", "" },
		{ "w0-8", "-:0-8", "" },
		/* but what this run wrote to another place was not */
		{ "w0-8", "m:0-8", "misplaced 0-8" },
	};

	TELL(stories);
}

/* Each but those of stamps that are older might come of a ZERO or TRIM that is not known. */
TEST(a_damaged_journal_accuses_nobody_of_what_it_may_have_told)
{
	static const struct story stories[] = {
		{ "w0-8 f1", "0:0-8", "" },
		{ "w0-8 f1", "?:0-8", "" },
		{ "w0-8 f1", "x:0-8", "" },
		{ "w0-8 f1 w0-8 f2", "=1:0-8", "lost 0-8" },
		{ "w0-8 f1", "m:0-8", "misplaced 0-8" },
	};

	for (unsigned i = 0; i < sizeof stories / sizeof *stories; i++)
		told(&stories[i], true);
}

/* ---- journals that are none ------------------------------------------------------ */

TEST(numbers_that_cannot_be_are_refused)
{
	const struct record good = { .kind = RECORD_BEGIN,
				     .run = RUN,
				     .offset = 4096,
				     .length = 4096,
				     .ref = 8192,
				     .issued = (uint64_t)512 << 32 };
	struct record bad[8];
	struct ledger l;

	for (unsigned i = 0; i < 8; i++)
		bad[i] = good;
	bad[0].issued = 0;
	bad[1].issued = (uint64_t)513 << 32;
	bad[2].issued = (uint64_t)(1u << 31) << 32;
	bad[3].offset = 100;
	bad[4].length = 0;
	bad[5].length = 8192;
	bad[6].offset = UINT64_MAX - 511;
	bad[7].length = UINT64_MAX - 511;
	for (unsigned i = 0; i < 8; i++) {
		assert_eq(ledger_open(&l, &bad[i]), -EINVAL);
		ledger_close(&l);
	}
	assert_eq(ledger_open(&l, &good), 0);
	for (unsigned i = 0; i < 8; i++) {
		struct record r = { .kind = RECORD_ACK,
				    .what = TORTURE_WRITE,
				    .seq = 1,
				    .offset = 4096,
				    .length = 64 };

		switch (i) {
		case 0: r.offset = 4032; break;
		case 1: r.offset = 8192; break;
		case 2: r.length = 4160; break;
		case 3: r.length = 0; break;
		case 4: r.length = UINT64_MAX - 63; break;
		case 5: r.offset = UINT64_MAX - 63; break;
		case 6: r.offset = 4097; break;
		case 7: r.what = TORTURE_READ; break;
		}
		assert_eq(ledger_feed(&l, &r), -EINVAL);
	}
	ledger_close(&l);
}

static int
count(void *user, const struct record *r)
{
	(void)r;
	++*(unsigned *)user;
	return 0;
}

TEST(a_journal_is_read_as_it_was_written_and_each_damage_is_seen)
{
	struct record begin = { .run = RUN }, r;
	struct journal_state state;
	struct journal *j;
	struct pl_error err;
	unsigned seen = 0;
	int fd;

	assert_eq(journal_new(NULL, &begin, &j, &err), 0);
	fd = journal_fd(j);
	for (unsigned i = 1; i < 10; i++) {
		r = (struct record){ .kind = RECORD_ACK, .seq = i };
		assert_eq(journal_append(j, &r), 0);
		assert_eq(r.number, i);
	}
	assert_eq(journal_count(j), 10);
	assert_eq(journal_settle(j, 9), 0);
	assert_eq(journal_read(fd, &state, count, &seen, &err), 0);
	assert_eq(seen, 10);
	assert_true(state.records == 10 && state.lacking == 0 && state.tail == 0);

	assert_eq(pwrite(fd, "x", 1, 5 * RECORD + 20), 1);
	assert_eq(journal_read(fd, &state, count, &seen, &err), 0);
	assert_true(state.records == 9 && state.lacking == 1 && state.tail == 0);

	assert_eq(ftruncate(fd, 9 * RECORD + 7), 0);
	assert_eq(journal_read(fd, &state, count, &seen, &err), 0);
	assert_true(state.records == 8 && state.lacking == 1 && state.tail == 7);

	assert_eq(pwrite(fd, "x", 1, 20), 1);
	assert_eq(journal_read(fd, &state, count, &seen, &err), -EINVAL);
	journal_free(j);
}
