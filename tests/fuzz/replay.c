/*
 * replay.c - the main() of a fuzzer that is built without clang's library: each file named, and
 * each in a folder named, is one input. Prints how many there were.
 */
#include "fuzz.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

static unsigned count;

static bool
run_file(const char *path)
{
	FILE *file = fopen(path, "r");
	struct stat st;
	uint8_t *data;

	if (file == NULL || fstat(fileno(file), &st) == -1 ||
	    (data = malloc((size_t)st.st_size)) == NULL ||
	    fread(data, 1, (size_t)st.st_size, file) != (size_t)st.st_size) {
		perror(path);
		return false;
	}
	fclose(file);
	fprintf(stderr, "%s\n", path); /* which of them it was, if it is the last */
	LLVMFuzzerTestOneInput(data, (size_t)st.st_size);
	free(data);
	count++;
	return true;
}

static bool
run_folder(const char *path)
{
	struct dirent **list;
	int n = scandir(path, &list, NULL, alphasort);
	bool good = n >= 0;

	if (!good)
		perror(path);
	for (int i = 0; i < n; i++) {
		char file[4096];

		if (good && list[i]->d_name[0] != '.') {
			snprintf(file, sizeof file, "%s/%s", path, list[i]->d_name);
			good = run_file(file);
		}
		free(list[i]);
	}
	if (n >= 0)
		free(list);
	return good;
}

int
main(int argc, char **argv)
{
	bool good = argc > 1;

	for (int i = 1; i < argc && good; i++) {
		struct stat st;
		bool folder = stat(argv[i], &st) == 0 && S_ISDIR(st.st_mode);

		good = folder ? run_folder(argv[i]) : run_file(argv[i]);
	}
	printf("%u\n", count);
	return good ? 0 : 1;
}
