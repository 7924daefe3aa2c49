/*
 * torture.c - platter torture: does a target keep what it acknowledged as durable?
 *
 * Writing: look at the target and refuse what may be of value, begin a journal, write until the
 * time is over or the target has gone. Checking: read the journal, which tells what is owed; read
 * the target; say what differs, and what that shows and what it does not. Without a cut in
 * between one run does both.
 */
#include "tools.h"
#include "torture-check.h"
#include "torture-load.h"
#include "torture-stamp.h"
#include "torture-target.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

/* ---- command line ---------------------------------------------------------------- */

struct settings {
	bool check, destroy, expect_cut, same_target, help;
	const char *collect, *journal, *target;
	uint64_t connections, depth, offset, size, seconds, timeout;
};

#define ROW(field) offsetof(struct settings, field)
static const struct pl_option torture_options[] = {
	{ "journal", PL_OPT_STRING, ROW(journal), "FILE", NULL, false,
	  "of what was answered; or tcp://HOST:PORT" },
	{ "expect-cut", PL_OPT_BOOL, ROW(expect_cut), "", NULL, false,
	  "write on, and say when power may be cut" },
	{ "check", PL_OPT_BOOL, ROW(check), "", NULL, false,
	  "afterwards: read back what the journal tells of" },
	{ "collect", PL_OPT_STRING, ROW(collect), "[HOST:]PORT", NULL, false,
	  "elsewhere: keep a journal that comes by TCP" },
	{ "destroy", PL_OPT_BOOL, ROW(destroy), "", NULL, false,
	  "write, though the target is not all zeroes" },
	{ "offset", PL_OPT_SIZE, ROW(offset), "SIZE", "0", false, "nothing is written before it" },
	{ "size", PL_OPT_SIZE, ROW(size), "SIZE", "64M", false, "of what is written, at most" },
	{ "connections", PL_OPT_UINT, ROW(connections), "NUMBER", "4", false, "at once" },
	{ "depth", PL_OPT_UINT, ROW(depth), "NUMBER", "8", false, "operations at once, on each" },
	{ "seconds", PL_OPT_UINT, ROW(seconds), "NUMBER", "0", false,
	  "0: 10, or until the power is cut" },
	{ "timeout", PL_OPT_UINT, ROW(timeout), "SECONDS", "30", false,
	  "then a silent target has gone" },
	{ "same-target", PL_OPT_BOOL, ROW(same_target), "", NULL, false,
	  "to --check: if nothing is there it is lost" },
	{ "help", PL_OPT_BOOL, ROW(help), "", NULL, false, "show this" },
	PL_OPTION_END,
};
#undef ROW

static int
usage(FILE *to, int status)
{
	char *rows = pl_option_rows(torture_options, "  --", " ");

	fprintf(to,
		"usage: platter torture [OPTION...] TARGET\n"
		"       platter torture --check --journal FILE TARGET\n"
		"       platter torture --collect [HOST:]PORT --journal FILE\n\n"
		"Destroys what is on TARGET, and says whether it keeps what it acknowledges as\n"
		"durable. TARGET: an NBD or iSCSI URI, a file, a block device.\n\n%s\n"
		"Status: 0 all was kept (or, without a check, the work is done); 1 something was\n"
		"lost, torn or out of order; 2 it could not be tried, or shows nothing.\n",
		rows != NULL ? rows : "");
	free(rows);
	return status;
}

int
torture_complain(const char *what)
{
	fprintf(stderr, "platter torture: %s\n", what);
	return STATUS_CANNOT;
}

static const char *
contradiction(const struct settings *s, int words)
{
	if (s->check + s->expect_cut + (s->collect != NULL) > 1)
		return "--check, --expect-cut and --collect exclude each other";
	if ((s->check || s->collect != NULL || s->expect_cut) && s->journal == NULL)
		return "--journal is missing";
	if ((s->check || s->collect != NULL) && strncmp(s->journal, "tcp://", 6) == 0)
		return "--journal has to be a file here: that of --collect, or a copy of it";
	if (s->connections < 1 || s->connections > 64 || s->depth < 1 || s->depth > 32)
		return "--connections is from 1 to 64, --depth from 1 to 32";
	if (s->timeout < 1 || s->timeout > 86400)
		return "--timeout is from 1 to 86400";
	if (words != (s->collect == NULL))
		return s->collect != NULL ? "--collect takes no TARGET" : "name one TARGET; --help";
	return NULL;
}

