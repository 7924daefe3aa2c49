/*
 * conn.c - an NBD connection, from accept to close.
 *
 *	HAGGLING --> WAITING (for output, TLS or an export) --> HAGGLING
 *	    |           |
 *	    v           v
 *	SERVING ----> ENDING ----> CLOSING
 *
 * The good path: the greeting goes out; options come in and are answered (handshake.c);
 * after GO requests come in (transmission.c) and answers go out (reply.c) until the peer says
 * that it has done; then what is under way is answered, and the connection closed.
 *
 * Every other end is one of two: ENDING takes nothing more from the peer but answers what was
 * asked; CLOSING answers nothing, and waits only for what is under way with the core, for its
 * memory is in use. The session ends after the last of it, so whoever gets an exclusive
 * export next finds no write of this one still to come.
 */
#include "conn.h"

#include "../stream-tls.h"
#include "reply.h"
#include "transmission.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND        UINT64_C(1000000000)
#define SHUTDOWN_WAIT (SECOND / 2) /* that a peer has to ask, and hear that it is too late */

#define CONN_OF(ptr, member) ((struct nbd_conn *)((char *)(ptr)-offsetof(struct nbd_conn, member)))

/* An export being opened, on the helper thread. */
struct opening {
	struct pl_io io;
	struct nbd_conn *conn;
	struct offer *offer;
	struct pl_error err;
};

/* ---- the end --------------------------------------------------------------------- */

static void
conn_free(struct nbd_conn *c)
{
	struct worker *w = c->worker;

	if (c->prev != NULL)
		c->prev->next = c->next;
	else
		w->conns = c->next;
	if (c->next != NULL)
		c->next->prev = c->prev;
	nbd_transmission_free(c);
	if (c->begun)
		session_end(&c->shake.session);
	handshake_end(&c->shake);
	nbd_output_free(&c->out);
	peer_clear(&c->secured);
	tls_credentials_put(c->credentials);
	/* Who was never served is no news: whoever scans ports could fill the log. */
	if (c->session != NULL && c->why != NULL)
		peer_info("%s: closed: %s", c->client->peer.text, c->why);
	else
		log_debug("%s: closed: %s", c->client->peer.text,
			  c->why != NULL ? c->why : "it has done");
	clients_leave(c->client);
	worker_left(w);
	free(c->input);
	free(c);
}

/* Ends what can end now. */
void
nbd_conn_settle(struct nbd_conn *c)
{
	if (c->state == CONN_ENDING && c->under_way == 0 && !nbd_reply_pending(c))
		nbd_conn_close(c, c->why);
	else if (c->state == CONN_CLOSING && c->closed && c->under_way == 0 && !c->pump_posted &&
		 !c->reply_posted && c->opening == NULL)
		conn_free(c);
}

void
nbd_conn_close(struct nbd_conn *c, const char *why)
{
	if (c->state == CONN_CLOSING)
		return;
	c->state = CONN_CLOSING;
	c->why = why;
	__atomic_store_n(&c->client->phase, CLIENT_CLOSING, __ATOMIC_RELAXED);
	if (c->session != NULL) {
		nbd_transmission_drop(c);
		nbd_reply_drop(c);
	}
	stream_close(&c->stream);
}

/* Nothing more is taken from the peer; what was asked is answered, then it is closed. */
static void
conn_end(struct nbd_conn *c, const char *why)
{
	if (c->state == CONN_CLOSING || c->state == CONN_ENDING)
		return;
	if (c->session != NULL)
		nbd_transmission_drop(c);
	c->state = CONN_ENDING;
	c->why = why;
	nbd_conn_settle(c);
}

static void
conn_closed(struct stream *s)
{
	struct nbd_conn *c = CONN_OF(s, stream);

	c->closed = true;
	nbd_conn_settle(c);
}

/* ---- input ----------------------------------------------------------------------- */

