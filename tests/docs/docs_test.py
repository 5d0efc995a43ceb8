"""The pages of docs/, README.md and its neighbours against the programs: options, keys of files, names, links."""
import importlib.util
import json
import os
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

TESTS = pathlib.Path(__file__).resolve().parents[1]
ROOT = TESTS.parent
DOCS = ROOT / "docs"
REFERENCE = DOCS / "reference"
BUILD = pathlib.Path(os.environ.get("PIPEWRIGHT_BUILD", ROOT / "build"))
UNKNOWN = "key-that-nothing-has"

spec = importlib.util.spec_from_file_location("make_reference", DOCS / "make_reference.py")
make_reference = importlib.util.module_from_spec(spec)
spec.loader.exec_module(make_reference)


def read(path):
    return pathlib.Path(path).read_text(encoding="utf-8")


def pages():
    return [*(ROOT / name for name in ("README.md", "CONTRIBUTING.md", "CHANGELOG.md")),
            *sorted(DOCS.rglob("*.md"))]


def table_rows(page, marker):
    """Returns the cells of the table that follows "<!-- keys: MARKER -->" in the text of a page."""
    mark = f"<!-- keys: {marker} -->"
    assert mark in page, f"the page lacks {mark}"
    rows = []
    for line in page.split(mark, 1)[1].strip().splitlines():
        if not line.startswith("|"):
            break
        rows.append([cell.strip() for cell in line.strip().strip("|").split(" | ")])
    return rows[2:]  # without the header and its rule


def names(cell):
    """Returns [a, b] for a cell with `a`, `b`."""
    return re.findall(r"`([\w-]+)`", cell)


def keys(page, marker):
    return {name for row in table_rows(page, marker) for name in names(row[0])}


class CommandLine(unittest.TestCase):
    maxDiff = None

    def test_page_is_what_help_says(self):
        page = read(make_reference.PAGE)
        self.assertEqual(page, make_reference.make(BUILD, page),
                         "run python3 docs/make_reference.py")
        for file, text in make_reference.manuals(BUILD):
            self.assertEqual(read(file), text, "run python3 docs/make_reference.py")

    def test_every_command_and_option_is_there(self):
        """Reads --help in another way than the script that writes the page."""
        page = read(make_reference.PAGE)
        blocks = {name: text for _, name, text in
                  re.findall(r"(<!-- help: (.+?) -->\n)(.*?)<!-- end -->", page, re.S)}
        self.assertEqual(sorted(blocks), sorted(make_reference.commands(BUILD)))
        for command, text in blocks.items():
            shown = make_reference.read_help(BUILD, command)
            listed = {name for line in shown.splitlines() if re.match(r"  -", line)
                      for name in line.split()[0].split(",")} - {"-h", "--help"}
            told = {name.split()[0] for row in re.findall(r"^\| `(-.+?)` \|", text, re.M)
                    for name in row.split(", ")}
            self.assertEqual(told, listed, command)

    def test_commands_of_the_pages_exist(self):
        """Every option of a command on a page is an option of that command."""
        known = {command: set(make_reference.options(
            [entry for entries in make_reference.parse(
                make_reference.read_help(BUILD, command))[2].values() for entry in entries]))
            for command in make_reference.commands(BUILD)}
        for page in pages():
            text = re.sub(r"\\\n\s*", "", read(page))
            for line in text.splitlines():
                if not (line.startswith(("    ", "$ ")) or "`pipewright" in line):
                    continue
                for program, rest in re.findall(r"(?<![\w/.-])(pipewright(?:-run)?) ([^`#|;]*)", line):
                    self.check_command(page, program, rest.split(), known)

    def check_command(self, page, program, words, known):
        command, at = program, [program]
        for word in words:
            if f"{command} {word}" in known:
                command = f"{command} {word}"
                at.append(command)
            elif re.fullmatch(r"--?[a-z][\w-]*(=.*)?", word):
                option = word.split("=")[0]
                self.assertTrue(any(option in known[one] for one in at),
                                f"{page}: {' '.join([program, *words])}: no option {option}")


