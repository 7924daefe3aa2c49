#include "bench-target.h"

#include "probe-uri.h"

#include <arpa/inet.h>
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <fnmatch.h>
#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define IQN       "iqn.2026-11.org.platter:bench"
#define PATIENCE  10 /* seconds, for a server to start */
#define WORDS_MAX 40

/* ---- programs -------------------------------------------------------------------- */

#define TGT(more) \
	{ \
		.name = "tgtd", .killed = true, .unit = "/" IQN "/1", .setup = { \
			"tgtadm -C @control --lld iscsi --mode target --op new --tid 1 -T " IQN, \
			"tgtadm -C @control --lld iscsi --mode logicalunit --op new --tid 1 " \
			"--lun 1 " \
			"-b @file --bstype rdwr" more, \
			"tgtadm -C @control --lld iscsi --mode target --op bind --tid 1 -I ALL" \
		} \
	}

/* In words and texts @file, @socket, @port, @control, @config, @pid, @plugin, @size and @folder are
 * replaced. */
static const struct program {
	const char *name;
	bool ours;        /* lies beside this program */
	bool background;  /* goes there, and tells its number in @pid */
	bool killed;      /* ends by SIGKILL alone while it has a target */
	const char *unit; /* "/IQN/LUN" of its iSCSI target */
	const char *export_name;
	const char *config;
	const char *setup[4]; /* commands, once it runs; the first until it succeeds */
} programs[] = {
	{ .name = "platterd", .ours = true, .unit = "/" IQN "/0" },
	{ .name = "nbdkit" },
	{ .name = "qemu-nbd" },
	{ .name = "qemu-storage-daemon" },
	{ .name = "nbd-server",
	  .background = true,
	  .export_name = "disk",
	  .config = "[generic]\nunixsock = @socket\n"
		    "[disk]\nexportname = @file\nflush = true\nfua = true\n" },
	TGT(""),
	TGT(" --bsoflags direct"),
};
enum { PLATTERD, NBDKIT, QEMU_NBD, QSD, NBD_SERVER, TGTD, TGTD_DIRECT };

/* ---- targets --------------------------------------------------------------------- */

enum way { NO_SERVER, NBD_UNIX, NBD_TCP, ISCSI };

struct bench_row {
	const char *name, *mode, *step;
	enum bench_kind kind;
	enum way way;
	bool direct;
	unsigned spread; /* over so many connections; 0: as the load says */
	const struct program *program;
	const char *words;
};

#define ON_UNIX  "--foreground --unix @socket "
#define ON_TCP   "--foreground --tcp 127.0.0.1:@port "
#define ON_ISCSI "--foreground --iscsi 127.0.0.1:@port --target " IQN " --state @folder "
#define OURS(protocol, on, how, cache, past_cache) \
	{ \
		.name = protocol, .mode = cache, .kind = BENCH_OURS, .way = how, \
		.direct = past_cache, .program = &programs[PLATTERD], \
		.words = on "--cache " cache " @file" \
	}
/* Each has what the one before it has, and one thing more. */
#define STEP(protocol, on, how, cache, what, connections, options) \
	{ \
		.name = protocol, .mode = cache, .step = what, .kind = BENCH_OURS, .way = how, \
		.direct = true, .spread = connections, .program = &programs[PLATTERD], \
		.words = on "--cache " cache " " options " @file" \
	}
#define STEPS(protocol, on, how, cache) \
	STEP(protocol, on, how, cache, "write and flush", 0, "--fua commit --poll off"), \
		STEP(protocol, on, how, cache, "native FUA", 0, "--fua native --poll off"), \
		STEP(protocol, on, how, cache, "4 connections", 4, "--fua native --poll off"), \
		STEP(protocol, on, how, cache, "polling", 4, "--fua native --poll on")
#define CEILING(protocol, on, how) \
	{ \
		.name = protocol, .mode = "nothing", .kind = BENCH_CEILING, .way = how, \
		.program = &programs[PLATTERD], \
		.words = on "--export name=,driver=null,size=@size" \
	}
#define PEER(who, what, past_cache, how, which, options) \
	{ \
		.name = who, .mode = what, .kind = BENCH_PEER, .direct = past_cache, .way = how, \
		.program = &programs[which], .words = options \
	}
