"""Writes the option tables of docs/reference/command-line.md from what the programs' --help says.

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
    """A row: the name with the kind of its value, and the text with defaults and limits."""
    notes = []
    for word in ("Excludes", "Needs"):
        if match := re.search(rf" {word}: (.+?)(?= (?:Excludes|Needs): |$)", entry):
            others = ", ".join(f"`{name}`" for name in match[1].split(","))
            notes.append(f"not with {others}" if word == "Excludes" else f"needs {others}")
            entry = entry.replace(match[0], "")
    if " REQUIRED" in entry:
        entry = entry.replace(" REQUIRED", "")
        notes.append("required")
    several = " ..." if entry.endswith(" ...") else ""
    entry = entry.removesuffix(" ...")
    name, _, value = entry.partition(" ")
    default = re.search(r"=(\S+)$", value)
    if default:
        value = value[:default.start()]
    kind, _, limit = value.partition(":")
    if not limit and " " in kind:
        kind, _, limit = kind.partition(" ")
    if kind.startswith("{"):
        kind, limit = "NAME", kind
    if limit.startswith("{"):
        kind = "NAME"
        notes.append("one of " + ", ".join(f"`{one}`" for one in limit.strip("{}").split(",")))
    elif limit and (match := re.search(r"in \[(\S+) - (\S+)\]", limit)):
        # A limit beyond all use is there to refuse slips; a reader needs only the lower end.
        notes.append(f"{match[1]} to {match[2]}" if float(match[2]) < 1e5 else f"at least {match[1]}")
    elif limit:
        lower = {"POSITIVE": "above 0" if kind == "FLOAT" else "at least 1",
                 "NONNEGATIVE": "at least 0"}
        notes.append(lower.get(limit, limit))
    if default:
        notes.append(f"default {default[1]}")
    kind = {"TEXT": "TEXT", "INT": "N", "UINT": "N", "FLOAT": "X"}.get(kind, kind)
    shown = ", ".join(name.split(","))
    shown += f" {kind}{several}" if kind and name.startswith("-") else ""
    text = text.replace("|", "\\|").replace("<", "\\<")
    return f"| `{shown}` | {text}{' (' + '; '.join(notes) + ')' if notes else ''} |"


def render(build, command):
    """The usage line, and a table of positionals and options other than -h."""
    _, usage, sections = parse(read_help(build, command))
    lines = [f"    {usage}"]
    for name, entries in sections.items():
        rows = [render_entry(*entry) for entry in entries if not entry[0].startswith("-h,")]
        if name == "Subcommands" or not rows:
            continue
        head = {"Positionals": "argument", "Options": "option"}.get(name, name)
        lines += ["", f"| {head} | |", "|---|---|", *rows]
    return "\n".join(["", *lines, "", ""])


def make(build, page):
    """The page with every block made anew."""
    return BLOCK.sub(lambda block: block[1] + render(build, block[2]) + block[3], page)


def main():
    build = sys.argv[1] if len(sys.argv) > 1 else DOCS.parent / "build"
    page = make(build, PAGE.read_text(encoding="utf-8"))
    missing = [name for name in commands(build) if f"<!-- help: {name} -->" not in page]
    if missing:
        raise SystemExit(f"{PAGE} has no block <!-- help: {missing[0]} --> ... <!-- end -->")
    PAGE.write_text(page, encoding="utf-8")


if __name__ == "__main__":
    main()
