/*
 * bench.c - platter bench: how fast are servers beside each other on this disk?
 *
 * The plan is a table of loads (rows) and targets (columns). Each pair is measured once in every
 * repeat; loads come in random order, and so do the targets of each, directly after one another:
 * what changes slowly on this machine changes for all. What was measured is told, even if
 * somebody ends it early or a server fails.
 */
#include "bench-image.h"
#include "bench-target.h"
#include "stats.h"
#include "tools.h"

#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <unistd.h>

enum { STATUS_DONE, STATUS_PARTS_MISSING, STATUS_NOTHING };

/* ---- tables ---------------------------------------------------------------------- */

struct kind {
	enum bench_op op;
	enum bench_sync sync;
};

static const struct plan {
	const char *name, *help;
	const char *targets; /* unless others are asked for */
	unsigned kind_count;
	struct kind kinds[4];
	uint32_t blocks[3]; /* up to a 0, as the next two */
	unsigned jobs[3], depths[10];
} plans[] = {
	{ .name = "osync",
	  .help = "4k writes, each stable, by the steps that make them fast",
	  .targets = "steps,raw/none,ceiling",
	  .kind_count = 2,
	  .kinds = { { BENCH_RANDWRITE, BENCH_FUA }, { BENCH_RANDWRITE, BENCH_FLUSH } },
	  .blocks = { 4096 },
	  .jobs = { 1 },
	  .depths = { 1, 16 } },
	{ .name = "matrix",
	  .help = "reads and writes, small and large, by depth and connections",
	  .targets = "raw,ours,peers,ceiling",
	  .kind_count = 4,
	  .kinds = { { BENCH_RANDREAD, BENCH_PLAIN },
		     { BENCH_RANDWRITE, BENCH_PLAIN },
		     { BENCH_READ, BENCH_PLAIN },
		     { BENCH_WRITE, BENCH_PLAIN } },
	  .blocks = { 4096, 262144 },
	  .jobs = { 1, 2 },
	  .depths = { 1, 4, 16, 64, 128 } },
	{ .name = "mixed",
	  .help = "4k, 70 of 100 reads, the others writes",
	  .targets = "raw,ours,peers,ceiling",
	  .kind_count = 1,
	  .kinds = { { BENCH_MIXED, BENCH_PLAIN } },
	  .blocks = { 4096 },
	  .jobs = { 1, 2 },
	  .depths = { 1, 4, 16, 64, 128 } },
	{ .name = "depth",
	  .help = "4k reads and stable writes, up to where more at once is not more",
	  .targets = "raw,ours,peers,ceiling",
	  .kind_count = 2,
	  .kinds = { { BENCH_RANDREAD, BENCH_PLAIN }, { BENCH_RANDWRITE, BENCH_FUA } },
	  .blocks = { 4096 },
	  .jobs = { 1 },
	  .depths = { 1, 2, 4, 8, 16, 32, 64, 128, 256 } },
};
#define PLANS      (sizeof plans / sizeof *plans)
#define PLAN_WORDS "osync|matrix|mixed|depth"

/* ---- command line ---------------------------------------------------------------- */

struct settings {
	int table, pages;
	bool overwrite, quick, list, help;
	const char *targets, *cells, *json, *html, *from, *peers_root;
	uint64_t repeats, time_ns, size, seed;
	char **words; /* PATH and URIs */
};

