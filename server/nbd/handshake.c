/*
 * handshake.c - the haggling phase, as a table of options.
 *
 * The good path: a greeting, the client's flags, then options, each with its answer, until GO
 * or EXPORT_NAME begins a session. A row of the table tells what an option takes and when it is
 * allowed; read_option() holds every option to its row before its handler sees any data. An
 * option that needs an open export stops at HANDSHAKE_OPEN and is finished by
 * handshake_opened().
 *
 * What can go wrong:
 * - an option is refused (unknown, too long, not now): its data is skipped and one error is the
 *   answer, so the next option is found where it begins. Skipping has a bound, NBD_OPTION_MAX.
 * - data is not what the option says: every length in it is held to what is left of the data.
 * - an error cannot be told, for EXPORT_NAME has no error reply and old clients know no replies:
 *   the connection is closed.
 */
#include "handshake.h"

#include "../clients.h"
#include "../worker.h"
#include "sm.h"

#include <errno.h>
#include <stdlib.h>

#define GREETING_LENGTH      18
#define CLIENT_FLAGS_LENGTH  4
#define OPTION_HEADER_LENGTH 16
#define REPLY_HEADER_LENGTH  20

#define DATA_MAX (NBD_HANDSHAKE_INPUT - OPTION_HEADER_LENGTH)

enum { AT_FLAGS, AT_OPTION, AT_DRAIN, AT_TLS, AT_OPEN, AT_END };
#define TO(state) (1u << AT_##state)

static const struct pl_sm_state states[] = {
	[AT_FLAGS] = { "flags", TO(OPTION) | TO(END) },
	[AT_OPTION] = { "option", TO(DRAIN) | TO(TLS) | TO(OPEN) | TO(END) },
	[AT_DRAIN] = { "drain", TO(OPTION) | TO(END) },
	[AT_TLS] = { "tls", TO(OPTION) | TO(END) },
	[AT_OPEN] = { "open", TO(OPTION) | TO(END) },
	[AT_END] = { "end", TO(END) },
};

/* ---- output ---------------------------------------------------------------------- */

void
nbd_output_add(struct nbd_output *out, const void *data, size_t length)
{
	size_t capacity = out->capacity != 0 ? out->capacity : 512;
	uint8_t *grown;

	if (out->failed || length == 0)
		return;
	while (capacity < out->length + length)
		capacity *= 2;
	if (capacity != out->capacity) {
		grown = realloc(out->data, capacity);
		if (grown == NULL) {
			out->failed = true;
			return;
		}
		out->data = grown;
		out->capacity = capacity;
	}
	memcpy(out->data + out->length, data, length);
	out->length += length;
}

void
nbd_output_free(struct nbd_output *out)
{
	free(out->data);
	*out = (struct nbd_output){ 0 };
}

/* No string of the protocol is longer than NBD_STRING_MAX; a letter is not cut in two. */
static size_t
string_length(const char *text)
{
	size_t length = strnlen(text, NBD_STRING_MAX + 1);

	if (length <= NBD_STRING_MAX)
		return length;
	length = NBD_STRING_MAX;
	while (length > 0 && ((uint8_t)text[length] & 0xc0) == 0x80)
		length--;
	return length;
}

static void
add_string(struct nbd_output *out, const char *text)
{
	nbd_output_add(out, text, string_length(text));
}

/* A reply's header, for `length` bytes to be added. */
static void
reply(struct nbd_output *out, uint32_t option, uint32_t type, size_t length)
{
	uint8_t head[REPLY_HEADER_LENGTH], *p = head;

	p = put_be64(p, NBD_OPT_REPLY_MAGIC);
	p = put_be32(p, option);
	p = put_be32(p, type);
	put_be32(p, (uint32_t)length);
	nbd_output_add(out, head, sizeof head);
}

static enum handshake_step
accept_option(struct handshake *h, struct nbd_output *out)
{
	reply(out, h->option, NBD_REP_ACK, 0);
	return HANDSHAKE_AGAIN;
}

static enum handshake_step
close_with(struct handshake *h, const char *why)
{
	pl_sm_move(states, &h->state, AT_END);
	h->why = why;
	return HANDSHAKE_CLOSE;
}

