/*
 * control.c - the control socket.
 *
 * The good path: a line comes in, its command is looked up in the table below, and the answer
 * goes out as a line; then the next line is looked for. A client has one receive or one send
 * under way and nothing besides, so that it costs one line and one answer whatever it does.
 *
 * What can go wrong: a line is too long (skipped to its end and refused), is no JSON or asks
 * for what is not there (refused; the connection goes on), a client does not read its answer
 * (ended after ANSWER_PATIENCE), there are too many (the longest silent one is ended).
 */
#include "control.h"

#include "catalog.h"
#include "clients.h"
#include "json-text.h"
#include "listener.h"
#include "metrics.h"
#include "snapshot.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CLIENTS_MAX     32
#define ANSWER_PATIENCE UINT64_C(10000000000) /* nanoseconds without any progress */
#define TICK            UINT64_C(1000000000)

struct asker {
	struct control *control;
	int fd;
	struct pl_io io;
	struct iovec iov;
	uint64_t since; /* stats_now() when it last got on */
	bool skipping;  /* to the end of a line that is too long */
	bool cut;
	bool then_stop; /* the server, once this is answered */
	char *answer;   /* being sent, or NULL */
	size_t have;    /* of line */
	struct asker *next;
	char line[CONTROL_LINE_MAX];
};

struct control {
	struct control_settings settings;
	uint64_t started;
	struct listener *listeners, *metrics_listeners;
	struct metrics *metrics;
	struct asker *askers;
	struct pl_io tick;
	bool ticking;

	unsigned busy; /* what must end before this may: listeners, metrics, askers, tick */
	bool stopping;
	void (*stopped)(void *user);
	void *stopped_user;
	struct pl_work begin_work, stopped_work;
};

/* A request, while it is carried out. */
struct control_call {
	struct control *control;
	const json_t *request;
	struct pl_error err;
	bool then_stop;
};

/* ---- arguments ------------------------------------------------------------------- */

static const struct control_argument *
argument_named(const struct control_command *c, const char *name)
{
	for (const struct control_argument *a = c->arguments; a->name != NULL; a++)
		if (strcmp(a->name, name) == 0)
			return a;
	return NULL;
}

static const struct {
	const char *name, *words;
} types[] = {
	[CONTROL_TEXT] = { "text", "text" },
	[CONTROL_NUMBER] = { "number", "a whole number" },
	[CONTROL_BOOL] = { "bool", "true or false" },
};

static bool
type_is(enum control_type type, const json_t *value)
{
	switch (type) {
	case CONTROL_TEXT: return json_is_string(value);
	case CONTROL_NUMBER: return json_is_integer(value);
	case CONTROL_BOOL: return json_is_boolean(value);
	}
	return false;
}

/* After this the arguments are those of the table. */
static int
check_arguments(const struct control_command *c, const json_t *request, struct pl_error *err)
{
	const char *key;
	json_t *value;

	json_object_foreach((json_t *)request, key, value)
	{
		const struct control_argument *a = argument_named(c, key);

		if (strcmp(key, "command") == 0)
			continue;
		if (a == NULL)
			return pl_error_say(err, -EINVAL, "%s: it takes no \"%s\"", c->name, key);
		if (!type_is(a->type, value))
			return pl_error_say(err, -EINVAL, "%s: \"%s\" is to be %s", c->name, key,
					    types[a->type].words);
	}
	for (const struct control_argument *a = c->arguments; a->name != NULL; a++)
		if (a->required && json_object_get(request, a->name) == NULL)
			return pl_error_say(err, -EINVAL, "%s: \"%s\" is missing: %s", c->name,
					    a->name, types[a->type].words);
	return 0;
}

static bool
is_set(const struct control_call *call, const char *name)
{
	return json_is_true(json_object_get(call->request, name));
}

/* ---- JSON ------------------------------------------------------------------------ */

/* Both give what they got, with more in it; NULL when there was no memory, then or before. */

static json_t *
with(json_t *object, const char *key, json_t *value)
{
	if (json_object_set_new(object, key, value) == 0)
		return object;
	json_decref(object);
	return NULL;
}

static json_t *
append(json_t *list, json_t *value)
{
	if (json_array_append_new(list, value) == 0)
		return list;
	json_decref(list);
	return NULL;
}

static json_t *
number(uint64_t n)
{
	return json_integer((json_int_t)n);
}

