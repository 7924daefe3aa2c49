/*
 * copy.c - EXTENDED COPY (LID1) between units of the target, and RECEIVE COPY RESULTS.
 *
 * The good path: the list is checked as a whole, every segment with its units, ranges and rights;
 * then segment after segment is copied in pieces, each read into the command's memory and written
 * from there; how it went is held, if the list asks for that, until RECEIVE COPY RESULTS asks.
 *
 * Source and destination are looked for among the units that this nexus finds at a LUN, and
 * nowhere else: who knows a disk's name and may not see it cannot have it copied.
 *
 * What can go wrong: the list is refused, and nothing has been copied; a unit goes, is reserved or
 * write protected while a copy is under way, which is looked at before each piece; the core cannot
 * read or write. Then COPY ABORTED tells the segment, and those before it are done. When the
 * command is aborted no further piece is begun.
 *
 * Source: SPC-4 "EXTENDED COPY(LID1) command", "Third-party copy", "RECEIVE COPY STATUS(LID1)",
 * "RECEIVE COPY OPERATING PARAMETERS", "RECEIVE COPY FAILURE DETAILS(LID1)".
 */
#include "command.h"
#include "handlers.h"
#include "nexus.h"
#include "opcode.h"
#include "reserve.h"

#include <assert.h>

#define HEADER_LENGTH 16
#define CSCD_LENGTH   32 /* "copy source and copy destination", "target" in SPC-3 */

enum {
	CSCD_IDENTIFICATION = 0xe4,
	SEGMENT_BLOCKS = 0x02, /* block device to block device */
	SEGMENT_BYTES = 0x0a,  /* the same, with byte offsets */
};
#define SEGMENT_BLOCKS_LENGTH 28
#define SEGMENT_BYTES_LENGTH  32

/* LIST ID USAGE */
enum { USAGE_HOLD, USAGE_RESERVED, USAGE_DISCARD, USAGE_NONE };

/* Additional sense codes of SPC-4 that only copies have. */
enum {
	OPERATION_IN_PROGRESS = 0x0016,
	UNREACHABLE_TARGET = 0x0804,
	THIRD_PARTY_FAILURE = 0x0d01,
	TARGET_NOT_REACHABLE = 0x0d02,
	INCORRECT_DEVICE_TYPE = 0x0d03,
	TOO_MANY_TARGETS = 0x2606,
	UNSUPPORTED_TARGET_TYPE = 0x2607,
	TOO_MANY_SEGMENTS = 0x2608,
	UNSUPPORTED_SEGMENT_TYPE = 0x2609,
	INEXACT_SEGMENT = 0x260a,
	INLINE_DATA_TOO_LONG = 0x260b,
};

#define PIECE (256u * 1024)

struct segment {
	struct scsi_lu *from, *to;
	uint64_t source, destination; /* bytes */
	uint64_t length, padding;     /* bytes; zeroes after what is copied */
	bool backwards;               /* the destination overlaps what is still to be read */
};

/* In the command's memory, behind the list. */
struct copy {
	struct scsi_command *cmd;
	const uint8_t *list;
	size_t cscds, segments, end; /* offsets in the list: where they begin, and its end */
	uint8_t *buffer;             /* PIECE bytes, and a block of padding */
	uint16_t number;             /* of the segment under way */
	size_t at;                   /* where in the list it is */
	uint64_t done, total;        /* bytes: of it, and written of all */
	struct segment segment;      /* it, as the last piece found it */
	size_t piece;                /* bytes, under way */
	bool under_way;

	enum scsi_status status;
	struct scsi_sense sense;
};

#define BUFFER_ALIGNMENT 4096u
#define PADDING_MOST     4096u
#define COPY_SCRATCH     (2 * BUFFER_ALIGNMENT + PIECE + PADDING_MOST)

static_assert(sizeof(struct copy) <= BUFFER_ALIGNMENT, "it has its place before the buffer");

