/*
 * config-target.c - sections [target NAME], and the target that --iscsi stands for.
 *
 * With --iscsi and no [target] all exports are the LUNs of one target, in their order. A file
 * that listens for iSCSI has to say who is to have what.
 */
#include "config-section.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define AT(field) offsetof(struct target_values, field)
const struct pl_option target_options[] = {
	{ "lun.N", PL_OPT_STRING, 0, "EXPORT[,KEY=VALUE...]", NULL, false,
	  "an export as LUN N; N is from 0 to 255" },
	{ "initiators", PL_OPT_STRING, AT(initiators), "NAME[;NAME...]", NULL, false,
	  "who may log in, by iSCSI names" },
	{ "addresses", PL_OPT_STRING, AT(addresses), "ADDRESS[/BITS][;...]", NULL, false,
	  "and from where" },
	{ "chap", PL_OPT_STRING, AT(chap), "FILE", NULL, false, "who may log in, by secrets" },
	PL_OPTION_END,
};
#undef AT

struct lun_values {
	const char *initiators;
};

/* Of a LUN, the server's part; what is not here is scsi_unit_options'. */
const struct pl_option lun_options[] = {
	{ "initiators", PL_OPT_STRING, offsetof(struct lun_values, initiators), "NAME[;NAME...]",
	  NULL, false, "who sees it, of those who may log in" },
	PL_OPTION_END,
};

/* ---- lun.N ----------------------------------------------------------------------- */

static const char lun_prefix[] = "lun.";

bool
section_is_lun(const struct section *s, const char *key)
{
	return s->kind == SECTION_TARGET && strncmp(key, lun_prefix, strlen(lun_prefix)) == 0;
}

static bool
read_number(const char *text, unsigned *number)
{
	unsigned long n;
	char *end;

	if (*text < '0' || *text > '9' || (*text == '0' && text[1] != '\0'))
		return false;
	n = strtoul(text, &end, 10);
	*number = (unsigned)n;
	return *end == '\0' && n < TARGET_LUNS_MAX;
}

static void
free_lun(struct section_lun *lun)
{
	free(lun->where);
	free(lun->text);
	free(lun->initiators);
	pl_params_free(lun->params);
	free(lun);
}

void
section_free_luns(struct section *s)
{
	struct section_lun *lun;

	while ((lun = s->luns) != NULL) {
		s->luns = lun->next;
		free_lun(lun);
	}
}

/* The rest of the line: KEY=VALUE,... */
static int
read_options(struct section_lun *lun, char *text, struct pl_error *err)
{
	struct pl_params *all = pl_params_new();
	int error = all != NULL ? 0 : config_no_memory(lun->where, err);

	if (error == 0 && text != NULL && *text != '\0')
		error = config_split_pairs(text, lun->where, all, err);
	for (unsigned i = 0; error == 0 && i < pl_params_count(all); i++) {
		const char *key = pl_params_key(all, i), *value = pl_params_value(all, i);

		if (strcmp(key, lun_options[0].name) != 0)
			error = pl_params_add(lun->params, key, value, err);
		else if ((lun->initiators = strdup(value)) == NULL)
			error = config_no_memory(lun->where, err);
	}
	pl_params_free(all);
	return error;
}

static int
read_lun(struct section_lun *lun, const char *value, struct pl_error *err)
{
	struct pl_error why;
	char *rest;

	lun->text = rest = strdup(value);
	lun->params = pl_params_new();
	if (lun->where == NULL || lun->text == NULL || lun->params == NULL)
		return pl_error_set(err, -ENOMEM, "LUN %u", lun->number);
	lun->export = config_next_word(&rest);
	for (char *end = strchr(lun->export, '\0');
	     end > lun->export && (end[-1] == ' ' || end[-1] == '\t');)
		*--end = '\0';
	if (read_options(lun, rest, err) != 0)
		return err->code;
	if (scsi_unit_check(lun->params, &why) != 0)
		return pl_error_say(err, -EINVAL, "%s: LUN %u: %s", lun->where, lun->number,
				    why.text);
	return 0;
}

int
section_add_lun(struct section *s, const char *where, const char *key, const char *value,
		struct pl_error *err)
{
	struct section_lun **last = &s->luns, *lun;
	unsigned number;
	int error;