/* Returns -1 to go on, or an exit status. The settings point into *params. */
static int
parse(int argc, char **argv, struct settings *s, struct pl_params *params)
{
	const char *wrong;

	if (tool_options(argc, argv, torture_options, params, s) != 0)
		return STATUS_CANNOT;
	if (s->help)
		return usage(stdout, STATUS_KEPT);
	wrong = contradiction(s, argc - optind);
	if (wrong != NULL)
		return torture_complain(wrong);
	s->target = argv[optind];
	return -1;
}

/* ---- what may be of value -------------------------------------------------------- */

static const struct {
	uint64_t offset;
	const char *bytes;
	unsigned length;
	const char *what;
} signatures[] = {
	{ 0x438, "\x53\xef", 2, "a file system (ext2, ext3 or ext4)" },
	{ 0, "XFSB", 4, "a file system (XFS)" },
	{ 0x10040, "_BHRfS_M", 8, "a file system (btrfs)" },
	{ 3, "NTFS    ", 8, "a file system (NTFS)" },
	{ 0x36, "FAT1", 4, "a file system (FAT)" },
	{ 0x52, "FAT32", 5, "a file system (FAT)" },
	{ 0x8001, "CD001", 5, "a file system (ISO 9660)" },
	{ 0xff6, "SWAPSPACE2", 10, "swap space" },
	{ 0x218, "LVM2 001", 8, "a physical volume of LVM" },
	{ 0, "LUKS\xba\xbe", 6, "an encrypted volume (LUKS)" },
	{ 0x1000, "\xfc\x4e\x2b\xa9", 4, "a part of a RAID" },
	{ 0, "QFI\xfb", 4, "an image in the format qcow2" },
	{ 0x200, "EFI PART", 8, "a partition table (GPT)" },
	{ 0x1000, "EFI PART", 8, "a partition table (GPT)" },
	{ 0x1fe, "\x55\xaa", 2, "a partition table, or a boot sector" },
};

/* What data is that the target has at offset. */
static const char *
value_of(const char *data, uint64_t length, uint64_t offset)
{
	struct stamp stamp;

	for (unsigned i = 0; offset == 0 && i < sizeof signatures / sizeof *signatures; i++) {
		if (signatures[i].offset + signatures[i].length <= length &&
		    memcmp(data + signatures[i].offset, signatures[i].bytes,
			   signatures[i].length) == 0)
			return signatures[i].what;
	}
	/* A run zeroes, too: its first cell may be one of those. */
	for (uint64_t at = 0; at + CELL <= length; at += CELL) {
		switch (stamp_read(data + at, &stamp)) {
		case CELL_STAMP: return "what an earlier run has written";
		case CELL_OTHER: return "data";
		case CELL_ZERO: break;
		}
	}
	return "data";
}

/* Returns -EEXIST where the range does not read as zeroes. */
static int
look_for_value(struct target *t, const struct settings *s, uint64_t length, struct pl_error *err)
{
	uint64_t step = t->info.max;
	char *data;
	int error = 0;

	if (s->destroy)
		return 0;
	if (posix_memalign((void **)&data, 65536, step) != 0)
		return pl_error_set(err, -ENOMEM, "%s", s->target);
	for (uint64_t at = 0; at < length && error == 0; at += step) {
		uint64_t n = at_most(length - at, step), from = s->offset + at;

		error = target_read(t, from, n, data);
		if (error != 0)
			pl_error_set(err, error, "%s: reading at %" PRIu64, s->target, from);
		else if (data[0] != 0 || memcmp(data, data + 1, n - 1) != 0)
			error = pl_error_say(err, -EEXIST,
					     "%s has %s, which would be destroyed: "
					     "--destroy",
					     s->target, value_of(data, n, from));
	}
	free(data);
	return error;
}

