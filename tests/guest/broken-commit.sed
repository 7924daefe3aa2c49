# Makes of core/commit.c one that has the fault it exists to avoid: who comes while a flush runs
# joins the group which that flush will answer. For tests/guest/durability.py.
/^pl_commit_join/,/^}/ {
	s/\*c->next_last = req;/struct pl_request **last = c->flushing ? \&c->current->link : c->next_last;\
		req->link = *last;\
		*last = req;/
	s/^\(\t*\)c->next_last = &req->link;/\1if (!c->flushing)\
\1	c->next_last = \&req->link;/
}
