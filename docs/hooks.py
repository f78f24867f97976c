"""What MkDocs runs while it builds the site: generated pages, the version, and mathematics where a page has some."""

from __future__ import annotations

import importlib
import re
import sys
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

DOCS = Path(__file__).parent
NOTEBOOK = "tutorial.ipynb"
TUTORIAL = "tutorial.md"


def _load(name: str) -> ModuleType:
    """A module of this checkout: MkDocs restores sys.path after it has loaded the hooks."""
    for folder in (DOCS.parent, DOCS.parent / "src"):
        if str(folder) not in sys.path:
            sys.path.insert(0, str(folder))
    return importlib.import_module(name)


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    config.copyright = f"FedVeca {_load('fedveca.version').__version__} · Apache-2.0"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The tutorial is a notebook; its page has what the cells show."""
    from mkdocs.structure.files import File

    files.append(File.generated(config, TUTORIAL, content=_load("docs.generated").make_tutorial(DOCS / NOTEBOOK)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    for name in ("settings", "commands", "names"):
        mark = f"<!-- generated: {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, getattr(_load("docs.generated"), f"make_{name}")())
    if page.file.src_uri != TUTORIAL:  # that page links to the notebook itself
        markdown = re.sub(r"\]\(((?:\.\./)*)tutorial\.ipynb", r"](\1tutorial.md", markdown)
    return markdown


def on_post_page(output: str, page: Page, config: MkDocsConfig) -> str:
    """KaTeX has 300 kB: only pages with mathematics load it."""
    if 'class="arithmatex"' not in output:
        return output
    up = "../" * page.url.count("/")
    style = f'<link rel="stylesheet" href="{up}assets/katex/katex.min.css">'
    script = f'<script defer src="{up}assets/katex/katex.min.js"></script>'
    return output.replace("</head>", f"{style}{script}</head>", 1)
