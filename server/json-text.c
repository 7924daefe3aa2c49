/*
 * json-text.c - json_dumps() of jansson 2.14 makes its text grow as it goes, and leaves out the
 * names that there was no memory for. So the text is measured first.
 */
#include "json-text.h"

#include <stdlib.h>

char *
json_text(const json_t *value, size_t flags)
{
	size_t length = json_dumpb(value, NULL, 0, flags);
	char *text = length > 0 ? malloc(length + 1) : NULL;

	if (text == NULL)
		return NULL;
	if (json_dumpb(value, text, length, flags) != length) {
		free(text);
		return NULL;
	}
	text[length] = '\0';
	return text;
}
