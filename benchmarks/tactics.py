"""Tactics around captures: FlashInfer's latent decode in a sliding window, tuned before, inside and after a capture.

    python benchmarks/tactics.py

It needs a Hopper GPU and FlashInfer 0.7.4, and takes a minute once the module is compiled (`attnfuzz build --backend
mla_swa`). Each row is one order of tuning, capturing, loading a cache of winners and running: the tactics that the
autotuner chose (-1: its own table), and the largest error of the output beside fp64, relative to the largest output.
The exit code is 1 if an order raises, or has an error of more than 4 times that without tuning. Tuning within a capture
must raise ("Tune before capture", flashinfer/autotuner).
"""

import json
import sys
import tempfile
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch

from attnfuzz.kernels.cuda.visible import Arch, missing
from attnfuzz.kernels.gpu.direct.mla_swa import workspace
from attnfuzz.reference.attention import attend
from attnfuzz.reference.problem import Problem

HEADS, RANK, DIM, PAGE, WINDOW, SCALE = 64, 1024, 1088, 64, 512, 0.04
LENGTHS = (700, 65, 64, 1)
FACTOR = 4.0


class Row(NamedTuple):
    """One order: the tactics of its calls, and the error of the last output, or the words of an exception."""

    order: str
    tactics: tuple[int, ...]
    error: float
    raised: str = ""


Capture = Callable[[Callable[[], object]], Callable[[], None]]
"""Captures a call in a graph, and returns its replay."""


