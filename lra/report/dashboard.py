"""A Report of W&B: tables and pictures of the published run, and the curves of the seeds."""

from . import published, sheets
from .summary import Row
from .text import LEGEND

WIDTH = 24  # columns of W&B's grid
CURVES = (("val", "dev"), ("train_loss", "training loss"))


def dashboard(
    project: str, entity: str, run: str, studies: dict[str, list[Row]], tables: list[str], pictures: list[str]
):
    """Built without a connection; None where wandb_workspaces is not installed.

    run: name of the run that holds ``tables`` and ``pictures``, by their keys. entity: "" for the default one.
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
    blocks += [wr.H2("Speed and accuracy")]
    speed, score = wr.SummaryMetric("record.step_ms"), wr.SummaryMetric("test")
    blocks += [
        grid("every seed", seeds, wr.ScatterPlot(x=speed, y=score, z=wr.SummaryMetric("record.params"), log_x=True))
    ]
    for study, rows in studies.items():
        blocks.append(wr.H2(study))
        for task in dict.fromkeys(row.task for row in rows):
            filters = f"{seeds} and Tags in [{study!r}] and Tags in [{task!r}]"
            lines = [wr.LinePlot(title=title, x="Step", y=[key], groupby_rangefunc="stddev") for key, title in CURVES]
            blocks += [wr.H3(task), grid(f"{study}, {task}", filters, *lines, groupby=("Group",))]
    if pictures:
        blocks += [wr.H2("Pictures"), grid(run, ours, wr.MediaBrowser(media_keys=pictures))]
    notes = published.notes(sheets.shown(studies))
    links = dict.fromkeys(f"- [{value.paper}]({value.link})" for value in sheets.shown(studies))
    if notes:
        blocks += [wr.H2("Published values"), wr.MarkdownBlock("\n".join([*links, "", *notes]))]
    return wr.Report(
        project=project, entity=entity, title=run, description="Computed from the records on disk.", blocks=blocks
    )
