/* option.c - key=value pairs and the tables that give them meaning. */
#include "option.h"

#include <ctype.h>
#include <errno.h>
#include <inttypes.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define PARAMS_MAX 64 /* pl_options_parse() keeps a bit for each */

struct pl_params {
	unsigned count;
	struct {
		char *key, *value;
	} pair[PARAMS_MAX];
};

struct pl_params *
pl_params_new(void)
{
	return calloc(1, sizeof(struct pl_params));
}

void
pl_params_free(struct pl_params *p)
{
	if (p == NULL)
		return;
	for (unsigned i = 0; i < p->count; i++) {
		free(p->pair[i].key);
		free(p->pair[i].value);
	}
	free(p);
}

struct pl_params *
pl_params_copy(const struct pl_params *p)
{
	struct pl_params *copy = pl_params_new();

	for (unsigned i = 0; copy != NULL && i < p->count; i++) {
		if (pl_params_add(copy, p->pair[i].key, p->pair[i].value, NULL) != 0) {
			pl_params_free(copy);
			return NULL;
		}
	}
	return copy;
}

int
pl_params_add(struct pl_params *p, const char *key, const char *value, struct pl_error *err)
{
	char *k, *v;

	if (*key == '\0')
		return pl_error_say(err, -EINVAL, "an option without a name: '=%s'", value);
	if (pl_params_find(p, key) >= 0)
		return pl_error_say(err, -EINVAL, "option %s is given twice: '%s' and '%s'", key,
				    pl_params_get(p, key), value);
	if (p->count == PARAMS_MAX)
		return pl_error_say(err, -EINVAL, "option %s: more than %d options", key,
				    PARAMS_MAX);
	k = strdup(key);
	v = strdup(value);
	if (k == NULL || v == NULL) {
		free(k);
		free(v);
		return pl_error_set(err, -ENOMEM, "option %s", key);
	}
	p->pair[p->count].key = k;
	p->pair[p->count++].value = v;
	return 0;
}

unsigned
pl_params_count(const struct pl_params *p)
{
	return p->count;
}

const char *
pl_params_key(const struct pl_params *p, unsigned i)
{
	return p->pair[i].key;
}

const char *
pl_params_value(const struct pl_params *p, unsigned i)
{
	return p->pair[i].value;
}

int
pl_params_find(const struct pl_params *p, const char *key)
{
	for (unsigned i = 0; i < p->count; i++) {
		if (strcmp(p->pair[i].key, key) == 0)
			return (int)i;
	}
	return -1;
}

const char *
pl_params_get(const struct pl_params *p, const char *key)
{
	int i = pl_params_find(p, key);

	return i < 0 ? NULL : p->pair[i].value;
}

/* ---- values ---------------------------------------------------------------------- */

struct unit {
	const char *name;
	uint64_t factor;
};

static const struct unit no_units[] = { { "", 1 }, { NULL, 0 } };

static const struct unit size_units[] = {
	{ "", 1 },
	{ "k", UINT64_C(1) << 10 },
	{ "K", UINT64_C(1) << 10 },
	{ "M", UINT64_C(1) << 20 },
	{ "G", UINT64_C(1) << 30 },
	{ "T", UINT64_C(1) << 40 },
	{ "P", UINT64_C(1) << 50 },
	{ NULL, 0 },
};

static const struct unit time_units[] = {
	{ "ns", 1 }, { "us", 1000 }, { "ms", 1000000 }, { "s", 1000000000 }, { NULL, 0 },
};

