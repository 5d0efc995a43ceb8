"""A byte-level GPT in plain PyTorch, with a pipeline marker between all blocks."""
import torch
import torch.nn as nn
import torch.nn.functional as F
from torch.distributed.pipelining import pipe_split

VOCABULARY = 256  # bytes


class Block(nn.Module):
    def __init__(self, width, heads, dropout):
        super().__init__()
        self.heads, self.dropout = heads, dropout
        self.norm1, self.norm2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def attention(self, x):
        batch, length, width = x.shape
        q, k, v = self.qkv(x).view(batch, length, 3, self.heads, -1).permute(2, 0, 3, 1, 4).unbind(0)
        y = F.scaled_dot_product_attention(
            q, k, v, dropout_p=self.dropout if self.training else 0.0, is_causal=True)
        return self.proj(y.transpose(1, 2).reshape(batch, length, width))

    def forward(self, x):
        x = x + F.dropout(self.attention(self.norm1(x)), self.dropout, self.training)
        y = self.down(F.gelu(self.up(self.norm2(x))))
        return x + F.dropout(y, self.dropout, self.training)


class GPT(nn.Module):
    def __init__(self, layers=6, width=128, heads=4, length=64, dropout=0.0, tied=True):
        super().__init__()
        self.length = length
        self.embedding = nn.Embedding(VOCABULARY, width)
        self.position = nn.Embedding(length, width)
        self.blocks = nn.ModuleList(Block(width, heads, dropout) for _ in range(layers))
        self.norm = nn.LayerNorm(width)
        self.head = nn.Linear(width, VOCABULARY, bias=False)
        for name, p in self.named_parameters():
            if p.dim() > 1:
                residual = name.endswith(("proj.weight", "down.weight"))
                nn.init.normal_(p, std=0.02 / (2 * layers) ** 0.5 if residual else 0.02)
        if tied:
            self.head.weight = self.embedding.weight
        self.register_buffer("positions", torch.arange(length), persistent=False)

    def forward(self, tokens):
        x = self.embedding(tokens) + self.position(self.positions[: tokens.shape[1]])
        for i, block in enumerate(self.blocks):
            if i > 0:
                pipe_split()
            x = block(x)
        return self.head(self.norm(x))


def add_options(parser):
    """Adds the options that `build` needs; it makes the same model from the same options."""
    parser.add_argument("--layers", type=int, default=6)
    parser.add_argument("--width", type=int, default=128)
    parser.add_argument("--heads", type=int, default=4)
    parser.add_argument("--length", type=int, default=64, help="sequence length")
    parser.add_argument("--dropout", type=float, default=0.0)
    parser.add_argument("--untied", action="store_true", help="a head with weights of its own")
    parser.add_argument("--model-seed", type=int, default=0, help="seed of the initial weights")


def build(options):
    torch.manual_seed(options.model_seed)
    return GPT(options.layers, options.width, options.heads, options.length, options.dropout,
               not options.untied)
