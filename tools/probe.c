#include "probe.h"
#include "probe-client.h"
#include "tools.h"

#include <errno.h>
#include <fnmatch.h>
#include <jansson.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

enum { STATUS_GOOD, STATUS_MISSES, STATUS_CANNOT };

/* ---- verdicts: from the process of an assertion to the one that reports ---------- */

enum verdict { VERDICT_OK, VERDICT_FAILED, VERDICT_HUNG, VERDICT_NONE, VERDICT_CANNOT };

static struct verdict_box {
	enum verdict verdict;
	char text[400];
	char doing[200];
} * box; /* shared */

static void *
share(size_t length)
{
	void *memory =
		mmap(NULL, length, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	if (memory == MAP_FAILED)
		abort();
	return memory;
}

static _Noreturn void
conclude(enum verdict verdict, const char *fmt, va_list args)
{
	vsnprintf(box->text, sizeof box->text, fmt, args);
	for (char *c = box->text; *c != '\0'; c++) {
		if (*c < ' ' || *c > '~') /* a server's words go to a terminal and into JSON */
			*c = '?';
	}
	box->verdict = verdict;
	exit(0);
}

#define VERDICT(name, verdict) \
	_Noreturn void name(const char *fmt, ...) \
	{ \
		va_list args; \
		va_start(args, fmt); \
		conclude(verdict, fmt, args); \
	}
VERDICT(fail, VERDICT_FAILED)
VERDICT(not_applicable, VERDICT_NONE)
VERDICT(cannot_connect, VERDICT_CANNOT)

void
doing(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(box->doing, sizeof box->doing, fmt, args);
	va_end(args);
}

static void
out_of_time(int sig)
{
	(void)sig;
	box->verdict = VERDICT_HUNG;
	_exit(0);
}

static volatile sig_atomic_t interrupted;

static void
interrupt(int sig)
{
	(void)sig;
	interrupted = 1;
}

static void
run(void (*function)(const struct probe *p), const struct probe *p, unsigned seconds)
{
	int status;
	pid_t pid;

	*box = (struct verdict_box){ .verdict = VERDICT_OK };
	fflush(stdout);
	pid = fork();
	if (pid == 0) {
		signal(SIGINT, SIG_DFL);
		signal(SIGTERM, SIG_DFL);
		signal(SIGPIPE, SIG_IGN);
		signal(SIGALRM, out_of_time);
		alarm(seconds);
		function(p);
		exit(0);
	}
	while (pid != -1 && waitpid(pid, &status, 0) == -1 && errno == EINTR)
		;
	if (pid == -1 || !WIFEXITED(status) || WEXITSTATUS(status) != 0) {
		box->verdict = VERDICT_CANNOT;
		snprintf(box->text, sizeof box->text, "the prober itself was ended");
	}
	if (box->verdict == VERDICT_HUNG)
		snprintf(box->text, sizeof box->text, "not done after %u s: %s", seconds,
			 box->doing);
}

/* ---- before and after ------------------------------------------------------------ */

static bool
has_credentials(const struct nbd_uri *uri)
{
	return uri->tls_certificates != NULL || uri->tls_psk_file != NULL;
}

/* What the server offers. It has to get through a handshake for that. */
static void
survey(const struct probe *p)
{
	static const char name[] = "platter-probe: no such export";
	struct probe_survey *f = p->found;
	struct probe by = *p;
	struct conn *c = greeted(p, NBD_FLAG_FIXED_NEWSTYLE);
	struct info info;
	uint32_t last;

	f->greeting = c->greeting;
	f->forced_tls = ask_plainly(c, NBD_OPT_LIST) == NBD_REP_ERR_TLS_REQD;
	f->starttls = ask_plainly(c, NBD_OPT_STARTTLS) == NBD_REP_ACK;
	f->plain = !f->forced_tls && !p->uri->tls;
	f->tls = f->starttls && has_credentials(p->uri);
	if (p->uri->tls && !f->starttls)
		cannot_connect("the server has no TLS");
	if (!f->plain && !f->tls)
		cannot_connect("the server speaks by TLS: tell tls-certificates=DIR or "
			       "tls-psk-file=FILE");
	by.tls = !f->plain;

	c = haggling(&by);
	last = ask_plainly(c, NBD_OPT_LIST);
	f->list = last == NBD_REP_ACK;
	f->list_refused = last == NBD_REP_ERR_POLICY;
	f->unknown =
		ask(c, NBD_OPT_INFO, info_request(name, strlen(name), 0, NULL)).last != NBD_REP_ACK;
	info = go(c);
	f->size = info.size;
	f->has_blocks = info.blocks > 0;
	f->min = info.min > 0 ? info.min : 1;
	f->preferred = info.preferred;
	f->max = info.max;
	f->flags[COMPACT] = info.flags;

	for (enum probe_headers h = STRUCTURED; h <= EXTENDED; h++) {
		c = haggling(&by);
		if (agree(c, h) != NBD_REP_ACK)
			continue;
		set_context(c);
		f->context |= c->has_context;
		f->flags[h] = go(c).flags;
		*(h == STRUCTURED ? &f->structured : &f->extended) = true;
	}
}

int
probe_look(const struct nbd_uri *uri, unsigned seconds, struct probe_survey *found,
	   struct pl_error *err)
{
	struct probe p = { .uri = uri, .found = share(sizeof *p.found) };
	int error = 0;

	box = share(sizeof *box);
	run(survey, &p, seconds);
	*found = *p.found;
	if (box->verdict != VERDICT_OK)
		error = pl_error_say(err, -ENOTCONN, "%s", box->text);
	munmap(p.found, sizeof *p.found);
	munmap(box, sizeof *box);
	return error;
}

/* Pieces in which the window is saved and put back. */
static uint64_t
piece(const struct probe *p, uint64_t at)
{
	uint64_t most = p->found->max < 1u << 20 ? p->found->max : 1u << 20;

	most -= most % p->found->min;
	return p->found->window - at < most ? p->found->window - at : most;
}

static void
save(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t size = p->found->size < PROBE_WINDOW ? p->found->size : PROBE_WINDOW;

	p->found->window = size - size % p->found->min;
	for (uint64_t at = 0; at < p->found->window; at += piece(p, at))
		read_at(c, at, piece(p, at), p->saved + at);
}

static void
restore(const struct probe *p)
{
	struct conn *c = ready(p);
	uint8_t *now = malloc(1u << 20);
	struct probe_survey *f = p->found;

	if (now == NULL)
		cannot_connect("out of memory");
	for (uint64_t at = 0; at < f->window; at += piece(p, at)) {
		read_at(c, at, piece(p, at), now);
		if (memcmp(now, p->saved + at, piece(p, at)) != 0 &&
		    write_at(c, at, piece(p, at), p->saved + at, 0) != NBD_SUCCESS)
			fail("WRITE at %llu fails", (unsigned long long)at);
	}
	if (f->zeroes.length > 0 && call_error(c, NBD_CMD_WRITE_ZEROES, 0, f->zeroes.offset,
					       f->zeroes.length) != NBD_SUCCESS)
		fail("WRITE_ZEROES at %llu fails", (unsigned long long)f->zeroes.offset);
	if ((probe_flags(p) & NBD_FLAG_SEND_FLUSH) &&
	    call_error(c, NBD_CMD_FLUSH, 0, 0, 0) != NBD_SUCCESS)
		fail("FLUSH fails");
}

/* ---- what a row needs ------------------------------------------------------------ */

struct settings {
	bool list, write, slow, strict, json, help;
	uint64_t seconds; /* for an assertion */
	const char *only, *expect;
	char **expected; /* names */
	unsigned expected_count;
};

static const struct {
	unsigned need;
	const char *missing;
} needs[] = {
	{ NEED_STARTTLS, "no TLS, or no credentials for it in the URI" },
	{ NEED_NO_TLS, "the server has TLS" },
	{ NEED_FORCED_TLS, "TLS is not forced" },
	{ NEED_STRUCTURED, "no structured replies" },
	{ NEED_EXTENDED, "no extended headers" },
	{ NEED_CONTEXT, "no base:allocation" },
	{ NEED_LIST, "LIST is not allowed" },
	{ NEED_NO_LIST, "LIST is allowed" },
	{ NEED_UNKNOWN, "every name is an export" },
	{ NEED_FLUSH, "no FLUSH" },
	{ NEED_FUA, "no FUA" },
	{ NEED_NO_FUA, "FUA is offered" },
	{ NEED_TRIM, "no TRIM" },
	{ NEED_ZEROES, "no WRITE_ZEROES" },
	{ NEED_FAST_ZERO, "no FAST_ZERO" },
	{ NEED_NO_FAST_ZERO, "FAST_ZERO is offered" },
	{ NEED_CACHE, "no CACHE" },
	{ NEED_MULTI_CONN, "no MULTI_CONN" },
	{ NEED_BLOCKS, "every byte may be asked for" },
	{ NEED_FILTER, "no BLOCK_STATUS_PAYLOAD" },
	{ NEED_DF, "no DF" },
	{ NEED_READ_ONLY, "the export is not read-only, or without --write" },
	{ NEED_WRITABLE, "the export is read-only, or what is there could not be saved" },
	{ NEED_WRITE, "without --write" },
	{ NEED_SLOW, "without --slow" },
};

static unsigned
available(const struct probe *p, const struct settings *s)
{
	const struct probe_survey *f = p->found;
	uint16_t flags = probe_flags(p);
	bool read_only = flags & NBD_FLAG_READ_ONLY;
	const struct {
		unsigned need;
		bool there;
	} facts[] = {
		{ NEED_STARTTLS, f->tls },
		{ NEED_NO_TLS, !f->starttls },
		{ NEED_FORCED_TLS, f->forced_tls },
		{ NEED_STRUCTURED, f->structured },
		{ NEED_EXTENDED, f->extended },
		{ NEED_CONTEXT, f->context },
		{ NEED_LIST, f->list },
		{ NEED_NO_LIST, f->list_refused },
		{ NEED_UNKNOWN, f->unknown },
		{ NEED_FLUSH, flags & NBD_FLAG_SEND_FLUSH },
		{ NEED_FUA, flags & NBD_FLAG_SEND_FUA },
		{ NEED_NO_FUA, (flags & NBD_FLAG_SEND_FUA) == 0 },
		{ NEED_TRIM, flags & NBD_FLAG_SEND_TRIM },
		{ NEED_ZEROES, flags & NBD_FLAG_SEND_WRITE_ZEROES },
		{ NEED_FAST_ZERO, flags & NBD_FLAG_SEND_FAST_ZERO },
		{ NEED_NO_FAST_ZERO, (flags & NBD_FLAG_SEND_FAST_ZERO) == 0 },
		{ NEED_CACHE, flags & NBD_FLAG_SEND_CACHE },
		{ NEED_MULTI_CONN, flags & NBD_FLAG_CAN_MULTI_CONN },
		{ NEED_BLOCKS, f->min > 1 },
		{ NEED_FILTER, flags & NBD_FLAG_BLOCK_STATUS_PAYLOAD },
		{ NEED_DF, flags & NBD_FLAG_SEND_DF },
		{ NEED_READ_ONLY, read_only && s->write },
		{ NEED_WRITABLE, !read_only && !f->unsaved },
		{ NEED_WRITE, s->write },
		{ NEED_SLOW, s->slow },
	};
	unsigned have = 0;

	for (unsigned i = 0; i < sizeof facts / sizeof *facts; i++)
		have |= facts[i].there ? facts[i].need : 0;
	return have;
}

static const char *
missing(unsigned lacks)
{
	for (unsigned i = 0; i < sizeof needs / sizeof *needs; i++) {
		if (lacks & needs[i].need)
			return needs[i].missing;
	}
	return NULL;
}

/* ---- rows and results ------------------------------------------------------------ */

static const char *const level_names[] = {
	[PROBE_MUST] = "MUST",
	[PROBE_SHOULD] = "SHOULD",
	[PROBE_EXTENSION] = "extension",
	[PROBE_POLICY] = "policy",
};

enum outcome { OK, FAILED, WARN, NOT_APPLICABLE, EXPECTED, OUTCOMES };

static const char *const outcome_names[] = {
	[OK] = "ok",
	[FAILED] = "failed",
	[WARN] = "warn",
	[NOT_APPLICABLE] = "n/a",
	[EXPECTED] = "expected",
};

#define CONNECTIONS (2 * PROBE_HEADERS + 1) /* transports and headers, and the wire */

struct result {
	const struct probe_row *row;
	enum outcome outcome;
	bool passes_now;               /* though a miss was expected */
	char reason[sizeof box->text]; /* not applicable */
	struct {
		const char *on;
		char text[sizeof box->text];
	} misses[CONNECTIONS];
	unsigned miss_count;
};

static const char *
connection_name(const struct probe *p, unsigned on)
{
	static const char *const names[2][PROBE_HEADERS] = {
		{ "plain compact", "plain structured", "plain extended" },
		{ "TLS compact", "TLS structured", "TLS extended" },
	};

	if (on == ON_WIRE)
		return "wire";
	if (on == ON_HANDSHAKE)
		return p->tls ? "TLS" : "plain";
	return names[p->tls][p->headers];
}

/* One assertion on one kind of connection. */
static void
try(struct result *r, const struct probe *p, unsigned on, const struct settings *s, bool *ran)
{
	unsigned lacks = r->row->needs & ~available(p, s);
	bool hung;

	if (lacks == 0 && (on & ON_ALL) != 0 && p->found->size < 4096)
		snprintf(r->reason, sizeof r->reason, "the export is too small");
	else if (lacks != 0)
		snprintf(r->reason, sizeof r->reason, "%s", missing(lacks));
	if (lacks != 0 || ((on & ON_ALL) != 0 && p->found->size < 4096))
		return;
	run(r->row->run, p, r->row->needs & NEED_SLOW ? 120 : (unsigned)s->seconds);
	if (box->verdict == VERDICT_NONE) {
		memcpy(r->reason, box->text, sizeof r->reason);
		return;
	}
	*ran = true;
	if (box->verdict == VERDICT_OK)
		return;
	hung = box->verdict != VERDICT_FAILED;
	r->misses[r->miss_count].on = connection_name(p, on);
	memcpy(r->misses[r->miss_count++].text, box->text, sizeof box->text);
	/* To hang, or not to be there any more, is worse than any answer. */
	if (hung || r->row->level == PROBE_MUST || r->row->level == PROBE_EXTENSION)
		r->outcome = FAILED;
	else if (r->outcome != FAILED)
		r->outcome = WARN;
}

static bool
is_expected(const struct settings *s, const char *name)
{
	for (unsigned i = 0; i < s->expected_count; i++) {
		if (strcmp(s->expected[i], name) == 0)
			return true;
	}
	return false;
}

static struct result
judge(const struct probe_row *row, const struct probe *all, const struct settings *s)
{
	struct result r = { .row = row, .outcome = OK };
	struct probe p = *all;
	bool ran = false;

	snprintf(r.reason, sizeof r.reason, "no %s",
		 row->on & ON_STRUCTURED ? "structured replies" : "extended headers");

	p.tls = false;
	p.headers = COMPACT;
	if (row->on & ON_WIRE)
		try(&r, &p, ON_WIRE, s, &ran);
	for (unsigned tls = 0; tls <= 1; tls++) {
		p.tls = tls;
		p.headers = COMPACT;
		if (!(tls ? p.found->tls : p.found->plain))
			continue;
		if (row->on & ON_HANDSHAKE)
			try(&r, &p, ON_HANDSHAKE, s, &ran);
		for (; p.headers < PROBE_HEADERS; p.headers++) {
			if ((p.headers == STRUCTURED && !p.found->structured) ||
			    (p.headers == EXTENDED && !p.found->extended))
				continue;
			if (row->on & ON_COMPACT << p.headers)
				try(&r, &p, ON_COMPACT << p.headers, s, &ran);
		}
	}
	if (!ran)
		r.outcome = NOT_APPLICABLE;
	if (is_expected(s, row->name)) {
		r.passes_now = r.outcome == OK;
		if (r.outcome == FAILED || r.outcome == WARN)
			r.outcome = EXPECTED;
	}
	return r;
}

/* ---- reports --------------------------------------------------------------------- */

static void
print_row(const char *word, const struct probe_row *row)
{
	printf("%-9s %3u %-22s %s\n", word, row->number, row->name, row->sentence);
}

static void
print_result(const struct result *r)
{
	print_row(outcome_names[r->outcome], r->row);
	if (r->outcome == NOT_APPLICABLE)
		printf("%14s%s\n", "", r->reason);
	if (r->passes_now)
		printf("%14sit was expected to miss this\n", "");
	for (unsigned i = 0; i < r->miss_count; i++)
		printf("%14s%s: %s\n", "", r->misses[i].on, r->misses[i].text);
}

static json_t *
result_json(const struct result *r)
{
	json_t *misses = json_array();
	json_t *o = json_pack("{s:i s:s s:s s:s s:s s:b s:o}", "number", (int)r->row->number,
			      "name", r->row->name, "level", level_names[r->row->level], "sentence",
			      r->row->sentence, "result", outcome_names[r->outcome], "passes_now",
			      r->passes_now, "misses", misses);

	for (unsigned i = 0; i < r->miss_count; i++)
		json_array_append_new(misses, json_pack("{s:s s:s}", "connection", r->misses[i].on,
							"text", r->misses[i].text));
	if (r->outcome == NOT_APPLICABLE)
		json_object_set_new(o, "reason", json_string(r->reason));
	return o;
}

static json_t *
survey_json(const struct probe *p)
{
	const struct probe_survey *f = p->found;
	json_t *connections = json_array();

	for (unsigned tls = 0; tls <= 1; tls++) {
		for (enum probe_headers h = COMPACT; h <= EXTENDED; h++) {
			struct probe one = { .tls = tls, .headers = h };

			if ((tls ? f->tls : f->plain) && (h != STRUCTURED || f->structured) &&
			    (h != EXTENDED || f->extended))
				json_array_append_new(connections,
						      json_string(
							      connection_name(&one, ON_COMPACT)));
		}
	}
	return json_pack("{s:s s:I s:i s:[I,I,I] s:o}", "export", p->uri->export, "size",
			 (json_int_t)f->size, "flags", (int)f->flags[COMPACT], "block_sizes",
			 (json_int_t)f->min, (json_int_t)f->preferred, (json_int_t)f->max,
			 "connections", connections);
}

static void
print_survey(const struct probe *p)
{
	json_t *o = survey_json(p), *one;
	size_t i;

	printf("export \"%s\": %llu bytes, flags %#x, blocks %u/%u/%u\nconnections: ",
	       p->uri->export, (unsigned long long)p->found->size, p->found->flags[COMPACT],
	       p->found->min, p->found->preferred, p->found->max);
	json_array_foreach(json_object_get(o, "connections"), i, one)
		printf("%s%s", i > 0 ? ", " : "", json_string_value(one));
	printf("\n\n");
	json_decref(o);
}

struct tally {
	unsigned count[OUTCOMES], skipped_writes, passes_now;
};

static int
report(const struct tally *t, const struct settings *s, json_t *json)
{
	unsigned all = 0;
	int status = t->count[FAILED] > 0 || (s->strict && t->count[WARN] > 0) ? STATUS_MISSES
									       : STATUS_GOOD;

	for (unsigned i = 0; i < OUTCOMES; i++)
		all += t->count[i];
	if (json != NULL) {
		json_object_set_new(json, "summary",
				    json_pack("{s:i s:i s:i s:i s:i s:i}", "ok", (int)t->count[OK],
					      "failed", (int)t->count[FAILED], "warn",
					      (int)t->count[WARN], "n/a",
					      (int)t->count[NOT_APPLICABLE], "expected",
					      (int)t->count[EXPECTED], "passes_now",
					      (int)t->passes_now));
		json_object_set_new(json, "status", json_integer(status));
		json_dumpf(json, stdout, JSON_INDENT(2));
		printf("\n");
		return status;
	}
	printf("\n%u assertions: %u ok, %u failed, %u warn, %u not applicable", all, t->count[OK],
	       t->count[FAILED], t->count[WARN], t->count[NOT_APPLICABLE]);
	if (t->skipped_writes > 0)
		printf(" (%u of them without --write)", t->skipped_writes);
	if (t->count[EXPECTED] > 0)
		printf(", %u expected misses", t->count[EXPECTED]);
	if (t->passes_now > 0)
		printf(", %u that were expected to miss", t->passes_now);
	printf("\n");
	return status;
}

/* ---- command line ---------------------------------------------------------------- */

static const struct probe_row *const tables[] = { probe_handshake_rows, probe_transmission_rows };

#define for_each_row(row) \
	for (unsigned t_ = 0; t_ < sizeof tables / sizeof *tables; t_++) \
		for (const struct probe_row *row = tables[t_]; row->name != NULL; row++)

#define ROW(field) offsetof(struct settings, field)
static const struct pl_option probe_options[] = {
	{ "list", PL_OPT_BOOL, ROW(list), "", NULL, false,
	  "show the assertions, with their levels, and end" },
	{ "only", PL_OPT_STRING, ROW(only), "PATTERN", NULL, false,
	  "only names or numbers that match (* ? [])" },
	{ "write", PL_OPT_BOOL, ROW(write), "", NULL, false,
	  "also those that write; they put back what was" },
	{ "slow", PL_OPT_BOOL, ROW(slow), "", NULL, false, "also those that wait for minutes" },
	{ "strict", PL_OPT_BOOL, ROW(strict), "", NULL, false,
	  "a SHOULD or policy that is missed counts, too" },
	{ "expect", PL_OPT_STRING, ROW(expect), "FILE", NULL, false,
	  "a name a line: known misses, which do not count" },
	{ "timeout", PL_OPT_UINT, ROW(seconds), "SECONDS", "10", false,
	  "how long an assertion may take" },
	{ "json", PL_OPT_BOOL, ROW(json), "", NULL, false, "one JSON object instead of lines" },
	{ "help", PL_OPT_BOOL, ROW(help), "", NULL, false, "show this" },
	PL_OPTION_END,
};
#undef ROW

static int
usage(void)
{
	char *rows = pl_option_rows(probe_options, "  --", " ");

	printf("usage: platter probe [OPTION...] URI\n\n"
	       "Holds an NBD server to the protocol. URI: nbd://HOST[:PORT]/EXPORT,\n"
	       "nbd+unix:///EXPORT?socket=PATH, or nbds for TLS, with the parameters\n"
	       "tls-certificates=DIR or tls-psk-file=FILE, and tls-hostname=NAME.\n\n%s\n"
	       "Status: 0 no MUST was missed, 1 some were, 2 it could not be tried.\n",
	       rows != NULL ? rows : "");
	free(rows);
	return STATUS_GOOD;
}

static int
complain(const char *what)
{
	fprintf(stderr, "platter probe: %s\n", what);
	return STATUS_CANNOT;
}

static bool
is_row(const char *name)
{
	for_each_row(row)
	{
		if (strcmp(row->name, name) == 0)
			return true;
	}
	return false;
}

static int
read_expected(struct settings *s)
{
	FILE *file = fopen(s->expect, "re");
	char *line = NULL;
	size_t capacity = 0;
	int error = 0;

	if (file == NULL) {
		fprintf(stderr, "platter probe: %s: %s\n", s->expect, strerror(errno));
		return -1;
	}
	while (error == 0 && getline(&line, &capacity, file) != -1) {
		char *name = line + strspn(line, " \t"), **grown;

		name[strcspn(name, " \t\n#")] = '\0';
		if (*name == '\0')
			continue;
		if (!is_row(name)) {
			fprintf(stderr, "platter probe: %s: no assertion '%s'\n", s->expect, name);
			error = -1;
			break;
		}
		grown = realloc(s->expected, (s->expected_count + 1) * sizeof *grown);
		if (grown == NULL || (grown[s->expected_count] = strdup(name)) == NULL)
			abort();
		s->expected = grown;
		s->expected_count++;
	}
	free(line);
	fclose(file);
	return error;
}

/* Returns -1 to go on, or an exit status. The settings point into *params. */
static int
parse(int argc, char **argv, struct settings *s, struct pl_params *params)
{
	if (tool_options(argc, argv, probe_options, params, s) != 0)
		return STATUS_CANNOT;
	if (s->help)
		return usage();
	if (s->seconds < 1 || s->seconds > 3600)
		return complain("--timeout is from 1 to 3600");
	if (!s->list && optind + 1 != argc)
		return complain("name one URI; --help");
	return -1;
}

static bool
is_wanted(const struct settings *s, const struct probe_row *row)
{
	char number[16];

	snprintf(number, sizeof number, "%u", row->number);
	return s->only == NULL || fnmatch(s->only, row->name, 0) == 0 ||
	       fnmatch(s->only, number, 0) == 0;
}

/* Else nothing would be missed, since nothing was tried. */
static bool
any_is_wanted(const struct settings *s)
{
	for_each_row(row)
	{
		if (is_wanted(s, row))
			return true;
	}
	fprintf(stderr, "platter probe: --only '%s' fits no assertion; --list shows them\n",
		s->only);
	return false;
}

/* A step that all else rests on. */
static bool
must_run(const char *what, void (*function)(const struct probe *p), const struct probe *p,
	 const struct settings *s)
{
	run(function, p, 6 * (unsigned)s->seconds);
	if (box->verdict == VERDICT_OK)
		return true;
	fprintf(stderr, "platter probe: %s: %s\n", what, box->text);
	return false;
}

static int
probe(const struct settings *s, const struct nbd_uri *uri)
{
	struct probe p = { .uri = uri,
			   .found = share(sizeof *p.found),
			   .saved = share(PROBE_WINDOW) };
	struct tally tally = { 0 };
	json_t *json = NULL, *list = NULL;

	if (!must_run("survey", survey, &p, s))
		return box->verdict == VERDICT_CANNOT ? STATUS_CANNOT : STATUS_MISSES;
	p.tls = !p.found->plain;
	p.headers = p.found->structured ? STRUCTURED : COMPACT;
	if (s->write && (probe_flags(&p) & NBD_FLAG_READ_ONLY) == 0)
		p.found->unsaved = !must_run("saving what is to be written over", save, &p, s);
	tally.count[FAILED] += p.found->unsaved;
	if (s->json) {
		json = survey_json(&p);
		list = json_array();
		json_object_set_new(json, "assertions", list);
	} else {
		print_survey(&p);
	}
	for_each_row(row)
	{
		struct result r;

		if (!is_wanted(s, row) || interrupted)
			continue;
		r = judge(row, &p, s);
		tally.count[r.outcome]++;
		tally.passes_now += r.passes_now;
		tally.skipped_writes +=
			r.outcome == NOT_APPLICABLE && !s->write && (row->needs & NEED_WRITE);
		if (s->json)
			json_array_append_new(list, result_json(&r));
		else
			print_result(&r);
	}
	if (p.found->window > 0 && !p.found->unsaved &&
	    !must_run("putting back what was written over", restore, &p, s))
		tally.count[FAILED]++;
	if (interrupted)
		return STATUS_CANNOT;
	return report(&tally, s, json);
}

static int
list_rows(const struct settings *s)
{
	for_each_row(row)
	{
		if (is_wanted(s, row))
			print_row(level_names[row->level], row);
	}
	return STATUS_GOOD;
}

static int
probe_uri(const char *text, struct settings *s)
{
	struct nbd_uri uri;
	struct pl_error err;
	int status;

	if (nbd_uri_parse(&uri, text, &err) != 0)
		return complain(err.text);
	box = share(sizeof *box);
	signal(SIGINT, interrupt);
	signal(SIGTERM, interrupt);
	status = s->expect != NULL && read_expected(s) != 0 ? STATUS_CANNOT : probe(s, &uri);
	nbd_uri_free(&uri);
	for (unsigned i = 0; i < s->expected_count; i++)
		free(s->expected[i]);
	free(s->expected);
	return status;
}

int
tool_probe(int argc, char **argv)
{
	struct pl_params *params = pl_params_new();
	struct settings s = { 0 };
	int status;

	if (params == NULL)
		return complain("out of memory");
	status = parse(argc, argv, &s, params);
	if (status == -1) {
		if (!any_is_wanted(&s))
			status = STATUS_CANNOT;
		else
			status = s.list ? list_rows(&s) : probe_uri(argv[optind], &s);
	}
	pl_params_free(params);
	return status;
}
