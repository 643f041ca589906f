"""What can go wrong, case by case: what is written into job.py, the command, the exit code, and what is said of it.

`says` is searched for in what people read, with white space made even; `.` stands for any character.
"""

from __future__ import annotations

from dataclasses import dataclass

HEAD = """\
import contextlib, ctypes, os, signal, threading, time, torch
from functools import partial
from torch import nn
import paceline as pl

x = torch.randn(200, 8, generator=torch.Generator().manual_seed(0))
y = torch.randint(3, (200,), generator=torch.Generator().manual_seed(1))

class Net(nn.Linear):
    def __init__(self):
        super().__init__(8, 3)

class Falls(Net):
    def fall(self):
        raise ValueError("too hot")
    def forward(self, x):
        if torch.is_grad_enabled() and (x[:, 0] == 9.0).any() and os.getpid() != parent:
            self.fall()
        return super().forward(x)

class Samples(torch.utils.data.Dataset):
    def __len__(self):
        return 200
    def __getitem__(self, number):
        return x[number], y[number]

parent = os.getpid()
x[45, 0] = 9.0
job = pl.Job(model=Net, data=(x, y), loss=nn.CrossEntropyLoss(), optimizer=partial(torch.optim.SGD, lr=0.1),
             batch_size=20, epochs=3)
"""


@dataclass(frozen=True)
class Case:
    what: str
    code: str  # after HEAD
    command: str
    exit: int
    says: tuple[str, ...]
    head: str = HEAD
    memory: int = 0  # bytes of a control group whose file of processes is GROUP in the code


def falls(how: str) -> str:
    """A model that does so on the one batch with a hot sample, in a worker's process."""
    return f"class Bad(Falls):\n    def fall(self):\n        {how}\njob = job.with_(model=Bad)\n"


RING, DOWNPOUR, ALONE = (f"train job.py -p {plan}" for plan in ("ring -w 2", "downpour -w 2", "sequential"))

