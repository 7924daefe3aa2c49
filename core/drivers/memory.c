/*
 * memory.c - a sparse RAM disk.
 *
 * The disk is cut into chunks. A chunk gets memory when something is first written to
 * it, and loses it when it is zeroed or trimmed as a whole; where there is none, the
 * disk reads as zeroes. RAM is the stable medium here: a write is durable when it is
 * answered, so FLUSH has nothing to do and FUA costs nothing.
 *
 * Chunks hang in a tree of tables, six levels for 2^63 bytes. A table is made when it
 * is first needed, by whoever is first (compare and exchange), and stays until the
 * disk is closed, so the way down needs no lock. What is in a chunk, and whether there
 * is one, is guarded by one of a few locks, chosen by the chunk's number.
 */
#include "platter-driver.h"

#include <errno.h>
#include <pthread.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CHUNK_SHIFT 16
#define CHUNK       (UINT64_C(1) << CHUNK_SHIFT)
#define TABLE_SHIFT 9
#define TABLE       (1u << TABLE_SHIFT)
#define LEVELS      6 /* CHUNK_SHIFT + 6 * TABLE_SHIFT >= 63 */
#define LOCKS       64

/* In the lowest level the slots are chunks, else they are tables; NULL: none yet. */
struct table {
	_Atomic(void *) slot[TABLE];
};

struct memory {
	struct table top;
	uint64_t size;
	pthread_rwlock_t lock[LOCKS];
};

struct memory_params {
	uint64_t size;
};

static const struct pl_option memory_options[] = {
	{ "size", PL_OPT_SIZE, offsetof(struct memory_params, size), NULL, NULL, true,
	  "size of the disk; memory is taken as it is written" },
	PL_OPTION_END,
};

/* ---- the tree -------------------------------------------------------------------- */

static unsigned
slot_index(uint64_t chunk, unsigned level)
{
	return (unsigned)(chunk >> level * TABLE_SHIFT) & (TABLE - 1);
}

/* The slot of a chunk, or NULL where there is no table for it. */
static _Atomic(void *) *
find_slot(struct memory *m, uint64_t chunk)
{
	struct table *t = &m->top;

	for (unsigned level = LEVELS - 1; level > 0 && t != NULL; level--)
		t = atomic_load(&t->slot[slot_index(chunk, level)]);
	return t == NULL ? NULL : &t->slot[slot_index(chunk, 0)];
}

/* The same, and makes the tables; NULL: no memory. */
static _Atomic(void *) *
make_slot(struct memory *m, uint64_t chunk)
{
	struct table *t = &m->top;

	for (unsigned level = LEVELS - 1; level > 0; level--) {
		_Atomic(void *) *slot = &t->slot[slot_index(chunk, level)];
		void *next = atomic_load(slot);

		if (next == NULL) {
			struct table *made = calloc(1, sizeof *made);

			if (made == NULL)
				return NULL;
			if (atomic_compare_exchange_strong(slot, &next, made))
				next = made;
			else
				free(made);
		}
		t = next;
	}
	return &t->slot[slot_index(chunk, 0)];
}

/* The first chunk in [chunk, end) below t that has memory, or end. */
static uint64_t
next_chunk(struct table *t, unsigned level, uint64_t chunk, uint64_t end)
{
	uint64_t step = UINT64_C(1) << level * TABLE_SHIFT;
	unsigned i = slot_index(chunk, level);

	for (; i < TABLE && chunk < end; i++) {
		uint64_t stop = (chunk / step + 1) * step; /* of this slot */
		void *below = atomic_load(&t->slot[i]);

		if (below != NULL) {
			uint64_t found = level == 0 ? chunk
						    : next_chunk(below, level - 1, chunk,
								 stop < end ? stop : end);
			if (found < stop)
				return found;
		}
		chunk = stop;
	}
	return chunk < end ? chunk : end;
}

static void
free_below(struct table *t, unsigned level)
{
	for (unsigned i = 0; i < TABLE; i++) {
		void *below = atomic_load(&t->slot[i]);

		if (below != NULL && level > 0)
			free_below(below, level - 1);
		free(below);
	}
}

