/*
 * opcode.c - the table of commands.
 *
 * A row has all there is to know of a command before its handler runs. Ascending by operation
 * code and service action: the lookup halves. In `usage`, byte 0 is the operation code, and where
 * there is a service action its place in byte 1 has that; every other bit that is set may be set
 * by the initiator.
 *
 * Sources: SPC-4 and SBC-3, the section with the command's name; WRITE ATOMIC: SBC-4.
 */
#include "opcode.h"

#include "command.h"
#include "handlers.h"
#include "nexus.h"
#include "reserve.h"

#include <assert.h>

#define GATES_NONE   0
#define GATES_UNIT   (GATE_LUN | GATE_ATTENTION)
#define GATES_READY  (GATES_UNIT | GATE_READY)
#define GATES_CHANGE (GATES_READY | GATE_WRITABLE)

#define SERVICE_ACTION 0x1f /* in byte 1 */

static const struct scsi_row rows[] = {
	{ .name = "TEST UNIT READY",
	  .opcode = 0x00,
	  .length = 6,
	  .run = scsi_test_unit_ready,
	  .plan = scsi_plan_none,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_RESERVE,
	  .order = ORDER_NONE,
	  .usage = { 0, 0, 0, 0, 0, 0 } },
	{ .name = "REQUEST SENSE",
	  .opcode = 0x03,
	  .length = 6,
	  .run = scsi_request_sense,
	  .plan = scsi_plan_allocation,
	  .length_at = 4,
	  .length_size = 1,
	  .gates = GATES_NONE,
	  .conflict = CONFLICT_NEVER,
	  .order = ORDER_NONE,
	  .usage = { 0x03, 0x01, 0, 0, 0xff, 0 } },
	{ .name = "FORMAT UNIT",
	  .opcode = 0x04,
	  .length = 6,
	  .run = scsi_format_unit,
	  .plan = scsi_plan_none,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_ALONE,
	  .usage = { 0x04, 0, 0, 0, 0, 0 } },
	{ .name = "READ(6)",
	  .opcode = 0x08,
	  .length = 6,
	  .run = scsi_read,
	  .plan = scsi_plan_read,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_READ,
	  .usage = { 0x08, 0x1f, 0xff, 0xff, 0xff, 0 } },
	{ .name = "WRITE(6)",
	  .opcode = 0x0a,
	  .length = 6,
	  .run = scsi_write,
	  .plan = scsi_plan_write,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_WRITE,
	  .usage = { 0x0a, 0x1f, 0xff, 0xff, 0xff, 0 } },
	{ .name = "INQUIRY",
	  .opcode = 0x12,
	  .length = 6,
	  .run = scsi_inquiry,
	  .plan = scsi_plan_allocation,
	  .length_at = 3,
	  .length_size = 2,
	  .gates = GATES_NONE,
	  .conflict = CONFLICT_NEVER,
	  .order = ORDER_NONE,
	  .usage = { 0x12, 0x01, 0xff, 0xff, 0xff, 0 } },
	{ .name = "MODE SELECT(6)",
	  .opcode = 0x15,
	  .length = 6,
	  .run = scsi_mode_select,
	  .plan = scsi_plan_parameters,
	  .length_at = 4,
	  .length_size = 1,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_ALONE,
	  .usage = { 0x15, 0x10, 0, 0, 0xff, 0 } },
	{ .name = "RESERVE(6)",
	  .opcode = 0x16,
	  .length = 6,
	  .run = scsi_reserve_unit,
	  .plan = scsi_plan_none,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_ALONE,
	  .usage = { 0x16, 0, 0, 0, 0, 0 } },
	{ .name = "RELEASE(6)",
	  .opcode = 0x17,
	  .length = 6,
	  .run = scsi_release_unit,
	  .plan = scsi_plan_none,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_ALONE,
	  .usage = { 0x17, 0, 0, 0, 0, 0 } },
	{ .name = "MODE SENSE(6)",
	  .opcode = 0x1a,
	  .length = 6,
	  .run = scsi_mode_sense,
	  .plan = scsi_plan_allocation,
	  .length_at = 4,
	  .length_size = 1,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_NONE,
	  .usage = { 0x1a, 0x08, 0xff, 0xff, 0xff, 0 } },
	{ .name = "START STOP UNIT",
	  .opcode = 0x1b,
	  .length = 6,
	  .run = scsi_start_stop,
	  .plan = scsi_plan_none,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_ALONE,
	  .usage = { 0x1b, 0x01, 0, 0, 0xf7, 0 } },
	{ .name = "RECEIVE DIAGNOSTIC RESULTS",
	  .opcode = 0x1c,
	  .length = 6,
	  .run = scsi_receive_diagnostic,
	  .plan = scsi_plan_allocation,
	  .length_at = 3,
	  .length_size = 2,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_NONE,
	  .usage = { 0x1c, 0x01, 0xff, 0xff, 0xff, 0 } },
	{ .name = "SEND DIAGNOSTIC",
	  .opcode = 0x1d,
	  .length = 6,
	  .run = scsi_send_diagnostic,
	  .plan = scsi_plan_parameters,
	  .length_at = 3,
	  .length_size = 2,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_NONE,
	  .usage = { 0x1d, 0xf7, 0, 0xff, 0xff, 0 } },
	{ .name = "PREVENT ALLOW MEDIUM REMOVAL",
	  .opcode = 0x1e,
	  .length = 6,
	  .run = scsi_prevent_allow,
	  .plan = scsi_plan_none,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_NONE,
	  .usage = { 0x1e, 0, 0, 0, 0x01, 0 } },
	{ .name = "READ CAPACITY(10)",
	  .opcode = 0x25,
	  .length = 10,
	  .run = scsi_read_capacity_10,
	  .plan = scsi_plan_capacity,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_NEVER,
	  .order = ORDER_NONE,
	  .usage = { 0x25, 0, 0xff, 0xff, 0xff, 0xff, 0, 0, 0x01, 0 } },
	{ .name = "READ(10)",
	  .opcode = 0x28,
	  .length = 10,
	  .run = scsi_read,
	  .plan = scsi_plan_read,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_READ,
	  .usage = { 0x28, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0 },
	  .dpo_fua = 0x18 },
	{ .name = "WRITE(10)",
	  .opcode = 0x2a,
	  .length = 10,
	  .run = scsi_write,
	  .plan = scsi_plan_write,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_WRITE,
	  .usage = { 0x2a, 0x18, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0 },
	  .dpo_fua = 0x18 },
	{ .name = "WRITE AND VERIFY(10)",
	  .opcode = 0x2e,
	  .length = 10,
	  .run = scsi_write_and_verify,
	  .plan = scsi_plan_write_and_verify,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_ATOMIC,
	  .usage = { 0x2e, 0x16, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0 },
	  .dpo_fua = 0x10 },
	{ .name = "VERIFY(10)",
	  .opcode = 0x2f,
	  .length = 10,
	  .run = scsi_verify,
	  .plan = scsi_plan_verify,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_READ,
	  .usage = { 0x2f, 0x16, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0 },
	  .dpo_fua = 0x10 },
	{ .name = "PRE-FETCH(10)",
	  .opcode = 0x34,
	  .length = 10,
	  .run = scsi_pre_fetch,
	  .plan = scsi_plan_pre_fetch,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_READ,
	  .usage = { 0x34, 0x02, 0xff, 0xff, 0xff, 0xff, 0x1f, 0xff, 0xff, 0 } },
	{ .name = "SYNCHRONIZE CACHE(10)",
	  .opcode = 0x35,
	  .length = 10,
	  .run = scsi_synchronize_cache,
	  .plan = scsi_plan_range,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_SYNC,
	  .usage = { 0x35, 0x06 /* SYNC_NV, IMMED */, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0 } },
	{ .name = "WRITE SAME(10)",
	  .opcode = 0x41,
	  .length = 10,
	  .run = scsi_write_same,
	  .plan = scsi_plan_same,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_WRITE,
	  .usage = { 0x41, 0x08, 0xff, 0xff, 0xff, 0xff, 0, 0xff, 0xff, 0 } },
	{ .name = "UNMAP",
	  .opcode = 0x42,
	  .length = 10,
	  .run = scsi_unmap,
	  .plan = scsi_plan_parameters,
	  .length_at = 7,
	  .length_size = 2,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_WRITE,
	  .usage = { 0x42, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0 },
	  .needs = PL_CAP_UNMAP },
	{ .name = "LOG SENSE",
	  .opcode = 0x4d,
	  .length = 10,
	  .run = scsi_log_sense,
	  .plan = scsi_plan_allocation,
	  .length_at = 7,
	  .length_size = 2,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_NEVER,
	  .order = ORDER_NONE,
	  .usage = { 0x4d, 0, 0xff, 0xff, 0, 0xff, 0xff, 0xff, 0xff, 0 } },
	{ .name = "MODE SELECT(10)",
	  .opcode = 0x55,
	  .length = 10,
	  .run = scsi_mode_select,
	  .plan = scsi_plan_parameters,
	  .length_at = 7,
	  .length_size = 2,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_ALONE,
	  .usage = { 0x55, 0x10, 0, 0, 0, 0, 0, 0xff, 0xff, 0 } },
	{ .name = "RESERVE(10)",
	  .opcode = 0x56,
	  .length = 10,
	  .run = scsi_reserve_unit,
	  .plan = scsi_plan_none,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_ALONE,
	  .usage = { 0x56, 0, 0, 0, 0, 0, 0, 0, 0, 0 } },
	{ .name = "RELEASE(10)",
	  .opcode = 0x57,
	  .length = 10,
	  .run = scsi_release_unit,
	  .plan = scsi_plan_none,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_ALONE,
	  .usage = { 0x57, 0, 0, 0, 0, 0, 0, 0, 0, 0 } },
	{ .name = "MODE SENSE(10)",
	  .opcode = 0x5a,
	  .length = 10,
	  .run = scsi_mode_sense,
	  .plan = scsi_plan_allocation,
	  .length_at = 7,
	  .length_size = 2,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_NONE,
	  .usage = { 0x5a, 0x18, 0xff, 0xff, 0, 0, 0, 0xff, 0xff, 0 } },
	{ .name = "PERSISTENT RESERVE IN, READ KEYS",
	  .opcode = 0x5e,
	  .has_service_action = true,
	  .service_action = 0x00,
	  .length = 10,
	  .run = scsi_read_keys,
	  .plan = scsi_plan_allocation,
	  .length_at = 7,
	  .length_size = 2,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_NONE,
	  .usage = { 0x5e, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0 } },
	{ .name = "PERSISTENT RESERVE IN, READ RESERVATION",
	  .opcode = 0x5e,
	  .has_service_action = true,
	  .service_action = 0x01,
	  .length = 10,
	  .run = scsi_read_reservation,
	  .plan = scsi_plan_allocation,
	  .length_at = 7,
	  .length_size = 2,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_NONE,
	  .usage = { 0x5e, 0x01, 0, 0, 0, 0, 0, 0xff, 0xff, 0 } },
	{ .name = "PERSISTENT RESERVE IN, REPORT CAPABILITIES",
	  .opcode = 0x5e,
	  .has_service_action = true,
	  .service_action = 0x02,
	  .length = 10,
	  .run = scsi_report_capabilities,
	  .plan = scsi_plan_allocation,
	  .length_at = 7,
	  .length_size = 2,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_NONE,
	  .usage = { 0x5e, 0x02, 0, 0, 0, 0, 0, 0xff, 0xff, 0 } },
	{ .name = "PERSISTENT RESERVE IN, READ FULL STATUS",
	  .opcode = 0x5e,
	  .has_service_action = true,
	  .service_action = 0x03,
	  .length = 10,
	  .run = scsi_read_full_status,
	  .plan = scsi_plan_full_status,
	  .length_at = 7,
	  .length_size = 2,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_NONE,
	  .usage = { 0x5e, 0x03, 0, 0, 0, 0, 0, 0xff, 0xff, 0 } },
	{ .name = "PERSISTENT RESERVE OUT, REGISTER",
	  .opcode = 0x5f,
	  .has_service_action = true,
	  .service_action = 0x00,
	  .length = 10,
	  .run = scsi_persistent_reserve_out,
	  .plan = scsi_plan_parameters,
	  .length_at = 5,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_ALONE,
	  .usage = { 0x5f, 0, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0 } },
	{ .name = "PERSISTENT RESERVE OUT, RESERVE",
	  .opcode = 0x5f,
	  .has_service_action = true,
	  .service_action = 0x01,
	  .length = 10,
	  .run = scsi_persistent_reserve_out,
	  .plan = scsi_plan_parameters,
	  .length_at = 5,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_ALONE,
	  .usage = { 0x5f, 0x01, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0 } },
	{ .name = "PERSISTENT RESERVE OUT, RELEASE",
	  .opcode = 0x5f,
	  .has_service_action = true,
	  .service_action = 0x02,
	  .length = 10,
	  .run = scsi_persistent_reserve_out,
	  .plan = scsi_plan_parameters,
	  .length_at = 5,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_ALONE,
	  .usage = { 0x5f, 0x02, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0 } },
	{ .name = "PERSISTENT RESERVE OUT, CLEAR",
	  .opcode = 0x5f,
	  .has_service_action = true,
	  .service_action = 0x03,
	  .length = 10,
	  .run = scsi_persistent_reserve_out,
	  .plan = scsi_plan_parameters,
	  .length_at = 5,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_ALONE,
	  .usage = { 0x5f, 0x03, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0 } },
	{ .name = "PERSISTENT RESERVE OUT, PREEMPT",
	  .opcode = 0x5f,
	  .has_service_action = true,
	  .service_action = 0x04,
	  .length = 10,
	  .run = scsi_persistent_reserve_out,
	  .plan = scsi_plan_parameters,
	  .length_at = 5,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_ALONE,
	  .usage = { 0x5f, 0x04, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0 } },
	{ .name = "PERSISTENT RESERVE OUT, PREEMPT AND ABORT",
	  .opcode = 0x5f,
	  .has_service_action = true,
	  .service_action = 0x05,
	  .length = 10,
	  .run = scsi_persistent_reserve_out,
	  .plan = scsi_plan_parameters,
	  .length_at = 5,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_NONE,
	  .usage = { 0x5f, 0x05, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0 } },
	{ .name = "PERSISTENT RESERVE OUT, REGISTER AND IGNORE EXISTING KEY",
	  .opcode = 0x5f,
	  .has_service_action = true,
	  .service_action = 0x06,
	  .length = 10,
	  .run = scsi_persistent_reserve_out,
	  .plan = scsi_plan_parameters,
	  .length_at = 5,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_ALONE,
	  .usage = { 0x5f, 0x06, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0 } },
	{ .name = "PERSISTENT RESERVE OUT, REGISTER AND MOVE",
	  .opcode = 0x5f,
	  .has_service_action = true,
	  .service_action = 0x07,
	  .length = 10,
	  .run = scsi_persistent_reserve_out,
	  .plan = scsi_plan_parameters,
	  .length_at = 5,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_HANDLER,
	  .order = ORDER_ALONE,
	  .usage = { 0x5f, 0x07, 0xff, 0, 0, 0xff, 0xff, 0xff, 0xff, 0 } },
	{ .name = "EXTENDED COPY",
	  .opcode = 0x83,
	  .has_service_action = true,
	  .service_action = 0x00,
	  .length = 16,
	  .run = scsi_extended_copy,
	  .plan = scsi_plan_copy,
	  .length_at = 10,
	  .length_size = 4,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_SYNC,
	  .usage = { 0x83, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0 } },
	{ .name = "RECEIVE COPY RESULTS, COPY STATUS",
	  .opcode = 0x84,
	  .has_service_action = true,
	  .service_action = 0x00,
	  .length = 16,
	  .run = scsi_receive_copy_status,
	  .plan = scsi_plan_allocation,
	  .length_at = 10,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_NONE,
	  .usage = { 0x84, 0, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0 } },
	{ .name = "RECEIVE COPY RESULTS, OPERATING PARAMETERS",
	  .opcode = 0x84,
	  .has_service_action = true,
	  .service_action = 0x03,
	  .length = 16,
	  .run = scsi_receive_copy_parameters,
	  .plan = scsi_plan_allocation,
	  .length_at = 10,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_NONE,
	  .usage = { 0x84, 0x03, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0 } },
	{ .name = "RECEIVE COPY RESULTS, FAILED SEGMENT DETAILS",
	  .opcode = 0x84,
	  .has_service_action = true,
	  .service_action = 0x04,
	  .length = 16,
	  .run = scsi_receive_copy_failure,
	  .plan = scsi_plan_allocation,
	  .length_at = 10,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_NONE,
	  .usage = { 0x84, 0x04, 0xff, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0 } },
	{ .name = "READ(16)",
	  .opcode = 0x88,
	  .length = 16,
	  .run = scsi_read,
	  .plan = scsi_plan_read,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_READ,
	  .usage = { 0x88, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		     0xff, 0, 0 },
	  .dpo_fua = 0x18 },
	{ .name = "COMPARE AND WRITE",
	  .opcode = 0x89,
	  .length = 16,
	  .run = scsi_compare_and_write,
	  .plan = scsi_plan_compare,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_ATOMIC,
	  .usage = { 0x89, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0, 0xff, 0,
		     0 },
	  .dpo_fua = 0x18 },
	{ .name = "WRITE(16)",
	  .opcode = 0x8a,
	  .length = 16,
	  .run = scsi_write,
	  .plan = scsi_plan_write,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_WRITE,
	  .usage = { 0x8a, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		     0xff, 0, 0 },
	  .dpo_fua = 0x18 },
	{ .name = "ORWRITE(16)",
	  .opcode = 0x8b,
	  .length = 16,
	  .run = scsi_or_write,
	  .plan = scsi_plan_or_write,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_ATOMIC,
	  .usage = { 0x8b, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		     0xff, 0, 0 },
	  .dpo_fua = 0x18 },
	{ .name = "WRITE AND VERIFY(16)",
	  .opcode = 0x8e,
	  .length = 16,
	  .run = scsi_write_and_verify,
	  .plan = scsi_plan_write_and_verify,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_ATOMIC,
	  .usage = { 0x8e, 0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		     0xff, 0, 0 },
	  .dpo_fua = 0x10 },
	{ .name = "VERIFY(16)",
	  .opcode = 0x8f,
	  .length = 16,
	  .run = scsi_verify,
	  .plan = scsi_plan_verify,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_READ,
	  .usage = { 0x8f, 0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		     0xff, 0, 0 },
	  .dpo_fua = 0x10 },
	{ .name = "PRE-FETCH(16)",
	  .opcode = 0x90,
	  .length = 16,
	  .run = scsi_pre_fetch,
	  .plan = scsi_plan_pre_fetch,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_READ,
	  .usage = { 0x90, 0x02, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		     0xff, 0x1f, 0 } },
	{ .name = "SYNCHRONIZE CACHE(16)",
	  .opcode = 0x91,
	  .length = 16,
	  .run = scsi_synchronize_cache,
	  .plan = scsi_plan_range,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_SYNC,
	  .usage = { 0x91, 0x06 /* SYNC_NV, IMMED */, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		     0xff, 0xff, 0xff, 0xff, 0xff, 0, 0 } },
	{ .name = "WRITE SAME(16)",
	  .opcode = 0x93,
	  .length = 16,
	  .run = scsi_write_same,
	  .plan = scsi_plan_same,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_WRITE,
	  .usage = { 0x93, 0x09, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		     0xff, 0, 0 } },
	{ .name = "WRITE ATOMIC(16)",
	  .opcode = 0x9c,
	  .length = 16,
	  .run = scsi_write,
	  .plan = scsi_plan_write_atomic,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_ATOMIC,
	  .atomic = true,
	  .usage = { 0x9c, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0, 0xff, 0xff,
		     0, 0 },
	  .dpo_fua = 0x18 },
	{ .name = "READ CAPACITY(16)",
	  .opcode = 0x9e,
	  .has_service_action = true,
	  .service_action = 0x10,
	  .length = 16,
	  .run = scsi_read_capacity_16,
	  .plan = scsi_plan_allocation,
	  .length_at = 10,
	  .length_size = 4,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_NEVER,
	  .order = ORDER_NONE,
	  .usage = { 0x9e, 0x10, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		     0xff, 0x01, 0 } },
	{ .name = "GET LBA STATUS",
	  .opcode = 0x9e,
	  .has_service_action = true,
	  .service_action = 0x12,
	  .length = 16,
	  .run = scsi_get_lba_status,
	  .plan = scsi_plan_lba_status,
	  .length_at = 10,
	  .length_size = 4,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_READ,
	  .usage = { 0x9e, 0x12, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff,
		     0xff, 0, 0 } },
	{ .name = "REPORT LUNS",
	  .opcode = 0xa0,
	  .length = 12,
	  .run = scsi_report_luns,
	  .plan = scsi_plan_allocation,
	  .length_at = 6,
	  .length_size = 4,
	  .gates = GATES_NONE,
	  .conflict = CONFLICT_NEVER,
	  .order = ORDER_NONE,
	  .usage = { 0xa0, 0, 0xff, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0 } },
	{ .name = "REPORT TARGET PORT GROUPS",
	  .opcode = 0xa3,
	  .has_service_action = true,
	  .service_action = 0x0a,
	  .length = 12,
	  .run = scsi_report_target_port_groups,
	  .plan = scsi_plan_allocation,
	  .length_at = 6,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_NEVER,
	  .order = ORDER_NONE,
	  .usage = { 0xa3, 0xea, 0, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0 } },
	{ .name = "REPORT SUPPORTED OPERATION CODES",
	  .opcode = 0xa3,
	  .has_service_action = true,
	  .service_action = 0x0c,
	  .length = 12,
	  .run = scsi_report_opcodes,
	  .plan = scsi_plan_allocation,
	  .length_at = 6,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_NONE,
	  .usage = { 0xa3, 0x0c, 0x87, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0 } },
	{ .name = "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS",
	  .opcode = 0xa3,
	  .has_service_action = true,
	  .service_action = 0x0d,
	  .length = 12,
	  .run = scsi_report_functions,
	  .plan = scsi_plan_allocation,
	  .length_at = 6,
	  .length_size = 4,
	  .gates = GATES_UNIT,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_NONE,
	  .usage = { 0xa3, 0x0d, 0x80, 0, 0, 0, 0xff, 0xff, 0xff, 0xff, 0, 0 } },
	{ .name = "READ(12)",
	  .opcode = 0xa8,
	  .length = 12,
	  .run = scsi_read,
	  .plan = scsi_plan_read,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_READ,
	  .usage = { 0xa8, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0 },
	  .dpo_fua = 0x18 },
	{ .name = "WRITE(12)",
	  .opcode = 0xaa,
	  .length = 12,
	  .run = scsi_write,
	  .plan = scsi_plan_write,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_WRITE,
	  .usage = { 0xaa, 0x18, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0 },
	  .dpo_fua = 0x18 },
	{ .name = "WRITE AND VERIFY(12)",
	  .opcode = 0xae,
	  .length = 12,
	  .run = scsi_write_and_verify,
	  .plan = scsi_plan_write_and_verify,
	  .gates = GATES_CHANGE,
	  .conflict = CONFLICT_WRITE,
	  .order = ORDER_ATOMIC,
	  .usage = { 0xae, 0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0 },
	  .dpo_fua = 0x10 },
	{ .name = "VERIFY(12)",
	  .opcode = 0xaf,
	  .length = 12,
	  .run = scsi_verify,
	  .plan = scsi_plan_verify,
	  .gates = GATES_READY,
	  .conflict = CONFLICT_READ,
	  .order = ORDER_READ,
	  .usage = { 0xaf, 0x16, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0, 0 },
	  .dpo_fua = 0x10 },
};
#define ROWS (sizeof rows / sizeof *rows)

