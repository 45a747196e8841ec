"""Digests of plans: equal if no kernel can tell the runs apart."""

from collections.abc import Callable
from typing import Any

import pytest
import torch

from attnfuzz.harness.inside.plan_digest import PlanDigest
from attnfuzz.kernels.interface.backend import Op

OP = Op("attend", lambda **_: None, frozenset({"out"}))


def digest(**arguments: Any) -> str:
    made = PlanDigest()
    made.begin_step(0, "decode")
    made.launch(OP, arguments)
    return made.hexdigest()


def lengths() -> torch.Tensor:
    return torch.tensor([3, 4, 5], dtype=torch.int32)


def test_equal_arguments_at_other_addresses_have_one_digest() -> None:
    wide = torch.full((3, 2), 9, dtype=torch.int32)
    wide[:, 0] = lengths()
    assert digest(seq_lens=lengths(), scale=1.0) == digest(scale=1.0, seq_lens=lengths())
    assert digest(seq_lens=wide[:, 0]) == digest(seq_lens=wide.clone()[:, 0])
    assert digest(seq_lens=(lengths(), None)) == digest(seq_lens=(lengths(), None))


@pytest.mark.parametrize(
    "other",
    [
        lambda: lengths().long(),
        lambda: lengths()[:2],
        lambda: lengths().flip(0),
        lambda: torch.stack([lengths(), lengths()], 1)[:, 0],
        lambda: [lengths()],
        lambda: None,
    ],
    ids=["dtype", "shape", "values", "stride", "nested", "missing"],
)
def test_other_arguments_have_another_digest(other: Callable[[], Any]) -> None:
    assert digest(seq_lens=lengths()) != digest(seq_lens=other())


def test_nan_bits_and_results_count() -> None:
    quiet, other = (torch.tensor([bits], dtype=torch.int32).view(torch.float32) for bits in (0x7FC00000, 0x7FC00001))
    assert digest(query=quiet) != digest(query=other)
    one, two = PlanDigest(), PlanDigest()
    one.result(lengths())
    two.result(lengths() + 1)
    assert one.hexdigest() != two.hexdigest()
    assert [name for name, _ in one.parts] == [name for name, _ in two.parts] == [", result: Tensor"]
    assert one.parts != two.parts
