/*
 * cmdline.c - whatever the command line of platterd is, it is understood or refused in one
 * sentence.
 *
 * Input: words, each up to a newline. A file that is named is not read.
 */
#include "cmdline.h"
#include "fuzz.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define WORDS 64

/* Instead of config-file.c's. */
int
config_read(struct config *config, const char *path, struct pl_error *err)
{
	(void)config;
	return pl_error_set(err, -ENOENT, "%s", path);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = malloc(size + 1), *save = text, *argv[WORDS + 1] = { (char *)"platterd" };
	struct pl_error err = { 0 };
	struct cmdline cmdline;
	struct config *config;
	int argc = 1, error;

	assert(text != NULL);
	memcpy(text, data, size);
	text[size] = '\0';
	while (argc < WORDS && size > 0 && save != NULL)
		argv[argc++] = strsep(&save, "\n");
	error = config_new(&config, &err);
	assert(error == 0);
	error = cmdline_parse(argc, argv, &cmdline, config, &err);
	if (error != 0)
		assert(err.code == error && error < 0 && err.text[0] != '\0');
	else if (cmdline.help == NULL && !cmdline.version)
		assert(config->export_count > 0);
	config_free(config);
	free(text);
	return 0;
}
