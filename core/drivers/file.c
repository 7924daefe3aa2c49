/*
 * file.c - regular files and block devices.
 *
 * The good path: a part is one operation on the loop: a read or a write at its offset, an
 * fdatasync, a fallocate. FUA on a write is RWF_DSYNC on that one write.
 *
 * The other paths:
 * - cache=none and directsync pass by the page cache (O_DIRECT). Where the size is no
 *   multiple of the alignment, what lies behind the last whole block goes through the page
 *   cache and is synced at once; the core gives such a write the page to itself, since a
 *   direct write to the same page would meet a stale copy of its neighbours.
 * - cache=auto has FUA writes pass by the page cache that all else uses: RWF_DSYNC through the
 *   cache holds the inode's lock until the disk is done, and writers queue up. The core keeps such
 *   writes and cached ones apart (fua_window). Where an image cannot carry that, it is writeback.
 * - zeroing tries one way after the other and remembers what is refused (zero_ways).
 * - a file that has grown is served so when somebody asks to look (file_grow); parts that still
 *   come for the old size are as good as they were. But whoever makes a file larger whose size is
 *   no whole number of pages has the kernel zero the rest of its last page through the page cache,
 *   while a direct write may be under way there: that is for him to avoid.
 * - a read that finds the file shorter than it was is short, and the core answers EIO; a
 *   flush that finds it so fails, for what was written behind its end is gone. So does a write
 *   to a block device that is shorter, or gone, instead of finding no space.
 */
#include "file.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/openat2.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/vfs.h>
#include <unistd.h>

#define SPLIT_BITS (8 * sizeof(unsigned))
#define SPLIT_MAX  (64u << 10) /* bytes: a longer write is worth the walk */

struct file_channel {
	struct file *file;
	struct pl_loop *loop;
	int fd, slot;
	int past_fd, past_slot; /* or -1 */
};

static const struct pl_option file_options[] = {
	{ "path", PL_OPT_STRING, offsetof(struct file_params, path), "FILE", NULL, true,
	  "the image: a regular file or a block device" },
	{ "dir", PL_OPT_STRING, offsetof(struct file_params, dir), "DIR", NULL, false,
	  "path is a name in this directory, and never leads out of it" },
	{ "cache", PL_OPT_ENUM, offsetof(struct file_params, cache),
	  "auto|writeback|none|directsync|writethrough|unsafe", "auto", false,
	  "use of the page cache, and when a write is stable" },
	{ "fua", PL_OPT_ENUM, offsetof(struct file_params, fua), "auto|native|commit", "auto",
	  false, "how a FUA write is made stable: by itself, or by a shared flush" },
	{ "lock", PL_OPT_BOOL, offsetof(struct file_params, lock), NULL, "on", false,
	  "refuse an image that another process writes" },
	PL_OPTION_END,
};

static const struct {
	const char *word;
	bool direct, past, write_through, promises; /* past: FUA writes, where that can be */
} cache_modes[] = {
	[CACHE_AUTO] = { .word = "auto", .past = true, .promises = true },
	[CACHE_WRITEBACK] = { .word = "writeback", .promises = true },
	[CACHE_NONE] = { .word = "none", .direct = true, .promises = true },
	[CACHE_DIRECTSYNC] = { .word = "directsync",
			       .direct = true,
			       .write_through = true,
			       .promises = true },
	[CACHE_WRITETHROUGH] = { .word = "writethrough",
				 .past = true,
				 .write_through = true,
				 .promises = true },
	[CACHE_UNSAFE] = { .word = "unsafe" },
};

/* ---- opening --------------------------------------------------------------------- */

static int
refuse_type(const char *name, mode_t mode, struct pl_error *err)
{
	static const struct {
		mode_t type;
		const char *what;
	} types[] = {
		{ S_IFDIR, "a directory (dir=DIR serves the images in one)" },
		{ S_IFIFO, "a pipe" },
		{ S_IFSOCK, "a socket" },
		{ S_IFCHR, "a character device" },
	};
	const char *what = "of an unknown type";

	for (unsigned i = 0; i < sizeof types / sizeof *types; i++) {
		if ((mode & S_IFMT) == types[i].type)
			what = types[i].what;
	}
	return pl_error_say(err, -EINVAL, "%s: is %s; an image is a regular file or a block device",
			    name, what);
}

