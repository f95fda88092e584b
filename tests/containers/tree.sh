# Makes a tree of the Debian release $2 in the folder $1, with the packages $3...: later than what this machine has,
# so that what engines of several years read is read by them. Needs root, debootstrap and the machine's own mirror.
set -eu
tree=$1
release=$2
shift 2
part=$tree.part
mirror=$(apt-get indextargets --format '$(REPO_URI)' 'Created-By: Packages' | grep -v security | head -n 1)
[ -n "$mirror" ] || { echo "apt names no mirror" >&2; exit 1; }
rm -rf "$part"
mkdir -p "$part"
# The release is later than this machine's debootstrap, and like sid to it.
debootstrap --variant=minbase "$release" "$part" "$mirror" /usr/share/debootstrap/scripts/sid >&2
cp /etc/resolv.conf "$part/etc/"
printf "127.0.0.1 localhost\n" >"$part/etc/hosts"
cp /etc/apt/apt.conf.d/* "$part/etc/apt/apt.conf.d/" 2>/dev/null || true
# Nothing that is installed is started.
printf '#!/bin/sh\nexit 101\n' >"$part/usr/sbin/policy-rc.d"
chmod +x "$part/usr/sbin/policy-rc.d"
export DEBIAN_FRONTEND=noninteractive
chroot "$part" apt-get -qq update >&2
chroot "$part" apt-get install -y -qq --no-install-recommends "$@" >&2
rm -rf "$part/var/cache/apt/archives" "$part/var/lib/apt/lists"
mv "$part" "$tree"