USERS_CODE = (
    Case("an exception in the model, workers in step", falls("raise ValueError('too hot')"), RING, 1,
         (r"WorkerFailed: worker \d failed first: ValueError: too hot when in update 2, with samples ",
          r"victims worker \d: stopped, not the cause", r"replay paceline replay \S+ --until failure",
          r"job.py.*in fall.*raise ValueError")),
    Case("an exception in the model, with a server", falls("raise ValueError('too hot')"), DOWNPOUR, 1,
         (r"worker \d failed first: ValueError: too hot when in update", r"replay paceline replay")),
    Case("an exception in the loss",
         "def loss(output, target):\n"
         "    if os.getpid() != parent and 7 in target: raise KeyError('class 7')\n"
         "    return nn.functional.cross_entropy(output, target % 3)\n"
         "y[33] = 7\njob = job.with_(loss=loss)\n", RING, 1,
         (r"failed first: KeyError: 'class 7' when in update \d, with samples .*\b33\b",)),
    Case("an exception in the data set",
         "class Torn(Samples):\n    def __getitem__(self, number):\n"
         "        if number == 33: raise OSError('image 33 is torn')\n        return super().__getitem__(number)\n"
         "job = job.with_(data=Torn())\n", RING, 1,
         (r"failed first: OSError: image 33 is torn when in update \d, with samples .*\b33\b",)),
    Case("an exception in a loader's process",
         "class Torn(Samples):\n    def __getitem__(self, number):\n"
         "        if number == 33: raise OSError('image 33 is torn')\n        return super().__getitem__(number)\n"
         "job = job.with_(data=Torn(), num_workers=1)\n", RING, 1,
         (r"failed first: OSError: Caught OSError in DataLoader worker process 0", "image 33 is torn")),
    Case("an exception in the augmentation",
         "def turn(batch):\n    if os.getpid() != parent: raise RuntimeError('cannot turn')\n    return batch\n"
         "job = job.with_(batch_transform=turn)\n", RING, 1, (r"failed first: RuntimeError: cannot turn",)),
    Case("an exception in the schedule",
         "def step(epoch):\n    if epoch > 4 and os.getpid() != parent: raise ZeroDivisionError('no rate')\n"
         "    return 1.0\n"
         "job = job.with_(lr_scheduler=partial(torch.optim.lr_scheduler.LambdaLR, lr_lambda=step))\n", RING, 1,
         (r"failed first: ZeroDivisionError: no rate when in update",)),
    Case("an exception in the optimizer",
         "class Step(torch.optim.SGD):\n    def step(self, closure=None):\n        raise RuntimeError('no step')\n"
         "job = job.with_(optimizer=partial(Step, lr=0.1))\n", RING, 1,
         (r"failed first: RuntimeError: no step when in update 0",)),
    Case("an exception in the optimizer, with a server",
         "class Step(torch.optim.SGD):\n    def step(self, closure=None):\n        raise RuntimeError('no step')\n"
         "job = job.with_(optimizer=partial(Step, lr=0.1))\n", DOWNPOUR, 2,
         (r"JobError: the first step of optimizer= fails: RuntimeError: no step",)),
    Case("an exception in a metric",
         "def metric(output, target):\n    raise ValueError('no metric')\n"
         "job = job.with_(test=(x, y), metrics={'mine': metric})\n", ALONE, 2,
         (r"JobError: before the training, the metric 'mine' fails: ValueError: no metric",)),
    Case("an exception in a metric of the trained model",
         "calls = []\ndef metric(output, target):\n    calls.append(1)\n    return 1 / (2 - len(calls))\n"
         "job = job.with_(test=(x, y), metrics={'mine': metric})\n", ALONE, 1,
         (r"RunFailed: the training is done, but the metric 'mine' fails: ZeroDivisionError",)),
    Case("a model that cannot be made", "class Bad(Net):\n    def __init__(self):\n        raise TypeError('no size')\n"
         "job = job.with_(model=Bad)\n", RING, 2, (r"JobError: model= fails: TypeError: no size",)),
    Case("an optimizer that cannot be made", "job = job.with_(optimizer=partial(torch.optim.SGD, lr=-1.0))\n", RING, 2,
         (r"JobError: optimizer= fails: ValueError: Invalid learning rate: -1.0",)),
    Case("a loss that is no single number",
         "job = job.with_(loss=nn.CrossEntropyLoss(reduction='none'))\n", RING, 2,
         (r"JobError: the loss is a tensor of shape \(20,\), not one number",)),
    Case("a loss that depends on no parameter",
         "job = job.with_(loss=lambda output, target: torch.tensor(1.0))\n", RING, 2,
         (r"JobError: the loss has no gradient: it depends on no parameter",)),
    Case("the model and the data do not fit", "job = job.with_(data=(x[:, :5], y))\n", RING, 2,
         (r"JobError: the first batch fails: RuntimeError: mat1 and mat2 shapes cannot be multiplied",)),
)  # fmt: skip