	if (!read_number(key + strlen(lun_prefix), &number))
		return pl_error_say(err, -EINVAL, "%s: %.80s: LUNs are lun.0 to lun.%d", where, key,
				    TARGET_LUNS_MAX - 1);
	for (; *last != NULL; last = &(*last)->next) {
		if ((*last)->number == number)
			return pl_error_say(err, -EINVAL, "%s: %s is given twice: at %s, too",
					    where, key, (*last)->where);
	}
	lun = calloc(1, sizeof *lun);
	if (lun == NULL)
		return config_no_memory(where, err);
	lun->number = number;
	lun->where = strdup(where);
	error = read_lun(lun, value, err);
	if (error != 0) {
		free_lun(lun);
		return error;
	}
	*last = lun;
	return 0;
}

/* ---- the command line ------------------------------------------------------------ */

int
config_set_target(struct config *config, const char *where, const char *name, struct pl_error *err)
{
	struct config_memory *m = config->memory;

	if (m->target != NULL)
		return pl_error_say(err, -EINVAL, "%s is given twice: %s and %s", where, m->target,
				    name);
	m->target = strdup(name);
	m->target_where = strdup(where);
	return m->target != NULL && m->target_where != NULL ? 0 : config_no_memory(where, err);
}

int
config_set_unit(struct config *config, const char *where, const char *text, struct pl_error *err)
{
	struct config_memory *m = config->memory;
	char *copy = strdup(text);
	struct pl_error why;
	int error = 0;

	if (m->unit == NULL) {
		m->unit = pl_params_new();
		m->unit_where = strdup(where);
	}
	if (m->unit == NULL || m->unit_where == NULL || copy == NULL)
		error = config_no_memory(where, err);
	if (error == 0)
		error = config_split_pairs(copy, where, m->unit, err);
	free(copy);
	if (error == 0 && scsi_unit_check(m->unit, &why) != 0)
		error = pl_error_say(err, -EINVAL, "%s: %s", where, why.text);
	return error;
}

/* Of what is on offer first: its name, or its file's. RFC 3722: what a name can have as it is. */
static char *
implied_name(const struct config *config)
{
	static const char authority[] = "iqn.2026-11.org.platter:",
			  plain[] = "abcdefghijklmnopqrstuvwxyz0123456789.-";
	const struct offer_settings *first = config->exports;
	const char *name = "disk", *path = NULL;
	char *text;

	if (config->export_count > 0) {
		path = pl_params_get(first->params, "path");
		if (*first->name != '\0')
			name = first->name;
		else if (path != NULL)
			name = strrchr(path, '/') != NULL ? strrchr(path, '/') + 1 : path;
	}
	if (asprintf(&text, "%s%.*s", authority, SCSI_NAME_MAX - (int)strlen(authority), name) ==
	    -1)
		return NULL;
	for (char *c = text + strlen(authority); *c != '\0'; c++) {
		if (*c >= 'A' && *c <= 'Z')
			*c = (char)(*c - 'A' + 'a');
		else if (strchr(plain, *c) == NULL)
			*c = '-';
	}
	return text;
}

/* ---- everything together --------------------------------------------------------- */

void
config_free_targets(struct config_memory *m)
{
	free(m->target);
	free(m->target_where);
	free(m->unit_where);
	free(m->implied);
	free(m->luns);
	pl_params_free(m->unit);
}

static int
imply_target(struct config *config, const char *where, struct pl_error *err)
{
	struct config_memory *m = config->memory;

	if (config->export_count == 0)
		return pl_error_say(err, -EINVAL,
				    "%s: there is nothing to be a LUN: name an image (platterd "
				    "--iscsi 3260 disk.img) or exports",
				    where);
	if (m->target == NULL)
		m->implied = implied_name(config);
	if (m->unit == NULL)
		m->unit = pl_params_new();
	if (m->unit == NULL || (m->target == NULL && m->implied == NULL))
		return config_no_memory(where, err);
	for (unsigned i = 0; i < config->export_count; i++)
		m->luns[i] = (struct lun_settings){ .lun = i,
						    .export = config->exports[i].name,
						    .where = where,
						    .params = m->unit };
	config->targets[config->target_count++] = (struct target_settings){
		.name = m->target != NULL ? m->target : m->implied,
		.where = m->target != NULL ? m->target_where : where,
		.luns = m->luns,
		.lun_count = config->export_count,
	};
	return 0;
}

