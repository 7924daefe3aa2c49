/*
 * main.c - platterd from start to end.
 *
 * The order at the start: know what is wanted; fork what has to be forked; open all there is to
 * open; give up privileges; make threads and rings; forbid the rest; serve. From then on the
 * main thread's loop accepts, takes orders (signals, the control socket) and does nothing that
 * clients wait for. What goes wrong at the start ends the process, which undoes it.
 *
 * A reload reads everything anew, and changes something only when all of it is right.
 *
 * The end: no new clients; those there are finish what is in flight and are told to go; after
 * STOP_PATIENCE they are cut; after STOP_LIMIT the process ends whatever there still is, and
 * after STOP_SECONDS even if it is the kernel that does not come back.
 */
#include "catalog.h"
#include "clients.h"
#include "cmdline.h"
#include "control.h"
#include "iscsi/state.h"
#include "privsep.h"
#include "process.h"
#include "reach.h"
#include "stats.h"
#include "stream-tls.h"
#include "uris.h"
#include "worker.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/stat.h>
#include <systemd/sd-daemon.h>
#include <unistd.h>

#define SECOND        UINT64_C(1000000000)
#define STOP_PATIENCE (3 * SECOND)
#define STOP_LIMIT    (9 * SECOND / 2)
#define STOP_SECONDS  5 /* for everything, closing the exports included */
#define TICK          (SECOND / 50)
#define LOOPS_MAX     8 /* without --loops */

static struct server {
	int argc;
	char **argv;
	struct cmdline cmdline;
	struct config *config; /* of the start: what listeners and others may point into */
	struct worker_settings *settings; /* of now */

	struct pl_loop *loop;
	struct listener *listeners, *iscsi_listeners;
	struct control *control;
	struct catalog *catalog;
	struct targets *targets;   /* NULL: no iSCSI */
	struct targets_plan *plan; /* from when it can be refused until workers can carry it out */
	char *state;               /* directory, or NULL */
	int state_claim;           /* open until the end */
	struct clients *clients;
	struct workers *workers;
	struct tls_credentials *credentials; /* until workers have them */
	int inetd[2];                        /* the one connection's, or -1 */

	int signal_fd;
	struct pl_io signal_io, command_io, tick_io;
	int command_status;
	bool command_runs;
	struct iovec command_iov;
	unsigned busy; /* what has to end before the loop can: the ios above, listeners, control */

	bool stopping, cut, over;
	uint64_t stop_began;
	int status; /* to exit with */
} server = { .inetd = { -1, -1 }, .signal_fd = -1 };

/* ---- the end --------------------------------------------------------------------- */

static void
io_start(struct pl_io *io)
{
	server.busy++;
	pl_loop_io(server.loop, io);
}

/* Something that had to end has ended. */
static void
part_over(void *user)
{
	(void)user;
	if (--server.busy == 0 && server.over)
		pl_loop_stop(server.loop);
}

static void
all_clients_gone(void)
{
	server.over = true;
	pl_loop_cancel(server.loop, &server.signal_io);
	if (server.command_runs)
		pl_loop_cancel(server.loop, &server.command_io);
}

static void
cut(const char *why)
{
	if (server.cut)
		return;
	server.cut = true;
	clients_order_all(server.clients, CLIENT_CUT, why);
}

/* Something in the kernel does not come back. */
static void
end_hard(int signal)
{
	(void)signal;
	_exit(EXIT_FAILURE);
}

static void
stop_now(void)
{
	log_error("%u connections have not ended in %.1f seconds: ending without them",
		  clients_count(server.clients), (double)STOP_LIMIT / SECOND);
	process_file_remove();
	_exit(EXIT_FAILURE);
}

static void tick(void);
static void stop(void *user);

static void
tick_done(struct pl_io *io, int64_t result)
{
	uint64_t waited = server.stopping ? stats_now() - server.stop_began : 0;

	(void)io;
	(void)result;
	if (waited > STOP_LIMIT)
		stop_now();
	if (waited > STOP_PATIENCE)
		cut("the server stops");
	if (!server.over && clients_count(server.clients) == 0) {
		if (server.stopping)
			all_clients_gone();
		else /* with --inetd the end of the one client is the server's */
			stop(NULL);
	}
	if (!server.over || server.busy > 1)
		tick();
	part_over(NULL);
}

