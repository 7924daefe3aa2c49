/*
 * order.c - which command may start, beside which.
 *
 * The good path: reads, writes and flushes with the attribute SIMPLE start as they come, whatever
 * they overlap: the control mode page says "unrestricted reordering", and initiators that care wait
 * for the answer. As long as there is nothing else in the set, nobody looks further.
 *
 * Others are looked at against the matrix, where a new command meets each that has started, and
 * each that came before it and waits. ORDERED waits for all that came before it, and all that come
 * after wait for it; HEAD OF QUEUE goes before all that have not started, and they wait for it. A
 * command whose data is still on its way holds up nobody by itself, unless it is ORDERED or HEAD OF
 * QUEUE: its initiator may be gone.
 */
#include "order.h"

#include "command.h"
#include "opcode.h"

#include <assert.h>

enum meeting {
	PASS,
	OVERLAP, /* waits where they touch the same blocks */
	WAIT,
};

/* [new][other] */
static const uint8_t matrix[ORDER_CLASSES][ORDER_CLASSES] = {
	[ORDER_NONE] = { 0 },
	[ORDER_READ] = { [ORDER_ATOMIC] = OVERLAP, [ORDER_ALONE] = WAIT },
	[ORDER_WRITE] = { [ORDER_ATOMIC] = OVERLAP, [ORDER_ALONE] = WAIT },
	[ORDER_ATOMIC] = { [ORDER_READ] = OVERLAP,
			   [ORDER_WRITE] = OVERLAP,
			   [ORDER_ATOMIC] = OVERLAP,
			   [ORDER_ALONE] = WAIT },
	[ORDER_SYNC] = { [ORDER_ALONE] = WAIT },
	[ORDER_ALONE] = { [ORDER_READ] = WAIT,
			  [ORDER_WRITE] = WAIT,
			  [ORDER_ATOMIC] = WAIT,
			  [ORDER_SYNC] = WAIT,
			  [ORDER_ALONE] = WAIT },
};

static unsigned
class_of(const struct scsi_command *cmd)
{
	return cmd->row->order;
}

static bool
is_special(const struct scsi_command *cmd)
{
	return class_of(cmd) == ORDER_ATOMIC || class_of(cmd) == ORDER_ALONE ||
	       (class_of(cmd) != ORDER_NONE && cmd->attribute != SCSI_SIMPLE);
}

/* No blocks: it may touch any. */
static bool
overlaps(const struct scsi_command *a, const struct scsi_command *b)
{
	return a->blocks == 0 || b->blocks == 0 ||
	       (a->lba < b->lba + b->blocks && b->lba < a->lba + a->blocks);
}

static bool
must_wait(const struct scsi_command *cmd, const struct scsi_command *other)
{
	switch (matrix[class_of(cmd)][class_of(other)]) {
	case PASS: return false;
	case OVERLAP: return overlaps(cmd, other);
	default: return true;
	}
}

/* SAM-5, "Task attributes": whether cmd waits for one that stands before it, whatever they do. Not
 * for a later HEAD OF QUEUE that has no memory yet: it may wait for that of cmd. */
static bool
attributes_part(const struct scsi_command *cmd, const struct scsi_command *before)
{
	if (before->attribute == SCSI_HEAD_OF_QUEUE)
		return cmd->attribute != SCSI_HEAD_OF_QUEUE &&
		       (before->arrival < cmd->arrival || before->state != SCSI_GATHERING);
	return cmd->attribute == SCSI_ORDERED || before->attribute == SCSI_ORDERED;
}

bool
scsi_order_ready(const struct scsi_task_set *set, const struct scsi_command *cmd)
{
	bool before = true;

	if (class_of(cmd) == ORDER_NONE || set->special == 0)
		return true;
	for (const struct scsi_command *o = set->first; o != NULL; o = o->next) {
		bool started = scsi_command_started(o);

		if (o == cmd) {
			before = false;
			continue;
		}
		if (class_of(o) == ORDER_NONE || o->state == SCSI_ENDED)
			continue;
		if (before && attributes_part(cmd, o))
			return false;
		if ((started || (before && o->state == SCSI_WAITING)) && must_wait(cmd, o))
			return false;
	}
	return true;
}

static void
link_before(struct scsi_task_set *set, struct scsi_command *cmd, struct scsi_command *next)
{
	cmd->next = next;
	cmd->prev = next != NULL ? next->prev : set->last;
	*(cmd->prev != NULL ? &cmd->prev->next : &set->first) = cmd;
	*(next != NULL ? &next->prev : &set->last) = cmd;
}

void
scsi_order_add(struct scsi_task_set *set, struct scsi_command *cmd)
{
	struct scsi_command *next = NULL;

	if (cmd->attribute == SCSI_HEAD_OF_QUEUE) {
		for (next = set->first; next != NULL && scsi_command_started(next);
		     next = next->next)
			;
	}
	link_before(set, cmd, next);
	cmd->listed = true;
	cmd->special = is_special(cmd);
	set->special += cmd->special;
}

/* One that starts may end at once and be freed, and take others with it: so from the front again
 * each time. */
static void
start_waiting(struct pl_work *work)
{
	struct scsi_task_set *set =
		(struct scsi_task_set *)((char *)work - offsetof(struct scsi_task_set, work));
	struct scsi_lu *lu = (struct scsi_lu *)((char *)set - offsetof(struct scsi_lu, tasks));
	struct scsi_command *cmd;

	set->posted = false;
	lu->unended++; /* it stays until this is done */
	do {
		for (cmd = set->first; cmd != NULL; cmd = cmd->next) {
			if (cmd->state == SCSI_WAITING && scsi_order_ready(set, cmd))
				break;
		}
		if (cmd != NULL)
			scsi_command_start(cmd);
	} while (cmd != NULL);
	lu->unended--;
	scsi_lu_settle(lu);
}

void
scsi_order_remove(struct scsi_task_set *set, struct scsi_command *cmd)
{
	assert(cmd->listed);
	cmd->listed = false;
	*(cmd->prev != NULL ? &cmd->prev->next : &set->first) = cmd->next;
	*(cmd->next != NULL ? &cmd->next->prev : &set->last) = cmd->prev;
	/* While there is nothing special nobody waits. */
	if (set->special > 0 && !set->posted) {
		set->posted = true;
		set->work.run = start_waiting;
		pl_loop_later(set->loop, &set->work);
	}
	set->special -= cmd->special;
}
