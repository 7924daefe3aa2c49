/*
 * doctor-path.h - what is looked at where an image lies or is to lie. Each returns traits, of which
 * doctor-path.c makes findings; what could not be read is told as a fact.
 */
#ifndef DOCTOR_PATH_H
#define DOCTOR_PATH_H

#include "doctor.h"

enum path_trait {
	IN_MEMORY = 1 << 0,
	NO_BARRIERS = 1 << 1, /* the file system keeps flushes to itself */
	ELSEWHERE = 1 << 2,   /* a file system of the network, or of a program */
	SCHEDULED = 1 << 3,   /* requests are sorted on the way, and the disk does not rotate */
	VOLATILE = 1 << 4,    /* the disk has a cache that a loss of power empties */
	NOT_COPIED = 1 << 5,  /* this file, though others are */
	COPIES = 1 << 6,      /* on each write, by the file system */

	DEVICE = 1 << 8,
	FOLDER = 1 << 9,
	NOT_WRITTEN = 1 << 10, /* there are blocks that were never written */
	MAY_FILL = 1 << 11,    /* and less space than they need */
	CLONED = 1 << 12,      /* blocks are another file's, too */
	IN_USE = 1 << 13,
	ODD_SIZE = 1 << 14,   /* of no whole number of 512 bytes */
	READ_ONLY = 1 << 15,  /* to who asks */
	NOT_DIRECT = 1 << 16, /* the page cache cannot be passed by */
	NO_RING = 1 << 17,    /* no io_uring */

	BY_FLUSH = 1 << 18,      /* a FUA write will be followed by a flush */
	NATIVE_FASTER = 1 << 19, /* than a shared flush */
	FUA_FREE = 1 << 20,      /* it takes no time */
	FUA_SLOW = 1 << 21,
	BIG_BLOCKS = 1 << 22, /* of more than 512 bytes */
	DISK_KNOWN = 1 << 23, /* all that is below, down to disks */
	NO_FILE = 1 << 24,    /* of ours may be made in the directory */
	NO_ROOM = 1 << 25,    /* for one */
	NO_UNMAP = 1 << 26,   /* nothing below gives blocks back */
};

/* doctor-disk.c: the file system of path, and what is below it or below a device. */
unsigned path_disk(struct doctor_report *r, const char *path);

/* doctor-image.c: the file or device itself. */
unsigned path_image(struct doctor_report *r, const char *path);

/* doctor-serve.c: path as an export, with these options; read-only, if that is all there is.
 * Errors: those of pl_export_open(). */
int path_open(const char *path, const char *fua, const char *lock, struct pl_export **ex,
	      struct pl_error *err);

/* doctor-serve.c: what clients would be told. Errors: it cannot be served at all. */
int path_serve(struct doctor_report *r, const char *path, unsigned *traits, struct pl_error *err);

/* doctor-cost.c: on a file of its own in `folder`, which it removes; some seconds. */
unsigned path_cost(struct doctor_report *r, const char *folder);

#endif
