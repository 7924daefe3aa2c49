/*
 * rw.c - READ, WRITE, WRITE ATOMIC, PRE-FETCH: one request to the core each.
 *
 * FUA is a flag, and the core's affair. That nobody sees a WRITE ATOMIC half done is order.c's.
 */
#include "block.h"
#include "handlers.h"

void
scsi_test_unit_ready(struct scsi_command *cmd)
{
	scsi_good(cmd); /* the gates have said all that there is */
}

/* The initiator may be ready for less than it asks for; the rest is not read. */
static uint64_t
read_length(const struct scsi_command *cmd)
{
	return cmd->wanted_in < cmd->expected_in ? cmd->wanted_in : cmd->expected_in;
}

static void
read_done(struct scsi_command *cmd, int error)
{
	if (error != 0) {
		scsi_read_failed(cmd, error, scsi_lu_offset(cmd->lu, cmd->lba), read_length(cmd));
		return;
	}
	cmd->data_in = cmd->wanted_in;
	scsi_good(cmd);
}

void
scsi_read(struct scsi_command *cmd)
{
	uint64_t length = read_length(cmd);

	if (length == 0)
		read_done(cmd, 0);
	else
		scsi_request(cmd, PL_READ, cmd->flags, scsi_lu_offset(cmd->lu, cmd->lba), length,
			     cmd->memory, read_done);
}

static void
changed(struct scsi_command *cmd, int error)
{
	if (error != 0)
		scsi_fail_errno(cmd, error);
	else
		scsi_good(cmd);
}

void
scsi_write(struct scsi_command *cmd)
{
	uint64_t length = scsi_whole_blocks(cmd);

	if (length == 0)
		scsi_good(cmd);
	else
		scsi_request(cmd, PL_WRITE, cmd->flags, scsi_lu_offset(cmd->lu, cmd->lba), length,
			     cmd->memory, changed);
}

/*
 * SBC-3 has CONDITION MET where all of it fits into the cache. It goes into the system's page
 * cache, which promises nothing, so the answer is GOOD.
 */
void
scsi_pre_fetch(struct scsi_command *cmd)
{
	if ((cmd->lu->capabilities & PL_CAP_CACHE) == 0)
		scsi_good(cmd);
	else
		scsi_request(cmd, PL_CACHE, 0, scsi_lu_offset(cmd->lu, cmd->lba), scsi_length(cmd),
			     NULL, changed);
}
