/* bench-svg.c - plots. */
#include "bench-svg.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { WIDTH = 560, HEIGHT = 300, LEFT = 64, RIGHT = 16, TOP = 28, BOTTOM = 44 };
#define ROW 18 /* of ratios */

static const char *const colours[] = {
	"#1f77b4", "#d62728", "#2ca02c", "#9467bd", "#ff7f0e", "#17becf", "#8c564b", "#e377c2",
	"#7f7f7f", "#bcbd22", "#003f5c", "#ffa600", "#aec7e8", "#7f0000", "#98df8a", "#4b0082",
	"#ffbb78", "#006d77", "#c49c94", "#a0005a", "#000000", "#6b6b00", "#5dade2", "#ff9896",
	"#0b5d1e", "#c5b0d5", "#b35900", "#00d5a0", "#5c3a21", "#f7b6d2",
};
#define COLOURS (sizeof(colours) / sizeof(colours[0]))

const char *
bench_colour(unsigned target)
{
	return colours[target % COLOURS];
}

void
bench_put_text(FILE *to, const char *text)
{
	for (; *text != '\0'; text++) {
		switch (*text) {
		case '&': fputs("&amp;", to); break;
		case '<': fputs("&lt;", to); break;
		case '>': fputs("&gt;", to); break;
		case '"': fputs("&quot;", to); break;
		default: fputc(*text, to);
		}
	}
}

bool
bench_alike(const struct bench_load *a, const struct bench_load *b)
{
	return a->op == b->op && a->sync == b->sync && a->block == b->block && a->jobs == b->jobs;
}

/* ---- axes ------------------------------------------------------------------------ */

struct axis {
	double low, high; /* what is at the ends */
	bool logarithmic;
	int from, to; /* there */
};

static double
place(const struct axis *a, double value)
{
	double low = a->low, high = a->high;

	if (a->logarithmic) {
		value = log(value);
		low = log(low);
		high = log(high);
	}
	return a->from + (a->to - a->from) * (value - low) / (high - low);
}

static void
begin(FILE *to, int height, const char *title)
{
	fprintf(to,
		"<svg viewBox=\"0 0 %d %d\" width=\"%d\" height=\"%d\" role=\"img\">\n"
		"<text class=\"t\" x=\"%d\" y=\"16\">%s</text>\n",
		WIDTH, height, WIDTH, height, LEFT, title);
}

static void
number(char *text, size_t size, double value)
{
	if (value >= 1e6)
		snprintf(text, size, "%gM", value / 1e6);
	else if (value >= 1000)
		snprintf(text, size, "%gk", value / 1000);
	else
		snprintf(text, size, "%g", value);
}

static void
grid_y(FILE *to, const struct axis *y, double value)
{
	char text[16];
	double at = place(y, value);

	number(text, sizeof(text), value);
	fprintf(to,
		"<path class=\"g\" d=\"M%d %.1fH%d\"/><text class=\"e\" x=\"%d\" "
		"y=\"%.1f\">%s</text>\n",
		LEFT, at, WIDTH - RIGHT, LEFT - 6, at + 4, text);
}

/* 1, 2 or 5 times a power of ten, at most five of them up to high. */
static double
step_of(double high)
{
	double unit = pow(10, floor(log10(high / 5)));
	double n = high / 5 / unit;

	return unit * (n <= 1 ? 1 : n <= 2 ? 2 : n <= 5 ? 5 : 10);
}

static void
grid_x(FILE *to, const struct bench_result *r, unsigned load, const struct axis *x, int height)
{
	for (unsigned l = 0; l < r->load_count; l++) {
		if (bench_alike(&r->loads[l], &r->loads[load]))
			fprintf(to, "<text class=\"m\" x=\"%.1f\" y=\"%d\">%u</text>\n",
				place(x, r->loads[l].depth), height - BOTTOM + 16,
				r->loads[l].depth);
	}
	fprintf(to, "<text class=\"m\" x=\"%d\" y=\"%d\">requests in flight%s</text>\n",
		(LEFT + WIDTH - RIGHT) / 2, height - 8,
		r->loads[load].jobs > 1 ? " on each connection" : "");
}

