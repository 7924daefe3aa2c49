/*
 * chap.c - CHAP: who the initiator is, and who we are.
 *
 * The good path, RFC 7143 "Challenge Handshake Authentication Protocol (CHAP)":
 *
 *	initiator: CHAP_A=list                  target: CHAP_A, CHAP_I, CHAP_C
 *	initiator: CHAP_N, CHAP_R               target: (nothing)
 *	        or CHAP_N, CHAP_R, CHAP_I, CHAP_C       CHAP_N, CHAP_R
 *
 * What can go wrong:
 * - a wrong name, secret or response: all the same to the initiator, also in time.
 * - our own challenge comes back to us, so that we would answer it: refused; nor do answers of
 *   ours help on another connection, for the two directions have no secret in common.
 * - it knows a secret, and calls itself by the name of another initiator: refused, if the file has
 *   one for that.
 * - a file that others can read, or with secrets that can be guessed (RFC 7143, "CHAP
 *   Considerations": less than 96 bits): refused when it is read.
 */
#include "chap.h"

#include "sm.h"

#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <nettle/base64.h>
#include <nettle/md5.h>
#include <nettle/memops.h>
#include <nettle/nettle-meta.h>
#include <nettle/sha1.h>
#include <nettle/sha2.h>
#include <nettle/sha3.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <unistd.h>

#define SECRET_MIN    12
#define SECRET_MAX    255
#define CHALLENGE_MAX 1024 /* bytes of the initiator's */
#define FILE_MAX      (64 << 10)

struct secret {
	char name[CHAP_NAME_MAX + 1];
	uint8_t bytes[SECRET_MAX];
	size_t length;
};

struct chap_secrets {
	unsigned references; /* atomic */
	struct secret *in;
	unsigned in_count;
	struct secret out; /* length 0: none */
	/* Or those of several files, and none of its own. */
	struct chap_secrets **parts;
	unsigned part_count;
};

/* ---- bytes as text --------------------------------------------------------------- */

static int
hex_digit(char c)
{
	if (isdigit((unsigned char)c))
		return c - '0';
	return isxdigit((unsigned char)c) ? tolower((unsigned char)c) - 'a' + 10 : -1;
}

/* Returns the count of bytes, or -EINVAL: no hex, or more than fit. */
static ssize_t
hex_read(const char *text, uint8_t *to, size_t room)
{
	size_t digits = strlen(text), n = 0;

	if (digits / 2 + digits % 2 > room)
		return -EINVAL;
	for (size_t i = 0; i < digits; i++) {
		int digit = hex_digit(text[i]);

		if (digit < 0)
			return -EINVAL;
		if ((digits - i) % 2 == 0 || i == 0)
			to[n++] = (uint8_t)digit;
		else
			to[n - 1] = (uint8_t)(to[n - 1] << 4 | digit);
	}
	return (ssize_t)n;
}

#define BASE64_TEXT_MAX 2048

static ssize_t
base64_read(const char *text, uint8_t *to, size_t room)
{
	uint8_t bytes[BASE64_DECODE_LENGTH(BASE64_TEXT_MAX)];
	struct base64_decode_ctx ctx;
	size_t length = strlen(text), n = sizeof bytes;

	if (length > BASE64_TEXT_MAX)
		return -EINVAL;
	base64_decode_init(&ctx);
	if (!base64_decode_update(&ctx, &n, bytes, length, text) || !base64_decode_final(&ctx) ||
	    n > room)
		return -EINVAL;
	memcpy(to, bytes, n);
	return (ssize_t)n;
}

/* RFC 7143, "Text Format": binary-value. */
static ssize_t
binary_read(const char *text, uint8_t *to, size_t room)
{
	if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X'))
		return hex_read(text + 2, to, room);
	if (text[0] == '0' && (text[1] == 'b' || text[1] == 'B'))
		return base64_read(text + 2, to, room);
	return -EINVAL;
}

static void
add_binary(struct iscsi_text *out, const char *key, const uint8_t *bytes, size_t length)
{
	char text[2 + 2 * CHAP_CHALLENGE + 1] = "0x";

	assert(length <= CHAP_CHALLENGE);
	for (size_t i = 0; i < length; i++)
		snprintf(text + 2 + 2 * i, 3, "%02x", bytes[i]);
	iscsi_text_add(out, key, text);
}

