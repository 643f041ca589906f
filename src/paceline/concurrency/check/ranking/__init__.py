"""How likely a finding is worth a look, and which files are walked first; learned weights lie beside the code."""
