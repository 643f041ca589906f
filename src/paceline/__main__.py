from paceline.engines.signals import termination


def main() -> None:
    """Run a command; SIGTERM ends it with exit code 143, while it is imported, too."""
    termination.exit_at_once()
    from paceline.cli import main as run

    run()


if __name__ == "__main__":
    main()