static struct copy *
copy_of(const struct scsi_command *cmd)
{
	uintptr_t p = (uintptr_t)cmd->memory + cmd->transfer_out;

	return (struct copy *)((p + _Alignof(struct copy) - 1) &
			       ~(uintptr_t)(_Alignof(struct copy) - 1));
}

static uint8_t *
buffer_of(struct copy *c)
{
	uintptr_t p = (uintptr_t)(c + 1);

	return (uint8_t *)((p + BUFFER_ALIGNMENT - 1) & ~(uintptr_t)(BUFFER_ALIGNMENT - 1));
}

/* ---- refusing -------------------------------------------------------------------- */

/* Returns false, for its callers' callers. */
static bool
refuse(struct copy *c, struct scsi_sense sense)
{
	c->status = SCSI_CHECK_CONDITION;
	c->sense = sense;
	return false;
}

static bool
refuse_at(struct copy *c, unsigned asc, size_t byte)
{
	struct scsi_sense sense = scsi_invalid_parameter((unsigned)byte, -1);

	sense.asc = (uint16_t)asc;
	return refuse(c, sense);
}

/* The segment that is looked at, or copied, fails. */
static bool
copy_aborted(struct copy *c, unsigned asc)
{
	struct scsi_sense sense = scsi_sense_of(SCSI_COPY_ABORTED, asc);

	sense.has_command_specific = true;
	sense.command_specific = c->number;
	return refuse(c, sense);
}

/* ---- units ----------------------------------------------------------------------- */

static struct scsi_lu *
find_unit(const struct scsi_nexus *nexus, const uint8_t *cscd)
{
	const uint8_t *designator = cscd + 8;
	unsigned length = cscd[7];

	if ((cscd[4] & 0x0f) != 1 || (cscd[5] & 0x3f) != 3) /* binary; the unit's NAA */
		return NULL;
	for (unsigned i = 0; i < nexus->lun_end; i++) {
		struct scsi_lu *lu = nexus->itl[i] != NULL ? nexus->itl[i]->lu : NULL;

		if (lu != NULL && lu->identity.naa_length == length &&
		    memcmp(lu->identity.naa, designator, length) == 0)
			return lu;
	}
	return NULL;
}

/* The unit of the descriptor with that index, and whether the nexus may do that to it now. pad:
 * its PAD bit. */
static struct scsi_lu *
use_unit(struct copy *c, unsigned index, enum scsi_conflict what, bool *pad)
{
	const struct scsi_nexus *nexus = c->cmd->nexus;
	const uint8_t *cscd = c->list + c->cscds + (size_t)index * CSCD_LENGTH;
	struct scsi_lu *lu;

	if (index >= (c->segments - c->cscds) / CSCD_LENGTH) {
		copy_aborted(c, UNREACHABLE_TARGET);
		return NULL;
	}
	*pad = (cscd[28] & 0x04) != 0;
	lu = find_unit(nexus, cscd);
	if (lu == NULL || lu->stopped || lu->ejected)
		copy_aborted(c, TARGET_NOT_REACHABLE);
	else if ((cscd[1] & 0x1f) != 0)
		copy_aborted(c, INCORRECT_DEVICE_TYPE);
	else if (get_be24(cscd + 29) != lu->block_size)
		refuse(c, scsi_invalid_parameter((unsigned)(cscd + 29 - c->list), -1));
	else if (scsi_reserve_conflicts(lu, nexus, what))
		c->status = SCSI_RESERVATION_CONFLICT;
	else if (what == CONFLICT_WRITE &&
		 (!scsi_lu_writable(lu) || lu->mode.software_write_protect))
		refuse(c, scsi_write_protected());
	else
		return lu;
	return NULL;
}

/* ---- segments -------------------------------------------------------------------- */

static bool
in_range(struct copy *c, const struct scsi_lu *lu, uint64_t lba, uint64_t offset, uint64_t length)
{
	uint64_t size = lu->block_count * lu->block_size, at;

	if (lba < lu->block_count) {
		at = scsi_lu_offset(lu, lba) + offset;
		if (at <= size && length <= size - at)
			return true;
	}
	return copy_aborted(c, 0);
}

