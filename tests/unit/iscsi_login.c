/*
 * iscsi_login.c - requests in, answers out: every login request is answered as the RFC wants, and
 * only who may comes through.
 */
#include "few-targets.h"
#include "iscsi/login.h"
#include "test.h"
#include "worker.h"

#include <errno.h>
#include <nettle/md5.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define CLIENT "InitiatorName=iqn.2026-01.org.example:client"
#define OTHER  "InitiatorName=iqn.2026-01.org.example:other"
#define OPEN   "|TargetName=iqn.2026-01.org.example:open"
#define LOCKED "|TargetName=iqn.2026-01.org.example:locked"
#define OWN    "|TargetName=iqn.2026-01.org.example:own"
#define GROUP  "TargetPortalGroupTag=1"
#define LENGTH "MaxRecvDataSegmentLength=262144"

static struct worker here, elsewhere;
static struct target targets[] = {
	{ .name = "iqn.2026-01.org.example:open", .worker = &here },
	{ .name = "iqn.2026-01.org.example:locked", .worker = &here },
	{ .name = "iqn.2026-01.org.example:own",
	  .worker = &here,
	  .initiator = "iqn.2026-01.org.example:client" },
	{ .name = "iqn.2026-01.org.example:far", .worker = &elsewhere },
};
#define TARGETS (sizeof targets / sizeof *targets)

/* ---- a talk ---------------------------------------------------------------------- */

enum { STAY = -1, GOES_ON = -2 }; /* instead of the next stage: T=0; C=1 */

struct talk {
	struct iscsi_login login;
	struct peer peer;
	struct iscsi_output out;
	uint8_t bhs[ISCSI_BHS];
	enum login_step step;
	bool own_session; /* the test answers LOGIN_SESSION */
	/* the last answer */
	const uint8_t *response; /* NULL: none came */
	unsigned status;
	char keys[20000]; /* with bars for NULs */
};

static void
begin(struct talk *t)
{
	few_targets = targets;
	few_targets_count = TARGETS;
	*t = (struct talk){ .login = { .worker = &here, .window = 16 } };
	t->login.peer = &t->peer;
	t->bhs[0] = ISCSI_LOGIN | ISCSI_IMMEDIATE;
	memcpy(t->bhs + 8, "\x80\1\2\3\4\5", 6);
	put_be32(t->bhs + 16, 0xabcd);
	put_be16(t->bhs + 20, 3);
	put_be32(t->bhs + 24, 1000);
	iscsi_login_start(&t->login);
}

static void
end(struct talk *t)
{
	iscsi_login_end(&t->login);
	iscsi_output_free(&t->out);
	for (unsigned i = 0; i < TARGETS; i++) {
		assert_eq(targets[i].references, 0);
		chap_secrets_put(targets[i].secrets);
		targets[i].secrets = NULL;
	}
}

static void
read_answer(struct talk *t)
{
	uint32_t length;

	t->response = NULL;
	t->status = 0;
	t->keys[0] = '\0';
	if (t->out.length == 0)
		return;
	t->response = t->out.data;
	length = iscsi_data_length(t->response);
	assert_eq(t->out.length, ISCSI_BHS + length + iscsi_padding(length));
	assert_true(length < sizeof t->keys);
	assert_eq(iscsi_opcode(t->response), ISCSI_LOGIN_RESPONSE);
	t->status = get_be16(t->response + 36);
	memcpy(t->keys, t->response + ISCSI_BHS, length);
	for (size_t i = 0; i < length; i++)
		t->keys[i] = t->keys[i] == '\0' ? '|' : t->keys[i];
	t->keys[length] = '\0';
	if (length > 0 && t->keys[length - 1] == '|')
		t->keys[length - 1] = '\0';
}

/* Sends what the test has made of the header, and those keys. */
static enum login_step
send_request(struct talk *t, const char *data, size_t length)
{
	char *copy = malloc(length != 0 ? length : 1); /* so that nothing behind it is read */

	memcpy(copy, data, length);
	put_be24(t->bhs + 5, (uint32_t)length);
	t->out.length = 0;
	t->step = iscsi_login_step(&t->login, t->bhs, copy, length, &t->out);
	free(copy);
	if (t->step == LOGIN_SESSION && !t->own_session) {
		assert_eq(t->out.length, 0);
		t->step = iscsi_login_session(&t->login, ISCSI_LOGIN_SUCCESS, 77, &t->out);
	}
	read_answer(t);
	return t->step;
}

static enum login_step
say_bytes(struct talk *t, unsigned stage, int next, const char *data, size_t length)
{
	t->bhs[1] = (uint8_t)(stage << 2);
	if (next == GOES_ON)
		t->bhs[1] |= ISCSI_CONTINUE;
	else if (next != STAY)
		t->bhs[1] |= (uint8_t)(ISCSI_LOGIN_TRANSIT | next);
	return send_request(t, data, length);
}

static enum login_step
say(struct talk *t, unsigned stage, int next, const char *keys)
{
	char data[10000];
	size_t length = keys[0] != '\0' ? strlen(keys) + 1 : 0;

	assert_true(length <= sizeof data);
	memcpy(data, keys, length);
	for (size_t i = 0; i < length; i++)
		data[i] = data[i] == '|' ? '\0' : data[i];
	return say_bytes(t, stage, next, data, length);
}

