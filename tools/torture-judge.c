#include "torture-judge.h"

#include "torture-target.h"

#include <errno.h>
#include <stdlib.h>

/* ---- the ledger ------------------------------------------------------------------ */

static uint32_t
unit_of(const struct record *begin)
{
	return (uint32_t)(begin->issued >> 32);
}

int
ledger_open(struct ledger *l, const struct record *begin)
{
	uint32_t unit = unit_of(begin);

	*l = (struct ledger){ .begin = *begin, .pending = 1, .count = 1 };
	if (unit < 512 || unit > 65536 || (unit & (unit - 1)) != 0 || begin->length == 0 ||
	    begin->offset % unit != 0 || begin->length % unit != 0 || begin->offset > begin->ref ||
	    begin->length > begin->ref - begin->offset)
		return -EINVAL;
	l->first = begin->offset / CELL;
	l->cells = begin->length / CELL;
	l->owed = calloc(l->cells, sizeof *l->owed);
	return l->owed != NULL ? 0 : -ENOMEM;
}

void
ledger_close(struct ledger *l)
{
	free(l->owed);
	free(l->deeds);
}

static struct deed *
deed_add(struct ledger *l, const struct record *r)
{
	if (l->count >= l->room) {
		uint32_t room = l->room == 0 ? 1024 : l->room * 2;
		struct deed *grown =
			room > l->room ? realloc(l->deeds, room * sizeof *grown) : NULL;

		if (grown == NULL)
			return NULL;
		l->deeds = grown;
		l->room = room;
	}
	l->deeds[l->count] = (struct deed){
		.kind = r->what,
		.fua = r->flags & RECORD_FUA,
		.seq = r->seq,
		.first = r->offset / CELL,
		.count = r->length / CELL,
		.answered = r->number,
		.issued = r->issued,
	};
	return &l->deeds[l->count++];
}

static uint64_t
seq_of(const struct ledger *l, uint32_t deed)
{
	return deed != 0 ? l->deeds[deed].seq : 0;
}

/* Enters a deed for its cells, where none is newer. */
static void
enter(struct ledger *l, uint32_t deed, size_t at)
{
	const struct deed *d = &l->deeds[deed];
	struct owed *owed = l->owed + (d->first - l->first);

	for (uint64_t i = 0; i < d->count; i++, owed++) {
		uint32_t *entry = (uint32_t *)((char *)owed + at);

		if (seq_of(l, *entry) < d->seq)
			*entry = deed;
	}
}

static void
enter_durable(struct ledger *l, uint32_t deed, uint64_t flush, uint64_t issued)
{
	l->deeds[deed].flush = flush;
	l->deeds[deed].issued = issued;
	l->durable++;
	enter(l, deed, offsetof(struct owed, durable));
}

/* Everything that was answered before the FLUSH was sent. */
static void
flushed(struct ledger *l, const struct record *r)
{
	for (; l->pending < l->count && l->deeds[l->pending].answered < r->ref; l->pending++) {
		struct deed *d = &l->deeds[l->pending];

		/* An INTENT is no answer, and what had FUA is durable already. */
		if (!d->fua && d->answered != 0)
			enter_durable(l, l->pending, r->seq, r->issued);
	}
}

static bool
is_within(const struct ledger *l, const struct record *r)
{
	uint64_t first = r->offset / CELL, count = r->length / CELL;

	return r->offset % CELL == 0 && r->length % CELL == 0 && count > 0 && first >= l->first &&
	       first - l->first < l->cells && count <= l->cells - (first - l->first);
}

int
ledger_feed(struct ledger *l, const struct record *r)
{
	if (r->kind == RECORD_END)
		l->ended = r->ref == END_DONE ? ENDED_DONE : ENDED_GONE;
	if (r->kind != RECORD_ACK && r->kind != RECORD_INTENT)
		return 0;
	if (r->kind == RECORD_ACK && r->what == TORTURE_FLUSH) {
		l->flushes++;
		flushed(l, r);
		return 0;
	}
	if (!is_within(l, r) || r->what < TORTURE_WRITE || r->what > TORTURE_TRIM)
		return -EINVAL;
	if (deed_add(l, r) == NULL)
		return -ENOMEM;
	if (r->what != TORTURE_WRITE)
		enter(l, l->count - 1,
		      r->what == TORTURE_ZERO ? offsetof(struct owed, zero)
					      : offsetof(struct owed, trim));
	if (r->kind == RECORD_INTENT) {
		l->deeds[l->count - 1].answered = 0;
		l->intents++;
		return 0;
	}
	l->answered++;
	enter(l, l->count - 1, offsetof(struct owed, answered));
	if (l->deeds[l->count - 1].fua)
		enter_durable(l, l->count - 1, 0, r->issued);
	return 0;
}

/* ---- cells ----------------------------------------------------------------------- */

struct cell {
	enum cell_kind kind;
	struct stamp stamp;
	enum verdict verdict;
};

/* Whether nothing can be said about what is there. */
static bool
may_be_anything(const struct ledger *l, const struct owed *o)
{
	return o->durable == 0 || (o->trim != 0 && seq_of(l, o->trim) >= seq_of(l, o->durable));
}

/* Whether the cell has what an operation left, or something later. */
static bool
has(const struct ledger *l, const struct owed *o, const struct cell *c, uint64_t seq)
{
	if (c->kind == CELL_STAMP)
		return c->stamp.seq >= seq;
	return c->kind == CELL_ZERO && seq_of(l, o->zero) >= seq;
}

