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
