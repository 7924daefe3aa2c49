/* access.c - who is not named does not get in. */
#include "access.h"

#include "fixture.h"
#include "test.h"

#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdio.h>
#include <string.h>

#define HEX "00112233445566778899aabbccddeeff00112233445566778899aabbccddeeff"

static const struct peer tcp = { .kind = PEER_TCP, .pid = -1, .uid = -1u, .gid = -1u };
static const struct peer pipe_peer = { .kind = PEER_PIPE, .pid = -1, .uid = -1u, .gid = -1u };
static const struct peer root = { .kind = PEER_UNIX, .pid = 7, .uid = 0, .gid = 0 };
static const struct peer user = { .kind = PEER_UNIX, .pid = 8, .uid = 1000, .gid = 100 };
static const struct peer tls_nobody = { .kind = PEER_TCP, .uid = -1u, .gid = -1u, .tls = true };
static const struct peer tls_x509 = { .kind = PEER_TCP,
				      .uid = -1u,
				      .gid = -1u,
				      .tls = true,
				      .subject = (char *)"CN=alice,O=Example",
				      .fingerprint = HEX };
static const struct peer tls_psk = {
	.kind = PEER_TCP, .uid = -1u, .gid = -1u, .tls = true, .psk = (char *)"alice"
};
static const struct peer *const everybody[] = { &tcp,        &pipe_peer, &root,   &user,
						&tls_nobody, &tls_x509,  &tls_psk };
#define PEERS (sizeof everybody / sizeof *everybody)

struct lists {
	const char *subjects, *fingerprints, *psks, *uids, *gids;
};

