#include "probe-client.h"
#include "stream-tls.h"

#include <poll.h>
#include <stdlib.h>
#include <string.h>

#define NO_SUCH_EXPORT "platter-probe: no such export"
#define COUNT(array)   (sizeof(array) / sizeof *(array))

/* ---- helpers --------------------------------------------------------------------- */

static struct bytes
zeroes(size_t length)
{
	struct bytes b = { calloc(1, length + 1), length };

	if (b.data == NULL)
		cannot_connect("out of memory");
	return b;
}

static struct bytes
info_of(const struct probe *p, unsigned count, const uint16_t *infos)
{
	return info_request(p->uri->export, strlen(p->uri->export), count, infos);
}

/* An option that must be refused with `wanted`, and be consumed to its last byte. */
static void
must_refuse(struct conn *c, uint32_t option, struct bytes data, uint32_t wanted, const char *with)
{
	struct option_replies r = ask(c, option, data);

	if (r.last != wanted)
		fail_option(option, with, r.last, reply_name(wanted));
	if (r.count != 1)
		fail("%s%s had %u replies before its error", option_name(option), with,
		     r.count - 1);
	must_haggle(c, option_name(option));
}

static bool
has_context(const struct option_replies *r, const char *name)
{
	for (unsigned i = 0; i < r->count; i++) {
		if (r->list[i].type == NBD_REP_META_CONTEXT &&
		    r->list[i].length == 4 + strlen(name) &&
		    memcmp(r->list[i].data + 4, name, strlen(name)) == 0)
			return true;
	}
	return false;
}

/* Negotiation with what contexts need. */
static struct conn *
haggling_for_contexts(const struct probe *p)
{
	struct conn *c = haggling(p);

	agree(c, p->found->structured ? STRUCTURED : EXTENDED);
	return c;
}

static struct option_replies
ask_contexts(struct conn *c, uint32_t option, unsigned count, const char *const *queries)
{
	struct option_replies r = ask(c, option, meta_query(c->probe->uri->export, count, queries));

	if (r.last != NBD_REP_ACK)
		fail_option(option, "", r.last, "ACK");
	return r;
}

/* ---- greeting and framing -------------------------------------------------------- */

static void
greeting(const struct probe *p)
{
	struct conn *c = greeted(p, FIXED_NO_ZEROES); /* reads the magics */

	if ((c->greeting & NBD_FLAG_FIXED_NEWSTYLE) == 0)
		fail("handshake flags %#x lack FIXED_NEWSTYLE", c->greeting);
	if (c->greeting & ~FIXED_NO_ZEROES)
		fail("handshake flags %#x have bits that are not defined", c->greeting);
}

static void
greeting_no_zeroes(const struct probe *p)
{
	struct conn *c = greeted(p, FIXED_NO_ZEROES);

	if ((c->greeting & NBD_FLAG_NO_ZEROES) == 0)
		fail("handshake flags %#x lack NO_ZEROES", c->greeting);
}

static void
client_flags(const struct probe *p)
{
	static const uint32_t unknown[] = { 1u << 2, 1u << 15, 1u << 16, 1u << 31 };

	for (unsigned i = 0; i < COUNT(unknown); i++) {
		struct conn *c = greeted(p, FIXED_NO_ZEROES | unknown[i]);

		send_option(c, NBD_OPT_ABORT, NULL, 0);
		must_end(c, "client flags that do not exist");
	}
	if ((p->found->greeting & NBD_FLAG_NO_ZEROES) == 0) {
		struct conn *c = greeted(p, FIXED_NO_ZEROES);

		send_option(c, NBD_OPT_ABORT, NULL, 0);
		must_end(c, "NO_ZEROES, which it did not offer");
	}
}

static void
option_magic(const struct probe *p)
{
	struct conn *c = haggling(p);
	struct bytes b = { 0 };

	add64(&b, NBD_OPTION_MAGIC ^ 1);
	add32(&b, NBD_OPT_ABORT);
	add32(&b, 0);
	put(c, b.data, b.length);
	must_end(c, "a wrong option magic");
}

static void
option_reply_form(const struct probe *p)
{
	static const uint32_t options[] = { NBD_OPT_LIST, 0, 4, 12, 255, 0x7fffffff, 0xffffffff };
	struct conn *c = haggling(p);

	/* take_replies() holds magic and number of each. */
	for (unsigned i = 0; i < COUNT(options); i++)
		ask_plainly(c, options[i]);
}

static void
option_unknown(const struct probe *p)
{
	static const size_t lengths[] = { 0, 1, 100, 4096, 65536 };
	static const uint32_t options[] = { 0x7777, 0, 4, 12, 255, 0xfffffffe };

	for (unsigned i = 0; i < COUNT(options); i++)
		must_refuse(haggling(p), options[i], zeroes(100), NBD_REP_ERR_UNSUP, "");
	for (unsigned i = 0; i < COUNT(lengths); i++)
		must_refuse(haggling(p), 0x7777, zeroes(lengths[i]), NBD_REP_ERR_UNSUP,
			    " with data");
}

static void
option_large(const struct probe *p)
{
	must_refuse(haggling(p), 0x7777, zeroes(1 << 20), NBD_REP_ERR_UNSUP, " with 1 MiB of data");
}

static void
option_huge(const struct probe *p)
{
	struct conn *c = haggling(p);
	uint8_t *data = zeroes(1 << 20).data, byte;

	send_option_header(c, NBD_OPT_INFO, 0xffffffff);
	for (unsigned i = 0; i < 64; i++)
		put(c, data, 1 << 20);
	doing("waiting for the end of the connection after an option of 4 GiB");
	if (take_rest(c, &byte, 1) > 0)
		fail("an option that announces 4 GiB is answered after 64 MiB");
}

static void
option_pipelined(const struct probe *p)
{
	struct conn *c = haggling(p);

	send_option(c, 0x7777, "abc", 3);
	send_option(c, NBD_OPT_LIST, NULL, 0);
	send_option(c, 0x7778, NULL, 0);
	take_replies(c, 0x7777);
	take_replies(c, NBD_OPT_LIST);
	take_replies(c, 0x7778);
	must_haggle(c, "three options at once");
}

static void
handshake_deadline(const struct probe *p)
{
	struct pollfd end = { .fd = greeted(p, FIXED_NO_ZEROES)->fd, .events = POLLIN };

	if (poll(&end, 1, 60 * 1000) == 0)
		fail("60 s after the greeting the connection is open still");
}

