/* state.c - what a LUN keeps: it comes back as it was, or is refused, and never as another. */
#include "iscsi/state.h"

#include "fixture.h"
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#define STATE "state"

static void
make(void)
{
	struct pl_error err;

	if (state_make(STATE, (uid_t)-1, (gid_t)-1, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
}

static void
load(const char *export, struct state_unit *unit)
{
	struct pl_error err;

	if (state_load(STATE, export, unit, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
}

static void
save(const char *export, const struct state_unit *unit)
{
	struct pl_error err;

	if (state_save(STATE, export, unit, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
}

static void
write_text(const char *path, const char *text, size_t length)
{
	int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC, 0600);

	assert_true(fd != -1);
	assert_eq(write(fd, text, length), (ssize_t)length);
	close(fd);
}

static unsigned
count_files(void)
{
	DIR *dir = opendir(STATE);
	unsigned count = 0;

	assert_true(dir != NULL);
	for (struct dirent *e; (e = readdir(dir)) != NULL;)
		count += e->d_name[0] != '.';
	closedir(dir);
	return count;
}

TEST(an_identity_is_made_once_and_kept)
{
	struct state_unit first, again, other;

	make();
	make(); /* it may be there */
	load("disk", &first);
	load("disk", &again);
	load("other", &other);
	assert_true(memcmp(first.uuid, again.uuid, 16) == 0);
	assert_true(memcmp(first.uuid, other.uuid, 16) != 0);
	assert_true(first.saved == NULL);
	/* RFC 9562: version 4, variant 10 */
	assert_eq(first.uuid[6] >> 4, 4);
	assert_eq(first.uuid[8] >> 6, 2);
}

TEST(what_is_saved_comes_back)
{
	struct state_unit unit, again;

	make();
	load("disk", &unit);
	unit.saved = (char *)"{\"key\": \"\\\\ \\n\"}\n";
	save("disk", &unit);
	load("disk", &again);
	assert_true(strcmp(again.saved, unit.saved) == 0);
	assert_true(memcmp(again.uuid, unit.uuid, 16) == 0);
	free(again.saved);
	unit.saved = NULL;
	save("disk", &unit);
	load("disk", &again);
	assert_true(again.saved == NULL);
	assert_eq(count_files(), 1);
}

TEST(nobody_else_reads_it)
{
	struct state_unit unit;
	struct stat st;

	umask(0);
	make();
	load("disk", &unit);
	assert_eq(stat(STATE, &st), 0);
	assert_eq(st.st_mode & 0777, 0700);
	assert_eq(stat(STATE "/disk.lu", &st), 0);
	assert_eq(st.st_mode & 0777, 0600);
}

TEST(each_name_has_a_file_of_its_own)
{
	static const char *const names[] = { "",    "default", "a/b", "a%2Fb", "..", ".",
					     "a b", "A",       "a",   "\xff",  "-r" };
	struct state_unit unit;

	make();
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		load(names[i], &unit);
		assert_eq(count_files(), i + 1);
	}
	assert_eq(access(STATE "/default.lu", F_OK), 0);
	assert_eq(access(STATE "/%64efault.lu", F_OK), 0);
	assert_eq(access(STATE "/a%2Fb.lu", F_OK), 0);
}

TEST(a_name_too_long_for_a_file_is_refused)
{
	char name[NAME_MAX + 1];
	struct state_unit unit;
	struct pl_error err;

	make();
	memset(name, 'x', sizeof name);
	name[NAME_MAX - 7] = '\0'; /* ".lu.new" */
	assert_eq(state_check(name, &err), 0);
	load(name, &unit);
	name[NAME_MAX - 7] = 'x';
	name[NAME_MAX - 6] = '\0';
	assert_eq(state_check(name, &err), -EINVAL);
	assert_true(strstr(err.text, "too long") != NULL);
	assert_eq(state_load(STATE, name, &unit, &err), -EINVAL);
}

/* A unit that comes back as another one, or without its reservations, is worse than none. */
TEST(a_broken_file_is_refused_by_its_name)
{
	static const struct {
		const char *text;
		size_t length;
	} broken[] = {
#define TEXT(literal) { literal, sizeof literal - 1 }
		TEXT(""),
		TEXT("{"),
		TEXT("[]"),
		TEXT("{}"),
		TEXT("{\"uuid\": 7}"),
		TEXT("{\"uuid\": \"6ba7b810-9dad-41d1-80b4-00c04fd430c\"}"),
		TEXT("{\"uuid\": \"6ba7b810-9dad-41d1-80b4-00c04fd430cg\"}"),
		TEXT("{\"uuid\": \"6ba7b8109-dad-41d1-80b4-00c04fd430c8\"}"),
		TEXT("{\"uuid\": \"6ba7b810-9dad-41d1-80b4-00c04fd430c8\", \"uuid\": \"\"}"),
		TEXT("{\"uuid\": \"6ba7b810-9dad-41d1-80b4-00c04fd430c8\", \"reservations\": 1}"),
		TEXT("{\"uuid\": \"6ba7b810-9dad-41d1-80b4-00c04fd430c8\"} more"),
		TEXT("\0\0\0\0"),
#undef TEXT
	};
	struct state_unit unit;
	struct pl_error err;

	make();
	for (unsigned i = 0; i < sizeof broken / sizeof *broken; i++) {
		write_text(STATE "/disk.lu", broken[i].text, broken[i].length);
		assert_eq(state_load(STATE, "disk", &unit, &err), -EINVAL);
		if (strncmp(err.text, STATE "/disk.lu: ", strlen(STATE "/disk.lu: ")) != 0)
			test_fail(__FILE__, __LINE__, "%u: %s", i, err.text);
	}
	write_text(STATE "/disk.lu", "{\"uuid\": \"6ba7b810-9dad-41d1-80b4-00c04fd430c8\"}", 48);
	load("disk", &unit);
	assert_eq(unit.uuid[15], 0xc8);
}

TEST(what_cannot_be_read_is_not_made_anew)
{
	struct state_unit unit;
	struct pl_error err;

	assert_eq(state_load("nowhere", "disk", &unit, &err), -ENOENT);
	make();
	assert_eq(mkdir(STATE "/disk.lu", 0700), 0);
	assert_true(state_load(STATE, "disk", &unit, &err) < 0);
	assert_true(strstr(err.text, "disk.lu") != NULL);
}

/* Writes one and the same length of 'a' or of 'b', over and over. */
static void
write_forever(const struct state_unit *unit)
{
	struct state_unit u = *unit;
	struct pl_error err;

	for (unsigned i = 0;; i++) {
		char text[60000];

		memset(text, i % 2 == 0 ? 'a' : 'b', sizeof text - 1);
		text[sizeof text - 1] = '\0';
		u.saved = text;
		if (state_save(STATE, "disk", &u, &err) != 0)
			_exit(1);
	}
}

TEST(whoever_is_killed_while_he_saves_leaves_the_old_or_the_new)
{
	struct state_unit unit, again;

	make();
	load("disk", &unit);
	unit.saved = (char *)"a";
	save("disk", &unit);
	for (unsigned i = 0; i < 40; i++) {
		pid_t child = fork();
		int status;

		if (child == 0)
			write_forever(&unit);
		usleep(1000 + 500 * i);
		kill(child, SIGKILL);
		waitpid(child, &status, 0);
		assert_true(WIFSIGNALED(status));
		load("disk", &again);
		assert_true(memcmp(again.uuid, unit.uuid, 16) == 0);
		assert_true(again.saved != NULL);
		assert_eq(strspn(again.saved, again.saved[0] == 'a' ? "a" : "b"),
			  strlen(again.saved));
		free(again.saved);
	}
}

TEST(what_cannot_be_written_leaves_the_old)
{
	struct state_unit unit, again;
	struct pl_error err;

	make();
	load("disk", &unit);
	assert_eq(mkdir(STATE "/disk.lu.new", 0700), 0); /* also root cannot write that */
	unit.saved = (char *)"new";
	assert_true(state_save(STATE, "disk", &unit, &err) < 0);
	assert_true(strstr(err.text, "disk.lu.new") != NULL);
	load("disk", &again);
	assert_true(again.saved == NULL);
}

/* ---- where it is ------------------------------------------------------------------- */

static void
expect_place(const char *given, const char *config, const struct pl_params *image,
	     const char *place)
{
	struct pl_error err;
	char *directory;

	assert_eq(state_place(given, config, image, &directory, &err), 0);
	if ((directory == NULL) != (place == NULL) ||
	    (place != NULL && strcmp(directory, place) != 0))
		test_fail(__FILE__, __LINE__, "%s, not %s", directory != NULL ? directory : "none",
			  place != NULL ? place : "none");
	free(directory);
}

TEST(it_is_beside_the_configuration_or_the_image)
{
	struct pl_params *image = params_of(WORDS("path=disk.img"));
	struct pl_params *in_dir = params_of(WORDS("dir=/srv", "path=disk.img"));
	struct pl_params *device = params_of(WORDS("path=/dev/null"));
	struct pl_params *memory = params_of(WORDS("driver=memory"));

	unsetenv("STATE_DIRECTORY");
	expect_place("/x", "/etc/platter/platter.conf", image, "/x");
	expect_place(NULL, "/etc/platter/platter.conf", image, "/etc/platter/platter.state");
	expect_place(NULL, "platter.conf", image, "platter.state");
	expect_place(NULL, "/platter.conf", image, "/platter.state");
	expect_place(NULL, NULL, image, "disk.img.state");
	expect_place(NULL, NULL, in_dir, "/srv/disk.img.state");
	expect_place(NULL, NULL, device, "/var/lib/platter/null.state");
	expect_place(NULL, NULL, memory, NULL);
	setenv("STATE_DIRECTORY", "/var/lib/one:/var/lib/two", 1);
	expect_place(NULL, "/etc/platter/platter.conf", image, "/var/lib/one/platter.state");
	expect_place("/x", NULL, image, "/x");
	pl_params_free(image);
	pl_params_free(in_dir);
	pl_params_free(device);
	pl_params_free(memory);
}

/* Whatever way it is named, but for links: these are chosen because they do not change. */
TEST(each_device_is_a_disk_of_its_own)
{
	static const char *const names[][2] = {
		{ "path=/dev/null", "/var/lib/platter/null.state" },
		{ "path=/dev/zero", "/var/lib/platter/zero.state" },
		{ "path=zero", "/var/lib/platter/zero.state" },
		{ "path=../dev//zero", "/var/lib/platter/zero.state" },
		{ "path=/dev/pts/ptmx", "/var/lib/platter/pts%2Fptmx.state" },
	};

	unsetenv("STATE_DIRECTORY");
	assert_eq(chdir("/dev"), 0);
	for (unsigned i = 0; i < sizeof names / sizeof *names; i++) {
		struct pl_params *device = params_of(WORDS(names[i][0]));

		if (access(names[i][0] + strlen("path="), F_OK) == 0)
			expect_place(NULL, NULL, device, names[i][1]);
		pl_params_free(device);
	}
}

TEST(a_directory_is_one_servers)
{
	struct pl_error err;
	int first, second;

	make();
	assert_eq(state_claim(STATE, &first, &err), 0);
	assert_eq(state_claim(STATE, &second, &err), -EBUSY);
	assert_contains(err.text, "state=" STATE);
	close(first);
	assert_eq(state_claim(STATE, &second, &err), 0);
	close(second);
	assert_eq(state_claim("not there", &second, &err), -ENOENT);
}

TEST(what_is_no_file_keeps_nobody_waiting)
{
	struct state_unit unit;
	struct pl_error err;

	make();
	assert_eq(mkfifo(STATE "/pipe.lu", 0600), 0);
	assert_eq(state_load(STATE, "pipe", &unit, &err), -EINVAL);
}
