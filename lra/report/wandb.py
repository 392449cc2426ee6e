"""python -m lra.report logger=wandb: the report's tables and figures as a run and a Report of Weights & Biases."""

import hashlib
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from ..console import pip_install, plural
from ..integrations.wandb import MAX_TAG, open_run, reason, tell
from ..names import shorten, unique_names
from ..results import paper_values
from ..results.summary import Studies
from ..results.table import Chapter, Table
from ..runs.record import git_commit
from . import paper_tables
from .export import LEGEND, every_table

# Columns of W&B's grid, and the height of a panel.
GRID_WIDTH = 24
PANEL_HEIGHT = 10
# Keys of a seed's run -> titles of their charts.
CURVES = {"val": "validation score", "train_loss": "training loss"}
FOLDERS = ("figures", "efficiency", "board")
# Filter of the runs of single seeds.
SEED_RUNS = "JobType == 'train'"


def publish(
    options: Mapping[str, Any],
    studies: Studies,
    chapters: Sequence[Chapter],
    folder: Path,
    figures: Sequence[Path],
) -> None:
    """Send the tables, the figures and, if there is a connection, the Report.

    A later report of the same studies resumes this run. A failure of W&B is logged and stops nothing.

    Args:
        options: options of W&B: project, entity, tags, mode, timeout.
        studies: rows of each study by name.
        chapters: further chapters of the report.
        folder: folder of the report.
        figures: PNG files of the report.

    Raises:
        ValueError: as ``open_run`` does.
    """
    named_tables = tables(studies, chapters)
    pictures = _pictures(figures)
    name = f"report of {', '.join(studies)}"
    # A list distinguishes the studies "a, b" from "a" and "b".
    study_list = json.dumps(list(studies)).encode()
    # Arguments of wandb.init. A removed option has the default of ``integrations.wandb.logger.WandB``.
    init = {
        "project": options.get("project", "lra"),
        "entity": options.get("entity"),
        "tags": options.get("tags", []),
        "id": hashlib.sha256(study_list).hexdigest()[:16],
        "name": name,
        "group": "report",
        "job_type": "report",
        "config": {"studies": list(studies), "git": git_commit()},
    }
    mode = options.get("mode")
    run = open_run(init, folder=folder, mode=mode, timeout=options.get("timeout", 20), resume=True)
    if run is None:
        return
    try:
        _log_media(run, named_tables, pictures, folder)
        report = dashboard(run.project, run.entity or "", name, studies, named_tables, list(pictures))
        if report is None:
            tell(f"no dashboard, it needs a package that is not installed: {pip_install('wandb')}")
        elif run.offline:
            tell("the dashboard needs a login and a connection, skipped")
        else:
            tell(f"dashboard at {report.save().url}")
        run.finish()
    except Exception as error:
        tell(f"{reason(error)}; not everything is in W&B, the report on disk is complete")


def _pictures(figures: Sequence[Path]) -> dict[str, Path]:
    """List the figures of a report by their keys in the run."""
    paths = {}
    for name in FOLDERS:
        for path in sorted(figures):
            if path.parent.name == name:
                paths[f"{name}/{path.stem}"] = path

    # All keys begin with figures/, whatever the folder of the file.
    def simplify(name: str) -> str:
        _, _, file_name = name.partition("/")
        return f"figures/{file_name}"

    keys = unique_names(paths, simplify)
    return {keys[name]: path for name, path in paths.items()}


def _log_media(run, named_tables: dict[str, Table], pictures: dict[str, Path], folder: Path) -> None:
    """Log all tables and figures as one step."""
    import wandb

    media: dict[str, Any] = {}
    for key, table in named_tables.items():
        media[key] = wandb.Table(dataframe=numbers(table))
    for key, path in pictures.items():
        media[key] = wandb.Image(str(path), caption=path.stem)
    run.log(media)

    # An offline run has no address.
    address = run.url or folder / "wandb"
    tell(f"{plural(len(named_tables), 'table')} and {plural(len(pictures), 'picture')} in {address}")


def tables(studies: Studies, chapters: Sequence[Chapter]) -> dict[str, Table]:
    """List the tables of the report by their keys in the run; papers' tables only if they include our runs.

    Args:
        studies: rows of each study by name.
        chapters: further chapters of the report.
    """
    all_tables = every_table(studies, chapters)
    for table in paper_tables.tables(studies):
        studies_of_rows = table.cells.index.get_level_values("study")
        if any(studies_of_rows):
            all_tables.append(table)

    # A key is a variable of W&B's expressions, which know only letters, digits and "_".
    def simplify(name: str) -> str:
        return re.sub(r"\W", "_", name)

    keys = unique_names((table.name for table in all_tables), simplify)
    return {keys[table.name]: table for table in all_tables}


