"""Writes docs/failures.md: every case, as it happens on this machine.

python -m tests.errors
"""

from __future__ import annotations

import os
import re
import tempfile
from pathlib import Path

from tests.errors.cases import CASES
from tests.errors.happening import happen
from tests.errors.test_failures import PAGE

HEAD = """\
# What goes wrong, and what is said

One block: who failed first, at what, on which samples; who are only victims; what to do; and the command that goes
back there. Exit code 1 means that a run was started and did not finish, 2 that nothing was started. Nothing hangs and
nothing is left: no process, no shared memory, no file outside the run's folder.

```text
WorkerFailed: worker 1 failed first: ValueError: too hot
  when     in update 37, with samples 740, 12, 88, ...
  victims  worker 0: stopped, not the cause
  replay   paceline replay runs/20260101-120000-my_job-ring --until failure
Traceback (most recent call last):
  ... from your own lines on
```

`paceline replay RUN --until failure` trains up to there in one process, to the same bits. In Python,
`paceline.replay(run, until="failure")` has the model as that worker had it in `.model`, and the batch in
`.guilty_batch`: call one on the other, in a debugger.

| a wait | names whom it waits for, after `--timeout` seconds (120), and what that process does meanwhile |
|---|---|
| `on_nan="stop"` | the job's default: a loss that is not finite ends the run |
| `on_nan="skip"` | a batch whose loss or gradient is not finite is left out, and counted |
| `on_nan="ignore"` | trains on; `paceline replay RUN --until nan` stops before the first |

| Ctrl-C | |
|---|---|
| once | a checkpoint is written and the run ends: `paceline train --resume RUN` goes on; exit code 130 |
| twice | everything ends at once; exit code 130 |

What follows is what each of {count} failures prints, written by `python -m tests.errors`, which lets each of them
happen with real processes; the same cases are part of `make test`.
"""


def tidy(text: str) -> str:
    """Without what is another time otherwise, and without the usual summary."""
    text = re.sub(r"runs/\d{8}-\d{6}", "runs/20260101-120000", text)
    text = re.sub(r"File \"\S*?/(job.py|site-packages/\S+|python3[^\"]*)\"", r'File "\1"', text)
    text = re.sub(r"Its process \d+", "Its process 4711", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def main() -> None:
    os.environ["COLUMNS"] = "200"
    lines = [HEAD.format(count=sum(map(len, CASES.values())))]
    for group, cases in CASES.items():
        lines.append(f"## {group}\n")
        for case in cases:
            with tempfile.TemporaryDirectory() as folder:
                code, said = happen(case, Path(folder))
            assert code == case.exit, (case.what, code, said)
            title = case.what[0].upper() + case.what[1:]
            lines.append(f"### {title}\n\n`paceline {case.command}`, exit code {code}\n\n```text\n{tidy(said)}\n```\n")
    PAGE.write_text("\n".join(lines))


if __name__ == "__main__":
    main()
