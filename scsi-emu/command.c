/*
 * command.c - a command, from the transport and back.
 *
 * The good path: the unit and the row are found, the row's mask and gates let it pass, its plan
 * says how much data is to move; it takes its place in the unit's task set; memory is found, and
 * data-out gathered there; once it may start its handler runs, with requests to the core one after
 * the other; it leaves the set, and the transport answers.
 *
 * What can go wrong: it is refused before it has a place (no unit, an unknown bit, a unit
 * attention, a reservation, ...); the transport cannot bring its data; it is aborted while it
 * waits, and ends at once, or while it runs, and ends when the core is done with it: nothing of it
 * that has not been started starts then. A reservation may have been made while its data was on the
 * way, so gates that others can close are looked at again when it starts.
 */
#include "command.h"

#include "nexus.h"
#include "opcode.h"
#include "reserve.h"
#include "target.h"
#include "tmf.h"

#include <assert.h>
#include <errno.h>

/* ---- out ------------------------------------------------------------------------- */

/* SAM-5 has none of this; RFC 7143 "Residual Count", and FCP alike: what the CDB would have moved
 * against what the initiator was ready for. */
static void
set_residual(struct scsi_command *cmd, uint64_t moved, uint32_t expected)
{
	assert(moved <= UINT32_MAX); /* plans see to that */
	cmd->residual = moved == expected  ? SCSI_EXACT
			: moved < expected ? SCSI_UNDERFLOW
					   : SCSI_OVERFLOW;
	cmd->residual_count = (uint32_t)(moved < expected ? expected - moved : moved - expected);
}

static void
count_residual(struct scsi_command *cmd)
{
	bool nothing_moved = cmd->state <= SCSI_GATHERING;

	if (cmd->expected_out > 0 || (cmd->wanted_out > 0 && cmd->expected_in == 0)) {
		set_residual(cmd, nothing_moved ? 0 : cmd->wanted_out, cmd->expected_out);
		return;
	}
	set_residual(cmd, cmd->data_in, cmd->expected_in);
	cmd->transfer_in = cmd->data_in < cmd->expected_in ? cmd->data_in : cmd->expected_in;
}

/* The one way out. */
static void
command_end(struct scsi_command *cmd)
{
	struct scsi_nexus *nexus = cmd->nexus;
	struct scsi_target *target = nexus->target;
	struct scsi_lu *lu = cmd->lu;
	bool aborted = cmd->aborted;

	assert(cmd->state != SCSI_ENDED);
	if (aborted) {
		cmd->outcome = cmd->tas ? SCSI_DONE : SCSI_ABORTED;
		cmd->status = SCSI_TASK_ABORTED;
		cmd->sense_length = 0;
		cmd->data_in = 0;
	} else {
		cmd->outcome = SCSI_DONE;
	}
	count_residual(cmd);
	cmd->state = SCSI_ENDED;
	if (cmd->listed && lu != NULL)
		scsi_order_remove(&lu->tasks, cmd);
	else if (cmd->listed)
		scsi_nexus_remove(cmd);
	if (aborted && target->managements != NULL)
		scsi_manage_settle(target, cmd);
	if (aborted && lu != NULL)
		scsi_reserve_settle(lu);
	cmd->on_done(cmd); /* cmd may be gone */
	if (lu != NULL) {
		lu->unended--;
		scsi_lu_settle(lu);
	}
	nexus->unended--;
	scsi_nexus_settle(nexus);
}

void
scsi_end(struct scsi_command *cmd, enum scsi_status status)
{
	cmd->status = status;
	command_end(cmd);
}

void
scsi_good(struct scsi_command *cmd)
{
	scsi_end(cmd, SCSI_GOOD);
}

void
scsi_fail(struct scsi_command *cmd, struct scsi_sense sense)
{
	bool descriptor = cmd->lu != NULL && cmd->lu->mode.descriptor_sense;

	cmd->sense_length = (unsigned)scsi_sense_put(&sense, descriptor, cmd->sense);
	scsi_end(cmd, SCSI_CHECK_CONDITION);
}

