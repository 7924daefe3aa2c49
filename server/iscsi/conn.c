/*
 * conn.c - an iSCSI connection, from accept to close.
 *
 *	HAGGLING <-> WAITING (for output, or an old session's end)
 *	    |  \_ MOVING (to the target's worker) _/
 *	    v
 *	SERVING ----> ENDING ----> CLOSING
 *
 * The good path: login requests come in and are answered (login.c); the first of them names the
 * target, and the connection moves to the worker where that lives. The session begins: a nexus of
 * scsi-emu's is made. In the full feature phase PDUs come in (receive.c), become tasks (task.c),
 * and are answered (send.c), until the initiator logs out: the nexus ends, that is answered, and
 * the connection closed.
 *
 * A session that logs in as one that is there already replaces it (RFC 7143, "Session
 * Reinstatement"): the old one is closed, and its nexus has ended, with all of its writes, before
 * the new one's login is answered.
 *
 * Every other end is one of two: ENDING takes nothing more from the peer, but sends what there is
 * to be sent; CLOSING sends nothing, ends the nexus, and waits for that, for its commands' memory
 * is in use. Whoever comes next finds no write of this one still to come.
 *
 * An initiator that says nothing for long is asked whether it is there (NOP-In), and given up if
 * it does not answer.
 */
#include "conn.h"

#include "../stats.h"

#include <assert.h>
#include <errno.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define SECOND      UINT64_C(1000000000)
#define LOGOUT_WAIT (ISCSI_LOGOUT_SECONDS * SECOND)
#define IDLE        (30 * SECOND) /* without a byte from it, until an initiator is asked */
#define PING_WAIT   (15 * SECOND) /* for its answer */

#define LOGGED_IN_ANEW "its initiator has logged in anew"

#define CONN_OF(ptr, member) \
	((struct iscsi_conn *)((char *)(ptr)-offsetof(struct iscsi_conn, member)))

/* ---- the list -------------------------------------------------------------------- */

static void
conn_link(struct iscsi_conn *c)
{
	struct worker *w = c->worker;

	c->prev = NULL;
	c->next = w->iscsi;
	if (c->next != NULL)
		c->next->prev = c;
	w->iscsi = c;
}

static void
conn_unlink(struct iscsi_conn *c)
{
	*(c->prev != NULL ? &c->prev->next : &c->worker->iscsi) = c->next;
	if (c->next != NULL)
		c->next->prev = c->prev;
}

/* ---- the end --------------------------------------------------------------------- */

static void
conn_free(struct iscsi_conn *c)
{
	struct worker *w = c->worker;

	conn_unlink(c);
	iscsi_tasks_free(c);
	iscsi_login_end(&c->login);
	iscsi_output_free(&c->out);
	/* Who was never served is no news: whoever scans ports could fill the log. */
	if (c->served && c->why != NULL)
		peer_info("%s: closed: %s", c->client->peer.text, c->why);
	else
		log_debug("%s: closed: %s", c->client->peer.text,
			  c->why != NULL ? c->why : "it has logged out");
	clients_leave(c->client);
	worker_left(w);
	free(c->input);
	free(c);
}

/* Ends what can end now. */
void
iscsi_conn_settle(struct iscsi_conn *c)
{
	if (c->state == ISCSI_ENDING && c->logout == NULL && !iscsi_send_pending(c))
		iscsi_conn_close(c, c->why);
	else if (c->state == ISCSI_CLOSING && c->closed && c->nexus == NULL && !c->pump_posted &&
		 !c->send_posted)
		conn_free(c);
}

void
iscsi_conn_close(struct iscsi_conn *c, const char *why)
{
	if (c->state == ISCSI_CLOSING)
		return;
	if (c->state != ISCSI_ENDING) /* which has its reason, or none: it has logged out */
		c->why = why;
	c->state = ISCSI_CLOSING;
	c->waits_for_session = false;
	__atomic_store_n(&c->client->phase, CLIENT_CLOSING, __ATOMIC_RELAXED);
	iscsi_conn_end_nexus(c);
	iscsi_tasks_drop(c);
	iscsi_send_drop(c);
	stream_close(&c->stream);
}

void
iscsi_conn_end(struct iscsi_conn *c, const char *why)
{
	if (c->state == ISCSI_CLOSING || c->state == ISCSI_ENDING)
		return;
	c->state = ISCSI_ENDING;
	c->why = why;
	iscsi_conn_settle(c);
}

static void
conn_closed(struct stream *s)
{
	struct iscsi_conn *c = CONN_OF(s, stream);

	c->closed = true;
	iscsi_conn_settle(c);
}