static void
not_fixed(const struct probe *p)
{
	struct conn *c = greeted(p, 0);
	uint8_t chosen[134];

	send_option(c, NBD_OPT_EXPORT_NAME, p->uri->export, strlen(p->uri->export));
	doing("waiting for the answer to EXPORT_NAME from a client that is not fixed newstyle");
	take(c, chosen, sizeof chosen);
	c->size = get_be64(chosen);
	must_answer(c, "EXPORT_NAME");
}

/* ---- ABORT, LIST, EXPORT_NAME ---------------------------------------------------- */

static void
abort_with(struct conn *c, size_t length)
{
	struct option_replies r = ask(c, NBD_OPT_ABORT, zeroes(length));

	if (r.last != NBD_REP_ACK)
		fail_option(NBD_OPT_ABORT, "", r.last, "ACK");
	must_end(c, "ABORT");
}

static void
abort_plain(const struct probe *p)
{
	abort_with(haggling(p), 0);
	abort_with(greeted(p, FIXED_NO_ZEROES), 0); /* without TLS it is allowed, too */
}

static void
abort_data(const struct probe *p)
{
	abort_with(haggling(p), 100);
}

static void
list_data(const struct probe *p)
{
	must_refuse(haggling(p), NBD_OPT_LIST, zeroes(20), NBD_REP_ERR_INVALID, " with data");
}

static void
list_repeated(const struct probe *p)
{
	struct conn *c = haggling(p);
	struct option_replies one = ask(c, NBD_OPT_LIST, (struct bytes){ 0 });
	struct option_replies two = ask(c, NBD_OPT_LIST, (struct bytes){ 0 });

	if (two.last != NBD_REP_ACK)
		fail_option(NBD_OPT_LIST, " repeated", two.last, "ACK");
	if (one.count != two.count)
		fail("LIST has %u exports, and %u the second time", one.count - 1, two.count - 1);
	for (unsigned i = 0; i + 1 < one.count; i++) {
		for (unsigned j = 0; j < i; j++) {
			uint32_t length = get_be32(one.list[i].data);

			if (length == get_be32(one.list[j].data) &&
			    memcmp(one.list[i].data + 4, one.list[j].data + 4, length) == 0)
				fail("LIST has an export twice: %.*s", (int)length,
				     one.list[i].data + 4);
		}
	}
	must_haggle(c, "LIST");
}

static void
list_policy(const struct probe *p)
{
	must_refuse(haggling(p), NBD_OPT_LIST, (struct bytes){ 0 }, NBD_REP_ERR_POLICY, "");
}

/* EXPORT_NAME without TLS flags is the only option with an answer of its own form. */
static void
export_name_form(const struct probe *p, uint32_t flags, size_t length)
{
	struct conn *c = greeted(p, NBD_FLAG_FIXED_NEWSTYLE | flags);
	uint8_t chosen[134] = { 0 };

	if (p->tls)
		start_tls(c);
	send_option(c, NBD_OPT_EXPORT_NAME, p->uri->export, strlen(p->uri->export));
	doing("waiting for %zu bytes of answer to EXPORT_NAME", length);
	take(c, chosen, length);
	c->size = get_be64(chosen);
	c->flags = get_be16(chosen + 8);
	for (unsigned i = 10; i < length; i++) {
		if (chosen[i] != 0)
			fail("EXPORT_NAME: byte %u of its answer is not zero", i);
	}
	if (c->size != p->found->size || c->flags != p->found->flags[COMPACT])
		fail("EXPORT_NAME tells size %llu and flags %#x, GO told %llu and %#x",
		     (unsigned long long)c->size, c->flags, (unsigned long long)p->found->size,
		     p->found->flags[COMPACT]);
	must_answer(c, "EXPORT_NAME"); /* one byte more or less, and this is out of step */
}

static void
export_name(const struct probe *p)
{
	if (p->found->greeting & NBD_FLAG_NO_ZEROES)
		export_name_form(p, NBD_FLAG_NO_ZEROES, 10);
	export_name_form(p, 0, 134);
}

static void
export_name_refused(const struct probe *p)
{
	struct conn *c = haggling(p);

	send_option(c, NBD_OPT_EXPORT_NAME, NO_SUCH_EXPORT, strlen(NO_SUCH_EXPORT));
	must_end(c, "EXPORT_NAME of what does not exist");
}

static void
export_name_long(const struct probe *p)
{
	struct conn *c = haggling(p);

	send_option(c, NBD_OPT_EXPORT_NAME, memset(zeroes(5000).data, 'x', 5000), 5000);
	must_end(c, "EXPORT_NAME of 5000 bytes");
}

static void
empty_name(const struct probe *p)
{
	struct conn *c = haggling(p);
	uint32_t last = ask(c, NBD_OPT_INFO, info_request("", 0, 0, NULL)).last;

	if (last != NBD_REP_ACK && last != NBD_REP_ERR_UNKNOWN &&
	    last != NBD_REP_ERR_BLOCK_SIZE_REQD && last != NBD_REP_ERR_POLICY)
		fail_option(NBD_OPT_INFO, " of the default export", last, "ACK or ERR_UNKNOWN");
	must_haggle(c, "INFO of the default export");
}

static void
name_longest(const struct probe *p)
{
	static const size_t lengths[] = { 255, 256, 257, 1023, 1024, 4095, 4096 };
	char name[NBD_STRING_MAX];
	struct conn *c = haggling(p);

	memset(name, 'n', sizeof name);
	for (unsigned i = 0; i < COUNT(lengths); i++) {
		uint32_t last = ask(c, NBD_OPT_INFO, info_request(name, lengths[i], 0, NULL)).last;

		if (last != NBD_REP_ERR_UNKNOWN)
			fail("INFO with a name of %zu bytes was answered %s, not ERR_UNKNOWN",
			     lengths[i], reply_name(last));
	}
	must_haggle(c, "INFO with a name of 4096 bytes");
}

static void
name_too_long(const struct probe *p)
{
	char name[NBD_STRING_MAX + 1];

	memset(name, 'n', sizeof name);
	must_refuse(haggling(p), NBD_OPT_INFO, info_request(name, sizeof name, 0, NULL),
		    NBD_REP_ERR_INVALID, " with a name of 4097 bytes");
}

/* ---- INFO and GO ----------------------------------------------------------------- */

