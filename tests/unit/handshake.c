/*
 * handshake.c - every option gets the answer that the protocol wants, however its bytes come.
 *
 * The catalog and the clients are played here, so that every outcome can be had.
 */
#include "nbd/handshake.h"
#include "clients.h"
#include "test.h"
#include "worker.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>

/* ---- exports that behave as their names say -------------------------------------- */

#define SIZE (UINT64_C(1) << 33 | 777)

struct offer {
	const char *name;
	bool tls_only, private, broken, busy;
	unsigned references;
};

static char long_name[NBD_STRING_MAX + 1];

static struct offer offers[] = {
	{ .name = "" },
	{ .name = "disk" },
	{ .name = long_name },
	{ .name = "tls-only", .tls_only = true },
	{ .name = "private", .private = true },
	{ .name = "broken", .broken = true },
	{ .name = "busy", .busy = true },
};
#define OFFERS (sizeof offers / sizeof *offers)

static const struct pl_geometry geometry = {
	.size = SIZE, .logical_block = 512, .physical_block = 4096, .preferred = 4096
};

static unsigned capabilities;
static unsigned sessions;
static const char *chosen;
static char logged[8192];

int
catalog_find(struct catalog *catalog, const char *name, size_t length, const struct peer *peer,
	     struct offer **offer, struct pl_error *err)
{
	(void)catalog;
	for (struct offer *o = offers; o < offers + OFFERS; o++) {
		if (strlen(o->name) != length || memcmp(o->name, name, length) != 0)
			continue;
		if (o->private)
			return pl_error_say(err, -EACCES, "not for you");
		if (o->tls_only && !peer->tls)
			return pl_error_say(err, -EPROTONOSUPPORT, "only by TLS");
		o->references++;
		*offer = o;
		return 0;
	}
	return pl_error_say(err, -ENOENT, "no such export");
}

void
offer_put(struct offer *offer)
{
	assert_true(offer->references > 0);
	offer->references--;
}

int
catalog_list(struct catalog *catalog, const struct peer *peer,
	     void (*each)(void *user, const char *name, const char *description), void *user)
{
	(void)catalog;
	for (struct offer *o = offers; o < offers + OFFERS; o++) {
		if (!o->private && (!o->tls_only || peer->tls))
			each(user, o->name, "what it is");
	}
	return 0;
}

const char *
offer_name(const struct offer *offer)
{
	return offer->name;
}

const char *
offer_description(const struct offer *offer)
{
	(void)offer;
	return "what it is";
}

const struct pl_geometry *
offer_geometry(const struct offer *offer)
{
	(void)offer;
	return &geometry;
}

unsigned
offer_capabilities(struct offer *offer)
{
	(void)offer;
	return capabilities;
}

int
session_begin(struct session *s, struct offer *offer, struct worker *worker, struct client *client,
	      struct pl_error *err)
{
	(void)worker;
	if (offer->busy)
		return pl_error_say(err, -EBUSY, "in use");
	*s = (struct session){ .offer = offer,
			       .client = client,
			       .capabilities = capabilities,
			       .size = SIZE,
			       .preferred = geometry.preferred };
	sessions++;
	return 0;
}

void
session_end(struct session *s)
{
	assert_true(sessions > 0);
	sessions--;
	offer_put(s->offer);
	*s = (struct session){ 0 };
}

void
clients_chose(struct client *client, const char *export_name)
{
	(void)client;
	chosen = export_name;
}

static void
keep_log(enum pl_log_level level, const char *line)
{
	(void)level;
	strcat(strcat(logged, line), "\n");
}

/* ---- a connection, as conn.c would drive it --------------------------------------- */

struct talk {
	struct worker_settings settings;
	struct worker worker;
	struct peer peer;
	struct handshake h;
	struct nbd_output out;
	size_t taken; /* bytes of out that the case has looked at */
	size_t grain; /* so many bytes are received at a time */
	uint8_t in[NBD_HANDSHAKE_INPUT];
	size_t have;
	enum handshake_step last;
	bool over;
};

static void
talk_step(struct talk *t)
{
	struct pl_error err = { 0 };
	size_t used = 0;

	t->last = handshake_step(&t->h, t->in, t->have, &used, &t->out);
	assert_true(used <= t->have);
	memmove(t->in, t->in + used, t->have - used);
	t->have -= used;
	if (t->last == HANDSHAKE_MORE)
		assert_true(t->have < sizeof t->in);
	if (t->last == HANDSHAKE_OPEN) {
		bool broken = t->h.offer->broken;

		if (broken)
			pl_error_say(&err, -EIO, "the disk is gone");
		t->last = handshake_opened(&t->h, broken ? -EIO : 0, &err, &t->out);
	}
	t->over = t->last == HANDSHAKE_CLOSE || t->last == HANDSHAKE_GO;
}

static void
receive(struct talk *t, const void *data, size_t length)
{
	const uint8_t *p = data;

	while (length > 0 && !t->over) {
		size_t part = length < t->grain ? length : t->grain;

		if (part > sizeof t->in - t->have)
			part = sizeof t->in - t->have;
		memcpy(t->in + t->have, p, part);
		t->have += part;
		p += part;
		length -= part;
		do {
			talk_step(t);
		} while (!t->over && t->last == HANDSHAKE_AGAIN && t->have > 0);
		if (t->last == HANDSHAKE_TLS) {
			t->peer.tls = true;
			handshake_secured(&t->h);
		}
	}
}