static const char *
end_of_input(const struct nbd_conn *c, ssize_t result)
{
	if (result == 0)
		return c->session == NULL ? "the peer has left while haggling"
					  : "the peer has left without a word";
	if (result == -EPROTO)
		return "the peer has left without ending TLS, or broke its rules";
	return strerror((int)-result);
}

/* Either more input, or its end: then false. */
static bool
input_came(struct nbd_conn *c, ssize_t result)
{
	__atomic_store_n(&c->client->received, c->stream.bytes_in, __ATOMIC_RELAXED);
	if (c->state == CONN_CLOSING) {
		if (c->session != NULL)
			nbd_transmission_drop(c); /* what this receive had kept */
		return false;
	}
	if (result > 0) {
		if (c->state == CONN_SERVING)
			nbd_transmission_received(c, (size_t)result);
		else
			c->input_have += (size_t)result;
		return true;
	}
	if (c->state == CONN_SERVING && result == 0)
		conn_end(c, end_of_input(c, result)); /* it may still read its answers */
	else
		nbd_conn_close(c, end_of_input(c, result));
	return false;
}

/* Into recv_iov. Returns whether something came at once. */
static bool
conn_receive(struct nbd_conn *c, int iovcnt)
{
	ssize_t n = stream_recv(&c->stream, c->recv_iov, iovcnt);

	c->receiving = n == -EINPROGRESS;
	return !c->receiving && input_came(c, n);
}

static void
pump(struct nbd_conn *c)
{
	while (c->state == CONN_SERVING && !c->receiving) {
		enum nbd_progress progress = nbd_transmission_input(c);

		if (progress == NBD_ENDS)
			conn_end(c, c->why);
		if (progress != NBD_NEEDS_INPUT ||
		    !conn_receive(c, nbd_transmission_want(c, c->recv_iov)))
			return;
	}
}

static void
pump_run(struct pl_work *work)
{
	struct nbd_conn *c = CONN_OF(work, pump_work);

	c->pump_posted = false;
	pump(c);
	nbd_conn_settle(c);
}

void
nbd_conn_pump(struct nbd_conn *c)
{
	if (c->pump_posted)
		return;
	c->pump_posted = true;
	c->pump_work.run = pump_run;
	pl_loop_later(c->worker->loop, &c->pump_work);
}

/* ---- haggling -------------------------------------------------------------------- */

static void haggle(struct nbd_conn *c);
static void haggled(struct nbd_conn *c, enum handshake_step step);

static void
serve(struct nbd_conn *c)
{
	c->session = &c->shake.session;
	c->agreed = c->shake.agreed;
	if (nbd_transmission_start(c) != 0) {
		nbd_conn_close(c, "no memory");
		return;
	}
	__atomic_store_n(&c->client->phase, CLIENT_SERVED, __ATOMIC_RELAXED);
	c->state = CONN_SERVING;
	c->now = stats_now();
	nbd_conn_pump(c);
}

static int64_t
opening_call(struct pl_io *io)
{
	struct opening *o = (struct opening *)io;

	return offer_open(o->offer, &o->err);
}

static void
opening_done(struct pl_io *io, int64_t result)
{
	struct opening *o = (struct opening *)io;
	struct nbd_conn *c = o->conn;

	c->opening = NULL;
	if (c->state == CONN_WAITING) {
		c->state = CONN_HAGGLING;
		haggled(c, handshake_opened(&c->shake, (int)result, &o->err, &c->out));
		haggle(c);
	}
	free(o);
	nbd_conn_settle(c);
}

static void
open_export(struct nbd_conn *c)
{
	struct opening *o = calloc(1, sizeof *o);

	if (o == NULL) {
		nbd_conn_close(c, "no memory");
		return;
	}
	o->io = (struct pl_io){
		.kind = PL_IO_CALL, .fd = -1, .slot = -1, .call = opening_call, .done = opening_done
	};
	o->conn = c;
	o->offer = c->shake.offer;
	c->opening = o;
	pl_loop_io(c->worker->loop, &o->io);
}

