/* iscsi_chap.c - by CHAP only those come in who know a secret, and only we answer as ourselves. */
#include "few-targets.h"
#include "iscsi/chap.h"
#include "test.h"

#include <errno.h>
#include <nettle/base64.h>
#include <nettle/nettle-meta.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRETS \
	"in alice secret-of-alice\n" \
	"in bob 0x00112233445566778899aabb\n" \
	"out target secret-of-target\n"

struct value {
	char text[2100];
};

/* The value of a key in an answer; "" where it is not. */
static struct value
value_of(const struct iscsi_text *t, const char *key)
{
	struct value v = { "" };
	size_t length = strlen(key);

	assert_false(t->failed);
	for (size_t at = 0; at < t->length; at += strlen(t->data + at) + 1) {
		if (strncmp(t->data + at, key, length) == 0 && t->data[at + length] == '=')
			strcpy(v.text, t->data + at + length + 1);
	}
	return v;
}

static size_t
from_hex(const char *text, uint8_t *to)
{
	size_t n = 0;
	unsigned byte;

	assert_true(strncmp(text, "0x", 2) == 0 && strlen(text) % 2 == 0);
	for (text += 2; *text != '\0'; text += 2) {
		assert_eq(sscanf(text, "%2x", &byte), 1);
		to[n++] = (uint8_t)byte;
	}
	return n;
}

static struct value
to_hex(const uint8_t *bytes, size_t length)
{
	struct value v = { "0x" };

	for (size_t i = 0; i < length; i++)
		sprintf(v.text + 2 + 2 * i, "%02X", bytes[i]);
	return v;
}

static const struct nettle_hash *
hash_of(const char *algorithm)
{
	switch (algorithm[0]) {
	case '5': return &nettle_md5;
	case '6': return &nettle_sha1;
	case '7': return &nettle_sha256;
	default: return &nettle_sha3_256;
	}
}

/* As an initiator that knows the secret answers. */
static size_t
response_to(const struct iscsi_text *challenge, const void *secret, size_t length, uint8_t *to)
{
	const struct nettle_hash *hash = hash_of(value_of(challenge, "CHAP_A").text);
	uint8_t identifier = (uint8_t)atoi(value_of(challenge, "CHAP_I").text), bytes[1024];
	size_t n = from_hex(value_of(challenge, "CHAP_C").text, bytes);
	void *ctx = malloc(hash->context_size);

	hash->init(ctx);
	hash->update(ctx, 1, &identifier);
	hash->update(ctx, length, secret);
	hash->update(ctx, n, bytes);
	hash->digest(ctx, hash->digest_size, to);
	free(ctx);
	return hash->digest_size;
}

struct talk {
	struct chap chap;
	struct iscsi_text out;
};

static struct talk
begin(const char *secrets)
{
	return (struct talk){ .chap.secrets = few_secrets(secrets) };
}

static void
end(struct talk *t)
{
	iscsi_text_free(&t->out);
	chap_end(&t->chap);
}

static int
offer(struct talk *t, const char *algorithms)
{
	t->out.length = 0;
	return chap_step(&t->chap, &(struct chap_keys){ .algorithms = algorithms }, &t->out);
}

/* To the challenge in out. */
static int
answer_as(struct talk *t, const char *name, const char *secret, const char *identifier,
	  const char *challenge)
{
	uint8_t response[64];
	size_t n = response_to(&t->out, secret, strlen(secret), response);
	struct value r = to_hex(response, n);

	t->out.length = 0;
	return chap_step(&t->chap,
			 &(struct chap_keys){ .name = name,
					      .response = r.text,
					      .identifier = identifier,
					      .challenge = challenge },
			 &t->out);
}

/* ---- who the initiator is -------------------------------------------------------- */

/* What somebody knows who has come in by it. */
static struct chap_secrets *
known_by(const char *secrets, const char *name, const char *secret)
{
	struct talk t = begin(secrets);
	struct chap_secrets *known;

	assert_eq(offer(&t, "7"), 0);
	assert_eq(answer_as(&t, name, secret, NULL, NULL), 0);
	assert_true(t.chap.done);
	known = chap_secrets_get(t.chap.known);
	end(&t);
	return known;
}

#define HOST  "iqn.2026-01.org.example:host"
#define OTHER "iqn.2026-01.org.example:other"

