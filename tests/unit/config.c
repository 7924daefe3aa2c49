/* config.c - what is written in a configuration is what is done, or is refused by its line. */
#include "config.h"
#include "test.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* Reads text as a file and completes it. */
static int
read_text(const char *text, size_t length, struct config **config, struct pl_error *err)
{
	char path[] = "/tmp/platter.conf-XXXXXX";
	int fd = mkstemp(path), error;

	assert_ne(fd, -1);
	assert_eq(write(fd, text, length), length);
	close(fd);
	assert_eq(config_new(config, err), 0);
	error = config_read(*config, path, err);
	if (error == 0)
		error = config_finish(*config, err);
	unlink(path);
	return error;
}

static struct config *
good(const char *text)
{
	struct config *config;
	struct pl_error err = { 0 };

	if (read_text(text, strlen(text), &config, &err) != 0)
		test_fail(__FILE__, __LINE__, "%s", err.text);
	return config;
}

static void
refused(const char *text, const char *place, const char *says)
{
	struct config *config;
	struct pl_error err = { 0 };

	assert_eq(read_text(text, strlen(text), &config, &err), -EINVAL);
	assert_contains(err.text, place);
	assert_contains(err.text, says);
	config_free(config);
}

TEST(everything_can_be_said)
{
	struct config *c = good("# a comment\n"
				"; another one\n"
				"\n"
				"[server]\n"
				"loops = 3\n"
				"memory=256M\n"
				"\tdepth\t=\t7  \r\n"
				"poll = on\n"
				"max-connections = 9\n"
				"max-connections-per-host = 4\n"
				"handshake-timeout = 2s\n"
				"list = off\n"
				"user = nobody\n"
				"group = nogroup\n"
				"sandbox = off\n"
				"reach = /srv:/var/lib\n"
				"control = /run/c\n"
				"metrics = 9000\n"
				"pidfile = /run/p\n"
				"tls = optional\n"
				"tls-certificates = /etc/pki\n"
				"tls-verify-peer = on\n"
				"[export]\n"
				"path = /a\n"
				"[export two words]\n"
				"driver = memory\n"
				"size = 1M\n"
				"description = a # is no comment ; here = neither\n"
				"read-only = yes\n"
				"listed = no\n"
				"tls = required\n"
				"access = single-writer\n"
				"allow-subject = CN=alice\n"
				"max-connections = 2\n"
				"[listener public]\n"
				"tcp = *:10809\n"
				"[listener private]\n"
				"unix = /run/s\n"
				"mode = 0660\n");
	const struct server_settings *s = &c->server;
	const struct offer_settings *o = c->exports;

	assert_eq(s->loops, 3);
	assert_eq(s->memory, 256 << 20);
	assert_eq(s->depth, 7);
	assert_true(s->poll);
	assert_eq(s->max_connections, 9);
	assert_eq(s->max_connections_per_host, 4);
	assert_eq(s->handshake_timeout, 2000000000);
	assert_false(s->list);
	assert_str(s->user, "nobody");
	assert_str(s->group, "nogroup");
	assert_false(s->sandbox);
	assert_str(s->reach, "/srv:/var/lib");
	assert_str(s->control, "/run/c");
	assert_str(s->metrics, "9000");
	assert_str(s->pidfile, "/run/p");
	assert_eq(s->tls, TLS_OPTIONAL);
	assert_str(s->tls_certificates, "/etc/pki");
	assert_true(s->tls_verify_peer);

	assert_eq(c->export_count, 2);
	assert_str(o[0].name, "");
	assert_contains(o[0].where, ":23");
	assert_eq(o[0].tls, TLS_OPTIONAL); /* the server's */
	assert_eq(o[0].access, ACCESS_SHARED);
	assert_true(o[0].listed);
	assert_false(o[0].read_only);
	assert_str(pl_params_get(o[0].params, "path"), "/a");
	assert_str(o[1].name, "two words");
	assert_str(o[1].description, "a # is no comment ; here = neither");
	assert_true(o[1].read_only);
	assert_false(o[1].listed);
	assert_eq(o[1].tls, TLS_REQUIRED);
	assert_eq(o[1].access, ACCESS_SINGLE_WRITER);
	assert_eq(o[1].max_connections, 2);
	assert_eq(pl_params_count(o[1].params), 2); /* the driver's own */

	assert_eq(c->listener_count, 2);
	assert_eq(c->listeners[0].kind, LISTENER_TCP);
	assert_str(c->listeners[0].value, "*:10809");
	assert_eq(c->listeners[1].kind, LISTENER_UNIX);
	assert_eq(c->listeners[1].mode, 0660);
	config_free(c);
}

