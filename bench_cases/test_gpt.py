"""A language model the size of GPT-2 small, trained on sequences of tokens."""

from collections.abc import Callable

import pytest
import torch
from torch import nn

from gpuscale import Size, TrainingCase


class Embedding(nn.Module):
    """Sum of the token embedding and the position embedding."""

    def __init__(self, words: int, context: int, width: int) -> None:
        super().__init__()
        self.tokens = nn.Embedding(words, width)
        self.positions = nn.Embedding(context, width)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:
        embedded: torch.Tensor = self.tokens(tokens) + self.positions.weight
        return embedded


class Block(nn.Module):
    """Causal attention and a two-layer MLP, each with layer normalisation and a shortcut."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.attention_norm, self.mlp_norm = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention, self.projection = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width),
            nn.GELU(approximate="tanh"),
            nn.Linear(4 * width, width),
        )

    def forward(self, inputs: torch.Tensor) -> torch.Tensor:
        parts = self.attention(self.attention_norm(inputs)).unflatten(-1, (3, self.heads, -1))
        query, key, value = parts.permute(2, 0, 3, 1, 4)
        attended = nn.functional.scaled_dot_product_attention(query, key, value, is_causal=True)
        inputs = inputs + self.projection(attended.transpose(1, 2).flatten(2))
        added: torch.Tensor = inputs + self.mlp(self.mlp_norm(inputs))
        return added


class Gpt(TrainingCase):
    """GPT-2 small's layers with AdamW, weak scaling; a sample is a sequence of tokens.

    Unlike in GPT-2, the output layer has its own weights, since pipeline stages cannot share those
    of the embedding. Halving GPT-2's vocabulary keeps the number of parameters at 124 million.
    """

    strategies = ("ddp", "fsdp", "pipeline")
    sizes = {
        "full": Size(batch=8, sample_shape=(1024,)),
        "smoke": Size(batch=4, sample_shape=(32,)),
    }
    # Vocabulary size, number of blocks, width and number of heads, keyed by sequence length.
    layouts = {1024: (24_576, 12, 768, 12), 32: (4_096, 6, 320, 5)}

    def model(self) -> nn.Module:
        (context,) = self.size.sample_shape
        words, blocks, width, heads = self.layouts[context]
        model = nn.Sequential(
            Embedding(words, context, width),
            *(Block(width, heads) for _ in range(blocks)),
            nn.LayerNorm(width),
            nn.Linear(width, words, bias=False),
        )
        for module in model.modules():
            if isinstance(module, nn.Linear | nn.Embedding):
                nn.init.normal_(module.weight, std=0.02)
        return model

    def sample(self, index: int, size: Size) -> tuple[torch.Tensor, torch.Tensor]:
        """Return tokens that count up by a stride depending on the index, and their successors."""
        (context,) = size.sample_shape
        words = self.layouts[context][0]
        tokens = (index + (index % self.classes + 1) * torch.arange(context + 1)) % words
        return tokens[:-1], tokens[1:]

    def loss(self, output: torch.Tensor, target: torch.Tensor) -> torch.Tensor:
        return nn.functional.cross_entropy(output.flatten(0, 1), target.flatten())

    def optimizer(self, model: nn.Module, gpus: int) -> torch.optim.Optimizer:
        """Return AdamW, with weight decay only for matrices and embeddings, as in GPT-3."""
        matrices = [each for each in model.parameters() if each.dim() > 1]
        vectors = [each for each in model.parameters() if each.dim() == 1]
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0}]
        return torch.optim.AdamW(groups, lr=6e-4, betas=(0.9, 0.95))


@pytest.mark.gpuscale(case=Gpt)
def test_gpt(scaling: Callable[[], object]) -> None:
    scaling()