TEST(an_initiators_name_is_that_initiators_alone)
{
	static const char file[] = "in IQN.2026-01.org.example:Host secret-of-host\n"
				   "in guest secret-of-guest\n";
	struct chap_secrets *secrets = few_secrets(file);
	struct chap_secrets *host =
		known_by(file, "IQN.2026-01.org.example:Host", "secret-of-host");
	struct chap_secrets *guest = known_by(file, "guest", "secret-of-guest");

	assert_true(chap_secrets_admit(secrets, host, HOST));
	assert_false(chap_secrets_admit(secrets, host, OTHER));
	assert_true(chap_secrets_admit(secrets, guest, OTHER));
	assert_false(chap_secrets_admit(secrets, guest, HOST));
	assert_false(chap_secrets_admit(secrets, NULL, OTHER));
	assert_true(chap_secrets_admit(NULL, NULL, OTHER));
	chap_secrets_put(host);
	chap_secrets_put(guest);
	chap_secrets_put(secrets);
}

TEST(secrets_of_several_files_stay_apart)
{
	static const char one[] = "in alice secret-of-alice\nout one proof-of-the-1st\n";
	static const char two[] = "in alice another-secret\nin bob secret-of-bobby\n"
				  "out two proof-of-the-2nd\n";
	struct chap_secrets *files[] = { few_secrets(one), few_secrets(two), few_secrets(two) };
	static const struct {
		const char *name, *secret, *proof;
		bool first, second;
	} cases[] = {
		{ "alice", "secret-of-alice", "one", true, false },
		{ "alice", "another-secret", "two", false, true },
		{ "bob", "secret-of-bobby", "two", false, true },
		{ "bob", "secret-of-alice", NULL, false, false },
	};

	for (unsigned i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct talk t = { .chap.secrets = NULL };

		for (unsigned k = 0; k < 3; k++)
			assert_eq(chap_secrets_join(&t.chap.secrets, files[k]), 0);
		assert_eq(offer(&t, "5"), 0);
		assert_eq(answer_as(&t, cases[i].name, cases[i].secret, "7", "0x0102"),
			  cases[i].proof != NULL ? 0 : -EACCES);
		assert_eq(t.chap.done, cases[i].proof != NULL);
		if (t.chap.done)
			assert_str(value_of(&t.out, "CHAP_N").text, cases[i].proof);
		assert_eq(chap_secrets_admit(files[0], t.chap.known, HOST), cases[i].first);
		assert_eq(chap_secrets_admit(files[1], t.chap.known, HOST), cases[i].second);
		end(&t);
	}
	assert_false(chap_secrets_share(files[0], files[1]));
	for (unsigned k = 0; k < 3; k++)
		chap_secrets_put(files[k]);
}

TEST(what_one_file_proves_opens_no_other)
{
	struct chap_secrets *one = few_secrets("in a secret-of-a-a\nout t proof-of-target\n");
	struct chap_secrets *two = few_secrets("in b proof-of-target\n");

	assert_true(chap_secrets_share(one, two) && chap_secrets_share(two, one));
	assert_false(chap_secrets_share(one, one) || chap_secrets_share(two, two));
	chap_secrets_put(one);
	chap_secrets_put(two);
}

TEST(who_knows_a_secret_comes_in_by_each_algorithm)
{
	static const char *const algorithms[] = { "5", "6", "7", "8" };

	for (unsigned i = 0; i < 4; i++) {
		struct talk t = begin(SECRETS);

		assert_eq(offer(&t, algorithms[i]), 0);
		assert_str(value_of(&t.out, "CHAP_A").text, algorithms[i]);
		assert_eq(answer_as(&t, "alice", "secret-of-alice", NULL, NULL), 0);
		assert_true(t.chap.done);
		assert_str(t.chap.name, "alice");
		assert_eq(t.out.length, 0);
		end(&t);
	}
}

TEST(a_secret_may_be_written_in_hex_and_an_answer_in_base64)
{
	static const uint8_t secret[] = { 0x00, 0x11, 0x22, 0x33, 0x44, 0x55,
					  0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb };
	char base64[2 + BASE64_ENCODE_RAW_LENGTH(64) + 1] = "0b";
	struct talk t = begin(SECRETS);
	uint8_t response[64];
	size_t n;

	assert_eq(offer(&t, "7"), 0);
	n = response_to(&t.out, secret, sizeof secret, response);
	base64_encode_raw(base64 + 2, n, response);
	base64[2 + BASE64_ENCODE_RAW_LENGTH(n)] = '\0';
	assert_eq(chap_step(&t.chap, &(struct chap_keys){ .name = "bob", .response = base64 },
			    &t.out),
		  0);
	assert_true(t.chap.done);
	end(&t);
}

