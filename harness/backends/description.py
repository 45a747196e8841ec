"""The description of a user's backend, as data: checked on load in a worker, and read elsewhere."""

import dataclasses
import importlib
import inspect
import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NoReturn, TypeVar

import msgspec

from attnfuzz.harness.backends.load import BackendFileError, BackendSource, brief
from attnfuzz.harness.family import Family, families
from attnfuzz.kernels.functions.function_backend import FunctionBackend, OfFunction
from attnfuzz.kernels.interface.backend import Backend, Bench, Op, called_as_documented, shares_pool
from attnfuzz.kernels.interface.library_call import LibraryCall
from attnfuzz.kernels.interface.toolchain import lacks_modules
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import Case
from attnfuzz.reference.case_types import tag_of
from attnfuzz.reference.contract import Contract
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.noise import NoiseModel
from attnfuzz.strategies.supported import head_dims

MOST_BYTES = 1 << 20
"""Maximum size of an encoded description. One with a few modes and kernels has less than 4 kB."""

_LONGEST_NAME = 200
_LONGEST_REASON = 2000

T = TypeVar("T")


class DescribedOp(msgspec.Struct, frozen=True):
    """An `Op`, with "module:name" of its function instead of the function, and the `file` of its source, or ""."""

    function: str
    writes: frozenset[str]
    module: str | None = None
    own: bool = False
    file: str = ""
    library: LibraryCall | None = None


class Description(msgspec.Struct, frozen=True, kw_only=True, tag=True):
    """The properties of a backend. `missing` is why it can't run here; `prepares`: `prepare` may do something.

    `family` is the tag of its family's cases, which says how its `capability` is decoded (`decoded`).

    `shares_pool` and `called_as_documented` are the results of these functions of
    `attnfuzz.kernels.interface.backend`, and `is_function` says that it is a `FunctionBackend`, which `arranges` if
    another function makes its arguments. One with `whole_pool` died in a trial of pages that no request owns; one that
    `lacks_modules` has no compiled geometry, if only those are asked for.
    """

    name: str
    family: str
    capability: Any
    contract: Contract
    noise: dict[DType, NoiseModel]
    ops: dict[str, DescribedOp]
    missing: str | None
    prepares: bool
    shares_pool: bool
    called_as_documented: bool
    is_function: bool = False
    arranges: bool = False
    whole_pool: bool = False
    lacks_modules: bool = False


def describe(name: str, backend: Backend) -> Description:
    """Query and check all properties of the user's backend `name`. Raises BackendFileError with the faulty part."""
    capability, family = _capability(name, _asked(name, "capability", lambda: backend.capability))
    prepare: object = type(backend).prepare
    dtypes = capability.dtypes if isinstance(capability, Capability) else family.noise_dtypes(capability)
    described = Description(
        name=_name(name, _asked(name, "name", lambda: backend.name)),
        family=tag_of(family.case_type),
        capability=capability,
        contract=_exactly(Contract, "contract", name, _asked(name, "contract", lambda: backend.contract)),
        noise={dtype: _noise(name, backend, dtype) for dtype in dtypes},
        ops=_ops(name, _asked(name, "ops", lambda: backend.ops)),
        missing=_missing(name, _asked(name, "missing()", backend.missing)),
        prepares=capability.device is not Device.CPU or prepare is not OfFunction.prepare,
        shares_pool=_asked(name, "shares_pool", lambda: shares_pool(backend)),
        called_as_documented=_asked(name, "called_as_documented", lambda: called_as_documented(backend)),
        is_function=isinstance(backend, FunctionBackend),
        arranges=isinstance(backend, FunctionBackend) and backend.arranges,
        lacks_modules=lacks_modules(backend),
    )
    return _as_decoded(name, described)


def _asked(name: str, part: str, ask: Callable[[], T]) -> T:
    try:
        return ask()
    except BaseException as error:
        raise BackendFileError(f"{name}: its {part} raises {brief(error)}") from error


