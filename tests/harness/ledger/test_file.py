"""The ledger of known failures: what it means, what it says at the end of a night, and what is refused."""

from pathlib import Path
from types import SimpleNamespace

import pytest
from campaign_events import checked, filed, started
from fake_archive import FINGERPRINT, archive, found
from fake_search import decode, observed
from msgspec.structs import replace

from attnfuzz.harness.campaign.closing import remarks_on
from attnfuzz.harness.campaign.events import FindingChecked, FindingFiled, Progress, UnconfirmedKept
from attnfuzz.harness.campaign.plan import Plan
from attnfuzz.harness.campaign.run import check_plan
from attnfuzz.harness.campaign.standing import Standing
from attnfuzz.harness.family import families
from attnfuzz.harness.findings.record import Record
from attnfuzz.harness.findings.state import State
from attnfuzz.harness.ledger.entry import Entry
from attnfuzz.harness.ledger.file import Ledger, LedgerError
from attnfuzz.harness.search.messages import Recognized, Tally
from attnfuzz.harness.verdict.failures import Kind
from attnfuzz.harness.verdict.fingerprint import Fingerprint
from attnfuzz.reference.arguments import ArgumentForm, EarlierUse
from attnfuzz.reference.case import Scales
from attnfuzz.reference.features.table import FeatureTable

ENTRY = Entry(backend="fake", kind=Kind.OUTPUT_MISMATCH, reason="the vendor knows")
NEVER = Entry(backend="fake", kind=Kind.RAISED, reason="never seen")
STARTED = started("fake")
FILED = filed(decode(100), found().name, observation=observed())
UNCONFIRMED = UnconfirmedKept(
    at=1.0, fingerprint=FINGERPRINT, case=decode(100), observation=observed(), path="", reason=""
)


def rechecked(state: State, name: str = found().name) -> FindingChecked:
    return checked(decode(100), state, name, observation=observed())


def past(home: Path, *, fails: bool = True) -> list[Record]:
    """The finding of ENTRY as the night before left it."""
    path, _ = archive(home, "first").file(found(), FINGERPRINT)
    archive(home, "second").checked(path.name, fails=fails)
    return archive(home, "tonight").past(["fake"])


def load(folder: Path, text: str) -> Ledger:
    path = folder / "attnfuzz-ledger.toml"
    path.write_text(text)
    return Ledger.load(path)


def test_the_ledger_of_this_project_can_be_read_and_names_pages_that_exist() -> None:
    root = Path(__file__).parents[3]
    ledger = Ledger.load(root / "attnfuzz-ledger.toml")
    pages = {word for entry in ledger.entries for word in entry.reason.split() if word.startswith("docs/")}
    assert pages
    assert not [page for page in pages if not (root / page.rstrip(",;")).is_file()]


def test_an_entry_matches_failures_that_agree_in_all_its_fields() -> None:
    ledger = Ledger([ENTRY])
    assert ledger.reason(FINGERPRINT, decode(1)) == "the vendor knows"
    assert ledger.reason(replace(FINGERPRINT, kind=Kind.RAISED), decode(1)) is None
    assert ledger.reason(replace(FINGERPRINT, backend="other"), decode(1)) is None


@pytest.mark.parametrize(
    ("narrower", "wider"),
    [
        ({"kernel": "prefill_op"}, {"kernel": "decode_op"}),
        ({"mode": "extend"}, {"mode": "decode"}),
        ({"place": "lse"}, {"place": "out"}),
        ({"finding": "another"}, {"finding": found().name}),
        ({"features": ("empty kv", "several requests")}, {"features": ("several requests",)}),
    ],
)
def test_each_field_narrows_an_entry(narrower: dict[str, object], wider: dict[str, object]) -> None:
    failure = (FINGERPRINT, decode(3, 4), found().name)
    assert Ledger([replace(ENTRY, **narrower)]).reason(*failure) is None
    assert Ledger([replace(ENTRY, **wider)]).reason(*failure) is not None


def test_an_entry_may_name_several_backends_and_kinds() -> None:
    entry = replace(ENTRY, backend=("other", "fake"), kind=(Kind.RAISED, Kind.OUTPUT_MISMATCH))
    ledger = Ledger([entry])
    assert ledger.reason(FINGERPRINT, decode(1)) is not None
    assert ledger.reason(replace(FINGERPRINT, backend="other", kind=Kind.RAISED), decode(1)) is not None
    assert ledger.reason(replace(FINGERPRINT, kind=Kind.HANG), decode(1)) is None
    assert ledger.reason(replace(FINGERPRINT, backend="third"), decode(1)) is None
    assert entry.title == "Raised or OutputMismatch in other or fake"
    many = replace(entry, backend=tuple(f"fake_{each}" for each in range(24)), kind=None)
    assert many.title == "any failure in fake_0, fake_1, fake_2 and 21 more"
    # It is about each of its backends.
    assert remarks_on(ledger, Standing.of([STARTED, FILED]), []) == []
    (remark,) = remarks_on(ledger, Standing.of([STARTED]), [])
    assert "no finding matched" in remark.text


