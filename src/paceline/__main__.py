from paceline.cli.entry import run

run()
