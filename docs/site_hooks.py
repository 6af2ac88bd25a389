"""Adds documents from elsewhere in the repository to the site, so that no text is kept twice.

Links are written for the repository, where GitHub shows them, and rewritten here for the site.
"""

import posixpath
import re
from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files
from mkdocs.structure.pages import Page

ROOT = Path(__file__).parents[1]
PAGES = {  # file in the repository -> page of the site
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "SECURITY.md": "security.md",
    "CITATION.cff": "CITATION.cff",
    "src/acclimate/encoders/bundled/README.md": "bundled-model.md",
}
SOURCES = {page: source for source, page in PAGES.items()}


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Add the pages."""
    for source, page in PAGES.items():
        files.append(File.generated(config, page, abs_src_path=str(ROOT / source)))
    return files


def on_page_markdown(markdown: str, page: Page, config: MkDocsConfig, files: Files) -> str:
    """Rewrite the links of a page."""
    here = page.file.src_uri
    source = SOURCES.get(here, f"docs/{here}")

    def rewrite(link: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), link[0]))
        in_site = PAGES.get(target, target.removeprefix("docs/"))
        return posixpath.relpath(in_site, posixpath.dirname(here)) if in_site != target else link[0]

    return re.sub(r"(?<=\]\()[^)#:\s]+(?=[)#])", rewrite, markdown)
