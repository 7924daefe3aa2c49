/*
 * tools.h - the subcommands of platter(1). Each parses its own arguments and returns its
 * exit status.
 */
#ifndef TOOLS_H
#define TOOLS_H

#include <stdbool.h>
#include <stdio.h>

int tool_bench(int argc, char **argv);
int tool_control(int argc, char **argv);
int tool_doctor(int argc, char **argv);
int tool_probe(int argc, char **argv);
int tool_stats(int argc, char **argv);
int tool_torture(int argc, char **argv);

/* ---- options.c: what is wrong is said on stderr ---- */

struct pl_option;
struct pl_params;

/* Options of argv by the table, into settings, which point into params. optind: the first word
 * after them. Errors: -EINVAL, -ENOMEM. */
int tool_options(int argc, char **argv, const struct pl_option *table, struct pl_params *params,
		 void *settings);

/* Whether it begins with a scheme, of whatever kind; else it is a path. */
bool tool_is_uri(const char *word);

/* ---- control.c: the client's side of the control socket; failures are said on stderr ---- */

#define CONTROL_PATH RUNSTATEDIR "/platterd/control"

struct json_t;

FILE *control_open(const char *path);                    /* NULL: failed */
int control_send(FILE *f, const struct json_t *request); /* -1: failed */
struct json_t *control_receive(FILE *f); /* the next answer, an object; NULL: failed */

#endif
