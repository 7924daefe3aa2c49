#include "probe-client.h"
#include "stream-tls.h"

#include <assert.h>
#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

static void *
allocate(size_t length)
{
	void *memory = calloc(1, length + 1);

	if (memory == NULL)
		cannot_connect("out of memory");
	return memory;
}

/* ---- names ----------------------------------------------------------------------- */

static const char *
name_of(const char *const *names, unsigned count, uint32_t n)
{
	static char text[4][16];
	static unsigned next;
	char *number = text[next++ % 4];

	if (n < count && names[n] != NULL)
		return names[n];
	snprintf(number, sizeof text[0], n < 256 ? "%u" : "0x%x", n);
	return number;
}

#define NAME_OF(names, n) name_of(names, sizeof names / sizeof *names, n)

const char *
option_name(uint32_t option)
{
	static const char *const names[] = {
		[NBD_OPT_EXPORT_NAME] = "EXPORT_NAME",
		[NBD_OPT_ABORT] = "ABORT",
		[NBD_OPT_LIST] = "LIST",
		[NBD_OPT_STARTTLS] = "STARTTLS",
		[NBD_OPT_INFO] = "INFO",
		[NBD_OPT_GO] = "GO",
		[NBD_OPT_STRUCTURED_REPLY] = "STRUCTURED_REPLY",
		[NBD_OPT_LIST_META_CONTEXT] = "LIST_META_CONTEXT",
		[NBD_OPT_SET_META_CONTEXT] = "SET_META_CONTEXT",
		[NBD_OPT_EXTENDED_HEADERS] = "EXTENDED_HEADERS",
	};

	return NAME_OF(names, option);
}

const char *
reply_name(uint32_t type)
{
	static const char *const names[] = {
		[NBD_REP_ACK] = "ACK",
		[NBD_REP_SERVER] = "SERVER",
		[NBD_REP_INFO] = "INFO",
		[NBD_REP_META_CONTEXT] = "META_CONTEXT",
	};
	static const char *const errors[] = {
		[1] = "ERR_UNSUP",    [2] = "ERR_POLICY",
		[3] = "ERR_INVALID",  [4] = "ERR_PLATFORM",
		[5] = "ERR_TLS_REQD", [6] = "ERR_UNKNOWN",
		[7] = "ERR_SHUTDOWN", [8] = "ERR_BLOCK_SIZE_REQD",
		[9] = "ERR_TOO_BIG",  [10] = "ERR_EXT_HEADER_REQD",
	};

	if (type & NBD_REP_ERROR)
		return NAME_OF(errors, type & ~NBD_REP_ERROR);
	return NAME_OF(names, type);
}

const char *
command_name(unsigned type)
{
	static const char *const names[] = {
		[NBD_CMD_READ] = "READ",
		[NBD_CMD_WRITE] = "WRITE",
		[NBD_CMD_DISC] = "DISC",
		[NBD_CMD_FLUSH] = "FLUSH",
		[NBD_CMD_TRIM] = "TRIM",
		[NBD_CMD_CACHE] = "CACHE",
		[NBD_CMD_WRITE_ZEROES] = "WRITE_ZEROES",
		[NBD_CMD_BLOCK_STATUS] = "BLOCK_STATUS",
	};

	return NAME_OF(names, type);
}

/* NBD proto.md, "Error values" */
static const char *const error_names[] = {
	[NBD_SUCCESS] = "success",     [NBD_EPERM] = "EPERM",     [NBD_EIO] = "EIO",
	[NBD_ENOMEM] = "ENOMEM",       [NBD_EINVAL] = "EINVAL",   [NBD_ENOSPC] = "ENOSPC",
	[NBD_EOVERFLOW] = "EOVERFLOW", [NBD_ENOTSUP] = "ENOTSUP", [NBD_ESHUTDOWN] = "ESHUTDOWN",
};

const char *
error_name(uint32_t error)
{
	return NAME_OF(error_names, error);
}

