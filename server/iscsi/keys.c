/*
 * keys.c - text keys, as a table of how each is agreed on.
 *
 * The good path: a row says of which kind a key is, what values there are, and what we would
 * like; its kind makes one value of the initiator's and ours, and that is the answer.
 *
 * What can go wrong, RFC 7143 "Text Mode Negotiation":
 * - a value that is none of the key's: "Reject", and what held before holds.
 * - a key that means nothing in a discovery session: "Irrelevant".
 * - a key again, or in another stage than its own: nothing can be agreed on with such a peer.
 */
#include "keys.h"

#include "platter.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define KEY_MAX         63  /* RFC 7143, "Text Format" */
#define VALUE_MAX       255 /* the same: of each value in a list */
/* The same: binary values have 1024 bytes at most, here as hex digits. */
#define BINARY_TEXT_MAX (2 + 2 * 1024)

/* ---- text ------------------------------------------------------------------------ */

void
iscsi_text_append(struct iscsi_text *t, const void *data, size_t length)
{
	size_t limit = t->limit != 0 ? t->limit : ISCSI_KEYS_MAX;
	size_t room = t->room != 0 ? t->room : 512;
	char *grown;

	if (t->failed || length == 0)
		return;
	if (length > limit - t->length) {
		t->failed = true;
		return;
	}
	while (room < t->length + length)
		room *= 2;
	if (room != t->room) {
		grown = realloc(t->data, room);
		if (grown == NULL) {
			t->failed = true;
			return;
		}
		t->data = grown;
		t->room = room;
	}
	memcpy(t->data + t->length, data, length);
	t->length += length;
}

void
iscsi_text_add(struct iscsi_text *t, const char *key, const char *value)
{
	iscsi_text_append(t, key, strlen(key));
	iscsi_text_append(t, "=", 1);
	iscsi_text_append(t, value, strlen(value) + 1);
}

static void
add_number(struct iscsi_text *t, const char *key, uint64_t n)
{
	char digits[24];

	snprintf(digits, sizeof digits, "%llu", (unsigned long long)n);
	iscsi_text_add(t, key, digits);
}

void
iscsi_text_free(struct iscsi_text *t)
{
	free(t->data);
	*t = (struct iscsi_text){ .limit = t->limit };
}

/* RFC 7143, "Text Format": key-name. */
static bool
key_is_valid(const char *key)
{
	size_t length = strlen(key);

	if (length == 0 || length > KEY_MAX)
		return false;
	for (; *key != '\0'; key++) {
		if (!isalnum((unsigned char)*key) && strchr(".-+@_#/", *key) == NULL)
			return false;
	}
	return true;
}

static bool
value_is_valid(const char *value)
{
	size_t length;

	if (value[0] == '0' && strchr("xXbB", value[1]) != NULL && value[1] != '\0')
		return strlen(value) <= BINARY_TEXT_MAX;
	for (;; value += length + 1) {
		length = strcspn(value, ",");
		if (length > VALUE_MAX)
			return false;
		if (value[length] == '\0')
			return true;
	}
}

int
iscsi_text_next(char *text, size_t length, size_t *at, char **key, char **value)
{
	char *end;

	while (*at < length && text[*at] == '\0')
		++*at;
	if (*at == length)
		return 0;
	*key = text + *at;
	end = memchr(*key, '\0', length - *at);
	if (end == NULL)
		return -EINVAL;
	*value = memchr(*key, '=', (size_t)(end - *key));
	if (*value == NULL)
		return -EINVAL;
	*(*value)++ = '\0';
	*at = (size_t)(end - text) + 1;
	return key_is_valid(*key) && value_is_valid(*value) ? 1 : -EINVAL;
}

bool
iscsi_number_read(const char *text, uint64_t *n)
{
	bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
	char *end;

	text += hex ? 2 : 0;
	if (!(hex ? isxdigit((unsigned char)*text) : isdigit((unsigned char)*text)))
		return false;
	errno = 0;
	*n = strtoull(text, &end, hex ? 16 : 10);
	return errno == 0 && *end == '\0';
}

