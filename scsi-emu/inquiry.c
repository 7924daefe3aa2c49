/*
 * inquiry.c - who a unit is: INQUIRY, its VPD pages, REQUEST SENSE, and the target port groups.
 *
 * Sources: SPC-4 "INQUIRY command", "Vital product data parameters", "REQUEST SENSE command",
 * "REPORT TARGET PORT GROUPS command"; SBC-3 "Vital product data parameters for direct access
 * block devices", and SBC-4 for atomic writes.
 */
#include "command.h"
#include "handlers.h"
#include "lu.h"
#include "nexus.h"
#include "target.h"

#include <assert.h>
#include <stdio.h>

/* ---- designators ----------------------------------------------------------------- */

enum code_set { CODE_BINARY = 1, CODE_ASCII = 2, CODE_UTF8 = 3 };
enum association { OF_UNIT = 0, OF_PORT = 1, OF_TARGET = 2 };
enum designator {
	DESIGNATOR_T10 = 1,
	DESIGNATOR_NAA = 3,
	DESIGNATOR_PORT = 4,  /* relative target port */
	DESIGNATOR_GROUP = 5, /* target port group */
	DESIGNATOR_NAME = 8,  /* SCSI name string */
};

#define PROTOCOL_ISCSI 5

/* Returns what comes after it. */
static uint8_t *
put_designator(uint8_t *p, enum code_set set, enum association of, enum designator type,
	       const void *designator, size_t length)
{
	assert(length <= UINT8_MAX);
	*p++ = (uint8_t)(set | (of == OF_UNIT ? 0 : PROTOCOL_ISCSI << 4));
	*p++ = (uint8_t)(type | of << 4 | (of == OF_UNIT ? 0 : 0x80)); /* PIV */
	*p++ = 0;
	*p++ = (uint8_t)length;
	memcpy(p, designator, length);
	return p + length;
}

/* With a NUL at least, and to a multiple of four. */
static uint8_t *
put_name(uint8_t *p, enum association of, const char *name, const char *suffix)
{
	char text[256] = { 0 };
	int n = snprintf(text, sizeof text, "%s%s", name, suffix);

	assert(n > 0 && (size_t)n < sizeof text - 4);
	return put_designator(p, CODE_UTF8, of, DESIGNATOR_NAME, text, (size_t)(n / 4 + 1) * 4);
}

static uint8_t *
put_port_name(uint8_t *p, const struct scsi_target *target)
{
	char suffix[sizeof ",t,0x0001"];

	snprintf(suffix, sizeof suffix, ",t,0x%04x", SCSI_TARGET_PORT_GROUP);
	return put_name(p, OF_PORT, target->name, suffix);
}

/* ---- VPD pages ------------------------------------------------------------------- */

/* Each writes what comes after the page's header of four bytes, and returns its end. */
static uint8_t *vpd_pages(const struct scsi_lu *lu, uint8_t *p);

static uint8_t *
vpd_serial(const struct scsi_lu *lu, uint8_t *p)
{
	size_t length = strlen(lu->identity.serial);

	memcpy(p, lu->identity.serial, length);
	return p + length;
}

static uint8_t *
vpd_identification(const struct scsi_lu *lu, uint8_t *p)
{
	const struct scsi_identity *id = &lu->identity;
	uint8_t port[4] = { 0, 0, 0, SCSI_TARGET_PORT },
		group[4] = { 0, 0, 0, SCSI_TARGET_PORT_GROUP };
	char t10[8 + 16 + sizeof id->serial];

	p = put_designator(p, CODE_BINARY, OF_UNIT, DESIGNATOR_NAA, id->naa, id->naa_length);
	snprintf(t10, sizeof t10, "%s%s%s", id->vendor, id->product, id->serial);
	p = put_designator(p, CODE_ASCII, OF_UNIT, DESIGNATOR_T10, t10, strlen(t10));
	p = put_designator(p, CODE_BINARY, OF_PORT, DESIGNATOR_PORT, port, sizeof port);
	p = put_designator(p, CODE_BINARY, OF_PORT, DESIGNATOR_GROUP, group, sizeof group);
	p = put_port_name(p, lu->target);
	return put_name(p, OF_TARGET, lu->target->name, "");
}

/* Nobody listens for management commands. */
static uint8_t *
vpd_management(const struct scsi_lu *lu, uint8_t *p)
{
	(void)lu;
	return p;
}

