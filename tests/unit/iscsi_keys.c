/* iscsi_keys.c - text keys are read as the RFC writes them, and agreed on as each key's row says.
 */
#include "iscsi/keys.h"
#include "iscsi/pdu.h"
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* A text is written "A=b|C=d" here; on the wire there is a NUL instead of each bar and behind the
 * last. */
static struct iscsi_text
wire_text(const char *bars)
{
	struct iscsi_text t = { 0 };

	if (bars[0] != '\0')
		iscsi_text_append(&t, bars, strlen(bars) + 1);
	for (size_t i = 0; i < t.length; i++)
		t.data[i] = t.data[i] == '|' ? '\0' : t.data[i];
	assert_false(t.failed);
	return t;
}

static const char *
barred(const struct iscsi_text *t)
{
	static char text[4096];

	assert_true(t->length < sizeof text && !t->failed);
	if (t->length == 0)
		return "";
	memcpy(text, t->data, t->length);
	for (size_t i = 0; i < t->length - 1; i++)
		text[i] = text[i] == '\0' ? '|' : text[i];
	assert_eq(text[t->length - 1], '\0');
	return text;
}

struct talk {
	struct iscsi_parameters p;
	uint64_t seen;
	bool discovery;
	int error;
};

/* What is said to these keys, with what is declared at the end. */
static const char *
answers(struct talk *talk, enum iscsi_stage stage, const char *keys)
{
	struct iscsi_text in = wire_text(keys), out = { 0 };
	char *key, *value;
	const char *said;
	size_t at = 0;

	while (iscsi_text_next(in.data, in.length, &at, &key, &value) == 1) {
		talk->error = iscsi_key_negotiate(&talk->p, stage, talk->discovery, &talk->seen,
						  key, value, &out);
		if (talk->error != 0)
			break;
	}
	if (stage == ISCSI_OPERATIONAL)
		iscsi_keys_declare(&talk->p, &talk->seen, &out);
	said = barred(&out);
	iscsi_text_free(&in);
	iscsi_text_free(&out);
	return said;
}

static struct talk
begin(void)
{
	struct talk talk = { 0 };

	iscsi_parameters_default(&talk.p);
	return talk;
}

/* ---- reading --------------------------------------------------------------------- */

TEST(pairs_are_found_one_after_the_other)
{
	struct iscsi_text t = wire_text("A=1||Key.with-9+signs@_=a=b|Empty=");
	char *key, *value;
	size_t at = 0;

	assert_eq(iscsi_text_next(t.data, t.length, &at, &key, &value), 1);
	assert_str(key, "A");
	assert_str(value, "1");
	assert_eq(iscsi_text_next(t.data, t.length, &at, &key, &value), 1);
	assert_str(key, "Key.with-9+signs@_");
	assert_str(value, "a=b");
	assert_eq(iscsi_text_next(t.data, t.length, &at, &key, &value), 1);
	assert_str(key, "Empty");
	assert_str(value, "");
	assert_eq(iscsi_text_next(t.data, t.length, &at, &key, &value), 0);
	iscsi_text_free(&t);
}

TEST(what_is_no_pair_is_found_out)
{
	static const char *const wrong[] = { "novalue", "=1", "a b=1", "A\n=1", "K\xc3\xa4y=1" };
	char *key, *value;

	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		struct iscsi_text t = wire_text(wrong[i]);
		size_t at = 0;

		assert_eq(iscsi_text_next(t.data, t.length, &at, &key, &value), -EINVAL);
		iscsi_text_free(&t);
	}
}

TEST(a_pair_without_its_end_is_found_out)
{
	struct iscsi_text t = wire_text("A=1|B=2");
	char *key, *value;
	size_t at = 0;

	t.length--;
	assert_eq(iscsi_text_next(t.data, t.length, &at, &key, &value), 1);
	assert_eq(iscsi_text_next(t.data, t.length, &at, &key, &value), -EINVAL);
	iscsi_text_free(&t);
}

static int
next_of(const char *key, size_t key_length, const char *before, size_t value_length)
{
	struct iscsi_text t = { 0 };
	char *k, *v;
	size_t at = 0;
	int more;

	for (size_t i = 0; i < key_length; i++)
		iscsi_text_append(&t, key, 1);
	iscsi_text_append(&t, "=", 1);
	iscsi_text_append(&t, before, strlen(before));
	for (size_t i = 0; i < value_length; i++)
		iscsi_text_append(&t, "1", 1);
	iscsi_text_append(&t, "", 1);
	assert_false(t.failed);
	more = iscsi_text_next(t.data, t.length, &at, &k, &v);
	iscsi_text_free(&t);
	return more;
}

