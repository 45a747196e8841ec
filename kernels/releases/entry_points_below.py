"""FlashInfer's entry points from a release's view: bound to its own FlashInfer's signature, checked, and launched."""

import inspect
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import torch
from packaging.version import Version

from attnfuzz.kernels.entry_points.catalogue import ENTRY_POINTS
from attnfuzz.kernels.interface.backend import Bench, Op, Unsupported
from attnfuzz.kernels.meaning import Breach
from attnfuzz.kernels.releases import recording, stand_ins, triton_launches
from attnfuzz.kernels.releases.factories import GuardedFactories
from attnfuzz.kernels.releases.origins import Origins
from attnfuzz.kernels.releases.placement import Placement
from attnfuzz.kernels.releases.recording import Recording
from attnfuzz.kernels.releases.release import Release
from attnfuzz.kernels.releases.signatures import signatures

NOTHING: Final[Mapping[str, Any]] = {}

_UNREAD: Final = frozenset({"multi_ctas_kv_counter_buffer"})
"""Scratch of the replaced kernels."""


@dataclass(frozen=True)
class KernelsBelow:
    """`ops` by the names of FlashInfer's functions.

    Those in `real` are FlashInfer's own and get a release's arguments unchanged; the others are this project's and
    replace kernels that the device lacks. `roundings` counts the roundings of their outputs to the query's dtype.
    """

    ops: tuple[Op, ...]
    real: frozenset[str] = frozenset()
    roundings: int = 1


