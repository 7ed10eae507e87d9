"""TLS of the admin address: the certificate from its files, read again on a reload without a connection noticing.

HTTP/1.1 only. Clients show no certificate; who they are says their token.
"""

import ssl
from collections.abc import Iterator
from typing import Final

from admin.common.errors import SettingsError
from admin.config.faults import Origins
from admin.config.settings import OFF, AdminSettings
from admin.config.tls import NamedFile, digest, expiry, load_certificate, new_context, renewed

_CERTIFICATE, _KEY = "tls_certificate_file", "tls_key_file"
_ALPN: Final = ["http/1.1"]


class Certificate:
    """A certificate with its key, as it is in two files.

    Args:
        certificate_file: PEM, with the chain behind the certificate.
        key_file: PEM, not encrypted.
        origins: what faults are named by.

    Attributes:
        context: for the admin address; ``reload`` changes it for the connections to come.
        expiries: until when it holds, if that can be read.

    Raises:
        SettingsError: the two are no certificate and its key.
    """

    def __init__(self, certificate_file: str, key_file: str, origins: Origins) -> None:
        self._certificate = NamedFile(("admin", _CERTIFICATE), certificate_file)
        self._key = NamedFile(("admin", _KEY), key_file)
        self._origins = origins
        self.context = new_context(ssl.PROTOCOL_TLS_SERVER)
        self.context.set_alpn_protocols(_ALPN)
        self._digest = digest(certificate_file)
        self._load(self.context)
        self.expiries = expiry("", "admin", certificate_file)

    def changed(self) -> Iterator[str]:
        """Say whether there is another certificate in the file than the one in force."""
        file = self._certificate.path
        if digest(file) != self._digest:
            yield renewed("the admin address", expiry("", "admin", file))

    def reload(self) -> None:
        """Read both files again.

        Raises:
            SettingsError: they are wrong now; what was read before goes on.
        """
        # Tried on another context first: a failure in the middle could leave half of the new one in the live one.
        self._load(new_context(ssl.PROTOCOL_TLS_SERVER))
        self._digest = digest(self._certificate.path)
        self._load(self.context)
        self.expiries = expiry("", "admin", self._certificate.path)

    def _load(self, context: ssl.SSLContext) -> None:
        load_certificate(context, self._certificate, self._key, self._origins)


def read_certificate(settings: AdminSettings, origins: Origins) -> Certificate | None:
    """Return the certificate that is configured, if one is.

    Raises:
        SettingsError: one of the two files is not given, or they are no certificate and its key.
    """
    if settings.listen == OFF:
        return None
    if settings.tls_certificate_file is None or settings.tls_key_file is None:
        for given, missing in ((_CERTIFICATE, _KEY), (_KEY, _CERTIFICATE)):
            if (file := getattr(settings, given)) is not None:
                raise SettingsError(origins.problem(("admin", given), f"goes with admin.{missing}; give both", file))
        return None
    return Certificate(settings.tls_certificate_file, settings.tls_key_file, origins)
