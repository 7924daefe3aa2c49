/*
 * login.c - the login phase.
 *
 * The good path, RFC 7143 "Login Phase": the first keys say who the initiator is and which target
 * it wants. In the security stage it proves who it is, if the target asks for that; in the
 * operational stage keys are agreed on (keys.c); either may be left out. With each request that
 * has the T bit the initiator asks for the next stage, and with the T bit of an answer it is
 * there. The last answer needs a session: it waits for iscsi_login_session().
 *
 * Keys of one request may come in several PDUs (C bit), each answered by an empty one; an answer
 * may need several, too, each asked for by an empty request.
 *
 * What can go wrong:
 * - something else than a login request comes: first of all, and the connection is closed without
 *   a word, for nobody says that iSCSI is spoken; later it is refused.
 * - what a request says is wrong: a login response with a status, and the connection is closed.
 *   The keys of a request are dealt with as a whole before that is known, but nothing has come of
 *   them yet.
 * - the initiator goes on for ever: a login has a number of requests, each with so many bytes.
 */
#include "login.h"

#include "sm.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define REQUESTS_MAX 64
#define TEXT_MAX     (1u << 20) /* bytes of an answer in the full feature phase */
#define PORTAL_GROUP "1"

enum { AT_START, AT_LOGIN, AT_MOVE, AT_SESSION, AT_END };
#define TO(state) (1u << AT_##state)

static const struct pl_sm_state states[] = {
	[AT_START] = { "start", TO(LOGIN) | TO(END) },
	[AT_LOGIN] = { "login", TO(MOVE) | TO(SESSION) | TO(END) },
	[AT_MOVE] = { "move", TO(LOGIN) | TO(END) },
	[AT_SESSION] = { "session", TO(END) },
	[AT_END] = { "end", TO(END) },
};

void
iscsi_login_start(struct iscsi_login *login)
{
	login->state = AT_START;
	iscsi_parameters_default(&login->parameters);
}

static void
free_keys(struct iscsi_login *login)
{
	iscsi_text_free(&login->keys);
	iscsi_text_free(&login->answer);
	chap_end(&login->chap);
	chap_secrets_put(login->secrets);
	login->secrets = NULL;
}

void
iscsi_login_end(struct iscsi_login *login)
{
	free_keys(login);
	chap_secrets_put(login->known);
	login->known = NULL;
	if (login->target != NULL)
		target_put(login->target);
	login->target = NULL;
}

/* ---- answers --------------------------------------------------------------------- */

void
iscsi_output_free(struct iscsi_output *out)
{
	free(out->data);
	*out = (struct iscsi_output){ 0 };
}

/* A PDU with that much data; NULL: no memory. */
static uint8_t *
output_pdu(struct iscsi_output *out, const void *data, uint32_t length)
{
	size_t whole = ISCSI_BHS + length + iscsi_padding(length);
	uint8_t *bhs;

	if (out->room - out->length < whole) {
		bhs = realloc(out->data, out->length + whole);
		if (bhs == NULL)
			return NULL;
		out->data = bhs;
		out->room = out->length + whole;
	}
	bhs = out->data + out->length;
	memset(bhs, 0, whole);
	put_be24(bhs + 5, length);
	if (length != 0)
		memcpy(bhs + ISCSI_BHS, data, length);
	out->length += whole;
	return bhs;
}

/* RFC 7143, "Login Response" */
static bool
add_response(struct iscsi_login *login, uint8_t flags, enum iscsi_login_status status,
	     const void *data, size_t length, struct iscsi_output *out)
{
	uint32_t window = login->window != 0 ? login->window : 1;
	uint8_t *bhs = output_pdu(out, data, (uint32_t)length);

	if (bhs == NULL)
		return false;
	bhs[0] = ISCSI_LOGIN_RESPONSE;
	bhs[1] = flags; /* Version-max and Version-active are 0 */
	memcpy(bhs + 8, login->isid, sizeof login->isid);
	put_be16(bhs + 14, login->tsih);
	put_be32(bhs + 16, login->itt);
	put_be32(bhs + 24, login->stat_sn++);
	put_be32(bhs + 28, login->cmd_sn);
	put_be32(bhs + 32, login->cmd_sn + window - 1);
	put_be16(bhs + 36, (uint16_t)status);
	return true;
}

