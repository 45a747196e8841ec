"""A function as a backend: what it is handed, and that the example in the documentation works and can fail."""

import ctypes
import functools
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import msgspec
import pytest
import torch
from plain_attention import attend_call
from recorder import Recorder
from repetition import examples
from small_cases import HEADS, drawn, lighter, passed, run, step

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels.functions.function_backend import FunctionBackend
from attnfuzz.kernels.interface.backend import Bench, Unsupported
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, KvView, Mask, Mode, QueryView, Scales
from attnfuzz.reference.contract import Contract, LseBase
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import KvLayout

EXAMPLE = Path(__file__).parents[3] / "docs" / "examples" / "my_backend.py"
NHD = msgspec.structs.replace(HEADS, kv_layout=KvLayout.NHD)
EVERYTHING = Capability(
    layouts=tuple(KvLayout),
    fp8_kv=True,
    unequal_head_dims=True,
    windows=True,
    sinks=True,
    soft_cap=True,
    kv_scales=True,
    padding=True,
    query_views=tuple(QueryView),
    kv_views=tuple(KvView),
)


def attend_with_everything(
    *,
    out: torch.Tensor,
    lse: torch.Tensor,
    window_left: int,
    sinks: torch.Tensor | None,
    soft_cap: float,
    v_scale: float,
    kv_layout: str,
    **others: Any,
) -> None:
    """Attention with every feature, in fp64; lse in base e."""
    options: dict[str, Any] = {"window_left": window_left, "sinks": sinks, "soft_cap": soft_cap, "v_scale": v_scale}
    answer = attend_call(kv_layout=kv_layout, **options, **others)
    out[: len(answer.out)], lse[: len(answer.lse)] = answer.out.to(out.dtype), answer.lse.float()


def reject(**_: Any) -> None:
    raise Unsupported("heads of 16")


FULL = FunctionBackend(attend_with_everything, capability=EVERYTHING, contract=Contract(lse=LseBase.E))
REJECTING = FunctionBackend(reject)
HERE = f"{__file__}:"


def arguments_of(backend: FunctionBackend, case: Case, bench_of: Callable[..., Bench]) -> dict[str, Any]:
    recorder = Recorder()
    backend.open(case, bench_of(case, recorder)).forward(0)
    return recorder.launches[0].arguments


def test_a_function_gets_only_supported_arguments(bench_of: Callable[..., Bench]) -> None:
    case = Case(backend="plain", geometry=NHD, steps=(step(Mode.EXTEND, (2, 9), (3, 3)),), max_len_slack=5)
    seen: dict[str, Any] = {}
    plain = FunctionBackend(lambda **arguments: seen.update(arguments))
    handed = arguments_of(plain, case, bench_of)
    assert set(handed) == {
        *("query", "k_cache", "v_cache", "block_tables", "seq_lens", "cum_seq_lens_q", "max_q_len", "max_kv_len"),
        *("scale", "out"),
    }
    assert handed["k_cache"].shape == (6, 4, 2, 16)
    assert handed["cum_seq_lens_q"].tolist() == [0, 2, 5]
    assert (handed["max_q_len"], handed["max_kv_len"], handed["scale"]) == (8, 14, 0.25)
    assert set(arguments_of(FULL, case, bench_of)) - set(handed) == {
        *("lse", "window_left", "sinks", "soft_cap", "v_scale", "kv_layout"),
    }


def set_elsewhere(out: torch.Tensor, right: torch.Tensor) -> None:
    out.set_(right)  # type: ignore[call-overload]


def data_elsewhere(out: torch.Tensor, right: torch.Tensor) -> None:
    out.data = right


def swapped(out: torch.Tensor, right: torch.Tensor) -> None:
    torch.utils.swap_tensors(out, right)


@pytest.mark.parametrize("point", [set_elsewhere, data_elsewhere, swapped], ids=lambda each: each.__name__)
def test_an_output_that_is_pointed_elsewhere_is_not_written(point: Callable[..., None]) -> None:
    def attend(*, out: torch.Tensor, **others: Any) -> None:
        right = torch.zeros_like(out)
        answer = attend_call(kv_layout="NHD", **others).out
        right[: len(answer)] = answer.to(out.dtype)
        point(out, right)

    case = Case(backend="elsewhere", geometry=NHD, steps=(step(Mode.EXTEND, (2, 9), (3, 3)),))
    (found, *_) = run(case, backend=FunctionBackend(attend)).observations
    assert (found.kind, found.place) == (Kind.UNWRITTEN, "out")


