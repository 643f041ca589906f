"""Native loops of codecs: text in C++, compiled once for this machine, and the functions that call it."""
