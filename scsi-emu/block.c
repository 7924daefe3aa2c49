/*
 * block.c - where a command on blocks goes, how much it moves, and which block cannot be read.
 *
 * Sources: SBC-3, "Commands for direct access block devices", and SBC-4 for WRITE ATOMIC.
 */
#include "block.h"

#include "handlers.h"
#include "opcode.h"

#include <assert.h>
#include <errno.h>

static uint64_t
min(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

uint64_t
scsi_difference(const uint8_t *a, const uint8_t *b, uint64_t length)
{
	uint64_t at = 0;

	if (memcmp(a, b, length) == 0)
		return length;
	while (a[at] == b[at])
		at++;
	return at;
}

/* ---- the CDB --------------------------------------------------------------------- */

struct place {
	uint8_t lba_at, lba_size;
	uint8_t blocks_at, blocks_size;
};

static const struct place places[] = {
	[6] = { 1, 3, 4, 1 }, /* of 21 bits: the row's mask has refused the others */
	[10] = { 2, 4, 7, 2 },
	[12] = { 2, 4, 6, 4 },
	[16] = { 2, 8, 10, 4 },
};
static const struct place compare_place = { 2, 8, 13, 1 };
static const struct place atomic_place = { 2, 8, 12, 2 };

static const struct place *
place_of(const struct scsi_command *cmd)
{
	switch (cmd->cdb[0]) {
	case SCSI_COMPARE_AND_WRITE: return &compare_place;
	case SCSI_WRITE_ATOMIC_16: return &atomic_place;
	}
	assert(cmd->row->length < sizeof places / sizeof places[0] &&
	       places[cmd->row->length].lba_size != 0);
	return &places[cmd->row->length];
}

static uint64_t
number(const uint8_t *p, unsigned size)
{
	uint64_t n = 0;

	while (size-- > 0)
		n = n << 8 | *p++;
	return n;
}

static uint64_t
lba_field(const struct scsi_command *cmd)
{
	const struct place *at = place_of(cmd);

	return number(cmd->cdb + at->lba_at, at->lba_size);
}

static uint64_t
blocks_field(const struct scsi_command *cmd)
{
	const struct place *at = place_of(cmd);
	uint64_t blocks = number(cmd->cdb + at->blocks_at, at->blocks_size);

	return cmd->row->length == 6 && blocks == 0 ? 256 : blocks;
}

/* INFORMATION is the first address that is not there. */
static bool
in_range(struct scsi_command *cmd)
{
	uint64_t end = cmd->lu->block_count;

	if (scsi_lu_in_range(cmd->lu, cmd->lba, cmd->blocks))
		return true;
	scsi_fail(cmd, scsi_lba_out_of_range(cmd->lba < end ? end : cmd->lba));
	return false;
}

static bool
below_limit(struct scsi_command *cmd, uint64_t limit)
{
	if (cmd->blocks <= limit)
		return true;
	scsi_fail(cmd, scsi_invalid_field(place_of(cmd)->blocks_at, -1));
	return false;
}

bool
scsi_take_lba(struct scsi_command *cmd)
{
	cmd->lba = lba_field(cmd);
	cmd->blocks = 0;
	return in_range(cmd);
}

static bool
take_range(struct scsi_command *cmd, uint64_t limit)
{
	cmd->lba = lba_field(cmd);
	cmd->blocks = blocks_field(cmd);
	return in_range(cmd) && below_limit(cmd, limit);
}

/* The same, where 0 blocks are all that follow. */
static bool
take_range_to_end(struct scsi_command *cmd, uint64_t limit)
{
	if (blocks_field(cmd) != 0)
		return take_range(cmd, limit);
	if (!scsi_take_lba(cmd))
		return false;
	cmd->blocks = cmd->lu->block_count - cmd->lba;
	return below_limit(cmd, limit);
}

static void
take_fua(struct scsi_command *cmd)
{
	if (cmd->row->length > 6 && (cmd->cdb[1] & 0x08) != 0)
		cmd->flags = PL_FUA;
}

/* ---- plans ----------------------------------------------------------------------- */

bool
scsi_plan_read(struct scsi_command *cmd)
{
	if (!take_range(cmd, cmd->lu->limits.transfer))
		return false;
	take_fua(cmd);
	cmd->wanted_in = scsi_length(cmd);
	return true;
}

static bool
plan_data_out(struct scsi_command *cmd, uint64_t limit)
{
	if (!take_range(cmd, limit))
		return false;
	take_fua(cmd);
	cmd->wanted_out = scsi_length(cmd);
	return true;
}

bool
scsi_plan_write(struct scsi_command *cmd)
{
	return plan_data_out(cmd, cmd->lu->limits.transfer);
}

/* Within one piece of that size, which begins at a multiple of it: ATOMIC ALIGNMENT. */
bool
scsi_plan_write_atomic(struct scsi_command *cmd)
{
	uint64_t limit = cmd->lu->limits.atomic;

	if (!plan_data_out(cmd, limit))
		return false;
	if (limit == 0 || cmd->lba % limit == 0)
		return true;
	scsi_fail(cmd, scsi_invalid_field(atomic_place.lba_at, -1));
	return false;
}

/* BYTCHK that is none of those in `allowed`, a bit for each. */
static bool
check_bytchk(struct scsi_command *cmd, unsigned allowed)
{
	unsigned bytchk = cmd->cdb[1] >> 1 & 3;

	if ((allowed & 1u << bytchk) != 0)
		return true;
	scsi_fail(cmd, scsi_invalid_field(1, 2));
	return false;
}

/* Commands for which fewer bytes than they say, or more, mean nothing: these are blocks and no
 * parameter list, so the CDB is what does not fit. */
static bool
check_data_out(struct scsi_command *cmd)
{
	if (cmd->expected_out == cmd->wanted_out)
		return true;
	scsi_fail(cmd, scsi_invalid_field(place_of(cmd)->blocks_at, -1));
	return false;
}

bool
scsi_plan_verify(struct scsi_command *cmd)
{
	unsigned bytchk = cmd->cdb[1] >> 1 & 3;

	if (!check_bytchk(cmd, 1 << 0 | 1 << 1 | 1 << 3) ||
	    !take_range(cmd, cmd->lu->limits.transfer))
		return false;
	cmd->flags = PL_FUA;
	cmd->scratch = min(scsi_length(cmd), SCSI_PIECE);
	if (bytchk == 1)
		cmd->wanted_out = scsi_length(cmd);
	if (bytchk != 3 || cmd->blocks == 0)
		return true;
	cmd->wanted_out = scsi_block_size(cmd);
	return check_data_out(cmd);
}

bool
scsi_plan_write_and_verify(struct scsi_command *cmd)
{
	if (!check_bytchk(cmd, 1 << 0 | 1 << 1) || !take_range(cmd, cmd->lu->limits.transfer))
		return false;
	cmd->flags = PL_FUA;
	cmd->wanted_out = scsi_length(cmd);
	cmd->scratch = min(scsi_length(cmd), SCSI_PIECE);
	return true;
}

bool
scsi_plan_compare(struct scsi_command *cmd)
{
	if (!take_range(cmd, cmd->lu->limits.compare_and_write))
		return false;
	take_fua(cmd);
	cmd->wanted_out = 2 * scsi_length(cmd);
	cmd->scratch = scsi_length(cmd);
	return check_data_out(cmd);
}

bool
scsi_plan_or_write(struct scsi_command *cmd)
{
	uint64_t limit = PL_MODIFY_MAX / scsi_block_size(cmd);

	if (!plan_data_out(cmd, min(cmd->lu->limits.transfer, limit)))
		return false;
	cmd->scratch = scsi_length(cmd);
	return true;
}

bool
scsi_plan_range(struct scsi_command *cmd)
{
	return take_range_to_end(cmd, UINT64_MAX);
}

bool
scsi_plan_pre_fetch(struct scsi_command *cmd)
{
	uint64_t limit = cmd->lu->limits.prefetch;

	if (blocks_field(cmd) != 0)
		return take_range(cmd, limit);
	if (!take_range_to_end(cmd, UINT64_MAX))
		return false;
	cmd->blocks = min(cmd->blocks, limit); /* nobody asked for more by number */
	return true;
}

bool
scsi_plan_same(struct scsi_command *cmd)
{
	bool no_data = cmd->row->length == 16 && (cmd->cdb[1] & 0x01) != 0; /* NDOB */

	if ((cmd->cdb[1] & 0x08) != 0 && !scsi_lu_thin(cmd->lu)) { /* UNMAP */
		scsi_fail(cmd, scsi_invalid_field(1, 3));
		return false;
	}
	if (!take_range_to_end(cmd, cmd->lu->limits.write_same))
		return false;
	if (!no_data) {
		cmd->wanted_out = scsi_block_size(cmd);
		cmd->scratch = min(scsi_length(cmd), SCSI_PIECE);
	}
	return check_data_out(cmd);
}

/* ---- a block that cannot be read ------------------------------------------------- */

/*
 * The range that failed is halved: what can be read of it is, and the first block that cannot is
 * in the rest. The last one is read once more by itself: if that works, the error has gone, and
 * nobody can say where it was.
 */
enum { FIND_OFFSET, FIND_LENGTH, FIND_FIRST, FIND_END }; /* steps: bytes, bytes, blocks, blocks */

static uint64_t
find_middle(const struct scsi_command *cmd)
{
	uint64_t first = cmd->step[FIND_FIRST], blocks = cmd->step[FIND_END] - first;

	return first + (blocks > 1 ? blocks / 2 : 1);
}

static void
find_at(struct scsi_command *cmd, uint64_t block)
{
	uint64_t size = scsi_block_size(cmd);

	if (cmd->wanted_in > 0)
		cmd->data_in = block * size; /* these were read */
	scsi_fail(cmd, scsi_read_error_at(cmd->step[FIND_OFFSET] / size + block));
}

static void find_next(struct scsi_command *cmd);

static void
find_read(struct scsi_command *cmd, int error)
{
	bool last = cmd->step[FIND_END] - cmd->step[FIND_FIRST] == 1;

	if (error != 0 && error != -EIO) {
		scsi_fail_errno(cmd, error);
	} else if (last && error != 0) {
		find_at(cmd, cmd->step[FIND_FIRST]);
	} else if (last) {
		scsi_fail(cmd, scsi_read_error());
	} else {
		cmd->step[error != 0 ? FIND_END : FIND_FIRST] = find_middle(cmd);
		find_next(cmd);
	}
}

static void
find_next(struct scsi_command *cmd)
{
	uint64_t size = scsi_block_size(cmd);
	uint64_t start = cmd->step[FIND_FIRST] * size;
	uint64_t end = min(find_middle(cmd) * size, cmd->step[FIND_LENGTH]);

	scsi_request(cmd, PL_READ, cmd->flags, cmd->step[FIND_OFFSET] + start, end - start,
		     scsi_scratch(cmd) + start, find_read);
}

void
scsi_read_failed(struct scsi_command *cmd, int error, uint64_t offset, uint64_t length)
{
	uint64_t size = scsi_block_size(cmd);
	/* Then it is no block that failed. */
	bool sync = (cmd->flags & PL_FUA) != 0 && pl_export_failed(cmd->lu->export);

	if (error != -EIO || sync) {
		scsi_fail_errno(cmd, error);
		return;
	}
	cmd->step[FIND_OFFSET] = offset;
	cmd->step[FIND_LENGTH] = length;
	cmd->step[FIND_FIRST] = 0;
	cmd->step[FIND_END] = (length + size - 1) / size;
	find_next(cmd);
}