/* Finds the file without opening it: a pipe would wait, a tape would wind. */
static int
find_file(const struct file_params *p, const char *name, struct pl_error *err)
{
	struct open_how how = {
		.flags = O_PATH | O_CLOEXEC,
		.resolve = RESOLVE_BENEATH | RESOLVE_NO_SYMLINKS | RESOLVE_NO_MAGICLINKS,
	};
	int dir, fd;

	if (p->dir == NULL) {
		fd = open(p->path, O_PATH | O_CLOEXEC);
		return fd == -1 ? pl_error_set(err, -errno, "%s: open", name) : fd;
	}
	dir = open(p->dir, O_PATH | O_DIRECTORY | O_CLOEXEC);
	if (dir == -1)
		return pl_error_set(err, -errno, "dir=%s: open", p->dir);
	fd = (int)syscall(SYS_openat2, dir, p->path, &how, sizeof how);
	if (fd == -1 && errno == EXDEV)
		fd = pl_error_say(err, -errno, "path=%s leads out of dir=%s", p->path, p->dir);
	else if (fd == -1 && errno == ELOOP)
		fd = pl_error_say(err, -errno, "path=%s: links in dir=%s are not followed", p->path,
				  p->dir);
	else if (fd == -1)
		fd = pl_error_set(err, -errno, "%s: open", name);
	close(dir);
	return fd;
}

static int
reopen(int fd, int flags)
{
	char path[32];
	int fresh;

	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	fresh = open(path, flags | O_CLOEXEC);
	return fresh == -1 ? -errno : fresh;
}

static int
access_flags(const struct file *f)
{
	return (f->read_only ? O_RDONLY : O_RDWR) | (f->direct ? O_DIRECT : 0);
}

/* The file once more, or the same description where privileges have been dropped since it
 * was opened. Returns -1 with errno set. */
static int
reopen_or_share(int fd, int flags)
{
	int fresh = reopen(fd, flags);

	return fresh >= 0 ? fresh : fcntl(fd, F_DUPFD_CLOEXEC, 0);
}

static int
explain_open(const struct file *f, int error, struct pl_error *err)
{
	if (error == -EINVAL && f->direct)
		return pl_error_say(err, error,
				    "%s: its file system has no direct I/O, which cache=none and "
				    "directsync need; use cache=writeback or writethrough",
				    f->name);
	if (error == -EBUSY && f->block)
		return pl_error_say(err, error,
				    "%s: the device is mounted or in use; lock=off serves it all "
				    "the same",
				    f->name);
	if (error == -ENOENT) /* it was found a moment ago */
		return pl_error_say(err, error, "%s: open by /proc/self/fd: is /proc mounted?",
				    f->name);
	if (!f->read_only && (error == -EACCES || error == -EROFS || error == -EPERM))
		return pl_error_set(err, error, "%s: open for writing", f->name);
	return pl_error_set(err, error, "%s: open", f->name);
}

/* Fills f->fd from the found file. */
static int
open_file(struct file *f, const struct file_params *p, int found, struct pl_error *err)
{
	bool exclusive = p->lock && !f->read_only;
	int device_read_only;
	struct statfs fs;
	struct stat st;
	int error;

	if (fstat(found, &st) == -1)
		return pl_error_set(err, -errno, "%s: stat", f->name);
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return refuse_type(f->name, st.st_mode, err);
	if (fstatfs(found, &fs) == 0 && (fs.f_type == PROC_SUPER_MAGIC || fs.f_type == SYSFS_MAGIC))
		return pl_error_say(err, -EINVAL, "%s: is made up by the kernel, and no image",
				    f->name);
	f->block = S_ISBLK(st.st_mode);
	for (unsigned waited = 0; waited < FILE_PATIENCE; waited++) {
		f->fd = reopen(found, access_flags(f) | (f->block && exclusive ? O_EXCL : 0));
		if (f->fd != -EBUSY)
			break;
		usleep(1000);
	}
	if (f->fd < 0) {
		error = f->fd;
		f->fd = -1;
		return explain_open(f, error, err);
	}
	/* The kernel lets it be opened for writing, and then refuses each write. */
	if (f->block && !f->read_only && ioctl(f->fd, BLKROGET, &device_read_only) == 0 &&
	    device_read_only != 0)
		return explain_open(f, -EROFS, err);
	return p->lock ? file_lock(f, err) : 0;
}

