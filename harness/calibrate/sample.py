"""The input of a fit: a kernel's outputs with their exact answers, from drawn cases and long ones."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace

import torch
from msgspec import structs

from attnfuzz.harness.family import family_of
from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.inside.places import place_of
from attnfuzz.harness.judge.evidence import Evidence
from attnfuzz.harness.judge.judge import Judgement
from attnfuzz.harness.search.examples import derive_seed, run_examples
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.harness.workers.task import Task
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mask, Mode, Outputs, Request, Step, TableTail, Unused, Workspace
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.features.numbers import families
from attnfuzz.reference.geometry import Geometry, Latent
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.reference.user_error import UserError
from attnfuzz.strategies.cases import cases

ALPHA = 1e-6
"""Probability of a false alarm per tier in a fit: more than a campaign's for one output, so that a fit has to hold
for tighter bounds."""

_EXAMPLES_AT_ONCE = 50


class CannotCalibrate(UserError):
    """There is nothing to fit a model to; the message has the reason and the remedy."""


@dataclass(frozen=True)
class Sample:
    """One output of a kernel beside its exact answer."""

    evidence: Evidence

    def under(self, noise: NoiseModel) -> Evidence:
        """Return the evidence under `noise`."""
        return replace(self.evidence, budget=replace(self.evidence.budget, noise=noise))

    @property
    def rows(self) -> int:
        """Its (token, head) rows that see a key."""
        return self.evidence.seeing_rows

    @property
    def longest(self) -> int:
        """The largest kv_len of its requests."""
        return max(self.evidence.rows.kv_lens)


def draw_samples(
    name: str,
    backend: Backend,
    dtype: DType,
    noise: NoiseModel,
    *,
    rows: int,
    seed: int,
    without: Sequence[Collection[str]] = (),
) -> Iterator[list[Sample]]:
    """Run drawn cases with queries of `dtype` in this process until there are `rows` rows, then long ones.

    Cases that have all features of an entry of `without`, in words of the ledger, are left out. Yields all samples so
    far repeatedly, for progress. Raises CannotCalibrate if a case fails, or none has rows.
    """
    samples: list[Sample] = []

    def visit(case: Case) -> None:
        words = family_of(case).ledger_words(case) if without else frozenset()
        if not any(words.issuperset(each) for each in without):
            samples.extend(samples_of(case, backend, noise))

    if backend.capability.device is Device.CUDA:
        # Imported only if a worker has a GPU.
        from attnfuzz.harness.inside.cuda_worker import load_needs  # noqa: PLC0415

        load_needs(backend)
    can = numerical(backend.capability, dtype)
    drawn = cases(can, name)
    part = 0
    while rows_of(samples) < rows:
        before = len(samples)
        run_examples(drawn, visit, examples=_EXAMPLES_AT_ONCE, seed_of=derive_seed(seed, name, dtype, part))
        part += 1
        if len(samples) == before:
            raise CannotCalibrate(f"{name}: {_EXAMPLES_AT_ONCE} cases of {dtype} gave no row to measure")
        yield samples
    for case in long_cases(name, can, dtype, derive_seed(seed, "long") >> 2):
        visit(case)
        yield samples


def numerical(can: Capability, dtype: DType) -> Capability:
    """Return the part of a capability that can change the rounding of a right output with queries of `dtype`.

    Forms of arguments, strides, padding and graphs can't. Most known failures are there.
    """
    return structs.replace(
        can,
        dtypes=(dtype,),
        buckets=tuple(bucket for bucket in can.buckets if bucket.dtype is dtype),
        arguments=(),
        earlier_uses=(),
        edges=(),
        graph_modes=(),
        padding=False,
        empty_kv=False,
        kv_shorter_than_q=False,
        query_views=can.query_views[:1],
        kv_views=can.kv_views[:1],
        table_gaps=False,
        pool_holes=False,
        tombstones=(),
        other_groups=(),
        masks=(Mask.CAUSAL,),
        windowed_masks=(Mask.CAUSAL,),
    )


def rows_of(samples: Iterable[Sample]) -> int:
    """Count the rows of samples."""
    return sum(sample.rows for sample in samples)


def samples_of(case: Case, backend: Backend, noise: NoiseModel) -> list[Sample]:
    """Run a case in this process without guards, and return a sample of each output with a row that sees a key.

    There is none if the backend does not support the case. `noise` is the samples' noise model. Memory that no token
    uses holds numbers: a kernel that reads NaN there can still be measured. Raises CannotCalibrate if the case fails in
    any way that needs no noise model.
    """
    pages = structs.replace(case.pages, behind=Unused.NUMBERS, free=Unused.NUMBERS, tail=TableTail.ZEROS)
    case = structs.replace(case, pages=pages, outputs=Outputs.STALE, workspace=Workspace.FRESH)
    samples: list[Sample] = []

    def look(_index: int, judgement: Judgement, _launches: object) -> None:
        evidence = judgement.evidence
        if evidence is not None and bool(evidence.sees.any()):
            samples.append(_sample(evidence, noise))

    task = Task(case=case, backend=case.backend, without=tuple(tier for tier in Tier if tier is not Tier.T0))
    memory = place_of(backend.capability.device).plain(case.outputs)
    verdict = Execution(task, lambda _: None, memory=memory, backend=backend, look=look).run()
    if verdict.failures:
        failure = verdict.failures[0]
        raise CannotCalibrate(
            f"{case.backend} fails on a drawn case, {failure.kind}: {failure.message.partition(chr(10))[0]}. Only a "
            "backend that passes can be calibrated, so fuzz it first"
        )
    return samples


def _sample(evidence: Evidence, noise: NoiseModel) -> Sample:
    """Copy the evidence: later steps, and later cases, overwrite the memory of its tensors."""
    with torch.inference_mode(mode=False):
        problem = evidence.budget.problem
        problem = replace(problem, query=problem.query.clone(), key=problem.key.clone(), value=problem.value.clone())
        budget = replace(evidence.budget, problem=problem, noise=noise, alpha=ALPHA)
        lse = None if evidence.lse is None else evidence.lse.clone()
        return Sample(
            replace(evidence, out=evidence.out.clone(), lse=lse, padded=evidence.padded[:0].clone(), budget=budget)
        )


LENGTHS = (4096, 16384, 65536)
_QUERIES = 4
_HEADS = 8
_PAGE = 64
_DIM = 64
_LATENT = Latent(rank=64, rope=16, nope=32, vo=32)


def long_cases(backend: str, can: Capability, dtype: DType, seed: int) -> Iterator[Case]:
    """Yield a decode and an extend over each length, with each family of values, if `can` covers them."""
    geometry = plain_geometry(can, dtype)
    if geometry is None:
        return
    for length in LENGTHS:
        steps = (
            Step(
                mode=Mode.DECODE,
                requests=(Request(slot=0, q_len=1, kv_len=length),),
                padded_tokens=1,
                tokens_per_request=1,
            ),
            Step(
                mode=Mode.EXTEND,
                requests=(Request(slot=0, q_len=_QUERIES, kv_len=length),),
                padded_tokens=_QUERIES,
            ),
        )
        for index, family in enumerate(families(can)):
            case = Case(backend=backend, geometry=geometry, steps=steps, values=family, seed=seed + index)
            covered = tuple(step for step in steps if can.why_not(structs.replace(case, steps=(step,))) is None)
            if covered:
                yield structs.replace(case, steps=covered)


def plain_geometry(can: Capability, dtype: DType) -> Geometry | None:
    """Return a geometry for queries of `dtype` without a window, or None if there is none."""
    return _compiled(can, dtype) if can.buckets else _free(can, dtype)


def _compiled(can: Capability, dtype: DType) -> Geometry | None:
    """Return the first compiled geometry of this dtype without a window."""
    every = (bucket.simplest for bucket in can.buckets)
    return next((each for each in every if each.dtype is dtype and each.window_left < 0), None)


def _free(can: Capability, dtype: DType) -> Geometry:
    return Geometry(
        q_heads=_HEADS,
        kv_heads=1,
        head_dim_qk=_LATENT.rank + _LATENT.rope if can.latent else _DIM,
        head_dim_vo=_LATENT.rank if can.latent else _DIM,
        page_size=_PAGE if _PAGE in can.page_sizes else max(can.page_sizes),
        dtype=dtype,
        kv_dtype=dtype,
        kv_layout=can.layouts[0],
        latent=_LATENT if can.latent else None,
    )
