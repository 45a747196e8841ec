"""The inquiry into a failure: claims fitted on its worst row have to predict the other rows and further runs.

A claim that a further run refutes is dropped, and one that no run could test is not printed. The others are ranked by
the share of wrong rows that they explain, and by the changes that they survived.
"""

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from textwrap import fill

from attnfuzz.harness.judge.explain.candidates import candidates
from attnfuzz.harness.judge.explain.claim import Aspect, Claim, Stake
from attnfuzz.harness.judge.explain.sampled_rows import SampledRow
from attnfuzz.harness.judge.explain.support import Vote, lse_agrees, lse_fits, vote
from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow
from attnfuzz.harness.verdict.failures import KeysRead
from attnfuzz.reference.mistake import Mistake

_COLUMNS = 76

_CONTRARY = 0.1
"""Share of contradicting rows up to which a claim holds, since some may have another error."""

_LEAST_SHARE = 0.25
"""Minimum share of the wrong rows that a claim has to explain."""

_UNTESTED = 0.5
"""Rank lost per stake that could not be tested; a confirmed one gains 1."""

_ALL = 3
"""The width of the scope of all rows."""

Place = tuple[int, int, int]
"""Request, token in it, and head of a row, which are the same in each run of a case."""


@dataclass(frozen=True)
class Explanation:
    """The words that explain a failure, in lines of up to 76 columns, and the mistakes that they name.

    `keys` are those that the failing row has read by the first of them, if it is about keys.
    """

    words: str
    mistakes: tuple[Mistake, ...]
    keys: KeysRead | None = None


def filled(words: str) -> str:
    """Break the words of an explanation into its lines."""
    return fill(words, _COLUMNS, break_long_words=False)


@dataclass(frozen=True)
class _Scope:
    """The rows that a claim covers: all, or those of one request, token or head."""

    request: int | None = None
    token: int | None = None
    head: int | None = None

    def has(self, place: Place) -> bool:
        return all(own in (None, part) for own, part in zip((self.request, self.token, self.head), place, strict=True))

    @property
    def width(self) -> int:
        """The number of free coordinates."""
        return [self.request, self.token, self.head].count(None)

    @property
    def words(self) -> str:
        """The scope in words, such as " (in request 1, token 0)", or "" for all rows."""
        parts = ("request", self.request), ("token", self.token), ("head", self.head)
        named = ", ".join(f"{name} {number}" for name, number in parts if number is not None)
        return f" (in {named})" if named else ""


@dataclass
class _Trial:
    """A claim under test: its scope, the results of its stakes, and whether it explains more than zeros.

    `keys` are those that the worst row has read if it is true.
    """

    claim: Claim
    scope: _Scope
    share: float
    supports: int
    lse_right: bool
    lse_fits: bool
    tells: bool
    keys: KeysRead | None = None
    confirmed: set[Stake] = field(default_factory=set)
    refuted: bool = False

    @property
    def rank(self) -> tuple[float, int, float, bool]:
        """The share of the wrong rows, the width of the scope, the stakes risked, and whether the LSE fits."""
        untested = len(self.claim.stakes - self.confirmed)
        risked = len(self.confirmed) - _UNTESTED * untested
        return round(self.share, 1), self.scope.width, risked, self.lse_fits


class Inquiry:
    """A search for explanations of the row `worst`, given other `rows` of its output, all judged on `aspect`.

    If both the output and the LSE failed, an explanation of the LSE has to agree with the output.
    """

    def __init__(self, worst: WrongRow, rows: Sequence[SampledRow], aspect: Aspect, *, out_failed: bool) -> None:
        self._aspect = aspect
        self._tested: set[Stake] = set()
        made = (_on_trial(claim, worst, rows) for claim in candidates(worst, aspect, out_failed=out_failed))
        self._trials = [trial for trial in made if trial is not None]

    @property
    def open(self) -> bool:
        """Whether there is a claim left to test."""
        return any(not trial.refuted for trial in self._trials)

    def test(self, stake: Stake, rows: Sequence[SampledRow], *, elsewhere: bool = False) -> None:
        """Test each claim with this stake on the rows of a further run.

        The rows are of the same step, or `elsewhere`: of another step that failed before it, where only rules can hold.
        """
        self._tested.add(stake)
        for trial in self._trials:
            rule = Stake.LENGTHS in trial.claim.stakes
            if stake in trial.claim.stakes and not trial.refuted and (rule or not elsewhere):
                self._test(trial, stake, rows, elsewhere=elsewhere)

    def conclusion(self) -> Explanation | None:
        """Return the best explanation, or None if none was confirmed: by a further run, or by many rows without one."""
        left = [trial for trial in self._trials if not trial.refuted and self._established(trial)]
        if not left:
            return None
        best = max(trial.rank for trial in left)
        first, *others = [trial for trial in left if trial.rank == best]
        words = first.claim.words + first.scope.words + ("; but the LSE does not agree" if first.lse_right else "")
        mistakes = [first.claim.mistake]
        different = [trial for trial in others if trial.claim.mistake not in mistakes]
        if different:
            words += f"; or {different[0].claim.words}"
            mistakes.append(different[0].claim.mistake)
        if len(others) > 1:
            words += f"; or {len(others) - bool(different)} more"
        return Explanation(filled(words), tuple(mistakes), first.keys)

    def _established(self, trial: _Trial) -> bool:
        return trial.tells and (bool(trial.confirmed) if self._tested else trial.supports > 1)

    def _test(self, trial: _Trial, stake: Stake, rows: Sequence[SampledRow], *, elsewhere: bool) -> None:
        if (elsewhere and trial.scope.width < _ALL) or (stake is Stake.QUERIES and trial.scope.token is not None):
            return
        inside = [each for each in rows if trial.scope.has(_place(each.row))]
        supports, contrary = _votes(trial.claim, inside)
        if contrary > _CONTRARY * (supports + contrary):
            trial.refuted = True
        elif supports:
            trial.confirmed.add(stake)
            trial.tells = trial.tells or _tells(trial.claim, inside)


