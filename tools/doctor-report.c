/* doctor-report.c - keeps facts and findings, and prints them for people or for programs. */
#include "doctor.h"

#include <assert.h>
#include <jansson.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define MOST 256 /* of each; findings are fewer */

struct doctor_report {
	struct fact {
		const char *group, *name;
		char *value;
	} facts[MOST];
	unsigned fact_count;
	struct doctor_finding findings[MOST];
	unsigned finding_count;
};

static const char *const severity_names[] = {
	[DOCTOR_HEALTHY] = "healthy",
	[DOCTOR_ADVICE] = "advice",
	[DOCTOR_UNSAFE] = "unsafe",
};

struct doctor_report *
doctor_report_new(void)
{
	return calloc(1, sizeof(struct doctor_report));
}

void
doctor_report_free(struct doctor_report *r)
{
	for (unsigned i = 0; i < r->fact_count; i++)
		free(r->facts[i].value);
	free(r);
}

void
doctor_fact(struct doctor_report *r, const char *group, const char *name, const char *fmt, ...)
{
	struct fact *fact = &r->facts[r->fact_count];
	va_list args;

	if (r->fact_count == MOST)
		return; /* a disk made of hundreds */
	va_start(args, fmt);
	if (vasprintf(&fact->value, fmt, args) == -1)
		abort();
	va_end(args);
	pl_text_clean(fact->value); /* a server's words go to a terminal and into JSON */
	fact->group = group;
	fact->name = name;
	r->fact_count++;
}

/* As they are told. */
static bool
comes_before(const struct doctor_finding *a, const struct doctor_finding *b)
{
	return a->severity != b->severity ? a->severity > b->severity : a->worth > b->worth;
}

void
doctor_find(struct doctor_report *r, const struct doctor_finding *finding)
{
	unsigned at = r->finding_count++;

	assert(at < MOST);
	for (; at > 0 && comes_before(finding, &r->findings[at - 1]); at--)
		r->findings[at] = r->findings[at - 1];
	r->findings[at] = *finding;
}

void
doctor_conclude(struct doctor_report *r, const struct doctor_row *rows, unsigned count,
		unsigned traits)
{
	for (unsigned i = 0; i < count; i++) {
		if ((rows[i].with & ~traits) == 0 && (rows[i].without & traits) == 0)
			doctor_find(r, &rows[i].finding);
	}
}

enum doctor_severity
doctor_worst(const struct doctor_report *r)
{
	return r->finding_count > 0 ? r->findings[0].severity : DOCTOR_HEALTHY;
}

static void
print_json(const struct doctor_report *r, const char *target)
{
	json_t *facts = json_array(), *findings = json_array(), *all;

	for (unsigned i = 0; i < r->fact_count; i++)
		json_array_append_new(facts,
				      json_pack("{s:s s:s s:s}", "group", r->facts[i].group, "name",
						r->facts[i].name, "value", r->facts[i].value));
	for (unsigned i = 0; i < r->finding_count; i++) {
		const struct doctor_finding *f = &r->findings[i];

		json_array_append_new(findings, json_pack("{s:s s:i s:s s:s s:s?}", "severity",
							  severity_names[f->severity], "worth",
							  (int)f->worth, "what", f->what, "why",
							  f->why, "remedy", f->remedy));
	}
	/* A path need not be text. */
	all = json_pack("{s:o? s:s s:o s:o}", "target", json_string(target), "verdict",
			severity_names[doctor_worst(r)], "facts", facts, "findings", findings);
	json_dumpf(all, stdout, JSON_INDENT(2));
	printf("\n");
	json_decref(all);
}

/* In lines of at most 80 columns. */
static void
print_wrapped(const char *text)
{
	size_t column = 0;

	while (*text != '\0') {
		size_t length = strcspn(text, " ");

		if (column > 0 && column + 1 + length > 80) {
			printf("\n");
			column = 0;
		}
		column += (size_t)printf("%s%.*s", column > 0 ? " " : "    ", (int)length, text);
		text += length + strspn(text + length, " ");
	}
	printf("\n");
}

/* A path may have anything in it. */
static void
print_clean(const char *text)
{
	char *copy = strdup(text);

	if (copy != NULL)
		pl_text_clean(copy);
	printf("%s", copy != NULL ? copy : "?");
	free(copy);
}

void
doctor_print_failure(const char *target, const char *error)
{
	json_t *all = json_pack("{s:o? s:s}", "target", json_string(target), "error", error);

	json_dumpf(all, stdout, JSON_INDENT(2));
	printf("\n");
	json_decref(all);
}

void
doctor_print(struct doctor_report *r, const char *target, bool json)
{
	const char *group = "";

	if (json) {
		print_json(r, target);
		return;
	}
	print_clean(target);
	printf(": %s\n", severity_names[doctor_worst(r)]);
	for (unsigned i = 0; i < r->fact_count; i++) {
		if (strcmp(group, r->facts[i].group) != 0)
			printf("\n%s\n", r->facts[i].group);
		group = r->facts[i].group;
		printf("  %-22s  %s\n", r->facts[i].name, r->facts[i].value);
	}
	for (unsigned i = 0; i < r->finding_count; i++) {
		const struct doctor_finding *f = &r->findings[i];

		printf("\n%s: %s\n", severity_names[f->severity], f->what);
		print_wrapped(f->why);
		if (f->remedy != NULL)
			print_wrapped(f->remedy);
	}
}
