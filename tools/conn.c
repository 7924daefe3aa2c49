/*
 * conn.c - what a client's connection is whatever it speaks: a socket, what is to be sent, what
 * has come.
 *
 * All replies there are come by one system call, and what takes their places goes by another.
 */
#include "conn.h"

#include <err.h>
#include <errno.h>
#include <limits.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#define RECEIVE_BUFFER (512u * 1024)

/* ---- to the server --------------------------------------------------------------- */

void
conn_add(struct conn *c, const void *data, size_t length)
{
	if (c->pieces == sizeof(c->to_send) / sizeof(c->to_send[0]))
		errx(2, "the server asks for more than it was offered");
	c->to_send[c->pieces++] = (struct iovec){ (void *)data, length };
}

void
conn_send(struct conn *c)
{
	struct msghdr msg = { .msg_iov = c->to_send,
			      .msg_iovlen = c->pieces < IOV_MAX ? c->pieces : IOV_MAX };
	ssize_t n = c->pieces > 0 ? sendmsg(c->fd, &msg, MSG_NOSIGNAL | MSG_DONTWAIT) : 0;
	unsigned sent = 0;

	if (n == -1 && errno != EINTR && errno != EAGAIN)
		err(2, "send");
	if (n <= 0)
		return;
	while (sent < c->pieces && (size_t)n >= c->to_send[sent].iov_len)
		n -= (ssize_t)c->to_send[sent++].iov_len;
	c->pieces -= sent;
	memmove(c->to_send, c->to_send + sent, c->pieces * sizeof(c->to_send[0]));
	if (n > 0) {
		c->to_send[0].iov_base = (uint8_t *)c->to_send[0].iov_base + n;
		c->to_send[0].iov_len -= (size_t)n;
	}
}

void
conn_send_now(struct conn *c, const void *data, size_t length)
{
	if (send(c->fd, data, length, MSG_NOSIGNAL) != (ssize_t)length)
		err(2, "send");
}

void
conn_issue(struct conn *c, unsigned number)
{
	struct conn_request *r = &c->requests[number];

	r->out = r->op == CONN_WRITE ? r->data : NULL;
	r->out_length = r->op == CONN_WRITE ? r->length : 0;
	c->protocol->issue(c, number);
	c->in_flight++;
}

/* ---- from the server ------------------------------------------------------------- */

void
conn_get(struct conn *c, void *to, size_t length)
{
	if (recv(c->fd, to, length, MSG_WAITALL) != (ssize_t)length)
		errx(2, "the server hung up in the handshake");
}

struct conn_request *
conn_find(struct conn *c, uint64_t number)
{
	if (number >= CONN_DEPTH)
		errx(2, "the server answered what was not asked");
	return &c->requests[number];
}

void
conn_data(struct conn *c, size_t length, uint8_t *into)
{
	c->left = length;
	c->into = into;
}

void
conn_done(struct conn *c, struct conn_request *r, const char *error)
{
	c->done = r;
	c->error = error;
}

/* Takes of the data that is still to come what is there. Returns how much. */
static size_t
take_data(struct conn *c, const uint8_t *data, size_t length)
{
	if (length > c->left)
		length = c->left;
	if (c->into != NULL) {
		memcpy(c->into, data, length);
		c->into += length;
	}
	c->left -= length;
	return length;
}

void
conn_receive(struct conn *c)
{
	ssize_t n = recv(c->fd, c->buffer + c->held, RECEIVE_BUFFER - c->held, 0);
	size_t at = 0, used;

	if (n == -1 && errno == EINTR)
		return;
	if (n <= 0)
		errx(2, "the server hung up: %s", n == 0 ? "end of file" : strerror(errno));
	c->held += (size_t)n;
	do {
		used = take_data(c, c->buffer + at, c->held - at);
		if (c->left == 0 && c->done != NULL) {
			struct conn_request *r = c->done;

			c->done = NULL;
			c->in_flight--;
			c->on_reply(c, r, c->error);
		}
		at += used;
		if (c->left > 0)
			break;
		used = c->protocol->take(c, c->buffer + at, c->held - at);
		at += used;
	} while (used > 0);
	c->held -= at;
	memmove(c->buffer, c->buffer + at, c->held);
}

/* A server may not take more before its replies are taken. Returns whether there are some. */
static bool
wait_for_room_or_replies(struct conn *c)
{
	struct pollfd p = { .fd = c->fd, .events = POLLIN | POLLOUT };

	return poll(&p, 1, -1) == 1 && (p.revents & ~POLLOUT) != 0;
}

void
conn_turn(struct conn *c)
{
	conn_send(c);
	if (c->pieces == 0 || wait_for_room_or_replies(c))
		conn_receive(c);
}

/* ---- connecting ------------------------------------------------------------------ */

static int
connect_unix(const char *path)
{
	struct sockaddr_un to = { .sun_family = AF_UNIX };
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);

	if (strlen(path) >= sizeof(to.sun_path))
		errx(2, "%s: too long for a socket", path);
	strcpy(to.sun_path, path);
	if (fd == -1 || connect(fd, (struct sockaddr *)&to, sizeof(to)) == -1)
		err(2, "%s", path);
	return fd;
}

static int
connect_tcp(const char *address)
{
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *found;
	char host[256], port[8];
	int fd = -1, on = 1, error;

	if (sscanf(address, "%255[^:]:%7s", host, port) != 2)
		errx(2, "%s: neither a path with a / nor HOST:PORT", address);
	error = getaddrinfo(host, port, &hints, &found);
	if (error != 0)
		errx(2, "%s: %s", address, gai_strerror(error));
	for (const struct addrinfo *ai = found; ai != NULL && fd == -1; ai = ai->ai_next) {
		fd = socket(ai->ai_family, SOCK_STREAM | SOCK_CLOEXEC, ai->ai_protocol);
		if (fd != -1 && connect(fd, ai->ai_addr, ai->ai_addrlen) == -1) {
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(found);
	if (fd == -1)
		err(2, "%s", address);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof(on));
	return fd;
}

/* Connects, and tells what comes behind HOST:PORT. */
static const char *
connect_to(struct conn *c, const char *address, const char *export_name)
{
	static const char scheme[] = "iscsi://";
	char host[256];
	size_t length;

	c->protocol = &conn_nbd;
	if (strncmp(address, scheme, strlen(scheme)) != 0) {
		c->fd = strchr(address, '/') != NULL ? connect_unix(address) : connect_tcp(address);
		return export_name;
	}
	c->protocol = &conn_iscsi;
	address += strlen(scheme);
	length = strcspn(address, "/");
	if (length >= sizeof(host))
		errx(2, "%s: too long", address);
	memcpy(host, address, length);
	host[length] = '\0';
	c->fd = connect_tcp(host);
	return address + length;
}

void
conn_open(struct conn *c, const char *address, const char *export_name, conn_replied *on_reply)
{
	const char *rest = connect_to(c, address, export_name);

	c->on_reply = on_reply;
	c->buffer = malloc(RECEIVE_BUFFER);
	if (c->buffer == NULL)
		err(2, "memory");
	c->protocol->open(c, rest);
}

void
conn_close(struct conn *c)
{
	c->protocol->close(c);
	conn_send(c);
	close(c->fd);
	free(c->buffer);
}
