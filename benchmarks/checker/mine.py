"""Mine fixes of deadlocks and races from the histories of public projects, and split them by project.

    python benchmarks/checker/mine.py CLONES >benchmarks/checker/corpus.tsv

CLONES holds one folder per project, `owner+name` (a git directory, or a folder with one in it). Nothing here looks at a
diff with a person's eyes: commits are chosen by their messages, filtered by size and by words, and a project belongs to
one third of the corpus by a hash of its name. The table has identifiers and places only, no code.
"""

import hashlib
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

FILES = 3
CHANGED_LINES = 60
PAIRS_OF_ONE_PROJECT = 4  # and as many again of collectives, which are rare

#: Projects that earlier rules were written from, or that the development cases name: nothing of theirs is unseen.
SEEN = {
    "NVIDIA/Megatron-LM",
    "celery/celery",
    "microsoft/DeepSpeed",
    "deepspeedai/DeepSpeed",
    "dpkp/kafka-python",
    "getsentry/sentry-python",
    "huggingface/accelerate",
    "itamarst/crochet",
    "joblib/loky",
    "mpi4py/mpi4py",
    "prometheus/client_python",
    "pytorch/torchtitan",
    "sqlalchemy/sqlalchemy",
    "urllib3/urllib3",
}

#: A message speaks of such a fault. The second of each pair has to match as well.
SUBJECT = re.compile(
    r"""\b(dead-?\s?locks?(ed|ing)?|race[- ]conditions?|data[- ]races?|(fix|avoid|prevent|possible|potential)\w*\s(\w+\s)?race
    |racy|races|thread[- ]?safe(ty)?|thread[- ]unsafe|hangs?|hung|hanging|stuck|live-?locks?|lock[- ]order(ing)?
    |lost[- ]wake-?ups?|missed\swake-?ups?|changed\ssize\sduring\siteration|concurrent\s(access|modification|writes?)
    |toctou|double[- ]acquire|lock\s(leak|inversion)|re-?entran(t|cy)|collective\smismatch|nccl\stimeout)\b""",
    re.IGNORECASE | re.VERBOSE,
)
BODY = re.compile(
    r"\b(dead-?lock(s|ed|ing)?|race conditions?|data race|not thread[- ]?safe|thread[- ]safety)\b", re.IGNORECASE
)
MENDS = re.compile(
    r"\b(fix(e[sd]|ing)?|avoid(s|ed|ing)?|prevent(s|ed|ing)?|resolv(e|es|ed|ing)|remov(e|es|ed) (a |the )?(race|deadlock|possible|potential)"
    r"|mak(e|es|ing)|made|protect(s|ed)?|guard(s|ed)?|don'?t|do not|never|ensure(s|d)?|handle(s|d)?|correct(s|ed)?|bug|missing"
    r"|possible|potential|workaround|stop(s)?|add(s|ed)? (a )?(\w+ )?lock|use (a )?(\w+ )?lock|eliminate[sd]?|close[sd]?|address(es|ed)?)\b",
    re.IGNORECASE,
)
NOT_A_FIX = re.compile(
    r"^(revert|merge|bump|release|document|docs?[:(]|(fix|mend)\w* .*\btest_|test[s(:]|\[?ci\b|changelog|news)|\btests?\b.*\b(hang|race|deadlock|flak|stuck)"
    r"|\b(flaky|unit ?tests?|typo|in tests?|test suite|test case|docstring|race track|crash ?hang)\b",
    re.IGNORECASE,
)
#: The changed or surrounding lines (the hunk with ten lines around it) speak of concurrency.
CONCERNED = re.compile(
    r"lock|mutex|semaphore|thread|queue|\bevent\b|condition|\.join\(|\.wait\(|await|async|multiprocessing|subprocess"
    r"|barrier|all_?reduce|all_?gather|broadcast|\brank\b|process_group|executor|\.fork\(|signal\.|os\.makedirs|atomic",
    re.IGNORECASE,
)
CONCURRENT = re.compile(
    r"threading|asyncio|multiprocessing|concurrent\.futures|\bqueue\b|subprocess|os\.fork|signal\.|torch\.distributed|\bdist\."
    r"|mpi4py|horovod|\basync def\b|gevent|eventlet|trio|anyio|lock|barrier|weakref|socketserver|is_main_process|get_rank",
    re.IGNORECASE,
)
TESTS = re.compile(r"(^|/)(tests?|testing|examples?|docs?|benchmarks?|bench|samples?|vendor|third_party|_vendor|contrib/vendor)(/|$)"
                   r"|(^|/)(test_[^/]*|[^/]*_tests?|conftest|setup)\.py$")  # fmt: skip
