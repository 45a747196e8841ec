"""Sessions on a release, whichever device it runs on."""

from attnfuzz.kernels.backend import Bench, Session
from attnfuzz.kernels.sglang.kernels_below import KernelsBelow
from attnfuzz.kernels.sglang.release import Release
from attnfuzz.reference.case import Case


def open_session(release: Release, kernels: KernelsBelow, case: Case, bench: Bench) -> Session:
    """A session on one case. Imports the release, if this process has not. Raises ReleaseError, Unsupported."""
    # Their imports are those of a release: only a process that runs one needs what they need.
    from attnfuzz.kernels.sglang.loader import load  # noqa: PLC0415
    from attnfuzz.kernels.sglang.mha import SglangMhaSession  # noqa: PLC0415
    from attnfuzz.kernels.sglang.mla import SglangMlaSession  # noqa: PLC0415

    session = SglangMlaSession if case.geometry.latent else SglangMhaSession
    return session(load(release, hopper=bench.device.type == "cuda"), kernels, case, bench)
