/* doctor-image.c - a file or device that is to be served: what is in it. */
#include "doctor-path.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <linux/fiemap.h>
#include <linux/fs.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#define EXTENTS 256 /* asked for at once */
#define ROUNDS  4096

/* ---- blocks ---------------------------------------------------------------------- */

struct blocks {
	uint64_t written, shared; /* bytes */
};

/* How much of [from, from + length) lies before the end. */
static uint64_t
before(uint64_t end, uint64_t from, uint64_t length)
{
	if (from >= end)
		return 0;
	return length < end - from ? length : end - from;
}

/* Asks the file system for the places of all blocks, once those are on the disk that are to be. */
static int
count_blocks(int fd, uint64_t size, struct blocks *b)
{
	struct fiemap *map = calloc(1, sizeof(*map) + EXTENTS * sizeof(map->fm_extents[0]));
	int error = map == NULL ? -ENOMEM : 0;
	bool last = false;

	*b = (struct blocks){ 0 };
	for (unsigned i = 0; i < ROUNDS && error == 0 && !last; i++) {
		map->fm_length = FIEMAP_MAX_OFFSET - map->fm_start;
		map->fm_extent_count = EXTENTS;
		map->fm_flags = i == 0 ? FIEMAP_FLAG_SYNC : 0;
		if (ioctl(fd, FS_IOC_FIEMAP, map) == -1) {
			error = -errno;
			break;
		}
		last = map->fm_mapped_extents == 0;
		for (unsigned k = 0; k < map->fm_mapped_extents; k++) {
			const struct fiemap_extent *e = &map->fm_extents[k];

			uint64_t length = before(size, e->fe_logical, e->fe_length);

			b->written += e->fe_flags & FIEMAP_EXTENT_UNWRITTEN ? 0 : length;
			b->shared += e->fe_flags & FIEMAP_EXTENT_SHARED ? length : 0;
			last |= (e->fe_flags & FIEMAP_EXTENT_LAST) != 0;
			map->fm_start = e->fe_logical + e->fe_length;
		}
	}
	free(map);
	return error != 0 ? error : last ? 0 : -E2BIG;
}

static unsigned
tell_blocks(struct doctor_report *r, int fd, const struct stat *st)
{
	uint64_t size = (uint64_t)st->st_size, allocated = (uint64_t)st->st_blocks * 512;
	unsigned traits = 0;
	struct statvfs fs;
	struct blocks b;
	int error = count_blocks(fd, size, &b);

	doctor_fact(r, "image", "allocated", "%" PRIu64 " bytes, %.0f %%", allocated,
		    size > 0 ? 100.0 * (double)allocated / (double)size : 100);
	if (error == 0) {
		doctor_fact(r, "image", "written", "%" PRIu64 " bytes", b.written);
		doctor_fact(r, "image", "shared", "%" PRIu64 " bytes (reflink or snapshot)",
			    b.shared);
		traits |= b.shared > 0 ? CLONED : 0;
		traits |= b.written < size ? NOT_WRITTEN : 0;
	} else {
		off_t hole = lseek(fd, 0, SEEK_HOLE);

		doctor_fact(r, "image", "written", "could not be told: %s", strerror(-error));
		traits |= hole >= 0 && hole < st->st_size ? NOT_WRITTEN : 0;
	}
	if (fstatvfs(fd, &fs) == 0) {
		uint64_t space = (uint64_t)fs.f_bavail * fs.f_frsize;

		doctor_fact(r, "image", "space left", "%" PRIu64 " bytes", space);
		if (allocated < size && size - allocated > space)
			traits |= MAY_FILL;
	}
	return traits;
}

/* ---- all of it ------------------------------------------------------------------- */

static unsigned
tell_direct(struct doctor_report *r, const char *path, int fd)
{
	int direct = open(path, O_RDONLY | O_DIRECT | O_CLOEXEC | O_NONBLOCK);
	struct statx sx;

	if (direct == -1) {
		doctor_fact(r, "image", "direct I/O", "no: %s", strerror(errno));
		return NOT_DIRECT;
	}
	close(direct);
	if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &sx) == 0 &&
	    (sx.stx_mask & STATX_DIOALIGN) != 0 && sx.stx_dio_offset_align > 0)
		doctor_fact(r, "image", "direct I/O", "yes, in units of %u bytes",
			    sx.stx_dio_offset_align);
	else
		doctor_fact(r, "image", "direct I/O", "yes; its unit is not told");
	return 0;
}

unsigned
path_image(struct doctor_report *r, const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	unsigned traits = 0;
	uint64_t size = 0;
	struct stat st;
	int flags;

	if (fd == -1 || fstat(fd, &st) == -1) {
		doctor_fact(r, "image", "content", "could not be opened: %s", strerror(errno));
		if (fd != -1)
			close(fd);
		return 0;
	}
	if (S_ISBLK(st.st_mode)) {
		traits |= DEVICE;
		if (ioctl(fd, BLKGETSIZE64, &size) == -1)
			size = 0;
	} else {
		size = (uint64_t)st.st_size;
	}
	doctor_fact(r, "image", "size", "%" PRIu64 " bytes", size);
	traits |= size % 512 != 0 ? ODD_SIZE : 0;
	if ((traits & DEVICE) == 0)
		traits |= tell_blocks(r, fd, &st);
	if (ioctl(fd, FS_IOC_GETFLAGS, &flags) == 0 && (flags & FS_NOCOW_FL) != 0)
		traits |= NOT_COPIED;
	traits |= tell_direct(r, path, fd);
	if (access(path, W_OK) == -1)
		doctor_fact(r, "image", "writing", "no: %s", strerror(errno));
	close(fd);
	return traits;
}
