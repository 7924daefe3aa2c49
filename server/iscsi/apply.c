/*
 * apply.c - targets become what the configuration says, while they are in use.
 *
 * The good path: a plan is made of the settings, and applied: targets that are new get a worker,
 * LUNs that are new become units there, and each unit is mapped into every session that may see
 * it. The main thread changes things, one after the other, by errands on the workers, and waits
 * for each.
 *
 * What can go wrong: a LUN's export cannot be opened or used (the LUN is missing, and its sheet
 * tells why), a unit that has to go has commands under way that take long (waited for, for
 * LEAVE_PATIENCE: then what was to take its place is missing until the next reload), a target
 * goes while somebody logs in (refused when the session wants to join), or has sessions (told to
 * end; its units are taken from them at once), an export is retired by force (its unit goes, and
 * the LUN is missing until the next reload).
 */
#include "../clients.h"
#include "target.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LEAVE_PATIENCE 2 /* seconds */

struct targets_plan {
	struct targets *all;
	struct sheet *sheets;
};

/* ---- errands: the main thread's, on one worker ------------------------------------- */

struct errand {
	void (*run)(struct errand *e);
	struct target *target; /* on whose worker */
	struct lun *lun;
	struct unit *unit;
	struct offer *offer;
	struct sheet *sheet;
	int error;
	struct pl_error *err;
};

static void
errand_on_each(struct worker *w, void *user)
{
	struct errand *e = user;

	if (w == e->target->worker)
		e->run(e);
}

static int
run_errand(struct workers *workers, struct errand *e)
{
	workers_each(workers, errand_on_each, e);
	return e->error;
}

/* ---- units, on the worker ---------------------------------------------------------- */

/* Under the lock: its line in the sheet, if it still has one. */
static struct lun *
lun_of(const struct target *t, unsigned number)
{
	for (unsigned i = 0; i < t->sheet->lun_count; i++) {
		if (t->sheet->luns[i].number == number)
			return &t->sheet->luns[i];
	}
	return NULL;
}

static void
unit_gone(struct unit *u)
{
	struct target *t = u->target;
	struct targets *all = t->all;
	struct unit **at = &t->units;

	log_debug("target %s: LUN %u is no more", t->name, u->number);
	pthread_mutex_lock(&all->lock);
	while (*at != u)
		at = &(*at)->next;
	*at = u->next;
	all->leaving--;
	target_put_locked(t);
	pthread_cond_broadcast(&all->changed);
	pthread_mutex_unlock(&all->lock);
	unit_free(u);
}

static void
unit_leave(struct unit *u)
{
	struct targets *all = u->target->all;

	if (u->removing)
		return;
	pthread_mutex_lock(&all->lock);
	u->removing = true;
	all->leaving++;
	pthread_mutex_unlock(&all->lock);
	unit_remove(u);
}

static void
lun_failed(struct target *t, unsigned number, const char *why)
{
	struct lun *lun;

	pthread_mutex_lock(&t->all->lock);
	lun = lun_of(t, number);
	if (lun != NULL) {
		free(lun->error);
		lun->error = strdup(why);
	}
	pthread_mutex_unlock(&t->all->lock);
}

static void
unit_was_cut(struct unit *u)
{
	static const char why[] = "its export was retired";

	log_info("target %s: LUN %u: %s", u->target->name, u->number, why);
	lun_failed(u->target, u->number, why);
	unit_leave(u);
}

static void
start_unit(struct errand *e)
{
	struct target *t = e->target;
	struct unit *u = e->unit;

	u->target = t;
	u->cut = unit_was_cut;
	u->gone = unit_gone;
	e->error = unit_start(u, t->scsi, e->offer, t->worker, e->err);
	if (e->error != 0)
		return;
	pthread_mutex_lock(&t->all->lock);
	u->next = t->units;
	t->units = u;
	t->references++;
	pthread_mutex_unlock(&t->all->lock);
	for (const struct joined *j = t->joined; j != NULL; j = j->next)
		unit_map(u, j->nexus, j->initiator);
}

