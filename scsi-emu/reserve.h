/*
 * reserve.h - reservations: RESERVE and RELEASE (SPC-2), and persistent ones (SPC-4,
 * "Reservations").
 *
 * Registrations belong to initiator ports (name and ISID), not to nexuses: they outlive logout,
 * and with APTPL the server.
 */
#ifndef SCSI_RESERVE_H
#define SCSI_RESERVE_H

#include "opcode.h"
#include "scsi-emu.h"

/* saved: what scsi_unit.save was last given, or NULL. Errors: -EINVAL (not what we wrote),
 * -ENOMEM. */
int scsi_reserve_new(struct scsi_lu *lu, const char *saved, struct pl_error *err);
void scsi_reserve_free(struct scsi_lu *lu);

/* Whether a reservation forbids to the nexus what is of that class. */
bool scsi_reserve_conflicts(const struct scsi_lu *lu, const struct scsi_nexus *nexus,
			    enum scsi_conflict what);
/* The nexus is lost: what RESERVE reserved is free. */
void scsi_reserve_lost(struct scsi_lu *lu, const struct scsi_nexus *nexus);
/* Reset of the unit: the same for everyone; persistent ones stay. */
void scsi_reserve_reset(struct scsi_lu *lu);
/* scsi_lu_saved() */
void scsi_reserve_saved(struct scsi_lu *lu, int error);
/* Whether text is being kept: the unit cannot go yet. */
bool scsi_reserve_busy(const struct scsi_lu *lu);
/* An aborted command of the unit has ended: PREEMPT AND ABORT may wait for it. */
void scsi_reserve_settle(struct scsi_lu *lu);

void scsi_reserve_unit(struct scsi_command *cmd); /* RESERVE 6, 10 */
void scsi_release_unit(struct scsi_command *cmd); /* RELEASE 6, 10 */

void scsi_read_keys(struct scsi_command *cmd); /* PERSISTENT RESERVE IN */
void scsi_read_reservation(struct scsi_command *cmd);
void scsi_report_capabilities(struct scsi_command *cmd);
bool scsi_plan_full_status(struct scsi_command *cmd);
void scsi_read_full_status(struct scsi_command *cmd);

void scsi_persistent_reserve_out(struct scsi_command *cmd); /* every service action */

#endif
