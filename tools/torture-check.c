#include "torture-check.h"

#include "torture-judge.h"
#include "torture-target.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- checking -------------------------------------------------------------------- */

struct check {
	struct ledger ledger;
	bool open;
	struct journal_state journal;
	struct findings findings;
	uint64_t doubtful; /* cells */
};

static int
take_record(void *user, const struct record *r)
{
	struct check *c = user;
	int error;

	if (c->open)
		return ledger_feed(&c->ledger, r);
	error = ledger_open(&c->ledger, r);
	c->open = error == 0;
	return error;
}

/* What cannot be read as a whole is read by units, so that no more is called unreadable than is. */
static int
judge_range(struct check *c, struct target *t, uint64_t offset, uint64_t length, char *data)
{
	uint64_t unit = c->ledger.begin.issued >> 32;
	int error = target_read(t, offset, length, data);

	if (error == -ENOTCONN)
		return error;
	if (error == 0 || length == unit)
		return judge_units(&c->ledger, offset / CELL, error == 0 ? data : NULL,
				   length / CELL, &c->findings);
	for (uint64_t at = 0, failed = 0; at < length && failed == 0; at += unit)
		error = failed = (uint64_t)judge_range(c, t, offset + at, unit, data + at);
	return error;
}

static int
read_back(struct check *c, struct target *t, struct pl_error *err)
{
	const struct record *b = &c->ledger.begin;
	uint64_t step = t->info.max;
	char *data;
	int error = 0;

	if (t->info.size < b->offset + b->length || (b->issued >> 32) % t->info.align != 0)
		return pl_error_say(err, -EINVAL,
				    "this is another target: it has %" PRIu64
				    " bytes in blocks of %u, and that of the journal had %" PRIu64
				    " in blocks of %u",
				    t->info.size, t->info.unit, b->ref,
				    (unsigned)(b->issued >> 32));
	if (posix_memalign((void **)&data, 65536, step) != 0)
		return pl_error_set(err, -ENOMEM, "reading");
	for (uint64_t at = 0; at < b->length && error == 0; at += step)
		error = judge_range(c, t, b->offset + at, at_most(b->length - at, step), data);
	if (error == -ENOTCONN)
		pl_error_say(err, error, "the target has gone away while it was read");
	else if (error != 0)
		pl_error_set(err, error, "reading");
	free(data);
	return error;
}

static const struct {
	const char *name, *means;
} verdicts[VERDICTS] = {
	[LOST] = { "lost", "acknowledged as durable, and something older is there" },
	[REORDERED] = { "reordered", "the same, though what was sent after that has survived" },
	[TORN] = { "torn", "a part of a write next to what was there before, within one block" },
	[MISPLACED] = { "misplaced", "what was written to another place" },
	[FOREIGN] = { "foreign", "what another run wrote" },
	[GARBLED] = { "garbled", "nothing that was ever written" },
	[UNREADABLE] = { "unreadable", "reading fails" },
};

static void
show_finding(const struct ledger *l, const struct finding *f)
{
	const struct deed *d = f->deed != 0 ? &l->deeds[f->deed] : NULL;

	printf("%-10s at %" PRIu64 ", %" PRIu64 " bytes: ", verdicts[f->verdict].name,
	       f->place * CELL, f->count * CELL);
	if (f->verdict == MISPLACED)
		printf("has what was written to %" PRIu64, f->seq * CELL);
	else if (f->verdict == FOREIGN)
		printf("has what another run wrote");
	else if (f->verdict == GARBLED)
		printf("has no whole stamp");
	else if (f->verdict == UNREADABLE)
		printf("cannot be read");
	else if (f->seq != 0)
		printf("has WRITE %" PRIu64, f->seq);
	else
		printf("has zeroes");
	if (f->verdict == TORN)
		printf(", next to a part of a newer one");
	else if (d != NULL)
		printf(", owed %s %" PRIu64, torture_kind_name(d->kind), d->seq);
	if (d != NULL && f->verdict != TORN && d->flush != 0)
		printf(", durable by FLUSH %" PRIu64, d->flush);
	else if (d != NULL && f->verdict != TORN)
		printf(", durable by %s", (l->begin.issued & CAN_AT_ONCE) != 0 ? "itself" : "FUA");
	printf("\n");
}

#define SHOWN 20

