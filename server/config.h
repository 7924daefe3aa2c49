/*
 * config.h - what the server is to do: from the command line and platter.conf, checked
 * before anything is done.
 *
 * The tables here are read by the parser, by --help and by the manuals' test.
 */
#ifndef CONFIG_H
#define CONFIG_H

#include "catalog.h"
#include "iscsi/targets.h"
#include "listener.h"
#include "platter.h"

/* Section [server], and options of the command line with the same names. */
struct server_settings {
	/* filled by config.c's table; all strings point into the config */
	const char *user, *group, *pidfile, *control, *metrics;
	const char *tls_certificates, *tls_psk;
	const char *state; /* directory of what iSCSI keeps; NULL: see state_place() */
	const char *reach; /* directories, separated by ':', that a reload may open images in */
	int tls;           /* enum tls_policy */
	bool tls_verify_peer, list, sandbox, poll;
	uint64_t loops, memory, depth; /* 0 loops: one for each CPU, at most 8 */
	uint64_t handshake_timeout;    /* nanoseconds */
	uint64_t max_connections, max_connections_per_host;
};

struct config {
	struct server_settings server;
	struct offer_settings *exports;
	unsigned export_count;
	struct listener_settings *listeners;
	unsigned listener_count;
	struct target_settings *targets;
	unsigned target_count;
	struct config_memory *memory; /* what all strings and params above point into */
};

/*
 * Builds a config bit by bit: from a file and from options. Each call checks what it can and
 * fails with a sentence that names file, line and key (or the option), and its value.
 */
int config_new(struct config **config, struct pl_error *err);
void config_free(struct config *config);
int config_read(struct config *config, const char *path, struct pl_error *err);
int config_set(struct config *config, const char *where, const char *key, const char *value,
	       struct pl_error *err); /* of [server] */
/* params: `name` (none: the default export), and the keys of [export]. */
int config_add_params(struct config *config, const char *where, const struct pl_params *params,
		      struct pl_error *err);
/* text: "name=NAME,driver=file,path=PATH,..."; a comma in a value is doubled. */
int config_add_export(struct config *config, const char *where, const char *text,
		      struct pl_error *err);
int config_add_listener(struct config *config, const char *where, const char *kind,
			const char *value, struct pl_error *err);
/* --target: the name of the target that --iscsi stands for; --scsi: options of its units. */
int config_set_target(struct config *config, const char *where, const char *name,
		      struct pl_error *err);
int config_set_unit(struct config *config, const char *where, const char *text,
		    struct pl_error *err);
/* Everything together: names unique, TLS policy has credentials, ... and defaults filled in. */
int config_finish(struct config *config, struct pl_error *err);

/* Says in the log what of a fresh one takes effect at the next start only. now: of the start. */
void config_report_waiting(const struct config *now, const struct config *fresh);

/* Where a key of section [server] was given: FILE:LINE or its option. */
const char *config_place(const struct config *config, const char *key);

extern const struct pl_option server_options[], export_options[], listener_options[],
	target_options[], lun_options[];

#endif
