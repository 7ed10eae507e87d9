from collections.abc import Awaitable, Callable
from functools import partial
from pathlib import Path
from shutil import copyfile
from typing import Any

import pytest
import trio
from certificates import Certificates

from admin.config.sources import Flags, load
from admin.edits.model import Author, ReloadError, ReloadReport
from admin.edits.service import EditService
from admin.edits.store import Store
from admin.http.auth import Keyring
from admin.run import reload, sidecar
from admin.run.composition import Plan, compose
from limiter.rules.rule import Rule

Make = Callable[[str], reload.Reloader]
SOMEBODY = Author("ada")
LIMIT = '[[limits]]\nkind = "topic"\nname = "a"\nrate = {rate}\n'


@pytest.fixture
def make(tmp_path: Path) -> Make:
    """Make a reloader of a file, which a test then rewrites."""

    def reloader(text: str) -> reload.Reloader:
        file = tmp_path / "sluice.toml"
        file.write_text(text, encoding="utf-8")

        def plan() -> Plan:
            pair = Flags() if "[[listeners]]" in text else Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"])
            return compose(load(str(file), {}, pair))

        first = plan()
        return reload.Reloader(plan, first, EditService(first.rulebook, Store(None)), Keyring(first.access))

    return reloader


def shown(reloader: reload.Reloader | None) -> list[str]:
    return [line for family in reload.families(reloader) for line in family.lines]


async def test_whether_the_configuration_was_right_when_last_read_is_a_metric(make: Make, tmp_path: Path) -> None:
    reloader = make("grace_s = 1")
    assert shown(reloader) == ["sluice_reload_ok 1.0\n"]
    (tmp_path / "sluice.toml").write_text("grace_s = -1", encoding="utf-8")
    with pytest.raises(ReloadError):
        await reloader(SOMEBODY, False)
    assert shown(reloader) == ["sluice_reload_ok 0.0\n"]
    assert reloader.failed is not None
    assert (reloader.failed.by, len(reloader.failed.problems)) == ("ada", 1)
    (tmp_path / "sluice.toml").write_text("grace_s = 2", encoding="utf-8")
    await reloader(SOMEBODY, False)
    assert shown(reloader) == ["sluice_reload_ok 1.0\n"]


async def test_a_changed_password_needs_a_restart_and_is_not_shown(make: Make, tmp_path: Path) -> None:
    text = '[fleet]\nurl = "redis://127.0.0.1"\nname = "f"\npassword = "hush"\n'
    reloader = make(text)
    (tmp_path / "sluice.toml").write_text(text.replace("hush", "other"), encoding="utf-8")
    report = await reloader(SOMEBODY, False)
    assert report.needs_restart == ("fleet.password: given -> given",)