def numbers(table: Table) -> pd.DataFrame:
    """Return the numbers of a table, None for missing ones; a column without numbers keeps its texts."""
    frame = table.numbers()
    for name in frame.columns.difference(table.words):
        column = pd.to_numeric(frame[name], errors="coerce")
        if column.notna().any():
            frame[name] = column.astype(object).where(column.notna(), None)
    return frame


def dashboard(
    project: str,
    entity: str,
    run_name: str,
    studies: Studies,
    named_tables: dict[str, Table],
    pictures: list[str],
):
    """Build a Report of W&B without a connection; None if wandb_workspaces is not installed.

    Args:
        project: project of W&B.
        entity: entity of W&B, "" for the default one.
        run_name: name of the run that holds ``named_tables`` and ``pictures``.
        studies: rows of each study by name.
        named_tables: tables by their keys in the run.
        pictures: keys in the run.
    """
    try:
        import wandb_workspaces.reports.v2 as wr
    except ImportError:
        return None

    def grid(name: str, filters: str, *panels, groupby: Sequence[str] = ()) -> wr.PanelGrid:
        """Put panels side by side, which show the runs that pass the filters."""
        width = GRID_WIDTH // len(panels)
        for i, panel in enumerate(panels):
            panel.layout = wr.Layout(x=i * width, y=0, w=width, h=PANEL_HEIGHT)
        runs = wr.Runset(
            project=project,
            entity=entity,
            name=name,
            filters=filters,
            groupby=list(groupby),
        )
        return wr.PanelGrid(runsets=[runs], panels=list(panels))

    # Tables of the report's own run.
    report_run = f"Name == {run_name!r}"
    blocks: list[Any] = [wr.P(LEGEND), wr.TableOfContents()]
    for key, table in named_tables.items():
        panel = wr.WeavePanelSummaryTable(table_name=key)
        blocks += [wr.H2(table.title), wr.P(table.about), grid(run_name, report_run, panel)]

    # Speed and accuracy of all seeds.
    points = wr.ScatterPlot(
        x=wr.SummaryMetric("record.step_ms"),
        y=wr.SummaryMetric("test"),
        z=wr.SummaryMetric("record.params"),
        log_x=True,
    )
    blocks += [wr.H2("Speed and accuracy"), grid("every seed", SEED_RUNS, points)]

    # Curves of each study and task, averaged over the seeds of a mechanism.
    for study, rows in studies.items():
        blocks.append(wr.H2(study))
        for task in dict.fromkeys(row.task for row in rows):
            lines = []
            for key, title in CURVES.items():
                line = wr.LinePlot(title=title, x="Step", y=[key], groupby_rangefunc="stddev")
                lines.append(line)
            charts = grid(f"{study}, {task}", _filters(study, task), *lines, groupby=["Group"])
            blocks += [wr.H3(task), charts]
    if pictures:
        browser = wr.MediaBrowser(media_keys=pictures)
        blocks += [wr.H2("Pictures"), grid(run_name, report_run, browser)]

    sources = _sources(studies)
    if sources:
        blocks += [wr.H2("Published values"), wr.MarkdownBlock(sources)]
    description = "Computed from the records on disk."
    return wr.Report(project=project, entity=entity, title=run_name, description=description, blocks=blocks)


def _filters(study: str, task: str) -> str:
    """Select the runs of the seeds of a task by their tags."""
    # Tags are shortened in the same way when a seed is logged.
    study_tag = shorten(study, MAX_TAG)
    task_tag = shorten(task, MAX_TAG)
    return f"{SEED_RUNS} and Tags in [{study_tag!r}] and Tags in [{task_tag!r}]"


def _sources(studies: Studies) -> str:
    """Format links to the papers, and the notes on their values, as Markdown; "" without published values."""
    values = []
    for rows in studies.values():
        for row in rows:
            values += row.published
    if not values:
        return ""
    links = dict.fromkeys(f"- [{value.paper}]({value.link})" for value in values)
    lines = [*links, "", *paper_values.notes(values)]
    return "\n".join(lines)
