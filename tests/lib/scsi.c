/* scsi.c - a target with its units for a test, and the verbs of those who use it. */
#include "scsi.h"

#include "bytes.h"
#include "loop.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define TARGET "iqn.2025-01.test:target"

/* ---- the lab --------------------------------------------------------------------- */

static void
keep(struct disk *d)
{
	if (!d->saving)
		return;
	d->saving = false;
	if (d->lab->save_error == 0) {
		free(d->saved);
		d->saved = d->unsaved;
	} else {
		free(d->unsaved);
	}
	d->unsaved = NULL;
	scsi_lu_saved(d->lu, d->lab->save_error);
}

static void
keep_later(struct pl_work *work)
{
	keep((struct disk *)((char *)work - offsetof(struct disk, keep)));
}

static void
save(void *user, struct scsi_lu *lu, const char *text)
{
	struct disk *d = user;

	assert_true(lu == d->lu);
	assert_false(d->saving); /* one at a time */
	d->saving = true;
	d->unsaved = text != NULL ? strdup(text) : NULL;
	d->saves++;
	d->keep.run = keep_later;
	if (!d->lab->hold_saves)
		pl_loop_later(d->f.loop, &d->keep);
}

void
lab_keep(struct lab *s)
{
	for (unsigned i = 0; i < s->disks; i++)
		keep(&s->disk[i]);
}

static int
make_unit(struct lab *s, unsigned lun, struct pl_error *err)
{
	struct disk *d = &s->disk[lun];
	struct scsi_unit unit = {
		.params = d->unit,
		.name = "disk",
		.export = d->f.ex,
		.channel = d->f.ch,
		.capabilities = pl_export_capabilities(d->f.ex),
		.uuid = { 0x01, 0x23, 0x45, 0x67, 0x89, 0xab, 0x4c, 0xde, 0x8f, 0x01, 0x23, 0x45,
			  0x67, 0x89, 0xab, (uint8_t)lun },
		.saved = d->saved,
		.save = save,
		.user = d,
	};

	d->gone = false;
	return scsi_lu_new(s->target, &unit, &d->lu, err);
}

static void
unit_gone(void *user)
{
	((struct disk *)user)->gone = true;
}

static void
remove_unit(struct disk *d)
{
	if (d->lu == NULL)
		return;
	scsi_lu_remove(d->lu, unit_gone, d);
	assert_false(d->gone); /* never before it returns */
	while (!d->gone)
		pl_loop_turn(d->f.loop);
	d->lu = NULL;
}

static void
forget_disk(struct disk *d)
{
	pl_channel_close(d->f.ch);
	pl_export_close(d->f.ex);
	pl_params_free(d->unit);
	free(d->saved);
	free(d->unsaved);
	*d = (struct disk){ .lu = NULL };
}

int
lab_try_add(struct lab *s, const char *const *unit, const char *const *disk, unsigned open_flags,
	    struct pl_error *err)
{
	struct disk *d = &s->disk[s->disks];
	int error;

