/*
 * opcode.h - the table of commands: a row is all that the dispatcher, REPORT SUPPORTED OPERATION
 * CODES, the manual's test and the fuzzers know of a command.
 */
#ifndef SCSI_OPCODE_H
#define SCSI_OPCODE_H

#include "scsi-emu.h"

enum scsi_gate {
	GATE_LUN = 1 << 0, /* needs a unit there; without: also answered for LUNs without one */
	GATE_ATTENTION = 1 << 1, /* a pending unit attention comes first */
	GATE_READY = 1 << 2,     /* not while stopped or without medium */
	GATE_WRITABLE = 1 << 3,  /* not on a read-only unit */
};

/* What a reservation of another initiator means for it: SPC-4, "Commands allowed in the presence
 * of various reservations", and SBC-3's table of the same name. */
enum scsi_conflict {
	CONFLICT_NEVER,   /* allowed always */
	CONFLICT_WRITE,   /* changes data or the unit: only for who holds or shares */
	CONFLICT_READ,    /* also allowed beside Write Exclusive types */
	CONFLICT_RESERVE, /* only what RESERVE reserved forbids it */
	CONFLICT_HANDLER /* PERSISTENT RESERVE OUT, RESERVE, RELEASE, START STOP...: it looks itself
			  */
};

/* Classes of order.c's matrix. */
enum scsi_order {
	ORDER_NONE, /* answers at once; waits for nobody, nobody waits for it */
	ORDER_READ,
	ORDER_WRITE,
	ORDER_ATOMIC, /* nobody sees its range half done */
	ORDER_SYNC,
	ORDER_ALONE, /* changes what all others depend on */
	ORDER_CLASSES,
};

struct scsi_row {
	const char *name; /* as in the standard */
	uint8_t opcode;
	bool has_service_action;
	uint16_t service_action;
	uint8_t length; /* of the CDB */
	void (*run)(struct scsi_command *cmd);
	bool (*plan)(struct scsi_command *cmd);
	uint8_t length_at, length_size; /* of ALLOCATION or PARAMETER LIST LENGTH in the CDB */
	unsigned gates;
	unsigned conflict; /* enum scsi_conflict */
	unsigned order;    /* enum scsi_order */
	/* Bits that may be set, byte 0 being the opcode; any other is refused with its place. */
	uint8_t usage[16];
	uint8_t dpo_fua; /* of byte 1: not reported where DPOFUA is off, and accepted all the same
			  */
	bool atomic; /* there is none where the unit keeps no block whole through a loss of power */
	unsigned needs; /* enum pl_capability without which there is no such command */
};

/* The only way to a row. NULL: no such opcode, or (*opcode_known) no such service action. */
const struct scsi_row *scsi_row_find(const struct scsi_lu *lu, const uint8_t *cdb,
				     unsigned cdb_length, bool *opcode_known);
unsigned scsi_row_count(void);
const struct scsi_row *scsi_row_at(unsigned i); /* by opcode and service action, ascending */

/* The first bit that the row does not allow: its byte, and *bit. -1: there is none. */
int scsi_row_check(const struct scsi_row *row, const uint8_t *cdb, int *bit);

#endif
