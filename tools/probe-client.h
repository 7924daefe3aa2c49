/*
 * probe-client.h - a blocking NBD client that sends anything, and holds every byte that
 * comes back to the protocol.
 *
 * Whatever does not return fails the assertion; nothing is freed, since the process of an
 * assertion ends with it.
 */
#ifndef PROBE_CLIENT_H
#define PROBE_CLIENT_H

#include "probe.h"

/* ---- connections, from the earliest stage to the latest -------------------------- */

struct pending;

struct conn {
	const struct probe *probe;
	int fd;
	struct tls_client *tls;
	uint16_t greeting;
	enum probe_headers headers;
	bool has_context;
	uint32_t context;
	uint64_t size; /* of the export, once chosen */
	uint16_t flags;
	uint64_t cookie; /* last one used */
	struct pending *pending;
	bool has_ahead; /* a byte that has_ended() has read */
	uint8_t ahead;
};

struct conn *dial(const struct probe *p);                           /* nothing read */
struct conn *greeted(const struct probe *p, uint32_t client_flags); /* ... and no TLS */
struct conn *haggling(const struct probe *p); /* TLS if this run has it; options may follow */
struct conn *ready(const struct probe *p);    /* commands may follow */

#define FIXED_NO_ZEROES (NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES)

void start_tls(struct conn *c); /* STARTTLS and the TLS handshake */

void put(struct conn *c, const void *data, size_t length);
void take(struct conn *c, void *data, size_t length);
/* The next thing is the server's end of the connection. after: what made it end. */
void must_end(struct conn *c, const char *after);
/* How many bytes can be had before it ends, at most `most`. */
size_t take_rest(struct conn *c, void *data, size_t most);
bool has_ended(struct conn *c); /* waits for either */

/* ---- options --------------------------------------------------------------------- */

struct option_reply {
	uint32_t type, length;
	uint8_t *data;
};

/* Every reply to one option; the last is the ACK or the error. */
struct option_replies {
	struct option_reply *list;
	unsigned count;
	uint32_t last; /* its type */
};

/* An option's data, put together piece by piece. */
struct bytes {
	uint8_t *data;
	size_t length;
};
void add(struct bytes *b, const void *data, size_t length);
void add16(struct bytes *b, uint16_t n);
void add32(struct bytes *b, uint32_t n);
void add64(struct bytes *b, uint64_t n);
void add_text(struct bytes *b, const char *text); /* counted */
struct bytes info_request(const char *name, size_t length, unsigned count, const uint16_t *infos);
struct bytes meta_query(const char *name, unsigned count, const char *const *queries);

void send_option(struct conn *c, uint32_t option, const void *data, size_t length);
/* Only the header: what is sent need not be what is announced. */
void send_option_header(struct conn *c, uint32_t option, uint32_t length);
struct option_replies take_replies(struct conn *c, uint32_t option);
struct option_replies ask(struct conn *c, uint32_t option, struct bytes data);
uint32_t ask_plainly(struct conn *c, uint32_t option); /* without data; the last reply's type */

const char *option_name(uint32_t option);
const char *reply_name(uint32_t type);
/* Whose last reply was not the expected one. */
_Noreturn void fail_option(uint32_t option, const char *with, uint32_t got, const char *wanted);
/* Negotiation is in step still. */
void must_haggle(struct conn *c, const char *after);

/* What INFO or GO told. */
struct info {
	unsigned exports; /* INFO_EXPORT came that often */
	uint64_t size;
	uint16_t flags;
	unsigned blocks;
	uint32_t min, preferred, max;
};
struct info read_info(const struct option_replies *r);

unsigned agree(struct conn *c, enum probe_headers headers); /* the last reply's type */
void set_context(struct conn *c);                           /* base:allocation, if there */
struct info go(struct conn *c);
void go_as(struct conn *c, enum probe_headers headers); /* all three */

/* ---- commands -------------------------------------------------------------------- */

struct extent {
	uint64_t length, flags;
};

/* A whole reply. */
struct answer {
	uint64_t cookie;
	uint32_t error;
	char text[200];  /* what the server said of it */
	uint8_t *data;   /* READ */
	unsigned pieces; /* content chunks */
	bool simple;     /* came as a simple reply */
	struct extent *extents;
	unsigned extent_count;
};

struct command {
	uint16_t type, flags;
	uint64_t offset, length; /* length: as in the header */
	const void *payload;
	uint64_t payload_length;
	uint64_t cookie; /* 0: a fresh one */
};

uint64_t send_command(struct conn *c, const struct command *cmd); /* its cookie */
struct answer take_answer(struct conn *c);                        /* the next that is complete */
struct answer call(struct conn *c, const struct command *cmd);
/* The error of one without a payload. */
uint32_t call_error(struct conn *c, uint16_t type, uint16_t flags, uint64_t offset,
		    uint64_t length);

void read_at(struct conn *c, uint64_t offset, uint64_t length, uint8_t *into);
uint32_t write_at(struct conn *c, uint64_t offset, uint64_t length, const void *data,
		  uint16_t flags);
struct answer status_at(struct conn *c, uint64_t offset, uint64_t length, uint16_t flags);
/* Commands are in step still. */
void must_answer(struct conn *c, const char *after);
void disconnect(struct conn *c);

const char *command_name(unsigned type);
const char *error_name(uint32_t error);

#endif
