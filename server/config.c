/*
 * config.c - what the server is to do, put together from platter.conf and options.
 *
 * Each section, of a file or of the command line, is kept as it was written: pairs, and where
 * each of them stands, so that an error can tell. Pairs are checked one by one as they come,
 * a section when it is complete, and all of them together by config_finish().
 */
#include "config-section.h"

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
	{ "state", PL_OPT_STRING, AT(state), "DIR", NULL, false,
	  "where what LUNs have to keep is kept" },
	{ "control", PL_OPT_STRING, AT(control), "PATH", NULL, false,
	  "socket for orders and questions" },
	{ "metrics", PL_OPT_STRING, AT(metrics), "[HOST:]PORT|PATH", NULL, false,
	  "page for Prometheus" },
	{ "pidfile", PL_OPT_STRING, AT(pidfile), "FILE", NULL, false,
	  "gets the process's number when it serves" },
	PL_OPTION_END,
};
#undef AT

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

#define AT(field) offsetof(struct listener_values, field)
const struct pl_option listener_options[] = {
	{ "unix", PL_OPT_STRING, AT(unix_path), "PATH", NULL, false, "a unix socket" },
	{ "tcp", PL_OPT_STRING, AT(tcp), "[HOST:]PORT", NULL, false, "TCP; *: all addresses" },
	{ "vsock", PL_OPT_STRING, AT(vsock), "[CID:]PORT", NULL, false, "virtual machines" },
	{ "iscsi", PL_OPT_STRING, AT(iscsi), "[HOST:]PORT", NULL, false, "iSCSI, by TCP" },
	{ "mode", PL_OPT_STRING, AT(mode), "OCTAL", "0600", false,
	  "who may connect to the unix socket" },
	PL_OPTION_END,
};
#undef AT

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
char *
config_next_word(char **text)
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

int
config_split_pairs(char *text, const char *where, struct pl_params *params, struct pl_error *err)
{
	char *pair;

	while ((pair = config_next_word(&text)) != NULL) {
		char *equals;

		pair += strspn(pair, " \t"); /* a, b=c */
		equals = strchr(pair, '=');
		if (equals == NULL || equals == pair)
			return pl_error_say(
				err, -EINVAL,
				"%s: '%.80s': expected KEY=VALUE,KEY=VALUE,... (a comma "
				"in a value is doubled)",
				where, pair);
		*equals = '\0';
		if (pl_params_add(params, pair, equals + 1, err) != 0)
			return config_say_where(err, where);
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
		error = config_no_memory(where, err);
	else
		error = config_split_pairs(copy, where, params, err);
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
		return config_no_memory("configuration", err);
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
	config_free_targets(config->memory);
	free(config->memory);
	free(config->targets);
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
	int error = both != NULL ? 0 : config_no_memory("[server]", err);

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
		error = section_check_rules(&v, &s->rules, err);
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

static const struct {
	size_t at; /* of the address in struct listener_values */
	enum listener_kind kind;
} addresses[] = {
	{ offsetof(struct listener_values, unix_path), LISTENER_UNIX },
	{ offsetof(struct listener_values, tcp), LISTENER_TCP },
	{ offsetof(struct listener_values, vsock), LISTENER_VSOCK },
	{ offsetof(struct listener_values, iscsi), LISTENER_ISCSI },
};

static int
finish_listener(const struct section *s, struct listener_settings *out, struct pl_error *err)
{
	struct listener_values v = { 0 };
	uint64_t used = 0;
	int error = pl_options_parse(listener_options, s->params, &used, &v, err);

	if (error != 0)
		return error;
	out->where = s->where;
	for (unsigned i = 0; i < sizeof addresses / sizeof *addresses; i++) {
		const char *value = *(char *const *)((const char *)&v + addresses[i].at);

		if (value == NULL)
			continue;
		out->kind = addresses[i].kind;
		out->value = value;
	}
	error = section_parse_mode(v.mode, &out->mode, err);
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
	unsigned count[sizeof SECTION_KINDS] = { 0 };
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
		return config_no_memory("configuration", err);
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
	if (error == 0)
		error = config_finish_targets(config, err);
	/* Else nobody would be verified, although the operator has asked for it. */
	if (error == 0 && config->server.tls_verify_peer && config->server.tls == TLS_OFF)
		return pl_error_say(err, -EINVAL,
				    "%s: tls-verify-peer=on needs tls=optional or tls=required, "
				    "for the server or an export",
				    config_place(config, "tls-verify-peer"));
	return error;
}
