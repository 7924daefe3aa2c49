/*
 * scsi.h - a target with its units for a test, and the verbs of those who use it.
 *
 *	struct lab s;
 *
 *	lab_open(&s, WORDS("removable=on"), WORDS("driver=memory", "size=1M"));
 *	assert_good(scsi_in(&s.a, cdb_blocks(SCSI_READ_10, 0, 7, 1), 512, data));
 *	assert_sense(scsi_none(&s.b, CDB(0x02, 0, 0, 0, 0, 0)), SCSI_ILLEGAL_REQUEST, 0x2000);
 *	lab_close(&s);
 *
 * The harness is the transport. It gives the target exactly the memory that it asks for,
 * between guards, and fails the case when something is written beyond, when more moves than
 * was expected, when residual, status and sense do not go together, or when a command is
 * answered twice.
 *
 * A lab's units are on one ring loop, the case's thread's. disk[i].f is a fixture (fixture.h):
 * do_write() and its like go past SCSI, crash images are those of driver=powercut.
 */
#ifndef TEST_SCSI_H
#define TEST_SCSI_H

#include "fixture.h"
#include "scsi-emu.h"
#include "spec.h"
#include "test.h"

#define LAB_DISKS 8

/* ---- the lab --------------------------------------------------------------------- */

struct disk {
	struct fixture f;
	struct scsi_lu *lu; /* NULL: removed */
	char *saved;        /* what it has given to keep (APTPL), or NULL */
	unsigned saves;     /* how often */

	struct lab *lab;
	struct pl_params *unit;
	char *unsaved; /* what nobody has kept yet */
	bool saving, gone;
	struct pl_work keep;
};

/* An initiator port that has logged in, or not yet. */
struct initiator {
	struct lab *lab;
	char name[64];
	uint8_t isid[6];
	struct scsi_nexus *nexus; /* NULL: logged out */
	bool gone;
};

struct lab {
	struct scsi_target *target;
	struct pl_loop *loop;
	struct disk disk[LAB_DISKS]; /* at the LUN of that number */
	unsigned disks;
	struct initiator a, b, c; /* a and b are logged in, without unit attentions left */
	bool hold_saves;          /* until lab_keep() */
	int save_error;           /* what keeping comes to */
	unsigned answered;        /* commands and functions, to give them a rank */
	unsigned tasks;           /* commands that have been sent and not answered */
};

/* unit: options of scsi_unit_options; WORDS() for none. disk: of the export. */
void lab_open(struct lab *s, const char *const *unit, const char *const *disk);
/* The same for a read-only export, say: PL_OPEN_READ_ONLY. */
void lab_open_flags(struct lab *s, const char *const *unit, const char *const *disk,
		    unsigned open_flags);
/* One more unit, at the next LUN, which is returned. It is mapped to those who are logged in,
 * which makes unit attentions. */
unsigned lab_add(struct lab *s, const char *const *unit, const char *const *disk,
		 unsigned open_flags);
/* What scsi_lu_new() says to that; nothing is left of it if it fails. */
int lab_try_add(struct lab *s, const char *const *unit, const char *const *disk,
		unsigned open_flags, struct pl_error *err);
void lab_remove(struct lab *s, unsigned lun); /* waits until it is gone */
/* As after a restart: all log out, target and units are made anew, by the same options, over the
 * same exports, with what was saved; a and b log in again. Nobody's unit attentions are cleared. */
void lab_restart(struct lab *s);
void lab_close(struct lab *s); /* logs all out; no task may be left */

/* What was given to save() is kept: scsi_lu_saved(). */
void lab_keep(struct lab *s);

/* Turns the loop until nothing is ready any more that needs no disk. */
void lab_settle(struct lab *s);

/* By the name iqn.2025-01.test:NAME. Unit attentions are left for the case. */
void login(struct lab *s, struct initiator *i, const char *name, uint8_t isid);
void logout(struct initiator *i); /* waits until the nexus is gone */
/* Takes all that wait on every unit. */
void clear_attentions(struct initiator *i);

/* ---- commands -------------------------------------------------------------------- */

struct cdb {
	unsigned length;
	uint8_t bytes[SCSI_CDB_MAX];
};
/* CDB(0x12, 0, 0, 0, 96, 0) */
#define CDB(...) ((struct cdb){ sizeof((uint8_t[]){ __VA_ARGS__ }), { __VA_ARGS__ } })

/* By the group of the operation code: 6, 10, 12 or 16 bytes, with LBA and TRANSFER LENGTH where
 * READ and WRITE have them. byte_1: flags; of 6 bytes it must be 0. */
