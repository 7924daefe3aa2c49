/* extent.c - what is allocated, in a list of bounded length. */
#include "platter.h"

bool
pl_extents_add(struct pl_extents *x, uint64_t length, unsigned flags)
{
	struct pl_extent *last = x->count > 0 ? &x->list[x->count - 1] : NULL;

	if (length == 0)
		return true;
	if (last != NULL && last->flags == flags) {
		last->length += length;
		return true;
	}
	if (x->count == x->max)
		return false;
	x->list[x->count++] = (struct pl_extent){ .length = length, .flags = flags };
	return true;
}

uint64_t
pl_extents_length(const struct pl_extents *x)
{
	uint64_t length = 0;

	for (unsigned i = 0; i < x->count; i++)
		length += x->list[i].length;
	return length;
}

void
pl_extents_trim(struct pl_extents *x, uint64_t length)
{
	for (unsigned i = 0; i < x->count; i++) {
		if (x->list[i].length >= length) {
			x->list[i].length = length;
			x->count = length > 0 ? i + 1 : i;
			return;
		}
		length -= x->list[i].length;
	}
}
