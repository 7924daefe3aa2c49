/*
 * target.h - a target device: its units and who has logged in.
 */
#ifndef SCSI_TARGET_H
#define SCSI_TARGET_H

#include "scsi-emu.h"

#define SCSI_TARGET_PORT       1 /* relative target port identifier */
#define SCSI_TARGET_PORT_GROUP 1

struct scsi_target {
	char name[SCSI_NAME_MAX + 1];
	struct pl_loop *loop;
	struct scsi_lu *units;
	struct scsi_nexus *nexuses;
	struct scsi_management *managements; /* that wait for commands to end */
	uint64_t arrivals;                   /* of commands, to order them */
};

#endif
