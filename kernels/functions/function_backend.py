"""A backend made from one function, to test a paged attention kernel of one's own.

    def attend(*, out, query, k_cache, v_cache, block_tables, seq_lens, cum_seq_lens_q, scale, **_): ...

    MINE = FunctionBackend(attend)

The function computes causal attention of one ragged batch, or attention under masks if the capability has `masks`. The
last query of a request is aligned to its last key. The arguments are passed by keyword, with metadata in int32:

- query [tokens, q_heads, head_dim_qk]: the requests one after another, possibly with padding after the last one
- k_cache, v_cache [pages, page_size, kv_heads, head_dim]; [pages, kv_heads, page_size, head_dim] in the layout HND
- block_tables [batch, columns]: the pages of each request in order; the columns after them must not matter. With
  `tombstones` in the capability, neither may the columns of pages that lie wholly before the first query's window
- seq_lens [batch]: the keys of each request, 0 included; the rest of its last page may hold NaN
- cum_seq_lens_q [batch + 1]: request b has the query rows from cum_seq_lens_q[b] up to cum_seq_lens_q[b + 1]
- max_q_len, max_kv_len: upper bounds on request length. Both are drawn with slack, up to 131072, since servers
  state the model's context length: a kernel that needs the longest request computes it from cum_seq_lens_q or seq_lens
- scale: the factor of the logits, 1 / sqrt(head_dim_qk) included; 0 or below with such `edges` in the capability
- out [tokens, q_heads, head_dim_vo]: the result to write, with 0 in each row that sees no key

Further arguments are passed if the function has a parameter of that name, or if it takes any keyword (`**_`) and the
capability or the contract has the feature:
`lse` [tokens, q_heads] (float32, to write), `window_left` (how many keys before its own a query sees; -1 means all),
`sinks` [q_heads] or None (float32, or the capability's `sinks_dtype`), `soft_cap` (0 is none), `v_scale` (the factor of
the output; that of K is in `scale`), `kv_layout` ("HND" or "NHD"), `k_scales` and `v_scales` (None, or float32 factors
of K and V if the capability has `granularities`: [kv_heads], or [pages, page_size, kv_heads] or [pages, kv_heads,
page_size] in the layout of the cache; for NVFP4, e4m3 with a further axis of head_dim / 16), `mask` (None in a causal
step, otherwise bool [tokens, columns] with a column for each key of the longest request, set where a query sees a key:
it replaces the causal limit, not the window, and the columns after a request's keys must not matter),
`window_right` (with a window and a full mask, how many keys after its own a query sees, -1: all; `mask` has them too),
`attention_chunk_size` (each query sees the keys of its own chunk, 0: all; `mask` has them too).
`k_scale` (the factor of K, which then is not in `scale`), `mode` (such as "decode") and `life` (the earlier uses of a
case, some of which the function makes itself) are passed only if there is a parameter of that name.

A kernel with a cache layout of its own takes two functions. `arrange` is called with these arguments and returns a
dict of others, in the kernel's layout; the harness places its tensors in guarded memory, and then calls the kernel:

    def arrange(*, k_cache, block_tables, seq_lens, **_): return {"keys": ..., "lengths": seq_lens + 1}
    def attend(*, out, query, keys, lengths, scale, **_): ...

    MINE = FunctionBackend(attend, arrange=arrange)
"""

import inspect
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, ClassVar

import torch

from attnfuzz.kernels.arguments.edges import opened
from attnfuzz.kernels.arguments.form_tables import reaches
from attnfuzz.kernels.arguments.lives import on_another_stream
from attnfuzz.kernels.cuda import guards, nvcc, visible
from attnfuzz.kernels.cuda.visible import Arch
from attnfuzz.kernels.functions.arranged import placed
from attnfuzz.kernels.functions.function_lives import OWN, FunctionLife, ReusedTensors, lives_of
from attnfuzz.kernels.interface.backend import Bench, Op, Output, Session
from attnfuzz.kernels.planning.lengths import longest
from attnfuzz.kernels.planning.packed_masks import masks_of_rows
from attnfuzz.kernels.planning.paged_session import PagedSession
from attnfuzz.kernels.planning.plan import BatchMetadata, Row
from attnfuzz.kernels.planning.queries import factors_of_cache, softmax_scale
from attnfuzz.kernels.planning.results import Results
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.calibration import Calibration
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case, Granularity, Step
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.masks import applies
from attnfuzz.reference.noise import NoiseModel

