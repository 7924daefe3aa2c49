/* bench_stats.c - what platter bench says of figures, against published and hand-made examples. */
#include "../../tools/bench-stats.h"

#include "test.h"

#include <math.h>
#include <stdlib.h>

static bool
near(double a, double b, double by)
{
	bool is = fabs(a - b) <= by;

	if (!is)
		printf("%.12g, not %.12g\n", a, b);
	return is;
}

TEST(the_interval_is_that_of_students_t)
{
	/* exp of 1 to 5: the mean of the logarithms is 3, their deviation sqrt(2.5), and t of 4
	 * degrees of freedom 2.776445. */
	double x[] = { exp(3), exp(1), exp(5), exp(2), exp(4) };
	double half = 2.7764451051977987 * sqrt(2.5) / sqrt(5);
	struct bench_spread s = bench_spread(x, 5);

	assert_eq(s.n, 5);
	assert_true(near(s.median, exp(3), 1e-9));
	assert_true(near(s.low, exp(3 - half), 1e-9));
	assert_true(near(s.high, exp(3 + half), 1e-6));
}

TEST(one_figure_has_a_median_and_no_interval)
{
	double x[] = { 7 };
	struct bench_spread s = bench_spread(x, 1), none = bench_spread(x, 0);

	assert_true(near(s.median, 7, 0));
	assert_true(isnan(s.low) && isnan(s.high));
	assert_eq(none.n, 0);
	assert_true(isnan(none.median));
}

TEST(the_paired_test_knows_students_sleep_data)
{
	/* Hours of sleep gained by two drugs (Student, 1908): t = 4.0621, 9 degrees of freedom. */
	static const double drug[] = { 0.7, -1.6, -0.2, -1.2, -0.1, 3.4, 3.7, 0.8, 0.0, 2.0 };
	static const double other[] = { 1.9, 0.8, 1.1, 0.1, -0.1, 4.4, 5.5, 1.6, 4.6, 3.4 };
	double a[10], b[10];
	struct bench_pair p;

	for (unsigned i = 0; i < 10; i++) {
		a[i] = exp(other[i]);
		b[i] = exp(drug[i]);
	}
	p = bench_pair(a, b, 10);
	assert_eq(p.n, 10);
	assert_true(near(p.ratio, exp(1.58), 1e-9));
	assert_true(near(p.p, 0.00283289, 1e-7));
	assert_true(near(log(p.low), 0.7001142, 1e-6));
	assert_true(near(log(p.high), 2.4598858, 1e-6));
}

/* Of n repeats that differ by these logarithms. */
static struct bench_pair
pair_of(const double *d, unsigned n)
{
	double a[16], b[16];

	for (unsigned i = 0; i < n; i++) {
		a[i] = exp(d[i]);
		b[i] = 1;
	}
	return bench_pair(a, b, n);
}

TEST(the_rank_test_counts_all_signs)
{
	static const double all[] = { 1, 2, 3, 4, 5 }, one[] = { -1, 2, 3, 4, 5 };
	static const double most[] = { 1, 2, 3, -4, 5 }, none[] = { 0, 0, 0 };
	static const double even[] = { 1, -1, 2, -2 }, ties[] = { 1, 1, 1, -1 };

	assert_true(near(pair_of(all, 5).p_rank, 2.0 / 32, 1e-12));
	assert_true(near(pair_of(one, 5).p_rank, 4.0 / 32, 1e-12));
	assert_true(near(pair_of(most, 5).p_rank, 14.0 / 32, 1e-12));
	assert_true(near(pair_of(none, 3).p_rank, 1, 0));
	assert_true(near(pair_of(even, 4).p_rank, 1, 0));
	/* Four ranks of 2.5: no more than one is negative in 5 of 16, and the same mirrored. */
	assert_true(near(pair_of(ties, 4).p_rank, 10.0 / 16, 1e-12));
}

TEST(what_never_differs_is_no_chance_and_no_difference)
{
	static const double same[] = { 0, 0, 0 }, doubled[] = { 1, 1, 1 }, alone[] = { 1 };

	assert_true(near(pair_of(same, 3).p, 1, 0));
	assert_true(near(pair_of(doubled, 3).p, 0, 1e-12));
	assert_true(isnan(pair_of(alone, 1).p));
	assert_true(isnan(pair_of(alone, 1).low));
}

TEST(many_comparisons_are_corrected_for_their_number)
{
	/* Holm: 4 x 0.005, 3 x 0.01, 2 x 0.03, and no less than the one before it. */
	struct bench_pair p[] = {
		{ .p = 0.01 }, { .p = 0.04 }, { .p = NAN }, { .p = 0.03 }, { .p = 0.005 }
	};
	struct bench_pair *pairs[] = { &p[0], &p[1], &p[2], &p[3], &p[4] };

	assert_eq(bench_holm(pairs, 5), 4);
	assert_true(near(p[4].p_holm, 0.02, 1e-12));
	assert_true(near(p[0].p_holm, 0.03, 1e-12));
	assert_true(near(p[3].p_holm, 0.06, 1e-12));
	assert_true(near(p[1].p_holm, 0.06, 1e-12));
	assert_true(isnan(p[2].p_holm));
	assert_true(bench_significant(&p[0]) && !bench_significant(&p[3]) &&
		    !bench_significant(&p[2]));
}

