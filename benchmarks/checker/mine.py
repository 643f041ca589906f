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


def words(*patterns: str, whole: bool = True) -> re.Pattern[str]:
    """One pattern for any of these, in any case of letters; as whole words unless said otherwise."""
    text = "|".join(patterns)
    return re.compile(rf"\b({text})\b" if whole else text, re.IGNORECASE)


#: The subject of a message names such a fault, or its body does in the surer words.
SUBJECT = words(
    r"dead-?\s?locks?(ed|ing)?", r"race[- ]conditions?", r"data[- ]races?", r"racy", r"races",
    r"(fix|avoid|prevent|possible|potential)\w*\s(\w+\s)?race", r"thread[- ]?safe(ty)?", r"thread[- ]unsafe",
    r"hangs?|hung|hanging", r"stuck", r"live-?locks?", r"lock[- ]order(ing)?", r"(lost|missed)[- ]wake-?ups?",
    r"changed\ssize\sduring\siteration", r"concurrent\s(access|modification|writes?)", r"toctou",
    r"double[- ]acquire", r"lock\s(leak|inversion)", r"re-?entran(t|cy)", r"collective\smismatch", r"nccl\stimeout",
)  # fmt: skip
BODY = words(r"dead-?lock(s|ed|ing)?", r"race conditions?", r"data race", r"not thread[- ]?safe", r"thread[- ]safety")
#: The subject says that the commit repairs something.
REPAIRS = words(
    r"fix(e[sd]|ing)?", r"avoid(s|ed|ing)?", r"prevent(s|ed|ing)?", r"resolv(e|es|ed|ing)", r"mak(e|es|ing)", r"made",
    r"remov(e|es|ed) (a |the )?(race|deadlock|possible|potential)", r"protect(s|ed)?", r"guard(s|ed)?", r"don'?t",
    r"do not", r"never", r"ensure(s|d)?", r"handle(s|d)?", r"correct(s|ed)?", r"bug", r"missing", r"possible",
    r"potential", r"workaround", r"stop(s)?", r"add(s|ed)? (a )?(\w+ )?lock", r"use (a )?(\w+ )?lock",
    r"eliminate[sd]?", r"close[sd]?", r"address(es|ed)?",
)  # fmt: skip
NOT_A_FIX = words(
    r"^(revert|merge|bump|release|document|docs?[:(]|fix\w* .*\btest_|test[s(:]|\[?ci\b|changelog|news)",
    r"\btests?\b.*\b(hang|race|deadlock|flak|stuck)",
    r"\b(flaky|unit ?tests?|typo|in tests?|test suite|test case|docstring|race track|crash ?hang)\b",
    whole=False,
)
#: The hunks with ten lines around them speak of concurrency.
CONCERNED = words(
    "lock", "mutex", "semaphore", "thread", "queue", r"\bevent\b", "condition", r"\.join\(", r"\.wait\(", "await",
    "async", "multiprocessing", "subprocess", "barrier", "all_?reduce", "all_?gather", "broadcast", r"\brank\b",
    "process_group", "executor", r"\.fork\(", r"signal\.", r"os\.makedirs", "atomic", whole=False,
)  # fmt: skip
#: An old file does.
CONCURRENT = words(
    "threading", "asyncio", "multiprocessing", r"concurrent\.futures", r"\bqueue\b", "subprocess", r"os\.fork",
    r"signal\.", r"torch\.distributed", r"\bdist\.", "mpi4py", "horovod", r"\basync def\b", "gevent", "eventlet",
    "trio", "anyio", "lock", "barrier", "weakref", "socketserver", "is_main_process", "get_rank", whole=False,
)  # fmt: skip
TESTS = words(
    r"(^|/)(tests?|testing|examples?|docs?|benchmarks?|bench|samples?|vendor|third_party|_vendor)(/|$)",
    r"(^|/)(test_[^/]*|[^/]*_tests?|conftest|setup)\.py$",
    whole=False,
)
#: What the message says the fault is: the first row that matches.
KINDS = {
    "collective": words(
        "all_?reduce", "all_?gather", r"\bbarrier", "broadcast", "collective", "nccl", r"\branks?\b", "process group",
        r"distributed (train|sampl|check)", r"\bddp\b", r"\bfsdp\b", "multi-?gpu", r"\bmpi\b", whole=False,
    ),
    "fork-signal": words(
        r"\bfork", r"\bsignal", "sigterm", "sigint", "sigchld", "__del__", "garbage", r"\bgc\b", "finali[sz]er",
        "atexit", "weakref", whole=False,
    ),
    "async": words("asyncio", r"\bawait", "coroutine", "event loop", "async", whole=False),
    "deadlock": words(
        r"dead-?\s?lock", "lock[- ]order", "lock inversion", "double[- ]acquire", "re-?entran", whole=False
    ),
    "race": words(r"\brac(e|es|y)\b", "toctou", "concurrent", "changed size", whole=False),
    "thread-safety": words("thread[- ]?(safe|unsafe)", whole=False),
    "hang": words("hang", "hung", "stuck", "live-?lock", "wake-?up", whole=False),
}  # fmt: skip
#: What `git log` looks for: wider than SUBJECT and BODY.
GREP = (
    "deadlock|dead.lock|race|racy|thread.?safe|thread.unsafe|hang|hung|stuck|livelock|lock.order|wake.?up|changed size"
    "|concurren|toctou|reentran|nccl timeout|collective mismatch"
)


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
    return next((kind for kind, named in KINDS.items() if named.search(message)), "other")


def speaks_of_a_fix(subject: str, body: str) -> bool:
    """Tell whether a message says that the commit repairs a deadlock, a hang or a race."""
    if NOT_A_FIX.search(subject):
        return False
    return bool(
        (SUBJECT.search(subject) and REPAIRS.search(subject)) or (BODY.search(body) and REPAIRS.search(subject))
    )


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
    log = git(directory, "log", "--all", "--no-merges", "-i", "-E", f"--grep={GREP}", "--format=%H%x1f%s%x1f%b%x1e")
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
