#include "probe-client.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>

#define KiB          1024u
#define MiB          (1024u * KiB)
#define GiB          (1024ull * MiB)
#define COUNT(array) (sizeof(array) / sizeof *(array))

/* ---- helpers --------------------------------------------------------------------- */

static void
need_room(const struct probe *p, uint64_t bytes)
{
	if (p->found->size < bytes)
		not_applicable("the export is smaller than %llu bytes", (unsigned long long)bytes);
}

/* As much as may be written, up to `most`. */
static uint64_t
window(const struct probe *p, uint64_t most)
{
	uint64_t bytes = p->found->window < most ? p->found->window : most;

	if (bytes < 16u * 512)
		not_applicable("the export is too small");
	return bytes;
}

/* A length that servers serve, and whole blocks: 512 bytes mostly. */
static uint32_t
block(const struct probe *p)
{
	return p->found->min > 512 ? p->found->min : 512;
}

/* Where one byte may be asked for, an offset between blocks. */
static uint64_t
askew(const struct probe *p, uint64_t offset)
{
	return p->found->min == 1 ? offset + 13 : offset;
}

static uint64_t
least(uint64_t a, uint64_t b)
{
	return a < b ? a : b;
}

static uint8_t *
buffer(uint64_t length, int byte)
{
	uint8_t *data = malloc(length + 1);

	if (data == NULL)
		cannot_connect("out of memory");
	return memset(data, byte, length);
}

static void
must_hold(struct conn *c, uint64_t offset, uint64_t length, uint8_t byte, const char *after)
{
	uint8_t *data = buffer(length, ~byte);

	read_at(c, offset, length, data);
	for (uint64_t i = 0; i < length; i++) {
		if (data[i] != byte)
			fail("after %s the byte at %llu reads as %#x, not %#x", after,
			     (unsigned long long)(offset + i), data[i], byte);
	}
	free(data);
}

static void
must_write(struct conn *c, uint64_t offset, uint64_t length, uint8_t byte, uint16_t flags)
{
	uint8_t *data = buffer(length, byte);
	uint32_t error = write_at(c, offset, length, data, flags);

	if (error != NBD_SUCCESS)
		fail("WRITE %llu+%llu, flags %#x: %s", (unsigned long long)offset,
		     (unsigned long long)length, flags, error_name(error));
	free(data);
}

static void
must_do(struct conn *c, uint16_t type, uint16_t flags, uint64_t offset, uint64_t length)
{
	uint32_t error = call_error(c, type, flags, offset, length);

	if (error != NBD_SUCCESS)
		fail("%s %llu+%llu, flags %#x: %s", command_name(type), (unsigned long long)offset,
		     (unsigned long long)length, flags, error_name(error));
}

/* wanted: 0 stands for any error. */
static void
must_fail(struct conn *c, uint16_t type, uint16_t flags, uint64_t offset, uint64_t length,
	  uint32_t wanted)
{
	uint32_t error = call_error(c, type, flags, offset, length);

	if (error == NBD_SUCCESS || (wanted != 0 && error != wanted))
		fail("%s %llu+%llu, flags %#x: %s, not %s", command_name(type),
		     (unsigned long long)offset, (unsigned long long)length, flags,
		     error_name(error), wanted != 0 ? error_name(wanted) : "an error");
	must_answer(c, command_name(type));
}

/* Of WRITE, whose payload has to be consumed. */
static uint32_t
refused_write(struct conn *c, uint64_t offset, uint64_t length, uint16_t flags)
{
	uint8_t *data = buffer(length, 0);
	uint64_t done = 0;
	uint32_t error;

	/* What would be taken for requests if it were left unread. */
	while (done + 28 <= length) {
		put_be32(data + done, NBD_REQUEST_MAGIC);
		put_be16(data + done + 6, NBD_CMD_READ);
		put_be64(data + done + 8, UINT64_C(0xbad) << 32 | done);
		put_be32(data + done + 24, 512);
		done += 28;
	}
	error = write_at(c, offset, length, data, flags);
	free(data);
	return error;
}

static void
must_refuse_write(struct conn *c, uint64_t offset, uint64_t length, uint16_t flags, uint32_t wanted)
{
	uint32_t error = refused_write(c, offset, length, flags);

	if (error == NBD_SUCCESS || (wanted != 0 && error != wanted))
		fail("WRITE %llu+%llu, flags %#x: %s, not %s", (unsigned long long)offset,
		     (unsigned long long)length, flags, error_name(error),
		     wanted != 0 ? error_name(wanted) : "an error");
	must_answer(c, "a WRITE that was refused");
}

/* Ranges outside an export, without and with an end that wraps around. */
struct range {
	uint64_t offset, length;
};
#define OUTSIDE 5
static void
outside(const struct probe *p, struct range *ranges)
{
	uint64_t size = p->found->size, b = block(p);

	size -= size % p->found->min;
	ranges[0] = (struct range){ size, b };
	ranges[1] = (struct range){ size > b ? size - b : 0, 2 * b + (size > b ? 0 : size) };
	ranges[2] = (struct range){ UINT64_C(1) << 63, b };
	ranges[3] = (struct range){ 0 - b, 2 * b };
	ranges[4] = (struct range){ size + 16 * b, b };
}

/* Commands that change nothing, as far as they are offered. */
static unsigned
harmless(const struct probe *p, uint16_t *types)
{
	unsigned n = 0;

	types[n++] = NBD_CMD_READ;
	if (probe_flags(p) & NBD_FLAG_SEND_CACHE)
		types[n++] = NBD_CMD_CACHE;
	if (p->found->context && p->headers != COMPACT)
		types[n++] = NBD_CMD_BLOCK_STATUS;
	return n;
}

/* Those that do, without payload. */
static unsigned
harmful(const struct probe *p, uint16_t *types)
{
	unsigned n = 0;

	if (probe_flags(p) & NBD_FLAG_SEND_TRIM)
		types[n++] = NBD_CMD_TRIM;
	if (probe_flags(p) & NBD_FLAG_SEND_WRITE_ZEROES)
		types[n++] = NBD_CMD_WRITE_ZEROES;
	return n;
}

/* ---- requests and replies in general --------------------------------------------- */

