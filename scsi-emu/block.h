/*
 * block.h - what commands on blocks share: their memory, and finding what cannot be read.
 */
#ifndef SCSI_BLOCK_H
#define SCSI_BLOCK_H

#include "command.h"

/* How much of a large range is in memory at a time; a multiple of any block size. */
#define SCSI_PIECE (256u * 1024)

/* What the plan asked for, behind what the initiator sent; of a READ, all of its memory. */
static inline uint8_t *
scsi_scratch(const struct scsi_command *cmd)
{
	return (uint8_t *)cmd->memory + cmd->transfer_out;
}

/* The data-out that came, in bytes, without a block of which only a part came. */
static inline uint64_t
scsi_whole_blocks(const struct scsi_command *cmd)
{
	return cmd->transfer_out - cmd->transfer_out % scsi_block_size(cmd);
}

static inline uint64_t
scsi_length(const struct scsi_command *cmd)
{
	return cmd->blocks * scsi_block_size(cmd);
}

/* Where a and b differ first; length: nowhere. */
uint64_t scsi_difference(const uint8_t *a, const uint8_t *b, uint64_t length);

/* Reads LBA (and the number of blocks, for which 0 may mean "to the end") and refuses what is not
 * in the unit. */
bool scsi_take_lba(struct scsi_command *cmd);

/* A read of [offset, offset + length) into scsi_scratch(cmd) with cmd->flags failed: finds the
 * first block that cannot be read, and ends the command. */
void scsi_read_failed(struct scsi_command *cmd, int error, uint64_t offset, uint64_t length);

#endif
