"""Mistakes of a first hour: each is planted in a kernel or in the function around it, and then checked and fuzzed.

The kernels are in own_kernels/: decode with split keys in torch, and prefill in C++ by ctypes. Prints a table: the
share of plain cases that fail, the seconds to the first words that name the mistake, and these. A campaign is run where
`attnfuzz check` does not name it. The author of the mistakes chose the words that count.
"""

import argparse
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

FOLDER = Path(__file__).with_name("own_kernels")
SPLIT, VARLEN = "my_split_kv.py", "my_varlen.py"
KERNEL, SOURCE = "split_kv.py", "varlen.cpp"
FILES = {SPLIT: SPLIT, KERNEL: SPLIT, VARLEN: VARLEN, SOURCE: VARLEN}
"""The files that mistakes change, and the backend of each."""

_CALL = "    prefill(\n"


class Planted(NamedTuple):
    """A mistake: the `text` that becomes `instead` in a file, the `words` that name it, and more changes there."""

    name: str
    file: str
    words: str
    text: str
    instead: str
    more: tuple[tuple[str, str], ...] = ()


_COPIED = "    out.copy_(o)\n    lse.copy_(logsumexp)\n"
_PLAN = "    planner.plan(cum_seq_lens_q, block_tables, "
_LIMIT = "int limit = kn - qn + i0 + i;"
_TABLES = "        block_tables.data_ptr(),"

MISTAKES = (
    Planted("returned", SPLIT, "returned a tensor", _COPIED, "    return o, logsumexp  # type: ignore[return-value]\n"),
    Planted("LSE in base 2, e promised", SPLIT, "base were 2 where base e is", "LseBase.TWO", "LseBase.E"),
    Planted(
        "LSE as [heads, tokens]",
        SPLIT,
        r"written as \[heads, tokens\]",
        "lse.copy_(logsumexp)",
        "lse.view(lse.shape[::-1]).copy_(logsumexp.T)",
    ),
    Planted(
        "plan of the first step",
        SPLIT,
        "passes in a fresh process|after earlier cases",
        _PLAN,
        f"    if not planner.work:\n    {_PLAN}",
    ),
    Planted(
        "scale ignored: 1 / dim", SPLIT, "1 / head_dim_qk, whatever", "v_cache, scale,", "v_cache, 1 / query.shape[-1],"
    ),
    Planted(
        "page ids ignored",
        SPLIT,
        "page table were ignored",
        _PLAN,
        "    tables = torch.arange(block_tables.numel()).view_as(block_tables)\n"
        f"{_PLAN.replace('block_tables', 'tables')}",
    ),
    Planted(
        "float16, float32 claimed", VARLEN, "float32, float16 fail, and none with", "dtypes=(DType.BFLOAT16,), ", ""
    ),
    Planted("HND taken for NHD", VARLEN, "HND fail, and none with NHD", '== "HND"', '== "hnd"'),
    Planted(
        "out in float32",
        SOURCE,
        "kernel that writes float32",
        "bf16* out",
        "float* out",
        (("down(l[i] > 0 ? acc[i * dim + d] / l[i] : 0.f)", "l[i] > 0 ? acc[i * dim + d] / l[i] : 0.f"),),
    ),
    Planted("moved to a GPU", SPLIT, "CUDA|NVIDIA", "run(query, k_cache", "run(query.cuda(), k_cache"),
    Planted(
        "last tile left out", SOURCE, "skips keys", "j0 < last; j0", "j0 < last && (j0 == 0 || j0 + BN <= last); j0"
    ),
    Planted("0 / 0 in empty requests", KERNEL, "see no key", "sum(0) / total.clamp_min(1e-30)", "sum(0) / total"),
    Planted("heads in turn", KERNEL, "KV heads in turn", "arange(heads) // group", "arange(heads) % kv_heads"),
    Planted("window one short", KERNEL, "window were one key narrower", ">= qpos", "> qpos"),
    Planted("merge in another base", KERNEL, "merged by exp2|merges parts", "w = torch.exp(", "w = torch.exp2("),
    Planted("full last page", KERNEL, "full last page", "n - (pages - 1) * page_size if n else 0", "n % page_size"),
    Planted("queries of request 0", SOURCE, "ragged queries", _LIMIT, "int limit = kn - (cu_q[1] - cu_q[0]) + i0 + i;"),
    Planted(
        "causal limit without prefix", SOURCE, "first query to the first key|misaligns", _LIMIT, "int limit = i0 + i;"
    ),
    Planted(
        "cap before scale",
        KERNEL,
        "soft cap were applied before",
        "k) * sm_scale",
        "k)",
        (("logits / soft_cap)\n", "logits / soft_cap)\n            logits = logits * sm_scale\n"),),
    ),
    Planted(
        "workspace not cleared",
        KERNEL,
        "several requests|after earlier cases",
        "        space[..., :-1] = 0\n        space[..., -1] = -math.inf\n",
        "",
    ),
    Planted(
        "lengths without new tokens",
        VARLEN,
        "own key is not seen|last key were missing",
        _CALL,
        f"    seq_lens = seq_lens - cum_seq_lens_q.diff()\n{_CALL}",
    ),
    Planted("int64 page ids", VARLEN, "64-bit entries", _CALL, f"    block_tables = block_tables.long()\n{_CALL}"),
    Planted(
        "lengths for offsets", VARLEN, "offsets of rows", _CALL, f"    cum_seq_lens_q = cum_seq_lens_q.diff()\n{_CALL}"
    ),
    Planted("out rebound", SPLIT, "writes none", "out.copy_(o)", "out = o"),
    Planted("window 1 more, -1 too", SPLIT, "window of 0 keys", "scale, window_left", "scale, window_left + 1"),
    Planted(
        "K and V exchanged",
        VARLEN,
        "keys and values were exchanged",
        "        k_cache.data_ptr(),\n        v_cache.data_ptr(),",
        "        v_cache.data_ptr(),\n        k_cache.data_ptr(),",
    ),
    Planted(
        "pointer of a temporary",
        VARLEN,
        "temporary tensor dangles",
        _TABLES,
        "        block_tables.clone().data_ptr(),",
    ),
    Planted(
        "last split left out",
        KERNEL,
        "skips keys",
        "range(0, max(n, 1), self.split)",
        "range(0, max(n // self.split, 1) * self.split, self.split)",
    ),
    Planted("sink of the KV head", SOURCE, "sink of", "sinks ? sinks[h]", "sinks ? sinks[hk]"),
    Planted(
        "a tile not rescaled",
        SOURCE,
        "more than 64 keys",
        "acc[i * dim + d] *= fix;",
        "acc[i * dim + d] *= j0 % 128 ? fix : 1;",
    ),
    Planted(
        "table rows as wide as needed",
        SOURCE,
        "table slack|reads other pages|own pages",
        "b * table_width",
        "b * ((kn + page_size - 1) / page_size)",
    ),
)


