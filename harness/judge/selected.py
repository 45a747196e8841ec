"""Judging lists of top-k: each must be the set of its row's highest scores, or one of several with ties."""

from collections.abc import Callable

from attnfuzz.harness.memory.poison import unwritten
from attnfuzz.harness.verdict.failures import Kind, Observation, RowAddress
from attnfuzz.harness.verdict.tiers import Tier
from attnfuzz.kernels.sparse.results import Selected


def judge_selected(selected: Selected, report: Callable[..., Observation]) -> Observation | None:
    """Return the failure of the first wrong row, or None. `report` makes an observation."""
    lists = selected.lists.cpu()
    wrong = {row: mistake for row in range(len(lists)) if (mistake := selected.selection.mistake(row, lists[row]))}
    if not wrong:
        return None
    row, mistake = next(iter(wrong.items()))
    never = bool(unwritten(lists[row]).all())
    if never:
        mistake = "was never written: it holds the sentinel"
    request, token = selected.tokens[row]
    message = (
        f"{selected.place}, row {row} (token {token} of request {request}, {selected.selection.lengths[row]} keys): "
        f"{mistake}; {len(wrong)} of {len(lists)} rows are wrong"
    )
    return report(
        kind=Kind.UNWRITTEN if never else Kind.OUTPUT_MISMATCH,
        place=selected.place,
        tier=Tier.T0,
        row=RowAddress(request, token, 0),
        message=message,
    )