TEST(keys_and_values_are_as_long_as_the_rfc_lets_them)
{
	assert_eq(next_of("K", 63, "", 1), 1);
	assert_eq(next_of("K", 64, "", 1), -EINVAL);
	assert_eq(next_of("K", 1, "", 255), 1);
	assert_eq(next_of("K", 1, "", 256), -EINVAL);
	assert_eq(next_of("K", 1, "first,second,", 255), 1); /* each of a list */
	assert_eq(next_of("K", 1, "first,second,", 256), -EINVAL);
	assert_eq(next_of("K", 1, "0x", 2048), 1);
	assert_eq(next_of("K", 1, "0x", 2049), -EINVAL);
	assert_eq(next_of("K", 1, "0b", 1368), 1);
}

TEST(a_text_stops_growing_at_its_limit)
{
	struct iscsi_text t = { 0 };

	for (unsigned i = 0; i < ISCSI_KEYS_MAX; i++)
		iscsi_text_append(&t, "x", 1);
	assert_false(t.failed);
	assert_eq(t.length, ISCSI_KEYS_MAX);
	iscsi_text_append(&t, "x", 1);
	assert_true(t.failed);
	assert_eq(t.length, ISCSI_KEYS_MAX);
	iscsi_text_free(&t);
}

TEST(numbers_are_decimal_or_hex_and_nothing_else)
{
	static const char *const wrong[] = {
		"",    "-1",  "+1", " 1", "1 ",  "0x",
		"0xg", "1.0", "1a", "0b", "Yes", "99999999999999999999"
	};
	uint64_t n;

	assert_true(iscsi_number_read("0", &n) && n == 0);
	assert_true(iscsi_number_read("0010", &n) && n == 10);
	assert_true(iscsi_number_read("0x1F", &n) && n == 31);
	assert_true(iscsi_number_read("18446744073709551615", &n) && n == UINT64_MAX);
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_false(iscsi_number_read(wrong[i], &n));
}

TEST(names_are_told_from_what_is_none)
{
	static const char *const right[] = {
		"iqn.2001-04.com.example:storage.tape1",
		"iqn.1991-05.com.microsoft:my_host",
		"eui.02004567a425678d",
		"naa.52004567ba64678d",
		"naa.62004567ba64678d0123456789abcdef",
		("iqn.2001-04.org.example:k\xc3\xbc"
		 "che"),
	};
	static const char *const wrong[] = {
		"",
		"iqn.",
		"iqn",
		"storage",
		"iqn.2001-04.com.example:a b",
		"iqn.2001-04.com.example:a,b",
		"iqn.2001-04.com.example:a\nb",
		"iqn.2001-04.com.example:\xff",
		"iqn.2001-04.com.Example:a",
		"eui.02004567a425678",
		"eui.02004567a425678g",
		"naa.52004567ba64678d0",
		"IQN.2001-04.com.example:a",
	};
	char name[ISCSI_NAME_MAX + 1], longest[ISCSI_NAME_MAX + 2];

	for (size_t i = 0; i < sizeof right / sizeof *right; i++)
		assert_true(iscsi_name_is_valid(right[i]));
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_false(iscsi_name_is_valid(wrong[i]));
	memset(longest, 'x', sizeof longest);
	memcpy(longest, "iqn.", 4);
	longest[ISCSI_NAME_MAX] = '\0';
	assert_true(iscsi_name_read(longest, name));
	longest[ISCSI_NAME_MAX] = 'x';
	longest[ISCSI_NAME_MAX + 1] = '\0';
	assert_false(iscsi_name_read(longest, name));
	assert_true(iscsi_name_read("IQN.2001-04.com.Example:A", name));
	assert_str(name, "iqn.2001-04.com.example:a");
}

/* ---- agreeing -------------------------------------------------------------------- */

