"""Validity of cases of recurrent state."""

from collections.abc import Iterator

from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import PaddedRow, StateCase, StateMode, StateOp, StateRow, StateStep
from attnfuzz.reference.validity import MAX_STEPS, ImpossibleCase, validate_backend_name

MAX_TOKENS = 1 << 16
MAX_STATE = 1 << 20
MAX_DRAFTS = 15
_DTYPES = (DType.FLOAT32, DType.BFLOAT16, DType.FLOAT16)


def validate_states(case: StateCase) -> None:
    """Raise ImpossibleCase for the first rule that `case` breaks."""
    validate_backend_name(case.backend)
    for field, value, low, high in _bounded(case):
        if not low <= value <= high:
            raise ImpossibleCase(field, value, f"must be at least {low} and at most {high}")
    for broken in (*_broken_by_op(case), *_broken_by_steps(case)):
        raise ImpossibleCase(*broken)


def _bounded(case: StateCase) -> Iterator[tuple[str, int, int, int]]:
    """Yield (field, value, lowest, highest) for every number that has its own bounds."""
    shape = case.shape
    yield "shape.heads", shape.heads, 1, 1024
    yield "shape.value_heads", shape.value_heads, 1, 1 << 14
    yield "shape.key_dim", shape.key_dim, 1, 1024
    yield "shape.value_dim", shape.value_dim, 1, 1 << 14
    yield "shape.width", shape.width, 2, 16
    yield "the size of a state", shape.value_heads * shape.key_dim * shape.value_dim, 1, MAX_STATE
    yield "drafts", case.drafts, 0, MAX_DRAFTS
    yield "gap", case.gap, 0, 1 << 16
    yield "seed", case.seed, 0, (1 << 63) - 1
    yield "the number of steps", len(case.steps), 1, MAX_STEPS
    for step in case.steps:
        yield "padding", step.padding, 0, 1024
        yield "the number of rows", len(step.rows), 0, 1024
        yield "the number of tokens", step.tokens, 0, MAX_TOKENS
        for row in step.rows:
            yield "lane", row.lane, 0, 1023
            yield "tokens", row.tokens, 0, MAX_TOKENS
            yield "accepted", row.accepted, 0, case.drafts + 1


def _broken_by_op(case: StateCase) -> Iterator[tuple[str, object, str]]:
    shape, op = case.shape, case.op
    if shape.value_heads % shape.heads:
        yield "shape.value_heads", shape.value_heads, f"must be a multiple of heads {shape.heads}"
    if op is StateOp.CONV and (shape.value_heads, shape.key_dim) != (1, 1):
        yield "shape", (shape.value_heads, shape.key_dim), "a convolution has one head, and a key of one element"
    if op is StateOp.SSM_OF_CHANNELS and (shape.heads, shape.value_dim) != (1, 1):
        yield "shape", (shape.heads, shape.value_dim), "channels share B and C, and have one element"
    if case.dtype not in _DTYPES or case.state_dtype not in _DTYPES:
        yield "dtype", case.dtype.value, f"must be one of {', '.join(_DTYPES)}, as must state_dtype"
    if op is StateOp.CONV and case.state_dtype not in (case.dtype, DType.FLOAT32):
        yield "state_dtype", case.state_dtype.value, "a convolution keeps its inputs, in their dtype or in float32"
    yield from _broken_by_options(case)


def _broken_by_options(case: StateCase) -> Iterator[tuple[str, object, str]]:
    op = case.op
    if case.normed and not op.is_delta:
        yield "normed", True, "only the delta rule has keys of length 1"
    if case.gated and not op.is_ssm:
        yield "gated", True, "only Mamba has an output gate"
    if (case.no_skip or case.no_step_bias or case.no_softplus) and not op.is_ssm:
        yield "no_skip", case.no_skip, "only Mamba has D, a bias of steps, and a softplus"
    if case.narrow and op in (StateOp.CONV, StateOp.DECAY):
        yield "narrow", True, "this op has no parameters of heads"
    if case.strided and case.transposed:
        yield "transposed", True, "inputs are parts of wider rows, or transposed"
    if (case.biased or case.activated) and op is not StateOp.CONV:
        yield "biased", True, "only a convolution has a bias or an activation"
    if case.move and op is StateOp.CONV:
        yield "move", True, "a convolution's inputs stay in their slot"


def _broken_by_steps(case: StateCase) -> Iterator[tuple[str, object, str]]:
    verified: dict[int, int] = {}
    held: set[int] = set()
    for step in case.steps:
        lanes = [row.lane for row in step.rows]
        if len(set(lanes)) < len(lanes):
            yield "lane", lanes, "two requests of a step can't share a lane"
        if step.replayed and (step.mode is StateMode.PREFILL or case.padded_row is PaddedRow.EMPTY):
            yield "replayed", True, "only decodes and verifies are captured, with padding rows that have tokens"
        if step.mode is StateMode.DECODE and case.drafts:
            yield "mode", step.mode.value, "a server with drafts verifies"
        for row in step.rows:
            yield from _broken_by_row(step, row, case, verified, held)
        for row in step.rows:
            if row.tokens:
                held.add(row.lane)
                verified[row.lane] = row.tokens if step.mode is StateMode.VERIFY else 1


def _broken_by_row(
    step: StateStep, row: StateRow, case: StateCase, verified: dict[int, int], held: set[int]
) -> Iterator[tuple[str, object, str]]:
    if not row.initial and (step.mode is not StateMode.PREFILL or not row.tokens):
        yield "initial", False, "a new request begins with a prefill of some tokens"
    if step.mode is StateMode.DECODE and row.tokens != 1:
        yield "tokens", row.tokens, "a decode has one token of each request"
    if step.mode is StateMode.VERIFY and row.tokens > case.drafts + 1:
        yield "tokens", row.tokens, f"a verify has up to {case.drafts + 1} tokens of each request"
    if step.mode is not StateMode.VERIFY and row.accepted != 1:
        yield "accepted", row.accepted, "only a verify continues after accepted drafts"
    if row.lane in held and row.accepted > verified.get(row.lane, 1):
        yield "accepted", row.accepted, "at most the tokens of the last step can be accepted"
    if step.mode is StateMode.PREFILL and row.initial and verified.get(row.lane, 1) > 1:
        yield "initial", True, "a prefill continues a prefill"
