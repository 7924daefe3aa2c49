/*
 * catalog.c - the exports on offer, and who uses them.
 *
 * Two things carry it. An offer is a name and its settings; it never changes, so that who holds
 * a reference may read it without the lock. An image is what an offer stands for: the export,
 * once it is open, a channel on each worker that uses it, and the sessions. An offer whose
 * access has changed is a new offer of the same image. The images of a directory get an offer
 * and an image when somebody asks for them, and lose them with the last who does.
 *
 * What can go wrong: an image cannot be opened (it stays as it is, and the next who asks has it
 * tried again), many ask for it at once (one opens it, the others wait), it is still being closed
 * by somebody else and so in use (waited for), a reload comes between asking for an export and
 * its session (then the session is refused).
 */
#include "catalog.h"

#include "clients.h"
#include "privsep.h"
#include "worker.h"

#include <assert.h>
#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* An image on one worker; but for the stats only that worker's thread looks at it. */
struct usage {
	struct pl_channel *channel; /* open while there are sessions */
	unsigned sessions;
	struct stats stats;
};

/* All but the first three under the catalog's lock. */
struct image {
	char *name;
	struct pl_params *params;
	bool read_only, directory; /* directory: it is one of a directory's images */
	unsigned references;
	bool retired;             /* no offer that is to be had stands for it */
	bool opening;             /* by one thread; the others wait */
	struct pl_export *export; /* does not change any more, once it is there */
	char *error;              /* why it could not be opened */
	dev_t device;             /* of the file that is open, if it is one: what stat(2) says */
	ino_t inode;
	struct session *sessions;
	unsigned session_count;
	struct image *prev, *next;
	struct usage on[]; /* each worker */
};

struct offer {
	struct catalog *catalog;
	unsigned references;
	struct offer_settings set;
	struct offer *from;  /* the directory's offer whose settings it has, or NULL */
	struct image *image; /* NULL: a directory's offer */
	bool gone;           /* no longer to be had; not of those with `from` */
	struct offer *next;
};

/* What was retired is no longer to be had, from the directory of the same catalog either. */
struct retired {
	struct retired *next;
	char name[];
};

struct catalog {
	pthread_mutex_t lock;
	pthread_cond_t changed; /* an image has been opened, or not, or closed */
	unsigned workers;
	struct offer *offers;    /* that are to be had, in the order of the configuration */
	struct image *images;    /* all there are */
	struct retired *retired; /* since the last reload */
	unsigned closing;        /* exports that are being closed, without the lock */
	uint64_t closed;         /* that have been */
};

int
catalog_new(struct catalog **out, unsigned workers, struct pl_error *err)
{
	struct catalog *c = calloc(1, sizeof *c);

	if (c == NULL)
		return pl_error_set(err, -ENOMEM, "catalog");
	c->workers = workers;
	pthread_mutex_init(&c->lock, NULL);
	pthread_cond_init(&c->changed, NULL);
	*out = c;
	return 0;
}

/* Under the lock. */
static void
forget_retired(struct catalog *c)
{
	struct retired *r;

	while ((r = c->retired) != NULL) {
		c->retired = r->next;
		free(r);
	}
}

void
catalog_free(struct catalog *c)
{
	struct offer *o;

	forget_retired(c);
	while ((o = c->offers) != NULL) {
		c->offers = o->next;
		offer_put(o);
	}
	assert(c->images == NULL);
	pthread_cond_destroy(&c->changed);
	pthread_mutex_destroy(&c->lock);
	free(c);
}

/* ---- settings -------------------------------------------------------------------- */

/* Whether the offer stands for the images of a directory. */
static bool
is_directory(const struct offer_settings *set)
{
	return pl_params_get(set->params, "path") == NULL &&
	       pl_params_get(set->params, "dir") != NULL;
}

/* One plain file name, and not a hidden one; it also goes into the log. */
static bool
name_is_plain(const char *name)
{
	if (*name == '\0' || *name == '.')
		return false;
	for (const char *p = name; *p != '\0'; p++) {
		if (*p == '/' || (unsigned char)*p < ' ' || *p == '\x7f')
			return false;
	}
	return true;
}

/* The parameters of one of its images. NULL: no memory. */
static struct pl_params *
params_of(const struct offer_settings *directory, const char *name)
{
	struct pl_params *p = pl_params_copy(directory->params);

	if (p != NULL && pl_params_add(p, "path", name, NULL) == 0)
		return p;
	pl_params_free(p);
	return NULL;
}

