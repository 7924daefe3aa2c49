/*
 * cmdline.h - the command line of platterd.
 */
#ifndef CMDLINE_H
#define CMDLINE_H

#include "config.h"

/* What only the command line can say. */
struct cmdline {
	bool version, check_config, foreground, inetd;
	const char *help;   /* "": of the command line; or a topic; NULL: not asked for */
	const char *run;    /* a command, or NULL */
	const char *config; /* a file, or NULL */
};

/* Fills both from argv, whose strings must live on, and the file it names; config is finished
 * unless help or version is asked for. Errors: -EINVAL, and the sentence names the option and
 * its value; what opening the file says. */
int cmdline_parse(int argc, char **argv, struct cmdline *cmdline, struct config *config,
		  struct pl_error *err);

/* On standard output, made from the tables. -EINVAL: there is no such topic. */
int cmdline_help(const char *topic, struct pl_error *err);

#endif
