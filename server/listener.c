/*
 * listener.c - where clients come in.
 *
 * The good path: an address becomes one or more listening sockets, each a struct listener;
 * each keeps one accept under way on the loop and hands over what it brings.
 *
 * What can go wrong: an address is in use (an error always, even where others of its name are
 * free: clients would reach either), a host has addresses that do not work here (done without
 * as long as one works), a crash left a unix socket behind (replaced when nobody answers on
 * it), there is no descriptor or memory for a client (waited out; clients wait in the backlog).
 */
#include "listener.h"

#include "nbd/protocol.h"

#include <arpa/inet.h>
#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/vm_sockets.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <systemd/sd-daemon.h>
#include <time.h>
#include <unistd.h>

/* A peer that neither answers probes nor takes what is sent is dead after DEAD_S seconds. */
#define DEAD_S           120
#define PROBE_AFTER_S    60
#define PROBE_EVERY_S    20
#define ACCEPT_PAUSE_NS  100000000 /* after an accept that failed */
#define COMPLAIN_EVERY_S 60
#define IN_USE_TRIES     5
#define IN_USE_PAUSE_US  100000
#define PORT_TRIES       16 /* for one that is free at all addresses of a host */

union address {
	struct sockaddr any;
	struct sockaddr_un un;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_vm vm;
	struct sockaddr_storage room;
};

/* What the sockets of a list share while they are served; that of the first is used. */
struct serving {
	struct pl_loop *loop;
	void (*accepted)(void *user, int fd);
	void *user;
	unsigned busy; /* sockets with an accept or a pause under way */
	bool stopping;
	void (*stopped)(void *user);
	void *stopped_user;
	struct pl_work stopped_work;
};

struct listener {
	enum listener_kind kind;
	int fd;
	char *text;  /* for people: "tcp localhost:10809" */
	char *place; /* in a URI: host and port, CID and port, or the path */
	bool ours;   /* the socket file, as long as it has this identity: */
	dev_t device;
	ino_t inode;
	struct listener *next;

	struct pl_io io;
	bool busy;
	time_t complained; /* CLOCK_MONOTONIC; 0: never */
	struct serving *serving, own;
};

/* ---- making one ------------------------------------------------------------------ */

static void
listener_close(struct listener *l)
{
	if (l->fd != -1)
		close(l->fd);
	l->fd = -1;
}

static void
listener_free(struct listener *l)
{
	listener_close(l);
	free(l->text);
	free(l->place);
	free(l);
}

/* Takes fd and place (which may be NULL: no memory) over. */
static int
listener_append(struct listener **list, enum listener_kind kind, int fd, char *place,
		struct listener **made, struct pl_error *err)
{
	static const char *const kinds[] = { "unix", "tcp", "vsock", "iscsi" };
	struct listener *l = calloc(1, sizeof *l);

	if (l == NULL || place == NULL || asprintf(&l->text, "%s %s", kinds[kind], place) == -1) {
		close(fd);
		free(place);
		free(l);
		return pl_error_set(err, -ENOMEM, "listener");
	}
	l->kind = kind;
	l->fd = fd;
	l->place = place;
	while (*list != NULL)
		list = &(*list)->next;
	*list = l;
	if (made != NULL)
		*made = l;
	return 0;
}

/* What accepted sockets inherit. */
static void
tcp_options(int fd)
{
	static const struct {
		int level, name, value;
	} options[] = {
		{ IPPROTO_TCP, TCP_NODELAY, 1 },
		{ SOL_SOCKET, SO_KEEPALIVE, 1 },
		{ IPPROTO_TCP, TCP_KEEPIDLE, PROBE_AFTER_S },
		{ IPPROTO_TCP, TCP_KEEPINTVL, PROBE_EVERY_S },
		{ IPPROTO_TCP, TCP_KEEPCNT, (DEAD_S - PROBE_AFTER_S) / PROBE_EVERY_S },
		{ IPPROTO_TCP, TCP_USER_TIMEOUT, DEAD_S * 1000 },
	};

	for (unsigned i = 0; i < sizeof options / sizeof *options; i++)
		if (setsockopt(fd, options[i].level, options[i].name, &options[i].value,
			       sizeof options[i].value) == -1)
			log_warn("listener: socket option %d: %s", options[i].name,
				 strerror(errno));
}