static uint8_t *
vpd_extended(const struct scsi_lu *lu, uint8_t *p)
{
	p[1] = 0x07;                          /* HEADSUP, ORDSUP, SIMPSUP */
	p[2] = scsi_lu_cached(lu) ? 0x01 : 0; /* V_SUP */
	p[3] = 0x01;                          /* LUICLR */
	p[9] = SCSI_SENSE_MAX;                /* MAXIMUM SUPPORTED SENSE DATA LENGTH */
	return p + 60;
}

/* One policy for every page and subpage: shared. */
static uint8_t *
vpd_mode_policy(const struct scsi_lu *lu, uint8_t *p)
{
	(void)lu;
	p[0] = 0x3f;
	p[1] = 0xff;
	return p + 4;
}

static uint8_t *
vpd_ports(const struct scsi_lu *lu, uint8_t *p)
{
	uint8_t *end;

	put_be16(p + 2, SCSI_TARGET_PORT);
	end = put_port_name(p + 12, lu->target);
	put_be16(p + 10, (uint16_t)(end - (p + 12)));
	return end;
}

static uint32_t
blocks32(uint64_t blocks)
{
	return blocks < UINT32_MAX ? (uint32_t)blocks : UINT32_MAX;
}

/* SBC-4 "Block Limits VPD page"; p[0] is its byte 4. */
static uint8_t *
vpd_block_limits(const struct scsi_lu *lu, uint8_t *p)
{
	const struct scsi_limits *l = &lu->limits;

	p[1] = (uint8_t)l->compare_and_write;
	put_be16(p + 2, (uint16_t)(lu->physical_block / lu->block_size));
	put_be32(p + 4, blocks32(l->transfer));
	put_be32(p + 8, blocks32(l->optimal_transfer));
	put_be32(p + 12, blocks32(l->prefetch));
	put_be32(p + 16, blocks32(l->unmap));
	put_be32(p + 20, l->unmap_descriptors);
	put_be32(p + 24, blocks32(l->unmap_granularity));
	put_be32(p + 28, l->unmap_granularity > 0 ? 1u << 31 : 0); /* UGAVALID, 0 */
	put_be64(p + 32, l->write_same);
	/* Within one piece of that size: the alignment is the same, any length up to it will do. */
	put_be32(p + 40, blocks32(l->atomic));
	put_be32(p + 44, blocks32(l->atomic));
	return p + 60;
}

static uint8_t *
vpd_block_characteristics(const struct scsi_lu *lu, uint8_t *p)
{
	put_be16(p, (uint16_t)lu->identity.rotation_rate);
	p[4] = 0x03; /* FUAB: FUA as SBC-3 has it; VBULS: unmapped blocks are compared, too */
	return p + 60;
}

static uint8_t *
vpd_provisioning(const struct scsi_lu *lu, uint8_t *p)
{
	if (scsi_lu_thin(lu)) {
		p[1] = 0xe0; /* LBPU, LBPWS, LBPWS10 */
		if (scsi_lu_unmaps_to_zeroes(lu))
			p[1] |= 0x04; /* LBPRZ */
		p[2] = 0x02;          /* thin provisioned */
	}
	return p + 4;
}

/* Ascending. */
static const struct vpd_page {
	uint8_t code;
	uint8_t *(*put)(const struct scsi_lu *lu, uint8_t *p);
} vpd[] = {
	{ 0x00, vpd_pages },        { 0x80, vpd_serial },       { 0x83, vpd_identification },
	{ 0x85, vpd_management },   { 0x86, vpd_extended },     { 0x87, vpd_mode_policy },
	{ 0x88, vpd_ports },        { 0xb0, vpd_block_limits }, { 0xb1, vpd_block_characteristics },
	{ 0xb2, vpd_provisioning },
};

/* Of a unit that is not there: this one alone. */
static uint8_t *
vpd_pages(const struct scsi_lu *lu, uint8_t *p)
{
	for (unsigned i = 0; i < (lu == NULL ? 1 : sizeof vpd / sizeof *vpd); i++)
		*p++ = vpd[i].code;
	return p;
}

/* ---- INQUIRY --------------------------------------------------------------------- */

#define NOT_THERE 0x7f /* PERIPHERAL QUALIFIER 3, type 1Fh */