/* ---- plans ------------------------------------------------------------------------- */

void
targets_plan_free(struct targets_plan *plan)
{
	struct sheet *s;

	if (plan == NULL)
		return;
	while ((s = plan->sheets) != NULL) {
		plan->sheets = s->next;
		sheet_free(s);
	}
	free(plan);
}

/* Of the targets before it: what one answers must not open another. */
static int
check_secrets(const struct sheet *first, const struct sheet *last, const char *where,
	      struct pl_error *err)
{
	for (const struct sheet *s = first; s != last; s = s->next) {
		if (s->secrets != NULL && last->secrets != NULL &&
		    chap_secrets_share(s->secrets, last->secrets))
			return pl_error_say(err, -EINVAL,
					    "%s: target %s: chap: a secret for those who log in is "
					    "here and at target %s the one of out; the two "
					    "directions must not share one",
					    where, last->name, s->name);
	}
	return 0;
}

int
targets_plan(struct targets *all, const struct target_settings *settings, unsigned count,
	     struct targets_plan **out, struct pl_error *err)
{
	struct targets_plan *plan = calloc(1, sizeof *plan);
	struct sheet **last;
	int error = 0;

	if (plan == NULL)
		return pl_error_set(err, -ENOMEM, "targets");
	plan->all = all;
	last = &plan->sheets;
	for (unsigned i = 0; i < count && error == 0; i++) {
		error = sheet_new(last, &settings[i], err);
		if (error != 0)
			break;
		error = check_secrets(plan->sheets, *last, settings[i].where, err);
		last = &(*last)->next;
	}
	if (error != 0) {
		targets_plan_free(plan);
		return error;
	}
	*out = plan;
	return 0;
}

/* Of the LUNs before this one: a file that was copied makes two disks of one name. */
static int
check_uuid(const struct sheet *first, const struct lun *lun, const uint8_t (*uuids)[16],
	   unsigned count, const char *directory, struct pl_error *err)
{
	unsigned n = 0;

	for (const struct sheet *s = first; s != NULL; s = s->next) {
		for (unsigned i = 0; i < s->lun_count && n < count; i++, n++) {
			if (memcmp(uuids[n], uuids[count], 16) == 0)
				return pl_error_say(err, -EINVAL,
						    "%s: exports \"%s\" and \"%s\" have one "
						    "identity: the state of one has been copied "
						    "from the other",
						    directory, s->luns[i].export, lun->export);
		}
	}
	return 0;
}

int
targets_plan_load(struct targets *all, struct targets_plan *plan, struct pl_error *err)
{
	struct state_unit unit;
	unsigned total = 0, count = 0;
	uint8_t(*uuids)[16];
	int error = 0;

	for (const struct sheet *s = plan->sheets; s != NULL; s = s->next)
		total += s->lun_count;
	if (all->directory == NULL || total == 0)
		return 0;
	uuids = malloc(total * sizeof *uuids);
	if (uuids == NULL)
		return pl_error_set(err, -ENOMEM, "targets");
	for (const struct sheet *s = plan->sheets; s != NULL; s = s->next) {
		for (unsigned i = 0; i < s->lun_count && error == 0; i++, count++) {
			error = state_load(all->directory, s->luns[i].export, &unit, err);
			if (error != 0)
				continue;
			free(unit.saved);
			memcpy(uuids[count], unit.uuid, sizeof unit.uuid);
			error = check_uuid(plan->sheets, &s->luns[i], (const uint8_t(*)[16])uuids,
					   count, all->directory, err);
		}
	}
	free(uuids);
	return error;
}

/* ---- making and giving up targets -------------------------------------------------- */

/* On each worker: the one with the fewest targets. */
struct choice {
	struct targets *all;
	struct worker *best;
	unsigned fewest;
};

