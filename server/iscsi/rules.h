/*
 * rules.h - who may log in to a target, and see a LUN: by the initiator's name and its address.
 *
 * Neither proves who somebody is: that is what CHAP is for.
 */
#ifndef ISCSI_RULES_H
#define ISCSI_RULES_H

#include "../peer.h"
#include "platter.h"

/* Both lists are words separated by ';', blanks around them do not matter. Immutable. */
struct iscsi_rules;

/* initiators: iSCSI names; addresses: "10.0.0.0/8", "192.0.2.7", "fe80::/64". NULL: anybody. A list
 * that names nobody is a mistake. Errors: -EINVAL (the word that is wrong), -ENOMEM. */
int iscsi_rules_new(struct iscsi_rules **rules, const char *initiators, const char *addresses,
		    struct pl_error *err);
void iscsi_rules_free(struct iscsi_rules *rules); /* NULL: nothing */

bool iscsi_rules_allow_name(const struct iscsi_rules *rules, const char *initiator);
/* peer: of TCP; nobody else is in a network. */
bool iscsi_rules_allow_peer(const struct iscsi_rules *rules, const struct peer *peer);

#endif
