/*
 * privsep.c - giving up what is not needed once everything is open.
 *
 * Layers, and each holds without the others: the user and its groups, capabilities,
 * no_new_privs (no program that is started gets more than we have), Landlock (which files may
 * be opened), seccomp (which system calls there are).
 *
 * What can go wrong: the kernel lacks Landlock or seccomp (logged, done without); anything else
 * is an error, and the caller ends rather than serve with more than was asked for.
 *
 * Built with a sanitizer, there is no Landlock, and what starts programs and looks into
 * processes is refused by no filter: reports are written to files made at that moment, symbols
 * are read from any library, and the search for leaks is a process that traces this one. Built to
 * count what runs, there is no Landlock either: counts go to files beside the objects.
 */
#include "privsep.h"

#include <cap-ng.h>
#include <errno.h>
#include <fcntl.h>
#include <grp.h>
#include <linux/fs.h>
#include <pwd.h>
#include <sched.h>
#include <seccomp.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
#define SANITIZED 1
#else
#define SANITIZED 0
#endif
#ifndef COVERAGE
#define COVERAGE 0
#endif

#define NONE         (CAP_LAST_CAP + 1u) /* no capability */
#define COUNT(table) (sizeof(table) / sizeof *(table))

/* ---- user and groups ------------------------------------------------------------- */

struct identity {
	const char *name; /* NULL: a number that has none */
	uid_t uid;
	gid_t gid;
};

static bool
is_number(const char *text, uint32_t *number)
{
	unsigned long long n;
	char *end;

	if (*text < '0' || *text > '9')
		return false;
	errno = 0;
	n = strtoull(text, &end, 10);
	/* The last number stands for "leave it" in the system calls. */
	if (*end != '\0' || errno != 0 || n >= UINT32_MAX)
		return false;
	*number = (uint32_t)n;
	return true;
}

static int
find_user(const char *text, struct identity *id, bool *has_group, struct pl_error *err)
{
	bool number = is_number(text, &id->uid);
	const struct passwd *pw = number ? getpwuid(id->uid) : getpwnam(text);

	*has_group = pw != NULL;
	if (pw == NULL && !number)
		return pl_error_say(err, -EINVAL, "user=%s: there is no such user", text);
	if (pw != NULL)
		*id = (struct identity){ pw->pw_name, pw->pw_uid, pw->pw_gid };
	return 0;
}

static int
find_group(const char *text, gid_t *gid, struct pl_error *err)
{
	const struct group *gr;

	if (is_number(text, gid))
		return 0;
	gr = getgrnam(text);
	if (gr == NULL)
		return pl_error_say(err, -EINVAL, "group=%s: there is no such group", text);
	*gid = gr->gr_gid;
	return 0;
}

/* Whether the process is and can only be this. */
static bool
is_for_good(const struct identity *id)
{
	uid_t r, e, s;
	gid_t rg, eg, sg;

	if (getresuid(&r, &e, &s) == -1 || getresgid(&rg, &eg, &sg) == -1)
		return false;
	if (r != id->uid || e != id->uid || s != id->uid)
		return false;
	if (rg != id->gid || eg != id->gid || sg != id->gid)
		return false;
	return id->uid == 0 ||
	       (setresuid(0, 0, 0) == -1 && (id->gid == 0 || setresgid(0, 0, 0) == -1));
}

/* Who the process is to be; it changes nothing yet. */
static int
find_identity(const struct privsep_settings *s, struct identity *id, struct pl_error *err)
{
	bool has_group = true;
	int error = 0;

	*id = (struct identity){ NULL, geteuid(), getegid() };
	if (s->user != NULL)
		error = find_user(s->user, id, &has_group, err);
	if (error == 0 && s->group != NULL)
		error = find_group(s->group, &id->gid, err);
	if (error == 0 && !has_group && s->group == NULL)
		error = pl_error_say(err, -EINVAL,
				     "user=%s: this number has no name and so no group; give one "
				     "with group=",
				     s->user);
	return error;
}

static int
become(const struct identity *id, struct pl_error *err)
{
	int groups;

	if (geteuid() != 0) {
		/* Who is it already has nothing to change. */
		if (id->uid == geteuid() && id->gid == getegid())
			return 0;
		return pl_error_say(err, -EPERM, "user %u, group %u: only root can change to it",
				    id->uid, id->gid);
	}
	groups = id->name != NULL ? initgroups(id->name, id->gid) : setgroups(0, NULL);
	/* A user namespace may forbid it; its root has no others than whoever made it. */
	if ((groups == -1 && (errno != EPERM || id->uid != 0)) ||
	    setresgid(id->gid, id->gid, id->gid) == -1 ||
	    setresuid(id->uid, id->uid, id->uid) == -1)
		return pl_error_set(err, -errno, "user %u, group %u", id->uid, id->gid);
	if (!is_for_good(id))
		return pl_error_say(err, -EPERM, "user %u, group %u: the change can be undone",
				    id->uid, id->gid);
	return 0;
}

