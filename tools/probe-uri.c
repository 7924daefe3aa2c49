#include "probe-uri.h"

#include <errno.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

static const struct {
	const char *text;
	bool tls, local;
} schemes[] = {
	{ "nbd", false, false },
	{ "nbds", true, false },
	{ "nbd+unix", false, true },
	{ "nbds+unix", true, true },
};

/* ---- text ------------------------------------------------------------------------ */

static int
hex(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	c |= 0x20;
	return c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
}

/* A copy of length bytes with %XX decoded; *decoded: its length. NUL is allowed where
 * decoded is asked for. */
static int
decode(const char *text, size_t length, char **into, size_t *decoded, struct pl_error *err)
{
	char *out = malloc(length + 1);
	size_t n = 0;

	if (out == NULL)
		return pl_error_set(err, -ENOMEM, "URI");
	for (size_t i = 0; i < length; i++) {
		char c = text[i];

		if (c == '%') {
			int high = i + 2 < length ? hex(text[i + 1]) : -1;
			int low = high >= 0 ? hex(text[i + 2]) : -1;

			if (low < 0) {
				free(out);
				return pl_error_say(err, -EINVAL,
						    "URI: '%.*s' has a %% without two digits",
						    (int)length, text);
			}
			c = (char)(high << 4 | low);
			i += 2;
		}
		if (c == '\0' && decoded == NULL) {
			free(out);
			return pl_error_say(err, -EINVAL, "URI: %%00 in '%.*s'", (int)length, text);
		}
		out[n++] = c;
	}
	out[n] = '\0';
	if (decoded != NULL)
		*decoded = n;
	free(*into);
	*into = out;
	return 0;
}

/* A number above 65535 would be cut down to that of some other server. NULL: the usual one. */
static int
check_port(const char *port, struct pl_error *err)
{
	if (port == NULL || (strspn(port, "0123456789") == strlen(port) && strlen(port) <= 5 &&
			     atoi(port) >= 1 && atoi(port) <= 65535))
		return 0;
	return pl_error_say(err, -EINVAL, "URI: '%s' is no port, which is from 1 to 65535", port);
}

/* [USER@]HOST[:PORT]; HOST may be [IPv6]. */
static int
parse_authority(struct nbd_uri *uri, const char *text, size_t length, struct pl_error *err)
{
	const char *end = text + length, *at = memchr(text, '@', length), *colon, *close;
	int error = 0;

	if (at != NULL) {
		error = decode(text, (size_t)(at - text), &uri->user, NULL, err);
		text = at + 1;
	}
	if (error != 0 || text == end)
		return error;
	if (*text == '[') {
		close = memchr(text, ']', (size_t)(end - text));
		if (close == NULL || (close + 1 != end && close[1] != ':'))
			return pl_error_say(err, -EINVAL, "URI: '%.*s' is no host",
					    (int)(end - text), text);
		colon = close + 1;
		text++;
	} else {
		close = colon = memchr(text, ':', (size_t)(end - text));
		if (colon == NULL)
			close = colon = end;
	}
	error = decode(text, (size_t)(close - text), &uri->host, NULL, err);
	if (error == 0 && colon < end && colon + 1 < end)
		error = decode(colon + 1, (size_t)(end - colon - 1), &uri->port, NULL, err);
	return error == 0 ? check_port(uri->port, err) : error;
}

static int
parse_parameter(struct nbd_uri *uri, const char *text, size_t length, struct pl_error *err)
{
	const struct {
		const char *name;
		char **into;
		size_t *decoded;
	} parameters[] = {
		{ "socket", &uri->unix_socket, &uri->unix_length },
		{ "tls-certificates", &uri->tls_certificates, NULL },
		{ "tls-psk-file", &uri->tls_psk_file, NULL },
		{ "tls-hostname", &uri->tls_hostname, NULL },
	};

	for (unsigned i = 0; i < sizeof parameters / sizeof *parameters; i++) {
		size_t name = strlen(parameters[i].name);

		if (length > name && memcmp(text, parameters[i].name, name) == 0 &&
		    text[name] == '=')
			return decode(text + name + 1, length - name - 1, parameters[i].into,
				      parameters[i].decoded, err);
	}
	return pl_error_say(err, -EINVAL, "URI: unknown parameter '%.*s'", (int)length, text);
}

static int
parse_query(struct nbd_uri *uri, const char *text, struct pl_error *err)
{
	int error = 0;

	while (*text != '\0' && error == 0) {
		size_t length = strcspn(text, "&;");

		if (length > 0)
			error = parse_parameter(uri, text, length, err);
		text += length + (text[length] != '\0');
	}
	return error;
}

