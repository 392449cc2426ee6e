"""docs/results.md and the README's table are what the published records say."""

import json
import shutil

import pytest

from lra.config import CONF
from lra.report import repository
from lra.runs import record


def test_the_pages_are_those_of_the_records():
    for path, text in repository.pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} differs: python -m lra.report published=true"


def test_every_study_says_its_command_and_hardware():
    for folder in filter(lambda path: path.is_dir(), repository.HOME.iterdir()):
        about = json.loads((folder / repository.ABOUT).read_text())
        assert about.keys() == {"command", "hardware", "note"} and about["command"].startswith("python -m lra.train ")


@pytest.fixture
def copy(tmp_path):
    (tmp_path / "docs").mkdir()
    shutil.copy(CONF.parent / "README.md", tmp_path)
    shutil.copytree(repository.HOME, tmp_path / "published")
    return tmp_path


def test_another_record_changes_the_pages(copy):
    path = next((copy / "published").rglob("cur_abs/seed-0/" + record.NAME))
    path.write_text(path.read_text().replace('"test": 35.7', '"test": 11.25'))
    (path.parent / "SHA256SUMS").unlink()
    made = repository.pages(copy, copy / "published")
    assert all("11.25" in text for text in made.values())


def test_a_damaged_record_and_a_readme_without_marks_are_refused(copy):
    (copy / "README.md").write_text("# A project\n")
    with pytest.raises(ValueError, match=r"README.md must have the lines <!-- results"):
        repository.pages(copy, copy / "published")
    next((copy / "published").rglob(record.NAME)).write_text("{}")
    with pytest.raises(ValueError, match="SHA256SUMS"):
        repository.pages(copy, copy / "published")
