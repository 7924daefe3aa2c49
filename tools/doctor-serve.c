/*
 * doctor-serve.c - what clients would be told of an image: the image is opened as a server would
 * open it, and what NBD and SCSI say of it is asked of the code that says it.
 */
#include "doctor-path.h"
#include "nbd/handshake.h"
#include "scsi-emu.h"

#include <errno.h>
#include <string.h>

#define ANSWER 512 /* bytes of data that are looked at */

/* ---- why --------------------------------------------------------------------------- */

/* What an answer comes of. The first row that has its trait, or has none, gives the reason. */
struct answer {
	unsigned bit, trait;
	const char *name, *yes, *no;
};

#define FUA_ROWS(bit, name) \
	{ bit, BY_FLUSH, name, "the write waits for a flush, which those who wait share", NULL }, \
	{ \
		bit, 0, name, "the write is one that is durable by itself (RWF_DSYNC)", \
			"there is nothing to make durable, or nothing may be written" \
	}

static const struct answer nbd_flags[] = {
	{ NBD_FLAG_READ_ONLY, 0, "read-only", "the image may not be written",
	  "the image may be written" },
	{ NBD_FLAG_SEND_FLUSH, 0, "FLUSH", "it is an fdatasync(2) of the image",
	  "nothing may be written" },
	FUA_ROWS(NBD_FLAG_SEND_FUA, "FUA"),
	{ NBD_FLAG_CAN_MULTI_CONN, 0, "multi-conn",
	  "all connections have one image, and a FLUSH of one is for all",
	  "a FLUSH of one connection is not for others" },
	{ NBD_FLAG_SEND_TRIM, NO_UNMAP, "TRIM", "as advice: nothing below gives blocks back",
	  "nothing may be written" },
	{ NBD_FLAG_SEND_TRIM, DEVICE, "TRIM", "the device discards blocks",
	  "nothing may be written" },
	{ NBD_FLAG_SEND_TRIM, 0, "TRIM", "the file system makes holes", "nothing may be written" },
	{ NBD_FLAG_SEND_WRITE_ZEROES, 0, "WRITE_ZEROES",
	  "by fallocate(2) where that can, else zeroes are written here",
	  "nothing may be written" },
	{ NBD_FLAG_SEND_FAST_ZERO, 0, "FAST_ZERO",
	  "who asks is told where zeroes would have to be written", "nothing may be written" },
	{ NBD_FLAG_SEND_CACHE, 0, "CACHE", "it reads ahead into the page cache",
	  "the page cache is not used" },
	{ NBD_FLAG_ROTATIONAL, 0, "rotational", "the kernel says so of the disk",
	  "the kernel does not say so of the disk" },
};

enum { LBPME = 1, WCE = 2, DPOFUA = 4, WP = 8, LBPU = 16 };

static const struct answer scsi_bits[] = {
	{ LBPME, 0, "LBPME", "blocks may be without storage: UNMAP gives it back",
	  "nothing below gives blocks back" },
	{ WCE, 0, "WCE", "a write may be answered before it is durable",
	  "each write is durable when it is answered" },
	FUA_ROWS(DPOFUA, "DPOFUA"),
	{ WP, 0, "WP", "the image may not be written", "the image may be written" },
	{ LBPU, DEVICE, "LBPU", "UNMAP: the device discards blocks",
	  "the device discards none, or may not be written" },
	{ LBPU, 0, "LBPU", "UNMAP: the file system makes holes",
	  "the file system makes none, or may not be written" },
};

/* told: of which bits something is known. */
#define tell(r, group, list, told, bits, traits) \
	tell_answers(r, group, list, sizeof(list) / sizeof(list)[0], told, bits, traits)

static void
tell_answers(struct doctor_report *r, const char *group, const struct answer *list, unsigned count,
	     unsigned told, unsigned bits, unsigned traits)
{
	for (unsigned i = 0; i < count; i++) {
		bool yes = bits & list[i].bit;

		if ((told & list[i].bit) == 0 || (list[i].trait & ~traits) != 0)
			continue;
		doctor_fact(r, group, list[i].name, "%s: %s", yes ? "yes" : "no",
			    yes || list[i].no == NULL ? list[i].yes : list[i].no);
		told &= ~list[i].bit;
	}
}