static void
tick(void)
{
	server.tick_io = (struct pl_io){
		.kind = PL_IO_DELAY, .fd = -1, .slot = -1, .length = TICK, .done = tick_done
	};
	io_start(&server.tick_io);
}

static void
stop(void *user)
{
	(void)user;
	if (server.stopping)
		return;
	server.stopping = true;
	server.stop_began = stats_now();
	signal(SIGALRM, end_hard);
	alarm(STOP_SECONDS);
	sd_notify(0, "STOPPING=1\nSTATUS=Clients finish what is in flight");
	server.busy += 2;
	listeners_stop(server.listeners, part_over, NULL);
	listeners_stop(server.iscsi_listeners, part_over, NULL);
	if (server.control != NULL) {
		server.busy++;
		control_stop(server.control, part_over, NULL);
	}
	clients_order_all(server.clients, CLIENT_SHUT_DOWN, "the server stops");
	if (!server.cmdline.inetd)
		tick();
}

/* ---- what is wanted -------------------------------------------------------------- */

static unsigned
worker_count(const struct config *config)
{
	cpu_set_t cpus;
	int n;

	if (config->server.loops != 0)
		return (unsigned)config->server.loops;
	n = sched_getaffinity(0, sizeof cpus, &cpus) == 0 ? CPU_COUNT(&cpus) : 1;
	return n < LOOPS_MAX ? (unsigned)n : LOOPS_MAX;
}

static struct worker_settings *
worker_settings(const struct config *config)
{
	struct worker_settings *s = malloc(sizeof *s);

	if (s != NULL)
		*s = (struct worker_settings){
			.catalog = server.catalog,
			.targets = server.targets,
			.memory = config->server.memory,
			.handshake_timeout = config->server.handshake_timeout,
			.depth = (unsigned)config->server.depth,
			.may_list = config->server.list,
			.tls = config->server.tls,
			.poll = config->server.poll,
		};
	return s;
}

static struct clients_limits
clients_limits(const struct config *config)
{
	return (struct clients_limits){
		.total = (unsigned)config->server.max_connections,
		.per_host = (unsigned)config->server.max_connections_per_host,
	};
}

/* NULL without TLS. */
static int
load_credentials(const struct config *config, struct tls_credentials **out, struct pl_error *err)
{
	const struct tls_settings settings = {
		.certificates = config->server.tls_certificates,
		.psk = config->server.tls_psk,
		.verify_peer = config->server.tls_verify_peer,
	};

	*out = NULL;
	if (settings.certificates == NULL && settings.psk == NULL)
		return 0;
	if (config->server.tls == TLS_OFF)
		log_warn("%s is given and tls=off: nobody is offered TLS",
			 settings.psk != NULL ? "tls-psk" : "tls-certificates");
	return tls_credentials_new(out, &settings, err);
}

/* ---- reload ---------------------------------------------------------------------- */

static void
use_settings(struct worker *w, void *user)
{
	w->settings = user;
}

static int
plan_targets(const struct config *config, struct targets_plan **plan, struct pl_error *err)
{
	return targets_plan(server.targets, config->targets, config->target_count, plan, err);
}

/* All that can be refused comes first. */
static int
apply(const struct config *fresh, struct pl_error *err)
{
	struct worker_settings *settings = worker_settings(fresh), *old = server.settings;
	struct tls_credentials *credentials = NULL;
	struct targets_plan *plan = NULL;
	unsigned opened, missing;
	int error;

	if (settings == NULL)
		return pl_error_set(err, -ENOMEM, "settings");
	error = load_credentials(fresh, &credentials, err);
	if (error == 0 && server.targets != NULL)
		error = plan_targets(fresh, &plan, err);
	if (error == 0 && plan != NULL)
		error = targets_plan_load(server.targets, plan, err);
	if (error == 0)
		error = catalog_apply(server.catalog, fresh->exports, fresh->export_count, &opened,
				      err);
	if (error != 0) {
		targets_plan_free(plan);
		tls_credentials_put(credentials);
		free(settings);
		return error;
	}
	catalog_grow(server.catalog, NULL, NULL);
	if (plan != NULL)
		error = targets_apply(server.targets, server.workers, plan, &opened, &missing, err);
	workers_secure(server.workers, credentials);
	clients_limit(server.clients, clients_limits(fresh));
	workers_each(server.workers, use_settings, settings);
	server.settings = settings;
	free(old);
	return error;
}

