"""The margins that a campaign adds to its home's file."""

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from datetime import UTC, datetime

from attnfuzz.harness.backends.measured import architecture_of, versions_of
from attnfuzz.harness.backends.registry import UnknownBackend, resolve
from attnfuzz.harness.campaign.events import CampaignFinished, Event
from attnfuzz.harness.campaign.home import Home
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.search.messages import DtypeMargins
from attnfuzz.kernels.cuda.visible import visible
from attnfuzz.reference.device import Device
from attnfuzz.reference.dtypes import DType
from attnfuzz.reference.recorded_margins import MarginsError, RecordedMargins, encoded, load


def add_margins(home: Home, standing: Standing, past: Sequence[Event], versions: Mapping[str, str]) -> None:
    """Add the margins of a campaign that ended to the file of its home. Raises OSError.

    Those of its `past` events are in the file, up to the last end of the campaign: it may have been interrupted. A file
    that is damaged is replaced.
    """
    ends = [index for index, event in enumerate(past, start=1) if isinstance(event, CampaignFinished)]
    before = Standing.of(past[: ends[-1]] if ends else ())
    known: tuple[RecordedMargins, ...] = ()
    with contextlib.suppress(FileNotFoundError, MarginsError):
        known = load(home.margins)
    added = tuple(_records(standing, before, versions))
    if added:
        write_durably(home.margins, encoded((*known, *added)))


def _records(standing: Standing, before: Standing, versions: Mapping[str, str]) -> Iterator[RecordedMargins]:
    """Yield the margins of the backends that ran on this machine."""
    for name, score in standing.scores.items():
        # On a cluster, a backend may exist, or run, on other nodes alone.
        with contextlib.suppress(UnknownBackend):
            backend = resolve(name)
            if backend.missing() is not None:
                continue
            on_gpu = backend.capability.device is Device.CUDA
            for dtype, found in score.tally.dtypes.items():
                counted = before.score(name).tally.dtypes.get(dtype, DtypeMargins()).rows
                yield RecordedMargins(
                    backend=name,
                    architecture=architecture_of(backend),
                    dtype=DType(dtype),
                    rows=found.rows - counted,
                    margins=found.margins,
                    noise=backend.noise(DType(dtype)),
                    date=datetime.now(UTC).date().isoformat(),
                    machine=visible()[0].name if on_gpu else versions["cpu"],
                    versions={"attnfuzz": versions["attnfuzz"], "torch": versions["torch"], **versions_of(backend)},
                )
