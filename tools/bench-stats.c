/* bench-stats.c - medians, intervals and tests. */
#include "bench-stats.h"

#include <gsl/gsl_cdf.h>
#include <gsl/gsl_sort.h>
#include <gsl/gsl_statistics_double.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#define GROWS 1.1 /* times: less is none */

/* ---- figures --------------------------------------------------------------------- */

/* Mean of n figures, and half the width of its 95 % interval. */
static void
interval(const double *x, unsigned n, double *mean, double *half)
{
	*mean = n > 0 ? gsl_stats_mean(x, 1, n) : NAN;
	*half = n > 1 ? gsl_cdf_tdist_Pinv(1 - BENCH_LEVEL / 2, n - 1) *
				gsl_stats_sd_m(x, 1, n, *mean) / sqrt(n)
		      : NAN;
}

struct bench_spread
bench_spread(double *x, unsigned n)
{
	struct bench_spread s = { .n = n, .median = NAN, .low = NAN, .high = NAN };
	double mean, half;

	if (n == 0)
		return s;
	gsl_sort(x, 1, n);
	s.median = gsl_stats_median_from_sorted_data(x, 1, n);
	for (unsigned i = 0; i < n; i++)
		x[i] = log(x[i]);
	interval(x, n, &mean, &half);
	s.low = exp(mean - half);
	s.high = exp(mean + half);
	return s;
}

static int
by_size(const void *a, const void *b)
{
	double x = fabs(*(const double *)a), y = fabs(*(const double *)b);

	return (x > y) - (x < y);
}

/*
 * Of all ways to give n differences a sign, in how many is the smaller sum of ranks no larger than
 * it is here? Ranks are counted twice, so that those of ties are whole numbers. Sorts d.
 */
static double
signed_rank(double *d, unsigned n)
{
	unsigned kept = 0, sum = 0, plus = 0, least;
	double *ways, p = 0;

	for (unsigned i = 0; i < n; i++) {
		if (d[i] != 0)
			d[kept++] = d[i];
	}
	if (kept == 0)
		return 1;
	ways = calloc((size_t)kept * (kept + 1) + 1, sizeof(*ways));
	if (ways == NULL)
		return NAN;
	qsort(d, kept, sizeof(*d), by_size);
	ways[0] = 1;
	for (unsigned i = 0, next; i < kept; i = next) {
		next = i + 1;
		while (next < kept && fabs(d[next]) == fabs(d[i]))
			next++;
		for (unsigned k = i, rank = i + next + 1; k < next; k++) {
			sum += rank;
			plus += d[k] > 0 ? rank : 0;
			for (unsigned s = sum + 1; s-- > 0;)
				ways[s] = (ways[s] + (s >= rank ? ways[s - rank] : 0)) / 2;
		}
	}
	least = plus < sum - plus ? plus : sum - plus;
	for (unsigned s = 0; s <= least; s++)
		p += 2 * ways[s];
	free(ways);
	return p < 1 ? p : 1;
}

struct bench_pair
bench_pair(const double *a, const double *b, unsigned n)
{
	struct bench_pair pair = { .n = n, .p = NAN, .p_rank = NAN, .p_holm = NAN };
	double mean, half, d[BENCH_REPEATS] = { 0 };

	for (unsigned i = 0; i < n; i++)
		d[i] = log(a[i] / b[i]);
	interval(d, n, &mean, &half);
	pair.ratio = exp(mean);
	pair.low = exp(mean - half);
	pair.high = exp(mean + half);
	if (n > 1) {
		double error = gsl_stats_sd_m(d, 1, n, mean) / sqrt(n);

		if (error > 0)
			pair.p = 2 * gsl_cdf_tdist_Q(fabs(mean) / error, n - 1);
		else
			pair.p = mean == 0 ? 1 : 0;
		pair.p_rank = signed_rank(d, n);
	}
	return pair;
}

static int
by_p(const void *a, const void *b)
{
	const struct bench_pair *const *x = a, *const *y = b;

	return ((*x)->p > (*y)->p) - ((*x)->p < (*y)->p);
}

unsigned
bench_holm(struct bench_pair **pairs, unsigned n)
{
	unsigned family = 0;
	double least = 0;

	for (unsigned i = 0; i < n; i++) {
		pairs[i]->p_holm = NAN;
		if (!isnan(pairs[i]->p))
			pairs[family++] = pairs[i];
	}
	qsort(pairs, family, sizeof(*pairs), by_p);
	for (unsigned i = 0; i < family; i++) {
		double p = (family - i) * pairs[i]->p;

		p = p < 1 ? p : 1;
		least = p > least ? p : least;
		pairs[i]->p_holm = least;
	}
	return family;
}

/* ---- of a result ----------------------------------------------------------------- */

/* The rates of the repeats in which both were measured; b may be a. Returns how many. */
static unsigned
rates(const struct bench_result *r, unsigned load, unsigned a, unsigned b, double *x, double *y)
{
	unsigned n = 0;

	for (unsigned i = 0; i < r->repeats; i++) {
		const struct bench_sample *s = bench_sample(r, load, a, i);
		const struct bench_sample *t = bench_sample(r, load, b, i);

		if (!s->there || !t->there || s->rate <= 0 || t->rate <= 0)
			continue;
		x[n] = s->rate;
		y[n++] = t->rate;
	}
	return n;
}

struct bench_spread
bench_rate(const struct bench_result *r, unsigned load, unsigned target)
{
	double x[BENCH_REPEATS];

	return bench_spread(x, rates(r, load, target, target, x, x));
}

