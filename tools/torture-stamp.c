#include "torture-stamp.h"

#include "bytes.h"
#include "iscsi/pdu.h"

/* A cell: the checksum of all that follows it, six numbers, and bytes that follow from them. */

uint32_t
torture_crc(const void *data, size_t length)
{
	return ~iscsi_crc_more(ISCSI_CRC_START, data, length);
}

void
stamp_write(void *cell, const struct stamp *s)
{
	uint8_t *p = cell, *at = p + 4;

	at = put_be32(at, s->count);
	at = put_be64(at, s->run);
	at = put_be64(at, s->place);
	at = put_be64(at, s->seq);
	at = put_be64(at, s->first);
	at = put_be64(at, s->intents);
	/* No two stamps have the same, so that data that was swapped there shows, too. */
	for (uint64_t n = (s->seq << 20 ^ s->place) * 0x9e3779b97f4a7c15; at < p + CELL;
	     n += s->run)
		at = put_be64(at, n);
	put_be32(p, torture_crc(p + 4, CELL - 4));
}

enum cell_kind
stamp_read(const void *cell, struct stamp *s)
{
	static const uint8_t zeroes[CELL];
	const uint8_t *p = cell;

	if (memcmp(p, zeroes, CELL) == 0)
		return CELL_ZERO;
	if (get_be32(p) != torture_crc(p + 4, CELL - 4))
		return CELL_OTHER;
	*s = (struct stamp){
		.count = get_be32(p + 4),
		.run = get_be64(p + 8),
		.place = get_be64(p + 16),
		.seq = get_be64(p + 24),
		.first = get_be64(p + 32),
		.intents = get_be64(p + 40),
	};
	return CELL_STAMP;
}

void
stamp_fill(void *data, const struct stamp *s)
{
	struct stamp one = *s;
	uint8_t *cell = data;

	for (one.place = s->first; one.place < s->first + s->count; one.place++, cell += CELL)
		stamp_write(cell, &one);
}
