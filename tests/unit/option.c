/* option.c - key=value pairs mean what the tables say, and nothing else. */
#include "platter-driver.h"
#include "test.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>

struct values {
	const char *text;
	bool on;
	int word;
	uint64_t number, size, time_ns;
};

static const struct pl_option table[] = {
	{ "text", PL_OPT_STRING, offsetof(struct values, text), NULL, NULL, false, "a text" },
	{ "on", PL_OPT_BOOL, offsetof(struct values, on), NULL, "off", false, "a switch" },
	{ "word", PL_OPT_ENUM, offsetof(struct values, word), "a|bc|d", "bc", false, "a word" },
	{ "number", PL_OPT_UINT, offsetof(struct values, number), NULL, "7", false, "a number" },
	{ "size", PL_OPT_SIZE, offsetof(struct values, size), NULL, "1k", false, "a size" },
	{ "time", PL_OPT_TIME, offsetof(struct values, time_ns), NULL, "2ms", false, "a time" },
	PL_OPTION_END,
};

static int
parse(const char *key, const char *value, struct values *v, struct pl_error *err)
{
	struct pl_params *params = pl_params_new();
	uint64_t used = 0;
	int error;

	*v = (struct values){ .number = 0 };
	assert_eq(pl_params_add(params, key, value, err), 0);
	error = pl_options_parse(table, params, &used, v, err);
	if (error == 0)
		assert_eq(used, 1);
	if (v->text != NULL) /* it points into params */
		assert_str(v->text, value);
	pl_params_free(params);
	return error;
}

TEST(values_are_read_by_type)
{
	struct values v;

	assert_eq(parse("text", "x=y", &v, NULL), 0);
	assert_eq(parse("on", "yes", &v, NULL), 0);
	assert_true(v.on);
	assert_eq(parse("on", "0", &v, NULL), 0);
	assert_false(v.on);
	assert_eq(parse("word", "d", &v, NULL), 0);
	assert_eq(v.word, 2);
	assert_eq(parse("number", "0", &v, NULL), 0);
	assert_eq(v.number, 0);
	assert_eq(parse("size", "3G", &v, NULL), 0);
	assert_eq(v.size, UINT64_C(3) << 30);
	assert_eq(parse("size", "9223372036854775807", &v, NULL), 0);
	assert_eq(v.size, INT64_MAX);
	assert_eq(parse("time", "20us", &v, NULL), 0);
	assert_eq(v.time_ns, 20000);
}

TEST(a_missing_option_has_its_default)
{
	struct values v;

	assert_eq(parse("text", "t", &v, NULL), 0);
	assert_false(v.on);
	assert_eq(v.word, 1);
	assert_eq(v.number, 7);
	assert_eq(v.size, 1024);
	assert_eq(v.time_ns, 2000000);
}

TEST(a_bad_value_is_refused_with_its_name_and_what_is_right)
{
	static const struct {
		const char *key, *value, *says;
	} bad[] = {
		{ "text", "", "text=TEXT" },
		{ "on", "maybe", "on=on|off" },
		{ "on", "", "on|off" },
		{ "word", "b", "word=a|bc|d" },
		{ "word", "", "a|bc|d" },
		{ "word", "a|bc", "a|bc|d" },
		{ "number", "-1", "number=NUMBER" },
		{ "number", "1k", "number=NUMBER" },
		{ "number", "99999999999999999999", "too large" },
		{ "size", "1 k", "size=SIZE" },
		{ "size", "k", "size=SIZE" },
		{ "size", "9223372036854775808", "too large" },
		{ "size", "9000000P", "too large" },
		{ "size", "0x10", "size=SIZE" },
		{ "time", "5", "time=TIME" },
		{ "time", "5m", "time=TIME" },
	};

	for (unsigned i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct pl_error err;
		struct values v;

		assert_eq(parse(bad[i].key, bad[i].value, &v, &err), -EINVAL);
		assert_eq(err.code, -EINVAL);
		assert_contains(err.text, bad[i].key);
		assert_contains(err.text, bad[i].value);
		assert_contains(err.text, bad[i].says);
	}
}

TEST(an_option_given_twice_is_refused)
{
	struct pl_params *p = pl_params_new();
	struct pl_error err;

	assert_eq(pl_params_add(p, "cache", "none", &err), 0);
	assert_eq(pl_params_add(p, "cache", "unsafe", &err), -EINVAL);
	assert_contains(err.text, "cache is given twice: 'none' and 'unsafe'");
	assert_str(pl_params_get(p, "cache"), "none");
	assert_eq(pl_params_add(p, "", "x", &err), -EINVAL);
	pl_params_free(p);
}

