"""Diagnostics of a finished run: whether its best weights give different outputs for different validation examples."""

import math

import lightning as L
import torch
from torch import Tensor, nn

from .. import ranks
from ..model.classifier import Head
from .lit import LitClassifier, loss_of

COLLAPSED = (
    "warning: collapsed, every validation example gets the same answer; a lower or a higher optim.lr usually helps"
)
DEAD = ", or units that do not die: 'model.head={_target_:lra.model.classifier.Head,_partial_:true,kind:gelu}'"
# A value is constant if its standard deviation over the examples is at most this share of the RMS of the outputs.
# Equal outputs differ by rounding, because batches have different shapes. The longest sums have 16,384 = 2^14 terms;
# independent roundings of eps / 2 add up to 2^7 eps / 2 in float32. In 16 bits sums are accumulated in float32 and only
# stored values are rounded, with errors that average out: eps is enough. Informed outputs vary far more.
_CONSTANT = 64 * torch.finfo(torch.float32).eps
_CONSTANT_16_BIT = {"bf16": torch.finfo(torch.bfloat16).eps, "fp16": torch.finfo(torch.float16).eps}
# A loss is better than the class prior's if the difference exceeds two standard errors.
_STANDARD_ERRORS = 2


def advice(live_units: float | None) -> str:
    """Describe a collapsed run for the log.

    Args:
        live_units: share of the hidden units of the head that vary, see ``RunRecord``.
    """
    return COLLAPSED + DEAD if live_units == 0 else COLLAPSED


def of_best(trainer: L.Trainer, module: LitClassifier, precision: str) -> dict:
    """Compute the diagnostics of the weights in a module by one pass over the validation set.

    Args:
        trainer: trainer of the run, after the test.
        module: module with the best weights.
        precision: fp32 | bf16 | fp16.

    Returns:
        The fields val_loss, output_std, live_units and collapsed of a record.
    """
    hidden_parts: list[Tensor] = []
    hidden_layer = _hidden_layer(module.model)
    hook = None
    if hidden_layer is not None:

        def keep_units(layer: nn.Module, inputs: tuple, units: Tensor) -> None:
            hidden_parts.append(units.float().cpu())

        hook = hidden_layer.register_forward_hook(keep_units)
    # Random selection draws the same numbers as in an uninterrupted run.
    torch.manual_seed(module.seed)
    try:
        # A compiled model would not call the hook.
        with torch.compiler.set_stance("force_eager"):
            # test, not validate: callbacks of the training act on validations, and Checkpoints would write files.
            trainer.test(module, trainer.datamodule.val_dataloader(), verbose=False)
    finally:
        if hook:
            hook.remove()

    # Every rank has the units of the batches that it evaluated; some have none.
    rank_units = torch.cat(hidden_parts) if hidden_parts else None
    all_units = [units for units in ranks.gather(rank_units) if units is not None]
    hidden = torch.cat(all_units) if all_units else None
    return diagnose(module.outputs, module.labels, hidden, module.loss_kind, precision)


def _hidden_layer(model: nn.Module) -> nn.Module | None:
    """The activation of the head; None for a head without hidden units, ``MegaHead`` and a custom head."""
    head = getattr(model, "head", None)
    if not isinstance(head, Head) or len(head.mlp) == 1:
        return None
    return head.mlp[1]


def diagnose(outputs: Tensor, labels: Tensor, hidden: Tensor | None, loss: str, precision: str) -> dict:
    """Compute the diagnostics of a model.

    Args:
        outputs: logits (n, classes), or the real output (n, 1), of n examples.
        labels: classes (n,) int64, or numbers (n,) float32.
        hidden: units (n, units) of the head after the activation; None for a head without them.
        loss: cross_entropy | mse.
        precision: fp32 | bf16 | fp16, of the computation.

    Returns:
        The fields of ``of_best``. ``collapsed`` is True in two cases. Either the outputs are constant up to rounding.
        Or one class has the largest output for every example and the loss is not significantly below the entropy of
        the class frequencies: the outputs vary then, but do not depend on the labels. It is None if an output is not
        finite.
    """
    outputs = outputs.double()
    if labels.is_floating_point():
        labels = labels.double()
    tolerance = _CONSTANT_16_BIT.get(precision, _CONSTANT)
    losses = loss_of(outputs, labels, loss, "none")
    output_std = outputs.var(0, correction=0).mean().sqrt()
    is_constant = bool(output_std <= tolerance * _rms(outputs))
    is_collapsed = is_constant or _is_uninformed(outputs, labels, losses)
    live_units = None
    if hidden is not None:
        hidden = hidden.double()
        is_live = hidden.std(0, correction=0) > tolerance * _rms(hidden)
        live_units = is_live.double().mean().item()
    return {
        "val_loss": finite(losses.mean().item()),
        "output_std": finite(output_std.item()),
        "live_units": live_units,
        "collapsed": is_collapsed if outputs.isfinite().all() else None,
    }


def finite(value: float | None) -> float | None:
    """The value, None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _rms(values: Tensor) -> Tensor:
    """The root mean square of all values."""
    return values.square().mean().sqrt()


def _is_uninformed(outputs: Tensor, labels: Tensor, losses: Tensor) -> bool:
    """Whether all examples get one class, with a loss (n,) that is not significantly below the class prior's."""
    if labels.is_floating_point() or len(outputs.argmax(-1).unique()) > 1:
        return False
    # The constant answer with the class frequencies has the lowest loss of all constant answers.
    frequencies = labels.bincount() / len(labels)
    prior_losses = -frequencies[labels].log()
    gains = prior_losses - losses
    standard_error = gains.std(correction=0) / math.sqrt(len(labels))
    return bool(gains.mean() <= _STANDARD_ERRORS * standard_error)