def _on_trial(claim: Claim, worst: WrongRow, rows: Sequence[SampledRow]) -> _Trial | None:
    """Return the claim with the widest scope in which no rows contradict it, or None if it explains too little."""
    wrong = sum(each.wrong for each in rows)
    for scope in _scopes(worst):
        inside = [each for each in rows if scope.has(_place(each.row))]
        supports, contrary = _votes(claim, inside)
        if supports and contrary <= _CONTRARY * (supports + contrary):
            share = supports / max(wrong, supports)
            if share < _LEAST_SHARE:
                return None
            alternative = claim.answer(worst)
            fits = alternative is not None and lse_fits(worst, alternative)
            lse_right, tells = _lse_right(claim, inside), _tells(claim, inside)
            return _Trial(claim, scope, share, supports, lse_right, fits, tells, _keys(worst, claim, alternative))
    return None


def _keys(worst: WrongRow, claim: Claim, alternative: Alternative | None) -> KeysRead | None:
    """Return the keys that a claim is about, if it is about keys or pages."""
    due = _ends(worst.seen)
    if claim.page is not None:
        return KeysRead(due, (due,), claim.page)
    if alternative is None or alternative.read is None:
        return None
    return KeysRead(due, tuple(_ends(part) for part in alternative.read if len(part)))


def _ends(keys: range) -> tuple[int, int]:
    return keys.start, keys.stop


def _scopes(worst: WrongRow) -> Iterable[_Scope]:
    request, token, head = _place(worst)
    return (
        _Scope(),
        _Scope(request=request),
        _Scope(head=head),
        _Scope(request=request, head=head),
        _Scope(request=request, token=token),
        _Scope(request, token, head),
    )


def _place(row: WrongRow) -> Place:
    return row.request, row.token_in_request, row.head


def _votes(claim: Claim, rows: Sequence[SampledRow]) -> tuple[int, int]:
    """Return the number of rows for and against a claim."""
    supports = contrary = 0
    for each in rows:
        alternative = claim.answer(each.row)
        if alternative is None:
            # The claim predicts the correct output for this row.
            contrary += each.wrong
            continue
        given = vote(each.row, alternative, claim.aspect)
        supports += given is Vote.FOR
        contrary += given is Vote.AGAINST
    return supports, contrary


def _tells(claim: Claim, rows: Sequence[SampledRow]) -> bool:
    """Return whether a nonzero row supports a claim: many claims leave a row of few keys without any key.

    A zero row is a claim of its own, and a call that asks for no keys is evidence apart from the row.
    """
    if claim.mistake is Mistake.NO_KEYS or claim.mistake.of_caller or claim.aspect is Aspect.LSE:
        return True
    alternatives = ((each.row, claim.answer(each.row)) for each in rows)
    return any(
        alternative is not None and bool(alternative.out.any()) and vote(row, alternative, claim.aspect) is Vote.FOR
        for row, alternative in alternatives
    )


def _lse_right(claim: Claim, rows: Sequence[SampledRow]) -> bool:
    """Return whether the LSE is right in all wrong rows for which the claim predicts a wrong one."""
    agree = []
    for each in rows:
        alternative = claim.answer(each.row) if each.wrong and claim.aspect is Aspect.OUT else None
        if alternative is not None:
            agree.append(lse_agrees(each.row, alternative))
    return False in agree and True not in agree
