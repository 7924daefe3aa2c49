/*
 * persist.h - the reservations of a unit: between reserve.c, which answers by them, and persist.c,
 * which changes the persistent ones.
 */
#ifndef SCSI_PERSIST_H
#define SCSI_PERSIST_H

#include "registrations.h"

struct scsi_reservations {
	struct scsi_lu *lu;
	bool reserved; /* by RESERVE */
	struct scsi_port reserver;
	struct scsi_registrations *now;

	/* persist.c: PERSISTENT RESERVE OUT, one after the other */
	struct scsi_command *cmd;        /* under way; NULL: none */
	struct scsi_registrations *next; /* what it makes, while that is being kept */
	char *text;                      /* the same for lu->save() */
	bool pumping;
	bool aborting;          /* PREEMPT AND ABORT waits for the commands of those who leave */
	uint64_t abort_arrival; /* that came before this */
	struct pl_work work;
	bool posted;
};

#endif