static void
info_short(const struct probe *p)
{
	struct conn *c = haggling(p);

	for (size_t length = 0; length < 6; length++) {
		must_refuse(c, NBD_OPT_INFO, zeroes(length), NBD_REP_ERR_INVALID,
			    " with less than 6 bytes of data");
		must_refuse(c, NBD_OPT_GO, zeroes(length), NBD_REP_ERR_INVALID,
			    " with less than 6 bytes of data");
	}
}

static void
info_name_length(const struct probe *p)
{
	static const struct {
		uint32_t name;
		size_t rest;
	} lies[] = { { 0xffffffff, 6 }, { 0xfffffffe, 100 }, { 0xfffffffa, 6 }, { 5, 6 },
		     { 3, 4 },          { 5000, 4 },         { 0x80000000, 2 } };
	struct conn *c = haggling(p);

	for (unsigned i = 0; i < COUNT(lies); i++) {
		for (uint32_t option = NBD_OPT_INFO; option <= NBD_OPT_GO; option++) {
			struct bytes b = { 0 };

			add32(&b, lies[i].name);
			add(&b, zeroes(lies[i].rest).data, lies[i].rest);
			must_refuse(c, option, b, NBD_REP_ERR_INVALID,
				    " with a name beyond its data");
		}
	}
}

static void
info_count(const struct probe *p)
{
	struct conn *c = haggling(p);
	struct bytes more = info_of(p, 0, NULL), fewer = info_of(p, 0, NULL);

	put_be16(more.data + more.length - 2, 65535);
	must_refuse(c, NBD_OPT_INFO, more, NBD_REP_ERR_INVALID, " with requests beyond its data");
	add16(&fewer, NBD_INFO_EXPORT);
	must_refuse(c, NBD_OPT_INFO, fewer, NBD_REP_ERR_INVALID, " with data beyond its requests");
}

static void
info_export(const struct probe *p)
{
	static const uint16_t twice[] = { NBD_INFO_EXPORT, NBD_INFO_BLOCK_SIZE, NBD_INFO_EXPORT,
					  NBD_INFO_BLOCK_SIZE };

	/* With BLOCK_SIZE among them where it matters: alone the others may be refused. */
	for (uint32_t option = NBD_OPT_INFO; option <= NBD_OPT_GO; option++) {
		for (unsigned n = p->found->min > 1 ? 2 : 0; n <= COUNT(twice); n++) {
			struct option_replies r = ask(haggling(p), option, info_of(p, n, twice));

			if (r.last != NBD_REP_ACK)
				fail_option(option, "", r.last, "ACK");
			if (read_info(&r).exports != 1)
				fail("%s with %u requests has %u INFO_EXPORT", option_name(option),
				     n, read_info(&r).exports);
		}
	}
}

static void
info_unknown(const struct probe *p)
{
	static const uint16_t infos[] = {
		0x7fff,        NBD_INFO_BLOCK_SIZE, 0xffff, 4, NBD_INFO_NAME,
		NBD_INFO_NAME, NBD_INFO_DESCRIPTION
	};
	struct conn *c = haggling(p);
	struct option_replies r = ask(c, NBD_OPT_INFO, info_of(p, COUNT(infos), infos));

	if (r.last != NBD_REP_ACK)
		fail_option(NBD_OPT_INFO, " with unknown requests", r.last, "ACK");
	must_haggle(c, "unknown requests");
}

static void
go_no_padding(const struct probe *p)
{
	struct conn *c = greeted(p, NBD_FLAG_FIXED_NEWSTYLE); /* no NO_ZEROES */

	if (p->tls)
		start_tls(c);
	go(c);
	must_answer(c, "GO");
}

static int
compare_info(const void *a, const void *b)
{
	const struct option_reply *x = a, *y = b;

	if (x->type != y->type)
		return x->type < y->type ? -1 : 1;
	if (x->length != y->length)
		return x->length < y->length ? -1 : 1;
	return memcmp(x->data, y->data, x->length);
}

static void
info_then_go(const struct probe *p)
{
	static const uint16_t infos[] = { NBD_INFO_BLOCK_SIZE, NBD_INFO_NAME,
					  NBD_INFO_DESCRIPTION };

	for (unsigned structured = 0; structured <= p->found->structured; structured++) {
		struct conn *c = haggling(p);
		struct option_replies info, goes;

		agree(c, structured ? STRUCTURED : COMPACT);
		info = ask(c, NBD_OPT_INFO, info_of(p, COUNT(infos), infos));
		goes = ask(c, NBD_OPT_GO, info_of(p, COUNT(infos), infos));
		if (info.last != NBD_REP_ACK || goes.last != NBD_REP_ACK ||
		    info.count != goes.count)
			fail("INFO has %u replies, %s last; then GO has %u, %s last", info.count,
			     reply_name(info.last), goes.count, reply_name(goes.last));
		/* In any order. */
		qsort(info.list, info.count, sizeof *info.list, compare_info);
		qsort(goes.list, goes.count, sizeof *goes.list, compare_info);
		for (unsigned i = 0; i < info.count; i++) {
			if (compare_info(&info.list[i], &goes.list[i]) != 0)
				fail("GO tells something else than the same INFO before it");
		}
	}
}

static void
info_stays(const struct probe *p)
{
	static const uint16_t infos[] = { NBD_INFO_BLOCK_SIZE };
	struct conn *c = haggling(p);

	for (unsigned i = 0; i < 20; i++) {
		struct option_replies r = ask(c, NBD_OPT_INFO, info_of(p, 1, infos));

		if (r.last != NBD_REP_ACK)
			fail_option(NBD_OPT_INFO, " once more", r.last, "ACK");
	}
	ask_plainly(c, NBD_OPT_LIST);
	if (p->found->unknown &&
	    ask(c, NBD_OPT_GO, info_request(NO_SUCH_EXPORT, strlen(NO_SUCH_EXPORT), 0, NULL))
			    .last == NBD_REP_ACK)
		fail("GO finds an export that INFO did not");
	go(c);
	must_answer(c, "INFO and GO");
}

static void
block_sizes(const struct probe *p)
{
	const struct probe_survey *f = p->found;

	if (!f->has_blocks)
		not_applicable("no block sizes are advertised");
	if (f->min == 0 || (f->min & (f->min - 1)) != 0 || f->min > 65536)
		fail("the smallest block is %u", f->min);
	if ((f->preferred & (f->preferred - 1)) != 0 || f->preferred < f->min || f->preferred < 512)
		fail("the preferred block is %u, the smallest %u", f->preferred, f->min);
	if (f->max < f->preferred)
		fail("the largest payload is %u, the preferred block %u", f->max, f->preferred);
}

