"""The sources as TFDS builders, for users of TensorFlow and JAX; nothing here needs TensorFlow.

    from data_prep.tfds import Listops
    builder = Listops(data_dir=...)
    builder.download_and_prepare()
    train = builder.as_data_source("train")

Another source takes a subclass of SourceBuilder: its VERSION, BUILDER_CONFIGS, FEATURES, KEYS and `example`.
"""

from abc import abstractmethod
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import tensorflow_datasets as tfds
from torch import Tensor

from data_prep.image import Image
from data_prep.listops import ListOps, decode
from data_prep.retrieval import Retrieval
from data_prep.source import Source
from data_prep.text import Text
from lra.store import Split


@dataclass(eq=False)
class SourceConfig(tfds.core.BuilderConfig):
    """A named choice of the source's arguments: SourceConfig(name="small", source=ListOps(train=100, ...))."""

    source: Source | None = None


class SourceBuilder(tfds.core.GeneratorBasedBuilder, skip_registration=True):
    """Prepares the config's source in TFDS's download folder and copies it, in the same order."""

    FEATURES: ClassVar[dict[str, Any]]
    KEYS: ClassVar[tuple[str, str]]  # input and target, for as_supervised

    def __init__(self, *, file_format: str = "array_record", **options):
        super().__init__(file_format=file_format, **options)

    @abstractmethod
    def example(self, rows: list[Tensor], label: int | float) -> dict[str, Any]:
        """The features of one example from its T rows of stored tokens, (length,) or (length, F) each."""

    def _info(self) -> tfds.core.DatasetInfo:
        return tfds.core.DatasetInfo(
            builder=self,
            description=type(self).__doc__,
            features=tfds.features.FeaturesDict(self.FEATURES),
            supervised_keys=self.KEYS,
            disable_shuffling=True,  # keeps the order of the store
        )

    def _split_generators(self, dl_manager: tfds.download.DownloadManager) -> dict[str, Iterator]:
        source, root = self.builder_config.source, Path(dl_manager.download_dir)
        source.prepare(root)
        return {name: self._generate_examples(split) for name, split in source.load(root).items()}

    def _generate_examples(self, split: Split) -> Iterator[tuple[int, dict[str, Any]]]:
        bounds = split.offsets.tolist()
        for number, label in enumerate(split.labels.tolist()):
            rows = range(number * split.towers, (number + 1) * split.towers)
            yield number, self.example([split.tokens[bounds[row] : bounds[row + 1]] for row in rows], label)


class Listops(SourceBuilder):
    """ListOps: nested expressions over digits (MIN, MAX, MED, SM) of 501 to 1999 tokens and their value, one digit."""

    VERSION = tfds.core.Version(ListOps.version)
    BUILDER_CONFIGS: ClassVar = [SourceConfig(name="lra", description="The paper's sizes.", source=ListOps())]
    FEATURES: ClassVar = {"source": tfds.features.Text(), "target": tfds.features.ClassLabel(num_classes=10)}
    KEYS = ("source", "target")

    def example(self, rows: list[Tensor], label: int) -> dict[str, Any]:
        return {"source": decode(rows[0]), "target": label}


class LraText(SourceBuilder):
    """Text: IMDb reviews in bytes, negative or positive."""

    VERSION = tfds.core.Version(Text.version)
    BUILDER_CONFIGS: ClassVar = [
        SourceConfig(name="lra", description="The test set is the dev set too.", source=Text()),
        SourceConfig(name="held_out", description="2,500 of train are the dev set.", source=Text(hold_out=2500)),
    ]
    FEATURES: ClassVar = {"text": tfds.features.Text(), "label": tfds.features.ClassLabel(names=["neg", "pos"])}
    KEYS = ("text", "label")

    def example(self, rows: list[Tensor], label: int) -> dict[str, Any]:
        return {"text": rows[0].numpy().tobytes(), "label": label}


class LraImage(SourceBuilder):
    """Image: CIFAR-10 in 8-bit grey, (32, 32)."""

    VERSION = tfds.core.Version(Image.version)
    BUILDER_CONFIGS: ClassVar = [SourceConfig(name="lra", description="45,000, 5,000, 10,000.", source=Image())]
    FEATURES: ClassVar = {
        "image": tfds.features.Tensor(shape=(32, 32), dtype=np.uint8),
        "label": tfds.features.ClassLabel(num_classes=10),
    }
    KEYS = ("image", "label")

    def example(self, rows: list[Tensor], label: int) -> dict[str, Any]:
        return {"image": rows[0].view(32, 32).numpy(), "label": label}


class LraRetrieval(SourceBuilder):
    """Retrieval: the texts of two papers in bytes, and whether one cites the other."""

    VERSION = tfds.core.Version(Retrieval.version)
    BUILDER_CONFIGS: ClassVar = [SourceConfig(name="lra", description="The release's pairs.", source=Retrieval())]
    FEATURES: ClassVar = {
        "texts": tfds.features.Sequence(tfds.features.Text(), length=2),
        "label": tfds.features.ClassLabel(num_classes=2),
    }
    KEYS = ("texts", "label")

    def example(self, rows: list[Tensor], label: int) -> dict[str, Any]:
        return {"texts": [row.numpy().tobytes() for row in rows], "label": label}