static bool
transits(const struct talk *t, unsigned next)
{
	return t->response != NULL &&
	       (t->response[1] & (ISCSI_LOGIN_TRANSIT | 3)) == (ISCSI_LOGIN_TRANSIT | next);
}

static bool
stays(const struct talk *t)
{
	return t->response != NULL && (t->response[1] & ISCSI_LOGIN_TRANSIT) == 0;
}

/* The value of a key in the last answer, or "". */
static const char *
value_of(const struct talk *t, const char *key, char to[300])
{
	const char *at = strstr(t->keys, key);

	to[0] = '\0';
	if (at != NULL && at[strlen(key)] == '=')
		snprintf(to, 300, "%.*s", (int)strcspn(at + strlen(key) + 1, "|"),
			 at + strlen(key) + 1);
	return to;
}

/* ---- ways in --------------------------------------------------------------------- */

TEST(a_session_begins_after_both_stages)
{
	struct talk t;

	begin(&t);
	assert_eq(say(&t, 0, 1, CLIENT OPEN "|SessionType=Normal|AuthMethod=None"), LOGIN_MORE);
	assert_eq(t.status, 0);
	assert_str(t.keys, GROUP "|AuthMethod=None");
	assert_true(transits(&t, 1));
	assert_eq(say(&t, 1, 3, "InitialR2T=No|MaxBurstLength=4096"), LOGIN_FULL);
	assert_str(t.keys, "InitialR2T=No|MaxBurstLength=4096|" LENGTH);
	assert_true(transits(&t, 3));
	assert_str(t.login.initiator, "iqn.2026-01.org.example:client");
	assert_str(target_name(t.login.target), "iqn.2026-01.org.example:open");
	assert_false(t.login.discovery);
	assert_false(t.login.parameters.initial_r2t);
	assert_eq(t.login.parameters.max_burst, 4096);
	end(&t);
}

/* RFC 7143, "Login Response" */
TEST(every_field_of_an_answer_is_right)
{
	struct talk t;

	begin(&t);
	say(&t, 0, 1, CLIENT OPEN "|AuthMethod=None");
	assert_eq(t.response[0], ISCSI_LOGIN_RESPONSE);
	assert_eq(t.response[1], 0x81);
	assert_eq(get_be16(t.response + 2), 0); /* versions */
	assert_eq(t.response[4], 0);
	assert_mem(t.response + 8, "\x80\1\2\3\4\5", 6);
	assert_eq(get_be16(t.response + 14), 0); /* TSIH: only in the last */
	assert_eq(get_be32(t.response + 16), 0xabcd);
	assert_eq(get_be32(t.response + 20), 0);
	assert_eq(get_be32(t.response + 24), 0);    /* StatSN */
	assert_eq(get_be32(t.response + 28), 1000); /* ExpCmdSN */
	assert_eq(get_be32(t.response + 32), 1015); /* MaxCmdSN */
	assert_filled(t.response + 36, 0, 12);
	put_be32(t.bhs + 16, 0xabce);
	put_be32(t.bhs + 28, 1);
	say(&t, 1, 3, "");
	assert_eq(t.response[1], 0x87);
	assert_eq(get_be16(t.response + 14), 77);
	assert_eq(get_be32(t.response + 16), 0xabce);
	assert_eq(get_be32(t.response + 24), 1);
	assert_eq(t.login.tsih, 77);
	assert_eq(t.login.cid, 3);
	assert_eq(t.login.cmd_sn, 1000);
	assert_eq(t.login.stat_sn, 2);
	assert_eq(t.login.exp_stat_sn, 1);
	end(&t);
}

TEST(stages_may_be_left_out_or_stayed_in)
{
	struct talk t;

	begin(&t); /* no security stage */
	assert_eq(say(&t, 1, 3, CLIENT OPEN "|ImmediateData=No"), LOGIN_FULL);
	assert_str(t.keys, GROUP "|ImmediateData=No|" LENGTH);
	end(&t);

	begin(&t); /* no operational stage: what was not said is as the RFC has it */
	assert_eq(say(&t, 0, 3, CLIENT OPEN "|AuthMethod=None"), LOGIN_FULL);
	assert_str(t.keys, GROUP "|AuthMethod=None");
	assert_true(transits(&t, 3));
	assert_eq(t.login.parameters.max_receive, 8192);
	end(&t);

	begin(&t); /* one key after the other */
	assert_eq(say(&t, 0, STAY, CLIENT OPEN), LOGIN_MORE);
	assert_true(stays(&t));
	assert_eq(say(&t, 0, STAY, "AuthMethod=None"), LOGIN_MORE);
	assert_true(stays(&t));
	assert_eq(say(&t, 0, 1, ""), LOGIN_MORE);
	assert_true(transits(&t, 1));
	assert_eq(say(&t, 1, STAY, "MaxBurstLength=4096"), LOGIN_MORE);
	assert_true(stays(&t));
	assert_eq(say(&t, 1, STAY, "FirstBurstLength=65536"), LOGIN_MORE);
	assert_str(t.keys, "FirstBurstLength=4096");
	assert_eq(say(&t, 1, 3, ""), LOGIN_FULL);
	assert_str(t.keys, "");
	end(&t);
}

