/*
 * channel.h - an export on one loop. The rest of the interface is in platter.h.
 */
#ifndef PL_CHANNEL_H
#define PL_CHANNEL_H

#include "export.h"

struct pl_channel {
	struct pl_export *export;
	struct pl_loop *loop;
	void *state; /* the topmost driver's */
};

#endif
