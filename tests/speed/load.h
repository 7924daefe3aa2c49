/*
 * load.h - a load generator: what is the same for each protocol, and what a protocol brings.
 */
#ifndef LOAD_H
#define LOAD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/uio.h>

#define MAX_DEPTH  256
#define SLOT_PARTS 64 /* pieces of data that a request in flight may send at a time, */
#define SLOT_HEAD  48 /* and bytes of the header of each */

enum load_kind { LOAD_READ, LOAD_WRITE, LOAD_FLUSH };

struct slot {
	unsigned number;
	enum load_kind kind;
	uint64_t offset; /* bytes */
	uint64_t since;
	uint8_t heads[1 + SLOT_PARTS][SLOT_HEAD]; /* the protocol's, until they have been sent */
};

struct conn;

struct protocol {
	const char *name; /* as in an address: "nbd", "iscsi" */
	/* The socket is connected. rest: of the address, behind HOST:PORT or the socket. Returns
	 * the size in bytes; ends the program if this cannot be measured. */
	uint64_t (*open)(struct conn *c, const char *rest);
	/* Adds the pieces of the slot's request. */
	void (*issue)(struct conn *c, struct slot *s);
	/* Looks at what has come. Returns how much of it is used; 0: more has to come first. Sets
	 * c->skip to pass by data, and calls load_replied(). */
	size_t (*take)(struct conn *c, const uint8_t *data, size_t length, uint64_t time);
	void (*end)(struct conn *c); /* adds the pieces of a farewell */
};
extern const struct protocol protocol_nbd, protocol_iscsi;

extern uint64_t bs;
extern bool writes, by_fua, by_flush;
extern uint8_t *payload; /* bs bytes: what all writes write */

struct iscsi_state {
	uint32_t cmd_sn, exp_stat_sn, task_tag;
	uint32_t block;            /* bytes */
	uint32_t immediate, burst; /* bytes that may go with a command; in one PDU */
	uint8_t lun;
	uint8_t farewell[48];
};

int load_fd(const struct conn *c);
struct slot *load_slot(struct conn *c, uint64_t number); /* ends the program if there is none */
struct iscsi_state *load_iscsi(struct conn *c);
void load_add(struct conn *c, const void *data, size_t length); /* stays the caller's */
void load_skip(struct conn *c, size_t bytes);
/* error: NULL, or what the server answered. */
void load_replied(struct conn *c, struct slot *s, const char *error, uint64_t time);
void load_get(int fd, void *to, size_t length); /* blocks */

#endif
