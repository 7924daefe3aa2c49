/*
 * conn-iscsi.c - iSCSI: one session a connection, no digests.
 *
 * A command that is answered BUSY or TASK SET FULL is sent again, as initiators do.
 *
 * Source: RFC 7143, "iSCSI PDU Formats"; SAM-5, "Status codes"; SBC-3.
 */
#include "conn.h"

#include "bytes.h"

#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define BHS       CONN_HEAD
#define MAX_BLOCK 4096

enum { GOOD = 0x00, BUSY = 0x08, TASK_SET_FULL = 0x28 };
enum { NOP_OUT = 0x00, COMMAND = 0x01, LOGIN = 0x03, DATA_OUT = 0x05 };
enum { NOP_IN = 0x20, RESPONSE = 0x21, LOGIN_RESPONSE = 0x23, DATA_IN = 0x25, R2T = 0x31 };

/* ---- login ----------------------------------------------------------------------- */

/* Receives a PDU; its data, cut to `room`, goes to text. */
static size_t
get_pdu(struct conn *c, uint8_t *bhs, char *text, size_t room)
{
	char rest[512];
	size_t length, padded;

	conn_get(c, bhs, BHS);
	length = get_be24(bhs + 5);
	padded = (length + 3) & ~(size_t)3;
	for (size_t at = 0; at < padded;) {
		size_t n = padded - at < sizeof(rest) ? padded - at : sizeof(rest);

		conn_get(c, rest, n);
		if (at + n <= room)
			memcpy(text + at, rest, n);
		at += n;
	}
	return length < room ? length : room;
}

/* Keys are text with a NUL behind each. stages: CSG and NSG, and that it is to go there. */
static void
login_step(struct conn *c, uint8_t stages, const char *keys, size_t length, char *answer,
	   size_t room)
{
	uint8_t pdu[BHS + 1024] = { 0x40 | LOGIN, 0x80 | stages };
	uint8_t bhs[BHS];
	size_t got;

	put_be24(pdu + 5, (uint32_t)length);
	/* ISID: random, so that connections are sessions of their own. */
	pdu[8] = 0x80;
	put_be32(pdu + 10, (uint32_t)getpid() << 8 | (uint8_t)c->fd);
	put_be32(pdu + 16, 1);
	put_be32(pdu + 24, c->iscsi.cmd_sn);
	put_be32(pdu + 28, c->iscsi.exp_stat_sn);
	memcpy(pdu + BHS, keys, length);
	conn_send_now(c, pdu, BHS + ((length + 3) & ~(size_t)3));
	got = get_pdu(c, bhs, answer, room - 1);
	answer[got] = '\0';
	if ((bhs[0] & 0x3f) != LOGIN_RESPONSE || bhs[36] != 0)
		errx(2, "login: status %02x%02x", bhs[36], bhs[37]);
	c->iscsi.exp_stat_sn = get_be32(bhs + 24) + 1;
}

/* The number that the target answered for a key, or `otherwise`. */
static uint32_t
answered(const char *text, size_t length, const char *key, uint32_t otherwise)
{
	for (const char *p = text; p < text + length; p += strlen(p) + 1) {
		if (strncmp(p, key, strlen(key)) == 0 && p[strlen(key)] == '=')
			return (uint32_t)strtoul(p + strlen(key) + 1, NULL, 10);
	}
	return otherwise;
}

static void
command_head(struct conn *c, uint8_t *bhs, uint8_t flags, uint32_t tag, uint32_t expected)
{

	memset(bhs, 0, BHS);
	bhs[0] = COMMAND;
	bhs[1] = 0x80 | flags | 1 /* simple */;
	bhs[9] = c->iscsi.lun;
	put_be32(bhs + 16, tag);
	put_be32(bhs + 20, expected);
	put_be32(bhs + 24, c->iscsi.cmd_sn++);
	put_be32(bhs + 28, c->iscsi.exp_stat_sn);
}

/* READ CAPACITY(16); until the unit attentions are through. */
static uint64_t
read_size(struct conn *c)
{
	for (unsigned try = 0; try < 8; try++) {
		uint8_t bhs[BHS], data[512];

		command_head(c, bhs, 0x40, 2, 32);
		bhs[32] = 0x9e;
		bhs[33] = 0x10;
		bhs[45] = 32;
		conn_send_now(c, bhs, BHS);
		get_pdu(c, bhs, (char *)data, sizeof(data));
		if ((bhs[0] & 0x3f) == DATA_IN && (bhs[1] & 1) == 0)
			get_pdu(c, bhs, NULL, 0);
		c->iscsi.exp_stat_sn = get_be32(bhs + 24) + 1;
		if (bhs[3] != 0)
			continue;
		c->iscsi.block = get_be32(data + 8);
		return (get_be64(data) + 1) * c->iscsi.block;
	}
	errx(2, "the unit is not ready");
}

