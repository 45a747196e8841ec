"""`attnfuzz bisect`: in which released versions a fault shows, where it began and where it ended."""

import hashlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import click
from packaging.utils import InvalidName, canonicalize_name
from packaging.version import Version
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.cli.given import PathTo, case_at, duration
from attnfuzz.harness.cli.terminal import BadInput, Exit, Terminal, new_table, tell
from attnfuzz.harness.export import CannotExport, Target, export_script
from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.releases.halving import search
from attnfuzz.harness.releases.outcomes import Ending, Outcome, in_words
from attnfuzz.harness.releases.script import environment_for, run_script
from attnfuzz.harness.releases.sites import CannotBeHad, Site, installed, site_at
from attnfuzz.harness.verdict.printable import shortened
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.library_cache import cache_folder
from attnfuzz.reference.case_file import case_id
from attnfuzz.reference.foreign import read_bytes

_MOST_CHARACTERS = 300
"""Of what a script printed, in the table."""

_STYLES = {Ending.PASSES: "green", Ending.FAILS: "red"}


@click.command()
@click.argument("path", type=PathTo(exists=True), required=False, metavar="[CASE.json | FINDING_DIR]")
@click.option(
    "--versions", metavar="A,B,...", help="Released versions; those that have no --site are installed by pip."
)
@click.option(
    "--site", "sites", multiple=True, metavar="VERSION=DIR", help="A folder that a version was installed into."
)
@click.option("--package", default="flashinfer-python", show_default=True, help="What the versions are of.")
@click.option(
    "--script",
    type=PathTo(exists=True, dir_okay=False),
    help="Run this instead of a case: it exits with 0 if nothing is wrong, 1 if the fault shows, 2 if it can't run. "
    'The line that it prints after "seen: " is shown.',
)
@click.option(
    "--cache",
    type=PathTo(file_okay=False),
    help="Where installed versions are kept; without it in bisect/ of attnfuzz's cache.",
)
@click.option(
    "--timeout", "seconds", type=duration, default="30m", show_default=True, help="Stop a run that takes longer."
)
@click.option("--all", "every", is_flag=True, help="Run every version, also where halving would do.")
def bisect(
    *,
    path: Path | None,
    versions: str | None,
    sites: tuple[str, ...],
    package: str,
    script: Path | None,
    cache: Path | None,
    seconds: float,
    every: bool,
) -> Exit:
    """Run a case's stand-alone script with released versions of FlashInfer, and say where its fault began and ended.

    Each version is put into a folder of its own; all else comes from this Python. If the oldest and the newest differ,
    the versions between are halved; if they agree, all are run.

    Exits with 0 if no version fails, 1 if one does, 2 if none could be run.
    """
    try:
        package = canonicalize_name(package, validate=True)
    except InvalidName:
        raise BadInput(f"{package!r} is no name of a package: give one like flashinfer-python to --package") from None
    given = _sites(sites, package)
    ordered = _versions(versions, given)
    cache = (cache or cache_folder() / "bisect").resolve()
    releases = _Releases(package, given, cache, _script(path, script, cache), seconds)
    outcomes = search(ordered, releases.run, every=every)

    console = Terminal()
    console.print(_table(ordered, outcomes))
    console.print(f"\n{in_words(outcomes)}", soft_wrap=True)
    skipped = len(ordered) - len(outcomes)
    if skipped:
        console.print(f"That is so if it changed only once: {count(skipped, 'version')} not run, --all runs them.")
    failing = [version for version, outcome in outcomes.items() if outcome.ending is Ending.FAILS]
    if failing:
        console.print(Text(f"\n  {releases.command(failing[0])}"), soft_wrap=True)
        return Exit.FOUND
    return Exit.CLEAN if any(outcome.judged for outcome in outcomes.values()) else Exit.FAILED


