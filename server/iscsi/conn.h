/*
 * conn.h - an iSCSI connection, from accept to close; it is its session, too: there is one
 * connection in each.
 *
 *	conn.c     its life: login, moving to the target's worker, serving, closing; deadlines
 *	receive.c  PDUs in: headers, data segments, digests, and the order of commands
 *	task.c     what is asked for: SCSI commands, task management, text
 *	data.c     memory for commands, and the data that they are sent
 *	send.c     PDUs out: put together, many with one send
 *
 * Only these look into struct iscsi_conn. Source: RFC 7143.
 */
#ifndef ISCSI_CONN_H
#define ISCSI_CONN_H

#include "../clients.h"
#include "../room.h"
#include "../stream.h"
#include "../worker.h"
#include "login.h"
#include "pdu.h"
#include "scsi-emu.h"
#include "spec.h"

struct iscsi_conn;

/* ---- for worker.c ---------------------------------------------------------------- */

/* As nbd_conn_start() and nbd_conns_tick(). */
void iscsi_conn_start(struct worker *worker, struct client *client, int fd);
void iscsi_conns_tick(struct worker *worker, uint64_t now);

/* ---- a task, from its header to the last byte of its answer ---------------------- */

#define ISCSI_INPUT    (64u << 10) /* received and not looked at yet */
#define ISCSI_HOLD_MAX (8u << 20)  /* memory of one connection's commands; or one command's */
#define ISCSI_ROOM_MAX (32u << 20) /* that one may have at all */
#define ISCSI_AT_ONCE  16          /* places for what does not wait its turn */
#define ISCSI_REJECTS  16

/* That an initiator has to log out, when it is asked to, RFC 7143 "Asynchronous Message". */
#define ISCSI_LOGOUT_SECONDS 2

#define ISCSI_IOVS  256
#define ISCSI_HEADS (16u << 10)

enum task_kind {
	TASK_COMMAND,
	TASK_MANAGEMENT,
	TASK_NOP,
	TASK_TEXT,
	TASK_LOGOUT,
	TASK_NOTHING, /* only holds a place in the order of commands */
};

struct iscsi_task {
	struct iscsi_conn *conn;
	unsigned kind; /* enum task_kind */
	bool immediate;
	bool numbered;  /* by CmdSN: it is one of those that make the window narrower */
	bool held_back; /* its turn (CmdSN) has not come */
	bool receiving; /* the PDU that is coming in is its: it is not freed meanwhile, but: */
	bool freed;
	uint8_t flags;   /* byte 1 of its header */
	uint16_t serial; /* of the slot, to tell it from those that were there before */
	uint32_t itt, cmd_sn;
	uint8_t lun[8];
	uint64_t began; /* stats_now() */

	/* A command: its data comes in order, and so do the sequences of PDUs in which it comes:
	 * the unsolicited one, and one for each R2T. */
	bool ended;       /* with a status */
	bool asks;        /* scsi_command_go() is to be called */
	bool failed;      /* with the data that has come, it cannot go */
	bool unsolicited; /* the sequence that comes now is */
	uint32_t immediate_length;
	uint32_t arrived;      /* bytes */
	uint32_t sequence_end; /* of the sequence that comes now */
	uint32_t data_sn;      /* of the next Data-Out in it */
	unsigned sequences;    /* of which the last PDU has not come */
	uint32_t asked, put;   /* bytes that are to be asked for by R2T, and that have been */
	uint32_t r2t_sn;       /* of the next one */
	bool owes_r2t;
	struct iscsi_task *next_r2t;

	/* Memory: of all, and, while that is not there, of what comes unasked. */
	struct room_wish wish, early;
	bool wanting;

	/* The answer, as far as it has been put together */
	uint64_t sent;                   /* bytes of Data-In */
	uint32_t data_in_sn;             /* PDUs of it */
	uint32_t ping_length;            /* of a NOP */
	uint32_t referenced, ref_cmd_sn; /* of Task Management: tag and number */
	uint16_t cid;                    /* of Logout */
	uint8_t response;                /* of Task Management and Logout */

	struct iscsi_task *next; /* in one of the lists, or free */

	union {
		struct scsi_command cmd;
		struct scsi_management management;
	};
};

#define ISCSI_TASK_OF(ptr, member) \
	((struct iscsi_task *)((char *)(ptr)-offsetof(struct iscsi_task, member)))

struct iscsi_rejected {
	uint8_t bhs[ISCSI_BHS];
	uint8_t reason; /* enum iscsi_reject */
};

/* Tasks in the order of their coming. */
struct iscsi_queue {
	struct iscsi_task *first, **last;
};

/* ---- a connection ---------------------------------------------------------------- */

enum iscsi_state {
	ISCSI_HAGGLING, /* login requests come in */
	ISCSI_WAITING,  /* for login responses to go out, or an old session to end */
	ISCSI_MOVING,   /* between two workers */
	ISCSI_SERVING,  /* full feature phase */
	ISCSI_ENDING,   /* takes nothing more; sends what there is to send, then is closed */
	ISCSI_CLOSING,
};

