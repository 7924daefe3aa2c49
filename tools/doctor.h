/*
 * doctor.h - what platter doctor has found out: facts, and findings that follow from them.
 *
 * Facts are what was seen, in the order in which they were told. What could not be read is a fact,
 * too. Findings are what somebody should know or do; they are told by severity, then by worth.
 */
#ifndef DOCTOR_H
#define DOCTOR_H

#include "platter.h"

/* The worst of the findings' is the exit status. */
enum doctor_severity { DOCTOR_HEALTHY, DOCTOR_ADVICE, DOCTOR_UNSAFE };

struct doctor_report;

struct doctor_report *doctor_report_new(void); /* NULL: out of memory */
void doctor_report_free(struct doctor_report *r);

/* Facts of a group follow each other. group and name have to last. */
void doctor_fact(struct doctor_report *r, const char *group, const char *name, const char *fmt, ...)
	PL_PRINTF(4, 5);

struct doctor_finding {
	enum doctor_severity severity;
	unsigned worth; /* of two that are equally severe, the greater is told first */
	const char *what, *why, *remedy; /* sentences; remedy may be NULL */
};

/* Its sentences have to last. */
void doctor_find(struct doctor_report *r, const struct doctor_finding *finding);

/* Holds where all of `with` is there, and nothing of `without`: bits that say what was seen. */
struct doctor_row {
	unsigned with, without;
	struct doctor_finding finding;
};

void doctor_conclude(struct doctor_report *r, const struct doctor_row *rows, unsigned count,
		     unsigned traits);

enum doctor_severity doctor_worst(const struct doctor_report *r);
void doctor_print(struct doctor_report *r, const char *target, bool json);
/* It could not be examined, as JSON. */
void doctor_print_failure(const char *target, const char *error);

/* ---- who examines ---------------------------------------------------------------- */

struct doctor_uri_how {
	bool check_flush; /* writes back what it has read */
	unsigned timeout_s;
};

/* doctor-uri.c: a server of NBD or iSCSI. Errors: it could not be reached, or does not answer. */
int doctor_uri(struct doctor_report *r, const char *uri, const struct doctor_uri_how *how,
	       struct pl_error *err);

/* doctor-path.c: a file or device that is to be served, or a directory for such. Errors: it is not
 * there, is something else, or cannot be served. */
int doctor_path(struct doctor_report *r, const char *path, struct pl_error *err);

#endif
