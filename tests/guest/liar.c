/*
 * liar.c - an nbdkit plugin that is right, and that can be told to lie: for the judge to find out.
 *
 *	nbdkit liar.so file=DISK [lie=WORD]
 *
 * Honest: a write goes through the page cache, and FUA and FLUSH are an fdatasync(2) before the
 * reply; one at a time, see tests/lib/dmlog.py. The lies are in `lies`.
 */
#define NBDKIT_API_VERSION 2
#include <nbdkit-plugin.h>

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define THREAD_MODEL NBDKIT_THREAD_MODEL_PARALLEL

enum { HONEST, EARLY, NO_FUA, NO_FLUSH, EVERY_20TH, FLUSH_FIRST };
static const char *const lies[] = {
	[HONEST] = "none",
	[EARLY] = "early",             /* the reply is not kept waiting for the sync */
	[NO_FUA] = "no-fua",           /* there is none for FUA */
	[NO_FLUSH] = "no-flush",       /* nor for FLUSH */
	[EVERY_20TH] = "every-20th",   /* is left out, of either */
	[FLUSH_FIRST] = "flush-first", /* what was there before is synced, then comes the write */
};
#define LIES (sizeof(lies) / sizeof(lies[0]))

static const char *path;
static unsigned lie, syncs;
static int fd = -1;
static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

static int
liar_config(const char *key, const char *value)
{
	if (strcmp(key, "file") == 0) {
		path = value;
		return 0;
	}
	if (strcmp(key, "lie") == 0) {
		for (lie = 0; lie < LIES; lie++) {
			if (strcmp(value, lies[lie]) == 0)
				return 0;
		}
	}
	nbdkit_error("%s=%s: unknown", key, value);
	return -1;
}

static int
liar_config_complete(void)
{
	if (path != NULL)
		return 0;
	nbdkit_error("which file?");
	return -1;
}

static int
liar_get_ready(void)
{
	fd = open(path, O_RDWR | O_CLOEXEC);
	if (fd == -1)
		nbdkit_error("%s: %m", path);
	return fd == -1 ? -1 : 0;
}

static void
liar_unload(void)
{
	if (fd != -1)
		close(fd);
}

static void *
liar_open(int read_only)
{
	(void)read_only;
	return NBDKIT_HANDLE_NOT_NEEDED;
}

static int64_t
liar_get_size(void *handle)
{
	(void)handle;
	return lseek(fd, 0, SEEK_END);
}

static int
liar_yes(void *handle)
{
	(void)handle;
	return 1;
}

static int
liar_can_fua(void *handle)
{
	(void)handle;
	return NBDKIT_FUA_NATIVE;
}

static int
sync_now(void)
{
	int result;

	pthread_mutex_lock(&lock);
	result = fdatasync(fd);
	pthread_mutex_unlock(&lock);
	return result;
}

static void *
sync_later(void *arg)
{
	(void)arg;
	sync_now();
	return NULL;
}

static int
liar_sync(void)
{
	unsigned number = __atomic_add_fetch(&syncs, 1, __ATOMIC_RELAXED);
	pthread_t thread;

	if (lie == EVERY_20TH && number % 20 == 0)
		return 0;
	if (lie != EARLY)
		return sync_now();
	if (pthread_create(&thread, NULL, sync_later, NULL) != 0)
		return -1;
	return pthread_detach(thread) == 0 ? 0 : -1;
}

static int
liar_flush(void *handle, uint32_t flags)
{
	(void)handle;
	(void)flags;
	return lie == NO_FLUSH ? 0 : liar_sync();
}

static int
liar_pread(void *handle, void *to, uint32_t count, uint64_t offset, uint32_t flags)
{
	(void)handle;
	(void)flags;
	return pread(fd, to, count, (off_t)offset) == (ssize_t)count ? 0 : -1;
}

static int
liar_pwrite(void *handle, const void *from, uint32_t count, uint64_t offset, uint32_t flags)
{
	bool fua = (flags & NBDKIT_FLAG_FUA) != 0 && lie != NO_FUA;

	(void)handle;
	if (fua && lie == FLUSH_FIRST && liar_sync() == -1)
		return -1;
	if (pwrite(fd, from, count, (off_t)offset) != (ssize_t)count)
		return -1;
	return fua && lie != FLUSH_FIRST ? liar_sync() : 0;
}

/* By zeroes, as nbdkit itself does what is to be zeroed. */
static int
liar_trim(void *handle, uint32_t count, uint64_t offset, uint32_t flags)
{
	void *zeroes = calloc(1, count);
	int result = zeroes != NULL ? liar_pwrite(handle, zeroes, count, offset, flags) : -1;

	free(zeroes);
	return result;
}

static struct nbdkit_plugin plugin = {
	.name = "liar",
	.config = liar_config,
	.config_complete = liar_config_complete,
	.get_ready = liar_get_ready,
	.unload = liar_unload,
	.open = liar_open,
	.get_size = liar_get_size,
	.can_fua = liar_can_fua,
	.can_flush = liar_yes,
	.can_trim = liar_yes,
	.can_multi_conn = liar_yes,
	.flush = liar_flush,
	.pread = liar_pread,
	.pwrite = liar_pwrite,
	.trim = liar_trim,
	.errno_is_preserved = 1,
};

struct nbdkit_plugin *plugin_init(void); /* that the macro defines */
NBDKIT_REGISTER_PLUGIN(plugin)