static bool
is_nbd_error(uint32_t error)
{
	return error < sizeof error_names / sizeof *error_names && error_names[error] != NULL;
}

/* ---- bytes ----------------------------------------------------------------------- */

void
put(struct conn *c, const void *data, size_t length)
{
	const char *at = data;

	while (length > 0) {
		ssize_t n = c->tls != NULL ? tls_client_send(c->tls, at, length)
					   : send(c->fd, at, length, MSG_NOSIGNAL);

		if (n == -1 && c->tls == NULL && errno == EINTR)
			continue;
		if (n <= 0)
			return; /* closed: the next take() finds that, or what came before */
		at += n;
		length -= (size_t)n;
	}
}

/* 0: the server has ended it. */
static size_t
take_some(struct conn *c, void *data, size_t length)
{
	if (c->has_ahead && length > 0) {
		c->has_ahead = false;
		*(uint8_t *)data = c->ahead;
		return 1;
	}
	for (;;) {
		ssize_t n = c->tls != NULL ? tls_client_recv(c->tls, data, length)
					   : recv(c->fd, data, length, 0);

		if (n >= 0)
			return (size_t)n;
		if (c->tls != NULL || errno != EINTR)
			return 0;
	}
}

size_t
take_rest(struct conn *c, void *data, size_t most)
{
	size_t have = 0, n;

	while (have < most && (n = take_some(c, (char *)data + have, most - have)) > 0)
		have += n;
	return have;
}

void
take(struct conn *c, void *data, size_t length)
{
	size_t have = take_rest(c, data, length);

	if (have < length)
		fail("the server closed the connection after %zu of %zu bytes of a reply", have,
		     length);
}

static uint64_t
take_number(struct conn *c, size_t length)
{
	uint8_t bytes[8] = { 0 };

	assert(length <= sizeof bytes);
	take(c, bytes + sizeof bytes - length, length);
	return get_be64(bytes);
}

void
must_end(struct conn *c, const char *after)
{
	uint8_t bytes[4];
	size_t n;

	doing("waiting for the end of the connection after %s", after);
	n = take_rest(c, bytes, sizeof bytes);
	if (n > 0)
		fail("%s: the server sent something and did not close the connection", after);
}

bool
has_ended(struct conn *c)
{
	c->has_ahead = take_rest(c, &c->ahead, 1) == 1;
	return !c->has_ahead;
}

/* ---- connecting ------------------------------------------------------------------ */

struct conn *
dial(const struct probe *p)
{
	struct conn *c = allocate(sizeof *c);
	struct pl_error err;

	doing("connecting");
	c->probe = p;
	if (nbd_uri_connect(p->uri, &c->fd, &err) != 0)
		cannot_connect("%s", err.text);
	return c;
}

struct conn *
greeted(const struct probe *p, uint32_t client_flags)
{
	struct conn *c = dial(p);
	uint8_t flags[4];

	doing("waiting for the greeting");
	if (take_number(c, 8) != NBD_MAGIC || take_number(c, 8) != NBD_OPTION_MAGIC)
		fail("the greeting is not that of a newstyle server");
	c->greeting = (uint16_t)take_number(c, 2);
	put_be32(flags, client_flags);
	put(c, flags, sizeof flags);
	return c;
}

void
start_tls(struct conn *c)
{
	const struct nbd_uri *uri = c->probe->uri;
	struct tls_settings settings = { .certificates = uri->tls_certificates,
					 .psk = uri->tls_psk_file };
	const char *host = uri->tls_hostname != NULL ? uri->tls_hostname
			   : uri->host != NULL       ? uri->host
						     : "localhost";
	struct pl_error err;
	uint32_t last = ask_plainly(c, NBD_OPT_STARTTLS);

	if (last != NBD_REP_ACK)
		fail("STARTTLS was answered %s", reply_name(last));
	doing("the TLS handshake");
	if (tls_client_new(&c->tls, c->fd, &settings, host, uri->user, &err) != 0)
		fail("TLS handshake: %s", err.text);
}

