/*
 * client.c - a small NBD client that leaves its marks in the kernel's trace.
 *
 *	client SOCKET STEP...
 *
 * A step is one request, or several joined by commas that are sent together before
 * the first reply is awaited: `flush,write+fua:0:4096`. At each reply a line
 * "reply flush" goes to the kernel's trace, so that the trace tells what the
 * device was asked for before the client was answered. Writes carry a pattern made
 * of the offset; `read` compares with it. Exit status: 0 every reply was good and
 * every byte as written, 1 not, 2 could not run.
 */
#include "wire.h"

#include <err.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define MAX_LENGTH   (1u << 20)
#define MAX_TOGETHER 64

static const struct {
	const char *name;
	uint16_t type;
	bool sends, receives;
} commands[] = {
	{ .name = "read", .type = CMD_READ, .receives = true },
	{ .name = "write", .type = CMD_WRITE, .sends = true },
	{ .name = "flush", .type = CMD_FLUSH },
	{ .name = "trim", .type = CMD_TRIM },
	{ .name = "zero", .type = CMD_WRITE_ZEROES },
};
#define COMMANDS (int)(sizeof(commands) / sizeof(commands[0]))

/* What waits for its reply; the cookie is the place in the array. */
static struct sent {
	const char *text;
	int command;
	uint64_t offset;
	uint32_t length;
} sent[MAX_TOGETHER];
static unsigned sent_count;

static int sock, trace;

static void
get(void *to, size_t length)
{
	char *p = to;

	while (length > 0) {
		ssize_t n = read(sock, p, length);

		if (n <= 0)
			err(2, "the server hung up");
		p += n;
		length -= n;
	}
}

static void
put(const void *from, size_t length)
{
	const char *p = from;

	while (length > 0) {
		ssize_t n = write(sock, p, length);

		if (n <= 0)
			err(2, "the server does not take more");
		p += n;
		length -= n;
	}
}

static void
connect_to(const char *path)
{
	const struct choice choice = choose_default_export();
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	struct greeting greeting;
	struct chosen chosen;

	snprintf(to.sun_path, sizeof(to.sun_path), "%s", path);
	sock = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (sock == -1 || connect(sock, (struct sockaddr *)&to, sizeof(to)) == -1)
		err(2, "%s", path);
	get(&greeting, sizeof(greeting));
	if (!is_newstyle(&greeting))
		errx(2, "%s: not an NBD server", path);
	put(&choice, sizeof(choice));
	get(&chosen, sizeof(chosen));
}

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
	static uint8_t data[MAX_LENGTH];
	struct request rq = { .magic = htobe32(REQUEST_MAGIC), .cookie = htobe64(sent_count) };
	struct sent *s = &sent[sent_count];
	unsigned long long offset = 0;
	unsigned length = 0;
	char name[16], *plus;

	if (sent_count == MAX_TOGETHER)
		errx(2, "too many requests together");
	if (sscanf(text, "%15[a-z+]:%llu:%u", name, &offset, &length) < 1 || length > MAX_LENGTH)
		errx(2, "bad request '%s'", text);
	plus = strchr(name, '+');
	if (plus != NULL) {
		*plus = '\0';
		rq.flags = htobe16(CMD_FLAG_FUA);
	}
	*s = (struct sent){ .text = text, .offset = offset, .length = length };
	while (strcmp(commands[s->command].name, name) != 0)
		if (++s->command == COMMANDS)
			errx(2, "unknown request '%s'", text);
	rq.type = htobe16(commands[s->command].type);
	rq.offset = htobe64(offset);
	rq.length = htobe32(length);
	put(&rq, sizeof(rq));
	if (commands[s->command].sends) {
		fill(data, offset, length);
		put(data, length);
	}
	sent_count++;
}

/* Returns whether the reply was good. */
static bool
receive_reply(void)
{
	static uint8_t data[MAX_LENGTH], expected[MAX_LENGTH];
	struct reply reply;
	const struct sent *s;

	get(&reply, sizeof(reply));
	if (be32toh(reply.magic) != REPLY_MAGIC || be64toh(reply.cookie) >= sent_count)
		errx(2, "the reply is no reply");
	s = &sent[be64toh(reply.cookie)];
	if (trace != -1)
		dprintf(trace, "reply %s", s->text);
	if (reply.error != 0) {
		warnx("%s: error %u", s->text, be32toh(reply.error));
		return false;
	}
	if (!commands[s->command].receives)
		return true;
	get(data, s->length);
	fill(expected, s->offset, s->length);
	if (memcmp(data, expected, s->length) != 0) {
		warnx("%s: not what was written", s->text);
		return false;
	}
	return true;
}

int
main(int argc, char **argv)
{
	bool good = true;

	if (argc < 3)
		errx(2, "usage: client SOCKET STEP...");
	connect_to(argv[1]);
	trace = open("/sys/kernel/tracing/trace_marker", O_WRONLY | O_CLOEXEC);
	for (int i = 2; i < argc; i++) {
		sent_count = 0;
		for (char *text = strtok(argv[i], ","); text != NULL; text = strtok(NULL, ","))
			send_request(text);
		for (unsigned left = sent_count; left > 0; left--)
			good &= receive_reply();
	}
	return good ? 0 : 1;
}
