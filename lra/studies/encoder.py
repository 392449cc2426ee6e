"""A pretrained encoder of transformers: embeddings of length 1 of contents of files, and what its attention gets."""

import copy
import io
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from PIL import Image
from torch import Tensor, nn

from ..integrations import needs
from ..integrations.huggingface import padding, register
from ..train.device import select_device

with needs("hf", __name__):
    from transformers import AttentionInterface, AttentionMaskInterface, AutoModel, AutoTokenizer

RECORDING = "lra_recording"  # name of the attention of ``qkv``
# Of ImageNet's colours, with which most models like ViT are trained.
MEAN, DEVIATION = torch.tensor([0.485, 0.456, 0.406]), torch.tensor([0.229, 0.224, 0.225])


@dataclass
class Encoder:
    """A pretrained model of transformers on a device.

    Args:
        tokenizer: None for a model of images.
        pool: ``mean`` or ``cls``.
        length: most tokens of a text.
        size: pixels of an image's side.
    """

    model: nn.Module
    tokenizer: Any
    pool: str
    length: int
    size: int
    device: str

    def __call__(self, contents: list[bytes]) -> Tensor:
        """Embed contents with gradients: (n, d)."""
        if self.tokenizer is None:
            images = torch.stack([self._picture(content) for content in contents])
            out, mask = self.model(pixel_values=images.to(self.device)).last_hidden_state, None
        else:
            texts = [content.decode("utf-8", "replace") for content in contents]
            words = self.tokenizer(texts, padding=True, truncation=True, max_length=self.length, return_tensors="pt")
            words = words.to(self.device)
            out, mask = self.model(**words).last_hidden_state, words["attention_mask"][..., None]
        if self.pool == "cls":
            return F.normalize(out[:, 0], dim=-1)
        return F.normalize(out.mean(1) if mask is None else (out * mask).sum(1) / mask.sum(1), dim=-1)

    @torch.no_grad()
    def embed(self, contents: list[bytes], batch: int) -> Tensor:
        """Embed contents without gradients, in batches of similar size to save padding: (n, d) on the CPU."""
        order = sorted(range(len(contents)), key=lambda i: len(contents[i]))
        parts = [self([contents[i] for i in order[at : at + batch]]).cpu() for at in range(0, len(order), batch)]
        return torch.cat(parts)[torch.tensor(order).argsort()]

    def with_cur(self, **options) -> "Encoder":
        """Copy the encoder with CUR attention, with options of ``lra.ops.cur.cur_attention``."""
        register()
        model = copy.deepcopy(self.model)
        model.set_attn_implementation("cur")
        model.config.cur = options
        return replace(self, model=model)

    @torch.no_grad()
    def qkv(self, content: bytes) -> list[tuple[Tensor, Tensor, Tensor]]:
        """Record q, k and v (1,H,L,D) of every layer for one example, scaled so that scores are q kᵀ / √D.

        Raises:
            ValueError: the scores of a layer are not q kᵀ, or it has another number of keys than of queries.
        """
        recorded = []

        def attend(module, query, key, value, attention_mask, scaling=None, **others):
            if attention_mask is not None or query.shape != key.shape or others.get("position_bias") is not None:
                reason = "a mask, position bias or other keys than queries, which is not softmax(q kᵀ)"
                raise ValueError(f"{type(module).__name__} has {reason}")
            if scaling is not None:
                query = query * (scaling * query.shape[-1] ** 0.5)
            recorded.append((query.cpu(), key.cpu(), value.cpu()))
            return F.scaled_dot_product_attention(query, key, value).transpose(1, 2).contiguous(), None

        before = self.model.config._attn_implementation
        AttentionInterface.register(RECORDING, attend)
        AttentionMaskInterface.register(RECORDING, padding)
        self.model.set_attn_implementation(RECORDING)
        try:
            self([content])
        finally:
            self.model.set_attn_implementation(before)
        return recorded

    def _picture(self, content: bytes) -> Tensor:
        """Decode and normalise an image: (3, size, size)."""
        image = Image.open(io.BytesIO(content)).convert("RGB").resize((self.size, self.size), Image.Resampling.BICUBIC)
        return ((torch.from_numpy(np.array(image)) / 255 - MEAN) / DEVIATION).permute(2, 0, 1)


def load(path: Path, *, pool: str, length: int, size: int, device: str) -> Encoder:
    """Load an encoder of transformers.

    Args:
        path: folder of the model, or its name on the hub.
        pool, length, size: see ``Encoder``.
        device: auto | cpu | cuda.

    Raises:
        ValueError: the model or the device is not available.
    """
    device = select_device(device)
    try:
        model = AutoModel.from_pretrained(str(path), attn_implementation="sdpa")
        text = model.main_input_name == "input_ids"
        tokenizer = AutoTokenizer.from_pretrained(str(path)) if text else None
    except OSError as error:
        raise ValueError(f"model={path} cannot be loaded: {' '.join(str(error).split())[:200]}") from None
    return Encoder(model.eval().to(device), tokenizer, pool, length, size, device)
