"""Small cases for tests of the harness."""

from attnfuzz.harness.sandbox.check import Runner
from attnfuzz.reference.calls import Buffer, Call, CallCase, View
from attnfuzz.reference.case import Case, Guard, Mode, Outputs, Request, Step
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.geometry import Geometry, Latent

GEOMETRY = Geometry(q_heads=4, kv_heads=2, head_dim_qk=8, head_dim_vo=8, page_size=4)
LATENT = Geometry(
    q_heads=4, kv_heads=1, head_dim_qk=24, head_dim_vo=16, page_size=4, latent=Latent(rank=16, rope=8, nope=8, vo=16)
)


def decode_case(backend: str, *kv_lens: int, padded: int | None = None, seed: int = 0) -> Case:
    """A decode of requests with these KV lengths (default 6, 0 and 9), padded by one row unless `padded` says."""
    lengths = kv_lens or (6, 0, 9)
    requests = tuple(Request(slot, 1, length) for slot, length in enumerate(lengths))
    rows = len(lengths) + 1 if padded is None else padded
    step = Step(mode=Mode.DECODE, requests=requests, padded_tokens=rows, tokens_per_request=1)
    return Case(backend=backend, geometry=GEOMETRY, steps=(step,), seed=seed)


def draft_extend_case(backend: str, guard: Guard = Guard.RIGHT) -> Case:
    """Two requests of four draft tokens, padded to three after planning."""
    step = Step(
        mode=Mode.DRAFT_EXTEND_V2,
        requests=(Request(0, 4, 5), Request(1, 4, 30)),
        padded_tokens=12,
        tokens_per_request=4,
    )
    return Case(backend=backend, geometry=GEOMETRY, steps=(step,), guard=guard)


def chunked_case(backend: str, outputs: Outputs = Outputs.POISONED) -> Case:
    """Three prompts whose prefixes take different numbers of chunks, one of them none."""
    step = Step(
        mode=Mode.CHUNKED_PREFILL, requests=(Request(0, 2, 5), Request(1, 3, 9), Request(2, 2, 2)), padded_tokens=8
    )
    return Case(backend=backend, geometry=LATENT, steps=(step,), chunk_capacity=6, outputs=outputs)


def calls_of(runner: Runner, case: Case) -> CallCase:
    """The literal calls of the last step of a case that launches something."""
    _, calls = runner.trace(case)
    assert calls is not None
    return calls


CALLS = CallCase(
    backend="torch_sdpa",
    buffers=(Buffer(name="x", dtype=DType.INT32, size=1),),
    calls=(Call(op="attend", arguments={"x": View(buffer="x", shape=(1,), stride=(1,))}),),
)
"""A case made of literal calls."""
