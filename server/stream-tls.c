/*
 * stream-tls.c - TLS on a stream, and credentials.
 *
 * The good path: the session works on memory. What the socket brings goes into `in`, up to
 * 64 KiB with one receive, and GnuTLS pulls its records from there; records that it pushes
 * gather in `out`, several of them for one send. A call works off what is there and returns;
 * only when there is nothing to work on does it wait, for one receive or one send at most.
 *
 * What can go wrong: the handshake fails (logged once, the peer gets an alert as far as that
 * goes without waiting); the peer breaks the protocol later (the same, and the direction is
 * over for good); it ends without a close_notify (-EPROTO, for nobody knows what was cut
 * off); it asks for new keys or sends empty records for ever (each receive's worth of them
 * is worked off and no more, and GnuTLS has limits); it asks for a new handshake (refused).
 */
#include "stream-tls.h"

#include "peer.h"
#include "sm.h"
#include "stream.h"

#include <arpa/inet.h>
#include <assert.h>
#include <ctype.h>
#include <errno.h>
#include <fcntl.h>
#include <gnutls/crypto.h>
#include <gnutls/gnutls.h>
#include <gnutls/x509.h>
#include <linux/tls.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#define TLS_IN       (64u << 10)        /* bytes received at a time */
#define TLS_RECORD   (16u << 10)        /* the largest record's data, */
#define TLS_WIRE     (TLS_RECORD + 512) /* and room for it, and for a change of keys */
#define TLS_OUT      (4 * TLS_WIRE)
#define TLS_WARNINGS 8          /* harmless alerts from one peer */
#define TLS_FILE_MAX (1u << 20) /* bytes of a file with certificates or keys */
#define PSK_KEY_MIN  16         /* bytes of a pre-shared key */

/* Only what is neither old nor slow: authenticated encryption, forward secrecy. */
#define TLS_PRIORITY \
	"NORMAL:-VERS-ALL:+VERS-TLS1.3:+VERS-TLS1.2:-CIPHER-ALL:+AES-128-GCM:+AES-256-GCM:" \
	"+CHACHA20-POLY1305:-MAC-ALL:+AEAD:%SERVER_PRECEDENCE:-KX-ALL:"
#define TLS_PRIORITY_X509 TLS_PRIORITY "+ECDHE-ECDSA:+ECDHE-RSA"
#define TLS_PRIORITY_PSK  TLS_PRIORITY "+ECDHE-PSK:+DHE-PSK"

struct psk {
	char *user;
	gnutls_datum_t key;
};

struct psk_list {
	struct psk *list;
	unsigned count;
};

struct tls_credentials {
	unsigned references; /* atomic */
	gnutls_priority_t priority;
	gnutls_certificate_credentials_t x509; /* or, */
	gnutls_psk_server_credentials_t psk;
	struct psk_list psks;
	gnutls_certificate_request_t ask; /* clients for a certificate */
};

/* ---- files ----------------------------------------------------------------------- */

static void
data_free(gnutls_datum_t *d)
{
	if (d->data != NULL)
		explicit_bzero(d->data, d->size);
	free(d->data);
	*d = (gnutls_datum_t){ NULL, 0 };
}

static int
file_check(const char *path, const struct stat *st, bool secret, struct pl_error *err)
{
	if (!S_ISREG(st->st_mode))
		return pl_error_say(err, -EINVAL, "%s: not a file", path);
	if (st->st_size > TLS_FILE_MAX)
		return pl_error_say(err, -EINVAL, "%s: %lld bytes are too many for such a file",
				    path, (long long)st->st_size);
	if (secret && (st->st_mode & 066) != 0)
		return pl_error_say(err, -EINVAL,
				    "%s: others than its owner may read or write this secret "
				    "(mode %04o; chmod 600 makes it private)",
				    path, (unsigned)st->st_mode & 07777);
	return 0;
}

/* The whole file, and a NUL behind it. data_free() it. */
static int
file_read(const char *path, bool secret, gnutls_datum_t *out, struct pl_error *err)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC | O_NOCTTY | O_NONBLOCK);
	gnutls_datum_t d = { NULL, 0 };
	struct stat st;
	ssize_t n = 1;
	int error;

	if (fd == -1)
		return pl_error_set(err, -errno, "%s: open", path);
	error = fstat(fd, &st) == 0 ? file_check(path, &st, secret, err)
				    : pl_error_set(err, -errno, "%s: stat", path);
	if (error == 0 && (d.data = malloc((size_t)st.st_size + 1)) == NULL)
		error = pl_error_set(err, -ENOMEM, "%s", path);
	while (error == 0 && n > 0 && d.size < st.st_size) {
		n = read(fd, d.data + d.size, (size_t)st.st_size - d.size);
		if (n == -1)
			error = pl_error_set(err, -errno, "%s: read", path);
		else
			d.size += (unsigned)n;
	}
	close(fd);
	if (error != 0) {
		data_free(&d);
		return error;
	}
	d.data[d.size] = '\0';
	*out = d;
	return 0;
}

static int
bad_file(const char *path, int code, struct pl_error *err)
{
	return pl_error_say(err, -EINVAL, "%s: %s", path, gnutls_strerror(code));
}

/* ---- certificates ---------------------------------------------------------------- */

/* The files in a directory of certificates, named as other NBD programs name them. */
struct cert_names {
	const char *cert, *key;
};
static const struct cert_names server_names = { "server-cert.pem", "server-key.pem" };
static const struct cert_names client_names = { "client-cert.pem", "client-key.pem" };

static char *
path_in(const char *dir, const char *name)
{
	char *path;

	return asprintf(&path, "%s/%s", dir, name) == -1 ? NULL : path;
}

/* A file that is there but cannot be had, or a link to nowhere, counts: reading it then fails. Were
 * it passed over, who was revoked would come in. */
static bool
exists_in(const char *dir, const char *name)
{
	char *path = path_in(dir, name);
	struct stat st;
	bool there = path == NULL || lstat(path, &st) == 0 || errno != ENOENT;

	free(path);
	return there;
}

static void
date_warn(const char *path, const char *what, time_t when)
{
	char date[64] = "?";
	struct tm tm;

	if (gmtime_r(&when, &tm) != NULL)
		strftime(date, sizeof date, "%Y-%m-%d %H:%M:%S UTC", &tm);
	log_warn("%s: %s %s", path, what, date);
}

static void
cert_check_dates(const char *path, gnutls_x509_crt_t cert)
{
	time_t now = time(NULL);

	if (gnutls_x509_crt_get_expiration_time(cert) < now)
		date_warn(path, "the certificate has expired on",
			  gnutls_x509_crt_get_expiration_time(cert));
	if (gnutls_x509_crt_get_activation_time(cert) > now)
		date_warn(path, "the certificate is not valid before",
			  gnutls_x509_crt_get_activation_time(cert));
}

/* The certificates in a file; certs_free() them. */
static int
certs_import(const char *path, const gnutls_datum_t *pem, gnutls_x509_crt_t **list, unsigned *count,
	     struct pl_error *err)
{
	int code = gnutls_x509_crt_list_import2(list, count, pem, GNUTLS_X509_FMT_PEM, 0);

