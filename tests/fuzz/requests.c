/*
 * requests.c - whatever is asked of an export is refused, or done and nothing else.
 *
 * Input: requests on a small memory disk that moves only part of what it is asked to, now
 * and then. A model says what the disk must hold.
 */
#include "fuzz.h"
#include "platter.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

#define INPUT  256 /* bytes that are used of one */
#define BYTES  5000
#define BEYOND 700 /* offsets and lengths that reach outside */

static struct pl_channel *channel;
static struct pl_export *export;

static void
open_disk(void)
{
	static const char *const words[][2] = {
		{ "driver", "fault" }, { "over", "memory" }, { "size", "5000" },
		{ "fault", "short" },  { "short", "100" },   { "repeat", "forever" },
		{ "at", "3" },
	};
	struct pl_params *params = pl_params_new();
	static struct pl_loop *loop;
	int error = 0;

	for (unsigned i = 0; i < sizeof words / sizeof *words; i++)
		error |= pl_params_add(params, words[i][0], words[i][1], NULL);
	error |= pl_export_open(params, 0, &export, NULL);
	if (loop == NULL)
		error |= pl_loop_new_blocking(&loop, NULL);
	error |= pl_channel_open(export, loop, &channel, NULL);
	assert(error == 0);
	pl_params_free(params);
}

static void
close_disk(void)
{
	pl_channel_close(channel);
	pl_export_close(export);
}

/* MODIFY: refuses what begins with a large byte. */
static int
invert(struct pl_request *req)
{
	uint8_t *byte = req->iov->iov_base;

	assert(req->iov->iov_len == req->length);
	assert(memcmp((const uint8_t *)req->user + req->offset, byte, req->length) == 0);
	if (byte[0] >= 240)
		return 1;
	for (uint64_t i = 0; i < req->length; i++)
		byte[i] ^= 0xff;
	return 0;
}

static void
check_extents(const struct pl_extents *x, const uint8_t *model, uint64_t offset, uint64_t length)
{
	assert(x->count > 0 && pl_extents_length(x) <= length);
	for (unsigned i = 0; i < x->count; offset += x->list[i++].length) {
		for (uint64_t j = 0; j < x->list[i].length; j++)
			assert((x->list[i].flags & PL_EXTENT_ZERO) == 0 || model[offset + j] == 0);
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	static uint8_t model[BYTES], data[BYTES + BEYOND];
	struct fuzz_input in = { input, size };

	if (size > INPUT)
		size = INPUT;
	open_disk();
	memset(model, 0, sizeof model);
	while (in.size > 0) {
		enum pl_op op = (enum pl_op)fuzz_next(&in, PL_OPS);
		uint64_t offset = fuzz_next(&in, BYTES + BEYOND);
		uint64_t length = fuzz_next(&in, BYTES + BEYOND);
		struct iovec iov = { data, length };
		struct pl_extent list[4];
		struct pl_extents x = { .list = list, .max = (unsigned)fuzz_next(&in, 5) };
		struct pl_request req = { .op = op,
					  .flags = (unsigned)fuzz_next(&in, 16),
					  .offset = op == PL_FLUSH ? 0 : offset,
					  .length = op == PL_FLUSH ? 0 : length,
					  .extents = &x,
					  .modify = invert,
					  .user = model };
		unsigned flags = req.flags;
		bool outside = op != PL_FLUSH && (offset > BYTES || length > BYTES - offset);
		int error;

		if (op == PL_READ || op == PL_WRITE || op == PL_MODIFY) {
			req.iov = &iov;
			req.iovcnt = 1;
		}
		memset(data, (int)fuzz_next(&in, 256), length);
		error = pl_request_call(channel, &req);
		assert(!outside || error != 0);
		if ((flags & ~(unsigned)(PL_FUA | PL_NO_HOLE | PL_FAST)) != 0)
			assert(error != 0);
		if (error != 0)
			continue;
		if (op == PL_WRITE || op == PL_MODIFY)
			memcpy(model + offset, data, length);
		else if (op == PL_ZERO || op == PL_TRIM) /* this disk's TRIM zeroes */
			memset(model + offset, 0, length);
		else if (op == PL_READ)
			assert(memcmp(model + offset, data, length) == 0);
		else if (op == PL_EXTENTS)
			check_extents(&x, model, offset, length);
	}
	close_disk();
	return 0;
}
