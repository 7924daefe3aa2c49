/*
 * handshake.h - the haggling phase: bytes in, bytes out. Knows no socket.
 *
 * The connection (conn.c) feeds what it has received, sends what comes out, and does what
 * the returned step asks for. Source: NBD proto.md, "The handshake phase".
 */
#ifndef NBD_HANDSHAKE_H
#define NBD_HANDSHAKE_H

#include "../access.h"
#include "../catalog.h"
#include "../peer.h"
#include "protocol.h"

struct client;
struct refusal;
struct worker;

/* What was agreed on. */
struct nbd_agreement {
	bool structured; /* replies; true with extended headers, too */
	bool extended;   /* headers */
	bool allocation; /* base:allocation was selected, for this very export */
};

/* What goes out: grown as needed, emptied by the connection when it has been sent. */
struct nbd_output {
	uint8_t *data;
	size_t length, capacity;
	bool failed; /* there was no memory: what is in it is not whole */
};

enum handshake_step {
	/* In all cases send the output first. */
	HANDSHAKE_MORE,  /* there is not enough input for the next step */
	HANDSHAKE_AGAIN, /* an option was answered: call again with what is left of the input */
	HANDSHAKE_TLS,   /* do the TLS handshake, then handshake_secured() and go on; input that
			  * is left was sent in plain text, so it must not be used: close */
	HANDSHAKE_OPEN,  /* offer_open(h->offer), which blocks, then handshake_opened() */
	HANDSHAKE_GO,    /* h->session has begun: transmission as h->agreed says */
	HANDSHAKE_CLOSE,
};

struct handshake {
	/* The connection's, before handshake_start(). */
	struct worker *worker; /* its settings say what is allowed */
	struct client *client; /* who is to be known by clients_chose() */
	const struct peer *peer;
	bool can_tls; /* there are credentials */

	/* Results. */
	struct offer *offer; /* with HANDSHAKE_OPEN */
	struct session session;
	struct nbd_agreement agreed;
	const char *why; /* with HANDSHAKE_CLOSE: for the log; NULL: an orderly end */

	/* handshake.c's */
	unsigned state;
	uint32_t option; /* being answered */
	bool fixed, no_zeroes, shutting_down, complained;
	const struct refusal *refusal; /* the answer when what is refused has been skipped */
	size_t drain;                  /* bytes of it still to skip */
	char *context_export;          /* base:allocation was selected for it; NULL: not */
	unsigned wanted;               /* while an export is opened: bit i: NBD_INFO_ i */
	bool matches;                  /* and it is context_export */
};

/* Puts the greeting into out. Errors: -ENOMEM. */
int handshake_start(struct handshake *h, struct nbd_output *out);

/* An option may be so long, data included; a longer one that could be valid is refused. */
#define NBD_HANDSHAKE_INPUT (64u << 10)
/* The data of a refused option is skipped up to this; beyond it the connection is closed. */
#define NBD_OPTION_MAX      (1u << 20)

/* Looks at have bytes of input and uses up *used of them: at most one option. A caller whose
 * buffer has room for NBD_HANDSHAKE_INPUT bytes always gets on: what is longer is skipped
 * without being kept. */
enum handshake_step handshake_step(struct handshake *h, const uint8_t *in, size_t have,
				   size_t *used, struct nbd_output *out);

/* offer_open() has ended so; the answer to the option comes into out. */
enum handshake_step handshake_opened(struct handshake *h, int error, const struct pl_error *err,
				     struct nbd_output *out);

/* TLS is established, h->peer is filled: all that was agreed before is forgotten. */
void handshake_secured(struct handshake *h);

/* From now on every option but ABORT is answered NBD_REP_ERR_SHUTDOWN. */
void handshake_shut_down(struct handshake *h);

/* Frees what is held. h->session, once begun, is the connection's. */
void handshake_end(struct handshake *h);

/* Appends; without memory out->failed is set, and nothing changes that. */
void nbd_output_add(struct nbd_output *out, const void *data, size_t length);
void nbd_output_free(struct nbd_output *out);

/* The transmission flags for an export with these capabilities; NBD proto.md, "Transmission
 * flags". The one place where they are made. */
uint16_t nbd_transmission_flags(unsigned capabilities, const struct nbd_agreement *agreed);

#endif