/* DC: the blocks that are counted are the destination's. What does not come to whole blocks there
 * is padded or left, by the PAD bits. */
static bool
parse_blocks(struct copy *c, const uint8_t *p, bool pad_from, bool pad_to)
{
	struct segment *s = &c->segment;
	bool dc = (p[1] & 0x02) != 0, cat = (p[1] & 0x01) != 0;
	uint64_t blocks = get_be16(p + 10), rest;

	s->length = blocks * (dc ? s->to : s->from)->block_size;
	s->padding = 0;
	rest = s->length % (dc ? s->from : s->to)->block_size;
	if (rest != 0 && cat) /* no data is held from one segment to the next */
		return refuse(c, scsi_invalid_parameter((unsigned)(p + 1 - c->list), 0));
	if (rest != 0 && !pad_from && !pad_to)
		return copy_aborted(c, INEXACT_SEGMENT);
	if (rest != 0 && !dc) {
		if (pad_to)
			s->padding = s->to->block_size - rest;
		else
			s->length -= rest;
	}
	if (blocks == 0)
		return true;
	if (!in_range(c, s->from, get_be64(p + 12), 0, s->length) ||
	    !in_range(c, s->to, get_be64(p + 20), 0, s->length + s->padding))
		return false;
	s->source = scsi_lu_offset(s->from, get_be64(p + 12));
	s->destination = scsi_lu_offset(s->to, get_be64(p + 20));
	return true;
}

static bool
parse_bytes(struct copy *c, const uint8_t *p)
{
	struct segment *s = &c->segment;
	unsigned from = get_be16(p + 28), to = get_be16(p + 30);

	s->length = get_be32(p + 8);
	s->padding = 0;
	if (from >= s->from->block_size)
		return refuse(c, scsi_invalid_parameter((unsigned)(p + 28 - c->list), -1));
	if (to >= s->to->block_size)
		return refuse(c, scsi_invalid_parameter((unsigned)(p + 30 - c->list), -1));
	if (s->length == 0)
		return true;
	if (!in_range(c, s->from, get_be64(p + 12), from, s->length) ||
	    !in_range(c, s->to, get_be64(p + 20), to, s->length))
		return false;
	s->source = scsi_lu_offset(s->from, get_be64(p + 12)) + from;
	s->destination = scsi_lu_offset(s->to, get_be64(p + 20)) + to;
	return true;
}

static size_t
segment_length(const uint8_t *p)
{
	return p[0] == SEGMENT_BLOCKS ? SEGMENT_BLOCKS_LENGTH : SEGMENT_BYTES_LENGTH;
}

/* What the segment at c->at asks for, and whether it may be done: before anything is copied, and
 * again before each piece, since units come, go and change. */
static bool
parse_segment(struct copy *c)
{
	const uint8_t *p = c->list + c->at;
	struct segment *s = &c->segment;
	bool pad_from, pad_to;

	s->from = use_unit(c, get_be16(p + 4), CONFLICT_READ, &pad_from);
	if (s->from == NULL)
		return false;
	s->to = use_unit(c, get_be16(p + 6), CONFLICT_WRITE, &pad_to);
	if (s->to == NULL)
		return false;
	if (!(p[0] == SEGMENT_BLOCKS ? parse_blocks(c, p, pad_from, pad_to) : parse_bytes(c, p)))
		return false;
	if (s->length > c->cmd->lu->limits.copy_segment_length)
		return refuse(c,
			      scsi_invalid_parameter(
				      (unsigned)(c->at + (p[0] == SEGMENT_BLOCKS ? 10 : 8)), -1));
	s->backwards = s->from == s->to && s->source < s->destination &&
		       s->destination - s->source < s->length;
	return true;
}

/* ---- the list -------------------------------------------------------------------- */

