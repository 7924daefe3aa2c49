/*
 * witness.c - a client that puts every acknowledgement on record the moment it comes.
 *
 *	witness ADDRESS CONNECTIONS DEPTH PROMISES OFFSET LENGTH SEED [writes]
 *
 * It writes, zeroes, trims and flushes (or only writes and flushes) between OFFSET and OFFSET +
 * LENGTH until so many requests with FUA and flushes have been acknowledged, then flushes, and the
 * last mark is "whole". The disk below the server is recorded (tests/lib/dmlog.py); at each
 * acknowledgement, before anything else, a mark goes into that record. What every acknowledgement
 * owes is judged from the record: tests/lib/judge.py.
 *
 * Each place in flight has areas of its own, of a few sectors, and one request at a time. So the
 * writes to an area have an order, and are numbered: a sector holds its own number, that of its
 * write, and nothing else. Neighbours belong to different places, and may share a page. A zero or
 * a trim that is not durable at its acknowledgement is followed by a flush before anything else is
 * done there: zeroes carry no number, and could not be told from later ones.
 *
 * Marks: KIND:FIRST:SECTORS:NUMBER, where KIND is
 *	w W	a write, with FUA
 *	z Z	zeroes, with FUA
 *	t T	a trim, with FUA
 *	r	after a trim, and with its number: what was read then, ":" and a 1 for each sector
 *		that is zero, a 0 for others
 *	f:N	a flush, before which the first N marks had been made when it was sent
 */
#include "../../tools/conn.h"

#include "bytes.h"

#include <err.h>
#include <fcntl.h>
#include <linux/dm-ioctl.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>

#define SECTOR    512
#define MAX_CONNS 16
#define MAX_DEPTH 64
#define AREAS     8 /* of each place */
#define MAX_AREA  24
#define UNIT      16 /* bytes of a stamp */
#define STAMP     0x57495453u
#define MARK      128 /* bytes of its text, at most */

/* Sectors of the areas of a place. All of the first are whole pages, those of the second are
 * not, and share them with others. */
static const unsigned area_sectors[AREAS] = { 8, 16, 24, 8, 1, 3, 5, 11 };

struct area {
	uint64_t first; /* sector */
	unsigned sectors;
	uint32_t number; /* of the last write, zero or trim */
};

struct place {
	struct area areas[AREAS], *area; /* and the one that is in use */
	enum { DO_ANYTHING, DO_FLUSH, DO_READ } next;
	bool trimmed;    /* and what is there now is to be read */
	unsigned before; /* of a flush: marks when it was sent */
	uint8_t data[MAX_AREA * SECTOR];
};

struct client {
	struct conn conn;
	struct place places[MAX_DEPTH];
};

static struct client clients[MAX_CONNS];
static unsigned connections, depth, wanted, promises, marks;
static bool only_writes;
static uint64_t random_state;
static int control;

static unsigned
random_below(unsigned limit)
{
	random_state ^= random_state << 13;
	random_state ^= random_state >> 7;
	random_state ^= random_state << 17;
	return (unsigned)(random_state >> 33) % limit;
}

/* ---- on record ------------------------------------------------------------------- */

static void
put_mark(const char *text)
{
	enum { TEXT = sizeof(struct dm_ioctl) + sizeof(struct dm_target_msg) };
	union {
		struct dm_ioctl head; /* behind it a struct dm_target_msg, and its text */
		char bytes[TEXT + MARK];
	} m = { .bytes = "" };

	m.head.version[0] = DM_VERSION_MAJOR;
	m.head.data_size = sizeof(m);
	m.head.data_start = sizeof(m.head);
	strcpy(m.head.name, "recorded");
	snprintf(m.bytes + TEXT, MARK, "mark %s", text);
	if (ioctl(control, DM_TARGET_MSG, &m) == -1)
		err(2, "the mark %s", text);
}

static void
record(const struct place *p, const struct conn_request *r)
{
	static const char kinds[] = {
		[CONN_READ] = 'r', [CONN_WRITE] = 'w', [CONN_ZERO] = 'z', [CONN_TRIM] = 't'
	};
	char text[MARK], *at = text;

	if (r->op == CONN_FLUSH) {
		snprintf(text, sizeof(text), "f:%u", p->before);
	} else {
		at += sprintf(at, "%c:%llu:%u:%u", kinds[r->op] - (r->fua ? 'a' - 'A' : 0),
			      (unsigned long long)p->area->first, p->area->sectors,
			      p->area->number);
	}
	if (r->op == CONN_READ) {
		static const uint8_t zero[SECTOR];

		*at++ = ':';
		for (unsigned i = 0; i < p->area->sectors; i++)
			*at++ = memcmp(p->data + i * SECTOR, zero, SECTOR) == 0 ? '1' : '0';
		*at = '\0';
	}
	put_mark(text);
	marks++;
	promises += r->fua || r->op == CONN_FLUSH;
}

/* ---- what is done ---------------------------------------------------------------- */

static void
stamp(struct place *p)
{
	for (unsigned at = 0; at < p->area->sectors * SECTOR; at += UNIT) {
		put_be32(p->data + at, STAMP);
		put_be32(p->data + at + 4, (uint32_t)(p->area->first + at / SECTOR));
		put_be32(p->data + at + 8, p->area->number);
		put_be32(p->data + at + 12, ~p->area->number);
	}
}