def _exactly(wanted: type[T], part: str, name: str, value: object) -> T:
    """Return `value` if it has exactly this type, because a subclass's overrides would be ignored."""
    if type(value) is not wanted:
        raise BackendFileError(f"{name}: its {part} is {_kind(value)}: make it a {wanted.__name__} of attnfuzz")
    return value


def _kind(value: object) -> str:
    return "None" if value is None else f"of the type {type(value).__name__}"


def _capability(name: str, value: Any) -> tuple[Any, Family[Any]]:
    """Return a capability and its family. Rejects one without any case."""
    found = next((each for each in families() if type(value) is each.capability_type and each.runs(value)), None)
    if found is None:
        raise BackendFileError(
            f"{name}: its capability is {_kind(value)}: make it a Capability of attnfuzz.reference.capability, or, of "
            "another family of ops, install the package that offers the family as an entry point attnfuzz.families"
        )
    if isinstance(value, Capability):
        _check_capability(name, value)
    return value, found


def _check_capability(name: str, capability: Capability) -> None:
    for field in ("modes", "dtypes", "page_sizes", "layouts", "query_views", "kv_views"):
        if not getattr(capability, field):
            raise BackendFileError(f"{name}: its capability has no {field}: name at least one")
    for field in ("page_sizes", "head_dims"):
        if (least := min(getattr(capability, field), default=1)) < 1:
            raise BackendFileError(f"{name}: {field} of its capability has {least}: give numbers of at least 1")
    if not capability.latent and not head_dims(capability):
        raise BackendFileError(
            f"{name}: no drawn head dim is at most the max_head_dim {capability.max_head_dim} of its capability: name "
            "smaller ones in head_dims"
        )


def _name(name: str, value: object) -> str:
    if not isinstance(value, str) or not 0 < len(value) <= _LONGEST_NAME or not value.isprintable():
        raise BackendFileError(
            f"{name}: its name must be a str of 1 to {_LONGEST_NAME} printable characters: give it one"
        )
    return str(value)


def _noise(name: str, backend: Backend, dtype: DType) -> NoiseModel:
    part = f"noise({dtype!s})"
    model = _exactly(NoiseModel, part, name, _asked(name, part, lambda: backend.noise(dtype)))
    for field in model.__struct_fields__:
        value = getattr(model, field)
        if field != "origin" and not (isinstance(value, int | float) and math.isfinite(value) and value >= 0):
            raise BackendFileError(f"{name}: {field} of its {part} must be a finite number of at least 0")
    return model


def _ops(name: str, ops: object) -> dict[str, DescribedOp]:
    if not isinstance(ops, Mapping):
        raise BackendFileError(f"{name}: its ops are {_kind(ops)}: make them a dict from names to Op")
    items = _asked(name, "ops", lambda: dict(ops))
    return {_name(f"{name}: an op", key): _op(name, key, op) for key, op in items.items()}


def _op(name: str, key: str, op: object) -> DescribedOp:
    if not isinstance(op, Op) or not callable(op.function):
        raise BackendFileError(f"{name}: its op {key} is no Op with a callable function: make it one")
    place, file = function_place(op.function), function_file(op.function)
    return DescribedOp(place, frozenset(op.writes), op.module, op.own, file, op.library)


def function_file(function: Callable[..., Any]) -> str:
    """Return the path of a function's source, even of a user's function that only workers have; "" if it has none."""
    if isinstance(function, _Elsewhere):
        return function.file
    try:
        code = getattr(inspect.unwrap(function), "__code__", None)
    except ValueError:
        return ""
    path = getattr(code, "co_filename", "")
    return path if isinstance(path, str) and Path(path).is_file() else ""


def function_place(function: Callable[..., Any]) -> str:
    """Return "module:name" of a function, even of a user's function that only workers have."""
    if isinstance(function, _Elsewhere):
        return function.function
    return f"{getattr(function, '__module__', '')}:{getattr(function, '__qualname__', '')}"


def _missing(name: str, reason: object) -> str | None:
    if reason is not None and not isinstance(reason, str):
        raise BackendFileError(f"{name}: its missing() gives {_kind(reason)}: return a line that says why, or None")
    return None if reason is None else reason[:_LONGEST_REASON]


