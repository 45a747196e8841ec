"""What a person reads about a case."""

from collections.abc import Iterator
from enum import Enum
from typing import Any

import msgspec
import pytest
from msgspec.structs import replace

from attnfuzz.harness.verdict.describe import describe
from attnfuzz.reference.arguments import ArgumentForm, EarlierUse
from attnfuzz.reference.case import (
    Case,
    Guard,
    Launch,
    Magnitude,
    Mode,
    Outputs,
    PageOrder,
    Pages,
    Request,
    Scales,
    Step,
    TableTail,
    ValueFamily,
)
from attnfuzz.reference.case_file import case_id
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, Latent
from attnfuzz.reference.past import PastFailure
from attnfuzz.reference.relation import Relation
from attnfuzz.reference.rope import Rope, RotaryShare
from attnfuzz.reference.serving import Interleave, ServedQueries, SharedKeys

PLAIN = Case(
    backend="trtllm_mha@21649-before",
    geometry=Geometry(q_heads=1, kv_heads=1, head_dim_qk=8, head_dim_vo=8, page_size=1),
    steps=(Step(mode=Mode.TARGET_VERIFY, requests=(Request(0, 2, 2),), padded_tokens=4, tokens_per_request=2),),
)


def test_a_shrunk_case_is_three_lines() -> None:
    assert (
        describe(PLAIN)
        == f"""\
case {case_id(PLAIN)} for trtllm_mha@21649-before
geometry  1 query head on 1 KV head, head dim 8, pages of 1 (HND), bfloat16
step 0    target_verify of 2: (q 2, kv 2) [padded: 2 rows for 1 request]"""
    )


def test_equal_requests_are_folded_and_padding_is_counted() -> None:
    requests = tuple(Request(slot, 4, 17) for slot in range(9))
    step = Step(mode=Mode.TARGET_VERIFY, requests=(*requests, Request(9, 4, 0)), padded_tokens=48, tokens_per_request=4)
    case = replace(PLAIN, steps=(step,))
    assert describe(case).splitlines()[2:] == [
        "step 0    target_verify of 4: 9 x (q 4, kv 17), (q 4, kv 0) [padded: 12 rows for",
        "          10 requests]",
    ]


def test_a_graph_shows_its_capture_its_replays_and_the_slots() -> None:
    capture = Step(mode=Mode.DRAFT_EXTEND, requests=(), padded_tokens=8, tokens_per_request=4, launch=Launch.CAPTURE)
    replay = replace(capture, requests=(Request(1, 2, 9), Request(0, 4, 30)), launch=Launch.REPLAY)
    extend = Step(mode=Mode.EXTEND, requests=(Request(0, 5, 5), Request(1, 5, 5)), padded_tokens=10)
    assert describe(replace(PLAIN, steps=(capture, replay, extend))).splitlines()[2:] == [
        "step 0    capture draft_extend of 4: a graph for 2 requests",
        "step 1    replay draft_extend of 4: (slot 1: q 2, kv 9), (slot 0: q 4, kv 30)",
        "          [padded: 8 tokens for 6]",
        "step 2    extend: 2 x (slots 0 to 1: q 5, kv 5)",
    ]


def test_values_other_than_the_default_are_named() -> None:
    case = replace(
        PLAIN,
        geometry=Geometry(
            q_heads=16,
            kv_heads=1,
            head_dim_qk=576,
            head_dim_vo=512,
            page_size=64,
            kv_dtype=DType.FLOAT8_E4M3,
            window_left=127,
            sinks=True,
            soft_cap=30.0,
            latent=Latent(),
        ),
        pages=Pages(order=PageOrder.SHUFFLED, tail=TableTail.POISON),
        values=ValueFamily.PEAKED,
        scales=Scales(k=0.37),
        outputs=Outputs.STALE,
        guard=Guard.LEFT,
        chunk_capacity=12,
        seed=7,
    )
    assert describe(case).splitlines()[1:] == [
        "geometry  16 query heads on 1 KV head, latent 512 + rope 64 (prefill: nope 128,",
        "          vo 128), head dims 576 (qk) and 512 (vo), pages of 64 (HND), bfloat16",
        "          on float8_e4m3fn KV, sinks, soft cap 30, window of 127 keys to the",
        "          left",
        "step 0    target_verify of 2: (q 2, kv 2) [padded: 2 rows for 1 request]",
        "memory    pages.order shuffled, pages.tail poison, outputs stale, guard left",
        "values    scales.k 0.37, values peaked, chunk_capacity 12, seed 7",
    ]