static void
block_size_demanded(const struct probe *p)
{
	static const uint16_t infos[] = { NBD_INFO_BLOCK_SIZE };
	struct option_replies r = ask(haggling(p), NBD_OPT_GO, info_of(p, 0, NULL));

	if (r.last == NBD_REP_ERR_BLOCK_SIZE_REQD) {
		if (read_info(&r).blocks != 1)
			fail("ERR_BLOCK_SIZE_REQD comes without INFO_BLOCK_SIZE");
		r = ask(haggling(p), NBD_OPT_GO, info_of(p, 1, infos));
		if (r.last == NBD_REP_ERR_BLOCK_SIZE_REQD)
			fail("ERR_BLOCK_SIZE_REQD, though asked for it");
	} else if (r.last != NBD_REP_ACK) {
		fail_option(NBD_OPT_GO, "", r.last, "ACK");
	}
}

static void
size_in_blocks(const struct probe *p)
{
	if (p->found->size % p->found->min != 0)
		fail("the size %llu is no multiple of the smallest block %u",
		     (unsigned long long)p->found->size, p->found->min);
}

static void
max_payload(const struct probe *p)
{
	if (p->found->has_blocks && p->found->max < 1 << 20 && p->found->size >= 1 << 20)
		fail("the largest payload is %u, below 1 MiB", p->found->max);
}

static void
transmission_flags(const struct probe *p)
{
	uint16_t flags = probe_flags(p);

	if ((flags & NBD_FLAG_HAS_FLAGS) == 0)
		fail("flags %#x lack HAS_FLAGS", flags);
	if (p->headers == COMPACT && (flags & NBD_FLAG_SEND_DF))
		fail("flags %#x have SEND_DF without structured replies", flags);
	if (p->headers != EXTENDED && (flags & NBD_FLAG_BLOCK_STATUS_PAYLOAD))
		fail("flags %#x have BLOCK_STATUS_PAYLOAD without extended headers", flags);
	if ((flags & NBD_FLAG_SEND_FAST_ZERO) && (flags & NBD_FLAG_SEND_WRITE_ZEROES) == 0)
		fail("flags %#x have FAST_ZERO without WRITE_ZEROES", flags);
}

static void
fua_needs_flush(const struct probe *p)
{
	uint16_t flags = p->found->flags[COMPACT];

	if ((flags & NBD_FLAG_SEND_FUA) && (flags & NBD_FLAG_SEND_FLUSH) == 0)
		fail("flags %#x have FUA without FLUSH", flags);
}

static void
read_only_flags(const struct probe *p)
{
	uint16_t flags = p->found->flags[COMPACT];

	if ((flags & NBD_FLAG_READ_ONLY) &&
	    (flags & (NBD_FLAG_SEND_TRIM | NBD_FLAG_SEND_WRITE_ZEROES | NBD_FLAG_SEND_FAST_ZERO)))
		fail("flags %#x offer TRIM or WRITE_ZEROES on what is read-only", flags);
}

/* ---- STARTTLS -------------------------------------------------------------------- */

static void
tls_refused(const struct probe *p)
{
	struct conn *c = greeted(p, FIXED_NO_ZEROES);
	uint32_t last = ask_plainly(c, NBD_OPT_STARTTLS);

	if ((last & NBD_REP_ERROR) == 0 || last == NBD_REP_ERR_TLS_REQD)
		fail_option(NBD_OPT_STARTTLS, "", last, "an error");
	go(c);
	must_answer(c, "STARTTLS was refused");
}

static void
tls_required(const struct probe *p)
{
	static const char *const queries[] = { NBD_BASE_ALLOCATION };
	const struct {
		uint32_t option;
		struct bytes data;
	} options[] = {
		{ NBD_OPT_LIST, { 0 } },
		{ NBD_OPT_LIST, zeroes(10) },
		{ NBD_OPT_INFO, info_of(p, 0, NULL) },
		{ NBD_OPT_GO, info_of(p, 0, NULL) },
		{ NBD_OPT_GO, zeroes(3) },
		{ NBD_OPT_STRUCTURED_REPLY, { 0 } },
		{ NBD_OPT_EXTENDED_HEADERS, { 0 } },
		{ NBD_OPT_LIST_META_CONTEXT, meta_query(p->uri->export, 1, queries) },
		{ NBD_OPT_SET_META_CONTEXT, meta_query(p->uri->export, 1, queries) },
		{ 0x7777, zeroes(1000) },
	};
	struct conn *c = greeted(p, FIXED_NO_ZEROES);

	for (unsigned i = 0; i < COUNT(options); i++) {
		struct option_replies r = ask(c, options[i].option, options[i].data);

		if (r.last != NBD_REP_ERR_TLS_REQD || r.count != 1)
			fail_option(options[i].option, " before TLS", r.last, "ERR_TLS_REQD");
	}
	start_tls(c);
	go(c);
	must_answer(c, "TLS");
}

static void
tls_required_export_name(const struct probe *p)
{
	struct conn *c = greeted(p, FIXED_NO_ZEROES);

	send_option(c, NBD_OPT_EXPORT_NAME, p->uri->export, strlen(p->uri->export));
	must_end(c, "EXPORT_NAME before TLS");
}

static void
starttls_data(const struct probe *p)
{
	struct conn *c = greeted(p, FIXED_NO_ZEROES);

	must_refuse(c, NBD_OPT_STARTTLS, zeroes(50), NBD_REP_ERR_INVALID, " with data");
	start_tls(c);
	must_haggle(c, "STARTTLS at the second attempt");
}

static void
starttls_twice(const struct probe *p)
{
	struct conn *c = greeted(p, FIXED_NO_ZEROES);

	start_tls(c);
	must_refuse(c, NBD_OPT_STARTTLS, (struct bytes){ 0 }, NBD_REP_ERR_INVALID, " inside TLS");
}

static void
starttls_resets(const struct probe *p)
{
	for (enum probe_headers h = STRUCTURED; h <= EXTENDED; h++) {
		struct conn *c = greeted(p, FIXED_NO_ZEROES);

		/* A server that wants TLS first refuses these, which is as good. */
		if (agree(c, h) == NBD_REP_ACK)
			set_context(c);
		c->headers = COMPACT;
		c->has_context = false;
		start_tls(c);
		go(c);
		if (c->flags & (NBD_FLAG_SEND_DF | NBD_FLAG_BLOCK_STATUS_PAYLOAD))
			fail("flags %#x after TLS come from what was agreed on before it",
			     c->flags);
		must_answer(c, "TLS"); /* by simple replies */
		if (call_error(c, NBD_CMD_BLOCK_STATUS, 0, 0, p->found->min) == NBD_SUCCESS)
			fail("BLOCK_STATUS works by a context that was set before TLS");
	}
}

