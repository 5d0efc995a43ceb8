"""The map in docs/internals/architecture.md is true: every folder of sources is in it, #include
lines follow its arrows and no others, the arrows have no cycle, and cmake/libraries.cmake has the
same list.
"""

import collections
import fnmatch
import itertools
import pathlib
import re
import sys
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent
PAGE = ROOT / "docs/internals/architecture.md"
# Sources without a header of the same name: several of them implement one header.
PARTS = {
    "cli/commands/*_command.cc": "a command each, which the main of a program adds",
    "cli/*_main.cc": "the programs",
    "cli/run/*_command.cc": "commands.h: a command each",
    "compiler/emit/make_manifest.cc": "package.h: a part of the package",
    "compiler/import/export/export_*.cc": "export_graph.h: the parts of one converter",
    "compiler/import/merge_views.cc": "adapt_weights.h: weights that overlap",
    "compiler/import/script/script_*.cc": "script_graph.h: the steps from a module to a graph",
    "check/*_rules.cc": "rules.h: the rules of a part of a run each",
    "formats/data/*.cc": "open.h: a kind of source each",
    "formats/weights/safetensors_*.cc": "safetensors.h: one format, read, checked and written",
    "passes/split/cuts_by_cost.cc": "cuts.h: cuts that even out cost or size",
    "passes/split/split_spec.cc": "split.h: the policies as --split writes them",
    "plan/placement/balance.cc": "place.h: the policy balanced",
    "plan/placement/optimal.cc": "place.h: the policy optimal",
    "plan/schedules/basic.cc": "generators.h: GPipe and 1F1B",
    "plan/schedules/dualpipe.cc": "generators.h: DualPipe and DualPipeV",
    "plan/schedules/interleaved.cc": "generators.h: interleaved and breadth-first schedules",
    "plan/schedules/v.cc": "generators.h: V-Half and V-Min",
    "plan/schedules/waves.cc": "generators.h: Chimera and Hanayo",
    "plan/schedules/zero_bubble.cc": "generators.h: zero-bubble schedules",
    "runtime/stage/recompute.cc": "stage_state.h: a part of the class",
    "runtime/stage/memory_error.cc": "stage_state.h: a part of the class",
    "runtime/stage/stage_backward.cc": "stage_state.h: a part of the class",
    "runtime/stage/versions.cc": "stage_state.h: a part of the class",
    "runtime/transport/mpi_*.cc": "mpi_transport.h: its options, and a program that runs on it",
}
# Functions over MOST_LINES lines or MOST_PARAMETERS parameters, and how many they have. A number may
# only become smaller: most of these are a table, or one branch for each kind of thing.
MOST_LINES, MOST_PARAMETERS = 80, 6
LONG = {
    "compiler/import/export/export_arguments.cc:ExportConverter::Argument": 116,
    "compiler/import/export/export_graph.cc:ExportConverter::ConvertOperator": 86,
    "formats/job.cc:ParseJob": 97,
    "formats/optimizer_job.cc:ReadOptimizer": 90,
    "formats/torch/pickle.cc:Step": 117,
    "passes/graph/aliases.cc:NeverCalled": 122,
    "passes/graph/model.cc:Identifier": 84,
    "passes/rnn_dropout.cc:Split": 81,
    "plan/partition/pipedream/codegen/codegen.cc:Writer::StageFile": 88,
    "runtime/recorded/recording.cc:Recording::Call": 116,
}
WIDE = {
    "ops/random_ops.cc:Attention": 10,  # the operator's schema
    "plan/lowering/lower.cc:Add": 7,
    "plan/lowering/transfer_index.cc:CheckMessage": 7,
    "plan/partition/fast/sequence_dp.cc:CutOrder": 7,
    "plan/run/run_plan.cc:MakeRunPlan": 7,
    "plan/schedules/order_problem.cc:MakeOrderProblem": 7,
    "plan/search/placements.cc:CandidateMaps": 8,
    "plan/search/placements.cc:MapSearch": 7,
    "plan/search/recompute.cc:RecomputeChoices": 7,
    "runtime/commands/bench.cc:StepsBy": 8,
    "runtime/weights.cc:Save": 7,
}
# Sources of the runtime that use the address of tensors; these tensors are never on a device.
HOST_ONLY = {
    "runtime/commands/bench_requests.cc": "requests and answers as text",
    "runtime/commands/generate.cc": "which runs on the CPU",
    "runtime/commands/infer.cc": "rows of the input file, and outputs of the CPU",
    "runtime/data/data.cc": "samples, as the source has them",
    "runtime/measure/*.cc": "who measures the CPU",
    "runtime/module/messages.cc": "messages between ranks, and where tensors begin",
    "runtime/trial/trial.cc": "a sample that code is tried on",
    "runtime/recorded/*.cc": "lists of operations, which the CPU alone has",
    "runtime/stage/gradient_sums.cc": "flags, which lie on the host",
    "runtime/stage/offload.cc": "weights on disk, which devices do not have yet",
    "runtime/stage/slot_memory.cc": "buffers for messages between ranks",
}
# Functions that several headers declare under one name: they do the same for different types.
OVERLOADS = {
    "BytesOf": "the bytes of a weight",
    "CountRanks": "the ranks of a conf, or of a package with one",
    "Describe": "text for reports",
    "Extents": "names and places of tensors",
    "SizeText": "a number of bytes as text",
    "ToText": "the name of an enumerator, or the text of an action",
}
# Headers with a source of their own that no unit test includes. The list may only become shorter.
UNTESTED = []
# Sources that contain the name of a schedule as a string.
SCHEDULES_NAMED = {
    "cli/commands/partition_command.cc": "values of --in-flight and --mode",
    "formats/job.h": "the default of a job",
    "plan/partition/io/mode.cc": "--mode pipedream",
    "plan/schedules/table.cc": "the table of schedules",
    "plan/schedules/table.h": "the schedules that runs default to",
    "plan/search/zb_auto.cc": "the place of an error",
}
NOT_CODE = re.compile(r'//[^\n]*|R"(\w*)\(.*?\)\1"|"(?:\\.|[^"\\\n])*"|\'(?:\\.|[^\'\\\n])\''
                      r'|^[ \t]*#(?:[^\n]*\\\n)*[^\n]*', re.S | re.M)
