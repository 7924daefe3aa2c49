/*
 * cdb.c - whatever two initiators send, each command is answered once and nothing is overrun.
 *
 * Input: whether unit attentions have been told before; commands to a target with three small
 * units, from two nexuses, any number at a time; their data comes at once or later; task
 * management, and logout, between them. Memory has exactly the size that the target asks for, so
 * that the address sanitizer sees what goes beyond.
 */
#include "dry.h"
#include "fuzz.h"

#include "bytes.h"
#include "loop.h"
#include "lu.h"
#include "opcode.h"
#include "registrations.h"
#include "scsi-emu.h"
#include "spec.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define INPUT 512 /* bytes of what libFuzzer makes */

enum { UNITS = 3, NEXUSES = 2, FLIGHT = 8, LIST = 160 };

struct task {
	struct scsi_command cmd;
	unsigned nexus;
	bool sent, asked, given;
	uint8_t fill;
	uint8_t list[LIST]; /* how its data begins */
	size_t length;
};

static struct pl_loop *loop;
static struct scsi_target *target;
static struct pl_export *exports[UNITS];
static struct pl_channel *channels[UNITS];
static struct scsi_lu *units[UNITS];
static struct scsi_nexus *nexuses[NEXUSES];
static struct task tasks[FLIGHT];
static unsigned gone;

/* ---- the target --------------------------------------------------------------------- */

static struct pl_params *
params_of(const char *const words[][2])
{
	struct pl_params *params = pl_params_new();

	for (; (*words)[0] != NULL; words++)
		assert(pl_params_add(params, (*words)[0], (*words)[1], NULL) == 0);
	return params;
}

static void
be_silent(enum pl_log_level level, const char *line)
{
	(void)level;
	(void)line;
}

/* Once for all inputs. */
static void
open_disk(unsigned i)
{
	static const char *const disk[][2] = { { "driver", "memory" },
					       { "size", "300000" },
					       { 0 } };
	struct pl_params *params = params_of(disk);

	assert(pl_export_open(params, i == 2 ? PL_OPEN_READ_ONLY : 0, &exports[i], NULL) == 0);
	assert(pl_channel_open(exports[i], loop, &channels[i], NULL) == 0);
	pl_params_free(params);
}

/* ---- what a unit has to have kept ------------------------------------------------- */

static struct keeping {
	struct pl_work work;
	struct scsi_lu *lu;
	char *text; /* that was kept last, or NULL */
	bool busy;
	unsigned count;
} keeping[UNITS];

static void
kept(struct pl_work *work)
{
	struct keeping *k = (struct keeping *)work;

	k->busy = false;
	scsi_lu_saved(k->lu, ++k->count % 4 == 0 ? -ENOSPC : 0);
}

static void
keep(void *user, struct scsi_lu *lu, const char *text)
{
	struct keeping *k = user;
	struct scsi_registrations *r;

	assert(!k->busy);
	assert(scsi_registrations_parse(text, "unit", &r, NULL) == 0);
	free(r);
	free(k->text);
	k->text = strdup(text);
	k->lu = lu;
	k->busy = true;
	k->work.run = kept;
	pl_loop_post(loop, &k->work);
}

static void
make_unit(unsigned i)
{
	static const char *const options[UNITS][3][2] = {
		{ { "block-size", "512" } },
		{ { "block-size", "4096" }, { "removable", "on" } },
		{ { "max-io-size", "64k" }, { "dpofua", "off" } },
	};
	struct pl_params *params = params_of(options[i]);
	struct scsi_unit unit = { .params = params, .name = "unit", .uuid = { (uint8_t)i } };

	free(keeping[i].text);
	keeping[i] = (struct keeping){ .text = NULL };
	unit.save = keep;
	unit.user = &keeping[i];
	unit.export = exports[i];
	unit.channel = channels[i];
	unit.capabilities = pl_export_capabilities(exports[i]);
	assert(scsi_lu_new(target, &unit, &units[i], NULL) == 0);
	pl_params_free(params);
}

