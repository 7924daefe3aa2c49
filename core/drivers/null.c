/*
 * null.c - a disk with a size and no bytes: reads zeroes, forgets what is written.
 *
 * It declares everything and does nothing, so what remains is the cost of whoever is
 * in front of it.
 */
#include "platter-driver.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct null_params {
	uint64_t size;
};

static const struct pl_option null_options[] = {
	{ "size", PL_OPT_SIZE, offsetof(struct null_params, size), NULL, NULL, true,
	  "size of the disk" },
	PL_OPTION_END,
};

static void
null_submit(void *state, struct pl_request *req)
{
	const struct pl_part *part = &req->part;
	int64_t result = 0;

	(void)state;
	if (part->op == PL_READ) {
		for (int i = 0; i < part->iovcnt; i++)
			memset(part->iov[i].iov_base, 0, part->iov[i].iov_len);
	}
	if (part->op == PL_READ || part->op == PL_WRITE)
		result = (int64_t)part->length;
	if (part->op == PL_EXTENTS)
		pl_extents_add(req->extents, part->length, PL_EXTENT_HOLE | PL_EXTENT_ZERO);
	pl_part_done(req, result);
}

static int
null_open(const void *params, unsigned open_flags, struct pl_layer *below, void **handle,
	  struct pl_error *err)
{
	struct null_params *p = malloc(sizeof *p);

	(void)open_flags;
	(void)below;
	if (p == NULL)
		return pl_error_set(err, -ENOMEM, "null disk");
	*p = *(const struct null_params *)params;
	*handle = p;
	return 0;
}

static void
null_limits(void *handle, struct pl_driver_limits *out)
{
	const struct null_params *p = handle;

	*out = (struct pl_driver_limits){
		.geometry = { .size = p->size,
			      .logical_block = 512,
			      .physical_block = 4096,
			      .whole = 4096,
			      .preferred = 4096 },
		.capabilities = PL_CAP_WRITE | PL_CAP_FLUSH | PL_CAP_FUA | PL_CAP_ZERO |
				PL_CAP_FAST_ZERO | PL_CAP_TRIM | PL_CAP_CACHE | PL_CAP_EXTENTS |
				PL_CAP_MULTI_CONN | PL_CAP_UNMAP | PL_CAP_UNMAP_ZEROES,
		.align = 1,
		.mem_align = 1,
		.zero_align = 1,
		.tail = p->size,
		.description = "nothing is kept",
	};
}

const struct pl_driver pl_driver_null = {
	.name = "null",
	.help = "a size without bytes: reads zeroes, forgets what is written",
	.options = null_options,
	.params_size = sizeof(struct null_params),
	.open = null_open,
	.close = free,
	.limits = null_limits,
	.submit = null_submit,
};