/* ---- looking up ------------------------------------------------------------------ */

/* The first row whose opcode is not below. */
static unsigned
lower_bound(uint8_t opcode)
{
	unsigned from = 0, to = ROWS;

	while (from < to) {
		unsigned middle = (from + to) / 2;

		if (rows[middle].opcode < opcode)
			from = middle + 1;
		else
			to = middle;
	}
	return from;
}

/* Whether the unit has it. lu NULL: any. */
static bool
is_present(const struct scsi_lu *lu, const struct scsi_row *row)
{
	return lu == NULL ||
	       ((row->needs & ~lu->capabilities) == 0 && (!row->atomic || lu->limits.atomic > 0));
}

/* opcode and service action; *known: there is such an opcode. */
static const struct scsi_row *
find(const struct scsi_lu *lu, uint8_t opcode, unsigned service_action, bool *known)
{
	*known = false;
	for (unsigned i = lower_bound(opcode); i < ROWS && rows[i].opcode == opcode; i++) {
		if (!is_present(lu, &rows[i]))
			continue;
		*known = true;
		if (!rows[i].has_service_action || rows[i].service_action == service_action)
			return &rows[i];
	}
	return NULL;
}

const struct scsi_row *
scsi_row_find(const struct scsi_lu *lu, const uint8_t *cdb, unsigned cdb_length, bool *opcode_known)
{
	const struct scsi_row *row;

	*opcode_known = false;
	if (cdb_length < 6)
		return NULL;
	row = find(lu, cdb[0], cdb[1] & SERVICE_ACTION, opcode_known);
	if (row != NULL && row->length > cdb_length) {
		*opcode_known = false;
		return NULL;
	}
	return row;
}

