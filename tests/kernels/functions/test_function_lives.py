"""Earlier uses of a function: calls with other arguments, and tensors that held another batch."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from plain_attention import attend_call
from small_cases import HEADS, run, step

from attnfuzz import Capability, EarlierUse, FunctionBackend, Mask, Mode
from attnfuzz.harness.backends.registry import load
from attnfuzz.kernels.functions.function_lives import lives_of
from attnfuzz.reference.case import Case
from attnfuzz.reference.geometry import KvLayout

U = EarlierUse
HERE = Path(__file__)
EXAMPLE = HERE.parents[3] / "docs" / "examples" / "my_planner.py"
KEPT: dict[str, Any] = {}
"""The argument that the function keeps, by name."""
GIVEN: list[dict[str, Any]] = []
"""The arguments of each call."""


def attend(*, out: torch.Tensor, seq_lens: torch.Tensor, life: tuple[EarlierUse, ...], **others: Any) -> None:
    """Attention, in which KEPT arguments are those of the first call."""
    tensors = ("query", "k_cache", "v_cache", "block_tables", "cum_seq_lens_q")
    numbers = {name: value for name, value in others.items() if name not in tensors}
    GIVEN.append({**numbers, "life": life, "seq_lens": seq_lens.tolist()})
    for name, first in KEPT.items():
        KEPT[name] = numbers[name] if first is None else first
    answer = attend_call(seq_lens=seq_lens, **others | {name: each for name, each in KEPT.items() if each is not None})
    out[: len(answer.out)] = answer.out.to(out.dtype)


CAPABILITY = Capability(
    modes=Mode.of_kernels(),
    layouts=(KvLayout.NHD,),
    windows=True,
    soft_cap=True,
    masks=tuple(Mask),
    windowed_masks=tuple(Mask),
)
USES = lives_of(CAPABILITY, {"mask", "window_left", "soft_cap"})
LIVING = FunctionBackend(attend, capability=replace(CAPABILITY, earlier_uses=USES))
GEOMETRY = replace(HEADS, kv_layout=KvLayout.NHD)
STEPS = (step(Mode.EXTEND, (3, 20), (2, 9)),)


def case_of(*uses: EarlierUse) -> Case:
    return Case(backend=f"{HERE}:LIVING", geometry=GEOMETRY, steps=STEPS, life=uses)


@pytest.fixture(autouse=True)
def _forget() -> None:
    living = load(f"{HERE}:LIVING")
    of_calls = living.function.__globals__  # type: ignore[attr-defined] # of this file, imported once more
    globals().update(KEPT=of_calls["KEPT"], GIVEN=of_calls["GIVEN"])
    KEPT.clear()
    GIVEN.clear()


def test_a_function_that_keeps_nothing_passes_after_all_uses() -> None:
    assert run(case_of(*USES)).observations == ()
    assert len(GIVEN) == len(USES) + 1


@pytest.mark.parametrize(
    ("use", "name", "other"),
    [
        (U.PLANNED_OTHER_SCALE, "scale", 2 * 16**-0.5),
        (U.PLANNED_OTHER_WINDOW, "window_left", 5),
        (U.PLANNED_OTHER_SOFT_CAP, "soft_cap", 5.0),
        (U.PLANNED_FEWER, "seq_lens", [20]),
        (U.PLANNED_MORE, "seq_lens", [20, 9, 20, 9]),
        (U.REUSED_TENSORS, "seq_lens", [9, 20]),
        (U.RAN_BEFORE, "seq_lens", [20, 9]),
    ],
)
def test_an_earlier_call_has_another_argument(use: EarlierUse, name: str, other: object) -> None:
    assert run(case_of(use)).observations == ()
    before, judged = GIVEN
    assert before[name] == pytest.approx(other)
    assert judged["seq_lens"] == [20, 9]
    assert judged["life"] == (use,)


@pytest.mark.parametrize(
    ("name", "use"),
    [
        ("scale", U.PLANNED_OTHER_SCALE),
        ("window_left", U.PLANNED_OTHER_WINDOW),
        ("mask", U.PLANNED_CUSTOM_MASK),
    ],
)
def test_a_function_that_keeps_an_argument_fails_after_its_use(name: str, use: EarlierUse) -> None:
    KEPT[name] = None
    assert run(case_of()).observations == ()
    KEPT[name] = None
    assert run(case_of(use)).observations


def test_a_plan_kept_for_the_same_tensors_is_found() -> None:
    case = replace(case_of(U.REUSED_TENSORS), backend=f"{EXAMPLE}:PLANNER")
    assert run(case).observations
    assert run(replace(case, life=(U.PLANNED_FEWER, U.PLANNED_MORE))).observations == ()


def test_a_use_that_nothing_makes_is_refused() -> None:
    def plain(*, out: torch.Tensor, **_: Any) -> None:
        del out

    for use in (U.RESET, U.PLANNED_OTHER_WINDOW, U.OTHER_STREAM):
        with pytest.raises(ValueError, match=f"can't make the earlier use '{use}'"):
            FunctionBackend(plain, capability=Capability(modes=(Mode.DECODE,), earlier_uses=(use,)))

    def own(*, out: torch.Tensor, life: object, **_: Any) -> None:
        del out, life

    FunctionBackend(own, capability=Capability(modes=(Mode.DECODE,), earlier_uses=(U.RESET,)))
