"""Duplicates: labels that compute the same function as another label, found by their outputs."""

import zlib
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from ..config.experiment import Experiment
from ..ops.attention_maps import uses_kernels
from ..train.optim import parameter_groups

# Difference relative to the largest output. Blocks compute in float64, some of them partly in float32.
ROUNDING = 1e-6


def find_duplicates(experiments: Mapping[str, Experiment]) -> dict[str, str]:
    """Find the labels whose blocks have, for the same weights and sequences, the outputs of an earlier label.

    Outputs are compared in evaluation and in training, on sequences of the task's length and shorter ones. Linear maps
    of the same name and shape have the same weights. The factors of learning rates and of weight decay must be equal
    too, since they change the training.

    Args:
        experiments: experiments of one task by label, with the same model sizes; experiments that cannot run on this
            machine are left out.

    Returns:
        The first label with the same outputs, for each label that is not itself the first.
    """
    duplicates: dict[str, str] = {}
    firsts: dict[str, list[Tensor]] = {}
    for label, experiment in experiments.items():
        # Outputs are compared on the CPU in float64, where kernels of a GPU do not run.
        needs_gpu = experiment.attn.get("requires") == "gpu" or uses_kernels(experiment.attn.get("impl") or "eager")
        if experiment.unavailable or needs_gpu:
            continue
        outputs = _outputs(experiment)
        # The first earlier label with the same outputs, if any.
        matches = [first for first in firsts if _same(outputs, firsts[first])]
        if matches:
            duplicates[label] = matches[0]
        else:
            firsts[label] = outputs
    return duplicates


@torch.no_grad()
def _outputs(experiment: Experiment) -> list[Tensor]:
    """The outputs for real tokens in evaluation and in training, and the factors of learning rates and weight decay."""
    length = experiment.task.length + (experiment.model.pool == "class")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)
        build = experiment.block_factory()
        block = _set_weights(build().double())
        # Sequences of full, three quarters and half length.
        generator = torch.Generator().manual_seed(1)
        x = torch.randn(3, length, experiment.model.dim, dtype=torch.float64, generator=generator)
        lengths = torch.tensor([length, length * 3 // 4, length // 2])
        mask = torch.arange(length) < lengths[:, None]

        # Both modes draw the same random numbers.
        outputs = []
        for is_training in (False, True):
            torch.manual_seed(2)
            block.train(is_training)
            out, *_ = block(x, mask)
            outputs.append(out[mask])

        # Factors of the learning rate and of the weight decay, which change the training.
        defaults = {"lr": 1.0, "weight_decay": 1.0}
        rules = []
        for group in parameter_groups(block, defaults):
            rule = defaults | group
            rules.append((rule["lr"], rule["weight_decay"]))
        outputs.append(torch.tensor(sorted(rules), dtype=torch.float64))
        return outputs


def _set_weights(block: nn.Module) -> nn.Module:
    """Set linear maps to values that depend on their name and shape only, and perturb all other parameters.

    The order in which a block draws its parameters then does not matter.
    """
    for name, parameter in block.named_parameters():
        generator = torch.Generator().manual_seed(zlib.crc32(name.encode()))
        noise = torch.randn(parameter.shape, dtype=torch.float64, generator=generator)
        module = block.get_submodule(name.rpartition(".")[0])
        if isinstance(module, nn.Linear):
            # Large enough for attention scores that are far from uniform.
            parameter.copy_(2 * noise * module.in_features**-0.5)
        else:
            parameter.add_(0.1 * noise.to(parameter.dtype))
    return block


def _same(outputs: list[Tensor], reference: list[Tensor]) -> bool:
    """Return whether all outputs are equal up to rounding."""
    for a, b in zip(outputs, reference, strict=True):
        if a.shape != b.shape:
            return False
        difference = (a - b).abs().max()
        if not difference <= ROUNDING * b.abs().max():
            return False
    return True