/* By depth. */
static struct axis
depths(const struct bench_result *r, unsigned load)
{
	struct axis x = { .low = r->loads[load].depth,
			  .high = r->loads[load].depth,
			  .logarithmic = true,
			  .from = LEFT + 16,
			  .to = WIDTH - RIGHT - 16 };

	for (unsigned l = 0; l < r->load_count; l++) {
		if (!bench_alike(&r->loads[l], &r->loads[load]))
			continue;
		x.low = fmin(x.low, r->loads[l].depth);
		x.high = fmax(x.high, r->loads[l].depth);
	}
	if (x.low == x.high) { /* in the middle */
		x.low /= 2;
		x.high *= 2;
	}
	return x;
}

/* ---- lines by depth -------------------------------------------------------------- */

typedef double figure(const struct bench_result *r, unsigned load, unsigned target);

/* Depths need not be in order, and some may lack. */
static void
line(FILE *to, const struct bench_result *r, unsigned load, unsigned target, figure *of,
     const struct axis *x, const struct axis *y, const char *class)
{
	unsigned depth = 0;
	char pen = 'M';

	fprintf(to, "<path class=\"%s\" stroke=\"%s\" d=\"", class, bench_colour(target));
	for (unsigned next; (next = r->load_count) != 0; depth = r->loads[next].depth) {
		for (unsigned l = 0; l < r->load_count; l++) {
			if (bench_alike(&r->loads[l], &r->loads[load]) &&
			    r->loads[l].depth > depth && !isnan(of(r, l, target)) &&
			    (next == r->load_count || r->loads[l].depth < r->loads[next].depth))
				next = l;
		}
		if (next == r->load_count)
			break;
		fprintf(to, "%c%.1f %.1f", pen, place(x, r->loads[next].depth),
			place(y, of(r, next, target)));
		pen = 'L';
	}
	fprintf(to, "\"/>\n");
}

static void
dots(FILE *to, const struct bench_result *r, unsigned load, unsigned target, figure *of,
     const struct axis *x, const struct axis *y)
{
	char title[BENCH_TITLE];

	for (unsigned l = 0; l < r->load_count; l++) {
		double value = of(r, l, target);

		if (!bench_alike(&r->loads[l], &r->loads[load]) || isnan(value))
			continue;
		fprintf(to, "<circle cx=\"%.1f\" cy=\"%.1f\" r=\"3\" fill=\"%s\"><title>",
			place(x, r->loads[l].depth), place(y, value), bench_colour(target));
		bench_put_text(to, bench_target_title(&r->targets[target], title));
		fprintf(to, ": %.4g at %u</title></circle>\n", value, r->loads[l].depth);
	}
}

static double
rate_of(const struct bench_result *r, unsigned load, unsigned target)
{
	return bench_rate(r, load, target).median;
}

static double
p50_of(const struct bench_result *r, unsigned load, unsigned target)
{
	return bench_latency(r, load, target, BENCH_P50);
}

static double
p99_of(const struct bench_result *r, unsigned load, unsigned target)
{
	return bench_latency(r, load, target, BENCH_P99);
}

static bool
is_plotted(const struct bench_result *r, unsigned target)
{
	return r->targets[target].kind != BENCH_CEILING;
}

/* The least and the most of a figure of loads like that one; false: there is none. */
static bool
extremes(const struct bench_result *r, unsigned load, figure *of, double *low, double *high)
{
	*low = *high = NAN;
	for (unsigned l = 0; l < r->load_count; l++) {
		if (!bench_alike(&r->loads[l], &r->loads[load]))
			continue;
		for (unsigned t = 0; t < r->target_count; t++) {
			if (!is_plotted(r, t))
				continue;
			*low = fmin(*low, of(r, l, t));
			*high = fmax(*high, of(r, l, t));
		}
	}
	return *low > 0;
}

void
bench_svg_rates(const struct bench_result *r, unsigned load, FILE *to)
{
	struct axis x = depths(r, load), y = { .from = HEIGHT - BOTTOM, .to = TOP };
	double low, step;

	if (!extremes(r, load, rate_of, &low, &y.high))
		return;
	step = step_of(y.high);
	y.high = ceil(y.high / step) * step;
	begin(to, HEIGHT, "requests a second");
	for (double at = 0; at <= y.high * 1.001; at += step)
		grid_y(to, &y, at);
	grid_x(to, r, load, &x, HEIGHT);
	for (unsigned t = 0; t < r->target_count; t++) {
		if (!is_plotted(r, t))
			continue;
		line(to, r, load, t, rate_of, &x, &y, "l");
		dots(to, r, load, t, rate_of, &x, &y);
	}
	fprintf(to, "</svg>\n");
}

