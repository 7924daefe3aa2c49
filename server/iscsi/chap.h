/*
 * chap.h - CHAP: who the initiator is, and who we are. Pure, but for random numbers.
 *
 * Source: RFC 7143, "CHAP Considerations"; RFC 1994. Algorithms 5 (MD5), 6 (SHA-1), 7 (SHA-256),
 * 8 (SHA3-256), IANA "PPP Authentication Algorithms"; hashes are nettle's.
 */
#ifndef ISCSI_CHAP_H
#define ISCSI_CHAP_H

#include "keys.h"
#include "platter.h"

struct chap_secrets; /* immutable, counted: a reload makes new ones */

/*
 * A file of lines "in NAME SECRET" (an initiator proves that it knows SECRET under NAME), at least
 * one, and at most one "out NAME SECRET" (mutual: what we prove). A secret is a word of 12 to 255
 * bytes, or 0x and the hex digits of so many. A word that begins with '#' begins a comment. Nobody
 * but its owner may read the file. The two directions must not share a secret.
 * Errors: -EINVAL (file, line and what is wrong, never the secret; its mode), what open says.
 */
int chap_secrets_read(struct chap_secrets **secrets, const char *path, struct pl_error *err);
struct chap_secrets *chap_secrets_get(struct chap_secrets *secrets); /* the same, counted */
void chap_secrets_put(struct chap_secrets *secrets);                 /* NULL: nothing */

/* For discovery: knowing one of either is enough. *all: NULL at first, and nobody else's; keeps
 * references. Errors: -ENOMEM, *all is as before. */
int chap_secrets_join(struct chap_secrets **all, struct chap_secrets *more);
/*
 * Whether one who has shown to know that secret (struct chap), and calls himself that initiator,
 * may have what these secrets of one file are for. A NAME that is an iSCSI name is for that
 * initiator alone, and who has such a line comes in by no other. secrets: NULL: all may; known:
 * NULL: none.
 */
bool chap_secrets_admit(const struct chap_secrets *secrets, const struct chap_secrets *known,
			const char *initiator);
/* Whether an "in" of the one is the "out" of the other: answers of ours would help elsewhere. */
bool chap_secrets_share(const struct chap_secrets *a, const struct chap_secrets *b);

#define CHAP_CHALLENGE 32 /* bytes of ours */
#define CHAP_NAME_MAX  255

struct chap_algorithm;

struct chap {
	struct chap_secrets *secrets; /* with a reference, before the first step */
	unsigned state;
	const struct chap_algorithm *algorithm;
	uint8_t identifier, challenge[CHAP_CHALLENGE];
	bool done;
	struct chap_secrets *known;   /* done: the one that it knows, alone */
	char name[CHAP_NAME_MAX + 1]; /* that the initiator gave: to be trusted when done */
};

/*
 * The keys of one request, any of them NULL; answers in out. Returns 0 (chap->done: the initiator
 * is who it says; ours, if it asked for that, is in out), or a negative errno: -EACCES wrong,
 * reflected or not to be had, -EPROTO out of order or missing. Takes the same time whether a name
 * is known or not.
 */
struct chap_keys {
	const char *algorithms, *name, *response, *identifier, *challenge; /* A, N, R, I, C */
};
int chap_step(struct chap *chap, const struct chap_keys *keys, struct iscsi_text *out);
void chap_end(struct chap *chap); /* wipes it */

#endif
