"""Labels that compute what another one computes, found by their outputs."""

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..config.experiment import Experiment

# Difference relative to the largest output. Blocks compute in float64, some of them partly in float32.
ROUNDING = 1e-6


def aliases(experiments: Mapping[str, Experiment]) -> dict[str, str]:
    """Find the labels whose blocks have, for the same weights and sequences, the outputs of an earlier label.

    Outputs are compared in evaluation and in training, on sequences of the task's length and shorter ones. Linear maps
    of the same name and shape have the same weights.

    Args:
        experiments: experiments of one task by label, with the same sizes of model; those that cannot run here are
            left out.

    Returns:
        The first label with the same outputs, for each label that is not itself the first.
    """
    duplicates: dict[str, str] = {}
    firsts: dict[str, list[Tensor]] = {}
    for label, experiment in experiments.items():
        if experiment.unavailable:
            continue
        outputs = _outputs(experiment)
        same = next((first for first in firsts if _same(outputs, firsts[first])), None)
        if same is None:
            firsts[label] = outputs
        else:
            duplicates[label] = same
    return duplicates


@torch.no_grad()
def _outputs(experiment: Experiment) -> list[Tensor]:
    """The outputs for real tokens, in evaluation and in training."""
    length = experiment.task.length + (experiment.model.pool == "class")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        # Sequences of full, three quarters and half length.
        block = _weighted(experiment.block_factory()().double())
        x = torch.randn(
            3, length, experiment.model.dim, dtype=torch.float64, generator=torch.Generator().manual_seed(1)
        )
        mask = torch.arange(length) < torch.tensor([length, length * 3 // 4, length // 2])[:, None]
        outputs = []
        for training in (False, True):
            torch.manual_seed(2)
            outputs.append(block.train(training)(x, mask)[0][mask])
        return outputs


def _weighted(block: nn.Module) -> nn.Module:
    """Give linear maps values that their name and shape decide, so that no order of drawing matters; move the rest."""
    for name, parameter in block.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
        module = block.get_submodule(name.rpartition(".")[0])
        if isinstance(module, nn.Linear):
            parameter.copy_(2 * noise * module.in_features**-0.5)  # attention scores far from uniform
        else:
            parameter.add_(0.1 * noise.to(parameter.dtype))
    return block


def _same(outputs: list[Tensor], reference: list[Tensor]) -> bool:
    pairs = zip(outputs, reference, strict=True)
    return all((a - b).abs().max() <= ROUNDING * b.abs().max() for a, b in pairs)
