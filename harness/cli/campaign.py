"""Running a campaign for the command line: preparing it, showing its events, writing its reports, and the exit code."""

import contextlib
import errno
import os
import shlex
import time
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

from rich.console import Console

from attnfuzz.harness.backends.description import Rehearsed
from attnfuzz.harness.backends.registry import files_of, resolve
from attnfuzz.harness.campaign.home import Home, HomeError
from attnfuzz.harness.campaign.plan import PRESETS, Plan
from attnfuzz.harness.campaign.prepare import default_jobs
from attnfuzz.harness.campaign.resume import Past, last_campaign, plan_again
from attnfuzz.harness.campaign.run import carry_out, check_plan
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.cli.backends import noise_words, uncalibrated
from attnfuzz.harness.cli.campaign_answer import campaign_answer
from attnfuzz.harness.cli.display import display_on, summarise
from attnfuzz.harness.cli.given import Trees, all_compiled, chosen_backends, compiled_backends, tree_of
from attnfuzz.harness.cli.other_homes import refuse_other_home
from attnfuzz.harness.cli.signals import stop_on_signals
from attnfuzz.harness.cli.terminal import BadInput, Exit, Terminal, answer, details, print_sentences, tell
from attnfuzz.harness.export.carried import unasked, with_sizes
from attnfuzz.harness.family import family_with
from attnfuzz.harness.ledger.file import Ledger, default_ledger
from attnfuzz.harness.report.files import Written, write_reports
from attnfuzz.harness.report.verdict import failure_words, why_idle
from attnfuzz.harness.verdict.wording import clock, count
from attnfuzz.kernels.interface.toolchain import only_compiled
from attnfuzz.reference.case import Guard
from attnfuzz.reference.device import Device


def start_campaign(
    *,
    backends: tuple[str, ...],
    device: Device | None,
    trees: Trees,
    examples: int | None,
    seconds: float | None,
    preset: str,
    jobs: int | None,
    guard: str | None,
    home: Path,
    ledger: Path | None,
    **others: Any,
) -> Exit:
    """Run a new campaign of `home`, print its result, and return its exit code. Raises UserError and OSError.

    `others` are further fields of a `Plan`.
    """
    refuse_other_home(home, "give another --home")
    chosen = PRESETS[preset]
    if examples is None and seconds is None:
        examples, seconds = chosen.examples, chosen.seconds
    if not backends and only_compiled() and tree_of(trees) is None:
        backends = all_compiled()
    names = compiled_backends(chosen_backends(backends, device, trees), tell)
    if jobs is None:
        # A cluster has GPUs that are not visible here.
        jobs = chosen.jobs if others.get("ray") else default_jobs(chosen.jobs, names)
    plan = Plan(
        backends=names,
        examples=examples,
        seconds=seconds,
        jobs=jobs,
        guard=None if guard is None else Guard(guard),
        out=home,
        preset=preset,
        ledger=ledger or default_ledger(),
        begun=command_began(),
        **others,
    )
    known = check_plan(plan, tell)
    opened = Home(home)
    with opened.locked():
        return _run(plan, opened, known, past=None)


def run_campaign(plan: Plan) -> tuple[str, Standing]:
    """Run `plan` as a new campaign of its home, without printing its result.

    Returns its name in its home, where its reports are. Raises as `start_campaign`.
    """
    ledger = check_plan(plan, tell)
    home = Home(plan.out)
    with home.locked():
        campaign, standing, _ = _carry_out(details(), plan, home, ledger, past=None)
    return campaign, standing


def resume_campaign(*, home: Path, **changed: Any) -> Exit:
    """Continue the last campaign of `home`, with the options of `plan_again`. Raises as `start_campaign`.

    The reports of a finished campaign are written again, since it may have been killed before they were written.
    """
    opened = Home(home)
    if not opened.ids():
        raise HomeError(f"{home} has no campaign to continue: name the --home of one")
    refuse_other_home(home, "continue it with attnfuzz serve --resume")
    with opened.locked():
        past = last_campaign(opened)
        if past.finished:
            return _report_again(opened, past)
        plan = plan_again(past, opened, **changed, begun=command_began())
        return _run(plan, opened, check_plan(plan, tell), past=past)


def _run(plan: Plan, home: Home, ledger: Ledger, *, past: Past | None) -> Exit:
    console = details()
    _open(console, plan, past)
    campaign, standing, written = _carry_out(
        console, plan, home, ledger, past=past, tell=partial(summarise, Terminal(), home)
    )
    return _concluded(campaign, home, standing, written)


def _report_again(home: Home, past: Past) -> Exit:
    """Write the reports of a finished campaign again."""
    text = f"Campaign {past.campaign} is finished; its reports are written again. Start another without --resume."
    print_sentences(details(), text)
    standing = Standing.of(past.events)
    summarise(Terminal(), home, standing)
    return _concluded(past.campaign, home, standing, _written(home, past.campaign, standing))


