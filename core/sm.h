/*
 * sm.h - a checked state machine: states are data, a move that the table does not
 * allow stops the process, for it is our own mistake.
 */
#ifndef PL_SM_H
#define PL_SM_H

#include <assert.h>

struct pl_sm_state {
	const char *name;
	unsigned allowed; /* bit i: a move to state i */
};

static inline void
pl_sm_move(const struct pl_sm_state *table, unsigned *state, unsigned to)
{
	assert((table[*state].allowed & 1u << to) != 0);
	*state = to;
}

#endif
