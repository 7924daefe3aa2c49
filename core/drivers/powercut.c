/*
 * powercut.c - a volatile write cache over another driver, which can lose power.
 *
 * The good path: a write, zero or trim becomes a piece in a list in RAM and is answered.
 * A read sees the pieces over what is below. A flush writes down, in order, the pieces
 * that were answered before it was asked for (not those that came meanwhile: nobody may
 * rely on them), then flushes below. A FUA write goes down at once, and what older pieces
 * have in its blocks goes down before it or is forgotten, so that it cannot come back over it.
 *
 * When the power is lost, each piece that is still in the list is kept, dropped or torn
 * (some of its blocks survive), as the seed says; from then on everything fails. What is
 * below is the crash image: it is found there when the export is opened again without
 * powercut. A process that is killed has dropped every piece. A clean close writes them
 * all down.
 *
 * What can go wrong: below fails while a piece is written down. Then the piece stays, and
 * who wanted it down gets the error: a flush, or a write for which there is no room.
 */
#include "powercut.h"

#include "iov.h"
#include "platter-driver.h"
#include "pool.h"

#include <errno.h>
#include <inttypes.h>
#include <pthread.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FUA_NATIVE, FUA_COMMIT };

struct powercut_params {
	uint64_t cut, seed, dirty;
	int fua;
};

static const struct pl_option powercut_options[] = {
	{ "cut", PL_OPT_UINT, offsetof(struct powercut_params, cut), NULL, "0", false,
	  "the number of the write, flush, zero or trim at which the power is lost, 0: never" },
	{ "seed", PL_OPT_UINT, offsetof(struct powercut_params, seed), NULL, "0", false,
	  "rules what survives of each unflushed piece" },
	{ "dirty", PL_OPT_SIZE, offsetof(struct powercut_params, dirty), NULL, "64M", false,
	  "what the cache holds at most; beyond it the oldest is written down" },
	{ "powercut-fua", PL_OPT_ENUM, offsetof(struct powercut_params, fua), "native|commit",
	  "native", false, "the cache takes FUA writes itself, or leaves them to a flush" },
	PL_OPTION_END,
};

struct piece {
	struct piece *next;
	uint64_t number; /* older ones have lower numbers */
	enum pl_op op;   /* WRITE, ZERO, TRIM */
	unsigned flags;
	uint64_t offset, length;
	char *data; /* WRITE */
};

struct powercut {
	struct powercut_params params;
	struct pl_layer *below;
	struct pl_loop *loop; /* everything below is called through it */
	void *state;

	atomic_uint_fast64_t numbers; /* pieces there ever were */

	pthread_mutex_t lock; /* of what follows, and of the medium */
	struct piece *first, **last;
	uint64_t dirty; /* bytes that the list costs */
	uint64_t operations;
	bool dead;
};

struct channel {
	struct powercut *pc;
	struct pl_loop *loop;
};

/* ---- the list of pieces ---------------------------------------------------------- */

static uint64_t
piece_cost(const struct piece *piece)
{
	return sizeof *piece + (piece->op == PL_WRITE ? piece->length : 0);
}

static uint64_t
piece_end(const struct piece *piece)
{
	return piece->offset + piece->length;
}

static void
piece_free(struct piece *piece)
{
	free(piece->data);
	free(piece);
}

/* A piece without its data. */
static struct piece *
piece_new(const struct powercut *pc, enum pl_op op, unsigned flags, uint64_t offset,
	  uint64_t length)
{
	uint32_t align = pl_layer_limits(pc->below)->mem_align;
	struct piece *piece = calloc(1, sizeof *piece);

	if (piece == NULL)
		return NULL;
	piece->op = op;
	piece->flags = flags;
	piece->offset = offset;
	piece->length = length;
	if (op == PL_WRITE &&
	    posix_memalign((void **)&piece->data, align > 4096 ? align : 4096, length) != 0) {
		free(piece);
		return NULL;
	}
	return piece;
}

/* Puts piece at *at in the list. */
static void
list_insert(struct powercut *pc, struct piece **at, struct piece *piece)
{
	piece->next = *at;
	*at = piece;
	if (pc->last == at)
		pc->last = &piece->next;
	pc->dirty += piece_cost(piece);
}

static void
list_remove(struct powercut *pc, struct piece **at)
{
	struct piece *piece = *at;

	*at = piece->next;
	if (pc->last == &piece->next)
		pc->last = at;
	pc->dirty -= piece_cost(piece);
	piece_free(piece);
}