/* ---- the file of secrets --------------------------------------------------------- */

struct reader {
	struct chap_secrets *secrets;
	const char *path;
	unsigned line;
	struct pl_error *err;
};

static int
wrong(const struct reader *r, const char *what)
{
	return pl_error_say(r->err, -EINVAL, "%s:%u: %s", r->path, r->line, what);
}

static int
read_secret(const struct reader *r, const char *name, const char *text, struct secret *s)
{
	ssize_t n;

	if (strlen(name) > CHAP_NAME_MAX)
		return wrong(r, "a name has 255 bytes at most");
	if (text[0] == '0' && (text[1] == 'x' || text[1] == 'X')) {
		n = hex_read(text + 2, s->bytes, sizeof s->bytes);
		if (n < 0)
			return wrong(r, "what is behind 0x has to be hex digits of 255 bytes "
					"at most");
	} else {
		n = (ssize_t)strlen(text);
		if (n > SECRET_MAX)
			return wrong(r, "a secret has 255 bytes at most");
		memcpy(s->bytes, text, (size_t)n);
	}
	if (n < SECRET_MIN)
		return wrong(r, "a secret has 12 bytes at least");
	strcpy(s->name, name);
	s->length = (size_t)n;
	return 0;
}

static int
add_in(struct reader *r, const char *name, const char *text)
{
	struct chap_secrets *secrets = r->secrets;
	struct secret *grown;

	for (unsigned i = 0; i < secrets->in_count; i++) {
		if (strcmp(secrets->in[i].name, name) == 0)
			return wrong(r, "this name is there already");
	}
	/* Not realloc(), which could leave secrets behind. */
	grown = calloc(secrets->in_count + 1, sizeof *grown);
	if (grown == NULL)
		return pl_error_set(r->err, -ENOMEM, "%s", r->path);
	if (secrets->in != NULL) {
		memcpy(grown, secrets->in, secrets->in_count * sizeof *grown);
		explicit_bzero(secrets->in, secrets->in_count * sizeof *grown);
		free(secrets->in);
	}
	secrets->in = grown;
	return read_secret(r, name, text, &grown[secrets->in_count++]);
}

static int
read_line(struct reader *r, char *line)
{
	char *words[4], *rest, *word = strtok_r(line, " \t\r", &rest);
	unsigned count = 0;

	for (; word != NULL && word[0] != '#'; word = strtok_r(NULL, " \t\r", &rest)) {
		if (count == 3)
			return wrong(r, "more words than in NAME SECRET or out NAME SECRET");
		words[count++] = word;
	}
	if (count == 0)
		return 0;
	if (count == 3 && strcmp(words[0], "in") == 0)
		return add_in(r, words[1], words[2]);
	if (count != 3 || strcmp(words[0], "out") != 0)
		return wrong(r, "a line is in NAME SECRET or out NAME SECRET");
	if (r->secrets->out.length != 0)
		return wrong(r, "there is an out already");
	return read_secret(r, words[1], words[2], &r->secrets->out);
}

static bool
same_secret(const struct secret *a, const struct secret *b)
{
	return a->length == b->length && memeql_sec(a->bytes, b->bytes, a->length);
}

static int
read_lines(struct reader *r, char *text)
{
	int error = 0;
	char *end;

	for (r->line = 1; error == 0 && *text != '\0'; r->line++, text = end) {
		end = strchrnul(text, '\n');
		if (*end != '\0')
			*end++ = '\0';
		error = read_line(r, text);
	}
	if (error != 0)
		return error;
	if (r->secrets->in_count == 0)
		return pl_error_say(r->err, -EINVAL, "%s: no line in NAME SECRET", r->path);
	for (unsigned i = 0; i < r->secrets->in_count; i++) {
		if (same_secret(&r->secrets->in[i], &r->secrets->out))
			return pl_error_say(r->err, -EINVAL,
					    "%s: the secret of in %s is that of out, too; the two "
					    "directions must not share one",
					    r->path, r->secrets->in[i].name);
	}
	return 0;
}