# A line that begins with a type and a name before a parenthesis: what is inside classes is indented.
FREE_FUNCTION = re.compile(r"^(?!using |return |typedef |namespace |struct |class |enum |template )"
                           r"[A-Za-z_][\w:<>,*& ]*[ *&](\w+)\(", re.M)
TOP = ["base", "formats", "plan", "report", "tune", "ops", "tensors", "passes", "compiler", "runtime", "check",
       "cli"]


def arrows_of_page():
    """Returns folder -> the folders that it may include, from the table under "## Folders"."""
    text = PAGE.read_text().split("\n## Folders\n")[1].split("\n## ")[0]
    arrows = {}
    for line in text.splitlines():
        cells = [cell.strip() for cell in line.strip("|").split("|")]
        if len(cells) == 3 and (match := re.fullmatch(r"`([a-z_/]+)/`", cells[0])):
            arrows[match[1]] = set(re.findall(r"`([a-z_/]+)`", cells[2]))
    return arrows


def arrows_of_cmake():
    arrows = {}
    text = (ROOT / "cmake/libraries.cmake").read_text()
    for call in re.findall(r"^pipewright_library\(([^)]*)\)", text, re.M):
        words = call.split()
        uses = words[words.index("USES") + 1:] if "USES" in words else []
        if "LINKS" in uses:
            uses = uses[:uses.index("LINKS")]
        arrows[words[0]] = set(uses)
    return arrows


def sources():
    for top in TOP:
        for path in sorted((ROOT / top).rglob("*")):
            if path.suffix in (".h", ".cc"):
                yield path.relative_to(ROOT)


def includes():
    """Yields (file, line number, the project's header that it includes)."""
    for path in sources():
        for number, line in enumerate((ROOT / path).read_text().splitlines(), 1):
            match = re.match(r'#include "([^"]+)"', line)
            if match and "/" in match[1]:
                yield path, number, pathlib.Path(match[1])


def count_parameters(head):
    """Counts the parameters of the definition whose text up to its body is `head`."""
    at, depth, angles, commas = head.index("("), 0, 0, 0
    inside = head[at + 1:]
    for i, c in enumerate(inside):
        if c in ")]}" and depth == 0:
            return commas + 1 if inside[:i].strip() else 0
        depth += (c in "([{") - (c in ")]}")
        angles += (c == "<") - (c == ">")
        commas += c == "," and depth == 0 and angles == 0
    return 0