void
bench_svg_latencies(const struct bench_result *r, unsigned load, FILE *to)
{
	struct axis x = depths(r, load),
		    y = { .logarithmic = true, .from = HEIGHT - BOTTOM, .to = TOP };
	double ignored;

	if (!extremes(r, load, p50_of, &y.low, &ignored) ||
	    !extremes(r, load, p99_of, &ignored, &y.high))
		return;
	y.low = pow(10, floor(log10(y.low)));
	y.high = pow(10, ceil(log10(y.high * 1.001)));
	begin(to, HEIGHT, "latency, us: median, and 99 % (dashed)");
	for (double at = y.low; at <= y.high * 1.001; at *= 10)
		grid_y(to, &y, at);
	grid_x(to, r, load, &x, HEIGHT);
	for (unsigned t = 0; t < r->target_count; t++) {
		if (!is_plotted(r, t))
			continue;
		line(to, r, load, t, p50_of, &x, &y, "l");
		dots(to, r, load, t, p50_of, &x, &y);
		line(to, r, load, t, p99_of, &x, &y, "l d");
		dots(to, r, load, t, p99_of, &x, &y);
	}
	fprintf(to, "</svg>\n");
}

/* ---- ratios ---------------------------------------------------------------------- */

static bool
is_shown(const struct bench_result *r, const struct bench_comparison *c, unsigned load)
{
	return c->why == BENCH_BASE && r->targets[c->target].kind == BENCH_OURS &&
	       bench_alike(&r->loads[c->load], &r->loads[load]);
}

static void
put_ratio(FILE *to, const struct bench_result *r, const struct bench_comparison *c,
	  const struct axis *x, int y)
{
	char title[BENCH_TITLE], base[BENCH_TITLE];
	double low = isnan(c->pair.low) ? c->pair.ratio : fmax(c->pair.low, x->low);
	double high = isnan(c->pair.high) ? c->pair.ratio : fmin(c->pair.high, x->high);

	bench_target_title(&r->targets[c->target], title);
	bench_target_title(&r->targets[c->base], base);
	fprintf(to, "<text class=\"e\" x=\"%d\" y=\"%d\">", WIDTH / 2 - 6, y + 4);
	bench_put_text(to, title);
	fprintf(to,
		", %u</text><path class=\"l\" stroke=\"%s\" d=\"M%.1f %dH%.1f\"/>"
		"<circle cx=\"%.1f\" cy=\"%d\" r=\"4\" fill=\"%s\"%s><title>%.2f (%.2f to %.2f) "
		"of ",
		r->loads[c->load].depth, bench_colour(c->target), place(x, low), y, place(x, high),
		place(x, c->pair.ratio), y,
		bench_significant(&c->pair) ? bench_colour(c->target) : "white",
		bench_significant(&c->pair) ? "" : " stroke=\"#555\"", c->pair.ratio, c->pair.low,
		c->pair.high);
	bench_put_text(to, base);
	fprintf(to, "%s</title></circle>\n",
		bench_significant(&c->pair) ? "" : ", not significant");
}

void
bench_svg_ratios(const struct bench_result *r, const struct bench_comparisons *c, unsigned load,
		 FILE *to)
{
	struct axis x = { .low = 0.5,
			  .high = 2,
			  .logarithmic = true,
			  .from = WIDTH / 2 + 8,
			  .to = WIDTH - RIGHT };
	int rows = 0, height, y = TOP + ROW / 2;

	for (unsigned i = 0; i < c->count; i++) {
		if (!is_shown(r, &c->list[i], load))
			continue;
		rows++;
		x.low = fmin(x.low, c->list[i].pair.ratio / 1.2);
		x.high = fmax(x.high, c->list[i].pair.ratio * 1.2);
	}
	if (rows == 0)
		return;
	height = TOP + rows * ROW + BOTTOM;
	begin(to, height, "ratio, at each depth (hollow: not significant)");
	for (double at = exp2(ceil(log2(x.low))); at <= x.high; at *= 2)
		fprintf(to,
			"<path class=\"%s\" d=\"M%.1f %dV%d\"/><text class=\"m\" x=\"%.1f\" "
			"y=\"%d\">%g</text>\n",
			at == 1 ? "one" : "g", place(&x, at), TOP, TOP + rows * ROW, place(&x, at),
			TOP + rows * ROW + 16, at);
	for (unsigned i = 0; i < c->count; i++) {
		if (!is_shown(r, &c->list[i], load))
			continue;
		put_ratio(to, r, &c->list[i], &x, y);
		y += ROW;
	}
	fprintf(to, "</svg>\n");
}
