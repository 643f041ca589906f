"""Writes docs/reproductions/failures.md: every case, as it happens on this machine.

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
# What goes wrong, and what Paceline prints

A failure is reported as one block: which worker failed first, in which update and on which samples; which workers are
only victims; what to do; and the command that goes back to that point. Exit code 1 means that a run was started and
did not finish, 2 that nothing was started. Nothing hangs and nothing is left: no process, no shared memory, no file
outside the run's folder.

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
`.guilty_batch`: call the model on the batch in a debugger.

| situation | what Paceline does |
|---|---|
| a worker waits for `--timeout` seconds (120) | names the worker and what its process does, and ends the run |
| a loss is not finite, `on_nan="stop"` (the default) | ends the run |
| the same, `on_nan="skip"` | leaves out batches whose loss or gradient is not finite, and counts them |
| the same, `on_nan="ignore"` | continues; `paceline replay RUN --until nan` stops before the first such update |
| Ctrl-C | writes a checkpoint and ends the run; `paceline train --resume RUN` continues it; exit code 130 |
| a second Ctrl-C | ends everything at once; exit code 130 |

What follows is what each of {count} failures prints, written by `python -m tests.errors`, which provokes each of
them with real processes; the same cases are part of `make test`.
"""


def tidy(text: str) -> str:
    """Without what is another time otherwise, and without the usual summary."""
    text = re.sub(r"runs/\d{8}-\d{6}", "runs/20260101-120000", text)
    text = re.sub(r"File \"\S*?/(job.py|site-packages/\S+|python3[^\"]*)\"", r'File "\1"', text)
    text = re.sub(r"Its process \d+", "Its process 4711", text)
    return "\n".join(line.rstrip() for line in text.splitlines()).strip()


def main() -> None:
    os.environ["COLUMNS"] = "200"
    os.environ["TERMINAL_WIDTH"] = "100"  # of what Typer says
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
