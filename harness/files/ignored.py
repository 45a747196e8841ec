"""Folders in a user's checkout that git ignores, as the caches of other tools are."""

from pathlib import Path


def make_ignored_folder(folder: Path) -> None:
    """Create a folder, with a file that makes git ignore it, unless it exists. Raises OSError."""
    if not folder.exists():
        folder.mkdir(parents=True)
        (folder / ".gitignore").write_text("*\n")