/* Members of a struct as an object. */
struct field {
	const char *name; /* NULL: the end */
	enum { TEXT /* NULL: null */, YES_NO, UINT32, UINT64 } type;
	size_t at;
};

static json_t *
field_json(const struct field *f, const void *from)
{
	const void *at = (const char *)from + f->at;
	const char *text;

	switch (f->type) {
	case TEXT: text = *(char *const *)at; return text != NULL ? json_string(text) : json_null();
	case YES_NO: return json_boolean(*(const bool *)at);
	case UINT32: return number(*(const uint32_t *)at);
	case UINT64: return number(*(const uint64_t *)at);
	}
	return NULL;
}

static json_t *
fields_json(const struct field *fields, const void *from)
{
	json_t *object = json_object();

	for (const struct field *f = fields; f->name != NULL; f++)
		object = with(object, f->name, field_json(f, from));
	return object;
}

/* ---- commands -------------------------------------------------------------------- */

static json_t *
done(const struct control_call *call)
{
	return json_pack("{s:O}", "done", json_object_get(call->request, "command"));
}

static json_t *
arguments_json(const struct control_command *c)
{
	json_t *list = json_array();

	for (const struct control_argument *a = c->arguments; a->name != NULL; a++)
		list = append(list, json_pack("{s:s, s:s, s:b}", "name", a->name, "type",
					      types[a->type].name, "required", a->required));
	return list;
}

static json_t *
run_help(struct control_call *call)
{
	json_t *list = json_array();

	(void)call;
	for (const struct control_command *c = control_commands; c->name != NULL; c++)
		list = append(list, json_pack("{s:s, s:s, s:o}", "name", c->name, "help", c->help,
					      "arguments", arguments_json(c)));
	return with(json_object(), "commands", list);
}

static double
uptime(const struct control *control)
{
	return (double)(stats_now() - control->started) / 1e9;
}

static json_t *
run_version(struct control_call *call)
{
	return json_pack("{s:s, s:i, s:f}", "version", PACKAGE_VERSION, "pid", (int)getpid(),
			 "uptime", uptime(call->control));
}

static json_t *
capabilities_json(unsigned capabilities)
{
	static const struct {
		enum pl_capability bit;
		const char *name;
	} names[] = {
		{ PL_CAP_WRITE, "write" },
		{ PL_CAP_FLUSH, "flush" },
		{ PL_CAP_FUA, "fua" },
		{ PL_CAP_ZERO, "zero" },
		{ PL_CAP_FAST_ZERO, "fast_zero" },
		{ PL_CAP_TRIM, "trim" },
		{ PL_CAP_CACHE, "cache" },
		{ PL_CAP_EXTENTS, "extents" },
		{ PL_CAP_MULTI_CONN, "multi_conn" },
		{ PL_CAP_ROTATIONAL, "rotational" },
		{ PL_CAP_WRITE_THROUGH, "write_through" },
		{ PL_CAP_UNMAP, "unmap" },
		{ PL_CAP_UNMAP_ZEROES, "unmap_zeroes" },
	};
	json_t *list = json_array();

	for (unsigned i = 0; i < sizeof names / sizeof *names; i++)
		if ((capabilities & names[i].bit) != 0)
			list = append(list, json_string(names[i].name));
	return list;
}

/* Pairs: the end of a bucket in nanoseconds (null: there is none), and how many are in it. */
static json_t *
histogram_json(const struct stats_op *op)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < STATS_BUCKETS; i++) {
		bool last = i == STATS_BUCKETS - 1;

		if (op->latency[i] == 0)
			continue;
		list = append(list, append(append(json_array(),
						  last ? json_null() : number(stats_bucket_end(i))),
					   number(op->latency[i])));
	}
	return list;
}

static json_t *
errors_json(const struct stats_op *op)
{
	json_t *object = json_object();

	for (unsigned e = 0; e < STATS_ERRORS; e++)
		object = with(object, stats_error_name(e), number(op->errors[e]));
	return object;
}

static json_t *
latency_json(const struct stats_op *op)
{
	static const struct {
		const char *name;
		double part;
	} percentiles[] = { { "p50", 0.5 }, { "p90", 0.9 }, { "p99", 0.99 }, { "p999", 0.999 } };
	uint64_t mean = op->count > 0 ? op->nanoseconds / op->count : 0;
	json_t *object = with(json_object(), "mean", number(mean));

	for (unsigned i = 0; i < sizeof percentiles / sizeof *percentiles; i++)
		object = with(object, percentiles[i].name,
			      number(stats_percentile(op, percentiles[i].part)));
	return object;
}

