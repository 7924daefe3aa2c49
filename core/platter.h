/*
 * platter.h - the block core, for those who put a protocol in front of it.
 *
 * A front end opens an export from options (pl_export_open), makes a loop, binds
 * the two into a channel, and submits requests on it. A request has one way in,
 * pl_request_submit(), and one way out, its on_done.
 *
 *	driver  <-  export  <-  channel  <-  request
 *	                          |
 *	                         loop	(one thread and its ring, or threads that block)
 *
 * All functions that can fail return 0 or a negative errno. Those of the control
 * path also fill a pl_error with a sentence for a person. `offset` and `length`
 * are bytes everywhere. See docs/HACKING.md, "The life of a FUA write".
 */
#ifndef PLATTER_H
#define PLATTER_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>
#include <sys/uio.h>

#define PL_PRINTF(fmt, args) __attribute__((__format__(__printf__, fmt, args)))

/* ---- error.c: one sentence for a person ------------------------------------------ */

struct pl_error {
	int code;        /* negative errno, 0 when nothing is wrong */
	char text[5000]; /* a path and more */
};

/* Fills err (which may be NULL) with the sentence, ": " and the errno's words.
 * Returns error, so that a caller can write `return pl_error_set(...)`. */
int pl_error_set(struct pl_error *err, int error, const char *fmt, ...) PL_PRINTF(3, 4);

/* The same, where the sentence says all and the errno's words would only confuse. */
int pl_error_say(struct pl_error *err, int error, const char *fmt, ...) PL_PRINTF(3, 4);

/* ---- log.c: four verbs, one sink ------------------------------------------------- */

enum pl_log_level { PL_LOG_ERROR, PL_LOG_WARN, PL_LOG_INFO, PL_LOG_DEBUG };

/* A sink gets whole lines without a newline, from any thread. NULL: standard error. */
typedef void pl_log_sink(enum pl_log_level level, const char *line);
void pl_log_to(pl_log_sink *sink);

void log_error(const char *fmt, ...) PL_PRINTF(1, 2);
void log_warn(const char *fmt, ...) PL_PRINTF(1, 2);
void log_info(const char *fmt, ...) PL_PRINTF(1, 2);
void log_debug(const char *fmt, ...) PL_PRINTF(1, 2);

/* Makes '?' of every byte that a terminal could take for an order or that would turn the order of
 * letters: control characters, and what is no UTF-8. Lines of the log have been through it. */
void pl_text_clean(char *text);

/* ---- option.c: key=value pairs, before anyone knows what they mean --------------- */

struct pl_params;

struct pl_params *pl_params_new(void); /* NULL: out of memory */
struct pl_params *pl_params_copy(const struct pl_params *p);
void pl_params_free(struct pl_params *p);

/* Errors: -EINVAL (no name, or given twice), -ENOMEM. */
int pl_params_add(struct pl_params *p, const char *key, const char *value, struct pl_error *err);
const char *pl_params_get(const struct pl_params *p, const char *key); /* NULL: not given */

/* The pairs in the order they were added; at most 64. */
unsigned pl_params_count(const struct pl_params *p);
const char *pl_params_key(const struct pl_params *p, unsigned i);
const char *pl_params_value(const struct pl_params *p, unsigned i);

/* A table of options: a row is read by the parser, --help and the manual's test. */
enum pl_option_type {
	PL_OPT_STRING, /* char *: points into pl_params, which outlive the driver */
	PL_OPT_BOOL,   /* bool: on|off (also yes|no, true|false, 1|0) */
	PL_OPT_ENUM,   /* int: index of the word in `words` */
	PL_OPT_UINT,   /* uint64_t */
	PL_OPT_SIZE,   /* uint64_t bytes: 4096, 4k, 1M, 2G, 1T */
	PL_OPT_TIME,   /* uint64_t nanoseconds: 500us, 20ms, 1s */
};

