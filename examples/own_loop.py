"""Train your own model on a task of the Long Range Arena: python examples/own_loop.py [task] [budget] [steps]

Nothing but `load_dataset` comes from this package: the model and the training loop are plain torch. The model takes one
sequence of token ids per example, so the task may not be retrieval (pairs of texts) or adding (real numbers).
"""

import sys

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.data import DataLoader

from lra import load_dataset


class MeanOfEmbeddings(nn.Module):
    """A classifier of the mean token embedding, the simplest model that uses tokens and mask."""

    def __init__(self, vocab_size: int, num_outputs: int, dim: int = 64):
        super().__init__()
        self.embed = nn.Embedding(vocab_size, dim)
        self.head = nn.Sequential(nn.Linear(dim, dim), nn.GELU(), nn.Linear(dim, num_outputs))

    def forward(self, tokens: Tensor, mask: Tensor) -> Tensor:
        weights = mask / mask.sum(-1, keepdim=True)  # (B,L)
        mean = (self.embed(tokens) * weights[..., None]).sum(1)  # (B,dim)
        return self.head(mean)


@torch.no_grad()
def accuracy(model: nn.Module, loader: DataLoader) -> float:
    """Compute the accuracy in percent."""
    num_correct = 0
    for tokens, mask, label in loader:
        num_correct += (model(tokens, mask).argmax(-1) == label).sum().item()
    return 100 * num_correct / len(loader.dataset)


def main(task: str = "listops", budget: str = "quick", steps: str = "200") -> float:
    torch.manual_seed(0)
    # Generated on the first call, and read from the cache afterwards.
    train = load_dataset(task, split="train", budget=budget)
    val = load_dataset(task, split="val", budget=budget)
    train_loader = DataLoader(train, batch_size=32, shuffle=True, collate_fn=train.collate)
    val_loader = DataLoader(val, batch_size=256, collate_fn=val.collate)

    model = MeanOfEmbeddings(train.metadata.vocab_size, train.metadata.num_outputs)
    optimiser = torch.optim.AdamW(model.parameters(), lr=2e-3)
    step = 0
    while step < int(steps):
        for tokens, mask, label in train_loader:
            loss = F.cross_entropy(model(tokens, mask), label)
            optimiser.zero_grad()
            loss.backward()
            optimiser.step()
            step += 1
            if step == int(steps):
                break
    score = accuracy(model, val_loader)
    print(f"{train.metadata.name}: validation accuracy {score:.2f} after {steps} steps")
    return score


if __name__ == "__main__":
    main(*sys.argv[1:])
