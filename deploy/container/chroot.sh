#!/bin/sh
# Tests the image's stages without an image: runs them as scripts in clean Debian trees, then starts the result as its
# user, with a read-only root and without capabilities. Needs root for debootstrap, chroot and mounts. The mounts are in
# a separate namespace and end with this script.
#   sh deploy/container/chroot.sh DIRECTORY      makes the trees below DIRECTORY: base, build, runtime, clean
set -eu

[ "$(id -u)" -eq 0 ] || { echo "chroot.sh: needs root for debootstrap, chroot and mount" >&2; exit 1; }
command -v debootstrap >/dev/null || {
    echo "chroot.sh: debootstrap is missing: sudo apt-get install -y --no-install-recommends debootstrap" >&2
    exit 1
}
mkdir -p "$1"
work=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
if [ -z "${SLUICE_CHROOT_INSIDE:-}" ]; then
    SLUICE_CHROOT_INSIDE=1 exec unshare --mount --mount-proc --pid --fork --kill-child --propagation private sh "$0" "$work"
fi
unset SLUICE_CHROOT_INSIDE

say() { printf '\n== %s\n' "$*"; }
seconds() { date +%s; }

# A copy of the bare tree, with this machine's name servers and trusted CAs for the build.
tree() {
    rm -rf "${work:?}/$1"
    cp -a "$work/base" "$work/$1"
    cp /etc/resolv.conf "$work/$1/etc/resolv.conf"
    mount -t proc proc "$work/$1/proc"
    mount --bind /dev "$work/$1/dev"
    if [ -n "${PIP_CERT:-}" ]; then
        install -D -m 0644 "$PIP_CERT" "$work/$1/tmp/trusted.pem"
    fi
}
# within TREE COMMAND…: runs it without this machine's environment.
within() {
    inside=$1
    shift
    if [ -e "$work/$inside/tmp/trusted.pem" ]; then set -- PIP_CERT=/tmp/trusted.pem CARGO_HTTP_CAINFO=/tmp/trusted.pem "$@"; fi
    env -i HOME=/root PATH=/usr/sbin:/usr/bin:/sbin:/bin LC_ALL=C.UTF-8 chroot "$work/$inside" /usr/bin/env "$@"
}
# The source as in a clone: tracked and new files. Without git, everything except build products.
copy_source() {
    mkdir -p "$work/$1/src"
    if git -C "$source" rev-parse --git-dir >/dev/null 2>&1; then
        git -C "$source" ls-files -z --cached --others --exclude-standard |
            (cd "$source" && xargs -0 sh -c 'for f; do [ -e "$f" ] && printf "%s\0" "$f"; done' -)
    else
        (cd "$source" && find . -path ./.parts -prune -o -path ./.venv -prune -o -type f -print0 -o -type l -print0)
    fi | tar -C "$source" --null --files-from=- -cf - | tar -C "$work/$1/src" -xf -
}

if [ ! -e "$work/base/.made" ]; then
    say "debootstrap: a bare Debian"
    rm -rf "$work/base"
    debootstrap --variant=minbase bookworm "$work/base" >"$work/debootstrap.log" 2>&1 || {
        tail -5 "$work/debootstrap.log" >&2
        exit 1
    }
    tar -C "$work/base" -cf "$work/base.tar" .
    touch "$work/base/.made"
fi

say "stage 1: build.sh"
began=$(seconds)
tree build
copy_source build
within build sh /src/deploy/container/build.sh /src yes
echo "built in $(($(seconds) - began)) s: $(cd "$work/build/tmp/wheel" && ls)"

say "stage 2: runtime.sh"
began=$(seconds)
tree runtime
install -m 0644 "$source/deploy/container/runtime.sh" "$work/runtime/tmp/runtime.sh"
within runtime sh /tmp/runtime.sh
rm "$work/runtime/tmp/runtime.sh"
cp -a "$work/build/opt/sluice" "$work/runtime/opt/sluice"
umount "$work/runtime/proc" "$work/runtime/dev"
rm -rf "$work/runtime/tmp/trusted.pem"
echo "made in $(($(seconds) - began)) s: $(du -sh --one-file-system "$work/runtime" | cut -f1)"