#define ROW(field) offsetof(struct settings, field)
static const struct pl_option bench_options[] = {
	{ "table", PL_OPT_ENUM, ROW(table), PLAN_WORDS, "osync", false, "what is measured" },
	{ "cells", PL_OPT_STRING, ROW(cells), "LIST", NULL, false,
	  "only rows like these, or rows of one's own" },
	{ "targets", PL_OPT_STRING, ROW(targets), "LIST", NULL, false,
	  "columns: NAME, NAME/MODE, ours, peers, raw, ..." },
	{ "list", PL_OPT_BOOL, ROW(list), "", NULL, false,
	  "show rows and targets, measure nothing" },
	{ "overwrite", PL_OPT_BOOL, ROW(overwrite), "", NULL, false,
	  "write to a file, device or URI that is there" },
	{ "repeats", PL_OPT_UINT, ROW(repeats), "NUMBER", "5", false, "of each measurement" },
	{ "time", PL_OPT_TIME, ROW(time_ns), "TIME", "1s", false, "of each, after warm-up" },
	{ "size", PL_OPT_SIZE, ROW(size), "SIZE", "512M", false, "of the file, or what is used" },
	{ "pages", PL_OPT_ENUM, ROW(pages), "large|small", "large", false,
	  "kind of pages in the cache" },
	{ "quick", PL_OPT_BOOL, ROW(quick), "", NULL, false,
	  "2 repeats of 100ms, 64M: to see that it works" },
	{ "seed", PL_OPT_UINT, ROW(seed), "NUMBER", "0", false,
	  "of the order and offsets; 0: any" },
	{ "peers-root", PL_OPT_STRING, ROW(peers_root), "DIR", NULL, false,
	  "servers of others run in this root" },
	{ "json", PL_OPT_STRING, ROW(json), "FILE", NULL, false, "all figures" },
	{ "html", PL_OPT_STRING, ROW(html), "FILE", NULL, false, "a page with plots" },
	{ "from", PL_OPT_STRING, ROW(from), "FILE", NULL, false,
	  "tell an earlier run; FILE is of --json" },
	{ "help", PL_OPT_BOOL, ROW(help), "", NULL, false, "show this" },
	PL_OPTION_END,
};
#undef ROW

static int
usage(FILE *to, int status)
{
	char *rows = pl_option_rows(bench_options, "  --", " ");

	fprintf(to,
		"usage: platter bench [OPTION...] PATH|URI...\n"
		"       platter bench --from FILE [--html FILE]\n\n"
		"Measures our servers, those of others, and the file itself side by side.\n"
		"PATH: a directory for a scratch file; a file or device. URI: NBD or iSCSI.\n\n%s"
		"Status: 0 all was measured; 1 parts are missing; 2 nothing was measured.\n",
		rows != NULL ? rows : "");
	free(rows);
	return status;
}

static int
complain(const char *what)
{
	fprintf(stderr, "platter bench: %s\n", what);
	return STATUS_NOTHING;
}

static const char *
contradiction(const struct settings *s)
{
	unsigned words = 0, paths = 0;

	for (char **w = s->words; *w != NULL; w++, words++)
		paths += !tool_is_uri(*w);
	if (s->from != NULL)
		return words > 0 ? "--from measures nothing, and so takes no PATH or URI" : NULL;
	if (s->list)
		return NULL;
	if (words == 0)
		return "name a directory, or what is to be measured; --help";
	if (paths > 1)
		return "one PATH at a time: what is compared has to lie on one disk";
	if (s->repeats < 1 || s->repeats > BENCH_REPEATS)
		return "--repeats is from 1 to 1000";
	if (s->time_ns < 10000000 || s->time_ns > UINT64_C(3600000000000))
		return "--time is from 10ms to 3600s";
	if (s->size < 1u << 20)
		return "--size is at least 1M";
	return NULL;
}

static void
be_quick(struct settings *s, const struct pl_params *params)
{
	if (pl_params_get(params, "repeats") == NULL)
		s->repeats = 2;
	if (pl_params_get(params, "time") == NULL)
		s->time_ns = 100000000;
	if (pl_params_get(params, "size") == NULL)
		s->size = 64u << 20;
}

/* Returns -1 to go on, or an exit status. The settings point into *params. */
static int
parse(int argc, char **argv, struct settings *s, struct pl_params *params)
{
	const char *wrong;

	if (tool_options(argc, argv, bench_options, params, s) != 0)
		return STATUS_NOTHING;
	s->words = argv + optind;
	if (s->help)
		return usage(stdout, STATUS_DONE);
	if (s->quick)
		be_quick(s, params);
	wrong = contradiction(s);
	return wrong != NULL ? complain(wrong) : -1;
}

/* ---- rows ------------------------------------------------------------------------ */

static int
load_add(struct bench_result *r, const struct bench_load *l)
{
	struct bench_load *more = realloc(r->loads, (r->load_count + 1) * sizeof *r->loads);

	if (more == NULL)
		return -ENOMEM;
	r->loads = more;
	more[r->load_count++] = *l;
	return 0;
}

