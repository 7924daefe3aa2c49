/* pool.c - aligned memory for data that must be copied on its way. */
#include "pool.h"

#include "request.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>

#define POOL_BUFFERS 16

struct pl_pool {
	char *memory;
	unsigned free_count;
	char *free[POOL_BUFFERS];
	struct pl_request *first, *last; /* who waits for a buffer */
};

char pl_zeroes[PL_POOL_BUFFER] __attribute__((__aligned__(65536)));

int
pl_pool_new(struct pl_pool **out)
{
	struct pl_pool *pool = calloc(1, sizeof *pool);

	if (pool == NULL)
		return -ENOMEM;
	if (posix_memalign((void **)&pool->memory, 65536, POOL_BUFFERS * PL_POOL_BUFFER) != 0) {
		free(pool);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < POOL_BUFFERS; i++)
		pool->free[pool->free_count++] = pool->memory + i * PL_POOL_BUFFER;
	*out = pool;
	return 0;
}

void
pl_pool_free(struct pl_pool *pool)
{
	assert(pool->free_count == POOL_BUFFERS && pool->first == NULL);
	free(pool->memory);
	free(pool);
}

struct iovec
pl_pool_memory(const struct pl_pool *pool)
{
	return (struct iovec){ pool->memory, POOL_BUFFERS * PL_POOL_BUFFER };
}

bool
pl_pool_get(struct pl_pool *pool, struct pl_request *req, void (*resume)(struct pl_request *req))
{
	if (pool->free_count > 0) {
		req->bounce.buffer = pool->free[--pool->free_count];
		return true;
	}
	req->resume = resume;
	req->link = NULL;
	if (pool->last != NULL)
		pool->last->link = req;
	else
		pool->first = req;
	pool->last = req;
	return false;
}

void
pl_pool_put(struct pl_pool *pool, char *buffer)
{
	struct pl_request *req = pool->first;

	if (req == NULL) {
		assert(pool->free_count < POOL_BUFFERS);
		pool->free[pool->free_count++] = buffer;
		return;
	}
	pool->first = req->link;
	if (pool->first == NULL)
		pool->last = NULL;
	req->bounce.buffer = buffer;
	pl_request_resume(req, req->resume);
}