/* ---- capabilities ---------------------------------------------------------------- */

static bool
have_capability(unsigned capability)
{
	return capng_get_caps_process() == 0 &&
	       capng_have_capability(CAPNG_EFFECTIVE, capability) == 1;
}

/* Before the user changes: it takes a capability that goes with root. Without it (in some
 * containers) no_new_privs keeps the rest out of reach. */
static int
bound_capabilities(unsigned keep, struct pl_error *err)
{
	if (!have_capability(CAP_SETPCAP))
		return 0;
	capng_clear(CAPNG_SELECT_BOTH);
	if (keep != NONE)
		capng_update(CAPNG_ADD, CAPNG_BOUNDING_SET, keep);
	if (capng_apply(CAPNG_SELECT_BOUNDS) != 0)
		return pl_error_say(err, -EPERM, "capabilities: the bounding set stays");
	return 0;
}

/* Whether there is any but `keep`, in whatever set but the bounding one. */
static bool
have_others(unsigned keep)
{
	static const capng_type_t sets[] = { CAPNG_EFFECTIVE, CAPNG_PERMITTED, CAPNG_INHERITABLE,
					     CAPNG_AMBIENT };

	if (capng_get_caps_process() != 0)
		return true;
	for (unsigned i = 0; i <= CAP_LAST_CAP; i++) {
		for (unsigned set = 0; set < COUNT(sets); set++)
			if (i != keep && capng_have_capability(sets[set], i) != 0)
				return true;
	}
	return false;
}

static int
drop_capabilities(unsigned keep, struct pl_error *err)
{
	/* A service manager may have taken them all, and the call to change them, too. */
	if (!have_others(keep))
		return 0;
	capng_clear(CAPNG_SELECT_ALL);
	if (keep != NONE)
		capng_update(CAPNG_ADD, CAPNG_EFFECTIVE | CAPNG_PERMITTED, keep);
	if (capng_apply(CAPNG_SELECT_CAPS) != 0 || capng_apply(CAPNG_SELECT_AMBIENT) != 0 ||
	    have_others(keep))
		return pl_error_say(err, -EPERM, "capabilities: some are left");
	return 0;
}

/* ---- Landlock -------------------------------------------------------------------- */

/* linux/landlock.h, of which older systems have less. */
enum {
	FS_EXECUTE = 1 << 0,
	FS_WRITE_FILE = 1 << 1,
	FS_READ_FILE = 1 << 2,
	FS_READ_DIR = 1 << 3,
	FS_REMOVE_FILE = 1 << 5,
	FS_MAKE_REG = 1 << 8,
	FS_REFER = 1 << 13,
	FS_TRUNCATE = 1 << 14,
	FS_IOCTL_DEV = 1 << 15,

	FS_OF_FILES = FS_EXECUTE | FS_WRITE_FILE | FS_READ_FILE | FS_TRUNCATE | FS_IOCTL_DEV,

	NET_BIND_TCP = 1 << 0,
	NET_CONNECT_TCP = 1 << 1,

	SCOPE_ABSTRACT_UNIX_SOCKET = 1 << 0,
	SCOPE_SIGNAL = 1 << 1,
};

struct ruleset {
	uint64_t fs, net, scoped;
};

struct __attribute__((packed)) path_rule {
	uint64_t allowed;
	int32_t parent;
};

#define RULE_PATH_BENEATH 1

/* What each version of the interface can restrict: all of that is, where there is no rule. */
static const struct {
	struct ruleset handled;
	size_t size; /* of the struct that it knows */
} landlock_versions[] = {
	{ { FS_REFER - 1, 0, 0 }, 8 },
	{ { 2 * FS_REFER - 1, 0, 0 }, 8 },
	{ { 2 * FS_TRUNCATE - 1, 0, 0 }, 8 },
	{ { 2 * FS_TRUNCATE - 1, NET_BIND_TCP | NET_CONNECT_TCP, 0 }, 16 },
	{ { 2 * FS_IOCTL_DEV - 1, NET_BIND_TCP | NET_CONNECT_TCP, 0 }, 16 },
	{ { 2 * FS_IOCTL_DEV - 1, NET_BIND_TCP | NET_CONNECT_TCP,
	    SCOPE_ABSTRACT_UNIX_SOCKET | SCOPE_SIGNAL },
	  24 },
};

