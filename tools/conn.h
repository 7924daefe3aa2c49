/*
 * conn.h - a client's connection to an NBD server or an iSCSI target, many requests in flight.
 *
 * By no library, so that it costs little and does nothing of its own accord. Whatever goes wrong
 * and is not the answer to a request ends the program with status 2.
 *
 *	conn_open(c, "/tmp/socket", "", replied);
 *	c->requests[0] = (struct conn_request){ .op = CONN_FLUSH };
 *	conn_issue(c, 0);
 *	while (c->in_flight > 0)
 *		conn_turn(c);		-> replied(c, &c->requests[0], NULL)
 *	conn_close(c);
 */
#ifndef CONN_H
#define CONN_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/uio.h>

#define CONN_DEPTH 256
#define CONN_PARTS 64 /* pieces of data that a request in flight may send at a time, */
#define CONN_HEAD  48 /* and bytes of the header of each */

enum conn_op { CONN_READ, CONN_WRITE, CONN_FLUSH, CONN_ZERO, CONN_TRIM };

struct conn_request {
	enum conn_op op;
	bool fua; /* NBD: of all that changes something; iSCSI: of a write */
	uint64_t offset;
	uint32_t length; /* bytes; iSCSI: whole blocks */
	uint8_t *data;   /* of a write; for a read, or NULL: nobody wants it */

	/* The protocol's, until it is answered. */
	const uint8_t *out;
	uint32_t out_length;
	uint8_t parameters[24];
	uint8_t heads[1 + CONN_PARTS][CONN_HEAD];
};

struct conn;

/* error: NULL, or what the server answered. The request's place may be used again at once. */
typedef void conn_replied(struct conn *c, struct conn_request *r, const char *error);

struct conn_protocol {
	/* The socket is connected. rest: of the address, behind HOST:PORT or the socket. */
	void (*open)(struct conn *c, const char *rest);
	void (*issue)(struct conn *c, unsigned number); /* adds the pieces of that request */
	/* Looks at what has come. Returns how much of it is used, and tells by conn_data() and
	 * conn_done() what it was; 0: more has to come first. */
	size_t (*take)(struct conn *c, const uint8_t *data, size_t length);
	void (*close)(struct conn *c); /* adds the pieces of a farewell */
};
extern const struct conn_protocol conn_nbd, conn_iscsi;

struct conn {
	int fd;
	uint64_t size; /* bytes, of what is served */
	bool can_flush, can_fua;
	conn_replied *on_reply;
	unsigned in_flight;
	struct conn_request requests[CONN_DEPTH];

	const struct conn_protocol *protocol;
	struct {
		uint32_t cmd_sn, exp_stat_sn;
		uint32_t block;            /* bytes */
		uint32_t immediate, burst; /* bytes that may go with a command; in one PDU */
		uint8_t lun;
	} iscsi;
	uint8_t farewell[CONN_HEAD];

	struct iovec to_send[2 * CONN_DEPTH * (1 + CONN_PARTS)];
	unsigned pieces;

	uint8_t *buffer;
	size_t held, left; /* bytes in the buffer; bytes of data still to come, */
	uint8_t *into;     /* and where they go to, or NULL */
	struct conn_request *done;
	const char *error; /* of done */
	char error_text[64];
};

/* address: a socket's path, HOST:PORT, or iscsi://HOST:PORT/IQN/LUN */
void conn_open(struct conn *c, const char *address, const char *export_name,
	       conn_replied *on_reply);
void conn_issue(struct conn *c, unsigned number); /* sent by the next turn */
void conn_send(struct conn *c);                   /* what the socket takes; the rest is kept */
void conn_receive(struct conn *c);                /* waits for something, and takes all there is */
void conn_turn(struct conn *c);                   /* sends, then receives */
void conn_close(struct conn *c);

/* For protocols. */
void conn_add(struct conn *c, const void *data, size_t length); /* stays the caller's */
void conn_send_now(struct conn *c, const void *data, size_t length);
void conn_get(struct conn *c, void *to, size_t length);
struct conn_request *conn_find(struct conn *c, uint64_t number);
void conn_data(struct conn *c, size_t length, uint8_t *into);
void conn_done(struct conn *c, struct conn_request *r, const char *error);

#endif
