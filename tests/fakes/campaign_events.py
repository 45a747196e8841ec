"""Events of campaigns that never ran, for tests of code that reads events."""

import functools
from typing import Any

from msgspec.structs import replace

from attnfuzz.harness.backends.registry import names, resolve
from attnfuzz.harness.campaign.events import (
    CampaignFinished,
    CampaignStarted,
    FindingChecked,
    FindingFiled,
    Progress,
    SliceFinished,
    UnconfirmedKept,
)
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.search.messages import Tally
from attnfuzz.harness.verdict.failures import Kind, Observation, RowAddress
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.case import Case

MISMATCH = Observation(
    kind=Kind.OUTPUT_MISMATCH,
    place="out",
    message="request 1 (q_len 1, kv_len 9), token 0, head 2, element 3: 1.5 instead of 1, 7 times the allowed error",
    step=0,
    mode="decode",
    kernel="a_kernel",
    tier="T1",
    row=RowAddress(1, 0, 2),
    margin=7.0,
)


_names = functools.cache(names)
"""Looked up once: it reads the metadata of all installed packages."""


def started(*backends: str, campaign: str = "20260501-043000", **environment: str) -> CampaignStarted:
    """A campaign of an hour in this environment."""
    known = _names() if backends else ()
    return CampaignStarted(
        at=0.0,
        campaign=campaign,
        time=1777609800.0,
        attnfuzz="1.0",
        environment=environment,
        backends=backends,
        capabilities={name: resolve(name).capability for name in backends if name in known},
        preset="nightly",
        examples=None,
        seconds=3600.0,
        seed=7,
        jobs=2,
        contract="declared",
        alpha=1e-3,
    )


def searched(backend: str, cases: int = 1) -> Progress:
    """Cases that were drawn for a backend, and judged."""
    return Progress(at=1.0, backend=backend, tally=Tally(searched=cases, cases=cases, deaths=0))


def slice_finished(backend: str, **fields: Any) -> SliceFinished:
    """The end of a slice, by default of one case in a second."""
    one = {"at": 1.0, "index": 0, "seed": 1, "examples": 1, "cases": 1, "deaths": 0, "seconds": 1.0, "unsupported": {}}
    return SliceFinished(backend=backend, **{**one, **fields})


def finished(at: float = 3600.0, *, interrupted: bool = False) -> CampaignFinished:
    """The end of it."""
    return CampaignFinished(at=at, time=1777613400.0, interrupted=interrupted)


def filed(
    case: Case,
    name: str = "a-finding",
    *,
    observation: Observation = MISMATCH,
    state: State = State.NEW,
    known: str | None = None,
    report: str = "a report",
    needs: tuple[str, ...] = (),
    cause: str = "",
) -> FindingFiled:
    """A finding that the campaign filed."""
    return FindingFiled(
        at=60.0,
        name=name,
        fingerprint=Fingerprint.of(case.backend, observation),
        case=case,
        observation=observation,
        path=f"out/findings/{name}",
        report=report,
        needs=needs,
        cause=cause,
        state=state,
        known=known,
    )


def without_sinks(*cases: Case, name: str = "sinks", needs: tuple[str, ...] = ("sinks",)) -> list[FindingFiled]:
    """Findings of one cause: the output and the LSE of each case are as if there were no sink, in two modes."""
    explained = f"{MISMATCH.message}\nas if the sink were ignored"
    seen = [
        replace(MISMATCH, message=explained, kind=kind, place=place, mode=mode)
        for mode in ("decode", "verify")
        for kind, place in ((Kind.OUTPUT_MISMATCH, "out"), (Kind.LSE_MISMATCH, "lse"))
    ]
    found = [(case, each) for case in cases for each in seen]
    return [
        filed(
            case,
            f"{name}-{number}" if number else name,
            observation=observation,
            needs=needs,
            cause=name if number else "",
        )
        for number, (case, observation) in enumerate(found)
    ]


def checked(
    case: Case,
    state: State,
    name: str = "an-old-finding",
    *,
    observation: Observation = MISMATCH,
    needs: tuple[str, ...] = (),
    cause: str = "",
) -> FindingChecked:
    """A finding of an earlier campaign that was run again."""
    return FindingChecked(
        at=5.0,
        name=name,
        fingerprint=Fingerprint.of(case.backend, observation),
        case=case,
        observation=observation,
        path=f"out/findings/{name}",
        needs=needs,
        cause=cause,
        state=state,
        runs=3,
        times=0 if state is State.FIXED else 3,
    )


def kept(case: Case, reason: str, *, known: str | None = None) -> UnconfirmedKept:
    """A failure that the campaign did not confirm, for this reason."""
    return UnconfirmedKept(
        at=70.0,
        fingerprint=Fingerprint.of(case.backend, MISMATCH),
        case=case,
        observation=MISMATCH,
        path="out/unconfirmed/a-suspect",
        reason=reason,
        known=known,
    )
