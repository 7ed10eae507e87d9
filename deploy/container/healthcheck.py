"""The image's health check: exits with 0 if the sidecar is healthy. Finds the admin address as the commands do."""

import os
import ssl
import sys
import urllib.request

from admin.client.target import Given, find_target

_TIMEOUT_S = 3.0


def main() -> int:
    """Return 0 for status 200, otherwise print the reason and return 1."""
    target = find_target(Given(), os.environ)
    context = ssl.create_default_context(cafile=target.ca_file) if target.url.startswith("https:") else None
    try:
        # ``find_target`` allows only http and https.
        with urllib.request.urlopen(f"{target.url}/healthz", timeout=_TIMEOUT_S, context=context) as answer:  # noqa: S310 - see above
            return 0 if answer.status == 200 else 1
    except OSError as error:
        sys.stderr.write(f"{target.url}/healthz: {error}\n")
        return 1


if __name__ == "__main__":
    sys.exit(main())
