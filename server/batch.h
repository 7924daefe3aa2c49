/*
 * batch.h - what one send takes: heads that are made for it, and data that lies elsewhere.
 */
#ifndef BATCH_H
#define BATCH_H

#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

struct batch {
	struct iovec *iov;
	int iovcnt;
	uint8_t *heads;
	size_t used; /* bytes of these */
};

/* Data that lies right behind what came last is one piece with it. */
static inline void
batch_add(struct batch *b, void *data, size_t length)
{
	struct iovec *next = &b->iov[b->iovcnt];

	if (b->iovcnt > 0 && (char *)next[-1].iov_base + next[-1].iov_len == (char *)data) {
		next[-1].iov_len += length;
		return;
	}
	*next = (struct iovec){ data, length };
	b->iovcnt++;
}

/* Where the next head is to be written. */
static inline uint8_t *
batch_head(const struct batch *b)
{
	return b->heads + b->used;
}

/* What was written up to p, after the heads so far, goes out. */
static inline void
batch_add_head(struct batch *b, const uint8_t *p)
{
	size_t length = (size_t)(p - batch_head(b));

	batch_add(b, batch_head(b), length);
	b->used += length;
}

#endif