/* ---- the session ----------------------------------------------------------------- */

static bool
is_same_port(const struct iscsi_conn *a, const struct iscsi_conn *b)
{
	return a->login.target == b->login.target &&
	       memcmp(a->login.isid, b->login.isid, sizeof a->login.isid) == 0 &&
	       strcmp(a->login.initiator, b->login.initiator) == 0;
}

static struct iscsi_conn *
find_session(const struct iscsi_conn *c)
{
	for (struct iscsi_conn *old = c->worker->iscsi; old != NULL; old = old->next) {
		if (old != c && old->nexus != NULL && is_same_port(old, c))
			return old;
	}
	return NULL;
}

/* Not 0, and nobody else's on this worker, where all sessions of a target are. */
static uint16_t
new_tsih(const struct worker *w)
{
	static __thread uint16_t last;
	const struct iscsi_conn *c;

	do {
		last += last == UINT16_MAX ? 2 : 1;
		for (c = w->iscsi; c != NULL && c->tsih != last; c = c->next)
			;
	} while (c != NULL);
	return last;
}

static void login_go_on(struct iscsi_conn *c, enum login_step step);

static void
session_answer(struct iscsi_conn *c, enum iscsi_login_status status)
{
	c->waits_for_session = false;
	if (status == ISCSI_LOGIN_SUCCESS)
		c->tsih = new_tsih(c->worker);
	login_go_on(c, iscsi_login_session(&c->login, status, c->tsih, &c->out));
}

static void begin_session(struct iscsi_conn *c);

static void
nexus_gone(void *user)
{
	struct iscsi_conn *c = user, *next;
	struct worker *w = c->worker;

	c->nexus = NULL;
	iscsi_tasks_logged_out(c);
	iscsi_conn_settle(c);
	for (c = w->iscsi; c != NULL; c = next) {
		next = c->next;
		if (c->waits_for_session)
			begin_session(c);
	}
}

void
iscsi_conn_end_nexus(struct iscsi_conn *c)
{
	if (c->nexus == NULL || c->nexus_ending)
		return;
	c->nexus_ending = true;
	target_leave(c->login.target, c->nexus);
	scsi_nexus_end(c->nexus, nexus_gone, c);
}

/* There is no session of this initiator port. */
static enum iscsi_login_status
nexus_begin(struct iscsi_conn *c)
{
	struct iscsi_login *login = &c->login;
	struct pl_error err;

	if (scsi_nexus_new(target_scsi(login->target), login->initiator, login->isid, &c->nexus,
			   &err) != 0) {
		log_error("%s: %s", c->client->peer.text, err.text);
		c->nexus = NULL;
		return ISCSI_LOGIN_NO_RESOURCES;
	}
	if (target_join(login->target, c->client, login->initiator, c->nexus) != 0) {
		c->nexus_ending = true;
		scsi_nexus_end(c->nexus, nexus_gone, c);
		return ISCSI_LOGIN_UNAVAILABLE;
	}
	return ISCSI_LOGIN_SUCCESS;
}

/* Of those that wait for the end of one session the latest is the one that its initiator has not
 * given up. */
static void
close_waiting(const struct iscsi_conn *c)
{
	for (struct iscsi_conn *old = c->worker->iscsi; old != NULL; old = old->next) {
		if (old != c && old->waits_for_session && is_same_port(old, c))
			iscsi_conn_close(old, LOGGED_IN_ANEW);
	}
}

/* RFC 7143, "Session Reinstatement, Closure, and Timeout" */
static void
begin_session(struct iscsi_conn *c)
{
	struct iscsi_login *login = &c->login;
	struct iscsi_conn *old;

	if (login->tsih != 0) {
		/* A further connection, or one in place of the one there is: neither is offered. */
		old = login->discovery ? NULL : find_session(c);
		session_answer(c, old != NULL && old->tsih == login->tsih
					  ? ISCSI_LOGIN_TOO_MANY_CONNECTIONS
					  : ISCSI_LOGIN_NO_SESSION);
		return;
	}
	old = login->discovery ? NULL : find_session(c);
	close_waiting(c);
	c->waits_for_session = old != NULL;
	if (old != NULL)
		iscsi_conn_close(old, LOGGED_IN_ANEW);
	else if (iscsi_tasks_start(c) != 0)
		session_answer(c, ISCSI_LOGIN_NO_RESOURCES);
	else if (login->discovery)
		session_answer(c, ISCSI_LOGIN_SUCCESS);
	else
		session_answer(c, nexus_begin(c));
}