unsigned
scsi_row_count(void)
{
	return ROWS;
}

const struct scsi_row *
scsi_row_at(unsigned i)
{
	assert(i < ROWS);
	return &rows[i];
}

int
scsi_row_check(const struct scsi_row *row, const uint8_t *cdb, int *bit)
{
	for (unsigned byte = 1; byte < row->length; byte++) {
		unsigned allowed = row->usage[byte], wrong;

		if (byte == 1 && row->has_service_action)
			allowed |= SERVICE_ACTION;
		wrong = cdb[byte] & ~allowed;
		if (wrong != 0) {
			*bit = 31 - __builtin_clz(wrong);
			return (int)byte;
		}
	}
	return -1;
}

/* ---- REPORT SUPPORTED OPERATION CODES, SPC-4 -------------------------------------- */

#define TIMEOUTS_LENGTH 12 /* of a command timeouts descriptor */

enum { REPORT_ALL, REPORT_OPCODE, REPORT_SERVICE_ACTION, REPORT_EITHER };
enum { SUPPORT_NO = 1, SUPPORT_STANDARD = 3 };

/* No times are promised: both 0. */
static uint8_t *
put_timeouts(uint8_t *p)
{
	memset(p, 0, TIMEOUTS_LENGTH);
	put_be16(p, TIMEOUTS_LENGTH - 2);
	return p + TIMEOUTS_LENGTH;
}

