/*
 * order.h - the task set of a unit: which command may start, beside which.
 *
 * Source: SAM-5, "Task set management"; the matrix is in order.c.
 */
#ifndef SCSI_ORDER_H
#define SCSI_ORDER_H

#include "platter.h"

struct scsi_command;

struct scsi_task_set {
	struct pl_loop *loop;
	struct scsi_command *first, *last; /* in the order in which they may start */
	unsigned special; /* of these: what others may have to wait for, or that waits for others */
	struct pl_work work;
	bool posted;
};

/* It has arrived: its place is taken. */
void scsi_order_add(struct scsi_task_set *set, struct scsi_command *cmd);
/* It is ready to start: returns true if it may now; else scsi_command_start() follows. */
bool scsi_order_ready(const struct scsi_task_set *set, const struct scsi_command *cmd);
/* It has ended: those that waited for it start soon, on the loop. */
void scsi_order_remove(struct scsi_task_set *set, struct scsi_command *cmd);

/* command.c's: cmd, which waited, starts. */
void scsi_command_start(struct scsi_command *cmd);

#endif
