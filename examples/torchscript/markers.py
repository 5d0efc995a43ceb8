"""pipe_split() for models that become TorchScript.

torch.jit drops torch.distributed.pipelining.pipe_split() when it traces or scripts a model, because
that operator is declared to have no effect. The one defined here is kept, and `pipewright compile`
cuts at it. Import this module before loading such a model, too: its file refers to the operator.

    from markers import pipe_split      # then call pipe_split() between layers, as usual
"""
import torch

_library = torch.library.Library("pipewright", "FRAGMENT")
_library.define("pipe_split() -> ()", alias_analysis="CONSERVATIVE")
_library.impl("pipe_split", lambda: None, "CompositeExplicitAutograd")


def pipe_split():
    torch.ops.pipewright.pipe_split()