/* Whether every pair of a is in b; `but` (or NULL) is not looked at. */
static bool
params_within(const struct pl_params *a, const struct pl_params *b, const char *but)
{
	for (unsigned i = 0; i < pl_params_count(a); i++) {
		const char *key = pl_params_key(a, i);
		const char *value = pl_params_get(b, key);

		if (but != NULL && strcmp(key, but) == 0)
			continue;
		if (value == NULL || strcmp(value, pl_params_value(a, i)) != 0)
			return false;
	}
	return true;
}

bool
params_same(const struct pl_params *a, const struct pl_params *b, const char *but)
{
	return params_within(a, b, but) && params_within(b, a, but);
}

bool
text_same(const char *a, const char *b)
{
	return a == NULL || b == NULL ? a == b : strcmp(a, b) == 0;
}

/* But for where they were found. */
static bool
settings_same(const struct offer_settings *a, const struct offer_settings *b)
{
	return strcmp(a->name, b->name) == 0 && text_same(a->description, b->description) &&
	       a->read_only == b->read_only && a->listed == b->listed && a->tls == b->tls &&
	       a->access == b->access && a->max_connections == b->max_connections &&
	       access_rules_same(a->rules, b->rules) && params_same(a->params, b->params, NULL);
}

/* ---- images ---------------------------------------------------------------------- */

/* Takes params over, if it succeeds. */
static struct image *
image_new(const struct catalog *c, const char *name, struct pl_params *params, bool read_only)
{
	struct image *im = calloc(1, sizeof *im + c->workers * sizeof im->on[0]);

	if (im == NULL)
		return NULL;
	im->name = strdup(name);
	if (im->name == NULL) {
		free(im);
		return NULL;
	}
	im->params = params;
	im->read_only = read_only;
	im->references = 1;
	return im;
}

static void
image_free(struct image *im)
{
	free(im->name);
	pl_params_free(im->params);
	free(im->error);
	free(im);
}

/* From here to the end of this part: under the lock. */

static void
image_add(struct catalog *c, struct image *im)
{
	im->next = c->images;
	if (im->next != NULL)
		im->next->prev = im;
	c->images = im;
}

/* Unlocks for as long as the export is being closed. */
static void
image_put(struct catalog *c, struct image *im)
{
	if (--im->references > 0)
		return;
	assert(im->sessions == NULL && !im->opening);
	if (im->next != NULL)
		im->next->prev = im->prev;
	*(im->prev != NULL ? &im->prev->next : &c->images) = im->next;
	if (im->export != NULL) {
		c->closing++;
		pthread_mutex_unlock(&c->lock);
		pl_export_close(im->export);
		pthread_mutex_lock(&c->lock);
		c->closing--;
		c->closed++;
		pthread_cond_broadcast(&c->changed);
	}
	image_free(im);
}

static bool
image_failed(const struct image *im)
{
	return im->export != NULL && pl_export_failed(im->export);
}

/* Whether it is what an offer with these settings stands for, or one of its directory's. */
static bool
image_suits(const struct image *im, const struct offer_settings *set)
{
	bool directory = is_directory(set);

	return im->directory == directory && im->read_only == set->read_only && !image_failed(im) &&
	       (directory ? params_same(im->params, set->params, "path")
			  : strcmp(im->name, set->name) == 0 &&
				    params_same(im->params, set->params, NULL));
}

static struct image *
image_find(struct catalog *c, const struct offer_settings *set)
{
	struct image *im;

	for (im = c->images; im != NULL && !image_suits(im, set); im = im->next)
		;
	return im;
}

/* Retires those that no offer stands for any more. */
static void
retire_images(struct catalog *c)
{
	for (struct image *im = c->images; im != NULL; im = im->next) {
		im->retired = true;
		for (const struct offer *o = c->offers; o != NULL; o = o->next) {
			if (o->image == im || (o->image == NULL && image_suits(im, &o->set)))
				im->retired = false;
		}
	}
}

/* ---- opening --------------------------------------------------------------------- */

/* Which file an image is; inode 0: none. */
static void
find_file(const struct pl_params *params, struct stat *st)
{
	const char *path = pl_params_get(params, "path"), *dir = pl_params_get(params, "dir");
	char file[4096];

	*st = (struct stat){ 0 };
	if (path == NULL)
		return;
	snprintf(file, sizeof file, "%s%s%s", dir != NULL ? dir : "", dir != NULL ? "/" : "", path);
	if (stat(file, st) != 0)
		*st = (struct stat){ 0 };
}

/* Under the lock: says so if it is another export here that has the file. */
static void
explain_busy(const struct catalog *c, const struct stat *st, struct pl_error *err)
{
	size_t length = strlen(err->text);

	for (const struct image *im = c->images; im != NULL && st->st_ino != 0; im = im->next) {
		if (im->device != st->st_dev || im->inode != st->st_ino)
			continue;
		snprintf(err->text + length, sizeof err->text - length,
			 " (export \"%s\" of this server has it%s)", im->name,
			 im->retired ? ", retired but not yet left by its clients" : "");
		return;
	}
}

