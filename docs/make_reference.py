"""Writes the option tables of docs/reference/command-line.md, and the manual pages in docs/man,
from what the programs' --help says.

python3 docs/make_reference.py [BUILD]

The text of the page is written by hand. Between "<!-- help: COMMAND -->" and "<!-- end -->" this
script puts the usage line and the arguments and options of COMMAND. tests/docs compares.
"""
import functools
import pathlib
import re
import subprocess
import sys

DOCS = pathlib.Path(__file__).resolve().parent
PAGE = DOCS / "reference/command-line.md"
BLOCK = re.compile(r"(<!-- help: (.+?) -->\n).*?(<!-- end -->)", re.S)
# The column of --help in which texts begin. One whose entry is longer begins in the next line.
COLUMN = 30


@functools.cache
def read_help(build, command):
    """The text of `COMMAND --help`."""
    program, *words = command.split()
    done = subprocess.run([str(pathlib.Path(build) / program), *words, "--help"], text=True,
                          capture_output=True, timeout=60)
    if done.returncode != 0:
        raise SystemExit(f"{command} --help ended with {done.returncode}: {done.stderr}")
    return done.stdout


def parse(text):
    """(description, usage, {section: [[entry, text]]}) of one --help."""
    sections, entries, usage, description = {}, None, "", []
    lines = text.splitlines()
    for line, after in zip(lines, lines[1:] + [""]):
        if line.startswith("Usage: "):
            usage = line.removeprefix("Usage: ")
        elif re.fullmatch(r"\S.*:", line):
            entries = sections.setdefault(line[:-1].removeprefix("[").removesuffix("]"), [])
        elif entries is None:
            description += [line] if line.strip() else []
        elif entries is sections.get("Example"):
            entries += [[line.strip(), ""]] if line.strip() else []
        elif line.startswith(" " * COLUMN) and entries:
            entries[-1][1] = f"{entries[-1][1]} {line.strip()}".strip()
        elif line.strip() and after.startswith(" " * COLUMN) and "  " not in line.strip():
            entries.append([line.strip(), ""])
        elif line.strip():
            entries.append([line[:COLUMN].strip(), line[COLUMN:].strip()])
    return " ".join(description), usage, sections


def commands(build):
    """Every command of both programs, with the programs themselves."""
    found, waiting = [], ["pipewright", "pipewright-run"]
    while waiting:
        command = waiting.pop(0)
        found.append(command)
        for name, entries in parse(read_help(build, command))[2].items():
            if name == "Subcommands":
                waiting += [f"{command} {entry.split()[0]}" for entry, _ in entries]
    return found


def options(entries):
    """The names of the options among entries: ["-o", "--output", ...]."""
    return [name for entry, _ in entries for name in entry.split()[0].split(",")
            if name.startswith("-")]


def render_entry(entry, text):
    """A row: the names with the kind of the value, and the text."""
    names, _, kind = entry.partition(" ")
    shown = " ".join(filter(None, [", ".join(names.split(",")), kind]))
    text = text.replace("|", "\\|").replace("<", "\\<")
    return f"| `{shown}` | {text} |"


def render(build, command):
    """The usage line, and a table of positionals and options other than -h."""
    _, usage, sections = parse(read_help(build, command))
    lines = [f"    {usage}"]
    for name, entries in sections.items():
        rows = [render_entry(*entry) for entry in entries if not entry[0].startswith("-h,")]
        if name == "Example":
            lines += ["", "Example:", "", *(f"    {entry}" for entry, _ in entries)]
        if name in ("Subcommands", "Example") or not rows:
            continue
        head = {"Positionals": "argument", "Options": "option"}.get(name, name)
        lines += ["", f"| {head} | |", "|---|---|", *rows]
    return "\n".join(["", *lines, "", ""])


def make(build, page):
    """The page with every block made anew."""
    return BLOCK.sub(lambda block: block[1] + render(build, block[2]) + block[3], page)


def roff(text):
    """Text for a line of a manual page."""
    text = text.replace("\\", "\\e").replace("-", "\\-")
    return "\\&" + text if text.startswith((".", "'")) else text


def make_manual(build, program):
    """The manual page of a program: every command with its usage, options and example."""
    description = parse(read_help(build, program))[0]
    lines = [f'.TH {program.upper()} 1 "" pipewright', ".SH NAME", f"{program} \\- {roff(description)}",
             ".SH COMMANDS"]
    for command in commands(build):
        if command.split()[0] != program:
            continue
        description, usage, sections = parse(read_help(build, command))
        lines += [f".SS {roff(command)}", roff(description), ".PP", f".B {roff(usage)}"]
        for name, entries in sections.items():
            if name == "Subcommands":
                continue
            if name == "Example":
                lines += [".PP", "Example:", ".PP", ".nf"]
                lines += [roff(entry) for entry, _ in entries] + [".fi"]
                continue
            for entry, text in entries:
                lines += [".TP", f".B {roff(entry)}", roff(text)]
    lines += [".SH EXIT STATUS", "0: success.", ".br",
              "1: a file, model, package or run is at fault; the message says which.", ".br",
              "2: the command line was not understood."]
    return "\n".join(lines) + "\n"


def manuals(build):
    """[(file, its text)]"""
    return [(DOCS / f"man/{program}.1", make_manual(build, program))
            for program in ("pipewright", "pipewright-run")]


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else DOCS.parent / "build"
    page = make(build, PAGE.read_text(encoding="utf-8"))
    missing = [name for name in commands(build) if f"<!-- help: {name} -->" not in page]
    if missing:
        raise SystemExit(f"{PAGE} has no block <!-- help: {missing[0]} --> ... <!-- end -->")
    PAGE.write_text(page, encoding="utf-8")
    for file, text in manuals(build):
        file.parent.mkdir(exist_ok=True)
        file.write_text(text, encoding="utf-8")


if __name__ == "__main__":
    main()
