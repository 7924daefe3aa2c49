/*
 * journal.c - whatever stands in a journal of `platter torture`, and whatever is on the target,
 * each cell is judged once at most, and nothing is lost that was not owed.
 *
 * Input: records, most of them whole, with numbers that fit or not; then what each cell has.
 */
#include "../../tools/torture-journal.h"
#include "../../tools/torture-judge.h"
#include "../../tools/torture-stamp.h"
#include "../../tools/torture-target.h"
#include "file.h"
#include "fuzz.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define RECORDS 32
#define CELLS   64 /* of the target */
#define UNIT    8  /* cells */
#define RUN     5

/* ---- the journal ----------------------------------------------------------------- */

/* Of a few, or any. */
static uint64_t
few(struct fuzz_input *in, uint64_t of)
{
	uint64_t n = fuzz_next(in, of + 1);

	return n < of ? n : fuzz_next(in, UINT64_C(1) << 62) << 2;
}

static void
put_begin(struct fuzz_input *in, uint8_t *at)
{
	uint64_t first = UNIT * fuzz_next(in, CELLS / UNIT);
	uint64_t count = UNIT * (1 + fuzz_next(in, (CELLS - first) / UNIT));
	struct record r = { .kind = RECORD_BEGIN,
			    .run = RUN,
			    .offset = CELL * first,
			    .length = CELL * count,
			    .ref = CELL * CELLS,
			    .issued = (uint64_t)(CELL * UNIT) << 32 | fuzz_next(in, 256) };

	record_put(at, &r);
}

static void
put_record(struct fuzz_input *in, uint8_t *at, uint64_t number)
{
	uint64_t first = few(in, CELLS);
	struct record r = { .kind = (uint8_t)(1 + fuzz_next(in, 6)),
			    .what = (uint8_t)fuzz_next(in, 6),
			    .flags = (uint8_t)fuzz_next(in, 4),
			    .run = RUN,
			    .number = number,
			    .seq = few(in, 2 * RECORDS),
			    .offset = CELL * first,
			    .length = CELL * few(in, CELLS + 1 - (first < CELLS ? first : 0)),
			    .ref = few(in, RECORDS),
			    .issued = few(in, 2 * RECORDS) };

	record_put(at, &r);
}

static size_t
put_journal(struct fuzz_input *in, uint8_t *bytes)
{
	unsigned count = 1 + (unsigned)fuzz_next(in, RECORDS);

	put_begin(in, bytes);
	for (unsigned i = 1; i < count; i++)
		put_record(in, bytes + i * RECORD, i);
	if (fuzz_next(in, 4) == 0)
		bytes[fuzz_next(in, count * RECORD)] ^= 1;
	return count * RECORD - fuzz_next(in, 4) % 2;
}

/* ---- the verdicts ---------------------------------------------------------------- */

struct reading {
	struct ledger ledger;
	bool open;
	uint64_t next;
};

static int
each(void *user, const struct record *r)
{
	struct reading *reading = user;

	assert(r->number >= reading->next && r->run == RUN);
	reading->next = r->number + 1;
	if (reading->open)
		return ledger_feed(&reading->ledger, r);
	reading->open = true;
	return ledger_open(&reading->ledger, r);
}

/* What somebody wrote, zeroes, or bytes. */
static void
put_cell(struct fuzz_input *in, uint8_t *cell, uint64_t place)
{
	struct stamp s = { .run = RUN, .place = place };

	switch (fuzz_next(in, 4)) {
	case 0: memset(cell, 0, CELL); break;
	case 1: memset(cell, (int)fuzz_next(in, 256), CELL); break;
	case 2: s.place = few(in, CELLS); /* fall through */
	default:
		s.seq = few(in, 2 * RECORDS);
		s.count = (uint32_t)few(in, CELLS);
		s.first = few(in, CELLS);
		s.intents = few(in, RECORDS);
		stamp_write(cell, &s);
	}
}

static void
check_findings(const struct ledger *l, const struct findings *f)
{
	uint64_t next = l->first;

	for (size_t i = 0; i < f->count; i++) {
		const struct finding *found = &f->list[i];

		assert(found->verdict > KEPT && found->verdict < VERDICTS);
		assert(found->place >= next && found->count > 0);
		next = found->place + found->count;
		assert(next <= l->first + l->cells);
		assert(found->deed < l->count);
		if (found->verdict == LOST || found->verdict == REORDERED)
			assert(found->deed != 0 && l->durable > 0);
	}
}

static void
judge(struct fuzz_input *in, struct ledger *l)
{
	static uint8_t cells[CELLS * CELL];
	struct findings f = { 0 };

	for (uint64_t at = 0; at < l->cells; at += UNIT) {
		bool readable = fuzz_next(in, 16) != 0;

		for (uint64_t i = 0; readable && i < UNIT; i++)
			put_cell(in, cells + i * CELL, l->first + at + i);
		assert(judge_units(l, l->first + at, readable ? cells : NULL, UNIT, &f) == 0);
	}
	judge_all(l, &f, false);
	check_findings(l, &f);
	judge_all(l, &f, true);
	check_findings(l, &f);
	free(f.list);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static uint8_t bytes[(RECORDS + 1) * RECORD];
	struct fuzz_input in = { data, size };
	struct reading reading = { .open = false };
	struct pl_error err = { 0 };
	struct journal_state state;
	int error;

	fuzz_file(bytes, put_journal(&in, bytes));
	error = journal_read(FUZZ_FD, &state, each, &reading, &err);
	assert(error == 0 || (err.code == error && err.text[0] != '\0'));
	if (error == 0) {
		assert(state.records > 0 && reading.open);
		judge(&in, &reading.ledger);
	}
	if (reading.open)
		ledger_close(&reading.ledger);
	return 0;
}