static void
talk_begin(struct talk *t, size_t grain)
{
	*t = (struct talk){ .settings = { .may_list = true, .tls = TLS_OPTIONAL }, .grain = grain };
	t->worker.settings = &t->settings;
	strcpy(t->peer.text, "a peer");
	t->h = (struct handshake){ .worker = &t->worker, .peer = &t->peer, .can_tls = true };
	capabilities = PL_CAP_WRITE | PL_CAP_FLUSH | PL_CAP_FUA | PL_CAP_ZERO | PL_CAP_TRIM;
	pl_log_to(keep_log);
	memset(long_name, 'n', sizeof long_name - 1);
	assert_eq(handshake_start(&t->h, &t->out), 0);
}

static const void *
sent(struct talk *t, size_t length)
{
	const void *data = t->out.data + t->taken;

	assert_true(t->out.length - t->taken >= length);
	t->taken += length;
	return data;
}

static void
greet(struct talk *t, uint32_t client_flags)
{
	uint8_t flags[4];

	assert_mem(sent(t, 18), "NBDMAGICIHAVEOPT\0\3", 18);
	put_be32(flags, client_flags);
	receive(t, flags, sizeof flags);
}

static void
talk_start(struct talk *t, size_t grain)
{
	talk_begin(t, grain);
	greet(t, 3);
}

/* All has been looked at, nobody holds an export. */
static void
talk_end(struct talk *t)
{
	assert_eq(t->out.length, t->taken);
	handshake_end(&t->h);
	if (t->last == HANDSHAKE_GO)
		session_end(&t->h.session);
	for (size_t i = 0; i < OFFERS; i++)
		assert_eq(offers[i].references, 0);
	assert_eq(sessions, 0);
	nbd_output_free(&t->out);
	logged[0] = '\0';
	chosen = NULL;
}

/* For each way in which bytes may come. */
#define for_each_grain(t) \
	for (size_t grain_ = 1; grain_ <= 1u << 22; grain_ = grain_ * 37 + 5) \
		for (bool once_ = (talk_start((t), grain_), true); once_; \
		     once_ = (talk_end(t), false))

static void
option_head(uint8_t *p, uint32_t option, uint32_t length)
{
	p = put_be64(p, NBD_OPTION_MAGIC);
	p = put_be32(p, option);
	put_be32(p, length);
}

static void
ask_with(struct talk *t, uint32_t option, const void *data, size_t length)
{
	uint8_t *whole = malloc(16 + length);

	option_head(whole, option, (uint32_t)length);
	if (length > 0)
		memcpy(whole + 16, data, length);
	receive(t, whole, 16 + length);
	free(whole);
}

static void
ask(struct talk *t, uint32_t option)
{
	ask_with(t, option, NULL, 0);
}

/* The next reply is of this kind; its data, and *length unless that is NULL. */
static const uint8_t *
answer(struct talk *t, uint32_t option, uint32_t type, uint32_t *length)
{
	const uint8_t *head = sent(t, 20);
	uint32_t n = get_be32(head + 16);

	assert_eq(get_be64(head), NBD_OPT_REPLY_MAGIC);
	assert_eq(get_be32(head + 8), option);
	assert_eq(get_be32(head + 12), type);
	if (type == NBD_REP_ACK)
		assert_eq(n, 0);
	if ((type & NBD_REP_ERROR) != 0)
		assert_true(n > 0 && n <= NBD_STRING_MAX); /* a sentence for a person */
	if (length != NULL)
		*length = n;
	return sent(t, n);
}

static void
accepted(struct talk *t, uint32_t option)
{
	answer(t, option, NBD_REP_ACK, NULL);
	assert_eq(t->out.length, t->taken);
}

/* The connection can still be used. */
static void
refused(struct talk *t, uint32_t option, uint32_t type)
{
	answer(t, option, type, NULL);
	assert_eq(t->out.length, t->taken);
	assert_false(t->over);
}

static void
closed(struct talk *t)
{
	assert_eq(t->last, HANDSHAKE_CLOSE);
	assert_eq(t->out.length, t->taken);
}

/* ---- requests with data ---------------------------------------------------------- */

struct data {
	uint8_t bytes[2 * NBD_HANDSHAKE_INPUT];
	size_t length;
};

static void
put16(struct data *d, unsigned n)
{
	put_be16(d->bytes + d->length, (uint16_t)n);
	d->length += 2;
}

static void
put32(struct data *d, uint32_t n)
{
	put_be32(d->bytes + d->length, n);
	d->length += 4;
}

static void
put_bytes(struct data *d, const void *bytes, size_t length)
{
	memcpy(d->bytes + d->length, bytes, length);
	d->length += length;
}

static void
put_string(struct data *d, const char *text)
{
	put32(d, (uint32_t)strlen(text));
	put_bytes(d, text, strlen(text));
}

static void
ask_export(struct talk *t, uint32_t option, const char *name, const char *infos)
{
	struct data d = { .length = 0 };

	put_string(&d, name);
	put16(&d, (unsigned)strlen(infos));
	for (; *infos != '\0'; infos++)
		put16(&d, (unsigned)(*infos - '0'));
	ask_with(t, option, d.bytes, d.length);
}

