/*
 * clients.c - every connection there is.
 *
 * One list under one lock. An order crosses to the client's worker as posted work; a client
 * that leaves meanwhile is unlinked at once and freed by that work, which runs on the same
 * thread.
 */
#include "clients.h"

#include "worker.h"

#include <assert.h>
#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

/* Where connections come from, as long as there are any. */
struct clients_host {
	char text[PEER_TEXT];
	unsigned count;
	struct clients_host *prev, *next;
};

struct clients {
	pthread_mutex_t lock;
	struct clients_limits limits;
	struct client *first, *last;
	struct clients_host *hosts;
	unsigned count;
	uint64_t last_id;
};

int
clients_new(struct clients **out, struct pl_error *err)
{
	struct clients *all = calloc(1, sizeof *all);

	if (all == NULL)
		return pl_error_set(err, -ENOMEM, "clients");
	pthread_mutex_init(&all->lock, NULL);
	*out = all;
	return 0;
}

void
clients_free(struct clients *all)
{
	assert(all->first == NULL);
	pthread_mutex_destroy(&all->lock);
	free(all);
}

void
clients_limit(struct clients *all, struct clients_limits limits)
{
	pthread_mutex_lock(&all->lock);
	all->limits = limits;
	pthread_mutex_unlock(&all->lock);
}

/* ---- coming and leaving ---------------------------------------------------------- */

static struct clients_host *
host_find(struct clients *all, const char *text)
{
	struct clients_host *h;

	for (h = all->hosts; h != NULL && strcmp(h->text, text) != 0; h = h->next)
		;
	return h;
}

/* Its entry, made for the first connection. */
static struct clients_host *
host_get(struct clients *all, const char *text)
{
	struct clients_host *h = host_find(all, text);

	if (h == NULL) {
		h = calloc(1, sizeof *h);
		if (h == NULL)
			return NULL;
		strcpy(h->text, text); /* of the same size */
		h->next = all->hosts;
		if (h->next != NULL)
			h->next->prev = h;
		all->hosts = h;
	}
	h->count++;
	return h;
}

static void
host_put(struct clients *all, struct clients_host *h)
{
	if (--h->count > 0)
		return;
	if (h->next != NULL)
		h->next->prev = h->prev;
	*(h->prev != NULL ? &h->prev->next : &all->hosts) = h->next;
	free(h);
}

static int
refuse_total(const struct clients *all, struct pl_error *err)
{
	const struct clients_host *most = all->hosts;

	for (const struct clients_host *h = most; h != NULL; h = h->next) {
		if (h->count > most->count)
			most = h;
	}
	if (most == NULL)
		return pl_error_say(err, -EUSERS, "no connection is allowed");
	return pl_error_say(err, -EUSERS,
			    "%u connections are all that max-connections=%u allows; %u of them "
			    "are from %s",
			    all->count, all->limits.total, most->count,
			    *most->text != '\0' ? most->text : "this machine");
}

static int
check_limits(const struct clients *all, const struct clients_host *host, struct pl_error *err)
{
	const struct clients_limits *limits = &all->limits;

	if (limits->total != 0 && all->count >= limits->total)
		return refuse_total(all, err);
	if (limits->per_host != 0 && host != NULL && *host->text != '\0' &&
	    host->count >= limits->per_host)
		return pl_error_say(err, -EUSERS,
				    "%u connections from %s are all that "
				    "max-connections-per-host=%u allows",
				    host->count, host->text, limits->per_host);
	return 0;
}

static int
add(struct clients *all, struct client *c, struct pl_error *err)
{
	int error = check_limits(all, host_find(all, c->peer.host), err);

	if (error != 0)
		return error;
	c->host = host_get(all, c->peer.host);
	if (c->host == NULL)
		return pl_error_set(err, -ENOMEM, "connection");
	c->id = ++all->last_id;
	c->prev = all->last;
	*(c->prev != NULL ? &c->prev->next : &all->first) = c;
	all->last = c;
	all->count++;
	return 0;
}

int
clients_admit(struct clients *all, int fd, struct client **out, struct pl_error *err)
{
	struct client *c = calloc(1, sizeof *c);
	int error;

	if (c == NULL)
		return pl_error_set(err, -ENOMEM, "connection");
	peer_of(&c->peer, fd);
	clock_gettime(CLOCK_REALTIME, &c->since);
	c->all = all;
	c->phase = CLIENT_HANDSHAKE;
	c->order = CLIENT_GO_ON;
	pthread_mutex_lock(&all->lock);
	error = add(all, c, err);
	pthread_mutex_unlock(&all->lock);
	if (error != 0) {
		free(c);
		return error;
	}
	*out = c;
	return 0;
}

static void
client_free(struct client *c)
{
	peer_clear(&c->peer);
	free(c->export);
	free(c->target);
	free(c->initiator);
	free(c);
}

