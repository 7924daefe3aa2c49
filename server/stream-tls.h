/*
 * stream-tls.h - TLS on a stream, and credentials. The only module that sees GnuTLS.
 */
#ifndef STREAM_TLS_H
#define STREAM_TLS_H

#include "platter.h"

#include <sys/types.h>

struct peer;
struct stream;

/* ---- credentials ----------------------------------------------------------------- */

struct tls_settings {
	/* X.509: a directory with server-cert.pem, server-key.pem, and perhaps ca-cert.pem (who
	 * comes with a certificate is verified by it; needed with verify_peer) and ca-crl.pem
	 * (the revoked). For a client: ca-cert.pem, and client-cert.pem with client-key.pem if
	 * it has them; without a directory the system says who is trusted. */
	const char *certificates;
	/* A file of lines USER:HEXKEY, as psktool(1) writes them; not beside certificates. */
	const char *psk;
	bool verify_peer; /* X.509: a client without a certificate is refused */
};

struct tls_credentials; /* shared and counted; immutable */

/* Loads them. Errors: -EINVAL (neither or both kinds; a file that is no certificate, key or
 * list of keys; a secret that others may read), what opening a file says. The sentence names
 * the file. A certificate that has expired or is not valid yet is logged as a warning. */
int tls_credentials_new(struct tls_credentials **credentials, const struct tls_settings *settings,
			struct pl_error *err);
struct tls_credentials *tls_credentials_get(struct tls_credentials *credentials);
void tls_credentials_put(struct tls_credentials *credentials); /* NULL is allowed */

/* ---- a stream's session; called by stream.c -------------------------------------- */

struct tls_session;

/* As stream_secure(), stream_recv() and stream_send(); s->tls is made by the first. It takes a
 * reference of its own, and uses peer's text, and peer itself until `secured` has come; which,
 * with -ENOMEM, may be before it returns. */
void tls_start(struct stream *s, struct tls_credentials *credentials, struct peer *peer);
ssize_t tls_recv(struct stream *s, struct iovec *iov, int iovcnt);
ssize_t tls_send(struct stream *s, struct iovec *iov, int iovcnt);
/* close_notify, as far as it goes without waiting. */
void tls_bye(struct stream *s);
/* Nothing is under way any more. */
void tls_free(struct stream *s);

/* ---- the client's side, blocking: for tools -------------------------------------- */

struct tls_client;

/* host: the name that the server's certificate must have; NULL: any. user: of the PSK; NULL: the
 * file's first. Errors: as tls_credentials_new(), and -EPROTO when the handshake fails; the
 * sentence has the reason. fd stays the caller's, and stays blocking. */
int tls_client_new(struct tls_client **client, int fd, const struct tls_settings *settings,
		   const char *host, const char *user, struct pl_error *err);
/* Bytes, 0 at the end; all of length. Errors: -EAGAIN (the socket's time limit), -ECONNRESET,
 * -EPROTO (the log has the reason: that a server refuses a client's certificate comes here). */
ssize_t tls_client_recv(struct tls_client *client, void *data, size_t length);
ssize_t tls_client_send(struct tls_client *client, const void *data, size_t length);
void tls_client_free(struct tls_client *client); /* says goodbye */

#endif
