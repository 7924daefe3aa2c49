/* catalog.c - what is on offer, to whom, and to how many at a time. */
#include "catalog.h"

#include "clients.h"
#include "fixture.h"
#include "test.h"
#include "worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#define WORKERS 2
#define OFFERS  8

static const struct peer anybody = { .kind = PEER_TCP, .uid = -1u, .gid = -1u };
static const struct peer by_tls = {
	.kind = PEER_TCP, .uid = -1u, .gid = -1u, .tls = true, .subject = (char *)"CN=alice"
};

/* ---- a server's worth of it ------------------------------------------------------ */

struct shop {
	struct catalog *catalog;
	struct clients *clients;
	struct worker worker[WORKERS];
	struct offer_settings set[OFFERS];
	unsigned count;
};

static void
shop_open(struct shop *shop)
{
	struct pl_error err;

	*shop = (struct shop){ .count = 0 };
	assert_eq(catalog_new(&shop->catalog, WORKERS, &err), 0);
	assert_eq(clients_new(&shop->clients, &err), 0);
	for (unsigned i = 0; i < WORKERS; i++) {
		shop->worker[i].index = i;
		assert_eq(pl_loop_new(&shop->worker[i].loop, &err), 0);
	}
}

/* Empties the shelf that the next apply() is from. */
static void
clear(struct shop *shop)
{
	for (unsigned i = 0; i < shop->count; i++) {
		pl_params_free((struct pl_params *)shop->set[i].params);
		access_rules_free((struct access_rules *)shop->set[i].rules);
	}
	shop->count = 0;
}

static void
shop_close(struct shop *shop)
{
	clear(shop);
	catalog_free(shop->catalog);
	clients_free(shop->clients);
	for (unsigned i = 0; i < WORKERS; i++)
		pl_loop_free(shop->worker[i].loop);
}

static struct offer_settings *
add_words(struct shop *shop, const char *name, const char *const *words)
{
	struct offer_settings *set = &shop->set[shop->count++];

	assert_true(shop->count <= OFFERS);
	*set = (struct offer_settings){
		.name = name, .where = "platter.conf:7", .listed = true, .params = params_of(words)
	};
	return set;
}
#define add(shop, name, ...) add_words((shop), (name), WORDS(__VA_ARGS__))

static struct offer_settings *
add_memory(struct shop *shop, const char *name)
{
	struct offer_settings *set = add(shop, name, "driver=memory", "size=1M");

	set->description = "RAM";
	return set;
}

static int
try_apply(struct shop *shop, unsigned *opened, struct pl_error *err)
{
	return catalog_apply(shop->catalog, shop->set, shop->count, opened, err);
}

