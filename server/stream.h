/*
 * stream.h - a connection's bytes in both directions, on one loop, plain or by TLS.
 *
 * One receive and one send may be under way at a time, beside each other. Each either
 * comes to something at once, and its result is returned, or returns -EINPROGRESS, and
 * the result comes to `received` or `sent` later. So a caller loops and never recurses.
 */
#ifndef STREAM_H
#define STREAM_H

#include "platter.h"

#include <sys/types.h>

struct tls_credentials;
struct tls_session;
struct peer;

struct stream {
	/* The owner's, set before stream_init(). */
	void (*received)(struct stream *s, ssize_t result);
	void (*sent)(struct stream *s, ssize_t result);
	void (*secured)(struct stream *s, int error);
	void (*closed)(struct stream *s);

	/* From here on the module's (and stream-tls.c's). */
	struct pl_loop *loop;
	int fd, send_fd; /* one socket, or a pair of pipes */
	bool is_socket;
	uint64_t bytes_in, bytes_out; /* so far, on the wire */
	struct pl_io recv_io, send_io;
	void (*raw_received)(struct stream *s, ssize_t result);
	void (*raw_sent)(struct stream *s, ssize_t result);
	struct iovec *send_iov; /* what is left of the send */
	int send_iovcnt;
	bool receiving, sending, closing, ended;
	struct tls_session *tls; /* NULL: plain */
	struct pl_work close_work;
};

/* Takes fd over: a connected socket. send_fd: the same, or where it is not one socket. */
void stream_init(struct stream *s, struct pl_loop *loop, int fd, int send_fd);

/*
 * At least one byte into iov (which stays the caller's until then). Result: bytes, 0 when
 * the peer has ended in order, or a negative errno: -ECONNRESET, -EPROTO (TLS: the peer broke
 * the protocol, or cut the stream without a word), -ECANCELED (stream_close).
 */
ssize_t stream_recv(struct stream *s, struct iovec *iov, int iovcnt);

/* All of iov, which is used up. Result: 0 or a negative errno, as above and -EPIPE. */
ssize_t stream_send(struct stream *s, struct iovec *iov, int iovcnt);

/* The server's side of a TLS handshake; `secured` follows, once: 0, or -EPROTO (the log
 * has the reason). Fills peer's TLS part. Nothing else may be under way. */
void stream_secure(struct stream *s, struct tls_credentials *credentials, struct peer *peer);

/* Says goodbye (TLS: close_notify, if it can be sent without waiting), ends what is under
 * way, closes the socket; `closed` follows, once, on the loop, never before this returns. */
void stream_close(struct stream *s);

/* ---- for stream-tls.c: the same without TLS -------------------------------------- */

void stream_raw_recv(struct stream *s, struct iovec *iov, int iovcnt,
		     void (*done)(struct stream *s, ssize_t result));
void stream_raw_send(struct stream *s, struct iovec *iov, int iovcnt,
		     void (*done)(struct stream *s, ssize_t result));

#endif
