/*
 * stats.c - platter stats: what a running platterd does, live.
 *
 * Two samples of the counters make a frame of text: rates between the two, or the totals
 * where there is only one. A terminal shows the frame in place of the one before.
 */
#include "stats.h"

#include "platter.h"
#include "tools.h"

#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>
#include <wchar.h>
#include <wctype.h>

/* ---- samples --------------------------------------------------------------------- */

#define UPTIME_MAX 1e12 /* seconds */

struct sample {
	uint64_t when; /* stats_now() */
	double uptime; /* seconds */
	size_t count;
	struct export_sample {
		const char *name, *error; /* in answer; error may be NULL */
		bool open, failed, retired;
		unsigned connections;
		uint64_t size, fua_native, committed, groups;
		struct stats stats;
	} * exports;
	json_t *answer;
};

static void
sample_free(struct sample *s)
{
	free(s->exports);
	json_decref(s->answer);
	*s = (struct sample){ 0 };
}

/* 0 for what is not there. */
static uint64_t
number_in(const json_t *object, const char *key)
{
	return (uint64_t)json_integer_value(json_object_get(object, key));
}

static void
read_histogram(const json_t *pairs, struct stats_op *op)
{
	unsigned bucket = 0;
	const json_t *pair;
	size_t i;

	json_array_foreach(pairs, i, pair)
	{
		const json_t *end = json_array_get(pair, 0);

		/* They come in order; the last one has no end. */
		while (bucket < STATS_BUCKETS - 1 &&
		       (json_is_null(end) ||
			stats_bucket_end(bucket) < (uint64_t)json_integer_value(end)))
			bucket++;
		op->latency[bucket] += (uint64_t)json_integer_value(json_array_get(pair, 1));
	}
}

static void
read_operation(const json_t *from, struct stats_op *op)
{
	const json_t *errors = json_object_get(from, "errors");

	op->count = number_in(from, "count");
	op->bytes = number_in(from, "bytes");
	for (unsigned e = 0; e < STATS_ERRORS; e++)
		op->errors[e] = number_in(errors, stats_error_name(e));
	read_histogram(json_object_get(from, "histogram"), op);
}

static void
read_export(const json_t *from, struct export_sample *e)
{
	const json_t *counters = json_object_get(from, "counters");
	const json_t *operations = json_object_get(from, "operations");
	const char *name = json_string_value(json_object_get(from, "name"));

	e->name = name != NULL ? name : "";
	e->error = json_string_value(json_object_get(from, "error"));
	e->open = json_is_true(json_object_get(from, "open"));
	e->failed = json_is_true(json_object_get(from, "failed"));
	e->retired = json_is_true(json_object_get(from, "retired"));
	e->connections = (unsigned)number_in(from, "connections");
	e->size = number_in(json_object_get(from, "geometry"), "size");
	e->fua_native = number_in(counters, "fua_native");
	e->committed = number_in(counters, "committed");
	e->groups = number_in(counters, "groups");
	for (unsigned k = 0; k < STATS_KINDS; k++)
		read_operation(json_object_get(operations, stats_kind_name(k)), &e->stats.op[k]);
}

/* Takes answer over. Returns -1 when it is none, and says so. */
static int
sample_read(struct sample *s, json_t *answer)
{
	const json_t *list = json_object_get(answer, "exports");
	const char *error = json_string_value(json_object_get(answer, "error"));
	const json_t *export;
	size_t i;

	*s = (struct sample){ .when = stats_now(), .answer = answer };
	if (error != NULL || !json_is_array(list)) {
		fprintf(stderr, "platter: the server says: %s\n",
			error != NULL ? error : "nothing of exports");
		sample_free(s);
		return -1;
	}
	s->uptime = json_number_value(json_object_get(answer, "uptime"));
	if (!(s->uptime >= 0 && s->uptime < UPTIME_MAX))
		s->uptime = 0; /* the server may be another one, and not ours */
	s->count = json_array_size(list);
	s->exports = calloc(s->count + 1, sizeof *s->exports);
	if (s->exports == NULL) {
		perror("platter");
		sample_free(s);
		return -1;
	}
	json_array_foreach(list, i, export) read_export(export, &s->exports[i]);
	return 0;
}

/* ---- what happened between two --------------------------------------------------- */

/* An export that was opened again began anew with some of them. */
static uint64_t
growth(uint64_t now, uint64_t before)
{
	return now >= before ? now - before : now;
}