/* What a server says to the first bytes of a TLS handshake: the type of its record, 0 when
 * it just closes. */
static unsigned
answer_to_hello(struct conn *c, const uint8_t *hello, size_t length, uint8_t *reply, size_t most,
		size_t *had)
{
	uint32_t last = ask_plainly(c, NBD_OPT_STARTTLS);

	if (last != NBD_REP_ACK)
		fail_option(NBD_OPT_STARTTLS, "", last, "ACK");
	put(c, hello, length);
	doing("waiting for the answer to a TLS hello");
	*had = take_rest(c, reply, 5);
	if (*had == 5) {
		size_t record = get_be16(reply + 3);

		*had += take_rest(c, reply + 5, record < most - 5 ? record : most - 5);
	}
	return *had > 0 ? reply[0] : 0;
}

enum { TLS_ALERT = 21, TLS_HANDSHAKE = 22, TLS_SERVER_HELLO = 2 };

static void
tls_garbage(const struct probe *p)
{
	struct conn *c = greeted(p, FIXED_NO_ZEROES);
	uint8_t reply[600];
	struct bytes b = info_of(p, 0, NULL), hello = { 0 };
	size_t had;
	unsigned type;

	/* An option in plain text, where a hello belongs; long enough to be no partial record. */
	add64(&hello, NBD_OPTION_MAGIC);
	add32(&hello, NBD_OPT_GO);
	add32(&hello, (uint32_t)b.length);
	add(&hello, b.data, b.length);
	add(&hello, zeroes(20000).data, 20000);
	type = answer_to_hello(c, hello.data, hello.length, reply, sizeof reply, &had);
	if (type != 0 && type != TLS_ALERT)
		fail("plain text instead of a TLS handshake is answered by %#x...", reply[0]);
	if (type == TLS_ALERT)
		must_end(c, "a TLS handshake that failed");
}

/* A ClientHello of the version, with what suites up to it have in common. tls13: with the
 * extensions that make it one of TLS 1.3 alone. */
static struct bytes
client_hello(uint16_t version, bool tls13)
{
	static const uint8_t suites[] = { 0x13, 0x01, 0x13, 0x02, 0x13, 0x03, 0xc0, 0x2f,
					  0xc0, 0x2b, 0xc0, 0x13, 0xc0, 0x09, 0xc0, 0x14,
					  0xc0, 0x0a, 0x00, 0x2f, 0x00, 0x35, 0x00, 0x9c };
	static const uint8_t groups[] = { 0, 10, 0, 6, 0, 4, 0, 29, 0, 23 };
	static const uint8_t signatures[] = { 0, 13, 0, 16, 0, 14, 8, 4, 8, 5,
					      8, 6,  4, 3,  4, 1,  5, 1, 2, 1 };
	static const uint8_t versions[] = { 0, 43, 0, 3, 2, 3, 4 };
	static const uint8_t share[] = { 0, 51, 0, 38, 0, 36, 0, 29, 0, 32, 9 }; /* and 31 zeroes */
	struct bytes extensions = { 0 }, body = { 0 }, hello = { 0 };

	add(&extensions, groups, sizeof groups);
	add(&extensions, signatures, sizeof signatures);
	if (tls13) {
		add(&extensions, versions, sizeof versions);
		add(&extensions, share, sizeof share);
		add(&extensions, zeroes(31).data, 31);
	}
	add16(&body, version);
	for (unsigned i = 0; i < 4; i++)
		add64(&body, 0x0123456789abcdef * (i + 1)); /* nothing here has to be random */
	add(&body, "", 1);                                  /* no session */
	add16(&body, sizeof suites);
	add(&body, suites, sizeof suites);
	add(&body, "\1", 2); /* compression: none */
	add16(&body, (uint16_t)extensions.length);
	add(&body, extensions.data, extensions.length);

	add(&hello, "\x16\x03\x01", 3);
	add16(&hello, (uint16_t)(body.length + 4));
	add(&hello, "\1\0", 2);
	add16(&hello, (uint16_t)body.length);
	add(&hello, body.data, body.length);
	return hello;
}

/* The version that a server chose: 0 if it would not talk. */
static unsigned
version_for(const struct probe *p, uint16_t version, bool tls13)
{
	struct bytes hello = client_hello(version, tls13);
	uint8_t reply[600];
	size_t had;
	unsigned type = answer_to_hello(greeted(p, FIXED_NO_ZEROES), hello.data, hello.length,
					reply, sizeof reply, &had);

	if (type != TLS_HANDSHAKE || had < 46 || reply[5] != TLS_SERVER_HELLO)
		return 0;
	/* Record and handshake headers, version, random, session, suite, compression, length of
	 * extensions; TLS 1.3 tells its version in one. */
	for (size_t at = 43 + 1 + reply[43] + 2 + 1 + 2; at + 6 <= had;
	     at += 4u + get_be16(reply + at + 2)) {
		if (get_be16(reply + at) == 43)
			return get_be16(reply + at + 4);
	}
	return get_be16(reply + 9);
}

static void
tls_old(const struct probe *p)
{
	for (uint16_t version = 0x0300; version <= 0x0302; version++) {
		unsigned chosen = version_for(p, version, false);

		if (chosen != 0)
			fail("a hello of TLS 1.%d is answered with version %#x", version - 0x0301,
			     chosen);
	}
}

static void
tls_12(const struct probe *p)
{
	if (p->uri->tls_certificates == NULL)
		not_applicable("only a server with a certificate can be asked");
	if (version_for(p, 0x0303, false) != 0x0303)
		fail("a hello of TLS 1.2 is refused");
}

static void
tls_13(const struct probe *p)
{
	if (p->uri->tls_certificates == NULL)
		not_applicable("only a server with a certificate can be asked");
	if (version_for(p, 0x0303, true) != 0x0304)
		fail("a hello of TLS 1.3 is refused");
}