static int
open_tail(struct file *f, struct pl_error *err)
{
	/* A file of whole blocks may grow to one that is not, when it is too late to open. */
	if (!f->direct || f->block)
		return 0;
	f->tail_fd = reopen(f->fd, f->read_only ? O_RDONLY : O_RDWR);
	if (f->tail_fd < 0)
		return pl_error_set(err, f->tail_fd, "%s: open once more", f->name);
	/* Reading ahead would bring in more than the page, and in folios that reach into others. */
	posix_fadvise(f->tail_fd, 0, 0, POSIX_FADV_RANDOM);
	return 0;
}

static void
close_past(struct file *f)
{
	if (f->past_fd >= 0)
		close(f->past_fd);
	f->past_fd = -1;
	f->limits.fua_align = f->limits.fua_mem_align = f->limits.fua_window = 0;
}

/*
 * Returns why FUA writes go through the page cache all the same; NULL: they need not. What
 * somebody reads of a block device while a direct write is under way stays in the page cache as
 * it was. A file system drops it once more when the write is done; a device does not.
 */
static const char *
open_past(struct file *f, const struct file_params *p)
{
	const char *why;

	if (f->block)
		return "a direct write leaves a device's page cache stale";
	f->past_fd = reopen(f->fd, O_RDWR | O_DIRECT);
	if (f->past_fd < 0)
		return "the file system has no direct I/O";
	why = file_probe_past(f, p->fua == FUA_NATIVE);
	if (why != NULL)
		close_past(f);
	return why;
}

static void
declare(struct file *f, const struct file_params *p)
{
	struct pl_driver_limits *l = &f->limits;
	const char *why = NULL;
	int cache = p->cache;

	l->capabilities = PL_CAP_WRITE | PL_CAP_ZERO | PL_CAP_TRIM | PL_CAP_MULTI_CONN;
	if (!f->block)
		l->capabilities |= PL_CAP_EXTENTS;
	if (!f->direct)
		l->capabilities |= PL_CAP_CACHE;
	l->capabilities |= file_probe_unmap(f);
	if (file_probe_rotational(f))
		l->capabilities |= PL_CAP_ROTATIONAL;
	if (cache_modes[p->cache].write_through)
		l->capabilities |= PL_CAP_WRITE_THROUGH;
	if (cache_modes[p->cache].promises && !f->read_only) {
		l->capabilities |= PL_CAP_FLUSH;
		if (cache_modes[cache].past)
			why = open_past(f, p);
		if (file_probe_fua(f, p, &why))
			l->capabilities |= PL_CAP_FUA;
		else
			close_past(f);
		if (cache == CACHE_AUTO && f->past_fd < 0)
			cache = CACHE_WRITEBACK;
	}
	snprintf(l->description, sizeof l->description, "%s, cache=%s%s%s%s%s",
		 f->block ? "block device" : "file", cache_modes[cache].word,
		 cache != p->cache ? " instead of auto" : "", why != NULL ? " (" : "",
		 why != NULL ? why : "", why != NULL ? ")" : "");
}

/* See file_write(). */
static int
make_split(struct file *f, struct pl_error *err)
{
	if (f->direct || f->read_only || !file_probe_costly_folios(f))
		return 0;
	f->pieces = f->limits.geometry.size / f->folio + 1;
	f->split = calloc(f->pieces / SPLIT_BITS + 1, sizeof *f->split);
	return f->split == NULL ? pl_error_set(err, -ENOMEM, "%s", f->name) : 0;
}

static void
file_close(void *handle)
{
	struct file *f = handle;

	if (f->tail_fd >= 0)
		close(f->tail_fd);
	close_past(f);
	if (f->fd >= 0)
		close(f->fd);
	free(f->split);
	free(f->name);
	free(f);
}

static char *
name_of_file(const struct file_params *p)
{
	char *name;

	if (p->dir == NULL)
		return strdup(p->path);
	return asprintf(&name, "%s/%s", p->dir, p->path) == -1 ? NULL : name;
}

static int
file_open(const void *params, unsigned open_flags, struct pl_layer *below, void **handle,
	  struct pl_error *err)
{
	const struct file_params *p = params;
	struct file *f = calloc(1, sizeof *f);
	int found, error = -ENOMEM;