TEST(a_discovery_session_needs_no_target)
{
	struct talk t;

	begin(&t);
	assert_eq(say(&t, 0, 1, CLIENT "|SessionType=Discovery|AuthMethod=None"), LOGIN_MORE);
	assert_str(t.keys, "AuthMethod=None"); /* and has no portal group */
	assert_eq(say(&t, 1, 3, "HeaderDigest=None|InitialR2T=Yes"), LOGIN_FULL);
	assert_str(t.keys, "HeaderDigest=None|InitialR2T=Irrelevant|" LENGTH);
	assert_true(t.login.discovery);
	assert_true(t.login.target == NULL);
	end(&t);
}

/* Some initiators do so in each stage. */
TEST(names_may_be_said_once_more_but_not_others)
{
	static const char *const other[] = {
		OTHER,
		"TargetName=iqn.2026-01.org.example:own",
		"TargetName=none",
		"SessionType=Discovery",
		"InitiatorName=",
	};
	struct talk t;

	begin(&t);
	say(&t, 0, 1, CLIENT OPEN "|SessionType=Normal|AuthMethod=None");
	assert_eq(say(&t, 1, 3, CLIENT OPEN "|SessionType=Normal"), LOGIN_FULL);
	end(&t);
	for (size_t i = 0; i < sizeof other / sizeof *other; i++) {
		begin(&t);
		say(&t, 0, 1, CLIENT OPEN "|AuthMethod=None");
		assert_eq(say(&t, 1, 3, other[i]), LOGIN_CLOSE);
		assert_eq(t.status, ISCSI_LOGIN_INITIATOR_ERROR);
		end(&t);
	}
}

TEST(names_are_compared_in_lower_case)
{
	struct talk t;

	begin(&t);
	assert_eq(say(&t, 1, 3,
		      "InitiatorName=iqn.2026-01.org.Example:CLIENT|"
		      "TargetName=IQN.2026-01.org.example:OWN"),
		  LOGIN_FULL);
	assert_str(t.login.initiator, "iqn.2026-01.org.example:client");
	end(&t);
}

TEST(keys_that_nobody_knows_are_not_understood)
{
	struct talk t;

	begin(&t);
	say(&t, 0, 1, CLIENT OPEN "|AuthMethod=None|X-com.example.a=1|InitiatorAlias=me");
	assert_eq(t.status, 0);
	assert_str(t.keys, GROUP "|X-com.example.a=NotUnderstood|AuthMethod=None");
	assert_eq(say(&t, 1, 3, "X#b=2|RDMAExtensions=Yes|IFMarker=No"), LOGIN_FULL);
	assert_str(t.keys,
		   "X#b=NotUnderstood|RDMAExtensions=NotUnderstood|IFMarker=Reject|" LENGTH);
	end(&t);
}

TEST(a_target_on_another_worker_is_moved_to_before_anything_is_answered)
{
	static const char *const first = CLIENT "|TargetName=iqn.2026-01.org.example:far";
	struct talk t;

	begin(&t);
	assert_eq(say(&t, 1, 3, first), LOGIN_MOVE);
	assert_eq(t.out.length, 0);
	assert_true(target_worker(t.login.target) == &elsewhere);
	t.login.worker = &elsewhere;
	assert_eq(say(&t, 1, 3, first), LOGIN_FULL);
	assert_str(t.keys, GROUP "|" LENGTH);
	end(&t);

	begin(&t); /* also when it has come in pieces */
	assert_eq(say_bytes(&t, 1, GOES_ON, first, 10), LOGIN_MORE);
	assert_str(t.keys, "");
	char rest[200];
	size_t length = strlen(first + 10) + 1;

	memcpy(rest, first + 10, length);
	*strchr(rest, '|') = '\0';
	assert_eq(say_bytes(&t, 1, 3, rest, length), LOGIN_MOVE);
	t.login.worker = &elsewhere;
	assert_eq(say_bytes(&t, 1, 3, rest, length), LOGIN_FULL);
	end(&t);

	begin(&t); /* and the login may end on the way */
	assert_eq(say(&t, 1, 3, first), LOGIN_MOVE);
	end(&t);
}

/* ---- no way in ------------------------------------------------------------------- */

