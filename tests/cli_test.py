"""Compares the programs' texts for people with tests/golden/cli: help, errors, exit codes.

python3 cli_test.py --update rewrites the texts: read the differences before committing them.
"""
import json
import os
import pathlib
import pty
import re
import subprocess
import sys
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parent
GOLDEN = TESTS / "golden/cli"
BUILD = pathlib.Path(os.environ.get("PIPEWRIGHT_BUILD", TESTS.parent / "build"))
UPDATE = "--update" in sys.argv

# Maps the name of a golden file to commands; each runs in tests/data/cli.
CASES = {
    "help": ["pipewright --help", "pipewright-run --help", "pipewright-run train --help"],
    "version": ["pipewright --version", "pipewright-run --version"],
    "usage": ["pipewright", "pipewright complie", "pipewright-run trian", "pipewright-run train",
              "pipewright-run --in-process 0 train a b", "pipewright plan",
              "pipewright train a.pkg job.json", "pipewright-run plan a.pkg job.json",
              "pipewright-run --in-process 2 trian a.pkg job.json",
              "pipewright plan --schedule 1f1b --rank 2 --microbatches 3",
              "pipewright tune small.pkg job.json --rank 2 -o tuned",
              "pipewright tune small.pkg job.json --ranks 2 --outputs tuned",
              "pipewright plan --schedule 1f1b --ranks 2 --microbatches 3 --memory 200KiB",
              "pipewright plan --schedule 1f1b --ranks 2 --ranks 3 --microbatches",
              "pipewright plan --validate text.txt --schedule 1f1b",
              "pipewright plan small.pkg job.json --microbatches 3",
              "pipewright simulate text.txt --json yes",
              "pipewright-run train small.pkg job.json --matmul onednn",
              "pipewright-run --in-process 1 bench small.pkg job.json --microbatch-size=2",
              "pipewright-run eval small.pkg job.json --resume",
              "pipewright weights list --jsn small.pkg",
              "pipewright weights diff a b --max-shard-size 5GB",
              "pipewright partition graph.txt --stage 2",
              "pipewright partition graph.txt --stages 1000000000",
              "pipewright plan --schedule 1f1b --ranks 2 --microbatches 1000000000",
              "pipewright plan --schedule 1f1b --ranks 1000000000 --microbatches 2",
              "pipewright place small.pkg --max-memry 0=1GB",
              "pipewright simulate text.txt --costs costs.json --memry 3",
              "pipewright compile model.pt2 -o none --microbatch 0",
              "pipewright profile small.pkg --warm-up -1"],
    "schedules": ["pipewright plan --schedule gpipe --ranks 2 --microbatches 2",
                  "pipewright plan --schedule 1f1b --ranks 3 --microbatches 4 --compute-only",
                  "pipewright plan --schedule 1f1 --ranks 3 --microbatches 4"],
    "plans": ["pipewright plan --schedule 1f1b --ranks 2 --microbatches 3 --steps 5 --loop",
              "pipewright plan --schedule pipedream --ranks 2 --microbatches 1 --steps 4",
              "pipewright plan --schedule bfs --ranks 1 --stages 3 --microbatches 2 --forward-only "
              "--offload 0,1,2",
              "pipewright plan --schedule dualpipe --ranks 3 --microbatches 8",
              "pipewright plan --schedule 1f1b --ranks 2 --microbatches 0",
              "pipewright plan --validate ../schedules/zb1p_2rank_2stagep_compute.csv",
              "pipewright plan --validate text.txt"],
    "codegen": ["pipewright codegen unknown.txt -n Net -a net -o none",
                "pipewright codegen injected.txt -n Net -a net -o none",
                "pipewright codegen of_package.txt -n Net -a net -o none",
                "pipewright codegen layer.txt -n Net -a class -o none",
                "pipewright codegen layer.txt -n Stage0 -a net -o none",
                "pipewright codegen layer.txt -n Net -a net -o none --stage_to_num_ranks 0:0",
                "pipewright codegen layer.txt -n Net -a net -o none --stage_to_num_ranks 0:2,0:3",
                "pipewright codegen layer.txt -n Net -a net -o none --stage_to_num_ranks 0:-1",
                "pipewright codegen layer.txt -n Net -a net -o none --stage_to_num_ranks 1:1",
                "pipewright codegen layer.txt -n Net -a net -o small.pkg/manifest.json"],
    "misfits": ["pipewright-run --in-process 2 train absent.pkg job.json",
                "pipewright-run --in-process 2 train small.pkg absent.json",
                "pipewright-run --in-process 2 train small.pkg typo.json",
                "pipewright-run --in-process 3 train small.pkg job.json",
                "pipewright plan small.pkg job.json",
                "pipewright plan small.pkg job.json --ranks 3",
                "pipewright plan small.pkg job.json --schedule shuffled",
                "pipewright plan smal.pkg job.json",
                "pipewright plan small.pkg jbo.json",
                "pipewright place smal.pkg --max-memory 0=1GB",
                "pipewright plan small.pkg words.json",
                "pipewright plan small.pkg words2.json",
                "pipewright partition graph.txt --stages 4",
                "pipewright partition graph.txt --stages 2 --devices 2 --memory 1KB",
                "pipewright plan --schedule zb-auto --ranks 2 --microbatches 4",
                "pipewright plan --schedule zb-auto --ranks 2 --microbatches 4 --costs costs.json",
                "pipewright plan small.pkg job.json --schedule zbv",
                "pipewright plan small.pkg job.json --conf tight.json --forward-only",
                "pipewright plan small.pkg nested.json",
                "pipewright plan small.pkg nested2.json",
                "pipewright weights list small.pkg",
                "pipewright plan small.pkg job.json -o job.json",
                "pipewright conf small.pkg --ranks 2 -o small.pkg/manifest.json",
                "pipewright plan small.pkg"],
    "inspect": ["pipewright inspect small.pkg", "pipewright inspect small.pkg --module 1",
                "pipewright inspect small.pkg --module 2", "pipewright inspect small.pkg --find head",
                "pipewright inspect small.pkg --find tokens --json",
                "pipewright inspect small.pkg --find absent",
                "pipewright inspect small.pkg --module 0 --find head",
                "pipewright inspect small.pkg --conf long.json",
                "pipewright inspect small.pkg --profile costs.json"],
    "diff": ["pipewright diff small.pkg small.pkg", "pipewright diff two.json two.json",
             "pipewright diff two.json small.pkg/conf/dp_conf.json",
             "pipewright diff two.json small.pkg/conf/dp_conf.json --json",
             "pipewright diff job.json nested.json", "pipewright diff two.json job.json",
             "pipewright diff two.json absent.json"],
    "confs": ["pipewright conf --check two.json",
              "pipewright conf --check two.json --ranks 3",
              "pipewright conf small.pkg --check two.json --ranks 2",
              "pipewright conf small.pkg --check long.json",
              "pipewright conf --check repeated.json",
              "pipewright conf --check torn.json",
              "pipewright conf small.pkg --ranks 1 --placement v",
              "pipewright conf small.pkg --ranks 2 --placement 1,0",
              "pipewright conf small.pkg --ranks 2 -o /dev/stdout",
              "pipewright conf small.pkg --ranks 2 --placement v",
              "pipewright conf small.pkg --ranks 2 --placement 0,0",
              "pipewright conf --check two.json --ranks 2 --stages 3",
              "pipewright conf small.pkg --check two.json --ranks 2 --placement v",
              "pipewright conf small.pkg --check two.json --device-map map.json",
              "pipewright conf --check two.json -o two.json",
              "pipewright conf"],
}