/* ---- SCSI ------------------------------------------------------------------------ */

struct asked {
	struct scsi_command command;
	struct pl_loop *loop;
	uint8_t data[65536];
};

static void
on_buffer(struct scsi_command *command)
{
	struct asked *a = command->memory;
	bool fits = command->memory_length <= sizeof(a->data);

	command->memory = a->data;
	scsi_command_go(command, fits ? 0 : -ENOMEM);
}

static void
on_done(struct scsi_command *command)
{
	struct asked *a = (struct asked *)command;

	pl_loop_stop(a->loop);
}

/* Returns how many bytes of data have come; 0: none, or it was refused. */
static uint64_t
ask(struct asked *a, struct scsi_nexus *nexus, const uint8_t *cdb, unsigned length)
{
	a->command = (struct scsi_command){ .cdb_length = length,
					    .attribute = SCSI_SIMPLE,
					    .expected_in = ANSWER,
					    .on_buffer = on_buffer,
					    .on_done = on_done,
					    .memory = a };
	memcpy(a->command.cdb, cdb, length);
	scsi_command_submit(nexus, &a->command);
	pl_loop_run(a->loop);
	return a->command.outcome == SCSI_DONE && a->command.status == 0 ? a->command.transfer_in
									 : 0;
}

static void
tell_bits(struct doctor_report *r, struct asked *a, struct scsi_nexus *nexus, unsigned traits)
{
	/* SPC-4 "TEST UNIT READY command": the first one hears of the power-on. */
	static const uint8_t ready[6], mode[6] = { 0x1A, 0, 0x08, 0, 0xFF },
				       thin[6] = { 0x12, 1, 0xB2, 0, 0xFF },
				       capacity[16] = { 0x9E, 0x10, [13] = 32 };
	unsigned bits = 0, told = 0;

	ask(a, nexus, ready, sizeof(ready));
	if (ask(a, nexus, capacity, sizeof(capacity)) >= 32) {
		doctor_fact(r, "SCSI", "logical block",
			    "%u bytes: unless the unit's option block-size says 4096",
			    (unsigned)a->data[8] << 24 | (unsigned)a->data[9] << 16 |
				    (unsigned)a->data[10] << 8 | a->data[11]);
		told |= LBPME;
		bits |= a->data[14] & 0x80 ? LBPME : 0;
	}
	/* SPC-4 "MODE SENSE(6) command", SBC-3 "Caching mode page": behind a header of four bytes
	 * and a block descriptor. */
	if (ask(a, nexus, mode, sizeof(mode)) >= 12) {
		const uint8_t *page = a->data + 4 + a->data[3];

		told |= WCE | DPOFUA | WP;
		bits |= page[2] & 0x04 ? WCE : 0;
		bits |= a->data[2] & 0x10 ? DPOFUA : 0;
		bits |= a->data[2] & 0x80 ? WP : 0;
	}
	if (ask(a, nexus, thin, sizeof(thin)) >= 6) {
		told |= LBPU;
		bits |= a->data[5] & 0x80 ? LBPU : 0;
	}
	tell(r, "SCSI", scsi_bits, told, bits, traits);
}

static void
unit_gone(void *loop)
{
	pl_loop_stop(loop);
}

static int
with_unit(struct doctor_report *r, struct scsi_target *target, struct pl_export *ex,
	  struct pl_channel *channel, struct pl_loop *loop, unsigned traits, struct pl_error *err)
{
	struct pl_params *none = pl_params_new();
	struct scsi_unit unit = { .params = none,
				  .name = "doctor",
				  .export = ex,
				  .channel = channel,
				  .capabilities = pl_export_capabilities(ex) };
	static struct asked asked;
	struct scsi_nexus *nexus = NULL;
	struct scsi_lu *lu = NULL;
	int error = none != NULL ? scsi_lu_new(target, &unit, &lu, err) : -ENOMEM;