/* A listening socket or a negative errno. */
static int
open_socket(const struct sockaddr *address, socklen_t length)
{
	static const int one = 1;
	int fd, error;

	fd = socket(address->sa_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	if (fd == -1)
		return -errno;
	if (address->sa_family == AF_INET || address->sa_family == AF_INET6)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
	if (address->sa_family == AF_INET6)
		setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &one, sizeof one);
	error = bind(fd, address, length) == -1 ? -errno : 0;
	if (error == 0 && listen(fd, SOMAXCONN) == -1) {
		error = -errno;
		if (address->sa_family == AF_UNIX) /* bind() has just made the file */
			unlink(((const struct sockaddr_un *)address)->sun_path);
	}
	if (error != 0) {
		close(fd);
		return error;
	}
	return fd;
}

/* ---- unix sockets ---------------------------------------------------------------- */

/* Whether a server is at the other end of this file. */
static bool
somebody_listens(const union address *address, socklen_t length)
{
	int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);
	bool refused;

	if (fd == -1)
		return true;
	/* EAGAIN: somebody is, and is busy. EACCES: who knows. */
	refused = connect(fd, &address->any, length) == -1 && errno == ECONNREFUSED;
	close(fd);
	return !refused;
}

/* The file gets its mode as it is made: there is no moment when others could connect. */
static int
bind_unix(const union address *address, socklen_t length, mode_t mode)
{
	mode_t old = umask(~mode & 0777);
	int fd = open_socket(&address->any, length);

	umask(old);
	return fd;
}

static int
check_unix(const struct listener_settings *s, struct pl_error *err)
{
	size_t length = strlen(s->value), max = sizeof((struct sockaddr_un *)NULL)->sun_path - 1;

	if (length > 0 && length <= max)
		return 0;
	return pl_error_say(err, -EINVAL,
			    "%s: unix %s: the path of a socket has from 1 to %zu bytes", s->where,
			    s->value, max);
}

static int
open_unix(const struct listener_settings *s, struct listener **list, struct pl_error *err)
{
	union address address = { .un = { .sun_family = AF_UNIX } };
	size_t length = strlen(s->value);
	struct listener *l;
	struct stat st;
	int fd, error;

	error = check_unix(s, err);
	if (error != 0)
		return error;
	memcpy(address.un.sun_path, s->value, length);
	fd = bind_unix(&address, sizeof address.un, (mode_t)s->mode);
	if (fd == -EADDRINUSE) {
		if (lstat(s->value, &st) == 0 && !S_ISSOCK(st.st_mode))
			return pl_error_say(err, -EEXIST, "%s: unix %s: it is there, and no socket",
					    s->where, s->value);
		if (somebody_listens(&address, sizeof address.un))
			return pl_error_set(err, fd, "%s: unix %s: somebody listens there",
					    s->where, s->value);
		if (unlink(s->value) == -1 && errno != ENOENT)
			return pl_error_set(err, -errno,
					    "%s: unix %s: nobody listens there: remove", s->where,
					    s->value);
		fd = bind_unix(&address, sizeof address.un, (mode_t)s->mode);
	}
	if (fd < 0)
		return pl_error_set(err, fd, "%s: unix %s: bind", s->where, s->value);
	if (lstat(s->value, &st) == 0) {
		error = listener_append(list, LISTENER_UNIX, fd, strdup(s->value), &l, err);
	} else {
		error = pl_error_set(err, -errno, "%s: unix %s: stat", s->where, s->value);
		close(fd);
	}
	if (error != 0) {
		unlink(s->value); /* which has just been made */
		return error;
	}
	l->ours = true;
	l->device = st.st_dev;
	l->inode = st.st_ino;
	return 0;
}

