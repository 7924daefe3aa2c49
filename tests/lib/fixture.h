/*
 * fixture.h - an export, a loop and a channel for a test, and verbs to use them.
 *
 *	struct fixture f;
 *
 *	fixture_open(&f, RING, "driver=memory", "size=1M");
 *	do_write(&f, 0, 4 * KiB, 0xaa, PL_FUA);
 *	check_bytes(&f, 0, 4 * KiB, 0xaa);
 *	fixture_close(&f);
 *
 * do_... and check_... fail the case unless all went well; try_... return the error.
 */
#ifndef FIXTURE_H
#define FIXTURE_H

#include "platter.h"

#include <pthread.h>

#define KiB UINT64_C(1024)
#define MiB (1024 * KiB)
#define GiB (1024 * MiB)
#define TiB (1024 * GiB)

/* ---- options --------------------------------------------------------------------- */

/* A list of "key=value" words that ends with NULL. */
#define WORDS(...) ((const char *const[]){ __VA_ARGS__ __VA_OPT__(, ) NULL })

struct pl_params *params_of(const char *const *words); /* pl_params_free() it */
int try_export(const char *const *words, unsigned flags, struct pl_export **ex,
	       struct pl_error *err);

/* ---- the fixture ----------------------------------------------------------------- */

enum loop_kind { RING, BLOCKING };
#define LOOP_KINDS 2
extern const char *const loop_kind_name[LOOP_KINDS];

/* for_each_loop_kind (kind) { ... }: says which kind it is, for when it fails. */
#define for_each_loop_kind(kind) \
	for (enum loop_kind kind = RING; kind < LOOP_KINDS && loop_kind_note(kind); kind++)
bool loop_kind_note(enum loop_kind kind);

struct fixture {
	struct pl_export *ex;
	struct pl_loop *loop;
	struct pl_channel *ch;
	enum loop_kind kind;
	bool shares; /* the export is another fixture's */
};

#define fixture_open(f, kind, ...) fixture_open_words((f), (kind), 0, WORDS(__VA_ARGS__))
void fixture_open_words(struct fixture *f, enum loop_kind kind, unsigned flags,
			const char *const *words);

/* One more loop and channel on the export of `first`; on the thread that will use it. */
void fixture_join(struct fixture *f, enum loop_kind kind, const struct fixture *first);

/* Closes the channel and the loop, and the export unless it is another fixture's. */
void fixture_close(struct fixture *f);

/* A sparse file in the current directory, which a case has to itself. */
void make_image(const char *path, uint64_t size);

/* For tests that make the core complain by the hundred. */
void log_nothing(void);

/* ---- one request at a time ------------------------------------------------------- */

int try_request(struct fixture *f, enum pl_op op, unsigned flags, uint64_t offset, uint64_t length,
		void *data);
int try_read(struct fixture *f, uint64_t offset, uint64_t length, void *data, unsigned flags);
int try_write(struct fixture *f, uint64_t offset, uint64_t length, const void *data,
	      unsigned flags);
int try_zero(struct fixture *f, uint64_t offset, uint64_t length, unsigned flags);
int try_trim(struct fixture *f, uint64_t offset, uint64_t length, unsigned flags);
int try_flush(struct fixture *f);
int try_cache(struct fixture *f, uint64_t offset, uint64_t length);
/* x->count is 0 and x->max is set before. */
int try_extents(struct fixture *f, uint64_t offset, uint64_t length, struct pl_extents *x);
int try_fill(struct fixture *f, uint64_t offset, uint64_t length, unsigned char byte,
	     unsigned flags); /* a write of so many times byte */

void do_read(struct fixture *f, uint64_t offset, uint64_t length, void *data);
void do_write(struct fixture *f, uint64_t offset, uint64_t length, unsigned char byte,
	      unsigned flags);
void do_write_data(struct fixture *f, uint64_t offset, uint64_t length, const void *data,
		   unsigned flags);
void do_zero(struct fixture *f, uint64_t offset, uint64_t length, unsigned flags);
void do_trim(struct fixture *f, uint64_t offset, uint64_t length, unsigned flags);
void do_flush(struct fixture *f);

/* ---- data ------------------------------------------------------------------------ */

/* They read and compare; a failure names the first wrong offset, what is there and what
 * should be. */
void check_bytes(struct fixture *f, uint64_t offset, uint64_t length, unsigned char byte);
void check_data(struct fixture *f, uint64_t offset, uint64_t length, const void *expected);

/* Bytes that tell where they belong: from the device's offset and a tag. */
unsigned char pattern_at(uint64_t offset, unsigned tag);
void pattern_fill(void *data, uint64_t length, uint64_t offset, unsigned tag);
void do_write_pattern(struct fixture *f, uint64_t offset, uint64_t length, unsigned tag,
		      unsigned flags);
void check_pattern(struct fixture *f, uint64_t offset, uint64_t length, unsigned tag);

void *test_alloc(uint64_t length); /* zeroed, 4096-aligned; never NULL; free() it */

/* Random numbers that a seed repeats. */
uint64_t random_next(uint64_t *seed);
uint64_t random_below(uint64_t *seed, uint64_t n);

/* ---- many requests in flight ----------------------------------------------------- */

/*
 * On a ring loop they are submitted from its thread, on a blocking loop each is called
 * by a thread of its own.
 */
struct job {
	struct pl_request req;
	struct iovec iov;
	struct batch *batch;
	pthread_t thread;
	int error;
	unsigned rank; /* 1: the first of the batch that was answered; 0: not yet */
};

struct batch {
	struct fixture *f;
	struct job *jobs;
	unsigned count, max;
	unsigned answered, wanted; /* wanted: how many the loop turns for */
	pthread_mutex_t mutex;
	pthread_cond_t news;
};

void batch_start(struct batch *b, struct fixture *f, unsigned max);
/* data is kept by the caller until the batch is over. */
struct job *batch_submit(struct batch *b, enum pl_op op, unsigned flags, uint64_t offset,
			 uint64_t length, void *data);
struct job *batch_modify(struct batch *b, unsigned flags, uint64_t offset, uint64_t length,
			 void *data, int (*modify)(struct pl_request *req));
/* Waits until at least so many of those submitted are answered. */
void batch_wait(struct batch *b, unsigned answered);
/* Waits for all and frees the jobs. */
void batch_end(struct batch *b);

/* ---- power cuts ------------------------------------------------------------------ */

/*
 * What may be on the medium if the power is lost now. The export is driver=powercut.
 *
 *	for_each_crash_image (&f, im)
 *		assert_bytes(im, 0, 4 * KiB, 0xaa);
 */
struct image {
	struct fixture *f;
	unsigned char *data;
	uint64_t size;
	uint64_t seed;
};

#define CRASH_IMAGES 64
#define for_each_crash_image(f, im) \
	for (struct image *im = image_first(f); im != NULL; im = image_next(im))
struct image *image_first(struct fixture *f);
struct image *image_next(struct image *im); /* frees im after the last one */
void assert_bytes(const struct image *im, uint64_t offset, uint64_t length, unsigned char byte);

/* One image by its seed; data has room for the disk. */
void crash_image(struct fixture *f, uint64_t seed, void *data);

#endif
