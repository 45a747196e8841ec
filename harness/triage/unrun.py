"""Triage of calls whose backend can't run here: by their arguments alone, or on other kernels that take such calls."""

from collections.abc import Iterator

from attnfuzz.harness.backends import registry
from attnfuzz.harness.calls.asked import NamesNothing, NotJudgeable, asked, parts_of
from attnfuzz.harness.calls.object_calls import prepares
from attnfuzz.harness.triage.evidence import BrokenDuty, breaches, other_kernels, reads_of_unwritten_rows
from attnfuzz.harness.triage.result import Triage
from attnfuzz.harness.verdict.blame import Blame
from attnfuzz.reference.calls import CallCase
from attnfuzz.reference.case_file import case_id


def stand_in(case: CallCase) -> str | None:
    """Return a backend that runs here and has all ops of a case of calls, or None."""
    return next(iter(other_kernels(case)), None)


def by_arguments(case: CallCase) -> Triage | None:
    """Return the triage of calls that break a precondition by their arguments alone, or None if none does."""
    broken = list(_broken(case))
    if not broken:
        return None
    first = min(each.call for each in broken)
    own = [each.breach for each in broken if each.call == first]
    op = case.calls[first].op
    return Triage(
        case=case_id(case),
        backend=case.backend,
        fault=Blame.CALLER,
        conclusion=f"The caller is at fault: the code that made the call breaks the contract of {op}.",
        sentences=tuple(f"{each.text} ({each.source})" for each in own),
        breaches=tuple(each.text for each in own),
        arguments=tuple(dict.fromkeys(name for each in own for name in each.arguments)),
        call=first,
        kernel=op,
    )


def _broken(case: CallCase) -> Iterator[BrokenDuty]:
    """Yield the preconditions that the calls break, as far as their arguments show."""
    yield from breaches(case)
    yield from (BrokenDuty(*read) for read in reads_of_unwritten_rows(case))
    contract = registry.resolve(case.backend).contract
    for index, call in enumerate(case.calls):
        for part in range(0 if prepares(call) else parts_of(case, index)):
            try:
                asked(case, index, contract, part=part)
            except NamesNothing as broken:
                yield BrokenDuty(index, broken.breach)
            except NotJudgeable:
                continue
