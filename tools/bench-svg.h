/*
 * bench-svg.h - the plots of a page: SVG that needs no script. Each is about the loads that are
 * like the given one, but of any depth. The ceiling is in none: beside it all others would lie
 * flat.
 */
#ifndef BENCH_SVG_H
#define BENCH_SVG_H

#include "bench-stats.h"

const char *bench_colour(unsigned target);
/* As text of a page, whatever is in it. */
void bench_put_text(FILE *to, const char *text);

void bench_svg_rates(const struct bench_result *r, unsigned load, FILE *to);
void bench_svg_latencies(const struct bench_result *r, unsigned load, FILE *to);
/* To the best peer, with intervals. */
void bench_svg_ratios(const struct bench_result *r, const struct bench_comparisons *c,
		      unsigned load, FILE *to);

/* Whether they differ in depth alone. */
bool bench_alike(const struct bench_load *a, const struct bench_load *b);

#endif
