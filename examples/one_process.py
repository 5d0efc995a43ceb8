"""Trains a model in one PyTorch process as job.json says, to compare with pipewright-run.

The data, its order, the losses, and the order of additions follow docs/reference/job.md.
"""
import fnmatch
import json
import math
import pathlib
from collections.abc import Mapping

import numpy as np
import torch
import torch.nn.functional as F
from safetensors.torch import load_file

GOLDEN = 0x9E3779B97F4A7C15
MASK = 2**64 - 1


def splitmix64(x):
    """Mixes an array of uint64, with wraparound."""
    x = x + np.uint64(GOLDEN)
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def epoch_order(samples, seed, epoch, shuffle):
    """Returns the sample numbers in the order in which this epoch visits them."""
    if not shuffle:
        return np.arange(samples)
    # Arrays, because numpy warns about scalars that wrap around.
    epoch_key = splitmix64(np.array([(seed + GOLDEN * (epoch + 1)) & MASK], dtype=np.uint64))
    keys = splitmix64(epoch_key ^ np.arange(samples, dtype=np.uint64))
    return np.argsort(keys, kind="stable")


def as_list(files):
    return [files] if isinstance(files, str) else files


class Data:
    """The samples of a job: `samples` is their number, batch(rows) returns (inputs, target)."""

    def __init__(self, data, folder):
        self.shuffle = data.get("shuffle", True)
        self.length = None
        if "tokens" in data:
            self.read_tokens(data, [folder / name for name in as_list(data["tokens"])])
        else:
            columns = {}
            for file in as_list(data.get("tensors", [])):
                for name, tensor in load_file(folder / file).items():
                    columns.setdefault(name, []).append(tensor)
            for name, files in data.get("arrays", {}).items():
                columns[name] = [torch.from_numpy(np.load(folder / f)) for f in as_list(files)]
            columns = {name: torch.cat(parts) for name, parts in columns.items()}
            self.inputs = [columns[name] for name in data["inputs"].values()]
            self.target = columns[data["target"]] if "target" in data else None
            self.length = columns[data["length"]] if "length" in data else None
        self.samples = len(self.inputs[0])

    def read_tokens(self, data, files):
        dtype = {"u8": "<u1", "u16": "<u2", "u32": "<u4"}[data.get("dtype", "u8")]
        length = data["sequence_length"]
        inputs, targets = [], []
        for file in files:
            tokens = np.fromfile(file, dtype=dtype)
            samples = max(0, len(tokens) - 1) // length
            used = torch.from_numpy(tokens[: samples * length + 1].astype(np.int64))
            inputs.append(used[: samples * length].view(samples, length))
            targets.append(used[1 : samples * length + 1].view(samples, length))
        self.inputs, self.target = [torch.cat(inputs)], torch.cat(targets)

    def batch(self, rows):
        rows = torch.from_numpy(rows)
        columns = [None if x is None else x[rows] for x in [*self.inputs, self.target]]
        if self.length is not None:  # cut to the longest of these samples
            most, longest = self.inputs[0].shape[1], max(1, int(self.length[rows].max()))
            columns = [x if x is None or x.dim() < 2 or x.shape[1] != most
                       else x[:, :longest].contiguous() for x in columns]
        return columns[:-1], columns[-1]


def microbatches(data, job, step):
    """Returns the rows of each microbatch of minibatch `step`, counted from 0."""
    count = job["microbatches"]
    size = job.get("minibatch_size") or count * job["microbatch_size"]
    per_epoch = data.samples // size
    if job.get("partial") and data.samples % size >= count:
        per_epoch += 1  # the rest of an epoch
    order = epoch_order(data.samples, job.get("seed", 0), step // per_epoch, data.shuffle)
    first = step % per_epoch * size
    return np.array_split(order[first : first + size], count)


def named_outputs(output, name=""):
    """Returns the tensors of an output by name, as a package names them: {"aux": {"a": y}} has aux_a.

    A ModelOutput of HuggingFace is a dictionary; tensors in tuples are named by their position.
    """
    if isinstance(output, torch.Tensor):
        return {name: output}
    items = output.items() if isinstance(output, Mapping) else enumerate(
        output if isinstance(output, (tuple, list)) else ())
    return {key: tensor for part, value in items
            for key, tensor in named_outputs(value, f"{name}_{part}" if name else str(part)).items()}


def loss_of(job, output, target):
    loss = job["loss"]
    kind = loss if isinstance(loss, str) else loss.get("type", "output")
    outputs, wanted = named_outputs(output), 0 if isinstance(loss, str) else loss.get("output", 0)
    output = outputs[wanted] if isinstance(wanted, str) else list(outputs.values())[wanted]
    options = {} if isinstance(loss, str) else {
        key: loss[key] for key in ("ignore_index", "label_smoothing", "beta", "log_target", "reduction")
        if key in loss}
    if kind in ("cross_entropy", "nll"):
        if loss_count(job, target) == 0:
            options["reduction"] = "sum"  # the mean of nothing is 0 here
        if isinstance(loss, str) or loss.get("class_dim") != 1:
            output, target = output.reshape(-1, output.shape[-1]), target.reshape(-1)
        return (F.cross_entropy if kind == "cross_entropy" else F.nll_loss)(output, target, **options)
    functions = {"mse": F.mse_loss, "l1": F.l1_loss, "smooth_l1": F.smooth_l1_loss, "kl_div": F.kl_div,
                 "bce_with_logits": F.binary_cross_entropy_with_logits}
    return functions[kind](output, target, **options) if kind in functions else output


def loss_count(job, target):
    """Returns the number of values that a loss averages; 1 if the model computes the loss."""
    loss = job["loss"]
    kind = loss if isinstance(loss, str) else loss.get("type")
    if kind not in ("cross_entropy", "nll"):
        samples = not isinstance(loss, str) and loss.get("reduction") == "batchmean"
        return 1 if kind is None else len(target) if samples else target.numel()
    ignored = -100 if isinstance(loss, str) else loss.get("ignore_index", -100)
    return int((target != ignored).sum())


def matches(patterns, name):
    return any(fnmatch.fnmatchcase(name, pattern) for pattern in as_list(patterns))


def make_optimizer(job, model):
    """Returns the optimizer, with a group per parameter, and the job's settings for all of them."""
    settings = dict(job["optimizer"])
    if settings["type"] == "muon":
        return make_muon(job, model, settings)
    kind = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW,
            "rmsprop": torch.optim.RMSprop, "adagrad": torch.optim.Adagrad}[settings.pop("type")]
    common = {key: settings.pop(key, None) for key in ("clip_norm", "lr_schedule")}
    groups = settings.pop("groups", [])
    parameters = []
    for name, p in model.named_parameters():
        if matches(job.get("freeze", []), name):
            p.requires_grad_(False)
        if not p.requires_grad:
            continue
        own = next((group for group in groups if matches(group["match"], name)), {})
        parameters.append({"params": [p], **{k: v for k, v in own.items() if k != "match"}})
    optimizer = kind(parameters, **settings)
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    return optimizer, common


