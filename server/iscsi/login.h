/*
 * login.h - the login phase: a machine, PDUs in and PDUs out. Knows no socket.
 *
 * Source: RFC 7143, "Login Phase", "Login Request", "Login Response".
 *
 *	a request -> iscsi_login_step() -> what to send, and what to do when it has been sent
 *
 * The first keys of a normal session name the target, and so the worker where the session is to
 * live: LOGIN_MOVE, before they are answered; the same request is given again there.
 */
#ifndef ISCSI_LOGIN_H
#define ISCSI_LOGIN_H

#include "chap.h"
#include "keys.h"
#include "pdu.h"
#include "targets.h"

enum login_step {
	LOGIN_MORE,    /* the answer is in out; go on receiving */
	LOGIN_MOVE,    /* to target_worker(login->target), with the same request once more */
	LOGIN_SESSION, /* ask for the session (login->initiator, isid, tsih, cid, discovery,
			* target), then iscsi_login_session() */
	LOGIN_FULL,    /* the answer is in out; when it has been sent, what was agreed on holds, and
			* the full feature phase has begun */
	LOGIN_CLOSE,   /* send what is in out, which may be nothing, and close; login->why for the
			* log */
};

struct iscsi_login {
	/* the connection's */
	struct targets *targets;
	const struct peer *peer;
	struct worker *worker; /* where the login runs */
	uint32_t window;       /* commands that may come at once: what the answers let in */

	/* filled as it goes */
	char initiator[ISCSI_NAME_MAX + 1];
	bool discovery;
	struct target *target; /* with a reference; NULL in discovery */
	uint8_t isid[6];
	uint16_t tsih, cid;   /* tsih: not 0: it asks for a session that should be there */
	uint32_t itt;         /* of the last request */
	uint32_t cmd_sn;      /* of the first command to come */
	uint32_t stat_sn;     /* of the next PDU to be sent */
	uint32_t exp_stat_sn; /* as last acknowledged */
	struct iscsi_parameters parameters;
	const char *why;

	/* the machine's */
	unsigned state, stage;
	unsigned requests;
	uint8_t flags;                /* byte 1 of the request that is being answered */
	bool named;                   /* who it is and what it wants has been read */
	bool method;                  /* AuthMethod is agreed on */
	uint64_t seen;                /* for iscsi_key_negotiate() */
	struct chap_secrets *secrets; /* NULL: no authentication */
	struct chap chap;
	struct chap_secrets *known; /* what it has shown to know, to the end; or NULL */
	struct iscsi_text keys;     /* of a request, as far as it has come */
	struct iscsi_text answer;   /* and what is said to them */
	size_t answered;            /* bytes of it that have been sent */
	char why_text[512];
};

struct iscsi_output {
	uint8_t *data;
	size_t length, room;
};
void iscsi_output_free(struct iscsi_output *out);

/* All is 0 but what is the connection's. */
void iscsi_login_start(struct iscsi_login *login);
/* bhs and its whole data segment, without padding; any PDU may come, and may say anything. Adds one
 * PDU to out, or none. */
enum login_step iscsi_login_step(struct iscsi_login *login, const uint8_t bhs[ISCSI_BHS],
				 const char *data, size_t length, struct iscsi_output *out);
/* After LOGIN_SESSION: status SUCCESS and the TSIH, or why there is none. */
enum login_step iscsi_login_session(struct iscsi_login *login, enum iscsi_login_status status,
				    uint16_t tsih, struct iscsi_output *out);
/* At any time; after LOGIN_FULL when the connection ends. */
void iscsi_login_end(struct iscsi_login *login);

/*
 * Text of the full feature phase (SendTargets), "Text Request": keys in (changed), keys out.
 * portal: "ADDRESS:PORT" that the peer reached us by; NULL: addresses are left out.
 * login->parameters.max_send may change. Errors: -EPROTO (no keys), -ENOMEM (or too long).
 */
int iscsi_text_answer(struct iscsi_login *login, char *keys, size_t length, const char *portal,
		      struct iscsi_text *out);

#endif
