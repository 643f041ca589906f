"""The planner: predicts what a plan costs for a job, chooses one, and is checked against measurements.

    card.py          what a machine can do, as a file that can be carried to another machine: seconds of operations
    model_cost.py    runs a model in fake mode and records its operations
    fitting.py       makes a card of measurements
    costs.py         seconds of the parts of a step by a card; profiled.py: by a few real steps
    methods.py       the seconds of an update, which its method predicts of these parts, with waiting
    memory.py        the memory of each worker
    facts.py         the job's sizes, and how a plan divides the model; `api.planning.dividing` works that out
    prediction.py    a prediction, and the plans that are considered
    split_search.py  a way for each layer
    cluster.py       cluster.toml: nodes, links, failures, prices
    simulating.py    predictions judged by the virtual engine
    choosing.py      ranks candidates, and explains the choice
    validating.py    predicted against measured, and the table of validations, which intervals follow

It reads cards and closed forms, and is handed measurements: what runs real engines is in `api`.
"""
