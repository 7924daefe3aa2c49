/*
 * process.h - what the server is to its surroundings: a process in the foreground or in the
 * background that logs, has a file with its number, and may run a command.
 */
#ifndef PROCESS_H
#define PROCESS_H

#include "platter.h"

#include <sys/types.h>

/* First of all. Lines of the log go to standard error: for people, or, where that is the journal
 * of systemd, with priorities as sd-daemon(3) says. */
void process_log(void);

/*
 * To the background: returns in a child without a terminal, whose errors still go there. The
 * parent waits until process_serves(), and ends then, or when the child does, with its status.
 * While there is one thread.
 */
int process_background(struct pl_error *err);

/* Clients can come now. In the background: the log goes to syslog from here on. */
void process_serves(void);

/* Makes it, empty. Errors: what open(2) says; -EEXIST: it is something else; -EBUSY: another server
 * that runs has it. */
int process_file_open(const char *path, struct pl_error *err);
void process_file_write(void);
void process_file_remove(void); /* nothing happens without one */

/* ---- a command that lives as long as the server ------------------------------------ */

/*
 * Makes a companion, which will run the command, and a folder for a socket, which it removes
 * in the end. While there is one thread, before privileges are dropped.
 */
int command_new(const char *command, struct pl_error *err);
const char *command_socket(void); /* a path in that folder */
/* $uri and $unixsocket ("": none) are in its environment. */
int command_start(const char *uri, const char *unixsocket, struct pl_error *err);
/* Its exit status can be received here, an int; 128 and more: the signal that ended it. The
 * command is ended with the server. */
int command_fd(void);

#endif