@dataclass(frozen=True)
class _Releases:
    """The versions of `package` to run `script` with: `sites` as they were given, and then those that are installed."""

    package: str
    sites: dict[Version, Site]
    cache: Path
    script: Path
    seconds: float

    def run(self, version: Version) -> Outcome:
        """Run the script with a version, which is installed if need be; on standard error, say what came of it."""
        try:
            site = self.sites.get(version) or installed(self.package, version, self.cache, tell)
        except CannotBeHad as reason:
            outcome = Outcome(Ending.CANNOT_BE_HAD, str(reason))
        else:
            self.sites[version] = site
            outcome = run_script(self.script, site, self._workspace(site), self.seconds)
        tell(f"{version} {outcome.ending}{f': {outcome.line}' if outcome.line else ''}")
        return outcome

    def command(self, version: Version) -> str:
        """The line to paste that runs the script again with a version that was run."""
        site = self.sites[version]
        variables = environment_for(site, self._workspace(site)).items()
        assignments = (f"{name}={shlex.quote(value)}" for name, value in variables)
        return f"{' '.join(assignments)} {shlex.join([sys.executable, str(self.script)])}"

    def _workspace(self, site: Site) -> Path:
        """Where FlashInfer keeps what it compiles: one for each site, since what a version compiles is its own."""
        digest = hashlib.sha256(str(site.folder).encode(errors="surrogateescape")).hexdigest()[:8]
        return self.cache / "workspaces" / f"{self.package}-{site.version}-{digest}"


def _version(text: str) -> Version:
    try:
        return Version(text)
    except ValueError:
        raise BadInput(f"{text!r} is no version: give released ones, like --versions 0.6.8,0.6.9") from None


def _sites(given: Sequence[str], package: str) -> dict[Version, Site]:
    """The sites in VERSION=DIR by version. Raises BadInput or SiteError."""
    sites: dict[Version, Site] = {}
    for text in given:
        matched = re.fullmatch(r"([^=]+)=(.+)", text, flags=re.DOTALL)
        if matched is None:
            raise BadInput(f"--site {text!r} is not VERSION=DIR: write it like --site 0.6.8=/opt/flashinfer-0.6.8")
        version = _version(matched[1])
        if version in sites:
            raise BadInput(f"--site is given twice for {version}: name one folder")
        sites[version] = site_at(Path(matched[2]), package, version)
    return sites


def _versions(text: str | None, sites: Mapping[Version, Site]) -> list[Version]:
    """The versions of both options, the oldest first. Raises BadInput if there are none, or one is named twice."""
    named = [] if text is None else [_version(each.strip()) for each in text.split(",")]
    for version in named:
        if named.count(version) > 1:
            raise BadInput(f"--versions has {version} twice: name each once")
    if not named and not sites:
        raise BadInput(
            "no versions: name them, like --versions 0.6.8,0.6.9, or where they lie, with --site VERSION=DIR"
        )
    return sorted({*named, *sites})


def _script(path: Path | None, script: Path | None, cache: Path) -> Path:
    """The script to run: the given one, or the case's, written into the cache. Raises BadInput."""
    if (path is None) == (script is None):
        raise BadInput("give a case or a finding, or else a --script of your own")
    if script is not None:
        try:
            compile(read_bytes(script), str(script), "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise BadInput(f"{script} is no Python script: {error}") from error
        return script.resolve()
    assert path is not None
    case = case_at(path)
    try:
        text = export_script(case, target=Target.FLASHINFER)
    except CannotExport as error:
        raise BadInput(f"{path} can't be exported: {error}. A --script of your own can be bisected.") from error
    written = cache / "scripts" / f"{case_id(case)}.py"
    write_durably(written, text.encode())
    return written


def _table(versions: Sequence[Version], outcomes: Mapping[Version, Outcome]) -> Table:
    table = new_table("version", "outcome", "what was seen", whole=("version", "outcome"))
    for version in versions:
        outcome = outcomes.get(version)
        if outcome is None:
            table.add_row(str(version), Text("not run", style="dim"), "")
        else:
            ending = Text(outcome.ending, style=_STYLES.get(outcome.ending, "dim"))
            table.add_row(str(version), ending, Text(shortened(outcome.line, _MOST_CHARACTERS)))
    return table