	assert(below == NULL);
	if (f != NULL) {
		f->fd = f->tail_fd = f->past_fd = -1;
		f->name = name_of_file(p);
	}
	if (f == NULL || f->name == NULL) {
		free(f);
		return pl_error_set(err, error, "%s", p->path);
	}
	f->read_only = (open_flags & PL_OPEN_READ_ONLY) != 0;
	f->direct = cache_modes[p->cache].direct;
	found = find_file(p, f->name, err);
	if (found < 0) {
		error = found;
		goto fail;
	}
	error = open_file(f, p, found, err);
	close(found);
	if (error == 0)
		error = file_probe_geometry(f, err);
	if (error == 0)
		error = open_tail(f, err);
	if (error != 0)
		goto fail;
	f->size = f->limits.geometry.size;
	f->weak_sync = file_probe_weak_sync(f);
	if (f->weak_sync && cache_modes[p->cache].write_through && !f->read_only) {
		error = pl_error_say(
			err, -EOPNOTSUPP,
			"%s: cache=%s: ext4 without a journal, before Linux 6.5, leaves "
			"such writes in the disk's cache; cache=none and a FLUSH do not",
			f->name, cache_modes[p->cache].word);
		goto fail;
	}
	declare(f, p);
	error = make_split(f, err);
	if (error != 0)
		goto fail;
	*handle = f;
	return 0;
fail:
	file_close(f);
	return error;
}

static void
file_limits(void *handle, struct pl_driver_limits *out)
{
	*out = ((struct file *)handle)->limits;
}

static int
file_grow(void *handle, struct pl_error *err)
{
	struct file *f = handle;
	uint64_t size = file_size(f);

	if (size < f->size)
		return pl_error_say(err, -EINVAL,
				    "%s: it has shrunk from %llu to %llu bytes; it is served as "
				    "large as it was, with errors where nothing is left",
				    f->name, (unsigned long long)f->size, (unsigned long long)size);
	f->limits.geometry.size = size;
	file_set_tail(f);
	__atomic_store_n(&f->size, size, __ATOMIC_RELEASE);
	return 0;
}

static const char *
file_name_of(void *handle)
{
	return ((struct file *)handle)->name;
}

/* ---- channels -------------------------------------------------------------------- */

static void
file_detach(void *state)
{
	struct file_channel *c = state;

	pl_loop_remove_file(c->loop, c->slot);
	pl_loop_remove_file(c->loop, c->past_slot);
	if (c->past_fd >= 0)
		close(c->past_fd);
	if (c->fd >= 0)
		close(c->fd);
	free(c);
}

static int
file_attach(void *handle, struct pl_loop *loop, void **state, struct pl_error *err)
{
	struct file *f = handle;
	struct file_channel *c = malloc(sizeof *c);

	if (c == NULL)
		return pl_error_set(err, -ENOMEM, "%s", f->name);
	/* A description of its own keeps each channel's read-ahead apart. */
	*c = (struct file_channel){ f, loop, reopen_or_share(f->fd, access_flags(f)), -1, -1, -1 };
	if (f->past_fd >= 0)
		c->past_fd = reopen_or_share(f->past_fd, O_RDWR | O_DIRECT);
	if (c->fd == -1 || (f->past_fd >= 0 && c->past_fd == -1)) {
		int error = pl_error_set(err, -errno, "%s: open once more", f->name);

		file_detach(c);
		return error;
	}
	c->slot = pl_loop_add_file(loop, c->fd);
	if (c->past_fd >= 0)
		c->past_slot = pl_loop_add_file(loop, c->past_fd);
	*state = c;
	return 0;
}

/* ---- operations ------------------------------------------------------------------ */

static struct file_channel *
channel_of(struct pl_request *req)
{
	return (struct file_channel *)(uintptr_t)req->scratch[0];
}

/* Behind the end of a block device the kernel finds no space. Where the device once reached it
 * is not room that lacks: a part of it is gone, or all of it. */
static bool
is_gone(const struct file *f, const struct pl_part *part)
{
	return f->block && file_size(f) < part->offset + part->length;
}

static void
part_io_done(struct pl_io *io, int64_t result)
{
	struct pl_request *req = pl_request_of(io);

	if (result == -ENOSPC && is_gone(channel_of(req)->file, &req->part))
		result = -EIO;
	pl_part_done(req, result);
}

/* An operation on the channel's file, ready but for its kind's own fields. */
static struct pl_io *
prepare(struct file_channel *c, struct pl_request *req, enum pl_io_kind kind)
{
	req->scratch[0] = (uintptr_t)c;
	req->io = (struct pl_io){
		.kind = kind,
		.fd = c->fd,
		.slot = c->slot,
		.offset = req->part.offset,
		.length = req->part.length,
		.iov = req->part.iov,
		.iovcnt = req->part.iovcnt,
		.fixed = req->part.fixed,
		.done = part_io_done,
	};
	return &req->io;
}

