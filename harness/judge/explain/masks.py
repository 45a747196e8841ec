"""Hypotheses about which keys the mask lets through."""

from collections.abc import Iterator

from attnfuzz.harness.judge.explain.wrong_row import Alternative, WrongRow


def masks(row: WrongRow) -> Iterator[Alternative]:
    """The causal limit or the window one off, or ignored."""
    keys, every = row.seen, range(row.problem.kv_lens[row.request])
    if len(keys):
        words = "as if the causal limit were one lower: the row's own key is not seen"
        yield row.alternative(words, row.alone(keys[:-1]))
    if row.problem.causal and row.own + 1 < every.stop:
        beyond = range(keys.start, row.own + 2)
        yield row.alternative("as if the causal limit were one higher: the next key is seen", row.alone(beyond))
        unmasked = range(keys.start, every.stop)
        yield row.alternative("as if there were no causal limit: all later keys are seen", row.alone(unmasked))
    if row.problem.window_left >= 0:
        yield from _windows(row)


def _windows(row: WrongRow) -> Iterator[Alternative]:
    keys = row.seen
    if row.own - row.problem.window_left >= 0 and len(keys) > 1:
        yield row.alternative("as if the window were one key narrower", row.alone(keys[1:]))
    if keys.start:
        wider = range(keys.start - 1, keys.stop)
        yield row.alternative("as if the window were one key wider", row.alone(wider))
        yield row.alternative("as if the window were ignored", row.alone(range(keys.stop)))