/* The PDU that is coming in. */
enum iscsi_part {
	PART_HEADER,
	PART_PLACE, /* where its data is to go is not known yet */
	PART_DATA,
	PART_TRAILER,
};

struct iscsi_incoming {
	unsigned part;           /* enum iscsi_part */
	uint32_t left;           /* bytes of the data segment, still to come */
	uint32_t place;          /* of these, so many have a place: */
	uint8_t *to;             /* memory, or */
	struct iscsi_text *text; /* text; else none has */
	unsigned trailer;        /* bytes of padding and digest */
	uint32_t padding, crc;
	bool digest;
	struct iscsi_task *task; /* whose data it is, or NULL */
	uint8_t bhs[ISCSI_BHS];
};

struct iscsi_conn {
	struct stream stream;
	struct worker *worker;
	struct client *client;
	struct iscsi_conn *prev, *next; /* of the worker's */
	unsigned state;                 /* enum iscsi_state */
	const char *why;                /* it ends; NULL: in order */
	bool shutting_down;             /* by order */
	bool receiving;                 /* a stream_recv() is under way */
	bool closed;                    /* the stream is */
	uint64_t shut_down_at;          /* stats_now() of the order */
	struct pl_work pump_work, move_work;
	bool pump_posted;
	char portal[80]; /* that the peer reached us by */

	/* login */
	struct iscsi_login login;
	struct iscsi_output out;
	struct iovec out_iov;
	unsigned next_step; /* enum login_step: when the output has been sent */
	uint64_t deadline;  /* stats_now() */

	/* the session */
	bool served;              /* it is one */
	bool waits_for_session;   /* an old one is to end first */
	struct scsi_nexus *nexus; /* NULL in discovery */
	bool nexus_ending;
	uint16_t tsih;
	struct iscsi_parameters agreed;

	/* in */
	uint8_t *input; /* ISCSI_INPUT bytes */
	size_t input_at, input_have;
	struct iovec recv_iov[2];
	bool direct; /* the receive under way begins in in.to */
	struct iscsi_incoming in;
	uint64_t now; /* stats_now() when the input came */
	uint32_t exp_cmd_sn;
	struct iscsi_task *held_back; /* by CmdSN */

	/* tasks */
	struct iscsi_task *slots, *free;
	uint32_t *tags; /* of each slot, its initiator task tag: found without touching slots */
	unsigned depth, slot_count, fresh; /* fresh: the first one that was never used */
	unsigned immediate, ordered;       /* in use by those */
	unsigned under_way;                /* commands and functions with scsi-emu */
	unsigned asking;                   /* of these, those that we have to bring something */
	unsigned expecting;                /* of these, those with a sequence under way */
	struct iscsi_queue wanting;        /* commands without memory */
	struct room_share share;
	uint64_t held_early;                  /* of all */
	struct iscsi_task *r2ts, **r2ts_last; /* that owe R2Ts */
	struct iscsi_task *logout;            /* waits for the end of the nexus */
	struct {
		struct iscsi_text keys, answer;
		size_t answered; /* bytes of the answer that have been sent */
		uint32_t tag;    /* of ours, by which it goes on; ISCSI_NO_TAG: it does not */
		uint32_t tags;   /* given so far */
		bool busy;       /* a request has not been answered */
		uint8_t bhs[ISCSI_BHS];
	} text;

	/* out */
	struct iscsi_queue answers;
	struct iscsi_task *sending; /* to be freed when the send has ended */
	bool sends;                 /* one is under way */
	struct pl_work send_work;
	bool send_posted;
	struct iovec *iov; /* ISCSI_IOVS */
	uint8_t *heads;    /* ISCSI_HEADS bytes */
	uint32_t stat_sn;
	struct iscsi_rejected rejects[ISCSI_REJECTS];
	unsigned reject_count;
	bool wants_ping, wants_logout; /* NOP-In, Async Message are to be sent */
	bool resets;                   /* with its answers, sessions of the target end */

	/* keeping alive */
	uint64_t seen_in, seen;       /* bytes in, and in both directions, when it last got on */
	uint64_t heard_at, active_at; /* stats_now() of these */
	bool pinged;                  /* a NOP-In waits for its answer */
};

/* ---- conn.c ---------------------------------------------------------------------- */

/* Looks for input and takes it as far as it goes; soon, on the loop. */
void iscsi_conn_pump(struct iscsi_conn *c);
/* Nothing more is taken from the peer; what is to be sent is sent, then it is closed. */
void iscsi_conn_end(struct iscsi_conn *c, const char *why);
/* At once; what is under way is aborted, waited for, and not answered. */
void iscsi_conn_close(struct iscsi_conn *c, const char *why);
/* With c, all sessions of its target that have units in common with it. */
void iscsi_conn_close_reset(struct iscsi_conn *c, const char *why);
/* Bytes that it has moved in both directions. */
uint64_t iscsi_conn_moved(const struct iscsi_conn *c);
/* Something has been done with: the connection may have waited for that. */
void iscsi_conn_settle(struct iscsi_conn *c);
/* Ends the nexus, as long as there is one. */
void iscsi_conn_end_nexus(struct iscsi_conn *c);

