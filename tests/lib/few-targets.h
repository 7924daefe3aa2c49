/*
 * few-targets.h - what server/iscsi/login.c needs of targets.h, over a list of a test's own:
 * linked before the library, it stands in for targets.c.
 */
#ifndef FEW_TARGETS_H
#define FEW_TARGETS_H

#include "iscsi/targets.h"

struct target {
	const char *name;
	const char *initiator; /* who may have it; NULL: anyone */
	struct worker *worker;
	struct chap_secrets *secrets; /* NULL: no authentication */
	unsigned references;          /* that others hold */
};

extern struct target *few_targets;
extern unsigned few_targets_count;

/* Secrets from a file of that text. */
struct chap_secrets *few_secrets(const char *text);

#endif
