"""The docs' pictures are those of ``make pictures``, and small enough for a page."""

import re
from pathlib import Path
from typing import Final

import pytest
from pictures import FOLDER, PICTURES

ROOT: Final = Path(__file__).resolve().parents[3]
PAGES: Final = sorted({*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"), *ROOT.glob("deploy/**/*.md")})
SHOWN: Final = [
    (page, place)
    for page in PAGES
    for place in re.findall(r"!\[[^\]]*\]\(([^)\s]+)\)|<img[^>]*\bsrc=\"([^\"]+)\"", page.read_text(encoding="utf-8"))
]
LARGEST_BYTES: Final = 200_000


@pytest.mark.parametrize(("page", "place"), SHOWN)
def test_a_picture_that_is_shown_is_made_by_the_script(page: Path, place: tuple[str, str]) -> None:
    file = (page.parent / "".join(place)).resolve()
    assert file.parent == FOLDER, f"{page.name} shows {file}, which nothing makes; add it to tests/support/pictures"
    assert file.name in PICTURES
    assert file.exists(), "run: make pictures"


def test_there_are_no_other_pictures() -> None:
    assert {file.name for file in FOLDER.iterdir()} == set(PICTURES)


@pytest.mark.parametrize("name", PICTURES)
def test_a_picture_is_small_enough_for_a_page(name: str) -> None:
    data = (FOLDER / name).read_bytes()
    assert data.startswith(b"\x89PNG\r\n")
    assert len(data) < LARGEST_BYTES