TEST(each_key_is_agreed_on_by_its_rule)
{
	static const struct {
		const char *say, *answer; /* answer: NULL: as said */
	} cases[] = {
		{ "HeaderDigest=None", NULL },
		{ "HeaderDigest=CRC32C", NULL },
		{ "HeaderDigest=CRC32C,None", "HeaderDigest=CRC32C" },
		{ "HeaderDigest=None,CRC32C", "HeaderDigest=None" },
		{ "HeaderDigest=X-other,CRC32C", "HeaderDigest=CRC32C" },
		{ "HeaderDigest=X-other", "HeaderDigest=Reject" },
		{ "HeaderDigest=crc32c", "HeaderDigest=Reject" },
		{ "HeaderDigest=", "HeaderDigest=Reject" },
		{ "HeaderDigest=,,", "HeaderDigest=Reject" },
		{ "DataDigest=CRC32C,None", "DataDigest=CRC32C" },
		{ "MaxConnections=1", NULL },
		{ "MaxConnections=65535", "MaxConnections=1" },
		{ "MaxConnections=0", "MaxConnections=Reject" },
		{ "MaxConnections=65536", "MaxConnections=Reject" },
		{ "InitialR2T=Yes", NULL },
		{ "InitialR2T=No", NULL },
		{ "InitialR2T=yes", "InitialR2T=Reject" },
		{ "InitialR2T=1", "InitialR2T=Reject" },
		{ "ImmediateData=Yes", NULL },
		{ "ImmediateData=No", NULL },
		{ "MaxBurstLength=512", NULL },
		{ "MaxBurstLength=0x400", "MaxBurstLength=1024" },
		{ "MaxBurstLength=16777215", "MaxBurstLength=1048576" },
		{ "MaxBurstLength=16777216", "MaxBurstLength=Reject" },
		{ "MaxBurstLength=511", "MaxBurstLength=Reject" },
		{ "FirstBurstLength=512", NULL },
		{ "FirstBurstLength=262144", "FirstBurstLength=65536" },
		{ "FirstBurstLength=0", "FirstBurstLength=Reject" },
		{ "DefaultTime2Wait=0", NULL },
		{ "DefaultTime2Wait=3600", NULL },
		{ "DefaultTime2Wait=3601", "DefaultTime2Wait=Reject" },
		{ "DefaultTime2Retain=20", "DefaultTime2Retain=0" },
		{ "DefaultTime2Retain=x", "DefaultTime2Retain=Reject" },
		{ "MaxOutstandingR2T=1", NULL },
		{ "MaxOutstandingR2T=65535", "MaxOutstandingR2T=8" },
		{ "MaxOutstandingR2T=0", "MaxOutstandingR2T=Reject" },
		{ "DataPDUInOrder=Yes", NULL },
		{ "DataPDUInOrder=No", "DataPDUInOrder=Yes" },
		{ "DataSequenceInOrder=No", "DataSequenceInOrder=Yes" },
		{ "ErrorRecoveryLevel=0", NULL },
		{ "ErrorRecoveryLevel=2", "ErrorRecoveryLevel=0" },
		{ "ErrorRecoveryLevel=3", "ErrorRecoveryLevel=Reject" },
		{ "TaskReporting=RFC3720,ResponseFence,FastAbort", "TaskReporting=RFC3720" },
		{ "TaskReporting=FastAbort", "TaskReporting=Reject" },
		{ "iSCSIProtocolLevel=0", NULL },
		{ "iSCSIProtocolLevel=2", "iSCSIProtocolLevel=1" },
		{ "iSCSIProtocolLevel=32", "iSCSIProtocolLevel=Reject" },
		{ "IFMarker=No", "IFMarker=Reject" },
		{ "OFMarker=Yes", "OFMarker=Reject" },
		{ "IFMarkInt=1~100", "IFMarkInt=Reject" },
		{ "OFMarkInt=1~100", "OFMarkInt=Reject" },
		{ "TargetAlias=mine", "TargetAlias=Reject" },
		{ "TargetPortalGroupTag=1", "TargetPortalGroupTag=Reject" },
		{ "MaxRecvDataSegmentLength=511", "MaxRecvDataSegmentLength=Reject" },
		{ "MaxRecvDataSegmentLength=16777216", "MaxRecvDataSegmentLength=Reject" },
	};

	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct talk talk = begin();

		answers(&talk, ISCSI_OPERATIONAL, ""); /* what is declared comes once */
		assert_str(answers(&talk, ISCSI_OPERATIONAL, cases[i].say),
			   cases[i].answer != NULL ? cases[i].answer : cases[i].say);
		assert_eq(talk.error, 0);
	}
}

