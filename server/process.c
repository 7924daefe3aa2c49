/*
 * process.c - foreground or background, the log, the file with the process's number, and the
 * command of --run.
 *
 * The command has a companion: a child that is forked before privileges are dropped. It waits
 * until the server serves, runs the command, tells the server its status, and when the server
 * is gone, however it ended, ends the command and removes the folder of the socket.
 */
#include "process.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <syslog.h>
#include <unistd.h>

/* ---- the log --------------------------------------------------------------------- */

static void
log_for_people(enum pl_log_level level, const char *line)
{
	static const char *const words[] = {
		[PL_LOG_ERROR] = "error: ", [PL_LOG_WARN] = "warning: ", [PL_LOG_INFO] = ""
	};

	if (level != PL_LOG_DEBUG)
		fprintf(stderr, "platterd: %s%s\n", words[level], line);
}

static const int priorities[] = {
	[PL_LOG_ERROR] = LOG_ERR,
	[PL_LOG_WARN] = LOG_WARNING,
	[PL_LOG_INFO] = LOG_INFO,
	[PL_LOG_DEBUG] = LOG_DEBUG,
};

static void
log_for_journal(enum pl_log_level level, const char *line)
{
	fprintf(stderr, "<%d>%s\n", priorities[level], line);
}

static void
log_for_syslog(enum pl_log_level level, const char *line)
{
	if (level != PL_LOG_DEBUG)
		syslog(priorities[level], "%s", line);
}

/* systemd.exec(5), "$JOURNAL_STREAM": device and inode, to be compared. */
static bool
is_journal(int fd)
{
	const char *stream = getenv("JOURNAL_STREAM");
	unsigned long long device, inode;
	struct stat st;

	return stream != NULL && sscanf(stream, "%llu:%llu", &device, &inode) == 2 &&
	       fstat(fd, &st) == 0 && st.st_dev == device && st.st_ino == inode;
}

void
process_log(void)
{
	int fd;

	/* What was closed must not become a socket's number, or the log would go there. */
	do
		fd = open("/dev/null", O_RDWR);
	while (fd >= STDIN_FILENO && fd <= STDERR_FILENO);
	close(fd);
	pl_log_to(is_journal(STDERR_FILENO) ? log_for_journal : log_for_people);
}

/* ---- the background -------------------------------------------------------------- */

static struct {
	int ready; /* the parent waits for a byte from it */
	int null;
} background = { -1, -1 };

_Noreturn static void
wait_for_child(pid_t child, int ready)
{
	char byte;
	int status;

	if (TEMP_FAILURE_RETRY(read(ready, &byte, 1)) == 1)
		_exit(0);
	if (TEMP_FAILURE_RETRY(waitpid(child, &status, 0)) == child && WIFEXITED(status))
		_exit(WEXITSTATUS(status));
	_exit(EXIT_FAILURE);
}

int
process_background(struct pl_error *err)
{
	int ends[2];
	pid_t child;

	/* All that is needed later, when nothing can be opened any more. */
	background.null = open("/dev/null", O_RDWR | O_CLOEXEC);
	if (background.null == -1)
		return pl_error_set(err, -errno, "/dev/null");
	openlog("platterd", LOG_PID | LOG_NDELAY, LOG_DAEMON);
	if (pipe2(ends, O_CLOEXEC) == -1)
		return pl_error_set(err, -errno, "background: pipe");
	child = fork();
	if (child == -1)
		return pl_error_set(err, -errno, "background: fork");
	if (child != 0) {
		close(ends[1]);
		wait_for_child(child, ends[0]);
	}
	close(ends[0]);
	background.ready = ends[1];
	setsid();
	return 0;
}

void
process_serves(void)
{
	if (background.ready == -1)
		return;
	pl_log_to(log_for_syslog);
	fflush(stdout);
	for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
		dup2(background.null, fd);
	if (write(background.ready, "", 1) != 1)
		log_warn("whoever started this has not waited");
	close(background.ready);
}

/* ---- the file with its number ---------------------------------------------------- */

#define PID_BYTES 32 /* a number and its newline, and then some */

static struct {
	char *path;
	int fd;
} pid_file = { NULL, -1 };

/* Whether the name stands for the file that is open. */
static bool
is_named(const char *path, int fd)
{
	struct stat st, named;

	return fstat(fd, &st) == 0 && lstat(path, &named) == 0 && st.st_dev == named.st_dev &&
	       st.st_ino == named.st_ino;
}

/* Nothing but a file like ours is written over: a word too few on the command line must not cost
 * an image or a device. */
static int
file_check(const char *path, int fd, struct pl_error *err)
{
	char text[PID_BYTES + 1] = "";
	struct stat st;
	ssize_t n = 0;

	if (fstat(fd, &st) == -1 ||
	    (S_ISREG(st.st_mode) && (n = pread(fd, text, sizeof text, 0)) == -1))
		return pl_error_set(err, -errno, "pidfile=%s", path);
	if (!S_ISREG(st.st_mode) || n > PID_BYTES || strspn(text, "0123456789\n") != (size_t)n)
		return pl_error_say(err, -EEXIST,
				    "pidfile=%s: it is there, and no file with a process's number",
				    path);
	return 0;
}

