"""python -m lra.report logger=wandb: the report's tables and figures as a run and a Report of Weights & Biases."""

import hashlib
from collections import defaultdict
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import pandas as pd

from ..console import pip_install
from ..integrations.wandb.run import first_line, open_run, tell
from ..runs.record import RunRecord, git_commit
from . import paper_tables, published
from .export import LEGEND
from .published import PrintedValue
from .summary import Row, summarise

SELECTION = "curformer-table-4"  # the published table of ways to select rows and columns
WIDTH = 24  # columns of W&B's grid
CURVES = (("val", "dev"), ("train_loss", "training loss"))


def publish(
    options: Mapping[str, Any], studies: dict[str, list[Row]], records: Iterable[RunRecord], folder: Path
) -> None:
    """Send the tables, the figures in ``folder`` and, if there is a connection, the Report.

    The same studies are sent to the same run again. A failure of W&B is logged in one line.

    Args:
        options: options of W&B: project, entity, tags, mode, timeout.
        studies: their rows by name.
        records: records of the runs.
        folder: folder of the report.

    Raises:
        ValueError: as ``open_run`` does.
    """
    frames = tables(studies, records)
    drawn = [path for place in ("figures", "efficiency") for path in sorted(folder.glob(f"{place}/*.png"))]
    pictures = {f"figures/{path.stem}": path for path in drawn}
    name = f"report of {', '.join(studies)}"
    run = open_run(
        {
            "project": options["project"],
            "entity": options["entity"],
            "id": hashlib.sha256(name.encode()).hexdigest()[:16],
            "name": name,
            "group": "report",
            "job_type": "report",
            "tags": list(options["tags"]),
            "config": {"studies": list(studies), "git": git_commit()},
        },
        folder=folder,
        mode=options["mode"],
        timeout=options["timeout"],
        resume=True,
    )
    if run is None:
        return
    try:
        import wandb

        media = {
            key: wandb.Table(columns=list(f), data=f.values.tolist(), allow_mixed_types=True)
            for key, f in frames.items()
        }
        run.log(media | {key: wandb.Image(str(path), caption=path.stem) for key, path in pictures.items()})
        many = f"{len(frames)} tables and {len(pictures)} picture{'s' if len(pictures) != 1 else ''}"
        tell(f"{many} in {run.url or folder / 'wandb'}")
        report = dashboard(run.project, run.entity or "", name, studies, list(frames), list(pictures))
        if report is None:
            tell(f"no dashboard, it needs a package that is not installed: {pip_install('wandb')}")
        elif run.offline:
            tell("the dashboard needs a login and a connection, skipped")
        else:
            tell(f"dashboard at {report.save().url}")
        run.finish()
    except Exception as error:
        tell(f"{first_line(error)}; not everything is in W&B, the report on disk is complete")


def tables(studies: dict[str, list[Row]], records: Iterable[RunRecord]) -> dict[str, pd.DataFrame]:
    """Make the tables of the run by their keys, with None for missing numbers; empty tables are left out.

    Args:
        studies: their rows by name.
        records: records of the runs.
    """
    (selection,) = (table for table in paper_tables.tables(studies) if table.name == SELECTION)
    frames = {
        "accuracy": accuracy(studies),
        "selection": selection.numbers() if any(study for study, *_ in selection.cells.index) else pd.DataFrame(),
        "efficiency": efficiency(r for r in records if r.study in studies),
        "published": pd.DataFrame(
            [[v.source, v.model, v.task, v.value, v.std, v.note, v.paper, v.table, v.link] for v in beside(studies)],
            columns=["source", "model", "task", "value", "std", "note", "paper", "table", "link"],
        ),
    }
    return {key: f.astype(object).where(f.notna(), None) for key, f in frames.items() if len(f)}


