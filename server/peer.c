/* peer.c - who is at the other end of a connection. */
#include "peer.h"

#include <arpa/inet.h>
#include <linux/vm_sockets.h>
#include <netinet/in.h>
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