static bool
check_cscds(struct copy *c)
{
	if ((c->segments - c->cscds) % CSCD_LENGTH != 0)
		return refuse(c, scsi_invalid_parameter(2, -1));
	if ((c->segments - c->cscds) / CSCD_LENGTH > c->cmd->lu->limits.copy_descriptors)
		return refuse_at(c, TOO_MANY_TARGETS, 2);
	for (size_t at = c->cscds; at < c->segments; at += CSCD_LENGTH) {
		if (c->list[at] != CSCD_IDENTIFICATION)
			return refuse_at(c, UNSUPPORTED_TARGET_TYPE, at);
		if (c->list[at + 7] > 20)
			return refuse(c, scsi_invalid_parameter((unsigned)at + 7, -1));
	}
	return true;
}

/* The form of all, then what they ask for. */
static bool
check_segments(struct copy *c)
{
	unsigned count = 0;

	for (size_t at = c->segments; at < c->end; at += segment_length(c->list + at)) {
		const uint8_t *p = c->list + at;

		if (++count > c->cmd->lu->limits.copy_segments)
			return refuse_at(c, TOO_MANY_SEGMENTS, 8);
		if (p[0] != SEGMENT_BLOCKS && p[0] != SEGMENT_BYTES)
			return refuse_at(c, UNSUPPORTED_SEGMENT_TYPE, at);
		if (segment_length(p) > c->end - at)
			return refuse(c, scsi_invalid_parameter(8, -1));
		if (get_be16(p + 2) != segment_length(p) - 4)
			return refuse(c, scsi_invalid_parameter((unsigned)at + 2, -1));
	}
	for (c->at = c->segments, c->number = 0; c->at < c->end; c->number++) {
		if (!parse_segment(c))
			return false;
		c->at += segment_length(c->list + c->at);
	}
	return true;
}

static unsigned
usage_of(const struct copy *c)
{
	return c->list[1] >> 3 & 3;
}

/* One of the nexus, under way, that is known by this list identifier. */
static const struct copy *
find_running(const struct scsi_command *asks, uint8_t list)
{
	for (const struct scsi_command *cmd = asks->lu->tasks.first; cmd != NULL; cmd = cmd->next) {
		if (cmd == asks || cmd->nexus != asks->nexus || cmd->state != SCSI_RUNNING ||
		    cmd->row->run != scsi_extended_copy || cmd->aborted)
			continue;
		if (copy_of(cmd)->list[0] == list && usage_of(copy_of(cmd)) != USAGE_NONE)
			return copy_of(cmd);
	}
	return NULL;
}

static bool
check_identifier(struct copy *c)
{
	struct scsi_itl *itl = scsi_nexus_of_lu(c->cmd->nexus, c->cmd->lu);

	switch (usage_of(c)) {
	case USAGE_RESERVED: return refuse(c, scsi_invalid_parameter(1, 4));
	case USAGE_NONE:
		if (c->list[0] != 0)
			return refuse(c, scsi_invalid_parameter(0, -1));
		return true;
	default:
		if (find_running(c->cmd, c->list[0]) != NULL)
			return refuse(c,
				      scsi_sense_of(SCSI_ILLEGAL_REQUEST, OPERATION_IN_PROGRESS));
		if (itl != NULL && itl->copy.list == c->list[0])
			itl->copy.held = false;
		return true;
	}
}

static bool
check_list(struct copy *c)
{
	size_t length = c->cmd->transfer_out;
	uint64_t targets, segments, inline_data;

	if (length < HEADER_LENGTH)
		return refuse(c, scsi_parameter_list_length_error());
	targets = get_be16(c->list + 2);
	segments = get_be32(c->list + 8);
	inline_data = get_be32(c->list + 12);
	if (HEADER_LENGTH + targets + segments + inline_data > length ||
	    targets + segments > c->cmd->lu->limits.copy_list_length)
		return refuse(c, scsi_parameter_list_length_error());
	if (inline_data != 0)
		return refuse_at(c, INLINE_DATA_TOO_LONG, 12);
	c->cscds = HEADER_LENGTH;
	c->segments = HEADER_LENGTH + targets;
	c->end = c->segments + segments;
	return check_identifier(c) && check_cscds(c) && check_segments(c);
}

/* ---- copying --------------------------------------------------------------------- */