/* Under the lock: an export has been closed since, or it is waited for. */
static bool
wait_for_close(struct catalog *c, uint64_t since)
{
	while (c->closing > 0 && c->closed == since)
		pthread_cond_wait(&c->changed, &c->lock);
	return c->closed != since;
}

/* Under the lock, which is given up meanwhile. */
static int
image_open(struct catalog *c, struct image *im, struct pl_error *err)
{
	struct pl_export *ex = NULL;
	struct stat st;
	uint64_t closed;
	int error;

	im->opening = true;
	do {
		closed = c->closed;
		pthread_mutex_unlock(&c->lock);
		error = pl_export_open(im->params,
				       im->read_only ? PL_OPEN_READ_ONLY : PL_OPEN_FALL_BACK, &ex,
				       err);
		find_file(im->params, &st);
		pthread_mutex_lock(&c->lock);
	} while (error == -EBUSY && wait_for_close(c, closed));
	if (error == -EBUSY)
		explain_busy(c, &st, err);
	else if (error != 0)
		privsep_explain(err);
	im->opening = false;
	if (error == 0) {
		im->export = ex;
		im->device = st.st_dev;
		im->inode = st.st_ino;
	}
	free(im->error);
	im->error = error != 0 ? strdup(err->text) : NULL;
	pthread_cond_broadcast(&c->changed);
	return error;
}

int
offer_open(struct offer *o, struct pl_error *err)
{
	struct catalog *c = o->catalog;
	struct image *im = o->image;
	struct pl_error own;
	int error = 0;

	pthread_mutex_lock(&c->lock);
	while (im->export == NULL && error == 0) {
		if (im->opening)
			pthread_cond_wait(&c->changed, &c->lock);
		else if (im->retired)
			error = pl_error_say(err, -ENOENT, "it is no longer on offer");
		else
			error = image_open(c, im, err != NULL ? err : &own);
	}
	pthread_mutex_unlock(&c->lock);
	return error;
}

/* ---- offers ---------------------------------------------------------------------- */

static void
offer_free(struct offer *o)
{
	free((char *)o->set.name);
	if (o->from == NULL) {
		free((char *)o->set.description);
		access_rules_free((struct access_rules *)o->set.rules);
		pl_params_free((struct pl_params *)o->set.params);
	}
	free(o);
}

/* With a copy of the settings, and an image of its own that the catalog does not know yet. */
static struct offer *
offer_new(struct catalog *c, const struct offer_settings *set)
{
	struct offer *o = calloc(1, sizeof *o);
	struct pl_params *params = NULL;

	if (o == NULL)
		return NULL;
	o->catalog = c;
	o->references = 1;
	o->set = *set;
	o->set.where = NULL; /* the caller's */
	o->set.name = strdup(set->name);
	o->set.description = set->description != NULL ? strdup(set->description) : NULL;
	o->set.rules = access_rules_copy(set->rules);
	o->set.params = pl_params_copy(set->params);
	if (o->set.name == NULL || o->set.params == NULL ||
	    (set->description != NULL && o->set.description == NULL))
		goto fail;
	if (is_directory(set))
		return o;
	params = pl_params_copy(set->params);
	if (params != NULL)
		o->image = image_new(c, set->name, params, set->read_only);
	if (o->image != NULL)
		return o;
	pl_params_free(params);
fail:
	offer_free(o);
	return NULL;
}

/* Of one of a directory's images; under the lock. */
static struct offer *
offer_new_in(struct offer *directory, const char *name)
{
	struct catalog *c = directory->catalog;
	struct offer *o = calloc(1, sizeof *o);
	struct pl_params *params = params_of(&directory->set, name);
	struct image *im;

	if (o != NULL)
		o->set.name = strdup(name);
	if (o == NULL || o->set.name == NULL || params == NULL)
		goto fail;
	for (im = c->images; im != NULL; im = im->next) {
		if (strcmp(im->name, name) == 0 && image_suits(im, &directory->set))
			break;
	}
	if (im != NULL) {
		im->references++;
		pl_params_free(params);
	} else {
		im = image_new(c, name, params, directory->set.read_only);
		if (im == NULL)
			goto fail;
		im->directory = true;
		image_add(c, im);
	}
	o->catalog = c;
	o->references = 1;
	name = o->set.name;
	o->set = directory->set;
	o->set.name = name;
	o->from = directory;
	directory->references++;
	o->image = im;
	return o;
fail:
	pl_params_free(params);
	if (o != NULL)
		free((char *)o->set.name);
	free(o);
	return NULL;
}

