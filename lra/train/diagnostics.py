"""Diagnostics of a finished run: whether its best weights answer differently to different dev examples."""

import math

import lightning as L
import torch
from torch import Tensor

from ..model.classifier import Head
from . import distributed
from .lit import LitClassifier, loss_of

COLLAPSED = "warning: collapsed, every dev example gets the same answer; a lower or a higher optim.lr usually helps"
DEAD = ", or units that do not die: 'model.head={_target_:lra.model.classifier.Head,_partial_:true,kind:gelu}'"
# Standard deviation over rows, as a share of the size of the outputs, up to which a value is taken as constant. Rows
# with equal outputs in exact arithmetic differ by rounding, since batches have different shapes. Independent roundings
# of eps / 2 add up as the root of their number. In 32 bits the longest sums, over 16,384 tokens, have 2^14 terms, hence
# 2^7 eps / 2. In 16 bits sums are accumulated in 32; only what is stored is rounded, the output itself and each of the
# hidden units, whose errors average out: eps covers both. Outputs that depend on the input vary by far more.
_CONSTANT = 64 * torch.finfo(torch.float32).eps
_CONSTANT_16 = {"bf16": torch.finfo(torch.bfloat16).eps, "fp16": torch.finfo(torch.float16).eps}
_APART = 2  # standard errors


def of_best(fitter: L.Trainer, module: LitClassifier) -> dict:
    """The diagnostics of the weights in a module, from one pass over dev.

    Args:
        fitter: trainer of the run, after the test.
        module: module with the best weights.

    Returns:
        The fields val_loss, output_std, live_units and collapsed of a record.
    """
    head, units = getattr(module.model, "head", None), []
    hidden = head.mlp[1] if isinstance(head, Head) and len(head.mlp) > 1 else None
    hook = hidden and hidden.register_forward_hook(lambda layer, given, made: units.append(made.float().cpu()))
    torch.manual_seed(module.seed)  # for a random selection, which is then that of an uninterrupted run
    try:
        with torch.compiler.set_stance("force_eager"):  # a compiled model has no place for the hook
            fitter.test(module, fitter.datamodule.val_dataloader(), verbose=False)
    finally:
        if hook:
            hook.remove()
    shares = [share for share in distributed.gather(torch.cat(units) if units else None) if share is not None]
    hidden, precision = torch.cat(shares) if shares else None, module.experiment.trainer.precision
    return diagnose(module.outputs, module.labels, hidden, module.loss, precision)


def diagnose(outputs: Tensor, labels: Tensor, hidden: Tensor | None, loss: str, precision: str) -> dict:
    """The diagnostics of a model.

    Args:
        outputs: logits (n, classes), or the real output (n, 1), of n rows.
        labels: classes (n,) int64, or numbers (n,) float32.
        hidden: units of the head (n, units) behind their activation; None for a head without them.
        loss: cross_entropy | mse.
        precision: fp32 | bf16 | fp16, the computation's.

    Returns:
        As ``of_best``. ``collapsed`` is True if the outputs are constant up to rounding. It is also True if the largest
        output is that of one class in every row and the loss is not below that of the constant answer with the classes'
        frequencies on dev by more than two standard errors: the outputs vary then, and say nothing about the labels.
    """
    outputs, labels = outputs.double(), labels.double() if labels.is_floating_point() else labels
    tolerance = _CONSTANT_16.get(precision, _CONSTANT)
    losses = loss_of(outputs, labels, loss, "none")
    spread = outputs.var(0, correction=0).mean().sqrt()
    collapsed = bool(spread <= tolerance * _size(outputs)) or _uninformed(outputs, labels, losses)
    live = None
    if hidden is not None:
        hidden = hidden.double()
        live = (hidden.std(0, correction=0) > tolerance * _size(hidden)).double().mean().item()
    return {
        "val_loss": finite(losses.mean().item()),
        "output_std": finite(spread.item()),
        "live_units": live,
        "collapsed": collapsed if outputs.isfinite().all() else None,
    }


def finite(value: float | None) -> float | None:
    """The value, None if it is not finite."""
    return value if value is not None and math.isfinite(value) else None


def _size(values: Tensor) -> Tensor:
    """The root mean square of values."""
    return values.square().mean().sqrt()


def _uninformed(outputs: Tensor, labels: Tensor, losses: Tensor) -> bool:
    """Whether one class is the answer to all rows, with a loss (n,) not below that of the classes' frequencies."""
    if labels.is_floating_point() or len(outputs.argmax(-1).unique()) > 1:
        return False
    frequencies = labels.bincount() / len(labels)
    gain = -frequencies[labels].log() - losses
    return bool(gain.mean() <= _APART * gain.std(correction=0) / math.sqrt(len(labels)))
