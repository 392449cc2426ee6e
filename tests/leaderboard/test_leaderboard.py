"""Leaderboard lines from papers, this repository and submissions; filters, order, page and mechanism cards."""

import dataclasses
from statistics import fmean
from types import SimpleNamespace

import pytest
from conftest import assert_error
from support.records import add, add_seeds, diverged

from lra.leaderboard import cards, table
from lra.leaderboard.__main__ import all_lines, leaderboard, pages, parse, qualify_filters
from lra.leaderboard.lines import LeaderboardLine, Score, convention, group_of, mechanism_of, merged
from lra.leaderboard.measured import measured_lines, own_lines, protocol_of, submission_lines, year_of
from lra.leaderboard.mechanism import mechanisms
from lra.results import paper_values
from lra.results.table import Cell, Column
from lra.runs import published as tables
from lra.submit import folder, verify
from lra.submit.control import by_mechanism
from lra.submit.record import Comparison, Submission, Verification

FIVE = [60.0, 80.0, 80.0, 80.0, 90.0]


@pytest.fixture(scope="module")
def everything():
    return all_lines()


def scores(*values):
    return {task: Score(text=str(v), value=v) for task, v in zip(paper_values.TASKS, values, strict=False)}


def line(model, *values, **fields):
    common = {"average": None, "averaged": "", "size": "", "year": 2024, "protocol": "other", "status": "quoted"}
    sources = ((fields.pop("source", "A"), "https://a"),)
    return LeaderboardLine(model=model, group=model.lower(), scores=scores(*values), sources=sources, **common | fields)


def test_leaderboard_pages_are_up_to_date(everything, monkeypatch):
    monkeypatch.setattr("lra.leaderboard.__main__.all_lines", lambda _: everything)
    for path, text in pages().items():
        assert path.read_text(encoding="utf-8") == text, f"{path} differs: python -m lra.leaderboard write=true"


def test_leaderboard_has_every_printed_accuracy(everything):
    """Merging lines with repeated scores loses no published value."""
    board = {(name, task, score.value) for x in everything for name, _ in x.sources for task, score in x.scores.items()}
    for value in paper_values.read():
        if value.metric == "accuracy_percent" and value.task in paper_values.TASKS and value.value != "NA":
            assert (value.source, value.task, value.number) in board, value


@pytest.mark.parametrize(
    "values, average, expected",
    [
        ([*FIVE, 96.0], 81.0, "six tasks"), ([*FIVE, 95.0], 85.0, "five tasks, ListOps left out"),
        ([*FIVE, None], 78.0, "five tasks, Path-X left out"), (FIVE[:4], 75.0, "four tasks, the others left out"),
        (FIVE, 73.33, "missing Path-X as 50"), ([*FIVE, None], 65.0, "missing Path-X as 0"),
        ([60.0, 80.0, None, 80.0, 80.0, None], 66.67, "each FAIL as 50"), (FIVE, 78.1, "unclear"),
        ([], 80.0, "tasks not recorded"), ([60.0, 80.0], None, ""),
        ([None, 80.0, 80.0, 80.0, 90.0, 96.0], 85.2, "five tasks, ListOps left out"),
    ],
)  # fmt: skip
def test_averaging_convention_is_detected(values, average, expected):
    assert convention(scores(*values), average) == expected
    assert convention(scores(*values), average, "average is NOT their mean; equals (sum + 50)/6") == expected
    assert convention(scores(*values), average, "average is NOT their mean") == ("unclear" if average else "")


def test_repeated_scores_are_merged_and_contradictory_ones_are_not():
    first = line("S4", 59.0, 86.0, 90.0, source="A", status="recalled", year=2022)
    repetition = line("S4", 59.0, 86.0, 90.0, 88.0, source="B", year=2024)
    merged_lines = merged([first, repetition, line("S4", 58.0, 86.0, 90.0, source="C")])
    assert [[name for name, _ in x.sources] for x in merged_lines] == [["B", "A"], ["C"]]
    assert merged_lines[0].status == "quoted" and len(merged_lines[0].scores) == 4
    # An unknown year counts as the latest.
    assert merged([dataclasses.replace(first, year=None), first])[0].year == 2022
    # A single common score does not make two lines repetitions.
    assert len(merged([line("S4", 59.0, source="A"), line("S4", 59.0, source="B")])) == 2


