/* bench-html.c - a result as a page that needs nothing else: no script, no file, no network. */
#include "bench-stats.h"
#include "bench-svg.h"

#include <errno.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char head[] =
	"<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\">\n"
	"<meta name=\"viewport\" content=\"width=device-width\">\n<title>platter bench</title>\n"
	"<style>\n"
	"body { font: 15px/1.45 sans-serif; margin: 2em auto; max-width: 1200px; padding: 0 1em; "
	"color: #222 }\n"
	"table { border-collapse: collapse; margin: .5em 0 1.5em }\n"
	"td, th { padding: .15em .7em; text-align: right; border-bottom: 1px solid #ddd }\n"
	"td:first-child, th:first-child, .w td, .w th { text-align: left }\n"
	"code { font-size: 13px; overflow-wrap: anywhere }\n"
	".s { display: inline-block; width: .8em; height: .8em; margin-right: .4em }\n"
	".n { color: #888 }\n"
	"svg { max-width: 100%; height: auto; font: 12px sans-serif }\n"
	".t { font-weight: bold } .e { text-anchor: end } .m { text-anchor: middle }\n"
	".g { stroke: #e4e4e4 } .one { stroke: #444 }\n"
	".l { fill: none; stroke-width: 2 } .d { stroke-dasharray: 5 4 }\n"
	"</style></head><body>\n<h1>platter bench</h1>\n";

static void
put_title(FILE *to, const struct bench_result *r, unsigned target)
{
	char title[BENCH_TITLE];

	fprintf(to, "<span class=\"s\" style=\"background:%s\"></span>", bench_colour(target));
	bench_put_text(to, bench_target_title(&r->targets[target], title));
}

/* ---- what was measured ----------------------------------------------------------- */

static void
put_about(const struct bench_result *r, FILE *to)
{
	fprintf(to, "<p><code>");
	bench_put_text(to, r->command);
	fprintf(to,
		"</code></p>\n<p>%u repeats of %g s each, in an order of chance (seed "
		"%llu)%s.</p>\n<table class=\"w\">\n",
		r->repeats, r->seconds, (unsigned long long)r->seed,
		r->interrupted ? "; interrupted, so that some are missing" : "");
	for (unsigned i = 0; i < r->fact_count; i++) {
		fprintf(to, "<tr><th>");
		bench_put_text(to, r->facts[i].name);
		fprintf(to, "</th><td>");
		bench_put_text(to, r->facts[i].value);
		fprintf(to, "</td></tr>\n");
	}
	fprintf(to, "</table>\n<h2>Servers</h2>\n<table class=\"w\">\n");
	for (unsigned t = 0; t < r->target_count; t++) {
		const struct bench_target *target = &r->targets[t];

		fprintf(to, "<tr><td>");
		put_title(to, r, t);
		fprintf(to, target->absent != NULL ? "</td><td class=\"n\">not measured: "
						   : "</td><td><code>");
		if (target->absent != NULL)
			bench_put_text(to, target->absent);
		else if (target->command != NULL)
			bench_put_text(to, target->command);
		fprintf(to, target->absent != NULL ? "</td></tr>\n" : "</code></td></tr>\n");
	}
	fprintf(to, "</table>\n");
}

/* ---- figures --------------------------------------------------------------------- */

static void
put_pair(const struct bench_comparison *c, FILE *to)
{
	const char *class = c != NULL && !bench_significant(&c->pair) ? " class=\"n\"" : "";

	if (c == NULL) {
		fprintf(to, "<td></td><td></td><td></td>");
		return;
	}
	fprintf(to, "<td%s>%.2f</td>", class, c->pair.ratio);
	if (isnan(c->pair.low)) {
		fprintf(to, "<td></td><td></td>");
		return;
	}
	fprintf(to, "<td%s>%.2f&ndash;%.2f</td><td%s>%s%.2g (ranks: %.2g)</td>", class, c->pair.low,
		c->pair.high, class, bench_significant(&c->pair) ? "" : "not significant, ",
		c->pair.p_holm, c->pair.p_rank);
}

static const unsigned shown[] = { BENCH_P50, BENCH_P99, BENCH_P999 };
#define SHOWN (sizeof(shown) / sizeof(shown[0]))

static void
put_figure(FILE *to, double value)
{
	fprintf(to, isnan(value) ? "<td></td>" : "<td>%.1f</td>", value);
}