static void
tls_no_more_demands(const struct probe *p)
{
	static const uint32_t options[] = { NBD_OPT_LIST,
					    NBD_OPT_INFO,
					    NBD_OPT_STRUCTURED_REPLY,
					    NBD_OPT_LIST_META_CONTEXT,
					    NBD_OPT_SET_META_CONTEXT,
					    NBD_OPT_EXTENDED_HEADERS,
					    0x7777,
					    NBD_OPT_GO };
	static const char *const queries[] = { NBD_BASE_ALLOCATION };
	struct conn *c = greeted(p, FIXED_NO_ZEROES);

	start_tls(c);
	for (unsigned i = 0; i < COUNT(options); i++) {
		struct bytes data = { 0 };
		uint32_t last;

		if (options[i] == NBD_OPT_INFO)
			data = info_of(p, 0, NULL);
		if (options[i] == NBD_OPT_GO) /* which ends this if there is such an export */
			data = info_request(NO_SUCH_EXPORT, strlen(NO_SUCH_EXPORT), 0, NULL);
		if (options[i] == NBD_OPT_LIST_META_CONTEXT ||
		    options[i] == NBD_OPT_SET_META_CONTEXT)
			data = meta_query(p->uri->export, 1, queries);
		last = ask(c, options[i], data).last;
		if (last == NBD_REP_ERR_TLS_REQD)
			fail_option(options[i], " inside TLS", last, "anything else");
	}
}

static void
tls_goodbye(const struct probe *p)
{
	struct conn *c = greeted(p, FIXED_NO_ZEROES);
	uint8_t byte;

	start_tls(c);
	go(c);
	disconnect(c);
	doing("waiting for TLS to end after DISC");
	if (tls_client_recv(c->tls, &byte, 1) != 0)
		fail("DISC: the connection is cut without a close_notify");
}

/* ---- structured replies and contexts --------------------------------------------- */

static void
structured_data(const struct probe *p)
{
	must_refuse(haggling(p), NBD_OPT_STRUCTURED_REPLY, zeroes(10), NBD_REP_ERR_INVALID,
		    " with data");
}

static void
structured_repeated(const struct probe *p)
{
	struct conn *c = haggling(p);
	uint32_t last;

	agree(c, STRUCTURED);
	last = ask_plainly(c, NBD_OPT_STRUCTURED_REPLY);
	if (last != NBD_REP_ACK && last != NBD_REP_ERR_INVALID)
		fail_option(NBD_OPT_STRUCTURED_REPLY, " repeated", last, "ACK or ERR_INVALID");
	go(c);
	must_answer(c, "STRUCTURED_REPLY repeated");
}

static void
context_too_early(const struct probe *p)
{
	static const char *const queries[] = { NBD_BASE_ALLOCATION };
	struct conn *c = haggling(p);
	uint32_t last =
		ask(c, NBD_OPT_SET_META_CONTEXT, meta_query(p->uri->export, 1, queries)).last;

	if (last != NBD_REP_ERR_INVALID && last != NBD_REP_ERR_EXT_HEADER_REQD)
		fail_option(NBD_OPT_SET_META_CONTEXT, " before structured replies", last,
			    "ERR_INVALID");
	must_haggle(c, "SET_META_CONTEXT before structured replies");
}

static void
context_no_query(const struct probe *p)
{
	struct conn *c = haggling_for_contexts(p);
	struct option_replies all;

	if (ask_contexts(c, NBD_OPT_SET_META_CONTEXT, 0, NULL).count != 1)
		fail("SET_META_CONTEXT without queries selects something");
	all = ask_contexts(c, NBD_OPT_LIST_META_CONTEXT, 0, NULL);
	if (!has_context(&all, NBD_BASE_ALLOCATION))
		fail("LIST_META_CONTEXT without queries lacks base:allocation");
}

static void
context_wildcards(const struct probe *p)
{
	static const char *const base[] = { "base:" };
	static const char *const unknown[] = { "base:nothing", "x-platter-probe:nothing" };
	struct conn *c = haggling_for_contexts(p);
	struct option_replies r = ask_contexts(c, NBD_OPT_LIST_META_CONTEXT, 1, base);

	if (!has_context(&r, NBD_BASE_ALLOCATION))
		fail("LIST_META_CONTEXT of base: lacks base:allocation");
	if (ask_contexts(c, NBD_OPT_SET_META_CONTEXT, 1, base).count != 1)
		fail("SET_META_CONTEXT of base: selects something");
	for (uint32_t o = NBD_OPT_LIST_META_CONTEXT; o <= NBD_OPT_SET_META_CONTEXT; o++) {
		if (ask_contexts(c, o, COUNT(unknown), unknown).count != 1)
			fail("%s of unknown contexts has replies", option_name(o));
	}
}

static void
context_malformed(const struct probe *p)
{
	static const struct {
		uint32_t name, count, query;
		unsigned rest;
	} lies[] = { { 0, 1, 100, 4 },        { 0, 0xffffffff, 4, 4 }, { 0, 1, 0xffffffff, 4 },
		     { 0xffffffff, 1, 4, 4 }, { 0, 2, 4, 4 },          { 0, 1, 0xfffffffc, 8 } };

	for (unsigned i = 0; i < COUNT(lies); i++) {
		for (uint32_t o = NBD_OPT_LIST_META_CONTEXT; o <= NBD_OPT_SET_META_CONTEXT; o++) {
			struct bytes b = { 0 };

			add32(&b, lies[i].name);
			add32(&b, lies[i].count);
			add32(&b, lies[i].query);
			add(&b, "b:aaaaaa", lies[i].rest);
			must_refuse(haggling_for_contexts(p), o, b, NBD_REP_ERR_INVALID,
				    " with lengths beyond its data");
		}
	}
}

static void
context_unique(const struct probe *p)
{
	static const char *const twice[] = { NBD_BASE_ALLOCATION, NBD_BASE_ALLOCATION };
	struct conn *c = haggling_for_contexts(p);
	struct option_replies r = ask_contexts(c, NBD_OPT_SET_META_CONTEXT, 2, twice);

	if (r.count != 2)
		fail("base:allocation asked for twice is selected %u times", r.count - 1);
	go(c);
	c->has_context = true;
	c->context = get_be32(r.list[0].data);
	status_at(c, 0, p->found->min, 0);
}

static void
context_last_wins(const struct probe *p)
{
	static const char *const base[] = { NBD_BASE_ALLOCATION };
	static const char *const other[] = { "x-platter-probe:nothing" };
	struct conn *c = haggling_for_contexts(p);
	uint32_t error;

	ask_contexts(c, NBD_OPT_SET_META_CONTEXT, 1, base);
	ask_contexts(c, NBD_OPT_SET_META_CONTEXT, 1, other);
	go(c);
	error = call_error(c, NBD_CMD_BLOCK_STATUS, 0, 0, p->found->min);
	if (error == NBD_SUCCESS)
		fail("BLOCK_STATUS works by a context that was replaced by none");
	must_answer(c, "BLOCK_STATUS without a context");
}

