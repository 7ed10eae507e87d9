"""The protocol versions by which clients and brokers name themselves: a number on the wire, a word for people.

The words are those of the Java client's ``MQVersion.Version`` (``org.apache.rocketmq.common``, 5.5.0), an enumeration
whose ordinals are the numbers. Clients in other languages send the number of the Java release that they follow.
"""

from typing import Final

_FIRST: Final = (
    *("V3_0_0_SNAPSHOT", "V3_0_0_ALPHA1", "V3_0_0_BETA1", "V3_0_0_BETA2", "V3_0_0_BETA3", "V3_0_0_BETA4"),
    *("V3_0_0_BETA5", "V3_0_0_BETA6_SNAPSHOT", "V3_0_0_BETA6", "V3_0_0_BETA7_SNAPSHOT", "V3_0_0_BETA7"),
    *("V3_0_0_BETA8_SNAPSHOT", "V3_0_0_BETA8", "V3_0_0_BETA9_SNAPSHOT", "V3_0_0_BETA9", "V3_0_0_FINAL"),
)
#: From each of these numbers on: the major and minor version that it stands for, the first patch of a minor version,
#: and how many there are of each. Every release has two numbers, that of its snapshot first.
_SERIES: Final = (
    (212, 4, 0, 0, 10),
    (86, 3, 3, 1, 9),
    (46, 3, 1, 0, 10),
    (16, 3, 0, 1, 15),
)
#: All that is above has no name yet.
_END: Final = 612


def version_name(number: int) -> str:
    """Return the word for a version's number, or the number itself where there is none."""
    if 0 <= number < len(_FIRST):
        return _FIRST[number]
    if 0 <= number < _END:
        for start, major, first_minor, first_patch, patches in _SERIES:
            if number >= start:
                release, final = divmod(number - start, 2)
                minors, patch = divmod(release, patches)
                majors, minor = divmod(first_minor + minors, 10)
                return f"V{major + majors}_{minor}_{first_patch + patch}{'' if final else '_SNAPSHOT'}"
    return str(number)
