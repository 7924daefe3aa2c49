/*
 * cmdline.c - the command line of platterd.
 *
 * Two tables have all options: the one here, and that of section [server].
 */
#include "cmdline.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* What is done with an option; its row's `at`. */
enum action {
	DO_LISTEN,
	DO_EXPORT,
	DO_TARGET,
	DO_UNIT,
	DO_IMAGE, /* tell the image on the command line */
	DO_CONFIG,
	DO_CHECK,
	DO_RUN,
	DO_INETD,
	DO_FOREGROUND,
	DO_HELP,
	DO_VERSION,
};

static const struct pl_option cmdline_options[] = {
	{ "unix", PL_OPT_STRING, DO_LISTEN, "PATH", NULL, false, "listen there; may be repeated," },
	{ "tcp", PL_OPT_STRING, DO_LISTEN, "[HOST:]PORT", NULL, false,
	  "as these two (without any: localhost:10809)" },
	{ "vsock", PL_OPT_STRING, DO_LISTEN, "[CID:]PORT", NULL, false, "for virtual machines" },
	{ "iscsi", PL_OPT_STRING, DO_LISTEN, "[HOST:]PORT", NULL, false,
	  "by iSCSI: exports are LUNs 0, 1, ..." },
	{ "target", PL_OPT_STRING, DO_TARGET, "NAME", NULL, false, "the iSCSI name of that" },
	{ "scsi", PL_OPT_STRING, DO_UNIT, "KEY=VALUE,...", NULL, false,
	  "what these LUNs are like; see --help=lun" },
	{ "export", PL_OPT_STRING, DO_EXPORT, "name=N,path=P,...", NULL, false,
	  "serve this, too; may be repeated" },
	{ "cache", PL_OPT_STRING, DO_IMAGE, "MODE", NULL, false,
	  "of IMAGE: auto, writeback, none, ..." },
	{ "fua", PL_OPT_STRING, DO_IMAGE, "WAY", NULL, false, "of IMAGE: auto, native, commit" },
	{ "read-only", PL_OPT_BOOL, DO_IMAGE, "", NULL, false, "IMAGE is not written" },
	{ "config", PL_OPT_STRING, DO_CONFIG, "FILE", NULL, false,
	  "or -c FILE; see platter.conf(5)" },
	{ "check-config", PL_OPT_BOOL, DO_CHECK, "", NULL, false, "look for mistakes, do no more" },
	{ "run", PL_OPT_STRING, DO_RUN, "COMMAND", NULL, false,
	  "serve while it runs, $uri in its environment" },
	{ "inetd", PL_OPT_BOOL, DO_INETD, "", NULL, false, "serve standard input and output" },
	{ "foreground", PL_OPT_BOOL, DO_FOREGROUND, "", NULL, false,
	  "stay there; log to standard error" },
	{ "help", PL_OPT_BOOL, DO_HELP, "[=export|=listener|=target|=lun]", NULL, false,
	  "this, or what there is of keys" },
	{ "version", PL_OPT_BOOL, DO_VERSION, "", NULL, false, "show it" },
	PL_OPTION_END,
};

struct parser {
	int argc;
	char **argv;
	int next; /* argument */
	struct cmdline *cmdline;
	struct config *config;
	struct pl_params *image;
};

/* ---- one option ------------------------------------------------------------------ */

static int
unknown_option(const char *name, const char *arg, struct pl_error *err)
{
	unsigned distance = 4;
	const struct pl_option *near = pl_option_nearest(server_options, name, &distance);
	const struct pl_option *nearer = pl_option_nearest(cmdline_options, name, &distance);

	if (nearer != NULL)
		near = nearer;
	return pl_error_say(err, -EINVAL, "%s: there is no such option; %s%s%s", arg,
			    near != NULL ? "is --" : "", near != NULL ? near->name : "",
			    near != NULL ? " meant?" : "--help shows all");
}

