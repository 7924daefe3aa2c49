/* torture-nbd.c - an NBD server as a target, by libnbd. */
#include "torture-stamp.h"
#include "torture-target.h"

#include <errno.h>
#include <libnbd.h>
#include <stdlib.h>
#include <time.h>

#define DEPTH 64

struct torture_conn {
	struct nbd_handle *nbd;
};

/* ---- coming and going ------------------------------------------------------------ */

static int
nbd_failed(struct pl_error *err)
{
	int error = nbd_get_errno();

	return pl_error_say(err, error > 0 ? -error : -EIO, "%s", nbd_get_error());
}

static int
connect_until(struct nbd_handle *nbd, const char *uri, time_t deadline, struct pl_error *err)
{
	/* Its own words of what the URI names: keys for TLS may be files. */
	if (nbd_set_uri_allow_local_file(nbd, true) == -1 || nbd_aio_connect_uri(nbd, uri) == -1)
		return nbd_failed(err);
	while (nbd_aio_is_ready(nbd) != 1) {
		if (nbd_aio_is_dead(nbd) == 1 || nbd_aio_is_closed(nbd) == 1)
			return nbd_failed(err);
		if (time(NULL) >= deadline)
			return pl_error_say(err, -ETIMEDOUT, "%s: no answer", uri);
		if (nbd_poll(nbd, 200) == -1)
			return nbd_failed(err);
	}
	return 0;
}

static int
learn(struct nbd_handle *nbd, struct torture_info *info, struct pl_error *err)
{
	const struct {
		int says;
		unsigned can;
	} flags[] = {
		{ nbd_can_flush(nbd), CAN_FLUSH },
		{ nbd_can_fua(nbd), CAN_FUA | CAN_FUA_ZERO },
		{ nbd_can_zero(nbd), CAN_ZERO },
		{ nbd_can_trim(nbd), CAN_TRIM },
		{ nbd_can_multi_conn(nbd), CAN_SHARE },
		{ nbd_is_read_only(nbd), CAN_NOT_WRITE },
	};
	int64_t size = nbd_get_size(nbd), min = nbd_get_block_size(nbd, LIBNBD_SIZE_MINIMUM),
		max = nbd_get_block_size(nbd, LIBNBD_SIZE_MAXIMUM);

	if (size < 0 || min < 0 || max < 0)
		return nbd_failed(err);
	if ((min & (min - 1)) != 0 || min > 65536 || (max != 0 && max < 65536))
		return pl_error_say(err, -EINVAL, "the server tells block sizes that cannot be");
	*info = (struct torture_info){
		.size = (uint64_t)size,
		.unit = min < 512 ? 512 : (uint32_t)min,
		.max = max == 0 || max > 1 << 20 ? 1 << 20 : (uint32_t)(max & ~65535),
		.depth = DEPTH,
	};
	/* A server that tells no smallest block may not have thought of any below 512. */
	info->align = min >= 1 && min <= CELL ? CELL : info->unit;
	for (unsigned i = 0; i < sizeof flags / sizeof *flags; i++)
		info->can |= flags[i].says == 1 ? flags[i].can : 0;
	return 0;
}

static int
nbd_open(const char *target, enum torture_open how, unsigned timeout_s, struct torture_conn **conn,
	 struct torture_info *info, struct pl_error *err)
{
	struct torture_conn *c = calloc(1, sizeof *c);
	int error;

	(void)how; /* the protocol cannot tell who else is there */
	if (c == NULL)
		return pl_error_set(err, -ENOMEM, "%s", target);
	c->nbd = nbd_create();
	error = c->nbd == NULL ? nbd_failed(err)
			       : connect_until(c->nbd, target, time(NULL) + timeout_s, err);
	if (error == 0)
		error = learn(c->nbd, info, err);
	if (error != 0) {
		nbd_close(c->nbd);
		free(c);
		return error;
	}
	*conn = c;
	return 0;
}

static void
nbd_end(struct torture_conn *c)
{
	/* A goodbye, if it can be said at once. */
	if (nbd_aio_is_ready(c->nbd) == 1 && nbd_aio_disconnect(c->nbd, 0) == 0)
		nbd_poll(c->nbd, 1000);
	nbd_close(c->nbd);
	free(c);
}

/* ---- operations ------------------------------------------------------------------ */

/* Within libnbd: nothing of it may be called here. */
static int
done(void *user, int *error)
{
	struct torture_op *op = user;

	op->on_done(op, -*error);
	return 1; /* it needs not be asked for again */
}

static int
nbd_submit(struct torture_conn *c, struct torture_op *op)
{
	nbd_completion_callback then = { .callback = done, .user_data = op };
	uint32_t flags = op->fua ? LIBNBD_CMD_FLAG_FUA : 0;
	int64_t cookie = -1;

	switch (op->kind) {
	case TORTURE_READ:
		cookie = nbd_aio_pread(c->nbd, op->data, op->length, op->offset, then, 0);
		break;
	case TORTURE_WRITE:
		cookie = nbd_aio_pwrite(c->nbd, op->data, op->length, op->offset, then, flags);
		break;
	case TORTURE_ZERO:
		cookie = nbd_aio_zero(c->nbd, op->length, op->offset, then, flags);
		break;
	case TORTURE_TRIM:
		cookie = nbd_aio_trim(c->nbd, op->length, op->offset, then, flags);
		break;
	case TORTURE_FLUSH: cookie = nbd_aio_flush(c->nbd, then, 0); break;
	}
	return cookie == -1 ? -ENOTCONN : 0;
}

static int
nbd_wait(struct torture_conn *c, int timeout_ms)
{
	if (nbd_poll(c->nbd, timeout_ms) == -1 || nbd_aio_is_dead(c->nbd) == 1 ||
	    nbd_aio_is_closed(c->nbd) == 1)
		return -ENOTCONN;
	return 0;
}

const struct torture_transport torture_nbd = {
	.scheme = "nbd",
	.open = nbd_open,
	.submit = nbd_submit,
	.wait = nbd_wait,
	.close = nbd_end,
};
