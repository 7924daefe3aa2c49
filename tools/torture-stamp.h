/*
 * torture-stamp.h - data that tells who wrote it, where to, and when.
 *
 * All that `platter torture` writes is a row of cells of 64 bytes. Each names its run, its place
 * (offset / 64 from the start of the target), and the write that put it there: its sequence
 * number, its first cell and how many it has. So a cell can be judged by itself, whatever became
 * of its neighbours, and a write need not begin or end at a block.
 */
#ifndef TORTURE_STAMP_H
#define TORTURE_STAMP_H

#include <stddef.h>
#include <stdint.h>

#define CELL 64

struct stamp {
	uint64_t run;     /* a random number, never 0 */
	uint64_t place;   /* of this cell */
	uint64_t seq;     /* of the write; from 1 on, in the order of sending */
	uint64_t first;   /* cell of the write */
	uint32_t count;   /* of its cells */
	uint64_t intents; /* in the journal, when it was sent; see torture-journal.h */
};

enum cell_kind {
	CELL_STAMP,
	CELL_ZERO,
	CELL_OTHER, /* no stamp, or not a whole one */
};

void stamp_write(void *cell, const struct stamp *s);
enum cell_kind stamp_read(const void *cell, struct stamp *s); /* s: only of a CELL_STAMP */

/* Fills the data of a write: stamps for s->count cells from s->first on. */
void stamp_fill(void *data, const struct stamp *s);

/* CRC32C; of stamps and of the journal's records. */
uint32_t torture_crc(const void *data, size_t length);

#endif
