"""The tuner: trains a job with many configurations and finds the best one.

It is handed a function that runs one trial, and knows neither engines nor plans. Decisions are made by the machines of
`algorithms.tuning`; here are time, files and processes.

    space        what may vary; configurations from coordinates
    proposals    configurations by number, from a sampler and a space
    searches     the searches by name, as in "asha:max_t=9"
    trial        what a trial's function is given: suggest_float, report, should_prune
    journal      the record of a tuning, written by one process
    study        scheduler, proposals and journal together: the one place where anything is decided
    drive        the loop between a study and what runs trials
    trials/      ways to run them: here, processes, stacked, distributed
    optuna       Optuna's samplers, and its storage
    account      where the time went, and the number of workers that pays
    page, best   the report, and the best configuration as a job file
"""
