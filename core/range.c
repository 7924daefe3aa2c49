/*
 * range.c - keep writes apart that would spoil each other.
 *
 * The good path: all are SHARED, and are only counted. One that is not sets `strict`: it
 * waits until those that were counted are through, while those that come now, like itself,
 * are in a list with their ranges. Either side writes its own counter before it reads the
 * other's, so one of them sees the other.
 *
 * A request that must wait keeps its place: later ones that overlap it wait behind it, so
 * that no kind starves another.
 */
#include "range.h"

#include "request.h"

#include <assert.h>

void
pl_ranges_init(struct pl_ranges *r)
{
	pthread_mutex_init(&r->lock, NULL);
}

void
pl_ranges_destroy(struct pl_ranges *r)
{
	assert(r->held == NULL && r->first == NULL && r->fast == 0);
	pthread_mutex_destroy(&r->lock);
}

static bool
range_overlaps(const struct pl_request *a, const struct pl_request *b)
{
	return a->range.start < b->range.end && b->range.start < a->range.end;
}

static bool
range_conflicts(const struct pl_request *a, const struct pl_request *b)
{
	return (a->range.mode != b->range.mode || a->range.mode == PL_RANGE_ALONE) &&
	       range_overlaps(a, b);
}

/* Whether req must wait: for who holds, or for who waits before it. */
static bool
range_must_wait(const struct pl_ranges *r, const struct pl_request *req)
{
	unsigned others = 0;

	if (req->range.mode != PL_RANGE_SHARED && __atomic_load_n(&r->fast, __ATOMIC_SEQ_CST) != 0)
		return true;
	for (unsigned mode = 0; mode <= PL_RANGE_ALONE; mode++)
		others += mode != req->range.mode || mode == PL_RANGE_ALONE ? r->count[mode] : 0;
	if (others == 0)
		return false;
	for (const struct pl_request *o = r->held; o != NULL; o = o->range.next) {
		if (range_conflicts(o, req))
			return true;
	}
	for (const struct pl_request *o = r->first; o != NULL && o != req; o = o->link) {
		if (range_conflicts(o, req))
			return true;
	}
	return false;
}

static void
range_hold(struct pl_ranges *r, struct pl_request *req)
{
	req->range.held = req->range.listed = true;
	req->range.prev = NULL;
	req->range.next = r->held;
	if (r->held != NULL)
		r->held->range.prev = req;
	r->held = req;
}

/* Lets all go on who waited for no more than the range that was given back, or, without one,
 * for those that were only counted. */
static void
range_grant(struct pl_ranges *r, const struct pl_request *given)
{
	struct pl_request **at = &r->first, *req, *last = NULL;

	while ((req = *at) != NULL) {
		if ((given != NULL && !range_overlaps(req, given)) || range_must_wait(r, req)) {
			last = req;
			at = &req->link;
			continue;
		}
		*at = req->link;
		range_hold(r, req);
		pl_request_resume(req, req->resume);
	}
	r->last = last;
}

static void
fast_give(struct pl_ranges *r)
{
	if (__atomic_sub_fetch(&r->fast, 1, __ATOMIC_SEQ_CST) != 0 ||
	    __atomic_load_n(&r->strict, __ATOMIC_SEQ_CST) == 0)
		return;
	pthread_mutex_lock(&r->lock);
	range_grant(r, NULL);
	pthread_mutex_unlock(&r->lock);
}

static bool
fast_take(struct pl_ranges *r)
{
	if (__atomic_load_n(&r->strict, __ATOMIC_RELAXED) != 0)
		return false;
	__atomic_fetch_add(&r->fast, 1, __ATOMIC_SEQ_CST);
	if (__atomic_load_n(&r->strict, __ATOMIC_SEQ_CST) == 0)
		return true;
	fast_give(r);
	return false;
}

bool
pl_ranges_take(struct pl_ranges *r, struct pl_request *req, uint64_t start, uint64_t end,
	       enum pl_range_mode mode, void (*resume)(struct pl_request *req))
{
	bool wait;

	req->range.start = start;
	req->range.end = end;
	req->range.mode = mode;
	req->range.listed = false;
	if (mode == PL_RANGE_SHARED && fast_take(r)) {
		req->range.held = true;
		return true;
	}
	pthread_mutex_lock(&r->lock);
	r->count[mode]++;
	if (mode != PL_RANGE_SHARED)
		__atomic_fetch_add(&r->strict, 1, __ATOMIC_SEQ_CST);
	wait = range_must_wait(r, req);
	if (wait) {
		req->resume = resume;
		req->link = NULL;
		if (r->last != NULL)
			r->last->link = req;
		else
			r->first = req;
		r->last = req;
	} else {
		range_hold(r, req);
	}
	pthread_mutex_unlock(&r->lock);
	return !wait;
}

void
pl_ranges_give(struct pl_ranges *r, struct pl_request *req)
{
	if (!req->range.held)
		return;
	req->range.held = false;
	if (!req->range.listed) {
		fast_give(r);
		return;
	}
	pthread_mutex_lock(&r->lock);
	if (req->range.prev != NULL)
		req->range.prev->range.next = req->range.next;
	else
		r->held = req->range.next;
	if (req->range.next != NULL)
		req->range.next->range.prev = req->range.prev;
	r->count[req->range.mode]--;
	if (req->range.mode != PL_RANGE_SHARED)
		__atomic_fetch_sub(&r->strict, 1, __ATOMIC_SEQ_CST);
	if (r->first != NULL)
		range_grant(r, req);
	pthread_mutex_unlock(&r->lock);
}
