#include "bench-image.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#define PIECE (1u << 20)

/* ---- a scratch file, or what there is -------------------------------------------- */

/* Of bytes that nothing compresses, written from end to end, so that no write has to allocate. */
static int
fill(int fd, uint64_t size)
{
	char *piece = malloc(PIECE);
	int error = piece != NULL ? 0 : -ENOMEM;

	for (size_t at = 0; error == 0 && at < PIECE; at += 256) {
		if (getrandom(piece + at, 256, 0) != 256)
			error = -errno;
	}
	for (uint64_t at = 0; error == 0 && at < size; at += PIECE) {
		size_t length = size - at < PIECE ? (size_t)(size - at) : PIECE;
		ssize_t n = pwrite(fd, piece, length, (off_t)at);

		if (n != (ssize_t)length)
			error = n == -1 ? -errno : -ENOSPC;
	}
	if (error == 0 && fsync(fd) == -1)
		error = -errno;
	free(piece);
	return error;
}

static int
make_scratch(struct bench_image *im, const char *folder, uint64_t size, struct pl_error *err)
{
	struct statvfs fs;
	int fd, error;

	if (statvfs(folder, &fs) == 0 && (uint64_t)fs.f_bavail * fs.f_frsize < size + size / 8)
		return pl_error_say(err, -ENOSPC,
				    "%s has no room for a scratch file of %" PRIu64
				    " MiB: --size, or another directory",
				    folder, size >> 20);
	if (asprintf(&im->path, "%s/platter-bench-XXXXXX", folder) == -1) {
		im->path = NULL;
		return pl_error_set(err, -ENOMEM, "%s", folder);
	}
	fd = mkostemp(im->path, O_CLOEXEC);
	if (fd == -1) {
		error = pl_error_set(err, -errno, "%s: scratch file", folder);
		free(im->path);
		im->path = NULL;
		return error;
	}
	im->scratch = true;
	im->size = size;
	error = fill(fd, size);
	close(fd);
	return error == 0 ? 0 : pl_error_set(err, error, "%s", im->path);
}

int
bench_image_open(struct bench_image *im, const char *path, uint64_t size, struct pl_error *err)
{
	struct stat st;
	int fd = -1, error = 0;

	if (stat(path, &st) == -1)
		return pl_error_set(err, -errno, "%s", path);
	if (S_ISDIR(st.st_mode)) {
		error = make_scratch(im, path, size, err);
		if (error != 0)
			bench_image_close(im);
		return error;
	}
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode))
		return pl_error_say(err, -EINVAL, "%s is no directory, file or block device", path);
	im->path = realpath(path, NULL);
	if (im->path != NULL)
		fd = open(im->path, O_RDONLY | O_CLOEXEC);
	if (fd == -1)
		return pl_error_set(err, -errno, "%s", path);
	im->size = (uint64_t)lseek(fd, 0, SEEK_END);
	if (im->size > size)
		im->size = size;
	close(fd);
	return 0;
}

void
bench_image_close(struct bench_image *im)
{
	if (im->scratch)
		unlink(im->path);
	free(im->path);
	*im = (struct bench_image){ 0 };
}

/* ---- the page cache -------------------------------------------------------------- */

int
bench_image_prepare(const struct bench_image *im, enum bench_pages pages, struct pl_error *err)
{
	int fd = open(im->path, O_RDONLY | O_CLOEXEC), error = 0;
	char *buffer = malloc(PIECE / 16);

	if (fd == -1 || buffer == NULL || fdatasync(fd) == -1)
		error = -errno;
	if (error == 0)
		error = -posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	if (error == 0 && pages == PAGES_SMALL) /* without read-ahead there are no larger ones */
		error = -posix_fadvise(fd, 0, 0, POSIX_FADV_RANDOM);
	for (uint64_t at = 0; error == 0 && pages != PAGES_NONE && at < im->size;
	     at += PIECE / 16) {
		if (pread(fd, buffer, PIECE / 16, (off_t)at) == -1)
			error = -errno;
	}
	if (fd != -1)
		close(fd);
	free(buffer);
	return error == 0 ? 0 : pl_error_set(err, error, "%s", im->path);
}
