/* snapshot.c - exports, targets and connections at one moment. */
#include "snapshot.h"

#include <errno.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *
snapshot_phase(enum client_phase phase)
{
	static const char *const names[SNAPSHOT_PHASES] = {
		[CLIENT_HANDSHAKE] = "handshake",
		[CLIENT_SERVED] = "served",
		[CLIENT_CLOSING] = "closing",
	};

	return names[phase];
}

char *
snapshot_text(const char *text)
{
	json_t *valid = json_string(text);
	size_t length = strlen(text);
	char *copy = malloc(4 * length + 1), *to = copy;

	for (const char *c = text; copy != NULL && *c != '\0'; c++) {
		if (valid == NULL && (*c & 0x80) != 0)
			to += sprintf(to, "\\x%02x", (unsigned char)*c);
		else
			*to++ = *c;
	}
	if (copy != NULL)
		*to = '\0';
	json_decref(valid);
	return copy;
}

static char *
copy_text(struct snapshot *s, const char *text)
{
	char *copy = text != NULL ? snapshot_text(text) : NULL;

	s->failed |= text != NULL && copy == NULL;
	return copy;
}

/* The list with room for one more after count of size bytes, unless s->failed then. */
static void *
with_room(struct snapshot *s, void *list, size_t count, size_t *room, size_t size)
{
	size_t more = count > 0 ? 2 * count : 16;
	void *grown;

	if (count < *room || s->failed)
		return list;
	grown = realloc(list, more * size);
	if (grown == NULL) {
		s->failed = true;
		return list;
	}
	*room = more;
	return grown;
}

static void
copy_export(const struct offer_state *from, void *user)
{
	struct snapshot *s = user;
	struct offer_state *o;

	s->exports = with_room(s, s->exports, s->export_count, &s->export_room, sizeof *o);
	if (s->failed)
		return;
	o = &s->exports[s->export_count++];
	*o = *from;
	o->name = copy_text(s, from->name);
	o->description = copy_text(s, from->description);
	o->image = copy_text(s, from->image);
	o->error = copy_text(s, from->error);
}

static void
copy_connection(const struct client *from, void *user)
{
	struct snapshot *s = user;
	const struct peer *peer = &from->peer;
	struct connection_state *c;

	s->connections =
		with_room(s, s->connections, s->connection_count, &s->connection_room, sizeof *c);
	if (s->failed)
		return;
	c = &s->connections[s->connection_count++];
	*c = (struct connection_state){
		.id = from->id,
		.phase = __atomic_load_n(&from->phase, __ATOMIC_RELAXED),
		.peer = copy_text(s, peer->text),
		.tls = peer->tls,
		.subject = copy_text(s, peer->subject),
		.fingerprint = copy_text(s, *peer->fingerprint != '\0' ? peer->fingerprint : NULL),
		.psk = copy_text(s, peer->psk),
		.export = copy_text(s, from->export),
		.target = copy_text(s, from->target),
		.initiator = copy_text(s, from->initiator),
		.since = from->since,
		.requests = __atomic_load_n(&from->requests, __ATOMIC_RELAXED),
		.received = __atomic_load_n(&from->received, __ATOMIC_RELAXED),
		.sent = __atomic_load_n(&from->sent, __ATOMIC_RELAXED),
	};
}

static void
copy_target(const struct target_state *from, void *user)
{
	struct snapshot *s = user;
	struct target_state *t;
	struct lun_state *luns = calloc(from->lun_count + 1, sizeof *luns);

	s->failed |= luns == NULL;
	s->targets = with_room(s, s->targets, s->target_count, &s->target_room, sizeof *t);
	if (s->failed) {
		free(luns);
		return;
	}
	t = &s->targets[s->target_count++];
	*t = *from;
	t->name = copy_text(s, from->name);
	t->luns = luns;
	for (unsigned i = 0; i < from->lun_count; i++) {
		luns[i] = from->luns[i];
		luns[i].export = copy_text(s, from->luns[i].export);
		luns[i].error = copy_text(s, from->luns[i].error);
	}
}

int
snapshot_take(struct snapshot *s, struct catalog *catalog, struct targets *targets,
	      struct clients *clients)
{
	*s = (struct snapshot){ 0 };
	if (catalog != NULL)
		catalog_each(catalog, copy_export, s);
	if (targets != NULL)
		targets_each(targets, copy_target, s);
	if (clients != NULL)
		clients_each(clients, copy_connection, s);
	if (!s->failed)
		return 0;
	snapshot_free(s);
	return -ENOMEM;
}

void
snapshot_free(struct snapshot *s)
{
	for (size_t i = 0; i < s->export_count; i++) {
		struct offer_state *o = &s->exports[i];

		free((char *)o->name);
		free((char *)o->description);
		free((char *)o->image);
		free((char *)o->error);
	}
	for (size_t i = 0; i < s->connection_count; i++) {
		struct connection_state *c = &s->connections[i];

		free(c->peer);
		free(c->subject);
		free(c->fingerprint);
		free(c->psk);
		free(c->export);
		free(c->target);
		free(c->initiator);
	}
	for (size_t i = 0; i < s->target_count; i++) {
		const struct target_state *t = &s->targets[i];

		free((char *)t->name);
		for (unsigned j = 0; j < t->lun_count; j++) {
			free((char *)t->luns[j].export);
			free((char *)t->luns[j].error);
		}
		free((struct lun_state *)t->luns);
	}
	free(s->exports);
	free(s->connections);
	free(s->targets);
	*s = (struct snapshot){ 0 };
}
