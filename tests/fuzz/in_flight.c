/*
 * in_flight.c - whatever is in flight at once and comes to its end in whatever order, each request
 * is answered once; a read finds what was written, nobody comes between the halves of a MODIFY, and
 * what was answered as durable is there whenever the power is lost.
 *
 * Input: which way FUA goes; then requests for whole blocks of a small disk that keeps what it is
 * given in a volatile cache and takes its time; which io comes to its end next; and when the power
 * is lost, with a seed. A history of what was asked and answered when says what may be found.
 */
#include "dry.h"
#include "export.h"
#include "fuzz.h"
#include "layer.h"
#include "loop.h"

#include "drivers/powercut.h"
#include "platter-driver.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define BLOCK   512
#define BLOCKS  16
#define BYTES   (BLOCKS * BLOCK)
#define FLIGHT  8
#define INPUT   160 /* bytes that are used of one */
#define HISTORY 255 /* each write has a byte of its own; 0 is what there is without one */

/* Times are counted from 1; 0: not yet. */
struct event {
	uint8_t value;
	unsigned first, count; /* blocks */
	unsigned begun, ended, durable;
};

struct flight {
	struct pl_request req;
	struct iovec iov;
	struct event *event; /* NULL: it changes nothing */
	unsigned first, count, begun;
	bool under_way;
	bool modifying; /* between its halves */
	uint8_t data[BYTES];
};

static struct pl_loop *loop;
static struct disk {
	struct pl_export *export;
	struct pl_channel *channel;
} disks[2], *disk;
static struct flight flights[FLIGHT];
static struct event history[HISTORY];
static unsigned events, now, under_way;

/* ---- the disk -------------------------------------------------------------------- */

/* Once for all inputs. */
static void
open_disk(struct disk *d, const char *fua)
{
	const char *const words[][2] = {
		{ "driver", "fault" },   { "over", "powercut,memory" },
		{ "size", "8192" },      { "fault", "delay" },
		{ "delay", "1ns" },      { "repeat", "forever" },
		{ "powercut-fua", fua },
	};
	struct pl_params *params = pl_params_new();
	int error = 0;

	for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
		error |= pl_params_add(params, words[i][0], words[i][1], NULL);
	error |= pl_export_open(params, 0, &d->export, NULL);
	error |= pl_channel_open(d->export, loop, &d->channel, NULL);
	assert(error == 0);
	pl_params_free(params);
}

static void
set_up(void)
{
	int error = pl_loop_new(&loop, NULL);

	assert(error == 0);
	open_disk(&disks[0], "native");
	open_disk(&disks[1], "commit");
}

/* ---- what may be found ----------------------------------------------------------- */

static bool
covers(const struct event *e, unsigned block)
{
	return block >= e->first && block - e->first < e->count;
}

/* Whether `old` (NULL: what was there at first) is behind a write that came after it. since: 0:
 * only durable writes count; else those answered before then. */
static bool
is_overwritten(const struct event *old, unsigned block, unsigned since)
{
	for (const struct event *e = history; e < history + events; e++) {
		bool counts = since != 0 ? e->ended != 0 && e->ended < since : e->durable != 0;

		if (counts && covers(e, block) &&
		    (old == NULL || (old->ended != 0 && old->ended < e->begun)))
			return true;
	}
	return false;
}

static void
check_block(const uint8_t *data, unsigned block, unsigned since)
{
	assert(memcmp(data, data + 1, BLOCK - 1) == 0);
	if (data[0] == 0 && !is_overwritten(NULL, block, since))
		return;
	for (const struct event *e = history; e < history + events; e++) {
		if (e->value == data[0] && covers(e, block) && !is_overwritten(e, block, since))
			return;
	}
	assert(!"a block is older than it may be, or nobody's");
}

static void
lose_power(uint64_t seed)
{
	void *powercut = pl_layer_handle(disk->export->layer, &pl_driver_powercut);
	uint8_t image[BYTES];

	assert(powercut_image(powercut, seed, image) == 0);
	for (unsigned i = 0; i < BLOCKS; i++)
		check_block(image + i * BLOCK, i, 0);
}

/* ---- requests -------------------------------------------------------------------- */

/* What was answered before a flush was asked for is durable when that is done. */
static void
made_durable(unsigned before)
{
	for (struct event *e = history; e < history + events; e++) {
		if (e->durable == 0 && e->ended != 0 && e->ended < before)
			e->durable = now;
	}
}

