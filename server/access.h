/*
 * access.h - who may have an export. Everything that is not allowed is refused.
 */
#ifndef ACCESS_H
#define ACCESS_H

#include "peer.h"
#include "platter.h"

enum tls_policy { TLS_OFF, TLS_OPTIONAL, TLS_REQUIRED };

/* An empty set of rules allows everyone that the tls policy lets in; otherwise one rule that
 * matches is enough. Immutable, so that any thread may ask. */
struct access_rules;

/*
 * Each may be NULL: not given. Else it is a list separated by ';', where a backslash keeps the
 * character behind it in its word, and a list that names nobody is a mistake:
 * - subjects: the whole subject of the peer's certificate, byte by byte as GnuTLS writes it by
 *   RFC 4514 (and the log shows it), "CN=backup,O=Example"; a part of it is not enough;
 * - fingerprints: SHA-256 of that certificate in hex, colons and case do not matter;
 * - psks: the identity of the pre-shared key;
 * - uids, gids: numbers or names of the process at a unix socket's other end, its primary group.
 *   Names are looked up now.
 * Errors: -EINVAL names the key and the value; -ENOMEM.
 */
int access_rules_new(struct access_rules **rules, const char *subjects, const char *fingerprints,
		     const char *psks, const char *uids, const char *gids, struct pl_error *err);
struct access_rules *access_rules_copy(const struct access_rules *rules); /* the same, counted */
void access_rules_free(struct access_rules *rules);
bool access_rules_same(const struct access_rules *a, const struct access_rules *b);

bool access_allows(const struct access_rules *rules, const struct peer *peer); /* NULL: empty */

#endif