def run(command):
    program, *arguments = command.split()
    done = subprocess.run([str(BUILD / program), *arguments], cwd=TESTS / "data/cli", text=True,
                          stdout=subprocess.PIPE, stderr=subprocess.STDOUT, timeout=1200)
    return f"$ {command}\n{done.stdout}exit code {done.returncode}\n\n"


class Cli(unittest.TestCase):
    maxDiff = None

    def test_commands_of_the_other_program_are_pointed_to(self):
        """Every command that --help of one program lists is given to the other program."""
        programs = ["pipewright", "pipewright-run"]
        for program, other in (programs, programs[::-1]):
            text = subprocess.run([BUILD / program, "--help"], capture_output=True,
                                  text=True).stdout
            names = [line.split()[0] for line in text.split("Subcommands:")[1].splitlines()
                     if line[:2] == "  " and line[2:3].strip()]
            self.assertGreater(len(names), 4)
            for name in set(names) - {"help", "completion"}:  # both have these
                done = subprocess.run([BUILD / other, name], capture_output=True, text=True)
                self.assertEqual(done.returncode, 2)
                self.assertIn(f'did you mean "{program} {name}"?', done.stderr)

    def test_help_of_a_command(self):
        for program, command in (("pipewright", "plot cut"), ("pipewright-run", "train"),
                                 ("pipewright", "")):
            shown = [subprocess.run([BUILD / program, *words], text=True, capture_output=True)
                     for words in (["help", *command.split()], [*command.split(), "--help"])]
            self.assertEqual([done.returncode for done in shown], [0, 0])
            self.assertEqual(shown[0].stdout, shown[1].stdout)
        done = subprocess.run([BUILD / "pipewright", "help", "trian"], text=True, capture_output=True)
        self.assertEqual((done.returncode, done.stderr),
                         (2, 'pipewright: help: there is no command "trian"\n'))

    def test_help_fits_the_terminal(self):
        """On a terminal of 70 columns, lines are wrapped; elsewhere a description is one line."""
        show = f"stty columns 70; exec {BUILD / 'pipewright'} help compile"
        main, terminal = pty.openpty()
        with subprocess.Popen(["sh", "-c", show], stdin=terminal, stdout=terminal) as process:
            os.close(terminal)
            text = b""
            try:
                while part := os.read(main, 65536):
                    text += part
            except OSError:  # the terminal's other end is closed
                pass
            os.close(main)
        self.assertEqual(process.returncode, 0)
        lines = text.decode().replace("\r", "").splitlines()
        beside = [line for line in lines if line.startswith("  ") and "-" in line[:4]]
        self.assertGreater(len(beside), 10)
        for line in lines:
            if not line.startswith(("cut an", "  pipewright")):
                self.assertLessEqual(len(line), 70)
        plain = subprocess.run([BUILD / "pipewright", "help", "compile"], text=True,
                               capture_output=True).stdout
        self.assertEqual(plain.split(), " ".join(lines).split())

    def complete(self, program, *words):
        """Returns what bash offers as completions of the last word."""
        script = (f"source /dev/stdin; COMP_WORDS=({program} \"$@\"); COMP_CWORD=$#; "
                  f"_{program.replace('-', '_')}; printf '%s\\n' \"${{COMPREPLY[@]}}\"")
        table = subprocess.run([BUILD / program, "completion", "bash"], text=True,
                               capture_output=True, check=True).stdout
        done = subprocess.run(["bash", "-c", script, "bash", *words], input=table, text=True,
                              capture_output=True, cwd=TESTS / "data/cli")
        self.assertEqual(done.stderr, "")
        return done.stdout.split()

    def test_completion(self):
        self.assertEqual(self.complete("pipewright", "comp"), ["compile", "completion"])
        self.assertEqual(self.complete("pipewright", "compile", "m.pt2", "--sp"),
                         ["--split", "--split-after"])
        self.assertEqual(self.complete("pipewright", "plot", "c"),
                         ["cut", "curves", "costs.json"])
        self.assertIn("--trace", self.complete("pipewright", "plot", "timeline", "--t"))
        self.assertEqual(self.complete("pipewright-run", "--in-process", "2", "train", "--set"),
                         ["--set"])
        for program in ("pipewright", "pipewright-run"):
            texts = {shell: subprocess.run([BUILD / program, "completion", shell], text=True,
                                           capture_output=True, check=True).stdout
                     for shell in ("bash", "zsh", "fish")}
            self.assertTrue(texts["zsh"].endswith(texts["bash"]))
            for line in texts["fish"].splitlines():
                self.assertRegex(line, rf"^complete -c {program} -n '[^']+' .* -d '(\\.|[^'])+'$")
            if program == "pipewright":
                self.assertRegex(texts["fish"], "from compile' -s o -l output -r -d 'the package")
                self.assertRegex(texts["fish"], "from compile' -l force -d 'replace a package")
        done = subprocess.run([BUILD / "pipewright", "completion", "csh"], text=True,
                              capture_output=True)
        self.assertEqual((done.returncode, done.stderr),
                         (2, 'pipewright: completion: unknown shell "csh"\n'
                             '  known: bash, zsh, fish\n'))

    def test_schedule_files(self):
        """Files are read and written unchanged, and equal their schedule cell for cell."""
        made = {"zb1p_2rank_2stagep_compute.csv": "zb1p --ranks 2 --stages 4 --microbatches 8",
                "dualpipev_4rank_10mb.csv": "dualpipev --ranks 4 --microbatches 10"}
        for name, schedule in made.items():
            file = TESTS / "data/schedules" / name
            for source in (str(file), schedule):
                done = subprocess.run([str(BUILD / "pipewright"), "plan", "--compute-only",
                                       "--schedule", *source.split()], capture_output=True)
                text = done.stdout
                if source == schedule and name.startswith("zb1p"):
                    text = text.replace(b"I", b"B")  # PyTorch's older spelling
                self.assertEqual(text, file.read_bytes(), source)

    def test_partition_takes_nothing_of_others(self):
        graph = (TESTS / "data/cli/graph.txt").read_bytes()
        with tempfile.TemporaryDirectory() as folder:
            at = pathlib.Path(folder)
            (at / "graph.txt").write_bytes(graph)

            def partition(*options, says="", code=0):
                stages = () if "--stages" in options else ("--stages", "2")
                done = subprocess.run([str(BUILD / "pipewright"), "partition", "graph.txt",
                                       *stages, *options], cwd=at, text=True,
                                      capture_output=True)
                self.assertEqual(done.returncode, code, done.stdout + done.stderr)
                self.assertIn(says, done.stderr if code else done.stdout)
                return done

            partition("-o", ".", "--force", says="is read in this run", code=1)
            self.assertEqual((at / "graph.txt").read_bytes(), graph)
            partition("-o", "graph.txt", says="is a file, but the output is a folder", code=1)
            partition("-o", "graph.txt/out", says="is not a folder", code=1)
            partition("-o", "", says="its name is empty", code=1)
            files = "dp_conf.json, graph.dot, graph.txt, hybrid_conf.json, mp_conf.json"
            for stages in ("2", "1"):  # again, and another one
                partition("--stages", stages, "-o", "new/out",
                          says=f"written to new/out: partition.json, {files}\n")
            done = partition("-o", "new/out", "--json")
            self.assertEqual(len(json.loads(done.stdout)["stages"]), 2)
            self.assertIn("written to new/out", done.stderr)
            conf = at / "new/out/mp_conf.json"
            conf.write_text(conf.read_text() + " ")
            edited = conf.read_bytes()
            partition("-o", "new/out", says="mp_conf.json: was edited since", code=1)
            self.assertEqual(conf.read_bytes(), edited)
            partition("-o", "new/out", "--force")
            self.assertNotEqual(conf.read_bytes(), edited)
            (at / "mine").mkdir()
            (at / "mine/mp_conf.json").write_text("mine")
            partition("-o", "mine", says="was not written here before", code=1)
            self.assertEqual([p.name for p in (at / "mine").iterdir()], ["mp_conf.json"])
            done = partition("--memory", "1KB", "-o", "none", code=1)
            self.assertIn("nothing is written to none", done.stdout)
            self.assertFalse((at / "none").exists())
            needed = re.search(r"would be enough: --memory (\d+)", done.stdout)[1]
            partition("--memory", needed)
            partition("--memory", str(int(int(needed) / 1.03)), code=1)
            done = partition("--memory", "1KB", "--json", code=1)
            self.assertEqual(json.loads(done.stdout)["memory_that_fits"], float(needed))


def case(name, commands):
    def test(self):
        if any(not (BUILD / command.split()[0]).exists() for command in commands):
            self.skipTest("pipewright-run is not built")
        text = "".join(map(run, commands))
        path = GOLDEN / f"{name}.txt"
        if UPDATE:
            path.write_text(text)
        self.assertEqual(text, path.read_text())
    return test


for name, commands in CASES.items():
    setattr(Cli, f"test_{name}", case(name, commands))

if __name__ == "__main__":
    unittest.main(argv=[a for a in sys.argv if a != "--update"])