/* A decimal number and a unit; at most INT64_MAX, as every size and offset is. */
static int
parse_number(const char *text, const struct unit *units, uint64_t *out)
{
	uint64_t n = 0;
	const char *p = text;

	if (!isdigit((unsigned char)*p))
		return -EINVAL;
	for (; isdigit((unsigned char)*p); p++) {
		unsigned digit = (unsigned)(*p - '0');

		if (n > ((uint64_t)INT64_MAX - digit) / 10)
			return -ERANGE;
		n = n * 10 + digit;
	}
	for (const struct unit *u = units; u->name != NULL; u++) {
		if (strcmp(p, u->name) != 0)
			continue;
		if (n > INT64_MAX / u->factor)
			return -ERANGE;
		*out = n * u->factor;
		return 0;
	}
	return -EINVAL;
}

static int
parse_word(const char *text, const char *words, int *out)
{
	size_t len = strlen(text);

	for (int i = 0; *words != '\0'; i++) {
		size_t n = strcspn(words, "|");

		if (n == len && memcmp(words, text, n) == 0) {
			*out = i;
			return 0;
		}
		words += n;
		words += *words == '|';
	}
	return -EINVAL;
}

static int
parse_bool(const char *text, bool *out)
{
	static const char words[] = "off|on|no|yes|false|true|0|1";
	int i;

	if (parse_word(text, words, &i) != 0)
		return -EINVAL;
	*out = i & 1;
	return 0;
}

static int
parse_value(const struct pl_option *o, const char *text, void *into)
{
	void *at = (char *)into + o->at;

	switch (o->type) {
	case PL_OPT_STRING: *(const char **)at = text; return *text == '\0' ? -EINVAL : 0;
	case PL_OPT_BOOL: return parse_bool(text, at);
	case PL_OPT_ENUM: return parse_word(text, o->words, at);
	case PL_OPT_UINT: return parse_number(text, no_units, at);
	case PL_OPT_SIZE: return parse_number(text, size_units, at);
	case PL_OPT_TIME: return parse_number(text, time_units, at);
	}
	return -EINVAL;
}

/* What stands right of the '=' in --help and in an error. */
static const char *
option_words(const struct pl_option *o)
{
	static const char *const by_type[] = {
		[PL_OPT_STRING] = "TEXT", [PL_OPT_BOOL] = "on|off", [PL_OPT_UINT] = "NUMBER",
		[PL_OPT_SIZE] = "SIZE",   [PL_OPT_TIME] = "TIME",
	};

	return o->words != NULL ? o->words : by_type[o->type];
}

static const char *
option_example(const struct pl_option *o)
{
	switch (o->type) {
	case PL_OPT_SIZE: return " (such as 4096, 64k, 1M, 2G)";
	case PL_OPT_TIME: return " (such as 500us, 20ms, 1s)";
	default: return "";
	}
}

/* A pair that a driver above took is not seen below it. */
static int
find_unused(const struct pl_params *params, uint64_t used, const char *key)
{
	int i = pl_params_find(params, key);

	return i >= 0 && (used & UINT64_C(1) << i) != 0 ? -1 : i;
}

int
pl_options_parse(const struct pl_option *table, const struct pl_params *params, uint64_t *used,
		 void *into, struct pl_error *err)
{
	for (const struct pl_option *o = table; o->name != NULL; o++) {
		int i = find_unused(params, *used, o->name);
		const char *text = i >= 0 ? params->pair[i].value : o->initial;
		int error;

		if (text == NULL) {
			if (o->required)
				return pl_error_say(err, -EINVAL, "option %s is missing: %s=%s%s",
						    o->name, o->name, option_words(o),
						    option_example(o));
			continue;
		}
		error = parse_value(o, text, into);
		if (error == -ERANGE)
			return pl_error_say(err, -EINVAL, "%s=%s: the number is too large", o->name,
					    text);
		if (error != 0)
			return pl_error_say(err, -EINVAL, "%s=%s: expected %s=%s%s", o->name, text,
					    o->name, option_words(o), option_example(o));
		if (i >= 0)
			*used |= UINT64_C(1) << i;
	}
	return 0;
}

/* ---- help ------------------------------------------------------------------------ */

