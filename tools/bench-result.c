/* bench-result.c - names of loads, and what a result is beside its numbers. */
#include "bench.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

const char *const bench_quantile_names[] = { [BENCH_P50] = "p50",
					     [BENCH_P90] = "p90",
					     [BENCH_P99] = "p99",
					     [BENCH_P999] = "p99.9",
					     [BENCH_MAX] = "max" };

static const char *const op_names[] = { [BENCH_RANDREAD] = "randread",
					[BENCH_RANDWRITE] = "randwrite",
					[BENCH_READ] = "read",
					[BENCH_WRITE] = "write",
					[BENCH_MIXED] = "mixed" };
static const char *const sync_names[] = {
	[BENCH_PLAIN] = "", [BENCH_FUA] = "-fua", [BENCH_FLUSH] = "-flush"
};
#define OPS   (sizeof(op_names) / sizeof(op_names[0]))
#define SYNCS (sizeof(sync_names) / sizeof(sync_names[0]))

bool
bench_load_writes(const struct bench_load *l)
{
	return l->op != BENCH_RANDREAD && l->op != BENCH_READ;
}

char *
bench_load_name(const struct bench_load *l, char *name)
{
	bool kilo = l->block % 1024 == 0;

	snprintf(name, BENCH_NAME, "%s%s-%u%s-%ux%u", op_names[l->op], sync_names[l->sync],
		 kilo ? l->block / 1024 : l->block, kilo ? "k" : "", l->jobs, l->depth);
	return name;
}

/* Whatever the words are of which the name is made, it is right if it comes out again. */
bool
bench_load_parse(const char *name, struct bench_load *l)
{
	char again[BENCH_NAME];

	for (unsigned i = 0; i < OPS * SYNCS; i++) {
		char head[BENCH_NAME], unit = 'k';
		size_t length = (size_t)snprintf(head, sizeof(head), "%s%s-", op_names[i / SYNCS],
						 sync_names[i % SYNCS]);

		if (strncmp(name, head, length) != 0)
			continue;
		*l = (struct bench_load){ .op = i / SYNCS, .sync = i % SYNCS };
		if (sscanf(name + length, "%u-%ux%u", &l->block, &l->jobs, &l->depth) != 3 &&
		    sscanf(name + length, "%u%c-%ux%u", &l->block, &unit, &l->jobs, &l->depth) != 4)
			continue;
		if (strpbrk(name + length, "k") != NULL)
			l->block *= 1024;
		if (strcmp(bench_load_name(l, again), name) == 0)
			return true;
	}
	return false;
}

char *
bench_target_title(const struct bench_target *t, char *title)
{
	snprintf(title, BENCH_TITLE, "%s%s%s%s%s", t->name, *t->mode != '\0' ? "/" : "", t->mode,
		 t->step != NULL ? ": " : "", t->step != NULL ? t->step : "");
	return title;
}

bool
bench_measured(const struct bench_result *r, unsigned load, unsigned target)
{
	for (unsigned i = 0; i < r->repeats; i++) {
		if (bench_sample(r, load, target, i)->there)
			return true;
	}
	return false;
}

int
bench_failed(struct bench_result *r, unsigned load, unsigned target, const char *why)
{
	struct bench_failure *more =
		realloc(r->failures, (r->failure_count + 1) * sizeof *r->failures);

	if (more == NULL)
		return -ENOMEM;
	r->failures = more;
	more += r->failure_count;
	*more = (struct bench_failure){ load, target, strdup(why) };
	if (more->why == NULL)
		return -ENOMEM;
	r->failure_count++;
	return 0;
}

const char *
bench_failure(const struct bench_result *r, unsigned load, unsigned target)
{
	for (unsigned i = 0; i < r->failure_count; i++) {
		if (r->failures[i].load == load && r->failures[i].target == target)
			return r->failures[i].why;
	}
	return NULL;
}

void
bench_result_free(struct bench_result *r)
{
	if (r == NULL)
		return;
	for (unsigned i = 0; i < r->fact_count; i++) {
		free(r->facts[i].name);
		free(r->facts[i].value);
	}
	for (unsigned i = 0; i < r->target_count; i++) {
		free(r->targets[i].name);
		free(r->targets[i].mode);
		free(r->targets[i].step);
		free(r->targets[i].command);
		free(r->targets[i].absent);
	}
	for (unsigned i = 0; i < r->failure_count; i++)
		free(r->failures[i].why);
	free(r->failures);
	free(r->table);
	free(r->command);
	free(r->facts);
	free(r->targets);
	free(r->loads);
	free(r->samples);
	free(r);
}
