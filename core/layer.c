/* layer.c - opened drivers, one over the other, as the options ask. */
#include "layer.h"

#include "iov.h"
#include "option.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

/* What a driver once declared. Requests under way go by what they began with. */
struct declared {
	struct pl_driver_limits limits;
	struct declared *older;
};

struct pl_layer {
	const struct pl_driver *driver;
	void *params; /* filled by the driver's table */
	void *handle;
	struct declared *declared; /* atomic */
	struct pl_layer *below;
};

const struct pl_driver *const pl_drivers[] = {
	&pl_driver_file,  &pl_driver_memory,   &pl_driver_null,
	&pl_driver_fault, &pl_driver_powercut, NULL,
};

static const struct pl_driver *
driver_find(const char *name, size_t len)
{
	for (unsigned i = 0; pl_drivers[i] != NULL; i++) {
		if (strlen(pl_drivers[i]->name) == len &&
		    memcmp(pl_drivers[i]->name, name, len) == 0)
			return pl_drivers[i];
	}
	return NULL;
}

static int
driver_unknown(const char *option, const char *name, size_t len, struct pl_error *err)
{
	char names[128] = "";

	for (unsigned i = 0; pl_drivers[i] != NULL; i++) {
		strncat(names, i > 0 ? ", " : "", sizeof names - strlen(names) - 1);
		strncat(names, pl_drivers[i]->name, sizeof names - strlen(names) - 1);
	}
	return pl_error_say(err, -EINVAL, "%s=%.*s: there is no such driver; there are: %s", option,
			    (int)len, name, names);
}

/* Makes the layers, their options parsed, nothing opened. */
static int
layer_make(const struct pl_driver *driver, const char *over, const struct pl_params *params,
	   uint64_t *used, struct pl_layer **out, struct pl_error *err)
{
	struct pl_layer *l = calloc(1, sizeof *l);
	int error = -ENOMEM;

	if (l != NULL)
		l->params = calloc(1, driver->params_size + 1);
	if (l == NULL || l->params == NULL) {
		pl_error_set(err, error, "driver %s", driver->name);
		goto fail;
	}
	l->driver = driver;
	error = pl_options_parse(driver->options, params, used, l->params, err);
	if (error != 0)
		goto fail;
	if (driver->over) {
		size_t len = over != NULL ? strcspn(over, ",") : 0;
		const struct pl_driver *below = driver_find(over, len);

		if (len == 0)
			error = pl_error_say(
				err, -EINVAL,
				"driver %s stands over another one: over=DRIVER is missing",
				driver->name);
		else if (below == NULL)
			error = driver_unknown("over", over, len, err);
		else
			error = layer_make(below, over[len] == ',' ? over + len + 1 : NULL, params,
					   used, &l->below, err);
	} else if (over != NULL) {
		error = pl_error_say(err, -EINVAL, "over: driver %s stands over no other",
				     driver->name);
	}
	if (error != 0)
		goto fail;
	*out = l;
	return 0;
fail:
	if (l != NULL)
		free(l->params);
	free(l);
	return error;
}

static void
layer_free(struct pl_layer *l)
{
	if (l == NULL)
		return;
	layer_free(l->below);
	for (struct declared *d = l->declared, *older; d != NULL; d = older) {
		older = d->older;
		free(d);
	}
	free(l->params);
	free(l);
}

static int
layer_from_params(const struct pl_params *params, struct pl_layer **top, struct pl_error *err)
{
	static const char *const own[] = { "driver", "over" };
	const char *name = pl_params_get(params, "driver");
	const char *over = pl_params_get(params, "over");
	const struct pl_driver *driver;
	uint64_t used = 0;
	int error;

	if (name == NULL)
		name = pl_driver_file.name;
	driver = driver_find(name, strlen(name));
	if (driver == NULL)
		return driver_unknown("driver", name, strlen(name), err);
	for (unsigned i = 0; i < 2; i++) {
		int at = pl_params_find(params, own[i]);

		if (at >= 0)
			used |= UINT64_C(1) << at;
	}
	error = layer_make(driver, over, params, &used, top, err);
	if (error != 0)
		return error;
	for (unsigned i = 0; i < pl_params_count(params); i++) {
		if ((used & UINT64_C(1) << i) != 0)
			continue;
		layer_free(*top);
		*top = NULL;
		return pl_error_say(err, -EINVAL, "%s=%s: driver %s%s has no option %s",
				    pl_params_key(params, i), pl_params_value(params, i), name,
				    over != NULL ? ", and what it stands over," : "",
				    pl_params_key(params, i));
	}
	return 0;
}

