/*
 * profile.h - what a client sees of a unit, fixed by a versioned profile and by options.
 *
 * A profile is a row of defaults and limits. It never changes: what is to be otherwise is a new
 * profile. tests/scsi/golden holds each byte.
 */
#ifndef SCSI_PROFILE_H
#define SCSI_PROFILE_H

#include "scsi-emu.h"

struct scsi_identity {
	uint8_t uuid[16];
	char serial[37];     /* of VPD page 80h, without NUL at most 36 */
	uint8_t naa[16];     /* designator */
	unsigned naa_length; /* 8 or 16 */
	char vendor[9], product[17], revision[5];
	unsigned rotation_rate; /* VPD B1h: 0 not reported, 1 non-rotating, else rpm */
	bool removable;
	bool dpofua; /* what MODE SENSE says; FUA is honoured in any case */
};

/* What is accepted is what VPD page B0h says: both read this. Blocks of the unit. */
struct scsi_limits {
	uint64_t transfer;         /* of READ, WRITE, VERIFY, ... */
	uint64_t optimal_transfer; /* a multiple of the physical block, or 0 */
	uint64_t unmap;            /* all descriptors together */
	unsigned unmap_descriptors;
	uint64_t unmap_granularity; /* aligned at block 0 */
	uint64_t write_same;
	unsigned compare_and_write;
	uint64_t atomic; /* WRITE ATOMIC: within one piece of that size, aligned to it */
	uint64_t prefetch;
	/* EXTENDED COPY */
	unsigned copy_segments, copy_descriptors, copy_list_length; /* the last in bytes */
	uint64_t copy_segment_length;                               /* bytes */
};

/* Fills lu->identity, limits, block_size, physical_block, block_count from unit. Errors: as
 * scsi_lu_new(). */
int scsi_profile_apply(struct scsi_lu *lu, const struct scsi_unit *unit, struct pl_error *err);

#endif
