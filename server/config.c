/*
 * config.c - what the server is to do, put together from platter.conf and options.
 *
 * Each section, of a file or of the command line, is kept as it was written: pairs, and where
 * each of them stands, so that an error can tell. Pairs are checked one by one as they come,
 * a section when it is complete, and all of them together by config_finish().
 *
 * platter.conf is read by a small parser of our own. The library at hand (inih, as Debian
 * builds it) cuts values behind 194 bytes without a word, drops a section whose name is long,
 * and does not tell of a section that begins again; names of exports and paths have up to 4096
 * bytes here, and what was written wrong must be refused, not guessed.
 */
#include "config.h"

#include "nbd/protocol.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- tables ---------------------------------------------------------------------- */

#define TLS_WORDS "off|optional|required" /* enum tls_policy */

#define AT(field) offsetof(struct server_settings, field)
const struct pl_option server_options[] = {
	{ "loops", PL_OPT_UINT, AT(loops), NULL, "0", false, "serving threads; 0: one a CPU" },
	{ "memory", PL_OPT_SIZE, AT(memory), NULL, "128M", false, "each thread has for requests" },
	{ "depth", PL_OPT_UINT, AT(depth), NULL, "128", false, "requests of a client at once" },
	{ "poll", PL_OPT_BOOL, AT(poll), NULL, "on", false, "look a while before sleeping" },
	{ "max-connections", PL_OPT_UINT, AT(max_connections), NULL, "2048", false,
	  "in all; 0: no limit" },
	{ "max-connections-per-host", PL_OPT_UINT, AT(max_connections_per_host), "N", "0", false,
	  "0: no limit" },
	{ "handshake-timeout", PL_OPT_TIME, AT(handshake_timeout), NULL, "10s", false,
	  "until an export is chosen" },
	{ "list", PL_OPT_BOOL, AT(list), NULL, "on", false, "tell clients what there is" },
	{ "tls", PL_OPT_ENUM, AT(tls), TLS_WORDS, "off", false, "of all connections" },
	{ "tls-certificates", PL_OPT_STRING, AT(tls_certificates), "DIR", NULL, false,
	  "server-cert.pem, server-key.pem, ca-cert.pem" },
	{ "tls-psk", PL_OPT_STRING, AT(tls_psk), "FILE", NULL, false, "or pre-shared keys" },
	{ "tls-verify-peer", PL_OPT_BOOL, AT(tls_verify_peer), NULL, "off", false,
	  "clients need certificates" },
	{ "user", PL_OPT_STRING, AT(user), "NAME", NULL, false,
	  "become this one when all is open" },
	{ "group", PL_OPT_STRING, AT(group), "NAME", NULL, false, "and this, not the user's own" },
	{ "sandbox", PL_OPT_BOOL, AT(sandbox), NULL, "on", false, "give up what is not needed" },
	{ "reach", PL_OPT_STRING, AT(reach), "DIR[:DIR...]", NULL, false,
	  "where images of a reload may lie" },
	{ "control", PL_OPT_STRING, AT(control), "PATH", NULL, false,
	  "socket for orders and questions" },
	{ "metrics", PL_OPT_STRING, AT(metrics), "[HOST:]PORT|PATH", NULL, false,
	  "page for Prometheus" },
	{ "pidfile", PL_OPT_STRING, AT(pidfile), "FILE", NULL, false,
	  "gets the process's number when it serves" },
	PL_OPTION_END,
};
#undef AT

/* Of an export, the server's part; what is not here is the driver's. */
struct export_values {
	struct offer_settings offer;
	const char *subject, *fingerprint, *psk, *uid, *gid;
};

