#!/bin/sh
# Boots a Debian with a real systemd in a container (systemd-nspawn), installs Sluice there with install.sh, and tests
# the unit: hardening, state, reload, an invalid file, restart, stop. Needs root and the trees of chroot.sh.
#   sh deploy/systemd/nspawn.sh DIRECTORY      as for chroot.sh
set -eu

[ "$(id -u)" -eq 0 ] || { echo "nspawn.sh: systemd-nspawn needs root" >&2; exit 1; }
command -v systemd-nspawn >/dev/null || {
    echo "nspawn.sh: systemd-nspawn is missing: sudo apt-get install -y --no-install-recommends systemd-container" >&2
    exit 1
}
work=$(cd "$1" && pwd)
source=$(cd "$(dirname "$0")/../.." && pwd)
[ -d "$work/build/opt/sluice" ] || { echo "nspawn.sh: $work/build is missing: run chroot.sh first" >&2; exit 1; }
tree=$work/booted

rm -rf "$tree"
cp -a "$work/base" "$tree"
cp /etc/resolv.conf "$tree/etc/resolv.conf"
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin DEBIAN_FRONTEND=noninteractive chroot "$tree" sh -c \
    '{ apt-get update -qq && apt-get install -y --no-install-recommends python3 systemd systemd-sysv; } >/tmp/apt.log 2>&1' ||
    { cat "$tree/tmp/apt.log" >&2; exit 1; }
cp -a "$work/build/opt/sluice" "$tree/opt/sluice"
sh "$source/deploy/systemd/install.sh" "$tree"

cat >"$tree/etc/systemd/system/trial.service" <<'END'
[Unit]
After=sluice.service
SuccessAction=poweroff-force
FailureAction=poweroff-force
[Service]
Type=oneshot
StandardOutput=file:/trial.log
StandardError=inherit
ExecStart=/bin/sh -eu /trial.sh
END
cat >"$tree/trial.sh" <<'END'
export PATH=/opt/sluice/bin:/usr/bin:/bin
say() { printf '\n== %s\n' "$*"; }
answers() {
    tries=0
    until python /opt/sluice/libexec/healthcheck.py 2>/tmp/health; do
        tries=$((tries + 1))
        [ $tries -lt 100 ] || { cat /tmp/health; journalctl -u sluice -o cat; exit 1; }
        sleep 0.2
    done
}
metric() { python -c "import urllib.request as u; print(u.urlopen('http://127.0.0.1:9870/metrics').read().decode())" | grep "^$1"; }

say "running"
answers
systemctl show -p ActiveState,User,NRestarts sluice
grep -E '^(Uid|CapEff|CapBnd|NoNewPrivs|Seccomp):' "/proc/$(systemctl show -p MainPID --value sluice)/status"
ls -ld /etc/sluice /etc/sluice/sluice.toml /var/lib/sluice
metric process_start_time_seconds
metric sluice_rejection_log_up | grep -q ' 1.0$'

say "an edit is saved in the state directory"
sluice limits set topic orders 5
find /var/lib/sluice -name state.db -size +0 | grep .

say "reload"
sed -i 's/^rate = 2000 /rate = 1234 /' /etc/sluice/sluice.toml
systemctl reload sluice
tries=0
until sluice limits get topic '*' | grep 1234; do
    tries=$((tries + 1))
    [ $tries -lt 50 ]
    sleep 0.2
done

say "a reload with an invalid file fails and changes nothing"
cp /etc/sluice/sluice.toml /tmp/right.toml
echo 'nonsense = 1' >>/etc/sluice/sluice.toml
if systemctl reload sluice 2>/dev/null; then exit 1; fi
journalctl -u sluice -o cat | grep nonsense | tail -1
systemctl is-active sluice

say "a start with an invalid file is not retried"
systemctl restart sluice
tries=0
until systemctl is-failed sluice; do
    tries=$((tries + 1))
    [ $tries -lt 50 ]
    sleep 0.2
done
systemctl show -p ExecMainStatus,NRestarts sluice

say "a valid file again: after SIGKILL it restarts with the edit"
cp /tmp/right.toml /etc/sluice/sluice.toml
systemctl start sluice
answers
systemctl kill -s KILL sluice
tries=0
until [ "$(systemctl show -p NRestarts --value sluice)" = 1 ]; do
    tries=$((tries + 1))
    [ $tries -lt 100 ]
    sleep 0.2
done
answers
sluice limits get topic orders | head -1

say "stop"
systemctl stop sluice
systemctl show -p Result,ExecMainStatus sluice
systemd-analyze security --no-pager sluice.service | tail -1

say "all checks passed"
END
env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin chroot "$tree" systemctl enable --quiet sluice.service
mkdir -p "$tree/etc/systemd/system/multi-user.target.wants"
ln -s ../trial.service "$tree/etc/systemd/system/multi-user.target.wants/trial.service"

# Without a scope of the host's manager, and with private loopback, so that no port is in use.
timeout 300 systemd-nspawn --directory "$tree" --boot --register=no --keep-unit --private-network \
    >"$work/nspawn.log" 2>&1 </dev/null || true
[ -e "$tree/trial.log" ] || { tail -20 "$work/nspawn.log" >&2; exit 1; }
cat "$tree/trial.log"
grep -q '^== all checks passed$' "$tree/trial.log"
