# %% [markdown]
# # The first comparison
#
# Which way of training in parallel is the fastest on this machine, and is any of them faster than one process? A
# comparison answers this for one job. This tutorial uses the built-in job `digits`, a small network on the digits of
# scikit-learn, so nothing is downloaded.

# %%
import paceline
from paceline.jobs.loading import load_job

job = load_job("digits")
print(job)

# %% [markdown]
# `compare` first trains the whole job by every plan, for the accuracies. Then it times all plans in interleaved rounds,
# with the best single process and the ceiling (as many workers that never communicate) in the same rounds, because a
# machine is never equally busy for long.

# %%
found = paceline.compare(job, ["sequential", "ring", "downpour"], workers=2, seconds=2, folder=None)
print(found)

# %% [markdown]
# The last line is the answer: a plan with the command that trains by it, one process, or that the figures do not settle
# it. Every figure is also an attribute:

# %%
for row in found.rows:
    print(f"{row.short:12} {row.speedup:.2f} times one process, accuracy {row.test_accuracy:.1%}")
print(found.answer.kind)

# %% [markdown]
# On the command line the same is `paceline compare digits --plans sequential,ring,downpour --workers 2`; it also writes
# an HTML page. [Five minutes to a first comparison](first-comparison.md) explains the table column by column.
