"""A quick set of modules, and backends limited to the modules that are compiled.

FlashInfer compiles a module for each combination of compile-time features. The quick set covers many pairs of these
features, and of a backend and a feature, within a time.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from functools import cached_property, partial
from itertools import combinations
from types import MappingProxyType
from typing import Any, Final

import msgspec

from attnfuzz.kernels.gpu import build_record
from attnfuzz.kernels.gpu.build_record import Built, Module
from attnfuzz.kernels.gpu.gpu_backend import GpuBackend
from attnfuzz.kernels.gpu.wrappers.other_layers import FOR_OTHER_LAYERS, uses_of
from attnfuzz.kernels.interface.toolchain import only_compiled
from attnfuzz.reference.arguments import EarlierUse
from attnfuzz.reference.bucket import Bucket

CORE_SECONDS: Final = {
    "FA3": 500.0,
    "FA2": 280.0,
    "POD": 900.0,
    "batch POD": 900.0,
    "holistic": 250.0,
    "fmha_v2": 3600.0,
    "MLA": 150.0,
    "XQA": 20.0,
    "single decode": 60.0,
    "batch decode": 60.0,
}
"""Seconds of one core for all files of a module, by the beginning of its name: rough, from builds on 16 cores."""
_OTHERS: Final = 120.0

SECONDS: Final = 180
CORES: Final = 16
_BUSY: Final = 0.75
"""The share of the cores' time in which compilers run: the longest files end last."""


@dataclass(frozen=True)
class CompiledPart:
    """A part of a bucket: the modules that it needs, and its compile-time features."""

    modules: tuple[Module, ...]
    features: frozenset[str]

    @cached_property
    def pairs(self) -> frozenset[tuple[str, str]]:
        """Its pairs of features."""
        return frozenset(combinations(sorted(self.features), 2))


@dataclass(frozen=True)
class Quick:
    """The chosen modules, the number of all pairs of features, and the pairs that they leave out."""

    modules: tuple[Module, ...]
    pairs: int
    left: tuple[tuple[str, str], ...]

    @property
    def covered(self) -> int:
        """The number of pairs that they cover."""
        return self.pairs - len(self.left)


def cost(module: Module, known: Mapping[str, Built] = MappingProxyType({})) -> float:
    """Return the seconds of one core that a module takes: as its build was recorded (`known`), else an estimate."""
    if module.name in known and known[module.name].core_seconds:
        return known[module.name].core_seconds
    return next((seconds for name, seconds in CORE_SECONDS.items() if module.name.startswith(name)), _OTHERS)


def core_seconds(seconds: float, cores: int) -> float:
    """Return the seconds of one core that compilers get within this time."""
    return seconds * cores * _BUSY


def quick_set(
    backends: Iterable[GpuBackend],
    budget: float = SECONDS * CORES * _BUSY,
    *,
    known: Mapping[str, Built] = MappingProxyType({}),
    touching: Collection[Module] | None = None,
) -> Quick:
    """Choose variants, each time the one with the most new pairs for its cost, within `budget` seconds of one core.

    The modules of one variant may complete others. Revisions have the modules of their backends. With `touching`, only
    variants that need one of these modules are chosen and counted. Costs are those of `known` builds, or estimates.
    """
    every = [
        variant
        for backend in backends
        if "@" not in backend.name
        for variant in variants(backend)
        if touching is None or not set(touching).isdisjoint(variant.modules)
    ]
    wanted = frozenset(pair for variant in every for pair in variant.pairs)
    prices = {module: cost(module, known) for variant in every for module in variant.modules}
    chosen: frozenset[Module] = frozenset()
    while True:
        missing: dict[frozenset[Module], set[tuple[str, str]]] = {}
        for variant in every:
            missing.setdefault(frozenset(variant.modules) - chosen, set()).update(variant.pairs)
        covered = missing.pop(frozenset(), set())
        best, best_gain = None, 0.0
        for needed in missing:
            price = sum(prices[module] for module in needed)
            if price > budget:
                continue
            gained = set().union(*(pairs for others, pairs in missing.items() if others <= needed))
            gain = len(gained - covered) / price
            if gain > best_gain:
                best, best_gain = needed, gain
        if best is None:
            in_order = dict.fromkeys(module for variant in every for module in variant.modules if module in chosen)
            return Quick(tuple(in_order), len(wanted), tuple(sorted(wanted - covered)))
        budget -= sum(prices[module] for module in best)
        chosen |= best


