"""One random model with random cuts, conf and job, compared with its file run by Python."""
import contextlib
import copy
import importlib.util
import io
import json
import pathlib
import random
import re
import shutil
import sys
import warnings

import torch
from safetensors.torch import load_file, save_file

import model as models
import oracle
from programs import BUILD, reason_of

# Patterns of the compiler's own faults in its output.
INTERNAL = r"fault of pipewright|INTERNAL ASSERT|Exception raised from|terminate called"
# The only reason for which a run may refuse a compiled package.
REFUSED_BY_RUNS = r"depend on the data, it cannot be sent"
NOTHING_TO_TRAIN = r"the loss does not depend on any trainable weight"


class Failure(Exception):
    """kind: a short text that is the same for the same fault; text: details."""

    def __init__(self, kind, text):
        super().__init__(kind + "\n" + text)
        self.kind, self.text = kind, text


class NotTried(Exception):
    """PyTorch itself does not run or export this model."""


class Refused(Exception):
    """A program refused the model. Has the reason, and the whole output."""

    def __init__(self, reason, text):
        super().__init__(reason)
        self.text = text


class Trial:
    def __init__(self, seed, at, programs):
        self.seed, self.at, self.programs = seed, pathlib.Path(at), programs
        self.choose = random.Random(f"trial {seed}")
        self.uncut = False  # one module: differences are then not due to cuts
        self.replicas = self.contiguous = False
        self.written = None
        self.fixed = False  # fixed batch size
        self.differs = []  # (error relative to the norm, what, both values)

    # The model and its file.

    def write_model(self):
        choose = self.choose
        self.kind = choose.choices(["export", "script", "trace"], [7, 2, 1])[0]
        self.markers = choose.random() < 0.5
        for attempt in range(20):
            try:
                self.written = models.write(self.seed * 100 + attempt, self.kind, self.markers)
            except models.Skip:
                continue
            self.load_source()
            if self.runs():
                return
        raise NotTried("no model that PyTorch trains")

    def load_source(self):
        path = self.at / "the_model.py"
        path.write_text(self.written.text)
        spec = importlib.util.spec_from_file_location(f"the_model_{self.seed}", path)
        self.module = importlib.util.module_from_spec(spec)
        sys.modules[spec.name] = self.module  # torch.jit and torch.export look it up there
        spec.loader.exec_module(self.module)

    def make(self):
        torch.manual_seed(self.seed)
        return self.module.Model()

    def sample(self, rows, kind="random"):
        return [models.sample(self.choose, dtype, (rows, *row), kind)
                for dtype, row in self.written.inputs.values()]

    def trained(self):
        """Returns the outputs that may be losses."""
        return [i for i, kind in enumerate(self.written.kinds) if kind in ("rows", "loss")]

    def runs(self):
        """Returns True if PyTorch runs forward and backward twice, and all is finite."""
        if not self.trained():
            return False
        try:
            module = self.make()
            for _ in range(2):
                outputs = oracle.flat(module(*self.sample(5)))
                total = sum(outputs[i].float().square().mean() for i in self.trained())
                total.backward()
                if not total.isfinite():
                    return False
            return all(p.grad is None or p.grad.isfinite().all() for p in module.parameters())
        except Exception:
            return False

    def save(self):
        choose, module = self.choose, self.make()
        self.batch = choose.randint(2, 5)
        self.fixed = choose.random() < 0.35 or self.kind == "trace"
        example = tuple(self.sample(self.batch))
        if self.kind == "export":
            self.strict = choose.random() < 0.15
            dynamic = {name: {0: torch.export.Dim("batch", min=1, max=64)}
                       for name in self.written.inputs}
            for attempt in [None] if self.fixed else [dynamic, None]:
                try:
                    program = torch.export.export(copy.deepcopy(module), example,
                                                  strict=self.strict, dynamic_shapes=attempt)
                    self.fixed = attempt is None
                    break
                except Exception as error:
                    if attempt is None:
                        raise NotTried(f"torch.export: {type(error).__name__}")
            self.path = self.at / "model.pt2"
            torch.export.save(program, self.path)
        else:
            try:
                made = (torch.jit.script(module) if self.kind == "script" else
                        torch.jit.trace(copy.deepcopy(module), example, check_trace=False))
            except Exception as error:
                raise NotTried(f"torch.jit.{self.kind}: {type(error).__name__}")
            self.path = self.at / "model.pt"
            made.save(str(self.path))

    def load(self):
        """Returns the file's module, loaded once because Python reads archives slowly."""
        if self.kind != "export":
            module = oracle.load(self.path)
        else:
            self.loaded = getattr(self, "loaded", None) or oracle.load(self.path)
            module = copy.deepcopy(self.loaded)
        oracle.retie(module, self.make())
        if self.contiguous:
            oracle.make_contiguous(module)
        return module

    # Cuts, conf, job.

    def compile(self):
        shared = ["--shared", "transmit"] if self.choose.random() < 0.35 else []
        while True:
            self.options = ["--split", "equal:1"] if self.uncut else self.way() + shared
            try:
                return self.compile_with(self.options)
            except Refused as refused:
                empty = re.search(r'submodule "(\w+)" has no operations', refused.text)
                if not empty:
                    raise
                self.written.paths.remove(empty[1])  # no cut is possible there

    def way(self):
        """Returns options that say where to cut."""
        choose, paths = self.choose, self.written.paths
        ways = ["equal", "equal", "balanced", "file"] + (["markers"] * 5 if self.markers else [])
        if paths:
            ways += ["modules", "modules", "after"]
        if self.kind != "export":
            ways = [w for w in ways if w != "balanced"]
        way = choose.choice(ways)
        some = sorted(choose.sample(paths, choose.randint(1, min(3, len(paths)))),
                      key=paths.index) if paths else []
        if way in ("equal", "balanced"):
            return ["--split", f"{way}:{choose.randint(2, 4)}"]
        if way == "modules":
            return ["--split", "modules:" + ",".join(some)]
        if way == "after":
            return ["--split-after", ",".join(some)]
        if way == "file":
            levels = sorted(choose.randrange(3) for _ in paths)
            self.file("split.json", dict(zip(paths, levels)))
            return ["--split", self.at / "split.json"]
        return []

    def compile_with(self, options):
        package = self.at / "model.pkg"
        shutil.rmtree(package, ignore_errors=True)
        code, out = self.programs.call(self.at, "pipewright", "compile", self.path, "-o", package,
                                       *options)
        if code == 0:
            self.package = package
            self.manifest = json.loads((package / "manifest.json").read_text())
            return
        if code != 1 or re.search(INTERNAL, out):
            raise Failure("compile: " + reason_of(out), f"exit code {code}\n{out}")
        raise Refused("compile: " + reason_of(out), out)

    def file(self, name, value):
        (self.at / name).write_text(json.dumps(value))
        return self.at / name

    def write_conf(self):
        """Writes a conf: stages of neighboring modules, on ranks in an order that the schedule permits."""
        choose, modules = self.choose, len(self.manifest["modules"])
        stages = choose.randint(1, min(4, modules))
        bounds = sorted(choose.sample(range(1, modules), stages - 1))
        of_module = [sum(m >= b for b in bounds) for m in range(modules)]
        schedule = choose.choice(["gpipe", "1f1b", "1f1b", "zb-h1", "zb-h2", "interleaved", "bfs",
                                  "zb1p", "zbv"])
        ranks = choose.randint(1, stages)
        if schedule == "zbv" and stages % 2:
            schedule = "1f1b"
        if schedule in ("interleaved", "bfs", "zb1p"):
            place = [[s % ranks] for s in range(stages)]
        elif schedule == "zbv":
            ranks = stages // 2
            place = [[s if s < ranks else stages - 1 - s] for s in range(stages)]
        else:
            place = list(range(ranks)) + [choose.randrange(ranks) for _ in range(stages - ranks)]
            choose.shuffle(place)
            place = [[p] for p in place]
            if schedule in ("gpipe", "1f1b") and choose.random() < 0.12:
                place[choose.randrange(stages)] = [ranks, ranks + 1]
                used = sorted({r for p in place for r in p})
                place = [[used.index(r) for r in p] for p in place]
                ranks = len(used)
                self.replicas = True
        self.ranks, self.schedule = ranks, schedule
        self.conf = self.file("conf.json", {
            "module_to_stage_map": of_module,
            "stage_to_rank_map": {str(s): p for s, p in enumerate(place)}})

    def write_job(self):
        choose, written = self.choose, self.written
        batch = self.batch if self.fixed else choose.randint(2, 4)
        body = choose.choice(["auto", "lists", "lists", "autograd"])
        count = choose.choice([4, 5]) if body == "lists" else choose.randint(1, 4)
        steps = choose.choice([3, 4]) if body == "lists" else 2
        uneven = not self.fixed and choose.random() < 0.2
        rows = count * batch + (choose.randint(1, count) if uneven else 0)
        self.columns = {}
        kinds = [choose.choice(["random", "random", "sorted", "constant", "repeated"])
                 for _ in range(steps * rows // batch + 1)]
        torch.manual_seed(self.seed + 1)
        blocks = [self.sample(batch, kind) for kind in kinds]
        for i, name in enumerate(written.inputs):
            column = torch.cat([block[i] for block in blocks])
            self.columns["in_" + name] = column[:steps * rows].contiguous()
        trained = self.trained()
        trained = choose.sample(trained, choose.randint(1, len(trained)))
        losses = []
        for output in trained:
            loss = {"output": output}
            if written.kinds[output] == "rows":
                target = torch.randn(steps * rows, *written.rows[output])
                self.columns[f"t{output}"] = target.to(written.dtypes[output])
                loss.update(type="mse", target=f"t{output}")
            if choose.random() < 0.3:
                loss["weight"] = 0.5
            losses.append(loss)
        save_file(self.columns, self.at / "data.safetensors")
        names = dict(zip(self.manifest["inputs"], self.columns))
        self.job = {
            "data": {"tensors": "data.safetensors", "inputs": names,
                     "shuffle": choose.random() < 0.3},
            "loss": losses, "schedule": self.schedule, "microbatches": count, "steps": steps,
            "body": body, "optimizer": choose.choice([
                {"type": "sgd", "lr": 0.05}, {"type": "sgd", "lr": 0.02, "momentum": 0.9},
                {"type": "sgd", "lr": 0.02, "momentum": 0.9, "weight_decay": 0.01},
                {"type": "adamw", "lr": 1e-3}]), "log_every": 1}
        self.job["minibatch_size" if uneven else "microbatch_size"] = rows if uneven else batch
        if choose.random() < 0.2:
            self.job["recompute"] = True
        if choose.random() < 0.1:
            self.job["reduce"] = "exact"
        if choose.random() < 0.2:
            self.job["optimizer"]["clip_norm"] = choose.choice([0.01, 0.1, 1.0])
        self.file("job.json", self.job)

    # Runs.

    def run(self, *arguments):
        mpi = self.choose.random() < 0.02
        if mpi:
            code, out = self.programs.call(self.at, "mpirun", "-n", self.ranks,
                                           BUILD / "pipewright-run", *arguments)
        else:
            code, out = self.programs.call(self.at, "pipewright-run", "--in-process", self.ranks,
                                           *arguments)
        if code == 0:
            return out
        if re.search(REFUSED_BY_RUNS, out):
            raise Refused(f"{arguments[0]}: " + reason_of(out), out)
        raise Failure(f"{arguments[0]}: " + reason_of(out), f"exit code {code}\n{out}")

    def compare(self, what, ours, theirs):
        """Notes differences in bits."""
        if ours.dtype != theirs.dtype or ours.shape != theirs.shape:
            raise Failure(f"{what.split()[0]}: another form",
                          f"{what}: {ours.dtype} {list(ours.shape)}, PyTorch has {theirs.dtype} "
                          f"{list(theirs.shape)}")
        # Copies, because a single element counts as contiguous with any stride, and cannot be viewed as
        # bytes.
        a, b = (torch.empty(t.numel(), dtype=t.dtype).copy_(t.detach().resolve_conj().flatten())
                for t in (ours, theirs))
        if not a.numel() or torch.equal(a.view(torch.uint8), b.view(torch.uint8)):
            return
        kind = torch.complex128 if a.is_complex() else torch.float64
        a, b = a.to(kind), b.to(kind)
        error = (a - b).abs().nan_to_num(0).norm().item() / (b.nan_to_num(0).norm().item() + 1e-3)
        if not torch.equal(a.isnan(), b.isnan()):
            error = float("inf")
        self.differs.append((error, what, f"{ours}\nPyTorch has {theirs}"))

    def train(self):
        module = self.load()
        try:
            losses, gradients = oracle.train(module, self.job, self.at, self.columns)
        except oracle.REFUSES as error:
            raise NotTried(f"the file does not run: {type(error).__name__}") from error
        if not all(abs(loss) < 1e6 for loss in sum(losses, [])):
            raise NotTried("losses grow")
        files = [self.at / name for name in ("metrics.jsonl", "trained", "gradients")]
        for file in files:
            file.unlink(missing_ok=True)
        try:
            out = self.run("train", self.package, self.at / "job.json", "--conf", self.conf,
                           "--metrics", files[0], "--save", files[1], "--save-gradients", files[2])
        except Failure as failure:
            # PyTorch runs backward from a view made without gradients, and trains no weight.
            if not gradients and re.search(NOTHING_TO_TRAIN, failure.text):
                raise Refused("train: " + NOTHING_TO_TRAIN, failure.text) from failure
            raise
        ours = [json.loads(line)["losses"] for line in files[0].read_text().splitlines()]
        for step, (a, b) in enumerate(zip(ours, losses), 1):
            self.compare(f"loss of step {step}", torch.tensor(a), torch.tensor(b))
        if len(ours) != len(losses) and gradients:
            raise Failure("steps are missing", f"{len(ours)} of {len(losses)}\n{out}")
        found = load_file(files[2]) if files[2].exists() else {}
        first = {n: group[0] for group in self.manifest.get("tied", []) for n in group}
        theirs = {first.get(n, n): g for n, g in gradients.items()}
        # Weights that no loss reaches have zeros as gradients in the file.
        found = {n: g for n, g in found.items() if n in theirs or g.any()}
        if set(found) != set(theirs):
            raise Failure("gradients of other weights",
                          f"only ours: {sorted(set(found) - set(theirs))}\n"
                          f"only PyTorch's: {sorted(set(theirs) - set(found))}")
        for name in found:
            self.compare(f"gradient of {name}", found[name], theirs[name])
        saved = load_file(files[1])
        made = self.make()
        # A file of a trace has buffers that are not persistent in the model, too.
        held = {**dict(made.named_parameters(remove_duplicate=False)),
                **dict(made.named_buffers(remove_duplicate=False))}
        memory = {held[name].untyped_storage().data_ptr() for name in saved if name in held}
        # Tensors that only share memory in the model follow the file's module.
        made.load_state_dict(module.state_dict(), strict=False)
        model = made.state_dict()
        for name, value in model.items():
            if name not in saved and value.untyped_storage().data_ptr() not in memory:
                raise Failure("a weight was not saved", name)
        # An export omits weights that it does not use: they keep their values.
        state = {**model, **module.state_dict()}
        buffers = dict(module.named_buffers())
        for name, value in saved.items():
            if name not in state:
                raise Failure("a weight that the model has not", name)
            if self.replicas and name in buffers:
                continue  # each replica has seen other microbatches
            self.compare(f"weight {name}", value, state[name])

    def infer(self):
        choose = random.Random(f"infer {self.seed}")
        parts = choose.choice([1, 1, 2, 3])
        rows = self.batch if self.fixed else choose.randint(2, 4)
        torch.manual_seed(self.seed + 2)
        inputs = [self.sample(rows, choose.choice(["random", "sorted", "constant"]))
                  for _ in range(parts)]
        if re.search("BatchNorm|InstanceNorm|Dropout", self.written.text):
            module, state = self.make(), self.load().state_dict()
            module.load_state_dict(state, strict=False)
            module.eval()
            if self.contiguous:
                oracle.make_contiguous(module)
            # The file of a trace computes with Python's numbers in float64, the model does not.
            if self.kind == "trace":
                made = torch.jit.trace(module, tuple(inputs[0]), check_trace=False)
                made.save(str(self.at / "eval.pt"))
                module = torch.jit.load(str(self.at / "eval.pt"))
                module.load_state_dict(state, strict=False)
        else:
            module = self.load()
        try:
            theirs = oracle.infer(module, [[t.clone() for t in p] for p in inputs])
        except oracle.REFUSES:
            return  # includes outputs of microbatches that cannot be joined
        columns = dict(zip(self.manifest["inputs"], map(torch.cat, zip(*inputs))))
        save_file({k: v.contiguous() for k, v in columns.items()}, self.at / "in.safetensors")
        self.run("infer", self.package, "--conf", self.conf, "--input", self.at / "in.safetensors",
                 "-o", self.at / "result.safetensors", "--microbatches", parts, "--matmul",
                 "libtorch")
        found = load_file(self.at / "result.safetensors")
        names = [name + "_out" if name in self.manifest["inputs"] else name
                 for name in self.manifest["outputs"]]
        for name, value in zip(names, theirs, strict=True):
            what = f"output {name} of infer, {parts} microbatches"
            self.compare(what, found[name], value)

    def check(self):
        """Returns the result, or raises an exception."""
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            self.write_model()
            said = io.StringIO()  # PyTorch's output about what it does not export
            with contextlib.redirect_stdout(said), contextlib.redirect_stderr(said):
                self.save()
                try:
                    oracle.flat(self.load()(*self.sample(self.batch)))
                except Exception as error:
                    raise NotTried(f"the file does not run: {type(error).__name__}")
            self.compile()
            self.write_conf()
            self.write_job()
            self.train()
            self.infer()
            return self.with_cures() if self.differs else "equal to the bit"

    def fail_where_bits_differ(self, cures=()):
        if self.differs:
            error, what, values = max(self.differs)
            raise Failure(f"{what.split()[0]} differs" + "".join(f" with {c}" for c in cures),
                          f"{what} differs by {error:.2g} of its norm: {values}\n" +
                          "\n".join(f"{e:.2g} {w}" for e, w, _ in self.differs))

    def with_cures(self):
        """Where docs/internals/numbers.md permits rounding, applies the measures that it lists to get
        PyTorch's bits."""
        largest = max(self.differs)[0]
        # Most packages keep weights in the model's layout, some make them contiguous.
        orders = [False] if all(t.is_contiguous() for t in oracle.tensors_of(self.load())) else [False, True]
        for self.contiguous in orders:
            cures = self.apply_cures()
            if cures:
                self.differs = []
                self.train()
                self.infer()
            if not self.differs:
                break
        if self.differs and self.kind == "export":
            self.loaded.graph.eliminate_dead_code()
            self.loaded.recompile()
            cures.append("no unused operations")
            self.differs = []
            self.train()
            self.infer()
        self.fail_where_bits_differ(cures)
        size = "below 1e-5" if largest < 1e-5 else "below 1e-3" if largest < 1e-3 else "amplified"
        return f"equal to the bit with {' and '.join(cures)}; {size} without"

    def apply_cures(self):
        cures, options = ["contiguous weights"] if self.contiguous else [], self.options
        if self.cuts_at_writes():
            return [*cures, self.compile_whole("writes in place")]
        if self.hands_on_an_operand():
            return [*cures, self.compile_whole("operations that return their operand")]
        if not cures and any("infer" in what for _, what, _ in self.differs):
            return []  # the measures below only change gradients
        if self.replicas and self.job.get("reduce") != "exact":
            self.file("job.json", {**self.job, "reduce": "exact"})
            cures.append('"reduce": "exact"')
        if self.manifest.get("shared"):
            options = [*options, "--shared", "transmit"]
            cures.append("--shared transmit")
        if self.moves_operations():
            options = ["--split", f"equal:{len(self.manifest['modules'])}", "--shared", "transmit"]
            cures.append("a --split that moves nothing")
        if options != self.options:
            self.compile_with(options)
            if self.cuts_at_writes():  # the cure's own cuts
                cures.append(self.compile_whole("writes in place"))
        return cures

    def compile_whole(self, what):
        self.compile_with(["--split", "equal:1"])
        self.ranks, self.conf = 1, self.file("conf.json", {
            "module_to_stage_map": [0], "stage_to_rank_map": {"0": [0]}})
        self.file("job.json", {**self.job, "schedule": "1f1b"})
        return "no cut at " + what

    def cuts_at_writes(self):
        return self.writes_to_copies() or self.hands_on_written_views()

    def code(self):
        return "".join((self.package / module["code"]).read_text()
                       for module in self.manifest["modules"])

    def writes_to_copies(self):
        """Returns True if a module writes in place to a copy of a received value; the copy has no gaps."""
        return re.search(r"_own = torch\.clone\(", self.code())

    def calls_and_given(self):
        """Of each module: (results, name, first argument) of its operations, and what it returns."""
        for module in self.manifest["modules"]:
            text = (self.package / module["code"]).read_text()
            calls = re.findall(r"^ +([\w, ]+?),? = torch\.(\w+)\((\w+)", text, re.M)
            given = re.search(r"^    (_\d+) = \((.*)\)\n    return \1$|^    return (.*)", text, re.M)
            yield calls, re.findall(r"\w+", (given[2] or given[3]) if given else "")

    def hands_on_an_operand(self):
        """Whether a script's module hands on both what an operation was given and what it returned,
        which may be the same tensor."""
        same = "to contiguous flatten atleast_1d atleast_2d atleast_3d".split()
        return self.kind != "export" and any(
            name in same and made in given and of in given
            for calls, given in self.calls_and_given() for made, name, of in calls)

    def hands_on_written_views(self):
        """Returns True if a module passes on a value whose memory it has views of, and writes to."""
        views = set("slice select transpose permute unfold view t squeeze unsqueeze expand detach "
                    "movedim narrow diagonal chunk split unbind reshape flatten as_strided mT ravel "
                    "view_as expand_as swapaxes unflatten contiguous alias numpy_T to".split())
        for calls, given in self.calls_and_given():
            root, viewed, written = {}, set(), set()
            for made, name, of in calls:
                memory = root.get(of, of)
                if name in views or name.endswith("_"):
                    root.update({one: memory for one in made.split(", ")})
                    (viewed if name in views else written).add(memory)
            if any(root.get(g, g) in viewed & written for g in given):
                return True
        return False

    def moves_operations(self):
        """Returns True if --split FILE has moved operations to a module before or after their place."""
        def lines():
            found = re.findall(r"^ +#.*the_model\.py:(\d+)", self.code(), re.M)
            return [a for a, b in zip(found, [None, *found]) if a != b]
        if self.options[:1] != ["--split"] or self.options[1] != self.at / "split.json":
            return False
        cut = lines()
        self.compile_with(["--split", "equal:1"])
        whole = lines()
        self.compile_with(self.options)
        return cut != whole

    def about(self):
        """Returns a description of a failure for people."""
        lines = [f"{self.kind}, " + ("one batch size" if self.fixed else "any batch size")]
        lines.append("compile " + " ".join(map(str, getattr(self, "options", []))))
        for name in ("conf.json", "split.json", "job.json"):
            if (self.at / name).exists():
                lines.append(f"{name}: {(self.at / name).read_text()}")
        return "\n".join(lines) + "\n\n" + (self.written.text if self.written else "")
