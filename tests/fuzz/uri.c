/*
 * uri.c - whatever is given as an NBD URI is understood or refused in one sentence.
 *
 * Input: the URI.
 */
#include "../../tools/probe-uri.h"
#include "fuzz.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *text = strndup((const char *)data, size);
	struct pl_error err = { 0 };
	struct nbd_uri uri;
	int error;

	assert(text != NULL);
	error = nbd_uri_parse(&uri, text, &err);
	if (error != 0) {
		assert(err.code == error && error < 0 && err.text[0] != '\0');
	} else {
		assert(uri.export != NULL);
		assert((uri.unix_socket != NULL) == (uri.unix_length > 0));
		assert(uri.unix_length < 108); /* sun_path */
		assert(uri.tls_certificates == NULL || uri.tls_psk_file == NULL);
	}
	nbd_uri_free(&uri);
	free(text);
	return 0;
}