void
scsi_fail_errno(struct scsi_command *cmd, int error)
{
	assert(error != 0);
	switch (error) {
	case -ENOMEM: scsi_end(cmd, SCSI_BUSY); return;
	case -EPERM:
	case -EROFS: scsi_fail(cmd, scsi_write_protected()); return;
	case -ENOSPC:
	case -EDQUOT:
	case -EFBIG: scsi_fail(cmd, scsi_no_space()); return;
	case -ECANCELED: scsi_fail(cmd, scsi_internal_failure()); return; /* if not aborted */
	}
	switch (cmd->req.op) {
	case PL_READ:
	case PL_CACHE:
	case PL_EXTENTS: scsi_fail(cmd, scsi_read_error()); return;
	case PL_FLUSH: scsi_fail(cmd, scsi_sync_failed()); return;
	default: scsi_fail(cmd, scsi_write_error()); return;
	}
}

void
scsi_command_fail_removed(struct scsi_command *cmd)
{
	scsi_fail(cmd, scsi_lun_not_supported());
}

void
scsi_command_abort(struct scsi_command *cmd, bool tas)
{
	assert(cmd->state != SCSI_ENDED);
	if (cmd->aborted)
		return;
	cmd->aborted = true;
	cmd->tas = tas;
	if (cmd->state != SCSI_RUNNING)
		command_end(cmd);
}

/* ---- plans and answers ----------------------------------------------------------- */

bool
scsi_plan_none(struct scsi_command *cmd)
{
	(void)cmd;
	return true;
}

static uint64_t
length_field(const struct scsi_command *cmd)
{
	const uint8_t *p = cmd->cdb + cmd->row->length_at;
	uint64_t n = 0;

	for (unsigned i = 0; i < cmd->row->length_size; i++)
		n = n << 8 | p[i];
	return n;
}

bool
scsi_plan_allocation(struct scsi_command *cmd)
{
	uint64_t length = length_field(cmd);

	cmd->wanted_in = length < SCSI_ANSWER_MAX ? length : SCSI_ANSWER_MAX;
	return true;
}

bool
scsi_plan_parameters(struct scsi_command *cmd)
{
	cmd->wanted_out = length_field(cmd);
	/* Longer than any list that means something, and than memory is for. */
	if (cmd->wanted_out <= UINT16_MAX)
		return true;
	scsi_fail(cmd, scsi_parameter_list_length_error());
	return false;
}

static __thread uint8_t answer[SCSI_ANSWER_MAX]; /* of the handler that runs */

uint8_t *
scsi_answer(struct scsi_command *cmd)
{
	(void)cmd;
	memset(answer, 0, sizeof answer);
	return answer;
}

void
scsi_answered(struct scsi_command *cmd, size_t length)
{
	size_t sent = length < cmd->wanted_in ? length : cmd->wanted_in;

	assert(length <= SCSI_ANSWER_MAX);
	cmd->data_in = sent;
	if (sent > cmd->memory_length)
		sent = cmd->memory_length;
	if (sent > 0)
		memcpy(cmd->memory, answer, sent);
	scsi_good(cmd);
}

/* ---- requests to the core -------------------------------------------------------- */

struct scsi_runner {
	const struct scsi_command *cmd;
	struct scsi_runner *outer;
	bool done, again;
	int error;
};

/* Whose then() is being called, of the commands that were done at once. */
static __thread struct scsi_runner *running;

/* An aborted command does nothing more, however well that went: what ended it, a reset of the unit
 * say, has been done already. */
static void
go_on(struct scsi_command *cmd, int error)
{
	cmd->then(cmd, cmd->aborted ? -ECANCELED : error);
}

static void
request_done(struct pl_request *req, int error)
{
	struct scsi_command *cmd =
		(struct scsi_command *)((char *)req - offsetof(struct scsi_command, req));

	if (error < 0)
		cmd->counted_error = error;
	if (cmd->runner == NULL) {
		go_on(cmd, error);
		return;
	}
	cmd->runner->done = true;
	cmd->runner->error = error;
}

/*
 * The core may be done before it returns, and then() ask for more. That runs here, not one inside
 * the other: a command may have any number of requests, and the stack has an end. then() may be
 * the end of cmd.
 */
