"""The corpus: a folder of case files that run before drawn ones.

corpus/BACKEND/CASEID.json      ordinary cases for `attnfuzz replay`
corpus/index.ndjson             why each is kept
"""

import heapq
import math
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import Path

import msgspec

from attnfuzz.harness.backends.registry import as_file_name
from attnfuzz.harness.corpus.index import Index, IndexEntry, Kept, Why
from attnfuzz.harness.family import family_of
from attnfuzz.harness.files.durable import is_folder, set_aside, sync_folder, write_unnamed
from attnfuzz.reference import case_file
from attnfuzz.reference.any_case import AnyCase
from attnfuzz.reference.case_file import CaseFileError


class Corpus:
    """The cases in `folder`, which is created for the first one.

    Unreadable files are skipped; `troubles` has a line for each. Several processes may add to one corpus concurrently.

    Raises CorpusError for a folder that is not a corpus, or is a newer one.
    """

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self._index = Index(folder)
        self.troubles = list(self._index.troubles)
        self._kept = {kept.entry.case: kept for kept in self._load()}
        self._reached: dict[str, int] = {}
        self._records = Records(self._kept.values())

    def kept(self, backend: str | None = None) -> list[Kept]:
        """Return the kept cases, of one backend or of all, in no particular order."""
        return [kept for kept in self._kept.values() if backend in {None, kept.case.backend}]

    def replays(self, backend: str) -> list[AnyCase]:
        """Return the cases of `backend` to replay: failures and added ones, then by margin, then others by pairs."""

        def order(each: Kept) -> tuple[int, float, str]:
            return each.entry.why.rank, -max(each.entry.margins.values(), default=0.0), each.entry.case

        kept = sorted(self.kept(backend), key=order)
        first = [each.case for each in kept if each.entry.why is not Why.COVERAGE]
        rest = [each.case for each in kept if each.entry.why is Why.COVERAGE]
        return first + cover_order(rest, _pairs(first))

    def keep(self, case: AnyCase, *, why: Why, margins: Mapping[str, float] | None = None) -> str | None:
        """Keep `case` on disk because of `why`, and return its id, or None if nothing is new about it. Raises OSError.

        A failure is new once, and a case with `margins` if it has one of the largest of a tier.
        """
        if not why.for_good:
            return next(iter(self.keep_records([(case, margins or {})])), None)
        entry = _entry(case, why, margins or {})
        known = self._kept.get(entry.case)
        if known is not None and known.entry.why.rank <= why.rank:
            return None
        self._put([(case, entry)])
        return entry.case

    def keep_records(self, found: Iterable[tuple[AnyCase, Mapping[str, float]]]) -> list[str]:
        """Keep the cases that have one of the largest margins of a tier among all, and return their ids.

        Raises OSError.
        """
        records, new = self._records.copy(), []
        for case, margins in found:
            entry = _entry(case, Why.MARGIN, margins)
            if records.broken_by(case.backend, entry):
                records.add(case.backend, entry)
                new.append((case, entry))
        new = [(case, entry) for case, entry in new if records.holds(case.backend, entry.case)]
        self._put(new, durably=False)
        return [entry.case for _, entry in new]

    def keep_for_coverage(self, cases: Iterable[AnyCase]) -> list[str]:
        """Keep `cases` for the pairs that they reach, and return the ids of those not kept before. Raises OSError."""
        entries = ((case, _entry(case, Why.COVERAGE, {})) for case in cases)
        new = [(case, entry) for case, entry in entries if entry.case not in self._kept]
        self._put(new, durably=False)
        return [entry.case for _, entry in new]

    def needed(self, cases: Sequence[AnyCase]) -> list[AnyCase]:
        """Return few of `cases`, of one backend, that reach all of their pairs that no case here reaches."""
        return cover_order(cases, self._reached_by(cases[0].backend)) if cases else []

    def merge(self, other: "Corpus") -> int:
        """Keep the new cases of another corpus, and return their number. Raises OSError."""
        taken = 0
        for kept in other.kept():
            case, entry = kept.case, kept.entry
            known = self._kept.get(entry.case)
            new = _bits_of(case) & ~self._reached_by(case.backend)
            adds = new or self._records.broken_by(case.backend, entry)
            better = known is None or entry.why.rank < known.entry.why.rank
            if better if entry.why.for_good else adds:
                self._put([(case, entry)])
                taken += 1
        return taken

    def superfluous(self) -> list[Kept]:
        """Return the cases to prune: no failures, no records of a margin, and not needed to reach all pairs."""
        backends = {kept.case.backend for kept in self._kept.values()}
        return [kept for backend in sorted(backends) for kept in self._superfluous_of(backend)]

    def prune(self) -> list[Kept]:
        """Remove superfluous cases, and return them. Raises OSError."""
        removed = self.superfluous()
        for kept in removed:
            self._drop(kept)
        self._index.rewrite(kept.entry for kept in self._kept.values())
        return removed

    def _superfluous_of(self, backend: str) -> list[Kept]:
        kept = self.kept(backend)
        stays = {each.case for each in kept if each.entry.why.for_good or self._records.holds(backend, each.entry.case)}
        stays.update(cover_order([each.case for each in kept if each.case not in stays], _pairs(stays)))
        return [each for each in kept if each.case not in stays]

    def _put(self, new: Sequence[tuple[AnyCase, IndexEntry]], *, durably: bool = True) -> None:
        """Write case files, then their index lines: the index is what a crash may lose."""
        if not new:
            return
        new = [(case, self._with_best_reason(entry)) for case, entry in new]
        self._index.begin()
        paths = [self._write(case, entry, durably=durably) for case, entry in new]
        if durably:
            for folder in {path.parent for path in paths}:
                sync_folder(folder)
        self._index.append([entry for _, entry in new], durably=durably)
        for (case, entry), path in zip(new, paths, strict=True):
            self._add(Kept(case=case, path=path, entry=entry))

    def _with_best_reason(self, entry: IndexEntry) -> IndexEntry:
        """Return `entry`, with the reason of a case already here, unless the new one is for good.

        A failure whose margin is a record when it passes must not be dropped with the record.
        """
        known = self._kept.get(entry.case)
        if known is None or entry.why.for_good:
            return entry
        return msgspec.structs.replace(entry, why=known.entry.why)

    def _write(self, case: AnyCase, entry: IndexEntry, *, durably: bool) -> Path:
        path = self.folder / as_file_name(case.backend) / f"{entry.case}.json"
        if not is_folder(path.parent):
            set_aside(path.parent)
        elif is_folder(path):
            set_aside(path)
        write_unnamed(path, case_file.encode(case), durably=durably)
        return path

    def _add(self, kept: Kept) -> None:
        backend = kept.case.backend
        reached = self._reached_by(backend)
        self._kept[kept.entry.case] = kept
        self._reached[backend] = reached | _bits_of(kept.case)
        for beaten in self._records.add(backend, kept.entry):
            other = self._kept.get(beaten)
            if other is not None and other.entry.why is Why.MARGIN:
                self._drop(other)

    def _drop(self, kept: Kept) -> None:
        kept.path.unlink(missing_ok=True)
        del self._kept[kept.entry.case]
        # This case may have been the only one to reach some pairs.
        self._reached.pop(kept.case.backend, None)

    def _reached_by(self, backend: str) -> int:
        """Return the pairs that the cases of `backend` reach, as bits."""
        if backend not in self._reached:
            self._reached[backend] = _pairs(kept.case for kept in self.kept(backend))
        return self._reached[backend]

    def _load(self) -> Iterator[Kept]:
        for path in sorted(self.folder.glob("*/*.json")):
            if path.parent.is_symlink():
                self.troubles.append(f"{path} is behind a link, which may lead out of the corpus; skipped")
                continue
            try:
                case = case_file.load(path)
            except CaseFileError as error:
                self.troubles.append(f"{error}; skipped")
                continue
            if not case.searchable:
                self.troubles.append(f"{path} is made of literal calls, which a search can't use; skipped")
                continue
            number = case_file.case_id(case)
            added = IndexEntry(case=number, why=Why.ADDED, time=_changed_at(path))
            yield Kept(case=case, path=path, entry=self._index.entries.get(number, added))