static enum login_step
close_with(struct iscsi_login *login, const char *why)
{
	pl_sm_move(states, &login->state, AT_END);
	login->why = why;
	return LOGIN_CLOSE;
}

static enum login_step
fail(struct iscsi_login *login, enum iscsi_login_status status, struct iscsi_output *out)
{
	if (!add_response(login, (uint8_t)(login->stage << 2), status, NULL, 0, out))
		return close_with(login, "out of memory");
	return close_with(login, login->why);
}

/* How functions here say no: login->why, and the status. */
static enum iscsi_login_status
refuse(struct iscsi_login *login, enum iscsi_login_status status, const char *why)
{
	login->why = why;
	return status;
}

static enum iscsi_login_status
wrong(struct iscsi_login *login, const char *why)
{
	return refuse(login, ISCSI_LOGIN_INITIATOR_ERROR, why);
}

static bool
is_authentic(const struct iscsi_login *login)
{
	return login->secrets == NULL || login->chap.done;
}

static unsigned
next_stage(const struct iscsi_login *login)
{
	return login->flags & 3;
}

/* The next piece of the answer, or the last, and then the next stage. */
static bool
send_piece(struct iscsi_login *login, struct iscsi_output *out)
{
	size_t length = login->answer.length - login->answered;
	uint8_t flags = (uint8_t)(login->stage << 2);
	bool more = length > ISCSI_DATA_DEFAULT;
	bool transit = (login->flags & ISCSI_LOGIN_TRANSIT) != 0 && !more && is_authentic(login);
	const char *piece;

	if (more) {
		length = ISCSI_DATA_DEFAULT;
		flags |= ISCSI_CONTINUE;
	}
	if (transit)
		flags |= (uint8_t)(ISCSI_LOGIN_TRANSIT | next_stage(login));
	piece = length != 0 ? login->answer.data + login->answered : NULL;
	if (!add_response(login, flags, ISCSI_LOGIN_SUCCESS, piece, length, out))
		return false;
	login->answered += length;
	if (!more)
		login->answer.length = login->answered = 0;
	if (transit)
		login->stage = next_stage(login);
	return true;
}

static enum login_step
answer(struct iscsi_login *login, struct iscsi_output *out)
{
	if (login->answer.failed) {
		login->why = "the answer to its keys is too long";
		return fail(login, ISCSI_LOGIN_NO_RESOURCES, out);
	}
	if ((login->flags & ISCSI_LOGIN_TRANSIT) != 0 && is_authentic(login) &&
	    next_stage(login) == ISCSI_FULL_FEATURE &&
	    login->answer.length - login->answered <= ISCSI_DATA_DEFAULT) {
		pl_sm_move(states, &login->state, AT_SESSION);
		return LOGIN_SESSION;
	}
	return send_piece(login, out) ? LOGIN_MORE : close_with(login, "out of memory");
}

enum login_step
iscsi_login_session(struct iscsi_login *login, enum iscsi_login_status status, uint16_t tsih,
		    struct iscsi_output *out)
{
	assert(login->state == AT_SESSION);
	if (status != ISCSI_LOGIN_SUCCESS) {
		login->why = "there is no session for it";
		return fail(login, status, out);
	}
	assert(tsih != 0);
	login->tsih = tsih;
	if (!send_piece(login, out))
		return close_with(login, "out of memory");
	pl_sm_move(states, &login->state, AT_END);
	free_keys(login);
	return LOGIN_FULL;
}

/* ---- the header ------------------------------------------------------------------ */

static bool
stages_are_valid(const struct iscsi_login *login, unsigned stage)
{
	if (stage != login->stage || stage > ISCSI_OPERATIONAL)
		return false;
	return (login->flags & ISCSI_LOGIN_TRANSIT) == 0 ||
	       (next_stage(login) > stage && next_stage(login) != 2);
}