/* Before it discards or zeroes, a block device drops its cached pages, and only for who has it
 * exclusively also dirty ones (EBUSY for the rest). That is the export's own descriptor. */
static struct pl_io *
prepare_discard(struct file_channel *c, struct pl_request *req, enum pl_io_kind kind)
{
	struct pl_io *io = prepare(c, req, kind);

	if (c->file->block) {
		io->fd = c->file->fd;
		io->slot = -1;
	}
	return io;
}

/* For letting the page cache forget a part: it keeps a folio of which only a piece is named,
 * so this names all of each. */
static void
name_folios(const struct file *f, const struct pl_part *part, uint64_t *offset, uint64_t *length)
{
	uint64_t mask = f->folio - 1;

	*offset = part->offset & ~mask;
	*length = ((part->offset + part->length + mask) & ~mask) - *offset;
}

/* What lies behind the last whole block, through the page cache. The page is read afresh,
 * and is clean afterwards: direct I/O on the rest of it finds no stale copy. */
static int64_t
tail_call(struct pl_io *io)
{
	struct pl_part *part = &pl_request_of(io)->part;
	struct file *f = channel_of(pl_request_of(io))->file;
	uint64_t offset, length;
	ssize_t n;

	name_folios(f, part, &offset, &length);
	posix_fadvise(f->tail_fd, (off_t)offset, (off_t)length, POSIX_FADV_DONTNEED);
	if (part->op == PL_READ)
		n = preadv(f->tail_fd, part->iov, part->iovcnt, (off_t)part->offset);
	else
		n = pwritev2(f->tail_fd, part->iov, part->iovcnt, (off_t)part->offset, RWF_DSYNC);
	return n == -1 ? -errno : n;
}

/* Returns whether the part was one behind the last whole block. */
static bool
file_tail(struct file_channel *c, struct pl_request *req)
{
	if (((req->part.offset + req->part.length) & (c->file->limits.align - 1)) == 0)
		return false;
	prepare(c, req, PL_IO_CALL)->call = tail_call;
	pl_loop_io(c->loop, &req->io);
	return true;
}

static void
read_pages_dropped(struct pl_io *io, int64_t result)
{
	struct file_channel *c = channel_of(pl_request_of(io));

	(void)result; /* advice */
	pl_loop_io(c->loop, prepare(c, pl_request_of(io), PL_IO_READ));
}

static void
file_read(struct file_channel *c, struct pl_request *req)
{
	struct pl_io *io;

	if (file_tail(c, req))
		return;
	if ((req->part.flags & PL_FUA) != 0 && !c->file->direct) {
		io = prepare(c, req, PL_IO_FADVISE);
		name_folios(c->file, &req->part, &io->offset, &io->length);
		io->mode = POSIX_FADV_DONTNEED;
		io->done = read_pages_dropped;
	} else {
		io = prepare(c, req, PL_IO_READ);
	}
	pl_loop_io(c->loop, io);
}

/* Whether this is the first small write where the part begins. */
static bool
is_first_in_folio(struct file *f, const struct pl_part *part)
{
	uint64_t piece = part->offset / f->folio;
	unsigned *word, bit = 1u << piece % SPLIT_BITS;

	if (part->length >= SPLIT_MAX || piece >= f->pieces) /* what grew is without this */
		return false;
	word = &f->split[piece / SPLIT_BITS];
	return (__atomic_load_n(word, __ATOMIC_RELAXED) & bit) == 0 &&
	       (__atomic_fetch_or(word, bit, __ATOMIC_RELAXED) & bit) == 0;
}

static void
write_pages_dropped(struct pl_io *io, int64_t result)
{
	struct file_channel *c = channel_of(pl_request_of(io));

	(void)result; /* advice */
	pl_loop_io(c->loop, prepare(c, pl_request_of(io), PL_IO_WRITE));
}

/*
 * What the page cache got of the part while it was being written is dropped once more before this.
 * Where the kernel cannot, since somebody whom no lock keeps out has changed it there, stale bytes
 * will follow to the disk; the write succeeds all the same, and only whoever syncs is told. So this
 * asks as a sync would, where nothing is left to wait for.
 */