/* An answer that is not whole is the last. */
static enum handshake_step
unless_failed(struct handshake *h, enum handshake_step step, const struct nbd_output *out)
{
	return out->failed ? close_with(h, "out of memory") : step;
}

/* ---- input ----------------------------------------------------------------------- */

/* What is left of an option's data. */
struct input {
	const uint8_t *at;
	size_t left;
};

struct string {
	const char *text; /* not terminated */
	size_t length;
};

static bool
take(struct input *in, size_t length, const uint8_t **data)
{
	if (length > in->left)
		return false;
	*data = in->at;
	in->at += length;
	in->left -= length;
	return true;
}

static bool
take16(struct input *in, uint16_t *n)
{
	const uint8_t *p;

	if (!take(in, sizeof *n, &p))
		return false;
	*n = get_be16(p);
	return true;
}

static bool
take32(struct input *in, uint32_t *n)
{
	const uint8_t *p;

	if (!take(in, sizeof *n, &p))
		return false;
	*n = get_be32(p);
	return true;
}

/* NBD proto.md, "Conventions": what a string may be. */
static bool
take_text(struct input *in, size_t length, struct string *s)
{
	const uint8_t *p;

	if (length > NBD_STRING_MAX || !take(in, length, &p) || memchr(p, '\0', length) != NULL)
		return false;
	*s = (struct string){ (const char *)p, length };
	return true;
}

static bool
take_string(struct input *in, struct string *s)
{
	uint32_t length;

	return take32(in, &length) && take_text(in, length, s);
}

static bool
string_is(const struct string *s, const char *text)
{
	return s->length == strlen(text) && memcmp(s->text, text, s->length) == 0;
}

/* ---- refusing -------------------------------------------------------------------- */

struct refusal {
	uint32_t reply;
	const char *text;
};

static const struct refusal shutting_down = { NBD_REP_ERR_SHUTDOWN, "the server is shutting down" };
static const struct refusal needs_tls = { NBD_REP_ERR_TLS_REQD, "TLS is required here" };
static const struct refusal unknown = { NBD_REP_ERR_UNSUP, "the server knows no such option" };
static const struct refusal takes_nothing = { NBD_REP_ERR_INVALID, "this option takes no data" };
static const struct refusal too_big = { NBD_REP_ERR_TOO_BIG, "this option is too long" };
static const struct refusal name_too_long = { NBD_REP_ERR_INVALID, "the name is too long" };
static const struct refusal ignored = { NBD_REP_ACK, "" };

static enum handshake_step
refuse(struct handshake *h, struct nbd_output *out, uint32_t type, const char *text)
{
	reply(out, h->option, type, string_length(text));
	add_string(out, text);
	return HANDSHAKE_AGAIN;
}

static enum handshake_step
invalid(struct handshake *h, struct nbd_output *out, const char *text)
{
	return refuse(h, out, NBD_REP_ERR_INVALID, text);
}

/* What an export that is not to be had is answered with; what is not here: UNKNOWN, not
 * available. */
static const struct {
	int error;
	uint32_t reply;
} export_errors[] = {
	{ -EACCES, NBD_REP_ERR_POLICY },
	{ -EBUSY, NBD_REP_ERR_POLICY }, /* by its access mode */
	{ -EPROTONOSUPPORT, NBD_REP_ERR_TLS_REQD },
};

static uint32_t
reply_for(const struct handshake *h, int error)
{
	uint32_t type = NBD_REP_ERR_UNKNOWN;

	for (size_t i = 0; i < sizeof export_errors / sizeof *export_errors; i++) {
		if (export_errors[i].error == error)
			type = export_errors[i].reply;
	}
	/* NBD proto.md, "NOTLS mode" and "SELECTIVETLS mode": nobody else may be told so. */
	if (type == NBD_REP_ERR_TLS_REQD &&
	    (!h->can_tls || (h->option != NBD_OPT_INFO && h->option != NBD_OPT_GO)))
		type = NBD_REP_ERR_POLICY;
	return type;
}