TEST(the_initiators_first_algorithm_of_ours_is_taken)
{
	static const struct {
		const char *offer, *taken; /* NULL: none */
	} cases[] = {
		{ "5,6,7,8", "5" }, { "8,5", "8" }, { "99,7,5", "7" }, { "56", NULL },
		{ "", NULL },       { "05", NULL }, { "4", NULL },     { ",,6,", "6" },
		{ "5 ", NULL },     { "-5", NULL },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct talk t = begin(SECRETS);

		assert_eq(offer(&t, cases[i].offer), cases[i].taken != NULL ? 0 : -EACCES);
		if (cases[i].taken != NULL)
			assert_str(value_of(&t.out, "CHAP_A").text, cases[i].taken);
		end(&t);
	}
}

TEST(a_wrong_name_or_secret_is_refused)
{
	static const char *const wrong[][2] = {
		{ "alice", "secret-of-bob" },     { "alice", "" },
		{ "mallory", "secret-of-alice" }, { "", "secret-of-alice" },
		{ "Alice", "secret-of-alice" },   { "mallory", "\0\0\0\0\0\0\0\0\0\0\0\0" },
		{ "target", "secret-of-target" },
	};

	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct talk t = begin(SECRETS);

		assert_eq(offer(&t, "5"), 0);
		assert_eq(answer_as(&t, wrong[i][0], wrong[i][1], NULL, NULL), -EACCES);
		assert_false(t.chap.done);
		assert_eq(t.out.length, 0);
		end(&t);
	}
}

/* What takes the place of a secret for names that are not there lets nobody in. */
TEST(a_name_that_is_not_there_has_no_secret_that_works)
{
	static const uint8_t zeroes[12];
	struct talk t = begin(SECRETS);
	uint8_t response[64];
	struct value r;

	assert_eq(offer(&t, "5"), 0);
	r = to_hex(response, response_to(&t.out, zeroes, sizeof zeroes, response));
	assert_eq(chap_step(&t.chap, &(struct chap_keys){ .name = "nobody", .response = r.text },
			    &t.out),
		  -EACCES);
	end(&t);
}

TEST(a_response_that_is_none_is_refused)
{
	static const char *const wrong[] = {
		"",      "0x",
		"0xzz",  "0b!",
		"12345", "0x00112233445566778899aabbccddee",
		"0b",    "0x00112233445566778899aabbccddeeff00",
	};
	char longest[300];

	for (size_t i = 0; i <= sizeof wrong / sizeof *wrong; i++) {
		struct talk t = begin(SECRETS);
		const char *response = i < sizeof wrong / sizeof *wrong ? wrong[i] : longest;

		memset(longest, 'A', sizeof longest);
		memcpy(longest, "0b", 2);
		longest[sizeof longest - 1] = '\0';
		assert_eq(offer(&t, "5"), 0);
		assert_eq(chap_step(&t.chap,
				    &(struct chap_keys){ .name = "alice", .response = response },
				    &t.out),
			  -EACCES);
		end(&t);
	}
}

TEST(each_login_has_a_challenge_of_its_own)
{
	struct talk a = begin(SECRETS), b = begin(SECRETS);
	struct value first;

	assert_eq(offer(&a, "5"), 0);
	assert_eq(offer(&b, "5"), 0);
	first = value_of(&a.out, "CHAP_C");
	assert_eq(strlen(first.text), 2 + 2 * CHAP_CHALLENGE);
	assert_true(strcmp(first.text, value_of(&b.out, "CHAP_C").text) != 0);
	end(&a);
	end(&b);
}