static void
inquiry_vpd(struct scsi_command *cmd)
{
	const struct vpd_page *page = NULL;
	uint8_t *to;
	size_t length;

	for (unsigned i = 0; i < sizeof vpd / sizeof *vpd; i++) {
		if (vpd[i].code == cmd->cdb[2])
			page = &vpd[i];
	}
	if (page == NULL || (cmd->lu == NULL && page != &vpd[0])) {
		scsi_fail(cmd, scsi_invalid_field(2, 7));
		return;
	}
	to = scsi_answer(cmd);
	to[0] = cmd->lu == NULL ? NOT_THERE : 0;
	to[1] = page->code;
	length = (size_t)(page->put(cmd->lu, to + 4) - to);
	put_be16(to + 2, (uint16_t)(length - 4));
	scsi_answered(cmd, length);
}

/* SPC-4 "Version descriptor values", without year of publication */
static const uint16_t versions[] = {
	0x00a0, /* SAM-5 */
	0x0960, /* iSCSI */
	0x0460, /* SPC-4 */
	0x04c0, /* SBC-3 */
};

#define INQUIRY_LENGTH 96

void
scsi_inquiry(struct scsi_command *cmd)
{
	const struct scsi_lu *lu = cmd->lu;
	uint8_t *to, *version;

	if ((cmd->cdb[1] & 0x01) != 0) { /* EVPD */
		inquiry_vpd(cmd);
		return;
	}
	if (cmd->cdb[2] != 0) {
		scsi_fail(cmd, scsi_invalid_field(2, 7));
		return;
	}
	to = scsi_answer(cmd);
	to[0] = lu == NULL ? NOT_THERE : 0;
	to[1] = lu != NULL && lu->identity.removable ? 0x80 : 0;
	to[2] = 0x06; /* SPC-4 */
	to[3] = 0x12; /* HISUP, RESPONSE DATA FORMAT 2 */
	to[4] = INQUIRY_LENGTH - 5;
	to[5] = 0x18; /* TPGS 1: implicit; 3PC */
	to[7] = 0x02; /* CMDQUE */
	memset(to + 8, ' ', 8 + 16 + 4);
	if (lu != NULL) {
		memcpy(to + 8, lu->identity.vendor, 8);
		memcpy(to + 16, lu->identity.product, 16);
		memcpy(to + 32, lu->identity.revision, 4);
	}
	version = to + 58;
	for (unsigned i = 0; i < sizeof versions / sizeof *versions; i++)
		version = put_be16(version, versions[i]);
	scsi_answered(cmd, INQUIRY_LENGTH);
}

/* ---- REQUEST SENSE --------------------------------------------------------------- */

/* What is to be told goes with it; else how things are. */
static struct scsi_sense
pending_sense(struct scsi_command *cmd)
{
	const struct scsi_lu *lu = cmd->lu;
	struct scsi_itl *itl;
	unsigned asc;

	if (lu == NULL)
		return scsi_lun_not_supported();
	itl = scsi_nexus_of_lu(cmd->nexus, lu);
	if (itl != NULL && itl->has_deferred) {
		itl->has_deferred = false;
		return itl->deferred;
	}
	if (itl != NULL && scsi_attention_take(itl, &asc))
		return scsi_unit_attention(asc);
	if (lu->ejected)
		return scsi_no_medium();
	if (lu->stopped)
		return scsi_stopped();
	return scsi_sense_of(SCSI_NO_SENSE, 0);
}

void
scsi_request_sense(struct scsi_command *cmd)
{
	bool descriptor = (cmd->cdb[1] & 0x01) != 0; /* DESC */
	struct scsi_sense sense = pending_sense(cmd);

	scsi_answered(cmd, scsi_sense_put(&sense, descriptor, scsi_answer(cmd)));
}

/* ---- REPORT TARGET PORT GROUPS --------------------------------------------------- */

/* One group, one port, always active. */
void
scsi_report_target_port_groups(struct scsi_command *cmd)
{
	unsigned format = cmd->cdb[1] >> 5;
	uint8_t *to, *p;

	if (format > 1) {
		scsi_fail(cmd, scsi_invalid_field(1, 7));
		return;
	}
	to = scsi_answer(cmd);
	p = to + 4;
	if (format == 1) { /* extended header */
		p[0] = 0x10;
		p += 4;
	}
	p[0] = 0x00; /* active/optimized */
	p[1] = 0x01; /* AO_SUP */
	put_be16(p + 2, SCSI_TARGET_PORT_GROUP);
	p[7] = 1; /* TARGET PORT COUNT */
	put_be16(p + 10, SCSI_TARGET_PORT);
	p += 12;
	put_be32(to, (uint32_t)(p - to - 4));
	scsi_answered(cmd, (size_t)(p - to));
}
