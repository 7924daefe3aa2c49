/*
 * load-iscsi.c - iSCSI: one session a connection, no digests, READ(10), WRITE(10) and
 * SYNCHRONIZE CACHE(10).
 *
 * Source: RFC 7143, "iSCSI PDU Formats"; SBC-3.
 */
#include "load.h"

#include "bytes.h"

#include <err.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/socket.h>
#include <unistd.h>

#define BHS    48
#define NO_TAG UINT32_C(0xffffffff)

enum { NOP_OUT = 0x00, COMMAND = 0x01, LOGIN = 0x03, DATA_OUT = 0x05 };
enum { NOP_IN = 0x20, RESPONSE = 0x21, LOGIN_RESPONSE = 0x23, DATA_IN = 0x25, R2T = 0x31 };

/* ---- login ----------------------------------------------------------------------- */

/* Receives a PDU; its data, cut to `room`, goes to text. */
static size_t
get_pdu(int fd, uint8_t *bhs, char *text, size_t room)
{
	char rest[512];
	size_t length, padded;

	load_get(fd, bhs, BHS);
	length = get_be24(bhs + 5);
	padded = (length + 3) & ~(size_t)3;
	for (size_t at = 0; at < padded;) {
		size_t n = padded - at < sizeof(rest) ? padded - at : sizeof(rest);

		load_get(fd, rest, n);
		if (at + n <= room)
			memcpy(text + at, rest, n);
		at += n;
	}
	return length < room ? length : room;
}

static void
send_all(int fd, const void *data, size_t length)
{
	if (send(fd, data, length, MSG_NOSIGNAL) != (ssize_t)length)
		err(1, "send");
}

/* Keys are text with a NUL behind each. stages: CSG and NSG, and that it is to go there. */
static void
login_step(struct conn *c, uint8_t stages, const char *keys, size_t length, char *answer,
	   size_t room)
{
	struct iscsi_state *i = load_iscsi(c);
	uint8_t pdu[BHS + 1024] = { 0x40 | LOGIN, 0x80 | stages };
	uint8_t bhs[BHS];
	size_t got;

	put_be24(pdu + 5, (uint32_t)length);
	/* ISID: random, so that connections are sessions of their own. */
	pdu[8] = 0x80;
	put_be32(pdu + 10, (uint32_t)getpid() << 8 | (uint8_t)load_fd(c));
	put_be32(pdu + 16, 1);
	put_be32(pdu + 24, i->cmd_sn);
	put_be32(pdu + 28, i->exp_stat_sn);
	memcpy(pdu + BHS, keys, length);
	send_all(load_fd(c), pdu, BHS + ((length + 3) & ~(size_t)3));
	got = get_pdu(load_fd(c), bhs, answer, room - 1);
	answer[got] = '\0';
	if ((bhs[0] & 0x3f) != LOGIN_RESPONSE || bhs[36] != 0)
		errx(1, "login: status %02x%02x", bhs[36], bhs[37]);
	i->exp_stat_sn = get_be32(bhs + 24) + 1;
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
	struct iscsi_state *i = load_iscsi(c);

	memset(bhs, 0, BHS);
	bhs[0] = COMMAND;
	bhs[1] = 0x80 | flags | 1 /* simple */;
	bhs[9] = i->lun;
	put_be32(bhs + 16, tag);
	put_be32(bhs + 20, expected);
	put_be32(bhs + 24, i->cmd_sn++);
	put_be32(bhs + 28, i->exp_stat_sn);
}

/* READ CAPACITY(16); until the unit attentions are through. */
static uint64_t
read_size(struct conn *c)
{
	struct iscsi_state *i = load_iscsi(c);

	for (unsigned try = 0; try < 8; try++) {
		uint8_t bhs[BHS], data[512];

		command_head(c, bhs, 0x40, 2, 32);
		bhs[32] = 0x9e;
		bhs[33] = 0x10;
		bhs[45] = 32;
		send_all(load_fd(c), bhs, BHS);
		get_pdu(load_fd(c), bhs, (char *)data, sizeof(data));
		if ((bhs[0] & 0x3f) == DATA_IN && (bhs[1] & 1) == 0)
			get_pdu(load_fd(c), bhs, NULL, 0);
		i->exp_stat_sn = get_be32(bhs + 24) + 1;
		if (bhs[3] != 0)
			continue;
		i->block = get_be32(data + 8);
		return (get_be64(data) + 1) * i->block;
	}
	errx(1, "the unit is not ready");
}