def test_a_function_may_change_the_shape_of_its_own_tensor_objects() -> None:
    def attend(*, out: torch.Tensor, query: torch.Tensor, seq_lens: torch.Tensor, **others: Any) -> None:
        answer = attend_call(kv_layout="NHD", query=query, seq_lens=seq_lens, **others).out
        out[: len(answer)] = answer.to(out.dtype)
        query.unsqueeze_(0).transpose_(1, 2)
        seq_lens.resize_(1)

    steps = (step(Mode.EXTEND, (2, 9), (3, 3)), step(Mode.DECODE, (1, 10), (1, 4)))
    passed(Case(backend="reshaping", geometry=NHD, steps=steps), backend=FunctionBackend(attend))


def test_a_parameter_by_name_is_handed_whatever_the_capability(bench_of: Callable[..., Bench]) -> None:
    def attend(*, out: torch.Tensor, lse: torch.Tensor, window_left: int, sinks: object, mode: str) -> None: ...

    case = Case(backend="named", geometry=NHD, steps=(step(Mode.EXTEND, (2, 9)),))
    handed = arguments_of(FunctionBackend(attend), case, bench_of)
    assert set(handed) == {"out", "lse", "window_left", "sinks", "mode"}
    assert (handed["window_left"], handed["sinks"], handed["mode"]) == (-1, None, "extend")


def test_a_feature_whose_argument_no_function_takes_is_refused() -> None:
    def attend(*, out: torch.Tensor) -> None: ...

    with pytest.raises(ValueError, match="does not take, window_left"):
        FunctionBackend(attend, capability=Capability(windows=True))
    FunctionBackend(
        attend,
        capability=Capability(windows=True),
        arrange=lambda *, window_left: {"reach": window_left},
    )


def test_arranged_tensors_lie_in_guarded_memory(bench_of: Callable[..., Bench]) -> None:
    def arrange(k_cache: torch.Tensor, seq_lens: torch.Tensor) -> dict[str, Any]:
        keys, transposed = k_cache.transpose(1, 2).contiguous(), k_cache.mT.contiguous().mT
        return {"keys": keys, "transposed": transposed, "k_cache": None, "none": keys[:0], "lengths": seq_lens, "n": 3}

    seen: dict[str, Any] = {}
    backend = FunctionBackend(lambda **arguments: seen.update(arguments), arrange=arrange)
    case = Case(backend="arranged", geometry=NHD, steps=(step(Mode.EXTEND, (2, 9), (3, 3)),))
    bench = bench_of(case)
    backend.open(case, bench).forward(0)
    assert seen["keys"].shape == (6, 2, 4, 16)
    assert bench.memory.holds(seen["keys"])
    assert bench.memory.holds(seen["transposed"])
    assert seen["transposed"].mT.is_contiguous()
    assert (seen["k_cache"], seen["n"], len(seen["none"])) == (None, 3, 0)
    assert seen["lengths"].tolist() == [9, 3]


def read_past_the_arranged_keys(*, out: torch.Tensor, keys: torch.Tensor) -> None:
    ctypes.string_at(keys.data_ptr() + keys.nbytes, 1)
    out.zero_()


STRAY = FunctionBackend(read_past_the_arranged_keys, arrange=lambda *, k_cache: {"keys": k_cache.nan_to_num()})


def write_into_the_arranged_keys(*, out: torch.Tensor, keys: torch.Tensor) -> None:
    out.zero_()
    keys.zero_()


SCRIBBLER = FunctionBackend(write_into_the_arranged_keys, arrange=lambda *, k_cache: {"keys": k_cache.nan_to_num()})
ALLOWED = FunctionBackend(
    write_into_the_arranged_keys, arrange=lambda *, k_cache: {"keys": k_cache.nan_to_num()}, writes=frozenset({"keys"})
)