static void
log_in(unsigned i)
{
	const uint8_t isid[6] = { 0x80, 0, 0, 0, 0, (uint8_t)i };

	assert(scsi_nexus_new(target, "iqn.2025-01.test:fuzz", isid, &nexuses[i], NULL) == 0);
	for (unsigned lun = 0; lun < UNITS; lun++)
		scsi_nexus_map(nexuses[i], lun, units[lun]);
}

static void
is_gone(void *user)
{
	(void)user;
	gone++;
}

static void
wait_gone(void)
{
	while (gone == 0)
		pl_loop_turn(loop);
	gone = 0;
}

static void
log_out(unsigned i)
{
	scsi_nexus_end(nexuses[i], is_gone, NULL);
	wait_gone();
	for (unsigned t = 0; t < FLIGHT; t++)
		assert(!tasks[t].sent || tasks[t].nexus != i);
}

/* ---- commands ------------------------------------------------------------------------ */

/* What the list does not tell is from the input, or all alike. */
static void
give(struct fuzz_input *in, struct task *t, int error)
{
	uint64_t length = t->cmd.memory_length;
	uint8_t *memory = error == 0 ? malloc(length) : NULL;

	assert(error != 0 || memory != NULL);
	if (t->length == 0) {
		t->length = in->size < LIST ? in->size : LIST;
		memcpy(t->list, in->data, t->length);
		in->data += t->length;
		in->size -= t->length;
	}
	if (error == 0) {
		memset(memory, t->fill, length);
		memcpy(memory, t->list, t->length < length ? t->length : length);
	}
	t->cmd.memory = memory;
	t->given = true;
	scsi_command_go(&t->cmd, error);
}

static void
asked(struct scsi_command *cmd)
{
	struct task *t = (struct task *)cmd;

	assert(t->sent && !t->asked && cmd->memory_length > 0);
	assert(cmd->transfer_out <= cmd->expected_out && cmd->transfer_out <= cmd->memory_length);
	t->asked = true;
}

static void
done(struct scsi_command *cmd)
{
	struct task *t = (struct task *)cmd;

	assert(t->sent);
	assert(cmd->transfer_in <= cmd->expected_in && cmd->transfer_in <= cmd->memory_length);
	if (cmd->outcome == SCSI_DONE)
		assert((cmd->status == SCSI_CHECK_CONDITION) == (cmd->sense_length > 0));
	assert(cmd->sense_length <= SCSI_SENSE_MAX);
	if (t->given)
		free(cmd->memory);
	t->sent = false;
}

/* Of a few, so that the same one comes again; now and then another. */
static uint64_t
few(struct fuzz_input *in, uint64_t of)
{
	uint64_t n = fuzz_next(in, of + 1);

	return n < of ? n : fuzz_next(in, UINT64_C(1) << 32) << 16;
}

static void
expect_list(struct task *t, size_t length)
{
	t->length = length;
	t->cmd.expected_out = (uint32_t)length;
}

#define PORT_ID 44 /* bytes of the one below */

/* SPC-4 "TransportID identifiers": of one of the nexuses, or of their device, or nearly. */
static void
put_port(struct fuzz_input *in, uint8_t *id)
{
	static const char port[] = "iqn.2025-01.test:fuzz,i,0x800000000000";

	id[0] = 0x45;
	id[3] = PORT_ID - 4;
	memcpy(id + 4, port, sizeof port);
	switch (fuzz_next(in, 4)) {
	case 0: break;
	case 1: id[4 + sizeof port - 2]++; break;
	case 2:
		id[0] = 0x05;
		*strchr((char *)id + 4, ',') = '\0';
		break;
	case 3: id[fuzz_next(in, PORT_ID)] ^= (uint8_t)fuzz_next(in, 256);
	}
}

/* SPC-4 "Basic PERSISTENT RESERVE OUT parameter list", and that of REGISTER AND MOVE. Most keys are
 * the same, so that they are the right ones. */
