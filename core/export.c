/* export.c - a device on offer. */
#include "export.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

unsigned
pl_capabilities_reading(unsigned capabilities)
{
	return capabilities &
	       (PL_CAP_CACHE | PL_CAP_EXTENTS | PL_CAP_ROTATIONAL | PL_CAP_MULTI_CONN);
}

/*
 * What may be advertised, from what the drivers declare. FUA is there wherever FLUSH is,
 * since the core makes one of the other; never one without the other. The core zeroes by
 * writing where the driver cannot. A read-only export shows nothing that changes data.
 */
static unsigned
export_capabilities(unsigned declared, bool read_only)
{
	if (read_only || (declared & PL_CAP_WRITE) == 0)
		return pl_capabilities_reading(declared) | PL_CAP_MULTI_CONN;
	declared |= PL_CAP_ZERO | PL_CAP_FAST_ZERO;
	if ((declared & PL_CAP_FLUSH) != 0)
		return declared | PL_CAP_FUA;
	return declared & ~(unsigned)(PL_CAP_FUA | PL_CAP_MULTI_CONN | PL_CAP_WRITE_THROUGH);
}

static void
export_describe(struct pl_export *ex)
{
	const char *fua = (ex->capabilities & PL_CAP_FUA) == 0 ? "none"
			  : ex->native_fua                     ? "native"
							       : "shared flush";

	snprintf(ex->description, sizeof ex->description, "%s, FUA: %s%s",
		 pl_layer_limits(ex->layer)->description, fua,
		 (ex->capabilities & PL_CAP_WRITE) == 0 ? ", read-only" : "");
}

static int
export_open(const struct pl_params *params, unsigned flags, struct pl_export **out,
	    struct pl_error *err)
{
	struct pl_export *ex = calloc(1, sizeof *ex);
	unsigned declared;
	int error = -ENOMEM;

	if (ex == NULL)
		return pl_error_set(err, error, "export");
	ex->params = pl_params_copy(params);
	if (ex->params == NULL) {
		pl_error_set(err, error, "export");
		goto fail;
	}
	error = pl_layer_open(ex->params, flags, &ex->layer, err);
	if (error != 0)
		goto fail;
	declared = pl_layer_limits(ex->layer)->capabilities;
	ex->native_fua = (declared & PL_CAP_FUA) != 0;
	ex->capabilities = export_capabilities(declared, (flags & PL_OPEN_READ_ONLY) != 0);
	pl_commit_init(&ex->commit);
	pl_ranges_init(&ex->ranges);
	export_describe(ex);
	log_info("export %s: %llu bytes, %s", pl_export_name(ex),
		 (unsigned long long)pl_export_geometry(ex)->size, ex->description);
	*out = ex;
	return 0;
fail:
	pl_params_free(ex->params);
	free(ex);
	return error;
}

int
pl_export_open(const struct pl_params *params, unsigned flags, struct pl_export **ex,
	       struct pl_error *err)
{
	unsigned read_only = flags & PL_OPEN_READ_ONLY;
	struct pl_error why;
	int error = export_open(params, read_only, ex, &why);

	if ((flags & PL_OPEN_FALL_BACK) != 0 && !read_only &&
	    (error == -EACCES || error == -EPERM || error == -EROFS)) {
		error = export_open(params, PL_OPEN_READ_ONLY, ex, err);
		if (error == 0)
			log_warn("%s: it is served read-only", why.text);
	} else if (error != 0 && err != NULL) {
		*err = why;
	}
	return error;
}

int
pl_export_check(const struct pl_params *params, struct pl_error *err)
{
	return pl_layer_check(params, err);
}

void
pl_export_close(struct pl_export *ex)
{
	assert(ex->channels == 0);
	pl_commit_destroy(&ex->commit);
	pl_ranges_destroy(&ex->ranges);
	pl_layer_close(ex->layer);
	pl_params_free(ex->params);
	free(ex);
}

unsigned
pl_export_capabilities(const struct pl_export *ex)
{
	return ex->capabilities;
}

bool
pl_export_native_fua(const struct pl_export *ex)
{
	return ex->native_fua;
}

const struct pl_geometry *
pl_export_geometry(const struct pl_export *ex)
{
	return &pl_layer_limits(ex->layer)->geometry;
}

int
pl_export_grow(struct pl_export *ex, bool *grown, struct pl_error *err)
{
	uint64_t was = pl_export_geometry(ex)->size, is;
	int error = pl_layer_grow(ex->layer, err);

	is = pl_export_geometry(ex)->size;
	*grown = is != was;
	if (*grown)
		log_info("export %s: it has grown from %llu to %llu bytes", pl_export_name(ex),
			 (unsigned long long)was, (unsigned long long)is);
	return error;
}

const char *
pl_export_name(const struct pl_export *ex)
{
	return pl_layer_name(ex->layer);
}

const char *
pl_export_description(const struct pl_export *ex)
{
	return ex->description;
}

bool
pl_export_failed(const struct pl_export *ex)
{
	return __atomic_load_n(&ex->failed, __ATOMIC_ACQUIRE);
}

void
pl_export_fail(struct pl_export *ex, const char *what, int error)
{
	if (__atomic_exchange_n(&ex->failed, true, __ATOMIC_ACQ_REL))
		return;
	log_error("export %s: %s: %s: what was written and not yet flushed may be lost; FUA and "
		  "FLUSH fail from now on, until the export is opened again",
		  pl_export_name(ex), what, strerror(-error));
}

void
pl_export_count(struct pl_export *ex, const struct pl_request *req, int error)
{
	__atomic_fetch_add(&ex->done[req->op], 1, __ATOMIC_RELAXED);
	if (error < 0) /* what modify() says is none */
		__atomic_fetch_add(&ex->errors, 1, __ATOMIC_RELAXED);
	else if (error == 0 && req->native)
		__atomic_fetch_add(&ex->fua_native, 1, __ATOMIC_RELAXED);
}

void
pl_export_counters(const struct pl_export *const_ex, struct pl_counters *out)
{
	struct pl_export *ex = (struct pl_export *)const_ex;

	*out = (struct pl_counters){
		.reads = __atomic_load_n(&ex->done[PL_READ], __ATOMIC_RELAXED),
		.writes = __atomic_load_n(&ex->done[PL_WRITE], __ATOMIC_RELAXED) +
			  __atomic_load_n(&ex->done[PL_MODIFY], __ATOMIC_RELAXED),
		.zeroes = __atomic_load_n(&ex->done[PL_ZERO], __ATOMIC_RELAXED),
		.trims = __atomic_load_n(&ex->done[PL_TRIM], __ATOMIC_RELAXED),
		.flushes = __atomic_load_n(&ex->done[PL_FLUSH], __ATOMIC_RELAXED),
		.fua_native = __atomic_load_n(&ex->fua_native, __ATOMIC_RELAXED),
		.errors = __atomic_load_n(&ex->errors, __ATOMIC_RELAXED),
	};
	pthread_mutex_lock(&ex->commit.lock);
	out->committed = ex->commit.committed;
	out->groups = ex->commit.groups;
	pthread_mutex_unlock(&ex->commit.lock);
}