#define AT(field) offsetof(struct export_values, field)
const struct pl_option export_options[] = {
	{ "description", PL_OPT_STRING, AT(offer.description), NULL, NULL, false,
	  "for people, in the list" },
	{ "read-only", PL_OPT_BOOL, AT(offer.read_only), NULL, "off", false, "nobody writes" },
	{ "listed", PL_OPT_BOOL, AT(offer.listed), NULL, "on", false, "it is in the list" },
	{ "tls", PL_OPT_ENUM, AT(offer.tls), TLS_WORDS, NULL, false, "stricter than the server's" },
	{ "access", PL_OPT_ENUM, AT(offer.access), "shared|single-writer|exclusive", "shared",
	  false, "who may be there at a time" },
	{ "allow-subject", PL_OPT_STRING, AT(subject), "SUBJECT[;SUBJECT...]", NULL, false,
	  "whose certificate says so" },
	{ "allow-fingerprint", PL_OPT_STRING, AT(fingerprint), "SHA256[;SHA256...]", NULL, false,
	  "whose certificate is this" },
	{ "allow-psk", PL_OPT_STRING, AT(psk), "NAME[;NAME...]", NULL, false,
	  "who has that pre-shared key" },
	{ "allow-uid", PL_OPT_STRING, AT(uid), "USER[;USER...]", NULL, false,
	  "who comes by a unix socket" },
	{ "allow-gid", PL_OPT_STRING, AT(gid), "GROUP[;GROUP...]", NULL, false,
	  "who comes by a unix socket" },
	{ "max-connections", PL_OPT_UINT, AT(offer.max_connections), NULL, "0", false,
	  "0: no limit of its own" },
	PL_OPTION_END,
};
#undef AT

struct listener_values {
	const char *unix_path, *tcp, *vsock, *mode;
};

#define AT(field) offsetof(struct listener_values, field)
const struct pl_option listener_options[] = {
	{ "unix", PL_OPT_STRING, AT(unix_path), "PATH", NULL, false, "a unix socket" },
	{ "tcp", PL_OPT_STRING, AT(tcp), "[HOST:]PORT", NULL, false, "TCP; *: all addresses" },
	{ "vsock", PL_OPT_STRING, AT(vsock), "[CID:]PORT", NULL, false, "virtual machines" },
	{ "mode", PL_OPT_STRING, AT(mode), "OCTAL", "0600", false,
	  "who may connect to the unix socket" },
	PL_OPTION_END,
};
#undef AT

/* What a number may be, where that is less than any. */
static const struct {
	const char *key;
	uint64_t min, max;
	const char *is; /* for people */
} bounds[] = {
	{ "loops", 0, 64, "at most 64" },
	{ "memory", 2 * NBD_MAX_PAYLOAD, UINT64_C(1) << 40, "from 64M to 1T" },
	{ "depth", 1, 1024, "from 1 to 1024" },
	{ "max-connections", 0, 1000000, "at most 1000000" },
	{ "max-connections-per-host", 0, 1000000, "at most 1000000" },
	{ "handshake-timeout", 1000000, UINT64_C(3600000000000), "from 1ms to 3600s" },
};

/* ---- sections -------------------------------------------------------------------- */

enum section_kind { SECTION_SERVER, SECTION_EXPORT, SECTION_LISTENER };

union section_values {
	struct server_settings server;
	struct export_values export;
	struct listener_values listener;
};

static const struct {
	const char *word;
	const struct pl_option *options;
	bool drivers; /* other keys are a driver's */
	bool named, nameless;
} kinds[] = {
	[SECTION_SERVER] = { "server", server_options, .nameless = true },
	[SECTION_EXPORT] = { "export", export_options, true, true, true },
	[SECTION_LISTENER] = { "listener", listener_options, .named = true },
};

#define SECTION_PAIRS 64 /* as many as pl_params hold */

struct section {
	enum section_kind kind;
	bool typed; /* by the command line, not by a file */
	char *name;
	char *where;
	struct pl_params *params;
	char *places[SECTION_PAIRS]; /* where each pair stands */
	struct pl_params *driver;    /* SECTION_EXPORT: the driver's part of params */
	struct access_rules *rules;
	struct section *next;
};

struct config_memory {
	struct section *first, **end;
	struct pl_params *server; /* of both [server] and the command line */
};

/* "PLACE: " before what was said. */
static int
say_where(struct pl_error *err, const char *where)
{
	char text[sizeof err->text];

	if (err == NULL)
		return -EINVAL;
	memcpy(text, err->text, sizeof text);
	return pl_error_say(err, err->code, "%s: %s", where, text);
}