static const uint64_t landlock_rights[] = {
	/* A block device is asked for its size also where it is only read. */
	[PRIVSEP_READ] = FS_READ_FILE | FS_READ_DIR | FS_IOCTL_DEV,
	[PRIVSEP_WRITE] = FS_READ_FILE | FS_READ_DIR | FS_IOCTL_DEV | FS_WRITE_FILE,
	[PRIVSEP_REMOVE] = FS_REMOVE_FILE,
	[PRIVSEP_REPLACE] = FS_READ_FILE | FS_READ_DIR | FS_WRITE_FILE | FS_MAKE_REG |
			    FS_REMOVE_FILE | FS_TRUNCATE,
};

/* What a running server reads whatever it is told to serve. */
static const struct privsep_path always[] = {
	{ "/sys", PRIVSEP_READ }, /* what the disk below an image is like */
	{ "/proc/sys/vm/overcommit_memory", PRIVSEP_READ }, /* malloc */
	{ "/etc/localtime", PRIVSEP_READ },                 /* syslog */
	{ "/etc/nsswitch.conf", PRIVSEP_READ }, /* names of users and groups, at a reload */
	{ "/etc/passwd", PRIVSEP_READ },
	{ "/etc/group", PRIVSEP_READ },
};

static bool files_restricted;

static int
allow_path(int ruleset, uint64_t handled, const struct privsep_path *path, struct pl_error *err)
{
	struct path_rule rule = { landlock_rights[path->right] & handled, -1 };
	struct stat st;
	int error = 0;

	rule.parent = open(path->path, O_PATH | O_CLOEXEC);
	if (rule.parent == -1) {
		log_debug("sandbox: %s: %s; it stays out of reach", path->path, strerror(errno));
		return 0;
	}
	if (fstat(rule.parent, &st) == 0 && !S_ISDIR(st.st_mode))
		rule.allowed &= FS_OF_FILES;
	if (rule.allowed != 0 &&
	    syscall(SYS_landlock_add_rule, ruleset, RULE_PATH_BENEATH, &rule, 0) == -1)
		error = pl_error_set(err, -errno, "sandbox: Landlock: %s", path->path);
	close(rule.parent);
	return error;
}

static int
restrict_files(const struct privsep_settings *s, struct pl_error *err)
{
	const struct ruleset *handled;
	long version = syscall(SYS_landlock_create_ruleset, NULL, 0, 1 /* ask for the version */);
	int ruleset, error = 0;

	if (SANITIZED || COVERAGE) {
		log_info("sandbox: no Landlock, for what this build reports");
		return 0;
	}
	if (version < 1) {
		log_warn("sandbox: this kernel has no Landlock (%s); the system's own rules alone "
			 "say which files may be opened",
			 strerror(errno));
		return 0;
	}
	if (version > (long)COUNT(landlock_versions))
		version = COUNT(landlock_versions);
	handled = &landlock_versions[version - 1].handled;
	ruleset = (int)syscall(SYS_landlock_create_ruleset, handled,
			       landlock_versions[version - 1].size, 0);
	if (ruleset == -1)
		return pl_error_set(err, -errno, "sandbox: Landlock");
	for (unsigned i = 0; i < COUNT(always) && error == 0; i++)
		error = allow_path(ruleset, handled->fs, &always[i], err);
	for (unsigned i = 0; i < s->path_count && error == 0; i++)
		error = allow_path(ruleset, handled->fs, &s->paths[i], err);
	if (error == 0 && syscall(SYS_landlock_restrict_self, ruleset, 0) == -1)
		error = pl_error_set(err, -errno, "sandbox: Landlock");
	files_restricted = error == 0;
	close(ruleset);
	return error;
}

void
privsep_explain(struct pl_error *err)
{
	size_t length = strlen(err->text);

	if (files_restricted && err->code == -EACCES)
		snprintf(err->text + length, sizeof err->text - length,
			 " (the sandbox lets only what was named at the start be opened, and what "
			 "lies in directories of the option reach)");
}

int
privsep_check(const struct privsep_settings *s, struct pl_error *err)
{
	struct identity id;

	return find_identity(s, &id, err);
}

int
privsep_identity(const struct privsep_settings *s, uid_t *user, gid_t *group, struct pl_error *err)
{
	struct identity id;
	int error = find_identity(s, &id, err);

	if (error != 0)
		return error;
	*user = id.uid;
	*group = id.gid;
	return 0;
}