	if (code < 0)
		return bad_file(path, code, err);
	for (unsigned i = 0; i < *count; i++)
		cert_check_dates(path, (*list)[i]);
	return 0;
}

static void
certs_free(gnutls_x509_crt_t *list, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		gnutls_x509_crt_deinit(list[i]);
	gnutls_free(list);
}

/* Our own certificate and its key. */
static int
x509_load_own(gnutls_certificate_credentials_t x509, const char *dir,
	      const struct cert_names *names, struct pl_error *err)
{
	char *cert_path = path_in(dir, names->cert), *key_path = path_in(dir, names->key);
	gnutls_datum_t cert = { NULL, 0 }, key = { NULL, 0 };
	gnutls_x509_crt_t *list = NULL;
	unsigned count = 0;
	int code, error;

	if (cert_path == NULL || key_path == NULL) {
		error = pl_error_set(err, -ENOMEM, "%s", dir);
		goto out;
	}
	error = file_read(cert_path, false, &cert, err);
	if (error == 0)
		error = file_read(key_path, true, &key, err);
	if (error == 0)
		error = certs_import(cert_path, &cert, &list, &count, err);
	if (error != 0)
		goto out;
	code = gnutls_certificate_set_x509_key_mem2(x509, &cert, &key, GNUTLS_X509_FMT_PEM, NULL,
						    0);
	if (code < 0)
		error = bad_file(key_path, code, err);
out:
	certs_free(list, count);
	data_free(&cert);
	data_free(&key);
	free(cert_path);
	free(key_path);
	return error;
}

/* A list of the revoked that nobody here has signed would not be looked at: an error. */
static int
crl_check(const char *path, gnutls_x509_crl_t crl, const gnutls_x509_crt_t *ca, unsigned cas,
	  struct pl_error *err)
{
	time_t next = gnutls_x509_crl_get_next_update(crl);
	unsigned status = 0;
	int code = gnutls_x509_crl_verify(crl, ca, cas, 0, &status);

	if (code < 0)
		return bad_file(path, code, err);
	if (status & (GNUTLS_CERT_SIGNER_NOT_FOUND | GNUTLS_CERT_SIGNATURE_FAILURE))
		return pl_error_say(err, -EINVAL, "%s: not signed by ca-cert.pem beside it", path);
	if (next != (time_t)-1 && next < time(NULL))
		date_warn(path, "all clients will be refused: the next list was due on", next);
	return 0;
}

static int
x509_load_crl(gnutls_certificate_credentials_t x509, const char *dir, const gnutls_x509_crt_t *ca,
	      unsigned cas, struct pl_error *err)
{
	char *path = path_in(dir, "ca-crl.pem");
	gnutls_datum_t pem = { NULL, 0 };
	gnutls_x509_crl_t *list = NULL;
	unsigned count = 0;
	int code, error;

	if (path == NULL)
		return pl_error_set(err, -ENOMEM, "%s", dir);
	error = file_read(path, false, &pem, err);
	if (error != 0)
		goto out;
	code = gnutls_x509_crl_list_import2(&list, &count, &pem, GNUTLS_X509_FMT_PEM, 0);
	if (code < 0)
		error = bad_file(path, code, err);
	for (unsigned i = 0; i < count && error == 0; i++)
		error = crl_check(path, list[i], ca, cas, err);
	if (error != 0)
		goto out;
	code = gnutls_certificate_set_x509_crl(x509, list, (int)count);
	if (code < 0)
		error = bad_file(path, code, err);
out:
	for (unsigned i = 0; i < count; i++)
		gnutls_x509_crl_deinit(list[i]);
	gnutls_free(list);
	data_free(&pem);
	free(path);
	return error;
}

/* Whom we trust, and whom no longer. */
static int
x509_load_trust(gnutls_certificate_credentials_t x509, const char *dir, struct pl_error *err)
{
	char *path = path_in(dir, "ca-cert.pem");
	gnutls_datum_t pem = { NULL, 0 };
	gnutls_x509_crt_t *list = NULL;
	unsigned count = 0;
	int code, error;

	if (path == NULL)
		return pl_error_set(err, -ENOMEM, "%s", dir);
	error = file_read(path, false, &pem, err);
	if (error == 0)
		error = certs_import(path, &pem, &list, &count, err);
	if (error != 0)
		goto out;
	code = gnutls_certificate_set_x509_trust(x509, list, (int)count);
	if (code < 0)
		error = bad_file(path, code, err);
	else if (exists_in(dir, "ca-crl.pem"))
		error = x509_load_crl(x509, dir, list, count, err);
out:
	certs_free(list, count);
	data_free(&pem);
	free(path);
	return error;
}

/* ---- pre-shared keys ------------------------------------------------------------- */

static void
psks_free(struct psk_list *psks)
{
	for (unsigned i = 0; i < psks->count; i++) {
		free(psks->list[i].user);
		data_free(&psks->list[i].key);
	}
	free(psks->list);
	*psks = (struct psk_list){ 0 };
}

/* The whole list is gone through, so that time does not tell where a name is in it. */
static const struct psk *
psks_find(const struct psk_list *psks, const void *user, size_t length)
{
	const struct psk *found = NULL;

	for (unsigned i = 0; i < psks->count; i++)
		if (strlen(psks->list[i].user) == length &&
		    memcmp(psks->list[i].user, user, length) == 0)
			found = &psks->list[i];
	return found;
}

/* Two digits a byte; -1: it is something else. */
static int
hex_decode(const char *text, gnutls_datum_t *out)
{
	size_t length = strlen(text);

	if (length % 2 != 0 || strspn(text, "0123456789abcdefABCDEF") != length)
		return -1;
	out->data = malloc(length / 2 + 1);
	if (out->data == NULL)
		return -1;
	out->size = (unsigned)(length / 2);
	for (unsigned i = 0; i < out->size; i++) {
		char digits[3] = { text[2 * i], text[2 * i + 1] };

		out->data[i] = (unsigned char)strtoul(digits, NULL, 16);
	}
	return 0;
}

/* Names that would not go into a line are written as # and digits. In place; false: there is a NUL
 * in it, which no identity here has. */
static bool
psk_user_decode(char *user)
{
	gnutls_datum_t name = { NULL, 0 };
	bool good;

	if (user[0] != '#' || user[1] == '\0' || hex_decode(user + 1, &name) != 0)
		return true;
	good = memchr(name.data, '\0', name.size) == NULL;
	memcpy(user, name.data, name.size);
	user[name.size] = '\0';
	data_free(&name);
	return good;
}