static bool
wanted(const char *cells, const struct bench_load *l)
{
	char name[BENCH_NAME], *copy = cells != NULL ? strdup(cells) : NULL, *save = NULL;
	bool found = cells == NULL;

	bench_load_name(l, name);
	for (char *w = copy != NULL ? strtok_r(copy, ",", &save) : NULL; w != NULL && !found;
	     w = strtok_r(NULL, ",", &save))
		found = fnmatch(w, name, 0) == 0;
	free(copy);
	return found;
}

static int
add_plan(struct bench_result *r, const struct plan *p, const char *cells)
{
	int error = 0;

	for (const uint32_t *block = p->blocks; *block != 0; block++)
		for (unsigned kind = 0; kind < p->kind_count; kind++)
			for (const unsigned *jobs = p->jobs; *jobs != 0; jobs++)
				for (const unsigned *depth = p->depths; *depth != 0; depth++) {
					struct bench_load l = { p->kinds[kind].op,
								p->kinds[kind].sync, *block, *depth,
								*jobs };

					if (error == 0 && wanted(cells, &l))
						error = load_add(r, &l);
				}
	return error;
}

static bool
is_possible(const struct bench_load *l)
{
	return l->block >= 512 && l->block <= 16u << 20 && l->depth >= 1 &&
	       l->depth <= CONN_DEPTH && l->jobs >= 1 && l->jobs <= 64 &&
	       (l->sync == BENCH_PLAIN || bench_load_writes(l));
}

/* A word of --cells that fits no row of the table is a row of its own. */
static int
add_own(struct bench_result *r, const char *cells, struct pl_error *err)
{
	char *copy = strdup(cells), *save = NULL;
	int error = copy != NULL ? 0 : pl_error_set(err, -ENOMEM, "--cells");
	unsigned of_table = r->load_count;

	for (char *w = error == 0 ? strtok_r(copy, ",", &save) : NULL; w != NULL && error == 0;
	     w = strtok_r(NULL, ",", &save)) {
		struct bench_load l;
		bool fits = false;

		for (unsigned i = 0; i < of_table && !fits; i++)
			fits = wanted(w, &r->loads[i]);
		if (fits)
			continue;
		if (!bench_load_parse(w, &l))
			error = pl_error_say(err, -EINVAL,
					     "--cells '%s': no row of the table is like that, nor "
					     "is it OP[-fua|-flush]-BLOCK-JOBSxDEPTH; --list shows "
					     "them",
					     w);
		else if (!is_possible(&l))
			error = pl_error_say(err, -EINVAL,
					     "--cells '%s': blocks are from 512 to 16384k, jobs to "
					     "64, depth to %d; only writes are stable",
					     w, CONN_DEPTH);
		else
			error = load_add(r, &l);
	}
	free(copy);
	return error;
}

static int
add_rows(struct bench_result *r, const struct settings *s, struct pl_error *err)
{
	int error = add_plan(r, &plans[s->table], s->cells);
	bool own = r->load_count == 0;

	if (error != 0)
		return pl_error_set(err, error, "rows");
	r->table = strdup(own ? "own" : plans[s->table].name);
	return s->cells != NULL ? add_own(r, s->cells, err) : 0;
}

/* ---- columns --------------------------------------------------------------------- */

static int
add_columns(struct bench_result *r, const struct settings *s, const struct bench_place *place,
	    struct pl_error *err)
{
	const char *list = s->targets;
	int error = 0;

	/* Without a disk of ours the given ones are measured, and what the client can do. */
	if (list == NULL)
		list = place->image != NULL ? plans[s->table].targets : "ceiling";
	if (strcmp(list, "given") != 0)
		error = bench_targets_add(r, list, place, err);
	for (unsigned i = 0; i < r->target_count && error == 0 && place->image == NULL; i++) {
		if (r->targets[i].kind != BENCH_CEILING)
			error = pl_error_say(err, -EINVAL,
					     "%s needs a PATH: a directory for a scratch file, say",
					     r->targets[i].name);
	}
	for (char **w = s->words; *w != NULL && error == 0; w++) {
		if (tool_is_uri(*w))
			error = bench_targets_add_uri(r, *w, err);
	}
	return error;
}

