/* registrations.c - who has registered, and what is reserved. */
#include "registrations.h"

#include "nexus.h"

#include <assert.h>
#include <errno.h>
#include <inttypes.h>
#include <jansson.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- types ----------------------------------------------------------------------- */

enum { KNOWN = 1 << 0, ALL = 1 << 1, SHARED = 1 << 2, READING = 1 << 3 };

static const uint8_t types[] = {
	[WRITE_EXCLUSIVE] = KNOWN | READING,
	[EXCLUSIVE_ACCESS] = KNOWN,
	[WRITE_EXCLUSIVE_REGISTRANTS] = KNOWN | SHARED | READING,
	[EXCLUSIVE_ACCESS_REGISTRANTS] = KNOWN | SHARED,
	[WRITE_EXCLUSIVE_ALL] = KNOWN | SHARED | ALL | READING,
	[EXCLUSIVE_ACCESS_ALL] = KNOWN | SHARED | ALL,
};

static bool
type_is(unsigned type, unsigned what)
{
	return type < sizeof types && (types[type] & what) != 0;
}

bool
scsi_type_known(unsigned type)
{
	return type_is(type, KNOWN);
}

bool
scsi_type_all(unsigned type)
{
	return type_is(type, ALL);
}

bool
scsi_type_shared(unsigned type)
{
	return type_is(type, SHARED);
}

bool
scsi_type_reading(unsigned type)
{
	return type_is(type, READING);
}

/* ---- ports ----------------------------------------------------------------------- */

bool
scsi_port_is(const struct scsi_port *port, const struct scsi_nexus *nexus)
{
	return memcmp(port->isid, nexus->isid, sizeof port->isid) == 0 &&
	       strcmp(port->initiator, nexus->initiator) == 0;
}

struct scsi_port
scsi_port_of(const struct scsi_nexus *nexus)
{
	struct scsi_port port = { 0 };

	memcpy(port.initiator, nexus->initiator, sizeof port.initiator);
	memcpy(port.isid, nexus->isid, sizeof port.isid);
	return port;
}

/* ---- the list -------------------------------------------------------------------- */

static size_t
size_for(unsigned count)
{
	return sizeof(struct scsi_registrations) + count * sizeof(struct scsi_registration);
}

struct scsi_registrations *
scsi_registrations_new(void)
{
	struct scsi_registrations *r = calloc(1, size_for(0));

	if (r != NULL)
		r->holder = -1;
	return r;
}

struct scsi_registrations *
scsi_registrations_copy(const struct scsi_registrations *from)
{
	struct scsi_registrations *r = malloc(size_for(from->count));

	if (r == NULL)
		return NULL;
	memcpy(r, from, size_for(from->count));
	r->total = r->count;
	return r;
}

int
scsi_registrations_find(const struct scsi_registrations *r, const struct scsi_port *port)
{
	for (unsigned i = 0; i < r->count; i++) {
		if (memcmp(r->list[i].port.isid, port->isid, sizeof port->isid) == 0 &&
		    strcmp(r->list[i].port.initiator, port->initiator) == 0)
			return (int)i;
	}
	return -1;
}

int
scsi_registrations_of(const struct scsi_registrations *r, const struct scsi_nexus *nexus)
{
	for (unsigned i = 0; i < r->count; i++) {
		if (scsi_port_is(&r->list[i].port, nexus))
			return (int)i;
	}
	return -1;
}

bool
scsi_registrations_holds(const struct scsi_registrations *r, int place)
{
	return place >= 0 && r->type != 0 && (scsi_type_all(r->type) || r->holder == place);
}

bool
scsi_registrations_add(struct scsi_registrations **r, const struct scsi_port *port, uint64_t key,
		       bool all_ports)
{
	struct scsi_registrations *grown;

	assert((*r)->total == (*r)->count);
	if ((*r)->count >= SCSI_REGISTRATIONS_MAX)
		return false;
	grown = realloc(*r, size_for((*r)->count + 1));
	if (grown == NULL)
		return false;
	grown->list[grown->count] =
		(struct scsi_registration){ .port = *port, .key = key, .all_ports = all_ports };
	grown->total = ++grown->count;
	*r = grown;
	return true;
}

void
scsi_registrations_leave(struct scsi_registrations *r, unsigned place, unsigned attention)
{
	struct scsi_registration gone;

	assert(place < r->count);
	gone = r->list[place];
	gone.attention = (uint16_t)attention;
	memmove(r->list + place, r->list + place + 1, (r->total - place - 1) * sizeof r->list[0]);
	r->list[r->total - 1] = gone;
	r->count--;
	if (r->holder == (int)place)
		r->holder = -1;
	else if (r->holder > (int)place)
		r->holder--;
}