/* ---- TCP ------------------------------------------------------------------------- */

/* "[HOST:]PORT" in place: *host is NULL without one, a bracketed one loses its brackets. */
static int
split_address(const struct listener_settings *s, char *text, uint64_t max, char **host,
	      uint64_t *port, struct pl_error *err)
{
	char *colon = strrchr(text, ':');
	char *digits = colon == NULL ? text : colon + 1;
	char *end;

	*host = NULL;
	if (colon != NULL) {
		*colon = '\0';
		if (colon != text)
			*host = text;
	}
	errno = 0;
	*port = strtoull(digits, &end, 10);
	if (digits[0] < '0' || digits[0] > '9' || *end != '\0' || errno != 0 || *port > max)
		return pl_error_say(err, -EINVAL,
				    "%s: '%s': '%s' is no port; [HOST:]PORT has one from 0 to %ju "
				    "at its end",
				    s->where, s->value, digits, (uintmax_t)max);
	if (*host != NULL && **host == '[' && colon[-1] == ']') {
		colon[-1] = '\0';
		++*host;
	} else if (*host != NULL && strpbrk(*host, ":[]") != NULL) {
		return pl_error_say(err, -EINVAL,
				    "%s: '%s': an IPv6 address stands in brackets, [::1]:%ju say",
				    s->where, s->value, (uintmax_t)*port);
	}
	return 0;
}

/* *text is what host points into; the caller frees it, whatever is returned. */
static int
parse_tcp(const struct listener_settings *s, char **text, char **host, uint64_t *port,
	  struct pl_error *err)
{
	*text = strdup(s->value);
	if (*text == NULL)
		return pl_error_set(err, -ENOMEM, "listener");
	return split_address(s, *text, UINT16_MAX, host, port, err);
}

static void
address_set_port(struct sockaddr *address, uint16_t port)
{
	if (address->sa_family == AF_INET)
		((struct sockaddr_in *)address)->sin_port = htons(port);
	else
		((struct sockaddr_in6 *)address)->sin6_port = htons(port);
}

static unsigned
bound_port(int fd)
{
	union address a = { 0 };
	socklen_t length = sizeof a;

	getsockname(fd, &a.any, &length);
	return ntohs(a.any.sa_family == AF_INET ? a.in.sin_port : a.in6.sin6_port);
}

/* "127.0.0.1:10809", "[::1]:10809": the caller frees it. NULL: no memory. */
static char *
numeric_text(const struct sockaddr *address, socklen_t length, unsigned port)
{
	char host[NI_MAXHOST], *text;
	bool v6 = address->sa_family == AF_INET6;

	if (getnameinfo(address, length, host, sizeof host, NULL, 0, NI_NUMERICHOST) != 0)
		strcpy(host, "?");
	return asprintf(&text, v6 ? "[%s]:%u" : "%s:%u", host, port) == -1 ? NULL : text;
}

/* What a URI calls it. Whoever asked for all addresses gets one that works here. */
static char *
tcp_place(const char *host, const struct addrinfo *info, unsigned port)
{
	unsigned char number[sizeof(struct in6_addr)];
	char *text;

	if (host == NULL || strcmp(host, "*") == 0)
		host = "localhost";
	else if (inet_pton(info->ai_family, host, number) == 1 || strchr(host, '%') != NULL)
		return numeric_text(info->ai_addr, info->ai_addrlen, port);
	return asprintf(&text, "%s:%u", host, port) == -1 ? NULL : text;
}

/* A name may have one address twice. */
static bool
seen_before(const struct addrinfo *all, const struct addrinfo *info)
{
	for (; all != info; all = all->ai_next)
		if (all->ai_addrlen == info->ai_addrlen &&
		    memcmp(all->ai_addr, info->ai_addr, info->ai_addrlen) == 0)
			return true;
	return false;
}

/*
 * Opens all addresses on one port, which is *port, or the first one's choice if that is 0.
 * Errors: that of the first failure; *opened may be more than none all the same.
 */