TEST(the_outcome_is_kept)
{
	struct talk talk = begin();

	answers(&talk, ISCSI_OPERATIONAL,
		"HeaderDigest=CRC32C|DataDigest=CRC32C|MaxRecvDataSegmentLength=262144|"
		"InitialR2T=No|ImmediateData=No|MaxBurstLength=4096|FirstBurstLength=1024|"
		"DefaultTime2Wait=7|DefaultTime2Retain=9|MaxOutstandingR2T=3|MaxConnections=4|"
		"ErrorRecoveryLevel=1|DataPDUInOrder=No|DataSequenceInOrder=No");
	assert_eq(talk.p.header_digest, ISCSI_DIGEST_CRC32C);
	assert_eq(talk.p.data_digest, ISCSI_DIGEST_CRC32C);
	assert_eq(talk.p.max_send, 262144);
	assert_eq(talk.p.max_receive, 262144);
	assert_eq(talk.p.max_burst, 4096);
	assert_eq(talk.p.first_burst, 1024);
	assert_eq(talk.p.max_outstanding_r2t, 3);
	assert_eq(talk.p.max_connections, 1);
	assert_eq(talk.p.time2wait, 7);
	assert_eq(talk.p.time2retain, 0);
	assert_eq(talk.p.error_recovery_level, 0);
	assert_false(talk.p.initial_r2t);
	assert_false(talk.p.immediate_data);
	assert_true(talk.p.data_pdu_in_order);
	assert_true(talk.p.data_sequence_in_order);
}

TEST(without_a_word_the_defaults_of_the_rfc_hold)
{
	struct talk talk = begin();

	assert_eq(talk.p.header_digest, ISCSI_DIGEST_NONE);
	assert_eq(talk.p.data_digest, ISCSI_DIGEST_NONE);
	assert_eq(talk.p.max_send, 8192);
	assert_eq(talk.p.max_receive, 8192);
	assert_eq(talk.p.max_burst, 262144);
	assert_eq(talk.p.first_burst, 65536);
	assert_eq(talk.p.max_outstanding_r2t, 1);
	assert_eq(talk.p.time2wait, 2);
	assert_eq(talk.p.time2retain, 20);
	assert_true(talk.p.initial_r2t && talk.p.immediate_data);
}

TEST(what_is_rejected_changes_nothing)
{
	struct talk talk = begin();

	answers(&talk, ISCSI_OPERATIONAL,
		"HeaderDigest=md5|MaxBurstLength=1|MaxRecvDataSegmentLength=1|InitialR2T=maybe");
	assert_eq(talk.p.header_digest, ISCSI_DIGEST_NONE);
	assert_eq(talk.p.max_burst, 262144);
	assert_eq(talk.p.max_send, 8192);
	assert_true(talk.p.initial_r2t);
}

/* RFC 7143, "FirstBurstLength": it must not exceed MaxBurstLength. */
TEST(the_first_burst_is_never_above_the_burst_in_whatever_order)
{
	static const char *const orders[] = {
		"MaxBurstLength=1024|FirstBurstLength=4096",
		"FirstBurstLength=4096|MaxBurstLength=1024",
	};

	for (unsigned i = 0; i < 2; i++) {
		struct talk talk = begin();

		assert_str(answers(&talk, ISCSI_OPERATIONAL, orders[i]),
			   "MaxBurstLength=1024|MaxRecvDataSegmentLength=262144|"
			   "FirstBurstLength=1024");
		assert_eq(talk.p.first_burst, 1024);
	}
	struct talk talk = begin();

	answers(&talk, ISCSI_OPERATIONAL, "MaxBurstLength=1024");
	assert_eq(talk.p.first_burst, 1024);
	answers(&talk, ISCSI_OPERATIONAL, "");
	assert_eq(talk.p.max_burst, 1024);
}

TEST(a_length_is_declared_once)
{
	struct talk talk = begin();

	assert_str(answers(&talk, ISCSI_OPERATIONAL, "InitialR2T=Yes"),
		   "InitialR2T=Yes|MaxRecvDataSegmentLength=262144");
	assert_str(answers(&talk, ISCSI_OPERATIONAL, "ImmediateData=Yes"), "ImmediateData=Yes");
}

