/*
 * test.h - test programs in C: cases, assertions, TAP.
 *
 * A program is a file of TEST(promise) { ... } linked with test.c, which has the
 * main(). Each case runs in a child process of its own, in the order of the file,
 * and fails when an assertion fails, when it crashes and when it takes too long.
 *
 *	program [--all] [CASE...]	run the cases, slow ones only with --all or by name
 *	program --list			print their names
 *
 * Exit status: 0 all passed or skipped, 1 some failed, 77 all skipped.
 */
#ifndef TEST_H
#define TEST_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct test_case {
	const char *name;
	void (*run)(void);
	bool slow; /* may take ten minutes instead of one */
	struct test_case *next;
};

void test_register(struct test_case *t);

#define TEST_CASE(case_name, is_slow) \
	static void case_name(void); \
	__attribute__((constructor)) static void case_name##_register(void) \
	{ \
		static struct test_case t = { .name = #case_name, \
					      .run = case_name, \
					      .slow = (is_slow) }; \
		test_register(&t); \
	} \
	static void case_name(void)

#define TEST(case_name)      TEST_CASE(case_name, false)
#define TEST_SLOW(case_name) TEST_CASE(case_name, true)

/* Ends the case as skipped. Only for what this machine cannot do. */
_Noreturn void test_skip(const char *why, ...) __attribute__((__format__(__printf__, 1, 2)));

/* The same under valgrind, which does something of its own. */
void test_not_under_valgrind(const char *why);

/* PLATTER_SEED, or a fresh one; printed, so that a failure can be repeated. */
uint64_t test_seed(void);

/* Assertions: from any thread of the case; the first that fails ends it. */
#define assert_true(cond) \
	do { \
		if (!(cond)) \
			test_fail(__FILE__, __LINE__, "expected %s", #cond); \
	} while (0)
#define assert_false(cond) \
	do { \
		if (cond) \
			test_fail(__FILE__, __LINE__, "expected not %s", #cond); \
	} while (0)
/* Integers of any type. */
#define assert_eq(got, want) \
	test_eq(__FILE__, __LINE__, #got, (intmax_t)(got), (intmax_t)(want), true)
#define assert_ne(got, unwanted) \
	test_eq(__FILE__, __LINE__, #got, (intmax_t)(got), (intmax_t)(unwanted), false)
#define assert_str(got, want)         test_str(__FILE__, __LINE__, #got, (got), (want))
#define assert_contains(got, part)    test_contains(__FILE__, __LINE__, #got, (got), (part))
#define assert_mem(got, want, length) test_mem(__FILE__, __LINE__, #got, (got), (want), (length))
#define assert_filled(got, byte, length) \
	test_filled(__FILE__, __LINE__, #got, (got), (byte), (length))
/* The statement stops the process by an assert(). */
#define assert_aborts(statement) \
	do { \
		if (test_abort_begin()) { \
			statement; \
			test_abort_missed(); \
		} \
		test_abort_end(__FILE__, __LINE__, #statement); \
	} while (0)

/* What they stand on. */
_Noreturn void test_fail(const char *file, int line, const char *what, ...)
	__attribute__((__format__(__printf__, 3, 4)));
void test_eq(const char *file, int line, const char *what, intmax_t got, intmax_t other,
	     bool equal);
void test_str(const char *file, int line, const char *what, const char *got, const char *want);
void test_contains(const char *file, int line, const char *what, const char *got, const char *part);
void test_mem(const char *file, int line, const char *what, const void *got, const void *want,
	      size_t length);
void test_filled(const char *file, int line, const char *what, const void *got, uint8_t byte,
		 size_t length);
bool test_abort_begin(void);
_Noreturn void test_abort_missed(void);
void test_abort_end(const char *file, int line, const char *what);

#endif
