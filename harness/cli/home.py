"""`attnfuzz findings` and `attnfuzz corpus`: the contents of a home."""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from rich.table import Table
from rich.text import Text

from attnfuzz.harness.campaign.causes import UNDECIDED, heading_of
from attnfuzz.harness.campaign.home import FINDINGS, Home
from attnfuzz.harness.cli.answers import (
    CorpusCase,
    CorpusCases,
    CorpusChange,
    FindingInCampaign,
    Findings,
    ListedFailure,
    ListedFinding,
    ShownFinding,
)
from attnfuzz.harness.cli.given import find_by_name
from attnfuzz.harness.cli.other_homes import OtherHome, OtherRecord, kind_of_home
from attnfuzz.harness.cli.terminal import (
    BadInput,
    Terminal,
    answer,
    details,
    echo,
    is_quiet,
    is_verbose,
    new_table,
    print_line,
    tell,
    warn,
)
from attnfuzz.harness.corpus import Corpus, Kept, Why
from attnfuzz.harness.findings.archive import forget, read_records
from attnfuzz.harness.findings.finding import REPORT, case_path, text_beside
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.reduce.ablation import passes_if
from attnfuzz.harness.report.titles import severity, title_of
from attnfuzz.harness.verdict.printable import in_a_line
from attnfuzz.harness.verdict.wording import count, date, replay_line
from attnfuzz.reference import case_file

_STYLES = {State.NEW: "bold red", State.RETURNED: "bold red", State.OPEN: "red", State.FIXED: "green"}

_VERSIONS = ("attnfuzz", "torch", "flashinfer-python", "driver", "gpu", "server")
"""Versions that are printed; environment.json has the others."""

AnyRecord = Record | OtherRecord
"""A finding on file, of a backend or of another campaign."""


def list_findings(*, home: Path) -> None:
    """Print the findings by cause."""
    causes = _by_cause(_records(Home(home)))
    _answer_all(causes, kind_of_home(home))
    if not causes:
        tell(f"{home} has no findings.")
    elif is_quiet():
        for record in (record for group in causes for record in group):
            print_line(Terminal(), in_a_line(record.name))
    else:
        _print_causes(causes)


def _answer_all(causes: Sequence[Sequence[AnyRecord]], kind: OtherHome | None) -> None:
    if kind is not None:
        kind.answer_list([record for group in causes for record in group if not isinstance(record, Record)])
    else:
        answer(Findings(findings=tuple(_listed(causes))))


def _print_causes(causes: Sequence[Sequence[AnyRecord]]) -> None:
    table = new_table("state", "last seen", "finding", whole=("state", "last seen"))
    headings: dict[tuple[object, ...], list[Sequence[AnyRecord]]] = {}
    for cause in causes:
        headings.setdefault(_heading(cause), []).append(cause)
    for together in headings.values():
        if len(together) > 1:
            table.add_row("", "", Text(f"Probably one bug, {len(together)} causes: {UNDECIDED}", style="italic"))
        for first, *others in together:
            _list(table, first)
            for record in others:
                _list(table, record, indent="  ")
    console = Terminal()
    console.print(table)
    if (findings := sum(map(len, causes))) > len(causes):
        console.print(f"{count(len(causes), 'cause')}, {count(findings, 'finding')}.")


def _heading(cause: Sequence[AnyRecord]) -> tuple[object, ...]:
    """Return a key that is equal for causes that are probably one bug, and have the same state."""
    first, fixed = cause[0], all(each.state is State.FIXED for each in cause)
    if isinstance(first, Record) and first.ablated:
        return (fixed, *heading_of(first.case.backend, first.fingerprint, first.needs))
    return (fixed, first.name)