/* The section of that kind and name which is there already. */
static struct section *
section_find(const struct config *config, const struct section *like)
{
	for (struct section *s = config->memory->first; s != NULL; s = s->next) {
		if (s->kind == like->kind && s->typed == like->typed &&
		    strcmp(s->name, like->name) == 0)
			return s;
	}
	return NULL;
}

static void
section_free(struct section *s)
{
	if (s == NULL)
		return;
	for (unsigned i = 0; i < SECTION_PAIRS; i++)
		free(s->places[i]);
	access_rules_free(s->rules);
	pl_params_free(s->driver);
	pl_params_free(s->params);
	free(s->where);
	free(s->name);
	free(s);
}

static int
no_memory(const char *where, struct pl_error *err)
{
	return pl_error_set(err, -ENOMEM, "%s", where);
}

static int
section_new(struct config *config, enum section_kind kind, bool typed, const char *name,
	    const char *where, struct section **out, struct pl_error *err)
{
	struct section *s = calloc(1, sizeof *s);
	const struct section *other;

	if (s == NULL)
		return no_memory(where, err);
	s->kind = kind;
	s->typed = typed;
	s->name = strdup(name);
	s->where = strdup(where);
	s->params = pl_params_new();
	if (s->name == NULL || s->where == NULL || s->params == NULL) {
		section_free(s);
		return no_memory(where, err);
	}
	/* Listeners of the command line have no names. */
	other = kind == SECTION_LISTENER && typed ? NULL : section_find(config, s);
	if (other != NULL) {
		pl_error_say(err, -EINVAL, "%s: [%s%s%s] is given twice: at %s, too", where,
			     kinds[kind].word, *name != '\0' ? " " : "", name, other->where);
		section_free(s);
		return -EINVAL;
	}
	*config->memory->end = s;
	config->memory->end = &s->next;
	*out = s;
	return 0;
}

static const char *
section_place(const struct section *s, const char *key)
{
	for (unsigned i = 0; i < pl_params_count(s->params); i++) {
		if (strcmp(pl_params_key(s->params, i), key) == 0)
			return s->places[i];
	}
	return s->where;
}

static int
unknown_key(enum section_kind kind, const char *key, struct pl_error *err)
{
	unsigned distance = 4;
	const struct pl_option *near = pl_option_nearest(kinds[kind].options, key, &distance);

	return pl_error_say(err, -EINVAL, "[%s] has no key %s%s%s%s", kinds[kind].word, key,
			    near != NULL ? "; is it " : "", near != NULL ? near->name : "",
			    near != NULL ? " that is meant?" : "");
}

static int
parse_mode(const char *text, uint64_t *mode, struct pl_error *err)
{
	char *end;
	unsigned long n = strtoul(text, &end, 8);

	if (*text < '0' || *text > '7' || *end != '\0' || n > 0777)
		return pl_error_say(err, -EINVAL,
				    "mode=%s: expected mode=OCTAL (such as 0600, "
				    "0660, 0666)",
				    text);
	*mode = n;
	return 0;
}

static int
check_rules(const struct export_values *v, struct access_rules **rules, struct pl_error *err)
{
	return access_rules_new(rules, v->subject, v->fingerprint, v->psk, v->uid, v->gid, err);
}

/* One pair alone, as far as that can be wrong; params hold nothing else. */
static int
check_pair(enum section_kind kind, const struct pl_params *params, struct pl_error *err)
{
	const char *key = pl_params_key(params, 0), *value = pl_params_value(params, 0);
	const struct pl_option *o = pl_option_find(kinds[kind].options, key);
	union section_values v = { 0 };
	struct access_rules *rules;
	uint64_t used = 0, mode;
	int error;

	if (o == NULL)
		return kinds[kind].drivers ? 0 : unknown_key(kind, key, err);
	error = pl_options_parse(kinds[kind].options, params, &used, &v, err);
	if (error != 0)
		return error;
	for (unsigned i = 0; i < sizeof bounds / sizeof *bounds; i++) {
		uint64_t n;

		if (kind != SECTION_SERVER || strcmp(key, bounds[i].key) != 0)
			continue;
		memcpy(&n, (const char *)&v + o->at, sizeof n);
		if (n < bounds[i].min || n > bounds[i].max)
			return pl_error_say(err, -EINVAL, "%s=%s: %s is %s", key, value, key,
					    bounds[i].is);
	}
	if (kind == SECTION_LISTENER)
		return parse_mode(v.listener.mode, &mode, err);
	if (kind == SECTION_EXPORT) {
		error = check_rules(&v.export, &rules, err);
		if (error == 0)
			access_rules_free(rules);
	}
	return error;
}