/* The output has been sent, and step is to be done; state is WAITING. */
static void
step_do(struct nbd_conn *c, enum handshake_step step)
{
	switch (step) {
	case HANDSHAKE_MORE:
	case HANDSHAKE_AGAIN: c->state = CONN_HAGGLING; break;
	case HANDSHAKE_TLS:
		if (c->input_have > c->input_at) {
			nbd_conn_close(c, "plain text after STARTTLS");
		} else {
			memcpy(c->secured.text, c->client->peer.text, PEER_TEXT);
			stream_secure(&c->stream, c->credentials, &c->secured);
		}
		break;
	case HANDSHAKE_OPEN: open_export(c); break;
	case HANDSHAKE_GO: serve(c); break;
	case HANDSHAKE_CLOSE: conn_end(c, c->shake.why); break;
	}
}

/* A step of the handshake: its output goes out first. */
static void
haggled(struct nbd_conn *c, enum handshake_step step)
{
	ssize_t result = 0;

	if (step == HANDSHAKE_GO)
		c->begun = true;
	c->state = CONN_WAITING;
	if (c->out.length > 0) {
		c->next_step = step;
		c->out_iov = (struct iovec){ c->out.data, c->out.length };
		result = stream_send(&c->stream, &c->out_iov, 1);
		if (result == -EINPROGRESS)
			return;
		c->out.length = 0;
	}
	if (result < 0)
		nbd_conn_close(c, "the peer has left while haggling");
	else
		step_do(c, step);
}

/* Returns whether more input came at once. */
static bool
haggle_receive(struct nbd_conn *c)
{
	memmove(c->input, c->input + c->input_at, c->input_have - c->input_at);
	c->input_have -= c->input_at;
	c->input_at = 0;
	c->recv_iov[0] = (struct iovec){ c->input + c->input_have, NBD_INPUT - c->input_have };
	return conn_receive(c, 1);
}

/* Runs the handshake on what has been received, until it has to wait for something. */
static void
haggle(struct nbd_conn *c)
{
	while (c->state == CONN_HAGGLING && !c->receiving) {
		size_t used = 0;
		enum handshake_step step =
			handshake_step(&c->shake, c->input + c->input_at,
				       c->input_have - c->input_at, &used, &c->out);

		c->input_at += used;
		if (step != HANDSHAKE_MORE || c->out.length > 0)
			haggled(c, step);
		else if (!haggle_receive(c))
			return;
	}
}

static void
conn_received(struct stream *s, ssize_t result)
{
	struct nbd_conn *c = CONN_OF(s, stream);

	c->receiving = false;
	if (input_came(c, result)) {
		pump(c);
		haggle(c);
	}
	nbd_conn_settle(c);
}

static void
conn_secured(struct stream *s, int error)
{
	struct nbd_conn *c = CONN_OF(s, stream);

	if (c->state == CONN_WAITING) {
		if (error != 0) {
			nbd_conn_close(c, "no TLS");
		} else {
			clients_identified(c->client, &c->secured);
			handshake_secured(&c->shake);
			c->state = CONN_HAGGLING;
			haggle(c);
		}
	}
	nbd_conn_settle(c);
}

static void
conn_sent(struct stream *s, ssize_t result)
{
	struct nbd_conn *c = CONN_OF(s, stream);

	__atomic_store_n(&c->client->sent, s->bytes_out, __ATOMIC_RELAXED);
	if (c->session != NULL) {
		nbd_reply_sent(c, result);
	} else if (c->state == CONN_WAITING) {
		c->out.length = 0;
		if (result < 0)
			nbd_conn_close(c, "the peer has left while haggling");
		else
			step_do(c, c->next_step);
		haggle(c);
	}
	nbd_conn_settle(c);
}

/* ---- orders and deadlines -------------------------------------------------------- */

