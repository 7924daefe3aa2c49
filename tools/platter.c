/* platter.c - platter SUBCOMMAND: finds it and runs it. */
#include "platter.h"
#include "tools.h"

#include <locale.h>
#include <stdbool.h>
#include <string.h>

static int tool_help(int argc, char **argv);
static int tool_version(int argc, char **argv);

static const struct tool {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *help; /* one line */
} tools[] = {
	{ "bench", tool_bench, "measure servers beside each other on a disk" },
	{ "control", tool_control, "give a command to a running platterd" },
	{ "doctor", tool_doctor, "say whether a disk or server is fit to keep data" },
	{ "help", tool_help, "list the subcommands" },
	{ "probe", tool_probe, "check how well an NBD server keeps to the protocol" },
	{ "stats", tool_stats, "watch a running platterd" },
	{ "torture", tool_torture, "prove or disprove that a disk keeps what it acknowledges" },
	{ "version", tool_version, "print the version" },
};
#define TOOLS (sizeof tools / sizeof *tools)

static int
tool_help(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	printf("usage: platter SUBCOMMAND [ARGUMENT...]\n\n");
	for (size_t i = 0; i < TOOLS; i++)
		printf("  %-10s %s\n", tools[i].name, tools[i].help);
	printf("\nplatter SUBCOMMAND --help tells more; so does platter(1).\n");
	return 0;
}

static int
tool_version(int argc, char **argv)
{
	(void)argc;
	(void)argv;
	printf("platter %s\n", PACKAGE_VERSION);
	return 0;
}

static const struct tool *
tool_named(const char *name)
{
	/* The usual spellings of two of them. */
	if (strcmp(name, "--help") == 0 || strcmp(name, "--version") == 0)
		name += 2;
	for (size_t i = 0; i < TOOLS; i++)
		if (strcmp(tools[i].name, name) == 0)
			return &tools[i];
	return NULL;
}

/* How many letters must be added, left out or changed to make one word of the other. */
static unsigned
distance(const char *a, const char *b)
{
	enum { LONGEST = 32 };
	unsigned row[LONGEST + 1];
	size_t width = strlen(b);

	if (width > LONGEST)
		return LONGEST;
	for (unsigned i = 0; i <= width; i++)
		row[i] = i;
	for (unsigned i = 1; *a != '\0'; a++, i++) {
		unsigned corner = i - 1;

		row[0] = i;
		for (size_t k = 1; k <= width; k++) {
			unsigned change = corner + (*a != b[k - 1]);
			unsigned add = (row[k] < row[k - 1] ? row[k] : row[k - 1]) + 1;

			corner = row[k];
			row[k] = change < add ? change : add;
		}
	}
	return row[width];
}

static int
unknown(const char *name)
{
	const struct tool *near = &tools[0];

	for (size_t i = 1; i < TOOLS; i++)
		if (distance(name, tools[i].name) < distance(name, near->name))
			near = &tools[i];
	fprintf(stderr, "platter: there is no subcommand '%s'", name);
	if (distance(name, near->name) <= 2)
		fprintf(stderr, "; did you mean '%s'?\n", near->name);
	else
		fprintf(stderr, "; platter help lists them\n");
	return 2;
}

/* What libraries and modules of the core would tell an operator the tools tell by themselves. */
static void
say_nothing(enum pl_log_level level, const char *line)
{
	(void)level;
	(void)line;
}

int
main(int argc, char **argv)
{
	const struct tool *tool;

	setlocale(LC_CTYPE, "");
	pl_log_to(say_nothing);
	if (argc < 2) {
		tool_help(argc, argv);
		return 2;
	}
	tool = tool_named(argv[1]);
	return tool != NULL ? tool->run(argc - 1, argv + 1) : unknown(argv[1]);
}
