"""`attnfuzz backends`: what can be tested here."""

import click
from rich.console import Console
from rich.table import Table

from attnfuzz.harness.cli.noise_words import noise_words
from attnfuzz.harness.registry import fixed, names, resolve
from attnfuzz.reference.capability import Capability
from attnfuzz.reference.case import KvView, QueryView


@click.command()
@click.option("--runnable", is_flag=True, help="Only print the names of those that run here, without revisions.")
def backends(*, runnable: bool) -> None:
    """List the backends: what each supports, and whether it runs on this machine."""
    if runnable:
        for name in names():
            if name == fixed(name) and resolve(name).missing() is None:
                click.echo(name)
        return
    console = Console(highlight=False)
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("backend", overflow="fold", min_width=16)
    table.add_column("here", no_wrap=True)
    table.add_column("supports", overflow="fold", ratio=1)
    for name in names():
        why_not = resolve(name).missing()
        reason = f"{why_not}\n" if why_not else ""
        table.add_row(name, "no" if why_not else "yes", reason + supports(name))
    console.print(table)


def supports(name: str) -> str:
    """What the backend called `name` supports, in words; for a revision that supports the same, a reference."""
    can = resolve(name).capability
    if name != fixed(name) and can == resolve(fixed(name)).capability:
        return f"As {fixed(name)}."
    graphs = f"Graphs of {', '.join(can.graph_modes)}. " if can.graph_modes else ""
    noise = noise_words(resolve(name))
    return f"{', '.join(can.modes)}. {graphs}{', '.join((*can.dtypes, *_features(can)))}. {noise.capitalize()}."


def _features(can: Capability) -> list[str]:
    features = {
        "fp8 KV": can.fp8_kv,
        "latents": can.latent,
        "head_dim_qk != head_dim_vo": can.unequal_head_dims,
        "windows": can.windows,
        "sinks": can.sinks,
        "soft cap": can.soft_cap,
        "KV scales": can.kv_scales,
        "padding": can.padding,
        "empty KV": can.empty_kv,
        "kv < q": can.kv_shorter_than_q,
        "strided q": can.query_views != (QueryView.CONTIGUOUS,),
        "strided KV": can.kv_views != (KvView.SEPARATE,),
    }
    return [feature for feature, present in features.items() if present]
