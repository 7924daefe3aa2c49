/*
 * powercut.h - for tests: what would be on the medium if the power were lost now.
 *
 * Options and behaviour are described in powercut.c.
 */
#ifndef PL_POWERCUT_H
#define PL_POWERCUT_H

#include <stdint.h>

/*
 * Fills image (as large as the disk) with what is below, and of what is in the cache
 * with what this seed lets survive. Changes nothing. Returns 0 or a negative errno.
 * handle: the driver's, of an export that is driver=powercut.
 */
int powercut_image(void *handle, uint64_t seed, void *image);

#endif
