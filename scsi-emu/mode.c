/*
 * mode.c - mode pages: MODE SENSE and MODE SELECT.
 *
 * A page is a row: its length, the bytes that never change, and a function for those that mean
 * something here. The same function tells what may be changed (with every such bit set) and takes
 * what is changed, through one list of bits.
 *
 * The good path of MODE SELECT: the whole list is looked through first, into a copy of the mode;
 * what must be stable before the new mode holds is made so; then it holds, and other initiators
 * hear of it.
 *
 * What can go wrong: the list ends inside a part of it, names what there is not, or differs from
 * what is there in a bit that may not be changed: nothing of it is done, and the sense data points
 * at the bit. The flush fails: the mode stays as it was.
 *
 * Sources: SPC-4 "Mode parameters", SBC-3 "Mode parameters for direct access block devices".
 */
#include "mode.h"

#include "command.h"
#include "lu.h"
#include "nexus.h"

#include <errno.h>

/* ---- pages ----------------------------------------------------------------------- */

#define PAGE_ALL     0x3f
#define SUBPAGE_NONE 0x00
#define SUBPAGE_ALL  0xff
#define PAGE_MAX     20

struct mode_page {
	uint8_t code;
	uint8_t length; /* with its header of two bytes */
	uint8_t fixed[PAGE_MAX];
};

/* By page code, as "all pages" returns them. */
static const struct mode_page pages[] = {
	/* Read-Write Error Recovery: nothing is retried or reassigned here */
	{ 0x01, 12, { 0 } },
	/* Disconnect-Reconnect: bursts are agreed on by the transport */
	{ 0x02, 16, { 0 } },
	/* Caching */
	{ 0x08, 20, { 0 } },
	/* Control: GLTSD, nothing is saved; QUEUE ALGORITHM MODIFIER 1h: what overlaps and is not
	 * ordered by the initiator may be done in any order */
	{ 0x0a, 12, { [2] = 0x02, [3] = 0x10 } },
	/* Informational Exceptions Control: DEXCPT, none are reported by themselves */
	{ 0x1c, 12, { [2] = 0x08 } },
};

#define PAGES (sizeof pages / sizeof *pages)

/* The bits that mean something. */
static const struct mode_bit {
	uint8_t page, byte, bit;
	size_t at; /* a bool of struct scsi_mode */
} bits[] = {
	{ 0x08, 2, 0x04, offsetof(struct scsi_mode, write_cache) },
	{ 0x0a, 2, 0x04, offsetof(struct scsi_mode, descriptor_sense) },
	{ 0x0a, 4, 0x08, offsetof(struct scsi_mode, software_write_protect) },
	{ 0x0a, 5, 0x40, offsetof(struct scsi_mode, task_aborted) },
};

#define BITS (sizeof bits / sizeof *bits)

static struct scsi_mode
initial_mode(const struct scsi_lu *lu)
{
	return (struct scsi_mode){ .write_cache = scsi_lu_cached(lu) };
}

void
scsi_mode_reset(struct scsi_lu *lu)
{
	lu->mode = initial_mode(lu);
}

static struct scsi_mode
changeable_mode(const struct scsi_lu *lu)
{
	return (struct scsi_mode){ .write_cache = scsi_lu_cached(lu),
				   .descriptor_sense = true,
				   .task_aborted = true,
				   .software_write_protect = true };
}

/* Sets the page's bits in `to` that are true in mode. */
static void
put_bits(const struct mode_page *page, const struct scsi_mode *mode, uint8_t *to)
{
	for (unsigned i = 0; i < BITS; i++) {
		const bool *on = (const bool *)((const char *)mode + bits[i].at);

		if (bits[i].page == page->code && *on)
			to[bits[i].byte] |= bits[i].bit;
	}
}

static void
take_bits(const struct mode_page *page, struct scsi_mode *mode, const uint8_t *from)
{
	for (unsigned i = 0; i < BITS; i++) {
		if (bits[i].page == page->code)
			*(bool *)((char *)mode + bits[i].at) =
				(from[bits[i].byte] & bits[i].bit) != 0;
	}
}

enum page_control { PC_CURRENT, PC_CHANGEABLE, PC_DEFAULT, PC_SAVED };

static size_t
put_page(const struct scsi_lu *lu, const struct mode_page *page, unsigned control, uint8_t *to)
{
	struct scsi_mode mode = control == PC_CURRENT      ? lu->mode
				: control == PC_CHANGEABLE ? changeable_mode(lu)
							   : initial_mode(lu);

	if (control == PC_CHANGEABLE)
		memset(to, 0, page->length);
	else
		memcpy(to, page->fixed, page->length);
	to[0] = page->code;
	to[1] = page->length - 2;
	put_bits(page, &mode, to);
	return page->length;
}

static const struct mode_page *
find_page(unsigned code)
{
	for (unsigned i = 0; i < PAGES; i++) {
		if (pages[i].code == code)
			return &pages[i];
	}
	return NULL;
}

