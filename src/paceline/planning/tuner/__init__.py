"""The tuner: trains a job with many configurations and finds the best one.

It is handed a function that runs one trial, and knows neither engines nor plans. Decisions are made by the machines of
`algorithms.tuning`; here are time, files and processes.

    space        what may vary; configurations from coordinates
    searches     the searches by name, as in "asha:max_t=9"
    trial        what a trial's function is given: suggest_float, report, should_prune
    journal      the record of a tuning, written by one process
    study        scheduler, proposals and journal together: the one place where anything is decided
    trials/      the loop between a study and what runs trials, and ways to run them: processes, stacked, distributed
    optuna       Optuna's samplers, and its storage
    result       the best trial, where the time went, and the number of workers that pays
    page         the report
    varied       a job with other settings, and the best configuration as a job file
"""
