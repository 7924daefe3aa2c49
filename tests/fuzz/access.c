/*
 * access.c - whatever lists of who may have an export or a target are given are understood or
 * refused in one sentence, mean the same when they are read again, and let in nobody whom they do
 * not name.
 *
 * Input: lines: subjects, fingerprints, identities of keys, users, groups; names and addresses of
 * initiators; an empty one is not given.
 */
#include "access.h"
#include "fuzz.h"
#include "iscsi/rules.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>

enum { LISTS = 7 };

static void
check_rules(char *const *lists)
{
	struct access_rules *rules, *again;
	struct peer nobody = { .kind = PEER_TCP };
	struct pl_error err = { 0 };
	bool any = false;
	int error =
		access_rules_new(&rules, lists[0], lists[1], lists[2], lists[3], lists[4], &err);

	if (error != 0) {
		assert(err.code == error && error < 0 && err.text[0] != '\0');
		return;
	}
	for (unsigned i = 0; i < 5; i++)
		any |= lists[i] != NULL;
	assert(access_allows(rules, &nobody) == !any);
	assert(access_rules_new(&again, lists[0], lists[1], lists[2], lists[3], lists[4], NULL) ==
	       0);
	assert(access_rules_same(rules, again) && access_rules_same(again, rules));
	access_rules_free(again);
	access_rules_free(rules);
}

static void
check_initiators(const char *names, const char *addresses)
{
	struct peer here = { .kind = PEER_UNIX };
	struct iscsi_rules *rules;
	struct pl_error err = { 0 };
	int error = iscsi_rules_new(&rules, names, addresses, &err);

	if (error != 0) {
		assert(err.code == error && error < 0 && err.text[0] != '\0');
		return;
	}
	assert(iscsi_rules_allow_name(rules, "no name") == (names == NULL));
	assert(iscsi_rules_allow_peer(rules, &here) == (addresses == NULL));
	iscsi_rules_free(rules);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	char *lists[LISTS] = { NULL }, *text = malloc(size + 1), *save = text;

	assert(text != NULL);
	memcpy(text, data, size);
	text[size] = '\0';
	for (unsigned i = 0; i < LISTS && save != NULL; i++) {
		lists[i] = strsep(&save, "\n");
		if (*lists[i] == '\0')
			lists[i] = NULL;
	}
	check_rules(lists);
	check_initiators(lists[5], lists[6]);
	free(text);
	return 0;
}