async def test_limits_are_compared_on_a_thread(make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reloader = make(LIMIT.format(rate=1))
    on_loop: list[bool] = []
    fields_of = reload.fields_of

    def watched(rule: Rule) -> dict[str, Any]:
        on_loop.append(trio.lowlevel.in_trio_run())
        return fields_of(rule)

    monkeypatch.setattr(reload, "fields_of", watched)
    (tmp_path / "sluice.toml").write_text(LIMIT.format(rate=2), encoding="utf-8")
    assert (await reloader(SOMEBODY, True)).changed == ("topic:a: rate 1.0 -> 2.0",)
    assert not any(on_loop)


# --- on change


TEXT = """
reload_on_change = {reload_on_change}

[[listeners]]
listen = "127.0.0.1:0"
broker = "127.0.0.1:1"

[admin]
listen = "127.0.0.1:0"
token_file = "{tokens}"
"""


class Polls:
    """Replaces the watch's sleep: each poll happens when a test requests it."""

    def __init__(self) -> None:
        self._give, self._take = trio.open_memory_channel[None](0)
        self._asleep = trio.Event()

    async def sleep(self, seconds: float) -> None:
        assert seconds == reload.POLL_INTERVAL_S
        self._asleep.set()
        await self._take.receive()

    async def __call__(self, count: int = 1) -> None:
        """Let it poll this many times, and wait for the consequences."""
        for _ in range(count):
            await self._asleep.wait()
            self._asleep = trio.Event()
            await self._give.send(None)
            await self._asleep.wait()


@pytest.fixture
def looks() -> Polls:
    return Polls()


@pytest.fixture
async def file(tmp_path: Path) -> trio.Path:
    path = trio.Path(tmp_path) / "sluice.toml"
    await path.write_text("one", encoding="utf-8")
    return path


@pytest.fixture
def authors() -> list[str]:
    return []


@pytest.fixture
def edits(authors: list[str]) -> EditService:
    plan = compose(load(None, {}, Flags(listen=["127.0.0.1:1"], broker=["127.0.0.1:2"])))
    edits = EditService(plan.rulebook, Store(None))

    async def read_again(author: Author, dry_run: bool) -> ReloadReport:  # noqa: FBT001 - EditService's own call
        assert not dry_run
        await trio.lowlevel.checkpoint()
        authors.append(author.name)
        return ReloadReport(change=None, changed=(), needs_restart=(), warnings=(), hidden=())

    edits.reloader = read_again
    return edits


Start = Callable[..., Awaitable[None]]


@pytest.fixture
def start(nursery: trio.Nursery, edits: EditService, looks: Polls) -> Start:
    async def begin(*files: Path | trio.Path) -> None:
        await nursery.start(partial(reload.reload_on_change, map(str, files), edits, sleep=looks.sleep))

    return begin


async def test_a_change_is_read_once_as_soon_as_the_file_is_quiet(
    start: Start, looks: Polls, file: trio.Path, authors: list[str]
) -> None:
    await start(file)
    await file.write_text("one, and half of", encoding="utf-8")
    await looks()
    await file.write_text("one, and half of the other", encoding="utf-8")
    await looks()
    assert authors == []
    await looks()
    assert authors == ["file change"]
    await looks(3)
    assert authors == ["file change"]


async def test_a_link_that_leads_elsewhere_is_a_change(
    start: Start, looks: Polls, tmp_path: Path, authors: list[str]
) -> None:
    for name in ("first", "second"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "sluice.toml").write_text("the same", encoding="utf-8")
    (tmp_path / "..data").symlink_to("first")
    (tmp_path / "sluice.toml").symlink_to("..data/sluice.toml")
    await start(tmp_path / "sluice.toml")
    (tmp_path / "new").symlink_to("second")
    (tmp_path / "new").rename(tmp_path / "..data")
    await looks(2)
    assert authors == ["file change"]


@pytest.mark.parametrize("wanted", [True, False])
async def test_a_sidecar_watches_all_that_it_was_configured_by_if_it_is_asked_to(
    nursery: trio.Nursery, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, wanted: bool
) -> None:
    watched: list[str] = []

    async def record(files: tuple[str, ...], _: EditService, *, task_status: trio.TaskStatus[None]) -> None:
        watched.extend(files)
        task_status.started()
        await trio.lowlevel.checkpoint()

    monkeypatch.setattr(reload, "reload_on_change", record)
    tokens = tmp_path / "tokens"
    tokens.write_text(f"ada write {24 * 'a'}\n", encoding="utf-8")
    file = tmp_path / "sluice.toml"
    file.write_text(TEXT.format(reload_on_change=str(wanted).lower(), tokens=tokens), encoding="utf-8")

    def plan() -> Plan:
        return compose(load(str(file), {}, Flags()))

    await nursery.start(partial(sidecar.run, plan(), load=plan, environ={"STATE_DIRECTORY": str(tmp_path)}))
    assert watched == ([str(file), str(tokens)] if wanted else [])


async def test_certificates_are_read_again_together_and_only_if_all_are_right(make: Make, tmp_path: Path) -> None:
    made = Certificates(tmp_path)
    made.issue("server", "127.0.0.1")
    made.issue("renewed", "127.0.0.1", days=30)
    reloader = make(
        f"""
        [[listeners]]
        name = "main"
        listen = "127.0.0.1:1"
        broker = "127.0.0.1:2"
        tls = "require"
        tls_certificate_file = "{made.path("server.pem")}"
        tls_key_file = "{made.path("server.key")}"
        broker_tls = true
        broker_tls_ca_file = "{made.path("ca.pem")}"
        """
    )

    def ends() -> list[str]:
        return [line for family in reload.certificate_families(reloader.plan) for line in family.lines]

    tls = reloader.plan.listeners[0].tls
    assert tls.clients is not None
    first, ended = tls.clients.context, ends()
    assert ended[0].startswith('sluice_tls_certificate_expiry_timestamp_seconds{listener="main",side="client"} ')
    copyfile(made.path("renewed.pem"), made.path("server.pem"))
    with pytest.raises(ReloadError, match=r"does not match .*server\.pem"):
        await reloader(SOMEBODY, False)
    assert (tls.clients.context, ends()) == (first, ended)
    copyfile(made.path("renewed.key"), made.path("server.key"))
    would = await reloader(SOMEBODY, True)
    assert (tls.clients.context, ends()) == (first, ended)
    done = await reloader(SOMEBODY, False)
    until = f"{tls.expiries[0].ends:%Y-%m-%d}"
    assert would.changed == done.changed == (f"certificate of listener main, valid until {until}",)
    assert done.change is not None
    assert (await reloader(SOMEBODY, False)).changed == ()
    assert tls.clients.context is not first
    assert ends() != ended
    assert reloader.plan.listeners[0].tls is tls
