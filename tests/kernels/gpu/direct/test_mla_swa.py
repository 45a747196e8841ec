"""FlashInfer's latent decode in a sliding window: calls, their sizes, and the tactics of its autotuner."""

import importlib
from typing import Any

import pytest

pytest.importorskip("flashinfer.mla._swa", reason="FlashInfer has it since 0.7.4")
import mla_swa_on_cpu
from repetition import examples
from small_cases import drawn, lighter, run, step

from attnfuzz.harness.export.adapters import Adapters
from attnfuzz.kernels.gpu.direct import mla_swa
from attnfuzz.kernels.gpu.direct.mla_swa import workspace
from attnfuzz.reference.arguments import TACTICS, ArgumentForm
from attnfuzz.reference.case import Case, Mode

SWA: Any = importlib.import_module("flashinfer.mla._swa")
GEOMETRY = mla_swa_on_cpu.BACKEND.capability.buckets[0].simplest


def case(*lengths: tuple[int, int], arguments: tuple[ArgumentForm, ...] = ()) -> Case:
    decode = step(Mode.DECODE, *lengths, stride=1)
    return Case(backend=mla_swa_on_cpu.NAME, geometry=GEOMETRY, steps=(decode,), arguments=arguments)


def calls_of(of: Case) -> list[tuple[int, int, int | None]]:
    mla_swa_on_cpu.CALLS.clear()
    verdict = run(of, mla_swa_on_cpu.BACKEND)
    assert verdict.observations == ()
    assert verdict.unsupported is None
    return [*mla_swa_on_cpu.CALLS]


@pytest.mark.slow
@examples(8, 60)
def test_drawn_cases_pass(count: int) -> None:
    modes = set()
    for each in lighter(drawn(mla_swa_on_cpu.NAME, count)):
        verdict = run(each)
        assert verdict.observations == ()
        assert verdict.unsupported is None
        modes |= {each.mode for each in each.steps}
    assert modes == {Mode.DECODE, Mode.TARGET_VERIFY}


def test_a_batch_is_computed_in_calls_of_the_sizes_that_the_function_takes() -> None:
    assert calls_of(case(*[(1, 3)] * 7)) == [(4, 1, None), (2, 1, None), (1, 1, None)]


@pytest.mark.parametrize(("tactic", "form"), [*enumerate(TACTICS)])
def test_each_tactic_is_forced_by_a_form(tactic: int, form: ArgumentForm) -> None:
    assert calls_of(case((1, 700), arguments=(form,))) == [(1, 1, tactic)]


def test_the_workspace_is_that_of_the_installed_release() -> None:
    for batch, stride in ((1, 1), (4, 4), (16, 4)):
        assert workspace(batch, stride, 64, 1024).total == SWA.get_mla_swa_workspace_size_bytes(batch, stride)


def test_a_forced_tactic_is_in_the_place_of_the_autotuner_s_choice_for_one_call(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    tuner = importlib.import_module("flashinfer.autotuner").AutoTuner.get()
    chosen: list[Any] = []

    def call(*_: Any, **__: Any) -> str:
        chosen.append(tuner.choose_one("mla_swa_sm90", ["the runner"], None, []))
        return "the output"

    monkeypatch.setattr(mla_swa, "call", call)
    assert mla_swa.decode(tactic=3) == "the output"
    assert chosen == [("the runner", 3)]
    assert "choose_one" not in vars(tuner)


def test_there_are_as_many_tactics_as_the_function_has() -> None:
    assert SWA._Runner(1.0, 512).get_valid_tactics([], None) == [*range(len(TACTICS))]


def test_a_script_forces_the_tactic_as_the_backend_does() -> None:
    adapters = Adapters()
    assert adapters.add(mla_swa.DECODE.name, mla_swa.DECODE.function) == "decode"
    compile(adapters.source, "script", "exec")
    assert "tuner.choose_one = " in adapters.source
