/* bench-table.c - a result for people at a terminal. */
#include "bench-stats.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#define FIGURES     56 /* columns of the terminal beside the name */
#define PERCENT_MAX 999
#define WIDE        100 /* times: what says nothing */
#define ALONE       24  /* of a name that has a line of its own: indent of what follows */

/* 48213 is 48.2k. */
static void
put_rate(FILE *to, double rate)
{
	static const struct {
		double from, unit;
		const char *format;
	} ways[] = {
		{ 99.95e6, 1e6, "%7.0fM" }, { 999.5e3, 1e6, "%7.1fM" }, { 99.95e3, 1e3, "%7.0fk" },
		{ 999.5, 1e3, "%7.1fk" },   { 99.95, 1, "%8.0f" },      { 0, 1, "%8.1f" },
	};
	unsigned i = 0;

	while (rate < ways[i].from)
		i++;
	fprintf(to, ways[i].format, rate / ways[i].unit);
}

/* The wider the interval, the less is known: half of it, in percent. */
static void
put_spread(FILE *to, const struct bench_spread *s)
{
	double percent = (sqrt(s->high / s->low) - 1) * 100;

	if (isnan(percent))
		fprintf(to, "%6s", "");
	else if (percent > PERCENT_MAX)
		fprintf(to, "%6s", "wide");
	else
		fprintf(to, " %4.0f%%", percent);
}

static void
put_pair(FILE *to, const struct bench_comparison *c)
{
	char interval[32] = "";

	if (c == NULL) {
		fprintf(to, "%25s", "");
		return;
	}
	if (c->pair.high / c->pair.low > WIDE)
		strcpy(interval, "wide");
	else if (!isnan(c->pair.low))
		snprintf(interval, sizeof(interval), "%.2f-%.2f", c->pair.low, c->pair.high);
	fprintf(to, " %5.2f  %-11s %-5s", c->pair.ratio, interval,
		bench_significant(&c->pair) ? "" : "n.s.");
}

static void
put_time(FILE *to, double us)
{
	if (isnan(us))
		fprintf(to, "%8s", "");
	else
		fprintf(to, us < 9.95 ? "%8.1f" : "%8.0f", us);
}

static bool
steady(const struct bench_result *r, unsigned load, unsigned target)
{
	for (unsigned i = 0; i < r->repeats; i++) {
		const struct bench_sample *s = bench_sample(r, load, target, i);

		if (s->there && !s->steady)
			return false;
	}
	return true;
}

static void
put_row(const struct bench_result *r, const struct bench_comparisons *c, unsigned load,
	unsigned target, int indent, FILE *to)
{
	const struct bench_comparison *pair = bench_comparison(c, load, target, BENCH_BASE);
	struct bench_spread s = bench_rate(r, load, target);
	char title[BENCH_TITLE];
	int used;

	if (s.n == 0)
		return;
	used = fprintf(to, "  %s", bench_target_title(&r->targets[target], title));
	if (used > indent) {
		fputc('\n', to);
		used = 0;
	}
	fprintf(to, "%*s", indent - used, "");
	put_rate(to, s.median);
	put_spread(to, &s);
	put_pair(to, pair);
	put_time(to, bench_server_cpu(r, load, target));
	put_time(to, bench_latency(r, load, target, BENCH_P99));
	fprintf(to, "%s\n", steady(r, load, target) ? "" : " ~");
	pair = bench_comparison(c, load, target, BENCH_STEP);
	if (pair != NULL) {
		fprintf(to, "%*s", indent, "    of the step before");
		fprintf(to, "%14s", "");
		put_pair(to, pair);
		fputc('\n', to);
	}
}

static void
put_load(const struct bench_result *r, const struct bench_comparisons *c, unsigned load, int indent,
	 FILE *to)
{
	char name[BENCH_NAME], title[BENCH_TITLE];
	unsigned base = bench_base(r, load, false), of_iscsi = bench_base(r, load, true);

	fprintf(to, "\n%-*s%8s %5s%7s  %-17s%8s%8s\n", indent,
		bench_load_name(&r->loads[load], name), "rate/s", "+-", "ratio", "interval",
		"CPU us", "p99 us");
	for (unsigned t = 0; t < r->target_count; t++)
		put_row(r, c, load, t, indent, to);
	if (base < r->target_count)
		fprintf(to, "  (ratio: to %s", bench_target_title(&r->targets[base], title));
	if (base != of_iscsi)
		fprintf(to, "; of iSCSI to %s", bench_target_title(&r->targets[of_iscsi], title));
	if (base < r->target_count)
		fprintf(to, ")\n");
}

static void
put_depths(const struct bench_result *r, FILE *to)
{
	bool said = false;

	for (unsigned l = 0; l < r->load_count; l++) {
		for (unsigned t = 0; t < r->target_count; t++) {
			char name[BENCH_NAME], title[BENCH_TITLE];

			if (bench_depth_enough(r, l, t) != r->loads[l].depth)
				continue;
			if (!said)
				fprintf(to,
					"\nMore depth than this brings less than a tenth more:\n");
			said = true;
			fprintf(to, "  %s  %s\n", bench_load_name(&r->loads[l], name),
				bench_target_title(&r->targets[t], title));
		}
	}
}

static void
put_notes(const struct bench_result *r, const struct bench_comparisons *c, FILE *to)
{
	bool said = false;

	fprintf(to,
		"\nrate: median of %u; +-, interval: 95 %%. n.s.: not significant, by a paired "
		"t-test at 5 %%,\ncorrected for %u comparisons. CPU: of the server, a request. ~: "
		"the halves of a measurement\ndiffered by much.%s\n",
		r->repeats, c->family,
		r->repeats < 5 ? " Few repeats tell little: --repeats 7 tells more." : "");
	for (unsigned t = 0; t < r->target_count; t++) {
		char title[BENCH_TITLE];

		if (r->targets[t].absent == NULL)
			continue;
		if (!said)
			fprintf(to, "\nNot measured:\n");
		said = true;
		fprintf(to, "  %s: %s\n", bench_target_title(&r->targets[t], title),
			r->targets[t].absent);
	}
	for (unsigned i = 0; i < r->failure_count; i++) {
		const struct bench_failure *f = &r->failures[i];
		char name[BENCH_NAME], title[BENCH_TITLE];

		fprintf(to, "%s  %s by %s: %s\n", i == 0 ? "\nFailed, and not tried again:\n" : "",
			bench_load_name(&r->loads[f->load], name),
			bench_target_title(&r->targets[f->target], title), f->why);
	}
	if (r->interrupted)
		fprintf(to, "\nInterrupted: some was not measured, or less often.\n");
}

void
bench_table(const struct bench_result *r, FILE *to, unsigned width)
{
	struct bench_comparisons *c = bench_compare(r);
	size_t longest = 0;

	if (c == NULL) {
		fprintf(to, "There is no memory to compare what was measured.\n");
		return;
	}
	for (unsigned i = 0; i < r->fact_count; i++)
		fprintf(to, "%-12s %s\n", r->facts[i].name, r->facts[i].value);
	for (unsigned t = 0; t < r->target_count; t++) {
		char title[BENCH_TITLE];
		size_t length = strlen(bench_target_title(&r->targets[t], title)) + 4;

		longest = length > longest ? length : longest;
	}
	if (width != 0 && longest + FIGURES > width)
		longest = width > ALONE + FIGURES ? width - FIGURES : ALONE;
	for (unsigned l = 0; l < r->load_count; l++)
		put_load(r, c, l, (int)longest, to);
	put_depths(r, to);
	put_notes(r, c, to);
	free(c);
}
