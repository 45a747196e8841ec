"""What a release is told of a Hopper GPU: it was imported as if there were none, and remembers that.

By that it also goes without sgl_kernel, which is compiled for a server: torch, Triton or a kernel that it compiles for
itself write the cache then.
"""

from packaging.version import Version

from attnfuzz.kernels.sglang.adaptations.changes import ChangedName
from attnfuzz.kernels.sglang.adaptations.spans import span


def _yes() -> bool:
    return True


_HOPPER_CHANGES = (
    # Asked through runtime_context.py (0.5.23: line 1831), which looks for it by this name each time.
    ChangedName(
        "utils.common",
        "is_sm90_supported",
        _yes,
        span("0.5.19"),
        "layers/attention/trtllm_mha_backend.py:233",
        "XQA and fmha_v2 are what runs on this GPU",
    ),
)


def hopper_changes_in(version: Version) -> tuple[ChangedName, ...]:
    """What is changed in a version that runs on a Hopper GPU, beside what always is."""
    return tuple(change for change in _HOPPER_CHANGES if version in change.versions)
