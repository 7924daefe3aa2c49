/*
 * options.c - whatever a user writes as options is understood or refused in one sentence.
 *
 * Input: lines of key=value.
 */
#include "fuzz.h"
#include "platter.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pl_params *params = pl_params_new();
	struct pl_error err = { 0 };
	char *text = malloc(size + 1), *save = NULL;

	assert(params != NULL && text != NULL);
	memcpy(text, data, size);
	text[size] = '\0';
	for (char *line = strtok_r(text, "\n", &save); line != NULL;
	     line = strtok_r(NULL, "\n", &save)) {
		char *value = strchr(line, '=');

		if (value != NULL)
			*value++ = '\0';
		if (pl_params_add(params, line, value != NULL ? value : "", &err) != 0)
			assert(err.code < 0 && err.text[0] != '\0');
	}
	err = (struct pl_error){ 0 };
	if (pl_export_check(params, &err) != 0)
		assert(err.code < 0 && err.text[0] != '\0' && strchr(err.text, '\n') == NULL);
	pl_params_free(params);
	free(text);
	return 0;
}
