# prepare.sh - what quickstart and check share: packages and builds.
# Sourced by bash with `set -eu`, at the top of the source tree.

# Debian's names. A new need is added here and nowhere else.
packages_serve="
	autoconf automake gcc libc6-dev libtool make perl pkg-config
	liburing-dev nbdkit nbdkit-plugin-dev
	libcap-ng-dev libgnutls28-dev libgsl-dev libiscsi-dev libjansson-dev libmicrohttpd-dev
	libisal-dev libnbd-dev libseccomp-dev libsystemd-dev nettle-dev
	libnbd-bin python3 python3-libnbd"
packages_test="
	clang clang-format libclang-rt-14-dev
	curl fio gnutls-bin guestfish nbd-client nbd-server qemu-system-common qemu-utils strace
	dmsetup e2fsprogs fdisk libiscsi-bin open-iscsi qemu-block-extra sg3-utils tgt xfsprogs
	busybox-static kmod linux-image-cloud-amd64 qemu-system-x86
	gcovr valgrind"

die() {
	printf '%s: %s\n' "${0##*/}" "$*" >&2
	exit 1
}

# install_packages NAME...: those that are missing. Asks nothing of anyone when none is.
install_packages() {
	local name missing=()

	command -v dpkg-query apt-get >/dev/null ||
		die "this is not Debian: install what $(echo "$@") stand for there, then" \
			"./configure && make && make check"
	for name in "$@"; do
		[ "$(dpkg-query -W -f '${db:Status-Status}' "$name" 2>/dev/null)" = installed ] ||
			missing+=("$name")
	done
	[ ${#missing[@]} -gt 0 ] || return 0
	[ "$(id -u)" = 0 ] || die "run as root: apt-get install ${missing[*]}"

	echo "installing ${missing[*]}"
	export DEBIAN_FRONTEND=noninteractive
	{
		apt-get -qq -o DPkg::Lock::Timeout=300 update &&
			apt-get -qq -o DPkg::Lock::Timeout=300 install --no-install-recommends "${missing[@]}"
	} </dev/null >apt.log 2>&1 || {
		tail -n 20 apt.log >&2
		die "apt-get could not install ${missing[*]} (all it said is in apt.log)"
	}
	rm -f apt.log
}

# A build in place and one beside it would take each other's objects.
require_clean_tree() {
	[ ! -e config.status ] || die "this tree was built in place; run \`make distclean\` first"
}

# build DIR TARGET CONFIGURE-WORD...: out of tree, and only what has changed.
build() {
	local dir=$1 target=$2
	shift 2

	[ -e configure ] || autoreconf -fi >autoreconf.log 2>&1 || {
		cat autoreconf.log >&2
		return 1
	}
	rm -f autoreconf.log
	mkdir -p "$dir"
	if [ "$(cat "$dir/configured" 2>/dev/null)" != "$*" ] || [ ! -e "$dir/Makefile" ]; then
		(cd "$dir" && ../configure -q "$@") || return 1
		echo "$*" >"$dir/configured"
	fi
	make -s -C "$dir" -j "$(nproc)" "$target"
}
