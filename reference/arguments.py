"""Argument forms: other ways to pass the same attention to a kernel, and the earlier uses of its objects.

A plain call passes dense int32 metadata, Python numbers, a tensor for every output, and no options. Each form changes
one argument without changing the correct output. An API promises a form, refuses it, or does not mention it.
"""

from collections.abc import Collection
from enum import StrEnum

import msgspec


class ArgumentForm(StrEnum):
    """One argument, and the form in which it is passed instead of the plain one.

    GAPS: elements of a vector, or heads, are not adjacent in memory because they belong to a larger tensor.
    HEADS_FIRST: the first axis in memory is that of heads. DEFAULT: the argument is omitted. PAGE_IDS and KEY_STARTS
    also stand for the ids and starts of blocks of keys. STATES are the inputs of a merge. 16 bits of their LSEs are
    those of the states' dtype, and NAN is in outputs whose weight in the merge is 0.
    """

    PAGE_IDS_INT64 = "page ids in int64"
    PAGE_IDS_GAPS = "page ids with gaps"
    TABLE_INT64 = "page table in int64"
    QUERY_STARTS_INT64 = "query starts in int64"
    QUERY_STARTS_GAPS = "query starts with gaps"
    KEY_STARTS_GAPS = "key starts with gaps"
    LENGTHS_INT64 = "lengths in int64"
    LENGTHS_GAPS = "lengths with gaps"
    QUERY_ELEMENTS_APART = "query elements apart"
    KEYS_GAPS = "keys with gaps"
    VALUES_GAPS = "values with gaps"
    OUT_GAPS = "output with gaps"
    OUT_HEADS_FIRST = "output with heads first"
    OUT_RETURNED = "output returned"
    LSE_HEADS_FIRST = "LSE with heads first"
    LSE_RETURNED = "LSE returned"
    LSE_LAYOUT = "LSE in layout HN"
    SINKS_16_BITS = "sinks in 16 bits"
    SHARED_KEYS_GAPS = "shared keys and values with gaps"
    MASK_GAPS = "mask with gaps"
    SIZES_INT64 = "block sizes in int64"
    OFFSETS_INT64 = "offsets in int64"
    STATES_GAPS = "states with gaps"
    STATE_LSES_GAPS = "LSEs of states with gaps"
    STATE_LSES_FLOAT64 = "LSEs of states in float64"
    STATE_LSES_16_BITS = "LSEs of states in 16 bits"
    STATES_NAN = "NaN in states without keys"
    LSE_BASE_E = "LSE in base e"
    SCALE_DEFAULT = "softmax scale left out"
    SCALE_TENSOR = "softmax scale as a tensor"
    K_SCALE_DEFAULT = "K scale left out"
    K_SCALE_TENSOR = "K scale as a tensor"
    V_SCALE_DEFAULT = "V scale left out"
    V_SCALE_TENSOR = "V scale as a tensor"
    WINDOW_DEFAULT = "window left out"
    WINDOW_FAR = "window of 2^31 - 1"
    WINDOW_AT_RUN = "window at run"
    SOFT_CAP_DEFAULT = "soft cap left out"
    SOFT_CAP_NEGATIVE = "soft cap below 0"
    MASK_ADDED = "mask as numbers to add"
    OFFSETS_IN_TOKENS = "offsets in tokens"
    CALL_WITHOUT_QUERIES = "call without queries"
    DTYPES_BY_NAME = "dtypes by name"
    OUT_DTYPE_GIVEN = "output dtype given"
    KEY_LENGTHS_GIVEN = "key lengths given"
    BLOCKING = "blocking copies"
    SPLIT_DISABLED = "split disabled"
    SPLIT_OF_A_PAGE = "split of a page"
    DEPENDENT_LAUNCH = "dependent launch"
    NO_DEPENDENT_LAUNCH = "no dependent launch"
    LENGTH_AWARE = "length-aware schedule"
    TACTIC_0 = "tactic 0"
    TACTIC_1 = "tactic 1"
    TACTIC_2 = "tactic 2"
    TACTIC_3 = "tactic 3"
    TACTIC_4 = "tactic 4"
    TACTIC_5 = "tactic 5"

    @property
    def of_tensor(self) -> bool:
        """Whether the argument is a tensor, not a number or an option."""
        return self in _OF_TENSORS


