/* capacity.c - READ CAPACITY: how many blocks there are, and of what size. */
#include "block.h"
#include "handlers.h"

/*
 * Without PMI ("partial medium indicator") the LBA means nothing and has to be 0; with it, the
 * answer is the last block after LBA before which there is no delay: the last of all.
 */
static bool
check_pmi(struct scsi_command *cmd, bool pmi, uint64_t lba)
{
	if (pmi && !scsi_lu_in_range(cmd->lu, lba, 0))
		scsi_fail(cmd, scsi_lba_out_of_range(lba));
	else if (!pmi && lba != 0)
		scsi_fail(cmd, scsi_invalid_field(2, -1));
	else
		return true;
	return false;
}

bool
scsi_plan_capacity(struct scsi_command *cmd)
{
	cmd->wanted_in = 8; /* there is no ALLOCATION LENGTH */
	return true;
}

void
scsi_read_capacity_10(struct scsi_command *cmd)
{
	uint64_t last = cmd->lu->block_count - 1;
	uint8_t *to;

	if (!check_pmi(cmd, (cmd->cdb[8] & 0x01) != 0, get_be32(cmd->cdb + 2)))
		return;
	to = scsi_answer(cmd);
	/* FFFFFFFFh: READ CAPACITY (16) is to be asked. */
	put_be32(to, last < UINT32_MAX ? (uint32_t)last : UINT32_MAX);
	put_be32(to + 4, cmd->lu->block_size);
	scsi_answered(cmd, 8);
}

/* LOGICAL BLOCKS PER PHYSICAL BLOCK EXPONENT */
static uint8_t
exponent(const struct scsi_lu *lu)
{
	uint8_t n = 0;

	while ((uint64_t)lu->block_size << n < lu->physical_block)
		n++;
	return n;
}

void
scsi_read_capacity_16(struct scsi_command *cmd)
{
	const struct scsi_lu *lu = cmd->lu;
	uint8_t *to;

	if (!check_pmi(cmd, (cmd->cdb[14] & 0x01) != 0, get_be64(cmd->cdb + 2)))
		return;
	to = scsi_answer(cmd);
	put_be64(to, lu->block_count - 1);
	put_be32(to + 8, lu->block_size);
	to[13] = exponent(lu);
	/* LOWEST ALIGNED LOGICAL BLOCK ADDRESS is 0. */
	if (scsi_lu_thin(lu))
		to[14] = 0x80 | (scsi_lu_unmaps_to_zeroes(lu) ? 0x40 : 0); /* LBPME, LBPRZ */
	scsi_answered(cmd, 32);
}