static int
set_once(const char **at, const char *arg, const char *value, struct pl_error *err)
{
	if (*at != NULL)
		return pl_error_say(err, -EINVAL, "%s is given twice: %s and %s", arg, *at, value);
	*at = value;
	return 0;
}

static int
take(struct parser *p, const struct pl_option *o, const char *arg, const char *value,
     struct pl_error *err)
{
	struct cmdline *c = p->cmdline;

	switch ((enum action)o->at) {
	case DO_LISTEN: return config_add_listener(p->config, arg, o->name, value, err);
	case DO_EXPORT: return config_add_export(p->config, arg, value, err);
	case DO_TARGET: return config_set_target(p->config, arg, value, err);
	case DO_UNIT: return config_set_unit(p->config, arg, value, err);
	case DO_IMAGE:
		return pl_params_add(p->image, o->name, o->type == PL_OPT_BOOL ? "on" : value, err);
	case DO_CONFIG: return set_once(&c->config, arg, value, err);
	case DO_RUN: return set_once(&c->run, arg, value, err);
	case DO_CHECK: c->check_config = true; return 0;
	case DO_INETD: c->inetd = true; return 0;
	case DO_FOREGROUND: c->foreground = true; return 0;
	case DO_HELP: c->help = value != NULL ? value : ""; return 0;
	case DO_VERSION: c->version = true; return 0;
	}
	return 0;
}

/* "--NAME=VALUE", or "--NAME" and perhaps the next argument. */
static int
parse_long(struct parser *p, const char *arg, struct pl_error *err)
{
	const char *equals = strchr(arg, '='), *value = equals != NULL ? equals + 1 : NULL;
	char *shown = strndup(arg, equals != NULL ? (size_t)(equals - arg) : strlen(arg));
	const struct pl_option *o, *of_server = NULL;
	int error = 0;

	if (shown == NULL)
		return pl_error_set(err, -ENOMEM, "%s", arg);
	o = pl_option_find(cmdline_options, shown + 2);
	if (o == NULL)
		o = of_server = pl_option_find(server_options, shown + 2);
	if (o == NULL) {
		error = unknown_option(shown + 2, shown, err);
	} else if (of_server == NULL && o->type == PL_OPT_BOOL) {
		if (value != NULL && *o->words == '\0')
			error = pl_error_say(err, -EINVAL, "%s: it takes no value", arg);
	} else if (value == NULL) {
		if (p->next == p->argc)
			error = pl_error_say(err, -EINVAL, "%s: its value is missing", shown);
		else
			value = p->argv[p->next++];
	}
	if (error == 0 && of_server != NULL)
		error = config_set(p->config, shown, o->name, value, err);
	else if (error == 0)
		error = take(p, o, shown, value, err);
	free(shown);
	return error;
}

static int
parse_short(struct parser *p, const char *arg, struct pl_error *err)
{
	switch (arg[1]) {
	case 'h':
		if (arg[2] == '\0')
			return parse_long(p, "--help", err);
		break;
	case 'c':
		if (arg[2] == '\0')
			return parse_long(p, "--config", err);
		return set_once(&p->cmdline->config, "-c", arg + 2, err);
	}
	return pl_error_say(err, -EINVAL, "%s: there is no such option; --help shows all", arg);
}

static int
parse_image(struct parser *p, const char *arg, struct pl_error *err)
{
	const char *other = pl_params_get(p->image, "path");

	if (other != NULL)
		return pl_error_say(err, -EINVAL,
				    "%s and %s: one image can be the default export; serve more by "
				    "--export name=NAME,path=PATH",
				    other, arg);
	return pl_params_add(p->image, "path", arg, err);
}

/* ---- all of them ----------------------------------------------------------------- */

static int
add_image(struct parser *p, struct pl_error *err)
{
	const char *path = pl_params_get(p->image, "path");

	if (path != NULL)
		return config_add_params(p->config, path, p->image, err);
	if (pl_params_count(p->image) > 0)
		return pl_error_say(err, -EINVAL,
				    "--%s is about an IMAGE on the command line, and "
				    "there is none",
				    pl_params_key(p->image, 0));
	return 0;
}