def kinds_of(name: str) -> set[Kind]:
    case = Case(backend=f"{HERE}{name}", geometry=NHD, steps=(step(Mode.DECODE, (1, 9)),))
    return {observation.kind for observation in run(case).observations}


# Processes are needed: the access kills the one that makes it.
@pytest.mark.slow
def test_a_read_past_an_arranged_tensor_faults(runner: Runner) -> None:
    case = Case(backend=f"{HERE}STRAY", geometry=NHD, steps=(step(Mode.DECODE, (1, 9)),))
    (fault,) = runner.verdict(case).observations
    assert (fault.kind, fault.place) == (Kind.ILLEGAL_ACCESS, "keys")


def test_a_write_into_an_arranged_tensor_must_be_allowed() -> None:
    assert Kind.INPUT_MUTATED in kinds_of("SCRIBBLER")
    assert Kind.INPUT_MUTATED not in kinds_of("ALLOWED")


def test_scales_of_keys_and_values_are_handed_on(bench_of: Callable[..., Bench]) -> None:
    geometry = msgspec.structs.replace(NHD, kv_dtype=DType.FLOAT8_E4M3)
    steps = (step(Mode.DECODE, (1, 9)),)
    case = Case(backend="full", geometry=geometry, steps=steps, scales=Scales(softmax=2, k=3, v=5))
    handed = arguments_of(FULL, case, bench_of)
    assert (handed["scale"], handed["v_scale"]) == (1.5, 5)


def test_the_scale_of_keys_is_apart_for_a_function_that_names_it(bench_of: Callable[..., Bench]) -> None:
    def apart(*, out: torch.Tensor, scale: float, k_scale: float, v_scale: float, **_: object) -> None: ...

    geometry = msgspec.structs.replace(NHD, kv_dtype=DType.FLOAT8_E4M3)
    steps = (step(Mode.DECODE, (1, 9)),)
    case = Case(backend="apart", geometry=geometry, steps=steps, scales=Scales(softmax=2, k=3, v=5))
    handed = arguments_of(FunctionBackend(apart, Capability(fp8_kv=True, kv_scales=True)), case, bench_of)
    assert (handed["scale"], handed["k_scale"], handed["v_scale"]) == (0.5, 3, 5)


@pytest.mark.parametrize(
    ("dtype", "handed"), [(DType.FLOAT32, torch.float32), (DType.FLOAT16, torch.float16), (None, torch.bfloat16)]
)
def test_sinks_have_the_dtype_of_the_capability(
    dtype: DType | None, handed: torch.dtype, bench_of: Callable[..., Bench]
) -> None:
    backend = replace(FULL, capability=msgspec.structs.replace(EVERYTHING, sinks_dtype=dtype))
    geometry = msgspec.structs.replace(NHD, sinks=True, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16)
    case = Case(backend="full", geometry=geometry, steps=(step(Mode.DECODE, (1, 9)),))
    assert arguments_of(backend, case, bench_of)["sinks"].dtype is handed


SINKS_AS_QUERIES = replace(FULL, capability=msgspec.structs.replace(EVERYTHING, sinks_dtype=None))


def test_sinks_that_are_rounded_are_those_that_are_due() -> None:
    geometry = msgspec.structs.replace(NHD, sinks=True, dtype=DType.BFLOAT16, kv_dtype=DType.BFLOAT16)
    steps = (step(Mode.EXTEND, (2, 9), (3, 3), (1, 0)),)
    passed(Case(backend=f"{HERE}SINKS_AS_QUERIES", geometry=geometry, steps=steps))


@pytest.mark.slow
@examples(15, 200)
def test_a_function_with_every_feature_passes_drawn_cases(count: int) -> None:
    for case in lighter(drawn(f"{HERE}FULL", count)):
        passed(case)


def test_padded_rows_behind_the_plan_are_cleared() -> None:
    case = Case(backend=f"{HERE}FULL", geometry=NHD, steps=(step(Mode.DRAFT_EXTEND_V2, (2, 9), stride=2, rows=4),))
    assert not run(case).observations