def test_the_queries_of_a_server_are_part_of_the_geometry() -> None:
    quantised = replace(PLAIN.geometry, kv_dtype=DType.FLOAT8_E4M3)
    case = replace(PLAIN, geometry=quantised, queries=ServedQueries(scale=0.5, kept=True))
    assert " ".join(describe(case).split()).count(
        "bfloat16 queries, not quantised, on float8_e4m3fn KV, query scale 0.5"
    )


def test_a_magnitude_is_among_the_values_unless_it_is_plain() -> None:
    assert describe(replace(PLAIN, magnitude=Magnitude.MIXED)).endswith("values    magnitude mixed")
    assert "magnitude" not in describe(PLAIN)


def test_ranks_that_share_keys_are_part_of_the_geometry() -> None:
    case = replace(PLAIN, shared_keys=SharedKeys(ranks=4, interleave=Interleave.QUARTER_PAGE, all_to_all=True))
    assert "keys on 4 ranks by quarter page, exchanged all to all" in " ".join(describe(case).split())
    assert "ranks" not in describe(PLAIN)


def _others(kind: Any, value: Any) -> Iterator[Any]:
    """Yield another value of each field's type, or of each field of a group of fields."""
    if isinstance(value, msgspec.Struct):
        for field in msgspec.structs.fields(value):
            for other in _others(field.type, getattr(value, field.name)):
                yield replace(value, **{field.name: other})
    elif isinstance(value, Enum):
        yield from (each for each in type(value) if each is not value)
    elif isinstance(value, bool):
        yield not value
    elif isinstance(value, int | float):
        yield value + 1
    else:
        # Fields without a value in the plain case: optional ones and lists.
        yield from EXAMPLES.get(kind, ())


EXAMPLES: dict[Any, tuple[Any, ...]] = {
    Latent | None: (Latent(),),
    Rope | None: (Rope(), Rope(share=RotaryShare.HALF)),
    Relation | None: tuple(Relation),
    tuple[ArgumentForm, ...]: ((ArgumentForm.OUT_GAPS,),),
    tuple[EarlierUse, ...]: ((EarlierUse.RESET,),),
    tuple[PastFailure, ...]: ((PastFailure("StrayWrite", "key_cache", "write", "decode"),),),
}


@pytest.mark.parametrize("name", [field.name for field in msgspec.structs.fields(PLAIN)])
def test_each_field_that_differs_from_the_plain_case_shows(name: str) -> None:
    # Only above a quantised cache may queries be quantised or not.
    plain = replace(PLAIN, geometry=replace(PLAIN.geometry, kv_dtype=DType.FLOAT8_E4M3))
    (field,) = (each for each in msgspec.structs.fields(plain) if each.name == name)
    changed = [replace(plain, **{name: other}) for other in _others(field.type, getattr(plain, name))]
    assert changed or name in {"backend", "steps"}
    shown = [describe(case).split("\n", 1)[1] for case in (plain, *changed)]
    assert len(set(shown)) == len(shown)


def test_lines_fit_a_terminal() -> None:
    requests = tuple(Request(slot, 1 + slot % 3, 7 * slot) for slot in range(60))
    step = Step(mode=Mode.EXTEND, requests=requests, padded_tokens=sum(request.q_len for request in requests))
    assert max(map(len, describe(replace(PLAIN, steps=(step,))).splitlines())) <= 80


def test_failures_that_a_case_goes_on_after_are_named() -> None:
    past = PastFailure("StrayWrite", "key_cache", "write", "decode")
    described = describe(replace(PLAIN, past=(past,))).splitlines()
    assert described[3:] == ["known     continues after StrayWrite of key_cache (decode, write)"]


def test_a_relation_is_described_last() -> None:
    described = describe(replace(PLAIN, seed=7, relation=Relation.PADDING_ENLARGED)).splitlines()
    assert described[3:] == ["values    seed 7", "relation  compared with a second run: padding enlarged"]