/* RFC 7143, "Login Request" */
static enum iscsi_login_status
check_header(struct iscsi_login *login, const uint8_t *bhs, size_t length)
{
	const uint8_t both = ISCSI_LOGIN_TRANSIT | ISCSI_CONTINUE;

	if (bhs[3] > 0)
		return refuse(login, ISCSI_LOGIN_UNSUPPORTED_VERSION,
			      "it wants a newer version of iSCSI");
	if ((bhs[0] & ISCSI_IMMEDIATE) == 0 || iscsi_ahs_length(bhs) != 0)
		return wrong(login, "no such login request is possible");
	if (length > ISCSI_DATA_DEFAULT)
		return wrong(login, "a login request is too long");
	if (login->requests > REQUESTS_MAX)
		return wrong(login, "too many login requests");
	if (memcmp(bhs + 8, login->isid, sizeof login->isid) != 0 ||
	    get_be16(bhs + 14) != login->tsih || get_be16(bhs + 20) != login->cid)
		return wrong(login, "ISID, TSIH or CID changed in the middle");
	if ((login->flags & both) == both)
		return wrong(login, "it goes on, but wants the next stage");
	if (!stages_are_valid(login, bhs[1] >> 2 & 3))
		return wrong(login, "there is no such way through the stages");
	return ISCSI_LOGIN_SUCCESS;
}

static void
take_first(struct iscsi_login *login, const uint8_t *bhs)
{
	memcpy(login->isid, bhs + 8, sizeof login->isid);
	login->tsih = get_be16(bhs + 14);
	login->cid = get_be16(bhs + 20);
	login->cmd_sn = get_be32(bhs + 24);
	login->stage = bhs[1] >> 2 & 3;
	pl_sm_move(states, &login->state, AT_LOGIN);
}

/* ---- who it is, and what it wants ------------------------------------------------ */

/* Of keys that have not been taken apart yet. */
static const char *
find_key(const struct iscsi_text *keys, const char *name)
{
	size_t length = strlen(name);

	for (size_t at = 0; at < keys->length; at += strlen(keys->data + at) + 1) {
		if (strncmp(keys->data + at, name, length) == 0 && keys->data[at + length] == '=')
			return keys->data + at + length + 1;
	}
	return NULL;
}

static const struct {
	int error;
	enum iscsi_login_status status;
} target_errors[] = {
	{ -ENOENT, ISCSI_LOGIN_NOT_FOUND },
	{ -EACCES, ISCSI_LOGIN_AUTHORIZATION_FAILURE },
	{ -ENOMEM, ISCSI_LOGIN_NO_RESOURCES },
};

static enum iscsi_login_status
find_target(struct iscsi_login *login, const char *name)
{
	char normal[ISCSI_NAME_MAX + 1];
	struct pl_error err;
	int error;

	if (name == NULL)
		return refuse(login, ISCSI_LOGIN_MISSING_PARAMETER, "there is no TargetName");
	if (!iscsi_name_read(name, normal))
		return refuse(login, ISCSI_LOGIN_NOT_FOUND, "its TargetName is no iSCSI name");
	error = target_find(login->targets, normal, login->peer, login->initiator, &login->target,
			    &err);
	if (error == 0) {
		login->secrets = target_secrets(login->target);
		return ISCSI_LOGIN_SUCCESS;
	}
	snprintf(login->why_text, sizeof login->why_text, "%.500s", err.text);
	for (size_t i = 0; i < sizeof target_errors / sizeof *target_errors; i++) {
		if (target_errors[i].error == error)
			return refuse(login, target_errors[i].status, login->why_text);
	}
	return refuse(login, ISCSI_LOGIN_UNAVAILABLE, login->why_text);
}

/* RFC 7143, "InitiatorName", "TargetName", "SessionType": they are in the first keys. */
static enum iscsi_login_status
read_names(struct iscsi_login *login)
{
	const char *initiator = find_key(&login->keys, "InitiatorName");
	const char *type = find_key(&login->keys, "SessionType");
	enum iscsi_login_status status;

	if (initiator == NULL)
		return refuse(login, ISCSI_LOGIN_MISSING_PARAMETER, "there is no InitiatorName");
	if (!iscsi_name_read(initiator, login->initiator)) {
		login->initiator[0] = '\0';
		return wrong(login, "its InitiatorName is no iSCSI name");
	}
	login->discovery = type != NULL && strcmp(type, "Discovery") == 0;
	if (login->discovery) {
		targets_secrets(login->targets, login->peer, login->initiator, &login->secrets);
	} else {
		if (type != NULL && strcmp(type, "Normal") != 0)
			return refuse(login, ISCSI_LOGIN_SESSION_TYPE,
				      "there is no such SessionType");
		status = find_target(login, find_key(&login->keys, "TargetName"));
		if (status != ISCSI_LOGIN_SUCCESS)
			return status;
		iscsi_text_add(&login->answer, "TargetPortalGroupTag", PORTAL_GROUP);
	}
	if (login->stage != ISCSI_SECURITY && login->secrets != NULL)
		return refuse(login, ISCSI_LOGIN_AUTHENTICATION_FAILURE,
			      "it does not say who it is, and has to");
	login->named = true;
	return ISCSI_LOGIN_SUCCESS;
}