#define PLUGIN(cache, past_cache) \
	{ \
		.name = "plugin", .mode = cache, .kind = BENCH_OURS, .way = NBD_UNIX, \
		.direct = past_cache, .program = &programs[NBDKIT], \
		.words = "-f -U @socket @plugin cache=" cache " @file" \
	}
#define QEMU_NBD_WORDS "--format=raw --persistent --shared=64 --socket=@socket "
#define QSD_WORDS(options) \
	"--nbd-server addr.type=unix,addr.path=@socket --blockdev " \
	"driver=file,node-name=f,filename=@file," options \
	" --export type=nbd,id=e,node-name=f,name=,writable=on"

/* clang-format off */
static const struct bench_row rows[] = {
	{ .name = "raw", .mode = "writeback", .kind = BENCH_RAW },
	{ .name = "raw", .mode = "none", .kind = BENCH_RAW, .direct = true },
	CEILING("ceiling-nbd", ON_UNIX, NBD_UNIX),
	CEILING("ceiling-iscsi", ON_ISCSI, ISCSI),
	OURS("nbd", ON_UNIX, NBD_UNIX, "auto", false),
	OURS("nbd", ON_UNIX, NBD_UNIX, "writeback", false),
	OURS("nbd", ON_UNIX, NBD_UNIX, "none", true),
	OURS("nbd", ON_UNIX, NBD_UNIX, "directsync", true),
	OURS("nbd-tcp", ON_TCP, NBD_TCP, "auto", false),
	OURS("nbd-tcp", ON_TCP, NBD_TCP, "none", true),
	OURS("iscsi", ON_ISCSI, ISCSI, "auto", false),
	OURS("iscsi", ON_ISCSI, ISCSI, "none", true),
	OURS("iscsi", ON_ISCSI, ISCSI, "directsync", true),
	PLUGIN("auto", false),
	PLUGIN("none", true),
	STEPS("nbd", ON_UNIX, NBD_UNIX, "none"),
	STEPS("iscsi", ON_ISCSI, ISCSI, "none"),
	STEPS("nbd", ON_UNIX, NBD_UNIX, "directsync"),
	STEPS("iscsi", ON_ISCSI, ISCSI, "directsync"),
	PEER("nbdkit-file", "writeback", false, NBD_UNIX, NBDKIT, "-f -U @socket file @file"),
	PEER("qemu-nbd", "writeback+threads", false, NBD_UNIX, QEMU_NBD,
	     QEMU_NBD_WORDS "--cache=writeback --aio=threads @file"),
	PEER("qemu-nbd", "writeback+io_uring", false, NBD_UNIX, QEMU_NBD,
	     QEMU_NBD_WORDS "--cache=writeback --aio=io_uring @file"),
	PEER("qemu-nbd", "none+native", true, NBD_UNIX, QEMU_NBD,
	     QEMU_NBD_WORDS "--cache=none --aio=native @file"),
	PEER("qemu-nbd", "none+io_uring", true, NBD_UNIX, QEMU_NBD,
	     QEMU_NBD_WORDS "--cache=none --aio=io_uring @file"),
	PEER("qemu-nbd", "directsync+native", true, NBD_UNIX, QEMU_NBD,
	     QEMU_NBD_WORDS "--cache=directsync --aio=native @file"),
	PEER("qsd", "writeback+threads", false, NBD_UNIX, QSD, QSD_WORDS("aio=threads")),
	PEER("qsd", "writeback+io_uring", false, NBD_UNIX, QSD, QSD_WORDS("aio=io_uring")),
	PEER("qsd", "none+native", true, NBD_UNIX, QSD, QSD_WORDS("cache.direct=on,aio=native")),
	PEER("qsd", "none+io_uring", true, NBD_UNIX, QSD,
	     QSD_WORDS("cache.direct=on,aio=io_uring")),
	PEER("nbd-server", "writeback", false, NBD_UNIX, NBD_SERVER, "-C @config -p @pid"),
	PEER("tgt", "writeback", false, ISCSI, TGTD, "-f -C @control --iscsi portal=127.0.0.1:@port"),
	PEER("tgt", "none", true, ISCSI, TGTD_DIRECT, "-f -C @control --iscsi portal=127.0.0.1:@port"),
};
/* clang-format on */
#define ROWS (sizeof(rows) / sizeof(rows[0]))