int
privsep_drop(const struct privsep_settings *s, struct pl_error *err)
{
	struct identity id;
	unsigned keep = NONE;
	int error;

	error = find_identity(s, &id, err);
	if (error != 0)
		return error;
	if (id.uid == 0 && have_capability(CAP_DAC_OVERRIDE))
		keep = CAP_DAC_OVERRIDE;
	if ((error = bound_capabilities(keep, err)) != 0 || (error = become(&id, err)) != 0 ||
	    (error = drop_capabilities(keep, err)) != 0)
		return error;
	if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == -1)
		return pl_error_set(err, -errno, "no_new_privs");
	return s->sandbox ? restrict_files(s, err) : 0;
}

/* ---- seccomp --------------------------------------------------------------------- */

/*
 * What a server does that is set up, by the names of the calls. Everything that is not in these
 * tables ends with EPERM, io_uring_setup too; what is in `deadly` ends the process. A name that
 * this machine does not have is passed over.
 */
static const char *const allowed[] = {
	/* disks and sockets, and the rings that do most of it */
	"io_uring_enter io_uring_register read readv pread64 preadv preadv2 write writev pwrite64",
	"pwritev pwritev2 fsync fdatasync syncfs sync_file_range fallocate fadvise64 lseek",
	"_llseek",
	"recv recvfrom recvmsg send sendto sendmsg sendfile sendfile64 shutdown accept accept4",
	"connect getsockopt setsockopt getsockname getpeername eventfd2 signalfd4",
	/* waiting */
	"poll ppoll ppoll_time64 select _newselect pselect6 pselect6_time64 epoll_create1",
	"epoll_ctl epoll_wait epoll_pwait futex futex_time64 nanosleep clock_nanosleep",
	"clock_nanosleep_time64 restart_syscall wait4 waitid sched_yield",
	/* images, at a reload and for each connection; files to be removed at the end */
	"open openat openat2 close close_range dup dup2 dup3 fcntl fcntl64 stat stat64 lstat",
	"lstat64 fstat fstat64 newfstatat fstatat64 statx statfs statfs64 fstatfs fstatfs64",
	"access faccessat faccessat2 readlink readlinkat getcwd getdents64 unlink unlinkat",
	"ftruncate ftruncate64 rename renameat renameat2",
	/* memory and threads */
	"brk munmap mremap madvise membarrier set_robust_list rseq set_tid_address",
	"sched_getaffinity sched_setaffinity getcpu sysinfo gettid getpid getppid exit",
	"exit_group",
	/* signals, abort() among them */
	"rt_sigaction rt_sigprocmask rt_sigreturn rt_sigtimedwait sigreturn sigaltstack tgkill",
	"alarm setitimer",
	/* who and when */
	"getuid geteuid getgid getegid getuid32 geteuid32 getgid32 getegid32 getrusage getrlimit",
	"ugetrlimit uname getrandom clock_gettime clock_gettime64 clock_getres gettimeofday time",
};

/* Calls of which a part is allowed: where (argument & mask) is value. */
static const struct {
	int call;
	unsigned argument;
	uint64_t mask, value;
} parts[] = {
	{ SCMP_SYS(mmap), 2, PROT_EXEC, 0 },
	{ SCMP_SYS(mmap2), 2, PROT_EXEC, 0 },
	{ SCMP_SYS(mprotect), 2, PROT_EXEC, 0 },
	{ SCMP_SYS(clone), 0, CLONE_THREAD, CLONE_THREAD },
	{ SCMP_SYS(socket), 0, UINT64_MAX, AF_UNIX }, /* to the service manager */
	{ SCMP_SYS(prctl), 0, UINT64_MAX, PR_SET_NAME },
	{ SCMP_SYS(prctl), 0, UINT64_MAX, PR_SET_VMA }, /* names of memory, by newer C libraries */
	{ SCMP_SYS(prlimit64), 2, UINT64_MAX, 0 },      /* to ask, not to set */
	/* The upper half of a request for ioctl is nobody's. */
	{ SCMP_SYS(ioctl), 1, UINT32_MAX, BLKGETSIZE64 },
	{ SCMP_SYS(ioctl), 1, UINT32_MAX, BLKSSZGET },
	{ SCMP_SYS(ioctl), 1, UINT32_MAX, BLKPBSZGET },
	{ SCMP_SYS(ioctl), 1, UINT32_MAX, BLKROGET },
	{ SCMP_SYS(ioctl), 1, UINT32_MAX, BLKDISCARD },
	{ SCMP_SYS(ioctl), 1, UINT32_MAX, TCGETS }, /* the C library's streams */
	{ SCMP_SYS(ioctl), 1, UINT32_MAX, FIONBIO },
};