static void
report_all(struct scsi_command *cmd, bool timeouts)
{
	uint8_t *answer = scsi_answer(cmd), *p = answer + 4;

	for (unsigned i = 0; i < ROWS; i++) {
		const struct scsi_row *row = &rows[i];

		if (!is_present(cmd->lu, row))
			continue;
		p[0] = row->opcode;
		put_be16(p + 2, row->service_action);
		p[5] = (uint8_t)(timeouts ? 0x02 : 0) | (row->has_service_action ? 0x01 : 0);
		put_be16(p + 6, row->length);
		p += 8;
		if (timeouts)
			p = put_timeouts(p);
	}
	put_be32(answer, (uint32_t)(p - answer - 4));
	scsi_answered(cmd, (size_t)(p - answer));
}

static void
report_one(struct scsi_command *cmd, const struct scsi_row *row, bool timeouts)
{
	uint8_t *answer = scsi_answer(cmd), *p = answer + 4;

	answer[1] = (uint8_t)(timeouts ? 0x80 : 0) | (row != NULL ? SUPPORT_STANDARD : SUPPORT_NO);
	if (row == NULL) {
		answer[1] = SUPPORT_NO;
		scsi_answered(cmd, 4);
		return;
	}
	put_be16(answer + 2, row->length);
	memcpy(p, row->usage, row->length);
	if (!cmd->lu->identity.dpofua)
		p[1] &= (uint8_t)~row->dpo_fua;
	p += row->length;
	if (timeouts)
		p = put_timeouts(p);
	scsi_answered(cmd, (size_t)(p - answer));
}

