"""A user's backend is tried on plain cases, and a mistake in calling the kernel is said to be one.

Files of users are imported by processes that may die.
"""

from collections.abc import Callable
from pathlib import Path

import pytest
from harness_cases import decode_case
from msgspec.structs import replace
from small_cases import step

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.sandbox import plain_check
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.sandbox.plain_check import CannotCall, PlainCheck, Symptom, check, check_users
from attnfuzz.harness.verdict.failures import Kind, Observation
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference.case import Mode, Outputs
from attnfuzz.reference.mistake import Mistake
from attnfuzz.strategies.plain_cases import plain_cases

FILE = """
import ctypes
import torch
from attnfuzz import Contract, FunctionBackend
from attnfuzz.reference.contract import LseBase

def attention(query, k_cache, v_cache, block_tables, seq_lens, cum_seq_lens_q, scale, **_):
    out = torch.zeros(*query.shape[:2], v_cache.shape[-1], dtype=query.dtype)
    for b, kv_len in enumerate(seq_lens.tolist()):
        rows = slice(*cum_seq_lens_q[b : b + 2].tolist())
        pages = block_tables[b, : -(-kv_len // k_cache.shape[1])]
        group = query.shape[1] // k_cache.shape[2]
        k, v = (c[pages].flatten(0, 1)[:kv_len].float().repeat_interleave(group, 1) for c in (k_cache, v_cache))
        logits = torch.einsum("qhd,khd->hqk", query[rows].float(), k) * scale
        seen = torch.ones_like(logits, dtype=torch.bool).tril(kv_len - logits.shape[1])
        weights = logits.masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0)
        out[rows] = torch.einsum("hqk,khd->qhd", weights, v).to(out.dtype)
    return out

def right(*, out, **given):
    return out.copy_(attention(**given))

def returns(*, out, **given):
    return attention(**given)

def writes_no_lse(*, out, lse, **given):
    out.copy_(attention(**given))

def dies(*, out, **_):
    ctypes.string_at(0)

def raises(*, out, query, k_cache, **_):
    out.copy_(query @ k_cache)

def never_called(*, out, keys): ...

def arranges(*, k_cache, **_):
    return {"keys": k_cache[99_999]}

def wrong(*, out, scale, **given):
    out.copy_(attention(scale=2 * scale, **given))

def random(*, out, scale, **given):
    out.copy_(attention(scale=scale, **given) * torch.rand(1).to(out.dtype))

def reads_hnd(*, out, k_cache, v_cache, **given):
    k, v = (each.reshape(len(each), each.shape[2], each.shape[1], -1).transpose(1, 2) for each in (k_cache, v_cache))
    out.copy_(attention(k_cache=k, v_cache=v, **given))

def packs(*, out, seq_lens, cum_seq_lens_q, **given):
    rows = attention(seq_lens=seq_lens, cum_seq_lens_q=cum_seq_lens_q, **given)
    rows = torch.cat([rows[a:b] for a, b, n in zip(cum_seq_lens_q, cum_seq_lens_q[1:], seq_lens) if n])
    out[: len(rows)] = rows

def reads_no_table(*, out, block_tables, seq_lens, k_cache, **given):
    counts = -(-seq_lens // k_cache.shape[1])
    tables = torch.arange(block_tables.shape[1]) + (counts.cumsum(0) - counts)[:, None]
    out.copy_(attention(block_tables=tables, seq_lens=seq_lens, k_cache=k_cache, **given))

def widens_table(*, out, block_tables, **given):
    flat = block_tables.long().flatten().view(torch.int32)
    out.copy_(attention(block_tables=flat[: block_tables.numel()].view_as(block_tables), **given))

kept = []

def keeps_lengths(*, out, seq_lens, **given):
    kept.append(seq_lens.clone())
    out.copy_(attention(seq_lens=kept[0], **given))

RIGHT, RETURNS, RAISES, DIES, WRONG, READS_HND, PACKS, READS_NO_TABLE, WIDENS_TABLE, KEEPS_LENGTHS = map(
    FunctionBackend,
    (right, returns, raises, dies, wrong, reads_hnd, packs, reads_no_table, widens_table, keeps_lengths),
)
LSE = FunctionBackend(writes_no_lse, contract=Contract(lse=LseBase.E))
RANDOM = FunctionBackend(random)
ARRANGED = FunctionBackend(never_called, arrange=arranges)
"""

Named = Callable[[str], str]