def _concluded(campaign: str, home: Home, standing: Standing, written: Written) -> Exit:
    """Print the paths of the reports and the next command, and return the exit code of the campaign."""
    reports = (written.html, written.junit, written.markdown, *written.issues)
    answer(campaign_answer(campaign, home, standing, reports))
    console = details()
    console.print(f"Report: {written.html}", soft_wrap=True)
    for path in written.issues:
        console.print(f"Text for an issue: {path}", soft_wrap=True)
    if standing.failure is not None:
        text = f"{failure_words(standing.failure)} Findings so far are kept; {_go_on(home)}"
        Terminal(stderr=True).print(text, soft_wrap=True)
        return Exit.FAILED
    if standing.idle:
        why = why_idle(standing, more="give it a longer --time")
        Terminal(stderr=True).print(f"No case was judged: {why}", soft_wrap=True)
        return Exit.FAILED
    if standing.finished is not None and standing.finished.interrupted:
        console.print(f"Interrupted. Findings so far are kept; {_go_on(home)}", soft_wrap=True)
        return Exit.INTERRUPTED
    return Exit.CLEAN if standing.clean else Exit.FOUND


def _carry_out(
    console: Console,
    plan: Plan,
    home: Home,
    ledger: Ledger,
    *,
    past: Past | None,
    tell: Callable[[Standing], None] = lambda _: None,
) -> tuple[str, Standing, Written]:
    """Run the campaign, showing its events, `tell` its end, and write its reports. Returns its name and these."""
    standing = Standing.of(past.events if past else ())
    with stop_on_signals() as stop:
        with _full_disk(_go_on(home)), display_on(console, standing) as display:
            campaign, _ = carry_out(plan, home, ledger, (standing, display), past=past, stop=stop)
        tell(standing)
        written = _written(home, campaign, standing)
    return campaign, standing, written


def _written(home: Home, campaign: str, standing: Standing) -> Written:
    with _full_disk(f"write the report with: attnfuzz report --home {shlex.quote(str(home.path))}"):
        return write_reports(home, campaign, standing)


def _go_on(home: Home) -> str:
    return f"continue with: attnfuzz fuzz --resume --home {shlex.quote(str(home.path))}"


def _open(console: Console, plan: Plan, past: Past | None) -> None:
    """Print the plan, and the backends that a calibration would let the judge check more strictly."""
    if past:
        console.print(f"Continuing campaign {past.campaign} after {clock(past.events[-1].at)}.", soft_wrap=True)
    budget = f"{plan.examples:,} cases each" if plan.examples is not None else clock(plan.seconds or 0)
    particular = [("until the first finding", plan.until_finding), ("promised calls", plan.promised)]
    particular += [(f"only {', '.join(some)}", bool(some)) for some in (plan.modes, plan.dtypes, plan.only)]
    particular.append((f"without {', '.join(plan.never)}", bool(plan.never)))
    console.print(
        f"Fuzzing {', '.join(plan.backends)}: {budget}, {count(plan.jobs, 'job')}, seed {plan.seed}, "
        f"alpha {plan.alpha:g}{''.join(f', {words}' for words, asked in particular if asked)}."
    )
    for name in plan.backends:
        if files := unasked(files_of(name)):
            contents = with_sizes(files, files[0].parent)
            console.print(f"Scripts and issue texts for {name} contain {contents}.", soft_wrap=True)
        if uncalibrated(resolve(name)):
            console.print(f"{name} is {noise_words(resolve(name))};")
            console.print(f"  attnfuzz calibrate --backend {name}", soft_wrap=True)
        backend = resolve(name)
        table = family_with(backend.capability).table
        if isinstance(backend, Rehearsed) and (left_out := table.optional(backend.capability, asked=False)):
            console.print(f"Not drawn for {name}: {', '.join(left_out)}; see Capability.")
            if backend.whole_pool:
                console.print("  It reads or writes pages that no request owns, which pools beyond 2^31 consist of.")


@contextlib.contextmanager
def _full_disk(then: str) -> Iterator[None]:
    """Replace the error of a full or broken disk by one with the advice to make room, and to do `then`."""
    try:
        yield
    except OSError as error:
        if error.errno not in {errno.ENOSPC, errno.EDQUOT, errno.EIO, errno.EROFS}:
            raise
        where = f" ({error.filename})" if error.filename else ""
        raise BadInput(f"{error.strerror}{where}: findings so far are kept. Free some space, then {then}") from error


def command_began() -> float:
    """Return the start time of this process on the monotonic clock."""
    fields = Path("/proc/self/stat").read_text().rpartition(")")[2].split()
    # Field 22, in ticks since boot (proc_pid_stat(5)); the two fields up to the process's name are cut off.
    started = int(fields[19]) / os.sysconf("SC_CLK_TCK")
    return time.monotonic() - (time.clock_gettime(time.CLOCK_BOOTTIME) - started)