class Keys(unittest.TestCase):
    """Keys of files: the program's own list, from its error for an unknown key."""
    maxDiff = None

    @classmethod
    def setUpClass(cls):
        cls.folder = tempfile.TemporaryDirectory()
        cls.at = pathlib.Path(cls.folder.name)
        shutil.copytree(TESTS / "data/cli/small.pkg", cls.at / "small.pkg")
        shutil.copy(TESTS / "data/cli/text.txt", cls.at)
        cls.job = json.loads(read(TESTS / "data/cli/job.json"))

    @classmethod
    def tearDownClass(cls):
        cls.folder.cleanup()

    def known(self, *command):
        """Returns the keys that the error of a command lists."""
        done = subprocess.run([str(BUILD / "pipewright"), *command], cwd=self.at, text=True,
                              capture_output=True, timeout=1200)
        self.assertIn(UNKNOWN, done.stderr)
        found = re.search(r"known[^:\n]*: (.+)", done.stderr)
        self.assertTrue(found, done.stderr)
        return set(found[1].split(", "))

    def write(self, name, content):
        (self.at / name).write_text(json.dumps(content))

    def known_to_job(self, **parts):
        self.write("job.json", {**self.job, **parts})
        return self.known("plan", "small.pkg", "job.json")

    def test_job(self):
        page = read(REFERENCE / "job.md")
        new = {UNKNOWN: 1}
        self.assertEqual(keys(page, "job"), self.known_to_job(**new))
        # Keys of nested objects must be on the page, as `key` or in an example as "key".
        for parts in ({"data": new}, {"loss": new}, {"loss_scale": new}, {"validation": new},
                      {"checkpoint": new}, {"recompute": new},
                      {"optimizer": {"type": "sgd", "groups": [new]}},
                      {"optimizer": {"type": "sgd", "lr_schedule": new}}):
            self.check_told(page, self.known_to_job(**parts))

    def check_told(self, page, known):
        self.assertEqual([key for key in sorted(known)
                          if not re.search(rf'["`]{key}["`]', page)], [])

    def test_optimizers(self):
        page = read(REFERENCE / "job.md")
        common = keys(page, "optimizer") | {"type"}
        types = {names(row[0])[0]: set(re.findall(r"`([\w]+)`", row[1]))
                 for row in table_rows(page, "optimizer types")}
        self.write("job.json", {**self.job, "optimizer": {"type": UNKNOWN}})
        self.assertEqual(set(types), self.known("plan", "small.pkg", "job.json"))
        for name, own in types.items():
            with self.subTest(name):
                known = self.known_to_job(optimizer={"type": name, UNKNOWN: 1})
                self.assertEqual(own | common, known)

    def test_costs(self):
        page = read(REFERENCE / "costs.md")
        (self.at / "plan.csv").write_text("0F0,0B0\n")
        stage = {"F": 1, "I": 1, "W": 1}
        self.write("costs.json", {"stages": [{**stage, UNKNOWN: 1}]})
        simulate = ("simulate", "plan.csv", "--costs", "costs.json")
        self.assertEqual(keys(page, "stage costs"), self.known(*simulate))
        for costs in ({UNKNOWN: 1}, {"link": {UNKNOWN: 1}}):
            self.write("costs.json", {"stages": [stage], **costs})
            self.check_told(page, self.known(*simulate))

    def test_conf(self):
        self.write("conf.json", {"module_to_stage_map": [0], "stage_to_rank_map": {"0": [0]},
                                 UNKNOWN: 1})
        self.assertEqual(keys(read(REFERENCE / "conf.md"), "conf"),
                         self.known("conf", "--check", "conf.json"))

    def test_manifest(self):
        page = read(REFERENCE / "package.md")
        file = self.at / "small.pkg/manifest.json"
        manifest = json.loads(read(file))
        self.write("job.json", self.job)
        try:
            for at in (manifest, manifest["modules"][0], manifest["values"][0],
                       manifest["modules"][0]["held"][0]):
                at[UNKNOWN] = 1
                file.write_text(json.dumps(manifest))
                del at[UNKNOWN]
                self.check_told(page, self.known("plan", "small.pkg", "job.json"))
        finally:
            file.write_text(json.dumps(manifest))