/* Calls row for each driver with o NULL, then for each of its options. */
static char *
options_text(void (*row)(FILE *f, const char *prefix, const struct pl_driver *d,
			 const struct pl_option *o),
	     const char *prefix)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (f == NULL)
		return NULL;
	for (const struct pl_driver *const *d = pl_drivers; *d != NULL; d++) {
		row(f, prefix, *d, NULL);
		for (const struct pl_option *o = (*d)->options; o->name != NULL; o++)
			row(f, prefix, *d, o);
	}
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* What a row does, in the column where the line begins to be about that. */
static void
help_option(FILE *f, const struct pl_option *o)
{
	fprintf(f, "%s", o->help);
	if (o->required)
		fprintf(f, " (required)");
	else if (o->initial != NULL)
		fprintf(f, " (default: %s)", o->initial);
	fputc('\n', f);
}

static void
help_row(FILE *f, const char *prefix, const struct pl_driver *d, const struct pl_option *o)
{
	(void)prefix;
	if (o == NULL) {
		fprintf(f, "driver=%s%s  %s\n", d->name, d->over ? " over=DRIVER" : "", d->help);
		return;
	}
	fprintf(f, "    %s=%s\n        ", o->name, option_words(o));
	help_option(f, o);
}

static void
dump_row(FILE *f, const char *prefix, const struct pl_driver *d, const struct pl_option *o)
{
	if (o != NULL)
		fprintf(f, "%s%s_%s=%s\n", prefix, d->name, o->name, option_words(o));
}

char *
pl_options_help(void)
{
	return options_text(help_row, NULL);
}

char *
pl_options_dump(const char *prefix)
{
	return options_text(dump_row, prefix);
}

#define HELP_COLUMN 33

char *
pl_option_rows(const struct pl_option *table, const char *before, const char *between)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (f == NULL)
		return NULL;
	for (const struct pl_option *o = table; o->name != NULL; o++) {
		int n = fprintf(f, "%s%s%s%s", before, o->name, between, option_words(o));

		if (n >= HELP_COLUMN) {
			fputc('\n', f);
			n = 0;
		}
		fprintf(f, "%*s", HELP_COLUMN - n, "");
		help_option(f, o);
	}
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- names ----------------------------------------------------------------------- */

const struct pl_option *
pl_option_find(const struct pl_option *table, const char *name)
{
	for (const struct pl_option *o = table; o->name != NULL; o++) {
		if (strcmp(o->name, name) == 0)
			return o;
	}
	return NULL;
}

static unsigned
least(unsigned a, unsigned b)
{
	return a < b ? a : b;
}

#define NAME_MAX_LENGTH 40

/* Letters to put in, take out or change: Levenshtein's distance, row by row. */
static unsigned
name_distance(const char *a, const char *b)
{
	size_t length = strlen(b);
	unsigned row[NAME_MAX_LENGTH + 1];

	if (strlen(a) > NAME_MAX_LENGTH || length > NAME_MAX_LENGTH)
		return UINT_MAX;
	for (unsigned j = 0; j <= length; j++)
		row[j] = j;
	for (unsigned i = 1; a[i - 1] != '\0'; i++) {
		unsigned diagonal = row[0];

		row[0] = i;
		for (unsigned j = 1; j <= length; j++) {
			unsigned change = diagonal + (a[i - 1] != b[j - 1]);

			diagonal = row[j];
			row[j] = least(change, least(row[j], row[j - 1]) + 1);
		}
	}
	return row[length];
}

const struct pl_option *
pl_option_nearest(const struct pl_option *table, const char *name, unsigned *distance)
{
	const struct pl_option *nearest = NULL;

	for (const struct pl_option *o = table; o->name != NULL; o++) {
		bool begun = *name != '\0' && strncmp(o->name, name, strlen(name)) == 0;
		unsigned d = begun ? 1 : name_distance(name, o->name);

		if (d < *distance) {
			*distance = d;
			nearest = o;
		}
	}
	return nearest;
}
