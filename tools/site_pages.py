"""A hook of MkDocs: pages that lie outside of docs/, such as README.md, which is the first one."""

import re
from pathlib import Path

from mkdocs.structure.files import File

ROOT = Path(__file__).resolve().parents[1]
PAGES = {"README.md": "index.md", "CONTRIBUTING.md": "contributing.md", "CHANGELOG.md": "changelog.md"}


def on_files(files, config):
    for source, page in PAGES.items():
        files.append(File.generated(config, page, content=_with_links((ROOT / source).read_text())))
    return files


def _with_links(text):
    """Links as they are from docs/, where the page is now."""
    text = re.sub(r"\]\(docs/", "](", text)
    for source, page in PAGES.items():
        text = text.replace(f"]({source})", f"]({page})")
    return text
