"""Benchmark tables and figures, computed from synthetic records with known numbers."""

import dataclasses
import itertools

import pytest
from PIL import Image
from support.records import MB, add, diverged, made, row, texts, write_report

from lra.report import bench_figures, bench_tables
from lra.report.bench_groups import growth
from lra.results import bench_record, summary

OVER_N = [row(name, n, n**power) for n in (16, 32, 64) for name, power in (("naive", 2.0), ("cur_abs", 1.0))]
STEP = {"what": "step", "task": "text", "roofline_ms": None, "roofline_bytes": None, "flops": None}
STEPS = [
    row("naive", 64, 8.0, **STEP),
    row("cur_abs", 64, 2.0, **STEP, peak_bytes=16 * MB),
    row("psf", 64, None, **STEP, status="out of memory"),
]


def test_benchmark_tables_show_times_growth_and_roofline():
    over, details = bench_tables.tables([made(OVER_N)])
    assert over.head == ["mechanism", "16", "32", "64", "spread", "MB", "growth", "MB growth", "claimed"]
    counts = [dataclasses.replace(r, parameters=1234, state=64 if r.mechanism == "naive" else None) for r in OVER_N]
    with_sizes = bench_tables.tables([made(counts)])[0]
    assert with_sizes.head == [*over.head, "parameters", "state"]
    assert [texts(with_sizes)[name]["state"] for name in ("naive", "cur_abs")] == ["64", "-"]
    assert texts(with_sizes)["naive"]["parameters"] == "1,234"
    assert over.about.endswith("; spread: the largest over n; MB: at the largest n with a time.")
    assert with_sizes.about.endswith("; MB, parameters, state: at the largest n with a time.")
    naive = {"growth": "2.00", "64": "4,096", "spread": "150%", "MB": "64.0", "MB growth": "1.00"}
    assert naive.items() <= texts(over)["naive"].items() and texts(over)["cur_abs"]["growth"] == "1.00"
    # The details are of the longest of the three lengths.
    cells = texts(details)["cur_abs"]
    assert (cells["ms"], cells["samples"], cells["GB/s"], cells["TFLOP/s"]) == ("64.0", "3", "1", "2")
    assert (cells["roofline ms"], cells["x roofline"], cells["speed"], cells["memory"]) == ("16.0", "4", "64.0", "1.00")
    assert "status" not in details.head and "A machine, 2 threads" in over.about and "MALLOC_MMAP_MAX_=0" in over.about
    # The exponent of growth is of the last two doublings.
    assert growth([(4, 100.0), (8, 1.0), (16, 3.0), (32, 16.0)]) == pytest.approx(2)
    assert [growth([(8, 1.0), (16, 2.0)]), growth([(8, 1.0), (16, None), (32, 2.0)])] == [None, None]


def test_speed_and_memory_are_relative_to_reference():
    (table,) = bench_tables.tables([made(STEPS)])
    assert table.title.startswith("bench: step of text, training, batch 4, 2 heads of 32")
    cells = texts(table)["cur_abs"]
    assert (cells["speed"], cells["memory"]) == ("4", "0.25")
    assert (cells["paper: speed"], cells["paper: memory"]) == ("6.65", "0.09")
    assert texts(table)["psf"]["status"] == "out of memory" and texts(table)["psf"]["ms"] == "-"
    assert "GB/s" not in table.head and "relative to naive" in table.about
    inference = [dataclasses.replace(r, mode="inference") for r in STEPS]
    assert "paper: speed" not in bench_tables.tables([made(inference)])[0].head
    # With several paddings the reference is the fixed one.
    rows = [dataclasses.replace(STEPS[0], pad=pad, samples=(ms,)) for pad, ms in (("batch", 3.0), ("fixed", 12.0))]
    (table,) = bench_tables.tables([made(rows)])
    assert texts(table)["naive, batch padding"]["speed"] == "4"
    assert texts(table)["naive, fixed padding"]["speed"] == "1"


def test_only_steps_in_several_dtypes_share_a_table():
    rows = [STEPS[0], dataclasses.replace(STEPS[0], dtype="bf16", samples=(STEPS[0].ms / 2,))]
    choices = {"reference": STEPS[0].mechanism, "dtype": [STEPS[0].dtype, "bf16"], "clock": "cpu"}
    (table,) = bench_tables.tables([made(rows, choices=choices)])
    assert texts(table)[f"{STEPS[0].mechanism} in bf16"]["speed"] == "2" and "CPU time" in table.about
    attention = [dataclasses.replace(r, what="attention", task=None) for r in rows]
    assert len(bench_tables.tables([made(attention, choices=choices), made(STEPS)])) == 3


def test_many_mechanisms_give_one_table_and_one_figure(tmp_path):
    many = made([row(f"m{i}", n, 1.0) for i in range(31) for n in (16, 32)])
    (table,) = bench_tables.tables([many])
    assert len(table.rows()) == 31 and table.head[1:3] == ["16", "32"]
    assert len(bench_figures.pictures([many], tmp_path, {})) == 1


def test_missing_measurements_are_dashes_and_have_no_figure(tmp_path):
    lengths = (("a", 16), ("a", 32), ("b", 16))
    rows = [row(name, n, None, what="error", mode="inference", errors=(1e-7,)) for name, n in lengths]
    (table,) = bench_tables.tables([made(rows)])
    assert [texts(table)[name]["output, n = 32"] for name in "ab"] == ["1.0e-07", "-"]
    skipped = made([row("naive", n, None, status="left out: no time") for n in (16, 32)])
    over, details = bench_tables.tables([skipped])
    assert texts(over)["naive"]["16"] == "-" and texts(details)["naive"]["status"] == "left out: no time"
    assert bench_figures.pictures([skipped], tmp_path, {}) == []


def test_figures_are_written_and_not_blank(tmp_path):
    """Speed against accuracy is drawn once per study, from training times where there is no benchmark."""
    runs, out = tmp_path / "runs", tmp_path / "out"
    diverged(runs, 3, task="text", label="psf")
    for label, seed in itertools.product(("naive", "cur_abs"), range(2)):
        add(runs, task="text", label=label, seed=seed, test=60.0 + seed)
    studies = summary.collect(runs)[0]
    assert bench_figures.pictures([], out, studies) == []
    paths = bench_figures.pictures([made(OVER_N), made(STEPS)], out, studies)
    # Time over n, growth, bars, and speed against accuracy.
    assert len(paths) == len(set(paths)) == 4
    assert paths[-1].name == "speed-and-accuracy-paper-paper.png"
    assert {path.with_suffix(kind) for path in paths for kind in (".png", ".svg", ".pdf")} == set(out.iterdir())
    for path in paths:
        with Image.open(path) as image:
            assert min(image.size) > 100 and len(image.convert("L").getcolors(256)) > 10


def test_report_without_training_runs_shows_benchmarks(tmp_path, capfd):
    bench_record.save(made(STEPS), tmp_path)
    write_report(f"runs={tmp_path}")
    out = capfd.readouterr().out
    assert all(word in out for word in ("bench: step of text", "cur_abs", "out of memory", "6.65"))
    text, page = ((tmp_path / "report" / name).read_text() for name in ("report.md", "index.html"))
    assert "# Efficiency" in text and "| cur_abs | 64 | 2 |" in text and "out of memory" in text
    pictures = list((tmp_path / "report" / "efficiency").glob("*.png"))
    assert "out of memory" in page and page.count("<svg xmlns") == len(pictures)
    with pytest.raises(ValueError, match="no record of a training run"):
        write_report(f"runs={tmp_path}", "study=paper-paper")