TEST(an_empty_file_has_the_defaults)
{
	struct config *c = good("");

	assert_eq(c->export_count, 0);
	assert_eq(c->listener_count, 0);
	assert_eq(c->server.depth, 128);
	assert_eq(c->server.handshake_timeout, 10000000000);
	assert_eq(c->server.tls, TLS_OFF);
	assert_true(c->server.list);
	assert_true(c->server.sandbox);
	assert_eq(c->server.user, NULL);
	config_free(c);
}

TEST(an_error_names_file_line_and_key)
{
	static const struct {
		const char *text, *place, *says;
	} rows[] = {
		/* what is no configuration */
		{ "loops = 1\n", ":1: ", "loops: it stands in no section" },
		{ "[server]\nloops\n", ":2: ", "loops: expected KEY = VALUE" },
		{ "[server]\n\n = 3\n", ":3: ", "without a name" },
		{ "[server]\nloops =\n", ":2: ", "loops: it has no value" },
		{ "[server\n", ":1: ", "[export NAME]" },
		{ "[\n", ":1: ", "[export NAME]" },
		{ "[]\n", ":1: ", "no such section" },
		{ "[serve]\n", ":1: ", "[serve]: there is no such section" },
		{ "[server x]\n", ":1: ", "[server] has not a name" },
		{ "[listener]\n", ":1: ", "[listener] needs a name" },
		/* twice */
		{ "[server]\nloops=1\nlist=on\nloops=2\n", ":4: ", "loops is given twice: at " },
		{ "[server]\n[export]\npath=a\n[server]\n", ":4: ", "[server] is given twice" },
		{ "[export a]\npath=a\n[export a]\npath=b\n", ":3: ", "[export a] is given twice" },
		{ "[export]\npath=a\n[export]\npath=b\n", ":3: ", "[export] is given twice" },
		{ "[listener a]\ntcp=1\n[listener a]\ntcp=2\n", ":3: ", "given twice" },
		/* keys and values */
		{ "[server]\nlops=1\n", ":2: ", "[server] has no key lops; is it loops" },
		{ "[server]\nxyzzy=1\n", ":2: ", "[server] has no key xyzzy" },
		{ "[server]\nloops=many\n", ":2: ", "loops=many: expected loops=NUMBER" },
		{ "[server]\nloops=65\n", ":2: ", "loops=65: loops is at most 64" },
		{ "[server]\ndepth=0\n", ":2: ", "depth=0: depth is from 1 to 1024" },
		{ "[server]\nmemory=1M\n", ":2: ", "memory=1M: memory is from 64M" },
		{ "[server]\nhandshake-timeout=1us\n", ":2: ", "handshake-timeout=1us: " },
		{ "[server]\nmax-connections=1000001\n", ":2: ", "max-connections=1000001: " },
		{ "[server]\nlist=maybe\n", ":2: ", "list=maybe: expected list=on|off" },
		{ "[server]\ntls=always\n", ":2: ", "tls=always: expected tls=off|optional" },
		{ "[listener a]\ntcp=1\ntpc=2\n", ":3: ", "[listener] has no key tpc; is it tcp" },
		{ "[listener a]\nmode=0600\n",
		  ":1: ", "one of the keys unix, tcp, vsock and iscsi" },
		{ "[listener a]\ntcp=1\nunix=/x\n",
		  ":1: ", "one of the keys unix, tcp, vsock and iscsi" },
		{ "[listener a]\nunix=/x\nmode=0900\n", ":3: ", "mode=0900: expected mode=OCTAL" },
		{ "[listener a]\nunix=/x\nmode=01777\n", ":3: ", "mode=01777: expected" },
		{ "[listener a]\ntcp=1\nmode=0600\n", ":3: ", "mode is for unix sockets" },
		{ "[listener a]\ntcp=http\n", ":1: ", "http" },
		{ "[listener a]\ntcp=65536\n", ":1: ", "65536" },
		/* exports */
		{ "[export a]\n", ":1: ", "option path is missing" },
		{ "[export a]\nread-only=on\n\npath=a\ncahe=none\n", ":5: ", "no option cahe" },
		{ "[export a]\npath=a\ncache=fast\n", ":3: ", "cache=fast: expected cache=" },
		{ "[export a]\ndriver=flie\npath=a\n", ":2: ", "driver=flie: there is no such" },
		{ "[export a]\ndriver=memory\nsize=big\n", ":3: ", "size=big" },
		{ "[export a]\npath=a\naccess=all\n",
		  ":3: ", "access=all: expected access=shared|" },
		{ "[export a]\npath=a\nmax-connections=-1\n", ":3: ", "max-connections=-1" },
		{ "[export a]\npath=a\nallow-uid=no body\n", ":3: ", "allow-uid" },
		{ "[export a]\ndir=/srv\n", ":2: ", "dir without path" },
		/* together */
		{ "[server]\ntls=required\n", "[server]", "tls=required needs tls-certificates" },
		{ "[export a]\npath=a\ntls=optional\n", ":3: ", "tls=optional needs" },
		{ "[server]\ntls=required\ntls-psk=k\n[export a]\npath=a\ntls=off\n",
		  ":6: ", "tls=off is less than the server's" },
		{ "[server]\ntls-psk=k\ntls-certificates=c\n", "tls-psk=k", "only one" },
		{ "[server]\nloops=1\ntls-verify-peer=on\n", ":3: ", "tls-verify-peer=on needs" },
		{ "[server]\ntls-verify-peer=on\ntls-certificates=c\n[export a]\npath=a\n",
		  ":2: ", "tls-verify-peer=on needs tls=optional" },
		{ "[export a]\npath=a\nallow-psk=bob\n", ":3: ", "allow-psk needs tls-psk" },
		{ "[server]\ntls=required\ntls-psk=k\n[export a]\npath=a\nallow-subject=CN=a\n",
		  ":6: ", "allow-subject needs tls-certificates" },
	};

	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++)
		refused(rows[i].text, rows[i].place, rows[i].says);
}

