"""TLS of the admin address: a certificate that a reload reads again. Clients have tokens, not certificates."""

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
    """A certificate with its chain, and its unencrypted key, from two PEM files.

    Attributes:
        context: ``reload`` changes it for later connections.
        expiries: when it expires, if that can be read.

    Raises:
        SettingsError: the two are not a certificate and its key.
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
        """Yield a line if the file has another certificate now."""
        file = self._certificate.path
        if digest(file) != self._digest:
            yield renewed("the admin address", expiry("", "admin", file))

    def reload(self) -> None:
        """Read both files again.

        Raises:
            SettingsError: they are wrong now; the previous certificate stays.
        """
        # Tried on another context first: a failure could leave half of the new one in the live one.
        self._load(new_context(ssl.PROTOCOL_TLS_SERVER))
        self._digest = digest(self._certificate.path)
        self._load(self.context)
        self.expiries = expiry("", "admin", self._certificate.path)

    def _load(self, context: ssl.SSLContext) -> None:
        load_certificate(context, self._certificate, self._key, self._origins)


def read_certificate(settings: AdminSettings, origins: Origins) -> Certificate | None:
    """Return the certificate that is configured, if one is.

    Raises:
        SettingsError: one of the two files is not given, or they are not a certificate and its key.
    """
    if settings.listen == OFF:
        return None
    if settings.tls_certificate_file is None or settings.tls_key_file is None:
        for given, missing in ((_CERTIFICATE, _KEY), (_KEY, _CERTIFICATE)):
            if (file := getattr(settings, given)) is not None:
                raise SettingsError(origins.problem(("admin", given), f"goes with admin.{missing}; give both", file))
        return None
    return Certificate(settings.tls_certificate_file, settings.tls_key_file, origins)
