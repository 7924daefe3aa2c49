/*
 * access.c - who may have an export.
 *
 * A rule is a kind and what the peer must have of it; a peer that lacks it altogether (no TLS,
 * no certificate, no unix socket) matches no rule of that kind.
 */
#include "access.h"

#include <ctype.h>
#include <errno.h>
#include <grp.h>
#include <pwd.h>
#include <stdlib.h>
#include <string.h>

enum rule_kind { RULE_SUBJECT, RULE_FINGERPRINT, RULE_PSK, RULE_UID, RULE_GID, RULE_KINDS };

struct rule {
	enum rule_kind kind;
	char *text;  /* what the peer has to have, as struct peer has it */
	uint32_t id; /* of a user or group */
};

struct access_rules {
	unsigned references; /* atomic */
	unsigned count;
	struct rule rule[];
};

/* ---- what is in a rule ----------------------------------------------------------- */

#define FINGERPRINT_DIGITS 64
#define NO_ID              UINT32_MAX /* what the kernel uses for "none" */

/* To lower hex without colons, in place. */
static int
parse_fingerprint(struct rule *rule)
{
	size_t digits = 0;

	for (const char *p = rule->text; *p != '\0'; p++) {
		if (*p == ':')
			continue;
		if (!isxdigit((unsigned char)*p) || digits == FINGERPRINT_DIGITS)
			return -EINVAL;
		rule->text[digits++] = (char)tolower((unsigned char)*p);
	}
	rule->text[digits] = '\0';
	return digits == FINGERPRINT_DIGITS ? 0 : -EINVAL;
}

static int
parse_number(const char *text, uint32_t *id)
{
	unsigned long n;
	char *end;

	if (!isdigit((unsigned char)*text))
		return -EINVAL;
	errno = 0;
	n = strtoul(text, &end, 10);
	if (errno != 0 || *end != '\0' || n >= NO_ID)
		return -EINVAL;
	*id = (uint32_t)n;
	return 0;
}

static int
parse_uid(struct rule *rule)
{
	const struct passwd *pw;

	if (parse_number(rule->text, &rule->id) == 0)
		return 0;
	pw = getpwnam(rule->text);
	if (pw == NULL)
		return -EINVAL;
	rule->id = pw->pw_uid;
	return 0;
}

static int
parse_gid(struct rule *rule)
{
	const struct group *gr;

	if (parse_number(rule->text, &rule->id) == 0)
		return 0;
	gr = getgrnam(rule->text);
	if (gr == NULL)
		return -EINVAL;
	rule->id = gr->gr_gid;
	return 0;
}

/* What a backslash kept in its word has been kept; a subject is written with it. */
static int
parse_psk(struct rule *rule)
{
	char *to = rule->text;

	for (const char *from = rule->text; *from != '\0'; from++) {
		if (*from == '\\' && from[1] != '\0' && strchr("\\; \t", from[1]) != NULL)
			from++;
		*to++ = *from;
	}
	*to = '\0';
	return 0;
}

static const struct {
	const char *key, *what;          /* in messages */
	int (*parse)(struct rule *rule); /* NULL: any text will do */
} kinds[RULE_KINDS] = {
	[RULE_SUBJECT] = { "allow-subject", "the subject of a certificate", NULL },
	[RULE_FINGERPRINT] = { "allow-fingerprint",
			       "the SHA-256 of a certificate, 64 hexadecimal digits",
			       parse_fingerprint },
	[RULE_PSK] = { "allow-psk", "the identity of a key", parse_psk },
	[RULE_UID] = { "allow-uid", "a user's number or name", parse_uid },
	[RULE_GID] = { "allow-gid", "a group's number or name", parse_gid },
};

static bool
rule_matches(const struct rule *rule, const struct peer *peer)
{
	switch (rule->kind) {
	case RULE_SUBJECT:
		return peer->tls && peer->subject != NULL && strcmp(rule->text, peer->subject) == 0;
	case RULE_FINGERPRINT: return peer->tls && strcmp(rule->text, peer->fingerprint) == 0;
	case RULE_PSK: return peer->tls && peer->psk != NULL && strcmp(rule->text, peer->psk) == 0;
	case RULE_UID: return peer->kind == PEER_UNIX && rule->id == peer->uid;
	case RULE_GID: return peer->kind == PEER_UNIX && rule->id == peer->gid;
	case RULE_KINDS: break;
	}
	return false;
}

