#!/bin/sh
# Builds the Containerfile without a registry, on the bare Debian of chroot.sh. Needs user namespaces, buildah (Debian's
# package), and the tree's archive that chroot.sh leaves.
#   sh deploy/container/image.sh DIRECTORY [STORAGE]     DIRECTORY as for chroot.sh, STORAGE below it for images
set -eu

command -v buildah >/dev/null || {
    echo "image.sh: buildah is missing: sudo apt-get install -y --no-install-recommends buildah" >&2
    exit 1
}
base=$(cd "$1" && pwd)/base.tar
[ -e "$base" ] || { echo "image.sh: $base is missing: run chroot.sh first" >&2; exit 1; }
storage=${2:-$(cd "$1" && pwd)/storage}
mkdir -p "$storage"
cd "$(dirname "$0")/../.."
# No overlays and no container runtime: works in restricted environments.
export STORAGE_DRIVER=vfs BUILDAH_ISOLATION=chroot
images() { buildah --root "$storage/images" --runroot "$storage/run" "$@"; }

made=$(images from scratch)
images add --quiet "$made" "$base" / >/dev/null
if [ -n "${PIP_CERT:-}" ]; then
    # This machine's trusted CAs, for pip and cargo.
    images add --quiet "$made" "$PIP_CERT" /etc/trusted.pem >/dev/null
    images config --env PIP_CERT=/etc/trusted.pem --env CARGO_HTTP_CAINFO=/etc/trusted.pem "$made"
fi
images commit --quiet "$made" localhost/bare-debian >/dev/null
images rm "$made" >/dev/null

images bud --network host --format docker --build-arg BASE=localhost/bare-debian \
    --tag localhost/sluice --file deploy/container/Containerfile .
images inspect --type image --format 'user {{.Docker.Config.User}}, health check {{.Docker.Config.Healthcheck.Test}}' \
    localhost/sluice

made=$(images from localhost/sluice)
images run --network host "$made" -- sh -c 'id && ! command -v pip && sluice --version && sluice demo --seconds 5'
images rm "$made" >/dev/null
