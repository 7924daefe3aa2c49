/*
 * request.c - one way in and one way out.
 *
 * In: pl_request_submit() and pl_request_call() check a request against the export and
 * start it by its row in request_ops. Out: request_finish(), from where its data is done
 * or its group is durable.
 *
 *	ACTIVE ---------------------> DONE
 *	  |  ^                         ^
 *	  v  | (READ: now the medium)  |
 *	COMMITTING --------------------+
 */
#include "request.h"

#include "channel.h"
#include "loop.h"
#include "modify.h"
#include "sm.h"
#include "transfer.h"
#include "zero.h"

#include <assert.h>
#include <errno.h>
#include <linux/futex.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { REQ_NEW, REQ_ACTIVE, REQ_COMMITTING, REQ_DONE };

static const struct pl_sm_state request_states[] = {
	[REQ_NEW] = { "new", 1 << REQ_ACTIVE },
	[REQ_ACTIVE] = { "active", 1 << REQ_COMMITTING | 1 << REQ_DONE },
	[REQ_COMMITTING] = { "committing", 1 << REQ_ACTIVE | 1 << REQ_DONE },
	[REQ_DONE] = { "done", 0 },
};

static void flush_start(struct pl_request *req);
static void cache_start(struct pl_request *req);
static void extents_start(struct pl_request *req);

/* NBD proto.md, "Request types", says which errors a range outside the device has. */
struct request_op {
	void (*start)(struct pl_request *req);
	unsigned flags; /* that it takes */
	unsigned needs; /* capabilities without which it is refused */
	bool changes;   /* data: -EPERM on a read-only export */
	bool data;      /* has an iov */
	bool empty;     /* means something without a length */
	int outside;    /* error for a range outside the device */
};

static const struct request_op request_ops[PL_OPS] = {
	[PL_READ] = { .start = pl_read_start, .flags = PL_FUA, .data = true, .outside = -EINVAL },
	[PL_WRITE] = { .start = pl_write_start,
		       .flags = PL_FUA,
		       .changes = true,
		       .data = true,
		       .outside = -ENOSPC },
	[PL_FLUSH] = { .start = flush_start,
		       .needs = PL_CAP_FLUSH,
		       .empty = true,
		       .outside = -EINVAL },
	[PL_ZERO] = { .start = pl_zero_start,
		      .flags = PL_FUA | PL_NO_HOLE | PL_FAST,
		      .changes = true,
		      .outside = -ENOSPC },
	[PL_TRIM] = { .start = pl_trim_start,
		      .flags = PL_FUA,
		      .needs = PL_CAP_TRIM,
		      .changes = true,
		      .outside = -EINVAL },
	[PL_CACHE] = { .start = cache_start, .needs = PL_CAP_CACHE, .outside = -EINVAL },
	[PL_EXTENTS] = { .start = extents_start, .empty = true, .outside = -EINVAL },
	[PL_MODIFY] = { .start = pl_modify_start,
			.flags = PL_FUA,
			.changes = true,
			.data = true,
			.outside = -ENOSPC },
};

static uint64_t
iov_length(const struct pl_request *req)
{
	uint64_t length = 0;

	for (int i = 0; i < req->iovcnt; i++)
		length += req->iov[i].iov_len;
	return length;
}

static int
request_check(const struct pl_export *ex, const struct pl_request *req)
{
	const struct request_op *op = &request_ops[req->op];
	uint64_t size = req->limits->geometry.size;
	bool writable = (ex->capabilities & PL_CAP_WRITE) != 0;

	if (op->changes && !writable)
		return -EPERM;
	if ((op->needs & ~ex->capabilities) != 0 || (req->flags & ~op->flags) != 0)
		return -EINVAL;
	if ((req->flags & PL_FUA) != 0 && writable && (ex->capabilities & PL_CAP_FUA) == 0)
		return -EINVAL;
	if (req->offset > size || req->length > size - req->offset)
		return op->outside;
	if (op->data && iov_length(req) != req->length)
		return -EINVAL;
	if ((req->stable || req->op == PL_FLUSH) && pl_export_failed(ex))
		return -EIO;
	return 0;
}

/* ---- out ------------------------------------------------------------------------- */