static void
make_reserve_out(struct fuzz_input *in, struct task *t)
{
	static const uint8_t types[] = { 1, 3, 5, 6, 7, 8 };
	static const uint8_t keys[][2] = { { 1, 1 }, { 0, 1 }, { 1, 0 }, { 1, 2 },
					   { 2, 1 }, { 2, 2 }, { 0, 2 }, { 2, 0 } };
	unsigned action = (unsigned)few(in, 8), type = (unsigned)fuzz_next(in, sizeof types);
	const uint8_t *key = keys[fuzz_next(in, sizeof keys / sizeof *keys)];
	unsigned flags = (unsigned)fuzz_next(in, 16);
	uint8_t *p = t->list;
	size_t length = 24;

	put_be64(put_be64(p, key[0]), key[1]);
	if (action == 7) {
		p[17] = flags & 3;
		p[19] = 1;
		p[23] = PORT_ID;
		put_port(in, p + length);
		length += PORT_ID;
	} else {
		p[20] = (uint8_t)flags;
		if ((flags & 8) != 0) {
			p[27] = PORT_ID;
			put_port(in, p + 28);
			length += 4 + PORT_ID;
		}
	}
	t->cmd.cdb[0] = SCSI_PERSISTENT_RESERVE_OUT;
	t->cmd.cdb[1] = (uint8_t)action;
	t->cmd.cdb[2] = types[type];
	t->cmd.cdb_length = 10;
	put_be32(t->cmd.cdb + 5, (uint32_t)length);
	expect_list(t, length);
}

/* SPC-4 "EXTENDED COPY(LID1) command": two descriptors, one segment or two. */
static void
make_copy(struct fuzz_input *in, struct task *t)
{
	uint8_t *p = t->list + 16;
	unsigned segments = 1 + (unsigned)fuzz_next(in, 2);
	bool bytes = fuzz_next(in, 2) != 0;
	size_t length = 16 + 2 * 32 + segments * (bytes ? 32 : 28);

	for (unsigned i = 0; i < 2; i++, p += 32) {
		const struct scsi_lu *lu = units[fuzz_next(in, UNITS)];

		p[0] = 0xe4;
		p[4] = 1;
		p[5] = 3;
		p[7] = (uint8_t)lu->identity.naa_length;
		memcpy(p + 8, lu->identity.naa, p[7]);
		p[28] = (uint8_t)(fuzz_next(in, 2) << 2);
		put_be24(p + 29, lu->block_size);
	}
	for (unsigned i = 0; i < segments; i++, p += bytes ? 32 : 28) {
		p[0] = bytes ? 0x0a : 0x02;
		p[1] = (uint8_t)fuzz_next(in, 4);
		p[3] = bytes ? 28 : 24;
		p[5] = (uint8_t)few(in, 2);
		p[7] = (uint8_t)few(in, 2);
		if (bytes)
			put_be32(p + 8, (uint32_t)few(in, 70000));
		else
			put_be16(p + 10, (uint16_t)few(in, 60));
		put_be64(put_be64(p + 12, few(in, 600)), few(in, 600));
		if (bytes)
			put_be16(put_be16(p + 28, (uint16_t)fuzz_next(in, 600)),
				 (uint16_t)fuzz_next(in, 600));
	}
	t->list[0] = (uint8_t)fuzz_next(in, 3);
	t->list[1] = (uint8_t)(fuzz_next(in, 4) << 3);
	put_be16(t->list + 2, 2 * 32);
	put_be32(t->list + 8, (uint32_t)(length - 16 - 2 * 32));
	t->list[fuzz_next(in, LIST)] ^= (uint8_t)few(in, 1);
	t->cmd.cdb[0] = SCSI_EXTENDED_COPY;
	t->cmd.cdb_length = 16;
	put_be32(t->cmd.cdb + 10, (uint32_t)length);
	expect_list(t, length);
}