/* *luns: room for its LUNs, and where the next target's go. */
static int
finish_target(struct config *config, const struct section *s, struct lun_settings **luns,
	      struct pl_error *err)
{
	struct target_settings *t = &config->targets[config->target_count++];
	struct target_values v = { 0 };
	uint64_t used = 0;
	int error = pl_options_parse(target_options + 1, s->params, &used, &v, err);

	if (error != 0)
		return error;
	*t = (struct target_settings){ .name = s->name,
				       .where = s->where,
				       .initiators = v.initiators,
				       .addresses = v.addresses,
				       .chap = v.chap,
				       .luns = *luns };
	for (const struct section_lun *lun = s->luns; lun != NULL; lun = lun->next) {
		(*luns)[t->lun_count++] = (struct lun_settings){ .lun = lun->number,
								 .export = lun->export,
								 .where = lun->where,
								 .initiators = lun->initiators,
								 .params = lun->params };
	}
	*luns += t->lun_count;
	return 0;
}

/* An iSCSI listener; of the command line rather than of the file. */
static const struct section *
find_listener(const struct config *config)
{
	const struct section *found = NULL;

	for (const struct section *s = config->memory->first; s != NULL; s = s->next) {
		if (s->kind == SECTION_LISTENER && pl_params_get(s->params, "iscsi") != NULL &&
		    (found == NULL || s->typed))
			found = s;
	}
	return found;
}

/* Whether it all goes together; target: the first of the file, or NULL. */
static int
check_together(const struct config *config, const struct section *listener,
	       const struct section *target, struct pl_error *err)
{
	const struct config_memory *m = config->memory;
	const char *typed = m->target != NULL ? m->target_where : m->unit_where;

	if (listener == NULL && target != NULL)
		return pl_error_say(err, -EINVAL,
				    "%s: target %s: nobody can reach it: there is no listener "
				    "with iscsi=[HOST:]PORT",
				    target->where, target->name);
	if (typed != NULL && (listener == NULL || !listener->typed || target != NULL))
		return pl_error_say(err, -EINVAL,
				    "%s is about the target of --iscsi, and there is none%s%s",
				    typed, target != NULL ? ": targets are at " : "",
				    target != NULL ? target->where : "");
	if (listener == NULL)
		return 0;
	if (config->server.tls == TLS_REQUIRED)
		return pl_error_say(err, -EINVAL,
				    "%s: iSCSI has no TLS, and tls=required (%s) says that nobody "
				    "is served without; tls=optional there and tls=required for "
				    "exports goes with it",
				    listener->where, config_place(config, "tls"));
	if (target == NULL && !listener->typed)
		return pl_error_say(err, -EINVAL,
				    "%s: iscsi needs a section [target NAME] that says what is to "
				    "be had",
				    listener->where);
	return 0;
}

int
config_finish_targets(struct config *config, struct pl_error *err)
{
	const struct section *listener = find_listener(config), *first = NULL;
	unsigned targets = 0, count = config->export_count;
	struct lun_settings *luns;
	int error;

	for (const struct section *s = config->memory->first; s != NULL; s = s->next) {
		if (s->kind != SECTION_TARGET)
			continue;
		first = first != NULL ? first : s;
		targets++;
		for (const struct section_lun *lun = s->luns; lun != NULL; lun = lun->next)
			count++;
	}
	error = check_together(config, listener, first, err);
	if (error != 0 || listener == NULL)
		return error;
	config->targets = calloc(targets + 1, sizeof *config->targets);
	luns = config->memory->luns = calloc(count + 1, sizeof *luns);
	if (config->targets == NULL || luns == NULL)
		return config_no_memory(listener->where, err);
	if (first == NULL)
		error = imply_target(config, listener->where, err);
	for (const struct section *s = config->memory->first; s != NULL && error == 0;
	     s = s->next) {
		if (s->kind == SECTION_TARGET)
			error = finish_target(config, s, &luns, err);
	}
	return error != 0 ? error
			  : targets_check(config->targets, config->target_count, config->exports,
					  config->export_count, err);
}
