/* reach.c - what the server has to reach once it has given up its privileges. */
#include "reach.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static void
add_path(struct reach *p, char *path, enum privsep_right right)
{
	struct privsep_path *list = realloc(p->list, (p->count + 1) * sizeof *list);

	if (list != NULL)
		p->list = list;
	if (list == NULL || path == NULL) {
		p->error = -ENOMEM;
		free(path);
		return;
	}
	p->list[p->count++] = (struct privsep_path){ path, right };
}

/* What is replaced by renaming is another file, in the same directory. */
static void
add_directory_of(struct reach *p, const char *file, enum privsep_right right)
{
	const char *slash = strrchr(file, '/');

	if (slash == NULL)
		add_path(p, strdup("."), right);
	else
		add_path(p, strndup(file, slash == file ? 1 : (size_t)(slash - file)), right);
}

static void
add_export(struct reach *p, const struct offer_settings *o)
{
	const char *dir = pl_params_get(o->params, "dir"), *path = pl_params_get(o->params, "path");

	if (dir != NULL || path != NULL)
		add_path(p, strdup(dir != NULL ? dir : path),
			 o->read_only ? PRIVSEP_READ : PRIVSEP_WRITE);
}

/* The sandbox knows only what is there now; what is missing is likely a slip. */
static void
add_reach(struct reach *p, const char *reach, bool sandbox)
{
	while (*reach != '\0') {
		size_t length = strcspn(reach, ":");

		if (length > 0) {
			char *dir = strndup(reach, length);

			if (sandbox && dir != NULL && access(dir, F_OK) == -1)
				log_warn("reach=%s: %s: nothing in it can be opened later", dir,
					 strerror(errno));
			add_path(p, dir, PRIVSEP_WRITE);
		}
		reach += length;
		reach += *reach == ':';
	}
}

int
reach_collect(struct reach *p, const struct config *config, const char *config_file,
	      const char *state, struct pl_error *err)
{
	const struct server_settings *s = &config->server;
	const char *made[] = { s->pidfile, s->control, s->metrics };

	*p = (struct reach){ .list = NULL };
	for (unsigned i = 0; i < config->export_count; i++)
		add_export(p, &config->exports[i]);
	if (s->reach != NULL)
		add_reach(p, s->reach, s->sandbox);
	if (config_file != NULL)
		add_directory_of(p, config_file, PRIVSEP_READ);
	if (s->tls_certificates != NULL)
		add_path(p, strdup(s->tls_certificates), PRIVSEP_READ);
	if (s->tls_psk != NULL)
		add_directory_of(p, s->tls_psk, PRIVSEP_READ);
	if (state != NULL)
		add_path(p, strdup(state), PRIVSEP_REPLACE);
	for (unsigned i = 0; i < config->target_count; i++) {
		if (config->targets[i].chap != NULL)
			add_directory_of(p, config->targets[i].chap, PRIVSEP_READ);
	}
	for (unsigned i = 0; i < config->listener_count; i++) {
		if (config->listeners[i].kind == LISTENER_UNIX)
			add_directory_of(p, config->listeners[i].value, PRIVSEP_REMOVE);
	}
	for (unsigned i = 0; i < sizeof made / sizeof *made; i++) {
		/* An address without a '/' is no file. */
		if (made[i] != NULL && (made[i] != s->metrics || strchr(made[i], '/') != NULL))
			add_directory_of(p, made[i], PRIVSEP_REMOVE);
	}
	return p->error != 0 ? pl_error_set(err, p->error, "sandbox") : 0;
}

void
reach_free(struct reach *p)
{
	for (unsigned i = 0; i < p->count; i++)
		free((char *)p->list[i].path);
	free(p->list);
}
