/*
 * protocol.h - the numbers of the NBD protocol.
 *
 * Source: NBD proto.md, "Values". Everything on the wire is big-endian.
 */
#ifndef NBD_PROTOCOL_H
#define NBD_PROTOCOL_H

#include "bytes.h"

#include <stdint.h>

/* ---- handshake ------------------------------------------------------------------- */

#define NBD_MAGIC           UINT64_C(0x4e42444d41474943) /* "NBDMAGIC" */
#define NBD_OPTION_MAGIC    UINT64_C(0x49484156454f5054) /* "IHAVEOPT" */
#define NBD_OPT_REPLY_MAGIC UINT64_C(0x3e889045565a9)
#define NBD_STRING_MAX      4096 /* names, descriptions, queries, messages */

enum nbd_handshake_flag { NBD_FLAG_FIXED_NEWSTYLE = 1 << 0, NBD_FLAG_NO_ZEROES = 1 << 1 };

enum nbd_opt {
	NBD_OPT_EXPORT_NAME = 1,
	NBD_OPT_ABORT = 2,
	NBD_OPT_LIST = 3,
	NBD_OPT_STARTTLS = 5,
	NBD_OPT_INFO = 6,
	NBD_OPT_GO = 7,
	NBD_OPT_STRUCTURED_REPLY = 8,
	NBD_OPT_LIST_META_CONTEXT = 9,
	NBD_OPT_SET_META_CONTEXT = 10,
	NBD_OPT_EXTENDED_HEADERS = 11,
};

#define NBD_REP_ERROR UINT32_C(0x80000000)
enum nbd_rep {
	NBD_REP_ACK = 1,
	NBD_REP_SERVER = 2,
	NBD_REP_INFO = 3,
	NBD_REP_META_CONTEXT = 4,
};
#define NBD_REP_ERR_UNSUP           (NBD_REP_ERROR | 1)
#define NBD_REP_ERR_POLICY          (NBD_REP_ERROR | 2)
#define NBD_REP_ERR_INVALID         (NBD_REP_ERROR | 3)
#define NBD_REP_ERR_PLATFORM        (NBD_REP_ERROR | 4)
#define NBD_REP_ERR_TLS_REQD        (NBD_REP_ERROR | 5)
#define NBD_REP_ERR_UNKNOWN         (NBD_REP_ERROR | 6)
#define NBD_REP_ERR_SHUTDOWN        (NBD_REP_ERROR | 7)
#define NBD_REP_ERR_BLOCK_SIZE_REQD (NBD_REP_ERROR | 8)
#define NBD_REP_ERR_TOO_BIG         (NBD_REP_ERROR | 9)
#define NBD_REP_ERR_EXT_HEADER_REQD (NBD_REP_ERROR | 10)

enum nbd_info {
	NBD_INFO_EXPORT = 0,
	NBD_INFO_NAME = 1,
	NBD_INFO_DESCRIPTION = 2,
	NBD_INFO_BLOCK_SIZE = 3,
};

enum nbd_transmission_flag {
	NBD_FLAG_HAS_FLAGS = 1 << 0,
	NBD_FLAG_READ_ONLY = 1 << 1,
	NBD_FLAG_SEND_FLUSH = 1 << 2,
	NBD_FLAG_SEND_FUA = 1 << 3,
	NBD_FLAG_ROTATIONAL = 1 << 4,
	NBD_FLAG_SEND_TRIM = 1 << 5,
	NBD_FLAG_SEND_WRITE_ZEROES = 1 << 6,
	NBD_FLAG_SEND_DF = 1 << 7,
	NBD_FLAG_CAN_MULTI_CONN = 1 << 8,
	NBD_FLAG_SEND_CACHE = 1 << 10,
	NBD_FLAG_SEND_FAST_ZERO = 1 << 11,
	NBD_FLAG_BLOCK_STATUS_PAYLOAD = 1 << 12,
};

/* ---- transmission ---------------------------------------------------------------- */

#define NBD_REQUEST_MAGIC          UINT32_C(0x25609513)
#define NBD_EXTENDED_REQUEST_MAGIC UINT32_C(0x21e41c71)
#define NBD_SIMPLE_REPLY_MAGIC     UINT32_C(0x67446698)
#define NBD_STRUCTURED_REPLY_MAGIC UINT32_C(0x668e33ef)
#define NBD_EXTENDED_REPLY_MAGIC   UINT32_C(0x6e8a278c)

/* The largest READ or WRITE, advertised as the maximum block size. */
#define NBD_MAX_PAYLOAD (32u << 20)

enum nbd_cmd {
	NBD_CMD_READ = 0,
	NBD_CMD_WRITE = 1,
	NBD_CMD_DISC = 2,
	NBD_CMD_FLUSH = 3,
	NBD_CMD_TRIM = 4,
	NBD_CMD_CACHE = 5,
	NBD_CMD_WRITE_ZEROES = 6,
	NBD_CMD_BLOCK_STATUS = 7,
};

enum nbd_cmd_flag {
	NBD_CMD_FLAG_FUA = 1 << 0,
	NBD_CMD_FLAG_NO_HOLE = 1 << 1,
	NBD_CMD_FLAG_DF = 1 << 2,
	NBD_CMD_FLAG_REQ_ONE = 1 << 3,
	NBD_CMD_FLAG_FAST_ZERO = 1 << 4,
	NBD_CMD_FLAG_PAYLOAD_LEN = 1 << 5,
};

enum nbd_reply_flag { NBD_REPLY_FLAG_DONE = 1 << 0 };

#define NBD_REPLY_TYPE_NONE             0
#define NBD_REPLY_TYPE_OFFSET_DATA      1
#define NBD_REPLY_TYPE_OFFSET_HOLE      2
#define NBD_REPLY_TYPE_BLOCK_STATUS     5
#define NBD_REPLY_TYPE_BLOCK_STATUS_EXT 6
#define NBD_REPLY_TYPE_ERROR            (1 << 15 | 1)
#define NBD_REPLY_TYPE_ERROR_OFFSET     (1 << 15 | 2)

enum nbd_error {
	NBD_SUCCESS = 0,
	NBD_EPERM = 1,
	NBD_EIO = 5,
	NBD_ENOMEM = 12,
	NBD_EINVAL = 22,
	NBD_ENOSPC = 28,
	NBD_EOVERFLOW = 75,
	NBD_ENOTSUP = 95,
	NBD_ESHUTDOWN = 108,
};

/* Of an extent in base:allocation; "Metadata contexts" */
enum nbd_state { NBD_STATE_HOLE = 1 << 0, NBD_STATE_ZERO = 1 << 1 };
#define NBD_BASE_ALLOCATION    "base:allocation"
#define NBD_BASE_ALLOCATION_ID 1

#endif