/* where: of this pair. */
static int
section_add(struct section *s, const char *where, const char *key, const char *value,
	    struct pl_error *err)
{
	struct pl_params *one = pl_params_new();
	unsigned n = pl_params_count(s->params);
	int error;

	if (one == NULL)
		return no_memory(where, err);
	error = pl_params_add(one, key, value, err);
	if (error == 0)
		error = check_pair(s->kind, one, err);
	pl_params_free(one);
	if (error == 0)
		error = pl_params_add(s->params, key, value, err);
	if (error != 0) {
		say_where(err, where);
		return error;
	}
	s->places[n] = strdup(where);
	return s->places[n] != NULL ? 0 : no_memory(where, err);
}

/* ---- complete sections ----------------------------------------------------------- */

/* The driver's part of params. For checks, what is a directory of images instead of one has
 * some name. */
static struct pl_params *
driver_params(const struct section *s, bool check)
{
	struct pl_params *p = pl_params_new();
	int error = 0;

	for (unsigned i = 0; p != NULL && error == 0 && i < pl_params_count(s->params); i++) {
		const char *key = pl_params_key(s->params, i);

		if (pl_option_find(export_options, key) == NULL)
			error = pl_params_add(p, key, pl_params_value(s->params, i), NULL);
	}
	if (p != NULL && error == 0 && check && pl_params_get(s->params, "dir") != NULL &&
	    pl_params_get(s->params, "path") == NULL)
		error = pl_params_add(p, "path", "image", NULL);
	if (error != 0) {
		pl_params_free(p);
		return NULL;
	}
	return p;
}

/* A driver's sentence begins with the key that is wrong, unless it misses one. */
static const char *
place_of_fault(const struct section *s, const char *said)
{
	for (unsigned i = 0; i < pl_params_count(s->params); i++) {
		size_t length = strlen(pl_params_key(s->params, i));

		if (strncmp(said, pl_params_key(s->params, i), length) == 0 &&
		    (said[length] == '=' || said[length] == ':'))
			return s->places[i];
	}
	return s->where;
}

static int
export_complete(struct section *s, struct pl_error *err)
{
	struct pl_params *whole;
	struct pl_error said = { 0 };
	int error;

	if (strlen(s->name) > NBD_STRING_MAX)
		return pl_error_say(err, -EINVAL, "%s: the name of an export has at most %d bytes",
				    s->where, NBD_STRING_MAX);
	if (*s->name != '\0' && pl_params_get(s->params, "dir") != NULL &&
	    pl_params_get(s->params, "path") == NULL)
		return pl_error_say(err, -EINVAL,
				    "%s: dir without path serves each image by its "
				    "name, so the export has no name of its own",
				    section_place(s, "dir"));
	whole = driver_params(s, true);
	s->driver = driver_params(s, false);
	if (whole == NULL || s->driver == NULL) {
		pl_params_free(whole);
		return no_memory(s->where, err);
	}
	error = pl_export_check(whole, &said);
	pl_params_free(whole);
	if (error != 0)
		return pl_error_say(err, error, "%s: %s", place_of_fault(s, said.text), said.text);
	return 0;
}

