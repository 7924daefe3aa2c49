/* log.c - four verbs, one sink. */
#include "platter.h"

#include <stdio.h>
#include <string.h>

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

/* The bytes of the letter that text begins with; 0: it begins with none. */
static size_t
letter(const char *text, uint32_t *c)
{
	static const uint32_t least[] = { 0, 0, 0x80, 0x800, 0x10000 };
	unsigned char first = (unsigned char)*text;
	size_t n = first < 0x80 ? 1 : first < 0xc0 ? 0 : first < 0xe0 ? 2 : first < 0xf0 ? 3 : 4;

	if (n == 0 || first > 0xf4)
		return 0;
	*c = n == 1 ? first : first & (0x7fu >> n);
	for (size_t i = 1; i < n; i++) {
		if ((text[i] & 0xc0) != 0x80)
			return 0;
		*c = *c << 6 | (text[i] & 0x3f);
	}
	return *c < least[n] || *c > 0x10ffff || (*c >= 0xd800 && *c < 0xe000) ? 0 : n;
}

/* C0, DEL and C1; ends of lines, and what turns the order of letters. */
static bool
is_control(uint32_t c)
{
	return c < ' ' || (c >= 0x7f && c < 0xa0) || c == 0x061c || c == 0x200e || c == 0x200f ||
	       (c >= 0x2028 && c <= 0x202e) || (c >= 0x2066 && c <= 0x2069);
}

void
pl_text_clean(char *text)
{
	size_t length;
	uint32_t c;

	for (; *text != '\0'; text += length) {
		length = letter(text, &c);
		if (length == 0 || is_control(c)) {
			length = length == 0 ? 1 : length;
			memset(text, '?', length);
		}
	}
}

static void
log_line(enum pl_log_level level, const char *fmt, va_list args)
{
	char line[6000];

	vsnprintf(line, sizeof line, fmt, args);
	/* Names come from peers, and lines go to terminals. */
	pl_text_clean(line);
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
