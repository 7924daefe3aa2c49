/* bench-machine.c - where a measurement was made. */
#include "bench-image.h"
#include "disk.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
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

/* The text behind the first line of /proc/cpuinfo that begins so. */
static bool
processor(const char *key, char *into, size_t size)
{
	FILE *f = fopen("/proc/cpuinfo", "re");
	bool found = false;
	char line[512];

	while (f != NULL && !found && fgets(line, sizeof(line), f) != NULL) {
		const char *from = strchr(line, ':');

		if (from == NULL || strncmp(line, key, strlen(key)) != 0)
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
	if (processor("model name", text, sizeof(text)))
		bench_fact_add(r, "processors", "%ld x %s", sysconf(_SC_NPROCESSORS_ONLN), text);
	else
		bench_fact_add(r, "processors", "%ld", sysconf(_SC_NPROCESSORS_ONLN));
	bench_fact_add(r, "memory", "%ld MiB",
		       sysconf(_SC_PHYS_PAGES) / 1024 * (sysconf(_SC_PAGESIZE) / 1024));
}

static void
describe_disk(struct bench_result *r, dev_t device)
{
	static const char *const what[] = { "scheduler", "write_cache", "fua", "rotational" };
	char text[1024] = "", value[256], file[64], folder[PATH_MAX];
	size_t used = 0;

	if (!disk_folder(device, folder))
		return;
	disk_whole(folder);
	for (unsigned i = 0; i < sizeof(what) / sizeof(what[0]); i++) {
		snprintf(file, sizeof(file), "queue/%s", what[i]);
		if (disk_word(folder, file, value, sizeof(value)))
			used += (size_t)snprintf(text + used, sizeof(text) - used, "%s%s: %s",
						 used > 0 ? ", " : "", what[i], value);
	}
	if (used > 0)
		bench_fact_add(r, "disk", "%s", text);
}

void
bench_describe(struct bench_result *r, const char *path)
{
	struct mount *m = malloc(sizeof(*m));
	struct stat st;

	describe_machine(r);
	if (path != NULL && stat(path, &st) == 0 && S_ISBLK(st.st_mode)) {
		bench_fact_add(r, "device", "%s", path);
		describe_disk(r, st.st_rdev);
	} else if (path != NULL && m != NULL && mount_find(path, m)) {
		bench_fact_add(r, "file system", "%s on %s", m->type, m->source);
		describe_disk(r, mount_device(m));
	}
	free(m);
}