static void
subtract(struct export_sample *now, const struct export_sample *before)
{
	const uint64_t *b = (const uint64_t *)&before->stats;
	uint64_t *n = (uint64_t *)&now->stats;

	for (size_t i = 0; i < sizeof now->stats / sizeof *n; i++)
		n[i] = growth(n[i], b[i]);
	now->fua_native = growth(now->fua_native, before->fua_native);
	now->committed = growth(now->committed, before->committed);
	now->groups = growth(now->groups, before->groups);
}

static const struct export_sample *
find_export(const struct sample *s, const struct export_sample *like)
{
	for (size_t i = 0; i < s->count; i++)
		if (s->exports[i].retired == like->retired &&
		    strcmp(s->exports[i].name, like->name) == 0)
			return &s->exports[i];
	return NULL;
}

/* ---- a frame --------------------------------------------------------------------- */

static const char *
time_text(char *buffer, size_t size, uint64_t ns)
{
	if (ns == 0)
		return "-";
	if (ns < 10000)
		snprintf(buffer, size, "%.1fus", (double)ns / 1e3);
	else if (ns < 1000000)
		snprintf(buffer, size, "%.0fus", (double)ns / 1e3);
	else if (ns < 1000000000)
		snprintf(buffer, size, "%.1fms", (double)ns / 1e6);
	else
		snprintf(buffer, size, "%.1fs", (double)ns / 1e9);
	return buffer;
}

static const char *
size_text(char *buffer, size_t size, uint64_t bytes)
{
	static const char units[] = { 'B', 'K', 'M', 'G', 'T', 'P', 'E' };
	double n = (double)bytes;
	unsigned unit = 0;

	for (; n >= 1024 && unit + 1 < sizeof units; unit++)
		n /= 1024;
	snprintf(buffer, size, "%.4g%c", n, units[unit]);
	return buffer;
}

/* seconds: what counters are divided by, 0 for totals. */
static void
print_operation(FILE *f, enum stats_kind kind, const struct stats_op *op, double seconds)
{
	char p50[32], p99[32], ops[32], mib[32];
	uint64_t errors = 0;

	for (unsigned e = 0; e < STATS_ERRORS; e++)
		errors += op->errors[e];
	if (seconds > 0) {
		snprintf(ops, sizeof ops, "%.0f", (double)op->count / seconds);
		snprintf(mib, sizeof mib, "%.1f", (double)op->bytes / 0x1p20 / seconds);
	} else {
		snprintf(ops, sizeof ops, "%" PRIu64, op->count);
		snprintf(mib, sizeof mib, "%.1f", (double)op->bytes / 0x1p20);
	}
	fprintf(f, "  %-10s %12s %12s %9s %9s %8" PRIu64 "\n", stats_kind_name(kind), ops, mib,
		time_text(p50, sizeof p50, stats_percentile(op, 0.5)),
		time_text(p99, sizeof p99, stats_percentile(op, 0.99)), errors);
}

static void
print_export(FILE *f, const struct export_sample *all, const struct export_sample *before,
	     double seconds)
{
	struct export_sample e = *all;
	double per = seconds > 0 ? seconds : 1;
	char size[32];

	if (before != NULL)
		subtract(&e, before);
	fprintf(f, "%s: ", *e.name != '\0' ? e.name : "(default)");
	if (e.open)
		fprintf(f, "%s, ", size_text(size, sizeof size, e.size));
	else
		fprintf(f, "not open%s%s, ", e.error != NULL ? ": " : "",
			e.error != NULL ? e.error : "");
	fprintf(f, "%u connection%s%s%s\n", e.connections, e.connections == 1 ? "" : "s",
		e.failed ? ", FAILED" : "", e.retired ? ", retired" : "");
	/* A line stays once there has been such a request. */
	for (unsigned k = 0; k < STATS_KINDS; k++)
		if (all->stats.op[k].count > 0)
			print_operation(f, k, &e.stats.op[k], seconds);
	if (all->fua_native > 0 || all->committed > 0) {
		fprintf(f, "  fua: native %.0f%s, committed %.0f%s", (double)e.fua_native / per,
			seconds > 0 ? "/s" : "", (double)e.committed / per,
			seconds > 0 ? "/s" : "");
		if (e.groups > 0)
			fprintf(f, ", %.1f a flush", (double)e.committed / (double)e.groups);
		fputc('\n', f);
	}
}

