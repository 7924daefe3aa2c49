/*
 * torture-journal.h - what was acknowledged, kept where the power is not cut.
 *
 * A journal is a row of records of 64 bytes, each with its number and a checksum, so that each
 * tells the truth whatever became of the others. Numbers as NBD has them:
 *
 *	bytes 0-3	CRC32C of bytes 4-63
 *	4		1, the format's version
 *	5		kind: enum record_kind
 *	6		what: of ACK and INTENT, enum torture_kind
 *	7		bit 0: FUA, or that everything was durable when it was answered;
 *			bit 1: whoever keeps the journal is to say when all up to here is stable
 *	8		run
 *	16		number of this record, from 0 on
 *	24		seq: of the operation; BEGIN: seconds since 1970
 *	32, 40		offset, length; BEGIN: of the range that is written
 *	48		ref: of a FLUSH, what was answered in records before this number was
 *answered before the FLUSH was sent; BEGIN: the target's size; END: enum record_end
 *	56		issued: the seq of the last operation sent when this was answered;
 *			BEGIN: unit << 32 | enum torture_can
 *
 * BEGIN is first. An ACK is appended when the answer has come. An INTENT is appended before a ZERO
 * or TRIM is sent, and is stable by then: what these leave has no stamp, and would look like a
 * loss. So a journal that lacks its end, or any ACK, only proves less. One that lacks an INTENT
 * is known by the number of them in a stamp.
 *
 * By TCP the records are sent as they are; the other side answers each with bit 1 set, by how many
 * records it has made stable, 8 bytes. BEGIN has the bit.
 */
#ifndef TORTURE_JOURNAL_H
#define TORTURE_JOURNAL_H

#include "platter.h"

#define RECORD 64

enum record_kind { RECORD_BEGIN = 1, RECORD_INTENT, RECORD_ACK, RECORD_STABLE, RECORD_END };
enum record_end {
	END_DONE, /* all of it is made durable and the target is left in order */
	END_GONE, /* the target has gone away, or failed */
};

struct record {
	uint8_t kind, what, flags;
	uint64_t run, number, seq, offset, length, ref, issued;
};
#define RECORD_FUA    (1 << 0)
#define RECORD_SETTLE (1 << 1)

void record_put(uint8_t at[RECORD], const struct record *r);
bool record_get(const uint8_t at[RECORD], struct record *r); /* false: it is none */

/* ---- writing; from any thread ---------------------------------------------------- */

struct journal;

/* where: a file that is not there yet, tcp://HOST:PORT, or NULL for memory. *begin is its first
 * record, stable on return. */
int journal_new(const char *where, struct record *begin, struct journal **j, struct pl_error *err);
void journal_free(struct journal *j);

/* Numbers the record. Errors stay: there is no use in going on then. */
int journal_append(struct journal *j, struct record *r);
uint64_t journal_count(struct journal *j);
/* Returns when records up to that number are stable. */
int journal_settle(struct journal *j, uint64_t number);
/* -1, or for a journal in memory or a file what journal_read() reads. */
int journal_fd(const struct journal *j);

/* Keeps the journal of one run, which comes by TCP, in the file. */
int journal_collect(const char *address, const char *path, struct pl_error *err);

/* ---- reading --------------------------------------------------------------------- */

struct journal_state {
	struct record begin;
	uint64_t records; /* good ones */
	uint64_t lacking; /* bad ones before a good one */
	uint64_t tail;    /* bytes behind the last good one */
};

/* Calls each() for every good record, BEGIN first. Errors: -EINVAL (no journal), what read(2) says.
 */
int journal_read(int fd, struct journal_state *state,
		 int (*each)(void *user, const struct record *r), void *user, struct pl_error *err);

#endif