@pytest.fixture
def named(tmp_path: Path) -> Named:
    """Return the name of a backend of FILE."""
    path = tmp_path / "mine.py"
    path.write_text(FILE)
    return lambda name: f"{path}:{name}"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("name", "kind", "place", "words"),
    [
        ("RETURNS", Kind.UNWRITTEN, "out", "returns returned a tensor [2, 4, 8], torch.bfloat16, which is ignored"),
        ("LSE", Kind.UNWRITTEN, "lse", "lse of request 0"),
        ("RAISES", Kind.RAISED, "RuntimeError", "in raises: out.copy_(query @ k_cache)"),
        ("ARRANGED", Kind.RAISED, "IndexError", 'in arranges: return {"keys": k_cache[99_999]}'),
    ],
)
def test_a_mistake_in_calling_the_kernel_keeps_a_campaign_from_starting(
    named: Named, name: str, kind: Kind, place: str, words: str
) -> None:
    with Runner([named(name)]) as runner:
        found = check(named(name), runner)
    symptom = found.symptoms[0]
    assert (symptom.observation.kind, symptom.observation.place) == (kind, place)
    assert found.failed == len(found.judged) > 1
    with pytest.raises(CannotCall) as refused:
        check_users([named(name)], print)
    message = str(refused.value)
    assert words in message
    assert f"attnfuzz check {named(name)}" in message
    # A function that arranges its arguments has made no call.
    assert ("query bfloat16[2, 4, 8]" in message) is (name != "ARRANGED")
    assert ("NHD: [pages, slots of the page, KV heads, head dim]" in message) is (name != "ARRANGED")


@pytest.mark.slow
def test_wrong_numbers_may_be_the_kernels_and_are_fuzzed(named: Named, capsys: pytest.CaptureFixture[str]) -> None:
    check_users([named("RIGHT"), named("WRONG"), "torch_sdpa"], print)
    told = capsys.readouterr().out
    assert told.startswith(f"{named('WRONG')} fails 20 of 20 plain cases: as if the logits were multiplied by ")
    assert told.endswith(f". Look at it first: attnfuzz check {named('WRONG')}\n")


def observed(kind: Kind, tier: str = "", place: str = "out") -> Symptom:
    return Symptom((decode_case("mine"),), Observation(kind=kind, place=place, message="wrong", tier=tier))


@pytest.mark.parametrize(
    ("symptoms", "refused"),
    [
        ((), False),
        ((observed(Kind.RAISED),), True),
        ((observed(Kind.OUTPUT_MISMATCH, Tier.T0),), True),
        ((observed(Kind.OUTPUT_MISMATCH, Tier.T1),), False),
        ((observed(Kind.ILLEGAL_ACCESS),), False),
    ],
)
def test_a_backend_is_refused_for_symptoms_of_its_call_alone(symptoms: tuple[Symptom, ...], *, refused: bool) -> None:
    assert PlainCheck("mine", (decode_case("mine"),), symptoms).is_of_the_call is refused


def test_the_remedy_names_the_property_that_all_failing_cases_have_and_no_other() -> None:
    decode, extend = decode_case("mine"), replace(decode_case("mine"), steps=(step(Mode.EXTEND, (1, 9)),))
    raises = Symptom((extend,), Observation(kind=Kind.RAISED, place="ValueError", message="wrong"))
    assert (
        "All cases with extend fail, and none with decode. If" in PlainCheck("mine", (decode, extend), (raises,)).words
    )
    ragged = replace(extend, steps=(step(Mode.EXTEND, (1, 9), (2, 3)),))
    words = PlainCheck("mine", (decode, ragged), (raises._replace(cases=(ragged,)),)).words
    assert "none with decode: the former have ragged queries" in words
    assert "If the kernel" not in PlainCheck("mine", (decode, extend, replace(extend, seed=1)), (raises,)).words
    unwritten = observed(Kind.UNWRITTEN)
    assert "out.copy_(result)" in PlainCheck("mine", (decode,), (unwritten,)).words
    assert "lse.copy_(result)" in PlainCheck("mine", (decode,), (observed(Kind.UNWRITTEN, place="lse"),)).words


def test_the_remedy_names_a_feature_that_only_failing_cases_have() -> None:
    decode = decode_case("mine")
    windowed = replace(decode, geometry=replace(decode.geometry, window_left=3))
    failed = observed(Kind.OUTPUT_MISMATCH, Tier.T1)._replace(cases=(windowed,))
    words = PlainCheck("mine", (decode, windowed), (failed,)).words
    assert "in 1 case (decode; HND; bfloat16; a window)" in words
    assert "All cases with a window fail, and no others. If" in words


