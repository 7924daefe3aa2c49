/*
 * probe-uri.h - an NBD URI taken apart, and a connection to what it names.
 *
 * Source: the NBD project's uri.md. Beside its own parameters, those for TLS that libnbd
 * has made common: tls-certificates=DIR, tls-psk-file=FILE.
 */
#ifndef PROBE_URI_H
#define PROBE_URI_H

#include "platter.h"

struct nbd_uri {
	bool tls;          /* nbds: nothing else will do */
	char *unix_socket; /* its path (abstract with a leading NUL), or NULL: TCP */
	size_t unix_length;
	char *host, *port;
	char *user;                                           /* of the pre-shared key; or NULL */
	char *export;                                         /* name; "" is the default one */
	char *tls_certificates, *tls_psk_file, *tls_hostname; /* or NULL */
};

/* Errors: -EINVAL, and the sentence names what is wrong with it; -ENOMEM. */
int nbd_uri_parse(struct nbd_uri *uri, const char *text, struct pl_error *err);
void nbd_uri_free(struct nbd_uri *uri);

/* *fd: a connected socket. Errors: what connect(2) says, -ENOENT for an unknown host. */
int nbd_uri_connect(const struct nbd_uri *uri, int *fd, struct pl_error *err);

#endif