	if (error == 0)
		error = scsi_nexus_new(target, "iqn.2025-01.org.platter:doctor",
				       (const uint8_t[6]){ 0x80 }, &nexus, err);
	if (error == 0 && scsi_nexus_map(nexus, 0, lu) == 0) {
		asked.loop = loop;
		tell_bits(r, &asked, nexus, traits);
	}
	if (nexus != NULL) {
		scsi_nexus_end(nexus, unit_gone, loop);
		pl_loop_run(loop);
	}
	if (lu != NULL) {
		scsi_lu_remove(lu, unit_gone, loop);
		pl_loop_run(loop);
	}
	pl_params_free(none);
	return error;
}

static void
tell_scsi(struct doctor_report *r, struct pl_export *ex, struct pl_loop *loop, unsigned traits)
{
	struct pl_channel *channel = NULL;
	struct scsi_target *target = NULL;
	struct pl_error err = { 0 };
	int error = pl_channel_open(ex, loop, &channel, &err);

	if (error == 0)
		error = scsi_target_new(&target, "iqn.2025-01.org.platter:image", loop, &err);
	if (error == 0)
		error = with_unit(r, target, ex, channel, loop, traits, &err);
	if (error != 0)
		doctor_fact(r, "SCSI", "not served", "%s",
			    err.text[0] != '\0' ? err.text : strerror(-error));
	if (target != NULL)
		scsi_target_free(target);
	if (channel != NULL)
		pl_channel_close(channel);
}

/* ---- all that is told ------------------------------------------------------------ */

static void
tell_nbd(struct doctor_report *r, unsigned capabilities, unsigned traits)
{
	static const struct nbd_agreement all = { .structured = true,
						  .extended = true,
						  .allocation = true };

	tell(r, "NBD", nbd_flags, ~0u, nbd_transmission_flags(capabilities, &all), traits);
}

int
path_open(const char *path, const char *fua, const char *lock, struct pl_export **ex,
	  struct pl_error *err)
{
	const char *const pairs[][2] = { { "path", path }, { "fua", fua }, { "lock", lock } };
	struct pl_params *params = pl_params_new();
	int error = params != NULL ? 0 : pl_error_set(err, -ENOMEM, "%s", path);

	for (unsigned i = 0; i < sizeof(pairs) / sizeof(pairs[0]) && error == 0; i++)
		error = pl_params_add(params, pairs[i][0], pairs[i][1], err);
	if (error == 0)
		error = pl_export_open(params, PL_OPEN_FALL_BACK, ex, err);
	pl_params_free(params);
	return error;
}

int
path_serve(struct doctor_report *r, const char *path, unsigned *traits, struct pl_error *err)
{
	struct pl_export *ex;
	struct pl_error no_ring;
	struct pl_loop *loop;
	unsigned capabilities;
	int error = path_open(path, "auto", "on", &ex, err);

	/* A server that starts now waits for its lock for longer than we have it. */
	if (error == -EBUSY) {
		doctor_fact(r, "export", "lock", "%s", err->text);
		*traits |= IN_USE;
		error = path_open(path, "auto", "off", &ex, err);
	} else if (error == 0) {
		doctor_fact(r, "export", "lock", "free");
	}
	if (error != 0)
		return error;
	capabilities = pl_export_capabilities(ex);
	doctor_fact(r, "export", "as", "%s", pl_export_description(ex));
	doctor_fact(r, "export", "blocks", "%u bytes; on the disk %u; best %u",
		    pl_export_geometry(ex)->logical_block, pl_export_geometry(ex)->physical_block,
		    pl_export_geometry(ex)->preferred);
	if (pl_export_geometry(ex)->logical_block > 512)
		*traits |= BIG_BLOCKS;
	if ((capabilities & PL_CAP_WRITE) == 0)
		*traits |= READ_ONLY;
	if ((capabilities & PL_CAP_FUA) != 0 && !pl_export_native_fua(ex))
		*traits |= BY_FLUSH;
	if ((capabilities & PL_CAP_UNMAP) == 0)
		*traits |= NO_UNMAP;
	tell_nbd(r, capabilities, *traits);
	if (pl_loop_new(&loop, &no_ring) == 0) {
		doctor_fact(r, "export", "io_uring", "yes");
		tell_scsi(r, ex, loop, *traits);
		pl_loop_free(loop);
	} else {
		doctor_fact(r, "export", "io_uring", "no: %s", no_ring.text);
		*traits |= NO_RING;
	}
	pl_export_close(ex);
	return 0;
}