/* queries: separated by blanks */
static void
ask_context(struct talk *t, uint32_t option, const char *name, const char *queries)
{
	struct data d = { .length = 0 };
	char words[64], *save;
	uint32_t count = 0;
	size_t at;

	put_string(&d, name);
	at = d.length;
	put32(&d, 0);
	strcpy(words, queries);
	for (char *w = strtok_r(words, " ", &save); w != NULL; w = strtok_r(NULL, " ", &save)) {
		put_string(&d, w);
		count++;
	}
	put_be32(d.bytes + at, count);
	ask_with(t, option, d.bytes, d.length);
}

static void
selected(struct talk *t, uint32_t option, uint32_t id)
{
	uint32_t length;
	const uint8_t *data = answer(t, option, NBD_REP_META_CONTEXT, &length);

	assert_eq(length, 4 + 15);
	assert_eq(get_be32(data), id);
	assert_mem(data + 4, "base:allocation", 15);
	accepted(t, option);
}

/* The answer to INFO or GO that asked for no more than it always gets. Returns the flags. */
static uint16_t
described(struct talk *t, uint32_t option)
{
	uint32_t length;
	const uint8_t *data = answer(t, option, NBD_REP_INFO, &length);
	uint16_t flags;

	assert_eq(length, 12);
	assert_eq(get_be16(data), NBD_INFO_EXPORT);
	assert_eq(get_be64(data + 2), SIZE);
	flags = get_be16(data + 10);
	accepted(t, option);
	return flags;
}

static uint16_t
go(struct talk *t, const char *name)
{
	uint16_t flags;

	ask_export(t, NBD_OPT_GO, name, "");
	flags = described(t, NBD_OPT_GO);
	assert_eq(t->last, HANDSHAKE_GO);
	assert_str(chosen, name);
	return flags;
}

/* ---- greeting and framing -------------------------------------------------------- */

TEST(client_flags_that_nobody_offered_end_the_connection)
{
	for (unsigned bit = 0; bit < 32; bit++) {
		struct talk t;

		talk_begin(&t, 100);
		greet(&t, UINT32_C(1) << bit);
		assert_eq(t.over, bit > 1);
		if (bit > 1)
			closed(&t);
		talk_end(&t);
	}
}

TEST(a_bad_magic_ends_the_connection)
{
	struct talk t;

	for_each_grain(&t)
	{
		receive(&t, "IHAVEOPt\0\0\0\2\0\0\0\0", 16);
		closed(&t);
		assert_contains(t.h.why, "magic");
	}
}

TEST(an_unknown_option_is_skipped_and_refused)
{
	static const uint32_t lengths[] = { 0, 1, 100, 65519, 65520, 65521, NBD_OPTION_MAX };
	static const uint32_t unknown[] = { 0, 4, 12, 255, 30583, 0xfffffffe };
	static uint8_t zeroes[NBD_OPTION_MAX];
	struct talk t;

	for_each_grain(&t)
	{
		for (unsigned i = 0; i < 7; i++) {
			for (unsigned j = 0; j < (t.grain > 1 ? 6 : 1); j++) {
				ask_with(&t, unknown[j], zeroes, lengths[i]);
				refused(&t, unknown[j], NBD_REP_ERR_UNSUP);
			}
		}
		go(&t, "disk");
	}
}

TEST(an_option_beyond_the_bound_ends_the_connection_before_its_data)
{
	static const uint32_t options[] = { NBD_OPT_INFO, NBD_OPT_LIST, NBD_OPT_ABORT, 77 };

	for (unsigned i = 0; i < 4; i++) {
		struct talk t;
		uint8_t head[16];

		talk_start(&t, 16);
		option_head(head, options[i], i == 0 ? UINT32_MAX : NBD_OPTION_MAX + 1);
		receive(&t, head, sizeof head);
		closed(&t);
		talk_end(&t);
	}
}

TEST(options_sent_together_are_answered_in_order)
{
	struct talk t;

	for_each_grain(&t)
	{
		uint8_t heads[5 * 16 + 3];

		option_head(heads, NBD_OPT_STRUCTURED_REPLY, 0);
		option_head(heads + 16, 77, 3);
		memset(heads + 32, 0xff, 3);
		option_head(heads + 35, NBD_OPT_EXTENDED_HEADERS, 0);
		option_head(heads + 51, NBD_OPT_STRUCTURED_REPLY, 0);
		option_head(heads + 67, NBD_OPT_ABORT, 0);
		receive(&t, heads, sizeof heads);
		answer(&t, NBD_OPT_STRUCTURED_REPLY, NBD_REP_ACK, NULL);
		answer(&t, 77, NBD_REP_ERR_UNSUP, NULL);
		answer(&t, NBD_OPT_EXTENDED_HEADERS, NBD_REP_ACK, NULL);
		answer(&t, NBD_OPT_STRUCTURED_REPLY, NBD_REP_ERR_EXT_HEADER_REQD, NULL);
		accepted(&t, NBD_OPT_ABORT);
		closed(&t);
	}
}

TEST(without_fixed_newstyle_only_export_name_is_honoured)
{
	for (uint32_t option = 0; option < 20; option++) {
		struct talk t;

		talk_begin(&t, 100);
		greet(&t, 0);
		ask(&t, option);
		if (option == NBD_OPT_EXPORT_NAME) {
			assert_eq(t.last, HANDSHAKE_GO);
			sent(&t, 134);
		} else {
			closed(&t);
		}
		talk_end(&t);
	}
}