PROCESSES = (
    Case("SIGKILL of a worker, workers in step", falls("os.kill(os.getpid(), signal.SIGKILL)"), RING, 1,
         (r"WorkerDied: worker \d died \(SIGKILL\) when in update 2", "it is not known who sent it",
          r"victims worker \d", r"replay paceline replay", r"resume paceline train --resume runs/\S+-ring")),
    Case("SIGKILL of a worker, with a server",
         "class Dies(Net):\n    def forward(self, x):\n"
         "        with contextlib.suppress(FileExistsError):  # the first only\n"
         "            if os.getpid() != parent:\n                os.mkdir('died')\n"
         "                os.kill(os.getpid(), signal.SIGKILL)\n"
         "        return super().forward(x)\njob = job.with_(model=Dies)\n", DOWNPOUR, 0,
         (r"died workers \[\d\]; the others finished the training",)),
    Case("SIGKILL of all workers", falls("os.kill(os.getpid(), signal.SIGKILL)"), DOWNPOUR, 1,
         (r"RunFailed: every worker died",)),
    Case("SIGTERM of a worker, who does not hear it: clusters send it to all, and the parent decides",
         falls("os.kill(os.getpid(), signal.SIGTERM)"), RING, 0, (r"30 updates",)),
    Case("a crash in C", falls("ctypes.string_at(0)"), RING, 1, (r"worker \d died \(SIGSEGV\)",)),
    Case("a model that ends its process", falls("os._exit(3)"), RING, 1, (r"worker \d died \(exit code 3\)",)),
    Case("a model that calls sys.exit", falls("raise SystemExit('enough')"), RING, 1,
         (r"failed first: SystemExit: enough",)),
    Case("SIGSTOP of a worker", falls("os.kill(os.getpid(), signal.SIGSTOP)"), f"{RING} --timeout 1", 1,
         (r"WorkerSilent: worker \d did not come: worker \d waited 1 s for it. Its process \d+ is stopped \(SIGSTOP",
          "give a longer timeout")),
    Case("SIGSTOP of a worker under PyTorch's own DDP", falls("os.kill(os.getpid(), signal.SIGSTOP)"),
         "train job.py -p ddp -w 2 --timeout 2", 1,
         (r"WorkerSilent: worker \d did not come: worker \d waited 2 s for it. Its process \d+ is stopped \(SIGSTOP",)),
    Case("a worker that never comes back", falls("time.sleep(60)"), f"{RING} --timeout 1", 1,
         (r"worker \d did not come: .* sleeps: it waits for something itself",)),
    Case("a worker in a loop without end", falls("[None for _ in iter(int, 1)]"), f"{RING} --timeout 1", 1,
         (r"worker \d did not come: .* computes: it is slow, or in a loop without end",)),
    Case("Python's memory runs out", falls("torch.empty(10**15)"), RING, 1,
         (r"failed first: RuntimeError: .*can't allocate memory", "advice memory has run out: a smaller batch_size")),
    Case("the kernel's memory runs out",
         falls("open('GROUP', 'w').write(str(os.getpid())), bytearray(1 << 28).count(1)"), RING, 1,
         (r"worker \d died \(SIGKILL\)", "advice the kernel's out-of-memory killer has struck: a smaller batch_size"),
         memory=64 << 20),
    Case("more workers than cores", "job = job.with_(epochs=30)\n", "train job.py -p ring -w 4", 0,
         (r"note: 4 workers on \d cores? took turns: for \d+% of their time they waited for one",)),
)  # fmt: skip

NUMBERS = (
    Case("NaN", "x[33] = float('nan')\n", RING, 1,
         (r"failed first: the loss is nan when in update \d, with samples .*\b33\b", "sample 33 of the data holds")),
    Case("NaN, to be skipped", "x[33] = float('nan')\njob = job.with_(on_nan='skip')\n", RING, 0,
         (r"not finite the loss of 3 gradients",)),
    Case("NaN, to be ignored", "x[33] = float('nan')\njob = job.with_(on_nan='ignore')\n", DOWNPOUR, 0,
         (r"not finite the loss of \d+ gradients",)),
    Case("NaN, where it cannot be skipped", "job = job.with_(on_nan='skip')\n", "train job.py -p ddp -w 2", 2,
         (r"PlanError: plan ddp cannot honour on_nan='skip'",)),
    Case("a rate that is too high", "job = job.with_(optimizer=partial(torch.optim.SGD, lr=1e38), epochs=9)\n", RING, 1,
         (r"failed first: the loss is (nan|inf)", "a lower learning rate")),
)  # fmt: skip

DATA = (
    Case("no samples", "job = job.with_(data=(x[:0], y[:0]))\n", RING, 2, (r"JobError: data= holds no samples",)),
    Case("a batch larger than the data", "job = job.with_(batch_size=1000)\n", RING, 0,
         (r"note: batch_size=1000 is more than the 200 samples", "3 updates")),
    Case("more workers than samples", "job = job.with_(data=(x[:2], y[:2]))\n", "train job.py -p ring -w 3", 0,
         (r"note: a batch of 2 samples cannot be divided among 3 workers: some have nothing to do",)),
    Case("tensors of different lengths", "job = job.with_(data=(x, y[:50]))\n", RING, 2,
         (r"JobError: the data's tensors have shapes \(200, 8\), \(50,\)",)),
    Case("arrays of something else than numbers", "job = job.with_(data=(x.numpy(), y.numpy().astype(str)))\n", RING, 2,
         (r"data= has a NumPy array of <U\d+; give one of numbers",)),
    Case("something that is no data", "job = job.with_(data=42)\n", RING, 2, (r"JobError: data=42 is neither",)),
    Case("data that cannot be sent to another process",
         "class Locked(Samples):\n    lock = None\n    def __init__(self):\n        self.lock = threading.Lock()\n"
         "job = job.with_(data=Locked())\n", RING, 2, (r"JobError: the job cannot be .*cannot pickle '_thread.lock'",)),
    Case("a loss that cannot be sent to another process",
         "gate = threading.Lock()\ndef loss(output, target, gate=gate):\n"
         "    return nn.functional.cross_entropy(output, target)\njob = job.with_(loss=loss)\n", RING, 2,
         (r"JobError: the job cannot be .*cannot pickle '_thread.lock'",)),
)  # fmt: skip

