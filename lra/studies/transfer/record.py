"""The record of a transfer, transfer.json, and the comparison of the mechanisms layer by layer.

N sequences, H heads, L tokens, E value size. All models are in evaluation mode, and no gradients are computed.
"""

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

import torch
from annotated_types import MinLen
from pydantic import ConfigDict, NonNegativeInt
from torch import Tensor, nn
from torch.nn.utils.rnn import pad_sequence

from ...data.datamodule import Batch
from ...io import typed_json
from ...io.typed_json import FolderName, Percent
from ...maps.maps import call_mechanism, matrix
from ...model.classifier import Classifier
from ...ops.metrics import Metric
from ..qkv import MechanismCall, mechanisms, record_calls

# Not record.json, which is the record of a training.
FILE = "transfer.json"


@dataclass(frozen=True)
class Layer:
    """The distance between the outputs (N,H,L,E) of one layer's mechanism over the real tokens.

    O is the output of the run's mechanism, which is called exact, O' the output of the other one. Both get the queries,
    keys and values of the run's model. For the two ``stack_`` values each mechanism runs in its own model, so errors of
    earlier layers add up.

    Args:
        path: path of the mechanism in the model.
        mean_abs, stack_mean_abs: mean |O - O'|, the measure of CURformer's ViT study.
        relative, stack_relative: ||O - O'||_F / ||O||_F.
        spectrum: singular values of the map of the run's mechanism, the largest first, averaged over examples and
            heads; zero beyond the number of real tokens; empty if none were computed.
    """

    # NaN and infinity are valid distances: an approximation may overflow.
    __pydantic_config__ = ConfigDict(strict=True)
    path: str
    mean_abs: float
    relative: float
    stack_mean_abs: float
    stack_relative: float
    spectrum: list[float]


@dataclass(frozen=True, kw_only=True)
class TransferRecord:
    """One seed of a run with another mechanism. Scores in percent.

    Args:
        source, label: label of the run, and label of the configuration with the other mechanism.
        exact_val, exact_test: scores of the run, with its own mechanism.
        direct_val, direct_test: scores after the swap, before fine-tuning.
        tuned_val, tuned_test: scores after at most ``steps`` steps of fine-tuning, at the best evaluation on the
            validation set; None without fine-tuning or if it diverged.
        attn: options of the other mechanism, flat.
        examples, spectrum_examples: number of validation examples for the comparison of layers, and for its spectra.
    """

    __pydantic_config__ = typed_json.STRICT
    kind: str = "transfer"
    study: FolderName
    task: FolderName
    protocol: FolderName
    budget: FolderName
    source: FolderName
    label: FolderName
    seed: NonNegativeInt
    fingerprint: str
    git: str | None
    attn: dict[str, Any]
    metric: Metric
    constant_baseline: Percent
    n_val: NonNegativeInt
    n_test: NonNegativeInt
    exact_val: Percent
    exact_test: Percent
    direct_val: Percent
    direct_test: Percent
    steps: NonNegativeInt
    tuned_val: Percent | None
    tuned_test: Percent | None
    status: Literal["done", "diverged"]
    examples: NonNegativeInt
    spectrum_examples: NonNegativeInt
    layers: Annotated[list[Layer], MinLen(1)]
    device: str

    @property
    def token_budget(self) -> int | None:
        """The token budget of the other mechanism: its ``count`` or ``landmarks``; None without one."""
        return self.attn.get("count", self.attn.get("landmarks"))


def load(path: Path) -> TransferRecord:
    """Read a record.

    Raises:
        ValueError: the file is not a record of a transfer, or belongs to another seed.
    """
    transfer = typed_json.parse(TransferRecord, path, "a record of a transfer", "delete it to repeat the measurement")
    typed_json.check_seed(path, transfer.seed)
    return transfer


def sums(exact: Tensor, other: Tensor, real: Tensor) -> Tensor:
    """Compute the sums of |O - O'|, |O - O'|², |O|² and 1 over the entries of real tokens: float64 (4,) on the CPU.

    Args:
        exact: O (N,H,L,E).
        other: O' (N,H,L,E).
        real: entries of real tokens, see ``MechanismCall.real``.
    """
    difference = (exact.double() - other.double()) * real
    exact = exact.double() * real
    parts = (
        difference.abs().sum(),
        difference.square().sum(),
        exact.square().sum(),
        real.expand_as(exact).sum(),
    )
    return torch.stack([part.cpu().double() for part in parts])