static void
choose_worker(struct worker *w, void *user)
{
	struct choice *c = user;
	unsigned count = 0;

	pthread_mutex_lock(&c->all->lock);
	for (const struct target *t = c->all->alive; t != NULL; t = t->next_alive)
		count += t->worker == w;
	pthread_mutex_unlock(&c->all->lock);
	if (c->best == NULL || count < c->fewest) {
		c->best = w;
		c->fewest = count;
	}
}

static void
start_target(struct errand *e)
{
	e->error =
		scsi_target_new(&e->target->scsi, e->target->name, e->target->worker->loop, e->err);
}

/* With the list's reference, and not in it yet. */
static int
make_target(struct targets *all, struct workers *workers, const char *name, struct target **out,
	    struct pl_error *err)
{
	struct target *t = calloc(1, sizeof *t);
	struct choice choice = { .all = all };
	struct errand e = { .run = start_target, .target = t, .err = err };

	if (t == NULL || (t->name = strdup(name)) == NULL) {
		free(t);
		return pl_error_set(err, -ENOMEM, "target %s", name);
	}
	t->all = all;
	t->references = 1;
	t->end_work.run = target_end;
	workers_each(workers, choose_worker, &choice);
	t->worker = choice.best;
	if (run_errand(workers, &e) != 0) {
		free(t->name);
		free(t);
		return e.error;
	}
	pthread_mutex_lock(&all->lock);
	t->next_alive = all->alive;
	all->alive = t;
	pthread_mutex_unlock(&all->lock);
	*out = t;
	return 0;
}

static void
dismiss(struct errand *e)
{
	struct target *t = e->target;

	for (struct unit *u = t->units; u != NULL; u = u->next)
		unit_leave(u);
	for (const struct joined *j = t->joined; j != NULL; j = j->next)
		clients_order(j->client, CLIENT_SHUT_DOWN, "its target is no longer on offer");
}

/* It has left the list. */
static void
give_up(struct targets *all, struct workers *workers, struct target *t)
{
	struct errand e = { .run = dismiss, .target = t };

	pthread_mutex_lock(&all->lock);
	t->gone = true;
	pthread_mutex_unlock(&all->lock);
	run_errand(workers, &e);
	target_put(t);
}

/* ---- LUNs: which go, which stay, which come ---------------------------------------- */

/* For targets.c's own use of exports: what a LUN may be has no rules, see targets_check(). */
static int
find_export(struct targets *all, const char *name, struct offer **offer, struct pl_error *err)
{
	static const struct peer nobody = { .kind = PEER_PIPE };

	return catalog_find(all->catalog, name, strlen(name), &nobody, offer, err);
}

/* Whether the export that the unit has is still the one of that name. */
static bool
is_current(struct targets *all, const struct unit *u)
{
	struct pl_error err;
	struct offer *offer;
	bool current;

	if (find_export(all, u->export, &offer, &err) != 0)
		return false;
	current = session_is_of(&u->session, offer);
	offer_put(offer);
	return current;
}

/* Who may see it has changed: those who no longer may lose it, the others keep it. */
static void
change_initiators(struct target *t, struct unit *u, const struct lun *lun)
{
	char *initiators = lun->initiators != NULL ? strdup(lun->initiators) : NULL;
	struct iscsi_rules *rules = NULL;
	struct pl_error err;

	if ((lun->initiators != NULL && initiators == NULL) ||
	    iscsi_rules_new(&rules, initiators, NULL, &err) != 0) {
		log_error("target %s: LUN %u: initiators: no memory", t->name, u->number);
		free(initiators);
		return;
	}
	for (const struct joined *j = t->joined; j != NULL; j = j->next) {
		bool had = iscsi_rules_allow_name(u->rules, j->initiator);
		bool has = iscsi_rules_allow_name(rules, j->initiator);

		if (had != has)
			scsi_nexus_map(j->nexus, u->number, has ? u->lu : NULL);
	}
	iscsi_rules_free(u->rules);
	free(u->initiators);
	u->rules = rules;
	u->initiators = initiators;
}