/* A report that cannot be written is better known before an hour of measuring than after it. */
static int
try_report(const char *path, struct pl_error *err)
{
	bool there = path != NULL && access(path, F_OK) == 0;
	int fd = path != NULL ? open(path, O_WRONLY | O_CREAT | O_NONBLOCK | O_CLOEXEC, 0666) : -1;

	if (path != NULL && fd == -1)
		return pl_error_set(err, -errno, "%s", path);
	if (fd != -1)
		close(fd);
	if (fd != -1 && !there)
		unlink(path);
	return 0;
}

/* What is not ours is not written without being asked for. */
static int
protect(const struct bench_result *r, const struct settings *s, const struct bench_image *im,
	struct pl_error *err)
{
	const char *there = im->path != NULL && !im->scratch ? im->path : NULL;
	char name[BENCH_NAME];

	for (char **w = s->words; *w != NULL && there == NULL; w++)
		there = tool_is_uri(*w) ? *w : NULL;
	if (s->overwrite || there == NULL)
		return 0;
	for (unsigned i = 0; i < r->load_count; i++) {
		if (bench_load_writes(&r->loads[i]))
			return pl_error_say(err, -EEXIST,
					    "%s would be overwritten (by %s): --overwrite if it "
					    "may be, or rows that only read, --table matrix "
					    "--cells '*read*'",
					    there, bench_load_name(&r->loads[i], name));
	}
	return 0;
}

/* ---- the run --------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void
interrupt(int sig)
{
	(void)sig;
	interrupted = 1;
}

struct run {
	struct bench_result *r;
	struct bench_place place;
	struct bench_image image;
	enum bench_pages pages;
	uint64_t random_state;
	unsigned *orders; /* of loads, and of targets */
	bool missing;     /* something is */
	unsigned done, total;
	double began, told; /* seconds */
};

static double
seconds_now(void)
{
	return (double)stats_now() / 1e9;
}

/* One line on a terminal, elsewhere one now and then. */
static void
show_progress(struct run *run, const struct bench_load *l, const struct bench_target *t)
{
	bool terminal = isatty(STDERR_FILENO);
	double now = seconds_now(), left = 0;
	char load[BENCH_NAME], target[BENCH_TITLE], time_left[32] = "";

	if (!terminal && now - run->told < 30)
		return;
	run->told = now;
	if (run->done > 0) {
		left = (now - run->began) / run->done * (run->total - run->done);
		snprintf(time_left, sizeof time_left, "%u:%02u left, ", (unsigned)left / 60,
			 (unsigned)left % 60);
	}
	fprintf(stderr, "%s%u of %u, %s%s by %s%s", terminal ? "\r" : "", run->done + 1, run->total,
		time_left, bench_load_name(l, load), bench_target_title(t, target),
		terminal ? "\033[K" : "\n");
}

static void
say_of(struct run *run, const char *about, const char *what)
{
	fprintf(stderr, "%splatter bench: %s: %s\n", isatty(STDERR_FILENO) ? "\r\033[K" : "", about,
		what);
	run->missing = true;
}

/* The same number in flight, over more connections where the target is to have them. */
static struct bench_load
spread(const struct bench_load *l, unsigned connections)
{
	while (connections > 1 && (l->depth % connections != 0 || l->jobs * connections > 64))
		connections--;
	return (struct bench_load){ l->op, l->sync, l->block, l->depth / connections,
				    l->jobs * connections };
}

static void
measure(struct run *run, unsigned load, unsigned target, unsigned repeat)
{
	struct bench_target *t = &run->r->targets[target];
	struct bench_load l = spread(&run->r->loads[load], bench_target_spread(t));
	struct bench_server server;
	struct pl_error err;
	char load_name[BENCH_NAME], name[BENCH_TITLE], both[256];
	int error = 0;

	if (bench_failure(run->r, load, target) != NULL)
		return;
	bench_target_title(t, name);
	if (run->image.path != NULL && t->kind != BENCH_GIVEN && t->kind != BENCH_CEILING)
		error = bench_image_prepare(&run->image, t->direct ? PAGES_NONE : run->pages, &err);
	if (error == 0)
		error = bench_server_start(&server, t, &run->place, &err);
	if (error != 0) {
		t->absent = strdup(err.text);
		say_of(run, name, err.text);
		return;
	}
	error = bench_load_run(&server.where, &l, run->r->seconds, run->r->seed + repeat,
			       &interrupted, bench_sample(run->r, load, target, repeat), &err);
	bench_server_stop(&server);
	if (error != 0 && error != -EINTR) {
		bench_failed(run->r, load, target, err.text);
		snprintf(both, sizeof both, "%s by %s",
			 bench_load_name(&run->r->loads[load], load_name), name);
		say_of(run, both, err.text);
	}
}

