"""Calls with arguments in other forms: each reaches the kernel, refusals lead to a plain call, and wrong ones show."""

from pathlib import Path
from typing import Any

import pytest
import torch
from msgspec.structs import replace
from passed_arguments import PASSED
from plain_attention import attend_call
from small_cases import drawn, lighter, passed, run

from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.arguments.edges import UNSAID_EDGES
from attnfuzz.kernels.arguments.form_tables import AT_LAUNCH, PLACED
from attnfuzz.kernels.functions.function_backend import FunctionBackend
from attnfuzz.reference.arguments import TACTICS, ArgumentForm, ArgumentRule, ArgumentStanding
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Launch, Mode, Request, Scales, Step
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.geometry import Geometry, KvLayout
from attnfuzz.reference.validity import ImpossibleCase, validate

HERE = f"{Path(__file__)}:"
F = ArgumentForm


def attend(
    *,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    out: torch.Tensor | None = None,
    lse: torch.Tensor | None = None,
    scale: float | torch.Tensor | None = None,
    window_left: int = -1,
    kv_layout: str = "HND",
    **others: Any,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention by torch, for which dtypes and strides of its arguments do not matter."""
    PASSED["table in int64"] += block_tables.dtype is torch.int64
    PASSED["lengths apart"] += len(seq_lens) > 1 and seq_lens.stride(0) > 1
    PASSED["heads apart"] += k_cache.stride(-2) > k_cache.shape[-1] == v_cache.stride(-2)
    PASSED["no output"] += out is None
    PASSED["no scale"] += scale is None
    PASSED["a tensor for a scale"] += isinstance(scale, torch.Tensor)
    placed: dict[str, Any] = {"k_cache": k_cache, "v_cache": v_cache, "block_tables": block_tables}
    number = query.shape[-1] ** -0.5 if scale is None else float(scale)
    answer = attend_call(
        query=query, **placed, seq_lens=seq_lens, scale=number, window_left=window_left, kv_layout=kv_layout, **others
    )
    made = torch.empty_like(answer.out, dtype=query.dtype) if out is None else out
    made_lse = torch.empty_like(answer.lse, dtype=torch.float32) if lse is None else lse
    made[: len(answer.out)] = answer.out.to(made.dtype)
    made_lse[: len(answer.lse)] = answer.lse.float()
    return made, made_lse


def read_ids_as_32_bits(*, block_tables: torch.Tensor, **arguments: Any) -> Any:
    """As a kernel that takes a pointer to ids for one to int32."""
    width = block_tables.shape[1]
    return attend(block_tables=block_tables.contiguous().view(torch.int32)[:, :width], **arguments)


def write_densely(*, out: torch.Tensor, **arguments: Any) -> None:
    """As a kernel that does not ask for the strides of its output."""
    made, _ = attend(**arguments)
    out.as_strided(made.shape, made.stride()).copy_(made)


def require_int32(*, block_tables: torch.Tensor, **arguments: Any) -> Any:
    """As a function that checks its arguments."""
    if block_tables.dtype is not torch.int32:
        raise TypeError("block_tables must be int32")
    return attend(block_tables=block_tables, **arguments)


def require_a_number(*, scale: float | torch.Tensor | None = None, **arguments: Any) -> Any:
    """As a function that checks ids, and passes its scale on to one that takes no tensor."""
    if isinstance(scale, torch.Tensor):
        raise TypeError("expected a number")
    return require_int32(scale=scale, **arguments)


def break_at_a_refusal(*, block_tables: torch.Tensor, **arguments: Any) -> Any:
    """As a function that is left in another state by an argument that it refuses."""
    if block_tables.dtype is not torch.int32:
        PASSED["refused"] += 1
        raise TypeError("block_tables must be int32")
    if PASSED["refused"]:
        arguments["scale"] = 2 * arguments["scale"]
    return attend(block_tables=block_tables, **arguments)


def require_dense_lengths(*, seq_lens: torch.Tensor, **arguments: Any) -> Any:
    """As a function that checks strides, of which those of axes with one entry do not matter."""
    if not seq_lens.is_contiguous():
        raise ValueError("seq_lens must be contiguous")
    return attend(seq_lens=seq_lens, **arguments)


def rules(standing: ArgumentStanding, *forms: ArgumentForm) -> tuple[ArgumentRule, ...]:
    source = "" if standing is ArgumentStanding.UNSAID else "a docstring"
    return tuple(ArgumentRule(form, standing, source) for form in forms)


CAN = Capability(modes=Mode.of_kernels(), layouts=tuple(KvLayout), windows=True)
TENSORS = (F.TABLE_INT64, F.LENGTHS_GAPS, F.LENGTHS_INT64, F.KEYS_GAPS, F.VALUES_GAPS, F.OUT_GAPS, F.OUT_HEADS_FIRST)
OTHERS = (F.OUT_RETURNED, F.LSE_RETURNED, F.LSE_HEADS_FIRST, F.SCALE_DEFAULT, F.SCALE_TENSOR, F.WINDOW_DEFAULT)


def made(function: Any, standing: ArgumentStanding, *forms: ArgumentForm) -> FunctionBackend:
    capability = replace(CAN, arguments=rules(standing, *forms))
    return FunctionBackend(function, capability=capability, contract=Contract(lse=LseBase.E))


RIGHT = made(attend, ArgumentStanding.PROMISED, *TENSORS, *OTHERS)
IDS = made(read_ids_as_32_bits, ArgumentStanding.UNSAID, F.TABLE_INT64)
DENSE = made(write_densely, ArgumentStanding.UNSAID, F.OUT_GAPS, F.OUT_HEADS_FIRST)
REFUSES_UNSAID = made(require_int32, ArgumentStanding.UNSAID, F.TABLE_INT64)
DENSE_LENGTHS = made(require_dense_lengths, ArgumentStanding.REFUSED, F.LENGTHS_GAPS)
REFUSES_PROMISED = made(require_int32, ArgumentStanding.PROMISED, F.TABLE_INT64)
ACCEPTS_REFUSED = made(attend, ArgumentStanding.REFUSED, F.TABLE_INT64)
REFUSES_BOTH = FunctionBackend(
    require_a_number,
    capability=replace(
        CAN,
        arguments=(
            *rules(ArgumentStanding.UNSAID, F.TABLE_INT64),
            *rules(ArgumentStanding.PROMISED, F.SCALE_TENSOR),
        ),
        edges=UNSAID_EDGES,
    ),
    contract=Contract(lse=LseBase.E),
)
BREAKS = made(break_at_a_refusal, ArgumentStanding.UNSAID, F.TABLE_INT64)


def kinds_of(backend: str, count: int = 25) -> dict[bool, set[str]]:
    """The kinds of failures of drawn cases, with forms and without."""
    found: dict[bool, set[str]] = {True: set(), False: set()}
    for case in lighter(drawn(f"{HERE}{backend}", count)):
        PASSED.clear()
        found[bool(case.arguments)] |= {each.kind.value for each in run(case).observations}
    return found


@pytest.mark.slow
def test_a_function_that_takes_every_form_passes_and_gets_each() -> None:
    PASSED.clear()
    for case in filter(lambda each: each.arguments, drawn(f"{HERE}RIGHT", 40)):
        passed(case)
    assert len(PASSED) == 6
    assert all(PASSED.values()), PASSED


@pytest.mark.slow
@pytest.mark.parametrize("backend", ["IDS", "DENSE"])
def test_a_form_that_is_taken_wrongly_fails_and_only_there(backend: str) -> None:
    found = kinds_of(backend)
    assert found[True]
    assert not found[False]


@pytest.mark.slow
def test_an_undocumented_form_may_be_refused() -> None:
    assert kinds_of("REFUSES_UNSAID") == {True: set(), False: set()}


@pytest.mark.slow
def test_a_form_that_is_promised_may_not_be_refused() -> None:
    assert kinds_of("REFUSES_PROMISED") == {True: {Kind.UNEXPECTED_REJECTION}, False: set()}


@pytest.mark.slow
def test_a_promise_is_not_hidden_by_a_form_that_may_be_refused() -> None:
    step = Step(mode=Mode.DECODE, requests=(Request(0, 1, 3),), padded_tokens=1, tokens_per_request=1)
    layer = Geometry(q_heads=1, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=4)
    both = Case(backend=f"{HERE}REFUSES_BOTH", geometry=layer, steps=(step,), arguments=(F.TABLE_INT64, F.SCALE_TENSOR))
    assert {each.kind for each in run(both).observations} == {Kind.UNEXPECTED_REJECTION}
    assert run(replace(both, arguments=(F.TABLE_INT64,))).observations == ()


@pytest.mark.parametrize("arguments", [(F.SCALE_TENSOR,), (F.TABLE_INT64, F.SCALE_TENSOR)])
def test_a_promise_is_not_hidden_by_an_edge(arguments: tuple[ArgumentForm, ...]) -> None:
    step = Step(mode=Mode.DECODE, requests=(Request(0, 1, 3),), padded_tokens=1, tokens_per_request=1)
    layer = Geometry(q_heads=1, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=4)
    edge = Case(
        backend=f"{HERE}REFUSES_BOTH", geometry=layer, steps=(step,), arguments=arguments, scales=Scales(softmax=0.0)
    )
    assert {each.kind for each in run(edge).observations} == {Kind.UNEXPECTED_REJECTION}


@pytest.mark.slow
def test_a_form_that_is_refused_must_raise() -> None:
    assert kinds_of("ACCEPTS_REFUSED") == {True: {Kind.RAISED}, False: set()}


@pytest.mark.parametrize("requests", [1, 2])
def test_a_form_that_makes_no_difference_need_not_be_refused(requests: int) -> None:
    batch = tuple(Request(slot=slot, q_len=1, kv_len=3) for slot in range(requests))
    step = Step(mode=Mode.DECODE, requests=batch, padded_tokens=requests, tokens_per_request=1)
    layer = Geometry(q_heads=1, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=4, kv_layout=KvLayout.NHD)
    case = Case(backend=f"{HERE}DENSE_LENGTHS", geometry=layer, steps=(step,), arguments=(F.LENGTHS_GAPS,))
    assert run(case).observations == ()


@pytest.mark.slow
def test_the_plain_call_must_work_after_a_refusal() -> None:
    found = kinds_of("BREAKS")
    assert Kind.OUTPUT_MISMATCH in found[True]
    assert not found[False]


def test_every_form_is_passed_by_memory_by_launches_or_as_an_option() -> None:
    options = {F.WINDOW_AT_RUN, F.LSE_BASE_E, F.DTYPES_BY_NAME, F.OUT_DTYPE_GIVEN, F.KEY_LENGTHS_GIVEN, F.BLOCKING}
    options |= {F.SPLIT_DISABLED, F.SPLIT_OF_A_PAGE, F.DEPENDENT_LAUNCH, F.NO_DEPENDENT_LAUNCH}
    options |= {F.OFFSETS_IN_TOKENS, F.CALL_WITHOUT_QUERIES, *TACTICS}
    assert {*PLACED, *AT_LAUNCH, *options, F.OUT_RETURNED, F.LSE_RETURNED} == set(ArgumentForm)


def plain() -> Case:
    return next(case for case in drawn(f"{HERE}REFUSES_UNSAID", 20) if case.steps[0].launch is Launch.EAGER)


@pytest.mark.slow
@pytest.mark.parametrize(
    "arguments",
    [
        (F.LENGTHS_GAPS, F.TABLE_INT64),
        (F.TABLE_INT64, F.TABLE_INT64),
        (F.LENGTHS_INT64, F.LENGTHS_GAPS),
        (F.SINKS_16_BITS,),
    ],
)
def test_forms_are_in_order_one_for_each_argument_and_possible(arguments: tuple[ArgumentForm, ...]) -> None:
    with pytest.raises(ImpossibleCase, match="arguments"):
        validate(replace(plain(), arguments=arguments))


def test_a_rule_has_a_source_unless_the_form_is_undocumented() -> None:
    with pytest.raises(ValueError, match="give a source"):
        ArgumentRule(F.TABLE_INT64, ArgumentStanding.PROMISED)
    with pytest.raises(ValueError, match="give a source"):
        ArgumentRule(F.TABLE_INT64, ArgumentStanding.UNSAID, "a docstring")


@pytest.mark.parametrize("form", [F.SPLIT_DISABLED, F.SOFT_CAP_DEFAULT, F.LSE_RETURNED])
def test_a_function_without_such_an_argument_is_refused(form: ArgumentForm) -> None:
    with pytest.raises(ValueError, match=f"attend: no argument of the function has a form '{form}': leave it out"):
        FunctionBackend(attend, capability=replace(CAN, arguments=rules(ArgumentStanding.UNSAID, form)))
