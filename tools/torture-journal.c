#include "torture-journal.h"

#include "bytes.h"
#include "torture-stamp.h"

#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#define FORMAT     1
#define PATIENCE_S 30 /* of one side with the other */

/* ---- records --------------------------------------------------------------------- */

void
record_put(uint8_t at[RECORD], const struct record *r)
{
	const uint64_t numbers[] = { r->run,    r->number, r->seq,   r->offset,
				     r->length, r->ref,    r->issued };
	uint8_t *p = at + 4;

	*p++ = FORMAT;
	*p++ = r->kind;
	*p++ = r->what;
	*p++ = r->flags;
	for (unsigned i = 0; i < sizeof numbers / sizeof *numbers; i++)
		p = put_be64(p, numbers[i]);
	put_be32(at, torture_crc(at + 4, RECORD - 4));
}

bool
record_get(const uint8_t at[RECORD], struct record *r)
{
	if (get_be32(at) != torture_crc(at + 4, RECORD - 4) || at[4] != FORMAT)
		return false;
	*r = (struct record){
		.kind = at[5],
		.what = at[6],
		.flags = at[7],
		.run = get_be64(at + 8),
		.number = get_be64(at + 16),
		.seq = get_be64(at + 24),
		.offset = get_be64(at + 32),
		.length = get_be64(at + 40),
		.ref = get_be64(at + 48),
		.issued = get_be64(at + 56),
	};
	return true;
}

/* ---- bytes ----------------------------------------------------------------------- */

static int
put_all(int fd, const void *data, size_t length)
{
	const char *at = data;

	while (length > 0) {
		ssize_t n = write(fd, at, length);

		if (n == -1 && errno == EINTR)
			continue;
		if (n == -1)
			return errno == EAGAIN ? -ETIMEDOUT : -errno;
		at += n;
		length -= (size_t)n;
	}
	return 0;
}

static int
take_all(int fd, void *data, size_t length)
{
	char *at = data;

	while (length > 0) {
		ssize_t n = read(fd, at, length);

		if (n == -1 && errno == EINTR)
			continue;
		if (n <= 0)
			return n == 0 ? -ECONNRESET : errno == EAGAIN ? -ETIMEDOUT : -errno;
		at += n;
		length -= (size_t)n;
	}
	return 0;
}

/* A file that is not there yet: what is in one may be the only evidence of another run. */
static int
create(const char *path, struct pl_error *err)
{
	int fd = open(path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0666);

	if (fd == -1 && errno == EEXIST)
		return pl_error_say(err, -EEXIST,
				    "%s is there already, and a journal is of one run: check it, "
				    "then remove it, or take another name",
				    path);
	return fd != -1 ? fd : pl_error_set(err, -errno, "%s", path);
}

/* [HOST:]PORT, [IPv6]:PORT. The socket connects, or it listens. */
static int
tcp_socket(const char *address, bool listening, struct pl_error *err)
{
	const char *colon = strrchr(address, ':'), *port = colon != NULL ? colon + 1 : address;
	size_t length = colon != NULL ? (size_t)(colon - address) : 0;
	bool bracketed = length >= 2 && address[0] == '[' && address[length - 1] == ']';
	char *host = strndup(address + bracketed, length - 2 * bracketed);
	struct addrinfo hints = { .ai_socktype = SOCK_STREAM,
				  .ai_flags = listening ? AI_PASSIVE : 0 },
			*list, *a;
	int error = getaddrinfo(host != NULL && *host != '\0' ? host : NULL, port, &hints, &list);
	int fd = -1, one = 1;

	free(host);
	if (error != 0)
		return pl_error_say(err, -EINVAL, "%s: %s", address, gai_strerror(error));
	for (a = list; a != NULL && fd == -1; a = a->ai_next) {
		fd = socket(a->ai_family, a->ai_socktype | SOCK_CLOEXEC, a->ai_protocol);
		if (fd != -1)
			setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
		if (fd != -1 &&
		    (listening ? bind(fd, a->ai_addr, a->ai_addrlen) == -1 || listen(fd, 1) == -1
			       : connect(fd, a->ai_addr, a->ai_addrlen) == -1)) {
			error = errno;
			close(fd);
			fd = -1;
		}
	}
	freeaddrinfo(list);
	return fd != -1 ? fd : pl_error_set(err, -error, "%s", address);
}

static void
be_patient(int fd)
{
	struct timeval patience = { .tv_sec = PATIENCE_S };
	int one = 1;

	setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
	setsockopt(fd, SOL_SOCKET, SO_SNDTIMEO, &patience, sizeof patience);
	setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
}

