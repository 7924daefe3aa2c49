/* sense.c - what went wrong, by name. */
#include "sense.h"

#include "bytes.h"

#define SENSE(k, code) ((struct scsi_sense){ .key = (k), .asc = (code) })

static struct scsi_sense
with_field(unsigned asc, bool in_cdb, unsigned byte, int bit)
{
	struct scsi_sense s = SENSE(SCSI_ILLEGAL_REQUEST, asc);

	s.has_field = true;
	s.field_in_cdb = in_cdb;
	s.field = (uint16_t)byte;
	s.bit = bit;
	return s;
}

static struct scsi_sense
with_information(unsigned key, unsigned asc, uint64_t information)
{
	struct scsi_sense s = SENSE(key, asc);

	s.has_information = true;
	s.information = information;
	return s;
}

struct scsi_sense
scsi_sense_of(unsigned key, unsigned asc)
{
	return SENSE(key, asc);
}

struct scsi_sense
scsi_invalid_opcode(void)
{
	return with_field(0x2000, true, 0, -1);
}

struct scsi_sense
scsi_invalid_field(unsigned cdb_byte, int bit)
{
	return with_field(0x2400, true, cdb_byte, bit);
}

struct scsi_sense
scsi_invalid_parameter(unsigned list_byte, int bit)
{
	return with_field(0x2600, false, list_byte, bit);
}

struct scsi_sense
scsi_parameter_list_length_error(void)
{
	return SENSE(SCSI_ILLEGAL_REQUEST, 0x1a00);
}

struct scsi_sense
scsi_lba_out_of_range(uint64_t lba)
{
	return with_information(SCSI_ILLEGAL_REQUEST, 0x2100, lba);
}

struct scsi_sense
scsi_lun_not_supported(void)
{
	return SENSE(SCSI_ILLEGAL_REQUEST, 0x2500);
}

struct scsi_sense
scsi_saving_not_supported(void)
{
	return SENSE(SCSI_ILLEGAL_REQUEST, 0x3900);
}

struct scsi_sense
scsi_invalid_release(void)
{
	return SENSE(SCSI_ILLEGAL_REQUEST, 0x2604);
}

struct scsi_sense
scsi_insufficient_registration_resources(void)
{
	return SENSE(SCSI_ILLEGAL_REQUEST, 0x5504);
}

struct scsi_sense
scsi_medium_removal_prevented(void)
{
	return SENSE(SCSI_ILLEGAL_REQUEST, 0x5302);
}

struct scsi_sense
scsi_stopped(void)
{
	return SENSE(SCSI_NOT_READY, 0x0402);
}

struct scsi_sense
scsi_no_medium(void)
{
	return SENSE(SCSI_NOT_READY, 0x3a00);
}

struct scsi_sense
scsi_read_error(void)
{
	return SENSE(SCSI_MEDIUM_ERROR, 0x1100);
}

struct scsi_sense
scsi_read_error_at(uint64_t lba)
{
	return with_information(SCSI_MEDIUM_ERROR, 0x1100, lba);
}

struct scsi_sense
scsi_write_error(void)
{
	return SENSE(SCSI_MEDIUM_ERROR, 0x0c00);
}

/* What was written before may be lost; where is not known. */
struct scsi_sense
scsi_sync_failed(void)
{
	return SENSE(SCSI_MEDIUM_ERROR, 0x0c00);
}

struct scsi_sense
scsi_write_protected(void)
{
	return SENSE(SCSI_DATA_PROTECT, 0x2700);
}

struct scsi_sense
scsi_no_space(void)
{
	return SENSE(SCSI_DATA_PROTECT, 0x2707);
}

struct scsi_sense
scsi_data_phase_error(void)
{
	return SENSE(SCSI_ABORTED_COMMAND, 0x4b00);
}

struct scsi_sense
scsi_self_test_failed(void)
{
	return SENSE(SCSI_HARDWARE_ERROR, 0x3e03);
}

struct scsi_sense
scsi_internal_failure(void)
{
	return SENSE(SCSI_HARDWARE_ERROR, 0x4400);
}

struct scsi_sense
scsi_miscompare(uint64_t offset)
{
	return with_information(SCSI_MISCOMPARE, 0x1d00, offset);
}

struct scsi_sense
scsi_unit_attention(unsigned asc)
{
	return SENSE(SCSI_UNIT_ATTENTION, asc);
}

/* ---- formats --------------------------------------------------------------------- */

#define FIXED_LENGTH 18

/* "Sense key specific": three bytes. */
static void
put_field(const struct scsi_sense *s, uint8_t *p)
{
	p[0] = 0x80;
	if (s->field_in_cdb)
		p[0] |= 0x40;
	if (s->bit >= 0)
		p[0] |= 0x08 | (uint8_t)s->bit;
	put_be16(p + 1, s->field);
}

static size_t
put_fixed(const struct scsi_sense *s, uint8_t *p)
{
	memset(p, 0, FIXED_LENGTH);
	p[0] = s->deferred ? 0x71 : 0x70;
	p[2] = s->key;
	if (s->has_information && s->information <= UINT32_MAX) {
		p[0] |= 0x80; /* VALID */
		put_be32(p + 3, (uint32_t)s->information);
	}
	p[7] = FIXED_LENGTH - 8;
	if (s->has_command_specific && s->command_specific <= UINT32_MAX)
		put_be32(p + 8, (uint32_t)s->command_specific);
	put_be16(p + 12, s->asc);
	if (s->has_field)
		put_field(s, p + 15);
	return FIXED_LENGTH;
}

/* "Information" and "Command-specific information" sense data descriptors */
static uint8_t *
put_number(uint8_t *p, uint8_t type, uint64_t number)
{
	*p++ = type;
	*p++ = 0x0a;
	*p++ = type == 0 ? 0x80 : 0; /* VALID, of information */
	*p++ = 0;
	return put_be64(p, number);
}

static size_t
put_descriptors(const struct scsi_sense *s, uint8_t *to)
{
	uint8_t *p = to + 8;

	memset(to, 0, 8);
	to[0] = s->deferred ? 0x73 : 0x72;
	to[1] = s->key;
	put_be16(to + 2, s->asc);
	if (s->has_information)
		p = put_number(p, 0x00, s->information);
	if (s->has_command_specific)
		p = put_number(p, 0x01, s->command_specific);
	if (s->has_field) {
		memset(p, 0, 8);
		p[0] = 0x02;
		p[1] = 0x06;
		put_field(s, p + 4);
		p += 8;
	}
	to[7] = (uint8_t)(p - to - 8);
	return (size_t)(p - to);
}

size_t
scsi_sense_put(const struct scsi_sense *sense, bool descriptor, uint8_t *to)
{
	return descriptor ? put_descriptors(sense, to) : put_fixed(sense, to);
}