/* ---- keys ------------------------------------------------------------------------ */

enum {
	INITIATOR_NAME,
	INITIATOR_ALIAS,
	SESSION_TYPE,
	TARGET_NAME,
	SEND_TARGETS,
	AUTH_METHOD,
	CHAP_A,
	CHAP_N,
	CHAP_R,
	CHAP_I,
	CHAP_C,
	NAMES,
};

/* Those that keys.c does not know; RFC 7143, "Login/Text Operational Text Keys" and "iSCSI
 * Security Text Keys and Authentication Methods". */
static const char *const names[NAMES] = {
	[INITIATOR_NAME] = "InitiatorName",
	[INITIATOR_ALIAS] = "InitiatorAlias",
	[SESSION_TYPE] = "SessionType",
	[TARGET_NAME] = "TargetName",
	[SEND_TARGETS] = "SendTargets",
	[AUTH_METHOD] = "AuthMethod",
	[CHAP_A] = "CHAP_A",
	[CHAP_N] = "CHAP_N",
	[CHAP_R] = "CHAP_R",
	[CHAP_I] = "CHAP_I",
	[CHAP_C] = "CHAP_C",
};

static unsigned
name_of(const char *key)
{
	unsigned i = 0;

	while (i < NAMES && strcmp(names[i], key) != 0)
		i++;
	return i;
}

/* Said once more, as some initiators do in each stage, they have to be the same. */
static enum iscsi_login_status
check_names(struct iscsi_login *login, char *const value[NAMES])
{
	char name[ISCSI_NAME_MAX + 1];

	if (value[SEND_TARGETS] != NULL)
		return wrong(login, "SendTargets is not for the login phase");
	if (value[INITIATOR_NAME] != NULL &&
	    (!iscsi_name_read(value[INITIATOR_NAME], name) || strcmp(name, login->initiator) != 0))
		return wrong(login, "it has a second InitiatorName");
	if (value[SESSION_TYPE] != NULL &&
	    strcmp(value[SESSION_TYPE], login->discovery ? "Discovery" : "Normal") != 0)
		return wrong(login, "it has a second SessionType");
	/* What a discovery session says of a target means nothing. */
	if (value[TARGET_NAME] != NULL && !login->discovery &&
	    (!iscsi_name_read(value[TARGET_NAME], name) ||
	     strcmp(name, target_name(login->target)) != 0))
		return wrong(login, "it has a second TargetName");
	return ISCSI_LOGIN_SUCCESS;
}

static enum iscsi_login_status
agree_on_method(struct iscsi_login *login, const char *list)
{
	const char *method = login->secrets != NULL ? "CHAP" : "None";

	if (login->method)
		return wrong(login, "it has a second AuthMethod");
	if (!iscsi_list_has(list, method))
		return refuse(login, ISCSI_LOGIN_AUTHENTICATION_FAILURE,
			      login->secrets != NULL ? "it will not say by CHAP who it is"
						     : "it wants to be asked who it is");
	iscsi_text_add(&login->answer, "AuthMethod", method);
	login->method = true;
	if (login->secrets != NULL)
		login->chap.secrets = chap_secrets_get(login->secrets);
	return ISCSI_LOGIN_SUCCESS;
}

