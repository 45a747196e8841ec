"""FlashInfer's entry points as a release sees them: bound as its own FlashInfer would, checked, and launched by us."""

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch

from attnfuzz.kernels.backend import Bench, Op, Unsupported
from attnfuzz.kernels.sglang import boundary, recording, sgl_kernels, stand_ins, triton_launches
from attnfuzz.kernels.sglang.factories import GuardedFactories
from attnfuzz.kernels.sglang.kernels_below import KernelsBelow
from attnfuzz.kernels.sglang.loader import Loaded
from attnfuzz.kernels.sglang.placement import Placement
from attnfuzz.kernels.sglang.recording import Recording
from attnfuzz.kernels.sglang.results import missing_results
from attnfuzz.kernels.sglang.signatures import bind, signatures


class Below:
    """What lies below a release while it runs on a bench."""

    def __init__(self, loaded: Loaded, bench: Bench, kernels: KernelsBelow) -> None:
        self._bench, self._real = bench, kernels.real
        self._ops = {op.name: op for op in kernels.ops}
        self._signatures = signatures(loaded.release.flashinfer)

    def call(self, function: str, args: tuple[Any, ...], kwargs: Mapping[str, Any]) -> Any:
        """Run an entry point of FlashInfer. TypeError for arguments that the pinned release of it does not take."""
        if function in sgl_kernels.FUNCTIONS:
            return sgl_kernels.FUNCTIONS[function](self, *args, **kwargs)
        op = self.op(function)
        signature = self._signatures.get(function)
        if signature is None:
            raise AttributeError(f"the FlashInfer that this release pins has no {function}")
        bound = bind(signature, args, kwargs)
        # What is left at its default need not be known to the kernel that stands in.
        arguments = {name: value for name, value in bound.items() if value is not signature.parameters[name].default}
        if function not in self._real:
            arguments = _for_stand_ins(function, arguments)
        return self.launch(op, arguments)

    def op(self, function: str) -> Op:
        """The kernel that stands for a function. Raises Unsupported if there is none."""
        if function not in self._ops:
            raise Unsupported(f"no kernel here stands for {function}")
        return self._ops[function]

    def launch(self, op: Op, arguments: dict[str, Any]) -> Any:
        """Put arguments into guarded memory and launch `op`; recorded while a graph is.

        Returns `out`, or that and `lse` where the caller asks for it: those that the release handed over, or new ones.
        """
        bench, placement = self._bench, Placement(self._bench.memory, self._bench.device)
        with recording.outside():
            placed = {
                name: placement.argument(name, value, written=name in op.writes) for name, value in arguments.items()
            }
            made = {name: placement.result(name, *form) for name, form in missing_results(op.name, arguments).items()}
            placed |= made
            if "out" in placed and placed.get("out_dtype") == placed["out"].dtype:
                # The result says it already, and a script can't write a dtype down.
                del placed["out_dtype"]

        def work() -> None:
            with recording.outside():
                placement.load()
                # A stream that captures has no values to look at.
                if bench.device.type == "cpu" or not torch.cuda.is_current_stream_capturing():
                    for breach in boundary.breaches(op.name, placed):
                        bench.launcher.report(", ".join(breach.arguments), breach.text)
                bench.launcher.launch(op, **placed)
                placement.store()

        current = Recording.current()
        if current is None:
            work()
        else:
            current.before(placement.renew)
            current.keep(work)
        out = made.get("out", arguments.get("out"))
        return (out, made.get("lse", arguments.get("lse"))) if arguments.get("return_lse") else out


def _for_stand_ins(function: str, arguments: dict[str, Any]) -> dict[str, Any]:
    """What this project's kernels don't take, in a form that they do and that changes no result."""
    # Scratch of the kernels that they stand in for.
    arguments.pop("multi_ctas_kv_counter_buffer", None)
    query = arguments.get("query")
    if query is not None and query.dtype.itemsize == 1:
        # Every float8 is a bfloat16.
        arguments["query"] = query.to(missing_results(function, {**arguments, "out": None})["out"].dtype)
    lengths = arguments.get("seq_lens")
    if function == "trtllm_ragged_attention_deepseek" and lengths is not None:
        # SGLang hands it int64 lengths (0.5.9, trtllm_mla_backend.py:1134), and is served rightly.
        arguments["seq_lens"] = lengths.to(torch.int32)
    return arguments


@contextmanager
def below(loaded: Loaded, bench: Bench, kernels: KernelsBelow) -> Iterator[Below]:
    """Let code of a release run on `bench`, with `kernels` for those that it asks FlashInfer for.

    In here its tensors come from guarded memory, and its Triton kernels are launches like any other. Not to be entered
    in two threads.
    """
    lower = Below(loaded, bench, kernels)
    stand_ins.put_in(lower.call)
    try:
        with GuardedFactories(bench), triton_launches.through(lower.launch):
            yield lower
    finally:
        stand_ins.take_out()