static int
reload(void *user, struct pl_error *err)
{
	struct cmdline cmdline;
	struct config *fresh;
	int error = config_new(&fresh, err);

	(void)user;
	if (error != 0)
		return error;
	sd_notifyf(0, "RELOADING=1\nMONOTONIC_USEC=%llu", (unsigned long long)(stats_now() / 1000));
	error = cmdline_parse(server.argc, server.argv, &cmdline, fresh, err);
	if (error == 0)
		error = apply(fresh, err);
	if (error == 0) {
		config_report_waiting(server.config, fresh);
		log_info("reload: %u exports", fresh->export_count);
	} else {
		log_error("reload: nothing is changed: %s", err->text);
	}
	config_free(fresh);
	sd_notify(0, "READY=1");
	return error;
}

static int
resize(void *user, const char *export, struct pl_error *err)
{
	int error = catalog_grow(server.catalog, export, err);

	(void)user;
	if (error == 0 && server.targets != NULL)
		targets_resize(server.targets, server.workers);
	return error;
}

/* ---- signals, the command, new clients ------------------------------------------- */

static void wait_for_signals(void);

static void
signal_came(unsigned number)
{
	struct pl_error err;

	if (number == SIGHUP) {
		if (!server.stopping)
			reload(NULL, &err);
	} else if (server.stopping) {
		cut("the server was told twice to stop");
	} else {
		stop(NULL);
	}
}

static void
signals_done(struct pl_io *io, int64_t result)
{
	struct signalfd_siginfo info;

	(void)io;
	(void)result;
	while (read(server.signal_fd, &info, sizeof info) == sizeof info)
		signal_came(info.ssi_signo);
	if (!server.over)
		wait_for_signals();
	part_over(NULL);
}

static void
wait_for_signals(void)
{
	server.signal_io = (struct pl_io){ .kind = PL_IO_POLL,
					   .fd = server.signal_fd,
					   .slot = -1,
					   .mode = POLLIN,
					   .done = signals_done };
	io_start(&server.signal_io);
}

static void
command_done(struct pl_io *io, int64_t result)
{
	(void)io;
	server.command_runs = false;
	if (!server.stopping)
		server.status = result == sizeof server.command_status ? server.command_status
								       : EXIT_FAILURE;
	stop(NULL);
	part_over(NULL);
}

static void
wait_for_command(void)
{
	server.command_runs = true;
	server.command_iov = (struct iovec){ &server.command_status, sizeof server.command_status };
	server.command_io = (struct pl_io){ .kind = PL_IO_RECV,
					    .fd = command_fd(),
					    .slot = -1,
					    .iov = &server.command_iov,
					    .iovcnt = 1,
					    .done = command_done };
	io_start(&server.command_io);
}

/* A flood of connections is no flood of lines. */
static void
log_refused(const char *why)
{
	static uint64_t last;
	static unsigned unsaid;
	uint64_t now = stats_now();

	if (last != 0 && now - last < SECOND) {
		unsaid++;
		return;
	}
	if (unsaid > 0)
		log_warn("%s (and %u more since the last such line)", why, unsaid);
	else
		log_warn("%s", why);
	last = now;
	unsaid = 0;
}

static void
serve(int fd, int send_fd, enum worker_protocol protocol)
{
	struct client *client;
	struct pl_error err;

	if (clients_admit(server.clients, fd, &client, &err) == 0) {
		workers_take(server.workers, client, fd, send_fd, protocol);
		return;
	}
	log_refused(err.text);
	close(fd);
	if (send_fd != fd)
		close(send_fd);
}

