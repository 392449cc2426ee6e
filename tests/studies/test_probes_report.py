"""The probes in the report: the smallest reach that keeps a gain, scores within reaches, and swaps."""

import pytest
from support.records import add, rows, table, texts

from lra.studies.probes import record
from lra.studies.probes.report import smallest, swaps, within
from lra.studies.records import save

REACHES = [1, 2, 4, 8]


def probed(runs, label, scores, seed=0, fingerprint="f"):
    made = record.Probes(
        study="paper-paper",
        task="listops",
        label=label,
        seed=seed,
        fingerprint=fingerprint,
        git=None,
        metric="accuracy",
        examples=10,
        score=scores[-1],
        by="mask",
        reaches=REACHES,
        scores=scores,
        beyond=None,
    )
    save(made, record.folder(runs, made.study, made.task, label, seed) / record.NAME)
    return made


def test_the_smallest_reach_from_which_on_all_keep_95_percent_of_the_gain(tmp_path):
    made = probed(tmp_path, "sdpa", [20.0, 39.0, 30.0, 40.0])
    assert smallest(made, 20.0) == 8  # 39 keeps 95 %, and 30 behind it does not
    assert smallest(probed(tmp_path, "sdpa", [20.0, 38.9, 39.0, 40.0]), 20.0) == 4
    assert smallest(probed(tmp_path, "sdpa", [40.0, 41.0, 40.0, 40.0]), 20.0) == 1


def test_a_column_of_the_task_that_has_probes(tmp_path):
    for label, test in (("mean", 20.0), ("sdpa", 40.0), ("cur_abs", 40.0), ("linear", 19.0)):
        for seed in (0, 1):
            add(tmp_path, label=label, seed=seed, test=test)
    assert "locality" not in table(tmp_path)["listops"].head
    for seed, scores in enumerate(([20.0, 25.0, 39.5, 40.0], [20.0, 20.0, 20.0, 40.0])):
        probed(tmp_path, "sdpa", scores, seed)
    probed(tmp_path, "cur_abs", [40.0] * 4, fingerprint="another run")
    probed(tmp_path, "linear", [19.0] * 4)
    made = table(tmp_path)["listops"]
    shown = {label: cells["locality"] for label, cells in texts(made).items()}
    assert shown == {"sdpa": "6", "cur_abs": "", "linear": "", "mean": ""} and "keeps 95% of what" in made.about
    assert rows(tmp_path)


def test_scores_within_each_reach_are_means_over_the_seeds_that_were_probed(tmp_path):
    for seed in (0, 1):
        add(tmp_path, label="sdpa", seed=seed, test=40.0)
    add(tmp_path, label="mean", test=20.0)
    assert within("paper-paper", [*rows(tmp_path).values()]) == []
    for seed, scores in enumerate(([20.0, 25.0, 39.5, 40.0], [20.0, 20.0, 20.0, 41.0])):
        probed(tmp_path, "sdpa", scores, seed)
    probed(tmp_path, "mean", [1.0] * 4, fingerprint="another run")
    (made,) = within("paper-paper", [*rows(tmp_path).values()])
    ((_, cells),) = made.rows()
    assert [cell.text for cell in cells] == ["sdpa", "listops", "2", "20.00", "22.50", "29.75", "40.50"]


def test_a_table_of_swaps_for_each_task_that_has_them(tmp_path):
    add(tmp_path, label="sdpa", test=40.0)
    home = tmp_path / record.FOLDER / "paper-paper" / "listops"
    home.mkdir(parents=True)
    assert swaps("paper-paper", [*rows(tmp_path).values()]) == []
    (home / record.SWAPS).write_text("trained with,own,sdpa,mean\nnystrom,41.0,,12.345\n")
    (made,) = swaps("paper-paper", [*rows(tmp_path).values()])
    assert made.title == "Swapped mechanisms: listops" and made.head == ["trained with", "own", "sdpa", "mean"]
    ((_, cells),) = made.rows()
    assert [cell.text for cell in cells] == ["nystrom", "41.00", "", "12.35"]


@pytest.mark.parametrize(
    "text", ["", "abc\n", "trained with,own\na\n", "trained with,own,own\na,1,2\n", "x,own\na,b\n"]
)
def test_a_damaged_table_of_swaps_is_skipped_with_a_line(tmp_path, text, capfd):
    add(tmp_path)
    path = tmp_path / "probes/paper-paper/listops/swaps.csv"
    path.parent.mkdir(parents=True)
    path.write_text(text)
    assert swaps("paper-paper", list(rows(tmp_path).values())) == []
    assert f"skipped: {path} is not a table of swaps" in capfd.readouterr().err
