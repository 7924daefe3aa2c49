/*
 * handshake.c - whatever a client sends while haggling is answered as the protocol wants, the
 * same whether it comes at once or in pieces, and nothing is held when it is over.
 *
 * Input: a byte that says how the server is set up, one that says how large the pieces are,
 * then what the client sends.
 */
#include "nbd/handshake.h"
#include "catalog.h"
#include "clients.h"
#include "fuzz.h"
#include "worker.h"

#include <assert.h>
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

static struct worker worker;
static struct worker_settings settings;
static struct client *client;

static void
no_log(enum pl_log_level level, const char *line)
{
	(void)level;
	(void)line;
}

static struct pl_params *
params_of(const char *driver, const char *key, const char *value)
{
	struct pl_params *p = pl_params_new();

	assert(pl_params_add(p, "driver", driver, NULL) == 0);
	assert(pl_params_add(p, key, value, NULL) == 0);
	return p;
}

/* One export of each kind, and a client. */
static void
set_up(void)
{
	struct access_rules *rules;
	struct pl_params *null = params_of("null", "size", "1M");
	struct pl_params *gone = params_of("file", "path", "/nonexistent/image");
	struct offer_settings offers[] = {
		{ .name = "", .listed = true, .params = null },
		{ .name = "x", .access = ACCESS_EXCLUSIVE, .params = null },
		{ .name = "tls", .listed = true, .tls = TLS_REQUIRED, .params = null },
		{ .name = "gone", .listed = true, .description = "not there", .params = gone },
		{ .name = "no", .listed = true, .params = null },
	};
	unsigned count = sizeof offers / sizeof *offers, opened;
	struct clients *clients;
	int pair[2];

	pl_log_to(no_log);
	assert(access_rules_new(&rules, NULL, NULL, "somebody", NULL, NULL, NULL) == 0);
	offers[count - 1].rules = rules;
	assert(catalog_new(&settings.catalog, 1, NULL) == 0);
	assert(catalog_apply(settings.catalog, offers, count, &opened, NULL) == 0);
	assert(opened == count - 1);
	access_rules_free(rules);
	pl_params_free(null);
	pl_params_free(gone);
	assert(pl_loop_new_blocking(&worker.loop, NULL) == 0);
	worker.settings = &settings;

	assert(clients_new(&clients, NULL) == 0);
	assert(socketpair(AF_UNIX, SOCK_STREAM, 0, pair) == 0);
	assert(clients_admit(clients, pair[0], &client, NULL) == 0);
	close(pair[0]);
	close(pair[1]);
}

static void
count_connections(const struct offer_state *o, void *user)
{
	*(unsigned *)user += o->connections;
}

/* ---- a connection ---------------------------------------------------------------- */

struct talk {
	struct handshake h;
	struct peer peer;
	struct nbd_output out;
	enum handshake_step end; /* MORE: the client has no more to say */
	size_t tls_at;           /* bytes of out that were sent in plain text */
};

static enum handshake_step
open_export(struct talk *t)
{
	struct pl_error err = { 0 };
	int error = offer_open(t->h.offer, &err);

	assert(error == 0 || err.text[0] != '\0');
	return handshake_opened(&t->h, error, &err, &t->out);
}

static void
talk(struct talk *t, unsigned how, size_t piece, const uint8_t *data, size_t size)
{
	size_t at = 0, come = 0, used;
	enum handshake_step step = HANDSHAKE_MORE;

	*t = (struct talk){ .peer = { .kind = PEER_UNIX, .uid = 1 }, .tls_at = SIZE_MAX };
	t->h = (struct handshake){
		.worker = &worker, .client = client, .peer = &t->peer, .can_tls = (how & 4) != 0
	};
	assert(handshake_start(&t->h, &t->out) == 0);
	for (;;) {
		if (step == HANDSHAKE_MORE) {
			if (come == size)
				break;
			assert(come - at < NBD_HANDSHAKE_INPUT);
			come += piece < size - come ? piece : size - come;
			if (come - at > NBD_HANDSHAKE_INPUT)
				come = at + NBD_HANDSHAKE_INPUT;
		}
		if ((how & 16) != 0 && t->out.length > 200)
			handshake_shut_down(&t->h);
		step = handshake_step(&t->h, data + at, come - at, &used, &t->out);
		assert(used <= come - at);
		at += used;
		if (step == HANDSHAKE_OPEN)
			step = open_export(t);
		if (step == HANDSHAKE_TLS) {
			t->peer.tls = true;
			t->tls_at = t->out.length;
			handshake_secured(&t->h);
			step = HANDSHAKE_AGAIN;
		}
		if (step == HANDSHAKE_GO || step == HANDSHAKE_CLOSE)
			break;
	}
	t->end = step;
}