unsigned
bench_target_spread(const struct bench_target *t)
{
	return t->row != NULL && t->row->spread != 0 ? t->row->spread : 1;
}

/* ---- words ----------------------------------------------------------------------- */

/* What stands for @NAME. */
struct meaning {
	const char *name, *value;
};

static char *
expand(const char *text, const struct meaning *meanings)
{
	char *out = NULL;
	size_t size;
	FILE *f = open_memstream(&out, &size);

	if (f == NULL)
		return NULL;
	while (*text != '\0') {
		const struct meaning *m = meanings;
		size_t length = strspn(text + 1, "abcdefghijklmnopqrstuvwxyz");

		while (*text == '@' && m->name != NULL &&
		       (strlen(m->name) != length || strncmp(m->name, text + 1, length) != 0))
			m++;
		if (*text == '@' && m->name != NULL) {
			fputs(m->value, f);
			text += 1 + length;
		} else {
			fputc(*text++, f);
		}
	}
	if (fclose(f) != 0) {
		free(out);
		return NULL;
	}
	return out;
}

/* Each word by itself, since what it stands for may have blanks in it. */
static bool
split(const char *words, const struct meaning *meanings, char **argv)
{
	char *copy = strdup(words), *save = NULL;
	unsigned n = 1;

	for (char *w = copy != NULL ? strtok_r(copy, " ", &save) : NULL; w != NULL && n < WORDS_MAX;
	     w = strtok_r(NULL, " ", &save))
		argv[n++] = expand(w, meanings);
	free(copy);
	argv[n] = NULL;
	return copy != NULL;
}

/* ---- where programs are ---------------------------------------------------------- */

/* Of a name in a list of folders with colons between them, within root. Returns the path in that
 * root, or NULL. */
static char *
look_in(const char *root, const char *folders, const char *name)
{
	char *found = NULL, *whole = NULL;

	while (found == NULL && *folders != '\0') {
		int length = (int)strcspn(folders, ":");

		if (asprintf(&whole, "%s%.*s/%s", root, length, folders, name) == -1)
			return NULL;
		if (access(whole, X_OK) == 0)
			found = strdup(whole + strlen(root));
		free(whole);
		folders += length + (folders[length] == ':');
	}
	return found;
}

/* Where this program lies. */
static void
own_folder(char *folder, size_t size)
{
	ssize_t n = readlink("/proc/self/exe", folder, size - 1);

	folder[n > 0 ? n : 0] = '\0';
	if (strrchr(folder, '/') != NULL)
		*strrchr(folder, '/') = '\0';
}

static char *
program_path(const char *name, bool ours, const char *root)
{
	static const char system[] = "/usr/local/bin:/usr/local/sbin:/usr/bin:/usr/sbin:/bin:/sbin";
	char own[PATH_MAX], *folders = NULL, *found;
	const char *path = root == NULL && getenv("PATH") != NULL ? getenv("PATH") : "/usr/bin";

	own_folder(own, sizeof(own));
	if (asprintf(&folders, "%s%s%s:%s", ours ? own : "", ours ? ":" SBINDIR ":" : "", path,
		     system) == -1)
		return NULL;
	found = look_in(root != NULL ? root : "", folders, name);
	free(folders);
	return found;
}

/* The plugin of this build, or else the one that nbdkit finds. */
static char *
plugin_path(void)
{
	char own[PATH_MAX];

	own_folder(own, sizeof(own) - 16);
	strcat(own, "/plugin.so");
	return strdup(access(own, R_OK) == 0 ? own : "platter");
}

/* ---- choosing -------------------------------------------------------------------- */

static const char *const kind_words[] = { [BENCH_OURS] = "ours",
					  [BENCH_PEER] = "peers",
					  [BENCH_RAW] = "raw",
					  [BENCH_CEILING] = "ceiling",
					  [BENCH_GIVEN] = "given" };