@torch.no_grad()
def compare_layers(
    exact: Classifier, other: Classifier, batches: Iterable[Batch], spectrum_examples: int = 0
) -> list[Layer]:
    """Compare the outputs of the mechanisms that have the same path in two models.

    Args:
        exact, other: the run's model, and the model with the other mechanism.
        batches: examples.
        spectrum_examples: number of examples for whose exact maps singular values are computed; a pair of texts is one.

    Raises:
        ValueError: a mechanism gets sequences of other lengths in the two models, such as chunks.
    """
    exact_mechanisms = mechanisms(exact)
    other_mechanisms = mechanisms(other)
    paths = [path for path in exact_mechanisms if path in other_mechanisms]
    # The four sums of ``sums`` over all batches.
    single = {path: torch.zeros(4, dtype=torch.float64) for path in paths}
    stacked = {path: torch.zeros(4, dtype=torch.float64) for path in paths}
    spectra: dict[str, list] = {path: [] for path in paths}
    # Both models must call their mechanisms once per tower, or once for all of them.
    encode_separately = exact.encode_separately or other.encode_separately
    num_missing = spectrum_examples
    for batch in batches:
        exact_calls = record_calls(exact, batch, encode_separately)
        other_calls = record_calls(other, batch, encode_separately)
        for path in paths:
            for exact_call, other_call in zip(exact_calls[path], other_calls[path], strict=True):
                _check_lengths(path, exact_call, other_call)
                # The other mechanism on the inputs of the exact one, then on the inputs from its own model.
                out = call_mechanism(other_mechanisms[path], exact_call.arguments)
                single[path] += sums(exact_call.out, out, exact_call.real)
                stacked[path] += sums(exact_call.out, other_call.out, exact_call.real)
                # The sequences of an example, its texts or their chunks, are next to each other in the batch.
                sequences_per_example = len(exact_call.out) // len(batch.inputs)
                limit = num_missing * sequences_per_example
                spectra[path] += singular_values(exact_mechanisms[path], exact_call, limit)
        num_missing = max(0, num_missing - len(batch.inputs))

    # Turn sums into means.
    results = []
    for path in paths:
        mean_abs, relative = _distances(single[path])
        stack_mean_abs, stack_relative = _distances(stacked[path])
        layer = Layer(
            path=path,
            mean_abs=mean_abs,
            relative=relative,
            stack_mean_abs=stack_mean_abs,
            stack_relative=stack_relative,
            spectrum=average(spectra[path]),
        )
        results.append(layer)
    return results


def _check_lengths(path: str, exact_call: MechanismCall, other_call: MechanismCall) -> None:
    """Raise ValueError if a mechanism gets other sequences in two models, as with another ``block.chunk``."""
    exact_length = exact_call.out.shape[2]
    other_length = other_call.out.shape[2]
    if exact_length != other_length:
        raise ValueError(
            f"{path} gets {exact_length} tokens in the run and {other_length} with the other mechanism, so its outputs "
            "cannot be compared; leave block.chunk as in the run"
        )


def _distances(total: Tensor) -> tuple[float, float]:
    """Compute mean |O - O'| and ||O - O'|| / ||O|| from the four sums."""
    absolute, squared, norm_squared, count = total
    return (absolute / count).item(), (squared / norm_squared).sqrt().item()


def singular_values(module: nn.Module, call: MechanismCall, limit: int) -> list[Tensor]:
    """Compute the singular values (L,) of the maps of a call's first ``limit`` sequences, averaged over heads."""
    spectra = []
    for i in range(min(limit, len(call.out))):
        arguments = {}
        for name, value in call.arguments.items():
            arguments[name] = value[i : i + 1] if isinstance(value, Tensor) else value
        # Padded queries and keys do not count: their rows and columns are zero.
        real = MechanismCall(arguments, call.out[i : i + 1]).real
        weights = matrix(module, arguments) * real  # (1,H,L,L)
        spectra.append(torch.linalg.svdvals(weights.float()).mean((0, 1)).cpu())
    return spectra


def average(spectra: list[Tensor]) -> list[float]:
    """Average spectra (L,), of which shorter ones are padded with zeros, and round to four significant digits."""
    if not spectra:
        return []
    means = pad_sequence(spectra, batch_first=True).mean(0)
    return [float(f"{value:.4g}") for value in means.tolist()]
