"""The space of cases of recurrent state, and the rules for features that never occur."""

from collections.abc import Callable, Iterable
from functools import partial
from typing import TYPE_CHECKING, Any

from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recurrent.case import PaddedRow, StateMode, StateOp, StateValues
from attnfuzz.reference.recurrent.features import STATE_TABLE, dim_class, taps
from attnfuzz.strategies.coverage.rules import Clash, Features, Lack, Rules, besides, clash
from attnfuzz.strategies.coverage.space import CaseSpace
from attnfuzz.strategies.state_shapes import key_dims, prompts, value_dims

if TYPE_CHECKING:
    from attnfuzz.kernels.recurrent.capability import StateCapability

_AXES = STATE_TABLE.axes
_BEGINNINGS = ("new", "handed on", "continued")
_YES = {True: "yes", False: "none"}


def _unless(axis: str, supported: Callable[[Any], Iterable[object]], can: Any) -> Features:
    return besides(_AXES, axis, supported(can))


def _flags(name: str, can: Any) -> Iterable[str]:
    return (_YES[each] for each in getattr(can, name))


def _padding(can: Any) -> Iterable[str]:
    rows = tuple(f"{each} rows" for each in can.padded_rows) if _later(can) else ()
    tokens = ("tokens",) if can.padded_prefills and StateMode.PREFILL in can.modes else ()
    return "none", *tokens, *rows


def _later(can: Any) -> bool:
    """Return whether there are steps after the prompt."""
    return StateMode.DECODE in can.modes or _verifies(can)


def _verifies(can: Any) -> bool:
    return StateMode.VERIFY in can.modes and can.most_drafts > 0


def _drafts(can: Any) -> Iterable[str]:
    without = set() if _verifies(can) and set(can.modes) == {StateMode.VERIFY} else {"none"}
    counts = ("one", "2 to 3", "4 to 8", "over 8") if _verifies(can) else ()
    return {*without, *(each for each, least in zip(counts, (1, 2, 4, 9), strict=False) if can.most_drafts >= least)}


def _state_dtypes(can: "StateCapability") -> Iterable[object]:
    if can.op is not StateOp.CONV:
        return can.state_dtypes
    return (*can.dtypes, DType.FLOAT32) if can.converts else can.dtypes


def _groups(can: Any) -> Iterable[str]:
    if can.op is StateOp.CONV:
        return ("one head",)
    if can.op is StateOp.SSM_OF_CHANNELS:
        return ("groups",)
    return ("one head", "heads", "groups") if can.grouped else ("one head", "heads")


def _values(can: Any) -> Iterable[str]:
    return (StateValues.NORMAL,) if can.op is StateOp.CONV else StateValues


_SUPPORTED: dict[str, Callable[[Any], Iterable[object]]] = {
    "state op": lambda can: (can.op,),
    "state mode": lambda can: (each for each in can.modes if each is not StateMode.VERIFY or _verifies(can)),
    "prompt": lambda can: prompts(can) if StateMode.PREFILL in can.modes else (),
    "begin": lambda can: _BEGINNINGS if StateMode.PREFILL in can.modes else (),
    "mixed": lambda can: _YES.values() if StateMode.PREFILL in can.modes else ("none",),
    "requests": lambda can: (
        "one",
        "2 to 3",
        "4 to 8",
        "over 8",
        *(("none",) if can.padded_rows and _later(can) else ()),
    ),
    "state drafts": _drafts,
    "accepted": lambda can: ("one", "some", "all", *(("none",) if can.least_accepted == 0 else ())),
    "ragged verify": lambda can: _YES.values() if can.ragged and _verifies(can) else ("none",),
    "padded": _padding,
    "replayed": lambda can: _YES.values() if can.replays and _later(can) else ("none",),
    "gap": lambda can: _YES.values() if can.gaps else ("none",),
    "moved": lambda can: _YES.values() if can.moves else ("none",),
    "groups": _groups,
    "state key dim": lambda can: set(map(dim_class, key_dims(can))),
    "state value dim": lambda can: set(map(dim_class, value_dims(can))),
    "taps": lambda can: set(map(taps, can.widths)) if can.op is StateOp.CONV else ("4",),
    "strided": lambda can: _YES.values() if can.strided else ("none",),
    **{name: partial(_flags, name) for name in ("normed", "gated", "biased", "activated", "narrow", "columns")},
    **{name.replace("_", " "): partial(_flags, name) for name in ("no_skip", "no_step_bias", "no_softplus")},
    "transposed": lambda can: _YES.values() if can.transposed else ("none",),
    "input dtype": lambda can: can.dtypes,
    "state dtype": _state_dtypes,
    "state values": _values,
}

_LACKS = tuple(Lack("the backend does not have it", partial(_unless, *each)) for each in _SUPPORTED.items())


def _clash(reason: str, features: str, excluded: str, where: Callable[[Any], object] = lambda _: True) -> Clash:
    return clash(_AXES, reason, features, excluded, where)


def _values_of(axis: str) -> Iterable[str]:
    return (feature.partition("=")[2] for feature in _AXES[axis])


def _convolves(can: Any) -> bool:
    return can.op is StateOp.CONV


def _keeps(can: "StateCapability") -> bool:
    return can.op is StateOp.CONV and not can.converts


def _square(can: Any) -> bool:
    return bool(can.square)


_CLASHES = (
    _clash("only prefills have prompts", "prompt; begin; mixed=yes; padded=tokens", "state mode!=prefill"),
    _clash("only verifies have drafts", "accepted; ragged verify=yes", "state mode!=verify; state drafts=none"),
    _clash("a server without drafts decodes", "state drafts=none", "state mode=verify"),
    _clash("a server with drafts verifies", "state drafts!=none", "state mode=decode"),
    _clash("one draft is accepted or not", "accepted=some", "state drafts=one"),
    _clash("rows are those of decodes and verifies", "padded!=none|tokens", "state mode=prefill"),
    _clash("prefills are not captured", "replayed=yes", "state mode=prefill"),
    _clash("captured padding has tokens", "replayed=yes", f"padded={PaddedRow.EMPTY} rows"),
    _clash("inputs are parts of wider rows, or transposed", "strided=yes", "transposed=yes"),
    _clash("the backend does not convert", "input dtype!=float32", "state dtype=float32", _keeps),
    _clash("a step without requests has padding", "requests=none", "padded=none; state mode=prefill"),
    _clash("without requests there are no rows", "requests=none", "accepted; ragged verify=yes"),
    _clash("rows differ if there are several", "requests=one", "ragged verify=yes; mixed=yes"),
    _clash("slots are handed on in later steps", "begin=handed on", "state steps=one"),
    *(
        _clash("a convolution keeps its inputs", f"input dtype={each}", f"state dtype!={each}|float32", _convolves)
        for each in _values_of("input dtype")
    ),
    *(
        _clash("keys and values have equal dims", f"state key dim={each}", f"state value dim!={each}", _square)
        for each in _values_of("state key dim")
    ),
)

STATE_SPACE = CaseSpace(STATE_TABLE, Rules(_LACKS, _CLASHES))
"""The features of `reference.recurrent.features`, and the rules for them."""
