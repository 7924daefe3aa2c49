/*
 * transfer.h - move the data of a request, whatever the driver's alignment.
 */
#ifndef PL_TRANSFER_H
#define PL_TRANSFER_H

#include "platter.h"

void pl_read_start(struct pl_request *req);
void pl_read_medium(struct pl_request *req); /* of a READ with FUA: all before it is stable */
void pl_write_start(struct pl_request *req);

/* Takes the range of req, as all do that change data, then calls go(req). */
void pl_write_take_range(struct pl_request *req, void (*go)(struct pl_request *req));

/* Reads [req->done_to, req->end) into req->iov, then calls then(req, error). */
void pl_read_run(struct pl_request *req, void (*then)(struct pl_request *req, int error));

/* Writes [req->done_to, req->end) from req->iov, or zeroes where that is NULL, then calls
 * then(req, error). The range is held. */
void pl_write_run(struct pl_request *req, void (*then)(struct pl_request *req, int error));

#endif
