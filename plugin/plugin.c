/*
 * plugin.c - the core as an nbdkit plugin.
 *
 * nbdkit's callbacks become requests: each of its threads carries its own through
 * pl_request_call() on one blocking loop. Everything that is advertised comes from
 * pl_export_capabilities().
 *
 * nbdkit calls: load, config for each pair, config_complete, get_ready (still in the
 * foreground and privileged: the image is opened here, so that a bad one is refused at
 * start), then it may change its user and fork; open, the data callbacks and close come
 * from many threads after that.
 */
#include "cmdline.h"
#include "platter.h"
#include "served.h"

#include <dirent.h>
#include <errno.h>
#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

#define NBDKIT_MAX_REQUEST (64u << 20) /* nbdkit refuses larger reads and writes itself */
#define EXTENTS_MAX        256         /* in one answer; the client asks again for the rest */

struct connection {
	struct pl_export *export;
	struct pl_channel *channel;
};

static struct pl_params *plugin_params;
static struct pl_loop *plugin_loop;
static struct pl_export *plugin_export; /* held from start to end; NULL with a directory */

/* The directory whose images are the exports, or NULL: one image, whatever the name. */
static const char *
plugin_directory(void)
{
	if (pl_params_get(plugin_params, "path") != NULL)
		return NULL;
	return pl_params_get(plugin_params, "dir");
}

static int
fail(const struct pl_error *err)
{
	nbdkit_error("%s", err->text);
	nbdkit_set_error(-err->code);
	return -1;
}

/* ---- life ------------------------------------------------------------------------ */

static void
platter_log(enum pl_log_level level, const char *line)
{
	if (level == PL_LOG_ERROR || level == PL_LOG_WARN)
		nbdkit_error("%s", line);
	else
		nbdkit_debug("%s", line);
}

static void
platter_load(void)
{
	pl_log_to(platter_log);
	signal(SIGXFSZ, SIG_IGN); /* a file size limit is an error, EFBIG */
	plugin_params = pl_params_new();
	if (plugin_params == NULL) {
		nbdkit_error("no memory");
		exit(EXIT_FAILURE);
	}
}

static void
platter_unload(void)
{
	if (plugin_export != NULL)
		served_close(plugin_export);
	if (plugin_loop != NULL)
		pl_loop_free(plugin_loop);
	pl_params_free(plugin_params);
}

static int
platter_config(const char *key, const char *value)
{
	struct pl_error err = { 0 };
	char *absolute = NULL;

	/* nbdkit goes to / when it goes to the background, and a directory is looked into
	 * for as long as it serves. */
	if (strcmp(key, "dir") == 0) {
		absolute = realpath(value, NULL);
		if (absolute == NULL) {
			nbdkit_error("dir=%s: %m", value);
			return -1;
		}
	}
	pl_params_add(plugin_params, key, absolute != NULL ? absolute : value, &err);
	free(absolute);
	return err.code != 0 ? fail(&err) : 0;
}

/* The parameters of one export of the directory. */
static struct pl_params *
params_of(const char *name, struct pl_error *err)
{
	struct pl_params *p = pl_params_copy(plugin_params);

	if (p == NULL)
		pl_error_set(err, -ENOMEM, "export %s", name);
	else if (pl_params_add(p, "path", name, err) == 0)
		return p;
	pl_params_free(p);
	return NULL;
}

static int
platter_config_complete(void)
{
	struct pl_error err;
	struct pl_params *p;
	int error;

	if (plugin_directory() == NULL) {
		error = pl_export_check(plugin_params, &err);
		return error != 0 ? fail(&err) : 0;
	}
	p = params_of("name", &err);
	error = p == NULL ? err.code : pl_export_check(p, &err);
	pl_params_free(p);
	return error != 0 ? fail(&err) : 0;
}

static int
check_directory(const char *path)
{
	DIR *dir = opendir(path);

	if (dir == NULL) {
		nbdkit_error("dir=%s: %m", path);
		return -1;
	}
	closedir(dir);
	return 0;
}

/* An image that cannot be written is served read-only: nbdkit's filters (cow) may make of it a
 * disk that can. */
static unsigned
open_flags(bool read_only)
{
	return read_only ? PL_OPEN_READ_ONLY : PL_OPEN_FALL_BACK;
}