static void
accepted(void *user, int fd)
{
	(void)user;
	if (server.stopping)
		close(fd);
	else
		serve(fd, fd, PROTOCOL_NBD);
}

static void
iscsi_accepted(void *user, int fd)
{
	(void)user;
	if (server.stopping)
		close(fd);
	else
		serve(fd, fd, PROTOCOL_ISCSI);
}

/* ---- the start ------------------------------------------------------------------- */

static int
take_signals(struct pl_error *err)
{
	static const int ignored[] = { SIGPIPE, SIGXFSZ, SIGUSR1, SIGUSR2, SIGALRM };
	sigset_t set;

	/* Errors of system calls tell what the first two would; a stray one of the others is no
	 * reason to end. */
	for (unsigned i = 0; i < sizeof ignored / sizeof *ignored; i++)
		signal(ignored[i], SIG_IGN);
	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	sigprocmask(SIG_BLOCK, &set, NULL);
	server.signal_fd = signalfd(-1, &set, SFD_CLOEXEC | SFD_NONBLOCK);
	return server.signal_fd != -1 ? 0 : pl_error_set(err, -errno, "signalfd");
}

/* A connection costs a descriptor or two, an export a few for each worker. */
static void
raise_file_limit(void)
{
	struct rlimit limit;

	if (getrlimit(RLIMIT_NOFILE, &limit) != 0)
		return;
	limit.rlim_cur = limit.rlim_max;
	setrlimit(RLIMIT_NOFILE, &limit);
}

/* Whatever writes to standard output from now on does not write to the client. */
static int
take_standard_streams(struct pl_error *err)
{
	struct stat in, out;
	int null = open("/dev/null", O_RDWR | O_CLOEXEC);

	if (null == -1)
		return pl_error_set(err, -errno, "/dev/null");
	for (int i = 0; i < 2; i++)
		server.inetd[i] = fcntl(i, F_DUPFD_CLOEXEC, 3);
	if (server.inetd[0] == -1 || server.inetd[1] == -1 || fstat(0, &in) != 0 ||
	    fstat(1, &out) != 0)
		return pl_error_set(err, -errno, "--inetd: standard input and output");
	if (S_ISSOCK(in.st_mode) && in.st_ino == out.st_ino) {
		close(server.inetd[1]);
		server.inetd[1] = server.inetd[0];
	}
	dup2(null, STDIN_FILENO);
	dup2(null, STDOUT_FILENO);
	close(null);
	return 0;
}

static int
open_listeners(struct pl_error *err)
{
	struct listener_settings by_itself = { .kind = LISTENER_TCP,
					       .value = "localhost:10809",
					       .where = "no other address is given" };
	const struct config *config = server.config;
	unsigned adopted;
	int error = listener_adopt(&server.listeners, &adopted, err);

	for (unsigned i = 0; error == 0 && i < config->listener_count; i++) {
		bool iscsi = config->listeners[i].kind == LISTENER_ISCSI;

		error = listener_open(&config->listeners[i],
				      iscsi ? &server.iscsi_listeners : &server.listeners, err);
	}
	if (error != 0 || server.listeners != NULL || server.iscsi_listeners != NULL ||
	    server.cmdline.inetd)
		return error;
	if (server.cmdline.run != NULL)
		by_itself = (struct listener_settings){ .kind = LISTENER_UNIX,
							.value = command_socket(),
							.where = "--run",
							.mode = 0600 };
	return listener_open(&by_itself, &server.listeners, err);
}

static int
open_control(struct pl_error *err)
{
	const struct server_settings *s = &server.config->server;
	const struct control_settings settings = {
		.loop = server.loop,
		.catalog = server.catalog,
		.targets = server.targets,
		.clients = server.clients,
		.reload = reload,
		.resize = resize,
		.stop = stop,
	};

	if (s->control == NULL && s->metrics == NULL)
		return 0;
	return control_new(&server.control, s->control, s->metrics, &settings, err);
}

