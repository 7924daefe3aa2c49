/* targets.c - who may log in, what he finds there, and how that changes while he is there. */
#include "iscsi/targets.h"

#include "clients.h"
#include "fixture.h"
#include "iscsi/rules.h"
#include "nexus.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define DISKS "iqn.2026-11.org.example:disks"
#define TAPES "iqn.2026-11.org.example:tapes"
#define ALICE "iqn.2026-11.org.example:alice"
#define BOB   "iqn.2026-11.org.example:bob"
#define STATE "state"

static const struct peer from_there = { .kind = PEER_TCP, .host = "192.0.2.7" };
static const struct peer by_socket = { .kind = PEER_UNIX };

/* ---- a server's worth of it -------------------------------------------------------- */

#define SHELF 8

/* A line of a target, "lun.N = EXPORT,..." */
struct line {
	const char *target;
	unsigned lun;
	const char *export, *initiators;
	const char *options; /* "serial=X", one at most */
};

#define LUN(target, n, export) \
	{ \
		target, n, export, NULL, NULL \
	}
#define LUN_FOR(target, n, export, who) \
	{ \
		target, n, export, who, NULL \
	}
#define LUN_WITH(target, n, export, what) \
	{ \
		target, n, export, NULL, what \
	}

struct server {
	struct catalog *catalog;
	struct clients *clients;
	struct workers *workers;
	struct worker_settings settings;
	struct targets *targets;
	struct offer_settings exports[SHELF];
	unsigned export_count;
};

static void
offer_words(struct server *s, const char *name, const char *const *words)
{
	s->exports[s->export_count++] = (struct offer_settings){
		.name = name, .where = "platter.conf:7", .listed = true, .params = params_of(words)
	};
}
#define offer(s, name, ...) offer_words((s), (name), WORDS(__VA_ARGS__))