static void
past_done(struct pl_io *io, int64_t result)
{
	if (result > 0 && sync_file_range(io->fd, (off_t)io->offset, (off_t)result,
					  SYNC_FILE_RANGE_WAIT_BEFORE) == -1)
		result = -EIO; /* whatever it was: not about room for this part, which is written */
	part_io_done(io, result);
}

/*
 * Where small writes cost by the size of the folio they fall into, the page cache is made
 * to forget the folios around the first of them, if they are clean. What is read there
 * afterwards is read in small ones, and writes cost a quarter.
 */
static void
file_write(struct file_channel *c, struct pl_request *req)
{
	bool native = (req->part.flags & PL_FUA) != 0;
	struct pl_io *io;

	if (file_tail(c, req))
		return;
	if (!native && c->file->split != NULL && is_first_in_folio(c->file, &req->part)) {
		io = prepare(c, req, PL_IO_FADVISE);
		name_folios(c->file, &req->part, &io->offset, &io->length);
		io->mode = POSIX_FADV_DONTNEED;
		io->done = write_pages_dropped;
		pl_loop_io(c->loop, io);
		return;
	}
	io = prepare(c, req, PL_IO_WRITE);
	if (native) {
		io->mode = RWF_DSYNC;
		if (c->past_fd >= 0) {
			io->fd = c->past_fd;
			io->slot = c->past_slot;
			io->done = past_done;
		}
		io->by_ring = c->file->direct || c->past_fd >= 0;
	}
	pl_loop_io(c->loop, io);
}

static void
flush_done(struct pl_io *io, int64_t result)
{
	struct file *f = channel_of(pl_request_of(io))->file;
	/* First: it may grow between the two looks. */
	uint64_t expected = __atomic_load_n(&f->size, __ATOMIC_ACQUIRE);

	if (result == 0 && file_size(f) < expected) {
		log_error("export %s: it is shorter than it was", f->name);
		result = -EIO;
	}
	part_io_done(io, result);
}

/* Where fdatasync(2) is not enough. */
static int64_t
sync_all_call(struct pl_io *io)
{
	return fdatasync(io->fd) == -1 || syncfs(io->fd) == -1 ? -errno : 0;
}

static void
file_flush(struct file_channel *c, struct pl_request *req)
{
	struct pl_io *io = prepare(c, req, c->file->weak_sync ? PL_IO_CALL : PL_IO_SYNC);

	io->call = sync_all_call;
	/* The kernel reports a lost page once to each open file description; one that was
	 * opened later may never hear of it. This one has been open since the export was. */
	io->fd = c->file->fd;
	io->slot = -1;
	io->done = flush_done;
	pl_loop_io(c->loop, io);
}

/* In the order in which they are tried. */
static const struct {
	int mode;
	bool leaves_hole;
	bool may_write; /* on a block device: no better than writing */
} zero_ways[] = {
	{ FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, .leaves_hole = true },
	{ FALLOC_FL_ZERO_RANGE | FALLOC_FL_KEEP_SIZE, .may_write = true },
};

/* For good, that is. EBUSY is for now: a device with dirty pages that somebody else has
 * exclusively. */
static bool
is_refusal(int64_t result)
{
	return result == -EOPNOTSUPP || result == -ENOSYS || result == -ENODEV ||
	       result == -ENOTTY || result == -EINVAL;
}

static bool
zero_way_fits(const struct file *f, const struct pl_part *part, unsigned way)
{
	if ((__atomic_load_n(&f->refused, __ATOMIC_RELAXED) & 1u << way) != 0)
		return false;
	if (zero_ways[way].leaves_hole && (part->flags & PL_NO_HOLE) != 0)
		return false;
	return !(zero_ways[way].may_write && f->block && (part->flags & PL_FAST) != 0);
}

static void zero_try(struct file_channel *c, struct pl_request *req, unsigned way);

static void
zero_tried(struct pl_io *io, int64_t result)
{
	struct pl_request *req = pl_request_of(io);
	struct file_channel *c = channel_of(req);
	unsigned way = (unsigned)req->scratch[1];

	if (is_refusal(result))
		__atomic_fetch_or(&c->file->refused, 1u << way, __ATOMIC_RELAXED);
	if (is_refusal(result) || result == -EBUSY) {
		zero_try(c, req, way + 1);
		return;
	}
	pl_part_done(req, result);
}

