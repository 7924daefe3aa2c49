/*
 * iscsi.c - whatever an initiator sends after login is answered as the protocol wants, to the last
 * whole PDU, and the connection ends.
 *
 * A whole connection, without sockets (dry.h). Input: a byte that says what is agreed on and
 * whether what follows is sent as it is or makes PDUs, and one that says in which pieces it comes.
 */
#include "iscsi/targets.h"

#include "fuzz.h"
#include "iscsi/pdu.h"
#include "served.h"
#include "spec.h"

#include <assert.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEPTH   4
#define INPUT   1024 /* bytes of what libFuzzer makes */
#define SENT    (3 << 16)
#define PDU_MAX 128 /* bytes, without its data */
#define TARGET  "iqn.a:b"

static struct targets *targets;

static void
set_up_targets(struct catalog *catalog, const struct pl_params *none)
{
	const struct lun_settings luns[] = {
		{ .lun = 0, .export = "w", .params = none },
		{ .lun = 1, .export = "r", .params = none },
		{ .lun = 2, .export = "f", .params = none },
		{ .lun = 3, .export = "s", .params = none },
	};
	const struct target_settings target = { .name = TARGET, .luns = luns, .lun_count = 4 };
	struct targets_plan *plan;
	unsigned up, missing;
	int error = targets_new(&targets, catalog, NULL, NULL);

	assert(error == 0);
	error = targets_plan(targets, &target, 1, &plan, NULL);
	assert(error == 0);
	error = targets_plan_load(targets, plan, NULL);
	assert(error == 0);
	error = targets_apply(targets, workers, plan, &up, &missing, NULL);
	assert(error == 0 && up == 4 && missing == 0);
}

static void
set_up(void)
{
	static struct worker_settings settings = {
		.memory = UINT64_C(128) << 20,
		.handshake_timeout = UINT64_C(60) * 1000000000,
		.depth = DEPTH,
	};
	struct pl_params *none = params_of(NULL, 0);

	serve_exports(&settings);
	set_up_targets(settings.catalog, none);
	settings.targets = targets;
	pl_params_free(none);
}

/* ---- what an initiator sends ----------------------------------------------------- */

struct initiator {
	bool header_digest, data_digest, digests; /* digests: they hold from now on */
	uint32_t max_receive, max_burst;          /* in the target's eyes: max_send */
	uint32_t cmd_sn;                          /* of the next command */
	uint8_t sent[SENT];
	size_t length;
};

static void
put(struct initiator *c, const void *data, size_t length)
{
	assert(length <= SENT - c->length);
	if (length > 0)
		memcpy(c->sent + c->length, data, length);
	c->length += length;
}

static void
put_digest(struct initiator *c, size_t from)
{
	uint8_t digest[ISCSI_DIGEST];

	iscsi_crc_end(iscsi_crc_more(ISCSI_CRC_START, c->sent + from, c->length - from), digest);
	put(c, digest, sizeof digest);
}

/* With the lengths and digests that belong to it. */
static void
put_pdu(struct initiator *c, uint8_t *bhs, const void *ahs, size_t ahs_length, const void *data,
	size_t length)
{
	size_t from = c->length;

	bhs[4] = (uint8_t)(ahs_length / 4);
	put_be24(bhs + 5, (uint32_t)length);
	put(c, bhs, ISCSI_BHS);
	put(c, ahs, ahs_length);
	if (c->digests && c->header_digest)
		put_digest(c, from);
	if (length == 0)
		return;
	from = c->length;
	put(c, data, length);
	put(c, "\0\0\0", iscsi_padding((uint32_t)length));
	if (c->digests && c->data_digest)
		put_digest(c, from);
}

static void
put_login(struct initiator *c, unsigned how)
{
	uint8_t bhs[ISCSI_BHS] = { ISCSI_LOGIN | ISCSI_IMMEDIATE, ISCSI_LOGIN_TRANSIT |
									  ISCSI_OPERATIONAL << 2 |
									  ISCSI_FULL_FEATURE };
	char text[512];
	int length;

	c->header_digest = (how & 1) != 0;
	c->data_digest = (how & 2) != 0;
	c->max_receive = (how & 16) != 0 ? 512 : 262144;
	c->max_burst = (how & 32) != 0 ? 1024 : 262144;
	length = snprintf(text, sizeof text,
			  "InitiatorName=iqn.c:d%cTargetName=" TARGET "%cHeaderDigest=%s%c"
			  "DataDigest=%s%cInitialR2T=%s%cImmediateData=%s%cMaxBurstLength=%u%c"
			  "FirstBurstLength=1024%cMaxRecvDataSegmentLength=%u%c"
			  "MaxOutstandingR2T=%u%c",
			  0, 0, c->header_digest ? "CRC32C" : "None", 0,
			  c->data_digest ? "CRC32C" : "None", 0, (how & 4) != 0 ? "No" : "Yes", 0,
			  (how & 8) != 0 ? "No" : "Yes", 0, c->max_burst, 0, 0, c->max_receive, 0,
			  (how & 32) != 0 ? 3 : 1, 0);
	put_pdu(c, bhs, NULL, 0, text, (size_t)length);
	c->digests = true;
}

