/*
 * scsi_table.c - every row of tests/scsi/cdb.tsv, put to the SCSI layer directly.
 *
 * What the fields of a row mean is said at the head of the table.
 */
#include "scsi.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIELDS = 6, WORDS_MAX = 8, DATA_MAX = 1 << 18 };

struct row {
	unsigned line;
	char *field[FIELDS]; /* NULL where it is missing */
};

static uint8_t data[DATA_MAX];

/* ---- what a row asks for ---------------------------------------------------------- */

static _Noreturn void
malformed(const struct row *row, const char *what)
{
	test_fail(CDB_TABLE, (int)row->line, "%s: %s", row->field[0], what);
}

/* "a5x7,00x505" into data; returns how many. */
static uint32_t
put_pattern(const struct row *row, const char *p)
{
	uint32_t length = 0;
	unsigned byte, times;
	int used;

	while (*p != '\0') {
		if (sscanf(p, "%2xx%u%n", &byte, &times, &used) == 2)
			p += used;
		else if (sscanf(p, "%2x", &byte) == 1 && p[1] != '\0')
			times = 1, p += 2;
		else
			malformed(row, "data is hex bytes, or BYTExTIMES, joined by commas");
		if (times > DATA_MAX - length)
			malformed(row, "too much data");
		memset(data + length, (int)byte, times);
		length += times;
		p += *p == ',';
	}
	return length;
}

/* ---- what came of it -------------------------------------------------------------- */

/* The answer in the table's words. */
static void
put_answer(const struct answer *a, char *text, size_t size)
{
	int n;

	switch (a->status) {
	case SCSI_GOOD: snprintf(text, size, "GOOD"); return;
	case SCSI_CONDITION_MET: snprintf(text, size, "MET"); return;
	case SCSI_RESERVATION_CONFLICT: snprintf(text, size, "CONFLICT"); return;
	case SCSI_CHECK_CONDITION: break;
	default: snprintf(text, size, "status %02x", a->status); return;
	}
	n = snprintf(text, size, "%x/%04x", a->key, a->asc);
	if (!a->has_field)
		return;
	n += snprintf(text + n, size - (size_t)n, "%c%u", a->field_in_cdb ? '@' : '+', a->field);
	if (a->bit >= 0)
		snprintf(text + n, size - (size_t)n, ".%d", a->bit);
}

static bool
number_is(const char *check, const char *key, uint64_t is)
{
	const char *want = check + strlen(key) + 1;
	bool right = strcmp(want, "any") == 0 ? is > 0 : strtoull(want, NULL, 10) == is;

	if (!right)
		printf("  %s: it is %" PRIu64 "\n", check, is);
	return right;
}

static bool
is_about(const char *check, const char *key)
{
	return strncmp(check, key, strlen(key)) == 0 && check[strlen(key)] == '=';
}

static bool
byte_is(const struct row *row, const struct answer *a, const char *check)
{
	unsigned at, mask = 0xff, want;

	if (sscanf(check, "%u&%x=%x", &at, &mask, &want) != 3 &&
	    sscanf(check, "%u=%x", &at, &want) != 2)
		malformed(row, check);
	if (at >= a->moved) {
		printf("  %s: only %u bytes came\n", check, a->moved);
		return false;
	}
	if ((data[at] & mask) != want)
		printf("  %s: it is %02x\n", check, data[at]);
	return (data[at] & mask) == want;
}

static bool
check_one(const struct row *row, const struct answer *a, const char *check)
{
	if (is_about(check, "moved"))
		return number_is(check, "moved", a->moved);
	if (is_about(check, "under"))
		return number_is(check, "under",
				 a->residual == SCSI_UNDERFLOW ? a->residual_count : 0);
	if (is_about(check, "over"))
		return number_is(check, "over",
				 a->residual == SCSI_OVERFLOW ? a->residual_count : 0);
	if (is_about(check, "info")) {
		if (!a->has_information)
			printf("  %s: there is none\n", check);
		return a->has_information && number_is(check, "info", a->information);
	}
	return byte_is(row, a, check);
}