#: What the message says the fault is: the first row that matches.
KINDS = (
    ("collective", r"all_?reduce|all_?gather|\bbarrier|broadcast|collective|nccl|\branks?\b|process group|distributed (train|sampl|check)|\bddp\b|\bfsdp\b|multi-?gpu|\bmpi\b"),
    ("fork-signal", r"\bfork|\bsignal|sigterm|sigint|sigchld|__del__|garbage|\bgc\b|finali[sz]er|atexit|weakref"),
    ("async", r"asyncio|\bawait|coroutine|event loop|async"),
    ("deadlock", r"dead-?\s?lock|lock[- ]order|lock inversion|double[- ]acquire|re-?entran"),
    ("race", r"\brac(e|es|y)\b|toctou|concurrent|changed size"),
    ("thread-safety", r"thread[- ]?(safe|unsafe)"),
    ("hang", r"hang|hung|stuck|live-?lock|wake-?up"),
)  # fmt: skip


@dataclass(frozen=True)
class Pair:
    """One fix: the commit, its parent, and the touched places of the old files."""

    project: str
    fixed: str
    old: str
    kind: str
    places: str


def split_of(project: str) -> str:
    """Return the third of the corpus that every pair of this project belongs to."""
    if project in SEEN:
        return "rules"
    return ("rules", "choose", "last")[int(hashlib.sha256(project.lower().encode()).hexdigest(), 16) % 3]


def git(directory: Path, *arguments: str) -> str:
    """Return what git prints, or nothing where it fails (a commit outside the clone)."""
    ran = subprocess.run(["git", f"--git-dir={directory}", *arguments], capture_output=True, check=False)
    return ran.stdout.decode("utf-8", "replace") if ran.returncode == 0 else ""


def kind_of(message: str) -> str:
    """Return the kind that the message names first in the table."""
    return next((kind for kind, words in KINDS if re.search(words, message, re.IGNORECASE)), "other")


def speaks_of_a_fix(subject: str, body: str) -> bool:
    """Tell whether a message says that the commit mends a deadlock, a hang or a race."""
    if NOT_A_FIX.search(subject):
        return False
    return bool((SUBJECT.search(subject) and MENDS.search(subject)) or (BODY.search(body) and MENDS.search(subject)))


def old_places(diff: str) -> dict[str, list[tuple[int, int]]] | None:
    """Return the touched line ranges of each old Python file, or None where the fix is too large or not in Python."""
    places: dict[str, list[tuple[int, int]]] = {}
    path = ""
    changed = 0
    for line in diff.splitlines():
        if line.startswith("--- "):
            path = line[6:] if line.startswith("--- a/") else ""
            if path.endswith((".c", ".cc", ".cpp", ".h", ".pyx", ".go", ".rs", ".js", ".ts", ".java", ".cu")):
                return None
        elif line.startswith("@@") and path.endswith(".py") and not TESTS.search(path):
            start, _, count = line.split()[1][1:].partition(",")
            length = int(count) if count else 1
            first = int(start)
            places.setdefault(path, []).append((first, first + max(length, 2) - 1 if length != 1 else first))
        elif line[:1] in "+-" and not line.startswith("+++") and path.endswith(".py") and not TESTS.search(path):
            changed += 1
    return places if places and len(places) <= FILES and changed <= CHANGED_LINES else None


