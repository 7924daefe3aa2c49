/*
 * torture-check.h - reads a target back, says what is not as it has to be, and what that shows.
 */
#ifndef TORTURE_CHECK_H
#define TORTURE_CHECK_H

#include <stdbool.h>

/* Exit status of `platter torture`. */
enum { STATUS_KEPT, STATUS_LOST, STATUS_CANNOT };

/* The journal is open in that descriptor. Where nothing of its run is there, that is a loss if it
 * is the same target for sure. Returns a status. */
int torture_check(int journal, const char *target, unsigned timeout_s, bool same_target);

/* Says on standard error what is wrong. Returns STATUS_CANNOT. */
int torture_complain(const char *what);

#endif
