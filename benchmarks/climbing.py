"""Whether following margins upwards helps: the margins reached, and how soon a defect fails, against drawing alone."""

from statistics import median

import click
from measurement import backends_option, count_option, show
from msgspec.structs import replace

from attnfuzz.harness.campaign.schedule import slices_of
from attnfuzz.harness.defects.search import NO_SHRINKING
from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.harness.search.draw import drawn_cases
from attnfuzz.harness.search.hunt import Hunt
from attnfuzz.harness.search.messages import AnyMessage, Tally
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.defects.catalogue import DEFECTS, backend_name

ROADS = {"drawn": False, "climbing": True}


@click.command()
@backends_option(("trtllm_mha",))
@click.option("--defect", "defects", multiple=True, default=("v_scale_a_thousandth_off",), show_default=True)
@count_option("--seeds", 5, "Searches of each kind.")
@count_option("--examples", 500, "Examples of a search.")
def main(*, backends: tuple[str, ...], defects: tuple[str, ...], seeds: int, examples: int) -> None:
    """Search correct backends for large margins and planted defects for a failure, in slices as campaigns have them."""
    planted = {defect.name: backend_name(defect) for defect in DEFECTS if defect.name in defects}
    margins, spent = [], []
    with Runner((*backends, *planted.values())) as runner:
        for backend in backends:
            for road, climb in ROADS.items():
                runs = [_Search(runner, backend, seed, examples, climb=climb) for seed in range(1, seeds + 1)]
                reached = [median(run.margins.get(tier, 0.0) for run in runs) for tier in Tier]
                margins.append((f"{backend}, {road}", *(f"{margin:.3f}" for margin in reached)))
        for defect, backend in planted.items():
            for road, climb in ROADS.items():
                runs = [_Search(runner, backend, seed, examples, climb=climb) for seed in range(1, seeds + 1)]
                took = [run.searched for run in runs if run.failed]
                often = f"{median(took):.0f}" if took else "-"
                spent.append((f"{defect}, {road}", f"{len(took)} of {seeds}", often))
    show("Largest margin of each tier, median over the seeds", ("", *Tier), margins)
    show("Planted defects", ("", "found", "examples, median"), spent)


class _Search:
    """One search, up to the first failure: what it drew, the margins of what passed, and whether anything failed."""

    def __init__(self, runner: Runner, backend: str, seed: int, examples: int, *, climb: bool) -> None:
        self.searched = 0
        self.failed = False
        self.margins: dict[str, float] = {}
        for plain in slices_of(backend, examples=examples, seed=seed):
            task = replace(plain, shrink=NO_SHRINKING, climb=climb)
            done = Hunt(task, runner, self._hear).run(drawn_cases(backend))
            self.searched += done.searched
            self.failed = done.stopped_early
            if self.failed:
                break

    def _hear(self, message: AnyMessage) -> None:
        if isinstance(message, Tally):
            for tier, margin in message.margins.items():
                self.margins[tier] = max(margin, self.margins.get(tier, 0.0))


if __name__ == "__main__":
    main()