/* Of one that was aborted there is none: it neither was completed nor failed. */
static void
hold_result(const struct copy *c)
{
	struct scsi_itl *itl = scsi_nexus_of_lu(c->cmd->nexus, c->cmd->lu);

	if (itl == NULL || usage_of(c) != USAGE_HOLD || c->cmd->aborted)
		return;
	itl->copy = (struct scsi_copy_result){ .held = true,
					       .list = c->list[0],
					       .status = (uint8_t)c->status,
					       .segments = c->number,
					       .bytes = c->total,
					       .sense = c->sense };
}

static void
copy_end(struct copy *c)
{
	struct scsi_command *cmd = c->cmd;

	if (c->status == SCSI_CHECK_CONDITION)
		scsi_fail(cmd, c->sense);
	else
		scsi_end(cmd, c->status);
}

static uint64_t
piece_at(const struct copy *c)
{
	return c->segment.backwards ? c->segment.length - c->done - c->piece : c->done;
}

static void copy_next(struct copy *c);

static void
release_unit(struct scsi_lu *lu)
{
	lu->unended--;
	scsi_lu_settle(lu);
}

/* The piece has been dealt with, well or not. */
static void
piece_done(struct copy *c)
{
	c->under_way = false;
	scsi_reserve_settle(c->segment.to);
	release_unit(c->segment.from);
	release_unit(c->segment.to);
	copy_next(c);
}

static void
piece_written(struct scsi_command *cmd, int error)
{
	struct copy *c = copy_of(cmd);

	if (error != 0) {
		copy_aborted(c, THIRD_PARTY_FAILURE);
	} else {
		c->done += c->piece;
		c->total += c->piece;
	}
	piece_done(c);
}

static void
piece_read(struct scsi_command *cmd, int error)
{
	struct copy *c = copy_of(cmd);
	struct segment *s = &c->segment;
	uint64_t length = c->piece;

	if (error != 0) {
		copy_aborted(c, THIRD_PARTY_FAILURE);
		piece_done(c);
		return;
	}
	if (s->padding > 0 && c->done + c->piece == s->length) {
		memset(c->buffer + length, 0, s->padding);
		length += s->padding;
	}
	scsi_request_on(cmd, s->to, PL_WRITE, 0, s->destination + piece_at(c), length, c->buffer,
			piece_written);
}

/* Goes to the next segment that has something to be copied. Returns false when there is none, or
 * it may not be done any more. */
static bool
find_next(struct copy *c)
{
	while (c->at < c->end) {
		if (!parse_segment(c))
			return false;
		if (c->done < c->segment.length)
			return true;
		c->at += segment_length(c->list + c->at);
		c->number++;
		c->done = 0;
	}
	return false;
}

/* The next piece, or the end. */
static void
copy_next(struct copy *c)
{
	struct segment *s = &c->segment;

	if (c->status != SCSI_GOOD || c->cmd->aborted || !find_next(c)) {
		hold_result(c);
		copy_end(c);
		return;
	}
	c->piece = s->length - c->done < PIECE ? s->length - c->done : PIECE;
	/* They stay until it is done. */
	c->under_way = true;
	s->from->unended++;
	s->to->unended++;
	scsi_request_on(c->cmd, s->from, PL_READ, 0, s->source + piece_at(c), c->piece, c->buffer,
			piece_read);
}

bool
scsi_copy_writes(const struct scsi_command *cmd, const struct scsi_lu *to)
{
	const struct copy *c = copy_of(cmd);

	return cmd->state == SCSI_RUNNING && cmd->row->run == scsi_extended_copy && c->under_way &&
	       c->segment.to == to;
}

bool
scsi_plan_copy(struct scsi_command *cmd)
{
	uint32_t length = get_be32(cmd->cdb + 10);

	if (length == 0)
		return true;
	if (length > HEADER_LENGTH + cmd->lu->limits.copy_list_length) {
		scsi_fail(cmd, scsi_parameter_list_length_error());
		return false;
	}
	cmd->wanted_out = length;
	cmd->scratch = COPY_SCRATCH;
	return true;
}

