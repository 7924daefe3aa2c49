/*
 * digest.c - CRC32C, as header and data digests have it.
 *
 * RFC 7143, "Header Digest and Data Digest": the polynomial of Castagnoli, all ones at the start,
 * inverted at the end, and then the byte of least weight comes first, unlike other numbers.
 */
#include "pdu.h"

#include <assert.h>
#include <isa-l.h>
#include <limits.h>

uint32_t
iscsi_crc_more(uint32_t crc, const void *data, size_t length)
{
	assert(length <= INT_MAX);
	/* It only reads what its prototype would let it change. */
	return crc32_iscsi((unsigned char *)data, (int)length, crc);
}

void
iscsi_crc_end(uint32_t crc, uint8_t to[ISCSI_DIGEST])
{
	crc = htole32(~crc);
	memcpy(to, &crc, ISCSI_DIGEST);
}
