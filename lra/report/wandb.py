"""python -m lra.report logger=wandb: the report's tables and figures as a run and a Report of Weights & Biases."""

import hashlib
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..console import pip_install
from ..integrations.wandb.run import first_line, open_run, tell
from ..runs.record import git_commit
from . import paper_tables, published
from .export import LEGEND, every_table
from .summary import Row
from .table import Chapter, Table

WIDTH = 24  # columns of W&B's grid
CURVES = (("val", "dev"), ("train_loss", "training loss"))


def publish(
    options: Mapping[str, Any], studies: dict[str, list[Row]], chapters: Sequence[Chapter], folder: Path
) -> None:
    """Send the tables, the figures in ``folder`` and, if there is a connection, the Report.

    The same studies are sent to the same run again. A failure of W&B is logged in one line.

    Args:
        options: options of W&B: project, entity, tags, mode, timeout.
        studies: their rows by name.
        chapters: further chapters of the report.
        folder: folder of the report.

    Raises:
        ValueError: as ``open_run`` does.
    """
    found = tables(studies, chapters)
    drawn = [path for place in ("figures", "efficiency", "board") for path in sorted(folder.glob(f"{place}/*.png"))]
    pictures = {f"figures/{path.stem}": path for path in drawn}
    name = f"report of {', '.join(studies)}"
    about = {key: options[key] for key in ("project", "entity", "tags")}
    about |= {"id": hashlib.sha256(name.encode()).hexdigest()[:16], "name": name, "group": "report"}
    about |= {"job_type": "report", "config": {"studies": list(studies), "git": git_commit()}}
    run = open_run(about, folder=folder, mode=options["mode"], timeout=options["timeout"], resume=True)
    if run is None:
        return
    try:
        import wandb

        media = {key: wandb.Table(dataframe=numbers(table)) for key, table in found.items()}
        run.log(media | {key: wandb.Image(str(path), caption=path.stem) for key, path in pictures.items()})
        many = f"{len(found)} tables and {len(pictures)} picture{'s' if len(pictures) != 1 else ''}"
        tell(f"{many} in {run.url or folder / 'wandb'}")
        report = dashboard(run.project, run.entity or "", name, studies, found, list(pictures))
        if report is None:
            tell(f"no dashboard, it needs a package that is not installed: {pip_install('wandb')}")
        elif run.offline:
            tell("the dashboard needs a login and a connection, skipped")
        else:
            tell(f"dashboard at {report.save().url}")
        run.finish()
    except Exception as error:
        tell(f"{first_line(error)}; not everything is in W&B, the report on disk is complete")


def tables(studies: dict[str, list[Row]], chapters: Sequence[Chapter]) -> dict[str, Table]:
    """List the tables of the report by their keys in the run; of the papers' tables those with lines of ours.

    Args:
        studies: their rows by name.
        chapters: further chapters of the report.
    """
    found = every_table(studies, chapters)
    found += [table for table in paper_tables.tables(studies) if any(study for study, *_ in table.cells.index)]
    return {re.sub(r"\W", "_", table.name): table for table in found}  # W&B's expressions know no other letters


def numbers(table: Table) -> pd.DataFrame:
    """Give the numbers of a table with None where there is none; a column without any keeps its texts."""
    frame = table.numbers()
    for name in frame.columns.difference(table.words):
        column = pd.to_numeric(frame[name], errors="coerce")
        if column.notna().any():
            frame[name] = column.astype(object).where(column.notna(), None)
    return frame


def dashboard(
    project: str, entity: str, run: str, studies: dict[str, list[Row]], tables: dict[str, Table], pictures: list[str]
):
    """Build a Report of W&B without a connection; None if wandb_workspaces is not installed.

    Args:
        project: project of W&B.
        entity: entity of W&B, "" for the default one.
        run: name of the run that holds ``tables`` and ``pictures``.
        studies: their rows by name.
        tables: tables by their keys in the run.
        pictures: keys in the run.
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
    for key, table in tables.items():
        blocks += [wr.H2(table.title), wr.P(table.about), grid(run, ours, wr.WeavePanelSummaryTable(table_name=key))]
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
    if values := list(dict.fromkeys(value for rows in studies.values() for row in rows for value in row.published)):
        links = dict.fromkeys(f"- [{value.paper}]({value.link})" for value in values)
        blocks += [wr.H2("Published values"), wr.MarkdownBlock("\n".join([*links, "", *published.notes(values)]))]
    about = "Computed from the records on disk."
    return wr.Report(project=project, entity=entity, title=run, description=about, blocks=blocks)
