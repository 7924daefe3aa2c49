/*
 * option.h - key=value pairs and the tables that give them meaning.
 *
 * The rest of the interface is in platter.h (pl_params_...) and platter-driver.h
 * (pl_options_parse).
 */
#ifndef PL_OPTION_H
#define PL_OPTION_H

#include "platter-driver.h"

unsigned pl_params_count(const struct pl_params *p); /* at most 64 */
const char *pl_params_key(const struct pl_params *p, unsigned i);
const char *pl_params_value(const struct pl_params *p, unsigned i);
int pl_params_find(const struct pl_params *p, const char *key); /* index, or -1 */

#endif