struct pl_option {
	const char *name;
	enum pl_option_type type;
	size_t at;           /* offsetof() in the driver's struct of options */
	const char *words;   /* "a|b|c" for ENUM, else what stands for the value in --help */
	const char *initial; /* default as text; NULL: zero, or `required` */
	bool required;
	const char *help; /* one line */
};

#define PL_OPTION_END \
	{ \
		.name = NULL \
	}

/*
 * Fills `into` from params by the table, where a pair is missing by its default. *used has
 * a bit for each pair that was taken (bit i: i-th pair): what a driver above took is not
 * seen here. Errors: -EINVAL, and the sentence names the option, the value and what would
 * be right.
 */
int pl_options_parse(const struct pl_option *table, const struct pl_params *params, uint64_t *used,
		     void *into, struct pl_error *err);

/* Every driver's options as text for --help, made from the tables. free() it. */
char *pl_options_help(void);

/* The same for programs: a line PREFIXdriver_option=words for each row. free() it. */
char *pl_options_dump(const char *prefix);

/* One table for --help: a line BEFORE, name, BETWEEN, words, and what it does, for each row.
 * free() it. */
char *pl_option_rows(const struct pl_option *table, const char *before, const char *between);

/* The row with that name, or NULL. */
const struct pl_option *pl_option_find(const struct pl_option *table, const char *name);

/* The row whose name is likest to a misspelt or shortened one, if it is less than *distance
 * letters away, which is set; or NULL. */
const struct pl_option *pl_option_nearest(const struct pl_option *table, const char *name,
					  unsigned *distance);

/* ---- pool.c: aligned memory for data --------------------------------------------- */

/* The largest piece in which the core copies, aligns or zeroes data. */
#define PL_POOL_BUFFER (256u * 1024)

/* ---- loop.c: where requests run -------------------------------------------------- */

struct pl_loop;
struct pl_io;
struct pl_driver_limits;

/*
 * A loop of its own thread, with one io_uring. Everything about it is called on
 * the thread that made it, except pl_loop_stop() and pl_loop_post().
 * Errors: what io_uring_queue_init(3) says, -ENOMEM.
 */
int pl_loop_new(struct pl_loop **loop, struct pl_error *err);

/*
 * A loop without a thread, for callers that block: any number of threads use it at
 * once through pl_request_call(), and each carries its own request. Makes no thread
 * and no ring before the first request that wants one, so it may be made before fork.
 */
int pl_loop_new_blocking(struct pl_loop **loop, struct pl_error *err);

/* No channel may be left on it. */
void pl_loop_free(struct pl_loop *loop);

void pl_loop_run(struct pl_loop *loop);  /* until pl_loop_stop() */
void pl_loop_stop(struct pl_loop *loop); /* from any thread or a callback */

/* Work that is to run on the loop's thread, embedded in what it works on. */
struct pl_work {
	void (*run)(struct pl_work *work);
	struct pl_work *next;
};

/* From any thread. Not for blocking loops, which have no thread. */
void pl_loop_post(struct pl_loop *loop, struct pl_work *work);

/* On the loop's thread: work runs when what is ready now has been dealt with, before the
 * loop submits and sleeps: once for all that was ready. */
void pl_loop_later(struct pl_loop *loop, struct pl_work *work);

/* Whether the loop, before it sleeps, looks for new completions for as long as they have
 * come quickly lately, some tens of microseconds at most. Off at first. */
void pl_loop_poll(struct pl_loop *loop, bool on);

/*
 * Starts io, which comes back once to io->done on the same loop. On a blocking loop
 * that has happened when this returns. Interrupted calls are repeated, but for a sync;
 * short transfers are reported as they are.
 */
void pl_loop_io(struct pl_loop *loop, struct pl_io *io);

/* Ring loops: asks for the end of an io that is under way; io->done still comes, with what
 * it came to or -ECANCELED. */
