"""Rotary embedding in cases: which are possible, and which a capability covers."""

import math

import pytest
from msgspec.structs import replace
from small_cases import HEADS, LATENTS, step

from attnfuzz.kernels.cache_writes.writer_backend import WRITES
from attnfuzz.reference.case import Case, Mode
from attnfuzz.reference.case_file import decode, encode
from attnfuzz.reference.geometry import Latent
from attnfuzz.reference.rope import Pairing, Rope, RopeScaling, RotaryShare
from attnfuzz.reference.validity import ImpossibleCase, validate

PLAIN = Case(backend="writer", geometry=HEADS, steps=(step(Mode.EXTEND, (3, 7)),))


@pytest.mark.parametrize(
    ("share", "head_dim", "rotated"),
    [
        (RotaryShare.WHOLE, 64, 64),
        (RotaryShare.WHOLE, 9, 8),
        (RotaryShare.HALF, 64, 32),
        (RotaryShare.QUARTER, 8, 2),
        (RotaryShare.QUARTER, 2, 2),
        (RotaryShare.TWO_FIFTHS, 80, 32),
    ],
)
def test_an_even_number_of_elements_is_rotated(share: RotaryShare, head_dim: int, rotated: int) -> None:
    assert share.of(head_dim) == rotated


def test_of_a_latent_the_rotary_part_is_rotated() -> None:
    assert LATENTS.latent is not None
    assert Rope().dim(LATENTS) == LATENTS.latent.rope


def test_a_case_with_rope_is_read_as_it_was_written() -> None:
    case = replace(PLAIN, rope=Rope(share=RotaryShare.HALF, pairing=Pairing.NEIGHBOURS, theta=5e5, shift=7))
    assert decode(encode(case)) == case
    assert b"rope" not in encode(PLAIN)


def test_llama31_keeps_short_waves_and_divides_long_ones_by_eight() -> None:
    plain, scaled = (Rope(theta=5e5, scaling=each).frequencies(128) for each in (RopeScaling.NONE, RopeScaling.LLAMA31))
    shares = [after / before for before, after in zip(plain, scaled, strict=True)]
    assert shares[0] == 1
    assert shares[-1] == 1 / 8
    assert shares == sorted(shares, reverse=True)
    # Waves of 8,192 / 2.5 positions are in the middle between 8,192 / 4 and 8,192.
    assert RopeScaling.LLAMA31.of(2.5 * 2 * math.pi / 8192, 0, 128, 5e5) == pytest.approx(
        2.5 * 2 * math.pi / 8192 * (1 + 1 / 8) / 2
    )


def test_yarn_divides_slow_turns_by_four_and_has_a_factor_of_attention() -> None:
    """As transformers' _compute_yarn_parameters has it for Qwen2.5, factor 4 beyond 32,768 positions, theta 10^6."""
    plain, scaled = (Rope(theta=1e6, scaling=each).frequencies(128) for each in (RopeScaling.NONE, RopeScaling.YARN))
    shares = [after / before for before, after in zip(plain, scaled, strict=True)]
    assert shares[:24] == [1] * 24
    assert shares[40:] == [1 / 4] * 24
    assert shares[31] == pytest.approx(1 - 0.75 * 8 / 17)
    assert RopeScaling.YARN.magnitude == pytest.approx(1.1386294)


@pytest.mark.parametrize(
    "impossible",
    [
        replace(PLAIN, rope=Rope(shift=-1)),
        replace(PLAIN, rope=Rope(shift=1 << 30)),
        replace(PLAIN, rope=Rope(theta=0.5)),
        replace(PLAIN, rope=Rope(theta=1, scaling=RopeScaling.YARN)),
        replace(PLAIN, rope=Rope(theta=float("inf"))),
        replace(PLAIN, rope=Rope(), geometry=replace(HEADS, head_dim_qk=1)),
        replace(PLAIN, rope=Rope(share=RotaryShare.HALF), geometry=LATENTS),
        replace(
            PLAIN, rope=Rope(), geometry=replace(LATENTS, latent=Latent(rank=8, rope=3), head_dim_qk=11, head_dim_vo=8)
        ),
    ],
)
def test_an_impossible_rope_is_refused(impossible: Case) -> None:
    with pytest.raises(ImpossibleCase, match=r"rope|must be at least 2"):
        validate(impossible)


def test_a_writer_rotates_in_every_case_or_in_none() -> None:
    rotating = replace(WRITES, rotary=(RotaryShare.HALF,), pairings=(Pairing.HALVES,))
    plain = replace(PLAIN, geometry=replace(HEADS, kv_layout=WRITES.layouts[0]))
    assert rotating.why_not(plain) == "keys that are not rotated"
    assert WRITES.why_not(replace(plain, rope=Rope())) == "rotary embedding"
    assert rotating.why_not(replace(plain, rope=Rope())) == "rotary embedding of the whole head"
    half = Rope(share=RotaryShare.HALF)
    assert rotating.why_not(replace(plain, rope=half)) is None
    assert rotating.why_not(replace(plain, rope=replace(half, pairing=Pairing.NEIGHBOURS))) is not None
    assert rotating.why_not(replace(plain, rope=replace(half, scaling=RopeScaling.YARN))) is not None
    with pytest.raises(ValueError, match="only a writer of the KV cache rotates keys"):
        replace(WRITES, writes=False, rotary=(RotaryShare.WHOLE,))