int
nbd_uri_parse(struct nbd_uri *uri, const char *text, struct pl_error *err)
{
	const char *rest = strstr(text, "://"), *path;
	bool local = false, known = false;
	int error;

	*uri = (struct nbd_uri){ 0 };
	for (unsigned i = 0; rest != NULL && i < sizeof schemes / sizeof *schemes; i++) {
		if (strlen(schemes[i].text) == (size_t)(rest - text) &&
		    memcmp(schemes[i].text, text, (size_t)(rest - text)) == 0) {
			uri->tls = schemes[i].tls;
			local = schemes[i].local;
			known = true;
		}
	}
	if (!known)
		return pl_error_say(err, -EINVAL,
				    "URI: '%s' begins with none of nbd://, nbds://, nbd+unix://, "
				    "nbds+unix://",
				    text);
	rest += 3;
	path = rest + strcspn(rest, "/?");
	error = parse_authority(uri, rest, (size_t)(path - rest), err);
	if (error == 0) {
		path += *path == '/';
		error = decode(path, strcspn(path, "?"), &uri->export, NULL, err);
	}
	path += strcspn(path, "?");
	if (error == 0 && *path == '?')
		error = parse_query(uri, path + 1, err);
	if (error == 0 && (local ? uri->unix_length == 0 : uri->unix_socket != NULL))
		error = pl_error_say(err, -EINVAL,
				     local ? "URI: '%s' lacks socket=PATH"
					   : "URI: '%s' has socket=, but no +unix",
				     text);
	if (error == 0 && uri->unix_length >= sizeof((struct sockaddr_un *)0)->sun_path)
		error = pl_error_say(err, -EINVAL, "URI: the socket's path is too long");
	if (error == 0 && uri->tls_certificates != NULL && uri->tls_psk_file != NULL)
		error = pl_error_say(err, -EINVAL,
				     "URI: tls-certificates and tls-psk-file exclude each other");
	if (error != 0)
		nbd_uri_free(uri);
	return error;
}

void
nbd_uri_free(struct nbd_uri *uri)
{
	char **texts[] = { &uri->unix_socket,  &uri->host,        &uri->port,
			   &uri->user,         &uri->export,      &uri->tls_certificates,
			   &uri->tls_psk_file, &uri->tls_hostname };

	for (unsigned i = 0; i < sizeof texts / sizeof *texts; i++) {
		free(*texts[i]);
		*texts[i] = NULL;
	}
}

/* ---- connecting ------------------------------------------------------------------ */

static int
connect_unix(const struct nbd_uri *uri, int *fd, struct pl_error *err)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX };
	socklen_t length = (socklen_t)(offsetof(struct sockaddr_un, sun_path) + uri->unix_length);

	memcpy(address.sun_path, uri->unix_socket, uri->unix_length);
	*fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (*fd == -1)
		return pl_error_set(err, -errno, "socket");
	if (connect(*fd, (struct sockaddr *)&address, length) == -1) {
		int error = pl_error_set(err, -errno, "connect to %s", uri->unix_socket);

		close(*fd);
		return error;
	}
	return 0;
}

static int
connect_tcp(const struct nbd_uri *uri, int *fd, struct pl_error *err)
{
	const char *host = uri->host != NULL && *uri->host != '\0' ? uri->host : "localhost";
	const char *port = uri->port != NULL ? uri->port : "10809";
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM }, *list, *a;
	int error = getaddrinfo(host, port, &hints, &list), one = 1;

	if (error != 0)
		return pl_error_say(err, -ENOENT, "%s port %s: %s", host, port,
				    gai_strerror(error));
	for (a = list, *fd = -1; a != NULL && *fd == -1; a = a->ai_next) {
		*fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (*fd == -1 || connect(*fd, a->ai_addr, a->ai_addrlen) == -1) {
			error = -errno;
			if (*fd != -1)
				close(*fd);
			*fd = -1;
		}
	}
	freeaddrinfo(list);
	if (*fd == -1)
		return pl_error_set(err, error, "connect to %s port %s", host, port);
	setsockopt(*fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
	return 0;
}

int
nbd_uri_connect(const struct nbd_uri *uri, int *fd, struct pl_error *err)
{
	return uri->unix_socket != NULL ? connect_unix(uri, fd, err) : connect_tcp(uri, fd, err);
}
