"""The manual: one operation has one name in all languages, metrics are described, and prose is plain."""

import ast
import pathlib
import re
import sys

import pytest

ROOT = pathlib.Path(__file__).parents[3]
sys.path.append(str(ROOT / "bindings/python/backend"))

import stub  # noqa: E402

NATIVE = stub.with_twins(stub.SIGNATURES.read_text())

# Types of the Rust crates whose methods the page of names has.
RUST = set(
    """Client ClientBuilder AsyncClient Instruments Remote Draft DatasetDraft ValueDraft DeviceDraft Lease DeviceLease DeviceMember DeviceTensor Tensor Dataset
    Value CopyOnWrite Version NameWatch History Stream StreamBuilder Sender Loan Subscription SubscriptionBuilder AsyncSubscription Message
    Borrowed Queue QueueItem QueueItems Server ServerBuilder Caller CallerBuilder Call Error Models Model ModelRequest ModelAnswer""".split()
)
LANGUAGES = ("Rust", "Python", "C", "C++")


def rust() -> set[str]:
    texts = [path.read_text() for crate in ("libclient", "apps/model") for path in (ROOT / crate / "src").rglob("*.rs")]
    # The types of tensors and drafts on devices are those in host memory, with another parameter.
    aliases = re.findall(r"^pub type (\w+) = (\w+)<\w+>;$", "\n".join(texts), re.MULTILINE)
    calls = set()
    for text in texts:
        of, hidden = [], False
        for line in text.split("\n#[cfg(test)]\nmod tests")[0].splitlines():
            if block := re.match(r"impl(<.*?>)? (?:\w+::)*(\w+)(?:<.*>)? \{$", line):
                of = [block[2]] + [alias for alias, generic in aliases if block[1] and generic == block[2]]
                of = [name for name in of if name in RUST]
            elif line == "}":
                of = []
            elif line.strip() == "#[doc(hidden)]":
                hidden = True
            elif of and (method := re.match(r"    pub (?:const |async |unsafe )*fn (\w+)", line)):
                if not hidden:
                    calls |= {f"{name}::{method[1]}" for name in of}
                hidden = False
    return calls


def python() -> set[str]:
    calls, of = set(), None
    for line in NATIVE.splitlines():
        if start := re.match(r"class (\w+)", line):
            of = None if start[1].startswith("_") else start[1]
        elif re.match(r"\w", line):
            of = None
        elif of and (method := re.match(r"    (?:async )?def ([a-z]\w*)", line)):
            calls.add(f"{of}.{method[1]}")
    # Attributes that exceptions have besides their text.
    errors = (ROOT / "bindings/python/tensorlend" / "_errors.py").read_text()
    for of, body in re.findall(r"^class (\w*Error)\(.*?\n(.*?)(?=^class |\Z)", errors, re.MULTILINE | re.DOTALL):
        calls |= {f"{of}.{name}" for name in re.findall(r"^    ([a-z]+): ", body, re.MULTILINE)}
    package = (ROOT / "bindings/python/tensorlend" / "__init__.py").read_text()
    return calls | set(re.findall(r'"([a-z]\w*)"', package.split("__all__ = [")[1]))


# A test compares the list with the header.
C_ABI = re.search(r"TENSORLEND_ABI: u32 = (\d+);", (ROOT / "bindings/c/src/version.rs").read_text())[1]
C_INTERFACE = (ROOT / f"bindings/c/abi/tensorlend.{C_ABI}.txt").read_text()


def c() -> set[str]:
    return set(re.findall(r"(?m)^function .*?\b(tensorlend_\w+)\(", C_INTERFACE))


def cpp() -> set[str]:
    calls, within, of = set(), None, None
    for line in (ROOT / "bindings/c/include" / "tensorlend.hpp").read_text().splitlines():
        if start := re.match(r"struct (\w+)(?: : Handle<| : Lease| \{$)", line):
            within = of = start[1]
        elif line.startswith("struct Error : "):
            within = of = "Error"
        elif line.startswith("template <typename Of> class Reads"):
            within, of = "Lease", None  # inherits them
        elif line in ("public:", "private:"):
            of = within if line == "public:" else None
        elif line.startswith("}"):
            within = of = None
        elif of == "Error" and (field := re.match(r"    [\w:]+ (\w+);", line)):
            calls.add(f"Error::{field[1]}")
        elif of and "operator" not in line and "= delete" not in line:
            method = re.match(r"    [A-Za-z][^()]* [*&]*(\w+)\(", line)
            if method and method[1] not in (of, *KEYWORDS, *PLUMBING):
                calls.add(f"{of}::{method[1]}")
    return calls


