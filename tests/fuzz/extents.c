/*
 * extents.c - a list of extents says of every byte what was said of it, and no more.
 *
 * Input: the room of the list, then extents, then where it is cut.
 */
#include "fuzz.h"
#include "platter.h"

#include <assert.h>

#define BYTES    4096
#define ROOM_MAX 32

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input in = { data, size };
	struct pl_extent list[ROOM_MAX];
	struct pl_extents x = { .list = list, .max = (unsigned)fuzz_next(&in, ROOM_MAX) + 1 };
	unsigned model[BYTES];
	uint64_t known = 0, at = 0, cut;

	while (in.size > 0) {
		uint64_t length = fuzz_next(&in, BYTES - known + 1);
		unsigned flags = (unsigned)fuzz_next(&in, 4);

		if (!pl_extents_add(&x, length, flags))
			break;
		for (uint64_t i = 0; i < length; i++)
			model[known++] = flags;
	}
	assert(pl_extents_length(&x) == known);
	cut = fuzz_next(&in, BYTES);
	pl_extents_trim(&x, cut);
	assert(pl_extents_length(&x) == (cut < known ? cut : known));
	for (unsigned i = 0; i < x.count; i++) {
		assert(list[i].length > 0);
		assert(i == 0 || list[i].flags != list[i - 1].flags);
		for (uint64_t j = 0; j < list[i].length; j++)
			assert(model[at++] == list[i].flags);
	}
	return 0;
}