/* Of the figure that stands `at` so many bytes in a sample. */
static double
median(const struct bench_result *r, unsigned load, unsigned target, size_t at)
{
	double x[BENCH_REPEATS], value;
	unsigned n = 0;

	for (unsigned i = 0; i < r->repeats; i++) {
		const struct bench_sample *s = bench_sample(r, load, target, i);

		memcpy(&value, (const char *)s + at, sizeof(value));
		if (s->there && !isnan(value))
			x[n++] = value;
	}
	gsl_sort(x, 1, n);
	return n > 0 ? gsl_stats_median_from_sorted_data(x, 1, n) : NAN;
}

double
bench_latency(const struct bench_result *r, unsigned load, unsigned target, unsigned quantile)
{
	return median(r, load, target,
		      offsetof(struct bench_sample, latency) + quantile * sizeof(double));
}

double
bench_server_cpu(const struct bench_result *r, unsigned load, unsigned target)
{
	return median(r, load, target, offsetof(struct bench_sample, server_cpu));
}

/* target_count: there is none. */
static unsigned
best_peer(const struct bench_result *r, unsigned load, bool iscsi, bool any)
{
	unsigned best = r->target_count;
	double most = 0;

	for (unsigned t = 0; t < r->target_count; t++) {
		const struct bench_target *target = &r->targets[t];
		double rate = bench_rate(r, load, t).median; /* NAN is not more */

		if (target->kind != BENCH_PEER || (!any && target->iscsi != iscsi) ||
		    !(rate > most))
			continue;
		most = rate;
		best = t;
	}
	return best;
}

unsigned
bench_base(const struct bench_result *r, unsigned load, bool iscsi)
{
	unsigned base = best_peer(r, load, iscsi, false);

	if (base == r->target_count)
		base = best_peer(r, load, iscsi, true);
	for (unsigned t = 0; t < r->target_count && base == r->target_count; t++) {
		if (r->targets[t].kind != BENCH_CEILING && bench_measured(r, load, t))
			base = t;
	}
	return base;
}

/* The load that is like this one, but of the next depth; load_count: there is none. */
static unsigned
deeper(const struct bench_result *r, const struct bench_load *than, unsigned target)
{
	unsigned next = r->load_count;

	for (unsigned l = 0; l < r->load_count; l++) {
		struct bench_load like = *than;

		like.depth = r->loads[l].depth;
		if (like.depth > than->depth && bench_measured(r, l, target) &&
		    memcmp(&like, &r->loads[l], sizeof(like)) == 0 &&
		    (next == r->load_count || like.depth < r->loads[next].depth))
			next = l;
	}
	return next;
}

unsigned
bench_depth_enough(const struct bench_result *r, unsigned load, unsigned target)
{
	struct bench_load at = r->loads[load];
	unsigned depths = 0, enough = 0;
	double reached = 0;

	at.depth = 0;
	for (unsigned l; (l = deeper(r, &at, target)) < r->load_count; depths++) {
		struct bench_spread s = bench_rate(r, l, target);

		at.depth = r->loads[l].depth;
		if (s.median >= GROWS * reached)
			enough = at.depth;
		if (s.median > reached)
			reached = s.median;
	}
	return depths >= 3 && enough != at.depth ? enough : 0;
}

/* ---- who is compared ------------------------------------------------------------- */

static void
add(struct bench_comparisons *c, const struct bench_result *r, unsigned load, unsigned target,
    unsigned base, enum bench_why why)
{
	double x[BENCH_REPEATS], y[BENCH_REPEATS];

	if (target == base || r->targets[target].kind == BENCH_CEILING ||
	    !bench_measured(r, load, target) || !bench_measured(r, load, base))
		return;
	c->list[c->count++] = (struct bench_comparison){
		.load = load,
		.target = target,
		.base = base,
		.why = why,
		.pair = bench_pair(x, y, rates(r, load, target, base, x, y)),
	};
}

static bool
is_step(const struct bench_target *from, const struct bench_target *to)
{
	return from->step != NULL && to->step != NULL && strcmp(from->name, to->name) == 0 &&
	       strcmp(from->mode, to->mode) == 0;
}

struct bench_comparisons *
bench_compare(const struct bench_result *r)
{
	size_t most = (size_t)r->load_count * r->target_count * 2;
	struct bench_comparisons *c = malloc(sizeof(*c) + most * sizeof(*c->list));
	struct bench_pair **pairs = malloc((most + 1) * sizeof(struct bench_pair *));

	if (c == NULL || pairs == NULL) {
		free(c);
		free(pairs);
		return NULL;
	}
	*c = (struct bench_comparisons){ .list = (struct bench_comparison *)(c + 1) };
	for (unsigned l = 0; l < r->load_count; l++) {
		unsigned bases[] = { bench_base(r, l, false), bench_base(r, l, true) };

		for (unsigned t = 0; t < r->target_count; t++) {
			unsigned base = bases[r->targets[t].iscsi];

			if (base < r->target_count && r->targets[t].kind != BENCH_PEER)
				add(c, r, l, t, base, BENCH_BASE);
			if (t > 0 && is_step(&r->targets[t - 1], &r->targets[t]))
				add(c, r, l, t, t - 1, BENCH_STEP);
		}
	}
	for (unsigned i = 0; i < c->count; i++)
		pairs[i] = &c->list[i].pair;
	c->family = bench_holm(pairs, c->count);
	free(pairs);
	return c;
}

const struct bench_comparison *
bench_comparison(const struct bench_comparisons *c, unsigned load, unsigned target,
		 enum bench_why why)
{
	for (unsigned i = 0; i < c->count; i++) {
		const struct bench_comparison *one = &c->list[i];

		if (one->load == load && one->target == target && one->why == why)
			return one;
	}
	return NULL;
}
