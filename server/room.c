/*
 * room.c - memory for the requests of a worker's connections.
 *
 * Each part is one mapping, divided by halves (a buddy system): blocks of 4 KiB times a
 * power of two, up to the largest that may be asked for. What is free is in a list for
 * each order, last in, first out, so that warm memory is used again. Pages are the
 * kernel's until they are first used, and again after room_trim().
 *
 * A connection is tried when it has moved as many bytes as it then holds, since it last stood
 * still while it held some: whoever takes no answers, or promises data that does not come, has
 * never moved as much. So such connections, however many, wait for each other alone.
 */
#include "room.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <sys/mman.h>

#define ROOM_PAGE 4096u
#define ORDERS    14 /* 4 KiB to 32 MiB */
#define NONE      UINT32_MAX
#define PARTS     4u

/* Of quarter seconds, while others wait for memory, in which less than such a part has moved of
 * what one holds of it. */
#define STILL_TICKS         8
#define STILL_TICKS_UNTRIED 4
#define STILL_PARTS         32

struct page {
	uint32_t next, prev; /* of the free blocks of one order */
	uint8_t order;       /* of the free block that begins here */
	bool is_free;
};

struct queue {
	struct room_wish *first, *last;
};

struct part {
	char *memory;
	uint32_t pages;
	unsigned top; /* the largest order */
	struct page *page;
	uint32_t free[ORDERS];
	uint32_t used;
	bool used_lately;      /* since the last look */
	bool touched;          /* has pages of the kernel's */
	struct queue queue[2]; /* by `more` */
};

struct room {
	struct part part[2][2]; /* by `large` and `tried` */
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

static struct part *
part_of(struct room *room, const struct room_wish *wish)
{
	return &room->part[wish->large][wish->tried];
}

uint64_t
room_held(const struct room_share *share)
{
	return share->held[0][0] + share->held[0][1] + share->held[1][0] + share->held[1][1];
}

/* Whether it has its memory now. Half of a part is for those who hold nothing of it. */
static bool
part_fulfil(struct part *p, struct room_wish *wish)
{
	unsigned order = order_of(wish->length);

	if (wish->more && p->used + (1u << order) > p->pages / 2)
		return false;
	wish->memory = part_take(p, order);
	if (wish->memory == NULL)
		return false;
	wish->share->held[wish->large][wish->tried] += wish->length;
	return true;
}

static void
enqueue(struct queue *q, struct room_wish *wish)
{
	wish->waiting = true;
	wish->next = NULL;
	wish->prev = q->last;
	if (q->last != NULL)
		q->last->next = wish;
	else
		q->first = wish;
	q->last = wish;
}

static void
dequeue(struct queue *q, struct room_wish *wish)
{
	wish->waiting = false;
	if (wish->prev != NULL)
		wish->prev->next = wish->next;
	else
		q->first = wish->next;
	if (wish->next != NULL)
		wish->next->prev = wish->prev;
	else
		q->last = wish->prev;
}

static void
grant(struct part *p)
{
	for (unsigned more = 0; more < 2; more++) {
		struct queue *q = &p->queue[more];
		struct room_wish *wish;

		while ((wish = q->first) != NULL) {
			if (!part_fulfil(p, wish))
				return;
			dequeue(q, wish);
			wish->granted(wish);
		}
	}
}

bool
room_take(struct room *room, struct room_wish *wish, uint64_t moved)
{
	struct room_share *share = wish->share;
	bool large = share->held[0][0] + share->held[0][1] + wish->length > ROOM_SMALL;
	bool tried = wish->arriving || moved - share->stood >= room_held(share) + wish->length;
	bool more = large && !tried && share->held[1][0] > 0;
	struct part *p;

	if (wish->waiting) {
		if (wish->large == large && wish->tried == tried && wish->more == more)
			return false;
		room_forget(room, wish);
	}
	wish->large = large;
	wish->tried = tried;
	wish->more = more;
	p = part_of(room, wish);
	assert(order_of(wish->length) <= p->top);
	if (p->queue[0].first == NULL && (!more || p->queue[1].first == NULL) &&
	    part_fulfil(p, wish))
		return true;
	enqueue(&p->queue[more], wish);
	return false;
}

void
room_forget(struct room *room, struct room_wish *wish)
{
	struct part *p;

	if (!wish->waiting)
		return;
	p = part_of(room, wish);
	dequeue(&p->queue[wish->more], wish);
	grant(p); /* there may be enough for those behind it */
}

void
room_give(struct room *room, struct room_wish *wish)
{
	struct part *p = part_of(room, wish);

	wish->share->held[wish->large][wish->tried] -= wish->length;
	part_give(p, wish->memory, order_of(wish->length));
	wish->memory = NULL;
	grant(p);
}

/* Of what it holds in those parts. Who wants more than he has may wait. */
static bool
is_wanted(const struct room *room, const struct room_share *share, bool tried)
{
	return (share->held[0][tried] > 0 && room->part[0][tried].queue[0].first != NULL) ||
	       (share->held[1][tried] > 0 && room->part[1][tried].queue[0].first != NULL);
}

bool
room_is_kept(const struct room *room, struct room_share *share, bool busy, uint64_t moved)
{
	uint64_t held = room_held(share);

	if (held == 0 || busy || moved - share->seen > held / STILL_PARTS) {
		share->seen = moved;
		share->still = 0;
		return false;
	}
	share->still++;
	if (share->still >= STILL_TICKS_UNTRIED)
		share->stood = moved;
	return (share->still >= STILL_TICKS && is_wanted(room, share, true)) ||
	       (share->still >= STILL_TICKS_UNTRIED && is_wanted(room, share, false));
}

bool
room_trim(struct room *room)
{
	bool touched = false;

	for (unsigned i = 0; i < PARTS; i++) {
		struct part *p = &room->part[i / 2][i % 2];

		if (p->used == 0 && p->touched && !p->used_lately) {
			madvise(p->memory, (size_t)p->pages * ROOM_PAGE, MADV_DONTNEED);
			p->touched = false;
		}
		p->used_lately = false;
		touched |= p->touched;
	}
	return touched;
}

/* ---- making and ending ----------------------------------------------------------- */

static void
part_free(struct part *p)
{
	assert(p->used == 0 && p->queue[0].first == NULL && p->queue[1].first == NULL);
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

static const unsigned shares[2][2] = { { 8, 8 }, { 4, 2 } };

int
room_new(struct room **out, uint64_t bytes, struct pl_error *err)
{
	struct room *room = calloc(1, sizeof *room);
	int error = -ENOMEM;

	if (room == NULL)
		return pl_error_set(err, error, "memory for requests");
	error = 0;
	for (unsigned i = 0; i < PARTS && error == 0; i++)
		error = part_new(&room->part[i / 2][i % 2], bytes / shares[i / 2][i % 2],
				 i / 2 == 0 ? ROOM_SMALL : (uint64_t)ROOM_PAGE << (ORDERS - 1));
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
	for (unsigned i = 0; i < PARTS; i++)
		part_free(&room->part[i / 2][i % 2]);
	free(room);
}
