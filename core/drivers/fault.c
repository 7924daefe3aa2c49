/*
 * fault.c - something goes wrong, at a chosen operation of the driver below.
 *
 *	driver=fault over=file kind=write at=3 fault=error errno=ENOSPC
 *
 * What matches `kind` and [offset, offset + length) is counted; the at-th of these (and
 * all after it with repeat=forever) gets the fault, everything else passes. Operations
 * are what the core asks of a driver: a large or unaligned request may be several, and
 * a shared flush is one.
 */
#include "iov.h"
#include "platter-driver.h"

#include <errno.h>
#include <inttypes.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>

enum fault_what { FAULT_ERROR, FAULT_DELAY, FAULT_SHORT, FAULT_LIE };
#define WHAT_WORDS "error|delay|short|lie"

/* "any", then what a driver is asked for in the order of enum pl_op. */
#define KIND_WORDS "any|read|write|flush|zero|trim|cache|extents"
#define OP(op)     (1u << (op))
#define OPS_ANY    (OP(PL_DRIVER_OPS) - 1)

/* What each fault can happen to. */
static const unsigned suits[] = {
	[FAULT_ERROR] = OPS_ANY,
	[FAULT_DELAY] = OPS_ANY,
	[FAULT_SHORT] = OP(PL_READ) | OP(PL_WRITE),
	[FAULT_LIE] = OP(PL_WRITE) | OP(PL_FLUSH) | OP(PL_ZERO) | OP(PL_TRIM),
};

#define ERRNO_WORDS "EIO|ENOSPC|ENOMEM|EINVAL|EPERM|EROFS|EAGAIN|ENODEV|ETIMEDOUT|EOPNOTSUPP"
static const int errnos[] = { EIO,   ENOSPC, ENOMEM, EINVAL,    EPERM,
			      EROFS, EAGAIN, ENODEV, ETIMEDOUT, EOPNOTSUPP };

enum { ONCE, FOREVER };

struct fault_params {
	int kind, repeat, what, error;
	uint64_t offset, length, at, delay_ns, bytes;
};

#define ROW(field) offsetof(struct fault_params, field)
static const struct pl_option fault_options[] = {
	{ "kind", PL_OPT_ENUM, ROW(kind), KIND_WORDS, "any", false, "operations that are counted" },
	{ "offset", PL_OPT_SIZE, ROW(offset), NULL, "0", false,
	  "count only what touches the range that starts here" },
	{ "length", PL_OPT_SIZE, ROW(length), NULL, "0", false,
	  "length of that range, 0: to the end of the disk" },
	{ "at", PL_OPT_UINT, ROW(at), NULL, "1", false, "which of them gets the fault, from 1" },
	{ "repeat", PL_OPT_ENUM, ROW(repeat), "once|forever", "once", false,
	  "forever: all that follow get it, too" },
	{ "fault", PL_OPT_ENUM, ROW(what), WHAT_WORDS, "error", false,
	  "fail, only wait, transfer less than asked, or do nothing and say it is done" },
	{ "errno", PL_OPT_ENUM, ROW(error), ERRNO_WORDS, "EIO", false,
	  "what fault=error fails with" },
	{ "delay", PL_OPT_TIME, ROW(delay_ns), NULL, "0ns", false,
	  "wait so long first, with any fault" },
	{ "short", PL_OPT_SIZE, ROW(bytes), NULL, "512", false,
	  "what fault=short transfers, in whole blocks of the driver below" },
	PL_OPTION_END,
};
#undef ROW

struct fault {
	struct fault_params params;
	unsigned ops; /* OP()s that are counted */
	atomic_uint_fast64_t count;
	struct pl_layer *below;

	/* For transfers that are cut short; see transfer_some(). */
	struct pl_loop *loop;
	void *state;
};

struct channel {
	struct fault *fault;
	struct pl_loop *loop;
	void *below;
};

