"""README and the documentation site: links lead somewhere, nothing is loaded from elsewhere, each page has a reader."""

import importlib.util
import os
import re
import runpy
import sys
from html.parser import HTMLParser
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from msgspec.structs import replace

from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.reported.bugs import load_bugs
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.kernels import native
from attnfuzz.kernels.defects.catalogue import DEFECTS

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = sorted((ROOT / "docs").rglob("*.md"))
FINDINGS = ROOT / "docs" / "findings"
UPSTREAM = ROOT / "docs" / "upstream"
SCRIPTS = sorted(FINDINGS.glob("[!_]*.py"))


def finding_list() -> dict[str, Any]:
    """Return the script that makes the list of findings."""
    return runpy.run_path(str(FINDINGS / "_list.py"))


pages = pytest.mark.parametrize(
    "page",
    PAGES,
    ids=lambda page: str(page.relative_to(ROOT / "docs")),
)


def build(folder: Path) -> None:
    """Build the site, with every warning an error: links, anchors, pages that no navigation has, unknown names."""
    # Importing mkdocs takes each worker of the quick tests a second.
    from mkdocs.commands import build as builder  # noqa: PLC0415
    from mkdocs.config import load_config  # noqa: PLC0415

    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("NO_MKDOCS_2_WARNING", "1")
        config = load_config(os.fspath(ROOT / "mkdocs.yml"), site_dir=os.fspath(folder), strict=True)
        config.plugins.on_startup(command="build", dirty=False)
        builder.build(config)