def functions(path):
    """Yields (name, lines, parameters) for each function that the file defines."""
    text = NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), (ROOT / path).read_text())
    blocks, begin = [], 0
    for match in re.finditer("[{};]", text):
        head = re.sub(r"^\s*((public|private|protected)\s*:)?\s*", "", text[begin:match.start()])
        if match[0] == "{":
            is_function = "(" in head and not re.search(r"=\s*$|^[^(]*\w =", head)
            within = any(found for found, _, _ in blocks)
            start = match.start() - len(head)
            blocks.append((is_function and not within, start, head))
        elif match[0] == "}":
            is_function, start, head = blocks.pop()
            if is_function:
                lines = text.count("\n", start, match.start()) + 1
                name = re.search(r"([\w:~]+)\s*\(", head)
                yield name[1] if name else head, lines, count_parameters(head)
        begin = match.end()


class Map(unittest.TestCase):
    def setUp(self):
        self.arrows = arrows_of_page()

    def test_names_every_folder(self):
        folders = {str(path.parent) for path in sources()}
        self.assertEqual(sorted(folders - set(self.arrows)), [], "folders that the page lacks")
        self.assertEqual(sorted(set(self.arrows) - folders), [], "folders that do not exist")

    def test_includes_follow_the_arrows(self):
        wrong = []
        used = collections.defaultdict(set)
        for path, number, header in includes():
            self.assertTrue((ROOT / header).exists(), f"{path}:{number}: no {header}")
            start, end = str(path.parent), str(header.parent)
            used[start].add(end)
            if start != end and end not in self.arrows[start]:
                wrong.append(f"{path}:{number}: {start} may not include {end}")
        self.assertEqual(wrong, [])
        idle = [f"{start} -> {end}" for start, ends in self.arrows.items()
                for end in sorted(ends - used[start])]
        self.assertEqual(idle, [], "arrows that no file needs")

    def test_no_cycles(self):
        done, path = set(), []

        def visit(folder):
            self.assertNotIn(folder, path, " -> ".join(path + [folder]))
            if folder in done:
                return
            path.append(folder)
            for other in sorted(self.arrows[folder]):
                visit(other)
            path.pop()
            done.add(folder)

        for folder in self.arrows:
            visit(folder)

    def test_libraries_are_the_folders(self):
        libraries = arrows_of_cmake()
        expected = {folder: ends for folder, ends in self.arrows.items() if not folder.startswith("cli")}
        self.assertEqual(libraries, expected)

    def test_files_to_start_in_exist(self):
        text = PAGE.read_text().split("## Where do I change …")[1].split("\n## ")[0]
        rows = [line for line in text.splitlines() if line.startswith("| ")][1:]
        self.assertEqual(len(rows), 16)
        paths = [path for path in re.findall(r"`([^`]+)`", text) if "/" in path]
        self.assertEqual([path for path in paths if not (ROOT / path).exists()], [])

    def test_headers_say_what_they_are_for(self):
        silent = [str(path) for path in sources() if path.suffix == ".h"
                  and not (ROOT / path).read_text().startswith("// ")]
        self.assertEqual(silent, [])


class Functions(unittest.TestCase):
    def test_are_short_and_take_few_parameters(self):
        long, wide, count = {}, {}, 0
        for path in sources():
            for name, lines, parameters in functions(path):
                count += 1
                if lines > MOST_LINES:
                    long[f"{path}:{name}"] = lines
                if parameters > MOST_PARAMETERS:
                    wide[f"{path}:{name}"] = parameters
        self.assertGreater(count, 3000, "the functions of the tree are not found")
        self.assertEqual(long, LONG, "split it where that makes it clearer, or lower its number")
        self.assertEqual(wide, WIDE, "give it a struct, or lower its number")