@pytest.mark.parametrize(
    ("beyond", "words"),
    [
        ({"latent": True}, "neither latents nor graphs, set latent=False"),
        ({"graph_modes": (Mode.DECODE,)}, "neither latents nor graphs"),
        (
            {"modes": tuple(Mode)},
            r"can't run draft_decode, .*: leave it out of modes",
        ),
        ({"writes": True, "empty_kv": False, "kv_shorter_than_q": False}, "make a WriterBackend"),
        ({"schedules": True}, "only a server has schedules: leave it out of the capability"),
        ({"fp8_kv": True, "query_scales": True, "kept_queries": True}, "only a server has query_scales, kept_queries"),
        ({"shared_keys": (2,)}, "only a server has shared_keys"),
    ],
    ids=str,
)
def test_features_that_a_function_can_not_run_are_refused_at_once(beyond: dict[str, Any], words: str) -> None:
    with pytest.raises(ValueError, match=words):
        FunctionBackend(reject, capability=Capability(**beyond))


def test_fields_that_a_capability_does_not_give_are_as_without_a_capability() -> None:
    default = FunctionBackend(reject).capability
    for fields in ({}, {"modes": (Mode.DECODE,)}, {"windows": True}, {"page_sizes": (16,)}):
        given = Capability(**fields)
        differing = {name for name in default.__struct_fields__ if getattr(given, name) != getattr(default, name)}
        assert differing == set(fields)


def test_a_clear_rejection_makes_a_case_unsupported() -> None:
    verdict = run(Case(backend=f"{HERE}REJECTING", geometry=NHD, steps=(step(Mode.DECODE, (1, 9)),)))
    assert (verdict.unsupported, verdict.observations, verdict.rows) == ("heads of 16", (), 0)


@pytest.mark.slow
@examples(25, 150)
def test_the_example_passes_drawn_cases_without_an_lse(count: int) -> None:
    name = f"{EXAMPLE}:MINE"
    assert resolve(name).contract.lse is None
    for case in lighter(drawn(name, count)):
        verdict = passed(case)
        assert "T4" not in verdict.margins


PLANTED = {
    "the last key is dropped": ("tril(kv_len - len(q))", "tril(kv_len - len(q) - 1)"),
    "one key of the future is seen": ("tril(kv_len - len(q))", "tril(kv_len - len(q) + 1)"),
    "heads are grouped wrongly": ("repeat_interleave(group, 1)", "repeat(1, group, 1)"),
    "the scale is left out": (" * scale", ""),
    "the rest of the last page counts": ("[:kv_len]", ""),
}


@pytest.mark.slow
@examples(20, 60)
@pytest.mark.parametrize("error", PLANTED)
def test_a_subtle_error_in_the_example_is_found(error: str, count: int, tmp_path: Path) -> None:
    right, wrong = PLANTED[error]
    source = EXAMPLE.read_text()
    assert source.count(right) == 1
    file = tmp_path / "mine.py"
    file.write_text(source.replace(right, wrong))
    name = f"{file}:MINE"
    found = [verdict.failures[0].kind for case in lighter(drawn(name, count)) if (verdict := run(case)).failures]
    assert found
    assert set(found) <= {Kind.OUTPUT_MISMATCH, Kind.EMPTY_ROW, Kind.NOT_FINITE, Kind.RAISED}


@pytest.mark.slow
def test_a_worker_that_a_function_kills_is_a_failure_of_the_case(runner: Runner, tmp_path: Path) -> None:
    file = tmp_path / "deadly.py"
    source = EXAMPLE.read_text().replace("    for b, ", "    import ctypes\n\n    ctypes.string_at(0)\n    for b, ")
    file.write_text(source)
    case = Case(backend=f"{file}:MINE", geometry=NHD, steps=(step(Mode.DECODE, (1, 9)),))
    assert [failure.kind for failure in runner.verdict(case).failures] == [Kind.ILLEGAL_ACCESS]
    assert not runner.verdict(msgspec.structs.replace(case, backend=f"{EXAMPLE}:MINE")).failures


async def unawaited(**_: object) -> None: ...