/* ---- what the client reads ------------------------------------------------------- */

/* A reply on its own; data is behind its header. */
static void
check_reply(uint32_t option, uint32_t type, const uint8_t *data, size_t length, bool tls)
{
	if (!tls && settings.tls == TLS_REQUIRED)
		assert(type == NBD_REP_ERR_TLS_REQD || type == NBD_REP_ERR_SHUTDOWN ||
		       option == NBD_OPT_STARTTLS || option == NBD_OPT_ABORT);
	if (type == NBD_REP_ERR_TLS_REQD)
		assert(!tls && (settings.tls == TLS_REQUIRED || option == NBD_OPT_INFO ||
				option == NBD_OPT_GO));
	if ((type & NBD_REP_ERROR) != 0) {
		assert(length > 0 && length <= NBD_STRING_MAX && memchr(data, 0, length) == NULL);
		return;
	}
	switch (type) {
	case NBD_REP_ACK: assert(length == 0); break;
	case NBD_REP_SERVER:
		assert(option == NBD_OPT_LIST && settings.may_list);
		assert(length >= 4 && get_be32(data) <= length - 4);
		break;
	case NBD_REP_INFO:
		assert((option == NBD_OPT_INFO || option == NBD_OPT_GO) && length >= 2);
		assert(get_be16(data) != NBD_INFO_EXPORT || length == 12);
		assert(get_be16(data) != NBD_INFO_BLOCK_SIZE || length == 14);
		assert(get_be16(data) <= NBD_INFO_BLOCK_SIZE);
		break;
	case NBD_REP_META_CONTEXT: assert(length == 4 + strlen(NBD_BASE_ALLOCATION)); break;
	default: assert(!"a type of reply that is none");
	}
}

/* All that was sent is a greeting and replies, then perhaps the answer to EXPORT_NAME. */
static void
check_output(const struct talk *t)
{
	const uint8_t *p = t->out.data + 18, *end = t->out.data + t->out.length;
	unsigned exports = 0; /* INFO_EXPORT since the last ACK */

	while (end - p >= 20 && get_be64(p) == NBD_OPT_REPLY_MAGIC) {
		uint32_t option = get_be32(p + 8), type = get_be32(p + 12);
		size_t length = get_be32(p + 16);
		bool tls = (size_t)(p - t->out.data) >= t->tls_at;

		p += 20;
		assert(length <= (size_t)(end - p));
		check_reply(option, type, p, length, tls);
		exports += type == NBD_REP_INFO && get_be16(p) == NBD_INFO_EXPORT;
		if (type == NBD_REP_ACK) {
			assert(exports == (option == NBD_OPT_INFO || option == NBD_OPT_GO));
			exports = 0;
		}
		p += length;
	}
	if (p < end) {
		assert(t->end == HANDSHAKE_GO && t->h.option == NBD_OPT_EXPORT_NAME);
		assert(end - p == 10 || end - p == 134);
	}
	if (t->end == HANDSHAKE_GO)
		assert(settings.tls != TLS_REQUIRED || t->peer.tls);
}

static void
hang_up(struct talk *t)
{
	handshake_end(&t->h);
	if (t->end == HANDSHAKE_GO)
		session_end(&t->h.session);
}

int
LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct talk whole, pieces;
	unsigned how, connections = 0;
	size_t piece;

	if (client == NULL)
		set_up();
	if (size < 2)
		return 0;
	how = data[0];
	piece = data[1] + 1u;
	settings.tls = (int)(how & 3) % 3;
	settings.may_list = (how & 8) != 0;

	talk(&whole, how, SIZE_MAX, data + 2, size - 2);
	check_output(&whole);
	hang_up(&whole);
	talk(&pieces, how, piece, data + 2, size - 2);
	hang_up(&pieces);
	catalog_each(settings.catalog, count_connections, &connections);
	assert(connections == 0);
	if ((how & 16) == 0) { /* else it matters when the server shuts down */
		assert(whole.end == pieces.end && whole.out.length == pieces.out.length);
		assert(memcmp(whole.out.data, pieces.out.data, whole.out.length) == 0);
	}
	nbd_output_free(&whole.out);
	nbd_output_free(&pieces.out);
	return 0;
}