def _listed(causes: Sequence[Sequence[AnyRecord]]) -> Iterator[ListedFinding]:
    firsts: dict[tuple[object, ...], str] = {}
    for cause in causes:
        heading = firsts.setdefault(_heading(cause), cause[0].name)
        for record in cause:
            if isinstance(record, Record):
                yield ListedFinding(
                    name=record.name,
                    path=str(record.path),
                    state=record.state,
                    cause=cause[0].name,
                    heading=heading,
                    needs=record.needs,
                    backend=record.case.backend,
                    failure=ListedFailure.of(record.observation),
                    first_seen=record.first_seen.time,
                    last_seen=record.last_seen.time,
                )


def _by_cause(records: Iterable[AnyRecord]) -> list[list[AnyRecord]]:
    """Return the records of each cause, the one that represents it first, and the worst cause first."""
    causes: dict[str, list[AnyRecord]] = {}
    for record in records:
        causes.setdefault(record.cause or record.name, []).append(record)
    groups = [sorted(group, key=lambda record: record.name != cause) for cause, group in causes.items()]
    return sorted(groups, key=_severity)


def _severity(group: Sequence[AnyRecord]) -> tuple[int, int]:
    """Return the sort key by which fixed causes come last, and the worst of the others first."""
    worst = min((severity(each.observation) for each in group if isinstance(each, Record)), default=0)
    return all(each.state is State.FIXED for each in group), worst


def _list(table: Table, record: AnyRecord, *, indent: str = "") -> None:
    state = Text(record.state, style=_STYLES[record.state])
    path = f" in {record.path}" if is_verbose() else ""
    cell = Text.assemble(f"{indent}{_title(record)}\n", (in_a_line(f"{indent}{record.name}{path}"), "dim"))
    table.add_row(state, date(record.last_seen.time), cell)


def _title(record: AnyRecord) -> str:
    if isinstance(record, Record):
        return title_of(record, record.needs)
    needs = f", needs {', '.join(record.needs)}" if record.needs else ""
    return in_a_line(f"{record.headline}{needs}")


def show_finding(*, name: str, home: Path) -> None:
    """Print the history and the report of a finding, whose name may also be the path of its folder."""
    path = Path(name)
    if path.parent.name == FINDINGS:
        name, home = path.name, path.parent.parent
    kind, records = kind_of_home(home), _records(Home(home))
    record = find_by_name(records, name, str(home))
    report = text_beside(record.path, REPORT)
    campaigns = tuple(map(FindingInCampaign.of, record.sightings))
    if isinstance(record, Record):
        listed = next(each for each in _listed(_by_cause(records)) if each.name == record.name)
        answer(ShownFinding(finding=listed, campaigns=campaigns, report=report))
        again = replay_line(str(record.path))
    else:
        assert kind is not None
        kind.answer_one(record, campaigns, report)
        again = f"python {record.path / kind.script}"
    console = details()
    console.print(Text.assemble((record.state, _STYLES[record.state]), "  ", _title(record)), soft_wrap=True)
    if record.needs:
        console.print(Text(in_a_line(f"  needs {', '.join(record.needs)}")))
    if isinstance(record, Record):
        for clause in passes_if(record.needs):
            console.print(Text(f"  passes {clause}"))
    if record.cause:
        console.print(Text(in_a_line(f"  same cause as {record.cause}")), soft_wrap=True)
    for seen in record.sightings:
        versions = ", ".join(f"{name} {text}" for name, text in seen.environment.items() if name in _VERSIONS)
        line = f"  {date(seen.time)}  {'failed' if seen.failed else 'passed'}  {versions}".rstrip()
        console.print(Text(in_a_line(line)))
    if report is not None:
        console.print()
        Terminal().print(Text(report.rstrip()))
    console.print(Text(f"\n{again}"), soft_wrap=True)


def forget_finding(*, name: str, home: Path) -> None:
    """Remove a finding and its history."""
    opened = Home(home)
    with opened.locked():
        record = find_by_name(_records(opened), name, str(home))
        # A part of the name is not enough, because removing can't be undone.
        if record.name != name:
            raise BadInput(f"{home} has no finding {name!r}: did you mean {record.name!r}?")
        forget(record.path)
    tell(f"Forgot {name}.")