class Below:
    """The kernels below a release, which pins a version of FlashInfer, while it runs on a bench."""

    def __init__(
        self, flashinfer: Version | None, bench: Bench, kernels: KernelsBelow, origins: Origins | None = None
    ) -> None:
        self.flashinfer = flashinfer
        self._bench, self._real, self._origins = bench, kernels.real, origins
        self._ops = {op.name: op for op in kernels.ops}
        self._signatures = signatures(flashinfer)

    def call(self, function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an entry point of FlashInfer. TypeError for arguments that the pinned release of it does not take."""
        op = self.op(function)
        bound = self.bound(function, args, kwargs)
        # Arguments at their defaults may be unknown to the replacing kernel.
        parameters = bound.signature.parameters
        arguments = {name: value for name, value in bound.arguments.items() if value is not parameters[name].default}
        unread: dict[str, Any] = {}
        if function not in self._real:
            unread = {name: arguments.pop(name) for name in _UNREAD.intersection(arguments)}
            arguments = _for_stand_ins(function, arguments)
        return self.launch(op, arguments, unread)

    def bound(self, function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> inspect.BoundArguments:
        """Bind arguments to the signature of a function, or method, of the pinned FlashInfer. Raises TypeError."""
        signature = self._signatures.get(function)
        if signature is None:
            raise AttributeError(f"the FlashInfer that this release pins has no {function}")
        return signature.bind(*args, **kwargs)

    def op(self, function: str) -> Op:
        """Return the kernel for a function. Raises Unsupported if there is none."""
        if function not in self._ops:
            raise Unsupported(f"no kernel here replaces {function}")
        return self._ops[function]

    def launch(self, op: Op, arguments: dict[str, Any], unread: Mapping[str, Any] = NOTHING) -> Any:
        """Put arguments into guarded memory and launch `op`; a capture records the launch.

        Preconditions are also those of `unread` arguments, which the kernel does not take.
        Returns `out`, with `lse` if the caller asks for it: the release's tensors, or new ones.
        """
        bench, placement, origins = self._bench, Placement(self._bench.memory, self._bench.device), self._origins
        called = origins.line() if origins is not None else None
        with recording.outside():
            placed = {
                name: placement.argument(name, value, written=name in op.writes) for name, value in arguments.items()
            }
            made = {name: placement.result(name, *form) for name, form in missing_results(op.name, arguments).items()}
            placed |= made
            if "out" in placed and placed.get("out_dtype") == placed["out"].dtype:
                # Redundant with `out`, and a script can't contain a dtype.
                del placed["out_dtype"]

        def work() -> None:
            with recording.outside():
                if origins is not None:
                    bench.launcher.called_from(origins.words(called, arguments))
                placement.load()
                # A capturing stream has no values to look at.
                if bench.device.type == "cpu" or not torch.cuda.is_current_stream_capturing():
                    for breach in _breaches(op.name, {**placed, **unread}):
                        bench.launcher.report(", ".join(breach.arguments), breach.text)
                bench.launcher.launch(op, **placed)
                placement.store()

        if origins is not None:
            for name in op.writes:
                if isinstance(arguments.get(name), torch.Tensor):
                    origins.wrote(arguments[name])
        current = Recording.current()
        if current is None:
            work()
        else:
            current.before(placement.renew)
            current.keep(work)
        out = made.get("out", arguments.get("out"))
        return (out, made.get("lse", arguments.get("lse"))) if arguments.get("return_lse") else out


def _breaches(function: str, arguments: Mapping[str, Any]) -> tuple[Breach, ...]:
    """Return the preconditions that a call breaks, the most explanatory first; none for an unknown function.

    They apply to padded rows as well, which a kernel can't distinguish from others.
    """
    entry = ENTRY_POINTS.get(function)
    return () if entry is None else entry.breaches(arguments)


def _for_stand_ins(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """Adapt arguments that this project's kernels don't take, without changing any result."""
    query = arguments.get("query")
    if query is not None and query.dtype.itemsize == 1:
        # Every float8 is a bfloat16 and a float16.
        out = arguments.get("out")
        wide = missing_results(function, {**arguments, "out": None})["out"].dtype if out is None else out.dtype
        arguments["query"] = query.to(wide)
    lengths = arguments.get("seq_lens")
    if function == "trtllm_ragged_attention_deepseek" and lengths is not None:
        # SGLang passes int64 lengths (0.5.9, trtllm_mla_backend.py:1134), which FlashInfer handles.
        arguments["seq_lens"] = lengths.to(torch.int32)
    return arguments


@contextmanager
def below(
    flashinfer: Version | None, bench: Bench, kernels: KernelsBelow, origins: Origins | None = None
) -> Iterator[Below]:
    """Run code of a release on `bench`, with `kernels` in place of those of `flashinfer`, the version that it pins.

    Inside, its tensors come from guarded memory, and its Triton kernels are launches like any other. `origins` notes
    its lines for the text of failures. Must not be entered in two threads.
    """
    lower = Below(flashinfer, bench, kernels, origins)
    noted = nullcontext() if origins is None else origins
    with stand_ins.answered_by(lower), GuardedFactories(bench), noted, triton_launches.through(lower.launch):
        yield lower


def code_of(release: Release, bench: Bench, kernels: KernelsBelow) -> Callable[[], AbstractContextManager[Below]]:
    """Return a function that makes contexts for code of `release`, see `below`; they note its lines together.

    Inside, torch's inference mode is off, even if the judge, which is in it, runs a step again.
    """
    origins = Origins(release.root, release.project.name)

    @contextmanager
    def running() -> Iterator[Below]:
        with below(release.flashinfer, bench, kernels, origins) as lower, torch.inference_mode(mode=False):
            yield lower

    return running


class TensorForm(NamedTuple):
    """The shape and dtype of a tensor to be made."""

    shape: tuple[int, ...]
    dtype: torch.dtype


def missing_results(function: str, arguments: Mapping[str, Any]) -> dict[str, TensorForm]:
    """Return the forms of `out` and `lse` that the caller leaves to the function; none if it only writes in place.

    FlashInfer 0.6.3: decode.py:2345 and prefill.py:3707 (paged: the query's dtype unless out_dtype says otherwise),
    prefill.py:3486 (packed keys: the query's dtype, the values' head dim; LSE float32 per token and head), mla.py:652
    (bfloat16, kv_lora_rank); 0.7.2: prefill.py:6251 (packed keys: bfloat16 for float8 queries) and 7752 (fmha_v2).
    """
    dim_of_values = _DIM_OF_VALUES.get(function)
    if dim_of_values is None:
        return {}
    query, dim = _query(arguments), dim_of_values(arguments)
    forms = {"out": TensorForm((*query.shape[:-1], dim), _out_dtype(function, arguments))}
    if arguments.get("return_lse"):
        forms["lse"] = TensorForm(
            (query.numel() // (query.shape[-2] * query.shape[-1]), query.shape[-2]), torch.float32
        )
    return {name: form for name, form in forms.items() if arguments.get(name) is None}


def _out_dtype(function: str, arguments: Mapping[str, Any]) -> torch.dtype:
    query = _query(arguments)
    named = arguments.get("out_dtype")
    if isinstance(named, torch.dtype):
        return named
    if function == "trtllm_batch_decode_with_kv_cache_mla":
        return torch.bfloat16
    packed = function == "trtllm_ragged_attention_deepseek"
    return torch.bfloat16 if packed and query.dtype.itemsize == 1 else query.dtype


def _query(arguments: Mapping[str, Any]) -> torch.Tensor:
    """Return the query argument, or the first part of fmha_v2's joint argument."""
    query: torch.Tensor = arguments["query"] if "query" in arguments else arguments["qkv"][0]
    return query


def _paged(arguments: Mapping[str, Any]) -> int:
    """Return the head dim of values: K and V are a pair, or one behind the other in one tensor."""
    return _last_dim(arguments["kv_cache"])


def _last_dim(cache: torch.Tensor | Sequence[torch.Tensor]) -> int:
    return int((cache if isinstance(cache, torch.Tensor) else cache[-1]).shape[-1])


_DIM_OF_VALUES: Final[Mapping[str, Callable[[Mapping[str, Any]], int]]] = {
    "trtllm_batch_decode_with_kv_cache": _paged,
    "trtllm_batch_context_with_kv_cache": _paged,
    "trtllm_fmha_v2_prefill": lambda arguments: _last_dim(arguments["qkv"][-1]),
    "trtllm_ragged_attention_deepseek": lambda arguments: int(arguments["value"].shape[-1]),
    "trtllm_batch_decode_with_kv_cache_mla": lambda arguments: int(arguments["kv_lora_rank"]),
}
