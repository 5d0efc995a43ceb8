"""`pipewright weights` with files that PyTorch and safetensors write, and their verdicts."""
import json
import os
import pathlib
import pickle
import random
import re
import shutil
import struct
import subprocess
import sys
import tempfile
import unittest

try:
    import safetensors
    import safetensors.torch
    import torch
except ImportError:
    print("SKIPPED: no Python with torch")
    sys.exit(77)

PROGRAM = os.path.join(os.environ["PIPEWRIGHT_BUILD"], "pipewright")
FOLDER = tempfile.mkdtemp(prefix="pipewright_weights_")
unittest.addModuleCleanup(shutil.rmtree, FOLDER)


def run(*arguments):
    return subprocess.run([PROGRAM, "weights", *arguments], capture_output=True, text=True)


def ok(*arguments):
    done = run(*arguments)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout) if "--json" in arguments else done.stdout


def path(name):
    return os.path.join(FOLDER, name)


DTYPES = [torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
          torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64, torch.uint16,
          torch.uint32, torch.uint64, torch.float8_e4m3fn, torch.float8_e5m2]


def sample():
    torch.manual_seed(0)
    tensors = {str(d)[6:]: (torch.rand(3, 5) * 100).to(d) for d in DTYPES}
    tensors |= {"scalar": torch.tensor(2.5), "empty": torch.zeros(0, 3),
                "layer.1.weight": torch.rand(7), "ü \n\"": torch.rand(1)}
    return tensors


def same(a, b):
    assert a.keys() == b.keys(), (a.keys(), b.keys())
    for name in a:
        assert a[name].dtype == b[name].dtype and a[name].shape == b[name].shape, name
        x, y = (t[name].contiguous().reshape(-1).view(torch.uint8) for t in (a, b))
        assert torch.equal(x, y), name


