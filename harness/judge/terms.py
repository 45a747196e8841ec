"""The terms on which a result is judged."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from attnfuzz.harness.verdict.failures import Observation
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.noise import NoiseModel


@dataclass(frozen=True, kw_only=True)
class JudgingTerms:
    """How one step's result is judged, and where it comes from.

    `alpha` is the probability that a correct result fails. With `strict`, violations of the strict contract alone are
    reported as gaps. Only `tiers` run. With `keep`, a judgement includes the baseline of a related run. `noise` is None
    if the family asks for none.
    """

    contract: Contract
    noise: NoiseModel | None
    alpha: float
    strict: bool
    tiers: frozenset[Tier]
    step: int
    mode: str
    kernel: str
    keep: bool = False

    @property
    def report(self) -> Callable[..., Observation]:
        """A function that makes an observation of the step. Its remaining parameters are kind, place and message."""
        return partial(Observation, step=self.step, mode=self.mode, kernel=self.kernel)