static json_t *
operation_json(const struct stats_op *op, bool histogram)
{
	json_t *object = json_object();

	object = with(object, "count", number(op->count));
	object = with(object, "bytes", number(op->bytes));
	object = with(object, "errors", errors_json(op));
	object = with(object, "latency", latency_json(op));
	if (histogram)
		object = with(object, "histogram", histogram_json(op));
	return object;
}

static json_t *
operations_json(const struct stats *stats, bool histograms)
{
	json_t *object = json_object();

	for (unsigned k = 0; k < STATS_KINDS; k++)
		object =
			with(object, stats_kind_name(k), operation_json(&stats->op[k], histograms));
	return object;
}

static json_t *
export_json(const struct offer_state *o, bool histograms)
{
	static const char *const access[] = {
		[ACCESS_SHARED] = "shared",
		[ACCESS_SINGLE_WRITER] = "single-writer",
		[ACCESS_EXCLUSIVE] = "exclusive",
	};
	static const char *const tls[] = {
		[TLS_OFF] = "off", [TLS_OPTIONAL] = "optional", [TLS_REQUIRED] = "required"
	};
#define AT(member) offsetof(struct offer_state, member)
	static const struct field fields[] = {
		{ "name", TEXT, AT(name) },
		{ "description", TEXT, AT(description) },
		{ "image", TEXT, AT(image) },
		{ "error", TEXT, AT(error) },
		{ "directory", YES_NO, AT(directory) },
		{ "open", YES_NO, AT(open) },
		{ "failed", YES_NO, AT(failed) },
		{ "retired", YES_NO, AT(retired) },
		{ "read_only", YES_NO, AT(read_only) },
		{ "connections", UINT32, AT(connections) },
		{ NULL, 0, 0 },
	};
	static const struct field geometry[] = {
		{ "size", UINT64, AT(geometry.size) },
		{ "logical_block", UINT32, AT(geometry.logical_block) },
		{ "physical_block", UINT32, AT(geometry.physical_block) },
		{ "preferred", UINT32, AT(geometry.preferred) },
		{ NULL, 0, 0 },
	};
	static const struct field counters[] = {
		{ "reads", UINT64, AT(counters.reads) },
		{ "writes", UINT64, AT(counters.writes) },
		{ "zeroes", UINT64, AT(counters.zeroes) },
		{ "trims", UINT64, AT(counters.trims) },
		{ "flushes", UINT64, AT(counters.flushes) },
		{ "fua_native", UINT64, AT(counters.fua_native) },
		{ "committed", UINT64, AT(counters.committed) },
		{ "groups", UINT64, AT(counters.groups) },
		{ "errors", UINT64, AT(counters.errors) },
		{ NULL, 0, 0 },
	};
#undef AT
	json_t *object = fields_json(fields, o);

	object = with(object, "access", json_string(access[o->access]));
	object = with(object, "tls", json_string(tls[o->tls]));
	object = with(object, "geometry", fields_json(geometry, o));
	object = with(object, "capabilities", capabilities_json(o->capabilities));
	object = with(object, "counters", fields_json(counters, o));
	return with(object, "operations", operations_json(&o->stats, histograms));
}

static json_t *
run_exports(struct control_call *call)
{
	struct control *control = call->control;
	bool histograms = is_set(call, "histograms");
	json_t *list = json_array();
	struct snapshot s;

	if (snapshot_take(&s, control->settings.catalog, NULL, NULL) != 0) {
		json_decref(list);
		return NULL;
	}
	for (size_t i = 0; i < s.export_count; i++)
		list = append(list, export_json(&s.exports[i], histograms));
	snapshot_free(&s);
	return json_pack("{s:f, s:o}", "uptime", uptime(control), "exports", list);
}

