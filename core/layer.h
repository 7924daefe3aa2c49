/*
 * layer.h - opened drivers, one over the other, as the options ask.
 *
 * What a driver may do with the layer below it is in platter-driver.h.
 */
#ifndef PL_LAYER_H
#define PL_LAYER_H

#include "platter-driver.h"

/* Errors: -EINVAL (no such driver, an option that none of them knows, ...), else the driver's. */
int pl_layer_open(const struct pl_params *params, unsigned open_flags, struct pl_layer **top,
		  struct pl_error *err);
/* The same without opening anything. */
int pl_layer_check(const struct pl_params *params, struct pl_error *err);
void pl_layer_close(struct pl_layer *top); /* and all below it */

/* Limits of a layer (pl_layer_limits) are good until it is closed, and never change: after this
 * there may be new ones. Errors: pl_export_grow()'s. */
int pl_layer_grow(struct pl_layer *top, struct pl_error *err);

/* For tests that ask a driver in the stack something by its own header; NULL: not there. */
void *pl_layer_handle(const struct pl_layer *top, const struct pl_driver *driver);

#endif