/* ---- ABORT, LIST, EXPORT_NAME ---------------------------------------------------- */

TEST(abort_is_acknowledged_whatever_comes_with_it)
{
	static uint8_t data[NBD_OPTION_MAX];
	static const size_t lengths[] = { 0, 1, 5000, 70000, NBD_OPTION_MAX };

	for (unsigned i = 0; i < 5; i++) {
		struct talk t;

		for_each_grain(&t)
		{
			t.settings.tls = TLS_REQUIRED;
			handshake_shut_down(&t.h);
			ask_with(&t, NBD_OPT_ABORT, data, lengths[i]);
			accepted(&t, NBD_OPT_ABORT);
			closed(&t);
			assert_true(t.h.why == NULL); /* a polite leave is no line in the log */
		}
	}
}

static unsigned
listed(struct talk *t)
{
	unsigned count = 0;

	ask(t, NBD_OPT_LIST);
	while (get_be32(t->out.data + t->taken + 12) == NBD_REP_SERVER) {
		uint32_t length, name;
		const uint8_t *data = answer(t, NBD_OPT_LIST, NBD_REP_SERVER, &length);

		name = get_be32(data);
		assert_eq(length, 4 + name + 10);
		assert_mem(data + 4 + name, "what it is", 10);
		count++;
	}
	accepted(t, NBD_OPT_LIST);
	return count;
}

TEST(list_tells_each_export_once_and_may_be_repeated)
{
	struct talk t;

	for_each_grain(&t)
	{
		assert_eq(listed(&t), OFFERS - 2); /* private, and by TLS only */
		assert_eq(listed(&t), OFFERS - 2);
		ask_with(&t, NBD_OPT_LIST, "junk", 4);
		refused(&t, NBD_OPT_LIST, NBD_REP_ERR_INVALID);
		t.peer.tls = true;
		assert_eq(listed(&t), OFFERS - 1);
		t.settings.may_list = false;
		ask(&t, NBD_OPT_LIST);
		refused(&t, NBD_OPT_LIST, NBD_REP_ERR_POLICY);
	}
}

TEST(export_name_is_answered_with_as_many_zeroes_as_agreed)
{
	for (unsigned flags = 0; flags < 4; flags++) {
		struct talk t;
		const uint8_t *data;
		bool zeroes = (flags & NBD_FLAG_NO_ZEROES) == 0;

		talk_begin(&t, 100);
		greet(&t, flags);
		ask_with(&t, NBD_OPT_EXPORT_NAME, "disk", 4);
		assert_eq(t.last, HANDSHAKE_GO);
		data = sent(&t, zeroes ? 134 : 10);
		assert_eq(get_be64(data), SIZE);
		assert_ne(get_be16(data + 8) & NBD_FLAG_HAS_FLAGS, 0);
		if (zeroes)
			assert_filled(data + 10, 0, 124);
		assert_str(chosen, "disk");
		talk_end(&t);
	}
}

TEST(export_name_that_cannot_be_had_ends_the_connection_without_a_word)
{
	static const char *const names[] = { "absent", "private", "tls-only", "broken", "busy" };
	static char too_long[NBD_STRING_MAX + 1];
	struct talk t;

	for (unsigned i = 0; i < 5; i++) {
		for_each_grain(&t)
		{
			ask_with(&t, NBD_OPT_EXPORT_NAME, names[i], strlen(names[i]));
			closed(&t);
			assert_contains(logged, "a peer");
		}
	}
	for_each_grain(&t)
	{
		memset(too_long, 'n', sizeof too_long);
		ask_with(&t, NBD_OPT_EXPORT_NAME, too_long, sizeof too_long);
		closed(&t);
	}
	for_each_grain(&t)
	{
		ask_with(&t, NBD_OPT_EXPORT_NAME, "disk\0", 5);
		closed(&t);
	}
	for_each_grain(&t)
	{
		t.settings.tls = TLS_REQUIRED;
		ask(&t, NBD_OPT_EXPORT_NAME);
		closed(&t);
	}
	for_each_grain(&t)
	{
		handshake_shut_down(&t.h);
		ask(&t, NBD_OPT_EXPORT_NAME);
		closed(&t);
	}
	for_each_grain(&t)
	{
		ask(&t, NBD_OPT_EXTENDED_HEADERS);
		accepted(&t, NBD_OPT_EXTENDED_HEADERS);
		ask(&t, NBD_OPT_EXPORT_NAME);
		closed(&t);
	}
}

/* ---- INFO and GO ----------------------------------------------------------------- */

#define for_info_and_go(option) for (uint32_t option = NBD_OPT_INFO; option <= NBD_OPT_GO; option++)

TEST(what_is_asked_for_is_told_once_and_what_is_unknown_is_ignored)
{
	for_info_and_go(option)
	{
		struct talk t;

		for_each_grain(&t)
		{
			const uint8_t *data;
			uint32_t length;

			ask_export(&t, NBD_OPT_INFO, "disk", "0479PQRS"); /* up to 35 */
			described(&t, NBD_OPT_INFO);
			ask_export(&t, option, "disk", "33012299PQRS70");
			data = answer(&t, option, NBD_REP_INFO, &length);
			assert_eq(get_be16(data), NBD_INFO_EXPORT);
			data = answer(&t, option, NBD_REP_INFO, &length);
			assert_mem(data, "\0\1disk", length);
			data = answer(&t, option, NBD_REP_INFO, &length);
			assert_mem(data, "\0\2what it is", length);
			data = answer(&t, option, NBD_REP_INFO, &length);
			assert_eq(length, 14);
			assert_mem(data, "\0\3\0\0\0\1\0\0\x10\0\2\0\0\0", length);
			accepted(&t, option);
			assert_eq(t.last, option == NBD_OPT_GO ? HANDSHAKE_GO : HANDSHAKE_AGAIN);
		}
	}
}