/* Once a connection, which may ask as often as it likes. With whom TLS has found it to be, in the
 * words of the rules for an export. */
static void
complain(struct handshake *h, const char *text)
{
	const struct peer *p = h->peer;
	const char *who = p->subject != NULL ? p->subject : p->psk;

	if (!h->complained)
		peer_warn("%s%s%s%s: %s", p->text, who != NULL ? " (" : "", who != NULL ? who : "",
			  who != NULL ? ")" : "", text);
	h->complained = true;
}

static enum handshake_step
refuse_export(struct handshake *h, struct nbd_output *out, uint32_t type, const char *text,
	      const char *for_log)
{
	complain(h, for_log);
	if (h->option == NBD_OPT_EXPORT_NAME)
		return close_with(h, NULL);
	return refuse(h, out, type, text);
}

/* ---- metadata contexts ----------------------------------------------------------- */

static void
forget_context(struct handshake *h)
{
	free(h->context_export);
	h->context_export = NULL;
}

static bool
query_matches(const struct handshake *h, const struct string *query)
{
	return string_is(query, NBD_BASE_ALLOCATION) ||
	       (h->option == NBD_OPT_LIST_META_CONTEXT && string_is(query, "base:"));
}

/* Of a request for contexts, all behind the export's name. */
static bool
take_queries(const struct handshake *h, struct input *in, bool *found)
{
	struct string query;
	uint32_t count;

	if (!take32(in, &count))
		return false;
	*found = count == 0 && h->option == NBD_OPT_LIST_META_CONTEXT;
	for (; count > 0; count--) {
		if (!take_string(in, &query))
			return false;
		*found = *found || query_matches(h, &query);
	}
	return in->left == 0;
}

static enum handshake_step
meta_context(struct handshake *h, struct input *in, struct nbd_output *out)
{
	bool select = h->option == NBD_OPT_SET_META_CONTEXT, found;
	struct string export;
	struct offer *offer;
	struct pl_error err;
	uint8_t id[4];
	int error;

	if (select && !h->agreed.structured)
		return invalid(h, out, "metadata contexts need structured replies");
	if (!take_string(in, &export) || !take_queries(h, in, &found))
		return invalid(h, out, "the lengths in the request do not fit its length");
	error = catalog_find(h->worker->settings->catalog, export.text, export.length, h->peer,
			     &offer, &err);
	if (error != 0)
		return refuse_export(h, out, reply_for(h, error), err.text, err.text);
	offer_put(offer);
	if (found) {
		if (select) {
			h->context_export = strndup(export.text, export.length);
			if (h->context_export == NULL)
				return close_with(h, "out of memory");
		}
		put_be32(id, select ? NBD_BASE_ALLOCATION_ID : 0);
		reply(out, h->option, NBD_REP_META_CONTEXT,
		      sizeof id + strlen(NBD_BASE_ALLOCATION));
		nbd_output_add(out, id, sizeof id);
		add_string(out, NBD_BASE_ALLOCATION);
	}
	return accept_option(h, out);
}

/* ---- an export: INFO, GO, EXPORT_NAME -------------------------------------------- */

static const struct {
	unsigned needs; /* enum pl_capability, all of them */
	uint16_t flag;
} transmission_flags[] = {
	{ PL_CAP_FLUSH, NBD_FLAG_SEND_FLUSH },
	{ PL_CAP_FUA | PL_CAP_FLUSH, NBD_FLAG_SEND_FUA },
	{ PL_CAP_ROTATIONAL, NBD_FLAG_ROTATIONAL },
	{ PL_CAP_TRIM | PL_CAP_WRITE, NBD_FLAG_SEND_TRIM },
	{ PL_CAP_ZERO | PL_CAP_WRITE, NBD_FLAG_SEND_WRITE_ZEROES },
	{ PL_CAP_FAST_ZERO | PL_CAP_ZERO | PL_CAP_WRITE, NBD_FLAG_SEND_FAST_ZERO },
	{ PL_CAP_MULTI_CONN, NBD_FLAG_CAN_MULTI_CONN },
	{ PL_CAP_CACHE, NBD_FLAG_SEND_CACHE },
};