static enum iscsi_login_status
do_chap(struct iscsi_login *login, char *const value[NAMES])
{
	const struct chap_keys keys = {
		.algorithms = value[CHAP_A],
		.name = value[CHAP_N],
		.response = value[CHAP_R],
		.identifier = value[CHAP_I],
		.challenge = value[CHAP_C],
	};
	int error = chap_step(&login->chap, &keys, &login->answer);

	if (error == 0 && login->chap.done) {
		login->known = chap_secrets_get(login->chap.known);
		/* For discovery each target is asked. */
		if (!login->discovery &&
		    !chap_secrets_admit(login->secrets, login->known, login->initiator)) {
			snprintf(login->why_text, sizeof login->why_text,
				 "the CHAP name %s is not for this initiator", login->chap.name);
			return refuse(login, ISCSI_LOGIN_AUTHENTICATION_FAILURE, login->why_text);
		}
	}
	if (error == 0)
		return ISCSI_LOGIN_SUCCESS;
	if (error == -ENOMEM)
		return refuse(login, ISCSI_LOGIN_NO_RESOURCES, "out of memory");
	if (error != -EACCES)
		return wrong(login, "CHAP is out of order");
	snprintf(login->why_text, sizeof login->why_text, "CHAP has failed%s%s",
		 login->chap.name[0] != '\0' ? " for the name " : "", login->chap.name);
	return refuse(login, ISCSI_LOGIN_AUTHENTICATION_FAILURE, login->why_text);
}

static enum iscsi_login_status
authenticate(struct iscsi_login *login, char *const value[NAMES])
{
	enum iscsi_login_status status = ISCSI_LOGIN_SUCCESS;
	bool chap = false;

	for (unsigned i = CHAP_A; i <= CHAP_C; i++)
		chap = chap || value[i] != NULL;
	if (login->stage != ISCSI_SECURITY)
		return chap || value[AUTH_METHOD] != NULL
			       ? wrong(login, "authentication is not for the operational stage")
			       : status;
	if (value[AUTH_METHOD] != NULL)
		status = agree_on_method(login, value[AUTH_METHOD]);
	if (status == ISCSI_LOGIN_SUCCESS && chap)
		status = login->chap.secrets != NULL ? do_chap(login, value)
						     : wrong(login, "CHAP was not agreed on");
	if (status == ISCSI_LOGIN_SUCCESS && (login->flags & ISCSI_LOGIN_TRANSIT) != 0 &&
	    !is_authentic(login) && !login->method)
		return refuse(login, ISCSI_LOGIN_AUTHENTICATION_FAILURE,
			      "it does not say who it is, and has to");
	return status;
}

/* A whole request. */
static enum iscsi_login_status
take_keys(struct iscsi_login *login)
{
	char *value[NAMES] = { NULL }, *key, *text;
	enum iscsi_login_status status;
	size_t at = 0;
	int more, error;

	while ((more = iscsi_text_next(login->keys.data, login->keys.length, &at, &key, &text)) ==
	       1) {
		unsigned i = name_of(key);

		if (i < NAMES) {
			if (value[i] != NULL)
				return wrong(login, "a key comes twice");
			value[i] = text;
			continue;
		}
		error = iscsi_key_negotiate(&login->parameters, login->stage, login->discovery,
					    &login->seen, key, text, &login->answer);
		if (error == -ENOENT)
			iscsi_text_add(&login->answer, key, "NotUnderstood");
		else if (error != 0)
			return wrong(login, "a key comes twice, or in the wrong stage");
	}
	if (more < 0)
		return wrong(login, "its keys cannot be read");
	status = check_names(login, value);
	if (status == ISCSI_LOGIN_SUCCESS)
		status = authenticate(login, value);
	if (status == ISCSI_LOGIN_SUCCESS && login->stage == ISCSI_OPERATIONAL)
		iscsi_keys_declare(&login->parameters, &login->seen, &login->answer);
	return status;
}

static enum login_step
do_request(struct iscsi_login *login, struct iscsi_output *out)
{
	enum iscsi_login_status status = ISCSI_LOGIN_SUCCESS;

	if (!login->named) {
		status = read_names(login);
		if (status == ISCSI_LOGIN_SUCCESS && login->target != NULL &&
		    target_worker(login->target) != login->worker) {
			pl_sm_move(states, &login->state, AT_MOVE);
			return LOGIN_MOVE;
		}
	}
	if (status == ISCSI_LOGIN_SUCCESS)
		status = take_keys(login);
	login->keys.length = 0;
	return status == ISCSI_LOGIN_SUCCESS ? answer(login, out) : fail(login, status, out);
}