static pthread_rwlock_t *
lock_of(struct memory *m, uint64_t chunk)
{
	return &m->lock[chunk % LOCKS];
}

/* ---- one chunk ------------------------------------------------------------------- */

/* Where in a chunk, and how much of it. */
struct piece {
	uint64_t chunk;
	size_t at, length;
};

static struct piece
piece_at(uint64_t offset, uint64_t length)
{
	size_t at = offset & (CHUNK - 1);

	return (struct piece){ .chunk = offset >> CHUNK_SHIFT,
			       .at = at,
			       .length = length < CHUNK - at ? length : CHUNK - at };
}

static void
read_piece(struct memory *m, struct piece p, char *to)
{
	_Atomic(void *) *slot = find_slot(m, p.chunk);
	char *data;

	if (slot == NULL) {
		memset(to, 0, p.length);
		return;
	}
	pthread_rwlock_rdlock(lock_of(m, p.chunk));
	data = atomic_load(slot);
	if (data != NULL)
		memcpy(to, data + p.at, p.length);
	else
		memset(to, 0, p.length);
	pthread_rwlock_unlock(lock_of(m, p.chunk));
}

/* from: NULL for zeroes. Returns 0 or -ENOMEM. */
static int
write_piece(struct memory *m, struct piece p, const char *from)
{
	_Atomic(void *) *slot = make_slot(m, p.chunk);
	char *data;

	if (slot == NULL)
		return -ENOMEM;
	pthread_rwlock_wrlock(lock_of(m, p.chunk));
	data = atomic_load(slot);
	if (data == NULL) {
		data = calloc(1, CHUNK);
		atomic_store(slot, data);
	}
	if (data != NULL && from != NULL)
		memcpy(data + p.at, from, p.length);
	else if (data != NULL)
		memset(data + p.at, 0, p.length);
	pthread_rwlock_unlock(lock_of(m, p.chunk));
	return data != NULL ? 0 : -ENOMEM;
}

/* Zeroes, and gives a whole chunk's memory back. */
static void
drop_piece(struct memory *m, struct piece p)
{
	_Atomic(void *) *slot = find_slot(m, p.chunk);
	uint64_t left = m->size - (p.chunk << CHUNK_SHIFT);
	char *data;

	if (slot == NULL)
		return;
	pthread_rwlock_wrlock(lock_of(m, p.chunk));
	data = atomic_load(slot);
	if (p.length == CHUNK || (p.at == 0 && p.length == left)) {
		free(data);
		atomic_store(slot, NULL);
	} else if (data != NULL) {
		memset(data + p.at, 0, p.length);
	}
	pthread_rwlock_unlock(lock_of(m, p.chunk));
}

/* ---- requests -------------------------------------------------------------------- */

/* READ and WRITE. Returns the bytes transferred, or an error before the first. */
static int64_t
transfer(struct memory *m, const struct pl_part *part)
{
	uint64_t offset = part->offset;

	for (int i = 0; i < part->iovcnt; i++) {
		char *data = part->iov[i].iov_base;
		uint64_t left = part->iov[i].iov_len;

		while (left > 0) {
			struct piece p = piece_at(offset, left);

			if (part->op == PL_READ)
				read_piece(m, p, data);
			else if (write_piece(m, p, data) != 0)
				return offset > part->offset ? (int64_t)(offset - part->offset)
							     : -ENOMEM;
			data += p.length;
			offset += p.length;
			left -= p.length;
		}
	}
	return (int64_t)(offset - part->offset);
}

static int
allocate_zeroes(struct memory *m, uint64_t offset, uint64_t end)
{
	int error = 0;

	while (offset < end && error == 0) {
		struct piece p = piece_at(offset, end - offset);

		error = write_piece(m, p, NULL);
		offset += p.length;
	}
	return error;
}

