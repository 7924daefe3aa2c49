/*
 * served.h - small exports and a worker that serves them (dry.h), for fuzzers of whole connections:
 * "w" takes all, "r" is read-only, "f" has no room in its second half, "s" takes its time there, so
 * that answers come in another order.
 */
#ifndef SERVED_H
#define SERVED_H

#include "catalog.h"
#include "clients.h"
#include "dry.h"
#include "worker.h"

#include <assert.h>
#include <sys/socket.h>
#include <unistd.h>

#define DISK 16384 /* bytes of each */

static struct workers *workers;
static struct clients *clients;
static int peers_end; /* of a socket: what a connection is from */

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
	static const char *const memory[][2] = { { "driver", "memory" }, { "size", "16k" } };
	static const char *const faulty[][2] = {
		{ "driver", "fault" }, { "over", "memory" },  { "size", "16k" },
		{ "offset", "8k" },    { "errno", "ENOSPC" }, { "repeat", "forever" },
	};
	static const char *const slow[][2] = {
		{ "driver", "fault" },   { "over", "memory" }, { "size", "16k" },
		{ "offset", "8k" },      { "fault", "delay" }, { "delay", "1s" },
		{ "repeat", "forever" },
	};
	struct pl_params *params[] = {
		params_of(memory, sizeof memory / sizeof *memory),
		params_of(faulty, sizeof faulty / sizeof *faulty),
		params_of(slow, sizeof slow / sizeof *slow),
	};
	struct offer_settings offers[] = {
		{ .name = "w", .listed = true, .params = params[0] },
		{ .name = "r", .listed = true, .params = params[0], .read_only = true },
		{ .name = "f", .listed = true, .params = params[1] },
		{ .name = "s", .listed = true, .params = params[2] },
	};
	int pair[2];
	unsigned opened;
	int error;

	pl_log_to(no_log);
	error = catalog_new(&settings->catalog, 1, NULL);
	assert(error == 0);
	error = catalog_apply(settings->catalog, offers, 4, &opened, NULL);
	assert(error == 0 && opened == 4);
	for (unsigned i = 0; i < sizeof params / sizeof *params; i++)
		pl_params_free(params[i]);
	error = clients_new(&clients, NULL);
	assert(error == 0);
	error = workers_start(&workers, 1, settings, NULL);
	assert(error == 0);
	error = socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, pair);
	assert(error == 0);
	peers_end = pair[0];
}

/* A connection from its start to its end. way: in which pieces bytes go, and when. */
static inline void
serve(enum worker_protocol protocol, const uint8_t *sent, size_t length, unsigned way)
{
	static const size_t pieces[] = { SIZE_MAX, 1000, 100, 49 };
	struct client *client;
	int fd = dup(peers_end), error = clients_admit(clients, fd, &client, NULL);

	assert(fd != -1 && error == 0);
	dry_feed(sent, length, pieces[way & 3]);
	dry_wire.lazy = (way & 4) != 0;
	dry_wire.stays = (way & 8) != 0;
	workers_take(workers, client, fd, fd, protocol);
	assert(clients_count(clients) == 0);
}

#endif
