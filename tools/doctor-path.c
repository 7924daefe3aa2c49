/* doctor-path.c - platter doctor PATH: what follows from what was seen there. */
#include "doctor-path.h"

#include <errno.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static const struct doctor_row rows[] = {
	{ IN_MEMORY,
	  0,
	  { DOCTOR_UNSAFE, 90, "it is in memory",
	    "FLUSH and FUA are answered and mean nothing: a loss of power takes everything.",
	    "Put what has to last on a disk." } },
	{ NO_BARRIERS,
	  0,
	  { DOCTOR_UNSAFE, 80, "the file system is mounted without barriers",
	    "It does not pass flushes on to the disk, whose cache a loss of power empties.",
	    "mount -o remount,barrier" } },
	{ NO_RING,
	  0,
	  { DOCTOR_ADVICE, 90, "there is no io_uring here",
	    "platterd needs it, and starts on no kernel without it.",
	    "Linux 5.19 or later; sysctl kernel.io_uring_disabled=0; a container's seccomp profile "
	    "that lets it through. nbdkit with the plugin serves without." } },
	{ ELSEWHERE,
	  0,
	  { DOCTOR_ADVICE, 80, "the file system is another machine's or another program's",
	    "What a flush does there cannot be seen from here.",
	    "Find out what that server or program makes of fsync; platter torture tries it." } },
	{ IN_USE,
	  0,
	  { DOCTOR_ADVICE, 75, "the image is in use by somebody else",
	    "A server that would write it now is refused.",
	    "Stop that process first, or serve read-only." } },
	{ MAY_FILL,
	  0,
	  { DOCTOR_ADVICE, 70, "there is less free space than the image may still need",
	    "Clients see a disk of full size, and get errors (no space) when the file system below "
	    "is full.",
	    "Make room, or allocate it now: fallocate -l SIZE IMAGE." } },
	{ NOT_WRITTEN,
	  IN_MEMORY,
	  { DOCTOR_ADVICE, 60, "some blocks were never written",
	    "The first write to each also changes the file system's own records, which a FUA write "
	    "has to wait for. So FUA writes share flushes here until all is written.",
	    "Where FUA writes have to be fast, write it whole once: nbdcopy, or dd of zeroes into "
	    "a new image." } },
	{ CLONED,
	  0,
	  { DOCTOR_ADVICE, 50, "blocks are shared with another file (reflink, snapshot)",
	    "The first write to each copies it elsewhere first.", NULL } },
	{ COPIES,
	  CLONED | NOT_COPIED,
	  { DOCTOR_ADVICE, 45, "the file system copies on each write",
	    "Each write goes to a new place, and a FUA write waits for the records of that.",
	    "For a new image: chattr +C on its empty file, or on the directory before." } },
	{ FUA_SLOW,
	  0,
	  { DOCTOR_ADVICE, 40, "a FUA write takes more than 5 ms",
	    "So journals and databases of clients are slow, one write at a time.",
	    "A disk with FUA or a cache that outlives a loss of power; more writes at once." } },
	{ FUA_FREE | VOLATILE,
	  IN_MEMORY,
	  { DOCTOR_ADVICE, 65, "a flush costs nothing, though the disk says its cache is volatile",
	    "Either a cache below has its own power, or something between takes flushes and does "
	    "nothing, as some virtual machines do.",
	    "Look at the host's cache mode of this disk; platter torture with a cut of the power "
	    "tells." } },
	{ BY_FLUSH | NATIVE_FASTER,
	  NOT_WRITTEN,
	  { DOCTOR_ADVICE, 35,
	    "native FUA would be faster here than the shared flush that is chosen",
	    "The choice is by what is known of file system and disk; measuring says otherwise.",
	    "cache=none with fua=native, if clients ask for much at once." } },
	{ BIG_BLOCKS,
	  0,
	  { DOCTOR_ADVICE, 28, "SCSI shows smaller blocks than the disk has",
	    "By iSCSI clients see blocks of 512 bytes; what is smaller than the disk's is read, "
	    "changed and written back.",
	    "block-size=4096 for the LUN, before it is used: platter-scsi(7)." } },
	{ NOT_DIRECT,
	  IN_MEMORY,
	  { DOCTOR_ADVICE, 30, "the page cache cannot be passed by",
	    "cache=none and native FUA need direct I/O.", NULL } },
	{ SCHEDULED,
	  0,
	  { DOCTOR_ADVICE, 15, "an I/O scheduler sorts requests to a disk that does not rotate",
	    "With many small requests at once `none` often is faster; with few it makes no "
	    "difference, and some loads are slower.",
	    "Measure with platter bench, then: echo none >/sys/block/DISK/queue/scheduler" } },
	{ READ_ONLY,
	  0,
	  { DOCTOR_ADVICE, 20, "it may not be written", "It is served read-only.",
	    "chmod or chown, if clients are to write." } },
	{ ODD_SIZE,
	  0,
	  { DOCTOR_ADVICE, 25, "the size is no multiple of 512 bytes",
	    "NBD clients that count in sectors, and all of SCSI, do not see the end.",
	    "truncate -s to a multiple of 1M." } },
	{ 0,
	  DISK_KNOWN | IN_MEMORY | ELSEWHERE,
	  { DOCTOR_ADVICE, 85, "nothing is known of a disk below",
	    "The file system lies on no device that the kernel tells of, as one that is laid over "
	    "others, or of the kernel itself.",
	    "Examine the file system that is below it, or put images on a disk." } },
	{ FOLDER | NO_FILE,
	  0,
	  { DOCTOR_ADVICE, 70, "no file can be made in the directory",
	    "So no image can, by who asks here.", "Ask as the user that platterd runs as." } },
	{ NO_ROOM,
	  0,
	  { DOCTOR_ADVICE, 72, "there is no room for another 16 MiB",
	    "Writes to what is not allocated yet fail.", "Make room." } },
	{ DISK_KNOWN,
	  IN_MEMORY | NO_BARRIERS | ELSEWHERE | READ_ONLY,
	  { DOCTOR_HEALTHY, 80, "a write that is answered as durable is on the disk",
	    "Flushes go the whole way down, as far as can be seen from here. Whether the disk "
	    "keeps what it says it keeps, only a cut of the power shows.",
	    "To try that with a disk that has nothing of value: platter torture." } },
	{ READ_ONLY,
	  IN_MEMORY,
	  { DOCTOR_HEALTHY, 80, "there is nothing to lose: clients cannot write",
	    "What is on it stays as it is, whatever the power does.", NULL } },
};

