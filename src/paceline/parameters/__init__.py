"""Where parameters live: how they lie in memory, who steps them, and which version a worker sees."""