def test_select_filters_and_ordered_sorts_lines():
    old = line("old", 30.0, 60.0, 70.0, 40.0, 70.0, year=2020, protocol="official")
    best = line("new", 60.0, 80.0, 80.0, 80.0, 90.0, year=2024, protocol="two-layer")
    worse = line("new", 40.0, 60.0, 60.0, 60.0, 60.0, year=2023, source="B")
    partial = line("partial", 99.0, year=None, status="recalled")
    rows = [old, partial, worse, best]
    assert table.select(rows, task="text") == [old, worse, best] and table.select(rows, since=2023) == [worse, best]
    assert table.select(rows, protocol="two-layer") == [best] and table.select(rows, status="recalled") == [partial]
    # Lines of one model are adjacent, sorted by the model's best mean; lines without a mean are last.
    assert table.ordered(rows) == [best, worse, old, partial]
    assert table.ordered(rows, "listops") == [partial, best, worse, old]
    assert table.ordered(rows, "year")[0] == best and table.ordered(rows, "model")[-2:] == [old, partial]
    capital = dataclasses.replace(best, model="Zeta", group="a")
    assert table.ordered([capital, old], "model") == [old, capital]


def test_label_with_options_belongs_to_its_mechanism():
    labels = ("nystrom-optim.lr=0.001", "custom-cur_abs", "cur_abs-count=32+masked-matched-optim.lr=1")
    assert [group_of("", label) for label in labels] == ["nystrom", "custom-cur_abs", "cur_abs+masked-matched"]
    assert [mechanism_of(label) for label in labels] == ["nystrom", "custom-cur_abs", "cur_abs"]


def test_leaderboard_command_writes_pages_and_rejects_invalid_filters(call, tmp_path, monkeypatch, everything):
    monkeypatch.setattr("lra.leaderboard.__main__.pages", lambda: {tmp_path / "leaderboard.md": "a page"})
    monkeypatch.setattr("lra.leaderboard.__main__.all_lines", lambda **_: everything)
    assert call(leaderboard, "write=true")[0] is None and (tmp_path / "leaderboard.md").read_text() == "a page"
    options = parse(["task=listops", "protocol=two-layer", "since=2023", "sort=listops"])
    assert (options.filters.task, options.filters.since, options.sort) == ("listops", 2023, "listops")
    stop, out, _ = call(leaderboard, *qualify_filters(["task=listops", "status=verified", "sort=listops"]))
    assert stop is None and "cur_abs" in out and "HGRN2" not in out
    assert "no result has all of these properties" in call(leaderboard, "filters.since=2099")[0]
    assert "did you mean cur_abs?" in call(leaderboard, "card=cur_ab")[0]


def test_card_shows_results_costs_and_published_scores(everything):
    card = cards.card("cur_abs", everything)
    parts = ("# cur_abs", "209,802", "O(L c (D + E) + c³)", "papers' budget", "| 4,096 |", "CURformer T4")
    assert all(part in card for part in parts)
    assert "No runs of this mechanism are published." in cards.card("hedgehog", everything)
    # Mamba-2 at d = 64 has 128 channels of 64 states: 8,192 numbers. CUR has no recurrent state.
    assert "State of a layer: 8,192 numbers" in cards.card("mamba2", everything) and "State of a layer" not in card
    sdpa = cards.card("sdpa", everything)
    parts = ("masked pretraining", "Complexity: O(L² (D + E)) time, O(L) memory\n", "SOFT T12")
    assert all(part in sdpa for part in parts) and "| nystrom-optim.lr=0.001" in cards.card("nystrom", everything)
    mega = cards.card("mega", everything)
    parts = ("A whole layer: gated attention over a moving average", "O(L min(chunk, L) (z + hidden)) time\n")
    assert all(part in mega for part in parts)
    # Runs with another learning rate and checks that published behaviour fails.
    assert "papers' budget, optim.lr=0.001**: 36.18 ± 0.19" in cards.card("linear", everything)
    assert "passes 10 of 12" in cards.card("nystrom_original", everything)