/*
 * The word of a blocked caller: its thread moves RUNNING <-> SLEEPING, who has news for
 * it sets RESUME or DONE, and need not make a system call when it is not asleep.
 */
enum { WORD_RUNNING, WORD_SLEEPING, WORD_RESUME, WORD_DONE };

static void
request_tell(struct pl_request *req, unsigned word)
{
	/* From DONE on the caller may reuse the memory; the address alone is enough to wake,
	 * and everyone who sleeps on a futex bears a wake-up that was not for him. */
	unsigned was = __atomic_exchange_n(&req->word, word, __ATOMIC_ACQ_REL);

	if (was == WORD_SLEEPING)
		syscall(SYS_futex, &req->word, FUTEX_WAKE_PRIVATE, 1, NULL, NULL, 0);
}

static void
request_finish(struct pl_request *req, int error)
{
	pl_sm_move(request_states, &req->state, REQ_DONE);
	pl_export_count(req->channel->export, req, error);
	req->error = error;
	if (req->on_done != NULL)
		req->on_done(req, error);
	else
		request_tell(req, WORD_DONE);
}

void
pl_request_commit(struct pl_request *req)
{
	pl_sm_move(request_states, &req->state, REQ_COMMITTING);
	pl_commit_join(&req->channel->export->commit, req);
}

void
pl_request_data_done(struct pl_request *req, int error)
{
	struct pl_export *ex = req->channel->export;
	/* A READ waited before its data came. */
	bool owes = req->stable && req->op != PL_READ && !req->native;

	pl_ranges_give(&ex->ranges, req);
	if (error == 0 && owes)
		pl_request_commit(req);
	else
		request_finish(req, error);
}

void
pl_request_committed(struct pl_request *req, int error)
{
	if (req->op == PL_READ && error == 0) {
		pl_sm_move(request_states, &req->state, REQ_ACTIVE);
		pl_read_medium(req);
		return;
	}
	request_finish(req, error);
}

static void
request_committed_resumed(struct pl_request *req)
{
	pl_request_committed(req, req->error);
}

void
pl_request_committed_elsewhere(struct pl_request *req, int error)
{
	if (pl_loop_is_blocking(req->channel->loop) && req->op != PL_READ) {
		pl_request_committed(req, error);
		return;
	}
	req->error = error;
	pl_request_resume(req, request_committed_resumed);
}

/* ---- on the way ------------------------------------------------------------------ */

static void
request_resumed(struct pl_work *work)
{
	struct pl_request *req =
		(struct pl_request *)((char *)work - offsetof(struct pl_request, work));

	req->runner = NULL;
	req->resume(req);
}

void
pl_request_resume(struct pl_request *req, void (*resume)(struct pl_request *req))
{
	struct pl_loop *loop = req->channel->loop;

	req->resume = resume;
	if (pl_loop_is_blocking(loop)) {
		request_tell(req, WORD_RESUME);
		return;
	}
	req->work.run = request_resumed;
	pl_loop_post(loop, &req->work);
}

/*
 * A driver may be done before its submit returns, as every driver is on a blocking loop.
 * Such parts are run one after the other here, not one inside the other: a request may
 * have any number of them, and the stack has an end.
 */
struct pl_runner {
	bool done, again;
	int64_t result;
};

void
pl_request_part(struct pl_request *req)
{
	struct pl_runner runner = { .again = true };

	if (req->runner != NULL) {
		req->runner->again = true;
		return;
	}
	while (runner.again) {
		runner = (struct pl_runner){ .done = false };
		req->runner = &runner;
		pl_layer_submit(req->channel->export->layer, req->channel->state, req);
		if (!runner.done) {
			req->runner = NULL;
			return;
		}
		req->next(req, runner.result); /* may be the end of req */
	}
}

void
pl_part_done(struct pl_request *req, int64_t result)
{
	if (req->runner == NULL) {
		req->next(req, result);
		return;
	}
	req->runner->done = true;
	req->runner->result = result;
}

/* ---- the small operations -------------------------------------------------------- */

static void
flush_start(struct pl_request *req)
{
	pl_request_commit(req);
}

static void
part_finish(struct pl_request *req, int64_t result)
{
	request_finish(req, result < 0 ? (int)result : 0);
}