KEYWORDS = ("if", "for", "while", "return", "check", "static_assert", "throw", "decltype")
# Functions for loops, and the function that turns a class into its handle.
PLUMBING = ("begin", "end", "leased")


def rows() -> list[list[str]]:
    """The rows of docs/internals/names.md: operation, Rust, Python, C, C++, command."""
    page = (ROOT / "docs/internals/names.md").read_text()
    cells = [[cell.strip() for cell in line.strip().strip("|").split("|")] for line in page.splitlines() if line.startswith("|")]
    return [row for row in cells if len(row) == 6 and row[0] != "operation" and not row[0].startswith("---")]


def names(cell: str) -> list[str]:
    return re.findall(r"`([^`]+)`", cell)


# The classes of C. They stand first in the names of its calls, and last in those of `Client` in other languages.
CLASSES = """caller client dataset device devices dlpack draft error history lease leases library list listing log model
    model_request models options outstanding queue queue_item remote request server stat statistics stream subscription""".split()
# Verbs that begin C's functions; other languages use the class alone: `Client::stream`, `tensorlend_stream_open`.
OPENING = ("open", "new", "create")


def stems(call: str) -> set[str]:
    """The call's name without its language's decoration, and the same without the name of a class."""
    of, _, name = call.replace("::", ".").removeprefix("tensorlend_").rpartition(".")
    name = re.sub(r"_(?:async|timeout)$", "", name)
    found = {name}
    if name in (*OPENING, "list") and of not in ("", "Client"):
        found |= {of.lower(), of.lower().removesuffix("s")}  # `Models::open` is `Client.model`, `Models::list` `Client.models`
    for noun in CLASSES:
        for rest in (name.removeprefix(f"{noun}_"), name.removesuffix(f"_{noun}")):
            if rest != name:
                found |= {rest, noun} if rest in OPENING else {rest}
    return found


def agree(row: list[str]) -> bool:
    """Whether the languages that have this operation share the stem of a name."""
    found = [set().union(*map(stems, names(cell))) for cell in row[1:5] if names(cell)]
    return len(found) < 2 or bool(set.intersection(*found))


def reasons() -> dict[str, str]:
    section = (ROOT / "docs/internals/names.md").read_text().split("\n## Reasons for different names\n")[1]
    return dict(re.findall(r"^\| (?!operation |---)(.+?) \| (.+?) \|$", section, re.MULTILINE))


@pytest.mark.parametrize(("column", "calls"), [(1, rust), (2, python), (3, c), (4, cpp)], ids=LANGUAGES)
def test_the_page_of_names_has_every_call(column, calls):
    """docs/internals/names.md names every public call, and only calls that exist."""
    there = calls()
    assert len(there) > 80
    named = {name for row in rows() for name in names(row[column])}
    # In C++ the class's own name means its constructor.
    gone = {name for name in named - there if not any(call.startswith(f"{name}::") for call in there)}
    language = LANGUAGES[column - 1]
    assert sorted(gone) == [], f"{language}: these do not exist: remove or rename them in docs/internals/names.md"
    assert sorted(there - named) == [], f"{language}: add these to the rows of their operations in docs/internals/names.md, or add rows"


def test_names_agree():
    """One operation has one name in all languages, or docs/internals/names.md gives the reason."""
    different = {row[0]: row[1:5] for row in rows() if not agree(row)}
    missing = {operation: cells for operation, cells in different.items() if operation not in reasons()}
    assert missing == {}, "rename a call, or add the operation to the table of reasons"


def test_reasons_are_needed():
    """Each reason belongs to one operation whose names differ."""
    operations = [row[0] for row in rows() if not agree(row)]
    assert len(reasons()) > 3
    assert sorted(reason for reason in reasons() if operations.count(reason) != 1) == []


def test_operations_are_named_once():
    operations = [row[0] for row in rows()]
    assert sorted({operation for operation in operations if operations.count(operation) > 1}) == []


