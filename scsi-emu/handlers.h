/*
 * handlers.h - what the table of commands runs, file by file.
 */
#ifndef SCSI_HANDLERS_H
#define SCSI_HANDLERS_H

#include "scsi-emu.h"

/* opcode.c */
void scsi_report_opcodes(struct scsi_command *cmd);
void scsi_report_functions(struct scsi_command *cmd);

/* block.c: plans of commands with LBA and TRANSFER LENGTH: reads them by the CDB's length, checks
 * range and limit. */
bool scsi_plan_read(struct scsi_command *cmd);             /* data-in of the blocks */
bool scsi_plan_write(struct scsi_command *cmd);            /* data-out of the blocks */
bool scsi_plan_write_atomic(struct scsi_command *cmd);     /* the same, with limits of its own */
bool scsi_plan_verify(struct scsi_command *cmd);           /* BYTCHK: none, the blocks, or one */
bool scsi_plan_write_and_verify(struct scsi_command *cmd); /* the blocks, and scratch */
bool scsi_plan_compare(struct scsi_command *cmd);          /* COMPARE AND WRITE: twice the blocks */
bool scsi_plan_or_write(struct scsi_command *cmd);         /* the blocks, and as much scratch */
bool scsi_plan_range(struct scsi_command *cmd);            /* no data; 0 blocks: to the end */
bool scsi_plan_pre_fetch(struct scsi_command *cmd);        /* the same, with a limit */
bool scsi_plan_same(struct scsi_command *cmd);             /* WRITE SAME: one block, or none */

/* rw.c */
void scsi_test_unit_ready(struct scsi_command *cmd);
void scsi_read(struct scsi_command *cmd);
void scsi_write(struct scsi_command *cmd); /* WRITE ATOMIC, too */
void scsi_pre_fetch(struct scsi_command *cmd);
/* verify.c */
void scsi_verify(struct scsi_command *cmd);
void scsi_write_and_verify(struct scsi_command *cmd);
/* atomic.c */
void scsi_compare_and_write(struct scsi_command *cmd);
void scsi_or_write(struct scsi_command *cmd);
/* sync.c */
void scsi_synchronize_cache(struct scsi_command *cmd);
int scsi_flusher_new(struct scsi_lu *lu); /* errors: -ENOMEM */
void scsi_flusher_free(struct scsi_lu *lu);
bool scsi_flusher_busy(const struct scsi_lu *lu);
/* provision.c */
void scsi_unmap(struct scsi_command *cmd);
void scsi_write_same(struct scsi_command *cmd);
bool scsi_plan_lba_status(struct scsi_command *cmd); /* ALLOCATION LENGTH, and the LBA */
void scsi_get_lba_status(struct scsi_command *cmd);
/* capacity.c */
bool scsi_plan_capacity(struct scsi_command *cmd); /* READ CAPACITY(10): eight bytes */
void scsi_read_capacity_10(struct scsi_command *cmd);
void scsi_read_capacity_16(struct scsi_command *cmd);
/* inquiry.c */
void scsi_inquiry(struct scsi_command *cmd);
void scsi_request_sense(struct scsi_command *cmd);
void scsi_report_target_port_groups(struct scsi_command *cmd);
/* log.c */
void scsi_log_sense(struct scsi_command *cmd);
/* medium.c */
void scsi_format_unit(struct scsi_command *cmd);
void scsi_start_stop(struct scsi_command *cmd);
void scsi_prevent_allow(struct scsi_command *cmd);
void scsi_medium_reset(struct scsi_lu *lu);
void scsi_medium_lost(struct scsi_nexus *nexus, struct scsi_lu *lu); /* the nexus ends */
/* diagnostic.c */
void scsi_send_diagnostic(struct scsi_command *cmd);
void scsi_receive_diagnostic(struct scsi_command *cmd);
/* copy.c */
bool scsi_plan_copy(struct scsi_command *cmd);
void scsi_extended_copy(struct scsi_command *cmd);
/* Whether it is a copy, of any unit, of which a piece for `to` is under way. */
bool scsi_copy_writes(const struct scsi_command *cmd, const struct scsi_lu *to);
void scsi_receive_copy_status(struct scsi_command *cmd);
void scsi_receive_copy_parameters(struct scsi_command *cmd);
void scsi_receive_copy_failure(struct scsi_command *cmd);

#endif