/* One line, USER:HEX, without its end. Its secret part must not get into a message. */
static int
psks_add(struct psk_list *psks, char *line, const char *path, unsigned number, struct pl_error *err)
{
	char *colon = strchr(line, ':');
	struct psk *list, *psk;

	if (colon != NULL)
		*colon = '\0';
	if (colon == NULL || colon == line || !psk_user_decode(line))
		return pl_error_say(err, -EINVAL, "%s:%u: not USER:HEXKEY", path, number);
	if (psks_find(psks, line, strlen(line)) != NULL)
		return pl_error_say(err, -EINVAL, "%s:%u: a second key for %s", path, number, line);
	list = reallocarray(psks->list, psks->count + 1, sizeof *list);
	if (list == NULL)
		return pl_error_set(err, -ENOMEM, "%s", path);
	psks->list = list;
	psk = &list[psks->count];
	*psk = (struct psk){ .user = strdup(line) };
	if (psk->user == NULL)
		return pl_error_set(err, -ENOMEM, "%s", path);
	psks->count++;
	if (hex_decode(colon + 1, &psk->key) != 0)
		return pl_error_say(err, -EINVAL, "%s:%u: the key of %s is not in hexadecimal",
				    path, number, line);
	if (psk->key.size < PSK_KEY_MIN)
		return pl_error_say(err, -EINVAL,
				    "%s:%u: the key of %s has %u bytes; at least %u are needed",
				    path, number, line, psk->key.size, PSK_KEY_MIN);
	return 0;
}

/* Lines of USER:HEX, as psktool(1) writes them; an editor's CR before the end is allowed. */
static int
psks_load(struct psk_list *psks, const char *path, struct pl_error *err)
{
	gnutls_datum_t text;
	unsigned number = 0;
	char *next, *line;
	int error = file_read(path, true, &text, err);

	if (error != 0)
		return error;
	next = (char *)text.data;
	while (error == 0 && (line = strsep(&next, "\n")) != NULL) {
		number++;
		line[strcspn(line, "\r")] = '\0';
		if (*line != '\0')
			error = psks_add(psks, line, path, number, err);
	}
	data_free(&text);
	if (error == 0 && psks->count == 0)
		error = pl_error_say(err, -EINVAL, "%s: no keys in it", path);
	if (error != 0)
		psks_free(psks);
	return error;
}

/* ---- credentials of a server ----------------------------------------------------- */

static int tls_verify_client(gnutls_session_t session);
static int tls_find_psk(gnutls_session_t session, const gnutls_datum_t *user, gnutls_datum_t *key);

static int
credentials_load_x509(struct tls_credentials *c, const struct tls_settings *settings,
		      struct pl_error *err)
{
	const char *dir = settings->certificates;
	bool trust = exists_in(dir, "ca-cert.pem") || exists_in(dir, "ca-crl.pem");
	int error;

	if (gnutls_certificate_allocate_credentials(&c->x509) < 0)
		return pl_error_set(err, -ENOMEM, "%s", dir);
	gnutls_certificate_set_verify_function(c->x509, tls_verify_client);
	error = x509_load_own(c->x509, dir, &server_names, err);
	if (error == 0 && (trust || settings->verify_peer))
		error = x509_load_trust(c->x509, dir, err);
	if (settings->verify_peer)
		c->ask = GNUTLS_CERT_REQUIRE;
	else if (trust)
		c->ask = GNUTLS_CERT_REQUEST;
	else
		c->ask = GNUTLS_CERT_IGNORE;
	return error;
}

static int
credentials_load_psk(struct tls_credentials *c, const struct tls_settings *settings,
		     struct pl_error *err)
{
	int error = psks_load(&c->psks, settings->psk, err);

	if (error != 0)
		return error;
	if (gnutls_psk_allocate_server_credentials(&c->psk) < 0)
		return pl_error_set(err, -ENOMEM, "%s", settings->psk);
	gnutls_psk_set_server_credentials_function2(c->psk, tls_find_psk);
	gnutls_psk_set_server_known_dh_params(c->psk, GNUTLS_SEC_PARAM_MEDIUM);
	return 0;
}

static int
settings_check(const struct tls_settings *settings, struct pl_error *err)
{
	if (settings->certificates != NULL && settings->psk != NULL)
		return pl_error_say(err, -EINVAL,
				    "TLS: certificates (%s) and pre-shared keys (%s) do not go "
				    "together; choose one",
				    settings->certificates, settings->psk);
	if (settings->psk != NULL && settings->verify_peer)
		return pl_error_say(err, -EINVAL,
				    "TLS: with pre-shared keys (%s) there are no certificates of "
				    "clients to verify",
				    settings->psk);
	return 0;
}

static void
credentials_free(struct tls_credentials *c)
{
	if (c->x509 != NULL)
		gnutls_certificate_free_credentials(c->x509);
	if (c->psk != NULL)
		gnutls_psk_free_server_credentials(c->psk);
	psks_free(&c->psks);
	if (c->priority != NULL)
		gnutls_priority_deinit(c->priority);
	free(c);
}

int
tls_credentials_new(struct tls_credentials **credentials, const struct tls_settings *settings,
		    struct pl_error *err)
{
	struct tls_credentials *c;
	int error = settings_check(settings, err);

	if (error != 0)
		return error;
	if (settings->certificates == NULL && settings->psk == NULL)
		return pl_error_say(err, -EINVAL,
				    "TLS: neither certificates nor pre-shared keys are given");
	c = calloc(1, sizeof *c);
	if (c == NULL)
		return pl_error_set(err, -ENOMEM, "TLS");
	c->references = 1;
	error = settings->psk != NULL ? credentials_load_psk(c, settings, err)
				      : credentials_load_x509(c, settings, err);
	if (error == 0 &&
	    gnutls_priority_init(&c->priority,
				 c->psk != NULL ? TLS_PRIORITY_PSK : TLS_PRIORITY_X509, NULL) < 0)
		error = pl_error_set(err, -ENOMEM, "TLS: priorities");
	if (error != 0) {
		credentials_free(c);
		return error;
	}
	*credentials = c;
	return 0;
}

struct tls_credentials *
tls_credentials_get(struct tls_credentials *credentials)
{
	__atomic_fetch_add(&credentials->references, 1, __ATOMIC_RELAXED);
	return credentials;
}

void
tls_credentials_put(struct tls_credentials *credentials)
{
	if (credentials != NULL &&
	    __atomic_sub_fetch(&credentials->references, 1, __ATOMIC_ACQ_REL) == 0)
		credentials_free(credentials);
}

/* ---- a session ------------------------------------------------------------------- */

enum {
	TLS_SHAKING,  /* hands */
	TLS_SETTLING, /* done; our last words go out */
	TLS_OPEN,
	TLS_OVER, /* failed, or ended by ourselves */
};
static const struct pl_sm_state tls_states[] = {
	[TLS_SHAKING] = { "shaking hands", 1u << TLS_SETTLING | 1u << TLS_OVER },
	[TLS_SETTLING] = { "settling", 1u << TLS_OPEN | 1u << TLS_OVER },
	[TLS_OPEN] = { "open", 1u << TLS_OVER },
	[TLS_OVER] = { "over", 0 },
};

struct tls_session {
	gnutls_session_t gnutls;
	struct tls_credentials *credentials;
	struct peer *peer; /* to be filled by the handshake */
	char who[PEER_TEXT];
	unsigned state;
	unsigned warnings; /* alerts of that level */

	/* Of the handshake, for the log. */
	unsigned verdict; /* on the client's certificate: gnutls_certificate_status_t */
	char user[64];    /* the identity it used, printable */
	bool unknown;     /* there is no such identity */

