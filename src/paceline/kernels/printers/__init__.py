"""From a plan to text that runs."""
