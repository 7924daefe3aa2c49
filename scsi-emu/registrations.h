/*
 * registrations.h - who has registered a key with a unit, and what is reserved: one state.
 *
 * PERSISTENT RESERVE OUT makes the next state from a copy of the one there is; it becomes the
 * unit's when it has been kept, or is thrown away.
 * Source: SPC-4, "Persistent reservations".
 */
#ifndef SCSI_REGISTRATIONS_H
#define SCSI_REGISTRATIONS_H

#include "scsi-emu.h"

#define SCSI_REGISTRATIONS_MAX 256

/* An initiator port; the target has one port, so with it this is an I_T nexus. */
struct scsi_port {
	char initiator[SCSI_NAME_MAX + 1];
	uint8_t isid[6];
};

struct scsi_registration {
	struct scsi_port port;
	uint64_t key;
	bool all_ports; /* ALL_TG_PT */
	uint16_t
		attention; /* what its port is told when the state becomes the unit's; 0: nothing */
};

struct scsi_registrations {
	uint32_t generation; /* PRGENERATION */
	bool kept;           /* APTPL */
	unsigned type;       /* enum scsi_reservation_type; 0: nothing is reserved */
	int holder;          /* in the list; -1: none, or all */
	unsigned count;      /* of the list; from there to `total` are those who leave with it */
	unsigned total;
	struct scsi_registration list[];
};

/* SPC-4, "Type field" of persistent reservations */
enum scsi_reservation_type {
	WRITE_EXCLUSIVE = 1,
	EXCLUSIVE_ACCESS = 3,
	WRITE_EXCLUSIVE_REGISTRANTS = 5,
	EXCLUSIVE_ACCESS_REGISTRANTS = 6,
	WRITE_EXCLUSIVE_ALL = 7,
	EXCLUSIVE_ACCESS_ALL = 8,
};

bool scsi_type_known(unsigned type);
bool scsi_type_all(unsigned type);     /* all registrants hold it */
bool scsi_type_shared(unsigned type);  /* all registrants have what it gives */
bool scsi_type_reading(unsigned type); /* others may read */

/* NULL: no memory. */
struct scsi_registrations *scsi_registrations_new(void);
struct scsi_registrations *scsi_registrations_copy(const struct scsi_registrations *from);

bool scsi_port_is(const struct scsi_port *port, const struct scsi_nexus *nexus);
struct scsi_port scsi_port_of(const struct scsi_nexus *nexus);

/* Its place, or -1. */
int scsi_registrations_find(const struct scsi_registrations *r, const struct scsi_port *port);
int scsi_registrations_of(const struct scsi_registrations *r, const struct scsi_nexus *nexus);
bool scsi_registrations_holds(const struct scsi_registrations *r, int place);

/* At the end; *r may move. False: too many, or no memory. Not when somebody leaves. */
bool scsi_registrations_add(struct scsi_registrations **r, const struct scsi_port *port,
			    uint64_t key, bool all_ports);
/* It leaves; those behind it move up. The caller sees to what it holds. */
void scsi_registrations_leave(struct scsi_registrations *r, unsigned place, unsigned attention);

/* As JSON, to be kept; free() it. NULL: no memory, or a name that is no text. */
char *scsi_registrations_text(const struct scsi_registrations *r);
/* name: for err. Errors: -EINVAL (not what we wrote), -ENOMEM. */
int scsi_registrations_parse(const char *text, const char *name, struct scsi_registrations **r,
			     struct pl_error *err);

#endif
