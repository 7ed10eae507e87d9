import ssl
from pathlib import Path

import pytest
import trustme
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    PrivateFormat,
    load_pem_private_key,
)

from admin.common.errors import SettingsError
from admin.config.faults import Origins
from admin.config.settings import AdminSettings
from admin.http.tls import Certificate, read_certificate

ORIGINS = Origins(None, {}, {})


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with ``admin.pem`` and ``admin.key``, those of another, and an encrypted key."""
    monkeypatch.chdir(tmp_path)
    authority = trustme.CA()
    for name in ("admin", "other"):
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(f"{name}.key")
        Path(f"{name}.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
    key = load_pem_private_key(Path("admin.key").read_bytes(), None)
    Path("locked.key").write_bytes(
        key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, BestAvailableEncryption(b"password"))
    )
    Path("empty").touch()
    return tmp_path


def problem(certificate: str | None, key: str | None) -> str:
    settings = AdminSettings(tls_certificate_file=certificate, tls_key_file=key)
    with pytest.raises(SettingsError) as caught:
        read_certificate(settings, ORIGINS)
    (line,) = caught.value.lines
    return line


def test_a_certificate_and_its_key_make_a_context_of_modern_tls(files: Path) -> None:
    del files
    certificate = read_certificate(AdminSettings(tls_certificate_file="admin.pem", tls_key_file="admin.key"), ORIGINS)
    assert certificate is not None
    assert certificate.context.minimum_version == ssl.TLSVersion.TLSv1_2


def test_without_either_there_is_no_tls() -> None:
    assert read_certificate(AdminSettings(), ORIGINS) is None


@pytest.mark.parametrize(
    ("certificate", "key", "told"),
    [
        ("admin.pem", None, 'admin.tls_certificate_file = "admin.pem": goes with admin.tls_key_file; give both'),
        (None, "admin.key", 'admin.tls_key_file = "admin.key": goes with admin.tls_certificate_file; give both'),
        ("absent", "admin.key", 'admin.tls_certificate_file = "absent": cannot be read: no such file or directory; '),
        ("admin.pem", "absent", 'admin.tls_key_file = "absent": cannot be read: no such file or directory; '),
        ("admin.pem", ".", 'admin.tls_key_file = ".": cannot be read: is a directory; '),
        ("admin.pem", "other.key", 'admin.tls_key_file = "other.key": is not the key of admin.pem; '),
        ("admin.pem", "locked.key", 'admin.tls_key_file = "locked.key": is encrypted; decrypt it: openssl pkey '),
        ("admin.pem", "empty", 'admin.tls_key_file = "empty": has no key in it that can be read; '),
        ("admin.pem", "admin.pem", 'admin.tls_key_file = "admin.pem": has no key in it that can be read; '),
        ("empty", "admin.key", 'admin.tls_certificate_file = "empty": has no certificate in it; '),
        ("admin.key", "admin.key", 'admin.tls_certificate_file = "admin.key": has no certificate in it; '),
    ],
)
def test_faulty_files_are_named_with_what_to_do(
    files: Path, certificate: str | None, key: str | None, told: str
) -> None:
    del files
    assert problem(certificate, key).startswith(told)


def test_a_reload_takes_what_is_in_the_files_now_and_keeps_what_was_if_that_is_wrong(files: Path) -> None:
    del files
    certificate = Certificate("admin.pem", "admin.key", ORIGINS)
    context = certificate.context
    Path("admin.pem").write_bytes(Path("other.pem").read_bytes())
    with pytest.raises(SettingsError, match=r"is not the key of admin\.pem"):
        certificate.reload()
    Path("admin.key").write_bytes(Path("other.key").read_bytes())
    certificate.reload()
    assert certificate.context is context