/* The new sheet takes the place of the old one; what it has no line for goes. */
static void
take_sheet(struct errand *e)
{
	struct target *t = e->target;
	struct sheet *old = t->sheet;

	pthread_mutex_lock(&t->all->lock);
	t->sheet = e->sheet;
	pthread_mutex_unlock(&t->all->lock);
	sheet_free(old);
	for (struct unit *u = t->units; u != NULL; u = u->next) {
		const struct lun *lun = lun_of(t, u->number);

		if (u->removing)
			continue;
		if (lun == NULL || !unit_is(u, lun) || !is_current(t->all, u)) {
			log_info("target %s: LUN %u: export \"%s\" leaves", t->name, u->number,
				 u->export);
			unit_leave(u);
			continue;
		}
		if (!text_same(u->initiators, lun->initiators))
			change_initiators(t, u, lun);
		unit_resize(u);
	}
}

/* What comes may want what goes: its number, its export's file. Returns whether all have left. */
static bool
wait_for_leaving(struct targets *all)
{
	struct timespec until;
	bool left;

	clock_gettime(CLOCK_MONOTONIC, &until);
	until.tv_sec += LEAVE_PATIENCE;
	pthread_mutex_lock(&all->lock);
	while (all->leaving > 0 &&
	       pthread_cond_timedwait(&all->changed, &all->lock, &until) != ETIMEDOUT)
		;
	left = all->leaving == 0;
	pthread_mutex_unlock(&all->lock);
	return left;
}

/* Whether a unit that is being removed still has the export or the number. */
static bool
is_leaving(struct targets *all, const struct target *t, const struct lun *lun)
{
	bool found = false;

	pthread_mutex_lock(&all->lock);
	for (const struct target *of = all->alive; of != NULL; of = of->next_alive) {
		for (const struct unit *u = of->units; u != NULL; u = u->next)
			found |= u->removing && (strcmp(u->export, lun->export) == 0 ||
						 (of == t && u->number == lun->number));
	}
	pthread_mutex_unlock(&all->lock);
	return found;
}

static int
add_unit(struct targets *all, struct workers *workers, struct target *t, struct lun *lun,
	 struct pl_error *err)
{
	struct errand e = { .run = start_unit, .target = t, .err = err };
	int error;

	if (is_leaving(all, t, lun))
		return pl_error_say(err, -EBUSY,
				    "commands are under way to what was there before: reload "
				    "again");
	error = find_export(all, lun->export, &e.offer, err);
	if (error != 0)
		return error;
	error = offer_open(e.offer, err);
	if (error == 0)
		error = unit_new(&e.unit, lun, all->directory, err);
	if (error != 0) {
		offer_put(e.offer);
		return error;
	}
	error = run_errand(workers, &e);
	if (error != 0)
		unit_free(e.unit);
	return error;
}

/* Counts what there is then, and what there should be and is not. */
static void
add_units(struct targets *all, struct workers *workers, struct target *t, unsigned *up,
	  unsigned *missing)
{
	struct pl_error err;

	for (unsigned i = 0; i < t->sheet->lun_count; i++) {
		struct lun *lun = &t->sheet->luns[i];
		bool there;

		pthread_mutex_lock(&all->lock);
		there = target_unit(t, lun->number) != NULL;
		pthread_mutex_unlock(&all->lock);
		if (there || add_unit(all, workers, t, lun, &err) == 0) {
			if (!there)
				log_info("target %s: LUN %u: export \"%s\"", t->name, lun->number,
					 lun->export);
			++*up;
			continue;
		}
		++*missing;
		log_error("target %s: LUN %u: export \"%s\": %s", t->name, lun->number, lun->export,
			  err.text);
		lun_failed(t, lun->number, err.text);
	}
}

