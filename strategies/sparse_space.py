"""The space of cases of sparse attention, and the rules for features that never occur."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from typing import Any, TypeVar

from attnfuzz.reference.case import ValueFamily
from attnfuzz.reference.device import Device
from attnfuzz.reference.sparse.capability import SparseCapability
from attnfuzz.reference.sparse.case import OF_PRODUCTS, ListOrder, Scores, SparseMode, SparseOp, Tail
from attnfuzz.reference.sparse.features import TABLE, page_class, top_k_class
from attnfuzz.strategies.coverage.rules import Clash, Features, Lack, Rules, Together, besides, clash
from attnfuzz.strategies.coverage.space import CaseSpace

T = TypeVar("T")
_AXES = TABLE.axes
_YES = {True: "yes", False: "none"}

_PAGES = (16, 16, 64, 64, 1, 4, 8, 32, 128, 24)
SHORT_LISTS = (1, 2, 3, 7, 8, 16, 16, 31, 64, 64, 65, 128, 130, 200)
_LONG_LISTS = (512, 1024, 2048)
_BLOCKS = 512


def among(options: tuple[T, ...], limits: tuple[T, ...]) -> tuple[T, ...]:
    """Return the options within limits, and the limits that are no options."""
    if not limits:
        return options
    return (*(each for each in options if each in limits), *(each for each in limits if each not in options))


def pages(can: SparseCapability) -> tuple[int, ...]:
    """Return the page sizes that are drawn."""
    return among(_PAGES, can.page_sizes)


def lists(can: SparseCapability) -> tuple[int, ...]:
    """Return the lengths of lists that are drawn."""
    return among((*SHORT_LISTS, *_LONG_LISTS), can.top_ks)


def short_lists(can: SparseCapability) -> tuple[int, ...]:
    """Return the lengths of lists that are drawn for requests of hundreds of keys.

    Kernels on a GPU take the entries of a list in blocks, so several blocks are drawn where a capability names them.
    """
    longest = _BLOCKS if can.device is Device.CUDA else SHORT_LISTS[-1]
    return among(SHORT_LISTS, tuple(each for each in can.top_ks if each <= longest) or can.top_ks)


_SUPPORTED: dict[str, Callable[[Any], Iterable[object]]] = {
    "op": lambda can: {op for chain in can.chains for op in chain},
    "mode": lambda can: can.modes,
    "replayed": lambda can: _YES.values() if can.replays else ("none",),
    "padding": lambda can: _YES.values() if can.padding else ("none",),
    "list": lambda can: set(map(top_k_class, lists(can))),
    "page": lambda can: set(map(page_class, pages(can))),
    **{
        axis: partial(lambda name, can: (_YES[each] for each in getattr(can, name)), name)
        for axis, name in {
            "sinks": "sinks",
            "second list": "seconds",
            "counts": "counts",
            "packed keys": "ragged",
            "powers of two": "powers",
        }.items()
    },
    "scores": lambda can: can.scores,
    "order": lambda can: can.orders,
    "tail": lambda can: can.tails,
    "values": lambda can: can.values,
    "gap": lambda can: _YES.values() if can.gaps else ("none",),
}


def _unless(axis: str, supported: Callable[[Any], Iterable[object]], can: Any) -> Features:
    return besides(_AXES, axis, supported(can))


_LACKS = tuple(Lack("the backend does not have it", partial(_unless, *each)) for each in _SUPPORTED.items())


def _clash(reason: str, features: str, excluded: str, where: Callable[[Any], object] = lambda _: True) -> Clash:
    return clash(_AXES, reason, features, excluded, where)


_IDLE = SparseMode.IDLE


@dataclass(frozen=True)
class ChainOptions:
    """The options of fields for the ops of a case, likely ones repeatedly."""

    scores: tuple[Scores, ...]
    orders: tuple[ListOrder, ...]
    values: tuple[ValueFamily, ...]


def options_of(can: SparseCapability, ops: tuple[SparseOp, ...]) -> ChainOptions:
    """Return the options of fields for some ops of a backend."""
    products = SparseOp.LOGITS in ops or SparseOp.WRITE in ops
    attends = SparseOp.ATTENTION in ops and SparseOp.TRANSFORM not in ops
    made = SparseOp.TRANSFORM in ops and SparseOp.TOP_K not in ops
    # Most mistakes in products show in different numbers.
    scores = (
        (*OF_PRODUCTS, Scores.NORMAL, Scores.NORMAL)
        if products
        else (*Scores,)
        if SparseOp.TOP_K in ops
        else (Scores.NORMAL,)
    )
    orders = (*ListOrder,) if attends or made else (ListOrder.RECENT,)
    # Numbers of uneven size are for writers, and overflow products.
    uneven = ops == (SparseOp.WRITE,)
    return ChainOptions(
        scores=_supported(scores, can.scores),
        orders=_supported(orders, can.orders),
        values=tuple(each for each in can.values if uneven or each is not ValueFamily.UNEVEN),
    )


def _supported(options: tuple[T, ...], can: tuple[T, ...]) -> tuple[T, ...]:
    return tuple(each for each in options if each in can) or can[:1]


def may_be_long(ops: tuple[SparseOp, ...]) -> bool:
    """Return whether a case of these ops may have a request of thousands of keys."""
    return SparseOp.TOP_K in ops or SparseOp.LOGITS in ops


def _together(can: SparseCapability) -> dict[str, frozenset[str]]:
    """Return the features that each feature of the options of a chain occurs with."""
    axes = ("op", "scores", "order", "values", "tail", "length", "format")
    found: dict[str, set[str]] = {feature: set() for axis in axes for feature in _AXES[axis]}
    for ops in can.chains:
        options = options_of(can, ops)
        shown = {
            *(f"op={op}" for op in ops),
            *(f"scores={each}" for each in options.scores),
            *(f"order={each}" for each in options.orders),
            *(f"values={each}" for each in options.values),
            *(f"tail={each}" for each in (can.tails if SparseOp.ATTENTION in ops else can.tails[:1])),
            *(f"format={each}" for each in (can.formats if SparseOp.ATTENTION in ops else can.formats[:1])),
            *_AXES["length"][: 1 + may_be_long(ops)],
        }
        for feature in shown:
            found[feature] |= shown
    return {feature: frozenset(others) for feature, others in found.items()}


_NO_CHAIN = "the ops that show it, or both, are in no chain of the backend"

_CLASHES = (
    _clash("an idle step has no requests", f"mode={_IDLE}", "queries=several; keys!=none; length=above 2048"),
    _clash("steps have keys unless they are idle", f"mode!={_IDLE}", "keys=none"),
    _clash("a decode has one query of each request", "mode=decode", "queries=several"),
    _clash("not drawn: servers draft two tokens or more", "mode=verify", "queries=one"),
    _clash("not drawn: a long prompt costs too much", "mode=prefill", "length=above 2048"),
    _clash("only decodes and verifies are captured", "replayed=yes", "mode=prefill|extend"),
    _clash("only counts tell which entries are behind a list", f"tail={Tail.OTHER_SLOTS}", "counts=none"),
)

SPARSE_SPACE = CaseSpace(TABLE, Rules(_LACKS, _CLASHES, Together(_together, _NO_CHAIN, _NO_CHAIN)))
"""The features of `reference.sparse.features`, and the rules for them."""