static bool
fits(const struct bench_row *row, const char *word)
{
	char whole[BENCH_NAME];

	if (row->step != NULL || strcmp(word, "steps") == 0)
		return row->step != NULL && strcmp(word, "steps") == 0;
	snprintf(whole, sizeof(whole), "%s/%s", row->name, row->mode);
	return strcmp(word, kind_words[row->kind]) == 0 || fnmatch(word, row->name, 0) == 0 ||
	       fnmatch(word, whole, 0) == 0;
}

static bool
listed(const struct bench_row *row, const char *list, bool *used, unsigned words)
{
	char *copy = strdup(list), *save = NULL, *w = copy;
	bool found = false;

	for (unsigned i = 0; copy != NULL && i < words; i++, w = NULL) {
		char *word = strtok_r(w, ",", &save);

		if (word != NULL && fits(row, word))
			found = used[i] = true;
	}
	free(copy);
	return found;
}

static struct bench_target *
add(struct bench_result *r, const char *name, const char *mode, const char *step)
{
	struct bench_target *more =
		realloc(r->targets, (r->target_count + 1) * sizeof(*r->targets));

	if (more == NULL)
		return NULL;
	r->targets = more;
	more += r->target_count++;
	*more = (struct bench_target){ .name = strdup(name),
				       .mode = strdup(mode),
				       .step = step != NULL ? strdup(step) : NULL };
	return more;
}

/* As it is told: what differs from run to run is in capitals. */
static char *
command_of(const struct bench_row *row)
{
	static const struct meaning meanings[] = { { "file", "FILE" },      { "socket", "SOCKET" },
						   { "port", "PORT" },      { "control", "N" },
						   { "config", "CONFIG" },  { "pid", "PIDFILE" },
						   { "plugin", "platter" }, { "size", "SIZE" },
						   { "folder", "DIR" },     { NULL, NULL } };
	char *words, *command = NULL;

	if (row->kind == BENCH_RAW)
		return strdup(row->direct ? "io_uring, O_DIRECT" : "io_uring");
	words = expand(row->words, meanings);
	if (words == NULL || asprintf(&command, "%s %s", row->program->name, words) == -1)
		command = NULL;
	free(words);
	return command;
}

/* Why a target cannot be measured, or NULL. */
static char *
absence(const struct bench_row *row, const struct bench_place *place)
{
	const char *root = row->kind == BENCH_PEER ? place->peers_root : NULL;
	char *path = row->program != NULL
			     ? program_path(row->program->name, row->program->ours, root)
			     : NULL,
	     *why = NULL;

	if (row->program != NULL && path == NULL &&
	    asprintf(&why, "%s is not installed", row->program->name) == -1)
		why = NULL;
	free(path);
	return why;
}

int
bench_targets_add(struct bench_result *r, const char *list, const struct bench_place *place,
		  struct pl_error *err)
{
	unsigned words = 1;
	bool used[64] = { false };

	for (const char *p = list; *p != '\0'; p++)
		words += *p == ',';
	if (words > 64)
		return pl_error_say(err, -EINVAL, "--targets: more than 64 words");
	for (unsigned i = 0; i < ROWS; i++) {
		struct bench_target *t;

		if (!listed(&rows[i], list, used, words))
			continue;
		t = add(r, rows[i].name, rows[i].mode, rows[i].step);
		if (t == NULL)
			return pl_error_set(err, -ENOMEM, "targets");
		t->row = &rows[i];
		t->kind = rows[i].kind;
		t->direct = rows[i].direct;
		t->iscsi = rows[i].way == ISCSI;
		t->command = command_of(&rows[i]);
		t->absent = absence(&rows[i], place);
	}
	for (unsigned i = 0; i < words; i++) {
		if (!used[i])
			return pl_error_say(err, -EINVAL,
					    "--targets '%s': word %u is no target; --list shows "
					    "them",
					    list, i + 1);
	}
	return 0;
}

