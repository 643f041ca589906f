"""Plans side by side: on a job, over a link that one does not have, and for a script."""
