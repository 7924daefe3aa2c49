/* target.c - a target device: its units and who has logged in. */
#include "target.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

int
scsi_target_new(struct scsi_target **out, const char *name, struct pl_loop *loop,
		struct pl_error *err)
{
	struct scsi_target *t = calloc(1, sizeof *t);

	if (t == NULL)
		return pl_error_set(err, -ENOMEM, "target %s", name);
	snprintf(t->name, sizeof t->name, "%s", name);
	t->loop = loop;
	*out = t;
	return 0;
}

void
scsi_target_free(struct scsi_target *t)
{
	assert(t->units == NULL && t->nexuses == NULL && t->managements == NULL);
	free(t);
}