def _entry(case: AnyCase, why: Why, margins: Mapping[str, float]) -> IndexEntry:
    return IndexEntry(case=case_file.case_id(case), why=why, time=time.time(), margins=_finite(margins))


def _changed_at(path: Path) -> float:
    """Return when a file was written, in seconds since the epoch; 0 if it is gone."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _finite(margins: Mapping[str, float]) -> dict[str, float]:
    """Drop infinite margins, because JSON has no infinity, and such a case is kept as a failure."""
    return {tier: margin for tier, margin in margins.items() if math.isfinite(margin)}


@lru_cache(2048)
def _bits_of(case: AnyCase) -> int:
    return family_of(case).pair_bits(case)


"""The pairs of a case, 10 kB: needed when it is chosen, when it is kept, and when another is dropped."""


def _pairs(cases: Iterable[AnyCase]) -> int:
    """Return the pairs that the cases reach together, as bits."""
    reached = 0
    for case in cases:
        reached |= _bits_of(case)
    return reached


HOLDERS = 3
"""Number of cases kept per tier of a backend; more would be variations of one."""


class Records:
    """The `HOLDERS` cases with the largest margins, for each tier of each backend."""

    def __init__(self, kept: Iterable[Kept]) -> None:
        self._best: dict[tuple[str, str], list[tuple[float, str]]] = {}
        for each in kept:
            self.add(each.case.backend, each.entry)

    def copy(self) -> "Records":
        """Return the same holders, to which others may be added."""
        other = Records(())
        other._best = {of: [*best] for of, best in self._best.items()}
        return other

    def broken_by(self, backend: str, entry: IndexEntry) -> bool:
        """Return whether a case would be among the holders."""
        return not self.holds(backend, entry.case) and any(
            len(best := self._best.get((backend, tier), [])) < HOLDERS or margin > best[-1][0]
            for tier, margin in entry.margins.items()
        )

    def holds(self, backend: str, case: str) -> bool:
        """Return whether the case is a holder for at least one tier."""
        return any(case == holder for (of, _), best in self._best.items() if of == backend for _, holder in best)

    def add(self, backend: str, entry: IndexEntry) -> list[str]:
        """Add a case, and return former holders that hold no tier any more."""
        beaten: list[str] = []
        for tier, margin in entry.margins.items():
            best = self._best.setdefault((backend, tier), [])
            ranked = sorted({(margin, entry.case), *best}, reverse=True)
            best[:] = ranked[:HOLDERS]
            beaten += [case for _, case in ranked[HOLDERS:]]
        return [case for case in dict.fromkeys(beaten) if not self.holds(backend, case)]


def cover_order(cases: Sequence[AnyCase], reached: int = 0) -> list[AnyCase]:
    """Return the cases needed to reach all pairs of `cases` beyond `reached`, by added pairs, smaller ones first."""
    covered = reached
    pairs = [_bits_of(case) & ~covered for case in cases]
    # A case's added pairs only shrink as others are chosen, so the first up-to-date case of the heap is the best.
    heap = [
        (-own.bit_count(), size_of(case), number)
        for number, (case, own) in enumerate(zip(cases, pairs, strict=True))
        if own
    ]
    heapq.heapify(heap)
    order = []
    while heap:
        promised, size, number = heapq.heappop(heap)
        pairs[number] &= ~covered
        adds = pairs[number].bit_count()
        if adds == -promised and adds:
            order.append(cases[number])
            covered |= pairs[number]
        elif adds:
            heapq.heappush(heap, (-adds, size, number))
    return order


def size_of(case: AnyCase) -> int:
    """Return the size of a case: bytes of its JSON."""
    return len(msgspec.json.encode(case))
