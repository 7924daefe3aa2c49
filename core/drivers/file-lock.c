/*
 * file-lock.c - one writer, or readers only.
 *
 * QEMU's image locking, so that the two respect each other (QEMU, docs/system/images.rst,
 * "Disk image file locking"): who holds a permission keeps a read lock on its byte from
 * 100 on; who bears no one else with a permission keeps one on its byte from 200 on. A
 * conflict is a lock of somebody else on the opposite byte. The locks belong to the open
 * file description: they outlive fork, and end with the last descriptor, however a
 * process ends.
 */
#include "file.h"

#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <unistd.h>

enum { READING = 0, WRITING = 1, RESIZING = 3 }; /* permissions that matter here */
enum { HELD = 100, REFUSED = 200 };

struct lock_rule {
	bool writer;      /* only when we write */
	off_t keep;       /* our lock */
	off_t theirs;     /* must be nobody's */
	const char *says; /* who it is otherwise */
};

/* A writer bears no other, so what he does comes first: that is what is told of him. */
static const struct lock_rule lock_rules[] = {
	{ false, REFUSED + WRITING, HELD + WRITING, "somebody writes it" },
	{ false, REFUSED + RESIZING, HELD + RESIZING, "somebody may resize it" },
	{ true, HELD + WRITING, REFUSED + WRITING, "somebody reads it who bears no writer" },
	{ false, HELD + READING, REFUSED + READING, "somebody has it who bears no reader" },
};

#define RULES (sizeof lock_rules / sizeof *lock_rules)

static int
lock_byte(int fd, int command, short type, off_t byte, struct flock *fl)
{
	*fl = (struct flock){ .l_type = type, .l_whence = SEEK_SET, .l_start = byte, .l_len = 1 };
	return fcntl(fd, command, fl) == -1 ? -errno : 0;
}

/* Who holds that byte, if anybody does for long. */
static int
lock_of_others(int fd, off_t byte, struct flock *fl)
{
	for (unsigned waited = 0;; waited++) {
		int error = lock_byte(fd, F_OFD_GETLK, F_WRLCK, byte, fl);

		if (error != 0 || fl->l_type == F_UNLCK || waited == FILE_PATIENCE)
			return error;
		usleep(1000);
	}
}

int
file_lock(const struct file *f, struct pl_error *err)
{
	struct flock fl;
	int error;

	for (unsigned i = 0; i < RULES; i++) {
		const struct lock_rule *r = &lock_rules[i];

		if (r->writer && f->read_only)
			continue;
		error = lock_byte(f->fd, F_OFD_SETLK, F_RDLCK, r->keep, &fl);
		if (error != 0)
			return pl_error_set(err, error == -EAGAIN ? -EBUSY : error,
					    "%s: lock (lock=off serves it without one)", f->name);
	}
	for (unsigned i = 0; i < RULES; i++) {
		const struct lock_rule *r = &lock_rules[i];

		if (r->writer && f->read_only)
			continue;
		error = lock_of_others(f->fd, r->theirs, &fl);
		if (error != 0)
			return pl_error_set(err, error, "%s: lock", f->name);
		if (fl.l_type != F_UNLCK)
			return pl_error_say(err, -EBUSY,
					    "%s: it is in use: %s; lock=off serves it all the "
					    "same, if you know "
					    "that this is safe",
					    f->name, r->says);
	}
	return 0;
}
