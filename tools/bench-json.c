/*
 * bench-json.c - a result as JSON, written and read.
 *
 * What follows from the samples (medians, comparisons) is written for other programs, and made anew
 * when the file is read.
 */
#include "bench-stats.h"

#include <errno.h>
#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

static const char *const kinds[] = { [BENCH_OURS] = "ours",
				     [BENCH_PEER] = "peer",
				     [BENCH_RAW] = "raw",
				     [BENCH_CEILING] = "ceiling",
				     [BENCH_GIVEN] = "given" };
static const char *const whys[] = { [BENCH_BASE] = "base", [BENCH_STEP] = "step" };
#define KINDS (sizeof(kinds) / sizeof(kinds[0]))

/* ---- writing --------------------------------------------------------------------- */

static json_t *
number(double value)
{
	return isfinite(value) ? json_real(value) : json_null();
}

static json_t *
fact_json(const struct bench_fact *f)
{
	return json_pack("{s:s, s:s}", "name", f->name, "value", f->value);
}

static json_t *
target_json(const struct bench_target *t)
{
	return json_pack("{s:s, s:s, s:s?, s:s, s:b, s:b, s:s?, s:s?}", "name", t->name, "mode",
			 t->mode, "step", t->step, "kind", kinds[t->kind], "direct", t->direct,
			 "iscsi", t->iscsi, "command", t->command, "absent", t->absent);
}

static json_t *
failure_json(const struct bench_failure *f)
{
	return json_pack("{s:i, s:i, s:s}", "load", (int)f->load, "target", (int)f->target, "why",
			 f->why);
}

static json_t *
load_json(const struct bench_load *l)
{
	char name[BENCH_NAME];

	return json_pack("{s:s, s:i, s:i, s:i}", "name", bench_load_name(l, name), "block",
			 (int)l->block, "depth", (int)l->depth, "jobs", (int)l->jobs);
}

static json_t *
sample_json(const struct bench_sample *s)
{
	json_t *latency = json_object();

	if (!s->there) {
		json_decref(latency);
		return json_null();
	}
	for (unsigned q = 0; q < BENCH_QUANTILES; q++)
		json_object_set_new(latency, bench_quantile_names[q], number(s->latency[q]));
	return json_pack("{s:o, s:o, s:o, s:o, s:b, s:o}", "rate", number(s->rate), "server_cpu_us",
			 number(s->server_cpu), "client_cpu_us", number(s->client_cpu), "busy",
			 number(s->busy), "steady", s->steady, "latency_us", latency);
}

static json_t *
samples_json(const struct bench_result *r, unsigned load)
{
	json_t *targets = json_array();

	for (unsigned t = 0; t < r->target_count; t++) {
		json_t *repeats = json_array();

		for (unsigned i = 0; i < r->repeats; i++)
			json_array_append_new(repeats, sample_json(bench_sample(r, load, t, i)));
		json_array_append_new(targets, repeats);
	}
	return targets;
}

static json_t *
comparison_json(const struct bench_comparison *c)
{
	return json_pack("{s:i, s:i, s:i, s:s, s:i, s:o, s:o, s:o, s:o, s:o, s:o, s:b}", "load",
			 (int)c->load, "target", (int)c->target, "base", (int)c->base, "why",
			 whys[c->why], "repeats", (int)c->pair.n, "ratio", number(c->pair.ratio),
			 "low", number(c->pair.low), "high", number(c->pair.high), "p",
			 number(c->pair.p), "p_rank", number(c->pair.p_rank), "p_corrected",
			 number(c->pair.p_holm), "significant", bench_significant(&c->pair));
}

/* NULL: no memory. */
static json_t *
result_json(const struct bench_result *r)
{
	struct bench_comparisons *c = bench_compare(r);
	json_t *facts = json_array(), *targets = json_array(), *loads = json_array();
	json_t *samples = json_array(), *failures = json_array(), *comparisons = json_array();

	for (unsigned i = 0; i < r->fact_count; i++)
		json_array_append_new(facts, fact_json(&r->facts[i]));
	for (unsigned i = 0; i < r->target_count; i++)
		json_array_append_new(targets, target_json(&r->targets[i]));
	for (unsigned i = 0; i < r->load_count; i++) {
		json_array_append_new(loads, load_json(&r->loads[i]));
		json_array_append_new(samples, samples_json(r, i));
	}
	for (unsigned i = 0; i < r->failure_count; i++)
		json_array_append_new(failures, failure_json(&r->failures[i]));
	for (unsigned i = 0; c != NULL && i < c->count; i++)
		json_array_append_new(comparisons, comparison_json(&c->list[i]));
	free(c);
	return json_pack("{s:s, s:s, s:i, s:f, s:I, s:I, s:b, s:o, s:o, s:o, s:o, s:o, s:o}",
			 "table", r->table, "command", r->command, "repeats", (int)r->repeats,
			 "seconds", r->seconds, "size", (json_int_t)r->size, "seed",
			 (json_int_t)r->seed, "interrupted", r->interrupted, "facts", facts,
			 "targets", targets, "loads", loads, "samples", samples, "failures",
			 failures, "comparisons", comparisons);
}

