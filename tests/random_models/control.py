"""Statements of sizes and numbers, regions, branches and loops."""
from model import Skip
from operations import operation


@operation(1)
def size(g):
    a = g.tensor(lambda t: t.dim() > 0)
    g.let(g.choose.choice(["{}.shape[0]", "{}.size(0)", "{}.shape[0] * 2", "{}.size(-1)",
                           "{}.shape[0] + 1", "{}.numel()", "{}.shape[0] // 2", "{}.dim()"])
          .format(a))


@operation(1.6)
def sized(g):
    n = g.pick(lambda v: type(v) is int)
    a = g.float()
    g.let(g.choose.choice([
        "{a} * {n}", "{a} / {n}", "{a}[:{n}]", "{a}[:{n} // 2]", "torch.arange({n})",
        "{a}.view({n}, -1)", "{a}.reshape({n}, -1)", "torch.full((6,), 0.1 * {n})",
        "torch.zeros({n}, 3)", "{a} + torch.ones({n}, 1)", "{n} + 1", "{n} * {n}",
        "{a}[0].repeat({n}, 1)", "{a}.narrow(0, 0, {n} // 2)", "{n} % 3", "{n} // 2", "max({n}, 2)",
        "torch.tensor(1.0) * {n} + {a}", "torch.arange({n}).float()", "{a}.sum() / ({n} + 1)",
        "{a}.new_zeros({n})", "torch.linspace(0, 1, {n})"]).format(a=a, n=n))


@operation(0.3, only=("export", "script"))
def item(g):
    a = g.float(lambda t: t.requires_grad)
    name, number = g.new(), f"{a}.detach().mean()"
    g.do(f"{name} = " + (f"float({number})" if g.kind == "script" else f"{number}.item()"))
    g.let(f"{g.float()} * {name}")


@operation(0.7)
def no_grad(g):
    if g.name != "Model":
        raise Skip("PyTorch does not load an archive with a region of which nothing is used")
    a, name = g.float(), g.new()
    inner = g.choose.choice(["torch.tanh({})", "{} * 2", "{}.clone()", "{}[:, 1:]", "{}.mean()",
                             "{}.view(-1)"])
    g.do(f"with torch.no_grad():\n    {name} = {inner.format(a)}", name)
    g.used.append(name)


@operation(0.8, only=("script",))
def branch(g):
    a, name = g.float(), g.new()
    asked = g.float(lambda t: t.dim() == 0 or t.numel() > 1)
    then, other = g.choose.choice([("{} * 2", "{} - 1"), ("torch.tanh({})", "{}"),
                                   ("{}.clone()", "{} + 1")])
    g.do(f"if bool({asked}.sum() > 0):\n    {name} = {then.format(a)}\n"
         f"else:\n    {name} = {other.format(a)}", name)


@operation(0.8)
def loop(g):
    a, name = g.float(), g.new()
    body = g.choose.choice(["torch.tanh({0} * 1.1)", "{0} * 0.5 + {1}", "{0} + {0}.mean()",
                            "{0}.sin()"]).format(name, a)
    write = g.choose.choice(["", f"\n    {name}.mul_(0.9)", f"\n    {name} += 0.1"])
    rounds = g.choose.choice([2, 3])
    g.do(f"{name} = {a}\nfor _ in range({rounds}):\n    {name} = {body}{write}", name)


@operation(0.5, only=("script",))
def appended(g):
    a = g.float(lambda t: t.dim() > 0)
    name, parts = g.new(), g.new("list")
    g.do(f"{parts} = [{a}]\nfor k in range(2):\n    {parts}.append({parts}[-1] * 0.5)\n"
         f"{name} = torch.stack({parts})", name)


@operation(0.4)
def complex_numbers(g):
    a = g.float(lambda t: t.dim() == 2 and t.shape[1] == 6)
    g.let(g.choose.choice(["torch.view_as_real(torch.view_as_complex({}).conj())",
                           "torch.view_as_complex({}).real", "torch.fft.rfft({}).abs()",
                           "torch.fft.irfft(torch.fft.rfft({}))"])
          .replace("complex({}", "complex({}.reshape(-1, 3, 2)").format(a))
