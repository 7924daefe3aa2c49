/*
 * zero.h - zeroes without sending them, and blocks nobody needs any more.
 */
#ifndef PL_ZERO_H
#define PL_ZERO_H

#include "platter.h"

void pl_zero_start(struct pl_request *req);
void pl_trim_start(struct pl_request *req);

#endif