UNKNOWN = NoiseModel.unknown_kernel()

_OF_SERVERS = ("query_scales", "kept_queries", "schedules", "shared_keys")
"""The fields of a capability that only the session of a server's backend takes into account."""

_GIVEN = frozenset({"query", "out", "k_cache", "v_cache", "block_tables", "seq_lens", "cum_seq_lens_q", "scale"})
"""The arguments that have forms, and that a function gets whatever its capability."""

_K_SCALE = "k_scale"

_OPTIONAL = {
    "max_q_len",
    "max_kv_len",
    "lse",
    "window_left",
    "window_right",
    "sinks",
    "soft_cap",
    "v_scale",
    "k_scales",
    "v_scales",
    "kv_layout",
    "mode",
    "mask",
    "attention_chunk_size",
    OWN,
    _K_SCALE,
}
"""Further arguments, which a function gets if it names them."""

_WITHOUT_RUNNING = inspect.iscoroutinefunction, inspect.isgeneratorfunction, inspect.isasyncgenfunction

_PASSED = _GIVEN | _OPTIONAL


class OfFunction:
    """The part of a backend that follows from its function and from where this runs."""

    function: Callable[..., Any]
    capability: Capability

    @property
    def name(self) -> str:
        """The function's name."""
        return self.function.__name__

    def missing(self) -> str | None:
        """Return None on the CPU, where an imported function can run; on a GPU, the reason if there is none."""
        return visible.missing(frozenset(Arch), ()) if self.capability.device is Device.CUDA else None

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Compile the guards of a GPU's memory, if it runs there. The function's own file has been imported."""
        if self.capability.device is Device.CUDA:
            nvcc.build((guards.SOURCE,), progress=progress)


@dataclass(frozen=True)
class FunctionBackend(OfFunction):
    """A function as a backend of the same name. It is planned before padding, and rows beyond its plan are cleared.

    `noise_model` is the error of a correct run; the default fits tensor-core kernels, NoiseModel.fp32_arithmetic() is
    stricter. A `calibration`, made by `attnfuzz calibrate` and read by `attnfuzz.reference.calibration.load`, replaces
    it for its dtypes and on its architecture. `arrange` prepares the kernel's arguments; `writes` names those of them
    that the kernel may change, besides `out` and `lse`.

    Raises TypeError for a parameter of a wrong type, and ValueError for a capability with latents, graphs or features
    of a server, which need a Backend, with a feature whose argument neither function takes, or with a form that no
    argument has.
    """

    function: Callable[..., Any]
    capability: Capability = Capability()
    contract: Contract = Contract()
    noise_model: NoiseModel = UNKNOWN
    calibration: Calibration | None = None
    arrange: Callable[..., Mapping[str, Any]] | None = None
    writes: frozenset[str] = frozenset()
    shares_pool: ClassVar[bool] = True
    called_as_documented: ClassVar[bool] = True

    @property
    def arranges(self) -> bool:
        """Whether `arrange` makes the function's arguments."""
        return self.arrange is not None

    def __post_init__(self) -> None:
        self._check_types()
        self._check_features()
        self._check_keywords()
        self._check_life()

    def _check_types(self) -> None:
        if not callable(self.function) or not isinstance(getattr(self.function, "__name__", None), str):
            raise TypeError(
                f"FunctionBackend takes a function with a name, not {_kind(self.function)}: give it one made by def"
            )
        if any(returns(self.function) for returns in _WITHOUT_RUNNING):
            raise TypeError(
                f"{self.name}: a call of an async function or a generator runs none of it: give a plain one"
            )
        if self.arrange is not None and not callable(self.arrange):
            raise TypeError(f"{self.name}: arrange is {_kind(self.arrange)}: give a function, or leave it out")
        wanted: dict[str, type] = {"capability": Capability, "contract": Contract, "noise_model": NoiseModel}
        if self.calibration is not None:
            wanted["calibration"] = Calibration
        for parameter, kind in wanted.items():
            value = getattr(self, parameter)
            if not isinstance(value, kind):
                place = kind.__module__ if kind is Calibration else "attnfuzz"
                raise TypeError(
                    f"{self.name}: {parameter} is {_kind(value)}: give a {kind.__name__} of {place}, or leave it out"
                )
        writes: object = self.writes
        if isinstance(writes, str):
            raise TypeError(f"{self.name}: writes is a string: give a set of names of arguments")

    def _check_features(self) -> None:
        can, plain = self.capability, Capability()
        if can.writes:
            raise ValueError(f"{self.name}: make a WriterBackend of a function that writes the KV cache")
        if can.latent or can.graph_modes:
            raise ValueError(
                f"{self.name}: a function supports neither latents nor graphs, set latent=False and graph_modes=(), "
                "or write an attnfuzz.Backend"
            )
        if beyond := [mode for mode in can.modes if mode not in plain.modes]:
            raise ValueError(
                f"{self.name}: a function can't run {', '.join(beyond)}, several forwards of a server: leave it "
                "out of modes (Mode.of_kernels() has the others)"
            )
        if served := [name for name in _OF_SERVERS if getattr(can, name) != getattr(plain, name)]:
            raise ValueError(f"{self.name}: only a server has {', '.join(served)}: leave it out of the capability")

    def _check_keywords(self) -> None:
        taken = [Keywords.of(function) for function in (self.function, self.arrange) if function is not None]
        self._check_names(taken[0])
        for keyword in sorted(promised(self.capability, self.contract)):
            if not any(keywords.take(keyword) for keywords in taken):
                raise ValueError(
                    f"{self.name}: the capability or the contract needs an argument that the function does not take, "
                    f"{keyword}: add the parameter, or leave the feature out"
                )

        given = {*_GIVEN, *promised(self.capability, self.contract)}
        passed = {keyword for keyword in given if any(keywords.take(keyword) for keywords in taken)}
        for rule in self.capability.arguments:
            if not reaches(rule.form, passed):
                raise ValueError(f"{self.name}: no argument of the function has a form '{rule.form}': leave it out")

    def _check_names(self, function: "Keywords") -> None:
        """Raise ValueError for parameters that no argument has. Those of arranged arguments are not known."""
        unknown = sorted(function.required - _PASSED)
        if unknown and self.arrange is None:
            raise ValueError(
                f"{self.name}: no argument is called {', '.join(unknown)}: the function is called with "
                f"{', '.join(sorted(_GIVEN))} by name; end its parameters with **_ to ignore some of them"
            )

    def _check_life(self) -> None:
        if OWN in Keywords.of(self.function).named:
            return
        known = lives_of(self.capability, promised(self.capability, self.contract))
        for use in self.capability.earlier_uses:
            if use not in known:
                raise ValueError(
                    f"{self.name}: attnfuzz can't make the earlier use '{use}' with the arguments of the function: "
                    f"leave it out, or add the parameter {OWN}, and make it in the function"
                )

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the calibration's model for this machine, or `noise_model`."""
        on = visible.architecture() if self.capability.device is Device.CUDA else None
        measured = self.calibration.noise(dtype, on) if self.calibration is not None else None
        return measured or self.theory(dtype)

    def theory(self, dtype: DType) -> NoiseModel:
        """Return `noise_model`, for every dtype."""
        return self.noise_model

    @property
    def ops(self) -> Mapping[str, Op]:
        """The function, as the only op."""
        return {self.name: Op(name=self.name, function=self.function, writes=self.writes | {"out", "lse"})}

    def open(self, case: Case, bench: Bench) -> Session:
        """Open a session on one case."""
        return opened(partial(FunctionSession, self), case, bench, self.capability)