static void
list_append(struct powercut *pc, struct piece *piece)
{
	piece->number = atomic_fetch_add(&pc->numbers, 1) + 1;
	list_insert(pc, pc->last, piece);
}

/* Makes two of each piece that has offset in its middle. Returns 0 or -ENOMEM. */
static int
list_split(struct powercut *pc, uint64_t offset)
{
	for (struct piece **at = &pc->first; *at != NULL; at = &(*at)->next) {
		struct piece *piece = *at, *half;

		if (offset <= piece->offset || offset >= piece_end(piece))
			continue;
		half = piece_new(pc, piece->op, piece->flags, offset, piece_end(piece) - offset);
		if (half == NULL)
			return -ENOMEM;
		half->number = piece->number;
		if (half->data != NULL)
			memcpy(half->data, piece->data + (offset - piece->offset), half->length);
		pc->dirty -= piece_cost(piece);
		piece->length = offset - piece->offset;
		pc->dirty += piece_cost(piece);
		list_insert(pc, &piece->next, half);
		at = &piece->next;
	}
	return 0;
}

/* Forgets what was split to lie inside. */
static void
list_forget(struct powercut *pc, uint64_t offset, uint64_t end)
{
	struct piece **at = &pc->first;

	while (*at != NULL) {
		if ((*at)->offset >= offset && piece_end(*at) <= end)
			list_remove(pc, at);
		else
			at = &(*at)->next;
	}
}

/* ---- the medium ------------------------------------------------------------------ */

static int
call_below(struct powercut *pc, enum pl_op op, unsigned flags, uint64_t offset, uint64_t length,
	   char *data)
{
	struct iovec iov = { data, length };
	struct pl_part part = {
		.op = op,
		.flags = flags,
		.offset = offset,
		.length = length,
		.iov = data != NULL ? &iov : NULL,
		.iovcnt = data != NULL,
	};

	return pl_layer_call(pc->below, pc->state, &part);
}

static int
flush_below(struct powercut *pc)
{
	if ((pl_layer_limits(pc->below)->capabilities & PL_CAP_FLUSH) == 0)
		return 0;
	return call_below(pc, PL_FLUSH, 0, 0, 0, NULL);
}

/* How much of [offset, end) below takes as one READ or WRITE. */
static uint64_t
transfer_length(const struct powercut *pc, uint64_t offset, uint64_t end)
{
	const struct pl_driver_limits *limits = pl_layer_limits(pc->below);
	uint64_t blocks_end = limits->geometry.size / limits->align * limits->align;

	if (offset < blocks_end && end > blocks_end)
		end = blocks_end;
	return end - offset < PL_POOL_BUFFER ? end - offset : PL_POOL_BUFFER;
}

/* Where below cannot zero, or not this range. */
static int
zero_by_writing(struct powercut *pc, uint64_t offset, uint64_t end)
{
	int error = 0;

	while (offset < end && error == 0) {
		uint64_t length = transfer_length(pc, offset, end);

		error = call_below(pc, PL_WRITE, 0, offset, length, pl_zeroes);
		offset += length;
	}
	return error;
}

/* Writes a piece, or what survives of one, to the medium. */
static int
put_below(void *arg, const struct piece *piece)
{
	struct powercut *pc = arg;
	const struct pl_driver_limits *limits = pl_layer_limits(pc->below);
	uint64_t end = piece_end(piece);
	bool aligned = piece->offset % limits->zero_align == 0 &&
		       (end % limits->zero_align == 0 || end == limits->geometry.size);
	int error = -EOPNOTSUPP;

	if (piece->op == PL_WRITE)
		return call_below(pc, PL_WRITE, 0, piece->offset, piece->length, piece->data);
	if (aligned)
		error = call_below(pc, piece->op, piece->flags & PL_NO_HOLE, piece->offset,
				   piece->length, NULL);
	if (error == -EOPNOTSUPP) /* a read may have seen zeroes: of a TRIM, too */
		error = zero_by_writing(pc, piece->offset, end);
	return error;
}

static bool
is_older(const struct piece *piece, uint64_t number)
{
	return piece != NULL && piece->number <= number;
}

static int
write_down_oldest(struct powercut *pc)
{
	int error = put_below(pc, pc->first);

	if (error == 0)
		list_remove(pc, &pc->first);
	return error;
}

