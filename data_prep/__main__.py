"""python -m data_prep task=listops: make a data set ready, or check it."""

from hydra.utils import instantiate
from omegaconf import DictConfig

from data_prep.source import say
from lra.config import check_budget, check_keys, data_command, main
from lra.store import verify


@main("data")
def prepare(config: DictConfig) -> None:
    check_budget(config)
    check_keys(config.source, "source")
    source = instantiate(config.source)
    source.command = data_command(config)
    if config.verify:
        source.load(config.data.root)
        verify(source.folder(config.data.root))
        say(f"{source.name}: every checksum is right at {source.folder(config.data.root)}")
        return
    folder = source.prepare(config.data.root, workers=config.workers, force=config.force)
    sizes = ", ".join(f"{name} {len(split):,}" for name, split in source.load(config.data.root).items())
    say(f"{source.name}: {sizes} examples ready at {folder}")


if __name__ == "__main__":
    prepare()
