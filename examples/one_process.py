"""Trains a model as job.json says in one PyTorch process: what pipewright-run is compared with.

Data, their order, losses and the order of the additions are those of docs/job.md.
"""
import json
import pathlib

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1


def splitmix64(x):
    """x: an array of uint64; wraps around."""
    x = x + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def epoch_order(samples, seed, epoch, shuffle):
    """The numbers of the samples in the order in which this epoch visits them."""
    if not shuffle:
        return np.arange(samples)
    # Arrays, because numpy warns of a scalar that wraps around.
    epoch_key = splitmix64(np.array([(seed + GOLDEN * (epoch + 1)) & MASK], dtype=np.uint64))
    keys = splitmix64(epoch_key ^ np.arange(samples, dtype=np.uint64))
    return np.argsort(keys, kind="stable")


class Data:
    """samples: how many; batch(rows) -> (inputs, target)."""

    def __init__(self, data, folder):
        self.shuffle = data.get("shuffle", True)
        if "tokens" in data:
            dtype = {"u8": "<u1", "u16": "<u2", "u32": "<u4"}[data.get("dtype", "u8")]
            tokens = np.fromfile(folder / data["tokens"], dtype=dtype)
            length = data["sequence_length"]
            self.samples = (len(tokens) - 1) // length
            used = torch.from_numpy(tokens[: self.samples * length + 1].astype(np.int64))
            self.inputs = [used[:-1].view(self.samples, length)]
            self.target = used[1:].view(self.samples, length)
        else:
            tensors = load_file(folder / data["tensors"])
            self.inputs = [tensors[name] for name in data["inputs"].values()]
            self.target = tensors[data["target"]] if "target" in data else None
            self.samples = len(self.inputs[0])

    def batch(self, rows):
        rows = torch.from_numpy(rows)
        return [x[rows] for x in self.inputs], None if self.target is None else self.target[rows]


def microbatches(data, job, step):
    """Rows of each microbatch of a step, counted from 0."""
    size = job["microbatches"] * job["microbatch_size"]
    per_epoch = data.samples // size
    order = epoch_order(data.samples, job.get("seed", 0), step // per_epoch, data.shuffle)
    first = step % per_epoch * size
    return order[first : first + size].reshape(job["microbatches"], job["microbatch_size"])


def loss_of(job, output, target):
    loss = job["loss"]
    kind = loss if isinstance(loss, str) else loss.get("type", "output")
    outputs = output if isinstance(output, (tuple, list)) else [output]
    output = outputs[0 if isinstance(loss, str) else loss.get("output", 0)]
    if kind == "cross_entropy":
        return F.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1))
    if kind == "mse":
        return F.mse_loss(output, target)
    return output


def make_optimizer(job, model):
    settings = dict(job["optimizer"])
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[settings.pop("type")]
    return kind([p for p in model.parameters() if p.requires_grad], **settings)


def train(model, job, folder, steps=None, after_gradients=None):
    """Trains in place; yields (step from 1, [loss of each microbatch]) after each step."""
    torch.set_num_threads(job.get("threads", 1))
    data = Data(job["data"], pathlib.Path(folder))
    optimizer = make_optimizer(job, model)
    for step in range(steps or job["steps"]):
        optimizer.zero_grad()
        losses = []
        for rows in microbatches(data, job, step):
            inputs, target = data.batch(rows)
            loss = loss_of(job, model(*inputs), target)
            loss.backward()
            losses.append(loss.item())
        for p in model.parameters():
            if p.grad is not None:
                p.grad.div_(job["microbatches"])
        if after_gradients:
            after_gradients(step + 1, model)
        optimizer.step()
        yield step + 1, losses


@torch.no_grad()
def evaluate(model, job, folder, steps=None):
    """[loss of each microbatch] of each step, in evaluation mode and without training."""
    torch.set_num_threads(job.get("threads", 1))
    data = Data(job["data"], pathlib.Path(folder))
    model.eval()
    for step in range(steps or job["steps"]):
        batches = [data.batch(rows) for rows in microbatches(data, job, step)]
        yield [loss_of(job, model(*inputs), target).item() for inputs, target in batches]


def run(model, parser_options):
    """What the examples' reference.py do: train, print a line a step, save."""
    import time

    from safetensors.torch import save_model

    path = pathlib.Path(parser_options.job)
    job = json.loads(path.read_text())
    if parser_options.threads:
        job["threads"] = parser_options.threads
    start = time.perf_counter()
    for step, losses in train(model, job, path.parent, parser_options.steps):
        line = {"step": step, "loss": sum(losses) / len(losses), "losses": losses,
                "seconds": round(time.perf_counter() - start, 3)}
        if parser_options.hex:
            line["hex"] = [x.hex() for x in losses]
        print(json.dumps(line), flush=True)
    if parser_options.save:
        save_model(model, parser_options.save)


def add_options(parser):
    parser.add_argument("job", help="job.json")
    parser.add_argument("--steps", type=int, help="instead of the job's")
    parser.add_argument("--threads", type=int, help="instead of the job's")
    parser.add_argument("--save", help="final weights, as safetensors")
    parser.add_argument("--hex", action="store_true", help="print the losses' bits too")