static int
make_room(struct powercut *pc, uint64_t cost)
{
	int error = 0;

	while (pc->first != NULL && pc->dirty + cost > pc->params.dirty && error == 0)
		error = write_down_oldest(pc);
	return error;
}

/* ---- what survives --------------------------------------------------------------- */

/* splitmix64 */
static uint64_t
random_next(uint64_t *seed)
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

/* What a medium writes whole or not at all. */
static uint64_t
atom(const struct powercut *pc)
{
	const struct pl_driver_limits *limits = pl_layer_limits(pc->below);
	uint64_t bytes = limits->geometry.logical_block;

	if (bytes < limits->align)
		bytes = limits->align;
	return bytes < limits->mem_align ? limits->mem_align : bytes;
}

/* Runs of the piece's blocks survive or not, in turns of random length. */
static int
tear(const struct powercut *pc, const struct piece *piece, uint64_t *seed,
     int (*put)(void *arg, const struct piece *piece), void *arg)
{
	uint64_t block = atom(pc), end = piece_end(piece);
	uint64_t longest = 1 + piece->length / block / 4;
	int error = 0;

	for (uint64_t at = piece->offset, stop; at < end && error == 0; at = stop) {
		struct piece run = *piece;

		stop = (at / block + 1 + random_next(seed) % longest) * block;
		if (stop > end)
			stop = end;
		if (random_next(seed) % 2 == 0)
			continue;
		run.offset = at;
		run.length = stop - at;
		if (run.data != NULL)
			run.data += at - piece->offset;
		error = put(arg, &run);
	}
	return error;
}

/* Calls put for what this seed lets survive, in order. */
static int
survivors(const struct powercut *pc, uint64_t seed,
	  int (*put)(void *arg, const struct piece *piece), void *arg)
{
	/* From a cache that loses all to one that had nearly finished. */
	uint64_t kept = random_next(&seed) % 5 * 25;
	uint32_t mem_align = pl_layer_limits(pc->below)->mem_align;
	int error = 0;

	for (const struct piece *piece = pc->first; piece != NULL && error == 0;
	     piece = piece->next) {
		/* A run's memory must be aligned, too. */
		bool may_tear = kept > 0 && kept < 100 && piece->offset % mem_align == 0;

		if (may_tear && random_next(&seed) % 4 == 0)
			error = tear(pc, piece, &seed, put, arg);
		else if (random_next(&seed) % 100 < kept)
			error = put(arg, piece);
	}
	return error;
}

static void
lose_power(struct powercut *pc)
{
	int error = survivors(pc, pc->params.seed, put_below, pc);

	if (error != 0)
		log_warn("powercut: %s: the crash image lacks what else might have survived",
			 strerror(-error));
	log_info("powercut: the power is lost at operation %" PRIu64 ", seed %" PRIu64,
		 pc->operations, pc->params.seed);
	pc->dead = true;
}

/* ---- for tests: an image of this moment ------------------------------------------ */

static int
put_image(void *arg, const struct piece *piece)
{
	char *image = arg;

	if (piece->op == PL_WRITE)
		memcpy(image + piece->offset, piece->data, piece->length);
	else
		memset(image + piece->offset, 0, piece->length);
	return 0;
}

static int
read_medium(struct powercut *pc, char *image)
{
	const struct pl_driver_limits *limits = pl_layer_limits(pc->below);
	uint64_t size = limits->geometry.size;
	size_t align = limits->mem_align > sizeof(void *) ? limits->mem_align : sizeof(void *);
	char *buffer;
	int error = 0;

	if (posix_memalign((void **)&buffer, align,
			   size < PL_POOL_BUFFER ? size : PL_POOL_BUFFER) != 0)
		return -ENOMEM;
	for (uint64_t at = 0, length; at < size && error == 0; at += length) {
		length = transfer_length(pc, at, size);
		error = call_below(pc, PL_READ, 0, at, length, buffer);
		memcpy(image + at, buffer, length);
	}
	free(buffer);
	return error;
}

int
powercut_image(void *handle, uint64_t seed, void *image)
{
	struct powercut *pc = handle;
	int error;

	pthread_mutex_lock(&pc->lock);
	error = read_medium(pc, image);
	if (error == 0 && !pc->dead)
		error = survivors(pc, seed, put_image, image);
	pthread_mutex_unlock(&pc->lock);
	return error;
}

/* ---- operations ------------------------------------------------------------------ */