void
iscsi_conn_close_reset(struct iscsi_conn *c, const char *why)
{
	for (struct iscsi_conn *other = c->worker->iscsi; other != NULL; other = other->next) {
		if (other != c && other->nexus != NULL && c->nexus != NULL &&
		    other->login.target == c->login.target &&
		    scsi_nexus_shares(c->nexus, other->nexus))
			iscsi_conn_close(other, why);
	}
	iscsi_conn_close(c, why);
}

/* ---- input ----------------------------------------------------------------------- */

static const char *
end_of_input(const struct iscsi_conn *c, ssize_t result)
{
	if (result < 0)
		return strerror((int)-result);
	return c->served ? "the peer has left without logging out" : "the peer has left in login";
}

/* Either more input, or its end: then false. */
static bool
input_came(struct iscsi_conn *c, ssize_t result)
{
	__atomic_store_n(&c->client->received, c->stream.bytes_in, __ATOMIC_RELAXED);
	if (c->state == ISCSI_CLOSING) {
		iscsi_tasks_drop(c); /* what this receive had kept */
		return false;
	}
	if (result <= 0) {
		iscsi_conn_close(c, end_of_input(c, result));
		return false;
	}
	c->now = stats_now();
	iscsi_input_received(c, (size_t)result);
	return true;
}

/* Into recv_iov. Returns whether something came at once. */
static bool
conn_receive(struct iscsi_conn *c, int iovcnt)
{
	ssize_t n = stream_recv(&c->stream, c->recv_iov, iovcnt);

	c->receiving = n == -EINPROGRESS;
	return !c->receiving && input_came(c, n);
}

static void
pump(struct iscsi_conn *c)
{
	while (c->state == ISCSI_SERVING && !c->receiving) {
		enum iscsi_progress progress = iscsi_input(c);

		if (progress != ISCSI_NEEDS_INPUT ||
		    !conn_receive(c, iscsi_input_want(c, c->recv_iov)))
			return;
	}
}

static void
pump_run(struct pl_work *work)
{
	struct iscsi_conn *c = CONN_OF(work, pump_work);

	c->pump_posted = false;
	if (c->state == ISCSI_SERVING)
		iscsi_tasks_go_on(c);
	pump(c);
	iscsi_conn_settle(c);
}

void
iscsi_conn_pump(struct iscsi_conn *c)
{
	if (c->pump_posted)
		return;
	c->pump_posted = true;
	c->pump_work.run = pump_run;
	pl_loop_later(c->worker->loop, &c->pump_work);
}

/* ---- login ----------------------------------------------------------------------- */

static void
serve(struct iscsi_conn *c)
{
	c->agreed = c->login.parameters;
	c->exp_cmd_sn = c->login.cmd_sn;
	c->stat_sn = c->login.stat_sn;
	c->served = true;
	if (c->login.discovery)
		clients_logged_in(c->client, NULL, c->login.initiator);
	__atomic_store_n(&c->client->phase, CLIENT_SERVED, __ATOMIC_RELAXED);
	log_debug("%s: %s logged in to %s", c->client->peer.text, c->login.initiator,
		  c->login.discovery ? "discover" : target_name(c->login.target));
	c->state = ISCSI_SERVING;
	c->now = c->heard_at = c->active_at = stats_now();
	iscsi_conn_pump(c);
}

/* Login's output has been sent, if there was any. */
static void
login_sent(struct iscsi_conn *c)
{
	c->out.length = 0;
	switch (c->next_step) {
	case LOGIN_FULL: serve(c); break;
	case LOGIN_CLOSE:
		if (*c->login.initiator != '\0')
			peer_info("%s: %s is not let in: %s", c->client->peer.text,
				  c->login.initiator, c->login.why);
		iscsi_conn_close(c, c->login.why);
		break;
	default: c->state = ISCSI_HAGGLING; break;
	}
}

static void move(struct iscsi_conn *c);

static void
login_go_on(struct iscsi_conn *c, enum login_step step)
{
	ssize_t result = 0;

	c->state = ISCSI_WAITING;
	c->next_step = step;
	if (step == LOGIN_MOVE) {
		move(c);
	} else if (step == LOGIN_SESSION) {
		begin_session(c);
	} else {
		c->out_iov = (struct iovec){ c->out.data, c->out.length };
		if (c->out.length > 0)
			result = stream_send(&c->stream, &c->out_iov, 1);
		if (result == 0)
			login_sent(c);
		else if (result != -EINPROGRESS)
			iscsi_conn_close(c, "the peer has left in login");
	}
}

