"""The statements of random models. Each function writes one, or raises Skip if none fits."""
import torch
from model import BATCHES, Skip

OPERATIONS = []


class Operation:
    def __init__(self, write, weight, only):
        self.write, self.weight, self.only = write, weight, only

    def fits(self, kind):
        return not self.only or kind in self.only


def operation(weight=1.0, only=()):
    """Registers a statement. `only`: models ("export", "script", "trace") that may have it."""
    def add(write):
        OPERATIONS.append(Operation(write, weight, only))
        return write
    return add


def several(*texts, weight, **options):
    """Registers operations on one value, from texts in which {} is its name."""
    for text in texts:
        @operation(weight / len(texts), **options)
        def write(g, text=text):
            g.let(text.replace("{}", g.float()))


several("torch.tanh({})", "torch.sigmoid({})", "torch.relu({})", "torch.sin({})", "{} * 0.5",
        "{} + 1", "-{}", "F.gelu({})", "{}.abs()", "{}.clamp(-1, 1)", "torch.exp(-{}.abs())",
        "F.silu({})", "F.softplus({})", "F.elu({})", "1 - {}", "{}.cos()", "F.leaky_relu({}, 0.1)",
        "torch.atan({})", "{}.round()", "{}.sign()", "torch.rsqrt({}.square() + 1)", weight=3)
several("{}.softmax(-1)", "{}.log_softmax(-1)", "{}.cumsum(0)", "{}.flip(0)", "{}.roll(1, 0)",
        "F.normalize({}, dim=-1)", "{}.logsumexp(-1)", "{}.cummax(0)[0]", "{}.sort(-1)[0]",
        "{}.topk(2, -1)[0]", "{}.amax(-1)", "{}.max(-1)[0]", "{}.var(-1)", "{}.norm(dim=-1)",
        "{}.median(-1)[0]", "{}.prod(-1)", "{}.tril()", "F.pad({}, (1, 1))", "{}.diff(dim=-1)",
        "{}.std(0)", "{}.amin(0)", "{}.kthvalue(2, -1)[0]", weight=1.6)
several("{}.detach()", "{}.clone()", "{}.contiguous()", "{}.detach().clone()", weight=0.7)
several("{}.sum()", "{}.mean()", "{}.mean(0)", "{}.sum(-1)", "{}.mean(-1, keepdim=True)",
        "{}.sum(0, keepdim=True)", weight=1.2)
several("{}.double()", "{}.to(torch.float64).sin().float()", "{}.to(torch.bfloat16).float()",
        "{}.half()", "{}.bfloat16()", "{}.to(torch.float32)", weight=1)
# Views.
several("{}[:, 1:3]", "{}[:, ::2]", "{}[:, -2:]", "{}[1:]", "{}[:, 0]", "{}[..., None]",
        "{}.transpose(0, -1)", "{}.unsqueeze(1)", "{}.squeeze()", "{}.flatten(1)", "{}.flatten()",
        "{}.view(-1)", "{}.reshape(-1, 2)", "{}.view(-1, 2, 3)", "{}.movedim(0, -1)",
        "{}.view(-1, 2, 3).permute(0, 2, 1)", "{}.view(-1, 3, 2).transpose(1, 2).reshape(-1, 6)",
        "{}.narrow(-1, 1, 2)", "{}.select(-1, 1)", "{}.unfold(-1, 2, 1)", "{}.mT",
        "{}.unsqueeze(0).expand(2, *{}.shape)", "{}.diagonal(0, -2, -1)", "{}.view_as({})",
        "{}.unflatten(-1, (2, -1))", "{}.t()", "{}.expand_as({})", "{}.swapaxes(0, -1)",
        "{}[:2]", "{}[0]", "{}.split(2, -1)[1]", "{}.tensor_split(2, -1)[0]", weight=3.5)
several("torch.atleast_3d({})", "torch.unsafe_chunk({}, 2, -1)[1]", "{}.unsafe_split(2, -1)[0]",
        "torch.einsum('ij->ji', {})", "{}.ravel()", "torch.atleast_2d({})", weight=0.7)
several("{}.as_strided((3, 2), (2, 1), 1)", "{}.as_strided((2, 2), (1, 3))", weight=0.4)


@operation(0.8)
def pieces(g):
    a = g.float(lambda t: t.dim() > 0)
    p, q = g.new(), g.new()
    text = g.choose.choice(["{}.chunk(2, -1)", "{}.split([1, {}.shape[-1] - 1], -1)",
                            "{}[..., :2].unbind(-1)", "{}.sort(-1)", "{}.max(-1)",
                            "torch.var_mean({}, -1)", "torch.aminmax({}, dim=-1)",
                            "{}.topk(2, -1)", "{}.reshape(2, -1)"]).replace("{}", a)
    g.do(f"{p}, {q} = {text}", p, q)