TEST(what_is_wrong_with_a_first_request_has_its_status)
{
	static const struct {
		unsigned stage;
		int next;
		const char *keys;
		enum iscsi_login_status status;
	} cases[] = {
		{ 0, 1, "", ISCSI_LOGIN_MISSING_PARAMETER },
		{ 0, 1, "AuthMethod=None" OPEN, ISCSI_LOGIN_MISSING_PARAMETER },
		{ 0, 1, CLIENT, ISCSI_LOGIN_MISSING_PARAMETER },
		{ 0, 1, CLIENT "|SessionType=Normal", ISCSI_LOGIN_MISSING_PARAMETER },
		{ 0, 1, "InitiatorName=client" OPEN, ISCSI_LOGIN_INITIATOR_ERROR },
		{ 0, 1, "InitiatorName=" OPEN, ISCSI_LOGIN_INITIATOR_ERROR },
		{ 0, 1, CLIENT OPEN "|SessionType=Other", ISCSI_LOGIN_SESSION_TYPE },
		{ 0, 1, CLIENT OPEN "|SessionType=", ISCSI_LOGIN_SESSION_TYPE },
		{ 0, 1, CLIENT OPEN "|SessionType=discovery", ISCSI_LOGIN_SESSION_TYPE },
		{ 0, 1, CLIENT "|TargetName=iqn.2026-01.org.example:none", ISCSI_LOGIN_NOT_FOUND },
		{ 0, 1, CLIENT "|TargetName=", ISCSI_LOGIN_NOT_FOUND },
		{ 0, 1, CLIENT "|TargetName=disk", ISCSI_LOGIN_NOT_FOUND },
		{ 0, 1, OTHER OWN, ISCSI_LOGIN_AUTHORIZATION_FAILURE },
		{ 1, 3, OTHER OWN, ISCSI_LOGIN_AUTHORIZATION_FAILURE },
		{ 0, 1, CLIENT OPEN "|AuthMethod=CHAP", ISCSI_LOGIN_AUTHENTICATION_FAILURE },
		{ 0, 1, CLIENT OPEN "|AuthMethod=KRB5,SRP", ISCSI_LOGIN_AUTHENTICATION_FAILURE },
		{ 0, 1, CLIENT OPEN "|AuthMethod=", ISCSI_LOGIN_AUTHENTICATION_FAILURE },
		{ 0, 1, CLIENT OPEN "|AuthMethod=None|CHAP_A=5", ISCSI_LOGIN_INITIATOR_ERROR },
		{ 0, 1, CLIENT OPEN "|CHAP_N=a|CHAP_R=0x00", ISCSI_LOGIN_INITIATOR_ERROR },
		{ 0, 1, CLIENT OPEN "|MaxBurstLength=512", ISCSI_LOGIN_INITIATOR_ERROR },
		{ 1, 3, CLIENT OPEN "|AuthMethod=None", ISCSI_LOGIN_INITIATOR_ERROR },
		{ 1, 3, CLIENT OPEN "|SendTargets=All", ISCSI_LOGIN_INITIATOR_ERROR },
		{ 1, 3, CLIENT OPEN "|InitialR2T=No|InitialR2T=No", ISCSI_LOGIN_INITIATOR_ERROR },
		{ 1, 3, CLIENT OPEN OPEN, ISCSI_LOGIN_INITIATOR_ERROR },
		{ 1, 3, CLIENT OPEN "|nonsense", ISCSI_LOGIN_INITIATOR_ERROR },
		{ 1, 3, CLIENT OPEN "|=nonsense", ISCSI_LOGIN_INITIATOR_ERROR },
		{ 0, 0, CLIENT OPEN, ISCSI_LOGIN_INITIATOR_ERROR }, /* stages */
		{ 0, 2, CLIENT OPEN, ISCSI_LOGIN_INITIATOR_ERROR },
		{ 1, 0, CLIENT OPEN, ISCSI_LOGIN_INITIATOR_ERROR },
		{ 1, 1, CLIENT OPEN, ISCSI_LOGIN_INITIATOR_ERROR },
		{ 1, 2, CLIENT OPEN, ISCSI_LOGIN_INITIATOR_ERROR },
		{ 2, 3, CLIENT OPEN, ISCSI_LOGIN_INITIATOR_ERROR },
		{ 3, 3, CLIENT OPEN, ISCSI_LOGIN_INITIATOR_ERROR },
		{ 3, STAY, CLIENT OPEN, ISCSI_LOGIN_INITIATOR_ERROR },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct talk t;

		begin(&t);
		assert_eq(say(&t, cases[i].stage, cases[i].next, cases[i].keys), LOGIN_CLOSE);
		assert_eq(t.status, cases[i].status);
		assert_str(t.keys, "");
		assert_true(t.login.why != NULL);
		assert_eq(t.response[1] & 0xc3, 0);
		end(&t);
	}
}

static void
newer_version(struct talk *t)
{
	t->bhs[2] = t->bhs[3] = 1;
}

static void
not_immediate(struct talk *t)
{
	t->bhs[0] = ISCSI_LOGIN;
}

static void
with_ahs(struct talk *t)
{
	t->bhs[4] = 1;
}

static void
other_isid(struct talk *t)
{
	t->bhs[13]++;
}

static void
other_tsih(struct talk *t)
{
	t->bhs[15]++;
}

static void
other_cid(struct talk *t)
{
	t->bhs[21]++;
}