/* Under the lock, which is given up while an export is closed. */
static void
offer_put_locked(struct catalog *c, struct offer *o)
{
	struct offer *from;

	for (; o != NULL && --o->references == 0; o = from) {
		from = o->from;
		if (o->image != NULL)
			image_put(c, o->image);
		offer_free(o);
	}
}

void
offer_put(struct offer *o)
{
	struct catalog *c = o->catalog;

	pthread_mutex_lock(&c->lock);
	offer_put_locked(c, o);
	pthread_mutex_unlock(&c->lock);
}

const char *
offer_name(const struct offer *o)
{
	return o->set.name;
}

const char *
offer_description(const struct offer *o)
{
	return o->set.description != NULL ? o->set.description
					  : pl_export_description(o->image->export);
}

const struct pl_geometry *
offer_geometry(const struct offer *o)
{
	return pl_export_geometry(o->image->export);
}

bool
offer_failed(const struct offer *o)
{
	return pl_export_failed(o->image->export);
}

struct pl_export *
offer_export(const struct offer *o)
{
	return o->image->export;
}

/* ---- what is to be on offer ------------------------------------------------------ */

static int
check_settings(const struct offer_settings *set, struct pl_error *err)
{
	struct pl_params *p = is_directory(set) ? params_of(set, "name") : NULL;
	struct pl_error why;
	int error;

	if (is_directory(set) && p == NULL)
		return pl_error_set(err, -ENOMEM, "%s", set->where);
	error = pl_export_check(p != NULL ? p : set->params, &why);
	pl_params_free(p);
	if (error != 0)
		return pl_error_say(err, error, "%s: export \"%s\": %s", set->where, set->name,
				    why.text);
	if (is_directory(set) && *set->name != '\0')
		return pl_error_say(err, -EINVAL,
				    "%s: export \"%s\": dir=%s without a path stands for the "
				    "images in it, by their names: it has no name of its own",
				    set->where, set->name, pl_params_get(set->params, "dir"));
	return 0;
}

static int
check_names(const struct offer_settings *set, unsigned count, struct pl_error *err)
{
	for (unsigned i = 1; i < count; i++) {
		for (unsigned j = 0; j < i; j++) {
			if (strcmp(set[i].name, set[j].name) != 0)
				continue;
			return pl_error_say(err, -EINVAL,
					    "%s: export \"%s\": there is one of that name "
					    "already, at %s",
					    set[i].where, set[i].name, set[j].where);
		}
	}
	return 0;
}

/* Makes the new list, which nobody sees yet. */
static int
make_offers(struct catalog *c, const struct offer_settings *set, unsigned count,
	    struct offer **list, struct pl_error *err)
{
	struct offer **last = list;

	*list = NULL;
	for (unsigned i = 0; i < count; i++) {
		*last = offer_new(c, &set[i]);
		if (*last == NULL)
			return pl_error_set(err, -ENOMEM, "%s: export \"%s\"", set[i].where,
					    set[i].name);
		last = &(*last)->next;
	}
	return 0;
}

static void
discard_offers(struct offer *list)
{
	struct offer *next;

	for (struct offer *o = list; o != NULL; o = next) {
		next = o->next;
		if (o->image != NULL)
			image_free(o->image);
		offer_free(o);
	}
}

/* The old offer that can stay for the new one, out of its list, or NULL. */
static struct offer *
take_same(struct offer **old, const struct offer *fresh)
{
	for (struct offer **at = old, *o; (o = *at) != NULL; at = &o->next) {
		if (!settings_same(&o->set, &fresh->set) ||
		    (o->image != NULL && image_failed(o->image)))
			continue;
		*at = o->next;
		o->next = NULL;
		return o;
	}
	return NULL;
}

/* Gives a new offer the image there is, if there is one that suits. */
static void
settle_image(struct catalog *c, struct offer *o)
{
	struct image *im;

	if (o->image == NULL)
		return;
	im = image_find(c, &o->set);
	if (im == NULL) {
		image_add(c, o->image);
		return;
	}
	image_free(o->image);
	o->image = im;
	im->references++;
}

/* Under the lock: the new list takes the place of the old one. Returns what is left of that. */
static struct offer *
exchange(struct catalog *c, struct offer *fresh)
{
	struct offer *old = c->offers, **last = &c->offers, *next;

	for (; fresh != NULL; fresh = next) {
		struct offer *same = take_same(&old, fresh);

		next = fresh->next;
		fresh->next = NULL;
		if (same == NULL)
			settle_image(c, fresh);
		*last = same != NULL ? same : fresh;
		last = &(*last)->next;
		if (same != NULL)
			discard_offers(fresh);
	}
	*last = NULL;
	for (struct offer *o = old; o != NULL; o = o->next)
		o->gone = true;
	forget_retired(c);
	retire_images(c);
	return old;
}