static int
open_addresses(enum listener_kind kind, const struct addrinfo *all, unsigned port, const char *host,
	       struct listener **list, unsigned *opened, struct pl_error *err)
{
	int error = 0;

	*opened = 0;
	for (const struct addrinfo *info = all; info != NULL; info = info->ai_next) {
		int fd, failed;

		if (seen_before(all, info))
			continue;
		address_set_port(info->ai_addr, (uint16_t)port);
		fd = open_socket(info->ai_addr, info->ai_addrlen);
		if (fd < 0) {
			struct pl_error why;
			char *text = numeric_text(info->ai_addr, info->ai_addrlen, port);

			pl_error_set(&why, fd, "tcp %s: bind", text == NULL ? "" : text);
			free(text);
			if (error == 0 || fd == -EADDRINUSE) {
				error = fd;
				if (err != NULL)
					*err = why;
			}
			if (fd == -EADDRINUSE)
				return error;
			/* A machine without IPv6 is nothing to be warned about. */
			if (all->ai_next == NULL)
				continue; /* the error tells all */
			if (fd == -EAFNOSUPPORT || fd == -EADDRNOTAVAIL)
				log_info("listener: %s", why.text);
			else
				log_warn("listener: %s", why.text);
			continue;
		}
		port = bound_port(fd);
		tcp_options(fd);
		failed = listener_append(list, kind, fd, tcp_place(host, info, port), NULL, err);
		if (failed != 0)
			return failed;
		++*opened;
	}
	return *opened > 0 ? 0 : error;
}

/* Takes back what was appended after `keep`. */
static void
drop_after(struct listener **list, struct listener *keep)
{
	struct listener **at = keep == NULL ? list : &keep->next;

	while (*at != NULL) {
		struct listener *l = *at;

		*at = l->next;
		listener_free(l);
	}
}

static int
open_tcp(const struct listener_settings *s, struct listener **list, struct pl_error *err)
{
	struct addrinfo hints = { .ai_family = AF_UNSPEC,
				  .ai_socktype = SOCK_STREAM,
				  .ai_flags = AI_NUMERICSERV };
	struct addrinfo *all = NULL;
	struct listener *last = *list;
	struct pl_error why = { 0 };
	char *text, *host;
	unsigned opened, tries = PORT_TRIES;
	uint64_t port;
	int error;

	while (last != NULL && last->next != NULL)
		last = last->next;
	error = parse_tcp(s, &text, &host, &port, err);
	if (error != 0)
		goto out;
	if (host != NULL && strcmp(host, "*") == 0) {
		hints.ai_flags |= AI_PASSIVE;
		error = getaddrinfo(NULL, "0", &hints, &all);
	} else {
		error = getaddrinfo(host == NULL ? "localhost" : host, "0", &hints, &all);
	}
	if (error != 0) {
		error = pl_error_say(err, -EINVAL, "%s: tcp %s: %s", s->where, s->value,
				     error == EAI_SYSTEM ? strerror(errno) : gai_strerror(error));
		goto out;
	}
	do {
		drop_after(list, last);
		error = open_addresses(s->kind, all, (unsigned)port, host, list, &opened, &why);
	} while (error == -EADDRINUSE && port == 0 && --tries > 0);
	if (error != 0) {
		drop_after(list, last);
		pl_error_say(err, error, "%s: %s", s->where, why.text);
	}
out:
	if (all != NULL)
		freeaddrinfo(all);
	free(text);
	return error;
}

/* ---- vsock ----------------------------------------------------------------------- */

/* What others call this machine. */
static unsigned
vsock_local_cid(void)
{
	unsigned cid = VMADDR_CID_HOST;
	int fd = open("/dev/vsock", O_RDONLY | O_CLOEXEC);

	if (fd != -1) {
		if (ioctl(fd, IOCTL_VM_SOCKETS_GET_LOCAL_CID, &cid) == -1 || cid == VMADDR_CID_ANY)
			cid = VMADDR_CID_HOST;
		close(fd);
	}
	return cid;
}

