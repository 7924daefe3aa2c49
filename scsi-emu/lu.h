/*
 * lu.h - a logical unit: what the handlers see of it.
 *
 * Each part belongs to one module, which alone changes it; others read.
 */
#ifndef SCSI_LU_H
#define SCSI_LU_H

#include "mode.h"
#include "order.h"
#include "profile.h"
#include "scsi-emu.h"
#include "sense.h"

struct scsi_reservations;
struct scsi_saved_text;

struct scsi_lu {
	struct scsi_target *target;
	struct scsi_lu *next; /* of the target's */
	char *name;
	struct pl_export *export;
	struct pl_channel *channel;
	unsigned capabilities;
	void (*save)(void *user, struct scsi_lu *lu, const char *text);
	void *user;

	/* profile.c: fixed for the unit's life */
	struct scsi_identity identity;
	struct scsi_limits limits;
	uint32_t block_size;     /* bytes */
	uint32_t physical_block; /* bytes */
	uint64_t block_count;    /* blocks; capacity.c: changes on resize */

	struct scsi_mode mode; /* mode.c */
	/* medium.c */
	bool stopped;                      /* by START STOP UNIT */
	bool ejected;                      /* removable, by the same */
	unsigned prevented;                /* nexuses that prevent removal */
	struct scsi_reservations *reserve; /* reserve.c */
	struct scsi_task_set tasks;        /* order.c */
	struct scsi_flusher
		*flusher; /* sync.c: SYNCHRONIZE CACHE that was answered before its end */

	/* lu.c */
	bool removed;
	unsigned unended; /* commands that have arrived and not ended */
	void (*gone)(void *user);
	void *gone_user;
	struct pl_work gone_work;
};

static inline bool
scsi_lu_writable(const struct scsi_lu *lu)
{
	return (lu->capabilities & PL_CAP_WRITE) != 0;
}

/* Thin provisioned: unmapping is offered, for it gives storage back. */
static inline bool
scsi_lu_thin(const struct scsi_lu *lu)
{
	return scsi_lu_writable(lu) && (lu->capabilities & PL_CAP_UNMAP) != 0;
}

/* What is unmapped reads as zeroes. */
static inline bool
scsi_lu_unmaps_to_zeroes(const struct scsi_lu *lu)
{
	return scsi_lu_thin(lu) && (lu->capabilities & PL_CAP_UNMAP_ZEROES) != 0;
}

/* What is written may stay in a cache until it is flushed or written with FUA. */
static inline bool
scsi_lu_cached(const struct scsi_lu *lu)
{
	return scsi_lu_writable(lu) && (lu->capabilities & PL_CAP_WRITE_THROUGH) == 0;
}

/* Bytes of a block address; the caller has checked that it is in range. */
static inline uint64_t
scsi_lu_offset(const struct scsi_lu *lu, uint64_t lba)
{
	return lba * lu->block_size;
}

/* Whether [lba, lba + blocks) is in the unit; blocks 0: whether lba is a block's. Written so that
 * nothing wraps. */
static inline bool
scsi_lu_in_range(const struct scsi_lu *lu, uint64_t lba, uint64_t blocks)
{
	return lba < lu->block_count && blocks <= lu->block_count - lba;
}

/* Each nexus that has the unit: a unit attention for all but `but` (or NULL). */
void scsi_lu_attention(struct scsi_lu *lu, const struct scsi_nexus *but, unsigned asc);

/* tmf.c: reset: reservations by RESERVE, prevention, mode pages and stopped state as at power on;
 * attention asc for every nexus. Commands have been aborted before. */
void scsi_lu_reset(struct scsi_lu *lu, unsigned asc);

/* The nexus does not have the unit any more: its commands that have not started are answered so. */
void scsi_lu_fail_not_started(struct scsi_lu *lu, const struct scsi_nexus *nexus);

/* A command of the unit has ended. */
void scsi_lu_settle(struct scsi_lu *lu);

#endif