enum login_step
iscsi_login_step(struct iscsi_login *login, const uint8_t bhs[ISCSI_BHS], const char *data,
		 size_t length, struct iscsi_output *out)
{
	enum iscsi_login_status status;

	if (login->state == AT_MOVE) {
		pl_sm_move(states, &login->state, AT_LOGIN);
		return do_request(login, out);
	}
	assert(login->state == AT_START || login->state == AT_LOGIN);
	if (iscsi_opcode(bhs) != ISCSI_LOGIN && login->state == AT_START)
		return close_with(login, "it does not begin with a login");
	login->requests++;
	login->itt = get_be32(bhs + 16);
	login->exp_stat_sn = get_be32(bhs + 28);
	if (iscsi_opcode(bhs) != ISCSI_LOGIN) {
		login->why = "something else than a login request in the login phase";
		return fail(login, ISCSI_LOGIN_INVALID_REQUEST, out);
	}
	if (login->state == AT_START)
		take_first(login, bhs);
	login->flags = bhs[1];
	status = check_header(login, bhs, length);
	if (status != ISCSI_LOGIN_SUCCESS)
		return fail(login, status, out);

	if (login->answered > 0) { /* it asks for the rest of an answer */
		if (length == 0 && (login->flags & ISCSI_CONTINUE) == 0)
			return answer(login, out);
		login->why = "it does not wait for the rest of an answer";
		return fail(login, ISCSI_LOGIN_INITIATOR_ERROR, out);
	}
	iscsi_text_append(&login->keys, data, length);
	if (login->keys.failed) {
		login->why = "too many keys";
		return fail(login, ISCSI_LOGIN_INITIATOR_ERROR, out);
	}
	if ((login->flags & ISCSI_CONTINUE) != 0)
		return answer(login, out);
	if (login->keys.length > 0 && login->keys.data[login->keys.length - 1] != '\0') {
		login->why = "its keys have no end";
		return fail(login, ISCSI_LOGIN_INITIATOR_ERROR, out);
	}
	return do_request(login, out);
}

/* ---- text in the full feature phase ---------------------------------------------- */

struct listing {
	const char *portal;
	struct iscsi_text *out;
};

static void
add_target(void *user, const char *name)
{
	const struct listing *l = user;
	char address[128];

	iscsi_text_add(l->out, "TargetName", name);
	if (l->portal == NULL)
		return;
	snprintf(address, sizeof address, "%s," PORTAL_GROUP, l->portal);
	iscsi_text_add(l->out, "TargetAddress", address);
}

/* RFC 7143, "SendTargets Operation": a normal session learns of its own target only. */
static void
send_targets(struct iscsi_login *login, const char *value, const char *portal,
	     struct iscsi_text *out)
{
	struct listing l = { portal, out };
	bool all = strcmp(value, "All") == 0, none = value[0] == '\0';
	const char *own = login->discovery ? NULL : target_name(login->target);
	char name[ISCSI_NAME_MAX + 1];

	if ((!all && !none && !iscsi_name_read(value, name)) || (none && login->discovery))
		iscsi_text_add(out, names[SEND_TARGETS], "Reject");
	else if (all || none)
		targets_list(login->targets, login->peer, login->initiator, login->known, own,
			     add_target, &l);
	else if (own == NULL || strcmp(own, name) == 0)
		targets_list(login->targets, login->peer, login->initiator, login->known, name,
			     add_target, &l);
}

int
iscsi_text_answer(struct iscsi_login *login, char *keys, size_t length, const char *portal,
		  struct iscsi_text *out)
{
	char *key, *value;
	uint64_t seen = 0;
	size_t at = 0;
	int more, error;

	out->limit = TEXT_MAX;
	while ((more = iscsi_text_next(keys, length, &at, &key, &value)) == 1) {
		unsigned i = name_of(key);

		if (i == SEND_TARGETS) {
			send_targets(login, value, portal, out);
			continue;
		}
		if (i == INITIATOR_ALIAS)
			continue;
		error = i < NAMES ? -EPROTO
				  : iscsi_key_negotiate(&login->parameters, ISCSI_FULL_FEATURE,
							login->discovery, &seen, key, value, out);
		if (error != 0)
			iscsi_text_add(out, key, error == -ENOENT ? "NotUnderstood" : "Reject");
	}
	if (more < 0)
		return -EPROTO;
	return out->failed ? -ENOMEM : 0;
}
