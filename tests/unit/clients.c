/* clients.c - everybody who is connected is known, counted, and hears what is ordered. */
#include "clients.h"

#include "fixture.h"
#include "test.h"
#include "worker.h"

#include <assert.h>
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static struct clients *
make_clients(unsigned total, unsigned per_host)
{
	struct clients *all;
	struct pl_error err;

	assert_eq(clients_new(&all, &err), 0);
	clients_limit(all, (struct clients_limits){ total, per_host });
	return all;
}

/* A connected socket from 127.0.0.`host`; its other end stays open. */
static int
tcp_from(unsigned host)
{
	struct sockaddr_in sa = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof sa;
	int listening = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int from = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), fd;

	assert_eq(bind(listening, (struct sockaddr *)&sa, sizeof sa), 0);
	assert_eq(listen(listening, 1), 0);
	assert_eq(getsockname(listening, (struct sockaddr *)&sa, &length), 0);
	assert_eq(bind(from,
		       (struct sockaddr *)&(struct sockaddr_in){
			       .sin_family = AF_INET, .sin_addr.s_addr = htonl(0x7f000000 + host) },
		       sizeof sa),
		  0);
	assert_eq(connect(from, (struct sockaddr *)&sa, sizeof sa), 0);
	fd = accept(listening, NULL, NULL);
	assert_true(fd >= 0);
	close(listening);
	return fd;
}

static int
unix_socket(void)
{
	int pair[2];

	assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	return pair[0];
}