TEST(what_is_wrong_with_a_header_has_its_status)
{
	static const struct {
		void (*change)(struct talk *t);
		bool first_too; /* it is wrong in the first request, too */
		enum iscsi_login_status status;
	} cases[] = {
		{ newer_version, true, ISCSI_LOGIN_UNSUPPORTED_VERSION },
		{ not_immediate, true, ISCSI_LOGIN_INITIATOR_ERROR },
		{ with_ahs, true, ISCSI_LOGIN_INITIATOR_ERROR },
		{ other_isid, false, ISCSI_LOGIN_INITIATOR_ERROR },
		{ other_tsih, false, ISCSI_LOGIN_INITIATOR_ERROR },
		{ other_cid, false, ISCSI_LOGIN_INITIATOR_ERROR },
	};
	struct talk t;

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		begin(&t);
		cases[i].change(&t);
		say(&t, 1, STAY, CLIENT OPEN);
		assert_eq(t.step, cases[i].first_too ? LOGIN_CLOSE : LOGIN_MORE);
		assert_eq(t.status, cases[i].first_too ? cases[i].status : 0);
		end(&t);
		begin(&t);
		assert_eq(say(&t, 1, STAY, CLIENT OPEN), LOGIN_MORE);
		cases[i].change(&t);
		assert_eq(say(&t, 1, 3, ""), LOGIN_CLOSE);
		assert_eq(t.status, cases[i].status);
		end(&t);
	}
	begin(&t); /* what is newest does not matter */
	t.bhs[2] = 255;
	assert_eq(say(&t, 1, 3, CLIENT OPEN), LOGIN_FULL);
	end(&t);
}

TEST(a_stage_that_is_over_does_not_come_back)
{
	struct talk t;

	begin(&t);
	say(&t, 0, 1, CLIENT OPEN "|AuthMethod=None");
	assert_eq(say(&t, 0, 1, "AuthMethod=None"), LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_INITIATOR_ERROR);
	end(&t);
	begin(&t);
	say(&t, 0, STAY, CLIENT OPEN);
	assert_eq(say(&t, 1, 3, ""), LOGIN_CLOSE); /* nor does one come of itself */
	assert_eq(t.status, ISCSI_LOGIN_INITIATOR_ERROR);
	end(&t);
}

/* RFC 7143, "Login Phase" */
TEST(what_is_no_login_ends_the_connection_without_a_word_or_with_one)
{
	struct talk t;

	for (unsigned opcode = 0; opcode < 256; opcode++) {
		if ((opcode & ISCSI_OPCODE_MASK) == ISCSI_LOGIN)
			continue;
		begin(&t);
		t.bhs[0] = (uint8_t)opcode;
		assert_eq(send_request(&t, "", 0), LOGIN_CLOSE);
		assert_true(t.response == NULL);
		end(&t);
		begin(&t);
		say(&t, 0, STAY, CLIENT OPEN);
		t.bhs[0] = (uint8_t)opcode;
		assert_eq(send_request(&t, "abc", 3), LOGIN_CLOSE);
		assert_eq(t.status, ISCSI_LOGIN_INVALID_REQUEST);
		end(&t);
	}
}

TEST(a_session_that_cannot_be_had_has_its_status)
{
	static const enum iscsi_login_status why[] = {
		ISCSI_LOGIN_NO_SESSION,
		ISCSI_LOGIN_TOO_MANY_CONNECTIONS,
		ISCSI_LOGIN_NO_RESOURCES,
		ISCSI_LOGIN_UNAVAILABLE,
	};

	for (size_t i = 0; i < sizeof why / sizeof *why; i++) {
		struct talk t;

		begin(&t);
		t.own_session = true;
		put_be16(t.bhs + 14, 5);
		assert_eq(say(&t, 1, 3, CLIENT OPEN), LOGIN_SESSION);
		assert_true(t.response == NULL);
		assert_eq(t.login.tsih, 5);
		assert_eq(iscsi_login_session(&t.login, why[i], 0, &t.out), LOGIN_CLOSE);
		read_answer(&t);
		assert_eq(t.status, why[i]);
		assert_true(stays(&t));
		end(&t);
	}
}

TEST(a_login_may_end_while_it_waits_for_its_session)
{
	struct talk t;

	begin(&t);
	t.own_session = true;
	assert_eq(say(&t, 1, 3, CLIENT OPEN), LOGIN_SESSION);
	end(&t);
}

/* ---- keys in pieces -------------------------------------------------------------- */

TEST(keys_may_come_in_any_pieces)
{
	static const char keys[] = CLIENT "\0TargetName=iqn.2026-01.org.example:open\0"
					  "MaxBurstLength=4096\0ImmediateData=No";
	struct talk t;

	for (size_t piece = 1; piece < 60; piece++) {
		size_t at = 0;

		begin(&t);
		while (sizeof keys - at > piece && t.login.requests < 50) {
			assert_eq(say_bytes(&t, 1, GOES_ON, keys + at, piece), LOGIN_MORE);
			assert_str(t.keys, "");
			assert_true(stays(&t));
			at += piece;
		}
		assert_eq(say_bytes(&t, 1, 3, keys + at, sizeof keys - at), LOGIN_FULL);
		assert_str(t.keys, GROUP "|MaxBurstLength=4096|ImmediateData=No|" LENGTH);
		end(&t);
	}
}

TEST(keys_without_an_end_are_refused)
{
	struct talk t;

	begin(&t);
	assert_eq(say_bytes(&t, 1, 3, CLIENT, strlen(CLIENT)), LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_INITIATOR_ERROR);
	end(&t);
}

TEST(what_goes_on_does_not_ask_for_the_next_stage)
{
	struct talk t;

	begin(&t);
	t.bhs[1] = ISCSI_LOGIN_TRANSIT | ISCSI_CONTINUE | 1 << 2 | 3;
	assert_eq(send_request(&t, "", 0), LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_INITIATOR_ERROR);
	end(&t);
}