TEST(an_error_comes_before_what_follows_it)
{
	refused("[export a]\npath=a\n[export b]\n[export c]\nnonsense=1\n", ":3: ", "path");
}

TEST(long_names_and_paths_are_kept_whole)
{
	char name[4097], path[4097], text[sizeof name + sizeof path + 32];
	struct config *c;

	memset(name, 'n', 4096);
	memset(path, 'p', 4096);
	name[4096] = path[4096] = '\0';
	path[0] = '/';
	snprintf(text, sizeof text, "[export %s]\npath=%s\n", name, path);
	c = good(text);
	assert_eq(c->export_count, 1);
	assert_str(c->exports[0].name, name);
	assert_str(pl_params_get(c->exports[0].params, "path"), path);
	config_free(c);
}

TEST(a_line_or_a_name_that_is_too_long_is_refused)
{
	static char text[20000];

	strcpy(text, "[export x]\npath=");
	memset(text + strlen(text), 'p', 16400);
	refused(text, ":2: ", "longer than 16384 bytes");
	memset(text, 0, sizeof text);
	strcpy(text, "[export ");
	memset(text + strlen(text), 'n', 4097);
	strcat(text, "]\npath=a\n");
	refused(text, ":1: ", "at most 4096 bytes");
}

TEST(what_is_no_text_is_refused)
{
	static const char text[] = "[server]\nloops=1\0\n";
	struct config *config;
	struct pl_error err = { 0 };

	assert_eq(read_text(text, sizeof text - 1, &config, &err), -EINVAL);
	assert_contains(err.text, ":2: ");
	config_free(config);
}

TEST(a_file_may_end_without_a_newline_and_begin_with_a_mark)
{
	struct config *c = good("\xef\xbb\xbf[export]\npath=a");

	assert_eq(c->export_count, 1);
	assert_str(pl_params_get(c->exports[0].params, "path"), "a");
	config_free(c);
}

TEST(a_file_that_is_not_there_is_named)
{
	struct config *config;
	struct pl_error err = { 0 };

	assert_eq(config_new(&config, &err), 0);
	assert_eq(config_read(config, "/nonexistent/platter.conf", &err), -ENOENT);
	assert_contains(err.text, "/nonexistent/platter.conf");
	config_free(config);
}

/* ---- the command line ------------------------------------------------------------ */

static int
add_export(const char *text, struct config **config, struct pl_error *err)
{
	int error;

	assert_eq(config_new(config, err), 0);
	error = config_add_export(*config, "--export", text, err);
	return error != 0 ? error : config_finish(*config, err);
}

TEST(a_doubled_comma_is_a_comma)
{
	static const struct {
		const char *text, *name, *path;
	} rows[] = {
		{ "name=x,path=/a", "x", "/a" },       { "path=/a", "", "/a" },
		{ "name=,path=/a", "", "/a" },         { "path=/a,,b,name=n", "n", "/a,b" },
		{ "name=n,path=/a,,", "n", "/a," },    { "name=n,,,path=/a,,,,b", "n,", "/a,,b" },
		{ "name=a=b,path=c=d", "a=b", "c=d" },
	};

	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct config *c;
		struct pl_error err = { 0 };

		if (add_export(rows[i].text, &c, &err) != 0)
			test_fail(__FILE__, __LINE__, "%s: %s", rows[i].text, err.text);
		assert_eq(c->export_count, 1);
		assert_str(c->exports[0].name, rows[i].name);
		assert_str(pl_params_get(c->exports[0].params, "path"), rows[i].path);
		config_free(c);
	}
}