static void
cache_start(struct pl_request *req)
{
	req->part =
		(struct pl_part){ .op = PL_CACHE, .offset = req->offset, .length = req->length };
	req->next = part_finish;
	pl_request_part(req);
}

static void
extents_done(struct pl_request *req, int64_t result)
{
	struct pl_extents *x = req->extents;

	if (result == 0) {
		pl_extents_trim(x, req->length);
		if (x->count == 0)
			pl_extents_add(x, req->length, 0);
	}
	part_finish(req, result);
}

static void
extents_start(struct pl_request *req)
{
	req->extents->count = 0;
	if (req->length == 0 || req->extents->max == 0) {
		request_finish(req, -EINVAL);
		return;
	}
	if ((req->channel->export->capabilities & PL_CAP_EXTENTS) == 0) {
		extents_done(req, 0);
		return;
	}
	req->part =
		(struct pl_part){ .op = PL_EXTENTS, .offset = req->offset, .length = req->length };
	req->next = extents_done;
	pl_request_part(req);
}

/* Whether the driver makes req stable by itself: a write that it can take so. */
static bool
request_is_native(const struct pl_export *ex, const struct pl_request *req)
{
	uint32_t align = req->limits->fua_align;

	return (req->op == PL_WRITE || req->op == PL_MODIFY) && req->stable && ex->native_fua &&
	       (align == 0 || ((req->offset | req->length) & (align - 1)) == 0);
}

/* ---- in -------------------------------------------------------------------------- */

static void
request_start(struct pl_channel *ch, struct pl_request *req)
{
	struct pl_export *ex = ch->export;
	const struct request_op *op = &request_ops[req->op];
	int error;

	req->channel = ch;
	req->limits = pl_layer_limits(ex->layer);
	req->state = REQ_NEW;
	req->runner = NULL;
	req->range.held = false;
	req->bounce.buffer = NULL;
	req->stable = (req->flags & PL_FUA) != 0 ||
		      (op->changes && (ex->capabilities & PL_CAP_WRITE_THROUGH) != 0);
	req->native = request_is_native(ex, req);
	req->done_to = req->offset;
	req->end = req->offset + req->length;
	pl_sm_move(request_states, &req->state, REQ_ACTIVE);

	error = request_check(ex, req);
	if (error != 0 || (req->length == 0 && !op->empty))
		request_finish(req, error);
	else
		op->start(req);
}

void
pl_request_submit(struct pl_channel *ch, struct pl_request *req)
{
	assert(!pl_loop_is_blocking(ch->loop) && req->on_done != NULL);
	request_start(ch, req);
}

static void
call_done(struct pl_request *req, int error)
{
	(void)req; /* its state tells */
	(void)error;
}

static int
call_on_ring(struct pl_channel *ch, struct pl_request *req)
{
	req->on_done = call_done;
	request_start(ch, req);
	while (req->state != REQ_DONE)
		pl_loop_turn(ch->loop);
	return req->error;
}

/* Sleeps until there is news, and returns it. */
static unsigned
call_sleep(struct pl_request *req)
{
	unsigned word = WORD_RUNNING;

	if (!__atomic_compare_exchange_n(&req->word, &word, WORD_SLEEPING, false, __ATOMIC_ACQ_REL,
					 __ATOMIC_ACQUIRE))
		return word;
	do {
		syscall(SYS_futex, &req->word, FUTEX_WAIT_PRIVATE, WORD_SLEEPING, NULL, NULL, 0);
		word = __atomic_load_n(&req->word, __ATOMIC_ACQUIRE);
	} while (word == WORD_SLEEPING);
	return word;
}

int
pl_request_call(struct pl_channel *ch, struct pl_request *req)
{
	if (!pl_loop_is_blocking(ch->loop))
		return call_on_ring(ch, req);
	req->on_done = NULL;
	req->word = WORD_RUNNING;
	request_start(ch, req);
	while (call_sleep(req) == WORD_RESUME) {
		__atomic_store_n(&req->word, WORD_RUNNING, __ATOMIC_RELEASE);
		req->runner = NULL;
		req->resume(req);
	}
	return req->error;
}
