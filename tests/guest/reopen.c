/*
 * reopen.c - opens an image again and again, as a server that starts would.
 *
 *	reopen IMAGE
 *
 * For each line "OFFSET LENGTH" on standard input the image is opened for writing, that range is
 * read, and the image is closed; the bytes go to standard output. Exit status: 0 at the end of
 * input, 1 when it cannot be opened or read.
 */
#include "platter.h"

#include <err.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void
say(enum pl_log_level level, const char *line)
{
	if (level <= PL_LOG_WARN)
		warnx("%s", line);
}

static void
open_and_read(const struct pl_params *params, struct pl_loop *loop, uint64_t offset, void *data,
	      uint64_t length)
{
	struct iovec iov = { data, length };
	struct pl_request req = {
		.op = PL_READ, .offset = offset, .length = length, .iov = &iov, .iovcnt = 1
	};
	struct pl_error error;
	struct pl_export *ex;
	struct pl_channel *ch;
	int failed;

	if (pl_export_open(params, 0, &ex, &error) != 0 ||
	    pl_channel_open(ex, loop, &ch, &error) != 0)
		errx(1, "%s", error.text);
	failed = pl_request_call(ch, &req);
	if (failed != 0)
		errx(1, "reading %" PRIu64 " bytes at %" PRIu64 ": %s", length, offset,
		     strerror(-failed));
	pl_channel_close(ch);
	pl_export_close(ex);
}

int
main(int argc, char **argv)
{
	struct pl_params *params = pl_params_new();
	struct pl_loop *loop;
	uint64_t offset, length;

	if (argc != 2)
		errx(2, "usage: reopen IMAGE");
	if (params == NULL || pl_params_add(params, "path", argv[1], NULL) != 0 ||
	    pl_loop_new_blocking(&loop, NULL) != 0)
		errx(2, "out of memory");
	pl_log_to(say);
	while (scanf("%" SCNu64 " %" SCNu64, &offset, &length) == 2) {
		char *data = malloc(length);

		if (data == NULL)
			errx(2, "out of memory");
		open_and_read(params, loop, offset, data, length);
		if (fwrite(data, 1, length, stdout) != length || fflush(stdout) != 0)
			err(2, "standard output");
		free(data);
	}
	pl_loop_free(loop);
	pl_params_free(params);
	return 0;
}