static json_t *
connection_json(const struct connection_state *c)
{
#define AT(member) offsetof(struct connection_state, member)
	static const struct field fields[] = {
		{ "id", UINT64, AT(id) },
		{ "peer", TEXT, AT(peer) },
		{ "export", TEXT, AT(export) },
		{ "target", TEXT, AT(target) },
		{ "initiator", TEXT, AT(initiator) },
		{ "tls", YES_NO, AT(tls) },
		{ "subject", TEXT, AT(subject) },
		{ "fingerprint", TEXT, AT(fingerprint) },
		{ "psk", TEXT, AT(psk) },
		{ "requests", UINT64, AT(requests) },
		{ "received", UINT64, AT(received) },
		{ "sent", UINT64, AT(sent) },
		{ NULL, 0, 0 },
	};
#undef AT
	json_t *object = fields_json(fields, c);
	char since[32];
	struct tm tm;

	gmtime_r(&c->since.tv_sec, &tm);
	strftime(since, sizeof since, "%Y-%m-%dT%H:%M:%SZ", &tm);
	object = with(object, "phase", json_string(snapshot_phase(c->phase)));
	return with(object, "since", json_string(since));
}

static json_t *
run_connections(struct control_call *call)
{
	json_t *list = json_array();
	struct snapshot s;

	if (snapshot_take(&s, NULL, NULL, call->control->settings.clients) != 0) {
		json_decref(list);
		return NULL;
	}
	for (size_t i = 0; i < s.connection_count; i++)
		list = append(list, connection_json(&s.connections[i]));
	snapshot_free(&s);
	return with(json_object(), "connections", list);
}

static json_t *
target_json(const struct target_state *t)
{
#define AT(member) offsetof(struct target_state, member)
	static const struct field fields[] = {
		{ "name", TEXT, AT(name) },
		{ "worker", UINT32, AT(worker) },
		{ "sessions", UINT32, AT(sessions) },
		{ "chap", YES_NO, AT(chap) },
		{ NULL, 0, 0 },
	};
#undef AT
#define AT(member) offsetof(struct lun_state, member)
	static const struct field lun_fields[] = {
		{ "lun", UINT32, AT(lun) },
		{ "export", TEXT, AT(export) },
		{ "up", YES_NO, AT(up) },
		{ "error", TEXT, AT(error) },
		{ NULL, 0, 0 },
	};
#undef AT
	json_t *luns = json_array();

	for (unsigned i = 0; i < t->lun_count; i++)
		luns = append(luns, fields_json(lun_fields, &t->luns[i]));
	return with(fields_json(fields, t), "luns", luns);
}

static json_t *
run_targets(struct control_call *call)
{
	json_t *list = json_array();
	struct snapshot s;

	if (snapshot_take(&s, NULL, call->control->settings.targets, NULL) != 0) {
		json_decref(list);
		return NULL;
	}
	for (size_t i = 0; i < s.target_count; i++)
		list = append(list, target_json(&s.targets[i]));
	snapshot_free(&s);
	return with(json_object(), "targets", list);
}

static struct metrics_sources
metrics_sources(const struct control *control)
{
	return (struct metrics_sources){ .catalog = control->settings.catalog,
					 .targets = control->settings.targets,
					 .clients = control->settings.clients,
					 .started = control->started };
}

static json_t *
run_metrics(struct control_call *call)
{
	const struct metrics_sources sources = metrics_sources(call->control);
	char *page = metrics_page(&sources);
	json_t *answer = page != NULL ? json_pack("{s:s}", "metrics", page) : NULL;

	free(page);
	return answer;
}

static json_t *
run_reload(struct control_call *call)
{
	const struct control_settings *s = &call->control->settings;

	return s->reload(s->user, &call->err) == 0 ? done(call) : NULL;
}

static json_t *
run_resize(struct control_call *call)
{
	const struct control_settings *s = &call->control->settings;
	const char *name = json_string_value(json_object_get(call->request, "export"));

	return s->resize(s->user, name, &call->err) == 0 ? done(call) : NULL;
}

static json_t *
run_retire(struct control_call *call)
{
	const char *name = json_string_value(json_object_get(call->request, "export"));

	return catalog_retire(call->control->settings.catalog, name, is_set(call, "hard"),
			      &call->err) == 0
		       ? done(call)
		       : NULL;
}

static json_t *
run_disconnect(struct control_call *call)
{
	json_int_t id = json_integer_value(json_object_get(call->request, "id"));

	if (clients_order_id(call->control->settings.clients, (uint64_t)id, CLIENT_CUT,
			     "disconnected by the operator") == 0)
		return done(call);
	pl_error_say(&call->err, -ENOENT, "disconnect: there is no connection %lld", id);
	return NULL;
}