/* ---- header and block descriptor ------------------------------------------------- */

struct header {
	bool ten;        /* of MODE SENSE(10) and MODE SELECT(10) */
	unsigned length; /* of the header itself */
	unsigned descriptor_at;
	unsigned descriptor; /* length: BLOCK DESCRIPTOR LENGTH */
	bool long_lba;
};

static struct header
header_of(const struct scsi_command *cmd)
{
	bool ten = cmd->cdb[0] == SCSI_MODE_SENSE_10 || cmd->cdb[0] == SCSI_MODE_SELECT_10;

	return (struct header){ .ten = ten, .length = ten ? 8 : 4, .descriptor_at = ten ? 6 : 3 };
}

#define SHORT_DESCRIPTOR 8
#define LONG_DESCRIPTOR  16

static uint32_t
short_count(const struct scsi_lu *lu)
{
	return lu->block_count < UINT32_MAX ? (uint32_t)lu->block_count : UINT32_MAX;
}

static void
put_descriptor(const struct scsi_lu *lu, const struct header *h, uint8_t *to)
{
	if (h->descriptor == LONG_DESCRIPTOR) {
		put_be64(to, lu->block_count);
		put_be32(to + 12, lu->block_size);
	} else if (h->descriptor == SHORT_DESCRIPTOR) {
		put_be32(to, short_count(lu));
		put_be24(to + 5, lu->block_size);
	}
}

static uint8_t
device_specific(const struct scsi_lu *lu)
{
	bool protected = !scsi_lu_writable(lu) || lu->mode.software_write_protect;

	return (protected ? 0x80 : 0) | (lu->identity.dpofua ? 0x10 : 0);
}

static void
put_header(const struct scsi_lu *lu, const struct header *h, size_t length, uint8_t *to)
{
	if (h->ten) {
		put_be16(to, (uint16_t)(length - 2));
		to[3] = device_specific(lu);
		to[4] = h->long_lba ? 0x01 : 0;
		put_be16(to + 6, (uint16_t)h->descriptor);
	} else {
		to[0] = (uint8_t)(length - 1);
		to[2] = device_specific(lu);
		to[3] = (uint8_t)h->descriptor;
	}
}

/* ---- MODE SENSE ------------------------------------------------------------------ */

void
scsi_mode_sense(struct scsi_command *cmd)
{
	unsigned control = cmd->cdb[2] >> 6, code = cmd->cdb[2] & 0x3f, subpage = cmd->cdb[3];
	struct header h = header_of(cmd);
	uint8_t *to = scsi_answer(cmd);
	size_t length;

	if (code != PAGE_ALL && find_page(code) == NULL) {
		scsi_fail(cmd, scsi_invalid_field(2, 5));
		return;
	}
	if (subpage != SUBPAGE_NONE && subpage != SUBPAGE_ALL) {
		scsi_fail(cmd, scsi_invalid_field(3, 7));
		return;
	}
	if (control == PC_SAVED) {
		scsi_fail(cmd, scsi_saving_not_supported());
		return;
	}
	h.long_lba = h.ten && (cmd->cdb[1] & 0x10) != 0;
	if ((cmd->cdb[1] & 0x08) == 0) /* DBD */
		h.descriptor = h.long_lba ? LONG_DESCRIPTOR : SHORT_DESCRIPTOR;
	put_descriptor(cmd->lu, &h, to + h.length);
	length = h.length + h.descriptor;
	for (unsigned i = 0; i < PAGES; i++) {
		if (code == PAGE_ALL || code == pages[i].code)
			length += put_page(cmd->lu, &pages[i], control, to + length);
	}
	put_header(cmd->lu, &h, length, to);
	scsi_answered(cmd, length);
}

/* ---- MODE SELECT ----------------------------------------------------------------- */

/* The list, while it is looked through. */
struct list {
	struct scsi_command *cmd;
	const uint8_t *data;
	size_t length, at;
};

static bool
refuse_parameter(struct list *l, size_t at, int bit)
{
	scsi_fail(l->cmd, scsi_invalid_parameter((unsigned)at, bit));
	return false;
}

static bool
has(struct list *l, size_t bytes)
{
	if (l->length - l->at >= bytes)
		return true;
	scsi_fail(l->cmd, scsi_parameter_list_length_error());
	return false;
}

static int
highest_bit(uint8_t byte)
{
	int bit = 7;

	while ((byte & 1 << bit) == 0)
		bit--;
	return bit;
}

/* Where part, of the list's place `at`, differs from what it has to be. */
static bool
check_same(struct list *l, size_t at, const uint8_t *wanted, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if (l->data[at + i] != wanted[i])
			return refuse_parameter(l, at + i,
						highest_bit(l->data[at + i] ^ wanted[i]));
	}
	return true;
}

/*
 * The block length is not to be changed, nor the capacity: a number of blocks is that of now, or
 * 0, "no change".
 */
