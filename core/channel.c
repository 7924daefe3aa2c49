/* channel.c - an export on one loop. */
#include "channel.h"

#include <errno.h>
#include <stdlib.h>

int
pl_channel_open(struct pl_export *ex, struct pl_loop *loop, struct pl_channel **out,
		struct pl_error *err)
{
	struct pl_channel *ch = calloc(1, sizeof *ch);
	int error;

	if (ch == NULL)
		return pl_error_set(err, -ENOMEM, "channel");
	ch->export = ex;
	ch->loop = loop;
	error = pl_layer_attach(ex->layer, loop, &ch->state, err);
	if (error != 0) {
		free(ch);
		return error;
	}
	__atomic_fetch_add(&ex->channels, 1, __ATOMIC_RELAXED);
	*out = ch;
	return 0;
}

void
pl_channel_close(struct pl_channel *ch)
{
	pl_layer_detach(ch->export->layer, ch->state);
	__atomic_fetch_sub(&ch->export->channels, 1, __ATOMIC_RELAXED);
	free(ch);
}
