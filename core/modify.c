/*
 * modify.c - read, change and write back, and nobody comes between.
 *
 * The good path: the request takes its range alone, where all others that change data hold
 * theirs at least shared (range.h), reads it into the caller's memory, lets modify() change
 * that, and writes it as any other write, with FUA as that is.
 *
 * What can go wrong: the range cannot be read, or modify() will not have it changed: then
 * nothing is written. The write fails on its way: then what is there is the old, the new or
 * some of both, as after every write that fails.
 */
#include "modify.h"

#include "request.h"
#include "transfer.h"

#include <assert.h>
#include <errno.h>

static void
modify_read_done(struct pl_request *req, int error)
{
	if (error == 0) {
		/* Reading has used it up. */
		req->iov->iov_base = (char *)req->iov->iov_base - req->length;
		req->iov->iov_len = req->length;
		req->done_to = req->offset;
		error = req->modify(req);
		assert(error >= 0);
	}
	if (error != 0)
		pl_request_data_done(req, error);
	else
		pl_write_run(req, pl_request_data_done);
}

static void
modify_go(struct pl_request *req)
{
	pl_read_run(req, modify_read_done);
}

void
pl_modify_start(struct pl_request *req)
{
	assert(req->iovcnt == 1 && req->modify != NULL);
	if (req->length > PL_MODIFY_MAX)
		pl_request_data_done(req, -EINVAL);
	else
		pl_write_take_range(req, modify_go);
}
