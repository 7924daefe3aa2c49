/*
 * control.c - whatever comes to the control socket is answered by one line that is an object.
 *
 * Input: lines, each a request, a few of them.
 */
#include "control.h"

#include "catalog.h"
#include "clients.h"
#include "fuzz.h"

#include <assert.h>
#include <errno.h>
#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#define LINES 4

static struct catalog *catalog;
static struct control *control;

static int
no_reload(void *user, struct pl_error *err)
{
	(void)user;
	return pl_error_say(err, -EINVAL, "platter.conf:7: \xff is no key");
}

static int
no_resize(void *user, const char *export, struct pl_error *err)
{
	(void)user;
	return pl_error_say(err, -ENOENT, "there is no export \"%s\" that is open", export);
}

static void
no_stop(void *user)
{
	(void)user;
	assert(!"who asked calls it");
}

static void
quiet(enum pl_log_level level, const char *line)
{
	(void)level;
	(void)line;
}

/* Two exports as they are at the start. */
static void
offer(void)
{
	struct pl_params *params = pl_params_new();
	struct offer_settings settings[2];
	unsigned opened;
	int error;

	assert(params != NULL);
	pl_params_add(params, "driver", "null", NULL);
	pl_params_add(params, "size", "1M", NULL);
	for (unsigned i = 0; i < 2; i++)
		settings[i] = (struct offer_settings){
			.name = i == 0 ? "" : "a", .where = "test", .listed = true, .params = params
		};
	error = catalog_apply(catalog, settings, 2, &opened, NULL);
	assert(error == 0 && opened == 2);
	pl_params_free(params);
}

static void
start(void)
{
	static struct control_settings settings = { .reload = no_reload,
						    .resize = no_resize,
						    .stop = no_stop };
	struct pl_error err;
	int error;

	pl_log_to(quiet);
	error = catalog_new(&catalog, 1, &err);
	assert(error == 0);
	settings.catalog = catalog;
	error = clients_new(&settings.clients, &err);
	assert(error == 0);
	error = control_new(&control, NULL, NULL, &settings, &err);
	assert(error == 0);
}

static void
ask(const char *line, size_t length)
{
	bool then_stop;
	char *answer = control_answer(control, line, length, &then_stop);
	json_t *json;
	size_t end;

	assert(answer != NULL);
	end = strlen(answer);
	assert(end > 1 && strchr(answer, '\n') == answer + end - 1);
	json = json_loads(answer, JSON_REJECT_DUPLICATES, NULL);
	assert(json_is_object(json) && json_object_size(json) > 0);
	json_decref(json);
	free(answer);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	const char *text = (const char *)data, *end = text + size;
	unsigned asked = 0;

	if (control == NULL)
		start();
	offer();
	while (text < end && asked++ < LINES) {
		const char *newline = memchr(text, '\n', (size_t)(end - text));
		size_t length = (size_t)((newline != NULL ? newline : end) - text);

		ask(text, length);
		text += length + 1;
	}
	return 0;
}
