#!/bin/sh
# The image's first stage, on a bare Debian: build.sh SOURCE [yes|no] makes /opt/sluice, a virtual environment with the
# wheels of SOURCE and their pinned dependencies, without pip or a compiler. "no" omits the compiled extension.
set -eu

source=$1
native=${2:-yes}
export DEBIAN_FRONTEND=noninteractive PIP_ROOT_USER_ACTION=ignore PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_NO_CACHE_DIR=1
packages() {
    # dpkg's output is shown only if it fails.
    apt-get update -qq && apt-get install -y -qq --no-install-recommends "$@" >/tmp/apt.log 2>&1 || { cat /tmp/apt.log >&2; exit 1; }
    rm /tmp/apt.log
}
case $native in
    # In Debian 12, only the Rust package for browsers is new enough.
    yes) rust=$(apt-get update -qq && apt-cache show cargo-web >/dev/null 2>&1 && echo cargo-web || echo cargo) ;;
    no) rust= ;;
    *) echo "build.sh: $native: must be yes or no (with or without the compiled extension)" >&2; exit 1 ;;
esac
# shellcheck disable=SC2086  # one word or none
packages python3-venv ca-certificates ${rust:+$rust gcc libc6-dev}

python3 -m venv /tmp/tools
# Also pins build requirements. Older versions of pip read the first variable, newer ones the second.
export PIP_CONSTRAINT="$source/constraints.txt" PIP_BUILD_CONSTRAINT="$source/constraints.txt"
/tmp/tools/bin/pip wheel --quiet --no-deps --wheel-dir /tmp/wheel "$source"
if [ "$native" = yes ]; then
    /tmp/tools/bin/pip wheel --quiet --no-deps --wheel-dir /tmp/wheel "$source/native"
fi

python3 -m venv --without-pip /opt/sluice
/tmp/tools/bin/pip --python /opt/sluice/bin/python install --quiet --compile /tmp/wheel/*.whl

# Installed afterwards, because the SBOM must not include its own tool.
unset PIP_CONSTRAINT PIP_BUILD_CONSTRAINT
/tmp/tools/bin/pip install --quiet -r "$source/deploy/container/tools.txt"
mkdir -p /opt/sluice/share/sluice
/tmp/tools/bin/cyclonedx-py environment --pyproject "$source/pyproject.toml" --mc-type application \
    --output-reproducible --validate --output-file /opt/sluice/share/sluice/sbom.cdx.json /opt/sluice/bin/python
install -D -m 0644 "$source/deploy/container/healthcheck.py" /opt/sluice/libexec/healthcheck.py