static void
request_magic(const struct probe *p)
{
	struct conn *c = ready(p);
	struct bytes b = { 0 };

	add32(&b, (p->headers == EXTENDED ? NBD_EXTENDED_REQUEST_MAGIC : NBD_REQUEST_MAGIC) ^ 1);
	add32(&b, NBD_CMD_READ);
	add64(&b, 1);
	add64(&b, 0);
	if (p->headers == EXTENDED)
		add32(&b, 0);
	add32(&b, block(p));
	put(c, b.data, b.length);
	must_end(c, "a request with a wrong magic");
}

static void
read_error(const struct probe *p)
{
	struct conn *c = ready(p);
	struct range ranges[OUTSIDE];

	outside(p, ranges);
	for (unsigned i = 0; i < OUTSIDE; i++)
		must_fail(c, NBD_CMD_READ, 0, ranges[i].offset, ranges[i].length, 0);
}

static void
command_unknown(const struct probe *p)
{
	static const uint16_t types[] = { 63, 255, 0x7fff, 0xffff };
	struct conn *c = ready(p);

	for (unsigned i = 0; i < COUNT(types); i++)
		must_fail(c, types[i], 0, 0, block(p), NBD_EINVAL);
}

static void
flag_unknown(const struct probe *p)
{
	struct conn *c = ready(p);
	uint16_t types[4];
	unsigned n = harmless(p, types);

	for (unsigned i = 0; i < n; i++) {
		must_fail(c, types[i], 1u << 15, 0, block(p), NBD_EINVAL);
		must_fail(c, types[i], 1u << 6, 0, block(p), NBD_EINVAL);
	}
	if (probe_flags(p) & NBD_FLAG_SEND_FLUSH)
		must_fail(c, NBD_CMD_FLUSH, 1u << 15, 0, 0, NBD_EINVAL);
}

static void
flag_unknown_writes(const struct probe *p)
{
	struct conn *c = ready(p);
	uint16_t types[4];
	unsigned n = harmful(p, types);

	for (unsigned i = 0; i < n; i++)
		must_fail(c, types[i], 1u << 15, 0, block(p), NBD_EINVAL);
	must_refuse_write(c, 0, block(p), 1u << 15, NBD_EINVAL);
}

static void
flag_of_another(const struct probe *p)
{
	struct conn *c = ready(p);

	must_fail(c, NBD_CMD_READ, NBD_CMD_FLAG_REQ_ONE, 0, block(p), NBD_EINVAL);
	must_fail(c, NBD_CMD_READ, NBD_CMD_FLAG_FAST_ZERO, 0, block(p), NBD_EINVAL);
	must_fail(c, NBD_CMD_READ, NBD_CMD_FLAG_NO_HOLE, 0, block(p), NBD_EINVAL);
	if (probe_flags(p) & NBD_FLAG_SEND_FLUSH)
		must_fail(c, NBD_CMD_FLUSH, NBD_CMD_FLAG_DF, 0, 0, NBD_EINVAL);
	if (p->found->context && p->headers != COMPACT)
		must_fail(c, NBD_CMD_BLOCK_STATUS, NBD_CMD_FLAG_DF, 0, block(p), NBD_EINVAL);
}

static void
flag_of_another_writes(const struct probe *p)
{
	struct conn *c = ready(p);

	must_refuse_write(c, 0, block(p), NBD_CMD_FLAG_NO_HOLE, NBD_EINVAL);
	must_refuse_write(c, 0, block(p), NBD_CMD_FLAG_DF, NBD_EINVAL);
	if (probe_flags(p) & NBD_FLAG_SEND_TRIM)
		must_fail(c, NBD_CMD_TRIM, NBD_CMD_FLAG_NO_HOLE, 0, block(p), NBD_EINVAL);
	if (probe_flags(p) & NBD_FLAG_SEND_WRITE_ZEROES)
		must_fail(c, NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_DF, 0, block(p), NBD_EINVAL);
}

static void
fua_not_offered(const struct probe *p)
{
	must_fail(ready(p), NBD_CMD_READ, NBD_CMD_FLAG_FUA, 0, block(p), NBD_EINVAL);
}

static void
fua_not_offered_writes(const struct probe *p)
{
	must_refuse_write(ready(p), 0, block(p), NBD_CMD_FLAG_FUA, NBD_EINVAL);
}

static void
fast_zero_not_offered(const struct probe *p)
{
	must_fail(ready(p), NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_FAST_ZERO, 0, block(p), NBD_EINVAL);
}

static void
df_not_offered(const struct probe *p)
{
	must_fail(ready(p), NBD_CMD_READ, NBD_CMD_FLAG_DF, 0, block(p), NBD_EINVAL);
}

static void
payload_flag_not_offered(const struct probe *p)
{
	must_fail(ready(p), NBD_CMD_READ, NBD_CMD_FLAG_PAYLOAD_LEN, 0, block(p), NBD_EINVAL);
}

static void
fua_anywhere(const struct probe *p)
{
	struct conn *c = ready(p);
	uint16_t types[4];
	unsigned n = harmless(p, types);

	for (unsigned i = 0; i < n; i++) {
		/* CACHE may fail always. */
		uint32_t without = call_error(c, types[i], 0, 0, block(p));
		uint32_t with = call_error(c, types[i], NBD_CMD_FLAG_FUA, 0, block(p));

		if (with != without)
			fail("%s: %s with FUA, %s without", command_name(types[i]),
			     error_name(with), error_name(without));
	}
	if (probe_flags(p) & NBD_FLAG_SEND_FLUSH)
		must_do(c, NBD_CMD_FLUSH, NBD_CMD_FLAG_FUA, 0, 0);
}

static void
beyond_end(const struct probe *p)
{
	struct conn *c = ready(p);
	struct range ranges[OUTSIDE];
	uint16_t types[4];
	unsigned n = harmless(p, types);

	outside(p, ranges);
	for (unsigned i = 0; i < n; i++) {
		for (unsigned j = 0; j < OUTSIDE; j++)
			must_fail(c, types[i], 0, ranges[j].offset, ranges[j].length, NBD_EINVAL);
	}
}