/* What is asked for on the command line must be there; of a file's exports, one. */
static int
open_exports(struct pl_error *err)
{
	const struct config *config = server.config;
	unsigned opened;
	int error =
		catalog_apply(server.catalog, config->exports, config->export_count, &opened, err);

	if (error != 0)
		return error;
	if (config->export_count == 0)
		log_warn("%s: there are no exports yet", server.cmdline.config);
	else if (opened == 0 || (server.cmdline.config == NULL && opened < config->export_count))
		return config->export_count == 1
			       ? pl_error_say(err, -EIO, "%s", "") /* it has been said */
			       : pl_error_say(err, -EIO, "%u of %u exports could be opened", opened,
					      config->export_count);
	return 0;
}

/* What can be refused, with what only the one who starts the server may read. */
static int
open_targets(struct pl_error *err)
{
	const struct config *config = server.config;
	const struct privsep_settings who = { .user = config->server.user,
					      .group = config->server.group };
	uid_t user;
	gid_t group;
	int error;

	if (config->target_count == 0)
		return 0;
	error = state_place(config->server.state, server.cmdline.config, config->exports[0].params,
			    &server.state, err);
	if (error == 0)
		error = privsep_identity(&who, &user, &group, err);
	if (error == 0 && server.state != NULL)
		error = state_make(server.state, user, group, err);
	if (error == 0 && server.state != NULL)
		error = state_claim(server.state, &server.state_claim, err);
	if (error == 0)
		error = targets_new(&server.targets, server.catalog, server.state, err);
	return error != 0 ? error : plan_targets(config, &server.plan, err);
}

/* ---- giving up ------------------------------------------------------------------- */

/* As with exports: all LUNs of the command line, of a file's one. */
static int
start_targets(struct pl_error *err)
{
	struct targets_plan *plan = server.plan;
	unsigned up, missing;
	int error = targets_plan_load(server.targets, plan, err);

	if (error != 0)
		return error;
	server.plan = NULL;
	error = targets_apply(server.targets, server.workers, plan, &up, &missing, err);
	if (error == 0 && (up == 0 || (server.cmdline.config == NULL && missing > 0)))
		return up + missing == 1 ? pl_error_say(err, -EIO, "%s", "") /* it has been said */
					 : pl_error_say(err, -EIO, "%u of %u LUNs could be made",
							up, up + missing);
	return error;
}

/* Between the two, threads and rings are made. */
static int
drop_and_start_workers(struct pl_error *err)
{
	struct reach reach;
	struct privsep_settings settings = {
		.user = server.config->server.user,
		.group = server.config->server.group,
		.sandbox = server.config->server.sandbox,
	};
	int error = reach_collect(&reach, server.config, server.cmdline.config, server.state, err);

	settings.paths = reach.list;
	settings.path_count = reach.count;
	if (error == 0)
		error = privsep_drop(&settings, err);
	if (error == 0)
		error = workers_start(&server.workers, worker_count(server.config), server.settings,
				      err);
	if (error == 0) {
		workers_secure(server.workers, server.credentials);
		if (server.control != NULL)
			error = control_start(server.control, err);
	}
	if (error == 0 && server.plan != NULL)
		error = start_targets(err);
	if (error == 0)
		error = privsep_seal(&settings, err);
	reach_free(&reach);
	return error;
}

/* ---- all of it ------------------------------------------------------------------- */

static int
start(struct pl_error *err)
{
	const struct config *config = server.config;
	int error = take_signals(err);

	raise_file_limit();
	if (error == 0 && server.cmdline.run != NULL)
		error = command_new(server.cmdline.run, err);
	if (error == 0 && server.cmdline.inetd)
		error = take_standard_streams(err);
	if (error == 0)
		error = pl_loop_new(&server.loop, err);
	if (error == 0)
		error = clients_new(&server.clients, err);
	if (error == 0)
		error = catalog_new(&server.catalog, worker_count(config), err);
	if (error == 0)
		error = load_credentials(config, &server.credentials, err);
	if (error == 0)
		error = open_listeners(err);
	if (error == 0 && config->server.pidfile != NULL)
		error = process_file_open(config->server.pidfile, err);
	if (error == 0)
		error = open_exports(err);
	if (error == 0)
		error = open_targets(err);
	if (error == 0)
		error = open_control(err);
	if (error != 0)
		return error;
	clients_limit(server.clients, clients_limits(config));
	server.settings = worker_settings(config);
	if (server.settings == NULL)
		return pl_error_set(err, -ENOMEM, "settings");
	return drop_and_start_workers(err);
}