static uint32_t
some_length(struct fuzz_input *in)
{
	switch (fuzz_next(in, 8)) {
	case 0: return 0;
	case 1: return (uint32_t)fuzz_next(in, 1 << 11);
	case 2: return (uint32_t)fuzz_next(in, UINT64_C(1) << 32);
	case 3: return 1024;
	default: return 512 * (uint32_t)fuzz_next(in, 20);
	}
}

/* A CDB that gets past the first checks, or any. */
static void
some_cdb(uint8_t cdb[16], struct fuzz_input *in)
{
	static const uint8_t opcodes[] = {
		SCSI_TEST_UNIT_READY, SCSI_INQUIRY,   SCSI_READ_10,       SCSI_WRITE_10,
		SCSI_WRITE_10,        SCSI_READ_10,   SCSI_WRITE_SAME_10, SCSI_UNMAP,
		SCSI_MODE_SENSE_6,    SCSI_RESERVE_6, SCSI_MODE_SELECT_6
	};
	unsigned n = (unsigned)fuzz_next(in, sizeof opcodes + 1);

	memset(cdb, 0, 16);
	if (n == sizeof opcodes) {
		for (unsigned i = 0; i < 16; i++)
			cdb[i] = (uint8_t)fuzz_next(in, 256);
		return;
	}
	cdb[0] = opcodes[n];
	if (cdb[0] == SCSI_READ_10 || cdb[0] == SCSI_WRITE_10 || cdb[0] == SCSI_WRITE_SAME_10) {
		cdb[1] = fuzz_next(in, 4) == 0 ? 0x08 : 0; /* FUA */
		put_be32(cdb + 2, (uint32_t)fuzz_next(in, DISK / 512 + 4));
		put_be16(cdb + 7, (uint16_t)fuzz_next(in, 20));
	} else {
		cdb[4] = cdb[8] = (uint8_t)fuzz_next(in, 256);
	}
}

static uint32_t
some_cmd_sn(struct initiator *c, struct fuzz_input *in, bool immediate)
{
	uint32_t sn = c->cmd_sn;

	if (immediate)
		return sn;
	switch (fuzz_next(in, 16)) {
	case 0: return sn + (uint32_t)fuzz_next(in, 8) - 3;
	case 1: c->cmd_sn += 2; return sn + 1; /* a gap */
	default: c->cmd_sn++; return sn;
	}
}

/* An AHS, or something like it. */
static size_t
some_ahs(uint8_t ahs[64], struct fuzz_input *in)
{
	size_t length = fuzz_next(in, 8) == 0 ? 4 * fuzz_next(in, 17) : 0;

	for (size_t i = 0; i < length; i++)
		ahs[i] = (uint8_t)fuzz_next(in, 256);
	if (length > 4 && fuzz_next(in, 2) == 0)
		put_be16(ahs, (uint16_t)(length - 3));
	return length;
}