def test_an_entry_may_name_forms_of_arguments_earlier_uses_and_edges() -> None:
    scales = Scales(softmax=0.0)
    case = replace(decode(1), arguments=(ArgumentForm.OUT_GAPS,), life=(EarlierUse.RESET,), scales=scales)
    for word in ("output with gaps", "workspaces reset", "a softmax scale of 0"):
        ledger = Ledger([replace(ENTRY, features=(word,))])
        assert ledger.reason(FINGERPRINT, case) is not None
        assert ledger.reason(FINGERPRINT, decode(1)) is None


def test_an_entry_for_a_release_matches_a_source_tree_of_it() -> None:
    known = Ledger([replace(ENTRY, backend="fake==1.2:decoder")])
    in_tree = replace(FINGERPRINT, backend="fake@/somewhere:decoder")
    assert known.reason(in_tree, decode(1)) == "the vendor knows"
    assert known.reason(replace(FINGERPRINT, backend="fake==1.3:decoder"), decode(1)) is None
    assert Ledger([replace(ENTRY, backend="fake==1.1:decoder")]).reason(in_tree, decode(1)) is None


def test_a_reason_comes_with_its_issue() -> None:
    entry = replace(ENTRY, issue="https://example.org/1")
    assert Ledger([entry]).reason(FINGERPRINT, decode(1)) == "the vendor knows (https://example.org/1)"


@pytest.mark.parametrize("event", [FILED, rechecked(State.OPEN), rechecked(State.RETURNED), UNCONFIRMED])
def test_an_entry_that_matched_gets_no_remark(event: FindingFiled | FindingChecked | UnconfirmedKept) -> None:
    assert remarks_on(Ledger([ENTRY]), Standing.of([STARTED, event]), []) == []


@pytest.mark.parametrize(
    ("counts", "text"),
    [
        (Recognized(passed=1), "1 failure passed without its features"),
        # Another bug fails in the same way in some of the cases.
        (
            Recognized(passed=54, beneath=2, agreed=2, elsewhere=1),
            (
                "54 failures passed without its features; 2 failures also occurred without its features; "
                "1 of 3 minimized had another cause"
            ),
        ),
        (
            Recognized(passed=2, beneath=3),
            (
                "2 failures passed without its features; 3 failures also occurred without its features; "
                "most do not need its features: narrow it"
            ),
        ),
        (
            Recognized(passed=2, refused=3),
            "2 failures passed without its features; 3 failures could not be run without its features",
        ),
        # A rare failure seems to pass without any feature; minimizing it repeats its runs.
        (
            Recognized(passed=40, agreed=1, elsewhere=2),
            (
                "40 failures passed without its features; 2 of 3 minimized had another cause; "
                "most do not need its features: narrow it"
            ),
        ),
    ],
)
def test_an_entry_is_to_be_narrowed_if_most_of_its_failures_do_not_need_its_features(
    counts: Recognized, text: str
) -> None:
    progress = Progress(at=1.0, backend="fake", tally=Tally(recognized={1: counts}))
    (remark,) = remarks_on(Ledger([ENTRY]), Standing.of([STARTED, progress]), [])
    assert (remark.entry, remark.text) == (1, text)


def test_an_entry_whose_failures_all_pass_now_should_go(tmp_path: Path) -> None:
    standing = Standing.of([STARTED, rechecked(State.FIXED)])
    (remark,) = remarks_on(Ledger([ENTRY]), standing, past(tmp_path))
    assert remark.entry == 1
    assert remark.title == "OutputMismatch in fake"
    assert "its findings pass now: remove it" in remark.text


def test_an_entry_whose_failures_passed_in_an_earlier_campaign_can_still_be_removed(tmp_path: Path) -> None:
    (remark,) = remarks_on(Ledger([ENTRY]), Standing.of([STARTED]), past(tmp_path, fails=False))
    assert "its findings pass now: remove it" in remark.text


def test_an_open_failure_that_was_not_run_causes_no_remark(tmp_path: Path) -> None:
    assert remarks_on(Ledger([ENTRY]), Standing.of([STARTED]), past(tmp_path)) == []


