#include "torture-target.h"

#include "tools.h"

#include <errno.h>
#include <string.h>
#include <time.h>

const char *
torture_kind_name(enum torture_kind kind)
{
	static const char *const names[] = { [TORTURE_READ] = "READ",
					     [TORTURE_WRITE] = "WRITE",
					     [TORTURE_ZERO] = "ZERO",
					     [TORTURE_TRIM] = "TRIM",
					     [TORTURE_FLUSH] = "FLUSH" };

	return names[kind];
}

static const struct torture_transport *
transport_of(const char *target)
{
	static const struct torture_transport *const all[] = { &torture_nbd, &torture_iscsi };

	if (!tool_is_uri(target))
		return &torture_file;
	for (unsigned i = 0; i < sizeof all / sizeof *all; i++) {
		if (strncmp(target, all[i]->scheme, strlen(all[i]->scheme)) == 0)
			return all[i];
	}
	return NULL;
}

int
target_open(struct target *t, const char *name, unsigned timeout_s, enum torture_open how,
	    struct pl_error *err)
{
	*t = (struct target){ .transport = transport_of(name), .timeout_s = timeout_s };
	if (t->transport == NULL)
		return pl_error_say(err, -EINVAL, "%s: no URI of NBD or iSCSI", name);
	return t->transport->open(name, how, t->timeout_s, &t->conn, &t->info, err);
}

void
target_close(struct target *t)
{
	if (t->conn != NULL)
		t->transport->close(t->conn);
	t->conn = NULL;
}

static void
target_done(struct torture_op *op, int error)
{
	struct target *t = (struct target *)((char *)op - offsetof(struct target, op));

	t->result = error;
	t->done = true;
}

int
target_run(struct target *t, const struct torture_op *op)
{
	time_t deadline = time(NULL) + t->timeout_s;
	int error;

	t->op = *op;
	t->op.on_done = target_done;
	t->done = false;
	error = t->transport->submit(t->conn, &t->op);
	while (error == 0 && !t->done) {
		error = t->transport->wait(t->conn, 100);
		if (error == 0 && !t->done && time(NULL) > deadline)
			error = -ETIMEDOUT;
	}
	if (t->done && error == 0)
		return t->result;
	target_close(t);
	return -ENOTCONN;
}

int
target_read(struct target *t, uint64_t offset, uint64_t length, void *data)
{
	return target_run(t, &(struct torture_op){ .kind = TORTURE_READ,
						   .offset = offset,
						   .length = length,
						   .data = data });
}