static int
platter_get_ready(void)
{
	bool read_only = cmdline_read_only();
	struct pl_error err;

	if (pl_loop_new_blocking(&plugin_loop, &err) != 0)
		return fail(&err);
	if (plugin_directory() != NULL)
		return check_directory(plugin_directory());
	if (served_open(NULL, plugin_params, open_flags(read_only), &plugin_export, &err) != 0)
		return fail(&err);
	return 0;
}

/* One plain file name, and not a hidden one. */
static bool
name_is_plain(const char *name)
{
	return name != NULL && *name != '\0' && *name != '.' && strchr(name, '/') == NULL;
}

static int
open_named(const char *name, int readonly, struct pl_export **ex, struct pl_error *err)
{
	struct pl_params *p;
	int error;

	if (!name_is_plain(name))
		return pl_error_say(err, -ENOENT, "'%s' is not the name of an export",
				    name != NULL ? name : "");
	p = params_of(name, err);
	if (p == NULL)
		return err->code;
	error = served_open(name, p, open_flags(readonly), ex, err);
	pl_params_free(p);
	return error;
}

static void *
platter_open(int readonly)
{
	struct connection *c = calloc(1, sizeof *c);
	struct pl_error err;
	int error = -ENOMEM;

	if (c == NULL)
		pl_error_set(&err, error, "connection");
	else if (plugin_directory() != NULL)
		error = open_named(nbdkit_export_name(), readonly, &c->export, &err);
	else
		error = served_open(NULL, plugin_params, 0, &c->export, &err); /* it is open */
	if (error == 0) {
		error = pl_channel_open(c->export, plugin_loop, &c->channel, &err);
		if (error != 0)
			served_close(c->export);
	}
	if (error != 0) {
		free(c);
		fail(&err);
		return NULL;
	}
	return c;
}

static void
platter_close(void *handle)
{
	struct connection *c = handle;
	struct pl_counters n;

	pl_export_counters(c->export, &n);
	nbdkit_debug("export %s: %" PRIu64 " reads, %" PRIu64 " writes, %" PRIu64
		     " zeroes, %" PRIu64 " trims, %" PRIu64 " flushes, %" PRIu64
		     " errors; FUA: %" PRIu64 " native; %" PRIu64 " requests committed in %" PRIu64
		     " groups",
		     pl_export_name(c->export), n.reads, n.writes, n.zeroes, n.trims, n.flushes,
		     n.errors, n.fua_native, n.committed, n.groups);
	pl_channel_close(c->channel);
	served_close(c->export);
	free(c);
}

/* ---- what there is --------------------------------------------------------------- */

static void
platter_dump_plugin(void)
{
	char *text = pl_options_dump("platter_");

	if (text != NULL)
		fputs(text, stdout);
	free(text);
}

static int
platter_list_exports(int readonly, int is_tls, struct nbdkit_exports *exports)
{
	struct dirent **entries;
	const char *path = plugin_directory();
	int n, error = 0;

	(void)readonly;
	(void)is_tls;
	if (path == NULL)
		return nbdkit_use_default_export(exports);
	n = scandir(path, &entries, NULL, alphasort);
	if (n == -1) {
		nbdkit_error("dir=%s: %m", path);
		return -1;
	}
	for (int i = 0; i < n; i++) {
		char *file = NULL;
		struct stat st;

		if (error == 0 && name_is_plain(entries[i]->d_name) &&
		    asprintf(&file, "%s/%s", path, entries[i]->d_name) != -1 &&
		    lstat(file, &st) == 0 && S_ISREG(st.st_mode))
			error = nbdkit_add_export(exports, entries[i]->d_name, NULL);
		free(file);
		free(entries[i]);
	}
	free(entries);
	return error;
}

static const char *
platter_default_export(int readonly, int is_tls)
{
	(void)readonly;
	(void)is_tls;
	return plugin_directory() == NULL ? "" : NULL;
}

static const char *
platter_export_description(void *handle)
{
	return pl_export_description(((struct connection *)handle)->export);
}

static int64_t
platter_get_size(void *handle)
{
	return (int64_t)pl_export_geometry(((struct connection *)handle)->export)->size;
}

