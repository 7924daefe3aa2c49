/* file.c - images of every kind are served whole, in every cache mode, or refused with a reason. */
#include "fixture.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/utsname.h>
#include <sys/vfs.h>
#include <unistd.h>

static const struct mode {
	const char *cache, *fua;
} modes[] = {
	{ "cache=auto", "fua=auto" },           { "cache=auto", "fua=native" },
	{ "cache=writeback", "fua=auto" },      { "cache=none", "fua=auto" },
	{ "cache=directsync", "fua=auto" },     { "cache=writethrough", "fua=auto" },
	{ "cache=unsafe", "fua=auto" },         { "cache=writeback", "fua=native" },
	{ "cache=writethrough", "fua=native" },
};
#define MODES (sizeof modes / sizeof *modes)

/* Every block of it is written, on the disk and not only in the cache. */
static void
write_image(const char *path, uint64_t size)
{
	char *data = test_alloc(size);
	int fd;

	make_image(path, size);
	fd = open(path, O_WRONLY);
	memset(data, 0x77, size);
	assert_eq(pwrite(fd, data, size, 0), (ssize_t)size);
	assert_eq(fsync(fd), 0);
	close(fd);
	free(data);
}

/* ---- data ------------------------------------------------------------------------ */

/* Random requests of any offset and length, compared with a model byte by byte. */
static void
exercise(enum loop_kind kind, const struct mode *mode, uint64_t size, uint64_t seed)
{
	unsigned char *model = test_alloc(size), *data = test_alloc(size);
	struct fixture f;
	bool promises;

	printf("%s %s, %ju bytes\n", mode->cache, mode->fua, (uintmax_t)size);
	make_image("model.img", size);
	fixture_open(&f, kind, "path=model.img", mode->cache, mode->fua);
	promises = (pl_export_capabilities(f.ex) & PL_CAP_FUA) != 0;
	for (unsigned i = 0; i < 120; i++) {
		uint64_t offset = random_below(&seed, size);
		uint64_t length = 1 + random_below(&seed, i % 3 == 0 ? size - offset
								     : (size - offset + 7) / 8);
		unsigned fua = promises && i % 4 == 0 ? PL_FUA : 0;

		if (i % 8 == 0 && length > 1024) { /* what can be native is aligned */
			offset -= offset % 512;
			length -= length % 512;
		}

		switch (random_below(&seed, 5)) {
		case 0:
		case 1:
			pattern_fill(model + offset, length, offset, i);
			do_write_data(&f, offset, length, model + offset, fua);
			break;
		case 2:
			memset(model + offset, 0, length);
			do_zero(&f, offset, length, fua | (i % 2 == 0 ? PL_NO_HOLE : 0));
			break;
		case 3:
			do_trim(&f, offset, length, fua); /* what it leaves is anybody's */
			do_read(&f, offset, length, data);
			do_write_data(&f, offset, length, model + offset, 0);
			break;
		case 4: check_data(&f, offset, length, model + offset); break;
		}
	}
	check_data(&f, 0, size, model);
	if (promises)
		do_flush(&f);
	fixture_close(&f);

	struct stat st;
	int fd = open("model.img", O_RDONLY);

	assert_eq(fstat(fd, &st), 0);
	assert_eq(st.st_size, size);
	assert_eq(pread(fd, data, size, 0), (ssize_t)size);
	assert_mem(data, model, size);
	close(fd);
	free(model);
	free(data);
}

TEST(any_byte_range_is_served_in_every_cache_mode)
{
	uint64_t seed = test_seed();

	for_each_loop_kind(kind)
	{
		for (unsigned i = 0; i < MODES; i++)
			exercise(kind, &modes[i], 600 * KiB, seed + i);
	}
}

TEST(an_image_of_odd_size_is_served_to_its_last_byte)
{
	static const uint64_t sizes[] = { 1, 511, 513, 4095, 4097, 100001, 262144 + 8191 };
	uint64_t seed = test_seed();

	for_each_loop_kind(kind)
	{
		for (unsigned i = 0; i < MODES; i++) {
			for (unsigned s = 0; s < sizeof sizes / sizeof *sizes; s++)
				exercise(kind, &modes[i], sizes[s], seed + s);
		}
	}
}

