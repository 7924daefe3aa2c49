/*
 * state.c - whatever stands in the file of a LUN is understood or refused in one sentence; what
 * was understood is written, and read again, as the same.
 *
 * Input: a byte that chooses between the file and the reservations in it alone, then the text.
 */
#include "iscsi/state.h"

#include "fuzz.h"
#include "registrations.h"

#include <assert.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static char directory[] = "/dev/shm/platter-state-XXXXXX"; /* where a sync is for nothing */
static char path[sizeof directory + 16];

static void
remove_directory(void)
{
	unlink(path);
	rmdir(directory);
}

static void
set_up(void)
{
	assert(mkdtemp(directory) != NULL);
	snprintf(path, sizeof path, "%s/default.lu", directory);
	atexit(remove_directory);
}

static void
check_registrations(const char *text)
{
	struct scsi_registrations *r, *again;
	struct pl_error err = { 0 };
	int error = scsi_registrations_parse(text, "unit", &r, &err);
	char *written, *rewritten;

	if (error != 0) {
		assert(err.code == error && err.text[0] != '\0');
		return;
	}
	assert(r->count == r->total && r->count <= SCSI_REGISTRATIONS_MAX);
	assert(r->type == 0 ? r->holder == -1 : scsi_type_known(r->type));
	assert(r->holder >= -1 && r->holder < (int)r->count);
	assert(r->type == 0 || (r->holder == -1) == scsi_type_all(r->type));
	written = scsi_registrations_text(r);
	assert(written != NULL);
	assert(scsi_registrations_parse(written, "unit", &again, NULL) == 0);
	rewritten = scsi_registrations_text(again);
	assert(rewritten != NULL && strcmp(written, rewritten) == 0);
	free(written);
	free(rewritten);
	free(again);
	free(r);
}

static void
check_file(const uint8_t *data, size_t size)
{
	struct state_unit unit = { .saved = NULL }, again;
	struct pl_error err = { 0 };
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600), error;

	assert(fd != -1 && write(fd, data, size) == (ssize_t)size);
	close(fd);
	error = state_load(directory, "", &unit, &err);
	if (error != 0) {
		assert(err.code == error && err.text[0] != '\0');
		return;
	}
	if (unit.saved != NULL)
		check_registrations(unit.saved);
	assert(state_save(directory, "", &unit, NULL) == 0);
	assert(state_load(directory, "", &again, NULL) == 0);
	assert(memcmp(unit.uuid, again.uuid, sizeof unit.uuid) == 0);
	assert((unit.saved == NULL) == (again.saved == NULL));
	assert(unit.saved == NULL || strcmp(unit.saved, again.saved) == 0);
	free(unit.saved);
	free(again.saved);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text;

	if (path[0] == '\0')
		set_up();
	if (size == 0)
		return 0;
	if ((data[0] & 1) != 0) {
		check_file(data + 1, size - 1);
		return 0;
	}
	text = strndup((const char *)data + 1, size - 1);
	assert(text != NULL);
	check_registrations(text);
	free(text);
	return 0;
}
