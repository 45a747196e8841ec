"""FlashInfer's own kernels below a release on a Hopper GPU: its wrappers plan and run as launches.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import importlib
import inspect
from collections import OrderedDict
from collections.abc import Callable
from typing import Any, Final

import torch

from attnfuzz.kernels.backend import Op
from attnfuzz.kernels.releases.stand_ins import FAST_PLAN, WRAPPERS, current

_WORKSPACES: Final = ("_float_workspace_buffer", "_int_workspace_buffer")
_LISTS: Final = ("_qo_indptr_buf", "_paged_kv_indptr_buf", "_paged_kv_indices_buf", "_paged_kv_last_page_len_buf")
"""The tensors of a wrapper, by its attributes: those that plans write and runs use, and those that runs read
(FlashInfer 0.7.2: prefill.py, decode.py)."""


def have_own_kernels(backend: Any, writer: Any) -> None:
    """Put FlashInfer's own classes back into the module of the FlashInfer backend, with launches for their methods.

    vLLM's kernel that writes the cache is compiled for a server: its `writer` in Triton does the same
    (v1/attention/ops/triton_reshape_and_cache_flash.py).
    """
    places = {"BatchAttentionWithAttentionSinkWrapper": "attention", "BatchDecodeWithPagedKVCacheWrapper": "decode"}
    for name in WRAPPERS:
        if hasattr(backend, name):
            module = importlib.import_module(f"flashinfer.{places.get(name, 'prefill')}")
            setattr(backend, name, launching(getattr(module, name)))
    if hasattr(backend, FAST_PLAN):
        own = getattr(importlib.import_module("flashinfer.decode"), FAST_PLAN)
        setattr(backend, FAST_PLAN, _launched(own, FAST_PLAN, plans=True))
    utils = importlib.import_module("flashinfer.utils")
    if hasattr(backend, "get_device_sm_count"):
        backend.get_device_sm_count = utils.get_device_sm_count
    library: Any = torch.ops._C_cache_ops  # noqa: SLF001 - the name of vLLM's library
    library.reshape_and_cache_flash = writer.triton_reshape_and_cache_flash


def launching(own: type) -> type:
    """A subclass of one of FlashInfer's wrappers whose `plan` and `run` are launches."""
    methods = {
        name: _launched(getattr(own, name), f"{own.__name__}.{name}", plans=name == "plan") for name in ("plan", "run")
    }
    return type(own.__name__, (own,), methods)


def _launched(function: Callable[..., Any], name: str, *, plans: bool) -> Callable[..., Any]:
    """A method of a wrapper, or a function that takes one, as a launch of its arguments and the wrapper's tensors.

    A run reads the lists that the plan copied to the device, which get a place of their own.
    """
    signature = inspect.signature(function)
    first = next(iter(signature.parameters))
    writes = frozenset({*_WORKSPACES, *(_LISTS if plans else ("out", "lse"))})

    def call(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(wrapper, *args, **kwargs).arguments)
        del given[first]
        own = {each: getattr(wrapper, each, None) for each in (*_WORKSPACES, *_LISTS)}
        own = {each: value for each, value in own.items() if isinstance(value, torch.Tensor)}

        def work(**placed: Any) -> Any:
            if not plans:
                vars(wrapper).update({each: placed[each] for each in own})
            bound = inspect.BoundArguments(signature, OrderedDict({**placed, first: wrapper}))
            return function(*bound.args, **bound.kwargs)

        return current(name).launch(Op(name, work, writes, own=True, plans=plans), {**given, **own})

    return call