struct conn *
haggling(const struct probe *p)
{
	struct conn *c = greeted(p, p->found->greeting & FIXED_NO_ZEROES);

	if (p->tls)
		start_tls(c);
	return c;
}

struct conn *
ready(const struct probe *p)
{
	struct conn *c = haggling(p);

	go_as(c, p->headers);
	return c;
}

/* ---- options: sending ------------------------------------------------------------ */

void
add(struct bytes *b, const void *data, size_t length)
{
	uint8_t *grown = realloc(b->data, b->length + length + 1);

	if (grown == NULL)
		cannot_connect("out of memory");
	b->data = grown;
	if (length > 0)
		memcpy(b->data + b->length, data, length);
	b->length += length;
}

void
add16(struct bytes *b, uint16_t n)
{
	uint8_t bytes[2];

	put_be16(bytes, n);
	add(b, bytes, sizeof bytes);
}

void
add32(struct bytes *b, uint32_t n)
{
	uint8_t bytes[4];

	put_be32(bytes, n);
	add(b, bytes, sizeof bytes);
}

void
add64(struct bytes *b, uint64_t n)
{
	uint8_t bytes[8];

	put_be64(bytes, n);
	add(b, bytes, sizeof bytes);
}

void
add_text(struct bytes *b, const char *text)
{
	add32(b, (uint32_t)strlen(text));
	add(b, text, strlen(text));
}

struct bytes
info_request(const char *name, size_t length, unsigned count, const uint16_t *infos)
{
	struct bytes b = { 0 };

	add32(&b, (uint32_t)length);
	add(&b, name, length);
	add16(&b, (uint16_t)count);
	for (unsigned i = 0; i < count; i++)
		add16(&b, infos[i]);
	return b;
}

struct bytes
meta_query(const char *name, unsigned count, const char *const *queries)
{
	struct bytes b = { 0 };

	add_text(&b, name);
	add32(&b, count);
	for (unsigned i = 0; i < count; i++)
		add_text(&b, queries[i]);
	return b;
}

void
send_option_header(struct conn *c, uint32_t option, uint32_t length)
{
	struct bytes b = { 0 };

	doing("sending %s", option_name(option));
	add64(&b, NBD_OPTION_MAGIC);
	add32(&b, option);
	add32(&b, length);
	put(c, b.data, b.length);
}

void
send_option(struct conn *c, uint32_t option, const void *data, size_t length)
{
	send_option_header(c, option, (uint32_t)length);
	put(c, data, length);
}

/* ---- options: replies ------------------------------------------------------------ */

/* The form of a reply, as its type has it. */
static void
check_reply(uint32_t option, const struct option_reply *r)
{
	const char *what = option_name(option);
	bool meta = option == NBD_OPT_SET_META_CONTEXT || option == NBD_OPT_LIST_META_CONTEXT;
	bool info = option == NBD_OPT_INFO || option == NBD_OPT_GO;

	if (r->type & NBD_REP_ERROR) {
		if (r->length > NBD_STRING_MAX)
			fail("%s: an error text of %u bytes", what, r->length);
		return;
	}
	switch (r->type) {
	case NBD_REP_ACK:
		if (r->length != 0)
			fail("%s: an ACK with %u bytes of data", what, r->length);
		return;
	case NBD_REP_SERVER:
		if (option != NBD_OPT_LIST)
			break;
		if (r->length < 4 || get_be32(r->data) > r->length - 4)
			fail("LIST: a name longer than its reply");
		return;
	case NBD_REP_INFO:
		if (!info)
			break;
		if (r->length < 2)
			fail("%s: an INFO of %u bytes", what, r->length);
		if (get_be16(r->data) == NBD_INFO_EXPORT && r->length != 12)
			fail("%s: INFO_EXPORT has %u bytes, not 12", what, r->length);
		if (get_be16(r->data) == NBD_INFO_BLOCK_SIZE && r->length != 14)
			fail("%s: INFO_BLOCK_SIZE has %u bytes, not 14", what, r->length);
		return;
	case NBD_REP_META_CONTEXT:
		if (!meta)
			break;
		if (r->length < 4 || r->length - 4 > NBD_STRING_MAX)
			fail("%s: a META_CONTEXT of %u bytes", what, r->length);
		return;
	default: break;
	}
	fail("%s was answered %s", what, reply_name(r->type));
}