int
bench_json_write(const struct bench_result *r, const char *path, struct pl_error *err)
{
	json_t *root = result_json(r);
	FILE *to;
	int error = 0;

	if (root == NULL)
		return pl_error_set(err, -ENOMEM, "%s", path);
	to = fopen(path, "we");
	if (to == NULL) {
		error = pl_error_set(err, -errno, "%s", path);
	} else {
		bool wrong;

		errno = 0;
		wrong = json_dumpf(root, to, JSON_INDENT(1) | JSON_REAL_PRECISION(6)) != 0;

		wrong |= fputc('\n', to) == EOF;
		if (fclose(to) == EOF || wrong)
			error = pl_error_set(err, errno != 0 ? -errno : -EIO, "%s: write", path);
	}
	json_decref(root);
	return error;
}

/* ---- reading --------------------------------------------------------------------- */

/* What the file says does not fit; the place is in err. */
static int
wrong(struct pl_error *err, const char *path, const char *where, size_t which)
{
	return pl_error_say(err, -EINVAL, "%s: %s[%zu] is not as platter bench --json writes it",
			    path, where, which);
}

static int
read_fact(const json_t *from, struct bench_fact *f)
{
	const char *name, *value;

	if (json_unpack((json_t *)from, "{s:s, s:s}", "name", &name, "value", &value) != 0)
		return -EINVAL;
	f->name = strdup(name);
	f->value = strdup(value);
	return f->name != NULL && f->value != NULL ? 0 : -ENOMEM;
}

/* Null, which json_unpack() does not take for a string, is none. */
static bool
read_text(const json_t *from, const char *name, char **to)
{
	const char *text = json_string_value(json_object_get(from, name));

	*to = text != NULL ? strdup(text) : NULL;
	return !*to == !text;
}

static int
read_target(const json_t *from, struct bench_target *t)
{
	const char *kind;
	int direct, iscsi;

	if (json_unpack((json_t *)from, "{s:s, s:b, s:b}", "kind", &kind, "direct", &direct,
			"iscsi", &iscsi) != 0)
		return -EINVAL;
	t->direct = direct;
	t->iscsi = iscsi;
	while (t->kind < KINDS && strcmp(kinds[t->kind], kind) != 0)
		t->kind++;
	if (t->kind == KINDS)
		return -EINVAL;
	if (!read_text(from, "name", &t->name) || !read_text(from, "mode", &t->mode) ||
	    !read_text(from, "step", &t->step) || !read_text(from, "command", &t->command) ||
	    !read_text(from, "absent", &t->absent))
		return -ENOMEM;
	return t->name != NULL && t->mode != NULL ? 0 : -EINVAL;
}

static int
read_load(const json_t *from, struct bench_load *l)
{
	const char *name;

	if (json_unpack((json_t *)from, "{s:s}", "name", &name) != 0 || !bench_load_parse(name, l))
		return -EINVAL;
	return l->block > 0 && l->depth > 0 && l->jobs > 0 ? 0 : -EINVAL;
}

static double
read_number(const json_t *from)
{
	return json_is_number(from) ? json_number_value(from) : NAN;
}

/* What is less or more nobody measures, and no axis of a plot reaches. */
static bool
can_be(double value)
{
	return value >= 1e-6 && value <= 1e15;
}

static int
read_sample(const json_t *from, struct bench_sample *s)
{
	const json_t *latency = json_object_get(from, "latency_us");
	int steady;

	if (json_is_null(from))
		return 0;
	if (json_unpack((json_t *)from, "{s:F, s:b}", "rate", &s->rate, "steady", &steady) != 0 ||
	    !json_is_object(latency) || !can_be(s->rate))
		return -EINVAL;
	s->there = true;
	s->steady = steady;
	s->server_cpu = read_number(json_object_get(from, "server_cpu_us"));
	s->client_cpu = read_number(json_object_get(from, "client_cpu_us"));
	s->busy = read_number(json_object_get(from, "busy"));
	for (unsigned q = 0; q < BENCH_QUANTILES; q++) {
		s->latency[q] = read_number(json_object_get(latency, bench_quantile_names[q]));
		if (!isnan(s->latency[q]) && !can_be(s->latency[q]))
			return -EINVAL;
	}
	return 0;
}

static int
read_samples(const json_t *from, const struct bench_result *r, unsigned load)
{
	int error = json_array_size(from) == r->target_count ? 0 : -EINVAL;

	for (unsigned t = 0; error == 0 && t < r->target_count; t++) {
		const json_t *repeats = json_array_get(from, t);

		if (json_array_size(repeats) != r->repeats)
			error = -EINVAL;
		for (unsigned i = 0; error == 0 && i < r->repeats; i++)
			error = read_sample(json_array_get(repeats, i),
					    bench_sample(r, load, t, i));
	}
	return error;
}

