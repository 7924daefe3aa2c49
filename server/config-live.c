/* config-live.c - what of a new configuration means something to a server that runs. */
#include "config.h"

#include <string.h>

/* Keys of [server] that mean something to a server that runs. */
static const char *const live_keys[] = {
	"depth",
	"handshake-timeout",
	"list",
	"max-connections",
	"tls",
	"max-connections-per-host",
	"tls-certificates",
	"tls-psk",
	"tls-verify-peer",
};

static bool
is_live(const char *key)
{
	for (unsigned i = 0; i < sizeof live_keys / sizeof *live_keys; i++) {
		if (strcmp(live_keys[i], key) == 0)
			return true;
	}
	return false;
}

static bool
same_value(const struct pl_option *o, const void *a, const void *b)
{
	const void *in_a = (const char *)a + o->at, *in_b = (const char *)b + o->at;

	switch (o->type) {
	case PL_OPT_STRING: return text_same(*(char *const *)in_a, *(char *const *)in_b);
	case PL_OPT_BOOL: return *(const bool *)in_a == *(const bool *)in_b;
	case PL_OPT_ENUM: return *(const int *)in_a == *(const int *)in_b;
	default: return *(const uint64_t *)in_a == *(const uint64_t *)in_b;
	}
}

static bool
same_listeners(const struct config *a, const struct config *b)
{
	bool same = a->listener_count == b->listener_count;

	for (unsigned i = 0; same && i < a->listener_count; i++) {
		same = a->listeners[i].kind == b->listeners[i].kind &&
		       a->listeners[i].mode == b->listeners[i].mode &&
		       text_same(a->listeners[i].value, b->listeners[i].value);
	}
	return same;
}

void
config_report_waiting(const struct config *now, const struct config *fresh)
{
	for (const struct pl_option *o = server_options; o->name != NULL; o++) {
		if (!is_live(o->name) && !same_value(o, &now->server, &fresh->server))
			log_warn("reload: %s: takes effect at the next start", o->name);
	}
	if (!same_listeners(now, fresh))
		log_warn("reload: listeners: take effect at the next start");
}