int
bench_targets_add_uri(struct bench_result *r, const char *uri, struct pl_error *err)
{
	struct bench_target *t;
	struct nbd_uri parsed = { 0 };
	bool iscsi = strncmp(uri, "iscsi://", 8) == 0;
	int error = 0;

	if (!iscsi) {
		error = nbd_uri_parse(&parsed, uri, err);
		if (error == 0 && parsed.tls)
			error = pl_error_say(err, -EINVAL, "%s: TLS is not spoken here", uri);
		nbd_uri_free(&parsed);
	}
	if (error != 0)
		return error;
	t = add(r, uri, "", NULL);
	if (t == NULL)
		return pl_error_set(err, -ENOMEM, "targets");
	t->kind = BENCH_GIVEN;
	t->iscsi = iscsi;
	t->command = strdup(uri);
	return 0;
}

void
bench_targets_list(const struct bench_place *place, FILE *to)
{
	for (unsigned i = 0; i < ROWS; i++) {
		char name[BENCH_NAME], *command = command_of(&rows[i]),
				       *absent = absence(&rows[i], place);

		snprintf(name, sizeof(name), "%s/%s", rows[i].name, rows[i].mode);
		if (rows[i].step != NULL)
			fprintf(to, "  %-28s steps: %s", name, rows[i].step);
		else
			fprintf(to, "  %-28s %s", name, command != NULL ? command : "");
		fprintf(to, "%s%s\n", absent != NULL ? "; " : "", absent != NULL ? absent : "");
		free(command);
		free(absent);
	}
}

/* ---- starting -------------------------------------------------------------------- */

static pid_t
spawn(char **argv, const char *root, int log)
{
	pid_t pid;

	fflush(NULL);
	pid = fork();
	if (pid != 0)
		return pid;
	setpgid(0, 0); /* Control-C is not for it */
	prctl(PR_SET_PDEATHSIG, SIGKILL);
	dup2(open("/dev/null", O_RDONLY), STDIN_FILENO);
	dup2(log, STDOUT_FILENO);
	dup2(log, STDERR_FILENO);
	if (root != NULL && (chroot(root) == -1 || chdir("/") == -1))
		dprintf(log, "chroot: %s: %s\n", root, strerror(errno));
	else if (execv(argv[0], argv) == -1)
		dprintf(log, "%s: %s\n", argv[0], strerror(errno));
	_exit(127);
}

static void
nap(void)
{
	nanosleep(&(struct timespec){ .tv_nsec = 5000000 }, NULL);
}

/* The last line that is about an error, or else the last one. */
static int
said(const struct bench_server *s, const struct program *p, struct pl_error *err)
{
	char text[4096], *line = text, *save = NULL;
	off_t size = lseek(s->log, 0, SEEK_END), room = (off_t)sizeof(text) - 1;
	ssize_t n = pread(s->log, text, (size_t)room, size > room ? size - room : 0);

	text[n > 0 ? n : 0] = '\0';
	for (char *next = strtok_r(text, "\n", &save); next != NULL;
	     next = strtok_r(NULL, "\n", &save)) {
		if (strstr(next, "rror") != NULL || strstr(line, "rror") == NULL)
			line = next;
	}
	pl_text_clean(line);
	return pl_error_say(err, -EIO, "%s does not start%s%s", p->name, *line != '\0' ? ": " : "",
			    line);
}

