/*
 * served.h - the exports that are open, each once, however many connections use it.
 *
 * The connections of an export must share it: its lock, its flushes, and its state when
 * a sync has failed.
 */
#ifndef PLATTER_SERVED_H
#define PLATTER_SERVED_H

#include "platter.h"

/* name: of the export, NULL where the plugin serves one image whatever the name is.
 * params: what opens it. Errors: as pl_export_open(). */
int served_open(const char *name, const struct pl_params *params, unsigned flags,
		struct pl_export **ex, struct pl_error *err);

/* The last one closes it. */
void served_close(struct pl_export *ex);

#endif