static int
check_file(const char *path, int fd, struct pl_error *err)
{
	struct stat st;

	if (fstat(fd, &st) == -1)
		return pl_error_set(err, -errno, "%s: stat", path);
	if (!S_ISREG(st.st_mode))
		return pl_error_say(err, -EINVAL, "%s: not a file", path);
	if ((st.st_mode & 066) != 0)
		return pl_error_say(err, -EINVAL,
				    "%s: others than its owner may read or write these secrets "
				    "(mode %04o; chmod 600 makes them private)",
				    path, (unsigned)st.st_mode & 07777);
	return 0;
}

/* text has room for one byte more. */
static int
read_text(const char *path, char *text, size_t room, struct pl_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	size_t length = 0;
	ssize_t n = 1;
	int error;

	if (fd == -1)
		return pl_error_set(err, -errno, "%s: open", path);
	error = check_file(path, fd, err);
	while (error == 0 && n > 0 && length < room) {
		n = read(fd, text + length, room - length);
		if (n == -1)
			error = pl_error_set(err, -errno, "%s: read", path);
		else
			length += (size_t)n;
	}
	close(fd);
	if (error != 0)
		return error;
	text[length] = '\0';
	if (length == room)
		return pl_error_say(err, -EINVAL, "%s: more than %u bytes", path, FILE_MAX);
	if (strlen(text) != length)
		return pl_error_say(err, -EINVAL, "%s: a NUL is in it", path);
	return 0;
}

int
chap_secrets_read(struct chap_secrets **secrets, const char *path, struct pl_error *err)
{
	struct reader r = { .path = path, .err = err, .secrets = calloc(1, sizeof *r.secrets) };
	char *text = malloc(FILE_MAX + 2);
	int error;

	if (r.secrets == NULL || text == NULL) {
		free(text);
		free(r.secrets);
		return pl_error_set(err, -ENOMEM, "%s", path);
	}
	r.secrets->references = 1;
	error = read_text(path, text, FILE_MAX + 1, err);
	if (error == 0)
		error = read_lines(&r, text);
	explicit_bzero(text, FILE_MAX + 2);
	free(text);
	if (error != 0) {
		chap_secrets_put(r.secrets);
		return error;
	}
	*secrets = r.secrets;
	return 0;
}

struct chap_secrets *
chap_secrets_get(struct chap_secrets *secrets)
{
	__atomic_fetch_add(&secrets->references, 1, __ATOMIC_RELAXED);
	return secrets;
}

void
chap_secrets_put(struct chap_secrets *secrets)
{
	if (secrets == NULL || __atomic_sub_fetch(&secrets->references, 1, __ATOMIC_ACQ_REL) > 0)
		return;
	if (secrets->in != NULL)
		explicit_bzero(secrets->in, secrets->in_count * sizeof *secrets->in);
	free(secrets->in);
	for (unsigned i = 0; i < secrets->part_count; i++)
		chap_secrets_put(secrets->parts[i]);
	free(secrets->parts);
	explicit_bzero(secrets, sizeof *secrets);
	free(secrets);
}

int
chap_secrets_join(struct chap_secrets **all, struct chap_secrets *more)
{
	struct chap_secrets *joined = *all, **parts;

	if (*all == NULL) {
		*all = chap_secrets_get(more);
		return 0;
	}
	if (joined->part_count == 0) {
		joined = calloc(1, sizeof *joined);
		if (joined == NULL)
			return -ENOMEM;
		joined->references = 1;
	}
	parts = realloc(joined->parts, (joined->part_count + 2) * sizeof(struct chap_secrets *));
	if (parts == NULL) {
		if (joined != *all)
			chap_secrets_put(joined);
		return -ENOMEM;
	}
	joined->parts = parts;
	if (joined != *all)
		parts[joined->part_count++] = *all;
	parts[joined->part_count++] = chap_secrets_get(more);
	*all = joined;
	return 0;
}

static const struct secret *
find_in(const struct chap_secrets *secrets, const char *name)
{
	for (unsigned i = 0; i < secrets->in_count; i++) {
		if (strcmp(secrets->in[i].name, name) == 0)
			return &secrets->in[i];
	}
	return NULL;
}

/* A name of CHAP's that is an initiator's is that initiator's alone. */
static bool
may_be(const struct chap_secrets *secrets, const char *name, const char *initiator)
{
	char other[ISCSI_NAME_MAX + 1];

	if (strlen(name) <= ISCSI_NAME_MAX && iscsi_name_read(name, other))
		return strcmp(other, initiator) == 0;
	for (unsigned i = 0; i < secrets->in_count; i++) {
		if (strlen(secrets->in[i].name) <= ISCSI_NAME_MAX &&
		    iscsi_name_read(secrets->in[i].name, other) && strcmp(other, initiator) == 0)
			return false;
	}
	return true;
}