/* The request that stands first in the input, whole. */
static void
login_request(struct iscsi_conn *c)
{
	const uint8_t *bhs = c->input + c->input_at;
	const uint8_t *data = bhs + ISCSI_BHS + iscsi_ahs_length(bhs);
	uint32_t length = iscsi_data_length(bhs);
	enum login_step step =
		iscsi_login_step(&c->login, bhs, (const char *)data, length, &c->out);

	if (step != LOGIN_MOVE)
		c->input_at = (size_t)(data + length + iscsi_padding(length) - c->input);
	login_go_on(c, step);
}

static void
haggle(struct iscsi_conn *c)
{
	while (c->state == ISCSI_HAGGLING && !c->receiving) {
		const uint8_t *bhs = c->input + c->input_at;
		size_t have = c->input_have - c->input_at, whole = ISCSI_BHS;

		if (have >= ISCSI_BHS)
			whole += iscsi_ahs_length(bhs) + iscsi_data_length(bhs) +
				 iscsi_padding(iscsi_data_length(bhs));
		if (whole > ISCSI_INPUT)
			iscsi_conn_close(c, "a login request is too long");
		else if (have >= whole)
			login_request(c);
		else if (!conn_receive(c, iscsi_input_want(c, c->recv_iov)))
			return;
	}
}

/* ---- moving ---------------------------------------------------------------------- */

static void conn_ordered(struct client *client);

/* The stream is quiet: nothing is under way on it. The request is still in the input. */
static void
arrive(struct pl_work *work)
{
	struct iscsi_conn *c = CONN_OF(work, move_work);
	struct stream *s = &c->stream;
	uint64_t bytes_in = s->bytes_in, bytes_out = s->bytes_out;

	stream_init(s, c->worker->loop, s->fd, s->fd);
	s->bytes_in = bytes_in;
	s->bytes_out = bytes_out;
	c->login.worker = c->worker;
	conn_link(c);
	clients_serve(c->client, c->worker, conn_ordered, c);
	worker_wake(c->worker);
	login_request(c);
	haggle(c);
	iscsi_conn_settle(c);
}

static void
depart(struct pl_work *work)
{
	struct iscsi_conn *c = CONN_OF(work, pump_work);
	struct worker *from = c->worker;

	c->pump_posted = false;
	/* An order that is on its way here comes first, and ends this connection. */
	if (c->state != ISCSI_MOVING || !clients_unserve(c->client)) {
		iscsi_conn_settle(c);
		return;
	}
	conn_unlink(c);
	c->worker = target_worker(c->login.target);
	c->move_work.run = arrive;
	worker_hand_over(from, c->worker, &c->move_work);
}

/* Not from within a callback of the stream, which would look at it once more. */
static void
move(struct iscsi_conn *c)
{
	c->state = ISCSI_MOVING;
	c->pump_posted = true;
	c->pump_work.run = depart;
	pl_loop_later(c->worker->loop, &c->pump_work);
}

/* ---- the stream ------------------------------------------------------------------ */

static void
conn_received(struct stream *s, ssize_t result)
{
	struct iscsi_conn *c = CONN_OF(s, stream);

	c->receiving = false;
	if (input_came(c, result)) {
		pump(c);
		haggle(c);
	}
	iscsi_conn_settle(c);
}

static void
conn_sent(struct stream *s, ssize_t result)
{
	struct iscsi_conn *c = CONN_OF(s, stream);

	__atomic_store_n(&c->client->sent, s->bytes_out, __ATOMIC_RELAXED);
	if (c->served) {
		iscsi_sent(c, result);
	} else if (c->state == ISCSI_WAITING) {
		if (result < 0)
			iscsi_conn_close(c, "the peer has left in login");
		else
			login_sent(c);
		haggle(c);
	}
	iscsi_conn_settle(c);
}

/* ---- orders and deadlines -------------------------------------------------------- */

static void
conn_ordered(struct client *client)
{
	struct iscsi_conn *c = client->conn;
	const char *why = __atomic_load_n(&client->why, __ATOMIC_RELAXED);

	switch (__atomic_load_n(&client->order, __ATOMIC_ACQUIRE)) {
	case CLIENT_GO_ON: return;
	case CLIENT_SHUT_DOWN:
		if (!c->served) {
			iscsi_conn_close(c, why);
		} else if (!c->shutting_down && c->state == ISCSI_SERVING) {
			c->shutting_down = true;
			c->shut_down_at = stats_now();
			c->wants_logout = true;
			iscsi_send_soon(c);
		}
		break;
	case CLIENT_CUT: iscsi_conn_close(c, why); break;
	}
	iscsi_conn_settle(c);
}

