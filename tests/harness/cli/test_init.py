"""The files of a new project are the examples of the documentation."""

from pathlib import Path

from command_line import Attnfuzz

EXAMPLES = Path(__file__).parents[3] / "docs" / "examples"


def test_a_new_project_has_the_examples_and_keeps_files_that_exist(attnfuzz: Attnfuzz) -> None:
    Path("my_backend.py").write_text("mine = 1\n")
    ran = attnfuzz("init")
    assert ran.code == 0
    assert "my_backend.py exists, and is kept." in ran.out
    assert Path("my_backend.py").read_text() == "mine = 1\n"
    written = {str(path) for path in Path().rglob("*") if path.is_file()}
    assert written == {
        "my_backend.py",
        "test_my_backend.py",
        "attnfuzz-ledger.toml",
        "requirements-fuzz.txt",
        ".github/workflows/fuzz.yml",
    }
    assert Path(".github/workflows/fuzz.yml").read_text() == (EXAMPLES / "pull_request.yml").read_text()
    assert Path("test_my_backend.py").read_text() == (EXAMPLES / "test_my_backend.py").read_text()
