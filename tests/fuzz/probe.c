/*
 * probe.c - whatever a server answers, `platter probe` says what is wrong with it, or goes on, and
 * takes no harm.
 *
 * Input: a byte that says which headers, bytes that make commands, and what the server sends.
 */
#include "fuzz.h"

#include <setjmp.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

/* What the client calls, and does not give back: that ends with the input. */
static void *arena_calloc(size_t count, size_t size);
static void *arena_realloc(void *memory, size_t size);
static void arena_free(void *memory);
static ssize_t wire_recv(int fd, void *data, size_t length, int flags);
static ssize_t wire_send(int fd, const void *data, size_t length, int flags);

#define calloc  arena_calloc
#define realloc arena_realloc
#define free    arena_free
#define recv    wire_recv
#define send    wire_send
#include "../../tools/probe-client.c"
#undef calloc
#undef realloc
#undef free
#undef recv
#undef send

#define COMMANDS 4
#define BLOCK    4096

/* ---- memory ---------------------------------------------------------------------- */

#define ARENA_MAX 512

static void *arena[ARENA_MAX];
static unsigned arena_count;
static jmp_buf verdict;

static void *
arena_keep(void *memory)
{
	assert(memory != NULL);
	arena[arena_count++] = memory;
	return memory;
}

static void *
arena_calloc(size_t count, size_t size)
{
	if (arena_count == ARENA_MAX)
		longjmp(verdict, 1);
	return arena_keep(calloc(count, size));
}

static void
arena_free(void *memory)
{
	for (unsigned i = 0; memory != NULL && i < arena_count; i++) {
		if (arena[i] == memory) {
			arena[i] = arena[--arena_count];
			break;
		}
	}
	free(memory);
}

static void *
arena_realloc(void *memory, size_t size)
{
	for (unsigned i = 0; memory != NULL && i < arena_count; i++) {
		if (arena[i] == memory) {
			arena[i] = realloc(memory, size);
			assert(arena[i] != NULL);
			return arena[i];
		}
	}
	return arena_calloc(1, size);
}

/* ---- the server ------------------------------------------------------------------ */

static struct fuzz_input wire;

static ssize_t
wire_recv(int fd, void *data, size_t length, int flags)
{
	size_t n = length < wire.size ? length : wire.size;

	(void)fd;
	(void)flags;
	memcpy(data, wire.data, n);
	wire.data += n;
	wire.size -= n;
	return (ssize_t)n;
}

static ssize_t
wire_send(int fd, const void *data, size_t length, int flags)
{
	(void)fd;
	(void)data;
	(void)flags;
	return (ssize_t)length;
}

int
nbd_uri_connect(const struct nbd_uri *uri, int *fd, struct pl_error *err)
{
	(void)uri;
	(void)err;
	*fd = -1;
	return 0;
}

/* ---- verdicts -------------------------------------------------------------------- */

static void
say(const char *fmt, va_list args)
{
	char text[1024];

	vsnprintf(text, sizeof text, fmt, args);
	assert(text[0] != '\0');
}

#define VERDICT(name) \
	void name(const char *fmt, ...) \
	{ \
		va_list args; \
\
		va_start(args, fmt); \
		say(fmt, args); \
		va_end(args); \
		longjmp(verdict, 1); \
	}
VERDICT(fail)
VERDICT(cannot_connect)
VERDICT(not_applicable)

void
doing(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	say(fmt, args);
	va_end(args);
}

/* ---- an input -------------------------------------------------------------------- */

static void
talk(struct fuzz_input *in, const struct probe *p)
{
	static uint8_t data[BLOCK], payload[12];
	unsigned ops = (unsigned)fuzz_next(in, 1 << 16);
	struct conn *c;

	wire = *in;
	if ((ops & 1) != 0) {
		c = ready(p);
		/* What the server says of itself decides nothing about memory. */
		assert(c->headers == p->headers);
	} else {
		c = allocate(sizeof *c);
		c->probe = p;
		c->headers = p->headers;
		c->has_context = true;
		c->context = 1;
		c->size = 1 << 20;
	}
	for (unsigned i = 0; i < COMMANDS; i++) {
		unsigned op = ops >> (1 + 3 * i) & 7;

		switch (op) {
		case 0: read_at(c, BLOCK, BLOCK, data); break;
		case 1: write_at(c, BLOCK, BLOCK, data, NBD_CMD_FLAG_FUA); break;
		case 2: status_at(c, 0, 1 << 20, 0); break;
		case 3: status_at(c, 0, 1 << 20, NBD_CMD_FLAG_REQ_ONE); break;
		case 4: call_error(c, NBD_CMD_READ, NBD_CMD_FLAG_DF, 0, BLOCK); break;
		case 5:
			send_command(c, &(struct command){ .type = NBD_CMD_READ, .length = 512 });
			send_command(c, &(struct command){ .type = NBD_CMD_TRIM, .length = BLOCK });
			take_answer(c);
			take_answer(c);
			break;
		case 6:
			put_be64(payload, BLOCK);
			call(c, &(struct command){ .type = NBD_CMD_BLOCK_STATUS,
						   .flags = NBD_CMD_FLAG_PAYLOAD_LEN,
						   .length = sizeof payload,
						   .payload = payload,
						   .payload_length = sizeof payload });
			break;
		default: must_answer(c, "nothing"); break;
		}
	}
	must_end(c, "all");
}

/* On its own, for what a verdict comes back to has no variables that could have changed. */
__attribute__((noinline)) static void
judge(struct fuzz_input *in, const struct probe *p)
{
	if (setjmp(verdict) == 0)
		talk(in, p);
}

int
LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	static struct nbd_uri uri = { .export = (char *)"disk" };
	static struct probe_survey found = { .min = 512, .context = true };
	struct fuzz_input in = { input, size };
	unsigned how = (unsigned)fuzz_next(&in, 256);
	struct probe p = { .uri = &uri, .found = &found, .headers = how % PROBE_HEADERS };

	arena_count = 0;
	judge(&in, &p);
	for (unsigned i = 0; i < arena_count; i++)
		free(arena[i]);
	return 0;
}
