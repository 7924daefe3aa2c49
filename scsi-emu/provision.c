/*
 * provision.c - UNMAP, WRITE SAME, GET LBA STATUS: what is stored, and what only reads as zeroes.
 *
 * Blocks are unmapped by PL_ZERO where the image can have holes: the edges of a hole are written,
 * so that what was unmapped reads as zeroes however it lies (LBPRZ). A device that can discard and
 * would have to be written full of zeroes gets PL_TRIM, and promises nothing. A descriptor is one
 * request; of WRITE SAME, zeroes are one, and another pattern is written in pieces.
 *
 * What can go wrong: a descriptor that is out of range, or more than the limits say: all are
 * checked before any is unmapped. Without room for what the edges of a hole cost, or on a failing
 * medium, what was done stays done, as the standard has it.
 */
#include "block.h"
#include "handlers.h"

#include <assert.h>

/* ---- UNMAP ------------------------------------------------------------------------ */

#define UNMAP_HEADER     8
#define UNMAP_DESCRIPTOR 16

enum { UNMAP_NEXT, UNMAP_COUNT }; /* steps: descriptors */

struct unmap {
	uint64_t lba, blocks;
};

static size_t
descriptor_at(unsigned i)
{
	return UNMAP_HEADER + (size_t)i * UNMAP_DESCRIPTOR;
}

static struct unmap
descriptor(const struct scsi_command *cmd, unsigned i)
{
	const uint8_t *p = (const uint8_t *)cmd->memory + descriptor_at(i);

	return (struct unmap){ get_be64(p), get_be32(p + 8) };
}

/* None of a nothing is out of range up to the very end. */
static bool
unmap_in_range(const struct scsi_lu *lu, struct unmap u)
{
	return u.lba <= lu->block_count && u.blocks <= lu->block_count - u.lba;
}

static bool
unmap_check(struct scsi_command *cmd, unsigned count)
{
	const struct scsi_lu *lu = cmd->lu;
	uint64_t sum = 0;

	if (count > lu->limits.unmap_descriptors) {
		scsi_fail(cmd, scsi_invalid_parameter(2, -1));
		return false;
	}
	for (unsigned i = 0; i < count; i++) {
		struct unmap u = descriptor(cmd, i);

		sum += u.blocks;
		if (!unmap_in_range(lu, u))
			scsi_fail(cmd, scsi_lba_out_of_range(
					       u.lba < lu->block_count ? lu->block_count : u.lba));
		else if (sum > lu->limits.unmap)
			scsi_fail(cmd, scsi_invalid_parameter((unsigned)descriptor_at(i) + 8, -1));
		else
			continue;
		return false;
	}
	return true;
}

static void
unmapped(struct scsi_command *cmd, int error)
{
	struct unmap u;

	if (error != 0) {
		scsi_fail_errno(cmd, error);
	} else if (cmd->step[UNMAP_NEXT] == cmd->step[UNMAP_COUNT]) {
		scsi_good(cmd);
	} else {
		u = descriptor(cmd, (unsigned)cmd->step[UNMAP_NEXT]++);
		scsi_request(cmd, scsi_lu_unmaps_to_zeroes(cmd->lu) ? PL_ZERO : PL_TRIM, 0,
			     scsi_lu_offset(cmd->lu, u.lba), u.blocks * scsi_block_size(cmd), NULL,
			     unmapped);
	}
}

/* UNMAP DATA LENGTH says nothing that the other lengths do not; a descriptor of which the list's
 * length has only a part is none. */
void
scsi_unmap(struct scsi_command *cmd)
{
	uint64_t length = cmd->transfer_out;
	unsigned count;

	if (cmd->wanted_out == 0) {
		scsi_good(cmd);
		return;
	}
	if (length < UNMAP_HEADER) {
		scsi_fail(cmd, scsi_parameter_list_length_error());
		return;
	}
	count = get_be16((const uint8_t *)cmd->memory + 2) / UNMAP_DESCRIPTOR;
	if (descriptor_at(count) > length) {
		scsi_fail(cmd, scsi_parameter_list_length_error());
		return;
	}
	if (!unmap_check(cmd, count))
		return;
	cmd->step[UNMAP_NEXT] = 0;
	cmd->step[UNMAP_COUNT] = count;
	unmapped(cmd, 0);
}

/* ---- WRITE SAME ------------------------------------------------------------------- */

enum { SAME_DONE }; /* step: bytes */

static bool
is_zero(const uint8_t *p, uint64_t length)
{
	return p[0] == 0 && memcmp(p, p + 1, length - 1) == 0;
}

static void
zeroed(struct scsi_command *cmd, int error)
{
	if (error != 0)
		scsi_fail_errno(cmd, error);
	else
		scsi_good(cmd);
}