TEST(lengths_that_do_not_fit_are_refused_and_the_next_option_works)
{
	static const struct {
		uint32_t name;
		size_t rest;
	} shapes[] = {
		{ 0xffffffff, 6 },  { 0xfffffffe, 100 },
		{ 0xfffffffa, 2 },  { 5000, 4 },
		{ 0, 1 },           { 0, 4 },
		{ 4, 2000 },        { 1, 2 },
		{ 4097, 4097 + 2 }, { 4, 3 },
		{ 0, 0 },
	};
	for_info_and_go(option)
	{
		struct talk t;

		for_each_grain(&t)
		{
			for (size_t i = 0; i < sizeof shapes / sizeof *shapes; i++) {
				struct data d = { .length = 0 };

				put32(&d, shapes[i].name);
				memset(d.bytes + 4, 'd', shapes[i].rest);
				ask_with(&t, option, d.bytes, 4 + shapes[i].rest);
				refused(&t, option, NBD_REP_ERR_INVALID);
			}
			for (size_t length = 0; length < 6; length++) {
				ask_with(&t, option, "\0\0\0\0\0\0", length);
				refused(&t, option, NBD_REP_ERR_INVALID);
			}
			for (size_t length = 7; length < 10; length++) {
				ask_with(&t, option, "\0\0\0\0\0\0\0\0\0", length);
				refused(&t, option, NBD_REP_ERR_INVALID);
			}
			go(&t, "");
		}
	}
}

TEST(names_of_up_to_4096_bytes_are_names)
{
	for_info_and_go(option)
	{
		struct talk t;

		for_each_grain(&t)
		{
			char name[NBD_STRING_MAX + 2] = { 0 };

			ask_export(&t, NBD_OPT_INFO, long_name, "");
			described(&t, NBD_OPT_INFO);
			memset(name, 'x', NBD_STRING_MAX);
			ask_export(&t, option, name, "");
			refused(&t, option, NBD_REP_ERR_UNKNOWN);
			name[NBD_STRING_MAX] = 'x';
			ask_export(&t, option, name, "");
			refused(&t, option, NBD_REP_ERR_INVALID);
			go(&t, long_name);
		}
	}
}

TEST(a_name_with_a_zero_in_it_is_no_name)
{
	struct talk t;

	for_each_grain(&t)
	{
		ask_with(&t, NBD_OPT_GO, "\0\0\0\5disk\0\0\0", 11);
		refused(&t, NBD_OPT_GO, NBD_REP_ERR_INVALID);
	}
}

TEST(more_requests_than_fit_are_too_big)
{
	struct talk t;

	for_each_grain(&t)
	{
		struct data d = { .length = 0 };

		put_string(&d, "disk");
		put16(&d, 60000);
		memset(d.bytes + d.length, 0, 120000);
		ask_with(&t, NBD_OPT_INFO, d.bytes, d.length + 120000);
		refused(&t, NBD_OPT_INFO, NBD_REP_ERR_TOO_BIG);
		put_be16(d.bytes + 8, 32755); /* the most that fits */
		ask_with(&t, NBD_OPT_INFO, d.bytes, d.length + 65510);
		described(&t, NBD_OPT_INFO);
	}
}

TEST(an_export_that_is_not_to_be_had_is_refused_with_the_reason)
{
	static const struct {
		const char *name, *reason, *logged;
		uint32_t reply;
	} cases[] = {
		{ "absent", "no such export", "no such export", NBD_REP_ERR_UNKNOWN },
		{ "private", "not for you", "not for you", NBD_REP_ERR_POLICY },
		{ "tls-only", "only by TLS", "only by TLS", NBD_REP_ERR_TLS_REQD },
		/* What is behind an export is the operator's business. */
		{ "broken", "Input/output error", "the disk is gone", NBD_REP_ERR_UNKNOWN },
	};
	for_info_and_go(option)
	{
		struct talk t;

		for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
			for_each_grain(&t)
			{
				for (int twice = 0; twice < 2; twice++) {
					const uint8_t *text;
					char *copy;
					uint32_t length;

					ask_export(&t, option, cases[i].name, "013");
					text = answer(&t, option, cases[i].reply, &length);
					copy = strndup((const char *)text, length);
					assert_contains(copy, cases[i].reason);
					free(copy);
				}
				/* Said once, with the peer. */
				assert_contains(logged, "a peer: ");
				assert_contains(logged, cases[i].logged);
				assert_eq(strchr(logged, '\n')[1], '\0');
				go(&t, "disk");
			}
		}
	}
}

TEST(an_export_in_use_can_be_looked_at_but_not_had)
{
	struct talk t;

	for_each_grain(&t)
	{
		ask_export(&t, NBD_OPT_INFO, "busy", "");
		described(&t, NBD_OPT_INFO);
		ask_export(&t, NBD_OPT_GO, "busy", "");
		refused(&t, NBD_OPT_GO, NBD_REP_ERR_POLICY);
		go(&t, "disk");
	}
}

