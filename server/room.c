/*
 * room.c - memory for the requests of a worker's connections.
 *
 * Each part is one mapping, divided by halves (a buddy system): blocks of 4 KiB times a
 * power of two, up to the largest that may be asked for. What is free is in a list for
 * each order, last in, first out, so that warm memory is used again. Pages are the
 * kernel's until they are first used, and again after room_trim().
 */
#include "room.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define ROOM_PAGE 4096u
#define ORDERS    14 /* 4 KiB to 32 MiB */
#define NONE      UINT32_MAX

#define STILL_TICKS 8  /* of quarter seconds, while others wait for memory, */
#define STILL_PARTS 32 /* in which less than such a part of it has been moved */

struct page {
	uint32_t next, prev; /* of the free blocks of one order */
	uint8_t order;       /* of the free block that begins here */
	bool is_free;
};

struct part {
	char *memory;
	uint32_t pages;
	unsigned top; /* the largest order */
	struct page *page;
	uint32_t free[ORDERS];
	uint32_t used;
	bool used_lately; /* since the last look */
	bool touched;     /* has pages of the kernel's */
	struct room_wish *first, *last;
};

struct room {
	struct part part[2]; /* by `small` */
};

/* ---- blocks ---------------------------------------------------------------------- */

static unsigned
order_of(uint64_t length)
{
	unsigned order = 0;

	while ((uint64_t)ROOM_PAGE << order < length)
		order++;
	return order;
}

static void
push(struct part *p, uint32_t at, unsigned order)
{
	p->page[at] = (struct page){
		.next = p->free[order], .prev = NONE, .order = (uint8_t)order, .is_free = true
	};
	if (p->free[order] != NONE)
		p->page[p->free[order]].prev = at;
	p->free[order] = at;
}

static void
take_out(struct part *p, uint32_t at)
{
	struct page *g = &p->page[at];

	if (g->prev != NONE)
		p->page[g->prev].next = g->next;
	else
		p->free[g->order] = g->next;
	if (g->next != NONE)
		p->page[g->next].prev = g->prev;
	g->is_free = false;
}

static void *
part_take(struct part *p, unsigned order)
{
	unsigned have = order;
	uint32_t at;

	while (have <= p->top && p->free[have] == NONE)
		have++;
	if (have > p->top)
		return NULL;
	at = p->free[have];
	take_out(p, at);
	while (have > order) {
		have--;
		push(p, at + (1u << have), have);
	}
	p->used += 1u << order;
	p->used_lately = p->touched = true;
	return p->memory + (size_t)at * ROOM_PAGE;
}

static void
part_give(struct part *p, void *memory, unsigned order)
{
	uint32_t at = (uint32_t)((size_t)((char *)memory - p->memory) / ROOM_PAGE);

	assert(at < p->pages && !p->page[at].is_free);
	p->used -= 1u << order;
	for (; order < p->top; order++) {
		uint32_t buddy = at ^ (1u << order);

		if (!p->page[buddy].is_free || p->page[buddy].order != order)
			break;
		take_out(p, buddy);
		if (buddy < at)
			at = buddy;
	}
	push(p, at, order);
}

/* ---- wishes ---------------------------------------------------------------------- */

bool
room_take(struct room *room, struct room_wish *wish)
{
	struct part *p = &room->part[wish->small];
	unsigned order = order_of(wish->length);

	assert(order <= p->top);
	wish->waiting = false;
	if (p->first == NULL) {
		wish->memory = part_take(p, order);
		if (wish->memory != NULL)
			return true;
	}
	wish->waiting = true;
	wish->next = NULL;
	wish->prev = p->last;
	if (p->last != NULL)
		p->last->next = wish;
	else
		p->first = wish;
	p->last = wish;
	return false;
}

static void
dequeue(struct part *p, struct room_wish *wish)
{
	wish->waiting = false;
	if (wish->prev != NULL)
		wish->prev->next = wish->next;
	else
		p->first = wish->next;
	if (wish->next != NULL)
		wish->next->prev = wish->prev;
	else
		p->last = wish->prev;
}

static void
grant(struct part *p)
{
	struct room_wish *wish;

	while ((wish = p->first) != NULL) {
		void *memory = part_take(p, order_of(wish->length));

		if (memory == NULL)
			return;
		dequeue(p, wish);
		wish->memory = memory;
		wish->granted(wish);
	}
}

void
room_forget(struct room *room, struct room_wish *wish)
{
	struct part *p;

	if (!wish->waiting)
		return;
	p = &room->part[wish->small];
	dequeue(p, wish);
	grant(p); /* there may be enough for those behind it */
}

void
room_give(struct room *room, void *memory, uint64_t length, bool small)
{
	struct part *p = &room->part[small];

	part_give(p, memory, order_of(length));
	grant(p);
}

bool
room_is_short(const struct room *room)
{
	return room->part[0].first != NULL || room->part[1].first != NULL;
}

bool
room_is_kept(const struct room *room, struct room_pace *pace, uint64_t held, bool busy,
	     uint64_t bytes)
{
	if (held == 0 || busy || bytes - pace->seen > held / STILL_PARTS) {
		pace->seen = bytes;
		pace->still = 0;
		return false;
	}
	return ++pace->still >= STILL_TICKS && room_is_short(room);
}

void
room_trim(struct room *room)
{
	for (unsigned i = 0; i < 2; i++) {
		struct part *p = &room->part[i];

		if (p->used == 0 && p->touched && !p->used_lately) {
			madvise(p->memory, (size_t)p->pages * ROOM_PAGE, MADV_DONTNEED);
			p->touched = false;
		}
		p->used_lately = false;
	}
}

/* ---- making and ending ----------------------------------------------------------- */

static void
part_free(struct part *p)
{
	assert(p->used == 0 && p->first == NULL);
	if (p->memory != NULL)
		munmap(p->memory, (size_t)p->pages * ROOM_PAGE);
	free(p->page);
}

/* bytes: rounded up to whole blocks of the largest size. */
static int
part_new(struct part *p, uint64_t bytes, uint64_t largest)
{
	uint64_t size = (bytes + largest - 1) / largest * largest;
	void *memory;

	p->top = order_of(largest);
	p->pages = (uint32_t)(size / ROOM_PAGE);
	for (unsigned i = 0; i < ORDERS; i++)
		p->free[i] = NONE;
	p->page = calloc(p->pages, sizeof *p->page);
	memory = mmap(NULL, size, PROT_READ | PROT_WRITE,
		      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
	if (memory != MAP_FAILED)
		p->memory = memory;
	if (p->page == NULL || p->memory == NULL)
		return -ENOMEM;
	for (uint32_t at = p->pages; at > 0; at -= 1u << p->top)
		push(p, at - (1u << p->top), p->top);
	return 0;
}

int
room_new(struct room **out, uint64_t bytes, struct pl_error *err)
{
	struct room *room = calloc(1, sizeof *room);
	int error = -ENOMEM;

	if (room == NULL)
		return pl_error_set(err, error, "memory for requests");
	error = part_new(&room->part[false], bytes / 4 * 3, (uint64_t)ROOM_PAGE << (ORDERS - 1));
	if (error == 0)
		error = part_new(&room->part[true], bytes / 4, ROOM_SMALL);
	if (error != 0) {
		room_free(room);
		return pl_error_set(err, error, "memory for requests: %llu bytes",
				    (unsigned long long)bytes);
	}
	*out = room;
	return 0;
}

void
room_free(struct room *room)
{
	part_free(&room->part[false]);
	part_free(&room->part[true]);
	free(room);
}
