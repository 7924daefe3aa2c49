/*
 * config-section.c - a section of the configuration: its pairs, where each of them stands, and
 * whether it is right.
 */
#include "config-section.h"

#include "iscsi/rules.h"
#include "nbd/protocol.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

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

const struct section_kind_row section_kinds[SECTION_KINDS] = {
	[SECTION_SERVER] = { "server", server_options, .nameless = true },
	[SECTION_EXPORT] = { "export", export_options, true, true, true },
	[SECTION_LISTENER] = { "listener", listener_options, .named = true },
	[SECTION_TARGET] = { "target", target_options, .named = true },
};

/* ---- a section, pair by pair ----------------------------------------------------- */

int
config_say_where(struct pl_error *err, const char *where)
{
	char text[sizeof err->text];

	if (err == NULL)
		return -EINVAL;
	memcpy(text, err->text, sizeof text);
	return pl_error_say(err, err->code, "%s: %s", where, text);
}

/* The section of that kind and name which is there already. */
struct section *
section_find(const struct config *config, const struct section *like)
{
	for (struct section *s = config->memory->first; s != NULL; s = s->next) {
		if (s->kind == like->kind && s->typed == like->typed &&
		    strcmp(s->name, like->name) == 0)
			return s;
	}
	return NULL;
}

void
section_free(struct section *s)
{
	if (s == NULL)
		return;
	for (unsigned i = 0; i < SECTION_PAIRS; i++)
		free(s->places[i]);
	section_free_luns(s);
	access_rules_free(s->rules);
	pl_params_free(s->driver);
	pl_params_free(s->params);
	free(s->where);
	free(s->name);
	free(s);
}

int
config_no_memory(const char *where, struct pl_error *err)
{
	return pl_error_set(err, -ENOMEM, "%s", where);
}

int
section_new(struct config *config, enum section_kind kind, bool typed, const char *name,
	    const char *where, struct section **out, struct pl_error *err)
{
	struct section *s = calloc(1, sizeof *s);
	const struct section *other;

	if (s == NULL)
		return config_no_memory(where, err);
	s->kind = kind;
	s->typed = typed;
	s->name = strdup(name);
	s->where = strdup(where);
	s->params = pl_params_new();
	if (s->name == NULL || s->where == NULL || s->params == NULL) {
		section_free(s);
		return config_no_memory(where, err);
	}
	/* Listeners of the command line have no names. */
	other = kind == SECTION_LISTENER && typed ? NULL : section_find(config, s);
	if (other != NULL) {
		pl_error_say(err, -EINVAL, "%s: [%s%s%s] is given twice: at %s, too", where,
			     section_kinds[kind].word, *name != '\0' ? " " : "", name,
			     other->where);
		section_free(s);
		return -EINVAL;
	}
	*config->memory->end = s;
	config->memory->end = &s->next;
	*out = s;
	return 0;
}

const char *
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
	const struct pl_option *near =
		pl_option_nearest(section_kinds[kind].options, key, &distance);

	return pl_error_say(err, -EINVAL, "[%s] has no key %s%s%s%s", section_kinds[kind].word, key,
			    near != NULL ? "; is it " : "", near != NULL ? near->name : "",
			    near != NULL ? " that is meant?" : "");
}

int
section_parse_mode(const char *text, uint64_t *mode, struct pl_error *err)
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

int
section_check_rules(const struct export_values *v, struct access_rules **rules,
		    struct pl_error *err)
{
	return access_rules_new(rules, v->subject, v->fingerprint, v->psk, v->uid, v->gid, err);
}

/* One pair alone, as far as that can be wrong; params hold nothing else. */
static int
check_pair(enum section_kind kind, const struct pl_params *params, struct pl_error *err)
{
	const char *key = pl_params_key(params, 0), *value = pl_params_value(params, 0);
	const struct pl_option *o = pl_option_find(section_kinds[kind].options, key);
	union section_values v = { 0 };
	struct iscsi_rules *iscsi_rules;
	struct access_rules *rules;
	uint64_t used = 0, mode;
	int error;

	if (o == NULL)
		return section_kinds[kind].drivers ? 0 : unknown_key(kind, key, err);
	error = pl_options_parse(section_kinds[kind].options, params, &used, &v, err);
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
		return section_parse_mode(v.listener.mode, &mode, err);
	if (kind == SECTION_TARGET) {
		error = iscsi_rules_new(&iscsi_rules, v.target.initiators, v.target.addresses, err);
		if (error == 0)
			iscsi_rules_free(iscsi_rules);
	}
	if (kind == SECTION_EXPORT) {
		error = section_check_rules(&v.export, &rules, err);
		if (error == 0)
			access_rules_free(rules);
	}
	return error;
}

/* where: of this pair. */
int
section_add(struct section *s, const char *where, const char *key, const char *value,
	    struct pl_error *err)
{
	struct pl_params *one = pl_params_new();
	unsigned n = pl_params_count(s->params);
	int error;

	if (one == NULL)
		return config_no_memory(where, err);
	if (section_is_lun(s, key)) {
		pl_params_free(one);
		return section_add_lun(s, where, key, value, err);
	}
	error = pl_params_add(one, key, value, err);
	if (error == 0)
		error = check_pair(s->kind, one, err);
	pl_params_free(one);
	if (error == 0)
		error = pl_params_add(s->params, key, value, err);
	if (error != 0) {
		config_say_where(err, where);
		return error;
	}
	s->places[n] = strdup(where);
	return s->places[n] != NULL ? 0 : config_no_memory(where, err);
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
		return config_no_memory(s->where, err);
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
	static const char *const addresses[] = { "unix", "tcp", "vsock", "iscsi" };
	unsigned n = 0;

	for (unsigned i = 0; i < sizeof addresses / sizeof *addresses; i++)
		n += pl_params_get(s->params, addresses[i]) != NULL;
	if (n != 1)
		return pl_error_say(err, -EINVAL,
				    "%s: a listener has one of the keys unix, tcp, vsock "
				    "and iscsi",
				    s->where);
	if (pl_params_get(s->params, "mode") != NULL && pl_params_get(s->params, "unix") == NULL)
		return pl_error_say(err, -EINVAL, "%s: mode is for unix sockets",
				    section_place(s, "mode"));
	return 0;
}

int
section_complete(struct section *s, struct pl_error *err)
{
	switch (s->kind) {
	case SECTION_SERVER: return 0;
	case SECTION_EXPORT: return export_complete(s, err);
	case SECTION_LISTENER: return listener_complete(s, err);
	case SECTION_TARGET: return 0;
	}
	return 0;
}
