/*
 * export.h - a device on offer: its drivers, and what all its channels share.
 *
 * The rest of the interface is in platter.h.
 */
#ifndef PL_EXPORT_H
#define PL_EXPORT_H

#include "commit.h"
#include "layer.h"
#include "range.h"

struct pl_export {
	struct pl_params *params;
	struct pl_layer *layer;
	unsigned capabilities; /* what may be advertised */
	bool native_fua;
	bool failed; /* atomic */
	unsigned channels;
	struct pl_commit commit;
	struct pl_ranges ranges;
	uint64_t done[PL_OPS], errors, fua_native; /* atomic */
	char description[256];
};

/* A sync failed: never again may FUA or FLUSH succeed. Logs it once. */
void pl_export_fail(struct pl_export *ex, const char *what, int error);

/* Counts a finished request. */
void pl_export_count(struct pl_export *ex, const struct pl_request *req, int error);

#endif