/* The next word of a list; NULL behind the last. */
static const char *
next_word(const char *list, size_t *length)
{
	if (list == NULL)
		return NULL;
	*length = strcspn(list, ",");
	return list;
}

static const char *
behind_word(const char *list, size_t length)
{
	return list[length] == ',' ? list + length + 1 : NULL;
}

static bool
word_is(const char *word, size_t length, const char *other)
{
	return strlen(other) == length && memcmp(word, other, length) == 0;
}

bool
iscsi_list_has(const char *list, const char *word)
{
	size_t length;

	for (; next_word(list, &length) != NULL; list = behind_word(list, length)) {
		if (word_is(list, length, word))
			return true;
	}
	return false;
}

/* ---- names ----------------------------------------------------------------------- */

static bool
all_hex(const char *text, size_t length)
{
	return strlen(text) == length && strspn(text, "0123456789abcdef") == length;
}

/* Letters that RFC 3722 would not have, '_' among them, are in names that people use. */
static bool
iqn_is_valid(const char *name)
{
	char clean[ISCSI_NAME_MAX + 1];

	for (const char *p = name; *p != '\0'; p++) {
		if ((unsigned char)*p < 0x80 && !islower((unsigned char)*p) &&
		    !isdigit((unsigned char)*p) && strchr("-.:_", *p) == NULL)
			return false;
	}
	strcpy(clean, name);
	pl_text_clean(clean);
	return *name != '\0' && strcmp(clean, name) == 0;
}

bool
iscsi_name_is_valid(const char *name)
{
	size_t length = strlen(name);

	if (length < 5 || length > ISCSI_NAME_MAX)
		return false;
	if (memcmp(name, "iqn.", 4) == 0)
		return iqn_is_valid(name + 4);
	if (memcmp(name, "eui.", 4) == 0)
		return all_hex(name + 4, 16);
	if (memcmp(name, "naa.", 4) == 0)
		return all_hex(name + 4, 16) || all_hex(name + 4, 32);
	return false;
}

bool
iscsi_name_read(const char *name, char to[ISCSI_NAME_MAX + 1])
{
	size_t length = strlen(name);

	if (length > ISCSI_NAME_MAX)
		return false;
	for (size_t i = 0; i <= length; i++)
		to[i] = name[i] >= 'A' && name[i] <= 'Z' ? (char)(name[i] - 'A' + 'a') : name[i];
	return iscsi_name_is_valid(to);
}

/* ---- the table ------------------------------------------------------------------- */

#define DATA_OURS        (256u << 10) /* MaxRecvDataSegmentLength: what a PDU may bring us */
#define BURST_OURS       (1u << 20)
#define FIRST_BURST_OURS (64u << 10)
#define R2T_OURS         8
#define LENGTH_LEAST     512
#define LENGTH_MOST      ((1u << 24) - 1)

enum kind {
	KEY_LIST,     /* the first of the initiator's words that is one of ours */
	KEY_OR,       /* Yes, if either says so */
	KEY_AND,      /* Yes, if both do */
	KEY_LESS,     /* the smaller number */
	KEY_MORE,     /* the larger number */
	KEY_DECLARED, /* a number that is said, not answered */
	KEY_OBSOLETE, /* RFC 7143, "Obsoleted Keys": no such thing any more, but understood */
	KEY_TARGETS,  /* for a target to declare */
};

#define NOWHERE SIZE_MAX

struct row {
	const char *name;
	enum kind kind;
	size_t at; /* offsetof() in struct iscsi_parameters: bool for OR and AND, else uint32_t */
	const char *words; /* LIST: ours; their place is the number kept */
	uint32_t least, most, ours;
	bool discovery; /* means something in a discovery session */
	bool later;     /* iscsi_keys_declare() answers */
};

#define NUMBER(field, least_, most_, ours_) \
	.at = offsetof(struct iscsi_parameters, field), .least = (least_), .most = (most_), \
	.ours = (ours_)