TEST(an_empty_image_has_no_bytes_and_does_no_harm)
{
	struct fixture f;
	char byte;

	make_image("empty.img", 0);
	for (unsigned i = 0; i < MODES; i++) {
		fixture_open(&f, BLOCKING, "path=empty.img", modes[i].cache, modes[i].fua);
		assert_eq(pl_export_geometry(f.ex)->size, 0);
		assert_eq(try_read(&f, 0, 1, &byte, 0), -EINVAL);
		assert_eq(try_write(&f, 0, 1, &byte, 0), -ENOSPC);
		fixture_close(&f);
	}
}

TEST(offsets_beyond_four_gibibytes_are_kept)
{
	const uint64_t size = 2 * TiB;

	for (unsigned i = 0; i < 2; i++) {
		struct fixture f;

		make_image("big.img", size);
		fixture_open(&f, RING, "path=big.img", modes[i].cache);
		do_write(&f, size - 512, 512, 0xee, PL_FUA);
		do_write(&f, (UINT64_C(1) << 32) + 5, 3, 0xdd, 0);
		do_zero(&f, 1 * TiB, 512 * GiB, 0);
		check_bytes(&f, size - 512, 512, 0xee);
		check_bytes(&f, (UINT64_C(1) << 32) + 5, 3, 0xdd);
		check_bytes(&f, 0, 4096, 0);
		fixture_close(&f);
	}
}

TEST(extents_tell_data_from_holes)
{
	for_each_loop_kind(kind)
	{
		struct pl_extent list[8];
		struct pl_extents x = { .list = list, .max = 8 };
		struct fixture f;

		make_image("holes.img", 16 * MiB);
		fixture_open(&f, kind, "path=holes.img");
		do_write(&f, 1 * MiB, 1 * MiB, 1, 0);
		assert_eq(try_extents(&f, 0, 16 * MiB, &x), 0);
		assert_eq(pl_extents_length(&x), 16 * MiB);
		assert_eq(x.count, 3);
		assert_eq(list[0].flags, PL_EXTENT_HOLE | PL_EXTENT_ZERO);
		assert_eq(list[0].length, 1 * MiB);
		assert_eq(list[1].flags, 0);
		assert_eq(list[1].length, 1 * MiB);

		x = (struct pl_extents){ .list = list, .max = 1 };
		assert_eq(try_extents(&f, 1 * MiB + 1, 100, &x), 0);
		assert_eq(x.count, 1);
		assert_eq(list[0].length, 100);
		assert_eq(list[0].flags, 0);
		fixture_close(&f);
	}
}

TEST(a_zero_without_hole_leaves_none_and_others_give_space_back)
{
	struct fixture f;
	struct stat st;

	write_image("space.img", 4 * MiB);
	fixture_open(&f, BLOCKING, "path=space.img");
	do_zero(&f, 0, 4 * MiB, PL_NO_HOLE);
	assert_eq(stat("space.img", &st), 0);
	assert_true((uint64_t)st.st_blocks * 512 >= 4 * MiB);
	do_zero(&f, 0, 2 * MiB, 0);
	do_trim(&f, 2 * MiB, 1 * MiB, 0);
	assert_eq(stat("space.img", &st), 0);
	assert_true((uint64_t)st.st_blocks * 512 <= 2 * MiB);
	check_bytes(&f, 0, 3 * MiB, 0);
	fixture_close(&f);
}

/* ---- durability ------------------------------------------------------------------ */