/* ---- writing --------------------------------------------------------------------- */

struct journal {
	int fd;
	bool tcp;
	uint64_t run;
	pthread_mutex_t lock; /* of these */
	uint64_t count;
	int error;
	pthread_mutex_t settling; /* one at a time, for all who wait */
	uint64_t stable;          /* records */
};

int
journal_new(const char *where, struct record *begin, struct journal **out, struct pl_error *err)
{
	struct journal *j = calloc(1, sizeof *j);
	int error;

	if (j == NULL)
		return pl_error_set(err, -ENOMEM, "journal");
	if (where == NULL) {
		j->fd = memfd_create("journal", MFD_CLOEXEC);
		if (j->fd == -1)
			pl_error_set(err, j->fd = -errno, "journal");
	} else if (strncmp(where, "tcp://", 6) == 0) {
		j->tcp = true;
		j->fd = tcp_socket(where + 6, false, err);
		if (j->fd >= 0)
			be_patient(j->fd);
	} else {
		j->fd = create(where, err);
	}
	if (j->fd < 0) {
		error = j->fd;
		free(j);
		return error;
	}
	pthread_mutex_init(&j->lock, NULL);
	pthread_mutex_init(&j->settling, NULL);
	j->run = begin->run;
	begin->kind = RECORD_BEGIN;
	begin->flags |= RECORD_SETTLE;
	error = journal_append(j, begin);
	if (error == 0)
		error = journal_settle(j, 0);
	if (error != 0) {
		pl_error_set(err, error, "%s", where != NULL ? where : "journal");
		journal_free(j);
		return error;
	}
	*out = j;
	return 0;
}

void
journal_free(struct journal *j)
{
	close(j->fd);
	pthread_mutex_destroy(&j->lock);
	pthread_mutex_destroy(&j->settling);
	free(j);
}

int
journal_append(struct journal *j, struct record *r)
{
	uint8_t bytes[RECORD];
	int error;

	r->run = j->run;
	pthread_mutex_lock(&j->lock);
	r->number = j->count;
	record_put(bytes, r);
	if (j->error == 0)
		j->error = put_all(j->fd, bytes, sizeof bytes);
	if (j->error == 0)
		j->count++;
	error = j->error;
	pthread_mutex_unlock(&j->lock);
	return error;
}

uint64_t
journal_count(struct journal *j)
{
	uint64_t count;

	pthread_mutex_lock(&j->lock);
	count = j->count;
	pthread_mutex_unlock(&j->lock);
	return count;
}

int
journal_fd(const struct journal *j)
{
	return j->tcp ? -1 : j->fd;
}

static int
ask_for_stability(struct journal *j, uint64_t *stable)
{
	struct record r = { .kind = RECORD_STABLE, .flags = RECORD_SETTLE };
	uint8_t answer[8];
	/* The first record asks by itself. */
	int error = journal_count(j) > 1 ? journal_append(j, &r) : 0;

	if (error == 0)
		error = take_all(j->fd, answer, sizeof answer);
	if (error == 0)
		*stable = get_be64(answer);
	return error;
}

int
journal_settle(struct journal *j, uint64_t number)
{
	uint64_t stable;
	int error = 0;

	pthread_mutex_lock(&j->settling);
	if (j->stable <= number) {
		stable = journal_count(j);
		if (j->tcp)
			error = ask_for_stability(j, &stable);
		else if (fdatasync(j->fd) == -1)
			error = -errno;
		if (error == 0 && stable <= number)
			error = -EPROTO; /* it has not got what it was sent */
		if (error == 0)
			j->stable = stable;
	}
	pthread_mutex_unlock(&j->settling);
	if (error != 0) {
		pthread_mutex_lock(&j->lock);
		j->error = error;
		pthread_mutex_unlock(&j->lock);
	}
	return error;
}

/* ---- collecting ------------------------------------------------------------------ */

struct collector {
	int from, file;
	uint64_t run, count; /* of records that are kept */
	bool ended;
};

static bool
comes_next(const struct collector *c, const struct record *r)
{
	return r->number == c->count && (r->kind == RECORD_BEGIN) == (c->count == 0) &&
	       (c->count == 0 || r->run == c->run);
}

