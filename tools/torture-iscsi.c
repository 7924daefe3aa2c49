/* torture-iscsi.c - a LUN of an iSCSI target, by libiscsi. */
#include "torture-target.h"

#include <errno.h>
#include <iscsi/iscsi.h>
#include <iscsi/scsi-lowlevel.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define INITIATOR "iqn.2026-11.org.platter:torture"
#define DEPTH     32
#define TRIES     100  /* of a command that the target was too busy for */
#define ASC_RESET 0x29 /* SPC-4, "ASC and ASCQ assignments" */

struct torture_conn {
	struct iscsi_context *iscsi;
	int lun;
	uint32_t block;
	struct pending *free; /* of all */
	struct pending {
		struct torture_conn *conn;
		struct torture_op *op;
		struct pending *next;
	} all[DEPTH];
};

/* ---- coming and going ------------------------------------------------------------ */

static int
log_in(struct torture_conn *c, const char *target, unsigned timeout_s, struct pl_error *err)
{
	struct iscsi_url *url = iscsi_parse_full_url(c->iscsi, target);
	int error;

	if (url == NULL)
		return pl_error_say(err, -EINVAL, "%s", iscsi_get_error(c->iscsi));
	c->lun = url->lun;
	/* What it did by itself would be done twice. */
	iscsi_set_noautoreconnect(c->iscsi, 1);
	iscsi_set_timeout(c->iscsi, (int)timeout_s);
	iscsi_set_tcp_syncnt(c->iscsi, 3);
	iscsi_set_session_type(c->iscsi, ISCSI_SESSION_NORMAL);
	iscsi_set_header_digest(c->iscsi, ISCSI_HEADER_DIGEST_NONE_CRC32C);
	error = iscsi_set_targetname(c->iscsi, url->target);
	if (error == 0 && url->user[0] != '\0')
		error = iscsi_set_initiator_username_pwd(c->iscsi, url->user, url->passwd);
	if (error == 0)
		error = iscsi_full_connect_sync(c->iscsi, url->portal, c->lun);
	iscsi_destroy_url(url);
	return error == 0 ? 0 : pl_error_say(err, -ENOTCONN, "%s", iscsi_get_error(c->iscsi));
}

/* A command's data, taken apart, or NULL. The task has to be freed. */
static void *
answer(struct scsi_task *task)
{
	if (task == NULL || task->status != SCSI_STATUS_GOOD)
		return NULL;
	return scsi_datain_unmarshall(task);
}

static void
drop(struct scsi_task *task)
{
	if (task != NULL)
		scsi_free_scsi_task(task);
}

/* FUA, whether there is a write cache, whether one may write. */
static unsigned
learn_mode(struct torture_conn *c)
{
	struct scsi_task *task =
		iscsi_modesense6_sync(c->iscsi, c->lun, 1, SCSI_MODESENSE_PC_CURRENT,
				      SCSI_MODEPAGE_CACHING, 0, 255);
	struct scsi_mode_sense *mode = answer(task);
	struct scsi_mode_page *page = NULL;
	unsigned can = 0;

	if (mode != NULL) {
		can |= mode->device_specific_parameter & 0x10 ? CAN_FUA : 0;
		can |= mode->device_specific_parameter & 0x80 ? CAN_NOT_WRITE : 0;
		page = scsi_modesense_get_page(mode, SCSI_MODEPAGE_CACHING, 0);
	}
	can |= page != NULL && !page->caching.wce ? CAN_AT_ONCE : 0;
	drop(task);
	return can;
}

static unsigned
learn_provisioning(struct torture_conn *c)
{
	struct scsi_task *task =
		iscsi_inquiry_sync(c->iscsi, c->lun, 1,
				   SCSI_INQUIRY_PAGECODE_LOGICAL_BLOCK_PROVISIONING, 255);
	struct scsi_inquiry_logical_block_provisioning *page = answer(task);
	unsigned can = 0;

	if (page != NULL)
		can = (page->lbpu ? CAN_TRIM : 0) | (page->lbpws ? CAN_ZERO : 0);
	drop(task);
	return can;
}

static int
learn(struct torture_conn *c, struct torture_info *info, struct pl_error *err)
{
	struct scsi_task *task = iscsi_readcapacity16_sync(c->iscsi, c->lun);
	struct scsi_readcapacity16 *capacity = answer(task);
	uint64_t last = 0;

	if (capacity != NULL) {
		last = capacity->returned_lba;
		c->block = capacity->block_length;
	}
	drop(task);
	if (c->block < 512 || c->block > 65536 || (c->block & (c->block - 1)) != 0 ||
	    last > (UINT64_MAX >> 1) / c->block)
		return pl_error_say(err, -EINVAL, "the LUN tells no capacity that could be");
	*info = (struct torture_info){
		.size = (last + 1) * c->block,
		.unit = c->block,
		.align = c->block,
		.max = 256 << 10,
		.depth = DEPTH,
		.can = CAN_FLUSH | CAN_SHARE | learn_mode(c) | learn_provisioning(c),
	};
	return 0;
}

static int
lun_open(const char *target, enum torture_open how, unsigned timeout_s, struct torture_conn **conn,
	 struct torture_info *info, struct pl_error *err)
{
	struct torture_conn *c = calloc(1, sizeof *c);
	int error;