def test_an_entry_with_one_of_its_failures_left_stays(tmp_path: Path) -> None:
    standing = Standing.of([STARTED, rechecked(State.FIXED, "another"), FILED])
    assert remarks_on(Ledger([ENTRY]), standing, past(tmp_path)) == []


def test_an_entry_that_never_matched_is_not_reported_as_fixed() -> None:
    (remark,) = remarks_on(Ledger([ENTRY, NEVER]), Standing.of([STARTED, FILED]), [])
    assert remark.entry == 2
    assert "no finding matched" in remark.text
    assert "remove it" not in remark.text


def test_an_entry_of_a_backend_that_was_not_searched_is_left_alone() -> None:
    assert remarks_on(Ledger([replace(NEVER, backend="other")]), Standing.of([STARTED]), []) == []


def test_a_ledger_without_entries_knows_of_nothing(tmp_path: Path) -> None:
    assert load(tmp_path, "").reason(FINGERPRINT, decode(1)) is None
    assert remarks_on(Ledger(), Standing.of([STARTED]), []) == []


def test_a_ledger_is_read_with_all_its_fields(tmp_path: Path) -> None:
    ledger = load(
        tmp_path,
        """
        [[known]]
        backend = ["torch_sdpa", "xqa"]
        kind = ["EmptyRow", "NotFinite"]
        mode = "extend"
        features = ["empty kv"]
        reason = "NaN for no keys"
        issue = "https://example.org/1"
        added = 2025-08-01
        """,
    )
    fingerprint = Fingerprint("torch_sdpa", Kind.EMPTY_ROW, "sdpa", "extend", "empty rows")
    assert ledger.reason(fingerprint, decode(0)) == "NaN for no keys (https://example.org/1)"
    assert ledger.reason(fingerprint, decode(1)) is None


GOOD = 'backend = "torch_sdpa"\nkind = "EmptyRow"\nreason = "r"\n'


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("[[known]]\n" + GOOD + 'bakend = "x"', "entry 1: unknown key 'bakend': did you mean 'backend'?"),
        ("[[known]]\n" + GOOD + 'mode = "decod"', "entry 1: unknown mode 'decod': did you mean 'decode'?"),
        ("[[known]]\n" + GOOD + 'features = ["empty"]', "unknown feature 'empty': did you mean 'empty KV'?"),
        ("[[known]]\n" + GOOD + 'features = "empty kv"', "features: expected `array`, got `str`"),
        ("[[known]]\n" + GOOD + 'added = "2025-13-01"', "added: "),
        ("[[known]]\n" + GOOD + 'issue = "#123"', "issue: '#123' is not a URL"),
        ("[[known]]\n" + GOOD.replace("EmptyRow", "Emptyrow"), "unknown kind 'Emptyrow': did you mean 'EmptyRow'?"),
        ("[[known]]\n" + GOOD.replace("EmptyRow", "Bug"), "unknown kind 'Bug': give one of IllegalAccess, "),
        ("[[known]]\n" + GOOD.replace('"torch_sdpa"', "[]"), "entry 1: backend is empty: name the backend that fails"),
        ("[[known]]\n" + GOOD.replace('"EmptyRow"', '["EmptyRow", "Bug"]'), "unknown kind 'Bug'"),
        ("[[known]]\n" + GOOD.replace('"torch_sdpa"', "[1]"), "entry 1: backend: expected `str`, got `int`"),
        ("[[known]]\n" + GOOD.replace('"EmptyRow"', "3"), "entry 1: kind: expected `str"),
        ("[[known]]\n" + GOOD.replace('"EmptyRow"', '[["EmptyRow"]]'), "entry 1: kind: expected `str"),
        (
            "[[known]]\n" + GOOD.replace('"EmptyRow"', '["Hang", "IllegalAccess"]') + 'place = "key"',
            "leave it out of an entry for IllegalAccess",
        ),
        ("[[known]]\n" + GOOD.replace('"r"', '" "'), "entry 1: reason is empty: say why"),
        ("[[known]]\n" + GOOD.replace('reason = "r"', ""), "entry 1: reason is missing: say why"),
        (
            "[[known]]\n" + GOOD.replace("EmptyRow", "IllegalAccess") + 'place = "key"',
            "place: the place of a stray access is arbitrary",
        ),
        (f"[[known]]\n{GOOD}[[known]]\n{GOOD}", "entry 2: means the same as entry 1"),
        (
            f"[[known]]\n{GOOD}[[known]]\n" + GOOD.replace('"torch_sdpa"', '["torch_sdpa"]'),
            "entry 2: means the same as entry 1",
        ),
        (f"[[knwon]]\n{GOOD}", "knwon: unknown; a ledger is made of [[known]] tables"),
        (f"[known]\n{GOOD}", "known: must be an array of tables"),
        ("[[known]]\n" + GOOD.replace('"EmptyRow"', "[1]"), "entry 1: kind: expected `str`"),
        ("[[known]]\n" + GOOD.replace("torch_sdpa", "a\\u0000b"), "must be the name of a backend"),
        ("[[known]]\n" + GOOD.replace("torch_sdpa", "a\\u0000b.py:X"), "must be the name of a backend"),
        ("known = ", "is not TOML"),
        (f"a = {'9' * 5000}", "is not TOML"),
        (f"a = {'[' * 3000}{']' * 3000}", "nested too deeply"),
    ],
    ids=lambda text: text[:60],
)
def test_a_mistake_is_reported_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(LedgerError) as raised:
        load(tmp_path, text)
    (line,) = str(raised.value).splitlines()
    assert line.startswith(str(tmp_path / "attnfuzz-ledger.toml"))
    assert words in line