/* And so many of them are open then. */
static void
apply(struct shop *shop, unsigned expected)
{
	struct pl_error err;
	unsigned opened;

	if (try_apply(shop, &opened, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	assert_eq(opened, expected);
}

static int
try_find(struct shop *shop, const char *name, const struct peer *peer, struct offer **offer,
	 struct pl_error *err)
{
	return catalog_find(shop->catalog, name, strlen(name), peer, offer, err);
}

/* What a GO comes to. */
static int
try_begin_as(struct shop *shop, const struct peer *peer, const char *name, unsigned worker,
	     struct session *s, struct pl_error *err)
{
	struct client *client;
	struct offer *offer;
	int error = try_find(shop, name, peer, &offer, err), pair[2];

	if (error != 0)
		return error;
	assert_eq(socketpair(AF_UNIX, SOCK_STREAM, 0, pair), 0);
	assert_eq(clients_admit(shop->clients, pair[0], &client, err), 0);
	close(pair[0]);
	close(pair[1]);
	error = offer_open(offer, err);
	if (error == 0)
		error = session_begin(s, offer, &shop->worker[worker], client, err);
	if (error != 0) {
		offer_put(offer);
		clients_leave(client);
	}
	return error;
}

static int
try_begin(struct shop *shop, const char *name, struct session *s, struct pl_error *err)
{
	return try_begin_as(shop, &anybody, name, 0, s, err);
}

static void
begin_on(struct shop *shop, const char *name, unsigned worker, struct session *s)
{
	struct pl_error err;

	if (try_begin_as(shop, &anybody, name, worker, s, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s: %s", name, err.text);
}

static void
begin(struct shop *shop, const char *name, struct session *s)
{
	begin_on(shop, name, 0, s);
}

static void
end(struct session *s)
{
	struct client *client = s->client;

	session_end(s);
	clients_leave(client);
}

static void
refused(struct shop *shop, const char *name, int error, const char *words)
{
	struct pl_error err;
	struct session s;

	assert_eq(try_begin(shop, name, &s, &err), error);
	assert_contains(err.text, words);
}

static void
put_byte(struct session *s, unsigned char byte)
{
	struct iovec iov = { &byte, 1 };
	struct pl_request req = { .op = PL_WRITE, .length = 1, .iov = &iov, .iovcnt = 1 };

	assert_eq(pl_request_call(s->channel, &req), 0);
}

static unsigned char
get_byte(struct session *s)
{
	unsigned char byte;
	struct iovec iov = { &byte, 1 };
	struct pl_request req = { .op = PL_READ, .length = 1, .iov = &iov, .iovcnt = 1 };

	assert_eq(pl_request_call(s->channel, &req), 0);
	return byte;
}

/* "name=connections " of each; with a '-' when not open, '!' when retired. */
static void
write_state(const struct offer_state *o, void *user)
{
	char *text = user;

	sprintf(text + strlen(text), "%s=%u%s%s ", o->directory ? "DIR" : o->name, o->connections,
		o->open || o->directory ? "" : "-", o->retired ? "!" : "");
}

static const char *
state(struct shop *shop)
{
	static char text[4096];

	text[0] = '\0';
	catalog_each(shop->catalog, write_state, text);
	return text;
}

static void
write_name(void *user, const char *name, const char *description)
{
	char *text = user;

	sprintf(text + strlen(text), "%s(%s) ", name, description);
}

static const char *
listed(struct shop *shop, const struct peer *peer)
{
	static char text[4096];

	text[0] = '\0';
	assert_eq(catalog_list(shop->catalog, peer, write_name, text), 0);
	return text;
}

/* ---- finding --------------------------------------------------------------------- */

TEST(an_export_is_found_by_its_whole_name)
{
	struct shop shop;
	struct session s;
	struct pl_error err;
	struct offer *offer;

	shop_open(&shop);
	add_memory(&shop, "disk");
	apply(&shop, 1);
	begin(&shop, "disk", &s);
	assert_eq(s.size, 1 * MiB);
	assert_str(offer_name(s.offer), "disk");
	assert_eq(offer_geometry(s.offer)->size, 1 * MiB);
	put_byte(&s, 7);
	assert_eq(get_byte(&s), 7);
	end(&s);
	refused(&shop, "dis", -ENOENT, "\"dis\"");
	refused(&shop, "disk2", -ENOENT, "\"disk2\"");
	refused(&shop, "", -ENOENT, "default");
	assert_eq(catalog_find(shop.catalog, "disk\0x", 6, &anybody, &offer, &err), -ENOENT);
	assert_eq(catalog_find(shop.catalog, "disk\0", 5, &anybody, &offer, &err), -ENOENT);
	refused(&shop, "a\n\033[2Jb", -ENOENT, "a??[2Jb"); /* the log gets it */
	shop_close(&shop);
}

TEST(who_may_not_have_an_export_is_refused_before_it_is_opened)
{
	struct shop shop;
	struct pl_error err;
	struct offer *offer;
	struct access_rules *rules;

	shop_open(&shop);
	assert_eq(access_rules_new(&rules, "CN=alice", NULL, NULL, NULL, NULL, &err), 0);
	add(&shop, "secret", "path=missing")->rules = rules;
	add(&shop, "tls", "path=missing")->tls = TLS_REQUIRED;
	log_nothing();
	apply(&shop, 0);
	assert_eq(try_find(&shop, "secret", &anybody, &offer, &err), -EACCES);
	assert_eq(try_find(&shop, "tls", &anybody, &offer, &err), -EPROTONOSUPPORT);
	assert_eq(try_find(&shop, "secret", &by_tls, &offer, &err), 0);
	offer_put(offer);
	assert_eq(try_find(&shop, "tls", &by_tls, &offer, &err), 0);
	offer_put(offer);
	shop_close(&shop);
}

TEST(the_list_shows_what_the_peer_may_have_in_the_order_of_the_configuration)
{
	struct shop shop;
	struct pl_error err;
	struct access_rules *rules;

	shop_open(&shop);
	assert_eq(access_rules_new(&rules, "CN=alice", NULL, NULL, NULL, NULL, &err), 0);
	add_memory(&shop, "z")->description = "first";
	add_memory(&shop, "hidden")->listed = false;
	add_memory(&shop, "tls")->tls = TLS_REQUIRED;
	add_memory(&shop, "alice")->rules = rules;
	add_memory(&shop, "")->description = "the default";
	add(&shop, "own", "driver=null", "size=1M");
	add(&shop, "gone", "path=missing");
	log_nothing();
	apply(&shop, 6);
	assert_str(listed(&shop, &anybody),
		   "z(first) (the default) own(nothing is kept, FUA: native) gone() ");
	assert_str(listed(&shop, &by_tls),
		   "z(first) tls(RAM) alice(RAM) (the default) own(nothing is kept, FUA: native) "
		   "gone() ");
	shop_close(&shop);
}

/* ---- using ----------------------------------------------------------------------- */

static void
sum_up(const struct offer_state *o, void *user)
{
	*(struct offer_state *)user = *o;
}

TEST(sessions_on_all_workers_use_one_disk_and_are_counted_together)
{
	struct shop shop;
	struct session a, b, c;
	struct offer_state st;

	shop_open(&shop);
	add_memory(&shop, "disk");
	apply(&shop, 1);
	begin_on(&shop, "disk", 0, &a);
	begin_on(&shop, "disk", 1, &b);
	begin_on(&shop, "disk", 1, &c);
	assert_true(a.channel != b.channel);
	assert_true(b.channel == c.channel);
	put_byte(&a, 9);
	assert_eq(get_byte(&b), 9);
	stats_count(a.stats, STATS_WRITE, 1, 0, 1000);
	stats_count(b.stats, STATS_READ, 1, 0, 1000);
	stats_count(c.stats, STATS_READ, 1, 0, 1000);
	catalog_each(shop.catalog, sum_up, &st);
	assert_eq(st.connections, 3);
	assert_eq(st.stats.op[STATS_READ].count, 2);
	assert_eq(st.stats.op[STATS_WRITE].count, 1);
	assert_eq(st.counters.writes, 1);
	assert_eq(st.geometry.size, 1 * MiB);
	end(&b);
	assert_eq(get_byte(&c), 9); /* its channel is still there */
	end(&a);
	end(&c);
	assert_str(state(&shop), "disk=0 ");
	shop_close(&shop);
}

TEST(two_exports_with_the_same_options_are_two_disks)
{
	struct shop shop;
	struct session a, b;

	shop_open(&shop);
	add_memory(&shop, "a");
	add_memory(&shop, "b");
	apply(&shop, 2);
	begin(&shop, "a", &a);
	begin(&shop, "b", &b);
	put_byte(&a, 1);
	assert_eq(get_byte(&b), 0);
	end(&a);
	end(&b);
	shop_close(&shop);
}

/* ---- who at a time --------------------------------------------------------------- */

static const unsigned writing = PL_CAP_WRITE | PL_CAP_ZERO | PL_CAP_TRIM | PL_CAP_FLUSH |
				PL_CAP_FUA | PL_CAP_FAST_ZERO | PL_CAP_WRITE_THROUGH;

TEST(a_shared_export_is_everybodys)
{
	struct shop shop;
	struct session a, b;

	shop_open(&shop);
	add_memory(&shop, "disk");
	apply(&shop, 1);
	begin(&shop, "disk", &a);
	begin(&shop, "disk", &b);
	assert_eq(a.capabilities, b.capabilities);
	assert_eq(b.capabilities, offer_capabilities(b.offer));
	assert_true((b.capabilities & PL_CAP_WRITE) != 0);
	assert_true((b.capabilities & PL_CAP_MULTI_CONN) != 0);
	end(&a);
	end(&b);
	shop_close(&shop);
}

TEST(a_single_writer_writes_and_the_others_read_until_it_ends)
{
	struct shop shop;
	struct session first, second, third;
	struct pl_error err;
	struct offer *offer;

	shop_open(&shop);
	add_memory(&shop, "disk")->access = ACCESS_SINGLE_WRITER;
	apply(&shop, 1);
	assert_eq(try_find(&shop, "disk", &anybody, &offer, &err), 0);
	assert_true((offer_capabilities(offer) & PL_CAP_WRITE) != 0);
	begin(&shop, "disk", &first);
	assert_true((first.capabilities & PL_CAP_WRITE) != 0);
	assert_true((first.capabilities & PL_CAP_FUA) != 0);
	assert_eq(first.capabilities & PL_CAP_MULTI_CONN, 0);

	/* INFO says what GO gives. */
	assert_eq(offer_capabilities(offer) & writing, 0);
	begin_on(&shop, "disk", 1, &second);
	assert_eq(second.capabilities, offer_capabilities(offer));
	assert_eq(second.capabilities & (writing | PL_CAP_MULTI_CONN), 0);
	assert_true((second.capabilities & PL_CAP_EXTENTS) != 0);

	end(&first);
	assert_true((offer_capabilities(offer) & PL_CAP_WRITE) != 0);
	assert_eq(second.capabilities & writing, 0); /* a reader stays one */
	begin(&shop, "disk", &third);
	assert_true((third.capabilities & PL_CAP_WRITE) != 0);
	end(&second);
	end(&third);
	offer_put(offer);
	shop_close(&shop);
}

TEST(an_exclusive_export_is_one_clients_until_its_session_ends)
{
	struct shop shop;
	struct session s;

	shop_open(&shop);
	add_memory(&shop, "disk")->access = ACCESS_EXCLUSIVE;
	apply(&shop, 1);
	begin(&shop, "disk", &s);
	assert_true((s.capabilities & PL_CAP_WRITE) != 0);
	assert_eq(s.capabilities & PL_CAP_MULTI_CONN, 0);
	refused(&shop, "disk", -EBUSY, "one client at a time");
	end(&s);
	begin(&shop, "disk", &s);
	end(&s);
	shop_close(&shop);
}

TEST(a_session_keeps_what_it_was_promised_when_a_reload_changes_the_mode)
{
	struct shop shop;
	struct session alone, writer, reader;

	shop_open(&shop);
	add_memory(&shop, "disk")->access = ACCESS_EXCLUSIVE;
	apply(&shop, 1);
	begin(&shop, "disk", &alone);
	put_byte(&alone, 5);
	shop.set[0].access = ACCESS_SHARED;
	apply(&shop, 1);
	refused(&shop, "disk", -EBUSY, "one client at a time");
	end(&alone);

	shop.set[0].access = ACCESS_SINGLE_WRITER;
	apply(&shop, 1);
	begin(&shop, "disk", &writer);
	assert_eq(get_byte(&writer), 5); /* it is the same disk */
	shop.set[0].access = ACCESS_SHARED;
	apply(&shop, 1);
	begin(&shop, "disk", &reader);
	assert_eq(reader.capabilities & PL_CAP_WRITE, 0);
	shop.set[0].access = ACCESS_EXCLUSIVE;
	apply(&shop, 1);
	refused(&shop, "disk", -EBUSY, "one client at a time");
	end(&writer);
	refused(&shop, "disk", -EBUSY, "one client at a time");
	end(&reader);
	begin(&shop, "disk", &alone);
	end(&alone);
	shop_close(&shop);
}

TEST(max_connections_counts_the_sessions_of_that_export)
{
	struct shop shop;
	struct session a, b, other;

	shop_open(&shop);
	add_memory(&shop, "disk")->max_connections = 2;
	add_memory(&shop, "other")->max_connections = 1;
	apply(&shop, 2);
	begin(&shop, "disk", &a);
	begin_on(&shop, "disk", 1, &b);
	refused(&shop, "disk", -EBUSY, "max-connections=2");
	begin(&shop, "other", &other);
	end(&other);
	end(&a);
	begin(&shop, "disk", &a);
	end(&a);
	end(&b);
	shop_close(&shop);
}

/* ---- reloading ------------------------------------------------------------------- */

TEST(a_reload_leaves_alone_what_is_the_same)
{
	struct shop shop;
	struct session s, t;
	struct pl_error err;
	struct offer *offer;

	shop_open(&shop);
	add_memory(&shop, "disk");
	apply(&shop, 1);
	begin(&shop, "disk", &s);
	put_byte(&s, 3);
	assert_eq(try_find(&shop, "disk", &anybody, &offer, &err), 0);
	clear(&shop);
	add_memory(&shop, "new");
	add_memory(&shop, "disk")->where = "platter.conf:99";
	apply(&shop, 2);
	/* Even for one who was about to begin. */
	assert_eq(offer_open(offer, &err), 0);
	assert_eq(session_begin(&t, offer, &shop.worker[1], s.client, &err), 0);
	assert_eq(get_byte(&t), 3);
	session_end(&t);
	assert_eq(get_byte(&s), 3);
	assert_str(state(&shop), "new=0 disk=1 ");
	end(&s);
	shop_close(&shop);
}

TEST(what_differs_in_access_only_is_the_same_disk_for_new_sessions)
{
	struct shop shop;
	struct session s, t;
	struct pl_error err;
	struct offer *offer;
	struct access_rules *rules;

	shop_open(&shop);
	add_memory(&shop, "disk");
	apply(&shop, 1);
	begin(&shop, "disk", &s);
	put_byte(&s, 3);
	assert_eq(try_find(&shop, "disk", &anybody, &offer, &err), 0);
	assert_eq(access_rules_new(&rules, "CN=alice", NULL, NULL, NULL, NULL, &err), 0);
	shop.set[0].rules = rules;
	shop.set[0].description = "now with a lock";
	apply(&shop, 1);
	assert_eq(get_byte(&s), 3);
	refused(&shop, "disk", -EACCES, "not for this client");
	/* Who was let in by the old rules and has not begun yet has to ask again. */
	assert_eq(session_begin(&t, offer, &shop.worker[0], s.client, &err), -EBUSY);
	assert_contains(err.text, "ask again");
	offer_put(offer);
	assert_eq(try_begin_as(&shop, &by_tls, "disk", 1, &t, &err), 0);
	assert_eq(get_byte(&t), 3);
	assert_str(offer_description(t.offer), "now with a lock");
	assert_str(state(&shop), "disk=2 ");
	end(&s);
	end(&t);
	shop_close(&shop);
}

TEST(what_is_no_longer_there_is_retired_and_its_sessions_go_on)
{
	struct shop shop;
	struct session s, t;
	struct pl_error err;
	struct offer *offer;

	shop_open(&shop);
	add_memory(&shop, "disk");
	add_memory(&shop, "other");
	apply(&shop, 2);
	begin(&shop, "disk", &s);
	put_byte(&s, 3);
	assert_eq(try_find(&shop, "disk", &anybody, &offer, &err), 0);
	clear(&shop);
	add_memory(&shop, "other");
	apply(&shop, 1);
	assert_eq(get_byte(&s), 3);
	refused(&shop, "disk", -ENOENT, "no export");
	assert_str(listed(&shop, &anybody), "other(RAM) ");
	assert_str(state(&shop), "other=0 disk=1! ");
	assert_eq(session_begin(&t, offer, &shop.worker[0], s.client, &err), -ENOENT);
	assert_contains(err.text, "no longer");
	offer_put(offer);
	end(&s);
	assert_str(state(&shop), "other=0 ");
	shop_close(&shop);
}

TEST(what_differs_in_its_options_is_another_disk)
{
	struct shop shop;
	struct session old, new;

	shop_open(&shop);
	add_memory(&shop, "disk");
	apply(&shop, 1);
	begin(&shop, "disk", &old);
	clear(&shop);
	add(&shop, "disk", "driver=memory", "size=2M");
	apply(&shop, 1);
	begin(&shop, "disk", &new);
	assert_eq(old.size, 1 * MiB);
	assert_eq(new.size, 2 * MiB);
	assert_str(state(&shop), "disk=1 disk=1! ");
	end(&new);
	clear(&shop);
	add(&shop, "disk", "driver=memory", "size=2M")->read_only = true;
	apply(&shop, 1);
	begin(&shop, "disk", &new);
	assert_eq(new.capabilities &writing, 0);
	end(&new);
	end(&old);
	shop_close(&shop);
}

TEST(a_bad_configuration_changes_nothing)
{
	struct shop shop;
	struct session s;
	struct pl_error err;
	unsigned opened;

	shop_open(&shop);
	add_memory(&shop, "disk");
	apply(&shop, 1);
	begin(&shop, "disk", &s);
	put_byte(&s, 3);

	clear(&shop);
	add_memory(&shop, "new");
	add(&shop, "bad", "driver=memory", "size=1X");
	assert_eq(try_apply(&shop, &opened, &err), -EINVAL);
	assert_contains(err.text, "platter.conf:7");
	assert_contains(err.text, "\"bad\"");
	assert_contains(err.text, "size=1X");

	clear(&shop);
	add_memory(&shop, "new");
	add_memory(&shop, "twin")->where = "platter.conf:3";
	add_memory(&shop, "twin")->where = "platter.conf:9";
	assert_eq(try_apply(&shop, &opened, &err), -EINVAL);
	assert_contains(err.text, "platter.conf:3");
	assert_contains(err.text, "platter.conf:9");

	clear(&shop);
	add(&shop, "name", "dir=.");
	assert_eq(try_apply(&shop, &opened, &err), -EINVAL);
	assert_contains(err.text, "dir=.");

	assert_str(state(&shop), "disk=1 ");
	end(&s);
	begin(&shop, "disk", &s);
	assert_eq(get_byte(&s), 3);
	end(&s);
	shop_close(&shop);
}

TEST(a_failed_export_is_opened_anew_by_a_reload)
{
	static const char *const words[] = { "driver=fault", "over=memory", "size=1M",
					     "kind=flush",   "at=1",        NULL };
	struct shop shop;
	struct session old, new;
	struct pl_request flush = { .op = PL_FLUSH };

	log_nothing();
	shop_open(&shop);
	add_words(&shop, "disk", words);
	apply(&shop, 1);
	begin(&shop, "disk", &old);
	put_byte(&old, 3);
	assert_eq(pl_request_call(old.channel, &flush), -EIO);
	assert_true(offer_failed(old.offer));
	begin(&shop, "disk", &new);
	assert_true(offer_failed(new.offer)); /* not by itself */
	end(&new);
	apply(&shop, 1);
	begin(&shop, "disk", &new);
	assert_false(offer_failed(new.offer));
	assert_str(state(&shop), "disk=1 disk=1! ");
	end(&new);
	assert_eq(get_byte(&old), 3);
	end(&old);
	assert_str(state(&shop), "disk=0 ");
	shop_close(&shop);
}

static void
check_order(struct session *s, enum client_order order)
{
	assert_eq(__atomic_load_n(&s->client->order, __ATOMIC_RELAXED), order);
}

TEST(to_retire_hides_and_to_retire_hard_cuts)
{
	struct shop shop;
	struct session a, b, other;
	struct pl_error err;

	shop_open(&shop);
	add_memory(&shop, "disk");
	add_memory(&shop, "other");
	apply(&shop, 2);
	begin(&shop, "disk", &a);
	begin_on(&shop, "disk", 1, &b);
	begin(&shop, "other", &other);
	assert_eq(catalog_retire(shop.catalog, "nothing", true, &err), -ENOENT);
	assert_contains(err.text, "nothing");
	assert_eq(catalog_retire(shop.catalog, "disk", false, &err), 0);
	refused(&shop, "disk", -ENOENT, "no export");
	check_order(&a, CLIENT_GO_ON);
	assert_eq(catalog_retire(shop.catalog, "disk", false, &err), -ENOENT);
	/* Who has waited long enough may still be harder. */
	assert_eq(catalog_retire(shop.catalog, "disk", true, &err), 0);
	check_order(&a, CLIENT_CUT);
	check_order(&b, CLIENT_CUT);
	check_order(&other, CLIENT_GO_ON);
	end(&a);
	end(&b);
	end(&other);
	assert_str(state(&shop), "other=0 ");
	apply(&shop, 2);
	begin(&shop, "disk", &a);
	end(&a);
	shop_close(&shop);
}

/* ---- images that cannot be opened ------------------------------------------------ */

TEST(an_image_that_appears_later_is_opened_for_the_next_who_asks)
{
	struct shop shop;
	struct session s;

	log_nothing();
	shop_open(&shop);
	add(&shop, "disk", "path=late.img");
	add_memory(&shop, "other");
	apply(&shop, 1);
	refused(&shop, "disk", -ENOENT, "late.img");
	assert_str(state(&shop), "disk=0- other=0 ");
	make_image("late.img", 1 * MiB);
	begin(&shop, "disk", &s);
	end(&s);
	assert_str(state(&shop), "disk=0 other=0 ");
	shop_close(&shop);
}

TEST(one_file_as_two_exports_is_refused_and_both_are_named)
{
	struct shop shop;
	struct session s;

	log_nothing();
	make_image("a.img", 1 * MiB);
	assert_eq(link("a.img", "hard.img"), 0);
	assert_eq(symlink("a.img", "soft.img"), 0);
	shop_open(&shop);
	add(&shop, "first", "path=a.img");
	add(&shop, "hard", "path=hard.img");
	add(&shop, "soft", "path=soft.img");
	apply(&shop, 1);
	refused(&shop, "hard", -EBUSY, "hard.img: it is in use");
	refused(&shop, "hard", -EBUSY, "export \"first\" of this server has it");
	refused(&shop, "soft", -EBUSY, "export \"first\" of this server has it");
	begin(&shop, "first", &s);
	end(&s);
	clear(&shop);
	add(&shop, "first", "path=a.img")->read_only = true;
	add(&shop, "hard", "path=hard.img")->read_only = true;
	apply(&shop, 2); /* readers bear each other */
	shop_close(&shop);
}

TEST(an_image_that_a_retired_export_still_has_is_opened_when_that_is_over)
{
	struct shop shop;
	struct session old, new;

	log_nothing();
	make_image("a.img", 1 * MiB);
	shop_open(&shop);
	add(&shop, "disk", "path=a.img");
	apply(&shop, 1);
	begin(&shop, "disk", &old);
	clear(&shop);
	add(&shop, "disk", "path=a.img", "cache=writethrough");
	apply(&shop, 0);
	refused(&shop, "disk", -EBUSY, "retired but not yet left by its clients");
	assert_str(state(&shop), "disk=0- disk=1! ");
	end(&old);
	begin(&shop, "disk", &new);
	assert_true((new.capabilities &PL_CAP_WRITE_THROUGH) != 0);
	end(&new);

	/* Where nobody is, the reload itself does it. */
	clear(&shop);
	add(&shop, "renamed", "path=a.img");
	apply(&shop, 1);
	shop_close(&shop);
}

struct opener {
	pthread_t thread;
	struct shop *shop;
	const char *name;
};

static void *
open_and_leave(void *arg)
{
	struct opener *o = arg;
	struct pl_error err;
	struct offer *offer;

	assert_eq(try_find(o->shop, o->name, &anybody, &offer, &err), 0);
	if (offer_open(offer, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	assert_eq(offer_geometry(offer)->size, 64 * KiB);
	offer_put(offer);
	return NULL;
}

static void
opener_start(struct opener *o, struct shop *shop, const char *name)
{
	*o = (struct opener){ .shop = shop, .name = name };
	assert_eq(pthread_create(&o->thread, NULL, open_and_leave, o), 0);
}

/* pl_export_open() says that it has opened the file, and returns a little later. */
static void
slow_line(enum pl_log_level level, const char *line)
{
	(void)line;
	if (level == PL_LOG_INFO)
		usleep(100000);
}

/* An image that is opened twice is in its own way, by its lock. */
TEST(many_who_ask_at_once_share_one_opening)
{
	struct opener o[4];
	struct shop shop;

	pl_log_to(slow_line);
	shop_open(&shop);
	add(&shop, "disk", "path=late.img");
	apply(&shop, 0);
	make_image("late.img", 64 * KiB);
	for (unsigned i = 0; i < 4; i++)
		opener_start(&o[i], &shop, "disk");
	for (unsigned i = 0; i < 4; i++)
		pthread_join(o[i].thread, NULL);
	shop_close(&shop);
}

static enum { CLOSE_AS_EVER, CLOSE_SLOWLY, CLOSING } close_mode;

/* Of the whole program. */
int
close(int fd)
{
	if (__atomic_load_n(&close_mode, __ATOMIC_RELAXED) == CLOSE_SLOWLY) {
		__atomic_store_n(&close_mode, CLOSING, __ATOMIC_RELAXED);
		usleep(200000);
	}
	return (int)syscall(SYS_close, fd);
}

static void *
leave(void *arg)
{
	offer_put(arg);
	return NULL;
}

TEST(an_image_that_is_just_being_closed_is_not_in_use)
{
	struct shop shop;
	struct opener next = { .shop = &shop, .name = "disk.img" };
	struct offer *offer;
	struct pl_error err;
	pthread_t thread;

	make_image("disk.img", 64 * KiB);
	shop_open(&shop);
	add(&shop, "", "dir=.");
	apply(&shop, 1);
	assert_eq(try_find(&shop, "disk.img", &anybody, &offer, &err), 0);
	assert_eq(offer_open(offer, &err), 0);
	close_mode = CLOSE_SLOWLY;
	assert_eq(pthread_create(&thread, NULL, leave, offer), 0);
	while (__atomic_load_n(&close_mode, __ATOMIC_RELAXED) != CLOSING)
		usleep(1000);
	open_and_leave(&next);
	pthread_join(thread, NULL);
	assert_str(state(&shop), "DIR=0 ");
	shop_close(&shop);
}

/* ---- directories ----------------------------------------------------------------- */

static void
make_directory(void)
{
	assert_eq(mkdir("d", 0700), 0);
	make_image("secret.img", 64 * KiB);
	make_image("d/b.img", 64 * KiB);
	make_image("d/a.img", 64 * KiB);
	make_image("d/own", 64 * KiB);
	make_image("d/.hidden", 64 * KiB);
	make_image("d/new\nline", 64 * KiB);
	assert_eq(mkdir("d/sub", 0700), 0);
	assert_eq(symlink("../secret.img", "d/link"), 0);
	assert_eq(mkfifo("d/pipe", 0600), 0);
}

TEST(a_directory_offers_its_images_and_nothing_else)
{
	static const char *const others[] = { "",
					      ".",
					      "..",
					      ".hidden",
					      "sub",
					      "link",
					      "pipe",
					      "../secret.img",
					      "./a.img",
					      "sub/../a.img",
					      "/etc/passwd",
					      "new\nline",
					      "c.img" };
	struct shop shop;
	struct session s;
	struct pl_error err;

	make_directory();
	shop_open(&shop);
	add(&shop, "", "dir=d")->description = "from d";
	add_memory(&shop, "own");
	apply(&shop, 2);
	assert_str(listed(&shop, &anybody), "a.img(from d) b.img(from d) own(RAM) ");
	for (unsigned i = 0; i < sizeof others / sizeof *others; i++) {
		int error = try_begin(&shop, others[i], &s, &err);

		if (error == 0)
			test_fail(__FILE__, __LINE__, "'%s' was served", others[i]);
	}
	begin(&shop, "a.img", &s);
	assert_str(offer_name(s.offer), "a.img");
	assert_str(offer_description(s.offer), "from d");
	end(&s);
	begin(&shop, "own", &s);
	assert_eq(s.size, 1 * MiB); /* the export of that name, not the directory's file */
	end(&s);
	shop_close(&shop);
}

TEST(an_image_of_a_directory_is_open_while_it_has_sessions)
{
	struct shop shop;
	struct session a, b, c;
	struct pl_export *ex;
	struct pl_error err;

	make_directory();
	shop_open(&shop);
	add(&shop, "", "dir=d")->max_connections = 2;
	apply(&shop, 1);
	begin(&shop, "a.img", &a);
	begin_on(&shop, "a.img", 1, &b);
	begin(&shop, "b.img", &c); /* the limit is each image's */
	put_byte(&a, 4);
	assert_eq(get_byte(&b), 4);
	assert_eq(get_byte(&c), 0);
	refused(&shop, "a.img", -EBUSY, "max-connections=2");
	assert_eq(try_export(WORDS("path=d/a.img"), 0, &ex, &err), -EBUSY);
	end(&a);
	assert_eq(try_export(WORDS("path=d/a.img"), 0, &ex, &err), -EBUSY);
	assert_str(state(&shop), "DIR=0 b.img=1 a.img=1 ");
	end(&b);
	assert_eq(try_export(WORDS("path=d/a.img"), 0, &ex, &err), 0);
	pl_export_close(ex);
	end(&c);
	assert_str(state(&shop), "DIR=0 ");
	shop_close(&shop);
}

TEST(images_in_use_stay_when_a_reload_leaves_their_directory_alone)
{
	struct shop shop;
	struct session s, t;
	struct pl_error err;

	log_nothing();
	make_directory();
	shop_open(&shop);
	add(&shop, "", "dir=d");
	apply(&shop, 1);
	begin(&shop, "a.img", &s);
	apply(&shop, 1);
	begin(&shop, "a.img", &t);
	assert_str(state(&shop), "DIR=0 a.img=2 ");
	end(&t);
	shop.set[0].access = ACCESS_EXCLUSIVE; /* of the same images */
	apply(&shop, 1);
	refused(&shop, "a.img", -EBUSY, "one client at a time");

	clear(&shop);
	add(&shop, "", "dir=d", "cache=writethrough");
	apply(&shop, 1);
	refused(&shop, "a.img", -EBUSY, "retired");
	begin(&shop, "b.img", &t);
	end(&t);
	assert_str(state(&shop), "DIR=0 a.img=1! ");

	assert_eq(catalog_retire(shop.catalog, "", false, &err), 0);
	refused(&shop, "b.img", -ENOENT, "no export");
	assert_eq(catalog_retire(shop.catalog, "", true, &err), 0);
	check_order(&s, CLIENT_CUT);
	end(&s);
	assert_str(state(&shop), "");
	shop_close(&shop);
}

TEST(a_directory_that_cannot_be_read_is_not_open_and_the_rest_is_served)
{
	struct shop shop;
	struct session s;

	log_nothing();
	shop_open(&shop);
	add(&shop, "", "dir=missing");
	add_memory(&shop, "other");
	apply(&shop, 1);
	assert_str(listed(&shop, &anybody), "other(RAM) ");
	refused(&shop, "a.img", -ENOENT, "missing");
	begin(&shop, "other", &s);
	end(&s);
	shop_close(&shop);
}