uint16_t
nbd_transmission_flags(unsigned capabilities, const struct nbd_agreement *agreed)
{
	uint16_t flags = NBD_FLAG_HAS_FLAGS;

	if ((capabilities & PL_CAP_WRITE) == 0)
		flags |= NBD_FLAG_READ_ONLY;
	for (size_t i = 0; i < sizeof transmission_flags / sizeof *transmission_flags; i++) {
		if ((capabilities & transmission_flags[i].needs) == transmission_flags[i].needs)
			flags |= transmission_flags[i].flag;
	}
	if (agreed->structured)
		flags |= NBD_FLAG_SEND_DF;
	if (agreed->extended && agreed->allocation)
		flags |= NBD_FLAG_BLOCK_STATUS_PAYLOAD;
	return flags;
}

static enum handshake_step
find_export(struct handshake *h, const struct string *name, struct nbd_output *out)
{
	struct pl_error err;
	int error;

	error = catalog_find(h->worker->settings->catalog, name->text, name->length, h->peer,
			     &h->offer, &err);
	if (error != 0)
		return refuse_export(h, out, reply_for(h, error), err.text, err.text);
	h->matches = h->context_export != NULL && string_is(name, h->context_export);
	pl_sm_move(states, &h->state, AT_OPEN);
	return HANDSHAKE_OPEN;
}

static enum handshake_step
info_or_go(struct handshake *h, struct input *in, struct nbd_output *out)
{
	struct string name;
	uint16_t count, info;

	h->wanted = 0;
	if (!take_string(in, &name) || !take16(in, &count) || in->left != count * sizeof info)
		return invalid(h, out, "the lengths in the request do not fit its length");
	while (take16(in, &info)) {
		if (info <= NBD_INFO_BLOCK_SIZE)
			h->wanted |= 1u << info;
	}
	return find_export(h, &name, out);
}

static enum handshake_step
export_name(struct handshake *h, struct input *in, struct nbd_output *out)
{
	struct string name;

	if (h->agreed.extended)
		return close_with(h, "EXPORT_NAME after extended headers");
	if (!take_text(in, in->left, &name))
		return close_with(h, "an export's name that is none");
	return find_export(h, &name, out);
}

/* What the client learns of its export. */
struct facts {
	uint64_t size;
	uint32_t preferred;
	uint16_t flags;
};

static void
info_text(struct handshake *h, struct nbd_output *out, enum nbd_info info, const char *text)
{
	uint8_t type[2];

	put_be16(type, (uint16_t)info);
	reply(out, h->option, NBD_REP_INFO, sizeof type + string_length(text));
	nbd_output_add(out, type, sizeof type);
	add_string(out, text);
}

static enum handshake_step
answer_info(struct handshake *h, const struct facts *f, struct nbd_output *out)
{
	uint8_t data[14], *p = data;

	p = put_be16(p, NBD_INFO_EXPORT);
	p = put_be64(p, f->size);
	p = put_be16(p, f->flags);
	reply(out, h->option, NBD_REP_INFO, (size_t)(p - data));
	nbd_output_add(out, data, (size_t)(p - data));
	if ((h->wanted & 1u << NBD_INFO_NAME) != 0)
		info_text(h, out, NBD_INFO_NAME, offer_name(h->offer));
	if ((h->wanted & 1u << NBD_INFO_DESCRIPTION) != 0)
		info_text(h, out, NBD_INFO_DESCRIPTION, offer_description(h->offer));
	if ((h->wanted & 1u << NBD_INFO_BLOCK_SIZE) != 0) {
		p = put_be16(data, NBD_INFO_BLOCK_SIZE);
		p = put_be32(p, 1);
		p = put_be32(p, f->preferred);
		p = put_be32(p, NBD_MAX_PAYLOAD);
		reply(out, h->option, NBD_REP_INFO, (size_t)(p - data));
		nbd_output_add(out, data, (size_t)(p - data));
	}
	return accept_option(h, out);
}