static void
conn_ordered(struct client *client)
{
	struct nbd_conn *c = client->conn;

	switch (__atomic_load_n(&client->order, __ATOMIC_ACQUIRE)) {
	case CLIENT_GO_ON: return;
	case CLIENT_SHUT_DOWN:
		if (c->shutting_down)
			return;
		c->shutting_down = true;
		c->shut_down_at = stats_now();
		if (c->session == NULL)
			handshake_shut_down(&c->shake);
		return;
	case CLIENT_CUT: nbd_conn_close(c, __atomic_load_n(&client->why, __ATOMIC_RELAXED)); break;
	}
}

static bool
is_idle(const struct nbd_conn *c)
{
	return c->under_way == 0 && !nbd_reply_pending(c) && c->filling == NULL &&
	       c->drained == NULL && c->wanting == NULL;
}

uint64_t
nbd_conn_moved(const struct nbd_conn *c)
{
	return c->stream.bytes_in + c->stream.bytes_out;
}

static bool
is_in_the_way(struct nbd_conn *c)
{
	return room_is_kept(c->worker->room, &c->share, c->under_way > 0, nbd_conn_moved(c));
}

static void
conn_tick(struct nbd_conn *c, uint64_t now)
{
	switch (c->state) {
	case CONN_HAGGLING:
	case CONN_WAITING:
		if (now > c->deadline)
			nbd_conn_close(c, "it took too long to agree");
		else if (c->shutting_down && now - c->shut_down_at > SHUTDOWN_WAIT)
			nbd_conn_close(c, "the server is shutting down");
		break;
	case CONN_SERVING:
	case CONN_ENDING:
		if (c->shutting_down && now - c->shut_down_at > SHUTDOWN_WAIT && is_idle(c))
			nbd_conn_close(c, "the server is shutting down");
		else if (is_in_the_way(c))
			nbd_conn_close(c,
				       "it held memory that others waited for, and did not move");
		break;
	default: break;
	}
	nbd_conn_settle(c);
}

void
nbd_conns_tick(struct worker *worker, uint64_t now)
{
	struct nbd_conn *next;

	for (struct nbd_conn *c = worker->conns; c != NULL; c = next) {
		next = c->next;
		conn_tick(c, now);
	}
}

/* ---- the beginning --------------------------------------------------------------- */

static void
start_failed(struct worker *worker, struct client *client, int fd, int send_fd)
{
	log_error("%s: no memory for the connection", client->peer.text);
	close(fd);
	if (send_fd != fd)
		close(send_fd);
	clients_leave(client);
	worker_left(worker);
}

void
nbd_conn_start(struct worker *worker, struct client *client, int fd, int send_fd)
{
	struct nbd_conn *c = calloc(1, sizeof *c);
	uint8_t *input = malloc(NBD_INPUT);

	if (c == NULL || input == NULL) {
		free(c);
		free(input);
		start_failed(worker, client, fd, send_fd);
		return;
	}
	c->worker = worker;
	c->client = client;
	c->input = input;
	c->next = worker->conns;
	if (c->next != NULL)
		c->next->prev = c;
	worker->conns = c;
	c->deadline = stats_now() + worker->settings->handshake_timeout;
	c->stream.received = conn_received;
	c->stream.sent = conn_sent;
	c->stream.secured = conn_secured;
	c->stream.closed = conn_closed;
	stream_init(&c->stream, worker->loop, fd, send_fd);
	c->credentials = worker_credentials(worker);
	c->shake = (struct handshake){ .worker = worker,
				       .client = client,
				       .peer = &client->peer,
				       .can_tls = c->credentials != NULL };

	clients_serve(client, worker, conn_ordered, c);
	log_debug("%s: connected", client->peer.text);
	if (handshake_start(&c->shake, &c->out) != 0)
		nbd_conn_close(c, "no memory");
	else
		haggled(c, HANDSHAKE_MORE);
	haggle(c);
}
