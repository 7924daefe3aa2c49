/*
 * test.c - runs the cases of a test program, each in a child process.
 *
 * A case has an empty directory of its own as its current one, below TMPDIR on a real
 * file system. It writes to a file instead of the terminal; when it has ended, the parent
 * prints that as TAP diagnostics before the result. So whatever a case or a
 * sanitizer says cannot break the protocol, and nobody can hold a pipe open.
 */
#include "test.h"

#include <errno.h>
#include <ftw.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

enum { LIMIT_S = 60, SLOW_LIMIT_S = 600 };
enum { EXIT_SKIPPED = 77, EXIT_DONE = 78 }; /* a case ends with 0 when something in it exits */

enum outcome { PASSED, SKIPPED, FAILED, OUTCOMES };

static struct test_case *cases, **cases_end = &cases;
static char *skip_reason; /* shared with the children */
enum { SKIP_REASON_MAX = 400 };

void
test_register(struct test_case *t)
{
	*cases_end = t;
	cases_end = &t->next;
}

/* ---- in the case ----------------------------------------------------------------- */

void
test_skip(const char *why, ...)
{
	va_list ap;

	va_start(ap, why);
	vsnprintf(skip_reason, SKIP_REASON_MAX, why, ap);
	va_end(ap);
	fflush(NULL);
	_exit(EXIT_SKIPPED);
}

void
test_not_under_valgrind(const char *why)
{
	if (getenv("PLATTER_VALGRIND") != NULL)
		test_skip("under valgrind %s", why);
}

uint64_t
test_seed(void)
{
	const char *given = getenv("PLATTER_SEED");
	uint64_t seed = 0;

	if (given != NULL)
		seed = strtoull(given, NULL, 0);
	else if (getrandom(&seed, sizeof(uint32_t), 0) == -1) /* short enough to type */
		test_fail(__FILE__, __LINE__, "getrandom: %s", strerror(errno));
	printf("seed %ju\n", (uintmax_t)seed);
	return seed;
}

void
test_fail(const char *file, int line, const char *what, ...)
{
	va_list ap;

	flockfile(stdout);
	printf("%s:%d: ", file, line);
	va_start(ap, what);
	vprintf(what, ap);
	va_end(ap);
	putchar('\n');
	fflush(stdout);
	_exit(1);
}

void
test_eq(const char *file, int line, const char *what, intmax_t got, intmax_t other, bool equal)
{
	if ((got == other) != equal)
		test_fail(file, line, "%s: expected %s%jd (0x%jx), got %jd (0x%jx)", what,
			  equal ? "" : "other than ", other, (uintmax_t)other, got, (uintmax_t)got);
}

void
test_str(const char *file, int line, const char *what, const char *got, const char *want)
{
	if (got == NULL || strcmp(got, want) != 0)
		test_fail(file, line, "%s: expected \"%s\", got \"%s\"", what, want,
			  got != NULL ? got : "(null)");
}

void
test_contains(const char *file, int line, const char *what, const char *got, const char *part)
{
	if (got == NULL || strstr(got, part) == NULL)
		test_fail(file, line, "%s: expected \"%s\" in it, got \"%s\"", what, part,
			  got != NULL ? got : "(null)");
}

void
test_mem(const char *file, int line, const char *what, const void *got, const void *want,
	 size_t length)
{
	const uint8_t *g = got, *w = want;

	for (size_t i = 0; i < length; i++)
		if (g[i] != w[i])
			test_fail(file, line, "%s: byte %zu of %zu: expected 0x%02x, got 0x%02x",
				  what, i, length, w[i], g[i]);
}

void
test_filled(const char *file, int line, const char *what, const void *got, uint8_t byte,
	    size_t length)
{
	const uint8_t *g = got;

	for (size_t i = 0; i < length; i++)
		if (g[i] != byte)
			test_fail(file, line, "%s: byte %zu of %zu: expected 0x%02x, got 0x%02x",
				  what, i, length, byte, g[i]);
}

static int abort_status;

/* True in a child that is to abort, then false in the case. */
bool
test_abort_begin(void)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		setrlimit(RLIMIT_CORE, &(struct rlimit){ 0, 0 });
		return true;
	}
	if (pid == -1 || waitpid(pid, &abort_status, 0) != pid)
		test_fail(__FILE__, __LINE__, "fork and wait: %s", strerror(errno));
	return false;
}

void
test_abort_missed(void)
{
	_exit(0);
}

void
test_abort_end(const char *file, int line, const char *what)
{
	if (!WIFSIGNALED(abort_status) || WTERMSIG(abort_status) != SIGABRT)
		test_fail(file, line, "expected an assertion to stop %s", what);
}

/* ---- around the case ------------------------------------------------------------- */

/* How much slower than usual everything is; the runner knows of sanitizers. */
static unsigned
slowness(void)
{
	const char *given = getenv("PLATTER_SLOWNESS");

	return given != NULL && atoi(given) > 1 ? (unsigned)atoi(given) : 1;
}

