"""The models of the benchmarks: an MLP, a GPT and a convolutional net, each in three sizes.

A model is a list of blocks of about equal cost, so that any number of stages that divides the number of blocks cuts evenly.
`Size` describes one microbatch. With 2 stages, a microbatch takes about 1 ms per stage in `tiny`, 5 ms in `small`, and
75 ms in `medium`.
"""
from dataclasses import dataclass

import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import pipe_split


class Layer(nn.Module):
    def __init__(self, width):
        super().__init__()
        self.linear = nn.Linear(width, width)

    def forward(self, x):
        return F.relu(self.linear(x))


class Attention(nn.Module):
    """A pre-norm transformer block."""

    def __init__(self, width, heads):
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(self.norm1(x)).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.proj(y.transpose(1, 2).reshape(batch, length, width))
        return x + self.down(F.gelu(self.up(self.norm2(x))))


class Embedding(nn.Module):
    def __init__(self, vocabulary, length, width):
        super().__init__()
        self.token, self.position = nn.Embedding(vocabulary, width), nn.Embedding(length, width)
        self.register_buffer("positions", torch.arange(length), persistent=False)

    def forward(self, tokens):
        return self.token(tokens) + self.position(self.positions)


class Residual(nn.Module):
    def __init__(self, channels):
        super().__init__()
        self.conv1 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.conv2 = nn.Conv2d(channels, channels, 3, padding=1, bias=False)
        self.norm1, self.norm2 = nn.BatchNorm2d(channels), nn.BatchNorm2d(channels)

    def forward(self, x):
        y = F.relu(self.norm1(self.conv1(x)))
        return F.relu(x + self.norm2(self.conv2(y)))


class Mean(nn.Module):
    def forward(self, x):
        return x.mean((2, 3))


class Model(nn.Module):
    """Runs `first`, the blocks with a marker before each of `cuts`, and `last`. Splits values at markers into `edges` parts."""

    def __init__(self, first, blocks, last, cuts, edges=1):
        super().__init__()
        self.first, self.blocks, self.last = first, nn.ModuleList(blocks), last
        self.cuts, self.edges = frozenset(cuts), edges

    def forward(self, x):
        x = self.first(x)
        for i, block in enumerate(self.blocks):
            if i in self.cuts:
                parts = x.chunk(self.edges, 1) if self.edges > 1 else ()
                pipe_split()
                x = torch.cat(parts, 1) if parts else x
            x = block(x)
        return self.last(x)

    def stage(self, index, stages):
        """Returns the modules between two markers, as one stage."""
        size = len(self.blocks) // stages
        parts = list(self.blocks[index * size:(index + 1) * size])
        if index == 0:
            parts.insert(0, self.first)
        if index == stages - 1:
            parts.append(self.last)
        return nn.Sequential(*parts)


@dataclass
class Size:
    blocks: int
    width: int      # features of the MLP and GPT; channels of the convolutional net
    batch: int      # samples per microbatch
    extent: int = 0  # tokens per sample, or pixels per side
    heads: int = 1
    vocabulary: int = 16
    edges: int = 1  # number of values between two stages of the MLP


SIZES = {
    "mlp": {"tiny": Size(16, 256, 16), "small": Size(16, 512, 64), "medium": Size(16, 1024, 128)},
    "gpt": {"tiny": Size(4, 64, 1, 32, 4, 256), "small": Size(4, 128, 4, 64, 4, 512),
            "medium": Size(8, 320, 1, 256, 5, 1024)},
    "conv": {"tiny": Size(4, 16, 2, 10), "small": Size(4, 32, 4, 16), "medium": Size(8, 64, 8, 24)},
}
MICROBATCHES = 8  # for the comparison of training steps


def build(name, size, stages, seed=0):
    """Returns a model with the same weights for any number of stages."""
    torch.manual_seed(seed)
    s = SIZES[name][size] if isinstance(size, str) else size
    cuts = range(s.blocks // stages, s.blocks, s.blocks // stages)
    if name == "mlp":
        return Model(nn.Identity(), [Layer(s.width) for _ in range(s.blocks)], nn.Linear(s.width, s.vocabulary), cuts, s.edges)
    if name == "gpt":
        blocks = [Attention(s.width, s.heads) for _ in range(s.blocks)]
        last = nn.Sequential(nn.LayerNorm(s.width), nn.Linear(s.width, s.vocabulary, bias=False))
        return Model(Embedding(s.vocabulary, s.extent, s.width), blocks, last, cuts)
    first = nn.Sequential(nn.Conv2d(3, s.width, 3, padding=1, bias=False), nn.BatchNorm2d(s.width), nn.ReLU())
    return Model(first, [Residual(s.width) for _ in range(s.blocks)],
                 nn.Sequential(Mean(), nn.Linear(s.width, s.vocabulary)), cuts)


def batch(name, size, microbatches, seed=1):
    """Returns inputs and targets of one minibatch."""
    s = SIZES[name][size] if isinstance(size, str) else size
    generator = torch.Generator().manual_seed(seed)
    n = s.batch * microbatches
    if name == "gpt":
        tokens = torch.randint(s.vocabulary, (n, s.extent + 1), generator=generator)
        return tokens[:, :-1].contiguous(), tokens[:, 1:].contiguous()
    shape = (n, s.width) if name == "mlp" else (n, 3, s.extent, s.extent)
    return torch.randn(shape, generator=generator), torch.randint(s.vocabulary, (n,), generator=generator)


def loss(output, target):
    return F.cross_entropy(output.reshape(-1, output.size(-1)), target.reshape(-1))
