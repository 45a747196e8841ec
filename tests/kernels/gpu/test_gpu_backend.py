"""Which cases a backend on a GPU refuses because a module of theirs can't be compiled."""

from collections.abc import Callable
from typing import Any

import pytest

from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.gpu import modules
from attnfuzz.kernels.gpu.build_record import Module
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.interface.backend import Unsupported
from attnfuzz.reference.bucket import Bucket
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout
from attnfuzz.reference.noise import NoiseModel

SESSION: Any = object()
NO_BENCH: Any = None


def bucket(*modes: Mode) -> Bucket:
    return Bucket(
        dtype=DType.BFLOAT16,
        kv_dtype=DType.BFLOAT16,
        head_dim_qk=64,
        head_dim_vo=64,
        heads=((2, 1),),
        page_sizes=(16,),
        layouts=(KvLayout.HND,),
        modes=modes,
    )


DECODES, EXTENDS, DOES_BOTH = bucket(Mode.DECODE), bucket(Mode.EXTEND), bucket()


def backend(*buckets: Bucket) -> GpuBackend:
    """One whose buckets need a module each, called after their modes."""
    return GpuBackend(
        name="compiled",
        archs=frozenset(Arch),
        capability=Capability(device=Device.CUDA, buckets=buckets, modes=(Mode.DECODE, Mode.EXTEND)),
        contract=Contract(),
        session=lambda *_: SESSION,
        kernels=(),
        modules_of=lambda bucket: (Module(" ".join(bucket.modes) or "both", lambda: None),),
        theoretical=lambda _: NoiseModel.unknown_kernel(),
    )


def case(*modes: Mode) -> Case:
    steps = (
        Step(mode=mode, requests=(Request(0, 1, 5),), padded_tokens=1, tokens_per_request=int(mode is Mode.DECODE))
        for mode in modes
    )
    return Case(backend="compiled", geometry=DOES_BOTH.simplest, steps=tuple(steps))


@pytest.fixture
def rejects(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Have a module of that name rejected."""

    def reject(name: str) -> None:
        monkeypatch.setattr(modules, "rejected", lambda wanted: {m.name: "no" for m in wanted if m.name == name})

    return reject


def test_a_case_that_needs_a_rejected_module_is_unsupported(rejects: Callable[[str], None]) -> None:
    rejects("extend")
    with pytest.raises(Unsupported, match="extend does not compile: no"):
        backend(DECODES, EXTENDS).open(case(Mode.DECODE, Mode.EXTEND), NO_BENCH)


def test_a_module_that_no_step_needs_may_be_rejected(rejects: Callable[[str], None]) -> None:
    rejects("extend")
    assert backend(DECODES, EXTENDS).open(case(Mode.DECODE), NO_BENCH) is SESSION


def test_another_bucket_stands_in_for_one_that_is_rejected(rejects: Callable[[str], None]) -> None:
    rejects("extend")
    assert backend(EXTENDS, DOES_BOTH).open(case(Mode.EXTEND), NO_BENCH) is SESSION
