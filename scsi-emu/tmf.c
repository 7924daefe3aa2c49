/*
 * tmf.c - task management.
 *
 * The good path: the commands that the function names are aborted; those that wait end at once,
 * those that the core has end when it is done with them; then what else the function does is done,
 * and it is answered. So no write of theirs comes after the answer.
 */
#include "tmf.h"

#include "command.h"
#include "nexus.h"
#include "target.h"

#include <assert.h>

/* ---- aborting -------------------------------------------------------------------- */

static void
abort_one(struct scsi_command *cmd, const struct scsi_nexus *by)
{
	struct scsi_lu *lu = cmd->lu;
	bool others = cmd->nexus != by, tas = others && lu->mode.task_aborted;
	struct scsi_itl *itl = scsi_nexus_of_lu(cmd->nexus, lu);

	if (others && !tas && itl != NULL)
		scsi_attention_add(itl, SCSI_COMMANDS_CLEARED);
	scsi_command_abort(cmd, tas);
}

/* Ending one calls others, who may change the list. */
void
scsi_abort_tasks(struct scsi_lu *lu, const struct scsi_nexus *by,
		 bool (*which)(const struct scsi_command *cmd, const void *user), const void *user)
{
	struct scsi_command *cmd;

	do {
		for (cmd = lu->tasks.first; cmd != NULL; cmd = cmd->next) {
			if (!cmd->aborted && which(cmd, user))
				break;
		}
		if (cmd != NULL)
			abort_one(cmd, by);
	} while (cmd != NULL);
}

/* ---- functions ------------------------------------------------------------------- */

static bool
is_of_nexus(const struct scsi_command *cmd, const void *user)
{
	return cmd->nexus == user;
}

static bool
is_any(const struct scsi_command *cmd, const void *user)
{
	(void)cmd;
	(void)user;
	return true;
}

static void
abort_nexus(struct scsi_management *m)
{
	scsi_abort_tasks(m->lu, m->nexus, is_of_nexus, m->nexus);
}

static void
abort_all(struct scsi_management *m)
{
	scsi_abort_tasks(m->lu, m->nexus, is_any, NULL);
}

static void
abort_task(struct scsi_management *m)
{
	if (m->task != NULL)
		scsi_command_abort(m->task, false);
}

/* Everyone's commands end without a word: the reset is the word. */
static void
reset_unit(struct scsi_management *m, struct scsi_lu *lu)
{
	scsi_abort_tasks(lu, m->nexus, is_any, NULL);
	scsi_lu_reset(lu, m->function == SCSI_LOGICAL_UNIT_RESET ? SCSI_BUS_DEVICE_RESET
								 : SCSI_POWER_ON_RESET);
}

/* Of the target those that the initiator finds at its LUNs: the others are no concern of its. */
static void
reset(struct scsi_management *m)
{
	if (m->lu != NULL) {
		reset_unit(m, m->lu);
		return;
	}
	for (struct scsi_lu *lu = m->nexus->target->units; lu != NULL; lu = lu->next) {
		if (scsi_nexus_of_lu(m->nexus, lu) != NULL)
			reset_unit(m, lu);
	}
}

static void
reset_nexus(struct scsi_management *m)
{
	scsi_nexus_abort_nowhere(m->nexus);
	for (struct scsi_lu *lu = m->nexus->target->units; lu != NULL; lu = lu->next) {
		struct scsi_itl *itl = scsi_nexus_of_lu(m->nexus, lu);

		scsi_abort_tasks(lu, m->nexus, is_of_nexus, m->nexus);
		if (itl == NULL)
			continue;
		scsi_nexus_lost(m->nexus, lu);
		scsi_attention_add(itl, SCSI_NEXUS_LOSS);
	}
}

static void
query_task(struct scsi_management *m)
{
	if (m->task != NULL)
		m->response = SCSI_FUNCTION_SUCCEEDED;
	m->task = NULL; /* not to be waited for */
}

static void
query_task_set(struct scsi_management *m)
{
	for (const struct scsi_command *c = m->lu->tasks.first; c != NULL; c = c->next) {
		if (c->nexus == m->nexus)
			m->response = SCSI_FUNCTION_SUCCEEDED;
	}
}

static void
query_asynchronous_event(struct scsi_management *m)
{
	const struct scsi_itl *itl = scsi_nexus_of_lu(m->nexus, m->lu);

	if (itl != NULL && (itl->attention_count > 0 || itl->has_deferred))
		m->response = SCSI_FUNCTION_SUCCEEDED;
}

/* Which units a function is about. */
enum scope { SCOPE_UNIT, SCOPE_TASK, SCOPE_TARGET };