/* Returns false when there is no more room. */
static bool
put_some_pdu(struct initiator *c, struct fuzz_input *in)
{
	static const uint8_t kinds[] = { ISCSI_SCSI_COMMAND,
					 ISCSI_SCSI_COMMAND,
					 ISCSI_SCSI_COMMAND,
					 ISCSI_DATA_OUT,
					 ISCSI_DATA_OUT,
					 ISCSI_DATA_OUT,
					 ISCSI_NOP_OUT,
					 ISCSI_TASK_MANAGEMENT,
					 ISCSI_TEXT,
					 ISCSI_SNACK,
					 ISCSI_LOGIN,
					 ISCSI_LOGOUT,
					 0x3f };
	static uint8_t data[1 << 14];
	uint8_t bhs[ISCSI_BHS] = { kinds[fuzz_next(in, sizeof kinds)] }, ahs[64];
	bool immediate = fuzz_next(in, 4) == 0;
	uint32_t length = 0;
	size_t ahs_length = 0;

	bhs[1] = fuzz_next(in, 4) != 0 ? ISCSI_FINAL : 0;
	bhs[9] = (uint8_t)fuzz_next(in, 4);
	put_be32(bhs + 16, (uint32_t)fuzz_next(in, 6));
	put_be32(bhs + 20, ISCSI_NO_TAG);
	switch (bhs[0]) {
	case ISCSI_SCSI_COMMAND:
		bhs[1] |= (uint8_t)(fuzz_next(in, 4) << 5 | fuzz_next(in, 6));
		put_be32(bhs + 20, some_length(in));
		some_cdb(bhs + 32, in);
		ahs_length = some_ahs(ahs, in);
		if (fuzz_next(in, 2) == 0)
			length = (bhs[1] & ISCSI_COMMAND_WRITE) != 0 ? (uint32_t)fuzz_next(in, 1025)
								     : 0;
		break;
	case ISCSI_DATA_OUT:
		if (fuzz_next(in, 2) == 0)
			put_be32(bhs + 20, (uint32_t)(1 + fuzz_next(in, 3)) << 16 |
						   (uint32_t)fuzz_next(in, 6));
		put_be32(bhs + 36, (uint32_t)fuzz_next(in, 3));
		put_be32(bhs + 40, some_length(in));
		length = (uint32_t)fuzz_next(in, 20) * 512;
		break;
	case ISCSI_NOP_OUT:
		if (fuzz_next(in, 8) == 0)
			put_be32(bhs + 16, ISCSI_NO_TAG);
		length = (uint32_t)fuzz_next(in, sizeof data);
		break;
	case ISCSI_TASK_MANAGEMENT:
		bhs[1] |= (uint8_t)fuzz_next(in, 14);
		put_be32(bhs + 20, (uint32_t)fuzz_next(in, 6));
		put_be32(bhs + 32, c->cmd_sn - (uint32_t)fuzz_next(in, 4));
		break;
	case ISCSI_TEXT:
		bhs[1] |= fuzz_next(in, 4) == 0 ? ISCSI_CONTINUE : 0;
		if (fuzz_next(in, 4) == 0)
			put_be32(bhs + 20, (uint32_t)fuzz_next(in, 4));
		length = (uint32_t)fuzz_next(in, 64);
		break;
	case ISCSI_LOGOUT:
		if (fuzz_next(in, 4) != 0)
			return true;
		bhs[1] |= (uint8_t)fuzz_next(in, 4);
		break;
	default: bhs[0] = (uint8_t)(bhs[0] == 0x3f ? fuzz_next(in, 256) : bhs[0]); break;
	}
	immediate = immediate && bhs[0] != ISCSI_DATA_OUT;
	bhs[0] |= immediate ? ISCSI_IMMEDIATE : 0;
	if (iscsi_opcode(bhs) != ISCSI_DATA_OUT && iscsi_opcode(bhs) < ISCSI_SNACK &&
	    iscsi_opcode(bhs) != ISCSI_LOGIN)
		put_be32(bhs + 24, some_cmd_sn(c, in, (bhs[0] & ISCSI_IMMEDIATE) != 0));
	if (iscsi_opcode(bhs) == ISCSI_TEXT && length <= in->size) {
		memcpy(data, in->data, length);
		in->data += length;
		in->size -= length;
	} else {
		memset(data, bhs[19] + 1, length);
	}
	if (SENT - c->length < length + PDU_MAX + PDU_MAX)
		return false; /* the logout has to fit, too */
	put_pdu(c, bhs, ahs, ahs_length, data, length);
	return true;
}

static void
put_logout(struct initiator *c)
{
	uint8_t bhs[ISCSI_BHS] = { ISCSI_LOGOUT | ISCSI_IMMEDIATE, ISCSI_FINAL };

	put_be32(bhs + 24, c->cmd_sn);
	put_pdu(c, bhs, NULL, 0, NULL, 0);
}

/* ---- what it gets ---------------------------------------------------------------- */

struct reader {
	bool digests;      /* behind the login response */
	uint32_t stat_sn;  /* of the next PDU that has one of its own */
	uint32_t exp, max; /* ExpCmdSN, MaxCmdSN so far */
};

static bool
digest_is_right(const uint8_t *data, size_t length)
{
	uint8_t digest[ISCSI_DIGEST];

	iscsi_crc_end(iscsi_crc_more(ISCSI_CRC_START, data, length), digest);
	return memcmp(digest, data + length, sizeof digest) == 0;
}

