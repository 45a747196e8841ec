"""The run of FlashInfer's planned wrapper for shared prefixes: a request has keys in each level."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Final

from attnfuzz.harness.dumps.planned_run import PlannedRun
from attnfuzz.kernels.meaning import Parameter, RequestSpan
from attnfuzz.kernels.meaning.forms import WrongForm

_ARRAYS: Final[Mapping[str, str]] = {
    "qo_indptr": "qo_indptr_arr",
    "paged_kv_indptr": "paged_kv_indptr_arr",
    "paged_kv_indices": "paged_kv_indices_arr",
    "last_page_len": "paged_kv_last_page_len",
}
"""A list of one level, and the argument of the plan with those of all levels."""


@dataclass(frozen=True)
class PlannedLevels(PlannedRun):
    """The run of MultiLevelCascadeAttentionWrapper: the keys of each level precede those of the next one.

    The last level is causal if the plan is. Its requests are those of an answer, so that each must lie within one
    request of every other level, whose pages must be full.
    """

    indptr: str = "paged_kv_indptr_arr"
    queries: str = "qo_indptr_arr"
    indices: str = "paged_kv_indices_arr"
    last: str = "paged_kv_last_page_len"
    causal: bool = False

    def parameters(self, arguments: Mapping[str, Any]) -> tuple[Parameter, ...]:
        """Return the tensors of plan and run. Raises ValueError for impossible ones."""
        counts = {name: len(_lists(arguments, name)) for name in _ARRAYS.values()}
        if len({*counts.values(), arguments.get("num_levels")}) > 1:
            raise WrongForm("num_levels", f"num_levels is {arguments.get('num_levels')}, and the plan has {counts}")
        return super().parameters(arguments)

    def spans(self, arguments: Mapping[str, Any]) -> tuple[RequestSpan, ...]:
        """Return the requests of the last level, with the keys of all levels. Raises ValueError if that can't be."""
        size = self._pool(arguments).page_size
        one = PlannedRun("paged_kv_indptr", "qo_indptr", "paged_kv_indices", "last_page_len")
        levels = [
            one.spans({**arguments, **{name: arguments[array][level] for name, array in _ARRAYS.items()}})
            for level in range(len(arguments[self.indptr]))
        ]
        *earlier, last = levels
        causal = bool(arguments.get("causal"))
        return tuple(_joined([_above(level, span) for level in earlier], span, size, causal=causal) for span in last)


def _lists(arguments: Mapping[str, Any], name: str) -> Sequence[Any]:
    found = arguments.get(name)
    if not isinstance(found, list | tuple) or not found:
        raise WrongForm(name, f"{name} is no list of a tensor for each level")
    return found


def _above(level: Sequence[RequestSpan], span: RequestSpan) -> RequestSpan:
    """Return the request of a level that all queries of a span belong to; one without keys for none."""
    end = span.first_row + span.q_len
    own = [each for each in level if each.first_row < end and each.first_row + each.q_len > span.first_row]
    if not span.q_len:
        return RequestSpan(span.first_row, 0, 0)
    if len(own) != 1 or own[0].first_row > span.first_row or own[0].first_row + own[0].q_len < end:
        raise ValueError("a request of its last level has queries in several requests of another level")
    return own[0]


def _joined(above: Sequence[RequestSpan], span: RequestSpan, size: int, *, causal: bool) -> RequestSpan:
    prefix = sum(each.kv_len for each in above)
    if any(each.kv_len % size for each in above):
        raise ValueError("a level before the last one has a page that is not full, which can't be part of an answer")
    if causal and prefix and span.q_len > span.kv_len:
        raise ValueError("a request has more queries than keys in the last level, which can't be part of an answer")
    pages = tuple(page for each in (*above, span) for page in each.pages)
    inside = all(each.inside for each in (*above, span))
    return RequestSpan(span.first_row, span.q_len, prefix + span.kv_len, pages=pages, inside=inside)
