/* served.c - the exports that are open, each once. */
#include "served.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>

struct served {
	char *name;
	struct pl_export *export;
	unsigned users;
	struct served *next;
};

static pthread_mutex_t served_lock = PTHREAD_MUTEX_INITIALIZER;
static struct served *served_list;

static struct served *
served_find(const char *name)
{
	struct served *s;

	for (s = served_list; s != NULL && strcmp(s->name, name) != 0; s = s->next)
		;
	return s;
}

static int
served_make(const char *name, const struct pl_params *params, unsigned flags, struct served **out,
	    struct pl_error *err)
{
	struct served *s = calloc(1, sizeof *s);
	int error = -ENOMEM;

	if (s != NULL)
		s->name = strdup(name);
	if (s == NULL || s->name == NULL)
		pl_error_set(err, error, "export %s", name);
	else
		error = pl_export_open(params, flags, &s->export, err);
	if (error != 0) {
		if (s != NULL)
			free(s->name);
		free(s);
		return error;
	}
	s->next = served_list;
	served_list = s;
	*out = s;
	return 0;
}

int
served_open(const char *name, const struct pl_params *params, unsigned flags, struct pl_export **ex,
	    struct pl_error *err)
{
	struct served *s;
	int error = 0;

	if (name == NULL)
		name = "";
	pthread_mutex_lock(&served_lock);
	s = served_find(name);
	if (s == NULL)
		error = served_make(name, params, flags, &s, err);
	if (error == 0) {
		s->users++;
		*ex = s->export;
	}
	pthread_mutex_unlock(&served_lock);
	return error;
}

void
served_close(struct pl_export *ex)
{
	struct served **at = &served_list, *s;

	pthread_mutex_lock(&served_lock);
	while ((*at)->export != ex)
		at = &(*at)->next;
	s = *at;
	if (--s->users == 0) {
		*at = s->next;
		pl_export_close(ex);
		free(s->name);
		free(s);
	}
	pthread_mutex_unlock(&served_lock);
}
