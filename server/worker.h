/*
 * worker.h - a serving thread: a loop, memory for requests, and the connections on it.
 *
 * The main thread accepts; workers_take() hands over. An NBD connection lives on one worker from
 * its first byte to its last; an iSCSI one moves, once, to the worker of the target that it asks
 * for.
 */
#ifndef WORKER_H
#define WORKER_H

#include "platter.h"

#include <pthread.h>

struct catalog;
struct client;
struct room;
struct targets;
struct tls_credentials;

enum worker_protocol { PROTOCOL_NBD, PROTOCOL_ISCSI };

/* What connections are held to. All times in nanoseconds. */
struct worker_settings {
	struct catalog *catalog;
	struct targets *targets;    /* NULL: no iSCSI */
	uint64_t memory;            /* bytes for requests, of each worker */
	uint64_t handshake_timeout; /* from accept to the first command, TLS included */
	unsigned depth;             /* requests in flight on one connection */
	bool may_list;              /* NBD_OPT_LIST is answered */
	int tls;                    /* enum tls_policy */
	bool poll; /* wait for the next request without sleeping, briefly, where that pays */
};

struct worker {
	struct pl_loop *loop;
	unsigned index; /* from 0 */
	struct room *room;
	const struct worker_settings *settings;

	struct nbd_conn *conns;   /* nbd/conn.c's list */
	struct iscsi_conn *iscsi; /* iscsi/conn.c's */

	/* worker.c's */
	unsigned connections; /* atomic */
	struct workers *all;
	pthread_t thread;
	struct pl_io tick;
	bool ticking, ending;
	struct pl_work end_work;
};

/* A connection has ended. On the worker's thread. */
void worker_left(struct worker *w);

/* A connection of `from`, on whose thread this is, moves: it is counted at `to`, where work runs,
 * and the ticks reach it. */
void worker_hand_over(struct worker *from, struct worker *to, struct pl_work *work);
/* For that work: there are connections on w, whose thread this is. */
void worker_wake(struct worker *w);

/* The credentials for a new connection, with a reference; NULL: no TLS. */
struct tls_credentials *worker_credentials(struct worker *w);

struct workers;

/* Starts `count` threads; their loops run when this returns. settings must live on. */
int workers_start(struct workers **workers, unsigned count, const struct worker_settings *settings,
		  struct pl_error *err);

/* Serves an admitted client on the least busy worker. From the main thread. Takes fds over;
 * send_fd as in stream_init(). The client leaves by clients_leave(), whatever happens. */
void workers_take(struct workers *workers, struct client *client, int fd, int send_fd,
		  enum worker_protocol protocol);

/* The credentials of connections from now on; NULL: no TLS. Takes one reference over. From
 * any thread. */
void workers_secure(struct workers *workers, struct tls_credentials *credentials);

/* No client may be left. Ends and joins the threads. */
void workers_end(struct workers *workers);

/* For catalog.c and others: run work on each worker's thread, one after the other, and wait
 * until all have. Not from a worker's thread. */
void workers_each(struct workers *workers, void (*run)(struct worker *w, void *user), void *user);

#endif