/* Where a file of ours may lie beside path. free() it. NULL: no memory. */
static char *
folder_of(const char *path, bool is_folder)
{
	const char *slash = strrchr(path, '/');

	if (is_folder)
		return strdup(path);
	return slash != NULL ? strndup(path, (size_t)(slash - path) + 1) : strdup(".");
}

int
doctor_path(struct doctor_report *r, const char *path, struct pl_error *err)
{
	unsigned traits;
	struct stat st;
	char real[PATH_MAX], *folder;
	int error = 0;

	bool named;

	if (stat(path, &st) == -1)
		return pl_error_set(err, -errno, "%s", path);
	if (!S_ISREG(st.st_mode) && !S_ISBLK(st.st_mode) && !S_ISDIR(st.st_mode))
		return pl_error_say(err, -EINVAL, "%s is no file, block device or directory", path);
	named = realpath(path, real) != NULL; /* what was deleted can be open still */
	traits = path_disk(r, path);
	if (S_ISDIR(st.st_mode)) {
		traits |= FOLDER;
	} else {
		traits |= path_image(r, path);
		error = path_serve(r, path, &traits, err);
	}
	if (error != 0)
		return error;
	if (traits & DEVICE) {
		doctor_fact(r, "cost", "not measured",
			    "nothing is written to a device: platter bench --overwrite does");
	} else if (!named) {
		doctor_fact(r, "cost", "not measured", "it lies in no directory: %s",
			    strerror(errno));
	} else {
		folder = folder_of(real, traits & FOLDER); /* not that of a link */
		if (folder != NULL)
			traits |= path_cost(r, folder);
		free(folder);
	}
	doctor_conclude(r, rows, sizeof(rows) / sizeof(rows[0]), traits);
	return 0;
}