def main() -> None:
    """Plant the mistakes, one after the other."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--seconds", type=int, default=30, help="the time of each campaign")
    parser.add_argument("mistakes", nargs="*", help="names of mistakes, by default all")
    options = parser.parse_args()
    print("| mistake | in | plain cases | after | named by |\n|---|---|---|---|---|")
    for mistake in MISTAKES:
        if not options.mistakes or mistake.name in options.mistakes:
            print(f"| {' | '.join(row(mistake, options.seconds))} |", flush=True)


def row(mistake: Planted, seconds: int) -> Iterator[str]:
    """Yield the cells of a mistake, which is named by `attnfuzz check` or else by a campaign."""
    with tempfile.TemporaryDirectory() as folder:
        backend = f"{planted(mistake, Path(folder))}:MINE"
        yield mistake.name
        yield mistake.file
        checked = list(output(folder, "check", backend))
        yield next(
            (found[0] for _, line in checked if (found := re.search(r"\d+ of \d+(?= plain)|passes", line))), "none"
        )
        words = " ".join(line.strip() for _, line in checked)
        if found := re.search(rf"(?:\S+ ){{0,6}}\S*(?:{mistake.words})\S*(?: \S+){{0,6}}", words):
            yield f"{checked[-1][0]:.0f} s"
            yield f"`check`: {found[0]}"
            return
        fuzzed = output(folder, "fuzz", "--backend", backend, "--time", f"{seconds}s", "--jobs", "1")
        said = next(((at, line) for at, line in fuzzed if re.search(mistake.words, line)), None)
        yield f"{said[0]:.0f} s" if said else "-"
        yield f"`fuzz`: {said[1].strip()}"[:160] if said else "nothing"


def planted(mistake: Planted, folder: Path) -> str:
    """Copy the kernels with a mistake, and return the file of the backend."""
    for name in FILES:
        shutil.copy(FOLDER / name, folder)
    path = folder / mistake.file
    source = path.read_text()
    for text, instead in ((mistake.text, mistake.instead), *mistake.more):
        if text not in source:
            raise ValueError(f"{mistake.name}: {text!r} is not in {mistake.file}")
        source = source.replace(text, instead)
    path.write_text(source)
    return FILES[mistake.file]


def output(folder: str, *arguments: str) -> Iterable[tuple[float, str]]:
    """Run attnfuzz, and return its lines, each with the seconds since its start."""
    began = time.monotonic()
    with subprocess.Popen(
        [sys.executable, "-m", "attnfuzz", *arguments],
        cwd=folder,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    ) as process:
        assert process.stdout is not None
        return [(time.monotonic() - began, line) for line in process.stdout]


if __name__ == "__main__":
    main()
