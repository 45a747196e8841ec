"""FlashInfer's own kernels below a release on a Hopper GPU: its wrappers plan and run as launches.

A file and line below vllm/ is that of vLLM 0.33.0 unless another version is named.
"""

import importlib
import inspect
from collections import OrderedDict
from collections.abc import Callable, Iterable
from typing import Any, Final

import torch

from attnfuzz.kernels.interface.backend import Op
from attnfuzz.kernels.releases.stand_ins import FAST_PLAN, WRAPPERS, current

_WORKSPACES: Final = ("_float_workspace_buffer", "_int_workspace_buffer")
_LISTS: Final = ("_qo_indptr_buf", "_paged_kv_indptr_buf", "_paged_kv_indices_buf", "_paged_kv_last_page_len_buf")
"""Attributes of a wrapper that hold tensors: those that plans write and runs use, and those that runs read
(FlashInfer 0.7.2: prefill.py, decode.py)."""


def have_own_kernels(backend: Any, writer: Any) -> None:
    """Restore FlashInfer's own classes in the module of the FlashInfer backend, with their methods run as launches.

    vLLM's kernel that writes the cache is in a compiled library, which is not loaded. Its equivalent `writer` in Triton
    replaces it (v1/attention/ops/triton_reshape_and_cache_flash.py).
    """
    own: Any = importlib.import_module("flashinfer")
    replaced: dict[str, Any] = {each.__name__: each for each in launching([getattr(own, name) for name in WRAPPERS])}
    replaced[FAST_PLAN] = _launched(own.decode.fast_decode_plan, FAST_PLAN, plans=True)
    replaced["get_device_sm_count"] = own.utils.get_device_sm_count
    for name, value in replaced.items():
        if hasattr(backend, name):
            setattr(backend, name, value)
    library: Any = torch.ops._C_cache_ops  # noqa: SLF001 - the name of vLLM's library
    library.reshape_and_cache_flash = writer.triton_reshape_and_cache_flash


def launching(wrappers: Iterable[type]) -> list[type]:
    """Return subclasses of FlashInfer's wrappers whose `plan` and `run` are launches.

    Inheritance between wrappers is kept: a release checks whether a wrapper with sinks is a prefill wrapper.
    """
    made: dict[type, type] = {}
    for own in sorted(wrappers, key=lambda each: len(each.__mro__)):
        methods = {
            name: _launched(getattr(own, name), f"{own.__name__}.{name}", plans=name == "plan")
            for name in ("plan", "run")
        }
        bases = (each for base, each in made.items() if issubclass(own, base))
        made[own] = type(own.__name__, (own, *bases), methods)
    return list(made.values())


def _launched(function: Callable[..., Any], name: str, *, plans: bool) -> Callable[..., Any]:
    """Wrap a wrapper's method, or a function on a wrapper, as a launch on its arguments and the wrapper's tensors.

    A run reads the lists that the plan copied to the device, which are placed in guarded memory. Host tensors are not
    part of the launch.
    """
    signature = inspect.signature(function)
    first = next(iter(signature.parameters))
    writes = frozenset({*_WORKSPACES, *(_LISTS if plans else ("out", "lse"))})

    def call(wrapper: Any, *args: Any, **kwargs: Any) -> Any:
        given = dict(signature.bind(wrapper, *args, **kwargs).arguments)
        del given[first]
        on_host = {
            each: value
            for each, value in given.items()
            if isinstance(value, torch.Tensor) and value.device != wrapper.device
        }
        own = {each: getattr(wrapper, each, None) for each in (*_WORKSPACES, *_LISTS)}
        own = {each: value for each, value in own.items() if isinstance(value, torch.Tensor)}

        def work(**placed: Any) -> Any:
            if not plans:
                vars(wrapper).update({each: placed[each] for each in own})
            bound = inspect.BoundArguments(signature, OrderedDict({**placed, **on_host, first: wrapper}))
            return function(*bound.args, **bound.kwargs)

        passed = {each: value for each, value in {**given, **own}.items() if each not in on_host}
        return current(name).launch(Op(name, work, writes, own=True, plans=plans), passed)

    return call