static void
beyond_end_writes(const struct probe *p)
{
	struct conn *c = ready(p);
	struct range ranges[OUTSIDE];

	outside(p, ranges);
	for (unsigned j = 0; j < OUTSIDE; j++) {
		uint64_t offset = ranges[j].offset, length = ranges[j].length;

		must_refuse_write(c, offset, length, 0, NBD_ENOSPC);
		if (probe_flags(p) & NBD_FLAG_SEND_TRIM)
			must_fail(c, NBD_CMD_TRIM, 0, offset, length, NBD_EINVAL);
		if (probe_flags(p) & NBD_FLAG_SEND_WRITE_ZEROES)
			must_fail(c, NBD_CMD_WRITE_ZEROES, 0, offset, length, NBD_ENOSPC);
	}
	/* The size is what it was. */
	if (ready(p)->size != p->found->size)
		fail("the export has another size now");
}

static void
no_length(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t offsets[] = { 0, p->found->size, UINT64_C(1) << 63 };
	uint16_t types[4];
	unsigned n = harmless(p, types);

	for (unsigned i = 0; i < n; i++) {
		for (unsigned j = 0; j < COUNT(offsets); j++) {
			uint32_t error = call_error(c, types[i], 0, offsets[j], 0);

			if (error != NBD_SUCCESS && error != NBD_EINVAL)
				fail("%s of nothing at %llu: %s", command_name(types[i]),
				     (unsigned long long)offsets[j], error_name(error));
		}
	}
	must_answer(c, "requests of no length");
}

static void
no_length_writes(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t offsets[] = { 0, p->found->size };
	uint16_t types[4];
	unsigned n = harmful(p, types);
	uint8_t before[512], after[512];

	need_room(p, sizeof before);
	read_at(c, 0, sizeof before, before);
	types[n++] = NBD_CMD_WRITE;
	for (unsigned i = 0; i < n; i++) {
		for (unsigned j = 0; j < COUNT(offsets); j++) {
			uint32_t error = call_error(c, types[i], 0, offsets[j], 0);

			if (error != NBD_SUCCESS && error != NBD_EINVAL && error != NBD_ENOSPC)
				fail("%s of nothing at %llu: %s", command_name(types[i]),
				     (unsigned long long)offsets[j], error_name(error));
		}
	}
	read_at(c, 0, sizeof after, after);
	if (memcmp(before, after, sizeof before) != 0)
		fail("requests of no length have changed data");
}

static void
unaligned(const struct probe *p)
{
	struct conn *c = ready(p);
	uint32_t min = p->found->min;

	must_fail(c, NBD_CMD_READ, 0, min / 2, min, NBD_EINVAL);
	must_fail(c, NBD_CMD_READ, 0, 0, min / 2, NBD_EINVAL);
}

static void
unaligned_writes(const struct probe *p)
{
	struct conn *c = ready(p);
	uint32_t min = p->found->min;

	need_room(p, 3 * min);
	must_write(c, 0, 3 * min, 0xa5, 0);
	must_refuse_write(c, min / 2, min, 0, NBD_EINVAL);
	must_refuse_write(c, min, min / 2, 0, NBD_EINVAL);
	if (probe_flags(p) & NBD_FLAG_SEND_WRITE_ZEROES)
		must_fail(c, NBD_CMD_WRITE_ZEROES, 0, min / 2, min, NBD_EINVAL);
	if (probe_flags(p) & NBD_FLAG_SEND_TRIM)
		must_fail(c, NBD_CMD_TRIM, 0, min / 2, min, NBD_EINVAL);
	must_hold(c, 0, 3 * min, 0xa5, "requests that are not in blocks");
}

static void
read_only(const struct probe *p)
{
	struct conn *c = ready(p);

	must_refuse_write(c, 0, block(p), 0, NBD_EPERM);
	must_fail(c, NBD_CMD_TRIM, 0, 0, block(p), NBD_EPERM);
	must_fail(c, NBD_CMD_WRITE_ZEROES, 0, 0, block(p), NBD_EPERM);
}

static void
write_drained(const struct probe *p)
{
	static const uint32_t lengths[] = { 512, 64 * KiB, MiB };
	struct conn *c = ready(p);

	for (unsigned i = 0; i < COUNT(lengths); i++) {
		uint64_t length = least(lengths[i], p->found->max);

		length -= length % p->found->min;
		if (length == 0)
			continue;
		must_refuse_write(c, p->found->size - p->found->size % p->found->min, length, 0, 0);
		must_refuse_write(c, 0 - length, length, 0, 0);
	}
}

static void
write_32m(const struct probe *p)
{
	if (p->headers == EXTENDED && p->found->max < NBD_MAX_PAYLOAD)
		not_applicable("payloads above %u end a connection with extended headers",
			       p->found->max);
	must_refuse_write(ready(p), p->found->size - p->found->size % p->found->min,
			  NBD_MAX_PAYLOAD, 0, 0);
}

static void
write_too_large(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t length = (uint64_t)p->found->max + p->found->min;

	if (length > 128 * MiB)
		not_applicable("the largest payload is %u bytes", p->found->max);
	/* Beyond the end, so that nothing comes of it. */
	send_command(c, &(struct command){
				.type = NBD_CMD_WRITE,
				.flags = p->headers == EXTENDED ? NBD_CMD_FLAG_PAYLOAD_LEN : 0,
				.offset = p->found->size - p->found->size % p->found->min,
				.length = length,
				.payload = buffer(length, 0),
				.payload_length = length,
			});
	if (has_ended(c))
		return; /* which is a way to refuse */
	if (take_answer(c).error == NBD_SUCCESS)
		fail("WRITE of %llu bytes beyond the end succeeds", (unsigned long long)length);
	send_command(c, &(struct command){ .type = NBD_CMD_READ, .length = block(p) });
	if (has_ended(c))
		return;
	if (take_answer(c).error != NBD_SUCCESS)
		fail("after a WRITE that was too large READ fails");
}

static void
read_largest(const struct probe *p)
{
	uint64_t length = least(least(p->found->size, p->found->max), NBD_MAX_PAYLOAD);

	length -= length % p->found->min;
	must_do(ready(p), NBD_CMD_READ, 0, 0, length);
}

static void
read_too_large(const struct probe *p)
{
	uint64_t length = (uint64_t)p->found->max + p->found->min;
	struct conn *c = ready(p);
	uint32_t error;

	if (length > 128 * MiB)
		not_applicable("the largest payload is %u bytes", p->found->max);
	error = call_error(c, NBD_CMD_READ, 0, 0, length);
	if (error != NBD_SUCCESS && error != NBD_EINVAL && error != NBD_EOVERFLOW)
		fail("READ of %llu bytes: %s", (unsigned long long)length, error_name(error));
	must_answer(c, "a READ that was too large");
}

