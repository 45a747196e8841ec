"""The tiers' results on samples under a noise model."""

from collections.abc import Iterable, Iterator, Sequence

import msgspec
import torch

from attnfuzz.harness.calibrate.sample import Sample
from attnfuzz.harness.judge.element_bound import element_bound
from attnfuzz.harness.judge.evidence import Evidence
from attnfuzz.harness.judge.judge import STATISTICAL
from attnfuzz.harness.judge.lse_bound import lse_bound
from attnfuzz.reference.calibration import Quantiles
from attnfuzz.reference.noise import NoiseModel


class Spread(msgspec.Struct, frozen=True):
    """Results for each row that sees a key: T1's and T4's margins and T2's z^2, fp64, by the tier's name.

    `largest` are the largest margins of all tiers; a correct kernel stays at or below 1.
    """

    rows: dict[str, torch.Tensor]
    largest: dict[str, float]


def spread(samples: Iterable[Sample], noise: NoiseModel) -> Spread:
    """Run the tiers on `samples` under `noise`."""
    rows: dict[str, list[torch.Tensor]] = {}
    largest: dict[str, float] = {}
    for sample in samples:
        evidence = sample.under(noise)
        for tier, values in _rows(evidence):
            rows.setdefault(tier, []).append(values)
        for tier, margin in largest_margins(evidence):
            largest[tier] = max(margin, largest.get(tier, 0.0))
    return Spread({tier: torch.cat(values) for tier, values in rows.items()}, largest)


def holds(samples: Sequence[Sample], noise: NoiseModel) -> bool:
    """Return whether all samples pass all tiers under `noise`."""
    return all(margin <= 1 for sample in samples for _, margin in largest_margins(sample.under(noise)))


def largest_margins(evidence: Evidence) -> Iterator[tuple[str, float]]:
    """Yield the margin of each tier that applies, on one output."""
    for tier, _, judge_place in STATISTICAL:
        result = judge_place(evidence)
        if result is not None:
            yield tier.value, result.margin


def quantiles(values: torch.Tensor) -> Quantiles:
    """Compute the quantiles of fp64 `values` [n], n > 0."""
    ordered = values.sort().values

    def at(share: float) -> float:
        return ordered[round(share * (len(ordered) - 1))].item()

    return Quantiles(median=at(0.5), p999=at(0.999), largest=at(1.0))


def _rows(evidence: Evidence) -> Iterator[tuple[str, torch.Tensor]]:
    budget, sees = evidence.budget, evidence.sees
    yield "T1", evidence.error.abs().div_(element_bound(budget)).amax(dim=-1)[sees].flatten()
    yield "T2", evidence.error.square().div_(budget.variance).mean(dim=-1)[sees].flatten()
    if evidence.lse is not None:
        yield "T4", evidence.lse_error(evidence.lse_unit).abs().div_(lse_bound(budget))[sees].flatten()
