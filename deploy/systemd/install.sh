#!/bin/sh
# Installs the files for systemd, as a Debian package would, and keeps existing configuration. /opt/sluice is installed
# with pip.
#   sudo sh deploy/systemd/install.sh          here
#   sh deploy/systemd/install.sh DIRECTORY     below a directory, for packages and images
#
#   /usr/lib/systemd/system/sluice.service    /usr/lib/systemd/system/sluice.socket, which is enabled separately
#   /usr/lib/systemd/system/sluice@.service, for several processes on one port
#   /usr/lib/sysusers.d/sluice.conf    /usr/lib/tmpfiles.d/sluice.conf
#   /etc/sluice/sluice.toml  configuration    /etc/default/sluice  variables     /var/lib/sluice  state, created at startup
set -eu

root=${1:-}
here=$(cd "$(dirname "$0")" && pwd)

put() {
    mkdir -p "$root$(dirname "$3")"
    install -m "$1" "$here/$2" "$root$3"
}
put_once() {
    if [ -e "$root$3" ]; then echo "kept: $root$3"; else put "$@"; fi
}

put 0644 sluice.service /usr/lib/systemd/system/sluice.service
put 0644 sluice@.service /usr/lib/systemd/system/sluice@.service
put 0644 sluice.socket /usr/lib/systemd/system/sluice.socket
put 0644 sluice.sysusers /usr/lib/sysusers.d/sluice.conf
put 0644 sluice.tmpfiles /usr/lib/tmpfiles.d/sluice.conf
put 0644 ../../README.md /usr/share/doc/sluice/README.md
put 0644 ../sluice.toml /usr/share/doc/sluice/sluice.toml
put_once 0640 ../sluice.toml /etc/sluice/sluice.toml
put_once 0644 sluice.default /etc/default/sluice

if [ -z "$root" ]; then
    systemd-sysusers /usr/lib/sysusers.d/sluice.conf
    systemd-tmpfiles --create /usr/lib/tmpfiles.d/sluice.conf
    systemctl daemon-reload
    # As the service's user, because root can read every key.
    check="runuser -u sluice -- /opt/sluice/bin/sluice check /etc/sluice/sluice.toml"
    echo "edit /etc/sluice/sluice.toml, then: $check && systemctl enable --now sluice"
fi
