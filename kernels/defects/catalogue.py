"""All planted defects, and the backends with one or two of them."""

from dataclasses import replace
from functools import cache

from attnfuzz.kernels.defects import (
    arguments,
    chunks,
    custom_masks,
    graphs,
    kernels,
    lives,
    memory,
    planners,
    recurrent,
    rope,
    slots,
    steps,
)
from attnfuzz.kernels.defects.defect import AttentionDefect, Defect
from attnfuzz.kernels.defects.native import defective
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.trtllm.backends import TRTLLM_BACKENDS, TrtllmBackend

DEFECTS: tuple[Defect, ...] = (
    *(
        defect
        for part in (planners, custom_masks, graphs, chunks, arguments, memory, kernels, lives)
        for defect in part.DEFECTS
    ),
    *kernels.WRITE_DEFECTS,
    *kernels.SPARSE_DEFECTS,
    *slots.DEFECTS,
    *rope.DEFECTS,
    *steps.DEFECTS,
    *recurrent.DEFECTS,
)


@cache
def planted() -> dict[str, Backend]:
    """Return one backend per defect, named like trtllm_mha+window_one_short."""
    return {backend_name(defect): defect.planted(backend_name(defect)) for defect in DEFECTS}


def backend_name(defect: Defect) -> str:
    """Return the name of the backend with this defect."""
    return f"{defect.backend}+{defect.name}"


@cache
def pair(name: str) -> Backend | None:
    """Return the backend named like trtllm_mha+window_one_short+sink_missing_from_lse, or None."""
    correct, *planted = name.split("+")
    by_name = {(defect.backend, defect.name): defect for defect in DEFECTS if isinstance(defect, AttentionDefect)}
    chosen = [by_name[correct, each] for each in planted if (correct, each) in by_name]
    if len(planted) != 2 or len(chosen) != len(planted):
        return None
    base = next(backend for backend in TRTLLM_BACKENDS if backend.name == correct)
    return _with_both(base, chosen, name)


def _with_both(correct: TrtllmBackend, defects: list[AttentionDefect], name: str) -> Backend | None:
    """Combine the kernels and the session methods of both defects. Return None if they conflict."""
    planted = [defect.plant(correct) for defect in defects]
    if any(type(each) is not type(correct) for each in planted):
        # Kernels with another noise model.
        return None
    native = [defect.name for defect in defects if defect in kernels.DEFECTS]
    changes = [
        defect
        for defect, each in zip(defects, planted, strict=True)
        if each.session is correct.session and defect.name not in native
    ]
    sessions = [each.session for each in planted if each.session is not correct.session]
    parts = [part for session in sessions for part in vars(session) if not part.startswith("__")]
    if len(set(parts)) < len(parts):
        # Both override the same method or part.
        return None
    session = type("Session", tuple(sessions), {}) if sessions else correct.session
    both = replace(correct, name=name, table=defective(*native) if native else correct.table, session=session)
    for change in changes:
        both = change.plant(both)
    return both
