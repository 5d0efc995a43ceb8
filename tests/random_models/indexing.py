"""Statements whose data are indices: of rows, of columns, of chosen elements."""
import torch
from operations import operation


def integers(g, bound):
    """Returns text for a tensor of integers below `bound`."""
    a = g.tensor(lambda t: t.dtype in (torch.int64, torch.float32, torch.bool) and 0 < t.dim() < 3)
    text = a if g.value(a).dtype == torch.int64 else (
        f"{a}.long()" if g.value(a).dtype == torch.bool else f"({a}.detach() * 3).long()")
    return f"{text} % {bound}" if text == a or "." in text else text


@operation(1)
def index(g):
    bound = g.choose.choice([2, 4])
    g.let(integers(g, bound))


@operation(2)
def look_up(g):
    n = g.choose.choice([4, 8])
    i = f"({integers(g, n)})"
    a = g.float(lambda t: t.dim() == 2)
    text = g.choose.choice(["{t}[{i}]", "F.embedding({i}, {t})", "{a}[{i} % {a}.shape[0]]",
                            "{a}[:, {i} % 2]", "{a}.index_select(0, {i}.flatten() % 2)",
                            "{a}.gather(1, {i}[:, :1] % 2)", "{a}.take({i})",
                            "{a}[{i} % 2, {i} % 3]",
                            "{a}.take_along_dim({i}[:, None] % 2, 1)" ,
                            "F.one_hot({i}, 8).float()"])
    table = g.parameter(n, g.choose.choice([6, 3])) if "{t}" in text else ""
    g.let(text.format(t=table, i=i, a=a))


@operation(0.8)
def order(g):
    a = g.float(lambda t: t.dim() == 2)
    g.let(g.choose.choice(["{a}[{a}.argsort(0)[:, 0]]", "{a}[{a}.argmax(0)]", "{a}.argsort(-1)",
                           "{a}.argmax(-1)", "{a}.gather(-1, {a}.argsort(-1))", "{a} > 0",
                           "torch.where({a} > {a}.mean(), {a}, -{a})",
                           "{a}.masked_fill({a} > 0.5, 0.2)",
                           "{a}.topk(2, -1)[1]",
                           "torch.searchsorted({a}[0].detach().sort()[0], {a}.detach())",
                           "torch.bucketize({a}.detach(), torch.tensor([-0.5, 0.0, 0.5]))",
                           "{a}.isnan().any()", "({a} > 0).all(-1)", "{a}.sum() > 0"]).format(a=a))


@operation(1.5)
def put(g):
    """Writes at places that the data determine."""
    i = f"({integers(g, 2)})"
    a, b = g.float(lambda t: t.dim() == 2), g.float(lambda t: t.dim() > 0)
    c = g.let(f"{a} * 1.1")
    g.do(g.choose.choice(["{c}[{i}] = 0.5", "{c}[:, {i}] = 0.1", "{c}[{c} > 0] = 0",
                          "{c}.index_put_(({i},), {b}[0], accumulate=True)",
                          "{c}.scatter_(1, {i}[:, :1], 0.3)",
                          "{c}.index_add_(0, {i}.flatten()[:2], {b}[:2])",
                          "{c}.scatter_add_(1, {i}[:, :1], {b}[:, :1])",
                          "{c}[{i}.flatten()[:2]] += 1",
                          "{c}.index_fill_(1, {i}.flatten()[:2], 0.2)", "{c}[{b}[:, 0] > 0] *= 2",
                          "{c}.masked_scatter_({c} > 0, {a} * 0.5)", "{c}[{b}[:, 0] > 0, 0] = 1",
                          "{c}.index_copy_(0, {i}.flatten()[:1], {b}[:1])"]).format(c=c, i=i, b=b,
                              a=a))


@operation(0.7)
def logic(g):
    m = g.tensor(lambda t: t.dtype == torch.bool)
    a, b = g.float(), g.float()
    g.let(g.choose.choice(["torch.where({m}, {a}, {b})", "{a} * {m}", "{m}.float() + {a}", "~{m}",
                           "{m}.long().sum()", "{a}.masked_fill({m}, 0.0)", "{m} & ({a} > 0)",
                           "{m}.any()", "{m} ^ True", "{m}.sum(-1)"]).format(m=m, a=a, b=b))


@operation(0.8)
def whole(g):
    """Integers and other dtypes."""
    i = g.tensor(lambda t: t.dtype != torch.float32)
    a = g.float()
    g.let(g.choose.choice(["{i}.float()", "{i} + 1", "{i} * 2", "{a} * {i}", "{i}.sum()",
                           "{i}.int()",
                           "{i}.to({a}.dtype)", "{a}.type_as({i})", "{i}.float().mean() + {a}",
                           "{i}[:, 0]",
                           "{i}.flatten()", "{i}.double()", "{i} > 1", "{i}.cumsum(0)", "{i}.abs()",
                           "{a}.to({i}.dtype)", "{i}.to(torch.uint8)", "{i}.view(-1)", "{i} % 3"])
          .format(i=i, a=a))


@operation(0.1)
def nonzero(g):
    a = g.float(lambda t: t.dim() == 2)
    g.let(f"{a}.nonzero()")


@operation(0.5)
def chosen(g):
    """Sizes that the data determine, gone by the next statement."""
    a = g.float(lambda t: t.dim() > 0)
    g.let(g.choose.choice(["{a}[{a} > 0].sum()", "{a}[{a} > 0].square().sum()",
                           "({a} > 0).nonzero().sum()", "{a}.masked_select({a} < 0).sum()",
                           "{a}[{a}.sum(-1) > 0].sum(0)",
                           "torch.unique({a}.detach().round()).sum()"]).format(a=a))