static json_t *
run_stop(struct control_call *call)
{
	call->then_stop = true;
	return done(call);
}

const struct control_command control_commands[] = {
	{ .name = "help", .help = "what can be asked", .run = run_help },
	{ .name = "version", .help = "version, process and uptime", .run = run_version },
	{ .name = "exports",
	  .help = "exports with their settings and counters",
	  .arguments = { { "histograms", CONTROL_BOOL, false } },
	  .run = run_exports },
	{ .name = "connections", .help = "connections and their peers", .run = run_connections },
	{ .name = "targets", .help = "iSCSI targets and their LUNs", .run = run_targets },
	{ .name = "metrics", .help = "the page of metrics as text", .run = run_metrics },
	{ .name = "reload", .help = "read the configuration again", .run = run_reload },
	{ .name = "resize",
	  .help = "look whether the image of an export has grown",
	  .arguments = { { "export", CONTROL_TEXT, true } },
	  .run = run_resize },
	{ .name = "retire",
	  .help = "take an export from the offer; hard: cut those who use it, too",
	  .arguments = { { "export", CONTROL_TEXT, true }, { "hard", CONTROL_BOOL, false } },
	  .run = run_retire },
	{ .name = "disconnect",
	  .help = "cut a connection",
	  .arguments = { { "id", CONTROL_NUMBER, true } },
	  .run = run_disconnect },
	{ .name = "stop", .help = "finish what is in flight and end the server", .run = run_stop },
	{ .name = NULL },
};

/* ---- a request, a line ----------------------------------------------------------- */

static const struct control_command *
command_named(const char *name)
{
	for (const struct control_command *c = control_commands; c->name != NULL; c++)
		if (strcmp(c->name, name) == 0)
			return c;
	return NULL;
}

/* The answer; NULL: call->err says why not. */
static json_t *
carry_out(struct control_call *call)
{
	const char *name = json_string_value(json_object_get(call->request, "command"));
	const struct control_command *c = name != NULL ? command_named(name) : NULL;
	json_t *answer;

	if (name == NULL) {
		pl_error_say(&call->err, -EINVAL, "expected {\"command\": \"NAME\", ...}");
		return NULL;
	}
	if (c == NULL) {
		pl_error_say(&call->err, -EINVAL,
			     "there is no command \"%s\"; {\"command\": \"help\"} lists them",
			     name);
		return NULL;
	}
	if (check_arguments(c, call->request, &call->err) != 0)
		return NULL;
	answer = c->run(call);
	if (answer == NULL && call->err.code == 0)
		pl_error_set(&call->err, -ENOMEM, "%s", name);
	return answer;
}

static json_t *
error_json(const struct pl_error *err)
{
	char *text = snapshot_text(err->text);
	json_t *answer = text != NULL ? json_pack("{s:s}", "error", text) : NULL;

	free(text);
	return answer;
}

/* Takes answer over. */
static char *
line_of(json_t *answer)
{
	char *text = json_text(answer, JSON_COMPACT | JSON_REAL_PRECISION(12)), *line = NULL;

	json_decref(answer);
	if (text != NULL && asprintf(&line, "%s\n", text) == -1)
		line = NULL;
	free(text);
	return line;
}

char *
control_answer(struct control *control, const char *line, size_t length, bool *then_stop)
{
	struct control_call call = { .control = control };
	json_t *request, *answer = NULL;
	json_error_t e;

	request = json_loadb(line, length, JSON_REJECT_DUPLICATES, &e);
	if (request == NULL) {
		pl_error_say(&call.err, -EINVAL, "the request is no JSON object: %s", e.text);
	} else {
		call.request = request;
		answer = carry_out(&call);
	}
	if (answer == NULL)
		answer = error_json(&call.err);
	json_decref(request);
	*then_stop = call.then_stop;
	return line_of(answer);
}

/* To a line that is too long. */
static char *
control_refusal(void)
{
	struct pl_error err;

	pl_error_say(&err, -E2BIG, "the request has more than %d bytes", CONTROL_LINE_MAX);
	return line_of(error_json(&err));
}

/* ---- clients --------------------------------------------------------------------- */