static int
try_directory(const struct offer *o, struct pl_error *err)
{
	const char *path = pl_params_get(o->set.params, "dir");
	DIR *dir = opendir(path);

	if (dir == NULL)
		return pl_error_set(err, -errno, "dir=%s: open", path);
	closedir(dir);
	return 0;
}

/* Returns how many are open then. The list is ours: only this thread changes it. */
static unsigned
open_all(struct catalog *c)
{
	struct pl_error err;
	unsigned opened = 0;

	for (struct offer *o = c->offers; o != NULL; o = o->next) {
		int error = o->image == NULL ? try_directory(o, &err) : offer_open(o, &err);

		if (error != 0)
			log_error("export \"%s\": %s", o->set.name, err.text);
		opened += error == 0;
	}
	return opened;
}

static void
put_all(struct catalog *c, struct offer *list)
{
	struct offer *next;

	pthread_mutex_lock(&c->lock);
	for (struct offer *o = list; o != NULL; o = next) {
		next = o->next;
		offer_put_locked(c, o);
	}
	pthread_mutex_unlock(&c->lock);
}

int
catalog_apply(struct catalog *c, const struct offer_settings *set, unsigned count, unsigned *opened,
	      struct pl_error *err)
{
	struct offer *fresh, *old;
	int error = check_names(set, count, err);

	for (unsigned i = 0; i < count && error == 0; i++)
		error = check_settings(&set[i], err);
	if (error != 0)
		return error;
	error = make_offers(c, set, count, &fresh, err);
	if (error != 0) {
		discard_offers(fresh);
		return error;
	}
	pthread_mutex_lock(&c->lock);
	old = exchange(c, fresh);
	pthread_mutex_unlock(&c->lock);
	put_all(c, old); /* first, since the new ones may want the same files */
	*opened = open_all(c);
	return 0;
}

/* Under the lock. Returns whether there was anything to cut. */
static bool
cut_retired(struct catalog *c, const char *name)
{
	bool found = false;

	for (struct image *im = c->images; im != NULL; im = im->next) {
		if (!im->retired || (strcmp(im->name, name) != 0 && !(im->directory && !*name)))
			continue;
		for (struct session *s = im->sessions; s != NULL; s = s->next) {
			if (s->client != NULL)
				clients_order(s->client, CLIENT_CUT, "its export was retired");
			else
				s->cut(s);
			found = true;
		}
	}
	return found;
}

int
catalog_retire(struct catalog *c, const char *name, bool hard, struct pl_error *err)
{
	struct retired *retired = malloc(sizeof *retired + strlen(name) + 1);
	struct offer **at, *o;
	bool found;

	if (retired == NULL)
		return pl_error_set(err, -ENOMEM, "retire");
	strcpy(retired->name, name);
	pthread_mutex_lock(&c->lock);
	for (at = &c->offers; *at != NULL && strcmp((*at)->set.name, name) != 0; at = &(*at)->next)
		;
	o = *at;
	if (o != NULL) {
		*at = o->next;
		o->gone = true;
		retired->next = c->retired;
		c->retired = retired;
		retired = NULL;
		retire_images(c);
	}
	found = hard && cut_retired(c, name);
	if (o != NULL)
		offer_put_locked(c, o);
	pthread_mutex_unlock(&c->lock);
	free(retired);
	if (o == NULL && !found)
		return pl_error_say(err, -ENOENT, "there is no export \"%s\" to retire", name);
	return 0;
}

/* ---- images that grow ------------------------------------------------------------ */

/* Those that are open and on offer, each with a reference. NULL: no memory. */
static struct image **
take_open(struct catalog *c, const char *name, unsigned *count)
{
	struct image **list;
	unsigned all = 0;

	*count = 0;
	pthread_mutex_lock(&c->lock);
	for (const struct image *im = c->images; im != NULL; im = im->next)
		all++;
	list = calloc(all + 1, sizeof(struct image *));
	for (struct image *im = c->images; im != NULL && list != NULL; im = im->next) {
		if (im->export == NULL || im->retired ||
		    (name != NULL && strcmp(im->name, name) != 0))
			continue;
		im->references++;
		list[(*count)++] = im;
	}
	pthread_mutex_unlock(&c->lock);
	return list;
}

static int
grow(const struct image *im, struct pl_error *err)
{
	struct pl_error why;
	bool grown = false;
	int error = pl_export_grow(im->export, &grown, &why);

	if (grown)
		log_info("export \"%s\": it has %llu bytes now", im->name,
			 (unsigned long long)pl_export_geometry(im->export)->size);
	return error == 0 ? 0 : pl_error_say(err, error, "export \"%s\": %s", im->name, why.text);
}

