"""Variations: attnfuzz's own backends with a kernel of the user's, or with other arguments of a launch.

    def my_decode(*, query, kv_cache, block_tables, seq_lens, out, lse, **_): ...

    MINE = Variation("trtllm_mha", kernels={"trtllm_batch_decode_with_kv_cache": my_decode})

The backend plans, pads and captures as a serving engine does, so that one kernel is tested in a server's place for it.
"""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

import msgspec

from attnfuzz.harness.backends.registry import builtin
from attnfuzz.kernels.functions.arranged import placed
from attnfuzz.kernels.interface.backend import Bench, LauncherAround, Op, Result, Session
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Step
from attnfuzz.reference.contract import PAGE_IDS, Contract
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel


@dataclass(frozen=True)
class Launching:
    """A launch that a backend is about to make: the name of its `op`, its `arguments`, and the `step` that it is for.

    `step.mode` is the mode, `step.launch` whether the launch is captured. A replay repeats captured launches.
    """

    op: str
    arguments: Mapping[str, Any]
    step: Step


class Variation:
    """A backend of attnfuzz called `base`, with `kernels` in place of ops, or with changed arguments.

    `kernels` maps names of its `ops` to functions that take the same keyword arguments. `change` is called before each
    launch, and returns the arguments that differ, {} for none; tensors that it makes are placed in guarded memory. The
    attention that is due stays that of `base`.

    With kernels of the user's, the default `contract` is that of `base` without its promises about bits, and the
    default `noise_model` that of an unknown kernel; otherwise both are those of `base`. A `capability` must not be
    wider than that of `base`.

    Raises ValueError for a name that is not a backend of attnfuzz, or no op of it.
    """

    def __init__(
        self,
        base: str,
        *,
        kernels: Mapping[str, Callable[..., Any]] | None = None,
        change: Callable[[Launching], Mapping[str, Any]] = lambda _: {},
        capability: Capability | None = None,
        contract: Contract | None = None,
        noise_model: NoiseModel | None = None,
    ) -> None:
        known = builtin()
        if base not in known:
            raise ValueError(f"{base!r} is not a backend of attnfuzz: give one of {', '.join(known)}")
        self._base = known[base]
        self._kernels = dict(kernels or {})
        unknown = sorted(self._kernels.keys() - self._base.ops.keys())
        if unknown:
            raise ValueError(f"{base} launches no {', '.join(unknown)}: its ops are {', '.join(self._base.ops)}")
        self.change = change
        self.capability = capability or self._base.capability
        self.contract = contract or self._promised()
        self._noise_model = noise_model

    def _promised(self) -> Contract:
        promised = self._base.contract
        return msgspec.structs.replace(promised, bitwise=promised.bitwise & PAGE_IDS) if self._kernels else promised

    @property
    def name(self) -> str:
        """The name of the base, marked as varied."""
        return f"{self._base.name}@varied"

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the given model, or the default."""
        if self._noise_model is not None:
            return self._noise_model
        return NoiseModel.unknown_kernel() if self._kernels else self._base.noise(dtype)

    @property
    def ops(self) -> Mapping[str, Op]:
        """The ops of the base, with the functions of `kernels`."""
        return {name: self._replaced(op) for name, op in self._base.ops.items()}

    def missing(self) -> str | None:
        """Return the reason that the base can't run here, or None if it can."""
        return self._base.missing()

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Prepare the base."""
        self._base.prepare(progress)

    def open(self, case: Case, bench: Bench) -> Session:
        """Open a session of the base on one case."""
        launcher = _Varied(self, case, bench)
        session = self._base.open(case, replace(bench, launcher=launcher))
        return _Session(session, launcher)

    def _replaced(self, op: Op) -> Op:
        function = self._kernels.get(op.name)
        return op if function is None else replace(op, function=function, module=None)


class _Session:
    """A session of the base, which passes the step to its launcher."""

    def __init__(self, session: Session, launcher: "_Varied") -> None:
        self._session = session
        self._launcher = launcher

    def forward(self, index: int) -> Result | None:
        """Run one step."""
        self._launcher.at = index
        return self._session.forward(index)


class _Varied(LauncherAround):
    """A launcher with the kernels and arguments of a variation. `at` is the index of the step."""

    def __init__(self, variation: Variation, case: Case, bench: Bench) -> None:
        super().__init__(bench.launcher)
        self._variation = variation
        self._case = case
        self._memory = bench.memory
        self._ops = variation.ops
        self.at = 0

    def launch(self, op: Op, /, **arguments: Any) -> Any:
        """Launch the varied op on the varied arguments."""
        changed = self._variation.change(Launching(op.name, arguments, self._case.steps[self.at]))
        return self._inner.launch(self._ops.get(op.name, op), **arguments | placed(changed, self._memory))