static int
read_failure(const json_t *from, struct bench_result *r)
{
	const char *why;
	int load, target;

	if (json_unpack((json_t *)from, "{s:i, s:i, s:s}", "load", &load, "target", &target, "why",
			&why) != 0 ||
	    load < 0 || (unsigned)load >= r->load_count || target < 0 ||
	    (unsigned)target >= r->target_count)
		return -EINVAL;
	return bench_failed(r, (unsigned)load, (unsigned)target, why);
}

#define MOST 10000 /* of each, as a file may ask for */

static int
read_lists(const json_t *facts, const json_t *targets, const json_t *loads, const json_t *samples,
	   const json_t *failures, struct bench_result *r, const char *path, struct pl_error *err)
{
	size_t f = json_array_size(facts), t = json_array_size(targets), l = json_array_size(loads);
	int error = 0;

	if (f > MOST || t > MOST || l > MOST || json_array_size(failures) > MOST ||
	    r->repeats > BENCH_REPEATS || r->repeats < 1 || json_array_size(samples) != l ||
	    l * t > MOST || l * t * r->repeats > 100 * MOST)
		return pl_error_say(err, -EINVAL,
				    "%s: %zu loads, %zu targets, %u repeats and %zu "
				    "rows of samples do not go together",
				    path, l, t, r->repeats, json_array_size(samples));
	r->facts = calloc(f + 1, sizeof(*r->facts));
	r->targets = calloc(t + 1, sizeof(*r->targets));
	r->loads = calloc(l + 1, sizeof(*r->loads));
	r->samples = calloc(l * t * r->repeats + 1, sizeof(*r->samples));
	if (r->facts == NULL || r->targets == NULL || r->loads == NULL || r->samples == NULL)
		return pl_error_set(err, -ENOMEM, "%s", path);
	for (; error == 0 && r->fact_count < f; r->fact_count++)
		if (read_fact(json_array_get(facts, r->fact_count), &r->facts[r->fact_count]) != 0)
			error = wrong(err, path, "facts", r->fact_count);
	for (; error == 0 && r->target_count < t; r->target_count++)
		if (read_target(json_array_get(targets, r->target_count),
				&r->targets[r->target_count]) != 0)
			error = wrong(err, path, "targets", r->target_count);
	for (; error == 0 && r->load_count < l; r->load_count++)
		if (read_load(json_array_get(loads, r->load_count), &r->loads[r->load_count]) != 0)
			error = wrong(err, path, "loads", r->load_count);
	for (unsigned i = 0; error == 0 && i < l; i++)
		if (read_samples(json_array_get(samples, i), r, i) != 0)
			error = wrong(err, path, "samples", i);
	for (unsigned i = 0; error == 0 && i < json_array_size(failures); i++)
		if (read_failure(json_array_get(failures, i), r) != 0)
			error = wrong(err, path, "failures", i);
	return error;
}

static int
read_result(const json_t *root, struct bench_result *r, const char *path, struct pl_error *err)
{
	const char *table, *command;
	json_t *facts, *targets, *loads, *samples, *failures;
	json_int_t size, seed;
	json_error_t e;
	int repeats, interrupted;

	if (json_unpack_ex((json_t *)root, &e, 0,
			   "{s:s, s:s, s:i, s:F, s:I, s:I, s:b, s:o, s:o, s:o, s:o, s:o}", "table",
			   &table, "command", &command, "repeats", &repeats, "seconds", &r->seconds,
			   "size", &size, "seed", &seed, "interrupted", &interrupted, "facts",
			   &facts, "targets", &targets, "loads", &loads, "samples", &samples,
			   "failures", &failures) != 0)
		return pl_error_say(err, -EINVAL, "%s is no result of platter bench --json: %s",
				    path, e.text);
	r->repeats = repeats > 0 ? (unsigned)repeats : 0;
	r->size = (uint64_t)size;
	r->seed = (uint64_t)seed;
	r->interrupted = interrupted;
	r->table = strdup(table);
	r->command = strdup(command);
	if (r->table == NULL || r->command == NULL)
		return pl_error_set(err, -ENOMEM, "%s", path);
	return read_lists(facts, targets, loads, samples, failures, r, path, err);
}

struct bench_result *
bench_json_read(const char *path, struct pl_error *err)
{
	struct bench_result *r = calloc(1, sizeof(*r));
	json_t *root = NULL;
	json_error_t e;
	FILE *from = fopen(path, "re");
	int error = 0;

	if (from == NULL)
		error = pl_error_set(err, -errno, "%s", path);
	else if ((root = json_loadf(from, JSON_REJECT_DUPLICATES, &e)) == NULL)
		error = pl_error_say(err, -EINVAL, "%s, line %d: %s", path, e.line, e.text);
	else if (r == NULL)
		error = pl_error_set(err, -ENOMEM, "%s", path);
	else
		error = read_result(root, r, path, err);
	if (from != NULL)
		fclose(from);
	json_decref(root);
	if (error == 0)
		return r;
	bench_result_free(r);
	return NULL;
}