static void
request_run(struct scsi_command *cmd)
{
	struct scsi_runner runner = { .cmd = cmd, .outer = running };

	do {
		runner.done = runner.again = false;
		cmd->runner = &runner;
		pl_request_submit(cmd->channel, &cmd->req);
		cmd->runner = NULL;
		if (!runner.done)
			return;
		running = &runner;
		go_on(cmd, runner.error);
		running = runner.outer;
	} while (runner.again);
}

static bool
changes(enum pl_op op)
{
	return op == PL_WRITE || op == PL_ZERO || op == PL_TRIM || op == PL_MODIFY;
}

void
scsi_request_on(struct scsi_command *cmd, struct scsi_lu *lu, enum pl_op op, unsigned flags,
		uint64_t offset, uint64_t length, void *memory,
		void (*then)(struct scsi_command *cmd, int error))
{
	struct pl_request *req = &cmd->req;

	/* What has not been started of an aborted command is not. */
	if (cmd->aborted) {
		then(cmd, -ECANCELED);
		return;
	}
	if (changes(op) && !lu->mode.write_cache)
		flags |= PL_FUA;
	if ((lu->capabilities & PL_CAP_FUA) == 0)
		flags &= ~(unsigned)PL_FUA;
	cmd->then = then;
	req->op = op;
	req->flags = flags;
	req->offset = offset;
	req->length = length;
	cmd->iov = (struct iovec){ memory, length };
	req->iov = memory != NULL ? &cmd->iov : NULL;
	req->iovcnt = memory != NULL;
	req->extents = op == PL_EXTENTS ? &cmd->extents : NULL;
	req->on_done = request_done;
	cmd->counted = true;
	cmd->counted_as = op == PL_MODIFY ? PL_WRITE : op;
	cmd->counted_fua = changes(op) && (flags & PL_FUA) != 0;
	cmd->counted_bytes += op == PL_EXTENTS ? 0 : length;
	cmd->channel = lu->channel;
	if (running != NULL && running->cmd == cmd)
		running->again = true;
	else
		request_run(cmd);
}

void
scsi_request(struct scsi_command *cmd, enum pl_op op, unsigned flags, uint64_t offset,
	     uint64_t length, void *memory, void (*then)(struct scsi_command *cmd, int error))
{
	scsi_request_on(cmd, cmd->lu, op, flags, offset, length, memory, then);
}

/* ---- in -------------------------------------------------------------------------- */

/* What others may change between arrival and start. */
static bool
pass_reservation(struct scsi_command *cmd)
{
	if (!scsi_reserve_conflicts(cmd->lu, cmd->nexus, cmd->row->conflict))
		return true;
	scsi_end(cmd, SCSI_RESERVATION_CONFLICT);
	return false;
}

static bool
pass_medium(struct scsi_command *cmd)
{
	const struct scsi_lu *lu = cmd->lu;

	if ((cmd->row->gates & GATE_READY) == 0 || (!lu->stopped && !lu->ejected))
		return true;
	scsi_fail(cmd, lu->ejected ? scsi_no_medium() : scsi_stopped());
	return false;
}

static bool
pass_protection(struct scsi_command *cmd)
{
	const struct scsi_lu *lu = cmd->lu;

	if ((cmd->row->gates & GATE_WRITABLE) == 0 ||
	    (scsi_lu_writable(lu) && !lu->mode.software_write_protect))
		return true;
	scsi_fail(cmd, scsi_write_protected());
	return false;
}

static bool
pass_attention(struct scsi_command *cmd)
{
	struct scsi_itl *itl = scsi_nexus_itl(cmd->nexus, scsi_lun_of(cmd->lun));
	unsigned asc;

	if ((cmd->row->gates & GATE_ATTENTION) == 0 || itl == NULL)
		return true;
	if (itl->has_deferred) {
		itl->has_deferred = false;
		scsi_fail(cmd, itl->deferred);
		return false;
	}
	if (!scsi_attention_take(itl, &asc))
		return true;
	scsi_fail(cmd, scsi_unit_attention(asc));
	return false;
}

static bool
pass_gates(struct scsi_command *cmd)
{
	return cmd->lu == NULL || (pass_attention(cmd) && pass_reservation(cmd) &&
				   pass_medium(cmd) && pass_protection(cmd));
}

