#include "few-targets.h"

#include <assert.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

struct target *few_targets;
unsigned few_targets_count;

struct chap_secrets *
few_secrets(const char *text)
{
	char path[] = "/tmp/platter-secrets-XXXXXX";
	struct chap_secrets *secrets;
	int fd = mkstemp(path), error;

	assert(fd != -1 && write(fd, text, strlen(text)) == (ssize_t)strlen(text));
	close(fd);
	error = chap_secrets_read(&secrets, path, NULL);
	unlink(path);
	assert(error == 0);
	return secrets;
}

static bool
may_have(const struct target *t, const char *initiator)
{
	return t->initiator == NULL || strcmp(t->initiator, initiator) == 0;
}

unsigned
targets_list(struct targets *targets, const struct peer *peer, const char *initiator,
	     const struct chap_secrets *known, const char *only,
	     void (*each)(void *user, const char *name), void *user)
{
	unsigned count = 0;

	(void)targets;
	(void)peer;
	for (struct target *t = few_targets; t < few_targets + few_targets_count; t++) {
		if (!may_have(t, initiator) || !chap_secrets_admit(t->secrets, known, initiator) ||
		    (only != NULL && strcmp(t->name, only) != 0))
			continue;
		each(user, t->name);
		count++;
	}
	return count;
}

void
targets_secrets(struct targets *targets, const struct peer *peer, const char *initiator,
		struct chap_secrets **secrets)
{
	(void)targets;
	(void)peer;
	*secrets = NULL;
	for (struct target *t = few_targets; t < few_targets + few_targets_count; t++) {
		if (may_have(t, initiator) && t->secrets != NULL)
			assert(chap_secrets_join(secrets, t->secrets) == 0);
	}
}

int
target_find(struct targets *targets, const char *name, const struct peer *peer,
	    const char *initiator, struct target **target, struct pl_error *err)
{
	(void)targets;
	(void)peer;
	for (struct target *t = few_targets; t < few_targets + few_targets_count; t++) {
		if (strcmp(t->name, name) != 0)
			continue;
		if (!may_have(t, initiator))
			return pl_error_say(err, -EACCES, "%s is not for %s", name, initiator);
		t->references++;
		*target = t;
		return 0;
	}
	return pl_error_say(err, -ENOENT, "there is no %s", name);
}

void
target_put(struct target *target)
{
	assert(target->references > 0);
	target->references--;
}

const char *
target_name(const struct target *target)
{
	return target->name;
}

struct worker *
target_worker(const struct target *target)
{
	return target->worker;
}

struct chap_secrets *
target_secrets(struct target *target)
{
	return target->secrets != NULL ? chap_secrets_get(target->secrets) : NULL;
}
