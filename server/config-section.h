/*
 * config-section.h - sections of a configuration, as they were written: for the parts of config.
 *
 *	config.c          tables of keys; the command line; everything together
 *	config-file.c     platter.conf to sections
 *	config-live.c     what of it means something to a server that runs
 *	config-section.c  a section: its pairs, where each stands, and whether it is right
 *	config-target.c   [target NAME], and targets of the command line
 */
#ifndef CONFIG_SECTION_H
#define CONFIG_SECTION_H

#include "config.h"

enum section_kind { SECTION_SERVER, SECTION_EXPORT, SECTION_LISTENER, SECTION_TARGET };
#define SECTION_KINDS (SECTION_TARGET + 1)

/* Of an export, the server's part; what is not here is the driver's. */
struct export_values {
	struct offer_settings offer;
	const char *subject, *fingerprint, *psk, *uid, *gid;
};

struct listener_values {
	const char *unix_path, *tcp, *iscsi, *vsock, *mode;
};

struct target_values {
	const char *initiators, *addresses, *chap;
};

union section_values {
	struct server_settings server;
	struct export_values export;
	struct listener_values listener;
	struct target_values target;
};

/* What there is of each kind. */
struct section_kind_row {
	const char *word;
	const struct pl_option *options;
	bool drivers; /* other keys are a driver's */
	bool named, nameless;
};
extern const struct section_kind_row section_kinds[SECTION_KINDS];

#define SECTION_PAIRS 64 /* as many as pl_params hold */

struct section {
	enum section_kind kind;
	bool typed; /* by the command line, not by a file */
	char *name;
	char *where;
	struct pl_params *params;
	char *places[SECTION_PAIRS]; /* where each pair stands */
	struct pl_params *driver;    /* SECTION_EXPORT: the driver's part of params */
	struct access_rules *rules;
	struct section_lun *luns; /* SECTION_TARGET */
	struct section *next;
};

/* "lun.N = EXPORT[,KEY=VALUE...]" of a [target NAME], in their order */
struct section_lun {
	unsigned number;
	char *where;
	char *text; /* what export points into */
	char *export;
	char *initiators;         /* of params, or NULL */
	struct pl_params *params; /* without that */
	struct section_lun *next;
};

struct config_memory {
	struct section *first, **end;
	struct pl_params *server; /* of both [server] and the command line */

	/* config-target.c's: of the command line */
	char *target, *target_where;
	struct pl_params *unit;
	char *unit_where;
	char *implied;             /* the name of the target that --iscsi stands for */
	struct lun_settings *luns; /* of all targets */
};

/* ---- config-section.c ------------------------------------------------------------ */

/* typed: by the command line. Errors: -EINVAL (it is there already), -ENOMEM. */
int section_new(struct config *config, enum section_kind kind, bool typed, const char *name,
		const char *where, struct section **section, struct pl_error *err);
void section_free(struct section *s); /* NULL: nothing */
/* The section of that kind, name and origin which is there already, or NULL. */
struct section *section_find(const struct config *config, const struct section *like);
/* where: of this pair. Errors: -EINVAL (key or value), -ENOMEM. */
int section_add(struct section *s, const char *where, const char *key, const char *value,
		struct pl_error *err);
/* Where a key stands; of one that is not given, where the section begins. */
const char *section_place(const struct section *s, const char *key);
/* It has all its pairs. Errors: -EINVAL (they do not go together), -ENOMEM. */
int section_complete(struct section *s, struct pl_error *err);

int section_parse_mode(const char *text, uint64_t *mode, struct pl_error *err);
int section_check_rules(const struct export_values *v, struct access_rules **rules,
			struct pl_error *err);

/* "PLACE: " before what was said. */
int config_say_where(struct pl_error *err, const char *where);
int config_no_memory(const char *where, struct pl_error *err);
/* "KEY=VALUE,KEY=VALUE,...": changes text. */
int config_split_pairs(char *text, const char *where, struct pl_params *params,
		       struct pl_error *err);
/* The next of what commas separate: a doubled one stands for one. NULL: that was all. */
char *config_next_word(char **text);

/* ---- config-target.c ------------------------------------------------------------- */

bool section_is_lun(const struct section *s, const char *key); /* lun.N of a target */
int section_add_lun(struct section *s, const char *where, const char *key, const char *value,
		    struct pl_error *err);
void section_free_luns(struct section *s);
void config_free_targets(struct config_memory *memory);
/* When exports and listeners are known. */
int config_finish_targets(struct config *config, struct pl_error *err);

#endif
