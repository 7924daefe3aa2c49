/*
 * tmf.h - task management: for others who abort.
 */
#ifndef SCSI_TMF_H
#define SCSI_TMF_H

#include "scsi-emu.h"

/*
 * Aborts those of the unit's commands that `which` says. Commands that have not started end at
 * once, others when the core is done with them: then `aborted` is set. Of other nexuses than `by`
 * (NULL: of each) they end with TASK ABORTED, or, without TAS, with nothing but COMMANDS CLEARED BY
 * ANOTHER INITIATOR, as SAM-5 "Aborting commands" says. PREEMPT AND ABORT uses it, too.
 */
void scsi_abort_tasks(struct scsi_lu *lu, const struct scsi_nexus *by,
		      bool (*which)(const struct scsi_command *cmd, const void *user),
		      const void *user);

/* An aborted command has ended: functions may have waited for it. */
void scsi_manage_settle(struct scsi_target *target, const struct scsi_command *cmd);

#endif