static struct client *
admit(struct clients *all, int fd)
{
	struct client *c;
	struct pl_error err;

	if (clients_admit(all, fd, &c, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	return c;
}

static void
refuse(struct clients *all, int fd, const char *words)
{
	struct client *c;
	struct pl_error err;

	assert_eq(clients_admit(all, fd, &c, &err), -EUSERS);
	assert_contains(err.text, words);
}

TEST(the_limit_of_the_server_counts_everybody)
{
	struct clients *all = make_clients(3, 0);
	struct client *c[3] = { admit(all, tcp_from(1)), admit(all, unix_socket()),
				admit(all, tcp_from(1)) };

	refuse(all, tcp_from(2), "max-connections=3");
	refuse(all, tcp_from(2), "2 of them are from 127.0.0.1");
	refuse(all, unix_socket(), "max-connections=3");
	clients_leave(c[0]);
	assert_eq(clients_count(all), 2);
	c[0] = admit(all, tcp_from(2));
	for (unsigned i = 0; i < 3; i++)
		clients_leave(c[i]);
	clients_free(all);
}

TEST(the_limit_of_a_host_counts_that_host_alone)
{
	struct clients *all = make_clients(0, 2);
	struct client *first = admit(all, tcp_from(1)), *second = admit(all, tcp_from(1)), *other;

	refuse(all, tcp_from(1), "2 connections from 127.0.0.1");
	other = admit(all, tcp_from(2));
	clients_leave(first);
	first = admit(all, tcp_from(1));
	refuse(all, tcp_from(1), "max-connections-per-host=2");
	clients_leave(first);
	clients_leave(second);
	clients_leave(other);
	clients_free(all);
}

TEST(processes_of_this_machine_are_no_host)
{
	struct clients *all = make_clients(0, 1);
	struct client *c[3];

	for (unsigned i = 0; i < 3; i++)
		c[i] = admit(all, unix_socket());
	for (unsigned i = 0; i < 3; i++)
		clients_leave(c[i]);
	clients_free(all);
}

TEST(a_limit_that_is_changed_holds_for_those_who_come)
{
	struct clients *all = make_clients(0, 0);
	struct client *a = admit(all, unix_socket()), *b = admit(all, unix_socket());

	clients_limit(all, (struct clients_limits){ .total = 1 });
	refuse(all, unix_socket(), "max-connections=1");
	assert_eq(clients_count(all), 2);
	clients_leave(a);
	refuse(all, unix_socket(), "max-connections=1");
	clients_leave(b);
	clients_leave(admit(all, unix_socket()));
	clients_free(all);
}

struct seen {
	unsigned count;
	uint64_t last_id;
	char export[32], subject[32];
	bool tls;
};

static void
look(const struct client *c, void *user)
{
	struct seen *seen = user;

	assert_true(c->id > seen->last_id); /* in the order in which they came */
	seen->count++;
	seen->last_id = c->id;
	snprintf(seen->export, sizeof seen->export, "%s", c->export != NULL ? c->export : "-");
	snprintf(seen->subject, sizeof seen->subject, "%s",
		 c->peer.subject != NULL ? c->peer.subject : "-");
	seen->tls = c->peer.tls;
}

TEST(what_is_known_of_a_client_is_seen_by_who_looks)
{
	struct clients *all = make_clients(0, 0);
	struct client *a = admit(all, unix_socket()), *b = admit(all, unix_socket());
	struct peer from = { .tls = true, .subject = strdup("CN=bob"), .fingerprint = "ff" };
	struct seen seen = { 0 };

	clients_each(all, look, &seen);
	assert_eq(seen.count, 2);
	assert_str(seen.export, "-");
	assert_eq(b->peer.uid, getuid());
	assert_true(b->since.tv_sec > 0);

	clients_chose(b, "one");
	clients_chose(b, "disk");
	clients_identified(b, &from);
	assert_true(from.subject == NULL); /* moved */
	seen = (struct seen){ 0 };
	clients_each(all, look, &seen);
	assert_str(seen.export, "disk");
	assert_str(seen.subject, "CN=bob");
	assert_true(seen.tls);
	assert_str(b->peer.fingerprint, "ff");
	assert_eq(b->peer.uid, getuid()); /* what the kernel says stays */

	clients_leave(a);
	clients_leave(b);
	a = admit(all, unix_socket());
	assert_eq(a->id, 3); /* numbers do not come back */
	clients_leave(a);
	clients_free(all);
}

/* ---- orders ---------------------------------------------------------------------- */

struct desk {
	struct worker worker;
	unsigned calls;
	unsigned last;
	const char *why;
};

static void
desk_open(struct desk *d)
{
	struct pl_error err;

	*d = (struct desk){ .calls = 0 };
	assert_eq(pl_loop_new(&d->worker.loop, &err), 0);
}

static void
ordered(struct client *c)
{
	struct desk *d = c->conn;

	d->calls++;
	d->last = __atomic_load_n(&c->order, __ATOMIC_ACQUIRE);
	d->why = __atomic_load_n(&c->why, __ATOMIC_RELAXED);
}

/* All that has been posted. */
static void
turn(struct desk *d)
{
	pl_loop_stop(d->worker.loop);
	pl_loop_run(d->worker.loop);
}

TEST(an_order_reaches_its_client_once_and_on_its_loop)
{
	struct clients *all = make_clients(0, 0);
	struct client *a = admit(all, unix_socket()), *b = admit(all, unix_socket());
	struct desk da, db;

	desk_open(&da);
	desk_open(&db);
	clients_serve(a, &da.worker, ordered, &da);
	clients_serve(b, &db.worker, ordered, &db);
	assert_eq(clients_order_id(all, a->id, CLIENT_CUT, "an operator said so"), 0);
	assert_eq(da.calls, 0); /* not from within the call */
	turn(&da);
	turn(&db);
	assert_eq(da.calls, 1);
	assert_eq(da.last, CLIENT_CUT);
	assert_str(da.why, "an operator said so");
	assert_eq(db.calls, 0);
	assert_eq(clients_order_id(all, 99, CLIENT_CUT, "nobody"), -ENOENT);
	clients_leave(a);
	clients_leave(b);
	clients_free(all);
	pl_loop_free(da.worker.loop);
	pl_loop_free(db.worker.loop);
}

TEST(orders_become_harder_and_never_milder)
{
	struct clients *all = make_clients(0, 0);
	struct client *c = admit(all, unix_socket());
	struct desk d;

	desk_open(&d);
	clients_serve(c, &d.worker, ordered, &d);
	clients_order(c, CLIENT_SHUT_DOWN, "first");
	turn(&d);
	clients_order(c, CLIENT_SHUT_DOWN, "again");
	turn(&d);
	assert_eq(d.calls, 1);
	assert_str(d.why, "first");
	clients_order_all(all, CLIENT_CUT, "now");
	clients_order_all(all, CLIENT_SHUT_DOWN, "please");
	turn(&d);
	assert_eq(d.calls, 2);
	assert_eq(d.last, CLIENT_CUT);
	assert_str(d.why, "now");
	clients_leave(c);
	clients_free(all);
	pl_loop_free(d.worker.loop);
}

TEST(an_order_to_a_client_on_its_way_to_its_worker_is_not_lost)
{
	struct clients *all = make_clients(0, 0);
	struct client *c = admit(all, unix_socket());
	struct desk d;

	desk_open(&d);
	clients_order_all(all, CLIENT_SHUT_DOWN, "the server stops");
	clients_serve(c, &d.worker, ordered, &d);
	assert_eq(d.calls, 0);
	turn(&d);
	assert_eq(d.calls, 1);
	assert_eq(d.last, CLIENT_SHUT_DOWN);
	clients_leave(c);
	clients_free(all);
	pl_loop_free(d.worker.loop);
}

TEST(an_order_under_way_to_a_client_that_leaves_harms_nobody)
{
	struct clients *all = make_clients(0, 0);
	struct client *c = admit(all, unix_socket());
	struct desk d;

	desk_open(&d);
	clients_serve(c, &d.worker, ordered, &d);
	clients_order(c, CLIENT_CUT, "now");
	clients_leave(c);
	assert_eq(clients_count(all), 0);
	clients_free(all); /* and it outlives even the list */
	turn(&d);
	assert_eq(d.calls, 0);
	pl_loop_free(d.worker.loop);
}

TEST(an_order_to_a_client_that_moves_reaches_it_on_its_new_loop)
{
	struct clients *all = make_clients(0, 0);
	struct client *c = admit(all, unix_socket());
	struct desk here, there;

	desk_open(&here);
	desk_open(&there);
	clients_serve(c, &here.worker, ordered, &here);
	clients_order(c, CLIENT_SHUT_DOWN, "before");
	assert(!clients_unserve(c)); /* that comes first */
	turn(&here);
	assert_eq(here.calls, 1);
	assert(clients_unserve(c));
	clients_order(c, CLIENT_CUT, "between");
	turn(&here);
	assert_eq(here.calls, 1);
	clients_serve(c, &there.worker, ordered, &there);
	turn(&there);
	assert_eq(there.calls, 1);
	assert_str(there.why, "between");
	clients_leave(c);
	clients_free(all);
	pl_loop_free(here.worker.loop);
	pl_loop_free(there.worker.loop);
}

/* Clients come, are ordered about by another thread, and leave, all at once. */
enum { CROWD = 2000 };

static void *
order_everybody(void *arg)
{
	struct clients *all = arg;

	for (uint64_t id = 1; id < 3 * CROWD; id++) {
		clients_order_id(all, 1 + id / 3, CLIENT_SHUT_DOWN + id % 2, "chaos");
		if (id % 64 == 0)
			clients_order_all(all, CLIENT_CUT, "chaos");
	}
	return NULL;
}

TEST(orders_and_leaving_clients_race_without_harm)
{
	struct clients *all = make_clients(0, 0);
	struct client *here[8] = { NULL };
	pthread_t thread;
	int fd = unix_socket();
	struct desk d;

	desk_open(&d);
	assert_eq(pthread_create(&thread, NULL, order_everybody, all), 0);
	for (unsigned i = 0; i < CROWD; i++) {
		struct client **place = &here[i % 8];

		if (*place != NULL)
			clients_leave(*place);
		*place = admit(all, fd);
		clients_serve(*place, &d.worker, ordered, &d);
		if (i % 3 == 0)
			turn(&d);
	}
	pthread_join(thread, NULL);
	for (unsigned i = 0; i < 8; i++)
		clients_leave(here[i]);
	clients_free(all);
	turn(&d);
	pl_loop_free(d.worker.loop);
}
