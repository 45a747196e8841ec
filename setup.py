"""The part of the build that pyproject.toml can't state: on a package index, README's relative links lead nowhere."""

import functools
import posixpath
import re
import tomllib
from pathlib import Path

ROOT = Path(__file__).resolve().parent

_LINK = re.compile(r"(!?)\[([^\]]*)\]\((?!\w+:|#)([^)\s]+)\)")


@functools.cache
def source() -> str | None:
    """Return the address of the repository, if pyproject.toml has one."""
    address: str | None = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"].get("urls", {}).get("Source")
    return address


def with_addresses(markdown: str, folder: str = "", *, but: str | None = None) -> str:
    """Return a page of `folder` with the repository's address before its relative links, but for those into `but`.

    Without an address, a link becomes its text, and a picture is left out.
    """
    repository = source()

    def addressed(link: re.Match[str]) -> str:
        picture, text, target = link.groups()
        path = posixpath.normpath(posixpath.join(folder, target))
        if but is not None and path.startswith(but):
            return link[0]
        if repository is None:
            return "" if picture else text
        return f"{picture}[{text}]({repository}/{'raw' if picture else 'blob'}/main/{path})"

    return _LINK.sub(addressed, markdown)


if __name__ == "__main__":
    from setuptools import setup

    setup(
        long_description=with_addresses((ROOT / "README.md").read_text()),
        long_description_content_type="text/markdown",
    )
