/* rules.c - who may log in to a target, and see a LUN. */
#include "rules.h"

#include "keys.h"

#include <arpa/inet.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#define ADDRESS 16 /* bytes; of IPv4 as RFC 4291 maps it, "::ffff:a.b.c.d" */

struct network {
	uint8_t address[ADDRESS];
	unsigned bits; /* of it that count */
};

struct iscsi_rules {
	bool any_name, any_address;
	char *text; /* what the names point into */
	char **name;
	unsigned name_count;
	struct network *network;
	unsigned network_count;
};

/* ---- words ----------------------------------------------------------------------- */

/* The next word of a list, whose end is cut off; NULL: there is none. */
static char *
next_word(char **list)
{
	char *word = *list + strspn(*list, "; \t"), *end;

	if (*word == '\0')
		return NULL;
	*list = word + strcspn(word, ";");
	if (**list != '\0')
		*(*list)++ = '\0';
	end = word + strlen(word);
	while (end > word && (end[-1] == ' ' || end[-1] == '\t'))
		*--end = '\0';
	return word;
}

/* Of a list at most. */
static unsigned
count_words(const char *list)
{
	unsigned count = 1;

	for (; *list != '\0'; list++)
		count += *list == ';';
	return count;
}

/* ---- addresses ------------------------------------------------------------------- */

/* *six: it was written as IPv6. */
static bool
read_address(const char *text, uint8_t address[ADDRESS], bool *six)
{
	static const uint8_t mapped[ADDRESS] = { [10] = 0xff, [11] = 0xff };

	*six = inet_pton(AF_INET6, text, address) == 1;
	if (*six)
		return true;
	memcpy(address, mapped, ADDRESS);
	return inet_pton(AF_INET, text, address + ADDRESS - 4) == 1;
}

static bool
read_network(char *text, struct network *network)
{
	char *slash = strchr(text, '/'), *end;
	unsigned long bits, most;
	bool six;

	if (slash != NULL)
		*slash = '\0';
	if (!read_address(text, network->address, &six))
		return false;
	most = six ? 128 : 32;
	bits = most;
	if (slash != NULL) {
		bits = strtoul(slash + 1, &end, 10);
		if (slash[1] < '0' || slash[1] > '9' || *end != '\0' || bits > most)
			return false;
	}
	network->bits = (unsigned)(bits + 8 * ADDRESS - most);
	return true;
}

static bool
is_in(const struct network *network, const uint8_t address[ADDRESS])
{
	unsigned bytes = network->bits / 8, rest = network->bits % 8;

	if (memcmp(network->address, address, bytes) != 0)
		return false;
	return rest == 0 || (network->address[bytes] ^ address[bytes]) >> (8 - rest) == 0;
}

/* ---- making and asking ----------------------------------------------------------- */

static int
read_names(struct iscsi_rules *r, const char *list, struct pl_error *err)
{
	char *word, *rest;

	r->text = strdup(list);
	r->name = calloc(count_words(list), sizeof *r->name);
	if (r->text == NULL || r->name == NULL)
		return pl_error_set(err, -ENOMEM, "initiators");
	for (rest = r->text; (word = next_word(&rest)) != NULL;) {
		if (!iscsi_name_is_valid(word))
			return pl_error_say(err, -EINVAL,
					    "initiators=%s: '%s' is no iSCSI name; one begins with "
					    "iqn., eui. or naa. and is in lower case",
					    list, word);
		r->name[r->name_count++] = word;
	}
	return r->name_count > 0
		       ? 0
		       : pl_error_say(err, -EINVAL, "initiators=%s: it names nobody", list);
}

static int
read_networks(struct iscsi_rules *r, const char *list, struct pl_error *err)
{
	char *copy = strdup(list), *rest = copy, *word;
	int error = 0;

	r->network = calloc(count_words(list), sizeof *r->network);
	if (copy == NULL || r->network == NULL)
		error = pl_error_set(err, -ENOMEM, "addresses");
	while (error == 0 && (word = next_word(&rest)) != NULL) {
		if (!read_network(word, &r->network[r->network_count++]))
			error = pl_error_say(err, -EINVAL,
					     "addresses=%s: expected addresses and networks such "
					     "as 192.0.2.7, 10.0.0.0/8 or fe80::/64",
					     list);
	}
	if (error == 0 && r->network_count == 0)
		error = pl_error_say(err, -EINVAL, "addresses=%s: it names nobody", list);
	free(copy);
	return error;
}

int
iscsi_rules_new(struct iscsi_rules **out, const char *initiators, const char *addresses,
		struct pl_error *err)
{
	struct iscsi_rules *r = calloc(1, sizeof *r);
	int error = 0;

	if (r == NULL)
		return pl_error_set(err, -ENOMEM, "rules");
	r->any_name = initiators == NULL;
	r->any_address = addresses == NULL;
	if (initiators != NULL)
		error = read_names(r, initiators, err);
	if (error == 0 && addresses != NULL)
		error = read_networks(r, addresses, err);
	if (error != 0) {
		iscsi_rules_free(r);
		return error;
	}
	*out = r;
	return 0;
}

void
iscsi_rules_free(struct iscsi_rules *r)
{
	if (r == NULL)
		return;
	free(r->text);
	free(r->name);
	free(r->network);
	free(r);
}

bool
iscsi_rules_allow_name(const struct iscsi_rules *r, const char *initiator)
{
	for (unsigned i = 0; i < r->name_count; i++) {
		if (strcmp(r->name[i], initiator) == 0)
			return true;
	}
	return r->any_name;
}

bool
iscsi_rules_allow_peer(const struct iscsi_rules *r, const struct peer *peer)
{
	uint8_t address[ADDRESS];
	bool six;

	if (r->any_address)
		return true;
	if (peer->kind != PEER_TCP || !read_address(peer->host, address, &six))
		return false;
	for (unsigned i = 0; i < r->network_count; i++) {
		if (is_in(&r->network[i], address))
			return true;
	}
	return false;
}
