"""Values that are drawn on a GPU, as those of large cases are."""

import itertools

import pytest
import torch

from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.chance import TokenRun
from attnfuzz.reference.values import Operand, draw_runs

pytestmark = pytest.mark.gpu


@pytest.mark.parametrize(("family", "role"), list(itertools.product(ValueFamily, Operand)))
def test_values_are_the_same_on_every_device(family: ValueFamily, role: Operand) -> None:
    runs = [TokenRun(0, 5), TokenRun(3, 300)]
    host = draw_runs(family, role, runs, 3, 8, seed=1)
    gpu = draw_runs(family, role, runs, 3, 8, seed=1, device=torch.device("cuda"))
    # As bits: the extreme family has NaN.
    assert torch.equal(gpu.cpu().view(torch.int32), host.view(torch.int32))