static char *
vsock_place(int fd)
{
	union address a = { 0 };
	socklen_t length = sizeof a;
	char *text;

	getsockname(fd, &a.any, &length);
	return asprintf(&text, "%u:%u",
			a.vm.svm_cid == VMADDR_CID_ANY ? vsock_local_cid() : a.vm.svm_cid,
			a.vm.svm_port) == -1
		       ? NULL
		       : text;
}

static int
parse_vsock(const struct listener_settings *s, uint64_t *cid, uint64_t *port, struct pl_error *err)
{
	char *text = strdup(s->value), *host, *end;
	int error;

	if (text == NULL)
		return pl_error_set(err, -ENOMEM, "listener");
	*cid = VMADDR_CID_ANY;
	error = split_address(s, text, UINT32_MAX - 1, &host, port, err);
	if (error == 0 && host != NULL && strcmp(host, "*") != 0) {
		errno = 0;
		*cid = strtoull(host, &end, 10);
		if (*host < '0' || *host > '9' || *end != '\0' || errno != 0 || *cid > UINT32_MAX)
			error = pl_error_say(err, -EINVAL, "%s: vsock %s: '%s' is no CID", s->where,
					     s->value, host);
	}
	free(text);
	return error;
}

/* The kernel would take any number of 32 bits for port 0; URIs of clients hold 31. */
static int
open_vsock_socket(union address *address, uint64_t port)
{
	enum { LOWEST = 1024, PORTS = 64 * 1024 - LOWEST };
	int fd, tries = 64;

	do {
		address->vm.svm_port =
			port != 0 ? (unsigned)port : LOWEST + arc4random_uniform(PORTS);
		fd = open_socket(&address->any, sizeof address->vm);
	} while (port == 0 && fd == -EADDRINUSE && --tries > 0);
	return fd;
}

static int
open_vsock(const struct listener_settings *s, struct listener **list, struct pl_error *err)
{
	union address address = { .vm = { .svm_family = AF_VSOCK } };
	uint64_t port, cid;
	int fd, error = parse_vsock(s, &cid, &port, err);

	if (error != 0)
		return error;
	address.vm.svm_cid = (unsigned)cid;
	fd = open_vsock_socket(&address, port);
	if (fd < 0)
		return pl_error_set(err, fd, "%s: vsock %s: bind", s->where, s->value);
	return listener_append(list, LISTENER_VSOCK, fd, vsock_place(fd), NULL, err);
}

/* ---- opening --------------------------------------------------------------------- */

int
listener_check(const struct listener_settings *s, struct pl_error *err)
{
	char *text = NULL, *host;
	uint64_t port, cid;
	int error = 0;

	switch ((enum listener_kind)s->kind) {
	case LISTENER_UNIX: return check_unix(s, err);
	case LISTENER_TCP:
	case LISTENER_ISCSI: error = parse_tcp(s, &text, &host, &port, err); break;
	case LISTENER_VSOCK: error = parse_vsock(s, &cid, &port, err); break;
	}
	free(text);
	return error;
}

int
listener_open(const struct listener_settings *s, struct listener **list, struct pl_error *err)
{
	static int (*const opens[])(const struct listener_settings *s, struct listener **list,
				    struct pl_error *err) = {
		[LISTENER_UNIX] = open_unix,
		[LISTENER_TCP] = open_tcp,
		[LISTENER_VSOCK] = open_vsock,
		[LISTENER_ISCSI] = open_tcp,
	};

	int error = opens[s->kind](s, list, err);

	/* Of a server that was killed a moment ago the kernel has yet to take the ring apart,
	 * and the accept that waits in it holds the socket. */
	for (unsigned i = 0; i < IN_USE_TRIES && error == -EADDRINUSE; i++) {
		usleep(IN_USE_PAUSE_US);
		error = opens[s->kind](s, list, err);
	}
	return error;
}