static void
error_values(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t end = p->found->size - p->found->size % p->found->min;
	uint16_t types[4];
	unsigned n = harmless(p, types);
	uint32_t errors[16];
	unsigned count = 0;

	for (unsigned i = 0; i < n; i++) {
		errors[count++] = call_error(c, types[i], 0, end, block(p));
		errors[count++] = call_error(c, types[i], 1u << 14, 0, block(p));
		errors[count++] = call_error(c, types[i], 0, 0, 0);
	}
	errors[count++] = call_error(c, 200, 0, 0, 0);
	for (unsigned i = 0; i < count; i++) {
		if (errors[i] == NBD_ENOTSUP || errors[i] == NBD_EOVERFLOW ||
		    errors[i] == NBD_ENOMEM)
			fail("%s, where nothing asked for it", error_name(errors[i]));
	}
}

static void
error_text(const struct probe *p)
{
	struct answer a = call(ready(p), &(struct command){ .type = NBD_CMD_READ,
							    .offset = UINT64_C(1) << 62,
							    .length = block(p) });

	if (a.text[0] == '\0')
		fail("an error comes without a word about it");
}

static void
cookies(const struct probe *p)
{
	static const uint64_t odd[] = { UINT64_MAX, UINT64_C(1) << 63, 7, 7, 7, 0xffffffff };
	struct conn *c = ready(p);

	for (unsigned i = 0; i < COUNT(odd); i++) {
		if (call(c, &(struct command){ .type = NBD_CMD_READ,
					       .length = block(p),
					       .cookie = odd[i] })
			    .error != NBD_SUCCESS)
			fail("READ with the cookie %#llx fails", (unsigned long long)odd[i]);
	}
}

static void
in_flight(const struct probe *p)
{
	enum { REQUESTS = 256 };
	struct conn *c = ready(p);

	need_room(p, block(p));
	for (unsigned i = 0; i < REQUESTS; i++) {
		uint64_t last = p->found->size / block(p);

		send_command(c, &(struct command){ .type = NBD_CMD_READ,
						   .offset = i % last * block(p),
						   .length = block(p) });
	}
	for (unsigned i = 0; i < REQUESTS; i++) {
		uint32_t error = take_answer(c).error;

		if (error != NBD_SUCCESS)
			fail("one of %u READs in flight: %s", REQUESTS, error_name(error));
	}
}

static void
read_chunks(const struct probe *p)
{
	static const uint64_t lengths[] = { 1, 512, 4096, 65536, 65537, MiB, 4 * MiB };
	struct conn *c = ready(p);
	uint64_t min = p->found->min;

	for (unsigned i = 0; i < COUNT(lengths); i++) {
		uint64_t length = (lengths[i] + min - 1) / min * min;
		uint64_t middle = askew(p, p->found->size / 3 / min * min);

		if (length > p->found->max || middle + length > p->found->size)
			break;
		must_do(c, NBD_CMD_READ, 0, 0, length);
		must_do(c, NBD_CMD_READ, 0, middle, length);
		must_do(c, NBD_CMD_READ, 0, (p->found->size - length) / min * min, length);
	}
}

static void
read_agrees(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t length = least(p->found->size / block(p) * block(p), 64 * KiB);
	uint8_t *whole = buffer(length, 0xaa), *parts = buffer(length, 0x55);

	read_at(c, 0, length, whole);
	for (uint64_t at = 0; at < length; at += block(p))
		read_at(c, at, block(p), parts + at);
	if (memcmp(whole, parts, length) != 0)
		fail("%llu bytes read at once differ from the same in blocks of %u",
		     (unsigned long long)length, block(p));
}

static void
read_df(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t min = p->found->min, length = least(p->found->size / min * min, 65536);
	uint64_t large =
		least(p->found->size / min * min, least(p->found->max / min * min, 8 * MiB));
	uint32_t error;

	must_do(c, NBD_CMD_READ, NBD_CMD_FLAG_DF, 0, min);
	must_do(c, NBD_CMD_READ, NBD_CMD_FLAG_DF, 0, length);
	must_do(c, NBD_CMD_READ, NBD_CMD_FLAG_DF, (p->found->size - length) / min * min, length);
	error = call_error(c, NBD_CMD_READ, NBD_CMD_FLAG_DF, 0, large);
	if (error != NBD_SUCCESS && error != NBD_EOVERFLOW)
		fail("READ of %llu bytes with DF: %s", (unsigned long long)large,
		     error_name(error));
}

/* ---- FLUSH, FUA, several connections --------------------------------------------- */

static void
flush(const struct probe *p)
{
	struct conn *c = ready(p);

	must_do(c, NBD_CMD_FLUSH, 0, 0, 0);
	must_do(c, NBD_CMD_FLUSH, 0, 0, 0);
}

static void
flush_arguments(const struct probe *p)
{
	struct conn *c = ready(p);

	must_fail(c, NBD_CMD_FLUSH, 0, 0, block(p), NBD_EINVAL);
	must_fail(c, NBD_CMD_FLUSH, 0, block(p), 0, NBD_EINVAL);
}

static void
fua_writes(const struct probe *p)
{
	struct conn *c = ready(p);
	uint32_t b = block(p);

	must_write(c, askew(p, 0), b, 0x11, NBD_CMD_FLAG_FUA);
	must_do(c, NBD_CMD_FLUSH, 0, 0, 0);
	must_write(c, askew(p, b), b, 0x22, NBD_CMD_FLAG_FUA);
	must_hold(c, askew(p, 0), b, 0x11, "WRITE with FUA");
	must_hold(c, askew(p, b), b, 0x22, "WRITE with FUA");
	if (probe_flags(p) & NBD_FLAG_SEND_WRITE_ZEROES) {
		must_do(c, NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_FUA, 0, 2 * b);
		must_hold(c, 0, 2 * b, 0, "WRITE_ZEROES with FUA");
		must_do(c, NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_FUA | NBD_CMD_FLAG_NO_HOLE, 0, 2 * b);
	}
	if (probe_flags(p) & NBD_FLAG_SEND_TRIM)
		must_do(c, NBD_CMD_TRIM, NBD_CMD_FLAG_FUA, 0, 2 * b);
}

