"""Parts of pages that follow from code, and links to files of the repository, which the site does not have."""

import posixpath
import re
import runpy
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
with_addresses = runpy.run_path(str(ROOT / "setup.py"))["with_addresses"]

_MADE = re.compile(r"^<!-- made by (\S+) -->$", re.MULTILINE)


def on_page_markdown(markdown, page, **_):
    """Put in the parts that scripts make, and give links that lead out of docs/ the address of the repository.

    Without an address, their text is left.
    """
    markdown = _MADE.sub(lambda made: runpy.run_path(str(ROOT / made[1]))["page"](), markdown)
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    return with_addresses(markdown, folder, but="docs/")
