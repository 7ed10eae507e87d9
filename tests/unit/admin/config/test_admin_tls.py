import ssl
from pathlib import Path

import pytest
import trustme

from admin.common.errors import SettingsError
from admin.config.faults import Origins
from admin.config.settings import AdminSettings
from admin.config.tls import Certificate, read_certificate

ORIGINS = Origins(None, {}, {})


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory with ``admin.pem`` and ``admin.key``, and another pair."""
    monkeypatch.chdir(tmp_path)
    authority = trustme.CA()
    for name in ("admin", "other"):
        issued = authority.issue_cert("127.0.0.1")
        issued.private_key_pem.write_to_path(f"{name}.key")
        Path(f"{name}.pem").write_bytes(b"".join(blob.bytes() for blob in issued.cert_chain_pems))
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


@pytest.mark.parametrize(
    ("certificate", "key", "told"),
    [
        ("admin.pem", None, 'admin.tls_certificate_file = "admin.pem": requires admin.tls_key_file; set both'),
        (None, "admin.key", 'admin.tls_key_file = "admin.key": requires admin.tls_certificate_file; set both'),
        ("admin.pem", "other.key", 'admin.tls_key_file = "other.key": does not match admin.pem; '),
    ],
)
def test_faulty_files_are_reported_with_a_remedy(
    files: Path, certificate: str | None, key: str | None, told: str
) -> None:
    del files
    assert problem(certificate, key).startswith(told)


def test_a_reload_applies_the_files_and_keeps_the_old_state_if_they_are_invalid(files: Path) -> None:
    del files
    certificate = Certificate("admin.pem", "admin.key", ORIGINS)
    context = certificate.context
    Path("admin.pem").write_bytes(Path("other.pem").read_bytes())
    with pytest.raises(SettingsError, match=r"does not match admin\.pem"):
        certificate.reload()
    Path("admin.key").write_bytes(Path("other.key").read_bytes())
    certificate.reload()
    assert certificate.context is context