class Names(unittest.TestCase):
    def test_schedules(self):
        shown = make_reference.parse(make_reference.read_help(BUILD, "pipewright plan"))[2]
        text = next(text for entry, text in shown["Options"] if entry.startswith("--schedule"))
        listed = {name for name in re.findall(r"[a-z0-9][\w-]+", text.split(":", 1)[1])
                  if re.search(rf"(?<![\w-]){name},", text)}
        self.assertIn("1f1b", listed)
        self.assertEqual(keys(read(REFERENCE / "schedules.md"), "schedules"), listed)

    def test_environment(self):
        """Variables that the sources read are on the page, and no others."""
        read_by = set()
        for path in ROOT.rglob("*.cc"):
            if not {"build", "tests", "bench", ".venv"} & set(path.relative_to(ROOT).parts[:1]):
                read_by |= set(re.findall(r'"(PIPEWRIGHT_[A-Z_]+)[":]', read(path)))
        # Names that only occur in messages are read by the same sources; the version is not a
        # variable.
        read_by -= {"PIPEWRIGHT_VERSION"}
        self.assertEqual(keys(read(REFERENCE / "environment.md"), "environment"), read_by)


class Links(unittest.TestCase):
    def anchors(self, path):
        """Returns the anchors of a page's headings, as GitHub makes them."""
        found, text = set(), re.sub(r"```.*?```", "", read(path), flags=re.S)
        for title in re.findall(r"^#+ (.+)$", text, re.M):
            title = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", title).strip().lower()
            found.add(re.sub(r"[^\w\- ]", "", title).replace(" ", "-"))
        return found

    def test_links(self):
        broken = []
        for page in pages():
            text = re.sub(r"```.*?```", "", read(page), flags=re.S)
            for target in re.findall(r"\]\(([^)\s]+)\)", text):
                if re.match(r"[a-z]+:", target):
                    continue
                file, _, anchor = target.partition("#")
                at = (page.parent / file).resolve() if file else page
                if not at.exists() or ROOT not in at.parents:
                    broken.append(f"{page.relative_to(ROOT)}: {target}: no such file")
                elif anchor and (at.suffix != ".md" or anchor not in self.anchors(at)):
                    broken.append(f"{page.relative_to(ROOT)}: {target}: no such heading")
        self.assertEqual(broken, [])

    def test_every_page_is_in_the_index(self):
        index = read(DOCS / "README.md")
        for page in DOCS.rglob("*.md"):
            name = str(page.relative_to(DOCS))
            if name != "README.md":
                self.assertIn(f"({name})", index)

    def test_every_tutorial_has_commands(self):
        """pages_test.py runs them."""
        for page in sorted((DOCS / "tutorials").glob("*.md")):
            self.assertIn("\n```console\n$ ", read(page), page.name)

    def test_pages_that_the_sources_name(self):
        """Pages that code, scripts and messages name as docs/….md exist."""
        tracked = [path for kind in ("*.cc", "*.h", "*.py", "*.sh", "Makefile", "CMakeLists.txt")
                   for path in ROOT.rglob(kind)
                   if not path.relative_to(ROOT).parts[0].startswith(("build", ".", "install"))]
        for path in tracked:
            for name in re.findall(r"(?<![\w/])docs/[\w/-]+\.(?:md|txt)", read(path)):
                self.assertTrue((ROOT / name).exists(), f"{path.relative_to(ROOT)} names {name}")


if __name__ == "__main__":
    unittest.main()