def variants(backend: GpuBackend) -> Iterator[CompiledPart]:
    """Yield the variants of a backend that has modules."""
    for bucket in backend.capability.buckets:
        for part in _smallest(bucket):
            modules = backend.modules_of(part)
            if modules:
                yield CompiledPart(modules, frozenset({f"backend {backend.name}", *_features(part, modules)}))


def _features(part: Bucket, modules: Iterable[Module]) -> Iterator[str]:
    q_heads, kv_heads = part.heads[0]
    yield f"queries {part.dtype}"
    yield f"KV {part.kv_dtype}"
    yield f"head dims {part.head_dim_qk} and {part.head_dim_vo}"
    yield f"window {part.windows[0] >= 0}"
    yield f"soft cap {part.soft_caps[0] > 0}"
    yield f"group {q_heads // kv_heads}"
    yield f"sinks {part.sinks[0]}"
    yield f"latent {part.latent is not None}"
    # Other kernels take any size.
    pages = f"pages of {part.page_sizes[0]}"
    if any(pages in module.name for module in modules):
        yield pages


_CHOICES: Final[dict[str, Callable[[Any], object]]] = {
    "windows": lambda left: left >= 0,
    "soft_caps": lambda cap: cap > 0,
    "heads": lambda heads: heads[0] // heads[1],
    "page_sizes": lambda size: size,
}
"""Fields of a bucket, and the compile-time choice of a value."""


def _parts(bucket: Bucket) -> Iterator[list[Bucket]]:
    """Yield the ways to divide a bucket by one compile-time choice."""
    for field, compiled in _CHOICES.items():
        classes: dict[object, list[object]] = {}
        for value in getattr(bucket, field):
            classes.setdefault(compiled(value), []).append(value)
        if len(classes) > 1:
            yield [msgspec.structs.replace(bucket, **{field: tuple(each)}) for each in classes.values()]


def _smallest(bucket: Bucket) -> Iterator[Bucket]:
    divided = next(_parts(bucket), None)
    if divided is None:
        yield bucket
    else:
        for part in divided:
            yield from _smallest(part)


def only_built(backend: GpuBackend, ready: Collection[str]) -> GpuBackend:
    """Limit a backend to geometries whose modules are `ready`; unchanged if it needs none, or has none of them.

    Its objects are planned for other layers only among those that are left: FlashInfer would compile in a worker, which
    counts as a hang.
    """
    buckets = built_buckets(backend, ready)
    if not buckets:
        return backend
    capability = msgspec.structs.replace(backend.capability, buckets=tuple(buckets))
    if not FOR_OTHER_LAYERS.intersection(capability.earlier_uses):
        return replace(backend, capability=capability)
    left = {*uses_of(buckets), *(use for use in EarlierUse if use not in FOR_OTHER_LAYERS)}
    uses = tuple(use for use in capability.earlier_uses if use in left)
    capability = msgspec.structs.replace(capability, earlier_uses=uses)
    # Each session that makes these uses takes `buckets`, which its protocol does not say.
    opening: Any = backend.session
    return replace(backend, capability=capability, session=partial(opening, buckets=capability.buckets))


def built_buckets(backend: GpuBackend, ready: Collection[str]) -> list[Bucket]:
    """List the parts of its buckets that need no module, or `ready` ones alone."""
    return [part for bucket in backend.capability.buckets for part in _built_parts(backend, bucket, ready)]


def _built_parts(backend: GpuBackend, bucket: Bucket, ready: Collection[str]) -> Iterator[Bucket]:
    """Yield the largest parts of a bucket of which all modules are `ready`."""
    modules = backend.modules_of(bucket)
    if all(module.name in ready for module in modules):
        yield bucket
        return
    if not any(module.name in ready for module in modules):
        return
    for divided in _parts(bucket):
        for part in divided:
            yield from _built_parts(backend, part, ready)
        return


def limited(backends: Iterable[GpuBackend]) -> tuple[GpuBackend, ...]:
    """Limit the backends to compiled modules if the environment asks for it."""
    if not only_compiled():
        return tuple(backends)
    ready = build_record.ready()
    return tuple(only_built(backend, ready) for backend in backends)
