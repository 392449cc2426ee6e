"""Add a mechanism and compare it with a control: python examples/add_mechanism.py [steps] [mechanism ...]

The control ``mean`` attends to all tokens equally. ``lra train`` adds seeds, resuming, records and schedules.
"""

import sys
from functools import partial

import matplotlib.pyplot as plt
import torch

from data_prep.temporal_order import TemporalOrder
from lra.attention.base import Attention
from lra.attention.controls import Mean
from lra.attention.sdpa import SDPA
from lra.data.datamodule import TaskData
from lra.model.blocks import PreNorm
from lra.model.classifier import Classifier
from lra.model.embed import TokenEmbedding
from lra.model.multihead import Multihead


class EfficientAttention(Attention):
    """Compute softmax(q) (softmax(k)ᵀ v) in O(L D E) time (Shen et al. 2021)."""

    def forward(self, q, k, v, mask=None):  # q, k (N,H,L,D), v (N,H,L,E), mask (N,L) -> (N,H,L,E)
        if mask is not None:
            k = k.masked_fill(~mask[:, None, :, None], torch.finfo(k.dtype).min)
        context = k.softmax(dim=2).mT @ v  # (N,H,D,E)
        return q.softmax(dim=-1) @ context


MECHANISMS = {"efficient": EfficientAttention, "sdpa": SDPA, "mean": Mean}
SIZES = {"dim": 64, "length": 128}
ENCODER = {"layers": 2, "vocab": 7, "hidden": 128, "outputs": 4, "mean_over": "real", **SIZES}


def make_block(mechanism: type[Attention], first: bool) -> PreNorm:
    """Build a pre-norm layer with projections around the mechanism. Layers with a memory (Luna) use ``first``."""
    return PreNorm(partial(Multihead, mechanism, heads=2, head_dim=32, **SIZES), dim=64, hidden=128, dropout=0.0)


@torch.no_grad()
def accuracy(model: Classifier, data: TaskData, split: str) -> float:
    """Compute the accuracy on a split in percent."""
    model.eval()
    correct = [model(batch.inputs, batch.mask).argmax(-1) == batch.label for batch in data.evaluation_batches(split)]
    model.train()
    return 100 * torch.cat(correct).float().mean().item()


def main(steps: str = "200", *mechanisms: str) -> dict[str, float]:
    source = TemporalOrder(length=128, train=20_000, val=500, test=500)
    scores = {}
    for mechanism in mechanisms or MECHANISMS:
        torch.manual_seed(0)
        data = TaskData(source=source, root="data", length=128, limit=128, batch=40, eval_batch=250)
        data.setup()
        embed = TokenEmbedding(vocab=7, dropout=0.0, **SIZES)
        model = Classifier(embed=embed, block=partial(make_block, MECHANISMS[mechanism]), **ENCODER)
        optimiser = torch.optim.AdamW(model.parameters(), lr=1e-3, weight_decay=0.0)
        curve = {0: accuracy(model, data, "val")}
        for step, batch in zip(range(1, int(steps) + 1), data.train_dataloader(), strict=False):
            loss = torch.nn.functional.cross_entropy(model(batch.inputs, batch.mask), batch.label)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            if step % 25 == 0:
                curve[step] = accuracy(model, data, "val")
        plt.plot(list(curve), list(curve.values()), "o-", label=mechanism)
        scores[mechanism] = accuracy(model, data, "test")
        print(f"{mechanism}: test accuracy {scores[mechanism]:.2f}")
    plt.gca().set(xlabel="step", ylabel="validation accuracy (%)")
    plt.legend()
    plt.savefig("add_mechanism.png", dpi=150)
    return scores


if __name__ == "__main__":
    main(*sys.argv[1:])
