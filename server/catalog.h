/*
 * catalog.h - the exports on offer, by name, and who uses them.
 *
 * One catalog for all workers: a lock, held for short. An offer is one name and its settings,
 * and never changes; the image it stands for is the catalog's: its export once it is open, and
 * the sessions on it. Reloading makes new offers and retires old ones; sessions keep theirs
 * until they end.
 */
#ifndef CATALOG_H
#define CATALOG_H

#include "access.h"
#include "peer.h"
#include "platter.h"
#include "stats.h"

struct catalog;
struct client;
struct offer;
struct worker;

/* How many may use an export at a time. */
enum access_mode {
	ACCESS_SHARED,
	ACCESS_SINGLE_WRITER, /* the first one writes, the others get it read-only */
	ACCESS_EXCLUSIVE,     /* one session, which keeps it to itself even if a reload says else */
};

/* What an export is to be: filled by config.c, copied by the catalog. */
struct offer_settings {
	const char *name;        /* "": the default export */
	const char *description; /* for LIST and INFO; NULL: the export's own */
	const char *where; /* for messages of catalog_apply(): "platter.conf:12", "--export" */
	bool read_only;
	bool listed;              /* in LIST, for those who may have it */
	int tls;                  /* enum tls_policy, as strict as the server's at least */
	int access;               /* enum access_mode */
	uint64_t max_connections; /* 0: any number */
	const struct access_rules *rules;
	/* The driver's own. With `dir` and no `path` the offer stands for every image in that
	 * directory, by its file name; such an offer has the name "". */
	const struct pl_params *params;
};

/* Whether they are the same text, or both NULL. */
bool text_same(const char *a, const char *b);
/* Whether they have the same pairs, in any order; `but` (or NULL) is not looked at. */
bool params_same(const struct pl_params *a, const struct pl_params *b, const char *but);

int catalog_new(struct catalog **catalog, unsigned workers, struct pl_error *err);
void catalog_free(struct catalog *catalog); /* no session may be left */

/*
 * Makes these the exports on offer. What is the same goes on untouched; what differs in
 * access only is changed for new sessions; what is no longer there, differs in its driver's
 * options, or has failed to make data durable, is retired: hidden, its sessions go on. -EINVAL
 * (options, two of one name), -ENOMEM: nothing has changed. An export that cannot be opened is
 * logged and stays on offer: each client that asks for it has it tried again. One that may not
 * be written is served read-only, and logged. *opened: how many are open, or are a directory
 * that can be read. May block. This and catalog_retire(): from one thread at a time.
 */
int catalog_apply(struct catalog *catalog, const struct offer_settings *settings, unsigned count,
		  unsigned *opened, struct pl_error *err);

/* Hides it; hard: its sessions are cut, too, also those of one that was retired before. Errors:
 * -ENOENT. */
int catalog_retire(struct catalog *catalog, const char *name, bool hard, struct pl_error *err);

/* Looks whether images that are open have grown (name: only that export's; NULL: all), and makes
 * their exports larger: sessions that begin from now on see it. Errors: -ENOENT (no such export is
 * open), of the one that was named: what pl_export_grow() says; of all, those are logged. */
int catalog_grow(struct catalog *catalog, const char *name, struct pl_error *err);

/* What `peer` may have, in the order of the configuration; for LIST. A directory's images
 * included, by name: may block a little. Called without the lock. description: never NULL.
 * Errors: -ENOMEM. */
int catalog_list(struct catalog *catalog, const struct peer *peer,
		 void (*each)(void *user, const char *name, const char *description), void *user);

/*
 * The offer of that name, if peer may have it; takes a reference. Does not block.
 * Errors: -ENOENT (no such export), -EACCES (not for this peer), -EPROTONOSUPPORT (only by
 * TLS). err is for the peer's eyes.
 */
int catalog_find(struct catalog *catalog, const char *name, size_t length, const struct peer *peer,
		 struct offer **offer, struct pl_error *err);
void offer_put(struct offer *offer); /* may close the export, so may block a little */

/* Opens the export unless it is open. Blocks; any thread, also several at once. Errors: what
 * pl_export_open() says; -ENOENT when it was retired meanwhile. */
int offer_open(struct offer *offer, struct pl_error *err);

/* Of an open offer. Capabilities are those that a session begun now would have. */
const char *offer_name(const struct offer *offer);
const char *offer_description(const struct offer *offer);
const struct pl_geometry *offer_geometry(const struct offer *offer);
unsigned offer_capabilities(struct offer *offer);
bool offer_failed(const struct offer *offer); /* pl_export_failed() */
struct pl_export *offer_export(const struct offer *offer);

/* A connection's use of an export, from GO until its last request is done; or a logical unit's,
 * for as long as there is the unit. */
struct session {
	struct offer *offer;
	struct pl_channel *channel;
	struct stats *stats; /* the offer's on this worker */
	unsigned capabilities;
	uint64_t size;      /* bytes */
	uint32_t preferred; /* bytes */

	/* The catalog's. */
	struct worker *worker;
	struct client *client;
	void (*cut)(struct session *s);
	struct session *prev, *next;
};

/*
 * On the worker's thread, of an open offer; takes the reference to it over if it succeeds.
 * Errors: -EBUSY (its access mode or max_connections, err says which; or its access has changed
 * since it was found), -ENOENT (it was retired), what pl_channel_open() says.
 */
int session_begin(struct session *s, struct offer *offer, struct worker *worker,
		  struct client *client, struct pl_error *err);
/* The same for one that is no client's: a logical unit's. Where a client would be cut, cut(s) is
 * called: under the lock, so be short, on the thread of catalog_retire(); perhaps again and again,
 * until the session ends. */
int session_begin_alone(struct session *s, struct offer *offer, struct worker *worker,
			void (*cut)(struct session *s), struct pl_error *err);
void session_end(struct session *s); /* no request may be left */
/* Whether a session of offer, begun now, would be on the same device. */
bool session_is_of(const struct session *s, const struct offer *offer);

/* For the control socket: what there is, with counters summed over workers. */
struct offer_state {
	const char *name, *description, *image;
	bool open, retired, failed;
	bool directory; /* the offer itself: its images, those in use, are listed by their names */
	bool read_only;
	int access, tls;
	unsigned connections;
	unsigned capabilities;
	struct pl_geometry geometry;
	struct pl_counters counters; /* the core's */
	const char *error;           /* why it is not open, or NULL */
	struct stats stats;
};
/* Calls each under the lock: be short. Retired ones that still have sessions come last. */
void catalog_each(struct catalog *catalog, void (*each)(const struct offer_state *o, void *user),
		  void *user);

#endif
