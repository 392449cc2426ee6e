"""The table of docs/recurrent.md: recurrent mechanisms on short ListOps, at the learning rate of their search."""

from collections.abc import Mapping, Sequence
from functools import cache

from torch import nn

from ..config.compose import compose
from ..config.experiment import Experiment
from ..results.lr_search import SEARCH_SUFFIX, rate_order, trials
from ..results.score_cells import Comparison, gain_column
from ..results.summary import Row, Studies
from ..results.table import Cell, Table, frame, joined, number
from ..runs.reader import CONTROL

STUDY = "recurrent"
# The controls: no attention, and convolutions over 11 tokens.
CONTROLS = (CONTROL, "conv")
GAINS = tuple(f"gain over {label}" for label in CONTROLS)
HEAD = ("mechanism", "test", "n", *GAINS, "rate", "val at each rate", "parameters", "state")
ABOUT = (
    "Short ListOps (budget quick): test accuracy, mean ± sample standard deviation over n seeds; gain over the control "
    "without attention and over the convolutional control, ± standard error. ≈: no significant difference "
    "(p > 0.05, Welch's t-test with Holm's correction for the gains of the column). rate: learning rate with the best "
    "validation accuracy of seed 100; if several rates are up to one standard error of the difference (about 1.5 "
    "points) below the best, the one nearest to the middle of the grid. parameters: of the whole model. state: numbers "
    "that a layer carries from token to token in each direction."
)


def state_size(model: nn.Module) -> int | None:
    """Count the numbers that the first recurrent layer carries in one direction; None without a recurrence."""
    for module in model.modules():
        state = getattr(module, "state_size", None)
        if state is not None:
            return state
    return None


# A model is composed once for each label, although the page is rendered several times in a process.
@cache
def state_of(label: str) -> int | None:
    """Return the state size of the mechanism ``attn=<label>`` on ListOps."""
    return state_size(compose(Experiment, ["task=listops", f"attn={label}"]).meta_model)


def accuracies(by_rate: Mapping[str, Row]) -> str:
    """Format the validation accuracy of each learning rate of a search, the budget's and then the lowest rate first."""
    rates = sorted(by_rate, key=rate_order)
    return ", ".join(f"{rate}: {number(by_rate[rate].val)}" for rate in rates)


def _gains(rows: Sequence[Row], control: Row | None) -> list[Cell]:
    """Make the column of the gains over a control; cells are empty without it and for itself."""
    comparisons: list[Comparison | None] = []
    for row in rows:
        if control is None or row is control:
            comparisons.append(None)
        else:
            comparisons.append((row.scores, control.scores))
    return gain_column(comparisons)


def render(studies: Studies) -> str:
    """Render the table, best mechanism first; a sentence if there are no runs."""
    rows = [row for row in studies.get(STUDY, []) if row.test is not None]
    if not rows:
        return "No runs are published."
    # The search: rows of one seed at each learning rate.
    trial_rows = studies.get(f"{STUDY}{SEARCH_SUFFIX}", [])
    searched = {label: by_rate for (label, _), by_rate in trials(trial_rows).items()}
    controls = {row.label: row for row in rows if row.label in CONTROLS}

    # The best mechanism first.
    lines: list[list[Cell | str]] = []
    ordered = sorted(rows, key=lambda row: row.test or 0.0, reverse=True)
    gain_columns = [_gains(ordered, controls.get(label)) for label in CONTROLS]
    for row, *gains in zip(ordered, *gain_columns, strict=True):
        # The seeds of a mechanism share learning rate and size.
        rates = " / ".join(f"{lr:g}" for lr in sorted({r.lr for r in row.done if r.lr is not None}))
        params = joined(r.params for r in row.done)
        state = state_of(row.label)
        cells: list[Cell | str] = [row.label, row.cell, Cell.of(row.n, str), *gains, rates]
        cells += [accuracies(searched.get(row.label, {})), params, Cell.of(state, "{:,}".format)]
        lines.append(cells)
    table = Table(
        name=f"{STUDY}/listops",
        title="ListOps, recurrent mechanisms",
        about=ABOUT,
        cells=frame(HEAD, lines, [(STUDY, row.label, "") for row in ordered]),
        words=("mechanism", "rate", "val at each rate", "parameters", "state"),
    )
    return f"{table.about}\n\n{table.markdown()}"