static struct access_rules *
rules_of(struct lists l)
{
	struct access_rules *rules;
	struct pl_error err;

	if (access_rules_new(&rules, l.subjects, l.fingerprints, l.psks, l.uids, l.gids, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	return rules;
}

/* These rules let in that one, and nobody else of everybody. */
static void
only(const struct peer *who, struct lists l)
{
	struct access_rules *rules = rules_of(l);

	for (unsigned i = 0; i < PEERS; i++) {
		if (access_allows(rules, everybody[i]) != (everybody[i] == who))
			test_fail(__FILE__, __LINE__, "wrong about peer %u", i);
	}
	access_rules_free(rules);
}

static void
refused(struct lists l, const char *key, const char *value)
{
	struct access_rules *rules;
	struct pl_error err;

	assert_eq(access_rules_new(&rules, l.subjects, l.fingerprints, l.psks, l.uids, l.gids,
				   &err),
		  -EINVAL);
	assert_contains(err.text, key);
	assert_contains(err.text, value);
}

TEST(without_rules_everybody_is_let_in)
{
	struct access_rules *rules = rules_of((struct lists){ 0 });

	for (unsigned i = 0; i < PEERS; i++) {
		assert_true(access_allows(rules, everybody[i]));
		assert_true(access_allows(NULL, everybody[i]));
	}
	access_rules_free(rules);
	access_rules_free(NULL);
}

TEST(each_kind_of_rule_lets_in_whom_it_names_and_nobody_else)
{
	only(&tls_x509, (struct lists){ .subjects = "CN=alice,O=Example" });
	only(&tls_x509, (struct lists){ .fingerprints = HEX });
	only(&tls_psk, (struct lists){ .psks = "alice" });
	only(&user, (struct lists){ .uids = "1000" });
	only(&user, (struct lists){ .gids = "100" });
	only(&root, (struct lists){ .uids = "root" });
	only(&root, (struct lists){ .gids = "root" });
}

TEST(one_rule_of_many_is_enough)
{
	only(&user, (struct lists){ .uids = "5; 1000 ;\t7" });
	only(&user, (struct lists){ .uids = "5", .gids = "4;100" });
	only(&tls_x509, (struct lists){ .subjects = "CN=bob;CN=alice,O=Example;", .psks = "bob" });
	only(&tls_psk, (struct lists){ .subjects = "CN=bob", .psks = "bob;alice" });
}

TEST(a_part_of_a_name_is_not_the_name)
{
	static const char *const near[] = { "CN=alice",
					    "O=Example",
					    "CN=alice,O=Example2",
					    "CN=alice, O=Example",
					    "CN=Alice,O=Example",
					    "O=Example,CN=alice",
					    "CN=alice,O=Exampl",
					    "*" };

	for (unsigned i = 0; i < sizeof near / sizeof *near; i++)
		only(NULL, (struct lists){ .subjects = near[i] });
	only(NULL, (struct lists){ .psks = "alic;alice2;ALICE;*" });
}

/* What kernel and TLS put where nothing is known must not be a name of somebody. */
TEST(who_has_no_identity_matches_no_rule)
{
	struct peer stale = tls_x509;

	stale.tls = false;
	stale.psk = (char *)"alice";
	for (unsigned i = 0; i < 3; i++) {
		struct access_rules *rules = rules_of((struct lists){
			.subjects = i == 0 ? "CN=alice,O=Example" : NULL,
			.fingerprints = i == 1 ? HEX : NULL,
			.psks = i == 2 ? "alice" : NULL,
		});

		assert_false(access_allows(rules, &stale));
		access_rules_free(rules);
	}
	refused((struct lists){ .uids = "4294967295" }, "allow-uid", "4294967295");
	refused((struct lists){ .gids = "4294967295" }, "allow-gid", "4294967295");
	/* A number that a TCP peer's could be taken for. */
	stale = tcp;
	stale.uid = stale.gid = 0;
	for (unsigned i = 0; i < 2; i++) {
		struct access_rules *rules = rules_of((struct lists){
			.uids = i == 0 ? "0" : NULL,
			.gids = i == 1 ? "0" : NULL,
		});

		assert_false(access_allows(rules, &stale));
		access_rules_free(rules);
	}
}

TEST(a_fingerprint_may_have_colons_and_capitals)
{
	char colons[96], *p = colons;

	for (unsigned i = 0; i < 64; i += 2)
		p += sprintf(p, "%s%c%c", i > 0 ? ":" : "", HEX[i], HEX[i + 1]);
	only(&tls_x509, (struct lists){ .fingerprints = colons });
	for (p = colons; *p != '\0'; p++)
		*p = *p >= 'a' && *p <= 'f' ? (char)(*p - 'a' + 'A') : *p;
	only(&tls_x509, (struct lists){ .fingerprints = colons });
}

TEST(a_backslash_keeps_what_separates_in_the_name)
{
	struct peer odd = tls_x509;
	struct access_rules *rules = rules_of(
		(struct lists){ .subjects = "CN=bob; CN=a\\;b\\, c\\ ,O=Example ; CN=carol" });

	odd.subject = (char *)"CN=a\\;b\\, c\\ ,O=Example";
	assert_true(access_allows(rules, &odd));
	odd.subject = (char *)"CN=carol";
	assert_true(access_allows(rules, &odd));
	odd.subject = (char *)"CN=a\\";
	assert_false(access_allows(rules, &odd));
	access_rules_free(rules);
}

TEST(a_backslash_is_no_part_of_the_identity_of_a_key)
{
	struct peer odd = { .kind = PEER_TCP, .tls = true };
	struct access_rules *rules =
		rules_of((struct lists){ .psks = "bob;a\\;b; c\\\\;DOMAIN\\user;end\\ " });
	static const char *const in[] = { "bob", "a;b", "c\\", "DOMAIN\\user", "end " };
	static const char *const out[] = { "a", "b", "a\\;b", "c", "c\\\\", "DOMAINuser", "end" };

	for (unsigned i = 0; i < 5; i++) {
		odd.psk = (char *)in[i];
		assert_true(access_allows(rules, &odd));
	}
	for (unsigned i = 0; i < 7; i++) {
		odd.psk = (char *)out[i];
		assert_false(access_allows(rules, &odd));
	}
	access_rules_free(rules);
}

TEST(rules_that_make_no_sense_are_refused_with_key_and_value)
{
	refused((struct lists){ .fingerprints = "1234" }, "allow-fingerprint", "1234");
	refused((struct lists){ .fingerprints = HEX "0" }, "allow-fingerprint", HEX "0");
	refused((struct lists){ .fingerprints = HEX ";xyz" }, "allow-fingerprint", "xyz");
	refused((struct lists){ .uids = "no-such-user" }, "allow-uid", "no-such-user");
	refused((struct lists){ .uids = "12x" }, "allow-uid", "12x");
	refused((struct lists){ .uids = "-1" }, "allow-uid", "-1");
	refused((struct lists){ .uids = "99999999999999999999" }, "allow-uid", "9999999");
	refused((struct lists){ .gids = "no-such-group" }, "allow-gid", "no-such-group");
}

/* "allow-uid=" must not mean that everybody is allowed. */
TEST(a_list_that_names_nobody_is_refused)
{
	static const char *const empty[] = { "", " ", ";", " ; ;\t" };

	for (unsigned i = 0; i < 4; i++) {
		refused((struct lists){ .subjects = empty[i] }, "allow-subject", "nobody");
		refused((struct lists){ .fingerprints = empty[i] }, "allow-fingerprint", "nobody");
		refused((struct lists){ .psks = empty[i] }, "allow-psk", "nobody");
		refused((struct lists){ .uids = empty[i] }, "allow-uid", "nobody");
		refused((struct lists){ .gids = empty[i] }, "allow-gid", "nobody");
	}
}

TEST(rules_are_the_same_when_they_say_the_same)
{
	struct access_rules *none = rules_of((struct lists){ 0 });
	struct access_rules *a = rules_of((struct lists){ .uids = "1;2" });
	struct access_rules *b = rules_of((struct lists){ .uids = " 1; 2" });
	struct access_rules *gid = rules_of((struct lists){ .gids = "1;2" });
	struct access_rules *more = rules_of((struct lists){ .uids = "1;2;3" });
	struct access_rules *copy = access_rules_copy(a);

	assert_true(access_rules_same(none, NULL));
	assert_true(access_rules_same(a, b));
	assert_true(access_rules_same(a, copy));
	assert_false(access_rules_same(a, gid));
	assert_false(access_rules_same(a, more));
	assert_false(access_rules_same(more, a));
	assert_false(access_rules_same(a, none));
	access_rules_free(a);
	assert_true(access_allows(copy, &(struct peer){ .kind = PEER_UNIX, .uid = 2 }));
	access_rules_free(copy);
	access_rules_free(b);
	access_rules_free(gid);
	access_rules_free(more);
	access_rules_free(none);
}
