/* uris.c - what clients can be told. */
#include "uris.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What has been printed. */
struct printed {
	struct printed *next;
	char *uri;
};

/* Two addresses of one name have one URI. Takes uri over; NULL: nothing. */
static void
print_once(struct printed **list, char *uri)
{
	struct printed *p;

	for (p = *list; p != NULL && uri != NULL && strcmp(p->uri, uri) != 0; p = p->next)
		;
	if (uri == NULL || p != NULL) {
		free(uri);
		return;
	}
	puts(uri);
	p = malloc(sizeof *p);
	if (p == NULL) {
		free(uri);
		return;
	}
	*p = (struct printed){ *list, uri };
	*list = p;
}

/* o: NULL: none yet. */
static char *
nbd_uri(const struct listener *l, const struct offer_settings *o, const struct config *config)
{
	bool tls = (o != NULL ? o->tls : config->server.tls) == TLS_REQUIRED;

	return listener_uri(l, tls, o != NULL ? o->name : "");
}

void
uris_print(const struct listener *nbd, const struct listener *iscsi, const struct config *config)
{
	struct printed *list = NULL, *next;

	for (const struct listener *l = nbd; l != NULL; l = listener_next(l)) {
		for (unsigned i = 0; i < config->export_count; i++)
			print_once(&list, nbd_uri(l, &config->exports[i], config));
	}
	for (const struct listener *l = iscsi; l != NULL; l = listener_next(l)) {
		for (unsigned i = 0; i < config->target_count; i++) {
			const struct target_settings *t = &config->targets[i];

			for (unsigned j = 0; j < t->lun_count; j++)
				print_once(&list, listener_iscsi_uri(l, t->name, t->luns[j].lun));
		}
	}
	fflush(stdout);
	for (; list != NULL; list = next) {
		next = list->next;
		free(list->uri);
		free(list);
	}
}

char *
uris_best(const struct listener *nbd, const struct listener *iscsi, const struct config *config)
{
	const struct offer_settings *o = config->export_count > 0 ? config->exports : NULL;

	if (nbd == NULL)
		return listener_iscsi_uri(iscsi, config->targets[0].name,
					  config->targets[0].luns[0].lun);
	for (unsigned i = 0; i < config->export_count; i++) {
		if (*config->exports[i].name == '\0')
			o = &config->exports[i];
	}
	return nbd_uri(nbd, o, config);
}
