/*
 * room.h - memory for the requests of a worker's connections: bounded, made at the start,
 * first come first served.
 *
 * It has four parts. A connection's first ROOM_SMALL bytes come from one that clients with large
 * requests cannot exhaust. And connections that get on have a part of either kind to themselves:
 * one that has moved no more bytes than it wants to hold, or has stood still since, cannot keep
 * memory from those that have; and where half of that for large requests is in use, it gets no
 * more than one. In each part who waits is served in order, so a large request is not starved by
 * small ones.
 */
#ifndef ROOM_H
#define ROOM_H

#include "platter.h"

/* What one connection may hold of the small parts. */
#define ROOM_SMALL (256u << 10)

struct room;

/* bytes: in all, at least twice the largest request. Errors: -ENOMEM. */
int room_new(struct room **room, uint64_t bytes, struct pl_error *err);
void room_free(struct room *room); /* asserts that all has been given back */

/* What a connection holds, and how it gets on. All zero at first. Bytes that have moved are those
 * that it has sent and received so far. */
struct room_share {
	uint64_t held[2][2]; /* of each part: by `large` and `tried` */
	uint64_t seen;       /* bytes that had moved when it last got on */
	uint64_t stood;      /* and when it last stood still */
	unsigned still;      /* ticks since it got on */
};

/* A wish for memory; it stands in a queue while it waits. */
struct room_wish {
	struct room_share *share; /* whose it is */
	uint64_t length;          /* bytes */
	bool arriving;            /* what it is for comes already: no proof is asked for */
	void (*granted)(struct room_wish *wish);
	void *memory; /* page-aligned, once it was granted */

	bool large, tried; /* where it comes from */
	bool more;         /* large and not tried, and not the first */
	bool waiting;
	struct room_wish *prev, *next;
};

/* moved: bytes, so far. true: wish->memory is there. false: wish->granted follows. To be called
 * again when a connection whose wish waits has moved: there may be memory for it elsewhere. Fill
 * all up to granted. */
bool room_take(struct room *room, struct room_wish *wish, uint64_t moved);

/* No longer wanted. */
void room_forget(struct room *room, struct room_wish *wish);

/* What was granted. */
void room_give(struct room *room, struct room_wish *wish);

uint64_t room_held(const struct room_share *share);

/* For a tick of a connection that has moved so many bytes: whether others wait for memory that it
 * holds without getting on, or by so little that it may as well not. busy: it is not its peer that
 * it waits for. */
bool room_is_kept(const struct room *room, struct room_share *share, bool busy, uint64_t moved);

/* Gives pages back to the kernel where nobody has asked for any since the last call. To be called
 * now and then, as long as it says that there are some to be given back. */
bool room_trim(struct room *room);

#endif
