/*
 * request.h - one way in and one way out.
 *
 * request.c checks a request and ends it; transfer.c moves its data, zero.c zeroes and
 * trims, commit.c makes it durable. The rest of the interface is in platter.h.
 */
#ifndef PL_REQUEST_H
#define PL_REQUEST_H

#include "platter.h"

/* Asks the driver for req->part; req->next(req, result) follows. */
void pl_request_part(struct pl_request *req);

/* The data has been moved, or could not be: gives the range back, then commits or finishes. */
void pl_request_data_done(struct pl_request *req, int error);

/* What was written before is made durable; pl_request_committed() follows. */
void pl_request_commit(struct pl_request *req);

/* The group of req is durable, or failed. The second is for those that run on another
 * thread or loop than the caller. */
void pl_request_committed(struct pl_request *req, int error);
void pl_request_committed_elsewhere(struct pl_request *req, int error);

/* resume(req) is called where req runs: soon on its loop, or by its blocked caller. */
void pl_request_resume(struct pl_request *req, void (*resume)(struct pl_request *req));

#endif
