"""PipeDream's schedules against their update rules, written down in one process."""
import copy
import json
import os
import shutil
import unittest

import torch
import torch.nn.functional as F
from safetensors.torch import load_file
from torch.func import functional_call

from support import ADAMW, SGD, Case, bits, export_gpt, gpt, one_process, run_ranks, token_job

LONG = os.environ.get("PIPEWRIGHT_LONG")


def simulate(model, job, folder, ranks, stage_of, delay=None):
    """Trains in one process. In stage s of P, microbatch m (counted over all steps) uses the newest
    weights at its forward, which runs after the backwards of microbatches up to m - (P - 1 - s);
    with a delay, the weights from that many steps before its own."""
    parameters = dict(model.named_parameters())
    kind = {"sgd": torch.optim.SGD, "adamw": torch.optim.AdamW}[job["optimizer"]["type"]]
    optimizer = kind(parameters.values(), **{k: v for k, v in job["optimizer"].items() if k != "type"})
    history = [{n: p.detach().clone() for n, p in parameters.items()}]
    data, count = one_process.Data(job["data"], folder), job["microbatches"]
    losses, mixed = [], 0
    for step in range(job["steps"]):
        sums = {}
        losses.append([])
        for i, rows in enumerate(one_process.microbatches(data, job, step)):
            m = step * count + i
            leaves, used = {}, set()
            for name in parameters:
                if delay is None:
                    version = max(0, m - (ranks - 1 - stage_of[name])) // count
                else:
                    version = max(0, step - delay)
                used.add(version)
                leaves[name] = history[version][name].clone().requires_grad_()
            mixed += len(used) > 1
            inputs, target = data.batch(rows)
            output = functional_call(model, leaves, tuple(inputs))
            loss = F.cross_entropy(output.reshape(-1, output.shape[-1]), target.reshape(-1))
            losses[-1].append(loss.item())
            for name, gradient in zip(leaves, torch.autograd.grad(loss, leaves.values())):
                sums[name] = gradient if name not in sums else sums[name] + gradient
        for name, p in parameters.items():
            p.grad = sums[name] / count
        optimizer.step()
        history.append({n: p.detach().clone() for n, p in parameters.items()})
    return losses, history[-1], mixed


class Asynchronous(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        cls.model = gpt(layers=4, tied=False)
        export_gpt(cls.model, cls.folder / "gpt.pt2")
        (cls.folder / "few.bin").write_bytes(bytes(range(256)) * 2)  # 31 samples

    def package(self, ranks):
        path = self.path(f"{ranks}.pkg")
        if not path.exists():
            self.compile("gpt.pt2", path.name, "--ranks", str(ranks))
        manifest = json.loads((path / "manifest.json").read_text())
        conf = json.loads((path / "conf/mp_conf.json").read_text())
        stages = {}
        for stage, module in zip(conf["module_to_stage_map"], manifest["modules"]):
            for weight in load_file(path / module["weights"]):
                stages.setdefault(weight, stage)
        return path, stages

    def run_train(self, package, job, ranks, *options, mpi=False):
        self.succeed(run_ranks(
            ranks, "train", package, self.write_job(job), "--metrics", self.path("metrics.jsonl"),
            "--save", self.path("trained.safetensors"), *options, mpi=mpi))
        lines = [json.loads(line) for line in self.path("metrics.jsonl").read_text().splitlines()]
        self.assertEqual([line["step"] for line in lines], list(range(1, job["steps"] + 1)))
        return [line["losses"] for line in lines], load_file(self.path("trained.safetensors"))

    def check(self, ranks, job, delay=None, mpi=False):
        package, stages = self.package(ranks)
        losses, weights = self.run_train(package, job, ranks, mpi=mpi)
        wanted = simulate(copy.deepcopy(self.model), job, self.folder, ranks, stages, delay)
        what = f"{job['schedule']}, {ranks} ranks, {job['microbatches']} microbatches: "
        for step, (a, b) in enumerate(zip(losses, wanted[0], strict=True), 1):
            self.assertEqual(bits(a), bits(b), f"{what}losses of step {step}")
        self.assert_same_tensors(weights, wanted[1], what)
        return wanted

    def job(self, **changes):
        return token_job(**{"schedule": "pipedream", "steps": 6, "check_shared": None, **changes})

    def test_weight_stashing_also_across_the_ends_of_epochs(self):
        job = self.job(microbatches=2, microbatch_size=4, steps=8, optimizer=ADAMW)
        job["data"] = {**job["data"], "tokens": "few.bin"}  # 3 minibatches an epoch
        _, _, mixed = self.check(4, job)
        self.assertGreater(mixed, 0)

    def test_two_versions(self):
        self.check(3, self.job(schedule="pipedream-2bw", microbatches=4), delay=1, mpi=True)

    def test_checkpoints_drain_the_pipeline_and_resume_to_the_same_bits(self):
        package, _ = self.package(3)
        job = self.job(steps=7, microbatches=1,
                       checkpoint={"to": "checkpoints", "every": 3, "keep": 0})
        whole = self.run_train(package, job, 3)
        shutil.rmtree(self.path("checkpoints/step-00000007"))
        shutil.rmtree(self.path("checkpoints/step-00000006"))
        self.path("checkpoints/latest").write_text("step-00000003\n")
        resumed = self.run_train(package, job, 3, "--resume")
        self.assertEqual(whole[0], resumed[0])
        self.assert_same_tensors(whole[1], resumed[1])

    def test_refusal(self):
        package, _ = self.package(3)
        job = self.job(schedule="pipedream-2bw", microbatches=2)
        self.assert_fails(run_ranks(3, "train", package, self.write_job(job), mpi=False),
                          "2 microbatches on 3 ranks")

    @unittest.skipUnless(LONG, "set PIPEWRIGHT_LONG=1 to run it")
    def test_other_numbers_of_ranks_and_microbatches(self):
        for ranks, microbatches, mpi, optimizer in (
                (1, 2, False, SGD), (2, 1, False, ADAMW), (3, 1, True, SGD), (4, 1, False, SGD),
                (4, 2, False, ADAMW), (3, 4, False, SGD)):
            _, _, mixed = self.check(ranks, self.job(microbatches=microbatches, optimizer=optimizer),
                                     mpi=mpi)
            self.assertEqual(mixed > 0, ranks > 1)
        for ranks, microbatches in ((2, 2), (4, 4), (3, 5)):
            self.check(ranks, self.job(schedule="pipedream-2bw", microbatches=microbatches), delay=1)
        # A recomputed forward uses the weights of the original one.
        self.check(3, self.job(microbatches=1, recompute=True))


if __name__ == "__main__":
    unittest.main()