class Convert(unittest.TestCase):
    def check_state_dict(self, **options):
        torch.save(sample(), path("s.pt"), **options)
        ok("convert", path("s.pt"), path("s.safetensors"))
        same(sample(), safetensors.torch.load_file(path("s.safetensors")))

    def test_zip_format(self):
        self.check_state_dict()

    def test_other_protocols(self):
        for protocol in (3, 4, 5):
            self.check_state_dict(pickle_protocol=protocol)

    def test_older_format(self):
        tensors = {k: v for k, v in sample().items() if "uint" not in k or k == "uint8"}
        tensors = {k: v for k, v in tensors.items() if "float8" not in k}
        torch.save(tensors, path("old.bin"), _use_new_zipfile_serialization=False)
        ok("convert", path("old.bin"), path("old.safetensors"))
        same(tensors, safetensors.torch.load_file(path("old.safetensors")))

    def test_state_dict_of_a_module_with_ties(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.emb = torch.nn.Embedding(10, 4)
                self.norm = torch.nn.BatchNorm1d(4)
                self.head = torch.nn.Linear(4, 10, bias=False)
                self.head.weight = self.emb.weight

        model = Model()
        torch.save(model.state_dict(), path("tied.bin"))
        ok("convert", path("tied.bin"), path("tied.safetensors"))
        safetensors.torch.load_model(Model(), path("tied.safetensors"), strict=True)
        with safetensors.safe_open(path("tied.safetensors"), "pt") as file:
            self.assertEqual(file.metadata(), {"format": "pt", "head.weight": "emb.weight"})
        self.assertEqual(ok("list", path("tied.bin"), "--json")["shared"],
                         [["emb.weight", "head.weight"]])

    def test_parameters_and_slices(self):
        whole = torch.arange(100.)
        torch.save({"slice": whole[:1], "p": torch.nn.Parameter(torch.ones(2))}, path("v.pt"))
        ok("convert", path("v.pt"), path("v.safetensors"))
        loaded = safetensors.torch.load_file(path("v.safetensors"))
        same({"slice": whole[:1].clone(), "p": torch.ones(2)}, loaded)
        self.assertLess(os.path.getsize(path("v.safetensors")), 300)

    def test_views_of_the_same_shape(self):
        """Whoever reads a file takes the kept tensor for a dropped name of its shape."""
        whole = torch.arange(16.).reshape(4, 4)
        for views in ({"a": whole, "b": whole.t()}, {"a": whole.t(), "b": whole},
                      {"a": whole[:1].expand(4, 4), "b": whole}):
            torch.save(views, path("views.pt"))
            done = run("convert", path("views.pt"), path("views.safetensors"))
            self.assertEqual(done.returncode, 1)
            self.assertRegex(done.stderr, "not contiguous|in another order\n  --force-contiguous writes both")
            ok("convert", path("views.pt"), path("views.safetensors"), "--force-contiguous")
            same({name: view.contiguous() for name, view in views.items()}, safetensors.torch.load_file(path("views.safetensors")))

    def test_parts_of_one_buffer(self):
        whole = torch.arange(100.)
        torch.save({"A": whole, "B": whole[8:16], "C": whole[32:48]}, path("abc.pt"))
        ok("convert", path("abc.pt"), path("abc.safetensors"))
        with safetensors.safe_open(path("abc.safetensors"), "pt") as file:
            self.assertEqual(list(file.keys()), ["A"])
            self.assertEqual(file.metadata(), {"format": "pt", "B": "A", "C": "A"})
        torch.save({"B": whole[8:16], "C": whole[10:48]}, path("abc.pt"))
        done = run("convert", path("abc.pt"), path("abc.safetensors"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("none covers all of it", done.stderr)

    def test_strides(self):
        tensors = {"t": torch.rand(5, 7).t(), "e": torch.rand(3, 1).expand(3, 4),
                   "s": torch.rand(20)[::3], "p": torch.rand(2, 3, 4).permute(2, 0, 1)}
        torch.save(tensors, path("strided.pt"))
        done = run("convert", path("strided.pt"), path("strided.safetensors"))
        self.assertEqual(done.returncode, 1)
        self.assertIn("not contiguous", done.stderr)
        ok("convert", "--force-contiguous", path("strided.pt"), path("strided.safetensors"))
        same(tensors, safetensors.torch.load_file(path("strided.safetensors")))
        self.assertEqual(ok("diff", path("strided.pt"), path("strided.safetensors"), "--json"),
                         {"equal": True, "only_in_first": [], "only_in_second": [],
                          "different": []})

    def test_expanded_tensors_are_bounded_by_what_was_read(self):
        small = {"e": torch.rand(1).expand(2 ** 20, 2 ** 20)}  # 4 TB
        torch.save(small, path("huge.pt"))
        for command in (["convert", "--force-contiguous", path("huge.pt"), path("huge.safetensors")],
                        ["shard", "--force-contiguous", path("huge.pt"), path("huge")],
                        ["diff", path("huge.pt"), path("huge.pt")]):
            done = run(*command)
            self.assertEqual(done.returncode, 1, done.stdout)
            self.assertIn('"e" repeats its elements', done.stderr)
            self.assertIn("--max-size 4398046511104", done.stderr)
        self.assertFalse(os.path.exists(path("huge.safetensors")))
        mask = {"mask": torch.rand(1, 8).expand(500, 8), "w": torch.rand(3)}
        torch.save(mask, path("mask.pt"))
        command = ("convert", "--force-contiguous", path("mask.pt"), path("mask.safetensors"))
        self.assertIn("--max-size 16000", run(*command).stderr)
        ok(*command, "--max-size", "16KB")
        same(mask, safetensors.torch.load_file(path("mask.safetensors")))
        ok("diff", path("mask.pt"), path("mask.safetensors"), "--max-size", "16KB")

    def test_ties_across_shards(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.emb, self.head = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5)
                self.head.weight = self.emb.weight
                self.a, self.b = torch.nn.LayerNorm(4), torch.nn.LayerNorm(4)

        state = Model().state_dict()
        shards = {"a.bin": ["emb.weight", "a.weight", "a.bias", "head.bias"],
                  "b.bin": ["head.weight", "b.weight", "b.bias"]}
        folder = path("tied_shards")
        os.mkdir(folder)
        for file, names in shards.items():
            torch.save({name: state[name].clone() for name in names}, os.path.join(folder, file))
        with open(os.path.join(folder, "pytorch_model.bin.index.json"), "w") as out:
            json.dump({"weight_map": {n: f for f, names in shards.items() for n in names}}, out)
        out = path("tied_shards.safetensors")
        done = run("convert", folder, out)
        self.assertEqual(done.returncode, 1)
        self.assertIn('"emb.weight" and "head.weight" are bitwise identical', done.stderr)
        self.assertIn("--equal tied", done.stderr)
        ok("convert", folder, out, "--equal", "tied")
        safetensors.torch.load_model(Model(), out, strict=True)
        self.assertEqual(sorted(safetensors.torch.load_file(out)),  # equal norms stay separate
                         ["a.bias", "a.weight", "b.bias", "b.weight", "emb.weight", "head.bias"])
        ok("diff", folder, out)
        ok("convert", folder, out, "--equal", "apart")
        same({k: v.clone() for k, v in state.items()}, safetensors.torch.load_file(out))

    def test_a_pickled_module(self):
        for zipped in (True, False):
            torch.save(torch.nn.Linear(2, 2), path("module.pt"), _use_new_zipfile_serialization=zipped)
            done = run("list", path("module.pt"))
            self.assertEqual(done.returncode, 1)
            self.assertIn("is a pickled object of the class torch.nn.modules.linear.Linear", done.stderr)
            self.assertIn("torch.save(model.state_dict()", done.stderr)

    def test_nothing_is_executed(self):
        class Evil:
            def __reduce__(self):
                return os.system, ("touch " + path("executed"),)

        torch.save({"a": torch.ones(1), "b": Evil()}, path("evil.pt"))
        torch.save({"a": Evil()}, path("evil_old.pt"), _use_new_zipfile_serialization=False)
        with open(path("evil_plain.bin"), "wb") as file:
            pickle.dump(Evil(), file)
        for name in ("evil.pt", "evil_old.pt", "evil_plain.bin"):
            done = run("verify", path(name))
            self.assertEqual((done.returncode, done.stdout), (1, ""))
            self.assertEqual(done.stderr.count("\n"), 1)
        self.assertIn("system", run("verify", path("evil.pt")).stderr)
        self.assertFalse(os.path.exists(path("executed")))

    def test_what_is_not_a_state_dict_is_refused(self):
        for value in ([torch.ones(1)], {"state_dict": {"a": torch.ones(1)}}, {"a": 1}, {1: torch.ones(1)},
                      torch.ones(2), {"c": torch.ones(1, dtype=torch.complex128)},
                      {"s": torch.eye(2).to_sparse()},
                      {"c": torch.ones(2, dtype=torch.complex64).conj()},
                      {"n": torch.ones(2, dtype=torch.complex64).conj().imag}):
            torch.save(value, path("odd.pt"))
            self.assertEqual(run("verify", path("odd.pt")).returncode, 1, value)


class Shards(unittest.TestCase):
    def setUp(self):
        shutil.rmtree(path("shards"), ignore_errors=True)

    def write(self, sizes, limit):
        safetensors.torch.save_file(
            {chr(97 + i): torch.full((n,), i, dtype=torch.uint8) for i, n in enumerate(sizes)},
            path("whole.safetensors"))
        return ok("shard", path("whole.safetensors"), path("shards"), "--max-shard-size", limit,
                  "--json")["files"]

    def test_greedy_in_order(self):
        files = self.write([6, 6, 2, 6, 2, 2], "10")
        self.assertEqual(files, ["model-0000%d-of-00003.safetensors" % i for i in (1, 2, 3)]
                         + ["model.safetensors.index.json"])
        with open(path("shards/model.safetensors.index.json")) as file:
            index = json.load(file)
        self.assertEqual(index["metadata"]["total_size"], 24)
        self.assertEqual([index["weight_map"][c][7] + index["weight_map"][c][10] for c in "abcdef"],
                         ["0" + c for c in "122333"])
        self.assertEqual(list(safetensors.torch.load_file(path("shards/" + files[1]))), ["b", "c"])
        for given in (path("shards"), path("shards/model.safetensors.index.json")):
            ok("diff", path("whole.safetensors"), given)
            self.assertEqual(ok("verify", given, "--json")["warnings"], [])

    def test_one_shard_has_no_index(self):
        self.assertEqual(self.write([6, 4], "10"), ["model.safetensors"])
        self.assertEqual(os.listdir(path("shards")), ["model.safetensors"])
        self.assertEqual(run("shard", path("whole.safetensors"), path("shards")).returncode, 1)

    def test_a_tensor_beyond_the_limit_has_a_shard_of_its_own(self):
        self.assertEqual(len(self.write([3, 30, 3], "10")), 4)

    def test_a_limit_that_holds_nothing(self):
        self.assertEqual(run("shard", path("whole.safetensors"), path("shards"),
                             "--max-shard-size", "0").returncode, 2)
        self.assertFalse(os.path.exists(path("shards")))

    def test_shards_may_be_links(self):
        """Caches of model hubs link to files outside the folder."""
        self.write([6, 6], "6")
        os.makedirs(path("blobs"), exist_ok=True)
        for i, name in enumerate(sorted(os.listdir(path("shards")))):
            shutil.move(path("shards/" + name), path(f"blobs/{i}"))
            os.symlink(f"../blobs/{i}", path("shards/" + name))
        ok("diff", path("whole.safetensors"), path("shards"))

    def edited(self, change):
        self.write([6, 6], "6")
        with open(path("shards/model.safetensors.index.json")) as file:
            index = json.load(file)
        index = change(index) or index
        with open(path("shards/model.safetensors.index.json"), "w") as file:
            json.dump(index, file)
        return run("verify", path("shards"))

    def test_damaged_indexes(self):
        first, second = ["model-0000%d-of-00002.safetensors" % i for i in (1, 2)]

        def put(name, file):
            return lambda index: index["weight_map"].__setitem__(name, file)

        for change, reason in [
                (put("a", "../" + first), "outside"), (put("a", "/etc/passwd"), "outside"),
                (put("a", "x/../../y"), "outside"), (put("a", ""), "outside"),
                (put("a", first + "\0"), "outside"),
                (put("a", {"file": first}), "name of a shard"), (put("a", "absent"), "missing"),
                (put("a", second), "not in its shard"), (put("z", first), "not in its shard"),
                (lambda index: [1], "object"), (lambda index: {"weight_map": 1}, "object")]:
            shutil.rmtree(path("shards"), ignore_errors=True)
            done = self.edited(change)
            self.assertEqual(done.returncode, 1, reason)
            self.assertIn(reason, done.stderr)
            self.assertEqual(done.stderr.count("\n"), 1)

    def test_bare_map_and_unreliable_totals(self):
        self.assertEqual(self.edited(lambda index: index["weight_map"]).returncode, 0)
        shutil.rmtree(path("shards"))
        done = self.edited(lambda index: {**index, "extra": [], "metadata": {"total_size": 5}})
        self.assertEqual(done.returncode, 0)
        self.assertIn("total_size", done.stderr)

    def test_folders(self):
        os.makedirs(path("shards"))
        self.assertIn("no weights", run("verify", path("shards")).stderr)
        safetensors.torch.save_file({"a": torch.ones(1)}, path("shards/other.safetensors"))
        self.assertEqual(run("verify", path("shards")).returncode, 1)
        for name in ("one", "two"):
            with open(path(f"shards/{name}.index.json"), "w") as file:
                json.dump({"a": "other.safetensors"}, file)
            self.assertEqual(run("verify", path("shards")).returncode, int(name == "two"))
        self.assertIn("several", run("verify", path("shards")).stderr)
        safetensors.torch.save_file({"b": torch.ones(1)}, path("shards/model.safetensors"))
        self.assertEqual(ok("list", path("shards"), "--json")["tensors"][0]["name"], "b")
        torch.save({"c": torch.ones(1)}, path("shards/pytorch_model.bin"))
        self.assertEqual(ok("list", path("shards"), "--json")["tensors"][0]["name"], "c")


class Opening(unittest.TestCase):
    def test_only_descriptions_are_read(self):
        """With a cold page cache, the data between the descriptions is not read from disk."""
        tensors = {str(i): torch.zeros(1 << 19) for i in range(32)}
        torch.save(tensors, path("cold.bin"))
        safetensors.torch.save_file(tensors, path("cold.safetensors"))
        for name in ("cold.bin", "cold.safetensors"):
            with open(path(name), "rb") as file:
                os.fsync(file.fileno())
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            ok("list", path(name))  # the program is in the page cache
            with open(path(name), "rb") as file:
                os.posix_fadvise(file.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
            pid = os.posix_spawn(PROGRAM, [PROGRAM, "weights", "verify", path(name)], os.environ,
                                 file_actions=[(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)])
            _, status, usage = os.wait4(pid, 0)
            self.assertEqual(status, 0)
            self.assertLess(usage.ru_inblock * 512, 4 << 20, name)


class Diff(unittest.TestCase):
    def test_tied_names_that_one_side_leaves_out(self):
        class Model(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.emb, self.head = torch.nn.Embedding(5, 4), torch.nn.Linear(4, 5)
                self.head.weight = self.emb.weight

        model = Model()
        torch.save(model.state_dict(), path("both.pt"))
        safetensors.torch.save_model(model, path("one.safetensors"))
        kept = {k: v for k, v in model.state_dict().items() if k != "head.weight"}
        safetensors.torch.save_file(kept, path("unsaid.safetensors"))  # without metadata
        for file in ("one.safetensors", "unsaid.safetensors"):
            ok("diff", path("both.pt"), path(file))
            ok("diff", path(file), path("both.pt"))
        with torch.no_grad():
            model.emb.weight[0] += 1
        safetensors.torch.save_model(model, path("other.safetensors"))
        done = run("diff", path("both.pt"), path("other.safetensors"), "--json")
        self.assertEqual([t["name"] for t in json.loads(done.stdout)["different"]],
                         ["emb.weight", "head.weight"])
        apart = {k: v.clone() for k, v in model.state_dict().items()}
        torch.save(apart, path("apart.pt"))
        done = run("diff", path("apart.pt"), path("unsaid.safetensors"), "--json")
        self.assertEqual(json.loads(done.stdout)["only_in_first"], ["head.weight"])

    def test_differences(self):
        a = {"same": torch.ones(3), "v": torch.tensor([1., 2., 3.]), "d": torch.ones(2),
             "s": torch.ones(4), "a": torch.ones(1), "h": torch.tensor([1., 2.]).half(),
             "n": torch.tensor([float("nan")]), "z": torch.tensor([0.])}
        b = {**a, "v": torch.tensor([1., 2.5, 0.]), "d": torch.ones(2).half(), "s": torch.ones(2, 2),
             "h": torch.tensor([1., 65504.]).half(), "b": torch.ones(1), "z": torch.tensor([-0.])}
        del b["a"]
        safetensors.torch.save_file(a, path("a.safetensors"))
        torch.save(b, path("b.pt"))
        done = run("diff", path("a.safetensors"), path("b.pt"), "--json")
        self.assertEqual(done.returncode, 1)
        self.assertEqual(json.loads(done.stdout), {
            "equal": False, "only_in_first": ["a"], "only_in_second": ["b"], "different": [
                {"name": "d", "reason": "dtype F32 and F16"},
                {"name": "h", "reason": "values", "elements": 1, "largest": 65502.0},
                {"name": "s", "reason": "shape [4] and [2, 2]"},
                {"name": "v", "reason": "values", "elements": 2, "largest": 3.0},
                {"name": "z", "reason": "values", "elements": 1, "largest": 0.0}]})


class Verify(unittest.TestCase):
    def verdict(self, data):
        with open(path("v.safetensors"), "wb") as file:
            file.write(data)
        return run("verify", path("v.safetensors")).returncode == 0

    def test_python_reads_what_is_written(self):
        safetensors.torch.save_file(sample(), path("in.safetensors"), {"k": "v", "a": "b"})
        ok("convert", path("in.safetensors"), path("out.safetensors"))
        same(sample(), safetensors.torch.load_file(path("out.safetensors")))
        with open(path("out.safetensors"), "rb") as file:
            self.assertEqual((8 + struct.unpack("<Q", file.read(8))[0]) % 64, 0)
        with safetensors.safe_open(path("out.safetensors"), "pt") as file:
            self.assertEqual(file.metadata(), {"format": "pt", "k": "v", "a": "b"})

    def test_damaged_files_agree_with_the_reference(self):
        safetensors.torch.save_file({"a": torch.ones(2), "b": torch.ones(1, 2).half()},
                                    path("in.safetensors"))
        with open(path("in.safetensors"), "rb") as file:
            good = file.read()
        generator = random.Random(7)
        verdicts = []
        for _ in range(1000 if os.environ.get("PIPEWRIGHT_LONG") else 50):
            data = bytearray(good)
            for _ in range(generator.randint(1, 2)):
                # Damages the header or, as often, the data, which does not matter.
                place = generator.choice([generator.randrange(len(data)),
                                          generator.randrange(len(data) - 12, len(data))])
                data[place] = generator.choice(b' 0123456789,:"[]{}\x00\xffabF')
            try:
                safetensors.deserialize(bytes(data))
                expected = True
            except safetensors.SafetensorError:
                expected = False
            verdicts.append(expected)
            self.assertEqual(self.verdict(data), expected, bytes(data))
        self.assertIn(True, verdicts)
        self.assertIn(False, verdicts)

    def test_files_that_are_cut_off(self):
        tensors = {"a": torch.rand(1000), "b": torch.rand(500)}
        safetensors.torch.save_file(tensors, path("whole.safetensors"))
        torch.save(tensors, path("whole.pth"))
        torch.save(tensors, path("old.pth"), _use_new_zipfile_serialization=False)
        for name, least in (("whole.safetensors", None), ("whole.pth", 6000), ("old.pth", 6000)):
            whole = pathlib.Path(path(name)).read_bytes()
            pathlib.Path(path(name)).write_bytes(whole[:3000])
            done = run("list", path(name))
            found = re.search(r"is cut off: it has 3000 of (more than )?(\d+) bytes", done.stderr)
            self.assertTrue(found, done.stderr)
            if least:
                self.assertLessEqual(least, int(found[2]))
                self.assertLessEqual(int(found[2]), len(whole))
            else:
                self.assertEqual(int(found[2]), len(whole))
        pathlib.Path(path("start.pth")).write_bytes(whole[:100])
        self.assertEqual(run("list", path("start.pth")).returncode, 1)

    def test_the_reason_is_one_line(self):
        with open(path("v.safetensors"), "wb") as file:
            file.write(b"\x02\0\0\0\0\0\0\0[]")
        done = run("verify", path("v.safetensors"))
        self.assertEqual((done.returncode, done.stdout, done.stderr.count("\n")), (1, "", 1))
        done = run("verify", path("v.safetensors"), "--json")
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertFalse(json.loads(done.stdout)["valid"])


if __name__ == "__main__":
    unittest.main()
