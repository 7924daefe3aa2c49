/*
 * clients.h - every connection there is, as an operator sees it: who, since when, on
 * which export; how many there may be; and orders to them.
 */
#ifndef CLIENTS_H
#define CLIENTS_H

#include "peer.h"
#include "platter.h"

struct clients;
struct worker;

enum client_phase { CLIENT_HANDSHAKE, CLIENT_SERVED, CLIENT_CLOSING };

/* What a connection can be told, from the mildest to the hardest; none is taken back. */
enum client_order {
	CLIENT_GO_ON,
	CLIENT_SHUT_DOWN, /* finish what is in flight, refuse the rest with ESHUTDOWN, end */
	CLIENT_CUT,       /* end now */
};

struct client {
	struct clients *all;
	uint64_t id;      /* from 1, never used again */
	struct peer peer; /* its TLS part may change: read it under the lock, or as its worker */
	struct timespec since;    /* CLOCK_REALTIME */
	char *export;             /* its name, once chosen; under the lock */
	char *target, *initiator; /* of iSCSI, once logged in; under the lock */

	/* Written by the worker's thread, read by any: __atomic, relaxed. */
	unsigned phase;
	uint64_t requests, received, sent; /* bytes on the wire without TLS's own */

	/* Set by clients_serve(). */
	struct worker *worker;
	void (*ordered)(struct client *client);
	void *conn; /* the connection's */

	unsigned order;  /* enum client_order; atomic */
	const char *why; /* of the latest order; atomic */

	/* From here on clients.c's. */
	struct clients_host *host;
	struct pl_work order_work;
	bool order_posted, left;
	struct client *prev, *next;
};

struct clients_limits {
	unsigned total;    /* connections at a time, of the server; 0: any number */
	unsigned per_host; /* of one peer.host; 0: any number */
};

int clients_new(struct clients **clients, struct pl_error *err);
void clients_free(struct clients *clients); /* none may be left */

/* For those who come from now on. */
void clients_limit(struct clients *clients, struct clients_limits limits);

/* A connected socket asks to be served. Errors: -EUSERS when a limit says no (err names the
 * limit, its value and who holds most), -ENOMEM. Any thread. */
int clients_admit(struct clients *clients, int fd, struct client **client, struct pl_error *err);

/* On the worker's thread: from now on ordered() is called there, never from within another
 * call here, whenever `order` has grown; also for an order that came before. */
void clients_serve(struct client *client, struct worker *worker,
		   void (*ordered)(struct client *client), void *conn);

/* On the worker's thread: it moves to another worker; orders wait for clients_serve() there. false:
 * one is on its way here, and comes first. */
bool clients_unserve(struct client *client);

/* On the worker's thread: the client is known by its export, or by its TLS identity, now.
 * Both are copied or moved under the lock. */
void clients_chose(struct client *client, const char *export_name);
void clients_identified(struct client *client, struct peer *from); /* moves the TLS part */
/* By its iSCSI names; target: NULL: discovery. */
void clients_logged_in(struct client *client, const char *target, const char *initiator);

/* On the worker's thread (or before it was handed over to one), after its last request, its
 * session and its socket: client is gone, ordered() comes no more. */
void clients_leave(struct client *client);

/* Any thread that knows client to be there: its own, or under a lock that it takes before it
 * leaves. why: for the log; a string literal. */
void clients_order(struct client *client, enum client_order order, const char *why);
void clients_order_all(struct clients *clients, enum client_order order, const char *why);
/* Errors: -ENOENT. */
int clients_order_id(struct clients *clients, uint64_t id, enum client_order order,
		     const char *why);

unsigned clients_count(struct clients *clients);
/* Calls each under the lock: be short. */
void clients_each(struct clients *clients, void (*each)(const struct client *c, void *user),
		  void *user);

#endif