/* ---- writing --------------------------------------------------------------------- */

static volatile sig_atomic_t interrupted;

static void
interrupt(int sig)
{
	(void)sig;
	interrupted = 1;
}

static void say(const char *fmt, ...) PL_PRINTF(1, 2);

static void
say(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	fflush(stdout);
}

static void
show_progress(const struct load_counts *now, const struct load_counts *before, unsigned second)
{
	bool terminal = isatty(STDERR_FILENO);

	/* Elsewhere a line now and then will do. */
	if (terminal || second % 10 == 0)
		fprintf(stderr,
			"%s%4u s: %" PRIu64 " operations acknowledged, %" PRIu64
			" of them durable, %.1f MB/s%s",
			terminal ? "\r" : "", second, now->operations, now->durable,
			(double)(now->bytes - before->bytes) / 1e6 / (terminal ? 1 : 10),
			terminal ? "\033[K" : "\n");
}

/* Until the time is over, a signal comes or the target goes. */
static void
watch(struct load *l, struct journal *j, const struct settings *s, uint64_t seconds)
{
	struct load_counts now, shown = { 0 };
	bool told = !s->expect_cut;
	struct timespec tenth = { .tv_nsec = 100000000 };

	for (unsigned tick = 1; !interrupted && !load_has_ended(l); tick++) {
		nanosleep(&tenth, NULL);
		now = load_counts(l);
		if (!told && now.filled && now.durable > 0) {
			say("CUT THE POWER NOW, or whenever you like: writing goes on until "
			    "then\n");
			told = true;
		}
		if (tick % 10 != 0)
			continue;
		show_progress(&now, &shown, tick / 10);
		if (isatty(STDERR_FILENO) || tick % 100 == 0)
			shown = now;
		journal_settle(j, journal_count(j) - 1);
		if (seconds != 0 && tick >= seconds * 10)
			break;
	}
	if (isatty(STDERR_FILENO))
		fprintf(stderr, "\n");
}

static int
refuse(const struct settings *s, struct target *t, uint64_t *length, struct pl_error *err)
{
	const struct torture_info *info = &t->info;

	if (info->can & CAN_NOT_WRITE)
		return pl_error_say(err, -EROFS, "%s is read-only", s->target);
	if (s->offset % info->unit != 0)
		return pl_error_say(err, -EINVAL, "--offset is no multiple of %u", info->unit);
	*length = s->offset < info->size ? at_most(info->size - s->offset, s->size) : 0;
	*length -= *length % info->unit;
	if (*length < 4 * info->unit)
		return pl_error_say(err, -EINVAL, "%s: there is no room for a test", s->target);
	return 0;
}

static void
introduce(const struct settings *s, const struct load_plan *p)
{
	const unsigned can = p->info.can;

	say("writing to %s: %" PRIu64 " bytes from %" PRIu64
	    " on, by %u connection%s, %u at once\n",
	    s->target, p->length, p->offset, p->connections, p->connections == 1 ? "" : "s",
	    p->connections * p->depth);
	say("it offers:%s%s%s%s%s\n", can & CAN_AT_ONCE ? " write-through," : "",
	    can & CAN_FLUSH ? " FLUSH," : " no FLUSH,", can & CAN_FUA ? " FUA," : " no FUA,",
	    can & CAN_ZERO ? " zeroes," : "", can & CAN_TRIM ? " trim" : " no trim");
	if ((can & (CAN_SHARE | CAN_FLUSH)) == CAN_FLUSH && s->connections > 1)
		say("one connection: a FLUSH of it holds for itself alone\n");
}