	assert_true(s->disks < LAB_DISKS);
	*d = (struct disk){ .lab = s, .f = { .loop = s->loop, .kind = RING } };
	if (try_export(disk, open_flags, &d->f.ex, err) != 0 ||
	    pl_channel_open(d->f.ex, s->loop, &d->f.ch, err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err->text);
	d->unit = params_of(unit);
	error = make_unit(s, s->disks, err);
	if (error != 0)
		forget_disk(d);
	else
		s->disks++;
	return error;
}

static struct initiator *
initiator_at(struct lab *s, unsigned i)
{
	return i == 0 ? &s->a : i == 1 ? &s->b : &s->c;
}

unsigned
lab_add(struct lab *s, const char *const *unit, const char *const *disk, unsigned open_flags)
{
	struct pl_error err;
	unsigned lun = s->disks;

	if (lab_try_add(s, unit, disk, open_flags, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	for (unsigned i = 0; i < 3; i++) {
		if (initiator_at(s, i)->nexus != NULL)
			scsi_nexus_map(initiator_at(s, i)->nexus, lun, s->disk[lun].lu);
	}
	return lun;
}

void
lab_remove(struct lab *s, unsigned lun)
{
	remove_unit(&s->disk[lun]);
}

static void
make_target(struct lab *s)
{
	struct pl_error err;

	if (scsi_target_new(&s->target, TARGET, s->loop, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
}

void
lab_open_flags(struct lab *s, const char *const *unit, const char *const *disk, unsigned open_flags)
{
	struct pl_error err;

	*s = (struct lab){ .disks = 0 };
	if (pl_loop_new(&s->loop, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	make_target(s);
	lab_add(s, unit, disk, open_flags);
	login(s, &s->a, "a", 1);
	login(s, &s->b, "b", 2);
	clear_attentions(&s->a);
	clear_attentions(&s->b);
}

void
lab_open(struct lab *s, const char *const *unit, const char *const *disk)
{
	lab_open_flags(s, unit, disk, 0);
}

static void
empty_target(struct lab *s)
{
	for (unsigned i = 0; i < 3; i++) {
		if (initiator_at(s, i)->nexus != NULL)
			logout(initiator_at(s, i));
	}
	assert_eq(s->tasks, 0);
	for (unsigned i = 0; i < s->disks; i++)
		remove_unit(&s->disk[i]);
	scsi_target_free(s->target);
}

void
lab_restart(struct lab *s)
{
	struct pl_error err;

	empty_target(s);
	make_target(s);
	for (unsigned i = 0; i < s->disks; i++) {
		if (make_unit(s, i, &err) != 0)
			test_fail(__FILE__, __LINE__, "%s", err.text);
	}
	login(s, &s->a, "a", 1);
	login(s, &s->b, "b", 2);
}

void
lab_close(struct lab *s)
{
	empty_target(s);
	while (s->disks > 0)
		forget_disk(&s->disk[--s->disks]);
	pl_loop_free(s->loop);
}

struct mark {
	struct pl_work work;
	bool reached;
};

static void
reach(struct pl_work *work)
{
	((struct mark *)work)->reached = true;
}

void
lab_settle(struct lab *s)
{
	for (unsigned i = 0; i < 10; i++) {
		struct mark mark = { .work.run = reach };

		pl_loop_post(s->loop, &mark.work);
		while (!mark.reached)
			pl_loop_turn(s->loop);
	}
}

/* ---- initiators ------------------------------------------------------------------ */

void
login(struct lab *s, struct initiator *i, const char *name, uint8_t isid)
{
	struct pl_error err;

	*i = (struct initiator){ .lab = s, .isid = { 0x80, 0x12, 0x34, 0x56, 0x00, isid } };
	snprintf(i->name, sizeof i->name, "iqn.2025-01.test:%s", name);
	if (scsi_nexus_new(s->target, i->name, i->isid, &i->nexus, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	for (unsigned lun = 0; lun < s->disks; lun++) {
		if (s->disk[lun].lu != NULL)
			scsi_nexus_map(i->nexus, lun, s->disk[lun].lu);
	}
}

static void
nexus_gone(void *user)
{
	struct initiator *i = user;

	i->gone = true;
}

void
logout(struct initiator *i)
{
	i->gone = false;
	scsi_nexus_end(i->nexus, nexus_gone, i);
	assert_false(i->gone); /* never before it returns */
	while (!i->gone)
		pl_loop_turn(i->lab->loop);
	i->nexus = NULL;
}

void
clear_attentions(struct initiator *i)
{
	for (unsigned lun = 0; lun < i->lab->disks; lun++) {
		struct answer a;
		unsigned tries = 0;

		if (i->lab->disk[lun].lu == NULL)
			continue;
		do
			a = scsi_do_lun(i, lun, CDB(SCSI_TEST_UNIT_READY, 0, 0, 0, 0, 0), DATA_NONE,
					0, NULL);
		while (a.key == SCSI_UNIT_ATTENTION && ++tries < 100);
		assert_true(tries < 100);
	}
}

/* ---- CDBs ------------------------------------------------------------------------ */

struct cdb
cdb_blocks(uint8_t opcode, uint8_t byte_1, uint64_t lba, uint32_t blocks)
{
	struct cdb cdb = { .bytes = { opcode, byte_1 } };

	switch (opcode >> 5) {
	case 0:
		assert_true(byte_1 == 0 && lba < 1 << 21 && blocks <= 256);
		put_be24(cdb.bytes + 1, (uint32_t)lba);
		cdb.bytes[4] = (uint8_t)blocks;
		cdb.length = 6;
		break;
	case 1:
	case 2:
		assert_true(lba <= UINT32_MAX && blocks <= UINT16_MAX);
		put_be32(cdb.bytes + 2, (uint32_t)lba);
		put_be16(cdb.bytes + 7, (uint16_t)blocks);
		cdb.length = 10;
		break;
	case 4:
		put_be64(cdb.bytes + 2, lba);
		if (opcode == SCSI_COMPARE_AND_WRITE) /* NUMBER OF LOGICAL BLOCKS is a byte */
			cdb.bytes[13] = (uint8_t)blocks;
		else if (opcode == SCSI_WRITE_ATOMIC_16)
			put_be16(cdb.bytes + 12, (uint16_t)blocks);
		else
			put_be32(cdb.bytes + 10, blocks);
		cdb.length = 16;
		break;
	case 5:
		assert_true(lba <= UINT32_MAX);
		put_be32(cdb.bytes + 2, (uint32_t)lba);
		put_be32(cdb.bytes + 6, blocks);
		cdb.length = 12;
		break;
	default: test_fail(__FILE__, __LINE__, "operation code %02x has no group", opcode);
	}
	return cdb;
}

struct cdb
cdb_hex(const char *hex)
{
	struct cdb cdb = { .length = 0 };
	unsigned byte;

	for (; hex[0] != '\0' && sscanf(hex, "%2x", &byte) == 1; hex += 2) {
		assert_true(cdb.length < SCSI_CDB_MAX && hex[1] != '\0');
		cdb.bytes[cdb.length++] = (uint8_t)byte;
	}
	assert_true(*hex == '\0');
	return cdb;
}

/* ---- sense ----------------------------------------------------------------------- */

/* SPC-4, "Field pointer sense key specific data" */
static void
decode_specific(struct answer *a, const uint8_t *p)
{
	if ((p[0] & 0x80) == 0 || a->key != SCSI_ILLEGAL_REQUEST)
		return;
	a->has_field = true;
	a->field_in_cdb = (p[0] & 0x40) != 0;
	a->bit = (p[0] & 0x08) != 0 ? p[0] & 7 : -1;
	a->field = get_be16(p + 1);
}

static void
decode_fixed(struct answer *a, const uint8_t *p, unsigned length)
{
	assert_true(length >= 18);
	assert_eq(p[7], length - 8);
	a->key = p[2] & 0x0f;
	a->asc = get_be16(p + 12);
	a->has_information = (p[0] & 0x80) != 0;
	if (a->has_information)
		a->information = get_be32(p + 3);
	decode_specific(a, p + 15);
}

static void
decode_descriptors(struct answer *a, const uint8_t *p, unsigned length)
{
	assert_true(length >= 8);
	assert_eq(p[7], length - 8);
	a->key = p[1] & 0x0f;
	a->asc = get_be16(p + 2);
	for (unsigned at = 8; at < length; at += 2u + p[at + 1]) {
		assert_true(at + 2 <= length && at + 2 + p[at + 1] <= length);
		if (p[at] == 0x00) {
			assert_eq(p[at + 1], 10);
			a->has_information = (p[at + 2] & 0x80) != 0;
			a->information = get_be64(p + at + 4);
		} else if (p[at] == 0x02) {
			assert_eq(p[at + 1], 6);
			decode_specific(a, p + at + 4);
		}
	}
}

void
answer_decode(struct answer *a, const uint8_t *sense, unsigned length)
{
	assert_true(length <= SCSI_SENSE_MAX);
	memcpy(a->sense, sense, length);
	a->sense_length = length;
	if (length == 0)
		return;
	switch (sense[0] & 0x7f) {
	case 0x70: decode_fixed(a, sense, length); break;
	case 0x71: decode_fixed(a, sense, length); break;
	case 0x72: decode_descriptors(a, sense, length); break;
	case 0x73: decode_descriptors(a, sense, length); break;
	default: test_fail(__FILE__, __LINE__, "sense with response code %02x", sense[0]);
	}
	a->descriptor = (sense[0] & 2) != 0;
	a->deferred = (sense[0] & 1) != 0;
}

static const char *
in_words(const struct answer *a)
{
	static _Thread_local char text[300];
	int n;

	if (a->aborted)
		return "nothing: it was aborted";
	n = snprintf(text, sizeof text, "status %02x", a->status);
	if (a->sense_length > 0)
		n += snprintf(text + n, sizeof text - (size_t)n, ", sense %x/%04x%s", a->key,
			      a->asc, a->deferred ? " (deferred)" : "");
	if (a->has_field)
		n += snprintf(text + n, sizeof text - (size_t)n, ", %s byte %u bit %d",
			      a->field_in_cdb ? "CDB" : "parameter", a->field, a->bit);
	if (a->has_information)
		snprintf(text + n, sizeof text - (size_t)n, ", information %" PRIu64,
			 a->information);
	return text;
}

void
answer_status(const char *file, int line, struct answer a, unsigned status)
{
	if (a.aborted || a.status != status)
		test_fail(file, line, "expected status %02x, got %s", status, in_words(&a));
}

void
answer_good(const char *file, int line, struct answer a)
{
	answer_status(file, line, a, SCSI_GOOD);
}

void
answer_sense(const char *file, int line, struct answer a, unsigned key, unsigned asc)
{
	if (a.aborted || a.status != SCSI_CHECK_CONDITION || a.key != key || a.asc != asc)
		test_fail(file, line, "expected sense %x/%04x, got %s", key, asc, in_words(&a));
}

void
answer_field(const char *file, int line, struct answer a, bool in_cdb, unsigned byte, int bit)
{
	answer_sense(file, line, a, SCSI_ILLEGAL_REQUEST, in_cdb ? 0x2400 : 0x2600);
	if (!a.has_field || a.field_in_cdb != in_cdb || a.field != byte || a.bit != bit)
		test_fail(file, line, "expected %s byte %u bit %d, got %s",
			  in_cdb ? "CDB" : "parameter", byte, bit, in_words(&a));
}

/* ---- the transport --------------------------------------------------------------- */

enum { GUARD = 64, GUARD_BYTE = 0x9e, OLD_BYTE = 0xa7 };

static struct task *
task_of(struct scsi_command *cmd)
{
	return (struct task *)((char *)cmd - offsetof(struct task, cmd));
}

/* Memory as an allocator may give it: with old bytes in it. */
static void
task_memory(struct task *task)
{
	uint64_t length = task->cmd.memory_length;

	task->guarded = malloc(length + 2 * GUARD);
	assert_true(task->guarded != NULL);
	memset(task->guarded, GUARD_BYTE, length + 2 * GUARD);
	memset(task->guarded + GUARD, OLD_BYTE, length);
	task->cmd.memory = task->guarded + GUARD;
	if (task->cmd.transfer_out > 0)
		memcpy(task->cmd.memory, task->data, task->cmd.transfer_out);
}

void
task_give(struct task *task, int error)
{
	assert_true(task->asked && !task->given && !task->done);
	task->given = true;
	if (error == 0)
		task_memory(task);
	scsi_command_go(&task->cmd, error);
}

static void
task_asked(struct scsi_command *cmd)
{
	struct task *task = task_of(cmd);

	assert_false(task->done || task->asked);
	assert_true(cmd->memory_length > 0 && cmd->transfer_out <= cmd->memory_length);
	assert_true(cmd->transfer_out <= cmd->expected_out);
	task->asked = true;
	if (!task->hold)
		task_give(task, 0);
}

/* RFC 7143, "Residual Count": what was expected and did not move, or would have moved more. */
static void
check_residual(const struct scsi_command *cmd)
{
	uint32_t expected = cmd->expected_in + cmd->expected_out;

	switch (cmd->residual) {
	case SCSI_EXACT: assert_eq(cmd->residual_count, 0); break;
	case SCSI_UNDERFLOW:
		assert_true(cmd->residual_count > 0 && cmd->residual_count <= expected);
		break;
	case SCSI_OVERFLOW: assert_true(cmd->residual_count > 0); break;
	default: test_fail(__FILE__, __LINE__, "residual %u", cmd->residual);
	}
	assert_true(cmd->transfer_in <= cmd->expected_in);
	if (cmd->outcome == SCSI_ABORTED || cmd->expected_out > 0)
		return;
	assert_eq(cmd->expected_in - cmd->transfer_in,
		  cmd->residual == SCSI_UNDERFLOW ? cmd->residual_count : 0);
}

static void
task_done(struct scsi_command *cmd)
{
	struct task *task = task_of(cmd);
	struct answer *a = &task->answer;

	assert_false(task->done);
	task->done = true;
	task->lab->tasks--;
	check_residual(cmd);
	*a = (struct answer){
		.aborted = cmd->outcome == SCSI_ABORTED,
		.status = cmd->status,
		.residual = cmd->residual,
		.residual_count = cmd->residual_count,
		.rank = ++task->lab->answered,
	};
	if (!a->aborted) {
		assert_true((cmd->status == SCSI_CHECK_CONDITION) == (cmd->sense_length > 0));
		answer_decode(a, cmd->sense, cmd->sense_length);
		a->moved = (uint32_t)cmd->transfer_in;
		if (cmd->expected_out > 0 && task->given)
			a->moved = (uint32_t)cmd->transfer_out;
	}
	if (task->guarded != NULL) {
		assert_filled(task->guarded, GUARD_BYTE, GUARD);
		assert_filled(task->guarded + GUARD + cmd->memory_length, GUARD_BYTE, GUARD);
		if (!a->aborted && cmd->transfer_in > 0)
			memcpy(task->data, cmd->memory, cmd->transfer_in);
	} else {
		assert_eq(cmd->transfer_in, 0);
	}
	free(task->guarded);
	task->guarded = NULL;
	memset(cmd, OLD_BYTE, sizeof *cmd); /* the transport's again */
}

static void
put_lun(uint8_t to[8], unsigned lun)
{
	memset(to, 0, 8);
	to[1] = (uint8_t)lun;
}

void
task_send(struct task *task, struct initiator *i, unsigned lun, struct cdb cdb,
	  enum direction direction, uint32_t length, void *data, enum scsi_attribute attribute)
{
	bool hold = task->hold;

	*task = (struct task){ .lab = i->lab, .hold = hold, .data = data };
	assert_true(length == 0 || (data != NULL && direction != DATA_NONE));
	task->cmd = (struct scsi_command){
		.cdb_length = cdb.length,
		.attribute = attribute,
		.expected_in = direction == DATA_IN ? length : 0,
		.expected_out = direction == DATA_OUT ? length : 0,
		.on_buffer = task_asked,
		.on_done = task_done,
	};
	memcpy(task->cmd.cdb, cdb.bytes, sizeof cdb.bytes);
	put_lun(task->cmd.lun, lun);
	i->lab->tasks++;
	scsi_command_submit(i->nexus, &task->cmd);
}

struct answer
task_wait(struct task *task)
{
	while (!task->done)
		pl_loop_turn(task->lab->loop);
	return task->answer;
}

/* ---- one command at a time ------------------------------------------------------- */

struct answer
scsi_do_lun(struct initiator *i, unsigned lun, struct cdb cdb, enum direction direction,
	    uint32_t length, void *data)
{
	struct task task = { .hold = false };

	task_send(&task, i, lun, cdb, direction, length, data, SCSI_SIMPLE);
	return task_wait(&task);
}

struct answer
scsi_do(struct initiator *i, struct cdb cdb, enum direction direction, uint32_t length, void *data)
{
	return scsi_do_lun(i, 0, cdb, direction, length, data);
}

struct answer
scsi_none(struct initiator *i, struct cdb cdb)
{
	return scsi_do(i, cdb, DATA_NONE, 0, NULL);
}

struct answer
scsi_in(struct initiator *i, struct cdb cdb, uint32_t length, void *data)
{
	return scsi_do(i, cdb, DATA_IN, length, data);
}

struct answer
scsi_out(struct initiator *i, struct cdb cdb, uint32_t length, const void *data)
{
	return scsi_do(i, cdb, DATA_OUT, length, (void *)(uintptr_t)data);
}

static uint32_t
block_size(struct initiator *i)
{
	uint8_t capacity[32];

	assert_good(scsi_in(i,
			    CDB(SCSI_SERVICE_ACTION_IN_16, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0,
				32, 0, 0),
			    sizeof capacity, capacity));
	return get_be32(capacity + 8);
}

void
scsi_read_blocks(struct initiator *i, uint64_t lba, uint32_t blocks, void *data)
{
	assert_good(
		scsi_in(i, cdb_blocks(SCSI_READ_16, 0, lba, blocks), blocks * block_size(i), data));
}

void
scsi_write_blocks(struct initiator *i, uint64_t lba, uint32_t blocks, const void *data,
		  uint8_t flags)
{
	assert_good(scsi_out(i, cdb_blocks(SCSI_WRITE_16, flags, lba, blocks),
			     blocks * block_size(i), data));
}

unsigned
scsi_mode_page(struct initiator *i, uint8_t control_and_page, uint8_t page[256])
{
	uint8_t data[512];
	unsigned at, length;

	assert_good(
		scsi_in(i,
			CDB(SCSI_MODE_SENSE_10, 0x08, control_and_page, 0, 0, 0, 0, 0x02, 0x00, 0),
			sizeof data, data));
	at = 8u + get_be16(data + 6);
	length = get_be16(data) + 2u - at;
	assert_true(length <= 256);
	memcpy(page, data + at, length);
	return length;
}

/* ---- task management ------------------------------------------------------------- */

static void
function_done(struct scsi_management *m)
{
	struct function *f = (struct function *)((char *)m - offsetof(struct function, m));

	assert_false(f->done);
	f->done = true;
	f->rank = ++f->lab->answered;
}

void
function_start(struct function *f, struct initiator *i, enum scsi_function function, unsigned lun,
	       struct task *task)
{
	*f = (struct function){
		.m = { .function = function,
		       .task = task != NULL ? &task->cmd : NULL,
		       .on_done = function_done },
		.lab = i->lab,
	};
	put_lun(f->m.lun, lun);
	scsi_manage(i->nexus, &f->m);
	assert_false(f->done); /* never before it returns */
}

unsigned
function_wait(struct function *f)
{
	while (!f->done)
		pl_loop_turn(f->lab->loop);
	return f->m.response;
}

unsigned
manage(struct initiator *i, enum scsi_function function, unsigned lun, struct task *task)
{
	struct function f;

	function_start(&f, i, function, lun, task);
	return function_wait(&f);
}