/* ---- applying ---------------------------------------------------------------------- */

/* A target for each sheet, old or new, in their order; NULL: no memory, and nothing is changed. */
static struct target **
targets_for(struct targets *all, struct workers *workers, const struct sheet *sheets,
	    unsigned count, struct pl_error *err)
{
	struct target **list = calloc(count + 1, sizeof *list);
	unsigned n = 0;

	if (list == NULL) {
		pl_error_set(err, -ENOMEM, "targets");
		return NULL;
	}
	for (const struct sheet *s = sheets; s != NULL; s = s->next, n++) {
		list[n] = targets_find(all, s->name);
		if (list[n] == NULL && make_target(all, workers, s->name, &list[n], err) != 0)
			break;
	}
	if (n == count)
		return list;
	while (n-- > 0) {
		if (targets_find(all, list[n]->name) == NULL)
			target_put(list[n]);
	}
	free(list);
	return NULL;
}

static bool
is_among(struct target *const *list, unsigned count, const struct target *t)
{
	for (unsigned i = 0; i < count; i++) {
		if (list[i] == t)
			return true;
	}
	return false;
}

/* The new list takes the place of the old one. Returns those of the old that are no longer in. */
static struct target *
exchange(struct targets *all, struct target *const *list, unsigned count)
{
	struct target *gone = NULL, *next;

	pthread_mutex_lock(&all->lock);
	for (struct target *t = all->list; t != NULL; t = next) {
		next = t->next;
		if (!is_among(list, count, t)) {
			t->next = gone;
			gone = t;
		}
	}
	all->list = count > 0 ? list[0] : NULL;
	for (unsigned i = 0; i < count; i++)
		list[i]->next = i + 1 < count ? list[i + 1] : NULL;
	pthread_mutex_unlock(&all->lock);
	return gone;
}

int
targets_apply(struct targets *all, struct workers *workers, struct targets_plan *plan, unsigned *up,
	      unsigned *missing, struct pl_error *err)
{
	struct target **list, *gone, *next;
	unsigned count = 0;

	for (const struct sheet *s = plan->sheets; s != NULL; s = s->next)
		count++;
	list = targets_for(all, workers, plan->sheets, count, err);
	if (list == NULL) {
		targets_plan_free(plan);
		return -ENOMEM;
	}
	for (unsigned i = 0; i < count; i++) {
		struct errand e = { .run = take_sheet, .target = list[i], .sheet = plan->sheets };

		plan->sheets = plan->sheets->next;
		run_errand(workers, &e);
	}
	gone = exchange(all, list, count);
	for (struct target *t = gone; t != NULL; t = next) {
		next = t->next;
		log_info("target %s: it is no longer on offer", t->name);
		give_up(all, workers, t);
	}
	if (!wait_for_leaving(all))
		log_warn("targets: a LUN that was to leave has commands under way");
	*up = *missing = 0;
	for (unsigned i = 0; i < count; i++)
		add_units(all, workers, list[i], up, missing);
	free(list);
	targets_plan_free(plan);
	return 0;
}

static void
resize_units(struct errand *e)
{
	for (struct unit *u = e->target->units; u != NULL; u = u->next)
		unit_resize(u);
}

void
targets_resize(struct targets *all, struct workers *workers)
{
	for (struct target *t = all->list; t != NULL; t = t->next) {
		struct errand e = { .run = resize_units, .target = t };

		run_errand(workers, &e);
	}
}

void
targets_stop(struct targets *all, struct workers *workers)
{
	struct target *next;

	for (struct target *t = exchange(all, NULL, 0); t != NULL; t = next) {
		next = t->next;
		give_up(all, workers, t);
	}
	pthread_mutex_lock(&all->lock);
	while (all->alive != NULL)
		pthread_cond_wait(&all->changed, &all->lock);
	pthread_mutex_unlock(&all->lock);
}
