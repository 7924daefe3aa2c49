/*
 * peer.h - who is at the other end of a connection: what the kernel and TLS vouch for.
 */
#ifndef PEER_H
#define PEER_H

#include "platter.h"

#include <stdbool.h>
#include <sys/types.h>

enum peer_kind { PEER_UNIX, PEER_TCP, PEER_VSOCK, PEER_PIPE };

#define PEER_TEXT 128

struct peer {
	enum peer_kind kind;
	char text[PEER_TEXT]; /* for people: "127.0.0.1:50418", "[::1]:50418", "unix pid 7 uid 0" */
	char host[PEER_TEXT]; /* what connections are counted by: the address without its port,
			       * "vsock CID"; "" for unix sockets and pipes, which are not */
	/* Of a unix socket, by SO_PEERCRED; else -1. */
	pid_t pid;
	uid_t uid;
	gid_t gid;

	/* Filled when TLS is established; peer_clear() frees them. */
	bool tls;
	char *subject;        /* RFC 4514, of a verified client certificate; or NULL */
	char fingerprint[65]; /* SHA-256 of that certificate in lower hex; or "" */
	char *psk;            /* the identity of the pre-shared key; or NULL */
};

/* Fills all but the TLS part from a connected socket (anything else is a PEER_PIPE). */
void peer_of(struct peer *p, int fd);
void peer_clear(struct peer *p);

/*
 * A line of the log that a peer brings about, whoever he is: a warning, or what matters less. He
 * may come as often as he likes, so of many such lines some are left out, and the next one tells
 * how many. From any thread.
 */
void peer_warn(const char *fmt, ...) PL_PRINTF(1, 2);
void peer_info(const char *fmt, ...) PL_PRINTF(1, 2);

#endif
