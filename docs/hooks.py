"""Links of pages to files of the repository, which the site does not have."""

import importlib.util
import posixpath
from pathlib import Path

SPEC = importlib.util.spec_from_file_location("attnfuzz_setup", Path(__file__).resolve().parents[1] / "setup.py")
setup = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(setup)


def on_page_markdown(markdown, page, **_):
    """Give links that lead out of docs/ the address of the repository; without one, leave their text."""
    folder = posixpath.join("docs", posixpath.dirname(page.file.src_uri))
    return setup.with_addresses(markdown, folder, but="docs/")
