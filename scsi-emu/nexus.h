/*
 * nexus.h - an initiator port and the target, and what it finds at each LUN.
 *
 * Source: SAM-5, "Nexus" and "Unit attention conditions".
 */
#ifndef SCSI_NEXUS_H
#define SCSI_NEXUS_H

#include "scsi-emu.h"
#include "sense.h"

#define NEXUS_ATTENTIONS 10 /* more than there are kinds in enum scsi_asc */

/* copy.c: how an EXTENDED COPY ended, until it is asked. */
struct scsi_copy_result {
	bool held;
	uint8_t list; /* LIST IDENTIFIER */
	uint8_t status;
	uint16_t segments; /* done */
	uint64_t bytes;    /* written */
	struct scsi_sense sense;
};

/* "I_T_L nexus": a unit as one initiator port sees it. */
struct scsi_itl {
	struct scsi_lu *lu;                    /* NULL: nothing there */
	uint16_t attentions[NEXUS_ATTENTIONS]; /* enum scsi_asc, oldest first */
	unsigned attention_count;
	bool has_deferred; /* an error of a command that had been answered */
	struct scsi_sense deferred;
	bool prevents; /* medium removal */
	bool flushes;  /* sync.c: was answered before the flush had ended */
	struct scsi_copy_result copy;
};

struct scsi_nexus {
	struct scsi_target *target;
	char initiator[SCSI_NAME_MAX + 1];
	uint8_t isid[6];
	struct scsi_itl *itl[SCSI_LUNS]; /* NULL: nothing there */
	unsigned lun_end;                /* LUNs from here on have nothing */
	bool used;                       /* a command has come */
	bool ending;
	unsigned unended;             /* commands and functions */
	struct scsi_command *nowhere; /* those to LUNs without a unit */
	void (*gone)(void *user);
	void *gone_user;
	struct pl_work gone_work;
	struct scsi_nexus *prev, *next; /* of the target's */
};

/* The LUN of the wire; -1: none that we can have. SAM-5, "Single level LUN structure":
 * peripheral and flat space addressing. */
int scsi_lun_of(const uint8_t lun[8]);

/* What is there; NULL: nothing. */
struct scsi_itl *scsi_nexus_itl(const struct scsi_nexus *nexus, int lun);
/* The one by which this nexus sees lu, or NULL. */
struct scsi_itl *scsi_nexus_of_lu(const struct scsi_nexus *nexus, const struct scsi_lu *lu);

/* SPC-4 "Unit attention": no condition is queued twice; power on and reset replace the others. */
void scsi_attention_add(struct scsi_itl *itl, unsigned asc);
/* Takes the oldest; false: none. */
bool scsi_attention_take(struct scsi_itl *itl, unsigned *asc);

/* SAM-5 "I_T nexus loss": what RESERVE reserved is free, and what the nexus has asked to be kept of
 * the unit is forgotten. */
void scsi_nexus_lost(struct scsi_nexus *nexus, struct scsi_lu *lu);

/* A command to a LUN without a unit, which is in no unit's task set. */
void scsi_nexus_add(struct scsi_command *cmd);
void scsi_nexus_remove(struct scsi_command *cmd);
void scsi_nexus_abort_nowhere(struct scsi_nexus *nexus);

/* A command or function of the nexus has ended. */
void scsi_nexus_settle(struct scsi_nexus *nexus);

/* nexus.c: REPORT LUNS */
void scsi_report_luns(struct scsi_command *cmd);

#endif