TEST(info_and_go_tell_the_same)
{
	for (int extended = 0; extended < 2; extended++) {
		struct talk t;

		for_each_grain(&t)
		{
			uint16_t flags;

			ask(&t, extended ? NBD_OPT_EXTENDED_HEADERS : NBD_OPT_STRUCTURED_REPLY);
			sent(&t, 20);
			ask_context(&t, NBD_OPT_SET_META_CONTEXT, "disk", "base:allocation");
			selected(&t, NBD_OPT_SET_META_CONTEXT, NBD_BASE_ALLOCATION_ID);
			ask_export(&t, NBD_OPT_INFO, "disk", "");
			flags = described(&t, NBD_OPT_INFO);
			assert_eq(go(&t, "disk"), flags);
			assert_eq((flags & NBD_FLAG_BLOCK_STATUS_PAYLOAD) != 0, extended);
		}
	}
}

TEST(flags_follow_from_capabilities)
{
	struct nbd_agreement plain = { 0 }, structured = { .structured = true };
	struct nbd_agreement extended = { .structured = true, .extended = true };

	for (unsigned c = 0; c < 1 << 11; c++) {
		uint16_t f = nbd_transmission_flags(c, &plain);

		assert_eq((f & NBD_FLAG_HAS_FLAGS) != 0, true);
		assert_eq((f & NBD_FLAG_SEND_DF) != 0, false);
		assert_eq((f & NBD_FLAG_READ_ONLY) != 0, (c & PL_CAP_WRITE) == 0);
		if ((f & NBD_FLAG_SEND_FUA) != 0)
			assert_ne(f & NBD_FLAG_SEND_FLUSH, 0);
		if ((f & NBD_FLAG_SEND_FAST_ZERO) != 0)
			assert_ne(f & NBD_FLAG_SEND_WRITE_ZEROES, 0);
		if ((f & NBD_FLAG_READ_ONLY) != 0)
			assert_eq(f & (NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES), 0);
		assert_eq(nbd_transmission_flags(c, &structured), f | NBD_FLAG_SEND_DF);
		assert_eq(nbd_transmission_flags(c, &extended), f | NBD_FLAG_SEND_DF);
		extended.allocation = true;
		assert_eq(nbd_transmission_flags(c, &extended),
			  f | NBD_FLAG_SEND_DF | NBD_FLAG_BLOCK_STATUS_PAYLOAD);
		extended.allocation = false;
	}
	assert_eq(nbd_transmission_flags(~0u, &plain), 0xd7d); /* all but READ_ONLY and DF */
}

/* ---- structured replies, extended headers, metadata contexts --------------------- */

TEST(options_without_data_refuse_data)
{
	static const uint32_t options[] = { NBD_OPT_LIST, NBD_OPT_STARTTLS,
					    NBD_OPT_STRUCTURED_REPLY, NBD_OPT_EXTENDED_HEADERS };
	struct talk t;

	for_each_grain(&t)
	{
		for (unsigned i = 0; i < 4; i++) {
			ask_with(&t, options[i], "data", 4);
			refused(&t, options[i], NBD_REP_ERR_INVALID);
		}
		assert_false(t.h.agreed.structured || t.h.agreed.extended);
		go(&t, "disk");
	}
}

TEST(extended_headers_take_precedence)
{
	struct talk t;

	for_each_grain(&t)
	{
		ask(&t, NBD_OPT_EXTENDED_HEADERS);
		accepted(&t, NBD_OPT_EXTENDED_HEADERS);
		ask(&t, NBD_OPT_EXTENDED_HEADERS);
		refused(&t, NBD_OPT_EXTENDED_HEADERS, NBD_REP_ERR_INVALID);
		ask(&t, NBD_OPT_STRUCTURED_REPLY);
		refused(&t, NBD_OPT_STRUCTURED_REPLY, NBD_REP_ERR_EXT_HEADER_REQD);
		assert_ne(go(&t, "") & NBD_FLAG_SEND_DF, 0);
		assert_true(t.h.agreed.extended && t.h.agreed.structured);
	}
}

TEST(extended_headers_may_follow_structured_replies)
{
	struct talk t;

	for_each_grain(&t)
	{
		ask(&t, NBD_OPT_STRUCTURED_REPLY);
		accepted(&t, NBD_OPT_STRUCTURED_REPLY);
		ask(&t, NBD_OPT_STRUCTURED_REPLY);
		refused(&t, NBD_OPT_STRUCTURED_REPLY, NBD_REP_ERR_INVALID);
		ask(&t, NBD_OPT_EXTENDED_HEADERS);
		accepted(&t, NBD_OPT_EXTENDED_HEADERS);
		assert_true(t.h.agreed.extended);
	}
}

