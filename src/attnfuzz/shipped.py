"""The guests that ship with attnfuzz, by group, as the entry points that a package of their own would declare.

The core finds them here (`kernels/interface/guests.py`), and imports none. A source tree has them without being
installed.
"""

from collections.abc import Mapping
from typing import Final

SHIPPED: Final[Mapping[str, Mapping[str, str]]] = {
    # In the order of the help text.
    "attnfuzz.commands": {
        "init": "attnfuzz.harness.cli.commands.machine:init",
        "fuzz": "attnfuzz.harness.cli.commands.campaigns:fuzz",
        "check": "attnfuzz.harness.cli.commands.cases:check",
        "new": "attnfuzz.harness.cli.commands.cases:new",
        "report": "attnfuzz.harness.cli.commands.campaigns:report",
        "compare": "attnfuzz.harness.cli.commands.campaigns:compare",
        "replay": "attnfuzz.harness.cli.commands.cases:replay",
        "import": "attnfuzz.harness.cli.flashinfer.commands:import_dump",
        "triage": "attnfuzz.harness.cli.commands.cases:triage",
        "shrink": "attnfuzz.harness.cli.commands.cases:shrink",
        "export": "attnfuzz.harness.cli.commands.cases:export",
        "bisect": "attnfuzz.harness.cli.releases.commands:bisect",
        "sweep": "attnfuzz.harness.cli.releases.commands:sweep",
        "serve": "attnfuzz.harness.cli.servers.commands:serve",
        "findings": "attnfuzz.harness.cli.commands.homes:findings",
        "ledger": "attnfuzz.harness.cli.commands.homes:ledger",
        "corpus": "attnfuzz.harness.cli.commands.homes:corpus",
        "bugs": "attnfuzz.harness.cli.selftests.commands:bugs",
        "defects": "attnfuzz.harness.cli.selftests.commands:defects",
        "mutants": "attnfuzz.harness.cli.selftests.commands:mutants",
        "backends": "attnfuzz.harness.cli.commands.machine:backends",
        "doctor": "attnfuzz.harness.cli.commands.machine:doctor",
        "build": "attnfuzz.harness.cli.flashinfer.commands:build",
        "calibrate": "attnfuzz.harness.cli.selftests.commands:calibrate",
    },
    "attnfuzz.homes": {"serve": "attnfuzz.harness.cli.servers.home"},
    "attnfuzz.reported": {"bugs": "attnfuzz.harness.reported.bugs:cases_of"},
    "attnfuzz.engines": {
        "sglang": "attnfuzz.kernels.sglang.engine:ENGINE",
        "vllm": "attnfuzz.kernels.vllm.engine:ENGINE",
    },
    "attnfuzz.collections": {
        "trtllm": "attnfuzz.kernels.trtllm.backends:backends",
        "torch": "attnfuzz.kernels.libraries.torch_sdpa:backends",
        "writers": "attnfuzz.kernels.cache_writes.revisions:backends",
        "libraries": "attnfuzz.kernels.libraries.catalogue:backends",
        "gpu": "attnfuzz.kernels.gpu.catalogue:backends",
        "states_on_gpu": "attnfuzz.kernels.gpu.direct.recurrent:backends",
        "sparse_on_gpu": "attnfuzz.kernels.gpu.sparse_libraries.catalogue:backends",
        "token_sparse": "attnfuzz.kernels.trtllm.token_sparse:backends",
    },
    "attnfuzz.families": {
        "steps": "attnfuzz.harness.families.attention:ATTENTION",
        "writes": "attnfuzz.harness.families.writes:WRITES",
        "calls": "attnfuzz.harness.families.calls:CALLS",
        "states": "attnfuzz.harness.families.recurrent:RECURRENT",
        "sparse": "attnfuzz.harness.families.sparse:SPARSE",
    },
    # Functions of a Runner that yield rows of `attnfuzz doctor`.
    "attnfuzz.examinations": {"defects": "attnfuzz.harness.defects.examined:planted_defects"},
    "attnfuzz.functions": {
        "flashinfer": "attnfuzz.kernels.entry_points.catalogue:ENTRY_POINTS",
        "releases": "attnfuzz.kernels.releases.entry_points:ENTRY_POINTS",
    },
    "attnfuzz.planned_runs": {"flashinfer": "attnfuzz.harness.dumps.planned_runs"},
    "attnfuzz.planted": {"defects": "attnfuzz.kernels.defects.catalogue"},
    "attnfuzz.scripts.flashinfer": {"library_ops": "attnfuzz.kernels.gpu.library_ops"},
    "attnfuzz.scripts.native": {"torch_sdpa": "attnfuzz.kernels.libraries.torch_sdpa"},
    "attnfuzz.toolchains": {"flashinfer": "attnfuzz.kernels.gpu.toolchain"},
}
"""Each group maps names to "module:attribute"."""