bool
chap_secrets_admit(const struct chap_secrets *secrets, const struct chap_secrets *known,
		   const char *initiator)
{
	const struct secret *secret;

	if (secrets == NULL)
		return true;
	if (known == NULL)
		return false;
	secret = find_in(secrets, known->in->name);
	return secret != NULL && same_secret(secret, known->in) &&
	       may_be(secrets, secret->name, initiator);
}

bool
chap_secrets_share(const struct chap_secrets *a, const struct chap_secrets *b)
{
	for (unsigned i = 0; i < a->in_count; i++) {
		if (same_secret(&a->in[i], &b->out))
			return true;
	}
	for (unsigned i = 0; i < b->in_count; i++) {
		if (same_secret(&b->in[i], &a->out))
			return true;
	}
	return false;
}

/* ---- hashes ---------------------------------------------------------------------- */

struct chap_algorithm {
	const char *name; /* a number, as CHAP_A has it */
	const struct nettle_hash *hash;
};

static const struct chap_algorithm algorithms[] = {
	{ "5", &nettle_md5 },
	{ "6", &nettle_sha1 },
	{ "7", &nettle_sha256 },
	{ "8", &nettle_sha3_256 },
};
#define ALGORITHMS (sizeof algorithms / sizeof *algorithms)
#define HASH_MAX   SHA256_DIGEST_SIZE

/* RFC 1994, "Response": of the identifier, the secret and the challenge. */
static void
respond(const struct chap_algorithm *a, uint8_t identifier, const struct secret *secret,
	const uint8_t *challenge, size_t length, uint8_t response[HASH_MAX])
{
	union {
		struct md5_ctx md5;
		struct sha1_ctx sha1;
		struct sha256_ctx sha256;
		struct sha3_256_ctx sha3;
	} ctx;

	assert(a->hash->context_size <= sizeof ctx && a->hash->digest_size <= HASH_MAX);
	a->hash->init(&ctx);
	a->hash->update(&ctx, 1, &identifier);
	a->hash->update(&ctx, secret->length, secret->bytes);
	a->hash->update(&ctx, length, challenge);
	a->hash->digest(&ctx, a->hash->digest_size, response);
	explicit_bzero(&ctx, sizeof ctx);
}

/* ---- the exchange ---------------------------------------------------------------- */

enum { AT_START, AT_CHALLENGED, AT_END };
#define TO(state) (1u << AT_##state)

static const struct pl_sm_state states[] = {
	[AT_START] = { "start", TO(CHALLENGED) },
	[AT_CHALLENGED] = { "challenged", TO(END) },
	[AT_END] = { "end", 0 },
};

static const struct chap_algorithm *
choose_algorithm(const char *list)
{
	char name[4];

	/* The initiator's first that is one of ours. */
	for (size_t length; *list != '\0'; list += length + (list[length] == ',')) {
		length = strcspn(list, ",");
		if (length >= sizeof name)
			continue;
		memcpy(name, list, length);
		name[length] = '\0';
		for (size_t i = 0; i < ALGORITHMS; i++) {
			if (strcmp(algorithms[i].name, name) == 0)
				return &algorithms[i];
		}
	}
	return NULL;
}

static int
challenge(struct chap *chap, const struct chap_keys *keys, struct iscsi_text *out)
{
	uint8_t random[1 + CHAP_CHALLENGE];
	char identifier[4];

	if (keys->algorithms == NULL || keys->name != NULL || keys->response != NULL ||
	    keys->identifier != NULL || keys->challenge != NULL)
		return -EPROTO;
	chap->algorithm = choose_algorithm(keys->algorithms);
	if (chap->algorithm == NULL || getrandom(random, sizeof random, 0) != sizeof random)
		return -EACCES;
	chap->identifier = random[0];
	memcpy(chap->challenge, random + 1, CHAP_CHALLENGE);
	snprintf(identifier, sizeof identifier, "%u", chap->identifier);
	iscsi_text_add(out, "CHAP_A", chap->algorithm->name);
	iscsi_text_add(out, "CHAP_I", identifier);
	add_binary(out, "CHAP_C", chap->challenge, CHAP_CHALLENGE);
	pl_sm_move(states, &chap->state, AT_CHALLENGED);
	return 0;
}

