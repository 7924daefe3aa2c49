/*
 * listener.h - where clients come in: addresses, listening sockets, accepting.
 */
#ifndef LISTENER_H
#define LISTENER_H

#include "platter.h"

enum listener_kind { LISTENER_UNIX, LISTENER_TCP, LISTENER_VSOCK, LISTENER_ISCSI };

struct listener_settings {
	int kind;          /* enum listener_kind */
	const char *value; /* unix: PATH; tcp, iscsi: [HOST:]PORT; vsock: [CID:]PORT */
	const char *where; /* for messages */
	uint64_t mode;     /* unix: permissions of the socket file */
};

/* Opens nothing and asks nobody. Errors: -EINVAL, and the sentence names the address. */
int listener_check(const struct listener_settings *settings, struct pl_error *err);

struct listener; /* one listening socket */

/*
 * Binds and listens. TCP: every address of the host ("localhost" without one, "*" for all);
 * those that fail are logged, one that works is enough, but one that is in use is an error, for
 * clients would reach either; port 0: the kernel's choice, the same for all of them. A unix
 * socket that nobody listens on is replaced, any other file is not (-EEXIST).
 * Appends to *list. Errors: what bind(2) says, -EINVAL; the sentence names the address. To know
 * that an address is in use takes half a second.
 */
int listener_open(const struct listener_settings *settings, struct listener **list,
		  struct pl_error *err);

/* The sockets that systemd hands over, sd_listen_fds(3). *count: how many, 0 when it did not
 * start us so. Errors: -EINVAL when one is no listening stream socket. */
int listener_adopt(struct listener **list, unsigned *count, struct pl_error *err);

struct listener *listener_next(const struct listener *l);
/* "nbd://localhost:10809", "nbd+unix:///?socket=/run/x", "nbd+vsock://3:10809"; nbds with tls.
 * The caller frees it. NULL: no memory. */
char *listener_uri(const struct listener *l, bool tls, const char *export_name);
/* The same of iSCSI: "iscsi://localhost:3260/IQN/LUN". */
char *listener_iscsi_uri(const struct listener *l, const char *target, unsigned lun);

/* Accepts on the loop until listener_stop(). Sockets come close-on-exec, with TCP_NODELAY and
 * keep-alive set. Lack of descriptors is waited out and logged once. */
void listeners_start(struct listener *list, struct pl_loop *loop,
		     void (*accepted)(void *user, int fd), void *user);

/* Closes them and removes unix socket files that were made here; `stopped` follows on the
 * loop when no accept is under way any more (at once for an empty list). */
void listeners_stop(struct listener *list, void (*stopped)(void *user), void *user);
void listeners_free(struct listener *list); /* after that, or if never started */

#endif
