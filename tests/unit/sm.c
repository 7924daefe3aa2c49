/* sm.c - a state machine moves only as its table says. */
#include "sm.h"

#include "test.h"

enum { RED, GREEN };

static const struct pl_sm_state states[] = {
	[RED] = { "red", 1 << GREEN }, [GREEN] = { "green", 0 }
};

TEST(a_move_that_is_allowed_is_made)
{
	unsigned state = RED;

	pl_sm_move(states, &state, GREEN);
	assert_eq(state, GREEN);
}

TEST(a_move_that_is_not_allowed_stops_the_process)
{
	unsigned state = GREEN;

	assert_aborts(pl_sm_move(states, &state, RED));
}