/* ---- of a result ----------------------------------------------------------------- */

#define REPEATS 3

static char ceiling[] = "ceiling", ours[] = "nbd", slow[] = "slow", fast[] = "fast",
	    none[] = "none", nothing[] = "", a[] = "a", b[] = "b";

/* Rates of each load and target; 0: not measured. Each repeat is 1 % more than the one before it.
 */
static struct bench_result
result(struct bench_target *targets, unsigned target_count, struct bench_load *loads,
       unsigned load_count, const double *rates)
{
	struct bench_result r = { .targets = targets,
				  .target_count = target_count,
				  .loads = loads,
				  .load_count = load_count,
				  .repeats = REPEATS };

	r.samples = calloc((size_t)load_count * target_count * REPEATS, sizeof(*r.samples));
	assert_true(r.samples != NULL);
	for (unsigned i = 0; i < load_count * target_count * REPEATS; i++) {
		r.samples[i].there = rates[i / REPEATS] > 0;
		r.samples[i].rate = rates[i / REPEATS] * (1 + i % REPEATS * 0.01);
	}
	return r;
}

TEST(each_is_compared_with_the_best_peer_and_each_step_with_the_one_before)
{
	struct bench_target t[] = {
		{ .name = ceiling, .mode = none, .kind = BENCH_CEILING },
		{ .name = ours, .mode = none, .step = a, .kind = BENCH_OURS },
		{ .name = ours, .mode = none, .step = b, .kind = BENCH_OURS },
		{ .name = slow, .mode = nothing, .kind = BENCH_PEER },
		{ .name = fast, .mode = nothing, .kind = BENCH_PEER },
	};
	struct bench_load l[] = { { .block = 4096, .depth = 1, .jobs = 1 },
				  { .block = 4096, .depth = 16, .jobs = 1 } };
	static const double rates[] = { 900, 100, 200, 50, 80, 900, 100, 0, 70, 0 };
	struct bench_result r = result(t, 5, l, 2, rates);
	struct bench_comparisons *c = bench_compare(&r);

	assert_true(c != NULL);
	/* First load: both of ours with the fast peer, and a step. Second: one. */
	assert_eq(c->count, 4);
	assert_eq(c->family, 4);
	assert_eq(bench_comparison(c, 0, 1, BENCH_BASE)->base, 4);
	assert_true(near(bench_comparison(c, 0, 1, BENCH_BASE)->pair.ratio, 1.25, 1e-9));
	assert_eq(bench_comparison(c, 1, 1, BENCH_BASE)->base, 3);
	assert_eq(bench_comparison(c, 0, 2, BENCH_STEP)->base, 1);
	assert_true(near(bench_comparison(c, 0, 2, BENCH_STEP)->pair.ratio, 2, 1e-9));
	assert_true(bench_comparison(c, 0, 0, BENCH_BASE) == NULL);
	assert_true(bench_comparison(c, 1, 2, BENCH_STEP) == NULL);
	free(c);
	free(r.samples);
}

TEST(without_a_peer_the_first_is_what_others_are_compared_with)
{
	struct bench_target t[] = { { .name = a, .mode = nothing, .kind = BENCH_GIVEN },
				    { .name = b, .mode = nothing, .kind = BENCH_GIVEN } };
	struct bench_load l[] = { { .block = 4096, .depth = 1, .jobs = 1 } };
	static const double rates[] = { 100, 300 };
	struct bench_result r = result(t, 2, l, 1, rates);
	struct bench_comparisons *c = bench_compare(&r);

	assert_true(c != NULL);
	assert_eq(c->count, 1);
	assert_eq(c->list[0].target, 1);
	assert_true(near(c->list[0].pair.ratio, 3, 1e-9));
	free(c);
	free(r.samples);
}

TEST(the_depth_that_is_enough_is_where_rates_stop_to_grow)
{
	struct bench_target t[] = { { .name = a, .mode = nothing, .kind = BENCH_OURS },
				    { .name = b, .mode = nothing, .kind = BENCH_OURS } };
	/* In no order, and one of another kind. */
	struct bench_load l[] = { { .block = 4096, .depth = 16, .jobs = 1 },
				  { .block = 4096, .depth = 1, .jobs = 1 },
				  { .block = 8192, .depth = 256, .jobs = 1 },
				  { .block = 4096, .depth = 64, .jobs = 1 },
				  { .block = 4096, .depth = 4, .jobs = 1 } };
	static const double rates[] = { 300, 300, 100, 100, 9999, 9999, 310, 600, 200, 200 };
	struct bench_result r = result(t, 2, l, 5, rates);

	assert_eq(bench_depth_enough(&r, 0, 0), 16);
	assert_eq(bench_depth_enough(&r, 1, 0), 16);
	assert_eq(bench_depth_enough(&r, 0, 1), 0); /* it grows to the last */
	assert_eq(bench_depth_enough(&r, 2, 0), 0); /* of one depth nothing can be said */
	free(r.samples);
}