class EarlierUse(StrEnum):
    """An earlier use of the object that runs a step, such as a wrapper, which must not affect the step.

    PLANNED_...: it was planned for another layer or batch before. For a function, the object is the state that it keeps
    between calls, and its plans are calls. RESET: its workspaces were replaced before the plan. OVERWRITTEN: its
    workspaces were filled with NaN, which erases earlier plans. COPIED: a copy of it, made after the plan, runs.
    RAN_BEFORE: the plan has run on other queries. NEIGHBOUR: another object has planned and run on the same float
    workspace since the plan. REUSED_TENSORS: the tensors of the call held another batch in an earlier call. CROPPED: it
    was made for longer sequences, and then cropped. OTHER_STREAM: it was planned on one stream and runs on another,
    which waits for the first.
    """

    PLANNED_ALIKE = "planned alike"
    PLANNED_WITHOUT_MASK = "planned without a mask"
    PLANNED_CUSTOM_MASK = "planned with a custom mask"
    PLANNED_OTHER_SCALE = "planned with another scale"
    PLANNED_OTHER_HEADS = "planned for other heads"
    PLANNED_OTHER_HEAD_DIM = "planned for another head dim"
    PLANNED_OTHER_DTYPE = "planned in another dtype"
    PLANNED_OTHER_WINDOW = "planned for another window"
    PLANNED_OTHER_SOFT_CAP = "planned for another soft cap"
    PLANNED_FEWER = "planned for fewer requests"
    PLANNED_MORE = "planned for more requests"
    PLANNED_SPLIT = "planned with a split of a page"
    PLANNED_UNSPLIT = "planned with the split disabled"
    PLANNED_LENGTHS = "planned with key lengths given"
    RESET = "workspaces reset"
    OVERWRITTEN = "workspaces overwritten"
    COPIED = "copied"
    REUSED_TENSORS = "tensors of another batch"
    CROPPED = "cropped"
    RAN_BEFORE = "ran before"
    NEIGHBOUR = "neighbour on the workspace"
    OTHER_STREAM = "run on another stream"


class ArgumentStanding(StrEnum):
    """Whether an API promises a form of an argument, refuses it, or does not mention it (UNSAID).

    A refused form must raise. An unmentioned one may raise, or must give the correct output. After either exception,
    the plain call must work.
    """

    PROMISED = "promised"
    REFUSED = "refused"
    UNSAID = "unsaid"


def check_source(subject: str, standing: ArgumentStanding, source: str) -> None:
    """Raise ValueError if a promise or refusal has no source, or an unmentioned form has one."""
    if (standing is ArgumentStanding.UNSAID) is not (not source):
        raise ValueError(f"{subject}: give a source if it is promised or refused, and none otherwise")


class ArgumentRule(msgspec.Struct, frozen=True):
    """The standing of a form, and the docstring, check or test that states it ("" if none does)."""

    form: ArgumentForm
    standing: ArgumentStanding = ArgumentStanding.UNSAID
    source: str = ""

    def __post_init__(self) -> None:
        check_source(self.form, self.standing, self.source)


