/*
 * targets.h - the SCSI targets on offer: names, LUN maps, and who may log in.
 *
 * One set for all workers, under a lock that is held for short. A target lives on one worker, with
 * its units and all its sessions; its name and rules may be read from any. LUNs come, go and grow
 * by a reload, which posts the changes to the target's worker.
 */
#ifndef ISCSI_TARGETS_H
#define ISCSI_TARGETS_H

#include "../catalog.h"
#include "../peer.h"
#include "../worker.h"
#include "chap.h"
#include "scsi-emu.h"

struct target;
struct targets;
struct targets_plan;

/* ---- what is to be on offer: for config.c and main.c ------------------------------- */

#define TARGET_LUNS_MAX SCSI_LUNS

struct lun_settings {
	unsigned lun;
	const char *export; /* its name */
	const char *where;  /* for messages: "platter.conf:12", "--iscsi" */
	const char
		*initiators; /* who sees it, iSCSI names separated by ';'; NULL: whoever logs in */
	const struct pl_params *params; /* scsi_unit_options */
};

/* Filled by config.c, copied. */
struct target_settings {
	const char *name;       /* an iSCSI name */
	const char *where;      /* for messages */
	const char *initiators; /* who may log in, as above; NULL: any */
	const char *addresses;  /* networks separated by ';', "10.0.0.0/8;fe80::/64"; NULL: any */
	const char *chap;       /* file, see chap.h; or NULL: no authentication */
	const struct lun_settings *luns;
	unsigned lun_count;
};

/* Whether these could be applied: names, exports that exist and have no rules that iSCSI cannot
 * hold, each a LUN once, duplicates of serial or wwn. Opens nothing. Errors: -EINVAL, and the
 * sentence names place, key and value. */
int targets_check(const struct target_settings *settings, unsigned count,
		  const struct offer_settings *exports, unsigned export_count,
		  struct pl_error *err);

/* ---- the set ------------------------------------------------------------------------ */

/* state: the directory where identities and reservations are kept, see state.h. NULL: nowhere: an
 * identity lasts as long as the server, and reservations end with it. */
int targets_new(struct targets **targets, struct catalog *catalog, const char *state,
		struct pl_error *err);
void targets_free(struct targets *targets); /* after targets_stop() */

/*
 * A change is planned, and then applied; all that can be refused is refused before anything is
 * changed. targets_plan() checks and reads secrets, before privileges are dropped at the start.
 * targets_plan_load() reads identities, or makes them, as whoever the server has become. Errors:
 * -EINVAL, -ENOMEM, files.
 */
int targets_plan(struct targets *targets, const struct target_settings *settings, unsigned count,
		 struct targets_plan **plan, struct pl_error *err);
int targets_plan_load(struct targets *targets, struct targets_plan *plan, struct pl_error *err);
void targets_plan_free(struct targets_plan *plan); /* NULL: nothing */

/*
 * Makes these the targets on offer, on running workers, after catalog_apply(). LUNs that are new
 * are mapped, those that are gone or stand for another export now are removed, those whose image
 * has grown are resized; sessions go on. A target that is gone is closed to new logins, and its
 * sessions are told to end. A LUN whose export cannot be opened is logged, and missing until the
 * next reload. Takes plan over. *up, *missing: LUNs. From the main thread; may block. Errors:
 * -ENOMEM, nothing is changed then.
 */
int targets_apply(struct targets *targets, struct workers *workers, struct targets_plan *plan,
		  unsigned *up, unsigned *missing, struct pl_error *err);

/* After catalog_grow(): units learn what their exports' size is now. From the main thread. */
void targets_resize(struct targets *targets, struct workers *workers);

/* For the end, when no session is left: gives up all units and targets, and blocks until they
 * are. workers: NULL: they never ran. */
void targets_stop(struct targets *targets, struct workers *workers);

/* ---- who may have what: from any thread ---------------------------------------------- */

/* What an initiator may see, in the order of the configuration; the same rules as for login.
 * known: the secret that it has shown to know, or NULL. only: that name; NULL: all. Calls each
 * under the lock: be short. Returns how many there were. */
unsigned targets_list(struct targets *targets, const struct peer *peer, const char *initiator,
		      const struct chap_secrets *known, const char *only,
		      void (*each)(void *user, const char *name), void *user);
/* Whether any target that this initiator may see asks for CHAP: then discovery does, too, with
 * the secrets of all of them. *secrets: with a reference, or NULL. */
void targets_secrets(struct targets *targets, const struct peer *peer, const char *initiator,
		     struct chap_secrets **secrets);

/* The target of that name, if this initiator at this address may have it; takes a reference.
 * Errors: -ENOENT, -EACCES; err is for the log. */
int target_find(struct targets *targets, const char *name, const struct peer *peer,
		const char *initiator, struct target **target, struct pl_error *err);
void target_put(struct target *target);

const char *target_name(const struct target *target);
struct worker *target_worker(const struct target *target);
/* With a reference, or NULL: no authentication. */
struct chap_secrets *target_secrets(struct target *target);

/* ---- a session of it: on the target's worker ------------------------------------------ */

struct scsi_target *target_scsi(struct target *target);
/*
 * A session begins: maps the LUNs that this initiator may see into its new nexus, and keeps doing
 * so as they change, until it is let go. client is known by them from now on (clients_logged_in()),
 * and is told to shut down when the target goes. Errors: -ENOMEM; -ENOENT: the target has gone
 * meanwhile.
 */
int target_join(struct target *target, struct client *client, const char *initiator,
		struct scsi_nexus *nexus);
void target_leave(struct target *target, struct scsi_nexus *nexus); /* before its end */
/* The counters of the export behind a LUN, or NULL: what a command is counted in. */
struct stats *target_stats(struct target *target, unsigned lun);

/* ---- for the operator ------------------------------------------------------------------ */

struct lun_state {
	unsigned lun;
	const char *export;
	bool up;
	const char *error; /* why it is not, or NULL */
};
struct target_state {
	const char *name;
	unsigned worker, sessions;
	bool chap;
	const struct lun_state *luns;
	unsigned lun_count, luns_up, luns_missing;
};
/* Calls each under the lock: be short. */
void targets_each(struct targets *targets, void (*each)(const struct target_state *t, void *user),
		  void *user);

#endif