/* ---- lists ----------------------------------------------------------------------- */

/* The next word of a list and its length, without the blanks around it; 0: the list is over. */
static size_t
next_word(const char **list, const char **word)
{
	const char *p = *list, *end;

	p += strspn(p, "; \t");
	*word = end = p;
	while (*p != '\0' && *p != ';') {
		bool blank = *p == ' ' || *p == '\t';

		p += *p == '\\' && p[1] != '\0' ? 2 : 1;
		if (!blank)
			end = p;
	}
	*list = p;
	return (size_t)(end - *word);
}

static unsigned
count_words(const char *list)
{
	const char *word;
	unsigned n = 0;

	while (list != NULL && next_word(&list, &word) > 0)
		n++;
	return n;
}

static int
add_list(struct access_rules *rules, enum rule_kind kind, const char *list, struct pl_error *err)
{
	const char *rest = list, *word;
	size_t length;

	while ((length = next_word(&rest, &word)) > 0) {
		struct rule *rule = &rules->rule[rules->count];

		rule->kind = kind;
		rule->text = strndup(word, length);
		if (rule->text == NULL)
			return pl_error_set(err, -ENOMEM, "%s", kinds[kind].key);
		rules->count++;
		if (kinds[kind].parse != NULL && kinds[kind].parse(rule) != 0)
			return pl_error_say(err, -EINVAL, "%s=%s: '%.*s' is not %s",
					    kinds[kind].key, list, (int)length, word,
					    kinds[kind].what);
	}
	return 0;
}

int
access_rules_new(struct access_rules **out, const char *subjects, const char *fingerprints,
		 const char *psks, const char *uids, const char *gids, struct pl_error *err)
{
	const char *const lists[RULE_KINDS] = {
		[RULE_SUBJECT] = subjects, [RULE_FINGERPRINT] = fingerprints,
		[RULE_PSK] = psks,         [RULE_UID] = uids,
		[RULE_GID] = gids,
	};
	struct access_rules *rules;
	unsigned words = 0;
	int error = 0;

	for (unsigned kind = 0; kind < RULE_KINDS; kind++) {
		if (lists[kind] != NULL && count_words(lists[kind]) == 0)
			return pl_error_say(err, -EINVAL, "%s=%s: it names nobody; expected %s",
					    kinds[kind].key, lists[kind], kinds[kind].what);
		words += count_words(lists[kind]);
	}
	rules = calloc(1, sizeof *rules + words * sizeof *rules->rule);
	if (rules == NULL)
		return pl_error_set(err, -ENOMEM, "access rules");
	rules->references = 1;
	for (unsigned kind = 0; kind < RULE_KINDS && error == 0; kind++) {
		if (lists[kind] != NULL)
			error = add_list(rules, kind, lists[kind], err);
	}
	if (error != 0) {
		access_rules_free(rules);
		return error;
	}
	*out = rules;
	return 0;
}

struct access_rules *
access_rules_copy(const struct access_rules *rules)
{
	struct access_rules *same = (struct access_rules *)rules;

	if (same != NULL)
		__atomic_fetch_add(&same->references, 1, __ATOMIC_RELAXED);
	return same;
}

void
access_rules_free(struct access_rules *rules)
{
	if (rules == NULL || __atomic_sub_fetch(&rules->references, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	for (unsigned i = 0; i < rules->count; i++)
		free(rules->rule[i].text);
	free(rules);
}

bool
access_rules_same(const struct access_rules *a, const struct access_rules *b)
{
	unsigned count = a != NULL ? a->count : 0;

	if (count != (b != NULL ? b->count : 0))
		return false;
	for (unsigned i = 0; i < count; i++) {
		if (a->rule[i].kind != b->rule[i].kind || a->rule[i].id != b->rule[i].id ||
		    strcmp(a->rule[i].text, b->rule[i].text) != 0)
			return false;
	}
	return true;
}

bool
access_allows(const struct access_rules *rules, const struct peer *peer)
{
	if (rules == NULL || rules->count == 0)
		return true;
	for (unsigned i = 0; i < rules->count; i++) {
		if (rule_matches(&rules->rule[i], peer))
			return true;
	}
	return false;
}
