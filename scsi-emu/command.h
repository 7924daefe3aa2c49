/*
 * command.h - a command on its way: for the handlers.
 *
 *	ARRIVED -> GATHERING (memory, and data-out) -> WAITING (for others) -> RUNNING -> ENDED
 *
 * A handler is the `run` of a row. It calls exactly one of the ways out, now or after requests
 * to the core: scsi_good(), scsi_fail(), scsi_end(). cmd->memory has memory_length bytes: what
 * the initiator sent (the first cmd->transfer_out), then what the row's plan asked for in scratch.
 */
#ifndef SCSI_COMMAND_H
#define SCSI_COMMAND_H

#include "bytes.h"
#include "lu.h"
#include "scsi-emu.h"
#include "sense.h"

/* ---- ways out -------------------------------------------------------------------- */

void scsi_good(struct scsi_command *cmd);
/* CHECK CONDITION */
void scsi_fail(struct scsi_command *cmd, struct scsi_sense sense);
/* Another status: CONDITION MET, BUSY, RESERVATION CONFLICT. */
void scsi_end(struct scsi_command *cmd, enum scsi_status status);
/* By the errno that the core gave for cmd->req: one table. error is not 0. */
void scsi_fail_errno(struct scsi_command *cmd, int error);

/* ---- plans ----------------------------------------------------------------------- */

/*
 * A row's plan reads the CDB, fills wanted_in or wanted_out (bytes that the CDB says are to move;
 * in: at most) and scratch, and checks what can be checked before any data comes. Returns false
 * when it has ended the command.
 */
bool scsi_plan_none(struct scsi_command *cmd);       /* no data */
bool scsi_plan_allocation(struct scsi_command *cmd); /* in: ALLOCATION LENGTH, row->length_at */
bool scsi_plan_parameters(struct scsi_command *cmd); /* out: PARAMETER LIST LENGTH, the same */

/* ---- data-in --------------------------------------------------------------------- */

/* What handlers of data-in compose their answer in: room for `wanted` bytes, of which only the
 * allocation length is sent. Answers longer than this do not exist but for READ, which fills
 * memory itself. */
#define SCSI_ANSWER_MAX 16384
/* Clears and returns a buffer of SCSI_ANSWER_MAX bytes, good until the handler returns. */
uint8_t *scsi_answer(struct scsi_command *cmd);
/* length bytes of it are the whole answer; as many as were asked for are sent. GOOD. */
void scsi_answered(struct scsi_command *cmd, size_t length);

/* ---- requests to the core -------------------------------------------------------- */

/*
 * One request at a time: then(cmd, error) follows, perhaps before this returns. flags: PL_FUA and
 * others; WCE=0 adds PL_FUA to what changes data, here and nowhere else. offset, length: bytes.
 * memory: of READ, WRITE, MODIFY; else NULL. Before it returns, then() asks for another one, which
 * runs when it has returned, or ends the command.
 */
void scsi_request(struct scsi_command *cmd, enum pl_op op, unsigned flags, uint64_t offset,
		  uint64_t length, void *memory, void (*then)(struct scsi_command *cmd, int error));

/* The same to another unit, which the caller has made sure does not go meanwhile (lu->unended). */
void scsi_request_on(struct scsi_command *cmd, struct scsi_lu *lu, enum pl_op op, unsigned flags,
		     uint64_t offset, uint64_t length, void *memory,
		     void (*then)(struct scsi_command *cmd, int error));

/* medium.c: makes stable what has been written to the unit, if it can be written to. */
void scsi_flush(struct scsi_command *cmd, void (*then)(struct scsi_command *cmd, int error));

/* ---- for order.c, tmf.c, lu.c, nexus.c -------------------------------------------- */

enum scsi_command_state {
	SCSI_ARRIVED,
	SCSI_GATHERING, /* the transport finds memory, and brings data-out */
	SCSI_WAITING,   /* for other commands */
	SCSI_RUNNING,
	SCSI_ENDED,
};

static inline bool
scsi_command_started(const struct scsi_command *cmd)
{
	return cmd->state == SCSI_RUNNING;
}

/* It ends: at once, if it does not run; else when the core is done with it. tas: with TASK
 * ABORTED, else without an answer. */
void scsi_command_abort(struct scsi_command *cmd, bool tas);

/* It has not started, and its unit goes. */
void scsi_command_fail_removed(struct scsi_command *cmd);

static inline uint64_t
scsi_block_size(const struct scsi_command *cmd)
{
	return cmd->lu->block_size;
}

#endif