static int
check_together(const struct cmdline *c, const struct config *config, struct pl_error *err)
{
	if (c->inetd && (c->run != NULL || config->listener_count > 0))
		return pl_error_say(err, -EINVAL,
				    "--inetd serves one connection that is there already: it does "
				    "not go with listeners or --run");
	if (config->export_count == 0 && c->config == NULL)
		return pl_error_say(err, -EINVAL,
				    "there is nothing to serve: name an image (platterd disk.img), "
				    "exports (--export name=NAME,path=PATH) or a configuration (-c "
				    "platter.conf); platterd --help shows more");
	return 0;
}

static int
parse_all(struct parser *p, struct pl_error *err)
{
	bool only_images = false;
	int error = 0;

	while (error == 0 && p->next < p->argc) {
		const char *arg = p->argv[p->next++];

		if (only_images || arg[0] != '-' || arg[1] == '\0')
			error = parse_image(p, arg, err);
		else if (strcmp(arg, "--") == 0)
			only_images = true;
		else if (arg[1] == '-')
			error = parse_long(p, arg, err);
		else
			error = parse_short(p, arg, err);
	}
	if (error != 0 || p->cmdline->help != NULL || p->cmdline->version)
		return error;
	error = add_image(p, err);
	if (error == 0 && p->cmdline->config != NULL)
		error = config_read(p->config, p->cmdline->config, err);
	if (error == 0)
		error = config_finish(p->config, err);
	return error != 0 ? error : check_together(p->cmdline, p->config, err);
}

int
cmdline_parse(int argc, char **argv, struct cmdline *cmdline, struct config *config,
	      struct pl_error *err)
{
	struct parser p = {
		.argc = argc,
		.argv = argv,
		.next = 1,
		.cmdline = cmdline,
		.config = config,
		.image = pl_params_new(),
	};
	int error;

	*cmdline = (struct cmdline){ .help = NULL };
	if (p.image == NULL)
		return pl_error_set(err, -ENOMEM, "command line");
	error = parse_all(&p, err);
	pl_params_free(p.image);
	return error;
}

/* ---- help ------------------------------------------------------------------------ */

static void
show(char *text)
{
	if (text != NULL)
		fputs(text, stdout);
	free(text);
}

int
cmdline_help(const char *topic, struct pl_error *err)
{
	if (*topic == '\0') {
		puts("platterd [OPTION...] [IMAGE]     Serves disks; see platterd(8).");
		show(pl_option_rows(cmdline_options, "  --", " "));
		puts("and, also in section [server] of platter.conf:");
		show(pl_option_rows(server_options, "  --", " "));
	} else if (strcmp(topic, "export") == 0) {
		puts("Keys of --export and of a section [export NAME]:");
		show(pl_option_rows(export_options, "    ", "="));
		puts("and those of its driver, which is file unless driver=DRIVER says another:");
		show(pl_options_help());
	} else if (strcmp(topic, "listener") == 0) {
		puts("Keys of a section [listener NAME]:");
		show(pl_option_rows(listener_options, "    ", "="));
	} else if (strcmp(topic, "target") == 0) {
		puts("Keys of a section [target NAME]:");
		show(pl_option_rows(target_options, "    ", "="));
	} else if (strcmp(topic, "lun") == 0) {
		puts("Keys behind lun.N = EXPORT of a section [target NAME]:");
		show(pl_option_rows(lun_options, "    ", "="));
		puts("and those of --scsi, see platter-scsi(7):");
		show(pl_option_rows(scsi_unit_options, "    ", "="));
	} else {
		return pl_error_say(err, -EINVAL,
				    "--help=%s: there are --help, --help=export, --help=listener, "
				    "--help=target and --help=lun",
				    topic);
	}
	return 0;
}
