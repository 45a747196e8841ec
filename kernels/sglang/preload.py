"""A release, imported before workers are forked, with the code that opens sessions: in no other process."""

from attnfuzz.kernels.cuda.visible import no_gpu_visible
from attnfuzz.kernels.releases.release import release_of
from attnfuzz.kernels.sglang import session
from attnfuzz.kernels.sglang.loader import load
from attnfuzz.kernels.sglang.project import SGLANG

__all__ = ["load_release", "load_release_for_hopper", "session"]


def load_release(name: str, *, hopper: bool = False) -> None:
    """Import the release called `name` (sglang==VERSION or sglang@PATH), before workers for it are forked.

    Importing it takes seconds. `hopper`: for workers that get a Hopper GPU. Raises ReleaseError.
    """
    # FlashInfer's module for compilation, which releases import, asks for the capability of each GPU that it sees.
    with no_gpu_visible():
        load(release_of(SGLANG, name), hopper=hopper)


def load_release_for_hopper(name: str) -> None:
    """Import a release for workers that get a Hopper GPU. Raises ReleaseError."""
    load_release(name, hopper=True)