static void
change(struct place *p, struct conn_request *r, bool by_nbd)
{
	unsigned die = random_below(100);

	p->area = &p->areas[random_below(AREAS)];
	p->area->number++;
	r->op = only_writes || die < 76 ? CONN_WRITE : die < 90 ? CONN_ZERO : CONN_TRIM;
	/* A SCSI command to zero or to unmap has no FUA. */
	r->fua = random_below(4) > 0 && (by_nbd || r->op == CONN_WRITE);
	p->trimmed = r->op == CONN_TRIM;
	if (r->op == CONN_WRITE)
		stamp(p);
	else if (!r->fua)
		p->next = DO_FLUSH;
	else if (p->trimmed)
		p->next = DO_READ;
}

static void
do_something(struct client *c, unsigned number)
{
	struct conn_request *r = &c->conn.requests[number];
	struct place *p = &c->places[number];
	int next = p->next;

	p->next = DO_ANYTHING;
	r->data = p->data;
	r->fua = false;
	if (next == DO_READ) {
		r->op = CONN_READ;
		p->trimmed = false;
	} else if (next == DO_FLUSH || random_below(10) == 0) {
		r->op = CONN_FLUSH;
		p->before = marks;
		p->next = p->trimmed ? DO_READ : DO_ANYTHING;
	} else {
		change(p, r, c->conn.protocol == &conn_nbd);
	}
	r->offset = r->op == CONN_FLUSH ? 0 : p->area->first * SECTOR;
	r->length = r->op == CONN_FLUSH ? 0 : p->area->sectors * SECTOR;
	conn_issue(&c->conn, number);
}

static void
replied(struct conn *conn, struct conn_request *r, const char *error)
{
	struct client *c = (struct client *)conn;
	unsigned number = (unsigned)(r - conn->requests);
	struct place *p = &c->places[number];

	if (error != NULL)
		errx(2, "request %u at sector %llu: %s", r->op,
		     (unsigned long long)r->offset / SECTOR, error);
	record(p, r);
	if (promises < wanted || p->next != DO_ANYTHING)
		do_something(c, number);
}

static void
work(void)
{
	for (unsigned i = 0; i < connections; i++) {
		for (unsigned n = 0; n < depth; n++)
			do_something(&clients[i], n);
	}
	for (;;) {
		struct pollfd polled[MAX_CONNS];
		unsigned busy = 0;

		for (unsigned i = 0; i < connections; i++) {
			struct conn *c = &clients[i].conn;

			conn_send(c);
			polled[i] =
				(struct pollfd){ .fd = c->in_flight > 0 ? c->fd : -1,
						 .events = POLLIN | (c->pieces > 0 ? POLLOUT : 0) };
			busy += c->in_flight;
		}
		if (busy == 0)
			return;
		if (poll(polled, connections, -1) == -1)
			err(2, "poll");
		for (unsigned i = 0; i < connections; i++) {
			if ((polled[i].revents & ~POLLOUT) != 0)
				conn_receive(&clients[i].conn);
		}
	}
}

/* ---- where and how much ---------------------------------------------------------- */

static void
lay_out(uint64_t first, uint64_t end)
{
	for (unsigned a = 0; a < AREAS; a++) {
		for (unsigned n = 0; n < depth; n++) {
			for (unsigned i = 0; i < connections; i++) {
				struct area *area = &clients[i].places[n].areas[a];

				*area = (struct area){ .first = first, .sectors = area_sectors[a] };
				first += area->sectors;
			}
		}
	}
	if (first > end)
		errx(2, "it takes %llu sectors more", (unsigned long long)(first - end));
}

int
main(int argc, char **argv)
{
	unsigned long long offset, length;

	only_writes = argc == 9 && strcmp(argv[8], "writes") == 0;
	if (argc != 8 + only_writes)
		errx(2, "usage: witness ADDRESS CONNECTIONS DEPTH PROMISES OFFSET LENGTH SEED "
			"[writes]");
	connections = (unsigned)atoi(argv[2]);
	depth = (unsigned)atoi(argv[3]);
	wanted = (unsigned)atoi(argv[4]);
	offset = strtoull(argv[5], NULL, 10);
	length = strtoull(argv[6], NULL, 10);
	random_state = strtoull(argv[7], NULL, 10) * 2 + 1;
	if (connections < 1 || connections > MAX_CONNS || depth < 1 || depth > MAX_DEPTH)
		errx(2, "1 to %d connections, a depth of 1 to %d", MAX_CONNS, MAX_DEPTH);
	lay_out(offset / SECTOR, (offset + length) / SECTOR);
	control = open("/dev/mapper/control", O_RDWR | O_CLOEXEC);
	if (control == -1)
		err(2, "/dev/mapper/control");
	for (unsigned i = 0; i < connections; i++)
		conn_open(&clients[i].conn, argv[1], "", replied);
	work();
	clients[0].places[0].next = DO_FLUSH;
	do_something(&clients[0], 0);
	while (clients[0].conn.in_flight > 0)
		conn_turn(&clients[0].conn);
	put_mark("whole");
	for (unsigned i = 0; i < connections; i++)
		conn_close(&clients[i].conn);
	return 0;
}