/* Whole blocks from a place that there is. */
static void
make_blocks(struct fuzz_input *in, struct task *t)
{
	static const uint8_t opcodes[] = { SCSI_COMPARE_AND_WRITE,   SCSI_ORWRITE_16,
					   SCSI_WRITE_AND_VERIFY_16, SCSI_VERIFY_16,
					   SCSI_WRITE_SAME_16,       SCSI_WRITE_16,
					   SCSI_WRITE_ATOMIC_16 };
	uint8_t *cdb = t->cmd.cdb;
	unsigned blocks = (unsigned)fuzz_next(in, 5);

	cdb[0] = opcodes[fuzz_next(in, sizeof opcodes)];
	cdb[1] = (uint8_t)(fuzz_next(in, 16) << 1);
	put_be64(cdb + 2, few(in, 70));
	cdb[13] = (uint8_t)blocks;
	t->cmd.cdb_length = 16;
	t->cmd.expected_out = (uint32_t)((blocks + fuzz_next(in, 2) * blocks) *
					 (fuzz_next(in, 2) != 0 ? 4096 : 512));
	t->length = (size_t)fuzz_next(in, LIST);
	t->fill = (uint8_t)fuzz_next(in, 2);
	memset(t->list, t->fill, t->length);
}

/* SPC-4 "Mode parameters" */
static void
make_mode_select(struct fuzz_input *in, struct task *t)
{
	static const uint8_t pages[][2] = {
		{ 0x08, 0x12 }, { 0x0a, 0x0a }, { 0x01, 0x0a }, { 0x1c, 0x0a }, { 0x02, 0x0e }
	};
	const uint8_t *page = pages[fuzz_next(in, sizeof pages / sizeof *pages)];
	size_t length = 4 + 2 + page[1];

	t->list[4] = page[0];
	t->list[5] = page[1];
	for (unsigned i = 0; i < 3; i++)
		t->list[4 + fuzz_next(in, 20)] ^= (uint8_t)fuzz_next(in, 256);
	t->cmd.cdb[0] = SCSI_MODE_SELECT_6;
	t->cmd.cdb[1] = 0x10;
	t->cmd.cdb[4] = (uint8_t)length;
	t->cmd.cdb_length = 6;
	expect_list(t, length);
}

/* SBC-3 "UNMAP parameter list" */
static void
make_unmap(struct fuzz_input *in, struct task *t)
{
	unsigned count = (unsigned)fuzz_next(in, 4);

	put_be16(put_be16(t->list, (uint16_t)(6 + 16 * count)), (uint16_t)(16 * count));
	for (unsigned i = 0; i < count; i++)
		put_be32(put_be64(t->list + 8 + 16 * i, few(in, 600)), (uint32_t)few(in, 600));
	t->list[fuzz_next(in, 8)] ^= (uint8_t)few(in, 1);
	t->cmd.cdb[0] = SCSI_UNMAP;
	t->cmd.cdb[8] = (uint8_t)(8 + 16 * count);
	t->cmd.cdb_length = 10;
	expect_list(t, 8 + 16 * count);
}

/* A row that its mask lets through, or bytes. */
static void
make_any(struct fuzz_input *in, struct task *t)
{
	const struct scsi_row *row = scsi_row_at((unsigned)fuzz_next(in, scsi_row_count()));
	bool plain = fuzz_next(in, 16) == 0;
	struct scsi_command *cmd = &t->cmd;

	cmd->cdb_length = plain ? (unsigned)fuzz_next(in, SCSI_CDB_MAX + 1) : row->length;
	for (unsigned i = 0; i < cmd->cdb_length; i++)
		cmd->cdb[i] = (uint8_t)(fuzz_next(in, 256) & (plain ? 0xff : row->usage[i]));
	if (!plain) {
		cmd->cdb[0] = row->opcode;
		if (row->has_service_action)
			cmd->cdb[1] = (uint8_t)((cmd->cdb[1] & 0xe0) | row->service_action);
	}
	switch (fuzz_next(in, 4)) {
	case 0: break;
	case 1: cmd->expected_in = (uint32_t)fuzz_next(in, 20000); break;
	case 2: cmd->expected_out = (uint32_t)fuzz_next(in, 20000); break;
	case 3:
		cmd->expected_in = (uint32_t)fuzz_next(in, 20000);
		cmd->expected_out = (uint32_t)fuzz_next(in, 20000);
	}
}