static int
check(struct pl_error *err, const char *const *words)
{
	struct pl_params *p = pl_params_new();
	int error;

	for (; *words != NULL; words += 2)
		assert_eq(pl_params_add(p, words[0], words[1], NULL), 0);
	error = pl_export_check(p, err);
	pl_params_free(p);
	return error;
}

#define CHECK(err, ...) check((err), (const char *const[]){ __VA_ARGS__, NULL })

TEST(a_key_goes_to_the_first_driver_that_knows_it)
{
	struct pl_error err;

	assert_eq(CHECK(&err, "driver", "fault", "over", "powercut,memory", "size", "1M", "kind",
			"flush", "seed", "3"),
		  0);
	assert_eq(CHECK(&err, "driver", "memory", "size", "1M", "seed", "3"), -EINVAL);
	assert_contains(err.text, "memory has no option seed");
	assert_eq(CHECK(&err, "driver", "memory"), -EINVAL);
	assert_contains(err.text, "size");
	assert_eq(CHECK(&err, "cache", "none"), -EINVAL);
	assert_contains(err.text, "path");
}

TEST(drivers_that_do_not_fit_are_refused)
{
	struct pl_error err;

	assert_eq(CHECK(&err, "driver", "flie"), -EINVAL);
	assert_contains(err.text, "driver=flie");
	assert_contains(err.text, "powercut");
	assert_eq(CHECK(&err, "driver", "fault"), -EINVAL);
	assert_contains(err.text, "over=DRIVER");
	assert_eq(CHECK(&err, "driver", "fault", "over", "nothing"), -EINVAL);
	assert_contains(err.text, "over=nothing");
	assert_eq(CHECK(&err, "driver", "memory", "over", "null", "size", "1"), -EINVAL);
	assert_contains(err.text, "stands over no other");
	assert_eq(CHECK(&err, "driver", "fault", "over", "memory,null", "size", "1"), -EINVAL);
	assert_eq(CHECK(&err, "driver", "fault", "over", "", "size", "1"), -EINVAL);
	assert_eq(CHECK(&err, "driver", "fault", "over", "fault,", "size", "1"), -EINVAL);
}

TEST(help_names_every_option_of_every_driver)
{
	char *help = pl_options_help(), *dump = pl_options_dump("p_");

	for (unsigned i = 0; pl_drivers[i] != NULL; i++) {
		assert_contains(help, pl_drivers[i]->name);
		for (const struct pl_option *o = pl_drivers[i]->options; o->name != NULL; o++) {
			assert_contains(help, o->name);
			assert_contains(help, o->help);
			assert_contains(dump, o->name);
		}
	}
	free(help);
	free(dump);
}

TEST(a_misspelt_or_shortened_name_finds_its_row)
{
	static const struct {
		const char *name, *row;
	} rows[] = {
		{ "tezt", "text" },      { "txet", "text" },  { "wrod", "word" },
		{ "numbers", "number" }, { "num", "number" }, { "sizes", "size" },
		{ "time-s", "time" },    { "o", "on" },       { "xyzzy", NULL },
		{ "something", NULL },
	};

	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		unsigned distance = 3;
		const struct pl_option *o = pl_option_nearest(table, rows[i].name, &distance);

		if (rows[i].row == NULL)
			assert_eq(o, NULL);
		else
			assert_str(o != NULL ? o->name : "nothing", rows[i].row);
	}
	assert_eq(pl_option_find(table, "text"), &table[0]);
	assert_eq(pl_option_find(table, "tex"), NULL);
}

TEST(a_long_name_is_like_no_other)
{
	char name[200] = { 0 };
	unsigned distance = 3;

	memset(name, 'x', sizeof name - 1);
	assert_eq(pl_option_nearest(table, name, &distance), NULL);
	assert_eq(distance, 3);
}

TEST(rows_of_help_have_names_words_and_defaults_in_columns)
{
	static const struct pl_option rows[] = {
		{ "short", PL_OPT_BOOL, 0, NULL, "on", false, "a switch" },
		{ "a-name-that-needs-much-room", PL_OPT_STRING, 0, "WORDS", NULL, true, "a text" },
		PL_OPTION_END,
	};
	char *text = pl_option_rows(rows, "  --", " ");

	assert_str(text, "  --short on|off                 a switch (default: on)\n"
			 "  --a-name-that-needs-much-room WORDS\n"
			 "                                 a text (required)\n");
	free(text);
}
