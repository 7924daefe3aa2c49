/*
 * mode.h - mode pages: what MODE SENSE tells, and what MODE SELECT changes.
 *
 * Pages 01h, 02h, 08h, 0Ah, 1Ch; SPC-4 and SBC-3, "Mode parameters". One set for all nexuses.
 */
#ifndef SCSI_MODE_H
#define SCSI_MODE_H

#include "scsi-emu.h"

struct scsi_mode {
	bool write_cache;            /* WCE: off makes every change stable, in scsi_request() */
	bool descriptor_sense;       /* D_SENSE */
	bool task_aborted;           /* TAS */
	bool software_write_protect; /* SWP */
};

/* As at power on: WCE follows the export's cache mode. */
void scsi_mode_reset(struct scsi_lu *lu);

void scsi_mode_sense(struct scsi_command *cmd);  /* 6 and 10 */
void scsi_mode_select(struct scsi_command *cmd); /* 6 and 10 */

#endif