#define FLAG(field, ours_)   .at = offsetof(struct iscsi_parameters, field), .ours = (ours_)
#define WORDS(field, words_) .at = offsetof(struct iscsi_parameters, field), .words = (words_)
#define BYTES(field, ours_)  NUMBER(field, LENGTH_LEAST, LENGTH_MOST, ours_)
#define ALWAYS               .discovery = true

/* RFC 7143, "Login/Text Operational Text Keys" */
static const struct row rows[] = {
	{ "HeaderDigest", KEY_LIST, WORDS(header_digest, "None,CRC32C"), ALWAYS },
	{ "DataDigest", KEY_LIST, WORDS(data_digest, "None,CRC32C"), ALWAYS },
	{ "MaxRecvDataSegmentLength", KEY_DECLARED, BYTES(max_send, 0), ALWAYS },
	{ "MaxConnections", KEY_LESS, NUMBER(max_connections, 1, 65535, 1) },
	{ "InitialR2T", KEY_OR, FLAG(initial_r2t, false) },
	{ "ImmediateData", KEY_AND, FLAG(immediate_data, true) },
	{ "MaxBurstLength", KEY_LESS, BYTES(max_burst, BURST_OURS) },
	{ "FirstBurstLength", KEY_LESS, BYTES(first_burst, FIRST_BURST_OURS), .later = true },
	{ "DefaultTime2Wait", KEY_MORE, NUMBER(time2wait, 0, 3600, 0), ALWAYS },
	{ "DefaultTime2Retain", KEY_LESS, NUMBER(time2retain, 0, 3600, 0), ALWAYS },
	{ "MaxOutstandingR2T", KEY_LESS, NUMBER(max_outstanding_r2t, 1, 65535, R2T_OURS) },
	{ "DataPDUInOrder", KEY_OR, FLAG(data_pdu_in_order, true) },
	{ "DataSequenceInOrder", KEY_OR, FLAG(data_sequence_in_order, true) },
	{ "ErrorRecoveryLevel", KEY_LESS, NUMBER(error_recovery_level, 0, 2, 0), ALWAYS },
	{ "TaskReporting", KEY_LIST, .at = NOWHERE, .words = "RFC3720" },
	{ "iSCSIProtocolLevel", KEY_LESS, .at = NOWHERE, .most = 31, .ours = 1 },
	{ "IFMarker", KEY_OBSOLETE, ALWAYS },
	{ "OFMarker", KEY_OBSOLETE, ALWAYS },
	{ "IFMarkInt", KEY_OBSOLETE, ALWAYS },
	{ "OFMarkInt", KEY_OBSOLETE, ALWAYS },
	{ "TargetAlias", KEY_TARGETS, ALWAYS },
	{ "TargetAddress", KEY_TARGETS, ALWAYS },
	{ "TargetPortalGroupTag", KEY_TARGETS, ALWAYS },
};
#define ROWS (sizeof rows / sizeof *rows)

static const struct row *
row_of(const char *name)
{
	for (size_t i = 0; i < ROWS; i++) {
		if (strcmp(rows[i].name, name) == 0)
			return &rows[i];
	}
	return NULL;
}

/* In *seen: the initiator has said it; and we have. */
static uint64_t
theirs(const struct row *row)
{
	static_assert(ROWS <= 32, "two bits for each row");
	return UINT64_C(1) << (row - rows);
}

static uint64_t
ours(const struct row *row)
{
	return theirs(row) << 32;
}

void
iscsi_parameters_default(struct iscsi_parameters *p)
{
	*p = (struct iscsi_parameters){
		.max_send = 8192,
		.max_receive = 8192,
		.max_burst = 262144,
		.first_burst = 65536,
		.max_outstanding_r2t = 1,
		.max_connections = 1,
		.time2wait = 2,
		.time2retain = 20,
		.initial_r2t = true,
		.immediate_data = true,
		.data_pdu_in_order = true,
		.data_sequence_in_order = true,
	};
}

static void
keep(struct iscsi_parameters *p, const struct row *row, uint32_t n)
{
	if (row->at != NOWHERE)
		memcpy((char *)p + row->at, &n, sizeof n);
}