@pytest.mark.parametrize(
    ("observation", "compared"),
    [
        (Observation(kind=Kind.ILLEGAL_ACCESS, place="k_cache", message="read past the end"), True),
        (Observation(kind=Kind.OUTPUT_MISMATCH, place="out", message="8 of 8 rows are wrong", tier=Tier.T1), True),
        (Observation(kind=Kind.UNWRITTEN, place="out", message="never written; 4 of 8 such rows"), True),
        (Observation(kind=Kind.UNWRITTEN, place="out", message="never written; 8 of 8 such rows"), False),
        (Observation(kind=Kind.RAISED, place="TypeError", message="no argument"), False),
        (Observation(kind=Kind.OUTPUT_MISMATCH, place="out", message="x", mistakes=(Mistake.NO_KEYS,)), True),
        (Observation(kind=Kind.OUTPUT_MISMATCH, place="out", message="x", mistakes=(Mistake.LOGIT_SCALE,)), False),
    ],
)
def test_wrong_arguments_are_the_remedy_where_all_cases_fail_for_no_known_reason(
    observation: Observation, *, compared: bool
) -> None:
    decode = decode_case("mine")
    words = PlainCheck("mine", (decode,), (Symptom((decode,), observation),)).words
    assert ("compare the call below with the kernel's parameters" in words) is compared


def test_nan_in_all_plain_cases_points_to_slots_without_a_token() -> None:
    decode, nan = decode_case("mine"), observed(Kind.NOT_FINITE)
    assert "may read more keys than seq_lens says" in PlainCheck("mine", (decode,), (nan,)).words
    assert "seq_lens says" not in PlainCheck("mine", (decode, replace(decode, seed=1)), (nan,)).words


@pytest.mark.slow
def test_wrong_pages_are_explained_and_below_nan_by_a_run_with_numbers(named: Named) -> None:
    with Runner([named("READS_HND"), named("READS_NO_TABLE"), named("WIDENS_TABLE")]) as runner:
        layout, ignored, widened = (
            check(named(name), runner) for name in ("READS_HND", "READS_NO_TABLE", "WIDENS_TABLE")
        )
    for found in (layout, ignored):
        assert {symptom.observation.kind for symptom in found.symptoms} == {Kind.NOT_FINITE}
        assert "With numbers there, the first case fails like this:\n  request " in found.words
    exchanged, words = (" ".join(found.words.split()) for found in (layout, ignored))
    assert "as if pages were reshaped, not permuted, to exchange the axes of slots and KV heads" in exchanged
    assert "as if the page table were ignored: each request has the pages after those of the requests before" in words
    assert "as if the page table had 64-bit entries, read as 32-bit ones" in widened.words


@pytest.mark.slow
def test_rows_without_keys_that_hold_those_of_other_requests_are_explained(named: Named) -> None:
    backend = named("PACKS")
    case = next(iter(plain_cases(resolve(backend).capability, backend)))
    case = replace(case, steps=(step(Mode.DECODE, (1, 0), (1, 3)),), outputs=Outputs.POISONED)
    with Runner([backend]) as runner:
        found = runner.explained(case, runner.verdict(case))
    assert [each.kind for each in found.failures if each.tier == Tier.T0] == [each.kind for each in found.failures]
    assert Kind.EMPTY_ROW in [each.kind for each in found.failures]
    assert {each.mistakes for each in found.failures} == {(Mistake.OTHER_ROW,)}


@pytest.mark.slow
def test_a_failure_that_depends_on_earlier_calls_is_recognized(named: Named) -> None:
    with Runner([named("KEEPS_LENGTHS")]) as runner:
        found = check(named("KEEPS_LENGTHS"), runner)
    assert found.passes_alone
    assert "passes in a fresh process: something is kept from an earlier call" in found.words


@pytest.mark.slow
def test_random_numbers_are_reported_as_such(named: Named) -> None:
    with Runner([named("RANDOM")]) as runner:
        found = check(named("RANDOM"), runner)
    assert (found.passes_alone, found.differs) == (False, True)
    assert "fails otherwise when it is run once more: numbers are random" in found.words


@pytest.mark.parametrize(("margin", "small"), [(1.8, True), (40.0, False), (None, False)])
def test_small_errors_point_to_the_noise_model(margin: float | None, *, small: bool) -> None:
    wrong = Observation(kind=Kind.OUTPUT_MISMATCH, place="out", message="x", margin=margin)
    words = PlainCheck("mine", (decode_case("mine"),), (Symptom((decode_case("mine"),), wrong),)).words
    assert ("docs/guides/noise-models.md" in words) is small


@pytest.mark.slow
def test_a_death_is_shown_with_the_arguments_of_its_call(named: Named) -> None:
    with Runner([named("DIES")]) as runner:
        found = check(named("DIES"), runner)
    assert {symptom.observation.kind for symptom in found.symptoms} == {Kind.ILLEGAL_ACCESS}
    assert "query bfloat16[2, 4, 8]" in found.words


def test_a_failure_in_few_cases_is_fuzzed() -> None:
    assert not PlainCheck("mine", (decode_case("mine"),) * 2, (observed(Kind.RAISED),)).is_of_the_call


# It needs a worker.
@pytest.mark.slow
def test_cases_that_take_long_are_not_all_run(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(plain_check, "SECONDS", 0.0)
    with Runner(["torch_sdpa"]) as runner:
        assert len(check("torch_sdpa", runner).judged) == 1