static void
multi_conn(const struct probe *p)
{
	struct conn *one = ready(p), *two = ready(p);
	uint32_t b = block(p);

	for (unsigned i = 1; i < 5; i++) {
		must_write(one, 0, 4 * b, (uint8_t)i, 0);
		must_do(one, NBD_CMD_FLUSH, 0, 0, 0);
		must_hold(two, 0, 4 * b, (uint8_t)i, "WRITE and FLUSH by another connection");
		if (probe_flags(p) & NBD_FLAG_SEND_FUA) {
			must_write(two, b, b, (uint8_t)(0x40 + i), NBD_CMD_FLAG_FUA);
			must_hold(one, b, b, (uint8_t)(0x40 + i),
				  "WRITE with FUA by another connection");
		}
	}
}

/* ---- commands that write --------------------------------------------------------- */

static void
write_and_read(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t bytes = window(p, 256 * KiB) / block(p) * block(p);
	uint64_t at = askew(p, bytes / 4 / block(p) * block(p)), length = block(p);

	must_write(c, 0, bytes, 0x33, 0);
	must_write(c, at, length, 0xcc, 0);
	must_hold(c, 0, at, 0x33, "WRITE behind it");
	must_hold(c, at, length, 0xcc, "WRITE");
	must_hold(c, at + length, (bytes - at - length) / p->found->min * p->found->min, 0x33,
		  "WRITE before it");
}

static void
status_follows(const struct probe *p)
{
	struct conn *c = ready(p), *other = ready(p);
	uint32_t b = block(p) < 4096 ? 4096 : block(p);
	struct answer a;

	window(p, 2 * b);
	must_do(c, NBD_CMD_BLOCK_STATUS, 0, 0, b);
	must_do(other, NBD_CMD_BLOCK_STATUS, 0, 0, b);
	must_write(c, 0, b, 0x5a, 0);
	a = status_at(other, 0, b, 0);
	if (a.extents[0].flags & (NBD_STATE_HOLE | NBD_STATE_ZERO))
		fail("what was just written has status %#llx",
		     (unsigned long long)a.extents[0].flags);
}

static void
zeroes(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t b = block(p), bytes = window(p, 256 * KiB) / b * b;
	uint64_t at = askew(p, bytes / 4 / b * b), length = bytes / 2 / b * b;

	must_write(c, 0, bytes, 0x77, 0);
	must_do(c, NBD_CMD_WRITE_ZEROES, 0, at, length);
	must_hold(c, 0, at, 0x77, "WRITE_ZEROES behind it");
	must_hold(c, at, length, 0, "WRITE_ZEROES");
	must_hold(c, at + length, (bytes - at - length) / p->found->min * p->found->min, 0x77,
		  "WRITE_ZEROES before it");
}

/* Whether [offset, offset + length) is known to read as zeroes. */
static bool
is_zero(struct conn *c, uint64_t offset, uint64_t length)
{
	while (length > 0) {
		struct answer a = status_at(c, offset, least(length, GiB), 0);

		for (unsigned i = 0; i < a.extent_count && length > 0; i++) {
			uint64_t part = least(a.extents[i].length, length);

			if ((a.extents[i].flags & NBD_STATE_ZERO) == 0)
				return false;
			offset += part;
			length -= part;
		}
	}
	return true;
}

/* WRITE_ZEROES of a range that nobody can save first: one that is zeroes but for marks. */
static void
zeroes_of(const struct probe *p, uint64_t length)
{
	uint64_t b = block(p), offset = PROBE_WINDOW, marks[4];
	struct probe_survey *f = p->found;
	struct conn *c = ready(p);

	need_room(p, offset + length);
	if (!is_zero(c, offset, length))
		not_applicable("there are data at %llu+%llu, which cannot be put back",
			       (unsigned long long)offset, (unsigned long long)length);
	f->zeroes.offset = offset;
	f->zeroes.length = length;
	marks[0] = offset;
	marks[1] = offset + length / 2 / b * b;
	marks[2] = offset + (length / GiB) * GiB / 2 / b * b;
	marks[3] = offset + length - b;
	for (unsigned i = 0; i < COUNT(marks); i++)
		must_write(c, marks[i], b, 0x99, 0);
	must_do(c, NBD_CMD_WRITE_ZEROES, 0, offset, length);
	for (unsigned i = 0; i < COUNT(marks); i++)
		must_hold(c, marks[i], b, 0, "WRITE_ZEROES");
	f->zeroes.length = 0;
}

static void
zeroes_64m(const struct probe *p)
{
	zeroes_of(p, 80 * MiB);
}

static void
zeroes_2g(const struct probe *p)
{
	zeroes_of(p, 2 * GiB + 16 * MiB);
}

static void
zeroes_4g(const struct probe *p)
{
	zeroes_of(p, 4 * GiB + 16 * MiB);
}

/* Whether that is provisioned cannot be told from here: what is allocated and unwritten is a
 * hole to lseek(2), and so to many a server's BLOCK_STATUS. */
static void
zeroes_no_hole(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t b = block(p), length = window(p, 64 * KiB) / b * b;

	must_write(c, 0, length, 0x66, 0);
	must_do(c, NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_NO_HOLE, 0, length);
	must_hold(c, 0, length, 0, "WRITE_ZEROES with NO_HOLE");
}

static void
fast_zero(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t b = block(p), length = window(p, 64 * KiB) / b * b;
	uint32_t error;

	must_write(c, 0, length, 0x88, 0);
	error = call_error(c, NBD_CMD_WRITE_ZEROES, NBD_CMD_FLAG_FAST_ZERO, 0, length);
	if (error != NBD_SUCCESS && error != NBD_ENOTSUP)
		fail("WRITE_ZEROES with FAST_ZERO: %s", error_name(error));
	must_hold(c, 0, length, error == NBD_SUCCESS ? 0 : 0x88, "WRITE_ZEROES with FAST_ZERO");
}

static void
trim(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t b = block(p), length = window(p, 256 * KiB) / b * b;
	uint64_t at = askew(p, length / 4 / b * b), trimmed = length / 2 / b * b;

	must_write(c, 0, length, 0x44, 0);
	must_do(c, NBD_CMD_TRIM, 0, at, trimmed);
	must_hold(c, 0, at, 0x44, "TRIM behind it");
	must_hold(c, at + trimmed, (length - at - trimmed) / p->found->min * p->found->min, 0x44,
		  "TRIM before it");
}

