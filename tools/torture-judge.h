/*
 * torture-judge.h - what is owed, by the journal, and what is there.
 *
 * The ledger is fed the journal's records, and knows then for each cell the newest operation that
 * was acknowledged as durable: by FUA, or by a FLUSH that was sent after its answer. A cell may
 * have what that left, or what a later one left, answered or not. Operations on one cell are never
 * under way at once, so "later" is a higher seq. Where nothing was promised, and after a TRIM,
 * anything may be.
 */
#ifndef TORTURE_JUDGE_H
#define TORTURE_JUDGE_H

#include "torture-journal.h"
#include "torture-stamp.h"

/* An operation that was answered or, of ZERO and TRIM, was to be sent. */
struct deed {
	uint8_t kind; /* enum torture_kind */
	bool fua;
	uint64_t seq, first, count; /* cells, from the start of the target */
	uint64_t answered;          /* its record */
	uint64_t flush;             /* seq of the FLUSH that made it durable; 0: itself, or none */
	uint64_t issued;            /* the last operation sent when it was known to be durable */
};

/* Of a cell, numbers of deeds; 0: none. */
struct owed {
	uint32_t durable, answered, zero, trim;
};

struct ledger {
	struct record begin;
	uint64_t first, cells; /* the range */
	struct owed *owed;
	struct deed *deeds; /* from 1 on */
	uint32_t count, room;
	uint32_t pending;                    /* the oldest deed that a FLUSH has not covered yet */
	uint64_t answered, durable, flushes; /* how many */
	enum { ENDED_NOT, ENDED_DONE, ENDED_GONE } ended;
	uint64_t intents;                     /* how many records */
	uint64_t intents_found;               /* how many there were, by the stamps found */
	uint64_t newest;                      /* seq of the newest stamp found */
	uint64_t found;                       /* stamps of this run */
	uint64_t unpromised, unpromised_lost; /* cells: answered only, and not there */
};

/* Errors: -ENOMEM, -EINVAL: numbers that cannot be. */
int ledger_open(struct ledger *l, const struct record *begin);
int ledger_feed(struct ledger *l, const struct record *r);
void ledger_close(struct ledger *l);

enum verdict {
	KEPT,
	LOST,      /* was acknowledged as durable; there is something older */
	REORDERED, /* the same, and something sent after the acknowledgement has survived */
	TORN,      /* a unit has a part of a write only, that nobody acknowledged */
	MISPLACED, /* what was written to another place */
	FOREIGN,   /* another run's */
	GARBLED,   /* no stamp, or not a whole one */
	UNREADABLE,
	VERDICTS,
};

/* Neighbouring cells with the same fate. */
struct finding {
	enum verdict verdict;
	uint64_t place, count; /* cells */
	uint32_t deed;         /* that is owed; 0: none is */
	uint64_t seq;          /* LOST, TORN: of what is there, 0: zeroes; MISPLACED: its place */
};

struct findings {
	struct finding *list;
	size_t count, room;
};

/* Judges whole units from `place` on; data NULL: they cannot be read. Errors: -ENOMEM. */
int judge_units(struct ledger *l, uint64_t place, const void *data, uint64_t cells,
		struct findings *f);
/* When all were judged: which of the LOST are REORDERED. Where the journal lacks an INTENT, what
 * that might have left is taken from the findings. Returns how many cells that were. */
uint64_t judge_all(const struct ledger *l, struct findings *f, bool damaged);

#endif
