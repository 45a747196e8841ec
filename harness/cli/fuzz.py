"""`attnfuzz fuzz`: a campaign from the options of the command line."""

from pathlib import Path

from attnfuzz.harness.campaign.plan import PRESETS, Plan
from attnfuzz.harness.cli.campaign import command_began, resume_campaign, start_campaign
from attnfuzz.harness.cli.given import Trees, chosen_backends
from attnfuzz.harness.cli.terminal import Exit
from attnfuzz.harness.findings.ledger import DEFAULT_NAME
from attnfuzz.reference.case import Guard
from attnfuzz.reference.device import Device

DEFAULT_LEDGER = Path(DEFAULT_NAME)


def begin_fuzzing(
    *,
    backends: tuple[str, ...],
    device: Device | None,
    trees: Trees,
    examples: int | None,
    seconds: float | None,
    preset: str,
    seed: int,
    jobs: int | None,
    contract: str,
    alpha: float,
    guard: str | None,
    home: Path,
    unbiased: bool,
    database: str | None,
    ledger: Path | None,
    until_finding: bool,
    ray: str | None,
) -> Exit:
    """Run a new campaign and return its exit code."""
    chosen = PRESETS[preset]
    if examples is None and seconds is None:
        examples, seconds = chosen.examples, chosen.seconds
    return start_campaign(
        Plan(
            backends=chosen_backends(backends, device, trees),
            examples=examples,
            seconds=seconds,
            seed=seed,
            jobs=jobs or chosen.jobs,
            contract=contract,
            alpha=alpha,
            guard=None if guard is None else Guard(guard),
            out=home,
            preset=preset,
            leaning=not unbiased,
            database=database,
            ledger=ledger or (DEFAULT_LEDGER if DEFAULT_LEDGER.exists() else None),
            ray=ray,
            until_finding=until_finding,
            begun=command_began(),
        )
    )


def resume_fuzzing(
    *,
    home: Path,
    jobs: int | None,
    ray: str | None,
    database: str | None,
    ledger: Path | None,
    until_finding: bool,
) -> Exit:
    """Continue the last campaign of a home and return its exit code."""
    return resume_campaign(home, jobs=jobs, ray=ray, database=database, ledger=ledger, until_finding=until_finding)