static enum verdict
judge_cell(const struct ledger *l, const struct owed *o, uint64_t place, const struct cell *c)
{
	const struct stamp *s = &c->stamp;
	bool ours = c->kind == CELL_STAMP && s->run == l->begin.run;

	if (o->trim != 0 && may_be_anything(l, o))
		return KEPT;
	/* A run's number is its own, so this was written here by a mistake, promise or not. */
	if (ours && (s->place != place || place < s->first || place - s->first >= s->count))
		return MISPLACED;
	if (may_be_anything(l, o))
		return KEPT;
	if (c->kind == CELL_OTHER)
		return GARBLED;
	if (c->kind == CELL_STAMP && !ours)
		return FOREIGN;
	return has(l, o, c, seq_of(l, o->durable)) ? KEPT : LOST;
}

/* A unit has either all that a write has of it, or nothing. */
static void
judge_tears(const struct ledger *l, const struct owed *o, uint64_t place, struct cell *cells,
	    unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		const struct stamp *s = &cells[i].stamp;

		if (cells[i].kind != CELL_STAMP || s->run != l->begin.run ||
		    cells[i].verdict != KEPT || may_be_anything(l, &o[i]))
			continue;
		for (unsigned k = 0; k < count; k++) {
			bool covered = place + k >= s->first && place + k - s->first < s->count;

			if (covered && cells[k].verdict == KEPT && !may_be_anything(l, &o[k]) &&
			    !has(l, &o[k], &cells[k], s->seq))
				cells[k].verdict = TORN;
		}
	}
}

/* ---- findings -------------------------------------------------------------------- */

static int
find(struct findings *f, enum verdict verdict, uint64_t place, uint32_t deed, uint64_t seq)
{
	struct finding *last = f->count > 0 ? &f->list[f->count - 1] : NULL;

	if (last != NULL && last->verdict == verdict && last->deed == deed &&
	    last->place + last->count == place &&
	    (verdict == MISPLACED ? last->seq + last->count == seq : last->seq == seq)) {
		last->count++;
		return 0;
	}
	if (f->count == f->room) {
		size_t room = f->room == 0 ? 64 : f->room * 2;
		struct finding *grown = realloc(f->list, room * sizeof *grown);

		if (grown == NULL)
			return -ENOMEM;
		f->list = grown;
		f->room = room;
	}
	f->list[f->count++] = (struct finding){ verdict, place, 1, deed, seq };
	return 0;
}

static int
report(struct ledger *l, const struct owed *o, uint64_t place, const struct cell *c,
       struct findings *f)
{
	const struct stamp *s = &c->stamp;
	bool ours = c->kind == CELL_STAMP && s->run == l->begin.run;

	l->found += ours;
	if (ours && s->seq > l->newest)
		l->newest = s->seq;
	if (ours && s->intents > l->intents_found)
		l->intents_found = s->intents;
	/* What was answered and not promised: that some of it is lost shows that there was a cut.
	 */
	if (o->answered != 0 && seq_of(l, o->answered) > seq_of(l, o->durable) &&
	    seq_of(l, o->trim) < seq_of(l, o->answered)) {
		l->unpromised++;
		l->unpromised_lost += !has(l, o, c, seq_of(l, o->answered));
	}
	if (c->verdict == KEPT)
		return 0;
	return find(f, c->verdict, place, o->durable,
		    c->kind != CELL_STAMP     ? 0
		    : c->verdict == MISPLACED ? s->place
					      : s->seq);
}

static int
judge_unit(struct ledger *l, uint64_t place, const char *data, unsigned count, struct findings *f)
{
	struct cell cells[65536 / CELL];
	const struct owed *o = l->owed + (place - l->first);
	int error = 0;

	for (unsigned i = 0; i < count; i++) {
		cells[i].kind = stamp_read(data + i * CELL, &cells[i].stamp);
		cells[i].verdict = judge_cell(l, &o[i], place + i, &cells[i]);
	}
	judge_tears(l, o, place, cells, count);
	for (unsigned i = 0; i < count && error == 0; i++)
		error = report(l, &o[i], place + i, &cells[i], f);
	return error;
}

int
judge_units(struct ledger *l, uint64_t place, const void *data, uint64_t cells, struct findings *f)
{
	unsigned unit = unit_of(&l->begin) / CELL;
	const char *at = data;
	int error = 0;

	for (uint64_t i = 0; i < cells && error == 0; i += data != NULL ? unit : 1) {
		const struct owed *o = l->owed + (place + i - l->first);

		if (data != NULL)
			error = judge_unit(l, place + i, at + i * CELL, unit, f);
		else if (o->durable != 0)
			error = find(f, UNREADABLE, place + i, 0, 0);
	}
	return error;
}

/* What may be where a ZERO or TRIM was that nobody knows of. */
static bool
is_doubtful(const struct finding *f)
{
	return ((f->verdict == LOST || f->verdict == TORN) && f->seq == 0) ||
	       f->verdict == FOREIGN || f->verdict == GARBLED;
}

uint64_t
judge_all(const struct ledger *l, struct findings *f, bool damaged)
{
	bool lacking = damaged || l->intents_found > l->intents;
	uint64_t doubtful = 0;
	size_t left = 0;

	for (size_t i = 0; i < f->count; i++) {
		struct finding one = f->list[i];

		if (lacking && is_doubtful(&one)) {
			doubtful += one.count;
			continue;
		}
		if (one.verdict == LOST && l->deeds[one.deed].issued < l->newest)
			one.verdict = REORDERED;
		f->list[left++] = one;
	}
	f->count = left;
	return doubtful;
}