static bool
checks_pass(const struct row *row, const struct answer *a)
{
	char list[512], *rest = list;
	bool pass = true, residual = false;

	snprintf(list, sizeof list, "%s", row->field[4]);
	if (strcmp(list, "-") != 0) {
		for (char *one; (one = strsep(&rest, ",")) != NULL;) {
			pass &= check_one(row, a, one);
			residual |= is_about(one, "under") || is_about(one, "over");
		}
	}
	if (!residual && a->residual != SCSI_EXACT) {
		printf("  %s=%u, of which the row says nothing\n",
		       a->residual == SCSI_UNDERFLOW ? "under" : "over", a->residual_count);
		pass = false;
	}
	return pass;
}

static bool
run_row(struct lab *s, const struct row *row)
{
	const char *what = row->field[2];
	unsigned lun = row->field[5] != NULL ? (unsigned)atoi(row->field[5]) : 0;
	enum direction direction = DATA_NONE;
	struct answer a;
	uint32_t length = 0;
	char answer[40];
	bool pass;

	memset(data, 0xee, sizeof data);
	if (what[0] == '<') {
		direction = DATA_IN;
		length = (uint32_t)strtoul(what + 1, NULL, 10);
	} else if (what[0] == '>') {
		direction = DATA_OUT;
		length = put_pattern(row, what + 1);
	} else if (strcmp(what, "-") != 0) {
		malformed(row, "data is -, <N or >BYTES");
	}
	if (length > DATA_MAX)
		malformed(row, "too much data");
	a = scsi_do_lun(&s->a, lun, cdb_hex(row->field[1]), direction, length, data);
	put_answer(&a, answer, sizeof answer);
	pass = checks_pass(row, &a);
	if (strcmp(answer, row->field[3]) != 0) {
		printf("  the answer is %s, and should be %s\n", answer, row->field[3]);
		pass = false;
	}
	if (!pass)
		printf("line %u: %s\n", row->line, row->field[0]);
	return pass;
}

/* ---- the table --------------------------------------------------------------------- */

static void
split(char *line, struct row *row)
{
	memset(row->field, 0, sizeof row->field);
	for (unsigned i = 0; i < FIELDS && line != NULL; i++)
		row->field[i] = strsep(&line, "\t");
	if (line != NULL || row->field[4] == NULL)
		malformed(row, "a line has 5 or 6 fields");
}

static void
make_disk(struct lab *s, const struct row *row)
{
	const char *words[2][WORDS_MAX + 1] = { { NULL } };

	for (unsigned i = 0; i < 2; i++) {
		char *rest = row->field[2 + i];
		unsigned count = 0;

		for (char *word; strcmp(row->field[2 + i], "-") != 0 && rest != NULL;) {
			word = strsep(&rest, " ");
			if (count == WORDS_MAX)
				malformed(row, "too many options");
			words[i][count++] = word;
		}
	}
	lab_open_flags(s, words[0], words[1],
		       strcmp(row->field[4], "read-only") == 0 ? PL_OPEN_READ_ONLY : 0);
}

/* Runs the rows of one disk. */
static void
run_disk(const char *name)
{
	FILE *table = fopen(CDB_TABLE, "re");
	unsigned rows = 0, failed = 0;
	struct row row = { .line = 0 };
	char *line = NULL;
	size_t room = 0;
	bool mine = false;
	struct lab s;

	if (table == NULL)
		test_fail(__FILE__, __LINE__, "%s: %s", CDB_TABLE, strerror(errno));
	while (getline(&line, &room, table) != -1) {
		row.line++;
		line[strcspn(line, "\n")] = '\0';
		if (line[0] == '#' || line[0] == '\0')
			continue;
		split(line, &row);
		if (strcmp(row.field[0], "disk") == 0) {
			if (mine)
				lab_close(&s);
			mine = strcmp(row.field[1], name) == 0;
			if (mine)
				make_disk(&s, &row);
		} else if (mine) {
			rows++;
			failed += !run_row(&s, &row);
		}
	}
	if (mine)
		lab_close(&s);
	fclose(table);
	free(line);
	printf("%u rows, %u failed\n", rows, failed);
	assert_true(rows > 0);
	assert_eq(failed, 0);
}

TEST(every_row_of_a_plain_disk)
{
	run_disk("plain");
}

TEST(every_row_of_large_blocks)
{
	run_disk("large-blocks");
}

TEST(every_row_of_a_read_only_disk)
{
	run_disk("read-only");
}

TEST(every_row_of_a_removable_disk)
{
	run_disk("removable");
}

TEST(every_row_without_dpofua)
{
	run_disk("without-dpofua");
}
