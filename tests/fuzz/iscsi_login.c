/*
 * iscsi_login.c - whatever comes in the login phase is answered by login responses until it ends,
 * nobody gets past a secret that he does not know, and nothing is held when it is over.
 *
 * Input: PDUs: a byte that says how its header is made, a whole one or the byte of flags, then
 * the length of its data in two bytes, and the data. What comes after a login is text.
 */
#include "few-targets.h"
#include "fuzz.h"
#include "iscsi/login.h"
#include "worker.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static struct worker here, elsewhere;
static struct target targets[] = {
	{ .name = "iqn.a:open", .worker = &here },
	{ .name = "iqn.a:far", .worker = &elsewhere },
	{ .name = "iqn.a:own", .worker = &here, .initiator = "iqn.b:c" },
	{ .name = "iqn.a:locked", .worker = &here },
};
#define TARGETS (sizeof targets / sizeof *targets)
#define LOCKED  (&targets[TARGETS - 1])

struct talk {
	struct iscsi_login login;
	struct peer peer;
	struct iscsi_output out;
	uint32_t stat_sn; /* of the next answer */
};

/* Bit 0 of the first byte: a whole header comes, not its flags only. */
static bool
next_pdu(struct fuzz_input *in, uint8_t bhs[ISCSI_BHS], const uint8_t **data, size_t *length)
{
	size_t head;

	if (in->size < 4)
		return false;
	head = (in->data[0] & 1) != 0 ? ISCSI_BHS : 1;
	if (in->size < 1 + head + 2)
		return false;
	memset(bhs, 0, ISCSI_BHS);
	if (head == 1) {
		bhs[0] = ISCSI_LOGIN | ISCSI_IMMEDIATE;
		bhs[1] = in->data[1];
	} else {
		memcpy(bhs, in->data + 1, ISCSI_BHS);
	}
	*length = get_be16(in->data + 1 + head);
	*data = in->data + 1 + head + 2;
	in->size -= 1 + head + 2;
	if (*length > in->size)
		*length = in->size;
	in->data = *data + *length;
	in->size -= *length;
	put_be24(bhs + 5, (uint32_t)*length);
	return true;
}

static void
check_output(struct talk *t, enum login_step step, const uint8_t *request)
{
	const uint8_t *p = t->out.data;
	unsigned status;

	if (t->out.length == 0) {
		/* Only who does not begin with a login is not told why. */
		assert(step == LOGIN_CLOSE && t->stat_sn == 0 && t->login.why != NULL);
		return;
	}
	assert(t->out.length ==
	       ISCSI_BHS + iscsi_data_length(p) + iscsi_padding(iscsi_data_length(p)));
	assert(p[0] == ISCSI_LOGIN_RESPONSE && iscsi_data_length(p) <= ISCSI_DATA_DEFAULT);
	assert(memcmp(p + 16, request + 16, 4) == 0);
	assert(get_be32(p + 24) == t->stat_sn);
	t->stat_sn++;
	status = get_be16(p + 36);
	assert((status == 0) == (step != LOGIN_CLOSE));
	if (step == LOGIN_CLOSE) {
		assert(t->login.why != NULL && (p[1] & 0xc3) == 0 && iscsi_data_length(p) == 0);
	} else if ((p[1] & ISCSI_LOGIN_TRANSIT) != 0) {
		assert((p[1] & ISCSI_CONTINUE) == 0 && (request[1] & ISCSI_LOGIN_TRANSIT) != 0);
		assert((p[1] & 3) == (request[1] & 3));
		assert(((p[1] & 3) == 3) == (step == LOGIN_FULL));
	} else {
		assert(step == LOGIN_MORE && (p[1] & 3) == 0);
	}
}

static enum login_step
one_step(struct talk *t, const uint8_t *bhs, const uint8_t *data, size_t length)
{
	char *copy = malloc(length != 0 ? length : 1);
	enum login_step step;

	memcpy(copy, data, length);
	t->out.length = 0;
	step = iscsi_login_step(&t->login, bhs, copy, length, &t->out);
	if (step == LOGIN_MOVE) {
		assert(t->out.length == 0);
		t->login.worker = target_worker(t->login.target);
		step = iscsi_login_step(&t->login, bhs, copy, length, &t->out);
		assert(step != LOGIN_MOVE);
	}
	if (step == LOGIN_SESSION) {
		assert(t->out.length == 0);
		step = iscsi_login_session(&t->login,
					   t->login.tsih != 0 ? ISCSI_LOGIN_NO_SESSION
							      : ISCSI_LOGIN_SUCCESS,
					   77, &t->out);
	}
	free(copy);
	check_output(t, step, bhs);
	return step;
}

/* Who has come in, and by which right. */
static void
check_session(const struct talk *t)
{
	const struct target *target = t->login.target;

	assert(iscsi_name_is_valid(t->login.initiator));
	assert(t->login.discovery == (target == NULL));
	assert(target != LOCKED);
	assert(!t->login.discovery || LOCKED->secrets == NULL);
	assert(target == NULL || target->initiator == NULL ||
	       strcmp(target->initiator, t->login.initiator) == 0);
}

static void
ask(struct talk *t, const uint8_t *data, size_t length)
{
	struct iscsi_text in = { 0 }, out = { 0 };
	int error;

	iscsi_text_append(&in, data, length);
	error = iscsi_text_answer(&t->login, in.data, in.length, "10.0.0.1:3260", &out);
	assert(error == 0 || error == -EPROTO || error == -ENOMEM);
	assert(error != 0 || out.length == 0 || out.data[out.length - 1] == '\0');
	iscsi_text_free(&in);
	iscsi_text_free(&out);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input in = { data, size };
	struct talk t = { .login = { .worker = &here, .window = 8 } };
	enum login_step step = LOGIN_MORE;
	uint8_t bhs[ISCSI_BHS];

	if (few_targets == NULL) {
		few_targets = targets;
		few_targets_count = TARGETS;
		LOCKED->secrets = few_secrets("in a secret-of-aaa\nout b secret-of-bbb\n");
	}
	t.login.peer = &t.peer;
	iscsi_login_start(&t.login);
	while (step != LOGIN_CLOSE && next_pdu(&in, bhs, &data, &size)) {
		if (step == LOGIN_FULL) {
			ask(&t, data, size);
			continue;
		}
		step = one_step(&t, bhs, data, size);
		if (step == LOGIN_FULL)
			check_session(&t);
	}
	iscsi_login_end(&t.login);
	iscsi_output_free(&t.out);
	for (unsigned i = 0; i < TARGETS; i++)
		assert(targets[i].references == 0);
	return 0;
}
