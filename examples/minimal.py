"""One task, one mechanism, a plain training loop: python examples/minimal.py [mechanism] [steps]

    mechanism   cur (default), softmax, mean (a control without attention)

Everything that `python -m lra.train` adds (seeds, resuming, records, schedules) is left out.
"""

if __name__ == "__main__":
    from lra.startup import wait_briefly

    wait_briefly()  # how torch's threads wait, a setting that is read when torch is imported

import sys
from functools import partial

import torch
import torch.nn.functional as F

from data_prep.temporal_order import TemporalOrder
from lra.attention.controls import Mean
from lra.attention.cur import CUR
from lra.attention.sdpa import SDPA
from lra.data.datamodule import TaskData
from lra.model.blocks import PreNorm
from lra.model.classifier import Classifier
from lra.model.embed import TokenEmbedding
from lra.model.multihead import Multihead

MECHANISMS = {"cur": partial(CUR, count=16), "softmax": SDPA, "mean": Mean}
LENGTH, DIM, HEADS, VOCAB = 128, 64, 2, 7


def build(mechanism: str) -> Classifier:
    """The suite's encoder, two pre-norm layers with mean pooling, around one mechanism."""
    mixer = partial(
        Multihead, MECHANISMS[mechanism], dim=DIM, heads=HEADS, head_dim=DIM // HEADS, length=LENGTH
    )  # projections to q, k, v (N,H,L,D), the mechanism, the output projection
    return Classifier(
        embed=TokenEmbedding(vocab=VOCAB, length=LENGTH, dim=DIM, dropout=0.0),
        block=lambda first: PreNorm(mixer, dim=DIM, hidden=128, dropout=0.0),
        layers=2,
        dim=DIM,
        length=LENGTH,
        vocab=VOCAB,
        hidden=128,
        outputs=4,
        mean_over="real",
    )


@torch.no_grad()
def accuracy(model: Classifier, data: TaskData, split: str) -> float:
    """Percent of a split's examples that are classified rightly."""
    right = [(model(batch.inputs, batch.mask).argmax(-1) == batch.label) for batch in data.evaluation_batches(split)]
    return 100 * torch.cat(right).float().mean().item()


def main(mechanism: str = "cur", steps: str = "300") -> float:
    if mechanism not in MECHANISMS:
        sys.exit(f"mechanism must be one of {', '.join(MECHANISMS)}, not {mechanism!r}")
    if not str(steps).isdigit():
        sys.exit(f"steps must be a whole number, not {steps!r}")
    torch.manual_seed(0)
    data = TaskData(
        source=TemporalOrder(length=LENGTH, train=20_000, val=500, test=500),
        root="data",
        length=LENGTH,
        limit=LENGTH,
        batch=40,
        eval_batch=250,
    )
    data.setup()  # drawn while it is read; a source that is stored would be prepared here
    model = build(mechanism)
    optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
    for step, batch in zip(range(1, int(steps) + 1), data.train_dataloader(), strict=False):
        loss = F.cross_entropy(model(batch.inputs, batch.mask), batch.label)
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        if step % 50 == 0:
            print(f"step {step}: loss {loss.item():.3f}, dev {accuracy(model.eval(), data, 'val'):.2f}")
            model.train()
    score = accuracy(model.eval(), data, "test")
    print(f"{mechanism}: test {score:.2f}")
    return score


if __name__ == "__main__":
    main(*sys.argv[1:])