int
catalog_grow(struct catalog *c, const char *name, struct pl_error *err)
{
	struct pl_error why;
	unsigned count;
	struct image **list = take_open(c, name, &count);
	int error = 0;

	if (list == NULL)
		return pl_error_set(err, -ENOMEM, "exports that have grown");
	if (count == 0 && name != NULL)
		error = pl_error_say(err, -ENOENT, "there is no export \"%s\" that is open", name);
	for (unsigned i = 0; i < count; i++) {
		int failed = grow(list[i], &why);

		if (failed != 0 && name != NULL)
			error = pl_error_say(err, failed, "%s", why.text);
		else if (failed != 0 && failed != -EOPNOTSUPP)
			log_warn("%s", why.text);
		pthread_mutex_lock(&c->lock);
		image_put(c, list[i]);
		pthread_mutex_unlock(&c->lock);
	}
	free(list);
	return error;
}

/* ---- what a peer may have -------------------------------------------------------- */

static int
check_peer(const struct offer_settings *set, const struct peer *peer)
{
	if (set->tls == TLS_REQUIRED && !peer->tls)
		return -EPROTONOSUPPORT;
	return access_allows(set->rules, peer) ? 0 : -EACCES;
}

static struct offer *
find_static(struct catalog *c, const char *name)
{
	struct offer *o;

	for (o = c->offers; o != NULL; o = o->next) {
		if (o->image != NULL && strcmp(o->set.name, name) == 0)
			break;
	}
	return o;
}

/* NULL: there is none, or an export of its own has or had that name. */
static struct offer *
find_directory(struct catalog *c, const char *name)
{
	struct offer *o;

	for (const struct retired *r = c->retired; r != NULL; r = r->next) {
		if (strcmp(r->name, name) == 0)
			return NULL;
	}
	if (find_static(c, name) != NULL || !name_is_plain(name))
		return NULL;

	for (o = c->offers; o != NULL && o->image != NULL; o = o->next)
		;
	return o;
}

static int
refuse_unknown(const char *name, struct pl_error *err)
{
	if (*name == '\0')
		return pl_error_say(err, -ENOENT,
				    "there is no default export, so one must be asked for by its "
				    "name");
	return pl_error_say(err, -ENOENT, "there is no export \"%s\"", name);
}

/* Under the lock. */
static int
find(struct catalog *c, const char *name, const struct peer *peer, struct offer **out,
     struct pl_error *err)
{
	struct offer *o = find_static(c, name);
	int error;

	if (o == NULL)
		o = find_directory(c, name);
	if (o == NULL)
		return refuse_unknown(name, err);
	error = check_peer(&o->set, peer);
	if (error == -EPROTONOSUPPORT)
		return pl_error_say(err, error, "export \"%s\" is to be had by TLS only", name);
	if (error != 0)
		return pl_error_say(err, error, "export \"%s\" is not for this client", name);
	if (o->image == NULL) {
		o = offer_new_in(o, name);
		if (o == NULL)
			return pl_error_set(err, -ENOMEM, "export \"%s\"", name);
	} else {
		o->references++;
	}
	*out = o;
	return 0;
}

int
catalog_find(struct catalog *c, const char *name, size_t length, const struct peer *peer,
	     struct offer **offer, struct pl_error *err)
{
	char *text = strndup(name, length);
	int error;

	if (text == NULL)
		return pl_error_set(err, -ENOMEM, "export");
	pthread_mutex_lock(&c->lock);
	error = strlen(text) == length ? find(c, text, peer, offer, err)
				       : pl_error_say(err, -ENOENT, "an export's name has no NUL");
	pthread_mutex_unlock(&c->lock);
	free(text);
	if (error == 0)
		return 0;
	pl_text_clean(err->text); /* the peer's terminal gets it, too */
	return error;
}

/* What LIST shows: a snapshot, so that nobody waits for a directory to be read. */
struct listing {
	struct offer **offers;
	unsigned count;
};

static int
listing_take(struct catalog *c, const struct peer *peer, struct listing *l)
{
	unsigned all = 0;

	*l = (struct listing){ 0 };
	pthread_mutex_lock(&c->lock);
	for (struct offer *o = c->offers; o != NULL; o = o->next)
		all++;
	l->offers = calloc(all + 1, sizeof(struct offer *));
	for (struct offer *o = c->offers; o != NULL && l->offers != NULL; o = o->next) {
		if (!o->set.listed || check_peer(&o->set, peer) != 0)
			continue;
		o->references++;
		l->offers[l->count++] = o;
	}
	pthread_mutex_unlock(&c->lock);
	return l->offers != NULL ? 0 : -ENOMEM;
}