/* rest: "/IQN/LUN" */
static void
iscsi_open(struct conn *c, const char *rest)
{
	char name[256], keys[1024], answer[8192];
	unsigned lun;
	int n;

	if (sscanf(rest, "/%255[^/]/%u", name, &lun) != 2 || lun > 255)
		errx(2, "%s: expected iscsi://HOST:PORT/IQN/LUN", rest);
	c->iscsi.cmd_sn = 1;
	c->iscsi.lun = (uint8_t)lun;
	n = snprintf(keys, sizeof(keys),
		     "InitiatorName=iqn.2026-11.org.platter:client%cSessionType=Normal%c"
		     "TargetName=%s%cAuthMethod=None%c",
		     0, 0, name, 0, 0);
	login_step(c, 0 << 2 | 1, keys, (size_t)n, answer, sizeof(answer));
	n = snprintf(
		keys, sizeof(keys),
		"HeaderDigest=None%cDataDigest=None%cInitialR2T=Yes%cImmediateData=Yes%c"
		"MaxRecvDataSegmentLength=262144%cMaxBurstLength=1048576%cFirstBurstLength=65536%c"
		"MaxOutstandingR2T=1%cErrorRecoveryLevel=0%c",
		0, 0, 0, 0, 0, 0, 0, 0, 0);
	memset(answer, 0, sizeof(answer));
	login_step(c, 1 << 2 | 3, keys, (size_t)n, answer, sizeof(answer));
	c->iscsi.burst = answered(answer, sizeof(answer) - 1, "MaxRecvDataSegmentLength", 8192);
	c->iscsi.immediate = answered(answer, sizeof(answer) - 1, "FirstBurstLength", 8192);
	if (c->iscsi.immediate > c->iscsi.burst)
		c->iscsi.immediate = c->iscsi.burst;
	c->can_flush = c->can_fua = true;
	c->size = read_size(c);
	if (c->iscsi.block > MAX_BLOCK)
		errx(2, "blocks of %u bytes", c->iscsi.block);
}

/* ---- requests -------------------------------------------------------------------- */

/* The command, its flags, and where it has its place and its number of blocks. */
static const struct form {
	uint8_t flags, code;
	uint8_t lba_at, blocks_at;
	bool wide; /* 8 bytes of place and 4 of number; else 4 and 2 */
} forms[] = {
	[CONN_READ] = { .flags = 0x40, .code = 0x28, .lba_at = 2, .blocks_at = 7 },
	[CONN_WRITE] = { .flags = 0x20, .code = 0x2a, .lba_at = 2, .blocks_at = 7 },
	[CONN_FLUSH] = { .code = 0x35, .lba_at = 2, .blocks_at = 7 },
	/* WRITE SAME(16) */
	[CONN_ZERO] = { .flags = 0x20, .code = 0x93, .lba_at = 2, .blocks_at = 10, .wide = true },
	/* UNMAP: both are in its parameters. */
	[CONN_TRIM] = { .flags = 0x20, .code = 0x42 },
};

/* What the command sends, if that is not the request's data. */
static void
choose_data(struct conn *c, struct conn_request *r)
{
	static const uint8_t zeroes[MAX_BLOCK];
	uint8_t *list = r->parameters;

	if (r->op == CONN_ZERO) {
		r->out = zeroes;
		r->out_length = c->iscsi.block;
	} else if (r->op == CONN_TRIM) {
		memset(list, 0, sizeof(r->parameters));
		list[1] = sizeof(r->parameters) - 2;
		list[3] = sizeof(r->parameters) - 8;
		put_be64(list + 8, r->offset / c->iscsi.block);
		put_be32(list + 16, r->length / c->iscsi.block);
		r->out = list;
		r->out_length = sizeof(r->parameters);
	}
}