static void
zero_try(struct file_channel *c, struct pl_request *req, unsigned way)
{
	struct pl_io *io;

	while (way < sizeof zero_ways / sizeof *zero_ways &&
	       !zero_way_fits(c->file, &req->part, way))
		way++;
	if (way == sizeof zero_ways / sizeof *zero_ways) {
		pl_part_done(req, -EOPNOTSUPP);
		return;
	}
	io = prepare_discard(c, req, PL_IO_FALLOCATE);
	req->scratch[1] = way;
	io->mode = zero_ways[way].mode;
	io->done = zero_tried;
	pl_loop_io(c->loop, io);
}

static void
file_zero(struct file_channel *c, struct pl_request *req)
{
	zero_try(c, req, 0);
}

static int64_t
discard_call(struct pl_io *io)
{
	uint64_t range[2] = { io->offset, io->length };

	return ioctl(io->fd, BLKDISCARD, range) == -1 ? -errno : 0;
}

static void
trim_done(struct pl_io *io, int64_t result)
{
	struct pl_request *req = pl_request_of(io);

	if (is_refusal(result))
		__atomic_store_n(&channel_of(req)->file->no_trim, true, __ATOMIC_RELAXED);
	pl_part_done(req, is_refusal(result) || result == -EBUSY ? -EOPNOTSUPP : result);
}

static void
file_trim(struct file_channel *c, struct pl_request *req)
{
	struct pl_io *io;

	if (__atomic_load_n(&c->file->no_trim, __ATOMIC_RELAXED)) {
		pl_part_done(req, -EOPNOTSUPP);
		return;
	}
	io = prepare_discard(c, req, c->file->block ? PL_IO_CALL : PL_IO_FALLOCATE);
	io->call = discard_call;
	io->mode = FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;
	io->done = trim_done;
	pl_loop_io(c->loop, io);
}

static void
file_cache(struct file_channel *c, struct pl_request *req)
{
	prepare(c, req, PL_IO_FADVISE)->mode = POSIX_FADV_WILLNEED;
	pl_loop_io(c->loop, &req->io);
}

/* From SEEK_DATA and SEEK_HOLE; stops when the list is full. The file's offset moves, which
 * nothing else uses. */
static int64_t
extents_call(struct pl_io *io)
{
	struct pl_extents *x = pl_request_of(io)->extents;
	uint64_t at = io->offset, end = io->offset + io->length;

	while (at < end) {
		off_t data = lseek(io->fd, (off_t)at, SEEK_DATA);
		off_t hole;

		if (data == -1 && errno == ENXIO) /* a hole to the end */
			data = (off_t)end;
		if (data == -1)
			return at == io->offset ? -errno : 0;
		if ((uint64_t)data > end)
			data = (off_t)end;
		if (!pl_extents_add(x, (uint64_t)data - at, PL_EXTENT_HOLE | PL_EXTENT_ZERO))
			return 0;
		if ((uint64_t)data == end)
			return 0;
		hole = lseek(io->fd, data, SEEK_HOLE);
		if (hole == -1 || hole <= data) /* the file changes under us: call it data */
			hole = (off_t)end;
		at = (uint64_t)hole < end ? (uint64_t)hole : end;
		if (!pl_extents_add(x, at - (uint64_t)data, 0))
			return 0;
	}
	return 0;
}

static void
file_extents(struct file_channel *c, struct pl_request *req)
{
	prepare(c, req, PL_IO_CALL)->call = extents_call;
	pl_loop_io(c->loop, &req->io);
}

static void
file_submit(void *state, struct pl_request *req)
{
	static void (*const operations[PL_DRIVER_OPS])(struct file_channel *,
						       struct pl_request *) = {
		[PL_READ] = file_read,       [PL_WRITE] = file_write, [PL_FLUSH] = file_flush,
		[PL_ZERO] = file_zero,       [PL_TRIM] = file_trim,   [PL_CACHE] = file_cache,
		[PL_EXTENTS] = file_extents,
	};

	operations[req->part.op](state, req);
}

const struct pl_driver pl_driver_file = {
	.name = "file",
	.help = "a regular file or a block device",
	.options = file_options,
	.params_size = sizeof(struct file_params),
	.open = file_open,
	.close = file_close,
	.limits = file_limits,
	.grow = file_grow,
	.name_of = file_name_of,
	.attach = file_attach,
	.detach = file_detach,
	.submit = file_submit,
};
