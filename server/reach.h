/*
 * reach.h - the files and directories that the server has to reach once it has given up its
 * privileges: for channels, for a reload, and to remove what it made.
 */
#ifndef REACH_H
#define REACH_H

#include "config.h"
#include "privsep.h"

struct reach {
	struct privsep_path *list;
	unsigned count;
	int error;
};

/* config_file, state (the directory): or NULL. Errors: -ENOMEM. reach_free() in any case. */
int reach_collect(struct reach *reach, const struct config *config, const char *config_file,
		  const char *state, struct pl_error *err);
void reach_free(struct reach *reach);

#endif