static void
put_row(const struct bench_result *r, const struct bench_comparisons *c, unsigned load,
	unsigned target, FILE *to)
{
	const struct bench_comparison *pair = bench_comparison(c, load, target, BENCH_BASE);
	struct bench_spread s = bench_rate(r, load, target);

	const char *why = bench_failure(r, load, target);

	if (why != NULL) {
		fprintf(to, "<tr><td>");
		put_title(to, r, target);
		fprintf(to, "</td><td class=\"n\" colspan=\"12\">failed, and not tried again: ");
		bench_put_text(to, why);
		fprintf(to, "</td></tr>\n");
	}
	if (s.n == 0)
		return;
	fprintf(to, "<tr><td>");
	put_title(to, r, target);
	fprintf(to, "</td><td>%.0f</td>", s.median);
	if (isnan(s.low))
		fprintf(to, "<td></td>");
	else
		fprintf(to, "<td>%.0f&ndash;%.0f</td>", s.low, s.high);
	put_figure(to, bench_server_cpu(r, load, target));
	for (unsigned i = 0; i < SHOWN; i++)
		put_figure(to, bench_latency(r, load, target, shown[i]));
	put_pair(pair, to);
	put_pair(bench_comparison(c, load, target, BENCH_STEP), to);
	fprintf(to, "</tr>\n");
}

static void
put_load(const struct bench_result *r, const struct bench_comparisons *c, unsigned load, FILE *to)
{
	char name[BENCH_NAME];

	fprintf(to, "<table><tr><th>%s</th><th>rate/s</th><th>95 %%</th>",
		bench_load_name(&r->loads[load], name));
	fprintf(to, "<th>CPU us</th>");
	for (unsigned i = 0; i < SHOWN; i++)
		fprintf(to, "<th>%s us</th>", bench_quantile_names[shown[i]]);
	fprintf(to, "<th>ratio</th><th>95 %%</th><th>p</th><th>of the step before</th>"
		    "<th>95 %%</th><th>p</th></tr>\n");
	for (unsigned t = 0; t < r->target_count; t++)
		put_row(r, c, load, t, to);
	fprintf(to, "</table>\n");
}

/* Loads that differ in depth alone belong together. */
static void
put_group(const struct bench_result *r, const struct bench_comparisons *c, unsigned load, FILE *to)
{
	char name[BENCH_NAME];

	for (unsigned l = 0; l < load; l++) {
		if (bench_alike(&r->loads[l], &r->loads[load]))
			return;
	}
	bench_load_name(&r->loads[load], name);
	*strrchr(name, 'x') = '\0';
	fprintf(to, "<h2>%s</h2>\n<p>", name);
	for (unsigned t = 0; t < r->target_count; t++) {
		if (r->targets[t].absent != NULL)
			continue;
		put_title(to, r, t);
		fprintf(to, " &nbsp; ");
	}
	fprintf(to, "</p>\n");
	bench_svg_rates(r, load, to);
	bench_svg_latencies(r, load, to);
	bench_svg_ratios(r, c, load, to);
	for (unsigned l = load; l < r->load_count; l++) {
		if (bench_alike(&r->loads[l], &r->loads[load]))
			put_load(r, c, l, to);
	}
}

int
bench_html_write(const struct bench_result *r, const char *path, struct pl_error *err)
{
	struct bench_comparisons *c = bench_compare(r);
	FILE *to = c != NULL ? fopen(path, "we") : NULL;
	bool failed;

	if (to == NULL) {
		free(c);
		return pl_error_set(err, c == NULL ? -ENOMEM : -errno, "%s", path);
	}
	errno = 0;
	fputs(head, to);
	put_about(r, to);
	fprintf(to,
		"<p>Rates are medians, their intervals those of the mean (Student's t, of "
		"logarithms). "
		"<i>ratio</i>: to the best peer of that load, of the same protocol where there is "
		"one; where there is none, to the first column; <i>p</i>: of a paired t-test, "
		"corrected for %u comparisons (Holm), "
		"and "
		"of Wilcoxon's signed rank test, not corrected.</p>\n",
		c->family);
	for (unsigned l = 0; l < r->load_count; l++)
		put_group(r, c, l, to);
	fprintf(to, "</body></html>\n");
	free(c);
	failed = ferror(to) != 0;
	if (fclose(to) == EOF || failed)
		return pl_error_set(err, errno != 0 ? -errno : -EIO, "%s: write", path);
	return 0;
}
