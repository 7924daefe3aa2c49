/*
 * iscsi_keys.c - whatever keys an initiator sends, what is agreed on is what a session can have,
 * and what is answered are keys again.
 *
 * Input: a byte that says in which stage and session, then keys.
 */
#include "fuzz.h"
#include "iscsi/keys.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

static void
check_parameters(const struct iscsi_parameters *p)
{
	assert(p->header_digest <= ISCSI_DIGEST_CRC32C && p->data_digest <= ISCSI_DIGEST_CRC32C);
	assert(p->max_send >= 512 && p->max_send < 1u << 24);
	assert(p->max_burst >= 512 && p->max_burst < 1u << 24);
	assert(p->first_burst >= 512 && p->first_burst <= p->max_burst);
	assert(p->max_outstanding_r2t >= 1 && p->max_outstanding_r2t <= 65535);
	assert(p->max_connections == 1 && p->error_recovery_level == 0);
	assert(p->time2wait <= 3600 && p->time2retain <= 3600);
	assert(p->data_pdu_in_order && p->data_sequence_in_order);
}

static void
check_answer(struct iscsi_text *out)
{
	char *key, *value;
	size_t at = 0;
	int more;

	assert(out->length <= ISCSI_KEYS_MAX);
	assert(out->failed || out->length == 0 || out->data[out->length - 1] == '\0');
	if (out->failed)
		return;
	while ((more = iscsi_text_next(out->data, out->length, &at, &key, &value)) == 1)
		assert(value[0] != '\0');
	assert(more == 0);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static const enum iscsi_stage stages[] = { ISCSI_OPERATIONAL, ISCSI_OPERATIONAL,
						   ISCSI_SECURITY, ISCSI_FULL_FEATURE };
	struct iscsi_text in = { 0 }, out = { 0 };
	char *key, *value, name[ISCSI_NAME_MAX + 1];
	struct iscsi_parameters p;
	enum iscsi_stage stage;
	uint64_t seen = 0, n;
	size_t at = 0;
	int error = 0;

	if (size < 1)
		return 0;
	stage = stages[data[0] & 3];
	iscsi_parameters_default(&p);
	iscsi_text_append(&in, data + 1, size - 1);
	while (error == 0 && iscsi_text_next(in.data, in.length, &at, &key, &value) == 1) {
		assert(key > in.data - 1 && value + strlen(value) < in.data + in.length);
		error = iscsi_key_negotiate(&p, stage, (data[0] & 4) != 0, &seen, key, value, &out);
		if (error == -ENOENT) {
			iscsi_number_read(value, &n);
			iscsi_list_has(value, "None");
			if (iscsi_name_read(value, name))
				assert(iscsi_name_is_valid(name));
			error = 0;
		}
		assert(error == 0 || error == -EPROTO);
	}
	if (stage == ISCSI_OPERATIONAL)
		iscsi_keys_declare(&p, &seen, &out);
	check_parameters(&p);
	check_answer(&out);
	iscsi_text_free(&in);
	iscsi_text_free(&out);
	return 0;
}
