/* error.c - one sentence for a person. */
#include "platter.h"

#include <stdio.h>
#include <string.h>

static int
error_fill(struct pl_error *err, int error, bool words, const char *fmt, va_list args)
{
	int n;

	if (err == NULL)
		return error;
	err->code = error;
	n = vsnprintf(err->text, sizeof err->text, fmt, args);
	if (words && n >= 0 && (size_t)n < sizeof err->text)
		snprintf(err->text + n, sizeof err->text - (size_t)n, ": %s", strerror(-error));
	return error;
}

int
pl_error_set(struct pl_error *err, int error, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	error_fill(err, error, true, fmt, args);
	va_end(args);
	return error;
}

int
pl_error_say(struct pl_error *err, int error, const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	error_fill(err, error, false, fmt, args);
	va_end(args);
	return error;
}