def concerns(directory: Path, fixed: str, paths: list[str]) -> bool:
    """Tell whether the lines around the hunks, and an old file, speak of concurrency."""
    near = git(directory, "diff", "-U10", f"{fixed}^", fixed, "--", *paths)
    lines = [line for line in near.splitlines() if line[:1] in "+- " and not line.startswith(("---", "+++"))]
    code = [line for line in lines if line[1:].strip() and not line[1:].lstrip().startswith("#")]
    if not any(line[0] in "+-" for line in code) or not CONCERNED.search("\n".join(code)):
        return False
    return any(CONCURRENT.search(git(directory, "show", f"{fixed}^:{path}")) for path in paths)


def mined(project: str, directory: Path) -> Iterator[Pair]:
    """Yield the fixes of one project, newest first, each subject once (a backport has the subject of its original)."""
    words = "deadlock|dead.lock|race|racy|thread.?safe|thread.unsafe|hang|hung|stuck|livelock|lock.order|wake.?up|changed size|concurren|toctou|reentran|nccl timeout|collective mismatch"
    log = git(directory, "log", "--all", "--no-merges", "-i", "-E", f"--grep={words}", "--format=%H%x1f%s%x1f%b%x1e")
    subjects: set[str] = set()
    alike: set[tuple[str, str]] = set()
    for record in log.split("\x1e"):
        fields = record.strip("\n").split("\x1f")
        if len(fields) != 3 or not speaks_of_a_fix(fields[1], fields[2]):
            continue
        fixed, subject, body = fields
        kind = kind_of(f"{subject}\n{body}" if BODY.search(body) else subject)
        plain = re.sub(r"\(#\d+\)|\[.*?\]|\W+", " ", subject.lower()).split()[:9]
        if " ".join(plain) in subjects:
            continue
        subjects.add(" ".join(plain))
        places = old_places(git(directory, "diff", "-U0", "-M", "--no-color", f"{fixed}^", fixed))
        if places is None or not concerns(directory, fixed, sorted(places)):
            continue
        names = "+".join(sorted(path.rpartition("/")[2] for path in places)) + str(sum(map(len, places.values())))
        if (kind, names) in alike:
            continue  # the same fix on another branch, with another message
        alike.add((kind, names))
        old = git(directory, "rev-parse", f"{fixed}^").strip()
        text = ";".join(f"{path}:{','.join(f'{a}-{b}' for a, b in ranges)}" for path, ranges in sorted(places.items()))
        yield Pair(project, fixed, old, kind, text)


def git_directory(folder: Path) -> Path | None:
    """Return the git directory of a project's folder."""
    found = (folder, folder / "repo", folder / "repo" / ".git", folder / ".git")
    return next((path for path in found if (path / "HEAD").exists()), None)


def main() -> None:
    """Write the table of all projects' fixes."""
    folders = sorted(folder for folder in Path(sys.argv[1]).iterdir() if "+" in folder.name and git_directory(folder))
    projects = {folder.name.replace("+", "/", 1): git_directory(folder) for folder in folders}
    pairs: dict[str, list[Pair]] = defaultdict(list)

    def mine(project: str) -> list[Pair]:
        directory = projects[project]
        assert directory is not None
        found = list(mined(project, directory))
        print(f"{project}: {len(found)}", file=sys.stderr, flush=True)
        return found

    with ThreadPoolExecutor(2) as pool:
        for project, found in zip(projects, pool.map(mine, projects), strict=True):
            found.sort(key=lambda pair: hashlib.sha256(pair.fixed.encode()).hexdigest())
            collectives = [pair for pair in found if pair.kind == "collective"][:PAIRS_OF_ONE_PROJECT]
            others = [pair for pair in found if pair.kind != "collective"][:PAIRS_OF_ONE_PROJECT]
            pairs[project] = collectives + others
    print("id\tsplit\tkind\tproject\told\tfixed\tplaces")
    for number, pair in enumerate((pair for project in sorted(pairs) for pair in pairs[project]), 1):
        print(number, split_of(pair.project), pair.kind, pair.project, pair.old, pair.fixed, pair.places, sep="\t")


if __name__ == "__main__":
    main()