/* What a server that is still itself never asks for. */
static const char *const deadly[] = {
	"execve execveat fork vfork ptrace process_vm_readv process_vm_writev",
	"init_module finit_module delete_module kexec_load kexec_file_load bpf perf_event_open",
	"userfaultfd mount umount2 pivot_root chroot unshare setns keyctl add_key request_key",
	"reboot",
};

/* What only a sanitizer's own code asks for. */
static const char *const sanitizer_allowed[] = {
	"mmap mprotect clone ptrace prctl kill pipe2 process_vm_readv getdents ioctl prlimit64",
};

static int
rule_for_each(scmp_filter_ctx filter, uint32_t action, const char *names)
{
	while (*names != '\0') {
		size_t length = strcspn(names, " ");
		char name[32];
		int call, error;

		snprintf(name, sizeof name, "%.*s", (int)length, names);
		call = seccomp_syscall_resolve_name(name);
		error = call == __NR_SCMP_ERROR ? 0 : seccomp_rule_add(filter, action, call, 0);
		if (error != 0)
			return error;
		names += length + (names[length] != '\0');
	}
	return 0;
}

static int
rules(scmp_filter_ctx filter, uint32_t action, const char *const *lines, unsigned count)
{
	int error = 0;

	for (unsigned i = 0; i < count && error == 0; i++)
		error = rule_for_each(filter, action, lines[i]);
	return error;
}

static int
allow_parts(scmp_filter_ctx filter)
{
	int error = 0;

	for (unsigned i = 0; i < COUNT(parts) && error == 0; i++)
		error = seccomp_rule_add(filter, SCMP_ACT_ALLOW, parts[i].call, 1,
					 SCMP_CMP64(parts[i].argument, SCMP_CMP_MASKED_EQ,
						    parts[i].mask, parts[i].value));
	return error;
}

static int
kill_calls(scmp_filter_ctx filter)
{
	int error = seccomp_rule_add(filter, SCMP_ACT_KILL_PROCESS, SCMP_SYS(clone), 1,
				     SCMP_CMP64(0, SCMP_CMP_MASKED_EQ, CLONE_THREAD, 0));

	return error != 0 ? error : rules(filter, SCMP_ACT_KILL_PROCESS, deadly, COUNT(deadly));
}

static int
fill_filter(scmp_filter_ctx filter)
{
	static const struct {
		enum scmp_filter_attr name;
		uint32_t value;
	} attributes[] = {
		{ SCMP_FLTATR_CTL_TSYNC, 1 },    /* for the threads that there are */
		{ SCMP_FLTATR_CTL_OPTIMIZE, 2 }, /* a tree: some calls are made often */
		/* The filter judges no strangers, so nothing is to be slowed down for it. */
		{ SCMP_FLTATR_CTL_SSB, 1 },
		{ SCMP_FLTATR_ACT_BADARCH, SCMP_ACT_KILL_PROCESS },
	};
	int error = 0;

	for (unsigned i = 0; i < COUNT(attributes) && error == 0; i++)
		error = seccomp_attr_set(filter, attributes[i].name, attributes[i].value);
	if (error == 0)
		error = rules(filter, SCMP_ACT_ALLOW, allowed, COUNT(allowed));
	/* Its flags are in memory, where a filter cannot look: clone() comes instead. */
	if (error == 0)
		error = seccomp_rule_add(filter, SCMP_ACT_ERRNO(ENOSYS), SCMP_SYS(clone3), 0);
	if (error == 0 && SANITIZED)
		error = rules(filter, SCMP_ACT_ALLOW, sanitizer_allowed, COUNT(sanitizer_allowed));
	if (error == 0)
		error = allow_parts(filter);
	if (error == 0 && !SANITIZED)
		error = kill_calls(filter);
	return error;
}

int
privsep_seal(const struct privsep_settings *s, struct pl_error *err)
{
	scmp_filter_ctx filter;
	int error;

	if (!s->sandbox)
		return 0;
	filter = seccomp_init(SCMP_ACT_ERRNO(EPERM));
	if (filter == NULL)
		return pl_error_set(err, -ENOMEM, "sandbox: seccomp");
	error = fill_filter(filter);
	if (error != 0) {
		pl_error_set(err, error, "sandbox: seccomp: a rule");
		goto out;
	}
	error = seccomp_load(filter);
	if (error == -EOPNOTSUPP || error == -ENOSYS || error == -EINVAL) {
		log_warn("sandbox: this kernel has no seccomp filters; all system calls stay "
			 "allowed");
		error = 0;
	} else if (error != 0) {
		pl_error_set(err, error, "sandbox: seccomp");
	}
out:
	seccomp_release(filter);
	return error;
}