TEST(what_is_advertised_follows_the_cache_mode)
{
	static const struct {
		const char *mode;
		unsigned has, lacks;
	} rows[] = {
		{ "cache=writeback", PL_CAP_FUA | PL_CAP_FLUSH | PL_CAP_MULTI_CONN | PL_CAP_CACHE,
		  PL_CAP_WRITE_THROUGH },
		{ "cache=none", PL_CAP_FUA | PL_CAP_FLUSH | PL_CAP_MULTI_CONN,
		  PL_CAP_WRITE_THROUGH | PL_CAP_CACHE },
		{ "cache=directsync", PL_CAP_FUA | PL_CAP_FLUSH | PL_CAP_WRITE_THROUGH,
		  PL_CAP_CACHE },
		{ "cache=writethrough", PL_CAP_FUA | PL_CAP_FLUSH | PL_CAP_WRITE_THROUGH, 0 },
		{ "cache=unsafe", PL_CAP_WRITE,
		  PL_CAP_FUA | PL_CAP_FLUSH | PL_CAP_MULTI_CONN | PL_CAP_WRITE_THROUGH },
	};

	make_image("caps.img", 1 * MiB);
	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct fixture f;
		unsigned caps;

		fixture_open(&f, BLOCKING, "path=caps.img", rows[i].mode);
		caps = pl_export_capabilities(f.ex);
		assert_eq(caps & rows[i].has, rows[i].has);
		assert_eq(caps & rows[i].lacks, 0);
		assert_contains(pl_export_description(f.ex), rows[i].mode);
		fixture_close(&f);
	}
}

TEST(an_unsafe_export_refuses_to_promise)
{
	struct fixture f;

	make_image("unsafe.img", 1 * MiB);
	fixture_open(&f, BLOCKING, "path=unsafe.img", "cache=unsafe");
	assert_eq(try_fill(&f, 0, 512, 1, PL_FUA), -EINVAL);
	assert_eq(try_zero(&f, 0, 512, PL_FUA), -EINVAL);
	assert_eq(try_flush(&f), -EINVAL);
	do_write(&f, 0, 512, 1, 0);
	fixture_close(&f);
}

static void
check_path_of_fua(const char *option, const char *cache, bool native, const char *why)
{
	struct pl_counters n;
	struct fixture f;

	printf("%s, %s\n", option, cache);
	fixture_open(&f, BLOCKING, "path=fua.img", option, cache);
	assert_contains(pl_export_description(f.ex), native ? "FUA: native" : "FUA: shared flush");
	assert_contains(pl_export_description(f.ex), why);
	do_write(&f, 0, 4 * KiB, 1, PL_FUA);
	do_zero(&f, 0, 4 * KiB, PL_FUA);
	pl_export_counters(f.ex, &n);
	assert_eq(n.fua_native, native ? 1 : 0);
	assert_eq(n.committed, native ? 1 : 2); /* ZERO has no native way */
	fixture_close(&f);
}

TEST(the_option_fua_chooses_the_path_and_the_description_says_why)
{
	write_image("fua.img", 1 * MiB);
	check_path_of_fua("fua=native", "cache=auto", true, "cache=auto (as the option fua");
	check_path_of_fua("fua=native", "cache=writeback", true, "cache=writeback (as the option");
	check_path_of_fua("fua=native", "cache=none", true, "option fua");
	check_path_of_fua("fua=commit", "cache=none", false, "option fua");
	check_path_of_fua("fua=commit", "cache=writeback", false, "option fua");
	check_path_of_fua("fua=commit", "cache=auto", false,
			  "cache=writeback instead of auto (as the option fua");
	check_path_of_fua("fua=auto", "cache=writeback", false, "cache=writeback,");
	check_path_of_fua("fua=native", "cache=writethrough", true, "option fua");
	make_image("fua.img", 1 * MiB);
	check_path_of_fua("fua=auto", "cache=none", false, "never written");
	check_path_of_fua(
		"fua=auto", "cache=auto", false,
		"cache=writeback instead of auto (there are blocks that were never written");
}

/* Changes a byte of the mapped page all the time, which no lock keeps out. */
static void *
keep_dirty(void *arg)
{
	unsigned char *page = arg;

	while (__atomic_load_n(&page[4095], __ATOMIC_RELAXED) != 1)
		__atomic_fetch_add(&page[2048], 1, __ATOMIC_RELAXED);
	return NULL;
}