/* The only answer without a header. */
static void
answer_export_name(struct handshake *h, const struct facts *f, struct nbd_output *out)
{
	static const uint8_t zeroes[124];
	uint8_t data[10];

	put_be16(put_be64(data, f->size), f->flags);
	nbd_output_add(out, data, sizeof data);
	if (!h->no_zeroes)
		nbd_output_add(out, zeroes, sizeof zeroes);
}

static enum handshake_step
finish_info(struct handshake *h, struct nbd_output *out)
{
	const struct pl_geometry *g = offer_geometry(h->offer);
	struct nbd_agreement agreed = h->agreed;
	struct facts f = { .size = g->size, .preferred = g->preferred };

	agreed.allocation = h->matches;
	f.flags = nbd_transmission_flags(offer_capabilities(h->offer), &agreed);
	pl_sm_move(states, &h->state, AT_OPTION);
	return answer_info(h, &f, out);
}

static enum handshake_step
finish_go(struct handshake *h, struct nbd_output *out)
{
	struct session *s = &h->session;
	struct facts f = { .size = s->size, .preferred = s->preferred };

	h->agreed.allocation = h->matches;
	f.flags = nbd_transmission_flags(s->capabilities, &h->agreed);
	pl_sm_move(states, &h->state, AT_END);
	clients_chose(h->client, offer_name(h->offer));
	if (h->option == NBD_OPT_EXPORT_NAME)
		answer_export_name(h, &f, out);
	else
		answer_info(h, &f, out);
	return HANDSHAKE_GO;
}

static enum handshake_step
fail_to_open(struct handshake *h, struct nbd_output *out, uint32_t type, const char *why,
	     const char *why_for_log)
{
	struct pl_error err, for_log;

	pl_error_say(&err, 0, "export \"%s\": %s", offer_name(h->offer), why);
	pl_error_say(&for_log, 0, "export \"%s\": %s", offer_name(h->offer), why_for_log);
	if (h->option != NBD_OPT_EXPORT_NAME)
		pl_sm_move(states, &h->state, AT_OPTION);
	return refuse_export(h, out, type, err.text, for_log.text);
}

enum handshake_step
handshake_opened(struct handshake *h, int error, const struct pl_error *err, struct nbd_output *out)
{
	enum handshake_step step;
	struct pl_error refused;

	assert(h->state == AT_OPEN);
	if (h->shutting_down) {
		step = fail_to_open(h, out, shutting_down.reply, shutting_down.text,
				    shutting_down.text);
	} else if (error != 0) {
		/* Files of this machine and other exports are the operator's business. */
		step = fail_to_open(h, out, NBD_REP_ERR_UNKNOWN, strerror(-error), err->text);
	} else if (h->option == NBD_OPT_INFO) {
		step = finish_info(h, out);
	} else {
		error = session_begin(&h->session, h->offer, h->worker, h->client, &refused);
		step = error == 0 ? finish_go(h, out)
				  : fail_to_open(h, out, reply_for(h, error), refused.text,
						 refused.text);
	}
	if (step != HANDSHAKE_GO)
		offer_put(h->offer);
	else if (out->failed)
		session_end(&h->session);
	h->offer = NULL;
	return unless_failed(h, step, out);
}

/* ---- the other options ----------------------------------------------------------- */

static enum handshake_step
abort_haggling(struct handshake *h, struct input *in, struct nbd_output *out)
{
	(void)in;
	accept_option(h, out);
	return close_with(h, NULL);
}

static void
list_one(void *user, const char *name, const char *description)
{
	struct nbd_output *out = user;
	size_t length = string_length(name);
	uint8_t head[4];

	put_be32(head, (uint32_t)length);
	reply(out, NBD_OPT_LIST, NBD_REP_SERVER, sizeof head + length + string_length(description));
	nbd_output_add(out, head, sizeof head);
	add_string(out, name);
	add_string(out, description);
}

static enum handshake_step
list(struct handshake *h, struct input *in, struct nbd_output *out)
{
	(void)in;
	if (!h->worker->settings->may_list)
		return refuse(h, out, NBD_REP_ERR_POLICY, "this server does not list its exports");
	if (catalog_list(h->worker->settings->catalog, h->peer, list_one, out) != 0)
		return refuse(h, out, NBD_REP_ERR_PLATFORM, "the list cannot be made now");
	return accept_option(h, out);
}

