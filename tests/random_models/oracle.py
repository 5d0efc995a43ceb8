"""Runs the model file with Python, to compare with pipewright's runs."""
import pathlib

import torch
import torch.nn.functional as F

import one_process


def load(path):
    """Loads an export or a TorchScript file as a module in training mode."""
    if path.suffix == ".pt2":
        return torch.export.load(path).module()
    return torch.jit.load(str(path)).train()


def retie(module, model):
    """Ties parameters that are one in `model`: the reader of a file makes them separate."""
    first = {}
    for name, parameter in model.named_parameters(remove_duplicate=False):
        same = first.setdefault(id(parameter), name)
        if same != name:
            owner, _, last = name.rpartition(".")
            setattr(module.get_submodule(owner), last, module.get_parameter(same))


REFUSES = (RuntimeError, AssertionError, IndexError)  # guards of an export; data out of range


def tensors_of(module):
    return [*module.parameters(), *module.buffers()]


def make_contiguous(module):
    """Makes weights contiguous, as in a package."""
    for tensor in tensors_of(module):
        tensor.data = tensor.data.contiguous()


def flat(outputs):
    return list(outputs) if isinstance(outputs, (tuple, list)) else [outputs]


def train(module, job, folder, columns):
    """Returns [[loss of each microbatch] of each step], and the gradients of the last step."""
    data = one_process.Data(job["data"], pathlib.Path(folder))
    optimizer, common = one_process.make_optimizer(job, module)
    losses = []
    for step in range(job["steps"]):
        optimizer.zero_grad()
        parts = one_process.microbatches(data, job, step)
        samples = sum(len(rows) for rows in parts)
        losses.append([])
        for rows in parts:
            inputs, _ = data.batch(rows)
            outputs = flat(module(*inputs))
            total, sum_of_means = 0, 0
            for loss in job["loss"]:
                output, weight = outputs[loss["output"]], loss.get("weight", 1)
                if "target" in loss:
                    output = F.mse_loss(output, columns[loss["target"]][torch.from_numpy(rows)])
                sum_of_means += weight * output.item()
                factor = weight * (len(rows) * len(parts) / samples)
                total = total + (output if factor == 1 else output * factor)
            losses[-1].append(sum_of_means)
            total.backward()
        for p in module.parameters():
            if p.grad is not None:
                p.grad.div_(len(parts))
        if common["clip_norm"]:
            torch.nn.utils.clip_grad_norm_(module.parameters(), common["clip_norm"])
        gradients = {name: p.grad.clone() for name, p in module.named_parameters()
                     if p.grad is not None}
        optimizer.step()
    return losses, gradients


@torch.no_grad()
def infer(module, parts):
    """Returns each output over the microbatches, joined as by `infer`."""
    outputs = [[torch.as_tensor(v).clone() for v in flat(module(*inputs))] for inputs in parts]
    if len(parts) == 1:
        return outputs[0]
    return [torch.stack(pieces) if pieces[0].dim() == 0 else torch.cat(pieces)
            for pieces in zip(*outputs)]