/* The row, and whether it takes these bits. */
static bool
find_row(struct scsi_command *cmd)
{
	bool opcode_known;
	int byte, bit;

	cmd->row = scsi_row_find(cmd->lu, cmd->cdb, cmd->cdb_length, &opcode_known);
	if (cmd->lu == NULL && (cmd->row == NULL || (cmd->row->gates & GATE_LUN) != 0)) {
		scsi_fail(cmd, scsi_lun_not_supported());
	} else if (cmd->row == NULL) {
		scsi_fail(cmd, opcode_known ? scsi_invalid_field(1, 4) : scsi_invalid_opcode());
	} else {
		byte = scsi_row_check(cmd->row, cmd->cdb, &bit);
		if (byte == -1)
			return true;
		scsi_fail(cmd, scsi_invalid_field((unsigned)byte, bit));
	}
	return false;
}

static void
ask_for_buffer(struct scsi_command *cmd)
{
	cmd->transfer_out =
		cmd->wanted_out < cmd->expected_out ? cmd->wanted_out : cmd->expected_out;
	cmd->memory_length =
		cmd->transfer_out + cmd->scratch +
		(cmd->wanted_in < cmd->expected_in ? cmd->wanted_in : cmd->expected_in);
}

/* It may start now. */
void
scsi_command_start(struct scsi_command *cmd)
{
	if (cmd->lu != NULL &&
	    (!pass_reservation(cmd) || !pass_medium(cmd) || !pass_protection(cmd)))
		return;
	cmd->state = SCSI_RUNNING;
	cmd->row->run(cmd);
}

/* Its memory is there, and in it its data-out, if there is any. */
static void
ready(struct scsi_command *cmd)
{
	cmd->state = SCSI_WAITING;
	if (cmd->lu == NULL || scsi_order_ready(&cmd->lu->tasks, cmd))
		scsi_command_start(cmd);
}

void
scsi_command_go(struct scsi_command *cmd, int error)
{
	assert(cmd->state == SCSI_GATHERING);
	if (error == -ENOMEM)
		scsi_end(cmd, SCSI_BUSY);
	else if (error != 0)
		scsi_fail(cmd, scsi_data_phase_error());
	else
		ready(cmd);
}

static void
command_reset(struct scsi_command *cmd, struct scsi_nexus *nexus)
{
	const struct scsi_itl *itl = scsi_nexus_itl(nexus, scsi_lun_of(cmd->lun));

	cmd->nexus = nexus;
	cmd->lu = itl != NULL ? itl->lu : NULL;
	cmd->row = NULL;
	cmd->state = SCSI_ARRIVED;
	cmd->aborted = cmd->tas = cmd->listed = cmd->special = false;
	cmd->runner = NULL;
	if (running != NULL && running->cmd == cmd) /* the one that had this memory has ended */
		running->cmd = NULL;
	cmd->arrival = ++nexus->target->arrivals;
	cmd->lba = cmd->blocks = 0;
	cmd->wanted_in = cmd->wanted_out = cmd->scratch = cmd->data_in = 0;
	cmd->memory_length = cmd->transfer_out = cmd->transfer_in = 0;
	cmd->flags = 0;
	cmd->sense_length = 0;
	cmd->counted = false;
	cmd->counted_bytes = 0;
	cmd->counted_error = 0;
	nexus->unended++;
	nexus->used = true;
	if (cmd->lu != NULL)
		cmd->lu->unended++;
}

void
scsi_command_submit(struct scsi_nexus *nexus, struct scsi_command *cmd)
{
	command_reset(cmd, nexus);
	if (nexus->ending) {
		cmd->aborted = true;
		command_end(cmd);
		return;
	}
	if (!find_row(cmd) || !pass_gates(cmd) || !cmd->row->plan(cmd))
		return;
	ask_for_buffer(cmd);
	if (cmd->lu != NULL)
		scsi_order_add(&cmd->lu->tasks, cmd);
	else
		scsi_nexus_add(cmd);
	/* In the order of their arrival, and before they wait for each other: one that others wait
	 * for is not to wait for memory that they hold. */
	if (cmd->memory_length > 0) {
		cmd->state = SCSI_GATHERING;
		cmd->on_buffer(cmd);
	} else {
		ready(cmd);
	}
}
