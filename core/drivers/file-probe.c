/* file-probe.c - what an image and the disk below it are like. */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <linux/fs.h>
#include <linux/magic.h>
#include <linux/stat.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

#define PAGE 4096u

static uint32_t
max(uint32_t a, uint32_t b)
{
	return a > b ? a : b;
}

static bool
power_of_two(uint32_t n)
{
	return n != 0 && (n & (n - 1)) == 0;
}

/* ---- alignment of direct I/O ----------------------------------------------------- */

/* Linux before 6.1, or a file system that does not say: try. */
static uint32_t
try_alignment(int fd)
{
	uint32_t align = PAGE;
	void *buffer;

	if (posix_memalign(&buffer, PAGE, PAGE) != 0)
		return PAGE;
	for (uint32_t n = 512; n < PAGE; n *= 2) {
		if (pread(fd, buffer, n, n) >= 0) {
			align = n;
			break;
		}
	}
	free(buffer);
	return align;
}

/* Returns false where the file system says that this file has no direct I/O, though it lets it
 * be opened so: then those go through the page cache like any others. */
static bool
probe_alignment(int fd, uint32_t *align, uint32_t *mem_align)
{
	bool has = true;
	struct statx sx;

	*align = *mem_align = 0;
	/* The raw system call: the C library's struct may lack the fields. */
	if (syscall(SYS_statx, fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 &&
	    (sx.stx_mask & STATX_DIOALIGN) != 0) {
		*align = sx.stx_dio_offset_align;
		*mem_align = sx.stx_dio_mem_align;
		has = *align != 0;
	}
	if (!power_of_two(*align) || !power_of_two(*mem_align))
		*align = *mem_align = try_alignment(fd);
	*align = max(*align, *mem_align); /* blocks lie in memory one after the other */
	return has;
}

/* In bytes. No folio of the page cache is larger than a huge page. */
static uint32_t
largest_folio(void)
{
	FILE *file = fopen("/sys/kernel/mm/transparent_hugepage/hpage_pmd_size", "re");
	uint32_t size = 0;

	if (file != NULL) {
		if (fscanf(file, "%u", &size) != 1)
			size = 0;
		fclose(file);
	}
	return power_of_two(size) ? max(size, 2u << 20) : 2u << 20;
}

static bool
is_on_ext4(const struct file *f)
{
	struct statfs fs;

	return !f->block && fstatfs(f->fd, &fs) == 0 && fs.f_type == EXT4_SUPER_MAGIC;
}

static bool
is_kernel_since(unsigned major, unsigned minor)
{
	struct utsname system;
	unsigned is_major, is_minor;

	if (uname(&system) == -1 || sscanf(system.release, "%u.%u", &is_major, &is_minor) != 2)
		return false;
	return is_major > major || (is_major == major && is_minor >= minor);
}

/* ext4 looks at every block of the folio that a write falls into; since Linux 6.16 it has
 * large ones. */
bool
file_probe_costly_folios(const struct file *f)
{
	return is_on_ext4(f) && is_kernel_since(6, 16);
}

/*
 * A direct write drops what the page cache has of its range, by whole folios. If another
 * write makes a folio dirty meanwhile, it stays, with old data. So the two kinds keep out
 * of each other's folios. That a file system drops them again when an asynchronous direct write
 * is done is known of those that tests have shown to.
 */
const char *
file_probe_past(struct file *f, bool tried)
{
	struct statfs fs;

	if (!tried && (fstatfs(f->past_fd, &fs) == -1 ||
		       (fs.f_type != EXT4_SUPER_MAGIC && fs.f_type != XFS_SUPER_MAGIC)))
		return "the file system is neither ext4 nor XFS";
	f->limits.fua_window = f->folio;
	return probe_alignment(f->past_fd, &f->limits.fua_align, &f->limits.fua_mem_align)
		       ? NULL
		       : "the file system has no direct I/O for this file";
}

/* ---- geometry -------------------------------------------------------------------- */

uint64_t
file_size(const struct file *f)
{
	struct stat st;
	uint64_t size;

	if (f->block)
		return ioctl(f->fd, BLKGETSIZE64, &size) == 0 ? size : 0;
	return fstat(f->fd, &st) == 0 ? (uint64_t)st.st_size : 0;
}

static int
probe_block_device(struct file *f, struct pl_error *err)
{
	struct pl_geometry *g = &f->limits.geometry;
	int logical;
	unsigned physical;

	if (ioctl(f->fd, BLKGETSIZE64, &g->size) == -1)
		return pl_error_set(err, -errno, "%s: size", f->name);
	if (ioctl(f->fd, BLKSSZGET, &logical) == -1 || ioctl(f->fd, BLKPBSZGET, &physical) == -1)
		return pl_error_set(err, -errno, "%s: block size", f->name);
	g->logical_block = (uint32_t)logical;
	g->physical_block = g->whole = physical;
	return 0;
}

static int
probe_regular_file(struct file *f, struct pl_error *err)
{
	struct pl_geometry *g = &f->limits.geometry;
	struct stat st;

	if (fstat(f->fd, &st) == -1)
		return pl_error_set(err, -errno, "%s: size", f->name);
	g->size = (uint64_t)st.st_size;
	g->logical_block = f->direct ? max(512, f->limits.align) : 512;
	g->whole = g->logical_block; /* what the smallest sectors are */
	g->physical_block = power_of_two((uint32_t)st.st_blksize) ? (uint32_t)st.st_blksize : PAGE;
	return 0;
}

/* A file system zeroes part of a page through the page cache, as what lies behind the last whole
 * block is written; the rest of that page is not to be written directly meanwhile. */
void
file_set_tail(struct file *f)
{
	struct pl_driver_limits *l = &f->limits;
	uint64_t size = l->geometry.size;

	l->tail = (size & (l->align - 1)) == 0 ? size : size & ~((uint64_t)l->zero_align - 1);
}

int
file_probe_geometry(struct file *f, struct pl_error *err)
{
	struct pl_driver_limits *l = &f->limits;
	struct pl_geometry *g = &l->geometry;
	int error;

	f->folio = largest_folio();
	l->align = l->mem_align = 1;
	if (f->direct)
		probe_alignment(f->fd, &l->align, &l->mem_align);
	error = f->block ? probe_block_device(f, err) : probe_regular_file(f, err);
	if (error != 0)
		return error;
	g->physical_block = max(g->physical_block, g->logical_block);
	g->preferred = max(max(PAGE, g->physical_block), l->align);

	/* A file system zeroes part of a page through the page cache, which direct writes to
	 * the rest of the page pass by: whole pages only. A device zeroes its own blocks. */
	l->zero_align = l->align;
	if (f->block)
		l->zero_align = max(l->align, g->logical_block);
	else if (f->direct)
		l->zero_align = max(l->align, (uint32_t)sysconf(_SC_PAGESIZE));
	file_set_tail(f);
	return 0;
}

/* ---- the disk below -------------------------------------------------------------- */

/* Without its newline; false: there is no such file. */
static bool
first_line(const char *path, char *line, size_t size)
{
	FILE *file = fopen(path, "re");
	bool got;

	if (file == NULL)
		return false;
	got = fgets(line, (int)size, file) != NULL;
	fclose(file);
	if (got)
		line[strcspn(line, "\n")] = '\0';
	return got;
}

/* The first line of a file in the device's queue directory; false: there is none. */
static bool
queue_read(const struct file *f, const char *name, char *word, size_t size)
{
	/* A partition has its disk's queue one directory up. */
	static const char *const patterns[] = { "/sys/dev/block/%u:%u/queue/%s",
						"/sys/dev/block/%u:%u/../queue/%s" };
	struct stat st;
	char path[96];
	bool got = false;
	dev_t dev;

	if (fstat(f->fd, &st) == -1)
		return false;
	dev = f->block ? st.st_rdev : st.st_dev;
	for (unsigned i = 0; i < 2 && !got; i++) {
		snprintf(path, sizeof path, patterns[i], major(dev), minor(dev), name);
		got = first_line(path, word, size);
	}
	return got;
}

/* Without a journal, before Linux 6.5, ext4's fdatasync(2) flushes the disk's cache only for who
 * has changed more of a file than its blocks. Without sysfs that cannot be seen. */
bool
file_probe_weak_sync(const struct file *f)
{
	char link[64], target[PATH_MAX], path[PATH_MAX], word[16];
	const char *name;
	struct stat st;
	ssize_t length;

	if (!is_on_ext4(f) || is_kernel_since(6, 5) || fstat(f->fd, &st) == -1)
		return false;
	snprintf(link, sizeof link, "/sys/dev/block/%u:%u", major(st.st_dev), minor(st.st_dev));
	length = readlink(link, target, sizeof target - 1);
	if (length <= 0)
		return false;
	target[length] = '\0';
	name = strrchr(target, '/');
	snprintf(path, sizeof path, "/sys/fs/ext4/%.64s/journal_task",
		 name != NULL ? name + 1 : target);
	return first_line(path, word, sizeof word) && strcmp(word, "<none>") == 0;
}

bool
file_probe_rotational(const struct file *f)
{
	char word[16];

	return queue_read(f, "rotational", word, sizeof word) && word[0] == '1';
}

static bool
queue_has(const struct file *f, const char *name)
{
	char word[32];

	return queue_read(f, name, word, sizeof word) && strtoull(word, NULL, 10) > 0;
}

/* Trying would change the file's times, if nothing else. */
static bool
can_have_holes(const struct file *f)
{
	static const unsigned long known[] = { BTRFS_SUPER_MAGIC, EXT4_SUPER_MAGIC,
					       F2FS_SUPER_MAGIC,  OCFS2_SUPER_MAGIC,
					       TMPFS_MAGIC,       XFS_SUPER_MAGIC };
	struct statfs fs;

	if (fstatfs(f->fd, &fs) == -1)
		return false;
	for (unsigned i = 0; i < sizeof known / sizeof *known; i++) {
		if ((unsigned long)fs.f_type == known[i])
			return true;
	}
	return false;
}

unsigned
file_probe_unmap(const struct file *f)
{
	if (f->read_only)
		return 0;
	if (f->block ? queue_has(f, "write_zeroes_max_bytes") : can_have_holes(f))
		return PL_CAP_UNMAP | PL_CAP_UNMAP_ZEROES;
	return f->block && queue_has(f, "discard_max_bytes") ? PL_CAP_UNMAP : 0;
}

/* Whether every block was written before: the first hole, or block that was allocated and
 * never written, is where the file ends. */
static bool
all_written(const struct file *f)
{
	return f->block || lseek(f->fd, 0, SEEK_HOLE) == (off_t)f->limits.geometry.size;
}

/*
 * For auto, in this order. A native write is one request where the medium or the path takes
 * it so; over blocks that were never written it also commits the file system's journal,
 * once for each write, where a shared flush commits it once for all.
 */
bool
file_probe_fua(const struct file *f, const struct file_params *p, const char **why)
{
	char write_cache[32], fua[16];

	if (f->weak_sync) {
		*why = "ext4 without a journal has to sync all of itself for a flush";
		return false;
	}
	if (p->fua != FUA_AUTO) {
		if (*why == NULL)
			*why = "as the option fua says";
		return p->fua == FUA_NATIVE;
	}
	if (!f->direct && f->past_fd < 0)
		return false;
	if (!all_written(f)) {
		*why = "there are blocks that were never written";
		return false;
	}
	if (!queue_read(f, "write_cache", write_cache, sizeof write_cache)) {
		*why = "nothing is known of the device";
		return false;
	}
	if (strcmp(write_cache, "write through") == 0) {
		*why = "the device has no volatile cache";
		return true;
	}
	if (queue_read(f, "fua", fua, sizeof fua) && fua[0] == '1') {
		*why = "the device takes FUA";
		return true;
	}
	*why = "the kernel merges the flushes of direct writes";
	return true;
}