static const struct {
	void (*run)(struct scsi_management *m); /* NULL: not supported */
	enum scope scope;
} functions[] = {
	[SCSI_ABORT_TASK] = { abort_task, SCOPE_TASK },
	[SCSI_ABORT_TASK_SET] = { abort_nexus, SCOPE_UNIT },
	[SCSI_CLEAR_ACA] = { NULL, SCOPE_UNIT },
	[SCSI_CLEAR_TASK_SET] = { abort_all, SCOPE_UNIT },
	[SCSI_LOGICAL_UNIT_RESET] = { reset, SCOPE_UNIT },
	[SCSI_TARGET_WARM_RESET] = { reset, SCOPE_TARGET },
	[SCSI_TARGET_COLD_RESET] = { reset, SCOPE_TARGET },
	[SCSI_I_T_NEXUS_RESET] = { reset_nexus, SCOPE_TARGET },
	[SCSI_QUERY_TASK] = { query_task, SCOPE_TASK },
	[SCSI_QUERY_TASK_SET] = { query_task_set, SCOPE_UNIT },
	[SCSI_QUERY_ASYNCHRONOUS_EVENT] = { query_asynchronous_event, SCOPE_UNIT },
};

/* ---- waiting, and the answer ------------------------------------------------------ */

static bool
unit_has_aborted(const struct scsi_lu *lu, uint64_t before)
{
	for (const struct scsi_command *c = lu->tasks.first; c != NULL; c = c->next) {
		if (c->aborted && c->arrival < before)
			return true;
	}
	return false;
}

/* Whether commands that it is about have still to end. */
static bool
must_wait(const struct scsi_management *m)
{
	bool wait = false;

	if (m->arrival == 0) /* it still aborts */
		return true;
	if (m->response != SCSI_FUNCTION_COMPLETE)
		return false;
	if (functions[m->function].scope == SCOPE_TASK)
		return m->task != NULL && m->task->state != SCSI_ENDED;
	if (m->lu != NULL)
		return unit_has_aborted(m->lu, m->arrival);
	for (const struct scsi_lu *lu = m->nexus->target->units; lu != NULL; lu = lu->next)
		wait = wait || unit_has_aborted(lu, m->arrival);
	return wait;
}

static void
answer(struct pl_work *work)
{
	struct scsi_management *m =
		(struct scsi_management *)((char *)work - offsetof(struct scsi_management, work));
	struct scsi_nexus *nexus = m->nexus;
	struct scsi_lu *lu = m->lu;

	m->on_done(m);
	if (lu != NULL) {
		lu->unended--;
		scsi_lu_settle(lu);
	}
	nexus->unended--;
	scsi_nexus_settle(nexus);
}

static void
answer_soon(struct scsi_management *m)
{
	m->work.run = answer;
	pl_loop_later(m->nexus->target->loop, &m->work);
}

void
scsi_manage_settle(struct scsi_target *target, const struct scsi_command *cmd)
{
	struct scsi_management **at = &target->managements, *m;

	while ((m = *at) != NULL) {
		if (m->task == cmd)
			m->task = NULL;
		if (must_wait(m)) {
			at = &m->next;
			continue;
		}
		*at = m->next;
		answer_soon(m);
	}
}

static void
run(struct scsi_management *m)
{
	struct scsi_target *target = m->nexus->target;

	m->response = SCSI_FUNCTION_COMPLETE;
	/* In the list before anything ends, so that it hears of it; and not answered by that. */
	m->next = target->managements;
	target->managements = m;
	m->arrival = 0;
	functions[m->function].run(m);
	m->arrival = ++target->arrivals;
}

void
scsi_manage(struct scsi_nexus *nexus, struct scsi_management *m)
{
	const struct scsi_itl *itl = scsi_nexus_itl(nexus, scsi_lun_of(m->lun));
	bool known = m->function < sizeof functions / sizeof *functions;

	m->nexus = nexus;
	m->lu = NULL;
	if (known && functions[m->function].scope == SCOPE_UNIT && itl != NULL)
		m->lu = itl->lu;
	nexus->unended++;
	if (m->lu != NULL)
		m->lu->unended++;
	if (!known || functions[m->function].run == NULL) {
		m->response = SCSI_FUNCTION_REJECTED;
	} else if (functions[m->function].scope == SCOPE_UNIT && m->lu == NULL) {
		m->response = SCSI_INCORRECT_LUN;
	} else {
		run(m);
		scsi_manage_settle(nexus->target, NULL);
		return;
	}
	answer_soon(m);
}