@operation(3)
def two(g):
    a, b = g.float(), g.float()
    g.let(g.choose.choice(["{} + {}", "{} * {}", "{} - {}", "torch.maximum({}, {})",
                           "{} / (1 + {}.abs())", "torch.minimum({}, {})", "torch.atan2({}, {})",
                           "torch.lerp({}, {}, 0.3)", "torch.add({}, {}, alpha=0.5)",
                           "torch.addcmul({}, {}, {b}, value=0.1)", "torch.hypot({}, {})"])
          .replace("{b}", b).format(a, b))


@operation(1)
def joined(g):
    a = g.float()
    b = g.float(lambda t: t.dim() == g.value(a).dim())
    g.let(g.choose.choice(["torch.cat([{}, {}], -1)", "torch.stack([{}, {}])",
                           "torch.stack([{}, {}], -1)", "torch.cat([{}, {}])",
                           "torch.stack([{}, {}], 1).flatten(1)"]).format(a, b))


@operation(2.5)
def linear(g):
    a = g.rows()
    width = g.value(a).shape[1]
    g.let(f"{g.layer(f'nn.Linear({width}, {g.choose.choice([6, 6, 4])})')}({a})")


@operation(1)
def layers(g):
    a = g.rows()
    width = g.value(a).shape[1]
    text = g.choose.choice([f"nn.LayerNorm({width})", f"nn.BatchNorm1d({width})",
                            f"nn.LayerNorm({width}, bias=False)", "nn.Identity()", "nn.PReLU()",
                            f"nn.BatchNorm1d({width}, affine=False)", "nn.Dropout(0.0)",
                            f"nn.Sequential(nn.Linear({width}, 4), nn.Tanh(), nn.Linear(4, 6))",
                            f"nn.Bilinear({width}, {width}, 3)",
                            f"nn.BatchNorm1d({width}, momentum=None)"])
    g.let(f"{g.layer(text)}({a}, {a})" if "Bilinear" in text else f"{g.layer(text)}({a})")


@operation(0.5)
def deep(g):
    """Layers of three dimensions."""
    a = g.float(lambda t: t.dim() == 3 and t.shape[0] == BATCHES[0])
    c, n = g.fixed(a, 1), g.fixed(a, 2)
    text = g.choose.choice([f"nn.Conv1d({c}, 3, 2, padding=1)", f"nn.GRU({n}, 3, batch_first=True)",
                            f"nn.BatchNorm1d({c})", "nn.AdaptiveAvgPool1d(2)",
                            f"nn.LSTM({n}, 3, batch_first=True)", f"nn.InstanceNorm1d({c})",
                            f"nn.MultiheadAttention({n}, 1, batch_first=True)",
                            f"nn.GroupNorm(1, {c})"])
    layer = g.layer(text)
    arguments = ", ".join([a] * 3) if "Attention" in text else a
    g.let(f"{layer}({arguments})" + ("[0]" if any(k in text for k in ("GRU", "LSTM",
        "Attention")) else ""))


@operation(0.4)
def attention(g):
    a = g.float(lambda t: t.dim() >= 3)
    g.let(f"F.scaled_dot_product_attention({a}, {a}, {a}"
          + g.choose.choice([")", ", is_causal=True)"]))


@operation(2)
def with_parameter(g):
    a = g.float(lambda t: t.dim() > 0)
    n = g.fixed(a, -1)
    if g.choose.random() < 0.5:
        g.let(f"{a} @ {g.parameter(n, g.choose.choice([n, 3, 6]))}")
    else:
        g.let(g.choose.choice(["{} * {}", "{} + {}", "{} - {}.tanh()",
                               "torch.where({} > 0, {}, {w})"])
              .replace("{w}", w := g.parameter(n)).format(a, w))


@operation(0.6)
def tied(g):
    """A second name, another view, or a frozen parameter."""
    name = g.choose.choice(g.parameters) if g.parameters else g.parameter(6)
    kind = g.choose.choice(["same", "frozen", "unused", "derived", "once more"])
    if kind == "same":
        g.parameters.append(g.make("w", "{} = " + name))
    elif kind == "frozen":
        g.parameters.append(g.make("w", "{} = nn.Parameter(torch.randn(6), requires_grad=False)"))
    elif kind == "unused":
        g.make("w", "{} = nn.Parameter(torch.randn(3))")
    elif kind == "derived":
        g.let(g.choose.choice(["{}.sum()", "{}.t()", "{}[:2]", "{} * 2",
                               "{}.view(-1)"]).format(name))
    else:
        g.let(f"{g.float()} * {name}.mean()")


@operation(0.3)
def tied_layers(g):
    """A layer that shares another layer's weight."""
    layers = [name for name, text in g.layers if text == "nn.Linear(6, 6)"]
    if not layers:
        raise Skip("none")
    a = g.rows(6)
    mine = g.make("m", "{} = nn.Linear(6, 6)")
    line = f"{mine}.weight = {g.choose.choice(layers)}.weight"
    for trial in g.trials:
        exec(line, trial)
    g.made.append(line)
    g.let(f"{mine}({a})")
