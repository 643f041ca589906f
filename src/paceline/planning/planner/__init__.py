"""The planner: predicts what a plan costs for a job, chooses one, and is checked against measurements.

    card.py         what a machine can do, as a file that can be carried to another machine
    operations.py   one operation of a model's step, and the figures by which its time is predicted
    model_cost.py   runs a model in fake mode and records its operations
    fitting.py      makes a card of measurements
    costs.py        seconds of the parts of a step, at three levels of truth
    methods.py      the seconds of an update, which its method predicts of these parts
    memory.py       the memory of each worker
    facts.py        the job's sizes, and how a plan divides the model; `api.dividing` works that out
    candidates.py   the plans that are considered
    cluster.py      cluster.toml: nodes, links, failures; prices.py: dollars
    simulating.py   predictions judged by the virtual engine
    history.py      the table of validations, which intervals follow
    choosing.py     ranks candidates, and explains the choice
    validating.py   predicted against measured

It reads cards and closed forms, and is handed measurements: what runs real engines is in `api`.
"""