struct option_replies
take_replies(struct conn *c, uint32_t option)
{
	struct option_replies all = { 0 };

	doing("waiting for the answer to %s", option_name(option));
	do {
		struct option_reply r = { 0 };
		uint64_t magic = take_number(c, 8);
		uint32_t echoed;

		if (magic != NBD_OPT_REPLY_MAGIC)
			fail("%s: the reply's magic is %#llx", option_name(option),
			     (unsigned long long)magic);
		echoed = (uint32_t)take_number(c, 4);
		if (echoed != option)
			fail("the reply to %s is marked as one to %s", option_name(option),
			     option_name(echoed));
		r.type = (uint32_t)take_number(c, 4);
		r.length = (uint32_t)take_number(c, 4);
		if (r.length > 4u * NBD_STRING_MAX)
			fail("%s: a reply of %u bytes", option_name(option), r.length);
		r.data = allocate(r.length);
		take(c, r.data, r.length);
		check_reply(option, &r);
		all.list = realloc(all.list, (all.count + 1) * sizeof r);
		if (all.list == NULL)
			cannot_connect("out of memory");
		all.list[all.count++] = r;
		all.last = r.type;
	} while (all.last != NBD_REP_ACK && (all.last & NBD_REP_ERROR) == 0);
	return all;
}

struct option_replies
ask(struct conn *c, uint32_t option, struct bytes data)
{
	send_option(c, option, data.data, data.length);
	return take_replies(c, option);
}

uint32_t
ask_plainly(struct conn *c, uint32_t option)
{
	return ask(c, option, (struct bytes){ 0 }).last;
}

void
fail_option(uint32_t option, const char *with, uint32_t got, const char *wanted)
{
	fail("%s%s was answered %s, not %s", option_name(option), with, reply_name(got), wanted);
}

void
must_haggle(struct conn *c, const char *after)
{
	/* Known to every server, and without effect; that it is answered at all shows that
	 * both sides agree on where an option begins. */
	struct bytes data =
		info_request(c->probe->uri->export, strlen(c->probe->uri->export), 0, NULL);
	struct option_replies r;

	doing("waiting for the answer to an option after %s", after);
	r = ask(c, NBD_OPT_INFO, data);
	if (r.last != NBD_REP_ACK && r.last != NBD_REP_ERR_TLS_REQD &&
	    r.last != NBD_REP_ERR_BLOCK_SIZE_REQD)
		fail("after %s INFO is answered %s", after, reply_name(r.last));
}

struct info
read_info(const struct option_replies *r)
{
	struct info info = { .min = 1, .preferred = 4096, .max = NBD_MAX_PAYLOAD };

	for (unsigned i = 0; i < r->count; i++) {
		const uint8_t *data = r->list[i].data;

		if (r->list[i].type != NBD_REP_INFO)
			continue;
		if (get_be16(data) == NBD_INFO_EXPORT) {
			info.exports++;
			info.size = get_be64(data + 2);
			info.flags = get_be16(data + 10);
		} else if (get_be16(data) == NBD_INFO_BLOCK_SIZE) {
			info.blocks++;
			info.min = get_be32(data + 2);
			info.preferred = get_be32(data + 6);
			info.max = get_be32(data + 10);
		}
	}
	return info;
}

unsigned
agree(struct conn *c, enum probe_headers headers)
{
	uint32_t last = NBD_REP_ACK;

	if (headers == STRUCTURED)
		last = ask_plainly(c, NBD_OPT_STRUCTURED_REPLY);
	if (headers == EXTENDED)
		last = ask_plainly(c, NBD_OPT_EXTENDED_HEADERS);
	if (last == NBD_REP_ACK)
		c->headers = headers;
	return last;
}

