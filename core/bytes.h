/*
 * bytes.h - numbers as NBD and SCSI have them: the byte of most weight first.
 *
 * put_beN() returns what comes after the number.
 */
#ifndef PL_BYTES_H
#define PL_BYTES_H

#include <endian.h>
#include <stdint.h>
#include <string.h>

#define BYTES_GET(bits) \
	static inline uint##bits##_t get_be##bits(const uint8_t *p) \
	{ \
		uint##bits##_t n; \
		memcpy(&n, p, sizeof n); \
		return be##bits##toh(n); \
	}
#define BYTES_PUT(bits) \
	static inline uint8_t *put_be##bits(uint8_t *p, uint##bits##_t n) \
	{ \
		n = htobe##bits(n); \
		memcpy(p, &n, sizeof n); \
		return p + sizeof n; \
	}
BYTES_GET(16)
BYTES_GET(32)
BYTES_GET(64)
BYTES_PUT(16)
BYTES_PUT(32)
BYTES_PUT(64)

static inline uint32_t
get_be24(const uint8_t *p)
{
	return (uint32_t)p[0] << 16 | (uint32_t)p[1] << 8 | p[2];
}

static inline uint8_t *
put_be24(uint8_t *p, uint32_t n)
{
	*p++ = (uint8_t)(n >> 16);
	*p++ = (uint8_t)(n >> 8);
	*p++ = (uint8_t)n;
	return p;
}

#endif
