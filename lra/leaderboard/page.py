"""docs/leaderboard.md: the leaderboard with the remarks on its lines."""

from collections.abc import Sequence

from .lines import LeaderboardLine
from .table import markdown

INTRO = """# Leaderboard of the Long Range Arena

Accuracies that papers print, that this repository measured and that others
[submit](../CONTRIBUTING.md#submit-results). The table at
[google-research/long-range-arena](https://github.com/google-research/long-range-arena) ends in 2020. This page is
written by

```sh
python -m lra.leaderboard write=true
```

and the same lines are filtered and sorted on the command line, for example

```sh
python -m lra.leaderboard task=listops protocol=two-layer since=2023 sort=listops
```

On the site (`make docs`) a click on a column's name sorts the table, and the fields above it filter. **Compare lines
of one protocol only**: size and training matter more than the mechanism.

| protocol | training |
| --- | --- |
| two-layer | the encoder of Nystromformer: 2 layers, d 64, best validation checkpoint; this suite's protocol |
| official | sizes of the Long Range Arena: up to 6 layers, d 512, set for each task |
| s4-sized | 4 to 8 layers, longer training, settings for each task, as state-space models and MEGA |
| pretrained | the same model first trained to reconstruct the inputs of the task |
| other | anything else, or not printed |

| status | meaning |
| --- | --- |
| verified | measured in this repository, or a submission that somebody else reran |
| reported | a submission |
| quoted | printed in a paper, and read there |
| digest | printed in a paper, read in a summary of it |
| recalled | general knowledge that was not checked in the paper |

**mean of 5** is recomputed here over ListOps, Text, Retrieval, Image and Pathfinder, since printed averages do not
compare: some count a missing Path-X as 50, some as 0, some leave it out (column *averaged over*). Contradictory prints
of one model stand together; papers that repeat the same numbers share a line. On ListOps, with its 2,000 test examples,
a gap below three points [means nothing](results.md#when-a-gap-to-a-published-value-means-something).

## All results

<div id="leaderboard-filters"></div>
"""


def page(lines: Sequence[LeaderboardLine]) -> str:
    """Render docs/leaderboard.md."""
    return "\n".join([INTRO, markdown(lines), "", remarks(lines)])


def remarks(lines: Sequence[LeaderboardLine]) -> str:
    """List the notes on lines, each with the models that it is about."""
    by_note: dict[str, list[str]] = {}
    for line in lines:
        if line.note:
            sources = ", ".join(name for name, _ in line.sources)
            by_note.setdefault(line.note, []).append(f"{line.model} ({sources})")
    items = [f"* {', '.join(models)}: {note}." for note, models in by_note.items()]
    return "\n".join(["## Remarks", "", *items, ""])