/* FUA writes are answered later than they are done. */
static void
nobody_between(const struct flight *f)
{
	for (const struct flight *other = flights; other < flights + FLIGHT; other++)
		assert(other == f || !other->modifying || f->first + f->count <= other->first ||
		       other->first + other->count <= f->first);
}

static void
done(struct pl_request *req, int error)
{
	struct flight *f = (struct flight *)req;

	assert(f->under_way && error == 0);
	f->under_way = false;
	f->modifying = false;
	under_way--;
	now++;
	if (f->event != NULL) {
		f->event->ended = now;
		if ((req->flags & PL_FUA) != 0)
			f->event->durable = now;
		else
			nobody_between(f);
	}
	if (req->op == PL_FLUSH)
		made_durable(f->begun);
	for (unsigned i = 0; req->op == PL_READ && i < f->count; i++)
		check_block(f->data + i * BLOCK, f->first + i, f->begun);
}

static int
modify(struct pl_request *req)
{
	struct flight *f = (struct flight *)req;

	for (unsigned i = 0; i < f->count; i++)
		check_block(f->data + i * BLOCK, f->first + i, f->begun);
	memset(f->data, f->event->value, f->count * BLOCK);
	f->modifying = true;
	return 0;
}

static void
submit(struct fuzz_input *in, struct flight *f)
{
	static const enum pl_op ops[] = { PL_READ,  PL_WRITE, PL_FLUSH, PL_ZERO,
					  PL_WRITE, PL_TRIM,  PL_WRITE, PL_MODIFY };
	enum pl_op op = ops[fuzz_next(in, 8)];
	bool fua = fuzz_next(in, 2) != 0 && (op == PL_WRITE || op == PL_ZERO || op == PL_TRIM);

	f->first = (unsigned)fuzz_next(in, BLOCKS);
	f->count = 1 + (unsigned)fuzz_next(in, BLOCKS - f->first);
	f->event = NULL;
	if (op == PL_WRITE || op == PL_MODIFY || op == PL_ZERO || op == PL_TRIM) {
		if (events == HISTORY)
			return;
		f->event = &history[events++];
		*f->event = (struct event){ .value = (uint8_t)events,
					    .first = f->first,
					    .count = f->count,
					    .begun = now + 1 };
		if (op == PL_ZERO || op == PL_TRIM)
			f->event->value = 0;
		memset(f->data, f->event->value, f->count * BLOCK);
	}
	f->begun = ++now;
	f->iov = (struct iovec){ f->data, f->count * BLOCK };
	f->req = (struct pl_request){ .op = op,
				      .flags = fua ? PL_FUA : 0,
				      .offset = op == PL_FLUSH ? 0 : f->first * BLOCK,
				      .length = op == PL_FLUSH ? 0 : f->count * BLOCK,
				      .iov = &f->iov,
				      .iovcnt = 1,
				      .modify = modify,
				      .on_done = done };
	f->under_way = true;
	under_way++;
	pl_request_submit(disk->channel, &f->req);
}

static void
wait_all(void)
{
	while (under_way > 0)
		pl_loop_turn(loop);
}

/* As the next input is to find it. */
static void
empty_disk(void)
{
	struct flight *f = &flights[0];

	memset(f, 0, sizeof *f);
	f->iov = (struct iovec){ f->data, BYTES };
	f->req = (struct pl_request){ .op = PL_WRITE,
				      .flags = PL_FUA,
				      .length = BYTES,
				      .iov = &f->iov,
				      .iovcnt = 1,
				      .on_done = done };
	f->under_way = true;
	under_way++;
	pl_request_submit(disk->channel, &f->req);
	wait_all();
}

int
LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	struct fuzz_input in = { input, size };

	if (size > INPUT)
		size = INPUT;
	if (loop == NULL)
		set_up();
	disk = &disks[fuzz_next(&in, 2)];
	events = now = 0;
	while (in.size > 0) {
		unsigned what = (unsigned)fuzz_next(&in, 32);
		struct flight *f = &flights[what % FLIGHT];

		if (what == 31) {
			lose_power(fuzz_next(&in, 256));
		} else if (what < 16 && !f->under_way) {
			submit(&in, f);
		} else if (under_way > 0) {
			dry_next = what;
			pl_loop_turn(loop);
		}
	}
	wait_all();
	lose_power(0);
	empty_disk();
	return 0;
}
