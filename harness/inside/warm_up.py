"""A case that needs nothing but torch: judged once, it leaves a process with what every first case pays for."""

import torch

from attnfuzz.harness.inside.execute import Execution
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.verdict.task import Task
from attnfuzz.kernels.function_backend import FunctionBackend
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import Geometry, KvLayout

_GEOMETRY = Geometry(q_heads=1, kv_heads=1, head_dim_qk=64, head_dim_vo=64, page_size=16, kv_layout=KvLayout.NHD)


def attends(
    *,
    out: torch.Tensor,
    query: torch.Tensor,
    k_cache: torch.Tensor,
    v_cache: torch.Tensor,
    block_tables: torch.Tensor,
    seq_lens: torch.Tensor,
    scale: float,
    **_: object,
) -> None:
    """Attention of one query to the first page, without products of matrices: their library takes long to load."""
    page, kv_len = int(block_tables[0, 0]), int(seq_lens[0])
    key, value = (cache[page, :kv_len].float() for cache in (k_cache, v_cache))
    weights = ((query.float() * key).sum(-1) * scale).softmax(0)
    out.copy_((weights[..., None] * value).sum(0, keepdim=True))


def judge_one(device: Device) -> Verdict:
    """Place, run and judge a decode of one request in this process."""
    backend = FunctionBackend(attends, Capability(device=device, modes=(Mode.DECODE,), layouts=(KvLayout.NHD,)))
    step = Step(mode=Mode.DECODE, requests=(Request(0, 1, 9),), padded_tokens=1, tokens_per_request=1)
    case = Case(backend=backend.name, geometry=_GEOMETRY, steps=(step,))
    return Execution(Task(case=case, backend=backend.name), lambda _: None, backend=backend).run()
