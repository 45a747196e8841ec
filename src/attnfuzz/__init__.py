"""attnfuzz: a correctness fuzzer for the attention kernels of LLM serving engines.

The names in `__all__` are the public interface. They are imported on first use: the pytest plugin imports this package
in every test run of an environment, and torch takes a second.

    @given(cases("trtllm_mha"))
    def test_attention(case):
        check(case)
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from hypothesis.strategies import SearchStrategy

    from attnfuzz.harness.backends.variation import Launching, Variation
    from attnfuzz.harness.families.simple import SimpleFamily
    from attnfuzz.harness.pytest.plugin import AttnFuzz
    from attnfuzz.harness.verdict.failures import Failure, Kind, Observation
    from attnfuzz.kernels.cache_writes.rotation import Rotation
    from attnfuzz.kernels.cache_writes.stored import Conversion
    from attnfuzz.kernels.cache_writes.writer_backend import CopyBackend, GatherBackend, RotationBackend, WriterBackend
    from attnfuzz.kernels.functions.function_backend import FunctionBackend
    from attnfuzz.kernels.interface.backend import (
        Attended,
        Backend,
        Bench,
        Fill,
        Graph,
        Launcher,
        Memory,
        Op,
        Output,
        Session,
        Unsupported,
        WrittenCache,
        WrittenTensor,
    )
    from attnfuzz.kernels.interface.compared import ComparedLists, ComparedResult, ComparedTensor
    from attnfuzz.reference.arguments import ArgumentForm, ArgumentRule, ArgumentStanding, EarlierUse
    from attnfuzz.reference.bucket import Bucket
    from attnfuzz.reference.capability import Capability
    from attnfuzz.reference.case import (
        BlockScales,
        Case,
        Granularity,
        KvView,
        Launch,
        Magnitude,
        Mask,
        Mode,
        OtherGroup,
        PaddedSlot,
        QueryView,
        Request,
        Step,
        Tombstone,
    )
    from attnfuzz.reference.contract import Contract, Holds, LseBase
    from attnfuzz.reference.device import Device
    from attnfuzz.reference.dtypes import DType
    from attnfuzz.reference.edges import Edge, EdgeRule
    from attnfuzz.reference.geometry import Geometry, KvLayout
    from attnfuzz.reference.noise import NoiseModel
    from attnfuzz.reference.relation import Relation
    from attnfuzz.reference.rope import Pairing, Rope, RopeScaling, RotaryShare
    from attnfuzz.reference.simple_case import SimpleCase
    from attnfuzz.reference.user_error import UserError

__version__ = "0.2.0"
__all__ = [
    "ArgumentForm",
    "ArgumentRule",
    "ArgumentStanding",
    "Attended",
    "AttnFuzz",
    "Backend",
    "Bench",
    "BlockScales",
    "Bucket",
    "Capability",
    "Case",
    "ComparedLists",
    "ComparedResult",
    "ComparedTensor",
    "Contract",
    "Conversion",
    "CopyBackend",
    "DType",
    "Device",
    "EarlierUse",
    "Edge",
    "EdgeRule",
    "Failure",
    "Fill",
    "FunctionBackend",
    "GatherBackend",
    "Geometry",
    "Granularity",
    "Graph",
    "Holds",
    "Kind",
    "KvLayout",
    "KvView",
    "Launch",
    "Launcher",
    "Launching",
    "LseBase",
    "Magnitude",
    "Mask",
    "Memory",
    "Mode",
    "NoiseModel",
    "Observation",
    "Op",
    "OtherGroup",
    "Output",
    "PaddedSlot",
    "Pairing",
    "QueryView",
    "Relation",
    "Request",
    "Rope",
    "RopeScaling",
    "RotaryShare",
    "Rotation",
    "RotationBackend",
    "Session",
    "SimpleCase",
    "SimpleFamily",
    "Step",
    "Tombstone",
    "Unsupported",
    "UserError",
    "Variation",
    "WriterBackend",
    "WrittenCache",
    "WrittenTensor",
    "cases",
    "check",
]

_MODULES = {
    "harness.backends.variation": ("Launching", "Variation"),
    "harness.families.simple": ("SimpleFamily",),
    "harness.pytest.plugin": ("AttnFuzz",),
    "harness.verdict.failures": ("Failure", "Kind", "Observation"),
    "kernels.interface.backend": (
        "Attended", "Backend", "Bench", "Fill", "Graph", "Launcher", "Memory", "Op", "Output", "Session", "Unsupported",
        "WrittenCache", "WrittenTensor",
    ),
    "kernels.interface.compared": ("ComparedLists", "ComparedResult", "ComparedTensor"),
    "kernels.cache_writes.rotation": ("Rotation",),
    "kernels.cache_writes.stored": ("Conversion",),
    "kernels.cache_writes.writer_backend": ("CopyBackend", "GatherBackend", "RotationBackend", "WriterBackend"),
    "kernels.functions.function_backend": ("FunctionBackend",),
    "reference.arguments": ("ArgumentForm", "ArgumentRule", "EarlierUse", "ArgumentStanding"),
    "reference.bucket": ("Bucket",),
    "reference.capability": ("Capability",),
    "reference.case": (
        "BlockScales",
        "Case",
        "Granularity",
        "KvView",
        "Launch",
        "Magnitude",
        "Mask",
        "Mode",
        "OtherGroup",
        "PaddedSlot",
        "QueryView",
        "Request",
        "Step",
        "Tombstone",
    ),
    "reference.contract": ("Contract", "Holds", "LseBase"),
    "reference.device": ("Device",),
    "reference.dtypes": ("DType",),
    "reference.edges": ("Edge", "EdgeRule"),
    "reference.geometry": ("Geometry", "KvLayout"),
    "reference.noise": ("NoiseModel",),
    "reference.relation": ("Relation",),
    "reference.rope": ("Pairing", "Rope", "RopeScaling", "RotaryShare"),
    "reference.simple_case": ("SimpleCase",),
    "reference.user_error": ("UserError",),
}  # fmt: skip
"""The public names of each module, relative to this package."""


def __getattr__(name: str) -> Any:
    """Import a public name. Raises AttributeError for any other."""
    for module, names in _MODULES.items():
        if name in names:
            found = getattr(import_module(f"{__name__}.{module}"), name)
            globals()[name] = found
            return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    """List the public names, imported or not."""
    return sorted({*globals(), *__all__})


def cases(backend: str) -> "SearchStrategy[Case]":
    """Return a Hypothesis strategy for cases that the backend called `backend` supports.

    Drawing waits for the workers to start. Neither that nor the time that `check` takes counts towards a test's
    deadline.
    """
    from hypothesis import strategies as st

    from attnfuzz.harness.workers.system import require_linux

    require_linux()
    from attnfuzz.harness.backends.registry import resolve
    from attnfuzz.harness.sandbox.check import shared_runner
    from attnfuzz.strategies.cases import cases as draw_cases

    capability = resolve(backend).capability

    def started() -> "SearchStrategy[Case]":
        shared_runner().start(backend)
        return draw_cases(capability, backend)

    return st.deferred(started)


def check(case: "Case") -> None:
    """Run a case in a worker that may die and judge it. Raise a `Failure` that says what failed.

    Within a Hypothesis test, the error is about the smallest case that fails for the same cause.
    """
    __tracebackhide__ = True
    from attnfuzz.harness.workers.system import require_linux

    require_linux()
    from attnfuzz.harness.pytest.in_hypothesis import untimed

    with untimed():
        # Importing takes a second at the first case.
        from attnfuzz.harness.pytest.check import check as check_case

        check_case(case)
