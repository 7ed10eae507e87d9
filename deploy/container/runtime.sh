#!/bin/sh
# The image's second stage, on a bare Debian: Python, a user, and the only folder that this user can write to.
# /opt/sluice is copied from the first stage.
set -eu

export DEBIAN_FRONTEND=noninteractive
packages() {
    # dpkg's output is shown only if it fails.
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/tmp/apt.log 2>&1 || { cat /tmp/apt.log >&2; exit 1; }
    rm /tmp/apt.log
}
packages python3
rm -rf /var/lib/apt/lists/* /var/cache/apt/*

groupadd --gid 10001 sluice
useradd --uid 10001 --gid sluice --home-dir /var/lib/sluice --no-create-home --shell /usr/sbin/nologin sluice
install -d -m 0700 -o sluice -g sluice /var/lib/sluice
install -d -m 0755 /etc/sluice