/* ---- CACHE and BLOCK_STATUS ------------------------------------------------------ */

static void
cache(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t length = least(p->found->size / block(p) * block(p), 64 * KiB);
	uint8_t *before = buffer(length, 0), *after = buffer(length, 1);

	read_at(c, 0, length, before);
	call_error(c, NBD_CMD_CACHE, 0, 0, length); /* whatever it says */
	must_fail(c, NBD_CMD_CACHE, 1u << 14, 0, length, 0);
	must_fail(c, NBD_CMD_CACHE, NBD_CMD_FLAG_NO_HOLE, 0, length, 0);
	read_at(c, 0, length, after);
	if (memcmp(before, after, length) != 0)
		fail("CACHE has changed data");
}

static void
status_without_context(const struct probe *p)
{
	struct conn *c = haggling(p);

	agree(c, p->headers);
	go(c);
	must_fail(c, NBD_CMD_BLOCK_STATUS, 0, 0, block(p), NBD_EINVAL);
}

static void
status(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t end = p->found->size / p->found->min * p->found->min, at = 0;
	uint64_t most = p->headers == EXTENDED
				? end
				: least(end, UINT32_MAX / p->found->min * p->found->min);

	must_do(c, NBD_CMD_BLOCK_STATUS, 0, 0, most);
	must_do(c, NBD_CMD_BLOCK_STATUS, 0, end - p->found->min, p->found->min);
	for (unsigned step = 0; at < end && step < 200; step++) {
		struct answer a = status_at(c, at, least(most, end - at), 0);

		if (a.extent_count > 1u << 20)
			fail("BLOCK_STATUS has %u extents", a.extent_count);
		for (unsigned i = 0; i < a.extent_count; i++) {
			if (a.extents[i].length % p->found->min != 0 &&
			    a.extents[i].length != end - at)
				fail("an extent of %llu bytes, where blocks are %u",
				     (unsigned long long)a.extents[i].length, p->found->min);
			if (a.extents[i].length > p->found->size - at)
				fail("an extent of %llu bytes at %llu reaches beyond the end",
				     (unsigned long long)a.extents[i].length,
				     (unsigned long long)at);
			if (step < 2 && i < 8 && (a.extents[i].flags & NBD_STATE_ZERO))
				must_hold(c, at, least(a.extents[i].length, 64 * KiB), 0,
					  "BLOCK_STATUS called it zeroes,");
			at += a.extents[i].length;
		}
	}
}

static void
status_repeats(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t length = least(p->found->size / p->found->min * p->found->min, GiB);
	struct answer first = status_at(c, 0, length, 0);

	for (unsigned i = 0; i < 3; i++) {
		struct answer again = status_at(i == 2 ? ready(p) : c, 0, length, 0);

		if (again.extent_count != first.extent_count ||
		    memcmp(again.extents, first.extents,
			   first.extent_count * sizeof *first.extents) != 0)
			fail("the same BLOCK_STATUS has another answer");
	}
}

static void
status_one(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t end = p->found->size / p->found->min * p->found->min, b = p->found->min;

	must_do(c, NBD_CMD_BLOCK_STATUS, NBD_CMD_FLAG_REQ_ONE, 0, least(end, GiB));
	must_do(c, NBD_CMD_BLOCK_STATUS, NBD_CMD_FLAG_REQ_ONE, 0, b);
	must_do(c, NBD_CMD_BLOCK_STATUS, NBD_CMD_FLAG_REQ_ONE, end / 2 / b * b, b);
	must_do(c, NBD_CMD_BLOCK_STATUS, NBD_CMD_FLAG_REQ_ONE, end - b, b);
}

static void
status_filter(const struct probe *p)
{
	struct conn *c = ready(p);
	struct {
		const char *what;
		unsigned ids;
		uint32_t id[2];
		unsigned cut; /* bytes left out at the end */
		bool works;
	} cases[] = {
		{ "its context", 1, { c->context }, 0, true },
		{ "a context that was not selected", 1, { c->context + 1 }, 0, false },
		{ "one context twice", 2, { c->context, c->context }, 0, false },
		{ "half a context", 1, { c->context }, 2, false },
		{ "half a length", 0, { 0 }, 4, false },
	};

	for (unsigned i = 0; i < COUNT(cases); i++) {
		struct bytes b = { 0 };
		struct answer a;

		add64(&b, block(p));
		for (unsigned j = 0; j < cases[i].ids; j++)
			add32(&b, cases[i].id[j]);
		b.length -= cases[i].cut;
		a = call(c, &(struct command){ .type = NBD_CMD_BLOCK_STATUS,
					       .flags = NBD_CMD_FLAG_PAYLOAD_LEN,
					       .length = b.length,
					       .payload = b.data,
					       .payload_length = b.length });
		if (a.error != (cases[i].works ? NBD_SUCCESS : NBD_EINVAL))
			fail("BLOCK_STATUS filtered by %s: %s", cases[i].what, error_name(a.error));
		must_answer(c, "BLOCK_STATUS with a payload");
	}
}

/* ---- the end --------------------------------------------------------------------- */

static void
disc(const struct probe *p)
{
	enum { REQUESTS = 64 };
	struct conn *c = ready(p);

	for (unsigned i = 0; i < REQUESTS; i++)
		send_command(c, &(struct command){ .type = NBD_CMD_READ, .length = block(p) });
	disconnect(c);
	for (unsigned i = 0; i < REQUESTS; i++) {
		uint32_t error = take_answer(c).error;

		if (error != NBD_SUCCESS)
			fail("READ before DISC: %s", error_name(error));
	}
	must_end(c, "DISC");
}

static void
half_closed(const struct probe *p)
{
	struct conn *c = ready(p);

	if (p->tls)
		not_applicable("TLS has an end of its own");
	for (unsigned i = 0; i < 16; i++)
		send_command(c, &(struct command){ .type = NBD_CMD_READ, .length = block(p) });
	shutdown(c->fd, SHUT_WR);
	for (unsigned i = 0; i < 16; i++)
		take_answer(c);
	must_end(c, "the end of requests");
}

/* ---- extended headers ------------------------------------------------------------ */