void pl_loop_cancel(struct pl_loop *loop, struct pl_io *io);

/* ---- export.c: a device on offer ------------------------------------------------- */

struct pl_export;

/* What may be advertised upward. Computed once at open; nothing else decides it. */
enum pl_capability {
	PL_CAP_WRITE = 1 << 0,
	PL_CAP_FLUSH = 1 << 1,
	PL_CAP_FUA = 1 << 2, /* never without FLUSH */
	PL_CAP_ZERO = 1 << 3,
	PL_CAP_FAST_ZERO = 1 << 4, /* PL_FAST is understood and answered honestly */
	PL_CAP_TRIM = 1 << 5,
	PL_CAP_CACHE = 1 << 6,
	PL_CAP_EXTENTS = 1 << 7,
	PL_CAP_MULTI_CONN = 1 << 8,
	PL_CAP_ROTATIONAL = 1 << 9,
	PL_CAP_WRITE_THROUGH = 1 << 10, /* every write is stable when it is answered */
	PL_CAP_UNMAP = 1 << 11,         /* TRIM gives storage back */
	PL_CAP_UNMAP_ZEROES = 1 << 12, /* so does ZERO without NO_HOLE, and writes none but edges */
};

/* Any byte range may be asked for; these tell what costs least. */
struct pl_geometry {
	uint64_t size;           /* bytes */
	uint32_t logical_block;  /* bytes, a power of two from 512 to 65536 */
	uint32_t physical_block; /* bytes, not below logical_block */
	uint32_t whole;     /* bytes: so much, aligned, is old or new after a loss of power; 0: not
			       known */
	uint32_t preferred; /* bytes, a power of two: requests that cost no copy */
};

enum pl_open_flag {
	PL_OPEN_READ_ONLY = 1 << 0,
	PL_OPEN_FALL_BACK = 1 << 1, /* to read-only, if writing is denied; the log says so */
};

/*
 * Opens what params describe: `driver` (default "file") and that driver's options.
 * A driver over others takes `over=DRIVER,...` (from the top down); a key that it does
 * not know goes to the driver below. Errors: -EINVAL for options, -EBUSY for an image in use by
 * another writer, else what the driver says. Control path: may block.
 */
int pl_export_open(const struct pl_params *params, unsigned flags, struct pl_export **ex,
		   struct pl_error *err);

/* Checks names and values of params and opens nothing. Errors: -EINVAL. */
int pl_export_check(const struct pl_params *params, struct pl_error *err);

/* No channel may be left on it. What was written and not flushed stays unpromised. */
void pl_export_close(struct pl_export *ex);

unsigned pl_export_capabilities(const struct pl_export *ex);
/* Of these, what is left to somebody who may only read. */
unsigned pl_capabilities_reading(unsigned capabilities);
/* A FUA write is one write of the medium; else it waits for a flush that others share. */
bool pl_export_native_fua(const struct pl_export *ex);
/* It never changes: what has grown has another one, and this one is good until the export is
 * closed. */
const struct pl_geometry *pl_export_geometry(const struct pl_export *ex);
const char *pl_export_name(const struct pl_export *ex); /* for people: the path, say */
const char *
pl_export_description(const struct pl_export *ex); /* driver, cache mode, FUA path and why */

/*
 * Looks whether the image has grown, and makes the export so much larger; channels may be open
 * and requests under way, for which it still is as large as it was. *grown: whether it has.
 * Errors: -EINVAL (it has shrunk: nothing is changed), -EOPNOTSUPP (this driver's cannot), what
 * the driver says. Control path, one thread at a time.
 */
int pl_export_grow(struct pl_export *ex, bool *grown, struct pl_error *err);

/* A sync failed: FUA and FLUSH get -EIO until the export is opened again. */
bool pl_export_failed(const struct pl_export *ex);

