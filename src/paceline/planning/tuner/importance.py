"""How much each parameter matters: fANOVA, as Optuna computes it.

Hutter et al., "An efficient approach for assessing hyperparameter importance", ICML 2014: the share of the metric's
variance over the space that a forest of regression trees attributes to each parameter alone.
"""

from __future__ import annotations

import contextlib
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import Any

from paceline.planning.tuner.optuna import distribution
from paceline.planning.tuner.space import Space
from paceline.planning.tuner.study import TrialRecord

FEW = 8  # trials, with fewer of which nothing is said
MOST, TREES = 256, 16  # trials that are looked at, and trees of the forest: a second or so


def shares(trials: Sequence[TrialRecord], space: Mapping[str, Any]) -> dict[str, float] | None:
    """Return each parameter's share of the variance; None without Optuna or with too few trials."""
    names = [name for name in space if all(name in trial.configuration for trial in trials)]
    values = [trial.value for trial in trials if trial.value is not None]
    if len(values) < FEW or not names or len(set(values)) < 2:
        return None
    try:
        import optuna
        from optuna.importance import FanovaImportanceEvaluator
    except ImportError:
        return None
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    distributions = {
        name: distribution(Space({name: dict(space[name]) | {"when": {}}}).parameters[name]) for name in names
    }
    study = optuna.create_study()
    for trial in trials[:: -(-len(trials) // MOST)]:
        if trial.value is not None and math.isfinite(trial.value):
            params = {name: trial.configuration[name] for name in names}
            study.add_trial(optuna.create_trial(params=params, distributions=distributions, value=trial.value))
    with contextlib.suppress(ValueError, RuntimeError):  # of a parameter that has one value only
        return dict(
            optuna.importance.get_param_importances(study, evaluator=FanovaImportanceEvaluator(n_trees=TREES, seed=0))
        )
    return None


def importance(trials: Sequence[TrialRecord], space: Mapping[str, Any]) -> str:
    """Return bars of the shares, or why there are none."""
    importances = shares(trials, space)
    if importances is None:
        return (
            f"<p class=note>Shares of the variance need at least {FEW} trials that differ, and Optuna: "
            "<code>pip install 'paceline[optuna]'</code>.</p>"
        )
    rows = "".join(
        f'<tr><th>{escape(name)}</th><td class="n">{share:.0%}</td><td style="width:20rem"><div style="height:.8em;'
        f'width:{share:.1%};background:var(--run-0)"></div></td></tr>'
        for name, share in importances.items()
    )
    note = "<p class=note>fANOVA: the share of the metric's variance that each has alone.</p>"
    return f"<table><tbody>{rows}</tbody></table>{note}"