def _as_decoded(name: str, described: Description) -> Description:
    """Return the description as another process reads it. Raises BackendFileError for fields of wrong types."""
    try:
        encoded = msgspec.msgpack.encode(described)
        if len(encoded) > MOST_BYTES:
            raise BackendFileError(f"{name} describes itself in {len(encoded):,} bytes: at most {MOST_BYTES:,}")
        return decoded(msgspec.msgpack.decode(encoded, type=Description))
    except (msgspec.MsgspecError, TypeError, ValueError, RecursionError) as error:
        raise BackendFileError(f"{name}: its description has a wrong type: {brief(error)}") from error


def decoded(described: Description) -> Description:
    """Return a description from another process with the capability of its family. Raises msgspec.ValidationError."""
    family = next((each for each in families() if tag_of(each.case_type) == described.family), None)
    if family is None or family.capability_type is None:
        raise msgspec.ValidationError(f"no family has cases of the kind {described.family}")
    capability = msgspec.convert(described.capability, family.capability_type)
    return msgspec.structs.replace(described, capability=capability)


_OUR_KERNELS = "attnfuzz.kernels."


@dataclass(frozen=True)
class _Elsewhere:
    """Stands for a user's function, which only workers have. Equal by name."""

    function: str
    file: str = dataclasses.field(default="", compare=False)

    def __call__(self, *_: Any, **__: Any) -> NoReturn:
        """Refuse to run."""
        raise RuntimeError(f"{self.function} is a user's function: only workers run it")


@dataclass(frozen=True)
class Rehearsed:
    """The backend of `source`, as described. `preparation` runs its `prepare` in a process that may die."""

    source: BackendSource
    description: Description
    preparation: Callable[[BackendSource, Callable[[str], None]], None]

    @property
    def name(self) -> str:
        """Its own name, not the one that users give."""
        return self.description.name

    @property
    def capability(self) -> Capability:
        """Its capability, of another type for another family."""
        capability: Capability = self.description.capability
        return capability

    @property
    def contract(self) -> Contract:
        """Its contract."""
        return self.description.contract

    def noise(self, dtype: DType) -> NoiseModel:
        """Return the error of a correct run, for a dtype that it supports."""
        return self.description.noise[dtype]

    @property
    def ops(self) -> Mapping[str, Op]:
        """Its kernels by name. Only this project's functions are callable."""
        return {
            name: Op(
                name=name,
                function=_function(op),
                writes=op.writes,
                module=op.module,
                own=op.own,
                library=op.library,
            )
            for name, op in self.description.ops.items()
        }

    def missing(self) -> str | None:
        """Return the reason why this machine can't run it."""
        return self.description.missing

    def prepare(self, progress: Callable[[str], None]) -> None:
        """Prepare it in a process that may die. Raises BackendFileError."""
        if self.description.prepares:
            self.preparation(self.source, progress)

    @property
    def lacks_modules(self) -> bool:
        """Whether it needs compiled modules and had none when it was loaded, if only compiled ones are asked for."""
        return self.description.lacks_modules

    @property
    def whole_pool(self) -> bool:
        """Whether it touches pages that no request owns."""
        return self.description.whole_pool

    @property
    def shares_pool(self) -> bool:
        """Whether its pool may be that of another backend."""
        return self.description.shares_pool

    @property
    def called_as_documented(self) -> bool:
        """Whether attnfuzz makes all arguments of its function."""
        return self.description.called_as_documented

    @property
    def arranges(self) -> bool:
        """Whether a function of the user makes the arguments of another one."""
        return self.description.arranges

    def open(self, case: Case, bench: Bench) -> NoReturn:
        """Refuse, because sessions run the user's code."""
        del case, bench
        raise RuntimeError(f"{self.source.name} is a user's backend: only workers open sessions on it")


def _function(op: DescribedOp) -> Callable[..., Any]:
    module, _, qualified = op.function.partition(":")
    found: Any = importlib.import_module(module) if module.startswith(_OUR_KERNELS) else None
    for part in qualified.split("."):
        found = getattr(found, part, None)
    return found if callable(found) else _Elsewhere(op.function, op.file)
