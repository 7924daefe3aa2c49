/* sheet.c - what a target is to be. */
#include "sheet.h"

#include "keys.h"
#include "state.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- whether it can be ----------------------------------------------------------- */

/* "PLACE: " before what was said. */
static int PL_PRINTF(3, 4) refuse(const char *where, struct pl_error *err, const char *fmt, ...)
{
	char text[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	return pl_error_say(err, -EINVAL, "%s: %s", where, text);
}

static int
check_rules(const char *where, const char *initiators, const char *addresses, struct pl_error *err)
{
	struct iscsi_rules *rules;
	struct pl_error why;
	int error = iscsi_rules_new(&rules, initiators, addresses, &why);

	if (error != 0)
		return pl_error_say(err, error, "%s: %s", where, why.text);
	iscsi_rules_free(rules);
	return 0;
}

/* Who may have an export is a promise that holds for all ways to it. */
static int
check_export(const struct lun_settings *lun, const struct offer_settings *exports, unsigned count,
	     struct pl_error *err)
{
	const struct offer_settings *o = NULL;
	const char *cache;
	struct pl_error why;

	for (unsigned i = 0; i < count && o == NULL; i++) {
		if (strcmp(exports[i].name, lun->export) == 0)
			o = &exports[i];
	}
	if (o == NULL)
		return refuse(lun->where, err, "LUN %u: there is no export \"%s\"", lun->lun,
			      lun->export);
	cache = pl_params_get(o->params, "cache");
	if (pl_params_get(o->params, "dir") != NULL && pl_params_get(o->params, "path") == NULL)
		return refuse(lun->where, err,
			      "LUN %u: a directory of images (%s) cannot be a LUN: name one of "
			      "them as an export of its own",
			      lun->lun, o->where);
	if (o->tls == TLS_REQUIRED)
		return refuse(lun->where, err,
			      "LUN %u: export \"%s\" (%s) has tls=required, and iSCSI has no TLS",
			      lun->lun, lun->export, o->where);
	if (!access_rules_same(o->rules, NULL))
		return refuse(lun->where, err,
			      "LUN %u: export \"%s\" (%s) is for those named by allow-...: iSCSI "
			      "cannot tell who they are; it has initiators, addresses and chap",
			      lun->lun, lun->export, o->where);
	if (cache != NULL && strcmp(cache, "unsafe") == 0)
		return refuse(lun->where, err,
			      "LUN %u: export \"%s\" (%s) has cache=unsafe, and SCSI has no way to "
			      "say that nothing is ever made durable; choose another cache mode",
			      lun->lun, lun->export, o->where);
	return state_check(lun->export, &why) == 0 ? 0 : refuse(lun->where, err, "%s", why.text);
}

/* Two units of one identity would be one disk to whoever sees both. */
static int
check_identities(const struct lun_settings *a, const struct lun_settings *b, struct pl_error *err)
{
	static const char *const keys[] = { "serial", "wwn" };

	for (unsigned i = 0; i < sizeof keys / sizeof *keys; i++) {
		const char *one = pl_params_get(a->params, keys[i]);
		const char *other = pl_params_get(b->params, keys[i]);

		if (one != NULL && other != NULL && strcasecmp(one, other) == 0)
			return refuse(b->where, err, "LUN %u: %s=%s is that of another LUN, at %s",
				      b->lun, keys[i], other, a->where);
	}
	return 0;
}

/* The LUNs of one target, or of two. */
static int
check_pair(const struct lun_settings *a, const struct lun_settings *b, bool one_target,
	   struct pl_error *err)
{
	if (one_target && a->lun == b->lun)
		return refuse(b->where, err, "LUN %u is given twice: at %s, too", b->lun, a->where);
	if (strcmp(a->export, b->export) == 0)
		return refuse(b->where, err,
			      "LUN %u: export \"%s\" is a LUN already, at %s: what one initiator "
			      "reserves there would not be reserved here",
			      b->lun, b->export, a->where);
	return check_identities(a, b, err);
}

static int
check_lun(const struct lun_settings *lun, const struct offer_settings *exports,
	  unsigned export_count, struct pl_error *err)
{
	struct pl_error why;
	int error;

	if (lun->lun >= TARGET_LUNS_MAX)
		return refuse(lun->where, err, "LUN %u: they go from 0 to %d", lun->lun,
			      TARGET_LUNS_MAX - 1);
	error = check_rules(lun->where, lun->initiators, NULL, err);
	if (error == 0 && scsi_unit_check(lun->params, &why) != 0)
		error = refuse(lun->where, err, "LUN %u: %s", lun->lun, why.text);
	return error != 0 ? error : check_export(lun, exports, export_count, err);
}

static int
check_target(const struct target_settings *t, struct pl_error *err)
{
	if (!iscsi_name_is_valid(t->name))
		return refuse(t->where, err,
			      "'%s' is no iSCSI name; one begins with iqn., eui. or naa., as "
			      "iqn.2026-11.org.example:disk, and is in lower case",
			      t->name);
	if (t->lun_count == 0)
		return refuse(t->where, err, "target %s has no LUN: lun.0=EXPORT gives it one",
			      t->name);
	return check_rules(t->where, t->initiators, t->addresses, err);
}

/* Of the target and those before it. */
static int
check_pairs(const struct target_settings *targets, unsigned last, struct pl_error *err)
{
	const struct target_settings *t = &targets[last];
	int error = 0;

	for (unsigned i = 0; i <= last && error == 0; i++) {
		if (i < last && strcmp(targets[i].name, t->name) == 0)
			return refuse(t->where, err, "target %s is given twice: at %s, too",
				      t->name, targets[i].where);
		for (unsigned j = 0; j < t->lun_count; j++) {
			unsigned others = i < last ? targets[i].lun_count : j;

			for (unsigned k = 0; k < others && error == 0; k++)
				error = check_pair(&targets[i].luns[k], &t->luns[j], i == last,
						   err);
		}
	}
	return error;
}

int
targets_check(const struct target_settings *targets, unsigned count,
	      const struct offer_settings *exports, unsigned export_count, struct pl_error *err)
{
	int error = 0;

	for (unsigned i = 0; i < count && error == 0; i++) {
		error = check_target(&targets[i], err);
		for (unsigned j = 0; j < targets[i].lun_count && error == 0; j++)
			error = check_lun(&targets[i].luns[j], exports, export_count, err);
		if (error == 0)
			error = check_pairs(targets, i, err);
	}
	return error;
}

/* ---- a copy of it ---------------------------------------------------------------- */

static int
copy_lun(struct lun *lun, const struct lun_settings *from)
{
	lun->number = from->lun;
	lun->export = strdup(from->export);
	lun->params = pl_params_copy(from->params);
	if (from->initiators != NULL)
		lun->initiators = strdup(from->initiators);
	return lun->export == NULL || lun->params == NULL ||
			       (from->initiators != NULL && lun->initiators == NULL)
		       ? -ENOMEM
		       : 0;
}

int
sheet_new(struct sheet **out, const struct target_settings *t, struct pl_error *err)
{
	struct sheet *s = calloc(1, sizeof *s);
	struct pl_error why;
	int error = 0;

	if (s != NULL) {
		s->name = strdup(t->name);
		s->luns = calloc(t->lun_count + 1, sizeof *s->luns);
	}
	if (s == NULL || s->name == NULL || s->luns == NULL)
		error = pl_error_set(err, -ENOMEM, "target %s", t->name);
	for (unsigned i = 0; i < t->lun_count && error == 0; i++) {
		s->lun_count++;
		if (copy_lun(&s->luns[i], &t->luns[i]) != 0)
			error = pl_error_set(err, -ENOMEM, "target %s", t->name);
	}
	if (error == 0)
		error = iscsi_rules_new(&s->rules, t->initiators, t->addresses, err);
	if (error == 0 && t->chap != NULL) {
		error = chap_secrets_read(&s->secrets, t->chap, &why);
		if (error != 0)
			pl_error_say(err, error, "%s: target %s: %s", t->where, t->name, why.text);
	}
	if (error != 0) {
		sheet_free(s);
		return error;
	}
	*out = s;
	return 0;
}

void
sheet_free(struct sheet *s)
{
	if (s == NULL)
		return;
	for (unsigned i = 0; i < s->lun_count; i++) {
		free(s->luns[i].export);
		free(s->luns[i].initiators);
		free(s->luns[i].error);
		pl_params_free(s->luns[i].params);
	}
	free(s->luns);
	free(s->name);
	iscsi_rules_free(s->rules);
	chap_secrets_put(s->secrets);
	free(s);
}
