#!/bin/sh
# Checks the programs of the system that setup and the tests need, and installs the Debian package of
# each that is missing when run as root. Anything already on PATH counts, wherever it came from.
set -eu

missing=""
need() { missing="$missing $1"; }

# At least the given major version of a program that prints its version as "v17.0.1", "javac 17.0.1" or "17".
newer_than() { [ "$(printf '%s\n' "$2" | sed 's/^[^0-9]*\([0-9]*\).*/\1/')" -ge "$1" ] 2>/dev/null; }

usable_python() { "$1" -c 'import sys, ensurepip, venv; sys.exit(sys.version_info < (3, 11))' >/dev/null 2>&1; }

found_python=""
for candidate in ${PYTHON:-} python3.11 python3.12 python3.13 python3; do
    if usable_python "$candidate"; then found_python=$candidate; break; fi
done

# Requirements of the targets on the command line.
for target in "$@"; do
    case $target in
    python)
        [ -n "$found_python" ] || need python3-venv
        ;;
    rocketmq)
        newer_than 17 "$(java -version 2>&1 | sed -n 's/^[^"]*version "//p')" || need default-jre-headless
        command -v mvn >/dev/null || need maven
        ;;
    rabbitmq)
        # Not the one on PATH, which changes the user if the tests run as root.
        [ -x /usr/lib/rabbitmq/bin/rabbitmq-server ] || need rabbitmq-server
        ;;
    rabbitmq4)
        if ! unshare --mount true 2>/dev/null; then
            echo "RabbitMQ 4 is run in a Debian 13 of its own, and mounts and chroot there are not allowed here:" >&2
            echo "they need root (CAP_SYS_ADMIN, in a container). Run it with: sudo make rabbitmq4" >&2
            exit 1
        fi
        command -v debootstrap >/dev/null || [ -x /usr/sbin/debootstrap ] || need debootstrap
        ;;
    integration)
        # The compiler, not only the JVM, because the Java clients are started from source files.
        newer_than 17 "$(javac -version 2>&1)" || need default-jdk-headless
        command -v mvn >/dev/null || need maven
        newer_than 18 "$(node --version 2>/dev/null)" || need nodejs
        command -v npm >/dev/null || need npm
        # The library that slows the spool's disk is compiled.
        command -v cc >/dev/null || need "gcc libc6-dev"
        # So is a client of AMQP 1.0, against Python's headers.
        [ -z "$found_python" ] || "$found_python" -c 'import os, sysconfig as s, sys
sys.exit(not os.path.exists(s.get_path("include") + "/Python.h"))' || need python3-dev
        command -v promtool >/dev/null || need prometheus
        command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || need haproxy
        command -v redis-server >/dev/null || need redis-server
        # Programs in the documentation's commands.
        command -v curl >/dev/null || need curl
        command -v openssl >/dev/null || need openssl
        ;;
    javascript)
        newer_than 18 "$(node --version 2>/dev/null)" || need nodejs
        command -v npm >/dev/null || need npm
        ;;
    browser)
        command -v chromium >/dev/null || need chromium
        ;;
    spark)
        newer_than 17 "$(java -version 2>&1 | sed -n 's/^[^"]*version "//p')" || need openjdk-17-jre-headless
        ;;
    bench)
        command -v haproxy >/dev/null || [ -x /usr/sbin/haproxy ] || need haproxy
        [ -e /usr/lib/nginx/modules/ngx_stream_module.so ] || need "nginx libnginx-mod-stream"
        newer_than 17 "$(javac -version 2>&1)" || need default-jdk-headless
        command -v mvn >/dev/null || need maven
        if ! newer_than 1 "$(cargo --version 2>/dev/null)"; then
            echo "the bench's load generator needs Rust 1.88 or newer, which Debian 12 does not have: see rustup.rs" >&2
            exit 1
        fi
        ;;
    toxiproxy)
        [ "$(go version 2>/dev/null | sed 's/.*go1\.\([0-9]*\).*/\1/')" -ge 18 ] 2>/dev/null || need golang-go
        ;;
    deploy)
        command -v promtool >/dev/null || need prometheus
        command -v systemd-analyze >/dev/null || need systemd
        # From 1.21 on it fetches helm's required version itself.
        if ! [ "$(go version 2>/dev/null | sed 's/.*go1\.\([0-9]*\).*/\1/')" -ge 21 ] 2>/dev/null; then
            echo "helm is built by Go 1.21 or newer, which Debian 12 has in bookworm-backports: see go.dev/doc/install" >&2
            exit 1
        fi
        ;;
    chroot)
        command -v debootstrap >/dev/null || [ -x /usr/sbin/debootstrap ] || need debootstrap
        command -v buildah >/dev/null || need buildah
        command -v systemd-nspawn >/dev/null || need systemd-container
        ;;
    *)
        echo "packages.sh: unknown target $target; one of python, rocketmq, rabbitmq, rabbitmq4, integration, javascript, browser, spark, bench, toxiproxy, deploy, chroot" >&2
        exit 2
        ;;
    esac
done

[ -n "$missing" ] || exit 0

if [ "$(id -u)" -ne 0 ] || ! command -v apt-get >/dev/null; then
    echo "missing or too old here:$missing" >&2
    echo "install with: sudo apt-get update && sudo apt-get install -y --no-install-recommends$missing" >&2
    case $missing in
    *rabbitmq-server*)
        echo "its package starts a broker, which no test needs; end that with: sudo systemctl disable --now rabbitmq-server" >&2
        ;;
    esac
    exit 1
fi

echo "installing:$missing"
# Packages must not start services.
policy=/usr/sbin/policy-rc.d
if ! [ -e $policy ]; then
    trap 'rm -f $policy' EXIT
    trap 'exit 1' HUP INT TERM
    printf '#!/bin/sh\nexit 101\n' > $policy
    chmod 0755 $policy
fi
apt-get update -qq
# Unquoted on purpose: one word for each package.
# shellcheck disable=SC2086
DEBIAN_FRONTEND=noninteractive apt-get install -y -qq --no-install-recommends $missing