def _kind(value: object) -> str:
    return "None" if value is None else f"of the type {type(value).__name__}"


def promised(capability: Capability, contract: Contract) -> set[str]:
    """Return the arguments that a function needs for the features of its capability and contract."""
    needed = {
        "lse": contract.lse is not None,
        "window_left": capability.windows,
        "sinks": capability.sinks,
        "soft_cap": capability.soft_cap,
        "v_scale": capability.kv_scales,
        "k_scales": _has_tensors_of_scales(capability),
        "v_scales": _has_tensors_of_scales(capability),
        "kv_layout": len(capability.layouts) > 1,
        "mask": len(capability.masks) > 1,
        "window_right": capability.right_windows,
        "attention_chunk_size": capability.attention_chunks,
    }
    return {keyword for keyword, asked in needed.items() if asked}


def _has_tensors_of_scales(capability: Capability) -> bool:
    return any(each is not Granularity.TENSOR for each in capability.granularities)


@dataclass(frozen=True)
class Keywords:
    """The parameters of a function that can be passed by name, and those `required`; `anything`: it takes others."""

    named: frozenset[str]
    anything: bool
    required: frozenset[str] = frozenset()

    @classmethod
    def of(cls, function: Callable[..., Any]) -> "Keywords":
        """Return the keywords of a function. One without a signature, such as a C function, accepts anything."""
        try:
            parameters = inspect.signature(function).parameters.values()
        except (TypeError, ValueError):
            return cls(frozenset(), anything=True)
        by_name = (inspect.Parameter.POSITIONAL_OR_KEYWORD, inspect.Parameter.KEYWORD_ONLY)
        return cls(
            frozenset(parameter.name for parameter in parameters if parameter.kind in by_name),
            anything=any(parameter.kind is inspect.Parameter.VAR_KEYWORD for parameter in parameters),
            required=frozenset(
                parameter.name
                for parameter in parameters
                if parameter.default is parameter.empty and parameter.kind in (*by_name, parameter.POSITIONAL_ONLY)
            ),
        )

    def take(self, keyword: str) -> bool:
        """Return whether `keyword` can be passed to the function."""
        return self.anything or keyword in self.named

    def select(self, arguments: Mapping[str, Any], expected: Collection[str]) -> dict[str, Any]:
        """Return the arguments the function names, and the `expected` ones too if it takes anything."""
        return {
            name: value
            for name, value in arguments.items()
            if name in self.named or (self.anything and name in expected)
        }


