/* fixture.c - an export, a loop and a channel for a test, and verbs to use them. */
#include "fixture.h"

#include "drivers/powercut.h"
#include "export.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* ---- options --------------------------------------------------------------------- */

struct pl_params *
params_of(const char *const *words)
{
	struct pl_params *params = pl_params_new();

	assert_true(params != NULL);
	for (; *words != NULL; words++) {
		const char *equals = strchr(*words, '=');
		char key[64];

		assert_true(equals != NULL && (size_t)(equals - *words) < sizeof key);
		snprintf(key, sizeof key, "%.*s", (int)(equals - *words), *words);
		assert_eq(pl_params_add(params, key, equals + 1, NULL), 0);
	}
	return params;
}

int
try_export(const char *const *words, unsigned flags, struct pl_export **ex, struct pl_error *err)
{
	struct pl_params *params = params_of(words);
	int error = pl_export_open(params, flags, ex, err);

	pl_params_free(params);
	return error;
}

/* ---- the fixture ----------------------------------------------------------------- */

const char *const loop_kind_name[LOOP_KINDS] = { "ring", "blocking" };

bool
loop_kind_note(enum loop_kind kind)
{
	printf("on a %s loop\n", loop_kind_name[kind]);
	return true;
}

static void
fixture_open_channel(struct fixture *f, enum loop_kind kind)
{
	struct pl_error err;
	int error =
		kind == RING ? pl_loop_new(&f->loop, &err) : pl_loop_new_blocking(&f->loop, &err);

	if (error == 0)
		error = pl_channel_open(f->ex, f->loop, &f->ch, &err);
	if (error != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	f->kind = kind;
}

void
fixture_open_words(struct fixture *f, enum loop_kind kind, unsigned flags, const char *const *words)
{
	struct pl_error err;

	*f = (struct fixture){ .shares = false };
	if (try_export(words, flags, &f->ex, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	fixture_open_channel(f, kind);
}

void
fixture_join(struct fixture *f, enum loop_kind kind, const struct fixture *first)
{
	*f = (struct fixture){ .ex = first->ex, .shares = true };
	fixture_open_channel(f, kind);
}

void
fixture_close(struct fixture *f)
{
	pl_channel_close(f->ch);
	pl_loop_free(f->loop);
	if (!f->shares)
		pl_export_close(f->ex);
}

void
make_image(const char *path, uint64_t size)
{
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0600);

	if (fd == -1 || ftruncate(fd, (off_t)size) == -1)
		test_fail(__FILE__, __LINE__, "%s: %s", path, strerror(errno));
	close(fd);
}

static void
ignore_line(enum pl_log_level level, const char *line)
{
	(void)level;
	(void)line;
}

void
log_nothing(void)
{
	pl_log_to(ignore_line);
}

/* ---- one request at a time ------------------------------------------------------- */

int
try_request(struct fixture *f, enum pl_op op, unsigned flags, uint64_t offset, uint64_t length,
	    void *data)
{
	struct iovec iov = { data, length };
	struct pl_request req = {
		.op = op,
		.flags = flags,
		.offset = offset,
		.length = length,
		.iov = data != NULL ? &iov : NULL,
		.iovcnt = data != NULL,
	};

	return pl_request_call(f->ch, &req);
}

int
try_read(struct fixture *f, uint64_t offset, uint64_t length, void *data, unsigned flags)
{
	return try_request(f, PL_READ, flags, offset, length, data);
}

int
try_write(struct fixture *f, uint64_t offset, uint64_t length, const void *data, unsigned flags)
{
	return try_request(f, PL_WRITE, flags, offset, length, (void *)(uintptr_t)data);
}

int
try_zero(struct fixture *f, uint64_t offset, uint64_t length, unsigned flags)
{
	return try_request(f, PL_ZERO, flags, offset, length, NULL);
}

int
try_trim(struct fixture *f, uint64_t offset, uint64_t length, unsigned flags)
{
	return try_request(f, PL_TRIM, flags, offset, length, NULL);
}

int
try_flush(struct fixture *f)
{
	return try_request(f, PL_FLUSH, 0, 0, 0, NULL);
}

int
try_cache(struct fixture *f, uint64_t offset, uint64_t length)
{
	return try_request(f, PL_CACHE, 0, offset, length, NULL);
}

int
try_extents(struct fixture *f, uint64_t offset, uint64_t length, struct pl_extents *x)
{
	struct pl_request req = {
		.op = PL_EXTENTS, .offset = offset, .length = length, .extents = x
	};

	return pl_request_call(f->ch, &req);
}

int
try_fill(struct fixture *f, uint64_t offset, uint64_t length, unsigned char byte, unsigned flags)
{
	void *data = test_alloc(length);
	int error;

	memset(data, byte, length);
	error = try_write(f, offset, length, data, flags);
	free(data);
	return error;
}

static void
must_be_done(int error, const char *op, uint64_t offset, uint64_t length)
{
	if (error != 0)
		test_fail(__FILE__, __LINE__, "%s at %" PRIu64 ", %" PRIu64 " bytes: %s", op,
			  offset, length, strerror(-error));
}

void
do_read(struct fixture *f, uint64_t offset, uint64_t length, void *data)
{
	must_be_done(try_read(f, offset, length, data, 0), "read", offset, length);
}

void
do_write(struct fixture *f, uint64_t offset, uint64_t length, unsigned char byte, unsigned flags)
{
	must_be_done(try_fill(f, offset, length, byte, flags), "write", offset, length);
}

void
do_write_data(struct fixture *f, uint64_t offset, uint64_t length, const void *data, unsigned flags)
{
	must_be_done(try_write(f, offset, length, data, flags), "write", offset, length);
}

void
do_zero(struct fixture *f, uint64_t offset, uint64_t length, unsigned flags)
{
	must_be_done(try_zero(f, offset, length, flags), "zero", offset, length);
}

void
do_trim(struct fixture *f, uint64_t offset, uint64_t length, unsigned flags)
{
	must_be_done(try_trim(f, offset, length, flags), "trim", offset, length);
}

void
do_flush(struct fixture *f)
{
	must_be_done(try_flush(f), "flush", 0, 0);
}

/* ---- data ------------------------------------------------------------------------ */

static void
must_be(unsigned char got, unsigned char want, uint64_t offset)
{
	if (got != want)
		test_fail(__FILE__, __LINE__, "at offset %" PRIu64 ": expected 0x%02x, got 0x%02x",
			  offset, want, got);
}

void
check_data(struct fixture *f, uint64_t offset, uint64_t length, const void *expected)
{
	const unsigned char *want = expected;
	unsigned char *got = test_alloc(length);

	do_read(f, offset, length, got);
	for (uint64_t i = 0; i < length; i++)
		must_be(got[i], want[i], offset + i);
	free(got);
}

void
check_bytes(struct fixture *f, uint64_t offset, uint64_t length, unsigned char byte)
{
	unsigned char *want = test_alloc(length);

	memset(want, byte, length);
	check_data(f, offset, length, want);
	free(want);
}

unsigned char
pattern_at(uint64_t offset, unsigned tag)
{
	return (unsigned char)(offset * 7 + (offset >> 9) * 37 + (offset >> 17) + tag);
}

void
pattern_fill(void *data, uint64_t length, uint64_t offset, unsigned tag)
{
	unsigned char *p = data;

	for (uint64_t i = 0; i < length; i++)
		p[i] = pattern_at(offset + i, tag);
}

void
do_write_pattern(struct fixture *f, uint64_t offset, uint64_t length, unsigned tag, unsigned flags)
{
	void *data = test_alloc(length);

	pattern_fill(data, length, offset, tag);
	do_write_data(f, offset, length, data, flags);
	free(data);
}

void
check_pattern(struct fixture *f, uint64_t offset, uint64_t length, unsigned tag)
{
	void *want = test_alloc(length);

	pattern_fill(want, length, offset, tag);
	check_data(f, offset, length, want);
	free(want);
}

void *
test_alloc(uint64_t length)
{
	void *data = NULL;

	assert_eq(posix_memalign(&data, 4096, length > 0 ? length : 1), 0);
	memset(data, 0, length);
	return data;
}

/* splitmix64 */
uint64_t
random_next(uint64_t *seed)
{
	uint64_t z = *seed += 0x9e3779b97f4a7c15;

	z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
	z = (z ^ z >> 27) * 0x94d049bb133111eb;
	return z ^ z >> 31;
}

uint64_t
random_below(uint64_t *seed, uint64_t n)
{
	return random_next(seed) % n;
}

/* ---- many requests in flight ----------------------------------------------------- */

void
batch_start(struct batch *b, struct fixture *f, unsigned max)
{
	*b = (struct batch){ .f = f, .max = max };
	b->jobs = calloc(max, sizeof *b->jobs);
	assert_true(b->jobs != NULL);
	pthread_mutex_init(&b->mutex, NULL);
	pthread_cond_init(&b->news, NULL);
}

static void
job_answered(struct job *job, int error)
{
	struct batch *b = job->batch;

	pthread_mutex_lock(&b->mutex);
	job->error = error;
	job->rank = ++b->answered;
	pthread_cond_broadcast(&b->news);
	pthread_mutex_unlock(&b->mutex);
}

static void
job_done(struct pl_request *req, int error)
{
	struct job *job = req->user;
	struct batch *b = job->batch;

	job_answered(job, error);
	if (b->answered == b->wanted)
		pl_loop_stop(b->f->loop);
}

static void *
job_thread(void *arg)
{
	struct job *job = arg;

	job_answered(job, pl_request_call(job->batch->f->ch, &job->req));
	return NULL;
}

static struct job *
job_start(struct batch *b, enum pl_op op, unsigned flags, uint64_t offset, uint64_t length,
	  void *data, int (*modify)(struct pl_request *req))
{
	struct job *job = &b->jobs[b->count];

	assert_true(b->count < b->max);
	b->count++;
	job->batch = b;
	job->iov = (struct iovec){ data, length };
	job->req = (struct pl_request){
		.op = op,
		.flags = flags,
		.offset = offset,
		.length = length,
		.iov = data != NULL ? &job->iov : NULL,
		.iovcnt = data != NULL,
		.modify = modify,
		.on_done = job_done,
		.user = job,
	};
	if (b->f->kind == RING)
		pl_request_submit(b->f->ch, &job->req);
	else
		assert_eq(pthread_create(&job->thread, NULL, job_thread, job), 0);
	return job;
}

struct job *
batch_submit(struct batch *b, enum pl_op op, unsigned flags, uint64_t offset, uint64_t length,
	     void *data)
{
	return job_start(b, op, flags, offset, length, data, NULL);
}

struct job *
batch_modify(struct batch *b, unsigned flags, uint64_t offset, uint64_t length, void *data,
	     int (*modify)(struct pl_request *req))
{
	return job_start(b, PL_MODIFY, flags, offset, length, data, modify);
}

void
batch_wait(struct batch *b, unsigned answered)
{
	assert_true(answered <= b->count);
	if (b->f->kind == RING) {
		b->wanted = answered;
		if (b->answered < answered)
			pl_loop_run(b->f->loop);
		b->wanted = 0;
		return;
	}
	pthread_mutex_lock(&b->mutex);
	while (b->answered < answered)
		pthread_cond_wait(&b->news, &b->mutex);
	pthread_mutex_unlock(&b->mutex);
}

void
batch_end(struct batch *b)
{
	batch_wait(b, b->count);
	for (unsigned i = 0; b->f->kind == BLOCKING && i < b->count; i++)
		pthread_join(b->jobs[i].thread, NULL);
	pthread_cond_destroy(&b->news);
	pthread_mutex_destroy(&b->mutex);
	free(b->jobs);
}

/* ---- power cuts ------------------------------------------------------------------ */

void
crash_image(struct fixture *f, uint64_t seed, void *data)
{
	void *powercut = pl_layer_handle(f->ex->layer, &pl_driver_powercut);

	assert_true(powercut != NULL);
	assert_eq(powercut_image(powercut, seed, data), 0);
}

struct image *
image_first(struct fixture *f)
{
	struct image *im = test_alloc(sizeof *im);

	im->f = f;
	im->size = pl_export_geometry(f->ex)->size;
	im->data = test_alloc(im->size);
	crash_image(f, im->seed, im->data);
	return im;
}

struct image *
image_next(struct image *im)
{
	if (++im->seed == CRASH_IMAGES) {
		free(im->data);
		free(im);
		return NULL;
	}
	crash_image(im->f, im->seed, im->data);
	return im;
}

void
assert_bytes(const struct image *im, uint64_t offset, uint64_t length, unsigned char byte)
{
	for (uint64_t i = offset; i < offset + length; i++) {
		if (im->data[i] != byte)
			test_fail(__FILE__, __LINE__,
				  "crash image %" PRIu64 ", offset %" PRIu64
				  ": expected 0x%02x, got 0x%02x",
				  im->seed, i, byte, im->data[i]);
	}
}
