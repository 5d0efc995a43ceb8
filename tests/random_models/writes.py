"""Statements that write: into values, into views of them, into buffers."""
from model import Skip
from operations import operation


@operation(3)
def write(g):
    a, b = g.written(), g.float()
    g.do(g.choose.choice([
        "{a}.mul_(1.5)", "{a}.add_({b})", "{a}[:, 1:3].mul_(2)", "{a}[:, 0] = {b}[:, 1]",
        "{a} += {b}", "{a} *= 0.5", "{a}.clamp_(-1, 1)", "{a}[0] = 0", "{a}[1:] += 1",
        "{a}.copy_({b})", "{a}.relu_()", "torch.relu_({a})", "{a}[..., 0].zero_()",
        "{a}.transpose(0, -1)[0].add_(1)", "{a}.fill_(0.5)", "{a}.masked_fill_({b} > 0, 0.1)",
        "{a}.view(-1)[1:3].copy_({b}.reshape(-1)[:2])", "{a}[:, :2] = {a}[:, 1:3] * 2",
        "{a}.sub_({b}, alpha=0.5)", "{a}[:2].add_({b}[:2])", "{a}.squeeze_(0)", "{a}.t_()",
        "{a}[::2] = {b}[::2]", "{a}[..., 1] = {a}[..., 0]", "F.relu({a}, inplace=True)",
        "{a}.addcmul_({b}, {b}, value=0.1)", "{a}.tanh_()"]).format(a=a, b=b))


@operation(1)
def write_without_gradient(g):
    a, b = g.written(), g.float()
    statement = g.choose.choice([
        "{a}.clamp_(-1, 1)", "{a}.mul_(0.5)", "{a}[{a} > 0.3] = 0.3", "{a}.add_({b})", "{a}.copy_({b})",
        "{a}[:, 0] = {b}[:, 1]", "{a}.view(-1)[:2].zero_()", "{a}.sub_({a}.mean(0))"]).format(a=a, b=b)
    g.do(f"with torch.no_grad():\n    {statement}")


@operation(2)
def write_into_a_view(g):
    """A new tensor, a view of it, and a write to either."""
    a = g.float(lambda t: t.dim() > 0)
    base = g.let(f"{a} * 1.5")
    view = g.let(g.choose.choice(["{}[..., 1:3]", "{}.view(-1)", "{}[:, 0]", "{}.transpose(0, -1)",
                                  "{}[1:]", "{}.view(-1, 2)", "{}[..., None]", "{}.detach()",
                                  "{}[:, :2][1:]", "{}.unsqueeze(0)", "{}[..., :2].select(-1, 0)"])
                 .format(base))
    if g.choose.random() < 0.4 and g.writer.markers:
        g.lines.append("pipe_split()")
    target = g.choose.choice([base, view, view])
    g.do(g.choose.choice(["{}.mul_(0.5)", "{}.add_(1)", "{}[0] = 0", "{}.zero_()", "{}.tanh_()",
                          "{}.add_({o})", "{} += {o}"])
         .replace("{o}", g.float()).format(target))


@operation(2.5)
def buffer(g):
    """A new or existing buffer: read, or written from a value."""
    a = g.float()
    if not g.buffers or g.choose.random() < 0.4:
        text = g.choose.choice([
            "self.register_buffer('{1}', torch.zeros(6))",
            "self.register_buffer('{1}', torch.ones(()))",
            "self.register_buffer('{1}', torch.randn(2, 6))",
            "self.register_buffer('{1}', torch.eye(6))",
            "self.register_buffer('{1}', torch.zeros((), dtype=torch.long))",
            "self.register_buffer('{1}', torch.arange(6))",
            "self.register_buffer('{1}', torch.randn(6), persistent=False)"])
        g.buffers.append(g.make("b", text))
    b = g.choose.choice(g.buffers)
    if g.choose.random() < 0.5:
        g.let(g.choose.choice(["{a} + {b}", "{a} * {b}", "{a} - {b}[0]", "{a} * (1 + {b}.cos())",
                               "{a} @ {b}", "{b} * 2", "{b}[:2]", "{b}.clone()", "{b}.view(-1)",
                               "{a}[:, {b}]", "{b}.sum() + {a}", "F.linear({a}, {b})"])
              .format(a=a, b=b))
    else:
        new = g.choose.choice(["{a}.detach()", "{a}.detach().mean(0)", "{a}.detach().sum()",
                               "{a}.detach().abs().max()", "{a}.detach()[0]", "1"]).format(a=a)
        g.do(g.choose.choice(["{b}.add_({v})", "{b}.mul_(0.9).add_({v})", "{b}.copy_({v})",
                              "{b} += 1",
                              "{b}[0] = {v}", "{b}[1:3].add_({v})", "{b}.lerp_({v}, 0.1)",
                              "{b} *= 0.9",
                              "{b}.copy_({b}.roll(1))", "{b}.view(-1)[0].add_({v})", "{b}.zero_()",
                              "{b}.copy_(torch.maximum({b}, {v}))", "{b}.fill_({v})",
                              "{b}[:] = {v}"])
             .format(b=b, v=new))


@operation(0.5, only=("export",))
def assigned_buffer(g):
    if not g.buffers:
        raise Skip("none")
    b = g.choose.choice([b for b in g.buffers if g.value(b).is_floating_point()] or g.buffers)
    a = g.float()
    g.do(g.choose.choice(["{b} = {b} * 0.9 + {a}.detach().mean()",
                          "{b} = ({b} + {a}.detach().mean(0)).detach()",
                          "{b} = {b} + 1"]).format(a=a, b=b))


@operation(0.25)
def buffer_over_buffer(g):
    b = [b for b in g.buffers if g.value(b).dim() > 0]
    if not b:
        raise Skip("none")
    b = g.choose.choice(b)
    g.buffers.append(g.make("b", "self.register_buffer('{1}', " + b + g.choose.choice(["[:2]",
        ".t()", "", ".view(-1)"]) + ")"))


@operation(0.2)
def buffer_of_parameter(g):
    if not g.parameters:
        raise Skip("none")
    p = g.choose.choice(g.parameters)
    b = g.make("b", "self.register_buffer('{1}', " + p + ".detach()" + g.choose.choice(["", "[0]",
        ".t()"]) + ")")
    g.let(f"{g.float()} * {b}.sum()")