/* Copies what the list has of a piece's range. */
static void
read_pieces(const struct powercut *pc, struct piece *into)
{
	for (const struct piece *piece = pc->first; piece != NULL; piece = piece->next) {
		uint64_t from = piece->offset > into->offset ? piece->offset : into->offset;
		uint64_t to =
			piece_end(piece) < piece_end(into) ? piece_end(piece) : piece_end(into);
		char *data = into->data + (from - into->offset);

		if (from >= to)
			continue;
		if (piece->op == PL_WRITE)
			memcpy(data, piece->data + (from - piece->offset), to - from);
		else
			memset(data, 0, to - from);
	}
}

static int64_t
operate_read(struct powercut *pc, const struct pl_part *part)
{
	struct piece *piece = piece_new(pc, PL_WRITE, 0, part->offset, part->length);
	int error;

	if (piece == NULL)
		return -ENOMEM;
	error = call_below(pc, PL_READ, part->flags, part->offset, part->length, piece->data);
	if (error == 0) {
		read_pieces(pc, piece);
		pl_iov_copy(part->iov, piece->data, part->length, false);
	}
	piece_free(piece);
	return error != 0 ? error : (int64_t)part->length;
}

/* What the cache has of [start, end) and piece does not cover. */
static int
write_down_edges(struct powercut *pc, const struct piece *piece, uint64_t start, uint64_t end)
{
	int error = 0;

	for (const struct piece *p = pc->first; p != NULL && error == 0; p = p->next) {
		bool covered = p->offset >= piece->offset && piece_end(p) <= piece_end(piece);

		if (p->offset >= start && piece_end(p) <= end && !covered)
			error = put_below(pc, p);
	}
	return error;
}

/* The medium writes blocks whole: those at the ends of piece have also what the cache has of
 * them, so that no older write is left with a part of one. */
static int
write_through(struct powercut *pc, const struct piece *piece)
{
	bool fua = (pl_layer_limits(pc->below)->capabilities & PL_CAP_FUA) != 0;
	uint64_t block = atom(pc);
	uint64_t start = piece->offset / block * block;
	uint64_t end = (piece_end(piece) + block - 1) / block * block;
	int error = list_split(pc, start);

	if (error == 0)
		error = list_split(pc, end);
	if (error == 0)
		error = write_down_edges(pc, piece, start, end);
	if (error == 0)
		error = call_below(pc, PL_WRITE, fua ? PL_FUA : 0, piece->offset, piece->length,
				   piece->data);
	if (error == 0 && !fua)
		error = flush_below(pc);
	if (error == 0)
		list_forget(pc, start, end);
	return error;
}

/* WRITE, ZERO, TRIM */
static int64_t
operate_change(struct powercut *pc, const struct pl_part *part)
{
	struct piece *piece = piece_new(pc, part->op, part->flags, part->offset, part->length);
	int error;

	if (piece == NULL)
		return -ENOMEM;
	if (piece->op == PL_WRITE)
		pl_iov_copy(part->iov, piece->data, part->length, true);
	if (++pc->operations == pc->params.cut) {
		list_append(pc, piece);
		lose_power(pc);
		return -EIO;
	}
	if ((part->flags & PL_FUA) != 0) {
		error = write_through(pc, piece);
		piece_free(piece);
	} else {
		error = make_room(pc, piece_cost(piece));
		if (error == 0)
			list_append(pc, piece);
		else
			piece_free(piece);
	}
	if (error != 0)
		return error;
	return part->op == PL_WRITE ? (int64_t)part->length : 0;
}

/* Pieces up to this number. Others get their turn between them, as on a busy disk. */
static int
operate_flush(struct powercut *pc, uint64_t number)
{
	int error = 0;

	if (++pc->operations == pc->params.cut) {
		lose_power(pc);
		return -EIO;
	}
	while (error == 0 && is_older(pc->first, number)) {
		error = write_down_oldest(pc);
		pthread_mutex_unlock(&pc->lock);
		sched_yield();
		pthread_mutex_lock(&pc->lock);
		if (pc->dead)
			error = -EIO;
	}
	return error != 0 ? error : flush_below(pc);
}