void
scsi_extended_copy(struct scsi_command *cmd)
{
	struct copy *c;

	if (cmd->wanted_out == 0) {
		scsi_good(cmd);
		return;
	}
	c = copy_of(cmd);
	*c = (struct copy){ .cmd = cmd, .list = cmd->memory };
	c->buffer = buffer_of(c);
	if (!check_list(c)) {
		if (c->status == SCSI_CHECK_CONDITION && c->sense.key == SCSI_COPY_ABORTED)
			hold_result(c);
		copy_end(c);
		return;
	}
	c->at = c->segments;
	c->number = 0;
	copy_next(c);
}

/* ---- RECEIVE COPY RESULTS --------------------------------------------------------- */

void
scsi_receive_copy_parameters(struct scsi_command *cmd)
{
	static const uint8_t types[] = { SEGMENT_BLOCKS, SEGMENT_BYTES, CSCD_IDENTIFICATION };
	const struct scsi_limits *limits = &cmd->lu->limits;
	uint8_t *answer = scsi_answer(cmd);
	size_t length = 44 + sizeof types;

	put_be32(answer, (uint32_t)length - 4);
	answer[4] = 0x01; /* SNLID: a list needs no identifier */
	put_be16(answer + 8, (uint16_t)limits->copy_descriptors);
	put_be16(answer + 10, (uint16_t)limits->copy_segments);
	put_be32(answer + 12, limits->copy_list_length);
	put_be32(answer + 16, (uint32_t)limits->copy_segment_length);
	answer[36] = 255; /* concurrent copies; no data is held, and none comes inline */
	answer[43] = sizeof types;
	memcpy(answer + 44, types, sizeof types);
	scsi_answered(cmd, length);
}

/* What is held of that list, or NULL. */
static struct scsi_copy_result *
find_result(struct scsi_command *cmd)
{
	struct scsi_itl *itl = scsi_nexus_of_lu(cmd->nexus, cmd->lu);

	return itl != NULL && itl->copy.held && itl->copy.list == cmd->cdb[2] ? &itl->copy : NULL;
}

enum { COPY_IN_PROGRESS, COPY_COMPLETED, COPY_FAILED };

void
scsi_receive_copy_status(struct scsi_command *cmd)
{
	const struct copy *running = find_running(cmd, cmd->cdb[2]);
	struct scsi_copy_result *result = find_result(cmd);
	uint64_t bytes;
	uint8_t *answer;

	if (running == NULL && result == NULL) {
		scsi_fail(cmd, scsi_invalid_field(2, -1));
		return;
	}
	answer = scsi_answer(cmd);
	put_be32(answer, 8);
	if (running != NULL) {
		answer[4] = COPY_IN_PROGRESS;
		put_be16(answer + 5, running->number);
		bytes = running->total;
	} else {
		answer[4] = result->status == SCSI_GOOD ? COPY_COMPLETED : COPY_FAILED;
		put_be16(answer + 5, result->segments);
		bytes = result->bytes;
		result->held = result->status != SCSI_GOOD; /* failure's details may follow */
	}
	/* TRANSFER COUNT UNITS 0: bytes */
	put_be32(answer + 8, bytes < UINT32_MAX ? (uint32_t)bytes : UINT32_MAX);
	scsi_answered(cmd, 12);
}

void
scsi_receive_copy_failure(struct scsi_command *cmd)
{
	struct scsi_copy_result *result = find_result(cmd);
	uint8_t *answer;
	size_t length;

	if (result == NULL || result->status == SCSI_GOOD) {
		scsi_fail(cmd, scsi_invalid_field(2, -1));
		return;
	}
	result->held = false;
	answer = scsi_answer(cmd);
	length = result->status != SCSI_CHECK_CONDITION
			 ? 0
			 : scsi_sense_put(&result->sense, cmd->lu->mode.descriptor_sense,
					  answer + 60);
	put_be32(answer, (uint32_t)(56 + length));
	answer[56] = result->status;
	put_be16(answer + 58, (uint16_t)length);
	scsi_answered(cmd, 60 + length);
}
