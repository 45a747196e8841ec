"""A copy of a release with a mistake in it."""

import shutil
from pathlib import Path

from attnfuzz.kernels.releases.project import Project
from attnfuzz.kernels.releases.release import release_of


def planted_tree(project: Project, version: str, folder: Path, change: tuple[Path, str, str]) -> str:
    """Copy a version to a folder, replace a text that a file of it has once, and return the copy's name."""
    place, right, wrong = change
    tree = Path(shutil.copytree(release_of(project, f"{project.released}{version}").root, folder / project.name))
    text = (tree / place).read_text()
    assert text.count(right) == 1
    (tree / place).write_text(text.replace(right, wrong))
    return f"{project.tree}{tree}"
