/*
 * config.c - whatever stands in platter.conf or in --export is understood or refused in one
 * sentence.
 *
 * Input: a byte that chooses between the two, then the text.
 */
#include "config.h"
#include "file.h"
#include "fuzz.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

static int
read_file(struct config *config, const uint8_t *data, size_t size, struct pl_error *err)
{
	fuzz_file(data, size);
	return config_read(config, FUZZ_FILE, err);
}

static int
add_export(struct config *config, const uint8_t *data, size_t size, struct pl_error *err)
{
	char *text = malloc(size + 1);
	int error;

	assert(text != NULL);
	memcpy(text, data, size);
	text[size] = '\0';
	error = config_add_export(config, "--export", text, err);
	free(text);
	return error;
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct pl_error err = { 0 };
	struct config *config;
	int error;

	if (size == 0)
		return 0;
	error = config_new(&config, &err);
	assert(error == 0);
	error = (data[0] & 1 ? read_file : add_export)(config, data + 1, size - 1, &err);
	if (error == 0)
		error = config_finish(config, &err);
	if (error == 0) {
		for (unsigned i = 0; i < config->export_count; i++)
			assert(pl_params_get(config->exports[i].params, "read-only") == NULL);
	} else {
		assert(err.code == error && err.text[0] != '\0');
		assert((data[0] & 1) == 0 || strchr(err.text, '\n') == NULL);
	}
	config_free(config);
	return 0;
}