void
set_context(struct conn *c)
{
	const char *queries[] = { NBD_BASE_ALLOCATION };
	struct option_replies r =
		ask(c, NBD_OPT_SET_META_CONTEXT, meta_query(c->probe->uri->export, 1, queries));

	c->has_context = r.last == NBD_REP_ACK && r.count == 2;
	if (c->has_context)
		c->context = get_be32(r.list[0].data);
}

struct info
go(struct conn *c)
{
	static const uint16_t infos[] = { NBD_INFO_BLOCK_SIZE };
	const char *name = c->probe->uri->export;
	struct option_replies r = ask(c, NBD_OPT_GO, info_request(name, strlen(name), 1, infos));
	struct info info = read_info(&r);

	if (r.last != NBD_REP_ACK)
		fail("GO was answered %s", reply_name(r.last));
	if (info.exports != 1)
		fail("GO has %u INFO_EXPORT before its ACK", info.exports);
	c->size = info.size;
	c->flags = info.flags;
	return info;
}

void
go_as(struct conn *c, enum probe_headers headers)
{
	uint32_t last = agree(c, headers);

	if (last != NBD_REP_ACK)
		fail("%s was answered %s now",
		     headers == EXTENDED ? "EXTENDED_HEADERS" : "STRUCTURED_REPLY",
		     reply_name(last));
	if (headers != COMPACT && c->probe->found->context)
		set_context(c);
	go(c);
}

/* ---- commands: sending ----------------------------------------------------------- */

struct piece {
	uint64_t offset, length;
};

struct pending {
	struct command cmd;
	struct answer answer;
	struct piece *list;
	unsigned statuses; /* chunks */
	struct pending *next;
};

uint64_t
send_command(struct conn *c, const struct command *cmd)
{
	struct pending *p = allocate(sizeof *p);
	bool extended = c->headers == EXTENDED;
	struct bytes b = { 0 };

	doing("sending %s", command_name(cmd->type));
	p->cmd = *cmd;
	if (p->cmd.cookie == 0)
		p->cmd.cookie = ++c->cookie;
	p->answer.cookie = p->cmd.cookie;
	p->next = c->pending;
	c->pending = p;

	add32(&b, extended ? NBD_EXTENDED_REQUEST_MAGIC : NBD_REQUEST_MAGIC);
	add16(&b, cmd->flags);
	add16(&b, cmd->type);
	add64(&b, p->cmd.cookie);
	add64(&b, cmd->offset);
	if (extended)
		add64(&b, cmd->length);
	else
		add32(&b, (uint32_t)cmd->length);
	if (cmd->payload_length <= 4096)
		add(&b, cmd->payload, cmd->payload_length);
	put(c, b.data, b.length);
	if (cmd->payload_length > 4096)
		put(c, cmd->payload, cmd->payload_length);
	free(b.data);
	return p->cmd.cookie;
}

/* ---- commands: replies ----------------------------------------------------------- */

static struct pending *
find(struct conn *c, uint64_t cookie)
{
	for (struct pending *p = c->pending; p != NULL; p = p->next) {
		if (p->cmd.cookie == cookie)
			return p;
	}
	fail("a reply with the cookie %#llx, which no request in flight has",
	     (unsigned long long)cookie);
}

static void
unlink_pending(struct conn *c, struct pending *gone)
{
	struct pending **p = &c->pending;

	while (*p != gone)
		p = &(*p)->next;
	*p = gone->next;
}

static void
check_error(const struct pending *p, uint32_t error)
{
	if (!is_nbd_error(error) || error == NBD_SUCCESS)
		fail("%s: %u is no error of the protocol", command_name(p->cmd.type), error);
}