/* `count` keys of 8 bytes that nobody knows, each answered with 21. */
static void
unheard(char *data, unsigned count)
{
	char pair[16];

	for (unsigned i = 0; i < count; i++) {
		snprintf(pair, sizeof pair, "X-%04u=", i % 10000);
		memcpy(data + 8 * (size_t)i, pair, 8);
	}
}

TEST(a_long_answer_comes_in_pieces_that_are_asked_for)
{
	char data[8 * 1000 + 1], all[64 * 1024] = "", key[64];
	unsigned pieces = 1;
	struct talk t;

	unheard(data, 1000);
	begin(&t);
	assert_eq(say(&t, 1, STAY, CLIENT OPEN), LOGIN_MORE);
	assert_eq(say_bytes(&t, 1, 3, data, 8000), LOGIN_MORE);
	strcat(all, t.keys);
	for (; t.step == LOGIN_MORE; pieces++) {
		assert_eq(t.response[1] & 0xc0, ISCSI_CONTINUE);
		assert_eq(iscsi_data_length(t.response), ISCSI_DATA_DEFAULT);
		say(&t, 1, 3, "");
		strcat(all, t.keys);
	}
	assert_eq(t.step, LOGIN_FULL);
	assert_true(transits(&t, 3));
	assert_eq(t.response[1] & ISCSI_CONTINUE, 0);
	assert_eq(pieces, 3);
	for (unsigned i = 0; i < 1000; i++) {
		snprintf(key, sizeof key, "X-%04u=NotUnderstood", i);
		assert_contains(all, key);
	}
	end(&t);

	begin(&t); /* who says something instead of asking is refused */
	assert_eq(say(&t, 1, STAY, CLIENT OPEN), LOGIN_MORE);
	assert_eq(say_bytes(&t, 1, 3, data, 8000), LOGIN_MORE);
	assert_eq(say(&t, 1, 3, "InitialR2T=No"), LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_INITIATOR_ERROR);
	end(&t);
}

/* ---- bounds ---------------------------------------------------------------------- */

TEST(a_login_has_so_many_bytes_in_one_request)
{
	static char data[ISCSI_DATA_DEFAULT + 1];
	unsigned requests = 0;
	struct talk t;

	memset(data, 'k', sizeof data);
	begin(&t);
	while (say_bytes(&t, 1, GOES_ON, data, ISCSI_DATA_DEFAULT) == LOGIN_MORE)
		requests++;
	assert_eq(requests, ISCSI_KEYS_MAX / ISCSI_DATA_DEFAULT);
	assert_eq(t.step, LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_INITIATOR_ERROR);
	end(&t);
	begin(&t);
	assert_eq(say_bytes(&t, 1, GOES_ON, data, sizeof data), LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_INITIATOR_ERROR);
	end(&t);
}

TEST(a_login_has_so_many_requests)
{
	unsigned requests = 0;
	struct talk t;

	begin(&t);
	say(&t, 1, STAY, CLIENT OPEN);
	while (say(&t, 1, STAY, "") == LOGIN_MORE)
		assert_true(++requests < 100);
	assert_eq(t.status, ISCSI_LOGIN_INITIATOR_ERROR);
	end(&t);
}

TEST(an_answer_that_is_too_long_is_none)
{
	static char data[ISCSI_DATA_DEFAULT + 1];
	struct talk t;

	unheard(data, 1024);
	begin(&t);
	assert_eq(say(&t, 1, STAY, CLIENT OPEN), LOGIN_MORE);
	for (unsigned i = 0; i < 7; i++)
		assert_eq(say_bytes(&t, 1, GOES_ON, data, ISCSI_DATA_DEFAULT), LOGIN_MORE);
	assert_eq(say_bytes(&t, 1, 3, data, ISCSI_DATA_DEFAULT), LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_NO_RESOURCES);
	end(&t);
}

/* ---- authentication -------------------------------------------------------------- */

#define SECRETS "in alice secret-of-alice\nout target secret-of-target\n"

static struct value {
	char text[400];
} chap_answer(const struct talk *t, const char *secret)
{
	struct value v = { "" };
	char text[300];
	uint8_t identifier, challenge[64], response[16];
	unsigned byte, n = 0;
	struct md5_ctx ctx;

	assert_str(value_of(t, "CHAP_A", text), "5");
	identifier = (uint8_t)atoi(value_of(t, "CHAP_I", text));
	value_of(t, "CHAP_C", text);
	for (; sscanf(text + 2 + 2 * n, "%2x", &byte) == 1; n++)
		challenge[n] = (uint8_t)byte;
	assert_eq(n, CHAP_CHALLENGE);
	md5_init(&ctx);
	md5_update(&ctx, 1, &identifier);
	md5_update(&ctx, strlen(secret), (const uint8_t *)secret);
	md5_update(&ctx, n, challenge);
	md5_digest(&ctx, sizeof response, response);
	strcpy(v.text, "CHAP_N=alice|CHAP_R=0x");
	for (unsigned i = 0; i < sizeof response; i++)
		sprintf(v.text + strlen(v.text), "%02x", response[i]);
	return v;
}