static void
start_command(void)
{
	bool own = server.config->listener_count == 0;
	char *text = uris_best(server.listeners, server.iscsi_listeners, server.config);
	struct pl_error err;
	int error;

	error = text == NULL ? pl_error_set(&err, -ENOMEM, "--run")
			     : command_start(text, own ? command_socket() : "", &err);
	free(text);
	if (error != 0) {
		log_error("%s", err.text);
		server.status = EXIT_FAILURE;
		stop(NULL);
	}
	wait_for_command();
}

/* Everything is there: serve until the end. */
static void
run(void)
{
	wait_for_signals();
	if (server.listeners != NULL)
		listeners_start(server.listeners, server.loop, accepted, NULL);
	if (server.iscsi_listeners != NULL)
		listeners_start(server.iscsi_listeners, server.loop, iscsi_accepted, NULL);
	if (server.cmdline.inetd) {
		serve(server.inetd[0], server.inetd[1], PROTOCOL_NBD);
		tick();
	} else if (server.cmdline.run != NULL) {
		start_command();
	} else {
		uris_print(server.listeners, server.iscsi_listeners, server.config);
	}
	process_file_write(); /* who waits for it finds the URIs */
	process_serves();
	sd_notify(0, "READY=1\nSTATUS=Serves");
	pl_loop_run(server.loop);
}

static void
end(void)
{
	if (server.targets != NULL)
		targets_stop(server.targets, server.workers);
	workers_end(server.workers);
	targets_free(server.targets);
	control_free(server.control);
	listeners_free(server.listeners);
	listeners_free(server.iscsi_listeners);
	catalog_free(server.catalog);
	clients_free(server.clients);
	pl_loop_free(server.loop);
	config_free(server.config);
	free(server.settings);
	free(server.state);
	process_file_remove();
}

static int
fail(const struct pl_error *err)
{
	if (*err->text != '\0')
		log_error("%s", err->text);
	listeners_free(server.listeners); /* and the files of their sockets */
	listeners_free(server.iscsi_listeners);
	control_free(server.control);
	process_file_remove();
	return EXIT_FAILURE;
}

/* Found before anything is opened, and by --check-config. */
static int
check_user(struct pl_error *err)
{
	const struct privsep_settings settings = {
		.user = server.config->server.user,
		.group = server.config->server.group,
	};
	struct pl_error why;
	int error = privsep_check(&settings, &why);

	if (error != 0)
		pl_error_say(err, error, "%s: %s",
			     config_place(server.config,
					  strncmp(why.text, "group=", 6) == 0 ? "group" : "user"),
			     why.text);
	return error;
}

/* Where whoever started it waits for its end, not for its being ready. */
static bool
in_foreground(void)
{
	return server.cmdline.foreground || server.cmdline.inetd || server.cmdline.run != NULL ||
	       getenv("NOTIFY_SOCKET") != NULL || sd_listen_fds(0) != 0;
}

int
main(int argc, char **argv)
{
	struct pl_error err;
	int error;

	process_log();
	server.argc = argc;
	server.argv = argv;
	error = config_new(&server.config, &err);
	if (error == 0)
		error = cmdline_parse(argc, argv, &server.cmdline, server.config, &err);
	if (error == 0)
		error = check_user(&err);
	if (error != 0)
		return fail(&err);
	if (server.cmdline.help != NULL)
		return cmdline_help(server.cmdline.help, &err) == 0 ? 0 : fail(&err);
	if (server.cmdline.version) {
		puts("platterd " PACKAGE_VERSION);
		return 0;
	}
	if (server.cmdline.check_config)
		return 0;
	if (!in_foreground())
		error = process_background(&err);
	if (error == 0)
		error = start(&err);
	if (error != 0)
		return fail(&err);
	run();
	end();
	return server.status;
}
