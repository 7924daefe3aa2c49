/*
 * cdb.c - whatever two initiators send, each command is answered once and nothing is overrun.
 *
 * Input: commands to a target with three small units, from two nexuses, any number at a time; their
 * data comes at once or later; task management, and logout, between them. Memory has exactly the
 * size that the target asks for, so that the address sanitizer sees what goes beyond.
 */
#include "fuzz.h"

#include "loop.h"
#include "opcode.h"
#include "scsi-emu.h"
#include "spec.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

enum { UNITS = 3, NEXUSES = 2, FLIGHT = 8, LIST = 64 };

struct task {
	struct scsi_command cmd;
	unsigned nexus;
	bool sent, asked, given;
	uint8_t fill;
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

static void
make_unit(unsigned i)
{
	static const char *const disk[][2] = { { "driver", "memory" },
					       { "size", "300000" },
					       { 0 } };
	static const char *const options[UNITS][3][2] = {
		{ { "block-size", "512" } },
		{ { "block-size", "4096" }, { "removable", "on" } },
		{ { "max-io-size", "64k" }, { "dpofua", "off" } },
	};
	struct pl_params *params = params_of(disk), *unit_params = params_of(options[i]);
	struct scsi_unit unit = { .params = unit_params, .name = "unit", .uuid = { (uint8_t)i } };

	assert(pl_export_open(params, i == 2 ? PL_OPEN_READ_ONLY : 0, &exports[i], NULL) == 0);
	assert(pl_channel_open(exports[i], loop, &channels[i], NULL) == 0);
	unit.export = exports[i];
	unit.channel = channels[i];
	unit.capabilities = pl_export_capabilities(exports[i]);
	assert(scsi_lu_new(target, &unit, &units[i], NULL) == 0);
	pl_params_free(params);
	pl_params_free(unit_params);
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

/* The first bytes from the input, for parameter lists; the rest are alike. */
static void
give(struct fuzz_input *in, struct task *t, int error)
{
	uint64_t length = t->cmd.memory_length;
	uint8_t *memory = error == 0 ? malloc(length) : NULL;

	assert(error != 0 || memory != NULL);
	for (uint64_t i = 0; error == 0 && i < length; i++)
		memory[i] = i < LIST ? (uint8_t)fuzz_next(in, 256) : t->fill;
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

/* A row that its mask lets through, or bytes. */
static void
make_cdb(struct fuzz_input *in, struct scsi_command *cmd)
{
	const struct scsi_row *row = scsi_row_at((unsigned)fuzz_next(in, scsi_row_count()));
	bool plain = fuzz_next(in, 16) == 0;

	cmd->cdb_length = plain ? (unsigned)fuzz_next(in, SCSI_CDB_MAX + 1) : row->length;
	for (unsigned i = 0; i < cmd->cdb_length; i++)
		cmd->cdb[i] = (uint8_t)(fuzz_next(in, 256) & (plain ? 0xff : row->usage[i]));
	if (plain)
		return;
	cmd->cdb[0] = row->opcode;
	if (row->has_service_action)
		cmd->cdb[1] = (uint8_t)((cmd->cdb[1] & 0xe0) | row->service_action);
}

static void
send_command(struct fuzz_input *in, struct task *t)
{
	bool later = fuzz_next(in, 8) == 0;

	memset(t, 0, sizeof *t);
	make_cdb(in, &t->cmd);
	t->nexus = (unsigned)fuzz_next(in, NEXUSES);
	t->cmd.lun[1] = (uint8_t)fuzz_next(in, UNITS + 1);
	t->cmd.attribute = (unsigned)fuzz_next(in, 4);
	switch (fuzz_next(in, 4)) {
	case 0: break;
	case 1: t->cmd.expected_in = (uint32_t)fuzz_next(in, 20000); break;
	case 2: t->cmd.expected_out = (uint32_t)fuzz_next(in, 20000); break;
	case 3:
		t->cmd.expected_in = (uint32_t)fuzz_next(in, 20000);
		t->cmd.expected_out = (uint32_t)fuzz_next(in, 20000);
	}
	t->fill = (uint8_t)fuzz_next(in, 256);
	t->cmd.on_buffer = asked;
	t->cmd.on_done = done;
	t->sent = true;
	scsi_command_submit(nexuses[t->nexus], &t->cmd);
	if (t->sent && t->asked && !later)
		give(in, t, 0);
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
	}
	assert(scsi_target_new(&target, "iqn.2025-01.test:target", loop, NULL) == 0);
	for (unsigned i = 0; i < UNITS; i++)
		make_unit(i);
	for (unsigned i = 0; i < NEXUSES; i++)
		log_in(i);
}

static void
close_all(void)
{
	for (unsigned i = 0; i < NEXUSES; i++)
		log_out(i);
	for (unsigned i = 0; i < UNITS; i++) {
		scsi_lu_remove(units[i], is_gone, NULL);
		wait_gone();
		pl_channel_close(channels[i]);
		pl_export_close(exports[i]);
	}
	scsi_target_free(target);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct fuzz_input in = { data, size };

	open_all();
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
		default:
			if (!t->sent)
				send_command(&in, t);
		}
	}
	close_all();
	return 0;
}