/* ---- receive.c ------------------------------------------------------------------- */

enum iscsi_progress {
	ISCSI_NEEDS_INPUT, /* all that can be used of the input has been */
	ISCSI_IS_BUSY,     /* it has to wait for memory, or until something has been sent */
	ISCSI_ENDS,        /* nothing more is to be taken from this peer */
};

/* Takes what has been received as far as it goes. */
enum iscsi_progress iscsi_input(struct iscsi_conn *c);
/* Where the next bytes are to go. */
int iscsi_input_want(struct iscsi_conn *c, struct iovec iov[2]);
/* n bytes are there. */
void iscsi_input_received(struct iscsi_conn *c, size_t n);

/* ---- task.c ---------------------------------------------------------------------- */

/* Errors: -ENOMEM. */
int iscsi_tasks_start(struct iscsi_conn *c);
void iscsi_tasks_free(struct iscsi_conn *c);
/* The connection closes: what has not been given to scsi-emu is forgotten. Again after the receive
 * that is under way, if one is. */
void iscsi_tasks_drop(struct iscsi_conn *c);
/* The nexus has ended. */
void iscsi_tasks_logged_out(struct iscsi_conn *c);
/* Commands may have numbers up to that. */
static inline uint32_t
iscsi_max_cmd_sn(const struct iscsi_conn *c)
{
	return c->exp_cmd_sn + c->depth - c->ordered - 1;
}

/* SAM-5, "Single level LUN structure", by either method of addressing; whether there is such a unit
 * is scsi-emu's to say. */
static inline unsigned
iscsi_lun(const uint8_t lun[8])
{
	return get_be16(lun) & 0x3fff;
}

void iscsi_queue_add(struct iscsi_queue *q, struct iscsi_task *t);
struct iscsi_task *iscsi_queue_take(struct iscsi_queue *q); /* NULL: empty */

/* A header is there, in c->in.bhs, with what AHS it has. */
void iscsi_task_begin(struct iscsi_conn *c, const uint8_t *ahs);
/* Its data segment has come. */
void iscsi_task_data_came(struct iscsi_conn *c);
/* A command that has not ended, or is still being sent data; or NULL. */
struct iscsi_task *iscsi_task_by_tag(const struct iscsi_conn *c, uint32_t itt);
/* It is being answered: one more may come. */
void iscsi_number_free(struct iscsi_task *t);
/* The answer has been sent, or will not be. */
void iscsi_task_free(struct iscsi_task *t);

/* receive.c lets no header in while there is no place for this. */
void iscsi_reject(struct iscsi_conn *c, const uint8_t *bhs, enum iscsi_reject reason);

/* ---- data.c ---------------------------------------------------------------------- */

/* At once, or not at all. */
bool iscsi_memory_try(struct iscsi_conn *c, struct room_wish *wish, uint64_t length);
/* All that t has. */
void iscsi_memory_give(struct iscsi_task *t);
/* There may be memory for those that wait. */
void iscsi_tasks_go_on(struct iscsi_conn *c);

/* For scsi_command.on_buffer. */
void iscsi_command_buffer(struct scsi_command *cmd);
/* The command has ended: nothing more is gathered for it. */
void iscsi_data_end(struct iscsi_task *t);
/* So many sequences of t's are awaited. */
void iscsi_sequences_set(struct iscsi_task *t, unsigned sequences);

/* A Data-Out has begun, in c->in. */
void iscsi_data_out(struct iscsi_conn *c);
/* Says in c->in where its data segment is to go. false: not yet. */
bool iscsi_task_place(struct iscsi_conn *c);
/* That many bytes of t's data have come; final: with the last PDU of a sequence. */
void iscsi_data_arrived(struct iscsi_task *t, uint32_t length, bool final);
/* Bytes of the burst from `from` on. */
static inline uint32_t
iscsi_burst(const struct iscsi_conn *c, uint32_t from, uint32_t to)
{
	return to - from < c->agreed.max_burst ? to - from : c->agreed.max_burst;
}

/* ---- send.c ---------------------------------------------------------------------- */

/* t's answer goes out with the others of this turn; then it is freed. */
void iscsi_answer(struct iscsi_task *t);
/* Something other than an answer is to be sent. */
void iscsi_send_soon(struct iscsi_conn *c);
/* Whether there is something to be sent, or on its way. */
bool iscsi_send_pending(const struct iscsi_conn *c);
/* The send that was under way has ended. */
void iscsi_sent(struct iscsi_conn *c, ssize_t result);
/* Nothing is to be sent any more. */
void iscsi_send_drop(struct iscsi_conn *c);

#endif
