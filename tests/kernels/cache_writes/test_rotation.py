"""The bounds of a rotation: the right result is inside, and each mistake that servers made is outside."""

from collections.abc import Callable

import pytest
import torch

from attnfuzz.kernels.cache_writes.rotation import Rotation, angles, cos_sin_table
from attnfuzz.kernels.cache_writes.stored import Conversion
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.rope import Pairing, Rope, RopeScaling

DIM, WIDTH, TOKENS, HEADS = 16, 24, 40, 2
POSITIONS = torch.arange(TOKENS) * 37
ROPE = Rope()
FLOATS = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)
COMPUTED = Rotation(angle=2.0**-23, cos_sin=2.0**-24)


def tokens(dtype: DType) -> torch.Tensor:
    generator = torch.Generator().manual_seed(1)
    return torch.randn(TOKENS, HEADS, WIDTH, generator=generator).to(dtype.torch_dtype)


def rotated(
    rows: torch.Tensor,
    cos_sin: torch.Tensor,
    pairing: Pairing = Pairing.HALVES,
    dim: int = DIM,
) -> torch.Tensor:
    """Rotate in fp32, given the cosines and sines of each token."""
    cos, sin = cos_sin.unsqueeze(1).chunk(2, dim=-1)
    part = rows[..., :dim].float()
    x, y = part.chunk(2, dim=-1) if pairing is Pairing.HALVES else (part[..., 0::2], part[..., 1::2])
    both = x * cos - y * sin, y * cos + x * sin
    whole = torch.cat(both, -1) if pairing is Pairing.HALVES else torch.stack(both, -1).flatten(-2)
    return torch.cat((whole, rows[..., dim:].float()), dim=-1)


def table(rope: Rope = ROPE, positions: torch.Tensor = POSITIONS, dim: int = DIM) -> torch.Tensor:
    return cos_sin_table(rope, int(positions.max()) + 1, dim)[positions]


def outside(result: torch.Tensor, rows: torch.Tensor, rotation: Rotation = Rotation(), rope: Rope = ROPE) -> float:
    """The share of a rotation's elements that are out of bounds."""
    dtype = DType.of(result.dtype)
    interval = rotation.interval(rows, POSITIONS, rope, slice(0, DIM), DIM)
    low, high = (each.double() for each in Conversion().between(*interval, 1.0, dtype))
    wrong = (result.double() < low) | (result.double() > high)
    return float(wrong[..., :DIM].double().mean())


@pytest.mark.parametrize("scaling", RopeScaling)
def test_scaled_frequencies_are_within_their_bounds_and_others_are_not(scaling: RopeScaling) -> None:
    rows, rope = tokens(DType.BFLOAT16), Rope(scaling=scaling)
    for other in RopeScaling:
        made = rotated(rows, table(Rope(scaling=other))).to(rows.dtype)
        assert (outside(made, rows, rope=rope) > 0.05) == (other is not scaling)


def test_a_product_that_overflows_may_become_anything() -> None:
    largest = torch.finfo(torch.float32).max
    rows, rope = torch.tensor([[[largest, -largest]]]), Rope(scaling=RopeScaling.YARN)
    # At position 6, YaRN's cosine is 1.09 and its sine -0.32: the first sum is a number of fp32, its product is none.
    low, high = Rotation().interval(rows, torch.tensor([6]), rope, slice(0, 2), 2)
    assert low[0, 0, 0] == -torch.inf
    assert high[0, 0, 0].isnan()
    plain = Rotation().interval(rows, torch.tensor([6]), Rope(), slice(0, 2), 2)
    assert all(bound.isfinite().all() for bound in plain)


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("pairing", Pairing)
def test_a_rotation_in_fp32_is_within_its_bounds(dtype: DType, pairing: Pairing) -> None:
    rows, rope = tokens(dtype), Rope(pairing=pairing)
    assert outside(rotated(rows, table(), pairing).to(rows.dtype), rows, rope=rope) == 0


@pytest.mark.parametrize("dtype", FLOATS)
def test_a_rotation_by_computed_angles_is_within_its_bounds(dtype: DType) -> None:
    rows = tokens(dtype)
    frequencies = (ROPE.theta ** (-torch.arange(0, DIM, 2, dtype=torch.float64) / DIM)).float()
    angle = POSITIONS.float().unsqueeze(1) * frequencies
    result = rotated(rows, torch.cat((angle.cos(), angle.sin()), -1)).to(rows.dtype)
    assert outside(result, rows, COMPUTED) == 0


def ulps_off(result: torch.Tensor, count: int) -> torch.Tensor:
    """Numbers of the dtype that are `count` places farther from zero."""
    bits = {2: torch.int16, 4: torch.int32}[result.itemsize]
    return (result.view(bits) + count).view(result.dtype)