/* Whole records among the bytes go to the file. Returns how many bytes that were. */
static int
keep(struct collector *c, const uint8_t *bytes, size_t length, struct pl_error *err)
{
	size_t whole = length - length % RECORD;
	bool settle = false;
	uint8_t answer[8];
	int error;

	for (size_t at = 0; at < whole; at += RECORD, c->count++) {
		struct record r;

		if (!record_get(bytes + at, &r) || !comes_next(c, &r))
			return pl_error_say(err, -EPROTO, "what came is no journal");
		c->run = r.run;
		c->ended |= r.kind == RECORD_END;
		settle |= r.flags & RECORD_SETTLE;
	}
	error = put_all(c->file, bytes, whole);
	if (error == 0 && settle && fdatasync(c->file) == -1)
		error = -errno;
	if (error != 0)
		return pl_error_set(err, error, "the journal's file");
	put_be64(answer, c->count);
	/* Who has gone away meanwhile is missed at the next read. */
	if (settle)
		put_all(c->from, answer, sizeof answer);
	return (int)whole;
}

static int
collect_all(struct collector *c, struct pl_error *err)
{
	static uint8_t bytes[1024 * RECORD];
	size_t have = 0;
	int kept = 0;
	ssize_t n;

	while (kept >= 0) {
		n = read(c->from, bytes + have, sizeof bytes - have);
		if (n == -1 && errno == EINTR)
			continue;
		if (n <= 0)
			break;
		have += (size_t)n;
		kept = keep(c, bytes, have, err);
		if (kept > 0)
			memmove(bytes, bytes + kept, have -= (size_t)kept);
	}
	if (kept < 0)
		return kept;
	if (c->count == 0)
		return pl_error_say(err, -EPROTO, "nothing came");
	if (fdatasync(c->file) == -1)
		return pl_error_set(err, -errno, "the journal's file");
	printf("kept %llu records; %s\n", (unsigned long long)c->count,
	       c->ended ? "the run has ended" : "the sender has gone away");
	return 0;
}

int
journal_collect(const char *address, const char *path, struct pl_error *err)
{
	struct collector c = { 0 };
	int listener = tcp_socket(address, true, err), one = 1, error;
	struct sockaddr_storage bound;
	socklen_t length = sizeof bound;
	char port[16] = "";

	if (listener < 0)
		return listener;
	c.file = create(path, err);
	if (c.file < 0) {
		close(listener);
		return c.file;
	}
	if (getsockname(listener, (struct sockaddr *)&bound, &length) == 0)
		getnameinfo((struct sockaddr *)&bound, length, NULL, 0, port, sizeof port,
			    NI_NUMERICSERV | NI_NUMERICHOST);
	printf("waiting on port %s for: platter torture --journal tcp://HOST:%s ...\n", port, port);
	fflush(stdout);
	c.from = accept4(listener, NULL, NULL, SOCK_CLOEXEC);
	error = c.from == -1 ? pl_error_set(err, -errno, "%s", address) : 0;
	close(listener);
	if (error == 0) {
		/* A sender without power says nothing any more. */
		setsockopt(c.from, SOL_SOCKET, SO_KEEPALIVE, &one, sizeof one);
		error = collect_all(&c, err);
		close(c.from);
	}
	close(c.file);
	return error;
}

/* ---- reading --------------------------------------------------------------------- */

int
journal_read(int fd, struct journal_state *s, int (*each)(void *user, const struct record *r),
	     void *user, struct pl_error *err)
{
	uint8_t bytes[RECORD];
	uint64_t slot = 0, bad = 0;
	struct record r;
	int error = 0;
	FILE *f = fdopen(dup(fd), "r");

	*s = (struct journal_state){ 0 };
	if (f == NULL)
		return pl_error_set(err, -errno, "journal");
	rewind(f);
	for (; error == 0; slot++) {
		size_t n = fread(bytes, 1, sizeof bytes, f);

		if (n < sizeof bytes) {
			s->tail += n;
			break;
		}
		if (!record_get(bytes, &r) || r.number != slot ||
		    (slot > 0 && r.run != s->begin.run)) {
			bad++;
			s->tail += RECORD;
		} else {
			s->lacking += bad;
			s->records++;
			s->tail = bad = 0;
			if (slot == 0)
				s->begin = r;
			error = slot > 0 || r.kind == RECORD_BEGIN ? each(user, &r) : 0;
		}
		if (s->begin.kind != RECORD_BEGIN)
			error = -EINVAL;
	}
	if (ferror(f))
		error = pl_error_set(err, -EIO, "journal");
	else if (s->begin.kind != RECORD_BEGIN)
		error = pl_error_say(err, -EINVAL, "this is no journal of a run");
	else if (error != 0)
		pl_error_set(err, error, "journal");
	fclose(f);
	return error;
}
