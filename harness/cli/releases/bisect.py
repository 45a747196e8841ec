"""`attnfuzz bisect`: the released versions in which a fault shows, where it began and where it ended."""

import hashlib
import re
import shlex
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from packaging.utils import InvalidName, canonicalize_name
from packaging.version import Version
from rich.table import Table
from rich.text import Text

from attnfuzz.harness.cli.given import case_at
from attnfuzz.harness.cli.releases.answers import Bisected, BisectedVersion
from attnfuzz.harness.cli.terminal import BadInput, Exit, Terminal, answer, details, new_table, print_line, tell
from attnfuzz.harness.export import CannotExport, Target, export_script
from attnfuzz.harness.files.durable import write_durably
from attnfuzz.harness.releases.halving import search
from attnfuzz.harness.releases.outcomes import Ending, Outcome, in_words
from attnfuzz.harness.releases.script import environment_for, run_script
from attnfuzz.harness.releases.sites import CannotBeHad, Site, installed, released_versions, site_at
from attnfuzz.harness.releases.versions import version_of, versions_in
from attnfuzz.harness.verdict.printable import shortened
from attnfuzz.harness.verdict.wording import count
from attnfuzz.kernels.building.library_cache import cache_folder
from attnfuzz.reference.case_file import case_id
from attnfuzz.reference.foreign import read_bytes

_MOST_CHARACTERS = 300
"""Maximum length of a script's output in the table."""

_STYLES = {Ending.PASSES: "green", Ending.FAILS: "red"}


def bisect(
    *,
    path: Path | None,
    versions: str | None,
    sites: tuple[str, ...],
    package: str,
    script: Path | None,
    seconds: float,
    every: bool,
) -> Exit:
    """Run a script with released versions, print where its fault began and ended, and return the exit code."""
    try:
        package = canonicalize_name(package, validate=True)
    except InvalidName:
        raise BadInput(
            f"{package!r} is not the name of a package: give one like flashinfer-python to --package"
        ) from None
    given = _sites(sites, package)
    ordered = _versions(versions, given, package)
    cache = (cache_folder() / "bisect").resolve()
    releases = _Releases(package, given, cache, _script(path, script, cache), seconds)
    outcomes = search(ordered, releases.run, every=every)

    answer(_answer(package, ordered, outcomes))
    console = details()
    console.print(_table(ordered, outcomes))
    print_line(console)
    print_line(Terminal(), in_words(outcomes))
    skipped = len(ordered) - len(outcomes)
    if skipped:
        print_line(console, f"This assumes one change: {count(skipped, 'version')} not run, --all runs them.")
    failing = [version for version, outcome in outcomes.items() if outcome.ending is Ending.FAILS]
    if failing:
        print_line(console, f"\n  {releases.command(failing[0])}")
        return Exit.FOUND
    return Exit.CLEAN if any(outcome.judged for outcome in outcomes.values()) else Exit.FAILED


def _answer(package: str, versions: Sequence[Version], outcomes: Mapping[Version, Outcome]) -> Bisected:
    found = {version: outcomes.get(version) for version in versions}
    return Bisected(
        package=package,
        versions=tuple(
            BisectedVersion(
                version=str(version),
                outcome="not run" if outcome is None else outcome.ending,
                seen="" if outcome is None else outcome.line,
            )
            for version, outcome in found.items()
        ),
        conclusion=in_words(outcomes),
    )


@dataclass(frozen=True)
class _Releases:
    """The versions of `package` to run `script` with: given `sites`, and versions that are installed on demand."""

    package: str
    sites: dict[Version, Site]
    cache: Path
    script: Path
    seconds: float

    def run(self, version: Version) -> Outcome:
        """Run the script with a version, which is installed first if it has no site, and report the outcome."""
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
        """Return a shell command that runs the script again with a version that was run."""
        site = self.sites[version]
        variables = environment_for(site, self._workspace(site)).items()
        assignments = (f"{name}={shlex.quote(value)}" for name, value in variables)
        return f"{' '.join(assignments)} {shlex.join([sys.executable, str(self.script)])}"

    def _workspace(self, site: Site) -> Path:
        """Return the folder for FlashInfer's compiled kernels: one per site, since each version compiles its own."""
        digest = hashlib.sha256(str(site.folder).encode(errors="surrogateescape")).hexdigest()[:8]
        return self.cache / "workspaces" / f"{self.package}-{site.version}-{digest}"


def _sites(given: Sequence[str], package: str) -> dict[Version, Site]:
    """Return the sites in VERSION=DIR by version. Raises BadInput or SiteError."""
    sites: dict[Version, Site] = {}
    for text in given:
        matched = re.fullmatch(r"([^=]+)=(.+)", text, flags=re.DOTALL)
        if matched is None:
            raise BadInput(f"--site {text!r} is not VERSION=DIR: write it like --site 0.6.8=/opt/flashinfer-0.6.8")
        version = version_of(matched[1])
        if version in sites:
            raise BadInput(f"--site is given twice for {version}: name one folder")
        sites[version] = site_at(Path(matched[2]), package, version)
    return sites


def _versions(text: str | None, sites: Mapping[Version, Site], package: str) -> list[Version]:
    """Return the versions of both options, the oldest first. Raises BadInput if there are none, or as `versions_in`."""
    named = [] if text is None else versions_in(text, partial(released_versions, package))
    if not named and not sites:
        raise BadInput(
            "no versions: name them, like --versions 0.6.8,0.6.9, or where they lie, with --site VERSION=DIR"
        )
    return sorted({*named, *sites})


def _script(path: Path | None, script: Path | None, cache: Path) -> Path:
    """Return the script to run: the given one, or the case's, written into the cache. Raises BadInput."""
    if (path is None) == (script is None):
        raise BadInput("give a case or a finding, or else a --script of your own")
    if script is not None:
        try:
            compile(read_bytes(script), str(script), "exec")
        except (SyntaxError, ValueError, RecursionError, MemoryError) as error:
            raise BadInput(f"{script} is not a Python script: {error}") from error
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
    table = new_table("version", "outcome", "seen", whole=("version", "outcome"))
    for version in versions:
        outcome = outcomes.get(version)
        if outcome is None:
            table.add_row(str(version), Text("not run", style="dim"), "")
        else:
            ending = Text(outcome.ending, style=_STYLES.get(outcome.ending, "dim"))
            table.add_row(str(version), ending, Text(shortened(outcome.line, _MOST_CHARACTERS)))
    return table
