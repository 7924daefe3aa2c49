/* control.c - platter control: one command to a running server, and its answer. */
#include "control.h"
#include "json-text.h"

#include "tools.h"

#include <errno.h>
#include <getopt.h>
#include <jansson.h>
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

static void
usage(FILE *f)
{
	fprintf(f,
		"usage: platter control [--control PATH] COMMAND [NAME=VALUE...]\n\n"
		"One command to a running platterd; its answer is printed as JSON.\n\n"
		"  --control PATH  the server's control socket (%s)\n\ncommands:\n",
		CONTROL_PATH);
	for (const struct control_command *c = control_commands; c->name != NULL; c++) {
		fprintf(f, "  %s", c->name);
		for (const struct control_argument *a = c->arguments; a->name != NULL; a++)
			fprintf(f, a->required ? " %s=%s" : " [%s=%s]", a->name,
				a->type == CONTROL_BOOL     ? "true|false"
				: a->type == CONTROL_NUMBER ? "NUMBER"
							    : "TEXT");
		fprintf(f, "\n      %s\n", c->help);
	}
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

int
tool_control(int argc, char **argv)
{
	static const struct option options[] = {
		{ "control", required_argument, NULL, 'c' },
		{ "help", no_argument, NULL, 'h' },
		{ NULL, 0, NULL, 0 },
	};
	const char *path = CONTROL_PATH;
	json_t *request, *answer = NULL;
	FILE *f;
	int o, status;

	while ((o = getopt_long(argc, argv, "+", options, NULL)) != -1) {
		switch (o) {
		case 'c': path = optarg; break;
		case 'h': usage(stdout); return 0;
		default: usage(stderr); return 2;
		}
	}
	if (optind == argc) {
		usage(stderr);
		return 2;
	}
	request = json_pack("{s:s}", "command", argv[optind]);
	for (int i = optind + 1; i < argc; i++) {
		char *equals = strchr(argv[i], '=');

		if (equals == NULL) {
			fprintf(stderr, "platter: control: expected NAME=VALUE, got '%s'\n",
				argv[i]);
			json_decref(request);
			return 2;
		}
		*equals = '\0';
		json_object_set_new(request, argv[i],
				    value_json(type_of(argv[optind], argv[i]), equals + 1));
	}
	f = control_open(path);
	if (f != NULL && control_send(f, request) == 0)
		answer = control_receive(f);
	json_decref(request);
	if (f != NULL)
		fclose(f);
	if (answer == NULL)
		return 1;
	json_dumpf(answer, stdout, JSON_INDENT(2) | JSON_REAL_PRECISION(12));
	putchar('\n');
	status = json_object_get(answer, "error") != NULL;
	json_decref(answer);
	return status;
}