/* Locked as long as its server lives. */
static int
file_open(const char *path, int *out, struct pl_error *err)
{
	int fd =
		open(path, O_RDWR | O_CREAT | O_NOFOLLOW | O_NONBLOCK | O_NOCTTY | O_CLOEXEC, 0644);
	int error;

	if (fd == -1)
		return pl_error_set(err, -errno, "pidfile=%s", path);
	error = file_check(path, fd, err);
	if (error == 0 && flock(fd, LOCK_EX | LOCK_NB) == -1 && errno == EWOULDBLOCK)
		error = pl_error_say(err, -EBUSY, "pidfile=%s: another server that runs has it",
				     path);
	if (error == 0 && ftruncate(fd, 0) == -1)
		error = pl_error_set(err, -errno, "pidfile=%s", path);
	if (error != 0)
		close(fd);
	*out = error == 0 ? fd : -1;
	return error;
}

int
process_file_open(const char *path, struct pl_error *err)
{
	int error;

	/* Later it may be out of reach, so it is opened now; it has its content when all is
	 * ready. Again when a server that ends has removed it meanwhile. */
	while ((error = file_open(path, &pid_file.fd, err)) == 0 && !is_named(path, pid_file.fd))
		close(pid_file.fd);
	if (error != 0)
		return error;
	pid_file.path = realpath(path, NULL);
	return pid_file.path != NULL ? 0 : pl_error_set(err, -errno, "pidfile=%s", path);
}

void
process_file_write(void)
{
	if (pid_file.fd != -1 && dprintf(pid_file.fd, "%d\n", getpid()) < 0)
		log_warn("pidfile=%s: %s", pid_file.path, strerror(errno));
}

void
process_file_remove(void)
{
	if (pid_file.path == NULL)
		return;
	/* With fewer privileges than at the start it may stay. */
	if (is_named(pid_file.path, pid_file.fd) && unlink(pid_file.path) == -1)
		log_debug("pidfile=%s: remove: %s", pid_file.path, strerror(errno));
	close(pid_file.fd);
	free(pid_file.path);
	pid_file.path = NULL;
}

/* ---- the command ----------------------------------------------------------------- */

#define START_BYTES 65536

static struct {
	char folder[PATH_MAX - 16], socket[PATH_MAX];
	int fd; /* the server's end, or the companion's */
} command = { .fd = -1 };

/* In the companion: the two strings of command_start(), once the server serves. */
static bool
wait_for_start(char *message)
{
	ssize_t n = TEMP_FAILURE_RETRY(recv(command.fd, message, START_BYTES, 0));

	return n > 0 && message[n - 1] == '\0';
}

static pid_t
run(const char *text, const char *message)
{
	const char *unixsocket = message + strlen(message) + 1;
	pid_t child = fork();
	sigset_t none;

	if (child != 0)
		return child;
	/* As it would be without us. */
	for (int number = 1; number < NSIG; number++)
		signal(number, SIG_DFL);
	sigemptyset(&none);
	sigprocmask(SIG_SETMASK, &none, NULL);
	setenv("uri", message, 1);
	if (*unixsocket != '\0')
		setenv("unixsocket", unixsocket, 1);
	execl("/bin/sh", "sh", "-c", text, (char *)NULL);
	_exit(127);
}

/* Until the command ends, or the server: then the command is ended, too. */
static void
watch(pid_t child)
{
	struct pollfd fds[] = { { .fd = pidfd_open(child, 0), .events = POLLIN },
				{ .fd = command.fd, .events = POLLIN } };
	int status = 0, code;

	while (poll(fds, 2, -1) == -1 && errno == EINTR)
		;
	if (fds[1].revents != 0)
		kill(child, SIGTERM);
	TEMP_FAILURE_RETRY(waitpid(child, &status, 0));
	code = WIFEXITED(status) ? WEXITSTATUS(status) : 128 + WTERMSIG(status);
	send(command.fd, &code, sizeof code, MSG_NOSIGNAL);
}

_Noreturn static void
companion(const char *text)
{
	static char message[START_BYTES];
	char byte;

	/* A terminal sends these to all of us; the server decides. */
	for (unsigned i = 0; i < 3; i++)
		signal((const int[]){ SIGINT, SIGTERM, SIGHUP }[i], SIG_IGN);
	if (wait_for_start(message)) {
		pid_t child = run(text, message);

		if (child > 0)
			watch(child);
		TEMP_FAILURE_RETRY(recv(command.fd, &byte, 1, 0)); /* the server's end */
	}
	unlink(command.socket);
	rmdir(command.folder);
	_exit(0);
}

int
command_new(const char *text, struct pl_error *err)
{
	const char *at = getenv("TMPDIR");
	int ends[2];
	pid_t child;

	snprintf(command.folder, sizeof command.folder, "%s/platterd-XXXXXX",
		 at != NULL ? at : "/tmp");
	if (mkdtemp(command.folder) == NULL)
		return pl_error_set(err, -errno, "%s", command.folder);
	snprintf(command.socket, sizeof command.socket, "%s/socket", command.folder);
	if (socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) == -1)
		return pl_error_set(err, -errno, "--run: socket");
	child = fork();
	if (child == -1)
		return pl_error_set(err, -errno, "--run: fork");
	close(ends[child != 0]);
	command.fd = ends[child == 0];
	if (child == 0)
		companion(text);
	return 0;
}

const char *
command_socket(void)
{
	return command.socket;
}

int
command_start(const char *uri, const char *unixsocket, struct pl_error *err)
{
	struct iovec iov[] = { { (void *)uri, strlen(uri) + 1 },
			       { (void *)unixsocket, strlen(unixsocket) + 1 } };
	struct msghdr message = { .msg_iov = iov, .msg_iovlen = 2 };

	if (sendmsg(command.fd, &message, MSG_NOSIGNAL) == -1)
		return pl_error_set(err, -errno, "--run");
	return 0;
}

int
command_fd(void)
{
	return command.fd;
}