static void
add_piece(struct pending *p, uint64_t offset, uint64_t length, const uint8_t *data)
{
	uint64_t at = offset - p->cmd.offset;

	if (p->cmd.type != NBD_CMD_READ)
		fail("content in the reply to %s", command_name(p->cmd.type));
	if (offset < p->cmd.offset || at > p->cmd.length || length > p->cmd.length - at)
		fail("READ %llu+%llu: content at %llu+%llu lies outside",
		     (unsigned long long)p->cmd.offset, (unsigned long long)p->cmd.length,
		     (unsigned long long)offset, (unsigned long long)length);
	for (unsigned i = 0; i < p->answer.pieces; i++) {
		if (offset < p->list[i].offset + p->list[i].length &&
		    p->list[i].offset < offset + length)
			fail("READ: content at %llu+%llu came twice", (unsigned long long)offset,
			     (unsigned long long)length);
	}
	if ((p->cmd.flags & NBD_CMD_FLAG_DF) && p->answer.pieces > 0)
		fail("READ with DF: more than one chunk of content");
	if (p->answer.data == NULL)
		p->answer.data = allocate(p->cmd.length);
	if (data != NULL)
		memcpy(p->answer.data + at, data, length);
	p->list = realloc(p->list, (p->answer.pieces + 1) * sizeof *p->list);
	if (p->list == NULL)
		cannot_connect("out of memory");
	p->list[p->answer.pieces++] = (struct piece){ offset, length };
}

static void
take_extents(struct conn *c, struct pending *p, const uint8_t *data, uint64_t length)
{
	bool extended = c->headers == EXTENDED;
	uint64_t head = extended ? 8 : 4, each = extended ? 16 : 8, sum = 0, wanted;
	struct answer *a = &p->answer;

	/* With a payload, its first eight bytes are what is asked for. */
	wanted = p->cmd.flags & NBD_CMD_FLAG_PAYLOAD_LEN ? get_be64(p->cmd.payload) : p->cmd.length;
	if (p->cmd.type != NBD_CMD_BLOCK_STATUS)
		fail("a status in the reply to %s", command_name(p->cmd.type));
	if (length < head + each || (length - head) % each != 0)
		fail("BLOCK_STATUS: a status of %llu bytes", (unsigned long long)length);
	if (!c->has_context || get_be32(data) != c->context)
		fail("BLOCK_STATUS: a status for context %u", get_be32(data));
	if (p->statuses++ > 0)
		fail("BLOCK_STATUS: one context came twice");
	a->extent_count = (unsigned)((length - head) / each);
	if (extended && get_be32(data + 4) != a->extent_count)
		fail("BLOCK_STATUS: a count of %u with %u extents", get_be32(data + 4),
		     a->extent_count);
	a->extents = allocate(a->extent_count * sizeof *a->extents);
	for (unsigned i = 0; i < a->extent_count; i++) {
		const uint8_t *at = data + head + i * each;
		struct extent *x = &a->extents[i];

		x->length = extended ? get_be64(at) : get_be32(at);
		x->flags = extended ? get_be64(at + 8) : get_be32(at + 4);
		if (x->length == 0)
			fail("BLOCK_STATUS: an extent of no length");
		if (x->flags >> 32 != 0)
			fail("BLOCK_STATUS: base:allocation with bits above 31");
		if (i > 0 && sum >= wanted)
			fail("BLOCK_STATUS: %u extents, though fewer cover the request",
			     a->extent_count);
		sum += x->length;
	}
	if ((p->cmd.flags & NBD_CMD_FLAG_REQ_ONE) && (a->extent_count != 1 || sum > wanted))
		fail("BLOCK_STATUS with REQ_ONE: %u extents of %llu bytes for %llu",
		     a->extent_count, (unsigned long long)sum, (unsigned long long)wanted);
}

