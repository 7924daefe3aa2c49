/*
 * scsi-emu.h - disks as SCSI sees them, over the block core: CDB in; status, sense and data out.
 *
 *	transport -> nexus -> command -> unit (lu) -> the core's channel
 *
 * A transport (server/iscsi) makes a target with its units, a nexus for each initiator port that
 * has logged in, and submits commands on it. What is SCSI is here, and nothing of what carries it.
 *
 * A target, its units and its nexuses live on one loop, and all is called on its thread: there
 * are no locks. Callbacks come on that thread, too, and may come before the call that causes
 * them returns.
 *
 * Sources: SAM-5, SPC-4 and SBC-3 (SBC-4 where it says so). See docs/HACKING.md, "The life of a
 * SCSI command".
 */
#ifndef SCSI_EMU_H
#define SCSI_EMU_H

#include "platter.h"

struct scsi_target;
struct scsi_lu;
struct scsi_nexus;
struct scsi_row;

#define SCSI_LUNS      256 /* LUNs are 0 to 255, "Peripheral device addressing" in SAM-5 */
#define SCSI_NAME_MAX  223 /* bytes of an iSCSI name, RFC 7143 "iSCSI Name Properties" */
#define SCSI_CDB_MAX   32
#define SCSI_SENSE_MAX 96

/* ---- target.c -------------------------------------------------------------------- */

/*
 * One target device with one target port (relative port 1, target port group 1). name: an iSCSI
 * name; it and ",t,0x0001" are the device's and the port's SCSI name strings, SPC-4 "Device
 * Identification VPD page". Errors: -ENOMEM.
 */
int scsi_target_new(struct scsi_target **target, const char *name, struct pl_loop *loop,
		    struct pl_error *err);
/* No unit and no nexus may be left. */
void scsi_target_free(struct scsi_target *target);

/* ---- profile.c: what a client sees of a unit -------------------------------------- */

/*
 * serial, wwn, vendor, product, revision, rotation-rate, removable, dpofua, max-unmap-size,
 * max-io-size, block-size, physical-block-size, profile: see platter-scsi(7). --help and the
 * manual's test read the rows. What a profile pins never changes: golden files hold it.
 */
extern const struct pl_option scsi_unit_options[];

/* Names and values, and what does not go together; opens nothing. Errors: -EINVAL. */
int scsi_unit_check(const struct pl_params *params, struct pl_error *err);

/* ---- lu.c: a logical unit -------------------------------------------------------- */

struct scsi_unit {
	const struct pl_params *params; /* by scsi_unit_options; copied */
	const char *name;               /* for the log; copied */
	struct pl_export *export;
	struct pl_channel *channel; /* of that export on the target's loop */
	unsigned capabilities;      /* enum pl_capability: the export's, or fewer */
	uint8_t uuid[16];           /* kept for ever; serial number and NAA come from it */

	/* Persistent reservations that outlive the server (APTPL): the text that was last given to
	 * save(), or NULL. save() is to keep `text` (the unit's until then) and call
	 * scsi_lu_saved() once, later; there is one at a time. NULL save: APTPL is not offered. */
	const char *saved;
	void (*save)(void *user, struct scsi_lu *lu, const char *text);
	void *user;
};

/* Errors: -EINVAL (options; a size below one block; cache=unsafe, for which SCSI has no
 * words), -EEXIST (serial or wwn of another unit of this target), -ENOMEM. */
int scsi_lu_new(struct scsi_target *target, const struct scsi_unit *unit, struct scsi_lu **lu,
		struct pl_error *err);

/* The unit is taken from every nexus (REPORTED LUNS CHANGED); commands to it that have not
 * started are answered LOGICAL UNIT NOT SUPPORTED, the others finish. Then gone(user) follows
 * once, never before this returns, and the channel is free. */
void scsi_lu_remove(struct scsi_lu *lu, void (*gone)(void *user), void *user);

/* The export's size has changed: CAPACITY DATA HAS CHANGED on every nexus. */
void scsi_lu_resized(struct scsi_lu *lu);

/* error: 0 or a negative errno. */
void scsi_lu_saved(struct scsi_lu *lu, int error);

/* ---- nexus.c: an initiator port and the target ------------------------------------ */

/*
 * initiator: the iSCSI name; isid: the six bytes that, with it, name the initiator port (RFC 7143,
 * "SCSI Architecture Model"). There may be no other nexus of that port. Power on, reset or bus
 * device reset is established on each unit that is mapped. Errors: -EEXIST, -ENOMEM.
 */
int scsi_nexus_new(struct scsi_target *target, const char *initiator, const uint8_t isid[6],
		   struct scsi_nexus **nexus, struct pl_error *err);

/* Nexus loss: commands are aborted without an answer (on_done still comes, SCSI_ABORTED), those
 * with the core are waited for; what RESERVE reserved is free. Then gone(user) follows once,
 * never before this returns; no write of this nexus is to come after that. */
void scsi_nexus_end(struct scsi_nexus *nexus, void (*gone)(void *user), void *user);

/* Whether there is a unit that both initiators find. */
bool scsi_nexus_shares(const struct scsi_nexus *nexus, const struct scsi_nexus *other);

/* The initiator finds lu at lun (below SCSI_LUNS), or, with NULL, nothing; its commands to what was
 * there before that have not started are answered LOGICAL UNIT NOT SUPPORTED. Once the nexus has
 * been used, REPORTED LUNS DATA HAS CHANGED on its other units. -ENOMEM: it finds nothing there. */
