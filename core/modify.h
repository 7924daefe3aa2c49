/*
 * modify.h - read, change and write back, and nobody comes between.
 */
#ifndef PL_MODIFY_H
#define PL_MODIFY_H

#include "platter.h"

void pl_modify_start(struct pl_request *req);

#endif
