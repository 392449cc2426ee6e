"""Options and models that trainer=graph cannot train, refused before anything is written."""

from omegaconf import DictConfig
from torch import nn

from ..model.norm import BatchNorm


def check(config: DictConfig, model: nn.Module, processes: int) -> None:
    """Check that a whole step of a configuration can be one CUDA graph; one without ``trainer.graph`` need not be.

    Args:
        config: of the run.
        model: its classifier, perhaps without memory for its weights.
        processes: that share each batch.

    Raises:
        ValueError: several processes, a gradient scaler, graphs that torch.compile makes, packed rows, accumulated
            gradients, or a norm that waits for the device.
    """
    if not config.trainer.graph:
        return
    trainer, optim, said = config.trainer, config.optim, "with trainer=graph"
    if processes > 1:
        raise ValueError(f"trainer.devices must be 1 {said}, not {processes}; trainer=ddp is for several")
    if trainer.precision == "fp16":
        raise ValueError(f"trainer.precision must be fp32 or bf16 {said}, not fp16, whose scaler waits for the device")
    if trainer.compile == "reduce-overhead":
        raise ValueError(f"trainer.compile must be true or false {said}, not reduce-overhead, which makes other graphs")
    if config.data.pad == "none":
        raise ValueError(f"data.pad must be batch, fixed or compact {said}, not none, which has a shape for each batch")
    if optim.micro_batch and optim.micro_batch < optim.batch:
        raise ValueError(f"optim.micro_batch must be null {said}, not {optim.micro_batch}")
    if any(isinstance(part, BatchNorm) for part in model.modules()):
        raise ValueError(
            f"model.norm and block.norm must be layer, rms or scale {said}, not batch, which waits for the device to "
            "count the real tokens"
        )