TEST(a_fua_write_that_the_page_cache_would_undo_fails_and_so_does_the_export)
{
	write_image("stale.img", 1 * MiB);
	for_each_loop_kind(kind)
	{
		unsigned char *page;
		unsigned tries = 0;
		pthread_t thread;
		struct fixture f;
		int fd, error;

		fixture_open(&f, kind, "path=stale.img", "cache=auto", "fua=native");
		if (strstr(pl_export_description(f.ex), "cache=auto") == NULL)
			test_skip("no direct I/O here: set TMPDIR to a place with it");
		fd = open("stale.img", O_RDWR);
		page = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
		assert_true(page != MAP_FAILED);
		page[4095] = 0;
		assert_eq(pthread_create(&thread, NULL, keep_dirty, page), 0);
		do {
			error = try_fill(&f, 0, 512, (unsigned char)++tries, PL_FUA);
			if (error == 0)
				check_bytes(&f, 0, 512, (unsigned char)tries);
		} while (error == 0 && tries < 20000);
		__atomic_store_n(&page[4095], 1, __ATOMIC_RELAXED);
		pthread_join(thread, NULL);
		printf("after %u writes\n", tries);
		assert_eq(error, -EIO);
		assert_eq(try_flush(&f), -EIO);
		assert_eq(try_fill(&f, 4096, 512, 1, PL_FUA), -EIO);
		do_write(&f, 4096, 512, 1, 0);
		fixture_close(&f);
		munmap(page, 4096);
		close(fd);
	}
}

/* What this process has had read from disks so far. */
static uint64_t
bytes_from_disks(void)
{
	FILE *io = fopen("/proc/self/io", "r");
	char line[64];
	unsigned long long bytes = 0;

	assert_true(io != NULL);
	while (fgets(line, sizeof line, io) != NULL)
		sscanf(line, "read_bytes: %llu", &bytes);
	fclose(io);
	return bytes;
}

static bool
comes_from_a_disk(const char *path, void *data)
{
	uint64_t before = bytes_from_disks();
	int fd = open(path, O_RDONLY);

	assert_true(fd != -1);
	posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED);
	assert_eq(pread(fd, data, 4096, 0), 4096);
	close(fd);
	return bytes_from_disks() > before;
}

TEST(a_read_with_fua_reads_the_medium_and_not_the_cache)
{
	static const uint64_t lengths[] = { 512, 4096, 100000 };
	char *data = test_alloc(100000);

	write_image("medium.img", 4 * MiB);
	if (!comes_from_a_disk("medium.img", data))
		test_skip("files here lie on no disk: set TMPDIR to a place where they do");
	for_each_loop_kind(kind)
	{
		struct fixture f;

		fixture_open(&f, kind, "path=medium.img");
		for (unsigned i = 0; i < 3; i++) {
			uint64_t before;

			do_read(&f, 0, 100000, data); /* it is in the cache now */
			before = bytes_from_disks();
			do_read(&f, 0, lengths[i], data);
			assert_eq(bytes_from_disks(), before);
			assert_eq(try_read(&f, 0, lengths[i], data, PL_FUA), 0);
			assert_true(bytes_from_disks() >= before + lengths[i]);
			assert_filled(data, 0x77, lengths[i]);
		}
		fixture_close(&f);
	}
	free(data);
}

/* ---- what goes wrong ------------------------------------------------------------- */

/* How much of the image's first bytes the page cache has. */
static uint64_t
cached(const char *path, uint64_t size)
{
	unsigned char *pages = test_alloc(size / 4096);
	int fd = open(path, O_RDONLY);
	void *map = mmap(NULL, size, PROT_READ, MAP_SHARED, fd, 0);
	uint64_t n = 0;

	assert_true(map != MAP_FAILED);
	assert_eq(mincore(map, size, pages), 0);
	for (uint64_t i = 0; i < size / 4096; i++)
		n += (pages[i] & 1) * UINT64_C(4096);
	munmap(map, size);
	close(fd);
	free(pages);
	return n;
}