/* ---- text ------------------------------------------------------------------------ */

static json_t *
registration_json(const struct scsi_registrations *r, unsigned place)
{
	const struct scsi_registration *one = &r->list[place];
	char isid[2 * sizeof one->port.isid + 1], key[17];

	for (unsigned i = 0; i < sizeof one->port.isid; i++)
		snprintf(isid + 2 * i, 3, "%02x", one->port.isid[i]);
	snprintf(key, sizeof key, "%016" PRIx64, one->key);
	return json_pack("{s:s, s:s, s:s, s:b, s:b}", "initiator", one->port.initiator, "isid",
			 isid, "key", key, "all-target-ports", one->all_ports, "holder",
			 r->holder == (int)place);
}

/* What is not to be kept is kept as nothing: it replaces what was kept before. */
char *
scsi_registrations_text(const struct scsi_registrations *r)
{
	json_t *list = json_array(),
	       *top = json_pack("{s:i, s:o}", "type", r->kept ? (int)r->type : 0, "registrations",
				list);
	char *text = NULL;
	int error = top == NULL;

	for (unsigned i = 0; error == 0 && r->kept && i < r->count; i++)
		error = json_array_append_new(list, registration_json(r, i));
	if (error == 0)
		text = json_dumps(top, JSON_COMPACT);
	json_decref(top);
	return text;
}

static bool
parse_hex(const char *text, unsigned digits, uint64_t *n)
{
	*n = 0;
	if (strlen(text) != digits || strspn(text, "0123456789abcdef") != digits)
		return false;
	*n = strtoull(text, NULL, 16);
	return true;
}

static int
parse_registration(json_t *json, struct scsi_registrations **r)
{
	const char *initiator, *isid, *key;
	int all_ports, holder;
	uint64_t isid_number, key_number;
	struct scsi_port port = { 0 };

	if (json_unpack(json, "{s:s, s:s, s:s, s:b, s:b !}", "initiator", &initiator, "isid", &isid,
			"key", &key, "all-target-ports", &all_ports, "holder", &holder) != 0)
		return -EINVAL;
	if (initiator[0] == '\0' || strlen(initiator) > SCSI_NAME_MAX ||
	    !parse_hex(isid, 12, &isid_number) || !parse_hex(key, 16, &key_number) ||
	    key_number == 0)
		return -EINVAL;
	memcpy(port.initiator, initiator, strlen(initiator));
	for (unsigned i = 0; i < sizeof port.isid; i++)
		port.isid[i] = (uint8_t)(isid_number >> (40 - 8 * i));
	if (scsi_registrations_find(*r, &port) != -1 || (holder && (*r)->holder != -1) ||
	    (*r)->count == SCSI_REGISTRATIONS_MAX)
		return -EINVAL;
	if (!scsi_registrations_add(r, &port, key_number, all_ports))
		return -ENOMEM;
	if (holder)
		(*r)->holder = (int)(*r)->count - 1;
	return 0;
}

/* Nobody holds a reservation but a registrant: one, or for the types that say so all. */
static bool
is_whole(const struct scsi_registrations *r)
{
	bool one = r->type != 0 && !scsi_type_all(r->type);

	if (r->type != 0 && (!scsi_type_known(r->type) || r->count == 0))
		return false;
	return one == (r->holder != -1);
}

static int
parse_top(json_t *top, struct scsi_registrations **r)
{
	json_t *list, *one;
	json_int_t type;
	size_t i;
	int error;

	if (json_unpack(top, "{s:I, s:o !}", "type", &type, "registrations", &list) != 0 ||
	    !json_is_array(list) || type < 0 || type > UINT8_MAX)
		return -EINVAL;
	(*r)->type = (unsigned)type;
	json_array_foreach(list, i, one)
	{
		error = parse_registration(one, r);
		if (error != 0)
			return error;
	}
	(*r)->kept = (*r)->count > 0;
	return is_whole(*r) ? 0 : -EINVAL;
}

int
scsi_registrations_parse(const char *text, const char *name, struct scsi_registrations **out,
			 struct pl_error *err)
{
	struct scsi_registrations *r = scsi_registrations_new();
	json_error_t where;
	json_t *top;
	int error;

	if (r == NULL)
		return pl_error_set(err, -ENOMEM, "unit %s", name);
	top = json_loads(text, JSON_REJECT_DUPLICATES, &where);
	error = top != NULL ? parse_top(top, &r) : -EINVAL;
	json_decref(top);
	if (error != 0) {
		free(r);
		return pl_error_say(err, error,
				    "unit %s: what was kept of its persistent reservations is not "
				    "what this server writes: %s",
				    name, text);
	}
	*out = r;
	return 0;
}