struct cdb cdb_blocks(uint8_t opcode, uint8_t byte_1, uint64_t lba, uint32_t blocks);
/* "120000006000" */
struct cdb cdb_hex(const char *hex);

enum direction { DATA_NONE, DATA_IN, DATA_OUT };

struct answer {
	bool aborted; /* SCSI_ABORTED: nothing was answered */
	uint8_t status;
	uint32_t moved;    /* bytes: data-in that came, or data-out that was taken */
	unsigned residual; /* enum scsi_residual */
	uint32_t residual_count;
	unsigned rank; /* the how-manieth answer of the lab; from 1 */

	uint8_t sense[SCSI_SENSE_MAX];
	unsigned sense_length; /* 0: none; then the rest is 0 */
	bool descriptor, deferred;
	uint8_t key;
	uint16_t asc;
	bool has_information;
	uint64_t information;
	bool has_field, field_in_cdb; /* the field pointer */
	uint16_t field;
	int bit; /* -1: all of the field */
};

/* Fills the sense fields of a from its bytes; length 0: none. Checks their form. */
void answer_decode(struct answer *a, const uint8_t *sense, unsigned length);

/* One command to LUN 0, and its answer. length: what the initiator expects to move. data: `length`
 * bytes; of data-in only what came is changed. */
struct answer scsi_do(struct initiator *i, struct cdb cdb, enum direction direction,
		      uint32_t length, void *data);
struct answer scsi_do_lun(struct initiator *i, unsigned lun, struct cdb cdb,
			  enum direction direction, uint32_t length, void *data);
struct answer scsi_none(struct initiator *i, struct cdb cdb); /* no data */
struct answer scsi_in(struct initiator *i, struct cdb cdb, uint32_t length, void *data);
struct answer scsi_out(struct initiator *i, struct cdb cdb, uint32_t length, const void *data);

/* They take a struct answer, and say in words what came instead. */
#define assert_good(a)                 answer_good(__FILE__, __LINE__, (a))
#define assert_status(a, status)       answer_status(__FILE__, __LINE__, (a), (status))
#define assert_sense(a, key, asc)      answer_sense(__FILE__, __LINE__, (a), (key), (asc))
#define assert_field(a, byte, bit)     answer_field(__FILE__, __LINE__, (a), true, (byte), (bit))
#define assert_parameter(a, byte, bit) answer_field(__FILE__, __LINE__, (a), false, (byte), (bit))
void answer_good(const char *file, int line, struct answer a); /* GOOD */
void answer_status(const char *file, int line, struct answer a, unsigned status);
void answer_sense(const char *file, int line, struct answer a, unsigned key, unsigned asc);
/* INVALID FIELD IN CDB (or PARAMETER LIST), at this byte and bit (-1: all of the field). */
void answer_field(const char *file, int line, struct answer a, bool in_cdb, unsigned byte, int bit);

/* Blocks by READ(16) and WRITE(16), any number; they must succeed. flags: of byte 1 (8: FUA). */
void scsi_read_blocks(struct initiator *i, uint64_t lba, uint32_t blocks, void *data);
void scsi_write_blocks(struct initiator *i, uint64_t lba, uint32_t blocks, const void *data,
		       uint8_t flags);
/* The current values of a mode page without its header, by MODE SENSE(10). Returns the length. */
unsigned scsi_mode_page(struct initiator *i, uint8_t control_and_page, uint8_t page[256]);

/* ---- several at a time ----------------------------------------------------------- */

struct task {
	struct scsi_command cmd;
	struct lab *lab;
	bool hold;            /* set before: memory is not given before task_give() */
	bool asked;           /* the target has asked for memory */
	bool given;           /* ... and has it */
	bool done;            /* then */
	struct answer answer; /* is there */

	void *data;
	uint8_t *guarded; /* the memory with its guards */
};

/* task: zero, but for `hold`; kept by the caller until it is done. */
void task_send(struct task *task, struct initiator *i, unsigned lun, struct cdb cdb,
	       enum direction direction, uint32_t length, void *data,
	       enum scsi_attribute attribute);
void task_give(struct task *task, int error);
struct answer task_wait(struct task *task);

/* A task management function on LUN, and its response; waits. task: of ABORT and QUERY TASK. */
unsigned manage(struct initiator *i, enum scsi_function function, unsigned lun, struct task *task);
/* The same without waiting. */
struct function {
	struct scsi_management m;
	struct lab *lab;
	bool done;
	unsigned rank; /* among the answers of the lab */
};
void function_start(struct function *f, struct initiator *i, enum scsi_function function,
		    unsigned lun, struct task *task);
unsigned function_wait(struct function *f);

#endif