static void
print_diagnostics(FILE *out)
{
	char *line = NULL;
	size_t room = 0;
	ssize_t n;

	rewind(out);
	while ((n = getline(&line, &room, out)) != -1)
		printf("# %s%s", line, line[n - 1] == '\n' ? "" : "\n");
	free(line);
}

/* Makes the directory and returns its name, which is good until the next call. */
static const char *
scratch_make(void)
{
	static char path[512];
	const char *above = getenv("TMPDIR");

	snprintf(path, sizeof path, "%s/case.XXXXXX", above != NULL ? above : "/var/tmp");
	return mkdtemp(path);
}

static int
scratch_remove_one(const char *path, const struct stat *st, int type, struct FTW *ftw)
{
	(void)st;
	(void)type;
	(void)ftw;
	return remove(path);
}

static void
scratch_remove(const char *path)
{
	nftw(path, scratch_remove_one, 16, FTW_DEPTH | FTW_PHYS | FTW_MOUNT);
}

static enum outcome
run_case(const struct test_case *t)
{
	const char *scratch = scratch_make();
	unsigned limit_s = (t->slow ? SLOW_LIMIT_S : LIMIT_S) * slowness();
	FILE *out = tmpfile();
	int status;
	pid_t pid;

	if (out == NULL || scratch == NULL) {
		printf("# a place for the case: %s\n", strerror(errno));
		return FAILED;
	}
	skip_reason[0] = '\0';
	fflush(NULL);
	pid = fork();
	if (pid == 0) {
		dup2(fileno(out), STDOUT_FILENO);
		dup2(fileno(out), STDERR_FILENO);
		alarm(limit_s);
		if (chdir(scratch) != 0)
			test_fail(__FILE__, __LINE__, "%s: %s", scratch, strerror(errno));
		t->run();
		exit(EXIT_DONE); /* not _exit: leaks are looked for on the way out */
	}
	if (pid == -1 || waitpid(pid, &status, 0) != pid) {
		printf("# fork and wait: %s\n", strerror(errno));
		fclose(out);
		return FAILED;
	}
	scratch_remove(scratch);
	print_diagnostics(out);
	fclose(out);
	if (WIFSIGNALED(status)) {
		if (WTERMSIG(status) == SIGALRM)
			printf("# not finished after %u seconds\n", limit_s);
		else
			printf("# killed: %s\n", strsignal(WTERMSIG(status)));
		return FAILED;
	}
	if (WEXITSTATUS(status) == EXIT_SKIPPED && skip_reason[0] != '\0')
		return SKIPPED;
	if (WEXITSTATUS(status) == 0)
		printf("# it ended before its end\n");
	return WEXITSTATUS(status) == EXIT_DONE ? PASSED : FAILED;
}

static bool
named(const struct test_case *t, char *const *names, int count)
{
	for (int i = 0; i < count; i++)
		if (strcmp(t->name, names[i]) == 0)
			return true;
	return false;
}

static bool
known(const char *name)
{
	for (const struct test_case *t = cases; t != NULL; t = t->next)
		if (strcmp(t->name, name) == 0)
			return true;
	return false;
}

int
main(int argc, char **argv)
{
	unsigned count[OUTCOMES] = { 0 }, planned = 0, number = 0;
	bool all = false, list = false;
	int i;

	for (i = 1; i < argc && argv[i][0] == '-'; i++) {
		if (strcmp(argv[i], "--all") == 0) {
			all = true;
		} else if (strcmp(argv[i], "--list") == 0) {
			list = true;
		} else {
			fprintf(stderr, "usage: %s [--list | --all | CASE...]\n", argv[0]);
			return 1;
		}
	}
	argv += i;
	argc -= i;
	for (i = 0; i < argc; i++) {
		if (!known(argv[i])) {
			fprintf(stderr, "no case %s here; --list shows them\n", argv[i]);
			return 1;
		}
	}
	skip_reason = mmap(NULL, SKIP_REASON_MAX, PROT_READ | PROT_WRITE,
			   MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	if (skip_reason == MAP_FAILED) {
		perror("mmap");
		return 1;
	}

	for (struct test_case *t = cases; t != NULL; t = t->next) {
		if (list)
			printf("%s%s\n", t->name, t->slow ? " # slow" : "");
		planned += argc > 0 ? named(t, argv, argc) : all || !t->slow;
	}
	if (list)
		return 0;

	printf("1..%u\n", planned);
	for (struct test_case *t = cases; t != NULL; t = t->next) {
		enum outcome o;

		if (argc > 0 ? !named(t, argv, argc) : t->slow && !all)
			continue;
		o = run_case(t);
		printf("%s %u - %s%s%s\n", o == FAILED ? "not ok" : "ok", ++number, t->name,
		       o == SKIPPED ? " # SKIP " : "", o == SKIPPED ? skip_reason : "");
		count[o]++;
	}
	if (count[FAILED] > 0)
		return 1;
	return count[SKIPPED] > 0 && count[PASSED] == 0 ? EXIT_SKIPPED : 0;
}