@pytest.mark.parametrize(("dtype", "found"), [(DType.BFLOAT16, 0.99), (DType.FLOAT16, 0.99), (DType.FLOAT32, 0.3)])
def test_two_units_in_the_last_place_are_outside(dtype: DType, found: float) -> None:
    """In fp32, the operations themselves are off by up to two."""
    rows = tokens(dtype)
    assert outside(ulps_off(rotated(rows, table()).to(rows.dtype), 2), rows) >= found


def in_bf16(rows: torch.Tensor) -> torch.Tensor:
    return rotated(rows, table().bfloat16().float())


def positions_off(by: int) -> Callable[[torch.Tensor], torch.Tensor]:
    return lambda rows: rotated(rows, table(positions=POSITIONS + by))


MISTAKES: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "a position late": positions_off(1),
    "neighbours": lambda rows: rotated(rows, table(), Pairing.NEIGHBOURS),
    "another theta": lambda rows: rotated(rows, table(Rope(theta=5e5))),
    "backwards": lambda rows: rotated(rows, table() * torch.tensor([1.0] * (DIM // 2) + [-1.0] * (DIM // 2))),
    "the whole head": lambda rows: rotated(rows, table(dim=WIDTH), dim=WIDTH),
    "twice": lambda rows: rotated(rotated(rows, table()), table()),
    "not at all": lambda rows: rows.float(),
    "cosines in bf16": in_bf16,
}


@pytest.mark.parametrize("dtype", FLOATS)
@pytest.mark.parametrize("mistake", MISTAKES)
@pytest.mark.parametrize("rotation", [Rotation(), COMPUTED], ids=["table", "computed"])
def test_a_mistake_is_outside(mistake: str, dtype: DType, rotation: Rotation) -> None:
    rows = tokens(dtype)
    least = 0.02 if mistake == "cosines in bf16" else 0.4
    assert outside(MISTAKES[mistake](rows).to(rows.dtype), rows, rotation) >= least


def test_a_table_in_the_dtype_of_the_tokens_has_bounds_of_its_own() -> None:
    rows = tokens(DType.BFLOAT16)
    result = in_bf16(rows).bfloat16()
    assert outside(result, rows, Rotation(rounds_table=True)) == 0
    assert outside(rotated(rows, table()).bfloat16(), rows, Rotation(rounds_table=True)) > 0


def test_the_bounds_in_half_precision_are_one_number_or_two_neighbours() -> None:
    rows = tokens(DType.BFLOAT16)
    interval = Rotation().interval(rows, POSITIONS, ROPE, slice(0, DIM), DIM)
    low, high = Conversion().between(*interval, 1.0, DType.BFLOAT16)
    apart = high.view(torch.int16).int() - low.view(torch.int16).int()
    assert apart.abs().max() <= 1
    assert (apart == 0).double().mean() > 0.99


def test_fp8_is_rounded_once_unless_two_kernels_do_it() -> None:
    rows = tokens(DType.BFLOAT16)
    once = rotated(rows, table()).to(torch.float8_e4m3fn)
    twice = rotated(rows, table()).bfloat16().to(torch.float8_e4m3fn)
    assert not once.view(torch.uint8).equal(twice.view(torch.uint8))
    for result, rotation in ((once, Rotation()), (twice, Rotation(rounds_result=True))):
        interval = rotation.interval(rows, POSITIONS, ROPE, slice(0, DIM), DIM)
        low, high = (each.float() for each in Conversion().between(*interval, 1.0, DType.FLOAT8_E4M3))
        assert ((low <= result.float()) & (result.float() <= high)).all()


@pytest.mark.parametrize("rotation", [Rotation(), COMPUTED], ids=["table", "computed"])
def test_infinity_and_nan_stay_or_meet(rotation: Rotation) -> None:
    rows = torch.zeros(1, 1, DIM)
    rows[0, 0, 0], rows[0, 0, DIM // 2] = torch.inf, -torch.inf
    rows[0, 0, 1] = torch.nan
    low, high = rotation.interval(rows, torch.tensor([1]), ROPE, slice(0, DIM), DIM)
    # inf * cos 1 + inf * sin 1, and their difference.
    right = torch.tensor([torch.inf, torch.nan])
    for at, due in zip((0, DIM // 2), right, strict=True):
        allowed = [low[0, 0, at], high[0, 0, at]]
        assert any(each.isnan() for each in allowed) if due.isnan() else not (due < allowed[0]) and not due > allowed[1]
    assert high[0, 0, 1].isnan()
    assert bool(low[0, 0, 2].isfinite())


def test_an_angle_in_fp64_is_the_position_times_a_power_of_theta() -> None:
    angle = angles(Rope(theta=100.0), torch.tensor([3]), 4)
    assert angle.tolist() == [[3.0, pytest.approx(0.3)]]
