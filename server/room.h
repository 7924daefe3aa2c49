/*
 * room.h - memory for the requests of a worker's connections: bounded, made at the start,
 * first come first served.
 *
 * Two parts: a connection's first ROOM_SMALL bytes come from one that clients with large
 * requests cannot exhaust; what goes beyond comes from the other. Who waits is served in
 * order, so a large request is not starved by small ones.
 */
#ifndef ROOM_H
#define ROOM_H

#include "platter.h"

/* What one connection may hold of the small part. */
#define ROOM_SMALL (256u << 10)

struct room;

/* bytes: in all, at least twice the largest request. Errors: -ENOMEM. */
int room_new(struct room **room, uint64_t bytes, struct pl_error *err);
void room_free(struct room *room); /* asserts that all has been given back */

/* A wish for memory; it stands in a queue while it waits. */
struct room_wish {
	uint64_t length; /* bytes */
	bool small;      /* from the small part */
	void (*granted)(struct room_wish *wish);
	void *memory; /* page-aligned, once it was granted */

	bool waiting;
	struct room_wish *prev, *next;
};

/* true: wish->memory is there. false: wish->granted follows. Fill length, small, granted. */
bool room_take(struct room *room, struct room_wish *wish);

/* No longer wanted. */
void room_forget(struct room *room, struct room_wish *wish);

/* What was granted for `length` bytes. */
void room_give(struct room *room, void *memory, uint64_t length, bool small);

/* Whether somebody waits, so that those who only hold are in the way. */
bool room_is_short(const struct room *room);

/* What moves between ticks, to tell who is stuck. */
struct room_pace {
	uint64_t seen;  /* bytes, when it last got on */
	unsigned still; /* ticks since */
};

/* For a tick of a connection that holds `held` bytes, and has moved `bytes` so far: whether others
 * wait for memory that it holds without getting on, or by so little that it may as well not.
 * busy: it is not its peer that it waits for. */
bool room_is_kept(const struct room *room, struct room_pace *pace, uint64_t held, bool busy,
		  uint64_t bytes);

/* Gives pages back to the kernel where nobody has asked for any since the last call; to be
 * called now and then. */
void room_trim(struct room *room);

#endif
