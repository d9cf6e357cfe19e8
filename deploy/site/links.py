"""Lets the documents stay as they are in the repository: anchors as there, and links out of docs/.

What they link to outside docs/ comes along under `source/`, so that no link leads nowhere.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files, InclusionLevel
from mkdocs.structure.pages import Page
from pymdownx.slugs import slugify

LINK = re.compile(r"\]\((?![a-z]+:|#)([^)#\s]+)")
SOURCE = "source/"


def on_config(config: MkDocsConfig) -> MkDocsConfig:
    """Headings get the anchors that they have in the repository."""
    toc = config.mdx_configs.get("toc", {})
    config.mdx_configs["toc"] = {**toc, "slugify": slugify(case="lower")}
    return config


def on_files(files: Files, *, config: MkDocsConfig) -> Files:
    """Add what is linked to outside docs/."""
    docs = Path(config.docs_dir)
    linked = {
        _in_site(_linked(f"docs/{path.relative_to(docs).as_posix()}", target))
        for path in docs.rglob("*.md")
        for target in LINK.findall(path.read_text(encoding="utf-8"))
    }
    for name in sorted(name for name in linked if name.startswith(SOURCE)):
        source = docs.parent / name.removeprefix(SOURCE)
        if source.is_file():
            file = File.generated(
                config, name, abs_src_path=str(source), inclusion=InclusionLevel.NOT_IN_NAV
            )
            files.append(file)
    return files


def on_page_markdown(markdown: str, *, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Links lead to where their targets are in the site."""
    uri = page.file.src_uri
    here = uri.removeprefix(SOURCE) if uri.startswith(SOURCE) else f"docs/{uri}"

    def moved(match: re.Match[str]) -> str:
        there = _in_site(_linked(here, match[1]))
        return f"]({posixpath.relpath(there, posixpath.dirname(uri) or '.')}"

    return LINK.sub(moved, markdown)


def _linked(page: str, target: str) -> str:
    """The path in the repository that a page there links to."""
    return posixpath.normpath(posixpath.join(posixpath.dirname(page), target))


def _in_site(path: str) -> str:
    """Where a file of the repository is in the site."""
    return path.removeprefix("docs/") if path.startswith("docs/") else f"{SOURCE}{path}"