TEST(contexts_are_listed_by_wildcard_and_selected_by_name)
{
	static const struct {
		const char *queries;
		bool lists, selects;
	} cases[] = {
		{ "", true, false },
		{ "base:", true, false },
		{ "base:allocation", true, true },
		{ "base:allocation base:allocation base:", true, true },
		{ "base:allocations", false, false },
		{ "base:other", false, false },
		{ "x-none:of base qemu:dirty-bitmap:b", false, false },
		{ "qemu: base:allocation", true, true },
	};
	struct talk t;

	for_each_grain(&t)
	{
		ask_context(&t, NBD_OPT_LIST_META_CONTEXT, "disk", "base:");
		selected(&t, NBD_OPT_LIST_META_CONTEXT, 0);
		ask_context(&t, NBD_OPT_SET_META_CONTEXT, "disk", "base:allocation");
		refused(&t, NBD_OPT_SET_META_CONTEXT, NBD_REP_ERR_INVALID);
		ask(&t, NBD_OPT_STRUCTURED_REPLY);
		accepted(&t, NBD_OPT_STRUCTURED_REPLY);
		for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
			ask_context(&t, NBD_OPT_LIST_META_CONTEXT, "disk", cases[i].queries);
			if (cases[i].lists)
				selected(&t, NBD_OPT_LIST_META_CONTEXT, 0);
			else
				accepted(&t, NBD_OPT_LIST_META_CONTEXT);
			ask_context(&t, NBD_OPT_SET_META_CONTEXT, "disk", cases[i].queries);
			if (cases[i].selects)
				selected(&t, NBD_OPT_SET_META_CONTEXT, NBD_BASE_ALLOCATION_ID);
			else
				accepted(&t, NBD_OPT_SET_META_CONTEXT);
		}
		ask_context(&t, NBD_OPT_SET_META_CONTEXT, "absent", "base:allocation");
		refused(&t, NBD_OPT_SET_META_CONTEXT, NBD_REP_ERR_UNKNOWN);
		ask_context(&t, NBD_OPT_LIST_META_CONTEXT, "private", "");
		refused(&t, NBD_OPT_LIST_META_CONTEXT, NBD_REP_ERR_POLICY);
		/* Only INFO and GO may say that TLS is missing. */
		ask_context(&t, NBD_OPT_LIST_META_CONTEXT, "tls-only", "");
		refused(&t, NBD_OPT_LIST_META_CONTEXT, NBD_REP_ERR_POLICY);
	}
}

TEST(contexts_with_lengths_that_do_not_fit_are_refused)
{
	static const struct {
		const char *data;
		size_t length;
	} cases[] = {
		{ "", 0 },
		{ "\0\0\0\0", 4 },
		{ "\0\0\0\0\0\0\0", 7 },
		{ "\0\0\0\0\xff\xff\xff\xff", 8 },
		{ "\0\0\0\0\0\0\0\1\xff\xff\xff\xff", 12 },
		{ "\0\0\0\0\0\0\0\1\0\0\0\5base", 16 },
		{ "\0\0\0\0\0\0\0\2\0\0\0\5base:", 17 },
		{ "\0\0\0\0\0\0\0\1\0\0\0\5base:x", 18 },
		{ "\xff\xff\xff\xff\0\0\0\0", 8 },
		{ "\0\0\0\5\0\0\0\0", 8 },
		{ "\0\0\0\0\0\0\0\1\0\0\0\1\0", 13 },
	};
	struct talk t;

	for_each_grain(&t)
	{
		ask(&t, NBD_OPT_STRUCTURED_REPLY);
		accepted(&t, NBD_OPT_STRUCTURED_REPLY);
		for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
			for (uint32_t o = NBD_OPT_LIST_META_CONTEXT; o <= NBD_OPT_SET_META_CONTEXT;
			     o++) {
				ask_with(&t, o, cases[i].data, cases[i].length);
				refused(&t, o, NBD_REP_ERR_INVALID);
			}
		}
		go(&t, "");
	}
}

/* What happens between selecting for "disk" and going there, and whether that lasts. */
TEST(contexts_last_for_the_export_they_were_selected_for)
{
	for (int change = 0; change < 8; change++) {
		static uint8_t huge[NBD_HANDSHAKE_INPUT];
		const char *export = "disk";
		bool lasts = true;
		struct talk t;

		for_each_grain(&t)
		{
			ask(&t, NBD_OPT_STRUCTURED_REPLY);
			accepted(&t, NBD_OPT_STRUCTURED_REPLY);
			ask_context(&t, NBD_OPT_SET_META_CONTEXT, "disk", "base:allocation");
			selected(&t, NBD_OPT_SET_META_CONTEXT, NBD_BASE_ALLOCATION_ID);
			switch (change) {
			case 0: break;
			case 1:
				ask_export(&t, NBD_OPT_GO, "absent", "");
				refused(&t, NBD_OPT_GO, NBD_REP_ERR_UNKNOWN);
				break;
			case 2:
				ask_context(&t, NBD_OPT_LIST_META_CONTEXT, "", "");
				selected(&t, NBD_OPT_LIST_META_CONTEXT, 0);
				break;
			case 3:
				export = "";
				lasts = false;
				break;
			case 4:
				ask_context(&t, NBD_OPT_SET_META_CONTEXT, "disk", "other:x");
				accepted(&t, NBD_OPT_SET_META_CONTEXT);
				lasts = false;
				break;
			case 5:
				ask_context(&t, NBD_OPT_SET_META_CONTEXT, "absent", "");
				refused(&t, NBD_OPT_SET_META_CONTEXT, NBD_REP_ERR_UNKNOWN);
				lasts = false;
				break;
			case 6:
				ask_with(&t, NBD_OPT_SET_META_CONTEXT, huge, sizeof huge);
				refused(&t, NBD_OPT_SET_META_CONTEXT, NBD_REP_ERR_TOO_BIG);
				lasts = false;
				break;
			case 7:
				ask_context(&t, NBD_OPT_SET_META_CONTEXT, "", "base:allocation");
				selected(&t, NBD_OPT_SET_META_CONTEXT, NBD_BASE_ALLOCATION_ID);
				lasts = false;
				break;
			}
			go(&t, export);
			assert_eq(t.h.agreed.allocation, lasts);
		}
	}
}