/* rest: "/IQN/LUN" */
static uint64_t
iscsi_open(struct conn *c, const char *rest)
{
	struct iscsi_state *i = load_iscsi(c);
	char name[256], keys[1024], answer[8192];
	unsigned lun;
	int n;

	if (sscanf(rest, "/%255[^/]/%u", name, &lun) != 2 || lun > 255)
		errx(2, "%s: expected iscsi://HOST:PORT/IQN/LUN", rest);
	*i = (struct iscsi_state){ .cmd_sn = 1, .lun = (uint8_t)lun };
	n = snprintf(keys, sizeof(keys),
		     "InitiatorName=iqn.2026-11.org.platter:load%cSessionType=Normal%c"
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
	i->burst = answered(answer, sizeof(answer) - 1, "MaxRecvDataSegmentLength", 8192);
	i->immediate = answered(answer, sizeof(answer) - 1, "FirstBurstLength", 8192);
	if (i->immediate > i->burst)
		i->immediate = i->burst;
	return read_size(c);
}

/* ---- load ------------------------------------------------------------------------ */

static void
iscsi_issue(struct conn *c, struct slot *s)
{
	static const uint8_t flags[] = { 0x40, 0x20, 0 }, opcodes[] = { 0x28, 0x2a, 0x35 };
	struct iscsi_state *i = load_iscsi(c);
	uint8_t *head = s->heads[0];
	bool flush = s->kind == LOAD_FLUSH;
	uint32_t immediate = bs < i->immediate ? (uint32_t)bs : i->immediate;

	if (bs % i->block != 0)
		errx(2, "--bs is a number of blocks of %u bytes", i->block);
	command_head(c, head, flags[s->kind], s->number, flush ? 0 : (uint32_t)bs);
	head[32] = opcodes[s->kind];
	if (!flush) {
		head[33] = s->kind == LOAD_WRITE && by_fua ? 0x08 : 0;
		put_be32(head + 34, (uint32_t)(s->offset / i->block));
		put_be16(head + 39, (uint16_t)(bs / i->block));
	}
	load_add(c, head, BHS);
	if (s->kind == LOAD_WRITE) {
		put_be24(head + 5, immediate);
		load_add(c, payload, immediate);
	}
}

/* A sequence of Data-Out. */
static void
send_data(struct conn *c, struct slot *s, const uint8_t *r2t)
{
	struct iscsi_state *i = load_iscsi(c);
	uint32_t offset = get_be32(r2t + 40), end = offset + get_be32(r2t + 44);

	if (end > bs || end <= offset)
		errx(1, "the target asks for what there is not");
	for (unsigned n = 0; offset < end; n++) {
		uint32_t length = end - offset < i->burst ? end - offset : i->burst;
		uint8_t *bhs = s->heads[1 + n];

		if (n == SLOT_PARTS)
			errx(1, "the target wants its data in too many pieces");
		memset(bhs, 0, BHS);
		bhs[0] = DATA_OUT;
		bhs[1] = offset + length == end ? 0x80 : 0;
		put_be24(bhs + 5, length);
		memcpy(bhs + 8, r2t + 8, 16); /* LUN and tags */
		put_be32(bhs + 28, i->exp_stat_sn);
		put_be32(bhs + 36, n);
		put_be32(bhs + 40, offset);
		load_add(c, bhs, BHS);
		load_add(c, payload + offset, length);
		offset += length;
	}
}

static size_t
iscsi_take(struct conn *c, const uint8_t *bhs, size_t length, uint64_t time)
{
	struct iscsi_state *i = load_iscsi(c);
	char text[64];
	struct slot *s;

	if (length < BHS)
		return 0;
	load_skip(c, (get_be24(bhs + 5) + 3) & ~(size_t)3);
	switch (bhs[0] & 0x3f) {
	case R2T: send_data(c, load_slot(c, get_be32(bhs + 16)), bhs); return BHS;
	case DATA_IN:
		if ((bhs[1] & 1) == 0)
			return BHS;
		/* fallthrough */
	case RESPONSE:
		s = load_slot(c, get_be32(bhs + 16));
		i->exp_stat_sn = get_be32(bhs + 24) + 1;
		snprintf(text, sizeof(text), "status %02x, response %02x", bhs[3], bhs[2]);
		load_replied(c, s,
			     bhs[3] != 0 || ((bhs[0] & 0x3f) == RESPONSE && bhs[2] != 0) ? text
											 : NULL,
			     time);
		return BHS;
	case NOP_IN: return BHS;
	default: errx(1, "the target sent a PDU 0x%02x", bhs[0]);
	}
}

/* A logout; what it answers is not waited for. */
static void
iscsi_end(struct conn *c)
{
	struct iscsi_state *i = load_iscsi(c);
	uint8_t *bhs = i->farewell;

	bhs[0] = 0x40 | 0x06;
	bhs[1] = 0x80;
	put_be32(bhs + 16, 3);
	put_be32(bhs + 24, i->cmd_sn);
	put_be32(bhs + 28, i->exp_stat_sn);
	load_add(c, bhs, BHS);
}

const struct protocol protocol_iscsi = {
	.name = "iscsi",
	.open = iscsi_open,
	.issue = iscsi_issue,
	.take = iscsi_take,
	.end = iscsi_end,
};