static bool
take_descriptor(struct list *l, const struct header *h)
{
	const struct scsi_lu *lu = l->cmd->lu;
	uint8_t now[LONG_DESCRIPTOR] = { 0 };
	unsigned count = h->descriptor == LONG_DESCRIPTOR ? 8 : 4;
	bool zero = true;

	if (!has(l, h->descriptor))
		return false;
	if (h->descriptor == 0)
		return true;
	put_descriptor(lu, h, now);
	for (unsigned i = 0; i < count; i++)
		zero = zero && l->data[l->at + i] == 0;
	if (zero)
		memset(now, 0, count);
	if (!check_same(l, l->at, now, h->descriptor))
		return false;
	l->at += h->descriptor;
	return true;
}

/* The length of the list and the device specific parameter (WP, DPOFUA) are not looked at. */
static bool
take_header(struct list *l, struct header *h)
{
	unsigned medium_type = h->ten ? 2 : 1;

	if (!has(l, h->length))
		return false;
	if (l->data[medium_type] != 0)
		return refuse_parameter(l, medium_type, 7);
	h->long_lba = h->ten && (l->data[4] & 0x01) != 0;
	h->descriptor = h->ten ? get_be16(l->data + 6) : l->data[3];
	if (h->descriptor != 0 &&
	    h->descriptor != (h->long_lba ? LONG_DESCRIPTOR : SHORT_DESCRIPTOR))
		return refuse_parameter(l, h->descriptor_at, 7);
	l->at = h->length;
	return true;
}

static bool
take_page(struct list *l, struct scsi_mode *mode)
{
	const struct scsi_lu *lu = l->cmd->lu;
	const uint8_t *p = l->data + l->at;
	uint8_t wanted[PAGE_MAX], mask[PAGE_MAX];
	const struct mode_page *page;

	if (!has(l, 2))
		return false;
	if ((p[0] & 0xc0) != 0) /* PS; SPF: there are no subpages */
		return refuse_parameter(l, l->at, highest_bit(p[0] & 0xc0));
	page = find_page(p[0]);
	if (page == NULL)
		return refuse_parameter(l, l->at, 5);
	if (p[1] != page->length - 2)
		return refuse_parameter(l, l->at + 1, 7);
	if (!has(l, page->length))
		return false;
	put_page(lu, page, PC_CURRENT, wanted);
	put_page(lu, page, PC_CHANGEABLE, mask);
	for (unsigned i = 2; i < page->length; i++)
		wanted[i] = (wanted[i] & ~mask[i]) | (p[i] & mask[i]);
	if (!check_same(l, l->at, wanted, page->length))
		return false;
	take_bits(page, mode, p);
	l->at += page->length;
	return true;
}

static bool
same_mode(const struct scsi_mode *a, const struct scsi_mode *b)
{
	return a->write_cache == b->write_cache && a->descriptor_sense == b->descriptor_sense &&
	       a->task_aborted == b->task_aborted &&
	       a->software_write_protect == b->software_write_protect;
}

static bool
take_list(struct scsi_command *cmd, struct scsi_mode *mode)
{
	struct list l = { .cmd = cmd, .data = cmd->memory, .length = cmd->transfer_out };
	struct header h = header_of(cmd);

	if (cmd->transfer_out < cmd->wanted_out) {
		scsi_fail(cmd, scsi_parameter_list_length_error());
		return false;
	}
	if ((cmd->cdb[1] & 0x10) == 0) { /* PF: a list that is not by the standard */
		scsi_fail(cmd, scsi_invalid_field(1, 4));
		return false;
	}
	if (!take_header(&l, &h) || !take_descriptor(&l, &h))
		return false;
	while (l.at < l.length) {
		if (!take_page(&l, mode))
			return false;
	}
	return true;
}

/* What is stable now was written under the old mode; the command runs alone. */
static void
select_flushed(struct scsi_command *cmd, int error)
{
	struct scsi_mode mode;

	if (error != 0) {
		scsi_fail_errno(cmd, error);
		return;
	}
	memcpy(&mode, cmd->step, sizeof mode);
	if (!same_mode(&mode, &cmd->lu->mode)) {
		cmd->lu->mode = mode;
		scsi_lu_attention(cmd->lu, cmd->nexus, SCSI_MODE_PARAMETERS_CHANGED);
	}
	scsi_good(cmd);
}

_Static_assert(sizeof(struct scsi_mode) <= sizeof((struct scsi_command *)0)->step,
	       "the new mode waits in step");

void
scsi_mode_select(struct scsi_command *cmd)
{
	const struct scsi_mode *now = &cmd->lu->mode;
	struct scsi_mode mode = *now;

	if (cmd->wanted_out == 0) {
		scsi_good(cmd);
		return;
	}
	if (!take_list(cmd, &mode))
		return;
	memcpy(cmd->step, &mode, sizeof mode);
	if ((now->write_cache && !mode.write_cache) ||
	    (!now->software_write_protect && mode.software_write_protect))
		scsi_flush(cmd, select_flushed);
	else
		select_flushed(cmd, 0);
}
