"""Ranks that read different files, as hosts with their own copies may: refused before training starts."""
import json
import shutil
import unittest

import torch
from safetensors.torch import load_file, save_file

from support import BUILD, RUN, Case, call, export, export_gpt, gpt, pipewright

ROWS = 64


class SameFiles(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        torch.manual_seed(3)
        cls.net = torch.nn.Sequential(*(torch.nn.Linear(8, 8) for _ in range(3)))
        export(cls.net, torch.rand(4, 8), cls.folder / "net.pt2")
        cls.compile("net.pt2", "net.pkg", "--split", "modules:1,2", "--ranks", "3")
        for ranks in (2, 3):
            pipewright("conf", cls.folder / "net.pkg", "--ranks", ranks, "-o", cls.folder / f"{ranks}.json")
        for place in "ab":
            (cls.folder / place).mkdir()

    def setUp(self):
        """Makes folder a, for one host, and folder b, a copy for another."""
        torch.manual_seed(5)
        self.rows = {"x": torch.rand(ROWS, 8), "y": torch.rand(ROWS, 8)}
        self.places = [self.path("a"), self.path("b")]
        for place in self.places:
            shutil.rmtree(place)
            place.mkdir()
            shutil.copytree(self.path("net.pkg"), place / "net.pkg")
            save_file(self.rows, place / "data.safetensors")
            save_file(self.net.state_dict(), place / "given.safetensors")
            (place / "job.json").write_text(json.dumps(self.job()))

    def job(self, **changes):
        return {"data": {"tensors": "data.safetensors", "inputs": {"input": "x"}, "target": "y"},
                "loss": "mse", "optimizer": {"type": "sgd"}, "microbatches": 2, "microbatch_size": 4,
                "steps": 2, **changes}

    def run_apart(self, *options, ranks=2, command=("train", "net.pkg", "job.json"), second=()):
        """Runs the last rank in folder b and the others in a. `second`: words before the last rank's program."""
        def part(count, place, *words):
            return ["-n", count, "-wdir", place, *words, RUN, *command, "--conf",
                    self.path(f"{ranks}.json"), *options]
        return call(["mpirun", *part(ranks - 1, self.places[0]), ":",
                     *part(1, self.places[1], *second)])

    def refused(self, result, name, first, second, ranks=2):
        self.assert_fails(
            result, rf"pipewright-run: \S*{name}: not the same on every rank: rank 0 found {first}, rank "
                    rf"{ranks - 1} {second}")

    BYTES = r"(\d+) bytes with the hash \w{16}"

    def test_copies_are_the_same(self):
        for ranks in (2, 3):
            self.succeed(self.run_apart("--verify-files", "--weights", "given.safetensors", ranks=ranks))

    def test_data(self):
        save_file({name: rows[:40] for name, rows in self.rows.items()}, self.places[1] / "data.safetensors")
        for ranks in (2, 3):
            self.refused(self.run_apart(ranks=ranks), r"data\.safetensors", self.BYTES, self.BYTES, ranks)
        result = self.run_apart(command=("eval", "net.pkg", "job.json"))
        self.refused(result, r"data\.safetensors", self.BYTES, self.BYTES)
        self.assertIn("give every host the same file, or name one that all hosts share", result.out)

    def test_data_of_one_size(self):
        self.rows["y"][0, 0] += 1
        save_file(self.rows, self.places[1] / "data.safetensors")
        self.refused(self.run_apart(), r"data\.safetensors", self.BYTES, self.BYTES)

    def test_data_of_validation(self):
        for place in self.places:
            save_file(self.rows, place / "other.safetensors")
            (place / "job.json").write_text(json.dumps(self.job(validation={
                "data": {**self.job()["data"], "tensors": "other.safetensors"}, "every": 1})))
        self.succeed(self.run_apart())
        save_file({name: rows[:40] for name, rows in self.rows.items()}, self.places[1] / "other.safetensors")
        self.refused(self.run_apart(), r"other\.safetensors", self.BYTES, self.BYTES)

    def test_data_that_samples_miss(self):
        """Of large files, some blocks are compared; on request, all of them."""
        rows = {name: values.repeat(2000, 1) for name, values in self.rows.items()}
        for place in self.places:
            save_file(rows, place / "data.safetensors")
        rows["y"][1100, 0] += 1
        save_file(rows, self.places[1] / "data.safetensors")
        self.succeed(self.run_apart())
        self.refused(self.run_apart("--verify-files"), r"data\.safetensors", self.BYTES, self.BYTES)

    def test_a_rank_that_reads_no_data_needs_none(self):
        (self.places[1] / "data.safetensors").unlink()
        def part(count, place):
            return ["-n", count, "-wdir", place, RUN, "train", "net.pkg", "job.json", "--conf",
                    self.path("3.json")]
        self.succeed(call(["mpirun", *part(1, self.places[0]), ":", *part(1, self.places[1]), ":",
                           *part(1, self.places[0])]))

    def test_weights_of_the_package(self):
        file = self.places[1] / "net.pkg/weights/module2.safetensors"
        save_file({name: tensor + 1 for name, tensor in load_file(file).items()}, file)
        for ranks in (2, 3):
            self.refused(self.run_apart(ranks=ranks), r"weights/module2\.safetensors", self.BYTES, self.BYTES, ranks)
        # Each host needs only the files that its ranks read.
        file.unlink()
        shutil.copy(self.places[0] / "net.pkg/weights/module2.safetensors", file)
        for place, unread in zip(self.places, ("module2", "module0")):
            (place / f"net.pkg/weights/{unread}.safetensors").unlink()
        self.succeed(self.run_apart())

    def test_weights_that_are_given(self):
        save_file({name: tensor + 1 for name, tensor in self.net.state_dict().items()},
                  self.places[1] / "given.safetensors")
        self.refused(self.run_apart("--weights", "given.safetensors"), r"given\.safetensors", self.BYTES, self.BYTES)

    def test_inputs_of_infer(self):
        for place, rows in zip(self.places, (4, 8)):
            save_file({"input": torch.rand(rows, 8)}, place / "in.safetensors")
        result = self.run_apart("-o", self.path("out.safetensors"),
                                command=("infer", "net.pkg", "--input", "in.safetensors"))
        self.refused(result, r"in\.safetensors", self.BYTES, self.BYTES)

    def test_libraries_of_operators(self):
        library = BUILD / "tests/libtest_ops.so"
        for place in self.places:
            shutil.copy(library, place / "ops.so")
            manifest = json.loads((place / "net.pkg/manifest.json").read_text())
            manifest["op_libraries"] = ["./ops.so"]
            (place / "net.pkg/manifest.json").write_text(json.dumps(manifest))
        self.succeed(self.run_apart())
        with open(self.places[1] / "ops.so", "ab") as file:
            file.write(b"another build")
        for ranks in (2, 3):
            self.refused(self.run_apart(ranks=ranks), r"ops\.so", self.BYTES, self.BYTES, ranks)

    def test_libraries_that_the_system_looks_for(self):
        for place in self.places:
            (place / "lib").mkdir()
            shutil.copy(BUILD / "tests/libtest_ops.so", place / "lib/libops.so")
            manifest = json.loads((place / "net.pkg/manifest.json").read_text())
            manifest["op_libraries"] = ["libops.so"]
            (place / "net.pkg/manifest.json").write_text(json.dumps(manifest))

        def run():
            def part(place):
                return ["-n", 1, "-wdir", place, "-x", f"LD_LIBRARY_PATH={place}/lib", RUN, "train", "net.pkg",
                        "job.json", "--conf", self.path("2.json")]
            return call(["mpirun", *part(self.places[0]), ":", *part(self.places[1])])

        self.succeed(run())
        with open(self.places[1] / "lib/libops.so", "ab") as file:
            file.write(b"another build")
        self.refused(run(), r"a/lib/libops\.so", self.BYTES, self.BYTES)

    def test_libraries_of_data(self):
        data = {"plugin": "./source.so", "options": {"samples": 40, "length": 16},
                "inputs": {"tokens": "sequence"}, "target": "next"}
        export_gpt(gpt(layers=3), self.path("gpt.pt2"))
        self.compile("gpt.pt2", "gpt.pkg", "--ranks", "3")
        for place in self.places:
            shutil.copytree(self.path("gpt.pkg"), place / "gpt.pkg")
            shutil.copy(BUILD / "tests/libexample_source.so", place / "source.so")
            (place / "job.json").write_text(json.dumps(self.job(data=data, loss="cross_entropy")))
        command = ("train", "gpt.pkg", "job.json")
        for ranks in (2, 3):
            self.succeed(self.run_apart(ranks=ranks, command=command))
        with open(self.places[1] / "source.so", "ab") as file:
            file.write(b"another build")
        for ranks in (2, 3):
            self.refused(self.run_apart(ranks=ranks, command=command), r"source\.so", self.BYTES, self.BYTES, ranks)

    def test_variables_that_change_numbers(self):
        result = self.run_apart(second=("-x", "ATEN_CPU_CAPABILITY=default"))
        self.refused(result, "ATEN_CPU_CAPABILITY", "no value", '"default"')
        self.assertIn("set it to the same value on every host, as with mpirun -x ATEN_CPU_CAPABILITY",
                      result.out)

    def test_checkpoints(self):
        job = self.job(checkpoint={"to": str(self.path("checkpoints")), "every": 1})
        for place, weights in zip(self.places, (self.net.state_dict(), None)):
            shutil.rmtree(self.path("checkpoints"), ignore_errors=True)
            (place / "job.json").write_text(json.dumps(job))
            if weights is None:
                save_file({name: tensor + 1 for name, tensor in self.net.state_dict().items()},
                          place / "given.safetensors")
            self.succeed(call(["mpirun", "-n", 2, RUN, "train", place / "net.pkg", place / "job.json", "--conf",
                               self.path("2.json"), "--weights", place / "given.safetensors"]))
            shutil.copytree(self.path("checkpoints"), place / "old")
        shutil.rmtree(self.path("checkpoints"))
        for place in self.places:
            (place / "job.json").write_text(json.dumps({**job, "steps": 3}))
        self.refused(self.run_apart("--resume-from", "old"), r"checkpoint\.json", self.BYTES, self.BYTES)


if __name__ == "__main__":
    unittest.main()
