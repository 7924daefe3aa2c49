/*
 * stats.c - whatever answers on a control socket, `platter stats` makes text of it that a terminal
 * can be given, or says what is wrong.
 *
 * Input: two lines, each an answer; the second is shown as what happened since the first.
 */
#include "../../tools/stats.c"

#include "fuzz.h"

#include <assert.h>

/* Whether a terminal would do nothing but show it. */
static bool
is_text(const char *shown, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		if ((unsigned char)shown[i] < ' ' && shown[i] != '\n')
			return false;
	}
	return true;
}

static void
check_frame(const struct sample *now, const struct sample *before)
{
	char *frame = make_frame(now, before), *shown;
	FILE *terminal = stdout;
	size_t length;

	assert(frame != NULL);
	stdout = open_memstream(&shown, &length);
	assert(stdout != NULL);
	show(frame, false);
	fclose(stdout);
	stdout = terminal;
	assert(is_text(shown, length));
	free(shown);
	free(frame);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct sample before = { 0 }, now;
	FILE *messages = stderr, *server;
	json_t *answer;

	if (size == 0)
		return 0;
	server = fmemopen((void *)data, size, "r");
	stderr = fopen("/dev/null", "w");
	assert(server != NULL && stderr != NULL);
	while ((answer = control_receive(server)) != NULL && sample_read(&now, answer) == 0) {
		if (before.answer != NULL)
			now.when = before.when + 1000000000;
		check_frame(&now, before.answer != NULL ? &before : NULL);
		sample_free(&before);
		before = now;
	}
	sample_free(&before);
	fclose(stderr);
	stderr = messages;
	fclose(server);
	return 0;
}
