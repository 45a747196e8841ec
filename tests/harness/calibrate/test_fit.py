"""Fits find the parameters of errors that were made with known ones."""

import pytest
import torch

from attnfuzz.harness.calibrate.fit import TELLING_ROWS, Terms, least_shares

ROWS, ELEMENTS = 4000, 16
SHARES = {"logits": 0.25, "exponential": 0.5}


def made(shares: dict[str, float], scale: float = 1.0) -> Terms:
    """Mean square errors of normal errors whose variance has a known part and a term for each of `shares`."""
    generator = torch.Generator().manual_seed(1)
    known = torch.full((ROWS,), 0.01, dtype=torch.float64)
    terms = torch.rand((ROWS, len(shares)), generator=generator, dtype=torch.float64) ** 2 * scale
    variance = known + terms @ torch.tensor([share**2 for share in shares.values()], dtype=torch.float64)
    noise = torch.randn((ROWS, ELEMENTS), generator=generator, dtype=torch.float64)
    return Terms(tuple(shares), variance * noise.square().mean(dim=-1), known, terms)


def test_parameters_are_found_to_within_a_tenth() -> None:
    assert least_shares(made(SHARES)) == pytest.approx(SHARES, rel=0.1)


def test_no_parameter_goes_above_its_theoretical_value() -> None:
    assert least_shares(made({"logits": 3.0})) == {"logits": 1.0}


def test_a_parameter_that_is_not_there_is_reported_to_be_small() -> None:
    assert least_shares(made({"logits": 0.5, "exponential": 0.0}))["exponential"] < 0.1


def test_a_parameter_that_rows_cannot_tell_is_left_out() -> None:
    hidden = made(SHARES, scale=1e-6)
    assert TELLING_ROWS > 0
    assert least_shares(hidden) == {}