class Several(list):
    """Optimizers that step together."""

    @property
    def param_groups(self):
        return [group for optimizer in self for group in optimizer.param_groups]

    def zero_grad(self):
        for optimizer in self:
            optimizer.zero_grad()

    def step(self):
        for optimizer in self:
            optimizer.step()


def make_muon(job, model, settings):
    """Makes Muon for matrices, and "others" for the rest, which has its own settings."""
    settings.pop("type")
    others = dict(settings.pop("others"))
    match = others.pop("match", [])
    common = {key: settings.pop(key, None) for key in ("clip_norm", "lr_schedule")}
    groups = settings.pop("groups", [])
    kinds = {"sgd": torch.optim.SGD, "adam": torch.optim.Adam, "adamw": torch.optim.AdamW}
    left, matrices = [], []
    for name, p in model.named_parameters():
        if matches(job.get("freeze", []), name):
            p.requires_grad_(False)
            continue
        own = next((group for group in groups if matches(group["match"], name)), {})
        group = {"params": [p], **{k: v for k, v in own.items() if k != "match"}}
        (left if p.dim() != 2 or matches(match, name) else matrices).append(group)
    rest = kinds[others.pop("type")](left, **others)
    optimizer = Several([torch.optim.Muon(matrices, **settings), rest])
    for group in optimizer.param_groups:
        group["base_lr"] = group["lr"]
    return optimizer, common


def rate_factor(schedule, job, step):
    """Returns the factor of the learning rate at a step, counted from 0."""
    if not schedule:
        return 1
    warmup, total = schedule.get("warmup", 0), schedule.get("steps", job["steps"])
    if step < warmup:
        return (step + 1) / warmup
    kind, end = schedule.get("type", "constant"), schedule.get("end", 0)
    done = min(1.0, (step - warmup) / max(1, total - warmup))
    return {"constant": lambda: 1,
            "cosine": lambda: end + (1 - end) * (1 + math.cos(math.pi * done)) / 2,
            "linear": lambda: 1 + (end - 1) * done,
            "polynomial": lambda: end + (1 - end) * (1 - done) ** schedule.get("power", 1),
            "step": lambda: schedule.get("gamma", 0.1) ** ((step - warmup) // schedule["every"]),
            }[kind]()


def train(model, job, folder, steps=None, after_gradients=None):
    """Trains in place. Yields (step from 1, [loss of each microbatch]) after each step."""
    torch.set_num_threads(job.get("threads", 1))
    data = Data(job["data"], pathlib.Path(folder))
    optimizer, common = make_optimizer(job, model)
    minibatches = job.get("accumulate", 1)
    for step in range(steps or job["steps"]):
        optimizer.zero_grad()
        losses = []
        batches = [data.batch(rows) for i in range(minibatches)
                   for rows in microbatches(data, job, step * minibatches + i)]
        counts = [loss_count(job, target) if target is not None else len(inputs[0])
                  for inputs, target in batches]
        for (inputs, target), count in zip(batches, counts):
            loss = loss_of(job, model(*inputs), target)
            losses.append(loss.item())
            # Averages over all targets of the step, after the division by the number of
            # microbatches.
            weight = count * len(counts) / max(1, sum(counts))
            (loss if weight == 1 else loss * weight).backward()
        for p in model.parameters():
            if p.grad is not None:
                p.grad.div_(len(batches))
        if common["clip_norm"]:
            torch.nn.utils.clip_grad_norm_(model.parameters(), common["clip_norm"])
        if after_gradients:
            after_gradients(step + 1, model)
        for group in optimizer.param_groups:
            group["lr"] = group["base_lr"] * rate_factor(common["lr_schedule"], job, step)
        optimizer.step()
        yield step + 1, losses


@torch.no_grad()
def evaluate(model, job, folder, steps=None):
    """Yields [loss of each microbatch] for each step, in evaluation mode and without training."""
    torch.set_num_threads(job.get("threads", 1))
    data = Data(job["data"], pathlib.Path(folder))
    model.eval()
    for step in range(steps or job["steps"]):
        batches = [data.batch(rows) for rows in microbatches(data, job, step)]
        yield [loss_of(job, model(*inputs), target).item() for inputs, target in batches]


def run(model, parser_options):
    """Implements the examples' reference.py: trains, prints a line per step, saves."""
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
