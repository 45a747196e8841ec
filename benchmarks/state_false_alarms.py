"""Judge many rows of correct kernels of recurrent state: none may fail.

    python benchmarks/state_false_alarms.py [--backend native:kda ...] [--rows 1000000] [--seconds 120] [--jobs 2]

For each backend and dtype of its inputs, wide cases run in one process or more, until as many rows were judged or the
time is over: a prompt of each request around the edges of chunks, then two decodes or verifies. A row is one head of a
token's output, or of a state for one element of the key; a convolution's are tokens. Prints the failures, and the
largest margin of each tier.
"""

import random
from collections.abc import Iterator
from typing import Any

import click
from judged_rows import COLUMNS, judged_rows
from measurement import backends_option, count_option, seed_option, show

from attnfuzz.harness.inside.execute import backend_of
from attnfuzz.kernels.recurrent.capability import StateCapability
from attnfuzz.kernels.recurrent.native import NATIVE_STATES
from attnfuzz.reference.case_file import possible
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import (
    StateCase,
    StateMode,
    StateOp,
    StateRow,
    StateShape,
    StateStep,
    StateValues,
)

_PROMPTS = (1, 2, 17, 63, 64, 65, 130)
_REQUESTS = 6


@click.command(help=__doc__)
@backends_option(tuple(each.name for each in NATIVE_STATES))
@count_option("--rows", 1_000_000, "For each dtype.")
@click.option("--seconds", type=click.FloatRange(min=0), default=120.0, show_default=True, help="For each dtype.")
@count_option("--jobs", 1, "Processes.")
@seed_option
def main(backends: tuple[str, ...], rows: int, seconds: float, jobs: int, seed: int) -> None:
    """Measure each backend, and print a table."""
    groups = [(name, dtype) for name in backends for dtype in _can(name).dtypes]
    judged = judged_rows(drawn, groups, jobs=jobs, rows=rows, seconds=seconds, seed=seed)
    table = [(name, str(dtype), *each.cells) for (name, dtype), each in zip(groups, judged, strict=True)]
    show("Rows and states of correct kernels", ("backend", "dtype", *COLUMNS), table)


def _can(name: str) -> Any:
    return backend_of(name).capability


def drawn(name: str, dtype: DType, seed: int) -> Iterator[StateCase]:
    """Yield wide cases that the backend supports."""
    can: StateCapability = _can(name)
    source = random.Random(seed)
    while True:
        drafts = source.randint(1, can.most_drafts) if can.most_drafts and StateMode.VERIFY in can.modes else 0
        convolves = can.op is StateOp.CONV
        case = StateCase(
            backend=name,
            op=can.op,
            shape=_shape(source, can),
            steps=tuple(_steps(source, can, drafts)),
            dtype=dtype,
            state_dtype=dtype if convolves else source.choice(can.state_dtypes),
            drafts=drafts,
            normed=source.choice(can.normed),
            gated=source.choice(can.gated),
            biased=source.choice(can.biased),
            activated=source.choice(can.activated),
            values=StateValues.NORMAL if convolves else source.choice(tuple(StateValues)),
            seed=source.randrange(1 << 31),
        )
        if possible(case) and can.why_not(case) is None:
            yield case


def _shape(source: random.Random, can: StateCapability) -> StateShape:
    if can.op is StateOp.CONV:
        return StateShape(
            heads=1, value_heads=1, key_dim=1, value_dim=can.channels * 64, width=source.choice(can.widths)
        )
    key_dim = source.choice(can.key_dims or (16, 40, 64))
    value_dim = key_dim if can.square else source.choice(can.value_dims or (16, 33, 64))
    if can.op is StateOp.SSM_OF_CHANNELS:
        return StateShape(heads=1, value_heads=64, key_dim=key_dim, value_dim=1)
    heads = source.choice((4, 8))
    return StateShape(heads=heads, value_heads=heads * (2 if can.grouped else 1), key_dim=key_dim, value_dim=value_dim)


def _steps(source: random.Random, can: StateCapability, drafts: int) -> Iterator[StateStep]:
    begun = StateMode.PREFILL in can.modes
    if begun:
        prompts = [source.choice(_PROMPTS) for _ in range(_REQUESTS)]
        rows = tuple(StateRow(lane=lane, tokens=tokens, initial=False) for lane, tokens in enumerate(prompts))
        yield StateStep(mode=StateMode.PREFILL, rows=rows)
    later = StateMode.VERIFY if drafts else StateMode.DECODE
    if later not in can.modes:
        return
    last = 1
    for _ in range(2):
        accepted = source.randint(1, last)
        rows = tuple(StateRow(lane=lane, tokens=1 + drafts, accepted=accepted) for lane in range(_REQUESTS))
        yield StateStep(mode=later, rows=rows)
        last = 1 + drafts


if __name__ == "__main__":
    main()