static void
payload_elsewhere(const struct probe *p)
{
	static const uint16_t types[] = { NBD_CMD_READ, NBD_CMD_CACHE, NBD_CMD_FLUSH, 63 };
	struct conn *c = ready(p);

	for (unsigned i = 0; i < COUNT(types); i++) {
		uint32_t error = call(c, &(struct command){ .type = types[i],
							    .flags = NBD_CMD_FLAG_PAYLOAD_LEN,
							    .length = 1000,
							    .payload = buffer(1000, 0x25),
							    .payload_length = 1000 })
					 .error;

		if (error != NBD_EINVAL)
			fail("%s with a payload: %s, not EINVAL", command_name(types[i]),
			     error_name(error));
		must_answer(c, "a payload where none belongs");
	}
}

static void
payload_missing(const struct probe *p)
{
	struct conn *c = ready(p);
	uint8_t before[512], after[512];

	need_room(p, sizeof before);
	read_at(c, 0, sizeof before, before);
	must_fail(c, NBD_CMD_WRITE, 0, 0, block(p), NBD_EINVAL);
	read_at(c, 0, sizeof after, after);
	if (memcmp(before, after, sizeof before) != 0)
		fail("WRITE without a payload has changed data");
}

static void
payload_huge(const struct probe *p)
{
	struct conn *c = ready(p);

	send_command(c, &(struct command){ .type = NBD_CMD_READ,
					   .flags = NBD_CMD_FLAG_PAYLOAD_LEN,
					   .length = UINT64_C(1) << 40 });
	must_end(c, "a payload of 2^40 bytes");
}

static void
long_effects(const struct probe *p)
{
	struct conn *c = ready(p);
	uint64_t length = 4 * GiB + block(p);
	uint16_t types[4];
	unsigned n = harmless(p, types);

	for (unsigned i = 1; i < n; i++) { /* without READ */
		if (p->found->size < length) {
			must_fail(c, types[i], 0, 0, length, NBD_EINVAL);
			must_fail(c, types[i], 0, 0, UINT64_C(1) << 63, NBD_EINVAL);
		} else {
			must_do(c, types[i], 0, 0, length);
		}
	}
}

static void
read_4g(const struct probe *p)
{
	struct conn *c = ready(p);
	uint32_t error;

	/* 2^32 and a block must not be taken for a block; nobody has to send 4 GiB. */
	if (p->found->size >= 4 * GiB + block(p) && p->found->max > 4 * GiB - 1 - block(p))
		not_applicable("there is no bound on payloads");
	error = call_error(c, NBD_CMD_READ, 0, 0, 4 * GiB + block(p));
	if (error != NBD_EINVAL && error != NBD_EOVERFLOW)
		fail("READ of 2^32 + %u bytes: %s", block(p), error_name(error));
	must_answer(c, "a READ above 4 GiB");
}

/* ---- the table ------------------------------------------------------------------- */

#define NEED_CHANGES (NEED_WRITE | NEED_WRITABLE)
#define MUST         PROBE_MUST
#define SHOULD       PROBE_SHOULD
#define EXTENSION    PROBE_EXTENSION
#define POLICY       PROBE_POLICY