class Loaded(HTMLParser):
    """Collects the addresses that a browser loads by itself."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in ("iframe", "img", "script"):
            self.addresses.append(attributes.get("src") or "")
        if tag == "link" and attributes.get("rel") not in ("canonical", "next", "prev"):
            self.addresses.append(attributes.get("href") or "")


@pytest.mark.slow
def test_the_site_is_complete_and_loads_nothing_from_elsewhere(tmp_path: Path) -> None:
    """Slow: it builds some 100 pages, in this process. One test, since each process with one of several builds them."""
    build(tmp_path)
    built = {page: page.read_text() for page in tmp_path.rglob("*.html")}
    assert len(built) > len(PAGES) - 5
    # Loading the hooks leaves one in docs.
    assert not list(tmp_path.rglob("__pycache__"))
    for page, text in built.items():
        loaded = Loaded()
        loaded.feed(text)
        assert [address for address in loaded.addresses if re.match(r"(\w+:)?//", address)] == [], page
        # A line that begins with the number of a report is no heading.
        assert not re.search(r"<h1[^>]*>\d{4,}", text), page
    for style in tmp_path.rglob("*.css"):
        assert not re.search(r"url\(\W?(https?:)?//", style.read_text()), style
    # Parts that follow from code:
    answers, forms = (built[tmp_path / "reference" / f"{name}.html"] for name in ("json", "arguments"))
    assert all(f'id="{name}"' in answers for name in ("campaignanswer", "listedfinding"))
    assert "<td>window of 2^31 - 1</td>\n<td>promised</td>" in forms


@pages
def test_each_page_begins_with_its_readers(page: Path) -> None:
    text = re.sub(r"\A---\n.*?^---\n", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
    title, empty, first, *_ = text.splitlines()
    assert title.startswith("# ")
    assert (empty, first.split()[0]) == ("", "For")


def test_each_table_begins_with_a_header_and_each_row_is_one_line() -> None:
    broken = []
    for page in (*ROOT.glob("*.md"), *PAGES, Path(native.__file__).parent / "TRAPS.md"):
        text = re.sub(r"^```.*?^```$", "", page.read_text(), flags=re.DOTALL | re.MULTILINE)
        for table in re.findall(r"(?:^\|.*\n?)+", text, re.MULTILINE):
            _, rule, *_ = rows = [*table.splitlines(), ""]
            if not re.fullmatch(r"\|[-:| ]+\|", rule) or not all(row.endswith("|") for row in rows[:-1]):
                broken.append((page.name, rows[0]))
    assert broken == []


def test_readme_fits_on_a_few_screens_and_its_links_lead_somewhere() -> None:
    assert len(README.splitlines()) <= 130
    targets = re.findall(r"\]\((?!\w+:)([^)#]+)", README)
    assert len(targets) > 20
    # In an unpacked sdist, the code lies in src/attnfuzz alone.
    places = (ROOT, ROOT / "src" / "attnfuzz")
    assert [target for target in targets if not any((place / target).exists() for place in places)] == []


def test_each_finding_has_a_page_in_the_list_and_a_script() -> None:
    listed = re.findall(r"^\| \[.*?\]\(([\w-]+)\.md\) \| (.+?) \|.*\|.*\|$", finding_list()["page"](), re.MULTILINE)
    assert sorted(name for name, _ in listed) == [script.stem for script in SCRIPTS]
    assert all(re.search(r"\d", affected) for _, affected in listed)


def test_a_finding_states_its_releases_in_front_matter() -> None:
    divided = finding_list()["divided"]
    assert divided('---\naffected: "torch 2.13"\nfixed: "torch 2.14"\n---\n# Title\n') == (
        {"affected": "torch 2.13", "fixed": "torch 2.14"},
        "# Title\n",
    )
    with pytest.raises(ValueError, match="begin the page with affected"):
        divided("# Title\n")
    known = {"affected", "fixed", "report"}
    assert all(divided(page.read_text())[0].keys() <= known for page in FINDINGS.glob("*.md") if page.stem != "README")


@pytest.mark.parametrize("script", SCRIPTS, ids=lambda script: script.stem)
def test_a_script_of_a_finding_follows_the_template_and_fits_into_one_file(script: Path) -> None:
    assert re.search(r"^from _template import .*finish", script.read_text(), re.MULTILINE)
    single_file = runpy.run_path(str(FINDINGS / "_single_file.py"))["single_file"](script)
    assert not re.search(r"^from _", single_file, re.MULTILINE)
    compile(single_file, script.name, "exec")


def test_a_single_file_has_the_shared_code_that_its_script_uses_and_no_more() -> None:
    single_file = runpy.run_path(str(FINDINGS / "_single_file.py"))["single_file"]
    source = single_file(FINDINGS / "flashinfer-plan-staging.py")
    assert "def finish(" in source
    assert "def workspace(" in source
    assert "def in_child(" not in source
    assert "import subprocess" not in source
    # A tensor that is only allocated belongs to the reproduction.
    assert "\nothers = torch.zeros(" in source


def test_a_ledger_is_exported_for_flashinfer_without_entries_that_would_match_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    at = "https://github.com/flashinfer-ai/flashinfer/issues"
    entry = Entry(backend="xqa", reason="gaps", kind=Kind.NOT_FINITE, issue=f"{at}/7")
    narrow = replace(entry, backend=("xqa", "fa2_paged"), features=("views",), mode="decode")
    others = [replace(entry, kernel="mha"), replace(entry, issue="https://github.com/pytorch/pytorch/issues/7")]
    deadly = replace(entry, kind=(Kind.NOT_FINITE, Kind.HANG))
    exported = runpy.run_path(str(UPSTREAM / "_fuzz_ledger.py"))["exported"]
    source, left_out = exported([narrow, *others, deadly])
    assert left_out == [each.title for each in others]
    theirs = SimpleNamespace(
        Finding=lambda match, reason, **others: (match, reason, others), FuzzLedger=lambda *parts: parts
    )
    monkeypatch.setitem(sys.modules, "tests.test_helpers.fuzz_ledger", theirs)
    (tmp_path / "ledger.py").write_text(source)
    operation, findings = runpy.run_path(str(tmp_path / "ledger.py"))["LEDGER"]
    assert operation == "attention"
    assert [others for _, _, others in findings] == [
        {"quarantine": False, "backend": "xqa"},
        {"quarantine": False, "backend": "fa2_paged"},
        {"quarantine": True, "backend": "xqa"},
    ]
    match, reason, _ = findings[0]
    assert reason == "gaps; gh #7"
    assert match(SimpleNamespace(features={"views", "mode=decode", "scales"}))
    assert not match(SimpleNamespace(features={"views", "mode=prefill"}))


def test_each_text_for_upstream_has_a_place_in_the_order_and_its_scripts() -> None:
    order = re.findall(r"^\| \d+ \| \[([\w-]+)\]\(\1\.md\)", (UPSTREAM / "README.md").read_text(), re.MULTILINE)
    assert sorted(order) == sorted({page.stem for page in UPSTREAM.glob("*.md")} - {"README", "rfc-3605"})
    text = runpy.run_path(str(UPSTREAM / "_text.py"))["text"]
    for name in order:
        posted = text(name)
        sections = ["Before submitting", "Environment", "Bug description", "Minimal reproduction", "Additional context"]
        assert re.findall(r"^## (.*)", posted, re.MULTILINE) == sections
        assert "2026" in posted.partition("## Environment")[0] or "Known" in posted, name
        sources = re.findall(r"^```python\n(.*?)^```$", posted, re.MULTILINE | re.DOTALL)
        assert len(sources) == len(re.findall("<!-- script", (UPSTREAM / f"{name}.md").read_text())) > 0
        for source in sources:
            compile(source, name, "exec")


@pytest.mark.parametrize("page", [page for page in UPSTREAM.glob("*.md") if "<!-- script: " in page.read_text()])
def test_a_text_for_upstream_names_the_scripts_that_ran_with_the_newest_release(page: Path) -> None:
    scripts = re.findall(r"<!-- script: (\S+)\.py -->", page.read_text())
    affected = {
        name: finding_list()["divided"]((FINDINGS / f"{name}.md").read_text())[0]["affected"] for name in scripts
    }
    seen = [name for name in scripts if "by source" not in affected[name]]
    environment = page.read_text().partition("## Environment")[2].partition("##")[0].replace("\n", " ")
    if len(seen) == len(scripts):
        assert "and the same with 0.7.4" in environment
    else:
        assert re.findall(r"[\w-]+(?=\.py)", environment) == seen


def test_readme_states_the_current_counts() -> None:
    assert f"[{len(SCRIPTS)} findings]" in README
    assert f"has {len(load_bugs())} reported bugs" in README
    assert f"plants {len(DEFECTS)} bugs" in README


def blocks_with_results(text: str) -> list[tuple[str, list[str]]]:
    """The paragraphs, each with the table after it, that link to pages of results, and the names of these pages."""
    blocks = re.split(r"\n\n(?!\|)", text)
    found = ((block, re.findall(r"docs/results/(\w+\.md)", block)) for block in blocks)
    return [(block, pages) for block, pages in found if pages]


def test_each_number_of_readme_beside_a_link_to_results_stands_there() -> None:
    """Numbers in commands, addresses and names aside."""
    blocks = blocks_with_results(README)
    assert len(blocks) >= 3
    for block, named in blocks:
        known = " ".join((ROOT / "docs" / "results" / page).read_text() for page in named)
        stated = set(re.findall(r"(?<![\w.,])\d[\d,.]*\b", re.sub(r"`[^`]*`|\]\([^)]*\)|H200", "", block)))
        missing = [number for number in stated if not re.search(rf"(?<![\w.,]){re.escape(number)}\b(?![.,]\d)", known)]
        assert not missing, (named, missing)


@pytest.mark.parametrize("page", sorted((ROOT / "docs" / "guides").glob("for-*.md")), ids=lambda page: page.stem)
def test_a_page_for_a_team_takes_five_minutes(page: Path) -> None:
    assert len(page.read_text().split()) <= 600


@pytest.fixture(scope="module")
def setup() -> ModuleType:
    spec = importlib.util.spec_from_file_location("attnfuzz_setup", ROOT / "setup.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("source", [None, "https://host.example/attnfuzz"])
def test_on_a_package_index_no_link_of_readme_is_relative(
    setup: ModuleType, source: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(setup, "source", lambda: source)
    shown = setup.with_addresses(README)
    assert re.findall(r"\]\((?!\w+:)[^)]*\)", shown) == []
    assert ("[GPU](https://host.example/attnfuzz/blob/main/docs/guides/gpu.md)" in shown) == (source is not None)
    assert ("](https://host.example/attnfuzz/raw/main/docs/images/terminal.png)" in shown) == (source is not None)