static void
check_numbers(struct reader *r, const uint8_t *bhs)
{
	bool data = bhs[0] == ISCSI_DATA_IN && (bhs[1] & ISCSI_DATA_IN_STATUS) == 0;
	uint32_t exp = get_be32(bhs + 28), max = get_be32(bhs + 32);

	if (data)
		assert(get_be32(bhs + 24) == 0);
	else if (bhs[0] == ISCSI_R2T)
		assert(get_be32(bhs + 24) == r->stat_sn);
	else
		assert(get_be32(bhs + 24) == r->stat_sn++);
	assert(!iscsi_before(exp, r->exp) && !iscsi_before(max, r->max));
	assert(max - exp + 1 <= DEPTH);
	r->exp = exp;
	r->max = max;
}

static void
check_pdu(const struct initiator *c, struct reader *r, const uint8_t *bhs, const uint8_t *data)
{
	uint32_t length = iscsi_data_length(bhs);

	assert(bhs[4] == 0 && length <= c->max_receive);
	check_numbers(r, bhs);
	switch (bhs[0]) {
	case ISCSI_NOP_IN: assert(get_be32(bhs + 16) != ISCSI_NO_TAG); break;
	case ISCSI_DATA_IN:
		assert(length > 0 && length <= c->max_burst);
		assert((bhs[1] & ISCSI_DATA_IN_STATUS) == 0 || (bhs[1] & ISCSI_FINAL) != 0);
		break;
	case ISCSI_SCSI_RESPONSE:
		assert(length == 0 || get_be16(data) + 2u == length);
		assert((bhs[3] == SCSI_CHECK_CONDITION) == (length > 0));
		break;
	case ISCSI_R2T: assert(get_be32(bhs + 44) > 0 && get_be32(bhs + 44) <= c->max_burst); break;
	case ISCSI_TASK_MANAGEMENT_RESPONSE:
	case ISCSI_TEXT_RESPONSE:
	case ISCSI_LOGOUT_RESPONSE: break;
	case ISCSI_REJECT: assert(length == ISCSI_BHS && bhs[2] != 0); break;
	default: assert(!"a PDU that is none of a target's");
	}
}

static void
check_pdus(const struct initiator *c)
{
	const uint8_t *p = dry_wire.from_server, *end = p + dry_wire.length;
	struct reader r = { 0 };

	while (p < end) {
		const uint8_t *bhs = p, *data;
		size_t head = ISCSI_BHS, body;

		if (end - p < ISCSI_BHS)
			return; /* the connection was closed before the rest */
		head += r.digests && c->header_digest ? ISCSI_DIGEST : 0;
		body = iscsi_data_length(bhs) + iscsi_padding(iscsi_data_length(bhs));
		data = bhs + head;
		if ((size_t)(end - p) <
		    head + body + (body > 0 && r.digests && c->data_digest ? ISCSI_DIGEST : 0))
			return;
		p += head + body;
		if (!r.digests) {
			/* It is the answer to the login, which was as it should be. */
			assert(bhs[0] == ISCSI_LOGIN_RESPONSE && get_be16(bhs + 36) == 0);
			r.digests = true;
			r.stat_sn = get_be32(bhs + 24) + 1;
			r.exp = get_be32(bhs + 28);
			r.max = get_be32(bhs + 32);
			continue;
		}
		assert(!c->header_digest || digest_is_right(bhs, ISCSI_BHS));
		if (body > 0 && c->data_digest) {
			assert(digest_is_right(data, body));
			p += ISCSI_DIGEST;
		}
		check_pdu(c, &r, bhs, data);
	}
}

int
LLVMFuzzerTestOneInput(const uint8_t *input, size_t size)
{
	static struct initiator c;
	struct fuzz_input in = { input, size };
	unsigned how = (unsigned)fuzz_next(&in, 256), way = (unsigned)fuzz_next(&in, 256);
	bool raw = (how & 64) != 0;

	if (size > INPUT)
		return -1;
	if (workers == NULL)
		set_up();
	c.length = 0;
	c.cmd_sn = 0;
	c.digests = false;
	put_login(&c, raw ? how & ~3u : how);
	if (raw)
		put(&c, in.data, in.size);
	else
		while (in.size > 0 && put_some_pdu(&c, &in))
			;
	put_logout(&c);
	serve(PROTOCOL_ISCSI, c.sent, c.length, way);
	check_pdus(&c);
	return 0;
}