static int
adopt(struct listener **list, int fd, struct pl_error *err)
{
	union address a = { 0 };
	socklen_t length = sizeof a;
	int flags = fcntl(fd, F_GETFL);

	if (sd_is_socket(fd, AF_UNSPEC, SOCK_STREAM, 1) <= 0 ||
	    getsockname(fd, &a.any, &length) == -1)
		return pl_error_say(err, -EINVAL,
				    "descriptor %d of the service manager: it is no stream socket "
				    "that listens",
				    fd);
	/* The loop waits for clients; it does not try again and again. */
	fcntl(fd, F_SETFL, flags & ~O_NONBLOCK);
	switch (a.any.sa_family) {
	case AF_UNIX:
		/* Without a path it is in the abstract name space, or has no name. */
		return listener_append(list, LISTENER_UNIX, fd,
				       strndup(a.un.sun_path,
					       length - offsetof(struct sockaddr_un, sun_path)),
				       NULL, err);
	case AF_INET:
	case AF_INET6:
		tcp_options(fd);
		return listener_append(list, LISTENER_TCP, fd,
				       numeric_text(&a.any, length, bound_port(fd)), NULL, err);
	case AF_VSOCK: return listener_append(list, LISTENER_VSOCK, fd, vsock_place(fd), NULL, err);
	}
	return pl_error_say(err, -EINVAL,
			    "descriptor %d of the service manager: address family %d is none of "
			    "unix, TCP and vsock",
			    fd, a.any.sa_family);
}

int
listener_adopt(struct listener **list, unsigned *count, struct pl_error *err)
{
	int n = sd_listen_fds(1);

	*count = 0;
	if (n < 0)
		return pl_error_set(err, n, "LISTEN_FDS: descriptors of the service manager");
	for (int fd = SD_LISTEN_FDS_START; fd < SD_LISTEN_FDS_START + n; fd++) {
		int error = adopt(list, fd, err);

		if (error != 0)
			return error;
		++*count;
	}
	return 0;
}

struct listener *
listener_next(const struct listener *l)
{
	return l->next;
}

/* ---- URIs ------------------------------------------------------------------------ */