def test_a_different_name_is_found():
    assert agree(["send", "`Stream::send` `Stream::send_timeout`", "`Stream.send_async`", "`tensorlend_stream_send`", "", ""])
    assert agree(["add a model", "`Models::put`", "`Client.put_model`", "`tensorlend_model_put`", "`Client::put_model`", ""])
    assert agree(["open", "`Client::stream`", "`Client.stream`", "`tensorlend_stream_open`", "`Client::stream`", ""])
    assert not agree(["length", "`Client::len`", "`Client.length`", "", "", ""])
    assert not agree(["wait", "`Client::wait_length`", "", "`tensorlend_list_wait`", "", ""])
    assert not agree(["respond", "`Call::answer`", "", "`tensorlend_request_respond`", "", ""])


# Arguments of Python and of C with the same meaning. C's results come last and may repeat a word.
MEANINGS = {
    "name": ("name", "list", "service"),
    "value": ("value", "item", "data", "tensor", "message", "request"),
    "dtype": ("dtype",),
    "shape": ("shape",),
    "items": ("items", "length"),
    "operator": ("op", "how"),
    "seen": ("seen",),
    "timeout": ("timeout", "timeout_ns"),
}
# Their order differs from that of C for reasons that docs/api.md gives.
ORDERED_DIFFERENTLY = ["Client.create", "Client.wait_length", "Client.wait_length_async"]


def meanings(arguments: list[str]) -> list[str]:
    """The meanings of arguments, each once, in their order."""
    known = {word: meaning for meaning, words in MEANINGS.items() for word in words}
    return list(dict.fromkeys(known[name] for name in arguments if name in known))


def in_one_order(one: list[str], other: list[str]) -> bool:
    """Whether the meanings that two lists of arguments share have the same order."""
    first, second = meanings(one), meanings(other)
    return [it for it in first if it in second] == [it for it in second if it in first]


def python_arguments() -> list[tuple[str, list[str]]]:
    """Each method of the stub, also each overload, with its positional arguments."""
    tree = ast.parse(NATIVE)
    return [
        (f"{of.name}.{method.name}", [it.arg for it in (*method.args.posonlyargs, *method.args.args) if it.arg != "self"])
        for of in tree.body
        if isinstance(of, ast.ClassDef)
        for method in of.body
        if isinstance(method, (ast.FunctionDef, ast.AsyncFunctionDef))
    ]


def c_arguments() -> dict[str, list[str]]:
    calls = re.findall(r"(?m)^function .*?\b(tensorlend_\w+)\(([^()]*)\)$", C_INTERFACE)
    return {call: re.findall(r"(\w+)\s*(?:,|$)", arguments) for call, arguments in calls}


def test_arguments_have_one_order():
    """Python's and C's calls of one operation take the arguments that they share in one order, with the listed exceptions."""
    there, compared, different = c_arguments(), set(), set()
    for row in rows():
        for call, arguments in python_arguments():
            for other in names(row[3]) if call in names(row[2]) else ():
                if len(set(meanings(arguments)) & set(meanings(there.get(other, [])))) > 1:
                    compared.add(call)
                    if not in_one_order(arguments, there[other]):
                        different.add(call)
    assert {"Client.put", "Client.append", "Client.wait_newer", "Client.wait_for", "Stream.send"} <= compared
    assert sorted(different) == ORDERED_DIFFERENTLY, "swap the arguments, or give the reason in docs/api.md, Arguments"


def test_a_different_order_is_found():
    assert in_one_order(["name", "seen", "timeout"], ["client", "name", "seen", "timeout_ns", "lease"])
    assert in_one_order(["value", "timeout"], ["caller", "request", "timeout_ns", "response"])
    assert not in_one_order(["name", "timeout", "seen"], ["client", "name", "seen", "timeout_ns", "lease"])
    assert not in_one_order(["name", "value"], ["client", "item", "list", "number"])


def test_every_metric_is_described():
    source = (ROOT / "apps/web/src" / "metrics.rs").read_text().split("const METRICS")[1].split('";')[0]
    page = (ROOT / "docs" / "metrics.md").read_text()
    metrics = re.findall(r"(?m)^(tensorlend_\w+) ", source)
    assert len(metrics) > 30
    assert [name for name in metrics if f"| `{name}` |" not in page] == []


# Phrases with plainer equivalents, as whole words.
PHRASES = """is told|are told|was told|were told|be told|tells of|tell of|tells which|tells what|tells how|is said|says so|go on|goes on|
    went on|going on|but for|left away|brought along|lies here|lies there|shall|is to be|are to be|is not to|anew|mend|mends|mended|
    mending|beside|so many|in vain|as ever|he|his|whoever|meanwhile"""