/* Where small writes cost by the size of the folio they fall into (ext4 of newer kernels). */
static bool
folios_are_costly(void)
{
	struct utsname system;
	unsigned major, minor;
	struct statfs fs;

	assert_eq(statfs(".", &fs), 0);
	assert_eq(uname(&system), 0);
	assert_eq(sscanf(system.release, "%u.%u", &major, &minor), 2);
	return fs.f_type == EXT4_SUPER_MAGIC && (major > 6 || (major == 6 && minor >= 16));
}

/* Once, and no byte is lost by it, neither written before nor not. */
TEST(the_first_small_write_in_a_large_folio_makes_the_cache_forget_it)
{
	const uint64_t size = 8 * MiB;

	if (!folios_are_costly())
		test_skip("no file system here has large folios that make small writes slow");
	for_each_loop_kind(kind)
	{
		char *data = test_alloc(size);
		struct fixture f;

		write_image("large.img", size);
		fixture_open(&f, kind, "path=large.img", "cache=writeback", "fua=commit");
		do_read(&f, 0, size, data);
		assert_true(cached("large.img", size) == size);
		do_write(&f, 100 * KiB, 512, 0x11, 0);
		do_write(&f, 4 * MiB + 3, 4 * KiB, 0x22, 0);
		assert_true(cached("large.img", size) < size / 2 + MiB);
		do_read(&f, 0, size, data);
		do_write(&f, 200 * KiB, 512, 0x33, 0);
		assert_true(cached("large.img", size) == size);

		check_bytes(&f, 0, 100 * KiB, 0x77);
		check_bytes(&f, 100 * KiB, 512, 0x11);
		check_bytes(&f, 200 * KiB, 512, 0x33);
		check_bytes(&f, 200 * KiB + 512, 4 * MiB + 3 - 200 * KiB - 512, 0x77);
		check_bytes(&f, 4 * MiB + 3, 4 * KiB, 0x22);
		check_bytes(&f, 4 * MiB + 3 + 4 * KiB, 4 * MiB - 3 - 4 * KiB, 0x77);
		fixture_close(&f);
		free(data);
	}
}

TEST(an_image_that_shrinks_gives_errors)
{
	for_each_loop_kind(kind)
	{
		for (unsigned i = 0; i < 2; i++) {
			struct fixture f;
			char data[4096];

			write_image("shrink.img", 1 * MiB);
			fixture_open(&f, kind, "path=shrink.img", modes[i].cache);
			assert_eq(truncate("shrink.img", 512 * KiB), 0);
			check_bytes(&f, 0, 4 * KiB, 0x77);
			assert_eq(try_read(&f, 768 * KiB, 4 * KiB, data, 0), -EIO);
			assert_eq(try_flush(&f), -EIO);
			assert_true(pl_export_failed(f.ex));
			fixture_close(&f);
		}
	}
}

static void
refused(int expected, const char *says, const char *const *words, unsigned flags)
{
	struct pl_export *ex;
	struct pl_error err;

	assert_eq(try_export(words, flags, &ex, &err), expected);
	assert_eq(err.code, expected);
	assert_contains(err.text, says);
}

TEST(what_is_no_image_is_refused_with_its_name_and_why)
{
	struct sockaddr_un address = { .sun_family = AF_UNIX, .sun_path = "a.socket" };
	int s = socket(AF_UNIX, SOCK_STREAM, 0);

	assert_eq(mkfifo("a.pipe", 0600), 0);
	assert_eq(mkdir("a.dir", 0700), 0);
	assert_eq(bind(s, (struct sockaddr *)&address, sizeof address), 0);
	alarm(10); /* a pipe without a writer must not make it wait */
	refused(-EINVAL, "a.pipe: is a pipe", WORDS("path=a.pipe"), 0);
	refused(-EINVAL, "a.dir: is a directory", WORDS("path=a.dir"), 0);
	refused(-EINVAL, "a.socket: is a socket", WORDS("path=a.socket"), 0);
	refused(-EINVAL, "/dev/null: is a character device", WORDS("path=/dev/null"), 0);
	refused(-ENOENT, "a.img: open: No such file", WORDS("path=a.img"), 0);
	refused(-ENOTDIR, "a.socket/x", WORDS("path=a.socket/x"), 0);
	refused(-EINVAL, "/proc/self/mem: is made up", WORDS("path=/proc/self/mem"), 0);
	refused(-EINVAL, "path=: expected path=FILE", WORDS("path="), 0);
	close(s);
}