TEST(a_discovery_session_finds_keys_of_data_irrelevant)
{
	static const char *const irrelevant[] = {
		"MaxConnections",    "InitialR2T",         "ImmediateData",       "MaxBurstLength",
		"FirstBurstLength",  "DataPDUInOrder",     "DataSequenceInOrder", "TaskReporting",
		"MaxOutstandingR2T", "iSCSIProtocolLevel",
	};
	char say[64], answer[64];

	for (size_t i = 0; i < sizeof irrelevant / sizeof *irrelevant; i++) {
		struct talk talk = begin();

		talk.discovery = true;
		answers(&talk, ISCSI_OPERATIONAL, "");
		snprintf(say, sizeof say, "%s=1", irrelevant[i]);
		snprintf(answer, sizeof answer, "%s=Irrelevant", irrelevant[i]);
		assert_str(answers(&talk, ISCSI_OPERATIONAL, say), answer);
	}
	struct talk talk = begin();

	talk.discovery = true;
	assert_str(answers(&talk, ISCSI_OPERATIONAL,
			   "HeaderDigest=CRC32C|DefaultTime2Wait=2|ErrorRecoveryLevel=0"),
		   "HeaderDigest=CRC32C|DefaultTime2Wait=2|ErrorRecoveryLevel=0|"
		   "MaxRecvDataSegmentLength=262144");
}

TEST(a_key_twice_or_in_another_stage_is_not_agreed_on)
{
	struct talk talk = begin();

	answers(&talk, ISCSI_OPERATIONAL, "InitialR2T=No|InitialR2T=No");
	assert_eq(talk.error, -EPROTO);
	talk = begin();
	answers(&talk, ISCSI_OPERATIONAL, "InitialR2T=No");
	assert_eq(talk.error, 0);
	answers(&talk, ISCSI_OPERATIONAL, "InitialR2T=No");
	assert_eq(talk.error, -EPROTO);
	talk = begin();
	answers(&talk, ISCSI_SECURITY, "InitialR2T=No");
	assert_eq(talk.error, -EPROTO);
	answers(&talk, ISCSI_FULL_FEATURE, "InitialR2T=No");
	assert_eq(talk.error, -EPROTO);
	answers(&talk, ISCSI_OPERATIONAL, "Unheard=1");
	assert_eq(talk.error, -ENOENT);
}

TEST(a_length_may_be_declared_anew_at_any_time)
{
	struct talk talk = begin();

	answers(&talk, ISCSI_OPERATIONAL, "MaxRecvDataSegmentLength=65536");
	assert_eq(talk.p.max_send, 65536);
	assert_str(answers(&talk, ISCSI_FULL_FEATURE, "MaxRecvDataSegmentLength=1024"), "");
	assert_eq(talk.error, 0);
	assert_eq(talk.p.max_send, 1024);
}

/* ---- digests --------------------------------------------------------------------- */

/* RFC 7143, "CRC Examples". */
TEST(digests_are_those_of_the_rfc)
{
	static const uint8_t read_command[48] = {
		0x01, 0xc0, [16] = 0x14, [22] = 0x04, [27] = 0x14, [31] = 0x18, 0x28, [40] = 0x02
	};
	struct {
		uint8_t data[48];
		size_t length;
		uint8_t crc[4];
	} cases[] = {
		{ { 0 }, 32, { 0xaa, 0x36, 0x91, 0x8a } },
		{ { 0 }, 32, { 0x43, 0xab, 0xa8, 0x62 } },
		{ { 0 }, 32, { 0x4e, 0x79, 0xdd, 0x46 } },
		{ { 0 }, 32, { 0x5c, 0xdb, 0x3f, 0x11 } },
		{ { 0 }, 48, { 0x56, 0x3a, 0x96, 0xd9 } },
	};
	uint8_t crc[ISCSI_DIGEST];

	memset(cases[1].data, 0xff, 32);
	for (unsigned i = 0; i < 32; i++) {
		cases[2].data[i] = (uint8_t)i;
		cases[3].data[i] = (uint8_t)(31 - i);
	}
	memcpy(cases[4].data, read_command, sizeof read_command);
	for (unsigned i = 0; i < 5; i++) {
		iscsi_crc_end(iscsi_crc_more(ISCSI_CRC_START, cases[i].data, cases[i].length), crc);
		assert_mem(crc, cases[i].crc, ISCSI_DIGEST);
	}
}

TEST(a_digest_of_pieces_is_that_of_the_whole)
{
	uint8_t data[1000], whole[ISCSI_DIGEST], pieces[ISCSI_DIGEST];

	for (unsigned i = 0; i < sizeof data; i++)
		data[i] = (uint8_t)(i * 7);
	iscsi_crc_end(iscsi_crc_more(ISCSI_CRC_START, data, sizeof data), whole);
	for (size_t at = 0; at <= sizeof data; at += 37) {
		uint32_t crc = iscsi_crc_more(ISCSI_CRC_START, data, at);

		iscsi_crc_end(iscsi_crc_more(crc, data + at, sizeof data - at), pieces);
		assert_mem(pieces, whole, ISCSI_DIGEST);
	}
}
