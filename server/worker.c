/*
 * worker.c - serving threads.
 *
 * The good path: the main thread counts a new connection on the least busy worker and posts
 * it there; the worker starts it, and is told when it has ended. While there are connections
 * a tick comes four times a second, for deadlines; a worker without any sleeps when it has
 * given its memory back.
 */
#include "worker.h"

#include "clients.h"
#include "iscsi/conn.h"
#include "nbd/conn.h"
#include "room.h"
#include "stats.h"
#include "stream-tls.h"

#include <assert.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <unistd.h>

#define TICK 250000000u /* nanoseconds */

struct workers {
	const struct worker_settings *settings;
	unsigned count;
	pthread_mutex_t lock; /* of the rest */
	pthread_cond_t changed;
	unsigned busy; /* threads that have not answered yet */
	int error;     /* the first one */
	struct pl_error err;
	struct tls_credentials *credentials;
	struct worker worker[];
};

/* ---- what main and workers tell each other --------------------------------------- */

static void
answer(struct workers *all, int error, const struct pl_error *err)
{
	pthread_mutex_lock(&all->lock);
	if (error != 0 && all->error == 0) {
		all->error = error;
		all->err = *err;
	}
	all->busy--;
	pthread_cond_signal(&all->changed);
	pthread_mutex_unlock(&all->lock);
}

static void
wait_for_answers(struct workers *all)
{
	pthread_mutex_lock(&all->lock);
	while (all->busy > 0)
		pthread_cond_wait(&all->changed, &all->lock);
	pthread_mutex_unlock(&all->lock);
}

/* ---- the tick -------------------------------------------------------------------- */

static void tick_done(struct pl_io *io, int64_t result);

static void
tick_start(struct worker *w)
{
	w->ticking = true;
	w->tick = (struct pl_io){
		.kind = PL_IO_DELAY, .fd = -1, .slot = -1, .length = TICK, .done = tick_done
	};
	pl_loop_io(w->loop, &w->tick);
}

static void
tick_done(struct pl_io *io, int64_t result)
{
	struct worker *w = (struct worker *)((char *)io - offsetof(struct worker, tick));

	(void)result;
	w->ticking = false;
	if (w->ending) {
		pl_loop_stop(w->loop);
		return;
	}
	nbd_conns_tick(w, stats_now());
	iscsi_conns_tick(w, stats_now());
	if (room_trim(w->room) && !w->ticking)
		tick_start(w);
	worker_wake(w);
}

void
worker_wake(struct worker *w)
{
	if (!w->ticking && (w->conns != NULL || w->iscsi != NULL))
		tick_start(w);
}

/* ---- connections ----------------------------------------------------------------- */

void
worker_left(struct worker *w)
{
	__atomic_fetch_sub(&w->connections, 1, __ATOMIC_RELAXED);
}

void
worker_hand_over(struct worker *from, struct worker *to, struct pl_work *work)
{
	worker_left(from);
	__atomic_fetch_add(&to->connections, 1, __ATOMIC_RELAXED);
	pl_loop_post(to->loop, work);
}

struct tls_credentials *
worker_credentials(struct worker *w)
{
	struct tls_credentials *credentials;

	pthread_mutex_lock(&w->all->lock);
	credentials = w->all->credentials;
	if (credentials != NULL)
		credentials = tls_credentials_get(credentials);
	pthread_mutex_unlock(&w->all->lock);
	return credentials;
}

void
workers_secure(struct workers *all, struct tls_credentials *credentials)
{
	struct tls_credentials *old;

	pthread_mutex_lock(&all->lock);
	old = all->credentials;
	all->credentials = credentials;
	pthread_mutex_unlock(&all->lock);
	tls_credentials_put(old);
}

struct hand_over {
	struct pl_work work;
	struct worker *worker;
	struct client *client;
	int fd, send_fd;
	enum worker_protocol protocol;
};

static void
taken(struct pl_work *work)
{
	struct hand_over h = *(struct hand_over *)work;

	free(work);
	if (h.protocol == PROTOCOL_ISCSI)
		iscsi_conn_start(h.worker, h.client, h.fd);
	else
		nbd_conn_start(h.worker, h.client, h.fd, h.send_fd);
	worker_wake(h.worker);
}

static struct worker *
least_busy(struct workers *all)
{
	struct worker *best = &all->worker[0];

	for (unsigned i = 1; i < all->count; i++) {
		if (__atomic_load_n(&all->worker[i].connections, __ATOMIC_RELAXED) <
		    __atomic_load_n(&best->connections, __ATOMIC_RELAXED))
			best = &all->worker[i];
	}
	return best;
}