static int
write_to(struct target *t, const struct settings *s, struct journal **journal, struct pl_error *err)
{
	struct load_plan plan = { .transport = t->transport,
				  .target = s->target,
				  .info = t->info,
				  .offset = s->offset,
				  .connections = (unsigned)s->connections,
				  .depth = (unsigned)s->depth,
				  .timeout_s = t->timeout_s };
	uint64_t seconds = s->seconds != 0 || s->expect_cut ? s->seconds : 10;
	struct record begin = { .seq = (uint64_t)time(NULL), .offset = s->offset };
	struct load *load = NULL;
	int error = refuse(s, t, &plan.length, err);

	if (error == 0)
		error = look_for_value(t, s, plan.length, err);
	while (error == 0 && plan.run == 0) {
		if (getrandom(&plan.run, sizeof plan.run, 0) != sizeof plan.run)
			error = pl_error_set(err, -errno, "random number");
	}
	if (error != 0)
		return error;
	if (plan.depth > plan.info.depth) {
		plan.connections *= plan.depth / plan.info.depth;
		plan.depth = plan.info.depth;
	}
	if ((plan.info.can & CAN_SHARE) == 0)
		plan.connections = 1;
	begin.run = plan.run;
	begin.length = plan.length;
	begin.ref = t->info.size;
	begin.issued = (uint64_t)t->info.unit << 32 | t->info.can;
	error = journal_new(s->journal, &begin, journal, err);
	if (error != 0)
		return error;
	plan.journal = *journal;
	plan.first = t->conn;
	t->conn = NULL;
	introduce(s, &plan);
	error = load_start(&plan, &load, err);
	if (error != 0)
		return error;
	watch(load, *journal, s, seconds);
	return load_stop(load, err);
}

/* ---- the command ----------------------------------------------------------------- */

static int
check_file(const struct settings *s)
{
	int fd = open(s->journal, O_RDONLY | O_CLOEXEC), status;

	if (fd == -1) {
		fprintf(stderr, "platter torture: %s: %s\n", s->journal, strerror(errno));
		return STATUS_CANNOT;
	}
	status = torture_check(fd, s->target, (unsigned)s->timeout, s->same_target);
	close(fd);
	return status;
}

static void
tell_to_check(const struct settings *s)
{
	bool tcp = strncmp(s->journal, "tcp://", 6) == 0;

	say("When it is back: platter torture --check --journal %s %s\n",
	    tcp ? "FILE-OF-COLLECT" : s->journal, s->target);
}

static int
write_and_check(const struct settings *s)
{
	struct target t = { 0 };
	struct journal *journal = NULL;
	struct pl_error err;
	int error = target_open(&t, s->target, (unsigned)s->timeout, OPEN_FIRST, &err),
	    status = STATUS_CANNOT;

	if (error == 0)
		error = write_to(&t, s, &journal, &err);
	target_close(&t);
	if (error == -EPIPE) {
		say("the target has gone: %s\n", err.text);
		if (s->journal != NULL)
			tell_to_check(s);
		else
			torture_complain("with a --journal it could be checked when it is back");
		status = s->expect_cut ? STATUS_KEPT : STATUS_CANNOT;
	} else if (error != 0) {
		torture_complain(err.text);
	} else if (s->expect_cut) {
		torture_complain("no cut came; it can be checked all the same, and shows little");
		tell_to_check(s);
	} else if (journal_fd(journal) == -1) {
		tell_to_check(s);
		status = STATUS_KEPT;
	} else {
		say("written; reading all back by a new connection\n");
		status = torture_check(journal_fd(journal), s->target, (unsigned)s->timeout,
				       s->same_target);
	}
	if (journal != NULL)
		journal_free(journal);
	return status;
}

static int
collect(const struct settings *s)
{
	struct pl_error err;

	return journal_collect(s->collect, s->journal, &err) == 0 ? STATUS_KEPT
								  : torture_complain(err.text);
}

int
tool_torture(int argc, char **argv)
{
	struct sigaction on_signal = { .sa_handler = interrupt, .sa_flags = (int)SA_RESETHAND };
	struct pl_params *params = pl_params_new();
	struct settings s = { 0 };
	int status;

	if (params == NULL)
		return torture_complain("out of memory");
	status = parse(argc, argv, &s, params);
	if (status == -1) {
		signal(SIGPIPE, SIG_IGN);
		if (s.collect != NULL) {
			status = collect(&s);
		} else if (s.check) {
			status = check_file(&s);
		} else {
			sigaction(SIGINT, &on_signal, NULL);
			sigaction(SIGTERM, &on_signal, NULL);
			status = write_and_check(&s);
		}
	}
	pl_params_free(params);
	return status;
}