def _records(home: Home) -> Sequence[AnyRecord]:
    records: Sequence[AnyRecord]
    kind = kind_of_home(home.path)
    records, troubles = read_records(home.findings) if kind is None else kind.read_records(home.findings)
    for text in troubles:
        warn(f"Warning: {in_a_line(text)}")
    return records


def list_cases(*, home: Path, backend: str | None) -> None:
    """Print the cases in the order in which they are run, and why each is kept."""
    kept = _in_order(_open(home).kept(backend))
    answer(CorpusCases(cases=tuple(map(_corpus_case, kept))))
    if is_quiet():
        for each in kept:
            print_line(Terminal(), in_a_line(each.entry.case))
        return
    table = new_table("case", "backend", "kept for", whole=("case",))
    for each in kept:
        margins = ", ".join(f"{tier} {margin:.2g}" for tier, margin in sorted(each.entry.margins.items()))
        table.add_row(each.entry.case, each.case.backend, each.entry.why.value + (f" ({margins})" if margins else ""))
    console = Terminal()
    if kept:
        console.print(table)
    by_reason = Counter(each.entry.why for each in kept)
    reasons = ", ".join(f"{by_reason[why]} for {why}" for why in Why if by_reason[why])
    console.print(f"{count(len(kept), 'case')}{': ' if reasons else ''}{reasons}.")


def _in_order(kept: Iterable[Kept]) -> list[Kept]:
    return sorted(kept, key=lambda each: (each.case.backend, each.entry.why.rank, each.entry.case))


def _corpus_case(kept: Kept) -> CorpusCase:
    return CorpusCase(
        case=kept.entry.case,
        path=str(kept.path),
        backend=kept.case.backend,
        kept_for=kept.entry.why.value,
        margins=dict(kept.entry.margins),
    )


def add_cases(*, home: Path, paths: tuple[Path, ...]) -> None:
    """Add cases to the corpus, once all of them have been read."""
    cases = []
    for path in paths:
        case = case_file.load(case_path(path))
        if not case.searchable:
            raise BadInput(f"{path} is made of literal calls, which a search can't use: give a case made of steps")
        cases.append(case)
    into = _open(home)
    added = sum(into.keep(case, why=Why.ADDED) is not None for case in cases)
    answer(CorpusChange(changed=added, of=len(cases)))
    _say(f"{count(added, 'case')} added to {into.folder}; {len(cases) - added} there already.")


def merge_corpora(*, home: Path, other: Path) -> None:
    """Copy the cases of another home's corpus that this one lacks."""
    if not Home(other).corpus.is_dir():
        raise BadInput(f"{other} has no corpus: name a home, the folder that has corpus/ in it")
    into, theirs = _open(home), _open(other)
    looked_at = len(theirs.kept())
    taken = into.merge(theirs)
    answer(CorpusChange(changed=taken, of=looked_at))
    _say(f"{count(taken, 'case')} of {theirs.folder} copied into {into.folder}.")


def prune_cases(*, home: Path, dry_run: bool) -> None:
    """Drop cases whose coverage other cases have."""
    pruned = _open(home)
    before = len(pruned.kept())
    gone = pruned.superfluous() if dry_run else pruned.prune()
    for kept in gone if dry_run else ():
        echo(str(kept.path))
    answer(CorpusChange(changed=len(gone), of=before, dry_run=dry_run))
    _say(f"{len(gone)} of {count(before, 'case')} {'would be ' if dry_run else ''}dropped.")


def _say(line: str) -> None:
    if not is_quiet():
        echo(line)


def _open(home: Path) -> Corpus:
    opened = Corpus(Home(home).corpus)
    for trouble in opened.troubles:
        warn(f"Warning: {trouble}")
    return opened