static void
shuffle(struct run *run, unsigned *order, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		unsigned k;

		run->random_state = run->random_state * UINT64_C(6364136223846793005) + 1;
		k = (unsigned)((run->random_state >> 33) % (i + 1));
		order[i] = order[k];
		order[k] = i;
	}
}

static void
measure_all(struct run *run)
{
	struct bench_result *r = run->r;
	unsigned *loads = run->orders, *targets = run->orders + r->load_count;

	run->began = seconds_now();
	for (unsigned t = 0; t < r->target_count; t++)
		run->total += r->targets[t].absent == NULL ? r->load_count * r->repeats : 0;
	for (unsigned repeat = 0; repeat < r->repeats && !interrupted; repeat++) {
		shuffle(run, loads, r->load_count);
		for (unsigned i = 0; i < r->load_count && !interrupted; i++) {
			shuffle(run, targets, r->target_count);
			for (unsigned k = 0; k < r->target_count && !interrupted; k++) {
				if (r->targets[targets[k]].absent != NULL)
					continue;
				show_progress(run, &r->loads[loads[i]], &r->targets[targets[k]]);
				measure(run, loads[i], targets[k], repeat);
				run->done++;
			}
		}
	}
	r->interrupted = interrupted;
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\r\033[K");
}

/* How much others use is a part of every figure. */
static void
look_at_others(struct bench_result *r)
{
	double busy, total, busy_then, total_then;

	bench_ticks(&busy, &total);
	nanosleep(&(struct timespec){ .tv_nsec = 300000000 }, NULL);
	bench_ticks(&busy_then, &total_then);
	busy = total_then > total ? (busy_then - busy) / (total_then - total) : 0;
	bench_fact_add(r, "others", "used %.0f %% of the processors before the run", 100 * busy);
	if (busy > 0.1)
		fprintf(stderr,
			"platter bench: others use %.0f %% of this machine's processors: the "
			"figures will tell of them, too\n",
			100 * busy);
}

static int
tell(const struct bench_result *r, const struct settings *s)
{
	struct winsize w = { 0 };
	struct pl_error err;
	int status = STATUS_DONE;

	ioctl(STDOUT_FILENO, TIOCGWINSZ, &w);
	bench_table(r, stdout, w.ws_col);
	if (s->json != NULL && bench_json_write(r, s->json, &err) != 0)
		status = complain(err.text);
	if (s->html != NULL && bench_html_write(r, s->html, &err) != 0)
		status = complain(err.text);
	return status;
}

static int
list(const struct bench_result *r, const struct bench_place *place)
{
	char name[BENCH_NAME];

	printf("tables:\n");
	for (unsigned i = 0; i < PLANS; i++)
		printf("  %-8s %s (%s)\n", plans[i].name, plans[i].help, plans[i].targets);
	printf("\nrows of %s:\n", r->table);
	for (unsigned i = 0; i < r->load_count; i++)
		printf("  %s\n", bench_load_name(&r->loads[i], name));
	printf("\ntargets:\n");
	bench_targets_list(place, stdout);
	return STATUS_DONE;
}

static int
measure_and_tell(struct run *run, const struct settings *s, struct pl_error *err)
{
	struct bench_result *r = run->r;
	char title[BENCH_TITLE];
	bool any = false;
	int status;

	r->samples =
		calloc((size_t)r->load_count * r->target_count * r->repeats, sizeof *r->samples);
	run->orders = calloc(r->load_count + r->target_count, sizeof *run->orders);
	if (r->samples == NULL || run->orders == NULL)
		return pl_error_set(err, -ENOMEM, "samples");
	for (unsigned i = 0; i < r->target_count; i++) {
		if (r->targets[i].absent != NULL)
			say_of(run, bench_target_title(&r->targets[i], title),
			       r->targets[i].absent);
	}
	look_at_others(r);
	measure_all(run);
	for (unsigned i = 0; i < r->load_count * r->target_count && !any; i++)
		any = bench_measured(r, i / r->target_count, i % r->target_count);
	if (!any)
		return pl_error_say(err, -EIO, "nothing was measured");
	status = tell(r, s);
	return status != STATUS_DONE ? status : run->missing || r->interrupted;
}

static char *
command_line(int argc, char **argv)
{
	char *text = NULL;
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (f == NULL)
		return NULL;
	fprintf(f, "platter");
	for (int i = 0; i < argc; i++)
		fprintf(f, " %s", argv[i]);
	if (fclose(f) != 0)
		return NULL;
	pl_text_clean(text);
	return text;
}

/* Returns an exit status, or what went wrong. */
static int
bench(struct run *run, const struct settings *s, struct pl_error *err)
{
	struct bench_result *r = run->r;
	char folder[] = "/tmp/platter-bench-XXXXXX";
	const char *path = NULL;
	int error = add_rows(r, s, err);

	run->place = (struct bench_place){ .peers_root = s->peers_root, .size = s->size };
	if (error != 0)
		return error;
	if (s->list)
		return list(r, &run->place);
	for (char **w = s->words; *w != NULL; w++) {
		if (!tool_is_uri(*w))
			path = *w;
	}
	error = try_report(s->json, err);
	if (error == 0)
		error = try_report(s->html, err);
	if (error == 0 && path != NULL)
		error = bench_image_open(&run->image, path, s->size, err);
	if (error != 0)
		return error;
	run->place.image = run->image.path;
	run->place.size = r->size = run->image.size;
	if (path == NULL)
		run->place.size = s->size;
	error = add_columns(r, s, &run->place, err);
	if (error == 0)
		error = protect(r, s, &run->image, err);
	if (error == 0 && mkdtemp(folder) == NULL)
		error = pl_error_set(err, -errno, "%s", folder);
	if (error != 0)
		return error;
	run->place.folder = folder;
	bench_describe(r, path);
	error = measure_and_tell(run, s, err);
	bench_folder_remove(folder);
	return error;
}

static int
tell_earlier(const struct settings *s)
{
	struct pl_error err;
	struct bench_result *r = bench_json_read(s->from, &err);
	int status;

	if (r == NULL)
		return complain(err.text);
	status = tell(r, s);
	bench_result_free(r);
	return status;
}

static int
run_new(int argc, char **argv, const struct settings *s)
{
	struct sigaction on_signal = { .sa_handler = interrupt };
	struct run run = { .r = calloc(1, sizeof *run.r), .pages = (enum bench_pages)s->pages };
	struct pl_error err;
	int status;

	if (run.r == NULL)
		return complain("out of memory");
	sigaction(SIGINT, &on_signal, NULL);
	sigaction(SIGTERM, &on_signal, NULL);
	prctl(PR_SET_CHILD_SUBREAPER, 1); /* of servers that go to the background */
	run.r->seed = s->seed;
	while (run.r->seed == 0 && getrandom(&run.r->seed, 4, 0) == 4)
		;
	run.random_state = run.r->seed;
	run.r->repeats = (unsigned)s->repeats;
	run.r->seconds = (double)s->time_ns / 1e9;
	run.r->command = command_line(argc, argv);
	status = run.r->command != NULL ? bench(&run, s, &err)
					: pl_error_set(&err, -ENOMEM, "bench");
	if (status < 0)
		status = complain(err.text);
	bench_image_close(&run.image);
	free(run.orders);
	bench_result_free(run.r);
	return status;
}

int
tool_bench(int argc, char **argv)
{
	struct pl_params *params = pl_params_new();
	struct settings s = { 0 };
	int status;

	if (params == NULL)
		return complain("out of memory");
	status = parse(argc, argv, &s, params);
	if (status == -1) {
		signal(SIGPIPE, SIG_IGN);
		status = s.from != NULL ? tell_earlier(&s) : run_new(argc, argv, &s);
	}
	pl_params_free(params);
	return status;
}
