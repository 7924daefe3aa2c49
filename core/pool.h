/*
 * pool.h - aligned memory for data that must be copied on its way.
 *
 * One pool a ring loop, registered with its ring; a caller that blocks uses the one
 * buffer of its thread. All buffers have PL_POOL_BUFFER bytes.
 */
#ifndef PL_POOL_H
#define PL_POOL_H

#include "platter.h"

struct pl_pool;

int pl_pool_new(struct pl_pool **pool);
void pl_pool_free(struct pl_pool *pool); /* asserts that no buffer is out */
struct iovec pl_pool_memory(const struct pl_pool *pool);

/* Puts a buffer into req->bounce.buffer; false: there is none yet, and when it is there,
 * pl_request_resume(req, resume) follows. First come, first served. */
bool pl_pool_get(struct pl_pool *pool, struct pl_request *req,
		 void (*resume)(struct pl_request *req));
void pl_pool_put(struct pl_pool *pool, char *buffer);

/* PL_POOL_BUFFER zeroes. Only to be read, whatever struct iovec says. */
extern char pl_zeroes[PL_POOL_BUFFER];

#endif