	/* From the peer; [in_at, in_end) is still to be pulled. */
	size_t in_at, in_end;
	bool in_ended; /* nothing more will come: */
	int in_error;  /* 0: the peer has ended */
	struct iovec in_iov;

	/* To the peer; [out_at, out_end) is still to be sent, its first out_iov.iov_len bytes
	 * are being sent when s->sending. */
	size_t out_at, out_end;
	size_t out_sending;
	struct iovec out_iov;

	/* What the owner waits for; iov is NULL when it does not. */
	struct iovec *recv_iov, *send_iov;
	int recv_iovcnt, send_iovcnt;
	int recv_over;  /* 1: no; else what every receive from now on comes to */
	bool offloaded; /* the kernel encrypts */
	bool new_keys;  /* were asked for, which it cannot do */
	size_t portion; /* data for one record: less if the peer takes no more */

	uint8_t in[TLS_IN], out[TLS_OUT];
};

/* ---- ciphertext ------------------------------------------------------------------ */

static ssize_t
tls_pull(gnutls_transport_ptr_t p, void *data, size_t length)
{
	struct tls_session *t = p;
	size_t have = t->in_end - t->in_at;

	if (have == 0 && t->in_ended && t->in_error == 0)
		return 0;
	if (have == 0) {
		gnutls_transport_set_errno(t->gnutls, t->in_ended ? -t->in_error : EAGAIN);
		return -1;
	}
	if (length > have)
		length = have;
	memcpy(data, t->in + t->in_at, length);
	t->in_at += length;
	return (ssize_t)length;
}

static ssize_t
tls_push(gnutls_transport_ptr_t p, const void *data, size_t length)
{
	struct tls_session *t = p;
	size_t room = TLS_OUT - t->out_end;

	if (room == 0) {
		gnutls_transport_set_errno(t->gnutls, EAGAIN);
		return -1;
	}
	if (length > room)
		length = room;
	memcpy(t->out + t->out_end, data, length);
	t->out_end += length;
	return (ssize_t)length;
}

static void tls_raw_received(struct stream *s, ssize_t result);
static void tls_raw_sent(struct stream *s, ssize_t result);

static void
tls_fill(struct stream *s)
{
	struct tls_session *t = s->tls;

	assert(t->in_at == t->in_end);
	t->in_at = t->in_end = 0;
	t->in_iov = (struct iovec){ t->in, TLS_IN };
	stream_raw_recv(s, &t->in_iov, 1, tls_raw_received);
}

static void
tls_flush(struct stream *s)
{
	struct tls_session *t = s->tls;

	if (s->sending || t->out_at == t->out_end)
		return;
	t->out_sending = t->out_end - t->out_at;
	t->out_iov = (struct iovec){ t->out + t->out_at, t->out_sending };
	stream_raw_send(s, &t->out_iov, 1, tls_raw_sent);
}

static void offload_alert(struct stream *s, gnutls_alert_level_t level,
			  gnutls_alert_description_t alert);

