/*
 * verify.c - VERIFY, and WRITE AND VERIFY.
 *
 * The good path: piece by piece the medium is read into scratch, with FUA, so that the core makes
 * stable what was written and passes by its caches; and compared with what the initiator sent, as
 * BYTCHK says. WRITE AND VERIFY writes first, plainly: the read's FUA makes it stable.
 *
 * What can go wrong: a block cannot be read, which scsi_read_failed() finds; or it reads otherwise,
 * and the sense data say where.
 */
#include "block.h"
#include "handlers.h"

enum { VERIFY_DONE, VERIFY_LENGTH }; /* steps, in bytes */

static unsigned
bytchk_of(const struct scsi_command *cmd)
{
	return cmd->cdb[1] >> 1 & 3;
}

static uint64_t
piece_length(const struct scsi_command *cmd)
{
	uint64_t rest = cmd->step[VERIFY_LENGTH] - cmd->step[VERIFY_DONE];

	return rest < SCSI_PIECE ? rest : SCSI_PIECE;
}

/* Where the piece that was read is not as it should be; length: nowhere. */
static uint64_t
compare(const struct scsi_command *cmd, uint64_t length)
{
	const uint8_t *got = scsi_scratch(cmd), *sent = cmd->memory;
	uint64_t block = scsi_block_size(cmd), at;

	switch (bytchk_of(cmd)) {
	case 1: return scsi_difference(got, sent + cmd->step[VERIFY_DONE], length);
	case 3: break;
	default: return length;
	}
	for (uint64_t start = 0; start < length; start += block) {
		at = scsi_difference(got + start, sent, block);
		if (at != block)
			return start + at;
	}
	return length;
}

static void verify_next(struct scsi_command *cmd);

static void
verify_read(struct scsi_command *cmd, int error)
{
	uint64_t done = cmd->step[VERIFY_DONE], length = piece_length(cmd), at;

	if (error != 0) {
		scsi_read_failed(cmd, error, scsi_lu_offset(cmd->lu, cmd->lba) + done, length);
		return;
	}
	at = compare(cmd, length);
	if (at != length) {
		scsi_fail(cmd, scsi_miscompare(done + at));
		return;
	}
	cmd->step[VERIFY_DONE] += length;
	verify_next(cmd);
}

static void
verify_next(struct scsi_command *cmd)
{
	uint64_t done = cmd->step[VERIFY_DONE];

	if (done == cmd->step[VERIFY_LENGTH])
		scsi_good(cmd);
	else
		scsi_request(cmd, PL_READ, cmd->flags, scsi_lu_offset(cmd->lu, cmd->lba) + done,
			     piece_length(cmd), scsi_scratch(cmd), verify_read);
}

static void
verify_start(struct scsi_command *cmd, uint64_t length)
{
	cmd->step[VERIFY_DONE] = 0;
	cmd->step[VERIFY_LENGTH] = length;
	verify_next(cmd);
}

void
scsi_verify(struct scsi_command *cmd)
{
	verify_start(cmd, bytchk_of(cmd) == 1 ? scsi_whole_blocks(cmd) : scsi_length(cmd));
}

static void
written(struct scsi_command *cmd, int error)
{
	if (error != 0)
		scsi_fail_errno(cmd, error);
	else
		verify_start(cmd, scsi_whole_blocks(cmd));
}

void
scsi_write_and_verify(struct scsi_command *cmd)
{
	uint64_t length = scsi_whole_blocks(cmd);

	if (length == 0)
		scsi_good(cmd);
	else
		scsi_request(cmd, PL_WRITE, 0, scsi_lu_offset(cmd->lu, cmd->lba), length,
			     cmd->memory, written);
}
