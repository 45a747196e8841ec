"""SGLang's releases: how soon they start, how fast cases go, and how soon reports are found in those that have them."""

import click
from measurement import count_option, seed_option, show
from releases import SEARCHED, SHRINK, TIMED, reports_of, searched, timed

from attnfuzz.harness.backends.registry import on_device
from attnfuzz.kernels.sglang.project import SGLANG
from attnfuzz.reference.device import Device

RELEASES = ("0.5.9", "0.5.10.post1", "0.5.11", "0.5.14", "0.5.23")


@click.command()
@click.option("--release", "releases", multiple=True, default=RELEASES, show_default=True, metavar="VERSION")
@count_option("--cases", 300, "Cases per backend of a release.")
@count_option("--seeds", 20, "Searches for each report.")
@count_option("--examples", 2000, "Examples after which a search gives up.")
@seed_option
@click.option("--report", "names", multiple=True, metavar="NAME", help="Search for these alone, as sglang-21649.")
@click.option("--device", type=click.Choice([each.value for each in Device]), default="cpu", show_default=True)
def main(
    *, releases: tuple[str, ...], cases: int, seeds: int, examples: int, seed: int, names: tuple[str, ...], device: str
) -> None:
    """Time releases from PyPI, and on a CPU search each report in a release that has it.

    Fetching is no part of it. A search ends with the first failure that the release with the fix does not have.
    """
    reports = reports_of(SGLANG.name, names)
    show(
        "Releases",
        TIMED,
        [
            timed(on_device(f"sglang=={release}:{kind}", Device(device)), cases, seed)
            for release in releases
            for kind in SGLANG.kinds
        ],
    )
    if Device(device) is not Device.CPU:
        return
    show(
        "Reports",
        SEARCHED,
        [searched(bug, range(1, seeds + 1), examples, SHRINK, None) for bug in reports],
    )


if __name__ == "__main__":
    main()