static int
platter_block_size(void *handle, uint32_t *minimum, uint32_t *preferred, uint32_t *maximum)
{
	*minimum = 1;
	*preferred = pl_export_geometry(((struct connection *)handle)->export)->preferred;
	*maximum = NBDKIT_MAX_REQUEST;
	return 0;
}

static bool
can(void *handle, enum pl_capability capability)
{
	return (pl_export_capabilities(((struct connection *)handle)->export) & capability) != 0;
}

#define CAN(callback, capability) \
	static int platter_##callback(void *handle) \
	{ \
		return can(handle, capability); \
	}

CAN(can_write, PL_CAP_WRITE)
CAN(can_flush, PL_CAP_FLUSH)
CAN(can_trim, PL_CAP_TRIM)
CAN(can_zero, PL_CAP_ZERO)
CAN(can_fast_zero, PL_CAP_FAST_ZERO)
CAN(can_extents, PL_CAP_EXTENTS)
CAN(can_multi_conn, PL_CAP_MULTI_CONN)
CAN(is_rotational, PL_CAP_ROTATIONAL)

/* The flag comes to us, and the core knows the better way; nbdkit's own emulation would
 * flush once for each write. */
static int
platter_can_fua(void *handle)
{
	return can(handle, PL_CAP_FUA) ? NBDKIT_FUA_NATIVE : NBDKIT_FUA_NONE;
}

static int
platter_can_cache(void *handle)
{
	return can(handle, PL_CAP_CACHE) ? NBDKIT_CACHE_NATIVE : NBDKIT_CACHE_NONE;
}

/* ---- data
 * ------------------------------------------------------------------------------------------ */

static unsigned
request_flags(uint32_t flags)
{
	return ((flags & NBDKIT_FLAG_FUA) != 0 ? PL_FUA : 0) |
	       ((flags & NBDKIT_FLAG_FAST_ZERO) != 0 ? PL_FAST : 0);
}

/* What a client can be told; nbdkit(3), "ERROR HANDLING", has the errnos it passes on, and
 * makes EINVAL of all others. The sentence keeps the disk's own. */
static int
errno_for_client(const struct pl_request *req, int error)
{
	switch (-error) {
	case EPERM:
	case EROFS:
	case EIO:
	case ENOMEM:
	case EINVAL:
	case ENOSPC: return -error;
	case EFBIG:
	case EDQUOT: return ENOSPC;
	/* Of any other request nbdkit takes it for an invitation to write zeroes. */
	case ENOTSUP: return (req->flags & PL_FAST) != 0 ? ENOTSUP : EIO;
	default: return EIO;
	}
}

/* Whether the reply waits until something is stable. */
static bool
is_promise(const struct connection *c, const struct pl_request *req)
{
	return req->op == PL_FLUSH || (req->flags & PL_FUA) != 0 ||
	       (req->op != PL_READ &&
		(pl_export_capabilities(c->export) & PL_CAP_WRITE_THROUGH) != 0);
}

static void
report(const struct connection *c, const struct pl_request *req, uint64_t offset, uint64_t length,
       int error)
{
	static const char *const verbs[PL_EXTENTS + 1] = {
		[PL_READ] = "read",       [PL_WRITE] = "write", [PL_FLUSH] = "flush",
		[PL_ZERO] = "zero",       [PL_TRIM] = "trim",   [PL_CACHE] = "cache",
		[PL_EXTENTS] = "extents",
	};
	const char *name = pl_export_name(c->export);
	const char *why = strerror(-error);

	if (error == -EIO && is_promise(c, req) && pl_export_failed(c->export))
		why = "a sync has failed, nothing can be made durable any more";
	if (req->op == PL_FLUSH)
		nbdkit_error("export %s: flush: %s", name, why);
	else
		nbdkit_error("export %s: %s [%" PRIu64 ", %" PRIu64 "): %s", name, verbs[req->op],
			     offset, offset + length, why);
}

/* Carries req out. On failure nbdkit gets the errno, and a person the sentence. */
static int
call(void *handle, struct pl_request *req)
{
	struct connection *c = handle;
	uint64_t offset = req->offset, length = req->length;
	int error = pl_request_call(c->channel, req);

	if (error == 0)
		return 0;
	/* A fast zero that would be slow is an answer, not a fault. */
	if (error != -ENOTSUP || (req->flags & PL_FAST) == 0)
		report(c, req, offset, length, error);
	nbdkit_set_error(errno_for_client(req, error));
	return -1;
}

