/*
 * served.h - three small exports and a worker that serves them, for fuzzers of whole connections:
 * "w" takes all, "r" is read-only, "f" fails in 4 KiB at 8 KiB from the second time on.
 */
#ifndef SERVED_H
#define SERVED_H

#include "catalog.h"
#include "clients.h"
#include "worker.h"

#include <assert.h>

#define DISK 65536 /* bytes of each */

static struct workers *workers;
static struct clients *clients;

static inline void
no_log(enum pl_log_level level, const char *line)
{
	(void)level;
	(void)line;
}

static inline struct pl_params *
params_of(const char *const (*words)[2], unsigned count)
{
	struct pl_params *p = pl_params_new();
	int error = 0;

	for (unsigned i = 0; i < count; i++)
		error |= pl_params_add(p, words[i][0], words[i][1], NULL);
	assert(p != NULL && error == 0);
	return p;
}

/* settings has no catalog yet, and lives on. */
static inline void
serve_exports(struct worker_settings *settings)
{
	static const char *const memory[][2] = { { "driver", "memory" }, { "size", "64k" } };
	static const char *const faulty[][2] = {
		{ "driver", "fault" }, { "over", "memory" },    { "size", "64k" },
		{ "offset", "8192" },  { "length", "4096" },    { "at", "2" },
		{ "errno", "EIO" },    { "repeat", "forever" },
	};
	struct pl_params *good = params_of(memory, sizeof memory / sizeof *memory);
	struct pl_params *bad = params_of(faulty, sizeof faulty / sizeof *faulty);
	struct offer_settings offers[] = {
		{ .name = "w", .listed = true, .params = good },
		{ .name = "r", .listed = true, .params = good, .read_only = true },
		{ .name = "f", .listed = true, .params = bad },
	};
	unsigned opened;
	int error;

	pl_log_to(no_log);
	error = catalog_new(&settings->catalog, 1, NULL);
	assert(error == 0);
	error = catalog_apply(settings->catalog, offers, 3, &opened, NULL);
	assert(error == 0 && opened == 3);
	pl_params_free(good);
	pl_params_free(bad);
	error = clients_new(&clients, NULL);
	assert(error == 0);
	error = workers_start(&workers, 1, settings, NULL);
	assert(error == 0);
}

#endif
