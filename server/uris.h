/*
 * uris.h - what clients can be told: a URI for each address and each thing to be had there.
 */
#ifndef URIS_H
#define URIS_H

#include "config.h"

/* nbd: and iscsi: lists of listeners that are open, either may be empty. */

/* On standard output, a line for each, and none twice. */
void uris_print(const struct listener *nbd, const struct listener *iscsi,
		const struct config *config);

/* Of NBD, and of the default export, where there are such; else of the first there is. The caller
 * frees it. NULL: no memory. */
char *uris_best(const struct listener *nbd, const struct listener *iscsi,
		const struct config *config);

#endif