int scsi_nexus_map(struct scsi_nexus *nexus, unsigned lun, struct scsi_lu *lu);

/* ---- command.c: a command, "task" in SAM ------------------------------------------ */

enum scsi_attribute { SCSI_SIMPLE, SCSI_ORDERED, SCSI_HEAD_OF_QUEUE, SCSI_ACA };

/* How a command ended. */
enum scsi_outcome {
	SCSI_DONE,    /* with a status, which is to be sent */
	SCSI_ABORTED, /* nothing is sent */
};

enum scsi_residual { SCSI_EXACT, SCSI_UNDERFLOW, SCSI_OVERFLOW };

/*
 * The good path: the transport fills the first part and submits. If data is to move,
 * on_buffer(cmd) asks for memory_length bytes at `memory`, of which the first transfer_out have
 * been received from the initiator when scsi_command_go() is called; then on_done(cmd) comes,
 * and the first transfer_in bytes of memory are to be sent. on_done comes once for each command
 * that was submitted. It may come instead of scsi_command_go(), while the transport still gathers
 * (aborted, for example): then it gathers no more.
 *
 * The transport may free memory and cmd from on_done on.
 */
struct scsi_command {
	/* the transport's */
	uint8_t cdb[SCSI_CDB_MAX];
	unsigned cdb_length;
	uint8_t lun[8]; /* as on the wire */
	unsigned attribute;
	uint32_t expected_in, expected_out; /* bytes that the initiator is ready to move */
	void (*on_buffer)(struct scsi_command *cmd);
	void (*on_done)(struct scsi_command *cmd);
	void *memory; /* for scsi_command_go() */

	/* for on_buffer */
	uint64_t memory_length, transfer_out;

	/* for on_done */
	unsigned outcome; /* enum scsi_outcome */
	uint8_t status;
	uint8_t sense[SCSI_SENSE_MAX];
	unsigned sense_length;
	uint64_t transfer_in;
	unsigned residual; /* enum scsi_residual */
	uint32_t residual_count;

	/* For counters: what the core was asked for, if it was. */
	bool counted;
	enum pl_op counted_as;
	bool counted_fua;
	uint64_t counted_bytes;
	int counted_error;

	/* From here on scsi-emu's: see command.h. */
	struct scsi_nexus *nexus;
	struct scsi_lu *lu;
	const struct scsi_row *row;
	unsigned state; /* enum scsi_command_state */
	bool aborted, tas, listed, special;
	uint64_t arrival;
	uint64_t lba, blocks; /* of commands that have them */
	uint64_t wanted_in, wanted_out,
		scratch;  /* bytes: by the CDB, and for the handler's own use */
	uint64_t data_in; /* bytes: what the handler has put into memory */
	unsigned flags;   /* PL_FUA, where the CDB says so */
	uint64_t step[4]; /* the handler's */
	struct pl_request req;
	struct iovec iov;
	struct pl_extents extents;
	void (*then)(struct scsi_command *cmd, int error);
	struct pl_channel *channel; /* that req goes to */
	struct scsi_runner *runner; /* command.c: the core has req, and has not returned yet */
	struct scsi_command *prev, *next; /* in the unit's task set */
};

/* Takes cmd over. A command to a nexus that ends is aborted. */
void scsi_command_submit(struct scsi_nexus *nexus, struct scsi_command *cmd);

/* memory is there, and in it what was to come. error: the transport could not get it all; the
 * command is then answered with it: -ENOMEM is BUSY, else ABORTED COMMAND. */
void scsi_command_go(struct scsi_command *cmd, int error);

/* ---- tmf.c: task management, SAM-5 "Task management functions" --------------------- */

enum scsi_function {
	SCSI_ABORT_TASK,
	SCSI_ABORT_TASK_SET,
	SCSI_CLEAR_ACA,
	SCSI_CLEAR_TASK_SET,
	SCSI_LOGICAL_UNIT_RESET,
	SCSI_TARGET_WARM_RESET,
	SCSI_TARGET_COLD_RESET,
	SCSI_I_T_NEXUS_RESET,
	SCSI_QUERY_TASK,
	SCSI_QUERY_TASK_SET,
	SCSI_QUERY_ASYNCHRONOUS_EVENT,
};

enum scsi_function_response {
	SCSI_FUNCTION_COMPLETE,
	SCSI_FUNCTION_SUCCEEDED, /* of a query: yes */
	SCSI_FUNCTION_REJECTED,  /* not supported */
	SCSI_INCORRECT_LUN,
};

struct scsi_management {
	/* the transport's */
	unsigned function;
	uint8_t lun[8];
	struct scsi_command *task; /* ABORT TASK, QUERY TASK: of this nexus */
	void (*on_done)(struct scsi_management *m);

	unsigned response; /* enum scsi_function_response */

	/* From here on scsi-emu's. */
	struct scsi_nexus *nexus;
	struct scsi_lu *lu; /* NULL: every unit */
	uint64_t arrival;   /* commands that came before it; 0: it still aborts */
	struct pl_work work;
	struct scsi_management *next; /* of the target's that wait */
};

/* on_done follows once, never before this returns: when every command that it aborts has ended
 * (their on_done came before), so that no write of theirs comes after the answer. Other
 * initiators' commands end with TASK ABORTED, if the control mode page says so (TAS), or without
 * an answer and COMMANDS CLEARED BY ANOTHER INITIATOR. */
void scsi_manage(struct scsi_nexus *nexus, struct scsi_management *m);

#endif