/* Our last words. What goes out without waiting goes out, for nothing comes after it. */
static void
tls_alert(struct stream *s, gnutls_alert_level_t level, gnutls_alert_description_t alert)
{
	struct tls_session *t = s->tls;

	if (s->sending || s->closing || !s->is_socket)
		return;
	if (t->offloaded) {
		offload_alert(s, level, alert);
		return;
	}
	gnutls_alert_send(t->gnutls, level, alert);
	if (t->out_at < t->out_end)
		(void)!send(s->send_fd, t->out + t->out_at, t->out_end - t->out_at,
			    MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* What GnuTLS calls `code`; nothing to a peer that has itself ended the session. */
static void
tls_alert_of(struct stream *s, int code)
{
	int level, alert = gnutls_error_to_alert(code, &level);

	if (code != GNUTLS_E_FATAL_ALERT_RECEIVED && code != GNUTLS_E_PREMATURE_TERMINATION)
		tls_alert(s, (gnutls_alert_level_t)level, (gnutls_alert_description_t)alert);
}

/* ---- what went wrong, for people ------------------------------------------------- */

/* A peer's words may be anything; a line of the log may not. */
static void
printable(char *out, size_t size, const void *text, size_t length)
{
	const unsigned char *from = text;
	size_t n = length < size - 1 ? length : size - 1;

	for (size_t i = 0; i < n; i++)
		out[i] = (char)(isprint(from[i]) ? from[i] : '?');
	out[n] = '\0';
}

static void
reason_of_verdict(unsigned verdict, char *text, size_t size)
{
	gnutls_datum_t words = { NULL, 0 };

	if (gnutls_certificate_verification_status_print(verdict, GNUTLS_CRT_X509, &words, 0) < 0)
		snprintf(text, size, "the certificate is not trusted");
	else
		snprintf(text, size, "%.*s", (int)words.size, (const char *)words.data);
	gnutls_free(words.data);
	for (size_t n = strlen(text); n > 0 && strchr(" .", text[n - 1]) != NULL; n--)
		text[n - 1] = '\0';
}

static void
reason_of(gnutls_session_t session, int code, char *text, size_t size)
{
	const char *name;

	if (code == GNUTLS_E_FATAL_ALERT_RECEIVED || code == GNUTLS_E_WARNING_ALERT_RECEIVED) {
		name = gnutls_alert_get_name(gnutls_alert_get(session));
		snprintf(text, size, "the peer says: %s", name != NULL ? name : "unknown alert");
	} else {
		snprintf(text, size, "%s", gnutls_strerror(code));
	}
}

/* Before a TLS 1.3 client has keys of its own, OpenSSL's says in clear what it thinks of us,
 * which to GnuTLS is a record that it cannot decrypt. Nobody vouches for it: for the log. */
static const char *
alert_in_clear(const struct tls_session *t)
{
	static const uint8_t head[] = { 21, 3, 3, 0, 2 };
	const uint8_t *record = t->in + t->in_at - sizeof head - 2;

	if (t->in_at < sizeof head + 2 || memcmp(record, head, sizeof head) != 0)
		return NULL;
	return gnutls_alert_get_name(record[sizeof head + 1]);
}

/* The alert that tells a client most about its certificate. */
static gnutls_alert_description_t
alert_of_verdict(unsigned verdict)
{
	static const struct {
		unsigned verdict;
		gnutls_alert_description_t alert;
	} rows[] = {
		{ GNUTLS_CERT_REVOKED, GNUTLS_A_CERTIFICATE_REVOKED },
		{ GNUTLS_CERT_EXPIRED, GNUTLS_A_CERTIFICATE_EXPIRED },
		{ GNUTLS_CERT_SIGNER_NOT_FOUND, GNUTLS_A_UNKNOWN_CA },
	};

	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
		if (verdict & rows[i].verdict)
			return rows[i].alert;
	return GNUTLS_A_BAD_CERTIFICATE;
}

/* ---- who is it ------------------------------------------------------------------- */

/* GnuTLS asks what we think of the client's certificate. */
static int
tls_verify_client(gnutls_session_t session)
{
	struct tls_session *t = gnutls_session_get_ptr(session);
	gnutls_typed_vdata_st purpose = { .type = GNUTLS_DT_KEY_PURPOSE_OID,
					  .data = (void *)GNUTLS_KP_TLS_WWW_CLIENT };
	unsigned count = 0;

	if (gnutls_certificate_get_peers(session, &count) == NULL || count == 0)
		return t->credentials->ask == GNUTLS_CERT_REQUIRE ? GNUTLS_E_CERTIFICATE_REQUIRED
								  : 0;
	if (gnutls_certificate_verify_peers(session, &purpose, 1, &t->verdict) < 0)
		t->verdict = GNUTLS_CERT_INVALID;
	return t->verdict == 0 ? 0 : GNUTLS_E_CERTIFICATE_ERROR;
}

/* GnuTLS asks for the key of an identity. 1: there is none; then it goes on with a random
 * key, and the peer sees what it would see with a wrong one. */
static int
tls_find_psk(gnutls_session_t session, const gnutls_datum_t *user, gnutls_datum_t *key)
{
	struct tls_session *t = gnutls_session_get_ptr(session);
	const struct psk *psk = psks_find(&t->credentials->psks, user->data, user->size);

	printable(t->user, sizeof t->user, user->data, user->size);
	t->unknown = psk == NULL;
	if (psk == NULL)
		return 1;
	key->data = gnutls_malloc(psk->key.size);
	if (key->data == NULL)
		return -1;
	memcpy(key->data, psk->key.data, psk->key.size);
	key->size = psk->key.size;
	return 0;
}

static int
identify_by_certificate(struct tls_session *t, struct peer *peer)
{
	unsigned count = 0;
	const gnutls_datum_t *der = gnutls_certificate_get_peers(t->gnutls, &count);
	uint8_t digest[32];
	size_t length = sizeof digest;
	gnutls_x509_crt_t cert = NULL;
	gnutls_datum_t dn = { NULL, 0 };
	int code;

	if (der == NULL || count == 0)
		return t->credentials->ask == GNUTLS_CERT_REQUIRE ? GNUTLS_E_CERTIFICATE_REQUIRED
								  : 0;
	code = gnutls_x509_crt_init(&cert);
	if (code == 0)
		code = gnutls_x509_crt_import(cert, der, GNUTLS_X509_FMT_DER);
	if (code == 0)
		code = gnutls_x509_crt_get_dn3(cert, &dn, 0);
	if (code == GNUTLS_E_REQUESTED_DATA_NOT_AVAILABLE)
		code = 0; /* an empty name */
	if (code == 0)
		code = gnutls_fingerprint(GNUTLS_DIG_SHA256, der, digest, &length);
	if (code == 0 &&
	    (peer->subject = strndup(dn.data != NULL ? (char *)dn.data : "", dn.size)) == NULL)
		code = GNUTLS_E_MEMORY_ERROR;
	for (size_t i = 0; code == 0 && i < sizeof digest; i++)
		snprintf(peer->fingerprint + 2 * i, 3, "%02x", digest[i]);
	gnutls_free(dn.data);
	if (cert != NULL)
		gnutls_x509_crt_deinit(cert);
	return code;
}

static int
identify_by_psk(struct tls_session *t, struct peer *peer)
{
	gnutls_datum_t user = { NULL, 0 };
	int code = gnutls_psk_server_get_username2(t->gnutls, &user);

	if (code == 0 && psks_find(&t->credentials->psks, user.data, user.size) == NULL)
		code = GNUTLS_E_UNKNOWN_SRP_USERNAME;
	if (code == 0 && (peer->psk = strndup((char *)user.data, user.size)) == NULL)
		code = GNUTLS_E_MEMORY_ERROR;
	return code;
}

/* ---- what the kernel does --------------------------------------------------------- */
/*
 * Where it can (module tls, TCP, AES-GCM) it encrypts what goes out, straight from where it
 * lies. What comes in stays GnuTLS's, for its keys change whenever the peer likes. Ours cannot
 * then, with most kernels: who asks for new ones, as hardly anybody does, gets the end instead.
 */

static const struct offload_cipher {
	gnutls_cipher_algorithm_t id;
	unsigned short kernel;
	unsigned key; /* bytes */
} offload_ciphers[] = {
	{ GNUTLS_CIPHER_AES_128_GCM, TLS_CIPHER_AES_GCM_128, TLS_CIPHER_AES_GCM_128_KEY_SIZE },
	{ GNUTLS_CIPHER_AES_256_GCM, TLS_CIPHER_AES_GCM_256, TLS_CIPHER_AES_GCM_256_KEY_SIZE },
};

/* tls12_crypto_info_aes_gcm_128 and ..._256: the same but for the length of the key. */
#define OFFLOAD_SALT 4
#define OFFLOAD_IV   8
#define OFFLOAD_SEQ  8
struct offload_info {
	struct tls_crypto_info head;
	uint8_t rest[OFFLOAD_IV + TLS_CIPHER_AES_GCM_256_KEY_SIZE + OFFLOAD_SALT + OFFLOAD_SEQ];
};
static_assert(sizeof(struct offload_info) == sizeof(struct tls12_crypto_info_aes_gcm_256),
	      "the kernel's layout");

/* Bytes of info, or 0 if this is nothing for the kernel. */
static socklen_t
offload_fill(gnutls_session_t session, struct offload_info *info)
{
	bool modern = gnutls_protocol_get_version(session) == GNUTLS_TLS1_3;
	const struct offload_cipher *c = offload_ciphers;
	gnutls_datum_t mac, iv, key;
	uint8_t seq[OFFLOAD_SEQ], *at = info->rest;

	if (gnutls_cipher_get(session) != c->id)
		c++;
	if (gnutls_cipher_get(session) != c->id ||
	    gnutls_record_get_state(session, 0, &mac, &iv, &key, seq) != 0 || key.size != c->key ||
	    iv.size < OFFLOAD_SALT + (modern ? OFFLOAD_IV : 0))
		return 0;
	info->head.version = modern ? TLS_1_3_VERSION : TLS_1_2_VERSION;
	info->head.cipher_type = c->kernel;
	/* In TLS 1.2 that part of the nonce is sent along; a number never used again is right. */
	at = mempcpy(at, modern ? iv.data + OFFLOAD_SALT : seq, OFFLOAD_IV);
	at = mempcpy(at, key.data, key.size);
	at = mempcpy(at, iv.data, OFFLOAD_SALT);
	at = mempcpy(at, seq, OFFLOAD_SEQ);
	return (socklen_t)(at - (uint8_t *)info);
}

/* When all that GnuTLS had to say has been sent. */
static void
offload(struct stream *s)
{
	struct tls_session *t = s->tls;
	struct offload_info info;
	socklen_t length = offload_fill(t->gnutls, &info);

	assert(!s->sending && t->out_at == t->out_end);
	t->offloaded = length > 0 &&
		       setsockopt(s->send_fd, SOL_TCP, TCP_ULP, "tls", sizeof "tls") == 0 &&
		       setsockopt(s->send_fd, SOL_TLS, TLS_TX, &info, length) == 0;
	if (!t->offloaded)
		log_debug("%s: TLS: encrypted here (%s)", t->who,
			  length > 0 ? strerror(errno) : "by a cipher that the kernel lacks");
	else
		log_debug("%s: TLS: encrypted by the kernel", t->who);
	explicit_bzero(&info, sizeof info);
}

static void
offload_alert(struct stream *s, gnutls_alert_level_t level, gnutls_alert_description_t alert)
{
	uint8_t text[] = { (uint8_t)level, (uint8_t)alert };
	struct iovec iov = { text, sizeof text };
	union {
		struct cmsghdr head;
		char space[CMSG_SPACE(1)];
	} type = { .head = { .cmsg_len = CMSG_LEN(1),
			     .cmsg_level = SOL_TLS,
			     .cmsg_type = TLS_SET_RECORD_TYPE } };
	struct msghdr message = { .msg_iov = &iov,
				  .msg_iovlen = 1,
				  .msg_control = &type,
				  .msg_controllen = CMSG_LEN(1) };

	*CMSG_DATA(&type.head) = 21; /* ContentType alert */
	(void)!sendmsg(s->send_fd, &message, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* GnuTLS is about to see to a KeyUpdate. */
static int
offload_key_update(gnutls_session_t session, unsigned type, unsigned when, unsigned incoming,
		   const gnutls_datum_t *message)
{
	struct tls_session *t = gnutls_session_get_ptr(session);

	(void)type;
	(void)when;
	t->new_keys = t->offloaded && incoming && message->size == 1 && message->data[0] == 1;
	return t->new_keys ? GNUTLS_E_UNIMPLEMENTED_FEATURE : 0;
}

static void
offload_sent(struct stream *s, ssize_t result)
{
	s->sent(s, result);
}

/* ---- handshake ------------------------------------------------------------------- */

static void
shake_failed(struct stream *s, int code)
{
	struct tls_session *t = s->tls;
	char text[512], hint[128] = "";
	const char *alert = code == GNUTLS_E_DECRYPTION_FAILED ? alert_in_clear(t) : NULL;

	if (alert != NULL)
		snprintf(text, sizeof text, "the peer says: %s", alert);
	else if (t->in_error != 0)
		snprintf(text, sizeof text, "%s", strerror(-t->in_error));
	else if (t->verdict != 0)
		reason_of_verdict(t->verdict, text, sizeof text);
	else
		reason_of(t->gnutls, code, text, sizeof text);
	if (t->unknown)
		snprintf(hint, sizeof hint, " (unknown identity \"%s\")", t->user);
	else if (*t->user != '\0')
		snprintf(hint, sizeof hint, " (identity \"%s\", perhaps with another key)",
			 t->user);
	peer_warn("%s: TLS handshake: %s%s", t->who, text, hint);
	if (t->verdict != 0)
		tls_alert(s, GNUTLS_AL_FATAL, alert_of_verdict(t->verdict));
	else
		tls_alert_of(s, code);
}

/* The handshake is over; error: 0 or why, and the log has been told. */
static void
shake_done(struct stream *s, int error)
{
	struct tls_session *t = s->tls;

	pl_sm_move(tls_states, &t->state, error == 0 ? TLS_OPEN : TLS_OVER);
	if (error == 0)
		offload(s);
	s->secured(s, error);
}

static void
shake(struct stream *s)
{
	struct tls_session *t = s->tls;
	bool again;
	int code;

	do {
		code = gnutls_handshake(t->gnutls);
		/* It also comes back in between, with more to pull. */
		again = code == GNUTLS_E_AGAIN && gnutls_record_get_direction(t->gnutls) == 0 &&
			t->in_at < t->in_end;
		if (code == GNUTLS_E_WARNING_ALERT_RECEIVED)
			again = t->warnings++ < TLS_WARNINGS;
	} while (again);

	if (code == GNUTLS_E_AGAIN) {
		tls_flush(s);
		if (gnutls_record_get_direction(t->gnutls) == 0)
			tls_fill(s);
		return;
	}
	if (code == 0)
		code = t->credentials->psk != NULL ? identify_by_psk(t, t->peer)
						   : identify_by_certificate(t, t->peer);
	if (code != 0) {
		shake_failed(s, code);
		shake_done(s, -EPROTO);
		return;
	}
	t->peer->tls = true;
	pl_sm_move(tls_states, &t->state, TLS_SETTLING);
	tls_flush(s);
	if (!s->sending)
		shake_done(s, 0);
}

static int
session_init(struct tls_session *t)
{
	const struct tls_credentials *c = t->credentials;
	int code = gnutls_init(&t->gnutls, GNUTLS_SERVER | GNUTLS_NONBLOCK | GNUTLS_NO_TICKETS);

	if (code != 0)
		return code;
	gnutls_session_set_ptr(t->gnutls, t);
	gnutls_transport_set_ptr(t->gnutls, t);
	gnutls_transport_set_pull_function(t->gnutls, tls_pull);
	gnutls_transport_set_push_function(t->gnutls, tls_push);
	gnutls_handshake_set_hook_function(t->gnutls, GNUTLS_HANDSHAKE_KEY_UPDATE, GNUTLS_HOOK_PRE,
					   offload_key_update);
	gnutls_certificate_server_set_request(t->gnutls, c->ask);
	code = gnutls_priority_set(t->gnutls, c->priority);
	if (code == 0)
		code = c->psk != NULL
			       ? gnutls_credentials_set(t->gnutls, GNUTLS_CRD_PSK, c->psk)
			       : gnutls_credentials_set(t->gnutls, GNUTLS_CRD_CERTIFICATE, c->x509);
	return code;
}

void
tls_start(struct stream *s, struct tls_credentials *credentials, struct peer *peer)
{
	struct tls_session *t = malloc(sizeof *t);
	int code = GNUTLS_E_MEMORY_ERROR;

	if (t != NULL) {
		memset(t, 0, offsetof(struct tls_session, in));
		t->credentials = tls_credentials_get(credentials);
		t->peer = peer;
		memcpy(t->who, peer->text, sizeof t->who);
		t->state = TLS_SHAKING;
		t->recv_over = 1;
		t->portion = TLS_RECORD;
		s->tls = t;
		code = session_init(t);
	}
	if (code != 0) {
		log_error("%s: TLS: %s", peer->text, gnutls_strerror(code));
		if (t != NULL)
			tls_free(s);
		s->secured(s, -ENOMEM);
		return;
	}
	shake(s);
}

/* ---- receiving ------------------------------------------------------------------- */

/* The peer broke the protocol, and nothing more can be had from it. */
static int
tls_broken(struct stream *s, int code)
{
	struct tls_session *t = s->tls;
	char text[256];

	if (t->in_error != 0)
		return t->in_error;
	if (t->new_keys)
		snprintf(text, sizeof text,
			 "the peer asks for new keys, which the kernel cannot "
			 "change");
	else
		reason_of(t->gnutls, code, text, sizeof text);
	if (code == GNUTLS_E_PREMATURE_TERMINATION)
		log_debug("%s: TLS: %s", t->who, text);
	else
		peer_warn("%s: TLS: %s", t->who, text);
	if (t->state == TLS_OPEN) {
		tls_alert_of(s, code);
		pl_sm_move(tls_states, &t->state, TLS_OVER);
	}
	return -EPROTO;
}

/* Bytes, 0 at the end, -EAGAIN when there is nothing to work on, or what went wrong. */
static ssize_t
record_recv(struct stream *s, void *data, size_t length)
{
	struct tls_session *t = s->tls;
	ssize_t n;

	if (t->state == TLS_OVER && t->recv_over == 1)
		t->recv_over = -EPROTO; /* by what went wrong while sending */
	while (t->recv_over == 1) {
		n = gnutls_record_recv(t->gnutls, data, length);
		if (n > 0)
			return n;
		if (n == 0)
			t->recv_over = 0;
		else if (n == GNUTLS_E_AGAIN && t->in_at == t->in_end && !t->in_ended)
			return -EAGAIN;
		else if (n == GNUTLS_E_WARNING_ALERT_RECEIVED && t->warnings++ < TLS_WARNINGS)
			continue;
		else if (n != GNUTLS_E_AGAIN) /* which it also says in between, with more to pull */
			t->recv_over = tls_broken(s, (int)n);
	}
	return t->recv_over;
}

/* As stream_recv(), or -EAGAIN. */
static ssize_t
recv_what_is_there(struct stream *s, const struct iovec *iov, int iovcnt)
{
	size_t total = 0, at = 0;
	ssize_t n;

	while (iovcnt > 0) {
		if (at == iov->iov_len) {
			iov++;
			iovcnt--;
			at = 0;
			continue;
		}
		n = record_recv(s, (char *)iov->iov_base + at, iov->iov_len - at);
		if (n <= 0)
			return total > 0 ? (ssize_t)total : n;
		at += (size_t)n;
		total += (size_t)n;
	}
	return (ssize_t)total;
}

ssize_t
tls_recv(struct stream *s, struct iovec *iov, int iovcnt)
{
	struct tls_session *t = s->tls;
	ssize_t n;

	assert(t->recv_iov == NULL && t->state >= TLS_OPEN && !s->closing);
	n = recv_what_is_there(s, iov, iovcnt);
	if (n != -EAGAIN)
		return n;
	t->recv_iov = iov;
	t->recv_iovcnt = iovcnt;
	tls_fill(s);
	return -EINPROGRESS;
}

static void
recv_on(struct stream *s)
{
	struct tls_session *t = s->tls;
	ssize_t n = t->in_error;

	if (n != -ECANCELED)
		n = recv_what_is_there(s, t->recv_iov, t->recv_iovcnt);

	if (n == -EAGAIN) { /* a part of a record */
		tls_fill(s);
		return;
	}
	t->recv_iov = NULL;
	s->received(s, n);
}

static void
tls_raw_received(struct stream *s, ssize_t result)
{
	struct tls_session *t = s->tls;

	if (result > 0) {
		t->in_end = (size_t)result;
	} else {
		t->in_ended = true;
		t->in_error = (int)result;
	}
	if (t->recv_iov != NULL)
		recv_on(s);
	else if (t->state == TLS_SHAKING && result == -ECANCELED)
		shake_done(s, -ECANCELED);
	else if (t->state == TLS_SHAKING)
		shake(s);
}

/* ---- sending --------------------------------------------------------------------- */

/* Where small pieces become one record's data. */
static _Thread_local uint8_t gathered[TLS_RECORD];

/* The data of the next record: as it lies there if that is enough of it. */
static const void *
next_portion(const struct tls_session *t, size_t *length)
{
	const struct iovec *v = t->send_iov;
	size_t n = 0;

	if (t->send_iovcnt == 1 || v->iov_len >= t->portion) {
		*length = v->iov_len < t->portion ? v->iov_len : t->portion;
		return v->iov_base;
	}
	for (int i = 0; i < t->send_iovcnt && n < t->portion; i++) {
		size_t part = v[i].iov_len < t->portion - n ? v[i].iov_len : t->portion - n;

		memcpy(gathered + n, v[i].iov_base, part);
		n += part;
	}
	*length = n;
	return gathered;
}

static void
send_skip(struct tls_session *t, size_t n)
{
	while (t->send_iovcnt > 0 && n >= t->send_iov->iov_len) {
		n -= t->send_iov->iov_len;
		t->send_iov++;
		t->send_iovcnt--;
	}
	if (t->send_iovcnt > 0) {
		t->send_iov->iov_base = (char *)t->send_iov->iov_base + n;
		t->send_iov->iov_len -= n;
	}
}

/* Makes records, as many as there is room for, and starts to send them. */
static ssize_t
send_what_fits(struct stream *s)
{
	struct tls_session *t = s->tls;
	const void *data;
	size_t length;
	ssize_t n;

	send_skip(t, 0);
	while (t->send_iovcnt > 0 && TLS_OUT - t->out_end >= TLS_WIRE) {
		if (t->state != TLS_OPEN)
			return -EPROTO;
		data = next_portion(t, &length);
		n = gnutls_record_send(t->gnutls, data, length);
		if (n <= 0)
			return tls_broken(s, n == 0 ? GNUTLS_E_INTERNAL_ERROR : (int)n);
		if ((size_t)n < length)
			t->portion = (size_t)n;
		send_skip(t, (size_t)n);
	}
	tls_flush(s);
	return s->sending ? -EINPROGRESS : 0;
}

ssize_t
tls_send(struct stream *s, struct iovec *iov, int iovcnt)
{
	struct tls_session *t = s->tls;
	ssize_t n;

	assert(t->send_iov == NULL && t->state >= TLS_OPEN && !s->closing);
	if (t->offloaded && t->state == TLS_OPEN) {
		stream_raw_send(s, iov, iovcnt, offload_sent);
		return -EINPROGRESS;
	}
	t->send_iov = iov;
	t->send_iovcnt = iovcnt;
	n = send_what_fits(s);
	if (n != -EINPROGRESS)
		t->send_iov = NULL;
	return n;
}

static void
send_on(struct stream *s, ssize_t result)
{
	if (result == 0)
		result = send_what_fits(s);
	if (result == -EINPROGRESS)
		return;
	s->tls->send_iov = NULL;
	s->sent(s, result);
}

/* The socket would not take our part of the handshake. */
static void
shake_unsent(struct stream *s, int error)
{
	struct tls_session *t = s->tls;

	if (error != -ECANCELED) {
		t->in_error = error;
		shake_failed(s, GNUTLS_E_PUSH_ERROR);
		error = -EPROTO;
	}
	shake_done(s, error);
}

static void
tls_raw_sent(struct stream *s, ssize_t result)
{
	struct tls_session *t = s->tls;

	t->out_at = result == 0 ? t->out_at + t->out_sending : t->out_end;
	if (t->out_at == t->out_end)
		t->out_at = t->out_end = 0;
	if (t->send_iov != NULL) {
		send_on(s, result);
		return;
	}
	if (t->state != TLS_SHAKING && t->state != TLS_SETTLING)
		return;
	if (result != 0) {
		shake_unsent(s, (int)result);
		return;
	}
	tls_flush(s);
	if (t->state == TLS_SHAKING && !s->receiving)
		shake(s); /* it stopped for lack of room */
	else if (t->state == TLS_SETTLING && !s->sending)
		shake_done(s, 0);
}

/* ---- the end --------------------------------------------------------------------- */

void
tls_bye(struct stream *s)
{
	struct tls_session *t = s->tls;

	if (t->state == TLS_OPEN)
		tls_alert(s, GNUTLS_AL_WARNING, GNUTLS_A_CLOSE_NOTIFY);
}

void
tls_free(struct stream *s)
{
	struct tls_session *t = s->tls;

	s->tls = NULL;
	if (t->gnutls != NULL)
		gnutls_deinit(t->gnutls);
	tls_credentials_put(t->credentials);
	free(t);
}

/* ---- the client's side, blocking ------------------------------------------------- */

struct tls_client {
	gnutls_session_t gnutls;
	gnutls_certificate_credentials_t x509; /* or, */
	gnutls_psk_client_credentials_t psk;
};

static int
client_load_psk(struct tls_client *c, const char *path, const char *user, struct pl_error *err)
{
	struct psk_list psks = { 0 };
	const struct psk *psk;
	int code, error = psks_load(&psks, path, err);

	if (error != 0)
		return error;
	psk = user != NULL ? psks_find(&psks, user, strlen(user)) : psks.list;
	if (psk == NULL) {
		error = pl_error_say(err, -EINVAL, "%s: no key of %s in it", path, user);
	} else {
		code = gnutls_psk_allocate_client_credentials(&c->psk);
		if (code == 0)
			code = gnutls_psk_set_client_credentials(c->psk, psk->user, &psk->key,
								 GNUTLS_PSK_KEY_RAW);
		if (code != 0)
			error = bad_file(path, code, err);
	}
	psks_free(&psks);
	return error;
}

/* Without a directory the system says who is trusted. */
static int
client_load_x509(struct tls_client *c, const char *dir, struct pl_error *err)
{
	int error;

	if (gnutls_certificate_allocate_credentials(&c->x509) < 0)
		return pl_error_set(err, -ENOMEM, "TLS");
	if (dir == NULL) {
		gnutls_certificate_set_x509_system_trust(c->x509);
		return 0;
	}
	error = x509_load_trust(c->x509, dir, err);
	if (error == 0 && exists_in(dir, client_names.cert))
		error = x509_load_own(c->x509, dir, &client_names, err);
	return error;
}

static bool
is_address(const char *host)
{
	uint8_t address[16];

	return inet_pton(AF_INET, host, address) == 1 || inet_pton(AF_INET6, host, address) == 1;
}

static int
client_init(struct tls_client *c, int fd, const char *host)
{
	int code = gnutls_init(&c->gnutls, GNUTLS_CLIENT | GNUTLS_NO_SIGNAL);

	if (code != 0)
		return code;
	gnutls_transport_set_int(c->gnutls, fd);
	code = gnutls_priority_set_direct(c->gnutls,
					  c->psk != NULL ? TLS_PRIORITY_PSK : TLS_PRIORITY_X509,
					  NULL);
	if (code != 0)
		return code;
	if (c->psk != NULL)
		return gnutls_credentials_set(c->gnutls, GNUTLS_CRD_PSK, c->psk);
	gnutls_session_set_verify_cert(c->gnutls, host, 0);
	if (host != NULL && !is_address(host))
		gnutls_server_name_set(c->gnutls, GNUTLS_NAME_DNS, host, strlen(host));
	return gnutls_credentials_set(c->gnutls, GNUTLS_CRD_CERTIFICATE, c->x509);
}

static int
client_shake(struct tls_client *c, struct pl_error *err)
{
	char text[512];
	int code;

	do
		code = gnutls_handshake(c->gnutls);
	while (code == GNUTLS_E_INTERRUPTED || code == GNUTLS_E_WARNING_ALERT_RECEIVED);
	if (code == 0)
		return 0;
	if (code == GNUTLS_E_CERTIFICATE_VERIFICATION_ERROR)
		reason_of_verdict(gnutls_session_get_verify_cert_status(c->gnutls), text,
				  sizeof text);
	else
		reason_of(c->gnutls, code, text, sizeof text);
	gnutls_alert_send_appropriate(c->gnutls, code);
	return pl_error_say(err, -EPROTO, "TLS handshake: %s", text);
}

static void
client_free(struct tls_client *c)
{
	if (c->gnutls != NULL)
		gnutls_deinit(c->gnutls);
	if (c->x509 != NULL)
		gnutls_certificate_free_credentials(c->x509);
	if (c->psk != NULL)
		gnutls_psk_free_client_credentials(c->psk);
	free(c);
}

int
tls_client_new(struct tls_client **client, int fd, const struct tls_settings *settings,
	       const char *host, const char *user, struct pl_error *err)
{
	struct tls_client *c;
	int error = settings_check(settings, err);
	int code;

	if (error != 0)
		return error;
	c = calloc(1, sizeof *c);
	if (c == NULL)
		return pl_error_set(err, -ENOMEM, "TLS");
	error = settings->psk != NULL ? client_load_psk(c, settings->psk, user, err)
				      : client_load_x509(c, settings->certificates, err);
	if (error == 0 && (code = client_init(c, fd, host)) != 0)
		error = pl_error_say(err, -EPROTO, "TLS: %s", gnutls_strerror(code));
	if (error == 0)
		error = client_shake(c, err);
	if (error != 0) {
		client_free(c);
		return error;
	}
	*client = c;
	return 0;
}

/* What a call came to that did not transfer anything. */
static int
client_failed(struct tls_client *c, int code)
{
	char text[256];

	if (code == GNUTLS_E_AGAIN) /* the socket has a time limit */
		return -EAGAIN;
	if (code == GNUTLS_E_PUSH_ERROR || code == GNUTLS_E_PULL_ERROR)
		return -ECONNRESET;
	reason_of(c->gnutls, code, text, sizeof text);
	log_warn("TLS: %s", text);
	return -EPROTO;
}

ssize_t
tls_client_recv(struct tls_client *client, void *data, size_t length)
{
	ssize_t n;

	do
		n = gnutls_record_recv(client->gnutls, data, length);
	while (n == GNUTLS_E_INTERRUPTED || n == GNUTLS_E_WARNING_ALERT_RECEIVED);
	return n >= 0 ? n : client_failed(client, (int)n);
}

ssize_t
tls_client_send(struct tls_client *client, const void *data, size_t length)
{
	const char *from = data;
	size_t sent = 0;
	ssize_t n;

	while (sent < length) {
		n = gnutls_record_send(client->gnutls, from + sent, length - sent);
		if (n > 0)
			sent += (size_t)n;
		else if (n != GNUTLS_E_INTERRUPTED)
			return client_failed(client, (int)n);
	}
	return (ssize_t)sent;
}

void
tls_client_free(struct tls_client *client)
{
	gnutls_bye(client->gnutls, GNUTLS_SHUT_WR);
	client_free(client);
}