/* before: NULL for totals. The caller frees it; NULL: no memory. */
static char *
make_frame(const struct sample *now, const struct sample *before)
{
	double seconds = before != NULL ? (double)(now->when - before->when) / 1e9 : 0;
	const char *each = before != NULL ? "/S" : "";
	unsigned long up = (unsigned long)now->uptime;
	unsigned connections = 0;
	char *text = NULL, ops[16], mib[16];
	size_t size;
	FILE *f = open_memstream(&text, &size);

	if (f == NULL)
		return NULL;
	for (size_t i = 0; i < now->count; i++)
		connections += now->exports[i].connections;
	snprintf(ops, sizeof ops, "OPS%s", each);
	snprintf(mib, sizeof mib, "MIB%s", each);
	fprintf(f, "platterd: up %lu:%02lu:%02lu, %zu export%s, %u connection%s\n", up / 3600,
		up / 60 % 60, up % 60, now->count, now->count == 1 ? "" : "s", connections,
		connections == 1 ? "" : "s");
	fprintf(f, "  %-10s %12s %12s %9s %9s %8s\n", "", ops, mib, "P50", "P99", "ERRORS");
	for (size_t i = 0; i < now->count; i++)
		print_export(f, &now->exports[i],
			     before != NULL ? find_export(before, &now->exports[i]) : NULL,
			     seconds);
	if (fclose(f) != 0) {
		free(text);
		return NULL;
	}
	return text;
}

/* ---- the terminal ---------------------------------------------------------------- */

#define SCREEN_ENTER "\033[?25l\033[2J" /* no cursor; all clear */
#define SCREEN_LEAVE "\033[?25h\n"
#define SCREEN_HOME  "\033[H"
#define LINE_CLEAR   "\033[K"
#define BELOW_CLEAR  "\033[J"

static volatile sig_atomic_t over, resized;

static void
on_signal(int signal)
{
	if (signal == SIGWINCH)
		resized = 1;
	else
		over = 1;
}

/* A line of text up to its end, at most so many columns of it. Names come from clients and
 * files: what is no letter never reaches the terminal. Returns where the line ended. */
static const char *
put_line(const char *text, int columns)
{
	mbstate_t state = { 0 };
	int column = 0;

	while (*text != '\0' && *text != '\n') {
		wchar_t c;
		size_t n = mbrtowc(&c, text, MB_LEN_MAX, &state);
		bool known = n != (size_t)-1 && n != (size_t)-2;
		bool shown = known && iswprint((wint_t)c) && wcwidth(c) >= 0;

		if (!known) {
			n = 1;
			state = (mbstate_t){ 0 };
		}
		column += shown ? wcwidth(c) : 1;
		if (column <= columns && shown)
			fwrite(text, 1, n, stdout);
		else if (column <= columns)
			putchar('?');
		text += n;
	}
	return text;
}

static void
show(const char *frame, bool screen)
{
	struct winsize w = { 0 };
	int rows = INT_MAX, columns = INT_MAX;

	resized = 0;
	if (screen && ioctl(STDOUT_FILENO, TIOCGWINSZ, &w) == 0 && w.ws_row > 0 && w.ws_col > 0) {
		rows = w.ws_row;
		columns = w.ws_col;
	}
	if (screen)
		fputs(SCREEN_HOME, stdout);
	for (int row = 0; *frame != '\0' && row < rows; row++) {
		frame = put_line(frame, columns);
		frame += *frame == '\n';
		fputs(screen ? LINE_CLEAR : "", stdout);
		/* A newline in the last row would scroll. */
		if (!screen || row + 1 < rows)
			putchar('\n');
	}
	fputs(screen ? BELOW_CLEAR : "", stdout);
	fflush(stdout);
}

/* ---- platter stats --------------------------------------------------------------- */

enum { STATUS_DONE, STATUS_FAILED, STATUS_CANNOT };

#define NS_PER_S UINT64_C(1000000000)

struct watch {
	const char *path;
	uint64_t interval; /* ns */
	bool once, json, help, screen;
	FILE *server;
	sigset_t awake; /* signals that may come while it waits */
	char *frame;
};

#define ROW(field) offsetof(struct watch, field)
static const struct pl_option stats_options[] = {
	{ "control", PL_OPT_STRING, ROW(path), "PATH", CONTROL_PATH, false,
	  "the server's control socket" },
	{ "interval", PL_OPT_TIME, ROW(interval), NULL, "1s", false, "from 100ms on" },
	{ "once", PL_OPT_BOOL, ROW(once), "", NULL, false, "the totals, once" },
	{ "json", PL_OPT_BOOL, ROW(json), "", NULL, false,
	  "all counters, a line for each interval" },
	{ "help", PL_OPT_BOOL, ROW(help), "", NULL, false, "show this" },
	PL_OPTION_END,
};
#undef ROW