TEST(an_export_option_that_is_wrong_is_refused)
{
	static const struct {
		const char *text, *says;
	} rows[] = {
		{ "", "expected KEY=VALUE" },
		{ "path", "expected KEY=VALUE" },
		{ "path=/a,", "expected KEY=VALUE" },
		{ "path=/a,,,", "expected KEY=VALUE" },
		{ ",path=/a", "expected KEY=VALUE" },
		{ "=x,path=/a", "expected KEY=VALUE" },
		{ "path=/a,path=/b", "option path is given twice" },
		{ "name=x", "path is missing" },
		{ "name=x,dir=/a", "dir without path" },
	};

	for (unsigned i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct config *c;
		struct pl_error err = { 0 };

		assert_eq(add_export(rows[i].text, &c, &err), -EINVAL);
		assert_contains(err.text, "--export: ");
		assert_contains(err.text, rows[i].says);
		config_free(c);
	}
}

TEST(options_go_before_the_file)
{
	char path[] = "/tmp/platter.conf-XXXXXX";
	int fd = mkstemp(path);
	struct config *c;
	struct pl_error err = { 0 };

	assert_true(dprintf(fd, "[server]\nloops=2\ndepth=5\n[export]\npath=a\n") > 0);
	close(fd);
	assert_eq(config_new(&c, &err), 0);
	assert_eq(config_set(c, "--loops", "loops", "1", &err), 0);
	assert_eq(config_add_export(c, "--export", "name=b,path=b", &err), 0);
	assert_eq(config_add_listener(c, "--tcp", "tcp", "1", &err), 0);
	assert_eq(config_add_listener(c, "--tcp", "tcp", "2", &err), 0);
	assert_eq(config_read(c, path, &err), 0);
	assert_eq(config_finish(c, &err), 0);
	assert_eq(c->server.loops, 1);
	assert_eq(c->server.depth, 5);
	assert_eq(c->export_count, 2);
	assert_eq(c->listener_count, 2);
	config_free(c);

	assert_eq(config_new(&c, &err), 0);
	assert_eq(config_add_export(c, "--export", "path=b", &err), 0);
	assert_eq(config_read(c, path, &err), 0);
	assert_eq(config_finish(c, &err), -EINVAL);
	assert_contains(err.text, "the default export is given twice");
	assert_contains(err.text, "--export");
	assert_contains(err.text, ":4");
	config_free(c);

	assert_eq(config_new(&c, &err), 0);
	assert_eq(config_set(c, "--loops", "loops", "1", &err), 0);
	assert_eq(config_set(c, "--loops", "loops", "2", &err), -EINVAL);
	assert_contains(err.text, "--loops: option loops is given twice");
	config_free(c);
	unlink(path);
}

/* ---- targets ------------------------------------------------------------------------- */

#define EXPORTS \
	"[export a]\ndriver = memory\nsize = 1M\n" \
	"[export b,c]\ndriver = memory\nsize = 1M\n" \
	"[export]\ndriver = memory\nsize = 1M\n"
#define ISCSI  "[listener san]\niscsi = 3260\n"
#define TARGET "[target iqn.2026-11.org.example:x]\n"

TEST(a_target_is_read_with_its_luns)
{
	struct config *c = good(EXPORTS ISCSI TARGET "lun.7 = a,serial=X,,Y,block-size=4096\n"
						     "initiators = iqn.a:b;iqn.c:d\n"
						     "lun.0 = b,,c,initiators=iqn.a:b\n"
						     "addresses = ::1\n"
						     "chap = /etc/chap\n"
						     "lun.255 = ,\n");
	const struct target_settings *t = c->targets;

	assert_eq(c->target_count, 1);
	assert_str(t->name, "iqn.2026-11.org.example:x");
	assert_str(t->initiators, "iqn.a:b;iqn.c:d");
	assert_str(t->addresses, "::1");
	assert_str(t->chap, "/etc/chap");
	assert_eq(t->lun_count, 3);
	assert_eq(t->luns[0].lun, 7);
	assert_str(t->luns[0].export, "a");
	assert_str(pl_params_get(t->luns[0].params, "serial"), "X,Y");
	assert_str(pl_params_get(t->luns[0].params, "block-size"), "4096");
	assert_true(t->luns[0].initiators == NULL);
	assert_eq(t->luns[1].lun, 0);
	assert_str(t->luns[1].export, "b,c");
	assert_str(t->luns[1].initiators, "iqn.a:b");
	assert_eq(pl_params_count(t->luns[1].params), 0);
	assert_eq(t->luns[2].lun, 255);
	assert_str(t->luns[2].export, "");
	config_free(c);
}