static void
begin_locked(struct talk *t)
{
	begin(t);
	targets[1].secrets = few_secrets(SECRETS);
}

TEST(chap_lets_in_who_knows_the_secret)
{
	struct talk t;

	begin_locked(&t);
	assert_eq(say(&t, 0, 1, CLIENT LOCKED "|AuthMethod=CHAP,None"), LOGIN_MORE);
	assert_str(t.keys, GROUP "|AuthMethod=CHAP");
	assert_true(stays(&t));
	assert_eq(say(&t, 0, STAY, "CHAP_A=5,7"), LOGIN_MORE);
	assert_true(stays(&t));
	assert_eq(say(&t, 0, 1, chap_answer(&t, "secret-of-alice").text), LOGIN_MORE);
	assert_str(t.keys, "");
	assert_true(transits(&t, 1));
	assert_eq(say(&t, 1, 3, ""), LOGIN_FULL);
	end(&t);
}

TEST(chap_may_begin_at_once_and_go_both_ways)
{
	struct talk t;
	struct value answer;
	char text[300];

	begin_locked(&t);
	assert_eq(say(&t, 0, 3, CLIENT LOCKED "|AuthMethod=CHAP|CHAP_A=5"), LOGIN_MORE);
	assert_true(stays(&t));
	answer = chap_answer(&t, "secret-of-alice");
	strcat(answer.text, "|CHAP_I=9|CHAP_C=0x0102030405060708");
	assert_eq(say(&t, 0, 3, answer.text), LOGIN_FULL);
	assert_str(value_of(&t, "CHAP_N", text), "target");
	assert_eq(strlen(value_of(&t, "CHAP_R", text)), 34);
	end(&t);
}

TEST(chap_refuses_everyone_else)
{
	static const char *const first[] = {
		CLIENT LOCKED "|AuthMethod=None", CLIENT LOCKED "|AuthMethod=KRB5,None",
		CLIENT LOCKED, /* T=1: it would pass without a word */
	};
	struct talk t;

	for (size_t i = 0; i < sizeof first / sizeof *first; i++) {
		begin_locked(&t);
		assert_eq(say(&t, 0, 1, first[i]), LOGIN_CLOSE);
		assert_eq(t.status, ISCSI_LOGIN_AUTHENTICATION_FAILURE);
		end(&t);
	}
	begin_locked(&t); /* nor does it help to leave out the stage */
	assert_eq(say(&t, 1, 3, CLIENT LOCKED), LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_AUTHENTICATION_FAILURE);
	end(&t);
	begin_locked(&t);
	say(&t, 0, 1, CLIENT LOCKED "|AuthMethod=CHAP");
	assert_eq(say(&t, 1, 3, ""), LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_INITIATOR_ERROR);
	end(&t);
	begin_locked(&t);
	say(&t, 0, 1, CLIENT LOCKED "|AuthMethod=CHAP|CHAP_A=5");
	assert_eq(say(&t, 0, 1, chap_answer(&t, "secret-of-bob").text), LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_AUTHENTICATION_FAILURE);
	assert_str(t.keys, "");
	assert_contains(t.login.why, "alice");
	end(&t);
	begin_locked(&t);
	say(&t, 0, 1, CLIENT LOCKED "|AuthMethod=CHAP");
	assert_eq(say(&t, 0, 1, "CHAP_A=56"), LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_AUTHENTICATION_FAILURE);
	end(&t);
	begin_locked(&t);
	say(&t, 0, 1, CLIENT LOCKED "|AuthMethod=CHAP");
	assert_eq(say(&t, 0, 1, "AuthMethod=CHAP"), LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_INITIATOR_ERROR);
	end(&t);
}

/* However often it asks. */
TEST(nobody_gets_on_without_an_answer_to_the_challenge)
{
	struct talk t;

	begin_locked(&t);
	say(&t, 0, 1, CLIENT LOCKED "|AuthMethod=CHAP|CHAP_A=5");
	while (t.step == LOGIN_MORE) {
		assert_true(stays(&t));
		say(&t, 0, t.login.requests % 2 != 0 ? 3 : 1, "");
	}
	assert_eq(t.step, LOGIN_CLOSE);
	assert_ne(t.status, 0);
	end(&t);
}

TEST(who_wants_to_see_the_names_says_who_he_is_too)
{
	struct talk t;

	begin_locked(&t);
	assert_eq(say(&t, 1, 3, CLIENT "|SessionType=Discovery"), LOGIN_CLOSE);
	assert_eq(t.status, ISCSI_LOGIN_AUTHENTICATION_FAILURE);
	end(&t);
	begin_locked(&t);
	say(&t, 0, 1, CLIENT "|SessionType=Discovery|AuthMethod=CHAP|CHAP_A=5");
	assert_eq(say(&t, 0, 3, chap_answer(&t, "secret-of-alice").text), LOGIN_FULL);
	end(&t);
}

/* ---- text ------------------------------------------------------------------------ */