TEST(steps_out_of_order_are_found_out)
{
	static const struct chap_keys wrong_first[] = {
		{ 0 },
		{ .name = "alice", .response = "0x00" },
		{ .algorithms = "5", .name = "alice" },
		{ .algorithms = "5", .identifier = "1", .challenge = "0x00" },
	};
	static const struct chap_keys wrong_second[] = {
		{ 0 },
		{ .algorithms = "5" },
		{ .name = "alice" },
		{ .response = "0x00" },
		{ .name = "alice", .response = "0x00", .identifier = "1" },
		{ .name = "alice", .response = "0x00", .challenge = "0x00" },
		{ .algorithms = "5", .name = "alice", .response = "0x00" },
	};
	struct talk t;

	for (size_t i = 0; i < sizeof wrong_first / sizeof *wrong_first; i++) {
		t = begin(SECRETS);
		assert_eq(chap_step(&t.chap, &wrong_first[i], &t.out), -EPROTO);
		end(&t);
	}
	for (size_t i = 0; i < sizeof wrong_second / sizeof *wrong_second; i++) {
		t = begin(SECRETS);
		assert_eq(offer(&t, "5"), 0);
		assert_eq(chap_step(&t.chap, &wrong_second[i], &t.out), -EPROTO);
		end(&t);
	}
	t = begin(SECRETS);
	assert_eq(offer(&t, "5"), 0);
	assert_eq(answer_as(&t, "alice", "secret-of-alice", NULL, NULL), 0);
	assert_eq(offer(&t, "5"), -EPROTO); /* it is over */
	end(&t);
}

/* ---- who we are ------------------------------------------------------------------ */

/* Of the identifier 0x17, "secret-of-target" and the challenge 01 02 ... 10, made by Python's
 * hashlib. */
TEST(what_we_answer_is_what_others_would)
{
	static const char *const vectors[][2] = {
		{ "5", "0x614a12bdb9f42919a2992cddefd2c2f4" },
		{ "6", "0xb9f9ed15a71de762303b2398b10391364dfa62f9" },
		{ "7", "0x8a9b28260fe4d130366ed7521ba5dc1f2024ad4e041dc082955e4db9d7c18063" },
		{ "8", "0xbd3ddcda58d4f0b1f76fc93d4cc101e00e69152daa0c55835017e2086e9a9420" },
	};

	for (unsigned i = 0; i < 4; i++) {
		struct talk t = begin(SECRETS);

		assert_eq(offer(&t, vectors[i][0]), 0);
		assert_eq(answer_as(&t, "alice", "secret-of-alice", "23",
				    "0x0102030405060708090A0B0C0D0E0F10"),
			  0);
		assert_true(t.chap.done);
		assert_str(value_of(&t.out, "CHAP_N").text, "target");
		assert_str(value_of(&t.out, "CHAP_R").text, vectors[i][1]);
		end(&t);
	}
}

TEST(nobody_is_answered_who_has_not_said_who_he_is)
{
	struct talk t = begin(SECRETS);

	assert_eq(offer(&t, "5"), 0);
	assert_eq(answer_as(&t, "alice", "wrong-wrong-wrong", "1", "0x0102030405060708"), -EACCES);
	assert_eq(t.out.length, 0);
	end(&t);
}

/* RFC 7143, "CHAP Considerations" */
TEST(our_own_challenge_is_not_answered)
{
	struct talk t = begin(SECRETS);
	struct value own;

	assert_eq(offer(&t, "5"), 0);
	own = value_of(&t.out, "CHAP_C");
	assert_eq(answer_as(&t, "alice", "secret-of-alice", "1", own.text), -EACCES);
	assert_eq(t.out.length, 0);
	end(&t);
}

TEST(a_challenge_that_is_none_is_not_answered)
{
	struct value longest = { "0x" }, too_long = { "0x" };
	const char *wrong[][2] = {
		{ "1", "0x" },     { "1", "" },       { "1", "0xg" },
		{ "256", "0x01" }, { "", "0x01" },    { "-1", "0x01" },
		{ "1", "01" },     { "1", "0b====" }, { "1", too_long.text },
	};
	struct talk t;

	memset(longest.text + 2, 'a', 2048);
	memset(too_long.text + 2, 'a', 2050);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		t = begin(SECRETS);
		assert_eq(offer(&t, "5"), 0);
		assert_eq(answer_as(&t, "alice", "secret-of-alice", wrong[i][0], wrong[i][1]),
			  -EACCES);
		assert_eq(t.out.length, 0);
		end(&t);
	}
	t = begin(SECRETS);
	assert_eq(offer(&t, "5"), 0);
	assert_eq(answer_as(&t, "alice", "secret-of-alice", "0xff", longest.text), 0);
	end(&t);
}

TEST(without_a_secret_of_ours_we_do_not_say_who_we_are)
{
	struct talk t = begin("in alice secret-of-alice\n");

	assert_eq(offer(&t, "5"), 0);
	assert_eq(answer_as(&t, "alice", "secret-of-alice", "1", "0x0102030405060708"), -EACCES);
	assert_eq(t.out.length, 0);
	end(&t);
}