/* Goes from one chunk that has memory to the next: the range may be all of 2^63 bytes. */
static void
drop(struct memory *m, uint64_t offset, uint64_t end)
{
	uint64_t end_chunk = (end + CHUNK - 1) >> CHUNK_SHIFT;

	while (offset < end) {
		uint64_t chunk = next_chunk(&m->top, LEVELS - 1, offset >> CHUNK_SHIFT, end_chunk);
		struct piece p;

		if (offset < chunk << CHUNK_SHIFT)
			offset = chunk << CHUNK_SHIFT;
		if (offset >= end)
			break;
		p = piece_at(offset, end - offset);
		drop_piece(m, p);
		offset += p.length;
	}
}

static void
extents(struct memory *m, struct pl_extents *x, uint64_t offset, uint64_t end)
{
	uint64_t end_chunk = (end + CHUNK - 1) >> CHUNK_SHIFT;
	bool room = true;

	while (offset < end && room) {
		uint64_t chunk = offset >> CHUNK_SHIFT;
		uint64_t next = next_chunk(&m->top, LEVELS - 1, chunk, end_chunk);
		bool data = next == chunk;
		uint64_t stop = (data ? chunk + 1 : next) << CHUNK_SHIFT;

		if (stop > end)
			stop = end;
		room = pl_extents_add(x, stop - offset, data ? 0 : PL_EXTENT_HOLE | PL_EXTENT_ZERO);
		offset = stop;
	}
}

static void
memory_submit(void *state, struct pl_request *req)
{
	struct memory *m = state;
	const struct pl_part *part = &req->part;
	uint64_t end = part->offset + part->length;
	int64_t result = 0;

	switch (part->op) {
	case PL_READ:
	case PL_WRITE: result = transfer(m, part); break;
	case PL_ZERO:
		if (part->flags & PL_NO_HOLE)
			result = allocate_zeroes(m, part->offset, end);
		else
			drop(m, part->offset, end);
		break;
	case PL_TRIM: drop(m, part->offset, end); break;
	case PL_EXTENTS: extents(m, req->extents, part->offset, end); break;
	case PL_FLUSH:
	case PL_CACHE: break;
	case PL_MODIFY: break; /* the core takes it apart */
	}
	pl_part_done(req, result);
}

/* ---- the driver ------------------------------------------------------------------ */

static int
memory_open(const void *params, unsigned open_flags, struct pl_layer *below, void **handle,
	    struct pl_error *err)
{
	const struct memory_params *p = params;
	struct memory *m = calloc(1, sizeof *m);

	(void)open_flags;
	(void)below;
	if (m == NULL)
		return pl_error_set(err, -ENOMEM, "memory disk");
	m->size = p->size;
	for (unsigned i = 0; i < LOCKS; i++)
		pthread_rwlock_init(&m->lock[i], NULL);
	*handle = m;
	return 0;
}

static void
memory_close(void *handle)
{
	struct memory *m = handle;

	free_below(&m->top, LEVELS - 1);
	for (unsigned i = 0; i < LOCKS; i++)
		pthread_rwlock_destroy(&m->lock[i]);
	free(m);
}

static void
memory_limits(void *handle, struct pl_driver_limits *out)
{
	const struct memory *m = handle;

	*out = (struct pl_driver_limits){
		.geometry = { .size = m->size,
			      .logical_block = 512,
			      .physical_block = 4096,
			      .whole = 4096,
			      .preferred = 4096 },
		.capabilities = PL_CAP_WRITE | PL_CAP_FLUSH | PL_CAP_FUA | PL_CAP_ZERO |
				PL_CAP_FAST_ZERO | PL_CAP_TRIM | PL_CAP_CACHE | PL_CAP_EXTENTS |
				PL_CAP_MULTI_CONN | PL_CAP_UNMAP | PL_CAP_UNMAP_ZEROES,
		.align = 1,
		.mem_align = 1,
		.zero_align = 1,
		.tail = m->size,
		.description = "RAM is the medium, every write is stable when it is answered",
	};
}

const struct pl_driver pl_driver_memory = {
	.name = "memory",
	.help = "a sparse disk in RAM, gone when it is closed",
	.options = memory_options,
	.params_size = sizeof(struct memory_params),
	.open = memory_open,
	.close = memory_close,
	.limits = memory_limits,
	.submit = memory_submit,
};
