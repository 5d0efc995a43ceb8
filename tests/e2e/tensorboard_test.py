"""A run's event file, as TensorBoard reads it, has the numbers of the metrics file."""
import json
import shutil
import struct
import unittest

from support import Case, export_gpt, gpt, run_ranks, token_job

from tensorboard.backend.event_processing.event_accumulator import EventAccumulator


def flat(row, name=""):
    """Returns a line of the metrics file as {curve: number}."""
    if isinstance(row, (dict, list)):
        items = row.items() if isinstance(row, dict) else enumerate(row)
        return [pair for key, value in items if name or key not in ("step", "losses")
                for pair in flat(value, f"{name}/{key}" if name else str(key))]
    return [(name, row)]


class Curves(Case):
    @classmethod
    def setUpClass(cls):
        super().setUpClass()
        export_gpt(gpt(tied=False, layers=3), cls.folder / "gpt.pt2")
        cls.package = cls.compile("gpt.pt2", "gpt.pkg", "--ranks", "2")

    def train(self, steps, *options):
        data = {**token_job()["data"], "shuffle": False}
        job = self.write_job(token_job(
            steps=steps, metrics="metrics.jsonl", tensorboard="runs/first", accuracy=True, data=data,
            optimizer={"type": "sgd", "lr": 0.1, "clip_norm": 1.0}, checkpoint={"to": "kept", "every": 4},
            validation={"data": data, "every": 3, "steps": 1}))
        return run_ranks(2, "train", self.package, job, *options, mpi=False)

    def compare(self, steps):
        """Each step occurs once, with the numbers of its line."""
        rows = [json.loads(line) for line in self.path("metrics.jsonl").read_text().splitlines()]
        self.assertEqual([row["step"] for row in rows], list(range(1, steps + 1)))
        expected = {}
        for row in rows:
            for name, value in flat(row):
                rounded = struct.unpack("<f", struct.pack("<f", value))[0]
                expected.setdefault(name, []).append((row["step"], rounded))
        read = EventAccumulator(str(self.path("runs/first")))
        read.Reload()
        found = {name: [(event.step, event.value) for event in read.Scalars(name)]
                 for name in read.Tags()["scalars"]}
        self.assertEqual(found, expected)
        self.assertLessEqual({"loss", "learning_rate", "gradient_norm", "accuracy", "validation/loss", "memory/1"},
                             set(found))

    def test_curves_are_those_of_the_metrics_file(self):
        self.succeed(self.train(6))
        self.compare(6)
        # As if killed before the last checkpoint: steps 5 and 6 are repeated.
        last = max(self.path("kept").glob("step*"))
        shutil.rmtree(last)
        self.succeed(self.train(9, "--resume"))
        files = sorted(self.path("runs/first").glob("events.*"))
        self.assertEqual(len(files), 2)
        self.compare(9)
        # TensorBoard reads them by name, even if a clock goes backwards.
        second = [int(file.name.split(".")[3]) for file in files][1]
        files[1].rename(files[1].with_name(files[1].name.replace(str(second), str(second + 9999))))
        shutil.rmtree(max(self.path("kept").glob("step*")))
        self.succeed(self.train(10, "--resume"))
        self.compare(10)

    def test_a_file_in_the_place_of_the_folder(self):
        self.path("place").write_text("")
        self.path("metrics.jsonl").write_text('{"step": 1, "loss": 2.0}\n')
        self.assert_fails(self.train(1, "--set", f"tensorboard={self.path('place')}/first"),
                          r"tensorboard: \S+place/first: cannot be written: \S+place is not a "
                          r"folder")
        self.assertEqual(self.path("metrics.jsonl").read_text(), '{"step": 1, "loss": 2.0}\n')


if __name__ == "__main__":
    unittest.main()