@dataclass(frozen=True)
class Layer:
    """The tensors of a batch of decodes."""

    query: torch.Tensor
    pool: torch.Tensor
    table: torch.Tensor
    lengths: torch.Tensor
    scratch: torch.Tensor
    out: torch.Tensor

    @classmethod
    def of(cls, lengths: tuple[int, ...], device: str) -> "Layer":
        """Draw a batch of requests with these numbers of keys."""
        made = torch.Generator().manual_seed(len(lengths))
        batch, columns = len(lengths), -(-max(lengths) // PAGE)
        pool = torch.randn(batch * columns + 1, PAGE, DIM, generator=made)
        table = torch.randperm(batch * columns, generator=made, dtype=torch.int32).view(batch, columns)
        on = {
            "query": torch.randn(batch, 1, HEADS, DIM, generator=made).bfloat16(),
            "pool": pool.bfloat16(),
            "table": table,
            "lengths": torch.tensor(lengths, dtype=torch.int32),
            "scratch": torch.zeros(workspace(batch, 1, HEADS, RANK).total, dtype=torch.uint8),
            "out": torch.zeros(batch, 1, HEADS, RANK, dtype=torch.bfloat16),
        }
        return cls(**{name: tensor.to(device) for name, tensor in on.items()})

    def arguments(self) -> Mapping[str, Any]:
        """Return the arguments of FlashInfer's function."""
        return {
            "query": self.query,
            "kv_cache": self.pool,
            "workspace_buffer": self.scratch,
            "block_tables": self.table,
            "seq_lens": self.lengths,
            "window_left": WINDOW,
            "sm_scale": SCALE,
            "out": self.out,
        }

    def error(self) -> float:
        """Return the largest error of `out`, relative to the largest right output."""
        lengths = self.lengths.tolist()
        keys = [self.pool[row.long()].flatten(0, 1)[:n] for row, n in zip(self.table, lengths, strict=True)]
        key = torch.cat(keys).cpu()[:, None]
        query = self.query.flatten(0, 1).cpu()
        problem = Problem(query, key, key[..., :RANK], (1,) * len(lengths), tuple(lengths), SCALE, window_left=WINDOW)
        right = attend(problem).out.double()
        return float((self.out.flatten(0, 1).cpu().double() - right).abs().max() / right.abs().max())


class Orders:
    """The orders, of FlashInfer's `function` and the module of its `autotuner`."""

    def __init__(self, function: Callable[..., Any], autotuner: Any, capture: Capture, device: str) -> None:
        self._function, self._autotuner, self._capture = function, autotuner, capture
        self._layer, self._other = Layer.of(LENGTHS, device), Layer.of(LENGTHS[:1], device)
        self._tuner = autotuner.AutoTuner.get()

    def rows(self) -> Iterator[Row]:
        """Run each order from an empty cache of winners."""
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / "winners.json"
            yield self._row("not tuned", self._run)
            yield self._row("captured, then replayed", partial(self._replayed, self._run))
            yield self._row("tuned, then run", self._tuned, self._run)
            yield self._row("tuned, captured, replayed", self._tuned, partial(self._replayed, self._run))
            yield self._row("captured, tuned, replayed", lambda: self._between(self._capture(self._run)))
            yield self._row("tuned within a capture", partial(self._replayed, self._tuned))
            yield self._row("run after that", self._run)
            yield self._row("another batch tuned, then run", lambda: self._tuned(self._other), self._run)
            self._tuned(self._other, cache=str(path))
            yield self._row("winners of another batch loaded", lambda: self._loaded(path))
            path.unlink()
            self._tuned(cache=str(path))
            for tactic in range(6):
                _choose(path, tactic)
                yield self._row(f"winner {tactic} loaded", lambda: self._loaded(path))
                yield self._row(f"winner {tactic} loaded, captured", lambda: self._loaded(path, graph=True))

    def _row(self, order: str, *steps: Callable[[], object]) -> Row:
        self._tuner.clear_cache()
        self._layer.out.fill_(7)
        with self._watched() as tactics:
            try:
                for step in steps:
                    step()
            except RuntimeError as error:
                return Row(order, tuple(tactics), 0.0, " ".join(str(error).split()))
        return Row(order, tuple(tactics), self._layer.error())

    @contextmanager
    def _watched(self) -> Iterator[list[int]]:
        """Collect the tactics that the autotuner chooses."""
        chosen: list[int] = []
        choose = type(self._tuner).choose_one

        def watched(*args: Any, **named: Any) -> Any:
            runner, tactic = choose(self._tuner, *args, **named)
            chosen.append(tactic)
            return runner, tactic

        self._tuner.choose_one = watched
        try:
            yield chosen
        finally:
            del self._tuner.choose_one

    def _run(self, layer: Layer | None = None) -> None:
        self._function(**(layer or self._layer).arguments())

    def _tuned(self, layer: Layer | None = None, **options: str) -> None:
        with self._autotuner.autotune(True, **options):
            self._run(layer)

    def _replayed(self, call: Callable[[], object]) -> None:
        # Nothing is loaded or allocated within a capture. A first call that is tuned would leave nothing to tune.
        self._run()
        self._capture(call)()

    def _between(self, replay: Callable[[], None]) -> None:
        self._tuned()
        self._layer.out.fill_(7)
        replay()

    def _loaded(self, path: Path, *, graph: bool = False) -> None:
        with self._autotuner.autotune(False, cache=str(path)):
            if graph:
                self._replayed(self._run)
            else:
                self._run()


def _choose(path: Path, tactic: int) -> None:
    """Make a tactic the winner of all shapes in a file."""
    kept = json.loads(path.read_text())
    for key, entry in kept.items():
        if not key.startswith("_"):
            entry[1] = tactic
    path.write_text(json.dumps(kept))


def captured(call: Callable[[], object]) -> Callable[[], None]:
    """Capture a call whose module is loaded."""
    torch.cuda.synchronize()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        call()
    replay: Callable[[], None] = graph.replay
    return replay


def failures(rows: list[Row]) -> list[str]:
    """Return the orders that fail."""
    plain = rows[0].error
    return [
        row.order
        for row in rows
        if (not row.raised if row.order == "tuned within a capture" else row.raised or row.error > FACTOR * plain)
    ]


def main() -> None:
    """Print a row for each order."""
    if reason := missing(frozenset({Arch.HOPPER}), ("flashinfer.mla._swa",)):
        sys.exit(f"benchmarks/tactics.py needs a Hopper GPU and FlashInfer 0.7.4: {reason}")
    from flashinfer import autotuner  # noqa: PLC0415 - makes a CUDA context
    from flashinfer.mla import batch_decode_with_kv_cache_mla_swa  # noqa: PLC0415 - makes a CUDA context

    rows = []
    print("| order | tactics | error | raised |\n|---|---|---|---|")
    for row in Orders(batch_decode_with_kv_cache_mla_swa, autotuner, captured, "cuda").rows():
        rows.append(row)
        print(
            f"| {row.order} | {', '.join(map(str, row.tactics))} | {row.error:.1e} | {row.raised[:120]} |", flush=True
        )
    failed = failures(rows)
    print(
        f"\n{len(rows) - len(failed)} of {len(rows)} orders are right.",
        *(f"Wrong: {order}" for order in failed),
        sep="\n",
    )
    sys.exit(bool(failed))


if __name__ == "__main__":
    main()