static void
apply_exports(struct server *s)
{
	struct pl_error err;
	unsigned opened;

	if (catalog_apply(s->catalog, s->exports, s->export_count, &opened, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
}

static void
server_open_at(struct server *s, const char *state, unsigned workers)
{
	struct pl_error err;

	*s = (struct server){ .export_count = 0 };
	assert_eq(catalog_new(&s->catalog, workers, &err), 0);
	assert_eq(clients_new(&s->clients, &err), 0);
	s->settings = (struct worker_settings){ .catalog = s->catalog,
						.memory = 64 * MiB,
						.depth = 16,
						.handshake_timeout = 1000000000 };
	assert_eq(workers_start(&s->workers, workers, &s->settings, &err), 0);
	assert_eq(targets_new(&s->targets, s->catalog, state, &err), 0);
	offer(s, "a", "driver=memory", "size=1M");
	offer(s, "b", "driver=memory", "size=1M");
	offer(s, "c", "driver=memory", "size=1M");
	apply_exports(s);
}

static void
server_open(struct server *s)
{
	server_open_at(s, NULL, 2);
}

static void
server_close(struct server *s)
{
	targets_stop(s->targets, s->workers);
	workers_end(s->workers);
	targets_free(s->targets);
	catalog_free(s->catalog);
	clients_free(s->clients);
	for (unsigned i = 0; i < s->export_count; i++)
		pl_params_free((struct pl_params *)s->exports[i].params);
}

/* What they are to config.c. */
struct shelf {
	struct target_settings target[SHELF];
	struct lun_settings lun[SHELF];
	unsigned count;
};

static void
shelve(struct shelf *shelf, const struct line *line, unsigned count)
{
	*shelf = (struct shelf){ .count = 0 };
	for (unsigned i = 0; i < count; i++) {
		struct target_settings *t = &shelf->target[shelf->count];

		shelf->lun[i] = (struct lun_settings){
			.lun = line[i].lun,
			.export = line[i].export,
			.where = "platter.conf:9",
			.initiators = line[i].initiators,
			.params = params_of(line[i].options != NULL ? WORDS(line[i].options)
								    : WORDS()),
		};
		if (i > 0 && strcmp(line[i].target, line[i - 1].target) == 0) {
			t[-1].lun_count++;
			continue;
		}
		*t = (struct target_settings){ .name = line[i].target,
					       .where = "platter.conf:8",
					       .luns = &shelf->lun[i],
					       .lun_count = 1 };
		shelf->count++;
	}
}

static void
clear(struct shelf *shelf)
{
	for (unsigned i = 0; i < SHELF; i++)
		pl_params_free((struct pl_params *)shelf->lun[i].params);
}

static int
try_settings(struct server *s, const struct shelf *shelf, unsigned *up, unsigned *missing,
	     struct pl_error *err)
{
	struct targets_plan *plan;
	int error = targets_check(shelf->target, shelf->count, s->exports, s->export_count, err);

	if (error == 0)
		error = targets_plan(s->targets, shelf->target, shelf->count, &plan, err);
	if (error != 0)
		return error;
	error = targets_plan_load(s->targets, plan, err);
	if (error != 0)
		targets_plan_free(plan);
	return error != 0 ? error : targets_apply(s->targets, s->workers, plan, up, missing, err);
}

/* And so many LUNs are not there then. */
static void
apply_lines(struct server *s, const struct line *line, unsigned count, unsigned missing)
{
	unsigned up, gone;
	struct shelf shelf;
	struct pl_error err;

	shelve(&shelf, line, count);
	if (try_settings(s, &shelf, &up, &gone, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	clear(&shelf);
	assert_eq(gone, missing);
	assert_eq(up, count - missing);
}
#define LINES(...) \
	(const struct line[]){ __VA_ARGS__ }, \
		(unsigned)(sizeof((const struct line[]){ __VA_ARGS__ }) / sizeof(struct line))
#define apply(s, ...) apply_lines((s), LINES(__VA_ARGS__), 0)

static void
refused_lines(struct server *s, const struct line *line, unsigned count, const char *says)
{
	struct pl_error err = { 0 };
	struct shelf shelf;

	shelve(&shelf, line, count);
	assert_eq(targets_check(shelf.target, shelf.count, s->exports, s->export_count, &err),
		  -EINVAL);
	clear(&shelf);
	assert_contains(err.text, "platter.conf:");
	assert_contains(err.text, says);
}
#define refused(s, says, ...) refused_lines((s), LINES(__VA_ARGS__), (says))

/* ---- a session ---------------------------------------------------------------------- */

struct visitor {
	struct server *server;
	struct target *target;
	struct client *client;
	const char *initiator;
	struct scsi_nexus *nexus;
	int error;
	bool gone;
	char luns[64]; /* "0 1 7" */
	unsigned attention_lun, attention;
	bool attends;
};

static void
on_its_worker(struct worker *w, void *user)
{
	struct visitor *v = user;

	if (w != target_worker(v->target))
		return;
	assert_eq(scsi_nexus_new(target_scsi(v->target), v->initiator, (const uint8_t[6]){ 0 },
				 &v->nexus, NULL),
		  0);
	v->error = target_join(v->target, v->client, v->initiator, v->nexus);
}

static void
visitor_gone(void *user)
{
	struct visitor *v = user;

	__atomic_store_n(&v->gone, true, __ATOMIC_RELEASE);
}

static void
end_on_its_worker(struct worker *w, void *user)
{
	struct visitor *v = user;

	if (w != target_worker(v->target))
		return;
	if (v->error == 0)
		target_leave(v->target, v->nexus);
	scsi_nexus_end(v->nexus, visitor_gone, v);
}

/* The target is found, and may be gone when it comes to the session: v->error. */
static void
find_target(struct server *s, struct visitor *v, const char *target, const char *initiator)
{
	struct pl_error err;
	int pair[2];

	*v = (struct visitor){ .server = s, .initiator = initiator };
	assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_eq(clients_admit(s->clients, pair[0], &v->client, &err), 0);
	close(pair[0]);
	close(pair[1]);
	assert_eq(target_find(s->targets, target, &from_there, initiator, &v->target, &err), 0);
}

static void
try_join(struct visitor *v)
{
	workers_each(v->server->workers, on_its_worker, v);
}

static void
come(struct server *s, struct visitor *v, const char *target, const char *initiator)
{
	find_target(s, v, target, initiator);
	try_join(v);
	assert_eq(v->error, 0);
}

static void
leave(struct visitor *v)
{
	workers_each(v->server->workers, end_on_its_worker, v);
	while (!__atomic_load_n(&v->gone, __ATOMIC_ACQUIRE))
		usleep(1000);
	target_put(v->target);
	clients_leave(v->client);
}

static void
look(struct worker *w, void *user)
{
	struct visitor *v = user;
	size_t n = 0;

	if (w != target_worker(v->target))
		return;
	*v->luns = '\0';
	for (int i = 0; i < SCSI_LUNS; i++) {
		if (scsi_nexus_itl(v->nexus, i) != NULL)
			n += (size_t)sprintf(v->luns + n, n > 0 ? " %d" : "%d", i);
	}
}

static void
sees(struct visitor *v, const char *luns)
{
	workers_each(v->server->workers, look, v);
	assert_str(v->luns, luns);
}

static void
look_for_attention(struct worker *w, void *user)
{
	struct visitor *v = user;
	const struct scsi_itl *itl;

	if (w != target_worker(v->target))
		return;
	itl = scsi_nexus_itl(v->nexus, (int)v->attention_lun);
	v->attends = false;
	for (unsigned i = 0; i < itl->attention_count; i++)
		v->attends |= itl->attentions[i] == v->attention;
}

/* ---- what is refused ---------------------------------------------------------------- */

TEST(what_cannot_be_is_refused_with_its_place)
{
	struct server s;

	server_open(&s);
	refused(&s, "no iSCSI name", LUN("Disks", 0, "a"));
	refused(&s, "there is no export \"nix\"", LUN(DISKS, 0, "nix"));
	refused(&s, "LUN 3 is given twice", LUN(DISKS, 3, "a"), LUN(DISKS, 3, "b"));
	refused(&s, "is a LUN already", LUN(DISKS, 0, "a"), LUN(DISKS, 1, "a"));
	refused(&s, "is a LUN already", LUN(DISKS, 0, "a"), LUN(TAPES, 0, "a"));
	refused(&s, "is given twice", LUN(DISKS, 0, "a"), LUN(TAPES, 0, "b"), LUN(DISKS, 0, "c"));
	refused(&s, "LUN 256", LUN(DISKS, 256, "a"));
	refused(&s, "serial=x", LUN_WITH(DISKS, 0, "a", "serial=X"),
		LUN_WITH(TAPES, 0, "b", "serial=x"));
	refused(&s, "nonsense", LUN_WITH(DISKS, 0, "a", "nonsense=1"));
	refused(&s, "'alice'", LUN_FOR(DISKS, 0, "a", "alice"));
	server_close(&s);
}

TEST(an_export_with_rules_that_iscsi_cannot_hold_is_no_lun)
{
	struct access_rules *rules;
	struct pl_error err;
	struct server s;

	server_open(&s);
	s.exports[0].tls = TLS_REQUIRED;
	refused(&s, "tls=required", LUN(DISKS, 0, "a"));
	s.exports[0].tls = TLS_OPTIONAL;
	apply(&s, LUN(DISKS, 0, "a"));
	assert_eq(access_rules_new(&rules, NULL, NULL, NULL, "0", NULL, &err), 0);
	s.exports[0].rules = rules;
	refused(&s, "allow-", LUN(DISKS, 0, "a"));
	access_rules_free(rules);
	server_close(&s);
}

TEST(a_target_without_luns_is_refused)
{
	const struct target_settings t = { .name = DISKS, .where = "platter.conf:8" };
	struct pl_error err;

	assert_eq(targets_check(&t, 1, NULL, 0, &err), -EINVAL);
	assert_contains(err.text, "has no LUN");
}

/* ---- rules -------------------------------------------------------------------------- */

static bool
allows(const char *addresses, const char *host)
{
	struct peer peer = { .kind = PEER_TCP };
	struct iscsi_rules *rules;
	struct pl_error err;
	bool allowed;

	snprintf(peer.host, sizeof peer.host, "%s", host);
	if (iscsi_rules_new(&rules, NULL, addresses, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	allowed = iscsi_rules_allow_peer(rules, &peer);
	iscsi_rules_free(rules);
	return allowed;
}

TEST(addresses_are_networks)
{
	assert_true(allows("192.0.2.7", "192.0.2.7"));
	assert_false(allows("192.0.2.7", "192.0.2.8"));
	assert_true(allows("10.0.0.0/8;192.0.2.0/29", "192.0.2.7"));
	assert_false(allows("10.0.0.0/8;192.0.2.0/29", "192.0.2.8"));
	assert_true(allows("0.0.0.0/0", "203.0.113.1"));
	assert_false(allows("0.0.0.0/0", "2001:db8::1"));
	assert_true(allows("::/0", "2001:db8::1"));
	assert_true(allows("2001:db8::/33", "2001:db8:7fff::1"));
	assert_false(allows("2001:db8::/33", "2001:db8:8000::1"));
	assert_true(allows(" fe80::/64 ; ::1 ;", "::1"));
	assert_true(allows("192.0.2.0/24", "::ffff:192.0.2.7"));
	assert_true(allows("192.0.2.255/24", "192.0.2.1"));
}

TEST(who_has_no_address_is_in_no_network)
{
	struct iscsi_rules *rules;
	struct pl_error err;

	assert_eq(iscsi_rules_new(&rules, NULL, "0.0.0.0/0;::/0", &err), 0);
	assert_false(iscsi_rules_allow_peer(rules, &by_socket));
	iscsi_rules_free(rules);
}

TEST(addresses_that_are_none_are_refused)
{
	static const char *const bad[] = { "",       ";",           "nix",         "10.0.0.0/33",
					   "::/129", "10.0.0.0/",   "/8",          "10.0.0.0/-1",
					   "10.0.0", "10.0.0.0/8x", "fe80::%eth0", "10.0.0.0 8" };
	struct iscsi_rules *rules;
	struct pl_error err;

	for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
		if (iscsi_rules_new(&rules, NULL, bad[i], &err) != -EINVAL)
			test_fail(__FILE__, __LINE__, "addresses=%s", bad[i]);
		assert_contains(err.text, "addresses=");
	}
}

static void
add_name(void *user, const char *name)
{
	strcat(user, name);
	strcat(user, " ");
}

static unsigned
listed(struct server *s, const char *initiator, const char *only, char *names)
{
	*names = '\0';
	return targets_list(s->targets, &from_there, initiator, NULL, only, add_name, names);
}

TEST(who_may_not_log_in_does_not_see_the_target)
{
	struct shelf shelf;
	struct target *target;
	struct pl_error err;
	unsigned up, missing;
	struct server s;
	char names[512];

	server_open(&s);
	shelve(&shelf, LINES(LUN(DISKS, 0, "a"), LUN(TAPES, 0, "b")));
	shelf.target[0].initiators = ALICE "; " BOB;
	shelf.target[1].addresses = "192.0.2.0/24";
	assert_eq(try_settings(&s, &shelf, &up, &missing, &err), 0);

	assert_eq(listed(&s, ALICE, NULL, names), 2);
	assert_str(names, DISKS " " TAPES " ");
	assert_eq(listed(&s, "iqn.2026-11.org.example:al", NULL, names), 1);
	assert_str(names, TAPES " ");
	assert_eq(listed(&s, ALICE, DISKS, names), 1);
	assert_eq(listed(&s, ALICE, "iqn.2026-11.org.example:nix", names), 0);

	assert_eq(target_find(s.targets, DISKS, &from_there, BOB, &target, &err), 0);
	target_put(target);
	assert_eq(target_find(s.targets, DISKS, &from_there, "iqn.x:y", &target, &err), -EACCES);
	assert_eq(target_find(s.targets, TAPES, &by_socket, BOB, &target, &err), -EACCES);
	assert_eq(target_find(s.targets, "iqn.x:y", &from_there, BOB, &target, &err), -ENOENT);
	clear(&shelf);
	server_close(&s);
}

/* ---- LUNs --------------------------------------------------------------------------- */

TEST(luns_come_and_go_while_a_session_goes_on)
{
	struct visitor v;
	struct server s;

	server_open(&s);
	apply(&s, LUN(DISKS, 0, "a"));
	come(&s, &v, DISKS, ALICE);
	sees(&v, "0");
	apply(&s, LUN(DISKS, 0, "a"), LUN(DISKS, 7, "b"));
	sees(&v, "0 7");
	apply(&s, LUN(DISKS, 7, "b"), LUN(DISKS, 1, "c"));
	sees(&v, "1 7");
	apply(&s, LUN(DISKS, 1, "b"), LUN(DISKS, 7, "c")); /* two change places */
	sees(&v, "1 7");
	apply(&s, LUN_WITH(DISKS, 7, "c", "serial=X"));
	sees(&v, "7");
	leave(&v);
	server_close(&s);
}

TEST(a_lun_is_for_those_who_are_named)
{
	struct visitor alice, bob;
	struct server s;

	server_open(&s);
	apply(&s, LUN_FOR(DISKS, 0, "a", ALICE), LUN_FOR(DISKS, 1, "b", BOB), LUN(DISKS, 2, "c"));
	come(&s, &alice, DISKS, ALICE);
	come(&s, &bob, DISKS, BOB);
	sees(&alice, "0 2");
	sees(&bob, "1 2");
	apply(&s, LUN_FOR(DISKS, 0, "a", ALICE ";" BOB), LUN(DISKS, 1, "b"),
	      LUN_FOR(DISKS, 2, "c", BOB));
	sees(&alice, "0 1");
	sees(&bob, "0 1 2");
	leave(&alice);
	leave(&bob);
	server_close(&s);
}

static void
create(const char *path, off_t size)
{
	int fd = open(path, O_RDWR | O_CREAT, 0600);

	assert_true(fd != -1);
	assert_eq(ftruncate(fd, size), 0);
	close(fd);
}

TEST(initiators_are_told_when_an_image_has_grown)
{
	struct pl_error err;
	struct visitor v;
	struct server s;

	create("disk.img", 1 * MiB);
	server_open(&s);
	offer(&s, "disk", "path=disk.img");
	apply_exports(&s);
	apply(&s, LUN(DISKS, 0, "disk"), LUN(DISKS, 1, "a"));
	come(&s, &v, DISKS, ALICE);
	assert_eq(catalog_grow(s.catalog, "nix", &err), -ENOENT);
	assert_eq(catalog_grow(s.catalog, "disk", &err), 0);
	targets_resize(s.targets, s.workers);
	v.attention = SCSI_CAPACITY_CHANGED;
	workers_each(s.workers, look_for_attention, &v);
	assert_false(v.attends);

	create("disk.img", 2 * MiB);
	assert_eq(catalog_grow(s.catalog, "disk", &err), 0);
	targets_resize(s.targets, s.workers);
	/* A power on that has not been told yet says that all may have changed: it is enough. */
	v.attention = SCSI_POWER_ON_RESET;
	workers_each(s.workers, look_for_attention, &v);
	if (!v.attends) {
		v.attention = SCSI_CAPACITY_CHANGED;
		workers_each(s.workers, look_for_attention, &v);
		assert_true(v.attends);
	}
	leave(&v);
	server_close(&s);
}

TEST(a_lun_whose_export_is_retired_by_force_is_missing_until_the_next_reload)
{
	struct pl_error err;
	struct visitor v;
	struct server s;

	server_open(&s);
	apply(&s, LUN(DISKS, 0, "a"), LUN(DISKS, 1, "b"));
	come(&s, &v, DISKS, ALICE);
	assert_eq(catalog_retire(s.catalog, "a", false, &err), 0);
	sees(&v, "0 1");
	assert_eq(catalog_retire(s.catalog, "a", true, &err), 0);
	sees(&v, "1");
	apply_lines(&s, LINES(LUN(DISKS, 0, "a"), LUN(DISKS, 1, "b")), 1);
	sees(&v, "1");
	apply_exports(&s);
	apply(&s, LUN(DISKS, 0, "a"), LUN(DISKS, 1, "b"));
	sees(&v, "0 1");
	leave(&v);
	server_close(&s);
}

TEST(a_lun_stands_for_the_export_of_its_name_also_when_that_is_another_one)
{
	struct visitor v;
	struct server s;

	server_open(&s);
	create("one.img", 1 * MiB);
	create("two.img", 1 * MiB);
	offer(&s, "disk", "path=one.img");
	apply_exports(&s);
	apply(&s, LUN(DISKS, 0, "disk"));
	come(&s, &v, DISKS, ALICE);
	pl_params_free((struct pl_params *)s.exports[3].params);
	s.exports[3].params = params_of(WORDS("path=one.img", "cache=none"));
	apply_exports(&s); /* of the same file, which the LUN still has */
	apply(&s, LUN(DISKS, 0, "disk"));
	sees(&v, "0");
	pl_params_free((struct pl_params *)s.exports[3].params);
	s.exports[3].params = params_of(WORDS("path=two.img"));
	apply_exports(&s);
	apply(&s, LUN(DISKS, 0, "disk"));
	sees(&v, "0");
	assert_eq(unlink("one.img"), 0);
	leave(&v);
	server_close(&s);
}

/* ---- a LUN is a session of its export ------------------------------------------------ */

TEST(a_lun_counts_as_one_who_has_the_export)
{
	struct worker worker = { .index = 0 };
	struct offer *offer;
	struct session session;
	struct pl_error err;
	struct server s;

	server_open(&s);
	s.exports[0].access = ACCESS_EXCLUSIVE;
	s.exports[1].max_connections = 1;
	apply_exports(&s);
	assert_eq(pl_loop_new(&worker.loop, &err), 0);
	apply(&s, LUN(DISKS, 0, "a"), LUN(DISKS, 1, "b"));
	for (unsigned i = 0; i < 2; i++) {
		assert_eq(catalog_find(s.catalog, s.exports[i].name, 1, &from_there, &offer, &err),
			  0);
		assert_eq(offer_open(offer, &err), 0);
		assert_eq(session_begin(&session, offer, &worker, NULL, &err), -EBUSY);
		offer_put(offer);
	}
	apply(&s, LUN(DISKS, 0, "c"));
	assert_eq(catalog_find(s.catalog, "a", 1, &from_there, &offer, &err), 0);
	assert_eq(session_begin(&session, offer, &worker, NULL, &err), 0);
	apply_lines(&s, LINES(LUN(DISKS, 0, "a"), LUN(DISKS, 1, "b")), 1);
	session_end(&session);
	apply(&s, LUN(DISKS, 0, "a"), LUN(DISKS, 1, "b"));
	pl_loop_free(worker.loop);
	server_close(&s);
}

/* ---- targets that go ------------------------------------------------------------------- */

TEST(sessions_of_a_target_that_goes_are_told_to_end)
{
	struct visitor here, there;
	struct server s;

	server_open(&s);
	apply(&s, LUN(DISKS, 0, "a"), LUN(TAPES, 0, "b"));
	come(&s, &here, DISKS, ALICE);
	come(&s, &there, TAPES, ALICE);
	assert_true(target_worker(here.target) != target_worker(there.target));
	apply(&s, LUN(TAPES, 0, "b"), LUN(TAPES, 1, "a"));
	sees(&here, "");
	sees(&there, "0 1");
	assert_eq(here.client->order, CLIENT_SHUT_DOWN);
	assert_eq(there.client->order, CLIENT_GO_ON);
	assert_str(here.client->target, DISKS);
	assert_str(here.client->initiator, ALICE);
	leave(&here);
	leave(&there);
	server_close(&s);
}

TEST(who_logs_in_while_the_target_goes_is_refused)
{
	struct visitor v;
	struct server s;

	server_open(&s);
	apply(&s, LUN(DISKS, 0, "a"));
	find_target(&s, &v, DISKS, ALICE);
	apply(&s, LUN(TAPES, 0, "a"));
	try_join(&v);
	assert_eq(v.error, -ENOENT);
	leave(&v);
	server_close(&s);
}

/* ---- identity --------------------------------------------------------------------------- */

static void
copy_file(const char *from, const char *to)
{
	char text[4096];
	int in = open(from, O_RDONLY), out = open(to, O_WRONLY | O_CREAT | O_TRUNC, 0600);
	ssize_t n = read(in, text, sizeof text);

	assert_true(n > 0);
	assert_eq(write(out, text, (size_t)n), n);
	close(in);
	close(out);
}

TEST(two_luns_of_one_identity_are_refused)
{
	struct shelf shelf;
	struct pl_error err;
	unsigned up, missing;
	struct visitor v;
	struct server s;

	assert_eq(mkdir(STATE, 0700), 0);
	server_open_at(&s, STATE, 1);
	apply(&s, LUN(DISKS, 0, "a"));
	come(&s, &v, DISKS, ALICE);
	copy_file(STATE "/a.lu", STATE "/b.lu");
	shelve(&shelf, LINES(LUN(DISKS, 0, "a"), LUN(TAPES, 0, "b")));
	assert_eq(try_settings(&s, &shelf, &up, &missing, &err), -EINVAL);
	assert_contains(err.text, "one identity");
	sees(&v, "0");
	clear(&shelf);
	leave(&v);
	server_close(&s);
}

TEST(a_broken_state_changes_nothing)
{
	struct shelf shelf;
	struct pl_error err;
	unsigned up, missing;
	struct visitor v;
	struct server s;
	int fd;

	assert_eq(mkdir(STATE, 0700), 0);
	server_open_at(&s, STATE, 1);
	apply(&s, LUN(DISKS, 0, "a"));
	come(&s, &v, DISKS, ALICE);
	fd = open(STATE "/b.lu", O_WRONLY | O_CREAT, 0600);
	assert_eq(write(fd, "{", 1), 1);
	close(fd);
	shelve(&shelf, LINES(LUN(DISKS, 1, "a"), LUN(DISKS, 2, "b")));
	assert_eq(try_settings(&s, &shelf, &up, &missing, &err), -EINVAL);
	assert_contains(err.text, STATE "/b.lu");
	sees(&v, "0");
	clear(&shelf);
	leave(&v);
	server_close(&s);
}
