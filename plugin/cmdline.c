/*
 * cmdline.c - what nbdkit knows and does not tell its plugins before a client comes.
 *
 * An image is opened and locked at start, so that a bad one is refused at start. nbdkit
 * says only with the first client that it serves read-only: we look at its arguments.
 */
#include "cmdline.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* -r, also among other letters without a value, or --readonly, --read-only, cut short or not. */
static bool
is_read_only_option(const char *arg)
{
	if (strncmp(arg, "--re", 4) == 0)
		return true;
	if (arg[0] != '-')
		return false;
	arg++;
	arg += strspn(arg, "46fnosv"); /* nbdkit(1), "OPTIONS": those without a value */
	return *arg == 'r';
}

bool
cmdline_read_only(void)
{
	FILE *f = fopen("/proc/self/cmdline", "re");
	char *arg = NULL;
	size_t size = 0;
	bool found = false;

	while (f != NULL && !found && getdelim(&arg, &size, '\0', f) > 0)
		found = is_read_only_option(arg);
	free(arg);
	if (f != NULL)
		fclose(f);
	return found;
}
