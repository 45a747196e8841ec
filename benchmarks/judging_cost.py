"""Cost of judging: its share of a case's time, and how it compares with a plain fp64 reference and allclose."""

import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import click
import msgspec
import torch
from in_process import use_one_thread
from measurement import count_option, sample, seconds_of, seed_option, show
from widened import widened

from attnfuzz.harness.backends.registry import resolve
from attnfuzz.harness.inside.launcher import JournalingLauncher
from attnfuzz.harness.judge import judge
from attnfuzz.harness.judge.evidence import RealRows, packed_problem
from attnfuzz.harness.memory.guarded import PlainMemory
from attnfuzz.kernels.interface.backend import Backend, Bench, Output
from attnfuzz.reference.attention import attend
from attnfuzz.reference.case import Case, Mode, Request, Step, ValueFamily
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry

BACKEND = "trtllm_mha"

COLUMNS = ("", "values", "a case", "placing,\nkernels", "reference", "tiers", "judging against\nfp64, allclose")


@dataclass
class Costs:
    """Seconds of one case: the run until its outputs are there, the judge's two parts, and the plain comparison."""

    run: float = 0.0
    reference: float = 0.0
    tiers: float = 0.0
    plain: float = 0.0

    @property
    def judged(self) -> float:
        """Seconds of the whole judged case."""
        return self.run + self.reference + self.tiers


@click.command()
@count_option("--cases", 100, "Drawn cases.")
@count_option("--keys", 131_072, "Keys of the long case.")
@count_option("--rounds", 5, "How often each case runs; its medians count.")
@seed_option
def main(*, cases: int, keys: int, rounds: int, seed: int) -> None:
    """Time the judge on small cases, on large batches and on a long one, in-process, on plain memory and one thread.

    The plain comparison uses the same outputs, in turn with the judge: fp64 attention without moments, and
    torch.allclose on out and LSE. The probe is a value family: it takes no call and no step of its own.
    """
    use_one_thread()
    drawn = sample(BACKEND, cases, seed)
    groups: dict[str, Sequence[Case]] = {
        "cases as drawn": drawn,
        "the same, with many heads": [widened(case) for case in drawn],
        f"{keys:,} keys": [_long(keys)],
    }
    rows = []
    for name, group in groups.items():
        for family in (None, ValueFamily.PROBE):
            as_told = [case if family is None else msgspec.structs.replace(case, values=family) for case in group]
            rows.append(_row(name, family or "as drawn", [_median(case, rounds) for case in as_told]))
    show("Judging", COLUMNS, rows)


def _row(name: str, family: str, costs: Sequence[Costs]) -> tuple[str, ...]:
    total = Costs(*(sum(getattr(each, part) for each in costs) for part in ("run", "reference", "tiers", "plain")))
    judging = total.reference + total.tiers
    shares = (f"{part / total.judged:.0%}" for part in (total.run, total.reference, total.tiers))
    return (name, family, f"{total.judged / len(costs) * 1e3:.1f} ms", *shares, f"{judging / total.plain:.2f} x")


def _median(case: Case, rounds: int) -> Costs:
    backend = resolve(case.backend)
    runs = [_costs(case, backend) for _ in range(rounds + 1)][1:]
    return Costs(*(median(getattr(run, part) for run in runs) for part in ("run", "reference", "tiers", "plain")))


def _costs(case: Case, backend: Backend) -> Costs:
    """Run, judge and compare one case. Raises click.ClickException if it fails: its time would mean nothing."""
    costs = Costs()
    start = time.perf_counter()
    for index, output in _outputs(case, backend):
        costs.run += time.perf_counter() - start
        judgement = judge(
            output,
            geometry=case.geometry,
            contract=backend.contract,
            noise=backend.noise(case.geometry.dtype),
            step=index,
            mode=case.steps[index].mode,
            kernel="",
        )
        if judgement.observations:
            raise click.ClickException(f"{case.backend} fails: {judgement.observations[0].message}")
        costs.reference += judgement.reference_seconds
        costs.tiers += judgement.judge_seconds
        costs.plain += seconds_of(partial(_plain_comparison, output, case.geometry))
        start = time.perf_counter()
    return costs


def _outputs(case: Case, backend: Backend) -> Iterator[tuple[int, Output]]:
    """Yield the outputs of a case's steps, each with the index of its step."""
    memory = PlainMemory(case.outputs)
    launcher = JournalingLauncher(memory, lambda _: None)
    session = backend.open(case, Bench(memory, launcher, torch.device("cpu")))
    for index, step in enumerate(case.steps):
        launcher.begin_step(index, step.mode)
        output = session.forward(index)
        if isinstance(output, Output):
            yield index, output


def _plain_comparison(output: Output, geometry: Geometry) -> None:
    """Compare as a test without a judge would."""
    rows = RealRows(output.attended, output.out.shape[0], output.out.device)
    answer = attend(packed_problem(output, rows, geometry))
    torch.allclose(rows.real(output.out).double(), answer.out, rtol=1e-2, atol=1e-2)
    if output.lse is not None:
        torch.allclose(rows.real(output.lse).double(), answer.lse, rtol=1e-3, atol=1e-3)


def _long(keys: int) -> Case:
    """Return a target verify over many keys."""
    drafted = 4
    return Case(
        backend=BACKEND,
        geometry=Geometry(
            q_heads=8,
            kv_heads=1,
            head_dim_qk=128,
            head_dim_vo=128,
            page_size=64,
            dtype=DType.BFLOAT16,
            kv_dtype=DType.BFLOAT16,
        ),
        steps=(
            Step(
                mode=Mode.TARGET_VERIFY,
                requests=(Request(slot=0, q_len=drafted, kv_len=keys),),
                padded_tokens=drafted,
                tokens_per_request=drafted,
            ),
        ),
    )


if __name__ == "__main__":
    main()