def test_an_entry_may_name_a_mode_of_any_family(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    others = (SimpleNamespace(modes=("copy", "gather"), table=FeatureTable()),)
    monkeypatch.setattr("attnfuzz.harness.ledger.file.families", lambda: (*families(), *others))
    (entry,) = load(tmp_path, "[[known]]\n" + GOOD + 'mode = "copy"').entries
    assert entry.mode == "copy"
    with pytest.raises(LedgerError, match="unknown mode 'gathr': did you mean 'gather'"):
        load(tmp_path, "[[known]]\n" + GOOD + 'mode = "gathr"')


def naming(*backends: str) -> str:
    return "".join("[[known]]\n" + GOOD.replace("torch_sdpa", backend) for backend in backends)


def test_backends_that_are_unknown_here_are_a_remark_of_one_line(tmp_path: Path) -> None:
    elsewhere = ("torch_spda", "noengine==1.2:decoder", "sglang==0.5.23:no_kind", "no.py:MINE")
    ledger = load(tmp_path, naming("torch_sdpa", *elsewhere))
    assert len(ledger.entries) == 5
    assert ledger.remark is not None
    assert ledger.remark == (
        f"{tmp_path / 'attnfuzz-ledger.toml'}: 4 backends unknown here, whose entries match nothing: "
        "torch_spda (did you mean torch_sdpa or torch_sdpa@175063?), noengine==1.2:decoder, "
        "sglang==0.5.23:no_kind, no.py:MINE"
    )
    assert load(tmp_path, naming("torch_sdpa", "xqa")).remark is None


def test_the_remark_is_bounded_however_many_backends_are_unknown(tmp_path: Path) -> None:
    remark = load(tmp_path, naming(*(f"noengine==1.{number}:{'x' * 200}" for number in range(20)))).remark
    assert remark is not None
    assert "20 backends unknown here" in remark
    assert remark.endswith(" and 15 more")
    assert len(remark) < 800
    assert "\n" not in remark


def test_a_campaign_starts_with_the_remark(tmp_path: Path) -> None:
    remark = load(tmp_path, naming("torch_sdpa", "torch_spda")).remark
    lines: list[str] = []
    plan = Plan(backends=("torch_sdpa",), out=tmp_path, examples=1, seed=1, ledger=tmp_path / "attnfuzz-ledger.toml")
    assert len(check_plan(plan, lines.append, started=True).entries) == 2
    assert lines == [remark]


def test_a_backend_in_a_file_is_known_without_running_it(tmp_path: Path) -> None:
    (tmp_path / "mine.py").write_text("raise SystemExit(3)")
    assert load(tmp_path, naming(f"{tmp_path}/mine.py:MINE")).remark is None


def test_all_mistakes_are_reported_at_once(tmp_path: Path) -> None:
    with pytest.raises(LedgerError) as raised:
        load(tmp_path, '[[known]]\nkind = "EmptyRow"\n[[known]]\nbackend = "torch_sdpa"\nreason = "r"')
    lines = str(raised.value).splitlines()
    assert [line.split(", ", 1)[1].split(":")[0] for line in lines] == ["entry 1", "entry 1", "entry 2"]


def test_a_ledger_that_is_not_there_is_reported_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(LedgerError, match=r"cannot read ledger .*: No such file"):
        Ledger.load(tmp_path / "absent.toml")
    with pytest.raises(LedgerError, match="Is a directory"):
        Ledger.load(tmp_path)
    (tmp_path / "latin.toml").write_bytes(b'a = "\xff"')
    with pytest.raises(LedgerError, match="is not TOML"):
        Ledger.load(tmp_path / "latin.toml")