static void
context_of_another(const struct probe *p)
{
	static const char *const base[] = { NBD_BASE_ALLOCATION };
	struct conn *c = haggling_for_contexts(p);
	uint32_t last = ask(c, NBD_OPT_SET_META_CONTEXT, meta_query(NO_SUCH_EXPORT, 1, base)).last;

	if (last != NBD_REP_ERR_UNKNOWN)
		fail_option(NBD_OPT_SET_META_CONTEXT, " of an export that does not exist", last,
			    "ERR_UNKNOWN");
	must_haggle(c, "SET_META_CONTEXT of an unknown export");
}

/* ---- extended headers ------------------------------------------------------------ */

static void
extended_data(const struct probe *p)
{
	must_refuse(haggling(p), NBD_OPT_EXTENDED_HEADERS, zeroes(10), NBD_REP_ERR_INVALID,
		    " with data");
}

static void
extended_repeated(const struct probe *p)
{
	struct conn *c = haggling(p);

	agree(c, EXTENDED);
	must_refuse(c, NBD_OPT_EXTENDED_HEADERS, (struct bytes){ 0 }, NBD_REP_ERR_INVALID,
		    " repeated");
	go(c);
	must_answer(c, "EXTENDED_HEADERS repeated");
}

static void
extended_over_structured(const struct probe *p)
{
	struct conn *c = haggling(p);

	if (p->found->structured)
		agree(c, STRUCTURED);
	agree(c, EXTENDED);
	must_refuse(c, NBD_OPT_STRUCTURED_REPLY, (struct bytes){ 0 }, NBD_REP_ERR_EXT_HEADER_REQD,
		    " after extended headers");
	set_context(c);
	go(c);
	must_answer(c, "GO with extended headers");
}

static void
extended_export_name(const struct probe *p)
{
	struct conn *c = haggling(p);

	agree(c, EXTENDED);
	send_option(c, NBD_OPT_EXPORT_NAME, p->uri->export, strlen(p->uri->export));
	must_end(c, "EXPORT_NAME with extended headers");
}

/* ---- the table ------------------------------------------------------------------- */

#define MUST      PROBE_MUST
#define SHOULD    PROBE_SHOULD
#define EXTENSION PROBE_EXTENSION
#define POLICY    PROBE_POLICY