static void
listing_free(struct listing *l)
{
	for (unsigned i = 0; i < l->count; i++)
		offer_put(l->offers[i]);
	free(l->offers);
}

/* "": it has none, or is not open. */
static const char *
description_if_open(struct offer *o)
{
	struct catalog *c = o->catalog;
	bool open;

	if (o->set.description != NULL)
		return o->set.description;
	pthread_mutex_lock(&c->lock);
	open = o->image->export != NULL;
	pthread_mutex_unlock(&c->lock);
	return open ? offer_description(o) : "";
}

/* An export of its own that has the name of one of the directory's images hides it. */
static bool
is_shown(struct catalog *c, const char *path, const char *name)
{
	char file[4096];
	struct stat st;
	bool shown;

	if (!name_is_plain(name) ||
	    snprintf(file, sizeof file, "%s/%s", path, name) >= (int)sizeof file ||
	    lstat(file, &st) != 0 || !S_ISREG(st.st_mode))
		return false;
	pthread_mutex_lock(&c->lock);
	shown = find_directory(c, name) != NULL;
	pthread_mutex_unlock(&c->lock);
	return shown;
}

static void
list_directory(const struct offer *o,
	       void (*each)(void *user, const char *name, const char *description), void *user)
{
	const char *path = pl_params_get(o->set.params, "dir");
	struct dirent **entries;
	int n = scandir(path, &entries, NULL, alphasort);

	if (n == -1) {
		log_warn("dir=%s: %s", path, strerror(errno));
		return;
	}
	for (int i = 0; i < n; i++) {
		if (is_shown(o->catalog, path, entries[i]->d_name))
			each(user, entries[i]->d_name,
			     o->set.description != NULL ? o->set.description : "");
		free(entries[i]);
	}
	free(entries);
}

int
catalog_list(struct catalog *c, const struct peer *peer,
	     void (*each)(void *user, const char *name, const char *description), void *user)
{
	struct listing l;
	int error = listing_take(c, peer, &l);

	for (unsigned i = 0; i < l.count; i++) {
		struct offer *o = l.offers[i];

		if (o->image == NULL)
			list_directory(o, each, user);
		else
			each(user, o->set.name, description_if_open(o));
	}
	listing_free(&l);
	return error;
}

/* ---- sessions -------------------------------------------------------------------- */

/* Whether a session begun now would have the image to write, if it can be written at all. */
static bool
may_write(const struct image *im, int access)
{
	for (const struct session *s = im->sessions; s != NULL; s = s->next) {
		if ((s->capabilities & PL_CAP_WRITE) != 0 &&
		    (access != ACCESS_SHARED || s->offer->set.access != ACCESS_SHARED))
			return false;
	}
	return true;
}

static bool
may_join(const struct image *im, int access)
{
	for (const struct session *s = im->sessions; s != NULL; s = s->next) {
		if (access == ACCESS_EXCLUSIVE || s->offer->set.access == ACCESS_EXCLUSIVE)
			return false;
	}
	return true;
}

/*
 * What such a session would have. MULTI_CONN is a promise to one client that uses several
 * connections, which only a shared export lets it do.
 */
static unsigned
capabilities_now(const struct image *im, int access)
{
	unsigned capabilities = pl_export_capabilities(im->export);

	if (!may_write(im, access))
		capabilities = pl_capabilities_reading(capabilities);
	if (access != ACCESS_SHARED)
		capabilities &= ~(unsigned)PL_CAP_MULTI_CONN;
	return capabilities;
}

unsigned
offer_capabilities(struct offer *o)
{
	unsigned capabilities;

	pthread_mutex_lock(&o->catalog->lock);
	capabilities = capabilities_now(o->image, o->set.access);
	pthread_mutex_unlock(&o->catalog->lock);
	return capabilities;
}

static int
check_session(const struct offer *o, struct pl_error *err)
{
	const struct image *im = o->image;
	const struct offer *current = o->from != NULL ? o->from : o;
	uint64_t max = o->set.max_connections;

	if (im->retired)
		return pl_error_say(err, -ENOENT, "it is no longer on offer");
	if (current->gone)
		return pl_error_say(err, -EBUSY,
				    "who may have it has just been changed: ask again");
	if (max != 0 && im->session_count >= max)
		return pl_error_say(err, -EBUSY,
				    "%u connections are all that max-connections=%llu allows",
				    im->session_count, (unsigned long long)max);
	if (!may_join(im, o->set.access))
		return pl_error_say(err, -EBUSY,
				    "it is for one client at a time, and another one has it");
	return 0;
}

