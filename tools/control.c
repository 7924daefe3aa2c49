/* control.c - platter control: one command to a running server, and its answer. */
#include "control.h"
#include "json-text.h"
#include "platter.h"
#include "tools.h"

#include <errno.h>
#include <jansson.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/un.h>
#include <unistd.h>

#define GONE "platter: the server has closed the connection\n"

/* ---- the client's side ----------------------------------------------------------- */

FILE *
control_open(const char *path)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	int fd;
	FILE *f;

	if (strlen(path) >= sizeof address.sun_path) {
		fprintf(stderr, "platter: %s: the path of a socket has at most %zu bytes\n", path,
			sizeof address.sun_path - 1);
		return NULL;
	}
	strcpy(address.sun_path, path);
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd == -1 || connect(fd, (struct sockaddr *)&address, sizeof address) == -1) {
		fprintf(stderr, "platter: %s: %s\n", path, strerror(errno));
		if (errno == ENOENT || errno == ECONNREFUSED)
			fprintf(stderr, "platter: is platterd running, and with --control %s?\n",
				path);
		if (fd != -1)
			close(fd);
		return NULL;
	}
	f = fdopen(fd, "r");
	if (f == NULL) {
		perror("platter");
		close(fd);
	}
	return f;
}

int
control_send(FILE *f, const json_t *request)
{
	char *text = json_text(request, JSON_COMPACT);
	size_t length = text != NULL ? strlen(text) : 0, sent = 0;
	ssize_t n = 0;

	if (text == NULL) {
		fprintf(stderr, "platter: the request cannot be written as JSON\n");
		return -1;
	}
	text[length++] = '\n'; /* instead of the 0 */
	while (sent < length && n >= 0) {
		n = send(fileno(f), text + sent, length - sent, MSG_NOSIGNAL);
		if (n >= 0)
			sent += (size_t)n;
		else if (errno == EINTR)
			n = 0;
	}
	free(text);
	if (n < 0 && errno == EPIPE)
		fprintf(stderr, GONE);
	else if (n < 0)
		fprintf(stderr, "platter: the server: %s\n", strerror(errno));
	return n < 0 ? -1 : 0;
}

json_t *
control_receive(FILE *f)
{
	char *line = NULL;
	size_t room = 0;
	json_t *answer = NULL;
	json_error_t e;

	if (getline(&line, &room, f) == -1) {
		fprintf(stderr, GONE);
	} else {
		answer = json_loads(line, 0, &e);
		if (!json_is_object(answer)) {
			fprintf(stderr, "platter: the server's answer: %s\n",
				answer == NULL ? e.text : "it is no object");
			json_decref(answer);
			answer = NULL;
		}
	}
	free(line);
	return answer;
}

/* ---- platter control ------------------------------------------------------------- */

enum { STATUS_DONE, STATUS_FAILED, STATUS_CANNOT };

struct settings {
	const char *path;
	bool help;
};

#define ROW(field) offsetof(struct settings, field)
static const struct pl_option control_options[] = {
	{ "control", PL_OPT_STRING, ROW(path), "PATH", CONTROL_PATH, false,
	  "the server's control socket" },
	{ "help", PL_OPT_BOOL, ROW(help), "", NULL, false, "show this" },
	PL_OPTION_END,
};
#undef ROW

static int
usage(void)
{
	char *rows = pl_option_rows(control_options, "  --", " ");

	printf("usage: platter control [OPTION...] COMMAND [NAME=VALUE...]\n\n"
	       "One command to a running platterd; its answer is printed as "
	       "JSON.\n\n%s\ncommands:\n",
	       rows != NULL ? rows : "");
	free(rows);
	for (const struct control_command *c = control_commands; c->name != NULL; c++) {
		printf("  %s", c->name);
		for (const struct control_argument *a = c->arguments; a->name != NULL; a++)
			printf(a->required ? " %s=%s" : " [%s=%s]", a->name,
			       a->type == CONTROL_BOOL     ? "true|false"
			       : a->type == CONTROL_NUMBER ? "NUMBER"
							   : "TEXT");
		printf("\n      %s\n", c->help);
	}
	return STATUS_DONE;
}

static int
complain(const char *what)
{
	fprintf(stderr, "platter control: %s\n", what);
	return STATUS_CANNOT;
}

static enum control_type
type_of(const char *command, const char *argument)
{
	for (const struct control_command *c = control_commands; c->name != NULL; c++) {
		if (strcmp(c->name, command) != 0)
			continue;
		for (const struct control_argument *a = c->arguments; a->name != NULL; a++)
			if (strcmp(a->name, argument) == 0)
				return a->type;
	}
	return CONTROL_TEXT; /* the server knows what is wrong with it */
}

static json_t *
value_json(enum control_type type, const char *text)
{
	json_t *value = type == CONTROL_TEXT ? NULL : json_loads(text, JSON_DECODE_ANY, NULL);

	return value != NULL ? value : json_string(text);
}

/* Of the words of a command; NULL: one of them is wrong. */
static json_t *
make_request(int count, char **words)
{
	json_t *request = json_pack("{s:s}", "command", words[0]);

	for (int i = 1; i < count; i++) {
		char *equals = strchr(words[i], '=');

		if (equals == NULL) {
			fprintf(stderr, "platter control: expected NAME=VALUE, got '%s'\n",
				words[i]);
			json_decref(request);
			return NULL;
		}
		*equals = '\0';
		json_object_set_new(request, words[i],
				    value_json(type_of(words[0], words[i]), equals + 1));
	}
	return request;
}

static int
command(const char *path, const json_t *request)
{
	FILE *f = control_open(path);
	json_t *answer = NULL;
	int status;

	if (f != NULL && control_send(f, request) == 0)
		answer = control_receive(f);
	if (f != NULL)
		fclose(f);
	if (answer == NULL)
		return STATUS_FAILED;
	json_dumpf(answer, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
	putchar('\n');
	status = json_object_get(answer, "error") != NULL ? STATUS_FAILED : STATUS_DONE;
	json_decref(answer);
	return status;
}

int
tool_control(int argc, char **argv)
{
	struct pl_params *params = pl_params_new();
	struct settings s = { 0 };
	json_t *request;
	int status = STATUS_CANNOT;

	if (params == NULL)
		return complain("out of memory");
	if (tool_options(argc, argv, control_options, params, &s) != 0) {
		status = STATUS_CANNOT;
	} else if (s.help) {
		status = usage();
	} else if (optind == argc) {
		status = complain("name a command; --help");
	} else {
		request = make_request(argc - optind, argv + optind);
		if (request != NULL)
			status = command(s.path, request);
		json_decref(request);
	}
	pl_params_free(params);
	return status;
}