uint64_t
iscsi_conn_moved(const struct iscsi_conn *c)
{
	return c->stream.bytes_in + c->stream.bytes_out;
}

/* Those that wait for data of their own do not count as busy. */
static bool
is_in_the_way(struct iscsi_conn *c)
{
	return room_is_kept(c->worker->room, &c->share, c->under_way > c->asking,
			    iscsi_conn_moved(c));
}

/* Whether its initiator is gone: it was asked, or has something to take, and nothing moves. */
static bool
is_dead(struct iscsi_conn *c, uint64_t now)
{
	uint64_t in = c->stream.bytes_in, both = in + c->stream.bytes_out;

	if (both != c->seen) {
		c->seen = both;
		c->active_at = now;
	}
	if (in != c->seen_in) {
		c->seen_in = in;
		c->heard_at = now;
		c->pinged = false;
	}
	if (c->pinged || c->state == ISCSI_ENDING)
		return now > c->active_at + PING_WAIT;
	if (now > c->heard_at + IDLE) {
		c->pinged = true;
		c->active_at = now;
		c->wants_ping = true;
		iscsi_send_soon(c);
	}
	return false;
}

static bool
is_idle(const struct iscsi_conn *c)
{
	return c->under_way == 0 && !iscsi_send_pending(c);
}

static void
conn_tick(struct iscsi_conn *c, uint64_t now)
{
	switch (c->state) {
	case ISCSI_HAGGLING:
	case ISCSI_WAITING:
	case ISCSI_MOVING:
		if (now > c->deadline)
			iscsi_conn_close(c, "login took too long");
		break;
	case ISCSI_SERVING:
	case ISCSI_ENDING:
		if (c->shutting_down && now > c->shut_down_at + LOGOUT_WAIT && is_idle(c))
			iscsi_conn_close(c, "it did not log out when it was asked to");
		else if (is_in_the_way(c))
			iscsi_conn_close(c,
					 "it held memory that others waited for, and did not move");
		else if (is_dead(c, now))
			iscsi_conn_close(c, "it does not answer any more");
		break;
	default: break;
	}
	iscsi_conn_settle(c);
}

void
iscsi_conns_tick(struct worker *worker, uint64_t now)
{
	struct iscsi_conn *next;

	for (struct iscsi_conn *c = worker->iscsi; c != NULL; c = next) {
		next = c->next;
		conn_tick(c, now);
	}
}

/* ---- the beginning --------------------------------------------------------------- */

/* "ADDRESS:PORT", RFC 7143 "TargetAddress". */
static void
portal_of(int fd, char *text, size_t size)
{
	struct sockaddr_storage a;
	socklen_t length = sizeof a;
	char host[64], port[8];

	if (getsockname(fd, (struct sockaddr *)&a, &length) == -1 ||
	    getnameinfo((struct sockaddr *)&a, length, host, sizeof host, port, sizeof port,
			NI_NUMERICHOST | NI_NUMERICSERV) != 0 ||
	    a.ss_family == AF_UNIX)
		return;                  /* not one that could be named */
	host[strcspn(host, "%")] = '\0'; /* the link is ours, not the peer's */
	snprintf(text, size, a.ss_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host, port);
}

void
iscsi_conn_start(struct worker *worker, struct client *client, int fd)
{
	struct iscsi_conn *c = calloc(1, sizeof *c);
	uint8_t *input = malloc(ISCSI_INPUT);

	if (c == NULL || input == NULL) {
		log_error("%s: no memory for the connection", client->peer.text);
		free(c);
		free(input);
		close(fd);
		clients_leave(client);
		worker_left(worker);
		return;
	}
	c->worker = worker;
	c->client = client;
	c->input = input;
	c->depth = worker->settings->depth; /* a reload changes that for those to come */
	c->text.tag = ISCSI_NO_TAG;
	conn_link(c);
	c->deadline = stats_now() + worker->settings->handshake_timeout;
	c->stream.received = conn_received;
	c->stream.sent = conn_sent;
	c->stream.closed = conn_closed;
	stream_init(&c->stream, worker->loop, fd, fd);
	portal_of(fd, c->portal, sizeof c->portal);
	c->login.targets = worker->settings->targets;
	c->login.peer = &client->peer;
	c->login.worker = worker;
	c->login.window = c->depth;
	iscsi_login_start(&c->login);
	clients_serve(client, worker, conn_ordered, c);
	log_debug("%s: connected", client->peer.text);
	c->state = ISCSI_HAGGLING;
	haggle(c);
}