/* Returns how many bytes are not as they have to be. */
static uint64_t
show_findings(const struct check *c)
{
	uint64_t bytes[VERDICTS] = { 0 }, all = 0;

	for (size_t i = 0; i < c->findings.count; i++) {
		const struct finding *f = &c->findings.list[i];

		bytes[f->verdict] += f->count * CELL;
		all += f->count * CELL;
		if (i < SHOWN)
			show_finding(&c->ledger, f);
	}
	if (c->findings.count > SHOWN)
		printf("... and %zu places more\n", c->findings.count - SHOWN);
	printf("checked %" PRIu64 " bytes; %" PRIu64 " operations acknowledged, %" PRIu64
	       " of them durable, %" PRIu64 " FLUSH\n",
	       c->ledger.begin.length, c->ledger.answered, c->ledger.durable, c->ledger.flushes);
	for (unsigned v = KEPT + 1; v < VERDICTS; v++) {
		if (bytes[v] > 0)
			printf("%s: %" PRIu64 " bytes: %s\n", verdicts[v].name, bytes[v],
			       verdicts[v].means);
	}
	return all;
}

/* ---- what that shows, and what it does not --------------------------------------- */

static void
conclude_the_promise(const struct check *c)
{
	unsigned can = (unsigned)c->ledger.begin.issued;

	if (c->ledger.durable > 0)
		return;
	if ((can & (CAN_FLUSH | CAN_FUA | CAN_AT_ONCE)) == 0)
		printf("- The target offers neither FLUSH nor FUA. It promised nothing, so nothing "
		       "can be held\n  against it, and nothing on it is safe.\n");
	else
		printf("- Nothing was acknowledged as durable before the end: nothing is shown.\n");
}

static void
conclude_the_end(const struct check *c)
{
	const struct ledger *l = &c->ledger;

	if (l->ended == ENDED_DONE)
		printf("- The run ended in order: nobody cut the power in the middle of it. So "
		       "this "
		       "shows that what was\n  written can be read back, not that it outlives a "
		       "loss of power: --expect-cut.\n");
	else if (l->ended == ENDED_GONE)
		printf("- The target went away in the middle of the run. Whether its power was cut "
		       "cannot be seen from\n  here: a server that was only killed, or a machine "
		       "that was reset, keeps what its operating\n  system or its disk had in "
		       "memory, and then the disk was not tried.\n");
	else
		printf("- The journal has no end: this program, its machine or the journal's "
		       "stopped in the middle. What\n  was acknowledged after its last record is "
		       "not judged.\n");
	if (c->journal.lacking > 0)
		printf("- %" PRIu64 " records in the middle of the journal are damaged.\n",
		       c->journal.lacking);
	if (l->intents_found > l->intents)
		printf("- The target has what was written after the end of the journal, so some of "
		       "that is missing.\n");
	if (c->doubtful > 0)
		printf("- %" PRIu64 " bytes are left out: a ZERO or TRIM that the journal does not "
		       "tell of any more may have\n  been there.\n",
		       c->doubtful * CELL);
	if (c->journal.tail > 0)
		printf("- The last %" PRIu64 " bytes of the journal are no whole records, and were "
		       "left out.\n",
		       c->journal.tail);
}

static void
conclude_the_cut(const struct ledger *l)
{
	if (l->ended == ENDED_DONE || l->unpromised == 0)
		return;
	if (l->unpromised_lost > 0)
		printf("- Of %" PRIu64 " bytes that were answered and not promised, %" PRIu64
		       " are gone, as they may. So a cache\n  was really lost.\n",
		       l->unpromised * CELL, l->unpromised_lost * CELL);
	else
		printf("- Even the %" PRIu64
		       " bytes that were answered and not promised are there: "
		       "it may be that no cache\n  was lost at all.\n",
		       l->unpromised * CELL);
}

static int
conclude(struct check *c)
{
	uint64_t wrong;

	c->doubtful = judge_all(&c->ledger, &c->findings, c->journal.lacking > 0);
	wrong = show_findings(c);
	printf("%s\n", wrong > 0               ? "NOT KEPT"
		       : c->ledger.durable > 0 ? "all that was acknowledged as durable is there"
					       : "inconclusive");
	conclude_the_promise(c);
	conclude_the_end(c);
	conclude_the_cut(&c->ledger);
	return wrong > 0 ? STATUS_LOST : c->ledger.durable > 0 ? STATUS_KEPT : STATUS_CANNOT;
}

int
torture_check(int journal, const char *target, unsigned timeout_s, bool same_target)
{
	struct check c = { 0 };
	struct target t = { 0 };
	struct pl_error err;
	int status = STATUS_CANNOT;
	int error = journal_read(journal, &c.journal, take_record, &c, &err);

	if (error == 0)
		error = target_open(&t, target, timeout_s, OPEN_READ, &err);
	if (error == 0)
		error = read_back(&c, &t, &err);
	if (error != 0)
		torture_complain(err.text);
	else if (c.ledger.found == 0 && c.ledger.durable > 0 && !same_target)
		torture_complain(
			"nothing of this run is there: this is another target than the one "
			"written, "
			"or it has lost everything. If you are sure that it is the same: "
			"--same-target");
	else
		status = conclude(&c);
	target_close(&t);
	if (c.open)
		ledger_close(&c.ledger);
	free(c.findings.list);
	return status;
}