/* RFC 3986, "Path" and "Query": what needs no %XX here. */
static char *
uri_encode(char *to, const char *from)
{
	static const char plain[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz"
				    "0123456789-._~/:[]@!$'()*,";

	for (; *from != '\0'; from++) {
		if (strchr(plain, *from) != NULL)
			*to++ = *from;
		else
			to += sprintf(to, "%%%02X", (unsigned char)*from);
	}
	*to = '\0';
	return to;
}

char *
listener_uri(const struct listener *l, bool tls, const char *export_name)
{
	static const struct {
		const char *plain, *tls;
	} schemes[] = {
		[LISTENER_UNIX] = { "nbd+unix:///", "nbds+unix:///" },
		[LISTENER_TCP] = { "nbd://", "nbds://" },
		[LISTENER_VSOCK] = { "nbd+vsock://", "nbds+vsock://" },
	};
	char *uri = malloc(64 + 3 * (strlen(l->place) + strlen(export_name))), *end;

	if (uri == NULL)
		return NULL;
	end = stpcpy(uri, tls ? schemes[l->kind].tls : schemes[l->kind].plain);
	if (l->kind == LISTENER_UNIX) {
		end = uri_encode(end, export_name);
		end = stpcpy(end, "?socket=");
		uri_encode(end, l->place);
	} else {
		end = uri_encode(end, l->place);
		if (*export_name != '\0') {
			*end++ = '/';
			uri_encode(end, export_name);
		}
	}
	return uri;
}

char *
listener_iscsi_uri(const struct listener *l, const char *target, unsigned lun)
{
	char *uri;

	return asprintf(&uri, "iscsi://%s/%s/%u", l->place, target, lun) == -1 ? NULL : uri;
}

/* ---- accepting ------------------------------------------------------------------- */

static void accept_one(struct listener *l);

static void
serving_stopped(struct pl_work *work)
{
	struct serving *s =
		(struct serving *)((char *)work - offsetof(struct serving, stopped_work));

	s->stopped(s->stopped_user);
}

static void
serving_stop_when_idle(struct serving *s)
{
	if (s->busy == 0)
		pl_loop_later(s->loop, &s->stopped_work);
}

/* Returns whether the list is to go on. */
static bool
listener_io_over(struct listener *l)
{
	l->busy = false;
	l->serving->busy--;
	if (!l->serving->stopping)
		return true;
	listener_close(l);
	serving_stop_when_idle(l->serving);
	return false;
}

static void
listener_io(struct listener *l)
{
	l->busy = true;
	l->serving->busy++;
	pl_loop_io(l->serving->loop, &l->io);
}

static void
pause_done(struct pl_io *io, int64_t result)
{
	struct listener *l = (struct listener *)((char *)io - offsetof(struct listener, io));

	(void)result; /* to wait less does no harm */
	if (listener_io_over(l))
		accept_one(l);
}

/* One line, however long it lasts and whatever comes in between. */
static void
complain(struct listener *l, int error)
{
	struct timespec now;

	clock_gettime(CLOCK_MONOTONIC, &now);
	if (l->complained != 0 && now.tv_sec - l->complained < COMPLAIN_EVERY_S)
		return;
	l->complained = now.tv_sec;
	log_warn("listener %s: accept: %s; clients have to wait", l->text, strerror(-error));
}

static void
accept_done(struct pl_io *io, int64_t result)
{
	struct listener *l = (struct listener *)((char *)io - offsetof(struct listener, io));

	if (!listener_io_over(l)) {
		if (result >= 0)
			close((int)result);
		return;
	}
	if (result >= 0) {
		l->serving->accepted(l->serving->user, (int)result);
		if (!l->serving->stopping)
			accept_one(l);
	} else if (result == -ECONNABORTED) {
		accept_one(l); /* the client has left again */
	} else {
		complain(l, (int)result);
		l->io = (struct pl_io){ .kind = PL_IO_DELAY,
					.fd = -1,
					.slot = -1,
					.length = ACCEPT_PAUSE_NS,
					.done = pause_done };
		listener_io(l);
	}
}

static void
accept_one(struct listener *l)
{
	l->io = (struct pl_io){
		.kind = PL_IO_ACCEPT, .fd = l->fd, .slot = -1, .done = accept_done
	};
	listener_io(l);
}

void
listeners_start(struct listener *list, struct pl_loop *loop, void (*accepted)(void *user, int fd),
		void *user)
{
	for (struct listener *l = list; l != NULL; l = l->next) {
		l->serving = &list->own;
		list->own.loop = loop;
		list->own.accepted = accepted;
		list->own.user = user;
		list->own.stopped_work.run = serving_stopped;
	}
	for (struct listener *l = list; l != NULL; l = l->next)
		accept_one(l);
}

static void
remove_socket_file(struct listener *l)
{
	struct stat st;

	if (!l->ours || lstat(l->place, &st) == -1 || st.st_dev != l->device ||
	    st.st_ino != l->inode)
		return;
	/* Where privileges have been dropped it may stay; the next start replaces it. */
	if (unlink(l->place) == -1)
		log_debug("listener %s: remove: %s", l->text, strerror(errno));
}

void
listeners_stop(struct listener *list, void (*stopped)(void *user), void *user)
{
	struct serving *s;

	if (list == NULL) {
		stopped(user);
		return;
	}
	s = list->serving;
	s->stopping = true;
	s->stopped = stopped;
	s->stopped_user = user;
	for (struct listener *l = list; l != NULL; l = l->next) {
		remove_socket_file(l);
		l->ours = false;
		if (l->busy)
			pl_loop_cancel(s->loop, &l->io);
		else
			listener_close(l);
	}
	serving_stop_when_idle(s);
}

void
listeners_free(struct listener *list)
{
	while (list != NULL) {
		struct listener *l = list;

		assert(!l->busy);
		list = l->next;
		remove_socket_file(l);
		listener_free(l);
	}
}
