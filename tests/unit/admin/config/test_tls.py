"""TLS of listeners from files: errors, reloads, and the expiry of certificates."""

import ssl
from contextlib import suppress
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from certificates import HOST, Certificates

from admin.common.errors import SettingsError
from admin.config.faults import Origins
from admin.config.settings import ListenerSettings
from admin.config.tls import Expiry, ListenerTls, expiry, expiry_warnings

ORIGINS = Origins(None, {}, {})
PLACE = ("listeners", 0)
CLIENTS = {"tls": "accept", "tls_certificate_file": "server.pem", "tls_key_file": "server.key"}
BROKER = {"broker_tls": True, "broker_tls_ca_file": "ca.pem"}


@pytest.fixture(scope="module")
def certificates(tmp_path_factory: pytest.TempPathFactory) -> Certificates:
    made = Certificates(tmp_path_factory.mktemp("certificates"))
    made.issue("server", HOST, days=90)
    made.issue("other", HOST, days=30)
    return made


@pytest.fixture(autouse=True)
def files(certificates: Certificates, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The current directory, with all of these files."""
    for file in certificates.folder.iterdir():
        (tmp_path / file.name).write_bytes(file.read_bytes())
    (tmp_path / "empty").touch()
    monkeypatch.chdir(tmp_path)
    return tmp_path


def tls(**given: Any) -> ListenerTls:
    settings = ListenerSettings(name="main", listen="127.0.0.1:1", broker="broker.example:2", **given)
    return ListenerTls(settings, PLACE, ORIGINS)


def faults(**given: Any) -> list[str]:
    with pytest.raises(SettingsError) as caught:
        tls(**given)
    return list(caught.value.lines)


@pytest.mark.parametrize(("word", "required"), [("accept", False), ("require", True)])
def test_tls_ends_here_by_modern_versions_only(word: str, required: bool) -> None:  # noqa: FBT001 - a parameter
    made = tls(**CLIENTS | {"tls": word})
    assert made.clients is not None
    assert made.clients.required is required
    context = made.clients.context
    assert context.minimum_version == ssl.TLSVersion.TLSv1_2
    assert context.options & ssl.OP_NO_RENEGOTIATION
    assert context.verify_mode == ssl.CERT_NONE
    assert context.num_tickets == 0


def test_version_and_ciphers_are_those_that_are_written() -> None:
    made = tls(**CLIENTS, tls_minimum_version="1.3", tls_ciphers="ECDHE+AESGCM")
    assert made.clients is not None
    assert made.clients.context.minimum_version == ssl.TLSVersion.TLSv1_3
    of_before = {each["name"] for each in made.clients.context.get_ciphers() if each["protocol"] == "TLSv1.2"}
    assert of_before
    assert all("AES" in name and "GCM" in name for name in of_before)


@pytest.mark.parametrize(("word", "mode"), [("require", ssl.CERT_REQUIRED), ("accept", ssl.CERT_OPTIONAL)])
def test_clients_are_asked_for_certificates(word: str, mode: ssl.VerifyMode) -> None:
    made = tls(**CLIENTS, tls_client_ca_file="ca.pem", tls_client_certificate=word)
    assert made.clients is not None
    assert made.clients.context.verify_mode == mode
    assert len(made.clients.context.get_ca_certs()) == 1


def test_broker_is_verified_for_its_own_host_by_the_authorities_that_are_named() -> None:
    made = tls(**BROKER)
    assert made.broker is not None
    assert (made.broker.server_name, made.broker.context.check_hostname) == ("", True)
    assert made.broker.context.verify_mode == ssl.CERT_REQUIRED
    assert len(made.broker.context.get_ca_certs()) == 1
    named = tls(**BROKER, broker_tls_server_name="rabbit.example").broker
    assert named is not None
    assert named.server_name == "rabbit.example"


NO_EFFECT = 'has no effect without tls = "accept" or "require"'


@pytest.mark.parametrize(
    ("given", "told"),
    [
        ({"tls": "accept"}, 'listeners[0].tls = "accept": requires tls_certificate_file and tls_key_file'),
        (CLIENTS | {"tls": None}, f'listeners[0].tls_certificate_file = "server.pem": {NO_EFFECT}'),
        ({"tls_client_ca_file": "ca.pem"}, f'listeners[0].tls_client_ca_file = "ca.pem": {NO_EFFECT}'),
        (
            CLIENTS | {"tls_client_certificate": "accept"},
            'listeners[0].tls_client_certificate = "accept": requires tls_client_ca_file',
        ),
        (CLIENTS | {"options": {"tls": "pass"}}, 'listeners[0].tls = "accept": contradicts options.tls'),
        (
            CLIENTS | {"tls_certificate_file": "absent"},
            '= "absent": cannot be read: no such file or directory (looked for /',
        ),
        (CLIENTS | {"tls_key_file": "other.key"}, '= "other.key": does not match server.pem; '),
        (CLIENTS | {"tls_client_ca_file": "absent"}, 'tls_client_ca_file = "absent": cannot be read: '),
        (CLIENTS | {"tls_client_ca_file": "empty"}, 'tls_client_ca_file = "empty": contains no certificate; '),
        (CLIENTS | {"tls_ciphers": "ROT13"}, 'listeners[0].tls_ciphers = "ROT13": contains no known cipher'),
        ({"broker_tls_ca_file": "ca.pem"}, '= "ca.pem": has no effect without broker_tls = true'),
        ({"broker_tls_verify": True}, "broker_tls_verify = true: has no effect without broker_tls = true"),
        (BROKER | {"broker_tls_certificate_file": "server.pem"}, "requires broker_tls_key_file; set both"),
        (BROKER | {"broker_tls_verify": False}, "broker_tls_verify = false: contradicts broker_tls_ca_file"),
        (BROKER | {"tls": "pass"}, 'listeners[0].broker_tls = true: contradicts tls = "pass"'),
    ],
)
def test_faulty_keys_and_files_are_reported_with_a_remedy(given: dict[str, Any], told: str) -> None:
    assert told in faults(**given)[0]


def test_protocols_are_offered_to_both_peers_where_there_are_any() -> None:
    settings = ListenerSettings(name="main", listen="127.0.0.1:1", broker="broker.example:2", **CLIENTS, **BROKER)
    made = ListenerTls(settings, PLACE, ORIGINS, ("h2",))
    assert made.clients is not None
    assert made.broker is not None
    for context, peer_side in (
        (made.clients.context, ssl.PROTOCOL_TLS_CLIENT),
        (made.broker.context, ssl.PROTOCOL_TLS_SERVER),
    ):
        peer = ssl.SSLContext(peer_side)
        if peer_side == ssl.PROTOCOL_TLS_CLIENT:
            peer.load_verify_locations("ca.pem")
        else:
            peer.load_cert_chain("server.pem", "server.key")
        peer.set_alpn_protocols(["h2", "http/1.1"])
        assert agreed(context, peer, server_side=peer_side == ssl.PROTOCOL_TLS_CLIENT) == "h2"


def agreed(ours: ssl.SSLContext, peer: ssl.SSLContext, *, server_side: bool) -> str | None:
    """Shake hands in memory. Return the agreed protocol."""
    one, other = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [
        ours.wrap_bio(one, other, server_side=server_side, server_hostname=None if server_side else HOST),
        peer.wrap_bio(other, one, server_side=not server_side, server_hostname=HOST if server_side else None),
    ]
    for each in (*ends, *ends, *ends):
        with suppress(ssl.SSLWantReadError):
            each.do_handshake()
    return ends[0].selected_alpn_protocol()


def test_reload_takes_the_files_current_contents_once_all_are_read() -> None:
    made = tls(**CLIENTS, **BROKER, tls_client_ca_file="ca.pem")
    assert made.clients is not None
    assert made.broker is not None
    before, ends = (made.clients.context, made.broker.context), made.expiries[0].ends
    Path("server.pem").write_bytes(Path("other.pem").read_bytes())
    with pytest.raises(SettingsError, match=r"does not match server\.pem"):
        made.read()
    assert (made.clients.context, made.broker.context) == before
    Path("server.key").write_bytes(Path("other.key").read_bytes())
    reading = made.read()
    assert (made.clients.context, made.broker.context) == before
    reading.activate()
    assert made.clients.context is not before[0]
    assert made.broker.context is not before[1]
    assert made.expiries[0].ends < ends - timedelta(days=50)


def test_certificates_end_with_the_first_of_their_chain(certificates: Certificates) -> None:
    (server,) = expiry("main", "client", "server.pem")
    (other,) = expiry("main", "client", "other.pem")
    assert timedelta(days=89) < server.ends - datetime.now(UTC) <= timedelta(days=90)
    Path("chain.pem").write_bytes(Path("server.pem").read_bytes() + Path("other.pem").read_bytes())
    (chain,) = expiry("main", "client", "chain.pem")
    assert chain.ends == other.ends
    assert certificates.folder
    # Dates after 2049 have another encoding, as in trustme's.
    (authority,) = expiry("main", "client", "ca.pem")
    assert authority.ends.year >= 2038


@pytest.mark.parametrize(
    "text", ["", "-----BEGIN CERTIFICATE-----\nMAMC\n-----END CERTIFICATE-----", "-----BEGIN CERT"]
)
def test_unreadable_certificate_has_no_expiry(text: str) -> None:
    Path("garbage.pem").write_text(text, encoding="ascii")
    assert expiry("main", "client", "garbage.pem") == ()
    assert expiry("main", "client", "absent") == ()


def test_certificates_that_end_soon_are_warned_of() -> None:
    now = datetime(2026, 6, 1, tzinfo=UTC)
    ends = {"over": now - timedelta(hours=1), "soon": now + timedelta(days=13), "late": now + timedelta(days=15)}
    expiries = [Expiry("main" if name == "soon" else "", "client", name, at) for name, at in ends.items()]
    assert list(expiry_warnings(expiries, now)) == [
        "the admin address: the certificate in over expired at 2026-05-31 23:00 UTC; renew it and reload",
        "listener main: the certificate in soon expires at 2026-06-14 00:00 UTC; renew it and reload",
    ]


def test_broker_is_not_verified_where_that_is_written() -> None:
    made = tls(broker_tls=True, broker_tls_verify=False)
    assert made.broker is not None
    assert (made.broker.context.check_hostname, made.broker.context.verify_mode) == (False, ssl.CERT_NONE)
