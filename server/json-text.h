/*
 * json-text.h - JSON as text, whole or not at all.
 */
#ifndef JSON_TEXT_H
#define JSON_TEXT_H

#include <jansson.h>

/* flags: jansson's, JSON_COMPACT and so on. free() it. NULL: no memory. */
char *json_text(const json_t *value, size_t flags);

#endif
