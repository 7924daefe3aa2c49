/*
 * keys.h - text keys: what they are, and how they are agreed on. Pure: text in, text out.
 *
 * Source: RFC 7143, "Text Mode Negotiation" and "Login/Text Operational Text Keys".
 */
#ifndef ISCSI_KEYS_H
#define ISCSI_KEYS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define ISCSI_KEYS_MAX 65536 /* bytes of keys that one request may bring, continuation included */
#define ISCSI_NAME_MAX 223   /* bytes of an iSCSI name */

enum iscsi_digest { ISCSI_DIGEST_NONE, ISCSI_DIGEST_CRC32C };

/* What is agreed on for a session, from the RFC's defaults on. Bytes, seconds. */
struct iscsi_parameters {
	uint32_t header_digest, data_digest; /* enum iscsi_digest */
	uint32_t max_send;                   /* the initiator's MaxRecvDataSegmentLength */
	uint32_t max_receive;                /* ours, as declared */
	uint32_t max_burst, first_burst;     /* first_burst is not above max_burst */
	uint32_t max_outstanding_r2t, max_connections;
	uint32_t time2wait, time2retain;
	uint32_t error_recovery_level;
	bool initial_r2t, immediate_data;
	bool data_pdu_in_order, data_sequence_in_order;
};

void iscsi_parameters_default(struct iscsi_parameters *p);

/* Text that grows, up to a limit. All 0: empty. */
struct iscsi_text {
	char *data;
	size_t length, room;
	size_t limit; /* 0: ISCSI_KEYS_MAX */
	bool failed;  /* no memory, or too long */
};
void iscsi_text_add(struct iscsi_text *t, const char *key, const char *value);
void iscsi_text_append(struct iscsi_text *t, const void *data, size_t length);
void iscsi_text_free(struct iscsi_text *t);

/* The next "key=value" of text[*at, length), with the NUL that ends it; one is put between the
 * two, too. Returns 1, 0 at the end, -EINVAL for what is no such pair, or longer than it may be. */
int iscsi_text_next(char *text, size_t length, size_t *at, char **key, char **value);

/* Numbers are decimal or 0x and hex digits. */
bool iscsi_number_read(const char *text, uint64_t *n);

/* Whether word is in a list "a,b,c". */
bool iscsi_list_has(const char *list, const char *word);

enum iscsi_stage { ISCSI_SECURITY = 0, ISCSI_OPERATIONAL = 1, ISCSI_FULL_FEATURE = 3 };

/*
 * One operational key of the initiator: takes the outcome into p, and answers in out, where an
 * answer is due, by its row; "Reject" where the RFC forbids the value, and nothing has changed
 * then. Returns 0; -ENOENT: not a key of that table (the caller answers NotUnderstood); -EPROTO:
 * not in this stage, or given twice. *seen, from 0 on: which rows have been dealt with.
 */
int iscsi_key_negotiate(struct iscsi_parameters *p, enum iscsi_stage stage, bool discovery,
			uint64_t *seen, const char *key, const char *value, struct iscsi_text *out);
/* At the end of a request's operational keys: what we declare and have not said yet, and the
 * answer to FirstBurstLength, which MaxBurstLength limits, whichever comes first. */
void iscsi_keys_declare(struct iscsi_parameters *p, uint64_t *seen, struct iscsi_text *out);

/* "iqn.", "eui." or "naa." and what may follow, in lower case: RFC 7143 "iSCSI Names". */
bool iscsi_name_is_valid(const char *name);
/* The same in any case, to the lower case in which names are compared. */
bool iscsi_name_read(const char *name, char to[ISCSI_NAME_MAX + 1]);

#endif
