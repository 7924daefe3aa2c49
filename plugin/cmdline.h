/*
 * cmdline.h - what nbdkit knows and does not tell its plugins before a client comes.
 */
#ifndef PLATTER_CMDLINE_H
#define PLATTER_CMDLINE_H

#include <stdbool.h>

/* Whether nbdkit was started with -r. A wrong guess does no harm: an image is then opened
 * for more or for less than its clients get. */
bool cmdline_read_only(void);

#endif
