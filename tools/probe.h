/*
 * probe.h - assertions about an NBD server, and what they run on.
 *
 * An assertion is a row of a table and a function that returns when the server kept it.
 * Each runs in a process of its own, over connections of its own, on a clock: so it ends
 * where it fails (fail() does not return), leaves nothing behind, and a server that hangs
 * is a result like any other. Source of the rows: NBD proto.md and its extension branch
 * for extended headers.
 */
#ifndef PROBE_H
#define PROBE_H

#include "nbd/protocol.h"
#include "platter.h"
#include "probe-uri.h"

/* ---- what an assertion is -------------------------------------------------------- */

enum probe_level {
	PROBE_MUST,
	PROBE_SHOULD,
	PROBE_EXTENSION, /* a MUST of the extension for extended headers */
	PROBE_POLICY,    /* the specification is silent; how platterd decides */
};

/* How commands and replies look. */
enum probe_headers { COMPACT, STRUCTURED, EXTENDED, PROBE_HEADERS };

/* Bits of probe_row.needs; each has its words in probe.c for when it is missing. */
enum probe_need {
	NEED_WRITE = 1 << 0,     /* changes data: --write, and an export that is writable */
	NEED_READ_ONLY = 1 << 1, /* an export that is not; and --write */
	NEED_SLOW = 1 << 2,      /* takes its time: --slow */
	NEED_STARTTLS = 1 << 3,  /* TLS, with credentials to use it */
	NEED_NO_TLS = 1 << 4,
	NEED_FORCED_TLS = 1 << 5,
	NEED_STRUCTURED = 1 << 6, /* can be agreed on */
	NEED_EXTENDED = 1 << 7,
	NEED_CONTEXT = 1 << 8, /* base:allocation */
	NEED_LIST = 1 << 9,
	NEED_NO_LIST = 1 << 10,
	NEED_UNKNOWN = 1 << 11, /* there are names that are no exports */
	NEED_FLUSH = 1 << 12,
	NEED_FUA = 1 << 13,
	NEED_NO_FUA = 1 << 14,
	NEED_TRIM = 1 << 15,
	NEED_ZEROES = 1 << 16,
	NEED_FAST_ZERO = 1 << 17,
	NEED_NO_FAST_ZERO = 1 << 18,
	NEED_CACHE = 1 << 19,
	NEED_MULTI_CONN = 1 << 20,
	NEED_BLOCKS = 1 << 21, /* a smallest block above 1 */
	NEED_FILTER = 1 << 22, /* BLOCK_STATUS with a payload */
	NEED_DF = 1 << 23,
	NEED_WRITABLE = 1 << 24,
};

/* Bits of probe_row.on: the connections that it is tried on. */
enum probe_on {
	ON_WIRE = 1 << 0,      /* once, without TLS, whatever the URI says */
	ON_HANDSHAKE = 1 << 1, /* each transport */
	ON_COMPACT = 1 << 2,   /* each transport with these headers */
	ON_STRUCTURED = 1 << 3,
	ON_EXTENDED = 1 << 4,
	ON_CHUNKS = ON_STRUCTURED | ON_EXTENDED,
	ON_ALL = ON_COMPACT | ON_CHUNKS,
};

struct probe;

struct probe_row {
	unsigned number; /* assertions that belong together share it */
	const char *name;
	enum probe_level level;
	const char *sentence;
	void (*run)(const struct probe *p);
	unsigned on, needs;
};

/* Both end with a row that has no name. */
extern const struct probe_row probe_handshake_rows[], probe_transmission_rows[];

/* ---- what is known of the server ------------------------------------------------- */

/* The bytes at the start of the export that assertions may write; put back at the end. */
#define PROBE_WINDOW (33u << 20)

struct probe_survey {
	uint16_t greeting;         /* handshake flags */
	bool starttls, forced_tls; /* offered, demanded */
	bool plain, tls;           /* what this run can use */
	bool structured, extended, context;
	bool list, list_refused;
	bool unknown; /* a name that is none is refused */
	uint64_t size;
	uint16_t flags[PROBE_HEADERS];
	bool has_blocks; /* advertised */
	uint32_t min, preferred, max;

	uint64_t window; /* bytes saved; 0: nothing may be written */
	bool unsaved;    /* they could not be */
	/* A range beyond it that read as zeroes and must do so again. */
	struct {
		uint64_t offset, length;
	} zeroes;
};

struct probe {
	const struct nbd_uri *uri;
	struct probe_survey *found;
	uint8_t *saved; /* the window */
	bool tls;       /* of the connections that this run is for */
	enum probe_headers headers;
};

/* Transmission flags as this run's connections have them. */
static inline uint16_t
probe_flags(const struct probe *p)
{
	return p->found->flags[p->headers];
}

/* What the server offers. Errors: -ENOTCONN, and the sentence tells why it could not be found out.
 */
int probe_look(const struct nbd_uri *uri, unsigned seconds, struct probe_survey *found,
	       struct pl_error *err);

/* ---- verdicts; none returns ------------------------------------------------------ */

_Noreturn void fail(const char *fmt, ...) PL_PRINTF(1, 2);
_Noreturn void cannot_connect(const char *fmt, ...) PL_PRINTF(1, 2);
_Noreturn void not_applicable(const char *fmt, ...) PL_PRINTF(1, 2);

/* What the clock says when it runs out in the middle of it. */
void doing(const char *fmt, ...) PL_PRINTF(1, 2);

#endif