TEST(a_target_may_have_all_luns)
{
	char text[32768] = ISCSI TARGET;
	struct config *c;

	for (unsigned i = 0; i < 256; i++)
		sprintf(text + strlen(text), "lun.%u = e%u\n", i, i);
	for (unsigned i = 0; i < 256; i++)
		sprintf(text + strlen(text), "[export e%u]\ndriver = memory\nsize = 1M\n", i);
	c = good(text);
	assert_eq(c->targets->lun_count, 256);
	config_free(c);
}

TEST(a_target_that_cannot_be_is_refused_by_its_line)
{
	static const struct {
		const char *lines, *place, *says;
	} wrong[] = {
		{ "lun.0 = a\nlun.0 = ,\n", ":14: ", "given twice" },
		{ "lun.0 = a\nlun.1 = a\n", ":14: ", "already" },
		{ "lun.256 = a\n", ":13: ", "lun.255" },
		{ "lun.01 = a\n", ":13: ", "lun.255" },
		{ "lun. = a\n", ":13: ", "lun.255" },
		{ "lun.-1 = a\n", ":13: ", "lun.255" },
		{ "lun.99999999999999999999 = a\n", ":13: ", "lun.255" },
		{ "lun.0 = nix\n", ":13: ", "no export \"nix\"" },
		{ "lun.0 = a,serail=X\n", ":13: ", "serial" },
		{ "lun.0 = a,serial\n", ":13: ", "KEY=VALUE" },
		{ "lun.0 = a,block-size=7\n", ":13: ", "block-size" },
		{ "lun.0 = a,initiators=me\n", ":13: ", "'me'" },
		{ "initiators = me\nlun.0 = a\n", ":13: ", "'me'" },
		{ "lun.0 = a\naddresses = here\n", ":14: ", "here" },
		{ "lun.0 = a\nadresses = ::1\n", ":14: ", "addresses" },
		{ "chap = x\n", ":12: ", "no LUN" },
		{ "lun.0 = a\n[target Iqn.x:y]\nlun.0 = ,\n", ":14: ", "no iSCSI name" },
		{ "lun.0 = a\n" TARGET "lun.0 = ,\n", ":14: ", "given twice" },
		{ "lun.0 = a\n[target iqn.x:y]\nlun.0 = a\n", ":15: ", "already" },
		{ "lun.0 = a\n[target]\n", ":14: ", "needs a name" },
	};
	char text[4096];

	for (unsigned i = 0; i < sizeof wrong / sizeof *wrong; i++) {
		sprintf(text, "%s%s%s%s", EXPORTS, ISCSI, TARGET, wrong[i].lines);
		refused(text, wrong[i].place, wrong[i].says);
	}
}

TEST(blanks_around_what_is_said_of_a_lun_do_not_count)
{
	struct config *c = good(EXPORTS ISCSI TARGET "lun.0 = a , serial=X Y,\tblock-size=4096\n");

	assert_str(c->targets->luns->export, "a");
	assert_str(pl_params_get(c->targets->luns->params, "serial"), "X Y");
	assert_str(pl_params_get(c->targets->luns->params, "block-size"), "4096");
	config_free(c);
}

TEST(iscsi_serves_nothing_that_was_not_said)
{
	refused("[export a]\npath = x\ncache = unsafe\n" ISCSI TARGET "lun.0 = a\n",
		":7: ", "cache=unsafe");
	refused(EXPORTS ISCSI, ":10: ", "[target NAME]");
	refused(EXPORTS TARGET "lun.0 = a\n", ":10: ", "nobody can reach it");
	refused("[server]\ntls = required\ntls-psk = x\n" EXPORTS ISCSI TARGET "lun.0 = a\n",
		":13: ", "no TLS");
	refused("[server]\ntls-psk = x\n[export a]\npath = x\ntls = required\n" ISCSI TARGET
		"lun.0 = a\n",
		":9: ", "tls=required");
	refused("[export a]\npath = x\nallow-uid = 0\n" ISCSI TARGET "lun.0 = a\n",
		":7: ", "allow-");
	refused("[export]\ndir = x\n" ISCSI TARGET "lun.0 = ,\n", ":6: ", "directory");
}