/* clang-format off */
const struct probe_row probe_handshake_rows[] = {
	{ 1, "greeting", MUST, "the server speaks first: newstyle, fixed, no unknown flags",
	  greeting, ON_WIRE, 0 },
	{ 1, "greeting-no-zeroes", SHOULD, "NO_ZEROES is offered",
	  greeting_no_zeroes, ON_WIRE, 0 },
	{ 2, "client-flags", MUST, "unknown client flags end the connection without a reply",
	  client_flags, ON_WIRE, 0 },
	{ 3, "not-fixed", SHOULD, "a client without FIXED_NEWSTYLE is served by EXPORT_NAME",
	  not_fixed, ON_WIRE, NEED_NO_TLS },
	{ 4, "option-magic", MUST, "a wrong option magic ends the connection",
	  option_magic, ON_HANDSHAKE, 0 },
	{ 6, "option-reply", MUST, "a reply to an option echoes its number",
	  option_reply_form, ON_HANDSHAKE, 0 },
	{ 7, "option-unknown", MUST, "an unknown option is ERR_UNSUP, and its data consumed",
	  option_unknown, ON_HANDSHAKE, 0 },
	{ 7, "option-large", SHOULD, "so is one with 1 MiB of data",
	  option_large, ON_HANDSHAKE, 0 },
	{ 8, "option-huge", POLICY, "an option that announces 4 GiB is not read to its end",
	  option_huge, ON_HANDSHAKE, 0 },
	{ 9, "option-pipelined", MUST, "options sent at once are answered in their order",
	  option_pipelined, ON_HANDSHAKE, 0 },
	{ 10, "handshake-deadline", POLICY, "a client that says nothing is not kept for a minute",
	  handshake_deadline, ON_WIRE, NEED_SLOW },

	{ 11, "abort", MUST, "ABORT is acknowledged, and the connection closed",
	  abort_plain, ON_HANDSHAKE, 0 },
	{ 12, "abort-data", SHOULD, "so is ABORT with data",
	  abort_data, ON_HANDSHAKE, 0 },
	{ 14, "list-data", SHOULD, "LIST with data is ERR_INVALID and lists nothing",
	  list_data, ON_HANDSHAKE, NEED_LIST },
	{ 15, "list", MUST, "LIST has each export once and an ACK, and may be repeated",
	  list_repeated, ON_HANDSHAKE, NEED_LIST },
	{ 16, "list-policy", MUST, "LIST that is not allowed is ERR_POLICY alone",
	  list_policy, ON_HANDSHAKE, NEED_NO_LIST },
	{ 17, "export-name", MUST, "EXPORT_NAME has 10 bytes of answer with NO_ZEROES, else 134",
	  export_name, ON_HANDSHAKE, 0 },
	{ 18, "export-name-unknown", MUST, "EXPORT_NAME of no export ends the connection",
	  export_name_refused, ON_HANDSHAKE, NEED_UNKNOWN },
	{ 18, "export-name-long", MUST, "EXPORT_NAME above 4096 bytes ends the connection",
	  export_name_long, ON_HANDSHAKE, 0 },
	{ 20, "empty-name", MUST, "the empty name is the default export, or unknown",
	  empty_name, ON_HANDSHAKE, 0 },
	{ 21, "name-longest", MUST, "a name of 4096 bytes is a name",
	  name_longest, ON_HANDSHAKE, NEED_UNKNOWN },
	{ 21, "name-too-long", POLICY, "a name of 4097 bytes is ERR_INVALID, and all goes on",
	  name_too_long, ON_HANDSHAKE, 0 },

	{ 23, "info-short", MUST, "INFO and GO with less than 6 bytes are ERR_INVALID",
	  info_short, ON_HANDSHAKE, 0 },
	{ 24, "info-name-length", MUST, "INFO and GO with a name beyond their data are ERR_INVALID",
	  info_name_length, ON_HANDSHAKE, 0 },
	{ 25, "info-count", SHOULD, "INFO with more or less requests than data is ERR_INVALID",
	  info_count, ON_HANDSHAKE, 0 },
	{ 26, "info-export", MUST, "INFO and GO that succeed have one INFO_EXPORT",
	  info_export, ON_HANDSHAKE, 0 },
	{ 27, "info-unknown", MUST, "unknown information requests are ignored",
	  info_unknown, ON_HANDSHAKE, 0 },
	{ 28, "go-no-padding", MUST, "nothing follows the ACK of GO, with NO_ZEROES or without",
	  go_no_padding, ON_HANDSHAKE, 0 },
	{ 29, "info-then-go", MUST, "GO tells what the same INFO before it told",
	  info_then_go, ON_HANDSHAKE, 0 },
	{ 30, "info-stays", MUST, "after INFO negotiation goes on",
	  info_stays, ON_HANDSHAKE, 0 },
	{ 32, "block-sizes", MUST, "block sizes are powers of two, in their order and bounds",
	  block_sizes, ON_HANDSHAKE, 0 },
	{ 32, "max-payload", SHOULD, "payloads up to 1 MiB are allowed",
	  max_payload, ON_HANDSHAKE, 0 },
	{ 33, "block-size-demanded", MUST, "who does not ask for block sizes is told before refusal",
	  block_size_demanded, ON_HANDSHAKE, NEED_BLOCKS },
	{ 34, "size-in-blocks", SHOULD, "the size is a multiple of the smallest block",
	  size_in_blocks, ON_HANDSHAKE, 0 },
	{ 35, "transmission-flags", MUST, "flags are set only beside those that they need",
	  transmission_flags, ON_ALL, 0 },
	{ 36, "fua-needs-flush", POLICY, "FUA is never offered without FLUSH",
	  fua_needs_flush, ON_HANDSHAKE, 0 },
	{ 36, "read-only-flags", POLICY, "a read-only export offers no TRIM and no WRITE_ZEROES",
	  read_only_flags, ON_HANDSHAKE, 0 },

	{ 37, "tls-refused", MUST, "a server without TLS refuses STARTTLS, and goes on",
	  tls_refused, ON_WIRE, NEED_NO_TLS },
	{ 38, "tls-required", MUST, "where TLS is forced, every option before it is ERR_TLS_REQD",
	  tls_required, ON_WIRE, NEED_FORCED_TLS },
	{ 38, "tls-required-name", MUST, "where TLS is forced, EXPORT_NAME before it closes",
	  tls_required_export_name, ON_WIRE, NEED_FORCED_TLS },
	{ 39, "starttls-data", MUST, "STARTTLS with data is ERR_INVALID, and may come again",
	  starttls_data, ON_WIRE, NEED_STARTTLS },
	{ 40, "starttls-twice", MUST, "STARTTLS inside TLS is ERR_INVALID",
	  starttls_twice, ON_WIRE, NEED_STARTTLS },
	{ 41, "tls-1.2", MUST, "TLS 1.2 is spoken",
	  tls_12, ON_WIRE, NEED_STARTTLS },
	{ 41, "tls-1.3", SHOULD, "TLS 1.3 is spoken",
	  tls_13, ON_WIRE, NEED_STARTTLS },
	{ 42, "starttls-resets", MUST, "what was agreed on before TLS is forgotten",
	  starttls_resets, ON_WIRE, NEED_STARTTLS },
	{ 43, "tls-garbage", MUST, "a TLS handshake that fails ends the connection",
	  tls_garbage, ON_WIRE, NEED_STARTTLS },
	{ 44, "tls-old", SHOULD, "TLS before 1.2 is refused",
	  tls_old, ON_WIRE, NEED_STARTTLS },
	{ 45, "tls-no-demands", MUST, "inside TLS nothing is ERR_TLS_REQD",
	  tls_no_more_demands, ON_WIRE, NEED_STARTTLS },
	{ 46, "tls-goodbye", MUST, "TLS is ended by close_notify",
	  tls_goodbye, ON_WIRE, NEED_STARTTLS },

	{ 47, "structured-data", SHOULD, "STRUCTURED_REPLY with data is ERR_INVALID",
	  structured_data, ON_HANDSHAKE, NEED_STRUCTURED },
	{ 47, "structured-repeated", MUST, "STRUCTURED_REPLY repeated does no harm",
	  structured_repeated, ON_HANDSHAKE, NEED_STRUCTURED },
	{ 48, "context-early", SHOULD, "SET_META_CONTEXT before STRUCTURED_REPLY is ERR_INVALID",
	  context_too_early, ON_HANDSHAKE, NEED_CONTEXT },
	{ 50, "context-no-query", MUST, "without queries SET selects nothing and LIST lists all",
	  context_no_query, ON_HANDSHAKE, NEED_CONTEXT },
	{ 51, "context-unknown", MUST, "base: is for LIST alone; unknown contexts are ignored",
	  context_wildcards, ON_HANDSHAKE, NEED_CONTEXT },
	{ 52, "context-malformed", MUST, "queries beyond the option's data are ERR_INVALID",
	  context_malformed, ON_HANDSHAKE, NEED_CONTEXT },
	{ 53, "context-unique", MUST, "a context asked for twice is selected once",
	  context_unique, ON_HANDSHAKE, NEED_CONTEXT },
	{ 54, "context-last-wins", MUST, "SET_META_CONTEXT replaces what was set before",
	  context_last_wins, ON_HANDSHAKE, NEED_CONTEXT },
	{ 55, "context-no-export", SHOULD, "SET_META_CONTEXT of no export is ERR_UNKNOWN",
	  context_of_another, ON_HANDSHAKE, NEED_CONTEXT | NEED_UNKNOWN },

	{ 93, "extended-data", EXTENSION, "EXTENDED_HEADERS with data is ERR_INVALID",
	  extended_data, ON_HANDSHAKE, NEED_EXTENDED },
	{ 93, "extended-repeated", EXTENSION, "EXTENDED_HEADERS repeated is ERR_INVALID",
	  extended_repeated, ON_HANDSHAKE, NEED_EXTENDED },
	{ 94, "extended-wins", EXTENSION, "STRUCTURED_REPLY after it is ERR_EXT_HEADER_REQD",
	  extended_over_structured, ON_HANDSHAKE, NEED_EXTENDED },
	{ 94, "extended-export-name", EXTENSION, "EXPORT_NAME after it ends the connection",
	  extended_export_name, ON_HANDSHAKE, NEED_EXTENDED },
	{ .name = NULL },
};
/* clang-format on */
