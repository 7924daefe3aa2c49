/*
 * iov.h - memory in pieces.
 */
#ifndef PL_IOV_H
#define PL_IOV_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#include <sys/uio.h>

/* Uses up the first n bytes; the last piece is kept, if only as an empty one. */
static inline void
pl_iov_advance(struct iovec **iov, int *iovcnt, uint64_t n)
{
	while (n > 0) {
		struct iovec *piece = *iov;
		uint64_t take = n < piece->iov_len ? n : piece->iov_len;

		piece->iov_base = (char *)piece->iov_base + take;
		piece->iov_len -= take;
		n -= take;
		if (piece->iov_len == 0 && *iovcnt > 1) {
			(*iov)++;
			(*iovcnt)--;
		}
	}
}

/* The first n bytes, into a buffer or out of one. */
static inline void
pl_iov_copy(const struct iovec *iov, char *buffer, uint64_t n, bool into_buffer)
{
	for (uint64_t take; n > 0; iov++, buffer += take, n -= take) {
		take = n < iov->iov_len ? n : iov->iov_len;
		if (into_buffer)
			memcpy(buffer, iov->iov_base, take);
		else
			memcpy(iov->iov_base, buffer, take);
	}
}

#endif
