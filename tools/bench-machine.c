/* bench-machine.c - where a measurement was made. */
#include "bench-image.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <sys/utsname.h>
#include <time.h>
#include <unistd.h>

void
bench_fact_add(struct bench_result *r, const char *name, const char *fmt, ...)
{
	struct bench_fact *more = realloc(r->facts, (r->fact_count + 1) * sizeof(*r->facts));
	char *value = NULL;
	va_list args;
	int n;

	if (more == NULL)
		return;
	r->facts = more;
	va_start(args, fmt);
	n = vasprintf(&value, fmt, args);
	va_end(args);
	if (n == -1)
		return;
	pl_text_clean(value);
	r->facts[r->fact_count++] = (struct bench_fact){ strdup(name), value };
}

/* The text behind the first line that begins with key and blanks and a colon; or of the first
 * line, if key is NULL. */
static bool
line_of(const char *path, const char *key, char *into, size_t size)
{
	FILE *f = fopen(path, "re");
	bool found = false;
	char line[512];

	while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
		const char *from = key != NULL ? strchr(line, ':') : line;

		if (from == NULL || (key != NULL && strncmp(line, key, strlen(key)) != 0))
			continue;
		from += strspn(from, ": \t");
		snprintf(into, size, "%.*s", (int)strcspn(from, "\n"), from);
		found = true;
	}
	if (f != NULL)
		fclose(f);
	return found;
}

static void
describe_machine(struct bench_result *r)
{
	struct utsname u;
	char text[256], date[64];
	time_t t = time(NULL);
	struct tm tm;

	if (gmtime_r(&t, &tm) != NULL &&
	    strftime(date, sizeof(date), "%Y-%m-%d %H:%M UTC", &tm) > 0)
		bench_fact_add(r, "date", "%s", date);
	bench_fact_add(r, "platter", "%s", PACKAGE_VERSION);
	if (uname(&u) == 0)
		bench_fact_add(r, "kernel", "%s %s %s", u.sysname, u.release, u.machine);
	if (line_of("/proc/cpuinfo", "model name", text, sizeof(text)))
		bench_fact_add(r, "processors", "%ld x %s", sysconf(_SC_NPROCESSORS_ONLN), text);
	else
		bench_fact_add(r, "processors", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
	bench_fact_add(r, "memory", "%ld MiB",
		       sysconf(_SC_PHYS_PAGES) / 1024 * (sysconf(_SC_PAGESIZE) / 1024));
}

/* What is mounted there: the line of mountinfo with its device number. */
static void
describe_file_system(struct bench_result *r, dev_t device)
{
	FILE *f = fopen("/proc/self/mountinfo", "re");
	char line[4096], wanted[32], type[64], source[256];

	snprintf(wanted, sizeof(wanted), " %u:%u ", major(device), minor(device));
	while (f != NULL && fgets(line, sizeof(line), f) != NULL) {
		const char *rest = strstr(line, " - ");

		if (strstr(line, wanted) != NULL && rest != NULL &&
		    sscanf(rest, " - %63s %255s", type, source) == 2) {
			bench_fact_add(r, "file system", "%s on %s", type, source);
			break;
		}
	}
	if (f != NULL)
		fclose(f);
}

/* The queue is that of the whole disk. */
static void
describe_disk(struct bench_result *r, dev_t device)
{
	static const char *const what[] = { "scheduler", "write_cache", "fua", "rotational" };
	char text[1024] = "", value[256], path[128];
	size_t used = 0;

	for (unsigned i = 0; i < sizeof(what) / sizeof(what[0]); i++) {
		for (unsigned up = 0; up < 2; up++) {
			snprintf(path, sizeof(path), "/sys/dev/block/%u:%u/%squeue/%s",
				 major(device), minor(device), up ? "../" : "", what[i]);
			if (!line_of(path, NULL, value, sizeof(value)))
				continue;
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s: %s",
						 used > 0 ? ", " : "", what[i], value);
			break;
		}
	}
	if (used > 0)
		bench_fact_add(r, "disk", "%s", text);
}

void
bench_describe(struct bench_result *r, const char *path)
{
	struct stat st;

	describe_machine(r);
	if (path == NULL || stat(path, &st) == -1)
		return;
	if (S_ISBLK(st.st_mode)) {
		bench_fact_add(r, "device", "%s", path);
	} else {
		describe_file_system(r, st.st_dev);
	}
	describe_disk(r, S_ISBLK(st.st_mode) ? st.st_rdev : st.st_dev);
}
