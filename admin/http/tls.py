"""TLS of the admin address: the certificate from its files, read again on a reload without a connection noticing.

TLS 1.2 and 1.3, and HTTP/1.1 only. Clients show no certificate; who they are says their token.
"""

import ssl
from typing import Final

from admin.common.errors import SettingsError
from admin.config.faults import Origins
from admin.config.settings import OFF, AdminSettings

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

    Raises:
        SettingsError: the two are no certificate and its key.
    """

    def __init__(self, certificate_file: str, key_file: str, origins: Origins) -> None:
        self._certificate_file, self._key_file, self._origins = certificate_file, key_file, origins
        self.context = self._load()

    def reload(self) -> None:
        """Read both files again.

        Raises:
            SettingsError: they are wrong now; what was read before goes on.
        """
        # Tried on another context first: a failure in the middle could leave half of the new one in the live one.
        self._load()
        self.context.load_cert_chain(self._certificate_file, self._key_file, _no_password)

    def _load(self) -> ssl.SSLContext:
        for key, file in ((_CERTIFICATE, self._certificate_file), (_KEY, self._key_file)):
            try:
                with open(file, "rb"):  # noqa: PTH123 - a name that is no path at all must be an error here, too
                    pass
            except (OSError, ValueError) as error:
                reason = (getattr(error, "strerror", None) or str(error)).lower()
                raise self._problem(key, file, f"cannot be read: {reason}; name a PEM file") from None
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        context.set_alpn_protocols(_ALPN)
        try:
            context.load_cert_chain(self._certificate_file, self._key_file, _no_password)
        except _EncryptedError:
            raise self._problem(
                _KEY, self._key_file, "is encrypted; decrypt it: openssl pkey -in OLD -out NEW, and chmod 600 NEW"
            ) from None
        except ssl.SSLError as error:
            if error.reason == "KEY_VALUES_MISMATCH":
                raise self._problem(
                    _KEY, self._key_file, f"is not the key of {self._certificate_file}; name the key that goes with it"
                ) from None
            if _holds(self._certificate_file, b"CERTIFICATE"):
                raise self._problem(
                    _KEY, self._key_file, "has no key in it that can be read; name a PEM file with a private key"
                ) from None
            raise self._problem(
                _CERTIFICATE, self._certificate_file, "has no certificate in it; name a PEM file with a certificate"
            ) from None
        return context

    def _problem(self, key: str, file: str, what: str) -> SettingsError:
        return SettingsError(self._origins.problem(("admin", key), what, file))


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


class _EncryptedError(Exception):
    """The key wants a password."""


def _no_password() -> str:
    # Without this, OpenSSL would ask on the terminal.
    raise _EncryptedError


def _holds(file: str, what: bytes) -> bool:
    with open(file, "rb") as opened:  # noqa: PTH123 - as above
        return b"-----BEGIN " in (content := opened.read()) and what in content
