/*
 * file.h - the parts of the file driver: what it finds out at open, and its lock.
 */
#ifndef PL_FILE_H
#define PL_FILE_H

#include "../platter-driver.h"

enum {
	CACHE_AUTO,
	CACHE_WRITEBACK,
	CACHE_NONE,
	CACHE_DIRECTSYNC,
	CACHE_WRITETHROUGH,
	CACHE_UNSAFE
};
enum { FUA_AUTO, FUA_NATIVE, FUA_COMMIT };

struct file_params {
	const char *path, *dir;
	int cache, fua;
	bool lock;
};

struct file {
	char *name; /* for people */
	int fd;
	int tail_fd; /* through the page cache, for what lies behind the last whole block; or -1 */
	int past_fd; /* past the page cache, for native FUA writes beside cached ones; or -1 */
	bool block;  /* a block device */
	bool direct, read_only;
	bool weak_sync;   /* fdatasync(2) alone may leave data in the disk's cache */
	uint32_t folio;   /* bytes: no piece of the page cache is larger */
	unsigned *split;  /* a bit for each piece of that size, see file_write(); or NULL */
	uint64_t pieces;  /* so many have a bit */
	uint64_t size;    /* that of limits; atomic */
	unsigned refused; /* bit i: the i-th way to zero is not supported here; atomic */
	bool no_trim;     /* atomic */
	struct pl_driver_limits limits;
};

/* Milliseconds for which somebody else may have an image that is to be ours: a ring lets go of
 * its files a little after its owner has closed them, or has been killed. */
#define FILE_PATIENCE 200

/* ---- file-probe.c ---------------------------------------------------------------- */

/* Its size now, 0 when that cannot be told. */
uint64_t file_size(const struct file *f);

/* Size, alignment and block sizes. Errors: what the calls say, with a sentence. */
int file_probe_geometry(struct file *f, struct pl_error *err);

/* limits.tail, by the size. */
void file_set_tail(struct file *f);

/* What fua_align and the like have to be for writes through f->past_fd. Returns why those are
 * not to be; NULL: they may. tried: the operator has, and wants them wherever they can be. */
const char *file_probe_past(struct file *f, bool tried);

/* Whether a FUA write is one RWF_DSYNC write (else a shared flush), and why, unless that is set. */
bool file_probe_fua(const struct file *f, const struct file_params *p, const char **why);

/* Whether fdatasync(2) may return before the disk's cache is empty. syncfs(2) flushes it then. */
bool file_probe_weak_sync(const struct file *f);

bool file_probe_rotational(const struct file *f);
/* Those of PL_CAP_UNMAP and PL_CAP_UNMAP_ZEROES that hold. */
unsigned file_probe_unmap(const struct file *f);

/* Whether a small write to the page cache costs by the size of the folio it falls into. */
bool file_probe_costly_folios(const struct file *f);

/* ---- file-lock.c ----------------------------------------------------------------- */

/* One writer, or readers only, in a way that QEMU understands. Lasts as long as the open
 * file description. Errors: -EBUSY. */
int file_lock(const struct file *f, struct pl_error *err);

#endif
