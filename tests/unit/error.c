/* error.c - what goes wrong is said in one sentence. */
#include "platter.h"
#include "test.h"

#include <errno.h>
#include <string.h>

TEST(an_error_has_its_sentence_and_the_words_of_its_errno)
{
	struct pl_error err;

	assert_eq(pl_error_set(&err, -ENOENT, "%s: open", "x.img"), -ENOENT);
	assert_eq(err.code, -ENOENT);
	assert_str(err.text, "x.img: open: No such file or directory");
	assert_eq(pl_error_say(&err, -EINVAL, "no"), -EINVAL);
	assert_str(err.text, "no");
	assert_eq(pl_error_set(NULL, -EIO, "nobody listens"), -EIO);
}

TEST(a_sentence_that_is_too_long_is_cut_not_spilt)
{
	struct pl_error err;
	char longer[2 * sizeof err.text];

	memset(longer, 'x', sizeof longer);
	longer[sizeof longer - 1] = '\0';
	assert_eq(pl_error_set(&err, -EIO, "%s", longer), -EIO);
	assert_eq(strlen(err.text), sizeof err.text - 1);
}

static char logged[256];

static void
remember(enum pl_log_level level, const char *line)
{
	assert_eq(level, PL_LOG_WARN);
	strncpy(logged, line, sizeof logged - 1);
}

TEST(a_log_line_comes_whole_to_the_sink)
{
	pl_log_to(remember);
	log_warn("export %s: %d", "e", 3);
	assert_str(logged, "export e: 3");
}

TEST(a_log_line_has_no_control_characters)
{
	pl_log_to(remember);
	log_warn("export \"%s\"", "a\nb\x1b[2J\x7f");
	assert_str(logged, "export \"a?b?[2J?\"");
}

TEST(a_log_line_has_no_control_characters_of_any_alphabet)
{
	static const struct {
		const char *text, *shown;
	} rows[] = {
		{ "\xc2\x9b[2J", "??[2J" }, /* C1: an escape in one letter */
		{ "\x9b[2J", "?[2J" },      /* the same in other alphabets */
		{ "a\xe2\x80\xae"
		  "b",
		  "a???b" }, /* right to left from here */
		{ "a\xe2\x80\xa8"
		  "b",
		  "a???b" },                                   /* the end of a line */
		{ "\xc1\x8a\xe0\x82\x9b", "?????" },           /* a newline and C1, too long */
		{ "\xed\xa0\x80\xf4\x90\x80\x80", "???????" }, /* no letters */
		{ "\xe2\x82", "??" },                          /* a cut one */
		{ "\xc3\xbc \xe2\x82\xac \xf0\x9f\x92\xbe",
		  "\xc3\xbc \xe2\x82\xac \xf0\x9f\x92\xbe" },
	};

	pl_log_to(remember);
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		memset(logged, 0, sizeof logged);
		log_warn("%s", rows[i].text);
		assert_str(logged, rows[i].shown);
	}
}
