/*
 * dry-worker.c - one worker, on the thread of who serves. It has no tick: nobody is late here.
 */
#include "worker.h"

#include "clients.h"
#include "iscsi/conn.h"
#include "loop.h"
#include "nbd/conn.h"
#include "room.h"

#include <assert.h>
#include <stdlib.h>

struct workers {
	struct worker worker;
};

int
workers_start(struct workers **out, unsigned count, const struct worker_settings *settings,
	      struct pl_error *err)
{
	struct workers *all = calloc(1, sizeof *all);
	int error = all != NULL ? 0 : -ENOMEM;

	assert(count == 1);
	if (error == 0)
		error = room_new(&all->worker.room, settings->memory, err);
	if (error == 0)
		error = pl_loop_new(&all->worker.loop, err);
	assert(error == 0);
	all->worker.settings = settings;
	all->worker.all = all;
	*out = all;
	return 0;
}

void
workers_take(struct workers *all, struct client *client, int fd, int send_fd,
	     enum worker_protocol protocol)
{
	struct worker *w = &all->worker;

	w->connections++;
	if (protocol == PROTOCOL_ISCSI)
		iscsi_conn_start(w, client, fd);
	else
		nbd_conn_start(w, client, fd, send_fd);
	while (w->connections > 0)
		pl_loop_turn(w->loop);
}

void
workers_each(struct workers *all, void (*run)(struct worker *w, void *user), void *user)
{
	run(&all->worker, user);
}

void
worker_left(struct worker *w)
{
	w->connections--;
}

void
worker_hand_over(struct worker *from, struct worker *to, struct pl_work *work)
{
	assert(from == to);
	pl_loop_post(to->loop, work);
}

void
worker_wake(struct worker *w)
{
	(void)w;
}

struct tls_credentials *
worker_credentials(struct worker *w)
{
	(void)w;
	return NULL;
}
