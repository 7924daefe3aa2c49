/* options.c - the words of a subcommand, by its table. */
#include "tools.h"

#include "platter.h"

#include <errno.h>
#include <getopt.h>
#include <stdlib.h>
#include <string.h>

bool
tool_is_uri(const char *word)
{
	return strncmp(word + strspn(word, "abcdefghijklmnopqrstuvwxyz+"), "://", 3) == 0;
}

int
tool_options(int argc, char **argv, const struct pl_option *table, struct pl_params *params,
	     void *settings)
{
	struct option *longs;
	struct pl_error err = { .code = 0 };
	uint64_t used = 0;
	int count = 0, i;

	while (table[count].name != NULL)
		count++;
	longs = calloc((size_t)count + 1, sizeof *longs);
	if (longs == NULL)
		pl_error_set(&err, -ENOMEM, "options");
	for (i = 0; longs != NULL && i < count; i++)
		longs[i] = (struct option){ table[i].name,
					    table[i].type == PL_OPT_BOOL ? no_argument
									 : required_argument,
					    NULL, 256 + i };
	optind = 0; /* from the start, though somebody may have parsed before */
	while (err.code == 0 && (i = getopt_long(argc, argv, "", longs, NULL)) != -1) {
		if (i < 256) {
			free(longs);
			return -EINVAL; /* getopt_long has said why */
		}
		pl_params_add(params, table[i - 256].name, optarg != NULL ? optarg : "on", &err);
	}
	free(longs);
	if (err.code == 0)
		pl_options_parse(table, params, &used, settings, &err);
	if (err.code != 0)
		fprintf(stderr, "platter %s: %s\n", argv[0], err.text);
	return err.code;
}
