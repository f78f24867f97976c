"""The documentation site as `make docs` builds it, opened from disk in Chromium with every way out closed."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from accessibility import COLOURS, find_violations

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
NAMES = sorted([page.relative_to(DOCS).with_suffix("").as_posix() for page in DOCS.rglob("*.md")] + ["tutorial"])
ALIKE = {name for name in NAMES if name.startswith("methods/")} - {"methods/fedveca", "methods/moon"}  # one form
PHONE, DESKTOP = 390, 1280
Open = Callable[[str], Any]


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A warning fails the build, and so does a word on the screen."""
    folder = tmp_path_factory.mktemp("site")
    build = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)]
    quiet = os.environ | {"NO_MKDOCS_2_WARNING": "1"}  # Material's advertisement for its successor
    done = subprocess.run(build, cwd=ROOT, env=quiet, capture_output=True, text=True)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    return folder


@pytest.fixture(scope="module")
def tab(browser: Any) -> Iterator[Any]:
    """One tab for all pages: what they share is read and compiled once."""
    context = browser.new_context(offline=True)
    page = context.new_page()
    page.set_default_timeout(60_000)
    yield page
    context.close()


@pytest.fixture
def opened(site: Path, tab: Any) -> Iterator[Open]:
    """Opens a page; at the end nothing was asked of a network and nothing complained."""
    complaints: list[str] = []
    at_home = ("file:", "data:", "blob:")
    listeners: dict[str, Callable[[Any], None]] = {
        "request": lambda r: None if r.url.startswith(at_home) else complaints.append(r.url),
        "requestfailed": lambda r: complaints.append(f"failed: {r.url}"),
        "console": lambda m: complaints.append(m.text) if m.type in ("error", "warning") else None,
        "pageerror": lambda error: complaints.append(f"{tab.url}: {error}"),
    }
    for event, listener in listeners.items():
        tab.on(event, listener)

    def open_(name: str) -> Any:
        tab.set_viewport_size({"width": DESKTOP, "height": 900})
        tab.goto((site / f"{name}.html").as_uri())
        tab.wait_for_selector("html[data-ready]", state="attached")
        return tab

    yield open_
    tab.evaluate("localStorage.clear()")  # the next page is light again
    for event, listener in listeners.items():
        tab.remove_listener(event, listener)
    assert complaints == []


def test_it_asks_nobody(site: Path) -> None:
    """Nothing in the pages is fetched from elsewhere."""
    pages = list(site.rglob("*.html"))
    assert len(pages) > len(NAMES)  # and 404.html
    fetched = re.compile(r"""<(?:script|img|link|iframe)[^>]+(?:src|href)=["']?(?:https?:)?//|url\((?:https?:)?//""")
    for path in [*pages, *site.rglob("*.css")]:
        assert not fetched.search(path.read_text()), path


@pytest.mark.parametrize("name", NAMES)
def test_accessible_in_light_and_dark_and_no_wider_than_a_phone(name: str, opened: Open) -> None:
    page = opened(name)
    if name not in ALIKE:
        assert find_violations(page) == []
        page.add_style_tag(content="* { transition: none !important }")  # colours change at once
        page.evaluate("document.querySelector(\"label[title='Switch to dark mode']\").click()")
        page.wait_for_selector("body[data-md-color-scheme=slate]")
        assert find_violations(page, rules=COLOURS) == []
    page.set_viewport_size({"width": PHONE, "height": 900})
    page.evaluate("new Promise((drawn) => requestAnimationFrame(() => requestAnimationFrame(drawn)))")
    assert page.evaluate("document.documentElement.scrollWidth") <= PHONE
    wide = page.evaluate(
        "[...document.querySelectorAll('.md-typeset__scrollwrap')]"
        ".filter((box) => box.scrollWidth > box.clientWidth + 1)"
        ".filter((box) => !box.previousElementSibling?.classList.contains('scroll-hint')).length"
    )
    assert wide == 0  # a table that scrolls says so


@pytest.mark.parametrize("name", ["method", "corrected", "metrics", "idea", "methods/fedveca"])
def test_mathematics_is_set(name: str, opened: Open) -> None:
    page = opened(name)
    spans = page.locator(".arithmatex").count()
    assert spans > 2
    assert page.locator(".arithmatex .katex").count() == spans
    assert page.locator(".katex-error").count() == 0
    assert page.evaluate("document.fonts.check('12px KaTeX_Math')")


def test_search_works_from_disk(opened: Open) -> None:
    page = opened("index")
    page.locator(".md-search__input").fill("checkpoint")
    page.wait_for_selector(".md-search-result__item a")
    titles = page.locator(".md-search-result__item h1").all_inner_texts()
    assert any("resume" in title.lower() for title in titles)


def test_a_reader_finds_the_way(opened: Open) -> None:
    """Logo, switch to dark, previous and next, version, and code that can be copied."""
    from fedveca.version import __version__

    page = opened("start")
    assert page.locator(".md-header .md-logo img").count() == 1
    assert page.locator(".md-footer__link--prev").count() == page.locator(".md-footer__link--next").count() == 1
    assert __version__ in page.locator(".md-copyright").inner_text()
    assert page.locator(".md-clipboard, .md-code__button").count() > 0
    page.locator("label[title='Switch to dark mode']").click()
    page.wait_for_selector("body[data-md-color-scheme=slate]")


def test_the_reference_has_public_names_and_tables_of_parameters(opened: Open) -> None:
    page = opened("reference")
    heading = page.locator("[id='fedveca.run']")
    assert "fedveca.run" in heading.inner_text()
    assert page.locator("[id='fedveca.runs.run.run'].doc-heading").count() == 0
    assert page.locator("td:has-text('experiment')").count() > 0