static enum handshake_step
starttls(struct handshake *h, struct input *in, struct nbd_output *out)
{
	(void)in;
	if (h->peer->tls)
		return invalid(h, out, "TLS is in use already");
	if (!h->can_tls || h->worker->settings->tls == TLS_OFF)
		return refuse(h, out, NBD_REP_ERR_POLICY, "this server does not offer TLS");
	accept_option(h, out);
	pl_sm_move(states, &h->state, AT_TLS);
	return HANDSHAKE_TLS;
}

static enum handshake_step
structured_reply(struct handshake *h, struct input *in, struct nbd_output *out)
{
	(void)in;
	if (h->agreed.extended)
		return refuse(h, out, NBD_REP_ERR_EXT_HEADER_REQD,
			      "extended headers are agreed on already");
	if (h->agreed.structured)
		return invalid(h, out, "structured replies are agreed on already");
	h->agreed.structured = true;
	return accept_option(h, out);
}

static enum handshake_step
extended_headers(struct handshake *h, struct input *in, struct nbd_output *out)
{
	(void)in;
	if (h->agreed.extended)
		return invalid(h, out, "extended headers are agreed on already");
	h->agreed.structured = h->agreed.extended = true;
	return accept_option(h, out);
}

/* ---- the table ------------------------------------------------------------------- */

enum {
	BEFORE_TLS = 1 << 0,  /* allowed where TLS is required and not there yet */
	AT_SHUTDOWN = 1 << 1, /* allowed in a server that is shutting down */
	FOR_OLD = 1 << 2      /* allowed without fixed newstyle */
};

struct option {
	enum handshake_step (*run)(struct handshake *h, struct input *in, struct nbd_output *out);
	unsigned flags;
	size_t max;                     /* bytes of data */
	const struct refusal *too_long; /* the answer to more */
};

static const struct option options[] = {
	[NBD_OPT_EXPORT_NAME] = { export_name, FOR_OLD, NBD_STRING_MAX, &name_too_long },
	[NBD_OPT_ABORT] = { abort_haggling, BEFORE_TLS | AT_SHUTDOWN, 0, &ignored },
	[NBD_OPT_LIST] = { list, 0, 0, &takes_nothing },
	[NBD_OPT_STARTTLS] = { starttls, BEFORE_TLS, 0, &takes_nothing },
	[NBD_OPT_INFO] = { info_or_go, 0, DATA_MAX, &too_big },
	[NBD_OPT_GO] = { info_or_go, 0, DATA_MAX, &too_big },
	[NBD_OPT_STRUCTURED_REPLY] = { structured_reply, 0, 0, &takes_nothing },
	[NBD_OPT_LIST_META_CONTEXT] = { meta_context, 0, DATA_MAX, &too_big },
	[NBD_OPT_SET_META_CONTEXT] = { meta_context, 0, DATA_MAX, &too_big },
	[NBD_OPT_EXTENDED_HEADERS] = { extended_headers, 0, 0, &takes_nothing },
};

static const struct option *
option_find(uint32_t number)
{
	if (number >= sizeof options / sizeof *options || options[number].run == NULL)
		return NULL;
	return &options[number];
}

/* Why an option is not even looked at; NULL: it is. */
static const struct refusal *
option_refusal(const struct handshake *h, const struct option *o, size_t length)
{
	unsigned flags = o != NULL ? o->flags : 0;

	if (h->shutting_down && (flags & AT_SHUTDOWN) == 0)
		return &shutting_down;
	if (h->worker->settings->tls == TLS_REQUIRED && !h->peer->tls && (flags & BEFORE_TLS) == 0)
		return &needs_tls;
	if (o == NULL)
		return &unknown;
	return length > o->max ? o->too_long : NULL;
}

/* ---- the machine ----------------------------------------------------------------- */

static enum handshake_step
drain(struct handshake *h, size_t have, size_t *used, struct nbd_output *out)
{
	size_t part = have < h->drain ? have : h->drain;

	h->drain -= part;
	*used += part;
	if (h->drain > 0)
		return HANDSHAKE_MORE;
	pl_sm_move(states, &h->state, AT_OPTION);
	if (h->refusal == &ignored)
		return abort_haggling(h, NULL, out);
	return refuse(h, out, h->refusal->reply, h->refusal->text);
}

