/*
 * conn.h - an NBD connection, from accept to close.
 *
 *	conn.c          its life: haggling, transmission, closing; deadlines
 *	transmission.c  requests in: from received bytes to the core
 *	reply.c         answers out: from the core's outcomes to sent bytes
 *
 * Only these three look into struct nbd_conn.
 */
#ifndef NBD_CONN_H
#define NBD_CONN_H

#include "../clients.h"
#include "../room.h"
#include "../stats.h"
#include "../stream.h"
#include "../worker.h"
#include "handshake.h"

struct nbd_command;
struct nbd_conn;

/* ---- for worker.c ---------------------------------------------------------------- */

/* On the worker's thread. Takes the sockets over. In the end the client leaves, and the worker
 * is told (worker_left). */
void nbd_conn_start(struct worker *worker, struct client *client, int fd, int send_fd);

/* For the tick: deadlines, orders, and who is in the way of others. now: stats_now(). */
void nbd_conns_tick(struct worker *worker, uint64_t now);

/* ---- a request, from its header to the last byte of its answer ------------------- */

#define NBD_INPUT    (64u << 10) /* received and not looked at yet */
#define NBD_HOLD_MAX (4u << 20)  /* memory of one connection's requests; or one request's */
#define NBD_IOVS     256
#define NBD_HEADS    (16u << 10)
#define NBD_CHUNKS   16 /* data and holes in the answer to one READ */

struct nbd_request {
	struct pl_request req;
	struct nbd_conn *conn;
	const struct nbd_command *command;
	uint64_t cookie;
	uint64_t offset, length; /* as on the wire */
	uint64_t payload;        /* bytes that come with it */
	uint16_t flags;
	int error;        /* negative errno */
	const char *text; /* what is said about it, or NULL */
	uint64_t began;   /* stats_now() */
	struct room_wish wish;
	struct iovec iov;
	struct pl_extents extents;
	struct nbd_request *next; /* free, or to be answered */
};

/* ---- a connection ---------------------------------------------------------------- */

enum conn_state { CONN_HAGGLING, CONN_WAITING, CONN_SERVING, CONN_ENDING, CONN_CLOSING };

struct nbd_conn {
	struct stream stream;
	struct worker *worker;
	struct client *client;
	struct nbd_conn *prev, *next; /* of the worker's */
	unsigned state;               /* enum conn_state */
	const char *why;              /* it ends; NULL: in order */
	bool shutting_down;           /* by order */
	bool receiving;               /* a stream_recv() is under way */
	bool closed;                  /* the stream is */
	uint64_t shut_down_at;        /* stats_now() of the order */
	struct pl_work pump_work;
	bool pump_posted;

	/* haggling */
	struct tls_credentials *credentials;
	struct peer secured; /* what TLS vouched for, on its way to the client */
	struct handshake shake;
	struct nbd_output out;
	struct iovec out_iov;
	unsigned next_step; /* enum handshake_step: when the output has been sent */
	uint64_t deadline;  /* stats_now() */
	struct opening *opening;

	/* transmission: in */
	bool begun;              /* the session: it is to be ended, whether it is served or not */
	struct session *session; /* NULL before it is served */
	struct nbd_agreement agreed;
	uint8_t *input; /* NBD_INPUT bytes */
	size_t input_at, input_have;
	struct iovec recv_iov[2];
	struct nbd_request *slots, *free; /* depth of them */
	unsigned depth, fresh;            /* fresh: the first one that was never used */
	struct nbd_request *filling;      /* its payload is being received */
	size_t filled;
	struct nbd_request *drained; /* its payload is being thrown away */
	uint64_t to_drain;
	struct nbd_request *wanting; /* waits for memory */
	struct room_share share;
	unsigned under_way; /* requests with the core */
	uint64_t now;       /* stats_now() when the input came */

	/* transmission: out */
	struct nbd_request *answers, **answers_last; /* to be sent */
	struct nbd_request *sending;                 /* being sent */
	struct pl_work reply_work;
	bool reply_posted;
	struct iovec *iov; /* NBD_IOVS */
	uint8_t *heads;    /* NBD_HEADS bytes */

	/* Errors in the log, of the second that began then. */
	uint64_t reported_since;
	unsigned reported;
};

/* ---- conn.c ---------------------------------------------------------------------- */

/* Looks for input and takes it as far as it goes; soon, on the loop. */
void nbd_conn_pump(struct nbd_conn *c);
/* At once; what is under way is waited for, but not answered. */
void nbd_conn_close(struct nbd_conn *c, const char *why);
/* Bytes that it has moved in both directions. */
uint64_t nbd_conn_moved(const struct nbd_conn *c);
/* A request has been done with: the connection may have waited for that. */
void nbd_conn_settle(struct nbd_conn *c);

#endif