/* ---- the file -------------------------------------------------------------------- */

static int
read_file(const char *text, size_t length, mode_t mode, struct pl_error *err)
{
	char path[] = "/tmp/platter-secrets-XXXXXX";
	struct chap_secrets *secrets = NULL;
	int fd = mkstemp(path), error;

	assert_true(fd != -1 && write(fd, text, length) == (ssize_t)length);
	assert_eq(fchmod(fd, mode), 0);
	close(fd);
	error = chap_secrets_read(&secrets, path, err);
	unlink(path);
	assert_eq(secrets != NULL, error == 0);
	chap_secrets_put(secrets);
	return error;
}

TEST(a_file_of_secrets_has_comments_and_both_directions)
{
	static const char text[] = "# who may come\n"
				   "\n"
				   "  in\talice  secret-of-alice # she\n"
				   "in bob 0x00112233445566778899AABB\r\n"
				   "out target secret-of-target";
	struct pl_error err;

	assert_eq(read_file(text, sizeof text - 1, 0600, &err), 0);
	assert_eq(read_file(text, sizeof text - 1, 0400, &err), 0);
}

TEST(what_is_wrong_in_a_file_is_said_with_its_line_and_no_secret)
{
	static const struct {
		const char *text, *says;
	} cases[] = {
		{ "", "no line in NAME SECRET" },
		{ "out target secret-of-target\n", "no line in NAME SECRET" },
		{ "in alice s3cret-words\nin bob s3cret-word\n",
		  ":2: a secret has 12 bytes at least" },
		{ "in alice 0x00112233445566778899aa\n", ":1: a secret has 12 bytes at least" },
		{ "in alice 0xs3cretsecret\n", ":1: what is behind 0x" },
		{ "in alice\n", ":1: a line is" },
		{ "in alice # s3cret-secret\n", ":1: a line is" },
		{ "both alice s3cret-secret\n", ":1: a line is" },
		{ "in alice s3cret-secret s3cret\n", ":1: more words" },
		{ "in alice s3cret-secret\nin alice s3cret-s3cret\n", ":2: this name" },
		{ "in alice s3cret-secret\nout a s3cret-s3cret\nout b s3cret-s3cre7\n",
		  ":3: there is an out already" },
		{ "in alice s3cret-secret\nout target s3cret-secret\n",
		  "the secret of in alice is that of out" },
	};
	struct pl_error err;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		assert_eq(read_file(cases[i].text, strlen(cases[i].text), 0600, &err), -EINVAL);
		assert_contains(err.text, cases[i].says);
		assert_true(strstr(err.text, "s3cret") == NULL);
	}
}

TEST(secrets_and_names_have_255_bytes_at_most)
{
	char text[600];
	struct pl_error err;

	for (int length = 255; length <= 256; length++) {
		snprintf(text, sizeof text, "in alice %0*d\n", length, 7);
		assert_eq(read_file(text, strlen(text), 0600, &err), length == 255 ? 0 : -EINVAL);
		snprintf(text, sizeof text, "in %0*d s3cret-secret\n", length, 7);
		assert_eq(read_file(text, strlen(text), 0600, &err), length == 255 ? 0 : -EINVAL);
	}
}

TEST(a_file_that_others_may_read_is_refused)
{
	static const mode_t modes[] = { 0640, 0604, 0660, 0622, 0666 };
	static const char text[] = "in alice secret-of-alice\n";
	struct pl_error err;

	for (size_t i = 0; i < sizeof modes / sizeof *modes; i++) {
		assert_eq(read_file(text, sizeof text - 1, modes[i], &err), -EINVAL);
		assert_contains(err.text, "chmod 600");
	}
}

TEST(what_is_no_such_file_is_refused)
{
	static char big[70000];
	struct chap_secrets *secrets;
	struct pl_error err;

	assert_eq(chap_secrets_read(&secrets, "/nonexistent/secrets", &err), -ENOENT);
	assert_eq(chap_secrets_read(&secrets, "/tmp", &err), -EINVAL);
	memset(big, '\n', sizeof big);
	assert_eq(read_file(big, sizeof big, 0600, &err), -EINVAL);
	assert_contains(err.text, "bytes");
	assert_eq(read_file("in alice\0secret-of-alice\n", 25, 0600, &err), -EINVAL);
	assert_contains(err.text, "NUL");
}
