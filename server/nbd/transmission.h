/*
 * transmission.h - requests in: from received bytes to the core.
 *
 * Source: NBD proto.md, "The transmission phase".
 */
#ifndef NBD_TRANSMISSION_H
#define NBD_TRANSMISSION_H

#include "conn.h"

/* A row for each command; reply.c and the log read it, too. */
struct nbd_command {
	const char *name;
	enum pl_op op;
	enum stats_kind kind;
	uint16_t flags; /* that it may have; FUA wherever that was advertised */
	bool changes;   /* data: not for sessions that only read */
};

/* Makes room for transmission. Errors: -ENOMEM. */
int nbd_transmission_start(struct nbd_conn *c);
void nbd_transmission_free(struct nbd_conn *c);

enum nbd_progress {
	NBD_NEEDS_INPUT, /* all that can be used of the input has been */
	NBD_IS_BUSY,     /* it has to wait for memory, or until requests are answered */
	NBD_ENDS,        /* nothing more is to be taken from this peer */
};

/* Takes what has been received as far as it goes. */
enum nbd_progress nbd_transmission_input(struct nbd_conn *c);

/* Where the next bytes are to go. */
int nbd_transmission_want(struct nbd_conn *c, struct iovec iov[2]);
/* n bytes are there. */
void nbd_transmission_received(struct nbd_conn *c, size_t n);

/* The peer is gone: what has not been given to the core is forgotten. Again after the receive
 * that is under way, if one is. */
void nbd_transmission_drop(struct nbd_conn *c);

/* Gives slot and memory back. */
void nbd_request_free(struct nbd_request *r);

#endif
