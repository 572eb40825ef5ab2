"""The manual: one operation has one name in all languages, metrics are described, and prose is plain."""

import pathlib
import re

import pytest

ROOT = pathlib.Path(__file__).parents[2]

# Types of the Rust client whose methods the page of names has.
RUST = set(
    """Client ClientBuilder AsyncClient Draft DatasetDraft ValueDraft DeviceDraft Lease DeviceLease Tensor Dataset Value
    CopyOnWrite Version NameWatch History Stream StreamBuilder Subscription SubscriptionBuilder AsyncSubscription Message
    Borrowed Server ServerBuilder Caller CallerBuilder Call Error""".split()
)


def rust() -> set[str]:
    calls = set()
    for path in (ROOT / "libclient" / "src").rglob("*.rs"):
        of, hidden = None, False
        for line in path.read_text().split("\n#[cfg(test)]\nmod tests")[0].splitlines():
            if block := re.match(r"impl(?:<.*?>)? (?:\w+::)*(\w+)(?:<.*>)? \{$", line):
                of = block[1] if block[1] in RUST else None
            elif line == "}":
                of = None
            elif line.strip() == "#[doc(hidden)]":
                hidden = True
            elif of and (method := re.match(r"    pub (?:const |async |unsafe )*fn (\w+)", line)):
                if not hidden:
                    calls.add(f"{of}::{method[1]}")
                hidden = False
    return calls


def python() -> set[str]:
    calls, of = set(), None
    for line in (ROOT / "python" / "tensorlend" / "_native.pyi").read_text().splitlines():
        if start := re.match(r"class (\w+)", line):
            of = None if start[1].startswith("_") else start[1]
        elif re.match(r"\w", line):
            of = None
        elif of and (method := re.match(r"    (?:async )?def ([a-z]\w*)", line)):
            calls.add(f"{of}.{method[1]}")
    package = (ROOT / "python" / "tensorlend" / "__init__.py").read_text()
    return calls | set(re.findall(r'"([a-z]\w*)"', package.split("__all__ = [")[1]))


def c() -> set[str]:
    header = re.sub(r"/\*.*?\*/|//[^\n]*", "", (ROOT / "capi" / "include" / "tensorlend.h").read_text(), flags=re.DOTALL)
    return set(re.findall(r"\b(tensorlend_\w+)\(", header))


def cpp() -> set[str]:
    calls, of = set(), None
    for line in (ROOT / "capi" / "include" / "tensorlend.hpp").read_text().splitlines():
        if start := re.match(r"(?:struct|class) (\w+).*\{$", line):
            of = None if start[1] in ("Handle", "Error") else start[1]
        elif line.startswith("template <typename Of> class Reads"):
            of = "Lease"  # inherits them
        elif line.startswith("}"):
            of = None
        elif of and "operator" not in line and "= delete" not in line:
            method = re.match(r"    [A-Za-z][^()]*?(\w+)\(", line)
            if method and method[1] not in (of, "if", "for", "while", "return", "check", "static_assert", "throw", "decltype"):
                calls.add(f"{of}::{method[1]}")
    return calls


@pytest.mark.parametrize(
    ("column", "language", "calls"), [(1, "Rust", rust), (2, "Python", python), (3, "C", c), (4, "C++", cpp)]
)
def test_one_operation_has_one_name_in_all_languages(column, language, calls):
    """docs/names.md names every public call (of C++, the usual ones), and only calls that exist."""
    there = calls()
    assert len(there) >= 10
    page = (ROOT / "docs" / "names.md").read_text()
    rows = [line.strip().strip("|").split("|") for line in page.splitlines() if line.startswith("|")]
    named = {name for cells in rows if len(cells) == 6 for name in re.findall(r"`([^`]+)`", cells[column])}
    # In C++ the class alone stands for its constructor.
    gone = {name for name in named - there if not any(call.startswith(f"{name}::") for call in there)}
    assert sorted(gone) == [], f"{language}: these do not exist: remove or rename them in docs/names.md"
    if language == "C++":
        return  # A test of the headers finds functions of C that have no method.
    assert sorted(there - named) == [], f"{language}: add these to the rows of their operations in docs/names.md, or add rows"


def test_every_metric_is_described():
    source = (ROOT / "web" / "src" / "metrics.rs").read_text().split("pub const METRICS")[1].split("];")[0]
    page = (ROOT / "docs" / "metrics.md").read_text()
    metrics = re.findall(r'"(tensorlend_\w+)"', source)
    assert len(metrics) > 30
    assert [name for name in metrics if f"| `{name}` |" not in page] == []


# Phrases that a plainer one replaces, as whole words.
PHRASES = """is told|are told|was told|were told|be told|tells of|tell of|tells which|tells what|tells how|is said|says so|go on|goes on|
    went on|going on|but for|left away|brought along|lies here|lies there|shall|is to be|are to be|is not to|anew|mend|mends|mended|
    mending|beside|so many|in vain|as ever|he|his|whoever|meanwhile"""
# A clause that opens with "who" or "what" and one of these lacks its noun.
VERBS = """is was are has have may can does reads holds asks knows adds lives calls comes goes needs shows they it nobody somebody
    clients others users"""
MARK = re.compile(
    rf"(?<![\w-])(?:{'|'.join(PHRASES.split('|')).replace(chr(10), '').replace('    ', '')})(?![\w-])"
    rf"|(?:^|[.;:,(] *)(?:who|what|whatever) (?:{'|'.join(VERBS.split())})\b(?![^.]*\?)",
    re.IGNORECASE,
)
# The first is generated from the layout's sources, the second has the titles of records.
NOT_JUDGED = ("docs/layout.md", "docs/book/SUMMARY.md")


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
    top = [ROOT / name for name in ("README.md", "ARCHITECTURE.md", "COMPARE.md", "SECURITY.md")]
    manual = [path for path in (ROOT / "docs").rglob("*.md") if not {"results", "adr"} & set(path.parts)]
    return [path for path in top + manual if path.relative_to(ROOT).as_posix() not in NOT_JUDGED]


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


def test_a_mark_is_found():
    assert len(marks("Whoever reads is told so; what is lent goes on, but for `shall`.")) == 5
    assert marks("The daemon reports what is lent. What is a lease?") == []


def test_the_book_lists_each_page_once():
    """mdBook refuses a page that is listed twice, as a merge of two branches may leave it."""
    listed = re.findall(r"\]\(([^)]+)\)", (ROOT / "docs" / "book" / "SUMMARY.md").read_text())
    assert len(listed) > 50
    assert sorted(page for page in set(listed) if listed.count(page) > 1) == []