static void
pattern_written(struct scsi_command *cmd, int error)
{
	uint64_t done = cmd->step[SAME_DONE], length;

	if (error != 0) {
		scsi_fail_errno(cmd, error);
	} else if (done == scsi_length(cmd)) {
		scsi_good(cmd);
	} else {
		length = scsi_length(cmd) - done;
		if (length > SCSI_PIECE)
			length = SCSI_PIECE;
		cmd->step[SAME_DONE] = done + length;
		scsi_request(cmd, PL_WRITE, 0, scsi_lu_offset(cmd->lu, cmd->lba) + done, length,
			     scsi_scratch(cmd), pattern_written);
	}
}

void
scsi_write_same(struct scsi_command *cmd)
{
	bool unmap = (cmd->cdb[1] & 0x08) != 0;
	uint64_t block = scsi_block_size(cmd);

	/* NDOB, "no data-out buffer": zeroes. Without UNMAP the blocks are to be stored. */
	if (cmd->transfer_out == 0 || is_zero(cmd->memory, block)) {
		scsi_request(cmd, PL_ZERO, unmap ? 0 : PL_NO_HOLE,
			     scsi_lu_offset(cmd->lu, cmd->lba), scsi_length(cmd), NULL, zeroed);
		return;
	}
	for (uint64_t at = 0; at < cmd->scratch; at += block)
		memcpy(scsi_scratch(cmd) + at, cmd->memory, block);
	cmd->step[SAME_DONE] = 0;
	pattern_written(cmd, 0);
}

/* ---- GET LBA STATUS --------------------------------------------------------------- */

#define STATUS_HEADER     8
#define STATUS_DESCRIPTOR 16
#define STATUS_EXTENTS    64 /* how far one answer looks */

enum status { MAPPED, DEALLOCATED };

/* Descriptors that follow each other. */
struct statuses {
	uint8_t *next, *end;
	uint64_t lba; /* of the next one */
};

bool
scsi_plan_lba_status(struct scsi_command *cmd)
{
	if (!scsi_take_lba(cmd))
		return false;
	cmd->scratch = STATUS_EXTENTS * sizeof(struct pl_extent);
	return scsi_plan_allocation(cmd);
}

/* Blocks up to `to`. A descriptor holds 32 bits of them; what there is no room for is left out. */
static void
put_status(struct statuses *s, uint64_t to, enum status status)
{
	while (s->lba < to && s->next + STATUS_DESCRIPTOR <= s->end) {
		uint64_t blocks = to - s->lba < UINT32_MAX ? to - s->lba : UINT32_MAX;

		put_be64(s->next, s->lba);
		put_be32(s->next + 8, (uint32_t)blocks);
		s->next[12] = (uint8_t)status;
		s->next += STATUS_DESCRIPTOR;
		s->lba += blocks;
	}
}

/* A block is deallocated where all of it is a hole. Extents that do not fill a block tell of one.
 */
static void
put_extents(const struct scsi_command *cmd, struct statuses *s)
{
	const struct pl_extents *x = &cmd->extents;
	uint64_t size = scsi_block_size(cmd), last = cmd->lu->block_count;
	uint64_t from = scsi_lu_offset(cmd->lu, cmd->lba), to = from, start, end;
	const unsigned hole = PL_EXTENT_HOLE | PL_EXTENT_ZERO;

	for (unsigned i = 0; i < x->count; i++) {
		to = from + x->list[i].length;
		start = (from + size - 1) / size;
		end = to / size < last ? to / size : last;
		if ((x->list[i].flags & hole) == hole && start < end) {
			put_status(s, start, MAPPED);
			put_status(s, end, DEALLOCATED);
		}
		from = to;
	}
	end = to / size < last ? to / size : last;
	put_status(s, end > cmd->lba ? end : cmd->lba + 1, MAPPED);
}

static void
extents_found(struct scsi_command *cmd, int error)
{
	uint8_t *to;
	struct statuses s;

	if (error != 0) {
		scsi_fail_errno(cmd, error);
		return;
	}
	to = scsi_answer(cmd);
	s = (struct statuses){ .next = to + STATUS_HEADER,
			       .end = to + SCSI_ANSWER_MAX,
			       .lba = cmd->lba };
	/* Fully provisioned, there is nothing but mapped blocks. */
	if (scsi_lu_thin(cmd->lu))
		put_extents(cmd, &s);
	else
		put_status(&s, cmd->lu->block_count, MAPPED);
	put_be32(to, (uint32_t)(s.next - to - 4)); /* PARAMETER DATA LENGTH */
	scsi_answered(cmd, (size_t)(s.next - to));
}

void
scsi_get_lba_status(struct scsi_command *cmd)
{
	uint64_t start = scsi_lu_offset(cmd->lu, cmd->lba);
	uint64_t end = scsi_lu_offset(cmd->lu, cmd->lu->block_count);

	if (!scsi_lu_thin(cmd->lu)) {
		extents_found(cmd, 0);
		return;
	}
	cmd->extents = (struct pl_extents){ .list = (struct pl_extent *)scsi_scratch(cmd),
					    .max = STATUS_EXTENTS };
	scsi_request(cmd, PL_EXTENTS, 0, start, end - start, NULL, extents_found);
}
