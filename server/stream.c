/*
 * stream.c - a connection's bytes in both directions.
 *
 * The good path: a receive or a send is one io on the loop. A send goes on until all of it
 * is gone. With TLS the session (stream-tls.c) stands between, and uses the raw calls here.
 *
 * The end: stream_close() shuts the socket down and cancels what is under way; when both
 * directions have come back, the socket is closed, and the owner told.
 */
#include "stream.h"

#include "stream-tls.h"

#include <assert.h>
#include <errno.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>

#define STREAM_OF(io, member) ((struct stream *)((char *)(io)-offsetof(struct stream, member)))

static void stream_ended(struct stream *s);

void
stream_init(struct stream *s, struct pl_loop *loop, int fd, int send_fd)
{
	struct stat st;

	s->loop = loop;
	s->fd = fd;
	s->send_fd = send_fd;
	s->is_socket = fstat(fd, &st) == 0 && S_ISSOCK(st.st_mode);
	s->receiving = s->sending = s->closing = s->ended = false;
	s->bytes_in = s->bytes_out = 0;
	s->tls = NULL;
}

/* ---- receiving ------------------------------------------------------------------- */

static void
raw_recv_done(struct pl_io *io, int64_t result)
{
	struct stream *s = STREAM_OF(io, recv_io);

	s->receiving = false;
	if (s->closing) {
		result = -ECANCELED;
	} else if (result > 0) {
		s->bytes_in += (uint64_t)result;
	}
	s->raw_received(s, result);
	if (s->closing)
		stream_ended(s);
}

void
stream_raw_recv(struct stream *s, struct iovec *iov, int iovcnt,
		void (*done)(struct stream *s, ssize_t result))
{
	assert(!s->receiving);
	s->receiving = true;
	s->raw_received = done;
	s->recv_io.kind = s->is_socket ? PL_IO_RECV : PL_IO_READ;
	s->recv_io.fd = s->fd;
	s->recv_io.slot = -1;
	s->recv_io.mode = 0;
	s->recv_io.iov = iov;
	s->recv_io.iovcnt = iovcnt;
	s->recv_io.done = raw_recv_done;
	pl_loop_io(s->loop, &s->recv_io);
}

static void
plain_received(struct stream *s, ssize_t result)
{
	s->received(s, result);
}

ssize_t
stream_recv(struct stream *s, struct iovec *iov, int iovcnt)
{
	if (s->tls != NULL)
		return tls_recv(s, iov, iovcnt);
	stream_raw_recv(s, iov, iovcnt, plain_received);
	return -EINPROGRESS;
}

/* ---- sending --------------------------------------------------------------------- */

/* Cuts n bytes off the front. Returns whether something is left. */
static bool
send_advance(struct stream *s, size_t n)
{
	while (s->send_iovcnt > 0 && n >= s->send_iov->iov_len) {
		n -= s->send_iov->iov_len;
		s->send_iov++;
		s->send_iovcnt--;
	}
	if (s->send_iovcnt == 0)
		return false;
	s->send_iov->iov_base = (char *)s->send_iov->iov_base + n;
	s->send_iov->iov_len -= n;
	return true;
}

static void
raw_send_more(struct stream *s)
{
	s->send_io.iov = s->send_iov;
	s->send_io.iovcnt = s->send_iovcnt;
	pl_loop_io(s->loop, &s->send_io);
}

static void
raw_send_done(struct pl_io *io, int64_t result)
{
	struct stream *s = STREAM_OF(io, send_io);

	if (s->closing) {
		result = -ECANCELED;
	} else if (result > 0) {
		s->bytes_out += (uint64_t)result;
		if (send_advance(s, (size_t)result)) {
			raw_send_more(s);
			return;
		}
		result = 0;
	} else if (result == 0) {
		result = -EPIPE; /* would never come to an end */
	}
	s->sending = false;
	s->raw_sent(s, result);
	if (s->closing)
		stream_ended(s);
}

void
stream_raw_send(struct stream *s, struct iovec *iov, int iovcnt,
		void (*done)(struct stream *s, ssize_t result))
{
	assert(!s->sending && iovcnt > 0);
	s->sending = true;
	s->raw_sent = done;
	s->send_iov = iov;
	s->send_iovcnt = iovcnt;
	s->send_io.kind = s->is_socket ? PL_IO_SEND : PL_IO_WRITE;
	s->send_io.fd = s->send_fd;
	s->send_io.slot = -1;
	s->send_io.mode = s->is_socket ? MSG_NOSIGNAL : 0;
	s->send_io.done = raw_send_done;
	raw_send_more(s);
}

static void
plain_sent(struct stream *s, ssize_t result)
{
	s->sent(s, result);
}

ssize_t
stream_send(struct stream *s, struct iovec *iov, int iovcnt)
{
	if (s->tls != NULL)
		return tls_send(s, iov, iovcnt);
	stream_raw_send(s, iov, iovcnt, plain_sent);
	return -EINPROGRESS;
}

void
stream_secure(struct stream *s, struct tls_credentials *credentials, struct peer *peer)
{
	tls_start(s, credentials, peer);
}

/* ---- the end --------------------------------------------------------------------- */

static void
stream_close_now(struct pl_work *work)
{
	struct stream *s = STREAM_OF(work, close_work);

	if (s->tls != NULL)
		tls_free(s);
	close(s->fd);
	if (s->send_fd != s->fd)
		close(s->send_fd);
	s->closed(s);
}

/* When both directions have come back; the callbacks above may still use s, so not at once. */
static void
stream_ended(struct stream *s)
{
	if (s->receiving || s->sending || s->ended)
		return;
	s->ended = true;
	s->close_work.run = stream_close_now;
	pl_loop_post(s->loop, &s->close_work);
}

void
stream_close(struct stream *s)
{
	assert(!s->closing);
	if (s->tls != NULL && !s->sending)
		tls_bye(s);
	s->closing = true;
	if (s->is_socket)
		shutdown(s->fd, SHUT_RDWR);
	if (s->receiving)
		pl_loop_cancel(s->loop, &s->recv_io);
	if (s->sending)
		pl_loop_cancel(s->loop, &s->send_io);
	stream_ended(s);
}