static int
usage(void)
{
	char *rows = pl_option_rows(stats_options, "  --", " ");

	printf("usage: platter stats [OPTION...]\n\n"
	       "Requests, latencies and FUA of each export of a running platterd: the totals,\n"
	       "then what happened in each interval. Control-C ends it.\n\n%s",
	       rows != NULL ? rows : "");
	free(rows);
	return STATUS_DONE;
}

static int
complain(const char *what)
{
	fprintf(stderr, "platter stats: %s\n", what);
	return STATUS_CANNOT;
}

/* Returns -1 to go on, else the exit status. What is in *w points into *params. */
static int
parse(struct watch *w, int argc, char **argv, struct pl_params *params)
{
	if (tool_options(argc, argv, stats_options, params, w) != 0)
		return STATUS_CANNOT;
	if (w->help)
		return usage();
	if (w->interval < NS_PER_S / 10 || w->interval > 86400 * NS_PER_S)
		return complain("--interval is from 100ms to 86400s");
	if (optind < argc)
		return complain("takes no word but options; --help");
	w->screen = !w->once && !w->json && isatty(STDOUT_FILENO);
	return -1;
}

/* Signals come only while it waits, so none is missed in between. */
static void
catch_signals(struct watch *w)
{
	static const int signals[] = { SIGINT, SIGTERM, SIGHUP, SIGWINCH };
	struct sigaction action = { .sa_handler = on_signal };
	sigset_t asleep;

	sigemptyset(&asleep);
	for (unsigned i = 0; i < sizeof signals / sizeof *signals; i++) {
		sigaddset(&asleep, signals[i]);
		sigaction(signals[i], &action, NULL);
	}
	sigprocmask(SIG_BLOCK, &asleep, &w->awake);
}

/* For an answer, or (fd is -1) for a time. The frame follows the window meanwhile. */
static void
wait_for(struct watch *w, int fd, uint64_t ns)
{
	uint64_t end = stats_now() + ns;
	struct pollfd p = { .fd = fd, .events = POLLIN };

	while (!over) {
		uint64_t now = stats_now(), left = now < end ? end - now : 0;
		struct timespec ts = { (time_t)(left / 1000000000), (long)(left % 1000000000) };

		if (ppoll(&p, 1, fd == -1 ? &ts : NULL, &w->awake) >= 0)
			return;
		if (resized && w->screen && w->frame != NULL)
			show(w->frame, true);
	}
}

/* Returns the answer; NULL: failed, or over. */
static json_t *
ask(struct watch *w)
{
	json_t *request = json_pack("{s:s, s:b}", "command", "exports", "histograms", 1);
	int error = control_send(w->server, request);

	json_decref(request);
	if (error != 0)
		return NULL;
	wait_for(w, fileno(w->server), 0);
	return over ? NULL : control_receive(w->server);
}

/* Returns the exit status. */
static int
watch(struct watch *w)
{
	struct sample before = { 0 }, now = { 0 };
	int status = STATUS_DONE;

	while (!over && status == STATUS_DONE) {
		json_t *answer = ask(w);

		if (answer == NULL || sample_read(&now, answer) != 0) {
			status = over ? STATUS_DONE : STATUS_FAILED;
			break;
		}
		if (w->json) {
			json_dumpf(now.answer, stdout, JSON_COMPACT | JSON_REAL_PRECISION(12));
			putchar('\n');
			fflush(stdout);
		} else {
			free(w->frame);
			w->frame = make_frame(&now, before.answer != NULL ? &before : NULL);
			if (w->frame != NULL)
				show(w->frame, w->screen);
		}
		sample_free(&before);
		before = now;
		now = (struct sample){ 0 };
		if (w->once || ferror(stdout))
			break;
		wait_for(w, -1, w->interval);
	}
	sample_free(&before);
	free(w->frame);
	return status;
}

static int
watch_server(struct watch *w)
{
	int status;

	w->server = control_open(w->path);
	if (w->server == NULL)
		return STATUS_FAILED;
	catch_signals(w);
	if (w->screen)
		fputs(SCREEN_ENTER, stdout);
	status = watch(w);
	if (w->screen) {
		fputs(SCREEN_LEAVE, stdout);
		fflush(stdout);
	}
	fclose(w->server);
	return status;
}

int
tool_stats(int argc, char **argv)
{
	struct pl_params *params = pl_params_new();
	struct watch w = { 0 };
	int status;

	if (params == NULL)
		return complain("out of memory");
	status = parse(&w, argc, argv, params);
	if (status == -1)
		status = watch_server(&w);
	pl_params_free(params);
	return status;
}