/* ---- TLS ------------------------------------------------------------------------- */

TEST(where_tls_is_required_nothing_else_is_answered_before_it)
{
	struct talk t;

	for_each_grain(&t)
	{
		t.settings.tls = TLS_REQUIRED;
		for (uint32_t option = 0; option < 20; option++) {
			if (option == NBD_OPT_EXPORT_NAME || option == NBD_OPT_ABORT ||
			    option == NBD_OPT_STARTTLS)
				continue;
			ask_with(&t, option, "\0\0\0\4disk\0\0", 10);
			refused(&t, option, NBD_REP_ERR_TLS_REQD);
		}
		ask_with(&t, NBD_OPT_STARTTLS, "data", 4);
		refused(&t, NBD_OPT_STARTTLS, NBD_REP_ERR_INVALID);
		assert_false(t.peer.tls);
		ask(&t, NBD_OPT_STARTTLS);
		accepted(&t, NBD_OPT_STARTTLS);
		assert_true(t.peer.tls);
		ask(&t, NBD_OPT_STARTTLS);
		refused(&t, NBD_OPT_STARTTLS, NBD_REP_ERR_INVALID);
		ask(&t, 77);
		refused(&t, 77, NBD_REP_ERR_UNSUP);
		assert_eq(listed(&t), OFFERS - 1);
		go(&t, "tls-only");
	}
}

TEST(what_was_agreed_on_before_tls_is_forgotten)
{
	for (int extended = 0; extended < 2; extended++) {
		struct talk t;

		for_each_grain(&t)
		{
			uint32_t replies =
				extended ? NBD_OPT_EXTENDED_HEADERS : NBD_OPT_STRUCTURED_REPLY;

			ask(&t, replies);
			accepted(&t, replies);
			ask_context(&t, NBD_OPT_SET_META_CONTEXT, "disk", "base:allocation");
			selected(&t, NBD_OPT_SET_META_CONTEXT, NBD_BASE_ALLOCATION_ID);
			ask(&t, NBD_OPT_STARTTLS);
			accepted(&t, NBD_OPT_STARTTLS);
			assert_eq(go(&t, "disk") & NBD_FLAG_SEND_DF, 0);
			assert_false(t.h.agreed.structured || t.h.agreed.extended ||
				     t.h.agreed.allocation);
		}
	}
}

TEST(a_server_without_tls_refuses_it_and_never_asks_for_it)
{
	for (int off = 0; off < 2; off++) {
		struct talk t;

		for_each_grain(&t)
		{
			t.settings.tls = off ? TLS_OFF : TLS_OPTIONAL;
			t.h.can_tls = false;
			ask(&t, NBD_OPT_STARTTLS);
			refused(&t, NBD_OPT_STARTTLS, NBD_REP_ERR_POLICY);
			ask_export(&t, NBD_OPT_GO, "tls-only", "");
			refused(&t, NBD_OPT_GO, NBD_REP_ERR_POLICY);
			go(&t, "disk");
		}
	}
}

/* ---- the end --------------------------------------------------------------------- */

TEST(a_server_that_shuts_down_refuses_all_but_abort)
{
	struct talk t;

	for_each_grain(&t)
	{
		handshake_shut_down(&t.h);
		for (uint32_t option = NBD_OPT_LIST; option < 20; option++) {
			ask_with(&t, option, "\0\0\0\4disk\0\0", 10);
			refused(&t, option, NBD_REP_ERR_SHUTDOWN);
		}
		ask(&t, NBD_OPT_ABORT);
		accepted(&t, NBD_OPT_ABORT);
		closed(&t);
	}
}

TEST(an_export_opened_in_vain_is_let_go)
{
	struct pl_error err = { 0 };
	uint8_t head[16];
	struct talk t;
	size_t used;

	/* The server shuts down meanwhile. */
	talk_start(&t, 100);
	option_head(head, NBD_OPT_GO, 6);
	memcpy(t.in, head, 16);
	memcpy(t.in + 16, "\0\0\0\0\0\0", 6);
	assert_eq(handshake_step(&t.h, t.in, 22, &used, &t.out), HANDSHAKE_OPEN);
	handshake_shut_down(&t.h);
	assert_eq(handshake_opened(&t.h, 0, &err, &t.out), HANDSHAKE_AGAIN);
	refused(&t, NBD_OPT_GO, NBD_REP_ERR_SHUTDOWN);
	talk_end(&t);

	/* The client leaves meanwhile. */
	talk_start(&t, 100);
	memcpy(t.in, head, 16);
	assert_eq(handshake_step(&t.h, t.in, 22, &used, &t.out), HANDSHAKE_OPEN);
	talk_end(&t);

	/* There is no memory for the answer. */
	talk_start(&t, 100);
	memcpy(t.in, head, 16);
	assert_eq(handshake_step(&t.h, t.in, 22, &used, &t.out), HANDSHAKE_OPEN);
	t.out.failed = true;
	assert_eq(handshake_opened(&t.h, 0, &err, &t.out), HANDSHAKE_CLOSE);
	t.last = HANDSHAKE_CLOSE;
	talk_end(&t);
}