/* The one that somebody of that name has shown to know, among those of one file; or NULL. */
static const struct secret *
secret_known(const struct chap *chap, const struct chap_secrets *of, const char *name,
	     const char *response)
{
	/* For names that are not there, so that they take as long. */
	static const struct secret nobody = { .length = SECRET_MIN };
	const struct secret *found = find_in(of, name), *secret = found != NULL ? found : &nobody;
	size_t length = chap->algorithm->hash->digest_size;
	uint8_t theirs[HASH_MAX] = { 0 }, right[HASH_MAX];
	bool knows = binary_read(response, theirs, length) == (ssize_t)length;

	respond(chap->algorithm, chap->identifier, secret, chap->challenge, CHAP_CHALLENGE, right);
	knows = memeql_sec(theirs, right, length) && knows;
	explicit_bzero(right, sizeof right);
	return knows ? found : NULL;
}

/* *of: the file in which it stands. Returns 0, or a negative errno. */
static int
find_known(struct chap *chap, const struct chap_keys *keys, const struct chap_secrets **of)
{
	const struct chap_secrets *all = chap->secrets;
	const struct secret *known = NULL, *one;

	for (unsigned i = 0; i < (all->part_count > 0 ? all->part_count : 1); i++) {
		const struct chap_secrets *part = all->part_count > 0 ? all->parts[i] : all;

		one = secret_known(chap, part, keys->name, keys->response);
		if (known == NULL && one != NULL) {
			known = one;
			*of = part;
		}
	}
	if (known == NULL)
		return -EACCES;
	chap->known = calloc(1, sizeof *chap->known);
	if (chap->known == NULL)
		return -ENOMEM;
	chap->known->references = 1;
	chap->known->in = calloc(1, sizeof *known);
	if (chap->known->in == NULL)
		return -ENOMEM;
	chap->known->in[0] = *known;
	chap->known->in_count = 1;
	return 0;
}

/* The initiator asks who we are. */
static int
prove(const struct chap *chap, const struct chap_secrets *of, const struct chap_keys *keys,
      struct iscsi_text *out)
{
	const struct secret *secret = &of->out;
	uint8_t theirs[CHALLENGE_MAX], response[HASH_MAX];
	ssize_t length = binary_read(keys->challenge, theirs, sizeof theirs);
	uint64_t identifier;

	if (secret->length == 0 || length < 1 ||
	    !iscsi_number_read(keys->identifier, &identifier) || identifier > UINT8_MAX)
		return -EACCES;
	if (length == CHAP_CHALLENGE && memcmp(theirs, chap->challenge, CHAP_CHALLENGE) == 0)
		return -EACCES;
	respond(chap->algorithm, (uint8_t)identifier, secret, theirs, (size_t)length, response);
	iscsi_text_add(out, "CHAP_N", secret->name);
	add_binary(out, "CHAP_R", response, chap->algorithm->hash->digest_size);
	return 0;
}

static int
check(struct chap *chap, const struct chap_keys *keys, struct iscsi_text *out)
{
	bool mutual = keys->challenge != NULL;
	const struct chap_secrets *of;
	int error;

	if (keys->algorithms != NULL || keys->name == NULL || keys->response == NULL ||
	    mutual != (keys->identifier != NULL))
		return -EPROTO;
	if (strlen(keys->name) >= sizeof chap->name)
		return -EACCES;
	strcpy(chap->name, keys->name);
	error = find_known(chap, keys, &of);
	if (error == 0 && mutual)
		error = prove(chap, of, keys, out);
	if (error != 0)
		return error;
	pl_sm_move(states, &chap->state, AT_END);
	chap->done = true;
	return 0;
}

int
chap_step(struct chap *chap, const struct chap_keys *keys, struct iscsi_text *out)
{
	switch (chap->state) {
	case AT_START: return challenge(chap, keys, out);
	case AT_CHALLENGED: return check(chap, keys, out);
	default: return -EPROTO;
	}
}

void
chap_end(struct chap *chap)
{
	chap_secrets_put(chap->secrets);
	chap_secrets_put(chap->known);
	explicit_bzero(chap, sizeof *chap);
}