/* Monotonic, summed over all channels; read at any time from any thread. */
struct pl_counters {
	uint64_t reads, zeroes, trims, flushes; /* requests finished, by kind */
	uint64_t writes;                        /* and MODIFY */
	uint64_t fua_native; /* FUA writes that the driver made stable by itself */
	uint64_t committed;  /* requests that waited for a shared flush */
	uint64_t groups;     /* shared flushes: committed / groups is their size */
	uint64_t errors;     /* requests finished with an error */
};
void pl_export_counters(const struct pl_export *ex, struct pl_counters *out);

/* ---- channel.c: an export on one loop -------------------------------------------- */

struct pl_channel;

/* On the loop's thread (any thread for a blocking loop). Control path: may block. */
int pl_channel_open(struct pl_export *ex, struct pl_loop *loop, struct pl_channel **ch,
		    struct pl_error *err);
void pl_channel_close(struct pl_channel *ch); /* no request may be left on it */

/* ---- extent.c: what is allocated ------------------------------------------------- */

enum pl_extent_flag {
	PL_EXTENT_HOLE = 1 << 0, /* no storage is allocated */
	PL_EXTENT_ZERO = 1 << 1, /* reads as zeroes */
};

struct pl_extent {
	uint64_t length; /* never 0 */
	unsigned flags;
};

/* Consecutive extents from the request's offset on; neighbours with the same flags
 * are one. The caller owns `list`, which has room for `max`. */
struct pl_extents {
	struct pl_extent *list;
	unsigned count, max;
};

/* Returns false when the list is full and the extent did not fit. */
bool pl_extents_add(struct pl_extents *x, uint64_t length, unsigned flags);
uint64_t pl_extents_length(const struct pl_extents *x);
/* Cuts what is beyond length bytes. */
void pl_extents_trim(struct pl_extents *x, uint64_t length);

/* ---- request.c ------------------------------------------------------------------- */

enum pl_op { PL_READ, PL_WRITE, PL_FLUSH, PL_ZERO, PL_TRIM, PL_CACHE, PL_EXTENTS, PL_MODIFY };
#define PL_OPS (PL_MODIFY + 1)

/*
 * PL_MODIFY: reads the range into iov (one piece of memory), lets modify() change it there, and
 * writes it back; no other request that changes data on this export, of any channel, touches the
 * range in between. modify() returns 0, or a positive number: then nothing is written, and that
 * is what on_done gets. At most PL_MODIFY_MAX bytes.
 */
#define PL_MODIFY_MAX (32u << 20)

enum pl_request_flag {
	/* WRITE, ZERO, TRIM: the reply waits until the data is stable.
	 * READ: make the range stable, then read the medium. */
	PL_FUA = 1 << 0,
	/* ZERO: allocate; no hole may be left. */
	PL_NO_HOLE = 1 << 1,
	/* ZERO: -ENOTSUP at once, nothing changed, where it would be no faster than writing. */
	PL_FAST = 1 << 2,
};

/* One operation on a loop. */
enum pl_io_kind {
	PL_IO_READ, /* iov, offset; rwf: RWF_... */
	PL_IO_WRITE,
	PL_IO_SYNC,      /* fdatasync */
	PL_IO_FALLOCATE, /* mode, offset, length */
	PL_IO_FADVISE,   /* mode: POSIX_FADV_..., offset, length */
	PL_IO_CALL,      /* call() on a helper thread: it may block */
	PL_IO_DELAY,     /* length: nanoseconds */
	/* Ring loops only. fd is a socket, and mode: MSG_... flags */
	PL_IO_RECV,   /* iov */
	PL_IO_SEND,   /* iov */
	PL_IO_ACCEPT, /* result: the new descriptor, close-on-exec */
	PL_IO_POLL,   /* any fd; mode: POLLIN, ...; result: what is there */
};