void
clients_leave(struct client *c)
{
	struct clients *all = c->all;
	bool posted;

	pthread_mutex_lock(&all->lock);
	*(c->prev != NULL ? &c->prev->next : &all->first) = c->next;
	*(c->next != NULL ? &c->next->prev : &all->last) = c->prev;
	host_put(all, c->host);
	all->count--;
	c->left = true;
	posted = c->order_posted;
	pthread_mutex_unlock(&all->lock);
	if (!posted)
		client_free(c);
}

/* ---- what is known of them ------------------------------------------------------- */

/* A text that others read under the lock. NULL: none, and also when there is no memory. */
static void
set_text(struct client *c, char **at, const char *text)
{
	char *copy = text != NULL ? strdup(text) : NULL, *old;

	pthread_mutex_lock(&c->all->lock);
	old = *at;
	*at = copy;
	pthread_mutex_unlock(&c->all->lock);
	free(old);
}

void
clients_chose(struct client *c, const char *export_name)
{
	set_text(c, &c->export, export_name);
}

void
clients_logged_in(struct client *c, const char *target, const char *initiator)
{
	set_text(c, &c->target, target);
	set_text(c, &c->initiator, initiator);
}

void
clients_identified(struct client *c, struct peer *from)
{
	pthread_mutex_lock(&c->all->lock);
	peer_clear(&c->peer);
	c->peer.tls = from->tls;
	c->peer.subject = from->subject;
	c->peer.psk = from->psk;
	memcpy(c->peer.fingerprint, from->fingerprint, sizeof c->peer.fingerprint);
	from->subject = from->psk = NULL;
	pthread_mutex_unlock(&c->all->lock);
}

unsigned
clients_count(struct clients *all)
{
	unsigned count;

	pthread_mutex_lock(&all->lock);
	count = all->count;
	pthread_mutex_unlock(&all->lock);
	return count;
}

void
clients_each(struct clients *all, void (*each)(const struct client *c, void *user), void *user)
{
	pthread_mutex_lock(&all->lock);
	for (const struct client *c = all->first; c != NULL; c = c->next)
		each(c, user);
	pthread_mutex_unlock(&all->lock);
}

/* ---- orders ---------------------------------------------------------------------- */

/* On the worker's thread, as clients_leave() is: so `left` does not change meanwhile, and one
 * who has left may have outlived `all`. */
static void
deliver(struct pl_work *work)
{
	struct client *c = (struct client *)((char *)work - offsetof(struct client, order_work));

	if (c->left) {
		client_free(c);
		return;
	}
	pthread_mutex_lock(&c->all->lock);
	c->order_posted = false;
	pthread_mutex_unlock(&c->all->lock);
	c->ordered(c);
}

/* Under the lock. */
static void
post(struct client *c)
{
	if (c->worker == NULL || c->order_posted)
		return;
	c->order_posted = true;
	c->order_work.run = deliver;
	pl_loop_post(c->worker->loop, &c->order_work);
}

void
clients_serve(struct client *c, struct worker *worker, void (*ordered)(struct client *client),
	      void *conn)
{
	pthread_mutex_lock(&c->all->lock);
	c->worker = worker;
	c->ordered = ordered;
	c->conn = conn;
	if (c->order != CLIENT_GO_ON)
		post(c);
	pthread_mutex_unlock(&c->all->lock);
}

bool
clients_unserve(struct client *c)
{
	bool quiet;

	pthread_mutex_lock(&c->all->lock);
	quiet = !c->order_posted;
	if (quiet)
		c->worker = NULL;
	pthread_mutex_unlock(&c->all->lock);
	return quiet;
}

/* Under the lock. */
static void
order(struct client *c, enum client_order what, const char *why)
{
	if (what <= c->order)
		return;
	__atomic_store_n(&c->why, why, __ATOMIC_RELAXED);
	__atomic_store_n(&c->order, what, __ATOMIC_RELEASE);
	post(c);
}

void
clients_order(struct client *c, enum client_order what, const char *why)
{
	pthread_mutex_lock(&c->all->lock);
	order(c, what, why);
	pthread_mutex_unlock(&c->all->lock);
}

void
clients_order_all(struct clients *all, enum client_order what, const char *why)
{
	pthread_mutex_lock(&all->lock);
	for (struct client *c = all->first; c != NULL; c = c->next)
		order(c, what, why);
	pthread_mutex_unlock(&all->lock);
}

int
clients_order_id(struct clients *all, uint64_t id, enum client_order what, const char *why)
{
	struct client *c;

	pthread_mutex_lock(&all->lock);
	for (c = all->first; c != NULL && c->id != id; c = c->next)
		;
	if (c != NULL)
		order(c, what, why);
	pthread_mutex_unlock(&all->lock);
	return c != NULL ? 0 : -ENOENT;
}