/* Under the lock. */
static void
session_link(struct session *s, struct image *im)
{
	s->capabilities = capabilities_now(im, s->offer->set.access);
	s->prev = NULL;
	s->next = im->sessions;
	if (s->next != NULL)
		s->next->prev = s;
	im->sessions = s;
	im->session_count++;
}

static void
session_unlink(struct session *s, struct image *im)
{
	if (s->next != NULL)
		s->next->prev = s->prev;
	*(s->prev != NULL ? &s->prev->next : &im->sessions) = s->next;
	im->session_count--;
}

static int
begin(struct session *s, struct offer *o, struct pl_error *err)
{
	struct worker *worker = s->worker;
	struct catalog *c = o->catalog;
	struct image *im = o->image;
	struct usage *use = &im->on[worker->index];
	int error;

	assert(im->export != NULL && worker->index < c->workers);
	pthread_mutex_lock(&c->lock);
	error = check_session(o, err);
	if (error == 0)
		session_link(s, im);
	pthread_mutex_unlock(&c->lock);
	if (error != 0)
		return error;

	if (use->sessions == 0) {
		error = pl_channel_open(im->export, worker->loop, &use->channel, err);
		if (error != 0) {
			pthread_mutex_lock(&c->lock);
			session_unlink(s, im);
			pthread_mutex_unlock(&c->lock);
			return error;
		}
	}
	use->sessions++;
	s->channel = use->channel;
	s->stats = &use->stats;
	s->size = pl_export_geometry(im->export)->size;
	s->preferred = pl_export_geometry(im->export)->preferred;
	return 0;
}

int
session_begin(struct session *s, struct offer *o, struct worker *worker, struct client *client,
	      struct pl_error *err)
{
	*s = (struct session){ .offer = o, .worker = worker, .client = client };
	return begin(s, o, err);
}

int
session_begin_alone(struct session *s, struct offer *o, struct worker *worker,
		    void (*cut)(struct session *s), struct pl_error *err)
{
	*s = (struct session){ .offer = o, .worker = worker, .cut = cut };
	return begin(s, o, err);
}

bool
session_is_of(const struct session *s, const struct offer *offer)
{
	return s->offer->image == offer->image;
}

void
session_end(struct session *s)
{
	struct catalog *c = s->offer->catalog;
	struct image *im = s->offer->image;
	struct usage *use = &im->on[s->worker->index];

	if (--use->sessions == 0) {
		pl_channel_close(use->channel);
		use->channel = NULL;
	}
	pthread_mutex_lock(&c->lock);
	session_unlink(s, im);
	offer_put_locked(c, s->offer);
	pthread_mutex_unlock(&c->lock);
}

/* ---- for the operator ------------------------------------------------------------ */

/* Under the lock. im: NULL for a directory's offer. */
static struct offer_state
state_of(const struct catalog *c, const struct image *im, const struct offer_settings *set)
{
	struct offer_state st = {
		.name = set->name,
		.description = set->description,
		.image = pl_params_get(set->params, is_directory(set) ? "dir" : "path"),
		.directory = im == NULL,
		.read_only = set->read_only,
		.access = set->access,
		.tls = set->tls,
	};

	if (im == NULL)
		return st;
	st.name = im->name;
	st.image = pl_params_get(im->params, "path");
	st.retired = im->retired;
	st.connections = im->session_count;
	st.error = im->error;
	for (unsigned i = 0; i < c->workers; i++)
		stats_add(&st.stats, &im->on[i].stats);
	st.open = im->export != NULL;
	if (!st.open)
		return st;
	st.image = pl_export_name(im->export);
	if (st.description == NULL)
		st.description = pl_export_description(im->export);
	st.failed = pl_export_failed(im->export);
	st.capabilities = capabilities_now(im, set->access);
	st.geometry = *pl_export_geometry(im->export);
	pl_export_counters(im->export, &st.counters);
	return st;
}

void
catalog_each(struct catalog *c, void (*each)(const struct offer_state *o, void *user), void *user)
{
	struct offer_state st;

	pthread_mutex_lock(&c->lock);
	for (const struct offer *o = c->offers; o != NULL; o = o->next) {
		st = state_of(c, o->image, &o->set);
		each(&st, user);
		for (const struct image *im = c->images; im != NULL; im = im->next) {
			if (o->image != NULL || !im->directory || im->retired)
				continue;
			st = state_of(c, im, &o->set);
			each(&st, user);
		}
	}
	for (const struct image *im = c->images; im != NULL; im = im->next) {
		if (!im->retired || im->sessions == NULL)
			continue;
		st = state_of(c, im, &im->sessions->offer->set);
		each(&st, user);
	}
	pthread_mutex_unlock(&c->lock);
}