static int64_t
operate(struct pl_io *io)
{
	struct pl_request *req = pl_request_of(io);
	struct powercut *pc = ((struct channel *)(uintptr_t)req->scratch[0])->pc;
	const struct pl_part *part = &req->part;
	int64_t result;

	pthread_mutex_lock(&pc->lock);
	if (pc->dead)
		result = -EIO;
	else if (part->op == PL_READ)
		result = operate_read(pc, part);
	else if (part->op == PL_FLUSH)
		result = operate_flush(pc, req->scratch[1]);
	else
		result = operate_change(pc, part);
	pthread_mutex_unlock(&pc->lock);
	return result;
}

static void
operate_done(struct pl_io *io, int64_t result)
{
	pl_part_done(pl_request_of(io), result);
}

static void
powercut_submit(void *state, struct pl_request *req)
{
	struct channel *c = state;

	req->scratch[0] = (uintptr_t)c;
	req->scratch[1] = atomic_load(&c->pc->numbers); /* for a FLUSH: what it covers */
	req->io = (struct pl_io){
		.kind = PL_IO_CALL,
		.slot = -1,
		.call = operate,
		.done = operate_done,
	};
	pl_loop_io(c->loop, &req->io);
}

/* ---- the driver ------------------------------------------------------------------ */

static int
powercut_open(const void *params, unsigned open_flags, struct pl_layer *below, void **handle,
	      struct pl_error *err)
{
	struct powercut *pc = calloc(1, sizeof *pc);
	int error;

	(void)open_flags;
	if (pc == NULL)
		return pl_error_set(err, -ENOMEM, "powercut");
	pc->params = *(const struct powercut_params *)params;
	pc->below = below;
	pc->last = &pc->first;
	pthread_mutex_init(&pc->lock, NULL);
	error = pl_loop_new_blocking(&pc->loop, err);
	if (error != 0)
		goto no_loop;
	error = pl_layer_attach(below, pc->loop, &pc->state, err);
	if (error != 0)
		goto no_state;
	*handle = pc;
	return 0;
no_state:
	pl_loop_free(pc->loop);
no_loop:
	pthread_mutex_destroy(&pc->lock);
	free(pc);
	return error;
}

static void
powercut_close(void *handle)
{
	struct powercut *pc = handle;
	int error = 0;

	while (error == 0 && !pc->dead && pc->first != NULL)
		error = write_down_oldest(pc);
	if (error != 0)
		log_error("powercut: what was not flushed is lost: %s", strerror(-error));
	while (pc->first != NULL)
		list_remove(pc, &pc->first);
	pl_layer_detach(pc->below, pc->state);
	pl_loop_free(pc->loop);
	pthread_mutex_destroy(&pc->lock);
	free(pc);
}

static void
powercut_limits(void *handle, struct pl_driver_limits *out)
{
	const struct powercut *pc = handle;
	const struct pl_driver_limits *below = pl_layer_limits(pc->below);
	/* Not CACHE and EXTENTS, which would have to look through the pieces. */
	unsigned capabilities = PL_CAP_WRITE | PL_CAP_FLUSH | PL_CAP_ZERO | PL_CAP_TRIM |
				PL_CAP_MULTI_CONN | PL_CAP_ROTATIONAL | PL_CAP_UNMAP |
				PL_CAP_UNMAP_ZEROES;

	*out = *below;
	out->geometry.whole = (uint32_t)atom(pc);
	out->capabilities &= capabilities;
	if (pc->params.fua == FUA_NATIVE && (out->capabilities & PL_CAP_FLUSH) != 0)
		out->capabilities |= PL_CAP_FUA;
	snprintf(out->description, sizeof out->description,
		 "a volatile cache that loses power; below: %.100s", below->description);
}

static const char *
powercut_name(void *handle)
{
	const struct powercut *pc = handle;

	return pl_layer_name(pc->below);
}

static int
powercut_attach(void *handle, struct pl_loop *loop, void **state, struct pl_error *err)
{
	struct channel *c = malloc(sizeof *c);

	if (c == NULL)
		return pl_error_set(err, -ENOMEM, "powercut");
	*c = (struct channel){ .pc = handle, .loop = loop };
	*state = c;
	return 0;
}

const struct pl_driver pl_driver_powercut = {
	.name = "powercut",
	.help = "a volatile write cache that loses power, to test who relies on it",
	.options = powercut_options,
	.params_size = sizeof(struct powercut_params),
	.over = true,
	.open = powercut_open,
	.close = powercut_close,
	.limits = powercut_limits,
	.name_of = powercut_name,
	.attach = powercut_attach,
	.detach = free,
	.submit = powercut_submit,
};
