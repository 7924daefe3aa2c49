/*
 * reply.h - answers out: from outcomes to sent bytes, many with one send.
 *
 * Source: NBD proto.md, "Simple reply message", "Structured reply chunk message".
 */
#ifndef NBD_REPLY_H
#define NBD_REPLY_H

#include "conn.h"

/* r is done: 0 or a negative errno. Its answer goes out with the others of this turn, and
 * then it is freed. text: for a person, may be NULL. */
void nbd_reply(struct nbd_request *r, int error, const char *text);

/* Whether answers are waiting or on their way. */
bool nbd_reply_pending(const struct nbd_conn *c);

/* The send that was under way has ended. */
void nbd_reply_sent(struct nbd_conn *c, ssize_t result);

/* Nothing is to be sent any more. */
void nbd_reply_drop(struct nbd_conn *c);

#endif
