/*
 * bench-target.h - what can be measured: the file itself, our servers, those of others.
 *
 * A server is started for each measurement and stopped after it, so that none profits from what
 * it has learnt. Each is a process group, which ends with this process.
 */
#ifndef BENCH_TARGET_H
#define BENCH_TARGET_H

#include "bench-load.h"

struct bench_place {
	const char *image;      /* a file or device */
	const char *folder;     /* for sockets and the like */
	const char *peers_root; /* servers of others run in it (chroot), or NULL */
	uint64_t size;          /* of the image, and of what our server of nothing has */
};

/*
 * Adds to r->targets those that the list names, in the order of the table here: words with commas
 * between them, each a shell pattern for NAME or NAME/MODE, or "ours", "peers", "raw", "steps",
 * "ceiling". Those that are not installed come with the reason. Errors: -EINVAL (a word that fits
 * none), -ENOMEM.
 */
int bench_targets_add(struct bench_result *r, const char *list, const struct bench_place *place,
		      struct pl_error *err);
/* A server that is there already. Errors: -EINVAL. */
int bench_targets_add_uri(struct bench_result *r, const char *uri, struct pl_error *err);
/* NAME/MODE of each, whether it is installed, and how it is run. */
void bench_targets_list(const struct bench_place *place, FILE *to);

struct bench_server {
	struct bench_where where;
	char address[300], export_name[64];
	pid_t pid;       /* 0: there is none to stop */
	int stop_signal; /* what ends it */
	int log;         /* what it said */
};

/* Returns when clients can come. Errors: what goes wrong with system calls, or -EIO, and the
 * sentence is what the server said. */
int bench_server_start(struct bench_server *s, const struct bench_target *t,
		       const struct bench_place *place, struct pl_error *err);
void bench_server_stop(struct bench_server *s);

void bench_folder_remove(const char *path); /* place->folder, and what they have left there */

/* Of how many connections a load's requests in flight are to be spread over; 1: as it says. */
unsigned bench_target_spread(const struct bench_target *t);

#endif