static void
send_command(struct fuzz_input *in, struct task *t)
{
	bool later = fuzz_next(in, 8) == 0;

	memset(t, 0, sizeof *t);
	t->fill = (uint8_t)fuzz_next(in, 256);
	switch (fuzz_next(in, 16)) {
	case 0: make_reserve_out(in, t); break;
	case 1: make_copy(in, t); break;
	case 2: make_blocks(in, t); break;
	case 3: make_mode_select(in, t); break;
	case 4: make_unmap(in, t); break;
	default: make_any(in, t); break;
	}
	t->nexus = (unsigned)fuzz_next(in, NEXUSES);
	t->cmd.lun[1] = (uint8_t)fuzz_next(in, UNITS + 1);
	t->cmd.attribute = (unsigned)fuzz_next(in, 4);
	t->cmd.on_buffer = asked;
	t->cmd.on_done = done;
	t->sent = true;
	scsi_command_submit(nexuses[t->nexus], &t->cmd);
	if (t->sent && t->asked && !later)
		give(in, t, 0);
}

/* So that the first command that is sent goes further. */
static void
clear_attentions(void)
{
	for (unsigned i = 0; i < NEXUSES * UNITS; i++) {
		struct task *t = &tasks[0];

		memset(t, 0, sizeof *t);
		t->cmd.cdb_length = 6; /* TEST UNIT READY */
		t->cmd.lun[1] = (uint8_t)(i % UNITS);
		t->cmd.on_done = done;
		t->sent = true;
		scsi_command_submit(nexuses[i / UNITS], &t->cmd);
		while (t->sent)
			pl_loop_turn(loop);
	}
}

static void
answered(struct scsi_management *m)
{
	(void)m;
	gone++;
}

static void
manage(struct fuzz_input *in)
{
	unsigned of = (unsigned)fuzz_next(in, FLIGHT);
	struct scsi_management m = { .function = (unsigned)fuzz_next(in, 12),
				     .lun = { 0, (uint8_t)fuzz_next(in, UNITS + 1) },
				     .on_done = answered };
	unsigned nexus = (unsigned)fuzz_next(in, NEXUSES);

	if (tasks[of].sent && tasks[of].nexus == nexus)
		m.task = &tasks[of].cmd;
	scsi_manage(nexuses[nexus], &m);
	wait_gone();
}

/* ---- an input ------------------------------------------------------------------------ */

static void
open_all(void)
{
	if (loop == NULL) {
		pl_log_to(be_silent);
		assert(pl_loop_new(&loop, NULL) == 0);
		for (unsigned i = 0; i < UNITS; i++)
			open_disk(i);
	}
	assert(scsi_target_new(&target, "iqn.2025-01.test:target", loop, NULL) == 0);
	for (unsigned i = 0; i < UNITS; i++)
		make_unit(i);
	for (unsigned i = 0; i < NEXUSES; i++)
		log_in(i);
}

static void
emptied(struct pl_request *req, int error)
{
	assert(error == 0);
	(void)req;
	gone++;
}

/* As the next input is to find it. */
static void
empty_disk(unsigned i)
{
	struct pl_request req = { .op = PL_TRIM, .length = 300000, .on_done = emptied };

	if ((pl_export_capabilities(exports[i]) & PL_CAP_WRITE) == 0)
		return;
	pl_request_submit(channels[i], &req);
	wait_gone();
}

static void
close_all(void)
{
	for (unsigned i = 0; i < NEXUSES; i++)
		log_out(i);
	for (unsigned i = 0; i < UNITS; i++) {
		scsi_lu_remove(units[i], is_gone, NULL);
		wait_gone();
		empty_disk(i);
	}
	scsi_target_free(target);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input in = { data, size };

	if (size > INPUT)
		return -1;
	open_all();
	if (fuzz_next(&in, 2) != 0)
		clear_attentions();
	while (in.size > 0) {
		struct task *t = &tasks[fuzz_next(&in, FLIGHT)];

		switch (fuzz_next(&in, 16)) {
		case 0: manage(&in); break;
		case 1:
			log_out(t->nexus);
			log_in(t->nexus);
			break;
		case 2:
			if (t->sent && t->asked && !t->given)
				give(&in, t, fuzz_next(&in, 4) == 0 ? -EIO : 0);
			break;
		case 15:
			if (!dry_is_idle(loop))
				pl_loop_turn(loop);
			break;
		default:
			if (!t->sent)
				send_command(&in, t);
		}
	}
	close_all();
	return 0;
}