void
scsi_report_opcodes(struct scsi_command *cmd)
{
	bool timeouts = (cmd->cdb[2] & 0x80) != 0, known;
	unsigned service_action = get_be16(cmd->cdb + 4);
	const struct scsi_row *row = find(cmd->lu, cmd->cdb[3], service_action, &known);
	/* Whether the opcode has service actions: any row of it tells. */
	bool has = known && rows[lower_bound(cmd->cdb[3])].has_service_action;

	switch (cmd->cdb[2] & 0x07) {
	case REPORT_ALL: report_all(cmd, timeouts); return;
	case REPORT_OPCODE:
		if (has)
			scsi_fail(cmd, scsi_invalid_field(2, 2));
		else
			report_one(cmd, row, timeouts);
		return;
	case REPORT_SERVICE_ACTION:
		if (known && !has)
			scsi_fail(cmd, scsi_invalid_field(2, 2));
		else
			report_one(cmd, row, timeouts);
		return;
	case REPORT_EITHER:
		if (!has && service_action != 0)
			row = NULL;
		report_one(cmd, row, timeouts);
		return;
	default: scsi_fail(cmd, scsi_invalid_field(2, 2)); return;
	}
}

/* "REPORT SUPPORTED TASK MANAGEMENT FUNCTIONS": what tmf.c does. */
void
scsi_report_functions(struct scsi_command *cmd)
{
	uint8_t *answer = scsi_answer(cmd);
	bool extended = (cmd->cdb[2] & 0x80) != 0;

	answer[0] = 0x80 | 0x40 | 0x10 | 0x08 | 0x04 | 0x02; /* ATS ATSS CTSS LURS QTS TRS */
	answer[1] = 0x04 | 0x02 | 0x01;                      /* QAES QTSS ITNRS */
	answer[3] = extended ? 0x0c : 0;
	scsi_answered(cmd, extended ? 16 : 4);
}