static int
platter_pread(void *handle, void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	struct iovec iov = { buf, count };
	struct pl_request req = {
		.op = PL_READ, .offset = offset, .length = count, .iov = &iov, .iovcnt = 1
	};

	(void)flags;
	return call(handle, &req);
}

static int
platter_pwrite(void *handle, const void *buf, uint32_t count, uint64_t offset, uint32_t flags)
{
	struct iovec iov = { (void *)buf, count };
	struct pl_request req = {
		.op = PL_WRITE,
		.flags = request_flags(flags),
		.offset = offset,
		.length = count,
		.iov = &iov,
		.iovcnt = 1,
	};

	return call(handle, &req);
}

static int
platter_flush(void *handle, uint32_t flags)
{
	struct pl_request req = { .op = PL_FLUSH };

	(void)flags;
	return call(handle, &req);
}

static int
platter_zero(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	struct pl_request req = {
		.op = PL_ZERO,
		.flags = request_flags(flags) |
			 ((flags & NBDKIT_FLAG_MAY_TRIM) != 0 ? 0 : PL_NO_HOLE),
		.offset = offset,
		.length = count,
	};

	return call(handle, &req);
}

static int
platter_trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	struct pl_request req = {
		.op = PL_TRIM, .flags = request_flags(flags), .offset = offset, .length = count
	};

	return call(handle, &req);
}

static int
platter_cache(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	struct pl_request req = { .op = PL_CACHE, .offset = offset, .length = count };

	(void)flags;
	return call(handle, &req);
}

static int
platter_extents(void *handle, uint32_t count, uint64_t offset, uint32_t flags,
		struct nbdkit_extents *extents)
{
	struct pl_extent list[EXTENTS_MAX];
	struct pl_extents x = { .list = list,
				.max = (flags & NBDKIT_FLAG_REQ_ONE) != 0 ? 1 : EXTENTS_MAX };
	struct pl_request req = {
		.op = PL_EXTENTS, .offset = offset, .length = count, .extents = &x
	};

	if (call(handle, &req) == -1)
		return -1;
	for (unsigned i = 0; i < x.count; offset += list[i++].length) {
		uint32_t type = ((list[i].flags & PL_EXTENT_HOLE) != 0 ? NBDKIT_EXTENT_HOLE : 0) |
				((list[i].flags & PL_EXTENT_ZERO) != 0 ? NBDKIT_EXTENT_ZERO : 0);

		if (nbdkit_add_extent(extents, offset, list[i].length, type) == -1)
			return -1;
	}
	return 0;
}

static struct nbdkit_plugin plugin = {
	.name = "platter",
	.longname = "Platter",
	.version = PACKAGE_VERSION,
	.description = "disk images with FUA that is real",
	.load = platter_load,
	.unload = platter_unload,
	.config = platter_config,
	.config_complete = platter_config_complete,
	.magic_config_key = "path",
	.dump_plugin = platter_dump_plugin,
	.get_ready = platter_get_ready,
	.list_exports = platter_list_exports,
	.default_export = platter_default_export,
	.export_description = platter_export_description,
	.open = platter_open,
	.close = platter_close,
	.get_size = platter_get_size,
	.block_size = platter_block_size,
	.can_write = platter_can_write,
	.can_flush = platter_can_flush,
	.can_trim = platter_can_trim,
	.can_zero = platter_can_zero,
	.can_fast_zero = platter_can_fast_zero,
	.can_extents = platter_can_extents,
	.can_fua = platter_can_fua,
	.can_multi_conn = platter_can_multi_conn,
	.can_cache = platter_can_cache,
	.is_rotational = platter_is_rotational,
	.pread = platter_pread,
	.pwrite = platter_pwrite,
	.flush = platter_flush,
	.zero = platter_zero,
	.trim = platter_trim,
	.cache = platter_cache,
	.extents = platter_extents,
};

/* nbdkit copies the struct before it calls load. */
static __attribute__((__constructor__)) void
platter_make_help(void)
{
	plugin.config_help = pl_options_help();
}

struct nbdkit_plugin *plugin_init(void); /* that the macro defines */
NBDKIT_REGISTER_PLUGIN(plugin)