/* Each of these returns false for a value that the key cannot have. */

static bool
choose(struct iscsi_parameters *p, const struct row *row, const char *value, struct iscsi_text *out)
{
	char word[VALUE_MAX + 1];
	size_t length, our_length;
	uint32_t place;

	for (; next_word(value, &length) != NULL; value = behind_word(value, length)) {
		place = 0;
		for (const char *w = row->words; next_word(w, &our_length) != NULL;
		     w = behind_word(w, our_length), place++) {
			if (length != our_length || memcmp(value, w, length) != 0)
				continue;
			memcpy(word, w, length);
			word[length] = '\0';
			keep(p, row, place);
			iscsi_text_add(out, row->name, word);
			return true;
		}
	}
	return false;
}

static bool
combine_flags(struct iscsi_parameters *p, const struct row *row, const char *value,
	      struct iscsi_text *out)
{
	bool yes = strcmp(value, "Yes") == 0;

	if (!yes && strcmp(value, "No") != 0)
		return false;
	yes = row->kind == KEY_OR ? yes || row->ours != 0 : yes && row->ours != 0;
	memcpy((char *)p + row->at, &yes, sizeof yes);
	iscsi_text_add(out, row->name, yes ? "Yes" : "No");
	return true;
}

static bool
combine_numbers(struct iscsi_parameters *p, const struct row *row, const char *value,
		struct iscsi_text *out)
{
	uint64_t n;

	if (!iscsi_number_read(value, &n) || n < row->least || n > row->most)
		return false;
	if (row->kind == KEY_LESS && n > row->ours)
		n = row->ours;
	if (row->kind == KEY_MORE && n < row->ours)
		n = row->ours;
	keep(p, row, (uint32_t)n);
	if (row->kind != KEY_DECLARED && !row->later)
		add_number(out, row->name, n);
	return true;
}

static bool
negotiate(struct iscsi_parameters *p, const struct row *row, const char *value,
	  struct iscsi_text *out)
{
	switch (row->kind) {
	case KEY_LIST: return choose(p, row, value, out);
	case KEY_OR:
	case KEY_AND: return combine_flags(p, row, value, out);
	case KEY_LESS:
	case KEY_MORE:
	case KEY_DECLARED: return combine_numbers(p, row, value, out);
	case KEY_OBSOLETE:
	case KEY_TARGETS: return false;
	}
	return false;
}

int
iscsi_key_negotiate(struct iscsi_parameters *p, enum iscsi_stage stage, bool discovery,
		    uint64_t *seen, const char *key, const char *value, struct iscsi_text *out)
{
	const struct row *row = row_of(key);

	if (row == NULL)
		return -ENOENT;
	/* Declared, a length may be changed at any time. */
	if (stage == ISCSI_FULL_FEATURE ? row->kind != KEY_DECLARED
					: stage != ISCSI_OPERATIONAL || (*seen & theirs(row)) != 0)
		return -EPROTO;
	*seen |= theirs(row);
	if (discovery && !row->discovery) {
		iscsi_text_add(out, key, "Irrelevant");
		*seen |= ours(row);
	} else if (!negotiate(p, row, value, out)) {
		iscsi_text_add(out, key, "Reject");
		if (row->later)
			*seen |= ours(row);
	}
	return 0;
}

void
iscsi_keys_declare(struct iscsi_parameters *p, uint64_t *seen, struct iscsi_text *out)
{
	const struct row *length = row_of("MaxRecvDataSegmentLength");
	const struct row *first = row_of("FirstBurstLength");

	if ((*seen & ours(length)) == 0) {
		p->max_receive = DATA_OURS;
		add_number(out, length->name, DATA_OURS);
		*seen |= ours(length);
	}
	if (p->first_burst > p->max_burst)
		p->first_burst = p->max_burst;
	if ((*seen & theirs(first)) != 0 && (*seen & ours(first)) == 0) {
		add_number(out, first->name, p->first_burst);
		*seen |= ours(first);
	}
}
