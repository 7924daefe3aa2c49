/*
 * bench-image.h - what is served while it is measured, and what of it is in the page cache.
 */
#ifndef BENCH_IMAGE_H
#define BENCH_IMAGE_H

#include "bench.h"

/* PAGES_NONE: nothing is cached. LARGE: all, in large pages, as after reading it from end to end.
 * SMALL: all, as after reading here and there; small writes are several times cheaper then. */
enum bench_pages { PAGES_LARGE, PAGES_SMALL, PAGES_NONE };

struct bench_image {
	char *path;
	uint64_t size; /* how much of it is used */
	bool scratch;  /* made by us, and removed */
};

/* path: a directory, where a scratch file of size bytes is made; or a file or device that is
 * there, of which at most so much is used. Errors: what system calls say, -ENOSPC. */
int bench_image_open(struct bench_image *im, const char *path, uint64_t size, struct pl_error *err);
int bench_image_prepare(const struct bench_image *im, enum bench_pages pages, struct pl_error *err);
void bench_image_close(struct bench_image *im);

/* ---- bench-machine.c: facts ------------------------------------------------------- */

/* Of the machine, and of the file system and disk that path is on (NULL: none). */
void bench_describe(struct bench_result *r, const char *path);
/* Where there is no memory for it, it is left out. */
void bench_fact_add(struct bench_result *r, const char *name, const char *fmt, ...) PL_PRINTF(3, 4);

#endif
