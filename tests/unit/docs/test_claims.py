"""The documentation's claims are true, and the check finds false ones."""

import pytest
from claims import CHECKS, PAGES, ROOT, wrong_files


@pytest.mark.parametrize("page", PAGES)
@pytest.mark.parametrize("check", CHECKS)
def test_claims_of_a_page_are_true(check: str, page: str) -> None:
    assert list(CHECKS[check]((ROOT / page).read_text(encoding="utf-8"))) == []


@pytest.mark.parametrize("page", PAGES)
def test_references_of_a_page_exist(page: str) -> None:
    path = ROOT / page
    assert list(wrong_files(path.read_text(encoding="utf-8"), path.parent)) == []


RIGHT = """
```
sluice limits set topic orders 5 --dry-run
sluice limits export > now.toml
curl -s http://127.0.0.1:9870/api/v1/limits/topic/orders -X DELETE
make demo SECONDS=20
```

`sluice report tail -f`, `--storm-gap`, `make test`, `rate(sluice_requests_total{verdict="refuse"}[1m])`, `SLUICE_URL`,
`tests/unit/docs/test_claims.py::test_claims_of_a_page_are_true`

```toml
[bounds]
max_connections = 5
```
"""


def test_correct_claims_pass() -> None:
    assert [line for check in CHECKS.values() for line in check(RIGHT)] == []


@pytest.mark.parametrize(
    ("check", "right", "wrong"),
    [
        ("commands", "orders 5 --dry-run", "orders 5 --dry-runs"),
        ("commands", "sluice limits set", "sluice limits put"),
        ("commands", "tail -f", "tail --folow"),
        ("commands", "sluice report", "sluice reports"),
        ("commands", "`--storm-gap`", "`--storm-gaps`"),
        ("targets", "make test", "make tests"),
        ("targets", "make demo", "make demonstration"),
        ("metrics", "sluice_requests_total", "sluice_requests"),
        ("metrics", "sluice_requests_total", "sluice_request_total"),
        ("metrics", "verdict=", "outcome="),
        ("paths", "/limits/topic/", "/limit/topic/"),
        ("paths", "/api/v1/limits/topic/orders", "/api/v1/limits/topic"),
        ("paths", "-X DELETE", "-X POST"),
        ("settings", "SLUICE_URL", "SLUICE_URI"),
        ("settings", "max_connections", "max_conections"),
        ("settings", "= 5", '= "many"'),
        ("settings", "[bounds]", "[bound]"),
        ("tests", "::test_claims_of_a_page_are_true", "::test_what_a_page_says_is"),
        ("tests", "docs/test_claims.py", "docs/test_claim.py"),
    ],
)
def test_one_thing_that_is_wrong_is_found(check: str, right: str, wrong: str) -> None:
    assert right in RIGHT
    found = {name: list(each(RIGHT.replace(right, wrong))) for name, each in CHECKS.items()}
    assert found[check]
    assert [name for name, lines in found.items() if lines] == [check]


def test_a_link_that_leads_nowhere_is_found() -> None:
    text = "## Here it is\n[a](README.md) [b](READ.md) [c](#here-it-is) [d](#there) `tests/unit` `tests/units`"
    assert list(wrong_files(text, ROOT)) == [
        "READ.md: no such file",
        "#there: no such heading",
        "tests/units: no such file",
    ]