struct pl_io {
	enum pl_io_kind kind;
	int fd;
	int slot;     /* registered file, or -1 */
	int mode;     /* fallocate mode, advice, or RWF_ flags */
	bool fixed;   /* iov[0] is memory of the loop's pool */
	bool by_ring; /* a caller that blocks goes through its ring, too */
	const struct iovec *iov;
	int iovcnt;
	uint64_t offset, length;
	int64_t (*call)(struct pl_io *io);
	void (*done)(struct pl_io *io, int64_t result); /* bytes, 0, or negative errno */
	int64_t result;                                 /* of call() */
	union {
		int64_t delay[2]; /* seconds and nanoseconds */
		struct msghdr message;
	} kernel; /* what it reads while the io is under way */
	struct pl_io *next;
	struct pl_loop *loop;
	struct pl_work work;
};

/* What the driver is asked for now: the whole request or a piece of it. */
struct pl_part {
	enum pl_op op;
	unsigned flags;
	uint64_t offset, length;
	struct iovec *iov;
	int iovcnt;
	bool fixed; /* iov[0] is memory of the loop's pool */
};

/*
 * A request. The caller fills the first part and keeps the memory until on_done;
 * the core may use up `iov` (not the data it points to) meanwhile.
 */
struct pl_request {
	enum pl_op op;
	unsigned flags;
	uint64_t offset, length; /* both 0 for PL_FLUSH */
	struct iovec *iov;       /* READ, WRITE, MODIFY: sums up to length */
	int iovcnt;
	struct pl_extents *extents;            /* EXTENTS: filled with at least one extent */
	int (*modify)(struct pl_request *req); /* MODIFY; where the request runs */
	void (*on_done)(struct pl_request *req, int error);
	void *user;

	/* From here on the core's and the driver's. */
	struct pl_channel *channel;
	const struct pl_driver_limits *limits; /* when it was submitted */
	struct pl_part part;
	struct pl_io io;
	uint64_t scratch[4]; /* the driver's, for one part */

	unsigned state;
	int error;
	bool stable;           /* the reply waits until the data is stable */
	bool native;           /* the driver makes it so by itself */
	bool reading;          /* the data moves from the device, else to it */
	uint64_t done_to, end; /* progress: [done_to, end) is still to do */
	void (*next)(struct pl_request *req, int64_t result); /* after the part */
	struct pl_runner *runner;
	void (*moved)(struct pl_request *req, int error); /* after all parts */
	void (*resume)(struct pl_request *req);
	struct pl_work work;
	struct pl_request *link; /* in a commit group or a list of those who wait */
	struct {
		uint64_t start, end;
		unsigned mode;
		bool held, listed;
		struct pl_request *prev, *next;
	} range;
	struct {
		char *buffer;
		struct iovec iov;
		uint64_t start, end; /* of the device, what the buffer stands for */
		unsigned reads;      /* blocks still to read for read-modify-write */
	} bounce;
	struct {
		uint64_t start, stop; /* what the driver zeroes; the rest is written */
		unsigned step;
	} zero;
	unsigned word; /* what a blocked caller sleeps on */
};

/*
 * Takes req over; on_done comes exactly once, on the channel's loop, perhaps before
 * this returns. Errors given to on_done: -EINVAL (outside the device for what only
 * reads, unknown flag, a capability that is not there), -ENOSPC (write or zero outside
 * the device, or the disk is full), -EPERM (read-only), -ENOTSUP (PL_FAST), -EIO,
 * and what the driver says. Source: NBD proto.md, "Request types" and "Error values".
 */
void pl_request_submit(struct pl_channel *ch, struct pl_request *req);

/*
 * Submits and waits: on a blocking loop the calling thread does the work or sleeps for
 * a shared flush; on another loop (its own thread, outside callbacks) the loop turns
 * meanwhile. Returns what on_done would get; on_done itself is not used. A thread that has
 * requests of its own in flight on a ring loop must not wait for a blocking loop: another
 * caller's flush may be in its hands.
 */
int pl_request_call(struct pl_channel *ch, struct pl_request *req);

#endif
