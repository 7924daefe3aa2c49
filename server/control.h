/*
 * control.h - the control socket (JSON, a line for a request and a line for its answer) and
 * the page of metrics (Prometheus text over HTTP); both on the main thread's loop.
 *
 * See platterd(8), "CONTROL SOCKET" and "METRICS".
 */
#ifndef CONTROL_H
#define CONTROL_H

#include "platter.h"

struct catalog;
struct clients;
struct control;
struct targets;

/* A request longer than this is refused. */
#define CONTROL_LINE_MAX 65536

struct control_settings {
	struct pl_loop *loop;
	struct catalog *catalog;
	struct targets *targets; /* or NULL */
	struct clients *clients;
	/* Errors come back to whoever asked. */
	int (*reload)(void *user, struct pl_error *err);
	int (*resize)(void *user, const char *export, struct pl_error *err);
	void (*stop)(void *user);
	void *user;
};

/* Binds now (before privileges are dropped). Either address may be NULL. socket: a path;
 * metrics: [HOST:]PORT or a path with a '/'. */
int control_new(struct control **control, const char *socket, const char *metrics,
		const struct control_settings *settings, struct pl_error *err);
/* Serves as soon as the loop runs. Errors: -ENOMEM. */
int control_start(struct control *control, struct pl_error *err);
/* Ends all of it; `stopped` follows on the loop, then control_free() is allowed. */
void control_stop(struct control *control, void (*stopped)(void *user), void *user);
void control_free(struct control *control); /* after that, or if the loop never ran */

/* ---- what can be asked: read by the server, by `platter control` and by the manual's test */

enum control_type { CONTROL_TEXT, CONTROL_NUMBER, CONTROL_BOOL };

struct control_argument {
	const char *name; /* NULL: the end */
	enum control_type type;
	bool required;
};

#define CONTROL_ARGUMENTS 3 /* at most, with the end */

struct control_call;
struct json_t;

struct control_command {
	const char *name; /* NULL: the end */
	const char *help; /* one line */
	struct control_argument arguments[CONTROL_ARGUMENTS];
	/* The answer; NULL: call->err says why not, or there is no memory. */
	struct json_t *(*run)(struct control_call *call);
};

extern const struct control_command control_commands[];

/* Carries out a request (a line without its end) and returns the answer as a line with its
 * end; free() it. NULL: no memory. *then_stop: settings->stop is to follow. */
char *control_answer(struct control *control, const char *line, size_t length, bool *then_stop);

#endif
