"""Steps of sparse attention as those of a server: requests in slots, padded batches, and captures of their graphs."""

from typing import Final

from attnfuzz.kernels.sparse.inputs import graph_of
from attnfuzz.reference.case import Case, Launch, Mode, PageOrder, Pages, Request, Step, TableTail
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, Latent
from attnfuzz.reference.sparse.case import KvFormat, SparseCase, SparseMode, SparseStep

SLOTS_OF_STEP: Final = 1 << 12
"""More than the requests of a step: request b of step i has slot i * SLOTS_OF_STEP + b."""

_MODES: Final = {
    SparseMode.PREFILL: Mode.EXTEND,
    SparseMode.EXTEND: Mode.EXTEND,
    SparseMode.DECODE: Mode.DECODE,
    SparseMode.VERIFY: Mode.TARGET_VERIFY,
}

_TAILS: Final = (TableTail.ZEROS, TableTail.POISON, TableTail.STALE)


def drafts_of(case: SparseCase, step: SparseStep) -> int:
    """Return the number of tokens that requests draft on the server that runs a step.

    Verifications of the same number share a server. Prefills run on that with the most, decodes on one without.
    """
    if step.mode is SparseMode.VERIFY:
        return step.queries
    if step.mode is SparseMode.DECODE:
        return 0
    return max((each.queries for each in case.steps if each.mode is SparseMode.VERIFY), default=0)


def served(case: SparseCase, drafts: int, *, drafting: bool) -> Case:
    """Return the case of the server with `drafts`: its own steps, and then captures of the graphs that these run in.

    A server that is `drafting` runs the draft model, which extends by as many tokens as a verification has.
    """
    modes = _MODES | ({SparseMode.VERIFY: Mode.DRAFT_EXTEND_V2} if drafting else {})
    own = [(index, step) for index, step in enumerate(case.steps) if drafts_of(case, step) == drafts]
    steps = [_step(step, index, modes[step.mode]) for index, step in own]
    replayed = {graph_of(step): step for _, step in own if step.replayed}
    captures = [
        Step(
            mode=modes[step.mode],
            requests=(),
            padded_tokens=step.rows,
            tokens_per_request=step.queries,
            launch=Launch.CAPTURE,
        )
        for step in replayed.values()
    ]
    geometry = case.geometry
    return Case(
        backend=case.backend,
        geometry=Geometry(
            q_heads=geometry.query_heads,
            kv_heads=1,
            head_dim_qk=geometry.dim,
            head_dim_vo=geometry.value_dim,
            page_size=geometry.page_size,
            kv_dtype=DType.FLOAT8_E4M3 if geometry.format is KvFormat.PACKED else DType.BFLOAT16,
            latent=Latent(),
        ),
        steps=(*steps, *captures),
        pages=Pages(
            order=PageOrder.REVERSED if case.backwards else PageOrder.SHUFFLED, tail=_TAILS[case.variant % len(_TAILS)]
        ),
        max_len_slack=case.slack,
        outputs=case.outputs,
        guard=case.guard,
        seed=case.seed,
    )


def _step(step: SparseStep, index: int, mode: Mode) -> Step:
    return Step(
        mode=mode,
        requests=tuple(
            Request(index * SLOTS_OF_STEP + b, request.q_len, request.kv_len) for b, request in enumerate(step.requests)
        ),
        padded_tokens=step.rows,
        tokens_per_request=step.queries if step.mode.batched else 0,
        launch=Launch.REPLAY if step.replayed else Launch.EAGER,
    )


def capture_of(case: Case, step: Step) -> int:
    """Return the index of the step that captures the graph of a replayed one."""
    return next(
        index
        for index, each in enumerate(case.steps)
        if each.launch is Launch.CAPTURE and (each.mode, each.padded_tokens) == (step.mode, step.padded_tokens)
    )
