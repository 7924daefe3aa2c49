/*
 * sense.h - what went wrong, by name: no handler writes a sense code.
 *
 * Source: SPC-4, "Sense data"; SBC-3, "Sense data" for INFORMATION.
 */
#ifndef SCSI_SENSE_H
#define SCSI_SENSE_H

#include "spec.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct scsi_sense {
	uint8_t key;  /* enum scsi_key */
	uint16_t asc; /* and qualifier */
	bool deferred;
	bool has_information;
	uint64_t information; /* a block's address, or a byte offset */
	/* Sense key specific: "Field pointer". bit: 0 to 7 of the byte, or -1: all of the field. */
	bool has_field, field_in_cdb;
	uint16_t field;
	int bit;
	bool has_command_specific; /* EXTENDED COPY */
	uint64_t command_specific;
};

/* ILLEGAL REQUEST */
struct scsi_sense scsi_invalid_opcode(void);
struct scsi_sense scsi_invalid_field(unsigned cdb_byte, int bit);
struct scsi_sense scsi_invalid_parameter(unsigned list_byte, int bit);
struct scsi_sense scsi_parameter_list_length_error(void);
struct scsi_sense scsi_lba_out_of_range(uint64_t lba); /* INFORMATION: that address */
struct scsi_sense scsi_lun_not_supported(void);
struct scsi_sense scsi_saving_not_supported(void);
struct scsi_sense scsi_invalid_release(void); /* of a persistent reservation */
struct scsi_sense scsi_insufficient_registration_resources(void);
struct scsi_sense scsi_medium_removal_prevented(void);
/* NOT READY */
struct scsi_sense scsi_stopped(void);   /* INITIALIZING COMMAND REQUIRED */
struct scsi_sense scsi_no_medium(void); /* MEDIUM NOT PRESENT */
/* MEDIUM ERROR */
struct scsi_sense scsi_read_error(void); /* where is not known */
struct scsi_sense scsi_read_error_at(uint64_t lba);
struct scsi_sense scsi_write_error(void);
struct scsi_sense scsi_sync_failed(void);
/* DATA PROTECT */
struct scsi_sense scsi_write_protected(void);
struct scsi_sense scsi_no_space(void); /* SPACE ALLOCATION FAILED WRITE PROTECT */
/* ABORTED COMMAND */
struct scsi_sense scsi_data_phase_error(void);
struct scsi_sense scsi_self_test_failed(void); /* HARDWARE ERROR, LOGICAL UNIT FAILED SELF-TEST */
struct scsi_sense scsi_internal_failure(void); /* HARDWARE ERROR, INTERNAL TARGET FAILURE */
/* MISCOMPARE DURING VERIFY OPERATION; offset: of the first byte that differs, in the data-out */
struct scsi_sense scsi_miscompare(uint64_t offset);
struct scsi_sense scsi_unit_attention(unsigned asc);
/* COPY ABORTED, ILLEGAL REQUEST for EXTENDED COPY: copy.c fills the rest */
struct scsi_sense scsi_sense_of(unsigned key, unsigned asc);

/* Fixed (0x70, 0x71) or descriptor format (0x72, 0x73). Returns the length, at most
 * SCSI_SENSE_MAX. Fixed format has no room for an address above 32 bits: then VALID is 0. */
size_t scsi_sense_put(const struct scsi_sense *sense, bool descriptor, uint8_t *to);

#endif
