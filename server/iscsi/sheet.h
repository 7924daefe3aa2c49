/*
 * sheet.h - what a target is to be: its settings, checked and copied.
 */
#ifndef ISCSI_SHEET_H
#define ISCSI_SHEET_H

#include "rules.h"
#include "targets.h"

/* A LUN as the configuration has it. */
struct lun {
	unsigned number;
	char *export;
	char *initiators; /* as written, or NULL */
	struct pl_params *params;
	char *error; /* targets.c's: why there is no unit, or NULL */
};

struct sheet {
	char *name;
	struct iscsi_rules *rules;
	struct chap_secrets *secrets; /* or NULL */
	struct lun *luns;
	unsigned lun_count;
	struct sheet *next;
};

/* Of settings that targets_check() has passed. Reads the secrets. Errors: what that says, -ENOMEM.
 */
int sheet_new(struct sheet **sheet, const struct target_settings *settings, struct pl_error *err);
void sheet_free(struct sheet *sheet); /* NULL: nothing */

#endif