/* What is said to those keys in the full feature phase. */
static const char *
text(struct talk *t, const char *keys, const char *portal)
{
	static char said[4096];
	struct iscsi_text in = { 0 }, out = { 0 };

	iscsi_text_append(&in, keys, strlen(keys) + 1);
	for (size_t i = 0; i < in.length; i++)
		in.data[i] = in.data[i] == '|' ? '\0' : in.data[i];
	assert_eq(iscsi_text_answer(&t->login, in.data, in.length, portal, &out), 0);
	assert_true(out.length < sizeof said);
	said[0] = '\0';
	for (size_t i = 0; i < out.length; i++)
		said[i] = out.data[i] == '\0' ? '|' : out.data[i];
	said[out.length] = '\0';
	if (out.length > 0)
		said[out.length - 1] = '\0';
	iscsi_text_free(&in);
	iscsi_text_free(&out);
	return said;
}

#define AT_PORTAL "|TargetAddress=10.0.0.1:3260,1"

TEST(discovery_shows_what_an_initiator_may_see)
{
	struct talk t;

	begin(&t);
	assert_eq(say(&t, 1, 3, CLIENT "|SessionType=Discovery"), LOGIN_FULL);
	assert_str(text(&t, "SendTargets=All", "10.0.0.1:3260"),
		   "TargetName=iqn.2026-01.org.example:open" AT_PORTAL
		   "|TargetName=iqn.2026-01.org.example:locked" AT_PORTAL
		   "|TargetName=iqn.2026-01.org.example:own" AT_PORTAL
		   "|TargetName=iqn.2026-01.org.example:far" AT_PORTAL);
	assert_str(text(&t, "SendTargets=iqn.2026-01.org.example:OWN", "[fe80::1]:3260"),
		   "TargetName=iqn.2026-01.org.example:own|TargetAddress=[fe80::1]:3260,1");
	assert_str(text(&t, "SendTargets=iqn.2026-01.org.example:none", "10.0.0.1:3260"), "");
	assert_str(text(&t, "SendTargets=", "10.0.0.1:3260"), "SendTargets=Reject");
	assert_str(text(&t, "SendTargets=Alle", "10.0.0.1:3260"), "SendTargets=Reject");
	assert_str(text(&t, "SendTargets=iqn.2026-01.org.example:own", NULL),
		   "TargetName=iqn.2026-01.org.example:own");
	end(&t);

	begin(&t);
	assert_eq(say(&t, 1, 3, OTHER "|SessionType=Discovery"), LOGIN_FULL);
	assert_true(strstr(text(&t, "SendTargets=All", NULL), ":own") == NULL);
	assert_str(text(&t, "SendTargets=iqn.2026-01.org.example:own", NULL), "");
	end(&t);
}

TEST(a_normal_session_learns_of_its_own_target_only)
{
	static const char *const own = "TargetName=iqn.2026-01.org.example:open";
	struct talk t;

	begin(&t);
	assert_eq(say(&t, 1, 3, CLIENT OPEN), LOGIN_FULL);
	assert_str(text(&t, "SendTargets=", NULL), own);
	assert_str(text(&t, "SendTargets=All", NULL), own);
	assert_str(text(&t, "SendTargets=iqn.2026-01.org.example:open", NULL), own);
	assert_str(text(&t, "SendTargets=iqn.2026-01.org.example:far", NULL), "");
	assert_str(text(&t, "SendTargetsPlease=All", NULL), "SendTargetsPlease=NotUnderstood");
	end(&t);
}

TEST(keys_of_the_login_phase_are_rejected_after_it)
{
	struct talk t;

	begin(&t);
	assert_eq(say(&t, 1, 3, CLIENT OPEN), LOGIN_FULL);
	assert_str(text(&t, "InitialR2T=No|AuthMethod=None|" CLIENT, NULL),
		   "InitialR2T=Reject|AuthMethod=Reject|InitiatorName=Reject");
	assert_str(text(&t, "InitiatorAlias=me|MaxRecvDataSegmentLength=1024", NULL), "");
	assert_eq(t.login.parameters.max_send, 1024);
	end(&t);
}

TEST(text_that_is_none_is_found_out)
{
	struct iscsi_text out = { 0 };
	char keys[] = "SendTargets=All";
	struct talk t;

	begin(&t);
	assert_eq(say(&t, 1, 3, CLIENT OPEN), LOGIN_FULL);
	assert_eq(iscsi_text_answer(&t.login, keys, strlen(keys), NULL, &out), -EPROTO);
	iscsi_text_free(&out);
	end(&t);
}

TEST(hundreds_of_targets_are_shown_and_too_many_are_refused)
{
	static struct target many[8000];
	static char names[8000][128];
	struct iscsi_text out = { 0 };
	struct talk t;

	begin(&t);
	assert_eq(say(&t, 1, 3, CLIENT "|SessionType=Discovery"), LOGIN_FULL);
	few_targets = many;
	for (unsigned i = 0; i < 8000; i++) {
		snprintf(names[i], sizeof names[i], "iqn.2026-01.org.example:%0*u", 90, i);
		many[i] = (struct target){ .name = names[i], .worker = &here };
	}
	for (unsigned count = 1000; count <= 8000; count += 7000) {
		char keys[] = "SendTargets=All";

		few_targets_count = count;
		assert_eq(iscsi_text_answer(&t.login, keys, sizeof keys, "10.0.0.1:3260", &out),
			  count == 1000 ? 0 : -ENOMEM);
		iscsi_text_free(&out);
	}
	end(&t);
}
