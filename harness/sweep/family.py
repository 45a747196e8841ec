"""A family: the releases of one project, each of which is a backend of each of some kinds."""

from collections.abc import Sequence
from typing import Protocol

from packaging.version import Version


class Family(Protocol):
    """What a sweep knows of a project.

    `package` is its name on the command line and for pip, `kinds` are the parts of a release that can be run, each
    named as our own backend that does the same (trtllm_mha). A release is a version, or "@" and the path of a tree.
    """

    package: str
    kinds: tuple[str, ...]

    def released(self) -> Sequence[Version]:
        """All versions that can be had, the oldest first. Raises RuntimeError with a line that says why not."""
        ...

    def backend(self, release: str, kind: str) -> str:
        """The name of the backend that is this kind of a release."""
        ...

    def kind_of(self, backend: str) -> str | None:
        """The kind of a backend, of this family or of ours; None if no release has anything like it."""
        ...
