/*
 * client.c - a small client that leaves its marks in the kernel's trace.
 *
 *	client ADDRESS STEP...
 *
 * ADDRESS: a socket, or iscsi://HOST:PORT/IQN/LUN. A step is one request, or several joined by
 * commas that are sent together before the first reply is awaited: `flush,write+fua:0:4096`. At
 * each reply a line "reply flush" goes to the kernel's trace, so that the trace tells what the
 * device was asked for before the client was answered. Writes carry a pattern made of the offset;
 * `read` compares with it. Exit status: 0 every reply was good and every byte as written, 1 not,
 * 2 could not run.
 */
#include "../../tools/conn.h"

#include <err.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define MAX_LENGTH   (1u << 20)
#define MAX_TOGETHER 64

static const char *const names[] = {
	[CONN_READ] = "read", [CONN_WRITE] = "write", [CONN_FLUSH] = "flush",
	[CONN_ZERO] = "zero", [CONN_TRIM] = "trim",
};
#define NAMES (sizeof(names) / sizeof(names[0]))

static struct conn server;
static const char *texts[MAX_TOGETHER]; /* of the step's requests */
static unsigned sent;
static int trace;
static bool good = true;

/* No two 512-byte sectors of a disk look alike. */
static void
fill(uint8_t *data, uint64_t offset, uint32_t length)
{
	for (uint32_t i = 0; i < length; i++) {
		uint64_t at = offset + i;

		data[i] = 1 + ((at >> 9) * 7 + at) % 251;
	}
}

/* text: `name[+fua][:offset:length]` */
static void
send_request(const char *text)
{
	struct conn_request *r = &server.requests[sent];
	unsigned long long offset = 0;
	unsigned length = 0;
	char name[16], *plus;

	if (sent == MAX_TOGETHER)
		errx(2, "too many requests together");
	if (sscanf(text, "%15[a-z+]:%llu:%u", name, &offset, &length) < 1 || length > MAX_LENGTH)
		errx(2, "bad request '%s'", text);
	plus = strchr(name, '+');
	if (plus != NULL)
		*plus = '\0';
	*r = (struct conn_request){ .fua = plus != NULL, .offset = offset, .length = length };
	while (strcmp(names[r->op], name) != 0)
		if (++r->op == NAMES)
			errx(2, "unknown request '%s'", text);
	if (r->op == CONN_WRITE || r->op == CONN_READ) {
		r->data = malloc(length);
		if (r->data == NULL)
			err(2, "memory");
		fill(r->data, offset, r->op == CONN_WRITE ? length : 0);
	}
	texts[sent] = text;
	conn_issue(&server, sent++);
}

static void
replied(struct conn *c, struct conn_request *r, const char *error)
{
	static uint8_t expected[MAX_LENGTH];
	const char *text = texts[r - c->requests];

	if (trace != -1)
		dprintf(trace, "reply %s", text);
	if (error != NULL) {
		warnx("%s: %s", text, error);
		good = false;
	} else if (r->op == CONN_READ) {
		fill(expected, r->offset, r->length);
		if (memcmp(r->data, expected, r->length) != 0) {
			warnx("%s: not what was written", text);
			good = false;
		}
	}
	free(r->data);
}

int
main(int argc, char **argv)
{
	if (argc < 3)
		errx(2, "usage: client ADDRESS STEP...");
	conn_open(&server, argv[1], "", replied);
	trace = open("/sys/kernel/tracing/trace_marker", O_WRONLY | O_CLOEXEC);
	for (int i = 2; i < argc; i++) {
		sent = 0;
		for (char *text = strtok(argv[i], ","); text != NULL; text = strtok(NULL, ","))
			send_request(text);
		while (server.in_flight > 0)
			conn_turn(&server);
	}
	conn_close(&server);
	return good ? 0 : 1;
}
