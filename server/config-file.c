/*
 * config-file.c - platter.conf.
 *
 * It is read by a small parser of our own. The library at hand (inih, as Debian
 * builds it) cuts values behind 194 bytes without a word, drops a section whose name is long,
 * and does not tell of a section that begins again; names of exports and paths have up to 4096
 * bytes here, and what was written wrong must be refused, not guessed.
 */
#include "config-section.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define LINE_BYTES 16384 /* a path, and then some */

struct reader {
	FILE *file;
	const char *path;
	unsigned line;
	char text[LINE_BYTES + 1];
};

static bool
is_blank(int c)
{
	return c == ' ' || c == '\t' || c == '\r';
}

static char *
trim(char *text)
{
	char *end = text + strlen(text);

	while (end > text && is_blank(end[-1]))
		end--;
	*end = '\0';
	while (is_blank(*text))
		text++;
	return text;
}

static int PL_PRINTF(3, 4)
	line_error(const struct reader *r, struct pl_error *err, const char *fmt, ...)
{
	char text[1024];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof text, fmt, args);
	va_end(args);
	return pl_error_say(err, -EINVAL, "%s:%u: %s", r->path, r->line, text);
}

/* *more: whether there was a line. */
static int
read_line(struct reader *r, bool *more, struct pl_error *err)
{
	static const char mark[] = "\xef\xbb\xbf"; /* editors of another world begin with it */
	size_t n = 0;
	int c;

	r->line++;
	while ((c = getc_unlocked(r->file)) != EOF && c != '\n') {
		if (c == '\0')
			return line_error(r, err, "a byte that is no text");
		if (n == LINE_BYTES)
			return line_error(r, err, "the line is longer than %d bytes", LINE_BYTES);
		r->text[n++] = (char)c;
	}
	if (ferror(r->file))
		return pl_error_set(err, -errno, "%s: read", r->path);
	r->text[n] = '\0';
	*more = c != EOF || n > 0;
	if (r->line == 1 && strncmp(r->text, mark, strlen(mark)) == 0)
		memmove(r->text, r->text + strlen(mark), n + 1 - strlen(mark));
	return 0;
}

/* "[kind name]" */
static int
read_header(struct reader *r, struct config *config, char *text, const char *where,
	    struct section **section, struct pl_error *err)
{
	size_t length = strlen(text);
	char *name;

	if (text[length - 1] != ']')
		return line_error(r, err,
				  "a section begins with a line such as [server] or "
				  "[export NAME]");
	text[length - 1] = '\0';
	text = trim(text + 1);
	name = text + strcspn(text, " \t");
	if (*name != '\0')
		*name++ = '\0';
	name = trim(name);
	for (unsigned k = 0; k < SECTION_KINDS; k++) {
		if (strcmp(text, section_kinds[k].word) != 0)
			continue;
		if (*name != '\0' ? !section_kinds[k].named : !section_kinds[k].nameless)
			return line_error(r, err, "[%s] %s a name", text,
					  section_kinds[k].named ? "needs" : "has not");
		return section_new(config, k, false, name, where, section, err);
	}
	return line_error(r, err,
			  "[%s]: there is no such section; there are: [server], "
			  "[export NAME], [listener NAME], [target NAME]",
			  text);
}

static int
read_pair(struct reader *r, char *text, const char *where, struct section *section,
	  struct pl_error *err)
{
	char *equals = strchr(text, '='), *value;

	if (equals == NULL)
		return line_error(r, err, "%.80s: expected KEY = VALUE", text);
	*equals = '\0';
	text = trim(text);
	value = trim(equals + 1);
	if (section == NULL)
		return line_error(r, err,
				  "%.80s: it stands in no section; [server] is for the "
				  "server as a whole",
				  text);
	if (*value == '\0')
		return line_error(r, err, "%.80s: it has no value", text);
	if (pl_params_get(section->params, text) != NULL)
		return line_error(r, err, "%.80s is given twice: at %s, too", text,
				  section_place(section, text));
	return section_add(section, where, text, value, err);
}

static int
read_sections(struct reader *r, struct config *config, struct pl_error *err)
{
	struct section *section = NULL;
	bool more = true;
	int error;

	while ((error = read_line(r, &more, err)) == 0 && more) {
		char *text = trim(r->text);
		char *where;

		if (*text == '\0' || *text == '#' || *text == ';')
			continue;
		if (asprintf(&where, "%s:%u", r->path, r->line) == -1)
			return config_no_memory(r->path, err);
		if (*text != '[') {
			error = read_pair(r, text, where, section, err);
		} else {
			error = section != NULL ? section_complete(section, err) : 0;
			if (error == 0)
				error = read_header(r, config, text, where, &section, err);
		}
		free(where);
		if (error != 0)
			return error;
	}
	return error == 0 && section != NULL ? section_complete(section, err) : error;
}

int
config_read(struct config *config, const char *path, struct pl_error *err)
{
	struct reader *r = malloc(sizeof *r);
	int error;

	if (r == NULL)
		return config_no_memory(path, err);
	r->path = path;
	r->line = 0;
	r->file = fopen(path, "re");
	if (r->file == NULL) {
		error = pl_error_set(err, -errno, "%s", path);
	} else {
		error = read_sections(r, config, err);
		fclose(r->file);
	}
	free(r);
	return error;
}