class Names(unittest.TestCase):
    def test_sources_have_the_name_of_their_header(self):
        """Readers of #include "x.h" look for x.cc. PARTS lists the exceptions, and nothing else."""
        lost, needed = [], set()
        for path in sources():
            if path.suffix != ".cc" or (ROOT / path.with_suffix(".h")).exists():
                continue
            parts = [pattern for pattern in PARTS if fnmatch.fnmatch(str(path), pattern)]
            needed.update(parts)
            headers = re.findall(r"\w+\.h", " ".join(PARTS[pattern] for pattern in parts))
            text = (ROOT / path).read_text()
            if not parts or headers and not any(
                    re.search(rf'#include "[\w/]*/{header}"', text) for header in headers):
                lost.append(str(path))
        self.assertEqual(lost, [], "sources without a header of their name")
        self.assertEqual(sorted(set(PARTS) - needed), [], "exceptions that nothing needs")

    def test_one_meaning_each(self):
        """No two types of one name have external linkage: programs link all folders, and tests link
        several of their own files."""
        found = collections.defaultdict(list)
        tests = (p.relative_to(ROOT) for p in (ROOT / "tests").rglob("*") if p.suffix in (".h", ".cc"))
        for path in itertools.chain(sources(), tests):
            inner = False
            for line in (ROOT / path).read_text().splitlines():
                if line == "namespace {":
                    inner = True
                elif line == "}  // namespace":
                    inner = False
                match = re.match(r"(?:struct|class|enum class|enum) (\w+)(?: final)?(?: : [^{;]*)? \{"
                                 r"|using (\w+) =", line)
                if match and not inner and (match[1] or path.parts[0] != "tests"):
                    found[match[1] or match[2]].append(str(path))
        twice = {name: paths for name, paths in found.items() if len(paths) > 1}
        self.assertEqual(twice, {})

    def test_one_meaning_each_function(self):
        """No two headers declare a free function of one name. OVERLOADS lists the exceptions, and
        nothing else."""
        found, count = collections.defaultdict(set), 0
        for path in sources():
            if path.suffix != ".h":
                continue
            text = NOT_CODE.sub(lambda m: re.sub(r"[^\n]", " ", m[0]), (ROOT / path).read_text())
            for name in FREE_FUNCTION.findall(text):
                found[name].add(str(path))
                count += 1
        self.assertGreater(count, 800, "the functions of the headers are not found")
        twice = {name: sorted(paths) for name, paths in found.items() if len(paths) > 1}
        self.assertEqual({name: paths for name, paths in twice.items() if name not in OVERLOADS}, {})
        self.assertEqual(sorted(set(OVERLOADS) - set(twice)), [], "exceptions that nothing needs")


class Tests(unittest.TestCase):
    def test_include_every_header_with_logic(self):
        """A header with a source of its own is included by a test. UNTESTED lists the exceptions,
        and nothing else; whole programs test these."""
        included = set()
        for path in [*(ROOT / "tests").rglob("*.h"), *(ROOT / "tests").rglob("*.cc")]:
            included |= set(re.findall(r'^#include "([^"]+)"', path.read_text(), re.M))
        untested = {str(path) for path in sources()
                    if path.suffix == ".h" and (ROOT / path).with_suffix(".cc").exists()
                    and str(path) not in included}
        self.assertEqual(sorted(untested), sorted(UNTESTED))


class Schedules(unittest.TestCase):
    def test_are_named_in_their_table_only(self):
        """Other code asks for the columns of the table. SCHEDULES_NAMED lists the exceptions, and
        nothing else."""
        table = (ROOT / "plan/schedules/table.cc").read_text()
        names = re.findall(r'\.name = "([^"]+)"', table)
        self.assertGreater(len(names), 15)
        named = re.compile(r'"(?:%s)"' % "|".join(map(re.escape, names)))
        found = []
        for path in sources():
            code = re.sub(r"//[^\n]*", "", (ROOT / path).read_text())
            if named.search(code):
                found.append(str(path))
        self.assertEqual(sorted(found), sorted(SCHEDULES_NAMED))


class Devices(unittest.TestCase):
    def test_the_host_touches_tensors_in_few_places(self):
        """A stage's tensors may be in memory that the host cannot access: tensors/device_memory.h
        handles it. HOST_ONLY lists the sources that only see CPU tensors, and nothing else."""
        found = {str(path) for path in sources() if path.parts[0] == "runtime"
                 and re.search(r"data_ptr|from_blob", NOT_CODE.sub("", (ROOT / path).read_text()))}
        needed = {pattern for pattern in HOST_ONLY
                  if any(fnmatch.fnmatch(path, pattern) for path in found)}
        self.assertEqual(sorted(path for path in found
                                if not any(fnmatch.fnmatch(path, p) for p in HOST_ONLY)), [])
        self.assertEqual(sorted(set(HOST_ONLY) - needed), [], "exceptions that nothing needs")


if __name__ == "__main__":
    sys.exit(unittest.main())
