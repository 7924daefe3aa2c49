/*
 * platter-driver.h - what a driver is, for those who write one.
 *
 * A driver is a table. The control path (open, close, limits, attach, detach) may
 * block and explains its errors; the data path (submit) does neither. The core asks
 * a driver only for what it declared: see "pl_driver_limits" and platter-driver(3).
 */
#ifndef PLATTER_DRIVER_H
#define PLATTER_DRIVER_H

#include "platter.h"

/* ---- what a driver declares ------------------------------------------------------ */

/*
 * The core keeps every part within these. Part of the contract:
 * - offset of a part is a multiple of `align`; so is its end, but where the size is not:
 *   then what lies behind the last whole block comes as a READ or WRITE part of its own;
 * - each iov of a READ or WRITE part starts on a multiple of `mem_align`, and so does its
 *   end where another one follows;
 * - ZERO and TRIM parts start and end on `zero_align` or at the size;
 * - a write that touches [tail, size) has that whole range to itself;
 * - PL_FUA comes only on WRITE and only with PL_CAP_FUA in `capabilities`, and on READ
 *   ("read the medium": pass by caches that the medium does not know of);
 * - an operation without its capability never comes, and PL_MODIFY never: it comes as a READ and
 *   a WRITE.
 */
#define PL_DRIVER_OPS PL_MODIFY
struct pl_driver_limits {
	struct pl_geometry geometry;
	unsigned capabilities; /* PL_CAP_FUA here: a FUA write is native */
	uint32_t align;        /* bytes, a power of two, 1: any */
	uint32_t mem_align;    /* bytes, a power of two, 1: any */
	uint32_t zero_align;   /* bytes, a power of two, not below align */
	uint64_t tail;         /* the size where no tail is special */
	/* A FUA WRITE that is no multiple of fua_align comes without the flag, and a FLUSH
	 * after it. 0: the core makes parts of it that are as align and mem_align say. */
	uint32_t fua_align, fua_mem_align;
	/* Bytes, a power of two: in a window of so many, a WRITE with FUA and one without (or
	 * a ZERO or TRIM) are never under way together. 0: they may be. */
	uint32_t fua_window;
	char description[160]; /* for people, with the reasons for what was chosen */
};

struct pl_layer;

struct pl_driver {
	const char *name;
	const char *help; /* one line */
	const struct pl_option *options;
	size_t params_size; /* of the struct that the options fill */
	bool over;          /* stands over another driver (option `over`) */

	/* params: filled by the table. below: the opened driver that this one stands over,
	 * or NULL. Errors: negative errno and a sentence that names the thing. */
	int (*open)(const void *params, unsigned open_flags, struct pl_layer *below, void **handle,
		    struct pl_error *err);
	void (*close)(void *handle); /* `below` is closed afterwards, by the core */
	void (*limits)(void *handle, struct pl_driver_limits *out); /* after open, and grow */
	/* Looks whether the device has become larger; limits() says so from then on, in its size
	 * and tail alone. Requests may be under way, and come as the old limits say. A driver over
	 * another one is asked after it. Errors: -EINVAL for one that has become smaller; nothing
	 * is changed then. NULL: its devices never grow. */
	int (*grow)(void *handle, struct pl_error *err);
	const char *(*name_of)(void *handle); /* for people; NULL: the driver's name */

	/* Per channel. Both may be NULL: the state is then the handle. */
	int (*attach)(void *handle, struct pl_loop *loop, void **state, struct pl_error *err);
	void (*detach)(void *state);

	/*
	 * Carry out req->part, then call pl_part_done() once, now or later on the same loop.
	 * req->io and req->scratch are free for the driver's use until then. On a blocking
	 * loop several threads may be in here at once.
	 */
	void (*submit)(void *state, struct pl_request *req);
};

/*
 * The part is done. READ and WRITE: result is the bytes transferred; fewer than asked
 * is allowed (the core asks for the rest), 0 means that nothing more can be (READ: the
 * device ends early, WRITE: it is full). Others: 0. Errors: negative errno; ZERO and
 * TRIM: -EOPNOTSUPP when nothing was changed and the core is to find another way.
 */
void pl_part_done(struct pl_request *req, int64_t result);

/* The request whose io this is. */
static inline struct pl_request *
pl_request_of(struct pl_io *io)
{
	return (struct pl_request *)((char *)io - offsetof(struct pl_request, io));
}

/* ---- what a driver works with ---------------------------------------------------- */

/* Registers fd with the loop's ring for pl_io.slot. Returns -1 where that is not possible. */
int pl_loop_add_file(struct pl_loop *loop, int fd);
void pl_loop_remove_file(struct pl_loop *loop, int slot);

/*
 * A driver's way to the driver below it. attach and detach as in struct pl_driver;
 * submit hands a part on as it is (perhaps shortened), and pl_part_done() comes from
 * below. limits are those of the driver below, to start one's own from.
 */
const struct pl_driver_limits *pl_layer_limits(const struct pl_layer *below);
const char *pl_layer_name(const struct pl_layer *below);
int pl_layer_attach(struct pl_layer *below, struct pl_loop *loop, void **state,
		    struct pl_error *err);
void pl_layer_detach(struct pl_layer *below, void *state);
void pl_layer_submit(struct pl_layer *below, void *state, struct pl_request *req);

/* The whole part, at once, on a channel state that was attached on a blocking loop; short
 * transfers are continued. Returns 0 or a negative errno. part->iov is used up. */
int pl_layer_call(struct pl_layer *below, void *state, struct pl_part *part);

/* ---- the drivers there are ------------------------------------------------------- */

extern const struct pl_driver pl_driver_file, pl_driver_memory, pl_driver_null, pl_driver_fault,
	pl_driver_powercut;

/* In the order of --help; NULL ends it. */
extern const struct pl_driver *const pl_drivers[];

#endif
