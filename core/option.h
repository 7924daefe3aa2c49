/*
 * option.h - key=value pairs and the tables that give them meaning.
 *
 * The rest of the interface is in platter.h.
 */
#ifndef PL_OPTION_H
#define PL_OPTION_H

#include "platter-driver.h"

int pl_params_find(const struct pl_params *p, const char *key); /* index, or -1 */

#endif
