"""Warming up a GPU worker, so that its first case costs little more than the others."""

import torch

from attnfuzz.harness.inside.execute import Execution, backend_of
from attnfuzz.harness.verdict.failures import Verdict
from attnfuzz.harness.workers.gpu_gone import GpuGone
from attnfuzz.harness.workers.task import Task
from attnfuzz.harness.workers.worker import asking_gpu
from attnfuzz.kernels.functions.function_backend import FunctionBackend
from attnfuzz.kernels.interface.backend import Backend
from attnfuzz.kernels.interface.toolchain import toolchains
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Mode, Request, Step
from attnfuzz.reference.device import Device
from attnfuzz.reference.geometry import Geometry, KvLayout
from attnfuzz.reference.user_error import UserError


def preload() -> None:
    """Import packages that GPU backends need before workers are forked, because that takes seconds."""
    for toolchain in toolchains():
        toolchain.preload()


def begin(*names: str) -> None:
    """Create the CUDA context, judge a case, and load the needs of the named backends.

    Called in the worker and never in the nursery: neither a context nor its threads survive a fork. Raises GpuGone.
    """
    with asking_gpu():
        create_context()
    judge_one(Device.CUDA)
    for name in names:
        backend_of(name)
    for toolchain in toolchains():
        toolchain.settle()


def create_context() -> None:
    """Create the CUDA context of this process. Raises GpuGone, or CannotBegin if the GPU has no memory."""
    try:
        torch.cuda.init()
        torch.ones(1, device="cuda").add_(1)
        torch.cuda.synchronize()
    except RuntimeError as error:
        reason = str(error).partition("\n")[0]
        if "out of memory" in reason:
            # Other processes may have it all, such as those of a campaign that has just ended.
            raise CannotBegin(
                f"the GPU has no memory for a worker: free some, or give fewer --jobs ({reason})"
            ) from error
        raise GpuGone(f"no CUDA context can be created ({reason})") from error


class CannotBegin(UserError):
    """A worker can't begin on the GPU. The message is one line with the remedy."""


def load_needs(backend: Backend) -> None:
    """Load the packages and compiled modules of a backend, which its cases would load one by one."""
    for toolchain in toolchains():
        toolchain.load_needs(backend)


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
    """Attend with one query to the first page, without matrix products, whose library loads slowly."""
    page, kv_len = int(block_tables[0, 0]), int(seq_lens[0])
    key, value = (cache[page, :kv_len].float() for cache in (k_cache, v_cache))
    weights = ((query.float() * key).sum(-1) * scale).softmax(0)
    out.copy_((weights[..., None] * value).sum(0, keepdim=True))


def judge_one(device: Device) -> Verdict:
    """Place, run and judge a decode of one request in this process."""
    backend = FunctionBackend(attends, Capability(device=device, modes=(Mode.DECODE,)))
    step = Step(mode=Mode.DECODE, requests=(Request(0, 1, 9),), padded_tokens=1, tokens_per_request=1)
    case = Case(backend=backend.name, geometry=_GEOMETRY, steps=(step,))
    return Execution(Task(case=case, backend=backend.name), lambda _: None, backend=backend).run()