static void
control_idle(struct control *control)
{
	assert(control->busy > 0);
	if (--control->busy == 0)
		pl_loop_post(control->settings.loop, &control->stopped_work);
}

static void
asker_end(struct asker *a)
{
	struct control *control = a->control;
	struct asker **at = &control->askers;

	while (*at != a)
		at = &(*at)->next;
	*at = a->next;
	close(a->fd);
	free(a->answer);
	free(a);
	control_idle(control);
}

/* What is under way fails, and then it ends. */
static void
asker_cut(struct asker *a)
{
	a->cut = true;
	shutdown(a->fd, SHUT_RDWR);
}

static void asker_received(struct pl_io *io, int64_t result);
static void asker_sent(struct pl_io *io, int64_t result);

static void
asker_io(struct asker *a, enum pl_io_kind kind, void *data, size_t length, int flags,
	 void (*io_done)(struct pl_io *io, int64_t result))
{
	a->iov = (struct iovec){ data, length };
	a->io = (struct pl_io){ .kind = kind,
				.fd = a->fd,
				.slot = -1,
				.mode = flags,
				.iov = &a->iov,
				.iovcnt = 1,
				.done = io_done };
	pl_loop_io(a->control->settings.loop, &a->io);
}

/* Looks for a line in what is there, and for more where there is none. */
static void
asker_go_on(struct asker *a)
{
	char *end = memchr(a->line, '\n', a->have);
	size_t length;

	if (end != NULL) {
		length = (size_t)(end - a->line);
		a->answer = a->skipping
				    ? control_refusal()
				    : control_answer(a->control, a->line, length, &a->then_stop);
		a->skipping = false;
		a->have -= length + 1;
		memmove(a->line, end + 1, a->have);
		if (a->answer == NULL)
			asker_end(a);
		else
			asker_io(a, PL_IO_SEND, a->answer, strlen(a->answer), MSG_NOSIGNAL,
				 asker_sent);
		return;
	}
	if (a->have == sizeof a->line)
		a->skipping = true;
	if (a->skipping)
		a->have = 0;
	asker_io(a, PL_IO_RECV, a->line + a->have, sizeof a->line - a->have, 0, asker_received);
}

static void
asker_received(struct pl_io *io, int64_t result)
{
	struct asker *a = (struct asker *)((char *)io - offsetof(struct asker, io));

	if (result <= 0 || a->cut) {
		asker_end(a);
		return;
	}
	a->since = stats_now();
	a->have += (size_t)result;
	asker_go_on(a);
}

static void
asker_sent(struct pl_io *io, int64_t result)
{
	struct asker *a = (struct asker *)((char *)io - offsetof(struct asker, io));
	const struct control_settings *settings = &a->control->settings;
	bool stop = a->then_stop;

	if (result > 0 && (size_t)result < a->iov.iov_len && !a->cut) {
		a->since = stats_now();
		asker_io(a, PL_IO_SEND, (char *)a->iov.iov_base + result,
			 a->iov.iov_len - (size_t)result, MSG_NOSIGNAL, asker_sent);
		return;
	}
	if (result <= 0 || a->cut) {
		asker_end(a);
	} else {
		a->since = stats_now();
		free(a->answer);
		a->answer = NULL;
		a->then_stop = false;
		asker_go_on(a);
	}
	if (stop)
		settings->stop(settings->user);
}

/* Makes room for one more. */
static void
drop_the_longest_silent(struct control *control)
{
	struct asker *longest = NULL;
	unsigned count = 0;

	for (struct asker *a = control->askers; a != NULL; a = a->next) {
		if (a->cut)
			continue;
		count++;
		if (longest == NULL || a->since < longest->since)
			longest = a;
	}
	if (count >= CLIENTS_MAX)
		asker_cut(longest);
}

static void start_tick(struct control *control);

static void
control_accepted(void *user, int fd)
{
	struct control *control = user;
	struct asker *a;

	drop_the_longest_silent(control);
	a = malloc(sizeof *a);
	if (a == NULL) {
		log_error("control: a client: %s", strerror(ENOMEM));
		close(fd);
		return;
	}
	memset(a, 0, offsetof(struct asker, line));
	a->control = control;
	a->fd = fd;
	a->since = stats_now();
	a->next = control->askers;
	control->askers = a;
	control->busy++;
	if (!control->ticking)
		start_tick(control);
	asker_go_on(a);
}