MODELS = (
    Case("a model without parameters", "job = job.with_(model=nn.Tanh)\n", RING, 2,
         (r"JobError: Tanh has no parameter that requires a gradient: nothing to train",)),
    Case("a model that is all frozen",
         "def frozen():\n    return Net().requires_grad_(False)\njob = job.with_(model=frozen)\n", RING, 2,
         (r"JobError: Net has no parameter that requires a gradient: nothing to train",)),
    Case("a model that is no module", "job = job.with_(model=lambda: 7)\n", RING, 2,
         (r"JobError: model= returned int, not an nn.Module",)),
    Case("an optimizer that is tied to one model",
         "job = job.with_(optimizer=torch.optim.SGD(Net().parameters(), lr=0.1))\n", RING, 2,
         (r"every worker needs its own: give a function that makes one",)),
    Case("a GPU that is not there", "job = job.with_(device='cuda')\n", ALONE, 2,
         (r"JobError: device='cuda': this PyTorch finds no GPU here",)),
)  # fmt: skip

WORDS = (
    Case("a job file with a syntax error", "x = 1\nif :\n", RING, 2, (r"JobError: job.py does not parse: line 2",), ""),
    Case("a job file that fails when it is read", "import torch\n1 / 0\n", RING, 2,
         (r"JobError: job.py fails when it is read, in line 2: ZeroDivisionError",), ""),
    Case("a job file without a job", "jub = 1\n", RING, 2, (r"JobError: job.py defines no job",), ""),
    Case("no such job", "", "train digit", 2, (r"did you mean 'digits'\?",)),
    Case("a wrong plan name", "", "train job.py -p rign", 2, (r"PlanError: .*did you mean 'ring'\?",)),
    Case("a wrong option of a plan", "", "train job.py -p downpour:shard=2", 2, (r"did you mean 'shards'\?",)),
    Case("a plan's option out of range", "", "train job.py -p ssp:bound=-1", 2, (r"PlanError: .*at least 0",)),
    Case("an option of a job out of range", "job = job.with_(batch_size=0)\n", RING, 2,
         (r"batch_size=0 is not a whole number of at least 1",)),
    Case("two workers for a plan of one", "", "train job.py -w 2", 0,
         (r"note: 2 workers were asked for, and plan sequential is one process",)),
    Case("a job's name without its ending", "", "train job", 2, (r"did you mean job.py\?",)),
    Case("a comparison that is timed for no time", "", "compare job.py --seconds nan", 2,
         (r"UsageError: seconds=nan: give how many seconds each plan is timed",)),
    Case("a metric that is no number", "job = job.with_(test=(x, y), metrics={'word': lambda out, y: 'good'})\n",
         RING, 2, (r"JobError: before the training, the metric 'word' returned 'good', which is not a number",)),
    Case("no workers", "", "train job.py -p ring -w 0", 2, (r"workers.*1",)),
    Case("a folder that cannot be made", "", f"{RING} --runs job.py/runs", 2,
         (r"RunFolderError: the run's folder \S+ cannot be made: Not a directory",)),
    Case("a disk that is full",
         falls("import resource; resource.prlimit(parent, resource.RLIMIT_FSIZE, (1, resource.RLIM_INFINITY))"),
         f"{RING} --epochs 30000", 1,
         (r"RunFailed: the trace runs/\S+/trace.arrow cannot be written: .*File too large.*; make room",)),
    Case("a replay of what is no run", "", "replay .", 2, (r"RunFolderError: \. is not a run's folder",)),
    Case("a replay of a run that is damaged", "", "replay damaged", 2,
         (r"RunFolderError: damaged/run.json is damaged",)),
)  # fmt: skip

CASES = {
    "The user's code": USERS_CODE,
    "Processes": PROCESSES,
    "Numbers": NUMBERS,
    "Data": DATA,
    "Models and optimizers": MODELS,
    "Files, names and options": WORDS,
}
