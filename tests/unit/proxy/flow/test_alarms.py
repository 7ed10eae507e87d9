import pytest

from proxy.flow.alarms import Alarm, DiskAlarm, MemoryAlarm, reason, size_text

S = 1_000_000_000
GIB = 1024**3


@pytest.mark.parametrize(
    ("used", "stands"),
    [
        ([599, 600], [False, False]),
        ([601], [True]),
        ([601, 600, 571, 570], [True, True, True, False]),
        ([601, 570, 599, 601], [True, False, False, True]),
        ([601, None, 599], [True, False, False]),
        ([None, 601, 999], [False, True, True]),
    ],
)
def test_memory_alarm_is_active_above_its_watermark_until_well_below(
    used: list[int | None], stands: list[bool]
) -> None:
    alarm = MemoryAlarm(0.6)
    seen = []
    for at_ns, used_bytes in enumerate(used):
        alarm.update(at_ns, used_bytes, 0, 1000)
        seen.append(alarm.stands)
    assert seen == stands


@pytest.mark.parametrize(
    ("free", "stands"),
    [
        ([1000], [False]),
        ([999], [True]),
        ([999, 1000, 1099, 1100], [True, True, True, False]),
        ([999, 1100, 1000, 999], [True, False, False, True]),
        ([999, None, 1000], [True, False, False]),
        ([None, 0], [False, True]),
    ],
)
def test_disk_alarm_is_active_below_its_threshold_until_well_above(free: list[int | None], stands: list[bool]) -> None:
    alarm = DiskAlarm(1000)
    seen = []
    for at_ns, free_bytes in enumerate(free):
        alarm.update(at_ns, free_bytes)
        seen.append(alarm.stands)
    assert seen == stands


@pytest.mark.parametrize(
    ("looks", "used"),
    [
        ([(700, 300), (700, 0)], 400),
        ([(700, 300), (700, 0), (700, 250)], 650),
        ([(700, 300), (700, 0), (700, 300), (750, 350)], 750),
        ([(700, 300), (700, 0), (750, 350)], 750),
        ([(700, 300), (500, 0)], 400),
        ([(700, 300), (400, 0)], 400),
        ([(700, 300), (300, 0)], 300),
        ([(700, 300), (700, 0), (600, 0)], 400),
        ([(700, 300), (700, 0), (300, 0), (800, 0)], 800),
        ([(700, 900), (300, 0)], 0),
        ([(700, 0), (900, 0)], 900),
    ],
)
def test_memory_that_held_messages_have_left_is_not_used(looks: list[tuple[int, int]], used: int) -> None:
    alarm = MemoryAlarm()
    for at_ns, (resident_bytes, held_bytes) in enumerate(looks):
        alarm.update(at_ns, resident_bytes, held_bytes, 1000)
    assert alarm.used_bytes == used
    assert alarm.spare_bytes == looks[-1][0] - used


def test_memory_alarm_ends_although_nothing_is_given_back_to_the_system() -> None:
    alarm = MemoryAlarm()
    stands = []
    for at_ns, held_bytes in enumerate((100, 300, 290, 260, 0, 200, 290, 301)):
        alarm.update(at_ns, 601 if at_ns else 401, held_bytes, 1000)
        stands.append(alarm.stands)
    assert stands == [False, True, True, False, False, False, False, True]


def test_without_a_limit_there_is_no_memory_alarm() -> None:
    alarm = MemoryAlarm()
    assert alarm.update(0, 10**15, 0, None) is None
    assert not alarm.stands


def test_log_line_and_banner_have_the_figures_and_the_remedy() -> None:
    alarm = MemoryAlarm()
    raised = alarm.update(5 * S, round(1.3 * GIB), 0, 2 * GIB)
    text = "Sluice uses 1.30 GiB of 2.00 GiB (watermark: 60%); publishers are blocked until usage falls to 1.14 GiB"
    assert raised is not None
    assert raised.text == f"memory alarm: {text}"
    assert alarm.banner == text
    alarm.update(6 * S, round(1.25 * GIB), 0, 2 * GIB)
    assert alarm.banner.startswith("Sluice uses 1.25 GiB")
    ended = alarm.update(17 * S + S // 2, GIB, 0, 2 * GIB)
    assert ended == ("memory", False, "memory alarm cleared after 12.5 s: Sluice uses 1.00 GiB of 2.00 GiB")
    assert alarm.banner == ""


def test_unreadable_memory_usage_ends_the_alarm() -> None:
    alarm = MemoryAlarm()
    alarm.update(0, 900, 0, 1000)
    ended = alarm.update(S, None, 0, 1000)
    assert ended is not None
    assert ended.text == "memory alarm cleared after 1.0 s: the memory usage or the memory limit cannot be read"


def test_publishers_are_told_the_scarce_resource() -> None:
    memory, disk = MemoryAlarm(), DiskAlarm()
    alarms: list[Alarm] = [memory, disk]
    assert reason(alarms) == ""
    disk.update(0, 0)
    assert reason(alarms) == "Sluice is low on disk"
    memory.update(0, 900, 0, 1000)
    assert reason(alarms) == "Sluice is low on memory & disk"
    disk.update(0, 100 * GIB)
    assert reason(alarms) == "Sluice is low on memory"


@pytest.mark.parametrize("watermark", [0.0, -0.1, 1.01])
def test_watermarks_that_make_no_sense_are_refused(watermark: float) -> None:
    with pytest.raises(ValueError, match="above 0 and at most 1"):
        MemoryAlarm(watermark)


def test_free_space_that_makes_no_sense_is_refused() -> None:
    with pytest.raises(ValueError, match="0 or more"):
        DiskAlarm(-1)


@pytest.mark.parametrize(
    ("size_bytes", "text"),
    [
        (0, "0 bytes"),
        (1023, "1023 bytes"),
        (1024, "1.00 KiB"),
        (1024**2 * 10, "10.0 MiB"),
        (1024**2 * 900, "900 MiB"),
        (1024**3 * 1.14, "1.14 GiB"),
        (1024**4 * 5, "5.00 TiB"),
        (1024**5 * 5, "5120 TiB"),
    ],
)
def test_sizes_read_well(size_bytes: float, text: str) -> None:
    assert size_text(size_bytes) == text


def test_a_full_disk_raises_no_alarm_while_the_spool_is_empty() -> None:
    alarm = DiskAlarm(100)
    assert alarm.update(0, 5, is_used=False) is None
    assert alarm.update(S, 5) is not None
    ended = alarm.update(3 * S, 5, is_used=False)
    assert ended is not None
    assert ended.text == "disk alarm cleared after 2.0 s: the spool is empty"
    assert not alarm.banner