static void
tick_done(struct pl_io *io, int64_t result)
{
	struct control *control = (struct control *)((char *)io - offsetof(struct control, tick));
	uint64_t now = stats_now();

	(void)result;
	control->ticking = false;
	for (struct asker *a = control->askers; a != NULL; a = a->next)
		if (a->answer != NULL && !a->cut && now - a->since > ANSWER_PATIENCE)
			asker_cut(a);
	if (control->askers != NULL && !control->stopping)
		start_tick(control);
	control_idle(control);
}

static void
start_tick(struct control *control)
{
	control->tick = (struct pl_io){
		.kind = PL_IO_DELAY, .fd = -1, .slot = -1, .length = TICK, .done = tick_done
	};
	control->ticking = true;
	control->busy++;
	pl_loop_io(control->settings.loop, &control->tick);
}

/* ---- making and ending ----------------------------------------------------------- */

static void
metrics_accepted(void *user, int fd)
{
	struct control *control = user;

	metrics_take(control->metrics, fd);
}

static void
control_part_stopped(void *user)
{
	control_idle(user);
}

static void
metrics_listeners_stopped(void *user)
{
	struct control *control = user;

	metrics_stop(control->metrics, control_part_stopped, control);
}

static void
control_stopped(struct pl_work *work)
{
	struct control *control =
		(struct control *)((char *)work - offsetof(struct control, stopped_work));

	control->stopped(control->stopped_user);
}

static void
control_begin(struct pl_work *work)
{
	struct control *control =
		(struct control *)((char *)work - offsetof(struct control, begin_work));
	struct pl_loop *loop = control->settings.loop;

	control->busy++; /* until it is stopped */
	if (control->listeners != NULL) {
		control->busy++;
		listeners_start(control->listeners, loop, control_accepted, control);
	}
	if (control->metrics != NULL) {
		control->busy++;
		metrics_start(control->metrics);
		listeners_start(control->metrics_listeners, loop, metrics_accepted, control);
	}
}

int
control_new(struct control **out, const char *socket, const char *metrics,
	    const struct control_settings *settings, struct pl_error *err)
{
	struct control *control = calloc(1, sizeof *control);
	int error = 0;

	if (control == NULL)
		return pl_error_set(err, -ENOMEM, "control");
	control->settings = *settings;
	control->started = stats_now();
	control->begin_work.run = control_begin;
	control->stopped_work.run = control_stopped;
	if (socket != NULL)
		error = listener_open(&(struct listener_settings){ .kind = LISTENER_UNIX,
								   .value = socket,
								   .where = "control",
								   .mode = 0600 },
				      &control->listeners, err);
	if (error == 0 && metrics != NULL)
		error = listener_open(&(struct listener_settings){ .kind = strchr(metrics, '/')
										   ? LISTENER_UNIX
										   : LISTENER_TCP,
								   .value = metrics,
								   .where = "metrics",
								   .mode = 0660 },
				      &control->metrics_listeners, err);
	if (error != 0) {
		control_free(control);
		return error;
	}
	*out = control;
	return 0;
}

int
control_start(struct control *control, struct pl_error *err)
{
	const struct control_settings *s = &control->settings;
	const struct metrics_sources sources = metrics_sources(control);
	int error = 0;

	if (control->metrics_listeners != NULL)
		error = metrics_new(&control->metrics, s->loop, &sources, err);
	if (error == 0)
		pl_loop_post(s->loop, &control->begin_work);
	return error;
}

void
control_stop(struct control *control, void (*stopped)(void *user), void *user)
{
	assert(!control->stopping);
	control->stopping = true;
	control->stopped = stopped;
	control->stopped_user = user;
	if (control->listeners != NULL)
		listeners_stop(control->listeners, control_part_stopped, control);
	if (control->metrics != NULL)
		listeners_stop(control->metrics_listeners, metrics_listeners_stopped, control);
	for (struct asker *a = control->askers; a != NULL; a = a->next)
		asker_cut(a);
	if (control->ticking)
		pl_loop_cancel(control->settings.loop, &control->tick);
	control_idle(control);
}

void
control_free(struct control *control)
{
	if (control == NULL)
		return;
	assert(control->busy == 0 && control->askers == NULL);
	metrics_free(control->metrics);
	listeners_free(control->listeners);
	listeners_free(control->metrics_listeners);
	free(control);
}