/* clang-format off */
const struct probe_row probe_transmission_rows[] = {
	{ 4, "request-magic", MUST, "a wrong request magic ends the connection",
	  request_magic, ON_ALL, 0 },
	{ 57, "read-error", MUST, "READ outside fails, in the form of replies agreed on",
	  read_error, ON_ALL, 0 },
	{ 58, "command-unknown", SHOULD, "an unknown command is EINVAL, and all goes on",
	  command_unknown, ON_ALL, 0 },
	{ 59, "flag-unknown", SHOULD, "an unknown command flag is EINVAL",
	  flag_unknown, ON_ALL, 0 },
	{ 59, "flag-unknown-writes", SHOULD, "so it is for commands that write",
	  flag_unknown_writes, ON_ALL, NEED_CHANGES },
	{ 59, "flag-misplaced", SHOULD, "a flag of another command is EINVAL",
	  flag_of_another, ON_ALL, 0 },
	{ 59, "flag-misplaced-writes", SHOULD, "so it is for commands that write",
	  flag_of_another_writes, ON_ALL, NEED_CHANGES },
	{ 60, "fua-not-offered", POLICY, "FUA that is not offered is EINVAL",
	  fua_not_offered, ON_ALL, NEED_NO_FUA },
	{ 60, "fua-not-offered-writes", POLICY, "so it is for WRITE",
	  fua_not_offered_writes, ON_ALL, NEED_NO_FUA | NEED_CHANGES },
	{ 60, "fast-not-offered", SHOULD, "FAST_ZERO that is not offered is EINVAL",
	  fast_zero_not_offered, ON_ALL, NEED_CHANGES | NEED_ZEROES | NEED_NO_FAST_ZERO },
	{ 60, "df-not-offered", SHOULD, "DF without structured replies is EINVAL",
	  df_not_offered, ON_COMPACT, 0 },
	{ 60, "payload-not-offered", SHOULD, "PAYLOAD_LEN without extended headers is EINVAL",
	  payload_flag_not_offered, ON_COMPACT | ON_STRUCTURED, 0 },
	{ 61, "fua-anywhere", MUST, "FUA that is offered is accepted where nothing is written",
	  fua_anywhere, ON_ALL, NEED_FUA },
	{ 62, "beyond-end", SHOULD, "reading outside, by wrapping too, is EINVAL",
	  beyond_end, ON_ALL, 0 },
	{ 62, "beyond-end-writes", SHOULD, "outside WRITE and WRITE_ZEROES are ENOSPC, TRIM EINVAL",
	  beyond_end_writes, ON_ALL, NEED_CHANGES },
	{ 64, "no-length", SHOULD, "requests of no length are answered",
	  no_length, ON_ALL, 0 },
	{ 64, "no-length-writes", SHOULD, "requests of no length write nothing",
	  no_length_writes, ON_COMPACT | ON_STRUCTURED, NEED_CHANGES },
	{ 65, "unaligned", SHOULD, "what is not in blocks is EINVAL",
	  unaligned, ON_ALL, NEED_BLOCKS },
	{ 65, "unaligned-writes", SHOULD, "what is not in blocks changes nothing",
	  unaligned_writes, ON_ALL, NEED_BLOCKS | NEED_CHANGES },
	{ 66, "read-only", SHOULD, "writing to a read-only export is EPERM",
	  read_only, ON_ALL, NEED_READ_ONLY },
	{ 67, "write-drained", MUST, "the payload of a WRITE that fails is consumed",
	  write_drained, ON_ALL, NEED_CHANGES },
	{ 68, "write-32m", SHOULD, "a WRITE of 32 MiB is no attack, even one that fails",
	  write_32m, ON_ALL, NEED_CHANGES },
	{ 68, "write-too-large", MUST, "a WRITE above the limit is refused, or the connection ends",
	  write_too_large, ON_ALL, NEED_CHANGES },
	{ 69, "read-largest", SHOULD, "a READ of the largest payload, or 32 MiB, works",
	  read_largest, ON_ALL, 0 },
	{ 69, "read-too-large", SHOULD, "a READ above the limit is served, EINVAL or EOVERFLOW",
	  read_too_large, ON_ALL, 0 },
	{ 70, "trim", MUST, "TRIM works, and touches nothing beside",
	  trim, ON_ALL, NEED_CHANGES | NEED_TRIM },
	{ 71, "error-values", SHOULD, "no ENOTSUP, EOVERFLOW or ENOMEM for what is just wrong",
	  error_values, ON_ALL, 0 },
	{ 72, "cookies", MUST, "a reply has its request's cookie, whatever it is",
	  cookies, ON_ALL, 0 },
	{ 72, "in-flight", MUST, "256 requests in flight are all answered",
	  in_flight, ON_ALL, 0 },
	{ 73, "read-chunks", MUST, "chunks lie inside, do not overlap, cover all, and one is last",
	  read_chunks, ON_ALL, 0 },
	{ 73, "read-agrees", MUST, "the same bytes come back, in one request or many",
	  read_agrees, ON_ALL, 0 },
	{ 74, "read-df", MUST, "READ with DF is one chunk, and works up to 64 KiB",
	  read_df, ON_CHUNKS, NEED_DF },
	{ 75, "error-text", POLICY, "an error chunk says in words what was wrong",
	  error_text, ON_CHUNKS, 0 },

	{ 76, "flush", MUST, "FLUSH that is offered works",
	  flush, ON_ALL, NEED_FLUSH },
	{ 77, "flush-arguments", POLICY, "FLUSH of a range is EINVAL",
	  flush_arguments, ON_ALL, NEED_FLUSH },
	{ 78, "fua-writes", MUST, "FUA works with all that writes, after a FLUSH too",
	  fua_writes, ON_ALL, NEED_FUA | NEED_FLUSH | NEED_CHANGES },
	{ 80, "multi-conn", MUST, "what one connection flushed or wrote with FUA, others see",
	  multi_conn, ON_ALL, NEED_MULTI_CONN | NEED_FLUSH | NEED_CHANGES },
	{ 81, "zeroes", MUST, "WRITE_ZEROES reads as zeroes, and nothing beside",
	  zeroes, ON_ALL, NEED_ZEROES | NEED_CHANGES },
	{ 81, "zeroes-64m", MUST, "so do more than 64 MiB",
	  zeroes_64m, ON_CHUNKS, NEED_ZEROES | NEED_CHANGES | NEED_CONTEXT },
	{ 81, "zeroes-2g", MUST, "so do more than 2 GiB",
	  zeroes_2g, ON_CHUNKS, NEED_ZEROES | NEED_CHANGES | NEED_CONTEXT },
	{ 82, "zeroes-no-hole", MUST, "WRITE_ZEROES with NO_HOLE is accepted, and zeroes",
	  zeroes_no_hole, ON_ALL, NEED_ZEROES | NEED_CHANGES },
	{ 83, "fast-zero", MUST, "FAST_ZERO is done, or ENOTSUP and nothing changed",
	  fast_zero, ON_ALL, NEED_FAST_ZERO | NEED_CHANGES },
	{ 84, "cache", MUST, "CACHE changes nothing, and rejects unknown flags",
	  cache, ON_ALL, NEED_CACHE },
	{ 85, "status-no-context", SHOULD, "BLOCK_STATUS without a context is EINVAL",
	  status_without_context, ON_ALL, 0 },
	{ 86, "status", MUST, "BLOCK_STATUS is true, in order, and no longer than it may be",
	  status, ON_CHUNKS, NEED_CONTEXT },
	{ 86, "status-repeats", SHOULD, "the same BLOCK_STATUS has the same answer",
	  status_repeats, ON_CHUNKS, NEED_CONTEXT },
	{ 86, "status-follows", SHOULD, "BLOCK_STATUS knows of a WRITE at once",
	  status_follows, ON_CHUNKS, NEED_CONTEXT | NEED_CHANGES },
	{ 87, "status-one", MUST, "BLOCK_STATUS with REQ_ONE is one extent, inside the request",
	  status_one, ON_CHUNKS, NEED_CONTEXT },
	{ 88, "write-and-read", MUST, "what was written reads back, and nothing beside",
	  write_and_read, ON_ALL, NEED_CHANGES },
	{ 89, "disc", MUST, "DISC has no reply; what came before is answered, then all ends",
	  disc, ON_ALL, 0 },
	{ 91, "half-closed", POLICY, "a client that only ceases to ask gets its answers",
	  half_closed, ON_ALL, 0 },

	{ 96, "payload-misplaced", EXTENSION, "a payload where none belongs is consumed: EINVAL",
	  payload_elsewhere, ON_EXTENDED, 0 },
	{ 96, "payload-missing", EXTENSION, "WRITE without PAYLOAD_LEN is EINVAL",
	  payload_missing, ON_EXTENDED, NEED_CHANGES },
	{ 96, "payload-huge", SHOULD, "a payload beyond all limits ends the connection",
	  payload_huge, ON_EXTENDED, 0 },
	{ 98, "status-filter", EXTENSION, "BLOCK_STATUS has the contexts that its payload names",
	  status_filter, ON_EXTENDED, NEED_CONTEXT | NEED_FILTER },
	{ 99, "long-effects", EXTENSION, "lengths above 32 bits count whole",
	  long_effects, ON_EXTENDED, 0 },
	{ 99, "long-read", SHOULD, "a READ above 32 bits is no short one",
	  read_4g, ON_EXTENDED, 0 },
	{ 99, "long-zeroes", EXTENSION, "WRITE_ZEROES of more than 4 GiB works",
	  zeroes_4g, ON_EXTENDED, NEED_ZEROES | NEED_CHANGES | NEED_CONTEXT },
	{ .name = NULL },
};
/* clang-format on */