static enum handshake_step
read_flags(struct handshake *h, const uint8_t *in, size_t have, size_t *used)
{
	uint32_t flags;

	if (have < CLIENT_FLAGS_LENGTH)
		return HANDSHAKE_MORE;
	*used = CLIENT_FLAGS_LENGTH;
	flags = get_be32(in);
	if ((flags & ~(uint32_t)(NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES)) != 0)
		return close_with(h, "unknown client flags");
	h->fixed = (flags & NBD_FLAG_FIXED_NEWSTYLE) != 0;
	h->no_zeroes = (flags & NBD_FLAG_NO_ZEROES) != 0;
	pl_sm_move(states, &h->state, AT_OPTION);
	return HANDSHAKE_AGAIN;
}

static enum handshake_step
read_option(struct handshake *h, const uint8_t *in, size_t have, size_t *used,
	    struct nbd_output *out)
{
	const struct refusal *refusal;
	const struct option *o;
	struct input data;

	if (have < OPTION_HEADER_LENGTH)
		return HANDSHAKE_MORE;
	if (get_be64(in) != NBD_OPTION_MAGIC)
		return close_with(h, "bad option magic");
	h->option = get_be32(in + 8);
	data = (struct input){ in + OPTION_HEADER_LENGTH, get_be32(in + 12) };
	o = option_find(h->option);
	if (data.left > NBD_OPTION_MAX)
		return close_with(h, "an option that is too long to be skipped");
	if (!h->fixed && (o == NULL || (o->flags & FOR_OLD) == 0))
		return close_with(h, "an option that needs fixed newstyle negotiation");
	/* It replaces what was selected before, also when it fails. */
	if (h->option == NBD_OPT_SET_META_CONTEXT)
		forget_context(h);
	refusal = option_refusal(h, o, data.left);
	if (refusal != NULL) {
		if (h->option == NBD_OPT_EXPORT_NAME)
			return close_with(h, refusal->text);
		h->refusal = refusal;
		h->drain = data.left;
		*used = OPTION_HEADER_LENGTH;
		pl_sm_move(states, &h->state, AT_DRAIN);
		return drain(h, have - *used, used, out);
	}
	if (have - OPTION_HEADER_LENGTH < data.left)
		return HANDSHAKE_MORE;
	*used = OPTION_HEADER_LENGTH + data.left;
	return o->run(h, &data, out);
}

enum handshake_step
handshake_step(struct handshake *h, const uint8_t *in, size_t have, size_t *used,
	       struct nbd_output *out)
{
	enum handshake_step step;

	*used = 0;
	if (h->state == AT_FLAGS) {
		step = read_flags(h, in, have, used);
	} else if (h->state == AT_DRAIN) {
		step = drain(h, have, used, out);
	} else {
		assert(h->state == AT_OPTION);
		step = read_option(h, in, have, used, out);
	}
	return unless_failed(h, step, out);
}

int
handshake_start(struct handshake *h, struct nbd_output *out)
{
	uint8_t greeting[GREETING_LENGTH], *p = greeting;

	h->state = AT_FLAGS;
	p = put_be64(p, NBD_MAGIC);
	p = put_be64(p, NBD_OPTION_MAGIC);
	put_be16(p, NBD_FLAG_FIXED_NEWSTYLE | NBD_FLAG_NO_ZEROES);
	nbd_output_add(out, greeting, sizeof greeting);
	return out->failed ? -ENOMEM : 0;
}

void
handshake_secured(struct handshake *h)
{
	h->agreed = (struct nbd_agreement){ 0 };
	forget_context(h);
	pl_sm_move(states, &h->state, AT_OPTION);
}

void
handshake_shut_down(struct handshake *h)
{
	h->shutting_down = true;
}

void
handshake_end(struct handshake *h)
{
	forget_context(h);
	if (h->offer != NULL)
		offer_put(h->offer);
}