# If a clause opens with "who" or "what" and one of these words follows, its noun is missing.
VERBS = """is was are has have may can does reads holds asks knows adds lives calls comes goes needs shows they it nobody somebody
    clients others users"""
MARK = re.compile(
    rf"(?<![\w-])(?:{'|'.join(PHRASES.split('|')).replace(chr(10), '').replace('    ', '')})(?![\w-])"
    rf"|(?:^|[.;:,(] *)(?:who|what|whatever) (?:{'|'.join(VERBS.split())})\b(?![^.]*\?)",
    re.IGNORECASE,
)
# It is generated from the layout's sources.
NOT_JUDGED = ("docs/layout.md",)


def prose(page: str) -> list[str]:
    """The page's paragraphs, list items and table cells, without code."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.DOTALL | re.MULTILINE)
    text = re.sub(r"`[^`\n]*`", "x", text)
    text = re.sub(r"\n(?=[^\s|#*-])", " ", text)
    parts = []
    for line in text.splitlines():
        parts += re.split(r" ?\| ?", line) if line.startswith("|") else [line.lstrip("*- ")]
    return parts


def marks(page: str) -> list[str]:
    return [mark[0] for line in prose(page) if not line.startswith("#") for mark in MARK.finditer(line)]


def pages() -> list[pathlib.Path]:
    top = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "CHANGELOG.md", "COMPARE.md", "CONTRIBUTING.md", "SECURITY.md")]
    below = [*(ROOT / "docs").rglob("*.md"), *(ROOT / "examples").glob("*/README.md")]
    return [path for path in top + below if path.relative_to(ROOT).as_posix() not in NOT_JUDGED]


def test_prose_is_plain():
    """At most 0.15 marks of a dialect that readers find hard in 100 words; a page may have two."""
    words = total = 0
    wrong = {}
    for path in pages():
        page = path.read_text()
        found, length = marks(page), sum(len(line.split()) for line in prose(page))
        words, total = words + length, total + len(found)
        if len(found) > 2 and len(found) * 100 > 0.15 * length:
            wrong[path.relative_to(ROOT).as_posix()] = found
    assert words > 30_000
    assert wrong == {} and total * 100 <= 0.15 * words, f"{total} marks in {words} words: name the actor and the noun"


def docstrings(path: pathlib.Path) -> str:
    """The docstrings of a module and its classes and functions, a paragraph each."""
    kinds = (ast.Module, ast.ClassDef, ast.FunctionDef, ast.AsyncFunctionDef)
    found = (ast.get_docstring(node) for node in ast.walk(ast.parse(path.read_text())) if isinstance(node, kinds))
    return "\n\n".join(doc for doc in found if doc)


def comments(path: pathlib.Path) -> str:
    """The comments of a C++ header."""
    return "\n".join(re.findall(r"(?m)^\s*//[/!]? ?(.*)$", path.read_text()))


@pytest.mark.parametrize(
    ("top", "pattern", "texts", "least"),
    [("bindings/python/tensorlend", "*.py", docstrings, 6_000), ("bindings/c/include", "*.hpp", comments, 1_000)],
    ids=["python", "c++"],
)
def test_docstrings_are_plain(top, pattern, texts, least):
    """At most 0.15 marks in 100 words of all docstrings and of a header's comments."""
    found = {path.relative_to(ROOT).as_posix(): texts(path) for path in sorted((ROOT / top).rglob(pattern))}
    words = sum(len(text.split()) for text in found.values())
    marked = {name: wrong for name, text in found.items() if (wrong := marks(text))}
    assert words > least
    assert 100 * sum(map(len, marked.values())) <= 0.15 * words, f"{marked} in {words} words: name the actor and the noun"


def test_a_mark_is_found():
    assert len(marks("Whoever reads is told so; what is lent goes on, but for `shall`.")) == 5
    assert marks("The daemon reports what is lent. What is a lease?") == []


def test_the_book_lists_each_page_once():
    """mdBook refuses a page that is listed twice, as a merge of two branches may leave it."""
    listed = re.findall(r"\]\(([^)]+)\)", (ROOT / "docs" / "book" / "SUMMARY.md").read_text())
    assert len(listed) > 50
    assert sorted(page for page in set(listed) if listed.count(page) > 1) == []
