"""Certificates for tests of TLS: an authority, its certificates, and those of others."""

import ssl
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Final

import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
    load_pem_private_key,
)
from cryptography.hazmat.primitives.serialization.pkcs12 import PKCS12Certificate, serialize_java_truststore
from cryptography.x509 import load_pem_x509_certificate

HOST: Final = "127.0.0.1"
PASSWORD: Final = "password"
_STORE: Final = BestAvailableEncryption(PASSWORD.encode())


class Certificates:
    """PEM files in a folder: ``ca.pem``, and for each name NAME.pem with its chain, NAME.key, and NAME-both.pem."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._authority = trustme.CA()
        self._authority.cert_pem.write_to_path(self.path("ca.pem"))

    def path(self, name: str) -> str:
        return str(self.folder / name)

    def issue(self, name: str, *identities: str, common_name: str | None = None, days: float = 90) -> None:
        """Issue a certificate, replacing its files. With less than 0 days it has expired."""
        now = datetime.now(UTC)
        issued = self._authority.issue_cert(
            *identities,
            common_name=common_name,
            not_before=now - timedelta(days=100),
            not_after=now + timedelta(days=days),
        )
        # In PKCS 8, for Netty.
        key = load_pem_private_key(issued.private_key_pem.bytes(), None)
        key_pem = key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())
        Path(self.path(f"{name}.key")).write_bytes(key_pem)
        chain = b"".join(blob.bytes() for blob in issued.cert_chain_pems)
        Path(self.path(f"{name}.pem")).write_bytes(chain)
        Path(self.path(f"{name}-both.pem")).write_bytes(key_pem + chain)

    def trust_store(self) -> str:
        """Return the path of a trust store for Java with the authority. Its password is PASSWORD."""
        authority = load_pem_x509_certificate(self._authority.cert_pem.bytes())
        store = serialize_java_truststore([PKCS12Certificate(authority, b"authority")], _STORE)
        path = Path(self.path("trust.p12"))
        path.write_bytes(store)
        return str(path)

    def server(self, name: str = "server", *, clients: ssl.VerifyMode = ssl.CERT_NONE) -> ssl.SSLContext:
        """Return a server's TLS context, and its handling of clients' certificates."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.num_tickets = 0
        context.load_cert_chain(self.path(f"{name}.pem"), self.path(f"{name}.key"))
        if clients is not ssl.CERT_NONE:
            context.load_verify_locations(self.path("ca.pem"))
            context.verify_mode = clients
        return context

    def client(self, name: str | None = None) -> ssl.SSLContext:
        """Return a client's TLS context that trusts the authority, with its certificate, if any."""
        context = ssl.create_default_context(cafile=self.path("ca.pem"))
        if name is not None:
            context.load_cert_chain(self.path(f"{name}.pem"), self.path(f"{name}.key"))
        return context
