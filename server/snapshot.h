/*
 * snapshot.h - exports, targets and connections at one moment, copied under their locks so that
 * text can be made of them without.
 */
#ifndef SNAPSHOT_H
#define SNAPSHOT_H

#include "catalog.h"
#include "clients.h"
#include "iscsi/targets.h"

/* All strings in here are UTF-8: what is not is shown as \xHH. */
struct snapshot {
	struct offer_state *exports;
	size_t export_count, export_room;
	struct connection_state {
		uint64_t id;
		enum client_phase phase;
		char *peer;
		bool tls;
		/* NULL: there is none (yet) */
		char *subject, *fingerprint, *psk, *export, *target, *initiator;
		struct timespec since;
		uint64_t requests, received, sent;
	} * connections;
	size_t connection_count, connection_room;
	struct target_state *targets;
	size_t target_count, target_room;
	bool failed;
};

/* Each may be NULL. Errors: -ENOMEM, and s is empty. */
int snapshot_take(struct snapshot *s, struct catalog *catalog, struct targets *targets,
		  struct clients *clients);
void snapshot_free(struct snapshot *s);

#define SNAPSHOT_PHASES (CLIENT_CLOSING + 1)
const char *snapshot_phase(enum client_phase phase); /* "handshake", "served", ... */

/* A copy of text as such a string; NULL: no memory. */
char *snapshot_text(const char *text);

#endif