def test_submission_line_is_reported_then_verified(tmp_path, monkeypatch, capfd):
    runs = [run for run in tables.read(tables.HOME / "paper").values() if run.record.label in ("cur_abs", "mean")]
    statement = Submission(
        name="mine", author="A. Name | <b>", hardware="a CPU", rates=[1e-4], link="https://a/b", protocol="paper",
        budget="paper", labels=["cur_abs"], checks=1, source="",
    )  # fmt: skip
    home = tmp_path / "mine"
    # One seed of the mechanism and one of the control.
    for i, git in ((0, "other"), (-1, "third")):
        runs[i] = runs[i]._replace(record=dataclasses.replace(runs[i].record, git=git))
    folder.write(home, runs, statement, None)
    (reported,) = submission_lines(home)
    assert (reported.status, reported.model) == ("reported", "cur_abs")
    assert "by A. Name \\| &lt;b>; protocol paper; a CPU; [https://a/b](https://a/b)" in reported.note
    assert "seeds and control of several commits: " in reported.note and reported.note.endswith("other, third")
    comparisons = []
    for (task, label), seeds in by_mechanism(runs).items():
        mean, n = fmean(verify.finished_scores(seeds)), len(seeds)
        fields = {"submitted": mean, "rerun": mean, "n": n, "rerun_n": 3, "tolerance": 1}
        comparisons.append(Comparison(task=task, label=label, **fields))
    # A verification without the control, then one of other scores.
    other = dataclasses.replace(comparisons[0], submitted=99, rerun=99)
    for some in (comparisons[:1], [other, comparisons[1]], comparisons):
        verify.write(home, Verification(author="B. Name", hardware="a CPU", comparisons=some))
        assert submission_lines(home)[0].status == ("verified" if some is comparisons else "reported")
    # A seed that diverged and one that collapsed.
    *others, last = [run for run in runs if run.record.label == "cur_abs"]
    collapsed = last._replace(record=dataclasses.replace(last.record, collapsed=True))
    failure = last._replace(record=dataclasses.replace(last.record, seed=9, status="diverged", test=None))
    runs = [*others, collapsed, failure]
    # Runs of a larger encoder on another task are a line of their own.
    for run in list(runs):
        larger = run.choices | {"model.layers": 4, "model.dim": 256}
        runs.append(run._replace(record=dataclasses.replace(run.record, task="text"), choices=larger))
    monkeypatch.setattr(tables, "read", lambda _: dict(enumerate(runs)))
    two_layers, larger = submission_lines(home)
    assert (two_layers.protocol, *two_layers.scores) == ("two-layer", "listops") and "text" not in two_layers.note
    assert two_layers.scores["listops"].text.endswith("(n = 3 (+1), collapsed 1/3)")
    assert (larger.protocol, *larger.scores) == ("s4-sized", "text") and "listops" not in larger.note
    # A damaged submission stops only the command that writes the pages.
    (home / "verified.json").write_text("{")
    assert measured_lines(tmp_path / "none", tmp_path, strict=False) == []
    assert "mine is left out of the leaderboard: " in capfd.readouterr().err
    assert_error("verified.json is not the verification", measured_lines, tmp_path / "none", tmp_path)


def test_published_line_counts_failed_and_collapsed_seeds(tmp_path):
    add_seeds(tmp_path, "linear", (20.0, 22.0))
    add(tmp_path, label="linear", seed=2, test=18.0, collapsed=True)
    diverged(tmp_path, 7, label="linear", seed=3)
    assert own_lines(tmp_path)[0].scores["listops"].text == "20.00 ± 2.00 (n = 3 (+1), collapsed 1/3)"
    # Two encoders of one label on a task are two lines.
    for layers in (4, 6):
        path = add(tmp_path, study=f"of-{layers}", label="sdpa", fingerprint=f"{layers}")
        (path.parent / "config.yaml").write_text(f"model.layers: {layers}\nmodel.dim: 256\n")
    assert len(own_lines(tmp_path)) == 3


def test_protocol_follows_configuration():
    small = {"model.layers": 2, "model.dim": 64}
    assert protocol_of({}) == protocol_of(small | {"pretrain.objective": "none"}) == "two-layer"
    assert protocol_of(small | {"pretrain.objective": "masked"}) == "pretrained"
    assert (protocol_of(small | {"model.dim": 256}), protocol_of(small | {"model.layers": 1})) == ("s4-sized", "other")
    assert year_of(["2025-12-31T00:00:00", "2026-01-01T00:00:00"]) == 2026 and year_of([]) is None


def test_every_mechanism_except_two_controls_names_its_reference():
    without = [name for name, mechanism in mechanisms().items() if not mechanism.reference]
    assert without == ["mean", "none"]


def test_card_shows_reach_of_probed_models(monkeypatch):
    rows = [SimpleNamespace(task="listops", label=label) for label in ("mean", "sdpa", "linear")]
    column = Column("locality", "locality: the smallest reach.", [Cell(), Cell(text="8"), Cell()])
    monkeypatch.setattr(cards, "published_studies", lambda: {"quick": rows, "board": []})
    monkeypatch.setattr(cards.extensions, "columns", lambda rows: [column] if rows else [])
    assert cards.reach("sdpa") == ["* Reach on listops (quick): k = 8, the smallest reach."]
    assert cards.reach("linear") == cards.reach("mamba") == []