void
workers_take(struct workers *all, struct client *client, int fd, int send_fd,
	     enum worker_protocol protocol)
{
	struct hand_over *h = malloc(sizeof *h);

	if (h == NULL) {
		log_error("%s: no memory for the connection", client->peer.text);
		close(fd);
		if (send_fd != fd)
			close(send_fd);
		clients_leave(client);
		return;
	}
	*h = (struct hand_over){ .work.run = taken,
				 .worker = least_busy(all),
				 .client = client,
				 .fd = fd,
				 .send_fd = send_fd,
				 .protocol = protocol };
	__atomic_fetch_add(&h->worker->connections, 1, __ATOMIC_RELAXED);
	pl_loop_post(h->worker->loop, &h->work);
}

/* ---- work on each ---------------------------------------------------------------- */

struct errand {
	struct pl_work work;
	struct worker *worker;
	void (*run)(struct worker *w, void *user);
	void *user;
};

static void
errand_run(struct pl_work *work)
{
	struct errand *e = (struct errand *)work;

	e->run(e->worker, e->user);
	answer(e->worker->all, 0, NULL);
}

void
workers_each(struct workers *all, void (*run)(struct worker *w, void *user), void *user)
{
	for (unsigned i = 0; i < all->count; i++) {
		struct errand e = { { .run = errand_run }, &all->worker[i], run, user };

		all->busy = 1;
		pl_loop_post(all->worker[i].loop, &e.work);
		wait_for_answers(all);
	}
}

/* ---- making and ending ----------------------------------------------------------- */

static void *
worker_main(void *arg)
{
	struct worker *w = arg;
	struct pl_error err;
	int error = room_new(&w->room, w->settings->memory, &err);
	char name[16];

	snprintf(name, sizeof name, "worker %u", w->index);
	pthread_setname_np(pthread_self(), name);
	if (error == 0) {
		error = pl_loop_new(&w->loop, &err);
		if (error != 0)
			room_free(w->room);
	}
	if (error == 0)
		pl_loop_poll(w->loop, w->settings->poll);
	answer(w->all, error, &err);
	if (error != 0)
		return NULL;

	pl_loop_run(w->loop);
	assert(w->conns == NULL && w->iscsi == NULL);
	pl_loop_free(w->loop);
	room_free(w->room);
	return NULL;
}

/* Signals are the main thread's. */
static int
thread_start(struct worker *w)
{
	sigset_t all, old;
	int error;

	sigfillset(&all);
	pthread_sigmask(SIG_SETMASK, &all, &old);
	error = pthread_create(&w->thread, NULL, worker_main, w);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return -error;
}

int
workers_start(struct workers **out, unsigned count, const struct worker_settings *settings,
	      struct pl_error *err)
{
	struct workers *all = calloc(1, sizeof *all + count * sizeof all->worker[0]);
	int error = 0;

	if (all == NULL)
		return pl_error_set(err, -ENOMEM, "workers");
	all->settings = settings;
	pthread_mutex_init(&all->lock, NULL);
	pthread_cond_init(&all->changed, NULL);
	for (; all->count < count && error == 0; all->count += error == 0) {
		struct worker *w = &all->worker[all->count];

		w->index = all->count;
		w->settings = settings;
		w->all = all;
		all->busy = 1;
		error = thread_start(w);
		if (error != 0) {
			pl_error_set(err, error, "worker %u: thread", w->index);
			break;
		}
		wait_for_answers(all);
		error = all->error;
		if (error != 0) {
			*err = all->err;
			pthread_join(w->thread, NULL);
		}
	}
	if (error != 0) {
		workers_end(all);
		return error;
	}
	*out = all;
	return 0;
}

static void
worker_end(struct pl_work *work)
{
	struct worker *w = (struct worker *)((char *)work - offsetof(struct worker, end_work));

	w->ending = true;
	if (w->ticking)
		pl_loop_cancel(w->loop, &w->tick);
	else
		pl_loop_stop(w->loop);
}

void
workers_end(struct workers *all)
{
	for (unsigned i = 0; i < all->count; i++) {
		all->worker[i].end_work.run = worker_end;
		pl_loop_post(all->worker[i].loop, &all->worker[i].end_work);
	}
	for (unsigned i = 0; i < all->count; i++)
		pthread_join(all->worker[i].thread, NULL);
	tls_credentials_put(all->credentials);
	pthread_mutex_destroy(&all->lock);
	pthread_cond_destroy(&all->changed);
	free(all);
}