	(void)how; /* another initiator is not seen */
	if (c == NULL)
		return pl_error_set(err, -ENOMEM, "%s", target);
	for (unsigned i = 0; i < DEPTH; i++) {
		c->all[i] = (struct pending){ .conn = c, .next = c->free };
		c->free = &c->all[i];
	}
	c->iscsi = iscsi_create_context(INITIATOR);
	error = c->iscsi != NULL ? log_in(c, target, timeout_s, err)
				 : pl_error_set(err, -ENOMEM, "%s", target);
	if (error == 0)
		error = learn(c, info, err);
	if (error != 0) {
		if (c->iscsi != NULL)
			iscsi_destroy_context(c->iscsi);
		free(c);
		return error;
	}
	*conn = c;
	return 0;
}

static void
lun_close(struct torture_conn *c)
{
	iscsi_set_timeout(c->iscsi, 2);
	if (iscsi_is_logged_in(c->iscsi))
		iscsi_logout_sync(c->iscsi);
	iscsi_destroy_context(c->iscsi);
	free(c);
}

/* ---- operations ------------------------------------------------------------------ */

static int start(struct torture_conn *c, struct pending *p);

/* It was not carried out, and may be at once, or soon. But a target that has been switched on, or
 * was reset, may have forgotten what it answered before. */
static bool
is_worth_a_retry(int status, const struct scsi_task *task)
{
	return status == SCSI_STATUS_BUSY || status == SCSI_STATUS_TASK_SET_FULL ||
	       (status == SCSI_STATUS_CHECK_CONDITION && task != NULL &&
		task->sense.key == SCSI_SENSE_UNIT_ATTENTION && task->sense.ascq >> 8 != ASC_RESET);
}

static int
error_of(int status, const struct scsi_task *task)
{
	if (status == SCSI_STATUS_GOOD)
		return task->residual_status == SCSI_RESIDUAL_NO_RESIDUAL ? 0 : -EIO;
	if (status == SCSI_STATUS_CHECK_CONDITION && task != NULL &&
	    task->sense.key == SCSI_SENSE_ILLEGAL_REQUEST)
		return task->sense.ascq == SCSI_SENSE_ASCQ_INVALID_OPERATION_CODE ? -EOPNOTSUPP
										  : -EINVAL;
	if (status == SCSI_STATUS_CHECK_CONDITION && task != NULL &&
	    task->sense.key == SCSI_SENSE_DATA_PROTECTION)
		return -EROFS;
	return status == SCSI_STATUS_TIMEOUT ? -ETIMEDOUT : -EIO;
}

static void
done(struct iscsi_context *iscsi, int status, void *data, void *user)
{
	struct scsi_task *task = data;
	struct pending *p = user;
	struct torture_conn *c = p->conn;
	struct torture_op *op = p->op;
	int error = error_of(status, task);
	bool again = is_worth_a_retry(status, task) && op->tries++ < TRIES;

	(void)iscsi;
	drop(task);
	if (again && start(c, p) == 0)
		return;
	p->next = c->free;
	c->free = p;
	op->on_done(op, error);
}

static int
start(struct torture_conn *c, struct pending *p)
{
	static unsigned char zeroes[65536];
	struct torture_op *op = p->op;
	struct unmap_list range = { op->offset / c->block, (uint32_t)(op->length / c->block) };
	struct scsi_task *task = NULL;

	switch (op->kind) {
	case TORTURE_READ:
		task = iscsi_read16_task(c->iscsi, c->lun, range.lba, (uint32_t)op->length,
					 (int)c->block, 0, 0, 0, 0, 0, done, p);
		if (task != NULL)
			scsi_task_add_data_in_buffer(task, (int)op->length, op->data);
		break;
	case TORTURE_WRITE:
		task = iscsi_write16_task(c->iscsi, c->lun, range.lba, op->data,
					  (uint32_t)op->length, (int)c->block, 0, 0, op->fua, 0, 0,
					  done, p);
		break;
	case TORTURE_ZERO:
		task = iscsi_writesame16_task(c->iscsi, c->lun, range.lba, zeroes, c->block,
					      range.num, 0, 0, 0, 0, done, p);
		break;
	case TORTURE_TRIM:
		task = iscsi_unmap_task(c->iscsi, c->lun, 0, 0, &range, 1, done, p);
		break;
	case TORTURE_FLUSH:
		task = iscsi_synchronizecache16_task(c->iscsi, c->lun, 0, 0, 0, 0, done, p);
		break;
	}
	return task != NULL ? 0 : -ENOTCONN;
}

static int
lun_submit(struct torture_conn *c, struct torture_op *op)
{
	struct pending *p = c->free;
	int error;

	c->free = p->next;
	p->op = op;
	op->tries = 0;
	error = start(c, p);
	if (error != 0) {
		p->next = c->free;
		c->free = p;
	}
	return error;
}

static int
lun_wait(struct torture_conn *c, int timeout_ms)
{
	struct pollfd fd = { .fd = iscsi_get_fd(c->iscsi),
			     .events = (short)iscsi_which_events(c->iscsi) };

	if (poll(&fd, 1, timeout_ms) == -1 && errno != EINTR)
		return -errno;
	/* With nothing to do it looks for what has taken too long. */
	if (iscsi_service(c->iscsi, fd.revents) != 0 || !iscsi_is_logged_in(c->iscsi))
		return -ENOTCONN;
	return 0;
}

const struct torture_transport torture_iscsi = {
	.scheme = "iscsi",
	.open = lun_open,
	.submit = lun_submit,
	.wait = lun_wait,
	.close = lun_close,
};
