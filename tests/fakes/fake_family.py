"""Four releases of a fake project, each a backend with a defect: 1.0 and 1.1 have one that 1.2 mended, and 1.3 another.

Backends are `fake_family.py:R1_0`, in which a long KV goes wrong, and so on; `R1_9` can't be run.
"""

from collections.abc import Sequence

from defective_backend import Backend
from packaging.version import Version

KIND = "decoder"

_DEFECTS = {"1.0": "LONG_KV", "1.1": "LONG_KV", "1.2": "NONE", "1.3": "NAN_ROW", "1.9": "MISSING"}


class FakeFamily:
    """The releases, of which 1.9 is told to be released and has no backend that runs."""

    package = "fake"
    kinds: tuple[str, ...] = (KIND,)

    def released(self) -> Sequence[Version]:
        return [Version(text) for text in _DEFECTS]

    def backend(self, release: str, kind: str) -> str:
        return f"{__file__}:R{release.replace('.', '_')}"

    def kind_of(self, backend: str) -> str | None:
        return KIND if backend.startswith(__file__) else None


def __getattr__(name: str) -> Backend:
    release = name.removeprefix("R").replace("_", ".")
    if release not in _DEFECTS:
        raise AttributeError(name)
    return Backend(_DEFECTS[release])