_F = ArgumentForm
METADATA_NOT_DENSE_INT32 = frozenset(
    {
        _F.PAGE_IDS_INT64,
        _F.PAGE_IDS_GAPS,
        _F.TABLE_INT64,
        _F.QUERY_STARTS_INT64,
        _F.QUERY_STARTS_GAPS,
        _F.KEY_STARTS_GAPS,
        _F.LENGTHS_INT64,
        _F.LENGTHS_GAPS,
        _F.SIZES_INT64,
        _F.OFFSETS_INT64,
    }
)
OUTPUTS_NOT_DENSE = frozenset({_F.OUT_GAPS, _F.OUT_HEADS_FIRST, _F.LSE_HEADS_FIRST})
INPUTS_NOT_DENSE = frozenset(
    {
        _F.QUERY_ELEMENTS_APART,
        _F.KEYS_GAPS,
        _F.VALUES_GAPS,
        _F.SHARED_KEYS_GAPS,
        _F.MASK_GAPS,
        _F.STATES_GAPS,
        _F.STATE_LSES_GAPS,
    }
)
FLOATS_OF_ANOTHER_WIDTH = frozenset({_F.SINKS_16_BITS, _F.STATE_LSES_FLOAT64, _F.STATE_LSES_16_BITS})
"""The forms of tensors, by the role of the argument and the way in which they differ from the plain form."""

_OF_TENSORS = (
    METADATA_NOT_DENSE_INT32
    | OUTPUTS_NOT_DENSE
    | INPUTS_NOT_DENSE
    | FLOATS_OF_ANOTHER_WIDTH
    | {_F.OUT_RETURNED, _F.LSE_RETURNED, _F.LSE_LAYOUT, _F.STATES_NAN}
)
TACTICS = (_F.TACTIC_0, _F.TACTIC_1, _F.TACTIC_2, _F.TACTIC_3, _F.TACTIC_4, _F.TACTIC_5)
"""The tactics of a kernel, one of which an autotuner chooses, by their numbers."""

_EXCLUSIVE = (
    {_F.PAGE_IDS_INT64, _F.PAGE_IDS_GAPS},
    {_F.QUERY_STARTS_INT64, _F.QUERY_STARTS_GAPS},
    {_F.LENGTHS_INT64, _F.LENGTHS_GAPS},
    {_F.OUT_GAPS, _F.OUT_HEADS_FIRST, _F.OUT_RETURNED},
    {_F.LSE_HEADS_FIRST, _F.LSE_LAYOUT, _F.LSE_RETURNED},
    {_F.STATES_GAPS, _F.STATES_NAN},
    {_F.STATE_LSES_GAPS, _F.STATE_LSES_FLOAT64, _F.STATE_LSES_16_BITS},
    {_F.MASK_GAPS, _F.MASK_ADDED},
    {_F.WINDOW_DEFAULT, _F.WINDOW_FAR},
    {_F.WINDOW_AT_RUN, _F.WINDOW_FAR},
    {_F.SOFT_CAP_DEFAULT, _F.SOFT_CAP_NEGATIVE},
    {_F.SCALE_DEFAULT, _F.SCALE_TENSOR},
    {_F.K_SCALE_DEFAULT, _F.K_SCALE_TENSOR},
    {_F.V_SCALE_DEFAULT, _F.V_SCALE_TENSOR},
    {_F.SPLIT_DISABLED, _F.SPLIT_OF_A_PAGE},
    {_F.DEPENDENT_LAUNCH, _F.NO_DEPENDENT_LAUNCH},
    set(TACTICS),
)


def exclude_each_other(forms: Collection[ArgumentForm]) -> bool:
    """Return whether two of the `forms` concern the same argument."""
    return any(len(group.intersection(forms)) > 1 for group in _EXCLUSIVE)


Rules = tuple[ArgumentRule, ...]


def promised(source: str, *forms: ArgumentForm) -> Rules:
    """Return rules for forms that work, according to `source`."""
    return tuple(ArgumentRule(form, ArgumentStanding.PROMISED, source) for form in forms)


def refused(source: str, *forms: ArgumentForm) -> Rules:
    """Return rules for forms that raise, according to `source`."""
    return tuple(ArgumentRule(form, ArgumentStanding.REFUSED, source) for form in forms)


def unsaid(*forms: ArgumentForm) -> Rules:
    """Return rules for forms that the API does not mention."""
    return tuple(map(ArgumentRule, forms))


def without(rules: Rules, *forms: ArgumentForm) -> Rules:
    """Return the rules of all other forms."""
    return tuple(rule for rule in rules if rule.form not in forms)
