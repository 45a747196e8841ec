"""Parts of an examination that are measured in worker processes, whose deaths are the subject."""

from pathlib import Path

import pytest

from attnfuzz.harness.doctor import strays as module
from attnfuzz.harness.doctor.bindings import bindings
from attnfuzz.harness.doctor.measurement import Mark
from attnfuzz.harness.doctor.strays import STRAYS, strays
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.reference.case import Guard
from attnfuzz.reference.device import Device

pytestmark = pytest.mark.slow

REFUSES = """
import torch
from attnfuzz import Capability, FunctionBackend
from attnfuzz.reference.case import Mode

def refuses(*, out, max_kv_len=None, **_):
    if max_kv_len is not None:
        raise ValueError("max_kv_len is not supported")
    out.zero_()

def raises(*, out, **_):
    raise ValueError("never")

DECODES = Capability(modes=(Mode.DECODE,))
REFUSES, RAISES = FunctionBackend(refuses, DECODES), FunctionBackend(raises, DECODES)
"""


def test_each_planted_access_is_detected_and_a_harmless_one_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    harmless = replace_offset(STRAYS[0])
    monkeypatch.setattr(module, "STRAYS", (*STRAYS, harmless))
    (row,) = strays(Device.CPU)
    assert row.outcome is Mark.FAILS
    assert row.result == f"{len(STRAYS)} of {len(STRAYS) + 1} planted accesses detected; harmless: not detected"


def replace_offset(planted: module.PlantedStray) -> module.PlantedStray:
    """An access within the tensor."""
    return planted._replace(words="harmless", guard=Guard.RIGHT, offset=-2)


def test_an_argument_is_refused_if_the_call_goes_through_without_it(tmp_path: Path) -> None:
    file = tmp_path / "mine.py"
    file.write_text(REFUSES)
    with Runner() as runner:
        (refused,) = bindings(f"{file}:REFUSES", runner)
        (raised,) = bindings(f"{file}:RAISES", runner)
        rows = list(bindings("torch_sdpa", runner))
    assert refused.outcome is raised.outcome is Mark.FAILS
    assert refused.result.endswith("max_kv_len is not supported; goes through without max_kv_len")
    assert raised.result.endswith("never; no argument is refused by itself")
    assert {row.outcome for row in rows} == {Mark.WORKS}
