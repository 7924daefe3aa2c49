/*
 * atomic.c - COMPARE AND WRITE, ORWRITE: read, change and write back, with nobody in between.
 *
 * Both are one PL_MODIFY: the core keeps every other change of the range away meanwhile, of this
 * unit and of whoever else has the export.
 */
#include "block.h"
#include "handlers.h"

static struct scsi_command *
command_of(struct pl_request *req)
{
	return (struct scsi_command *)((char *)req - offsetof(struct scsi_command, req));
}

static void
modify(struct scsi_command *cmd, uint64_t length, int (*how)(struct pl_request *req),
       void (*then)(struct scsi_command *cmd, int error))
{
	if (length == 0) {
		scsi_good(cmd);
		return;
	}
	cmd->req.modify = how;
	scsi_request(cmd, PL_MODIFY, cmd->flags, scsi_lu_offset(cmd->lu, cmd->lba), length,
		     scsi_scratch(cmd), then);
}

/* Data-out is what has to be there, and then what is to be. */
static int
compare(struct pl_request *req)
{
	const struct scsi_command *cmd = command_of(req);
	const uint8_t *sent = cmd->memory;
	uint64_t length = scsi_length(cmd);
	uint64_t at = scsi_difference(scsi_scratch(cmd), sent, length);

	if (at != length)
		return (int)at + 1;
	memcpy(scsi_scratch(cmd), sent + length, length);
	return 0;
}

static void
compared(struct scsi_command *cmd, int error)
{
	if (error > 0)
		scsi_fail(cmd, scsi_miscompare((uint64_t)error - 1));
	else if (error < 0)
		scsi_fail_errno(cmd, error);
	else
		scsi_good(cmd);
}

void
scsi_compare_and_write(struct scsi_command *cmd)
{
	modify(cmd, scsi_length(cmd), compare, compared);
}

static int
set_bits(struct pl_request *req)
{
	const struct scsi_command *cmd = command_of(req);
	const uint8_t *sent = cmd->memory;
	uint8_t *data = scsi_scratch(cmd);

	for (uint64_t i = 0; i < scsi_whole_blocks(cmd); i++)
		data[i] |= sent[i];
	return 0;
}

void
scsi_or_write(struct scsi_command *cmd)
{
	modify(cmd, scsi_whole_blocks(cmd), set_bits, compared);
}
