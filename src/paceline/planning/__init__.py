"""What to run: plans predicted and chosen, hyperparameters searched, plans drawn and proved.

    planner  predicts time, memory and money of a plan for a job; it is given measurements and imports no engine
    tuner    searches for the best configuration, many trials at once
    explain  `paceline draw` and `paceline prove`

Read planner/prediction.py first.
"""
