/*
 * targets.c - the SCSI targets on offer: who may have them, and what a session finds.
 *
 * How they come, change and go is in apply.c.
 */
#include "../clients.h"
#include "target.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* ---- the set --------------------------------------------------------------------- */

int
targets_new(struct targets **out, struct catalog *catalog, const char *state, struct pl_error *err)
{
	struct targets *all = calloc(1, sizeof *all);
	pthread_condattr_t monotonic;

	if (all == NULL || (state != NULL && (all->directory = strdup(state)) == NULL)) {
		free(all);
		return pl_error_set(err, -ENOMEM, "targets");
	}
	all->catalog = catalog;
	pthread_mutex_init(&all->lock, NULL);
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	pthread_cond_init(&all->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	*out = all;
	return 0;
}

void
targets_free(struct targets *all)
{
	if (all == NULL)
		return;
	assert(all->alive == NULL);
	pthread_cond_destroy(&all->changed);
	pthread_mutex_destroy(&all->lock);
	free(all->directory);
	free(all);
}

struct target *
targets_find(const struct targets *all, const char *name)
{
	struct target *t;

	for (t = all->list; t != NULL && strcmp(t->name, name) != 0; t = t->next)
		;
	return t;
}

/* ---- a target -------------------------------------------------------------------- */

void
target_end(struct pl_work *work)
{
	struct target *t = (struct target *)((char *)work - offsetof(struct target, end_work));
	struct targets *all = t->all;
	struct target **at = &all->alive;

	assert(t->units == NULL && t->joined == NULL);
	scsi_target_free(t->scsi);
	pthread_mutex_lock(&all->lock);
	while (*at != t)
		at = &(*at)->next_alive;
	*at = t->next_alive;
	sheet_free(t->sheet);
	free(t->name);
	free(t);
	pthread_cond_broadcast(&all->changed);
	pthread_mutex_unlock(&all->lock);
}

void
target_put_locked(struct target *t)
{
	if (--t->references == 0)
		pl_loop_post(t->worker->loop, &t->end_work);
}

void
target_put(struct target *t)
{
	struct targets *all = t->all;

	pthread_mutex_lock(&all->lock);
	target_put_locked(t);
	pthread_mutex_unlock(&all->lock);
}

const char *
target_name(const struct target *t)
{
	return t->name;
}

struct worker *
target_worker(const struct target *t)
{
	return t->worker;
}

struct scsi_target *
target_scsi(struct target *t)
{
	return t->scsi;
}

struct unit *
target_unit(const struct target *t, unsigned number)
{
	struct unit *u;

	for (u = t->units; u != NULL && (u->removing || u->number != number); u = u->next)
		;
	return u;
}

/* ---- sessions, on the worker ------------------------------------------------------- */

int
target_join(struct target *t, struct client *client, const char *initiator,
	    struct scsi_nexus *nexus)
{
	struct joined *j = malloc(sizeof *j + strlen(initiator) + 1);
	bool gone;
	int error = 0;

	if (j == NULL)
		return -ENOMEM;
	pthread_mutex_lock(&t->all->lock);
	gone = t->gone;
	t->sessions += !gone;
	pthread_mutex_unlock(&t->all->lock);
	if (gone) {
		free(j);
		return -ENOENT;
	}
	strcpy(j->initiator, initiator);
	j->nexus = nexus;
	j->client = client;
	j->next = t->joined;
	t->joined = j;
	clients_logged_in(client, t->name, initiator);
	for (const struct unit *u = t->units; error == 0 && u != NULL; u = u->next)
		error = unit_map(u, nexus, initiator);
	if (error != 0) /* to whoever logs in, a disk must not be missing for want of memory */
		target_leave(t, nexus);
	return error;
}

void
target_leave(struct target *t, struct scsi_nexus *nexus)
{
	struct joined **at = &t->joined, *j;

	while ((*at)->nexus != nexus)
		at = &(*at)->next;
	j = *at;
	*at = j->next;
	free(j);
	pthread_mutex_lock(&t->all->lock);
	t->sessions--;
	pthread_mutex_unlock(&t->all->lock);
}

struct stats *
target_stats(struct target *t, unsigned lun)
{
	const struct unit *u = target_unit(t, lun);

	return u != NULL ? u->session.stats : NULL;
}

/* ---- who may have what ------------------------------------------------------------- */

static bool
may_have(const struct target *t, const struct peer *peer, const char *initiator)
{
	return iscsi_rules_allow_peer(t->sheet->rules, peer) &&
	       iscsi_rules_allow_name(t->sheet->rules, initiator);
}

unsigned
targets_list(struct targets *all, const struct peer *peer, const char *initiator,
	     const struct chap_secrets *known, const char *only,
	     void (*each)(void *user, const char *name), void *user)
{
	unsigned count = 0;

	pthread_mutex_lock(&all->lock);
	for (const struct target *t = all->list; t != NULL; t = t->next) {
		if ((only != NULL && strcmp(t->name, only) != 0) || !may_have(t, peer, initiator) ||
		    !chap_secrets_admit(t->sheet->secrets, known, initiator))
			continue;
		each(user, t->name);
		count++;
	}
	pthread_mutex_unlock(&all->lock);
	return count;
}

void
targets_secrets(struct targets *all, const struct peer *peer, const char *initiator,
		struct chap_secrets **secrets)
{
	*secrets = NULL;
	pthread_mutex_lock(&all->lock);
	for (const struct target *t = all->list; t != NULL; t = t->next) {
		if (t->sheet->secrets != NULL && may_have(t, peer, initiator) &&
		    chap_secrets_join(secrets, t->sheet->secrets) != 0)
			break; /* it has to be one of those before, then */
	}
	pthread_mutex_unlock(&all->lock);
}

/* Under the lock. */
static int
find(const struct targets *all, const char *name, const struct peer *peer, const char *initiator,
     struct target **out, struct pl_error *err)
{
	struct target *t = targets_find(all, name);

	if (t == NULL)
		return pl_error_say(err, -ENOENT, "there is no target %s", name);
	if (!iscsi_rules_allow_peer(t->sheet->rules, peer))
		return pl_error_say(err, -EACCES, "target %s is not for this address", name);
	if (!iscsi_rules_allow_name(t->sheet->rules, initiator))
		return pl_error_say(err, -EACCES, "target %s is not for initiator %s", name,
				    initiator);
	t->references++;
	*out = t;
	return 0;
}

int
target_find(struct targets *all, const char *name, const struct peer *peer, const char *initiator,
	    struct target **target, struct pl_error *err)
{
	int error;

	pthread_mutex_lock(&all->lock);
	error = find(all, name, peer, initiator, target, err);
	pthread_mutex_unlock(&all->lock);
	return error;
}

struct chap_secrets *
target_secrets(struct target *t)
{
	struct chap_secrets *secrets = NULL;

	pthread_mutex_lock(&t->all->lock);
	if (t->sheet->secrets != NULL)
		secrets = chap_secrets_get(t->sheet->secrets);
	pthread_mutex_unlock(&t->all->lock);
	return secrets;
}

/* ---- for the operator ---------------------------------------------------------------- */

void
targets_each(struct targets *all, void (*each)(const struct target_state *t, void *user),
	     void *user)
{
	pthread_mutex_lock(&all->lock);
	for (const struct target *t = all->list; t != NULL; t = t->next) {
		struct lun_state luns[TARGET_LUNS_MAX];
		struct target_state st = { .name = t->name,
					   .worker = t->worker->index,
					   .sessions = t->sessions,
					   .chap = t->sheet->secrets != NULL,
					   .luns = luns,
					   .lun_count = t->sheet->lun_count };

		for (unsigned i = 0; i < st.lun_count; i++) {
			const struct lun *lun = &t->sheet->luns[i];
			bool up = target_unit(t, lun->number) != NULL;

			luns[i] = (struct lun_state){ .lun = lun->number,
						      .export = lun->export,
						      .up = up,
						      .error = up ? NULL : lun->error };
			st.luns_up += up;
			st.luns_missing += !up;
		}
		each(&st, user);
	}
	pthread_mutex_unlock(&all->lock);
}
