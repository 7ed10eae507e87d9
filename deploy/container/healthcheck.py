"""Exits with 0 if the sidecar in this container answers on its admin address, for the image's health check.

The address is found as the commands find it: SLUICE_URL or SLUICE_ADMIN, or 127.0.0.1:9870.
"""

import os
import ssl
import sys
import urllib.request

from admin.client.target import Given, find_target

_TIMEOUT_S = 3.0


def main() -> int:
    """Ask once. Any answer other than 200 is an error, and its reason is printed."""
    target = find_target(Given(), os.environ)
    context = ssl.create_default_context(cafile=target.ca_file) if target.url.startswith("https:") else None
    try:
        # The scheme is http or https: the target's reader allows no other.
        with urllib.request.urlopen(f"{target.url}/healthz", timeout=_TIMEOUT_S, context=context) as answer:  # noqa: S310 - see above
            return 0 if answer.status == 200 else 1
    except OSError as error:
        sys.stderr.write(f"{target.url}/healthz: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
