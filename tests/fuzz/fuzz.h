/*
 * fuzz.h - what a fuzzer gives to the library that drives it, and how it reads its input.
 */
#ifndef FUZZ_H
#define FUZZ_H

#include <stddef.h>
#include <stdint.h>

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct fuzz_input {
	const uint8_t *data;
	size_t size;
};

/* The next number below limit; 0 when the input is used up. */
static inline uint64_t
fuzz_next(struct fuzz_input *in, uint64_t limit)
{
	uint64_t n = 0;

	for (uint64_t l = limit - 1; l > 0 && in->size > 0; l >>= 8) {
		n = n << 8 | *in->data++;
		in->size--;
	}
	return n % limit;
}

#endif
