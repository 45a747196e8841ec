"""SGLang's releases, as a sweep sees them."""

from collections.abc import Sequence

from packaging.version import Version

from attnfuzz.harness.backends.registry import fixed, is_file
from attnfuzz.kernels.sglang import naming
from attnfuzz.kernels.sglang.wheel import released


class SglangFamily:
    """The releases on PyPI that have these backends, and source trees."""

    package = "sglang"
    kinds: tuple[str, ...] = naming.KINDS

    def released(self) -> Sequence[Version]:
        """As pip tells. Raises ReleaseError."""
        return released()

    def backend(self, release: str, kind: str) -> str:
        """The name of the backend that is this kind of a release."""
        mark = "" if release.startswith("@") else "=="
        return f"{self.package}{mark}{release}:{kind}"

    def kind_of(self, backend: str) -> str | None:
        """That of a backend of any release, and of ours on either device, with what is planted in it or turned back."""
        if is_file(backend):
            return None
        kind = fixed(backend.rpartition(":")[2])
        return kind if kind in self.kinds else None