static bool
hits(struct fault *f, const struct pl_part *part)
{
	const struct fault_params *p = &f->params;
	uint64_t n;

	if ((f->ops & OP(part->op)) == 0)
		return false;
	if (part->op != PL_FLUSH) {
		if (part->offset + part->length <= p->offset)
			return false;
		if (p->length != 0 && part->offset >= p->offset + p->length)
			return false;
	}
	n = atomic_fetch_add(&f->count, 1) + 1;
	return n == p->at || (n > p->at && p->repeat == FOREVER);
}

/* The channel of an operation that was started with it in its scratch. */
static struct channel *
channel_of(struct pl_request *req)
{
	return (struct channel *)(uintptr_t)req->scratch[0];
}

/* What fault=short lets through: 0, or whole blocks, or the little that there is. */
static uint64_t
short_length(const struct fault *f, const struct pl_part *part)
{
	const struct pl_driver_limits *l = pl_layer_limits(f->below);
	bool native = part->op == PL_WRITE && (part->flags & PL_FUA) != 0 && l->fua_align != 0;
	uint64_t block = native ? l->fua_align : l->align, length = f->params.bytes;

	if (length != 0)
		length = length < block ? block : length - length % block;
	return length < part->length ? length : part->length;
}

/*
 * The beginning of a READ or WRITE, on a helper thread and with memory of its own: the
 * part's iov cannot be shortened, for the core needs it for the rest.
 */
static int64_t
transfer_some(struct pl_io *io)
{
	struct pl_request *req = pl_request_of(io);
	const struct fault *f = channel_of(req)->fault;
	uint32_t align = pl_layer_limits(f->below)->mem_align;
	struct pl_part some = req->part;
	struct iovec iov = { NULL, short_length(f, &req->part) };
	int error;

	if (iov.iov_len == 0)
		return 0;
	if (posix_memalign(&iov.iov_base, align > 4096 ? align : 4096, iov.iov_len) != 0)
		return -ENOMEM;
	if (some.op == PL_WRITE)
		pl_iov_copy(req->part.iov, iov.iov_base, iov.iov_len, true);
	some.length = iov.iov_len;
	some.iov = &(struct iovec){ iov.iov_base, iov.iov_len };
	some.iovcnt = 1;
	some.fixed = false;
	error = pl_layer_call(f->below, f->state, &some);
	if (error == 0 && req->part.op == PL_READ)
		pl_iov_copy(req->part.iov, iov.iov_base, iov.iov_len, false);
	free(iov.iov_base);
	return error != 0 ? error : (int64_t)iov.iov_len;
}

static void
transfer_some_done(struct pl_io *io, int64_t result)
{
	pl_part_done(pl_request_of(io), result);
}

static void
strike(struct channel *c, struct pl_request *req)
{
	struct fault *f = c->fault;

	switch ((enum fault_what)f->params.what) {
	case FAULT_ERROR: pl_part_done(req, -errnos[f->params.error]); return;
	case FAULT_DELAY: pl_layer_submit(f->below, c->below, req); return;
	case FAULT_LIE:
		pl_part_done(req, req->part.op == PL_WRITE ? (int64_t)req->part.length : 0);
		return;
	case FAULT_SHORT:
		req->scratch[0] = (uintptr_t)c;
		req->io = (struct pl_io){
			.kind = PL_IO_CALL,
			.slot = -1,
			.call = transfer_some,
			.done = transfer_some_done,
		};
		pl_loop_io(c->loop, &req->io);
	}
}

static void
delay_done(struct pl_io *io, int64_t result)
{
	struct pl_request *req = pl_request_of(io);

	if (result < 0)
		pl_part_done(req, result);
	else
		strike(channel_of(req), req);
}

