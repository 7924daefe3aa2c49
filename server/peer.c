/* peer.c - who is at the other end of a connection. */
#include "peer.h"

#include "stats.h"

#include <arpa/inet.h>
#include <linux/vm_sockets.h>
#include <netinet/in.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

union address {
	struct sockaddr any;
	struct sockaddr_in in;
	struct sockaddr_in6 in6;
	struct sockaddr_vm vm;
	struct sockaddr_storage storage;
};

static void
peer_of_unix(struct peer *p, int fd)
{
	struct ucred who;
	socklen_t length = sizeof who;

	p->kind = PEER_UNIX;
	snprintf(p->text, sizeof p->text, "unix socket");
	if (getsockopt(fd, SOL_SOCKET, SO_PEERCRED, &who, &length) == -1)
		return;
	p->pid = who.pid;
	p->uid = who.uid;
	p->gid = who.gid;
	snprintf(p->text, sizeof p->text, "unix pid %d uid %u", (int)p->pid, (unsigned)p->uid);
}

static void
peer_of_ip(struct peer *p, const union address *a)
{
	bool six = a->any.sa_family == AF_INET6;
	unsigned port = ntohs(six ? a->in6.sin6_port : a->in.sin_port);
	char host[INET6_ADDRSTRLEN] = "?";

	p->kind = PEER_TCP;
	if (six)
		inet_ntop(AF_INET6, &a->in6.sin6_addr, host, sizeof host);
	else
		inet_ntop(AF_INET, &a->in.sin_addr, host, sizeof host);
	snprintf(p->host, sizeof p->host, "%s", host);
	snprintf(p->text, sizeof p->text, six ? "[%s]:%u" : "%s:%u", host, port);
}

void
peer_of(struct peer *p, int fd)
{
	union address a;
	socklen_t length = sizeof a;

	*p = (struct peer){ .kind = PEER_PIPE, .pid = -1, .uid = (uid_t)-1, .gid = (gid_t)-1 };
	snprintf(p->text, sizeof p->text, "standard input");
	if (getpeername(fd, &a.any, &length) == -1)
		return;
	switch (a.any.sa_family) {
	case AF_UNIX: peer_of_unix(p, fd); break;
	case AF_INET:
	case AF_INET6: peer_of_ip(p, &a); break;
	case AF_VSOCK:
		p->kind = PEER_VSOCK;
		snprintf(p->host, sizeof p->host, "vsock %u", a.vm.svm_cid);
		snprintf(p->text, sizeof p->text, "vsock %u:%u", a.vm.svm_cid, a.vm.svm_port);
		break;
	default: break;
	}
}

void
peer_clear(struct peer *p)
{
	free(p->subject);
	free(p->psk);
	p->subject = p->psk = NULL;
}

/* ---- what peers bring about in the log --------------------------------------------- */

#define LINES_AT_ONCE 200
#define LINE_EVERY    UINT64_C(500000000) /* nanoseconds, when there were that many */

static struct {
	pthread_mutex_t lock;
	uint64_t used_up; /* the time for which lines have been used up */
	unsigned left_out;
} flood = { .lock = PTHREAD_MUTEX_INITIALIZER };

/* Whether there may be a line now; *left_out: how many were not said since the last one. */
static bool
may_say(unsigned *left_out)
{
	uint64_t now = stats_now();
	bool may;

	pthread_mutex_lock(&flood.lock);
	if (flood.used_up < now)
		flood.used_up = now;
	may = flood.used_up - now <= (LINES_AT_ONCE - 1) * LINE_EVERY;
	if (may)
		flood.used_up += LINE_EVERY;
	else
		flood.left_out++;
	*left_out = flood.left_out;
	if (may)
		flood.left_out = 0;
	pthread_mutex_unlock(&flood.lock);
	return may;
}

static void
say(void (*verb)(const char *fmt, ...), const char *fmt, va_list args)
{
	unsigned left_out;
	char line[6000];

	if (!may_say(&left_out))
		return;
	vsnprintf(line, sizeof line, fmt, args);
	verb("%s", line);
	if (left_out > 0)
		log_warn("clients: %u such lines before this one were left out", left_out);
}

void
peer_warn(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	say(log_warn, fmt, args);
	va_end(args);
}

void
peer_info(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	say(log_info, fmt, args);
	va_end(args);
}
