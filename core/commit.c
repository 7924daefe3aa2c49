/*
 * commit.c - make finished writes durable, many at a time.
 *
 * The good path:
 * - a request joins `next`. If no flush runs, it leads: `next` becomes `current`, and a
 *   flush is asked of the driver in the leader's name.
 * - who joins while that flush runs waits in `next`: its write may have come too late for it.
 * - when the flush is done, the first of `next` leads the following one, and all of
 *   `current` are answered. There is no timer: a group is whoever came during a flush.
 *
 * What can go wrong: a flush fails. The kernel reports a lost page once, so neither a
 * second try nor the next group's flush may succeed: `current` and `next` get the error,
 * and the export is FAILED until it is opened again. If something else has failed the
 * export meanwhile, they get an error as well, whatever the flush says.
 */
#include "commit.h"

#include "channel.h"
#include "request.h"

#include <assert.h>
#include <errno.h>

static void commit_lead(struct pl_request *leader);

void
pl_commit_init(struct pl_commit *c)
{
	pthread_mutex_init(&c->lock, NULL);
	c->next_last = &c->next;
}

void
pl_commit_destroy(struct pl_commit *c)
{
	assert(!c->flushing && c->next == NULL);
	pthread_mutex_destroy(&c->lock);
}

/* The lock is held and somebody waits. Returns who is to lead. */
static struct pl_request *
commit_begin(struct pl_commit *c)
{
	c->current = c->next;
	c->next = NULL;
	c->next_last = &c->next;
	c->flushing = true;
	c->groups++;
	return c->current;
}

void
pl_commit_join(struct pl_commit *c, struct pl_request *req)
{
	struct pl_request *leader = NULL;
	bool failed;

	req->link = NULL;
	pthread_mutex_lock(&c->lock);
	failed = pl_export_failed(req->channel->export);
	if (!failed) {
		*c->next_last = req;
		c->next_last = &req->link;
		c->committed++;
		if (!c->flushing)
			leader = commit_begin(c);
	}
	pthread_mutex_unlock(&c->lock);
	if (failed)
		pl_request_committed(req, -EIO);
	else if (leader != NULL)
		commit_lead(leader);
}

/* Answers everyone in the list; the leader is the one whose thread this is. */
static void
commit_answer(struct pl_request *list, struct pl_request *leader, int error)
{
	struct pl_request *req, *next;

	for (req = list; req != NULL; req = next) {
		next = req->link;
		if (req != leader)
			pl_request_committed_elsewhere(req, error);
	}
	pl_request_committed(leader, error);
}

static void
commit_flush_done(struct pl_request *leader, int64_t result)
{
	struct pl_export *ex = leader->channel->export;
	struct pl_commit *c = &ex->commit;
	struct pl_request *group, *late = NULL, *successor = NULL;
	int error = (int)result;

	pthread_mutex_lock(&c->lock);
	/* A native FUA write may have failed the export since this flush was asked for. */
	if (error == 0 && pl_export_failed(ex))
		error = -EIO;
	group = c->current;
	c->current = NULL;
	c->flushing = false;
	if (error != 0) {
		pl_export_fail(ex, "flush", error);
		late = c->next;
		c->next = NULL;
		c->next_last = &c->next;
	} else if (c->next != NULL) {
		successor = commit_begin(c);
	}
	pthread_mutex_unlock(&c->lock);

	if (successor != NULL)
		pl_request_resume(successor, commit_lead);
	for (struct pl_request *req = late, *next; req != NULL; req = next) {
		next = req->link;
		pl_request_committed_elsewhere(req, error);
	}
	commit_answer(group, leader, error);
}

static void
commit_lead(struct pl_request *leader)
{
	leader->part = (struct pl_part){ .op = PL_FLUSH };
	leader->next = commit_flush_done;
	pl_request_part(leader);
}
