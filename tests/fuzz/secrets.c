/*
 * secrets.c - whatever stands in a file of CHAP secrets is understood or refused in one sentence
 * that tells no secret, and nobody is let in without a line of his own.
 *
 * Input: the file.
 */
#include "file.h"
#include "fuzz.h"
#include "iscsi/chap.h"

#include <string.h>

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct chap_secrets *secrets, *all = NULL;
	struct pl_error err = { 0 };
	int error;

	fuzz_file(data, size);
	error = chap_secrets_read(&secrets, FUZZ_FILE, &err);
	if (error != 0) {
		assert(err.code == error && error < 0 && err.text[0] != '\0');
		assert(strchr(err.text, '\n') == NULL);
		return 0;
	}
	assert(!chap_secrets_admit(secrets, NULL, "iqn.a:b"));
	assert(chap_secrets_join(&all, secrets) == 0 && chap_secrets_join(&all, secrets) == 0);
	/* A file whose two directions have a secret in common is refused. */
	assert(!chap_secrets_share(secrets, secrets));
	chap_secrets_put(all);
	chap_secrets_put(secrets);
	return 0;
}
