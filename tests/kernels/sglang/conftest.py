"""What several tests of releases share."""

from collections.abc import Iterator
from pathlib import Path

import pytest
from loaded_tree import LoadedTree, loaded_tree


@pytest.fixture
def loaded(tmp_path: Path) -> Iterator[LoadedTree]:
    """The fake tree, loaded."""
    with loaded_tree(tmp_path / "tree") as tree:
        yield tree
