"""Trainings and computations with long waits in them, which do not hang; run only to judge."""

from __future__ import annotations

import sys

from programs.parts import BIN, python, run, script


def _ranks(count: int, text: str) -> None:
    run(BIN / "torchrun", "--standalone", "--nproc-per-node", count, script(text))


def _mpi(count: int, text: str) -> None:
    run(BIN / "mpiexec", "-n", count, sys.executable, script(text))


def evaluation_that_takes_long() -> None:
    python(
        """
        import time, torch
        model = torch.nn.Linear(50, 5)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
        while True:
            for _ in range(200):
                optimizer.zero_grad()
                model(torch.randn(64, 50)).square().mean().backward()
                optimizer.step()
            with torch.no_grad():
                for _ in range(5):
                    model(torch.randn(64, 50)).sum()
                    time.sleep(9)
        """
    )


def loader_with_slow_workers() -> None:
    python(
        """
        import time, torch
        class Images(torch.utils.data.Dataset):
            def __len__(self): return 1000
            def __getitem__(self, index):
                time.sleep(14)
                return torch.zeros(3)
        for batch in torch.utils.data.DataLoader(Images(), batch_size=2, num_workers=2):
            batch.sum()
        """
    )


def workers_ahead_of_a_slow_training() -> None:
    """The workers have filled their queues and wait until a batch is taken, which happens every half a minute."""
    python(
        """
        import time, torch
        numbers = torch.utils.data.TensorDataset(torch.zeros(10000, 3))
        for batch in torch.utils.data.DataLoader(numbers, batch_size=2, num_workers=2, persistent_workers=True):
            time.sleep(28)
        """
    )


def slow_rank() -> None:
    _ranks(
        2,
        """
        import time, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        model = torch.nn.parallel.DistributedDataParallel(torch.nn.Linear(8, 2))
        while True:
            model(torch.randn(4, 8)).sum().backward()
            time.sleep(26 if dist.get_rank() == 1 else 0)
        """,
    )


def rank_that_writes_a_checkpoint() -> None:
    _ranks(
        3,
        """
        import os, tempfile, time, torch, torch.distributed as dist
        dist.init_process_group("gloo")
        while True:
            if dist.get_rank() == 0:
                with tempfile.TemporaryFile() as file:
                    for _ in range(20):
                        torch.save(torch.zeros(100000), file)
                        os.fsync(file.fileno())
                        time.sleep(1.2)
            dist.barrier()
            dist.all_reduce(torch.ones(100))
        """,
    )


def rank_that_waits_for_a_lock_of_a_cache() -> None:
    """Every rank downloads under one lock on a file, one after the other, and then they meet."""
    _ranks(
        2,
        """
        import tempfile, time, torch.distributed as dist
        from filelock import FileLock
        dist.init_process_group("gloo")
        while True:
            with FileLock(tempfile.gettempdir() + "/cache.lock"):
                time.sleep(18)
            dist.barrier()
        """,
    )


def barrier_at_which_ranks_spin() -> None:
    _mpi(
        2,
        """
        import time
        from mpi4py import MPI
        while True:
            if MPI.COMM_WORLD.rank == 1:
                time.sleep(12)
            MPI.COMM_WORLD.Barrier()
        """,
    )


def root_that_reads_before_it_sends() -> None:
    _mpi(
        2,
        """
        import subprocess
        from mpi4py import MPI
        while True:
            data = subprocess.run(["sleep", "13"]).returncode if MPI.COMM_WORLD.rank == 0 else None
            MPI.COMM_WORLD.bcast(data)
        """,
    )


def tasks_of_joblib() -> None:
    python(
        """
        import time
        from joblib import Parallel, delayed
        while True:
            Parallel(n_jobs=2)(delayed(time.sleep)(21) for _ in range(3))
        """
    )


def study_in_threads() -> None:
    python(
        """
        import time, optuna
        optuna.logging.set_verbosity(optuna.logging.ERROR)
        def objective(trial):
            time.sleep(17)
            return trial.suggest_float("x", -1, 1) ** 2
        optuna.create_study().optimize(objective, n_trials=1000, n_jobs=3)
        """
    )


def long_pause_of_the_collector() -> None:
    python(
        """
        import gc, time
        kept = [{"next": None} for _ in range(500_000)]
        while True:
            gc.collect()
            time.sleep(13)
        """
    )


def long_call_of_c() -> None:
    """A function of C that sleeps and does not release the interpreter, while another thread wants it."""
    python(
        """
        import ctypes, threading, time
        def beat():
            while True:
                time.sleep(1)
        threading.Thread(target=beat, daemon=True).start()
        pause = ctypes.PyDLL(None).usleep
        while True:
            pause(8_000_000)
            time.sleep(11)
        """
    )


def large_product() -> None:
    python(
        """
        import time, numpy
        square = numpy.random.rand(1200, 1200)
        while True:
            square = square @ square
            square /= square.max()
            time.sleep(19)
        """
    )


def fit_of_lightning_with_a_slow_validation() -> None:
    python(
        """
        import time, torch, lightning
        class Small(lightning.LightningModule):
            def __init__(self):
                super().__init__()
                self.layer = torch.nn.Linear(4, 1)
            def training_step(self, batch, index): return self.layer(batch[0]).sum()
            def validation_step(self, batch, index): time.sleep(16)
            def configure_optimizers(self): return torch.optim.SGD(self.parameters(), lr=0.01)
        data = torch.utils.data.DataLoader(torch.utils.data.TensorDataset(torch.zeros(6, 4)))
        trainer = lightning.Trainer(max_epochs=100, logger=False, enable_checkpointing=False, accelerator="cpu",
                                    enable_progress_bar=False)
        trainer.fit(Small(), data, data)
        """
    )


PROGRAMS = {
    each.__name__: each
    for each in (
        evaluation_that_takes_long, loader_with_slow_workers, workers_ahead_of_a_slow_training, slow_rank,
        rank_that_writes_a_checkpoint, rank_that_waits_for_a_lock_of_a_cache, barrier_at_which_ranks_spin,
        root_that_reads_before_it_sends, tasks_of_joblib, study_in_threads, long_pause_of_the_collector, long_call_of_c,
        large_product, fit_of_lightning_with_a_slow_validation,
    )
}  # fmt: skip