def yielding(**_: object) -> Iterator[None]:
    yield


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ({"function": None}, "takes a function with a name, not None: give it one made by def"),
        ({"function": functools.partial(attend_with_everything)}, "not of the type partial"),
        ({"function": unawaited}, "an async function or a generator runs none of it: give a plain one"),
        ({"function": yielding}, "an async function or a generator runs none of it: give a plain one"),
        ({"capability": None}, "capability is None: give a Capability of attnfuzz, or leave it"),
        ({"contract": Contract}, "contract is of the type StructMeta: give a Contract of attnfuzz, or"),
        ({"noise_model": None}, "noise_model is None: give a NoiseModel of attnfuzz, or leave it out"),
        ({"calibration": "a.json"}, "calibration is of the type str: give a Calibration"),
        ({"writes": "workspace"}, "writes is a string: give a set"),
    ],
)
def test_a_parameter_of_a_wrong_type_is_named(arguments: dict[str, Any], words: str) -> None:
    with pytest.raises(TypeError, match=words):
        FunctionBackend(**{"function": attend_with_everything, **arguments})


def misnamed(out: torch.Tensor, q: torch.Tensor, k: torch.Tensor, *, window_left: int = -1) -> None:
    """A function with parameters that no argument has."""


def test_a_parameter_that_no_argument_has_is_refused_with_the_names_of_arguments() -> None:
    with pytest.raises(
        ValueError, match=r"misnamed: no argument is called k, q: .*block_tables, .*k_cache, out, query"
    ):
        FunctionBackend(misnamed)
    FunctionBackend(misnamed, arrange=lambda query, **_: {"q": query, "k": query})


def test_arranged_arguments_that_are_no_dict_are_refused(bench_of: Callable[..., Bench]) -> None:
    case = Case(backend="plain", geometry=NHD, steps=(step(Mode.DECODE, (1, 9)),))
    listing: Any = lambda query, **_: [query]  # noqa: E731 - as short as the mistake
    with pytest.raises(TypeError, match="arrange returned a list: return a dict"):
        arguments_of(FunctionBackend(reject, arrange=listing), case, bench_of)


def attend_under_masks(*, out: torch.Tensor, window_left: int, mask: torch.Tensor | None, **others: Any) -> None:
    """Attention under masks."""
    answer = attend_call(window_left=window_left, mask=mask, **others)
    out[: len(answer.out)] = answer.out.to(out.dtype)


def ignore_masks(*, mask: torch.Tensor | None, **arguments: Any) -> None:
    """Always causal."""
    del mask
    attend_under_masks(mask=None, **arguments)


UNDER_MASKS = Capability(
    modes=Mode.of_kernels(), layouts=(KvLayout.NHD,), windows=True, masks=tuple(Mask), windowed_masks=tuple(Mask)
)
MASKED = FunctionBackend(attend_under_masks, capability=UNDER_MASKS)
IGNORING = FunctionBackend(ignore_masks, capability=UNDER_MASKS)


@pytest.mark.slow
def test_a_function_under_masks_passes_and_one_that_ignores_them_fails_in_masked_cases_alone() -> None:
    found = set()
    for case in lighter(drawn(f"{HERE}MASKED", 40)):
        assert run(case).observations == ()
        if run(case, f"{HERE}IGNORING").observations:
            found.add(case.mask)
    assert found >= {Mask.FULL, Mask.CUSTOM}
    assert Mask.CAUSAL not in found


def test_a_mask_has_a_column_for_each_key_and_is_none_in_a_causal_step(bench_of: Callable[..., Bench]) -> None:
    steps = (step(Mode.EXTEND, (2, 5), (1, 3)), step(Mode.TARGET_VERIFY, (2, 6), (2, 2), stride=2))
    case = Case(backend="any", geometry=NHD, steps=steps, mask=Mask.TREE)
    recorder = Recorder()
    session = MASKED.open(case, bench_of(case, recorder))
    for index in range(2):
        session.forward(index)
    extend, verify = (launched.arguments["mask"] for launched in recorder.launches)
    assert extend is None
    assert verify.tolist() == [[True] * 5 + [False], [True] * 6, [True, False, *[True] * 4], [True] * 6]


def test_a_capability_with_masks_needs_a_function_that_takes_one() -> None:
    def attend(*, out: torch.Tensor) -> None:
        del out

    with pytest.raises(ValueError, match="needs an argument that the function does not take, mask"):
        FunctionBackend(attend, capability=Capability(masks=tuple(Mask)))
