/*
 * diagnostic.c - SEND DIAGNOSTIC and RECEIVE DIAGNOSTIC RESULTS.
 *
 * The self-test makes stable what has been written, which goes the whole way to the disk. Others
 * (short, extended, in the background) leave their result in a log page that is not here, and are
 * refused.
 *
 * Source: SPC-4 "SEND DIAGNOSTIC command", "Diagnostic parameters".
 */
#include "command.h"
#include "handlers.h"
#include "lu.h"

#include <errno.h>

/* "Supported Diagnostic Pages": itself */
static const uint8_t supported_pages[] = { 0x00, 0x00, 0x00, 0x01, 0x00 };

/* Page 00h, which asks that RECEIVE DIAGNOSTIC RESULTS tell the pages: it does so anyway. */
static void
take_page(struct scsi_command *cmd)
{
	const uint8_t *p = cmd->memory;

	if (cmd->transfer_out < cmd->wanted_out || cmd->transfer_out < 4)
		scsi_fail(cmd, scsi_parameter_list_length_error());
	else if (p[0] != 0)
		scsi_fail(cmd, scsi_invalid_parameter(0, 7));
	else if (get_be16(p + 2) != 0)
		scsi_fail(cmd, scsi_invalid_parameter(2, 7));
	else if (cmd->transfer_out > 4)
		scsi_fail(cmd, scsi_parameter_list_length_error());
	else
		scsi_good(cmd);
}

static void
self_tested(struct scsi_command *cmd, int error)
{
	if (error == -ECANCELED || error == -ENOMEM)
		scsi_fail_errno(cmd, error);
	else if (error != 0 || pl_export_failed(cmd->lu->export))
		scsi_fail(cmd, scsi_self_test_failed());
	else
		scsi_good(cmd);
}

void
scsi_send_diagnostic(struct scsi_command *cmd)
{
	if ((cmd->cdb[1] & 0xe0) != 0)
		scsi_fail(cmd, scsi_invalid_field(1, 7)); /* SELF-TEST CODE */
	else if ((cmd->cdb[1] & 0x04) == 0 && cmd->wanted_out == 0)
		scsi_good(cmd);
	else if ((cmd->cdb[1] & 0x04) == 0)
		take_page(cmd);
	else if (cmd->wanted_out != 0)
		scsi_fail(cmd, scsi_invalid_field(3, 7)); /* SELFTEST has no list */
	else
		scsi_flush(cmd, self_tested);
}

void
scsi_receive_diagnostic(struct scsi_command *cmd)
{
	if (cmd->cdb[2] != 0) {
		scsi_fail(cmd, scsi_invalid_field(2, 7));
		return;
	}
	memcpy(scsi_answer(cmd), supported_pages, sizeof supported_pages);
	scsi_answered(cmd, sizeof supported_pages);
}
