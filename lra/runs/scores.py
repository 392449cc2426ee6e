"""The test scores of the seeds of a run, beside those of the control, in a line."""

from pathlib import Path
from statistics import mean, stdev

from ..config.quoting import command_line, override
from . import record, typed_json

CONTROL = "mean"  # label of the mechanism without attention: every query gets the mean of the values


def summary(home: Path) -> str | None:
    """Describe the finished seeds of one configuration: mean, sample standard deviation, number, gain over the control.

    Args:
        home: folder of the seeds, runs/<study>/<task>/<label>. The control is the one beside it, if it has a finished
            seed of the same protocol and budget.

    Returns:
        "listops cur_abs: test 35.60 ± 0.14 (n = 5), +17.60 over mean (n = 5)"; None without a finished seed.
    """
    done = _done(home)
    if not done:
        return None
    one, tests = done[0], [r.test for r in done]
    spread = f" ± {stdev(tests):.2f}" if len(tests) > 1 else ""
    line = f"{one.task} {one.label}: test {mean(tests):.2f}{spread} (n = {len(tests)})"
    beside = _done(home.parent / CONTROL) if one.label != CONTROL else []
    if control := [r.test for r in beside if (r.protocol, r.budget) == (one.protocol, one.budget)]:
        line += f", {mean(tests) - mean(control):+.2f} over {CONTROL} (n = {len(control)})"
    return line


def report_command(study: str, runs: Path) -> str:
    """The command that prints the tables of a study."""
    overrides = [override("study", study)]
    if runs != Path("runs"):
        overrides.append(override("runs", runs))
    return command_line("report", *overrides)


def _done(home: Path) -> list[record.RunRecord]:
    records, _ = typed_json.scan(home, record.NAME, record.load)
    return [r for r in records.values() if r.status == "done"]
