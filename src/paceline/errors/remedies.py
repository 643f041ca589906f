"""What to do about each error: `paceline explain WorkerFailed`, and the site's page of errors."""

from __future__ import annotations

import inspect
from types import ModuleType

from paceline.errors import exceptions
from paceline.errors.renames import suggest

#: Of an error that is not listed, those of its group apply.
REMEDIES: dict[str, tuple[str, ...]] = {
    "UsageError": (
        "Read the message: it names the option or the field, what is allowed and what to write.",
        "Look an option up by `paceline COMMAND --help`, a field by `help(paceline.Job)`.",
    ),
    "PlanError": (
        "List the plans by `paceline plans`, and one plan's options by `paceline plans NAME`.",
        "Take the plan or the option that the message names, where this plan cannot do what the job asks.",
        "Let `paceline compare JOB` leave out the plans that cannot train the job.",
    ),
    "JobError": (
        "Change the field that the message names; `help(paceline.Job)` describes each.",
        "Give functions for the model and the optimizer: every worker creates its own.",
        "Try the job in one process first: `paceline train JOB`.",
    ),
    "DataError": (
        "Look at the file and the line that the message names.",
        "See where each row went by `paceline data FOLDER`, and which files differ by `paceline data FOLDER --verify`.",
        "Run the same `paceline prepare` or `ingest` again: it continues where it was interrupted.",
    ),
    "RunFolderError": (
        "Give the folder of one run: it holds a run.json. `ls runs` shows them; names begin with date and time.",
        "Choose another place for runs by `--runs DIR` or `PACELINE_RUNS`, where this one cannot be written.",
    ),
    "MachineError": (
        "Install what the message names, or take the alternative that it offers.",
        "Train in one process: `--plan sequential --compute autograd` has the fewest requirements.",
    ),
    "TuningError": (
        "Compare the space with the table in the page on tuning: ranges, choices, conditions.",
        "Continue a tuning by its own folder: `paceline tune --resume FOLDER`.",
    ),
    "SecurityError": (
        "Make keys by `paceline keys FOLDER` and give them by `--keys`, between machines.",
        "Use `--trusted-network` with the same PACELINE_TOKEN on all nodes, on a network that you trust.",
        "Keep keys and run folders unwritable and unreadable for others: `chmod -R go-rwx FOLDER`.",
    ),
    "RunFailed": (
        "Go back to the failure: `paceline replay RUN --until failure`.",
        "Continue from the newest checkpoint: `paceline train --resume RUN`. Write some by `--checkpoint-every 100`.",
        "Look at what each worker did: `paceline report RUN`.",
    ),
    "WorkerFailed": (
        "Read the traceback, which has the lines of your own code, and the samples of the batch.",
        "Go back to that batch in one process: `paceline replay RUN --until failure --save FILE`.",
        "Call the model on the batch in a debugger: `paceline.replay(run, until='failure').guilty_batch`.",
    ),
    "WorkerDied": (
        "Look for the killer: `dmesg | grep -i kill` shows a lack of memory.",
        "Take fewer workers, a smaller batch, or a plan that divides the model (`zero`, `one_f_one_b`).",
        "Continue from the newest checkpoint: `paceline train --resume RUN`; under `downpour` others continue.",
    ),
    "WorkerSilent": (
        "Raise `--timeout`, if a batch takes that long.",
        "See where the process waits: `paceline watch --run RUN` while it hangs.",
        "Free the cores: a worker beside busy programs, or on a machine that swaps, is slow.",
    ),
    "WaitedTooLong": (
        "Raise `--timeout`, if a step takes that long.",
        "See where the awaited process is: `paceline watch --run RUN` while it hangs.",
        "Look whether that process was stopped, or the machine swaps.",
    ),
    "NotFinite": (
        "Stop before the batch: `paceline replay RUN --until nan`, and look at its samples.",
        "Lower the learning rate, or give the job `gradient_clip_norm=1.0`.",
        "Leave such batches out with `on_nan='skip'`, or train on with `'ignore'`.",
    ),
    "TrialFailed": (
        "Read the reason beside the trial; the other trials continue.",
        "Train its configuration alone, with the job of `best.py` as a pattern.",
        "Isolate crashes in processes: `paceline tune --executor processes`.",
    ),
    "CollectiveFailed": (
        "Compare the lines of the ranks in the message: all must call the same collectives in the same order.",
        "Check the script for conditions on the rank or on data: `paceline check --select PC5 train.py`.",
        "Watch it: `paceline watch -- torchrun --nproc-per-node 2 train.py`.",
    ),
    "ConnectionFailed": (
        "Check that all nodes reach rank 0 at PACELINE_HEAD, and each other: addresses, firewalls, the dates of keys.",
        "Use the same version of Paceline and the same keys or token on all nodes.",
        "Continue from the newest checkpoint: `paceline train --resume RUN`.",
    ),
    "RunStopped": (
        "Continue: `paceline train --resume RUN`.",
        "Look at what was trained: `paceline report RUN`.",
    ),
    "TrialStopped": ("Let the exception through: it ends a trial in the way that the search asked for.",),
    "ReplayDiverged": (
        "Read what differs: the data, the initial parameters, the version of PyTorch, or the arithmetic.",
        "Make random numbers follow from the job's seed: those of `random` or NumPy in a Dataset are a usual cause.",
        "Replay on the same kind of processor: another one may round differently.",
    ),
    "ProtocolError": ("This is a bug in Paceline: report it with the message and the run's folder.",),
    "Warning": ("The run continues. Read what changes, and change the job or the plan if you do not want it.",),
}


def errors() -> dict[str, type[BaseException]]:
    """Return every exception and warning by its name."""
    modules: tuple[ModuleType, ...] = (exceptions, exceptions, exceptions, exceptions, exceptions)
    kinds = [kind for module in modules for kind in vars(module).values() if isinstance(kind, type)]
    ours = {module.__name__ for module in modules}
    raised = (exceptions.PacelineError, Warning)
    return {kind.__name__: kind for kind in kinds if issubclass(kind, raised) and kind.__module__ in ours}


def remedies(kind: type[BaseException]) -> tuple[str, ...]:
    """Return what to do about an error: its own remedies, or those of the nearest group."""
    return next((REMEDIES[each.__name__] for each in kind.__mro__ if each.__name__ in REMEDIES), ())


def explain_error(name: str) -> str:
    """Return what an error means and what to do, by its name in any case of letters."""
    by_name = {each.lower(): each for each in errors()}
    key = by_name.get(name.strip().lower())
    if key is None:
        raise exceptions.UsageError(f"there is no error {name!r}: {suggest(name.strip(), errors())}")
    kind = errors()[key]
    meaning = (inspect.getdoc(kind) or "").splitlines()[0]
    steps = "".join(f"\n{number}. {step}" for number, step in enumerate(remedies(kind), 1))
    return f"# {key}\n\n{meaning}\n\nWhat to do:\n{steps}\n"
