/*
 * bench-stats.h - what may be said of figures that differ from one repeat to the next.
 *
 * Rates and times are compared as ratios, so all of this is done with logarithms, and figures are
 * above 0. Sources: Student, "The Probable Error of a Mean" (1908); Wilcoxon, "Individual
 * Comparisons by Ranking Methods" (1945); Holm, "A Simple Sequentially Rejective Multiple Test
 * Procedure" (1979).
 */
#ifndef BENCH_STATS_H
#define BENCH_STATS_H

#include "bench.h"

#define BENCH_LEVEL 0.05 /* what is less likely by chance is significant */

struct bench_spread {
	unsigned n;
	double median;
	double low, high; /* 95 % interval of the mean, NAN for less than two figures */
};

/* Sorts x. */
struct bench_spread bench_spread(double *x, unsigned n);

/* a against b, of the same n repeats, at most BENCH_REPEATS. */
struct bench_pair {
	unsigned n;
	double ratio, low, high; /* mean of a / b and its 95 % interval; NAN: too few figures */
	double p;                /* paired t-test, two-sided; NAN: too few */
	double p_rank;           /* Wilcoxon's signed rank test, exact, two-sided */
	double p_holm;           /* p, corrected for the number of comparisons */
};

struct bench_pair bench_pair(const double *a, const double *b, unsigned n);
/* Corrects n of them as one family; those without p do not count. Returns how many count. */
unsigned bench_holm(struct bench_pair **pairs, unsigned n);
static inline bool
bench_significant(const struct bench_pair *p)
{
	return p->p_holm < BENCH_LEVEL; /* false for NAN */
}

/* ---- of a result ----------------------------------------------------------------- */

enum bench_why { BENCH_BASE, BENCH_STEP };

/* All but peers are compared with their bench_base(), and what has a step more with the target that
 * it was added to. The fewer are, the more can be significant. */
struct bench_comparison {
	unsigned load, target, base; /* indices; target against base */
	enum bench_why why;
	struct bench_pair pair; /* of their rates */
};

struct bench_comparisons {
	unsigned count, family; /* family: how many have a p */
	struct bench_comparison *list;
};

/* NULL: no memory. free() it. */
struct bench_comparisons *bench_compare(const struct bench_result *r);
/* NULL: there is none. */
const struct bench_comparison *bench_comparison(const struct bench_comparisons *c, unsigned load,
						unsigned target, enum bench_why why);

/* Of the rates of a pair, over its repeats; n is 0 where there are none. */
struct bench_spread bench_rate(const struct bench_result *r, unsigned load, unsigned target);
/* Medians over its repeats, in microseconds; NAN: not known. */
double bench_latency(const struct bench_result *r, unsigned load, unsigned target,
		     unsigned quantile);
double bench_server_cpu(const struct bench_result *r, unsigned load, unsigned target);
/* What others are compared with: the peer of their protocol with the highest median; where there is
 * none, that of any; else the first target; target_count: nothing was measured. */
unsigned bench_base(const struct bench_result *r, unsigned load, bool iscsi);
/* The depth from which on the rate of a load like this, apart from its depth, grows by less than a
 * tenth; 0: it never was seen to, or fewer than three depths were measured. */
unsigned bench_depth_enough(const struct bench_result *r, unsigned load, unsigned target);

#endif