static void
fault_submit(void *state, struct pl_request *req)
{
	struct channel *c = state;
	struct fault *f = c->fault;

	if (!hits(f, &req->part)) {
		pl_layer_submit(f->below, c->below, req);
	} else if (f->params.delay_ns == 0) {
		strike(c, req);
	} else {
		req->scratch[0] = (uintptr_t)c;
		req->io = (struct pl_io){
			.kind = PL_IO_DELAY,
			.slot = -1,
			.length = f->params.delay_ns,
			.done = delay_done,
		};
		pl_loop_io(c->loop, &req->io);
	}
}

/* ---- the driver ------------------------------------------------------------------ */

static int
fault_open(const void *params, unsigned open_flags, struct pl_layer *below, void **handle,
	   struct pl_error *err)
{
	const struct fault_params *p = params;
	struct fault *f;
	int error;

	(void)open_flags;
	if (p->at == 0)
		return pl_error_say(err, -EINVAL, "at=0: operations are counted from 1");
	if (p->what == FAULT_DELAY && p->delay_ns == 0)
		return pl_error_say(err, -EINVAL, "fault=delay: how long? delay=TIME");

	f = calloc(1, sizeof *f);
	if (f == NULL)
		return pl_error_set(err, -ENOMEM, "fault");
	f->params = *p;
	f->below = below;
	f->ops = suits[p->what];
	if (p->kind != 0)
		f->ops &= OP(p->kind - 1);
	if (f->ops == 0) {
		error = pl_error_say(err, -EINVAL,
				     "this kind of operation has no such fault: "
				     "see fault=%s",
				     WHAT_WORDS);
		goto fail;
	}
	if (p->what == FAULT_SHORT) {
		error = pl_loop_new_blocking(&f->loop, err);
		if (error != 0)
			goto fail;
		error = pl_layer_attach(below, f->loop, &f->state, err);
		if (error != 0) {
			pl_loop_free(f->loop);
			goto fail;
		}
	}
	*handle = f;
	return 0;
fail:
	free(f);
	return error;
}

static void
fault_close(void *handle)
{
	struct fault *f = handle;

	if (f->loop != NULL) {
		pl_layer_detach(f->below, f->state);
		pl_loop_free(f->loop);
	}
	free(f);
}

static void
fault_limits(void *handle, struct pl_driver_limits *out)
{
	const struct fault *f = handle;
	const struct pl_driver_limits *below = pl_layer_limits(f->below);

	*out = *below;
	snprintf(out->description, sizeof out->description,
		 "a fault at operation %" PRIu64 "%s; %.100s", f->params.at,
		 f->params.repeat == FOREVER ? " and after" : "", below->description);
}

static int
fault_grow(void *handle, struct pl_error *err)
{
	(void)handle;
	(void)err;
	return 0; /* as the driver below */
}

static const char *
fault_name(void *handle)
{
	const struct fault *f = handle;

	return pl_layer_name(f->below);
}

static int
fault_attach(void *handle, struct pl_loop *loop, void **state, struct pl_error *err)
{
	struct fault *f = handle;
	struct channel *c = malloc(sizeof *c);
	int error;

	if (c == NULL)
		return pl_error_set(err, -ENOMEM, "fault");
	*c = (struct channel){ .fault = f, .loop = loop };
	error = pl_layer_attach(f->below, loop, &c->below, err);
	if (error != 0) {
		free(c);
		return error;
	}
	*state = c;
	return 0;
}

static void
fault_detach(void *state)
{
	struct channel *c = state;

	pl_layer_detach(c->fault->below, c->below);
	free(c);
}

const struct pl_driver pl_driver_fault = {
	.name = "fault",
	.help = "errors, delays, short transfers and lies at a chosen operation",
	.options = fault_options,
	.params_size = sizeof(struct fault_params),
	.over = true,
	.open = fault_open,
	.close = fault_close,
	.limits = fault_limits,
	.grow = fault_grow,
	.name_of = fault_name,
	.attach = fault_attach,
	.detach = fault_detach,
	.submit = fault_submit,
};