static int
listener_complete(struct section *s, struct pl_error *err)
{
	static const char *const addresses[] = { "unix", "tcp", "vsock" };
	unsigned n = 0;

	for (unsigned i = 0; i < 3; i++)
		n += pl_params_get(s->params, addresses[i]) != NULL;
	if (n != 1)
		return pl_error_say(err, -EINVAL,
				    "%s: a listener has one of the keys unix, tcp and vsock",
				    s->where);
	if (pl_params_get(s->params, "mode") != NULL && pl_params_get(s->params, "unix") == NULL)
		return pl_error_say(err, -EINVAL, "%s: mode is for unix sockets",
				    section_place(s, "mode"));
	return 0;
}

static int
section_complete(struct section *s, struct pl_error *err)
{
	switch (s->kind) {
	case SECTION_SERVER: return 0;
	case SECTION_EXPORT: return export_complete(s, err);
	case SECTION_LISTENER: return listener_complete(s, err);
	}
	return 0;
}

/* ---- platter.conf ---------------------------------------------------------------- */

#define LINE_BYTES 16384 /* a path, and then some */

struct reader {
	FILE *file;
	const char *path;
	unsigned line;
	char text[LINE_BYTES + 1];
};

static bool
is_blank(int c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

static char *
trim(char *text)
{
	char *end = text + strlen(text);

	while (end > text && is_blank(end[-1]))
		end--;
	*end = '\0';
	while (is_blank(*text))
		text++;
	return text;
}

static int PL_PRINTF(3, 4)
	line_error(const struct reader *r, struct pl_error *err, const char *fmt, ...)
{
	char text[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	return pl_error_say(err, -EINVAL, "%s:%u: %s", r->path, r->line, text);
}

/* *more: whether there was a line. */
static int
read_line(struct reader *r, bool *more, struct pl_error *err)
{
	static const char mark[] = "\xef\xbb\xbf"; /* editors of another world begin with it */
	size_t n = 0;
	int c;

	r->line++;
	while ((c = getc_unlocked(r->file)) != EOF && c != '\n') {
		if (c == '\0')
			return line_error(r, err, "a byte that is no text");
		if (n == LINE_BYTES)
			return line_error(r, err, "the line is longer than %d bytes", LINE_BYTES);
		r->text[n++] = (char)c;
	}
	if (ferror(r->file))
		return pl_error_set(err, -errno, "%s: read", r->path);
	r->text[n] = '\0';
	*more = c != EOF || n > 0;
	if (r->line == 1 && strncmp(r->text, mark, strlen(mark)) == 0)
		memmove(r->text, r->text + strlen(mark), n + 1 - strlen(mark));
	return 0;
}

/* "[kind name]" */
static int
read_header(struct reader *r, struct config *config, char *text, const char *where,
	    struct section **section, struct pl_error *err)
{
	size_t length = strlen(text);
	char *name;

	if (text[length - 1] != ']')
		return line_error(r, err,
				  "a section begins with a line such as [server] or "
				  "[export NAME]");
	text[length - 1] = '\0';
	text = trim(text + 1);
	name = text + strcspn(text, " \t");
	if (*name != '\0')
		*name++ = '\0';
	name = trim(name);
	for (unsigned k = 0; k < sizeof kinds / sizeof *kinds; k++) {
		if (strcmp(text, kinds[k].word) != 0)
			continue;
		if (*name != '\0' ? !kinds[k].named : !kinds[k].nameless)
			return line_error(r, err, "[%s] %s a name", text,
					  kinds[k].named ? "needs" : "has not");
		return section_new(config, k, false, name, where, section, err);
	}
	return line_error(r, err,
			  "[%s]: there is no such section; there are: [server], "
			  "[export NAME], [listener NAME]",
			  text);
}

static int
read_pair(struct reader *r, char *text, const char *where, struct section *section,
	  struct pl_error *err)
{
	char *equals = strchr(text, '='), *value;

	if (equals == NULL)
		return line_error(r, err, "%.80s: expected KEY = VALUE", text);
	*equals = '\0';
	text = trim(text);
	value = trim(equals + 1);
	if (section == NULL)
		return line_error(r, err,
				  "%.80s: it stands in no section; [server] is for the "
				  "server as a whole",
				  text);
	if (*value == '\0')
		return line_error(r, err, "%.80s: it has no value", text);
	if (pl_params_get(section->params, text) != NULL)
		return line_error(r, err, "%.80s is given twice: at %s, too", text,
				  section_place(section, text));
	return section_add(section, where, text, value, err);
}

static int
read_sections(struct reader *r, struct config *config, struct pl_error *err)
{
	struct section *section = NULL;
	bool more = true;
	int error;

	while ((error = read_line(r, &more, err)) == 0 && more) {
		char *text = trim(r->text);
		char *where;

		if (*text == '\0' || *text == '#' || *text == ';')
			continue;
		if (asprintf(&where, "%s:%u", r->path, r->line) == -1)
			return no_memory(r->path, err);
		if (*text != '[') {
			error = read_pair(r, text, where, section, err);
		} else {
			error = section != NULL ? section_complete(section, err) : 0;
			if (error == 0)
				error = read_header(r, config, text, where, &section, err);
		}
		free(where);
		if (error != 0)
			return error;
	}
	return error == 0 && section != NULL ? section_complete(section, err) : error;
}

int
config_read(struct config *config, const char *path, struct pl_error *err)
{
	struct reader *r = malloc(sizeof *r);
	int error;

	if (r == NULL)
		return no_memory(path, err);
	r->path = path;
	r->line = 0;
	r->file = fopen(path, "re");
	if (r->file == NULL) {
		error = pl_error_set(err, -errno, "%s", path);
	} else {
		error = read_sections(r, config, err);
		fclose(r->file);
	}
	free(r);
	return error;
}

/* ---- the command line ------------------------------------------------------------ */

int
config_set(struct config *config, const char *where, const char *key, const char *value,
	   struct pl_error *err)
{
	const struct section like = { .kind = SECTION_SERVER, .typed = true, .name = (char *)"" };
	struct section *s = section_find(config, &like);
	int error = 0;

	if (s == NULL)
		error = section_new(config, SECTION_SERVER, true, "", where, &s, err);
	return error != 0 ? error : section_add(s, where, key, value, err);
}

/* The next of "key=value,key=value": a doubled comma stands for one. Changes text. */
static char *
next_pair(char **text)
{
	char *start = *text, *to = start, *from = start;

	if (start == NULL)
		return NULL;
	*text = NULL;
	while (*from != '\0') {
		if (*from == ',') {
			if (from[1] != ',') {
				*text = from + 1;
				break;
			}
			from++;
		}
		*to++ = *from++;
	}
	*to = '\0';
	return start;
}

static int
split_pairs(char *text, const char *where, struct pl_params *params, struct pl_error *err)
{
	char *pair;

	while ((pair = next_pair(&text)) != NULL) {
		char *equals = strchr(pair, '=');

		if (equals == NULL || equals == pair)
			return pl_error_say(
				err, -EINVAL,
				"%s: '%.80s': expected KEY=VALUE,KEY=VALUE,... (a comma "
				"in a value is doubled)",
				where, pair);
		*equals = '\0';
		if (pl_params_add(params, pair, equals + 1, err) != 0)
			return say_where(err, where);
	}
	return 0;
}

int
config_add_params(struct config *config, const char *where, const struct pl_params *params,
		  struct pl_error *err)
{
	const char *name = pl_params_get(params, "name");
	struct section *s;
	int error;

	error = section_new(config, SECTION_EXPORT, true, name != NULL ? name : "", where, &s, err);
	for (unsigned i = 0; error == 0 && i < pl_params_count(params); i++) {
		if (strcmp(pl_params_key(params, i), "name") != 0)
			error = section_add(s, where, pl_params_key(params, i),
					    pl_params_value(params, i), err);
	}
	return error != 0 ? error : section_complete(s, err);
}

int
config_add_export(struct config *config, const char *where, const char *text, struct pl_error *err)
{
	struct pl_params *params = pl_params_new();
	char *copy = strdup(text);
	int error;

	if (params == NULL || copy == NULL)
		error = no_memory(where, err);
	else
		error = split_pairs(copy, where, params, err);
	if (error == 0)
		error = config_add_params(config, where, params, err);
	free(copy);
	pl_params_free(params);
	return error;
}

int
config_add_listener(struct config *config, const char *where, const char *kind, const char *value,
		    struct pl_error *err)
{
	struct section *s;
	int error = section_new(config, SECTION_LISTENER, true, "", where, &s, err);

	if (error == 0)
		error = section_add(s, where, kind, value, err);
	return error != 0 ? error : section_complete(s, err);
}

/* ---- everything together --------------------------------------------------------- */

int
config_new(struct config **out, struct pl_error *err)
{
	struct config *config = calloc(1, sizeof *config);

	if (config != NULL)
		config->memory = calloc(1, sizeof *config->memory);
	if (config == NULL || config->memory == NULL) {
		free(config);
		return no_memory("configuration", err);
	}
	config->memory->end = &config->memory->first;
	*out = config;
	return 0;
}

void
config_free(struct config *config)
{
	struct section *next;

	if (config == NULL)
		return;
	for (struct section *s = config->memory->first; s != NULL; s = next) {
		next = s->next;
		section_free(s);
	}
	pl_params_free(config->memory->server);
	free(config->memory);
	free(config->exports);
	free(config->listeners);
	free(config);
}

/* The command line's keys, and those of the file that it does not have. */
static int
finish_server(struct config *config, struct pl_error *err)
{
	struct pl_params *both = config->memory->server = pl_params_new();
	uint64_t used = 0;
	int error = both != NULL ? 0 : no_memory("[server]", err);

	for (int typed = 1; error == 0 && typed >= 0; typed--) {
		const struct section like = { .typed = typed, .name = (char *)"" };
		const struct section *s = section_find(config, &like);

		for (unsigned i = 0; s != NULL && i < pl_params_count(s->params); i++) {
			const char *key = pl_params_key(s->params, i);

			if (pl_params_get(both, key) == NULL && error == 0)
				error = pl_params_add(both, key, pl_params_value(s->params, i),
						      err);
		}
	}
	if (error == 0)
		error = pl_options_parse(server_options, both, &used, &config->server, err);
	if (error != 0)
		return error;
	if (config->server.tls_certificates != NULL && config->server.tls_psk != NULL)
		return pl_error_say(err, -EINVAL,
				    "tls-certificates=%s and tls-psk=%s: only one of "
				    "them can be used",
				    config->server.tls_certificates, config->server.tls_psk);
	return 0;
}

/* TLS needs something to prove oneself with, and so does each rule about it. */
static int
check_credentials(const struct config *config, const struct section *s, int tls,
		  struct pl_error *err)
{
	static const struct {
		const char *key, *needs;
		bool by_psk;
	} rules[] = {
		{ "allow-psk", "tls-psk", true },
		{ "allow-subject", "tls-certificates", false },
		{ "allow-fingerprint", "tls-certificates", false },
	};
	const struct server_settings *server = &config->server;
	const char *has = NULL;

	if (tls != TLS_OFF && server->tls_certificates == NULL && server->tls_psk == NULL)
		return pl_error_say(err, -EINVAL,
				    "%s: tls=%s needs tls-certificates=DIR or "
				    "tls-psk=FILE for the server",
				    s != NULL ? section_place(s, "tls") : "[server]",
				    tls == TLS_REQUIRED ? "required" : "optional");
	for (unsigned i = 0; s != NULL && i < sizeof rules / sizeof *rules; i++) {
		has = rules[i].by_psk ? server->tls_psk : server->tls_certificates;
		if (pl_params_get(s->params, rules[i].key) != NULL &&
		    (has == NULL || tls == TLS_OFF))
			return pl_error_say(err, -EINVAL,
					    "%s: %s needs %s for the server, and tls=optional or "
					    "tls=required",
					    section_place(s, rules[i].key), rules[i].key,
					    rules[i].needs);
	}
	return 0;
}

static int
finish_export(struct config *config, struct section *s, struct offer_settings *out,
	      struct pl_error *err)
{
	struct export_values v = { 0 };
	uint64_t used = 0;
	int error = pl_options_parse(export_options, s->params, &used, &v, err);

	if (error == 0 && s->rules == NULL)
		error = check_rules(&v, &s->rules, err);
	if (error != 0)
		return error;
	if (v.offer.tls < config->server.tls) {
		if (pl_params_get(s->params, "tls") != NULL)
			return pl_error_say(err, -EINVAL, "%s: tls=%s is less than the server's",
					    section_place(s, "tls"),
					    pl_params_get(s->params, "tls"));
		v.offer.tls = config->server.tls;
	}
	*out = v.offer;
	out->name = s->name;
	out->where = s->where;
	out->rules = s->rules;
	out->params = s->driver;
	return check_credentials(config, s, out->tls, err);
}

static int
finish_listener(const struct section *s, struct listener_settings *out, struct pl_error *err)
{
	struct listener_values v = { 0 };
	uint64_t used = 0;
	int error = pl_options_parse(listener_options, s->params, &used, &v, err);

	if (error != 0)
		return error;
	out->where = s->where;
	out->kind = v.unix_path != NULL ? LISTENER_UNIX
		    : v.tcp != NULL     ? LISTENER_TCP
					: LISTENER_VSOCK;
	out->value = v.unix_path != NULL ? v.unix_path : v.tcp != NULL ? v.tcp : v.vsock;
	error = parse_mode(v.mode, &out->mode, err);
	return error != 0 ? error : listener_check(out, err);
}

/* An export may come from the file or from the command line, not from both. */
static int
check_unique(const struct config *config, const struct section *s, struct pl_error *err)
{
	const struct section like = { .kind = s->kind, .typed = !s->typed, .name = s->name };
	const struct section *other = section_find(config, &like);

	if (other == NULL)
		return 0;
	return pl_error_say(err, -EINVAL, "%s: %s%s%s is given twice: at %s, too", s->where,
			    *s->name != '\0' ? "export '" : "the default export", s->name,
			    *s->name != '\0' ? "'" : "", other->where);
}

const char *
config_place(const struct config *config, const char *key)
{
	for (int typed = 1; typed >= 0; typed--) {
		const struct section like = { .typed = typed, .name = (char *)"" };
		const struct section *s = section_find(config, &like);

		if (s != NULL && pl_params_get(s->params, key) != NULL)
			return section_place(s, key);
	}
	return "[server]";
}

int
config_finish(struct config *config, struct pl_error *err)
{
	unsigned count[sizeof kinds / sizeof *kinds] = { 0 };
	int error = finish_server(config, err);

	if (error == 0)
		error = check_credentials(config, NULL, config->server.tls, err);
	if (error != 0)
		return error;
	for (const struct section *s = config->memory->first; s != NULL; s = s->next)
		count[s->kind]++;
	config->exports = calloc(count[SECTION_EXPORT] + 1, sizeof *config->exports);
	config->listeners = calloc(count[SECTION_LISTENER] + 1, sizeof *config->listeners);
	if (config->exports == NULL || config->listeners == NULL)
		return no_memory("configuration", err);
	for (struct section *s = config->memory->first; error == 0 && s != NULL; s = s->next) {
		if (s->kind == SECTION_LISTENER) {
			error = finish_listener(s, &config->listeners[config->listener_count++],
						err);
		} else if (s->kind == SECTION_EXPORT) {
			error = check_unique(config, s, err);
			if (error == 0)
				error = finish_export(config, s,
						      &config->exports[config->export_count++],
						      err);
		}
	}
	/* Who is told to use TLS has to be offered it. */
	for (unsigned i = 0; i < config->export_count; i++) {
		if (config->exports[i].tls != TLS_OFF && config->server.tls == TLS_OFF)
			config->server.tls = TLS_OPTIONAL;
	}
	/* Else nobody would be verified, although the operator has asked for it. */
	if (error == 0 && config->server.tls_verify_peer && config->server.tls == TLS_OFF)
		return pl_error_say(err, -EINVAL,
				    "%s: tls-verify-peer=on needs tls=optional or tls=required, "
				    "for the server or an export",
				    config_place(config, "tls-verify-peer"));
	return error;
}
