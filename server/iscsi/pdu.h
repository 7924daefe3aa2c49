/*
 * pdu.h - the numbers and formats of iSCSI.
 *
 * Source: RFC 7143, "iSCSI PDU Formats". Names are the RFC's. Numbers are big-endian (bytes.h).
 */
#ifndef ISCSI_PDU_H
#define ISCSI_PDU_H

#include "bytes.h"

#include <stdbool.h>
#include <stddef.h>

#define ISCSI_BHS     48 /* bytes of a basic header segment */
#define ISCSI_DIGEST  4
#define ISCSI_AHS_MAX (255 * 4)
#define ISCSI_NO_TAG  UINT32_C(0xffffffff)

/* A data segment is no longer than this until MaxRecvDataSegmentLength has been declared, and in
 * the login phase never. */
#define ISCSI_DATA_DEFAULT 8192

enum iscsi_opcode {
	ISCSI_NOP_OUT = 0x00,
	ISCSI_SCSI_COMMAND = 0x01,
	ISCSI_TASK_MANAGEMENT = 0x02,
	ISCSI_LOGIN = 0x03,
	ISCSI_TEXT = 0x04,
	ISCSI_DATA_OUT = 0x05,
	ISCSI_LOGOUT = 0x06,
	ISCSI_SNACK = 0x10,

	ISCSI_NOP_IN = 0x20,
	ISCSI_SCSI_RESPONSE = 0x21,
	ISCSI_TASK_MANAGEMENT_RESPONSE = 0x22,
	ISCSI_LOGIN_RESPONSE = 0x23,
	ISCSI_TEXT_RESPONSE = 0x24,
	ISCSI_DATA_IN = 0x25,
	ISCSI_LOGOUT_RESPONSE = 0x26,
	ISCSI_R2T = 0x31,
	ISCSI_ASYNC_MESSAGE = 0x32,
	ISCSI_REJECT = 0x3f,
};
#define ISCSI_OPCODE_MASK 0x3f
#define ISCSI_IMMEDIATE   0x40 /* in byte 0 */
#define ISCSI_FINAL       0x80 /* in byte 1 */

/* Byte 1 of a SCSI Command */
#define ISCSI_COMMAND_READ      0x40
#define ISCSI_COMMAND_WRITE     0x20
#define ISCSI_COMMAND_ATTRIBUTE 0x07 /* 0 untagged, 1 simple, 2 ordered, 3 head of queue, 4 ACA */

/* Byte 1 of a SCSI Response and of Data-In with status */
#define ISCSI_RESIDUAL_OVERFLOW  0x04
#define ISCSI_RESIDUAL_UNDERFLOW 0x02
#define ISCSI_DATA_IN_STATUS     0x01

/* Byte 1 of Login and Text */
#define ISCSI_LOGIN_TRANSIT 0x80
#define ISCSI_CONTINUE      0x40

enum iscsi_reject {
	ISCSI_REJECT_DATA_DIGEST = 0x02,
	ISCSI_REJECT_SNACK = 0x03,
	ISCSI_REJECT_PROTOCOL = 0x04,
	ISCSI_REJECT_NOT_SUPPORTED = 0x05,
	ISCSI_REJECT_IMMEDIATE = 0x06, /* too many */
	ISCSI_REJECT_TASK_IN_PROGRESS = 0x07,
	ISCSI_REJECT_INVALID_FIELD = 0x09,
	ISCSI_REJECT_LONG_OPERATION = 0x0a,
};

/* Status-Class << 8 | Status-Detail, "Login Response" */
enum iscsi_login_status {
	ISCSI_LOGIN_SUCCESS = 0x0000,
	ISCSI_LOGIN_TARGET_MOVED = 0x0101,
	ISCSI_LOGIN_INITIATOR_ERROR = 0x0200,
	ISCSI_LOGIN_AUTHENTICATION_FAILURE = 0x0201,
	ISCSI_LOGIN_AUTHORIZATION_FAILURE = 0x0202,
	ISCSI_LOGIN_NOT_FOUND = 0x0203,
	ISCSI_LOGIN_UNSUPPORTED_VERSION = 0x0205,
	ISCSI_LOGIN_TOO_MANY_CONNECTIONS = 0x0206,
	ISCSI_LOGIN_MISSING_PARAMETER = 0x0207,
	ISCSI_LOGIN_CANNOT_INCLUDE = 0x0208,
	ISCSI_LOGIN_SESSION_TYPE = 0x0209,
	ISCSI_LOGIN_NO_SESSION = 0x020a,
	ISCSI_LOGIN_INVALID_REQUEST = 0x020b, /* during login */
	ISCSI_LOGIN_TARGET_ERROR = 0x0300,
	ISCSI_LOGIN_UNAVAILABLE = 0x0301,
	ISCSI_LOGIN_NO_RESOURCES = 0x0302,
};

/* Where things are in every BHS. */
static inline unsigned
iscsi_opcode(const uint8_t *bhs)
{
	return bhs[0] & ISCSI_OPCODE_MASK;
}

static inline size_t
iscsi_ahs_length(const uint8_t *bhs)
{
	return (size_t)bhs[4] * 4;
}

static inline uint32_t
iscsi_data_length(const uint8_t *bhs)
{
	return get_be24(bhs + 5);
}

static inline uint32_t
iscsi_padding(uint32_t length)
{
	return -length & 3;
}

/* Serial number arithmetic, RFC 1982: whether a is before b. */
static inline bool
iscsi_before(uint32_t a, uint32_t b)
{
	return (int32_t)(a - b) < 0;
}

/* digest.c: CRC32C as it stands on the wire. Of several pieces: crc = iscsi_crc_more(crc, ...),
 * from ISCSI_CRC_START to iscsi_crc_end(). */
#define ISCSI_CRC_START UINT32_C(0xffffffff)
uint32_t iscsi_crc_more(uint32_t crc, const void *data, size_t length);
void iscsi_crc_end(uint32_t crc, uint8_t to[ISCSI_DIGEST]);

#endif
