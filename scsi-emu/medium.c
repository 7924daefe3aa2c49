/*
 * medium.c - START STOP UNIT, and who prevents that the medium is taken out.
 *
 * A unit that is stopped, or whose medium is out, is not ready until it is started again; before
 * that, all that has been written is made stable. IMMED allows an answer before that is done; the
 * answer comes when it is done. NO_FLUSH allows to leave it undone; it is done.
 *
 * A removable unit has no stopped state of its own, as drives with removable media turn on by
 * themselves: it is stopped by ejecting. It also takes every POWER CONDITION for what it is in.
 *
 * Sources: SBC-3 "START STOP UNIT command", "PREVENT ALLOW MEDIUM REMOVAL command".
 */
#include "command.h"
#include "handlers.h"
#include "lu.h"
#include "nexus.h"
#include "reserve.h"
#include "target.h"

#define START      0x01
#define LOEJ       0x02
#define CONDITIONS (1 << 0x1 | 1 << 0x2 | 1 << 0x3 | 1 << 0x7 | 1 << 0xa | 1 << 0xb)
/* ACTIVE, IDLE, STANDBY; LU_CONTROL, FORCE_IDLE_0, FORCE_STANDBY_0 */

void
scsi_flush(struct scsi_command *cmd, void (*then)(struct scsi_command *cmd, int error))
{
	if (scsi_lu_writable(cmd->lu))
		scsi_request(cmd, PL_FLUSH, 0, 0, 0, NULL, then);
	else
		then(cmd, 0);
}

/* SPC-4 "Commands allowed in the presence of various reservations": these two are forbidden by
 * what they are asked to do. */
static bool
conflicts(struct scsi_command *cmd)
{
	if (!scsi_reserve_conflicts(cmd->lu, cmd->nexus, CONFLICT_WRITE))
		return false;
	scsi_end(cmd, SCSI_RESERVATION_CONFLICT);
	return true;
}

/* ---- START STOP UNIT ------------------------------------------------------------- */

static void
stop_flushed(struct scsi_command *cmd, int error)
{
	if (error != 0) {
		scsi_fail_errno(cmd, error);
		return;
	}
	if ((cmd->cdb[4] & LOEJ) != 0)
		cmd->lu->ejected = true;
	else if (!cmd->lu->identity.removable)
		cmd->lu->stopped = true;
	scsi_good(cmd);
}

static void
power_flushed(struct scsi_command *cmd, int error)
{
	if (error != 0) {
		scsi_fail_errno(cmd, error);
		return;
	}
	cmd->lu->stopped = false;
	scsi_good(cmd);
}

static void
load(struct scsi_command *cmd)
{
	struct scsi_lu *lu = cmd->lu;

	if (lu->ejected) {
		lu->ejected = false;
		scsi_lu_attention(lu, cmd->nexus, SCSI_MEDIUM_MAY_HAVE_CHANGED);
	}
	scsi_good(cmd);
}

void
scsi_start_stop(struct scsi_command *cmd)
{
	struct scsi_lu *lu = cmd->lu;
	unsigned condition = cmd->cdb[4] >> 4;
	bool start = (cmd->cdb[4] & START) != 0, loej = (cmd->cdb[4] & LOEJ) != 0;

	if (condition != 0 && (CONDITIONS & 1 << condition) == 0 && !lu->identity.removable) {
		scsi_fail(cmd, scsi_invalid_field(4, 7));
	} else if (condition == 0 && loej && !lu->identity.removable) {
		scsi_fail(cmd, scsi_invalid_field(4, 1));
	} else if ((condition != 0 || !start || loej) && conflicts(cmd)) {
		return;
	} else if (condition != 0) {
		scsi_flush(cmd, power_flushed);
	} else if (loej && lu->prevented > 0) {
		scsi_fail(cmd, scsi_medium_removal_prevented());
	} else if (!start) {
		scsi_flush(cmd, stop_flushed);
	} else if (loej) {
		load(cmd);
	} else if (lu->ejected) {
		scsi_fail(cmd, scsi_no_medium());
	} else {
		lu->stopped = false;
		scsi_good(cmd);
	}
}

/* ---- PREVENT ALLOW MEDIUM REMOVAL ------------------------------------------------ */

static void
set_prevents(struct scsi_lu *lu, struct scsi_itl *itl, bool prevents)
{
	if (itl->prevents == prevents)
		return;
	itl->prevents = prevents;
	lu->prevented += prevents ? 1 : -1u;
}

/* A unit whose medium is fixed remembers it, too; nothing follows from it. */
void
scsi_prevent_allow(struct scsi_command *cmd)
{
	struct scsi_itl *itl = scsi_nexus_of_lu(cmd->nexus, cmd->lu);
	bool prevents = (cmd->cdb[4] & 0x01) != 0;

	if (prevents && conflicts(cmd))
		return;
	if (itl != NULL)
		set_prevents(cmd->lu, itl, prevents);
	scsi_good(cmd);
}

void
scsi_medium_lost(struct scsi_nexus *nexus, struct scsi_lu *lu)
{
	struct scsi_itl *itl = scsi_nexus_of_lu(nexus, lu);

	if (itl != NULL)
		set_prevents(lu, itl, false);
}

/* What has been ejected stays out. */
void
scsi_medium_reset(struct scsi_lu *lu)
{
	lu->stopped = false;
	for (struct scsi_nexus *n = lu->target->nexuses; n != NULL; n = n->next)
		scsi_medium_lost(n, lu);
}

/* The blocks are as the unit has them already, and what formatting leaves in them is not defined
 * (SBC-3, "FORMAT UNIT command"): here, what they had. */
void
scsi_format_unit(struct scsi_command *cmd)
{
	scsi_good(cmd);
}
