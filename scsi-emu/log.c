/*
 * log.c - LOG SENSE: pages that tell what is known here, and none that would be made up.
 *
 * Temperature, counts of errors that a disk has corrected, hours of use: nothing here knows them.
 *
 * Source: SPC-4 "LOG SENSE command", "Log parameters".
 */
#include "command.h"
#include "handlers.h"
#include "lu.h"

/* Each writes what comes after the page's header of four bytes, and returns its end. */
static uint8_t *log_pages(const struct scsi_lu *lu, uint8_t *p);
static uint8_t *log_subpages(const struct scsi_lu *lu, uint8_t *p);
static uint8_t *log_exceptions(const struct scsi_lu *lu, uint8_t *p);

/* Ascending. */
static const struct log_page {
	uint8_t code, subpage;
	bool has_parameters; /* then there is one, of code 0 */
	uint8_t *(*put)(const struct scsi_lu *lu, uint8_t *p);
} pages[] = {
	{ 0x00, 0x00, false, log_pages },
	{ 0x00, 0xff, false, log_subpages },
	{ 0x2f, 0x00, true, log_exceptions },
};

#define PAGES (sizeof pages / sizeof *pages)

static uint8_t *
log_pages(const struct scsi_lu *lu, uint8_t *p)
{
	(void)lu;
	for (unsigned i = 0; i < PAGES; i++) {
		if (pages[i].subpage == 0)
			*p++ = pages[i].code;
	}
	return p;
}

static uint8_t *
log_subpages(const struct scsi_lu *lu, uint8_t *p)
{
	(void)lu;
	for (unsigned i = 0; i < PAGES; i++) {
		*p++ = pages[i].code;
		*p++ = pages[i].subpage;
	}
	return p;
}

/* "Informational Exceptions log page": FAILURE PREDICTION THRESHOLD EXCEEDED once a flush has
 * failed: nothing that is written is promised any more. */
static uint8_t *
log_exceptions(const struct scsi_lu *lu, uint8_t *p)
{
	p[2] = 0x23; /* TSD; a list, binary */
	p[3] = 0x04;
	p[4] = pl_export_failed(lu->export) ? 0x5d : 0x00;
	p[6] = 0xff; /* no temperature */
	return p + 8;
}

void
scsi_log_sense(struct scsi_command *cmd)
{
	unsigned code = cmd->cdb[2] & 0x3f, subpage = cmd->cdb[3],
		 parameter = get_be16(cmd->cdb + 5);
	const struct log_page *page = NULL;
	bool code_known = false;
	uint8_t *to;
	size_t length;

	for (unsigned i = 0; i < PAGES; i++) {
		code_known = code_known || pages[i].code == code;
		if (pages[i].code == code && pages[i].subpage == subpage)
			page = &pages[i];
	}
	if (page == NULL) {
		scsi_fail(cmd, code_known ? scsi_invalid_field(3, 7) : scsi_invalid_field(2, 5));
		return;
	}
	if (parameter > 0) { /* from that one on: there is none */
		scsi_fail(cmd, scsi_invalid_field(5, 7));
		return;
	}
	to = scsi_answer(cmd);
	to[0] = page->code | (subpage != 0 ? 0x40 : 0) |
		(page->has_parameters ? 0x80 : 0); /* SPF, DS */
	to[1] = page->subpage;
	length = (size_t)(page->put(cmd->lu, to + 4) - to);
	put_be16(to + 2, (uint16_t)(length - 4));
	scsi_answered(cmd, length);
}
