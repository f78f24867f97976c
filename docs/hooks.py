"""What MkDocs runs while it builds the site: generated pages, the version, and mathematics where a page has some."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING

DOCS = Path(__file__).parent
sys.path[:0] = [str(DOCS.parent), str(DOCS.parent / "src")]  # `mkdocs` itself does not look there

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files
    from mkdocs.structure.pages import Page

NOTEBOOK = "tutorial.ipynb"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    from fedveca.version import __version__

    config.copyright = f"FedVeca {__version__} · Apache-2.0"
    return config


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """The tutorial is a notebook; its page has what the cells show."""
    from mkdocs.structure.files import File

    from docs.generated import make_tutorial

    files.append(File.generated(config, NOTEBOOK.replace(".ipynb", ".md"), content=make_tutorial(DOCS / NOTEBOOK)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    from docs.generated import make_commands, make_names, make_settings

    for name, make in (("settings", make_settings), ("commands", make_commands), ("names", make_names)):
        mark = f"<!-- generated: {name} -->"
        if mark in markdown:
            markdown = markdown.replace(mark, make())
    if page.file.src_uri != NOTEBOOK.replace(".ipynb", ".md"):  # that page links to the notebook itself
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
