/*
 * torture-load.h - writes, by several connections, with everything that a target can.
 *
 * The range is divided into areas, and each operation in flight has areas of its own: two are
 * never under way at the same place. Where a target takes any bytes, areas end in the middle of a
 * unit, so that neighbours change the same one at once. An area is first written from end to end,
 * then the mix begins.
 */
#ifndef TORTURE_LOAD_H
#define TORTURE_LOAD_H

#include "torture-journal.h"
#include "torture-target.h"

struct load_plan {
	const struct torture_transport *transport;
	const char *target;
	struct torture_conn *first; /* a connection, which is taken over; the others are opened */
	struct torture_info info;
	struct journal *journal;
	uint64_t run, offset, length;
	unsigned connections, depth, timeout_s;
};

struct load_counts {
	uint64_t operations, durable, bytes;
	bool filled; /* all areas have been written once */
};

struct load;

int load_start(const struct load_plan *plan, struct load **l, struct pl_error *err);
struct load_counts load_counts(struct load *l);
/* Whether it has ended by itself, since the target or the journal has failed. */
bool load_has_ended(struct load *l);
/* Ends it: what is in flight is awaited, and if all is well a last FLUSH makes everything durable.
 * Returns 0, -EPIPE: the target has failed, or -EIO: the journal has; and what happened. */
int load_stop(struct load *l, struct pl_error *err);

#endif
