/*
 * part.h - for drivers that work on a part with a thread and memory of their own.
 */
#ifndef PL_PART_H
#define PL_PART_H

#include "platter-driver.h"

#include <string.h>

/* The first length bytes: of a WRITE into buffer, of a READ out of it. */
static inline void
part_copy(const struct pl_part *part, char *buffer, uint64_t length)
{
	for (const struct iovec *iov = part->iov; length > 0; iov++) {
		uint64_t n = length < iov->iov_len ? length : iov->iov_len;

		if (part->op == PL_READ)
			memcpy(iov->iov_base, buffer, n);
		else
			memcpy(buffer, iov->iov_base, n);
		buffer += n;
		length -= n;
	}
}

#endif
