/* doctor.c - platter doctor: is this fit to keep data, and what could be better? */
#include "doctor.h"
#include "tools.h"

#include <getopt.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* Beside these the severities of doctor.h. */
enum { STATUS_CANNOT = 3 };

struct settings {
	bool json, help;
	struct doctor_uri_how uri;
	uint64_t timeout;
};

#define ROW(field) offsetof(struct settings, field)
static const struct pl_option doctor_options[] = {
	{ "json", PL_OPT_BOOL, ROW(json), "", NULL, false, "one JSON object instead of text" },
	{ "check-flush", PL_OPT_BOOL, ROW(uri.check_flush), "", NULL, false,
	  "does a FLUSH cost time? Rewrites a block" },
	{ "timeout", PL_OPT_UINT, ROW(timeout), "SECONDS", "10", false,
	  "for an answer of the server" },
	{ "help", PL_OPT_BOOL, ROW(help), "", NULL, false, "show this" },
	PL_OPTION_END,
};
#undef ROW

static int
usage(void)
{
	char *rows = pl_option_rows(doctor_options, "  --", " ");

	printf("usage: platter doctor [OPTION...] PATH|URI\n\n"
	       "Looks at a disk or a server, and says what its promises are worth to who keeps\n"
	       "data there. Writes nothing to an image; beside it, for a while, to a file of its\n"
	       "own.\n"
	       "PATH: an image, a device, or a directory where images are to lie.\n"
	       "URI: nbd://HOST[:PORT]/EXPORT, nbd+unix:///EXPORT?socket=PATH, or nbds for TLS;\n"
	       "iscsi://[USER%%PASSWORD@]HOST[:PORT]/TARGET-NAME/LUN.\n\n%s\n"
	       "Status: 0 healthy, 1 there is advice, 2 unsafe, 3 it could not be examined.\n",
	       rows != NULL ? rows : "");
	free(rows);
	return DOCTOR_HEALTHY;
}

static int
complain(const char *what)
{
	fprintf(stderr, "platter doctor: %s\n", what);
	return STATUS_CANNOT;
}

static int
examine(const char *target, const struct settings *s)
{
	struct doctor_report *r = doctor_report_new();
	int status = STATUS_CANNOT;
	struct pl_error err;

	if (r == NULL)
		return complain("out of memory");
	if ((tool_is_uri(target) ? doctor_uri(r, target, &s->uri, &err)
				 : doctor_path(r, target, &err)) != 0) {
		if (!tool_is_uri(target))
			pl_text_clean(err.text); /* a path may have anything in it */
		complain(err.text);
		if (s->json)
			doctor_print_failure(target, err.text);
	} else {
		doctor_print(r, target, s->json);
		status = (int)doctor_worst(r);
	}
	doctor_report_free(r);
	return status;
}

int
tool_doctor(int argc, char **argv)
{
	struct pl_params *params = pl_params_new();
	struct settings s = { 0 };
	int status;

	if (params == NULL)
		return complain("out of memory");
	signal(SIGPIPE, SIG_IGN);
	if (tool_options(argc, argv, doctor_options, params, &s) != 0) {
		status = STATUS_CANNOT;
	} else if (s.help) {
		status = usage();
	} else if (optind + 1 != argc) {
		status = complain("name one PATH or URI; --help");
	} else if (s.timeout < 1 || s.timeout > 3600) {
		status = complain("--timeout is from 1 to 3600");
	} else {
		s.uri.timeout_s = (unsigned)s.timeout;
		status = examine(argv[optind], &s);
	}
	pl_params_free(params);
	return status;
}