TEST(an_image_that_another_one_writes_is_refused)
{
	struct pl_export *a, *b;

	make_image("lock.img", 1 * MiB);
	assert_eq(link("lock.img", "other.img"), 0);
	assert_eq(try_export(WORDS("path=lock.img"), 0, &a, NULL), 0);
	refused(-EBUSY, "lock.img: it is in use: somebody writes it", WORDS("path=lock.img"), 0);
	refused(-EBUSY, "other.img", WORDS("path=other.img"), 0);
	refused(-EBUSY, "somebody writes it", WORDS("path=lock.img"), PL_OPEN_READ_ONLY);
	assert_eq(try_export(WORDS("path=lock.img", "lock=off"), 0, &b, NULL), 0);
	pl_export_close(b);
	pl_export_close(a);

	assert_eq(try_export(WORDS("path=lock.img"), PL_OPEN_READ_ONLY, &a, NULL), 0);
	assert_eq(try_export(WORDS("path=lock.img"), PL_OPEN_READ_ONLY, &b, NULL), 0);
	refused(-EBUSY, "somebody reads it who bears no writer", WORDS("path=lock.img"), 0);
	pl_export_close(a);
	pl_export_close(b);
	assert_eq(try_export(WORDS("path=lock.img"), 0, &a, NULL), 0);
	pl_export_close(a);
}

static void *
let_go(void *fd)
{
	usleep(30000);
	close(*(int *)fd);
	return NULL;
}

/* A ring keeps files a little longer than the process whose they were. */
TEST(a_lock_that_is_just_being_given_up_is_waited_for)
{
	struct flock writer = {
		.l_type = F_RDLCK, .l_whence = SEEK_SET, .l_start = 101, .l_len = 1
	};
	struct pl_export *ex;
	struct pl_error err;
	pthread_t thread;
	int fd;

	make_image("held.img", 1 * MiB);
	fd = open("held.img", O_RDWR);
	assert_eq(fcntl(fd, F_OFD_SETLK, &writer), 0);
	assert_eq(try_export(WORDS("path=held.img"), 0, &ex, &err), -EBUSY);
	assert_eq(pthread_create(&thread, NULL, let_go, &fd), 0);
	assert_eq(try_export(WORDS("path=held.img"), 0, &ex, &err), 0);
	pl_export_close(ex);
	pthread_join(thread, NULL);
}

TEST(a_name_in_a_directory_never_leads_out_of_it)
{
	struct pl_export *ex;

	assert_eq(mkdir("d", 0700), 0);
	assert_eq(mkdir("d/sub", 0700), 0);
	make_image("out.img", 512);
	make_image("d/in.img", 512);
	assert_eq(symlink("../out.img", "d/link"), 0);
	assert_eq(symlink("in.img", "d/inner"), 0);
	assert_eq(try_export(WORDS("dir=d", "path=in.img"), 0, &ex, NULL), 0);
	assert_str(pl_export_name(ex), "d/in.img");
	pl_export_close(ex);
	refused(-EXDEV, "../out.img", WORDS("dir=d", "path=../out.img"), 0);
	refused(-EXDEV, "/etc/passwd", WORDS("dir=d", "path=/etc/passwd"), 0);
	refused(-ELOOP, "link", WORDS("dir=d", "path=link"), 0);
	refused(-ELOOP, "inner", WORDS("dir=d", "path=inner"), 0);
	refused(-EINVAL, "is a directory", WORDS("dir=d", "path=sub"), 0);
	refused(-ENOENT, "dir=nowhere", WORDS("dir=nowhere", "path=x"), 0);
}