class FunctionSession(PagedSession):
    """A session that launches the function once per step."""

    def __init__(self, backend: FunctionBackend, case: Case, bench: Bench) -> None:
        sinks_dtype = backend.capability.sinks_dtype or case.geometry.dtype
        super().__init__(case, bench, sinks_dtype=sinks_dtype.torch_dtype)
        self._backend = backend
        self._promised = promised(backend.capability, backend.contract)
        self._taken = Keywords.of(backend.function)
        self._arranged = Keywords.of(backend.arrange) if backend.arrange is not None else None
        self._life = FunctionLife(case, bench, backend.capability, self)
        self._reused = ReusedTensors() if EarlierUse.REUSED_TENSORS in case.life else None
        self._returned = ""

    def _planned_rows(self, step: Step) -> list[Row]:
        return Row.real(step)

    def _attend(self, step: Step, plan: BatchMetadata, query: torch.Tensor, results: Results) -> None:
        extras = {"scale": self._scales["bmm1_scale"], **self._extras(step)}
        if any(_K_SCALE in taken.named for taken in (self._taken, self._arranged) if taken is not None):
            extras |= {_K_SCALE: factors_of_cache(self._case)[0], "scale": softmax_scale(self._case)}
        if self._case.life:
            self._life.make(self._planned_rows(step), plan, query, extras)
        self.call(plan, query, results, extras)

    def plan(self, rows: Sequence[Row]) -> BatchMetadata:
        """Return the metadata of a batch."""
        return self._plan(rows)

    def call(self, batch: BatchMetadata, query: torch.Tensor, results: Results, extras: Mapping[str, Any]) -> None:
        """Call the function on a batch, with the additional arguments `extras`."""
        op = on_another_stream(next(iter(self._backend.ops.values())), self._case.life)
        described = {"query": query, "out": results.out, **self._cache(), **self._described(batch)}
        described["scale"] = extras["scale"]
        arguments = {**described, "lse": results.lse, **extras}
        expected = self._promised | described.keys()
        arranged = {}
        if self._backend.arrange is not None and self._arranged is not None:
            made = self._backend.arrange(**self._arranged.select(arguments, expected))
            if not isinstance(made, Mapping):
                raise TypeError(
                    f"arrange returned a {type(made).__name__}: return a dict with the arguments of the function"
                )
            arranged = self._in_memory(made)
        returned = self._bench.launcher.launch(op, **(self._taken.select(arguments, expected) | arranged))
        self._returned = unread(self._backend.name, returned, results.out)

    def _in_memory(self, arranged: Mapping[str, Any]) -> dict[str, Any]:
        """Return the arranged arguments as the kernel gets them."""
        memory = self._bench.memory
        made = placed(arranged, memory)
        return made if self._reused is None else self._reused.written(arranged, made, memory)

    def _output(self, step: Step, planned: Sequence[Row], query: torch.Tensor, results: Results) -> Output:
        output = replace(super()._output(step, planned, query, results), returned=self._returned)
        return output if self._backend.contract.lse else replace(output, lse=None)

    def _cache(self) -> dict[str, torch.Tensor]:
        cache = self._kv.cache
        key, value = (cache[:, 0], cache[:, 1]) if isinstance(cache, torch.Tensor) else cache
        return {"k_cache": key, "v_cache": value}

    def _described(self, plan: BatchMetadata) -> dict[str, Any]:
        return {
            "block_tables": plan.block_tables,
            "seq_lens": plan.seq_lens,
            "cum_seq_lens_q": plan.cum_seq_lens_q,
            "max_q_len": plan.max_q_len,
            "max_kv_len": plan.max_kv_len,
        }

    def _extras(self, step: Step) -> dict[str, Any]:
        """Return the arguments that depend on the capability and the contract, the mode, and the earlier uses."""
        geometry = self._case.geometry
        k_scales, v_scales = self._kv.scales or (None, None)
        return {
            "window_left": geometry.window_left,
            "sinks": self._sinks,
            "soft_cap": geometry.soft_cap,
            "v_scale": self._scales["bmm2_scale"],
            "k_scales": k_scales,
            "v_scales": v_scales,
            "kv_layout": geometry.kv_layout.value,
            "mode": step.mode.value,
            "mask": self._mask(step),
            "window_right": geometry.window_right,
            "attention_chunk_size": geometry.attention_chunk,
            OWN: self._case.life,
        }

    def _mask(self, step: Step) -> torch.Tensor | None:
        """Return the masks of all requests as one tensor, True past the keys of each. Padded rows see nothing."""
        if not applies(self._case, step):
            return None
        rows = Row.real(step)
        drawn = torch.zeros(step.padded_tokens, longest(row.kv_len for row in rows), dtype=torch.bool)
        first = 0
        for mask in masks_of_rows(self._case, step, rows):
            drawn[first : first + len(mask)] = True
            drawn[first : first + len(mask), : mask.shape[1]] = mask
            first += len(mask)
        return self._bench.memory.copy("mask", drawn.view(torch.uint8)).view(torch.bool)


def unread(name: str, returned: object, out: torch.Tensor, into: str = "out") -> str:
    """Return the words on a tensor that a function returned in place of writing it, or "" if it returned none."""
    found = next((each for each in (returned, *_parts(returned)) if isinstance(each, torch.Tensor)), None)
    if found is None or found.data_ptr() == out.data_ptr():
        return ""
    tensor = f"a tensor {list(found.shape)}, {found.dtype}"
    return f"{name} returned {tensor}, which is ignored: write the result into {into}"


def _parts(returned: object) -> Sequence[object]:
    return returned if isinstance(returned, (tuple, list)) else ()