int
pl_layer_check(const struct pl_params *params, struct pl_error *err)
{
	struct pl_layer *top;
	int error = layer_from_params(params, &top, err);

	if (error == 0)
		layer_free(top);
	return error;
}

static void
layer_close_drivers(struct pl_layer *l)
{
	for (; l != NULL; l = l->below)
		l->driver->close(l->handle);
}

static int
layer_declare(struct pl_layer *l, struct pl_error *err)
{
	struct declared *d = malloc(sizeof *d);

	if (d == NULL)
		return pl_error_set(err, -ENOMEM, "driver %s", l->driver->name);
	l->driver->limits(l->handle, &d->limits);
	assert(d->limits.mem_align > 0 && d->limits.align >= d->limits.mem_align);
	assert(d->limits.zero_align >= d->limits.align);
	assert(d->limits.fua_align >= d->limits.fua_mem_align);
	d->older = l->declared;
	__atomic_store_n(&l->declared, d, __ATOMIC_RELEASE);
	return 0;
}

/* From the bottom up; on failure what is below is closed again. */
static int
layer_open_drivers(struct pl_layer *l, unsigned open_flags, struct pl_error *err)
{
	int error;

	if (l->below != NULL) {
		error = layer_open_drivers(l->below, open_flags, err);
		if (error != 0)
			return error;
	}
	error = l->driver->open(l->params, open_flags, l->below, &l->handle, err);
	if (error != 0) {
		layer_close_drivers(l->below);
		return error;
	}
	error = layer_declare(l, err);
	if (error != 0)
		layer_close_drivers(l);
	return error;
}

int
pl_layer_open(const struct pl_params *params, unsigned open_flags, struct pl_layer **top,
	      struct pl_error *err)
{
	int error = layer_from_params(params, top, err);

	if (error != 0)
		return error;
	error = layer_open_drivers(*top, open_flags, err);
	if (error != 0) {
		layer_free(*top);
		*top = NULL;
	}
	return error;
}

void
pl_layer_close(struct pl_layer *top)
{
	layer_close_drivers(top);
	layer_free(top);
}

void *
pl_layer_handle(const struct pl_layer *top, const struct pl_driver *driver)
{
	while (top != NULL && top->driver != driver)
		top = top->below;
	return top != NULL ? top->handle : NULL;
}

const struct pl_driver_limits *
pl_layer_limits(const struct pl_layer *l)
{
	return &__atomic_load_n(&l->declared, __ATOMIC_ACQUIRE)->limits;
}

const char *
pl_layer_name(const struct pl_layer *l)
{
	if (l->driver->name_of != NULL)
		return l->driver->name_of(l->handle);
	return l->driver->name;
}

int
pl_layer_attach(struct pl_layer *l, struct pl_loop *loop, void **state, struct pl_error *err)
{
	if (l->driver->attach != NULL)
		return l->driver->attach(l->handle, loop, state, err);
	*state = l->handle;
	return 0;
}

void
pl_layer_detach(struct pl_layer *l, void *state)
{
	if (l->driver->detach != NULL)
		l->driver->detach(state);
}

void
pl_layer_submit(struct pl_layer *l, void *state, struct pl_request *req)
{
	l->driver->submit(state, req);
}

/* ---- growth ---------------------------------------------------------------------- */

int
pl_layer_grow(struct pl_layer *l, struct pl_error *err)
{
	struct pl_driver_limits now;
	int error = 0;

	if (l->driver->grow == NULL)
		return pl_error_say(err, -EOPNOTSUPP, "driver %s: its disks do not grow",
				    l->driver->name);
	if (l->below != NULL)
		error = pl_layer_grow(l->below, err);
	if (error == 0)
		error = l->driver->grow(l->handle, err);
	if (error != 0)
		return error;
	l->driver->limits(l->handle, &now);
	return now.geometry.size == l->declared->limits.geometry.size ? 0 : layer_declare(l, err);
}

/* ---- a part at once -------------------------------------------------------------- */

static void
call_part_done(struct pl_request *req, int64_t result)
{
	*(int64_t *)req->user = result;
}

int
pl_layer_call(struct pl_layer *l, void *state, struct pl_part *part)
{
	bool data = part->op == PL_READ || part->op == PL_WRITE;
	int64_t result;

	for (;;) {
		struct pl_request req = { .part = *part, .next = call_part_done, .user = &result };

		l->driver->submit(state, &req);
		if (result < 0)
			return (int)result;
		if (!data || (uint64_t)result == part->length)
			return 0;
		if (result == 0)
			return part->op == PL_READ ? -EIO : -ENOSPC;
		part->offset += (uint64_t)result;
		part->length -= (uint64_t)result;
		pl_iov_advance(&part->iov, &part->iovcnt, (uint64_t)result);
	}
}