def accuracy(studies: dict[str, list[Row]]) -> pd.DataFrame:
    """Make a line for each study, task and mechanism, with a column for each paper that prints numbers for them."""
    lines = []
    for study, rows in studies.items():
        for row in rows:
            values = row.published
            ours = {"study": study, "task": row.task, "mechanism": row.label, "test": row.test, "std": row.std}
            ours |= {"n": row.n, "lost": row.lost, "dev": row.dev, "constant": row.constant_baseline}
            printed = {value.source: value.number for value in values}
            about = {"links": " ".join(dict.fromkeys(value.link for value in values)), **row.facts}
            lines.append((ours, printed, about | {"remarks": "; ".join(row.remarks)}))
    papers = dict.fromkeys(sorted({source for _, printed, _ in lines for source in printed}))
    return pd.DataFrame([ours | papers | printed | about for ours, printed, about in lines])


def efficiency(records: Iterable[RunRecord]) -> pd.DataFrame:
    """Summarise step time (median), peak memory (largest) and parameters of the finished seeds, by device.

    A copy of a result counts once.
    """
    groups: dict[tuple, dict[Path, RunRecord]] = defaultdict(dict)
    for i, r in enumerate(records):
        if r.status == "done":
            groups[r.study, r.task, r.label, r.device][Path(str(i))] = r
    lines = []
    for key, runs in sorted(groups.items()):
        row = summarise(runs)
        done = list(row.runs.values())
        peak = max((r.peak_bytes / 2**20 for r in done if r.peak_bytes), default=None)
        lines.append([*key, len(done), row.ms, peak, done[0].params, row.test])
    head = ["study", "task", "mechanism", "device", "n", "ms a step", "peak MiB", "params", "test"]
    return pd.DataFrame(lines, columns=head)


def beside(studies: dict[str, list[Row]]) -> list[PrintedValue]:
    """List every published value that is shown beside one of ours."""
    values = (v for rows in studies.values() for row in rows for v in row.published)
    return list(dict.fromkeys(values))


def dashboard(
    project: str, entity: str, run: str, studies: dict[str, list[Row]], tables: list[str], pictures: list[str]
):
    """Build a Report of W&B without a connection; None if wandb_workspaces is not installed.

    Args:
        project: project of W&B.
        entity: entity of W&B, "" for the default one.
        run: name of the run that holds ``tables`` and ``pictures``.
        studies: their rows by name.
        tables, pictures: keys in the run.
    """
    try:
        import wandb_workspaces.reports.v2 as wr
    except ImportError:
        return None

    def grid(name: str, filters: str, *panels, groupby: tuple[str, ...] = ()) -> wr.PanelGrid:
        for i, panel in enumerate(panels):
            width = WIDTH // len(panels)
            panel.layout = wr.Layout(x=i * width, y=0, w=width, h=10)
        runs = wr.Runset(project=project, entity=entity, name=name, filters=filters, groupby=list(groupby))
        return wr.PanelGrid(runsets=[runs], panels=list(panels))

    ours, seeds = f"Name == {run!r}", "JobType == 'train'"
    blocks = [wr.P(LEGEND), wr.TableOfContents()]
    for key in tables:
        blocks += [wr.H2(key.capitalize()), grid(run, ours, wr.WeavePanelSummaryTable(table_name=key))]
    speed, score = wr.SummaryMetric("record.step_ms"), wr.SummaryMetric("test")
    points = wr.ScatterPlot(x=speed, y=score, z=wr.SummaryMetric("record.params"), log_x=True)
    blocks += [wr.H2("Speed and accuracy"), grid("every seed", seeds, points)]
    for study, rows in studies.items():
        blocks.append(wr.H2(study))
        for task in dict.fromkeys(row.task for row in rows):
            filters = f"{seeds} and Tags in [{study!r}] and Tags in [{task!r}]"
            lines = [wr.LinePlot(title=title, x="Step", y=[key], groupby_rangefunc="stddev") for key, title in CURVES]
            blocks += [wr.H3(task), grid(f"{study}, {task}", filters, *lines, groupby=("Group",))]
    if pictures:
        blocks += [wr.H2("Pictures"), grid(run, ours, wr.MediaBrowser(media_keys=pictures))]
    if values := beside(studies):
        links = dict.fromkeys(f"- [{value.paper}]({value.link})" for value in values)
        blocks += [wr.H2("Published values"), wr.MarkdownBlock("\n".join([*links, "", *published.notes(values)]))]
    about = "Computed from the records on disk."
    return wr.Report(project=project, entity=entity, title=run, description=about, blocks=blocks)
