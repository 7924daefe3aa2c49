/*
 * metrics.c - counters as Prometheus text, and the HTTP server for it.
 *
 * libmicrohttpd watches its sockets with an epoll of its own; the loop watches that, and a
 * delay stands for the library's time-outs. What can go wrong: a client is silent or does
 * not read (the library ends it), there are too many (the new one is closed).
 */
#include "metrics.h"

#include "snapshot.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <microhttpd.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- the page -------------------------------------------------------------------- */

static void
print_family(FILE *f, const char *name, const char *type, const char *help)
{
	fprintf(f, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void
print_label_value(FILE *f, const char *value)
{
	for (const char *c = value; *c != '\0'; c++) {
		switch (*c) {
		case '\n': fputs("\\n", f); break;
		case '"':
		case '\\': fputc('\\', f); /* fall through */
		default: fputc(*c, f);
		}
	}
}

/* Up to where more labels may follow. */
static void
print_sample(FILE *f, const char *name, const char *suffix, const struct offer_state *o)
{
	fprintf(f, "%s%s{export=\"", name, suffix);
	print_label_value(f, o->name);
	fputc('"', f);
}

static void
print_kind_sample(FILE *f, const char *name, const char *suffix, const struct offer_state *o,
		  enum stats_kind kind)
{
	print_sample(f, name, suffix, o);
	fprintf(f, ",kind=\"%s\"", stats_kind_name(kind));
}

static void
print_requests(FILE *f, const char *name, const struct offer_state *o)
{
	for (unsigned k = 0; k < STATS_KINDS; k++) {
		print_kind_sample(f, name, "", o, k);
		fprintf(f, "} %" PRIu64 "\n", o->stats.op[k].count);
	}
}

static void
print_bytes(FILE *f, const char *name, const struct offer_state *o)
{
	for (unsigned k = 0; k < STATS_KINDS; k++) {
		print_kind_sample(f, name, "", o, k);
		fprintf(f, "} %" PRIu64 "\n", o->stats.op[k].bytes);
	}
}

static void
print_errors(FILE *f, const char *name, const struct offer_state *o)
{
	for (unsigned k = 0; k < STATS_KINDS; k++) {
		for (unsigned e = 0; e < STATS_ERRORS; e++) {
			print_kind_sample(f, name, "", o, k);
			fprintf(f, ",error=\"%s\"} %" PRIu64 "\n", stats_error_name(e),
				o->stats.op[k].errors[e]);
		}
	}
}

/* A bound for each octave from 4 us to 2 s: buckets 8, 12, ... are the first above one. */
#define LE_FIRST 8
#define LE_LAST  84

/* Of kinds that were ever asked for. */
static void
print_latency(FILE *f, const char *name, const struct offer_state *o)
{
	for (unsigned k = 0; k < STATS_KINDS; k++) {
		const struct stats_op *op = &o->stats.op[k];
		uint64_t below = 0;

		for (unsigned i = 0; i < STATS_BUCKETS; i++) {
			below += op->latency[i];
			if (i % 4 != 0 || i < LE_FIRST || i > LE_LAST || op->count == 0)
				continue;
			print_kind_sample(f, name, "_bucket", o, k);
			fprintf(f, ",le=\"%.9f\"} %" PRIu64 "\n", (double)stats_bucket_end(i) / 1e9,
				below);
		}
		if (op->count == 0)
			continue;
		print_kind_sample(f, name, "_bucket", o, k);
		fprintf(f, ",le=\"+Inf\"} %" PRIu64 "\n", below);
		print_kind_sample(f, name, "_sum", o, k);
		fprintf(f, "} %.9f\n", (double)op->nanoseconds / 1e9);
		print_kind_sample(f, name, "_count", o, k);
		fprintf(f, "} %" PRIu64 "\n", below);
	}
}

static const struct {
	const char *name, *type, *help;
	void (*print)(FILE *f, const char *name, const struct offer_state *o);
} by_kind[] = {
	{ "platter_export_requests_total", "counter", "Requests answered.", print_requests },
	{ "platter_export_bytes_total", "counter", "Bytes of requests that succeeded.",
	  print_bytes },
	{ "platter_export_errors_total", "counter", "Requests answered with an error.",
	  print_errors },
	{ "platter_export_latency_seconds", "histogram", "From a request's arrival to its answer.",
	  print_latency },
};

static const struct {
	const char *name, *type, *help;
	enum { NUMBER, COUNT, YES_NO } as;
	size_t at;
} plain[] = {
	{ "platter_export_size_bytes", "gauge", "Size of the device.", NUMBER,
	  offsetof(struct offer_state, geometry.size) },
	{ "platter_export_open", "gauge", "1 while the device is open.", YES_NO,
	  offsetof(struct offer_state, open) },
	{ "platter_export_failed", "gauge", "1 after a sync has failed.", YES_NO,
	  offsetof(struct offer_state, failed) },
	{ "platter_export_connections", "gauge", "Connections that use it.", COUNT,
	  offsetof(struct offer_state, connections) },
	{ "platter_export_fua_native_total", "counter",
	  "FUA requests that the medium made durable by itself.", NUMBER,
	  offsetof(struct offer_state, counters.fua_native) },
	{ "platter_export_fua_committed_total", "counter",
	  "Requests that waited for a shared flush.", NUMBER,
	  offsetof(struct offer_state, counters.committed) },
	{ "platter_export_flush_groups_total", "counter",
	  "Shared flushes; committed by groups is the size of a group.", NUMBER,
	  offsetof(struct offer_state, counters.groups) },
};

/* Beside a retired one there may be another of its name: two series of one name are an error. */
static bool
is_shown(const struct offer_state *o)
{
	return !o->retired && !o->directory;
}

static void
print_exports(FILE *f, const struct snapshot *s)
{
	unsigned retired = 0;

	for (unsigned i = 0; i < sizeof plain / sizeof *plain; i++) {
		print_family(f, plain[i].name, plain[i].type, plain[i].help);
		for (size_t e = 0; e < s->export_count; e++) {
			const struct offer_state *o = &s->exports[e];
			const void *at = (const char *)o + plain[i].at;
			uint64_t value = plain[i].as == NUMBER  ? *(const uint64_t *)at
					 : plain[i].as == COUNT ? *(const unsigned *)at
								: *(const bool *)at;

			if (!is_shown(o))
				continue;
			print_sample(f, plain[i].name, "", o);
			fprintf(f, "} %" PRIu64 "\n", value);
		}
	}
	for (unsigned i = 0; i < sizeof by_kind / sizeof *by_kind; i++) {
		print_family(f, by_kind[i].name, by_kind[i].type, by_kind[i].help);
		for (size_t e = 0; e < s->export_count; e++)
			if (is_shown(&s->exports[e]))
				by_kind[i].print(f, by_kind[i].name, &s->exports[e]);
	}
	for (size_t e = 0; e < s->export_count; e++)
		retired += s->exports[e].retired;
	print_family(f, "platter_retired_exports", "gauge",
		     "Exports that are no longer on offer and still in use.");
	fprintf(f, "platter_retired_exports %u\n", retired);
}

static void
print_connections(FILE *f, const struct snapshot *s)
{
	unsigned phases[SNAPSHOT_PHASES] = { 0 };

	for (size_t i = 0; i < s->connection_count; i++)
		phases[s->connections[i].phase]++;
	print_family(f, "platter_connections", "gauge", "Connections by phase.");
	for (unsigned i = 0; i < SNAPSHOT_PHASES; i++)
		fprintf(f, "platter_connections{phase=\"%s\"} %u\n", snapshot_phase(i), phases[i]);
}

static void
print_targets(FILE *f, const struct snapshot *s)
{
	static const struct {
		const char *name, *help;
		size_t at;
	} gauges[] = {
		{ "platter_target_sessions", "iSCSI sessions of a target.",
		  offsetof(struct target_state, sessions) },
		{ "platter_target_luns", "LUNs of a target that are to be had.",
		  offsetof(struct target_state, luns_up) },
		{ "platter_target_luns_missing", "LUNs of a target that are not.",
		  offsetof(struct target_state, luns_missing) },
	};

	for (unsigned i = 0; i < sizeof gauges / sizeof *gauges; i++) {
		print_family(f, gauges[i].name, "gauge", gauges[i].help);
		for (size_t t = 0; t < s->target_count; t++)
			fprintf(f, "%s{target=\"%s\"} %u\n", gauges[i].name, s->targets[t].name,
				*(const unsigned *)((const char *)&s->targets[t] + gauges[i].at));
	}
}

char *
metrics_page(const struct metrics_sources *from)
{
	struct snapshot s;
	char *text = NULL;
	size_t size;
	FILE *f;

	if (snapshot_take(&s, from->catalog, from->targets, from->clients) != 0)
		return NULL;
	f = open_memstream(&text, &size);
	if (f != NULL) {
		print_family(f, "platter_build_info", "gauge", "Version of the server.");
		fprintf(f, "platter_build_info{version=\"%s\"} 1\n", PACKAGE_VERSION);
		print_family(f, "platter_uptime_seconds", "gauge",
			     "Time since the server started.");
		fprintf(f, "platter_uptime_seconds %.3f\n",
			(double)(stats_now() - from->started) / 1e9);
		print_connections(f, &s);
		print_targets(f, &s);
		print_exports(f, &s);
		if (fclose(f) != 0) {
			free(text);
			text = NULL;
		}
	}
	snapshot_free(&s);
	return text;
}

/* ---- HTTP ------------------------------------------------------------------------ */

#define HTTP_CONNECTIONS 32u
#define HTTP_TIMEOUT_S   10u
#define HTTP_MEMORY      ((size_t)16 << 10) /* for each connection's headers */
#define HTTP_TICK        1000u              /* milliseconds: the longest delay */

struct metrics {
	struct pl_loop *loop;
	struct metrics_sources sources;
	struct MHD_Daemon *daemon;
	struct pl_io poll, delay;
	struct pl_work again;
	bool polling, delaying, running_again, stopping;
	void (*stopped)(void *user);
	void *user;
};

/* Takes page over. */
static enum MHD_Result
http_answer(struct MHD_Connection *connection, unsigned status, char *page, const char *header,
	    const char *value)
{
	struct MHD_Response *response;
	enum MHD_Result result;

	if (page == NULL)
		return MHD_NO;
	response = MHD_create_response_from_buffer(strlen(page), page, MHD_RESPMEM_MUST_FREE);
	if (response == NULL) {
		free(page);
		return MHD_NO;
	}
	MHD_add_response_header(response, header, value);
	result = MHD_queue_response(connection, status, response);
	MHD_destroy_response(response);
	return result;
}

static enum MHD_Result
http_request(void *user, struct MHD_Connection *connection, const char *url, const char *method,
	     const char *version, const char *upload, size_t *upload_length, void **state)
{
	struct metrics *m = user;

	(void)version;
	(void)upload;
	if (strcmp(url, "/metrics") != 0)
		return http_answer(connection, MHD_HTTP_NOT_FOUND, strdup("the page is /metrics\n"),
				   "Content-Type", "text/plain");
	if (strcmp(method, MHD_HTTP_METHOD_GET) != 0)
		return http_answer(connection, MHD_HTTP_METHOD_NOT_ALLOWED, strdup(""), "Allow",
				   MHD_HTTP_METHOD_GET);
	/* First only the head is there. An answer now would end the connection, which a client
	 * that asks regularly wants to keep. */
	if (*state == NULL || *upload_length > 0) {
		*state = m;
		*upload_length = 0;
		return MHD_YES;
	}
	return http_answer(connection, MHD_HTTP_OK, metrics_page(&m->sources), "Content-Type",
			   "text/plain; version=0.0.4; charset=utf-8");
}

static void
end_when_idle(struct metrics *m)
{
	if (!m->polling && !m->delaying && !m->running_again)
		m->stopped(m->user);
}

static void
http_run(struct metrics *m)
{
	MHD_UNSIGNED_LONG_LONG wait;

	if (m->stopping) {
		end_when_idle(m);
		return;
	}
	MHD_run(m->daemon);
	if (!m->polling) {
		m->polling = true;
		pl_loop_io(m->loop, &m->poll);
	}
	if (MHD_get_timeout(m->daemon, &wait) != MHD_YES)
		return;
	if (wait == 0 && !m->running_again) {
		m->running_again = true;
		pl_loop_post(m->loop, &m->again);
	} else if (wait > 0 && !m->delaying) {
		m->delaying = true;
		m->delay.length = (wait < HTTP_TICK ? wait : HTTP_TICK) * 1000000;
		pl_loop_io(m->loop, &m->delay);
	}
}

static void
poll_done(struct pl_io *io, int64_t result)
{
	struct metrics *m = (struct metrics *)((char *)io - offsetof(struct metrics, poll));

	(void)result; /* the library finds out what there is */
	m->polling = false;
	http_run(m);
}

static void
delay_done(struct pl_io *io, int64_t result)
{
	struct metrics *m = (struct metrics *)((char *)io - offsetof(struct metrics, delay));

	(void)result;
	m->delaying = false;
	http_run(m);
}

static void
run_again(struct pl_work *work)
{
	struct metrics *m = (struct metrics *)((char *)work - offsetof(struct metrics, again));

	m->running_again = false;
	http_run(m);
}

int
metrics_new(struct metrics **out, struct pl_loop *loop, const struct metrics_sources *sources,
	    struct pl_error *err)
{
	struct metrics *m = calloc(1, sizeof *m);
	const union MHD_DaemonInfo *info;

	if (m == NULL)
		return pl_error_set(err, -ENOMEM, "metrics");
	*m = (struct metrics){ .loop = loop, .sources = *sources, .again.run = run_again };
	m->daemon =
		MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET, 0, NULL, NULL,
				 http_request, m, MHD_OPTION_CONNECTION_LIMIT, HTTP_CONNECTIONS,
				 MHD_OPTION_CONNECTION_TIMEOUT, HTTP_TIMEOUT_S,
				 MHD_OPTION_CONNECTION_MEMORY_LIMIT, HTTP_MEMORY, MHD_OPTION_END);
	if (m->daemon == NULL) {
		free(m);
		return pl_error_say(err, -ENOMEM, "metrics: libmicrohttpd does not start");
	}
	info = MHD_get_daemon_info(m->daemon, MHD_DAEMON_INFO_EPOLL_FD);
	m->poll = (struct pl_io){ .kind = PL_IO_POLL,
				  .fd = info->epoll_fd,
				  .slot = -1,
				  .mode = POLLIN,
				  .done = poll_done };
	m->delay = (struct pl_io){ .kind = PL_IO_DELAY, .fd = -1, .slot = -1, .done = delay_done };
	*out = m;
	return 0;
}

void
metrics_start(struct metrics *m)
{
	http_run(m);
}

void
metrics_take(struct metrics *m, int fd)
{
	struct sockaddr_storage address;
	socklen_t length = sizeof address;

	/* A failure shows as a client that is gone. */
	if (getpeername(fd, (struct sockaddr *)&address, &length) == -1)
		length = 0;
	MHD_add_connection(m->daemon, fd, (struct sockaddr *)&address, length);
	http_run(m);
}

void
metrics_stop(struct metrics *m, void (*stopped)(void *user), void *user)
{
	assert(m->polling && !m->stopping);
	m->stopping = true;
	m->stopped = stopped;
	m->user = user;
	pl_loop_cancel(m->loop, &m->poll);
	if (m->delaying)
		pl_loop_cancel(m->loop, &m->delay);
}

void
metrics_free(struct metrics *m)
{
	if (m == NULL)
		return;
	assert(!m->polling && !m->delaying && !m->running_again);
	MHD_stop_daemon(m->daemon);
	free(m);
}