static void
iscsi_issue(struct conn *c, unsigned number)
{
	struct conn_request *r = &c->requests[number];
	const struct form *form = &forms[r->op];
	uint8_t *head = r->heads[0], *cdb = head + 32;
	uint32_t immediate;

	if (r->offset % c->iscsi.block != 0 || r->length % c->iscsi.block != 0)
		errx(2, "these are no blocks of %u bytes", c->iscsi.block);
	choose_data(c, r);
	immediate = r->out_length < c->iscsi.immediate ? r->out_length : c->iscsi.immediate;
	command_head(c, head, form->flags, number, r->op == CONN_READ ? r->length : r->out_length);
	put_be24(head + 5, immediate);
	cdb[0] = form->code;
	if (r->op == CONN_WRITE && r->fua)
		cdb[1] = 0x08;
	if (form->wide) {
		put_be64(cdb + form->lba_at, r->offset / c->iscsi.block);
		put_be32(cdb + form->blocks_at, r->length / c->iscsi.block);
	} else if (form->lba_at != 0) {
		put_be32(cdb + form->lba_at, (uint32_t)(r->offset / c->iscsi.block));
		put_be16(cdb + form->blocks_at, (uint16_t)(r->length / c->iscsi.block));
	}
	if (r->op == CONN_TRIM)
		cdb[8] = sizeof(r->parameters);
	conn_add(c, head, BHS);
	if (immediate > 0)
		conn_add(c, r->out, immediate);
}

/* A sequence of Data-Out. */
static void
send_data(struct conn *c, struct conn_request *r, const uint8_t *r2t)
{
	uint32_t offset = get_be32(r2t + 40), end = offset + get_be32(r2t + 44);

	if (end > r->out_length || end <= offset)
		errx(2, "the target asks for what there is not");
	for (unsigned n = 0; offset < end; n++) {
		uint32_t length = end - offset < c->iscsi.burst ? end - offset : c->iscsi.burst;
		uint8_t *bhs = r->heads[1 + n];

		if (n == CONN_PARTS)
			errx(2, "the target wants its data in too many pieces");
		memset(bhs, 0, BHS);
		bhs[0] = DATA_OUT;
		bhs[1] = offset + length == end ? 0x80 : 0;
		put_be24(bhs + 5, length);
		memcpy(bhs + 8, r2t + 8, 16); /* LUN and tags */
		put_be32(bhs + 28, c->iscsi.exp_stat_sn);
		put_be32(bhs + 36, n);
		put_be32(bhs + 40, offset);
		conn_add(c, bhs, BHS);
		conn_add(c, r->out + offset, length);
		offset += length;
	}
}

static void
take_status(struct conn *c, const uint8_t *bhs)
{
	struct conn_request *r = conn_find(c, get_be32(bhs + 16));
	uint8_t response = (bhs[0] & 0x3f) == RESPONSE ? bhs[2] : 0, status = bhs[3];

	c->iscsi.exp_stat_sn = get_be32(bhs + 24) + 1;
	if (response == 0 && (status == BUSY || status == TASK_SET_FULL)) {
		iscsi_issue(c, (unsigned)(r - c->requests));
		return;
	}
	snprintf(c->error_text, sizeof(c->error_text), "status %02x, response %02x", status,
		 response);
	conn_done(c, r, response == 0 && status == GOOD ? NULL : c->error_text);
}

static size_t
iscsi_take(struct conn *c, const uint8_t *bhs, size_t length)
{
	struct conn_request *r;
	uint32_t data;

	if (length < BHS)
		return 0;
	data = get_be24(bhs + 5);
	conn_data(c, (data + 3) & ~(size_t)3, NULL);
	switch (bhs[0] & 0x3f) {
	case R2T: send_data(c, conn_find(c, get_be32(bhs + 16)), bhs); return BHS;
	case DATA_IN:
		r = conn_find(c, get_be32(bhs + 16));
		if (data % 4 != 0 || data > r->length || get_be32(bhs + 40) > r->length - data)
			errx(2, "the target sent what was not asked for");
		if (r->data != NULL)
			conn_data(c, data, r->data + get_be32(bhs + 40));
		if ((bhs[1] & 1) != 0)
			take_status(c, bhs);
		return BHS;
	case RESPONSE: take_status(c, bhs); return BHS;
	case NOP_IN: return BHS;
	default: errx(2, "the target sent a PDU 0x%02x", bhs[0]);
	}
}

/* A logout; what it answers is not waited for. */
static void
iscsi_close(struct conn *c)
{
	uint8_t *bhs = c->farewell;

	bhs[0] = 0x40 | 0x06;
	bhs[1] = 0x80;
	put_be32(bhs + 16, 3);
	put_be32(bhs + 24, c->iscsi.cmd_sn);
	put_be32(bhs + 28, c->iscsi.exp_stat_sn);
	conn_add(c, bhs, BHS);
}

const struct conn_protocol conn_iscsi = {
	.open = iscsi_open,
	.issue = iscsi_issue,
	.take = iscsi_take,
	.close = iscsi_close,
};
