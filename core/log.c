/* log.c - four verbs, one sink. */
#include "platter.h"

#include <stdio.h>

static void
log_to_stderr(enum pl_log_level level, const char *line)
{
	static const char *const words[] = {
		[PL_LOG_ERROR] = "error",
		[PL_LOG_WARN] = "warning",
		[PL_LOG_INFO] = "info",
		[PL_LOG_DEBUG] = "debug",
	};

	if (level != PL_LOG_DEBUG)
		fprintf(stderr, "platter: %s: %s\n", words[level], line);
}

static pl_log_sink *log_sink = log_to_stderr;

void
pl_log_to(pl_log_sink *sink)
{
	log_sink = sink != NULL ? sink : log_to_stderr;
}

static void
log_line(enum pl_log_level level, const char *fmt, va_list args)
{
	char line[6000];

	vsnprintf(line, sizeof line, fmt, args);
	/* Names come from peers, and lines go to terminals. */
	for (char *c = line; *c != '\0'; c++) {
		if ((unsigned char)*c < ' ' || *c == '\x7f')
			*c = '?';
	}
	log_sink(level, line);
}

#define LOG_VERB(verb, level) \
	void log_##verb(const char *fmt, ...) \
	{ \
		va_list args; \
\
		va_start(args, fmt); \
		log_line(level, fmt, args); \
		va_end(args); \
	}

LOG_VERB(error, PL_LOG_ERROR)
LOG_VERB(warn, PL_LOG_WARN)
LOG_VERB(info, PL_LOG_INFO)
LOG_VERB(debug, PL_LOG_DEBUG)