static void
take_error(struct pending *p, unsigned type, const uint8_t *data, uint64_t length)
{
	uint64_t fixed = type == NBD_REPLY_TYPE_ERROR_OFFSET ? 14 : 6;
	uint64_t said, offset;

	if (length < fixed)
		fail("%s: an error chunk of %llu bytes", command_name(p->cmd.type),
		     (unsigned long long)length);
	check_error(p, get_be32(data));
	said = get_be16(data + 4);
	if (said > length - fixed || said > NBD_STRING_MAX)
		fail("%s: an error text of %llu bytes in a chunk of %llu",
		     command_name(p->cmd.type), (unsigned long long)said,
		     (unsigned long long)length);
	if (type == NBD_REPLY_TYPE_ERROR_OFFSET) {
		offset = get_be64(data + 6 + said);
		if (offset < p->cmd.offset || offset - p->cmd.offset > p->cmd.length)
			fail("%s: an error at %llu, outside the request", command_name(p->cmd.type),
			     (unsigned long long)offset);
	}
	p->answer.error = get_be32(data);
	snprintf(p->answer.text, sizeof p->answer.text, "%.*s", (int)said, data + 6);
}

static void
take_chunk(struct conn *c, struct pending *p, unsigned type, unsigned flags, uint64_t length)
{
	unsigned status = c->headers == EXTENDED ? NBD_REPLY_TYPE_BLOCK_STATUS_EXT
						 : NBD_REPLY_TYPE_BLOCK_STATUS;
	const char *what = command_name(p->cmd.type);
	uint8_t *data;

	if (length > p->cmd.length + (16u << 20) + 4096)
		fail("%s: a chunk of %llu bytes", what, (unsigned long long)length);
	data = allocate(length);
	take(c, data, length);

	if (type == NBD_REPLY_TYPE_NONE) {
		if (length != 0 || (flags & NBD_REPLY_FLAG_DONE) == 0)
			fail("%s: a NONE chunk with %llu bytes, flags %#x", what,
			     (unsigned long long)length, flags);
	} else if (type == NBD_REPLY_TYPE_OFFSET_DATA) {
		if (length < 9)
			fail("%s: OFFSET_DATA of %llu bytes", what, (unsigned long long)length);
		add_piece(p, get_be64(data), length - 8, data + 8);
	} else if (type == NBD_REPLY_TYPE_OFFSET_HOLE) {
		if (length != 12 || get_be32(data + 8) == 0)
			fail("%s: OFFSET_HOLE of %llu bytes", what, (unsigned long long)length);
		add_piece(p, get_be64(data), get_be32(data + 8), NULL);
	} else if (type == status) {
		take_extents(c, p, data, length);
	} else if (type & 1u << 15) {
		take_error(p, type, data, length);
	} else {
		fail("%s: a chunk of type %u", what, type);
	}
	free(data);
}

/* A reply is complete: whether it says all that it has to. */
static void
check_complete(const struct pending *p)
{
	uint64_t covered = 0;

	if (p->answer.error != NBD_SUCCESS)
		return;
	for (unsigned i = 0; i < p->answer.pieces; i++)
		covered += p->list[i].length;
	if (p->cmd.type == NBD_CMD_READ && covered != p->cmd.length)
		fail("READ of %llu bytes came to its end after %llu",
		     (unsigned long long)p->cmd.length, (unsigned long long)covered);
	if (p->cmd.type == NBD_CMD_BLOCK_STATUS && p->cmd.length > 0 && p->statuses != 1)
		fail("BLOCK_STATUS came to its end without a status");
}