say "running as in the image: uid 10001, read-only root, no capabilities"
root=$work/root
mkdir -p "$root"
mount --bind "$work/runtime" "$root"
mount -o remount,bind,ro "$root"
mount -t proc proc "$root/proc"
mount -t tmpfs -o size=1m,mode=0755 dev "$root/dev"
for device in null urandom; do
    touch "$root/dev/$device"
    mount --bind "/dev/$device" "$root/dev/$device"
done
mount -t tmpfs -o size=64m,uid=10001,gid=10001,mode=0700 state "$root/var/lib/sluice"
# exec replaces the calling shell, so that signals to the background process reach it.
contained() {
    exec env -i PATH=/usr/sbin:/usr/bin:/bin chroot "$root" \
        setpriv --reuid 10001 --regid 10001 --clear-groups --bounding-set=-all --inh-caps=-all --no-new-privs \
        env PATH=/opt/sluice/bin:/usr/bin:/bin STATE_DIRECTORY=/var/lib/sluice PYTHONDONTWRITEBYTECODE=1 \
        SLUICE_URL=http://127.0.0.1:29870 "$@"
}
began=$(seconds)
contained sluice run --listen 127.0.0.1:29911 --broker 127.0.0.1:29912 --admin 127.0.0.1:29870 \
    >"$work/sluice.log" 2>&1 &
sluice=$!
until (contained python /opt/sluice/libexec/healthcheck.py) 2>"$work/health.log"; do
    kill -0 "$sluice" 2>/dev/null && [ $(($(seconds) - began)) -lt 60 ] || {
        cat "$work/sluice.log" "$work/health.log" >&2
        exit 1
    }
    sleep 0.2
done
echo "health check passed"
cp "$source/deploy/sluice.toml" "$root/var/lib/sluice/sluice.toml"
(contained sluice check /var/lib/sluice/sluice.toml) >"$work/check.log"
grep "compiled extension [0-9]" "$work/check.log"
grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs):' "/proc/$sluice/status"
grep -qE '^Uid:[[:space:]]10001' "/proc/$sluice/status"
if (contained touch /opt/sluice/written) 2>/dev/null; then
    echo "chroot.sh: the root file system is writable" >&2
    exit 1
fi
(contained sluice limits set topic orders 5 --reason "saved in the only writable folder")
[ -s "$root/var/lib/sluice/127.0.0.1-29911/state.db" ]
kill -TERM "$sluice"
wait "$sluice"
echo "SIGTERM: drained, exit code 0"
(contained sluice demo --seconds 5)
python3 -c '
import json, sys
found = json.load(open(sys.argv[1]))
print("SBOM:", found["bomFormat"], found["specVersion"] + ",", len(found["components"]), "components of",
      found["metadata"]["component"]["name"], found["metadata"]["component"]["version"])
' "$root/opt/sluice/share/sluice/sbom.cdx.json"

say "the wheel, in a Debian that has only Python"
tree clean
install -D -t "$work/clean/opt" "$work"/build/tmp/wheel/sluice_proxy-*.whl
within clean sh -c 'apt-get update -qq && apt-get install -y -qq --no-install-recommends python3-venv >/dev/null 2>&1'
began=$(seconds)
within clean sh -c 'python3 -m venv /opt/try && /opt/try/bin/pip install --quiet /opt/*.whl'
echo "installed in $(($(seconds) - began)) s"
within clean /opt/try/bin/sluice demo --seconds 5
echo "installed, and ran the demo, in $(($(seconds) - began)) s"

say "make demo, in a Debian that has only Python and make"
copy_source clean
within clean sh -c 'apt-get install -y -qq --no-install-recommends make >/dev/null 2>&1'
began=$(seconds)
within clean make -C /src demo SECONDS=5
echo "make demo took $(($(seconds) - began)) s"

say "all checks passed"