/* A port that nobody uses now. */
static int
free_port(void)
{
	struct sockaddr_in in = { .sin_family = AF_INET,
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	socklen_t length = sizeof(in);
	int fd = socket(AF_INET, SOCK_STREAM | SOCK_CLOEXEC, 0), port = -1;

	if (fd != -1 && bind(fd, (struct sockaddr *)&in, sizeof(in)) == 0 &&
	    getsockname(fd, (struct sockaddr *)&in, &length) == 0)
		port = ntohs(in.sin_port);
	close(fd);
	return port;
}

static bool
answers(const char *socket_path, int port)
{
	struct sockaddr_un un = { .sun_family = AF_UNIX };
	struct sockaddr_in in = { .sin_family = AF_INET,
				  .sin_port = htons((uint16_t)port),
				  .sin_addr.s_addr = htonl(INADDR_LOOPBACK) };
	int fd = socket(port != 0 ? AF_INET : AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0), got;

	if (port != 0) {
		got = connect(fd, (struct sockaddr *)&in, sizeof(in));
	} else {
		snprintf(un.sun_path, sizeof(un.sun_path), "%s", socket_path);
		got = connect(fd, (struct sockaddr *)&un, sizeof(un));
	}
	close(fd);
	return got == 0;
}

static int
run(const char *words, const struct meaning *meanings, const char *root, int log)
{
	char *argv[WORDS_MAX + 1] = { NULL }, *name = strndup(words, strcspn(words, " "));
	int status = -1;
	pid_t pid;

	argv[0] = name != NULL ? program_path(name, false, root) : NULL;
	if (argv[0] != NULL && split(words + strlen(name), meanings, argv)) {
		pid = spawn(argv, root, log);
		if (pid != -1)
			waitpid(pid, &status, 0);
	}
	for (unsigned i = 0; argv[i] != NULL; i++)
		free(argv[i]);
	free(name);
	return status;
}

static bool
has_ended(pid_t pid)
{
	return waitpid(pid, NULL, WNOHANG) == pid || kill(pid, 0) == -1;
}

/* One that has gone to the background: its number is in a file. */
static pid_t
number_in(const char *path)
{
	FILE *f = fopen(path, "re");
	int pid = 0;

	if (f != NULL && fscanf(f, "%d", &pid) != 1)
		pid = 0;
	if (f != NULL)
		fclose(f);
	return pid;
}

static int
wait_until_it_serves(struct bench_server *s, const struct bench_row *row,
		     const struct meaning *meanings, const char *root, const char *socket_path,
		     int port, const char *pid_path, struct pl_error *err)
{
	const struct program *p = row->program;
	bool served = false, there = !p->background;
	int status = 0;

	for (unsigned tick = 0; !served && tick < PATIENCE * 200; tick++, nap()) {
		if (!there) {
			pid_t real = number_in(pid_path);

			there = real > 0 && has_ended(s->pid);
			if (there)
				s->pid = real;
		} else if (has_ended(s->pid)) {
			s->pid = 0;
			return said(s, p, err);
		}
		served = there && answers(socket_path, port);
	}
	if (!served)
		return said(s, p, err);
	for (unsigned i = 0; i < 4 && p->setup[i] != NULL && status == 0; i++) {
		for (unsigned tick = 0; tick == 0 || (i == 0 && status != 0 && tick < 100);
		     tick++) {
			status = run(p->setup[i], meanings, root, s->log);
			if (status != 0)
				nap();
		}
	}
	return status == 0 ? 0 : said(s, p, err);
}

static int
write_config(const char *path, const char *text, const struct meaning *meanings)
{
	char *expanded = expand(text, meanings);
	FILE *f = expanded != NULL ? fopen(path, "we") : NULL;
	bool good = f != NULL && fputs(expanded, f) != EOF;

	if (f != NULL && fclose(f) != 0)
		good = false;
	free(expanded);
	return good ? 0 : -EIO;
}

static int
start(struct bench_server *s, const struct bench_row *row, const struct bench_place *place,
      struct pl_error *err)
{
	static unsigned number;
	const struct program *p = row->program;
	const char *root = row->kind == BENCH_PEER ? place->peers_root : NULL;
	int port = row->way == NBD_UNIX ? 0 : free_port(), error = 0;
	char socket_path[100], config[100], pid_path[100], digits[16], control[16], size[32],
		*plugin = plugin_path(), *argv[WORDS_MAX + 1] = { NULL };
	const struct meaning meanings[] = { { "file", place->image },    { "socket", socket_path },
					    { "port", digits },          { "control", control },
					    { "config", config },        { "pid", pid_path },
					    { "plugin", plugin },        { "size", size },
					    { "folder", place->folder }, { NULL, NULL } };

	number++;
	snprintf(socket_path, sizeof(socket_path), "%s/%u.sock", place->folder, number);
	snprintf(config, sizeof(config), "%s/%u.conf", place->folder, number);
	snprintf(pid_path, sizeof(pid_path), "%s/%u.pid", place->folder, number);
	snprintf(control, sizeof(control), "%u", ((unsigned)getpid() + number) % 30000);
	snprintf(digits, sizeof(digits), "%d", port);
	snprintf(size, sizeof(size), "%" PRIu64, place->size);
	if (row->way == NBD_UNIX)
		snprintf(s->address, sizeof(s->address), "%s", socket_path);
	else
		snprintf(s->address, sizeof(s->address), "%s127.0.0.1:%d%s",
			 row->way == ISCSI ? "iscsi://" : "", port,
			 row->way == ISCSI ? p->unit : "");
	snprintf(s->export_name, sizeof(s->export_name), "%s",
		 p->export_name != NULL ? p->export_name : "");

	argv[0] = program_path(p->name, p->ours, root);
	s->log = memfd_create("log", MFD_CLOEXEC);
	if (port == -1 || s->log == -1 || argv[0] == NULL || !split(row->words, meanings, argv))
		error = pl_error_say(err, -EIO, "%s cannot be started", p->name);
	else if (p->config != NULL && write_config(config, p->config, meanings) != 0)
		error = pl_error_say(err, -EIO, "%s cannot be written", config);
	if (error == 0) {
		s->stop_signal = p->killed ? SIGKILL : SIGTERM;
		s->pid = spawn(argv, root, s->log);
		error = s->pid != -1 ? wait_until_it_serves(s, row, meanings, root, socket_path,
							    port, pid_path, err)
				     : pl_error_set(err, -errno, "%s", p->name);
	}
	for (unsigned i = 0; argv[i] != NULL; i++)
		free(argv[i]);
	free(plugin);
	return error;
}

/* The address as the client wants it. */
static int
use_uri(struct bench_server *s, const char *text, struct pl_error *err)
{
	struct nbd_uri uri = { 0 };
	int error;

	if (strncmp(text, "iscsi://", 8) == 0) {
		int host = (int)strcspn(text + 8, "/");
		bool has_port = memchr(text + 8, ':', (size_t)host) != NULL;

		snprintf(s->address, sizeof(s->address), "%.*s%s%s", 8 + host, text,
			 has_port ? "" : ":3260", text + 8 + host);
		return 0;
	}
	error = nbd_uri_parse(&uri, text, err);
	if (error != 0)
		return error;
	if (uri.unix_socket != NULL)
		snprintf(s->address, sizeof(s->address), "%s", uri.unix_socket);
	else
		snprintf(s->address, sizeof(s->address), "%s:%s", uri.host,
			 uri.port != NULL ? uri.port : "10809");
	snprintf(s->export_name, sizeof(s->export_name), "%s", uri.export);
	nbd_uri_free(&uri);
	return 0;
}

int
bench_server_start(struct bench_server *s, const struct bench_target *t,
		   const struct bench_place *place, struct pl_error *err)
{
	int error = 0;

	*s = (struct bench_server){ .log = -1 };
	s->where = (struct bench_where){ .path = place->image,
					 .direct = t->direct,
					 .limit = place->size };
	if (t->kind == BENCH_RAW)
		return 0;
	error = t->kind == BENCH_GIVEN ? use_uri(s, t->name, err) : start(s, t->row, place, err);
	s->where.address = s->address;
	s->where.export_name = s->export_name;
	s->where.server = s->pid > 0 ? getpgid(s->pid) : 0;
	if (error != 0)
		bench_server_stop(s);
	return error;
}

void
bench_server_stop(struct bench_server *s)
{
	pid_t group = s->pid > 0 ? getpgid(s->pid) : -1;

	if (s->pid > 0 && group > 0) {
		kill(-group, s->stop_signal);
		for (unsigned tick = 0; tick < 1000 && !has_ended(s->pid); tick++)
			nap();
		kill(-group, SIGKILL); /* what is left of it */
		waitpid(s->pid, NULL, 0);
	}
	s->pid = 0;
	if (s->log != -1)
		close(s->log);
	s->log = -1;
}

/* ---- their folder ---------------------------------------------------------------- */

void
bench_folder_remove(const char *path)
{
	DIR *d = opendir(path);
	struct dirent *entry;

	while (d != NULL && (entry = readdir(d)) != NULL)
		unlinkat(dirfd(d), entry->d_name, 0);
	if (d != NULL)
		closedir(d);
	rmdir(path);
}