struct answer
take_answer(struct conn *c)
{
	static const uint32_t magics[] = {
		[STRUCTURED] = NBD_STRUCTURED_REPLY_MAGIC, [EXTENDED] = NBD_EXTENDED_REPLY_MAGIC
	};

	doing("waiting for the reply to %s",
	      c->pending != NULL ? command_name(c->pending->cmd.type) : "nothing");
	for (;;) {
		uint32_t magic = (uint32_t)take_number(c, 4);
		struct pending *p;
		bool done = true;

		if (magic == NBD_SIMPLE_REPLY_MAGIC && c->headers != EXTENDED) {
			uint32_t error = (uint32_t)take_number(c, 4);

			p = find(c, take_number(c, 8));
			if (c->headers == STRUCTURED && p->cmd.type == NBD_CMD_READ)
				fail("a simple reply to READ, though structured ones were agreed "
				     "on");
			if (error != NBD_SUCCESS)
				check_error(p, error);
			p->answer.error = error;
			p->answer.simple = true;
			if (error == NBD_SUCCESS && p->cmd.type == NBD_CMD_READ &&
			    p->cmd.length > 0) {
				uint8_t *data = allocate(p->cmd.length);

				take(c, data, p->cmd.length);
				add_piece(p, p->cmd.offset, p->cmd.length, data);
				free(data);
			}
		} else if (c->headers != COMPACT && magic == magics[c->headers]) {
			unsigned flags = (unsigned)take_number(c, 2);
			unsigned type = (unsigned)take_number(c, 2);

			p = find(c, take_number(c, 8));
			if (flags & ~(unsigned)NBD_REPLY_FLAG_DONE)
				fail("a chunk with flags %#x", flags);
			if (c->headers == EXTENDED) {
				uint64_t offset = take_number(c, 8);

				if (offset != p->cmd.offset)
					fail("%s at %llu: the reply says offset %llu",
					     command_name(p->cmd.type),
					     (unsigned long long)p->cmd.offset,
					     (unsigned long long)offset);
			}
			take_chunk(c, p, type, flags,
				   take_number(c, c->headers == EXTENDED ? 8 : 4));
			done = flags & NBD_REPLY_FLAG_DONE;
		} else {
			fail("a reply begins with %#x", magic);
		}
		if (done) {
			unlink_pending(c, p);
			check_complete(p);
			return p->answer;
		}
	}
}

struct answer
call(struct conn *c, const struct command *cmd)
{
	uint64_t cookie = send_command(c, cmd);
	struct answer a = take_answer(c);

	assert(a.cookie == cookie); /* find() knew no other */
	return a;
}

uint32_t
call_error(struct conn *c, uint16_t type, uint16_t flags, uint64_t offset, uint64_t length)
{
	return call(c,
		    &(struct command){
			    .type = type, .flags = flags, .offset = offset, .length = length })
		.error;
}

/* ---- commands as such ------------------------------------------------------------ */

void
read_at(struct conn *c, uint64_t offset, uint64_t length, uint8_t *into)
{
	struct answer a =
		call(c,
		     &(struct command){ .type = NBD_CMD_READ, .offset = offset, .length = length });

	if (a.error != NBD_SUCCESS)
		fail("READ %llu+%llu: %s %s", (unsigned long long)offset,
		     (unsigned long long)length, error_name(a.error), a.text);
	memcpy(into, a.data, length);
	free(a.data);
}

uint32_t
write_at(struct conn *c, uint64_t offset, uint64_t length, const void *data, uint16_t flags)
{
	if (c->headers == EXTENDED)
		flags |= NBD_CMD_FLAG_PAYLOAD_LEN;
	return call(c, &(struct command){ .type = NBD_CMD_WRITE,
					  .flags = flags,
					  .offset = offset,
					  .length = length,
					  .payload = data,
					  .payload_length = length })
		.error;
}

struct answer
status_at(struct conn *c, uint64_t offset, uint64_t length, uint16_t flags)
{
	struct answer a = call(c, &(struct command){ .type = NBD_CMD_BLOCK_STATUS,
						     .flags = flags,
						     .offset = offset,
						     .length = length });

	if (a.error != NBD_SUCCESS)
		fail("BLOCK_STATUS %llu+%llu: %s %s", (unsigned long long)offset,
		     (unsigned long long)length, error_name(a.error), a.text);
	return a;
}

void
must_answer(struct conn *c, const char *after)
{
	uint32_t min = c->probe->found->min;
	struct answer a = call(c, &(struct command){ .type = NBD_CMD_READ, .length = min });

	if (c->size >= min && a.error != NBD_SUCCESS)
		fail("after %s READ ends with %s", after, error_name(a.error));
}

void
disconnect(struct conn *c)
{
	send_command(c, &(struct command){ .type = NBD_CMD_DISC });
}
